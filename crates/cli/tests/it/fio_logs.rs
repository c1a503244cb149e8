// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Per-interval logs of `mqblk fio`, compared with those of fio 3.33 for the same job.

use crate::common;

use common::{Dir, number};
use std::collections::BTreeMap;
use std::fs;

/// Lines of each log in a directory, by file name, as fields.
fn logs(dir: &Dir) -> BTreeMap<String, Vec<Vec<String>>> {
    let fields = |line: &str| line.split(", ").map(str::to_owned).collect();
    let read = |name: &String| fs::read_to_string(dir.path(name)).unwrap().lines().map(fields).collect();
    dir.list().into_iter().filter(|n| n.ends_with(".log")).map(|n| (n.clone(), read(&n))).collect()
}

/// Runs a job file in directories of their own, with fio and with mqblk.
fn both(job: &str) -> [Dir; 2] {
    ["fio", "mqblk"].map(|program| {
        let dir = Dir::new("fio-logs");
        dir.file("j.fio", job);
        fs::write(dir.path("data"), vec![1; 1 << 20]).unwrap();
        match program {
            "fio" => dir.program("fio", &["j.fio"]).exits(0),
            _ => dir.mqblk(&["fio", "j.fio"]).exits(0),
        };
        dir
    })
}

/// Everything but times and values: direction, size, offset, priority.
fn rest(lines: &[Vec<String>]) -> Vec<&[String]> {
    lines.iter().map(|fields| &fields[2..]).collect()
}

const HEAD: &str =
    "[global]\nfilename=data\nsize=256k\nbs=4k\nioengine=libaio\nthread\nwrite_bw_log\nwrite_iops_log\nwrite_lat_log\n";

#[test]
fn each_io_has_the_line_that_fio_writes() {
    let jobs = [
        "log_offset=1\n[mixed]\nrw=randrw\nrwmixread=60\nfsync=3\nloops=2\nlog_prio=1\nprio=4\n",
        "[sizes]\nrw=randwrite\nbsrange=4k-64k\nnumjobs=2\nlog_offset=1\ngroup_reporting\n[second]\nrw=read\nwrite_bw_log=other\n",
        "[back]\nrw=write\nverify=crc32c\nlog_offset=1\nwrite_lat_log=sub\nper_job_logs=0\n",
        "[off]\nrw=read\ndisable_slat=1\ndisable_bw=1\n",
        "[reduced]\nrw=read\ngtod_reduce=1\n",
        "[max]\nrw=read\nlog_max_value=1\nbwavgtime=100\n",
    ];
    for job in jobs {
        let [fios, ours] = both(&format!("{HEAD}{job}")).map(|dir| logs(&dir));
        assert_eq!(ours.keys().collect::<Vec<_>>(), fios.keys().collect::<Vec<_>>(), "{job}");
        for (name, lines) in &fios {
            assert_eq!(rest(&ours[name]), rest(lines), "{job}{name}");
            let is_known = |line: &Vec<String>| !name.contains("iops") || line[1] == "1";
            assert!(ours[name].iter().all(is_known), "{name}");
        }
    }
}

/// A deep queue completes in any order, so the lines are compared as sets.
#[test]
fn a_deep_queue_has_the_same_lines() {
    let job = format!("{HEAD}log_offset=1\n[deep]\nrw=randread\niodepth=16\nnumjobs=2\n");
    let [fios, ours] = both(&job).map(|dir| logs(&dir));
    let sorted = |lines: &[Vec<String>]| {
        let mut lines: Vec<Vec<String>> = rest(lines).into_iter().map(<[String]>::to_vec).collect();
        lines.sort();
        lines
    };
    assert_eq!((ours.len(), ours.keys().collect::<Vec<_>>()), (10, fios.keys().collect()));
    for (name, lines) in &fios {
        assert_eq!(sorted(&ours[name]), sorted(lines), "{name}");
    }
}

