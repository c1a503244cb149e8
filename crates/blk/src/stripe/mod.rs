// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Striping: one disk whose chunks lie on several disks in turn.
//!
//! [`StripeMap`] says where a sector lies; [`Striped`] is the submitter of such a disk, with a submitter of each of its disks
//! below it. Each of these keeps its own tags, elevator and settings: a stripe works with bios, and makes no requests.
//!
//! Source: drivers/md/dm-stripe.c and dm.c of Linux 6.19 (what goes where, and how flushes are made); the mapping is the
//! linear formula of the device mapper's documentation, "dm-stripe".

mod map;
mod striped;

pub use map::{MAX_STRIPES, Stripe, StripeError, StripeMap};
pub use striped::Striped;
