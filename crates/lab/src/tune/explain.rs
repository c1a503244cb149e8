// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Explains in plain words why a point is better, from where the time went in the confirmation's runs.
//!
//! Guarantees: every sentence states a difference of two measured means. Does not: guess at causes that no stage, count or
//! cost shows.

use super::confirm::Duel;
use crate::report::num;
use crate::stage::{PartTime, StageFacts, StageTimes};

/// A stage is mentioned if it changed by at least this share of the default's total time.
const TOLD_SHARE: f64 = 0.02;
/// What a stage's time is spent on.
const MEANING: [&str; 6] = [
    "waiting for a free tag",
    "in the plug and the software queues",
    "held by the elevator",
    "between the elevator and the driver",
    "at the device",
    "from the device back to the job",
];

/// Returns the sentences, the most important first.
pub fn sentences(duel: &Duel) -> Vec<String> {
    let (Some(a), Some(b)) = (&duel.a_totals.stages, &duel.b_totals.stages) else {
        return vec!["the time per stage is not measured on this target".to_owned()];
    };
    let mut told = stages(a, b);
    told.extend(parts(a, b));
    told.extend(batches(a, b));
    told.extend(costs(a, b));
    if told.is_empty() {
        told.push("no stage, merge rate or cost changed noticeably".to_owned());
    }
    told
}

fn stages(a: &StageFacts, b: &StageFacts) -> Vec<String> {
    let (before, after) = (a.times.means(), b.times.means());
    let whole: f64 = before.iter().flatten().sum();
    let mut changes: Vec<(f64, String)> = (0..StageTimes::NAMES.len())
        .filter_map(|i| {
            let (x, y) = (before[i]?, after[i]?);
            let told = (y - x).abs() > TOLD_SHARE * whole;
            let text =
                || format!("{} {} -> {}: time {}", StageTimes::NAMES[i], num::latency(x), num::latency(y), MEANING[i]);
            told.then(|| ((y - x).abs(), text()))
        })
        .collect();
    changes.sort_by(|a, b| b.0.total_cmp(&a.0));
    changes.into_iter().map(|(_, text)| text).collect()
}

/// Parts of a transaction, the largest change first.
fn parts(a: &StageFacts, b: &StageFacts) -> Vec<String> {
    let whole: f64 = a.parts.iter().filter_map(PartTime::mean_ns).sum();
    let mut changes: Vec<(f64, String)> = a
        .parts
        .iter()
        .filter_map(|before| {
            let after = b.parts.iter().find(|p| p.name == before.name)?;
            let (x, y) = (before.mean_ns()?, after.mean_ns()?);
            let text = || {
                let (x, y) = (num::latency(x), num::latency(y));
                format!("{} of a transaction {x} -> {y}: {}", before.name, before.means)
            };
            ((y - x).abs() > TOLD_SHARE * whole).then(|| ((y - x).abs(), text()))
        })
        .collect();
    changes.sort_by(|a, b| b.0.total_cmp(&a.0));
    changes.into_iter().map(|(_, text)| text).collect()
}

/// Merges and requests per call of the driver.
fn batches(a: &StageFacts, b: &StageFacts) -> Vec<String> {
    let mut told = Vec::new();
    let merged = |f: &StageFacts| (f.ios > 0).then(|| 100.0 * f.merges as f64 / f.ios as f64);
    if let (Some(x), Some(y)) = (merged(a), merged(b))
        && (x - y).abs() >= 2.0
    {
        told.push(format!("{x:.0}% -> {y:.0}% of the I/Os merged into an existing request"));
    }
    let per_call = |f: &StageFacts| {
        let (dispatched, batches) = f.hctx.iter().fold((0, 0), |(d, n), h| (d + h.dispatched, n + h.batches));
        (batches > 0).then(|| dispatched as f64 / batches as f64)
    };
    if let (Some(x), Some(y)) = (per_call(a), per_call(b))
        && (x / y - 1.0).abs() > 0.2
    {
        told.push(format!("{x:.1} -> {y:.1} requests per driver call"));
    }
    told
}

fn costs(a: &StageFacts, b: &StageFacts) -> Vec<String> {
    let mut told = Vec::new();
    if let (Some(x), Some(y)) = (a.cpu_per_io_ns(), b.cpu_per_io_ns())
        && (x / y - 1.0).abs() > 0.05
    {
        told.push(format!("CPU per I/O {} -> {}", num::latency(x), num::latency(y)));
    }
    if let (Some(x), Some(y)) = (a.context_switches_per_io(), b.context_switches_per_io())
        && (x - y).abs() > 0.1
    {
        told.push(format!("context switches per I/O {x:.2} -> {y:.2}"));
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::HctxCounts;

    #[test]
    fn what_changed_most_is_told_first() {
        let of = |tag: u64, device: u64, merges| StageFacts {
            times: StageTimes { tag_wait_ns: tag, device_ns: device, n: 1, ..StageTimes::default() },
            merges,
            hctx: vec![HctxCounts { dispatched: 100, batches: 100 - merges, ..HctxCounts::default() }],
            ios: 100,
            cpu_ns: 1000,
            ..StageFacts::default()
        };
        let (a, b) = (of(3_100_000, 900_000, 0), of(200_000, 1_000_000, 50));
        let told = [stages(&a, &b), batches(&a, &b), costs(&a, &b)].concat();
        assert_eq!(
            told,
            [
                "tag wait 3.10ms -> 200us: time waiting for a free tag",
                "device 900us -> 1.00ms: time at the device",
                "0% -> 50% of the I/Os merged into an existing request",
                "1.0 -> 2.0 requests per driver call",
            ]
        );
        let of = |wake: u64, compute: u64| StageFacts {
            parts: [("wake-up", wake), ("computing", compute)]
                .map(|(name, sum_ns)| PartTime { name: name.into(), means: "of it".into(), sum_ns, n: 2 })
                .to_vec(),
            ..StageFacts::default()
        };
        let told = parts(&of(200_000, 1_000_000), &of(20_000, 1_010_000));
        assert_eq!(told, ["wake-up of a transaction 100us -> 10.0us: of it"]);
        assert!(stages(&a, &a).is_empty() && batches(&a, &a).is_empty() && costs(&a, &a).is_empty());
    }
}
