// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs one side of a row once.
//!
//! Guarantees: both programs run the job from a file that stays in the scratch directory. A failure prints the command that repeats
//! the run. Each sample has both the CPU time that the program reports and the CPU time that the kernel charged to the process, so
//! that the report can be checked.
//! Needs: this process reaps no other child meanwhile, because the kernel's figure covers all children.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::agrees;
use super::beside::{Ceph, LoopDevice, Tgtd};
use super::job::{self, Figures, Placeholders};
use super::options::Options;
use super::rows::{Program, Row, Side};
use super::sample::Sample;
use super::served;
use super::setup;
use super::stall;
use super::turns;
use super::unequal;
use crate::project::{LIKE_ALL_TESTS, Project, cargo, debug_program};

/// Large enough that random reads do not hit a device's cache of recent blocks.
const FILE_SIZE: u64 = 1 << 30;
const SMOKE_FILE_SIZE: u64 = 4 << 20;
/// Size of the loop device.
const LOOP_SIZE: u64 = 256 << 20;

/// Kernel clock ticks per second, as user space sees them. All Linux architectures of Debian for which Rust has a standard library have
/// the same value.
const TICKS_PER_SECOND: f64 = 100.0;

/// What every run needs.
pub struct Bench {
    /// Where the results are kept.
    pub results: PathBuf,
    /// The CPUs that this process may use. The first one is used for measurements.
    pub cpus: Vec<usize>,
    root: PathBuf,
    /// How each run is limited, for the record.
    pub time: String,
    seconds: Option<u32>,
    scratch: PathBuf,
    blanks: Placeholders,
    mqblk: Option<PathBuf>,
    vuclient: PathBuf,
    // These end with the bench.
    tgtd: Option<Tgtd>,
    _ceph: Option<Ceph>,
    _loop_device: Option<LoopDevice>,
}

impl Bench {
    /// Builds mqblk and makes the scratch files.
    ///
    /// # Errors
    /// When the build fails or the files cannot be written.
    pub fn prepare(project: &Project, options: &Options, rows: &[&Row]) -> Result<Bench, String> {
        let results = options.results.clone();
        let results = results.unwrap_or_else(|| project.root.join("results"));
        let scratch = results.join("tmp");
        let failed = |e| format!("cannot create {}: {e}", scratch.display());
        fs::create_dir_all(&scratch).map_err(failed)?;
        let (limit, size, name) = if options.smoke {
            ("number_ios=1000".to_owned(), SMOKE_FILE_SIZE, "smoke.dat")
        } else {
            let limit = format!("time_based\nruntime={}", options.seconds);
            (limit, FILE_SIZE, "bench.dat")
        };
        let file = options.file.clone().unwrap_or_else(|| scratch.join(name));
        let needs = |needs: fn(&Side) -> bool| rows.iter().any(|row| row.sides.iter().any(needs));
        let size = if needs(Side::needs_file) { fill(&file, size)? } else { size };
        let mqblk = if options.control { None } else { Some(program(project, "mqblk", options.smoke)?) };
        let vuclient = if needs(Side::needs_vuclient) {
            program(project, "mqblk-vuclient", options.smoke)?
        } else {
            PathBuf::new()
        };
        let engine = if needs(|side| side.program == Program::Engine) && !options.control {
            let built = if options.smoke {
                debug_program(project, "deps/libmqblk_fio.so")?
            } else {
                build(project, "mqblk-fio-engine", "--lib")?.join("libmqblk_fio.so")
            };
            format!("external:{}", built.display())
        } else {
            "null".to_owned()
        };
        let tgtd = needs(Side::needs_iscsi).then(|| Tgtd::start(&scratch)).transpose()?;
        let directory = project.target_directory.join(format!("ceph-bench-{}", std::process::id()));
        let ceph = needs(Side::needs_ceph).then(|| Ceph::start(directory)).transpose()?;
        let loop_bytes = if options.smoke { SMOKE_FILE_SIZE } else { LOOP_SIZE };
        let loop_device = needs(Side::needs_loop).then(|| LoopDevice::new(&scratch, loop_bytes)).transpose()?;
        let mut cpus = setup::allowed_cpus()?;
        // The last CPU first: interrupts and daemons tend to run on the first one.
        cpus.reverse();
        Ok(Bench {
            results,
            root: project.root.clone(),
            cpus: cpus.clone(),
            time: limit.replace('\n', " "),
            seconds: (!options.smoke).then_some(options.seconds),
            scratch,
            blanks: Placeholders {
                limit,
                cpus,
                file: file.display().to_string(),
                size,
                engine,
                nbd: served::socket().display().to_string(),
                iscsi: tgtd.as_ref().map_or_else(String::new, Tgtd::url),
                ceph: ceph.as_ref().map_or_else(String::new, |c| c.directory().display().to_string()),
                loop_device: loop_device.as_ref().map_or_else(String::new, |l| l.path().to_owned()),
            },
            mqblk,
            vuclient,
            tgtd,
            _ceph: ceph,
            _loop_device: loop_device,
        })
    }

