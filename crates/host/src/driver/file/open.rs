// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Opens the file or device, and finds out its kind, size and limits.
//!
//! Nothing is written here, and a device that is in use (mounted, part of an array) is not opened for writing unless
//! [`FileOptions::in_use`] is set. If another process's claim of a device is about to end, the open waits for that.

use super::identity;
use super::part::FilePart;
use super::requests::MAX_PIECES;
use crate::driver::aio::Aio;
use crate::driver::space::check_shrink;
use crate::error::{Error, ErrorKind, Result};
use blk::id::{SECTOR_SHIFT, SECTOR_SIZE, Sector};
use blk::limits::Limits;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How a file is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// The file will be written: a file that cannot be written is refused. Otherwise it is opened read-only.
    pub write: bool,
    /// Bypasses the page cache (O_DIRECT), if the file supports it.
    pub direct: bool,
    /// The file must have at least this many bytes.
    pub min_bytes: u64,
    /// With `write`: also a block device that is mounted or part of another one, whose content may then be destroyed.
    pub in_use: bool,
    /// For buffered I/O: longest read-ahead in KiB, for sequential streams that this driver detects. 0 = no read-ahead, `None` = the
    /// system's default. Without effect on direct I/O.
    pub read_ahead_kb: Option<u32>,
    /// How I/O is issued; `None` = by io_uring if possible, otherwise by threads.
    pub aio: Option<Aio>,
    /// The part of the file that is the disk; by default all of it.
    pub part: FilePart,
    /// A regular file may have any size. If its size is not whole sectors, the disk's last sector ends beyond it: the bytes there read as
    /// zeroes, and writes leave them out. Then there is no direct I/O. Otherwise the size is rounded down to whole blocks.
    pub any_size: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        FileOptions {
            write: true,
            direct: true,
            min_bytes: 0,
            in_use: false,
            read_ahead_kb: None,
            aio: None,
            part: FilePart::default(),
            any_size: false,
        }
    }
}

/// Something that differs from the options, or is slower than possible; the run continues.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileWarning {
    /// O_DIRECT was requested but the file does not support it.
    BufferedFallback {
        /// The file.
        path: PathBuf,
        /// The error.
        why: String,
    },
    /// O_DIRECT was requested but the disk ends within a sector.
    EndsInSector {
        /// The file.
        path: PathBuf,
        /// Size of the disk.
        bytes: u64,
    },
    /// A file that is read has unallocated blocks.
    Holes {
        /// The file.
        path: PathBuf,
    },
    /// Threads are used, because io_uring is not available.
    NoIoUring {
        /// The error and the remedy.
        why: String,
    },
}

impl fmt::Display for FileWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileWarning::BufferedFallback { path, why } => write!(
                f,
                "'{}' does not support direct I/O ({why}): results include the page cache; put the file on a file \
                 system with O_DIRECT (ext4, xfs, btrfs), or set direct=0 if this is intended",
                path.display()
            ),
            FileWarning::EndsInSector { path, bytes } => write!(
                f,
                "the disk on '{}' has {bytes} bytes and ends within a sector of {SECTOR_SIZE}, which direct I/O cannot write: I/O goes \
                 through the page cache; for direct I/O make the size a multiple of {SECTOR_SIZE}",
                path.display()
            ),
            FileWarning::Holes { path } => write!(
                f,
                "'{}' has holes: the file system serves reads of holes without device I/O; write the file once from \
                 end to end, or remove it to have it laid out again",
                path.display()
            ),
            FileWarning::NoIoUring { why } => f.write_str(why),
        }
    }
}

/// An open file and its properties.
#[derive(Debug)]
pub(super) struct Opened {
    fd: OwnedFd,
    pub(super) direct: bool,
    /// 0 = none by this driver.
    pub(super) read_ahead_kb: u32,
    pub(super) limits: Limits,
    pub(super) part: FilePart,
    /// Bytes of the disk; whole blocks unless `any_size`.
    bytes: AtomicU64,
    /// The disk was opened with an end within a sector, and may have any size. Its blocks are sectors.
    pub(super) any_size: bool,
    pub(super) is_device: bool,
    /// See [`identity`].
    pub(super) identity: String,
    /// A range that keeps its space can be zeroed without writing all of it, or zeroing is refused.
    pub(super) zeroes_are_cheap: bool,
}

