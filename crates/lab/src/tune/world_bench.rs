// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A target of any world ([`crate::world`]) as a bench: our block layer here, a device of the kernel, a simulated machine.
//!
//! Guarantees: each run starts from the target's own settings and restores them, so no setting stays. Our stack is rebuilt,
//! the kernel's settings are restored, a simulated machine is a value. `iodepth` and `numjobs` belong to the load (of all
//! jobs, or `JOB.iodepth`). All other names are settings of the world, or of the target's text ([`target_knobs`]). The time
//! charged for a run is real time, even if a simulated machine runs the jobs in virtual time. Does not: change a job's ramp,
//! pattern or size.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use host::error::{Error, ErrorKind};
use host::run::{Prepared, Progress};
use host::secrets::without_secrets;
use workload::hist::{Histogram, Running};
use workload::job::{JobFile, Override, ParseContext};
use workload::schedule::Instance;
use workload::stats::JobStats;

use super::bench::{Ask, Bench, BenchError, Length, Load, Reading, Snapshot};
use super::no_effect::LeftOut;
use super::objective::{ALL_JOBS, MetricId, Quantity};
use super::point::{Knob, Point};
use super::{no_effect, target_knobs};
use crate::metric::{RunMetrics, latency_of};
use crate::run::{Observer, Run, RunSpec};
use crate::simulated::Simulated;
use crate::world::{self, World, execute};

/// Minimum time between two moments, seconds.
const MOMENT_SECONDS: f64 = 0.015;
/// Largest value of a knob of the load.
const LOAD_MAX: u32 = 65_536;
/// The knobs of the load.
const LOAD_KNOBS: [&str; 2] = ["iodepth", "numjobs"];

/// A target with its jobs as a bench.
pub struct WorldBench<'a> {
    file: JobFile,
    target: Option<String>,
    base: Vec<(String, String)>,
    /// Seconds of a short and a full run; `None`: the jobs end by themselves.
    seconds: Option<(f64, f64)>,
    stop: Arc<AtomicBool>,
    knobs: Vec<Knob>,
    without_effect: LeftOut,
    today: Vec<(String, String)>,
    rules: Vec<(String, Point)>,
    /// The first answer of [`World::behind`].
    behind: Option<String>,
    force: bool,
    observe: &'a mut dyn Observer,
}

/// The parameters of a bench.
pub struct BenchSpec {
    /// The jobs.
    pub file: JobFile,
    /// The target of every job, instead of its `filename`.
    pub target: Option<String>,
    /// Settings of every run.
    pub base: Vec<(String, String)>,
    /// Knobs of the load, with their values.
    pub free: Vec<(String, Vec<String>)>,
    /// Seconds of a short and a full run, virtual ones on a simulated machine; `None`: the jobs end by themselves.
    pub seconds: Option<(f64, f64)>,
    /// Ends the tuning early when set.
    pub stop: Arc<AtomicBool>,
    /// As [`RunSpec::force`].
    pub force: bool,
}

