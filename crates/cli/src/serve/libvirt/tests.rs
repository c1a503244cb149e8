// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Domains as libvirt writes them, and the errors of invalid ones.

use super::*;
use host::driver::file::FilePart;
use host::serve::check::{CheckedPlan, HostFacts};
use host::serve::geometry::Geometry;

const PUBLISHED: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/iothreads-domain.xml"));

fn read(text: &str) -> Result<FromDomain, String> {
    super::read(text, &Defaults { num_queues: 2, socket_dir: None })
}

/// Returns a domain that begins with `head` and has one virtio disk, with the element `driver` and the elements `more`.
fn domain(head: &str, driver: &str, more: &str) -> String {
    format!(
        "<domain type='kvm'><name>vm</name>{head}<devices><disk type='block' device='disk'>{driver}\
         <source dev='/dev/vg/data'/><target dev='vda' bus='virtio'/>{more}</disk></devices></domain>"
    )
}

fn checked(text: &str) -> CheckedPlan {
    let plan = read(text).map_err(|e| format!("{e}: {text}")).unwrap().plan;
    plan.check(&HostFacts { cpus: (0..8).collect() }).unwrap()
}

#[track_caller]
fn refused(head: &str, driver: &str, says: &str) {
    let e = read(&domain(head, driver, "")).err().expect("refused");
    assert!(e.contains(says), "{says:?} is not in {e:?}");
}

#[test]
fn published_domain_maps_96_virtqueues_to_4_iothreads() {
    let found = read(PUBLISHED).unwrap();
    assert_eq!(
        found.warnings,
        [
            "disk 'vda' is left out: driver type='qcow2': only raw images can be served",
            "disk 'sda' is left out: it is a cdrom"
        ]
    );
    let plan = checked(PUBLISHED);
    let names: Vec<&str> = plan.iothreads().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["iothread1", "iothread2", "iothread3", "iothread4"]);
    let export = plan.exports().next().unwrap();
    assert_eq!(export.plan.name, "oracle1.vdb.vhost");
    assert_eq!(export.plan.kind.num_queues(), Some(96));
    assert!(export.iothreads.len() == 96 && export.iothreads.iter().enumerate().all(|(vq, t)| *t == vq % 4));
    let disk = &plan.disks()[export.disk];
    assert!(disk.direct && disk.write_cache == WriteCache::Back && disk.name == "vdb", "{disk:?}");
}

#[test]
fn queues_are_as_many_as_vcpus_unless_said() {
    let queues =
        |head, driver| checked(&domain(head, driver, "")).exports().next().unwrap().plan.kind.num_queues().unwrap();
    assert_eq!(queues("<vcpu>6</vcpu>", "<driver type='raw'/>"), 6);
    assert_eq!(queues("<vcpu placement='static' current='3'>6</vcpu>", "<driver type='raw'/>"), 3);
    assert_eq!(queues("<vcpu>6</vcpu>", "<driver type='raw' queues='2'/>"), 2);
    assert_eq!(queues("<vcpu>500</vcpu>", ""), 256, "what vhost-user can have");
    assert_eq!(queues("", ""), 1);
}

#[test]
fn iothreads_have_ids_affinity_and_polling() {
    let head = "<vcpu>4</vcpu><iothreads>3</iothreads>\
                <iothreadids><iothread id='2'><poll max='0'/></iothread></iothreadids>\
                <cputune><iothreadpin iothread='1' cpuset='0-3,^2'/><vcpupin vcpu='0' cpuset='1'/>\
                <iothreadpin iothread='3' cpuset='5'/></cputune>";
    let driver = "<driver type='raw' queues='4'><iothreads>\
                  <iothread id='3'><queue id='0'/><queue id='2'/></iothread>\
                  <iothread id='1'><queue id='3'/><queue id='1'/></iothread></iothreads></driver>";
    let plan = checked(&domain(head, driver, ""));
    let threads: Vec<_> = plan.iothreads().iter().map(|t| (t.name.as_str(), &t.cpus[..], t.poll.max_ns)).collect();
    let expected: [(&str, &[u32], Option<u64>); 3] =
        [("iothread1", &[0, 1, 3], None), ("iothread2", &[], Some(0)), ("iothread3", &[5], None)];
    assert_eq!(threads, expected);
    assert_eq!(plan.exports().next().unwrap().iothreads, [2, 0, 2, 0]);
    let one = checked(&domain("<iothreads>2</iothreads>", "<driver type='raw' queues='2' iothread='2'/>", ""));
    assert_eq!(one.exports().next().unwrap().iothreads, [1, 1]);
}