/// Smallest logical block.
const MIN_BLOCK: u32 = 512;
/// Maximum number of sectors of one read or write: 1 GiB, which is below the limit of one system call (2 GiB - 4 KiB).
const MAX_HW_SECTORS: u32 = 1 << (30 - SECTOR_SHIFT);
/// How long opening a block device exclusively is retried. The kernel may release files of an io_uring some time after the ring was closed
/// or the process exited. So a run right after another would find the device in use.
const CLAIM_WAIT: Duration = Duration::from_millis(500);
const CLAIM_RETRY: Duration = Duration::from_millis(5);
/// Maximum number of sectors of one discard or write zeroes.
const MAX_RANGE_SECTORS: u32 = u32::MAX >> SECTOR_SHIFT;

impl Opened {
    pub(super) fn open(path: &Path, options: &FileOptions) -> Result<(Opened, Vec<FileWarning>)> {
        let is_device = check_kind(path)?;
        let mut warnings = Vec::new();
        let (mut file, mut align) = open_aligned(path, options, is_device, &mut warnings)?;
        let (file_bytes, mut limits) = if is_device { device_limits(&file, path)? } else { file_limits(&file, path)? };
        let odd = options.part.bytes_of(file_bytes).ok().filter(|b| options.any_size && !is_device && !is_sectors(*b));
        if let (Some(bytes), Some(_)) = (odd, align) {
            warnings.push(FileWarning::EndsInSector { path: path.to_owned(), bytes });
            file = open_fd(path, options.write, false, false).map_err(|e| explain_open(e, path, options.write))?;
            align = None;
        }
        let direct = align.is_some();
        let align = align.unwrap_or(MIN_BLOCK);
        limits.logical_block_size = limits.logical_block_size.max(align);
        limits.physical_block_size = limits.physical_block_size.max(limits.logical_block_size);
        limits.takes_bytes = !direct && limits.logical_block_size == SECTOR_SIZE;
        limits.read_only |= !options.write;
        // RWF_DSYNC would report, and so use up, the error of an earlier write of the page cache, and nothing shows whose error it is.
        limits.fua = direct;
        if limits.read_only && options.write {
            let ctx = format!("'{}' is a read-only device: a job that writes needs another one", path.display());
            return Err(Error::new(ErrorKind::Denied, ctx));
        }
        let block = u64::from(limits.logical_block_size);
        let refused = |why: String| Error::usage(format!("'{}' {why}", path.display()));
        let part = FilePart { size: options.part.size.filter(|_| odd.is_none()), ..options.part };
        part.in_blocks(block, direct && !is_device).map_err(refused)?;
        let size_bytes = options.part.bytes_of(file_bytes).map_err(refused)?;
        let usable = odd.unwrap_or(size_bytes / block * block);
        if usable == 0 || usable < options.min_bytes {
            return Err(too_small(path, size_bytes, options.min_bytes.max(block), is_device));
        }
        limits.check().map_err(|e| Error::new(ErrorKind::Io, format!("'{}': {e}", path.display())))?;
        let read_ahead_kb = options.read_ahead_kb.filter(|_| !direct);
        if read_ahead_kb.is_some() {
            no_read_ahead_by_the_system(&file);
        }
        let read_ahead_kb = read_ahead_kb.unwrap_or(0);
        let meta = file.metadata().map_err(|e| Error::os(e, format!("'{}'", path.display())))?;
        let (rdev, identity) = (meta.rdev(), identity::of(&meta));
        let zeroes_are_cheap = !is_device || queue_attribute(rdev, "write_zeroes_max_bytes").unwrap_or(0) > 0;
        let opened = Opened {
            fd: file.into(),
            direct,
            read_ahead_kb,
            limits,
            part: options.part,
            bytes: AtomicU64::new(usable),
            any_size: odd.is_some(),
            is_device,
            identity,
            zeroes_are_cheap,
        };
        Ok((opened, warnings))
    }

    /// Returns the bytes of the disk.
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the sectors of the disk; the last one may end beyond the disk.
    pub(super) fn capacity(&self) -> Sector {
        Sector(self.bytes().div_ceil(SECTOR_SIZE.into()))
    }

