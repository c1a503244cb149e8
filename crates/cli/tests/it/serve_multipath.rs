// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk of several paths from the command line: as `--target` of a run, and served from a configuration. Errors are rejected with
//! their place.

use crate::common;
use crate::tgtd;

use common::{Dir, KeepGoing};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use tgtd::Tgtd;
use vuclient::{VerifyOptions, verify};

fn image(dir: &Dir, name: &str, bytes: u64) {
    File::create(dir.path(name)).unwrap().set_len(bytes).unwrap();
}

fn config(targets: &str, more: &str) -> String {
    format!(
        "[[disk]]\nname = \"d\"\nstack = \"multipath\"\ntargets = [{targets}]\n{more}\n\
         [[export]]\ntype = \"nbd\"\ndisk = \"d\"\nsocket = \"d.sock\"\n"
    )
}

#[test]
fn a_run_over_two_paths_verifies_what_it_wrote() {
    let dir = Dir::new("run-multipath");
    image(&dir, "a.img", 8 << 20);
    dir.file(
        "job.fio",
        "[j]\nrw=randwrite\nbs=4k\nsize=8m\niodepth=16\nverify=crc32c\nio_size=16m\nrandrepeat=1\nthread\n",
    );
    let target = "multipath:path_grouping_policy=multibus,path_selector=round-robin:./a.img+././a.img";
    let done = dir.mqblk(&["run", "job.fio", "--target", target]);
    done.exits(0);
    dir.mqblk(&["run", "job.fio", "--target", "multipath:no_path_retry=often:./a.img"])
        .exits(2)
        .says(&["no_path_retry=often: must be fail, queue or a number of checks"]);
}