    /// Runs `side` once.
    ///
    /// # Errors
    /// When it cannot be run, fails, or prints no figures; the message has the command.
    pub fn sample(&self, row: &Row, side: &Side) -> Result<Sample, String> {
        let tools = served::Tools {
            mqblk: self.mqblk.as_deref(),
            vuclient: &self.vuclient,
            scratch: &self.scratch,
            file: &self.blanks.file,
            seconds: self.seconds,
        };
        if let Program::Served(served) = &side.program {
            let (figures, jobs) =
                served::run(served, &tools).map_err(|e| format!("{} {}: {e}", row.name, side.name))?;
            let process_cpu_s = figures.cpu_us_per_io * figures.total_ios as f64 / 1e6;
            return Ok(Sample { side: side.name, figures, process_cpu_s, jobs });
        }
        if side.program == Program::Layers {
            return self.layers(side).map_err(|e| format!("{} {}: {e}", row.name, side.name));
        }
        if row.is_ours_alone() {
            return self.over_paths(row, side).map_err(|e| format!("{} {}: {e}", row.name, side.name));
        }
        let actor = self.stand_in(row, side);
        if actor.program == Program::IscsiPerf {
            let sample = self.iscsi_perf(actor).map(|sample| Sample { side: side.name, ..sample });
            return sample.map_err(|e| format!("{} {}: {e}", row.name, side.name));
        }
        let command = self.prepare_side(row, side, &self.blanks)?;
        let shown = format!("{command:?}");
        let failed = |why: String| format!("{} {}: {why}\nrepeat it by: {shown}", row.name, side.name);
        // Dropped after the side's CPU time is read, so the server's CPU time is not counted.
        let beside = side.needs_nbd().then(|| served::Server::beside(&tools)).transpose();
        let _beside = beside.map_err(|e| format!("{} {}: {e}", row.name, side.name))?;
        let before = children_cpu()?;
        let output = self.limited(&command).output();
        let output = output.map_err(|e| failed(format!("cannot run it: {e}")))?;
        let process_cpu_s = children_cpu()? - before;
        // The exit status of timeout(1) after it ended the command.
        if output.status.code() == Some(124) {
            return Err(failed("it did not end a minute after its time: is its server alive?".to_owned()));
        }
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(failed(format!("{}\n{}", output.status, said.trim())));
        }
        let result = job::parse(&String::from_utf8_lossy(&output.stdout)).map_err(failed)?;
        let figures = job::figures(&result).map_err(failed)?;
        Ok(Sample { side: side.name, figures, process_cpu_s, jobs: job::kept(result) })
    }

    /// Returns `command` with a time limit of its run time and one minute. Without it, a run whose server died would never end.
    fn limited(&self, command: &Command) -> Command {
        let mut limited = Command::new("timeout");
        limited
            .args(["--foreground", "--signal=INT", "--kill-after=10"])
            .arg((60 + self.seconds.unwrap_or(1)).to_string());
        limited.arg(command.get_program()).args(command.get_args());
        limited
    }

    /// Runs a side that only mqblk can run: a disk of several paths, or the jobs of `agrees`.
    fn over_paths(&self, row: &Row, side: &Side) -> Result<Sample, String> {
        let mqblk = self.mqblk.as_deref().ok_or("no program stands in for mqblk here")?;
        let before = children_cpu()?;
        let (figures, jobs) = match side.program {
            Program::Unequal(unequal) => {
                let tgtd = self.tgtd.as_ref().ok_or("no tgtd was started")?;
                let path = self.job_file(row, side, &self.blanks)?;
                unequal::run(unequal, &path, mqblk, tgtd)?
            }
            Program::Pull(pull) => stall::run(pull, mqblk, self.is_smoke())?,
            Program::Agrees(agrees) => agrees::run(agrees, mqblk, &self.scratch, self.seconds.unwrap_or(1))?,
            _ => return Err("not a side of paths".to_owned()),
        };
        Ok(Sample { side: side.name, figures, process_cpu_s: children_cpu()? - before, jobs })
    }

    /// Runs the bench of `blk`. In a smoke run, runs it as a test.
    fn layers(&self, side: &Side) -> Result<Sample, String> {
        let mut command = cargo();
        command.args(match self.is_smoke() {
            true => LIKE_ALL_TESTS,
            false => ["bench", "--package=mqblk-blk"],
        });
        command.args(["--quiet", "--bench=scsi_multipath", "--", "--json"]);
        let output = command.current_dir(&self.root).output().map_err(|e| format!("cannot run cargo: {e}"))?;
        if !output.status.success() {
            return Err(format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr).trim()));
        }
        let said = job::parse(&String::from_utf8_lossy(&output.stdout))?;
        let layers = serde_json::from_value(said).map_err(|e| format!("its figures cannot be read: {e}"))?;
        let figures = Figures { layers: Some(layers), ..Figures::default() };
        Ok(Sample { side: side.name, figures, process_cpu_s: 0.0, jobs: Value::Null })
    }

    /// Runs iscsi-perf. It prints a line per second; the last one has the rate over the whole run.
    fn iscsi_perf(&self, side: &Side) -> Result<Sample, String> {
        let seconds = self.seconds.unwrap_or(1);
        let mut command = Command::new("iscsi-perf");
        command.args(["-r", "-b", "8", "-t", &seconds.to_string()]).args(side.args).arg(&self.blanks.iscsi);
        let mut command = self.limited(&command);
        let before = children_cpu()?;
        let output = command.output().map_err(|e| format!("cannot run iscsi-perf: {e}"))?;
        let process_cpu_s = children_cpu()? - before;
        let said = String::from_utf8_lossy(&output.stdout);
        let iops = job::iscsi_perf(&said).filter(|_| output.status.success());
        let iops =
            iops.ok_or_else(|| format!("{}: no figure in what it said:\n{said}\nby {command:?}", output.status))?;
        let total_ios = (iops * f64::from(seconds)) as u64;
        let cpu_us_per_io = process_cpu_s * 1e6 / total_ios as f64;
        let figures = Figures { iops, total_ios, cpu_us_per_io, ..Figures::default() };
        Ok(Sample { side: side.name, figures, process_cpu_s, jobs: Value::Null })
    }

    /// A run is limited by I/Os, not by time.
    pub fn is_smoke(&self) -> bool {
        self.seconds.is_none()
    }

    /// Runs the sides of `row` by turns, in `order` (indices of sides). Returns the samples in the row's order.
    ///
    /// # Errors
    /// The errors of [`turns::round`].
    pub fn by_turns(&self, row: &Row, order: &[usize]) -> Result<Vec<Sample>, String> {
        let seconds = self.seconds.expect("a timed run");
        let limit = format!("time_based\nruntime={}", turns::lasts(seconds, row.sides.len()));
        let blanks = Placeholders { limit, cpus: self.cpus.clone(), ..self.blanks.clone() };
        let command = |index: &usize| {
            let side = &row.sides[*index];
            Ok((side.name, self.prepare_side(row, side, &blanks)?))
        };
        let commands = order.iter().map(command).collect::<Result<_, String>>()?;
        let mut samples = turns::round(commands, seconds, turns::PACE).map_err(|why| format!("{}: {why}", row.name))?;
        samples.sort_by_key(|sample| row.sides.iter().position(|side| side.name == sample.side));
        Ok(samples)
    }

    /// Writes the job of `side`. Returns the command that runs it.
    fn prepare_side(&self, row: &Row, side: &Side, blanks: &Placeholders) -> Result<Command, String> {
        let path = self.job_file(row, side, blanks)?;
        Ok(self.command(self.stand_in(row, side), &path))
    }

    fn job_file(&self, row: &Row, side: &Side, blanks: &Placeholders) -> Result<PathBuf, String> {
        let path = self.scratch.join(format!("{}-{}.fio", row.name, side.name));
        let text = blanks.fill(side.job, self.extra(row, side));
        fs::write(&path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        Ok(path)
    }

    /// Returns the side to run: `side`, or with `--control`, in the place of mqblk, a peer with the same job.
    fn stand_in<'a>(&self, row: &'a Row, side: &'a Side) -> &'a Side {
        let is_ours = side.program == Program::Mqblk && self.mqblk.is_none();
        let mut peers = row.sides.iter().filter(|peer| match peer.program {
            Program::Fio => peer.job == side.job,
            Program::IscsiPerf => true,
            _ => false,
        });
        is_ours.then(|| peers.next()).flatten().unwrap_or(side)
    }

    /// Returns the extra lines of `side`. With `--control`, these are the lines that fio gets for the same job.
    fn extra(&self, row: &Row, side: &Side) -> &'static str {
        let mut peers = row.sides.iter().filter(|other| other.program == Program::Fio && other.job == side.job);
        match (&self.mqblk, peers.next()) {
            (None, Some(peer)) => peer.extra,
            _ => side.extra,
        }
    }

    fn command(&self, side: &Side, job: &Path) -> Command {
        let mqblk = match side.program {
            Program::Mqblk => self.mqblk.as_ref(),
            // The other programs that get here are fio and fio with our engine.
            _ => None,
        };
        let args = side.args.iter().map(|arg| self.blanks.fill(arg, ""));
        let Some(mqblk) = mqblk else {
            let mut command = Command::new("env");
            command.args(args.filter(|_| side.program == Program::Fio)).arg("fio");
            command.arg("--output-format=json").arg(job);
            return command;
        };
        let mut command = Command::new(mqblk);
        command.arg("run").arg(job).arg("--json");
        command.args(args);
        command
    }
}

