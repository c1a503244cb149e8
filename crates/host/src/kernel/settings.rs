// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which of the requested settings can be written to a disk of this kernel, which have no effect on it, and which are refused.
//!
//! Guarantees: whatever can be refused without writing is refused here; the message names the alternative. Nothing is written. Does not:
//! know which values the kernel accepts (`keep` learns that when it writes them).

use super::device::{KernelDevice, attribute};
use super::sysfs::{self, IOSCHED, QUEUE_DEPTH, Values};
use crate::error::{Error, Result};
use crate::run::settings::RUN_SETTINGS;
use blk::settings::SETTINGS;
use blk::suggest::did_you_mean;
use std::path::Path;

/// A setting that does nothing here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoEffect {
    /// `name=value`.
    pub setting: String,
    /// Why not.
    pub why: String,
}

impl std::fmt::Display for NoEffect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: no effect: {}", self.setting, self.why)
    }
}

/// Settings as far as they are known without writing them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Planned {
    /// What is to be written, in this order.
    pub writes: Vec<(String, String)>,
    /// What does nothing.
    pub without_effect: Vec<NoEffect>,
}

/// Whether a job goes through the page cache, for settings that matter there only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// All I/O is direct.
    DirectOnly,
    /// Some is not, or it is not known.
    Any,
}

/// Tunables of the elevators of Linux 6.12 to 6.18, for those that are not loaded while their settings are read.
const TUNABLES: &[(&str, &[&str])] = &[
    ("none", &[]),
    (
        "mq-deadline",
        &[
            "async_depth",
            "fifo_batch",
            "front_merges",
            "prio_aging_expire",
            "read_expire",
            "write_expire",
            "writes_starved",
        ],
    ),
    ("kyber", &["read_lat_nsec", "write_lat_nsec"]),
    (
        "bfq",
        &[
            "back_seek_max",
            "back_seek_penalty",
            "fifo_expire_async",
            "fifo_expire_sync",
            "low_latency",
            "max_budget",
            "slice_idle",
            "slice_idle_us",
            "strict_guarantees",
            "timeout_sync",
        ],
    ),
];

/// Kinds of disks that a module's parameters are about.
const MODULES: &[(&str, &str, &str)] = &[
    ("scsi_mod", "scsi", "a SCSI disk"),
    ("sd_mod", "scsi", "a SCSI disk"),
    ("dm_mod", "device-mapper", "a device-mapper disk"),
    ("nvme", "nvme", "an NVMe disk"),
    ("nvme_core", "nvme", "an NVMe disk"),
    ("virtio_blk", "virtio", "a virtio disk"),
    ("hv_storvsc", "scsi", "a SCSI disk"),
    ("xen_blkfront", "xen", "a Xen disk"),
    ("null_blk", "null_blk", "a null_blk disk"),
    ("loop", "loop", "a loop device"),
];

/// Sorts `asked`, later ones over earlier ones.
///
/// # Errors
/// The first that this disk cannot have.
pub fn plan(device: &KernelDevice, asked: &[(String, String)], effect: Effect) -> Result<Planned> {
    let mut planned = Planned::default();
    let last: Values = asked.iter().cloned().collect();
    for (name, value) in &last {
        if let Some(why) = without_effect(device, name, effect)? {
            planned.without_effect.push(NoEffect { setting: format!("{name}={value}"), why });
            continue;
        }
        check(device, name, value, last.get("scheduler"))?;
        planned.writes.push((name.clone(), value.clone()));
    }
    planned.writes.sort_by_key(|(name, _)| sysfs::rank(name));
    Ok(planned)
}

