// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Our block layer on this machine as a bench: each run is a fresh stack on the target with the settings of its point.
//!
//! Guarantees: nothing outlives a run, so nothing is left set. `iodepth` and `numjobs` are the load's (of all jobs, or
//! `JOB.iodepth`); all other names are settings of the block layer. Does not: change a job's ramp, pattern or size.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use host::error::ErrorKind;
use host::run::{Prepared, Progress, RunPlan};
use workload::hist::{Histogram, Running};
use workload::job::{JobFile, Override, ParseContext};
use workload::stats::JobStats;

use super::bench::{Ask, Bench, BenchError, Length, Load, Moment, Reading};
use super::host_knobs;
use super::objective::{ALL_JOBS, MetricId, Quantity};
use super::point::{Knob, Point};
use crate::metric::{RunMetrics, latency_of};
use crate::run::{Observer, Run, RunSpec, execute};
use crate::stack;
use crate::world;

/// Least distance of two moments, seconds.
const MOMENT_SECONDS: f64 = 0.015;
/// Largest value of one of the load's own knobs.
const LOAD_MAX: u32 = 65_536;
/// The load's own knobs.
const LOAD_KNOBS: [&str; 2] = ["iodepth", "numjobs"];

/// What is run where.
pub struct HostBench<'a> {
    file: JobFile,
    target: Option<String>,
    base: Vec<(String, String)>,
    /// Seconds of a short and a full run; `None`: the jobs end by themselves.
    seconds: Option<(f64, f64)>,
    stop: Arc<AtomicBool>,
    knobs: Vec<Knob>,
    rules: Vec<(String, Point)>,
    observe: &'a mut dyn Observer,
}

impl<'a> HostBench<'a> {
    /// Opens the target once, to see what may be set. `free` are knobs of the load, with their values. `seconds`: of a
    /// short and of a full run.
    pub fn new(
        file: JobFile,
        target: Option<String>,
        base: Vec<(String, String)>,
        free: &[(String, Vec<String>)],
        seconds: Option<(f64, f64)>,
        stop: Arc<AtomicBool>,
        observe: &'a mut dyn Observer,
    ) -> host::error::Result<HostBench<'a>> {
        if !world::of(&file, target.as_deref()).is_ours() {
            let text = "tune: the settings of a kernel: target are not searched yet; compare two of them: mqblk compare JOB --target \
                        kernel:/dev/X --a scheduler=none --b scheduler=kyber";
            return Err(host::error::Error::usage(text));
        }
        let prepared = host::run::prepare(
            &file.jobs,
            RunPlan {
                target: target.as_deref(),
                settings: &base,
                laying_out: &mut |path, done, all| observe.laying_out(path, done, all),
                stop: Arc::clone(&stop),
                entropy: 0,
                force: false,
            },
        )?;
        observe.prepared(&prepared);
        let queue = &prepared.disks[prepared.targets[0].disks.start].1.queue;
        let now = stack::in_effect(queue, &base);
        let cpus = u32::from(queue.config().topology.nr_cpus);
        let mut knobs = host_knobs::knobs(&now, cpus, u64::from(queue.limits().max_hw_sectors / 2));
        let queues = knobs.iter().find(|k| k.name == "nr_hw_queues").map_or_else(String::new, |k| k.default.clone());
        let rules = host_knobs::rules(cpus, &queues);
        drop(prepared);
        knobs.extend(free.iter().map(|(name, values)| load_knob(&file, name, values)));
        Ok(HostBench { file, target, base, seconds, stop, knobs, rules, observe })
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

    /// Settings of the block layer at a point, over those of every run.
    fn settings(&self, point: &Point) -> Vec<(String, String)> {
        let mut all = self.base.clone();
        for (name, value) in point.iter().filter(|(name, _)| !is_load_knob(name)) {
            all.retain(|(key, _)| key != name);
            all.push((name.to_owned(), value.to_owned()));
        }
        all
    }

    fn probe_file(&self, load: &Load) -> Result<JobFile, BenchError> {
        let text = format!(
            "[probe]\nrw=randread\nnorandommap\nbs={}\niodepth={}\nioengine=libaio\nruntime={}ms\ntime_based\n{}",
            load.block_bytes,
            load.iodepth,
            (load.seconds * 1000.0) as u64,
            // On the jobs' own file where no target is named.
            match &self.target {
                Some(_) => String::new(),
                None => format!("filename={}\n", self.file.jobs[0].file_name(0, &host::run::is_target)),
            }
        );
        let none: &[Override] = &[];
        let context = ParseContext { is_target: &host::run::is_target, ..ParseContext::bare("probe") };
        JobFile::parse_str(&text, &context, none).map_err(|e| BenchError::Refused(e.to_string()))
    }
}

/// Whether a knob is the load's, and of which job: `iodepth`, `a.iodepth`.
fn load_part<'n>(name: &'n str, job: &str) -> Option<&'n str> {
    let own = name.strip_prefix(job).and_then(|rest| rest.strip_prefix('.'));
    LOAD_KNOBS
        .into_iter()
        .find_map(|knob| (name == knob || own == Some(knob)).then(|| &name[name.len() - knob.len()..]))
}

