// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two counters that most bounds are built from. One counts the service of other groups between two turns of a waiting group.
//! The other counts how many requests of the same group go before a request whose time has expired. Pressure cases use them,
//! and so does `liveness`, which checks all other cases.

use super::bound::SeenRequest;
use std::collections::VecDeque;

/// Between two reads of a deadline elevator at most so many writes go, and between two writes so many reads (derived in
/// `deadline`). With `starved` 0 reads have no bound.
pub(crate) fn between_directions(batch: u64, starved: u64) -> [u64; 2] {
    let batch = batch.max(1);
    let passes_reads = if starved == 0 { u64::MAX } else { batch };
    [passes_reads, starved.saturating_add(1).saturating_mul(batch)]
}

/// Bounds the service between turns. While a group has requests waiting, all others together get at most a fixed amount
/// between two of its requests.
pub(crate) struct Turns {
    what: &'static str,
    /// How near a group came to its bound, per thousand of the bound.
    closest: u64,
    groups: Vec<Group>,
}

struct Group {
    waiting: u32,
    /// What other groups got since this group began to wait or was last served.
    passed: u64,
    most: u64,
}

impl Turns {
    /// `most` is, for each group, the most that all other groups may get in between.
    pub(crate) fn new(what: &'static str, most: impl IntoIterator<Item = u64>) -> Turns {
        let groups = most.into_iter().map(|most| Group { waiting: 0, passed: 0, most }).collect();
        Turns { what, closest: 0, groups }
    }

    pub(crate) fn queued(&mut self, group: usize) {
        let g = &mut self.groups[group];
        if g.waiting == 0 {
            g.passed = 0;
        }
        g.waiting += 1;
    }

    /// How near a group came to its bound, per thousand of the bound.
    pub(super) fn closest(&self) -> u64 {
        self.closest
    }

    /// Changes how much others may get, and resets all counts.
    pub(crate) fn set_most(&mut self, most: impl IntoIterator<Item = u64>) {
        for (g, most) in self.groups.iter_mut().zip(most) {
            (g.most, g.passed) = (most, 0);
        }
    }

    /// Removes a waiting request of a group without service: it was joined to another.
    pub(crate) fn joined(&mut self, group: usize) {
        self.groups[group].waiting -= 1;
    }

    /// Resets the count of a group: what others got so far does not count as passing it.
    pub(crate) fn excuse(&mut self, group: usize) {
        self.groups[group].passed = 0;
    }

    /// Records a request of a group whose service does not count as passing others.
    pub(super) fn given_aside(&mut self, group: usize) {
        self.groups[group].passed = 0;
        self.groups[group].waiting -= 1;
    }

    /// Records that a group got `amount`.
    pub(crate) fn given(&mut self, group: usize, amount: u64, r: &SeenRequest) {
        for (i, g) in self.groups.iter_mut().enumerate().filter(|(_, g)| g.waiting > 0) {
            if i == group {
                g.passed = 0;
                g.waiting -= 1;
                continue;
            }
            g.passed += amount;
            let (what, passed, most, n) = (self.what, g.passed, g.most, g.waiting);
            assert!(
                passed <= most,
                "{what} {i} starves: {n} waiting, others got {passed} of at most {most}, last {r:?}"
            );
            self.closest = self.closest.max(passed.saturating_mul(1000) / most.max(1));
        }
    }
}

/// Bounds the wait after an expiry: after that time only a limited amount of the same group may go before a request.
pub(crate) struct Expiry {
    what: &'static str,
    after_ns: u64,
    /// Waiting requests, oldest first.
    waiting: VecDeque<Late>,
    /// Amount given to the group so far.
    given: u64,
    /// Maximum number of that may go first for each request that was before the late one, and for each extra turn.
    per_turn: u64,
    extra_turns: u64,
    closest: u64,
}

struct Late {
    r: SeenRequest,
    /// Recorded at its expiry: the amount given so far, and how many requests were before it.
    expired: Option<(u64, u64)>,
    /// Requests before it that were joined to others. These may have inherited the earlier position.
    joined: u64,
}

impl Expiry {
    /// A request that was inserted at least `after_ns` ago is served after at most `(before it + extra_turns) * per_turn` more.
    pub(crate) fn new(what: &'static str, after_ns: u64, per_turn: u64, extra_turns: u64) -> Expiry {
        Expiry { what, after_ns, waiting: VecDeque::new(), given: 0, per_turn, extra_turns, closest: 0 }
    }

