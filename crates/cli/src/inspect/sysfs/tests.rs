// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Made-up trees: a laptop with an eMMC disk on a legacy kernel, and a server with several kinds of disk.

use super::*;
use crate::inspect::host_text;

/// A directory that is removed with the test.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str, files: &[(&str, &str)]) -> Tree {
        let tree = Tree(std::env::temp_dir().join(format!("mqblk-sysfs-{name}-{}", std::process::id())));
        for (path, text) in files {
            let path = tree.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        tree
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_scsi_parameter_does_not_concern_an_emmc_disk() {
    let tree = Tree::new(
        "emmc",
        &[
            ("proc/sys/kernel/osrelease", "4.15.0\n"),
            ("sys/block/mmcblk0/queue/scheduler", "noop deadline [cfq]\n"),
            ("sys/block/mmcblk0/queue/nr_requests", "128\n"),
            ("sys/block/mmcblk0/size", "61071360\n"),
            ("sys/module/scsi_mod/parameters/use_blk_mq", "Y\n"),
        ],
    );
    let f = read(&tree.0, None).unwrap();
    let d = &f.devices[0];
    assert_eq!((d.kind.as_deref(), d.scheduler.as_deref(), d.nr_hw_queues), (Some("mmc"), Some("cfq"), None));
    assert_eq!(d.size_bytes, Some(61_071_360 << 9));
    let text = host_text::text(&f);
    for needle in [
        "mmcblk0: mmc, 29.1GiB\n",
        "note: scsi_mod.use_blk_mq=Y has no effect on this disk: it is no SCSI disk (mmc)\n",
        "note: single-queue: its elevators are those of the legacy block layer\n",
        "  rq_affinity          = not there\n",
        "  scsi_mod.use_blk_mq                = Y ",
        "  dm_mod.use_blk_mq                  = not there ",
    ] {
        assert!(text.contains(needle), "{needle:?} in\n{text}");
    }
}

#[test]
fn hardware_queues_come_in_order_with_their_tags_and_cpus() {
    let mut files = vec![
        ("sys/block/sda/queue/scheduler".to_owned(), "none [mq-deadline] kyber\n"),
        ("sys/block/sda/device/scsi_disk/0:0:0:0/x".to_owned(), ""),
        ("sys/block/sda/sda1/partition".to_owned(), "1\n"),
        ("sys/block/sda/mq/0/nr_reserved_tags".to_owned(), "0\n"),
        ("sys/module/scsi_mod/parameters/use_blk_mq".to_owned(), "Y\n"),
        ("dev/sda1".to_owned(), ""),
        ("dev/dm-0".to_owned(), ""),
        ("sys/block/dm-0/queue/nr_requests".to_owned(), "128\n"),
    ];
    for q in 0..11 {
        files.push((format!("sys/block/sda/mq/{q}/nr_tags"), "55\n"));
        files.push((format!("sys/block/sda/mq/{q}/cpu_list"), "1, 3\n"));
    }
    let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (p.as_str(), *t)).collect();
    let tree = Tree::new("server", &files);
    fs::create_dir_all(tree.0.join("dev/mapper")).unwrap();
    std::os::unix::fs::symlink("../dm-0", tree.0.join("dev/mapper/vg-data")).unwrap();
    let by = |name: &str| read(&tree.0, Some(name)).unwrap().devices.remove(0);
    let d = by("/dev/sda1");
    assert_eq!((d.name.as_str(), d.kind.as_deref(), d.nr_hw_queues), ("sda", Some("scsi"), Some(11)));
    assert_eq!(d.hctxs.iter().map(|h| h.hctx).collect::<Vec<_>>(), (0..11).collect::<Vec<_>>());
    assert_eq!((d.hctxs[10].nr_tags, d.hctxs[10].cpu_list.as_deref()), (Some(55), Some("1, 3")));
    assert_eq!(d.hctxs[0].nr_reserved_tags, Some(0));
    assert!(d.notes.iter().any(|n| n.contains("one elevator over several hardware queues")), "{:?}", d.notes);
    assert!(!d.notes.iter().any(|n| n.contains("use_blk_mq")), "{:?}", d.notes);
    assert_eq!(by("sda"), d);
    let dm = by("/dev/mapper/vg-data");
    assert_eq!((dm.name.as_str(), dm.kind.as_deref()), ("dm-0", Some("device-mapper")));
    assert!(dm.notes[0].contains("bio-based"), "{:?}", dm.notes);
    let e = read(&tree.0, Some("sdb")).unwrap_err();
    assert_eq!(e, "--host sdb: is no block device of this host; did you mean 'sda'? There are dm-0, sda");
}

#[test]
fn an_empty_host_is_said_to_be_empty() {
    let f = read(Path::new("/nonexistent-root-of-a-test"), None).unwrap();
    assert!(f.devices.is_empty() && host_text::text(&f).contains("no block devices under /sys/block"));
    let e = read(Path::new("/nonexistent-root-of-a-test"), Some("sda")).unwrap_err();
    assert!(e.contains("shows no block devices"), "{e}");
}

