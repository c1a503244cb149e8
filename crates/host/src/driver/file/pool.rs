// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pool of threads for one hctx: the engine without io_uring.
//!
//! To module `handover` the pool is a ring that all threads may enter: jobs are its submission ring, results its completion ring. Module
//! `workers` has the threads, `requests` what a request is. So requests, waits and wake-ups are the same as with io_uring. A pool has no
//! owner, and no submission is deferred: the threads have a request once it is queued.

use super::handover::{Handover, Kernel, Pushed, Reaped};
use super::open::Opened;
use super::requests::Requests;
use super::workers::{Job, Workers};
use crate::driver::waits::MAX_SLEEP;
use crate::error::Result;
use crate::mem::Regions;
use crate::readable::poll_fds;
use blk::driver::{Completions, RqBatch};
use blk::status::QueueRqStatus;
use blk::time::Duration;
use std::os::fd::RawFd;
use std::sync::Arc;

pub(super) type Pool = Handover<Threads>;

/// The threads, and what all requests need.
pub(super) struct Threads {
    /// Dropped, and so ended, before the regions and the lists of pieces that they use.
    workers: Workers,
    regions: Arc<Regions>,
    file: Arc<Opened>,
}

impl Pool {
    /// Makes a pool for requests with tags below `depth`.
    pub(super) fn start(depth: u32, file: Arc<Opened>, regions: Arc<Regions>) -> Result<Pool> {
        let requests = Requests::new(depth, &file);
        let workers = Workers::start(depth, Arc::clone(&file))?;
        Ok(Handover::new(Threads { workers, regions, file }, requests))
    }

    pub(super) fn fd(&self) -> RawFd {
        self.kernel().workers.fd()
    }

    pub(super) fn queue_rqs(&self, batch: &mut RqBatch<'_>) -> QueueRqStatus {
        self.queue(|threads, requests| threads.push(requests, batch))
    }
}

impl Threads {
    fn push(&self, requests: &mut Requests, batch: &mut RqBatch<'_>) -> Pushed<QueueRqStatus> {
        let mut jobs = self.workers.lock();
        while let Some(rq) = batch.front() {
            let tag = batch.accept();
            let index = tag.tag().index();
            if requests.begin((&self.file, &self.regions), &rq, tag, |_| None) {
                jobs.add(Job::Request { index, op: *requests.next(index) });
                if let Some(range) = requests.read_ahead(index) {
                    jobs.add(Job::ReadAhead(range));
                }
            }
        }
        // A thread is woken under this lock, so nothing is left to submit.
        Pushed { answer: QueueRqStatus::Queued, lazy: true }
    }
}

impl Kernel for Threads {
    type State = Requests;
    type Done = Completions;

    fn has_owner(&self) -> bool {
        false
    }

    fn may_enter(&self) -> bool {
        true
    }

    /// Nothing: jobs are with the threads once they are queued.
    fn submit(&self) {}

    /// Sleeps until there is a result. Later ones are waited for by the caller's next wait.
    fn sleep_for(&self, _want: usize, timeout: Option<Duration>) {
        let event = libc::pollfd { fd: self.workers.fd(), events: libc::POLLIN, revents: 0 };
        poll_fds(&mut [event], timeout.map_or(MAX_SLEEP, |timeout| timeout.min(MAX_SLEEP)));
    }

    fn sleep_outside(&self, _timeout: Option<Duration>) {
        unreachable!("all threads may enter");
    }

    fn wake_owner(&self, _marks: impl FnOnce() -> u32) {
        unreachable!("a pool has no owner");
    }

    fn push_mark(&self, _requests: &mut Requests) {
        self.workers.lock().set_mark();
    }

    fn reap(&self, requests: &mut Requests, done: &mut Completions) -> Reaped {
        let before = done.room();
        requests.take_failed(done);
        let (mut found, mut woke) = (false, false);
        if self.workers.may_have_results() {
            let mut access = self.workers.lock();
            woke = access.take_mark();
            found = woke;
            while done.room() > 0
                && let Some((index, result)) = access.take_result()
            {
                found = true;
                if requests.complete(index, result, done) {
                    access.add(Job::Request { index, op: *requests.next(index) });
                }
            }
        }
        Reaped { found, woke, gave: done.room() != before, ..Reaped::default() }
    }

    fn in_flight(&self, requests: &Requests) -> u32 {
        requests.in_flight()
    }

    fn ready(&self, _requests: &Requests) -> usize {
        self.workers.lock().ready()
    }

    fn has_work(&self, requests: &Requests) -> bool {
        requests.have_failed()
    }
}
