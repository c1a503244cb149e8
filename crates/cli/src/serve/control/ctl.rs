// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk ctl`: asks a daemon of this machine, and prints what it answers.

use super::client::{ask, find};
use super::inject::{self, InjectArgs};
use super::message::{Answer, Mapped, Question};
use crate::args::{key_value, size};
use crate::completion;
use crate::output;
use crate::status::{Failure, Outcome, Status};
use clap::{Args, Subcommand};
use host::net::certificates::OLD_ONES;
use host::serve::cpus;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// `mqblk ctl`.
#[derive(Args, Debug)]
pub struct CtlArgs {
    /// Control socket of the daemon [default: of the only daemon of this user]
    #[arg(long, value_name = "SOCKET", global = true)]
    pub control: Option<PathBuf>,
    /// Print the answer as JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// What to ask for
    #[command(subcommand)]
    pub what: CtlCommand,
}

/// Its subcommands.
#[derive(Subcommand, Debug)]
pub enum CtlCommand {
    /// List what is served, by which IOThreads, to how many clients
    List,
    /// Print counters of disks, hardware queues and IOThreads since the daemon started, as JSON
    Stats,
    /// Add a disk, served over NBD and vhost-user-blk, or the disks and exports of a CONFIG.toml
    Add {
        /// As for mqblk serve
        #[arg(value_name = "DISK | CONFIG.toml")]
        what: PathBuf,
        /// Open the added disks read-only
        #[arg(long)]
        read_only: bool,
    },
    /// Remove an export, or a disk with all its exports
    Remove {
        /// Name of the export or disk
        #[arg(add = completion::exports_and_disks())]
        name: String,
        /// Remove it even if clients are connected: disconnect them once their requests have completed, or failed after 10 s
        #[arg(long)]
        force: bool,
    },
    /// Resize a disk under I/O; clients are notified if their protocol can do that
    Resize {
        /// Name of the disk
        #[arg(add = completion::disks())]
        disk: String,
        /// New size in bytes, or with a unit (20G) [default: the current size of its image]
        #[arg(value_name = "SIZE", value_parser = size)]
        size: Option<u64>,
        /// Allow a smaller size: data beyond it is lost
        #[arg(long)]
        force: bool,
    },
    /// Change settings of a disk under I/O
    Set {
        /// Name of the disk
        #[arg(add = completion::disks())]
        disk: String,
        /// Settings under their kernel names; several take effect together
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = key_value, add = completion::settings())]
        settings: Vec<(String, String)>,
    },
    /// Stop new I/O on a disk, or on all, and wait until no I/O is in flight; clients' requests wait until resume
    Drain {
        /// Name of the disk
        #[arg(add = completion::disks())]
        disk: Option<String>,
    },
    /// Resume I/O after a drain
    Resume {
        /// Name of the disk
        #[arg(add = completion::disks())]
        disk: Option<String>,
    },
    /// Fail a path of a multipath disk, until it is reinstated by hand; requests use the other paths
    FailPath {
        /// Name of the disk; for a multipath disk in a stripe: DISK/NUMBER, counted from 0
        #[arg(add = completion::disks())]
        disk: String,
        /// Name of the path as in mqblk multipath -ll, or its number among the targets, counted from 1
        path: String,
    },
    /// Reinstate a path of a multipath disk
    ReinstatePath {
        /// Name of the disk; for a multipath disk in a stripe: DISK/NUMBER, counted from 0
        #[arg(add = completion::disks())]
        disk: String,
        /// Name of the path as in mqblk multipath -ll, or its number among the targets, counted from 1
        path: String,
    },
    /// Switch a multipath disk to another group of paths, until failback or the loss of its last path
    SwitchGroup {
        /// Name of the disk; for a multipath disk in a stripe: DISK/NUMBER, counted from 0
        #[arg(add = completion::disks())]
        disk: String,
        /// Number of the group as in mqblk multipath -ll, counted from 1
        group: usize,
    },
    /// Add a path to a multipath disk under I/O, after a check that it leads to the same disk
    AddPath {
        /// Name of the disk; for a multipath disk in a stripe: DISK/NUMBER, counted from 0
        #[arg(add = completion::disks())]
        disk: String,
        /// Target of the path, of the same kind as the others
        target: PathBuf,
        /// Priority of the path, the higher the better; with group_by_prio it selects the path's group [default: 1; with ALUA the target's]
        #[arg(long)]
        prio: Option<u32>,
    },
    /// Remove a path of a multipath disk under I/O
    RemovePath {
        /// Name of the disk; for a multipath disk in a stripe: DISK/NUMBER, counted from 0
        #[arg(add = completion::disks())]
        disk: String,
        /// Name of the path as in mqblk multipath -ll, or its number among the targets, counted from 1
        path: String,
        /// Remove even the last path that requests can use: requests can then fail
        #[arg(long)]
        force: bool,
    },
    /// Make requests of a disk's clients fail, wait or be torn, to test the programs that use the disk
    Inject(InjectArgs),
    /// Move a virtqueue to another IOThread, under I/O
    Move {
        /// Name of the export
        #[arg(add = completion::exports())]
        export: String,
        /// Number of the virtqueue
        virtqueue: u16,
        /// Name of the IOThread
        #[arg(add = completion::iothreads())]
        iothread: String,
    },
    /// Map an export to these IOThreads while I/O continues: virtqueues go round robin, or to the IOThread that lists them
    Map {
        /// Name of the export
        #[arg(add = completion::exports())]
        export: String,
        /// IOThread, such as io0, or io0:0-3,8 with its virtqueues
        #[arg(required = true, value_name = "IOTHREAD[:VIRTQUEUES]", value_parser = mapped, add = completion::iothreads())]
        iothreads: Vec<Mapped>,
    },
    /// Reload the daemon's configuration
    Reload,
    /// Disconnect all clients, and stop the daemon
    Shutdown,
}

