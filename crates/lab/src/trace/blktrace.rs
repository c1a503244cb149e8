// SPDX-License-Identifier: Apache-2.0 OR MIT
//! blktrace's binary format, version 7, little endian, as blkparse 1.2 and btt read it.
//!
//! Guarantees: each CPU has a file of records with ascending times and sequence numbers without gaps. Each file begins with
//! a note with the name of each process. Actions, categories and payloads are those that the kernel's tracer writes at the
//! same tracepoint. An unplug has the number of requests and a split has the sector at which it was cut, both big endian;
//! an error is its negative number in 16 bits. A timeout, which the kernel does not trace, is a message. Not here: cgroups,
//! driver data, the wall clock (blkparse then counts from 0).
//!
//! Source: include/uapi/linux/blktrace_api.h, kernel/trace/blktrace.c of Linux 6.19.

use super::{ThreadEvents, in_order};
use blk::bio::{Op, OpFlags};
use blk::trace::{Event, EventKind};
use std::io::{self, Write};
use workload::replay::blktrace::{Record, action as act, category};

/// `TASK_COMM_LEN`: bytes of a process name, the last one 0.
const COMM_BYTES: usize = 16;
/// Major number of the disks (`BLOCK_EXT_MAJOR`, which the kernel gives to no driver of its own).
const MAJOR: u32 = 259;

/// `BLK_TN_PROCESS`: a note of a process's name.
const NOTE_PROCESS: u32 = category::NOTIFY << 16;
/// `BLK_TN_MESSAGE`: a note of any text.
const NOTE_MESSAGE: u32 = category::NOTIFY << 16 | 2;

fn write(record: Record, payload: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let record = Record { payload_bytes: payload.len() as u16, ..record };
    out.write_all(&record.to_bytes())?;
    out.write_all(payload)
}

/// Returns the number of files. blkparse looks for numbers from 0 on without gaps, so CPUs without events have empty files.
pub fn nr_cpus(threads: &[ThreadEvents<'_>]) -> u32 {
    let cpus = threads.iter().flat_map(|t| &t.log.events).map(|e| e.cpu().index() as u32 + 1);
    cpus.max().unwrap_or(1)
}

/// Writes the events of one CPU; `disk` is the minor number of the device.
pub fn write_cpu(threads: &[ThreadEvents<'_>], cpu: u32, disk: u32, out: &mut dyn Write) -> io::Result<()> {
    let events = in_order(threads, |e| e.cpu().index() as u32 == cpu);
    let Some((_, first)) = events.first() else { return Ok(()) };
    let mut sequence = 0;
    let mut next = || {
        sequence += 1;
        sequence
    };
    let device = MAJOR << 20 | disk;
    for t in threads {
        let note =
            Record { time_ns: first.time.as_ns(), action: NOTE_PROCESS, pid: t.pid, device, cpu, ..Record::default() };
        write(Record { sequence: next(), ..note }, &comm(t.name), out)?;
    }
    for (thread, e) in events {
        let record = Record {
            sequence: next(),
            time_ns: e.time.as_ns(),
            sector: e.sector().0,
            // Discards may be longer than the field can hold.
            bytes: e.nr_sectors().checked_mul(512).unwrap_or(!511),
            action: action(e),
            pid: threads[thread].pid,
            device,
            cpu,
            error: (e.status().errno() as u16).wrapping_neg(),
            payload_bytes: 0,
        };
        match e.kind {
            EventKind::Unplug => write(record, &u64::from(e.count()).to_be_bytes(), out)?,
            EventKind::Split => write(record, &(e.sector().0 + u64::from(e.nr_sectors())).to_be_bytes(), out)?,
            EventKind::Timeout => write(record, timeout_message(e).as_bytes(), out)?,
            _ => write(record, &[], out)?,
        }
    }
    Ok(())
}

/// Text for an event without an action of its own; it names the request.
fn timeout_message(e: &Event) -> String {
    let place = e.hctx().zip(e.tag()).map(|(h, t)| format!(" hctx {} tag {}", h.index(), t.index()));
    format!("timeout {} + {}{}", e.sector().0, e.nr_sectors(), place.unwrap_or_default())
}

/// A process name as the kernel stores it: truncated, and padded with 0.
fn comm(name: &str) -> [u8; COMM_BYTES] {
    let mut comm = [0; COMM_BYTES];
    let len = name.len().min(COMM_BYTES - 1);
    comm[..len].copy_from_slice(&name.as_bytes()[..len]);
    comm
}

/// The `__BLK_TA_*` action with its category, and the categories of the operation.
fn action(e: &Event) -> u32 {
    let (what, of_act) = match e.kind {
        EventKind::Queue => (act::QUEUE, category::QUEUE),
        EventKind::BackMerge => (act::BACKMERGE, category::QUEUE),
        EventKind::FrontMerge => (act::FRONTMERGE, category::QUEUE),
        EventKind::GetRq => (act::GETRQ, category::QUEUE),
        EventKind::Requeue => (act::REQUEUE, category::REQUEUE),
        EventKind::Issue => (act::ISSUE, category::ISSUE),
        EventKind::Complete => (act::COMPLETE, category::COMPLETE),
        EventKind::Plug => return act::PLUG | category::QUEUE << 16,
        EventKind::Unplug => return act::UNPLUG | category::QUEUE << 16,
        EventKind::Insert => (act::INSERT, category::QUEUE),
        EventKind::Split => (act::SPLIT, 0),
        EventKind::Timeout => return NOTE_MESSAGE,
    };
    // Events of a request are marked as from a file system, because unmarked ones would be passthrough commands. Events of
    // a bio are not marked.
    let fs = if e.hctx().is_some() { category::FS } else { 0 };
    what | (of_act | fs | operation(e.op(), e.flags())) << 16
}

/// Modifiers that blktrace has a category for.
const MODIFIERS: [(OpFlags, u32); 5] = [
    (OpFlags::SYNC, category::SYNC),
    (OpFlags::PREFLUSH, category::FLUSH),
    (OpFlags::FUA, category::FUA),
    (OpFlags::RAHEAD, category::AHEAD),
    (OpFlags::META, category::META),
];

/// Modifiers that blktrace has no category for.
const NO_CATEGORY: [OpFlags; 9] = [
    OpFlags::NOWAIT,
    OpFlags::POLLED,
    OpFlags::NOMERGE,
    OpFlags::RESERVED,
    OpFlags::IDLE,
    OpFlags::BACKGROUND,
    OpFlags::NOUNMAP,
    OpFlags::NOFALLBACK,
    OpFlags::BYTES,
];
const _: () = assert!(OpFlags::are_all(&[&OpFlags::of_table(&MODIFIERS), &NO_CATEGORY]));

fn operation(op: Op, flags: OpFlags) -> u32 {
    let direction = match op {
        Op::Read => category::READ,
        Op::Flush => category::READ | category::FLUSH,
        Op::Write | Op::WriteZeroes => category::WRITE,
        Op::Discard => category::WRITE | category::DISCARD,
    };
    MODIFIERS.into_iter().filter(|(f, _)| flags.contains(*f)).fold(direction, |all, (_, c)| all | c)
}