fn is_load_knob(name: &str) -> bool {
    LOAD_KNOBS.iter().any(|knob| name == *knob || name.strip_suffix(knob).is_some_and(|job| job.ends_with('.')))
}

/// `--free NAME=VALUES` refused or taken: which names and values there may be.
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

/// Passes on what a run tells, and keeps its progress.
struct Keeper<'o> {
    to: &'o mut dyn Observer,
    moments: Option<Vec<Moment>>,
}

impl Observer for Keeper<'_> {
    fn prepared(&mut self, run: &Prepared) {
        self.to.prepared(run);
    }

    fn progress(&mut self, progress: &Progress) {
        if let Some(moments) = &mut self.moments {
            let at = progress.elapsed.as_ns() as f64 / 1e9;
            if moments.last().is_none_or(|m| at - m.at >= MOMENT_SECONDS) {
                let sum = |of: fn(&host::run::ThreadProgress) -> u64| progress.threads.iter().map(of).sum();
                moments.push(Moment { at, ios: sum(|t| t.ios.iter().sum()), bytes: sum(|t| t.bytes.iter().sum()) });
            }
        }
        self.to.progress(progress);
    }
}

impl Bench for HostBench<'_> {
    fn jobs(&self) -> Vec<String> {
        let mut names: Vec<String> = self.file.jobs.iter().map(|j| j.name.clone()).collect();
        names.dedup();
        names
    }

    fn knobs(&self) -> Vec<Knob> {
        self.knobs.clone()
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
        host::run::check_settings(&self.settings(point)).map_err(|e| e.to_string())
    }

    fn run(&mut self, ask: &Ask, wanted: &[MetricId]) -> Result<Reading, BenchError> {
        self.check(&ask.point).map_err(BenchError::Refused)?;
        let file = match &ask.load {
            Some(load) => self.probe_file(load)?,
            None => self.job_file(&ask.point, ask.length),
        };
        let settings = self.settings(&ask.point);
        let spec = RunSpec {
            file: &file,
            target: self.target.as_deref(),
            settings: &settings,
            entropy: ask.entropy,
            force: false,
            slices: false,
            stop: Arc::clone(&self.stop),
            trace_events: 0,
        };
        let began = Instant::now();
        let mut keeper = Keeper { to: &mut *self.observe, moments: ask.load.map(|_| Vec::new()) };
        let run = execute(&spec, &mut keeper).map_err(|e| match e.kind() {
            ErrorKind::Interrupted => BenchError::Stopped,
            // What differs from run to run is the settings.
            ErrorKind::Usage => BenchError::Refused(e.to_string()),
            _ => BenchError::Failed(e.to_string()),
        })?;
        let moments = keeper.moments.unwrap_or_default();
        if run.outcome.stopped || self.stop.load(Ordering::Relaxed) {
            return Err(BenchError::Stopped);
        }
        let seconds = began.elapsed().as_secs_f64();
        Ok(Reading {
            values: values(&run, &file, wanted),
            seconds,
            stages: Some(run.facts()).filter(|_| ask.load.is_none()),
            job_cpu_percent: run.job_cpu_percent(),
            errors: run.errors(),
            moments,
            histograms: if ask.length == Length::Full { run.histograms() } else { Vec::new() },
        })
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

    fn bench<'a>(observe: &'a mut Unobserved, free: &[(&str, &[&str])]) -> HostBench<'a> {
        let text = "[global]\nrw=randread\nbs=4k\nsize=64m\nioengine=libaio\niodepth=4\n[a]\n[b]\niodepth=8\n";
        let file = JobFile::parse_str(text, &ParseContext::bare("t.fio"), &[]).unwrap_or_else(|e| panic!("{e}"));
        let free: Vec<(String, Vec<String>)> =
            free.iter().map(|(n, v)| ((*n).to_owned(), v.iter().map(|v| (*v).to_owned()).collect())).collect();
        let target = Some("model:size=1g,lat_us=100,parallel=8".to_owned());
        HostBench::new(
            file,
            target,
            vec![("nr_cpus".into(), "4".into())],
            &free,
            Some((0.05, 0.1)),
            Arc::default(),
            observe,
        )
        .unwrap()
    }

    #[test]
    fn points_are_run_and_measured() {
        let mut nobody = Unobserved;
        let mut bench = bench(&mut nobody, &[("b.iodepth", &["1", "32"])]);
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
    fn loads_are_knobs_only_by_their_names() {
        assert_eq!((load_part("iodepth", "a"), load_part("a.numjobs", "a")), (Some("iodepth"), Some("numjobs")));
        assert_eq!((load_part("b.iodepth", "a"), load_part("queue_depth", "a")), (None, None));
        assert!(is_load_knob("x.iodepth") && is_load_knob("numjobs") && !is_load_knob("iosched.fifo_batch"));
        let mut nobody = Unobserved;
        let file = bench(&mut nobody, &[]).file;
        assert!(check_free(&file, "iodept", &[]).unwrap_err().contains("did you mean 'iodepth'?"));
        assert!(check_free(&file, "iodepth", &["0".into()]).unwrap_err().ends_with("must be 1..=65536"));
        check_free(&file, "b.iodepth", &["4".into()]).unwrap();
    }
}