/// Builds the program of the package `name`. Returns its path. A smoke run uses the build of the tests.
fn program(project: &Project, name: &str, debug: bool) -> Result<PathBuf, String> {
    if debug {
        return debug_program(project, name);
    }
    Ok(build(project, name, &format!("--bin={name}"))?.join(name))
}

/// Cargo's profile of the released packages: published figures are of such builds.
const PROFILE: &str = "dist";

/// Builds a program or a library. Returns the directory of the result.
fn build(project: &Project, package: &str, which: &str) -> Result<PathBuf, String> {
    let mut command = cargo();
    command.args(["build", "--quiet", "--package", package, which, "--profile", PROFILE]);
    let status = command.current_dir(&project.root).status();
    let status = status.map_err(|e| format!("cannot run cargo build: {e}"))?;
    if !status.success() {
        return Err(format!("{package} does not build"));
    }
    Ok(project.target_directory.join(PROFILE))
}

/// Makes `path` with `size` bytes unless it exists. Returns its size.
///
/// The bytes are written, not just allocated, because the file system answers reads of unwritten blocks without the device. They are
/// random, because some devices compress.
fn fill(path: &Path, size: u64) -> Result<u64, String> {
    let failed = |e: std::io::Error| format!("cannot write {}: {e}", path.display());
    if let Ok(metadata) = fs::metadata(path) {
        if metadata.len() >= 4096 {
            return Ok(metadata.len() / 4096 * 4096);
        }
        let len = metadata.len();
        return Err(format!("{}: {len} bytes, must be at least 4096: name another --file", path.display()));
    }
    // The file gets its final name only when it is complete, so that an interrupted run leaves no short file.
    let part = path.with_extension("part");
    println!("writing {} ({} MiB)", path.display(), size >> 20);
    let mut file = BufWriter::with_capacity(1 << 20, File::create(&part).map_err(failed)?);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..size / 8 {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        file.write_all(&state.to_le_bytes()).map_err(failed)?;
    }
    let file = file.into_inner().map_err(|e| failed(e.into_error()))?;
    file.sync_all().map_err(failed)?;
    fs::rename(&part, path).map_err(failed)?;
    Ok(size)
}

