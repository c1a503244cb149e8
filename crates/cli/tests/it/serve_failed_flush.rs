// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Images in a file system that loses written data: its device is full, and the kernel reports that to one fdatasync of each open file.
//! Every kind of disk and export must report the failed flush for good. Needs root and loop devices.

use crate::common;
use crate::serve_metrics::get;

use common::{Dir, LONG, Started, until};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::process::Command;
use vuclient::raw::message::feature::{BLK_FLUSH, VERSION_1};
use vuclient::raw::message::protocol;
use vuclient::raw::{Format, Notify, Raw, block};

/// ext4 at `fs`, on a loop device over a tmpfs at `below` that is full.
struct LosingFs {
    dir: Dir,
    device: String,
}

impl LosingFs {
    /// Makes it, with these images, whose blocks are all allocated.
    fn with_images(name: &str, images: &[&str]) -> LosingFs {
        let dir = Dir::new(name);
        dir.program("mkdir", &["below", "fs", "mounts"]).exits(0);
        dir.program("mount", &["-t", "tmpfs", "-o", "size=2m", "tmpfs", "below"]).exits(0);
        dir.program("truncate", &["-s", "64m", "below/device"]).exits(0);
        let device = dir.program("losetup", &["--find", "--show", "below/device"]).exits(0).out.trim().to_owned();
        let fs = LosingFs { dir, device };
        let all_at_once = ["-q", "-O", "^has_journal", "-N", "32", "-E", "lazy_itable_init=0"];
        fs.dir.program("mkfs.ext4", &[&all_at_once[..], &[&fs.device]].concat()).exits(0);
        fs.dir.program("mount", &[&fs.device, "fs"]).exits(0);
        for image in images {
            fs.dir.program("fallocate", &["-l", "4m", &format!("fs/{image}.img")]).exits(0);
        }
        fs.dir.program("sync", &["-f", "fs"]).exits(0);
        let filled = fs.dir.program("dd", &["if=/dev/zero", "of=below/fill", "bs=4k", "status=none"]);
        assert!(filled.err.contains("No space left"), "{filled:?}");
        fs
    }

    fn path(&self, name: &str) -> String {
        self.dir.path(name).to_str().unwrap().to_owned()
    }
}

impl Drop for LosingFs {
    fn drop(&mut self) {
        for at in ["mounts/fuse", "fs", "below"] {
            let _ = Command::new("umount").arg("-l").arg(self.dir.path(at)).output();
        }
        let _ = Command::new("losetup").args(["-d", &self.device]).output();
    }
}

/// What a client tries on each disk: the write succeeds. Then the flush, all further flushes and a durable write must fail.
const SESSION: &str = "
import nbd, sys, errno
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pwrite(b'x' * 65536, 65536)
def fails(what):
    try:
        what()
        print('success')
    except nbd.Error as e:
        print(errno.errorcode[e.errnum])
for n in range(4):
    fails(h.flush)
fails(lambda: h.pwrite(b'x' * 4096, 65536, nbd.CMD_FLAG_FUA))
h.pwrite(b'x' * 4096, 65536)
h.pread(4096, 65536)
";

fn daemon(fs: &LosingFs, name: &str, config: &str) -> Started {
    fs.dir.file(name, config);
    fs.dir.start(&["serve", name, "--control", &format!("{name}.ctl"), "--metrics", "127.0.0.1:0"], "serving on")
}

fn uri(fs: &LosingFs, disk: &str) -> String {
    format!("nbd+unix:///{disk}?socket={}", fs.path(&format!("{disk}.sock")))
}

/// Returns the results of [`SESSION`].
fn session(fs: &LosingFs, disk: &str) -> Vec<String> {
    let uri = uri(fs, disk);
    let done = fs.dir.program("/usr/bin/python3", &["-c", SESSION, &uri]).exits(0);
    done.out.lines().map(str::to_owned).collect()
}

/// A disk, and its export at `DISK.sock`.
fn nbd(disk: &str, targets: &str) -> String {
    format!(
        "[[disk]]\nname = \"{disk}\"\n{targets}\ndirect = false\n\
         [[export]]\ndisk = \"{disk}\"\ntype = \"nbd\"\nsocket = \"{disk}.sock\"\nexport_name = \"{disk}\"\n"
    )
}