    /// Returns the byte of the file at which a sector of the disk begins.
    #[inline]
    pub(super) fn byte_of(&self, sector: Sector) -> u64 {
        self.part.offset + (sector.0 << SECTOR_SHIFT)
    }

    /// Returns the end of the disk, in sectors of the file.
    pub(super) fn end(&self) -> Sector {
        Sector(self.byte_of(self.capacity()) >> SECTOR_SHIFT)
    }

    /// Resizes a regular file, or with `None` reads its current size. Returns the disk's size, in whole blocks unless `any_size`, for
    /// [`Opened::adopt`].
    pub(super) fn resize(&self, bytes: Option<u64>, shrink: bool) -> Result<u64> {
        let failed = |e: io::Error| Error::os(e, "cannot resize the file");
        let file = fs::File::from(self.fd.try_clone().map_err(failed)?);
        let block = if self.any_size { 1 } else { u64::from(self.limits.logical_block_size) };
        if let Some(bytes) = bytes {
            if self.is_device {
                return Err(Error::usage(
                    "cannot resize a block device to a given size: resize it with its own tools, then repeat without \
                     a size",
                ));
            }
            if bytes == 0 || !bytes.is_multiple_of(block) {
                return Err(Error::usage(format!(
                    "size={bytes}: must be a multiple of the disk's block, {block}, and not 0"
                )));
            }
            if let Some(size) = self.part.size {
                return Err(Error::usage(format!(
                    "size={bytes}: the disk is a part of its file, and its configuration has size={size}: change it there, and reload"
                )));
            }
            // The file may have grown since.
            let has = (&file).seek(SeekFrom::End(0)).map_err(failed)?.saturating_sub(self.part.offset);
            check_shrink(has.max(self.bytes()), bytes, shrink)?;
            file.set_len(self.part.offset.saturating_add(bytes)).map_err(failed)?;
        }
        let file_bytes = (&file).seek(SeekFrom::End(0)).map_err(failed)?;
        let does_not_fit = |why| Error::usage(format!("it {why}; the disk keeps its size"));
        let size = self.part.bytes_of(file_bytes).map_err(does_not_fit)?;
        if !size.is_multiple_of(block) && !self.is_device {
            return Err(Error::usage(format!(
                "it has {size} bytes now, which is not whole blocks of {block}: the disk keeps its size"
            )));
        }
        let usable = size / block * block;
        if usable == 0 {
            return Err(Error::usage(format!(
                "it has {size} bytes now, less than a block of {block}: the disk keeps its size"
            )));
        }
        check_shrink(self.bytes(), usable, shrink)?;
        Ok(usable)
    }

