// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A hard disk behind the block layer: the drive chooses late, and the elevators have something to gain.

use sim::scenario::file::{Row, Scalar, Scenario};
use sim::scenario::outcome::{self, RowOutcome};
use workload::job::{JobFile, ParseContext};

const SATA: &str = "[machine]\nsockets = 1\ncores = 4\nthreads = 1\n[disk]\nattach = \"scsi\"\nsize_gib = 3726\n\
                    lun_queue_depth = 32\nqueue_depth = 32\n[disk.hdd]\n[settings]\nnr_hw_queues = 1\nscheduler = \"none\"\n";

fn simulate(machine: &str, scheduler: &str, jobs: &str) -> RowOutcome {
    let scenario = Scenario::parse_machine("m.toml", machine).unwrap_or_else(|e| panic!("{e}"));
    let set = [("scheduler".to_owned(), Scalar::Word(scheduler.into()))].into();
    let row = Row { name: "row".into(), set, ..Row::default() };
    let text = format!("[global]\nioengine=libaio\ndirect=1\nruntime=20\ntime_based\nnorandommap\n{jobs}");
    let file = JobFile::parse_str(&text, &ParseContext { ncpus: 4, ..ParseContext::bare("j.fio") }, &[]);
    let jobs = file.unwrap_or_else(|e| panic!("{e}")).jobs;
    outcome::simulate(&scenario, &row, &jobs, 1).unwrap_or_else(|e| panic!("{e}"))
}

fn figure(row: &RowOutcome, name: &str) -> f64 {
    row.figures.iter().find(|f| f.name == name).unwrap_or_else(|| panic!("{name}")).simulated
}

#[test]
fn a_queue_of_32_more_than_doubles_random_reads() {
    let iops = |machine: &str, jobs: &str| figure(&simulate(machine, "none", jobs), "r.iops");
    let one = iops(SATA, "[r]\nrw=randread\nbs=4k\niodepth=1\n");
    let deep = iops(SATA, "[r]\nrw=randread\nbs=4k\niodepth=8\nnumjobs=4\n");
    assert!((75.0..85.0).contains(&one) && (150.0..200.0).contains(&deep), "{one} and {deep}");
    // The drive chooses among the commands of all hardware queues, and wakes the right one.
    let queues = SATA
        .replace("\"scsi\"", "\"direct\"")
        .replace("lun_queue_depth = 32\n", "")
        .replace("nr_hw_queues = 1", "nr_hw_queues = 4");
    let with_queues = iops(&queues, "[r]\nrw=randread\nbs=4k\niodepth=8\nnumjobs=4\n");
    assert!((with_queues / deep - 1.0).abs() < 0.05, "{with_queues} and {deep}");
}

/// bfq waits for the next read of a stream instead of moving the arm to another one.
#[test]
fn idling_keeps_the_arm_with_a_stream() {
    let streams = "[a]\nrw=read\nbs=64k\n[b]\nrw=read\nbs=64k\noffset=1000g\n[c]\nrw=read\nbs=64k\noffset=2000g\n";
    let mb = |scheduler: &str| {
        let row = simulate(SATA, scheduler, streams);
        ["a.bw", "b.bw", "c.bw"].map(|name| figure(&row, name)).iter().sum::<f64>() / 1e6
    };
    let (none, bfq) = (mb("none"), mb("bfq"));
    assert!(none < 10.0 && bfq > 5.0 * none, "{none} and {bfq} MB/s");
}

/// With a write cache, a commit waits for the medium; the block layer sends the flush because the disk says so.
#[test]
fn fsync_waits_for_the_medium() {
    let row = simulate(SATA, "mq-deadline", "[w]\nrw=randwrite\nbs=4k\nfsync=1\n");
    assert!((75.0..85.0).contains(&figure(&row, "w.iops")), "{:?}", row.figures);
    let row = simulate(SATA, "mq-deadline", "[w]\nrw=randwrite\nbs=4k\n");
    assert!(figure(&row, "w.iops") > 150.0, "{:?}", row.figures);
}

#[test]
fn figures_that_do_not_belong_together_are_rejected() {
    let error = |from: &str, to: &str| {
        assert!(SATA.contains(from), "{from}");
        Scenario::parse_machine("m.toml", &SATA.replacen(from, to, 1)).expect_err("wrong").to_string()
    };
    assert_eq!(
        error("[disk.hdd]", "read_us = 100\n[disk.hdd]"),
        "m.toml:10: read_us: a hard disk's times follow from [disk.hdd]; remove read_us or [disk.hdd]"
    );
    assert_eq!(error("[disk.hdd]", "[disk.hdd]\nrpm = 0"), "m.toml:11: rpm = 0: must be 1000..=30000");
    let unknown = error("[disk.hdd]", "[disk.hdd]\nseek_us = 1");
    assert!(unknown.starts_with("m.toml:11: unknown field `seek_us`"), "{unknown}");
    let model = error("attach = \"scsi\"", "attach = \"model\"");
    assert!(model.starts_with("m.toml:6: attach = \"model\": a hard disk has interrupts"), "{model}");
    let missing = error("[disk.hdd]\n", "");
    assert!(missing.contains("read_us is missing: give the disk's times, or describe a hard disk"), "{missing}");
}