impl<'a> WorldBench<'a> {
    /// Opens the target once, to find out which settings it has.
    pub fn new(asked: BenchSpec, observe: &'a mut dyn Observer) -> host::error::Result<WorldBench<'a>> {
        let BenchSpec { file, target, base, free, seconds, stop, force } = asked;
        // Read before anything else, so that later changes are noticed.
        let world = world::of(&file, target.as_deref());
        let behind = world.behind(&file, target.as_deref())?;
        let (mut knobs, rules) = {
            let spec = RunSpec {
                file: &file,
                target: target.as_deref(),
                settings: &base,
                entropy: 0,
                stop: Arc::clone(&stop),
                trace_events: 0,
                force,
                slices: false,
                files: None,
            };
            world.knobs(&spec, observe)?
        };
        knobs.extend(target_knobs::knobs(target.as_deref()));
        knobs.extend(free.iter().map(|(name, values)| load_knob(&file, name, values)));
        let today = knobs.iter().filter(|k| k.when.is_none()).map(|k| (k.name.clone(), k.default.clone())).collect();
        let here = || std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let cpus = world::cpus_of(target.as_deref()).unwrap_or_else(here);
        let (knobs, without_effect) = no_effect::split(knobs, &file, cpus);
        Ok(WorldBench {
            file,
            target,
            base,
            seconds,
            stop,
            knobs,
            without_effect,
            today,
            rules,
            behind,
            force,
            observe,
        })
    }

    /// The identity of the target's device or machine, from [`World::behind`]. All runs use that one.
    pub fn behind(&self) -> Option<&str> {
        self.behind.as_deref()
    }

    /// Rejects a different device or machine of the same name.
    fn check_behind(&self) -> Result<(), BenchError> {
        let now =
            self.world().behind(&self.file, self.target.as_deref()).map_err(|e| BenchError::Failed(e.to_string()))?;
        let name = self.target.as_deref().map_or_else(String::new, without_secrets);
        match now == self.behind {
            true => Ok(()),
            false => Err(BenchError::Failed(format!(
                "target '{name}': changed during the tuning (another disk, or an edited machine file), so its runs \
                 cannot be compared; start again, or restore it and resume"
            ))),
        }
    }

    /// The target at a point.
    fn target(&self, point: &Point) -> Option<String> {
        self.target.as_deref().map(|target| target_knobs::target(target, point))
    }

    fn world(&self) -> &'static dyn World {
        world::of(&self.file, self.target.as_deref())
    }

    /// The jobs with a point's load and a length.
    fn job_file(&self, point: &Point, length: Length) -> JobFile {
        let mut file = self.file.clone();
        for job in &mut file.jobs {
            if let Some(seconds) = self.seconds {
                let seconds = if length == Length::Short { seconds.0 } else { seconds.1 };
                (job.runtime_ns, job.time_based) = (Some((seconds * 1e9) as u64), true);
            }
            for (name, value) in point.iter() {
                let Some(knob) = load_part(name, &job.name) else { continue };
                let value = value.parse().expect("checked");
                if knob == "iodepth" { job.iodepth = value } else { job.numjobs = value }
            }
        }
        file
    }

    /// Settings of the block layer at a point, which override those of every run.
    fn settings(&self, point: &Point) -> Vec<(String, String)> {
        let mut all = self.base.clone();
        for (name, value) in target_knobs::settings(point).filter(|(name, _)| !is_load_knob(name)) {
            all.retain(|(key, _)| key != name);
            all.push((name.to_owned(), value.to_owned()));
        }
        all
    }

    fn probe_file(&self, load: &Load) -> Result<JobFile, BenchError> {
        let text = format!(
            "[probe]\nrw=randread\nnorandommap\ndirect={}\nbs={}\niodepth={}\nioengine=libaio\nruntime={}ms\ntime_based\n{}",
            u8::from(self.file.jobs.iter().all(|j| j.direct)),
            load.block_bytes,
            load.iodepth,
            (load.seconds * 1000.0) as u64,
            // Without a target, the point applies to the jobs' own file.
            match &self.target {
                Some(_) => String::new(),
                None => {
                    let name = self.file.jobs[0].file_name(0, 0, &host::target::has_kind);
                    let is_target = host::target::has_kind(&name);
                    format!("filename={}\n", if is_target { name } else { name.replace(':', "\\:") })
                }
            }
        );
        let none: &[Override] = &[];
        let context = ParseContext { is_target: &host::target::has_kind, ..ParseContext::bare("probe") };
        JobFile::parse_str(&text, &context, none).map_err(|e| BenchError::Refused(e.to_string()))
    }
}

/// Whether a knob belongs to the load, and to which job: `iodepth`, `a.iodepth`.
fn load_part<'n>(name: &'n str, job: &str) -> Option<&'n str> {
    let own = name.strip_prefix(job).and_then(|rest| rest.strip_prefix('.'));
    LOAD_KNOBS
        .into_iter()
        .find_map(|knob| (name == knob || own == Some(knob)).then(|| &name[name.len() - knob.len()..]))
}

