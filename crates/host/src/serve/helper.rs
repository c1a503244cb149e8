// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A helper thread per disk, for work that may block an IOThread: surveys of allocated blocks, and reading ahead.
//!
//! Guarantees: the thread answers each request once, in the order of all requests to its disk, and wakes the IOThread that sent it. The
//! thread starts with the first request. Needs from callers: they limit their requests in flight, and wait for these before they are
//! dropped.

use super::disk::Waker;
use super::members::Stored;
use crate::driver::Stretch;
use crate::panics;
use blk::id::Sector;
use blk::rmw::Wake;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

/// What the helper thread does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HelperWork {
    /// Survey which blocks are allocated: at most `most` stretches.
    Survey { most: usize },
    /// Read the range ahead.
    Prefetch,
}

/// Work on a range.
pub(crate) struct HelperRequest {
    pub(crate) work: HelperWork,
    pub(crate) sector: Sector,
    pub(crate) nr_sectors: u64,
    /// Returned with the answer.
    pub(crate) number: u16,
    pub(crate) to: Arc<HelperAnswers>,
    pub(crate) waker: Waker,
}

/// Where answers to one client arrive: the number of the request, and the stretches that were wanted.
#[derive(Default)]
pub(crate) struct HelperAnswers(Mutex<Vec<(u16, Vec<Stretch>)>>);

impl HelperAnswers {
    /// Takes all answers that have arrived.
    pub(crate) fn take(&self) -> Vec<(u16, Vec<Stretch>)> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// The helper thread of one disk.
pub(crate) struct HelperThread {
    stored: Arc<Stored>,
    thread: Mutex<Option<(Sender<HelperRequest>, JoinHandle<()>)>>,
}

impl HelperThread {
    pub(super) fn new(stored: Stored) -> HelperThread {
        HelperThread { stored: Arc::new(stored), thread: Mutex::new(None) }
    }

    /// Returns what can be answered without the thread.
    pub(crate) fn stored(&self) -> &Stored {
        &self.stored
    }

    /// Sends a request. False: there is no thread, and the request is dropped.
    pub(crate) fn ask(&self, request: HelperRequest) -> bool {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (sender, requests) = mpsc::channel::<HelperRequest>();
            let stored = Arc::clone(&self.stored);
            let run = move || {
                panics::end_process("helper thread");
                requests.iter().for_each(|q| answer(&stored, q));
            };
            *thread = std::thread::Builder::new().name("mqblk-helper".into()).spawn(run).ok().map(|t| (sender, t));
        }
        thread.as_ref().is_some_and(|(sender, _)| sender.send(request).is_ok())
    }
}

fn answer(stored: &Stored, request: HelperRequest) {
    let HelperRequest { work, sector, nr_sectors, number, to, waker } = request;
    let stretches = match work {
        HelperWork::Survey { most } => stored.survey(sector, nr_sectors, most),
        HelperWork::Prefetch => {
            stored.prefetch(sector, nr_sectors);
            Vec::new()
        }
    };
    to.0.lock().push((number, stretches));
    waker.wake();
}

impl Drop for HelperThread {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.thread.get_mut().take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}
