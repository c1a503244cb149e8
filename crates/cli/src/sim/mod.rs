// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk sim`: a scenario of a machine one does not have, or cases that check the block layer, by their seeds.

mod cases;
mod scenario;

use crate::args::SimArgs;
use crate::status::Outcome;

/// Runs what was asked for.
pub fn main(args: &SimArgs) -> Outcome {
    match &args.scenario {
        Some(file) => scenario::main(file, args),
        None => cases::main(args),
    }
}
