// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What happens when a connection ends.

use super::*;
use crate::export::nbd::export::Export;
use crate::mem::{Region, Regions};
use crate::serve::{IoThreads, Polling, ThreadOptions};
use crate::target::{Needs, TargetSpec};
use blk::settings::QueueConfig;
use parking_lot::Mutex;
use std::os::unix::net::UnixStream;
use std::sync::Weak;

/// Records whether the socket still existed when this was dropped.
struct Guard(Weak<OwnedFd>, Arc<Mutex<Option<bool>>>);

impl Drop for Guard {
    fn drop(&mut self) {
        *self.1.lock() = Some(self.0.strong_count() > 0);
    }
}

/// An export that is being removed looks for its clients' sockets whenever a guard is dropped. If a guard goes before its socket, the
/// export sees the socket, is never notified of its end, and waits forever.
#[test]
fn the_socket_goes_before_its_guard() {
    let option = ThreadOptions { name: "io0".into(), cpus: Vec::new(), polling: Polling::default() };
    let threads = IoThreads::start(&[option]).unwrap();
    let regions = Arc::new(Regions::new());
    let needs = Needs { write: true, direct: false, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
    let driver = TargetSpec::parse("ram:size=1m").unwrap().open(&needs, Arc::clone(&regions)).unwrap().driver;
    let disk = threads.disk("disk", driver, Arc::clone(&regions), QueueConfig::default()).unwrap();
    let buffers = || Buffers::new(&disk, SLOTS, None);
    let connection = |buffers| {
        let (socket, seen) = (Arc::new(OwnedFd::from(UnixStream::pair().unwrap().0)), Arc::default());
        let guard = Box::new(Guard(Arc::downgrade(&socket), Arc::clone(&seen)));
        let negotiated = Negotiated {
            export: Arc::new(Export::default()),
            style: ReplyStyle::Simple,
            base_allocation: false,
            tls: false,
        };
        (Connection::new(guard, (socket, None), &negotiated, &[], buffers), seen)
    };
    let (ended, seen) = connection(buffers().unwrap());
    drop(ended);
    assert_eq!(*seen.lock(), Some(false));
    // The disk takes no more memory, and the next connection has that of the previous one.
    while regions.add(Arc::new(Region::new(4096, false).unwrap())).is_ok() {}
    let (_open, seen) = connection(buffers().unwrap());
    assert!(buffers().is_err() && seen.lock().is_none());
}
