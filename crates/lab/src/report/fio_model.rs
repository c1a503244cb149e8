// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What fio reports about a run, as data in fio's units: the common source of the text, JSON and terse layouts.
//!
//! Guarantees: holds finished figures (percentages, percentiles), so that text and JSON of one report cannot disagree.
//! Needs from callers: figures computed by fio's rules; [`super::from_stats`] does so from what job threads measured.
//! Does not: cover unified read/write reporting and block life times.

use workload::job::LatencyGoal;
use workload::stats::{DEPTH_CLASSES, Dir};
use workload::steady::SteadyReport;

/// Latency statistics in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LatReport {
    /// Smallest.
    pub min: u64,
    /// Largest.
    pub max: u64,
    /// Mean.
    pub mean: f64,
    /// Sample standard deviation.
    pub stddev: f64,
    /// Samples.
    pub n: u64,
    /// (percent, nanoseconds), ascending; empty when percentiles are not wanted for this latency.
    pub percentiles: Vec<(f64, u64)>,
    /// (nanoseconds the bucket stands for, count) of the histogram behind the percentiles, ascending.
    pub bins: Vec<(u64, u64)>,
}

/// Rate samples over intervals.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RateReport {
    /// Lowest sample.
    pub min: u64,
    /// Highest sample.
    pub max: u64,
    /// Mean.
    pub mean: f64,
    /// Sample standard deviation.
    pub stddev: f64,
    /// Number of samples.
    pub samples: u64,
}

/// The I/Os of one priority.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PrioReport {
    /// 0 none, 1 real time, 2 best effort, 3 idle.
    pub class: u8,
    /// 0 (highest) to 7.
    pub level: u8,
    /// Completion latency, or total latency with `lat_percentiles`.
    pub lat: LatReport,
}

/// One direction of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DirReport {
    /// Bytes moved.
    pub io_bytes: u64,
    /// How long this direction ran, milliseconds.
    pub runtime_ms: u64,
    /// I/Os completed.
    pub total_ios: u64,
    /// Short I/Os.
    pub short_ios: u64,
    /// I/Os given up.
    pub drop_ios: u64,
    /// Submission latency.
    pub slat: LatReport,
    /// Completion latency.
    pub clat: LatReport,
    /// Total latency.
    pub lat: LatReport,
    /// Bandwidth samples in KiB/s.
    pub bw: RateReport,
    /// Mean bandwidth in percent of the group's; 0 without samples.
    pub bw_agg: f64,
    /// IOPS samples.
    pub iops: RateReport,
    /// Those with I/Os, if they are at least two.
    pub prios: Vec<PrioReport>,
}

impl DirReport {
    /// Bytes per second over the run time, rounded down.
    pub fn bw_bytes(&self) -> u64 {
        per_second(self.io_bytes, self.runtime_ms)
    }

    /// I/Os per second over the run time, rounded down.
    pub fn iops_whole(&self) -> u64 {
        per_second(self.total_ios, self.runtime_ms)
    }

    /// I/Os per second over the run time.
    pub fn iops_exact(&self) -> f64 {
        if self.runtime_ms == 0 { 0.0 } else { 1000.0 * self.total_ios as f64 / self.runtime_ms as f64 }
    }
}

