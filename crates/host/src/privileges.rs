// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Giving up root once everything that needs it is open.
//!
//! Guarantees: [`Account::assume`] changes every thread of the process or fails. Afterwards no thread has a capability, inherits one to
//! programs, or has another user, and there is no way back; this is checked in what the kernel reports. Needs from callers: a failure
//! ends the process, because some of the changes may have happened; [`confinement`](crate::confinement) has emptied what programs
//! inherit. Does not do: filter system calls.
//!
//! Source: setresuid(2), setgroups(2) with nptl(7): the C library's functions change all threads, the system calls one.

use crate::error::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long threads that have returned may take to end.
const THREAD_EXIT: Duration = Duration::from_secs(10);
/// Time between two checks of the threads.
const THREAD_CHECK: Duration = Duration::from_millis(1);
/// Room for an entry of the account database.
const ENTRY_BYTES: usize = 64 << 10;
/// Maximum number of groups of an account, as the kernel has it (`NGROUPS_MAX`).
const GROUPS_MAX: usize = 65_536;

/// The user to become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// As it was typed.
    pub name: String,
    /// Number of the user.
    pub uid: u32,
    /// Number of the group.
    pub gid: u32,
    /// Further groups.
    groups: Vec<u32>,
}

impl Account {
    /// `USER[:GROUP]`, names or numbers; without a group, that of the user.
    ///
    /// # Errors
    /// Usage: there is no such user or group, or it is root.
    pub fn find(text: &str) -> Result<Account> {
        let (user, group) = text.split_once(':').map_or((text, None), |(u, g)| (u, Some(g)));
        let entry = user_by_name(user)?;
        let number = user.parse::<u32>().ok();
        let refuse = |what: String| Err(Error::usage(format!("--user {text}: {what}")));
        let gid = match (group, &entry) {
            (Some(group), _) => match (group_by_name(group)?, group.parse()) {
                (Some(gid), _) | (None, Ok(gid)) => gid,
                (None, Err(_)) => return refuse(format!("there is no group '{group}'")),
            },
            (None, Some((_, gid))) => *gid,
            (None, None) if number.is_some() => {
                return refuse("a numeric user ID needs a group: --user UID:GID".to_owned());
            }
            (None, None) => return refuse(format!("there is no user '{user}'")),
        };
        let uid = match (&entry, number) {
            (Some((uid, _)), _) => *uid,
            (None, Some(uid)) => uid,
            (None, None) => return refuse(format!("there is no user '{user}'")),
        };
        if uid == 0 || gid == 0 || uid == u32::MAX || gid == u32::MAX {
            return refuse("is root or not a valid ID; name a dedicated account".to_owned());
        }
        let groups = if entry.is_some() { groups_of(user, gid) } else { vec![gid] };
        if groups.contains(&0) {
            return refuse("is in root's group; name an account that is not in it".to_owned());
        }
        Ok(Account { name: text.to_owned(), uid, gid, groups })
    }

    /// Whether this process may become it.
    ///
    /// # Errors
    /// Denied: only root may.
    pub fn check_permitted(&self) -> Result<()> {
        match rustix::process::geteuid().is_root() {
            true => Ok(()),
            false => {
                let text = format!("--user {}: only root can become another user; leave it out", self.name);
                Err(Error::new(ErrorKind::Denied, text))
            }
        }
    }

    /// Makes a socket or directory of this process's user the account's.
    ///
    /// # Errors
    /// Denied: something else is at the path by now, as a user with write access to the directory can arrange: a link, another's socket, a
    /// second name of a file elsewhere. Others: as of the system.
    pub fn give(&self, path: &Path) -> Result<()> {
        let failed =
            |e: rustix::io::Errno| Error::os(e.into(), format!("cannot give '{}' to '{}'", path.display(), self.name));
        // The file that is checked is the one that is given: the path may name another one the next moment.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let there = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
        let is = rustix::fs::fstat(&there).map_err(failed)?;
        let fits = match FileType::from_raw_mode(is.st_mode) {
            FileType::Socket => is.st_nlink == 1,
            FileType::Directory => true,
            _ => false,
        };
        if !fits || is.st_uid != rustix::process::geteuid().as_raw() {
            let text = format!(
                "cannot give '{}' to '{}': it is not the file that this process created there; use a directory that \
                 only root can write to",
                path.display(),
                self.name
            );
            return Err(Error::new(ErrorKind::Denied, text));
        }
        let (user, group) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        rustix::fs::chownat(&there, "", Some(user), Some(group), AtFlags::EMPTY_PATH).map_err(failed)
    }

