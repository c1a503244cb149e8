// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The flags of subcommands, their help, and the form (not the meaning) of their values.

use crate::completion;
use crate::job_flags::Taken;
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum, ValueHint};
use lab::report::fio_terse::VERSIONS;
use sim::kind::Kind;
use sim::study::Study;
use std::path::{Path, PathBuf};
use workload::job::command_line_time_ns;

/// Headings of the help.
const JOBS: &str = "Jobs and stack";
const RUNS: &str = "Runs";
const OUTPUT: &str = "Output";
const SIDES: &str = "Sides";
const TRACE: &str = "Trace";
const MACHINE_FILE: &str = "Machine file";
const STACK: &str = "A stack";
const HOST: &str = "This host";
const LIVE: &str = "A run in progress";
const SCENARIO: &str = "Scenario or machine";
const STUDY: &str = "Study";
const CASES: &str = "Cases";

/// What names the jobs.
#[derive(Args, Debug)]
pub struct JobArgs<const NEEDED: bool = true> {
    /// fio job file; - reads standard input
    #[arg(value_name = "JOB", required = NEEDED)]
    pub job: Option<PathBuf>,
    /// Target of every job, in place of filename=: null, ram, a path, or another target (--help lists all)
    #[arg(help_heading = JOBS, long, value_name = "TARGET", value_hint = ValueHint::AnyPath)]
    pub target: Option<String>,
    /// Set an option of every job, overriding the job file; OPTION alone sets a flag
    #[arg(help_heading = JOBS, long = "job-set", value_name = "OPTION[=VALUE]", value_parser = option_value,
          add = completion::job_options())]
    pub job_set: Vec<(String, String)>,
    /// Run only this section; may be repeated
    #[arg(help_heading = JOBS, long, value_name = "NAME")]
    pub section: Vec<String>,
    /// Setting of the block layer, under its kernel name; may be repeated
    #[arg(help_heading = JOBS, long = "set", value_name = "KEY=VALUE", value_parser = key_value, add = completion::settings())]
    pub settings: Vec<(String, String)>,
    /// Use a target kernel:/dev/X even if it is mounted, in use, or has data that the jobs overwrite
    #[arg(help_heading = JOBS, long)]
    pub force: bool,
    /// Progress on standard error: auto = after two seconds, if it is a terminal
    #[arg(help_heading = OUTPUT, long, value_enum, default_value_t = Eta::Auto, value_name = "WHEN")]
    pub eta: Eta,
    /// Jobs and files that fio takes from its command line.
    #[arg(skip)]
    pub typed: Taken,
}

impl<const NEEDED: bool> JobArgs<NEEDED> {
    /// Returns the job file as the user named it; empty if none was named.
    pub fn path(&self) -> &Path {
        self.job.as_deref().unwrap_or(Path::new(""))
    }

    /// Returns the job files as the user named them.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.job.iter().chain(&self.typed.more_files).map(PathBuf::as_path)
    }
}

