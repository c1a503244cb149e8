// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Results of a run in progress: `--status-interval` and SIGUSR1.

use crate::common;

use common::{Dir, number, until};
use serde_json::{Deserializer, Value};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// The objects of a series.
fn series(text: &str) -> Vec<Value> {
    Deserializer::from_str(text).into_iter().map(|v| v.unwrap_or_else(|e| panic!("{e}: {text}"))).collect()
}

#[test]
fn json_is_a_series_of_objects() {
    let dir = Dir::new("run-status");
    let line = "fio --ioengine=null --size=1g --time_based --runtime=1 --rate_iops=2000 --status-interval=100ms --output-format=json \
                --output=series.json --name=a --name=b --stonewall --runtime=100ms";
    fs::write(dir.path("series.json"), "old").unwrap();
    dir.mqblk(&line.split_whitespace().collect::<Vec<_>>()).exits(0);
    let series = series(&fs::read_to_string(dir.path("series.json")).unwrap());
    assert!(series.len() > 1, "{}", series.len());
    let of = |v: &Value, key: &str| number(v, &format!("/jobs/0/{key}"));
    for pair in series.windows(2) {
        for key in ["read/total_ios", "read/io_bytes", "read/runtime", "read/clat_ns/N", "job_runtime"] {
            assert!(of(&pair[0], key) <= of(&pair[1], key), "{key}");
        }
        assert!(of(&pair[0], "read/total_ios") < 2100.0);
    }
    for v in &series {
        assert_eq!(v["jobs"].as_array().unwrap().len(), 2, "jobs that wait are there, too");
        assert_eq!(of(v, "read/total_ios"), of(v, "read/clat_ns/N"));
        assert_eq!(of(v, "read/io_bytes"), 4096.0 * of(v, "read/total_ios"));
    }
    assert_eq!(number(&series[0], "/jobs/1/read/total_ios"), 0.0);
    assert!(number(series.last().unwrap(), "/jobs/1/read/total_ios") > 0.0);
}

#[test]
fn each_text_is_whole_and_the_last_one_is_the_result() {
    let dir = Dir::new("run-status");
    let line =
        "fio --name=a --ioengine=null --size=1g --time_based --runtime=1 --rate_iops=1000 --status-interval=200ms";
    let out = dir.mqblk(&line.split_whitespace().collect::<Vec<_>>()).exits(0).out;
    let count = |what: &str| out.matches(what).count();
    let texts = count("a: (groupid=0, jobs=1)");
    assert!(texts > 1 && count("Run status group 0") == texts && count("issued rwts: total=") == texts, "{out}");
    assert_eq!((count("Starting 1 thread"), count("Inside the block layer")), (1, 1), "{out}");
    let line = format!("{line} --output-format=terse");
    let out = dir.mqblk(&line.split_whitespace().collect::<Vec<_>>()).exits(0).out;
    assert!(out.lines().count() > 1 && out.lines().all(|l| l.starts_with("3;fio-3.33")), "{out}");
}

#[test]
fn a_signal_prints_the_results_so_far() {
    let dir = Dir::new("run-status");
    let args = "fio --name=a --ioengine=null --size=1g --time_based --runtime=600 --rate_iops=1000 --eta=always --output=out.json --output-format=json";
    let mut mqblk = Command::new(env!("CARGO_BIN_EXE_mqblk"))
        .args(args.split_whitespace())
        .current_dir(dir.path("."))
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let id = mqblk.id().to_string();
    let signal = |name: &str| {
        let done = Command::new("kill").args([name, &id]).status().unwrap();
        assert!(done.success());
    };
    let mut errors = BufReader::new(mqblk.stderr.take().unwrap()).lines();
    assert!(errors.any(|line| line.unwrap().starts_with("Jobs: 1")), "it runs");
    let printed = || fs::read_to_string(dir.path("out.json")).unwrap().matches("\"fio version\"").count();
    for n in 1..=2 {
        signal("-USR1");
        until("the results so far are printed", || printed() == n);
    }
    signal("-INT");
    assert!(errors.any(|line| line.unwrap().contains("interrupted; results cover the time until then")));
    assert_eq!(mqblk.wait().unwrap().code(), Some(130));
    assert_eq!(series(&fs::read_to_string(dir.path("out.json")).unwrap()).len(), 3);
}