/// Why a setting does nothing here, if so.
fn without_effect(device: &KernelDevice, name: &str, effect: Effect) -> Result<Option<String>> {
    let buffered = match name {
        "read_ahead_kb" => "fills the page cache ahead of readers",
        "wbt_lat_usec" => "holds back what the page cache writes",
        _ => "",
    };
    if effect == Effect::DirectOnly && !buffered.is_empty() && sysfs::value_of(device, name).is_some() {
        return Ok(Some(format!("{name} {buffered}, but every job has direct=1")));
    }
    match name.split_once('.') {
        Some((module, parameter)) if module != "iosched" => of_module(device, name, module, parameter).map(Some),
        _ => Ok(None),
    }
}

/// Why a module's parameter does nothing here.
fn of_module(device: &KernelDevice, name: &str, module: &str, parameter: &str) -> Result<String> {
    let Some((_, kind, what)) = MODULES.iter().find(|m| m.0 == module) else {
        let hint = did_you_mean(module, MODULES.iter().map(|m| m.0));
        return Err(Error::usage(format!("{name}: mqblk knows no parameters of a module '{module}'; {hint}")));
    };
    let own = device.kind();
    if own != *kind {
        return Ok(format!("{} is not {what} ({own})", device.disk));
    }
    if name == "scsi_mod.use_blk_mq" && attribute(Path::new("/sys/module/scsi_mod/parameters/use_blk_mq")).is_none() {
        return Ok("this kernel has no such parameter: SCSI disks always use blk-mq since Linux 5.0".to_owned());
    }
    if name == "dm_mod.use_blk_mq" {
        return Ok("it has no effect since Linux 4.20: device-mapper always uses blk-mq".to_owned());
    }
    let now = attribute(&Path::new("/sys/module").join(module).join("parameters").join(parameter));
    Err(Error::usage(match now {
        None => format!("{name}: module {module} has no parameter '{parameter}' on this kernel"),
        Some(now) => format!(
            "{name}: is read when {module} finds its disks, so it cannot be changed for a run; in effect: {now}. Put {name}=VALUE on \
             the kernel's command line, restart, and run again"
        ),
    }))
}

/// Refuses what cannot be written.
fn check(device: &KernelDevice, name: &str, value: &str, scheduler: Option<&String>) -> Result<()> {
    let disk = &device.disk;
    if let Some(tunable) = name.strip_prefix(IOSCHED) {
        return check_tunable(device, tunable, value, scheduler);
    }
    let known = sysfs::writable(device);
    if known.iter().any(|k| k == name) {
        return match name {
            "scheduler" => check_scheduler(device, value),
            _ => Ok(()),
        };
    }
    if let Some(now) = sysfs::value_of(device, name) {
        return Err(Error::usage(format!(
            "{name}={value}: {disk}'s driver has set it, and the kernel does not allow changing it; in effect: {now}"
        )));
    }
    let has = |n: Option<usize>| n.map_or_else(|| "an unknown number of".to_owned(), |n| n.to_string());
    if name == "nr_hw_queues" || name == "nr_poll_queues" || name == "nr_read_queues" {
        return Err(Error::usage(format!(
            "{name}={value}: the number of hardware queues cannot be changed in sysfs: {disk} has {} from its driver ({}){}",
            has(device.nr_hw_queues()),
            device.kind(),
            queue_parameter(&device.kind())
        )));
    }
    if name == QUEUE_DEPTH {
        return Err(Error::usage(format!(
            "{name}={value}: {disk} is no SCSI disk ({}), and only SCSI disks can change their tags; it has {}. Lower nr_requests instead",
            device.kind(),
            has(device.nr_tags().map(|n| n as usize))
        )));
    }
    if SETTINGS.iter().chain(RUN_SETTINGS).any(|s| s.name == name) {
        return Err(Error::usage(format!(
            "{name}={value}: is a setting of our block layer, and {disk} is driven by the kernel's; leave it out, or run on '{}' without \
             'kernel:'",
            device.node.display()
        )));
    }
    let hint = did_you_mean(name, known.iter().map(String::as_str));
    Err(Error::usage(format!("{name}={value}: {disk} has no such setting; {hint}It has {}", known.join(", "))))
}

