// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands to `/dev/ublk-control`: adding, starting, stopping and deleting devices, and taking one over.
//!
//! Guarantees: a command is complete when the call returns. Some commands wait in the kernel for actions of other threads.

use super::wire::{self, CtrlCmd, DEV_INFO_BYTES, DevInfo, PARAMS_BYTES, Shape};
use crate::error::{Error, ErrorKind, Result};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

const PATH: &str = "/dev/ublk-control";

/// See the module's text.
pub(super) struct Control {
    file: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
}

impl Control {
    /// # Errors
    /// The kernel has no ublk, or only root may use it.
    pub(super) fn open() -> Result<Control> {
        let file = OpenOptions::new().read(true).write(true).open(PATH).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => Error::new(ErrorKind::NotFound, super::export::NO_UBLK),
            _ => Error::os(e, format!("'{PATH}' cannot be opened: ublk devices are for root")),
        })?;
        let ring = IoUring::builder()
            .build(4)
            .map_err(|e| Error::os(e, "no io_uring with large entries, which ublk's commands need (Linux 5.19)"))?;
        Ok(Control { file, ring })
    }

    /// Adds a device. Returns its information as the kernel set it: the kernel may grant less than was asked for.
    pub(super) fn add(&mut self, info: &DevInfo) -> io::Result<DevInfo> {
        let mut bytes = info.bytes();
        self.command(wire::ADD_DEV, CtrlCmd { device: info.id, data: 0 }, &mut bytes)?;
        Ok(DevInfo::read(&bytes))
    }

    /// Returns a device's information. Fails with ENODEV if there is no device of this number.
    pub(super) fn info(&mut self, device: u32) -> io::Result<DevInfo> {
        let mut bytes = [0; DEV_INFO_BYTES];
        self.command(wire::GET_DEV_INFO, CtrlCmd { device, data: 0 }, &mut bytes)?;
        Ok(DevInfo::read(&bytes))
    }

    pub(super) fn set_params(&mut self, device: u32, mut params: [u8; PARAMS_BYTES]) -> io::Result<()> {
        self.command(wire::SET_PARAMS, CtrlCmd { device, data: 0 }, &mut params)
    }

    /// Returns the parameters that [`Control::set_params`] gave a device, maybe in another process.
    pub(super) fn shape(&mut self, device: u32) -> io::Result<Shape> {
        let mut params = wire::no_params();
        self.command(wire::GET_PARAMS, CtrlCmd { device, data: 0 }, &mut params)?;
        Ok(Shape::of(&params))
    }

    /// Issues a command whose only argument is a number.
    pub(super) fn simple(&mut self, op: u32, device: u32, data: u64) -> io::Result<()> {
        self.command(op, CtrlCmd { device, data }, &mut [])
    }

    fn command(&mut self, op: u32, command: CtrlCmd, buffer: &mut [u8]) -> io::Result<()> {
        let address = if buffer.is_empty() { 0 } else { buffer.as_mut_ptr().expose_provenance() as u64 };
        let bytes = command.bytes(address, buffer.len() as u16);
        let entry = opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), op).cmd(bytes).build();
        // SAFETY: the buffer, which the kernel reads or writes, is borrowed until the command completes, and this function waits for that.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| io::Error::from_raw_os_error(libc::EBUSY))?;
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The kernel still owns the command and its buffer, so this function cannot return.
                Err(e) => panic!("waiting for a command of ublk: {e}"),
            }
            if let Some(end) = self.ring.completion().next() {
                return if end.result() < 0 { Err(io::Error::from_raw_os_error(-end.result())) } else { Ok(()) };
            }
        }
    }
}
