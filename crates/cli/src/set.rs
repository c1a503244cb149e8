// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk set`: changes settings while a run is in progress, as a write to a file in `/sys/block/DEV/queue` does.

use crate::args::SetArgs;
use crate::live::{self, DiskChange, Question};
use crate::output;
use crate::status::{Failure, Outcome, Status};
use lab::report::num;

/// Sends the change to the run, and prints what has changed.
pub fn main(args: &SetArgs) -> Outcome {
    let question = Question::Set { disk: args.disk.clone(), settings: args.settings.clone() };
    let (done, refused) = live::change(args.pid, &question)?;
    if args.json {
        output::print(&output::json(&serde_json::json!({ "disks": done })))?;
    } else {
        output::print(&done.iter().map(|change| format!("{}: {}\n", change.disk, text(change))).collect::<String>())?;
    }
    refused.map_or(Ok(Status::Done), |text| Err(Failure::new(text)))
}

/// `scheduler none -> kyber, nr_requests 64 -> 128; no I/O could begin for 1.2ms`.
pub fn text(change: &DiskChange) -> String {
    let what: Vec<_> = change.changed.iter().map(|(name, from, to)| format!("{name} {from} -> {to}")).collect();
    let what = if what.is_empty() { "unchanged".to_owned() } else { what.join(", ") };
    match change.frozen_us {
        Some(us) => format!("{what}; new I/O was held for {}", num::latency(us as f64 * 1000.0)),
        None => what,
    }
}

/// The same with the time: `at 1.204 s: ...`.
pub fn at(change: &DiskChange) -> String {
    format!("at {:.3} s: {}", change.at_ms as f64 / 1000.0, text(change))
}
