// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Recorded decisions of the Linux kernel's elevators, replayed against ours (traces of null_blk in crates/oracle/cases).
//!
//! Each trace is replayed event by event. The trace determines when bios are offered, requests inserted and completions
//! reported. This code makes every decision: whether a bio merges, whether neighbours are joined, and which request is
//! issued next. All decisions must equal the kernel's. Little else is modelled: a number of driver tags, and one
//! request that a queue run took from the elevator without finding a driver tag (hctx->dispatch).

use blk::bio::{Bio, DataRef, IoPrio, IoPrioClass, OpFlags};
use blk::elevator::testbed::TestBed;
use blk::elevator::{BioMerge, BioRef, Elevator, by_name};
use blk::id::{HctxId, Sector};
use blk::limits::Limits;
use blk::request::Rq;
use blk::time::Instant;
use std::collections::HashMap;

/// An address as trace events give it: direction, first sector, length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Extent {
    write: bool,
    sector: u64,
    nr_sectors: u32,
}

#[derive(Debug)]
enum Event {
    BioQueue(Extent),
    BioMerge,
    GetRq,
    Unplug(usize),
    Insert(Extent, IoPrio),
    RqMerge(Extent),
    Issue(Extent),
    Complete(Extent),
}

/// One line: "task [cpu] seconds: event: dev rwbs [bytes ()] sector + length [prio] ...".
fn parse_line(line: &str) -> Option<(Instant, Event)> {
    let (head, tail) = line.split_once(": block_")?;
    let (secs, micros) = head.rsplit(' ').next()?.split_once('.')?;
    let now = Instant::from_ns((secs.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?) * 1000);
    let (name, rest) = tail.split_once(": ")?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    if name == "unplug" {
        return Some((now, Event::Unplug(words.last()?.parse().ok()?)));
    }
    let plus = words.iter().position(|w| *w == "+")?;
    let extent = Extent {
        write: words[1].starts_with('W'),
        sector: words[plus - 1].parse().ok()?,
        nr_sectors: words[plus + 1].parse().ok()?,
    };
    let event = match name {
        "bio_queue" => Event::BioQueue(extent),
        "bio_backmerge" | "bio_frontmerge" => Event::BioMerge,
        "getrq" => Event::GetRq,
        "rq_insert" => Event::Insert(extent, parse_prio(words[plus + 2])?),
        "rq_merge" => Event::RqMerge(extent),
        "rq_issue" => Event::Issue(extent),
        "rq_complete" => Event::Complete(extent),
        _ => return None,
    };
    Some((now, event))
}

/// "be,0,4": class, hint, level.
fn parse_prio(text: &str) -> Option<IoPrio> {
    let mut parts = text.split(',');
    let class = match parts.next()? {
        "rt" => IoPrioClass::Rt,
        "be" => IoPrioClass::Be,
        "idle" => IoPrioClass::Idle,
        "none" => IoPrioClass::None,
        _ => return None,
    };
    Some(IoPrio::new(class, parts.nth(1)?.parse().ok()?))
}

/// The settings that the kernel reported.
struct Settings {
    hw_queue_depth: usize,
    nr_requests: u32,
    tunables: Vec<(String, u64)>,
}

fn parse_env(text: &str) -> Settings {
    let after = |word: &str, sep: char| -> u64 {
        let (_, rest) = text.split_once(&format!("{word}{sep}")).unwrap_or_else(|| panic!("no {word} in env"));
        rest.split_whitespace().next().expect("value").parse().expect("number")
    };
    let tunable = |line: &str| {
        let (name, value) = line.strip_prefix("iosched ")?.split_once(' ')?;
        Some((name.to_owned(), value.trim().parse().expect("number")))
    };
    Settings {
        hw_queue_depth: after("hw_queue_depth", '=') as usize,
        nr_requests: after("nr_requests", ' ') as u32,
        tunables: text.lines().filter_map(tunable).collect(),
    }
}

/// The elevator and the modelled environment.
struct Replay {
    bed: TestBed,
    elevator: Box<dyn Elevator>,
    hw_queue_depth: usize,
    prio_of: HashMap<Extent, IoPrio>,
    bio: Option<BioRef>,
    merge: Option<BioMerge>,
    plug: Vec<Rq>,
    /// The request that was taken from the elevator without a driver tag.
    parked: Option<Rq>,
    in_flight: Vec<Rq>,
    issued: usize,
    merged: usize,
}

const HCTX: HctxId = HctxId::new(0);

impl Replay {
    fn new(elevator: &str, env: &Settings, events: &[(Instant, Event)]) -> Replay {
        let elevator = by_name::<parking_lot::RawMutex>(elevator, 512, 1, env.nr_requests);
        let elevator = elevator.expect("a known name").expect("not none");
        for (name, value) in &env.tunables {
            elevator.set_tunable(name, *value).expect("the kernel's tunables are ours");
        }
        // Only requests carry a priority in a trace.
        let prio = |(_, e): &(Instant, Event)| match e {
            Event::Insert(extent, prio) => Some((*extent, *prio)),
            _ => None,
        };
        Replay {
            // null_blk's max_sectors.
            bed: TestBed::new(512, 512, Limits::with_max_hw_sectors(2560)),
            elevator,
            hw_queue_depth: env.hw_queue_depth,
            prio_of: events.iter().filter_map(prio).collect(),
            bio: None,
            merge: None,
            plug: Vec::new(),
            parked: None,
            in_flight: Vec::new(),
            issued: 0,
            merged: 0,
        }
    }

