// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the measurements of job threads to fio's report.
//!
//! Guarantees: fio's rules for percentages (of completed I/Os; a class that is not empty shows at least 0.1 % or 0.01 %),
//! for run times (whole milliseconds, at least 1) and for groups. Needs from callers: the threads of one job, or of one
//! group under `group_reporting`. Does not: set the share of the group's bandwidth;
//! [`FioReport::fill_bw_agg`](super::fio_model::FioReport::fill_bw_agg) does that at the end.

use workload::job::LatencyGoal;
use workload::stats::{DEPTH_CLASSES, Dir, DirStats, JobStats, LatencyStats, PrioStats, RateSamples};
use workload::steady::SteadyReport;

use super::fio_model::{DirReport, JobReport, LatReport, PrioReport, RateReport};

/// fio's default `percentile_list`.
pub const FIO_PERCENTILES: [f64; 17] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];

/// Properties of a job that come from the job file, not from the measurement.
#[derive(Clone, Debug, Default)]
pub struct JobMeta<'a> {
    /// Job name.
    pub name: &'a str,
    /// `description`; empty for none.
    pub description: &'a str,
    /// Reporting group, from 0.
    pub group_id: u32,
    /// Process or thread id of the first member.
    pub pid: u32,
    /// Options as written, without those of `[global]`.
    pub options: &'a [(String, String)],
    /// Percentiles to report, ascending.
    pub percentile_list: &'a [f64],
    /// `iodepth`.
    pub iodepth: u32,
    /// `latency_target`.
    pub latency_goal: Option<LatencyGoal>,
    /// What `steadystate` has found.
    pub steady: Option<&'a SteadyReport>,
    /// Whether latencies per priority are total ones.
    pub lat_percentiles: bool,
    /// Whether the job has `continue_on_error`.
    pub continue_on_error: bool,
    /// Seconds since the program started, rounded up.
    pub elapsed_s: u64,
}

/// Makes the report of a job or group from the measurements of its members.
///
/// # Panics
/// When `members` is empty.
pub fn job_report(meta: &JobMeta<'_>, members: &[JobStats]) -> JobReport {
    let with_prios = members.iter().any(|m| m.prio != members[0].prio || m.dirs.iter().any(|d| !d.prios.is_empty()));
    let mut members_left = members.iter().map(|m| if with_prios { by_priority(m, meta) } else { m.clone() });
    let mut s = members_left.next().expect("a report needs at least one job thread");
    members_left.for_each(|m| s.merge(&m));
    let job_runtime_ms: u64 = members.iter().map(|m| whole_ms(m.runtime_ns, m.total_ios())).sum();
    let of_runtime = |ns: u64| if job_runtime_ms == 0 { 0.0 } else { ns as f64 / 1e4 / job_runtime_ms as f64 };
    let total = s.total_ios();
    JobReport {
        name: meta.name.to_owned(),
        description: meta.description.to_owned(),
        group_id: meta.group_id,
        members: u32::try_from(members.len()).unwrap_or(u32::MAX),
        error: s.first_error,
        error_text: errno_text(s.first_error),
        pid: meta.pid,
        options: meta.options.to_vec(),
        dirs: Dir::ALL.map(|d| direction(s.dir(d), meta.percentile_list)),
        sync_ios: s.sync.ios,
        sync_lat: latency(&s.sync.lat, meta.percentile_list),
        job_runtime_ms,
        elapsed_s: meta.elapsed_s,
        usr_cpu: of_runtime(s.cpu.usr_ns),
        sys_cpu: of_runtime(s.cpu.sys_ns),
        ctx: s.cpu.ctx,
        majf: s.cpu.majf,
        minf: s.cpu.minf,
        iodepth_level: percent::<DEPTH_CLASSES>(&s.depth, total, 0.1),
        iodepth_submit: percent(&s.submit, s.submit.iter().sum(), 0.1),
        iodepth_complete: percent(&s.complete, s.complete.iter().sum(), 0.1),
        latency_ns: percent(&s.lat_ns, total, 0.01),
        latency_us: percent(&s.lat_us, total, 0.01),
        latency_ms: percent(&s.lat_ms, total, 0.01),
        latency_depth: s.latency_depth.unwrap_or(meta.iodepth),
        latency_goal: meta.latency_goal,
        steady: meta.steady.cloned(),
        prios_are_total: meta.lat_percentiles,
        errors: meta.continue_on_error.then(|| (s.total_errors, s.first_error, errno_text(s.first_error))),
    }
}

fn direction(d: &DirStats, percentile_list: &[f64]) -> DirReport {
    DirReport {
        io_bytes: d.bytes,
        runtime_ms: whole_ms(d.runtime_ns, d.ios),
        total_ios: d.ios,
        short_ios: d.short_ios,
        drop_ios: d.drop_ios,
        slat: latency(&d.slat, percentile_list),
        clat: latency(&d.clat, percentile_list),
        lat: latency(&d.lat, percentile_list),
        bw: rate(&d.bw_kib),
        bw_agg: 0.0,
        iops: rate(&d.iops),
        prios: priorities(d, percentile_list),
    }
}