    /// Has the whole process be this account from now on. There is no way back.
    ///
    /// # Errors
    /// It is not, or not all of it is. The process must end then.
    pub fn assume(&self) -> Result<()> {
        let failed = |what: &str| Error::last_os(format!("cannot become '{}': {what}", self.name));
        // SAFETY: pointer and length are those of `groups`.
        if unsafe { libc::setgroups(self.groups.len(), self.groups.as_ptr()) } != 0 {
            return Err(failed("setgroups"));
        }
        // SAFETY: only numbers are passed.
        if unsafe { libc::setresgid(self.gid, self.gid, self.gid) } != 0 {
            return Err(failed("setresgid"));
        }
        // SAFETY: only numbers are passed.
        if unsafe { libc::setresuid(self.uid, self.uid, self.uid) } != 0 {
            return Err(failed("setresuid"));
        }
        // SAFETY: only numbers are passed. It must fail.
        if unsafe { libc::setresuid(0, 0, 0) } == 0 {
            return Err(Error::usage(format!(
                "switched to user '{}', but this process can still become root",
                self.name
            )));
        }
        self.check_threads()
    }

    /// Checks each thread as the kernel shows it. A thread that has returned keeps its IDs until the kernel has removed it, because the C
    /// library no longer changes them; such threads are waited for.
    fn check_threads(&self) -> Result<()> {
        let end = Instant::now() + THREAD_EXIT;
        while let Some(name) = self.other_thread()? {
            if Instant::now() > end {
                let user = &self.name;
                let text = format!("cannot become user '{user}': thread '{name}' still has other IDs or capabilities");
                return Err(Error::usage(text));
            }
            std::thread::sleep(THREAD_CHECK);
        }
        Ok(())
    }

    /// Returns the name of a thread that has other IDs than the account's, or any capability.
    fn other_thread(&self) -> Result<Option<String>> {
        let failed = |e| Error::os(e, "cannot read the threads of this process");
        for task in fs::read_dir("/proc/self/task").map_err(failed)? {
            let Some(status) = status_of(&task.map_err(failed)?.path()).map_err(failed)? else { continue };
            let name = field(&status, "Name:").unwrap_or_default();
            // Workers of the kernel's own; they act for the submitter of their work.
            if name.starts_with("iou-") {
                continue;
            }
            let all = |key: &str, wanted: u32| {
                field(&status, key).is_some_and(|v| v.split_whitespace().all(|n| n.parse() == Ok(wanted)))
            };
            let is_none = |v: &str| v.trim().chars().all(|c| c == '0');
            let own = ["CapEff:", "CapPrm:", "CapInh:"].iter().all(|key| field(&status, key).is_some_and(is_none));
            // Kernels before 4.3 have no ambient set.
            let no_powers = own && field(&status, "CapAmb:").is_none_or(is_none);
            if !all("Uid:", self.uid) || !all("Gid:", self.gid) || !no_powers {
                return Ok(Some(name.trim().to_owned()));
            }
        }
        Ok(None)
    }
}

/// What the kernel shows of a thread; none of one that has ended. One that cannot be read might belong to any user.
fn status_of(task: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(task.join("status")) {
        Ok(status) => Ok(Some(status)),
        Err(e) if e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(e) => Err(e),
    }
}

fn field<'a>(status: &'a str, key: &str) -> Option<&'a str> {
    status.lines().find_map(|l| l.strip_prefix(key)).map(str::trim)
}

/// Returns the effective user. /proc/self is no place to look: it belongs to root while this process is not dumpable.
pub fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether this process may write to the directory of a path.
pub fn may_remove(path: &Path) -> bool {
    let directory = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    rustix::fs::access(directory, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK).is_ok()
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::usage("--user: a name must not contain a zero byte"))
}

/// Number and group of a user.
fn user_by_name(name: &str) -> Result<Option<(u32, u32)>> {
    let name = c_string(name)?;
    let mut entry = MaybeUninit::<libc::passwd>::zeroed();
    let mut found = std::ptr::null_mut();
    let mut room = vec![0; ENTRY_BYTES];
    // SAFETY: all pointers are valid, and the length is that of `room`; `found` is null or `entry`, which is initialised then.
    let entry = unsafe {
        let failed = libc::getpwnam_r(name.as_ptr(), entry.as_mut_ptr(), room.as_mut_ptr(), room.len(), &raw mut found);
        lookup(failed)?;
        (!found.is_null()).then(|| entry.assume_init())
    };
    Ok(entry.map(|e| (e.pw_uid, e.pw_gid)))
}

