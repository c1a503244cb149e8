// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Multipath disks that are configured by a multipath.conf (`conf=FILE`), over Debian's tgtd and over files. `multipath_alua.rs` tests
//! the detection of port groups.

use crate::common;

use common::TempFile;
use common::iscsi::Tgt;
use host::driver::Topology;
use host::driver::iscsi::{InquiryData, inquire};
use host::error::{ErrorKind, Result};
use host::mem::Regions;
use host::target::{Needs, OpenTarget, TargetSpec};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A file with this text, removed when the value is dropped.
struct Conf(PathBuf);

impl Conf {
    fn new(text: &str) -> Conf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("mqblk-told-{}-{number}.conf", std::process::id()));
        fs::write(&path, text).unwrap();
        Conf(path)
    }

    /// Returns the name of a line in messages.
    fn line(&self, line: u32) -> String {
        format!("{}:{line}: ", self.0.display())
    }

    fn open(&self, options: &str, urls: &[&str]) -> Result<OpenTarget> {
        let needs = Needs { write: true, direct: false, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
        let text = format!("multipath:conf={}{options}:{}", self.0.display(), urls.join("+"));
        TargetSpec::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}")).open(&needs, Arc::new(Regions::new()))
    }

    fn refused(&self, options: &str, urls: &[&str]) -> (ErrorKind, String) {
        let e = self.open(options, urls).err().expect("it is refused");
        (e.kind(), e.to_string())
    }
}

impl Drop for Conf {
    fn drop(&mut self) {
        fs::remove_file(&self.0).unwrap();
    }
}

fn topology(open: &OpenTarget) -> Topology {
    open.driver.path().topology().unwrap()
}

fn warnings(open: &OpenTarget) -> Vec<String> {
    open.warnings.iter().map(ToString::to_string).collect()
}

/// Returns the number of paths of each group.
fn sizes(t: &Topology) -> Vec<usize> {
    t.groups.iter().map(|g| g.paths.len()).collect()
}

fn image() -> TempFile {
    let file = TempFile::new();
    fs::File::options().write(true).open(&file.0).unwrap().set_len(1 << 20).unwrap();
    file
}

fn inquiry_of(url: &str) -> InquiryData {
    let target = host::driver::iscsi::parse(url).unwrap();
    let never = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    inquire(&target, &never).unwrap()
}

const DEVICES: &str = "defaults {
\tpath_grouping_policy multibus
\tno_path_retry fail
\tpolling_interval 7
}
devices {
\tdevice {
\t\tvendor \"^IET$\"
\t\tproduct \"^VIRTUAL-DISK$\"
\t\tpath_selector \"queue-length 0\"
\t\tfailback immediate
\t\tno_path_retry 12
\t}
\tdevice {
\t\tvendor \"LIO-ORG\"
\t\tproduct \".*\"
\t\tfailback 99
\t}
}
";

