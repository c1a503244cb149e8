// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Jobs on simulated machines (`--target sim:FILE`). Figures are the same each time, counts are consistent, and alarms are
//! true. A planted difference is found with the computed number of runs. Unsupported requests are rejected.

use lab::compare::{Comparison, Detect};
use lab::metric::Metric;
use lab::pairs::{CompareError, CompareSpec, SideSpec, compare};
use lab::plan::{Plan, Side};
use lab::results::{self, ResultsWriter};
use lab::run::{Run, RunSpec, Unobserved};
use lab::verdict::Verdict;
use lab::world::execute;
use std::path::{Path, PathBuf};
use workload::job::{JobFile, ParseContext};

const MACHINE: &str = "[machine]\nsockets = 1\ncores = 4\nthreads = 1\n[disk]\nattach = \"scsi\"\nsize_gib = 10\nread_us = 100\n\
                       write_us = 200\njitter_pct = 20\nparallel = 8\nlun_queue_depth = 16\nqueue_depth = 64\n[settings]\nscheduler = \"none\"\n";
const JOB: &str = "[global]\nioengine=libaio\ndirect=1\nbs=4k\ntime_based\nruntime=50ms\nrandrepeat=0\n[r]\nrw=randread\niodepth=8\nnumjobs=2\n";

/// A directory that is removed with the test.
struct Dir(PathBuf);

impl Dir {
    fn new(test: &str) -> Dir {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        format!("sim:{}", path.display())
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn parse(text: &str) -> JobFile {
    let context = ParseContext { is_target: &host::target::has_kind, ..ParseContext::bare("t.fio") };
    JobFile::parse_str(text, &context, &[]).unwrap_or_else(|e| panic!("{e}"))
}

fn settings(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn try_run<'f>(file: &'f JobFile, target: Option<&str>, set: &[(&str, &str)], entropy: u64) -> Result<Run<'f>, String> {
    let settings = settings(set);
    let stop = std::sync::Arc::default();
    let spec = RunSpec {
        file,
        target,
        settings: &settings,
        entropy,
        stop,
        trace_events: 0,
        force: false,
        slices: false,
        files: None,
    };
    execute(&spec, &mut Unobserved).map_err(|e| e.to_string())
}

fn run<'f>(file: &'f JobFile, target: &str, set: &[(&str, &str)], entropy: u64) -> Run<'f> {
    try_run(file, Some(target), set, entropy).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn a_repeated_run_gives_equal_and_consistent_figures() {
    let dir = Dir::new("sim-same");
    let target = dir.file("m.toml", MACHINE);
    let file = parse(&JOB.replace("runtime=50ms", "runtime=100ms\nramp_time=50ms"));
    let record = |entropy| run(&file, &target, &[], entropy).record(0, Side::A, true, None);
    let one = record(7);
    assert_eq!(one, record(7));
    assert_ne!(one.metrics.iops, record(8).metrics.iops, "other times of the device");
    let r = run(&file, &target, &[], 7);
    let machine = r.simulated.as_ref().expect("it is simulated");
    assert!(
        machine.text().contains("simulated machine of 4 CPUs") && machine.text().ends_with("all times are virtual")
    );
    assert!(machine.busy > 0.0 && machine.busy < 1.0 && machine.spin <= machine.busy, "{machine:?}");
    let facts = r.facts();
    // Neither count includes I/Os of the ramp, except those of the millisecond in which its end was noticed.
    assert!((facts.times.n as f64 / r.outcome.ios as f64 - 1.0).abs() < 0.05, "{} {}", facts.times.n, r.outcome.ios);
    assert!((r.outcome.measured.as_ns() as f64 / 100e6 - 1.0).abs() < 0.05, "{:?}", r.outcome.measured);
    assert_eq!(facts.hctx.len(), 4);
    let little = facts.little.expect("enough samples");
    assert!(little.error().abs() < 0.05 && (little.in_flight - 16.0).abs() < 1.0, "{little:?}");
    // 8 in flight, 100 us each.
    let iops = one.metrics.iops.unwrap();
    assert!((70_000.0..85_000.0).contains(&iops), "{iops}");
    assert!(one.metrics.cpu_per_io_ns.is_some_and(|ns| (500.0..10_000.0).contains(&ns)), "{:?}", one.metrics);
    assert!(one.job_cpu_percent.is_some_and(|p| p > 0.0 && p < 100.0));
    let value = |name: &str| r.settings[0].iter().find(|s| s.name == name).map(|s| (s.value.clone(), s.default));
    assert_eq!(value("scheduler"), Some(("none".into(), false)));
    assert_eq!(
        (value("queue_depth"), value("lun_queue_depth")),
        (Some(("64".into(), true)), Some(("16".into(), true)))
    );
}