/// Whether a knob belongs to the load, of all jobs or of one, and is no setting of the target.
pub fn is_load_knob(name: &str) -> bool {
    LOAD_KNOBS.iter().any(|knob| name == *knob || name.strip_suffix(knob).is_some_and(|job| job.ends_with('.')))
}

/// Rejects a metric that no job of the file has; `flag` names the option in the message.
///
/// # Errors
/// The metric is about transactions, and no job runs any.
pub fn check_metric(file: &JobFile, flag: &str, metric: &MetricId) -> Result<(), String> {
    let mut of_job = file.jobs.iter().filter(|j| metric.job == ALL_JOBS || j.name == metric.job);
    match metric.quantity.is_of_transactions() && !of_job.any(|j| j.oltp.is_some()) {
        true => {
            Err(format!("{flag} {metric}: only jobs with workload=oltp have transactions; use iops, bw, lat or p99"))
        }
        false => Ok(()),
    }
}

/// Checks `--free NAME=VALUES`: the name and the values have to be allowed.
pub fn check_free(file: &JobFile, name: &str, values: &[String]) -> Result<(), String> {
    if !file.jobs.iter().any(|job| load_part(name, &job.name).is_some()) {
        let names: Vec<String> = file.jobs.iter().flat_map(|j| LOAD_KNOBS.map(|k| format!("{}.{k}", j.name))).collect();
        let near = blk::suggest::did_you_mean(name, LOAD_KNOBS.into_iter().chain(names.iter().map(String::as_str)));
        return Err(format!(
            "--free {name}: must be iodepth or numjobs, of all jobs, or of one: {}; {near}",
            names.join(", ")
        ));
    }
    for value in values {
        if !is_load_value(value) {
            return Err(format!("--free {name}={value}: must be 1..={LOAD_MAX}"));
        }
    }
    Ok(())
}

fn is_load_value(value: &str) -> bool {
    value.parse::<u32>().is_ok_and(|v| (1..=LOAD_MAX).contains(&v))
}

fn load_knob(file: &JobFile, name: &str, values: &[String]) -> Knob {
    let job = file.jobs.iter().find(|job| load_part(name, &job.name).is_some());
    let default = job.map_or(1, |job| if name.ends_with("iodepth") { job.iodepth } else { job.numjobs });
    Knob::new(name, default, values.iter().cloned())
}

/// Passes on the events of a run, and keeps its progress.
struct MomentRecorder<'o> {
    to: &'o mut dyn Observer,
    moments: Option<Vec<Snapshot>>,
}

impl Observer for MomentRecorder<'_> {
    fn prepared(&mut self, run: &Prepared) {
        self.to.prepared(run);
    }

    fn simulated(&mut self, machine: &Simulated, instances: &[Instance]) {
        self.to.simulated(machine, instances);
    }

    fn progress(&mut self, progress: &Progress) {
        if let Some(moments) = &mut self.moments {
            let at = progress.elapsed.as_ns() as f64 / 1e9;
            if moments.last().is_none_or(|m| at - m.at >= MOMENT_SECONDS) {
                let sum = |of: fn(&host::run::ThreadProgress) -> u64| progress.threads.iter().map(of).sum();
                moments.push(Snapshot { at, ios: sum(|t| t.ios.iter().sum()), bytes: sum(|t| t.bytes.iter().sum()) });
            }
        }
        self.to.progress(progress);
    }
}

