// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk run`: runs a job file and reports as fio does, then where the time went.

use crate::args::{Eta, Format, IdleProf, RunArgs, TraceLayout};
use crate::interrupt;
use crate::job::{self, Loaded};
use crate::live::{self, DiskChange, is_of};
use crate::output::{self, Output};
use crate::progress::{JobsLine, Line};
use crate::replay::command;
use crate::report::{self, ReportFiles};
use crate::run_status::StatusTimes;
use crate::set;
use crate::status::{Failure, Outcome, Status};
use ::report::document::Document;
use host::cpu_idle::CpuTimes;
use host::run::{Prepared, Progress};
use host::target::{TargetSpec, has_kind};
use lab::iostat;
use lab::plan::Side;
use lab::report::fio_model::{CpuIdleness, FioReport};
use lab::report::num::{Scale, bytes};
use lab::report::pages::of_run::{self, RunInput};
use lab::report::{fio_json, fio_terse, fio_text, oltp, stages};
use lab::run::{Observer, Run, RunSpec};
use lab::setup::Setup;
use lab::simulated::Simulated;
use lab::stage::StageFacts;
use lab::trace::{self, TraceFormat};
use lab::world::{self, execute};
use std::fmt::Write;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use workload::job::{Dir, FileShare, Job};
use workload::schedule::Instance;

/// A requested run, checked as far as possible without opening a device.
struct Request {
    jobs: Loaded,
    target: Option<String>,
    settings: Vec<(String, String)>,
    formats: Vec<Format>,
    terse_version: u32,
    output: Output,
    eta: Eta,
    eta_times: [Option<Duration>; 2],
    status_interval: Option<Duration>,
    idle_prof: Option<IdleProf>,
    trace: Option<Trace>,
    force: bool,
    report: Option<ReportFiles>,
    name: String,
    aux_path: PathBuf,
}

/// A requested trace.
struct Trace {
    prefix: PathBuf,
    format: TraceFormat,
    events: usize,
}

/// Carries out `mqblk run`.
pub fn main(args: &RunArgs) -> Outcome {
    let jobs = job::load(&args.job, &[])?;
    let changes = |j: &Job| j.rw.has(Dir::Write) || j.rw.has(Dir::Trim);
    if let Some(job) = jobs.file.jobs.iter().find(|j| args.readonly && changes(j)) {
        let text =
            format!("--readonly: job '{}' has rw={}; use a mode that only reads, or remove the flag", job.name, job.rw);
        return Err(Failure::new(text));
    }
    if args.readonly {
        nothing_to_lay_out(&jobs.file.jobs, args.job.target.as_deref())?;
    }
    if args.showcmd {
        let lines: String = jobs.commands(&args.job).iter().map(|c| format!("mqblk fio {}\n", c.words())).collect();
        output::print(&lines)?;
        return Ok(Status::Done);
    }
    if args.parse_only {
        return Ok(Status::Done);
    }
    Request::resolve(args, jobs)?.execute()
}

/// Fails if a run would make or extend a file.
fn nothing_to_lay_out(jobs: &[Job], target: Option<&str>) -> Result<(), Failure> {
    let is_there = |name: &str, size: u64| match TargetSpec::parse(name) {
        Ok(TargetSpec::File(path)) => fs::metadata(&path).is_ok_and(|meta| !meta.is_file() || meta.len() >= size),
        _ => true,
    };
    for (job, instance) in jobs.iter().flat_map(|job| (0..job.numjobs).map(move |n| (job, n))) {
        let sizes: Vec<(String, u64)> = match target {
            Some(target) => vec![(target.to_owned(), job.size.map_or(0, |size| size.of(0)))],
            None => {
                // A random size is at least the lowest one.
                let low = job.filesize_range.map_or(0, |(low, _)| low);
                let shares = job.file_shares(0, 1, |_| low);
                let size = |share: FileShare| share.filesize_bytes.unwrap_or(share.size.map_or(0, |size| size.of(0)));
                job.file_names(instance, &has_kind).into_iter().zip(shares.into_iter().map(size)).collect()
            }
        };
        if let Some((name, _)) = sizes.iter().find(|(name, size)| !is_there(name, *size)) {
            let place = job.place();
            let text = format!(
                "--readonly: '{name}' ({place}) is missing or shorter than size; make it first, or remove the flag"
            );
            return Err(Failure::new(text));
        }
    }
    Ok(())
}