    /// As [`Turns::closest`].
    pub(super) fn closest(&self) -> u64 {
        self.closest
    }

    /// Changes the time and the amount per turn, and resets all counts.
    pub(crate) fn set(&mut self, after_ns: u64, per_turn: u64) {
        (self.after_ns, self.per_turn) = (after_ns, per_turn);
        self.excuse();
    }

    /// Resets all counts: what went first so far does not count.
    pub(crate) fn excuse(&mut self) {
        self.waiting.iter_mut().for_each(|late| late.expired = None);
    }

    /// Removes a request that was joined to another.
    pub(crate) fn joined(&mut self, id: u64) {
        let at = self.waiting.iter().position(|l| l.r.id == id).expect("it was queued");
        self.waiting.remove(at);
        self.waiting.range_mut(at..).for_each(|late| late.joined += 1);
    }

    pub(crate) fn queued(&mut self, r: &SeenRequest) {
        self.waiting.push_back(Late { r: *r, expired: None, joined: 0 });
    }

    pub(crate) fn asked(&mut self, now: u64) {
        let given = self.given;
        for (before, late) in self.waiting.iter_mut().enumerate() {
            if late.r.at.saturating_add(self.after_ns) > now {
                return;
            }
            late.expired.get_or_insert((given, before as u64 + late.joined));
        }
    }

    /// Records that the group got `amount` with this request.
    pub(crate) fn given(&mut self, r: &SeenRequest, amount: u64) {
        let at = self.waiting.iter().position(|l| l.r.id == r.id).expect("it was queued");
        self.waiting.remove(at);
        self.given += amount;
        self.check();
    }

    /// Records that others got `amount`, in cases where that counts.
    pub(super) fn given_to_others(&mut self, amount: u64) {
        self.given += amount;
        self.check();
    }

    fn check(&mut self) {
        for late in &self.waiting {
            let Some((then, before)) = late.expired else { continue };
            let (what, passed, most) = (self.what, self.given - then, (before + self.extra_turns) * self.per_turn);
            let r = &late.r;
            assert!(
                passed <= most,
                "{what} starves: {r:?} is late, {before} were before it, and {passed} of at most {most} went first"
            );
            self.closest = self.closest.max(passed * 1000 / most.max(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blk::bio::{IoPrioClass, Op};

    fn seen(id: u64, at: u64) -> SeenRequest {
        SeenRequest { id, client: 0, cpu: 0, op: Op::Read, class: IoPrioClass::Be, nr_sectors: 8, at }
    }

    #[test]
    fn others_count_only_while_a_group_waits() {
        let mut t = Turns::new("group", [3, 3]);
        t.queued(0);
        (0..10).for_each(|_| t.queued(1));
        t.given(0, 1, &seen(0, 0));
        (0..9).for_each(|_| t.given(1, 1, &seen(0, 0)));
        t.queued(0);
        let last = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| t.given(1, 4, &seen(0, 0))));
        assert!(last.is_err(), "4 of at most 3");
    }

    /// A request that is joined to another leaves its position to that one, which may have come later.
    #[test]
    fn a_joined_request_still_counts_as_before_others() {
        let mut e = Expiry::new("group", 100, 1, 0);
        (0..5).for_each(|id| e.queued(&seen(id, 0)));
        e.joined(0);
        e.asked(100);
        // Request 2 had two before it.
        e.given(&seen(3, 0), 1);
        let last = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            e.given(&seen(4, 0), 1);
            e.given(&seen(1, 0), 1);
        }));
        assert!(last.is_err(), "3 of at most 2");
    }

    #[test]
    #[should_panic(expected = "1 were before it, and 5 of at most 4 went first")]
    fn a_late_request_may_be_passed_by_so_many() {
        let mut e = Expiry::new("group", 100, 2, 1);
        (0..9).for_each(|id| e.queued(&seen(id, 10 * id)));
        e.asked(105);
        // Request 0 is late. Request 1 becomes late now, with one before it.
        e.asked(110);
        for id in [8, 0, 7, 6, 5] {
            e.given(&seen(id, 0), 1);
        }
    }
}
