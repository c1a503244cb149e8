// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a job is faster or slower in one row than in another, in words. The reason comes from where its requests spent their
//! time; for users of virtual machines, from where their transactions did.

use super::outcome::{JobStages, RowOutcome, UserTimes};
use crate::machine::guest_times::PARTS;

/// Minimum share of a change for which a stage is called its reason. For transactions, the share of several parts together.
const MOST: f64 = 0.6;
/// A smaller change is not reported.
const WORTH: f64 = 0.02;

struct Stage {
    name: &'static str,
    /// Explains why this stage is long.
    means: &'static str,
    of: fn(&JobStages) -> f64,
}

const STAGES: [Stage; 5] = [
    Stage {
        name: "tag wait",
        means: "all tags of its hardware queue are in use, and the I/O waits for a free tag",
        of: |s| s.tag_wait_us,
    },
    Stage {
        name: "scheduler",
        means: "its request waits in the scheduler behind requests of other jobs until the device has room",
        of: |s| s.scheduler_us,
    },
    Stage { name: "device", means: "the device itself takes longer", of: |s| s.device_us },
    Stage {
        name: "CPU wait",
        means: "its thread is ready to run, but its CPU is busy with other threads or has to wake up",
        of: |s| s.cpu_wait_us,
    },
    Stage { name: "completion", means: "interrupts and wake-ups take longer", of: |s| s.rest_us },
];

/// Returns, for each job or number of users, how `b` differs from `a` and why. Jobs with too small a difference are left out.
pub fn reasons(a: &RowOutcome, b: &RowOutcome) -> Vec<String> {
    let jobs = b.stages.iter().filter_map(|to| reason(a, a.stages.iter().find(|s| s.job == to.job)?, b, to));
    let users = |to: &UserTimes| of_users(a, a.users.iter().find(|u| u.users == to.users)?, b, to);
    jobs.chain(b.users.iter().filter_map(users)).collect()
}

/// Names the parts of a transaction that make up most of the change, the largest share first.
fn of_users(a: &RowOutcome, from: &UserTimes, b: &RowOutcome, to: &UserTimes) -> Option<String> {
    let change = to.transaction_us - from.transaction_us;
    if (change / from.transaction_us).abs() < WORTH {
        return None;
    }
    let mut shares: Vec<(f64, usize)> =
        (0..PARTS.len()).map(|i| ((to.parts_us[i] - from.parts_us[i]) / change, i)).collect();
    shares.sort_by(|x, y| y.0.total_cmp(&x.0));
    let mut sum = 0.0;
    let told = shares.iter().take_while(|(share, _)| {
        let is_told = sum < MOST && *share > 0.0;
        sum += share;
        is_told
    });
    let part = |(_, i): &(f64, usize)| {
        let (x, y) = (time(from.parts_us[*i]), time(to.parts_us[*i]));
        format!("{} is {x} against {y} ({})", PARTS[*i].name, PARTS[*i].means)
    };
    let parts: Vec<String> = told.map(part).collect();
    Some(format!(
        "{}: a transaction takes {} with '{}' and {} with '{}', {} {}: {}",
        to.users,
        time(from.transaction_us),
        a.name,
        time(to.transaction_us),
        b.name,
        time(change.abs()),
        if change > 0.0 { "longer" } else { "shorter" },
        parts.join(", and ")
    ))
}

fn reason(a: &RowOutcome, from: &JobStages, b: &RowOutcome, to: &JobStages) -> Option<String> {
    let ratio = to.lat_us / from.lat_us;
    if (ratio - 1.0).abs() < WORTH {
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

/// Formats microseconds for readers.
pub fn time(us: f64) -> String {
    if us >= 1000.0 { format!("{:.2} ms", us / 1000.0) } else { format!("{us:.1} us") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::unmodelled::Traffic;

    fn row(name: &str, tag: f64, scheduler: f64) -> RowOutcome {
        let lat_us = tag + scheduler + 1000.0;
        let stages = JobStages {
            job: "w".into(),
            lat_us,
            tag_wait_us: tag,
            scheduler_us: scheduler,
            device_us: 1000.0,
            cpu_wait_us: 0.0,
            rest_us: 0.0,
        };
        RowOutcome {
            name: name.into(),
            figures: Vec::new(),
            stages: vec![stages],
            users: Vec::new(),
            no_effect: Vec::new(),
            busy: 0.0,
            spin: 0.0,
            ios: 1,
            traffic: Traffic::default(),
        }
    }

    #[test]
    fn the_stage_that_has_grown_is_the_reason() {
        let text = &reasons(&row("one", 100.0, 50.0), &row("many", 0.0, 4000.0))[0];
        let start = "w: an I/O takes 1.15 ms with 'one' and 5.00 ms with 'many', 3.85 ms longer: scheduler is 50.0 us against 4.00 ms.";
        assert!(text.starts_with(start), "{text}");
        let back = &reasons(&row("many", 0.0, 4000.0), &row("one", 100.0, 50.0))[0];
        assert!(back.contains("shorter: scheduler is 4.00 ms against 50.0 us. With 'many' its request"), "{back}");
        assert!(reasons(&row("one", 100.0, 50.0), &row("other", 100.0, 55.0)).is_empty(), "no difference");
    }

    #[test]
    fn the_main_parts_of_a_transactions_change_are_named() {
        let of = |name: &str, turn: f64, wake: f64, interrupt: f64| {
            let mut parts_us = [10.0; PARTS.len()];
            (parts_us[4], parts_us[5], parts_us[8]) = (turn, wake, interrupt);
            let times = UserTimes { users: "users8".into(), transaction_us: parts_us.iter().sum(), parts_us };
            RowOutcome { stages: Vec::new(), users: vec![times], ..row(name, 0.0, 0.0) }
        };
        let told = reasons(&of("none", 100.0, 240.0, 10.0), &of("four", 20.0, 40.0, 12.0));
        assert_eq!(
            told,
            [
                "users8: a transaction takes 410.0 us with 'none' and 132.0 us with 'four', 278.0 us shorter: wake-up is 240.0 us against \
              40.0 us (VM exits, and wake-ups of sleeping hypervisor threads)"
            ]
        );
        let told = &reasons(&of("few", 20.0, 40.0, 10.0), &of("many", 70.0, 90.0, 20.0))[0];
        let end = "110.0 us longer: turn is 20.0 us against 70.0 us (waiting until the thread that serves the \
                   virtqueue has finished other requests), and wake-up is 40.0 us against 90.0 us (";
        assert!(told.contains(end), "{told}");
        assert!(reasons(&of("a", 20.0, 40.0, 10.0), &of("b", 21.0, 40.0, 10.0)).is_empty(), "no difference");
    }
}
