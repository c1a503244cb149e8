// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limits of a disk as settings: six rates, each with a burst, under the names QEMU and libvirt use for them.
//!
//! `iops_*` count I/Os as they are submitted, before splitting and merging; `bps_*` count bytes of reads and writes.
//! Flushes are not limited, discards and write zeroes count as writes of no bytes. Does not do: the limiting (`limits`).
//! Source of the names: QEMU's `throttling.iops-total` and so on (`-` read as `_`), libvirt's `<iotune>`.

/// A rate and its burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// I/Os or bytes per second; 0 = no limit.
    pub per_sec: u64,
    /// I/Os or bytes that may be submitted at once after an idle time (QEMU's `iops-total-max`, in units instead of as
    /// a rate). 0 = no burst: I/Os are evenly spaced. An I/O of more bytes than the burst waits until nothing is owed.
    pub burst: u64,
}

/// Limits for all I/O, for reads and for writes; every limit that is set applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Reads and writes together.
    pub total: Rate,
    /// Reads.
    pub read: Rate,
    /// Writes, discards and write zeroes.
    pub write: Rate,
}

impl Rates {
    fn all(&self) -> [Rate; 3] {
        [self.total, self.read, self.write]
    }
}

/// The limits of one disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoLimits {
    /// I/Os per second.
    pub iops: Rates,
    /// Bytes per second.
    pub bps: Rates,
}

/// Greatest `iops_*`: one per nanosecond.
pub(crate) const MAX_IOPS: u64 = 1_000_000_000;
/// Greatest `bps_*`, and greatest burst of one.
pub(crate) const MAX_BPS: u64 = 1_000_000_000_000;

/// Every name that [`IoLimits::get`] knows.
pub const LIMIT_NAMES: [&str; 12] = [
    "iops_total",
    "iops_read",
    "iops_write",
    "iops_total_burst",
    "iops_read_burst",
    "iops_write_burst",
    "bps_total",
    "bps_read",
    "bps_write",
    "bps_total_burst",
    "bps_read_burst",
    "bps_write_burst",
];

impl IoLimits {
    /// The value of a setting of this group; `None` for other names.
    pub fn get(&self, name: &str) -> Option<u64> {
        let mut copy = *self;
        copy.field(name).map(|(value, _)| *value)
    }

    /// The field behind a name, and its greatest value.
    pub(crate) fn field(&mut self, name: &str) -> Option<(&mut u64, u64)> {
        let (rates, max, rest) = match (name.strip_prefix("iops_"), name.strip_prefix("bps_")) {
            (Some(rest), _) => (&mut self.iops, MAX_IOPS, rest),
            (_, Some(rest)) => (&mut self.bps, MAX_BPS, rest),
            _ => return None,
        };
        let (direction, burst) = match rest.strip_suffix("_burst") {
            Some(direction) => (direction, true),
            None => (rest, false),
        };
        let rate = match direction {
            "total" => &mut rates.total,
            "read" => &mut rates.read,
            "write" => &mut rates.write,
            _ => return None,
        };
        Some((if burst { &mut rate.burst } else { &mut rate.per_sec }, max))
    }

    /// Returns the first burst without a rate: such a burst has no effect, so it is an error in the settings.
    pub(crate) fn burst_without_rate(&self) -> Option<(&'static str, u64)> {
        let orphan = |name: &&str| {
            let rate = name.strip_suffix("_burst").and_then(|rate| self.get(rate));
            rate == Some(0) && self.get(name) != Some(0)
        };
        LIMIT_NAMES.iter().find(|name| orphan(name)).and_then(|name| Some((*name, self.get(name)?)))
    }

    /// Whether anything is limited.
    pub(crate) fn is_set(&self) -> bool {
        self.iops.all().iter().chain(&self.bps.all()).any(|r| r.per_sec > 0)
    }

    /// Whether reads and writes have limits of their own.
    pub(crate) fn has_directions(&self) -> bool {
        [self.iops.read, self.iops.write, self.bps.read, self.bps.write].iter().any(|r| r.per_sec > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_a_field_of_its_own() {
        let mut l = IoLimits::default();
        for (i, name) in LIMIT_NAMES.iter().enumerate() {
            *l.field(name).expect("listed").0 = i as u64 + 1;
        }
        for (i, name) in LIMIT_NAMES.iter().enumerate() {
            assert_eq!(l.get(name), Some(i as u64 + 1), "{name}");
        }
        for other in ["iops", "iops_", "iops_both", "bps_total_burst_burst", "iops_total_max", "nomerges"] {
            assert_eq!(l.get(other), None, "{other}");
        }
        assert!(l.is_set() && l.has_directions());
        assert_eq!(l.burst_without_rate(), None);
        l.bps.read.per_sec = 0;
        assert_eq!(l.burst_without_rate(), Some(("bps_read_burst", 11)));
    }
}
