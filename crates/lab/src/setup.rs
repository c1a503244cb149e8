// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine on which a result was measured, as data that a reader needs to judge or repeat the result.
//!
//! Guarantees: reading never fails; facts that a system does not provide are `None` or empty. Needs from callers: nothing;
//! tests pass another root. Does not: use the network, run programs, or change anything. Sources: /proc/sys/kernel,
//! /proc/cpuinfo, /proc/meminfo, /sys/devices/system, /sys/dev/block (documented in the kernel's Documentation/ABI and
//! admin-guide).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Facts about the machine and the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// Version of the program.
    pub program: String,
    /// Source commit of the build, if the environment variable `MQBLK_COMMIT` was set for it.
    pub commit: Option<String>,
    /// Kernel release.
    pub kernel: Option<String>,
    /// CPU model.
    pub cpu_model: Option<String>,
    /// CPUs this process may use.
    pub cpus: u32,
    /// Main memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Frequency governor of the first CPU.
    pub governor: Option<String>,
    /// The kernel's clock source.
    pub clocksource: Option<String>,
    /// Block devices that hold the job's files, by name.
    pub devices: BTreeMap<String, BTreeMap<String, String>>,
    /// Descriptions of the machines that runs were simulated on. All other facts are then only about the simulating host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub simulated: Vec<String>,
}

impl Setup {
    /// Reads the facts of this machine. `files` are the job's files or devices; those that do not exist are skipped.
    pub fn read(files: &[&Path]) -> Setup {
        let mut setup = Setup::read_at(Path::new("/"));
        if let Ok(n) = std::thread::available_parallelism() {
            setup.cpus = u32::try_from(n.get()).unwrap_or(u32::MAX);
        }
        for file in files {
            let Ok(meta) = fs::metadata(file) else { continue };
            // A device file is its own device; a regular file lies on the device of its file system.
            let dev = if meta.rdev() != 0 { meta.rdev() } else { meta.dev() };
            if let Some((name, settings)) = device_at(Path::new("/"), dev) {
                setup.devices.insert(name, settings);
            }
        }
        setup
    }

    /// Reads the facts below another root directory (the CPU count is that of /proc/cpuinfo).
    pub fn read_at(root: &Path) -> Setup {
        let line = |path: &str| read_line(&root.join(path));
        let cpuinfo = fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        Setup {
            program: format!("mqblk-{}", env!("CARGO_PKG_VERSION")),
            commit: option_env!("MQBLK_COMMIT").map(str::to_owned),
            kernel: line("proc/sys/kernel/osrelease"),
            cpu_model: field(&cpuinfo, "model name").or_else(|| field(&cpuinfo, "Model")),
            cpus: cpuinfo.lines().filter(|l| l.starts_with("processor")).count() as u32,
            memory_bytes: field(&meminfo, "MemTotal").and_then(|v| kib(&v)),
            governor: line("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            clocksource: line("sys/devices/system/clocksource/clocksource0/current_clocksource"),
            devices: BTreeMap::new(),
            simulated: Vec::new(),
        }
    }
}

/// Files of a device's `queue` directory that are recorded.
const QUEUE_FILES: [&str; 12] = [
    "scheduler",
    "nr_requests",
    "rotational",
    "write_cache",
    "fua",
    "logical_block_size",
    "physical_block_size",
    "max_sectors_kb",
    "nomerges",
    "rq_affinity",
    "wbt_lat_usec",
    "read_ahead_kb",
];

/// Name and settings of the disk with number `dev`, or of the disk that contains partition `dev`.
fn device_at(root: &Path, dev: u64) -> Option<(String, BTreeMap<String, String>)> {
    // The encoding of dev_t that stat(2) returns on Linux.
    let major = ((dev >> 8) & 0xfff) | ((dev >> 32) & !0xfff);
    let minor = (dev & 0xff) | ((dev >> 12) & !0xff);
    let mut dir = fs::canonicalize(root.join(format!("sys/dev/block/{major}:{minor}"))).ok()?;
    if !dir.join("queue").is_dir() {
        dir = dir.parent()?.to_owned();
    }
    let queue = dir.join("queue");
    let mut settings: BTreeMap<String, String> =
        QUEUE_FILES.iter().filter_map(|f| Some(((*f).to_owned(), read_line(&queue.join(f))?))).collect();
    if settings.is_empty() {
        return None;
    }
    if let Ok(hctxs) = fs::read_dir(dir.join("mq")) {
        settings.insert("nr_hw_queues".to_owned(), hctxs.count().to_string());
    }
    if let Some(sectors) = read_line(&dir.join("size")) {
        settings.insert("size_sectors".to_owned(), sectors);
    }
    Some((dir.file_name()?.to_string_lossy().into_owned(), settings))
}

/// The first line of a file, if it is not empty.
pub fn read_line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.lines().next()?.trim().to_owned()).filter(|s| !s.is_empty())
}

