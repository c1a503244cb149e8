// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line as a whole: the subcommands, and the help that goes beyond their flags.

use crate::args::{
    CmdhelpArgs, CompareArgs, DiscoverArgs, InspectArgs, ManualArgs, ProfileArgs, ReportArgs, RestoreArgs, RunArgs,
    SetArgs, SimArgs,
};
use crate::calibrate::CalibrateArgs;
use crate::job_flags;
use crate::multipath::MultipathArgs;
use crate::output;
use crate::serve::args::ServeArgs;
use crate::serve::control::ctl::CtlArgs;
use crate::serve::top::TopArgs;
use crate::tune::args::TuneArgs;
use blk::settings::SETTINGS;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use host::run::RUN_SETTINGS;
use host::secrets::without_secrets;
use host::target::DRIVER_HELP;
use std::fmt::Write;

const EXIT_STATUS: &str = "\
Exit status:
  0    done
  1    I/O errors or failed verification (run, tune), a limit that no setting meets (tune), a failed case (sim), a
       difference (compare --exit-code)
  2    usage or operating error, or a comparison without verdict because I/Os failed; a message has rule, value and remedy
  130  interrupted by Ctrl-C or SIGTERM; results until then are printed";

const EXAMPLES: &str = "\
Examples:
  mqblk run job.fio                                    run fio jobs, results as fio prints them
  mqblk run job.fio --target null:size=16g --json      the same I/O without a disk
  mqblk fio --name=a --rw=randread --bs=4k --size=1g   a job on the command line, as for fio
  mqblk run job.fio --trace t && blkparse -i t         every request's life, as blktrace shows it
  mqblk compare job.fio --b mode=sq                    the unchanged job against single-queue
  mqblk compare job.fio --a scheduler=none --b scheduler=mq-deadline --target /dev/nvme0n1
  mqblk compare job.fio --side base:default --side kyber:scheduler=kyber --side bfq:scheduler=bfq
                                                       each side against the first; the best is marked
  mqblk tune job.fio --target null --maximize a.iops   which settings, by how much, and why
  mqblk compare job.fio --target kernel:/dev/nvme0n1 --a scheduler=none --b scheduler=kyber
                                                       the kernel's own block layer, settings restored
  mqblk compare job.fio --target sim:scenarios/azure-p80.toml --a nr_hw_queues=1 --b nr_hw_queues=32
                                                       a machine that you do not have, in virtual time
  mqblk compare job.fio --a mode=sq --b mode=mq --report out.html
                                                       the same as a page with charts; later: mqblk report RESULTS
  mqblk inspect --set nr_hw_queues=2                   settings and CPU -> hctx map of a stack
  mqblk inspect --host sda                             what this host's kernel has set for sda
  mqblk inspect --live --path hctx0/busy               requests at the device, of a run in progress
  mqblk set scheduler=kyber queue_depth=32             change a run in progress
  mqblk serve disk.img                                 a file over vhost-user-blk and NBD; prints the clients' commands
  mqblk multipath -ll                                  paths of a daemon's disks, as multipath -ll shows them
  mqblk ctl list; mqblk top                            what a daemon serves, and its load, live
  mqblk sim scenarios/azure-p80.toml                   a published test, simulated: figures side by side, and why
  mqblk inspect /dev/sda --export m.toml               this host and a disk as a machine file
  mqblk profile TRACE --output j.fio --machine m.toml  a workload as a job file, and how long its disk takes
  mqblk sim m.toml --jobs j.fio --what-if nr_hw_queues=8
                                                       what another setting, disk or machine would do
  mqblk sim --seed 7                                   a simulated case, event by event
  mqblk sim --study cpus                               single- against multi-queue on 1 to 256 CPUs
  mqblk calibrate --out here.toml                      this host's costs as a machine file for a study
  mqblk discover iscsi://10.0.0.5 --luns               targets and disks of an iSCSI portal
  mqblk cmdhelp iodepth                                what an option of a job file does here";

/// What `mqblk` alone prints.
pub const GUIDE: &str = "\
mqblk: a multi-queue block layer in user space

  mqblk compare JOB.fio --b mode=sq                which setting is faster, with confidence intervals
  mqblk tune JOB.fio --maximize all.iops           which settings suit a workload
  mqblk run JOB.fio                                run a fio job file, and show where the time went
  mqblk serve disk.img                             serve a disk to VMs (vhost-user-blk) and hosts (NBD)
  mqblk sim scenarios/azure-p80.toml               try settings on a machine you do not have
  mqblk inspect --host                             the queue settings of this host's disks

All commands: mqblk -h. Examples, exit status: mqblk --help. A command: mqblk run -h.
";

const OTHER_TARGETS: &str = "
  kernel:/dev/X        a block device of the kernel, without the block layer of mqblk: I/O goes to it through io_uring,
                       --set writes to /sys/block/X/queue (scheduler, nr_requests, iosched.NAME, nomerges, ...) and
                       the old values are restored at the end; for run, compare and tune
  sim:FILE             a simulated machine, in virtual time: FILE is TOML with [machine] and [disk], such as
                       scenarios/azure-p80.toml; for run, compare and tune (docs/scenarios.md)
  OPTIONS are name=value, separated by commas: model:size=16t,iops=18000,bw=750m,lat_us=2000";

