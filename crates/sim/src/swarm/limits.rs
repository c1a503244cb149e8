// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits per disk and write-back throttling in a case: which are on, when they change, and whether they are kept.
//!
//! **Rates.** A test sees only when a bio was submitted and when it completed; the rate admitted it at some time in between.
//! So the bios that were submitted at `a` or later and completed without error by `b` were all admitted within `[a, b]`. A
//! rate admits at most `rate * (b - a)` of them and the burst, or one I/O if that is more. This holds for every `a` and `b`
//! between two changes of the rate, however late a poll is, because late admissions count at the time they were due. A bio
//! that was submitted before a change is not counted, because either rate may have admitted it.
//!
//! **No bio is held for ever.** The liveness phase checks that for all bios, and that all tokens of write-back throttling are
//! returned.
//!
//! All draws are from a stream of their own, so kept seeds draw what they always drew.

use crate::rng::Rng;
use blk::bio::{Bio, Op, OpFlags};
use blk::qos::rates::IoLimits;
use blk::settings::{Mode, QueueConfig};

/// Modifiers that throttling depends on.
pub(super) const FLAGS: [OpFlags; 2] = [OpFlags::IDLE, OpFlags::BACKGROUND];

/// Rates. Each has a burst, named after the rate with the suffix `_burst`.
const RATES: [&str; 6] = ["iops_total", "iops_read", "iops_write", "bps_total", "bps_read", "bps_write"];
/// Targets of write-back throttling, microseconds: off, the default, one that is always missed, one that is mostly met.
const TARGETS: [&str; 4] = ["0", "-1", "50", "2000"];
/// The limits under which a bio was submitted: how often each of [`RATES`] had changed.
pub(super) type LimitEpochs = [u32; RATES.len()];

/// The I/O that one rate admitted since its last change.
#[derive(Default)]
struct Meter {
    per_sec: u64,
    burst: u64,
    changes: u32,
    /// Submission time, completion time, and I/Os or bytes of each bio; in order of completion.
    ended: Vec<(u64, u64, u64)>,
}

impl Meter {
    /// Checks every window since the last change.
    fn check(&self, name: &str) {
        let mut begins: Vec<u64> = self.ended.iter().map(|e| e.0).collect();
        begins.sort_unstable();
        begins.dedup();
        for a in begins {
            let (mut sum, mut largest) = (0u64, 0);
            for &(_, b, units) in self.ended.iter().filter(|e| e.0 >= a) {
                (sum, largest) = (sum + units, units.max(largest));
                let paid = u128::from(sum.saturating_sub(self.burst.max(largest))) * 1_000_000_000;
                assert!(
                    paid <= u128::from(self.per_sec) * u128::from(b - a),
                    "{name}={} with a burst of {}: {sum} were submitted since {a} and ended by {b}, above the limit",
                    self.per_sec,
                    self.burst
                );
            }
        }
    }
}

/// See the module's text.
pub(super) struct Limits {
    rng: Rng,
    wbt: bool,
    rates: bool,
    meters: [Meter; RATES.len()],
    /// Planted: the disk is set to a rate so many times the one it is checked against.
    factor: u64,
}

impl Limits {
    /// Draws which kinds a case has.
    pub(super) fn new(seed: u64, too_fast: bool) -> Limits {
        let mut rng = Rng::new(seed ^ 0x1117);
        let (wbt, rates) = (rng.below(4) == 0, rng.below(4) == 0);
        Limits { rng, wbt, rates, meters: Default::default(), factor: if too_fast { 8 } else { 1 } }
    }

    /// Whether the case has limits or throttling.
    pub(super) fn is_on(&self) -> bool {
        self.wbt || self.rates
    }

    /// Whether write-back is throttled at times.
    pub(super) fn has_wbt(&self) -> bool {
        self.wbt
    }

