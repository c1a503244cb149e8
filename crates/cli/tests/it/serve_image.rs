// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `mqblk serve` shows of an image: all of its bytes, and only if it is raw. Needs root and loop devices.

use crate::common;

use common::Dir;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;

/// ext4 at `fs`, on a loop device with sectors of 4096 bytes, so that direct I/O needs such blocks.
pub struct LargeSectors {
    pub dir: Dir,
    device: String,
}

impl LargeSectors {
    pub fn new(name: &str) -> LargeSectors {
        let dir = Dir::new(name);
        dir.program("mkdir", &["fs"]).exits(0);
        dir.program("truncate", &["-s", "96m", "device"]).exits(0);
        let attach = ["--find", "--show", "--sector-size", "4096", "--direct-io=on", "device"];
        let device = dir.program("losetup", &attach).exits(0).out.trim().to_owned();
        let fs = LargeSectors { dir, device };
        fs.dir.program("mkfs.ext4", &["-q", "-b", "4096", &fs.device]).exits(0);
        fs.dir.program("mount", &[&fs.device, "fs"]).exits(0);
        fs
    }
}

impl Drop for LargeSectors {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.dir.path("fs")).output();
        let _ = Command::new("losetup").args(["-d", &self.device]).output();
    }
}

fn config(more: &str) -> String {
    format!(
        "[[disk]]\nname = \"d\"\ntarget = \"fs/a.img\"\n{more}\n[[export]]\ntype = \"nbd\"\nsocket = \"d.sock\"\nexport_name = \"d\"\n"
    )
}

#[test]
fn no_byte_of_an_image_is_left_out() {
    let fs = LargeSectors::new("image-size");
    // Whole sectors of 512, but not whole blocks of 4096.
    let size = 8 * 1024 * 1024 + 512;
    let image = OpenOptions::new().create_new(true).write(true).open(fs.dir.path("fs/a.img")).unwrap();
    image.set_len(size).unwrap();
    image.write_all_at(b"the backup header", size - 512).unwrap();
    fs.dir.file("direct.toml", &config("")).file("buffered.toml", &config("direct = false"));
    let why = "has 8389120 bytes, but direct I/O here needs whole blocks of 4096: set direct = false in the configuration, \
               or pad it (truncate -s 8392704 FILE)";
    fs.dir.mqblk(&["serve", "direct.toml", "--dry-run"]).exits(2).says(&[why]);
    fs.dir.mqblk(&["serve", "direct.toml"]).exits(2).says(&[why]);

    fs.dir.mqblk(&["serve", "buffered.toml", "--dry-run"]).exits(0);
    let daemon = fs.dir.start(&["serve", "buffered.toml", "--control", "ctl.sock"], "serving on");
    let uri = format!("nbd+unix:///d?socket={}", fs.dir.path("d.sock").display());
    assert_eq!(fs.dir.program("nbdinfo", &["--size", &uri]).exits(0).out.trim(), size.to_string());
    let read =
        "import nbd,sys\nh=nbd.NBD()\nh.connect_uri(sys.argv[1])\nprint(bytes(h.pread(512, h.get_size()-512)[:17]))";
    assert_eq!(fs.dir.program("/usr/bin/python3", &["-c", read, &uri]).exits(0).out.trim(), "b'the backup header'");
    // Nor does a resize round.
    image.set_len(size + 100).unwrap();
    let resized = fs.dir.mqblk(&["ctl", "--control", "ctl.sock", "resize", "d"]).exits(2);
    resized.says(&["has 8389220 bytes now, which is not whole blocks of 512: the disk keeps its size"]);
    daemon.signal("TERM");
    daemon.ends().exits(0);
}