/// `count` per second over `ms`, rounded down; 0 for no time.
pub(crate) fn per_second(count: u64, ms: u64) -> u64 {
    let rate = (u128::from(count) * 1000).checked_div(u128::from(ms)).unwrap_or(0);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// A job, or with `group_reporting` all jobs of a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobReport {
    /// Job name.
    pub name: String,
    /// The job's `description`; empty for none.
    pub description: String,
    /// Reporting group, from 0.
    pub group_id: u32,
    /// Jobs summed up here.
    pub members: u32,
    /// errno of the first failure; 0 for none.
    pub error: i32,
    /// What `error` means; empty for none.
    pub error_text: String,
    /// Process (or thread) id.
    pub pid: u32,
    /// Options as written in the job file, without those of `[global]`.
    pub options: Vec<(String, String)>,
    /// Read, write, trim.
    pub dirs: [DirReport; Dir::COUNT],
    /// Flushes completed.
    pub sync_ios: u64,
    /// Their latency.
    pub sync_lat: LatReport,
    /// Run time summed over the members, milliseconds.
    pub job_runtime_ms: u64,
    /// Seconds since the start of the program, rounded up.
    pub elapsed_s: u64,
    /// User CPU in percent of `job_runtime_ms`.
    pub usr_cpu: f64,
    /// System CPU in percent of `job_runtime_ms`.
    pub sys_cpu: f64,
    /// Context switches.
    pub ctx: u64,
    /// Major page faults.
    pub majf: u64,
    /// Minor page faults.
    pub minf: u64,
    /// Percent of I/Os issued at each depth.
    pub iodepth_level: [f64; DEPTH_CLASSES],
    /// Percent of submissions by batch size.
    pub iodepth_submit: [f64; DEPTH_CLASSES],
    /// Percent of reaps by completions found.
    pub iodepth_complete: [f64; DEPTH_CLASSES],
    /// Percent of completion latencies below 1 us.
    pub latency_ns: [f64; 10],
    /// Percent of completion latencies below 1 ms.
    pub latency_us: [f64; 10],
    /// Percent of completion latencies from 1 ms.
    pub latency_ms: [f64; 12],
    /// Queue depth of the job, or the one that `latency_target` has found.
    pub latency_depth: u32,
    /// `latency_target`.
    pub latency_goal: Option<LatencyGoal>,
    /// `steadystate`.
    pub steady: Option<SteadyReport>,
    /// [`PrioReport::lat`] is total latency.
    pub prios_are_total: bool,
    /// (all errors, first errno, its text) for a job with `continue_on_error`.
    pub errors: Option<(u64, i32, String)>,
}

impl JobReport {
    /// One direction.
    pub fn dir(&self, dir: Dir) -> &DirReport {
        &self.dirs[dir as usize]
    }
}

/// What /proc/diskstats counted for a device over the run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiskUtil {
    /// Device name.
    pub name: String,
    /// Reads and writes completed.
    pub ios: [u64; 2],
    /// Reads and writes merged.
    pub merges: [u64; 2],
    /// Milliseconds of reads and writes, summed over requests.
    pub ticks: [u64; 2],
    /// Milliseconds in the queue, weighted.
    pub in_queue: u64,
    /// Percent of the time the device was busy.
    pub util: f64,
}

/// A whole report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FioReport {
    /// The `fio version` string, see [`version`].
    pub version: String,
    /// Wall clock at the end, milliseconds since 1970.
    pub unix_ms: u64,
    /// Options of `[global]`.
    pub global_options: Vec<(String, String)>,
    /// Jobs in order of their groups.
    pub jobs: Vec<JobReport>,
    /// Devices below the job's files; empty when none is a real one.
    pub disk_util: Vec<DiskUtil>,
    /// With `--idle-prof`: how idle the host was.
    pub cpu_idleness: Option<CpuIdleness>,
}

/// How idle the CPUs of the host were during a run, in percent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuIdleness {
    /// Mean over all CPUs.
    pub system: f64,
    /// Each CPU's number and idleness; empty if not wanted.
    pub percpu: Vec<(u32, f64)>,
}

/// The `fio version` that our reports carry: the release whose layout they follow, then the program that wrote them. The form
/// is that of fio's own development versions, so scripts that cut out `3.33` still can.
pub fn version() -> String {
    concat!("fio-3.33-mqblk-", env!("CARGO_PKG_VERSION")).to_owned()
}

/// Totals of one direction over a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupDir {
    /// Bytes moved.
    pub io_bytes: u64,
    /// Bandwidth of the group, bytes per second over its longest run.
    pub bw: u64,
    /// Lowest and highest bandwidth of a job.
    pub job_bw: (u64, u64),
    /// Shortest and longest run, milliseconds.
    pub run_ms: (u64, u64),
}

