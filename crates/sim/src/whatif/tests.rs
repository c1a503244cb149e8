// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Questions with answers that are known beforehand.

use super::judge::{Answers, Verdict};
use super::*;

const MACHINE: &str = "[machine]\nsockets = 1\ncores = 4\nthreads = 1\n[disk]\nsize_gib = 10\nread_us = 1000\nwrite_us = 1000\n\
                       jitter_pct = 20\nqueue_depth = 64\n[settings]\nnr_hw_queues = 1\nscheduler = \"none\"\n";
const JOB: &str = "[db]\nrw=randread\nbs=4k\niodepth=32\nioengine=io_uring\ndirect=1\nruntime=10\ntime_based\n";

fn ask(machine: &str, job: &str, changes: &[&str]) -> Result<Answers, String> {
    let changes: Vec<String> = changes.iter().map(|c| (*c).to_owned()).collect();
    let jobs = Some(("j.fio", job));
    let q = Question { machine_file: "m.toml", machine, jobs, changes: &changes, members: 6, ios: 2000, seed: 1 };
    let plan = Plan::new(&q)?;
    let runs: Vec<RowOutcome> = (0..plan.runs()).map(|n| plan.run(n)).collect::<Result<_, _>>()?;
    Ok(plan.judge(&runs))
}

fn figure<'a>(a: &'a Answers, question: usize, name: &str) -> &'a judge::FigureAnswer {
    a.answers[question].figures.iter().find(|f| f.figure == name).unwrap_or_else(|| panic!("{name}: {a:#?}"))
}

#[test]
fn half_the_tags_halve_a_rate_and_a_faster_disk_raises_it() {
    let a = ask(MACHINE, JOB, &["queue_depth=16", "disk.read_us=500", "nomerges=2"]).unwrap();
    assert_eq!((a.members, a.kept, a.describes), (6, 6, None));
    let fewer = figure(&a, 0, "db.iops");
    assert_eq!(fewer.verdict, Verdict::Worse, "{}", fewer.text);
    assert!((fewer.change.median + 0.5).abs() < 0.05, "{}", fewer.text);
    assert!(fewer.text.starts_with("worse by "), "{}", fewer.text);
    assert_eq!(figure(&a, 0, "db.lat_us").verdict, Verdict::Worse);
    assert!(a.answers[0].reasons.iter().any(|r| r.contains("tag wait is ")), "{:?}", a.answers[0].reasons);
    let faster = figure(&a, 1, "db.lat_us");
    assert!(faster.verdict == Verdict::Better && faster.change.median < -0.3, "{}", faster.text);
    assert_eq!(figure(&a, 2, "db.iops").verdict, Verdict::NoEffect, "{}", figure(&a, 2, "db.iops").text);
    assert_eq!(a, ask(MACHINE, JOB, &["queue_depth=16", "disk.read_us=500", "nomerges=2"]).unwrap());
}

#[test]
fn an_unmeasured_depth_has_no_answer_and_names_what_it_needs() {
    let machine = format!("{MACHINE}[uncertain]\n\"disk.parallel\" = [32, 65536]\n");
    let a = ask(&machine, JOB, &["job.iodepth=64"]).unwrap();
    let f = figure(&a, 0, "db.iops");
    assert_eq!(f.verdict, Verdict::CannotTell, "{}", f.text);
    assert!(f.text.contains("it depends on disk.parallel"), "{}", f.text);
    // Once the constant is known, there is an answer.
    let a = ask(MACHINE, JOB, &["job.iodepth=64"]).unwrap();
    assert_eq!(figure(&a, 0, "db.iops").verdict, Verdict::Better);
}

#[test]
fn a_model_that_misses_the_measured_figures_gives_no_answer() {
    let good = format!("{MACHINE}[measured]\n\"db.iops\" = 31500\n");
    assert_eq!(ask(&good, JOB, &["queue_depth=16"]).unwrap().describes, Some(true));
    let bad = format!("{MACHINE}[measured]\n\"db.iops\" = 3000\n");
    let a = ask(&bad, JOB, &["queue_depth=16"]).unwrap();
    assert_eq!((a.describes, figure(&a, 0, "db.iops").verdict), (Some(false), Verdict::CannotTell));
    let why = &a.answers[0].cannot[0];
    assert!(
        why.starts_with("the model does not describe this machine: db.iops is ") && why.contains("3000.0 was measured"),
        "{why}"
    );
    // Only members that match are used: reads take 600 to 1600 us, and the measured rate narrows that down.
    let narrowed = format!("{good}[uncertain]\n\"disk.read_us\" = [600, 1600]\n");
    let a = ask(&narrowed, JOB, &["queue_depth=16"]).unwrap();
    assert!(a.kept < a.members && a.describes == Some(true), "{} of {}", a.kept, a.members);
}

