// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A ublk device: adding, deleting, and takeover after a restart of the daemon.
//!
//! Guarantees: the device exists when [`UblkExport::start`] returns. When the export is dropped, requests in flight complete, and the
//! device is deleted. With recovery the device is kept and waits for the next process that starts a device of this number. A waiting
//! device is taken over only for a disk that looks the same (`same`), because the device's users continue as if nothing had happened. A
//! device that a process left behind without recovery is deleted first; one that a living process serves is not touched.

use super::control::Control;
use super::device::Device;
use super::queue::Queue;
use super::same::{self, DeviceShape};
use super::wire::{self, DevInfo, DiskAttrs, Rules};
use crate::error::{Error, ErrorKind, Result};
use crate::serve::geometry::Geometry;
use crate::serve::running::{Clients, ExportPlace, RunningExport};
use crate::serve::{IoThreads, ServedDisk, SourceHandle};
use blk::id::SECTOR_SHIFT;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Error message for a kernel without ublk.
pub(crate) const NO_UBLK: &str = "this kernel has no ublk, because there is no /dev/ublk-control: load the module ublk_drv (modprobe \
                                  ublk_drv; Linux 6.3 or later with CONFIG_BLK_DEV_UBLK), or use type=fuse";

/// Longest time that the kernel may take to notice that the previous process has exited.
const PATIENCE: Duration = Duration::from_secs(30);

/// Devices that this process serves; its other exports must not take them over.
static SERVED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Options of a ublk export.
#[derive(Clone, Debug)]
pub struct UblkOptions {
    /// Name of the export.
    pub name: String,
    /// The device's number; `None` = the kernel's choice.
    pub id: Option<u32>,
    /// Maximum number of requests of each queue in flight.
    pub queue_depth: u16,
    /// For each queue, the IOThread that serves it.
    pub mapping: Vec<usize>,
    /// Writes fail.
    pub read_only: bool,
    /// Block sizes of the device instead of the disk's.
    pub geometry: Geometry,
    /// Discards are offered, if the disk has them.
    pub discard: bool,
    /// Writes are stable when they complete, and the kernel need not flush.
    pub write_through: bool,
    /// The device outlives the export.
    pub recovery: bool,
}

/// See the module's text.
pub struct UblkExport {
    threads: Arc<IoThreads>,
    control: Mutex<Control>,
    id: u32,
    /// The kernel can resize the device.
    grows: bool,
    mapping: Vec<usize>,
    queues: Vec<SourceHandle>,
    /// The device is kept when this value is dropped.
    stays: bool,
}

/// Where a served device came from.
enum Origin {
    Added,
    /// The device waited for a server, and has this size.
    Waiting {
        bytes: u64,
    },
}

impl UblkExport {
    /// Makes the device, or takes over the waiting one.
    ///
    /// # Errors
    /// The kernel has no ublk; the number is in use; the waiting device does not match the options; an error of the kernel.
    pub fn start(threads: &Arc<IoThreads>, disk: &Arc<ServedDisk>, options: &UblkOptions) -> Result<UblkExport> {
        let mut control = Control::open()?;
        let read_only = options.read_only || disk.limits().read_only;
        let (discard, write_through) = (options.discard, options.write_through);
        let face = DiskAttrs { sectors: disk.capacity().0, read_only, discard, write_through };
        let params = wire::params(&disk.shown(options.geometry)?, &face);
        let (info, origin) = claim(&mut control, options, &params)?;
        let mut export = UblkExport {
            threads: Arc::clone(threads),
            control: Mutex::new(control),
            id: info.id,
            grows: info.flags & wire::F_UPDATE_SIZE != 0,
            mapping: options.mapping.iter().copied().cycle().take(usize::from(info.nr_hw_queues)).collect(),
            queues: Vec::new(),
            // A device that waited before is kept if the takeover fails, and waits again.
            stays: matches!(origin, Origin::Waiting { .. }),
        };
        SERVED.lock().insert(export.id);
        if matches!(origin, Origin::Added) {
            let told = export.control.get_mut().set_params(info.id, params);
            told.map_err(|e| Error::os(e, format!("cannot set the parameters of ublk device {}", info.id)))?;
        }
        export.serve(disk, options, &info, &origin, Rules { read_only, write_through })?;
        export.stays = options.recovery;
        if let Origin::Waiting { bytes } = origin
            && bytes >> SECTOR_SHIFT != face.sectors
            && let Err(e) = export.resized(face.sectors)
        {
            let (export, disk) = (options.name.as_str(), disk.name.as_str());
            log::warn!(export, disk; "the disk has grown since the device was last served: {e}");
        }
        Ok(export)
    }

