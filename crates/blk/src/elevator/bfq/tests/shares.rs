// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shares over time: several submitters on a disk that serves one request at a time, at a fixed rate.

use super::*;
use sim::rng::Rng;
use std::collections::VecDeque;

/// Microseconds per sector of the disk (256 MB/s).
const US_PER_SECTOR: u64 = 2;

/// What a submitter does.
#[derive(Clone, Copy)]
struct Source {
    weight: u16,
    nr_sectors: u32,
    /// Requests it keeps in flight.
    depth: u32,
    sequential: bool,
    /// A pause after each completion, in us; only with a depth of 1.
    thinks_us: u64,
}

impl Source {
    const fn new(weight: u16, nr_sectors: u32, depth: u32) -> Source {
        Source { weight, nr_sectors, depth, sequential: true, thinks_us: 0 }
    }
}

/// The sources on a disk, and what each got.
struct World {
    f: Fixture,
    sources: Vec<Source>,
    rng: Rng,
    next_sector: Vec<u64>,
    /// Requests to be issued, by time.
    due: Vec<(Instant, usize)>,
    /// At the disk, served in this order.
    at_disk: VecDeque<(Rq, usize)>,
    free_at: Instant,
    /// Cost of a request that does not continue the one before, and where that one ended.
    seek_us: u64,
    head: u64,
    queue_depth: usize,
    served: Vec<u64>,
    /// Longest time from issue to completion.
    slowest: Vec<Duration>,
    issued: VecDeque<(u64, Instant)>,
}

impl World {
    fn new(f: Fixture, sources: &[Source], queue_depth: usize) -> World {
        let mut f = f;
        let mut due = Vec::new();
        for (i, s) in sources.iter().enumerate() {
            f.bed.set_weight(i as u32, s.weight);
            due.extend((0..s.depth).map(|_| (f.now, i)));
        }
        let n = sources.len();
        World {
            free_at: f.now,
            f,
            sources: sources.to_vec(),
            rng: Rng::new(7),
            next_sector: (0..n as u64).map(|i| i << 32).collect(),
            due,
            at_disk: VecDeque::new(),
            queue_depth,
            seek_us: 0,
            head: 0,
            served: vec![0; n],
            slowest: vec![Duration::ZERO; n],
            issued: VecDeque::new(),
        }
    }

    fn issue(&mut self, i: usize) {
        let s = self.sources[i];
        let base = (i as u64) << 32;
        let sector = if s.sequential { self.next_sector[i] } else { base + self.rng.below(1 << 28) * 8 };
        // A gap keeps requests apart: what is shared here is service, not merges.
        self.next_sector[i] += u64::from(s.nr_sectors) + 8;
        let bio = Bio::read(Sector(sector), s.nr_sectors, DataRef::NONE);
        self.issued.push_back((sector, self.f.now));
        self.f.insert(i as u32, &[bio]);
    }

    /// The disk starts to serve the first of its requests.
    fn serve_first(&mut self) {
        let Some((rq, _)) = self.at_disk.front() else { return };
        let fields = self.f.bed.get(rq);
        let far = fields.sector().0.abs_diff(self.head) > 8;
        let us = u64::from(fields.nr_sectors()) * US_PER_SECTOR + if far { self.seek_us } else { 0 };
        self.head = fields.end_sector().0;
        self.free_at = self.f.now + Duration::from_us(us);
    }

    /// Does everything that happens at this time.
    fn step(&mut self) {
        let now = self.f.now;
        for i in self.due.extract_if(.., |(at, _)| *at <= now).map(|(_, i)| i).collect::<Vec<_>>() {
            self.issue(i);
        }
        while let Some((_, i)) = self.at_disk.front()
            && self.free_at <= now
        {
            let i = *i;
            let (rq, _) = self.at_disk.pop_front().expect("looked at");
            let (sector, nr) = (self.f.sector(&rq), self.f.bed.get(&rq).nr_sectors());
            let p = self.issued.iter().position(|(s, _)| *s == sector).expect("issued");
            let (_, since) = self.issued.remove(p).expect("found");
            self.slowest[i] = self.slowest[i].max(now.since(since));
            self.served[i] += u64::from(nr);
            self.f.complete(rq);
            self.due.push((now + Duration::from_us(self.sources[i].thinks_us), i));
            self.serve_first();
            if self.sources[i].thinks_us == 0 {
                self.due.pop();
                self.issue(i);
            }
        }
        while self.at_disk.len() < self.queue_depth {
            let Some(rq) = self.f.dispatch(1).pop() else { break };
            let owner = (self.f.sector(&rq) >> 32) as usize;
            self.at_disk.push_back((rq, owner));
            if self.at_disk.len() == 1 {
                self.serve_first();
            }
        }
    }

