// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `--json` of every command prints an object with a version. `docs/json.md` lists its keys.

use crate::common;

use common::{Dir, json_row};
use std::fs;

/// Returns the commands of `mqblk --help`, in their order.
fn commands(dir: &Dir) -> Vec<String> {
    let help = dir.mqblk(&["--help"]).exits(0).out;
    let after = help.split_once("Commands:\n").expect("it lists its commands").1;
    let lines = after.lines().take_while(|line| !line.is_empty());
    lines.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).filter(|name| name != "help").collect()
}

#[test]
fn every_command_with_json_is_documented_and_no_other() {
    let dir = Dir::new("json");
    let mut with = 0;
    for command in commands(&dir) {
        let flags = dir.mqblk(&[&command, "--help"]).exits(0).out;
        let has = flags.lines().any(|line| line.trim_start().split([' ', '=']).any(|word| word == "--json"));
        let row = json_row(&command).is_some();
        assert_eq!(has, row, "mqblk {command}: --json {has}, a row in docs/json.md {row}");
        with += usize::from(has);
    }
    assert!(with > 10, "{with}");
}

#[test]
fn objects_begin_with_their_version() {
    let dir = Dir::new("json");
    dir.file("serve.toml", "[[disk]]\ntarget = \"null\"\n[[export]]\ntype = \"nbd\"\n");
    for (args, key) in [
        (&["cmdhelp"][..], "options"),
        (&["cmdhelp", "iodepth"], "options"),
        (&["inspect"], "settings"),
        (&["inspect", "--host"], "devices"),
        (&["restore"], "restored"),
        (&["serve", "serve.toml", "--dry-run"], "disks"),
    ] {
        let done = dir.mqblk(&[args, &["--json"]].concat()).exits(0);
        assert!(done.out.starts_with("{\n  \"format\": 1,\n"), "{args:?}: {}", done.out);
        assert!(done.json().get(key).is_some(), "{args:?} without {key}: {}", done.out);
    }
    let one = dir.mqblk(&["cmdhelp", "iodepth", "--json"]).exits(0).json();
    assert_eq!((&one["options"][0]["name"], &one["options"][0]["status"]), (&"iodepth".into(), &"yes".into()));
}

#[test]
fn a_report_as_json_is_its_sidecar() {
    let dir = Dir::new("json");
    dir.file("j.fio", "[a]\nrw=randread\nsize=1m\nbs=4k\niodepth=4\nnorandommap\n");
    let short = ["--target", "null", "--pairs", "10", "--runtime", "5ms", "--warmup", "0", "--results", "r.jsonl"];
    dir.mqblk(&[&["compare", "j.fio", "--b", "mode=sq"], &short[..]].concat()).exits(0);
    let printed = dir.mqblk(&["report", "r.jsonl", "--json"]).exits(0).out;
    assert!(!dir.path("r.html").exists());
    dir.mqblk(&["report", "r.jsonl"]).exits(0);
    assert_eq!(printed, fs::read_to_string(dir.path("r.json")).unwrap());
    dir.mqblk(&["report", "r.jsonl", "--json", "-o", "x.html"]).exits(2);
}