#[test]
fn times_are_fio_s_and_a_simulated_run_has_no_status() {
    let dir = Dir::new("run-status");
    let machine = concat!("--target=sim:", env!("CARGO_MANIFEST_DIR"), "/../../scenarios/azure-p80.toml");
    for (flags, want) in [
        (["--status-interval=0", "--ioengine=null"], "must be at least 1ms"),
        (["--status-interval=1x", "--ioengine=null"], "has no time unit 'x'"),
        (["--eta-interval=100ms", "--ioengine=null"], "must be at least 250ms"),
        (["--idle-prof=system", machine], "--idle-prof: this host's CPUs do not run the jobs"),
        (["--status-interval=1", machine], "--status-interval: a simulated run has no results before its end"),
    ] {
        let done = dir.mqblk(&["fio", "--name=a", "--size=64k", "--rw=read", flags[0], flags[1]]).exits(2);
        assert!(done.err.contains(want), "{flags:?}: {}", done.err);
    }
    let line =
        "fio --name=a --ioengine=null --size=64k --status-interval=1h --eta-newline=1 --eta-interval=1 --eta=never";
    dir.mqblk(&line.split_whitespace().collect::<Vec<_>>()).exits(0);
}

#[test]
fn idleness_of_cpus_has_fio_s_form() {
    let dir = Dir::new("run-status");
    let line = "--name=a --ioengine=null --size=1g --rate_iops=1000 --time_based --runtime=1 --idle-prof=percpu --output-format=normal,json";
    let words: Vec<&str> = line.split_whitespace().collect();
    let fio = Command::new("fio").args(&words).output().unwrap();
    let fio = String::from_utf8(fio.stdout).unwrap();
    let ours = dir.mqblk(&[&["fio"], &words[..]].concat()).exits(0).out;
    let object = |out: &str| -> Vec<(String, f64)> {
        // fio prints the text after the object, mqblk before it.
        let start = out.find("\n{\n").unwrap();
        let v: Value = Deserializer::from_str(&out[start..]).into_iter().next().unwrap().unwrap();
        let all = v["cpu_idleness"].as_object().unwrap_or_else(|| panic!("{out}"));
        all.iter().filter(|(key, _)| !key.starts_with("unit_")).map(|(k, v)| (k.clone(), v.as_f64().unwrap())).collect()
    };
    let (fios, idle) = (object(&fio), object(&ours));
    let keys = |all: &[(String, f64)]| all.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>();
    assert_eq!(keys(&idle), keys(&fios));
    assert!(idle.iter().all(|(_, percent)| (0.0..=100.0).contains(percent)), "{idle:?}");
    let of_cpus = idle.iter().filter(|(key, _)| key.starts_with("cpu-")).map(|(_, percent)| percent);
    let mean = of_cpus.clone().sum::<f64>() / of_cpus.count() as f64;
    assert!(idle.iter().any(|(key, percent)| key == "system" && (percent - mean).abs() < 1e-4), "{idle:?}");
    // Two lines, in which any number is 9.
    let form = |out: &str| {
        let start = out.find("\nCPU idleness:\n").unwrap_or_else(|| panic!("{out}"));
        let lines: Vec<&str> = out[start + 1..].lines().take(3).collect();
        let mut chars: Vec<char> = lines.join("\n").chars().map(|c| if c.is_ascii_digit() { '9' } else { c }).collect();
        chars.dedup();
        chars.into_iter().collect::<String>()
    };
    assert_eq!(form(&ours), form(&fio));
}

#[test]
fn jobs_that_never_started_have_results_of_zero() {
    let dir = Dir::new("run-status");
    let line =
        "fio --ioengine=null --size=64k --output-format=json --name=a --exitall --exit_what=all --name=b --stonewall";
    let out = dir.mqblk(&line.split_whitespace().collect::<Vec<_>>()).exits(0).out;
    let v: Value = serde_json::from_str(&out).unwrap();
    let of = |i: usize, key: &str| number(&v, &format!("/jobs/{i}/{key}"));
    assert_eq!((of(0, "read/total_ios"), of(1, "read/total_ios"), of(1, "job_runtime")), (16.0, 0.0, 0.0));
    assert_eq!(v["jobs"][1]["jobname"], "b");
    let grouped = line.replace("json", "terse").replace("--name=a", "--group_reporting --name=a");
    let out = dir.mqblk(&grouped.split_whitespace().collect::<Vec<_>>()).exits(0).out;
    let field = |line: &str, n: usize| line.split(';').nth(n).unwrap().to_owned();
    let kib: Vec<String> = out.lines().map(|line| field(line, 5)).collect();
    assert_eq!(kib, ["64", "0"], "{out}");
}
