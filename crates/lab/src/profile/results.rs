// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The profile of a run from its JSON results, fio's or ours.
//!
//! The jobs are what the run was configured to do: options as in the job file. Rates and latencies are measured. Guarantees:
//! only numbers in their range and options of one line are taken from the file. Does not do: separate service times from
//! waiting, because fio's JSON does not have both. The JSON of mqblk has both, for reads and writes together.

use super::service::{Estimate, PARALLEL_MAX};
use super::shape::{Arrival, DirProfile};
use super::{DiskProfile, JobProfile, Profile, ProfileError};
use serde_json::Value;
use std::collections::BTreeMap;

/// Options for where a job runs and how it reports, which do not change its I/O.
const PLACES: [&str; 13] = [
    "name",
    "filename",
    "directory",
    "filename_format",
    "description",
    "group_reporting",
    "output",
    "write_bw_log",
    "write_lat_log",
    "write_iops_log",
    "write_hist_log",
    "log_avg_msec",
    "thread",
];

/// Reads the text of `file`.
///
/// # Errors
/// The file is not the JSON of a run, or the run did no I/O.
pub fn read(file: &str, text: &str) -> Result<Profile, ProfileError> {
    // fio prints warnings before its JSON.
    let start = text.find('{').unwrap_or(0);
    let doc: Value = serde_json::from_str(&text[start..]).map_err(|e| {
        let line = text[..start].lines().count().saturating_sub(1) + e.line();
        ProfileError::line(file, line.max(1), format!("{e}: must be the JSON of 'mqblk run --json' or fio"))
    })?;
    let jobs = doc["jobs"].as_array().filter(|j| !j.is_empty()).ok_or_else(|| {
        ProfileError::new(
            file,
            "there is no list 'jobs': must be the JSON of 'mqblk run --json' or fio, not of a comparison",
        )
    })?;
    let global = options(file, &doc["global options"])?;
    let mut by_name: BTreeMap<usize, JobProfile> = BTreeMap::new();
    let mut order: Vec<String> = Vec::new();
    let mut seconds = 0f64;
    let mut verifies = false;
    for j in jobs {
        let name = j["jobname"].as_str().filter(|n| is_plain(n)).ok_or_else(|| {
            ProfileError::new(file, "a job without a 'jobname' of one line: must be the JSON of a run")
        })?;
        let mut all = global.clone();
        all.extend(options(file, &j["job options"])?);
        verifies |= all.get("verify").is_some_and(|v| !["", "0", "none"].contains(&v.as_str()));
        all.retain(|option, _| !option.contains("verify"));
        // Our results do not contain flags; a job with a runtime does I/O for that long.
        if all.contains_key("runtime") {
            all.insert("time_based".into(), String::new());
        }
        seconds = ["read", "write", "trim"].iter().map(|d| number(&j[*d]["runtime"]) / 1e3).fold(seconds, f64::max);
        let [read, write, trim] = ["read", "write", "trim"].map(|d| dir(&j[d], &all));
        let index = order.iter().position(|n| n == name).unwrap_or_else(|| {
            order.push(name.to_owned());
            order.len() - 1
        });
        match by_name.get_mut(&index) {
            None => {
                by_name.insert(index, job(name, all, read, write, trim));
            }
            Some(sum) => {
                add(&mut sum.read, read);
                add(&mut sum.write, write);
                add(&mut sum.trim, trim);
            }
        }
    }
    let mut jobs: Vec<JobProfile> = by_name.into_values().filter(|j| j.dirs().next().is_some()).collect();
    if jobs.is_empty() {
        return Err(ProfileError::new(file, "no job has done any I/O: there is nothing to profile"));
    }
    for j in &mut jobs {
        // Little's law for each thread. It is applied to all entries of the job, of which there are several without
        // group_reporting.
        j.in_flight = j.iops() * j.lat_us() / 1e6 / f64::from(j.numjobs);
    }
    let mut notes = Vec::new();
    if verifies {
        notes.push(
            "verify and its options are left out: a simulated machine has no data to verify; add them again for a run"
                .into(),
        );
    }
    let disk = disk(&doc, &jobs, &mut notes);
    Ok(Profile { source: file.into(), device: None, seconds, jobs, disk, notes })
}

/// Returns a number that can be a count, a time or a rate; else 0.
fn number(v: &Value) -> f64 {
    v.as_f64().filter(|n| n.is_finite() && (0.0..=1e18).contains(n)).unwrap_or(0.0)
}

/// Whether the text neither ends a line nor begins a section.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.len() < 1000 && !text.chars().any(|c| c.is_control() || "[]".contains(c))
}

