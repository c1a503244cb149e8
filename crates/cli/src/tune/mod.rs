// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk tune`: which settings make a job better here, by how much, and why.
//!
//! Guarantees: invalid input is rejected before the first run. Every run is in the results file when the next one begins. Settings change
//! only during runs, except that `--apply` may write those of a kernel device at the end. The only files written are the results, the page
//! of `--report`, and the file that `--apply` names, which must not exist.

pub mod args;
mod screen;

use self::args::{TuneArgs, percent, seconds};
use crate::interrupt;
use crate::job::{self, Loaded};
use crate::output;
use crate::replay::command;
use crate::report::{ReportFiles, asked as report_asked, is_same, of_results};
use crate::status::{Failure, Outcome, Status};
use host::kernel::{self, KernelDevice};
use host::secrets::without_secrets;
use host::target::TargetSpec;
use lab::setup::Setup;
use lab::tune::bench::Bench;
use lab::tune::forms::Form;
use lab::tune::guest_bench::{self, GuestBench};
use lab::tune::guest_forms::render;
use lab::tune::journal::{self, Halt, Header, RecordedRuns, Recorder, TunePlan};
use lab::tune::objective::{Goal, Keep};
use lab::tune::outcome::{TuneResult, TuneVerdict};
use lab::tune::world_bench::{self, BenchSpec, WorldBench};
use lab::tune::{point, report, search, target_knobs};
use lab::world;
use lab::world::sim::guests::GuestMachine;
use screen::{Screen, Shared};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Length of a confirming run if neither the jobs nor the user set one.
const RUN_SECONDS: f64 = 2.0;
/// Length of a screening run as a share of a confirming run, and its lower limit.
const SHORT_SHARE: f64 = 0.25;
const SHORT_SECONDS_MIN: f64 = 0.25;
/// The same lengths for simulated virtual machines, because their users complete thousands of transactions in a virtual second.
const GUEST_SECONDS: f64 = 0.3;
const GUEST_SHORT_SECONDS_MIN: f64 = 0.05;

/// Runs `mqblk tune`.
pub fn main(args: &TuneArgs) -> Outcome {
    let mut asked = TuneRequest::resolve(args)?;
    host::clock::start();
    let stop = interrupt::stop_flag()?;
    let applied = args.apply.as_ref().and_then(|file| file.as_deref());
    let others = [Some(asked.results.as_path()), applied, Some(args.job.path())];
    let mut page = report_asked(args.report.as_ref(), &others)?;
    let shared = Shared::new(Screen::new(args.job.eta, Arc::clone(&stop)));
    let (mut observer, mut watch) = (shared.clone(), shared);
    let (mut bench, behind): (Box<dyn Bench>, Option<String>) = match asked.guests.take() {
        Some(machine) => {
            let bench = GuestBench::new(machine, &asked.base, &asked.goal.metric, asked.run_seconds, stop)?;
            asked.base = bench.base().to_vec();
            let behind = bench.behind().to_owned();
            (Box::new(bench), Some(behind))
        }
        None => {
            let spec = BenchSpec {
                file: asked.jobs.file.clone(),
                target: args.job.target.clone(),
                base: asked.base.clone(),
                free: asked.free.clone(),
                seconds: Some(asked.run_seconds),
                stop,
                force: args.job.force,
            };
            let bench = WorldBench::new(spec, &mut observer)?;
            let behind = bench.behind().map(str::to_owned);
            (Box::new(bench), behind)
        }
    };
    let plan = asked.plan(args, bench.as_ref(), behind)?;
    if let Some(past) = &asked.past {
        past.fits(&plan, &asked.results.display().to_string()).map_err(Failure::new)?;
    }
    let mut out = asked.open(&plan)?;
    let done = match asked.past.as_ref().and_then(|p| p.result.clone()) {
        Some(result) => Ok(result),
        None => {
            let past = asked.past.as_ref().map_or_else(Vec::new, |p| p.runs.clone());
            let mut recorder = Recorder::new(bench.as_mut(), &mut watch, &mut out, past, &plan);
            search::tune(&plan, &mut recorder)
        }
    };
    watch.clear();
    match done {
        Ok(result) => asked.report(args, &plan, &result, page.as_mut()),
        Err(Halt::Failed(why)) => Err(asked.failed(&why)),
        Err(Halt::Stopped) => {
            eprintln!("mqblk: interrupted; resume with: {} --resume {}", asked.again(), asked.results.display());
            Ok(Status::Interrupted)
        }
    }
}