/// Fails if `args` ask for what a run on a simulated machine does not have.
fn not_simulated(args: &RunArgs) -> Result<(), Failure> {
    if args.status_interval.is_some() {
        return Err(Failure::new("--status-interval: a simulated run has no results before its end; leave it out"));
    }
    if args.idle_prof.is_some() {
        let text = "--idle-prof: this host's CPUs do not run the jobs of a simulated machine; leave it out (the results have the use \
                    of the machine's CPUs)";
        return Err(Failure::new(text));
    }
    Ok(())
}

impl Request {
    /// Checks settings, target and output.
    fn resolve(args: &RunArgs, jobs: Loaded) -> Result<Request, Failure> {
        let target = args.job.target.as_deref();
        let world = world::of(&jobs.file, target);
        world.check(target, &args.job.settings)?;
        if world.machine(&jobs.file, target).is_some() {
            not_simulated(args)?;
        }
        let formats = match (args.json, args.json_plus) {
            (true, _) => vec![Format::Json],
            (_, true) => vec![Format::JsonPlus],
            _ if args.minimal => vec![Format::Terse],
            _ => args.output_format.clone(),
        };
        Ok(Request {
            jobs,
            target: args.job.target.clone(),
            settings: args.job.settings.clone(),
            formats,
            terse_version: args.terse_version,
            output: Output::open(args.output.as_deref())?,
            eta: args.job.eta,
            eta_times: [args.eta_interval, args.eta_newline].map(|ns| ns.map(Duration::from_nanos)),
            status_interval: args.status_interval.map(Duration::from_nanos),
            idle_prof: args.idle_prof,
            trace: trace_of(args)?,
            force: args.job.force,
            report: report::asked(args.report.as_ref(), &[args.output.as_deref(), Some(args.job.path())])?,
            aux_path: args.aux_path.clone().unwrap_or_default(),
            name: args.job.paths().next().map_or("command line".into(), |path| path.display().to_string()),
        })
    }

    /// Runs and reports.
    fn execute(mut self) -> Outcome {
        host::clock::start();
        let stop = interrupt::stop_flag()?;
        let spec = RunSpec {
            file: &self.jobs.file,
            target: self.target.as_deref(),
            settings: &self.settings,
            entropy: world::of(&self.jobs.file, self.target.as_deref()).entropy(job::entropy()),
            stop: Arc::clone(&stop),
            trace_events: self.trace.as_ref().map_or(0, |t| t.events),
            force: self.force,
            slices: self.report.is_some(),
            files: Some(&self.aux_path),
        };
        let started_unix_ms = unix_ms();
        let [interval, newline] = self.eta_times;
        let mut reports = Reports {
            formats: &self.formats,
            terse_version: self.terse_version,
            is_first: true,
            idle_prof: self.idle_prof,
            cpus_at_start: None,
            idleness: None,
        };
        let mut screen = Screen {
            live: None,
            jobs: &self.jobs.file.jobs,
            line: Line::new(self.eta).timed(interval, newline),
            render: None,
            stop: Arc::clone(&stop),
            status: StatusTimes::start(self.status_interval)?,
            reports: &mut reports,
            output: &mut self.output,
            failed: None,
        };
        let run = execute(&spec, &mut screen)?;
        let changes = screen.changes();
        if let Some(failure) = screen.failed.take() {
            return Err(failure);
        }
        drop(screen);
        for warning in &run.warnings {
            eprintln!("warning: {warning}");
        }
        let text = reports.text(&run, &changes, true);
        self.output.append(&text)?;
        if let Some(trace) = &self.trace {
            write_trace(&run, trace)?;
        }
        if let Some(files) = &mut self.report {
            let idleness = reports.idleness.take();
            files.write(&page_of(&run, &changes, idleness, &self.name, &self.jobs.text, started_unix_ms))?;
        }
        Ok(conclude(&run))
    }
}

