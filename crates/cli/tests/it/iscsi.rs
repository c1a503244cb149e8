// SPDX-License-Identifier: Apache-2.0 OR MIT
//! iSCSI targets as targets of `mqblk run`: Debian's tgtd with a file of the test's directory.

use crate::common;
use crate::tgtd;

use common::{Dir, Done};
use std::net::TcpListener;
use tgtd::Tgtd;

const IQN: &str = "iqn.2026-11.test:run";

/// Starts tgtd with `disk.img` as LUN 1, for user `me` only. Returns it and the LUN as a target with that user.
fn tgtd_of_me(dir: &Dir) -> (Tgtd, String) {
    let tgtd = Tgtd::start(dir, IQN, &["disk.img"]);
    tgtd.admin("--op new --mode account --user me --password secretsecret1");
    tgtd.admin("--op bind --mode account --tid 1 --user me");
    let url = tgtd.url(1).replace("iscsi://", "iscsi://me@");
    (tgtd, url)
}

#[test]
fn jobs_run_and_verify_on_a_target() {
    let dir = Dir::new("iscsi-run");
    std::fs::File::create(dir.path("disk.img")).unwrap().set_len(16 << 20).unwrap();
    let (_tgtd, me) = tgtd_of_me(&dir);
    dir.file(
        "a.fio",
        "[a]\nrw=randwrite\nbs=4k\nsize=4m\niodepth=16\nverify=crc32c\nfsync=64\n[b]\nrw=read\nbs=1m\nsize=8m\niodepth=4\n",
    );
    let run = |job: &str, url: &str, password: &str| {
        let mut command = dir.command(&["run", job, "--target", url, "--json"]);
        command.env("LIBISCSI_CHAP_PASSWORD", password).output().unwrap()
    };
    let done = run("a.fio", &me, "secretsecret1");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let digests = format!("{me}?data_digest=none&sessions=2");
    dir.file("c.fio", "[c]\nrw=write\nbs=64k\nsize=1m\nbuffer_pattern=0x5a\nnumjobs=1\n");
    assert!(run("c.fio", &digests, "secretsecret1").status.success());
    let bytes = std::fs::read(dir.path("disk.img")).unwrap();
    assert!(bytes[..1 << 20].iter().all(|b| *b == 0x5a));
    // No output contains a password from the URL.
    let url = me.replace("me@", "me%secretsecret1@");
    for json in [&["--json"][..], &[]] {
        let out = dir.command(&[&["run", "c.fio", "--target", &url], json].concat()).output().unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success() && text.contains("me%***@") && !text.contains("secretsecret"), "{text}");
    }
    // No stored file contains a password from a job file.
    dir.file("d.fio", &format!("[d]\nfilename={}\nrw=read\nbs=64k\nsize=1m\n", url.replace(':', "\\:")));
    let kept = ["compare", "d.fio", "--a", "nomerges=0", "--b", "nomerges=1", "--pairs", "10", "--results", "d.jsonl"];
    dir.mqblk(&[&kept[..], &["--report", "d.html"]].concat()).exits(0);
    for file in ["d.jsonl", "d.html", "d.json"] {
        let text = std::fs::read_to_string(dir.path(file)).unwrap();
        assert!(text.contains("me%***@") && !text.contains("secretsecret"), "{file}");
    }
    // Without the password, and with another one.
    for (password, part) in [("", "set LIBISCSI_CHAP_PASSWORD"), ("secretsecret2", "rejected the login of user 'me'")] {
        let refused = run("c.fio", &me, password);
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && text.contains(part) && !text.contains("secretsecret"), "{text}");
    }
}