#[test]
fn what_a_disk_is_comes_over() {
    let driver = |attributes: &str| format!("<driver type='raw' {attributes}/>");
    let disk = |attributes: &str, more: &str| checked(&domain("", &driver(attributes), more)).disks()[0].clone();
    for (cache, direct, write_cache) in [
        ("none", true, WriteCache::Back),
        ("directsync", true, WriteCache::Through),
        ("writethrough", false, WriteCache::Through),
        ("writeback", false, WriteCache::Back),
        ("default", false, WriteCache::Back),
    ] {
        let disk = disk(&format!("cache='{cache}'"), "");
        assert_eq!((disk.direct, disk.write_cache), (direct, write_cache), "{cache}");
    }
    let plain = disk("", "");
    assert_eq!((plain.discard, plain.on_enospc, plain.read_only), (false, OnEnospc::Stop, false), "QEMU's defaults");
    assert_eq!(plain.paths().next(), Some(std::path::Path::new("/dev/vg/data")));
    let more = "<readonly/><serial>WD-42</serial>\
                <iotune><total_iops_sec>1000</total_iops_sec><read_bytes_sec> 4096 </read_bytes_sec></iotune>";
    let full = disk("discard='unmap' error_policy='report' queue_size='512'", more);
    assert_eq!((full.discard, full.on_enospc, full.read_only), (true, OnEnospc::Report, true));
    assert_eq!(full.serial.as_deref(), Some("WD-42"));
    let limit = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(full.settings, [limit("bps_read", "4096"), limit("iops_total", "1000")]);
}

#[test]
fn what_is_not_as_qemu_has_it_is_said() {
    let more =
        "<shareable/><iotune><total_iops_sec>1</total_iops_sec><total_iops_sec_max>2</total_iops_sec_max></iotune>";
    let found = read(&domain("", "<driver type='raw' cache='unsafe' error_policy='ignore'/>", more)).unwrap();
    let begins = [
        "disk 'vda': cache='unsafe'",
        "disk 'vda': error_policy='ignore'",
        "disk 'vda': <shareable/>",
        "disk 'vda': bursts",
    ];
    assert_eq!(found.warnings.len(), begins.len(), "{:?}", found.warnings);
    assert!(found.warnings.iter().zip(begins).all(|(w, b)| w.starts_with(b)), "{:?}", found.warnings);
}

/// Regression: QEMU stops the guest at any error with this policy, and the daemon did not say that it reports the errors instead.
#[test]
fn error_policies_are_those_of_libvirt_or_named() {
    let policy =
        |policy: &str| read(&domain("", &format!("<driver type='raw' error_policy='{policy}'/>"), "")).unwrap();
    let stop = policy("stop");
    assert_eq!(stop.plan.disks[0].on_enospc, OnEnospc::Stop);
    let text = "is served as 'enospace': the guest gets all other errors, and does not stop";
    assert_eq!(stop.warnings, [format!("disk 'vda': error_policy='stop' {text}")]);
    for same in ["enospace", "default"] {
        let found = policy(same);
        assert_eq!((found.plan.disks[0].on_enospc, found.warnings.len()), (OnEnospc::Stop, 0), "{same}");
    }
    refused("", "<driver error_policy='pause'/>", "disk 'vda': error_policy='pause': no such policy");
}