/// Returns the trace that the flags ask for. Fails before the run if it cannot be written there.
fn trace_of(args: &RunArgs) -> Result<Option<Trace>, Failure> {
    let Some(prefix) = args.trace.clone() else { return Ok(None) };
    let format = match args.trace_format {
        TraceLayout::Blktrace => TraceFormat::Blktrace,
        TraceLayout::Chrome => TraceFormat::Chrome,
    };
    trace::probe(&prefix, format)?;
    Ok(Some(Trace { prefix, format, events: args.trace_events as usize }))
}

/// Writes the trace, and prints what it contains and what is missing.
fn write_trace(run: &Run<'_>, trace: &Trace) -> Result<(), Failure> {
    let written = trace::write(run, &trace.prefix, trace.format)?;
    if written.dropped > 0 {
        eprintln!(
            "warning: the trace has {} events; {} later ones were dropped: --trace-events={} limits each thread; raise \
             it or shorten the run",
            written.events, written.dropped, trace.events
        );
    }
    Ok(())
}

/// Reports problems on standard error. Returns the status of the run.
fn conclude(run: &Run<'_>) -> Status {
    for (place, e) in run.verify_errors() {
        eprintln!("mqblk: {place}: {e}");
    }
    let mut ended = 0;
    for (job, why) in run.ended_by() {
        eprintln!("mqblk: job '{job}': {why}");
        ended += 1;
    }
    let errors = run.errors().saturating_sub(ended);
    if errors > 0 {
        let bad = run.verify_error_count();
        let what = match bad {
            0 => format!("{errors} I/Os failed"),
            _ => format!("{bad} blocks do not hold what was written, {} I/Os failed", errors.saturating_sub(bad)),
        };
        eprintln!("mqblk: {what}; to repeat: {}", command());
    }
    // An interruption takes precedence over errors found until then.
    if run.outcome.stopped {
        eprintln!("mqblk: interrupted; results cover the time until then");
        return Status::Interrupted;
    }
    if errors + ended > 0 { Status::Found } else { Status::Done }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64)
}

/// The run as a page.
fn page_of(
    run: &Run<'_>,
    changes: &[DiskChange],
    cpu_idleness: Option<CpuIdleness>,
    name: &str,
    job: &str,
    started_unix_ms: u64,
) -> Document {
    let disks = run.outcome.disks.iter().filter_map(|d| TargetSpec::parse(&d.name).ok());
    let files: Vec<PathBuf> =
        disks.flat_map(|spec| spec.files().into_iter().map(PathBuf::from).collect::<Vec<_>>()).collect();
    let report = FioReport { cpu_idleness, ..run.fio_report(started_unix_ms) };
    let fio = fio_json::render(&report, true, Some(&key(run, changes)));
    let mut setup = Setup::read(&files.iter().map(PathBuf::as_path).collect::<Vec<_>>());
    setup.simulated.extend(run.simulated.as_ref().map(Simulated::text));
    let changed = changes.iter().map(|c| format!("{} was changed during the run: {}", c.disk, set::at(c)));
    let warnings: Vec<String> = run.warnings.iter().cloned().chain(changed).collect();
    of_run::document(&RunInput {
        record: &run.record(0, Side::A, true, None),
        setup: &setup,
        command: &command(),
        name,
        job,
        started_unix_ms,
        warnings: &warnings,
        job_slices: &run.job_slices(),
        stopped: run.outcome.stopped,
        fio: serde_json::from_str(&fio).unwrap_or_default(),
    })
}

/// Returns mqblk's own part of fio's JSON.
fn key(run: &Run<'_>, changes: &[DiskChange]) -> fio_json::MqblkKey {
    fio_json::MqblkKey {
        version: format!("mqblk-{}", env!("CARGO_PKG_VERSION")),
        settings: settings(run),
        changes: changes.iter().map(|c| format!("{}: {}", c.disk, set::at(c))).collect(),
        stages: Some(run.facts()),
        oltp: run.oltp_reports(),
        iostat: run.iostat(),
        simulated: run.simulated.clone(),
        command: command(),
    }
}

