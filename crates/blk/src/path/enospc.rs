// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes that wait for space: those that a driver completes with NOSPC are issued again once a second, if the disk is set so.
//!
//! Guarantees: such a write, or write of zeroes, goes the way of a request that its driver gives back ([`requeue`](super::requeue)), with
//! retries counted anew. Its bios see no error, and a freeze waits for it. Other operations fail: a flush must not be repeated. Costs a
//! load per poll that completes something, and a look at each status while it is set. Does not hold a request that the driver
//! completes while it is being issued.
//!
//! The behaviour is that of QEMU's `werror=enospc`, except that QEMU stops the guest, and retries when it is continued.

use crate::bio::Op;
use crate::driver::{Completions, Ended, Requeued, Tries};
use crate::lock::Lock;
use crate::queue::RequestQueue;
use crate::status::BlkStatus;
use crate::submitter::{Env, Local};
use crate::sync::Ordering;
use crate::time::Duration;

/// Time after which a held write is issued again.
const RETRY: Duration = Duration::from_ms(1000);

impl<L: Lock> RequestQueue<L> {
    /// Sets whether writes that fail for lack of space are issued again once a second. Writes that are held when this is switched off
    /// are issued once more.
    pub fn set_hold_on_enospc(&self, hold: bool) {
        // Relaxed: a completion that reads the old value comes before the change.
        self.live.hold_on_enospc.store(hold, Ordering::Relaxed);
    }

    /// Returns how often a write was held because there was no space.
    pub fn held_on_enospc(&self) -> u64 {
        self.held_on_enospc.load(Ordering::Relaxed)
    }
}

impl<L: Lock> Env<L> {
    /// Whether some of these completions may have to be held.
    #[inline]
    pub(crate) fn lack_space(&self, ended: &[Ended]) -> bool {
        self.q.live.hold_on_enospc.load(Ordering::Relaxed) && ended.iter().any(|(_, s)| *s == BlkStatus::NoSpc)
    }

    /// Turns completions of writes that lack space into requests that the driver gives back.
    #[cold]
    pub(crate) fn hold_for_space(&self, local: &mut Local, hctx: usize) {
        let Completions { items, requeues, .. } = &mut local.completions;
        let before = requeues.len();
        items.retain(|&(tag, status)| {
            let rq = self.st.slab.get(self.rq_of_driver_tag(hctx, tag.index()));
            let holds = status == BlkStatus::NoSpc && matches!(rq.op(), Op::Write | Op::WriteZeroes);
            if holds {
                requeues.push(Requeued { tag, delay: Some(RETRY), tries: Tries::Afresh });
            }
            !holds
        });
        self.q.held_on_enospc.fetch_add((requeues.len() - before) as u64, Ordering::Relaxed);
    }
}
