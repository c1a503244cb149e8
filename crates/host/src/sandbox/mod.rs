// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Filters of system calls (seccomp), so that a client that takes over a daemon can do less on its host.
//!
//! [`begin`] is for all threads. A thread that clients talk to, or that serves their requests, enters a role that is denied more, and cannot
//! use paths (`paths`). Threads of the control socket enter none, because they open what clients name.
//!
//! Guarantees: a denied call fails with EPERM, and so do those of threads that start later. Nothing undoes a filter. A call of another
//! architecture (32-bit code) kills the process. In programs that do not call [`begin`], no thread is filtered. Needs from callers:
//! [`begin`] is called before the first other thread starts, because a filter is of one thread and of those that it starts. Does not:
//! filter what io_uring does for the thread, except for paths and TCP; know system calls that are newer than its lists.
//!
//! Source: seccomp(2), Linux Documentation/userspace-api/seccomp_filter.rst.

mod calls;
mod paths;

use crate::error::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use std::sync::atomic::{AtomicBool, Ordering};

/// What a thread of a daemon is for. Each is denied more than [`Role::Any`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Anything: opens disks, mounts, answers control commands.
    Any,
    /// Serves requests. Files and connections are opened by other threads.
    IoThread,
    /// Accepts clients and handles their messages until an IOThread has their requests, or answers from memory.
    Clients,
    /// As [`Role::Clients`], and reads certificates.
    TlsClients,
}

/// Whether threads with a role confine themselves.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Whether all threads with a role are denied paths, by Landlock; `None` = there was no such thread yet.
static PATHS_DENIED: Mutex<Option<bool>> = Mutex::new(None);