/// How a driver is told its number of queues, where that is known.
fn queue_parameter(kind: &str) -> &'static str {
    match kind {
        "nvme" => "; nvme.write_queues and nvme.poll_queues at boot add queues",
        "virtio" => {
            "; virtio_blk.num_request_queues at boot limits them, and the hypervisor sets their number (num-queues)"
        }
        "xen" => "; xen_blkfront.max_queues at boot limits them",
        "scsi" => "; they are its host adapter's",
        _ => "",
    }
}

fn check_scheduler(device: &KernelDevice, value: &str) -> Result<()> {
    let offered = sysfs::schedulers(device);
    // A scheduler in a module may be missing from the list; the kernel loads the module.
    let known = TUNABLES.iter().map(|t| t.0).chain(["deadline", "noop", "cfq", "kyber-iosched"]);
    if offered.iter().any(|s| s == value) || known.clone().any(|s| s == value) {
        return Ok(());
    }
    let hint = did_you_mean(value, offered.iter().map(String::as_str).chain(known));
    let disk = &device.disk;
    Err(Error::usage(format!("scheduler={value}: {disk} has no such elevator; {hint}It has {}", offered.join(", "))))
}

fn check_tunable(device: &KernelDevice, tunable: &str, value: &str, scheduler: Option<&String>) -> Result<()> {
    let now = sysfs::value_of(device, "scheduler").unwrap_or_default();
    let elevator = scheduler.map_or(now.as_str(), String::as_str);
    let has: Vec<String> = if elevator == now {
        let all = sysfs::writable(device);
        all.iter().filter_map(|n| n.strip_prefix(IOSCHED).map(str::to_owned)).collect()
    } else {
        match TUNABLES.iter().find(|t| t.0 == elevator) {
            Some((_, names)) => names.iter().map(|n| (*n).to_owned()).collect(),
            // Found out when the elevator is there.
            None => return Ok(()),
        }
    };
    if has.iter().any(|n| n == tunable) {
        return Ok(());
    }
    let hint = did_you_mean(tunable, has.iter().map(String::as_str));
    let remedy = match (has.is_empty(), scheduler) {
        (true, None) => "has no tunables; add scheduler=NAME for the elevator that has them".to_owned(),
        (true, Some(_)) => "has no tunables".to_owned(),
        _ => format!("has no such tunable; {hint}It has {}", has.join(", ")),
    };
    Err(Error::usage(format!("{IOSCHED}{tunable}={value}: scheduler {elevator} of {} {remedy}", device.disk)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use blk::elevator::{MqElevator, by_name};
    use std::collections::BTreeSet;

    /// Tunables of ours that Linux has not, each with its reason.
    const NOT_IN_LINUX: &[(&str, &str)] = &[];

    #[test]
    fn kernel_tunables_follow_the_registry_of_elevators() {
        for elevator in MqElevator::ALL {
            let name = elevator.name();
            let row = TUNABLES.iter().find(|t| t.0 == name);
            assert_eq!(
                row.is_some(),
                elevator.facts().in_kernel,
                "{name}: a row of TUNABLES if and only if Linux has it"
            );
            let Some((_, kernel)) = row else { continue };
            let made = by_name::<parking_lot::RawMutex>(name, 64, 1, 32).unwrap();
            let ours: BTreeSet<_> = made.iter().flat_map(|e| e.tunables()).map(|t| t.name).collect();
            let unknown: Vec<_> =
                ours.iter().filter(|t| !kernel.contains(t) && !NOT_IN_LINUX.contains(&(name, t))).collect();
            assert!(unknown.is_empty(), "{name}: {unknown:?} is in our elevator; add it to TUNABLES or NOT_IN_LINUX");
        }
        let known = |name: &&str| MqElevator::ALL.iter().any(|e| e.name() == *name);
        assert!(
            TUNABLES.iter().map(|t| t.0).all(|name| known(&name)),
            "TUNABLES names an elevator that is not registered"
        );
    }
}
