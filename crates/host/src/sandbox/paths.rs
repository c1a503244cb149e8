// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Denies threads the paths of files, and TCP connections (Landlock).
//!
//! Guarantees: files that are open already are used as before, also by io_uring. Opening others is denied, by io_uring too, and so are bind(2)
//! and connect(2) of TCP where the kernel knows that (Linux 6.7). Does not: deny Unix sockets, UDP, or stat(2).
//!
//! Source: landlock(7), Linux Documentation/userspace-api/landlock.rst.

use super::Role;
use landlock::{
    ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus,
    path_beneath_rules,
};

/// What is denied: all that Linux 6.10 can deny. Older kernels deny less.
const KNOWN: ABI = ABI::V5;

/// Denies the calling thread, and those that it starts, all paths that a role does not need. Sets no_new_privs. Returns whether the kernel
/// has Landlock.
pub(super) fn deny(role: Role) -> Result<bool, RulesetError> {
    let rules = Ruleset::default()
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .create()?;
    let rules = match role {
        // Certificates may be links to anywhere, and their directories may be replaced.
        Role::TlsClients => rules.add_rules(path_beneath_rules(["/"], AccessFs::from_read(KNOWN)))?,
        Role::Any | Role::IoThread | Role::Clients => rules,
    };
    Ok(rules.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::tests::file;
    use io_uring::{IoUring, opcode, types};
    use std::fs::{self, File, OpenOptions};
    use std::os::unix::fs::FileExt;

    /// Has io_uring open a file for reading. Returns a descriptor or a negative errno.
    #[allow(unsafe_code, reason = "a request of io_uring has a pointer")]
    fn open_by_ring() -> i32 {
        let mut ring = IoUring::new(1).unwrap();
        let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), c"/dev/null".as_ptr());
        // SAFETY: the path is static.
        unsafe { ring.submission().push(&open.flags(libc::O_RDONLY | libc::O_CLOEXEC).build()) }.unwrap();
        ring.submit_and_wait(1).unwrap();
        ring.completion().next().unwrap().result()
    }

    /// On threads of their own, because nothing undoes it. Kernels without Landlock deny nothing.
    #[test]
    fn open_files_stay_usable_and_no_others_are_opened() {
        for (role, may_read) in [(Role::IoThread, false), (Role::Clients, false), (Role::TlsClients, true)] {
            let (file, path) = file(&format!("paths-{role:?}"));
            let image = path.clone();
            let check = move || {
                let is_denied = deny(role).unwrap();
                file.write_all_at(b"abc", 0).unwrap();
                file.set_len(4096).unwrap();
                assert_eq!(file.read_at(&mut [0; 8], 0).unwrap(), 8);
                assert!(crate::stuck::is_eventfd(crate::event::new().unwrap()));
                let reads = [fs::read(&image).is_ok(), open_by_ring() >= 0];
                assert_eq!(reads, [may_read || !is_denied; 2], "{role:?} {is_denied}");
                let write = || OpenOptions::new().write(true).open(&image).is_ok();
                let writes = [write(), File::create(image.with_extension("new")).is_ok()];
                assert_eq!(writes, [!is_denied; 2], "{role:?} {is_denied}");
                // A thread that it starts is denied the same.
                std::thread::scope(|s| assert_eq!(s.spawn(write).join().unwrap(), !is_denied));
            };
            std::thread::spawn(check).join().unwrap();
            let _ = fs::remove_file(path.with_extension("new"));
            fs::remove_file(path).unwrap();
        }
    }
}
