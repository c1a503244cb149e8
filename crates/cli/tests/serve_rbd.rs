// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RBD images under `mqblk run` and `mqblk serve`, on the Ceph cluster that `MQBLK_TEST_CEPH` names (`cargo xtask ceph`): verified load, NBD
//! clients that are not ours, two serving hosts and the lock, `ctl resize`.

mod common;

use common::{Dir, Done};
use std::path::PathBuf;
use std::process::Command;

/// The cluster's configuration; says why not.
fn conf() -> Option<PathBuf> {
    let conf = std::env::var_os("MQBLK_TEST_CEPH").map(PathBuf::from);
    if conf.is_none() {
        eprintln!("skipped: MQBLK_TEST_CEPH names no cluster; cargo xtask ceph runs this test on one");
    }
    conf
}

/// An image that is removed with the test.
struct Image {
    name: String,
    conf: PathBuf,
}

impl Image {
    fn new(dir: &Dir, conf: PathBuf, test: &str, features: &str) -> Image {
        let image = Image { name: format!("rbd/cli-{test}-{}", std::process::id()), conf };
        image.rbd(dir, &["create", "--size", "16M", "--image-feature", features, &image.name]).exits(0);
        image
    }

    fn rbd(&self, dir: &Dir, args: &[&str]) -> Done {
        dir.program("rbd", &[&["-c", self.conf.to_str().unwrap()], args].concat())
    }

    fn target(&self, options: &str) -> String {
        format!("rbd:{}:conf={}{options}", self.name, self.conf.display())
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let mut command = Command::new("timeout");
        let _ = command.args(["60", "rbd", "--no-progress", "rm", &self.name]).env("CEPH_CONF", &self.conf).output();
    }
}

#[test]
fn rbd_images_are_run_on_with_verification() {
    let Some(conf) = conf() else { return };
    let dir = Dir::new("rbd-run");
    let image = Image::new(&dir, conf, "run", "layering");
    dir.file("j.fio", "[j]\nioengine=libaio\nrw=randrw\nbs=4k\nsize=8m\niodepth=16\nverify=crc32c\nrandseed=3\n");
    let two = image.target(":images=2");
    dir.mqblk(&["run", "j.fio", "--target", &two, "--set", "nr_hw_queues=2"]).exits(0);
    // The job is too large for it.
    dir.file("k.fio", "[k]\nioengine=libaio\nrw=read\nbs=4k\nsize=64m\n");
    let refused = dir.mqblk(&["run", "k.fio", "--target", &two]);
    assert!(format!("{refused:?}").contains("rbd resize"), "{refused:?}");
}

#[test]
fn rbd_images_are_served_by_one_host_at_a_time() {
    let Some(conf) = conf() else { return };
    let dir = Dir::new("rbd-serve");
    let image = Image::new(&dir, conf, "serve", "layering,exclusive-lock");
    let target = image.target(":exclusive=1");
    let data: Vec<u8> = (0..16u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(dir.path("data"), &data).unwrap();
    std::fs::write(
        dir.path("serve.toml"),
        format!(
            "[[disk]]\nname = \"d\"\ntarget = '{target}'\n[[export]]\ntype = \"nbd\"\ndisk = \"d\"\nexport_name = \"d\"\nsocket = \"nbd.sock\"\n"
        ),
    )
    .unwrap();
    let serving = dir.start(&["serve", "serve.toml", "--control", "ctl.sock"], "serving");
    let socket = dir.path("nbd.sock");
    let uri = format!("nbd+unix:///d?socket={}", socket.display());
    dir.program("nbdcopy", &["data", &uri]).exits(0);
    dir.program("nbdcopy", &[&uri, "back"]).exits(0);
    assert!(std::fs::read(dir.path("back")).unwrap() == data);
    dir.program("qemu-img", &["compare", "-f", "raw", "-F", "raw", "data", &uri]).exits(0);
    // A second host is told who has it.
    std::fs::create_dir(dir.path("other")).unwrap();
    let refused = dir.mqblk(&["serve", &target, "--socket-dir", "other"]);
    assert!(format!("{refused:?}").contains("has the exclusive lock"), "{refused:?}");
    // Larger, from here and from elsewhere.
    dir.mqblk(&["ctl", "--control", "ctl.sock", "resize", "d", "24m"]).exits(0);
    let info = dir.program("qemu-img", &["info", "-f", "raw", &uri]).exits(0);
    assert!(format!("{info:?}").contains("24 MiB"), "{info:?}");
    image.rbd(&dir, &["resize", "--no-progress", "--size", "32M", &image.name]).exits(0);
    dir.mqblk(&["ctl", "--control", "ctl.sock", "resize", "d"]).exits(0);
    let info = dir.program("qemu-img", &["info", "-f", "raw", &uri]).exits(0);
    assert!(format!("{info:?}").contains("32 MiB"), "{info:?}");
    serving.signal("TERM");
    serving.ends().exits(0);
    // What was written is in the cluster, and the lock is free.
    image.rbd(&dir, &["export", "--no-progress", &image.name, "exported"]).exits(0);
    assert!(std::fs::read(dir.path("exported")).unwrap()[..data.len()] == data);
    let again = dir.start(&["serve", "serve.toml", "--control", "ctl.sock"], "serving");
    dir.program("qemu-img", &["compare", "-f", "raw", "-F", "raw", "exported", &uri]).exits(0);
    again.signal("TERM");
    again.ends().exits(0);
}
