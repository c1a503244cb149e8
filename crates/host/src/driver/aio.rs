// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How file I/O enters the kernel: through io_uring, or by system calls of a pool of threads.
//!
//! Guarantees: io_uring is used if the process may use it. Otherwise threads are used, with a warning that names the reason and the remedy,
//! unless io_uring was asked for.
//!
//! Source: io_uring_setup(2), and `kernel.io_uring_disabled` in the kernel's sysctl documentation; QEMU's `aio=` for the names.

use crate::error::{Error, ErrorKind, Result};
use io_uring::IoUring;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// How the I/O of files is issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aio {
    /// By io_uring.
    IoUring,
    /// By a pool of threads, whose system calls block.
    Threads,
}

impl Aio {
    /// Both.
    pub const ALL: [Aio; 2] = [Aio::IoUring, Aio::Threads];

    /// Returns what is used if nothing is configured. Asks the kernel.
    pub fn possible() -> Aio {
        if refusal().is_some() { Aio::Threads } else { Aio::IoUring }
    }

    /// Returns what holds for several files together: threads, if any of them uses threads; `None`: there is no file.
    pub fn of_all(used: impl Iterator<Item = Aio>) -> Option<Aio> {
        used.reduce(|all, aio| if aio == Aio::Threads { aio } else { all })
    }

    /// Returns QEMU's name.
    pub fn name(self) -> &'static str {
        match self {
            Aio::IoUring => "io_uring",
            Aio::Threads => "threads",
        }
    }
}

/// Returns why this process may not use io_uring, with the remedy; `None`: it may. The kernel is asked each time, because a change of the
/// user may change the answer.
pub fn refused() -> Option<String> {
    refusal().map(|e| explain(&e))
}

fn refusal() -> Option<io::Error> {
    let ring: io::Result<IoUring> = IoUring::builder().dontfork().build(1);
    ring.err().filter(is_refusal)
}

/// Checks that a process whose user asks for io_uring may use it.
///
/// # Errors
/// Denied, with the remedy.
pub(crate) fn check_io_uring() -> Result<()> {
    let Some(e) = refusal() else { return Ok(()) };
    let text = format!("aio=io_uring: not available ({e}); leave aio out, or {}", remedy(&e));
    Err(Error::new(ErrorKind::Denied, text))
}

/// Whether an error means that this process may not use io_uring: not permitted by a seccomp profile, a sysctl or a security module, or not
/// in this kernel. A lack of memory is an error like others.
fn is_refusal(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS))
}

/// Returns the text of a warning after io_uring was refused with `e`.
pub(super) fn explain(e: &io::Error) -> String {
    format!(
        "io_uring is not available ({e}): file I/O uses threads (aio=threads), which costs more CPU time per I/O; {}",
        remedy(e)
    )
}

/// Returns the text of a ring that failed with `e`, with the remedy.
pub(super) fn failed(e: &io::Error) -> String {
    let remedy = match e.raw_os_error() {
        // Before Linux 5.12, rings count as locked memory.
        Some(libc::ENOMEM) => "free memory, raise the limit of locked memory (ulimit -l), or set aio=threads",
        _ if is_refusal(e) => remedy(e),
        _ => return format!("io_uring: {e}"),
    };
    format!("io_uring: {e}; {remedy}")
}

fn remedy(e: &io::Error) -> &'static str {
    match e.raw_os_error() {
        Some(libc::ENOSYS) => "use a kernel, or a container runtime, that has io_uring",
        _ => {
            "set kernel.io_uring_disabled=0, and allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp \
             profile of the container"
        }
    }
}

/// What a driver uses: the choice of its user, or what is possible.
#[derive(Debug)]
pub(super) struct Choice {
    /// The user wants io_uring and nothing else.
    insists: bool,
    threads: AtomicBool,
}

impl Choice {
    /// Finds out what is possible, if `wanted` leaves that open. Also returns a warning if that is not io_uring.
    ///
    /// # Errors
    /// Denied: io_uring is wanted and not possible.
    pub(super) fn new(wanted: Option<Aio>) -> Result<(Choice, Option<String>)> {
        let insists = wanted == Some(Aio::IoUring);
        if insists {
            check_io_uring()?;
        }
        let refused = if wanted == Some(Aio::Threads) { None } else { refusal() };
        let threads = wanted == Some(Aio::Threads) || refused.is_some();
        Ok((Choice { insists, threads: AtomicBool::new(threads) }, refused.map(|e| explain(&e))))
    }

    /// Returns what new engines use.
    pub(super) fn now(&self) -> Aio {
        // Relaxed: nothing else is read because of it.
        if self.threads.load(Ordering::Relaxed) { Aio::Threads } else { Aio::IoUring }
    }

    /// Chooses threads after a ring failed with `e`. Returns false if that is no reason.
    pub(super) fn fall_back(&self, e: &io::Error) -> bool {
        let may = !self.insists && is_refusal(e);
        if may {
            self.threads.store(true, Ordering::Relaxed);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_refusals_of_io_uring_fall_back_to_threads() {
        let error = |errno| io::Error::from_raw_os_error(errno);
        for errno in [libc::EPERM, libc::EACCES, libc::ENOSYS] {
            let choice = |insists| Choice { insists, threads: AtomicBool::new(false) };
            let only_ring = choice(true);
            assert!(!only_ring.fall_back(&error(errno)) && only_ring.now() == Aio::IoUring, "{errno}");
            let open = choice(false);
            assert!(open.fall_back(&error(errno)) && open.now() == Aio::Threads, "{errno}");
            assert!(explain(&error(errno)).contains("aio=threads"));
        }
        let open = Choice { insists: false, threads: AtomicBool::new(false) };
        assert!(!open.fall_back(&error(libc::ENOMEM)) && open.now() == Aio::IoUring);
        assert_eq!(Choice::new(Some(Aio::Threads)).unwrap().0.now(), Aio::Threads);
    }
}