#[test]
fn settings_go_over_those_of_the_file() {
    let dir = Dir::new("sim-settings");
    let target = dir.file("m.toml", MACHINE);
    let file = parse(JOB);
    let set = [("lun_queue_depth", "2"), ("nr_hw_queues", "1"), ("scheduler", "mq-deadline"), ("queue_depth", "32")];
    let r = run(&file, &target, &set, 1);
    assert_eq!((r.facts().hctx.len(), r.outcome.disks[0].scheduler.as_str()), (1, "mq-deadline"));
    let iops = r.metrics().iops.unwrap();
    assert!((15_000.0..21_000.0).contains(&iops), "two at a time: {iops}");
    let legacy = run(&file, &target, &[("scsi_mod.use_blk_mq", "0"), ("scheduler", "noop")], 1);
    assert!(legacy.settings[0].iter().any(|s| s.assignment() == "mode=sq"));
    let warned = run(&file, &target, &[("read_ahead_kb", "128")], 1);
    assert!(warned.warnings[0].contains("read_ahead_kb=128: no effect"), "{:?}", warned.warnings);
}

#[test]
fn what_cannot_be_is_refused_and_said_plainly() {
    let dir = Dir::new("sim-refused");
    let target = dir.file("m.toml", MACHINE);
    let plain = parse(JOB);
    let refused = |file: &JobFile, target: Option<&str>, set: &[(&str, &str)]| match try_run(file, target, set, 1) {
        Ok(_) => panic!("taken: {set:?}"),
        Err(e) => e,
    };
    let of_job = |more: &str| refused(&parse(&format!("{JOB}{more}\n")), Some(&target), &[]);
    assert!(
        of_job("verify=crc32c").starts_with("verify: a simulated machine has no data to verify; leave it out (job 'r'")
    );
    assert!(of_job("bs=2300").starts_with("bs=2300: a simulated disk has whole sectors of 512; round it (job 'r'"));
    assert!(of_job("hipri").contains("polled I/O is not simulated"));
    let trims = parse(&JOB.replace("randread", "randtrim"));
    assert!(refused(&trims, Some(&target), &[]).contains("no discard"));
    for (set, says) in [
        (("queue_depth", "0"), "queue_depth=0: must be 1..=10240"),
        (("nr_hw_queues", "5"), "nr_hw_queues=5: must be at most the stack's 4 CPUs"),
        (("nr_cpus", "8"), "[machine] of the file sets"),
        (("schedulr", "none"), "did you mean 'scheduler'?"),
        (("scheduler", "cfq9"), "cfq9"),
        (("lun_queue_depth", "0"), "lun_queue_depth=0: must be 1..="),
        (("nr_poll_queues", "1"), "polled I/O is not simulated"),
        (("iosched.read_expire", "5"), "read_expire"),
    ] {
        let e = refused(&plain, Some(&target), &[set]);
        assert!(e.contains(says), "{set:?}: {e}");
    }
    let direct = dir.file("d.toml", &MACHINE.replace("attach = \"scsi\"\n", "").replace("lun_queue_depth = 16\n", ""));
    assert!(refused(&plain, Some(&direct), &[("lun_queue_depth", "2")]).contains("only a disk with attach = \"scsi\""));
    // Errors in the file name its line.
    let bad = |text: &str| refused(&plain, Some(&dir.file("bad.toml", text)), &[]);
    let e = bad(&MACHINE.replace("cores = 4", "cores = 0"));
    assert!(e.ends_with("bad.toml:3: cores = 0: must be 1 or more"), "{e}");
    let e = bad(&format!("{MACHINE}nr_request = 4\n"));
    assert!(e.contains("bad.toml:16: nr_request: no such setting; did you mean 'nr_requests'?"), "{e}");
    assert!(refused(&plain, Some("sim:/nowhere.toml"), &[]).contains("name a machine file"));
    // One machine runs all jobs.
    let two = parse(&format!("{JOB}filename={target}\n[w]\nrw=randwrite\nfilename=null:\n"));
    assert!(refused(&two, None, &[]).contains("all jobs run on one simulated machine"));
    try_run(&parse(&format!("{JOB}filename={target}\n")), None, &[], 1).unwrap();
}

