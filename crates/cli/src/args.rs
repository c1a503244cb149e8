// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can be typed: subcommands and flags, their help, and the form (not the meaning) of their values.

use crate::calibrate::CalibrateArgs;
use crate::multipath::MultipathArgs;
use crate::serve::args::ServeArgs;
use crate::serve::control::ctl::CtlArgs;
use crate::serve::top::TopArgs;
use crate::tune::args::TuneArgs;
use blk::settings::SETTINGS;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use host::run::RUN_SETTINGS;
use sim::swarm::Kind;
use std::fmt::Write;
use std::path::{Path, PathBuf};

const EXIT_STATUS: &str = "\
Exit status:
  0    done
  1    found: a difference (compare), a limit that no setting keeps (tune), I/O errors or data that do not verify (run;
       compare and tune then give no verdict)
  2    usage or operating error; one message says rule, value and remedy
  130  broken off by Ctrl-C or SIGTERM; what was measured until then is printed";

const EXAMPLES: &str = "\
Examples:
  mqblk run job.fio                                    run fio jobs, results as fio prints them
  mqblk run job.fio --target null:size=16g --json      the same I/O without a disk
  mqblk run job.fio --trace t && blkparse -i t         every request's life, as blktrace shows it
  mqblk compare job.fio --a mode=sq --b mode=mq        single-queue against multi-queue
  mqblk compare job.fio --a scheduler=none --b scheduler=mq-deadline --target /dev/nvme0n1
  mqblk tune job.fio --target null --maximize a.iops   which settings, by how much, and why
  mqblk compare job.fio --target kernel:/dev/nvme0n1 --a scheduler=none --b scheduler=kyber
                                                       the kernel's own block layer, settings put back
  mqblk compare job.fio --target sim:scenarios/azure-p80.toml --a nr_hw_queues=1 --b nr_hw_queues=32
                                                       a machine that one does not have, in virtual time
  mqblk compare job.fio --a mode=sq --b mode=mq --report out.html
                                                       the same as a page with charts; later: mqblk report RESULTS
  mqblk inspect --set nr_hw_queues=2                   settings and CPU -> hctx map of a stack
  mqblk inspect --host sda                             what this host's kernel has set for sda
  mqblk inspect --live --path hctx0/busy               requests at the device, of a run that is going on
  mqblk set scheduler=kyber queue_depth=32             change a run that is going on
  mqblk serve disk.img                                 a file over vhost-user-blk and NBD; prints the clients' commands
  mqblk multipath -ll                                  the paths of its disks, as multipath -ll shows them
  mqblk ctl list; mqblk top                            what it serves, and what it does, live
  mqblk sim scenarios/azure-p80.toml                   a published test, simulated: figures side by side, and why
  mqblk inspect /dev/sda --export m.toml               this host and a disk as a machine file
  mqblk profile TRACE --output j.fio --machine m.toml  a workload as a job file, and how long its disk takes
  mqblk sim m.toml --jobs j.fio --what-if nr_hw_queues=8
                                                       what another setting, disk or machine would do
  mqblk sim --seed 7                                   a simulated case, event by event
  mqblk sim --study cpus                               single- against multi-queue on 1 to 256 CPUs
  mqblk calibrate --out here.toml                      this host's costs as a machine file for it
  mqblk discover iscsi://10.0.0.5 --luns               targets and disks of an iSCSI portal
  mqblk cmdhelp iodepth                                what an option of a job file does here";

