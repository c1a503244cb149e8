// SPDX-License-Identifier: Apache-2.0 OR MIT
//! fio's text layout (`--output-format=normal`), as fio 3.33 prints it.
//!
//! Guarantees: the same figures give the same characters as in fio 3.33 (tests/it/fio_parity.rs converts fio's own JSON and
//! compares the result with fio's own text). Does not: print the lines above the report (job list, progress), cachehit
//! and block life times.

use std::fmt::Write;

use workload::stats::{BATCH_NAMES, DEPTH_CLASSES, DEPTH_NAMES, Dir, LAT_MS_NAMES, LAT_NS_NAMES, LAT_US_NAMES};

use super::fio_model::{DirReport, DiskUtil, FioReport, GroupDir, JobReport, LatReport, RateReport};
use super::num::{self, LATENCY_DIGITS, RATE_DIGITS, Scale};
use super::steady_state;

/// The whole report: jobs, groups, disks, CPU idleness.
pub fn report(r: &FioReport) -> String {
    let mut out = String::new();
    for job in &r.jobs {
        self::job(&mut out, job, r.unix_ms);
    }
    for group in r.groups() {
        let _ = writeln!(out, "\nRun status group {group} (all jobs):");
        for dir in Dir::ALL {
            if let Some(g) = r.group_dir(group, dir) {
                group_line(&mut out, dir, &g);
            }
        }
    }
    if !r.disk_util.is_empty() {
        out.push_str("\nDisk stats (read/write):\n");
        for d in &r.disk_util {
            disk_line(&mut out, d);
        }
    }
    if let Some(idle) = &r.cpu_idleness {
        let _ = writeln!(out, "\nCPU idleness:\n  system: {:.2}%", idle.system);
        if !idle.percpu.is_empty() {
            let cpus: Vec<String> = idle.percpu.iter().map(|(_, percent)| format!("{percent:.2}%")).collect();
            let _ = writeln!(out, "  percpu: {}", cpus.join(", "));
        }
    }
    out
}

// Writing to a String cannot fail, so the results of write! are dropped throughout.

/// One job's block.
pub fn job(out: &mut String, j: &JobReport, unix_ms: u64) {
    // fio prints nothing for a job that did no I/O at all.
    if j.dirs.iter().all(|d| d.io_bytes == 0 && d.total_ios == 0) {
        return;
    }
    let error = if j.error == 0 { String::new() } else { format!(" ({})", j.error_text) };
    let date = num::ctime(unix_ms / 1000);
    let _ = writeln!(
        out,
        "{}: (groupid={}, jobs={}): err={:2}{error}: pid={}: {date}",
        j.name, j.group_id, j.members, j.error, j.pid
    );
    if !j.description.is_empty() {
        let _ = writeln!(out, "  Description  : [{}]", j.description);
    }
    for dir in Dir::ALL {
        let d = j.dir(dir);
        if d.io_bytes > 0 && d.runtime_ms > 0 {
            direction(out, dir, d, j.prios_are_total);
        }
    }
    table_lines(out, "nsec", &LAT_NS_NAMES, &j.latency_ns);
    table_lines(out, "usec", &LAT_US_NAMES, &j.latency_us);
    table_lines(out, "msec", &LAT_MS_NAMES, &j.latency_ms);
    if j.sync_lat.n > 0 {
        out.push_str("  fsync/fdatasync/sync_file_range:\n");
        latency_line(out, "sync", &j.sync_lat);
        percentile_lines(out, "sync", &j.sync_lat);
    }
    tail(out, j);
}

/// Prints the lines from `cpu` on.
fn tail(out: &mut String, j: &JobReport) {
    let _ = writeln!(
        out,
        "  cpu          : usr={:.2}%, sys={:.2}%, ctx={}, majf={}, minf={}",
        j.usr_cpu, j.sys_cpu, j.ctx, j.majf, j.minf
    );
    classes(out, "  IO depths    : ", &DEPTH_NAMES, &j.iodepth_level);
    classes(out, "     submit    : ", &BATCH_NAMES, &j.iodepth_submit);
    classes(out, "     complete  : ", &BATCH_NAMES, &j.iodepth_complete);
    let of = |f: fn(&DirReport) -> u64| j.dirs.iter().map(|d| f(d).to_string()).collect::<Vec<_>>().join(",");
    let (total, short, dropped) = (of(|d| d.total_ios), of(|d| d.short_ios), of(|d| d.drop_ios));
    let _ = writeln!(out, "     issued rwts: total={total},{} short={short},0 dropped={dropped},0", j.sync_ios);
    if let Some((total, first, text)) = &j.errors {
        let _ = writeln!(out, "     errors    : total={total}, first_error={first}/<{text}>");
    }
    if j.latency_depth > 0 {
        let (target, window, percentile) =
            j.latency_goal.map_or((0, 0, 100.0), |goal| (goal.target_ns, goal.window_ns / 1000, goal.percentile));
        let depth = j.latency_depth;
        let _ = writeln!(
            out,
            "     latency   : target={target}, window={window}, percentile={percentile:.2}%, depth={depth}"
        );
    }
    out.extend(j.steady.as_ref().map(steady_state::line));
}