#[test]
fn what_has_no_model_is_said_to_have_none() {
    let a = ask(MACHINE, JOB, &["iothreads=4", "read_ahead_kb=4096", "scsi_mod.use_blk_mq=1"]).unwrap();
    assert!(a.answers[0].cannot[0].starts_with("iothreads: IOThreads serve virtual machines"), "{a:?}");
    assert!(a.answers[1].cannot[0].contains("page cache"), "{a:?}");
    assert!(a.answers[2].no_effect[0].contains("not a SCSI disk") && a.answers[2].cannot.is_empty(), "{a:?}");
    assert_eq!(figure(&a, 2, "db.iops").verdict, Verdict::NoEffect);
    let a = ask(MACHINE, &JOB.replace("randread", "randtrim"), &["queue_depth=16"]).unwrap();
    assert!(a.answers[0].cannot[0].contains("job 'db' sends discards"), "{a:?}");
    let a = ask(MACHINE, &JOB.replace("direct=1", "direct=0"), &["queue_depth=16"]).unwrap();
    assert!(a.answers[0].cannot[0].contains("job 'db' goes through the page cache") && a.answers[0].figures.is_empty());
}

/// A merged or a larger request takes as long as a small one, so the answers were up to "better by 431 %".
#[test]
fn a_question_about_sizes_needs_a_cost_per_byte() {
    let stream = JOB.replace("randread", "read").replace("iodepth=32", "iodepth=32\niodepth_batch_submit=16");
    let questions = ["queue_depth=4", "job.bs=64k", "disk.read_us=500"];
    let a = ask(MACHINE, &stream, &questions).unwrap();
    for answer in &a.answers[..2] {
        assert!(answer.cannot[0].contains("and [disk] has no cost per byte: measure the bandwidth"), "{answer:?}");
        assert!(
            answer.cannot[0].starts_with("the reads at the device have 4.1 KiB with 'as it is' and "),
            "{answer:?}"
        );
        assert!(answer.figures.is_empty() && answer.reasons.is_empty(), "{answer:?}");
    }
    assert_eq!(figure(&a, 2, "db.iops").verdict, Verdict::Better, "requests stay as they are");
    let machine = MACHINE.replace("jitter_pct", "bw_mb = 500\njitter_pct");
    let a = ask(&machine, &stream, &questions).unwrap();
    assert!(a.answers.iter().all(|q| q.cannot.is_empty() && !q.figures.is_empty()), "{a:?}");
}

#[test]
fn a_question_about_places_needs_seek_times() {
    let rotates =
        MACHINE.replace("jitter_pct = 20", "bw_mb = 200\nparallel = 1\nrotational = true").replace("= 64", "= 8");
    let questions = ["scheduler=mq-deadline", "queue_depth=1", "job.rw=read", "disk.read_us=500", "rq_affinity=2"];
    let a = ask(&rotates, JOB, &questions).unwrap();
    for (answer, says) in a.answers.iter().zip(["the reads are ", "the disk has ", "the reads are "]) {
        let why = answer.cannot.first().unwrap_or_else(|| panic!("{answer:?}"));
        assert!(why.starts_with(says) && why.ends_with("describe it in [disk.hdd]"), "{why}");
    }
    assert_eq!(figure(&a, 3, "db.iops").verdict, Verdict::Better, "the same places in the same order");
    assert_eq!(figure(&a, 4, "db.iops").verdict, Verdict::NoEffect);
    // With seek times there are answers.
    let disk = MACHINE.replace("read_us = 1000\nwrite_us = 1000\njitter_pct = 20\n", "");
    let hdd = disk.replace("[settings]", "[disk.hdd]\n[settings]").replace("size_gib = 10", "size_gib = 3726");
    let a = ask(&hdd, JOB, &["queue_depth=4", "disk.hdd.rpm=15000"]).unwrap();
    assert_eq!(figure(&a, 0, "db.iops").verdict, Verdict::Worse, "{a:?}");
    assert_eq!(figure(&a, 1, "db.iops").verdict, Verdict::Better, "{a:?}");
    let shingled = hdd.replace("[disk]", "[disk]\nsmr = true");
    let writes = JOB.replace("randread", "randwrite");
    let a = ask(&shingled, &writes, &["queue_depth=4"]).unwrap();
    assert!(a.answers[0].cannot[0].contains("records in shingles (smr)"), "{a:?}");
    let e = ask(&format!("{hdd}[uncertain]\n\"disk.read_us\" = [1, 2]\n"), JOB, &["queue_depth=4"]).unwrap_err();
    assert!(e.contains("disk.read_us: a hard disk's times follow from [disk.hdd]; remove the range"), "{e}");
}

