// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a subcommand ended when it could do its work; operating errors are messages.

/// The verdict of a check, a bench or an exploration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Everything held.
    Passed,
    /// Something did not.
    Failed,
}
