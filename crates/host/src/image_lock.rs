// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Locks on images: one writer, or any number of readers, across mqblk and QEMU.
//!
//! Guarantees: while an [`ImageLock`] lives, no other mqblk, QEMU, qemu-img or qemu-storage-daemon that asks for locks opens the image in
//! a conflicting way. The locks end with the value or the process, however it ends. Paths of one disk to one image share its lock
//! ([`SharedLocks`]). Needs a file system that has locks of open file descriptions (all local ones). Does not do: exclude programs that do
//! not ask for locks, or QEMU's tools that only read and accept a writer (qemu-img info, qemu-io -r).
//!
//! The scheme is that of QEMU, so that both see each other's locks: shared locks on single bytes. A lock on byte 100 + n means that the
//! holder uses permission n; a lock on byte 200 + n means that others must not use it. n is 0 for consistent read, 1 for write, 3 for
//! resize. The opener then checks whether another process holds a conflicting byte. The bytes need not exist in the file.
//!
//! Source: QEMU block/file-posix.c (`RAW_LOCK_PERM_BASE`, `RAW_LOCK_SHARED_BASE`), fcntl(2), "Open file description locks".

use crate::error::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Weak};

const USED: libc::off_t = 100;
const UNSHARED: libc::off_t = 200;
const READ: libc::off_t = 0;
const WRITE: libc::off_t = 1;
const RESIZE: libc::off_t = 3;

/// A lock on an image.
#[derive(Debug)]
pub struct ImageLock {
    /// The locks belong to this open file.
    file: File,
}

impl Drop for ImageLock {
    /// Unlocks explicitly, because closing is not enough: a child that another thread has just forked keeps the open file, and with it the
    /// locks, until exec.
    fn drop(&mut self) {
        // If unlocking fails, the locks end with the last descriptor.
        let _ = set(&self.file, libc::F_UNLCK, 0, 0);
    }
}

impl ImageLock {
    /// Locks the image at `path` against other writers, and with `write` against readers, too.
    ///
    /// # Errors
    /// `Denied`: another program uses the image in a conflicting way. Others: opening the image fails.
    pub fn take(path: &Path, write: bool) -> Result<ImageLock> {
        let lock = ImageLock { file: open(path)? };
        // The locks are set before the others' locks are checked, so that of two simultaneous openers at least one sees the other.
        for byte in bytes_held(write) {
            if let Err(e) = set(&lock.file, libc::F_RDLCK, byte, 1) {
                return Err(Error::os(e, format!("image '{}' cannot be locked", path.display())));
            }
        }
        look(&lock.file, path, write)?;
        Ok(lock)
    }

    /// Whether [`ImageLock::take`] would be refused now. Nothing is locked.
    ///
    /// # Errors
    /// The errors of [`ImageLock::take`].
    pub fn probe(path: &Path, write: bool) -> Result<()> {
        look(&open(path)?, path, write)
    }
}

/// An identifier of an image that is the same for all its names.
type ImageId = (u64, u64);

/// Locks on the images of one disk: an image is locked once, even if it has several names, as long as a lock lives that was returned for it.
#[derive(Debug)]
pub struct SharedLocks {
    write: bool,
    taken: Mutex<Vec<(ImageId, Weak<ImageLock>)>>,
}

impl SharedLocks {
    /// Makes a set that has no lock yet; `write`: the images are written.
    pub fn new(write: bool) -> SharedLocks {
        SharedLocks { write, taken: Mutex::default() }
    }

    /// Locks the image at `path`, or returns the lock that it has.
    ///
    /// # Errors
    /// The errors of [`ImageLock::take`].
    pub fn lock(&self, path: &Path) -> Result<Arc<ImageLock>> {
        let mut taken = self.taken.lock();
        taken.retain(|(_, lock)| lock.strong_count() > 0);
        if let Ok(meta) = std::fs::metadata(path) {
            let image = image_identity(&meta);
            let known = taken.iter().find(|(other, _)| *other == image);
            if let Some(lock) = known.and_then(|(_, lock)| lock.upgrade()) {
                return Ok(lock);
            }
        }
        let lock = Arc::new(ImageLock::take(path, self.write)?);
        let meta = lock.file.metadata();
        let meta = meta.map_err(|e| Error::os(e, format!("image '{}' cannot be examined", path.display())))?;
        taken.push((image_identity(&meta), Arc::downgrade(&lock)));
        Ok(lock)
    }

