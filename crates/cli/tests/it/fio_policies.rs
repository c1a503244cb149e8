// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options around the I/O of a job, in fio 3.33 and in mqblk: what ends jobs, commands, hidden latencies, priorities.

use crate::common;

use common::{Dir, number};
use serde_json::Value;
use std::fs;

/// Runs a job file with both programs, each in a directory of its own. Returns their reports, and whether they failed.
fn both(test: &str, job: &str) -> [(Dir, Value, bool); 2] {
    let [fio, ours] = [Dir::new(test), Dir::new(test)];
    for dir in [&fio, &ours] {
        dir.file("job.fio", job);
        fs::write(dir.path("data"), vec![1; 4 << 20]).unwrap();
    }
    let theirs = fio.program("timeout", &["60", "fio", "--output-format=json", "--output=out", "job.fio"]);
    let text = fs::read_to_string(fio.path("out")).unwrap();
    // fio may print a message before its JSON.
    let json = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap_or_else(|e| panic!("{e}: {text}"));
    let done = ours.mqblk(&["run", "job.fio", "--json"]);
    let failed = done.status != 0;
    [(fio, json, theirs.status != 0), (ours, done.json(), failed)]
}

fn jobs(v: &Value) -> impl Iterator<Item = &Value> {
    v["jobs"].as_array().unwrap().iter()
}

/// Names of the jobs that did I/O.
fn ran(v: &Value) -> Vec<&str> {
    jobs(v).filter(|j| number(j, "/read/total_ios") > 0.0).map(|j| j["jobname"].as_str().unwrap()).collect()
}

#[test]
fn the_end_of_a_job_ends_others() {
    let file = |what: &str| {
        format!(
            "[global]\nthread\nioengine=null\nsize=1m\nrate_iops=500\nexit_what={what}\n\
             [a]\nnumber_ios=20\n[b]\nexitall\nruntime=20\ntime_based\n[c]\nstonewall\nnumber_ios=20\n"
        )
    };
    for (what, expected) in [("group", &["a", "b", "c"][..]), ("stonewall", &["a", "b", "c"]), ("all", &["a", "b"])] {
        let [(_, fio, fio_failed), (_, ours, failed)] = both("exitall", &file(what));
        assert_eq!((ran(&fio), fio_failed), (expected.to_vec(), false), "{what}: fio");
        assert_eq!((ran(&ours), failed), (expected.to_vec(), false), "{what}");
        assert!(jobs(&ours).all(|job| number(job, "/elapsed") < 20.0), "{what}");
    }
}

#[test]
fn an_io_that_takes_too_long_ends_its_job_and_others() {
    let job = "[global]\nfilename=data\nsize=4m\nrw=randread\n\
               [slow]\nioengine=psync\ndirect=1\nmax_latency=1us,1s\nexitall_on_error\n[other]\nrate_iops=100\nruntime=20\ntime_based\n";
    for (_, report, failed) in both("latency", job) {
        let slow = jobs(&report).next().unwrap();
        assert_eq!((number(slow, "/error"), number(slow, "/read/total_ios"), failed), (110.0, 1.0, true));
        assert_eq!(jobs(&report).nth(1).map(|other| number(other, "/error")), Some(0.0));
    }
}

#[test]
fn commands_leave_their_output() {
    let job = "[global]\nioengine=null\nsize=64k\n[one]\nexec_prerun=echo before\nexec_postrun=ls no-such-file\n\
               [two]\nexec_prerun=false\nexec_postrun=echo never\n";
    let outputs = |dir: &Dir| -> Vec<(String, String)> {
        let names = dir.list().into_iter().filter(|n| n.ends_with(".txt"));
        names.map(|n| (n.clone(), fs::read_to_string(dir.path(&n)).unwrap())).collect()
    };
    let [(theirs, fio, _), (dir, ours, failed)] = both("commands", job);
    assert_eq!(outputs(&dir), outputs(&theirs));
    assert_eq!(outputs(&dir).len(), 3, "two.postrun.txt is not there");
    assert_eq!((ran(&ours), ran(&fio)), (vec!["one"], vec!["one"]));
    assert!(failed, "fio succeeds although a job did not run");
    let text = dir.mqblk(&["run", "job.fio"]);
    assert!(text.out.contains("one : Saving output of prerun in one.prerun.txt\n"), "{}", text.out);
    assert!(text.err.contains("job 'two': exec_prerun=false: ended with exit status: 1"), "{}", text.err);
    dir.file(
        "m.toml",
        "[machine]\nsockets = 1\ncores = 1\nthreads = 1\n[disk]\nsize_gib = 1\nread_us = 100\nwrite_us = 200\n",
    );
    let simulated = dir.mqblk(&["run", "job.fio", "--target", "sim:m.toml"]).exits(2);
    assert!(simulated.err.contains("a simulated run starts no commands"), "{}", simulated.err);
}

