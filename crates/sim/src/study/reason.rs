// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Explains why a series has its shape, in a sentence that is built from its figures.
//!
//! Guarantees: every statement follows from the points of the series. Does not do: compare with other machines.

use super::{Point, Study, by_series};

/// Returns one sentence for each series of a study, in their order; or only why nothing can be told.
pub fn of(study: Study, points: &[Point]) -> Vec<String> {
    if let Some(why) = unmodelled(study, points) {
        return vec![format!("cannot tell: {why}.")];
    }
    let all = by_series(points, |p| &p.series);
    all.iter().map(|(name, series)| format!("{name}: {}.", of_series(study, series))).collect()
}

/// Returns why the points cannot be compared, if they depend on something that the disk's model does not have.
pub fn unmodelled(study: Study, points: &[Point]) -> Option<String> {
    let (first, others) = points.split_first()?;
    let name = |p: &Point| format!("{}, {}", p.series, of_them(study, p.x));
    others.iter().find_map(|p| first.traffic.unmodelled(&p.traffic, [&name(first), &name(p)]))
}

/// A series has fallen if it ends below this share of its peak.
const FALLEN: f64 = 0.9;
/// A series grows with the scaled quantity if each doubling gains at least this factor.
const GROWS: f64 = 1.8;
/// From this share of CPU time on, waiting for locks is the reason.
const LOCKED: f64 = 0.2;

/// Returns the first point from which on more of the scaled quantity does not help: it is as near to the peak as a series
/// that has not fallen. Returns `None` if there are no points, or none has a rate.
pub fn enough<'a>(series: &[&'a Point]) -> Option<&'a Point> {
    let peak = series.iter().map(|p| p.iops).fold(0.0, f64::max);
    series.iter().find(|p| p.iops > FALLEN * peak).copied()
}

/// Explains why one series has its shape, without its name and without a full stop.
pub fn of_series(study: Study, series: &[&Point]) -> String {
    let (Some(first), Some(last)) = (series.first(), series.last()) else { return "nothing was simulated".into() };
    let at = |p: &Point| of_them(study, p.x);
    let peak = series.iter().max_by(|a, b| a.iops.total_cmp(&b.iops)).expect("not empty");
    let times = last.iops / first.iops;
    let doublings = (f64::from(last.x.max(1)) / f64::from(first.x.max(1))).log2();
    let waits = |p: &Point| p.lock_wait.map_or(String::new(), |w| format!("{:.0} % of their CPUs' time", 100.0 * w));
    let locked = |p: &Point| p.lock_wait.is_some_and(|w| w > LOCKED);
    if last.iops < FALLEN * peak.iops {
        let cause = if locked(last) {
            format!("{} is spent waiting for a lock, and each hand-over fetches the locked data", waits(last))
        } else {
            "the cost of each I/O grows".to_owned()
        };
        let part = 100.0 * last.iops / peak.iops;
        return format!(
            "peaks with {} at {}, and falls to {part:.0} % of that with {}: {cause}",
            at(peak),
            rate(peak.iops),
            at(last)
        );
    }
    if doublings > 0.0 && times.log2() / doublings > GROWS.log2() {
        return format!("grows {times:.0} times from {} to {}: {}", first.x, at(last), free(first, last));
    }
    let knee = series.iter().find(|p| p.iops > FALLEN * last.iops).expect("the last one is");
    let cause = if locked(last) {
        format!("{} is spent waiting for locks", waits(last))
    } else if last.busy > 0.95 {
        format!("the CPUs are busy, an I/O takes {:.1} us of CPU", last.cpu_ns.unwrap_or(0.0) / 1e3)
    } else {
        "the CPUs are partly idle, and the limit is the device or the number of I/Os in flight".to_owned()
    };
    let cheaper = match (first.cpu_ns, last.cpu_ns) {
        (Some(a), Some(b)) if a > 2.0 * b => {
            format!("; an I/O takes {:.1} us of CPU at first and {:.1} us at the end", a / 1e3, b / 1e3)
        }
        _ => String::new(),
    };
    if knee.x == first.x {
        return format!("does not change from {} to {}, {}: {cause}{cheaper}", first.x, at(last), rate(last.iops));
    }
    format!("grows until {}, {}, and stays there: {cause}{cheaper}", at(knee), rate(knee.iops))
}

/// Formats a value of the quantity that a study scales: `8 CPUs`, `a depth of 8`.
pub fn of_them(study: Study, x: u32) -> String {
    match study {
        Study::Depth => format!("a depth of {x}"),
        _ if x == 1 => format!("1 {}", study.unit().trim_end_matches('s')),
        _ => format!("{x} {}", study.unit()),
    }
}

fn free(first: &Point, last: &Point) -> String {
    match (first.cpu_ns, last.cpu_ns) {
        (Some(a), Some(b)) => format!(
            "no significant lock contention; an I/O takes {:.2} us of CPU with {} and {:.2} us with {}",
            a / 1e3,
            first.x,
            b / 1e3,
            last.x
        ),
        _ => "no shared resource is saturated".to_owned(),
    }
}

/// Formats I/Os per second for readers.
pub fn rate(iops: f64) -> String {
    match iops {
        i if i >= 99.95e6 => format!("{:.0} M", i / 1e6),
        i if i >= 9.995e6 => format!("{:.1} M", i / 1e6),
        i if i >= 999_500.0 => format!("{:.2} M", i / 1e6),
        i if i >= 99_950.0 => format!("{:.0} k", i / 1e3),
        i if i >= 9_995.0 => format!("{:.1} k", i / 1e3),
        i => format!("{i:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::unmodelled::Traffic;

    fn point(x: u32, iops: f64, lock_wait: f64, busy: f64) -> Point {
        Point {
            series: "s".into(),
            x,
            cpus: x,
            iops,
            lat_us: 1.0,
            cpu_ns: Some(2000.0),
            lock_wait: Some(lock_wait),
            busy,
            ios: 1,
            traffic: Traffic::default(),
        }
    }

    #[test]
    fn a_shape_has_its_words() {
        let of = |points: &[Point]| super::of(Study::Cpus, points).remove(0);
        let fell = of(&[point(1, 4e5, 0.0, 1.0), point(8, 2e6, 0.5, 1.0), point(64, 5e5, 0.95, 1.0)]);
        assert!(
            fell.starts_with("s: peaks with 8 CPUs at 2.00 M, and falls to 25 % of that with 64 CPUs: 95 %"),
            "{fell}"
        );
        let grew = of(&[point(1, 4e5, 0.0, 1.0), point(64, 2.5e7, 0.0, 1.0)]);
        assert!(grew.starts_with("s: grows 62 times from 1 to 64 CPUs: no significant lock contention"), "{grew}");
        let flat = of(&[point(1, 4e5, 0.0, 0.9), point(8, 1.6e6, 0.0, 0.5), point(64, 1.6e6, 0.0, 0.1)]);
        assert!(flat.starts_with("s: grows until 8 CPUs, 1.60 M, and stays there: the CPUs are partly idle"), "{flat}");
    }
}
