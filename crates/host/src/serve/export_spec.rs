// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The contract between `serve` and every type of export: the values that an `[[export]]` section is parsed into.
//!
//! Guarantees, by the implementations: only `ExportSpec::preflight` and `ExportSpec::begin` look at the machine, and only `begin` changes
//! it. Messages are `KEY=VALUE: rule; remedy`. Export types are registered in `export/registry.rs`, one line each.

use super::geometry::Geometry;
use super::running::RunningExport;
use super::{IoThreads, ServedDisk};
use crate::error::Result;
use crate::handed::{self, At};
use crate::net::certificates::NbdTls;
use crate::net::listen::TcpListen;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A callback that takes the key at fault and the problem.
pub(crate) type Report<'a> = dyn FnMut(&str, String) + 'a;

/// A type of export: the value that its section of a configuration is parsed into.
pub(crate) trait ExportSpec: Sized {
    /// The word after `type =`.
    const TYPE: &'static str;
    /// Suffix of the default name of an export: `DISK.SHORT`.
    const SHORT: &'static str;
    /// Only root can stop the export.
    const NEEDS_ROOT: bool = false;
    /// Its sources are connections of clients, which come and go, not queues.
    const SERVES_CONNECTIONS: bool = false;
    /// It serves disks that end within a sector with their exact size.
    const SERVES_ANY_SIZE: bool = false;
    /// Its clients see a device with block sizes.
    const HAS_BLOCKS: bool = true;

    /// Reads the keys of this type. `name` is the name of the export, `disk` that of its disk.
    fn read(keys: &mut dyn ExportKeys, name: &str, disk: &str) -> Self;

    /// Returns the number of queues that a mapping distributes; `None`: connections are distributed round robin as they arrive.
    fn num_queues(&self) -> Option<u16> {
        None
    }

    /// Returns the Unix socket that it listens on. The caller checks its path.
    fn unix_socket(&self) -> Option<&Path> {
        None
    }

    /// Whether it listens at `at`.
    fn is_at(&self, at: &At) -> bool {
        self.unix_socket().is_some_and(|path| handed::is_at(at, path))
    }

    /// Makes it listen at `at` instead. Returns false if it cannot.
    fn listen_at(&mut self, _at: &At) -> bool {
        false
    }

    /// Returns the TLS settings of this export; `None`: the type has no TLS.
    fn tls(&mut self) -> Option<&mut Option<NbdTls>> {
        None
    }

    /// Reports values out of range.
    fn check(&self, report: &mut Report<'_>);

    /// Whether both are exports of one server, and so may listen at the same address.
    fn shares_server(&self, _other: &Self) -> bool {
        false
    }

    /// Returns why both cannot be served, with the key at fault; `name` is the name of the other export.
    fn clash(&self, other: &Self, name: &str) -> Option<(&'static str, String)>;

    /// Reports what prevents the export on this machine. For exports that share a server, only the first is asked.
    fn preflight(&self, report: &mut Report<'_>);

    /// Begins the export. Returns `None` if the server that it shares with others serves it; only NBD may do that, because the daemon has
    /// no other servers.
    ///
    /// # Errors
    /// The errors of the export type.
    fn begin(&self, setup: ExportSetup<'_>) -> Result<Option<Box<dyn RunningExport>>>;

    /// Returns where clients find it, as text for a person.
    fn summary(&self) -> String;

    /// Returns its values by key, for programs.
    fn values(&self) -> Vec<(&'static str, ExportValue)>;

    /// Returns the commands that clients use.
    fn hints(&self, export: &HintContext<'_>) -> Vec<Hint>;
}

/// The keys of an `[[export]]`. A value of the wrong type or out of range is reported, and then treated as not given.
pub trait ExportKeys {
    /// Reads a text; `example` is for the message.
    fn text(&mut self, key: &'static str, example: &str) -> Option<String>;

    /// Reads a list of texts, at least one; `example` is for the message.
    fn texts(&mut self, key: &'static str, example: &str) -> Option<Vec<String>>;

    /// Reads a whole number.
    fn number(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64>;

    /// Reads a boolean.
    fn flag(&mut self, key: &'static str) -> Option<bool>;

    /// Reads one of `words`. Returns its index.
    fn word(&mut self, key: &'static str, words: &[&'static str]) -> Option<usize>;

    /// Reads an address and a port, or the name of a host and a port. `Some(None)`: the value is invalid, which was reported.
    fn address(&mut self, key: &'static str) -> Option<Option<TcpListen>>;

    /// Reads `socket`, by default `NAME.sock`, in the directory for sockets.
    fn socket(&mut self, name: &str) -> PathBuf;

    /// Reads `socket_mode`: permissions.
    fn socket_mode(&mut self) -> Option<u32>;

    /// Reads `num_queues`, at most `max`. The daemon's flags determine the default.
    fn num_queues(&mut self, max: u16) -> u16;

    /// Whether the key is given.
    fn is_given(&mut self, key: &'static str) -> bool;

    /// Reports a problem of a key; with the empty key, a problem of the export as a whole.
    fn refuse(&mut self, key: &str, text: String);
}

/// The context that an export gets at its start, besides its own values.
pub(crate) struct ExportSetup<'a> {
    pub(crate) threads: &'a Arc<IoThreads>,
    pub(crate) disk: &'a Arc<ServedDisk>,
    /// The export's name in reports.
    pub(crate) name: String,
    /// The disk's serial.
    pub(crate) serial: String,
    /// The IOThread of each queue, or those that serve connections round robin.
    pub(crate) iothreads: Vec<usize>,
    pub(crate) read_only: bool,
    /// Block sizes that its clients see instead of the disk's.
    pub(crate) geometry: Geometry,
    pub(crate) discard: bool,
    pub(crate) write_through: bool,
}

/// A value for programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportValue {
    /// A text.
    Text(String),
    /// A number; `None`: no value.
    Number(Option<u64>),
}

/// The context of clients' commands, besides the export's own values.
#[derive(Clone, Copy, Debug)]
pub struct HintContext<'a> {
    /// Name of the export.
    pub name: &'a str,
    /// Name of its disk.
    pub disk: &'a str,
    /// Its number in the plan.
    pub index: usize,
    /// Clients may not write.
    pub read_only: bool,
    /// The logical block size of the export or its disk, if one is set.
    pub logical_block_size: Option<u32>,
}

impl HintContext<'_> {
    /// Returns an option with the block size for a client that takes 512 otherwise.
    pub(crate) fn block_option(&self, option: &str) -> String {
        let other = self.logical_block_size.filter(|size| *size != 512);
        other.map_or_else(String::new, |size| format!(" {option} {size}"))
    }
}

/// One way to use an export.
#[derive(Debug, PartialEq, Eq)]
pub struct Hint {
    /// Short, for JSON: `qemu`.
    pub key: &'static str,
    /// For users: what it is and what it needs.
    pub title: &'static str,
    /// What to type or paste; several lines.
    pub text: String,
}

/// Reports a number of queues that is out of range.
pub(crate) fn check_queues(num_queues: u16, max: u16, report: &mut Report<'_>) {
    if !(1..=max).contains(&num_queues) {
        report("num_queues", format!("num_queues={num_queues}: must be 1..={max}"));
    }
}

/// Reports the problem of the path at `key`, if there is one.
pub(crate) fn report_path(found: std::result::Result<(), String>, key: &str, path: &Path, report: &mut Report<'_>) {
    if let Err(text) = found {
        report(key, format!("{key}={}: {text}", path.display()));
    }
}