/// A requested tuning, checked as far as possible without opening a device.
struct TuneRequest {
    jobs: Loaded,
    /// The simulated machine, if the users of its virtual machines are the load instead of jobs.
    guests: Option<GuestMachine>,
    /// Description of the simulated machine, if the target is not of this host.
    machine: Option<String>,
    base: Vec<(String, String)>,
    free: Vec<(String, Vec<String>)>,
    only: Vec<(String, Vec<String>)>,
    goal: Goal,
    keeps: Vec<Keep>,
    run_seconds: (f64, f64),
    budget: f64,
    detect: f64,
    seed: u64,
    seed_given: bool,
    results: PathBuf,
    past: Option<RecordedRuns>,
    started_unix_ms: u64,
}

impl TuneRequest {
    fn resolve(args: &TuneArgs) -> Result<TuneRequest, Failure> {
        let guests = GuestMachine::open(args.job.target.as_deref())?;
        if guests.is_some() {
            no_jobs(args).map_err(Failure::new)?;
        }
        let jobs = match guests {
            Some(_) => Loaded::none(),
            None => job::load(&args.job, &[])?.without_logs(),
        };
        let mut names: Vec<String> = match &guests {
            Some(machine) => machine.loads(),
            None => jobs.file.jobs.iter().map(|j| j.name.clone()).collect(),
        };
        names.dedup();
        let (goal, keeps) = goals(args, &names).map_err(Failure::new)?;
        let asked = [("--maximize, --minimize:", &goal.metric)].into_iter();
        for (flag, metric) in asked.chain(keeps.iter().map(|k| ("--keep", &k.metric))) {
            match guests {
                Some(_) => guest_bench::check_metric(flag, metric),
                None => world_bench::check_metric(&jobs.file, flag, metric),
            }
            .map_err(Failure::new)?;
        }
        let base: Vec<(String, String)> = args.job.settings.iter().chain(&args.fix).cloned().collect();
        let target = args.job.target.as_deref();
        let world = world::of(&jobs.file, target);
        let machine = match &guests {
            Some(machine) => Some(machine.describe(&base)?),
            None => {
                world.check(target, &base)?;
                world.machine(&jobs.file, target)
            }
        };
        if matches!(args.apply, Some(None)) {
            kernel_target(target).map_err(Failure::new)?;
        }
        let run_seconds = run_seconds(args, &jobs, guests.is_some()).map_err(Failure::new)?;
        other_results(args).map_err(Failure::new)?;
        let past = args.resume.as_deref().map(read_past).transpose()?;
        let started_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64);
        let seed = args
            .seed
            .or(past.as_ref().map(|p| p.header.plan.seed))
            .unwrap_or_else(|| world.entropy(job::entropy() >> 32));
        let stamp =
            || PathBuf::from(format!("mqblk-tune-{}.jsonl", lab::report::num::compact_utc(started_unix_ms / 1000)));
        let results = args.resume.clone().or_else(|| args.results.clone()).unwrap_or_else(stamp);
        refuse_existing("--apply", args.apply.as_ref().and_then(|file| file.as_deref()))?;
        refuse_existing("--results", Some(results.as_path()).filter(|_| past.is_none()))?;
        let free = free(args, &jobs)?;
        let asked = TuneRequest {
            base,
            only: only(&args.knob)?,
            free,
            goal,
            keeps,
            run_seconds,
            budget: seconds("--budget", &args.budget).map_err(Failure::new)?,
            detect: percent("--detect", &args.detect).map_err(Failure::new)?,
            seed,
            seed_given: args.seed.is_some(),
            results,
            past,
            started_unix_ms,
            jobs,
            guests,
            machine,
        };
        Ok(asked)
    }

    fn plan(&self, args: &TuneArgs, bench: &dyn Bench, behind: Option<String>) -> Result<TunePlan, Failure> {
        let mut only = self.only.clone();
        if !only.is_empty() {
            only.extend(self.free.iter().map(|(name, _)| (name.clone(), Vec::new())));
        }
        // Some knobs are searched only if named: fewer paths reduce redundancy, whatever they gain, and the cost of polling is not
        // simulated.
        let is_only_asked = |name: &str| name == target_knobs::PATHS || guest_bench::is_only_asked(name);
        let is_asked = |name: &str| !is_only_asked(name) || only.iter().any(|(other, _)| other == name);
        let all = bench.knobs().into_iter().filter(|k| is_asked(&k.name)).collect();
        let without_effect = bench.without_effect();
        if let Some((name, why)) = without_effect.iter().find(|(name, _)| only.iter().any(|(other, _)| other == name)) {
            return Err(Failure::new(format!("--knob {name}: has no effect here: {why}; leave it out")));
        }
        let knobs = point::narrow(all, &only, &args.fix).map_err(Failure::new)?;
        let has = |name: &str| knobs.iter().any(|k| k.name == name);
        let rules = bench.rules().into_iter().filter(|(_, p)| p.iter().all(|(name, _)| has(name)));
        let own = || self.jobs.file.jobs[0].file_name(0, 0, &host::target::has_kind);
        Ok(TunePlan {
            goal: self.goal.clone(),
            keeps: self.keeps.clone(),
            rules: rules.collect(),
            knobs,
            today: bench.today(),
            without_effect: if only.is_empty() { without_effect } else { Vec::new() },
            base: self.base.clone(),
            target: without_secrets(&args.job.target.clone().unwrap_or_else(own)),
            behind,
            seed: self.seed,
            budget_seconds: self.budget,
            detect: self.detect,
            run_seconds: Some(self.run_seconds),
            job: self.jobs.text.clone(),
        })
    }

    /// Opens the results file: a new one with its first line, or the resumed one without a partial last line.
    fn open(&self, plan: &TunePlan) -> Result<File, Failure> {
        let failed = |e: std::io::Error| {
            Failure::new(format!("results file {}: {e}; name a file you may write to", self.results.display()))
        };
        if let Some(past) = &self.past {
            let file = OpenOptions::new().append(true).open(&self.results).map_err(failed)?;
            file.set_len(past.whole_bytes as u64).map_err(failed)?;
            return Ok(file);
        }
        let mut file = OpenOptions::new().append(true).create_new(true).open(&self.results).map_err(failed)?;
        let header = Header {
            format: journal::FORMAT,
            setup: Setup { simulated: self.machine.clone().into_iter().collect(), ..Setup::read(&[]) },
            command: self.again(),
            plan: plan.clone(),
            started_unix_ms: self.started_unix_ms,
        };
        Recorder::begin(&mut file, &header).map_err(Failure::new)?;
        Ok(file)
    }

    /// Returns the command with its seed.
    fn again(&self) -> String {
        if let Some(past) = &self.past {
            return past.header.command.clone();
        }
        let seed = if self.seed_given { String::new() } else { format!(" --seed={}", self.seed) };
        format!("{}{seed}", command())
    }

    /// Makes a failure. Removes a new results file that has at most one line after the header.
    fn failed(&self, why: &str) -> Failure {
        let text = fs::read_to_string(&self.results).unwrap_or_default();
        if self.past.is_none() && text.lines().count() < 3 {
            // Best effort: the failure itself is reported.
            let _ = fs::remove_file(&self.results);
        }
        Failure::new(why)
    }

    fn report(&self, args: &TuneArgs, plan: &TunePlan, result: &TuneResult, page: Option<&mut ReportFiles>) -> Outcome {
        if let Some(Some(path)) = &args.apply {
            write_new(path, &render(Form::Toml, &result.winner, plan))?;
        }
        let text = match args.json {
            true => json(plan, result, &args.print, self, self.machine.clone()),
            false => {
                self.machine.clone().map_or_else(String::new, |machine| machine + "\n")
                    + &report::text(plan, result, &args.print, &self.again())
            }
        };
        output::print(&text)?;
        if matches!(args.apply, Some(None)) {
            let path = kernel_target(args.job.target.as_deref()).map_err(Failure::new)?;
            write_to_kernel(&path, &self.base, plan, result, args.job.force)?;
        }
        eprintln!("results: {}", self.results.display());
        if let Some(page) = page {
            page.write(&of_results(&self.results)?)?;
        }
        Ok(match result.verdict {
            TuneVerdict::Better | TuneVerdict::NoBetter | TuneVerdict::NotWorth | TuneVerdict::LimitKept => {
                Status::Done
            }
            TuneVerdict::CannotKeep | TuneVerdict::Errors => Status::Found,
        })
    }
}

