// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPUs that go offline under load: their hardware queues drain, their submitters move, and no request is lost or waits
//! for them.

use blk::bio::{Bio, DataRef};
use blk::cpumap::CpuTopology;
use blk::id::{CpuId, Sector};
use blk::queue::HotplugError;
use blk::settings::QueueConfig;
use sim::disk::Behaviour;
use sim::harness::Harness;

fn manual() -> Behaviour {
    Behaviour { manual: true, ..Behaviour::default() }
}

fn config(topology: CpuTopology, hw: u16) -> QueueConfig {
    QueueConfig {
        topology,
        nr_hw_queues: Some(hw),
        queue_depth: 4,
        scheduler: Some("none".into()),
        nomerges: 2,
        ..QueueConfig::default()
    }
}

fn read(n: u64) -> Bio {
    Bio::read(Sector(n * 100), 8, DataRef::new(0, n << 12)).with_user_data(n)
}

fn cpu(n: u32) -> CpuId {
    CpuId::new(n)
}

fn hctxs(harness: &Harness, s: usize) -> Vec<usize> {
    harness.subs[s].hctxs().map(blk::id::HctxId::index).collect()
}

#[test]
fn leaving_cpu_is_drained_before_its_submitter_moves() {
    let mut harness = Harness::new(1, manual(), config(CpuTopology::uniform(2), 2), &[0, 1]);
    harness.submit(1, read(1));
    harness.q.begin_offline(cpu(1)).unwrap();
    assert!(harness.notifications.is_pending(harness.subs[1].id()), "it may be asleep");
    assert!(!harness.q.is_offline(cpu(1)), "its submitter is still there");
    harness.poll(1);
    assert_eq!(harness.subs[1].cpu(), cpu(0));
    assert!(!harness.q.is_offline(cpu(1)), "one request is in the hardware queue that has no other CPU");
    harness.submit(1, read(2));
    let at: Vec<_> = harness.disk.issues().iter().map(|i| i.hctx).collect();
    assert_eq!(at, [1, 0], "the second went where the submitter is now");
    assert_eq!(hctxs(&harness, 1), [0, 1], "it still looks after the first");
    harness.disk.release_all();
    harness.run_dry(20);
    assert!(harness.q.is_offline(cpu(1)));
    harness.submit(1, read(3));
    harness.disk.release_all();
    harness.run_dry(20);
    assert_eq!(hctxs(&harness, 1), [0], "nothing is left where it came from");
    harness.q.online(cpu(1));
    harness.submit(1, read(4));
    harness.disk.release_all();
    harness.run_dry(20);
    harness.submit(1, read(5));
    assert_eq!((harness.subs[1].cpu(), harness.disk.issues().last().unwrap().hctx), (cpu(1), 1), "home again");
    harness.disk.release_all();
    harness.run_dry(20);
    harness.check_idle();
}

#[test]
fn what_waits_for_a_tag_there_gets_one_elsewhere() {
    let mut harness = Harness::new(2, manual(), config(CpuTopology::uniform(2), 2), &[1]);
    (0..6).for_each(|n| harness.submit(0, read(n)));
    harness.run(20);
    assert_eq!((harness.disk.issues().len(), harness.subs[0].waiting()), (4, 2), "four tags");
    harness.q.begin_offline(cpu(1)).unwrap();
    harness.run(20);
    assert_eq!((harness.disk.issues().len(), harness.subs[0].waiting()), (6, 0), "the other queue had tags");
    harness.disk.release_all();
    harness.run_dry(40);
    assert!(harness.q.is_offline(cpu(1)));
    harness.check_idle();
}

#[test]
fn shared_hctx_takes_over_requests_of_a_cpu_that_left() {
    let mut harness = Harness::new(3, manual(), config(CpuTopology::uniform(2), 1), &[0, 1]);
    // Nothing is dispatched, so what CPU 1 submits stays in its software queue.
    harness.q.quiesce();
    (0..2).for_each(|n| harness.submit(1, read(n)));
    harness.q.begin_offline(cpu(1)).unwrap();
    harness.poll(1);
    assert!(harness.q.is_offline(cpu(1)), "the hardware queue has another CPU and need not drain");
    assert_eq!(harness.disk.issues().len(), 0);
    harness.q.unquiesce();
    harness.run(20);
    assert_eq!(harness.disk.issues().len(), 2, "{}", harness.describe());
    harness.disk.release_all();
    harness.run_dry(20);
    harness.check_idle();
}

#[test]
fn the_stand_in_is_near_and_the_last_cpu_stays() {
    // CPUs 0, 1 on node 0, CPUs 2, 3 on node 1.
    let mut harness = Harness::new(4, manual(), config(CpuTopology::symmetric(2, 2, 1), 4), &[3]);
    harness.q.begin_offline(cpu(3)).unwrap();
    harness.poll(0);
    assert_eq!(harness.subs[0].cpu(), cpu(2), "same node");
    harness.q.begin_offline(cpu(2)).unwrap();
    harness.poll(0);
    assert_eq!(harness.subs[0].cpu(), cpu(0));
    harness.q.begin_offline(cpu(0)).unwrap();
    assert_eq!(harness.q.begin_offline(cpu(1)), Err(HotplugError::LastOne(1)));
    assert_eq!(
        harness.q.begin_offline(cpu(4)).unwrap_err().to_string(),
        "cpu=4: must be 0..=3, the stack's CPUs",
        "refused by name"
    );
    harness.poll(0);
    assert_eq!(harness.subs[0].cpu(), cpu(1));
    assert!([0, 2, 3].iter().all(|c| harness.q.is_offline(cpu(*c))));
    assert!(harness.q.is_online(cpu(1)) && !harness.q.is_offline(cpu(1)));
    // A submitter that is made for an offline CPU starts at the CPU that replaces it.
    let other = harness.q.submitter(cpu(3)).unwrap();
    assert_eq!(other.cpu(), cpu(1));
    drop(other);
    // CPU 2, on the node of the home CPU 3, comes back first, then CPU 3.
    harness.q.online(cpu(2));
    harness.submit(0, read(0));
    harness.disk.release_all();
    harness.run_dry(20);
    harness.q.online(cpu(3));
    harness.poll(0);
    harness.submit(0, read(0));
    assert_eq!(harness.subs[0].cpu(), cpu(3));
    harness.disk.release_all();
    harness.run_dry(20);
}

#[test]
fn a_cpu_leaves_a_frozen_queue_too() {
    let mut harness = Harness::new(5, manual(), config(CpuTopology::uniform(2), 2), &[1]);
    harness.submit(0, read(0));
    harness.q.begin_freeze();
    harness.q.begin_offline(cpu(1)).unwrap();
    harness.submit(0, read(1));
    harness.disk.release_all();
    harness.drain();
    assert!(harness.q.is_offline(cpu(1)));
    harness.q.rebuild(|c| c.set("nr_hw_queues", "1")).unwrap();
    harness.q.unfreeze();
    harness.run(20);
    harness.disk.release_all();
    harness.run_dry(20);
    assert_eq!(harness.subs[0].cpu(), cpu(0));
    harness.check_idle();
}
