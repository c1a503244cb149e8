// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Transaction loops and striped targets from the outside: `mqblk run` and `compare`.

use crate::common;

use common::{Dir, number};
use std::fs;

const DB: &str =
    "[db]\nworkload=oltp\nbs=8k\nsize=8m\nusers=8\nreads_per_tx=4\nwrites_per_tx=2\nredo_bytes=1k\nhot_pct=50\n";

#[test]
fn transactions_are_counted_and_told_in_text_and_json() {
    let dir = Dir::new("oltp");
    dir.file("j.fio", &format!("{DB}transactions=400\nnumjobs=2\ngroup_reporting\n"));
    for target in ["ram:size=9m", "null:size=9m", "model:size=9m,over=ram,lat_us=20"] {
        let v = dir.mqblk(&["run", "j.fio", "--target", target, "--json"]).exits(0).json();
        let tx = |key: &str| number(&v, &format!("/mqblk/oltp/0/{key}"));
        assert_eq!((tx("transactions"), tx("instances")), (800.0, 2.0), "{target}");
        assert_eq!((tx("transaction/n"), tx("commit/n")), (800.0, tx("commits")));
        assert_eq!(number(&v, "/jobs/0/read/total_ios"), 3200.0);
        // Both end after a number of transactions, so all blocks are written back.
        assert_eq!(tx("block_writes") + tx("rewritten"), 2.0 * tx("commits"));
        assert_eq!(number(&v, "/jobs/0/write/total_ios"), tx("block_writes") + tx("redo_writes"));
        assert!(tx("redo_writes") <= tx("commits") && tx("tps") > 0.0 && tx("transaction/p99_ns") > 0.0, "{v:#}");
        assert!((tx("hot_percent") - 50.0).abs() < 10.0);
        assert_eq!(number(&v, "/disk_util/0/read_ios") + number(&v, "/disk_util/0/read_merges"), 3200.0);
    }
    let done = dir.mqblk(&["run", "j.fio", "--target", "null:size=9m", "--set", "mode=sq"]).exits(0);
    done.prints(&[
        "\nTransactions of db (2 instances):\n  transactions : ",
        "800 in all; commits=",
        "% of them hot\n  latency      : avg=",
        "\n    reads      : avg=",
        "\n    commit wait: avg=",
        " commits per write, log wrapped ",
        " waits for write-back\n",
    ]);
    let plain = "[a]\nrw=read\nsize=1m\n";
    dir.file("plain.fio", plain);
    let v = dir.mqblk(&["run", "plain.fio", "--target", "null", "--json"]).exits(0).json();
    assert!(v["mqblk"].get("oltp").is_none());
}

#[test]
fn redo_goes_to_redo_filename_and_a_seed_repeats_the_run() {
    let dir = Dir::new("oltp");
    dir.file("j.fio", &format!("{DB}transactions=200\nfilename=data\nredo_filename=redo\nredo_size=1m\ndirect=1\n"));
    let run = |more: &[&str]| dir.mqblk(&[&["run", "j.fio", "--json"], more].concat()).exits(0).json();
    let v = run(&[]);
    assert_eq!(dir.list(), ["data", "j.fio", "redo"]);
    assert_eq!(fs::metadata(dir.path("redo")).unwrap().len(), 1 << 20);
    assert_eq!(fs::metadata(dir.path("data")).unwrap().len(), 8 << 20);
    let redo = fs::read(dir.path("redo")).unwrap();
    let written = number(&v, "/mqblk/oltp/0/redo_writes") as usize;
    assert!(written > 0 && redo[..512].iter().any(|b| *b != 0), "the log begins at its beginning");
    assert_eq!(number(&v, "/disk_util/1/write_ios") as usize, written, "{v:#}");
    assert_eq!(number(&v, "/disk_util/1/read_ios"), 0.0);
    // With several sessions, the faster ones do more of the transactions. A single session depends only on the seed.
    let commits = |more: &[&str]| {
        let alone = ["--job-set", "users=1", "--job-set", "threads=1"];
        number(&run(&[&alone, more].concat()), "/mqblk/oltp/0/commits")
    };
    let first = commits(&[]);
    assert_eq!(commits(&["--set", "mode=sq"]), first, "which transactions change anything is the seed's");
    assert_ne!(commits(&["--job-set", "randseed=7"]), first);
}

#[test]
fn a_comparison_judges_transactions() {
    let dir = Dir::new("oltp");
    dir.file("j.fio", &format!("{DB}runtime=1\n[scan]\nrw=read\nbs=64k\nsize=1m\n"));
    let sides = ["--a", "target=model:size=64m,lat_us=50", "--b", "target=model:size=64m,lat_us=10000"];
    let how = ["--judge", "db", "--pairs", "10", "--runtime", "400ms", "--warmup", "0", "--results", "r"];
    let done = dir.mqblk(&[&["compare", "j.fio"], &sides[..], &how[..]].concat()).exits(0);
    done.prints(&[
        "B is slower: transactions -",
        "\n  transactions ",
        "\n  tx mean ",
        "\n  commit wait ",
        "other job: scan",
    ]);
    let raw = fs::read(dir.path("r")).unwrap();
    let results = lab::results::read(raw.as_slice(), "r").unwrap();
    assert_eq!(results.evaluate()[0].primary, lab::metric::Metric::Transactions);
    assert!(results.runs.iter().all(|r| r.histograms.iter().any(|h| h.dir == "transaction" && h.kind == "commit")));
}

