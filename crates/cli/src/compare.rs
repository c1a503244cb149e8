// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk compare`: compares settings by interleaved runs, and gives a verdict with its uncertainty.

use crate::args::{CompareArgs, Eta, key_value};
use crate::interrupt;
use crate::job::{self, Loaded};
use crate::output::{self, OutputFile};
use crate::progress::{self, Line};
use crate::replay::command;
use crate::report::{self, ReportFiles};
use crate::run::laying_out;
use crate::status::{Failure, Outcome, Status};
use host::run::{Prepared, Progress};
use host::secrets::without_secrets;
use host::target::TargetSpec;
use lab::compare::{Comparison, Detect, SideTotals};
use lab::pairs::{CompareError, CompareSpec, SideSpec};
use lab::plan::{Plan, Side, Step};
use lab::report::compare_sides::{self, SidesReport};
use lab::report::{compare_json, compare_table, compare_text};
use lab::results::{self, Header, Interrupted, ResultsError, ResultsWriter};
use lab::run::Observer;
use lab::setup::Setup;
use lab::simulated::Simulated;
use lab::warning::Warning;
use lab::world;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use workload::job::{Job, Override};
use workload::schedule::Instance;

/// A requested comparison, checked as far as possible without opening a device.
pub struct Request {
    jobs: Loaded,
    sides: Vec<SideSpec>,
    judge: Option<String>,
    plan: Plan,
    detect: Option<Detect>,
    past: Option<Interrupted>,
    results: ResultsFile,
    started_unix_ms: u64,
    seed_given: bool,
    eta: Eta,
    exit_code: bool,
    json: bool,
    force: bool,
    report: Option<ReportFiles>,
    exports: Vec<(OutputFile, Export)>,
}

/// Format of a file with the figures.
#[derive(Clone, Copy)]
enum Export {
    Json,
    Csv,
    Markdown,
}

