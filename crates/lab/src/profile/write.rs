// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes a profile as a job file, and its figures of the disk as lines of a machine file.
//!
//! Guarantees: the readers of such files can read both back. An existing machine file keeps its comments and all values
//! that a profile does not know.

use super::service::Estimate;
use super::shape::{Arrival, DirProfile};
use super::{JobProfile, Profile};
use std::fmt::Write;
use workload::job::BLOCK_BYTES_MAX;

/// A job is called sequential from this share of sequential I/Os on.
const SEQUENTIAL: f64 = 0.95;
/// Maximum number of sizes that a `bssplit` names.
const SIZES_MAX: usize = 16;

/// Returns the job file, which fio reads as well. The target comes from `--target` or a `filename`.
pub fn job_file(p: &Profile) -> String {
    let device = p.device.as_ref().map_or(String::new(), |d| format!(", device {d}"));
    let mut out = format!("# Profile of {}{device}: {:.3} s.\n", one_line(&p.source), p.seconds);
    for note in &p.notes {
        let _ = writeln!(out, "# note: {note}.");
    }
    if p.jobs.iter().all(|j| j.options.is_empty()) {
        let _ = writeln!(
            out,
            "\n[global]\nioengine=io_uring\ndirect=1\nnorandommap\ntime_based\nruntime={}",
            p.seconds.round().max(1.0)
        );
    }
    p.jobs.iter().for_each(|j| job(&mut out, j));
    out
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn job(out: &mut String, j: &JobProfile) {
    let (iops, lat) = (j.iops(), j.lat_us());
    let _ = writeln!(
        out,
        "\n# {iops:.0} I/Os per second, {lat:.1} us each; in flight {:.2} of iodepth={}, numjobs={}",
        j.in_flight, j.iodepth, j.numjobs
    );
    for (name, d) in [("read", &j.read), ("write", &j.write), ("trim", &j.trim)] {
        if let Some(d) = d {
            let _ = writeln!(
                out,
                "# {name}: {} I/Os, {:.1} % in order, {:.1} us each",
                d.ios,
                100.0 * d.sequential,
                d.lat_us
            );
        }
    }
    let _ = writeln!(out, "[{}]", j.name);
    if !j.options.is_empty() {
        for (key, value) in &j.options {
            let _ = if value.is_empty() { writeln!(out, "{key}") } else { writeln!(out, "{key}={value}") };
        }
        return;
    }
    lines(j).iter().for_each(|l| {
        let _ = writeln!(out, "{l}");
    });
}

fn lines(j: &JobProfile) -> Vec<String> {
    let (read, write) = (j.read.as_ref(), j.write.as_ref());
    let dirs: Vec<&DirProfile> = j.dirs().collect();
    let sequential = dirs.iter().all(|d| d.sequential >= SEQUENTIAL);
    let what = match (read, write, &j.trim) {
        (_, _, Some(_)) => "trim",
        (Some(_), Some(_), _) => "rw",
        (Some(_), None, _) => "read",
        _ => "write",
    };
    let mut lines = vec![format!("rw={}{what}", if sequential { "" } else { "rand" })];
    if let (Some(r), Some(w)) = (read, write) {
        let pct = (100.0 * r.ios as f64 / (r.ios + w.ios) as f64).round();
        lines.push(format!("rwmixread={pct}"));
    }
    if !sequential && dirs.iter().any(|d| d.sequential > 1.0 - SEQUENTIAL) {
        let random = |d: Option<&DirProfile>| d.map_or(100, |d| 100 - (100.0 * d.sequential).round() as u32);
        lines.push(match &j.trim {
            Some(t) => format!("percentage_random=100,100,{}", random(Some(t))),
            None => format!("percentage_random={},{}", random(read), random(write)),
        });
    }
    lines.extend(sizes(j));
    lines.push(format!("offset={}", j.offset_bytes));
    let largest = dirs.iter().flat_map(|d| block_sizes(d)).map(|(bytes, _)| u64::from(bytes)).max();
    lines.push(format!("size={}", j.size_bytes.max(largest.unwrap_or(512))));
    lines.push(format!("iodepth={}", j.iodepth));
    if j.batch > 1 {
        lines.push(format!("iodepth_batch_submit={}", j.batch));
    }
    if j.numjobs > 1 {
        lines.push(format!("numjobs={}", j.numjobs));
    }
    match j.arrival {
        Arrival::Closed => {}
        Arrival::Think { us } => lines.push(format!("thinktime={}us", us.round())),
        Arrival::Open { poisson } => {
            let each = |d: Option<&DirProfile>| d.map_or(0.0, |d| (d.iops / f64::from(j.numjobs)).round().max(1.0));
            lines.push(format!("rate_iops={},{},{}", each(read), each(write), each(j.trim.as_ref())));
            if poisson {
                lines.push("rate_process=poisson".into());
            }
        }
    }
    if let Some(n) = j.fsync {
        lines.push(format!("fdatasync={n}"));
    }
    lines
}

/// `bs`, or `bssplit` if there are several sizes; by direction.
fn sizes(j: &JobProfile) -> Vec<String> {
    let of = |d: Option<&DirProfile>| d.or(j.dirs().next()).map_or(String::from("4096/100"), split);
    let (read, write) = (of(j.read.as_ref()), of(j.write.as_ref()));
    let all = if j.trim.is_some() {
        [read.clone(), read.clone(), of(j.trim.as_ref())]
    } else {
        [read.clone(), write.clone(), write]
    };
    if all.iter().all(|s| s.ends_with("/100") && *s == all[0]) {
        return vec![format!("bs={}", all[0].trim_end_matches("/100"))];
    }
    let same = all.iter().all(|s| *s == all[0]);
    vec![format!("bssplit={}", if same { all[0].clone() } else { all.join(",") })]
}

/// The commonest sizes in whole sectors, and their shares. A size beyond the largest of a job file, as of a long discard, becomes that.
fn block_sizes(d: &DirProfile) -> Vec<(u32, f64)> {
    let whole = d.sizes.iter().filter(|(bytes, _)| *bytes >= 512).take(SIZES_MAX);
    let sizes: Vec<(u32, f64)> = whole.map(|(bytes, n)| ((bytes & !511).min(BLOCK_BYTES_MAX as u32), *n)).collect();
    if sizes.is_empty() { vec![(4096, 1.0)] } else { sizes }
}

/// `4096/70:8192/30`, in whole percents that sum to 100.
fn split(d: &DirProfile) -> String {
    let sizes = block_sizes(d);
    let sum: f64 = sizes.iter().map(|(_, n)| n).sum();
    let mut percents: Vec<(u32, u32, f64)> = sizes
        .iter()
        .map(|(s, n)| {
            let exact = 100.0 * n / sum;
            (*s, exact.floor() as u32, exact.fract())
        })
        .collect();
    let left = 100 - percents.iter().map(|(_, p, _)| p).sum::<u32>();
    percents.sort_by(|a, b| b.2.total_cmp(&a.2));
    percents.iter_mut().take(left as usize).for_each(|(_, p, _)| *p += 1);
    percents.sort_by_key(|(s, ..)| *s);
    let parts: Vec<String> = percents.iter().filter(|(_, p, _)| *p > 0).map(|(s, p, _)| format!("{s}/{p}")).collect();
    parts.join(":")
}

/// A change to a machine file: table, key, value, and a comment after the value.
pub type Line = (&'static str, String, String, &'static str);

/// The constants of the disk in the profile, and the measured figures.
pub fn machine_lines(p: &Profile) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let d = &p.disk;
    let mut known = |key: &'static str, k: &Option<Estimate>, integer: bool| {
        let Some(k) = k else { return };
        let text = |v: f64| if integer { format!("{v:.0}") } else { format!("{v:.1}") };
        lines.push(("disk", key.into(), text(k.value), "from the profile"));
        lines.push(("uncertain", format!("\"disk.{key}\""), format!("[{}, {}]", text(k.low), text(k.high)), ""));
    };
    known("read_us", &d.read_us.or(d.write_us), false);
    known("write_us", &d.write_us.or(d.read_us), false);
    known("parallel", &d.parallel, true);
    if let Some(pct) = d.jitter_pct {
        lines.push(("disk", "jitter_pct".into(), pct.to_string(), "from the profile"));
    }
    for j in &p.jobs {
        let name = j.name.replace('\\', "\\\\").replace('"', "\\\"");
        for (metric, value) in [("iops", j.iops()), ("lat_us", j.lat_us())] {
            if value.is_finite() && value >= 0.01 {
                lines.push(("measured", format!("\"{name}.{metric}\""), format!("{value:.2}"), ""));
            }
        }
    }
    lines
}

