// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask oracle --loop`: compares what `/proc/diskstats` counts for a loop device with what our stack counts. Both get
//! the same I/O on the same kind of file, with each elevator that both have.
//!
//! Compared are requests, merges and sectors per direction. Jobs submit a whole batch and wait for all of it, so the plug alone decides
//! what merges, and timing does not. With random offsets an elevator may find neighbours while the device is busy. That job is
//! compared by bios (the sum of requests and merges) and sectors. Needs root, the loop driver and fio. Removes the device also when a
//! step fails.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::outcome::Outcome;
use crate::packages;
use crate::project::{Project, cargo};
use crate::tool;

/// Size of the file. Each job reads or writes all of it once.
const SIZE_MIB: u64 = 16;

/// Elevators to compare, as far as the kernel offers them.
const SCHEDULERS: [&str; 4] = ["none", "mq-deadline", "kyber", "bfq"];

struct Job {
    name: &'static str,
    lines: &'static str,
    /// The plug alone decides what merges.
    merges_fixed: bool,
}

const JOBS: [Job; 4] = [
    Job { name: "seq-write", lines: "rw=write\nbs=4k\n", merges_fixed: true },
    Job { name: "seq-read", lines: "rw=read\nbs=4k\n", merges_fixed: true },
    Job { name: "seq-read-16k", lines: "rw=read\nbs=16k\n", merges_fixed: true },
    Job { name: "rand-read", lines: "rw=randread\nbs=4k\n", merges_fixed: false },
];

const BATCHES: &str = "[job]\nioengine=libaio\ndirect=1\niodepth=16\niodepth_batch=16\niodepth_batch_complete_min=16\n\
                       iodepth_batch_complete_max=16\n";

/// Requests, merges and sectors, reads then writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    ios: [u64; 2],
    merges: [u64; 2],
    sectors: [u64; 2],
}

impl Counts {
    /// Reads a line of `/proc/diskstats`.
    fn of_line(line: &str) -> Option<Counts> {
        let f: Vec<u64> = line.split_whitespace().skip(3).map(str::parse).collect::<Result<_, _>>().ok()?;
        (f.len() >= 8).then(|| Counts { ios: [f[0], f[4]], merges: [f[1], f[5]], sectors: [f[2], f[6]] })
    }

    fn minus(self, before: Counts) -> Counts {
        let diff = |a: [u64; 2], b: [u64; 2]| [a[0] - b[0], a[1] - b[1]];
        Counts {
            ios: diff(self.ios, before.ios),
            merges: diff(self.merges, before.merges),
            sectors: diff(self.sectors, before.sectors),
        }
    }

    fn bios(self) -> [u64; 2] {
        [self.ios[0] + self.merges[0], self.ios[1] + self.merges[1]]
    }

    fn shown(self) -> String {
        let sum = |a: [u64; 2]| a[0] + a[1];
        format!("{:>6} {:>6} {:>8}", sum(self.ios), sum(self.merges), sum(self.sectors))
    }
}

/// A loop device, which is detached when this value is dropped.
pub struct Loop {
    pub device: PathBuf,
}

impl Loop {
    /// Makes a loop device over a file that exists.
    ///
    /// # Errors
    /// When the host cannot make one.
    pub fn new(file: &Path) -> Result<Loop, String> {
        let out = tool::output(Command::new("losetup").args(["--find", "--show"]).arg(file))
            .map_err(|e| format!("no loop device: {e}; load the module (modprobe loop) and run as root"))?;
        Ok(Loop { device: PathBuf::from(out.trim()) })
    }

    fn name(&self) -> String {
        self.device.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
    }

    fn attribute(&self, name: &str) -> PathBuf {
        Path::new("/sys/block").join(self.name()).join("queue").join(name)
    }

    fn read(&self, name: &str) -> Result<String, String> {
        let path = self.attribute(name);
        let text = std::fs::read_to_string(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        Ok(text.trim().to_owned())
    }

    /// Sets the scheduler. Returns whether the kernel has it, built in or as a module that it loads by itself. A write that fails for
    /// another reason is an error, because a comparison without schedulers would find no difference.
    fn takes_scheduler(&self, name: &str) -> Result<bool, String> {
        let path = self.attribute("scheduler");
        match std::fs::write(&path, name) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == std::io::ErrorKind::InvalidInput => Ok(false),
            Err(e) => Err(format!("cannot set {} to {name}: {e}", path.display())),
        }
    }

