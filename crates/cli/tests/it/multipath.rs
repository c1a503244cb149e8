// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk multipath`: lists the paths of a served disk as they fail and return, and reads files in the syntax of multipath.conf(5).

use crate::common;

use common::{Dir, LONG, PROGRAM_POLL};
use std::fs::File;
use std::time::Instant;

/// Two exports of one disk are two paths to it. One of them is removed, and comes back.
#[test]
fn paths_of_a_served_disk_are_listed_as_multipath_does() {
    let dir = Dir::new("multipath");
    File::create(dir.path("disk.img")).unwrap().set_len(64 << 20).unwrap();
    let export =
        |name: &str| format!("[[export]]\nname = \"{name}\"\ndisk = \"d\"\ntype = \"nbd\"\nsocket = \"{name}.sock\"\n");
    let disk = "[[disk]]\nname = \"d\"\ntarget = \"disk.img\"\n";
    dir.file("back.toml", &format!("{disk}{}{}", export("x"), export("y")));
    let back = dir.start(&["serve", "back.toml", "--control", "back.sock"], "serving");
    let uri = |name: &str| format!("nbd+unix:///d?socket={}", dir.path(&format!("{name}.sock")).display());
    let (x, y) = (uri("x"), uri("y"));
    let target = format!(
        "multipath:allow_stale_writes=yes,path_grouping_policy=group_by_prio,prio=50+10,polling_interval=1,no_path_retry=queue:{x}+{y}"
    );
    dir.file(
        "front.toml",
        &format!("[[disk]]\nname = \"data\"\ntarget = \"{target}\"\n[[export]]\ntype = \"nbd\"\nsocket = \"f.sock\"\n"),
    );
    let front = dir.start(&["serve", "front.toml", "--control", "ctl.sock"], "serving");
    let ll = || dir.mqblk(&["multipath", "-ll", "--control", "ctl.sock"]).exits(0).out;
    let until = |what: &str| {
        let since = Instant::now();
        loop {
            // Sends I/O over the path.
            dir.program("nbdinfo", &["--size", &format!("nbd+unix:///data?socket={}", dir.path("f.sock").display())]);
            let out = ll();
            if out.contains(what) {
                return out;
            }
            assert!(since.elapsed() < LONG, "never seen: {what}\n{out}");
            std::thread::sleep(PROGRAM_POLL);
        }
    };
    let out = until(&format!("`- #:#:#:# {y} 0:0 active ready running\n"));
    let head = "data dm-0 ##,##\nsize=64M features='1 queue_if_no_path' hwhandler='0' wp=rw\n|-+- policy='service-time 0' prio=50 status=";
    assert!(out.starts_with(head), "{out}");
    assert!(out.contains("\n`-+- policy='service-time 0' prio=10 status=enabled\n"), "{out}");

    dir.mqblk(&["ctl", "--control", "back.sock", "remove", "x", "--force"]).exits(0);
    let out = until(&format!("| `- #:#:#:# {x} 0:0 failed faulty "));
    assert!(out.contains("prio=0 status="), "a group without a path has no priority: {out}");
    let json = dir.mqblk(&["multipath", "-l", "data", "--json", "--control", "ctl.sock"]).exits(0).json();
    let map = &json["maps"][0];
    assert_eq!((map["name"].as_str(), map["paths"].as_u64()), (Some("data"), Some(1)), "{map}");
    assert_eq!(map["path_groups"][0]["paths"][0]["chk_st"], "faulty");
    dir.mqblk(&["multipath", "-ll", "dta", "--control", "ctl.sock"])
        .exits(2)
        .says(&["no multipath disk 'dta'", "did you mean 'data'?"]);

    dir.mqblk(&["multipath", "-ll", "dm-0", "--control", "ctl.sock"]).exits(0).prints(&["data dm-0 ##,##\n"]);

    // The export is still in the file, so a reload adds it again.
    dir.mqblk(&["ctl", "--control", "back.sock", "reload"]).exits(0);
    until(&format!("| `- #:#:#:# {x} 0:0 active ready running\n"));
    front.signal("TERM");
    front.ends().exits(0);
    back.signal("TERM");
    back.ends().exits(0);
}

#[test]
fn multipath_conf_is_printed_with_defaults_or_rejected_by_line() {
    let dir = Dir::new("multipath-conf");
    let text = "defaults {\n\tpolling_interval 10\n\tfind_multipaths yes\n}\n\
                devices {\n\tdevice {\n\t\tvendor \"^LIO\"\n\t\tproduct \".*\"\n\t\tfailback 30\n\t}\n}\n";
    dir.file("m.conf", text);
    let done = dir.mqblk(&["multipath", "--config", "m.conf", "-t"]).exits(0);
    done.prints(&[
        "defaults {\n\tpolling_interval 10\n\tmax_polling_interval 40\n\tpath_selector \"service-time 0\"\n",
    ]);
    done.says(&["mqblk: warning: m.conf:3: find_multipaths: has no effect here"]);
    dir.file("again.conf", &done.out);
    assert_eq!(dir.mqblk(&["multipath", "--config", "again.conf", "-t"]).exits(0).out, done.out);
    let of = dir.mqblk(&["multipath", "--config", "m.conf", "-t", "--vendor", "LIO-ORG", "--product", "disk"]).exits(0);
    of.prints(&[
        "\tfailback 30 # m.conf:9, devices\n",
        "\tno_path_retry 12 # hardware table\n",
        "\tchecker_timeout 15 # built in\n",
    ]);
    dir.file("bad.conf", "defaults {\n\tpath_selecter \"round-robin 0\"\n\tfailback later\n");
    let said = [
        "bad.conf:1: 'defaults' begins here",
        "bad.conf:2: 'path_selecter'",
        "did you mean 'path_selector'?",
        "bad.conf:3: failback 'later'",
    ];
    dir.mqblk(&["multipath", "--config", "bad.conf", "-t"]).exits(2).says(&said);
    dir.mqblk(&["multipath", "--config", "none.conf", "-t"]).exits(2).says(&["none.conf: cannot be read"]);
    dir.mqblk(&["multipath", "-t"]).exits(2).says(&["--config"]);
    // What has no effect is refused.
    for (list_or_config, others) in [("-t", "--json"), ("-t", "data"), ("-ll", "--wwid=1")] {
        let args = ["multipath", list_or_config, "--config", "m.conf", others];
        dir.mqblk(&args).exits(2).says(&["cannot be used with"]);
    }
    dir.mqblk(&["multipath", "-ll", "--control", "nobody.sock"]).exits(2).says(&["nobody.sock"]);
}