    fn serve(
        &mut self,
        disk: &Arc<ServedDisk>,
        options: &UblkOptions,
        info: &DevInfo,
        origin: &Origin,
        rules: Rules,
    ) -> Result<()> {
        let id = self.id;
        let failed = |what: &'static str| move |e| Error::os(e, format!("ublk device {id} cannot be {what}"));
        let device = Arc::new(Device::open(id)?);
        for (index, thread) in self.mapping.iter().enumerate() {
            let queue = Queue::new(&options.name, index as u16, info.queue_depth, &device, disk, rules)?;
            let handle = self.threads.add(*thread, disk, queue)?;
            self.queues.push(handle.clone());
            self.threads
                .visit(&handle, Queue::fetch_all)
                .unwrap_or_else(|| unreachable!("only this thread removes it"))?;
        }
        let pid = u64::from(std::process::id());
        let control = self.control.get_mut();
        match origin {
            Origin::Added => control.simple(wire::START_DEV, id, pid).map_err(failed("started")),
            Origin::Waiting { .. } => control.simple(wire::END_USER_RECOVERY, id, pid).map_err(failed("taken over")),
        }
    }

    /// Returns the device's number N, as in `/dev/ublkbN`.
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl RunningExport for UblkExport {
    fn place(&self) -> ExportPlace {
        ExportPlace::Device
    }

    /// The kernel.
    fn clients(&self) -> Clients {
        Box::new(|| 1)
    }

    fn block_device(&self) -> Option<String> {
        Some(format!("/dev/ublkb{}", self.id))
    }

    /// # Errors
    /// The kernel cannot resize (before Linux 6.16) or refuses. The device then keeps its size, and I/O beyond the disk's end fails.
    fn resized(&self, sectors: u64) -> Result<()> {
        let id = self.id;
        if !self.grows {
            let text = format!(
                "/dev/ublkb{id} keeps its size: resizing a ublk device needs Linux 6.16 or later; remove the export \
                 and add it again"
            );
            return Err(Error::new(ErrorKind::Resource, text));
        }
        let done = self.control.lock().simple(wire::UPDATE_SIZE, id, sectors);
        done.map_err(|e| Error::os(e, format!("/dev/ublkb{id} keeps its size")))
    }

    fn remap(&self, _iothreads: &[usize]) -> Result<blk::time::Duration> {
        Err(Error::usage(STAYS))
    }

    fn mapping(&self) -> Option<Vec<usize>> {
        Some(self.mapping.clone())
    }
}

/// Why a ublk device is not remapped.
const STAYS: &str = "a queue of a ublk device must stay on the thread that started it: remove the export and add it \
                     again to map its queues differently";

impl Drop for UblkExport {
    fn drop(&mut self) {
        if !self.stays {
            // Completes the requests in flight, which the IOThreads still serve, and makes the kernel return the commands of all tags.
            let _ = self.control.get_mut().simple(wire::STOP_DEV, self.id, 0);
        }
        for handle in &self.queues {
            drop(self.threads.remove(handle));
        }
        if !self.stays {
            let _ = self.control.get_mut().simple(wire::DEL_DEV, self.id, 0);
        }
        SERVED.lock().remove(&self.id);
    }
}

/// Returns a device to serve, new or waiting.
fn claim(control: &mut Control, options: &UblkOptions, params: &[u8; wire::PARAMS_BYTES]) -> Result<(DevInfo, Origin)> {
    let wanted = DevInfo {
        nr_hw_queues: options.mapping.len() as u16,
        queue_depth: options.queue_depth,
        max_io_bytes: wire::MAX_IO_BYTES,
        id: options.id.unwrap_or(u32::MAX),
        pid: std::process::id() as i32,
        flags: flags(options.recovery),
        ..DevInfo::default()
    };
    if let Some(id) = options.id {
        match control.info(id) {
            Ok(there) => {
                let looks = DeviceShape::new(&wanted, wire::Shape::of(params));
                if let Some(taken) = take_over(control, &looks, &there, options.recovery)? {
                    return Ok(taken);
                }
            }
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => {}
            Err(e) => return Err(Error::os(e, format!("the kernel does not say whether there is a ublk device {id}"))),
        }
    }
    let added = control.add(&wanted).map_err(|e| Error::os(e, "the kernel does not add a ublk device"))?;
    Ok((added, Origin::Added))
}

fn flags(recovery: bool) -> u64 {
    let always = wire::F_USER_COPY | wire::F_CMD_IOCTL_ENCODE | wire::F_UPDATE_SIZE;
    if recovery { always | wire::F_USER_RECOVERY | wire::F_USER_RECOVERY_REISSUE } else { always }
}

/// Takes over an existing device if it waits for a server. Otherwise deletes it and returns `None`.
fn take_over(
    control: &mut Control,
    wanted: &DeviceShape,
    there: &DevInfo,
    recovery: bool,
) -> Result<Option<(DevInfo, Origin)>> {
    let (id, pid) = (there.id, there.pid);
    if SERVED.lock().contains(&id) {
        let text = format!("ublk device {id} belongs to another export of this daemon: choose another id");
        return Err(Error::usage(text));
    }
    let own = pid == std::process::id() as i32;
    if there.state == wire::STATE_LIVE && !own && is_alive(pid) {
        let text = format!("ublk device {id} is in use by process {pid}: end it first, or choose another id");
        return Err(Error::usage(text));
    }
    if there.flags & wire::F_USER_RECOVERY == 0 || !recovery {
        let deleted = control.simple(wire::STOP_DEV, id, 0).and_then(|()| control.simple(wire::DEL_DEV, id, 0));
        deleted.map_err(|e| {
            Error::os(e, format!("ublk device {id}, left behind by another process, cannot be deleted"))
        })?;
        return Ok(None);
    }
    let shape = control.shape(id).map_err(|e| {
        Error::os(e, format!("the kernel does not report the parameters of ublk device {id}, which waits for recovery"))
    })?;
    if let Some(text) = same::refusal(id, &DeviceShape::new(there, shape), wanted) {
        return Err(Error::usage(text));
    }
    let since = Instant::now();
    loop {
        match control.simple(wire::START_USER_RECOVERY, id, 0) {
            Ok(()) => return Ok(Some((*there, Origin::Waiting { bytes: shape.bytes }))),
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && since.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(e) => return Err(not_taken_over(e, id)),
        }
    }
}

fn not_taken_over(e: io::Error, id: u32) -> Error {
    Error::os(e, format!("ublk device {id} waits for recovery, but cannot be taken over"))
}

fn is_alive(pid: i32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// Checks that this kernel has ublk.
///
/// # Errors
/// The kernel has no ublk; the message says what to do.
pub(crate) fn check_kernel() -> Result<()> {
    if Path::new("/dev/ublk-control").exists() { Ok(()) } else { Err(Error::new(ErrorKind::NotFound, NO_UBLK)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_ublk_is_told_so_with_what_to_do() {
        if let Err(e) = check_kernel() {
            let text = e.to_string();
            assert!(text.starts_with("this kernel has no ublk") && text.contains("type=fuse"), "{text}");
            assert!(Control::open().err().expect("it is not there").to_string().contains("modprobe ublk_drv"));
        }
    }
}
