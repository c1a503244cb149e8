// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares our layouts with those of the installed fio, from the same figures. fio's json+ of a run is read into our
//! model. Text and JSON made from the model must equal fio's own output for that run.
//!
//! Needs fio 3.33 (Debian 12: apt-get install fio). Without it the tests print a message and pass.

use std::collections::BTreeSet;
use std::process::Command;

use lab::report::fio_model::{DirReport, FioReport, JobReport, LatReport, PrioReport, RateReport};
use lab::report::{fio_json, fio_terse, fio_text};
use serde_json::Value;
use workload::job::{LatencyGoal, Steady, SteadyMetric};
use workload::steady::{Sample, SteadyReport};

/// The json+ and the text of one run of fio.
struct FioRun {
    json_text: String,
    json: Value,
    text: String,
    /// The lines of terse version 5.
    terse: String,
}

/// Runs a job file with the installed fio. Without a suitable fio it prints the reason and returns `None`.
fn run_fio(test: &str, job: &str) -> Option<FioRun> {
    let version = Command::new("fio")
        .arg("--version")
        .output()
        .ok()
        .map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned());
    if version.as_deref() != Some("fio-3.33") {
        // CI counts a test that returns as passed, so in CI it must fail instead.
        assert!(std::env::var("CI").as_deref() != Ok("true"), "needs fio-3.33, found {version:?}");
        println!("skipped: needs fio-3.33, found {version:?}");
        return None;
    }
    let dir = std::env::temp_dir().join(format!("mqblk-parity-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("job.fio");
    std::fs::write(&path, job).unwrap();
    let formats = ["--output-format=normal,json+,terse", "--terse-version=5"];
    let out = Command::new("fio").args(formats).arg(&path).current_dir(&dir).output().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let all = String::from_utf8(out.stdout).unwrap();
    let (terse, all): (Vec<&str>, Vec<&str>) = all.split_inclusive('\n').partition(|l| l.starts_with("5;fio"));
    let (terse, all) = (terse.concat(), all.concat());
    let start = all.find("\n{\n").map_or(0, |i| i + 1);
    let end = start + all[start..].find("\n}\n").unwrap() + 3;
    let json_text = all[start..end].to_owned();
    let json = serde_json::from_str(&json_text).unwrap();
    // Besides the JSON, fio prints a list of jobs before it and the report after it. The report starts at the first groupid.
    let rest = if all[end..].contains(": (groupid=") { &all[end..] } else { &all[..start] };
    let report = rest.lines().skip_while(|l| !l.contains(": (groupid=")).collect::<Vec<_>>().join("\n") + "\n";
    Some(FioRun { json_text, json, text: report, terse })
}

fn uint(v: &Value, key: &str) -> u64 {
    v[key].as_u64().unwrap_or_else(|| panic!("{key} in {v}"))
}

fn float(v: &Value, key: &str) -> f64 {
    v[key].as_f64().unwrap_or_else(|| panic!("{key} in {v}"))
}

fn floats<const N: usize>(v: &Value) -> [f64; N] {
    let by_bound = |k: &String| k.trim_start_matches(">=").parse::<u64>().unwrap() + u64::from(k.starts_with('>'));
    let mut entries: Vec<(u64, f64)> =
        v.as_object().unwrap().iter().map(|(k, v)| (by_bound(k), v.as_f64().unwrap())).collect();
    entries.sort_by_key(|e| e.0);
    entries.iter().map(|e| e.1).collect::<Vec<_>>().try_into().unwrap()
}

fn strings(v: &Value) -> Vec<(String, String)> {
    let Some(map) = v.as_object() else { return Vec::new() };
    map.iter().map(|(k, v)| (k.clone(), v.as_str().unwrap_or_default().to_owned())).collect()
}

fn lat(v: &Value) -> LatReport {
    let list = |key: &str| -> Vec<(f64, u64)> {
        let Some(map) = v[key].as_object() else { return Vec::new() };
        let mut list: Vec<(f64, u64)> = map.iter().map(|(k, v)| (k.parse().unwrap(), v.as_u64().unwrap())).collect();
        list.sort_by(|a, b| a.0.total_cmp(&b.0));
        list
    };
    LatReport {
        min: uint(v, "min"),
        max: uint(v, "max"),
        mean: float(v, "mean"),
        stddev: float(v, "stddev"),
        n: uint(v, "N"),
        percentiles: list("percentile"),
        bins: list("bins").into_iter().map(|(ns, n)| (ns as u64, n)).collect(),
    }
}

fn rate(v: &Value, name: &str, dev: &str) -> RateReport {
    RateReport {
        min: uint(v, &format!("{name}_min")),
        max: uint(v, &format!("{name}_max")),
        mean: float(v, &format!("{name}_mean")),
        stddev: float(v, &format!("{name}_{dev}")),
        samples: uint(v, &format!("{name}_samples")),
    }
}

fn dir(v: &Value) -> DirReport {
    DirReport {
        io_bytes: uint(v, "io_bytes"),
        runtime_ms: uint(v, "runtime"),
        total_ios: uint(v, "total_ios"),
        short_ios: uint(v, "short_ios"),
        drop_ios: uint(v, "drop_ios"),
        slat: lat(&v["slat_ns"]),
        clat: lat(&v["clat_ns"]),
        lat: lat(&v["lat_ns"]),
        bw: rate(v, "bw", "dev"),
        bw_agg: float(v, "bw_agg"),
        iops: rate(v, "iops", "stddev"),
        prios: v["prios"].as_array().into_iter().flatten().map(prio).collect(),
    }
}

fn prio(v: &Value) -> PrioReport {
    let kind = if v["lat_ns"].is_null() { "clat_ns" } else { "lat_ns" };
    PrioReport { class: uint(v, "prioclass") as u8, level: uint(v, "prio") as u8, lat: lat(&v[kind]) }
}

/// `latency_target`; 0 stands for none.
fn latency_goal(v: &Value) -> Option<LatencyGoal> {
    let goal = LatencyGoal {
        target_ns: uint(v, "latency_target"),
        window_ns: 1000 * uint(v, "latency_window"),
        percentile: float(v, "latency_percentile"),
        runs_on: false,
    };
    (goal.target_ns > 0).then_some(goal)
}

fn steady(v: &Value) -> Option<SteadyReport> {
    let (criterion, limit) = v["ss"].as_str()?.split_once(':')?;
    let number = |text: &str| text.trim_end_matches('%').parse().unwrap();
    let metric = if criterion.starts_with("iops") { SteadyMetric::Iops } else { SteadyMetric::Bandwidth };
    let column = |name: &str| v["data"][name].as_array().unwrap().iter().map(|n| n.as_u64().unwrap());
    Some(SteadyReport {
        steady: Steady {
            metric,
            is_slope: criterion.ends_with("_slope"),
            limit: number(limit),
            is_percent: limit.ends_with('%'),
            duration_s: uint(v, "duration"),
            ramp_ns: 0,
            interval_s: 1,
        },
        attained: uint(v, "attained") == 1,
        criterion: number(v["criterion"].as_str()?),
        deviation: float(v, "max_deviation"),
        slope: float(v, "slope"),
        samples: column("iops").zip(column("bw")).map(|(iops, bw)| Sample { iops, bw, lat_ns: 0 }).collect(),
    })
}

/// Converts fio's JSON into our model. `pid` and the number of members are only in its text.
fn model(run: &FioRun) -> FioReport {
    let heads: Vec<&str> = run.text.lines().filter(|l| l.contains(": (groupid=")).collect();
    let number_after = |line: &str, key: &str| -> u32 {
        let tail = &line[line.find(key).unwrap() + key.len()..];
        tail[..tail.find(|c: char| !c.is_ascii_digit()).unwrap()].parse().unwrap()
    };
    let job = |(v, head): (&Value, &&str)| JobReport {
        name: v["jobname"].as_str().unwrap().to_owned(),
        description: v["desc"].as_str().unwrap_or_default().to_owned(),
        group_id: uint(v, "groupid") as u32,
        members: number_after(head, "jobs="),
        error: v["error"].as_i64().unwrap() as i32,
        error_text: String::new(),
        pid: number_after(head, "pid="),
        options: strings(&v["job options"]),
        dirs: ["read", "write", "trim"].map(|d| dir(&v[d])),
        sync_ios: uint(&v["sync"], "total_ios"),
        sync_lat: lat(&v["sync"]["lat_ns"]),
        job_runtime_ms: uint(v, "job_runtime"),
        elapsed_s: uint(v, "elapsed"),
        usr_cpu: float(v, "usr_cpu"),
        sys_cpu: float(v, "sys_cpu"),
        ctx: uint(v, "ctx"),
        majf: uint(v, "majf"),
        minf: uint(v, "minf"),
        iodepth_level: floats(&v["iodepth_level"]),
        iodepth_submit: floats(&v["iodepth_submit"]),
        iodepth_complete: floats(&v["iodepth_complete"]),
        latency_ns: floats(&v["latency_ns"]),
        latency_us: floats(&v["latency_us"]),
        latency_ms: floats(&v["latency_ms"]),
        latency_depth: uint(v, "latency_depth") as u32,
        latency_goal: latency_goal(v),
        steady: steady(&v["steadystate"]),
        prios_are_total: v["job options"]["lat_percentiles"] == "1",
        errors: v.get("total_err").map(|e| (e.as_u64().unwrap(), 0, "Success".to_owned())),
    };
    FioReport {
        version: run.json["fio version"].as_str().unwrap().to_owned(),
        unix_ms: uint(&run.json, "timestamp_ms"),
        global_options: strings(&run.json["global options"]),
        jobs: run.json["jobs"].as_array().unwrap().iter().zip(&heads).map(job).collect(),
        disk_util: Vec::new(),
        cpu_idleness: None,
    }
}

/// Splits a line into numbers and the text between them.
fn tokens(line: &str) -> Vec<&str> {
    let mut cuts = vec![0];
    let numeric = |c: u8| c.is_ascii_digit() || c == b'.';
    cuts.extend((1..line.len()).filter(|&i| numeric(line.as_bytes()[i - 1]) != numeric(line.as_bytes()[i])));
    cuts.push(line.len());
    cuts.windows(2).map(|w| &line[w[0]..w[1]]).collect()
}

/// Whether the lines are equal, except for one unit in the last place of averages and percentages. These come from fio's
/// JSON with six decimals, so a figure may be rounded twice.
fn same(ours: &str, fios: &str) -> bool {
    let (a, b) = (tokens(ours), tokens(fios));
    a.len() == b.len()
        && a.iter().zip(&b).enumerate().all(|(i, (x, y))| {
            let has_unit = a.get(i + 1).is_some_and(|next| next.starts_with(|c: char| c.is_alphabetic()));
            match (x.parse::<f64>(), y.parse::<f64>()) {
                (Ok(p), Ok(q)) if x.contains('.') && !has_unit => {
                    let place = 10f64.powi(-((x.len() - 1 - x.find('.').unwrap_or(0)) as i32));
                    (p - q).abs() < 1.01 * place
                }
                _ => x == y,
            }
        })
}

/// The report without the date, which text and JSON may take in different seconds, and without disk statistics.
fn without_date(text: &str) -> Vec<String> {
    let text = text.split("\nDisk stats").next().unwrap_or_default();
    let cut = |l: &str| match (l.contains(": (groupid="), l.find("pid=")) {
        (true, Some(i)) => l[..i + l[i..].find(':').unwrap_or(0)].to_owned(),
        _ => l.to_owned(),
    };
    text.trim_end().lines().map(cut).collect()
}

fn assert_parity(run: &FioRun) {
    let report = model(run);
    let (ours, fios) = (without_date(&fio_text::report(&report)), without_date(&run.text));
    for (i, (a, b)) in ours.iter().zip(&fios).enumerate() {
        assert!(same(a, b), "line {i} of the text differs\nours: {a:?}\n fio: {b:?}\n{}", run.text);
    }
    assert_eq!(ours.len(), fios.len(), "ours:\n{}\nfio:\n{}", ours.join("\n"), fios.join("\n"));
    let mut expected = run.json.clone();
    expected.as_object_mut().unwrap().remove("disk_util");
    let json_text = fio_json::render(&report, true, None);
    let json: Value = serde_json::from_str(&json_text).unwrap();
    assert_same_json("", &json, &expected);
    assert_same_shape(&json_text, &run.json_text);
    assert_same_terse(&fio_terse::render(&report, 5), &run.terse);
}

/// The same fields. fio has them from unrounded figures, ours come from those of its JSON.
fn assert_same_terse(ours: &str, fios: &str) {
    assert_eq!(ours.lines().count(), fios.lines().count(), "ours:\n{ours}\nfio:\n{fios}");
    for (ours, fios) in ours.lines().zip(fios.lines()) {
        let (a, b): (Vec<&str>, Vec<&str>) = (ours.split(';').collect(), fios.split(';').collect());
        for (i, (x, y)) in a.iter().zip(&b).enumerate() {
            let number = |s: &str| s.trim_end_matches('%').parse::<f64>().ok();
            let near = number(x).zip(number(y)).is_some_and(|(x, y)| (x - y).abs() <= 0.1 + 1e-6 * y.abs());
            assert!(x == y || near, "field {i}: ours {x}, fio {y}\n{ours}\n{fios}");
            assert_eq!(x.contains('.'), y.contains('.'), "field {i}: ours {x}, fio {y}");
        }
        // The model has no disks, which have nine fields each.
        assert!(a.len() <= b.len() && (b.len() - a.len()).is_multiple_of(9), "{ours}\n{fios}");
    }
}

/// Same keys, same values (fio's own bandwidths and rates included), at every depth.
fn assert_same_json(path: &str, ours: &Value, fios: &Value) {
    match (ours, fios) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = |m: &serde_json::Map<String, Value>| m.keys().cloned().collect::<BTreeSet<_>>();
            assert_eq!(keys(a), keys(b), "keys at {path}");
            // fio's estimate of the time left is 0 or "unknown" for a job that is done.
            let compared = a.iter().filter(|(k, _)| *k != "eta");
            compared.for_each(|(k, v)| assert_same_json(&format!("{path}/{k}"), v, &b[k]));
        }
        (Value::Array(a), Value::Array(b)) => {
            assert_eq!(a.len(), b.len(), "length at {path}");
            a.iter().zip(b).enumerate().for_each(|(i, (a, b))| assert_same_json(&format!("{path}/{i}"), a, b));
        }
        (Value::Number(a), Value::Number(b)) => {
            let (x, y) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            assert!((x - y).abs() <= 2e-6 + 1e-12 * y.abs(), "{path}: ours {a}, fio {b}");
            assert_eq!(a.is_f64(), b.is_f64(), "{path}: ours {a}, fio {b}");
        }
        _ => assert_eq!(ours, fios, "{path}"),
    }
}

