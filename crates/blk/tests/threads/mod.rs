// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What tests with real threads share: a place to sleep, and whoever wakes sleepers.

use blk::id::SubmitterId;
use blk::queue::Notify;
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex};

/// A sleeping place with a token, as thread parking has it.
#[derive(Default)]
pub struct Parker {
    token: Mutex<bool>,
    bell: Condvar,
}

impl Parker {
    pub fn unpark(&self) {
        *self.token.lock().expect("not poisoned") = true;
        self.bell.notify_one();
    }

    pub fn park(&self) {
        let mut token = self.token.lock().expect("not poisoned");
        while !*token {
            token = self.bell.wait(token).expect("not poisoned");
        }
        *token = false;
    }
}

/// Wakes the thread of a submitter: submitters are numbered in order of creation, which is the order of threads.
pub struct Waker(pub Arc<[Parker]>);

impl Notify for Waker {
    fn notify(&self, submitter: SubmitterId) {
        if let Some(parker) = self.0.get(submitter.index()) {
            parker.unpark();
        }
    }
}

/// Places for so many threads.
pub fn parkers(threads: usize) -> Arc<[Parker]> {
    (0..threads).map(|_| Parker::default()).collect()
}

/// Says something aloud before the process is aborted: what is printed by the usual macros the test harness keeps to itself,
/// and then loses.
pub fn last_words(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Has panics of all threads say aloud what and where, for the same reason.
pub fn loud_panics() {
    std::panic::set_hook(Box::new(|panic| last_words(&panic.to_string())));
}
