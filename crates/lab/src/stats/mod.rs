// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Statistics that a comparison rests on: pure functions of numbers, no clock, no randomness.
//!
//! - [`descriptive`]: mean, spread, median, least-squares trend.
//! - [`student_t`]: Student's t distribution (tail probability and critical value).
//! - [`ratio`]: interval and p-value of a ratio from logarithms of paired results.
//! - [`sample_size`]: how many units show a difference of a given size.
//! - [`holm`]: Holm's step-down correction for several metrics at once.

pub mod descriptive;
pub mod student_t;
pub mod ratio;
pub mod sample_size;
pub mod holm;
