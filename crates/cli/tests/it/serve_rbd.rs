// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RBD images under `mqblk run` and `mqblk serve`, on the Ceph cluster that `MQBLK_TEST_CEPH` names (`cargo xtask ceph`). Covered:
//! verified load, NBD clients of other projects, several serving hosts and the lock, `ctl resize`, ending a run while
//! the OSD is stopped, and a virtual machine's disk.

use crate::ceph;
use crate::common;
#[cfg(target_arch = "x86_64")]
use crate::machine;

use ceph::{CephImage, Cluster, Osd, doing, program};
use common::{Dir, LONG, PROGRAM_POLL, Started, number};
#[cfg(target_arch = "x86_64")]
use machine::Machine;
use std::time::Instant;

const MIB: u64 = 1 << 20;

#[test]
fn rbd_images_are_run_on_with_verification() {
    let Some(_cluster) = Cluster::get() else { return };
    let dir = Dir::new("rbd-run");
    let image = CephImage::new(16 * MIB, "layering");
    dir.file("j.fio", "[j]\nioengine=libaio\nrw=randrw\nbs=4k\nsize=8m\niodepth=16\nverify=crc32c\nrandseed=3\n");
    let two = image.target(":images=2");
    dir.mqblk(&["run", "j.fio", "--target", &two, "--set", "nr_hw_queues=2"]).exits(0);
    // The job is too large for the image.
    dir.file("k.fio", "[k]\nioengine=libaio\nrw=read\nbs=4k\nsize=64m\n");
    let refused = dir.mqblk(&["run", "k.fio", "--target", &two]);
    assert!(format!("{refused:?}").contains("rbd resize"), "{refused:?}");
}

/// Starts a daemon that has the image exclusively, with an NBD export at `nbd.sock` in its directory.
fn serve(dir: &Dir, image: &CephImage) -> Started {
    let target = image.target(":exclusive=1");
    dir.file(
        "serve.toml",
        &format!(
            "[[disk]]\nname = \"d\"\ntarget = '{target}'\n[[export]]\ntype = \"nbd\"\ndisk = \"d\"\nexport_name = \"d\"\nsocket = \"nbd.sock\"\n"
        ),
    );
    dir.start(&["serve", "serve.toml", "--control", "ctl.sock"], "serving")
}

fn uri(dir: &Dir) -> String {
    format!("nbd+unix:///d?socket={}", dir.path("nbd.sock").display())
}