    /// Runs for `ms`; `each` sees the service so far after every step.
    fn run(&mut self, ms: u64, mut each: impl FnMut(&[u64])) {
        let end = self.f.now + Duration::from_ms(ms);
        while self.f.now < end {
            self.step();
            each(&self.served);
            let completion = (!self.at_disk.is_empty()).then_some(self.free_at);
            let held = self.f.e.next_run().filter(|_| self.at_disk.len() < self.queue_depth);
            let due = self.due.iter().map(|(at, _)| *at).min();
            let next = [completion, held, due].into_iter().flatten().min().expect("something will happen");
            assert!(next > self.f.now, "the elevator promised something for now and gave nothing");
            self.f.now = next;
        }
    }

    fn shares(&self) -> Vec<f64> {
        let total: u64 = self.served.iter().sum();
        self.served.iter().map(|s| *s as f64 / total as f64).collect()
    }
}

/// Always backlogged sources of weights 100, 200 and 400: at no time does the weighted service of two of them differ by
/// more than one budget and one request of each.
fn backlogged_shares_hold(sizes: [u32; 3], sequential: bool, low_latency: u64) {
    const BUDGET: u64 = 2048;
    let weights = [100, 200, 400];
    let f = Fixture::new(3).with(&[("max_budget", BUDGET), ("low_latency", low_latency)]);
    let sources: Vec<Source> = (0..3).map(|i| Source { sequential, ..Source::new(weights[i], sizes[i], 16) }).collect();
    let mut w = World::new(f, &sources, 4);
    // Requests at the disk may have completions that are not counted yet.
    let slack = |i: usize| (BUDGET as f64 + f64::from(sizes[i]) * 5.0) / f64::from(weights[i]);
    w.run(4000, |served| {
        let share = |i: usize| served[i] as f64 / f64::from(weights[i]);
        for (i, j) in [(0, 1), (0, 2), (1, 2)] {
            let apart = (share(i) - share(j)).abs();
            assert!(apart <= slack(i) + slack(j), "{i} and {j} are {apart} apart: {served:?}");
        }
    });
    let shares = w.shares();
    for (share, weight) in shares.iter().zip(weights) {
        let expected = f64::from(weight) / 700.0;
        assert!((share - expected).abs() < 0.01, "sizes {sizes:?}: shares {shares:?}");
    }
    // 4 s at 2 us a sector, hardly any of it idle.
    assert!(w.served.iter().sum::<u64>() > 1_950_000, "{:?}", w.served);
}

#[test]
fn backlogged_submitters_share_by_weight() {
    backlogged_shares_hold([64, 64, 64], true, 0);
}

#[test]
fn sizes_of_requests_do_not_matter() {
    backlogged_shares_hold([256, 64, 8], true, 0);
    backlogged_shares_hold([8, 64, 256], true, 0);
}

#[test]
fn shares_hold_for_random_io_on_flash_and_without_low_latency() {
    backlogged_shares_hold([64, 64, 64], false, 0);
    backlogged_shares_hold([64, 256, 64], true, 1);
}

#[test]
fn idling_keeps_the_share_at_a_depth_of_one() {
    let sources = [Source::new(400, 64, 1), Source::new(100, 64, 16)];
    let share = |slice_idle| {
        let f = Fixture::new(2).with(&[("max_budget", 2048), ("slice_idle", slice_idle)]);
        let mut w = World::new(f, &sources, 4);
        w.run(2000, |_| {});
        w.shares()[0]
    };
    let with = share(8);
    assert!((with - 0.8).abs() < 0.02, "weights 4 to 1, share {with}");
    let without = share(0);
    assert!(without < 0.3, "it loses its turn with each request: {without}");
}

