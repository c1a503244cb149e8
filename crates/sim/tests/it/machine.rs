// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole machines: the effects of the block layer's design, and that a simulation is repeatable and bounded.

use blk::driver::model::Speed;
use blk::limits::Limits;
use blk::settings::{Mode, QueueConfig};
use blk::status::BlkStatus;
use blk::time::{Duration, Instant};
use sim::machine::costs::{Costs, LineCosts, PathCosts, Shape, Waiting};
use sim::machine::device::DeviceSpec;
use sim::machine::jobs::{self, DiskSpec, JobsRun};
use sim::machine::kernel::Layer;
use sim::machine::kernel::driver::DriverKind;
use sim::machine::scsi::ScsiSpec;
use sim::machine::service::{Modelled, Service};
use sim::machine::world::Machine;
use workload::engine::{Completed, Next, StopReason};
use workload::job::{Job, JobFile, ParseContext};
use workload::load::{Load, Volume};
use workload::stats::JobStats;
use workload::verify::VerifyError;

fn jobs(text: &str) -> Vec<Job> {
    JobFile::parse_str(text, &ParseContext::bare("t.fio"), &[]).expect("valid jobs").jobs
}

fn disk(service_us: u64, speed: Speed, config: QueueConfig, scsi: Option<ScsiSpec>) -> DiskSpec {
    let service = move |_| {
        let us = Duration::from_us(service_us);
        Box::new(Modelled::new(&speed, us, us)) as Box<dyn Service>
    };
    let device = DeviceSpec { sectors: 1 << 31, limits: Limits::default() };
    DiskSpec {
        device,
        service: Box::new(service),
        luns: 1,
        spread: false,
        polled: false,
        config,
        scsi,
        layer: Layer::Mqblk,
        driver: DriverKind::Other,
    }
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

/// Waits for an I/O that it has not submitted, like a thread whose wake-up is lost.
struct Stuck(JobStats);

impl Load for Stuck {
    fn volumes(&self) -> Vec<Volume> {
        Vec::new()
    }

    fn fill_first(&mut self, _: &mut [u8]) {}

    fn next(&mut self, _: Instant) -> Next {
        Next::Reap { min: 1, max: 1 }
    }

    fn fill(&mut self, _: u32, _: &mut [u8]) {}

    fn submitted(&mut self, _: Instant) {}

    fn complete(&mut self, _: u32, _: BlkStatus, _: Instant) -> Completed {
        unreachable!("it has nothing out")
    }

    fn reaped(&mut self, _: u32) {}

    fn verify(&mut self, _: u32, _: &[u8]) -> Result<(), VerifyError> {
        unreachable!("it has nothing out")
    }

    fn stop(&mut self, _: StopReason) {}

    fn abandon(&mut self, _: Instant) {}

    fn is_ramping(&self) -> bool {
        false
    }

    fn stats(&self) -> &JobStats {
        &self.0
    }

    fn stats_mut(&mut self) -> &mut JobStats {
        &mut self.0
    }
}

/// Otherwise a caller that runs a machine in stretches of time would continue for ever.
#[test]
#[should_panic(expected = "1 threads sleep, and nothing will wake them")]
fn a_lost_wake_up_is_reported_at_once() {
    let mut machine = Machine::new(sockets(1, 1), Costs::default());
    machine.add_task(0, Box::new(Stuck(JobStats::default())), 1, &[]).expect("a thread");
    machine.run(machine.now_ns() + 1_000_000);
    assert!(machine.is_over(), "it came back from a thread that is never woken");
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

/// Two busy threads of one core do 1.2 times the work of one; two threads on different cores do twice.
#[test]
fn busy_threads_of_a_core_share_it() {
    let path = PathCosts { app_ns: 50_000, sibling_pct: 60, ..PathCosts::default() };
    let on = |cores, threads| {
        let shape = Shape { sockets: 1, cores, threads };
        iops(&random_reads(shape, Costs { path, ..Costs::default() }, &fast(Mode::Mq), 1))
    };
    // While one thread waits for the device, the other is faster.
    let (alone, cores, threads) = (on(1, 1), on(2, 1), on(1, 2));
    assert!((cores / alone - 2.0).abs() < 0.02, "{alone} {cores}");
    assert!((1.2..1.45).contains(&(threads / alone)), "{alone} {threads}");
}

/// With more threads than CPUs, completed I/Os wait for a CPU, not for a tag.
#[test]
fn waits_for_a_cpu_and_for_a_tag_are_told_apart() {
    let costs = Costs { path: PathCosts { app_ns: 100_000, ..PathCosts::default() }, ..Costs::default() };
    let run = |n: u32| {
        let text = format!("[a]\nrw=randread\nbs=4k\nnumjobs={n}\nsize=1g\ntime_based\nruntime=20ms\n");
        let run = jobs::run(sockets(1, 2), costs, &fast(Mode::Mq), &jobs(&text), 1).expect("runs");
        let (ns, reaps) = run.cpu_waits.iter().fold((0, 0), |(ns, n), w| (ns + w.ns, n + w.reaps));
        let lat = run.stats.iter().map(|s| s.dirs[0].clat.run.mean()).sum::<f64>() / f64::from(n);
        (ns as f64 / reaps as f64, lat)
    };
    let (few, many) = (run(2), run(8));
    assert!(few.0 < 1_000.0, "{few:?}");
    assert!(many.0 > 200_000.0 && many.0 < many.1 && many.1 - many.0 < 20_000.0, "{many:?}");
}

/// With a depth of one, latency is the sum of the costs of all steps.
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

/// Without interrupts a timer ends each sleep, once, and late by the time that the CPU needs to wake up.
#[test]
fn a_waiter_without_interrupts_has_a_timer() {
    let p = Costs::default().path;
    for idle_ns in [0, 40_000] {
        let costs = Costs { path: PathCosts { idle_ns, ..p }, ..Costs::default() };
        let r = random_reads(sockets(1, 1), costs, &DiskSpec { polled: true, ..fast(Mode::Mq) }, 1);
        let least = u64::from(p.irq_ns + p.wakeup_ns + idle_ns) + 10_000;
        let mean = r.stats[0].dirs[0].clat.run.mean();
        assert!((least as f64..least as f64 + 3_000.0).contains(&mean), "{least} {mean}");
        let per_io = r.events as f64 / r.disk.ops[0].ios as f64;
        assert!(per_io < 6.0, "{per_io} events per I/O");
    }
}

/// The jobs of the storvsc patch on the driver `model`: write IOPS with one and two hardware queues.
fn writer_beside_readers(polled: bool, idle_ns: u32) -> [f64; 2] {
    let global = "[global]\ntime_based\ndirect=1\nioengine=libaio\nruntime=3\n";
    let reader =
        "[r]\nbs=32k\nsize=23G\nrw=read\nnumjobs=2\niodepth=110\niodepth_batch_submit=55\niodepth_batch_complete=55\n";
    let all = jobs(&format!("{global}{reader}[w]\nbs=8k\nsize=10G\nrw=write\niodepth=1\noverwrite=1\n"));
    let path = PathCosts { idle_ns, idle_spread_ns: idle_ns / 2, ..PathCosts::default() };
    let speed = Speed { iops: 18_000, bytes_per_sec: 750 << 20, parallel: 64, ..Speed::default() };
    [1, 2].map(|nr| {
        let mut config = QueueConfig { queue_depth: 55, nr_hw_queues: Some(nr), ..QueueConfig::default() };
        for (name, value) in [("scheduler", "mq-deadline"), ("nr_requests", "55"), ("max_sectors_kb", "64")] {
            config.set(name, value).expect("a setting");
        }
        let mut spec = DiskSpec { polled, ..disk(2500, speed, config, None) };
        let limits = Limits { max_hw_sectors: 2048, max_sectors: 2048, max_segments: 256, ..Limits::default() };
        spec.device = DeviceSpec { sectors: 1 << 35, limits };
        let run = jobs::run(sockets(1, 2), Costs { path, ..Costs::default() }, &spec, &all, 1).expect("a machine");
        run.stats[2].dirs[1].ios as f64 / (run.elapsed_ns as f64 / 1e9)
    })
}

/// In real time (docs/scenarios.md) the writer got 205 to 218 with one queue and 135 to 139 with two, however late sleeps ended.
#[test]
fn a_writer_gets_what_it_gets_from_the_driver_model() {
    for idle_ns in [0, 25_000, 50_000] {
        let [one, two] = writer_beside_readers(true, idle_ns);
        assert!((200.0..220.0).contains(&one) && (135.0..147.0).contains(&two), "{idle_ns}: {one} {two}");
    }
    // With interrupts the result depends on that delay: the two ways differ.
    let [late, on_time] = [25_000, 0].map(|idle_ns| writer_beside_readers(false, idle_ns)[0]);
    assert!(late < 0.8 * on_time, "{late} {on_time}");
}

/// Two readers keep a LUN's depth full from their hardware queues; a writer has a hardware queue of its own. The writer
/// once starved for ever.
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
