// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same jobs, run by fio 3.33 and by mqblk on the same file: the counts of I/Os, bytes and flushes per direction are equal, and each
//! program verifies the data that the other wrote.
//!
//! Needs fio 3.33 (Debian 12: apt-get install fio), which `cargo xtask test` installs.

use crate::common;

use common::{Dir, Done, number};
use serde_json::Value;
use std::fs;

/// Runs `job.fio` with fio and with mqblk.
fn both(dir: &Dir) -> [Value; 2] {
    let fio = dir.program("fio", &["--output-format=json", "job.fio"]).exits(0);
    let ours = dir.mqblk(&["run", "job.fio", "--json"]).exits(0);
    // fio may print a message before its JSON.
    let from = fio.out.find('{').unwrap();
    [serde_json::from_str(&fio.out[from..]).unwrap_or_else(|e| panic!("{e}: {}", fio.out)), ours.json()]
}

/// (I/Os, bytes) of read, write and trim, and flushes, of one block of a report.
type Counts = (String, [(f64, f64); 3], f64);

/// Returns the counts of each block.
fn counts(v: &Value) -> Vec<Counts> {
    let jobs = v["jobs"].as_array().unwrap();
    let of = |job: &Value| {
        let dirs = ["read", "write", "trim"]
            .map(|d| (number(job, &format!("/{d}/total_ios")), number(job, &format!("/{d}/io_bytes"))));
        (job["jobname"].as_str().unwrap().to_owned(), dirs, number(job, "/sync/total_ios"))
    };
    jobs.iter().map(of).collect()
}

const HEAD: &str = "[global]\nfilename=data\nfilesize=8m\nsize=8m\nioengine=libaio\nthread\n";

#[test]
fn the_same_job_does_the_same_i_o() {
    let jobs = [
        "[seqread]\nrw=read\nbs=4k\n",
        "[randread]\nrw=randread\nbs=4k\niodepth=16\ndirect=1\n",
        "[mixed]\nrw=randrw\nrwmixread=70\nbs=8k\niodepth=8\n",
        "[seqmixed]\nrw=rw\nrwmixwrite=30\nbs=16k\n",
        "[range]\nrw=randwrite\nbsrange=4k-64k\niodepth=4\n",
        "[split]\nrw=randread\nbssplit=4k/50:32k/30:64k/20\nnumber_ios=300\n",
        "[perdir]\nrw=randrw\nbs=4k,16k\nnorandommap\nio_size=5m\n",
        "[few]\nrw=randread\nbs=4k\nnumber_ios=100\n",
        "[part]\nrw=write\nbs=4k\nsize=3m\nio_size=5m\n",
        "[odd]\nrw=read\nbs=60k\n",
        "[loops]\nrw=randread\nbs=16k\nsize=1m\nloops=3\n",
        "[fsync]\nrw=write\nbs=4k\nsize=1m\nfsync=8\nend_fsync=1\n",
        "[zipf]\nrw=randread\nbs=4k\nrandom_distribution=zipf:1.1\nio_size=2m\n",
        "[backwards]\nrw=read:-8k\nbs=4k\noffset=4m\nsize=4m\nnumber_ios=20\n",
        "[holes]\nrw=write:4k\nbs=4k\n",
        "[spread]\nrw=randwrite\nbs=4k\nsize=2m\nloops=2\n",
        "[parts]\nrw=randwrite\nbs=4k\nnumjobs=3\nsize=1m\noffset_increment=2m\n",
        "[one]\nrw=read\nbs=64k\ngroup_reporting\n[two]\nrw=randwrite\nbs=8k\nsize=1m\ngroup_reporting\n\
         [three]\nstonewall\nrw=read\nsize=1m\nnumjobs=2\ngroup_reporting\n",
    ];
    for job in jobs {
        let dir = Dir::new("agree");
        dir.file("job.fio", &format!("{HEAD}{job}"));
        fs::write(dir.path("data"), vec![1; 8 << 20]).unwrap();
        let [fio, ours] = both(&dir);
        assert_eq!(counts(&ours), counts(&fio), "{job}");
    }
}

#[test]
fn files_are_named_and_sized_alike() {
    let job = "[global]\nsize=1m\nrw=write\nbs=4k\n[one]\nnumjobs=2\n[two]\nfilename_format=$jobname-$jobnum\n[three]\nfilesize=3m\n";
    let files = |dir: &Dir| -> Vec<(String, u64)> {
        let names = dir.list().into_iter().filter(|n| n != "job.fio");
        names.map(|n| (n.clone(), fs::metadata(dir.path(&n)).unwrap().len())).collect()
    };
    let (fio, ours) = (Dir::new("agree"), Dir::new("agree"));
    fio.file("job.fio", job).program("fio", &["job.fio"]).exits(0);
    ours.file("job.fio", job).mqblk(&["run", "job.fio"]).exits(0);
    assert_eq!(files(&ours), files(&fio));
}

const VERIFIES: [&str; 5] =
    ["verify=crc32c", "verify=md5", "verify=sha256", "verify=xxhash", "verify=pattern\nverify_pattern=0xdeadbeef"];

/// Runs `job.fio` with one of the two programs.
fn by(dir: &Dir, who: &str) -> Done {
    match who {
        "fio" => dir.program("fio", &["job.fio"]),
        _ => dir.mqblk(&["run", "job.fio", "--set", "scheduler=mq-deadline"]),
    }
}

fn data_passes(writer: &str, reader: &str) {
    for verify in VERIFIES {
        let dir = Dir::new("agree");
        let head = "[a]\nfilename=data\nsize=2m\nioengine=libaio\nthread\nbs=4k\niodepth=8\nrandseed=99\ndo_verify=0";
        let job = |rw: &str| format!("{head}\nrw={rw}\n{verify}\n");
        dir.file("job.fio", &job("randwrite"));
        by(&dir, writer).exits(0);
        dir.file("job.fio", &job("read"));
        by(&dir, reader).exits(0);
        // The verifying program must also detect an error.
        let mut bytes = fs::read(dir.path("data")).unwrap();
        bytes[(1 << 20) + 2000] ^= 4;
        fs::write(dir.path("data"), bytes).unwrap();
        by(&dir, reader).exits(1);
    }
}

#[test]
fn fio_finds_whole_what_mqblk_wrote() {
    data_passes("mqblk", "fio");
}

#[test]
fn mqblk_finds_whole_what_fio_wrote() {
    data_passes("fio", "mqblk");
}

/// With `verify_only`, fio repeats the job's writes without writing, so it expects the generation and seed of each block.
#[test]
fn fio_finds_every_block_where_it_would_have_put_it_itself() {
    let dir = Dir::new("agree");
    let job = format!("{HEAD}[a]\nrw=randwrite\nsize=2m\nbsrange=4k-16k\niodepth=8\nverify=crc32c\ndo_verify=0\n");
    dir.file("job.fio", &job);
    by(&dir, "mqblk").exits(0);
    dir.file("job.fio", &job.replace("do_verify=0", "do_verify=1\nverify_only"));
    by(&dir, "fio").exits(0);
}