const TARGETS: &str = "\
Targets (in a job file also as filename=):
  PATH, file:PATH      a regular file (created if the job gives a size) or a block device
  null[:OPTIONS]       completes at once; size, blocksize, completion_nsec
  ram[:OPTIONS]        keeps data in memory; size, blocksize
  model[:OPTIONS]      a device with latency and caps: size, lat_us, lat_read_us, lat_write_us, jitter_pct,
                       iops, bw, burst_ms, parallel, seed, over=null|ram
  nbd://HOST[:PORT]/EXPORT, nbd+unix:///EXPORT?socket=PATH
                       an NBD server; &connections=4, &reconnect_delay=SECONDS, &timeout=SECONDS behind a '?'
  nbds://HOST[:PORT]/EXPORT, nbds+unix:///EXPORT?socket=PATH
                       the same under TLS; &tls-certificates=DIR (ca-cert.pem, and client-cert.pem with
                       client-key.pem if the server wants them), &tls-hostname=NAME, &tls-verify-peer=0
  rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][:NAME=VALUE...]
                       an image of a Ceph cluster, named as in QEMU; conf=FILE, id=USER, images=N, exclusive=1,
                       and options of Ceph's configuration
  iscsi://[USER@]HOST[:PORT]/IQN/LUN
                       a logical unit of an iSCSI target; &sessions=4, &recovery_timeout=SECONDS,
                       &header_digest=crc32c, &data_digest=crc32c behind a '?'; USER's password is in the
                       environment: LIBISCSI_CHAP_PASSWORD
  multipath:[OPTIONS:]TARGET+TARGET...
                       one disk by several paths; conf=/etc/multipath.conf, or its options one by one:
                       path_grouping_policy, prio, detect_prio, failback, no_path_retry ... (docs/multipath.md)
  kernel:/dev/X        a block device of the kernel, without the block layer of mqblk: I/O goes to it through io_uring,
                       --set writes to /sys/block/X/queue (scheduler, nr_requests, iosched.NAME, nomerges, ...) and
                       all is put back at the end; for run, compare and tune
  sim:FILE             a simulated machine, in virtual time: FILE is TOML with [machine] and [disk], such as
                       scenarios/azure-p80.toml; for run, compare and tune (docs/scenarios.md)
  OPTIONS are name=value, separated by commas: model:size=16t,iops=18000,bw=750m,lat_us=2000";

/// A multi-queue block layer in user space: runs fio job files through it, compares its settings, shows them.
#[derive(Debug, Parser)]
#[command(name = "mqblk", version, max_term_width = 120, subcommand_required = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a fio job file and report as fio does, and where the time went
    Run(RunArgs),
    /// Compare two settings by interleaved runs of a job file: ratios with intervals, and a verdict
    Compare(CompareArgs),
    /// Search for settings that make a job better while others are kept, and confirm them by fresh interleaved runs
    Tune(TuneArgs),
    /// Make a page with charts (HTML, and JSON beside it) from a results file
    Report(ReportArgs),
    /// Make a job file of a workload: from a trace of a disk, or from the results of a run
    Profile(ProfileArgs),
    /// Show the settings of a stack and its CPU -> hctx map, those of this host's disks, or the state of a run
    Inspect(InspectArgs),
    /// Serve disks to VMs and hosts over vhost-user-blk, NBD, FUSE or ublk
    Serve(ServeArgs),
    /// Ask a daemon that serves: list, add, remove, resize, set, stats, drain, move virtqueues
    Ctl(CtlArgs),
    /// Show live what a daemon that serves does: disks, hardware queues, IOThreads, latencies of virtqueues and clients
    Top(TopArgs),
    /// List multipath disks of a daemon that serves, as multipath -ll does, or print a multipath.conf as multipath -t does
    Multipath(MultipathArgs),
    /// Change settings of a run while it goes on
    Set(SetArgs),
    /// Put back settings of kernel devices that a killed run has left changed
    Restore(RestoreArgs),
    /// Run the block layer in simulation: random stacks, devices and faults from a seed, everything checked
    Sim(SimArgs),
    /// Measure what things cost on this host: cache lines, wake-ups, interrupts, our block layer; write them as a machine file
    Calibrate(CalibrateArgs),
    /// List the targets of an iSCSI portal, and their disks
    Discover(DiscoverArgs),
    /// List the options of job files, or explain one
    Cmdhelp(CmdhelpArgs),
}