/// It was refused once, although nbdkit and QEMU serve it.
#[test]
fn an_image_has_its_exact_size_over_nbd() {
    let dir = Dir::new("image-any-size");
    fs::create_dir(dir.path("fs")).unwrap();
    dir.file("c.toml", &config(""))
        .file("vhost.toml", "[[export]]\ntype = \"vhost-user-blk\"\ndisk = \"d\"\nsocket = \"v.sock\"\n");
    dir.file("both.toml", &(config("") + &fs::read_to_string(dir.path("vhost.toml")).unwrap()));
    let image = dir.path("fs/a.img");
    let uri = format!("nbd+unix:///d?socket={}", dir.path("d.sock").display());
    let serve = || dir.start(&["serve", "c.toml", "--control", "ctl.sock"], "serving on");
    let size_is = |size: u32| {
        assert_eq!(dir.program("nbdinfo", &["--size", &uri]).exits(0).out.trim(), size.to_string());
        assert_eq!(fs::metadata(&image).unwrap().len(), u64::from(size));
    };
    for size in [1u32, 511, 4097] {
        let data: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
        let other: Vec<u8> = data.iter().map(|byte| byte ^ 0xff).collect();
        fs::write(&image, &data).unwrap();
        dir.file("copy.img", "");
        fs::write(dir.path("other.img"), &other).unwrap();
        dir.mqblk(&["serve", "c.toml", "--dry-run"]).exits(0);
        let why =
            format!("has {size} bytes, which is not whole blocks of 512; if it is a raw image, pad it (truncate -s ");
        dir.mqblk(&["serve", "both.toml"]).exits(2).says(&[&why, "only over NBD or FUSE"]);
        let daemon = serve();
        let line = format!("the disk on 'fs/a.img' has {size} bytes and ends within a sector of 512");
        assert!(daemon.seen().contains(&line), "{}", daemon.seen());
        size_is(size);
        dir.program("nbdcopy", &[&uri, "copy.img"]).exits(0);
        assert!(fs::read(dir.path("copy.img")).unwrap() == data, "size {size}");
        dir.program("nbdcopy", &["--flush", "other.img", &uri]).exits(0);
        daemon.signal("KILL");
        daemon.ends();
        assert!(fs::read(&image).unwrap() == other, "size {size}");
    }
    let daemon = serve();
    let ctl = |args: &[&str]| dir.mqblk(&[&["ctl", "--control", "ctl.sock"], args].concat());
    let list = ctl(&["list", "--json"]).exits(0).json();
    assert_eq!((list["disks"][0]["bytes"].as_u64(), list["disks"][0]["direct"].as_bool()), (Some(4097), Some(false)));
    ctl(&["resize", "d", "5001"]).exits(0).prints(&["resized disk 'd' from 4097 to 5001 bytes"]);
    size_is(5001);
    ctl(&["resize", "d", "4099"]).exits(2).says(&["size=4099: the disk has 5001 bytes; data beyond"]);
    ctl(&["resize", "d", "4099", "--force"]).exits(0);
    size_is(4099);
    ctl(&["add", "vhost.toml"]).exits(2).says(&["type=vhost-user-blk: needs a disk of whole sectors of 512 bytes"]);
    dir.program("qemu-io", &["-f", "raw", "-c", "write -P 7 4096 3", "-c", "discard 0 4099", &uri]).exits(0);
    size_is(4099);
    daemon.signal("TERM");
    daemon.ends().exits(0);
    assert_eq!(fs::metadata(&image).unwrap().len(), 4099);
}

