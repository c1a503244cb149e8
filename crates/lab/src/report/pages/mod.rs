// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From results to documents, which the crate `report` shows as pages.
//!
//! [`of_run`], [`of_compare`], [`of_tune`], [`of_scenario`], [`of_whatif`] and [`of_study`] each make one kind of report.
//! [`parts`] has the sections that they share.

pub mod parts;
pub mod of_run;
pub mod of_compare;
pub mod of_tune;
pub mod of_scenario;
pub mod of_whatif;
pub mod of_study;
