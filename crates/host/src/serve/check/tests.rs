// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Valid plans, and the errors of invalid ones.

use super::*;
use crate::net::certificates::NbdTls;
use crate::serve::mapping::MappingEntry;
use crate::serve::plan::{FusePlan, NbdPlan, QUEUE_SIZE, UblkPlan, VhostUserPlan};
use crate::target::TargetSpec;

fn host(n: u32) -> HostFacts {
    HostFacts { cpus: (0..n).collect() }
}

fn disk(name: &str, target: &str) -> DiskPlan {
    DiskPlan::new(name, TargetSpec::parse(target).unwrap(), target)
}

fn vhost(name: &str, disk: &str, num_queues: u16) -> ExportPlan {
    let socket = format!("{name}.sock").into();
    let kind = ExportKind::VhostUserBlk(VhostUserPlan {
        socket,
        socket_mode: None,
        num_queues,
        queue_size: QUEUE_SIZE,
        allow_file_memory: false,
    });
    ExportPlan {
        name: name.to_owned(),
        disk: disk.to_owned(),
        read_only: false,
        geometry: Geometry::default(),
        mapping: Mapping::default(),
        kind,
    }
}

fn nbd(name: &str, disk: &str, listen: NbdListen) -> ExportPlan {
    let kind =
        ExportKind::Nbd(NbdPlan { listen, socket_mode: None, name: disk.to_owned(), tls: None, max_connections: 16 });
    ExportPlan { kind, ..vhost(name, disk, 1) }
}

fn unix(path: &str) -> NbdListen {
    NbdListen::Unix(path.into())
}

fn plan(disks: Vec<DiskPlan>, exports: Vec<ExportPlan>) -> ServePlan {
    ServePlan { iothreads: Vec::new(), disks, exports }
}

/// The only error of a plan.
#[track_caller]
fn error(plan: ServePlan) -> PlanError {
    let errors = plan.check(&host(4)).expect_err("refused").0;
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors[0].clone()
}

/// Returns the only error of a plan after `change` of its export.
#[track_caller]
fn export_error(change: impl FnOnce(&mut ExportPlan)) -> PlanError {
    let mut export = vhost("e", "a", 2);
    change(&mut export);
    error(plan(vec![disk("a", "null")], vec![export]))
}

#[test]
fn without_iothreads_there_is_one_per_virtqueue_up_to_the_cpus() {
    let of = |queues: u16, cpus: u32| {
        let plan = plan(vec![disk("a", "null")], vec![vhost("e", "a", queues)]).check(&host(cpus)).unwrap();
        (plan.iothreads().len(), plan.exports().next().unwrap().iothreads.to_vec())
    };
    assert_eq!(of(2, 8), (2, vec![0, 1]));
    assert_eq!(of(5, 4), (4, vec![0, 1, 2, 3, 0]));
    assert_eq!(of(1, 1), (1, vec![0]));
    let nbd = plan(vec![disk("a", "null")], vec![nbd("n", "a", unix("s"))]).check(&host(3)).unwrap();
    assert_eq!(
        nbd.iothreads().iter().map(|t| t.name.as_str()).collect::<Vec<_>>(),
        ["iothread0", "iothread1", "iothread2"]
    );
    assert_eq!(nbd.exports().next().unwrap().iothreads, [0, 1, 2], "connections in turn");
}

#[test]
fn exports_without_a_mapping_are_dealt_on() {
    let exports = (0..5).map(|n| vhost(&format!("e{n}"), "a", 1)).collect();
    let plan = plan(vec![disk("a", "null")], exports).check(&host(2)).unwrap();
    let all: Vec<_> = plan.exports().map(|e| e.iothreads.to_vec()).collect();
    assert_eq!(all, [[0], [1], [0], [1], [0]], "not all on the first IOThread");
}

