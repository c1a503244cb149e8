// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Making a file large enough to be a target.
//!
//! Guarantees: the content of an existing file stays as it is; a file is only ever extended, never truncated. If the work fails or is
//! interrupted, a file that was created here is removed, and one that was extended has its old size again. Refused before anything is
//! written: directories, special files, block devices that are too small, and a size for which the file system has no room.
//!
//! Layouts. `ALLOCATE` reserves blocks (fallocate), so writes find their space. The file system answers reads of blocks that were never
//! written without asking the device. `WRITE_OUT` writes all blocks, as fio lays out the files of a read job, so that reads reach the
//! device.

use crate::error::{Error, ErrorKind, Result};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

/// What a new file, or the new part of a file, is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// How its space is reserved.
    pub space: Space,
    /// Written with data that does not compress, so that reads reach the device.
    pub is_written: bool,
    /// On stable media before it is used.
    pub is_synced: bool,
}

/// How the space of a file is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Not at all: a hole.
    None,
    /// With the file's size, where the file system can.
    Allocated,
    /// Before the file has its size (FALLOC_FL_KEEP_SIZE).
    AllocatedFirst,
}

impl Layout {
    /// Reserved, not written.
    pub const ALLOCATE: Layout = Layout { space: Space::Allocated, is_written: false, is_synced: true };
    /// Reserved and written.
    pub const WRITE_OUT: Layout = Layout { is_written: true, ..Layout::ALLOCATE };
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// It was there and large enough; nothing was touched.
    Existing,
    /// It was there and is longer now.
    Extended {
        /// Its size before.
        from_bytes: u64,
    },
    /// It is new.
    New,
}

/// Bytes between two calls of the progress function, and the most that lies unwritten in the page cache.
const STEP_BYTES: u64 = 64 << 20;
const CHUNK_BYTES: usize = 1 << 20;

/// Sees to it that `path` has at least `size_bytes`. `progress` is told how many of how many bytes are done and may
/// interrupt it.
pub fn create(
    path: &Path,
    size_bytes: u64,
    layout: Layout,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Created> {
    if size_bytes == 0 {
        return Err(Error::usage(format!("size 0 for '{}': must be at least one block, e.g. size=1g", path.display())));
    }
    let existing = match fs::metadata(path) {
        Ok(meta) => Some(meta),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(Error::os(e, format!("cannot stat '{}'", path.display()))),
    };
    let Some(meta) = existing else {
        return create_new(path, size_bytes, layout, progress);
    };
    check_existing(path, &meta)?;
    if !meta.is_file() || meta.len() >= size_bytes {
        return Ok(Created::Existing);
    }
    let old = meta.len();
    check_free(path, size_bytes - old)?;
    let file = OpenOptions::new().write(true).open(path).map_err(|e| {
        Error::os(
            e,
            format!("'{}' has {old} bytes, {size_bytes} are needed, but the file is not writable", path.display()),
        )
    })?;
    let filled = fill(&file, path, old, size_bytes, layout, progress);
    if filled.is_err() {
        // Best effort: the error that is reported is the first one.
        let _ = file.set_len(old);
    }
    filled.map(|()| Created::Extended { from_bytes: old })
}

fn create_new(
    path: &Path,
    size_bytes: u64,
    layout: Layout,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Created> {
    check_free(path, size_bytes)?;
    let file = OpenOptions::new().write(true).create_new(true).open(path).map_err(|e| {
        Error::os(e, format!("cannot create '{}'; does its directory exist, and is it writable?", path.display()))
    })?;
    let filled = fill(&file, path, 0, size_bytes, layout, progress);
    if filled.is_err() {
        // Best effort: the error that is reported is the first one.
        let _ = fs::remove_file(path);
    }
    filled.map(|()| Created::New)
}

fn check_existing(path: &Path, meta: &fs::Metadata) -> Result<()> {
    let kind = meta.file_type();
    let refuse = |why: &str| {
        let ctx = format!("'{}' is {why}: a target must be a regular file or a block device", path.display());
        Err(Error::new(ErrorKind::Denied, ctx))
    };
    if kind.is_dir() {
        return refuse("a directory");
    }
    if !kind.is_block_device() && !kind.is_file() {
        return refuse("a special file");
    }
    Ok(())
}

/// Refuses a file system that has not `need` bytes left for us.
fn check_free(path: &Path, need: u64) -> Result<()> {
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = CString::new(dir.as_os_str().as_bytes())
        .map_err(|_| Error::usage(format!("'{}': a path must not contain a zero byte", path.display())))?;
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: `name` is a C string, `stat` a writable statvfs.
    let ret = unsafe { libc::statvfs(name.as_ptr(), stat.as_mut_ptr()) };
    if ret != 0 {
        let (e, dir, path) = (io::Error::last_os_error(), dir.display(), path.display());
        return Err(match e.raw_os_error() {
            Some(libc::ENOENT) => {
                Error::os(e, format!("'{path}': directory '{dir}' does not exist: create it, or fix the path"))
            }
            _ => Error::os(e, format!("'{path}': cannot use directory '{dir}'")),
        });
    }
    // SAFETY: the kernel filled it, and zeroed memory is a valid one anyway.
    let stat = unsafe { stat.assume_init() };
    let available = stat.f_bavail.saturating_mul(stat.f_frsize);
    if available < need {
        let ctx = format!(
            "'{}' needs {need} bytes more, its file system has {available} available: free space, use a smaller size=, or \
             a target without data such as null:size=...",
            path.display()
        );
        return Err(Error::new(ErrorKind::NoSpace, ctx));
    }
    Ok(())
}

/// Makes bytes `from..to` of the file exist.
fn fill(
    file: &File,
    path: &Path,
    from: u64,
    to: u64,
    layout: Layout,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<()> {
    let failed = |e: io::Error, what: &str| Error::os(e, format!("cannot {what} '{}' to {to} bytes", path.display()));
    let mut at = from;
    while at < to {
        let step = STEP_BYTES.min(to - at);
        allocate(file, at, step, layout.space).map_err(|e| failed(e, "extend"))?;
        if layout.is_written {
            write_out(file, at, step, layout.is_synced).map_err(|e| failed(e, "fill"))?;
        }
        at += step;
        if progress(at - from, to - from).is_break() {
            let ctx = format!("creation of '{}' was interrupted; its previous state was restored", path.display());
            return Err(Error::new(ErrorKind::Interrupted, ctx));
        }
    }
    if layout.is_synced {
        file.sync_all().map_err(|e| failed(e, "sync"))?;
    }
    // SAFETY: plain numbers on an open file. A job that bypasses the page cache does not need the file's pages there.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    Ok(())
}

/// Reserves blocks. Where the file system cannot, the file is extended with a hole.
fn allocate(file: &File, offset: u64, len: u64, space: Space) -> io::Result<()> {
    let mode = match space {
        Space::None => return file.set_len(offset + len),
        Space::Allocated => 0,
        Space::AllocatedFirst => libc::FALLOC_FL_KEEP_SIZE,
    };
    loop {
        // SAFETY: plain numbers on an open file.
        let ret = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as libc::off_t, len as libc::off_t) };
        if ret == 0 {
            return if mode == 0 { Ok(()) } else { file.set_len(offset + len) };
        }
        let e = io::Error::last_os_error();
        match e.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => return file.set_len(offset + len),
            _ => return Err(e),
        }
    }
}