#[test]
fn rbd_images_are_served_by_one_host_at_a_time() {
    let Some(_cluster) = Cluster::get() else { return };
    let dir = Dir::new("rbd-serve");
    let image = CephImage::new(16 * MIB, "layering,exclusive-lock");
    let data: Vec<u8> = (0..16u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(dir.path("data"), &data).unwrap();
    let serving = serve(&dir, &image);
    let uri = uri(&dir);
    dir.program("nbdcopy", &["data", &uri]).exits(0);
    dir.program("nbdcopy", &[&uri, "back"]).exits(0);
    assert!(std::fs::read(dir.path("back")).unwrap() == data);
    dir.program("qemu-img", &["compare", "-f", "raw", "-F", "raw", "data", &uri]).exits(0);
    // A second host is told which client has the lock.
    std::fs::create_dir(dir.path("other")).unwrap();
    let refused = dir.mqblk(&["serve", &image.target(":exclusive=1"), "--socket-dir", "other"]);
    assert!(format!("{refused:?}").contains("has the exclusive lock"), "{refused:?}");
    // The image is enlarged, first by the daemon and then by another client.
    dir.mqblk(&["ctl", "--control", "ctl.sock", "resize", "d", "24m"]).exits(0);
    let info = dir.program("qemu-img", &["info", "-f", "raw", &uri]).exits(0);
    assert!(format!("{info:?}").contains("24 MiB"), "{info:?}");
    program("rbd", &["resize", "--no-progress", "--size", "32M", &image.name]);
    dir.mqblk(&["ctl", "--control", "ctl.sock", "resize", "d"]).exits(0);
    let info = dir.program("qemu-img", &["info", "-f", "raw", &uri]).exits(0);
    assert!(format!("{info:?}").contains("32 MiB"), "{info:?}");
    serving.signal("TERM");
    serving.ends().exits(0);
    // The written data is in the cluster, and the lock is free.
    program("rbd", &["export", "--no-progress", &image.name, dir.path("exported").to_str().unwrap()]);
    assert!(std::fs::read(dir.path("exported")).unwrap()[..data.len()] == data);
    let again = serve(&dir, &image);
    dir.program("qemu-img", &["compare", "-f", "raw", "-F", "raw", "exported", &uri]).exits(0);
    again.signal("TERM");
    again.ends().exits(0);
}

/// Writes a block of this byte to the beginning, through a daemon. Returns whether the write succeeded.
fn writes(dir: &Dir, byte: u8) -> bool {
    let command = format!("write -P {byte} 0 4k");
    dir.program("qemu-io", &["-f", "raw", "-c", &command, "-c", "flush", &uri(dir)]).status == 0
}

/// Serves the image as soon as the cluster has taken the lock from its owner.
fn takes_over(dir: &Dir, image: &CephImage) -> Started {
    let began = Instant::now();
    doing("the cluster takes the lock from a host that is gone");
    // The offset is far from the blocks that the test reads.
    dir.file("try.fio", "[a]\nrw=write\nbs=4k\noffset=512k\nsize=4k\n");
    loop {
        let refused = dir.mqblk(&["run", "try.fio", "--target", &image.target(":exclusive=1")]);
        if refused.status == 0 {
            doing("");
            return serve(dir, image);
        }
        assert!(refused.err.contains("has the exclusive lock"), "{refused:?}");
        // The cluster forgets a dead client sooner (`osd_client_watch_timeout`).
        assert!(began.elapsed() < LONG, "the lock stays with a host that is gone: {refused:?}");
        std::thread::sleep(PROGRAM_POLL);
    }
}

/// A stopped host represents one that was disconnected. When it resumes, another host has its disk.
#[test]
fn rbd_takes_the_lock_of_a_dead_host_and_fences_it() {
    let Some(_cluster) = Cluster::get() else { return };
    let image = CephImage::new(MIB, "layering,exclusive-lock");
    let dirs = ["rbd-first", "rbd-second", "rbd-third"].map(Dir::new);
    let first = serve(&dirs[0], &image);
    assert!(writes(&dirs[0], 1));
    first.signal("STOP");
    let second = takes_over(&dirs[1], &image);
    assert!(writes(&dirs[1], 2));
    first.signal("CONT");
    assert!(!writes(&dirs[0], 3), "the first host has lost its lock");
    let read = ["-f", "raw", "-r", "-c", "read -P 2 0 4k", &uri(&dirs[1])];
    dirs[1].program("qemu-io", &read).exits(0).prints(&["read 4096/4096 bytes"]);
    first.signal("KILL");
    drop(first);
    // A host that died.
    second.signal("KILL");
    drop(second);
    let third = takes_over(&dirs[2], &image);
    let read = ["-f", "raw", "-r", "-c", "read -P 2 0 4k", &uri(&dirs[2])];
    assert!(
        !dirs[2].program("qemu-io", &read).exits(0).out.contains("verification failed"),
        "acknowledged data is there"
    );
    assert!(writes(&dirs[2], 4));
    third.signal("TERM");
    third.ends().exits(0);
}

#[test]
fn rbd_a_run_ends_when_told_to_though_the_osd_stands_still() {
    let Some(cluster) = Cluster::get() else { return };
    let dir = Dir::new("rbd-still");
    let images = [0, 1].map(|_| CephImage::new(8 * MIB, "layering"));
    let [one, other] = [0, 1].map(|i: usize| images[i].target(""));
    let stripe = format!("stripe:{one}+{other}");
    let times = "runtime=600\ntime_based\n";
    dir.file("j.fio", &format!("[a]\nioengine=libaio\nbs=4k\nsize=8m\niodepth=16\nnorandommap\n{times}"));
    dir.file(
        "tx.fio",
        &format!("[a]\nworkload=oltp\nbs=4k\nsize=7m\nusers=16\nreads_per_tx=4\nredo_size=512k\n{times}"),
    );
    let osd = Osd::of(&cluster);
    // Writes are given up. Reads are abandoned in flight, because librbd still uses their memory. This holds for each kind of thread.
    for (job, set, target, stalled, more) in [
        ("j.fio", "rw=randwrite", &one, "[w=0 IOPS]", ""),
        ("j.fio", "rw=randread", &one, "[r=0 IOPS]", "of the I/Os are still in flight"),
        ("j.fio", "rw=randread", &stripe, "[r=0 IOPS]", "of the I/Os are still in flight"),
        ("tx.fio", "update_pct=50", &one, "[r=0,w=0 IOPS]", "of the I/Os are still in flight"),
        ("tx.fio", "update_pct=50", &stripe, "[r=0,w=0 IOPS]", "of the I/Os are still in flight"),
    ] {
        // Progress shows only directions that have had I/O, and all of them must have had some.
        let used = if stalled.contains(",w=") { ",w=" } else { "IOPS]" };
        let mut run = dir.start(&["run", job, "--job-set", set, "--target", target, "--eta=always", "--json"], used);
        osd.stop();
        doing("a run whose OSD stands still");
        run.until(stalled);
        run.signal("INT");
        let done = run.ends().exits(130);
        let dir = if set == "rw=randwrite" { "write" } else { "read" };
        assert!(number(&done.json(), &format!("/jobs/0/{dir}/total_ios")) > 0.0);
        done.says(&["I/Os 2 s after the request to stop the run: they were given up", more]);
        osd.go_on();
    }
}

/// The guest's script. The data that it writes are files of the host.
const GUEST: &str = "
set -eu
fail() { echo \"GUEST-FAIL: $*\"; exit 1; }
for i in $(seq 200); do [ -e /sys/block/vda ] && break; sleep 0.1; done
[ \"$(ls /sys/block/vda/mq | wc -l)\" = 2 ] || fail queues
# By two writers past the guest's cache, then through it.
dd if=/data of=/dev/vda bs=64k seek=16 oflag=direct 2>/dev/null & first=$!
dd if=/data of=/dev/vda bs=4k seek=4096 oflag=direct 2>/dev/null & second=$!
wait $first && wait $second || fail \"direct writes\"
dd if=/data of=/dev/vda bs=1k seek=32771 conv=fsync 2>/dev/null || fail \"buffered writes\"
dd if=/dev/vda bs=64k skip=16 count=64 iflag=direct 2>/dev/null | cmp - /data || fail \"what was written is not what is read\"
echo GUEST-PASS
";

/// A virtual machine's disk is an image. The daemon is killed after the guest has shut down, so only the guest's flushes can have brought
/// data to the image.
#[test]
#[cfg(target_arch = "x86_64")]
fn rbd_images_are_disks_of_virtual_machines() {
    let Some(_cluster) = Cluster::get() else { return };
    let data: Vec<u8> = (0..4u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut expected = vec![0; 48 << 20];
    for at in [1 << 20, 16 << 20, 32771 << 10] {
        expected[at..at + data.len()].copy_from_slice(&data);
    }
    let cached = ":rbd_cache=true:rbd_cache_writethrough_until_flush=false";
    for options in ["", cached] {
        let dir = Dir::new("rbd-guest");
        let image = CephImage::new(48 * MIB, "layering");
        std::fs::write(dir.path("data"), &data).unwrap();
        dir.file(
            "serve.toml",
            &format!(
                "[[disk]]\nname = \"d\"\ntarget = '{}'\n[[export]]\ntype = \"vhost-user-blk\"\nsocket = \"d.sock\"\nnum_queues = 2\n",
                image.target(options)
            ),
        );
        let serving = dir.start(&["serve", "serve.toml", "--control", "ctl.sock"], "serving");
        let machine = Machine { queues: 2, limit_s: 600, files: &["data"], ..Machine::default() };
        doing("a guest that writes to an image");
        machine.start(&dir, "d.sock", GUEST, &[]).passes(&options);
        serving.signal("KILL");
        assert_eq!(serving.ends().status, -1);
        program("rbd", &["export", "--no-progress", &image.name, dir.path("exported").to_str().unwrap()]);
        let exported = std::fs::read(dir.path("exported")).unwrap();
        let differs = exported.iter().zip(&expected).position(|(a, b)| a != b);
        assert!(exported.len() == expected.len() && differs.is_none(), "{options}: from byte {differs:?} on");
    }
}