#[test]
fn a_mapping_is_resolved_or_refused_with_its_place() {
    let with = |entries: Vec<(&str, Option<Vec<u16>>)>| {
        let mut export = vhost("e", "a", 2);
        let entry = |(name, vqs): (&str, _)| MappingEntry { iothread: name.to_owned(), vqs };
        export.mapping.entries = entries.into_iter().map(entry).collect();
        let iothreads = vec![IoThreadPlan::new("x"), IoThreadPlan::new("y")];
        ServePlan { iothreads, ..plan(vec![disk("a", "null")], vec![export]) }
    };
    let good = with(vec![("y", Some(vec![0])), ("x", Some(vec![1]))]).check(&host(1)).unwrap();
    assert_eq!(good.exports().next().unwrap().iothreads, [1, 0]);
    let e = error(with(vec![("y", None), ("z", None)]));
    assert_eq!((e.place, e.key.as_str()), (PlanItem::Export(0), "iothreads"));
    assert_eq!(e.to_string(), "iothreads: there is no IOThread 'z'; did you mean 'x'? IOThreads: x, y (export 'e')");
    let mut lists = with(vec![("x", Some(vec![0]))]);
    lists.exports[0].kind = nbd("n", "a", unix("s")).kind;
    assert_eq!(error(lists).text, "iothreads: type=nbd has no virtqueues to list; name only the IOThreads");
}

#[test]
fn names_are_good_unique_and_refer_to_something() {
    let e = error(plan(vec![disk("a", "null"), disk("a", "null")], vec![vhost("e", "a", 1)]));
    assert_eq!(
        (e.place, e.to_string().as_str()),
        (PlanItem::Disk(1), "name=a: another disk has this name; choose a new one (disk 'a')")
    );
    let e = export_error(|e| e.disk = "b".to_owned());
    assert_eq!(
        e.to_string(),
        "disk=b: there is no such disk; did you mean 'a'? add a [[disk]] of that name (export 'e')"
    );
    for bad in ["", "a b", "-a", "a/b", "\u{1b}[31m", &"x".repeat(65)] {
        let e = export_error(|e| e.name = bad.to_owned());
        assert!(e.text.contains("must be 1 to 64 characters from a-z") && !e.to_string().contains('\u{1b}'), "{e}");
    }
    assert!(error(plan(vec![], vec![])).text.starts_with("no disk is configured"));
    assert!(error(plan(vec![disk("a", "null")], vec![])).text.starts_with("no export is configured"));
}

#[test]
fn numbers_have_ranges() {
    let vhost_with = |change: fn(&mut VhostUserPlan)| {
        export_error(|e| match &mut e.kind {
            ExportKind::VhostUserBlk(v) => change(v),
            _ => unreachable!("a vhost export"),
        })
        .text
    };
    assert_eq!(vhost_with(|v| v.num_queues = 0), "num_queues=0: must be 1..=256");
    assert_eq!(vhost_with(|v| v.num_queues = 257), "num_queues=257: must be 1..=256");
    for size in [0, 1, 100, 2048] {
        let e = export_error(|e| {
            let socket = "s".into();
            let v =
                VhostUserPlan { socket, socket_mode: None, num_queues: 1, queue_size: size, allow_file_memory: false };
            e.kind = ExportKind::VhostUserBlk(v);
        });
        assert_eq!(e.text, format!("queue_size={size}: must be a power of two in 2..=1024"));
    }
    let ublk = |num_queues, queue_depth| {
        export_error(|e| e.kind = ExportKind::Ublk(UblkPlan { id: None, num_queues, queue_depth, recovery: false }))
            .text
    };
    assert_eq!(ublk(0, 1), "num_queues=0: must be 1..=4096");
    assert_eq!(ublk(1, 0), "queue_depth=0: must be 1..=4096");
    let nameless = ExportKind::Ublk(UblkPlan { id: None, num_queues: 1, queue_depth: 1, recovery: true });
    assert!(export_error(|e| e.kind = nameless).text.starts_with("recovery=true: needs id=N"));
    let mut p = plan(vec![disk("a", "null")], vec![vhost("e", "a", 1)]);
    p.iothreads = vec![IoThreadPlan { cpus: vec![2, 3, 4, 5], ..IoThreadPlan::new("t") }];
    assert_eq!(
        error(p.clone()).to_string(),
        "cpus=2-5: this daemon may not use CPU 4-5; it may use 0-3 (IOThread 't')"
    );
    p.iothreads[0].cpus.clear();
    p.iothreads[0].poll.max_ns = Some(u64::MAX);
    assert_eq!(error(p).text, "poll_max_ns=18446744073709551615: must be 0..=1000000000");
}

