// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What of a disk is stored, and how much room there is for more.

/// What a driver knows of what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Nothing: all may be data.
    Data,
    /// All is a hole, always.
    Hole,
    /// [`HostDriver::survey`] tells.
    Survey,
}

/// Sectors in a row of which the same is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// How many; at least one.
    pub nr_sectors: u64,
    /// Nothing is stored, and they read as zeroes.
    pub is_hole: bool,
}
