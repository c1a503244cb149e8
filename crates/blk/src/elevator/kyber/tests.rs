// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules of kyber one by one: turns, order, merging, tokens, what completions do to the depths. Wake-ups have a file of
//! their own, the arithmetic of histograms and depths is tested where it is. What a real kernel did is in
//! `tests/it/oracle_kyber.rs`.

use super::*;
use crate::bio::{Bio, DataRef};
use crate::cpumap::CpuTopology;
use crate::elevator::testbed::TestBed;
use crate::id::{CpuId, Sector};
use crate::limits::Limits;
use crate::time::Duration;

mod wakeups;

type Lock = parking_lot::RawMutex;

const OPS: [Op; NR_DOMAINS] = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes];
const HCTX: HctxId = HctxId::new(0);

fn bio(op: Op, sector: u64) -> Bio {
    let read = Bio::read(Sector(sector), 8, DataRef::new(0, sector << 9));
    let data = if op.has_data() { read.data } else { DataRef::NONE };
    Bio { op, data, ..read }.with_user_data(sector)
}

fn limits() -> Limits {
    Limits { max_discard_sectors: 1 << 16, max_write_zeroes_sectors: 1 << 16, ..Limits::default() }
}

/// Two CPUs on each of `nr_hctx` hardware queues: 0 and 1 on the first.
fn map(nr_hctx: u16) -> QueueMap {
    QueueMap::new(&CpuTopology::uniform(2 * nr_hctx), nr_hctx, 0, 0).expect("enough CPUs")
}

struct Fixture {
    bed: TestBed,
    e: Kyber<Lock>,
    map: QueueMap,
    now: Instant,
    next_sector: u64,
}

impl Fixture {
    fn new(nr_hctx: u16) -> Fixture {
        const NR_REQUESTS: u32 = 1024;
        let map = map(nr_hctx);
        Fixture {
            bed: TestBed::new(NR_REQUESTS, 2 * NR_REQUESTS, limits()),
            e: Kyber::new(NR_REQUESTS as usize, &map, 256),
            map,
            now: Instant::from_ns(1_000_000_000_000),
            next_sector: 0,
        }
    }

    /// Offers a bio on `cpu`; true if it was merged.
    fn offer(&mut self, cpu: u32, b: Bio) -> bool {
        let bio = self.bed.bio(b, self.now);
        match self.e.bio_merge(&self.bed.cx_on(CpuId::new(cpu), self.now), bio) {
            BioMerge::Merged { freed } => {
                assert!(freed.is_none(), "kyber joins no requests");
                true
            }
            BioMerge::No => {
                self.bed.free_bio(bio);
                false
            }
        }
    }

    fn request(&mut self, cpu: u32, b: Bio) -> Rq {
        let hctx = HctxId::new(u32::from(self.map.hctx(cpu as u16, HctxType::of(b.op, b.flags))));
        let bio = self.bed.bio(b, self.now);
        self.bed.request_on(CpuId::new(cpu), hctx, bio, self.now)
    }

    fn insert(&mut self, cpu: u32, bios: &[Bio]) {
        let rqs = bios.iter().map(|b| self.request(cpu, *b)).collect();
        self.put_in(rqs, false);
    }

    fn put_in(&mut self, mut rqs: Vec<Rq>, at_head: bool) {
        if at_head {
            rqs.iter().for_each(|rq| self.e.requeued(&self.bed.cx(self.now), rq));
        }
        let mut freed = Vec::new();
        self.e.insert(&self.bed.cx(self.now), &mut rqs, at_head, &mut freed);
        assert!(rqs.is_empty() && freed.is_empty());
    }

    /// Inserts `n` requests that adjoin nothing.
    fn fill(&mut self, cpu: u32, op: Op, n: usize) {
        let first = self.next_sector;
        self.next_sector += 16 * n as u64;
        let bios: Vec<Bio> = (0..n as u64).map(|i| bio(op, first + 16 * i)).collect();
        self.insert(cpu, &bios);
    }

    fn dispatch(&mut self, hctx: u32, max: usize) -> Vec<Rq> {
        let mut out = Vec::new();
        self.e.dispatch(&self.bed.cx(self.now), HctxId::new(hctx), max, &mut out);
        out.iter().for_each(|rq| self.bed.issue(rq, self.now));
        out
    }

    fn complete(&mut self, rqs: Vec<Rq>) {
        for rq in rqs {
            self.e.completed(&self.bed.cx(self.now), &rq);
            let _ = self.bed.free(rq);
        }
    }