/// `io0`, `io0:0-3,8`.
fn mapped(text: &str) -> Result<Mapped, String> {
    let Some((name, list)) = text.split_once(':') else {
        return Ok(Mapped { name: text.to_owned(), virtqueues: None });
    };
    let numbers = cpus::parse(list).map_err(|e| e.to_string())?;
    let virtqueues: Result<Vec<u16>, _> = numbers.into_iter().map(u16::try_from).collect();
    let virtqueues = virtqueues.map_err(|_| format!("'{list}': virtqueues are numbered 0..=65535"))?;
    Ok(Mapped { name: name.to_owned(), virtqueues: Some(virtqueues) })
}

/// Asks, and prints the answer.
pub fn main(args: &CtlArgs) -> Outcome {
    let question = question(&args.what)?;
    let (value, refused) = match ask(&find(args.control.as_deref())?, &question)? {
        Answer::Ok(value) => (value, None),
        Answer::Error { message, done } => (Value::from(done), Some(message)),
    };
    let text = match (&args.what, args.json) {
        (CtlCommand::Stats, _) | (_, true) if value.is_object() => output::json(&value),
        (CtlCommand::Stats, _) | (_, true) => output::json(&serde_json::json!({ "done": value })),
        (CtlCommand::List, _) => list(&value),
        (CtlCommand::Inject(_), _) if value.is_object() => inject::text(&value),
        _ => value.as_array().into_iter().flatten().filter_map(Value::as_str).map(|line| format!("{line}\n")).collect(),
    };
    if refused.is_none() || value.as_array().is_none_or(|done| !done.is_empty()) {
        output::print(&text)?;
    }
    refused.map_or(Ok(Status::Done), |message| Err(Failure::new(message)))
}

fn question(what: &CtlCommand) -> Result<Question, Failure> {
    Ok(match what {
        CtlCommand::List => Question::List {},
        CtlCommand::Stats => Question::Stats {},
        CtlCommand::Add { what, read_only } => add(what, *read_only)?,
        CtlCommand::Remove { name, force } => Question::Remove { name: name.clone(), force: *force },
        CtlCommand::Resize { disk, size, force } => {
            Question::Resize { disk: disk.clone(), bytes: *size, force: *force }
        }
        CtlCommand::Set { disk, settings } => {
            Question::Set { disk: disk.clone(), settings: settings.iter().cloned().collect() }
        }
        CtlCommand::Drain { disk } => Question::Drain { disk: disk.clone() },
        CtlCommand::Resume { disk } => Question::Resume { disk: disk.clone() },
        CtlCommand::FailPath { disk, path } => Question::FailPath { disk: disk.clone(), path: path.clone() },
        CtlCommand::ReinstatePath { disk, path } => Question::ReinstatePath { disk: disk.clone(), path: path.clone() },
        CtlCommand::SwitchGroup { disk, group } => Question::SwitchGroup { disk: disk.clone(), group: *group },
        CtlCommand::AddPath { disk, target, prio } => {
            Question::AddPath { disk: disk.clone(), target: target_text(target)?, prio: *prio }
        }
        CtlCommand::RemovePath { disk, path, force } => {
            Question::RemovePath { disk: disk.clone(), path: path.clone(), force: *force }
        }
        CtlCommand::Inject(args) => inject::question(args),
        CtlCommand::Move { export, virtqueue, iothread } => {
            Question::Move { export: export.clone(), virtqueue: *virtqueue, iothread: iothread.clone() }
        }
        CtlCommand::Map { export, iothreads } => Question::Map { export: export.clone(), iothreads: iothreads.clone() },
        CtlCommand::Reload => Question::Reload {},
        CtlCommand::Shutdown => Question::Shutdown {},
    })
}