/// `mqblk run`.
#[derive(Args, Debug)]
#[command(override_usage = "mqblk run [OPTIONS] [JOB...] [--name=JOB [--OPTION=VALUE...]]...")]
pub struct RunArgs {
    /// The jobs.
    #[command(flatten)]
    pub job: JobArgs<false>,
    /// Refuse jobs that write or trim
    #[arg(help_heading = JOBS, long)]
    pub readonly: bool,
    /// Check the jobs, and run nothing
    #[arg(help_heading = JOBS, long)]
    pub parse_only: bool,
    /// Print the jobs as a command line, and run nothing
    #[arg(help_heading = OUTPUT, long)]
    pub showcmd: bool,
    /// Print the results so far every TIME (seconds, or 500ms, 1m), in the chosen formats; SIGUSR1 prints them once
    #[arg(help_heading = OUTPUT, long, value_name = "TIME", value_parser = status_interval)]
    pub status_interval: Option<u64>,
    /// Update the progress every TIME, at least 250ms [default: 500ms]
    #[arg(help_heading = OUTPUT, long, value_name = "TIME", value_parser = eta_interval)]
    pub eta_interval: Option<u64>,
    /// Leave the progress on the screen every TIME, and continue in a new line
    #[arg(help_heading = OUTPUT, long, value_name = "TIME", value_parser = eta_newline)]
    pub eta_newline: Option<u64>,
    /// Print how idle this host's CPUs were
    #[arg(help_heading = OUTPUT, long, value_enum, value_name = "WHAT")]
    pub idle_prof: Option<IdleProf>,
    /// Directory for verify states (verify_state_save, verify_state_load) and bad blocks (verify_dump) [default: the working directory]
    #[arg(help_heading = OUTPUT, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub aux_path: Option<PathBuf>,
    /// Accepted from fio's command lines, without effect: memory and jobs have no such limits.
    #[arg(long, hide = true, value_name = "KIB")]
    pub alloc_size: Option<String>,
    #[arg(long, hide = true, value_name = "N")]
    pub max_jobs: Option<String>,
    /// Same as --output-format=json
    #[arg(help_heading = OUTPUT, long, conflicts_with_all = ["output_format", "json_plus"])]
    pub json: bool,
    /// Same as --output-format=json+
    #[arg(help_heading = OUTPUT, long = "json+", conflicts_with = "output_format")]
    pub json_plus: bool,
    /// What to print, in this order
    #[arg(help_heading = OUTPUT, long, value_enum, value_delimiter = ',', default_value = "normal", value_name = "FORMAT[,FORMAT]")]
    pub output_format: Vec<Format>,
    /// Same as --output-format=terse
    #[arg(help_heading = OUTPUT, long, conflicts_with_all = ["json", "json_plus", "output_format"])]
    pub minimal: bool,
    /// Version of the terse format
    #[arg(help_heading = OUTPUT, long, default_value_t = 3, value_name = "N",
          value_parser = clap::value_parser!(u32).range(i64::from(*VERSIONS.start())..=i64::from(*VERSIONS.end())))]
    pub terse_version: u32,
    /// Write the results to this file instead of standard output
    #[arg(help_heading = OUTPUT, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write a page with charts to FILE (must end in .html), and its data beside it as .json
    #[arg(help_heading = OUTPUT, long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Trace every request's life (queued, merged, issued, completed, ...) into PREFIX.blktrace.CPU; read it with
    /// 'blkparse -i PREFIX'
    #[arg(help_heading = TRACE, long, value_name = "PREFIX")]
    pub trace: Option<PathBuf>,
    /// Layout of the trace
    #[arg(help_heading = TRACE, long, value_enum, default_value_t = TraceLayout::Blktrace, value_name = "FORMAT", requires = "trace")]
    pub trace_format: TraceLayout,
    /// Maximum number of events traced per job thread, 32 bytes each; later events are dropped
    #[arg(help_heading = TRACE, long, default_value_t = 1 << 20, value_name = "N", requires = "trace",
          value_parser = clap::value_parser!(u64).range(1..=TRACE_EVENTS_MAX))]
    pub trace_events: u64,
}

/// Whose idleness to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IdleProf {
    /// The mean of all CPUs
    System,
    /// The mean, and each CPU
    Percpu,
}

/// Maximum number of events a thread may be asked to trace: 4 GiB.
const TRACE_EVENTS_MAX: u64 = 1 << 27;

/// A layout of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TraceLayout {
    /// blktrace's binary files, one per CPU, for blkparse and btt
    Blktrace,
    /// PREFIX.json in Chrome's trace event format, for Perfetto
    Chrome,
}

