// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Numbers and layouts of ublk's interface, as bytes. No system calls.
//!
//! Source: include/uapi/linux/ublk_cmd.h (Linux 6.12; for `UPDATE_SIZE` 6.16). All numbers are in the machine's byte order, which is
//! little-endian on all supported machines.

use blk::bio::{Op, OpFlags};
use blk::limits::Limits;

const READ: u32 = 2;
const READ_WRITE: u32 = 3;

/// `_IOR` and `_IOWR` with the type 'u'.
const fn ioctl(direction: u32, number: u32, size: u32) -> u32 {
    direction << 30 | size << 16 | (b'u' as u32) << 8 | number
}

/// Bytes of `struct ublksrv_ctrl_cmd`.
const CTRL_BYTES: usize = 32;
/// Bytes of `struct ublksrv_io_cmd`.
const IO_BYTES: usize = 16;

pub(super) const GET_DEV_INFO: u32 = ioctl(READ, 0x02, CTRL_BYTES as u32);
pub(super) const ADD_DEV: u32 = ioctl(READ_WRITE, 0x04, CTRL_BYTES as u32);
pub(super) const DEL_DEV: u32 = ioctl(READ_WRITE, 0x05, CTRL_BYTES as u32);
pub(super) const START_DEV: u32 = ioctl(READ_WRITE, 0x06, CTRL_BYTES as u32);
pub(super) const STOP_DEV: u32 = ioctl(READ_WRITE, 0x07, CTRL_BYTES as u32);
pub(super) const SET_PARAMS: u32 = ioctl(READ_WRITE, 0x08, CTRL_BYTES as u32);
pub(super) const GET_PARAMS: u32 = ioctl(READ, 0x09, CTRL_BYTES as u32);
pub(super) const START_USER_RECOVERY: u32 = ioctl(READ_WRITE, 0x10, CTRL_BYTES as u32);
pub(super) const END_USER_RECOVERY: u32 = ioctl(READ_WRITE, 0x11, CTRL_BYTES as u32);
/// From Linux 6.16 on; only for a device that was added with [`F_UPDATE_SIZE`].
pub(super) const UPDATE_SIZE: u32 = ioctl(READ_WRITE, 0x15, CTRL_BYTES as u32);

pub(super) const FETCH_REQ: u32 = ioctl(READ_WRITE, 0x20, IO_BYTES as u32);
pub(super) const COMMIT_AND_FETCH_REQ: u32 = ioctl(READ_WRITE, 0x21, IO_BYTES as u32);

pub(super) const F_USER_RECOVERY: u64 = 1 << 3;
pub(super) const F_USER_RECOVERY_REISSUE: u64 = 1 << 4;
pub(super) const F_CMD_IOCTL_ENCODE: u64 = 1 << 6;
pub(super) const F_USER_COPY: u64 = 1 << 7;
/// Kernels that do not know this flag clear it when a device is added.
pub(super) const F_UPDATE_SIZE: u64 = 1 << 10;

/// `UBLK_S_DEV_LIVE`: a process serves the device.
pub(super) const STATE_LIVE: u16 = 1;

/// `UBLK_MAX_QUEUE_DEPTH`.
const MAX_QUEUE_DEPTH: usize = 4096;
/// Bytes of `struct ublksrv_io_desc`.
const DESC_BYTES: usize = 24;
const PAGE: usize = 4096;

/// Largest request, in bytes.
pub(super) const MAX_IO_BYTES: u32 = 512 << 10;

/// `struct ublksrv_ctrl_cmd`.
#[derive(Clone, Copy, Debug)]
pub(super) struct CtrlCmd {
    pub(super) device: u32,
    pub(super) data: u64,
}

impl CtrlCmd {
    /// Encodes the command with a buffer of `len` bytes at address `buffer`.
    pub(super) fn bytes(self, buffer: u64, len: u16) -> [u8; 80] {
        let mut b = [0; 80];
        b[..4].copy_from_slice(&self.device.to_le_bytes());
        b[4..6].copy_from_slice(&u16::MAX.to_le_bytes());
        b[6..8].copy_from_slice(&len.to_le_bytes());
        b[8..16].copy_from_slice(&buffer.to_le_bytes());
        b[16..24].copy_from_slice(&self.data.to_le_bytes());
        b
    }
}

/// `struct ublksrv_io_cmd`.
pub(super) fn io_cmd(queue: u16, tag: u16, result: i32) -> [u8; IO_BYTES] {
    let mut b = [0; IO_BYTES];
    b[..2].copy_from_slice(&queue.to_le_bytes());
    b[2..4].copy_from_slice(&tag.to_le_bytes());
    b[4..8].copy_from_slice(&result.to_le_bytes());
    b
}

