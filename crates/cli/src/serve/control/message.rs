// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a daemon can be asked, and what it answers; `docs/control.md` shows each as it goes over the socket.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A line of a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Question {
    /// What is served, and by which IOThreads.
    List {},
    /// What it has done so far, in numbers.
    Stats {},
    /// Multipath disks, with their groups and paths, as `multipathd show maps json` has them.
    Multipath {},
    /// To serve more: a disk by itself, or the text of a configuration with what is to be added.
    Add {
        /// A target, served over NBD and vhost-user-blk as `mqblk serve DISK` does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        disk: Option<String>,
        /// TOML.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        config: Option<String>,
        /// Disks cannot be written.
        #[serde(default)]
        read_only: bool,
    },
    /// To end an export, or a disk with all its exports.
    Remove {
        /// Of the export or disk.
        name: String,
        /// Also if it has clients, which are let go.
        #[serde(default)]
        force: bool,
    },
    /// To give a disk another size.
    Resize {
        /// Its name.
        disk: String,
        /// Bytes; without, what size its image has now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes: Option<u64>,
        /// Also if it becomes smaller.
        #[serde(default)]
        force: bool,
    },
    /// To change settings of a disk under I/O.
    Set {
        /// Its name.
        disk: String,
        /// By their kernel names.
        settings: BTreeMap<String, String>,
    },
    /// To let nothing begin on a disk, or on all, and wait until nothing is in flight.
    Drain {
        /// Its name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        disk: Option<String>,
    },
    /// To continue after a drain.
    Resume {
        /// Its name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        disk: Option<String>,
    },
    /// To have another IOThread serve a virtqueue.
    Move {
        /// Name of the export.
        export: String,
        /// Its number.
        virtqueue: u16,
        /// Name of the IOThread.
        iothread: String,
    },
    /// To have other IOThreads serve an export: round robin, or each its virtqueues.
    Map {
        /// Name of the export.
        export: String,
        /// In their order.
        iothreads: Vec<Mapped>,
    },
    /// To read the configuration again.
    Reload {},
    /// To let all clients go and end.
    Shutdown {},
}

/// An IOThread of a mapping.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mapped {
    /// Its name.
    pub name: String,
    /// The virtqueues it serves; none in the whole mapping = round robin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtqueues: Option<Vec<u16>>,
}

/// A line of the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// What was asked for: for changes, a list of what was done.
    Ok(serde_json::Value),
    /// Why not: rule, value, remedy. What was done of it before, if anything.
    Error {
        /// The message.
        message: String,
        /// As of `Ok`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        done: Vec<String>,
    },
}