fn direction(out: &mut String, dir: Dir, d: &DirReport, prios_are_total: bool) {
    let (bw, iops) = (d.bw_bytes(), num::short(d.iops_whole(), RATE_DIGITS, Scale::Decimal, ""));
    let resets = if dir == Dir::Write { "; 0 zone resets" } else { "" };
    let _ = writeln!(
        out,
        "  {}: IOPS={iops}, BW={} ({})({}/{}msec){resets}",
        dir.name(),
        num::bytes_per_second(bw, Scale::Binary),
        num::bytes_per_second(bw, Scale::Decimal),
        num::bytes(d.io_bytes, Scale::Binary),
        d.runtime_ms
    );
    latency_line(out, "slat", &d.slat);
    latency_line(out, "clat", &d.clat);
    latency_line(out, " lat", &d.lat);
    let kind = if prios_are_total { "lat" } else { "clat" };
    let all: u64 = if prios_are_total { d.lat.n } else { d.clat.n };
    for p in &d.prios {
        latency_line(out, &format!("{kind} prio {}/{}", p.class, p.level), &p.lat);
    }
    percentile_lines(out, "slat", &d.slat);
    percentile_lines(out, "clat", &d.clat);
    percentile_lines(out, "lat", &d.lat);
    for p in &d.prios {
        let share = 100.0 * p.lat.n as f64 / all as f64;
        percentile_lines(out, &format!("{kind} prio {}/{} ({share:.2}% of IOs)", p.class, p.level), &p.lat);
    }
    bandwidth_samples(out, &d.bw, d.bw_agg);
    if d.iops.samples > 0 {
        let RateReport { min, max, mean, stddev, samples } = d.iops;
        let _ = writeln!(
            out,
            "   iops        : min={min:5}, max={max:5}, avg={mean:5.2}, stdev={stddev:5.2}, samples={samples}"
        );
    }
}

/// Prints a latency line. As in fio, a larger unit is used if the minimum is above 2000, the maximum above 99,999 and the
/// deviation above 1000.
fn latency_line(out: &mut String, name: &str, l: &LatReport) {
    if l.n == 0 {
        return;
    }
    let (unit, divisor) = match (l.min, l.max, l.stddev) {
        (min, max, dev) if min > 2_000_000 && max > 99_999_999 && dev > 1_000_000.0 => ("msec", 1_000_000),
        (min, max, dev) if min > 2_000 && max > 99_999 && dev > 1_000.0 => ("usec", 1_000),
        _ => ("nsec", 1),
    };
    let whole = |ns: u64| num::short(ns / divisor, LATENCY_DIGITS, Scale::Decimal, "");
    let (mean, dev) = (l.mean / divisor as f64, l.stddev / divisor as f64);
    let (min, max) = (whole(l.min), whole(l.max));
    let _ = writeln!(out, "    {name} ({unit}): min={min}, max={max}, avg={mean:5.2}, stdev={dev:5.2}");
}

/// Width of the percentile table, and its indent.
const PERCENTILE_LINE: usize = 80 - 7;

fn percentile_lines(out: &mut String, name: &str, l: &LatReport) {
    let (Some(min), Some(max)) = (l.percentiles.iter().map(|p| p.1).min(), l.percentiles.iter().map(|p| p.1).max())
    else {
        return;
    };
    let (unit, thousands) = match (min, max) {
        (min, max) if min > 2_000_000 && max > 99_999_999 => ("msec", 2),
        (min, max) if min > 2_000 && max > 99_999 => ("usec", 1),
        _ => ("nsec", 0),
    };
    let _ = write!(out, "    {name} percentiles ({unit}):\n     |");
    let width = (max / 1000u64.pow(thousands)).to_string().len().max(5);
    let digits = precision(&l.percentiles);
    let per_line = PERCENTILE_LINE / (10 + digits + width);
    let (last, head) = (l.percentiles.len() - 1, digits + 3);
    for (i, (percent, ns)) in l.percentiles.iter().enumerate() {
        let value = (0..thousands).fold(*ns, |v, _| v.div_ceil(1000));
        let _ = write!(out, " {percent:head$.digits$}th=[{value:width$}]");
        match i {
            _ if i == last => out.push('\n'),
            _ if i % per_line == per_line - 1 => out.push_str(",\n     |"),
            _ => out.push(','),
        }
    }
}

/// Returns the decimals that the percentages of a list need, the same for all of them. fio always prints six in its JSON.
fn precision(percentiles: &[(f64, u64)]) -> usize {
    let decimals = |p: f64| format!("{p:.6}").trim_end_matches('0').split('.').nth(1).map_or(0, str::len);
    percentiles.iter().map(|p| decimals(p.0)).max().unwrap_or(0)
}

