// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One of two paths fails under a verified load and comes back. Measures for how long no I/O completes.
//!
//! Guarantees: the disk is one file served by two tgtd. `mqblk serve` makes one multipath disk of both and exports it over NBD. fio
//! writes it at random, reads the data back and compares. The times are fio's own: it logs when each I/O completed, in
//! milliseconds. The path that is pulled is the one in use, or one of two in use. It comes back after the longest time that the
//! settings allow for failover. A gap that lasts until then is reported as cut short. A stopped target is killed before another
//! one replaces it, as fencing does: if it resumed, it could carry out old writes (docs/multipath.md). The run ends all of its
//! processes by their own ids.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::beside::Tgtd;
use super::job::{self, Figures, Stall};
use super::rows::{Pull, Pulled};

/// Size of the disk. It is small enough to be overwritten several times in a second.
const BYTES: u64 = 16 << 20;
/// Longest time for a start, and for a path to be reported as failed or restored, beyond the time that the settings imply.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the load runs before the path is pulled, and after the path is in use again.
const LOAD: Duration = Duration::from_secs(1);
/// A path stays away this much longer than the settings allow for.
const MARGIN: Duration = Duration::from_secs(2);

/// Timeouts of the disk, in seconds.
struct Settings {
    fast_io_fail_tmo: u64,
    noop_interval: u64,
    noop_timeout: u64,
}

/// Runs the test once. `is_smoke` shortens the timeouts.
///
/// # Errors
/// A program does not start or ends early, or a path is not reported as failed or restored.
pub fn run(pull: Pull, mqblk: &Path, is_smoke: bool) -> Result<(Figures, Value), String> {
    let quick = if pull.is_quick || is_smoke { 1 } else { 5 };
    let fast_io_fail_tmo = if is_smoke { 1 } else { 5 };
    let settings = Settings { fast_io_fail_tmo, noop_interval: quick, noop_timeout: quick };
    let directory = Directory::new()?;
    let file = directory.0.join("disk.img");
    File::create(&file).and_then(|f| f.set_len(BYTES)).map_err(|e| format!("cannot create {}: {e}", file.display()))?;
    let mut targets = [Tgtd::on(&file)?, Tgtd::on(&file)?];
    let daemon = Daemon::start(pull, &settings, &targets, mqblk, &directory.0)?;
    let load = Load::start(&directory.0)?;
    load.wait_until_it_writes(&file)?;
    sleep(LOAD);
    let away_at = now_ms();
    let back_at = pulled(pull, &settings, &mut targets, &daemon)?;
    sleep(LOAD);
    let end = now_ms();
    let (ended, report) = load.end()?;
    let stall = gaps(&ended, away_at, back_at, end).ok_or("fio logged no I/O before it all began")?;
    let errors = report["jobs"][0]["total_err"].as_u64().ok_or("no `total_err` in fio's result")?;
    let stall = Some(Stall { errors, settings: settings.shown(pull), ..stall });
    let seconds = end.saturating_sub(ended.iter().map(|e| e.at_ms).min().unwrap_or(end)) as f64 / 1e3;
    // fio's own rates are useless: with log_unix_epoch, fio takes 1970 for the start of its run.
    let iops = ended.len() as f64 / seconds;
    let figures = Figures { iops, total_ios: ended.len() as u64, stall, ..Figures::default() };
    Ok((figures, Value::Null))
}

/// Pulls the path and restores it. Returns when the path was restored, or `None` if only its connections were dropped.
fn pulled(pull: Pull, settings: &Settings, targets: &mut [Tgtd; 2], daemon: &Daemon) -> Result<Option<u64>, String> {
    let silent = settings.noop_interval + settings.noop_timeout;
    let away = match pull.what {
        Pulled::Dropped => {
            if targets[0].drop_connections()? == 0 {
                return Err("tgtd had no connection to drop".into());
            }
            sleep(MARGIN);
            daemon.wait_for("the path is in use", PATIENCE, is_in_use)?;
            return Ok(None);
        }
        Pulled::Killed => {
            targets[0].kill();
            settings.fast_io_fail_tmo
        }
        Pulled::Stopped => {
            targets[0].stop()?;
            settings.fast_io_fail_tmo + silent
        }
    };
    let until = Instant::now() + Duration::from_secs(away) + MARGIN;
    daemon.wait_for("the path has failed", PATIENCE + Duration::from_secs(away), |map| !is_active(map))?;
    sleep(until.saturating_duration_since(Instant::now()));
    let back_at = now_ms();
    targets[0].restart()?;
    daemon.wait_for("the path is in use again", PATIENCE, is_in_use)?;
    Ok(Some(back_at))
}

/// Whether the first path is active. That path has the higher priority.
fn is_active(map: &Value) -> bool {
    map["path_groups"][0]["paths"][0]["dm_st"] == "active"
}

fn is_in_use(map: &Value) -> bool {
    is_active(map) && map["path_groups"][0]["dm_st"] == "active"
}

