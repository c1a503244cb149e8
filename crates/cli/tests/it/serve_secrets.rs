// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Passwords and keys of targets are in no output: a table of targets against all outputs, and a daemon with such targets.

use crate::common;
use crate::tgtd;

use common::{Dir, Done, until_reported};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use tgtd::Tgtd;

/// The password in every target here. It is in no output.
const MARKER: &str = "hunter2hunter2";
const IQN: &str = "iqn.2026-11.test:secrets";

#[track_caller]
fn is_clean(done: &Done, what: &str) {
    let text = format!("{}{}", done.out, done.err);
    assert!(!text.contains("hunter2") && !text.contains("panicked"), "{what}: {text}");
}

/// Targets with a password. Most are rejected, because the message of an error quotes them, too.
fn targets() -> Vec<String> {
    let iscsi = format!("iscsi://me%{MARKER}@127.0.0.1:1/{IQN}/1");
    let rbd = format!("rbd:p/i:conf=/nonexistent:id=me:key={MARKER}");
    vec![
        format!("stripe:{iscsi}+null"),
        format!("multipath:{iscsi}+{}", iscsi.replace("127.0.0.1", "localhost")),
        format!("multipath:path_selector=none:{iscsi}"),
        format!("multipath:{rbd}+{rbd}"),
        format!("iscsi://me%{MARKER}@/{IQN}/1"),
        format!("iscsi://me%{MARKER}@127.0.0.1:1/{IQN}"),
        format!("iscsi://me%{MARKER}@127.0.0.1:1/{IQN}/1?password={MARKER}"),
        format!("iscsi://me%x/{MARKER}@127.0.0.1:1/{IQN}/1"),
        format!("iscsi://me%x {MARKER}@127.0.0.1:1/{IQN}/1"),
        format!("iscis://me%{MARKER}@127.0.0.1:1/{IQN}/1"),
        format!("iscs1://me%{MARKER}@127.0.0.1:1/{IQN}/1"),
        format!("i-scsi://me%{MARKER}@127.0.0.1:1/{IQN}/1"),
        format!("iscsi:/me%{MARKER}@127.0.0.1:1/{IQN}/1"),
        format!("iscsi//me%{MARKER}@127.0.0.1:1/{IQN}/1"),
        format!("nbds://me:{MARKER}@127.0.0.1:1/d"),
        format!("nbds://me:{MARKER}@127.0.0.1:port/d"),
        format!("nbds://me:x/{MARKER}@127.0.0.1:1/d"),
        format!("nbds://me@127.0.0.1:1/d?psk={MARKER}"),
        format!("nbd://me:{MARKER}@127.0.0.1:1/d"),
        format!("nbd+unix://me:{MARKER}@/d?socket=s"),
        format!("{rbd}:images=0"),
        format!("{rbd}:id"),
        format!("rbdd{}", rbd.trim_start_matches("rbd")),
        rbd,
        iscsi,
    ]
}

#[test]
fn no_output_has_the_password_of_a_target() {
    let dir = Dir::new("secrets");
    let mut dry_runs = 0;
    for target in targets() {
        let escaped = target.replace(':', "\\:");
        dir.file("j.fio", "[a]\nrw=read\nbs=4k\nsize=64k\n");
        dir.file("own.fio", &format!("[a]\nfilename={escaped}\nrw=read\nbs=4k\nsize=64k\n"));
        let nbd = "[[export]]\ntype = \"nbd\"\ndisk = \"d\"\nsocket = \"d.sock\"\n";
        let config = |keys: String| format!("[[disk]]\nname = \"d\"\n{keys}\n{nbd}");
        dir.file("one.toml", &config(format!("target = '{target}'")));
        dir.file("stripe.toml", &config(format!("stack = \"stripe\"\ntargets = ['{target}', 'null:size=1g']")));
        dir.file("paths.toml", &config(format!("stack = \"multipath\"\ntargets = ['{target}', '{target}']")));
        dir.file("type.toml", &config(format!("target = ['{target}']")));
        dir.file("syntax.toml", &config(format!("target = '{target}' '{target}'")));
        let outputs: &[&[&str]] = &[
            &["serve", &target, "--dry-run"],
            &["serve", &target, "--dry-run", "--json"],
            &["serve", &target, "--control", "ctl.sock"],
            &["serve", &target, "--control", "ctl.sock", "--log-format", "json"],
            &["serve", &target, &target],
            &["serve", "null", "--set", &target],
            &["serve", "one.toml", "--dry-run"],
            &["serve", "one.toml", "--dry-run", "--json"],
            &["serve", "stripe.toml", "--dry-run", "--json"],
            &["serve", "paths.toml", "--dry-run", "--json"],
            &["serve", "type.toml", "--dry-run"],
            &["serve", "syntax.toml", "--dry-run"],
            &["run", "j.fio", "--target", &target],
            &["run", "j.fio", "--target", &target, "--json"],
            &["run", "own.fio"],
            &[
                "compare",
                "j.fio",
                "--target",
                &target,
                "--a",
                "nomerges=0",
                "--b",
                "nomerges=1",
                "--results",
                "r.jsonl",
            ],
            &["inspect", &target],
            &["discover", &target],
        ];
        for args in outputs {
            let done = dir.mqblk(args);
            is_clean(&done, &format!("{args:?}"));
            dry_runs += usize::from(done.status == 0 && format!("{}{}", done.out, done.err).contains("***"));
        }
        for file in dir.list().iter().filter(|name| name.starts_with("r.")) {
            let text = std::fs::read_to_string(dir.path(file)).unwrap();
            assert!(!text.contains("hunter2"), "{file} of {target}: {text}");
        }
    }
    assert!(dry_runs > 10, "some plans are printed, without the password: {dry_runs}");
}

