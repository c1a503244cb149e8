// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Striping: one disk whose chunks are on several disks in round-robin order.
//!
//! [`StripeMap`] maps a sector to a stripe. [`Striped`] is the submitter of a striped disk, on top of one submitter per lower
//! disk. Each lower disk keeps its own tags, elevator and settings: striping works with bios, and makes no requests.
//!
//! Source: drivers/md/dm-stripe.c and dm.c of Linux 6.19 (the parts of a bio, and flushes); the mapping is the linear
//! formula of the device mapper's documentation, "dm-stripe".

mod map;
mod striped;

pub use map::{MAX_STRIPES, Stripe, StripeError, StripeMap};
pub use striped::Striped;
