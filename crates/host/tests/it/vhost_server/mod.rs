// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon with one disk and one vhost-user-blk export, in this process, on a socket in its own directory.

#![allow(dead_code, reason = "each test program uses a part")]

use super::serving::{self, Served, vhost_options};
use host::export::vhost::{ExportOptions, VhostExport};
use host::serve::{IoThreads, ServedDisk};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use vuclient::raw::message::feature::{BLK_FLUSH, RING_PACKED, VERSION_1};
use vuclient::raw::message::protocol;
use vuclient::raw::{Format, Notify, Raw};

pub const PROTOCOL: u64 = protocol::MQ | protocol::REPLY_ACK | protocol::CONFIG | protocol::CONFIGURE_MEM_SLOTS;
pub const BOTH: [(Format, u64); 2] = [(Format::Split, 0), (Format::Packed, RING_PACKED)];

/// A daemon with one disk and one export.
pub struct Server {
    pub directory: PathBuf,
    pub socket: String,
    pub disk: Arc<ServedDisk>,
    pub threads: Arc<IoThreads>,
    pub export: Option<VhostExport>,
}

impl Server {
    /// Starts an export with `virtqueues` on `iothreads`, assigned round robin.
    pub fn new(target: &str, virtqueues: usize, iothreads: usize) -> Server {
        Server::with(target, virtqueues, iothreads, false)
    }

    pub fn with(target: &str, virtqueues: usize, iothreads: usize, read_only: bool) -> Server {
        let Served { directory, threads, disk } = Served::new("vhost", target, iothreads);
        let socket = directory.join("vhost.sock");
        let mapping = (0..virtqueues).map(|i| i % iothreads).collect();
        let options = ExportOptions { socket: socket.clone(), mapping, read_only, ..vhost_options() };
        let export = Some(VhostExport::start(&threads, &disk, options).unwrap());
        Server { directory, socket: socket.to_str().unwrap().into(), disk, threads, export }
    }

    pub fn raw(&self, format: Format, features: u64, notify: Notify) -> Raw {
        let packed = if format == Format::Packed { RING_PACKED } else { 0 };
        let mut raw = Raw::ready(&self.socket, VERSION_1 | BLK_FLUSH | packed | features, PROTOCOL).unwrap();
        raw.start(0, 64, format, notify).unwrap();
        raw
    }

    /// Ends the export. Then nothing of the disk may be in use.
    pub fn check_idle(mut self) {
        self.export = None;
        serving::check_drained(&self.disk);
        assert!(!fs::exists(&self.socket).unwrap(), "the socket is left behind");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.export = None;
        let _ = fs::remove_dir_all(&self.directory);
        assert!(!self.threads.is_empty());
    }
}