/// Time and latency of an I/O that completed.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Ended {
    at_ms: u64,
    latency_ns: u64,
}

/// Returns the longest gaps between completions: before the path was away, while it was away, and after it was back. `None` if no
/// I/O completed before.
fn gaps(ended: &[Ended], away_at: u64, back_at: Option<u64>, end: u64) -> Option<Stall> {
    let mut times: Vec<u64> = ended.iter().map(|e| e.at_ms).collect();
    times.push(end);
    times.sort_unstable();
    let split = back_at.unwrap_or(u64::MAX);
    let mut stall = Stall { gap_back_ms: back_at.map(|_| 0), ..Stall::default() };
    for pair in times.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let gap = to - from;
        if to <= away_at {
            stall.gap_before_ms = stall.gap_before_ms.max(gap);
        } else if from < split {
            if gap > stall.gap_ms {
                (stall.gap_ms, stall.is_cut_short) = (gap, to >= split);
            }
        } else {
            stall.gap_back_ms = stall.gap_back_ms.max(Some(gap));
        }
    }
    let longest = ended.iter().filter(|e| e.at_ms > away_at).map(|e| e.latency_ns).max();
    stall.longest_ms = longest.unwrap_or(0) as f64 / 1e6;
    (times[0] < away_at).then_some(stall)
}

impl Settings {
    fn shown(&self, pull: Pull) -> String {
        let Settings { fast_io_fail_tmo, noop_interval, noop_timeout } = self;
        let policy = policy(pull);
        format!(
            "{policy} fast_io_fail_tmo={fast_io_fail_tmo} noop_interval={noop_interval} noop_timeout={noop_timeout}"
        )
    }
}

fn policy(pull: Pull) -> &'static str {
    if pull.is_multibus { "multibus" } else { "group_by_prio" }
}

