// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a daemon gives up, so that a client that takes it over gains less: powers of programs that it starts, and its memory in files.
//!
//! Guarantees: [`Confinement::in_effect`] is what the kernel reports, not what was asked for. Needs from callers: the functions for one
//! thread are called before the first other thread starts, because later threads inherit the state. Does not do: change the user
//! ([`privileges`](crate::privileges)), filter system calls ([`sandbox`](crate::sandbox)).
//!
//! Source: prctl(2), capabilities(7), proc_pid_status(5), Linux Documentation/userspace-api/no_new_privs.rst.

use crate::error::{Error, Result};
use rustix::io::Errno;
use rustix::process::DumpableBehavior;
use rustix::thread::{self, CapabilitySet};
use std::fs;

/// More capabilities than any kernel has.
const CAPABILITIES: u32 = 64;

/// The state of this process, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// No program that this process starts gains powers (PR_SET_NO_NEW_PRIVS).
    pub no_new_privs: bool,
    /// The kernel writes core dumps of this process (PR_SET_DUMPABLE).
    pub dumpable: bool,
    /// Capabilities of this process, as a mask.
    pub capabilities: u64,
    /// Capabilities that a program could gain, as a mask.
    pub bounding_set: u64,
    /// Capabilities that a program inherits, as a mask: inheritable and ambient ones.
    pub inherited: u64,
    /// The threads whose system calls the kernel filters (seccomp), for this process or the one that started it.
    pub filtered_threads: FilteredThreads,
}

/// How many threads have filters of system calls. Numbers would change whenever a thread starts or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum FilteredThreads {
    NoThread,
    SomeThreads,
    AllThreads,
}

impl FilteredThreads {
    /// Returns `none`, `some` or `all`.
    pub const fn name(self) -> &'static str {
        match self {
            FilteredThreads::NoThread => "none",
            FilteredThreads::SomeThreads => "some",
            FilteredThreads::AllThreads => "all",
        }
    }
}

impl Confinement {
    /// Returns the state of this process.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn in_effect() -> Result<Confinement> {
        let status = fs::read_to_string("/proc/self/status").map_err(|e| Error::os(e, "/proc/self/status"))?;
        // Ambient capabilities came with Linux 4.3.
        let mask = |key: &str| u64::from_str_radix(field(&status, key), 16).unwrap_or_default();
        let dumpable = rustix::process::dumpable_behavior().map_err(|e| Error::os(e.into(), "PR_GET_DUMPABLE"))?;
        Ok(Confinement {
            no_new_privs: field(&status, "NoNewPrivs:") == "1",
            dumpable: dumpable != DumpableBehavior::NotDumpable,
            capabilities: mask("CapPrm:"),
            bounding_set: mask("CapBnd:"),
            inherited: mask("CapInh:") | mask("CapAmb:"),
            filtered_threads: filtered_threads()?,
        })
    }
}

/// Returns a field of a status file in /proc; empty if there is none.
fn field<'a>(status: &'a str, key: &str) -> &'a str {
    status.lines().find_map(|l| l.strip_prefix(key)).map(str::trim).unwrap_or_default()
}

/// Reads the status of each thread of this process.
fn filtered_threads() -> Result<FilteredThreads> {
    let failed = |e| Error::os(e, "/proc/self/task");
    let (mut any, mut all) = (false, true);
    for task in fs::read_dir("/proc/self/task").map_err(failed)? {
        // A thread may have ended meanwhile.
        let Ok(status) = fs::read_to_string(task.map_err(failed)?.path().join("status")) else { continue };
        // The kernel's own workers make no system calls.
        if !field(&status, "Name:").starts_with("iou-") {
            let is_filtered = field(&status, "Seccomp:") == "2";
            any |= is_filtered;
            all &= is_filtered;
        }
    }
    Ok(match (any, all) {
        (false, _) => FilteredThreads::NoThread,
        (true, false) => FilteredThreads::SomeThreads,
        (true, true) => FilteredThreads::AllThreads,
    })
}

/// Programs that this process starts gain no privileges, not even set-uid ones. Call it before the first other thread starts.
///
/// # Errors
/// Those of the system.
pub fn no_new_privs() -> Result<()> {
    thread::set_no_new_privs(true).map_err(|e| Error::os(e.into(), "PR_SET_NO_NEW_PRIVS"))
}

/// Empties the bounding set and the inheritable and ambient capabilities, so that no program that is started from here has any. This
/// process keeps its own. Call it before the first other thread starts.
///
/// Returns whether the bounding set is empty: without CAP_SETPCAP it stays as it is, and only the others are emptied.
///
/// # Errors
/// Those of the system.
pub fn empty_bounding_set() -> Result<bool> {
    let failed = |what: &'static str| move |e: Errno| Error::os(e.into(), what);
    // Kernels before 4.3 have no ambient set.
    match thread::clear_ambient_capability_set() {
        Ok(()) | Err(Errno::INVAL) => {}
        Err(e) => return Err(failed("PR_CAP_AMBIENT_CLEAR_ALL")(e)),
    }
    let mut own = thread::capabilities(None).map_err(failed("capget"))?;
    own.inheritable = CapabilitySet::empty();
    thread::set_capabilities(None, own).map_err(failed("capset"))?;
    for n in 0..CAPABILITIES {
        let one = CapabilitySet::from_bits_retain(1 << n);
        match thread::capability_is_in_bounding_set(one) {
            Ok(true) => {}
            Ok(false) => continue,
            // The kernel has no capability of this number.
            Err(Errno::INVAL) => break,
            Err(e) => return Err(failed("PR_CAPBSET_READ")(e)),
        }
        match thread::remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            Err(Errno::PERM) => return Ok(false),
            Err(e) => return Err(failed("PR_CAPBSET_DROP")(e)),
        }
    }
    Ok(true)
}

/// Sets whether the kernel writes core dumps of this process, and whether other processes of its user may read its memory. Applies to all
/// threads. A change of the user resets it.
///
/// # Errors
/// Those of the system.
pub fn set_dumpable(is_dumpable: bool) -> Result<()> {
    let behavior = if is_dumpable { DumpableBehavior::Dumpable } else { DumpableBehavior::NotDumpable };
    rustix::process::set_dumpable_behavior(behavior).map_err(|e| Error::os(e.into(), "PR_SET_DUMPABLE"))
}
