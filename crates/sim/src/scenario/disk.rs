// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `[disk]` of a machine file: its fields, and the rules for them.

use super::rule::{Broken, key};
use crate::machine::dm::{DmCosts, Kernel};
use crate::machine::kernel::driver::DriverKind;
use crate::machine::service::array::ArraySpec;
use crate::machine::service::hdd::HddSpec;
use serde::Deserialize;

/// How a disk is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attach {
    /// A driver of its own with hardware queues: NVMe, virtio-blk.
    #[default]
    Direct,
    /// Through the SCSI midlayer.
    Scsi,
    /// An eMMC or an SD card: a driver of its own with one queue.
    Mmc,
    /// As with this program's driver `model` in real time: no interrupts. Each waiting thread has a timer, and collects the
    /// completions that it finds.
    Model,
}

/// The disk.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// How it is attached.
    #[serde(default)]
    pub attach: Attach,
    /// Its driver in a kernel, where that is known and `attach` is `direct`.
    #[serde(default)]
    pub driver: DriverKind,
    /// Maximum number of hardware queues; 0 = one per CPU.
    #[serde(default)]
    pub hw_queues: u16,
    /// LUNs that the disk is striped over; caps apply to all of them together.
    #[serde(default = "one_lun")]
    pub luns: u16,
    /// Each thread spreads its I/Os in flight over all LUNs; otherwise a thread uses one LUN.
    #[serde(default)]
    pub spread: bool,
    /// The size of one LUN.
    pub size_gib: u64,
    /// Service time of a read, microseconds; infinite: not given.
    #[serde(default = "not_given")]
    pub read_us: f64,
    /// Service time of any other I/O, microseconds; infinite: not given.
    #[serde(default = "not_given")]
    pub write_us: f64,
    /// The disk rotates; its times are known only for the place, order and depth of the I/Os that were measured, unless it
    /// has a [`Disk::hdd`].
    #[serde(default)]
    pub rotational: bool,
    /// The disk rotates and records in shingles.
    #[serde(default)]
    pub smr: bool,
    /// A hard disk, whose times follow from the places of its I/Os instead.
    pub hdd: Option<HddSpec>,
    /// What is behind the cache of an array, whose hits and cached writes have the times and caps of the disk.
    pub array: Option<ArraySpec>,
    /// Uniform spread of each of these times, percent either way.
    #[serde(default)]
    pub jitter_pct: u32,
    /// Maximum number of I/Os per second; 0 = no cap.
    #[serde(default)]
    pub iops: u64,
    /// Maximum number of bytes per second, in units of a million; 0 = no cap.
    #[serde(default)]
    pub bw_mb: f64,
    /// Largest burst after a pause, as time at the rate of the caps.
    #[serde(default = "one")]
    pub burst_ms: u64,
    /// I/Os in service at once.
    #[serde(default = "parallel")]
    pub parallel: u32,
    /// Reads and writes have separate caps and separate service: a cache serves reads in front of the storage that takes writes.
    #[serde(default)]
    pub split: bool,
    /// SCSI: number of paths to each LUN, with device-mapper multipath over them; 0 = no multipath.
    #[serde(default)]
    pub paths: u16,
    /// SCSI: host adapters that the paths are distributed over.
    #[serde(default = "one_lun")]
    pub hosts: u16,
    /// SCSI: the kernel of the single-queue multipath, where `mode` is `sq`.
    #[serde(default)]
    pub kernel: Kernel,
    /// The costs of multipath.
    #[serde(default)]
    pub dm: DmCosts,
    /// SCSI: most commands in flight per LUN.
    pub lun_queue_depth: Option<u32>,
    /// Commands of each hardware queue of the SCSI host; for other disks, tags of each hardware queue.
    #[serde(default = "queue_depth")]
    pub queue_depth: u32,
}

fn not_given() -> f64 {
    f64::INFINITY
}

fn one_lun() -> u16 {
    1
}

fn one() -> u64 {
    1
}

fn parallel() -> u32 {
    65_536
}

fn queue_depth() -> u32 {
    1024
}

/// Fields of [`Disk`] that a row changes. Absent fields stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskChange {
    /// See [`Disk::driver`].
    pub driver: Option<DriverKind>,
    /// See [`Disk::luns`].
    pub luns: Option<u16>,
    /// See [`Disk::read_us`].
    pub read_us: Option<f64>,
    /// See [`Disk::write_us`].
    pub write_us: Option<f64>,
    /// See [`Disk::iops`].
    pub iops: Option<u64>,
    /// See [`Disk::bw_mb`].
    pub bw_mb: Option<f64>,
}

impl Disk {
    /// Returns the largest number of hardware queues on a machine with `cpus` CPUs.
    pub fn hw_queues_max(&self, cpus: u32) -> u32 {
        match (self.attach, self.hw_queues) {
            // The MMC driver has one queue.
            (Attach::Mmc, _) => 1,
            (_, 0) => cpus,
            (_, most) => cpus.min(most.into()),
        }
    }