/// The directory of a run's files. It is not below the results, because a socket's path has at most 107 bytes.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Directory, String> {
        let path = std::env::temp_dir().join(format!("mqblk-stall-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).map_err(|e| format!("cannot create {}: {e}", path.display()))?;
        Ok(Directory(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `mqblk serve`.
struct Daemon<'a> {
    child: Child,
    mqblk: &'a Path,
    directory: &'a Path,
}

impl<'a> Daemon<'a> {
    fn start(
        pull: Pull,
        settings: &Settings,
        targets: &[Tgtd; 2],
        mqblk: &'a Path,
        directory: &'a Path,
    ) -> Result<Daemon<'a>, String> {
        let Settings { fast_io_fail_tmo, noop_interval, noop_timeout } = settings;
        let noops = format!("?sessions=1&noop_interval={noop_interval}&noop_timeout={noop_timeout}");
        let paths: Vec<String> = targets.iter().map(|t| format!("{:?}", t.url() + &noops)).collect();
        let policy = policy(pull);
        let config = format!(
            "[[disk]]\nname = \"d\"\nstack = \"multipath\"\ntargets = [{}]\npath_grouping_policy = \"{policy}\"\n\
             prio = [50, 10]\nfailback = \"immediate\"\nno_path_retry = \"queue\"\npolling_interval = 1\n\
             fast_io_fail_tmo = {fast_io_fail_tmo}\n\
             [[export]]\ntype = \"nbd\"\ndisk = \"d\"\nsocket = \"d.sock\"\n",
            paths.join(", ")
        );
        let failed = |e: std::io::Error| format!("cannot write below {}: {e}", directory.display());
        fs::write(directory.join("serve.toml"), config).map_err(failed)?;
        let said = File::create(directory.join("serve.log")).map_err(failed)?;
        let mut command = Command::new(mqblk);
        command.args(["serve", "serve.toml", "--control", "ctl.sock"]).current_dir(directory).stdin(Stdio::null());
        command.stdout(said.try_clone().map_err(failed)?).stderr(said);
        let child = command.spawn().map_err(|e| format!("cannot run {command:?}: {e}"))?;
        let daemon = Daemon { child, mqblk, directory };
        let until = Instant::now() + PATIENCE;
        while UnixStream::connect(directory.join("d.sock")).is_err() {
            if Instant::now() > until {
                return Err(format!("mqblk serve does not start:\n{}", daemon.said()));
            }
            sleep(Duration::from_millis(5));
        }
        Ok(daemon)
    }

    fn said(&self) -> String {
        fs::read_to_string(self.directory.join("serve.log")).unwrap_or_default()
    }

    /// Polls the state of the multipath disk until `is_so` accepts it.
    fn wait_for(&self, what: &str, patience: Duration, is_so: impl Fn(&Value) -> bool) -> Result<(), String> {
        let until = Instant::now() + patience;
        loop {
            let mut command = Command::new(self.mqblk);
            command.args(["multipath", "-ll", "--json", "--control"]).arg(self.directory.join("ctl.sock"));
            let output = command.output().map_err(|e| format!("cannot run {command:?}: {e}"))?;
            let said = String::from_utf8_lossy(&output.stdout);
            let map = job::parse(&said).map(|all| all["maps"][0].clone());
            if map.is_ok_and(|map| is_so(&map)) {
                return Ok(());
            }
            if Instant::now() > until {
                let error = String::from_utf8_lossy(&output.stderr);
                return Err(format!("not so after {patience:?}: {what}\n{said}{error}{}", self.said()));
            }
            // At this interval, polling does not slow the load.
            sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// fio.
struct Load<'a> {
    child: Child,
    directory: &'a Path,
}

impl<'a> Load<'a> {
    fn start(directory: &'a Path) -> Result<Load<'a>, String> {
        let mut command = Command::new("fio");
        command.args(["--name=j", "--ioengine=nbd", "--rw=randwrite", "--bs=4k", "--iodepth=16"]);
        command.arg(format!("--uri=nbd+unix:///d?socket={}", directory.join("d.sock").display()));
        command.args([format!("--size={BYTES}"), "--time_based".to_owned(), "--runtime=3600".to_owned()]);
        command.args(["--verify=crc32c", "--verify_backlog=256", "--verify_state_save=0", "--continue_on_error=all"]);
        command.args(["--write_lat_log=ended", "--log_unix_epoch=1", "--disable_slat=1", "--disable_clat=1"]);
        command.args(["--output-format=json", "--output=fio.json"]).current_dir(directory);
        let said = File::create(directory.join("fio.log")).map_err(|e| e.to_string())?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        let child = command.spawn().map_err(|e| format!("cannot run {command:?}: {e}"))?;
        Ok(Load { child, directory })
    }

    /// Waits until the disk's file has blocks. It is created without any.
    fn wait_until_it_writes(&self, file: &Path) -> Result<(), String> {
        let until = Instant::now() + PATIENCE;
        while fs::metadata(file).map_err(|e| format!("{}: {e}", file.display()))?.blocks() == 0 {
            if Instant::now() > until {
                let said = fs::read_to_string(self.directory.join("fio.log")).unwrap_or_default();
                return Err(format!("fio writes nothing:\n{said}"));
            }
            sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Ends fio. Returns the logged I/Os, and its report.
    fn end(mut self) -> Result<(Vec<Ended>, Value), String> {
        let read = |name: &str| fs::read_to_string(self.directory.join(name)).map_err(|e| format!("fio's {name}: {e}"));
        if let Some(status) = self.child.try_wait().map_err(|e| e.to_string())? {
            return Err(format!("fio ended by itself: {status}\n{}", read("fio.log")?));
        }
        let pid = self.child.id().to_string();
        Command::new("kill").args(["-INT", &pid]).status().map_err(|e| format!("cannot run kill: {e}"))?;
        // Its exit status says only that it was interrupted.
        self.child.wait().map_err(|e| e.to_string())?;
        let ended = read("ended_lat.1.log")?.lines().map(entry).collect::<Option<Vec<_>>>();
        let ended = ended.ok_or("fio's log has a line that is no entry")?;
        Ok((ended, job::parse(&read("fio.json")?)?))
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `time in ms, latency in ns, direction, bytes, offset`.
fn entry(line: &str) -> Option<Ended> {
    let mut fields = line.split(',').map(|field| field.trim().parse().ok());
    Some(Ended { at_ms: fields.next()??, latency_ns: fields.next()?? })
}

/// The time now, as fio counts it with `log_unix_epoch`.
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(times: &[u64]) -> Vec<Ended> {
        times.iter().map(|at_ms| Ended { at_ms: *at_ms, latency_ns: at_ms * 1_000_000 }).collect()
    }

    #[test]
    fn an_entry_of_the_log_is_read() {
        let want = Ended { at_ms: 1_795_376_295_129, latency_ns: 500_078 };
        assert_eq!(entry("1795376295129, 500078, 1, 4096, 0"), Some(want));
        assert_eq!(entry("1795376295129"), None);
        assert_eq!(entry("x, 1"), None);
    }

    #[test]
    fn a_gap_belongs_to_what_it_overlaps() {
        // Entries of several threads need not be in order. The path is away at 100 and back at 200; the run ends at 300.
        let stall = gaps(&ended(&[90, 10, 40, 99, 170, 171, 210, 260]), 100, Some(200), 300).unwrap();
        assert_eq!((stall.gap_before_ms, stall.gap_ms, stall.gap_back_ms), (50, 71, Some(50)));
        assert_eq!((stall.longest_ms, stall.is_cut_short), (260.0, false));
    }

    #[test]
    fn a_stall_is_cut_at_the_paths_return_or_seen_unfinished() {
        let stall = gaps(&ended(&[90, 99, 205]), 100, Some(200), 300).unwrap();
        assert_eq!((stall.gap_ms, stall.is_cut_short, stall.gap_back_ms), (106, true, Some(95)));
        let stall = gaps(&ended(&[90, 99]), 100, None, 300).unwrap();
        assert_eq!((stall.gap_ms, stall.is_cut_short, stall.gap_back_ms), (201, false, None));
        assert_eq!(gaps(&ended(&[150]), 100, None, 300), None);
    }
}
