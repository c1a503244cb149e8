// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two runs whose difference depends on something that the disk's model does not have: the answer is then "cannot tell".
//!
//! | the disk | and the runs differ in |
//! |---|---|
//! | has no cost per byte ([`Lacks::size`]) | the mean size of the requests at the device |
//! | rotates, without seek times ([`Lacks::place`]) | how far apart requests are, or how many are in the device |
//! | records in shingles ([`Lacks::rewrites`]) | anything, if they write |
//!
//! Guarantees: runs that send the same requests can be compared. Every command that compares simulated runs uses this rule.
//! Does not: know which setting made the difference; it is measured at the device.

use super::file::Disk;
use crate::machine::jobs::{JobsRun, Sums};
use blk::bio::Op;
use serde::{Deserialize, Serialize};

/// Means that differ by less do not decide a result.
const NEGLIGIBLE: f64 = 0.05;

/// What the model of a disk does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lacks {
    /// A large request takes as long as a small one.
    pub size: bool,
    /// The disk rotates, and requests take as long wherever they are.
    pub place: bool,
    /// The disk records in shingles, and nothing is known of its rewriting.
    pub rewrites: bool,
}

impl Lacks {
    fn of(d: &Disk) -> Lacks {
        let takes_time = d.read_us > 0.0 || d.write_us > 0.0;
        Lacks {
            size: d.hdd.is_none() && d.bw_mb == 0.0 && takes_time,
            place: d.hdd.is_none() && d.rotational,
            rewrites: d.smr,
        }
    }
}

/// The requests that a run sent to the device, and what the device's model lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Reads.
    pub reads: Sums,
    /// Writes.
    pub writes: Sums,
    /// Time of all requests in the device, nanoseconds.
    pub device_ns: u64,
    /// Time of the run, nanoseconds.
    pub elapsed_ns: u64,
    /// What the model lacks.
    pub lacks: Lacks,
}

impl Traffic {
    /// The requests of a run on a disk.
    pub fn of(disk: &Disk, run: &JobsRun) -> Traffic {
        let [reads, writes] = [Op::Read, Op::Write].map(|op| run.seen.of(op));
        let (device_ns, lacks) = (reads.device_ns + writes.device_ns, Lacks::of(disk));
        Traffic { reads: reads.sent, writes: writes.sent, device_ns, elapsed_ns: run.elapsed_ns, lacks }
    }

    /// Adds the requests of another run of the same side.
    pub fn add(&mut self, other: &Traffic) {
        self.reads.add(&other.reads);
        self.writes.add(&other.writes);
        self.device_ns += other.device_ns;
        self.elapsed_ns += other.elapsed_ns;
        let (mine, theirs) = (&mut self.lacks, other.lacks);
        *mine = Lacks {
            size: mine.size || theirs.size,
            place: mine.place || theirs.place,
            rewrites: mine.rewrites || theirs.rewrites,
        };
    }

    /// Returns why the difference between two runs, which are called `names`, cannot be told, and what to measure.
    pub fn unmodelled(&self, other: &Traffic, names: [&str; 2]) -> Option<String> {
        let (mut both, [a, b]) = (*self, [self, other]);
        both.add(other);
        let [one, two] = names;
        if both.lacks.rewrites && both.writes.requests > 0 {
            return Some(
                "the disk records in shingles (smr), and when it rewrites them is not published; measure it on the disk"
                    .into(),
            );
        }
        if both.lacks.size
            && let Some((op, [x, y])) = differing(a, b, |s| s.sectors as f64 * 512.0)
        {
            return Some(format!(
                "the {op} at the device have {} with '{one}' and {} with '{two}', and [disk] has no cost per byte: measure \
                 the bandwidth with large blocks, and set bw_mb",
                bytes(x),
                bytes(y)
            ));
        }
        if !both.lacks.place {
            return None;
        }
        let what = if let Some((op, [x, y])) = differing(a, b, |s| s.distance as f64 * 512.0) {
            let (x, y) = (bytes(x), bytes(y));
            format!("the {op} are {x} apart with '{one}' and {y} with '{two}'")
        } else {
            let depth = |t: &Traffic| t.device_ns as f64 / t.elapsed_ns.max(1) as f64;
            let requests = |t: &Traffic| t.reads.requests + t.writes.requests;
            let (x, y) = (depth(a), depth(b));
            differ([x, y], [requests(a), requests(b)])
                .then(|| format!("the disk has {x:.1} requests with '{one}' and {y:.1} with '{two}'"))?
        };
        Some(format!(
            "{what}, and the disk rotates, without seek times: take those of its data sheet, and describe it in [disk.hdd]"
        ))
    }
}

