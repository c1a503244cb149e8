// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole machines: what the block layer's design makes of them, and that a simulation is repeatable and bounded.

use blk::limits::Limits;
use blk::model::Speed;
use blk::settings::{Mode, QueueConfig};
use blk::time::Duration;
use sim::machine::costs::{Costs, LineCosts, Shape, Waiting};
use sim::machine::device::DeviceSpec;
use sim::machine::jobs::{self, DiskSpec, JobsRun};
use sim::machine::scsi::ScsiSpec;
use sim::machine::service::{Modelled, Service};
use workload::job::{Job, JobFile, ParseContext};

fn jobs(text: &str) -> Vec<Job> {
    JobFile::parse_str(text, &ParseContext::bare("t.fio"), &[]).expect("valid jobs").jobs
}

fn disk(service_us: u64, speed: Speed, config: QueueConfig, scsi: Option<ScsiSpec>) -> DiskSpec {
    let service = move |_| {
        let us = Duration::from_us(service_us);
        Box::new(Modelled::new(&speed, us, us)) as Box<dyn Service>
    };
    let device = DeviceSpec { sectors: 1 << 31, limits: Limits::default() };
    DiskSpec { device, service: Box::new(service), luns: 1, config, scsi }
}

fn fast(mode: Mode) -> DiskSpec {
    let nr_requests = (mode == Mode::Sq).then_some(1024);
    let config = QueueConfig { mode, queue_depth: 512, nr_requests, ..QueueConfig::default() };
    disk(10, Speed { parallel: 65_536, ..Speed::default() }, config, None)
}

fn random_reads(shape: Shape, costs: Costs, spec: &DiskSpec, depth: u32) -> JobsRun {
    let (n, ms) = (shape.cpus(), (200 / shape.cpus()).max(5));
    let text = format!(
        "[a]\nrw=randread\nbs=4k\nioengine=libaio\niodepth={depth}\nnumjobs={n}\nsize=1g\ntime_based\nruntime={ms}ms\n"
    );
    jobs::run(shape, costs, spec, &jobs(&text), 1).expect("a machine")
}

fn iops(run: &JobsRun) -> f64 {
    run.stats.iter().map(|s| s.dirs[0].ios).sum::<u64>() as f64 / (run.elapsed_ns as f64 / 1e9)
}

fn sockets(sockets: u16, cores: u16) -> Shape {
    Shape { sockets, cores, threads: 1 }
}

#[test]
fn one_queue_peaks_and_falls_with_sockets_and_many_queues_grow() {
    let shapes = [sockets(1, 1), sockets(1, 4), sockets(1, 8), sockets(2, 8), sockets(4, 8)];
    let curve = |mode| shapes.map(|s| iops(&random_reads(s, Costs::default(), &fast(mode), 32)));
    let (sq, mq) = (curve(Mode::Sq), curve(Mode::Mq));
    assert!(sq[1] > 1.5 * sq[0] && sq[2] > sq[1], "one socket: {sq:?}");
    assert!(sq[3] < 0.9 * sq[2] && sq[4] < sq[3], "more sockets: {sq:?}");
    for (i, s) in shapes.iter().enumerate() {
        let per_cpu = mq[i] / mq[0] / f64::from(s.cpus());
        assert!(per_cpu > 0.95, "CPUs do not slow each other down: {per_cpu} with {s:?}, {mq:?}");
    }
    assert!(mq[4] > 10.0 * sq[4], "{mq:?} {sq:?}");
}

#[test]
fn a_lock_whose_waiters_all_look_at_it_is_slower() {
    let with = |waiting| Costs { line: LineCosts { waiting, ..LineCosts::default() }, ..Costs::default() };
    let sq = |waiting| iops(&random_reads(sockets(2, 8), with(waiting), &fast(Mode::Sq), 32));
    assert!(sq(Waiting::Ticket) < 0.9 * sq(Waiting::Queued));
}

#[test]
fn the_same_machine_gives_the_same_figures() {
    let run = || {
        let r = random_reads(sockets(2, 4), Costs::default(), &fast(Mode::Sq), 8);
        let lat: Vec<f64> = r.stats.iter().map(|s| s.dirs[0].clat.run.mean()).collect();
        (r.elapsed_ns, r.events, r.cpu, r.disk, lat)
    };
    assert_eq!(run(), run());
}

#[test]
fn a_simulation_costs_in_proportion_to_its_ios() {
    for shape in [sockets(1, 2), sockets(4, 16)] {
        for (mode, depth) in [(Mode::Sq, 1), (Mode::Sq, 32), (Mode::Mq, 1), (Mode::Mq, 32)] {
            let r = random_reads(shape, Costs::default(), &fast(mode), depth);
            let per_io = r.events as f64 / r.disk.ops[0].ios as f64;
            assert!(per_io < 6.0, "{per_io} events per I/O, {shape:?} {mode} {depth}");
        }
    }
}

/// A depth of one takes what it costs, step by step.
#[test]
fn latency_is_the_sum_of_its_parts() {
    let r = random_reads(sockets(1, 1), Costs::default(), &fast(Mode::Mq), 1);
    let p = Costs::default().path;
    let least = u64::from(p.irq_ns + p.complete_ns) + 10_000;
    let most = least
        + u64::from(p.dispatch_ns + p.doorbell_ns + p.wakeup_ns + p.switch_ns + p.syscall_ns * 2 + p.app_ns)
        + 1_000;
    let mean = r.stats[0].dirs[0].clat.run.mean();
    assert!((least as f64..most as f64).contains(&mean), "{least} {mean} {most}");
}

/// Two readers keep a LUN's depth full from their hardware queues; a writer has one of its own. It was starved for ever.
#[test]
fn a_lun_is_shared_by_the_hardware_queues() {
    let readers = "[r]\nrw=read\nbs=32k\nioengine=libaio\niodepth=64\nnumjobs=2\nsize=1g\ntime_based\nruntime=1s\n";
    let writer = "[w]\nrw=write\nbs=8k\nsize=1g\ntime_based\nruntime=1s\nioengine=libaio\niodepth=1\n";
    let all = jobs(&format!("{readers}{writer}"));
    let writes = |scheduler: &str, queues| {
        let config = QueueConfig {
            nr_hw_queues: Some(queues),
            nr_requests: (scheduler != "none").then_some(32),
            scheduler: Some(scheduler.into()),
            max_sectors_kb: Some(64),
            ..QueueConfig::default()
        };
        let speed = Speed { bytes_per_sec: 500_000_000, parallel: 65_536, ..Speed::default() };
        let scsi = Some(ScsiSpec { lun_queue_depth: 32, can_queue: 256, dm: None });
        let r = jobs::run(sockets(1, 8), Costs::default(), &disk(1000, speed, config, scsi), &all, 1).expect("runs");
        r.stats[2].dirs[1].ios
    };
    for scheduler in ["mq-deadline", "bfq", "kyber", "none"] {
        for queues in [1, 8] {
            let n = writes(scheduler, queues);
            assert!(n >= 30, "{n} writes in a second, with {scheduler} and {queues} queues");
        }
    }
}
