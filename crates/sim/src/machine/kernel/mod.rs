// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's locks, where a simulated machine has the kernel's block layer ([`Layer`]).
//!
//! mqblk's layer decides as the kernel's does, but takes its elevator's lock once per batch. The kernel takes it per request.
//! With a kernel's layer, mqblk's elevators decide as before, and these modules account for the locks that the kernel takes
//! meanwhile. Contention then follows from the number of holds, their length, and the cache lines that they move.
//!
//! | module | what it is |
//! |---|---|
//! | [`layer`] | whose block layer a machine has |
//! | [`sites`] | where the kernel takes which lock, for how long, with which lines: the table |
//! | `lock` | one such lock in virtual time |
//! | [`driver`] | the locks of a driver |
//! | `elevator` | an elevator with the kernel's locks around it |

pub mod driver;
mod elevator;
pub mod layer;
pub(super) mod lock;
pub mod sites;

pub use layer::Layer;

use blk::elevator::CustomElevator;

/// The elevators of a layer that take the place of mqblk's own.
pub(super) fn elevators(layer: Layer) -> &'static [CustomElevator] {
    match layer {
        Layer::Mqblk => &[],
        _ if layer.dispatches_batches() => &elevator::IN_BATCHES,
        Layer::Linux(..) => &elevator::ONE_BY_ONE,
    }
}
