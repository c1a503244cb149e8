// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Models of the synchronisation between threads; `cargo xtask loom` builds them with `--cfg loom` and `--cfg shuttle`. Without
//! these flags the program is empty.

extern crate mqblk_blk as blk;

#[cfg(loom)]
use loom as checker;
#[cfg(shuttle)]
use shuttle as checker;

#[cfg(any(loom, shuttle))]
mod model;

#[cfg(loom)]
mod loom_held;
#[cfg(loom)]
mod loom_hotplug;
#[cfg(loom)]
mod loom_multipath;
#[cfg(loom)]
mod loom_sbitmap;
#[cfg(loom)]
mod loom_shared;
#[cfg(loom)]
mod loom_stack;
#[cfg(shuttle)]
mod shuttle_stack;
