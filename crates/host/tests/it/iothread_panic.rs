// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A bug that makes an IOThread panic: the process ends, so that its clients do not wait for ever.

use crate::own_process;
use crate::serving;

use blk::submitter::Done;
use blk::time::Instant;
use host::serve::{Port, Source, SourceId, SourceLabel};
use rustix::event::epoll::EventFlags;
use serving::Served;
use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::process::ExitStatusExt;

/// A source with a bug.
struct Broken;

impl Source for Broken {
    fn serve(&mut self, _id: SourceId, _port: &mut Port, _now: Instant) -> bool {
        panic!("on purpose");
    }

    fn ended(&mut self, _done: &[Done], _port: &mut Port) {}

    fn prepare_sleep(&mut self) -> bool {
        true
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn interest(&self) -> EventFlags {
        EventFlags::empty()
    }

    fn set_paused(&mut self, _paused: bool) {}

    fn label(&self) -> SourceLabel<'_> {
        SourceLabel { kind: "test", export: "e", index: 0 }
    }

    fn served(&self) -> u64 {
        0
    }

    fn in_flight(&self) -> usize {
        0
    }
}

#[test]
fn a_panic_of_an_iothread_ends_the_process() {
    let name = "iothread_panic::a_panic_of_an_iothread_ends_the_process";
    let Some(out) = own_process::in_own_process(name, &[]) else { return break_an_iothread() };
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.signal(), Some(libc::SIGABRT), "{text}");
    let expected =
        "mqblk: IOThread 'io0' panicked: on purpose; the process ends, because requests of its clients are lost; start";
    assert!(text.contains(expected), "{text}");
}

/// Never returns if an IOThread ends the process.
fn break_an_iothread() {
    let served = Served::new("iothread-panic", "ram:size=1m", 1);
    fs::remove_dir_all(&served.directory).unwrap();
    let added = served.threads.add(0, &served.disk, Broken);
    let Served { threads, disk, .. } = served;
    drop((added, disk));
    // Waits for the IOThread.
    drop(threads);
}