impl Bench for WorldBench<'_> {
    fn jobs(&self) -> Vec<String> {
        let mut names: Vec<String> = self.file.jobs.iter().map(|j| j.name.clone()).collect();
        names.dedup();
        names
    }

    fn knobs(&self) -> Vec<Knob> {
        self.knobs.clone()
    }

    fn without_effect(&self) -> LeftOut {
        self.without_effect.clone()
    }

    fn today(&self) -> Vec<(String, String)> {
        self.today.clone()
    }

    fn rules(&self) -> Vec<(String, Point)> {
        self.rules.clone()
    }

    fn seconds(&self, length: Length) -> Option<f64> {
        self.seconds.map(|(short, full)| if length == Length::Short { short } else { full })
    }

    fn check(&self, point: &Point) -> Result<(), String> {
        let not_a_load = |(name, value): &(&str, &str)| is_load_knob(name) && !is_load_value(value);
        if let Some((name, value)) = point.iter().find(not_a_load) {
            return Err(format!("{name}={value}: must be 1..={LOAD_MAX}"));
        }
        self.world().check(self.target(point).as_deref(), &self.settings(point)).map_err(|e| e.to_string())
    }

    fn run(&mut self, ask: &Ask, wanted: &[MetricId]) -> Result<Reading, BenchError> {
        match self.run_once(ask, wanted) {
            Err(BenchError::Stopped) => Err(BenchError::Stopped),
            // Checked after the run: if the target has changed, neither its figures nor its refusal count.
            tried => self.check_behind().and(tried),
        }
    }
}

impl WorldBench<'_> {
    fn run_once(&mut self, ask: &Ask, wanted: &[MetricId]) -> Result<Reading, BenchError> {
        self.check(&ask.point).map_err(BenchError::Refused)?;
        let file = match &ask.load {
            Some(load) => self.probe_file(load)?,
            None => self.job_file(&ask.point, ask.length),
        };
        let (settings, target) = (self.settings(&ask.point), self.target(&ask.point));
        let spec = RunSpec {
            file: &file,
            target: target.as_deref(),
            settings: &settings,
            entropy: ask.entropy,
            force: self.force,
            slices: false,
            files: None,
            stop: Arc::clone(&self.stop),
            trace_events: 0,
        };
        let began = Instant::now();
        let mut recorder = MomentRecorder { to: &mut *self.observe, moments: ask.load.map(|_| Vec::new()) };
        let run = execute(&spec, &mut recorder).map_err(|e| failed(&e, &ask.point))?;
        let moments = recorder.moments.unwrap_or_default();
        if run.outcome.stopped || self.stop.load(Ordering::Relaxed) {
            return Err(BenchError::Stopped);
        }
        let seconds = began.elapsed().as_secs_f64();
        Ok(Reading {
            values: values(&run, &file, wanted),
            seconds,
            virtual_seconds: run.simulated.is_some().then(|| run.outcome.elapsed.as_ns() as f64 / 1e9),
            stages: Some(run.facts()).filter(|_| ask.load.is_none()),
            job_cpu_percent: run.job_cpu_percent(),
            errors: run.errors(),
            moments,
            histograms: if ask.length == Length::Full { run.histograms() } else { Vec::new() },
        })
    }
}

/// Distinguishes a point that this target rejects from a failure that affects all points.
fn failed(e: &Error, point: &Point) -> BenchError {
    match e.kind() {
        ErrorKind::Interrupted => BenchError::Stopped,
        // Only the settings differ from run to run, so the point is invalid.
        ErrorKind::Usage => BenchError::Refused(e.to_string()),
        // The kernel rejects a setting when it is written. A point without settings of its own cannot be the reason.
        ErrorKind::Refused if !point.is_empty() => BenchError::Refused(e.to_string()),
        // A server that is unreachable for a moment would fail at any point.
        _ => BenchError::Failed(e.to_string()),
    }
}

fn values(run: &Run<'_>, file: &JobFile, wanted: &[MetricId]) -> BTreeMap<String, f64> {
    let found = wanted.iter().filter_map(|m| {
        let name = Some(m.job.as_str()).filter(|j| *j != ALL_JOBS || file.jobs.iter().any(|job| job.name == ALL_JOBS));
        Some((m.to_string(), value(run, name, m.quantity)?))
    });
    found.collect()
}

