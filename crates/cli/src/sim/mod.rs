// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk sim`: a scenario of a machine one does not have, a study of how things scale, or cases that check the block layer, by
//! their seeds.

mod cases;
mod scenario;
pub mod study;
mod study_here;

use crate::args::SimArgs;
use crate::status::Outcome;

/// Runs what was asked for.
pub fn main(args: &SimArgs) -> Outcome {
    match (&args.scenario, args.study) {
        (Some(file), _) => scenario::main(file, args),
        (None, Some(study)) => study::main(study, args),
        (None, None) => cases::main(args),
    }
}
