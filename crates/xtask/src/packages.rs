// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Debian packages that building and testing need, and how a new user gets them.
//!
//! Guarantees: [`PACKAGES`], [`GUEST`], [`CEPH`], [`DIST`] and [`ISCSI`] are the only such lists of this tree. Root gets the missing
//! packages installed. Other users get an error with the command line to type, and nothing is changed. A program that exists without its
//! package (from another distribution, or built locally) is accepted.
//! Does not install Rust, nor the C linker, which is needed to build xtask itself: `.ci/run` does that.

use std::path::Path;
use std::process::Command;

/// One Debian package and the reason it is asked for.
struct Package {
    name: &'static str,
    /// Something on the machine that makes the package unnecessary.
    stand_in: Alternative,
    why: &'static str,
}

/// What is accepted instead of a package.
enum Alternative {
    Program(&'static str),
    File(&'static str),
    Directory(&'static str),
}

/// Where Debian's fio-examples puts its job files.
const EXAMPLES: &str = "/usr/share/doc/fio/examples";

const PACKAGES: &[Package] = &[
    Package { name: "gcc", stand_in: Alternative::Program("cc"), why: "the linker rustc calls" },
    Package { name: "g++", stand_in: Alternative::Program("c++"), why: "fuzzing compiles libFuzzer" },
    Package {
        name: "libc6-dev",
        stand_in: Alternative::File("/usr/include/features.h"),
        why: "the C start files rustc links",
    },
    Package { name: "fio", stand_in: Alternative::Program("fio"), why: "tests and benches run the same jobs by fio" },
    Package {
        name: "strace",
        stand_in: Alternative::Program("strace"),
        why: "a test sees how fio's engine opens a file",
    },
    Package {
        name: "fio-examples",
        stand_in: Alternative::Directory(EXAMPLES),
        why: "a test parses every example job of fio",
    },
    Package {
        name: "blktrace",
        stand_in: Alternative::Program("blkparse"),
        why: "tests have blkparse and btt read our traces",
    },
    Package {
        name: "qemu-utils",
        stand_in: Alternative::Program("qemu-nbd"),
        why: "tests lock images against QEMU, run printed commands against its NBD server, and have its clients talk to ours",
    },
    Package {
        name: "libnbd-bin",
        stand_in: Alternative::Program("nbdinfo"),
        why: "tests run the printed nbdinfo and nbdcopy commands, and have them talk to our NBD server side",
    },
    Package {
        name: "nbdkit",
        stand_in: Alternative::Program("nbdkit"),
        why: "tests have the NBD driver use it, with its filters that delay, fail and pause, and kill it",
    },
    Package {
        name: "tgt",
        stand_in: Alternative::Program("tgtd"),
        why: "tests have the iSCSI driver use its target, with logins, digests and without, and cut it off",
    },
    Package {
        name: "istgt",
        stand_in: Alternative::Program("istgt"),
        why: "tests have the iSCSI driver use a second target, which shares no code with tgt",
    },
    Package {
        name: "util-linux-extra",
        stand_in: Alternative::Program("fincore"),
        why: "a test counts what read-ahead put into the page cache",
    },
    Package {
        name: "qemu-system-common",
        stand_in: Alternative::Program("qemu-storage-daemon"),
        why: "tests and benches have its storage daemon as the reference server",
    },
    Package {
        name: "e2fsprogs",
        stand_in: Alternative::Program("mkfs.ext4"),
        why: "tests have a file system on a loop device on our FUSE export, and check it",
    },
    Package {
        name: "mount",
        stand_in: Alternative::Program("losetup"),
        why: "tests make loop devices of our FUSE export",
    },
    Package {
        name: "fuse3",
        stand_in: Alternative::Program("fusermount3"),
        why: "a test mounts as a user other than root",
    },
    Package {
        name: "postgresql",
        stand_in: Alternative::Directory("/usr/lib/postgresql"),
        why: "a test has a database on our FUSE export, killed together with the daemon, and its amcheck",
    },
    Package {
        name: "python3-libnbd",
        stand_in: Alternative::File("/usr/lib/python3/dist-packages/nbd.py"),
        why: "tests send requests by libnbd that no program sends",
    },
    Package {
        name: "chromium-headless-shell",
        stand_in: Alternative::Program("chromium-headless-shell"),
        why: "tests look at reports with a real browser",
    },
    Package {
        name: "fonts-dejavu-core",
        stand_in: Alternative::Directory("/usr/share/fonts/truetype"),
        why: "letters for that browser, which comes without",
    },
    Package { name: "zsh", stand_in: Alternative::Program("zsh"), why: "completions are tried in it" },
    Package { name: "fish", stand_in: Alternative::Program("fish"), why: "completions are tried in it" },
    Package { name: "man-db", stand_in: Alternative::Program("man"), why: "checks the manual pages" },
    Package { name: "bsdextrautils", stand_in: Alternative::Program("col"), why: "a manual page as plain text" },
    Package {
        name: "systemd",
        stand_in: Alternative::Program("systemd-socket-activate"),
        why: "tests have its socket activation start the daemon, and its verifier read the units of contrib",
    },
    Package {
        name: "prometheus",
        stand_in: Alternative::Program("promtool"),
        why: "a test has its promtool check and try the alert rules of contrib",
    },
];

/// What a guest needs. Tests boot a guest on our server, and the kernel's decisions are recorded in another guest.
const GUEST: &[Package] = &[
    Package { name: "qemu-system-x86", stand_in: Alternative::Program("qemu-system-x86_64"), why: "the guest" },
    Package { name: "busybox-static", stand_in: Alternative::File("/bin/busybox"), why: "the guest's programs" },
    Package { name: "cpio", stand_in: Alternative::Program("cpio"), why: "packs the guest's root" },
    Package { name: "kmod", stand_in: Alternative::Program("depmod"), why: "finds the modules the guest loads" },
    Package { name: "fio", stand_in: Alternative::Program("fio"), why: "the load in the guest" },
    Package {
        name: "e2fsprogs",
        stand_in: Alternative::Program("mkfs.ext4"),
        why: "a file system on a block device of the guest",
    },
    Package {
        name: "mount",
        stand_in: Alternative::Program("losetup"),
        why: "loop devices of the guest on our FUSE export",
    },
    Package {
        name: "nbd-client",
        stand_in: Alternative::Program("nbd-client"),
        why: "the guest's kernel is a client of our NBD export",
    },
    Package { name: "xz-utils", stand_in: Alternative::Program("xz"), why: "unpacks the modules" },
];

/// What a Ceph cluster on this host needs; `librbd1` and `librados2` come with `ceph-common`.
const CEPH: &[Package] = &[
    Package { name: "ceph-mon", stand_in: Alternative::Program("ceph-mon"), why: "the cluster's monitor" },
    Package { name: "ceph-osd", stand_in: Alternative::Program("ceph-osd"), why: "where its data is" },
    Package {
        name: "ceph-common",
        stand_in: Alternative::Program("rbd"),
        why: "rbd and ceph, with the libraries that the RBD driver loads",
    },
];

/// What packaging needs.
const DIST: &[Package] = &[
    Package {
        name: "mmdebstrap",
        stand_in: Alternative::Program("mmdebstrap"),
        why: "roots of Debian 11 to 13 and sid",
    },
    Package { name: "debhelper", stand_in: Alternative::Program("dh"), why: "makes the Debian package" },
    Package { name: "lintian", stand_in: Alternative::Program("lintian"), why: "checks it" },
    Package { name: "systemd-container", stand_in: Alternative::Program("systemd-nspawn"), why: "boots a root" },
];

/// The program that the bench of iSCSI compares with. The iSCSI target is one of [`PACKAGES`].
const ISCSI: &[Package] = &[
    Package { name: "tgt", stand_in: Alternative::Program("tgtd"), why: "the iSCSI target" },
    Package {
        name: "libiscsi-bin",
        stand_in: Alternative::Program("iscsi-perf"),
        why: "the bench compares the iSCSI driver with its iscsi-perf",
    },
];

impl Alternative {
    fn is_there(&self) -> bool {
        match self {
            Alternative::Program(name) => on_path(name),
            Alternative::File(path) => Path::new(path).is_file(),
            Alternative::Directory(path) => Path::new(path).is_dir(),
        }
    }
}

/// Makes sure that every package is installed.
///
/// # Errors
/// When a package is missing and this process does not run as root (the message is the command line to type), or when apt-get fails.
pub fn ensure() -> Result<(), String> {
    ensure_these(&[PACKAGES, ISCSI, CEPH, GUEST])?;
    update_lists()
}

/// Makes sure that the packages for a guest are installed, and that apt has package lists, because the guest's kernel comes from apt.
///
/// # Errors
/// The errors of [`ensure`].
pub fn ensure_guest() -> Result<(), String> {
    ensure_these(&[GUEST])?;
    update_lists()
}

fn update_lists() -> Result<(), String> {
    if is_root()? && !has_package_lists(Path::new("/var/lib/apt/lists")) {
        apt_get(&["update"])?;
    }
    Ok(())
}

/// Makes sure that the packages for a Ceph cluster are installed.
///
/// # Errors
/// The errors of [`ensure`].
pub fn ensure_ceph() -> Result<(), String> {
    ensure_these(&[CEPH])
}

/// Makes sure that the packages for packaging are installed.
///
/// # Errors
/// The errors of [`ensure`].
pub fn ensure_dist() -> Result<(), String> {
    ensure_these(&[DIST])
}

/// Makes sure that the packages for the bench of iSCSI are installed.
///
/// # Errors
/// The errors of [`ensure`].
pub fn ensure_iscsi() -> Result<(), String> {
    ensure_these(&[ISCSI])
}

fn ensure_these(lists: &[&'static [Package]]) -> Result<(), String> {
    let missing = missing(lists, |package| package.stand_in.is_there() || is_installed(package.name));
    if missing.is_empty() {
        return Ok(());
    }
    if !is_root()? {
        return Err(explain(&missing));
    }
    install(&missing)
}

/// Returns the packages of `lists` that are missing, each once.
fn missing(lists: &[&'static [Package]], is_there: impl Fn(&Package) -> bool) -> Vec<&'static Package> {
    let mut missing: Vec<&Package> = Vec::new();
    for package in lists.iter().copied().flatten().filter(|package| !is_there(package)) {
        if missing.iter().all(|other| other.name != package.name) {
            missing.push(package);
        }
    }
    missing
}

fn explain(missing: &[&Package]) -> String {
    let mut text = String::from("these Debian packages are missing:\n");
    for package in missing {
        text += &format!("  {:<14} {}\n", package.name, package.why);
    }
    let names: Vec<&str> = missing.iter().map(|p| p.name).collect();
    text + &format!("run:\nsudo apt-get install -y {}", names.join(" "))
}

fn install(missing: &[&Package]) -> Result<(), String> {
    if !has_package_lists(Path::new("/var/lib/apt/lists")) {
        apt_get(&["update"])?;
    }
    let mut arguments = vec!["install", "-y", "--no-install-recommends"];
    arguments.extend(missing.iter().map(|p| p.name));
    // Old package lists name files that the mirror no longer has: refresh the lists and try once more.
    if apt_get(&arguments).is_err() {
        apt_get(&["update"])?;
        apt_get(&arguments)?;
    }
    Ok(())
}

fn has_package_lists(directory: &Path) -> bool {
    let Ok(entries) = directory.read_dir() else {
        return false;
    };
    entries.filter_map(Result::ok).any(|entry| entry.file_name().to_string_lossy().contains("_Packages"))
}

fn apt_get(arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new("apt-get");
    command.args(arguments);
    command.env("DEBIAN_FRONTEND", "noninteractive");
    succeed(&mut command)
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown} failed: {status}")),
        Err(e) => Err(format!("cannot run {shown}: {e}")),
    }
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

fn is_installed(package: &str) -> bool {
    let output = Command::new("dpkg-query").args(["-W", "-f=${db:Status-Status}", package]).output();
    output.is_ok_and(|o| o.status.success() && o.stdout == b"installed")
}

/// Whether the effective user is root. Read from /proc, because xtask makes no system calls of its own.
///
/// # Errors
/// Without /proc.
pub fn is_root() -> Result<bool, String> {
    let status =
        std::fs::read_to_string("/proc/self/status").map_err(|e| format!("cannot read /proc/self/status: {e}"))?;
    Ok(effective_uid(&status) == Some(0))
}

fn effective_uid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|l| l.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_absent_is_asked_for_in_one_line() {
        let absent = ["fio", "tgt", "ceph-mon"];
        let missing = missing(&[PACKAGES, ISCSI, CEPH], |p| !absent.contains(&p.name));
        let text = explain(&missing);
        let last = text.lines().last().unwrap();
        assert_eq!(last, "sudo apt-get install -y fio tgt ceph-mon");
        assert!(!text.contains("gcc"), "{text}");
    }

    #[test]
    fn the_effective_user_decides() {
        let status = "Name:\tx\nUid:\t1000\t0\t0\t0\nGid:\t1\t1\t1\t1\n";
        assert_eq!(effective_uid(status), Some(0));
        let status = "Uid:\t0\t1000\t0\t0\n";
        assert_eq!(effective_uid(status), Some(1000));
        assert_eq!(effective_uid("Name:\tx\n"), None);
    }

    #[test]
    fn a_directory_without_lists_asks_for_an_update() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        assert!(!has_package_lists(&source));
        assert!(!has_package_lists(&source.join("no-such-directory")));
    }

    #[test]
    fn stand_ins_see_this_machine() {
        assert!(Alternative::Program("cargo").is_there() || Alternative::Program("sh").is_there());
        assert!(!Alternative::Program("no-such-program-of-mqblk").is_there());
        assert!(!Alternative::File("/proc").is_there());
        assert!(Alternative::Directory("/proc").is_there());
    }
}