    pub(super) fn adopt(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn borrow(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Checks that a regular file of this size has its part in whole blocks, so that a disk on it shows all of its bytes. With `direct`, these
/// are the blocks that direct I/O to the file needs. With [`FileOptions::any_size`], the part may also end within a sector.
///
/// # Errors
/// What is wrong, and the remedies.
pub(crate) fn whole_blocks(
    path: &Path,
    part: FilePart,
    size: u64,
    direct: bool,
    any_size: bool,
) -> std::result::Result<(), String> {
    if any_size && !is_sectors(part.bytes_of(size)?) {
        return Ok(());
    }
    // A file that cannot be opened so is opened without O_DIRECT, or not at all.
    let align = |file: fs::File| u64::from(direct_alignment(&file).max(MIN_BLOCK));
    let opened = direct.then(|| open_fd(path, false, true, false).ok()).flatten();
    let block = opened.map_or(u64::from(MIN_BLOCK), align);
    part.in_blocks(block, direct)?;
    let rest = part.bytes_of(size)? % block;
    if rest == 0 {
        return Ok(());
    }
    let up = size.saturating_add(block - rest);
    let pad = format!("pad it (truncate -s {up} FILE)");
    Err(match size.is_multiple_of(u64::from(MIN_BLOCK)) {
        true => format!(
            "has {size} bytes, but direct I/O here needs whole blocks of {block}: set direct = false in the \
             configuration, or {pad}"
        ),
        false => format!(
            "has {size} bytes, which is not whole blocks of {block}; if it is a raw image, {pad}, or serve it as a separate disk, only over \
             NBD or FUSE"
        ),
    })
}

/// Whether a number of bytes is whole sectors.
fn is_sectors(bytes: u64) -> bool {
    bytes.is_multiple_of(u64::from(SECTOR_SIZE))
}

/// Opens the file or device as the options say, or through the page cache if it does not support direct I/O. Returns it with the alignment
/// that direct I/O needs; `None` = it is opened without.
fn open_aligned(
    path: &Path,
    options: &FileOptions,
    is_device: bool,
    warnings: &mut Vec<FileWarning>,
) -> Result<(fs::File, Option<u32>)> {
    // For a block device, O_EXCL fails while the device is mounted or otherwise claimed.
    let exclusive = is_device && options.write && !options.in_use;
    let open = |direct| open_fd(path, options.write, direct, exclusive);
    let failed = |e| explain_open(e, path, options.write);
    if !options.direct {
        return Ok((open(false).map_err(failed)?, None));
    }
    let why = match open(true) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => "open with O_DIRECT fails",
        other => {
            let file = other.map_err(failed)?;
            match direct_alignment(&file) {
                0 => "the file system says so",
                align => return Ok((file, Some(align))),
            }
        }
    };
    warnings.push(FileWarning::BufferedFallback { path: path.to_owned(), why: why.to_owned() });
    Ok((open(false).map_err(failed)?, None))
}

/// Turns off the kernel's read-ahead, which would mix the streams of all clients. If the kernel refuses this advice, data is read ahead
/// twice at worst.
fn no_read_ahead_by_the_system(file: &fs::File) {
    // SAFETY: no memory is involved.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
}

/// Refuses anything but a regular file or block device. Returns whether it is a device.
fn check_kind(path: &Path) -> Result<bool> {
    let meta = fs::metadata(path).map_err(|e| explain_open(e, path, false))?;
    let kind = meta.file_type();
    if kind.is_file() || kind.is_block_device() {
        return Ok(kind.is_block_device());
    }
    let what = if kind.is_dir() { "a directory" } else { "neither a regular file nor a block device" };
    let ctx = format!("'{}' is {what}: a target must be a regular file or a block device", path.display());
    Err(Error::new(ErrorKind::Denied, ctx))
}

/// With `exclusive`, waits for another process's claim to end, [`CLAIM_WAIT`] at most.
fn open_fd(path: &Path, write: bool, direct: bool, exclusive: bool) -> io::Result<fs::File> {
    let flags = if direct { libc::O_DIRECT } else { 0 } | if exclusive { libc::O_EXCL } else { 0 };
    let open = || OpenOptions::new().read(true).write(write).custom_flags(flags).open(path);
    let begun = Instant::now();
    loop {
        match open() {
            Err(e) if exclusive && e.raw_os_error() == Some(libc::EBUSY) && begun.elapsed() < CLAIM_WAIT => {
                std::thread::sleep(CLAIM_RETRY);
            }
            other => return other,
        }
    }
}

fn explain_open(e: io::Error, path: &Path, write: bool) -> Error {
    let path = path.display();
    let ctx = match e.raw_os_error() {
        Some(libc::ENOENT) => format!("target '{path}' does not exist: create it first, or give the job a size"),
        Some(libc::EACCES | libc::EPERM | libc::EROFS) if write => {
            format!("'{path}' cannot be written, and the job writes: change its permissions or run a read-only job")
        }
        Some(libc::EBUSY) => {
            format!(
                "'{path}' is in use (mounted, or part of another device): nothing is written to it unless \
                 allow_mounted_write=1"
            )
        }
        _ => format!("cannot open '{path}'"),
    };
    Error::os(e, ctx)
}

fn too_small(path: &Path, size_bytes: u64, need: u64, is_device: bool) -> Error {
    let remedy = if is_device { "use a larger device or a smaller size=" } else { "extend it or use a smaller size=" };
    let ctx = format!("'{}' has {size_bytes} bytes, {need} are needed: {remedy}", path.display());
    Error::new(ErrorKind::NoSpace, ctx)
}

/// Returns the alignment of offsets and lengths that direct I/O needs; 0 = the file does not support direct I/O.
fn direct_alignment(file: &fs::File) -> u32 {
    let mut buf = std::mem::MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is an empty C string, the buffer a writable statx.
    let ret = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, buf.as_mut_ptr())
    };
    // SAFETY: zeroed memory is a valid statx, whether or not the kernel filled it.
    let stat = unsafe { buf.assume_init() };
    if ret == 0 && stat.stx_mask & libc::STATX_DIOALIGN != 0 {
        let align = stat.stx_dio_offset_align.max(stat.stx_dio_mem_align);
        return if align.is_power_of_two() && align <= 65536 { align.max(512) } else { 0 };
    }
    // Kernels before 6.1 do not report the alignment. 4096 is a multiple of every block size in use, and opening with O_DIRECT has
    // succeeded.
    4096
}

