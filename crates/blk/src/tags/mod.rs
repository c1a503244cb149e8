// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tags: the numbers a request needs to exist and to be at the driver, and the waiters for them.
//!
//! From the bits up:
//! - [`sbitmap`]: a bitmap whose words lie on cache lines of their own (lib/sbitmap.c).
//! - [`sbitmap_queue`]: the bitmap with wait queues.
//! - `hctx_tags`: the tags of one hardware queue, normal and reserved, and the names of those that wait for one.
//! - `tag_set`: tags that several disks use; `share`: how many each may have.
//! - `waiting`: taking and freeing a driver tag that others use, its waiters and their wake-ups.
//!
//! A request takes its tag in `path::tag` and gives it back in `path::complete`.

pub(crate) mod hctx_tags;
pub mod sbitmap;
pub mod sbitmap_queue;
pub(crate) mod share;
pub(crate) mod tag_set;
pub(crate) mod waiting;

pub use tag_set::{TagSet, TagSetConfig};
