// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk serve` with a FUSE export: the printed commands work, the mount of a killed daemon is taken over, and an ordinary user mounts
//! through fusermount3. Needs root, /dev/fuse and loop devices.

use crate::common;

use common::{Dir, Done, Started, until_reported};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

/// A directory in which nothing stays mounted, also when a test fails.
struct MountDir(Dir);

impl std::ops::Deref for MountDir {
    type Target = Dir;

    fn deref(&self) -> &Dir {
        &self.0
    }
}

impl Drop for MountDir {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path("mount")).output();
    }
}

fn directory(dir: Dir) -> MountDir {
    dir.mounted_disk(32 << 20, "");
    MountDir(dir)
}

fn serve(dir: &Dir) -> Daemon {
    let daemon = dir.start(&["serve", "c.toml"], "serving on 0 sockets and 1 mount: ");
    Daemon(Some(daemon))
}

/// A daemon that is killed when a test fails.
struct Daemon(Option<Started>);

impl Daemon {
    fn ends_by(mut self, signal: &str) -> Done {
        let started = self.0.take().unwrap();
        started.signal(signal);
        started.ends()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(started) = self.0.take() {
            started.signal("KILL");
            started.ends();
        }
    }
}

fn mounts(at: &Path) -> usize {
    let at = format!(" {} ", at.to_str().unwrap());
    fs::read_to_string("/proc/self/mountinfo").unwrap().lines().filter(|l| l.contains(&at)).count()
}

#[test]
fn requests_of_a_mount_are_counted() {
    let dir = directory(Dir::new("serve-fuse"));
    let args = ["serve", "c.toml", "--metrics", "unix:metrics.sock"];
    let daemon = Daemon(Some(dir.start(&args, "serving on 0 sockets and 1 mount: ")));
    let file = OpenOptions::new().write(true).open(dir.path("mount")).unwrap();
    let count = || {
        let page = dir.program("curl", &["-s", "--unix-socket", "metrics.sock", "http://x/metrics"]).exits(0).out;
        let of_queues = page.lines().filter_map(|line| line.strip_prefix("mqblk_queue_requests_total{export=\""));
        of_queues.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum::<f64>()
    };
    let before = count();
    file.write_all_at(&[1; 4096], 0).unwrap();
    file.sync_all().unwrap();
    // The metrics page may be a moment old.
    until_reported("the write is counted", || count() >= before + 1.0);
    drop(file);
    daemon.ends_by("TERM").exits(0);
}

#[test]
fn an_image_of_any_size_is_a_file_of_that_size() {
    let dir = MountDir(Dir::new("serve-fuse"));
    dir.mounted_disk(4097, "");
    for signal in ["KILL", "TERM"] {
        let daemon = serve(&dir);
        let file = OpenOptions::new().read(true).write(true).open(dir.path("mount")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 4097);
        file.write_all_at(signal.as_bytes(), 4097 - 4).unwrap();
        file.sync_all().unwrap();
        drop(file);
        daemon.ends_by(signal);
        let image = fs::read(dir.path("disk.img")).unwrap();
        assert!(image.len() == 4097 && image.ends_with(signal.as_bytes()), "{} bytes", image.len());
    }
}

#[test]
fn the_printed_commands_work() {
    let dir = directory(Dir::new("serve-fuse"));
    let json = dir.mqblk(&["serve", "--dry-run", "--json", "c.toml"]).exits(0).json();
    let clients = &json["exports"][0]["clients"];
    let daemon = serve(&dir);
    let text = |key: &str| clients[key].as_str().unwrap_or_else(|| panic!("no {key} in {clients:#}")).to_owned();
    let shell = |command: &str| dir.program("bash", &["-c", command]).exits(0);
    let device = shell(&text("losetup")).out.trim().to_owned();
    let size = shell(&format!("blockdev --getsize64 {device}; losetup --detach {device}")).out;
    assert_eq!(size.trim(), (32 << 20).to_string());
    shell(&format!("{} --runtime=1", text("fio"))).prints(&["err= 0"]);
    shell(&text("qemu_img")).prints(&["virtual size: 32 MiB"]);
    daemon.ends_by("TERM").exits(0);
    assert_eq!(fs::metadata(dir.path("mount")).unwrap().len(), 0);
    assert_eq!(mounts(&dir.path("mount")), 0);
}