impl Request {
    /// Reads the job file and checks sides, plan and the name of the results file.
    pub fn resolve(args: &CompareArgs) -> Result<Request, Failure> {
        let jobs = job::load(&args.job, &runtime(args.runtime.as_deref()))?.without_logs();
        let sides = sides(args, &jobs)?;
        let names: Vec<&str> = jobs.file.jobs.iter().map(|j| j.name.as_str()).collect();
        if let Some(judge) = args.judge.as_deref().filter(|judge| !names.contains(judge)) {
            return Err(Failure::new(format!("--judge {judge}: must be one of the jobs: {}", names.join(", "))));
        }
        let past = args.resume.as_deref().map(read_past).transpose()?;
        let seed = args.seed.or(past.as_ref().map(|p| p.results.header.plan.seed()));
        let of_a = world::of(&jobs.file, sides[0].target.as_deref());
        let seed = seed.unwrap_or_else(|| of_a.entropy(job::entropy() >> 32));
        let pairs = args.pairs.unwrap_or_else(|| Plan::default_pairs(sides.len().max(2)));
        let plan = Plan::new(pairs, args.warmup, seed).and_then(|plan| plan.of_sides(sides.len()));
        let plan = plan.map_err(|e| Failure::new(format!("--{e}")))?;
        let detect = detect(args, pairs)?;
        let started_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64);
        let results = args.results.clone().unwrap_or_else(|| results_name(started_unix_ms));
        let report =
            report::asked(args.report.as_ref(), &[Some(&results), args.resume.as_deref(), Some(args.job.path())])?;
        let page = args.report.as_ref().map(|page| page.with_extension("json"));
        let taken =
            [args.report.as_deref(), page.as_deref(), Some(&results), args.resume.as_deref(), Some(args.job.path())];
        let exports = exports(args, &taken)?;
        // Open the file before the first I/O, because a comparison whose results cannot be stored must not touch the
        // target.
        let results = match (&args.resume, &past) {
            (Some(path), Some(past)) => ResultsFile::old(path, past.kept_bytes)?,
            _ => ResultsFile::create(results)?,
        };
        let (eta, json, seed_given) = (args.job.eta, args.json, args.seed.is_some());
        let (judge, force) = (args.judge.clone(), args.job.force);
        Ok(Request {
            jobs,
            sides,
            judge,
            plan,
            detect,
            past,
            results,
            started_unix_ms,
            seed_given,
            eta,
            exit_code: args.exit_code,
            json,
            force,
            report,
            exports,
        })
    }

    /// Runs the pairs and reports.
    pub fn execute(mut self) -> Outcome {
        host::clock::start();
        let stop = interrupt::stop_flag()?;
        let command = self.replay();
        let spec = CompareSpec {
            file: &self.jobs.file,
            sides: self.sides.clone(),
            judge: self.judge.as_deref(),
            plan: self.plan,
            entropy: self.plan.seed(),
            stop: Arc::clone(&stop),
            detect: self.detect,
            past: self.past.as_ref().map_or(&[], |p| &p.results.runs),
            force: self.force,
            slices: self.report.is_some(),
        };
        let mut screen = Screen::new(&self, Arc::clone(&stop));
        let mut setup = None;
        let files = self.files();
        let simulated = self.simulated();
        let read_setup = || Setup {
            simulated: simulated.clone(),
            ..Setup::read(&files.iter().map(PathBuf::as_path).collect::<Vec<_>>())
        };
        let out = &mut self.results;
        let header = |setup: Setup| Header {
            format: results::FORMAT,
            setup,
            command: command.clone(),
            plan: self.plan,
            primary: spec.primary(),
            labels: self.sides.iter().map(|s| s.label.clone()).collect(),
            job: self.jobs.text.clone(),
            started_unix_ms: self.started_unix_ms,
            detect: self.detect,
            sides: self.sides.iter().map(resolved).collect(),
        };
        if let Some(past) = &self.past {
            let fits = past.results.header.fits(&header(Setup::default()));
            fits.map_err(|e| Failure::new(format!("--resume {}: {e}", out.path.display())))?;
        }
        let open = || {
            // Read only now, because the files of the jobs exist by now.
            let setup = setup.insert(read_setup());
            out.writer(&header(setup.clone()))
        };
        let finished = self.past.as_ref().filter(|p| !p.results.comparisons.is_empty()).map(|p| p.results.evaluate());
        let done = finished.map_or_else(|| lab::pairs::compare(&spec, open, &mut screen), Ok);
        let mut comparisons = match done {
            Err(same @ CompareError::NoEffect(_)) => {
                drop(screen);
                output::print(&format!("{same}\n"))?;
                return Ok(Status::Done);
            }
            Err(CompareError::Side { side, label, source }) => {
                return Err(Failure::from(source.within(&format!("{side:?} ({label})"))));
            }
            done => done.map_err(Failure::new)?,
        };
        drop(screen);
        // If the comparison was interrupted during the first run, the setup has not been read yet.
        let setup = setup.unwrap_or_else(read_setup);
        for comparison in &mut comparisons {
            comparison.warnings.extend(Warning::of_setup(&setup, busiest(&self.jobs.file.jobs)));
        }
        self.show(&comparisons, &setup, &command)?;
        conclude(&comparisons, stop.load(Ordering::Relaxed), self.exit_code)
    }

    /// Prints the comparison, names the results file, and writes the exports and the page.
    fn show(&mut self, comparisons: &[Comparison], setup: &Setup, command: &str) -> Result<(), Failure> {
        let results = self.results.written();
        let json = || match comparisons {
            [only] => compare_json::render(only, setup, results.as_deref(), command),
            several => {
                compare_json::render_sides(&SidesReport { comparisons: several }, setup, results.as_deref(), command)
            }
        };
        let on: String = setup.simulated.iter().map(|machine| format!("{machine}\n")).collect();
        let text = match comparisons {
            _ if self.json => json(),
            [only] => on + &compare_text::report(only, command),
            several => on + &compare_sides::report(&SidesReport { comparisons: several }, command),
        };
        output::print(&text)?;
        for (export, table) in &mut self.exports {
            export.write(&match table {
                Export::Json => json(),
                Export::Csv => compare_table::csv(comparisons),
                Export::Markdown => compare_table::markdown(comparisons),
            })?;
        }
        // There is no results file if the comparison was interrupted during the first run.
        if let Some(name) = self.results.written() {
            eprintln!("results: {name}");
            if let Some(files) = &mut self.report {
                files.write(&report::of_results(Path::new(&name))?)?;
            }
        }
        Ok(())
    }

    /// Returns the command that repeats the comparison with the same order of runs.
    fn replay(&self) -> String {
        if let Some(past) = &self.past {
            return past.results.header.command.clone();
        }
        let seed = if self.seed_given { String::new() } else { format!(" --seed={}", self.plan.seed()) };
        format!("{}{seed}", command())
    }

    /// Returns the machines that the sides are simulated on. Returns none if a side is real, and prints a warning if
    /// only some sides are.
    fn simulated(&self) -> Vec<String> {
        let of = |s: &SideSpec| {
            let target = s.target.as_deref();
            world::of(&self.jobs.file, target).machine(&self.jobs.file, target)
        };
        let of_sides: Vec<Option<String>> = self.sides.iter().map(of).collect();
        let simulated = (0..).map(Side::at).zip(&of_sides).find_map(|(side, machine)| Some((side, machine.as_ref()?)));
        if let Some((side, machine)) = simulated.filter(|_| of_sides.iter().any(Option::is_none)) {
            eprintln!(
                "warning: {side:?} is a {machine}, and another side is real, so the sides differ in more than settings"
            );
            return Vec::new();
        }
        let mut machines: Vec<String> = Vec::new();
        for machine in of_sides.into_iter().flatten() {
            if !machines.contains(&machine) {
                machines.push(machine);
            }
        }
        machines
    }

    /// Returns the files and devices that the jobs and sides use.
    fn files(&self) -> Vec<PathBuf> {
        let named = self.sides.iter().filter_map(|s| s.target.clone());
        let own = self.jobs.file.jobs.iter().flat_map(|j| j.file_names(0, &host::target::has_kind));
        let specs = named.chain(own).filter_map(|t| TargetSpec::parse(&t).ok());
        specs.flat_map(|spec| spec.files().into_iter().map(PathBuf::from).collect::<Vec<_>>()).collect()
    }
}