/// `struct ublksrv_ctrl_dev_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DevInfo {
    pub(super) nr_hw_queues: u16,
    pub(super) queue_depth: u16,
    pub(super) state: u16,
    pub(super) max_io_bytes: u32,
    pub(super) id: u32,
    pub(super) pid: i32,
    pub(super) flags: u64,
}

pub(super) const DEV_INFO_BYTES: usize = 64;

impl DevInfo {
    pub(super) fn bytes(&self) -> [u8; DEV_INFO_BYTES] {
        let mut b = [0; DEV_INFO_BYTES];
        b[..2].copy_from_slice(&self.nr_hw_queues.to_le_bytes());
        b[2..4].copy_from_slice(&self.queue_depth.to_le_bytes());
        b[4..6].copy_from_slice(&self.state.to_le_bytes());
        b[8..12].copy_from_slice(&self.max_io_bytes.to_le_bytes());
        b[12..16].copy_from_slice(&self.id.to_le_bytes());
        b[16..20].copy_from_slice(&self.pid.to_le_bytes());
        b[24..32].copy_from_slice(&self.flags.to_le_bytes());
        b
    }

    pub(super) fn read(b: &[u8; DEV_INFO_BYTES]) -> DevInfo {
        let short = |at: usize| u16::from_le_bytes([b[at], b[at + 1]]);
        let word = |at: usize| u32::from(short(at)) | u32::from(short(at + 2)) << 16;
        DevInfo {
            nr_hw_queues: short(0),
            queue_depth: short(2),
            state: short(4),
            max_io_bytes: word(8),
            id: word(12),
            pid: word(16) as i32,
            flags: u64::from(word(24)) | u64::from(word(28)) << 32,
        }
    }
}

/// Bytes of `struct ublk_params` up to the parts that are used: basic and discard.
pub(super) const PARAMS_BYTES: usize = 60;

const ATTR_READ_ONLY: u32 = 1 << 0;
const ATTR_ROTATIONAL: u32 = 1 << 1;
const ATTR_VOLATILE_CACHE: u32 = 1 << 2;
const ATTR_FUA: u32 = 1 << 3;

/// Properties of a disk that are not in its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DiskAttrs {
    pub(super) sectors: u64,
    /// Writes are refused.
    pub(super) read_only: bool,
    /// Discards are offered.
    pub(super) discard: bool,
    /// Writes are stable when they complete, so no flush is needed.
    pub(super) write_through: bool,
}

/// Returns the attributes of a volatile cache, which ask for flushes and FUA. The block layer emulates FUA for a disk that lacks it.
fn cache_attrs(limits: &Limits, face: &DiskAttrs) -> u32 {
    let has = limits.write_cache && !face.read_only && !face.write_through;
    if has { ATTR_VOLATILE_CACHE | ATTR_FUA } else { 0 }
}

/// Returns the `struct ublk_params` of a disk.
pub(super) fn params(limits: &Limits, face: &DiskAttrs) -> [u8; PARAMS_BYTES] {
    let DiskAttrs { sectors, read_only, discard, .. } = *face;
    let mut attrs = cache_attrs(limits, face);
    let mut set = |attr: u32, on: bool| attrs |= if on { attr } else { 0 };
    set(ATTR_READ_ONLY, read_only);
    set(ATTR_ROTATIONAL, limits.rotational);
    let shift = |bytes: u32| bytes.ilog2() as u8;
    let (logical, physical) = (shift(limits.logical_block_size), shift(limits.physical_block_size));
    let has = |most: u32| if read_only { 0 } else { most };
    let (discards, zeroes) =
        (if discard { has(limits.max_discard_sectors) } else { 0 }, has(limits.max_write_zeroes_sectors));
    let types: u32 = if discards + zeroes > 0 { 1 | 1 << 1 } else { 1 };
    let mut b = [0; PARAMS_BYTES];
    let mut put = |at: usize, bytes: &[u8]| b[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &(PARAMS_BYTES as u32).to_le_bytes());
    put(4, &types.to_le_bytes());
    put(8, &attrs.to_le_bytes());
    put(12, &[logical, physical, physical, physical]);
    put(16, &(MAX_IO_BYTES >> 9).to_le_bytes());
    put(24, &sectors.to_le_bytes());
    let granularity = limits.discard_granularity.max(limits.logical_block_size);
    put(44, &granularity.to_le_bytes());
    put(48, &discards.to_le_bytes());
    put(52, &zeroes.to_le_bytes());
    put(56, &1u16.to_le_bytes());
    b
}