/// All data that was acknowledged before a kill -9 is in the file that the next daemon mounts, however often this repeats, and even if
/// the old file is still open.
#[test]
fn the_mount_of_a_killed_daemon_is_taken_over() {
    let dir = directory(Dir::new("serve-fuse"));
    let mut held = Vec::new();
    for round in 0..3u8 {
        let daemon = serve(&dir);
        let file = OpenOptions::new().read(true).write(true).open(dir.path("mount")).unwrap();
        for before in 0..round {
            let mut back = [0; 4096];
            file.read_exact_at(&mut back, u64::from(before) << 20).unwrap();
            assert_eq!(back, [before + 1; 4096]);
        }
        file.write_all_at(&[round + 1; 4096], u64::from(round) << 20).unwrap();
        daemon.ends_by("KILL");
        assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(107), "ENOTCONN");
        held.push(file);
        let stale = fs::metadata(dir.path("mount")).unwrap_err();
        assert_eq!(stale.raw_os_error(), Some(107), "{stale}");
        // The stale mount does not disturb a dry run, either.
        dir.mqblk(&["serve", "--dry-run", "c.toml"]).exits(0);
    }
    let daemon = serve(&dir);
    assert_eq!(mounts(&dir.path("mount")), 1);
    // A second daemon is rejected before it changes anything, because the image and the mountpoint are in use.
    let second = dir.mqblk(&["serve", "c.toml"]).exits(2);
    second.says(&[
        "target=disk.img: image 'disk.img' is in use",
        "mountpoint=mount: another program serves a file system there",
    ]);
    daemon.ends_by("INT").exits(0);
    assert_eq!(mounts(&dir.path("mount")), 0);
}

/// If the file is unmounted from outside, this is logged once and shown, and not only noticed by I/O that fails. The export can be
/// removed and added again.
#[test]
fn an_unmount_from_outside_is_reported() {
    let dir = directory(Dir::new("serve-fuse"));
    let started = dir.start(&["serve", "--control", "ctl.sock", "c.toml"], "serving on 0 sockets and 1 mount: ");
    let daemon = Daemon(Some(started));
    let ctl = |args: &[&str]| dir.mqblk(&[&["ctl", "--control", "ctl.sock"], args].concat()).exits(0);
    assert!(!ctl(&["list"]).out.contains("GONE"));
    assert!(Command::new("umount").arg(dir.path("mount")).status().unwrap().success());
    let gone = "GONE: it was unmounted (readv of /dev/fuse: No such device";
    until_reported("the list shows that the mount is gone", || ctl(&["list"]).out.contains(gone));
    let list = ctl(&["list", "--json"]).json();
    assert_eq!(list["exports"][0]["connected"], 0);
    ctl(&["remove", "disk.img.fuse"]);
    ctl(&["reload"]);
    assert_eq!(mounts(&dir.path("mount")), 1);
    let done = daemon.ends_by("INT").exits(0);
    assert_eq!(done.err.matches("the mount is gone: it was unmounted").count(), 1, "{}", done.err);
    assert_eq!(mounts(&dir.path("mount")), 0);
}