#[test]
fn clients_of_a_served_disk_use_its_paths() {
    let dir = Dir::new("serve-multipath");
    image(&dir, "a.img", 8 << 20);
    let more = "path_grouping_policy = \"group_by_prio\"\nprio = [50, 10]\nfailback = \"immediate\"\nno_path_retry = 12\n\
                polling_interval = 1";
    let paths = "\"./a.img\", \"././a.img\"";
    let of_cpus =
        "path_grouping_policy = \"multibus\"\npath_selector = \"io-affinity\"\npath_cpus = [\"0x1\", \"0xfffffffe\"]";
    dir.file("cpus.toml", &config(paths, of_cpus));
    dir.mqblk(&["serve", "cpus.toml", "--dry-run"]).exits(0);
    dir.file("serve.toml", &config(paths, more));
    let started = dir.start(&["serve", "serve.toml", "--control", "ctl.sock"], "serving");
    let source: Vec<u8> = (0..8u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(dir.path("source"), &source).unwrap();
    let uri = format!("nbd+unix:///d?socket={}", dir.path("d.sock").display());
    dir.program("nbdcopy", &["--flush", "source", &uri]).exits(0);
    dir.program("nbdcopy", &[&uri, "back"]).exits(0);
    assert!(fs::read(dir.path("back")).unwrap() == source);
    let ctl = |args: &[&str]| dir.mqblk(&[&["ctl", "--control", "ctl.sock"], args].concat());
    ctl(&["fail-path", "d", "1"]).exits(0).prints(&["disk 'd': failed path './a.img'; its checks are suspended"]);
    dir.program("nbdcopy", &[&uri, "back"]).exits(0);
    let out = dir.mqblk(&["multipath", "-ll", "--control", "ctl.sock"]).exits(0).out;
    assert!(out.contains("failed faulty") && out.contains("prio=10 status=active"), "{out}");
    ctl(&["switch-group", "d", "1"]).exits(2).says(&["disk 'd': group 1 has no usable path"]);
    ctl(&["reinstate-path", "d", "./a.img"]).exits(0).prints(&["disk 'd': reinstated path './a.img'"]);
    ctl(&["switch-group", "d", "1"]).exits(0).prints(&["disk 'd': switched to group 1"]);
    ctl(&["fail-path", "d", "3"]).exits(2).says(&["disk 'd': path '3': must be a path's name, or its number"]);
    ctl(&["fail-path", "e", "1"]).exits(2).says(&["'e'"]);
    let list = dir.mqblk(&["ctl", "--control", "ctl.sock", "list", "--json"]).exits(0).json();
    let target = list["disks"][0]["target"].as_str().unwrap();
    assert!(target.starts_with("multipath:path_grouping_policy=group_by_prio,prio=50+10,"), "{target}");
    started.signal("TERM");
    started.ends().exits(0);
    assert!(fs::read(dir.path("a.img")).unwrap() == source);
}

/// The target protects its LUN from writes while a daemon serves it.
#[test]
fn failed_scsi_command_is_logged_in_the_words_of_the_kernel() {
    let dir = Dir::new("serve-scsi-failure");
    image(&dir, "a.img", 8 << 20);
    let tgtd = Tgtd::start(&dir, "iqn.2026-11.test:protected", &["a.img"]);
    let url = tgtd.url(1);
    let disk = format!("[[disk]]\nname = \"d\"\ntarget = \"{url}\"\n");
    dir.file("serve.toml", &format!("{disk}[[export]]\ntype = \"nbd\"\ndisk = \"d\"\nsocket = \"d.sock\"\n"));
    let mut daemon = dir.start(&["serve", "serve.toml", "--control", "ctl.sock", "--log-format=json"], "serving");
    tgtd.admin("--op update --mode logicalunit --tid 1 --lun 1 --params readonly=1");
    let uri = format!("nbd+unix:///d?socket={}", dir.path("d.sock").display());
    let write = "try:\n  h.pwrite(b'x' * 4096, 8192)\nexcept nbd.Error: pass";
    let script = format!("import nbd\nh = nbd.NBD()\nh.connect_uri('{uri}')\n{write}\n");
    dir.program("/usr/bin/python3", &["-c", &script]).exits(0);
    let line: Value = serde_json::from_str(&daemon.until("Sense Key")).unwrap();
    let words = "FAILED Result: hostbyte=DID_OK driverbyte=DRIVER_OK; Status: Check Condition; Sense Key : Data Protect [current]; \
                 Add. Sense: Write protected (27/00); CDB: Write(10), LBA 16, 8 blocks; critical target error";
    assert_eq!(line["message"], words);
    let path = line["path"].as_str().unwrap();
    assert!(line["disk"] == "d" && path == url, "{line}");
    let list = dir.mqblk(&["ctl", "--control", "ctl.sock", "list", "--json"]).exits(0).json();
    assert_eq!(list["disks"][0]["troubles"], json!([format!("{path}: a command failed: {words}")]));
    daemon.signal("TERM");
    daemon.ends().exits(0);
}

/// Returns the page of metrics.
fn metrics(dir: &Dir) -> String {
    let mut client = UnixStream::connect(dir.path("m.sock")).unwrap();
    client.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut page = String::new();
    client.read_to_string(&mut page).unwrap();
    page
}

/// The LUN of both paths is removed, comes back, and becomes another one. Cause: the daemon logged none of it.
#[test]
fn states_of_paths_are_in_the_log_with_their_reasons() {
    let dir = Dir::new("serve-path-states");
    image(&dir, "a.img", 8 << 20);
    let tgtd = Tgtd::start(&dir, "iqn.2026-11.test:paths", &["a.img"]);
    let (one, two) = (format!("{}?sessions=1", tgtd.url(1)), format!("{}?sessions=2", tgtd.url(1)));
    let keys = "no_path_retry = \"queue\"\npolling_interval = 1\nmax_polling_interval = 1";
    dir.file("serve.toml", &config(&format!("\"{one}\", \"{two}\""), keys));
    let args = ["serve", "serve.toml", "--control=ctl.sock", "--metrics=unix:m.sock"];
    let mut daemon = dir.start(&args, "serving");
    let shows = |daemon: &mut common::Started, signs: &[&str]| {
        for sign in signs {
            if !daemon.seen().contains(sign) {
                daemon.until(sign);
            }
        }
    };
    tgtd.delete_lun(1);
    // The paths fail with a read, also if no check has passed yet. The client does not wait for its answer.
    let uri = format!("nbd+unix:///d?socket={}", dir.path("d.sock").display());
    let read = format!("import nbd\nh = nbd.NBD()\nh.connect_uri('{uri}')\nh.aio_pread(nbd.Buffer(4096), 0)\n");
    dir.program("/usr/bin/python3", &["-c", &read]).exits(0);
    let signs = [
        "path failed: ",
        "remaining active paths: 0",
        "no path is left: requests are queued (no_path_retry=queue)",
        "there is no LUN 1 at this target",
    ];
    shows(&mut daemon, &signs);
    let list = dir.mqblk(&["ctl", "--control", "ctl.sock", "list", "--json"]).exits(0).json();
    let troubles = list["disks"][0]["troubles"].to_string();
    assert!(troubles.contains(signs[2]) && troubles.contains("#2 is not used now: "), "{troubles}");
    let page = metrics(&dir);
    let has = |name: &str, value: &str| {
        let is_it = |line: &&str| line.starts_with(&format!("{name}{{disk=\"d\",path=\"iscsi://"));
        page.lines().filter(is_it).filter(|line| line.ends_with(value)).count()
    };
    assert_eq!([has("mqblk_path_active", "} 0"), has("mqblk_path_failures_total", "} 1")], [2, 2], "{page}");
    let image = dir.path("a.img");
    tgtd.admin(&format!("--op new --mode logicalunit --tid 1 --lun 1 -b {}", image.display()));
    shows(&mut daemon, &[": reinstated", "remaining active paths: 2", "a path works again: queueing ends"]);
    tgtd.admin("--op update --mode logicalunit --tid 1 --lun 1 --params scsi_id=exchanged");
    daemon.until("exchanged");
    daemon.signal("TERM");
    daemon.ends().exits(0);
}

/// Regression: a command for a striped disk affected only its first target, and an alert missed that another target had no path.
#[test]
fn paths_of_striped_disks_are_told_apart() {
    let dir = Dir::new("serve-striped-paths");
    ["a.img", "b.img"].iter().for_each(|name| image(&dir, name, 8 << 20));
    let targets = "targets = [\"multipath:./a.img+././a.img\", \"multipath:./b.img+././b.img\"]";
    let export = "[[export]]\ntype = \"nbd\"\ndisk = \"s\"\nsocket = \"s.sock\"\n";
    dir.file("serve.toml", &format!("[[disk]]\nname = \"s\"\nstack = \"stripe\"\n{targets}\n{export}"));
    let args = ["serve", "serve.toml", "--control=ctl.sock", "--metrics=unix:m.sock"];
    let mut daemon = dir.start(&args, "serving");
    let ctl = |args: &[&str]| dir.mqblk(&[&["ctl", "--control", "ctl.sock"], args].concat());
    let rule = "disk 's': is striped over 2 targets; name one, s/0 to s/1";
    ctl(&["fail-path", "s", "1"]).exits(2).says(&[rule]);
    ctl(&["switch-group", "s", "1"]).exits(2).says(&[rule]);
    ctl(&["fail-path", "s/2", "1"]).exits(2).says(&["disk 's/2': is striped over 2 targets"]);
    for path in ["1", "2"] {
        ctl(&["fail-path", "s/1", path]).exits(0);
    }
    daemon.until("no path is left: requests fail disk=s/1");
    let page = metrics(&dir);
    let active = |disk: &str, value: &str| {
        let is_it = |line: &&str| line.starts_with(&format!("mqblk_path_active{{disk=\"{disk}\",path="));
        page.lines().filter(is_it).filter(|line| line.ends_with(value)).count()
    };
    assert_eq!([active("s/0", "} 1"), active("s/1", "} 0")], [2, 2], "{page}");
    ctl(&["reinstate-path", "s/1", "2"]).exits(0);
    daemon.until("a path works again: requests no longer fail disk=s/1");
    daemon.signal("TERM");
    daemon.ends().exits(0);
}

/// The WWID that udev gives to the first LUN of the first target of any tgtd.
const WWID: &str = "360000000000000000e00000000010001";

/// Writes a multipath.conf with a device section for tgtd, followed by `more`.
fn conf(dir: &Dir, more: &str) {
    let device = "devices {\n\tdevice {\n\t\tvendor \"IET\"\n\t\tproduct \"VIRTUAL-DISK\"\n\t\tpath_selector \"queue-length 0\"\n\
                  \t\tpath_grouping_policy multibus\n\t\tfailback immediate\n\t\tno_path_retry 12\n\t}\n}\n";
    dir.file("m.conf", &format!("defaults {{\n\tuid_attribute ID_SERIAL\n\tpolling_interval 1\n}}\n{device}{more}"));
}

#[test]
fn a_multipath_conf_tells_a_run_and_a_served_disk_what_to_do() {
    let dir = Dir::new("multipath-conf");
    image(&dir, "a.img", 8 << 20);
    let tgtd = Tgtd::start(&dir, "iqn.2026-11.test:conf", &["a.img"]);
    let (one, two) = (format!("{}?sessions=1", tgtd.url(1)), format!("{}?sessions=2", tgtd.url(1)));
    conf(&dir, "");
    dir.file(
        "job.fio",
        "[j]\nrw=randwrite\nbs=4k\nsize=8m\niodepth=16\nverify=crc32c\nio_size=16m\nrandrepeat=1\nthread\n",
    );
    let run = |options: &str| dir.mqblk(&["run", "job.fio", "--target", &format!("multipath:{options}:{one}+{two}")]);
    run("conf=m.conf").exits(0).says(&["warning: m.conf:2: uid_attribute: has no effect here"]);
    run("conf=none.conf").exits(2).says(&["conf: none.conf: cannot be read"]);

    let ll = |more: &str| {
        let keys = format!("conf = \"m.conf\"\n{more}");
        dir.file("serve.toml", &config(&format!("\"{one}\", \"{two}\""), &keys));
        let started = dir.start(&["serve", "serve.toml", "--control", "ctl.sock"], "serving");
        let out = dir.mqblk(&["multipath", "-ll", "--control", "ctl.sock"]).exits(0).out;
        let json = dir.mqblk(&["multipath", "-ll", "--json", "--control", "ctl.sock"]).exits(0).json();
        let (head, path) = (format!("d ({WWID}) dm-0 IET,VIRTUAL-DISK\n"), tgtd.url(1));
        for by in [WWID, "dm-0"] {
            dir.mqblk(&["multipath", "-ll", by, "--control", "ctl.sock"]).exits(0).prints(&[&head]);
        }
        assert!(out.contains(&format!("- #:#:#:# {path}   0:0 ")) && out.contains(&format!(" {path}#2 0:0 ")), "{out}");
        started.signal("TERM");
        started.ends().exits(0);
        let map = &json["maps"][0];
        (out, map["failback"].as_str().unwrap().to_owned(), map["queueing"].as_str().unwrap().to_owned())
    };
    let (out, failback, queueing) = ll("");
    assert!(
        out.contains("features='1 queue_if_no_path' hwhandler='0'") && out.matches("policy=").count() == 1,
        "{out}"
    );
    assert!(out.contains("policy='queue-length 0'"), "{out}");
    assert_eq!((&failback[..], &queueing[..]), ("immediate", "12"));
    // The configuration's own settings have priority. A multipath section of the WWID comes next, then a device section.
    let multipath = "\t\tpath_selector \"round-robin 0\"\n\t\tno_path_retry fail\n\t}\n}\n";
    conf(&dir, &format!("multipaths {{\n\tmultipath {{\n\t\twwid {WWID}\n{multipath}"));
    let (out, failback, queueing) = ll("path_grouping_policy = \"group_by_prio\"\nprio = [1, 2]");
    assert!(out.matches("policy='round-robin 0'").count() == 2, "{out}");
    assert!(out.contains("prio=2 status=active") || out.contains("prio=2 status=enabled"), "{out}");
    assert_eq!((&failback[..], &queueing[..]), ("immediate", "fail"));

    // Errors name both places.
    let refused = |says: &[&str]| dir.mqblk(&["serve", "serve.toml", "--control", "ctl.sock"]).exits(2).says(says);
    conf(&dir, "defaults {\n\tfailback later\n\tpolling_intervall 5\n}\n");
    refused(&[
        "serve.toml:5: conf: m.conf:16: failback 'later': must be manual",
        "serve.toml:5: conf: m.conf:17: 'polling_intervall'",
    ]);
    conf(&dir, &format!("blacklist {{\n\twwid \"{WWID}\"\n}}\n"));
    refused(&["m.conf:16: wwid '360000000000000000e00000000010001': is blacklisted here"]);
    conf(&dir, "overrides {\n\tpath_selector \"io-affinity 0\"\n}\n");
    refused(&["m.conf:16: path_selector=io-affinity: needs the CPUs"]);
    let asked =
        ["multipath", "--config", "m.conf", "-t", "--wwid", WWID, "--vendor", "IET", "--product", "VIRTUAL-DISK"];
    dir.mqblk(&asked).exits(0).prints(&["\tfailback \"immediate\" # m.conf:11, devices\n"]);
}

#[test]
fn what_is_wrong_is_said_where_it_stands() {
    let dir = Dir::new("serve-multipath");
    image(&dir, "a.img", 1 << 20);
    let two = "\"./a.img\", \"././a.img\"";
    for (targets, more, says) in [
        (two, "failback = \"later\"", "c.toml:5: failback=later: must be manual, immediate, followover or seconds"),
        (two, "prio = [1]", "c.toml:5: prio=1: must be const, alua or one number for each path"),
        (two, "polling_interval = true", "c.toml:5: polling_interval=true: must be a text, a number"),
        (two, "path_checker = \"tur\"", "c.toml:5: path_checker=tur: path ./a.img does not support TEST UNIT READY"),
        (
            two,
            "path_grouping_policy = \"group_by_tpg\"",
            "c.toml:5: path_grouping_policy=group_by_tpg: needs the target port groups",
        ),
        (two, "detect_prio = \"yes\"", "c.toml:5: detect_prio=yes: path ./a.img is no SCSI device"),
        (two, "path_cpus = [\"0x1\"]", "c.toml:5: path_cpus=0x1: must be a mask of CPUs below"),
        (two, "path_cpus = [\"0x0\", \"0x2\"]", "c.toml:5: path_cpus=0x0+0x2: must be a mask of CPUs below"),
        (two, "conf = \"a:b\"", "c.toml:5: conf=a:b: must be the name of a file"),
        (two, "chunk = \"64k\"", "c.toml:5: chunk: has no effect without stack = \"stripe\""),
        ("\"ram:size=1m\", \"ram:size=1m\"", "", "c.toml:4: targets: path ram:size=1m: a memory disk"),
        ("\"./a.img\", \"null\"", "", "c.toml:4: targets: path null is of another kind"),
    ] {
        dir.file("c.toml", &config(targets, more));
        dir.mqblk(&["serve", "c.toml"]).exits(2).says(&[says]);
    }
    dir.file("c.toml", "[[disk]]\nname = \"d\"\ntarget = \"./a.img\"\nno_path_retry = \"queue\"\n");
    let says = "c.toml:4: no_path_retry: has no effect without stack = \"multipath\"";
    dir.mqblk(&["serve", "c.toml"]).exits(2).says(&[says]);
}

/// A server that was cut off may carry out an old write after a newer one was acknowledged on another path.
#[test]
fn nbd_paths_are_written_only_by_permission() {
    let dir = Dir::new("serve-multipath-stale");
    let two = ["nbd+unix:///e?socket=a.sock", "nbd+unix:///e?socket=b.sock"];
    let quoted = format!("\"{}\", \"{}\"", two[0], two[1]);
    let says = "allow_stale_writes=no: a disk of 2 paths over NBD must not be written";
    for (more, allowed) in [
        ("", false),
        ("allow_stale_writes = \"no\"", false),
        ("allow_stale_writes = \"yes\"", true),
        ("read_only = true", true),
    ] {
        dir.file("c.toml", &config(&quoted, more));
        let done = dir.mqblk(&["serve", "c.toml", "--dry-run"]);
        match allowed {
            true => _ = done.exits(0),
            false => done.exits(2).says(&["c.toml:", says]),
        }
    }
    dir.file("c.toml", &config(&quoted, ""));
    dir.mqblk(&["serve", "c.toml"]).exits(2).says(&[says]);
    let target = format!("multipath:{}", two.join("+"));
    dir.mqblk(&["serve", &target, "--dry-run"]).exits(2).says(&[says]);
    dir.file("write.fio", "[j]\nrw=randwrite\nsize=1m\n");
    dir.file("read.fio", "[j]\nrw=randread\nsize=1m\n");
    for command in [&["run"][..], &["compare", "--b", "scheduler=kyber"]] {
        let with = |job: &str| dir.mqblk(&[command, &[job, "--target", &target]].concat()).exits(2);
        with("write.fio").says(&[says]);
        let reads = with("read.fio");
        assert!(!reads.err.contains("allow_stale_writes") && reads.err.contains("a.sock"), "{}", reads.err);
    }
}

/// Returns a configuration of a disk with these paths, for the load of [`under_load`].
fn loaded(targets: &[&str], more: &str) -> String {
    let targets: Vec<String> = targets.iter().map(|target| format!("\"{target}\"")).collect();
    let export = "[[export]]\ntype = \"vhost-user-blk\"\ndisk = \"d\"\nsocket = \"v.sock\"\nnum_queues = 2\n";
    format!("[[disk]]\nname = \"d\"\nstack = \"multipath\"\ntargets = [{}]\n{more}{export}", targets.join(", "))
}

/// Runs a client that verifies what it reads, and that no request fails, while `meanwhile` runs.
fn under_load(dir: &Dir, meanwhile: impl FnOnce()) {
    let socket = dir.path("v.sock");
    let go = KeepGoing::new();
    let keep_going = Some(go.0.clone());
    let options = VerifyOptions { queues: 2, size: 8 << 20, requests: 1000, keep_going, ..VerifyOptions::default() };
    std::thread::scope(|scope| {
        let load = scope.spawn(|| verify(socket.to_str().unwrap(), &options).unwrap());
        let go = go;
        meanwhile();
        drop(go);
        let report = load.join().unwrap();
        assert!(report.writes > 100, "{report:?}");
    });
}

/// Returns the names of the paths of the only multipath disk, in groups.
fn path_groups(dir: &Dir) -> Vec<Vec<String>> {
    let all = dir.mqblk(&["multipath", "-ll", "--json", "--control", "ctl.sock"]).exits(0).json();
    let groups = all["maps"][0]["path_groups"].as_array().unwrap().iter();
    let names = |group: &Value| {
        let paths = group["paths"].as_array().unwrap().iter();
        paths.map(|path| path["dev"].as_str().unwrap().to_owned()).collect()
    };
    groups.map(names).collect()
}

/// Once, a reload with another list of paths closed the disk and disconnected its clients.
#[test]
fn reload_moves_a_disk_to_another_target_under_load() {
    let dir = Dir::new("serve-path-reload");
    ["a.img", "b.img"].iter().for_each(|name| image(&dir, name, 8 << 20));
    let tgtds = [(); 2].map(|()| Tgtd::start(&dir, "iqn.2026-11.test:moves", &["a.img", "b.img"]));
    let [one, two] = [&tgtds[0], &tgtds[1]].map(|tgtd| tgtd.url(1));
    let keys = "no_path_retry = 12\n";
    dir.file("serve.toml", &loaded(&[&one], keys));
    let mut daemon = dir.start(&["serve", "serve.toml", "--control", "ctl.sock"], "serving");
    let reload = |targets: &[&str], says: &[&str]| {
        dir.file("serve.toml", &loaded(targets, keys));
        dir.mqblk(&["ctl", "reload", "--control", "ctl.sock"]).exits(0).prints(says);
    };
    let (added, removed) = (format!("added path '{two}' in group 2"), format!("removed path '{one}'"));
    under_load(&dir, || {
        reload(&[&one, &two], &[&format!("disk 'd': {added}")]);
        assert_eq!(path_groups(&dir), [[one.clone()], [two.clone()]]);
        reload(&[&one, &two], &["nothing has changed"]);
        reload(&[&two], &[&format!("disk 'd': {removed}")]);
        assert_eq!(path_groups(&dir), [[two.clone()]]);
        // The other LUN is not this disk, so the disk keeps the paths that it has.
        let other = tgtds[0].url(2);
        reload(&[&two, &other], &["failed: disk 'd': path ", "it leads to another disk"]);
        assert_eq!(path_groups(&dir), [[two.clone()]]);
    });
    let seen = |daemon: &mut common::Started, sign: &str| {
        if !daemon.seen().contains(sign) {
            daemon.until(sign);
        }
    };
    ["path added", "path removed", "remaining active paths: 1"].iter().for_each(|sign| seen(&mut daemon, sign));
    let list = dir.mqblk(&["ctl", "list", "--json", "--control", "ctl.sock"]).exits(0).json();
    let target = list["disks"][0]["target"].as_str().unwrap();
    assert!(target.contains(&two) && !target.contains(&one), "{target}");
    daemon.signal("TERM");
    daemon.ends().exits(0);
    assert!(fs::read(dir.path("b.img")).unwrap().iter().all(|byte| *byte == 0), "another disk was written");
}

/// The names are hard and symbolic links to one file, so they are paths to one disk.
#[test]
fn paths_are_added_and_removed_by_hand_under_load() {
    let dir = Dir::new("serve-path-by-hand");
    ["a.img", "b.img"].iter().for_each(|name| image(&dir, name, 8 << 20));
    let real = fs::canonicalize(dir.path("a.img")).unwrap();
    let [c, e] = ["c.img", "e.img"].map(|name| real.with_file_name(name).to_str().unwrap().to_owned());
    fs::hard_link(&real, &c).unwrap();
    std::os::unix::fs::symlink("a.img", &e).unwrap();
    let a = "./a.img".to_owned();
    dir.file("serve.toml", &loaded(&[&a], "path_grouping_policy = \"group_by_prio\"\nprio = [50]\n"));
    let daemon = dir.start(&["serve", "serve.toml", "--control", "ctl.sock"], "serving");
    let ctl = |args: &[&str]| dir.mqblk(&[&["ctl", "--control", "ctl.sock"], args].concat());
    under_load(&dir, || {
        let added = |path: &str, group: u32| format!("disk 'd': added path '{path}' in group {group}\n");
        ctl(&["add-path", "d", "c.img", "--prio", "10"]).exits(0).prints(&[&added(&c, 2)]);
        // A reload gives the disk the paths of the configuration.
        ctl(&["reload"]).exits(0).prints(&[&format!("disk 'd': removed path '{c}'")]);
        assert_eq!(path_groups(&dir), [[a.clone()]]);
        ctl(&["add-path", "d", "c.img", "--prio", "10"]).exits(0).prints(&[&added(&c, 2)]);
        ctl(&["add-path", "d", "e.img", "--prio", "20"]).exits(0).prints(&[&added(&e, 2)]);
        assert_eq!(path_groups(&dir), [[a.clone()], [e.clone()], [c.clone()]]);
        ctl(&["remove-path", "d", "1"]).exits(0).prints(&["disk 'd': removed path './a.img'"]);
        assert_eq!(path_groups(&dir), [[e.clone()], [c.clone()]]);
        // The paths are numbered as they were added.
        ctl(&["fail-path", "d", "1"]).exits(0).prints(&[&format!("failed path '{c}'")]);
        let last = format!("disk 'd': path '{e}' is the last usable path");
        ctl(&["remove-path", "d", "2"]).exits(2).says(&[&last, "--force"]);
        ctl(&["reinstate-path", "d", "1"]).exits(0);
        ctl(&["add-path", "d", "b.img"]).exits(2).says(&["disk 'd': path ", "b.img: ", "it leads to another disk"]);
        ctl(&["add-path", "d", "e.img"]).exits(2).says(&["is a path of this disk already"]);
        ctl(&["add-path", "d", "none.img"]).exits(2).says(&["none.img"]);
        ctl(&["add-path", "d", "null"]).exits(2).says(&["disk 'd': path null is of another kind"]);
        ctl(&["remove-path", "d", "3"]).exits(2).says(&["disk 'd': path '3': must be a path's name, or its number"]);
        assert_eq!(path_groups(&dir), [[e.clone()], [c.clone()]]);
        let list = ctl(&["list", "--json"]).exits(0).json();
        let target = format!("multipath:path_grouping_policy=group_by_prio,prio=10+20:{c}+{e}");
        assert_eq!(list["disks"][0]["target"], target);
    });
    ctl(&["remove-path", "d", &e]).exits(0).prints(&[&format!("removed path '{e}'")]);
    ctl(&["remove-path", "d", "1", "--force"]).exits(2).says(&["is the only one of its disk; add another path first"]);
    daemon.signal("TERM");
    daemon.ends().exits(0);
}

/// Both names lead to one file, whose lock they share. The lock lasts longer than the path that took it.
#[test]
fn path_that_is_missing_at_the_start_is_used_later() {
    let dir = Dir::new("serve-late-path");
    image(&dir, "a.img", 8 << 20);
    dir.file("serve.toml", &loaded(&["./a.img", "./b.img"], "polling_interval = 1\n"));
    let mut daemon = dir.start(&["serve", "serve.toml", "--control", "ctl.sock"], "serving");
    fs::hard_link(dir.path("a.img"), dir.path("b.img")).unwrap();
    daemon.until("reinstated");
    let ctl = |args: &[&str]| dir.mqblk(&[&["ctl", "--control", "ctl.sock"], args].concat());
    under_load(&dir, || {
        ctl(&["remove-path", "d", "1"]).exits(0).prints(&["disk 'd': removed path './a.img'"]);
        dir.file("again.toml", &loaded(&["./b.img"], "").replace("v.sock", "w.sock"));
        dir.mqblk(&["serve", "again.toml", "--dry-run"]).exits(2).says(&["is in use: another program"]);
    });
    assert_eq!(path_groups(&dir), [["./b.img"]]);
    daemon.signal("TERM");
    daemon.ends().exits(0);
}
