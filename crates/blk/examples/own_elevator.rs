// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Your own elevator beside mq-deadline: `cargo run -p mqblk-blk --example own_elevator`.
//!
//! The elevator dispatches the shortest request first. The disk starts with mq-deadline and is switched at run time, as
//! `echo shortest-first > queue/scheduler` does. The disk is simulated (package `mqblk-sim`) and keeps a record of the
//! requests that it gets.

use mqblk_blk::{Bio, CustomElevator, DataRef, Elevator, ElvCx, HctxId, QueueConfig, Rq, Sector};
use sim::disk::Issue;
use sim::{Behaviour, Harness};
use std::collections::VecDeque;
use std::error::Error;
use std::sync::{Mutex, MutexGuard};

#[derive(Default)]
struct ShortestFirst(Mutex<Queued>);

#[derive(Default)]
struct Queued {
    /// Dispatched before all others, the next one first.
    head: VecDeque<Rq>,
    /// The next one last.
    sorted: Vec<Rq>,
}

impl ShortestFirst {
    fn queued(&self) -> MutexGuard<'_, Queued> {
        self.0.lock().expect("no thread panics with the list locked")
    }
}

impl Elevator for ShortestFirst {
    fn name(&self) -> &'static str {
        OWN.name
    }

    /// With `at_head` the requests come back from the driver: they keep their order and go before all others.
    fn insert(&self, cx: &ElvCx<'_>, rqs: &mut Vec<Rq>, at_head: bool, _freed: &mut Vec<Rq>) {
        let mut queued = self.queued();
        if at_head {
            rqs.drain(..).rev().for_each(|rq| queued.head.push_front(rq));
        }
        let sectors = |rq: &Rq| cx.rqs.get(rq.id()).nr_sectors();
        for rq in rqs.drain(..) {
            let behind = queued.sorted.partition_point(|other| sectors(other) > sectors(&rq));
            queued.sorted.insert(behind, rq);
        }
    }

    fn dispatch(&self, _cx: &ElvCx<'_>, _hctx: HctxId, max: usize, out: &mut Vec<Rq>) {
        let Queued { head, sorted } = &mut *self.queued();
        let first = max.min(head.len());
        out.extend(head.drain(..first));
        let rest = sorted.len().saturating_sub(max - first);
        out.extend(sorted.drain(rest..).rev());
    }

    fn has_work(&self, _hctx: HctxId) -> bool {
        let queued = self.queued();
        !queued.head.is_empty() || !queued.sorted.is_empty()
    }
}

const OWN: CustomElevator = CustomElevator { name: "shortest-first", make: |_| Box::<ShortestFirst>::default() };

fn run() -> Result<String, Box<dyn Error>> {
    let config = QueueConfig { custom_elevators: &[OWN], ..QueueConfig::default() };
    let mut world = Harness::try_new(1, Behaviour::default(), config, &[0])?;
    let mut text = String::new();
    for scheduler in ["mq-deadline", "shortest-first"] {
        world.rebuild(|config| config.set("scheduler", scheduler))?;
        let earlier = world.disk.issued();
        // Under one plug, so that the elevator has all four when it chooses.
        world.plug(0, 4);
        world.try_submit(0, Bio::write(Sector(900), 64, DataRef::new(0, 0)))?;
        world.try_submit(0, Bio::read(Sector(500), 16, DataRef::new(0, 1 << 16)))?;
        world.try_submit(0, Bio::read(Sector(100), 32, DataRef::new(0, 2 << 16)))?;
        world.try_submit(0, Bio::write(Sector(300), 8, DataRef::new(0, 3 << 16)))?;
        world.unplug(0);
        world.run_dry(1000);
        let order: Vec<String> = world.disk.issues_from(earlier).iter().map(Issue::to_string).collect();
        text += &format!("{:14} {}\n", world.q.scheduler(), order.join(", "));
    }
    Ok(text)
}

fn main() -> Result<(), Box<dyn Error>> {
    print!("{}", run()?);
    Ok(())
}

#[test]
fn each_elevator_has_its_order() {
    let expected = "\
mq-deadline    Read 100+32, Read 500+16, Write 300+8, Write 900+64
shortest-first Write 300+8, Read 500+16, Read 100+32, Write 900+64
";
    assert_eq!(run().unwrap(), expected);
}