fn bandwidth_samples(out: &mut String, bw: &RateReport, share: f64) {
    if bw.samples == 0 {
        return;
    }
    let (unit, divisor) = if bw.mean > 1024.0 * 1024.0 { ("MiB", 1024) } else { ("KiB", 1) };
    let (min, max) = (bw.min / divisor, bw.max / divisor);
    let (mean, dev) = (bw.mean / divisor as f64, bw.stddev / divisor as f64);
    let _ = writeln!(
        out,
        "   bw ({unit:>5}/s): min={min:5}, max={max:5}, per={share:.2}%, avg={mean:5.2}, stdev={dev:5.2}, samples={}",
        bw.samples
    );
}

/// Non-empty classes of a latency table, five to a line.
fn table_lines(out: &mut String, unit: &str, names: &[&str], percent: &[f64]) {
    let shown: Vec<String> =
        names.iter().zip(percent).filter(|(_, p)| **p > 0.0).map(|(n, p)| format!("{n}={p:.2}%")).collect();
    for line in shown.chunks(5) {
        let _ = writeln!(out, "  lat ({unit})   : {}", line.join(", "));
    }
}

fn classes(out: &mut String, head: &str, names: &[&str; DEPTH_CLASSES], percent: &[f64; DEPTH_CLASSES]) {
    let list: Vec<String> = names.iter().zip(percent).map(|(n, p)| format!("{n}={p:.1}%")).collect();
    let _ = writeln!(out, "{head}{}", list.join(", "));
}

fn group_line(out: &mut String, dir: Dir, g: &GroupDir) {
    let bw = |v, scale| num::bytes_per_second(v, scale);
    let name = dir.name().to_uppercase();
    let _ = writeln!(
        out,
        "{name:>7}: bw={} ({}), {}-{} ({}-{}), io={} ({}), run={}-{}msec",
        bw(g.bw, Scale::Binary),
        bw(g.bw, Scale::Decimal),
        bw(g.job_bw.0, Scale::Binary),
        bw(g.job_bw.1, Scale::Binary),
        bw(g.job_bw.0, Scale::Decimal),
        bw(g.job_bw.1, Scale::Decimal),
        num::bytes(g.io_bytes, Scale::Binary),
        num::bytes(g.io_bytes, Scale::Decimal),
        g.run_ms.0,
        g.run_ms.1
    );
}

fn disk_line(out: &mut String, d: &DiskUtil) {
    let pair = |p: [u64; 2]| format!("{}/{}", p[0], p[1]);
    let (ios, merges, ticks) = (pair(d.ios), pair(d.merges), pair(d.ticks));
    let _ = writeln!(
        out,
        "  {}: ios={ios}, merge={merges}, ticks={ticks}, in_queue={}, util={:.2}%",
        d.name, d.in_queue, d.util
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_without_io_prints_nothing() {
        assert_eq!(
            report(&FioReport { jobs: vec![JobReport::default()], ..FioReport::default() }),
            "\nRun status group 0 (all jobs):\n"
        );
    }

    #[test]
    fn units_change_at_fio_s_thresholds() {
        let line = |min, max, stddev| {
            let mut out = String::new();
            latency_line(&mut out, "clat", &LatReport { min, max, mean: 3e6, stddev, n: 2, ..LatReport::default() });
            out
        };
        assert!(line(2_000, 100_000, 5e3).contains("(nsec): min=2000, max=100000, avg=3000000.00, stdev=5000.00"));
        assert!(line(2_001, 100_000, 5e3).contains("(usec): min=2, max=100, avg=3000.00, stdev= 5.00"));
        assert!(line(2_001, 100_000, 999.0).contains("(nsec)"));
        assert!(line(2_000_001, 100_000_000, 2e6).contains("(msec): min=2, max=100, avg= 3.00, stdev= 2.00"));
    }

    #[test]
    fn percentiles_scale_up_and_wrap() {
        let mut out = String::new();
        let percentiles = vec![(50.0, 2_001_000), (99.0, 50_000_000), (99.99, 99_999_999_999)];
        percentile_lines(&mut out, "clat", &LatReport { percentiles, n: 1, ..LatReport::default() });
        assert_eq!(
            out, "    clat percentiles (msec):\n     | 50.00th=[    3], 99.00th=[   50], 99.99th=[100000]\n",
            "rounded up after the width was chosen, as fio does"
        );
    }

    #[test]
    fn an_error_names_itself() {
        let dir = DirReport { total_ios: 1, ..DirReport::default() };
        let j = JobReport {
            name: "w".into(),
            error: 28,
            error_text: "No space left on device".into(),
            members: 1,
            dirs: [DirReport::default(), dir, DirReport::default()],
            errors: Some((3, 28, "No space left on device".into())),
            ..JobReport::default()
        };
        let mut out = String::new();
        job(&mut out, &j, 0);
        assert!(
            out.starts_with("w: (groupid=0, jobs=1): err=28 (No space left on device): pid=0: Thu Jan  1"),
            "{out}"
        );
        assert!(out.contains("     errors    : total=3, first_error=28/<No space left on device>\n"), "{out}");
    }
}