fn options(file: &str, v: &Value) -> Result<BTreeMap<String, String>, ProfileError> {
    let mut options = BTreeMap::new();
    for (key, value) in v.as_object().into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        if !is_plain(key) || key.contains('=') || !value.is_empty() && !is_plain(value) {
            let text = format!(
                "option '{}': name and value must be one line of less than 1000 printable bytes without [ and ], the name without =",
                key.escape_default()
            );
            return Err(ProfileError::new(file, text));
        }
        if !PLACES.contains(&key.as_str()) {
            options.insert(key.clone(), value.to_owned());
        }
    }
    Ok(options)
}

fn dir(v: &Value, options: &BTreeMap<String, String>) -> Option<DirProfile> {
    let ios = number(&v["total_ios"]);
    let ms = number(&v["runtime"]);
    if ios < 1.0 || ms <= 0.0 {
        return None;
    }
    let bytes = number(&v["io_bytes"]);
    let random = options.get("rw").or(options.get("readwrite")).is_some_and(|rw| rw.contains("rand"));
    Some(DirProfile {
        ios: ios as u64,
        iops: ios / ms * 1e3,
        bw: bytes / ms * 1e3,
        sizes: vec![((bytes / ios).clamp(0.0, 1e9) as u32, 1.0)],
        sequential: f64::from(u8::from(!random)),
        lat_us: number(&v["clat_ns"]["mean"]) / 1e3,
    })
}

fn add(sum: &mut Option<DirProfile>, more: Option<DirProfile>) {
    let Some(more) = more else { return };
    let Some(s) = sum else {
        *sum = Some(more);
        return;
    };
    let (a, b) = (s.ios as f64, more.ios as f64);
    s.lat_us = (s.lat_us * a + more.lat_us * b) / (a + b);
    s.ios += more.ios;
    s.iops += more.iops;
    s.bw += more.bw;
}

fn job(
    name: &str,
    options: BTreeMap<String, String>,
    read: Option<DirProfile>,
    write: Option<DirProfile>,
    trim: Option<DirProfile>,
) -> JobProfile {
    let option = |key: &str| options.get(key).and_then(|v| v.parse::<u32>().ok());
    let iodepth = option("iodepth").unwrap_or(1).clamp(1, 65_536);
    let numjobs = option("numjobs").unwrap_or(1).clamp(1, 4096);
    JobProfile {
        name: name.to_owned(),
        numjobs,
        read,
        write,
        trim,
        iodepth,
        in_flight: 0.0,
        batch: option("iodepth_batch").or(option("iodepth_batch_submit")).unwrap_or(1).clamp(1, iodepth),
        arrival: Arrival::Closed,
        fsync: option("fsync").or(option("fdatasync")).filter(|n| *n > 0),
        offset_bytes: 0,
        size_bytes: 0,
        options: options.into_iter().collect(),
    }
}

/// Estimates the disk from latencies, minus the time that our stage times attribute to other stages than the device.
fn disk(doc: &Value, jobs: &[JobProfile], notes: &mut Vec<String>) -> DiskProfile {
    let times = &doc["mqblk"]["stages"]["times"];
    let device_us = number(&times["device_ns"]) / number(&times["n"]).max(1.0) / 1e3;
    let ios = |f: fn(&JobProfile) -> &Option<DirProfile>| jobs.iter().filter_map(move |j| f(j).as_ref());
    let mean = |f: fn(&JobProfile) -> &Option<DirProfile>| {
        let n: f64 = ios(f).map(|d| d.ios as f64).sum();
        (n > 0.0).then(|| ios(f).map(|d| d.lat_us * d.ios as f64).sum::<f64>() / n)
    };
    let (read, write) = (mean(|j| &j.read), mean(|j| &j.write));
    let n: f64 = jobs.iter().flat_map(JobProfile::dirs).map(|d| d.ios as f64).sum();
    let all_us = jobs.iter().flat_map(JobProfile::dirs).map(|d| d.lat_us * d.ios as f64).sum::<f64>() / n;
    let depth = jobs.iter().map(|j| f64::from(j.numjobs) * j.in_flight).sum::<f64>().ceil().max(1.0) as u32;
    let known = |lat: f64| {
        if device_us > 0.0 {
            // The time outside the device is taken to be the same for both directions.
            Estimate::within((lat - (all_us - device_us)).max(lat * 0.05), 0.1)
        } else {
            Estimate { value: lat * 0.9, low: lat * 0.3, high: lat }
        }
    };
    if device_us == 0.0 {
        notes.push(
            "fio's results do not separate device time from queueing: device time is assumed to be 30 to 100 % of the latency"
                .into(),
        );
    }
    notes.push(format!(
        "about {depth} I/Os were in flight; the device's parallelism is unknown: {depth} to {PARALLEL_MAX} is assumed"
    ));
    let parallel = Estimate { value: f64::from(PARALLEL_MAX), low: f64::from(depth), high: f64::from(PARALLEL_MAX) };
    DiskProfile {
        read_us: read.map(known),
        write_us: write.map(known),
        // Only latencies are known, which include waiting.
        jitter_pct: None,
        parallel: Some(parallel),
        depth,
    }
}
