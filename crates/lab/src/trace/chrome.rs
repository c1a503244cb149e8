// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chrome's trace event format (JSON), which Perfetto and chrome://tracing open.
//!
//! Guarantees: one track per CPU has every event as an instant. One track per driver tag has a slice for each time that a
//! request is at the driver, from issue to completion or requeue. A request that is still at the driver when the trace ends
//! has no slice. Times are in microseconds from the first event, with nanosecond resolution. Not here: slices for the time
//! in plug and elevator, where merges join several bios.
//!
//! Source: the Trace Event Format document of the Chromium project.

use super::{ThreadEvents, in_order};
use blk::bio::Op;
use blk::time::Instant;
use blk::trace::{Event, EventKind};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Process numbers of the two groups of tracks.
const CPUS: u32 = 1;
const TAGS: u32 = 2;
/// Tags of an hctx start at multiples of this track number.
const TAGS_PER_HCTX: u32 = 1 << 16;

/// Writes the whole document for the disk called `disk`.
pub fn write(threads: &[ThreadEvents<'_>], disk: &str, out: &mut dyn Write) -> io::Result<()> {
    let events = in_order(threads, |_| true);
    let began = events.first().map_or(Instant::ZERO, |(_, e)| e.time);
    out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
    write!(out, "{},\n{}", group(CPUS, &format!("{disk}: CPUs")), group(TAGS, &format!("{disk}: driver tags")))?;
    let mut at_driver: BTreeMap<u32, &Event> = BTreeMap::new();
    for (thread, e) in events {
        write!(out, ",\n{}", instant(e, threads[thread].name, began))?;
        let Some(track) = track(e) else { continue };
        match e.kind {
            EventKind::Issue => {
                at_driver.insert(track, e);
            }
            EventKind::Complete | EventKind::Requeue => {
                if let Some(issued) = at_driver.remove(&track) {
                    write!(out, ",\n{}", slice(track, issued, e, began))?;
                }
            }
            _ => {}
        }
    }
    out.write_all(b"\n]}\n")
}

fn track(e: &Event) -> Option<u32> {
    Some(e.hctx()?.index() as u32 * TAGS_PER_HCTX + e.tag()?.index() as u32)
}

fn group(pid: u32, name: &str) -> Value {
    json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
}

/// Microseconds since the trace began.
fn us(t: Instant, began: Instant) -> f64 {
    t.since(began).as_ns() as f64 / 1e3
}

fn instant(e: &Event, job: &str, began: Instant) -> Value {
    let mut args = json!({"job": job, "op": op_name(e.op()), "sector": e.sector().0, "nr_sectors": e.nr_sectors()});
    let mut add = |key: &str, value: Value| {
        args[key] = value;
    };
    match e.kind {
        EventKind::Plug => args = json!({"job": job}),
        EventKind::Unplug => args = json!({"job": job, "requests": e.count()}),
        EventKind::Complete => add("status", json!(e.status().to_string())),
        _ => {}
    }
    json!({
        "ph": "i", "s": "t", "cat": "blk", "name": e.kind.letter().to_string(),
        "pid": CPUS, "tid": e.cpu().index(), "ts": us(e.time, began), "args": args,
    })
}

fn slice(track: u32, from: &Event, to: &Event, began: Instant) -> Value {
    json!({
        "ph": "X", "cat": "driver", "name": format!("{} {} + {}", op_name(from.op()), from.sector().0, from.nr_sectors()),
        "pid": TAGS, "tid": track, "ts": us(from.time, began), "dur": us(to.time, from.time),
        "args": {"hctx": track / TAGS_PER_HCTX, "tag": track % TAGS_PER_HCTX, "status": to.status().to_string()},
    })
}

fn op_name(op: Op) -> &'static str {
    match op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Flush => "flush",
        Op::Discard => "discard",
        Op::WriteZeroes => "write zeroes",
    }
}
