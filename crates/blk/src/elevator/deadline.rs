// SPDX-License-Identifier: Apache-2.0 OR MIT
//! deadline, of the legacy single-queue mode: mq-deadline's ancestor, without priority classes.
//!
//! # Synopsis
//! Batches of up to `fifo_batch` reads or writes by ascending sector; a new batch is one of reads unless writes have
//! been passed over `writes_starved` times. A batch continues with the request that followed the last one *when the
//! last one was dispatched*: requests that arrive in between wait for the next sweep. A batch in the other direction
//! starts at the oldest request.
//!
//! # Options
//! `read_expire` (ms, 500), `write_expire` (ms, 5000), `writes_starved` (2), `fifo_batch` (requests, 16), `front_merges`
//! (0 or 1, 1).
//!
//! # Since
//! Behaviour of Linux 4.19 block/deadline-iosched.c.

use super::bio_merge::request;
use super::deadline_lists::{Dir, DirLists, SortNodes, choose_direction};
use super::interface::{ElvCx, Tunable};
use super::legacy::Policy;
use super::tunables::{INT_MAX, TunableDef, TunableSet};
use crate::bio::BioSlot;
use crate::time::Duration;

/// The name in `queue/scheduler`.
pub const NAME: &str = "deadline";

static TUNABLES: [TunableDef; 5] = [
    TunableDef { name: "read_expire", default: 500, min: 0, max: INT_MAX, unit: "ms" },
    TunableDef { name: "write_expire", default: 5000, min: 0, max: INT_MAX, unit: "ms" },
    TunableDef { name: "writes_starved", default: 2, min: 0, max: INT_MAX, unit: "" },
    TunableDef { name: "fifo_batch", default: 16, min: 0, max: INT_MAX, unit: "requests" },
    TunableDef { name: "front_merges", default: 1, min: 0, max: 1, unit: "" },
];
const READ_EXPIRE: usize = 0;
const WRITE_EXPIRE: usize = 1;
const WRITES_STARVED: usize = 2;
const FIFO_BATCH: usize = 3;
const FRONT_MERGES: usize = 4;

/// The policy.
pub(crate) struct Deadline {
    tunables: TunableSet<5>,
    /// Reads and writes.
    dirs: [DirLists; 2],
    /// The request the present batch continues with, and its direction.
    next_rq: Option<(Dir, u32)>,
    batching: u64,
    starved: u64,
}

impl Deadline {
    fn choose(&mut self, cx: &ElvCx<'_>, n: &SortNodes) -> Option<(Dir, u32)> {
        if self.next_rq.is_some() && self.batching < self.tunables.get(FIFO_BATCH) {
            return self.next_rq;
        }
        let [reads, writes] = [&self.dirs[0], &self.dirs[1]].map(|d| !d.is_empty());
        let dir = choose_direction(reads, writes, &mut self.starved, self.tunables.get(WRITES_STARVED))?;
        self.batching = 0;
        let lists = &self.dirs[dir as usize];
        match self.next_rq {
            Some((d, rq)) if d == dir && !lists.has_expired(n, cx.now) => Some((dir, rq)),
            _ => lists.oldest().map(|rq| (dir, rq)),
        }
    }
}

impl Policy for Deadline {
    const NAME: &'static str = NAME;

    fn new(nodes: &SortNodes) -> Deadline {
        Deadline {
            tunables: TunableSet::new(&TUNABLES),
            dirs: [DirLists::new(nodes), DirLists::new(nodes)],
            next_rq: None,
            batching: 0,
            starved: 0,
        }
    }

    fn insert(&mut self, cx: &ElvCx<'_>, n: &mut SortNodes, rq: u32) {
        let fields = request(cx, rq);
        let dir = Dir::of(fields.op());
        let expire = self.tunables.get(if dir == Dir::Read { READ_EXPIRE } else { WRITE_EXPIRE });
        self.dirs[dir as usize].insert(n, rq, fields.sector().0, cx.now + Duration::from_ms(expire));
    }

    fn pick(&mut self, cx: &ElvCx<'_>, n: &mut SortNodes) -> Option<u32> {
        let (dir, rq) = self.choose(cx, n)?;
        self.batching += 1;
        self.next_rq = n.rb.latter(rq).map(|next| (dir, next));
        self.dirs[dir as usize].remove(n, rq);
        Some(rq)
    }

    fn is_empty(&self) -> bool {
        self.dirs.iter().all(DirLists::is_empty)
    }

    fn front_candidate(&self, n: &SortNodes, bio: &BioSlot) -> Option<u32> {
        if self.tunables.get(FRONT_MERGES) == 0 {
            return None;
        }
        self.dirs[Dir::of(bio.op()) as usize].starting_at(n, bio.end_sector())
    }

    fn former(&self, n: &SortNodes, rq: u32) -> Option<u32> {
        n.rb.former(rq)
    }

    fn latter(&self, n: &SortNodes, rq: u32) -> Option<u32> {
        n.rb.latter(rq)
    }

    fn front_merged(&mut self, cx: &ElvCx<'_>, n: &mut SortNodes, rq: u32) {
        let fields = request(cx, rq);
        self.dirs[Dir::of(fields.op()) as usize].reposition(n, rq, fields.sector().0);
    }

    fn joined(&mut self, cx: &ElvCx<'_>, n: &mut SortNodes, kept: u32, gone: u32) {
        if let Some((dir, rq)) = self.next_rq
            && rq == gone
        {
            self.next_rq = n.rb.latter(gone).map(|next| (dir, next));
        }
        self.dirs[Dir::of(request(cx, kept).op()) as usize].absorb(n, kept, gone);
    }

    fn tunables(&self) -> Vec<Tunable> {
        self.tunables.list()
    }

    fn set_tunable(&mut self, name: &str, value: u64) -> Result<(), String> {
        self.tunables.set(NAME, name, value)
    }
}
