// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The commands of a daemon, and its answers; `docs/control.md` shows each as it is sent over the socket.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A line from a client: one command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Question {
    /// Lists what is served, and by which IOThreads.
    List {},
    /// Returns the counters of the daemon.
    Stats {},
    /// Lists multipath disks with their groups and paths, as `multipathd show maps json` has them.
    Multipath {},
    /// Fails a path of a multipath disk, until it is reinstated by a command.
    FailPath {
        /// Name of the disk, as in `multipath`.
        disk: String,
        /// Name of the path, or its number among the targets, counted from 1.
        path: String,
    },
    /// Reinstates a path of a multipath disk.
    ReinstatePath {
        /// Name of the disk, as in `multipath`.
        disk: String,
        /// Name of the path, or its number among the targets, counted from 1.
        path: String,
    },
    /// Switches a multipath disk to another group of paths.
    SwitchGroup {
        /// Name of the disk, as in `multipath`.
        disk: String,
        /// Number of the group, counted from 1.
        group: usize,
    },
    /// Adds a path to a multipath disk.
    AddPath {
        /// Name of the disk, as in `multipath`.
        disk: String,
        /// Target of the path, of the same kind as the others.
        target: String,
        /// Its priority, the higher the better; without it 1, or what the target reports (`prio=alua`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prio: Option<u32>,
    },
    /// Removes a path of a multipath disk.
    RemovePath {
        /// Name of the disk, as in `multipath`.
        disk: String,
        /// Name of the path, or its number among the targets, counted from 1.
        path: String,
        /// Whether to remove it even if requests can use no other path and would fail.
        #[serde(default)]
        force: bool,
    },
    /// Adds a single disk, or everything in the text of a configuration.
    Add {
        /// A target, served over NBD and vhost-user-blk as `mqblk serve DISK` does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        disk: Option<String>,
        /// TOML.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        config: Option<String>,
        /// Whether the added disks are read-only.
        #[serde(default)]
        read_only: bool,
    },
    /// Removes an export, or a disk with all its exports.
    Remove {
        /// Name of the export or disk.
        name: String,
        /// Whether to remove it even if it has clients, which are disconnected.
        #[serde(default)]
        force: bool,
    },
    /// Resizes a disk.
    Resize {
        /// Its name.
        disk: String,
        /// New size in bytes; without it, the current size of the image.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes: Option<u64>,
        /// Whether the disk may become smaller.
        #[serde(default)]
        force: bool,
    },
    /// Changes settings of a disk under I/O.
    Set {
        /// Its name.
        disk: String,
        /// The settings, by their kernel names.
        settings: BTreeMap<String, String>,
    },
    /// Stops new I/O on a disk, or on all disks, and waits until no I/O is in flight.
    Drain {
        /// Its name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        disk: Option<String>,
    },
    /// Resumes I/O after a drain.
    Resume {
        /// Its name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        disk: Option<String>,
    },
    /// Lists the rules of fault injection of a disk.
    Injections {
        /// Its name.
        disk: String,
    },
    /// Gives requests of a disk's clients a fault.
    Inject {
        /// Its name.
        disk: String,
        /// Which requests get which fault.
        rule: RuleMessage,
    },
    /// Removes a rule of fault injection.
    RemoveInjection {
        /// Name of the disk.
        disk: String,
        /// Number of the rule; without it, all rules.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<u32>,
    },
    /// Moves a virtqueue to another IOThread.
    Move {
        /// Name of the export.
        export: String,
        /// Number of the virtqueue.
        virtqueue: u16,
        /// Name of the IOThread.
        iothread: String,
    },
    /// Maps an export to IOThreads: round robin, or with a list of virtqueues for each.
    Map {
        /// Name of the export.
        export: String,
        /// The IOThreads, in order.
        iothreads: Vec<Mapped>,
    },
    /// Reads the configuration again.
    Reload {},
    /// Disconnects all clients and ends the daemon.
    Shutdown {},
}

/// A rule of fault injection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleMessage {
    /// `error`, `delay` or `torn`.
    pub fault: String,
    /// Word of the status, for `error`; without it `ioerr`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// The time of a `delay`, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ns: Option<u64>,
    /// Words of the operations; without any, all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub op: Vec<String>,
    /// First sector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sector: Option<u64>,
    /// Number of sectors from there; without it 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nr_sectors: Option<u64>,
    /// Above 0 and at most 1; without it 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// Seed of the random numbers; without it the daemon chooses one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Number of hits; without it there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

/// An IOThread of a mapping.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mapped {
    /// Its name.
    pub name: String,
    /// The virtqueues that it serves; without any list in the mapping, round robin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtqueues: Option<Vec<u16>>,
}

/// A line from the daemon: one answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The result; for a change, a list of the changes made.
    Ok(serde_json::Value),
    /// The command failed, maybe after some changes were made.
    Error {
        /// Rule, value and remedy.
        message: String,
        /// The changes made before the failure.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        done: Vec<String>,
    },
}