/// Makes the reports of a run: the final one, and those before.
struct Reports<'a> {
    formats: &'a [Format],
    terse_version: u32,
    /// No report was made yet.
    is_first: bool,
    idle_prof: Option<IdleProf>,
    /// With `idle_prof`: CPU times when the jobs began.
    cpus_at_start: Option<CpuTimes>,
    /// How idle the CPUs were since the jobs began, by the last report. `None`: not asked for, or no tick of the clock had passed.
    idleness: Option<CpuIdleness>,
}

impl Reports<'_> {
    /// The jobs begin.
    fn begin(&mut self) -> Result<(), Failure> {
        self.cpus_at_start = self.idle_prof.map(|_| CpuTimes::read()).transpose()?;
        Ok(())
    }

    fn idleness(&self) -> Option<CpuIdleness> {
        let start = self.cpus_at_start.as_ref()?;
        let percpu = CpuTimes::read().ok()?.idle_percent_since(start);
        let system = percpu.iter().map(|(_, percent)| percent).sum::<f64>() / percpu.len() as f64;
        let percpu_is_wanted = self.idle_prof == Some(IdleProf::Percpu);
        system.is_finite().then(|| CpuIdleness { system, percpu: if percpu_is_wanted { percpu } else { Vec::new() } })
    }

    /// Returns the report in all requested formats. Only the final text shows the insides of the block layer.
    fn text(&mut self, run: &Run<'_>, changes: &[DiskChange], is_final: bool) -> String {
        let mut fio = run.fio_report(unix_ms());
        self.idleness = self.idleness();
        fio.cpu_idleness.clone_from(&self.idleness);
        let key = key(run, changes);
        let mut out = String::new();
        for format in self.formats {
            match format {
                Format::Normal => {
                    out.push_str(&if self.is_first { job_lines(&run.file.jobs) } else { "\n".to_owned() });
                    out.push_str(&fio_text::report(&fio));
                    out.push_str(&oltp::text(&key.oltp));
                    if is_final {
                        out.push_str(&inside(run, changes));
                    }
                }
                Format::Json => out.push_str(&fio_json::render(&fio, false, Some(&key))),
                Format::JsonPlus => out.push_str(&fio_json::render(&fio, true, Some(&key))),
                Format::Terse => out.push_str(&fio_terse::render(&fio, self.terse_version)),
            }
        }
        self.is_first = false;
        out
    }
}

/// The lines that fio prints at its start.
fn job_lines(jobs: &[Job]) -> String {
    let mut out = String::new();
    let instances = workload::schedule::plan(jobs, 0).unwrap_or_default();
    for (index, job) in jobs.iter().enumerate() {
        let group = instances.iter().find(|i| i.job == index).map_or(0, |i| i.group);
        let sizes = Dir::ALL.map(|d| {
            let sizes = &job.block_sizes[d];
            let letter = d.name()[..1].to_ascii_uppercase();
            let short = |n: u64| bytes(n, Scale::Binary);
            format!("({letter}) {}-{}", short(sizes.min_bytes()), short(sizes.max_bytes()))
        });
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{}: (g={group}): rw={}, bs={}, ioengine={}, iodepth={}",
            job.name,
            job.rw,
            sizes.join(", "),
            job.ioengine.name(),
            job.iodepth
        );
        if job.numjobs > 1 {
            out.push_str("...\n");
        }
    }
    let threads = instances.len();
    let plural = if threads == 1 { "" } else { "s" };
    let _ = writeln!(out, "mqblk-{}\nStarting {threads} thread{plural}", env!("CARGO_PKG_VERSION"));
    for job in instances.iter().map(|i| &jobs[i.job]) {
        let name = &job.name;
        for (mode, command) in [("prerun", &job.commands.prerun), ("postrun", &job.commands.postrun)] {
            if command.is_some() {
                let _ = writeln!(out, "{name} : Saving output of {mode} in {name}.{mode}.txt");
            }
        }
    }
    out.push('\n');
    out
}

