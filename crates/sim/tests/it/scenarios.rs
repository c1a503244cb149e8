// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The scenarios that come with mqblk: they can be read, fitted figures still fit, and predictions stay the same.

use sim::machine::guest::GuestsRun;
use sim::machine::guest_times::{Mapping, PARTS};
use sim::machine::jobs::JobsError;
use sim::scenario::build;
use sim::scenario::file::{Row, Scenario};
use sim::scenario::outcome::{self, RowOutcome};
use sim::scenario::over_rows::over_rows;
use sim::scenario::why;
use std::sync::atomic::{AtomicBool, Ordering};
use workload::job::{JobFile, Override, ParseContext};

fn path(name: &str) -> String {
    format!("{}/../../scenarios/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> Scenario {
    let text = std::fs::read_to_string(path(name)).expect(name);
    Scenario::parse(name, &text).unwrap_or_else(|e| panic!("{e}"))
}

fn simulate(name: &str, rows: impl Fn(&str) -> bool) -> Vec<RowOutcome> {
    let scenario = read(name);
    let chosen = scenario.row.iter().filter(|r| rows(&r.name));
    let run = |row| match &scenario.jobs {
        None => outcome::simulate_guests(&scenario, row, 0),
        Some(jobs) => {
            let text = std::fs::read_to_string(path(jobs)).expect(jobs);
            let set = |(k, v): (&String, &sim::scenario::file::Scalar)| Override {
                flag: "[row.job]",
                key: k.clone(),
                value: v.text(),
            };
            let all: Vec<Override> = row.job.iter().map(set).collect();
            let context = ParseContext { ncpus: scenario.machine.cpus(), ..ParseContext::bare(jobs) };
            let file = JobFile::parse_str(&text, &context, &all).unwrap_or_else(|e| panic!("{e}"));
            outcome::simulate(&scenario, row, &file.jobs, 0)
        }
    };
    chosen.map(|row| run(row).unwrap_or_else(|e| panic!("{name}: {e}"))).collect()
}

fn figure(row: &RowOutcome, name: &str) -> f64 {
    row.figures.iter().find(|f| f.name == name).unwrap_or_else(|| panic!("{name}")).simulated
}

/// The largest errors that the table of docs/scenarios.md allows; at least one figure must be published.
fn within(rows: &[RowOutcome], fitted: f64, predicted: f64) {
    assert!(rows.iter().flat_map(|r| &r.figures).any(|f| f.published.is_some()), "nothing is published");
    for row in rows {
        for f in &row.figures {
            let Some(error) = f.error() else { continue };
            let most = if f.fitted { fitted } else { predicted };
            assert!(error.abs() <= most, "{} of '{}': {:+.1} %", f.name, row.name, 100.0 * error);
        }
    }
}

#[test]
fn all_scenarios_are_read() {
    let dir = std::fs::read_dir(path("")).expect("scenarios");
    let names: Vec<String> = dir.map(|e| e.expect("an entry").file_name().into_string().expect("text")).collect();
    let scenarios: Vec<_> = names.iter().filter(|n| n.ends_with(".toml")).map(|n| read(n)).collect();
    assert!(scenarios.len() >= 7, "{names:?}");
    let jobs = scenarios.iter().filter_map(|s| s.jobs.as_ref());
    jobs.for_each(|j| assert!(names.contains(j), "{j}"));
}

#[test]
fn thirty_two_queues_cost_a_cloud_disks_writer_its_turn() {
    let rows = simulate("azure-p80.toml", |_| true);
    within(&rows, 0.03, 0.15);
    let reasons = why::reasons(&rows[0], &rows[1]);
    let writer = reasons.iter().find(|r| r.starts_with("seq_write: ")).expect("a reason");
    assert!(writer.contains("longer: scheduler is "), "{writer}");
}

#[test]
fn a_smaller_cloud_disk_is_predicted_without_a_fit() {
    let rows = simulate("azure-p3.toml", |_| true);
    assert!(read("azure-p3.toml").fitted.is_empty());
    let [one, many] = [&rows[0], &rows[1]].map(|r| figure(r, "seq_write.iops"));
    assert!(many < 0.6 * one, "{many} with 32 queues, {one} with one");
}

#[test]
fn a_scsi_parameter_has_no_effect_on_an_emmc_disk() {
    let rows = simulate("emmc-use-blk-mq.toml", |_| true);
    within(&rows, 0.03, 0.15);
    assert_eq!(figure(&rows[0], "hdparm-t.bw"), figure(&rows[1], "hdparm-t.bw"));
    assert!(rows[0].no_effect.is_empty());
    assert!(rows[1].no_effect[0].contains("no effect: not a SCSI disk"), "{:?}", rows[1].no_effect);
}

#[test]
fn a_hard_disk_follows_from_its_data_sheet() {
    let rows = simulate("hard-disk.toml", |_| true);
    within(&rows, 0.0, 0.1);
    let [one, deep] = [&rows[0], &rows[1]].map(|r| figure(r, "random.iops"));
    assert!((2.0..2.5).contains(&(deep / one)), "{one} {deep}");
}

#[test]
fn multipath_of_one_queue_takes_cpu_from_a_database() {
    let rows = simulate("san-oracle.toml", |name| name.starts_with("1 server, 6 %"));
    within(&rows, 0.03, 0.15);
    let [sq, mq] = [&rows[0], &rows[1]].map(|r| figure(r, "slob.iops"));
    assert!(sq < 0.92 * mq, "{sq} {mq}");
    // Reads and writes of a job have separate reasons.
    let reasons = why::reasons(&rows[0], &rows[1]);
    for job in ["slob, read: ", "slob, write: "] {
        let why = reasons.iter().find(|r| r.starts_with(job)).expect("a reason");
        assert!(why.contains("shorter: CPU wait is "), "{why}");
    }
}

#[test]
fn an_array_that_is_the_bottleneck_makes_both_modes_equal() {
    let rows =
        simulate("san-oracle.toml", |name| name == "1 server, 6 % hit, mq" || name.starts_with("3 servers, 6 %"));
    within(&rows[..1], 0.03, 0.0);
    let [sq, mq] = [&rows[1], &rows[2]].map(|r| figure(r, "slob.iops"));
    assert!((sq / mq - 1.0).abs() < 0.02, "{sq} {mq}");
}

#[test]
fn iothreads_help_while_the_host_has_cpu_left() {
    let rows = simulate("rhel94-oracle.toml", |name| name.starts_with("1 VM") || name == "8 VMs, no IOThreads");
    within(&rows, 0.03, 0.15);
    let gain = |users: u32| {
        let name = format!("users{users}.tpm");
        figure(&rows[1], &name) / figure(&rows[0], &name)
    };
    assert!(gain(10) > 1.15 && gain(10) > gain(40) && gain(40) > gain(100), "{} {} {}", gain(10), gain(40), gain(100));
}

/// An hour of virtual time would take days, so a caller that stops the run need not wait for its end.
#[test]
fn guests_stop_when_asked_and_the_flag_changes_nothing_else() {
    let scenario = read("rhel94-oracle.toml");
    let row = Row { iothreads: Some(4), ..Row::default() };
    let run = |ns, stop| build::run_guests_for(&scenario, &row, 40, ns, 7, &AtomicBool::new(stop));
    assert!(matches!(run(3_600_000_000_000, true), Err(JobsError::Stopped)));
    let stop = AtomicBool::new(false);
    let ended = std::thread::scope(|s| {
        let long = s.spawn(|| build::run_guests_for(&scenario, &row, 40, 3_600_000_000_000, 7, &stop));
        // The run to stop has to be in progress, so a short run completes beside it first.
        run(20_000_000, false).unwrap();
        stop.store(true, Ordering::Relaxed);
        long.join().unwrap()
    });
    assert!(matches!(ended, Err(JobsError::Stopped)), "with I/O out, and none of it lost");
}

/// All users want one lock. With shorter I/O more of them wait for the lock and slow down its holder, and IOThreads make
/// that worse.
#[test]
fn iothreads_cost_under_a_lock_and_guests_share_flushes() {
    let rows = simulate("rhel94-mssql.toml", |name| name.starts_with("1 VM") || name == "8 VMs, no IOThreads");
    within(&rows, 0.03, 0.15);
    let gain = |users: u32| {
        let name = format!("users{users}.tpm");
        figure(&rows[1], &name) / figure(&rows[0], &name)
    };
    assert!(gain(10) > 1.04 && gain(50) < 1.0, "{} {}", gain(10), gain(50));
    // Flushes of the eight virtual machines wait for each other, so flushes without cost make all of them faster.
    let mut scenario = read("rhel94-mssql.toml");
    let row = Row { vms: Some(8), ..Row::default() };
    let mut tps = |flush_us| {
        scenario.guests.as_mut().unwrap().log.as_mut().unwrap().flush_us = flush_us;
        build::run_guests_for(&scenario, &row, 10, 50_000_000, 1, &AtomicBool::new(false)).unwrap().tps
    };
    assert!(tps(0.0) > 1.8 * tps(148.0));
}

/// A few users on neighbouring vCPUs: with round robin their virtqueues use all IOThreads, in blocks they share one.
#[test]
fn users_sharing_an_iothread_queue_and_wake_it_less_often() {
    let mut scenario = read("rhel94-oracle.toml");
    let row = Row { iothreads: Some(4), ..Row::default() };
    let mut run = |mapping| {
        scenario.guests.as_mut().unwrap().mapping = mapping;
        build::run_guests_for(&scenario, &row, 20, 100_000_000, 7, &AtomicBool::new(false)).unwrap()
    };
    let (turns, blocks) = (run(Mapping::RoundRobin), run(Mapping::Blocks));
    let of = |run: &GuestsRun, name: &str| run.times.mean_ns(PARTS.iter().position(|p| p.name == name).unwrap());
    for (name, run) in [("round-robin", &turns), ("blocks", &blocks)] {
        let sum: f64 = (0..PARTS.len()).map(|i| run.times.mean_ns(i)).sum();
        assert!((sum / run.tx_ns - 1.0).abs() < 0.01, "{name}: {sum} {}", run.tx_ns);
        assert!((of(run, "storage") / 140_000.0 - 1.0).abs() < 0.01, "{name}: two reads of 60 us, a write of 20");
        assert!(run.tx_p99_ns.unwrap() as f64 > run.tx_ns, "{name}");
    }
    // An IOThread that serves more users sleeps less.
    let (more, less) = (of(&blocks, "turn") / of(&turns, "turn"), of(&blocks, "wake-up") / of(&turns, "wake-up"));
    assert!(more > 1.5 && less < 0.7, "{:?} {:?}", turns.times, blocks.times);
}

/// Slow tests, run by `cargo xtask test --deep`.
mod deep {
    use super::*;

    /// Figures that were not used to choose a constant: the limits are those of docs/scenarios.md.
    #[test]
    fn contention_follows_from_the_locks_of_the_kernel() {
        let mut errors = Vec::new();
        for name in ["elevators-32cpu.toml", "elevators-128cpu.toml", "elevators-nvme.toml"] {
            let rows = simulate(name, |_| true);
            let predicted = rows.iter().flat_map(|r| &r.figures).filter(|f| !f.fitted);
            errors.extend(predicted.filter_map(|f| Some((f.simulated / f.published? - 1.0).abs())));
        }
        errors.sort_by(f64::total_cmp);
        assert_eq!(errors.len(), 61);
        let (median, nine_of_ten) = (errors[errors.len() / 2], errors[errors.len() * 9 / 10]);
        assert!(median <= 0.15 && nine_of_ten <= 0.30, "{median} {nine_of_ten} {errors:?}");
    }

    #[test]
    fn published_ratios_are_simulated_without_fitting() {
        let scenario = read("lustre-ost.toml");
        assert!(scenario.fitted.is_empty());
        let rows = simulate("lustre-ost.toml", |_| true);
        // Large writes wait for the array, whatever the path to it.
        let [sq, mq] = [&rows[0], &rows[1]].map(|r| figure(r, "ost.lat_us"));
        assert!((mq / sq - 1.0).abs() < 0.01, "{sq} {mq}");
        let all = over_rows(&scenario, &rows);
        assert_eq!(all.len(), 2);
        for over in &all {
            assert!(over.is_within(), "{over:#?}");
        }
        // The gain is largest where the old path just saturates the CPUs, and nothing is lost anywhere.
        let lat = all.iter().find(|o| o.name == "ost.lat_us").expect("asked for");
        assert!(lat.least.ratio > 0.80 && lat.most.ratio < 1.01, "{lat:#?}");
        let row = scenario.row.iter().find(|r| r.name == lat.least.row).expect("its row");
        let full = rows.iter().find(|r| Some(&r.name) == row.against.as_ref()).expect("the row it is put against");
        assert!(figure(full, "cpu.idle_pct") < 5.0, "{lat:#?}");
    }
}
