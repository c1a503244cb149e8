// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How near a tuning comes to the best settings, on simulated machines whose settings can all be tried.
//!
//! Each case is a machine, its jobs, a goal and two to four knobs. The optimum is the best of all combinations of their
//! values: for a number all powers of two in its range, and the ends. Both figures, the optimum's and the found one's, come
//! from the same runs, which the tuning did not see.

use lab::run::Unobserved;
use lab::tune::bench::{Ask, Bench, BenchError, Length};
use lab::tune::journal::{NoWatch, Recorder, TunePlan};
use lab::tune::objective::{Goal, Keep, MetricId, Quantity};
use lab::tune::outcome::TuneResult;
use lab::tune::point::{self, Knob, Point, tidy};
use lab::tune::search;
use lab::tune::world_bench::{BenchSpec, WorldBench};
use std::sync::atomic::{AtomicUsize, Ordering};
use workload::job::{JobFile, ParseContext};

/// A machine and its tuning.
struct Case {
    name: &'static str,
    /// CPUs, and the lines of `[disk]` and `[settings]`, `;` between them.
    cpus: u32,
    disk: &'static str,
    settings: &'static str,
    /// Sections of a job file, `;` between lines.
    jobs: &'static str,
    goal: &'static str,
    keep: &'static str,
    knobs: &'static str,
    /// Virtual milliseconds of a full run.
    ms: u32,
}

/// Random numbers of the runs that order the combinations, and of those that give figures.
const FIRST: std::ops::Range<u64> = 1001..1002;
const SECOND: std::ops::Range<u64> = 2001..2005;
/// Combinations with figures.
const RERUN: usize = 12;

fn lines(text: &str) -> String {
    text.split(';').map(|l| format!("{}\n", l.trim())).collect()
}