/// Returns a buffer that receives a device's parameters.
pub(super) fn no_params() -> [u8; PARAMS_BYTES] {
    let mut b = [0; PARAMS_BYTES];
    b[..4].copy_from_slice(&(PARAMS_BYTES as u32).to_le_bytes());
    b
}

/// The parameters that users of a device rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) bytes: u64,
    pub(super) logical_block: u64,
    pub(super) read_only: bool,
    /// The kernel never flushes the device.
    pub(super) write_through: bool,
}

impl Shape {
    pub(super) fn of(params: &[u8; PARAMS_BYTES]) -> Shape {
        let word = |at: usize| u32::from_le_bytes([params[at], params[at + 1], params[at + 2], params[at + 3]]);
        let (attrs, sectors) = (word(8), u64::from(word(24)) | u64::from(word(28)) << 32);
        Shape {
            bytes: sectors.saturating_mul(512),
            logical_block: 1u64.checked_shl(params[12].into()).unwrap_or(0),
            read_only: attrs & ATTR_READ_ONLY != 0,
            write_through: attrs & ATTR_VOLATILE_CACHE == 0,
        }
    }
}

/// What requests are checked against, whatever parameters the kernel has for the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules {
    /// Requests that write fail.
    pub(super) read_only: bool,
    /// Writes are stable when they complete.
    pub(super) write_through: bool,
}

/// What to do for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) op: Op,
    pub(super) flags: OpFlags,
    /// A flush follows, because the operation has no FUA flag.
    pub(super) flush: bool,
}

/// `struct ublksrv_io_desc`: a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Desc {
    pub(super) op_flags: u32,
    pub(super) nr_sectors: u32,
    pub(super) sector: u64,
}

impl Desc {
    /// Returns what to do for the request, or the errno that it fails with.
    pub(super) fn work(self, rules: Rules) -> Result<Work, i32> {
        let (op, mut flags) = self.op().ok_or(libc::EOPNOTSUPP)?;
        if rules.read_only && op.is_write() {
            return Err(libc::EIO);
        }
        if rules.write_through && op == Op::Write {
            flags = flags.union(OpFlags::FUA);
        }
        Ok(Work { op, flags, flush: rules.write_through && op == Op::WriteZeroes })
    }

    /// Returns the operation and its flags; `None` for an operation that is not supported.
    fn op(self) -> Option<(Op, OpFlags)> {
        const FUA: u32 = 1 << 13;
        const META: u32 = 1 << 11;
        const NOUNMAP: u32 = 1 << 15;
        let op = match self.op_flags & 0xff {
            0 => Op::Read,
            1 => Op::Write,
            2 => Op::Flush,
            3 => Op::Discard,
            5 => Op::WriteZeroes,
            _ => return None,
        };
        let mut flags = OpFlags::NONE;
        if op == Op::Write && self.op_flags & FUA != 0 {
            flags = flags.union(OpFlags::FUA);
        }
        if op == Op::WriteZeroes && self.op_flags & NOUNMAP != 0 {
            flags = flags.union(OpFlags::NOUNMAP);
        }
        if self.op_flags & META != 0 {
            flags = flags.union(OpFlags::META);
        }
        Some((op, flags))
    }
}

/// Returns the file offset at which a queue's descriptors are mapped.
pub(super) fn descs_offset(queue: u16) -> u64 {
    u64::from(queue) * (MAX_QUEUE_DEPTH * DESC_BYTES).next_multiple_of(PAGE) as u64
}

/// Returns the bytes of a queue's descriptors, in whole pages.
pub(super) fn descs_bytes(depth: u16) -> usize {
    (usize::from(depth) * DESC_BYTES).next_multiple_of(PAGE)
}

/// Returns the byte at which the descriptor of `tag` begins.
pub(super) fn desc_at(tag: u16) -> usize {
    usize::from(tag) * DESC_BYTES
}