#[test]
fn hidden_latencies_are_not_in_the_report() {
    for hide in ["disable_lat=1", "disable_clat=1", "disable_slat=1", "gtod_reduce=1"] {
        let job = format!("[a]\nioengine=libaio\nfilename=data\nsize=1m\nrw=read\n{hide}\n");
        let samples = both("hidden", &job).map(|(_, report, _)| {
            let job = jobs(&report).next().unwrap();
            let table: f64 = ["latency_ns", "latency_us", "latency_ms"]
                .iter()
                .flat_map(|t| job[t].as_object().unwrap().values().filter_map(Value::as_f64))
                .sum();
            let counts = ["slat_ns", "clat_ns", "lat_ns"].map(|kind| number(job, &format!("/read/{kind}/N")));
            (counts, table > 0.0)
        });
        assert_eq!(samples[1], samples[0], "{hide}");
    }
}

/// The statistics of each priority: class, level and number of I/Os.
fn prios(report: &Value) -> Vec<Vec<(f64, f64, f64)>> {
    let of = |job: &Value, dir: &str, kind: &str| {
        let list = job[dir]["prios"].as_array().cloned().unwrap_or_default();
        let fact = |p: &Value| (number(p, "/prioclass"), number(p, "/prio"), number(p, &format!("/{kind}/N")));
        list.iter().map(fact).collect()
    };
    jobs(report)
        .flat_map(|job| {
            let kind = if job["job options"]["lat_percentiles"] == "1" { "lat_ns" } else { "clat_ns" };
            ["read", "write"].map(|dir| of(job, dir, kind))
        })
        .collect()
}

#[test]
fn statistics_per_priority_are_fio_s() {
    let jobs = [
        "[a]\nrw=randrw\ncmdprio_percentage=20,40\ncmdprio_class=2,3\ncmdprio=3\n",
        "[a]\nrw=randread\ncmdprio_percentage=30\nprio=4\nlat_percentiles=1\n[b]\nrw=read\ncmdprio_percentage=0\n",
        "[a]\nrw=randrw\nbssplit=4k/50:8k/30:16k/20\ncmdprio_bssplit=4k/10/1/0:4k/60:16k/5/3/7,8k/100/2/1\ncmdprio=5\n",
        "[global]\ngroup_reporting\nrw=randread\n[a]\ncmdprio_percentage=50\ncmdprio_class=2\n[b]\nprioclass=2\nprio=6\n",
    ];
    for job in jobs {
        let file = format!("[global]\nioengine=libaio\nfilename=data\nsize=1m\niodepth=4\n{job}");
        let [(_, fio, _), (dir, ours, _)] = both("prios", &file);
        assert!(prios(&fio).iter().any(|list| list.len() > 1), "fio has statistics per priority: {job}");
        assert_eq!(prios(&ours), prios(&fio), "{job}");
        let text = dir.mqblk(&["run", "job.fio"]).exits(0).out;
        let shares = prios(&ours).iter().map(Vec::len).sum::<usize>();
        assert_eq!(text.matches("% of IOs) percentiles").count(), shares, "{text}");
    }
}

/// The names of an object's entries, in their order.
fn keys(v: &Value) -> Vec<&str> {
    v.as_object().map(|o| o.keys().map(String::as_str).collect()).unwrap_or_default()
}

#[test]
fn a_steady_group_ends_as_a_whole() {
    let job = "[global]\nioengine=null\nsize=1g\nrate_iops=400\nruntime=40\ntime_based\ngroup_reporting\n\
               ss=iops:60%\nss_dur=2\n[a]\nrw=read\n[b]\nrw=randread\n[c]\nstonewall\nss_dur=0\nnumber_ios=2\ntime_based=0\n";
    let found = both("steady", job).map(|(_, report, failed)| {
        let [group, last] = [0, 1].map(|n| report["jobs"][n].clone());
        let steady = &group["steadystate"];
        let facts = (steady["ss"].clone(), steady["duration"].clone(), steady["attained"].clone(), failed);
        assert!(number(&group, "/elapsed") < 40.0 && last["steadystate"].is_null());
        let mean = number(&group, "/steadystate/data/iops_mean");
        assert!((200.0..1200.0).contains(&mean), "the samples are sums over the group: {mean}");
        let shape: Vec<String> =
            [keys(steady), keys(&steady["data"])].concat().into_iter().map(str::to_owned).collect();
        (facts, shape, steady["data"]["bw"].as_array().unwrap().len(), number(&last, "/read/total_ios"))
    });
    assert_eq!(found[1], found[0]);
}

const MACHINE: &str = "[machine]\nsockets = 1\ncores = 2\nthreads = 1\n[disk]\nsize_gib = 1\nread_us = 100\nwrite_us = 100\n\
                       parallel = 4\nqueue_depth = 64\n";

