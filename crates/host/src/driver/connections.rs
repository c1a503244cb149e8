// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections of a driver that reaches its device over a network.

/// What became of a driver's connections to its device, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// How many there are to be.
    pub wanted: u64,
    /// How many there are.
    pub up: u64,
    /// How often one was lost.
    pub losses: u64,
    /// Requests that were sent again on the next one.
    pub replayed: u64,
}
