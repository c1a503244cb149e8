// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The simulated disk as a driver. It takes requests and checks that the core keeps every rule of the driver contract. It
//! completes requests at their times; the seed chooses the order of requests that are due together.

use super::{Answer, Event, Inner, NEVER_SAFE, Pending, SimDisk};
use crate::fault::Plant;
use blk::bio::{Op, OpFlags};
use blk::driver::{Completions, Driver, RqBatch, RqRef, TimedOut, TimeoutAnswer};
use blk::id::{HctxId, Sector};
use blk::limits::Limits;
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::{Duration, Instant};

impl Driver for SimDisk {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn capacity(&self) -> Sector {
        Sector(self.capacity)
    }

    fn start(&self, nr_hw_queues: u16, queue_depth: u32) -> Result<(), String> {
        let mut i = self.inner();
        assert_eq!(i.in_flight, 0, "started with requests in flight");
        if i.refuse_starts > 0 {
            i.refuse_starts -= 1;
            return Err("no vectors left".into());
        }
        i.starts += 1;
        i.faults.restart();
        i.started = (nr_hw_queues, queue_depth);
        i.pending = (0..nr_hw_queues).map(|_| Vec::with_capacity(queue_depth as usize)).collect();
        Ok(())
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, now: Instant) -> QueueRqStatus {
        let mut guard = self.inner();
        let i = &mut *guard;
        let hctx = batch.hctx().index();
        assert!(hctx < usize::from(i.started.0), "hctx {hctx} of {} used", i.started.0);
        assert!(batch.remaining() > 0, "empty batch");
        i.batches += 1;
        let status = loop {
            let Some(rq) = batch.front() else { break QueueRqStatus::Queued };
            let segs: Vec<(u64, u32)> = rq.segments().map(|s| (s.data.offset() >> 9, s.len_bytes >> 9)).collect();
            check_limits(&self.limits, self.capacity, &rq, &segs);
            let mut back = None;
            let status = match i.answer(now) {
                Answer::Accept => BlkStatus::Ok,
                Answer::GiveBack(delay) => {
                    back = Some(delay.map(Duration::from_ns));
                    BlkStatus::Ok
                }
                Answer::Fail(s) => s,
                Answer::Refuse(s) => {
                    i.trace.event(now.as_ns(), 'B', format_args!("hctx {hctx} {s:?}"));
                    break s;
                }
            };
            i.accept(self, batch, segs, status, back, now);
        };
        if i.behaviour.record {
            i.calls.push(status);
        }
        drop(guard);
        let hook = self.hooks.lock().expect("no test panics here").pop_front().flatten();
        if let Some(hook) = hook {
            hook();
        }
        status
    }

    fn timeout(&self, hctx: HctxId, late: TimedOut, done: &mut Completions, now: Instant) -> TimeoutAnswer {
        let mut guard = self.inner();
        let i = &mut *guard;
        let list = &mut i.pending[hctx.index()];
        let asked = |p: &Pending| p.issue.tag == late.tag.index() && p.issue.now == late.issued.as_ns();
        let Some(at) = list.iter().position(asked) else { return TimeoutAnswer::Done };
        let planted = matches!(i.behaviour.plant, Some(Plant::LostCompletion | Plant::NeverDrained));
        let answer = if !list[at].lost || planted { 0 } else { 1 + i.rng.below(3) };
        i.trace.event(now.as_ns(), 'T', format_args!("hctx {} tag {} answer {answer}", hctx.index(), late.tag.index()));
        match answer {
            // The driver reports that the request is slow, which may be wrong.
            0 | 1 => TimeoutAnswer::ResetTimer,
            2 => {
                // A later poll finds the completion after all.
                (list[at].lost, list[at].found) = (false, true);
                list[at].due = now.as_ns() + 1;
                TimeoutAnswer::Done
            }
            _ => {
                let mut p = list.remove(at);
                i.gives_tag_back(&p.issue);
                let rq = p.rq.take().expect("pending requests are in flight");
                p.status = BlkStatus::Timeout;
                i.complete(&self.mem, &self.limits, &p);
                done.push(rq, p.status);
                TimeoutAnswer::Done
            }
        }
    }

    fn poll(&self, hctx: HctxId, done: &mut Completions, now: Instant) {
        let mut guard = self.inner();
        let i = &mut *guard;
        let (h, manual) = (hctx.index(), i.behaviour.manual);
        assert!(h < i.pending.len(), "hctx {h} of {} polled", i.pending.len());
        i.polls += 1;
        for mut p in i.take_repeats(h, now.as_ns()) {
            i.complete(&self.mem, &self.limits, &p);
            done.push(p.rq.take().expect("pending requests are in flight"), BlkStatus::Ok);
        }
        while done.room() > 0 {
            let due = i.pending[h].iter().filter(|p| p.is_due(manual, now.as_ns())).count();
            if due == 0 {
                return;
            }
            let chosen = i.rng.below(due as u64) as usize;
            let at = (0..i.pending[h].len())
                .filter(|k| i.pending[h][*k].is_due(manual, now.as_ns()))
                .nth(chosen)
                .expect("counted");
            let mut p = i.pending[h].remove(at);
            i.gives_tag_back(&p.issue);
            let rq = p.rq.take().expect("pending requests are in flight");
            if let Some(delay) = p.back {
                i.in_flight -= 1;
                i.trace.event(now.as_ns(), 'R', format_args!("hctx {h} tag {} {}", p.issue.tag, p.issue));
                done.requeue(rq, delay);
                continue;
            }
            i.complete(&self.mem, &self.limits, &p);
            i.trace.event(now.as_ns(), 'C', format_args!("hctx {h} tag {} {:?}", p.issue.tag, p.status));
            i.plan_repeat(&p, now.as_ns());
            done.push(rq, p.status);
        }
    }
}

