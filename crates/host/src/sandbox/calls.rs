// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The system calls that a daemon denies to itself, by the role of a thread.
//!
//! Guarantees: each call is denied under all numbers that it has on this architecture. What any thread is denied, each role is. Does not:
//! list calls for all threads that need a capability and that an export needs with it, as mount(2) for FUSE; list calls that the C library
//! makes on all threads, as setresuid(2).
//!
//! Source: syscalls(2); Linux arch/x86/entry/syscalls/syscall_64.tbl for x32.

use super::Role;
use seccompiler::{BackendError, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};
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

/// Calls that change files, or the process's view of them, by path or for all openers. openat2(2) is among them because a filter does not
/// see its flags.
const CHANGES: &[i64] = &[
    libc::SYS_openat2,
    libc::SYS_truncate,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_name_to_handle_at,
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_umask,
];

/// fchmodat2(2). It has this number on all architectures, and libc names it on some.
const FCHMODAT2: i64 = 452;

/// As [`CHANGES`], but only this architecture has them.
#[cfg(target_arch = "x86_64")]
const CHANGES_HERE: &[i64] = &[
    libc::SYS_creat,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_unlink,
    libc::SYS_rmdir,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_mkdir,
    libc::SYS_mknod,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
];
/// renameat(2), which libc does not name there.
#[cfg(target_arch = "aarch64")]
const CHANGES_HERE: &[i64] = &[38];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const CHANGES_HERE: &[i64] = &[];

/// Calls that open files, and the number of the argument with their flags.
#[cfg(target_arch = "x86_64")]
const OPENS: &[(i64, u8)] = &[(libc::SYS_openat, 2), (libc::SYS_open, 1)];
#[cfg(not(target_arch = "x86_64"))]
const OPENS: &[(i64, u8)] = &[(libc::SYS_openat, 2)];

/// Calls that make connections, and signals to other processes. tgkill(2) ends the process in abort(3), and wakes threads that hang.
const PEERS: &[i64] = &[
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_kill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
];

const ACCEPTS: &[i64] = &[libc::SYS_accept, libc::SYS_accept4];

/// Marks the number of a call of x32, which a kernel for x86_64 may take from any thread.
const X32: i64 = 0x4000_0000;
/// Calls that have numbers of their own in x32. A program for x86_64 makes none of them.
const X32_OWN: std::ops::RangeInclusive<i64> = 512..=547;

/// Returns the calls that are denied to threads of a role.
pub(super) fn denied(role: Role) -> Result<Calls, BackendError> {
    let lists: &[&[i64]] = match role {
        Role::Any => &[NEVER, NEVER_HERE],
        Role::IoThread => &[NEVER, NEVER_HERE, CHANGES, CHANGES_HERE, PEERS, ACCEPTS],
        Role::Clients | Role::TlsClients => &[NEVER, NEVER_HERE, CHANGES, CHANGES_HERE, PEERS],
    };
    let mut denied: Calls = with_x32(&lists.concat()).map(|call| (call, Vec::new())).collect();
    for (call, flags) in OPENS {
        let rules = match role {
            Role::Any => continue,
            Role::IoThread | Role::Clients => Vec::new(),
            Role::TlsClients => writes(*flags)?,
        };
        denied.insert(call | X32, rules.clone());
        denied.insert(*call, rules);
    }
    Ok(denied)
}

/// Returns rules for calls that open a file to change it. `flags` is the number of the argument.
fn writes(flags: u8) -> Result<Vec<SeccompRule>, BackendError> {
    let all = [
        (libc::O_ACCMODE, libc::O_WRONLY),
        (libc::O_ACCMODE, libc::O_RDWR),
        (libc::O_CREAT, libc::O_CREAT),
        (libc::O_TRUNC, libc::O_TRUNC),
    ];
    let rule = |(mask, value): (i32, i32)| {
        let is = SeccompCmpOp::MaskedEq(mask as u64);
        let condition = SeccompCondition::new(flags, SeccompCmpArgLen::Dword, is, value as u64);
        condition.and_then(|condition| SeccompRule::new(vec![condition]))
    };
    all.into_iter().map(rule).collect()
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
        for role in [Role::Any, Role::IoThread, Role::Clients, Role::TlsClients] {
            let denied = denied(role).unwrap();
            // ptrace has a number of its own there, bpf has not.
            for call in [libc::SYS_ptrace, X32 | 521, libc::SYS_bpf, X32 | libc::SYS_bpf] {
                assert!(denied.contains_key(&call), "{role:?} {call:#x}");
            }
            for call in [libc::SYS_read, libc::SYS_open, libc::SYS_setresuid] {
                let (plain, x32) = (denied.get(&call), denied.get(&(X32 | call)));
                assert_eq!(plain, x32, "{role:?} {call}");
                assert_eq!(plain.is_some(), call == libc::SYS_open && role != Role::Any, "{role:?} {call}");
            }
        }
    }
}