/// The same lines in the same order with the same white space, except for digits. Option lists are ignored, because a
/// parsed object has lost their order.
fn assert_same_shape(ours: &str, fios: &str) {
    let mask = |text: &str| -> Vec<String> {
        let body = text.split("\"disk_util\"").next().unwrap_or_default().trim_end_matches([' ', ',', '\n', '}']);
        let line = |l: &str| l.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect::<String>();
        let number = |l: String| if l.contains(" : 0") { l.trim_end_matches(['0', '.', ',']).to_owned() } else { l };
        body.lines()
            .filter(|l| !l.contains("\" : \"") && !l.contains("\"eta\""))
            .map(line)
            .map(number)
            .filter(|l| !l.trim_start().starts_with("\"0"))
            .collect()
    };
    let (a, b) = (mask(ours), mask(fios));
    for (x, y) in a.iter().zip(&b) {
        assert_eq!(x, y);
    }
    assert_eq!(a.len(), b.len());
}

#[test]
fn one_job_of_each_direction() {
    let job = "[global]\nioengine=null\nsize=1g\nruntime=100ms\ntime_based\n\
        [mixed]\nrw=randrw\nbs=4k\niodepth=32\n\
        [trim]\nstonewall\nrw=randtrim\nbs=64k\niodepth=4\ndescription=with a description\n\
        [batched]\nstonewall\nrw=write\niodepth=128\niodepth_batch_submit=17\niodepth_batch_complete_min=3\n";
    if let Some(run) = run_fio("directions", job) {
        assert_parity(&run);
    }
}

