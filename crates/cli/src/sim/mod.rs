// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk sim`: a scenario of a machine that you do not have, what would change if a machine were different, or a study of how
//! things scale. Also cases, by their seeds, that check the block layer.

mod cases;
mod scenario;
mod whatif;
pub mod study;
mod study_here;

use crate::args::SimArgs;
use crate::status::Outcome;

/// Runs a scenario, a what-if, a study or cases, as `args` select.
pub fn main(args: &SimArgs) -> Outcome {
    match (&args.scenario, args.study) {
        (Some(file), _) if args.jobs.is_some() || !args.what_if.is_empty() => whatif::main(file, args),
        (Some(file), _) => scenario::main(file, args),
        (None, Some(study)) => study::main(study, args),
        (None, None) => cases::main(args),
    }
}