#[test]
fn an_image_that_is_not_raw_is_served_only_on_request() {
    let dir = Dir::new("image-format");
    fs::create_dir(dir.path("fs")).unwrap();
    dir.file("d.toml", &config(""))
        .file("raw.toml", &config("format = \"raw\""))
        .file("other.toml", &config("format = \"qcow2\""));
    for (format, name) in
        [("qcow2", "qcow2"), ("vmdk", "vmdk"), ("vhdx", "vhdx"), ("vdi", "vdi"), ("vpc", "vhd (vpc)"), ("qed", "qed")]
    {
        let _ = fs::remove_file(dir.path("fs/a.img"));
        dir.program("qemu-img", &["create", "-q", "-f", format, "fs/a.img", "16m"]).exits(0);
        let why = format!("fs/a.img' is not raw but {name}: its clients would see the container");
        for args in [&["serve", "d.toml", "--dry-run"][..], &["serve", "d.toml"], &["serve", "fs/a.img"]] {
            dir.mqblk(args).exits(2).says(&[&why, "or set format = \"raw\""]);
        }
        dir.program("truncate", &["-s", "%4096", "fs/a.img"]).exits(0);
        dir.mqblk(&["serve", "raw.toml", "--dry-run"]).exits(0);
    }
    dir.mqblk(&["serve", "other.toml", "--dry-run"]).exits(2).says(&["format"]);
    // A guest that encrypts its whole disk.
    File::create(dir.path("fs/a.img")).unwrap().set_len(16 << 20).unwrap();
    OpenOptions::new().write(true).open(dir.path("fs/a.img")).unwrap().write_all_at(b"LUKS\xba\xbe\0\x02", 0).unwrap();
    dir.mqblk(&["serve", "d.toml"]).exits(2).says(&["is not raw but luks"]);
    // It keeps no other disk from being served.
    let other = "[[disk]]\nname = \"o\"\ntarget = \"ram:size=1m\"\n[[export]]\ndisk = \"o\"\ntype = \"nbd\"\nsocket = \"o.sock\"\n";
    dir.file("two.toml", &(config("").replace("[[export]]\n", "[[export]]\ndisk = \"d\"\n") + other));
    dir.mqblk(&["serve", "two.toml", "--dry-run"]).exits(2).says(&["is not raw but luks"]);
    let daemon = dir.start(&["serve", "two.toml"], "serving on 1 socket");
    assert!(daemon.seen().contains("disk 'd' is left out: target=fs/a.img: image 'fs/a.img' is not raw but luks"));
    daemon.signal("TERM");
    daemon.ends().exits(0);
    let daemon = dir.start(&["serve", "raw.toml"], "serving on");
    daemon.signal("TERM");
    daemon.ends().exits(0);
}

/// As a partition, or as the data of a VHD, whose footer is not the client's.
#[test]
fn a_part_of_a_file_is_served_as_a_disk() {
    let dir = Dir::new("image-part");
    fs::create_dir(dir.path("fs")).unwrap();
    let image = OpenOptions::new().create_new(true).read(true).write(true).open(dir.path("fs/a.img")).unwrap();
    image.set_len(8 << 20).unwrap();
    image.write_all_at(b"before", (1 << 20) - 6).unwrap();
    image.write_all_at(b"conectix", (8 << 20) - 512).unwrap();
    dir.file("c.toml", &config("offset = \"1m\"\nsize = 2097152\ndirect = false"));
    let plan = dir.mqblk(&["serve", "c.toml", "--dry-run"]).exits(0);
    plan.prints(&["disk d: fs/a.img, offset=1048576, size=2097152, through the page cache"]);
    let daemon = dir.start(&["serve", "c.toml", "--control", "ctl.sock"], "serving on");
    let uri = format!("nbd+unix:///d?socket={}", dir.path("d.sock").display());
    assert_eq!(dir.program("nbdinfo", &["--size", &uri]).exits(0).out.trim(), "2097152");
    let write = "import nbd,sys\nh=nbd.NBD()\nh.connect_uri(sys.argv[1])\nh.pwrite(b'first', 0)\n\
                 h.pwrite(b'last', h.get_size()-4)\nh.flush()\nprint(bytes(h.pread(5, 0)))";
    assert_eq!(dir.program("/usr/bin/python3", &["-c", write, &uri]).exits(0).out.trim(), "b'first'");
    let mut read = [0; 11];
    image.read_exact_at(&mut read, (1 << 20) - 6).unwrap();
    assert_eq!(&read, b"beforefirst");
    image.read_exact_at(&mut read, (3 << 20) - 4).unwrap();
    assert_eq!(&read, b"last\0\0\0\0\0\0\0");
    let resize = ["ctl", "--control", "ctl.sock", "resize", "d"];
    let given = [&resize[..], &["4194304"]].concat();
    dir.mqblk(&given).exits(2).says(&["the disk is a part of its file, and its configuration has size=2097152"]);
    image.set_len(2 << 20).unwrap();
    let cut = "has 2097152 bytes, but offset=1048576 and size=2097152 end at 3145728";
    dir.mqblk(&resize).exits(2).says(&[cut]);
    daemon.signal("TERM");
    daemon.ends().exits(0);
    dir.mqblk(&["serve", "c.toml"]).exits(2).says(&[cut]);
    for (more, why) in [
        ("offset = 8388608", "has 2097152 bytes, so nothing follows offset=8388608"),
        ("offset = 1000", "c.toml:4: offset=1000: must be a multiple of 512 (disk 'd')"),
        ("size = 0", "c.toml:4: size=0: must be at least 1"),
        ("offset = \"1 MB\"", "c.toml:4: offset=\"1 MB\": must be bytes, such as offset = 1048576 or offset = \"1m\""),
    ] {
        dir.file("c.toml", &config(more));
        dir.mqblk(&["serve", "c.toml", "--dry-run"]).exits(2).says(&[why]);
    }
}