/// What `--export` makes of a tree; it reads back.
fn exported(tree: &Tree, disk: &str) -> (String, sim::scenario::file::Scenario) {
    let f = read(&tree.0, Some(disk)).unwrap();
    let text = crate::inspect::export::text(&tree.0, f.kernel.as_deref(), f.devices.first(), None);
    let machine =
        sim::scenario::file::Scenario::parse_machine("m.toml", &text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    (text, machine)
}

#[test]
fn a_server_with_a_scsi_disk_becomes_a_machine_file() {
    let mut files: Vec<(String, String)> = Vec::new();
    let mut add = |path: &str, text: &str| files.push((path.to_owned(), text.to_owned()));
    add("sys/devices/system/cpu/online", "0-7\n");
    for cpu in 0..8 {
        let at = format!("sys/devices/system/cpu/cpu{cpu}/topology");
        add(&format!("{at}/physical_package_id"), &format!("{}\n", cpu / 2 % 2));
        add(&format!("{at}/thread_siblings_list"), &format!("{},{}\n", cpu % 4, cpu % 4 + 4));
    }
    add("sys/devices/system/cpu/cpu0/cache/index3/level", "3\n");
    add("sys/devices/system/cpu/cpu0/cache/index3/type", "Unified\n");
    add("sys/devices/system/cpu/cpu0/cache/index3/size", "32768K\n");
    add("sys/block/sda/size", "209715201\n");
    add("sys/block/sda/queue/scheduler", "none [mq-deadline] kyber\n");
    add("sys/block/sda/queue/nr_requests", "62\n");
    add("sys/block/sda/queue/max_sectors_kb", "1280\n");
    add("sys/block/sda/queue/nomerges", "0\n");
    add("sys/block/sda/queue/rotational", "1\n");
    add("sys/block/sda/queue/zoned", "host-aware\n");
    add("sys/block/sda/queue/iosched/fifo_batch", "8\n");
    add("sys/block/sda/queue/iosched/of_the_future", "1\n");
    for q in 0..4 {
        add(&format!("sys/block/sda/mq/{q}/nr_tags"), "62\n");
    }
    add("sys/devices/pci/host7/target7/7:0:0:0/queue_depth", "32\n");
    add("sys/devices/pci/host7/target7/7:0:0:0/scsi_disk/x", "\n");
    add("sys/class/scsi_host/host7/can_queue", "62\n");
    let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
    let tree = Tree::new("export", &files);
    std::os::unix::fs::symlink(
        tree.0.join("sys/devices/pci/host7/target7/7:0:0:0"),
        tree.0.join("sys/block/sda/device"),
    )
    .unwrap();
    let (text, m) = exported(&tree, "sda");
    assert_eq!((m.machine.sockets, m.machine.cores, m.machine.threads), (2, 2, 2), "{text}");
    let d = &m.disk;
    assert_eq!(d.attach, sim::scenario::file::Attach::Scsi);
    assert_eq!((d.size_gib, d.lun_queue_depth, d.queue_depth, d.read_us), (101, Some(32), 62, 8000.0), "{text}");
    let set = |name: &str| m.settings.get(name).map(sim::scenario::file::Scalar::text);
    assert_eq!(set("scheduler").as_deref(), Some("mq-deadline"));
    assert_eq!((set("nr_hw_queues").as_deref(), set("max_sectors_kb").as_deref()), (Some("4"), Some("1024")));
    assert_eq!((set("iosched.fifo_batch").as_deref(), set("iosched.of_the_future")), (Some("8"), None));
    assert!(text.contains("# \"iosched.of_the_future\" = 1: left out: "), "{text}");
    assert!(text.contains("# cache: L3 Unified 32768K") && text.contains("# Assumed for a rotating disk"), "{text}");
    assert_eq!(m.uncertain["disk.read_us"], [4000.0, 16000.0]);
    assert!(d.rotational && d.smr && d.hdd.is_none(), "{text}");
}

#[test]
fn a_legacy_kernel_and_a_host_that_shows_nothing_become_one_too() {
    let files = [
        ("sys/block/mmcblk0/queue/scheduler", "noop deadline [cfq]\n"),
        ("sys/block/mmcblk0/queue/nr_requests", "128\n"),
        ("sys/block/mmcblk0/size", "61071360\n"),
    ];
    let (text, m) = exported(&Tree::new("export-emmc", &files), "mmcblk0");
    assert_eq!((m.disk.attach, m.machine.cpus()), (sim::scenario::file::Attach::Mmc, 1), "{text}");
    assert_eq!(m.settings["mode"].text(), "sq");
    assert!(text.contains("# scheduler = \"cfq\": left out: "), "{text}");
    let text = crate::inspect::export::text(Path::new("/nonexistent-root-of-a-test"), None, None, None);
    assert!(sim::scenario::file::Scenario::parse_machine("m.toml", &text).is_ok(), "{text}");
}
