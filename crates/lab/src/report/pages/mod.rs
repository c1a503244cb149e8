// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From results to documents, which the crate `report` shows as pages.
//!
//! [`of_run`], [`of_compare`], [`of_tune`], [`of_scenario`], [`of_whatif`], [`of_study`]: one for each kind of result; [`parts`] is what
//! they are made of.

pub mod parts;
pub mod of_run;
pub mod of_compare;
pub mod of_tune;
pub mod of_scenario;
pub mod of_whatif;
pub mod of_study;