#[test]
fn a_part_may_end_within_a_sector_over_nbd() {
    let dir = Dir::new("image-part-any-size");
    fs::create_dir(dir.path("fs")).unwrap();
    let mut expected = vec![7u8; 4096];
    fs::write(dir.path("fs/a.img"), &expected).unwrap();
    let part = config("offset = 512\nsize = 1000\ndirect = false");
    dir.file("vhost.toml", &part.replace("nbd\"", "vhost-user-blk\"").replace("export_name = \"d\"\n", ""));
    let why = "needs blocks of 512, but size=1000 is not a multiple of that: use 512 or 1024";
    dir.mqblk(&["serve", "vhost.toml", "--dry-run"]).exits(2).says(&[why]);
    dir.file("c.toml", &part);
    let daemon = dir.start(&["serve", "c.toml"], "serving on");
    let uri = format!("nbd+unix:///d?socket={}", dir.path("d.sock").display());
    assert_eq!(dir.program("nbdinfo", &["--size", &uri]).exits(0).out.trim(), "1000");
    dir.file("other.img", &"x".repeat(1000));
    dir.program("nbdcopy", &["--flush", "other.img", &uri]).exits(0);
    daemon.signal("TERM");
    daemon.ends().exits(0);
    expected[512..1512].fill(b'x');
    assert!(fs::read(dir.path("fs/a.img")).unwrap() == expected);
}

/// A directory whose file system has no direct I/O: ramfs.
struct Buffered(Dir);

impl Drop for Buffered {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path("fs")).output();
    }
}

/// Once, `list` showed what was asked for, although the image was opened through the page cache.
#[test]
fn list_shows_whether_the_page_cache_is_in_use() {
    let fs = Buffered(Dir::new("image-buffered"));
    let dir = &fs.0;
    fs::create_dir(dir.path("fs")).unwrap();
    dir.program("mount", &["-t", "ramfs", "none", "fs"]).exits(0);
    let disk = |name: &str, target: &str, more: &str| {
        format!(
            "[[disk]]\nname = \"{name}\"\n{target}\n{more}\n[[export]]\ntype = \"nbd\"\ndisk = \"{name}\"\nsocket = \"{name}.sock\"\n"
        )
    };
    let stripe = "targets = [\"b.img\", \"fs/b.img\"]\nstack = \"stripe\"";
    let paths = "targets = [\"fs/c.img\"]\nstack = \"multipath\"\npath_checker = \"none\"";
    let all = [
        disk("direct", "target = \"a.img\"", ""),
        disk("fallback", "target = \"fs/a.img\"", ""),
        disk("stripe", stripe, ""),
        disk("paths", paths, ""),
        disk("asked", "target = \"c.img\"", "direct = false"),
    ];
    dir.file("c.toml", &all.concat());
    for name in ["a.img", "b.img", "c.img", "fs/a.img", "fs/b.img", "fs/c.img"] {
        File::create(dir.path(name)).unwrap().set_len(1 << 20).unwrap();
    }
    let daemon = dir.start(&["serve", "c.toml", "--control=ctl.sock"], "serving");
    assert!(daemon.seen().contains("does not support direct I/O"), "{}", daemon.seen());
    let list = dir.mqblk(&["ctl", "--control=ctl.sock", "list", "--json"]).exits(0).json();
    let direct: Vec<_> = list["disks"].as_array().unwrap().iter().map(|d| d["direct"].as_bool().unwrap()).collect();
    assert_eq!(direct, [true, false, false, false, false]);
    let text = dir.mqblk(&["ctl", "--control=ctl.sock", "list"]).exits(0).out;
    let of = |disk: &str| text.lines().find(|l| l.starts_with(&format!("disk {disk}:"))).unwrap().to_owned();
    assert!(of("fallback").contains(", through the page cache"), "{text}");
    assert!(!of("direct").contains("page cache"), "{text}");
    daemon.signal("TERM");
    daemon.ends().exits(0);
}
