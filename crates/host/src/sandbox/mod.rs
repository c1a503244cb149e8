// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Filters of system calls (seccomp), so that a client that takes over a daemon can do less on its host.
//!
//! Guarantees: a denied call fails with EPERM, and so do those of threads that start later. Nothing undoes a filter. A call of another
//! architecture (32-bit code) kills the process. Needs from callers: [`begin`] is called before the first other thread starts, because a
//! filter is of one thread and of those that it starts. Does not: see what io_uring does for the thread, or know system calls that are
//! newer than its lists.
//!
//! Source: seccomp(2), Linux Documentation/userspace-api/seccomp_filter.rst.

mod calls;

use crate::error::{Error, ErrorKind, Result};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

/// Denies what no thread of a daemon needs, to the calling thread and all that it starts: other programs, other processes, modules, keys,
/// namespaces and settings of the host. Sets no_new_privs.
///
/// # Errors
/// Resource: the kernel has no filters, or takes none from this process; there is none for this architecture.
pub fn begin() -> Result<()> {
    filter_calls().map_err(|e| Error::new(ErrorKind::Resource, format!("cannot filter system calls: {e}")))
}

fn filter_calls() -> seccompiler::Result<()> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    let deny = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(calls::denied(), SeccompAction::Allow, deny, architecture)?;
    seccompiler::apply_filter(&BpfProgram::try_from(filter)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::confinement::{Confinement, FilteredThreads};
    use std::fs::{self, File};
    use std::process::Command;

    /// Each of these succeeds without a filter, as long as root runs the tests.
    fn check_denied_by_all() {
        let denied = Some(libc::EPERM);
        assert_eq!(Command::new("true").status().unwrap_err().raw_os_error(), denied);
        assert_eq!(rustix::process::chroot("/"), Err(rustix::io::Errno::PERM));
    }

    #[test]
    fn denied_calls_fail_and_others_continue() {
        // A filter is for ever, so it gets a thread of its own.
        let confined = std::thread::spawn(|| {
            assert!(Command::new("true").status().unwrap().success());
            begin().unwrap();
            check_denied_by_all();
            // A thread that it starts has the filter, too.
            std::thread::spawn(check_denied_by_all).join().unwrap();
            let status = fs::read_to_string("/proc/thread-self/status").unwrap();
            assert!(status.contains("Seccomp:\t2") && status.contains("NoNewPrivs:\t1"), "{status}");
            assert_ne!(Confinement::in_effect().unwrap().filtered_threads, FilteredThreads::NoThread);
            File::open("/dev/null").unwrap();
        });
        confined.join().unwrap();
        assert!(Command::new("true").status().unwrap().success(), "another thread is as before");
    }
}
