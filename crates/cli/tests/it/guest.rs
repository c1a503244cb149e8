// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A Linux guest under QEMU's emulation, on `mqblk serve`: it reads back what it wrote, on every queue, with each kind of ring, cache and
//! completion; and it keeps running when its daemon is killed.
//!
//! KVM is neither needed nor used, because data and states are checked, but not times. The kernel is fetched once (see `emulated` among
//! the tests of `host`). `cargo xtask guest --full` runs all combinations, and the deep tests those that differ most.

#![cfg(target_arch = "x86_64")]

use crate::common;
use crate::machine;

use common::{Dir, Started, until};
use machine::{Guest, Machine};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

const IMAGE_BYTES: u64 = 160 << 20;

/// A combination of options for a guest.
#[derive(Clone, Copy, Debug)]
struct Case {
    queues: u32,
    is_packed: bool,
    /// The guest can read and switch the cache mode; else it must rely on the FLUSH feature alone.
    has_config_wce: bool,
    write_through: bool,
    poll_queues: u32,
    work: Work,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Verify,
    Reconnect,
    Resize,
    Migrate,
}

const PLAIN: Case = Case {
    queues: 1,
    is_packed: false,
    has_config_wce: true,
    write_through: false,
    poll_queues: 0,
    work: Work::Verify,
};

/// Starts a guest on the export at `socket`, with more arguments for QEMU.
fn start(dir: &Dir, case: Case, socket: &str, more: &[&str]) -> Guest {
    let work = match case.work {
        Work::Verify => "verify",
        Work::Reconnect => "reconnect",
        Work::Migrate => "migrate",
        Work::Resize => "resize",
    };
    let job = format!(
        "QUEUES={} POLL={} CACHE='{}' SERIAL=disk-one WORK={work} GROWN={}\n. /bin/ioscript\n",
        case.queues,
        case.poll_queues,
        if case.write_through { "write through" } else { "write back" },
        2 * IMAGE_BYTES / 512,
    );
    let Case { queues, is_packed, has_config_wce, poll_queues, .. } = case;
    let machine = Machine { queues, is_packed, has_config_wce, poll_queues, ..Machine::default() };
    machine.start(dir, socket, &job, more)
}

fn daemon(dir: &Dir, case: Case) -> Started {
    let cache = if case.write_through { "write through" } else { "write back" };
    let queues = case.queues;
    dir.file(
        "serve.toml",
        &format!(
            "[[iothread]]\nname = \"io0\"\n[[iothread]]\nname = \"io1\"\n\
             [[disk]]\nname = \"d\"\ntarget = \"disk.img\"\nserial = \"disk-one\"\nwrite_cache = \"{cache}\"\n\
             [[export]]\ntype = \"vhost-user-blk\"\nsocket = \"d.sock\"\nnum_queues = {queues}\n\
             [[export]]\ntype = \"vhost-user-blk\"\nsocket = \"e.sock\"\nnum_queues = {queues}\n"
        ),
    );
    dir.start(&["serve", "serve.toml", "--control", "ctl.sock"], "serving")
}

/// Connects to the monitor of a QEMU, which has answered with its first line.
fn monitor(dir: &Dir, socket: &str) -> UnixStream {
    let mut monitor = None;
    until("QEMU's monitor listens", || {
        monitor = UnixStream::connect(dir.path(socket)).ok();
        monitor.is_some()
    });
    let monitor = monitor.unwrap();
    assert!(BufReader::new(&monitor).read_line(&mut String::new()).unwrap() > 0, "{socket} was closed");
    monitor
}