/// `simulated` names the machine; it is null where times are real.
fn json(
    plan: &TunePlan,
    result: &TuneResult,
    forms: &[Form],
    asked: &TuneRequest,
    simulated: Option<String>,
) -> String {
    let forms: serde_json::Map<String, serde_json::Value> =
        forms.iter().map(|f| (f.name().to_owned(), render(*f, &result.winner, plan).into())).collect();
    let why = result.against_default.as_ref().filter(|_| !result.winner.is_empty()).map(lab::tune::explain::sentences);
    output::json(&serde_json::json!({
        "headline": report::headline(plan, result),
        "why": why,
        "result": result,
        "plan": plan,
        "forms": forms,
        "notes": result.findings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "simulated": simulated,
        "command": asked.again(),
        "results": asked.results.display().to_string(),
    }))
}

/// Returns the device of a `kernel:` target, for `--apply` without a file.
fn kernel_target(target: Option<&str>) -> Result<PathBuf, String> {
    match target.map(TargetSpec::parse) {
        Some(Ok(TargetSpec::Kernel(path))) => Ok(path),
        _ => Err("--apply: --target is not kernel:/dev/X, so a file is needed: --apply FILE.toml".to_owned()),
    }
}

/// Writes the recommendation to the disk's directory in sysfs, where it stays. Fails if another disk has the name of the tuned disk by now.
fn write_to_kernel(
    path: &Path,
    base: &[(String, String)],
    plan: &TunePlan,
    result: &TuneResult,
    force: bool,
) -> Result<(), Failure> {
    if result.winner.is_empty() {
        eprintln!("--apply: nothing is recommended, and nothing was written");
        return Ok(());
    }
    // The recommendation was confirmed together with the fixed settings, so these are written too.
    let mut all: Vec<(String, String)> = base.to_vec();
    for (name, value) in result.winner.iter().filter(|(name, _)| !world_bench::is_load_knob(name)) {
        all.retain(|(key, _)| key != name);
        all.push((name.to_owned(), value.to_owned()));
    }
    if all.is_empty() {
        let load = &result.winner;
        eprintln!(
            "--apply: nothing written: the recommendation ({load}) changes only the job file, not the disk; set it there"
        );
        return Ok(());
    }
    let device = KernelDevice::find(path)?;
    if plan.behind.as_ref().is_some_and(|tuned| *tuned != device.own_name()) {
        let shown = path.display();
        return Err(Failure::new(format!(
            "--apply: nothing was written: {shown} is not the disk that was tuned; tune it, or name the tuned disk"
        )));
    }
    let said = kernel::write_for_good(&device, &all, force).map_err(|e| e.within("--apply: nothing was written"))?;
    said.iter().for_each(|bent| eprintln!("warning: {bent}"));
    let list: Vec<String> = all.iter().map(|(k, v)| format!("{k}={v}")).collect();
    eprintln!("--apply: written to /sys/block/{}, until the next boot: {}", device.disk, list.join(", "));
    Ok(())
}