/// Returns the figures that fio does not have: one block per disk, and the costs of the run.
fn inside(run: &Run<'_>, changes: &[DiskChange]) -> String {
    let total = run.facts();
    let iostat = run.iostat();
    if !iostat.is_empty() {
        let mut out = String::from("\nThe kernel's block layer:\n");
        iostat.iter().zip(&run.settings).for_each(|(disk, settings)| out.push_str(&iostat::text(disk, settings)));
        return out + &stages::text(&total);
    }
    let mut out = String::from("\nInside the block layer:\n");
    if let Some(machine) = &run.simulated {
        out += &format!("{}\n{}\n", machine.text(), machine.cpus_text());
    }
    let disks = &run.outcome.disks;
    for (disk, settings) in disks.iter().zip(&run.settings) {
        let value = |name: &str| settings.iter().find(|s| s.name == name).map_or("", |s| s.value.as_str());
        let shown = ["mode", "nr_hw_queues", "scheduler", "nr_requests", "queue_depth"];
        let shown: Vec<String> = shown.iter().map(|name| format!("{name}={}", value(name))).collect();
        let _ = writeln!(out, "{}: {}", disk.name, shown.join(", "));
        for change in changes.iter().filter(|c| is_of(&c.disk, &disk.name)) {
            let _ = writeln!(out, "  changed      : {}", set::at(change));
        }
        if disks.len() > 1 {
            out.push_str(&stages::text(&run.disk_facts(disk)));
        }
    }
    if disks.len() > 1 {
        out.push_str("all disks:\n");
        let costs = StageFacts { times: Default::default(), merges: 0, hctx: Vec::new(), ..total };
        out.push_str(&stages::text(&costs));
    } else {
        out.push_str(&stages::text(&total));
    }
    out
}

/// Targets and their settings in effect.
fn settings(run: &Run<'_>) -> Vec<String> {
    let mut all = Vec::new();
    let ours = run.outcome.disks.iter().map(|d| &d.name);
    let names = ours.chain(run.outcome.kernel.iter().map(|k| &k.name));
    for (name, settings) in names.zip(&run.settings) {
        all.push(format!("target={name}"));
        all.extend(settings.iter().map(lab::stack::Setting::assignment));
    }
    all
}

/// Shows progress and results so far, answers `inspect --live` and `set`, and watches for Ctrl-C while files are made.
struct Screen<'a, 'f> {
    live: Option<live::Server>,
    jobs: &'a [Job],
    line: Line,
    render: Option<JobsLine<'a>>,
    stop: Arc<AtomicBool>,
    status: StatusTimes,
    reports: &'a mut Reports<'f>,
    output: &'a mut Output,
    /// The first failure to make or write results so far.
    failed: Option<Failure>,
}

impl Screen<'_, '_> {
    /// What `mqblk set` has changed so far.
    fn changes(&self) -> Vec<DiskChange> {
        self.live.as_ref().map(live::Server::changes).unwrap_or_default()
    }

    /// Ends the run, because of `failure` unless there was one before.
    fn fail(&mut self, failure: Failure) {
        self.stop.store(true, Ordering::Relaxed);
        self.failed.get_or_insert(failure);
    }
}

impl Observer for Screen<'_, '_> {
    fn laying_out(&mut self, path: &Path, done: u64, all: u64) -> ControlFlow<()> {
        self.line.show(|| laying_out(path, done, all));
        if self.stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn prepared(&mut self, run: &Prepared) {
        self.live = live::Server::start(run);
        self.render = Some(JobsLine::new(self.jobs, run.instances()));
        self.status.restart();
        if let Err(failure) = self.reports.begin() {
            self.fail(failure);
        }
    }

    fn wants_status(&mut self) -> bool {
        self.status.is_due()
    }

    fn status(&mut self, so_far: &Run<'_>) {
        self.line.clear();
        let changes = self.changes();
        let text = self.reports.text(so_far, &changes, false);
        if let Err(failure) = self.output.append(&text) {
            self.fail(failure);
        }
    }

    fn simulated(&mut self, _: &Simulated, instances: &[Instance]) {
        self.render = Some(JobsLine::virtual_time(self.jobs, instances));
    }

    fn progress(&mut self, progress: &Progress) {
        if let Some(render) = &mut self.render {
            self.line.show(|| render.render(progress));
        }
    }
}

/// `Laying out IO file 'x' (1024MiB): [45.0%]`.
pub fn laying_out(path: &Path, done: u64, all: u64) -> String {
    let percent = 100.0 * done as f64 / all.max(1) as f64;
    format!("Laying out IO file '{}' ({}MiB): [{percent:.1}%]", path.display(), all >> 20)
}