/// Value of the first `name : value` line.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|l| {
        let (key, value) = l.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

/// Bytes of a meminfo value such as `16384 kB`.
fn kib(value: &str) -> Option<u64> {
    value.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that is removed with the test.
    struct Tree(std::path::PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Tree {
            let root = std::env::temp_dir().join(format!("mqblk-setup-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Tree(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn reads_what_is_there() {
        let tree = Tree::new(
            "full",
            &[
                ("proc/sys/kernel/osrelease", "6.1.0-test\n"),
                (
                    "proc/cpuinfo",
                    "processor\t: 0\nmodel name\t: Example CPU @ 2GHz\n\nprocessor\t: 1\nmodel name\t: x\n",
                ),
                ("proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\n"),
                ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
                ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
            ],
        );
        let s = Setup::read_at(&tree.0);
        assert_eq!((s.kernel.as_deref(), s.cpu_model.as_deref()), (Some("6.1.0-test"), Some("Example CPU @ 2GHz")));
        assert_eq!((s.cpus, s.memory_bytes), (2, Some(16 << 20)));
        assert_eq!((s.governor.as_deref(), s.clocksource.as_deref()), (Some("powersave"), Some("tsc")));
        assert!(s.program.starts_with("mqblk-"));
    }

    #[test]
    fn nothing_there_is_no_error() {
        let s = Setup::read_at(Path::new("/nonexistent-root-of-a-test"));
        assert_eq!((s.kernel, s.cpus, s.memory_bytes), (None, 0, None));
    }

    #[test]
    fn a_partition_leads_to_its_disk() {
        let tree = Tree::new(
            "disk",
            &[
                ("sys/dev/disk/vdz/queue/scheduler", "[none] mq-deadline\n"),
                ("sys/dev/disk/vdz/queue/nr_requests", "256\n"),
                ("sys/dev/disk/vdz/mq/0/cpu_list", "0\n"),
                ("sys/dev/disk/vdz/mq/1/cpu_list", "1\n"),
                ("sys/dev/disk/vdz/size", "2048\n"),
                ("sys/dev/disk/vdz/vdz1/partition", "1\n"),
                ("sys/dev/block/keep", ""),
            ],
        );
        let link = |to: &str, name: &str| {
            std::os::unix::fs::symlink(tree.0.join(to), tree.0.join("sys/dev/block").join(name)).unwrap();
        };
        link("sys/dev/disk/vdz", "254:16");
        link("sys/dev/disk/vdz/vdz1", "254:17");
        let disk = device_at(&tree.0, (254 << 8) | 16).unwrap();
        let partition = device_at(&tree.0, (254 << 8) | 17).unwrap();
        assert_eq!(disk, partition);
        assert_eq!((disk.0.as_str(), disk.1["scheduler"].as_str()), ("vdz", "[none] mq-deadline"));
        assert_eq!((disk.1["nr_hw_queues"].as_str(), disk.1["size_sectors"].as_str()), ("2", "2048"));
        assert_eq!(device_at(&tree.0, 1), None);
    }

    #[test]
    fn this_machine_has_at_least_a_cpu_and_a_kernel() {
        let s = Setup::read(&[Path::new("/"), Path::new("/nonexistent")]);
        assert!(s.cpus >= 1 && s.kernel.is_some());
    }
}