/// Returns the status of a comparison. With I/O errors there is no verdict but a failure.
fn conclude(comparisons: &[Comparison], stopped: bool, exit_code: bool) -> Outcome {
    let sides: Vec<&SideTotals> =
        comparisons.iter().take(1).map(|c| &c.a).chain(comparisons.iter().map(|c| &c.b)).collect();
    let errors: u64 = sides.iter().map(|side| side.errors).sum();
    if errors > 0 {
        let bad: u64 = sides.iter().map(|side| side.verify_errors).sum();
        let failed = errors.saturating_sub(bad);
        let message = format!(
            "{failed} I/Os failed, {bad} blocks do not hold what was written: no verdict; to find them, use \
             mqblk run with the settings of one side"
        );
        return Err(if stopped { Failure::interrupted(message) } else { Failure::new(message) });
    }
    Ok(match stopped {
        true => Status::Interrupted,
        false if exit_code && comparisons.iter().any(|c| c.verdict.is_difference()) => Status::Found,
        false => Status::Done,
    })
}

/// The file for raw results: created before the first run, and removed again if no run completes.
struct ResultsFile {
    path: PathBuf,
    /// The new file, as long as it is empty.
    empty: Option<File>,
    /// The file of a resumed comparison, and how many of its bytes are kept.
    kept: Option<(File, usize)>,
}