fn value(run: &Run<'_>, job: Option<&str>, quantity: Quantity) -> Option<f64> {
    let metrics: RunMetrics = job.map_or_else(|| run.metrics(), |name| run.metrics_of(name));
    match quantity {
        Quantity::Iops => metrics.iops,
        Quantity::Bandwidth => metrics.bytes_per_second,
        Quantity::LatencyMean => metrics.latency_mean_ns,
        Quantity::Percentile(tenths) => percentile(run, job, tenths),
        Quantity::Transactions => metrics.tps,
        Quantity::TransactionsPerMinute => metrics.tps.map(|tps| 60.0 * tps),
        Quantity::TransactionMean => metrics.tx_mean_ns,
        Quantity::TransactionP99 => metrics.tx_p99_ns,
        Quantity::CommitMean => metrics.commit_mean_ns,
        Quantity::CpuPerIo => match job {
            None => metrics.cpu_per_io_ns,
            Some(_) => {
                let (cpu, ios) = run.threads_of(job).fold((0, 0), |(cpu, ios), s: &JobStats| {
                    (cpu + s.cpu.usr_ns + s.cpu.sys_ns, ios + s.dirs.iter().map(|d| d.ios).sum::<u64>())
                });
                (cpu > 0 && ios > 0).then(|| cpu as f64 / ios as f64)
            }
        },
    }
}

