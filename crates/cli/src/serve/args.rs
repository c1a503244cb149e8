// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can be typed after `mqblk serve`.

use super::log::{Format, Least};
use super::metrics::Listen;
use crate::args::key_value;
use clap::Args;
use std::path::PathBuf;

/// `mqblk serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// A disk (file, block device, null:..., ram:..., model:...), served over NBD and vhost-user-blk on Unix sockets;
    /// or a configuration, whose name ends with .toml
    #[arg(value_name = "DISK | CONFIG.toml", required_unless_present = "libvirt", conflicts_with = "libvirt")]
    pub what: Option<PathBuf>,
    /// Serve the disks of a libvirt domain over vhost-user-blk, with its queues and IOThreads
    #[arg(long, value_name = "DOMAIN.xml")]
    pub libvirt: Option<PathBuf>,
    /// Setting of every disk's queues, under its kernel name, over those of the file; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub settings: Vec<(String, String)>,
    /// Where sockets are made whose path is not absolute, instead of the working directory
    #[arg(long, value_name = "DIR")]
    pub socket_dir: Option<PathBuf>,
    /// Reactor threads, where the file names none; without, one per virtqueue up to the CPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub iothreads: Option<u64>,
    /// Virtqueues of exports that do not say; without, as many as there are CPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    pub num_queues: Option<u64>,
    /// Open every disk so that it cannot be written
    #[arg(long)]
    pub read_only: bool,
    /// Where mqblk ctl reaches the daemon [default: serve-PID.sock in $XDG_RUNTIME_DIR/mqblk or /tmp/mqblk-UID]
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
    /// Serve Prometheus' page of counters (GET /metrics) there
    #[arg(long, value_name = "ADDRESS:PORT | unix:PATH")]
    pub metrics: Option<Listen>,
    /// Be this user once all is open: root only, without a way back
    #[arg(long, value_name = "USER[:GROUP]")]
    pub user: Option<String>,
    /// How the log on standard error looks
    #[arg(long, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    pub log_format: Format,
    /// What is logged: this and what is worse
    #[arg(long, value_enum, default_value_t = Least::Info, value_name = "LEVEL")]
    pub log_level: Least,
    /// Check everything, print the plan and the commands of clients, and touch nothing
    #[arg(long, visible_alias = "print-plan")]
    pub dry_run: bool,
    /// Print the plan as JSON
    #[arg(long)]
    pub json: bool,
}