fn compared(file: &JobFile, sides: [SideSpec; 2], detect: Option<Detect>) -> Result<Comparison, CompareError> {
    let spec = CompareSpec {
        file,
        sides: sides.into(),
        judge: None,
        plan: Plan::new(Plan::MIN_PAIRS, 0, 5).unwrap(),
        entropy: 5,
        stop: std::sync::Arc::default(),
        detect,
        past: &[],
        force: false,
        slices: false,
    };
    let header = lab::results::Header {
        format: results::FORMAT,
        setup: lab::setup::Setup::default(),
        command: String::new(),
        plan: spec.plan,
        primary: spec.primary(),
        labels: vec![String::new(), String::new()],
        job: String::new(),
        started_unix_ms: 0,
        detect,
        sides: Vec::new(),
    };
    let open = || ResultsWriter::new(Vec::new(), "r".into(), &header);
    compare(&spec, open, &mut Unobserved).map(|mut all| all.remove(0))
}

fn side(target: &str, set: &[(&str, &str)]) -> SideSpec {
    let behind = target.strip_prefix("sim:").map(|path| std::fs::read_to_string(path).unwrap());
    SideSpec { label: target.to_owned(), target: Some(target.to_owned()), settings: settings(set), behind }
}

#[test]
fn a_planted_three_percent_is_detected_with_the_pairs_asked_for() {
    let dir = Dir::new("sim-planted");
    let a = dir.file("a.toml", MACHINE);
    let b = dir.file("b.toml", &MACHINE.replace("read_us = 100", "read_us = 103"));
    let file = parse(JOB);
    let detect = Some(Detect { change: 0.03, most: 100 });
    let c = compared(&file, [side(&a, &[]), side(&b, &[])], detect).unwrap();
    let ratio = c.rows[0].ratio.unwrap();
    assert_eq!(c.verdict, Verdict::BIsSlower, "{ratio:?}, {:?}", c.detected);
    assert!((ratio.ratio - 1.0 / 1.03).abs() < 0.01, "{ratio:?}");
    // Both sides of a pair have the same random numbers, so a setting without effect shows no difference at all.
    let c = compared(&file, [side(&a, &[]), side(&a, &[("io_timeout", "20000")])], None).unwrap();
    let ratio = c.rows[0].ratio.unwrap();
    assert_eq!((c.verdict, ratio.low, ratio.high), (Verdict::NoDifferenceShown, 1.0, 1.0));
    let same = compared(&file, [side(&a, &[]), side(&a, &[("read_ahead_kb", "64")])], None);
    assert!(matches!(&same, Err(CompareError::NoEffect(why)) if why.contains("page cache")), "{:?}", same.err());
}

/// A job that starts an I/O each whole millisecond, or every other, was sampled between two of its I/Os each time: util=0.
/// One I/O at a time keeps the disk busy for the sum of the I/Os' times.
#[test]
fn util_is_the_busy_time_whatever_the_phase() {
    let dir = Dir::new("sim-util");
    let mut cases = Vec::new();
    for service_us in [1u64, 3, 10, 30, 100, 250, 333, 500, 900, 999, 1000, 1001, 2500, 5000] {
        cases.extend([100u64, 250, 333, 500, 1000, 2000].map(|rate| (service_us, Some(rate))));
        cases.push((service_us, None));
    }
    for (service_us, rate) in cases {
        let target = dir.file("m.toml", &MACHINE.replace("read_us = 100", &format!("read_us = {service_us}")));
        let rate_line = rate.map_or_else(String::new, |rate| format!("rate_iops={rate}\n"));
        let runtime_ms = if rate.is_some() || service_us >= 250 { 2000 } else { 400 };
        let file = parse(&format!(
            "[r]\nrw=randread\nbs=4k\nioengine=psync\ndirect=1\ntime_based\nruntime={runtime_ms}ms\n{rate_line}"
        ));
        let run = run(&file, &target, &[], 1);
        let stats = &run.outcome.disks[0].stats;
        let elapsed_ns = run.outcome.measured.as_ns() as f64;
        let busy = stats.ops.iter().map(|o| o.time_ns).sum::<u64>() as f64 / elapsed_ns;
        let util = stats.io_ticks_ns as f64 / elapsed_ns;
        // One sample for each millisecond, as the kernel takes them.
        let error = (busy * (1.0 - busy) / (elapsed_ns / 1e6)).sqrt();
        assert!(
            (util - busy).abs() < 4.0 * error + 0.005,
            "{service_us} us, rate {rate:?}: util {util:.4}, busy {busy:.4}, standard error {error:.4}"
        );
    }
}