/// What names the jobs.
#[derive(Args, Clone, Debug)]
pub struct JobArgs<const NEEDED: bool = true> {
    /// fio job file; - reads standard input
    #[arg(value_name = "JOB", required = NEEDED)]
    pub job: Option<PathBuf>,
    /// Put this under every job instead of its filename: null, ram, model, file:PATH or a path
    #[arg(long, value_name = "TARGET")]
    pub target: Option<String>,
    /// Set an option of every job, after those of the file; OPTION alone sets a flag
    #[arg(long = "job-set", value_name = "OPTION[=VALUE]", value_parser = option_value)]
    pub job_set: Vec<(String, String)>,
    /// Run only this section; may be repeated
    #[arg(long, value_name = "NAME")]
    pub section: Vec<String>,
    /// Setting of the block layer, under its kernel name; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub settings: Vec<(String, String)>,
    /// Use a kernel: target also while it is mounted or in use, and write over what is on it
    #[arg(long)]
    pub force: bool,
    /// Progress on standard error: auto = after two seconds, if it is a terminal
    #[arg(long, value_enum, default_value_t = Eta::Auto, value_name = "WHEN")]
    pub eta: Eta,
}

impl<const NEEDED: bool> JobArgs<NEEDED> {
    /// The job file as it was named; empty where none was.
    pub fn path(&self) -> &Path {
        self.job.as_deref().unwrap_or(Path::new(""))
    }
}

/// `mqblk run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// The jobs.
    #[command(flatten)]
    pub job: JobArgs,
    /// Same as --output-format=json
    #[arg(long, conflicts_with_all = ["output_format", "json_plus"])]
    pub json: bool,
    /// Same as --output-format=json+
    #[arg(long = "json+", conflicts_with = "output_format")]
    pub json_plus: bool,
    /// What to print, in this order
    #[arg(long, value_enum, value_delimiter = ',', default_value = "normal", value_name = "FORMAT[,FORMAT]")]
    pub output_format: Vec<Format>,
    /// Write the results to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write a page with charts to FILE, which ends in .html, and all that it shows beside it as .json
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Trace every request's life (queued, merged, issued, completed, ...) into PREFIX.blktrace.CPU; read it with
    /// 'blkparse -i PREFIX'
    #[arg(long, value_name = "PREFIX")]
    pub trace: Option<PathBuf>,
    /// Layout of the trace
    #[arg(long, value_enum, default_value_t = TraceLayout::Blktrace, value_name = "FORMAT", requires = "trace")]
    pub trace_format: TraceLayout,
    /// Most events traced per job thread, of 32 bytes each; the first ones are kept
    #[arg(long, default_value_t = 1 << 20, value_name = "N", requires = "trace",
          value_parser = clap::value_parser!(u64).range(1..=TRACE_EVENTS_MAX))]
    pub trace_events: u64,
}