impl Inner {
    /// Takes the front request. It will be given back if `back` is set, else completed with `status`.
    fn accept(
        &mut self,
        disk: &SimDisk,
        batch: &mut RqBatch<'_>,
        segs: Vec<(u64, u32)>,
        status: BlkStatus,
        back: Option<Option<Duration>>,
        now: Instant,
    ) {
        let (hctx, rq) = (batch.hctx().index(), batch.front().expect("the caller looked at it"));
        let tag = rq.tag().index();
        assert!(tag < self.started.1 as usize, "tag {tag} with a depth of {}", self.started.1);
        let is_free = self.pending[hctx].iter().all(|p| p.issue.tag != tag) && !self.faults.has_zombie(hctx, tag);
        assert!(is_free, "tag {tag} of hctx {hctx} given to the driver twice: the first request is in flight");
        self.has_tag(hctx, tag);
        let issue = self.issue_of(&rq, hctx, now);
        let due = self.due(&issue, disk.capacity);
        let by = self.via.map_or_else(String::new, |path| format!(" by path {path}"));
        self.trace.event(now.as_ns(), 'D', format_args!("hctx {hctx} tag {tag} {issue}{by}"));
        self.issued += 1;
        self.in_flight += 1;
        if self.behaviour.record {
            self.events.push(Event::Issue(issue.clone()));
        }
        let planted = self.behaviour.plant == Some(Plant::LostCompletion) && issue.n % 50 == 49;
        let lost = planted || back.is_none() && self.behaviour.lost > 0 && self.rng.per_mille(self.behaviour.lost);
        let due = if lost { u64::MAX } else { due };
        let at_once =
            !lost && back.is_none() && self.behaviour.at_once > 0 && self.rng.per_mille(self.behaviour.at_once);
        let mut p = Pending {
            rq: None,
            issue,
            segs,
            landed: false,
            due,
            released: false,
            status,
            lost,
            found: false,
            back,
            completed_before: self.completed,
        };
        if status.is_ok() && back.is_none() && p.issue.op.is_write() && self.rng.below(2) == 0 {
            self.execute(&disk.mem, &p, &disk.limits, NEVER_SAFE);
            p.landed = true;
        }
        if at_once {
            self.gives_tag_back(&p.issue);
            self.complete(&disk.mem, &disk.limits, &p);
            self.trace.event(now.as_ns(), 'C', format_args!("hctx {hctx} tag {tag} {status:?} at once"));
            batch.end(status);
        } else {
            let rq = batch.accept();
            assert_eq!(rq.tag().index(), tag);
            p.rq = Some(rq);
            self.pending[hctx].push(p);
        }
    }
}

fn check_limits(l: &Limits, capacity: u64, rq: &RqRef<'_>, segs: &[(u64, u32)]) {
    let (op, sector, nr) = (rq.op(), rq.sector().0, rq.nr_sectors());
    let text = || format!("{op:?} {sector}+{nr}, {} segments", rq.nr_segments());
    let max = match op {
        Op::Read | Op::Write => l.max_sectors,
        Op::Discard => l.max_discard_sectors,
        Op::WriteZeroes => l.max_write_zeroes_sectors,
        Op::Flush => 0,
    };
    assert!(nr <= max, "{}: above the limit {max}", text());
    assert!((nr == 0) == (op == Op::Flush), "{}: length", text());
    let lbs = u64::from(l.logical_block_sectors());
    assert!(sector % lbs == 0 && u64::from(nr) % lbs == 0, "{}: not aligned", text());
    assert!(sector + u64::from(nr) <= capacity, "{}: past the end", text());
    if l.chunk_sectors > 0 && matches!(op, Op::Read | Op::Write | Op::WriteZeroes) {
        let chunk = u64::from(l.chunk_sectors);
        assert_eq!(sector / chunk, (sector + u64::from(nr) - 1) / chunk, "{}: crosses a chunk", text());
    }
    assert!(!rq.flags().contains(OpFlags::PREFLUSH), "{}: PREFLUSH reached the driver", text());
    assert!(!rq.flags().contains(OpFlags::FUA) || l.fua, "{}: FUA reached a driver without it", text());
    assert!(op != Op::Flush || l.write_cache, "flush reached a driver without a cache");
    if op.has_data() {
        let sum: u32 = segs.iter().map(|(_, n)| *n).sum();
        assert_eq!(sum, nr, "{}: segments do not add up", text());
        let phys: u32 = segs.iter().map(|(_, n)| (*n << 9).div_ceil(l.max_segment_size)).sum();
        assert_eq!(phys, u32::from(rq.nr_segments()), "{}: nr_segments is wrong", text());
        assert!(rq.nr_segments() <= l.max_segments, "{}: too many segments", text());
    } else {
        assert!(segs.is_empty(), "{}: data where none belongs", text());
    }
}
