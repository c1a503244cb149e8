// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel counts for a thread or the process: processor time, context switches, page faults; and pinning.

use crate::error::{Error, Result};
use std::mem::MaybeUninit;
use workload::stats::CpuUse;

/// Whose resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageScope {
    /// The calling thread.
    Thread,
    /// All threads of the process, ended ones included.
    Process,
}

/// Resources used so far.
pub fn usage(scope: UsageScope) -> CpuUse {
    let which = match scope {
        UsageScope::Thread => libc::RUSAGE_THREAD,
        UsageScope::Process => libc::RUSAGE_SELF,
    };
    let mut ru = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `ru` is a live, writable rusage; all bit patterns of it are valid, so it is initialised either way.
    let ru = unsafe {
        libc::getrusage(which, ru.as_mut_ptr());
        ru.assume_init()
    };
    let ns = |t: libc::timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1_000;
    CpuUse {
        usr_ns: ns(ru.ru_utime),
        sys_ns: ns(ru.ru_stime),
        ctx: (ru.ru_nvcsw + ru.ru_nivcsw) as u64,
        majf: ru.ru_majflt as u64,
        minf: ru.ru_minflt as u64,
    }
}

/// `now - before`, field by field.
pub fn since(now: CpuUse, before: CpuUse) -> CpuUse {
    CpuUse {
        usr_ns: now.usr_ns - before.usr_ns,
        sys_ns: now.sys_ns - before.sys_ns,
        ctx: now.ctx - before.ctx,
        majf: now.majf - before.majf,
        minf: now.minf - before.minf,
    }
}

/// Lets the calling thread run on `cpus` only.
pub fn pin_thread(cpus: &[u32]) -> Result<()> {
    let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: an all-zero cpu_set_t is the empty set; CPU_SET is given numbers below its capacity only, and the call
    // reads exactly the size passed.
    let failed = unsafe {
        let set = set.assume_init_mut();
        for cpu in cpus.iter().filter(|c| **c < libc::CPU_SETSIZE as u32) {
            libc::CPU_SET(*cpu as usize, set);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) != 0
    };
    if failed {
        let text = format!("cpus_allowed={cpus:?}: must name CPUs of this host that this process may use");
        return Err(Error::os(std::io::Error::last_os_error(), text));
    }
    Ok(())
}

/// CPUs this process may use.
pub fn nr_cpus() -> u16 {
    std::thread::available_parallelism().map_or(1, |n| n.get().min(blk::id::MAX_CPUS as usize) as u16)
}

/// The CPUs this process may use, rising; never empty.
pub fn allowed_cpus() -> Vec<u32> {
    let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: the kernel writes at most the size passed into a live set, of which all bit patterns are valid; CPU_ISSET is
    // given numbers below its capacity only.
    let cpus: Vec<u32> = unsafe {
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr());
        let set = set.assume_init_ref();
        (0..libc::CPU_SETSIZE as u32).filter(|cpu| libc::CPU_ISSET(*cpu as usize, set)).collect()
    };
    // A host with more CPUs than the set holds refuses the call.
    if cpus.is_empty() { (0..u32::from(nr_cpus())).collect() } else { cpus }
}

/// Raises the limit of open files to what the process may have. The usual limit of 1024 is for programs that use select(2), and many
/// jobs on many CPUs need more. Best effort: with less, what cannot be opened fails with its own message.
pub fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Bytes of a memory page of this machine.
pub fn page_bytes() -> u64 {
    // SAFETY: no pointers; a name the system does not know gives -1.
    let n = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(n).unwrap_or(4096)
}