    fn op(&self, rq: &Rq) -> Op {
        self.bed.get(rq).op()
    }

    fn sectors(&self, rqs: &[Rq]) -> Vec<u64> {
        rqs.iter().map(|rq| self.bed.get(rq).sector().0).collect()
    }

    /// Operations as runs: ("R", 16), ("W", 8) ...
    fn runs(&self, rqs: &[Rq]) -> Vec<(Op, usize)> {
        let ops: Vec<Op> = rqs.iter().map(|rq| self.op(rq)).collect();
        ops.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
    }
}

#[test]
fn domains_take_turns_in_batches() {
    let mut f = Fixture::new(1);
    for (op, n) in OPS.into_iter().zip([20, 20, 3, 3]) {
        f.fill(0, op, n);
    }
    let [r, w, d, z] = OPS;
    let want = [
        ((r, 16), (w, 8)),
        ((d, 1), (z, 1)),
        // The reads run out, so their turn ends.
        ((r, 4), (w, 8)),
        ((d, 1), (z, 1)),
        ((w, 4), (d, 1)),
    ];
    let mut want: Vec<_> = want.into_iter().flat_map(|(a, b)| [a, b]).collect();
    want.push((z, 1));
    let all = f.dispatch(0, 1000);
    assert_eq!(f.runs(&all), want);
    assert!(!f.e.has_work(HCTX));
    f.complete(all);
    // One at a time gives the same order as all at once.
    f.fill(0, r, 20);
    f.fill(0, w, 20);
    let mut one_by_one = Vec::new();
    while f.e.has_work(HCTX) {
        one_by_one.extend(f.dispatch(0, 1));
    }
    // The turn that dispatched the last write zeroes is over: reads are next.
    assert_eq!(f.runs(&one_by_one), [(r, 16), (w, 8), (r, 4), (w, 12)]);
    f.complete(one_by_one);
}

#[test]
fn a_domain_alone_goes_on_beyond_its_batch() {
    let mut f = Fixture::new(1);
    f.fill(0, Op::Discard, 5);
    let all = f.dispatch(0, 1000);
    assert_eq!(f.runs(&all), [(Op::Discard, 5)]);
    f.complete(all);
}

#[test]
fn requests_leave_in_order_and_requeued_ones_first() {
    let mut f = Fixture::new(1);
    f.insert(0, &[bio(Op::Read, 900), bio(Op::Read, 100), bio(Op::Read, 500)]);
    let all = f.dispatch(0, 3);
    assert_eq!(f.sectors(&all), [900, 100, 500], "no sorting");
    f.insert(0, &[bio(Op::Read, 300)]);
    assert_eq!(f.e.tokens_in_use()[0], 3);
    f.put_in(all, true);
    assert_eq!(f.e.tokens_in_use()[0], 0, "what does not go to the disk has no token");
    let all = f.dispatch(0, 10);
    assert_eq!(f.sectors(&all), [900, 100, 500, 300]);
    f.complete(all);
    assert_eq!(f.e.tokens_in_use(), [0; NR_DOMAINS]);
}

#[test]
fn a_bio_is_merged_into_its_own_cpus_last_eight_requests_only() {
    let mut f = Fixture::new(1);
    f.insert(0, &[bio(Op::Write, 100)]);
    assert!(!f.offer(1, bio(Op::Write, 108)), "another CPU of the same hardware queue");
    assert!(!f.offer(0, bio(Op::Read, 108)), "another domain");
    assert!(f.offer(0, bio(Op::Write, 108)) && f.offer(0, bio(Op::Write, 92)), "behind and before");
    f.fill(0, Op::Write, 7);
    assert!(f.offer(0, bio(Op::Write, 116)), "one of the last eight");
    f.next_sector = 1 << 20;
    f.fill(0, Op::Write, 1);
    assert!(!f.offer(0, bio(Op::Write, 124)), "the ninth");
    let first = f.dispatch(0, 1);
    assert_eq!((f.sectors(&first), f.bed.get(&first[0]).nr_sectors()), (vec![92], 32));
    f.complete(first);
}