#[test]
fn a_light_submitter_is_slow_but_served() {
    const BUDGET: u64 = 256;
    let mut sources = [Source::new(1000, 64, 8); 4];
    sources[3] = Source::new(1, 8, 1);
    let f = Fixture::new(4).with(&[("max_budget", BUDGET)]);
    let mut w = World::new(f, &sources, 4);
    w.run(60_000, |_| {});
    let due = w.served.iter().sum::<u64>() / 3001;
    assert!(due > 9000 && w.served[3].abs_diff(due) <= BUDGET, "{} of {due}", w.served[3]);
    // After a turn a queue waits until the others have had 3000 times as much; then a turn of each may be ahead of it.
    let longest = (BUDGET * 3001 + 3 * BUDGET) * US_PER_SECTOR;
    assert!(w.slowest[3] <= Duration::from_us(longest), "{:?}", w.slowest[3]);
}

#[test]
fn low_latency_serves_an_interactive_submitter_at_once() {
    // A queue that reads a little every 50 ms, next to three copies.
    let slowest = |low_latency| {
        let mut sources = [Source::new(0, 256, 16); 4];
        sources[3] = Source { thinks_us: 50_000, ..Source::new(0, 8, 1) };
        let f = Fixture::new(4).with(&[("low_latency", low_latency)]);
        let mut w = World::new(f, &sources, 1);
        // The copies have used up the service that an interactive start gets.
        w.sources[3].thinks_us = 4_000_000;
        w.run(9_000, |_| {});
        w.sources[3].thinks_us = 50_000;
        w.slowest[3] = Duration::ZERO;
        let before = w.served[3];
        w.run(5000, |_| {});
        assert!(w.served[3] - before >= 8 * 10, "it came back");
        w.slowest[3]
    };
    let (with, without) = (slowest(1), slowest(0));
    assert!(with <= Duration::from_ms(2), "one request at the disk goes before it: {with:?}");
    assert!(without > Duration::from_ms(20), "a turn goes before it: {without:?}");
}

#[test]
fn rotating_disk_time_is_shared_by_sequential_and_random() {
    let sequential = Source { thinks_us: 100, ..Source::new(0, 256, 1) };
    let random = Source { sequential: false, ..Source::new(0, 8, 4) };
    let served = |sources: &[Source], slice_idle| {
        let f = Fixture::rotational(2).with(&[("slice_idle", slice_idle)]);
        let mut w = World::new(f, sources, 1);
        w.seek_us = 5000;
        // The measured rate counts after 11 turns.
        w.run(60_000, |_| {});
        let before = w.served.clone();
        w.run(20_000, |_| {});
        w.served.iter().zip(before).map(|(now, before)| now - before).collect::<Vec<u64>>()
    };
    // Alone, the sequential source reads 128 KB in 0.6 ms, the random one 4 KB in 5 ms.
    let alone = [served(&[sequential], 8)[0], served(&[random], 8)[0]];
    let both = served(&[sequential, random], 8);
    let part = |i: usize| both[i] as f64 / alone[i] as f64;
    assert!(part(0) > 0.4 && part(1) > 0.3, "{:.2} and {:.2} of what each has alone", part(0), part(1));
    // Without waiting for the sequential one, each of its requests pays for a seek and a turn of the other.
    let without = served(&[sequential, random], 0);
    assert!(without[0] * 4 < both[0], "{without:?} and with waiting {both:?}");
}

#[test]
fn synchronous_io_gets_more_than_asynchronous() {
    // One sector written costs as much as three read, while all weights are alike.
    let f = Fixture::new(2).with(&[("max_budget", 2048), ("slice_idle", 0)]);
    let mut f = f;
    let writes: Vec<Bio> = (0..64).map(|i| write(1_000_000 + 9 * i)).collect();
    f.insert(0, &run(0, 64));
    f.insert(1, &writes);
    let (mut reads_served, mut writes_served) = (0, 0);
    for _ in 0..40 {
        let rq = f.dispatch(1).pop().expect("backlogged");
        if f.sector(&rq) >= 1_000_000 {
            writes_served += 1;
        } else {
            reads_served += 1;
        }
        f.complete(rq);
    }
    assert!(reads_served > writes_served, "{reads_served} reads, {writes_served} writes");
}