#[test]
fn a_daemon_shows_no_password_of_its_targets() {
    let dir = Dir::new("secrets-daemon");
    std::fs::File::create(dir.path("disk.img")).unwrap().set_len(16 << 20).unwrap();
    let tgtd = Tgtd::start(&dir, IQN, &["disk.img"]);
    tgtd.admin(&format!("--op new --mode account --user me --password {MARKER}"));
    tgtd.admin("--op bind --mode account --tid 1 --user me");
    let url = tgtd.url(1).replace("iscsi://", &format!("iscsi://me%{MARKER}@"));
    let disk = |name: &str, keys: &str| {
        format!(
            "[[disk]]\nname = \"{name}\"\nread_only = true\n{keys}\n[[export]]\ntype = \"nbd\"\ndisk = \"{name}\"\nsocket = \"{name}.sock\"\n"
        )
    };
    let fails = "recovery_timeout=1";
    let one = disk("one", &format!("target = \"{url}?{fails}\""));
    let paths = disk("paths", &format!("stack = \"multipath\"\ntargets = [\"{url}\", \"{url}?sessions=1\"]"));
    dir.file("c.toml", &format!("{one}{paths}"));
    let args = ["serve", "c.toml", "--control", "ctl.sock", "--metrics", "unix:m.sock", "--log-format", "json"];
    let mut daemon = dir.start(&args, "serving");
    let ctl = |args: &[&str]| {
        let done = dir.mqblk(&[&["ctl", "--control", "ctl.sock"], args].concat());
        is_clean(&done, &format!("{args:?}"));
        done
    };
    let looks = || {
        for args in [&["list"][..], &["list", "--json"], &["stats"]] {
            ctl(args).exits(0);
        }
        is_clean(&dir.mqblk(&["multipath", "-ll", "--control", "ctl.sock"]).exits(0), "multipath");
        let mut metrics = UnixStream::connect(dir.path("m.sock")).unwrap();
        metrics.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut page = String::new();
        metrics.read_to_string(&mut page).unwrap();
        assert!(page.contains("mqblk_disk_size_bytes") && !page.contains("hunter2"), "{page}");
    };
    looks();
    assert!(ctl(&["list"]).out.contains("me%***@"), "the target is shown without its password");
    ctl(&["add", &url]).exits(0);
    for target in targets() {
        ctl(&["add", &target]).exits(2);
    }
    let broken = format!("{paths}[[disk]]\nname = \"three\"\ntarget = '{url}' '{url}'\n");
    dir.file("c.toml", &broken);
    ctl(&["reload"]).exits(2);
    drop(tgtd);
    // Lost connections are noticed by a check that runs each second.
    until_reported("the lost connection is noticed", || {
        ctl(&["list", "--json"]).json()["disks"][0]["troubles"] != serde_json::json!([])
    });
    looks();
    daemon.until("warning");
    daemon.signal("TERM");
    let done = daemon.ends();
    is_clean(&done, "the log");
}
