// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk of several paths from the command line: as `--target` of a run, and served from a configuration; what is refused, and where it
//! is said.

mod common;

use common::Dir;
use std::fs::{self, File};

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
    dir.file("serve.toml", &config("\"./a.img\", \"././a.img\"", more));
    let started = dir.start(&["serve", "serve.toml", "--control", "ctl.sock"], "serving");
    let source: Vec<u8> = (0..8u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(dir.path("source"), &source).unwrap();
    let uri = format!("nbd+unix:///d?socket={}", dir.path("d.sock").display());
    dir.program("nbdcopy", &["--flush", "source", &uri]).exits(0);
    dir.program("nbdcopy", &[&uri, "back"]).exits(0);
    assert!(fs::read(dir.path("back")).unwrap() == source);
    let list = dir.mqblk(&["ctl", "--control", "ctl.sock", "list", "--json"]).exits(0).json();
    let target = list["disks"][0]["target"].as_str().unwrap();
    assert!(target.starts_with("multipath:path_grouping_policy=group_by_prio,prio=50+10,"), "{target}");
    started.signal("TERM");
    started.ends().exits(0);
    assert!(fs::read(dir.path("a.img")).unwrap() == source);
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
        (two, "path_checker = \"tur\"", "c.toml:5: path_checker=tur: path ./a.img knows no TEST UNIT READY"),
        (two, "chunk = \"64k\"", "c.toml:5: chunk: has no effect without stack = \"stripe\""),
        ("\"ram:size=1m\", \"ram:size=1m\"", "", "c.toml:4: targets: path ram:size=1m: memory of its own"),
        ("\"./a.img\", \"null\"", "", "c.toml:4: targets: path null is of another kind"),
    ] {
        dir.file("c.toml", &config(targets, more));
        dir.mqblk(&["serve", "c.toml"]).exits(2).says(&[says]);
    }
    dir.file("c.toml", "[[disk]]\nname = \"d\"\ntarget = \"./a.img\"\nno_path_retry = \"queue\"\n");
    let says = "c.toml:4: no_path_retry: has no effect without stack = \"multipath\"";
    dir.mqblk(&["serve", "c.toml"]).exits(2).says(&[says]);
}
