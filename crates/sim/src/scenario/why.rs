// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The reason why a job is faster or slower in one row than in another, in words, from where its requests spent their time.

use super::outcome::{JobStages, RowOutcome};

/// Least share of a change that a stage must have to be called its reason.
const MOST: f64 = 0.6;

struct Stage {
    name: &'static str,
    /// What it means that it is long.
    means: &'static str,
    of: fn(&JobStages) -> f64,
}

const STAGES: [Stage; 4] = [
    Stage {
        name: "tag wait",
        means: "all requests that its hardware queue may have are in use, and it stands in line for one",
        of: |s| s.tag_wait_us,
    },
    Stage {
        name: "scheduler",
        means: "it has a request, and waits in the scheduler behind those of other jobs for a place at the device",
        of: |s| s.scheduler_us,
    },
    Stage { name: "device", means: "the device itself takes longer", of: |s| s.device_us },
    Stage { name: "completion", means: "interrupts and wake-ups take longer", of: |s| s.rest_us },
];

/// For each job, how it is in `b` against `a`, and why; a job without a difference worth a word has none.
pub fn reasons(a: &RowOutcome, b: &RowOutcome) -> Vec<String> {
    b.stages.iter().filter_map(|to| reason(a, a.stages.iter().find(|s| s.job == to.job)?, b, to)).collect()
}

fn reason(a: &RowOutcome, from: &JobStages, b: &RowOutcome, to: &JobStages) -> Option<String> {
    let ratio = to.lat_us / from.lat_us;
    if (ratio - 1.0).abs() < 0.02 {
        return None;
    }
    let change = to.lat_us - from.lat_us;
    let of = |s: &Stage| (s.of)(to) - (s.of)(from);
    let most = STAGES.iter().max_by(|x, y| (of(x) / change).total_cmp(&(of(y) / change)))?;
    let word = if change > 0.0 { "longer" } else { "shorter" };
    let head = format!(
        "{}: an I/O takes {} with '{}' and {} with '{}', {} {word}",
        to.job,
        time(from.lat_us),
        a.name,
        time(to.lat_us),
        b.name,
        time(change.abs()),
    );
    let [(x, y), ..] = [((most.of)(from), (most.of)(to))];
    if of(most) / change < MOST {
        return Some(format!("{head}; no single stage explains most of it"));
    }
    let row = if change > 0.0 { &b.name } else { &a.name };
    Some(format!("{head}: {} is {} against {}. With '{row}' {}", most.name, time(x), time(y), most.means))
}

/// Microseconds for people.
pub fn time(us: f64) -> String {
    if us >= 1000.0 { format!("{:.2} ms", us / 1000.0) } else { format!("{us:.1} us") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, tag: f64, scheduler: f64) -> RowOutcome {
        let lat_us = tag + scheduler + 1000.0;
        let stages = JobStages {
            job: "w".into(),
            lat_us,
            tag_wait_us: tag,
            scheduler_us: scheduler,
            device_us: 1000.0,
            rest_us: 0.0,
        };
        RowOutcome {
            name: name.into(),
            figures: Vec::new(),
            stages: vec![stages],
            no_effect: Vec::new(),
            busy: 0.0,
            spin: 0.0,
            ios: 1,
        }
    }

    #[test]
    fn the_stage_that_has_grown_is_the_reason() {
        let text = &reasons(&row("one", 100.0, 50.0), &row("many", 0.0, 4000.0))[0];
        let start = "w: an I/O takes 1.15 ms with 'one' and 5.00 ms with 'many', 3.85 ms longer: scheduler is 50.0 us against 4.00 ms.";
        assert!(text.starts_with(start), "{text}");
        let back = &reasons(&row("many", 0.0, 4000.0), &row("one", 100.0, 50.0))[0];
        assert!(back.contains("shorter: scheduler is 4.00 ms against 50.0 us. With 'many' it has a request"), "{back}");
        assert!(reasons(&row("one", 100.0, 50.0), &row("other", 100.0, 55.0)).is_empty(), "no difference");
    }
}