fn write_out(file: &File, offset: u64, len: u64, is_synced: bool) -> io::Result<()> {
    let mut chunk = vec![0u8; CHUNK_BYTES];
    let mut done = 0;
    while done < len {
        let n = (len - done).min(CHUNK_BYTES as u64) as usize;
        fill_incompressible(&mut chunk[..n], offset + done);
        file.write_all_at(&chunk[..n], offset + done)?;
        done += n as u64;
    }
    // Flush the pages to the device after each step, so that the reported progress is real.
    if is_synced { file.sync_data() } else { Ok(()) }
}

/// Bytes that look random and depend on their place only.
fn fill_incompressible(bytes: &mut [u8], offset: u64) {
    let mut state = offset;
    for word in bytes.chunks_mut(8) {
        // SplitMix64 (Steele, Lea, Flood 2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes()[..word.len()]);
    }
}

/// Drops the clean cached pages of a file, so that a buffered run starts cold (fio's `invalidate`).
pub fn drop_cached_pages(path: &Path) -> Result<()> {
    let file = File::open(path).map_err(|e| Error::os(e, format!("cannot open '{}'", path.display())))?;
    // SAFETY: the descriptor is open for the call; the advice changes no memory of this process. A file system that does
    // not take it keeps its pages, which the kernel documents as allowed.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    Ok(())
}

/// Reads the first `bytes` of a file through the page cache, which keeps what it has room for (fio's `pre_read`).
pub fn fill_page_cache(path: &Path, bytes: u64) -> Result<()> {
    let failed = |e: io::Error| Error::os(e, format!("cannot read '{}' into the page cache", path.display()));
    let file = File::open(path).map_err(failed)?;
    io::copy(&mut io::Read::take(file, bytes), &mut io::sink()).map_err(failed)?;
    Ok(())
}