#[test]
fn targets_and_disks_are_discovered() {
    let dir = Dir::new("iscsi-discover");
    std::fs::File::create(dir.path("disk.img")).unwrap().set_len(16 << 20).unwrap();
    let (tgtd, me) = tgtd_of_me(&dir);
    let (portal, _) = me.split_once(&format!("/{IQN}")).unwrap();
    let (_, address) = portal.split_once('@').unwrap();
    let ask = |args: &[&str], password: &str| {
        let args = [&["discover"], args].concat();
        Done::of(dir.command(&args).env("LIBISCSI_CHAP_PASSWORD", password).output().unwrap(), &args)
    };
    let bare = format!("iscsi://{address}");
    // Discovery needs no login, whatever the targets require.
    let found = ask(&[&bare], "").exits(0);
    assert_eq!(found.out, format!("{address},1 {IQN}\n"));
    let found = ask(&[portal, "--luns"], "secretsecret1").exits(0);
    found.prints(&[&format!("{address},1 {IQN}\n    {me}  16.0MiB, blocks of 512, ")]);
    let told = &ask(&[portal, "--luns", "--json"], "secretsecret1").exits(0).json()["targets"][0];
    assert_eq!((&told["target"], &told["portals"][0]["address"]), (&IQN.into(), &address.into()));
    assert_eq!((&told["luns"][0]["url"], &told["luns"][0]["bytes"]), (&me.clone().into(), &(16 << 20).into()));
    // Errors are the same as with a target.
    let refused = ask(&[portal, "--luns"], "secretsecret2").exits(2);
    assert!(refused.out.contains(IQN), "what could be found is printed: {refused:?}");
    refused.says(&["rejected the login of user 'me'"]);
    ask(&[portal], "").exits(2).says(&["set LIBISCSI_CHAP_PASSWORD"]);
    ask(&[&me], "").exits(2).says(&["discovery lists all targets of a portal"]);
    ask(&["nbd://h"], "").exits(2).says(&["must be iscsi://"]);
    tgtd.admin("--op unbind --mode target --tid 1 -I ALL");
    ask(&[&bare], "").exits(2).says(&["has no target for this host"]);
    drop(tgtd);
    ask(&[&bare], "").exits(2).says(&["cannot connect"]);
}

#[test]
fn the_commands_of_the_documentation_run() {
    let text = include_str!("../../../../docs/iscsi.md");
    let (_, script) = text.split_once("```sh\n").expect("a fence");
    let (script, _) = script.split_once("```").expect("its end");
    assert!(script.contains(":33260"), "{script}");
    let dir = Dir::new("iscsi-docs");
    for _ in 0..20 {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let script = script.replace("33260", &port.to_string());
        // A typing user is slower than tgtd's start, so the test waits for it.
        let (_, from_tgtd) = script.split_once("\ntgtd ").expect("starts one");
        let started = format!("tgtd {}", from_tgtd.lines().next().unwrap());
        let is_up = "tgtadm --control-port 7 --lld iscsi --op show --mode sys >/dev/null 2>&1";
        let waits = format!("{started}\nfor n in $(seq 1000); do {is_up} && break; sleep 0.01; done");
        let script = script.replace(&started, &waits);
        // The shell ends every process that it started, however far the script gets.
        let mqblk = env!("CARGO_BIN_EXE_mqblk");
        let leave = "tgtadm --control-port 7 --lld iscsi --op delete --mode target --tid 1 --force; \
                     tgtadm --control-port 7 --op delete --mode system";
        let script = format!(
            "set -e\nexport TGT_IPC_SOCKET=$PWD/tgtd\nmqblk() {{ '{mqblk}' \"$@\"; }}\ntrap 'set +e; {{ {leave}; }} >/dev/null 2>&1; :' EXIT\n{script}"
        );
        let done = dir.program("bash", &["-c", &script]);
        if done.status != 0 && (done.err.contains("in use") || done.err.contains("can't connect")) {
            continue;
        }
        let done = done.exits(0);
        done.prints(&["iqn.2026-11.test:disks\n", "disks/1  64.0MiB, blocks of 512, ", "err= 0"]);
        return;
    }
    panic!("tgtd finds no port");
}