#[test]
fn a_stripe_is_a_target_and_its_members_are_devices() {
    let dir = Dir::new("stripe");
    let target = "stripe:chunk=64k:lun%.img*4";
    dir.file(
        "w.fio",
        "[w]\nrw=randwrite\nsize=4m\nbs=48k,48k\nioengine=libaio\niodepth=16\nverify=crc32c\nnumjobs=1\ndirect=1\n",
    );
    let v = dir.mqblk(&["run", "w.fio", "--target", target, "--json"]).exits(0).json();
    let writes = number(&v, "/jobs/0/write/total_ios");
    assert!(writes > 80.0 && number(&v, "/jobs/0/read/total_ios") == writes, "read back over all members");
    // An I/O that crosses the end of a chunk becomes two parts, which may merge.
    let parts = number(&v, "/disk_util/0/write_ios") + number(&v, "/disk_util/0/write_merges");
    assert!(parts > writes && parts < 2.0 * writes, "{parts} parts of {writes} writes");
    assert_eq!(v["disk_util"].as_array().unwrap().len(), 1, "one target");
    assert_eq!(v["disk_util"][0]["name"], target);
    for i in 0..4 {
        let file = fs::read(dir.path(&format!("lun{i}.img"))).unwrap();
        assert_eq!(file.len(), 1 << 20);
        assert!(file.iter().any(|b| *b != 0), "lun{i} holds its part");
    }
    // With another chunk size, blocks are at other places, and verification fails.
    let read = ["run", "w.fio", "--job-set", "rw=read", "--target"];
    dir.mqblk(&[&read[..], &[target]].concat()).exits(0);
    dir.mqblk(&[&read[..], &["stripe:chunk=128k:lun%.img*4"]].concat()).exits(1);
    // Each member has its own trace.
    let traced =
        ["run", "w.fio", "--job-set", "number_ios=40", "--target", target, "--trace", "t", "--trace-format=chrome"];
    dir.mqblk(&traced).exits(0);
    for i in 0..4 {
        assert!(fs::metadata(dir.path(&format!("t-{i}.json"))).unwrap().len() > 1000);
    }
}

#[test]
fn data_and_redo_luns_are_striped_under_transactions() {
    let dir = Dir::new("stripe");
    dir.file("j.fio", &format!("{DB}transactions=300\nnumjobs=2\n"));
    let luns = [
        "--job-set",
        "filename=stripe:chunk=64k:ram:size=1m*16",
        "--job-set",
        "redo_filename=stripe:chunk=64k:ram:size=1m*8",
    ];
    for set in ["mode=mq", "mode=sq", "scheduler=mq-deadline", "shared_tags=1"] {
        let v = dir.mqblk(&[&["run", "j.fio", "--json", "--set", set], &luns[..]].concat()).exits(0).json();
        let sum = |key: &str| number(&v, &format!("/mqblk/oltp/0/{key}")) + number(&v, &format!("/mqblk/oltp/1/{key}"));
        assert_eq!(sum("transactions"), 600.0, "{set}");
        let util = |i: u32, key: &str| number(&v, &format!("/disk_util/{i}/{key}"));
        assert_eq!(util(0, "read_ios") + util(0, "read_merges"), 2400.0, "sums over 16 members, {set}");
        assert!(util(1, "write_ios") + util(1, "write_merges") >= sum("redo_writes"));
    }
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_touched() {
    let dir = Dir::new("oltp");
    dir.file("j.fio", &format!("{DB}transactions=9\n")).file("p.fio", "[p]\nrw=read\nsize=1m\nhipri\n");
    let refused = |args: &[&str], what: &[&str]| dir.mqblk(&[&["run"], args].concat()).exits(2).says(what);
    refused(&["j.fio", "--target", "stripe:lun0+lun0"], &["'lun0' is listed twice"]);
    refused(&["j.fio", "--target", "stripe:chunk=3k:a+b"], &["chunk=3072: must be a power of two"]);
    refused(
        &["j.fio", "--target", "stripe:a+b", "--set", "iops_total=100"],
        &["iops_total=100: limits are not supported for a striped target"],
    );
    refused(
        &["p.fio", "--target", "stripe:null+null"],
        &["hipri (job 'p', line 1): a striped target cannot be polled"],
    );
    refused(&["j.fio", "--target", "null:size=1m"], &["the target has 1048576 bytes"]);
    refused(
        &["j.fio", "--target", "null:blocksize=4096"],
        &["redo_block_size=512 (job 'db', line 1): must be a multiple"],
    );
    refused(
        &["j.fio", "--job-set", "hot_size=1k", "--target", "null:size=9m"],
        &["hot_size=", "neither the hot part nor the rest may be empty"],
    );
    refused(&["j.fio", "--job-set", "iodepth=4"], &["--job-set: iodepth=4: has no effect with workload=oltp"]);
    dir.mqblk(&["serve", "stripe:null+null"]).exits(2).says(&["several devices: only run and compare accept it"]);
    assert_eq!(dir.list(), ["j.fio", "p.fio"]);
}