/// Returns the measurements with statistics per priority: those of a job without other priorities are all of its own.
fn by_priority(s: &JobStats, meta: &JobMeta<'_>) -> JobStats {
    let mut s = s.clone();
    for d in s.dirs.iter_mut().filter(|d| d.prios.is_empty()) {
        let lat = if meta.lat_percentiles { d.lat.clone() } else { d.clat.clone() };
        d.prios = vec![PrioStats { prio: s.prio, lat }];
    }
    s
}

fn priorities(d: &DirStats, percentile_list: &[f64]) -> Vec<PrioReport> {
    let used: Vec<&PrioStats> = d.prios.iter().filter(|p| p.lat.run.count() > 0).collect();
    let report = |p: &PrioStats| PrioReport {
        class: p.prio.class() as u8,
        level: p.prio.level(),
        lat: latency(&p.lat, percentile_list),
    };
    // As in fio, one priority alone is not told apart.
    if used.len() < 2 { Vec::new() } else { used.into_iter().map(report).collect() }
}

fn latency(l: &LatencyStats, percentile_list: &[f64]) -> LatReport {
    let hist = l.hist.as_deref().filter(|h| h.total() > 0);
    LatReport {
        min: l.run.min(),
        max: l.run.max(),
        mean: l.run.mean(),
        stddev: l.run.stdev(),
        n: l.run.count(),
        percentiles: hist
            .map(|h| percentile_list.iter().copied().zip(h.percentiles(percentile_list)).collect())
            .unwrap_or_default(),
        bins: hist.map(|h| h.bins().collect()).unwrap_or_default(),
    }
}

fn rate(r: &RateSamples) -> RateReport {
    RateReport { min: r.min, max: r.max, mean: r.mean, stddev: r.stdev(), samples: r.samples }
}

/// Returns the run time in whole milliseconds, as fio counts it. A direction with I/O ran for at least one.
fn whole_ms(ns: u64, ios: u64) -> u64 {
    (ns / 1_000_000).max(u64::from(ios > 0))
}

/// Share of each class in percent; a class that is not empty shows at least `floor`.
fn percent<const N: usize>(counts: &[u64; N], total: u64, floor: f64) -> [f64; N] {
    counts.map(|n| match (n, total) {
        (0, _) | (_, 0) => 0.0,
        _ => (100.0 * n as f64 / total as f64).max(floor),
    })
}

/// The system's text for an errno, without the number that Rust appends; `Success` for 0.
fn errno_text(errno: i32) -> String {
    if errno == 0 {
        return "Success".to_owned();
    }
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use workload::stats::Percentiles;

    fn member(ios: u64, runtime_ns: u64) -> JobStats {
        let mut s = JobStats::new(&[Dir::Read], Percentiles::default(), false);
        s.runtime_ns = runtime_ns;
        s.cpu.usr_ns = runtime_ns / 2;
        let d = &mut s.dirs[0];
        (d.ios, d.bytes, d.runtime_ns) = (ios, ios * 512, runtime_ns);
        for i in 0..ios {
            d.clat.record(100 + i);
        }
        s.depth[0] = ios;
        s.lat_ns[5] = ios;
        s
    }

    #[test]
    fn a_group_sums_ios_and_run_times() {
        let meta = JobMeta { name: "g", percentile_list: &FIO_PERCENTILES, iodepth: 4, ..JobMeta::default() };
        let r = job_report(&meta, &[member(10, 1_000_000_000), member(30, 2_000_999_999)]);
        assert_eq!((r.members, r.job_runtime_ms, r.dirs[0].runtime_ms, r.dirs[0].total_ios), (2, 3000, 2000, 40));
        assert!((r.usr_cpu - 50.0).abs() < 0.1 && r.iodepth_level[0] == 100.0 && r.latency_ns[5] == 100.0);
        assert_eq!((r.dirs[0].clat.n, r.dirs[0].clat.percentiles.len()), (40, 17));
        assert_eq!(r.dirs[0].clat.bins.iter().map(|b| b.1).sum::<u64>(), 40);
        assert!(r.dirs[0].lat.percentiles.is_empty() && r.dirs[1].clat.n == 0 && r.errors.is_none());
    }

    #[test]
    fn rare_classes_are_shown_and_empty_ones_are_not() {
        assert_eq!(percent(&[0, 1, 999_999], 1_000_000, 0.1), [0.0, 0.1, 99.9999]);
        assert_eq!(percent(&[3, 0, 0], 0, 0.1), [0.0; 3]);
    }

    #[test]
    fn a_run_under_a_millisecond_still_has_a_rate() {
        let r = job_report(&JobMeta::default(), &[member(5, 400_000)]);
        assert_eq!((r.dirs[0].runtime_ms, r.dirs[0].iops_whole(), r.job_runtime_ms), (1, 5000, 1));
        assert_eq!(job_report(&JobMeta::default(), &[JobStats::default()]).job_runtime_ms, 0);
    }

    #[test]
    fn errors_have_fio_s_words() {
        assert_eq!((errno_text(0).as_str(), errno_text(28).as_str()), ("Success", "No space left on device"));
        let mut s = member(1, 1);
        s.count_error(5);
        let meta = JobMeta { continue_on_error: true, ..JobMeta::default() };
        let r = job_report(&meta, &[s]);
        assert_eq!((r.error, r.errors), (5, Some((1, 5, "Input/output error".to_owned()))));
    }
}