/// Runs a job file on a simulated machine.
fn simulated(job: &str) -> Value {
    let dir = Dir::new("policies-sim");
    dir.file("m.toml", MACHINE).file("j.fio", job);
    dir.mqblk(&["run", "j.fio", "--json", "--target", "sim:m.toml"]).exits(0).json()
}

#[test]
fn policies_hold_in_virtual_time() {
    let global = "[global]\nioengine=libaio\ndirect=1\nrw=randread\nbs=4k\ntime_based\nruntime=1m\n";
    for files in ["", "size=3m\nnrfiles=3\n"] {
        let report = simulated(&format!("{global}runtime=200ms\n{files}[a]\nflow=1\n[b]\nflow=3\n"));
        let ios: Vec<f64> = jobs(&report).map(|j| number(j, "/read/total_ios")).collect();
        assert!(ios[0] > 300.0 && (ios[1] / ios[0] - 3.0).abs() < 0.02, "{files} {ios:?}");
    }

    let report = simulated(&format!("{global}[a]\nss=bw_slope:1%\nss_dur=3\n[b]\nexitall\n"));
    assert_eq!(report["jobs"][0]["steadystate"]["attained"], 1);
    let ran = |report: &Value| jobs(report).map(|j| number(j, "/read/runtime")).collect::<Vec<_>>();
    assert!(ran(&report).iter().all(|&ms| (2990.0..3010.0).contains(&ms)), "{:?}", ran(&report));

    // Four I/Os are served at once, each for 100 us: eight take 200 us.
    let goal = "iodepth=32\nlatency_target=215us\nlatency_window=50ms\nlatency_percentile=90\n";
    let report = simulated(&format!("{global}[a]\n{goal}"));
    let job = &report["jobs"][0];
    assert!((6.0..=8.0).contains(&number(job, "/latency_depth")), "{}", job["latency_depth"]);
    assert_eq!((job["latency_target"].as_u64(), job["latency_window"].as_u64()), (Some(215_000), Some(50_000)));
    assert!(number(job, "/read/runtime") < 60.0, "the last window alone is measured: {}", job["read"]["runtime"]);
}

#[test]
fn the_depth_for_a_latency_is_reported_as_fio_does() {
    let job = "[a]\nioengine=libaio\nfilename=data\nsize=4m\nrw=randread\niodepth=8\ntime_based\nruntime=30\n\
               latency_target=2s\nlatency_window=40ms\nlatency_percentile=99.5\n";
    let found = both("goal", job).map(|(_, report, failed)| {
        let job = &report["jobs"][0];
        assert!(number(job, "/elapsed") < 30.0);
        let keys = ["latency_depth", "latency_target", "latency_percentile", "latency_window"];
        (keys.map(|key| number(job, &format!("/{key}"))), failed)
    });
    assert_eq!(found, [([8.0, 2e9, 99.5, 40_000.0], false); 2]);
}

#[test]
fn data_that_compresses_or_repeats_is_fio_s_byte_for_byte() {
    let jobs = [
        "[a]\nrefill_buffers=1\n",
        "[a]\nrefill_buffers=1\nloops=2\nrandrepeat=0\nrandseed=5\n",
        "[a]\nbuffer_compress_percentage=40\n",
        "[a]\nbuffer_compress_percentage=70\nbuffer_compress_chunk=1500\nbs=16k\niodepth=4\nioengine=libaio\n",
        "[a]\nbuffer_compress_percentage=25\nbuffer_pattern=0xdeadbeef\nbsrange=4k-32k\n",
        "[a]\nbuffer_compress_percentage=100\n",
        "[a]\nbuffer_compress_percentage=50\nrefill_buffers=0\n",
        "[a]\ndedupe_percentage=60\n",
        "[a]\ndedupe_percentage=100\nrandom_generator=tausworthe64\n",
        "[a]\ndedupe_percentage=30\nbuffer_compress_percentage=50\nbuffer_compress_chunk=4k\nloops=2\n",
        "[a]\ndedupe_percentage=50\ndedupe_mode=working_set\ndedupe_working_set_percentage=10\nrandrepeat=0\nrandseed=7\n",
        "[global]\ndedupe_percentage=50\ndedupe_mode=working_set\ndedupe_global=1\nsize=1m\n\
         [a]\n[b]\noffset=1m\nnumjobs=2\noffset_increment=1m\n",
    ];
    for job in jobs {
        let file = format!("[global]\nfilename=data\nrw=write\nbs=4k\nsize=2m\n{job}");
        let [theirs, ours] = both("shaped", &file).map(|(dir, _, failed)| {
            assert!(!failed, "{job}");
            fs::read(dir.path("data")).unwrap()
        });
        let first = theirs.iter().zip(&ours).position(|(a, b)| a != b);
        assert_eq!((first, ours.len()), (None, theirs.len()), "{job}");
        assert_ne!(ours[..4096], [1; 4096], "{job}");
    }
}