    fn extent(&self, rq: &Rq) -> Extent {
        let rq = self.bed.get(rq);
        Extent { write: rq.op().is_write(), sector: rq.sector().0, nr_sectors: rq.nr_sectors() }
    }

    fn pull(&mut self, now: Instant) -> Option<Rq> {
        let mut out = Vec::with_capacity(1);
        self.elevator.dispatch(&self.bed.cx(now), HCTX, 1, &mut out);
        out.pop()
    }

    /// A queue run while all driver tags are in use: one request leaves the elevator and waits for a tag.
    fn run_without_tags(&mut self, now: Instant) {
        if self.parked.is_none() && self.in_flight.len() == self.hw_queue_depth {
            self.parked = self.pull(now);
        }
    }

    fn bio_queue(&mut self, e: Extent, now: Instant) {
        assert!(self.bio.is_none(), "the bio before was neither merged nor made a request");
        let mut bio = match e.write {
            true => Bio::write(Sector(e.sector), e.nr_sectors, DataRef::new(0, e.sector << 9)),
            false => Bio::read(Sector(e.sector), e.nr_sectors, DataRef::new(0, e.sector << 9)),
        };
        // All writes of the scripts are direct, so they are synchronous.
        if e.write {
            bio = bio.with_flags(OpFlags::SYNC);
        }
        bio.prio = self.prio_of.get(&e).copied().unwrap_or(IoPrio::new(IoPrioClass::Be, 4));
        let bio = self.bed.bio(bio, now);
        self.merge = Some(self.elevator.bio_merge(&self.bed.cx(now), bio));
        self.bio = Some(bio);
    }

    fn get_rq(&mut self, now: Instant) -> Result<(), String> {
        if !matches!(self.merge.take(), Some(BioMerge::No)) {
            return Err("merged, where the kernel made a request".into());
        }
        let bio = self.bio.take().ok_or("no bio")?;
        let rq = self.bed.request(bio, now);
        self.plug.push(rq);
        Ok(())
    }

    fn bio_merged(&mut self, followed_by: Option<Extent>) -> Result<(), String> {
        self.bio = None;
        self.merged += 1;
        match self.merge.take() {
            Some(BioMerge::Merged { freed: None }) if followed_by.is_none() => Ok(()),
            Some(BioMerge::Merged { freed: Some(gone) }) if followed_by.is_some() => {
                self.merged += 1;
                let _ = self.bed.free(gone);
                Ok(())
            }
            other => Err(format!("{other:?}, where the kernel merged (and joined {followed_by:?})")),
        }
    }

    fn unplug(&mut self, n: usize, now: Instant) -> Result<(), String> {
        if self.plug.len() != n {
            return Err(format!("{} requests in the plug", self.plug.len()));
        }
        let mut freed = Vec::new();
        self.elevator.insert(&self.bed.cx(now), &mut self.plug, false, &mut freed);
        if !freed.is_empty() {
            return Err("joined at insertion, where the kernel did not".into());
        }
        Ok(())
    }

    fn issue(&mut self, e: Extent, now: Instant) -> Result<(), String> {
        let rq = match self.parked.take() {
            Some(rq) => rq,
            None => self.pull(now).ok_or("nothing to issue")?,
        };
        let ours = self.extent(&rq);
        if ours != e {
            return Err(format!("{ours:?}, where the kernel issued {e:?}"));
        }
        self.bed.issue(&rq, now);
        self.in_flight.push(rq);
        self.issued += 1;
        self.run_without_tags(now);
        Ok(())
    }

    fn complete(&mut self, e: Extent, now: Instant) -> Result<(), String> {
        let i = self.in_flight.iter().position(|rq| self.extent(rq) == e).ok_or("completed but not in flight")?;
        let rq = self.in_flight.remove(i);
        self.elevator.completed(&self.bed.cx(now), &rq);
        let _ = self.bed.free(rq);
        Ok(())
    }
}

/// Replays a case of `elevator`. Returns the numbers of issued requests and of merges; their sum is the number of I/O
/// lines in the script.
pub fn replay(elevator: &str, name: &str) -> (usize, usize) {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../oracle/cases/6.12");
    let read = |ext: &str| std::fs::read_to_string(format!("{dir}/{name}.{ext}")).expect("recorded case");
    let events: Vec<_> = read("trace").lines().filter_map(parse_line).collect();
    let mut r = Replay::new(elevator, &parse_env(&read("env")), &events);
    for (i, (now, event)) in events.iter().enumerate() {
        let next = events.get(i + 1).map(|(_, e)| e);
        let result = match event {
            Event::BioQueue(e) => {
                r.bio_queue(*e, *now);
                Ok(())
            }
            Event::BioMerge => r.bio_merged(match next {
                Some(Event::RqMerge(e)) => Some(*e),
                _ => None,
            }),
            Event::GetRq => r.get_rq(*now),
            Event::Unplug(n) => r.unplug(*n, *now),
            Event::Insert(..) => {
                // The queue is run when the whole plug has been inserted.
                if !matches!(next, Some(Event::Insert(..))) {
                    r.run_without_tags(*now);
                }
                Ok(())
            }
            Event::RqMerge(_) => Ok(()),
            Event::Issue(e) => r.issue(*e, *now),
            Event::Complete(e) => r.complete(*e, *now),
        };
        if let Err(what) = result {
            panic!("{name}: event {i} {event:?} at {} us, after {} issued: {what}", now.as_ns() / 1000, r.issued);
        }
    }
    assert!(r.in_flight.is_empty() && r.parked.is_none() && !r.elevator.has_work(HCTX), "{name}: requests left over");
    (r.issued, r.merged)
}