/// Tools see the holes of the image. A copy stays sparse, and written ranges are reported as data at once.
#[test]
fn holes_of_the_image_are_holes_of_the_file() {
    let dir = directory(Dir::new("serve-fuse"));
    let image = OpenOptions::new().write(true).open(dir.path("disk.img")).unwrap();
    for (at, bytes) in [(0, 4096), (5 << 20, 1 << 20), ((9 << 20) + 512, 100), ((32 << 20) - 4096, 4096)] {
        image.write_all_at(&vec![7; bytes], at).unwrap();
    }
    image.sync_all().unwrap();
    let map = |file: &str| {
        dir.program("qemu-img", &["map", "--output=json", "--force-share", "-f", "raw", file]).exits(0).json()
    };
    let daemon = serve(&dir);
    let same = |pieces: usize| {
        let (file, image) = (map("mount"), map("disk.img"));
        assert_eq!(file, image);
        assert_eq!(file.as_array().unwrap().iter().filter(|piece| piece["data"] == true).count(), pieces);
    };
    same(4);
    let file = OpenOptions::new().write(true).open(dir.path("mount")).unwrap();
    file.write_all_at(&[9; 8192], 20 << 20).unwrap();
    same(5);
    let shell = |command: &str| dir.program("bash", &["-c", command]).exits(0);
    shell(
        "cp --sparse=auto mount copy && qemu-img convert -f raw -O raw mount converted && cmp mount copy && cmp mount converted",
    );
    for copy in ["copy", "converted"] {
        let copy = fs::metadata(dir.path(copy)).unwrap();
        assert_eq!(copy.len(), 32 << 20);
        assert!(copy.blocks() * 512 < 2 << 20, "{} blocks", copy.blocks());
    }
    // A file without holes.
    file.write_all_at(&vec![9; 32 << 20], 0).unwrap();
    same(1);
    daemon.ends_by("TERM").exits(0);
}

#[test]
fn mountpoints_that_cannot_be_are_refused() {
    let dir = directory(Dir::new("serve-fuse"));
    let good = fs::read_to_string(dir.path("c.toml")).unwrap();
    let refused = |mountpoint: &str, says: &str| {
        dir.file("bad.toml", &good.replace("\"mount\"", &format!("\"{mountpoint}\"")));
        let done = dir.mqblk(&["serve", "bad.toml"]).exits(2);
        assert_eq!(done.out, "");
        done.says(&[says]);
    };
    refused("none", "mountpoint=none: No such file or directory");
    refused(".", "mountpoint=.: must be a regular file: the disk is mounted over it");
    refused("/dev/null", "mountpoint=/dev/null: must be a regular file");
}

/// An ordinary user mounts through fusermount3, which is set-uid. /dev/fuse is open to all users there, as on a desktop.
#[test]
fn an_ordinary_user_mounts_too() {
    let dir = directory(Dir::public("serve-fuse"));
    // `cp` writes the program: if this process had it open for writing, a child could inherit that file, and the program would not run.
    dir.program("cp", &[env!("CARGO_BIN_EXE_mqblk"), "mqblk"]).exits(0);
    dir.file(
        "as-user",
        "./mqblk serve c.toml --control ctl.sock > out 2> err & daemon=$!
        until grep -q 'serving on' err; do kill -0 $daemon || { cat err; exit 3; }; sleep 0.01; done
        id -un; stat -c '%s %U' mount; grep -c \"$PWD/mount fuse.mqblk rw\" /proc/mounts
        dd if=/dev/zero of=mount bs=4k count=10 conv=notrunc,fsync oflag=direct 2>/dev/null && echo written
        [ $(grep -h '^Seccomp_filters:' /proc/$daemon/task/*/status | sort -u | wc -l) = 2 ] && echo only IOThreads are filtered
        kill $daemon; wait $daemon; echo status $?; stat -c %s mount; grep -c \"$PWD/mount\" /proc/mounts; cat err",
    );
    let script = "chown -R nobody . && mknod -m 666 fuse c 10 229 && mount --bind fuse /dev/fuse &&
        setpriv --reuid=nobody --clear-groups bash as-user";
    let done = dir.program("unshare", &["--mount", "bash", "-c", script]);
    done.prints(&["nobody\n33554432 nobody\n1\nwritten\nonly IOThreads are filtered\nstatus 0\n0\n0\n"]);
}