/// Regression: a limit or a real-time priority of IOThreads was lost in silence.
#[test]
fn elements_of_threads_without_effect_are_named() {
    let head = "<iothreads>1</iothreads><blkiotune><weight>100</weight></blkiotune><cputune><vcpusched vcpus='0' scheduler='rr'/>\
                <iothreadsched iothreads='1' scheduler='fifo'/><iothreadsched iothreads='2' scheduler='rr'/>\
                <iothread_quota>50000</iothread_quota></cputune>";
    let rule = "these elements of the domain have no effect on the daemon's threads";
    let warnings = |head: &str| read(&domain(head, "<driver type='raw'/>", "")).unwrap().warnings;
    assert_eq!(warnings(head), [format!("{rule}: blkiotune, cputune/iothreadsched, cputune/iothread_quota")]);
    let head = "<cputune><global_period>100000</global_period><global_quota>50000</global_quota></cputune>\
                <iothreadids><iothread id='1' thread_pool_max='8'/><iothread id='2' thread_pool_max='8'/></iothreadids>";
    let names = "cputune/global_period, cputune/global_quota, iothreadids/iothread thread_pool_max=";
    assert_eq!(warnings(head), [format!("{rule}: {names}")]);
    let elsewhere = "<metadata><blkiotune/></metadata>";
    assert_eq!(warnings(elsewhere), [""; 0]);
}

/// Regression: the alias by which a user's scripts name the disk was lost in silence. libvirt makes the other aliases again by itself.
#[test]
fn alias_of_the_user_is_to_be_copied() {
    let warnings = |alias: &str| read(&domain("", "<driver type='raw'/>", alias)).unwrap().warnings;
    let text = "disk 'vda': copy its <alias> into the <disk> that is printed here";
    assert_eq!(warnings("<alias name='ua-data'/>"), [text]);
    assert_eq!(warnings("<alias name='virtio-disk0'/>"), [""; 0]);
}

/// Regression: attributes were ignored in silence, also those that change the image, such as `detect_zeroes`.
#[test]
fn attributes_without_effect_are_named() {
    let warnings = |driver: &str, more: &str| read(&domain("", driver, more)).unwrap().warnings;
    let driver = "<driver name='qemu' type='raw' cache='none' io='native' queues='2' ioeventfd='on' event_idx='on' copy_on_read='off' \
                  rerror_policy='report' iommu='on' detect_zeroes='unmap'><metadata_cache/></driver>";
    let blockio = "<blockio logical_block_size='512' discard_granularity='4096'/>";
    let names = "driver iommu=, driver detect_zeroes=, driver/metadata_cache, blockio discard_granularity=";
    assert_eq!(warnings(driver, blockio), [format!("disk 'vda': these elements have no effect: {names}")]);
    assert_eq!(
        warnings("<driver type='raw' rerror_policy='stop'/>", ""),
        ["disk 'vda': these elements have no effect: driver rerror_policy="]
    );
    let mapped = "<driver type='raw' queues='1'><iothreads><iothread id='1'/></iothreads></driver>";
    assert_eq!(read(&domain("<iothreads>1</iothreads>", mapped, "")).unwrap().warnings, [""; 0]);
}