/// Number of a group.
fn group_by_name(name: &str) -> Result<Option<u32>> {
    let name = c_string(name)?;
    let mut entry = MaybeUninit::<libc::group>::zeroed();
    let mut found = std::ptr::null_mut();
    let mut room = vec![0; ENTRY_BYTES];
    // SAFETY: all pointers are valid, and the length is that of `room`; `found` is null or `entry`, which is initialised then.
    let entry = unsafe {
        let failed = libc::getgrnam_r(name.as_ptr(), entry.as_mut_ptr(), room.as_mut_ptr(), room.len(), &raw mut found);
        lookup(failed)?;
        (!found.is_null()).then(|| entry.assume_init())
    };
    Ok(entry.map(|e| e.gr_gid))
}

fn lookup(failed: i32) -> Result<()> {
    match failed {
        0 | libc::ENOENT | libc::ESRCH => Ok(()),
        e => Err(Error::os(std::io::Error::from_raw_os_error(e), "cannot read the account database")),
    }
}

fn groups_of(user: &str, gid: u32) -> Vec<u32> {
    let Ok(name) = CString::new(user) else { return vec![gid] };
    let name: &CStr = &name;
    let mut groups = vec![0; 64];
    loop {
        let mut count = groups.len() as i32;
        // SAFETY: the name ends with NUL, and the list has `count` places.
        let n = unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
        if n >= 0 {
            groups.truncate(n as usize);
            return groups;
        }
        if groups.len() >= GROUPS_MAX {
            return vec![gid];
        }
        groups.resize((count.max(0) as usize).clamp(groups.len() * 2, GROUPS_MAX), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that could not be checked was taken for one that had ended.
    #[test]
    fn a_thread_that_cannot_be_looked_at_is_not_taken_for_none() {
        let directory = std::env::temp_dir().join(format!("mqblk-threads-{}", std::process::id()));
        // A status file that exists but cannot be read.
        fs::create_dir_all(directory.join("1/status")).unwrap();
        let unreadable = status_of(&directory.join("1"));
        let ended = status_of(&directory.join("2"));
        fs::remove_dir_all(&directory).unwrap();
        assert!(unreadable.is_err() && matches!(ended, Ok(None)), "{unreadable:?} {ended:?}");
        let own = status_of(Path::new("/proc/thread-self")).unwrap().expect("this thread is there");
        assert!(field(&own, "Uid:").is_some());
    }

    /// Where others may write to the directory of a socket, something else may be in its place by now: a second name of a file
    /// that they want was given to them.
    #[test]
    fn what_is_not_ours_is_not_given_away() {
        use std::os::unix::fs::{MetadataExt, symlink};
        assert!(rustix::process::geteuid().is_root(), "only root can give");
        let nobody = Account::find("nobody").unwrap();
        let directory = std::env::temp_dir().join(format!("mqblk-give-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let at = |name: &str| directory.join(name);
        fs::write(at("secret"), "").unwrap();
        let _elsewhere = std::os::unix::net::UnixListener::bind(at("elsewhere")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        fs::hard_link(at("secret"), at("second name")).unwrap();
        symlink(at("secret"), at("link")).unwrap();
        fs::hard_link(at("elsewhere"), at("second socket")).unwrap();
        let owner = |name: &str| fs::symlink_metadata(at(name)).unwrap().uid();
        for name in ["second name", "link", "second socket"] {
            let refused = nobody.give(&at(name)).unwrap_err().to_string();
            assert!(refused.contains("is not the file that this process created"), "{name}: {refused}");
            assert_eq!(owner(name), 0, "{name}");
        }
        assert!(nobody.give(&at("nothing")).is_err());
        nobody.give(&at("socket")).unwrap();
        assert_eq!(owner("socket"), nobody.uid);
        assert!(nobody.give(&at("socket")).is_err(), "another user owns it now");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn accounts_are_found_by_name_and_number() {
        let nobody = Account::find("nobody").unwrap();
        assert_eq!((nobody.uid, nobody.groups.contains(&nobody.gid)), (65534, true));
        let numbered = Account::find("1234:5678").unwrap();
        assert_eq!((numbered.uid, numbered.gid, numbered.groups), (1234, 5678, vec![5678]));
        let mixed = Account::find("nobody:5678").unwrap();
        assert_eq!((mixed.uid, mixed.gid), (65534, 5678));
        for (text, says) in [
            ("no-such-user", "there is no user 'no-such-user'"),
            ("nobody:no-such-group", "there is no group 'no-such-group'"),
            ("1234", "needs a group"),
            ("root", "is root"),
            ("nobody:0", "is root"),
            ("0:5", "is root"),
            ("a\0b", "zero byte"),
            ("", "there is no user ''"),
        ] {
            let e = Account::find(text).unwrap_err().to_string();
            assert!(e.contains(says), "{text}: {e}");
        }
    }
}
