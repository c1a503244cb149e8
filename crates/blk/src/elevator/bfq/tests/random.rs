// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A random workload: each request is dispatched once, a retry time is given for what is held back, and the counters
//! balance.

use super::*;
use crate::bio::OpFlags;
use sim::rng::Rng;
use std::collections::BTreeSet;

struct Walk {
    f: Fixture,
    rng: Rng,
    out: Vec<Rq>,
    /// Bios in the elevator or at the disk.
    known: BTreeSet<u64>,
    next_user_data: u64,
}

fn fixture(rng: &mut Rng, submitters: u32) -> Fixture {
    let limits = Limits { rotational: rng.below(2) == 0, ..Limits::with_max_hw_sectors(64) };
    let mut f = Fixture::of_limits(limits, submitters);
    if rng.below(2) == 0 {
        f.bed = f.bed.with_nomerges(rng.below(3) as u8);
    }
    let tunables = [
        ("slice_idle_us", rng.below(4) * 3000),
        ("max_budget", rng.below(3) * 40),
        ("timeout_sync", 1 + rng.below(30)),
        ("strict_guarantees", u64::from(rng.below(5) == 0)),
        ("low_latency", rng.below(2)),
        ("fifo_expire_sync", rng.below(30)),
    ];
    f.with(&tunables)
}

impl Walk {
    fn new(seed: u64) -> Walk {
        let mut rng = Rng::new(seed);
        let f = fixture(&mut rng, 12);
        Walk { f, rng, out: Vec::new(), known: BTreeSet::new(), next_user_data: 0 }
    }

    fn bio(&mut self) -> Bio {
        let sector = self.rng.below(300) * 4;
        let bio = if self.rng.below(2) == 0 { read(sector) } else { write(sector) };
        let sync = if self.rng.below(2) == 0 { OpFlags::SYNC } else { OpFlags::NONE };
        let class =
            [IoPrioClass::None, IoPrioClass::Be, IoPrioClass::Rt, IoPrioClass::Idle][self.rng.below(8) as usize % 4];
        let class = if self.rng.below(3) > 0 { IoPrioClass::None } else { class };
        self.next_user_data += 1;
        prio(class, self.rng.below(8) as u8, bio.with_flags(sync)).with_user_data(self.next_user_data)
    }

    fn submit(&mut self) {
        let submitter = self.rng.below(12) as u32;
        let mut rqs = Vec::new();
        for _ in 0..1 + self.rng.below(4) {
            if self.known.len() == 200 {
                break;
            }
            let bio = self.bio();
            self.known.insert(bio.user_data);
            let id = self.f.bed.bio_of(submitter, bio, self.f.now);
            match self.f.e.bio_merge(&self.f.bed.cx(self.f.now), id) {
                BioMerge::No => rqs.push(self.f.bed.request(id, self.f.now)),
                BioMerge::Merged { freed } => freed.into_iter().for_each(|rq| self.f.bed.free_absorbed(rq)),
            }
        }
        let mut freed = Vec::new();
        self.f.e.insert(&self.f.bed.cx(self.f.now), &mut rqs, false, &mut freed);
        freed.into_iter().for_each(|rq| self.f.bed.free_absorbed(rq));
    }

    /// Dispatches. If work is left, nothing was dispatched and nothing is at the disk, the elevator has given a retry
    /// time and dispatches then.
    fn dispatch(&mut self) {
        let max = 1 + self.rng.below(6) as usize;
        let got = self.f.dispatch(max);
        if got.is_empty() && self.f.e.has_work(HCTX) {
            let at = self.f.e.next_run().expect("what is held back is announced");
            assert!(at > self.f.now || !self.out.is_empty(), "held back until a time that has passed");
            if self.out.is_empty() {
                assert!(at.since(self.f.now) <= Duration::from_ms(30), "longer than a turn");
                self.f.now = at;
                self.out = self.f.dispatch(1);
                assert!(!self.out.is_empty(), "nothing at the promised time");
            }
        }
        self.out.extend(got);
    }

    fn complete(&mut self) {
        if self.out.is_empty() {
            return;
        }
        let rq = self.out.swap_remove(self.rng.below(self.out.len() as u64) as usize);
        if self.rng.below(20) == 0 {
            // The driver requeues the request.
            return self.f.put_back(vec![rq]);
        }
        for user_data in self.f.complete(rq) {
            assert!(self.known.remove(&user_data), "bio {user_data} ended twice");
        }
    }

    fn check(&self) {
        let st = self.f.e.state.lock();
        let queued: u32 = st.queues.iter().map(|q| q.nr_queued).sum();
        let out: u32 = st.queues.iter().map(|q| q.nr_out).sum();
        assert_eq!(st.device.nr_out, out);
        assert!(queued <= st.nr_queued, "the rest was put back at the head");
        let busy = (0..st.queues.len() as u32).filter(|id| st.wf2q.get(*id).is_active()).count();
        assert_eq!(st.nr_busy as usize, busy);
        assert_eq!(st.nr_raised as usize, st.queues.iter().filter(|q| q.counted_raised).count());
        for (id, q) in st.queues.iter().enumerate() {
            let e = st.wf2q.get(id as u32);
            assert!(q.nr_queued == 0 || e.is_active(), "queue {id} has requests and is not scheduled");
            assert_eq!(q.next().is_some(), q.nr_queued > 0);
            assert!(q.nr_queued > 0 || !e.is_active() || st.wf2q.in_service() == Some(id as u32));
        }
    }
}

#[test]
fn everything_is_given_out_once_and_nothing_is_held_for_ever() {
    for seed in 0..60 {
        let mut w = Walk::new(seed);
        for _ in 0..1500 {
            match w.rng.below(10) {
                0..3 => w.submit(),
                3..6 => w.dispatch(),
                6..9 => w.complete(),
                _ => w.f.now = w.f.now + Duration::from_us(w.rng.below(4000)),
            }
            w.check();
        }
        for _ in 0..100_000 {
            if w.known.is_empty() {
                break;
            }
            w.dispatch();
            w.complete();
        }
        assert!(w.known.is_empty(), "seed {seed}: {} bios are stuck", w.known.len());
        w.check();
    }
}