/// Makes the question that adds a disk or a configuration.
fn add(what: &Path, read_only: bool) -> Result<Question, Failure> {
    let failed = |e: io::Error| Failure::new(format!("'{}': {e}", what.display()));
    if what.extension().is_some_and(|e| e.eq_ignore_ascii_case("toml")) {
        let config = Some(fs::read_to_string(what).map_err(failed)?);
        return Ok(Question::Add { disk: None, config, read_only });
    }
    Ok(Question::Add { disk: Some(target_text(what)?), config: None, read_only })
}

/// Returns the text of a target. A local disk is named by its absolute path, because the daemon may run in another directory. Symbolic links
/// stay: the configuration names devices by those in `/dev/disk`.
fn target_text(what: &Path) -> Result<String, Failure> {
    let failed = |e: io::Error| Failure::new(format!("'{}': {e}", what.display()));
    let path = if what.exists() { std::path::absolute(what).map_err(failed)? } else { what.to_owned() };
    let text = path.to_str().ok_or_else(|| Failure::new(format!("'{}': is not UTF-8", path.display())))?;
    Ok(text.to_owned())
}

/// Returns the target of a disk, or how the disk uses several targets.
fn underneath(disk: &Value) -> String {
    if let Some(target) = disk["target"].as_str() {
        return target.to_owned();
    }
    let targets: Vec<_> = disk["targets"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    format!("{} of {}", disk["stack"].as_str().unwrap_or_default(), targets.join(" "))
}

/// Returns a line for each object.
fn list(all: &Value) -> String {
    let text = |v: &Value, key: &str| v[key].as_str().unwrap_or_default().to_owned();
    let mut out = format!("daemon {}\n", all["pid"]);
    for thread in all["iothreads"].as_array().into_iter().flatten() {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "iothread {}", text(thread, "name"));
    }
    for disk in all["disks"].as_array().into_iter().flatten() {
        let ro = if disk["read_only"] == true { ", read-only" } else { "" };
        let drained = if disk["drained"] == true { ", drained" } else { "" };
        let buffered = if disk["direct"] == false { ", through the page cache" } else { "" };
        let aio = if disk["aio"] == "threads" { ", aio=threads" } else { "" };
        let _ = writeln!(
            out,
            "disk {}: {}, {} bytes, {} hardware queues, {}{aio}{ro}{buffered}{drained}",
            text(disk, "name"),
            underneath(disk),
            disk["bytes"],
            disk["nr_hw_queues"],
            text(disk, "scheduler"),
        );
        for trouble in disk["troubles"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let _ = writeln!(out, "  {trouble}");
        }
    }
    for export in all["exports"].as_array().into_iter().flatten() {
        let place = ["socket", "listen", "mountpoint"].into_iter().find_map(|key| export[key].as_str());
        let threads: Vec<_> = export["iothreads"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let gone = export["gone"].as_str().map_or(String::new(), |why| format!(", GONE: {why}"));
        let _ = writeln!(
            out,
            "export {}: {} of disk {} at {}, {} connected, IOThreads {}{gone}",
            text(export, "name"),
            text(export, "type"),
            text(export, "disk"),
            place.unwrap_or("-"),
            export["connected"],
            threads.join(" "),
        );
        if let Some(problem) = export["certificate_problem"].as_str() {
            let _ = writeln!(out, "  {problem}; {OLD_ONES}");
        }
    }
    out
}