/// Returns the first direction whose mean differs, and both means.
fn differing(a: &Traffic, b: &Traffic, sum: impl Fn(&Sums) -> f64) -> Option<(&'static str, [f64; 2])> {
    let each = [("reads", a.reads, b.reads), ("writes", a.writes, b.writes)];
    each.into_iter().filter(|(_, x, y)| x.requests > 0 && y.requests > 0).find_map(|(op, x, y)| {
        let means = [&x, &y].map(|s| sum(s) / s.requests as f64);
        differ(means, [x.requests, y.requests]).then_some((op, means))
    })
}

/// Whether two means of so many values differ by more than is negligible, and by more than three standard errors of values
/// that spread as widely as their mean.
fn differ(means: [f64; 2], of: [u64; 2]) -> bool {
    let error = of.map(|n| 1.0 / n.max(1) as f64).iter().sum::<f64>().sqrt();
    let [x, y] = means;
    (x - y).abs() > (NEGLIGIBLE + 3.0 * error) * x.min(y) && x != y
}

/// `4.0 KiB`, `1.2 GiB`.
fn bytes(n: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB"];
    let power = (0..3).take_while(|p| n >= 1024f64.powi(p + 1)).count();
    format!("{:.1} {}", n / 1024f64.powi(power as i32), units[power])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(lacks: Lacks, requests: u64, sectors: u64, distance: u64) -> Traffic {
        let reads = Sums { requests, sectors: requests * sectors, distance: requests * distance };
        Traffic { reads, device_ns: 10, elapsed_ns: 10, lacks, ..Traffic::default() }
    }

    #[test]
    fn sizes_count_only_without_a_cost_per_byte() {
        let lacks = Lacks { size: true, ..Lacks::default() };
        let of = |lacks, sectors| traffic(lacks, 100_000, sectors, 0);
        let why = of(lacks, 8).unmodelled(&of(lacks, 64), ["a", "b"]).unwrap();
        assert_eq!(
            why,
            "the reads at the device have 4.0 KiB with 'a' and 32.0 KiB with 'b', and [disk] has no cost per byte: measure \
             the bandwidth with large blocks, and set bw_mb"
        );
        assert_eq!(of(lacks, 8).unmodelled(&of(lacks, 8), ["a", "b"]), None);
        assert_eq!(of(Lacks::default(), 8).unmodelled(&of(Lacks::default(), 64), ["a", "b"]), None);
        assert!(of(Lacks::default(), 8).unmodelled(&of(lacks, 64), ["a", "b"]).is_some(), "one side lacks it");
    }

    #[test]
    fn places_and_depth_count_on_a_disk_that_rotates() {
        let lacks = Lacks { place: true, ..Lacks::default() };
        let of = |distance, device_ns| Traffic { device_ns, ..traffic(lacks, 100_000, 8, distance) };
        let ask = |a: Traffic, b: Traffic| a.unmodelled(&b, ["a", "b"]);
        assert_eq!(ask(of(1 << 21, 10), of(1 << 21, 10)), None);
        let why = ask(of(1 << 22, 10), of(1 << 21, 10)).unwrap();
        assert!(
            why.starts_with("the reads are 2.0 GiB apart with 'a' and 1.0 GiB with 'b', and the disk rotates"),
            "{why}"
        );
        let why = ask(of(1 << 21, 10), of(1 << 21, 320)).unwrap();
        assert!(why.starts_with("the disk has 1.0 requests with 'a' and 32.0 with 'b'"), "{why}");
        // Sequential against sequential; then against reads far apart.
        assert_eq!(ask(of(0, 10), of(0, 10)), None);
        assert!(ask(of(0, 10), of(1 << 21, 10)).is_some());
    }

    #[test]
    fn few_requests_differ_by_chance() {
        let lacks = Lacks { place: true, ..Lacks::default() };
        let of = |n, distance| traffic(lacks, n, 8, distance);
        assert_eq!(of(50, 1000).unmodelled(&of(50, 1300), ["a", "b"]), None);
        assert!(of(50_000, 1000).unmodelled(&of(50_000, 1300), ["a", "b"]).is_some());
    }

    #[test]
    fn only_writes_are_unknown_on_a_shingled_disk() {
        let lacks = Lacks { rewrites: true, ..Lacks::default() };
        let reads = traffic(lacks, 10, 8, 0);
        assert_eq!(reads.unmodelled(&reads, ["a", "b"]), None);
        let writes = Traffic { writes: reads.reads, ..Traffic::default() };
        assert!(reads.unmodelled(&writes, ["a", "b"]).unwrap().contains("records in shingles"));
    }
}