/// `mqblk compare`.
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// The jobs.
    #[command(flatten)]
    pub job: JobArgs,
    /// Side A: KEY=VALUE[,KEY=VALUE...], overrides --set; target=TARGET takes the rest of its argument [default: no
    /// changes]
    #[arg(help_heading = SIDES, long, default_value = "default", hide_default_value = true, value_name = "SETTINGS", add = completion::settings())]
    pub a: Vec<String>,
    /// Side B, in the form of --a
    #[arg(help_heading = SIDES, long, required_unless_present = "side", value_name = "SETTINGS", add = completion::settings())]
    pub b: Vec<String>,
    /// A named side, instead of --a and --b; may be repeated: each side is compared with the first
    #[arg(help_heading = SIDES, long, value_name = "NAME:SETTINGS", conflicts_with_all = ["a", "b"])]
    pub side: Vec<String>,
    /// Base the verdict on the jobs of this name; the other jobs are shown beside it
    #[arg(help_heading = SIDES, long, value_name = "JOB")]
    pub judge: Option<String>,
    /// Pairs of runs, an even number (order ABBA or BAAB); with more than two sides, rounds of all sides [default: 12;
    /// 14 for three sides, 20 for sixteen]
    #[arg(help_heading = RUNS, long, value_name = "N")]
    pub pairs: Option<u32>,
    /// Warm-up runs of each side before the first pair; their results are discarded
    #[arg(help_heading = RUNS, long, default_value_t = 1, value_name = "N")]
    pub warmup: u32,
    /// Length of each run, in place of the job file's: seconds, or with a unit (1500ms)
    #[arg(help_heading = RUNS, long, value_name = "TIME")]
    pub runtime: Option<String>,
    /// Seed of the order of the runs [default: random; it is printed]
    #[arg(help_heading = RUNS, long, value_name = "N")]
    pub seed: Option<u64>,
    /// File for the raw results, written after every pair [default: mqblk-compare-TIME.jsonl in the working directory]
    #[arg(help_heading = OUTPUT, long, value_name = "FILE")]
    pub results: Option<PathBuf>,
    /// Run as many pairs as are needed to detect a difference of this size, given the spread of the first --pairs
    #[arg(help_heading = RUNS, long, value_name = "PERCENT")]
    pub detect: Option<String>,
    /// With --detect: maximum number of pairs; if more are needed, only report how many
    #[arg(help_heading = RUNS, long, default_value_t = 200, value_name = "N", requires = "detect")]
    pub max_pairs: u32,
    /// Resume an interrupted comparison from its results file; give the same options as before
    #[arg(help_heading = RUNS, long, value_name = "FILE", conflicts_with = "results")]
    pub resume: Option<PathBuf>,
    /// Write a page with charts to FILE (must end in .html), and its data beside it as .json
    #[arg(help_heading = OUTPUT, long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Also write to this file what --json prints
    #[arg(help_heading = OUTPUT, long, value_name = "FILE")]
    pub export_json: Option<PathBuf>,
    /// Write the table as comma-separated values: times in nanoseconds
    #[arg(help_heading = OUTPUT, long, value_name = "FILE")]
    pub export_csv: Option<PathBuf>,
    /// Write the table as Markdown
    #[arg(help_heading = OUTPUT, long, value_name = "FILE")]
    pub export_markdown: Option<PathBuf>,
    /// Exit with 1 if a difference was found, as git diff does
    #[arg(help_heading = OUTPUT, long)]
    pub exit_code: bool,
    /// Print JSON
    #[arg(help_heading = OUTPUT, long)]
    pub json: bool,
}

/// `mqblk report`.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Results file of a comparison or a tuning
    #[arg(value_name = "RESULTS")]
    pub results: PathBuf,
    /// The page (must end in .html); its data is written beside it as .json [default: the results file's name with
    /// .html]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Also write each chart as a separate SVG file into this directory; files of the same names are replaced
    #[arg(long, value_name = "DIR")]
    pub charts: Option<PathBuf>,
    /// Print the page's data as JSON, and write no file
    #[arg(long, conflicts_with_all = ["output", "charts"])]
    pub json: bool,
}