#[test]
fn settings_are_checked_one_by_one_and_together() {
    let with = |settings: &[(&str, &str)]| {
        let mut d = disk("a", "null");
        d.settings = settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        plan(vec![d], vec![vhost("e", "a", 1)])
    };
    with(&[("scheduler", "mq-deadline"), ("iosched.read_expire", "100")]).check(&host(1)).unwrap();
    let both = with(&[("nr_hw_queue", "1"), ("queue_depth", "0")]).check(&host(1)).unwrap_err().0;
    let keys: Vec<_> = both.iter().map(|e| e.key.as_str()).collect();
    assert_eq!(keys, ["queue.nr_hw_queue", "queue.queue_depth"]);
    assert!(both[0].text.contains("did you mean 'nr_hw_queues'?"), "{}", both[0]);
    let e = error(with(&[("queue_depth", "8"), ("scheduler", "bfqq")]));
    assert!(e.key == "queue.scheduler" && e.text.starts_with("scheduler=bfqq: must be one of"), "{e:?}");
    let e = error(with(&[("shared_tags", "1")]));
    assert_eq!(e.text, "shared_tags=1: is for the disks of a run (mqblk run), not for one disk; leave it out");
}

#[test]
fn serials_fit_the_guests_field() {
    for bad in ["", "x\ny", "123456789012345678901", "\u{e9}"] {
        let mut d = disk("a", "null");
        d.serial = Some(bad.to_owned());
        let e = error(plan(vec![d], vec![vhost("e", "a", 1)]));
        assert!(e.key == "serial" && e.text.ends_with("must be 1..=20 printable ASCII characters"), "{e}");
    }
}

#[test]
fn only_a_file_has_parts() {
    let of = |target: &str, offset, size| {
        let disk = DiskPlan { part: FilePart { offset, size }, ..disk("a", target) };
        plan(vec![disk], vec![vhost("e", "a", 1)])
    };
    assert!(of("a.img", 1 << 20, Some(512)).check(&host(4)).is_ok());
    assert!(of("null", 0, None).check(&host(4)).is_ok());
    let refused = |target: &str, offset, size| {
        let e = error(of(target, offset, size));
        (e.key, e.text)
    };
    let (key, text) = refused("null", 0, Some(4096));
    assert!(key == "size" && text.starts_with("size=4096: needs one file"), "{text}");
    assert_eq!(refused("multipath:a.img+b.img", 4096, None).0, "offset");
    let (key, text) = refused("a.img", 1000, None);
    assert_eq!((key.as_str(), text.as_str()), ("offset", "offset=1000: must be a multiple of 512"));
}

#[test]
fn one_image_has_one_writer() {
    let two = |a: bool, b: bool| {
        let disks =
            vec![DiskPlan { read_only: a, ..disk("a", "x.img") }, DiskPlan { read_only: b, ..disk("b", "./x.img") }];
        plan(disks, vec![vhost("e", "a", 1)])
    };
    two(true, true).check(&host(1)).unwrap();
    for (a, b) in [(false, false), (true, false), (false, true)] {
        let e = error(two(a, b));
        assert!(
            e.place == PlanItem::Disk(1) && e.text.starts_with("target=./x.img: disk 'a' has this image, too"),
            "{e}"
        );
    }
}