#[test]
fn a_disk_whose_data_is_not_its_file_is_left_out() {
    let left_out = |source: &str, more: &str, why: &str| {
        let text = domain("", "<driver type='raw'/>", more).replace("<source dev='/dev/vg/data'/>", source);
        let said = read(&text).err().expect("no disk is left");
        assert!(said.contains("disk 'vda' is left out: ") && said.contains(why), "{why:?} is not in {said:?}");
    };
    let source = |inner: &str| format!("<source dev='/dev/vg/data'>{inner}</source>");
    for (slice, why) in [
        ("<slice type='backing' offset='0' size='512'/>", "its <slices> is not one <slice type='storage'>"),
        ("<slice type='storage' offset='1k' size='512'/>", "slice/@offset='1k': must be a whole number"),
        ("<slice type='storage' offset='512' size='1000'/>", "<slice>: size=1000: must be a multiple of 512"),
        ("<slice type='storage' offset='512'/>", "<slice> needs a size"),
    ] {
        left_out(&source(&format!("<slices>{slice}</slices>")), "", why);
    }
    let encryption = "<encryption format='luks'><secret type='passphrase' uuid='f52a81b2'/></encryption>";
    left_out(&source(encryption), "", "it is encrypted");
    left_out(&source(""), encryption, "it is encrypted");
    left_out(&source(""), "<mirror type='file' file='/copy'/>", "a block job copies it");
    // A prefix changes nothing.
    left_out(&source(""), &encryption.replace("encryption", "q:encryption"), "it is encrypted");
    for (size, why) in [("3000", "must be 512, 1024, 2048 or 4096"), ("4k", "must be a number")] {
        left_out(&source(""), &format!("<blockio logical_block_size='{size}'/>"), why);
    }
}

#[test]
fn a_slice_is_a_part_of_the_file() {
    let slices =
        "<source dev='/dev/vg/data'><slices><slice type='storage' offset='1048576' size='4096'/></slices></source>";
    let text = domain("", "<driver type='raw'/>", "").replace("<source dev='/dev/vg/data'/>", slices);
    let found = read(&text).unwrap();
    assert_eq!(found.plan.disks[0].part, FilePart { offset: 1 << 20, size: Some(4096) });
    assert!(found.warnings.iter().all(|w| !w.contains("slices")), "{:?}", found.warnings);
}

#[test]
fn block_sizes_are_those_of_the_domain() {
    for (blockio, expected) in [
        ("", (None, None)),
        ("<blockio logical_block_size='0'/>", (None, None)),
        ("<blockio logical_block_size='4096' physical_block_size='16384'/>", (Some(4096), Some(16384))),
        ("<blockio physical_block_size='4096'/>", (None, Some(4096))),
    ] {
        let found = read(&domain("", "<driver type='raw'/>", blockio)).unwrap();
        assert_eq!(found.plan.disks[0].geometry, Geometry { logical: expected.0, physical: expected.1 }, "{blockio}");
        assert!(found.warnings.iter().all(|w| !w.contains("blockio")), "{:?}", found.warnings);
    }
}

#[test]
fn elements_without_effect_are_named() {
    let more = "<boot order='1'/><alias name='virtio-disk0'/><address type='pci' slot='0x05'/><wwn>5000c500</wwn><new/>\
                <backingStore/><serial>123456789012345678901</serial>";
    let text = domain("", "<driver type='raw'/>", more);
    let text = text.replace("<source dev='/dev/vg/data'/>", "<source dev='/d'><seclabel/><reservations/></source>");
    let found = read(&text).unwrap();
    assert_eq!(
        found.warnings,
        [
            "disk 'vda': copy its <boot>, <address> into the <disk> that is printed here",
            "disk 'vda': these elements have no effect: source/reservations, wwn, new",
            "disk 'vda': its serial number is cut to 20 characters, as in QEMU",
        ]
    );
    assert_eq!(found.plan.disks[0].serial.as_deref(), Some("12345678901234567890"));
    assert!(found.plan.disks[0].is_raw);
    // In another place of the XML the same elements mean something else.
    let elsewhere = "<devices2><disk><encryption/></disk></devices2>";
    assert_eq!(read(&domain(elsewhere, "<driver type='raw'/>", "")).unwrap().warnings, [""; 0]);
}