fn file_limits(file: &fs::File, path: &Path) -> Result<(u64, Limits)> {
    let meta = file.metadata().map_err(|e| Error::os(e, format!("cannot stat '{}'", path.display())))?;
    let cluster = u32::try_from(meta.blksize()).ok().filter(|b| b.is_power_of_two()).unwrap_or(4096).clamp(512, 65536);
    let limits = Limits {
        physical_block_size: cluster,
        discard_granularity: cluster,
        max_discard_sectors: MAX_RANGE_SECTORS,
        ..common_limits()
    };
    Ok((meta.len(), limits))
}

fn common_limits() -> Limits {
    Limits {
        max_segments: MAX_PIECES as u16,
        max_segment_size: u32::MAX,
        max_write_zeroes_sectors: MAX_RANGE_SECTORS,
        // Volatile: the device's own cache, the page cache, and the file's metadata.
        write_cache: true,
        ..Limits::with_max_hw_sectors(MAX_HW_SECTORS)
    }
}

const BLKROGET: libc::c_ulong = 0x125e;
const BLKSSZGET: libc::c_ulong = 0x1268;
const BLKPBSZGET: libc::c_ulong = 0x127b;
const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;

fn device_limits(file: &fs::File, path: &Path) -> Result<(u64, Limits)> {
    let get = |request: libc::c_ulong, name: &str| {
        let mut value = 0u64;
        // SAFETY: each of these requests writes an int or a u64 to the address, which has room for either.
        let ret = unsafe { libc::ioctl(file.as_raw_fd(), request as _, &raw mut value) };
        if ret < 0 { Err(Error::last_os(format!("{name} of '{}'", path.display()))) } else { Ok(value) }
    };
    // Requests that return an int fill the low half of the number on little-endian machines, the high half on big-endian ones.
    let int = |value: u64| if cfg!(target_endian = "little") { value as u32 } else { (value >> 32) as u32 };
    let logical = int(get(BLKSSZGET, "BLKSSZGET")?);
    let rdev = file.metadata().map_err(|e| Error::os(e, format!("cannot stat '{}'", path.display())))?.rdev();
    let queue = |name: &str| queue_attribute(rdev, name);
    // On a device the kernel punches holes only with the write-zeroes command, and refuses without it, even if the device supports
    // discard. BLKDISCARD would block the submitting thread, and io_uring supports it only from Linux 6.12 on.
    let takes = |name: &str| queue(name).unwrap_or(0) > 0;
    let can_discard = takes("discard_max_bytes") && takes("write_zeroes_max_bytes");
    let limits = Limits {
        logical_block_size: logical,
        physical_block_size: int(get(BLKPBSZGET, "BLKPBSZGET")?).max(logical),
        read_only: int(get(BLKROGET, "BLKROGET")?) != 0,
        rotational: queue("rotational") == Some(1),
        max_discard_sectors: if can_discard { MAX_RANGE_SECTORS } else { 0 },
        discard_granularity: queue("discard_granularity").unwrap_or(0) as u32,
        ..common_limits()
    };
    Ok((get(BLKGETSIZE64, "BLKGETSIZE64")?, limits))
}

/// Reads a number from the device's queue directory in sysfs; for a partition, from that of its disk.
fn queue_attribute(rdev: u64, name: &str) -> Option<u64> {
    let dir = format!("/sys/dev/block/{}:{}", libc::major(rdev), libc::minor(rdev));
    let read = |path: String| fs::read_to_string(path).ok()?.trim().parse().ok();
    read(format!("{dir}/queue/{name}")).or_else(|| read(format!("{dir}/../queue/{name}")))
}