#[test]
fn one_place_has_one_listener() {
    let two = |a: ExportPlan, b: ExportPlan| plan(vec![disk("a", "null"), disk("b", "null")], vec![a, b]);
    let mut same = vhost("f", "a", 1);
    same.kind = vhost("./e", "a", 1).kind;
    let e = error(two(vhost("e", "a", 1), same));
    assert_eq!(e.to_string(), "socket=./e.sock: export 'e' listens there; choose another path (export 'f')");
    assert_eq!(e.place, PlanItem::Export(1));
    let e = error(two(vhost("e", "a", 1), nbd("n", "a", unix("e.sock"))));
    assert!(e.text.starts_with("socket=e.sock: export 'e' listens there"), "{e}");
    // Exports of one NBD server share its socket, under names of their own and with the same TLS.
    let tcp = NbdListen::Tcp("127.0.0.1:10809".parse().unwrap());
    let good = two(nbd("m", "a", tcp.clone()), nbd("n", "b", tcp.clone())).check(&host(1)).unwrap();
    let servers = good.nbd_servers();
    assert_eq!((servers.len(), servers[0].exports.as_slice()), (1, &[0, 1][..]));
    let e = error(two(nbd("m", "a", tcp.clone()), nbd("n", "a", tcp.clone())));
    assert!(e.key == "listen" && e.text.contains("serves the export name 'a' already"), "{e}");
    let mut secure = nbd("n", "b", tcp.clone());
    if let ExportKind::Nbd(n) = &mut secure.kind {
        n.tls = Some(NbdTls::in_directory("pki".as_ref(), false, true));
    }
    assert!(error(two(nbd("m", "a", tcp), secure)).text.contains("has different TLS settings"));
    let fuse = |name: &str| ExportPlan {
        kind: ExportKind::Fuse(FusePlan { mountpoint: "m".into(), allow_other: false }),
        ..vhost(name, "a", 1)
    };
    assert!(error(two(fuse("f"), fuse("g"))).text.starts_with("mountpoint=m: export 'f' is mounted there"));
    assert!(
        export_error(|e| *e = nbd("n", "a", NbdListen::Tcp("[::1]:0".parse().unwrap()))).text.contains("1..=65535")
    );
}

#[test]
fn block_sizes_of_an_export_are_checked_with_those_of_its_disk() {
    let of = |logical, physical, of_disk| {
        let geometry = Geometry { logical, physical };
        let of_disk = Geometry { logical: of_disk, physical: None };
        let disks = vec![DiskPlan { geometry: of_disk, ..disk("a", "null") }];
        plan(disks, vec![ExportPlan { geometry, ..vhost("e", "a", 1) }])
    };
    for (logical, physical, of_disk) in [(Some(512), None, Some(4096)), (Some(4096), Some(16384), None)] {
        assert!(of(logical, physical, of_disk).check(&host(1)).is_ok());
    }
    for (logical, physical, of_disk, key, text) in [
        (Some(8192), None, None, "logical_block_size", "logical_block_size=8192: must be 512, 1024, 2048 or 4096"),
        (
            None,
            Some(512),
            Some(4096),
            "physical_block_size",
            "physical_block_size=512: must be a power of two, 4096..=",
        ),
        (
            Some(1024),
            Some(512),
            None,
            "physical_block_size",
            "physical_block_size=512: must be a power of two, 1024..=",
        ),
    ] {
        let e = error(of(logical, physical, of_disk));
        assert!(e.key == key && e.place == PlanItem::Export(0) && e.text.starts_with(text), "{e}");
    }
    let e = export_error(|e| {
        e.kind = ExportKind::Fuse(FusePlan { mountpoint: "m".into(), allow_other: false });
        e.geometry.physical = Some(4096);
    });
    assert_eq!(e.text, "physical_block_size=4096: an export of type=fuse has no block size; leave it out");
}

#[test]
fn a_socket_path_fits_into_an_address() {
    let e = export_error(|e| *e = nbd("n", "a", unix(&"x".repeat(108))));
    assert!(e.text.contains("has 108 bytes, Unix sockets take 107; choose a shorter path"), "{e}");
    plan(vec![disk("a", "null")], vec![nbd("n", "a", unix(&"x".repeat(107)))]).check(&host(1)).unwrap();
}

#[test]
fn read_only_is_of_the_disk_or_of_the_export() {
    let mut disks = vec![disk("a", "null"), disk("b", "null")];
    disks[1].read_only = true;
    let exports = vec![vhost("e", "a", 1), ExportPlan { read_only: true, ..vhost("f", "a", 1) }, vhost("g", "b", 1)];
    let plan = plan(disks, exports).check(&host(1)).unwrap();
    assert_eq!(plan.exports().map(|e| e.read_only).collect::<Vec<_>>(), [false, true, true]);
}

#[test]
fn fresh_names_are_good_names() {
    let mut names = FreshNames::default();
    let taken: Vec<_> = ["disk.img", "disk.img", "-", "", &"y z".repeat(40)].iter().map(|n| names.take(n)).collect();
    assert_eq!(&taken[..3], ["disk.img", "disk.img-2", "d-"]);
    assert!(taken.iter().all(|n| bad_name(n).is_none()), "{taken:?}");
}