/// Slow tests, run by `cargo xtask test --deep`.
mod deep {
    use super::*;

    /// Pairs whose sides have different random numbers: all differences are chance.
    #[test]
    fn at_most_five_percent_of_simulated_a_a_comparisons_differ() {
        let dir = Dir::new("sim-aa");
        let target = dir.file("m.toml", MACHINE);
        let file = parse(&JOB.replace("runtime=50ms", "runtime=5ms"));
        let mut alarms = 0;
        for seed in 0..100u64 {
            let plan = Plan::new(Plan::MIN_PAIRS, 0, seed).unwrap();
            let mut records = Vec::new();
            for (i, step) in plan.steps().enumerate() {
                let r = run(&file, &target, &[], 1_000_003 * (seed + 1) + i as u64);
                records.push(r.record(step.pair.unwrap(), step.side, i.is_multiple_of(2), None));
            }
            let [a, b] = [Side::A, Side::B].map(|s| results::totals(&records, s, String::new()));
            let c = Comparison::evaluate(plan, Metric::Iops, &results::pairs(&records, 2, [Side::A, Side::B]), a, b);
            assert!(
                matches!(c.verdict, Verdict::NoDifferenceShown | Verdict::BIsFaster | Verdict::BIsSlower),
                "{}",
                c.verdict
            );
            alarms += u32::from(c.verdict.is_difference());
        }
        println!("{alarms} false alarms in 100 comparisons, seeds 0..100");
        assert!(alarms <= 5, "{alarms} false alarms in 100 comparisons, seeds 0..100");
    }
}

/// bfq served eight or more readers alone for as long as a later one waited: up to 48 s for one I/O.
#[test]
fn bfq_serves_who_comes_later_beside_many_readers() {
    let dir = Dir::new("bfq-later");
    for (readers, depth, parallel, later) in [
        (8, 2, 32, "rw=randread bs=16k iodepth=1"),
        (10, 2, 32, "rw=randread bs=16k iodepth=1"),
        (10, 1, 4, "rw=randread bs=4k iodepth=4"),
        (12, 4, 32, "rw=read bs=64k iodepth=1"),
        (10, 2, 32, "rw=randwrite bs=16k iodepth=1"),
    ] {
        let machine = format!(
            "[machine]\nsockets = 1\ncores = 8\nthreads = 1\n[disk]\nattach = \"direct\"\nsize_gib = 500\nread_us = 90\nwrite_us = 30\n\
             bw_mb = 500\nparallel = {parallel}\nqueue_depth = 1023\n"
        );
        let later = later.replace(' ', "\n");
        let file = parse(&format!(
            "[global]\nioengine=libaio\ndirect=1\ntime_based\n\
             [reader]\nrw=read\nbs=128k\niodepth={depth}\noffset_increment=20g\nnumjobs={readers}\nruntime=15\n\
             [later]\n{later}\noffset=300g\nsize=20g\nstartdelay=6\nruntime=8\n"
        ));
        let run = run(&file, &dir.file("m.toml", &machine), &[("scheduler", "bfq")], 1);
        let longest_ms: Vec<u64> =
            run.stats().map(|s| s.dirs.iter().map(|d| d.clat.run.max()).max().unwrap_or(0) / 1_000_000).collect();
        let case = format!("{readers} readers of depth {depth}, {parallel} at once, {later:?}: {longest_ms:?} ms");
        println!("{case}");
        assert!(longest_ms.len() == readers + 1 && longest_ms[readers] < 600, "{case}");
        assert!(longest_ms.iter().all(|ms| *ms < 1500), "{case}");
    }
}