/// A percentile over all directions; `None` with too few samples above it to mean more than the maximum.
fn percentile(run: &Run<'_>, job: Option<&str>, tenths: u16) -> Option<f64> {
    let (mut all, mut any) = (Histogram::new(), Running::new());
    for d in run.threads_of(job).flat_map(|s| &s.dirs).filter(|d| d.ios > 0) {
        let lat = latency_of(d);
        any.merge(&lat.run);
        all.merge(lat.hist.as_deref()?);
    }
    let above = all.total() as f64 * f64::from(1000 - tenths) / 1000.0;
    (above >= 1.0).then(|| all.percentile(f64::from(tenths) / 10.0) as f64).filter(|v| *v > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Unobserved;

    fn bench<'a>(observe: &'a mut Unobserved, free: &[(&str, &[&str])]) -> WorldBench<'a> {
        let text = "[global]\nrw=randread\nbs=4k\nsize=64m\nioengine=libaio\niodepth=4\n[a]\n[b]\niodepth=8\n";
        let file = JobFile::parse_str(text, &ParseContext::bare("t.fio"), &[]).unwrap_or_else(|e| panic!("{e}"));
        let free: Vec<(String, Vec<String>)> =
            free.iter().map(|(n, v)| ((*n).to_owned(), v.iter().map(|v| (*v).to_owned()).collect())).collect();
        let target = Some("model:size=1g,lat_us=100,parallel=8".to_owned());
        let base = vec![("nr_cpus".into(), "4".into())];
        let (seconds, stop) = (Some((1.0, 1.0)), Arc::default());
        let spec = BenchSpec { file, target, base, free, seconds, stop, force: false };
        WorldBench::new(spec, observe).unwrap()
    }

    #[test]
    fn points_are_run_and_measured() {
        let mut unobserved = Unobserved;
        let mut bench = bench(&mut unobserved, &[("b.iodepth", &["1", "32"])]);
        let names: Vec<String> = bench.knobs().iter().map(|k| format!("{}={}", k.name, k.default)).collect();
        assert!(names.contains(&"nr_hw_queues=4".to_owned()) && names.contains(&"b.iodepth=8".to_owned()), "{names:?}");
        let jobs = bench.jobs();
        let wanted: Vec<MetricId> =
            ["a.iops", "all.iops", "b.p95", "a.cpu", "all.bw"].map(|m| MetricId::parse(m, &jobs).unwrap()).into();
        let ask = |point: Point| Ask { point, length: Length::Short, load: None, entropy: 1 };
        let r = bench.run(&ask(Point::of(&[("b.iodepth", "1"), ("nr_hw_queues", "1")])), &wanted).unwrap();
        let got = |i: usize| r.get(&wanted[i]);
        assert!(got(0).unwrap() < got(1).unwrap() && got(2).is_some() && got(3).is_some(), "{:?}", r.values);
        assert!((got(4).unwrap() / got(1).unwrap() - 4096.0).abs() < 1.0);
        assert_eq!(r.stages.unwrap().hctx.len(), 1);
        assert!(
            bench.check(&Point::of(&[("nr_requests", "256"), ("queue_depth", "32"), ("nr_hw_queues", "9")])).is_err()
        );
        assert!(bench.check(&Point::of(&[("b.iodepth", "many")])).is_err());
        assert!(matches!(bench.run(&ask(Point::of(&[("nr_hw_queues", "9")])), &wanted), Err(BenchError::Refused(_))));
    }

    #[test]
    fn only_a_setting_that_is_refused_is_held_against_a_point() {
        let (point, none) = (Point::of(&[("nr_requests", "9")]), Point::default());
        let of = |kind, point: &Point| failed(&Error::new(kind, "x"), point);
        assert_eq!(of(ErrorKind::Refused, &point), BenchError::Refused("x".into()));
        assert_eq!(of(ErrorKind::Refused, &none), BenchError::Failed("x".into()));
        assert_eq!(of(ErrorKind::Io, &point), BenchError::Failed("x".into()));
        assert_eq!(of(ErrorKind::Usage, &point), BenchError::Refused("x".into()));
    }

    #[test]
    fn editing_the_machine_file_between_runs_ends_the_search() {
        let path = std::env::temp_dir().join(format!("mqblk-behind-{}.toml", std::process::id()));
        let machine = "[machine]\nsockets = 1\ncores = 2\nthreads = 1\n[disk]\nsize_gib = 1\nread_us = 100\nwrite_us = 100\nparallel = 8\n";
        std::fs::write(&path, machine).unwrap();
        let text = "[a]\nrw=randread\nbs=4k\nsize=64m\nioengine=libaio\niodepth=4\ntime_based\nruntime=5ms\n";
        let file = JobFile::parse_str(text, &ParseContext::bare("t.fio"), &[]).unwrap_or_else(|e| panic!("{e}"));
        let target = Some(format!("sim:{}", path.display()));
        let (base, free, stop) = (Vec::new(), Vec::new(), Arc::default());
        let mut unobserved = Unobserved;
        let spec = BenchSpec { file, target, base, free, seconds: Some((0.005, 0.01)), stop, force: false };
        let mut bench = WorldBench::new(spec, &mut unobserved).unwrap();
        let ask = Ask { point: Point::default(), length: Length::Short, load: None, entropy: 1 };
        let read = bench.run(&ask, &[]).unwrap();
        assert!(read.virtual_seconds.is_some_and(|s| (0.004..0.02).contains(&s)), "{read:?}");
        // A different machine and an invalid one: neither gives a reading or a rejection of the point.
        for edited in [machine.replace("read_us = 100", "read_us = 900"), "[machine".to_owned()] {
            std::fs::write(&path, edited).unwrap();
            let Err(BenchError::Failed(why)) = bench.run(&ask, &[]) else { panic!("it went on") };
            assert!(why.contains("changed during the tuning"), "{why}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn loads_are_knobs_only_by_their_names() {
        assert_eq!((load_part("iodepth", "a"), load_part("a.numjobs", "a")), (Some("iodepth"), Some("numjobs")));
        assert_eq!((load_part("b.iodepth", "a"), load_part("queue_depth", "a")), (None, None));
        assert!(is_load_knob("x.iodepth") && is_load_knob("numjobs") && !is_load_knob("iosched.fifo_batch"));
        let mut unobserved = Unobserved;
        let file = bench(&mut unobserved, &[]).file;
        assert!(check_free(&file, "iodept", &[]).unwrap_err().contains("did you mean 'iodepth'?"));
        assert!(check_free(&file, "iodepth", &["0".into()]).unwrap_err().ends_with("must be 1..=65536"));
        check_free(&file, "b.iodepth", &["4".into()]).unwrap();
    }
}