    /// True for one in `n` calls in a case that has limits; draws nothing in others.
    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.is_on() && self.rng.below(n) == 0
    }

    /// A number below `n`.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.rng.below(n)
    }

    /// Adds flags to a write that throttling depends on.
    pub(super) fn add_flags(&mut self, bio: &mut Bio) {
        if !self.wbt || bio.op != Op::Write {
            return;
        }
        for flag in FLAGS {
            if self.rng.below(5) == 0 {
                bio.flags = bio.flags.union(flag);
            }
        }
    }

    /// Draws new settings: a target, and up to three rates. The legacy `mode` has no throttling.
    pub(super) fn draw(&mut self, mode: Mode) -> Vec<(String, String)> {
        let mut new = Vec::new();
        if self.wbt {
            let target = self.rng.pick(if mode == Mode::Sq { &TARGETS[..2] } else { &TARGETS });
            new.push(("wbt_lat_usec".into(), target.into()));
        }
        if self.rates {
            let mut rates = [(0, 0); RATES.len()];
            for _ in 0..self.rng.below(4) {
                let i = self.rng.below(RATES.len() as u64) as usize;
                rates[i] = self.draw_rate(RATES[i].starts_with("bps"));
            }
            for (name, (rate, burst)) in RATES.iter().zip(rates) {
                new.push(((*name).into(), rate.to_string()));
                new.push((format!("{name}_burst"), burst.to_string()));
            }
        }
        new
    }

    /// Settings without any limit.
    pub(super) fn none(&self) -> Vec<(String, String)> {
        let rates = RATES.iter().flat_map(|name| [(*name).to_string(), format!("{name}_burst")]);
        rates.chain(["wbt_lat_usec".into()]).map(|name| (name, "0".into())).collect()
    }

    fn draw_rate(&mut self, bytes: bool) -> (u64, u64) {
        let (rates, bursts): (&[u64], &[u64]) = match bytes {
            true => (&[1_000_000, 10_000_000, 123_456_789, 1_000_000_000], &[0, 0, 1, 4096, 100_000]),
            false => (&[1000, 3333, 20_000, 1_000_000], &[0, 0, 1, 7, 50]),
        };
        (self.rng.pick(rates), self.rng.pick(bursts))
    }

    /// The settings that the disk gets. They differ from `new` only if a bug is planted.
    pub(super) fn told(&self, new: &[(String, String)]) -> Vec<(String, String)> {
        let tell = |(name, value): &(String, String)| {
            let times = if RATES.contains(&name.as_str()) { self.factor } else { 1 };
            (name.clone(), value.parse::<u64>().map_or(value.clone(), |v| (v * times).to_string()))
        };
        new.iter().map(tell).collect()
    }

    /// Records that new settings are in effect.
    pub(super) fn changed(&mut self, new: &[(String, String)]) {
        let value = |name: &str| new.iter().find(|(n, _)| n == name).and_then(|(_, v)| v.parse().ok());
        for (meter, name) in self.meters.iter_mut().zip(RATES) {
            let (Some(per_sec), Some(burst)) = (value(name), value(&format!("{name}_burst"))) else { continue };
            if (per_sec, burst) != (meter.per_sec, meter.burst) {
                meter.check(name);
                let changes = meter.changes + 1;
                *meter = Meter { per_sec, burst, changes, ended: Vec::new() };
            }
        }
    }

    /// The limits under which a bio that is submitted now is.
    pub(super) fn under(&self) -> LimitEpochs {
        self.meters.each_ref().map(|m| m.changes)
    }

    /// Records a bio that completed without error.
    pub(super) fn ended(&mut self, bio: &Bio, under: &LimitEpochs, submitted: u64, now: u64) {
        if bio.op == Op::Flush {
            return;
        }
        let bytes = if bio.op.has_data() { u64::from(bio.nr_sectors) << 9 } else { 0 };
        for ((meter, name), changes) in self.meters.iter_mut().zip(RATES).zip(under) {
            let (what, direction) = name.split_once('_').expect("a name of two words");
            let counts = direction == "total" || (direction == "write") == bio.op.is_write();
            let units = if what == "iops" { 1 } else { bytes };
            if counts && units > 0 && meter.per_sec > 0 && *changes == meter.changes {
                meter.ended.push((submitted, now, units));
            }
        }
    }

    /// Checks that all rates were kept.
    pub(super) fn check(&self) {
        self.meters.iter().zip(RATES).for_each(|(meter, name)| meter.check(name));
    }

    /// Checks the limits that the disk reports.
    pub(super) fn check_settings(&self, limits: &IoLimits) {
        for (meter, name) in self.meters.iter().zip(RATES) {
            let is = limits.get(name).expect("a name of a limit");
            assert_eq!(is, meter.per_sec * self.factor, "{name} is another than was set");
        }
    }
}

/// Fits the settings to the mode: the legacy mode has no throttling, and rejects a target.
pub(super) fn fit(c: &mut QueueConfig) {
    if c.mode == Mode::Sq && c.wbt_lat_usec.is_some_and(|us| us > 0) {
        c.wbt_lat_usec = Some(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blk::qos::rates::LIMIT_NAMES;

    #[test]
    fn rates_are_the_limits_without_their_bursts() {
        let listed: Vec<&str> = LIMIT_NAMES.into_iter().filter(|name| !name.ends_with("_burst")).collect();
        assert_eq!(listed, RATES);
        assert!(RATES.iter().all(|name| LIMIT_NAMES.contains(&format!("{name}_burst").as_str())));
    }

    fn meter(ended: &[(u64, u64, u64)]) -> Meter {
        Meter { per_sec: 1000, burst: 2, changes: 0, ended: ended.to_vec() }
    }

    /// Two I/Os at once after an idle time, then one each millisecond, whatever was before the window.
    #[test]
    fn what_is_within_the_rate_holds() {
        meter(&[(0, 0, 1), (0, 0, 1), (0, 1_000_000, 1), (5, 2_000_000, 1), (9_000_000, 9_000_000, 1)]).check("x");
        // Submitted before the window and completed together, because the disk was slow.
        meter(&[(0, 9_000_000, 1); 11]).check("x");
    }

    #[test]
    #[should_panic(expected = "12 were submitted since 0 and ended by 9000000, above the limit")]
    fn one_more_than_the_rate_does_not() {
        meter(&[(0, 9_000_000, 1); 12]).check("x");
    }

    #[test]
    fn each_kind_is_off_in_most_cases_and_on_in_many() {
        let on: Vec<(bool, bool)> = (0..4000).map(|s| Limits::new(s, false)).map(|l| (l.wbt, l.rates)).collect();
        let both = on.iter().filter(|o| o.0 && o.1).count();
        let none = on.iter().filter(|o| !o.0 && !o.1).count();
        assert!(both > 150 && (2000..2600).contains(&none), "{both} {none}");
    }
}