/// In virtual time every window is there, and the values are those of the results.
#[test]
fn windows_agree_with_the_results() {
    let dir = Dir::new("fio-logs");
    let machine = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/azure-p80.toml");
    let line = format!(
        "fio --name=s --rw=randrw --iodepth=4 --ioengine=libaio --runtime=2 --time_based --target=sim:{machine} --write_lat_log \
         --write_bw_log --write_iops_log --log_avg_msec=250 --write_hist_log --log_hist_msec=500 --log_hist_coarseness=6 --json"
    );
    let v = dir.mqblk(&line.split_whitespace().collect::<Vec<_>>()).exits(0).json();
    let logs = logs(&dir);
    let of = |log: &str, d: usize, field: usize| -> Vec<f64> {
        let lines = logs[&format!("s_{log}.1.log")]
            .iter()
            .filter(|l| l[if log == "clat_hist" { 1 } else { 2 }] == d.to_string());
        lines.map(|l| l[field].parse().unwrap()).collect()
    };
    for (d, dir) in ["read", "write"].into_iter().enumerate() {
        let figure = |key: &str| number(&v, &format!("/jobs/0/{dir}/{key}"));
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        assert_eq!(of("bw", d, 0), [250.0, 500.0, 750.0, 1000.0, 1250.0, 1500.0, 1750.0, 2000.0]);
        let (bw, iops) = (of("bw", d, 1), of("iops", d, 1));
        assert_eq!((bw.len(), iops.len(), figure("bw_samples"), figure("iops_samples")), (8, 8, 8.0, 8.0));
        assert!((mean(&bw) - figure("bw_mean")).abs() < 0.01 && (mean(&iops) - figure("iops_mean")).abs() < 0.01);
        let largest = iops.iter().copied().fold(0.0, f64::max);
        assert_eq!(largest, figure("iops_max"));
        for (log, key) in [("lat", "lat_ns"), ("slat", "slat_ns"), ("clat", "clat_ns")] {
            let windows = of(log, d, 1);
            assert!((8..=9).contains(&windows.len()), "{log}: {windows:?}");
            assert!((mean(&windows) / figure(&format!("{key}/mean")) - 1.0).abs() < 0.05, "{log}: {windows:?}");
        }
        let counted: f64 = logs["s_clat_hist.1.log"]
            .iter()
            .filter(|l| l[1] == d.to_string())
            .flat_map(|l| &l[3..])
            .map(|n| n.parse::<f64>().unwrap())
            .sum();
        assert!((3..=4).contains(&of("clat_hist", d, 0).len()), "due at about 502, 1002, 1502 and 2002 ms");
        assert!(counted <= figure("total_ios") && counted > 0.6 * figure("total_ios"), "{counted}");
    }
}

/// fio writes a line per window and direction; how many is up to its helper thread, so only the form is compared.
#[test]
fn windows_have_the_form_of_fio_s() {
    let job = "[global]\nioengine=null\nsize=1g\nrw=randrw\nrate_iops=1000\ntime_based\nramp_time=100ms\nruntime=1\n\
               [w]\nwrite_bw_log\nwrite_iops_log\nwrite_lat_log\nwrite_hist_log\nlog_hist_msec=300\nlog_avg_msec=200\nlog_offset=1\n";
    let [fios, ours] = both(job).map(|dir| logs(&dir));
    assert_eq!(ours.keys().collect::<Vec<_>>(), fios.keys().collect::<Vec<_>>());
    for (name, lines) in &fios {
        let forms = |lines: &[Vec<String>]| {
            let mut forms: Vec<(usize, String)> = Vec::new();
            for l in lines {
                let form = if name.contains("hist") { l[2].clone() } else { l[3..].join(",") };
                forms.push((l.len(), form));
            }
            forms.sort();
            forms.dedup();
            forms
        };
        assert_eq!(forms(&ours[name]), forms(lines), "{name}");
    }
    // One line per window, in each direction.
    let lines = |name: &str| ours[name].len();
    assert_eq!((lines("w_bw.1.log"), lines("w_iops.1.log")), (10, 10));
    assert!((10..=12).contains(&lines("w_clat.1.log")) && lines("w_slat.1.log") == 0);
}

#[test]
fn a_missing_directory_is_reported_and_the_job_runs() {
    let dir = Dir::new("fio-logs");
    let done = dir
        .mqblk(&["fio", "--name=a", "--ioengine=null", "--size=64k", "--write_bw_log=no/a", "--write_iops_log=b"])
        .exits(0);
    assert!(done.err.contains("log 'no/a_bw.1.log' is not written: No such file or directory"), "{}", done.err);
    assert_eq!(logs(&dir)["b_iops.1.log"].len(), 16);
}

#[test]
fn a_comparison_says_that_it_writes_no_logs() {
    let dir = Dir::new("fio-logs");
    dir.file("j.fio", "[a]\nioengine=null\nsize=64k\nwrite_bw_log\n");
    let line = "compare j.fio --a mode=sq --b mode=mq --pairs 10 --warmup 0 --results r.jsonl";
    let done = dir.mqblk(&line.split_whitespace().collect::<Vec<_>>()).exits(0);
    assert!(done.err.contains("only mqblk run writes logs (job 'a', line 1)"), "{}", done.err);
    assert_eq!(logs(&dir).len(), 0);
}

/// Logs are replaced, or continued with per_job_logs=0; times may be those of the clock.
#[test]
fn files_are_replaced_or_continued() {
    let dir = Dir::new("fio-logs");
    for _ in 0..2 {
        let line = "fio --ioengine=null --size=16k --numjobs=2 --write_iops_log --name=own --name=one --per_job_logs=0 --log_unix_epoch=1";
        dir.mqblk(&line.split_whitespace().collect::<Vec<_>>()).exits(0);
    }
    let logs = logs(&dir);
    let names: Vec<(&str, usize)> = logs.iter().map(|(name, lines)| (name.as_str(), lines.len())).collect();
    assert_eq!(names, [("one_iops.log", 16), ("own_iops.1.log", 4), ("own_iops.2.log", 4)]);
    let (now, unix) =
        (std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap(), &logs["one_iops.log"]);
    let times: Vec<u128> = unix.iter().map(|l| l[0].parse().unwrap()).collect();
    assert!(times.iter().all(|t| (now.as_millis() - 600_000..=now.as_millis()).contains(t)), "{times:?}");
}