impl Case {
    fn file(&self) -> JobFile {
        let text = format!("[global]\nioengine=libaio\ndirect=1\ntime_based\nruntime=1\n{}", lines(self.jobs));
        JobFile::parse_str(&text, &ParseContext::bare("t.fio"), &[]).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    fn machine(&self) -> String {
        let (cpus, disk, settings) = (self.cpus, lines(self.disk), lines(self.settings));
        format!(
            "[machine]\nsockets = 1\ncores = {cpus}\nthreads = 1\n[disk]\nsize_gib = 64\n{disk}[settings]\n{settings}"
        )
    }

    /// Seconds of a short and a full run.
    fn seconds(&self) -> (f64, f64) {
        let full = f64::from(self.ms) / 1000.0;
        (full / 4.0, full)
    }

    fn goal_quantity(&self) -> Quantity {
        let metric = self.goal.split_once(' ').and_then(|(_, m)| m.split_once('.')).unwrap().1;
        MetricId::parse(&format!("all.{metric}"), &[]).unwrap().quantity
    }

    fn plan(&self, bench: &WorldBench<'_>) -> TunePlan {
        let (direction, metric) = self.goal.split_once(' ').unwrap();
        let jobs = bench.jobs();
        let only: Vec<(String, Vec<String>)> =
            self.knobs.split_whitespace().map(|name| (name.to_owned(), Vec::new())).collect();
        let knobs = point::narrow(bench.knobs(), &only, &[]).unwrap_or_else(|e| panic!("{}: {e}", self.name));
        let has = |name: &str| knobs.iter().any(|k| k.name == name);
        TunePlan {
            goal: Goal::parse(direction == "maximize", metric, &jobs).unwrap(),
            keeps: self.keep.split_whitespace().map(|k| Keep::parse(k, &jobs).unwrap()).collect(),
            rules: bench.rules().into_iter().filter(|(_, p)| p.iter().all(|(name, _)| has(name))).collect(),
            knobs,
            without_effect: bench.without_effect(),
            today: bench.today(),
            base: Vec::new(),
            target: "sim:m.toml".into(),
            behind: None,
            seed: 7,
            // The search ends by itself: real time decides nothing.
            budget_seconds: 36_000.0,
            detect: 0.03,
            run_seconds: Some(self.seconds()),
            job: String::new(),
        }
    }
}

/// All values of a knob: every power of two in its range, and the ends; for a tunable of an elevator, from a sixteenth to
/// sixteen times its default.
fn values(knob: &Knob) -> Vec<String> {
    let mut all = knob.values.clone();
    if let Some((low, high)) = knob.range {
        let tunable = knob.default.parse().ok().filter(|_| knob.name.starts_with("iosched."));
        let powers = |from: u64, n: u32| (0..n).map(move |i| from << i);
        let steps: Vec<u64> = tunable.map_or_else(|| powers(1, 32).collect(), |v: u64| powers(v / 16, 9).collect());
        all.extend(steps.into_iter().filter(|v| (low..=high).contains(v)).map(|v| v.to_string()));
    }
    all.push(knob.default.clone());
    all.sort();
    all.dedup();
    all
}

/// All combinations of the values.
fn combinations(knobs: &[Knob]) -> Vec<Point> {
    let mut points = vec![Point::default()];
    for knob in knobs {
        points = points.iter().flat_map(|p| values(knob).into_iter().map(move |v| p.with(knob, &v))).collect();
    }
    points = points.into_iter().map(|p| tidy(&p, knobs)).collect();
    points.sort();
    points.dedup();
    points
}

/// Figures of the goal and the limits in a run: geometric means over `entropies`; `None` if the target rejects the point.
fn figures(
    bench: &mut WorldBench<'_>,
    plan: &TunePlan,
    point: &Point,
    entropies: std::ops::Range<u64>,
) -> Option<(f64, Vec<f64>)> {
    let n = (entropies.end - entropies.start) as f64;
    let (mut goal, mut keeps) = (0.0, vec![0.0; plan.keeps.len()]);
    for entropy in entropies {
        let ask = Ask { point: point.clone(), length: Length::Full, load: None, entropy };
        let reading = match bench.run(&ask, &plan.wanted()) {
            Ok(reading) => reading,
            Err(BenchError::Refused(_)) => return None,
            Err(e) => panic!("{point}: {e}"),
        };
        goal += reading.get(&plan.goal.metric)?.ln() / n;
        for (sum, keep) in keeps.iter_mut().zip(&plan.keeps) {
            *sum += reading.get(&keep.metric)?.ln() / n;
        }
    }
    Some((goal.exp(), keeps.into_iter().map(f64::exp).collect()))
}

struct Found {
    optimum: (Point, f64),
    result: TuneResult,
    value: f64,
    default: f64,
    combinations: usize,
    /// How much worse than the optimum, as a share.
    gap: f64,
    /// The smallest margin to a limit, as a logarithm.
    margin: f64,
    headline: String,
}

fn measure(case: &Case) -> Found {
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = dir.join(format!("optimum-{}-{}.toml", case.name.replace(' ', "-"), std::process::id()));
    std::fs::write(&path, case.machine()).unwrap();
    let mut unobserved = Unobserved;
    let spec = BenchSpec {
        file: case.file(),
        target: Some(format!("sim:{}", path.display())),
        base: Vec::new(),
        free: Vec::new(),
        seconds: Some(case.seconds()),
        stop: std::sync::Arc::default(),
        force: false,
    };
    let mut bench = WorldBench::new(spec, &mut unobserved).unwrap_or_else(|e| panic!("{}: {e}", case.name));
    let plan = case.plan(&bench);
    let (default, kept_by_default) = figures(&mut bench, &plan, &Point::default(), SECOND).unwrap();
    let margin = |kept: &[f64]| {
        let all = plan.keeps.iter().zip(&kept_by_default).zip(kept);
        all.map(|((k, d), v)| k.margin(*d, *v)).fold(f64::INFINITY, f64::min)
    };
    let all = combinations(&plan.knobs);
    // The best of many runs is partly luck, so the best ones run again.
    let mut first: Vec<(f64, &Point)> = Vec::new();
    for point in &all {
        let found = figures(&mut bench, &plan, point, FIRST).filter(|(_, kept)| margin(kept) >= 0.0);
        first.extend(found.map(|(value, _)| (plan.goal.gain(default, value), point)));
    }
    first.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut optimum = (Point::default(), default);
    for (_, point) in first.iter().take(RERUN) {
        if let Some((value, kept)) = figures(&mut bench, &plan, point, SECOND)
            && margin(&kept) >= 0.0
            && plan.goal.gain(optimum.1, value) > 0.0
        {
            optimum = ((*point).clone(), value);
        }
    }
    let result = {
        let (mut watch, mut out) = (NoWatch, Vec::new());
        let mut rec = Recorder::new(&mut bench, &mut watch, &mut out, Vec::new(), &plan);
        search::tune(&plan, &mut rec).unwrap_or_else(|e| panic!("{}: {e}", case.name))
    };
    let (value, kept) = figures(&mut bench, &plan, &result.winner, SECOND).unwrap();
    std::fs::remove_file(&path).unwrap();
    let gap = -plan.goal.gain(optimum.1, value).exp_m1();
    let headline = lab::tune::report::headline(&plan, &result);
    Found { headline, optimum, margin: margin(&kept), result, value, default, combinations: all.len(), gap }
}

/// Slow tests, run by `cargo xtask test --deep`.
mod deep {
    use super::*;