fn write_new(path: &Path, text: &str) -> Result<(), Failure> {
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    let written = file.and_then(|mut f| f.write_all(text.as_bytes()));
    written.map_err(|e| {
        Failure::new(format!("--apply {}: {e}; the recommendation is in the results file", path.display()))
    })
}

/// Largest results file that is read.
const PAST_BYTES_MAX: u64 = 4 << 30;

fn read_past(path: &Path) -> Result<RecordedRuns, Failure> {
    let name = path.display().to_string();
    let mut text = String::new();
    let opened = File::open(path).and_then(|f| f.take(PAST_BYTES_MAX).read_to_string(&mut text));
    opened
        .map_err(|e| Failure::new(format!("--resume {name}: {e}; name the results file of an interrupted tuning")))?;
    journal::read(&text, &format!("--resume {name}")).map_err(Failure::new)
}

/// `--knob NAME` and `--knob NAME=VALUES`.
fn only(typed: &[String]) -> Result<Vec<(String, Vec<String>)>, Failure> {
    let one = |text: &String| match text.split_once('=') {
        None => Ok((text.trim().to_owned(), Vec::new())),
        Some((name, values)) => Ok((name.trim().to_owned(), point::parse_values("--knob", name, values)?)),
    };
    typed.iter().map(one).collect::<Result<_, String>>().map_err(Failure::new)
}

