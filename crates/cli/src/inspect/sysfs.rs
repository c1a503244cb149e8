// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a kernel reports about its block devices and multi-queue: /sys/block and module parameters, below any root directory.
//!
//! Guarantees: reads only; missing information is `None` or absent, never an error, except for a device that was named. Each device has
//! notes on missing information and on parameters that do not apply to it. Sources: the kernel's Documentation/ABI/stable/sysfs-block and
//! block/blk-mq-sysfs.c (`mq/N/{cpu_list,nr_tags,nr_reserved_tags}`).

use blk::suggest::did_you_mean;
use lab::setup::read_line;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Files of a device's `queue` directory, in the order they are shown.
pub const QUEUE_FILES: [&str; 16] = [
    "scheduler",
    "nr_requests",
    "nomerges",
    "rq_affinity",
    "max_sectors_kb",
    "max_hw_sectors_kb",
    "read_ahead_kb",
    "wbt_lat_usec",
    "io_poll",
    "io_timeout",
    "write_cache",
    "fua",
    "rotational",
    "zoned",
    "logical_block_size",
    "physical_block_size",
];

/// Parameters below /sys/module that decide how many queues there are, and what each is for.
const PARAMETERS: [(&str, &str, &str); 10] = [
    ("scsi_mod", "use_blk_mq", "SCSI disks use blk-mq (kernels 3.17 to 4.20; always since 5.0)"),
    ("dm_mod", "use_blk_mq", "request-based device mapper uses blk-mq (kernels 4.1 to 4.20; always since 5.0)"),
    ("dm_mod", "dm_mq_nr_hw_queues", "hardware queues of request-based device mapper"),
    ("dm_mod", "dm_mq_queue_depth", "queue depth of request-based device mapper"),
    ("nvme", "poll_queues", "further NVMe queues for polled I/O"),
    ("nvme", "write_queues", "NVMe queues for writes only"),
    ("virtio_blk", "num_request_queues", "limit on virtio-blk hardware queues (0 = none)"),
    ("virtio_blk", "poll_queues", "further virtio-blk queues for polled I/O"),
    ("hv_storvsc", "storvsc_max_hw_queues", "limit on Hyper-V storage hardware queues"),
    ("xen_blkfront", "max_queues", "limit on Xen block hardware queues"),
];

/// One parameter of a loaded module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Parameter {
    /// `module.parameter`.
    pub name: String,
    /// Its value; `None` when this kernel has no such parameter.
    pub value: Option<String>,
    /// What it is for.
    pub help: &'static str,
}

/// One hardware queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hctx {
    /// Its number.
    pub hctx: u32,
    /// CPUs that use it, as the kernel lists them.
    pub cpu_list: Option<String>,
    /// Driver tags.
    pub nr_tags: Option<u64>,
    /// Reserved tags among them.
    pub nr_reserved_tags: Option<u64>,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Name below /sys/block.
    pub name: String,
    /// `scsi`, `nvme`, `virtio`, `mmc`, `device-mapper`, ... as far as it can be told.
    pub kind: Option<String>,
    /// Size in bytes.
    pub size_bytes: Option<u64>,
    /// The elevator in effect.
    pub scheduler: Option<String>,
    /// Number of hardware queues; `None` without blk-mq.
    pub nr_hw_queues: Option<usize>,
    /// Hardware queues.
    pub hctxs: Vec<Hctx>,
    /// Files of the queue directory, by name; absent files are left out.
    pub queue: BTreeMap<String, String>,
    /// Notes on how to read these facts.
    pub notes: Vec<String>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostFacts {
    /// Kernel release.
    pub kernel: Option<String>,
    /// Devices by name.
    pub devices: Vec<Device>,
    /// Module parameters.
    pub parameters: Vec<Parameter>,
}

/// Reads all devices, or the one named (`sda`, `sda1`, `/dev/sda`, `/dev/mapper/x`).
pub fn read(root: &Path, device: Option<&str>) -> Result<HostFacts, String> {
    let block = root.join("sys/block");
    let mut names = names(&block);
    if let Some(asked) = device {
        names = vec![resolve(root, asked, &names)?];
    }
    let parameters = parameters(root);
    let scsi = parameters.first().and_then(|p| p.value.clone());
    let devices = names.iter().map(|n| read_device(&block.join(n), n, scsi.as_deref())).collect();
    Ok(HostFacts { kernel: read_line(&root.join("proc/sys/kernel/osrelease")), devices, parameters })
}

/// What is in a directory, sorted.
pub(super) fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The disk that a name, a partition or a device file belongs to.
fn resolve(root: &Path, asked: &str, names: &[String]) -> Result<String, String> {
    // A link below /dev leads to the device's own name (/dev/mapper/x -> ../dm-0).
    let file = root.join(asked.trim_start_matches('/'));
    let real = if asked.contains('/') { fs::canonicalize(file).ok() } else { None };
    let name = real.as_deref().unwrap_or(Path::new(asked)).file_name().map(|n| n.to_string_lossy().into_owned());
    let name = name.unwrap_or_default();
    if names.contains(&name) {
        return Ok(name);
    }
    let holder = names.iter().find(|disk| root.join("sys/block").join(disk).join(&name).join("partition").exists());
    if let Some(disk) = holder.filter(|_| !name.is_empty()) {
        return Ok(disk.clone());
    }
    let remedy = match names.is_empty() {
        true => "this host shows no block devices under /sys/block".to_owned(),
        false => {
            let hint = did_you_mean(&name, names.iter().map(String::as_str));
            format!("{hint}There are {}", names.join(", "))
        }
    };
    Err(format!("--host {asked}: is no block device of this host; {remedy}"))
}