    fn counts(&self) -> Result<Counts, String> {
        let text =
            std::fs::read_to_string("/proc/diskstats").map_err(|e| format!("cannot read /proc/diskstats: {e}"))?;
        let name = self.name();
        let line = text.lines().find(|l| l.split_whitespace().nth(2) == Some(&name));
        line.and_then(Counts::of_line).ok_or_else(|| format!("/proc/diskstats has no usable line of {name}"))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // A failure cannot be handled here. `losetup` lists the device.
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}

/// Compares every job with every elevator and prints the table.
///
/// # Errors
/// When the host lacks a requirement, which the message names.
pub fn run(project: &Project) -> Result<Outcome, String> {
    if !packages::is_root()? {
        return Err("--loop makes a loop device and so needs root".into());
    }
    packages::ensure()?;
    let built = cargo().current_dir(&project.root).args(["build", "--quiet", "--package", "mqblk"]).status();
    if !built.map_err(|e| format!("cannot run cargo: {e}"))?.success() {
        return Ok(Outcome::Failed);
    }
    let folder = project.target_directory.join("oracle");
    std::fs::create_dir_all(&folder).map_err(|e| format!("cannot create {}: {e}", folder.display()))?;
    let files = [folder.join("kernel.img"), folder.join("ours.img")];
    for file in &files {
        // The files are not sparse, so that both sides read allocated blocks.
        let content = vec![0x5a_u8; (SIZE_MIB << 20) as usize];
        std::fs::write(file, content).map_err(|e| format!("cannot write {}: {e}", file.display()))?;
    }
    let device = Loop::new(&files[0])?;
    let offered = device.read("scheduler")?;
    println!("{:<12} {:<13} kernel: ios merges sectors   here: ios merges sectors  ", "scheduler", "job");
    let mut outcome = Outcome::Passed;
    for scheduler in SCHEDULERS {
        if !device.takes_scheduler(scheduler)? {
            println!("{scheduler:<12} not offered by this kernel ({offered})");
            continue;
        }
        for job in &JOBS {
            if !compare(project, &device, &files[1], &folder, scheduler, job)? {
                outcome = Outcome::Failed;
            }
        }
    }
    Ok(outcome)
}

fn compare(
    project: &Project,
    device: &Loop,
    ours: &Path,
    folder: &Path,
    scheduler: &str,
    job: &Job,
) -> Result<bool, String> {
    let path = folder.join("loop.fio");
    let text = format!("{BATCHES}size={SIZE_MIB}m\n{}", job.lines);
    std::fs::write(&path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    let before = device.counts()?;
    tool::output(Command::new("fio").arg(&path).arg("--filename").arg(&device.device))?;
    let kernel = device.counts()?.minus(before);
    let program = project.target_directory.join("debug").join("mqblk");
    let mut command = Command::new(program);
    command.arg("run").arg(&path).arg("--json").arg("--target").arg(format!("file:{}", ours.display()));
    let (nr, kb) = (device.read("nr_requests")?, device.read("max_sectors_kb")?);
    let settings = [
        "nr_hw_queues=1".to_owned(),
        "queue_depth=128".into(),
        format!("scheduler={scheduler}"),
        format!("nr_requests={nr}"),
        format!("max_sectors_kb={kb}"),
    ];
    for setting in &settings {
        command.arg("--set").arg(setting);
    }
    let here = of_json(&tool::output(&mut command)?)?;
    let same = kernel.sectors == here.sectors
        && if job.merges_fixed {
            (kernel.ios, kernel.merges) == (here.ios, here.merges)
        } else {
            kernel.bios() == here.bios()
        };
    let verdict = if same { "equal" } else { "DIFFERS" };
    println!("{scheduler:<12} {:<13} {}    {}    {verdict}", job.name, kernel.shown(), here.shown());
    Ok(same)
}

/// Reads the disk's counts from mqblk's JSON.
fn of_json(text: &str) -> Result<Counts, String> {
    let json: Value = serde_json::from_str(text).map_err(|e| format!("mqblk printed what xtask cannot read: {e}"))?;
    let disk = json.pointer("/disk_util/0").ok_or("mqblk's JSON has no disk_util")?;
    let job = json.pointer("/jobs/0").ok_or("mqblk's JSON has no job")?;
    let number = |v: &Value, name: &str| {
        v.pointer(name).and_then(Value::as_u64).ok_or_else(|| format!("no {name} in mqblk's JSON"))
    };
    let pair = |r: &str, w: &str| -> Result<[u64; 2], String> { Ok([number(disk, r)?, number(disk, w)?]) };
    let bytes = [number(job, "/read/io_bytes")?, number(job, "/write/io_bytes")?];
    Ok(Counts {
        ios: pair("/read_ios", "/write_ios")?,
        merges: pair("/read_merges", "/write_merges")?,
        sectors: bytes.map(|b| b >> 9),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_diskstats_is_read_and_a_short_one_refused() {
        let line = "   7       0 loop0 10 2 80 366 430 3840 588 631 0 612 1035 0 0 0 0 18 37";
        let c = Counts::of_line(line).unwrap();
        assert_eq!(c, Counts { ios: [10, 430], merges: [2, 3840], sectors: [80, 588] });
        assert_eq!(c.bios(), [12, 4270]);
        assert_eq!(c.minus(c), Counts::default());
        assert_eq!(Counts::of_line("7 0 loop0 1 2"), None);
        assert_eq!(Counts::of_line("7 0 loop0 a b c d e f g h"), None);
    }
}
