// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration of a vhost-user-blk export.

use super::hints::hints;
use super::listener::{ExportOptions, VhostExport};
use crate::error::Result;
use crate::handed::At;
use crate::net::socket::check_listen;
use crate::serve::export_spec::{
    ExportKeys, ExportSetup, ExportSpec, ExportValue, Hint, HintContext, Report, check_queues, report_path,
};
use crate::serve::running::RunningExport;
use std::path::{Path, PathBuf};

/// Most `num_queues` of a vhost-user device: a vring's index has eight bits in `VHOST_USER_SET_VRING_KICK`.
/// Source: vhost-user specification, "Front-end message types".
pub const VHOST_QUEUES_MAX: u16 = 256;
/// Default of `queue_size`: entries of a ring. Source: QEMU hw/block/virtio-blk.c, `queue-size`.
pub const QUEUE_SIZE: u16 = 256;
/// Largest `queue_size`. Source: QEMU include/hw/virtio/virtio.h, `VIRTQUEUE_MAX_SIZE`.
pub const QUEUE_SIZE_MAX: u16 = 1024;

/// A vhost-user-blk device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostUserPlan {
    /// Unix socket; one client at a time.
    pub socket: PathBuf,
    /// Permissions of the socket; `None` = as the umask has it.
    pub socket_mode: Option<u32>,
    /// Virtqueues offered, `1..=`[`VHOST_QUEUES_MAX`]; the client may use fewer.
    pub num_queues: u16,
    /// Ring size in the printed commands, a power of two in `2..=`[`QUEUE_SIZE_MAX`]; the client chooses the actual size.
    pub queue_size: u16,
    /// The guest's memory may be a file of any file system, not only a memfd or a file of tmpfs or hugetlbfs. If such a file system
    /// does not answer, an IOThread that touches the memory hangs, and with it all its clients.
    pub allow_file_memory: bool,
}

impl ExportSpec for VhostUserPlan {
    const TYPE: &'static str = "vhost-user-blk";
    const SHORT: &'static str = "vhost";

    fn read(keys: &mut dyn ExportKeys, name: &str, _disk: &str) -> VhostUserPlan {
        VhostUserPlan {
            socket: keys.socket(name),
            socket_mode: keys.socket_mode(),
            num_queues: keys.num_queues(VHOST_QUEUES_MAX),
            queue_size: keys.number("queue_size", 2..=QUEUE_SIZE_MAX.into()).unwrap_or(QUEUE_SIZE.into()) as u16,
            allow_file_memory: keys.flag("allow_file_memory").unwrap_or(false),
        }
    }

    fn num_queues(&self) -> Option<u16> {
        Some(self.num_queues)
    }

    fn unix_socket(&self) -> Option<&Path> {
        Some(&self.socket)
    }

    fn listen_at(&mut self, at: &At) -> bool {
        let At::Unix(path) = at else { return false };
        self.socket.clone_from(path);
        true
    }

    fn check(&self, report: &mut Report<'_>) {
        check_queues(self.num_queues, VHOST_QUEUES_MAX, report);
        let size = self.queue_size;
        if !size.is_power_of_two() || !(2..=QUEUE_SIZE_MAX).contains(&size) {
            report("queue_size", format!("queue_size={size}: must be a power of two in 2..={QUEUE_SIZE_MAX}"));
        }
    }

    fn clash(&self, _other: &VhostUserPlan, _name: &str) -> Option<(&'static str, String)> {
        // The check of socket paths finds two exports on one socket.
        None
    }

    fn preflight(&self, report: &mut Report<'_>) {
        report_path(check_listen(&self.socket), "socket", &self.socket, report);
    }

    fn begin(&self, setup: ExportSetup<'_>) -> Result<Option<Box<dyn RunningExport>>> {
        let options = ExportOptions {
            name: setup.name,
            socket: self.socket.clone(),
            socket_mode: self.socket_mode,
            mapping: setup.iothreads,
            read_only: setup.read_only,
            geometry: setup.geometry,
            write_through: setup.write_through,
            allow_file_memory: self.allow_file_memory,
            discard: setup.discard,
            serial: setup.serial,
            queue_size: self.queue_size,
        };
        Ok(Some(Box::new(VhostExport::start(setup.threads, setup.disk, options)?)))
    }

    fn summary(&self) -> String {
        format!("on {}, {} queues of up to {}", self.socket.display(), self.num_queues, self.queue_size)
    }

    fn values(&self) -> Vec<(&'static str, ExportValue)> {
        vec![
            ("socket", ExportValue::Text(self.socket.to_string_lossy().into_owned())),
            ("num_queues", ExportValue::Number(Some(self.num_queues.into()))),
            ("queue_size", ExportValue::Number(Some(self.queue_size.into()))),
        ]
    }

    fn hints(&self, export: &HintContext<'_>) -> Vec<Hint> {
        hints(self, export)
    }
}
