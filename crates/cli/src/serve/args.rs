// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The arguments of `mqblk serve`.

use super::log::{Format, Least};
use super::metrics::Listen;
use crate::args::{key_value, size};
use crate::completion;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Headings of the help.
const DISKS: &str = "Disks";
const EXPORTS: &str = "Exports and IOThreads";
const TLS: &str = "TLS";
const DAEMON: &str = "Daemon";

/// `--tls`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TlsChoice {
    /// Clients cannot use TLS.
    Off,
    /// Clients may use TLS.
    On,
    /// Clients must use TLS.
    Require,
}

/// `--sandbox`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SandboxChoice {
    /// Deny system calls that the daemon never needs, as far as the kernel can.
    On,
    /// Deny nothing.
    Off,
}

/// `mqblk serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// A disk (a file, a block device, or another target: --help lists all), served over NBD and vhost-user-blk on Unix
    /// sockets; or a configuration (a name that ends with .toml)
    #[arg(value_name = "DISK | CONFIG.toml", required_unless_present = "libvirt", conflicts_with = "libvirt")]
    pub what: Option<PathBuf>,
    /// Serve the disks of a libvirt domain over vhost-user-blk, with its queues and IOThreads
    #[arg(help_heading = DISKS, long, value_name = "DOMAIN.xml")]
    pub libvirt: Option<PathBuf>,
    /// Setting of every disk's queues, under its kernel name, overrides the file; may be repeated
    #[arg(help_heading = DISKS, long = "set", value_name = "KEY=VALUE", value_parser = key_value, add = completion::settings())]
    pub settings: Vec<(String, String)>,
    /// Directory of sockets with a relative path [default: the working directory]
    #[arg(help_heading = EXPORTS, long, value_name = "DIR")]
    pub socket_dir: Option<PathBuf>,
    /// Number of IOThreads, if the file names none [default: one per virtqueue, at most one per CPU]
    #[arg(help_heading = EXPORTS, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub iothreads: Option<u64>,
    /// Virtqueues of exports without num_queues [default: one per CPU]
    #[arg(help_heading = EXPORTS, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    pub num_queues: Option<u64>,
    /// NBD clients may (on) or must (require) use TLS; exports with TLS settings in the file keep those. With
    /// certificates the default is require
    #[arg(
        help_heading = TLS,
        long,
        value_name = "off | on | require",
        requires_if("on", "tls_certificates"),
        requires_if("require", "tls_certificates")
    )]
    pub tls: Option<TlsChoice>,
    /// Directory with server-cert.pem, server-key.pem and ca-cert.pem (and ca-crl.pem), as for QEMU and nbdkit
    #[arg(help_heading = TLS, long, value_name = "DIR")]
    pub tls_certificates: Option<PathBuf>,
    /// NBD clients must present a certificate that ca-cert.pem's authority issued and ca-crl.pem does not revoke
    #[arg(help_heading = TLS, long, requires = "tls_certificates")]
    pub tls_verify_peer: bool,
    /// Open every disk read-only
    #[arg(help_heading = DISKS, long)]
    pub read_only: bool,
    /// Interval of load balancing between IOThreads, in seconds; 0 = never; manually mapped virtqueues are not moved
    #[arg(help_heading = EXPORTS, long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    pub balance: f64,
    /// Control socket, for mqblk ctl [default: serve-PID.sock in /run/mqblk for root, in $XDG_RUNTIME_DIR/mqblk for others]
    #[arg(help_heading = DAEMON, long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
    /// Write the process id to this file once everything listens; the file is removed when the daemon ends
    #[arg(help_heading = DAEMON, long, value_name = "PATH")]
    pub pidfile: Option<PathBuf>,
    /// Serve metrics for Prometheus (GET /metrics) at this address
    #[arg(help_heading = DAEMON, long, value_name = "ADDRESS:PORT | unix:PATH")]
    pub metrics: Option<Listen>,
    /// Switch to this user once everything is open; root only, irreversible
    #[arg(help_heading = DAEMON, long, value_name = "USER[:GROUP]")]
    pub user: Option<String>,
    /// Maximum memory for the buffers of all clients together; guest memory does not count [default: half of the cgroup's, or of the machine's]
    #[arg(help_heading = DAEMON, long, value_name = "SIZE", value_parser = size)]
    pub max_client_memory: Option<u64>,
    /// Allow core dumps, and debuggers of the same user, even while passwords or private keys are in memory, and after --user
    #[arg(help_heading = DAEMON, long)]
    pub core_dumps: bool,
    /// Deny the daemon system calls that it never needs, such as to start programs, if the kernel can
    #[arg(help_heading = DAEMON, long, value_enum, default_value_t = SandboxChoice::On, value_name = "on | off")]
    pub sandbox: SandboxChoice,
    /// Format of the log on standard error
    #[arg(help_heading = DAEMON, long, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    pub log_format: Format,
    /// Lowest severity that is logged
    #[arg(help_heading = DAEMON, long, value_enum, default_value_t = Least::Info, value_name = "LEVEL")]
    pub log_level: Least,
    /// Check everything, print the plan and the clients' commands, and change nothing
    #[arg(help_heading = DAEMON, long, visible_alias = "print-plan")]
    pub dry_run: bool,
    /// Print the plan as JSON instead of text; the daemon still starts, except with --dry-run
    #[arg(help_heading = DAEMON, long)]
    pub json: bool,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|s| (0.0..=3600.0).contains(s));
    seconds.ok_or_else(|| format!("'{text}': must be 0..=3600 seconds"))
}