    const CASES: &[Case] = &[
        Case {
            name: "sata lowered depth",
            cpus: 4,
            disk: "attach=\"scsi\"; hw_queues=1; queue_depth=32; read_us=90; write_us=60; parallel=32; jitter_pct=20",
            settings: "lun_queue_depth=4",
            jobs: "[a]; rw=randread; bs=4k; iodepth=64",
            goal: "maximize a.iops",
            keep: "",
            knobs: "lun_queue_depth nr_requests scheduler",
            ms: 60,
        },
        Case {
            name: "sata database beside bulk",
            cpus: 4,
            disk: "attach=\"scsi\"; hw_queues=1; queue_depth=32; read_us=90; write_us=60; parallel=8; bw_mb=500; jitter_pct=20",
            settings: "",
            jobs: "[db]; rw=randread; bs=8k; iodepth=1; [bulk]; rw=write; bs=256k; iodepth=32; offset=32g; size=16g",
            goal: "minimize db.lat",
            keep: "bulk.bw>=80%",
            knobs: "lun_queue_depth nr_requests scheduler",
            ms: 400,
        },
        Case {
            name: "sata mixed writes",
            cpus: 2,
            disk: "attach=\"scsi\"; hw_queues=1; queue_depth=32; read_us=200; write_us=2000; parallel=4; jitter_pct=30",
            settings: "",
            jobs: "[r]; rw=randread; bs=4k; iodepth=4; [w]; rw=randwrite; bs=4k; iodepth=32; offset=32g; size=16g",
            goal: "minimize r.lat",
            keep: "w.iops>=70%",
            knobs: "scheduler lun_queue_depth nr_requests",
            ms: 400,
        },
        Case {
            name: "sata sequential small",
            cpus: 2,
            disk: "attach=\"scsi\"; hw_queues=1; queue_depth=32; read_us=100; write_us=100; parallel=4; iops=20000; bw_mb=500",
            settings: "scheduler=\"none\"",
            jobs: "[a]; rw=read; bs=4k; iodepth=64",
            goal: "maximize a.iops",
            keep: "",
            knobs: "scheduler nomerges lun_queue_depth",
            ms: 60,
        },
        Case {
            name: "sas array lun",
            cpus: 8,
            disk: "attach=\"scsi\"; queue_depth=256; lun_queue_depth=8; read_us=300; write_us=150; parallel=128; iops=150000; jitter_pct=30",
            settings: "",
            jobs: "[a]; rw=randrw; bs=8k; iodepth=32; numjobs=4",
            goal: "maximize a.iops",
            keep: "",
            knobs: "lun_queue_depth nr_hw_queues nr_requests",
            ms: 60,
        },
        Case {
            name: "sas array latency",
            cpus: 8,
            disk: "attach=\"scsi\"; queue_depth=256; read_us=300; write_us=150; parallel=32; jitter_pct=30",
            settings: "",
            jobs: "[db]; rw=randread; bs=8k; iodepth=4; [bulk]; rw=randread; bs=64k; iodepth=64; offset=32g; size=16g",
            goal: "minimize db.lat",
            keep: "bulk.bw>=60%",
            knobs: "lun_queue_depth scheduler nr_hw_queues",
            ms: 100,
        },
        Case {
            name: "large requests per-request cap",
            cpus: 4,
            disk: "attach=\"scsi\"; queue_depth=64; read_us=500; write_us=500; parallel=16; iops=1000; bw_mb=4000; burst_ms=1",
            settings: "max_sectors_kb=128; scheduler=\"none\"",
            jobs: "[a]; rw=write; bs=1m; iodepth=16",
            goal: "maximize a.bw",
            keep: "",
            knobs: "max_sectors_kb lun_queue_depth",
            ms: 400,
        },
        Case {
            name: "large requests bandwidth cap",
            cpus: 4,
            disk: "attach=\"scsi\"; queue_depth=64; read_us=500; write_us=500; parallel=16; bw_mb=800; burst_ms=1",
            settings: "max_sectors_kb=64; scheduler=\"none\"",
            jobs: "[a]; rw=read; bs=512k; iodepth=8",
            goal: "maximize a.bw",
            keep: "",
            knobs: "max_sectors_kb lun_queue_depth nr_requests",
            ms: 200,
        },
        Case {
            name: "azure-like split disk",
            cpus: 8,
            disk: "attach=\"scsi\"; split=true; queue_depth=512; lun_queue_depth=64; read_us=400; write_us=900; iops=20000; bw_mb=700; jitter_pct=10",
            settings: "scheduler=\"mq-deadline\"; nr_hw_queues=8",
            jobs: "[seq_read]; rw=read; bs=32k; iodepth=64; numjobs=2; size=16g; [seq_write]; rw=write; bs=8k; iodepth=1; offset=40g; size=8g",
            goal: "maximize seq_write.iops",
            keep: "seq_read.bw>=95%",
            knobs: "nr_hw_queues lun_queue_depth nr_requests",
            ms: 200,
        },
        Case {
            name: "cloud burst latency",
            cpus: 4,
            disk: "attach=\"scsi\"; queue_depth=256; read_us=600; write_us=900; iops=8000; burst_ms=20; jitter_pct=20",
            settings: "",
            jobs: "[a]; rw=randread; bs=8k; iodepth=64",
            goal: "minimize a.lat",
            keep: "a.iops>=95%",
            knobs: "lun_queue_depth nr_requests scheduler",
            ms: 400,
        },
        Case {
            name: "nvme few tags",
            cpus: 8,
            disk: "queue_depth=1023; read_us=80; write_us=20; parallel=256; jitter_pct=20",
            settings: "queue_depth=8",
            jobs: "[a]; rw=randread; bs=4k; iodepth=64; numjobs=4",
            goal: "maximize a.iops",
            keep: "",
            knobs: "queue_depth nr_hw_queues",
            ms: 16,
        },
        Case {
            name: "nvme database beside bulk",
            cpus: 8,
            disk: "queue_depth=1023; read_us=80; write_us=20; parallel=64; bw_mb=2000; jitter_pct=20",
            settings: "",
            jobs: "[db]; rw=randread; bs=8k; iodepth=4; rate_iops=200; [bulk]; rw=write; bs=128k; iodepth=128; offset=32g; size=16g",
            goal: "minimize db.lat",
            keep: "bulk.bw>=90%",
            knobs: "queue_depth scheduler",
            ms: 60,
        },
        Case {
            name: "nvme odd number of tags",
            cpus: 4,
            disk: "queue_depth=700; read_us=100; write_us=30; parallel=600; jitter_pct=20",
            settings: "queue_depth=100; nr_hw_queues=1",
            jobs: "[a]; rw=randread; bs=4k; iodepth=512; numjobs=2",
            goal: "maximize a.iops",
            keep: "",
            knobs: "queue_depth nr_requests scheduler",
            ms: 12,
        },
        Case {
            name: "nvme one queue left",
            cpus: 16,
            disk: "queue_depth=255; read_us=70; write_us=20; parallel=256; jitter_pct=20",
            settings: "nr_hw_queues=1",
            jobs: "[a]; rw=randread; bs=4k; iodepth=32; numjobs=16",
            goal: "maximize a.iops",
            keep: "",
            knobs: "nr_hw_queues queue_depth",
            ms: 12,
        },
        Case {
            name: "nvme few hardware queues",
            cpus: 16,
            disk: "hw_queues=4; queue_depth=64; read_us=70; write_us=20; parallel=256; jitter_pct=20",
            settings: "nr_hw_queues=2; queue_depth=16",
            jobs: "[a]; rw=randread; bs=4k; iodepth=16; numjobs=16",
            goal: "maximize a.iops",
            keep: "",
            knobs: "nr_hw_queues queue_depth rq_affinity",
            ms: 12,
        },
        Case {
            name: "nvme elevator in the way",
            cpus: 8,
            disk: "queue_depth=1023; read_us=12; write_us=12; parallel=128",
            settings: "scheduler=\"bfq\"",
            jobs: "[a]; rw=randrw; bs=4k; iodepth=32; numjobs=8",
            goal: "maximize a.iops",
            keep: "",
            knobs: "scheduler nr_hw_queues rq_affinity",
            ms: 12,
        },
        Case {
            name: "nvme kyber targets",
            cpus: 4,
            disk: "queue_depth=256; read_us=100; write_us=400; parallel=32; jitter_pct=30",
            settings: "scheduler=\"kyber\"",
            jobs: "[r]; rw=randread; bs=4k; iodepth=8; [w]; rw=randwrite; bs=16k; iodepth=64; offset=32g; size=16g",
            goal: "minimize r.lat",
            keep: "w.iops>=50%",
            knobs: "iosched.read_lat_nsec iosched.write_lat_nsec nr_requests",
            ms: 100,
        },
        Case {
            name: "virtio one queue many threads",
            cpus: 8,
            disk: "hw_queues=1; queue_depth=128; read_us=60; write_us=60; parallel=64; jitter_pct=20",
            settings: "queue_depth=32",
            jobs: "[a]; rw=randrw; bs=4k; iodepth=8; numjobs=8",
            goal: "maximize a.iops",
            keep: "",
            knobs: "queue_depth nr_requests scheduler",
            ms: 24,
        },
        Case {
            name: "virtio four queues",
            cpus: 8,
            disk: "hw_queues=4; queue_depth=256; read_us=60; write_us=60; parallel=128; jitter_pct=20",
            settings: "nr_hw_queues=1; queue_depth=64",
            jobs: "[a]; rw=randread; bs=4k; iodepth=16; numjobs=8",
            goal: "maximize a.iops",
            keep: "",
            knobs: "nr_hw_queues queue_depth scheduler",
            ms: 24,
        },
        Case {
            name: "virtio latency of a sync writer",
            cpus: 4,
            disk: "hw_queues=1; queue_depth=128; read_us=150; write_us=250; parallel=4; jitter_pct=20",
            settings: "",
            jobs: "[log]; rw=write; bs=4k; ioengine=psync; [r]; rw=randread; bs=32k; iodepth=64; offset=32g; size=16g",
            goal: "minimize log.lat",
            keep: "r.bw>=70%",
            knobs: "queue_depth scheduler nr_requests",
            ms: 200,
        },
        Case {
            name: "virtio iops cap",
            cpus: 2,
            disk: "hw_queues=1; queue_depth=256; read_us=200; write_us=200; iops=5000; burst_ms=10",
            settings: "",
            jobs: "[a]; rw=randread; bs=4k; iodepth=128",
            goal: "minimize a.lat",
            keep: "a.iops>=98%",
            knobs: "queue_depth nr_requests",
            ms: 400,
        },
        Case {
            name: "hard disk deadlines",
            cpus: 2,
            disk: "attach=\"scsi\"; hw_queues=1; queue_depth=32; read_us=3000; write_us=4000; parallel=1; jitter_pct=40",
            settings: "scheduler=\"mq-deadline\"",
            jobs: "[r]; rw=randread; bs=4k; iodepth=2; [w]; rw=randwrite; bs=4k; iodepth=32; offset=32g; size=16g",
            goal: "minimize r.lat",
            keep: "w.iops>=40%",
            knobs: "iosched.writes_starved iosched.fifo_batch lun_queue_depth",
            ms: 4000,
        },
        Case {
            name: "hard disk elevators",
            cpus: 2,
            disk: "attach=\"scsi\"; hw_queues=1; queue_depth=32; read_us=3000; write_us=4000; parallel=1; bw_mb=4000; jitter_pct=40",
            settings: "",
            jobs: "[r]; rw=randread; bs=4k; iodepth=1; [s]; rw=read; bs=64k; iodepth=8; offset=32g; size=16g",
            goal: "minimize r.lat",
            keep: "s.bw>=50%",
            knobs: "scheduler lun_queue_depth nr_requests",
            ms: 4000,
        },
        Case {
            name: "emmc",
            cpus: 4,
            disk: "attach=\"mmc\"; queue_depth=2; read_us=300; write_us=1000; parallel=1; bw_mb=110",
            settings: "",
            jobs: "[a]; rw=read; bs=16k; iodepth=16",
            goal: "maximize a.bw",
            keep: "",
            knobs: "nr_requests max_sectors_kb scheduler",
            ms: 400,
        },
        Case {
            name: "oltp transactions",
            cpus: 8,
            disk: "queue_depth=64; read_us=100; write_us=50; parallel=32; jitter_pct=20",
            settings: "queue_depth=4; nr_hw_queues=1",
            jobs: "[db]; workload=oltp; users=16; bs=8k; size=8g; redo_size=1g; reads_per_tx=8",
            goal: "maximize db.tps",
            keep: "",
            knobs: "queue_depth nr_hw_queues scheduler",
            ms: 60,
        },
        Case {
            name: "oltp commit latency",
            cpus: 4,
            disk: "attach=\"scsi\"; hw_queues=1; queue_depth=32; read_us=120; write_us=80; parallel=8; bw_mb=4000; jitter_pct=20",
            settings: "",
            jobs: "[db]; workload=oltp; users=8; bs=8k; size=8g; redo_size=1g; reads_per_tx=8; [scan]; rw=read; bs=256k; iodepth=16; offset=40g; size=16g",
            goal: "minimize db.commit",
            keep: "scan.bw>=50%",
            knobs: "lun_queue_depth scheduler nr_requests",
            ms: 200,
        },
        Case {
            name: "fast device small depth",
            cpus: 4,
            disk: "queue_depth=128; read_us=8; write_us=8; parallel=8",
            settings: "",
            jobs: "[a]; rw=randread; bs=4k; iodepth=32; numjobs=4",
            goal: "minimize a.lat",
            keep: "a.iops>=97%",
            knobs: "queue_depth nr_hw_queues",
            ms: 20,
        },
        Case {
            name: "two queues unequal",
            cpus: 4,
            disk: "hw_queues=2; queue_depth=16; read_us=100; write_us=100; parallel=24; jitter_pct=10",
            settings: "nr_hw_queues=1",
            jobs: "[a]; rw=randread; bs=4k; iodepth=32; numjobs=2",
            goal: "maximize a.iops",
            keep: "",
            knobs: "nr_hw_queues queue_depth scheduler",
            ms: 60,
        },
        Case {
            name: "merging writer beside reads",
            cpus: 4,
            disk: "attach=\"scsi\"; hw_queues=1; queue_depth=64; read_us=150; write_us=150; parallel=4; iops=15000; bw_mb=400",
            settings: "",
            jobs: "[w]; rw=write; bs=8k; iodepth=64; size=16g; [r]; rw=randread; bs=4k; iodepth=2; offset=32g; size=16g",
            goal: "maximize w.bw",
            keep: "r.iops>=90%",
            knobs: "scheduler nomerges lun_queue_depth",
            ms: 100,
        },
        Case {
            name: "nothing to gain",
            cpus: 4,
            disk: "queue_depth=256; read_us=100; write_us=100; parallel=16; jitter_pct=20",
            settings: "",
            jobs: "[a]; rw=randread; bs=4k; iodepth=16",
            goal: "maximize a.iops",
            keep: "",
            knobs: "queue_depth nr_hw_queues scheduler",
            ms: 60,
        },
    ];

