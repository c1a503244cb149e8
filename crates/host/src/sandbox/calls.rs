// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The system calls that a daemon denies to itself.
//!
//! Guarantees: each call is denied under all numbers that it has on this architecture. Does not: list calls that need a capability and
//! that an export needs with it, as mount(2) for FUSE.
//!
//! Source: syscalls(2); Linux arch/x86/entry/syscalls/syscall_64.tbl for x32.

use seccompiler::SeccompRule;
use std::collections::BTreeMap;

/// Numbers of system calls, with conditions on their arguments; no condition = always.
pub(super) type Calls = BTreeMap<i64, Vec<SeccompRule>>;

/// Calls that no thread of a daemon makes.
const NEVER: &[i64] = &[
    // Other programs. FUSE mounts of users other than root need one, but no filter begins there.
    libc::SYS_execve,
    libc::SYS_execveat,
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    // Parts of the kernel that few programs need, and that had many bugs.
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_perf_event_open,
    libc::SYS_fanotify_init,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_personality,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    // Other roots and namespaces. FUSE mounts of root need mount and umount2.
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_open_by_handle_at,
    // The host as a whole.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
];

/// As [`NEVER`], but only this architecture has them.
#[cfg(target_arch = "x86_64")]
const NEVER_HERE: &[i64] =
    &[libc::SYS_kexec_file_load, libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt, libc::SYS_uselib];
#[cfg(target_arch = "aarch64")]
const NEVER_HERE: &[i64] = &[libc::SYS_kexec_file_load];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const NEVER_HERE: &[i64] = &[];

/// Marks the number of a call of x32, which a kernel for x86_64 may take from any thread.
const X32: i64 = 0x4000_0000;
/// Calls that have numbers of their own in x32. A program for x86_64 makes none of them.
const X32_OWN: std::ops::RangeInclusive<i64> = 512..=547;

/// Returns the calls that are denied to all threads.
pub(super) fn denied() -> Calls {
    with_x32(&[NEVER, NEVER_HERE].concat()).map(|call| (call, Vec::new())).collect()
}

/// Adds the other numbers of the same calls.
fn with_x32(calls: &[i64]) -> impl Iterator<Item = i64> {
    let x32 = calls.iter().copied().chain(X32_OWN).map(|call| call | X32);
    calls.iter().copied().chain(x32.filter(|_| cfg!(target_arch = "x86_64")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn calls_are_denied_under_their_x32_numbers() {
        let denied = denied();
        // ptrace has a number of its own there, bpf has not.
        for call in [libc::SYS_ptrace, X32 | 521, libc::SYS_bpf, X32 | libc::SYS_bpf] {
            assert!(denied.contains_key(&call), "{call:#x}");
        }
        assert!(!denied.contains_key(&libc::SYS_read) && !denied.contains_key(&(X32 | libc::SYS_read)));
    }
}
