// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk calibrate` and `mqblk sim --study` from the outside.

use crate::common;

use common::Dir;
use sim::scenario::file::Scenario;

#[test]
fn what_is_written_is_a_machine_that_a_study_can_be_made_of() {
    let dir = Dir::new("calibrate");
    let done = dir.mqblk(&["calibrate", "--seconds", "0.1", "--out", "here.toml", "--json"]).exits(0);
    let json: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    let text = std::fs::read_to_string(dir.path("here.toml")).unwrap();
    let machine = Scenario::parse_machine("here.toml", &text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(u64::from(machine.machine.cpus()), json["setup"]["cpus"].as_u64().unwrap());
    let (p, l) = (machine.costs.path, machine.costs.line);
    let path = [
        p.app_ns,
        p.syscall_ns,
        p.submit_ns,
        p.hold_ns,
        p.dispatch_ns,
        p.doorbell_ns,
        p.irq_ns,
        p.complete_ns,
        p.wakeup_ns,
        p.ipi_ns,
        p.switch_ns,
    ];
    for ns in path.into_iter().chain([l.atomic_ns, l.core_ns, l.socket_ns, l.remote_ns]) {
        assert!((1..1_000_000_000).contains(&ns), "{text}");
    }
    assert!((1..=64).contains(&l.lines), "{text}");
    for cost in json["costs"].as_array().unwrap() {
        let measured = cost["median_ns"].is_number() && cost["samples"].as_u64() > Some(0);
        assert!(measured || cost["why_not"].as_str().is_some_and(|why| !why.is_empty()), "{cost}");
    }
    assert_eq!(json["in_effect"]["path"]["syscall_ns"], p.syscall_ns);

    let study = dir.mqblk(&["sim", "--study", "cpus", "--machine", "here.toml", "--quick", "--measure", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&study.exits(0).out).unwrap();
    let here = json["here"]["points"].as_array().unwrap();
    assert!(here.iter().any(|p| p["series"] == "sq") && here.iter().any(|p| p["series"] == "mq"), "{json}");
    for point in here {
        assert!(point["measured"].as_f64() > Some(0.0) && point["simulated"].as_f64() > Some(0.0), "{point}");
    }
}

#[test]
fn a_file_is_not_written_over_and_what_cannot_be_is_refused() {
    let dir = Dir::new("calibrate");
    std::fs::write(dir.path("here.toml"), "mine").unwrap();
    let done = dir.mqblk(&["calibrate", "--seconds", "0.1", "--out", "here.toml"]).exits(2);
    done.says(&["--out here.toml: already exists", "--force"]);
    assert_eq!(std::fs::read_to_string(dir.path("here.toml")).unwrap(), "mine");
    dir.mqblk(&["calibrate", "--seconds", "0.1", "--out", "here.toml", "--force"])
        .exits(0)
        .prints(&["costs.path.syscall_ns"]);
    assert!(std::fs::read_to_string(dir.path("here.toml")).unwrap().contains("[costs.path]"));
    dir.mqblk(&["calibrate", "--out", "none/here.toml"]).exits(2).says(&["directory none does not exist"]);
    dir.mqblk(&["calibrate", "--seconds", "0"]).exits(2).says(&["0.1..=600"]);
}

#[test]
fn a_study_is_a_table_with_reasons_and_the_same_every_time() {
    let dir = Dir::new("study");
    let args = ["sim", "--study", "sockets", "--quick"];
    let first = dir.mqblk(&args).exits(0);
    first.prints(&["series    sockets", "\nsq: peaks with 1 socket at ", "\nmq: grows ", " times from 1 to 8 sockets"]);
    assert_eq!(first.out, dir.mqblk(&args).exits(0).out);
    let json: serde_json::Value =
        serde_json::from_str(&dir.mqblk(&[&args[..], &["--json"]].concat()).exits(0).out).unwrap();
    assert_eq!((&json["study"], &json["scales"]), (&"sockets".into(), &"sockets".into()));
    assert_eq!(json["simulated"].as_array().unwrap().len(), 8);
    assert!(json["here"].is_null());
}

#[test]
fn a_wrong_study_is_refused() {
    let dir = Dir::new("study");
    dir.mqblk(&["sim", "--study", "cpu"]).exits(2).says(&["must be one of cpus, sockets", "did you mean 'cpus'?"]);
    dir.mqblk(&["sim", "--study", "iothreads", "--measure"])
        .exits(2)
        .says(&["--measure: IOThreads serve virtual machines"]);
    dir.mqblk(&["sim", "--study", "cpus", "--machine", "none.toml"])
        .exits(2)
        .says(&["--machine none.toml: ", "calibrate"]);
    std::fs::write(dir.path("m.toml"), "[machine]\ncores = 0\n[disk]\nsize_gib = 1\nread_us = 1\nwrite_us = 1\n")
        .unwrap();
    dir.mqblk(&["sim", "--study", "cpus", "--machine", "m.toml"])
        .exits(2)
        .says(&["m.toml:2: cores = 0: must be 1 or more"]);
    let good = "[machine]\ncores = 2\n[disk]\nsize_gib = 1\nread_us = 1\nwrite_us = 1\n";
    std::fs::write(dir.path("m.toml"), good).unwrap();
    dir.mqblk(&["sim", "--study", "iothreads", "--machine", "m.toml"]).exits(2).says(&["the machine has no [guests]"]);
    dir.mqblk(&["sim", "--json"]).exits(2);
}
