// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Questions about a disk whose answers may take long, and a thread that waits for them so that no IOThread does.
//!
//! Guarantees: a question is answered once, in the order of all questions to its disk, and who asked is woken. The thread
//! begins with the first question. Needs from callers: they bound how many of theirs are open, and wait for those before they
//! go.

use super::disk::Waker;
use super::members::Stored;
use crate::driver::Stretch;
use blk::id::Sector;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

/// What can be asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wish {
    /// What is stored: at most so many stretches.
    Survey { most: usize },
    /// To read ahead.
    Prefetch,
}

/// A question about a range.
pub(crate) struct Question {
    pub(crate) wish: Wish,
    pub(crate) sector: Sector,
    pub(crate) nr_sectors: u64,
    /// Given back with the answer.
    pub(crate) number: u16,
    pub(crate) to: Arc<Answers>,
    pub(crate) waker: Waker,
}

/// Where answers to one asker arrive: the number of the question, and the stretches that were wanted.
#[derive(Default)]
pub(crate) struct Answers(Mutex<Vec<(u16, Vec<Stretch>)>>);

impl Answers {
    /// All that have arrived.
    pub(crate) fn take(&self) -> Vec<(u16, Vec<Stretch>)> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Answers the questions about one disk.
pub(crate) struct Clerk {
    stored: Arc<Stored>,
    thread: Mutex<Option<(Sender<Question>, JoinHandle<()>)>>,
}

impl Clerk {
    pub(super) fn new(stored: Stored) -> Clerk {
        Clerk { stored: Arc::new(stored), thread: Mutex::new(None) }
    }

    /// What can be said without asking, at once.
    pub(crate) fn stored(&self) -> &Stored {
        &self.stored
    }

    /// Asks. False: there is no thread to answer, and the question is dropped.
    pub(crate) fn ask(&self, question: Question) -> bool {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (sender, questions) = mpsc::channel::<Question>();
            let stored = Arc::clone(&self.stored);
            let run = move || questions.iter().for_each(|q| answer(&stored, q));
            *thread = std::thread::Builder::new().name("mqblk-clerk".into()).spawn(run).ok().map(|t| (sender, t));
        }
        thread.as_ref().is_some_and(|(sender, _)| sender.send(question).is_ok())
    }
}

fn answer(stored: &Stored, question: Question) {
    let Question { wish, sector, nr_sectors, number, to, waker } = question;
    let stretches = match wish {
        Wish::Survey { most } => stored.survey(sector, nr_sectors, most),
        Wish::Prefetch => {
            stored.prefetch(sector, nr_sectors);
            Vec::new()
        }
    };
    to.0.lock().push((number, stretches));
    waker.wake();
}

impl Drop for Clerk {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.thread.get_mut().take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}