#[test]
fn hctx_takes_a_domain_at_once_and_merges_no_more() {
    let mut f = Fixture::new(1);
    f.insert(0, &[bio(Op::Read, 100), bio(Op::Read, 200)]);
    f.insert(1, &[bio(Op::Read, 300)]);
    f.insert(1, &[bio(Op::Write, 300)]);
    let first = f.dispatch(0, 1);
    assert_eq!(f.sectors(&first), [100]);
    assert!(!f.offer(0, bio(Op::Read, 208)) && !f.offer(1, bio(Op::Read, 308)), "taken, though not given out");
    assert!(f.offer(1, bio(Op::Write, 308)), "the other domain was not touched");
    f.insert(0, &[bio(Op::Read, 400)]);
    let rest = f.dispatch(0, 3);
    assert_eq!(f.sectors(&rest), [200, 300, 400]);
    f.complete(first);
    f.complete(rest);
}

#[test]
fn requests_that_find_no_token_can_still_be_merged() {
    let mut f = Fixture::new(1);
    f.e.tokens[0].resize(1);
    f.fill(0, Op::Read, 1);
    let first = f.dispatch(0, 10);
    f.insert(0, &[bio(Op::Read, 10_000)]);
    assert!(f.dispatch(0, 10).is_empty() && f.e.has_work(HCTX));
    assert!(f.offer(0, bio(Op::Read, 10_008)));
    f.complete(first);
    let second = f.dispatch(0, 10);
    assert_eq!(f.bed.get(&second[0]).nr_sectors(), 16);
    f.complete(second);
}

#[test]
fn each_domain_is_bounded_by_its_tokens_and_by_them_alone() {
    let mut f = Fixture::new(2);
    for (domain, op) in OPS.into_iter().enumerate() {
        let depth = DEPTH[domain] as usize;
        // From both hardware queues: the tokens are the disk's.
        f.fill(0, op, depth);
        f.fill(2, op, 2);
        let mut at_disk = f.dispatch(0, 1000);
        assert_eq!(at_disk.len(), depth, "{op:?}");
        assert_eq!(f.e.tokens_in_use()[domain], DEPTH[domain]);
        assert!(f.dispatch(1, 1000).is_empty() && f.e.has_work(HctxId::new(1)), "{op:?}");
        // The other domains have tokens of their own.
        let other = OPS[(domain + 1) % NR_DOMAINS];
        f.fill(2, other, 1);
        let others = f.dispatch(1, 1000);
        assert_eq!(f.runs(&others), [(other, 1)]);
        f.complete(others);
        let rest = at_disk.split_off(1);
        f.complete(at_disk);
        assert_eq!((f.bed.take_run(), f.bed.take_run()), (Some(HctxId::new(1)), None), "{op:?}: told to run");
        let late = f.dispatch(1, 1000);
        assert_eq!(late.len(), 1);
        f.complete(rest);
        assert_eq!(f.bed.take_run(), Some(HctxId::new(1)), "{op:?}: it still waited");
        let last = f.dispatch(1, 1000);
        assert_eq!(last.len(), 1);
        f.complete(late);
        f.complete(last);
        assert_eq!(f.bed.take_run(), None, "no waiter is left");
        assert!(!f.e.has_work(HCTX) && !f.e.has_work(HctxId::new(1)));
    }
}

/// However many requests the other domains have, one of the victim's is dispatched after one batch of each of them at
/// most.
#[test]
fn no_domain_is_starved_by_the_others() {
    for (victim, op) in OPS.into_iter().enumerate() {
        let mut f = Fixture::new(1);
        let bound: u32 = BATCH.iter().sum::<u32>() - BATCH[victim];
        let (mut passed_over, mut most, mut served) = (0, 0, 0);
        let mut queued = [0u32; NR_DOMAINS];
        while served < 200 {
            // Always plenty of the others, always one of the victim.
            for (d, want) in (0..NR_DOMAINS).map(|d| (d, if d == victim { 1 } else { 40 })) {
                f.fill(0, OPS[d], want - queued[d].min(want as u32) as usize);
                queued[d] = queued[d].max(want as u32);
            }
            let out = f.dispatch(0, 3);
            assert_eq!(out.len(), 3);
            for rq in &out {
                queued[Domain::of(f.op(rq)) as usize] -= 1;
                if f.op(rq) == op {
                    (passed_over, served) = (0, served + 1);
                } else {
                    passed_over += 1;
                    most = passed_over.max(most);
                }
            }
            f.complete(out);
        }
        assert_eq!(most, bound, "{op:?}: every other domain has its whole batch, once");
    }
}