fn read_device(dir: &Path, name: &str, scsi_use_blk_mq: Option<&str>) -> Device {
    let queue: BTreeMap<String, String> =
        QUEUE_FILES.iter().filter_map(|f| Some(((*f).to_owned(), read_line(&dir.join("queue").join(f))?))).collect();
    let scheduler = queue.get("scheduler").map(|list| selected(list));
    let hctxs = hctxs(&dir.join("mq"));
    let mut device = Device {
        name: name.to_owned(),
        kind: kind(dir, name),
        size_bytes: read_line(&dir.join("size")).and_then(|s| s.parse::<u64>().ok()).map(|sectors| sectors << 9),
        scheduler,
        nr_hw_queues: (!hctxs.is_empty()).then_some(hctxs.len()),
        hctxs,
        queue,
        notes: Vec::new(),
    };
    device.notes = notes(&device, scsi_use_blk_mq);
    device
}

fn hctxs(dir: &Path) -> Vec<Hctx> {
    let mut hctxs: Vec<Hctx> = names(dir)
        .iter()
        .filter_map(|n| {
            let at = dir.join(n);
            let number = |file: &str| read_line(&at.join(file)).and_then(|s| s.parse().ok());
            Some(Hctx {
                hctx: n.parse().ok()?,
                cpu_list: read_line(&at.join("cpu_list")),
                nr_tags: number("nr_tags"),
                nr_reserved_tags: number("nr_reserved_tags"),
            })
        })
        .collect();
    hctxs.sort_by_key(|h| h.hctx);
    hctxs
}

/// What sort of device it is, from its place in the device tree, its directories and its name.
fn kind(dir: &Path, name: &str) -> Option<String> {
    if dir.join("device/scsi_device").exists() || dir.join("device/scsi_disk").exists() {
        return Some("scsi".to_owned());
    }
    let subsystem = fs::canonicalize(dir.join("device/subsystem")).ok();
    if let Some(subsystem) = subsystem.as_deref().and_then(Path::file_name) {
        return Some(subsystem.to_string_lossy().into_owned());
    }
    let by_name = [
        ("mmcblk", "mmc"),
        ("nvme", "nvme"),
        ("dm-", "device-mapper"),
        ("md", "md"),
        ("loop", "loop"),
        ("zram", "zram"),
        ("ram", "ram disk"),
        ("nbd", "nbd"),
        ("ublk", "ublk"),
        ("vd", "virtio"),
        ("xvd", "xen"),
        ("sd", "scsi"),
        ("sr", "scsi"),
    ];
    by_name.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, kind)| (*kind).to_owned())
}

/// Elevators of the kernel's legacy block layer.
pub(super) const LEGACY_ELEVATORS: [&str; 3] = ["noop", "deadline", "cfq"];

fn notes(d: &Device, scsi_use_blk_mq: Option<&str>) -> Vec<String> {
    let mut notes = Vec::new();
    let list = d.queue.get("scheduler").map_or("", String::as_str);
    let mut words = list.split_whitespace().map(|w| w.trim_matches(['[', ']']));
    let is_legacy = words.any(|w| LEGACY_ELEVATORS.contains(&w));
    if d.queue.is_empty() {
        notes.push("no queue directory: this kernel shows no queue settings for it".to_owned());
    } else if d.nr_hw_queues.is_none() && is_legacy {
        notes.push("single-queue: its elevators are those of the legacy block layer".to_owned());
    } else if d.nr_hw_queues.is_none() {
        notes.push("no mq directory: bio-based (without a request queue), or hidden".to_owned());
    }
    if let (Some(value), Some(kind)) = (scsi_use_blk_mq, d.kind.as_deref())
        && kind != "scsi"
    {
        notes.push(format!("scsi_mod.use_blk_mq={value} has no effect on this disk: it is no SCSI disk ({kind})"));
    }
    if d.nr_hw_queues.is_some_and(|n| n > 1) && d.scheduler.as_deref().is_some_and(|s| s != "none") {
        notes.push("one elevator over several hardware queues: requests of all CPUs share it".to_owned());
    }
    if !d.queue.is_empty() && !d.queue.contains_key("wbt_lat_usec") {
        notes.push("no wbt_lat_usec: no writeback throttling in this kernel, or not for this disk".to_owned());
    }
    notes
}

/// `none [mq-deadline]` -> `mq-deadline`; a list without brackets has one member.
fn selected(list: &str) -> String {
    let chosen = list.split_whitespace().find_map(|w| w.strip_prefix('[')?.strip_suffix(']'));
    chosen.unwrap_or(list).to_owned()
}

fn parameters(root: &Path) -> Vec<Parameter> {
    let at =
        |module: &str, name: &str| -> PathBuf { root.join("sys/module").join(module).join("parameters").join(name) };
    let all = PARAMETERS.iter().map(|(module, name, help)| Parameter {
        name: format!("{module}.{name}"),
        value: read_line(&at(module, name)),
        help,
    });
    all.collect()
}

#[cfg(test)]
mod tests;
