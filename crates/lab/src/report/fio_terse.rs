// SPDX-License-Identifier: Apache-2.0 OR MIT
//! fio's terse layout (`--minimal`, `--output-format=terse`): one line of fields separated by `;` for each job or group.
//!
//! Guarantees: fields, order and number format of fio 3.33 for the versions 2 to 5 (tests/it/fio_parity.rs compares with the
//! installed fio). Times are in microseconds, sizes in KiB, bandwidths in KiB/s. Source: fio HOWTO, "Terse output".

use super::fio_model::{DirReport, DiskUtil, FioReport, JobReport, LatReport};
use std::fmt::{self, Display};
use std::ops::RangeInclusive;
use workload::stats::Dir;

/// The versions of the layout.
pub const VERSIONS: RangeInclusive<u32> = 2..=5;
/// Percentiles in each line; those that a job does not list are `0%=0`.
const PERCENTILES: usize = 20;

/// The lines of a report.
pub fn render(r: &FioReport, version: u32) -> String {
    r.jobs.iter().map(|job| format!("{}\n", Line { report: r, job, version })).collect()
}

struct Line<'a> {
    report: &'a FioReport,
    job: &'a JobReport,
    version: u32,
}

impl Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (job, version) = (self.job, self.version);
        write!(f, "{version}")?;
        if version > 2 {
            write!(f, ";{}", self.report.version)?;
        }
        write!(f, ";{};{};{}", job.name, job.group_id, job.error)?;
        for dir in Dir::ALL.into_iter().filter(|&d| d != Dir::Trim || version != 3) {
            self.direction(f, job.dir(dir))?;
        }
        write!(f, ";{:.6}%;{:.6}%;{};{};{}", job.usr_cpu, job.sys_cpu, job.ctx, job.majf, job.minf)?;
        job.iodepth_level.iter().try_for_each(|share| write!(f, ";{share:.1}%"))?;
        // This layout is older than latencies below a microsecond.
        let below_us: f64 = job.latency_ns.iter().sum();
        write!(f, ";{:.2}%", (job.latency_us[0] + below_us).min(100.0))?;
        job.latency_us[1..].iter().chain(&job.latency_ms).try_for_each(|share| write!(f, ";{share:.2}%"))?;
        if version > 2 {
            self.report.disk_util.iter().try_for_each(|disk| write!(f, "{}", Disk(disk)))?;
        }
        if let Some((all, first, _)) = &job.errors {
            write!(f, ";{all};{first}")?;
        }
        if !job.description.is_empty() {
            let line_of_its_own = if version == 2 { "\n" } else { "" };
            write!(f, "{line_of_its_own};{}", job.description)?;
        }
        Ok(())
    }
}

impl Line<'_> {
    fn direction(&self, f: &mut fmt::Formatter<'_>, d: &DirReport) -> fmt::Result {
        let bw = d.bw_bytes() / 1024;
        write!(
            f,
            ";{};{bw};{};{}{}{}",
            d.io_bytes / 1024,
            d.iops_whole(),
            d.runtime_ms,
            Spread(&d.slat),
            Spread(&d.clat)
        )?;
        self.percentiles(f, d)?;
        let bw = &d.bw;
        write!(f, "{};{};{};{:.6}%;{:.6};{:.6}", Spread(&d.lat), bw.min, bw.max, d.bw_agg, bw.mean, bw.stddev)?;
        if self.version == 5 {
            let iops = &d.iops;
            write!(
                f,
                ";{};{};{};{:.6};{:.6};{}",
                bw.samples, iops.min, iops.max, iops.mean, iops.stddev, iops.samples
            )?;
        }
        Ok(())
    }

    /// Percentiles of the total latency if the job wants them, else of the completion latency.
    fn percentiles(&self, f: &mut fmt::Formatter<'_>, d: &DirReport) -> fmt::Result {
        let lists = |of: fn(&DirReport) -> &LatReport| self.job.dirs.iter().map(of).find(|l| !l.percentiles.is_empty());
        let of: fn(&DirReport) -> &LatReport = if lists(|d| &d.lat).is_some() { |d| &d.lat } else { |d| &d.clat };
        let listed = lists(of).map_or(&[][..], |l| &l.percentiles);
        let own = &of(d).percentiles;
        for n in 0..PERCENTILES {
            match listed.get(n) {
                Some((percent, _)) => write!(f, ";{percent:.6}%={}", own.get(n).map_or(0, |(_, ns)| ns / 1000))?,
                None => f.write_str(";0%=0")?,
            }
        }
        Ok(())
    }
}

/// Minimum, maximum, mean and deviation.
struct Spread<'a>(&'a LatReport);

impl Display for Spread<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let l = self.0;
        write!(f, ";{};{};{:.6};{:.6}", l.min / 1000, l.max / 1000, l.mean / 1000.0, l.stddev / 1000.0)
    }
}

struct Disk<'a>(&'a DiskUtil);

impl Display for Disk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let d = self.0;
        write!(f, ";{}", d.name)?;
        d.ios.iter().chain(&d.merges).chain(&d.ticks).try_for_each(|n| write!(f, ";{n}"))?;
        write!(f, ";{};{:.2}%", d.in_queue, d.util)
    }
}
