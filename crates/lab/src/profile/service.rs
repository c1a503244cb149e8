// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long the device takes (D to C) without the time that requests queue inside it, and how uncertain a trace leaves that time.
//!
//! The time at the least depth counts as the service time. Where the time grows with the depth, requests queue inside. By
//! Little's law the number in service is then the depth times the service time, divided by the time: that is the device's
//! number of units. Where the time does not grow, the device has at least as many units as the depth. The trace does not show
//! how many more, so the result is a range.

use super::Class;
use super::lives::Request;
use super::shape::cv;
use serde::Serialize;
use std::collections::BTreeMap;

/// Maximum number of units that a machine file accepts.
pub const PARALLEL_MAX: u32 = 65_536;
/// Minimum number of requests at a depth from which a mean is taken.
const SAMPLES_MIN: usize = 30;
/// The device queues if it takes this many times longer at the greatest depth than at the least.
const QUEUES: f64 = 1.5;
/// Minimum relative uncertainty of a mean, because a device's state changes.
const KNOWN: f64 = 0.03;

/// A number with its range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The best guess.
    pub value: f64,
    /// The least plausible value.
    pub low: f64,
    /// The greatest plausible value.
    pub high: f64,
}

impl Estimate {
    /// Makes an estimate with a range of `share` either way.
    pub fn within(value: f64, share: f64) -> Estimate {
        Estimate { value, low: value * (1.0 - share), high: value * (1.0 + share) }
    }
}

/// A device as its trace shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DiskProfile {
    /// Service time of a read, microseconds.
    pub read_us: Option<Estimate>,
    /// Service time of a write, microseconds.
    pub write_us: Option<Estimate>,
    /// Spread of these times, uniform by up to this much either way, percent. `None`: too few requests were seen, or all of
    /// them had waited.
    pub jitter_pct: Option<u32>,
    /// Requests in service at once.
    pub parallel: Option<Estimate>,
    /// Maximum number of requests seen at the device at once.
    pub depth: u32,
}

/// Returns the means of consecutive tenths. If the disk changes during the trace, these differ, and the service time is
/// known no better.
fn means(values: &[f64]) -> Vec<f64> {
    let tenths = values.chunks(values.len().div_ceil(10).max(1));
    tenths.map(|c| c.iter().sum::<f64>() / c.len() as f64).collect()
}

/// Returns the width of the middle half of the values, relative to the median; `None` if there are too few.
fn spread(values: &[f64]) -> Option<f64> {
    if values.len() < SAMPLES_MIN {
        return None;
    }
    let mut all = values.to_vec();
    all.sort_by(f64::total_cmp);
    let at = |share: f64| all.get(((all.len() as f64 * share) as usize).min(all.len().saturating_sub(1))).copied();
    match (at(0.25), at(0.5), at(0.75)) {
        (Some(a), Some(m), Some(b)) if m > 0.0 => Some((b - a) / m),
        _ => None,
    }
}

/// Makes the profile from requests in the order of completion.
pub fn of(requests: &[Request], notes: &mut Vec<String>) -> DiskProfile {
    if requests.is_empty() {
        return DiskProfile::default();
    }
    let mut classes: BTreeMap<u32, Vec<&Request>> = BTreeMap::new();
    for r in requests {
        classes.entry(r.depth.ilog2()).or_default().push(r);
    }
    let enough = (requests.len() / 200).max(SAMPLES_MIN);
    let most = classes.iter().max_by_key(|(_, r)| r.len()).map(|(c, _)| *c).expect("there are some");
    let good = |c: &u32| classes[c].len() >= enough;
    let low = classes.keys().copied().find(good).unwrap_or(most);
    let high = classes.keys().copied().rev().find(good).unwrap_or(most);
    let mean = |of: &[&Request]| of.iter().map(|r| r.device_ns as f64).sum::<f64>() / of.len() as f64;
    let (at_low, at_high) = (&classes[&low], &classes[&high]);
    let (w_low, w_high) = (mean(at_low), mean(at_high));
    let depth = requests.iter().map(|r| r.depth).max().unwrap_or(1);
    let m_high = at_high.iter().map(|r| f64::from(r.depth)).sum::<f64>() / at_high.len() as f64;
    let queues = high > low && w_high > QUEUES * w_low.max(1.0);
    // Returns the times, and whether all of them are from requests that waited.
    let times = |class: Class| {
        let of = |from: &[&Request]| -> Vec<f64> {
            from.iter().filter(|r| r.class == class).map(|r| r.device_ns as f64 / 1e3).collect()
        };
        let all: Vec<&Request> = requests.iter().collect();
        // If nothing queues, all requests show the service time.
        let mine = if queues { of(at_low) } else { of(&all) };
        if mine.is_empty() { (of(&all), queues) } else { (mine, false) }
    };
    let mut known = |(t, waited): &(Vec<f64>, bool), what: &str| {
        if t.is_empty() {
            return None;
        }
        let value = t.iter().sum::<f64>() / t.len() as f64;
        let mut known = Estimate::within(value, (2.0 * cv(&means(t))).clamp(KNOWN, 0.9));
        if *waited {
            // If they wait like the other requests, the share of service in their time is the same.
            known.low *= w_low / w_high;
            notes.push(format!(
                "no {what} reached an idle device: their times include queueing; as little as {:.0} % may be service",
                100.0 * w_low / w_high
            ));
        }
        Some(known)
    };
    let (reads, writes) = (times(Class::Read), times(Class::Write));
    let (read_us, write_us) = (known(&reads, "reads"), known(&writes, "writes"));
    // Requests that waited do not show the spread of the service time.
    let [reads, writes] = [reads, writes].map(|(t, waited)| if waited { Vec::new() } else { t });
    let larger = if reads.len() >= writes.len() { &reads } else { &writes };
    // If times are spread evenly by j either way, the width of the middle half is j. A few late requests do not change it.
    let spread = spread(larger);
    let jitter_pct = spread.map(|s| ((s * 100.0).round() as u32).min(100));
    if spread.is_some_and(|s| cv(larger) > s.mul_add(0.6, 0.1)) {
        let text =
            "the device's times have a longer tail than a machine file can describe: high percentiles will be too low";
        notes.push(text.into());
    }
    let parallel = if queues {
        let units = (m_high * w_low / w_high).round().clamp(1.0, f64::from(PARALLEL_MAX));
        Estimate { value: units, low: (units * 0.8).round().max(1.0), high: (units * 1.25).round().max(units + 1.0) }
    } else {
        notes.push(format!(
            "the device never had more than {depth} requests in flight: its parallelism beyond that is unknown"
        ));
        Estimate { value: f64::from(PARALLEL_MAX), low: f64::from(depth), high: f64::from(PARALLEL_MAX) }
    };
    DiskProfile { read_us, write_us, jitter_pct, parallel: Some(parallel), depth }
}