/// Inserts lines into the text of a TOML file. A line replaces one with the same key; otherwise it goes to the end of its table.
pub fn edit(text: &str, lines: &[Line]) -> String {
    let mut out: Vec<String> = text.lines().map(str::to_owned).collect();
    for (table, key, value, comment) in lines {
        let comment = if comment.is_empty() { String::new() } else { format!(" # {comment}") };
        let line = format!("{key} = {value}{comment}");
        let header = format!("[{table}]");
        let is_header = |l: &String| l.trim_start().starts_with('[');
        let is_this = |l: &String| l.split('#').next().unwrap_or_default().trim() == header;
        let Some(from) = out.iter().position(is_this) else {
            if out.last().is_some_and(|l| !l.trim().is_empty()) {
                out.push(String::new());
            }
            out.extend([header, line]);
            continue;
        };
        let to = out[from + 1..].iter().position(is_header).map_or(out.len(), |n| from + 1 + n);
        let has_key = |l: &String| {
            l.trim_start().strip_prefix(key.as_str()).is_some_and(|rest| rest.trim_start().starts_with('='))
        };
        match out[from + 1..to].iter().position(has_key) {
            Some(n) => out[from + 1 + n] = line,
            None => {
                // Before the empty lines and comments that belong to the next table.
                let belongs = |l: &String| !l.trim().is_empty() && !l.trim_start().starts_with('#');
                let end = out[from..to].iter().rposition(belongs).map_or(from, |n| from + n);
                out.insert(end + 1, line);
            }
        }
    }
    out.join("\n") + "\n"
}
