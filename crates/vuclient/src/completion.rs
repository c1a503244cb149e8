// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One virtqueue of blkio and its completions.
//!
//! Guarantees: [`Queue::reap`] calls its function once for each completed request, with the request's number and its status. Needs the
//! memory of a request to stay mapped until the request completes: [`crate::disk::Disk`] keeps its memory mapped as long as it lives.
//! Allocates nothing per request.
//! The one `unsafe` of this crate is here: blkio hands completions out as `MaybeUninit`.

use std::mem::MaybeUninit;
use std::time::Duration;

use blkio::{Blkioq, Completion};

use crate::error::Error;

/// Completions taken from the ring per call.
const BATCH: usize = 256;

/// A started virtqueue.
pub struct Queue {
    blkioq: Blkioq,
    slots: Box<[MaybeUninit<Completion>]>,
}

impl Queue {
    pub(crate) fn new(blkioq: Blkioq) -> Queue {
        let slots = (0..BATCH).map(|_| MaybeUninit::uninit()).collect();
        Queue { blkioq, slots }
    }

    /// Returns the ring to put requests on. The server sees them at the next [`Queue::reap`].
    pub fn ring(&mut self) -> &mut Blkioq {
        &mut self.blkioq
    }

    /// Makes new requests visible to the server, then waits until at least `min` requests have completed. Calls `each` for every completed
    /// request with its number, its status (0 or a negative errno), and the ring for the next requests. Returns how many completed. Without
    /// `patience`, `min` must be 0.
    ///
    /// # Errors
    /// [`Error::Server`] if the wait takes longer than `patience`, or the error that blkio returns.
    pub fn reap(
        &mut self,
        min: usize,
        patience: Option<Duration>,
        mut each: impl FnMut(&mut Blkioq, usize, i32),
    ) -> Result<usize, Error> {
        assert!(min == 0 || patience.is_some(), "no wait without an end");
        let mut left = patience;
        let count = self.blkioq.do_io(&mut self.slots, min, left.as_mut(), None);
        let count = count.map_err(|source| match (source.errno(), patience) {
            (blkio::Errno::TIME, Some(patience)) => {
                Error::Server(format!("the server completed no request within {patience:?}"))
            }
            _ => Error::Blkio { what: "do_io".into(), source },
        })?;
        #[allow(unsafe_code, reason = "blkio fills MaybeUninit slots and tells how many")]
        // SAFETY: `do_io` returned `count`, which is its documented number of slots filled, from the first on.
        let ended = unsafe { self.slots[..count].assume_init_ref() };
        for done in ended {
            each(&mut self.blkioq, done.user_data, done.ret);
        }
        Ok(count)
    }
}
