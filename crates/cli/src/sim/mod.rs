// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk sim`: a scenario of a machine one does not have, what would change if a machine were otherwise, or cases that check the block layer, by their seeds.

mod cases;
mod scenario;
mod whatif;

use crate::args::SimArgs;
use crate::status::Outcome;

/// Runs what was asked for.
pub fn main(args: &SimArgs) -> Outcome {
    match &args.scenario {
        Some(file) if args.jobs.is_some() || !args.what_if.is_empty() => whatif::main(file, args),
        Some(file) => scenario::main(file, args),
        None => cases::main(args),
    }
}