#[test]
fn priorities_steady_states_and_latency_goals() {
    let job = "[global]\nfilename=data\nsize=1m\n\
        [prios]\nioengine=libaio\nrw=randrw\niodepth=4\ncmdprio_percentage=30,60\ncmdprio_class=2\ncmdprio=5\n\
        [total]\nstonewall\nioengine=libaio\nrw=randread\nlat_percentiles=1\nclat_percentiles=0\n\
        cmdprio_bssplit=4k/20/1/3:4k/30/3/0\n\
        [steady]\nstonewall\nioengine=null\nrw=read\nrate_iops=500\ntime_based\nruntime=20\nss=iops:90%\nss_dur=2\n\
        [unsteady]\nstonewall\nioengine=null\nrw=read\nrate_iops=500\ntime_based\nruntime=1500ms\nss=bw_slope:1k\nss_dur=3\n\
        [goal]\nstonewall\nioengine=libaio\nrw=randread\niodepth=4\nlatency_target=5s\nlatency_window=20ms\n\
        latency_percentile=99.5\ntime_based\nruntime=20\n";
    if let Some(run) = run_fio("policies", job) {
        let jobs = &run.json["jobs"];
        assert!(jobs[0]["read"]["prios"].is_array() && jobs[1]["read"]["prios"].is_array());
        assert_eq!((uint(&jobs[2]["steadystate"], "attained"), uint(&jobs[4], "latency_depth")), (1, 4));
        assert_parity(&run);
    }
}

