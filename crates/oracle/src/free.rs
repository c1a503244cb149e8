// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Drives the [`World`] with nominal times: what we would do with a script, before or without a recording.
//!
//! Each request takes null_blk's completion time. The process and the queue runs take the times below, which are those
//! of the recordings' emulated CPU, rounded. So an order that depends on a few microseconds may differ in a recording.
//! What [`replay`](crate::replay) compares does not depend on them.

use crate::event::Event;
use crate::script::Script;
use crate::settings::Settings;
use crate::world::{Next, Unknown, World};

/// From one I/O of a batch to the next.
const SUBMIT_US: u64 = 20;

/// From a completion to the queue run it causes.
const RUN_US: u64 = 150;

/// From the queue run until the process continues.
const WAKE_US: u64 = 60;

/// Runs `script` under `settings` on `cpus` CPUs. Returns all events.
///
/// # Errors
/// Settings that the stack refuses.
///
/// # Panics
/// When the stack hangs with I/Os outstanding: a wake-up was lost.
pub fn simulate(script: &Script, settings: &Settings, cpus: u16) -> Result<Vec<Event>, String> {
    let mut world = World::new(script, settings, cpus, Some(settings.disk.completion_ns), Unknown::NONE)?;
    let mut process = 0u64;
    loop {
        let done = world.disk.next_due().map(|ns| ns.div_ceil(1000) + RUN_US);
        let wake = done.into_iter().chain(world.next_timer()).min();
        let next = world.upcoming();
        let sleeps = world.is_blocked() || matches!(next, Next::Wait) && world.outstanding() > 0;
        match wake {
            Some(us) if sleeps || us <= process => {
                world.poll(us);
                process = process.max(us + WAKE_US);
                continue;
            }
            None if sleeps => panic!("{} I/Os are outstanding and nothing is due", world.outstanding()),
            _ => {}
        }
        match next {
            Next::Io(_) => {
                world.submit(process);
                process += SUBMIT_US;
            }
            Next::Sleep(us) => {
                world.pass();
                process += us;
            }
            Next::Wait => world.pass(),
            Next::Asleep => unreachable!("a sleeper is polled until it wakes"),
            Next::End => return Ok(world.drain()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Extent, Kind};

    const ENV: &str =
        "NB=\"queue_mode=2 hw_queue_depth=1 irqmode=2 completion_nsec=40000000 gb=1\"\nSCHED=mq-deadline\n";

    #[test]
    fn an_elevator_sorts_what_waits_for_the_only_tag() {
        let script =
            Script::parse("t", "R 0 8\ngo\nR 64 8\ngo\nR 800 8\nR 240 8\nR 400 8\nR 248 8\none\nwait\n").unwrap();
        let settings = Settings::parse("t", &format!("{ENV}NR=64\n")).unwrap();
        let events = simulate(&script, &settings, 1).unwrap();
        let issued: Vec<Extent> = events.iter().filter(|e| e.kind == Kind::Issue).map(|e| e.extent).collect();
        let read = |sector, len| Extent { write: false, sector, len };
        assert_eq!(issued, [read(0, 8), read(64, 8), read(240, 16), read(400, 8), read(800, 8)]);
        assert_eq!(events.iter().filter(|e| e.kind == Kind::BackMerge).count(), 1);
        let ends: Vec<u64> = events.iter().filter(|e| e.kind == Kind::Complete).map(|e| e.us).collect();
        assert_eq!(ends[1] - ends[0], 40_000 + RUN_US);
    }
}