/// Returns the CPU seconds of all children that have been waited for.
fn children_cpu() -> Result<f64, String> {
    let stat = fs::read_to_string("/proc/self/stat").map_err(|e| format!("cannot read /proc/self/stat: {e}"))?;
    children_ticks(&stat)
        .map(|ticks| ticks as f64 / TICKS_PER_SECOND)
        .ok_or_else(|| "cannot understand /proc/self/stat".to_owned())
}

/// Fields 16 and 17, cutime and cstime, of proc_pid_stat(5).
fn children_ticks(stat: &str) -> Option<u64> {
    ticks_of(stat, 16)
}

/// Returns the sum of field `first` and the next one. Fields 14 and 15 are utime and stime of the process itself.
pub fn ticks_of(stat: &str, first: usize) -> Option<u64> {
    // The second field is the program's name in parentheses and may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(field(first)? + field(first + 1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_children_are_fields_16_and_17() {
        let stat = "12 (odd ) name) S 1 2 3 4 5 6 7 8 9 10 11 12 130 14 15";
        assert_eq!(children_ticks(stat), Some(130 + 14));
        assert_eq!(children_ticks("12 (x) S 1"), None);
        assert!(children_cpu().is_ok());
    }

    #[test]
    fn a_file_is_made_once_and_never_changed() {
        let directory = std::env::temp_dir();
        let path = directory.join(format!("mqblk-xtask-{}.dat", std::process::id()));
        assert_eq!(fill(&path, 8192), Ok(8192));
        let first = fs::read(&path).unwrap();
        assert_eq!(first.len(), 8192);
        assert!(first.chunks(8).all(|word| word != [0; 8]));
        assert_eq!(fill(&path, 4 << 20), Ok(8192));
        assert_eq!(fs::read(&path).unwrap(), first);
        fs::write(&path, b"short").unwrap();
        let error = fill(&path, 8192).unwrap_err();
        assert!(error.contains("5 bytes, must be at least 4096"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"short");
        fs::remove_file(&path).unwrap();
    }
}