/// A multi-queue block layer in user space: runs fio job files, compares settings, and shows them.
#[derive(Debug, Parser)]
#[command(name = "mqblk", version, max_term_width = 120)]
pub struct Cli {
    /// What to do; without it, a short guide is printed.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run fio jobs, from files or from options, report as fio does, and show where the time went
    #[command(visible_alias = "fio")]
    Run(RunArgs),
    /// Compare settings by interleaved runs of a job file: ratios with intervals, and a verdict
    Compare(CompareArgs),
    /// Search for settings that improve a job within limits, and confirm them by fresh interleaved runs
    Tune(TuneArgs),
    /// Make a page with charts (HTML, and JSON beside it) from a results file
    Report(ReportArgs),
    /// Make a job file of a workload: from a trace of a disk, or from the results of a run
    Profile(ProfileArgs),
    /// Show the settings of a stack and its CPU -> hctx map, those of this host's disks, or the state of a run
    Inspect(InspectArgs),
    /// Serve disks to VMs and hosts over vhost-user-blk, NBD, FUSE or ublk
    Serve(ServeArgs),
    /// Control a serving daemon: list, add, remove, resize, set, stats, drain, move virtqueues
    Ctl(CtlArgs),
    /// Show the load of a serving daemon live: disks, hardware queues, IOThreads, latencies of virtqueues and clients
    Top(TopArgs),
    /// List multipath disks of a serving daemon, as multipath -ll does, or print a multipath.conf as multipath -t does
    Multipath(MultipathArgs),
    /// Change settings of a run in progress
    Set(SetArgs),
    /// Restore settings of kernel devices that a killed run left changed
    Restore(RestoreArgs),
    /// Check the block layer in simulation: random stacks, devices and faults from a seed
    Sim(SimArgs),
    /// Measure this host's costs: cache lines, wake-ups, interrupts, our block layer; write them as a machine file
    Calibrate(CalibrateArgs),
    /// List the targets of an iSCSI portal, and their disks
    Discover(DiscoverArgs),
    /// List the options of job files, or explain one
    Cmdhelp(CmdhelpArgs),
    /// Write the manual pages into a directory
    #[command(hide = true)]
    Manual(ManualArgs),
}

impl Cli {
    /// Parses the command line; a usage error ends the program with status 2, help with 0.
    pub fn from_command_line() -> Cli {
        let command = Cli::full_command();
        let (args, taken) = job_flags::take(std::env::args_os(), &command);
        let typed = command.try_get_matches_from(args).and_then(|matches| Cli::from_arg_matches(&matches));
        let with_jobs = typed.map(|mut cli| {
            if let Some(Command::Run(run)) = &mut cli.command {
                run.job.typed = taken;
            }
            cli
        });
        with_jobs.unwrap_or_else(|e| {
            // A message quotes the argument at fault, which may be a target with a password.
            let text = e.to_string();
            let shown = without_secrets(&text);
            // Help is not an error and quotes no argument.
            if !e.use_stderr() || shown == text {
                e.exit();
            }
            output::tell(shown.trim_end());
            signal_hook::low_level::exit(e.exit_code())
        })
    }

    /// The command with its tables of examples, targets and settings: `--help` has them, `-h` fits a screen.
    pub fn full_command() -> clap::Command {
        let with = |parts: &[&str]| parts.join("\n\n");
        let (targets, settings) = (targets_help(), settings_help());
        let run = with(&[&targets, &settings, EXIT_STATUS]);
        let stack = with(&[&targets, &settings]);
        let tables = [("run", &run), ("compare", &run), ("tune", &run), ("inspect", &stack), ("serve", &stack)];
        let command = Cli::command()
            .after_help("Examples, exit status: mqblk --help. Flags of a command: mqblk COMMAND -h.")
            .after_long_help(with(&[EXAMPLES, EXIT_STATUS]));
        tables.into_iter().fold(command, |command, (name, table)| {
            command.mut_subcommand(name, |c| {
                c.after_help(format!("Targets and settings: mqblk {name} --help")).after_long_help(table)
            })
        })
    }
}

/// Returns the help on the syntax of targets, from the drivers.
pub fn targets_help() -> String {
    let drivers = DRIVER_HELP.concat();
    format!("Targets (in a job file also as filename=):{drivers}{OTHER_TARGETS}")
}

/// The settings, from the table that also parses them.
pub fn settings_help() -> String {
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
    fn short_help_fits_a_screen() {
        let mut all = Cli::full_command().term_width(120);
        all.build();
        let lines = |command: &mut clap::Command| command.render_help().to_string().lines().count();
        assert!(lines(&mut all) <= 30, "mqblk -h: {}", lines(&mut all));
        for command in all.get_subcommands_mut() {
            let name = command.get_name().to_owned();
            assert!(lines(command) <= 48, "mqblk {name} -h: {}", lines(command));
        }
    }
}