#[test]
fn more_hits_of_an_array_are_better() {
    let array = "[disk.array]\nread_hit_pct = 50\nmiss_us = 5000\nbackend_iops = 2000\n[settings]";
    let a = ask(&MACHINE.replace("[settings]", array), JOB, &["disk.array.read_hit_pct=80"]).unwrap();
    let more = figure(&a, 0, "db.iops");
    assert!(more.verdict == Verdict::Better && more.change.median > 0.5, "{}", more.text);
    let e = ask(&MACHINE.replace("[settings]", array), JOB, &["disk.array.read_hit_pct=180"]).unwrap_err();
    assert!(e.contains("read_hit_pct = 180: must be 0..=100"), "{e}");
    let e = ask(&MACHINE.replace("[settings]", array), JOB, &["disk.split=true"]).unwrap_err();
    assert!(e.contains("split: reads and writes of an array share its cache"), "{e}");
}

#[test]
fn another_elevator_begins_with_its_own_number_of_requests() {
    let machine = MACHINE.replace("\"none\"", "\"mq-deadline\"\nnr_requests = 256\n\"iosched.fifo_batch\" = 8");
    let a = ask(&machine, JOB, &["scheduler=none", "scheduler=kyber,nr_requests=32"]).unwrap();
    assert!(a.answers.iter().all(|q| q.cannot.is_empty() && !q.figures.is_empty()), "{a:?}");
}

#[test]
fn what_cannot_be_asked_is_refused_with_a_remedy() {
    for (change, says) in [
        ("nr_hw_queue=2", "did you mean 'nr_hw_queues'?"),
        ("disk.red_us=2", "unknown field `red_us`"),
        ("disk.read_us=-2", "read_us = -2: must be 0..=1e9"),
        ("nr_hw_queues", "must be KEY=VALUE"),
        ("nr_hw_queues=many", "must be a whole number"),
        ("nr_hw_queues=8", "at most the stack's 4 CPUs"),
        ("lun_queue_depth=8", "only a disk with attach = \"scsi\" has one"),
        ("machine.cores=0", "cores = 0: must be 1 or more"),
        ("iothreads=many", "must be 0..=1024"),
        ("job.iodepth=0", "iodepth"),
    ] {
        let e = ask(MACHINE, JOB, &[change]).err();
        let e = e.unwrap_or_else(|| panic!("{change} was taken"));
        assert!(e.contains(says), "{change}: {e}");
    }
    let e = ask(&MACHINE.replace("cores = 4", "cors = 4"), JOB, &["nomerges=2"]).unwrap_err();
    assert!(e.starts_with("m.toml:3: unknown field `cors`"), "{e}");
}

#[test]
fn a_job_that_verifies_or_polls_is_not_simulated_and_no_panic() {
    for (more, why) in [("verify=crc32c", "verify: a simulated machine has no data"), ("hipri=1", "hipri: polled I/O")]
    {
        let a = ask(MACHINE, &format!("{JOB}{more}\n"), &["queue_depth=16"]).unwrap();
        assert!(a.answers[0].cannot[0].contains(why), "{:?}", a.answers[0].cannot);
        let asked = format!("job.{more}");
        let a = ask(MACHINE, JOB, &[&asked, "queue_depth=16"]).unwrap();
        assert!(a.answers[0].cannot[0].contains(why), "{:?}", a.answers[0].cannot);
        assert_eq!(figure(&a, 1, "db.iops").verdict, Verdict::Worse, "the other question is answered");
    }
}

/// A measured percentile was once compared with nothing, and the model was reported as untested.
#[test]
fn every_figure_that_was_measured_is_compared() {
    let of = |ns: u32| ask(&format!("{MACHINE}[measured]\n\"db.p99_us\" = {ns}\n"), JOB, &["queue_depth=16"]).unwrap();
    assert_eq!((of(1200).describes, of(12_000).describes), (Some(true), Some(false)));
    let e = ask(&format!("{MACHINE}[measured]\n\"db.tps\" = 10\n"), JOB, &["queue_depth=16"]).unwrap_err();
    assert!(e.contains("db.tps") && e.contains("the job has no such figure"), "{e}");
}