/// Most events a thread may be asked to trace: 4 GiB.
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
    /// Side A: KEY=VALUE[,KEY=VALUE...] over --set, `default` for none; target=TARGET takes the rest of its argument
    #[arg(long, required = true, value_name = "SETTINGS")]
    pub a: Vec<String>,
    /// Side B, as --a
    #[arg(long, required = true, value_name = "SETTINGS")]
    pub b: Vec<String>,
    /// The verdict is about the jobs of this name; what becomes of the others is shown beside it
    #[arg(long, value_name = "JOB")]
    pub judge: Option<String>,
    /// Pairs of runs; they go ABBA or BAAB, so an even number
    #[arg(long, default_value_t = lab::plan::Plan::DEFAULT_PAIRS, value_name = "N")]
    pub pairs: u32,
    /// Runs of each side before the first pair, thrown away
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub warmup: u32,
    /// Length of each run, in place of the job file's: seconds, or with a unit (1500ms)
    #[arg(long, value_name = "TIME")]
    pub runtime: Option<String>,
    /// Seed of the order of the runs [default: drawn, and printed]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// File for the raw results, written after every pair [default: mqblk-compare-TIME.jsonl here]
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
    /// Run as many pairs as it takes to find a difference of this size, by the spread of the first --pairs
    #[arg(long, value_name = "PERCENT")]
    pub detect: Option<String>,
    /// With --detect: where it takes more pairs than this, say so instead
    #[arg(long, default_value_t = 200, value_name = "N", requires = "detect")]
    pub max_pairs: u32,
    /// Go on with a comparison that was broken off, from its results file; give the same options as then
    #[arg(long, value_name = "FILE", conflicts_with = "results")]
    pub resume: Option<PathBuf>,
    /// Write a page with charts to FILE, which ends in .html, and all that it shows beside it as .json
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mqblk report`.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Results file of a comparison or a tuning
    #[arg(value_name = "RESULTS")]
    pub results: PathBuf,
    /// The page, which ends in .html; all that it shows goes beside it as .json [default: the results file's name with .html]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write each chart as an SVG file of its own into this directory, too; files of these names are replaced
    #[arg(long, value_name = "DIR")]
    pub charts: Option<PathBuf>,
}

/// `mqblk inspect`.
#[derive(Args, Debug)]
pub struct InspectArgs {
    /// Block device of this host; the same as --host DEV
    #[arg(value_name = "DEV", conflicts_with_all = ["host", "target", "settings", "live"])]
    pub device: Option<String>,
    /// Write this host, with the disk that is named, as a machine file for 'mqblk sim' and 'mqblk profile --machine'
    #[arg(long, value_name = "FILE", conflicts_with_all = ["live", "json", "target", "settings"])]
    pub export: Option<PathBuf>,
    /// With --export: take what the CPUs' work costs from another machine file, such as one of 'mqblk calibrate'
    #[arg(long, value_name = "FILE", requires = "export")]
    pub costs: Option<PathBuf>,
    /// With --export: replace FILE
    #[arg(long, requires = "export")]
    pub force: bool,
    /// The target the stack is put on; a file must exist and is only read
    #[arg(long, default_value = "null", value_name = "TARGET", conflicts_with = "host")]
    pub target: String,
    /// Setting of the block layer, under its kernel name; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value, conflicts_with = "host")]
    pub settings: Vec<(String, String)>,
    /// Show the kernel's settings of this host's block device DEV, or of all
    #[arg(long, num_args = 0..=1, default_missing_value = "", value_name = "DEV")]
    pub host: Option<String>,
    /// Show the state of a run that is going on, file by file as debugfs shows it; PID says which if there are several
    #[arg(long, num_args = 0..=1, default_missing_value = "0", value_name = "PID", conflicts_with_all = ["host", "target", "settings"])]
    pub live: Option<u32>,
    /// Only this file or directory of it (hctx0, sched/queued); may be repeated
    #[arg(long, value_name = "PATH", requires = "live")]
    pub path: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mqblk profile`.
#[derive(Args, Debug)]
pub struct ProfileArgs {
    /// Trace: PREFIX of PREFIX.blktrace.0 and so on, a file of blktrace's records, or one of blkparse's lines
    #[arg(value_name = "TRACE", required_unless_present = "from")]
    pub trace: Option<PathBuf>,
    /// Results of a run as JSON, fio's or those of 'mqblk run --json', instead of a trace
    #[arg(long, value_name = "RUN.json", conflicts_with = "trace")]
    pub from: Option<PathBuf>,
    /// Of several devices in the trace: this one, as MAJOR,MINOR
    #[arg(long, value_name = "MAJ,MIN", requires = "trace")]
    pub device: Option<String>,
    /// Write the job file to FILE instead of standard output
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Put the disk's times, and what was measured, into this machine file; it is made, of this host, if it is not there
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
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = key_value)]
    pub settings: Vec<(String, String)>,
    /// Process id of the run, if there are several
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
    /// Disks, such as sda or /dev/sda; all when left out
    #[arg(value_name = "DEV")]
    pub devices: Vec<String>,
}