/// `mqblk inspect`.
#[derive(Args, Debug)]
pub struct InspectArgs {
    /// Block device of this host; the same as --host DEV
    #[arg(value_name = "DEV", conflicts_with_all = ["host", "target", "settings", "live"])]
    pub device: Option<String>,
    /// Write a machine file of this host and disk DEV, for 'mqblk sim' and 'mqblk profile --machine'
    #[arg(help_heading = MACHINE_FILE, long, value_name = "FILE", conflicts_with_all = ["live", "json", "target", "settings"])]
    pub export: Option<PathBuf>,
    /// With --export: take the CPU costs from another machine file, such as 'mqblk calibrate' writes
    #[arg(help_heading = MACHINE_FILE, long, value_name = "FILE", requires = "export")]
    pub costs: Option<PathBuf>,
    /// With --export: replace FILE
    #[arg(help_heading = MACHINE_FILE, long, requires = "export")]
    pub force: bool,
    /// Target under the stack; a file must exist, and mqblk only reads it
    #[arg(help_heading = STACK, long, default_value = "null", value_name = "TARGET", conflicts_with = "host")]
    pub target: String,
    /// Setting of the block layer, under its kernel name; may be repeated
    #[arg(help_heading = STACK, long = "set", value_name = "KEY=VALUE", value_parser = key_value, add = completion::settings(), conflicts_with = "host")]
    pub settings: Vec<(String, String)>,
    /// Show the kernel's settings of this host's block device DEV, or of all
    #[arg(help_heading = HOST, long, num_args = 0..=1, default_missing_value = "", value_name = "DEV")]
    pub host: Option<String>,
    /// Show the state of a run in progress, file by file as debugfs does; PID selects one of several runs
    #[arg(help_heading = LIVE, long, num_args = 0..=1, default_missing_value = "0", value_name = "PID", conflicts_with_all = ["host", "target", "settings"])]
    pub live: Option<u32>,
    /// Only this file or directory of the state (hctx0, sched/queued); may be repeated
    #[arg(help_heading = LIVE, long, value_name = "PATH", requires = "live")]
    pub path: Vec<String>,
    /// Print JSON
    #[arg(help_heading = OUTPUT, long)]
    pub json: bool,
}

/// `mqblk profile`.
#[derive(Args, Debug)]
pub struct ProfileArgs {
    /// Trace: PREFIX of the files PREFIX.blktrace.N, a file of blktrace records, or a file of blkparse lines
    #[arg(value_name = "TRACE", required_unless_present = "from")]
    pub trace: Option<PathBuf>,
    /// Instead of a trace: the JSON results of a run, from fio or 'mqblk run --json'
    #[arg(long, value_name = "RUN.json", conflicts_with = "trace")]
    pub from: Option<PathBuf>,
    /// Device to profile if the trace has several, as MAJOR,MINOR
    #[arg(long, value_name = "MAJ,MIN", requires = "trace")]
    pub device: Option<String>,
    /// Write the job file to FILE instead of standard output
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Add the disk's times and the measured figures to this machine file; if missing, it is created from this host
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// Print the profile as JSON instead of a job file
    #[arg(long)]
    pub json: bool,
}

