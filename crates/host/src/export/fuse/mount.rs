// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The mount: `/dev/fuse` descriptors, mounting over a regular file, and removing mounts whose daemon is gone.
//!
//! Guarantees: nothing is mounted over a file system that a daemon serves; a mount whose daemon was killed is detached first. A mount is
//! undone when it is dropped. If the file is not open, it is unmounted completely. Otherwise the mount is detached from its path, and all
//! I/O on open descriptors fails from then on. A newer mount of another process at the same path is kept. Mounting needs root
//! (CAP_SYS_ADMIN); other users mount by the program `fusermount3`, if it is installed.
//!
//! Source: mount(2), fuse(4), Linux Documentation/filesystems/fuse.rst; fusermount3(1) for `_FUSE_COMMFD`.

use super::wire::MAX_DATA;
use crate::confinement::Confinement;
use crate::error::{Error, ErrorKind, Result};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType};
use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// `_IOR(229, 0, uint32_t)`. Source: fuse.h.
const FUSE_DEV_IOC_CLONE: libc::c_ulong = 0x8004_e500;
/// Maximum number of stale mounts on top of each other that are detached at one path.
const STALE_MAX: usize = 64;

/// Options of a mount.
#[derive(Clone, Debug)]
pub(super) struct MountOptions {
    /// An existing regular file.
    pub(super) at: PathBuf,
    /// What lists of mounts show as its source.
    pub(super) source: String,
    /// The file is read-only.
    pub(super) read_only: bool,
    /// Users other than the mounting one may open the file, as its permissions allow.
    pub(super) allow_other: bool,
}

/// A mount, undone when dropped.
#[derive(Debug)]
pub(super) struct Mount {
    at: PathBuf,
    /// The device number, as `/proc/self/mountinfo` shows it.
    device: Option<Vec<u8>>,
    by_helper: bool,
    /// The mount is undone already, so dropping it does nothing.
    is_undone: bool,
}

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountpointState {
    /// A regular file.
    File,
    /// A mount whose daemon is gone.
    Stale,
    /// A file system that a daemon serves.
    Served,
    /// Something else.
    Other,
}

/// What is at a path.
///
/// # Errors
/// Nothing is there, or it cannot be read.
pub(crate) fn look(at: &Path) -> io::Result<MountpointState> {
    let meta = match fs::metadata(at) {
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => return Ok(MountpointState::Stale),
        other => other?,
    };
    if fuse_device(&absolute(at)?).is_some() {
        return Ok(MountpointState::Served);
    }
    Ok(if meta.is_file() { MountpointState::File } else { MountpointState::Other })
}

/// Returns the path without symbolic links. The file itself may be unreachable, because its mount is stale.
fn absolute(at: &Path) -> io::Result<PathBuf> {
    if let Ok(whole) = fs::canonicalize(at) {
        return Ok(whole);
    }
    let directory = at.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = at.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(fs::canonicalize(directory)?.join(name))
}

/// Returns the device number of the topmost mount at a path, if that is a FUSE mount.
fn fuse_device(at: &Path) -> Option<Vec<u8>> {
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let is_here = |line: &&[u8]| {
        line.split(|b| *b == b' ').nth(4).is_some_and(|place| unescaped(place).as_os_str() == at.as_os_str())
    };
    // Of several mounts on top of each other, the last line is the visible one.
    let line = mounts.split(|b| *b == b'\n').rfind(is_here)?;
    let mut fields = line.split(|b| *b == b' ');
    let device = fields.nth(2)?.to_vec();
    let kind = fields.skip_while(|f| *f != b"-").nth(1)?;
    kind.starts_with(b"fuse").then_some(device)
}