#[test]
fn group_reporting_and_percentile_options() {
    let job = "[global]\nioengine=null\nsize=1g\nruntime=600ms\ntime_based\n\
        [group]\nrw=randread\nnumjobs=2\ngroup_reporting\nslat_percentiles=1\nlat_percentiles=1\niodepth=8\n\
        [next]\nnew_group\nrw=randwrite\nclat_percentiles=0\niodepth=2\n\
        [list]\nrw=randwrite\npercentile_list=50:90:99.999\ncontinue_on_error=all\n\
        [whole]\nrw=randwrite\npercentile_list=10:50:90\n";
    if let Some(run) = run_fio("groups", job) {
        assert_parity(&run);
    }
}

#[test]
fn slow_ios_on_a_file_with_fsync() {
    // Sleeps produce latencies and bandwidths in all units, with rates from KiB/s up.
    let job = "[global]\nioengine=psync\nsize=1m\nfilename=parity.dat\n\
        [sync]\nrw=write\nbs=4k\nfsync=16\n\
        [slow]\nstonewall\nrw=randread\nbs=512\nsize=8k\nthinktime=5ms\n";
    if let Some(run) = run_fio("file", job) {
        assert_parity(&run);
    }
}

/// Sizes on both sides of every rounding step of the short number form.
#[test]
fn short_numbers_of_many_sizes() {
    let mut job = "[global]\nioengine=null\nthread\nnew_group\nrw=read\n".to_owned();
    for (i, size) in SIZES.iter().enumerate() {
        job += &format!("[s{i}]\nsize={size}\nbs={}\n", size / 2);
    }
    if let Some(run) = run_fio("sizes", &job) {
        assert_parity(&run);
    }
}

const SIZES: [u64; 28] = [
    1_024,
    9_998,
    10_000,
    10_188,
    10_190,
    10_238,
    10_240,
    10_242,
    15_308,
    15_310,
    101_990,
    102_348,
    102_400,
    999_500,
    1_023_488,
    1_048_064,
    1_048_576,
    9_999_998,
    10_485_758,
    10_485_760,
    10_690_000,
    15_676_210,
    104_857_598,
    105_381_888,
    1_073_741_822,
    1_073_741_824,
    10_737_418_238,
    10_790_000_000,
];