/// `mqblk set`.
#[derive(Args, Debug)]
pub struct SetArgs {
    /// Setting of the block layer, under its kernel name; several take effect together
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = key_value, add = completion::settings())]
    pub settings: Vec<(String, String)>,
    /// Process id of the run, if several are in progress
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// Only the disk of this name, as the run reports it
    #[arg(long, value_name = "TARGET")]
    pub disk: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mqblk restore`.
#[derive(Args, Debug)]
pub struct RestoreArgs {
    /// Disks, such as sda or /dev/sda [default: all]
    #[arg(value_name = "DEV")]
    pub devices: Vec<String>,
    /// Print the restored settings as JSON
    #[arg(long)]
    pub json: bool,
}

/// `mqblk sim`.
#[derive(Args, Debug)]
#[command(group(clap::ArgGroup::new("table").args(["scenario", "study"])))]
#[command(group(clap::ArgGroup::new("question").args(["jobs", "what_if"]).multiple(true)))]
pub struct SimArgs {
    /// A scenario (scenarios/*.toml): simulate its rows and compare them with the published figures; without a
    /// scenario, run test cases of the block layer from seeds
    #[arg(value_name = "SCENARIO.toml", conflicts_with_all = ["count", "kind"])]
    pub scenario: Option<PathBuf>,
    /// Simulate this job file on the machine of SCENARIO.toml (needs no rows), and compare with its measured figures
    #[arg(help_heading = SCENARIO, long, value_name = "JOB", requires = "scenario")]
    pub jobs: Option<PathBuf>,
    /// Predict the effect of a change: nr_hw_queues=8, disk.read_us=80, lun_queue_depth=32, job.iodepth=64,
    /// costs.path.irq_ns=2000, iothreads=4; changes joined by commas apply together; may be repeated
    #[arg(help_heading = SCENARIO, long = "what-if", value_name = "KEY=VALUE[,...]", requires = "scenario")]
    pub what_if: Vec<String>,
    /// Number of possible machines per what-if; the constants of each are random within their known ranges
    #[arg(help_heading = SCENARIO, long, default_value_t = sim::whatif::DEFAULT_MEMBERS, value_name = "N", requires = "question",
          value_parser = clap::value_parser!(u32).range(4..=1000))]
    pub members: u32,
    /// Approximate number of I/Os per run of a what-if
    #[arg(help_heading = SCENARIO, long, default_value_t = sim::whatif::DEFAULT_IOS, value_name = "N", requires = "question",
          value_parser = clap::value_parser!(u64).range(500..=100_000_000))]
    pub ios: u64,
    // The names are the studies' own.
    #[arg(
        help_heading = STUDY,
        long,
        value_name = "STUDY",
        value_parser = study,
        conflicts_with_all = ["count", "kind"],
        help = format!("A scaling study: {}", Study::ALL.map(Study::name).join(", "))
    )]
    pub study: Option<Study>,
    /// Machine file for the study, such as 'mqblk calibrate' writes [default: a built-in machine]
    #[arg(help_heading = STUDY, long, value_name = "FILE", requires = "study")]
    pub machine: Option<PathBuf>,
    /// Also measure, on the null device, the points that this host has enough CPUs for, and simulate mqblk itself at these points
    #[arg(help_heading = STUDY, long, requires = "study")]
    pub measure: bool,
    /// Fewer I/Os for each point of the study
    #[arg(help_heading = STUDY, long, requires = "study")]
    pub quick: bool,
    /// Print the figures of a scenario or study as JSON
    #[arg(help_heading = OUTPUT, long, requires = "table")]
    pub json: bool,
    /// Write the scenario, what-if or study as a page (must end in .html), and its data beside it as .json
    #[arg(help_heading = OUTPUT, long, value_name = "FILE.html", requires = "table")]
    pub report: Option<PathBuf>,
    /// The seed of the cases, or the first of several
    #[arg(help_heading = CASES, long, default_value_t = 0, value_name = "SEED")]
    pub seed: u64,
    /// Number of seeds, from --seed on; with 1, the cases are shown event by event
    #[arg(help_heading = CASES, long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: u64,
    /// Kind of case; each seed has one case of each kind
    #[arg(help_heading = CASES, long, value_enum, default_value_t = SimKind::Due, value_name = "KIND")]
    pub kind: SimKind,
    /// Progress on standard error: auto = after two seconds, if it is a terminal
    #[arg(help_heading = OUTPUT, long, value_enum, default_value_t = Eta::Auto, value_name = "WHEN")]
    pub eta: Eta,
}

/// Which cases of a seed are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimKind {
    /// Those that are due for it: [`Kind::is_due`].
    Due,
    /// Those of one kind.
    Only(Kind),
}

impl SimKind {
    const ALL: [SimKind; 1 + Kind::ALL.len()] = {
        let mut all = [SimKind::Due; 1 + Kind::ALL.len()];
        let mut i = 0;
        while i < Kind::ALL.len() {
            all[1 + i] = SimKind::Only(Kind::ALL[i]);
            i += 1;
        }
        all
    };

    /// Whether the case of this kind runs for this seed.
    pub fn takes(self, kind: Kind, seed: u64) -> bool {
        match self {
            SimKind::Due => kind.is_due(seed),
            SimKind::Only(only) => kind == only,
        }
    }
}

impl ValueEnum for SimKind {
    fn value_variants<'a>() -> &'a [SimKind] {
        &SimKind::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            SimKind::Due => {
                let others = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Disk);
                let others =
                    others.map(|kind| format!("the {} case for one seed in {}", kind.name(), kind.one_seed_in()));
                let others = others.collect::<Vec<_>>().join(", ");
                PossibleValue::new("due").help(format!("The disk case, plus {others}"))
            }
            SimKind::Only(kind) => PossibleValue::new(kind.name()).help(kind.help()),
        })
    }
}

/// `mqblk discover`.
#[derive(Args, Debug)]
pub struct DiscoverArgs {
    // Brackets in a doc comment are links.
    #[arg(
        value_name = "PORTAL",
        help = "iscsi://[USER@]HOST[:PORT][?OPTIONS]; options are those of a target, such as initiator=NAME; the \
                CHAP password is read from the environment: LIBISCSI_CHAP_PASSWORD"
    )]
    pub portal: String,
    /// Log in to each target at this portal and list its disks, with the value for --target
    #[arg(long)]
    pub luns: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mqblk cmdhelp`.