impl FioReport {
    /// Group ids in the order they are reported.
    pub fn groups(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.jobs.iter().map(|j| j.group_id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Totals of a direction over a group; `None` when no job of it ran that direction.
    pub fn group_dir(&self, group: u32, dir: Dir) -> Option<GroupDir> {
        let ran: Vec<&DirReport> =
            self.jobs.iter().filter(|j| j.group_id == group).map(|j| j.dir(dir)).filter(|d| d.runtime_ms > 0).collect();
        let io_bytes = ran.iter().map(|d| d.io_bytes).sum();
        let run_ms = (ran.iter().map(|d| d.runtime_ms).min()?, ran.iter().map(|d| d.runtime_ms).max()?);
        let job_bw = (ran.iter().map(|d| d.bw_bytes()).min()?, ran.iter().map(|d| d.bw_bytes()).max()?);
        Some(GroupDir { io_bytes, bw: per_second(io_bytes, run_ms.1), job_bw, run_ms })
    }

    /// Sets [`DirReport::bw_agg`] of all jobs from the groups' bandwidths, by fio's rule: whole KiB/s of the mean sample against the group's
    /// bandwidth, at most 100 %, and 100 % for a group below 1 KiB/s.
    pub fn fill_bw_agg(&mut self) {
        for i in 0..self.jobs.len() {
            for dir in Dir::ALL {
                let group = self.group_dir(self.jobs[i].group_id, dir);
                let d = &mut self.jobs[i].dirs[dir as usize];
                d.bw_agg = match group {
                    _ if d.bw.samples == 0 => 0.0,
                    Some(g) if g.bw > 1024 => (d.bw.mean.trunc() * 100.0 / (g.bw as f64 / 1024.0)).min(100.0),
                    _ => 100.0,
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(group_id: u32, io_bytes: u64, runtime_ms: u64) -> JobReport {
        let bw =
            RateReport { mean: per_second(io_bytes, runtime_ms) as f64 / 1024.0, samples: 1, ..RateReport::default() };
        let dir = DirReport { io_bytes, runtime_ms, total_ios: io_bytes / 4096, bw, ..DirReport::default() };
        JobReport { group_id, dirs: [dir, DirReport::default(), DirReport::default()], ..JobReport::default() }
    }

    #[test]
    fn groups_sum_bytes_and_take_the_longest_run() {
        let mut r = FioReport {
            jobs: vec![job(0, 4_096_000, 1000), job(0, 8_192_000, 2000), job(2, 0, 0)],
            ..FioReport::default()
        };
        assert_eq!(r.groups(), [0, 2]);
        let g = r.group_dir(0, Dir::Read).unwrap();
        assert_eq!(
            (g.io_bytes, g.bw, g.job_bw, g.run_ms),
            (12_288_000, 6_144_000, (4_096_000, 4_096_000), (1000, 2000))
        );
        assert_eq!((r.group_dir(2, Dir::Read), r.group_dir(0, Dir::Write)), (None, None));
        r.fill_bw_agg();
        assert!((r.jobs[0].dirs[0].bw_agg - 66.666).abs() < 0.001);
        assert_eq!(r.jobs[2].dirs[0].bw_agg, 100.0, "a group without bandwidth");
        assert_eq!(r.jobs[0].dirs[1].bw_agg, 0.0, "no samples");
    }

    #[test]
    fn no_time_means_no_rate() {
        let d = DirReport { total_ios: 5, io_bytes: 5, ..DirReport::default() };
        assert_eq!((d.bw_bytes(), d.iops_whole(), d.iops_exact()), (0, 0, 0.0));
        assert_eq!(per_second(u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn a_script_that_cuts_out_fio_s_version_still_can() {
        assert_eq!(version()[4..].split('-').next(), Some("3.33"));
    }
}