#[test]
fn each_kind_of_disk_remembers_a_failed_flush() {
    let fs = LosingFs::with_images("flush-disks", &["plain", "threads", "s0", "s1", "paths", "inner"]);
    let config = nbd("plain", "target = \"fs/plain.img\"")
        + &nbd("threads", "target = \"fs/threads.img\"\naio = \"threads\"")
        + &nbd("striped", "stack = \"stripe\"\ntargets = [\"fs/s0.img\", \"fs/s1.img\"]")
        + &nbd("paths", "stack = \"multipath\"\ntargets = [\"fs/paths.img\", \"file:./fs/paths.img\"]")
        + &nbd("inner", "target = \"fs/inner.img\"");
    let first = daemon(&fs, "serve.toml", &config);
    // The inner daemon remembers, too, so only the outer daemon's log shows that the outer one does.
    let outer = daemon(&fs, "outer.toml", &nbd("outer", &format!("target = \"{}\"", uri(&fs, "inner"))));
    for disk in ["plain", "threads", "striped", "paths", "outer"] {
        assert_eq!(session(&fs, disk), ["ENOSPC"; 5], "{disk}");
    }
    // With space, only the memory of the failed flush fails them.
    fs.dir.program("mount", &["-o", "remount,size=64m", "below"]).exits(0);
    for disk in ["plain", "threads", "striped", "paths", "outer"] {
        assert_eq!(session(&fs, disk), ["ENOSPC"; 5], "{disk}");
    }
    for daemon in [outer, first] {
        daemon.signal("TERM");
        daemon.ends().exits(0).says(&["a flush failed (no space left)"]);
    }
}

#[test]
fn each_export_reports_a_failed_flush_for_good() {
    let fs = LosingFs::with_images("flush-exports", &["nbd", "fuse", "vhost"]);
    fs.dir.file("mounts/fuse", "");
    let export = |disk: &str, at: &str| {
        format!(
            "[[disk]]\nname = \"{disk}\"\ntarget = \"fs/{disk}.img\"\ndirect = false\n[[export]]\ndisk = \"{disk}\"\n{at}\n"
        )
    };
    let config = nbd("nbd", "target = \"fs/nbd.img\"")
        + &export("fuse", "type = \"fuse\"\nmountpoint = \"mounts/fuse\"")
        + &export("vhost", "type = \"vhost-user-blk\"\nsocket = \"vhost.sock\"");
    let daemon = daemon(&fs, "serve.toml", &config);
    let metrics = daemon.seen().lines().find_map(|l| l.split("metrics at http://").nth(1)).unwrap();
    let metrics = metrics.trim_end_matches("/metrics").to_owned();
    let is_failed = |disk: &str| get(&metrics).contains(&format!("mqblk_disk_flush_failed{{disk=\"{disk}\"}} 1"));
    assert!(!["nbd", "fuse", "vhost"].iter().any(|disk| is_failed(disk)));

    assert_eq!(session(&fs, "nbd"), ["ENOSPC"; 5]);

    let file = OpenOptions::new().write(true).open(fs.dir.path("mounts/fuse")).unwrap();
    file.write_all_at(&[7; 65536], 65536).unwrap();
    for _ in 0..4 {
        assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(28));
    }
    file.write_all_at(&[7; 4096], 0).unwrap();

    let mut raw = Raw::ready(&fs.path("vhost.sock"), VERSION_1 | BLK_FLUSH, protocol::MQ | protocol::CONFIG).unwrap();
    raw.start(0, 64, Format::Split, Notify::Both).unwrap();
    let mut status = |kind: u32, len: u32| {
        let request = raw.block(kind, 0, len).unwrap();
        raw.execute(0, &request, LONG).unwrap().0
    };
    assert_eq!(status(block::OUT, 65536), block::OK);
    (0..4).for_each(|_| assert_eq!(status(block::FLUSH, 0), block::IOERR));
    assert_eq!(status(block::OUT, 4096), block::OK);
    drop(raw);

    let shown = fs.dir.mqblk(&["ctl", "--control", "serve.toml.ctl", "list"]).exits(0);
    // The page may have been made up to 100 ms ago.
    for disk in ["nbd", "fuse", "vhost"] {
        until(&format!("the page has the failed flush of {disk}"), || is_failed(disk));
    }
    assert_eq!(shown.out.matches("a flush failed (no space left)").count(), 3, "{}", shown.out);

    // There is space again. Only an image that is opened again has no failed flush.
    fs.dir.program("mount", &["-o", "remount,size=64m", "below"]).exits(0);
    // Data that was written since may have been lost, too. This takes that error, which no flush of ours has seen.
    fs.dir.program("sync", &["fs/nbd.img"]);
    assert_eq!(session(&fs, "nbd"), ["ENOSPC"; 5]);
    fs.dir.file("nbd.toml", &nbd("nbd", "target = \"fs/nbd.img\""));
    fs.dir.mqblk(&["ctl", "--control", "serve.toml.ctl", "remove", "--force", "nbd"]).exits(0);
    fs.dir.mqblk(&["ctl", "--control", "serve.toml.ctl", "add", "nbd.toml"]).exits(0);
    assert_eq!(session(&fs, "nbd"), ["success"; 5]);
    until("the page has the disk without a failed flush", || !is_failed("nbd"));
    daemon.signal("TERM");
    let said = daemon.ends().exits(0).err;
    for disk in ["nbd", "fuse", "vhost"] {
        let lines = said.lines().filter(|l| l.contains("error: a flush failed (no space left)"));
        assert_eq!(lines.filter(|l| l.ends_with(&format!(" disk={disk}"))).count(), 1, "{disk}: {said}");
    }
}