/// Denies what no thread of a daemon needs, to the calling thread and all that it starts: other programs, other processes, modules, keys,
/// namespaces and settings of the host. Sets no_new_privs. With `only_roles`, only threads with a role are denied anything, and other
/// threads can still start programs, with their powers.
///
/// # Errors
/// Resource: the kernel has no filters, or takes none from this process; there is none for this architecture.
pub fn begin(only_roles: bool) -> Result<()> {
    if !only_roles {
        confine(Role::Any)?;
    }
    // Relaxed: threads that start later see it.
    IS_USED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Denies the calling thread, and those that it starts, what the role does not need, if [`begin`] was called. Logs a failure; the thread
/// can do more then.
pub fn enter(role: Role) {
    // Relaxed: it was set before this thread started.
    if !IS_USED.load(Ordering::Relaxed) {
        return;
    }
    let name = || std::thread::current().name().unwrap_or_default().to_owned();
    let is_denied = paths::deny(role).unwrap_or_else(|e| {
        log::warn!("cannot restrict files: {e}; thread '{}' can use all files by path", name());
        false
    });
    let mut all = PATHS_DENIED.lock();
    *all = Some(is_denied && *all != Some(false));
    drop(all);
    if let Err(e) = confine(role) {
        log::warn!("{e}; thread '{}' is denied only the system calls that all threads are denied", name());
    }
}

/// Whether all threads that entered a role are denied paths. The kernel does not report that.
pub fn denies_paths() -> bool {
    *PATHS_DENIED.lock() == Some(true)
}

fn confine(role: Role) -> Result<()> {
    filter_calls(role).map_err(|e| Error::new(ErrorKind::Resource, format!("cannot filter system calls: {e}")))
}

fn filter_calls(role: Role) -> seccompiler::Result<()> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    let deny = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(calls::denied(role)?, SeccompAction::Allow, deny, architecture)?;
    seccompiler::apply_filter(&BpfProgram::try_from(filter)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::confinement::{Confinement, FilteredThreads};
    use std::fs::{self, File, OpenOptions};
    use std::io;
    use std::os::unix::fs::FileExt;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::PathBuf;
    use std::process::Command;

    /// A file of a test, and its path.
    pub(super) fn file(test: &str) -> (File, PathBuf) {
        let path = std::env::temp_dir().join(format!("mqblk-sandbox-{test}-{}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        (file, path)
    }

    /// Runs checks in a role, on a thread of their own, because nothing undoes a filter.
    fn in_role(role: Role, check: impl FnOnce() + Send + 'static) {
        let run = move || {
            confine(role).unwrap();
            check();
        };
        std::thread::spawn(run).join().unwrap();
    }

    #[track_caller]
    fn is_denied<T>(result: io::Result<T>) {
        assert_eq!(result.err().and_then(|e| e.raw_os_error()), Some(libc::EPERM));
    }

    /// Each of these succeeds without a filter, as long as root runs the tests.
    fn check_denied_by_all() {
        is_denied(Command::new("true").status());
        is_denied(rustix::process::chroot("/").map_err(io::Error::from));
    }

    /// What threads with any role do.
    fn check_allowed_by_all(file: &File) {
        file.write_all_at(b"abc", 1).unwrap();
        let mut read = [0; 4];
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"\0abc");
        file.set_len(8192).unwrap();
        file.sync_data().unwrap();
        assert!(Vec::<u8>::with_capacity(64 << 20).capacity() >= 64 << 20);
        let event = crate::event::new().unwrap();
        assert!(crate::stuck::is_eventfd(&event) && crate::stuck::signal(&event).is_ok());
        // A thread that it starts has the filter, too.
        std::thread::spawn(check_denied_by_all).join().unwrap();
    }

    #[test]
    fn any_thread_opens_files_and_starts_no_program() {
        let (file, path) = file("any");
        assert!(Command::new("true").status().unwrap().success());
        in_role(Role::Any, move || {
            check_denied_by_all();
            check_allowed_by_all(&file);
            let status = fs::read_to_string("/proc/thread-self/status").unwrap();
            assert!(status.contains("Seccomp:\t2") && status.contains("NoNewPrivs:\t1"), "{status}");
            assert_ne!(Confinement::in_effect().unwrap().filtered_threads, FilteredThreads::NoThread);
            fs::remove_file(path).unwrap();
        });
        assert!(Command::new("true").status().unwrap().success(), "another thread is as before");
    }

    #[test]
    fn an_iothread_serves_and_opens_nothing() {
        let (file, path) = file("iothread");
        let at = path.clone();
        let has_rings = io_uring::IoUring::new(1).is_ok();
        in_role(Role::IoThread, move || {
            check_denied_by_all();
            check_allowed_by_all(&file);
            assert_eq!(io_uring::IoUring::new(1).is_ok(), has_rings);
            is_denied(File::open("/dev/null"));
            is_denied(File::create(at.with_extension("new")));
            is_denied(fs::remove_file(&at));
            is_denied(fs::rename(&at, at.with_extension("new")));
            is_denied(fs::set_permissions(&at, file.metadata().unwrap().permissions()));
            is_denied(UnixStream::connect(&at));
            is_denied(UnixListener::bind(at.with_extension("sock")));
        });
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn listeners_accept_clients_and_connect_to_none() {
        for (role, may_read) in [(Role::Clients, false), (Role::TlsClients, true)] {
            let (file, path) = file(&format!("{role:?}"));
            let at = path.with_extension("sock");
            let listener = UnixListener::bind(&at).unwrap();
            let _client = UnixStream::connect(&at).unwrap();
            let image = path.clone();
            in_role(role, move || {
                check_denied_by_all();
                check_allowed_by_all(&file);
                listener.accept().unwrap();
                is_denied(UnixStream::connect(&at));
                is_denied(fs::remove_file(&at));
                is_denied(OpenOptions::new().write(true).open(&image));
                is_denied(OpenOptions::new().read(true).write(true).open(&image));
                is_denied(File::create(image.with_extension("new")));
                if may_read {
                    fs::read(&image).unwrap();
                } else {
                    is_denied(File::open(&image));
                }
            });
            fs::remove_file(path.with_extension("sock")).unwrap();
            fs::remove_file(path).unwrap();
        }
    }
}