    /// Locks those images of one target that exist. It is enough if one does, because a path may appear later.
    ///
    /// # Errors
    /// The errors of [`ImageLock::take`].
    pub fn lock_present(&self, paths: &[&Path]) -> Result<Vec<Arc<ImageLock>>> {
        let (mut locks, mut missing) = (Vec::new(), None);
        for path in paths {
            match self.lock(path) {
                Err(e) if e.kind() == ErrorKind::NotFound => missing = Some(e),
                lock => locks.push(lock?),
            }
        }
        missing.filter(|_| locks.is_empty()).map_or(Ok(locks), Err)
    }
}

/// Locks on images that are written, as long as the value lives.
#[derive(Debug)]
pub struct ImageLocks {
    shared: Arc<SharedLocks>,
    kept: Vec<Arc<ImageLock>>,
}

impl Default for ImageLocks {
    fn default() -> ImageLocks {
        ImageLocks { shared: Arc::new(SharedLocks::new(true)), kept: Vec::new() }
    }
}

impl ImageLocks {
    /// Locks those of the images that exist, to write them.
    ///
    /// # Errors
    /// The errors of [`ImageLock::take`].
    pub fn add(&mut self, paths: &[&Path]) -> Result<()> {
        for path in paths.iter().filter(|path| path.exists()) {
            self.kept.push(self.shared.lock(path)?);
        }
        Ok(())
    }

    /// Returns the set that the locks are in.
    pub(crate) fn shared(&self) -> &Arc<SharedLocks> {
        &self.shared
    }
}

/// Returns an identifier that is the same for all names of one image.
pub(crate) fn image_identity(meta: &Metadata) -> ImageId {
    if meta.file_type().is_block_device() { (u64::MAX, meta.rdev()) } else { (meta.dev(), meta.ino()) }
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|e| Error::os(e, format!("image '{}' cannot be opened to lock it", path.display())))
}

fn used(write: bool) -> &'static [libc::off_t] {
    if write { &[READ, WRITE] } else { &[READ] }
}

/// Permissions that others must not use. As in QEMU, also a reader forbids that the data changes.
const OTHERS_MUST_NOT: [libc::off_t; 2] = [WRITE, RESIZE];

fn bytes_held(write: bool) -> impl Iterator<Item = libc::off_t> {
    used(write).iter().map(|p| USED + p).chain(OTHERS_MUST_NOT.iter().map(|p| UNSHARED + p))
}

/// Checks for conflicting locks of others.
fn look(file: &File, path: &Path, write: bool) -> Result<()> {
    let contradict = used(write).iter().map(|p| UNSHARED + p).chain(OTHERS_MUST_NOT.iter().map(|p| USED + p));
    for byte in contradict {
        match locked_by_another(file, byte) {
            Ok(false) => {}
            Ok(true) => {
                let does = if byte >= UNSHARED { "has it open and allows no writer" } else { "writes to it" };
                let name = path.display();
                let text = format!(
                    "image '{name}' is in use: another program {does} (QEMU, qemu-img or mqblk; 'lslocks' shows which); \
                     end it first"
                );
                return Err(Error::new(ErrorKind::Denied, text));
            }
            Err(e) => return Err(Error::os(e, format!("image '{}': its locks cannot be read", path.display()))),
        }
    }
    Ok(())
}