impl ResultsFile {
    /// Makes the file, which must not exist.
    fn create(path: PathBuf) -> Result<ResultsFile, Failure> {
        let name = path.display();
        match OpenOptions::new().append(true).create_new(true).open(&path) {
            Ok(file) => Ok(ResultsFile { path, empty: Some(file), kept: None }),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Err(Failure::new(format!(
                "--results {name}: exists, and results are never overwritten: choose another name or move it away"
            ))),
            Err(e) => Err(Failure::new(format!(
                "--results {name}: cannot be made: {e}; name a file in a directory you may write to"
            ))),
        }
    }

    /// Opens the file of a resumed comparison. After the first run has completed, [`Self::writer`] truncates it to
    /// `kept` bytes.
    fn old(path: &Path, kept: usize) -> Result<ResultsFile, Failure> {
        match OpenOptions::new().append(true).open(path) {
            Ok(file) => Ok(ResultsFile { path: path.to_owned(), empty: None, kept: Some((file, kept)) }),
            Err(e) => Err(Failure::new(format!("--resume {}: {e}; name a file you may write to", path.display()))),
        }
    }

    /// Makes the writer of the file, once. A new file gets the header, a resumed one is truncated to the kept bytes.
    fn writer(&mut self, header: &Header) -> Result<ResultsWriter<File>, ResultsError> {
        if let Some((file, kept)) = self.kept.take() {
            let path = self.path.display().to_string();
            file.set_len(kept as u64).map_err(|source| ResultsError::Io { path: path.clone(), source })?;
            return Ok(ResultsWriter::behind(file, path));
        }
        let file = self.empty.take().expect("opened once");
        ResultsWriter::new(file, self.path.display().to_string(), header)
    }

    /// Returns the name of the file, unless the file is empty.
    fn written(&self) -> Option<String> {
        self.empty.is_none().then(|| self.path.display().to_string())
    }
}