#[test]
fn asynchronous_writes_leave_a_quarter_of_the_scheduler_tags() {
    let limit = |nr_requests, op, flags| Kyber::<Lock>::new(8, &map(1), nr_requests).limit_depth(op, flags);
    assert_eq!(limit(256, Op::Write, OpFlags::NONE), Some(192));
    assert_eq!(limit(10, Op::Discard, OpFlags::NONE), Some(7));
    assert_eq!(limit(1, Op::Write, OpFlags::NONE), Some(1));
    assert_eq!(limit(256, Op::Read, OpFlags::NONE), None);
    for flags in [OpFlags::SYNC, OpFlags::FUA, OpFlags::PREFLUSH] {
        assert_eq!(limit(256, Op::Write, flags), None);
    }
}

#[test]
fn tunables_have_the_kernels_names_and_set_the_targets() {
    let f = Fixture::new(1);
    let shown: Vec<_> = f.e.tunables().iter().map(|t| (t.name, t.value, t.unit)).collect();
    assert_eq!(shown, [("read_lat_nsec", 2_000_000, "ns"), ("write_lat_nsec", 10_000_000, "ns")]);
    f.e.set_tunable("write_lat_nsec", 77).expect("in range");
    assert_eq!([0, 1, 2].map(|d| f.e.target_ns(d)), [2_000_000, 77, 5_000_000_000]);
    let e = f.e.set_tunable("read_lat_usec", 1).unwrap_err();
    assert!(e.contains("did you mean 'read_lat_nsec'?"), "{e}");
}

/// 500 writes of 20 ms at the disk and 500 reads of 1 ms, each of which waited 9 ms for a token or tag first.
#[test]
fn slow_writes_make_room_for_reads() {
    let mut f = Fixture::new(1);
    let ms = |f: &mut Fixture, n| f.now = f.now + Duration::from_ms(n);
    for _ in 0..5 {
        f.fill(0, Op::Read, 100);
        ms(&mut f, 9);
        let reads = f.dispatch(0, 100);
        ms(&mut f, 1);
        f.complete(reads);
        f.fill(0, Op::Write, 100);
        let writes = f.dispatch(0, 100);
        ms(&mut f, 20);
        f.complete(writes);
    }
    assert_eq!(f.e.tokens.each_ref().map(Tokens::depth), DEPTH, "150 ms: one look, and not 500 samples by then");
    ms(&mut f, 100);
    let none = f.dispatch(0, 1);
    assert!(none.is_empty());
    // Congested: I/O p90 of writes is in bucket 7. Reads: total p99 of 10 ms is in bucket 7, so x 2, but they have all
    // their depth; writes: 20 ms are in bucket 7 as well.
    assert_eq!(f.e.tokens.each_ref().map(Tokens::depth), DEPTH);
    // The same with writes that are well within a target of 100 ms: they get a quarter (bucket 0).
    f.e.set_tunable("write_lat_nsec", 100_000_000).expect("in range");
    f.e.set_tunable("read_lat_nsec", 400_000).expect("in range");
    for _ in 0..5 {
        f.fill(0, Op::Read, 100);
        f.fill(0, Op::Write, 100);
        let all = f.dispatch(0, 200);
        ms(&mut f, 1);
        f.complete(all);
    }
    ms(&mut f, 100);
    assert!(f.dispatch(0, 1).is_empty());
    assert_eq!(f.e.tokens.each_ref().map(Tokens::depth), [256, 32, 64, 16]);
}

#[test]
fn read_and_poll_queues_have_lists_of_their_own() {
    let map = QueueMap::new(&CpuTopology::uniform(2), 1, 1, 1).expect("enough CPUs");
    let mut f = Fixture::new(1);
    f.e = Kyber::new(1024, &map, 64);
    f.map = map;
    let polled = Bio { flags: OpFlags::POLLED, ..bio(Op::Read, 600) };
    f.insert(0, &[bio(Op::Write, 200)]);
    f.insert(0, &[bio(Op::Read, 400)]);
    f.insert(0, &[polled]);
    assert!(f.offer(0, bio(Op::Write, 208)) && f.offer(0, bio(Op::Read, 408)));
    assert!(!f.offer(0, bio(Op::Read, 608)), "an interrupt-driven read does not meet a polled one");
    for (hctx, sector) in [(0, 200), (1, 400), (2, 600)] {
        let out = f.dispatch(hctx, 10);
        assert_eq!(f.sectors(&out), [sector], "hardware queue {hctx}");
        f.complete(out);
    }
}
