// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The contract between `serve` and every type of export: the values that an `[[export]]` is read into.
//!
//! Guarantees, by the implementations: only `ExportSpec::preflight` and `ExportSpec::begin` look at the machine, and only
//! `begin` changes it. Messages are `KEY=VALUE: rule; remedy`. An export is registered in `export/registry.rs`, a line each.

use super::running::RunningExport;
use super::{IoThreads, ServedDisk};
use crate::error::Result;
use crate::handed::{self, At};
use crate::net::certificates::NbdTls;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Takes the key at fault and what is wrong with it.
pub(crate) type Report<'a> = dyn FnMut(&str, String) + 'a;

/// A type of exports: the value that its part of a configuration is read into.
pub(crate) trait ExportSpec: Sized {
    /// The word after `type =`.
    const TYPE: &'static str;
    /// Ends the name of an export that has none of its own: `DISK.SHORT`.
    const SHORT: &'static str;
    /// Only root can end it.
    const NEEDS_ROOT: bool = false;
    /// Its sources are connections of clients, which come and go, not queues.
    const SERVES_CONNECTIONS: bool = false;

    /// Reads the keys of this type; `name` is the export's, `disk` its disk's.
    fn read(keys: &mut dyn ExportKeys, name: &str, disk: &str) -> Self;

    /// Queues that a mapping distributes; `None`: its connections are dealt round robin as they come.
    fn num_queues(&self) -> Option<u16> {
        None
    }

    /// The Unix socket it listens on. Its path is checked by the caller.
    fn unix_socket(&self) -> Option<&Path> {
        None
    }

    /// Whether it listens at `at`.
    fn is_at(&self, at: &At) -> bool {
        self.unix_socket().is_some_and(|path| handed::is_at(at, path))
    }

    /// Listens at `at` instead; false: it cannot.
    fn listen_at(&mut self, _at: &At) -> bool {
        false
    }

    /// TLS of this export; `None`: the type has none.
    fn tls(&mut self) -> Option<&mut Option<NbdTls>> {
        None
    }

    /// Reports values out of range.
    fn check(&self, report: &mut Report<'_>);

    /// Whether both are exports of one server, and so may listen at one place.
    fn shares_server(&self, _other: &Self) -> bool {
        false
    }

    /// Why both cannot be served, with the key at fault; `name` is the other's.
    fn clash(&self, other: &Self, name: &str) -> Option<(&'static str, String)>;

    /// Reports what is in the way on this machine. Of exports that share a server only the first is asked.
    fn preflight(&self, report: &mut Report<'_>);

    /// Begins it; `None`: the server that it shares with others does. Only NBD may return that: the daemon has no other servers.
    ///
    /// # Errors
    /// As of the export.
    fn begin(&self, setup: ExportSetup<'_>) -> Result<Option<Box<dyn RunningExport>>>;

    /// Where clients find it, for people.
    fn summary(&self) -> String;

    /// Its values for programs, by key.
    fn values(&self) -> Vec<(&'static str, ExportValue)>;

    /// What clients type.
    fn hints(&self, export: &HintContext<'_>) -> Vec<Hint>;
}

/// The keys of an `[[export]]`. A value of the wrong type or out of range is reported, and then is as not given.
pub trait ExportKeys {
    /// A text; `example` is for the message.
    fn text(&mut self, key: &'static str, example: &str) -> Option<String>;

    /// A whole number.
    fn number(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64>;

    /// True or false.
    fn flag(&mut self, key: &'static str) -> Option<bool>;

    /// The index of one of `words`.
    fn word(&mut self, key: &'static str, words: &[&'static str]) -> Option<usize>;

    /// An address and a port; `Some(None)`: it is none, which was reported.
    fn address(&mut self, key: &'static str) -> Option<Option<SocketAddr>>;

    /// `socket`, by default `NAME.sock`, in the directory for sockets.
    fn socket(&mut self, name: &str) -> PathBuf;

    /// `socket_mode`: permissions.
    fn socket_mode(&mut self) -> Option<u32>;

    /// `num_queues`, at most `max`, by default as the daemon's flags say.
    fn num_queues(&mut self, max: u16) -> u16;

    /// Whether the key is there.
    fn is_given(&mut self, key: &'static str) -> bool;

    /// Reports what is wrong with a key; with the empty key, with the export as a whole.
    fn refuse(&mut self, key: &str, text: String);
}

/// What an export that begins gets beside its own values.
pub(crate) struct ExportSetup<'a> {
    pub(crate) threads: &'a Arc<IoThreads>,
    pub(crate) disk: &'a Arc<ServedDisk>,
    /// What reports call the export.
    pub(crate) name: String,
    /// The disk's serial.
    pub(crate) serial: String,
    /// Of each queue, or of connections in turn.
    pub(crate) iothreads: Vec<usize>,
    pub(crate) read_only: bool,
    pub(crate) discard: bool,
    pub(crate) write_through: bool,
}

/// A value for programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportValue {
    /// A text.
    Text(String),
    /// A number; `None`: there is none.
    Number(Option<u64>),
}

/// What clients' commands need to know beside the export's own values.
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
}

/// One way to use an export.
#[derive(Debug, PartialEq, Eq)]
pub struct Hint {
    /// Short, for JSON: `qemu`.
    pub key: &'static str,
    /// For people: what it is and what it needs.
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

/// Reports what was found of the path at `key`.
pub(crate) fn report_path(found: std::result::Result<(), String>, key: &str, path: &Path, report: &mut Report<'_>) {
    if let Err(text) = found {
        report(key, format!("{key}={}: {text}", path.display()));
    }
}