/// Decodes a path of mountinfo: space, tab, newline and backslash are a backslash and three octal digits. Source: proc_pid_mountinfo(5).
fn unescaped(field: &[u8]) -> PathBuf {
    let (mut out, mut rest) = (Vec::with_capacity(field.len()), field);
    while let Some((byte, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|d| *byte == b'\\' && d.iter().all(|d| (b'0'..=b'7').contains(d)));
        match digits {
            Some(d) => {
                out.push(d.iter().fold(0u8, |n, d| n.wrapping_mul(8).wrapping_add(d - b'0')));
                rest = &behind[3..];
            }
            None => {
                out.push(*byte);
                rest = behind;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// Mounts. Returns the mount, its non-blocking descriptor, on which the kernel's INIT is still to be answered, and the metadata of the
/// file below.
pub(super) fn mount(options: &MountOptions) -> Result<(Mount, OwnedFd, fs::Metadata)> {
    let shown = options.at.display();
    let unusable = |e: io::Error| Error::os(e, format!("mountpoint '{shown}'"));
    let at = absolute(&options.at).map_err(unusable)?;
    detach_stale(&at)?;
    match look(&at).map_err(unusable)? {
        MountpointState::File => {}
        MountpointState::Served => {
            return Err(Error::usage(format!(
                "mountpoint '{shown}': another program serves a file system there; end it first"
            )));
        }
        MountpointState::Stale | MountpointState::Other => {
            return Err(Error::usage(format!("mountpoint '{shown}': must be a regular file")));
        }
    }
    let below = fs::metadata(&at).map_err(unusable)?;
    // If only root may open /dev/fuse, fusermount3 opens it instead.
    let mounted = open_device().and_then(|fd| mount_as_root(&at, &fd, options).map(|()| fd));
    let (fd, by_helper) = match mounted {
        Ok(fd) => (fd, false),
        Err(Errno::PERM | Errno::ACCESS) => (mount_by_helper(&at, options)?, true),
        Err(e) => {
            let ctx = format!("cannot mount at '{shown}'; is there a /dev/fuse (module fuse)?");
            return Err(Error::os(e.into(), ctx));
        }
    };
    Ok((Mount { device: fuse_device(&at), at, by_helper, is_undone: false }, fd, below))
}

fn open_device() -> rustix::io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
}

fn mount_as_root(at: &Path, fd: &OwnedFd, options: &MountOptions) -> rustix::io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut data = format!(
        "fd={},rootmode={:o},user_id={uid},group_id={gid},default_permissions,max_read={MAX_DATA}",
        fd.as_raw_fd(),
        libc::S_IFREG
    );
    if options.allow_other {
        data += ",allow_other";
    }
    let data = CString::new(data).map_err(|_| Errno::INVAL)?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, options.read_only);
    rustix::mount::mount(options.source.as_str(), at, "fuse.mqblk", flags, data.as_c_str())
}

/// Lets fusermount3, which is set-uid, mount the file. It sends the descriptor over the socket that is its standard input.
fn mount_by_helper(at: &Path, options: &MountOptions) -> Result<OwnedFd> {
    let at_text = at.display();
    let failed = |e: Errno| Error::os(e.into(), format!("cannot mount at '{at_text}'"));
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(failed)?;
    // A comma would end the option's value.
    let source: String = options.source.chars().map(|c| if ",\\".contains(c) { '_' } else { c }).collect();
    let mut words =
        format!("nosuid,nodev,noatime,default_permissions,max_read={MAX_DATA},subtype=mqblk,fsname={source}");
    words += if options.read_only { ",ro" } else { ",rw" };
    if options.allow_other {
        words += ",allow_other";
    }
    let mut helper = Command::new("fusermount3");
    helper.args(["-o", &words, "--"]).arg(at).env("_FUSE_COMMFD", "0").stdin(Stdio::from(theirs));
    let is_confined = Confinement::in_effect().is_ok_and(|is| is.no_new_privs);
    let done = helper.output().map_err(|e| {
        let why = if is_confined && e.raw_os_error() == Some(libc::EPERM) {
            "this process may no longer start programs: restart it with this export"
        } else {
            "mounting needs root, or the program fusermount3 (package fuse3)"
        };
        Error::os(e, format!("cannot mount at '{at_text}': {why}"))
    })?;
    drop(helper);
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        let why = if is_confined {
            "; this process has no_new_privs, so set-uid programs get no privileges: restart it with this export"
        } else {
            ""
        };
        let ctx = format!("cannot mount at '{at_text}': {}{why}", said.trim());
        return Err(Error::new(ErrorKind::Denied, ctx));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::net::recvmsg(&ours, &mut [io::IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)
        .map_err(failed)?;
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let fd =
        fd.ok_or_else(|| Error::new(ErrorKind::Io, format!("fusermount3 mounted '{at_text}' but sent no descriptor")))?;
    rustix::io::ioctl_fionbio(&fd, true).map_err(failed)?;
    Ok(fd)
}

/// Returns another descriptor of the mount of `fd`, with a queue of its own for requests in flight. `None` if the kernel refuses; then
/// several channels share `fd`.
pub(super) fn clone_device(fd: &OwnedFd) -> Option<OwnedFd> {
    let other = open_device().ok()?;
    let mut number = fd.as_raw_fd() as u32;
    // SAFETY: the request reads the number behind the address, which is that of an open descriptor.
    let ret = unsafe { libc::ioctl(other.as_raw_fd(), FUSE_DEV_IOC_CLONE as _, &raw mut number) };
    (ret >= 0).then_some(other)
}

/// Detaches mounts of daemons that were killed.
fn detach_stale(at: &Path) -> Result<()> {
    for _ in 0..STALE_MAX {
        if !matches!(look(at), Ok(MountpointState::Stale)) {
            return Ok(());
        }
        let ctx = || format!("cannot detach a killed daemon's mount from '{}'", at.display());
        match rustix::mount::unmount(at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::PERM) if unmount_by_helper(at) => {}
            Err(e) => return Err(Error::os(e.into(), ctx())),
        }
    }
    Ok(())
}

/// Unmounts by fusermount3. Returns whether that succeeded.
fn unmount_by_helper(at: &Path) -> bool {
    let mut helper = Command::new("fusermount3");
    helper.args(["-u", "-z", "--"]).arg(at).stdin(Stdio::null()).output().is_ok_and(|done| done.status.success())
}

impl Mount {
    /// Unmounts if the file is not open, which writes back the page cache. Returns the mount if the file is open.
    pub(super) fn undo_if_idle(mut self) -> Option<Mount> {
        if self.by_helper {
            return None;
        }
        self.is_undone = !self.is_there() || rustix::mount::unmount(&self.at, UnmountFlags::NOFOLLOW).is_ok();
        (!self.is_undone).then_some(self)
    }

    /// Returns whether the mount is there but no daemon serves it, as after an abort.
    pub(super) fn is_stale(&self) -> bool {
        matches!(look(&self.at), Ok(MountpointState::Stale))
    }

    /// Forgets the mount, because another process has unmounted it.
    pub(super) fn forget(mut self) {
        self.is_undone = true;
    }

    /// Returns whether this is the topmost mount at its path. Another process's mount there is not touched.
    fn is_there(&self) -> bool {
        self.device.is_some() && fuse_device(&self.at) == self.device
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_undone || !self.is_there() {
            return;
        }
        if self.by_helper {
            unmount_by_helper(&self.at);
        } else {
            // Without force the connection lasts until the last copy of a /dev/fuse descriptor is closed. A forked process may hold that
            // copy: it closes the copy in exec, but first waits for an answer from this mount.
            let how = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            if rustix::mount::unmount(&self.at, how).is_err() {
                // The root user of a container may not use force.
                let _ = rustix::mount::unmount(&self.at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
            }
        }
    }
}

/// Returns whether the mount of `fd` is gone. Its device number cannot tell, because another mount may have it by now.
pub(super) fn is_unmounted(fd: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags};
    let mut fds = [PollFd::new(fd, PollFlags::empty())];
    let none = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    // POLLERR means that the connection has ended. A read then fails with the reason.
    let has_ended = rustix::event::poll(&mut fds, Some(&none)).is_ok() && fds[0].revents().contains(PollFlags::ERR);
    has_ended && rustix::io::read(fd, &mut vec![0; super::wire::WRITE_HEAD + MAX_DATA][..]) == Err(Errno::NODEV)
}

/// Waits until the descriptor is readable. Returns false after `seconds`.
pub(super) fn wait_readable(fd: impl AsFd, seconds: i64) -> bool {
    use rustix::event::{PollFd, PollFlags};
    let time = rustix::time::Timespec { tv_sec: seconds, tv_nsec: 0 };
    loop {
        match rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&time)) {
            Err(Errno::INTR) => {}
            other => return other.is_ok_and(|n| n > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_mounts_are_unescaped() {
        let of = |field: &[u8]| unescaped(field).into_os_string().into_vec();
        assert_eq!(of(b"/a\\040b\\134c"), b"/a b\\c");
        assert_eq!(of(b"/a\\04"), b"/a\\04");
        assert_eq!(of(b"\\999\\"), b"\\999\\");
    }

    #[test]
    fn a_file_is_a_file_and_a_directory_is_not() {
        let file = std::env::temp_dir().join(format!("mqblk-fuse-look-{}", std::process::id()));
        fs::write(&file, []).unwrap();
        assert_eq!(look(&file).unwrap(), MountpointState::File);
        assert_eq!(look(&std::env::temp_dir()).unwrap(), MountpointState::Other);
        fs::remove_file(&file).unwrap();
        assert_eq!(look(&file).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(fuse_device(Path::new("/")), None);
    }
}