/// `mqblk sim`.
#[derive(Args, Debug)]
#[command(group(clap::ArgGroup::new("table").args(["scenario", "study"])))]
#[command(group(clap::ArgGroup::new("question").args(["jobs", "what_if"]).multiple(true)))]
pub struct SimArgs {
    /// A scenario (scenarios/*.toml): its rows are simulated and put beside the published ones; without one, cases that
    /// check the block layer are run by their seeds
    #[arg(value_name = "SCENARIO.toml", conflicts_with_all = ["count", "kind"])]
    pub scenario: Option<PathBuf>,
    /// Simulate this job file on the machine of SCENARIO.toml, which needs no rows then, and put it beside what was measured
    #[arg(long, value_name = "JOB", requires = "scenario")]
    pub jobs: Option<PathBuf>,
    /// What would change if the machine were otherwise: nr_hw_queues=8, disk.read_us=80, lun_queue_depth=32,
    /// job.iodepth=64, costs.path.irq_ns=2000, iothreads=4; those with a comma between them together; may be repeated
    #[arg(long = "what-if", value_name = "KEY=VALUE[,...]", requires = "scenario")]
    pub what_if: Vec<String>,
    /// Possible machines that a what-if is asked of: each constant somewhere in the range in which it is known
    #[arg(long, default_value_t = sim::whatif::DEFAULT_MEMBERS, value_name = "N", requires = "question",
          value_parser = clap::value_parser!(u32).range(4..=1000))]
    pub members: u32,
    /// I/Os of each run of a what-if, about
    #[arg(long, default_value_t = sim::whatif::DEFAULT_IOS, value_name = "N", requires = "question",
          value_parser = clap::value_parser!(u64).range(500..=100_000_000))]
    pub ios: u64,
    /// A scaling study: cpus, sockets, hw-queues, depth, elevators, iothreads
    #[arg(long, value_name = "STUDY", value_parser = crate::sim::study::parse, conflicts_with_all = ["count", "kind"])]
    pub study: Option<sim::study::Study>,
    /// The machine of the study (as 'mqblk calibrate' writes them) instead of one that is built in
    #[arg(long, value_name = "FILE", requires = "study")]
    pub machine: Option<PathBuf>,
    /// Beside the study, measure on this host what it has the CPUs for, on the null device, and simulate that as well
    #[arg(long, requires = "study")]
    pub measure: bool,
    /// Fewer I/Os for each point of the study
    #[arg(long, requires = "study")]
    pub quick: bool,
    /// The figures of a scenario or study as JSON
    #[arg(long, requires = "table")]
    pub json: bool,
    /// Write the scenario, what-if or study as a page, which ends in .html, and all that it shows beside it as .json
    #[arg(long, value_name = "FILE.html", requires = "table")]
    pub report: Option<PathBuf>,
    /// The seed of the cases, or the first of several
    #[arg(long, default_value_t = 0, value_name = "SEED")]
    pub seed: u64,
    /// How many seeds from there on; the cases of one are shown event by event
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: u64,
    /// Kind of case; each seed has one of each
    #[arg(long, value_enum, default_value_t = SimKind::Due, value_name = "KIND")]
    pub kind: SimKind,
    /// Progress on standard error: auto = after two seconds, if it is a terminal
    #[arg(long, value_enum, default_value_t = Eta::Auto, value_name = "WHEN")]
    pub eta: Eta,
}