/// Returns a lock of `len` bytes from `start`; a `len` of 0 covers all bytes that follow.
fn bytes(kind: libc::c_int, start: libc::off_t, len: libc::off_t) -> libc::flock {
    // All fields are named: `l_pid` must be 0 for locks of open file descriptions.
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

fn set(file: &File, kind: libc::c_int, start: libc::off_t, len: libc::off_t) -> io::Result<()> {
    let lock = bytes(kind, start, len);
    // SAFETY: the descriptor is open as long as `file`, and the kernel only reads the live `lock`.
    let failed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } != 0;
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn locked_by_another(file: &File, byte: libc::off_t) -> io::Result<bool> {
    let mut lock = bytes(libc::F_WRLCK, byte, 1);
    // SAFETY: the descriptor is open as long as `file`; the kernel reads and writes one live flock, valid in all its bits.
    let failed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } != 0;
    if failed { Err(io::Error::last_os_error()) } else { Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    struct Image(PathBuf);

    impl Image {
        fn new(name: &str) -> Image {
            let path = std::env::temp_dir().join(format!("lock-{}-{name}", std::process::id()));
            std::fs::write(&path, [0; 4096]).unwrap();
            Image(path)
        }
    }

    impl Drop for Image {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn one_writer_or_any_number_of_readers() {
        let image = Image::new("rules");
        let first = ImageLock::take(&image.0, false).unwrap();
        let second = ImageLock::take(&image.0, false).unwrap();
        let e = ImageLock::take(&image.0, true).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Denied);
        assert!(e.to_string().contains("is in use: another program has it open and allows no writer"), "{e}");
        drop((first, second));
        let writer = ImageLock::take(&image.0, true).unwrap();
        for write in [false, true] {
            let e = ImageLock::take(&image.0, write).unwrap_err().to_string();
            assert!(e.contains("is in use") && e.ends_with("end it first"), "{e}");
        }
        drop(writer);
        ImageLock::take(&image.0, true).unwrap();
    }

    /// A writer that was rejected must not leave its locks behind, or the image would be in use without a user.
    #[test]
    fn rejected_openers_and_readers_hold_no_lock() {
        let image = Image::new("refused");
        let reader = ImageLock::take(&image.0, false).unwrap();
        ImageLock::take(&image.0, true).unwrap_err();
        ImageLock::probe(&image.0, true).unwrap_err();
        ImageLock::probe(&image.0, false).unwrap();
        ImageLock::take(&image.0, false).unwrap();
        drop(reader);
        ImageLock::probe(&image.0, true).unwrap();
        ImageLock::take(&image.0, true).unwrap();
    }

    /// Another thread's `fork` duplicates every descriptor until the child's `exec`; an opener in that moment used to be refused.
    #[test]
    fn a_released_lock_is_free_though_a_child_has_the_file() {
        let image = Image::new("forked");
        let lock = ImageLock::take(&image.0, true).unwrap();
        let _of_the_child = lock.file.try_clone().unwrap();
        drop(lock);
        let lock = ImageLock::take(&image.0, true).unwrap();
        ImageLock::take(&image.0, false).unwrap_err();
        drop(lock);
    }

    /// Two names of an image may be two paths of one disk. Locking it twice would conflict with itself; not locking it would let other
    /// programs in.
    #[test]
    fn paths_to_one_image_are_locked_once_and_against_others() {
        let image = Image::new("paths");
        let other_name = PathBuf::from(format!("/.{}", image.0.display()));
        let missing = PathBuf::from("/nonexistent/image");
        let shared = SharedLocks::new(true);
        let mut locks = shared.lock_present(&[&image.0, &other_name, &missing]).unwrap();
        assert!(locks.len() == 2 && Arc::ptr_eq(&locks[0], &locks[1]));
        let e = SharedLocks::new(true).lock_present(&[&other_name]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Denied);
        // A path that was removed and is added again: the disk still has its lock.
        locks.pop();
        assert!(Arc::ptr_eq(&locks[0], &shared.lock(&other_name).unwrap()));
        drop(locks);
        ImageLock::take(&image.0, true).unwrap();
        assert_eq!(shared.lock_present(&[&missing, &missing]).unwrap_err().kind(), ErrorKind::NotFound);
    }

    /// Regression: a removed path's device could not be removed from the system while its disk was open.
    #[test]
    fn an_image_is_closed_with_its_last_lock() {
        let images = ["one", "two"].map(Image::new);
        let shared = SharedLocks::new(true);
        let [one, two] = [0, 1].map(|i| shared.lock(&images[i].0).unwrap());
        let of_one = Arc::downgrade(&one);
        drop(one);
        assert!(of_one.upgrade().is_none());
        ImageLock::take(&images[0].0, true).unwrap();
        ImageLock::take(&images[1].0, true).unwrap_err();
        let one = shared.lock(&images[0].0).unwrap();
        drop(two);
        ImageLock::take(&images[0].0, true).unwrap_err();
        ImageLock::take(&images[1].0, true).unwrap();
        drop(one);
    }

    #[test]
    fn an_image_that_is_not_there_is_said_so() {
        let e = ImageLock::take(Path::new("/nonexistent/image"), true).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound);
    }
}