    /// Returns about how long a read takes.
    pub fn mean_read_us(&self) -> f64 {
        self.hdd.map_or(self.read_us, |h| h.seek_avg_us + 30e6 / f64::from(h.rpm))
    }

    /// Returns the disk with the changes of a row.
    pub fn changed(&self, by: &DiskChange) -> Disk {
        Disk {
            driver: by.driver.unwrap_or(self.driver),
            luns: by.luns.unwrap_or(self.luns),
            read_us: by.read_us.unwrap_or(self.read_us),
            write_us: by.write_us.unwrap_or(self.write_us),
            iops: by.iops.unwrap_or(self.iops),
            bw_mb: by.bw_mb.unwrap_or(self.bw_mb),
            ..self.clone()
        }
    }
}

/// Checks the rules of a disk.
pub(super) fn check(d: &Disk) -> Result<(), Broken> {
    let bad = |name: &str, why: String| Err((key(["disk", name]), why));
    if d.size_gib == 0 || d.size_gib > 1 << 20 {
        return bad("size_gib", format!("size_gib = {}: must be 1..={}", d.size_gib, 1 << 20));
    }
    if d.luns == 0 || d.luns > 1024 {
        return bad("luns", format!("luns = {}: must be 1..=1024", d.luns));
    }
    if let Some(hdd) = &d.hdd {
        check_hdd(d, hdd)?;
    }
    if d.array.is_some() && d.split {
        return bad(
            "split",
            "split: reads and writes of an array share its cache; remove split or [disk.array]".into(),
        );
    }
    if let Some(array) = &d.array {
        array.check().map_err(|(name, why)| (key(["disk", "array", name]), why))?;
    }
    for (name, us) in [("read_us", d.read_us), ("write_us", d.write_us)].into_iter().filter(|_| d.hdd.is_none()) {
        if us == not_given() {
            let text = format!("{name} is missing: give the disk's times, or describe a hard disk in [disk.hdd]");
            return Err((key(["disk"]), text));
        }
        if !(0.0..=1e9).contains(&us) {
            return bad(name, format!("{name} = {us}: must be 0..=1e9 microseconds"));
        }
    }
    if d.jitter_pct > 100 {
        return bad("jitter_pct", format!("jitter_pct = {}: must be 0..=100", d.jitter_pct));
    }
    if d.parallel == 0 || d.parallel > parallel() {
        return bad("parallel", format!("parallel = {}: must be 1..={}", d.parallel, parallel()));
    }
    if !(0.0..=1e9).contains(&d.bw_mb) {
        return bad("bw_mb", format!("bw_mb = {}: must be 0..=1e9 million bytes per second", d.bw_mb));
    }
    if d.driver != DriverKind::Other && d.attach != Attach::Direct {
        return bad("driver", format!("driver = \"{}\": needs attach = \"direct\"; leave it out", d.driver.name()));
    }
    if d.driver == DriverKind::NullBlk && (d.read_us, d.write_us) != (0.0, 0.0) {
        return bad("driver", "driver = \"null_blk\": read_us and write_us must be 0".into());
    }
    if d.paths > 1024 || d.hosts == 0 || d.hosts > 1024 {
        let text = format!("paths = {}, hosts = {}: must be 0..=1024 and 1..=1024", d.paths, d.hosts);
        return bad("paths", text);
    }
    if d.paths > 0 && d.attach != Attach::Scsi {
        return bad("paths", "paths: only a disk with attach = \"scsi\" has them".into());
    }
    if d.lun_queue_depth.is_some() && d.attach != Attach::Scsi {
        return bad("lun_queue_depth", "lun_queue_depth: only a disk with attach = \"scsi\" has one".into());
    }
    Ok(())
}

/// Checks the rules of a hard disk: its times follow from its own figures.
fn check_hdd(d: &Disk, hdd: &HddSpec) -> Result<(), Broken> {
    let others = [
        ("read_us", d.read_us != not_given()),
        ("write_us", d.write_us != not_given()),
        ("jitter_pct", d.jitter_pct != 0),
        ("iops", d.iops != 0),
        ("bw_mb", d.bw_mb != 0.0),
        ("parallel", d.parallel != parallel()),
        ("split", d.split),
        ("array", d.array.is_some()),
    ];
    if let Some((name, _)) = others.into_iter().find(|(_, is_given)| *is_given) {
        let text = format!("{name}: a hard disk's times follow from [disk.hdd]; remove {name} or [disk.hdd]");
        return Err((key(["disk", name]), text));
    }
    if d.attach == Attach::Model {
        let text = "attach = \"model\": a hard disk has interrupts; use \"scsi\" or \"direct\"";
        return Err((key(["disk", "attach"]), text.into()));
    }
    hdd.check().map_err(|(name, why)| (key(["disk", "hdd", name]), why))
}