impl Drop for ResultsFile {
    fn drop(&mut self) {
        if self.empty.is_some() {
            // Best effort: the reason why the comparison ended has been reported.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Largest results file that is read.
const PAST_BYTES_MAX: u64 = 4 << 30;

/// Reads a results file that `--resume` continues.
fn read_past(path: &Path) -> Result<Interrupted, Failure> {
    let name = path.display();
    let mut text = String::new();
    let read = File::open(path).and_then(|f| f.take(PAST_BYTES_MAX).read_to_string(&mut text));
    read.map_err(|e| {
        Failure::new(format!("--resume {name}: {e}; name the results file of an interrupted comparison"))
    })?;
    results::interrupted(&text, &name.to_string()).map_err(|e| Failure::new(format!("--resume: {e}")))
}

/// The files of `--export-json` and its like.
fn exports(args: &CompareArgs, taken: &[Option<&Path>]) -> Result<Vec<(OutputFile, Export)>, Failure> {
    let asked = [
        ("--export-json", &args.export_json, Export::Json),
        ("--export-csv", &args.export_csv, Export::Csv),
        ("--export-markdown", &args.export_markdown, Export::Markdown),
    ];
    let asked: Vec<_> =
        asked.into_iter().filter_map(|(flag, path, export)| Some((flag, path.as_deref()?, export))).collect();
    for (i, (flag, path, _)) in asked.iter().enumerate() {
        let others = asked[..i].iter().map(|(_, other, _)| *other).chain(taken.iter().copied().flatten());
        if let Some(other) = others.into_iter().find(|other| report::is_same(other, path)) {
            let other = other.display();
            return Err(Failure::new(format!(
                "{flag} {other}: another option already uses this file; choose another name"
            )));
        }
    }
    asked.into_iter().map(|(flag, path, export)| Ok((OutputFile::open(flag, path)?, export))).collect()
}

/// `--detect` and `--max-pairs`.
fn detect(args: &CompareArgs, pairs: u32) -> Result<Option<Detect>, Failure> {
    let Some(text) = &args.detect else { return Ok(None) };
    let change = crate::tune::args::percent("--detect", text).map_err(Failure::new)?;
    let most = args.max_pairs;
    if !(pairs..=Plan::MAX_PAIRS).contains(&most) {
        let (least, max) = (pairs, Plan::MAX_PAIRS);
        return Err(Failure::new(format!("--max-pairs {most}: must be in {least}..={max}; it includes --pairs")));
    }
    Ok(Some(Detect { change, most }))
}

/// `--runtime` as overrides of the jobs.
fn runtime(time: Option<&str>) -> Vec<Override> {
    let Some(time) = time else { return Vec::new() };
    let given = [("runtime", time), ("time_based", "")];
    given.map(|(key, value)| Override { flag: "--runtime", key: key.to_owned(), value: value.to_owned() }).into()
}

/// Returns the largest number of threads that run at the same time.
fn busiest(jobs: &[Job]) -> u32 {
    let instances = workload::schedule::plan(jobs, 0).unwrap_or_default();
    let waves = instances.iter().map(|i| i.wave).max().unwrap_or(0);
    (0..=waves).map(|w| instances.iter().filter(|i| i.wave == w).count() as u32).max().unwrap_or(0)
}

/// The sides: those of `--side`, or of `--a` and `--b`.
fn sides(args: &CompareArgs, jobs: &Loaded) -> Result<Vec<SideSpec>, Failure> {
    if args.side.is_empty() {
        return Ok(vec![side("--a", &args.a, args, jobs)?, side("--b", &args.b, args, jobs)?]);
    }
    let one = |text: &String| {
        let named = text.split_once(':').filter(|(name, _)| !name.is_empty() && !name.contains(['=', ',']));
        let Some((_, settings)) = named else {
            let rule = "must be NAME:SETTING=VALUE[,SETTING=VALUE...], or NAME:default for no settings";
            return Err(Failure::new(format!("--side '{text}': {rule}")));
        };
        let spec = side("--side", &[settings.to_owned()], args, jobs)?;
        Ok(SideSpec { label: without_secrets(text), ..spec })
    };
    args.side.iter().map(one).collect()
}

/// One side from its arguments: `--set` first, then its own settings.
fn side(flag: &str, given: &[String], args: &CompareArgs, jobs: &Loaded) -> Result<SideSpec, Failure> {
    let mut spec = SideSpec {
        label: without_secrets(&given.join(",")),
        target: args.job.target.clone(),
        settings: args.job.settings.clone(),
        behind: None,
    };
    if given.iter().any(|a| a.trim().is_empty()) {
        return Err(Failure::new(format!(
            "{flag} '': must be KEY=VALUE[,KEY=VALUE...], or the word 'default' for no settings"
        )));
    }
    for argument in given.iter().filter(|a| a.trim() != "default") {
        let mut rest = argument.as_str();
        while !rest.is_empty() {
            if let Some(target) = rest.strip_prefix("target=") {
                TargetSpec::parse(target).map_err(|e| Failure::new(format!("{flag}: {e}")))?;
                spec.target = Some(target.to_owned());
                break;
            }
            let (item, next) = rest.split_once(',').unwrap_or((rest, ""));
            let (key, value) = key_value(item).map_err(|e| Failure::new(format!("{flag} '{item}': {e}")))?;
            spec.settings.retain(|(k, _)| *k != key);
            spec.settings.push((key, value));
            rest = next;
        }
    }
    let target = spec.target.as_deref();
    let checked = world::of(&jobs.file, target).check(target, &spec.settings);
    let behind = checked.and_then(|()| world::of(&jobs.file, target).behind(&jobs.file, target));
    spec.behind = behind.map_err(|e| Failure::new(format!("{flag}: {e}")))?;
    Ok(spec)
}

/// Returns a side as text for the results file. It includes the machine or disk behind a name, because another one
/// makes another side.
fn resolved(side: &SideSpec) -> String {
    let behind = side.behind.as_ref().map_or_else(String::new, |behind| format!(" {behind:?}"));
    format!("{:?} {:?}{behind}", side.target.as_deref().map(without_secrets), side.settings)
}

/// `mqblk-compare-20261121T013015Z.jsonl`: the time in the name, in UTC, so that names sort by time.
fn results_name(unix_ms: u64) -> PathBuf {
    let stamp = lab::report::num::compact_utc(unix_ms / 1000);
    PathBuf::from(format!("mqblk-compare-{stamp}.jsonl"))
}

/// Shows the current run and pair, and the time left.
struct Screen {
    line: Line,
    stop: Arc<AtomicBool>,
    sides: u32,
    pairs: u32,
    warmups: u32,
    began: Instant,
    /// Start of the current run.
    run_began: Instant,
    index: u32,
    runs: u32,
    step: Option<Step>,
    /// Warnings printed so far, because every run would repeat them.
    told: Vec<String>,
    /// Length of a run by the job file, if it sets one.
    run_seconds: Option<f64>,
}

impl Screen {
    fn new(request: &Request, stop: Arc<AtomicBool>) -> Screen {
        let lengths =
            request.jobs.file.jobs.iter().map(|j| j.runtime_ns.map(|r| r.saturating_add(j.ramp_time_ns) as f64 / 1e9));
        Screen {
            line: Line::new(request.eta),
            stop,
            sides: request.sides.len() as u32,
            pairs: request.plan.pairs(),
            warmups: request.plan.warmups(),
            began: Instant::now(),
            run_began: Instant::now(),
            index: 0,
            runs: request.plan.runs(),
            step: None,
            told: Vec::new(),
            run_seconds: lengths.collect::<Option<Vec<f64>>>().and_then(|l| l.into_iter().reduce(f64::max)),
        }
    }

    /// `Pair 3 of 12, A: [41.2%][r=.. IOPS][eta 00m:29s]`.
    fn text(&self) -> String {
        let elapsed = self.began.elapsed().as_secs_f64();
        let in_run = self.run_began.elapsed().as_secs_f64();
        let mean = if self.index > 0 { Some((elapsed - in_run) / f64::from(self.index)) } else { self.run_seconds };
        let left = mean.map(|run| (run * f64::from(self.runs - self.index) - in_run).max(0.0));
        let part =
            left.map_or_else(|| "-.-".to_owned(), |l| format!("{:.1}", 100.0 * elapsed / (elapsed + l).max(1e-9)));
        let what = match self.step {
            Some(Step { side, pair: Some(pair) }) => format!("Pair {} of {}, {side:?}", pair + 1, self.pairs),
            Some(Step { side, pair: None }) => format!("Warm-up, {side:?}"),
            None => "Starting".to_owned(),
        };
        format!("{what}: [{part}%][eta {}]", progress::eta(left))
    }
}

impl Observer for Screen {
    fn laying_out(&mut self, path: &Path, done: u64, all: u64) -> ControlFlow<()> {
        self.line.show(|| laying_out(path, done, all));
        // Restart both clocks, because laying out files is not part of a run.
        self.began = Instant::now();
        self.run_began = Instant::now();
        if self.stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn step(&mut self, index: u32, runs: u32, step: Step) {
        self.index = index;
        self.runs = runs;
        self.run_began = Instant::now();
        self.pairs = self.pairs.max(step.pair.map_or(0, |_| runs / self.sides - self.warmups));
        self.step = Some(step);
    }

    fn prepared(&mut self, run: &Prepared) {
        for warning in run.warnings.iter().map(ToString::to_string) {
            if !self.told.contains(&warning) {
                self.line.clear();
                eprintln!("warning: {warning}");
                self.told.push(warning);
            }
        }
    }

    fn simulated(&mut self, _: &Simulated, _: &[Instance]) {
        // The runtime of a simulated run is virtual, so it does not predict the time left.
        self.run_seconds = None;
    }

    fn progress(&mut self, _: &Progress) {
        let text = self.text();
        self.line.show(|| text);
    }
}