fn run(case: Case) {
    // One at a time, because an emulated machine uses all CPUs.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = Dir::new("guest");
    File::create(dir.path("disk.img")).unwrap().set_len(IMAGE_BYTES).unwrap();
    let mut server = daemon(&dir, case);
    let mut guest = match case.work {
        Work::Migrate => start(&dir, case, "d.sock", &["-monitor", "unix:monitor.sock,server=on,wait=off"]),
        _ => start(&dir, case, "d.sock", &[]),
    };
    let mut source = None;
    match case.work {
        Work::Verify => {}
        Work::Reconnect => {
            assert!(guest.says("GUEST-UNDER-LOAD"), "{case:?}\n{}", guest.seen());
            server.signal("KILL");
            assert_eq!(server.ends().status, -1);
            server = daemon(&dir, case);
        }
        Work::Migrate => {
            assert!(guest.says("GUEST-UNDER-LOAD"), "{case:?}\n{}", guest.seen());
            let more = ["-incoming", "unix:migration.sock", "-monitor", "unix:there.sock,server=on,wait=off"];
            let there = start(&dir, case, "e.sock", &more);
            // It answers when it listens at its other socket, too. That socket's file is there before.
            drop(monitor(&dir, "there.sock"));
            let mut monitor = monitor(&dir, "monitor.sock");
            monitor.write_all(b"migrate_set_parameter max-bandwidth 10G\nmigrate -d unix:migration.sock\n").unwrap();
            source = Some((std::mem::replace(&mut guest, there), monitor));
        }
        Work::Resize => {
            assert!(guest.says("GUEST-READY-TO-GROW"), "{case:?}\n{}", guest.seen());
            File::options().write(true).open(dir.path("disk.img")).unwrap().set_len(2 * IMAGE_BYTES).unwrap();
            dir.mqblk(&["ctl", "--control", "ctl.sock", "resize", "d"]).exits(0);
        }
    }
    let seen = guest.passes(&case);
    drop(source);
    println!("{case:?}");
    seen.lines().filter(|line| line.starts_with("GUEST ")).for_each(|line| println!("  {line}"));
    server.signal("TERM");
    let done = server.ends();
    assert!(!done.err.contains("was dropped"), "{case:?}\n{}", done.err);
    done.exits(0);
}

/// A job that verifies its writes runs while the daemon is killed and restarted.
const KILLED: Case = Case { queues: 4, work: Work::Reconnect, ..PLAIN };

/// Run by `cargo xtask test --deep`.
mod deep {
    use super::*;

    /// Whether all combinations are requested.
    fn is_full() -> bool {
        std::env::var_os("MQBLK_GUEST_FULL").is_some()
    }

    #[test]
    fn a_guest_goes_on_when_the_daemon_is_killed() {
        run(Case { is_packed: true, has_config_wce: false, ..KILLED });
    }

    #[test]
    fn a_guest_finds_what_it_wrote_on_every_queue() {
        let few = [
            PLAIN,
            Case { queues: 4, is_packed: true, has_config_wce: false, ..PLAIN },
            Case { queues: 2, write_through: true, ..PLAIN },
        ];
        if !is_full() {
            return few.into_iter().for_each(run);
        }
        for queues in [1, 2, 4] {
            for bits in 0..8 {
                let (is_packed, has_config_wce, write_through) = (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
                run(Case { queues, is_packed, has_config_wce, write_through, ..PLAIN });
            }
        }
    }

    #[test]
    fn a_guest_sees_its_disk_grow() {
        run(Case { work: Work::Resize, ..PLAIN });
    }

    /// Poll queues of a guest have no call descriptor, which makes the reference implementation crash.
    #[test]
    fn a_guest_with_poll_queues_is_served() {
        run(Case { queues: 4, poll_queues: 2, ..PLAIN });
        if is_full() {
            run(Case { queues: 4, poll_queues: 2, is_packed: true, ..PLAIN });
        }
    }

    #[test]
    fn a_guest_with_split_rings_goes_on_when_the_daemon_is_killed() {
        run(Case { queues: 2, ..KILLED });
        if is_full() {
            run(Case { queues: 2, is_packed: true, has_config_wce: false, ..KILLED });
            for queues in [1, 4] {
                run(Case { queues, ..KILLED });
                run(Case { queues, is_packed: true, ..KILLED });
            }
        }
    }

    /// A machine with a verifying job migrates to another QEMU, on another export of the same disk. Everything that the device
    /// wrote to guest memory meanwhile must be migrated, too.
    #[test]
    fn a_guest_is_migrated_under_load() {
        let case = Case { queues: 2, work: Work::Migrate, ..PLAIN };
        run(case);
        if is_full() {
            run(Case { is_packed: true, ..case });
        }
    }
}
