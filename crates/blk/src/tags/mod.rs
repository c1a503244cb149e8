// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tags: a request needs one to be allocated and one to be in flight at the driver. Also the waiters for tags.
//!
//! From the bits up:
//! - [`sbitmap`]: a bitmap whose words lie on cache lines of their own (lib/sbitmap.c).
//! - [`sbitmap_queue`]: the bitmap with wait queues.
//! - `hctx_tags`: the tags of one hardware queue, normal and reserved, and the identifiers of their waiters.
//! - `tag_set`: tags that several disks share; `share`: how many tags each disk may have.
//! - `waiting`: taking and freeing a shared driver tag, its waiters and their wake-ups.
//!
//! A request takes its tag in `path::tag` and gives it back in `path::complete`.

pub(crate) mod hctx_tags;
pub mod sbitmap;
pub mod sbitmap_queue;
pub(crate) mod share;
pub(crate) mod tag_set;
pub(crate) mod waiting;

pub use tag_set::{TagSet, TagSetConfig};
