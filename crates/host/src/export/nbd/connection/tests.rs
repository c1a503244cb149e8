// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What happens when a connection cannot be made.

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

/// An export that is being removed looks for its clients' sockets whenever a guard is dropped. Without memory for a connection, the guard
/// used to be dropped before the socket. So the export saw the socket, was never notified of its end, and waited forever.
#[test]
fn the_socket_goes_before_its_guard_also_without_memory() {
    let option = ThreadOptions { name: "io0".into(), cpus: Vec::new(), polling: Polling::default() };
    let threads = IoThreads::start(&[option]).unwrap();
    let regions = Arc::new(Regions::new());
    let needs = Needs { write: true, direct: false, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
    let driver = TargetSpec::parse("ram:size=1m").unwrap().open(&needs, Arc::clone(&regions)).unwrap().driver;
    let disk = threads.disk("disk", driver, Arc::clone(&regions), QueueConfig::default()).unwrap();
    let connect = || {
        let (socket, seen) = (Arc::new(OwnedFd::from(UnixStream::pair().unwrap().0)), Arc::default());
        let guard = Box::new(Guard(Arc::downgrade(&socket), Arc::clone(&seen)));
        let negotiated = Negotiated {
            export: Arc::new(Export::default()),
            style: ReplyStyle::Simple,
            base_allocation: false,
            tls: false,
        };
        let made = Connection::new(guard, (socket, None), &negotiated, &[], &disk).map(drop);
        (made.is_ok(), *seen.lock())
    };
    assert_eq!(connect(), (true, Some(false)));
    // The buffers of the previous connection are free now.
    let _taken = disk.take_client_buffers(SLOTS * super::super::buffers::SMALL_BYTES).unwrap();
    while regions.add(Arc::new(Region::new(4096, false).unwrap())).is_ok() {}
    assert_eq!(connect(), (false, Some(false)));
}
