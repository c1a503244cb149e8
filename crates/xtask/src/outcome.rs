// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The outcome of a subcommand that could do its work. Operating errors are messages instead.

/// The verdict of a check, a bench or an exploration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Everything held.
    Passed,
    /// Something did not hold.
    Failed,
}