/// Which cases of a seed are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SimKind {
    /// The disk case; for one seed in four the set case, for another the pressure case, for one in eight the multipath case as well
    Due,
    /// A disk under faults; for one seed in four an elevator under pressure after that
    Disk,
    /// Several disks on one tag set, under faults
    Set,
    /// Elevators, hardware queues and limits under a load that never ends
    Pressure,
    /// A disk that several paths lead to, which break, come back, are slow, and lose what is in flight
    Multipath,
}

impl SimKind {
    /// Whether it has this kind run for this seed.
    pub fn takes(self, kind: Kind, seed: u64) -> bool {
        match self {
            SimKind::Due => kind.is_due(seed),
            SimKind::Disk => kind == Kind::Disk,
            SimKind::Set => kind == Kind::Set,
            SimKind::Pressure => kind == Kind::Pressure,
            SimKind::Multipath => kind == Kind::Multipath,
        }
    }
}

/// `mqblk discover`.
#[derive(Args, Debug)]
pub struct DiscoverArgs {
    // Brackets in a doc comment are links.
    #[arg(
        value_name = "PORTAL",
        help = "iscsi://[USER@]HOST[:PORT][?OPTIONS]; options as of a target, such as initiator=NAME; USER's password is in \
                the environment: LIBISCSI_CHAP_PASSWORD"
    )]
    pub portal: String,
    /// Log in to each target at this portal and list its disks, with what to put behind --target
    #[arg(long)]
    pub luns: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mqblk cmdhelp`.
#[derive(Args, Debug)]
pub struct CmdhelpArgs {
    /// Option of a job file; all of them when left out
    #[arg(value_name = "OPTION")]
    pub option: Option<String>,
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
}

impl Cli {
    /// Parses the command line; a usage error ends the program with status 2, help with 0.
    pub fn from_command_line() -> Cli {
        let matches = Cli::full_command().get_matches();
        Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.exit())
    }

    /// The command with its tables of examples, targets and settings.
    fn full_command() -> clap::Command {
        let with = |parts: &[&str]| parts.join("\n\n");
        let settings = settings_help();
        let run = with(&[TARGETS, &settings, EXIT_STATUS]);
        let compare = run.clone();
        let tune = run.clone();
        let inspect = with(&[TARGETS, &settings]);
        let serve = with(&[TARGETS, &settings]);
        Cli::command()
            .after_help(with(&[EXAMPLES, EXIT_STATUS]))
            .mut_subcommand("run", |c| c.after_help(run))
            .mut_subcommand("compare", |c| c.after_help(compare))
            .mut_subcommand("tune", |c| c.after_help(tune))
            .mut_subcommand("inspect", |c| c.after_help(inspect))
            .mut_subcommand("serve", |c| c.after_help(serve))
    }
}

/// The settings, from the table that also parses them.
fn settings_help() -> String {
    let mut text = String::from("Settings (--set KEY=VALUE):");
    let all = || SETTINGS.iter().chain(RUN_SETTINGS);
    let width = all().map(|s| s.name.len()).max().unwrap_or(0);
    for s in all() {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n  {:<width$}  {} [{}]", s.name, s.help, s.range);
    }
    let _ = write!(text, "\n  {:<width$}  a tunable of the elevator, e.g. iosched.read_expire=250", "iosched.NAME");
    text
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
    fn the_command_is_consistent_and_lists_every_setting() {
        Cli::full_command().debug_assert();
        let help = Cli::full_command().find_subcommand_mut("run").unwrap().render_long_help().to_string();
        for s in SETTINGS.iter().chain(RUN_SETTINGS) {
            assert!(help.contains(s.name), "{}", s.name);
        }
    }

    #[test]
    fn keys_have_values() {
        assert_eq!(key_value("mode= sq"), Ok(("mode".into(), "sq".into())));
        assert!(key_value("mode").is_err() && key_value("=sq").is_err() && key_value("mode=").is_err());
        assert_eq!(option_value("time_based"), Ok(("time_based".into(), String::new())));
        assert!(option_value("=4k").is_err());
    }
}