/// Where a block device is mounted; `None` for regular files and devices that are not.
pub fn mounted_at(path: &Path) -> Result<Option<String>> {
    let failed = |e| Error::os(e, format!("cannot stat '{}'", path.display()));
    if !fs::metadata(path).map_err(failed)?.file_type().is_block_device() {
        return Ok(None);
    }
    let device = path.canonicalize().map_err(failed)?;
    let mounts = fs::read_to_string("/proc/self/mounts")
        .map_err(|e| Error::os(e, "cannot read /proc/self/mounts to check whether the device is mounted"))?;
    Ok(mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let source = Path::new(words.next()?).canonicalize().ok()?;
        (source == device).then(|| words.next().unwrap_or("?").to_owned())
    }))
}

/// Whether blocks of the file were never given space: reads of them would not reach the device.
pub fn has_holes(path: &Path) -> Result<bool> {
    let meta = fs::metadata(path).map_err(|e| Error::os(e, format!("cannot stat '{}'", path.display())))?;
    Ok(meta.is_file() && meta.blocks() * 512 < meta.len() / 4096 * 4096)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    struct TempDir(PathBuf);

    impl TempDir {
        fn new(name: &str) -> TempDir {
            let dir = std::env::temp_dir().join(format!("create-{}-{name}", std::process::id()));
            fs::create_dir(&dir).unwrap();
            TempDir(dir)
        }
    }

    impl Drop for TempDir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn go_on(_: u64, _: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    #[test]
    fn a_new_file_is_written_out_with_progress() {
        let dir = TempDir::new("new");
        let path = dir.0.join("f");
        let mut seen = Vec::new();
        let size = STEP_BYTES + 5000;
        let created = create(&path, size, Layout::WRITE_OUT, &mut |done, all| {
            seen.push((done, all));
            ControlFlow::Continue(())
        });
        assert_eq!(created.unwrap(), Created::New);
        assert_eq!(seen, [(STEP_BYTES, size), (size, size)]);
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, size);
        assert!(bytes.chunks(4096).all(|c| c.iter().any(|b| *b != 0)) && !has_holes(&path).unwrap());
        assert_eq!(create(&path, 5, Layout::WRITE_OUT, &mut go_on).unwrap(), Created::Existing);
        assert_eq!(fs::metadata(&path).unwrap().len(), size, "a larger file is left alone");
    }

    #[test]
    fn a_layout_says_where_the_space_comes_from() {
        let dir = TempDir::new("space");
        for (name, space, holes) in
            [("none", Space::None, true), ("keep", Space::AllocatedFirst, false), ("native", Space::Allocated, false)]
        {
            let path = dir.0.join(name);
            let layout = Layout { space, is_written: false, is_synced: false };
            assert_eq!(create(&path, (1 << 20) + 700, layout, &mut go_on).unwrap(), Created::New);
            assert_eq!(fs::metadata(&path).unwrap().len(), (1 << 20) + 700, "{name}");
            assert_eq!(has_holes(&path).unwrap(), holes, "{name}");
        }
    }

    #[test]
    fn extending_keeps_what_is_there() {
        let dir = TempDir::new("extend");
        let path = dir.0.join("f");
        fs::write(&path, [7; 5000]).unwrap();
        let created = create(&path, 3 << 20, Layout::ALLOCATE, &mut go_on).unwrap();
        assert_eq!(created, Created::Extended { from_bytes: 5000 });
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 3 << 20);
        assert!(bytes[..5000].iter().all(|b| *b == 7) && bytes[5000..].iter().all(|b| *b == 0));
    }

    #[test]
    fn breaking_off_leaves_no_trace() {
        let dir = TempDir::new("break");
        let (new, old) = (dir.0.join("new"), dir.0.join("old"));
        fs::write(&old, [7; 5000]).unwrap();
        for path in [&new, &old] {
            let e = create(path, 2 * STEP_BYTES, Layout::ALLOCATE, &mut |_, _| ControlFlow::Break(())).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Interrupted);
        }
        assert!(!new.exists());
        assert_eq!(fs::read(&old).unwrap(), [7; 5000]);
    }

    #[test]
    fn what_cannot_be_is_refused_before_anything_is_written() {
        let dir = TempDir::new("refuse");
        let path = dir.0.join("f");
        let refused = |path: &Path, size| create(path, size, Layout::ALLOCATE, &mut go_on).unwrap_err();
        let e = refused(&path, 1 << 60);
        assert!(e.kind() == ErrorKind::NoSpace && e.to_string().contains("1152921504606846976 bytes"), "{e}");
        assert_eq!(refused(&dir.0, 4096).kind(), ErrorKind::Denied);
        assert_eq!(refused(Path::new("/dev/null"), 4096).kind(), ErrorKind::Denied);
        assert_eq!(refused(&path, 0).kind(), ErrorKind::Usage);
        assert_eq!(refused(&dir.0.join("none/f"), 4096).kind(), ErrorKind::NotFound);
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 0);
    }
}