#[derive(Args, Debug)]
pub struct CmdhelpArgs {
    /// Option of a job file [default: list all]
    #[arg(value_name = "OPTION", add = completion::job_options())]
    pub option: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mqblk manual`.
#[derive(Args, Debug)]
pub struct ManualArgs {
    /// Directory for the pages, which must exist
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// The annotated configuration for mqblk-serve(5): examples/serve.toml of the source tree
    #[arg(long, value_name = "FILE")]
    pub example: PathBuf,
}

/// When progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Eta {
    /// After two seconds, if standard error is a terminal.
    Auto,
    /// Always, once a second.
    Always,
    /// Not at all.
    Never,
}

/// A layout of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// fio's text, and where the time went
    Normal,
    /// fio's JSON, with one more key, `mqblk`
    Json,
    /// JSON with the histograms
    #[value(name = "json+")]
    JsonPlus,
    /// fio's fields separated by ';', one line for each job or group
    Terse,
}

/// A study by its name.
fn study(name: &str) -> Result<Study, String> {
    Study::ALL.into_iter().find(|s| s.name() == name).ok_or_else(|| {
        let names = Study::ALL.map(Study::name);
        let hint =
            blk::suggest::nearest(name, names.into_iter()).map_or(String::new(), |n| format!("; did you mean '{n}'?"));
        format!("must be one of {}{hint}", names.join(", "))
    })
}

/// A number of bytes.
pub fn size(text: &str) -> Result<u64, String> {
    host::target::bytes(text).ok_or_else(|| format!("'{text}': must be a number of bytes, or with a unit such as 20G"))
}

/// `KEY=VALUE`.
pub fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() && !value.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("must be KEY=VALUE, such as mode=sq".to_owned()),
    }
}

/// A time of fio's command line, in nanoseconds.
fn time(text: &str, least_ms: u64) -> Result<u64, String> {
    let ns = command_line_time_ns(text)?;
    if ns < least_ms * 1_000_000 { Err(format!("must be at least {least_ms}ms")) } else { Ok(ns) }
}

fn status_interval(text: &str) -> Result<u64, String> {
    time(text, 1)
}

fn eta_interval(text: &str) -> Result<u64, String> {
    time(text, 250)
}

fn eta_newline(text: &str) -> Result<u64, String> {
    time(text, 1)
}

/// `OPTION=VALUE` or `OPTION`.
fn option_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    if key.trim().is_empty() {
        return Err("must be OPTION=VALUE, such as iodepth=32, or OPTION for a flag".to_owned());
    }
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_values() {
        assert_eq!(key_value("mode= sq"), Ok(("mode".into(), "sq".into())));
        assert!(key_value("mode").is_err() && key_value("=sq").is_err() && key_value("mode=").is_err());
        assert_eq!(option_value("time_based"), Ok(("time_based".into(), String::new())));
        assert!(option_value("=4k").is_err());
    }
}
