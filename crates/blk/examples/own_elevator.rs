// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An elevator of one's own beside mq-deadline: `cargo run -p mqblk-blk --example own_elevator`.
//!
//! The elevator dispatches the shortest request first. The disk starts with mq-deadline and is switched while it lives, as
//! `echo shortest-first > queue/scheduler` does. The disk is simulated (package `mqblk-sim`) and keeps a record of the
//! requests that it gets.

use mqblk_blk::{Bio, CustomElevator, DataRef, Elevator, ElvCx, HctxId, QueueConfig, Rq, Sector};
use sim::disk::Issue;
use sim::{Behaviour, Harness};
use std::error::Error;
use std::sync::{Mutex, MutexGuard};

/// Queued requests in order of dispatch, the next one last.
#[derive(Default)]
struct ShortestFirst(Mutex<Vec<Rq>>);

impl ShortestFirst {
    fn queued(&self) -> MutexGuard<'_, Vec<Rq>> {
        self.0.lock().expect("no thread panics with the list locked")
    }
}

impl Elevator for ShortestFirst {
    fn name(&self) -> &'static str {
        OWN.name
    }

    /// Requests that come back from the driver (`at_head`) go before all others.
    fn insert(&self, cx: &ElvCx<'_>, rqs: &mut Vec<Rq>, at_head: bool, _freed: &mut Vec<Rq>) {
        let mut queued = self.queued();
        let sectors = |rq: &Rq| if at_head { 0 } else { cx.rqs.get(rq.id()).nr_sectors() };
        for rq in rqs.drain(..) {
            let behind = queued.partition_point(|other| at_head || sectors(other) > sectors(&rq));
            queued.insert(behind, rq);
        }
    }

    fn dispatch(&self, _cx: &ElvCx<'_>, _hctx: HctxId, max: usize, out: &mut Vec<Rq>) {
        let mut queued = self.queued();
        let rest = queued.len().saturating_sub(max);
        out.extend(queued.drain(rest..).rev());
    }

    fn has_work(&self, _hctx: HctxId) -> bool {
        !self.queued().is_empty()
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
