// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk inspect`, `cmdhelp` and help from the outside.

mod common;

use blk::settings::SETTINGS;
use common::Dir;

#[test]
fn a_stack_is_described_without_a_run() {
    let dir = Dir::new("inspect");
    let set = ["--set", "nr_cpus=8", "--set", "nr_hw_queues=2", "--set", "scheduler=mq-deadline"];
    let done = dir.mqblk(&[&["inspect"], &set[..]].concat()).exits(0);
    done.prints(&[
        " *nr_hw_queues   ",
        "  queue_depth    ",
        "iosched.fifo_batch",
        "  hctx  type     NUMA  CPUs\n  0     default  0     0-3\n  1     default  0     4-7\n",
        "what limits the I/O in flight",
    ]);
    for s in SETTINGS {
        assert!(done.out.lines().any(|l| l.trim_start_matches([' ', '*']).starts_with(s.name)), "{}", s.name);
    }
    let v = dir.mqblk(&[&["inspect", "--json"], &set[..]].concat()).exits(0).json();
    assert_eq!(v["hctxs"][1]["cpus"].as_array().unwrap().len(), 4);
    dir.file("disk", &"x".repeat(8192));
    dir.mqblk(&["inspect", "--target", "disk"]).exits(0).prints(&["target disk: 8192B"]);
    assert_eq!(dir.list(), ["disk"]);
}

#[test]
fn this_host_s_disks_are_listed_or_said_to_be_hidden() {
    let dir = Dir::new("inspect");
    dir.mqblk(&["inspect", "--host"]).exits(0).prints(&["kernel ", "module parameters", "scsi_mod.use_blk_mq"]);
    let v = dir.mqblk(&["inspect", "--host", "--json"]).exits(0).json();
    if let Some(first) = v["devices"].as_array().unwrap().first() {
        let name = first["name"].as_str().unwrap();
        dir.mqblk(&["inspect", "--host", name]).exits(0).prints(&[&format!("\n{name}: ")]);
    }
}

#[test]
fn help_names_every_command_setting_and_target() {
    let dir = Dir::new("inspect");
    let help = dir.mqblk(&["--help"]).exits(0);
    help.prints(&["run ", "compare ", "inspect ", "cmdhelp ", "Examples:", "Exit status:", "130"]);
    let run = dir.mqblk(&["run", "--help"]).exits(0);
    run.prints(&[
        "--job-set <OPTION[=VALUE]>",
        "--target <TARGET>",
        "null[:OPTIONS]",
        "model[:OPTIONS]",
        "iosched.NAME",
    ]);
    for s in SETTINGS {
        run.prints(&[s.name, s.help]);
    }
    let version = dir.mqblk(&["--version"]).exits(0);
    assert_eq!(version.out, concat!("mqblk ", env!("CARGO_PKG_VERSION"), "\n"));
    dir.mqblk(&["cmdhelp", "iodepth"]).exits(0).prints(&["iodepth: ", "status : as in fio"]);
    dir.mqblk(&["cmdhelp"]).exits(0).prints(&["\nrw ", "\niodepth ", "refused"]);
}