/// Returns the file offset at which a request's data is read and written.
pub(super) fn data_offset(queue: u16, tag: u16) -> i64 {
    0x8000_0000 + (i64::from(queue) << 41 | i64::from(tag) << 25)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_kernels_numbers() {
        assert_eq!(ADD_DEV, 0xc020_7504);
        assert_eq!(GET_DEV_INFO, 0x8020_7502);
        assert_eq!(FETCH_REQ, 0xc010_7520);
        assert_eq!(COMMIT_AND_FETCH_REQ, 0xc010_7521);
    }

    #[test]
    fn a_devices_description_goes_there_and_back() {
        let info = DevInfo {
            nr_hw_queues: 4,
            queue_depth: 128,
            state: STATE_LIVE,
            max_io_bytes: MAX_IO_BYTES,
            id: 7,
            pid: 4711,
            flags: F_USER_COPY | 1 << 40,
        };
        assert_eq!(DevInfo::read(&info.bytes()), info);
    }

    #[test]
    fn parameters_are_where_the_kernel_has_them() {
        let limits = Limits {
            physical_block_size: 4096,
            max_discard_sectors: 8192,
            max_write_zeroes_sectors: 4096,
            write_cache: true,
            ..Limits::default()
        };
        let word = |b: &[u8; PARAMS_BYTES], at: usize| u32::from_le_bytes(b[at..at + 4].try_into().unwrap());
        let face = DiskAttrs { sectors: 0x1_0000_0002, discard: true, ..DiskAttrs::default() };
        let b = params(&limits, &face);
        assert_eq!((word(&b, 0), word(&b, 4), word(&b, 8)), (60, 3, 0b1100));
        assert_eq!((b[12], b[13], word(&b, 16), word(&b, 24), word(&b, 28)), (9, 12, 1024, 2, 1));
        assert_eq!((word(&b, 44), word(&b, 48), word(&b, 52), b[56]), (512, 8192, 4096, 1));
        let bytes = 0x1_0000_0002 * 512;
        let shape = Shape { bytes, logical_block: 512, read_only: false, write_through: false };
        assert_eq!(Shape::of(&b), shape);
        let b = params(&limits, &DiskAttrs { read_only: true, sectors: 8, ..face });
        assert_eq!((word(&b, 4), word(&b, 8), word(&b, 48)), (1, 1, 0), "read-only: nothing that writes");
        assert_eq!(Shape::of(&b), Shape { bytes: 4096, read_only: true, write_through: true, ..shape });
        let b = params(&limits, &DiskAttrs { write_through: true, ..face });
        assert_eq!((word(&b, 4), word(&b, 8)), (3, 0), "no flush is needed");
        assert_eq!(Shape::of(&b), Shape { write_through: true, ..shape });
        assert_eq!(Shape::of(&[0xff; PARAMS_BYTES]).logical_block, 0, "nonsense of a kernel is no panic");
        assert_eq!((word(&no_params(), 0), GET_PARAMS, UPDATE_SIZE), (60, 0x8020_7509, 0xc020_7515));
    }

    /// The kernel may take a device that was taken over as writable while its disk is not. A device that is never flushed needs each write
    /// to be stable.
    #[test]
    fn requests_are_held_against_the_disk_as_it_is_now() {
        let desc = |op_flags| Desc { op_flags, nr_sectors: 8, sector: 0 };
        let (read_only, through) =
            (Rules { read_only: true, ..Rules::default() }, Rules { write_through: true, ..Rules::default() });
        for (op, errno) in [(1, libc::EIO), (3, libc::EIO), (5, libc::EIO), (4, libc::EOPNOTSUPP)] {
            assert_eq!(desc(op).work(read_only), Err(errno), "operation {op}");
        }
        let plain = |op| Work { op, flags: OpFlags::NONE, flush: false };
        assert_eq!(desc(0).work(read_only), Ok(plain(Op::Read)));
        assert_eq!(desc(2).work(read_only), Ok(plain(Op::Flush)));
        assert_eq!(desc(1).work(Rules::default()), Ok(plain(Op::Write)));
        assert_eq!(desc(1).work(through), Ok(Work { flags: OpFlags::FUA, ..plain(Op::Write) }));
        assert_eq!(desc(5).work(through), Ok(Work { flush: true, ..plain(Op::WriteZeroes) }));
        assert_eq!(desc(3).work(through), Ok(plain(Op::Discard)), "it promises nothing");
        assert_eq!(desc(0).work(through), Ok(plain(Op::Read)));
    }

    #[test]
    fn requests_are_read_and_strange_ones_refused() {
        let desc = |op_flags| Desc { op_flags, nr_sectors: 8, sector: 0 };
        assert_eq!(desc(1 | 1 << 13).op(), Some((Op::Write, OpFlags::FUA)));
        assert_eq!(desc(1 << 13).op(), Some((Op::Read, OpFlags::NONE)), "a read knows no FUA");
        assert_eq!(desc(4).op(), None);
        assert_eq!(descs_offset(2), 2 * 98304);
        assert_eq!((descs_bytes(1), descs_bytes(171), desc_at(2)), (4096, 8192, 48));
        assert_eq!(data_offset(1, 3), 0x8000_0000 + (1 << 41) + (3 << 25));
    }
}