    #[test]
    fn found_settings_are_within_three_percent_of_the_optimum() {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            while let Some((i, case)) =
                Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, CASES.get(i)?)))
            {
                done.push((i, row(case)));
            }
            done
        };
        let mut rows: Vec<(usize, (bool, String))> = std::thread::scope(|s| {
            let threads = [s.spawn(work), s.spawn(work)];
            threads.into_iter().flat_map(|t| t.join().expect("no panic")).collect()
        });
        rows.sort();
        let table: String = rows.iter().map(|(_, (_, text))| text.as_str()).collect();
        let near = rows.iter().filter(|(_, (is_near, _))| *is_near).count();
        println!("{table}{near} of {}", CASES.len());
        assert!(near + 2 >= CASES.len(), "{near} of {}:\n{table}", CASES.len());
    }

    /// Whether the tuning came near the optimum, and its row of the table.
    fn row(case: &Case) -> (bool, String) {
        let f = measure(case);
        let is_near = f.gap <= 0.03 && f.margin >= -0.01;
        let show = |value: f64| case.goal_quantity().show(value);
        let text = format!(
            "{}{}: of {} settings the best is {} ({}), found {} ({}), default {}: {:.1} % worse, {:?} after {} runs\n",
            if is_near { "" } else { "MISSED " },
            case.name,
            f.combinations,
            show(f.optimum.1),
            f.optimum.0,
            show(f.value),
            f.result.winner,
            show(f.default),
            100.0 * f.gap,
            f.result.verdict,
            f.result.runs,
        );
        let text = if is_near { text } else { format!("{text}  ({})\n", f.headline) };
        (is_near, text)
    }
}