#[test]
fn device_settings_apply_before_those_of_the_wwid() {
    let (a, mut b) = {
        let a = Tgt::new();
        let b = a.beside();
        (a, b)
    };
    let (one, two) = (a.url("?sessions=1"), b.url("?sessions=1"));
    let inquired = inquiry_of(&one);
    assert_eq!((&inquired.inquiry.vendor[..], &inquired.inquiry.product[..]), ("IET", "VIRTUAL-DISK"));
    assert_eq!(inquired.access, None);
    let wwid = inquired.wwid.unwrap();
    assert_eq!(inquiry_of(&two).wwid.as_ref(), Some(&wwid), "by all paths the same");

    let conf = Conf::new(DEVICES);
    let disk = conf.open("", &[&one, &two]).unwrap();
    let is = topology(&disk);
    assert_eq!(warnings(&disk), [""; 0]);
    assert_eq!((sizes(&is), &is.groups[0].selector[..]), (vec![2], "queue-length 0"));
    assert_eq!((&is.failback[..], &is.queueing[..], &is.features[..]), ("immediate", "12", "1 queue_if_no_path"));
    drop(disk);
    // Options in the target's text take precedence.
    let disk = conf.open(",failback=30,path_grouping_policy=failover,prio=50+10", &[&one, &two]).unwrap();
    let is = topology(&disk);
    assert_eq!((sizes(&is), &is.failback[..], &is.queueing[..]), (vec![1, 1], "30", "12"));
    assert_eq!((is.groups[0].prio, is.groups[1].prio), (50, 10));
    drop(disk);

    let multipaths = format!(
        "{DEVICES}multipaths {{\n\tmultipath {{\n\t\twwid \"{wwid}\"\n\t\tpath_selector \"round-robin 0\"\n\t\tno_path_retry \
         queue\n\t\talias redo\n\t}}\n\tmultipath {{\n\t\twwid another\n\t\tfailback manual\n\t}}\n}}\n"
    );
    let conf = Conf::new(&multipaths);
    // If one path is gone, the other still reports the disk's identity.
    b.kill();
    let disk = conf.open("", &[&two, &one]).unwrap();
    let is = topology(&disk);
    assert_eq!(
        (&is.groups[0].selector[..], &is.failback[..], &is.queueing[..]),
        ("round-robin 0", "immediate", "queue")
    );
    let said = warnings(&disk);
    let alias = format!("{}alias 'redo': is ignored", conf.line(25));
    assert!(said.len() == 2 && said[0].starts_with(&alias) && said[1].contains("cannot be used now"), "{said:?}");
    drop(disk);
    drop(a);
    let (kind, said) = conf.refused("", &[&two, &one]);
    assert!(
        kind != ErrorKind::Usage
            && said.contains("no path can be used: ")
            && said.matches("cannot connect").count() == 2,
        "{said}"
    );
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let tgt = Tgt::new();
    let url = &tgt.url("?sessions=1")[..];
    let wwid = inquiry_of(url).wwid.unwrap();
    let file = image();
    let path = file.0.to_str().unwrap();

    // Errors in the file are reported for any disk, all at once.
    let conf = Conf::new("defaults {\n\tpath_selecter x\n\tfailback later\n}\n");
    let (kind, said) = conf.refused("", &["/nowhere"]);
    assert_eq!(kind, ErrorKind::Usage);
    for part in [&conf.line(2)[..], "did you mean 'path_selector'?", &conf.line(3), "failback 'later': must be"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // Settings that cannot be combined for this disk are rejected.
    let conf = Conf::new(
        "devices {\n\tdevice {\n\t\tvendor IET\n\t\tproduct .*\n\t\tpath_selector \"io-affinity 0\"\n\t}\n}\n",
    );
    let (kind, said) = conf.refused("", &[url]);
    assert!(
        kind == ErrorKind::Usage && said.contains(&format!("{}path_selector=io-affinity: needs", conf.line(5))),
        "{said}"
    );
    assert!(conf.open(",path_selector=round-robin", &[url]).is_ok(), "what is given goes first");
    let conf = Conf::new("overrides {\n\tpath_checker tur\n}\n");
    let (_, said) = conf.refused("", &[path]);
    assert!(said.contains(&format!("{}path_checker=tur: path {path} does not support", conf.line(2))), "{said}");
    // Blacklists.
    let conf = Conf::new(&format!("blacklist {{\n\tdevnode \"^sd\"\n\twwid \"{wwid}\"\n}}\n"));
    let (kind, said) = conf.refused("", &[url]);
    assert!(
        kind == ErrorKind::Denied && said.contains(&format!("{}wwid '{wwid}': is blacklisted", conf.line(3))),
        "{said}"
    );
    let conf = Conf::new(
        "blacklist {\n\twwid .*\n}\nblacklist_exceptions {\n\twwid .*\n}\nblacklist {\n\tdevice {\n\t\tvendor IET\n\t}\n}\n",
    );
    let (_, said) = conf.refused("", &[url]);
    assert!(said.contains(&format!("{}vendor 'IET', product 'VIRTUAL-DISK': is blacklisted", conf.line(8))), "{said}");
}

#[test]
fn what_is_not_done_is_a_warning_with_its_line() {
    let tgt = Tgt::new();
    let url = &tgt.url("?sessions=1")[..];
    // For a target without port groups, none are used, whatever the file says.
    let conf = Conf::new(
        "defaults {\n\tuid_attribute ID_SERIAL\n\tprio alua\n\tpath_grouping_policy group_by_tpg\n\tfrobnication 7\n}\n\
         devices {\n\tdevice {\n\t\tvendor IET\n\t\tproduct .*\n\t\thardware_handler \"1 alua\"\n\t}\n}\n",
    );
    let disk = conf.open("", &[url]).unwrap();
    let said = warnings(&disk);
    let parts = [
        (2, "uid_attribute: has no effect here"),
        (5, "frobnication: has no effect here: mqblk knows no such option"),
        (3, "prio alua: the disk reports no target port groups (ALUA), so const is used"),
        (11, "hardware_handler alua: the disk reports no target port groups (ALUA), so no handler is used"),
        (4, "path_grouping_policy group_by_tpg: needs prio alua, so failover is used"),
    ];
    assert_eq!(said.len(), parts.len(), "{said:#?}");
    for (said, (line, text)) in said.iter().zip(parts) {
        assert!(said.starts_with(&format!("{}{text}", conf.line(line))), "{said}");
    }
    assert_eq!((&topology(&disk).hardware_handler[..], topology(&disk).groups[0].prio), ("0", 1));
    drop(disk);
    let (_, said) = conf.refused(",path_grouping_policy=group_by_tpg", &[url]);
    assert!(said.contains("path_grouping_policy=group_by_tpg: needs the target port groups"), "{said}");
}

#[test]
fn devices_say_nothing_of_files() {
    let file = image();
    let path = file.0.to_str().unwrap();
    // Not even with the pattern .*
    let conf = Conf::new(
        "defaults {\n\tno_path_retry 3\n\tfailback 5\n}\noverrides {\n\tfailback 6\n}\ndevices {\n\tdevice {\n\t\tvendor .*\n\t\tproduct .*\n\t\tno_path_retry queue\n\t}\n}\n",
    );
    let disk = conf.open("", &[path]).unwrap();
    assert_eq!((&topology(&disk).queueing[..], &topology(&disk).failback[..]), ("3", "6"));
    let said = warnings(&disk);
    let plain =
        "paths that are files have no vendor or product, so no 'device' applies to them, nor any of 'multipaths'";
    assert!(said.iter().any(|w| w.contains(plain)), "{said:?}");
}