/// Refuses `--results` with another file than `--resume`; a repeated command may name the same file.
fn other_results(args: &TuneArgs) -> Result<(), String> {
    match (&args.results, &args.resume) {
        (Some(results), Some(resume)) if !is_same(results, resume) => Err(format!(
            "--results {}: --resume {} appends to its own file; leave --results out",
            results.display(),
            resume.display()
        )),
        _ => Ok(()),
    }
}

fn refuse_existing(flag: &str, path: Option<&Path>) -> Result<(), Failure> {
    let Some(name) = path.filter(|p| p.exists()).map(Path::display) else { return Ok(()) };
    Err(Failure::new(format!("{flag} {name}: exists, and is not overwritten: choose another name or move it away")))
}

/// Parses the goal, and the limits of `--keep`.
fn goals(args: &TuneArgs, names: &[String]) -> Result<(Goal, Vec<Keep>), String> {
    let goal = match (&args.maximize, &args.minimize) {
        (Some(text), _) => Goal::parse(true, text, names),
        (None, Some(text)) => Goal::parse(false, text, names),
        (None, None) => Err("--maximize or --minimize: one of them is required, with the metric to improve".to_owned()),
    };
    let keeps = args.keep.iter().map(|k| Keep::parse(k, names)).collect::<Result<_, _>>();
    Ok((goal?, keeps?))
}

/// Returns the lengths of a screening run and of a confirming run.
fn run_seconds(args: &TuneArgs, jobs: &Loaded, is_guests: bool) -> Result<(f64, f64), String> {
    let longest = jobs.file.jobs.iter().filter_map(|j| j.runtime_ns).max().map(|ns| ns as f64 / 1e9);
    let (usual, least) =
        if is_guests { (GUEST_SECONDS, GUEST_SHORT_SECONDS_MIN) } else { (RUN_SECONDS, SHORT_SECONDS_MIN) };
    let full = match &args.runtime {
        Some(text) => seconds("--runtime", text)?,
        None => longest.unwrap_or(usual),
    };
    Ok(((full * SHORT_SHARE).max(least).min(full), full))
}

/// Rejects arguments about jobs if the load is not jobs.
fn no_jobs(args: &TuneArgs) -> Result<(), String> {
    let flags = [
        ("JOB", args.job.job.is_some()),
        ("--job-set", !args.job.job_set.is_empty()),
        ("--section", !args.job.section.is_empty()),
        ("--free", !args.free.is_empty()),
        ("--force", args.job.force),
    ];
    match flags.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((flag, _)) => Err(format!(
            "{flag}: the target has [guests], and their users are the load instead of jobs; leave {flag} out, and name \
             the users by --maximize usersN.tpm"
        )),
    }
}

fn free(args: &TuneArgs, jobs: &Loaded) -> Result<Vec<(String, Vec<String>)>, Failure> {
    let one = |(name, values): &(String, String)| {
        let values = point::parse_values("--free", name, values)?;
        world_bench::check_free(&jobs.file, name, &values)?;
        Ok((name.clone(), values))
    };
    args.free.iter().map(one).collect::<Result<_, String>>().map_err(Failure::new)
}