#[test]
fn numbers_and_references_that_are_wrong_are_refused() {
    refused("", "<driver type='raw' queues='many'/>", "disk 'vda': queues='many': must be a whole number of 16 bits");
    refused("", "<driver type='raw' queues='70000'/>", "queues='70000'");
    refused("<vcpu>-1</vcpu>", "", "vcpu='-1'");
    refused("<iothreads>x</iothreads>", "", "iothreads='x'");
    refused("<iothreads>99999999999</iothreads>", "", "must be at most 4096");
    refused(
        "<iothreads>2</iothreads>",
        "<driver iothread='3'/>",
        "disk 'vda': the domain has no IOThread 3; it has 1, 2",
    );
    refused("", "<driver iothread='1'/>", "it has none: add <iothreads>");
    let both = "<driver iothread='1'><iothreads><iothread id='1'/></iothreads></driver>";
    refused("<iothreads>1</iothreads>", both, "libvirt accepts only one of them");
    let lists = "<driver><iothreads><iothread id='1'><queue id='0'/></iothread></iothreads></driver>";
    refused("<iothreads>1</iothreads>", lists, "add queues='N'");
    refused("<cputune><iothreadpin iothread='1' cpuset='0'/></cputune>", "", "there is no IOThread 1");
    refused(
        "<iothreads>1</iothreads><cputune><iothreadpin iothread='1' cpuset='x'/></cputune>",
        "",
        "is no list of CPUs",
    );
    refused("<iothreadids><iothread id='1'/><iothread id='1'/></iothreadids>", "", "iothread 1 is listed twice");
    refused("", "<driver cache='writearound'/>", "cache='writearound': no such mode");
}

/// The reader of libvirt domains does not check an IOThread mapping; the check of the plan does, with its own message.
#[test]
fn a_mapping_that_breaks_a_rule_is_refused() {
    let driver = "<driver queues='3'><iothreads><iothread id='1'><queue id='0'/></iothread>\
                  <iothread id='2'><queue id='1'/></iothread></iothreads></driver>";
    let plan = read(&domain("<iothreads>2</iothreads>", driver, "")).unwrap().plan;
    let e = plan.check(&HostFacts { cpus: vec![0] }).unwrap_err().to_string();
    assert!(e.starts_with("iothreads: 1 of 3 virtqueues have no IOThread, the first is 2:"), "{e}");
}

#[test]
fn what_is_no_domain_is_refused() {
    let says = |text: &str, needle: &str| {
        let e = read(text).err().expect("refused");
        assert!(e.contains(needle), "{needle:?} is not in {e:?}");
    };
    says("", "has no <domain>; save one with 'virsh dumpxml NAME'");
    says("<network><name>x</name></network>", "begins with <network>, not with <domain>");
    says("<domain><name>x</name>", "is no libvirt domain");
    says("<domain></network>", "is no libvirt domain");
    says("<domain/>", "has no disk to serve: it has none");
    says("<domain><name>&bomb;</name></domain>", "is no libvirt domain");
    let left_out = "<domain><devices><disk type='network' device='disk'><target dev='vda' bus='virtio'/></disk></devices></domain>";
    says(
        left_out,
        "no disk to serve: disk 'vda' is left out: type='network': only files and block devices can be served",
    );
    says(
        "<domain><devices><disk type='file'><target dev='hda' bus='ide'/></disk></devices></domain>",
        "bus='ide': only virtio",
    );
    says(
        "<domain><devices><disk type='vhostuser'><target dev='vda' bus='virtio'/></disk></devices></domain>",
        "already",
    );
    says("<domain><devices><disk type='file'><target dev='\u{9b}' bus='virtio'/></disk></devices></domain>", "\\u{9b}");
}

#[test]
fn pieces_of_a_domain_never_panic() {
    for at in 0..PUBLISHED.len() {
        let (start, end) = (&PUBLISHED[..at], &PUBLISHED[at..]);
        assert!(read(end).is_err() || at == 0 || end.trim_start().starts_with("<domain"), "{end}");
        // Whole but for the last newline.
        assert!(read(start).is_err() || at + 1 == PUBLISHED.len(), "{start}");
    }
}
