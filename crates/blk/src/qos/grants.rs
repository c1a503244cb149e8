// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Turns under the limits: a submitter asks for a turn, which is the right to submit one I/O, and gets it when it is
//! due.

use super::limits::WaitEntry;
use crate::lock::Lock;
use crate::queue::request_queue::RequestQueue;
use crate::sync::Ordering;
use crate::time::Instant;

impl<L: Lock> RequestQueue<L> {
    /// Gives every turn that is due to its submitter.
    pub(crate) fn serve_turns(&self, now: Instant) {
        if now.as_ns() < self.qos.turn_due.load(Ordering::Relaxed) {
            return;
        }
        let mut limiter = self.qos.limiter.lock();
        limiter.serve(now, &mut |entry| self.grant(entry));
        self.qos.turns_changed(&limiter);
    }

    /// Whether an I/O may be submitted now. If not, its submitter gets a turn later, unless `nowait`.
    pub(crate) fn try_admit(&self, entry: WaitEntry, nowait: bool, now: Instant) -> bool {
        let mut limiter = self.qos.limiter.lock();
        let granted = &mut |t: WaitEntry| self.grant(t);
        let go = if nowait { limiter.try_now(entry, now, granted) } else { limiter.ask(entry, now, granted) };
        self.qos.turns_changed(&limiter);
        go
    }

    fn grant(&self, entry: WaitEntry) {
        self.submitter_shared(entry.submitter.index()).granted.give(entry.fifo);
        self.notify.notify(entry.submitter);
    }
}
