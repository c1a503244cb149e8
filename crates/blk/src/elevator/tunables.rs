// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An elevator's tunables apart from its state: names, units and ranges in one table, values readable without a lock.
//!
//! Guarantees: a value outside its range and an unknown name are refused with a message that says the rule, the value
//! and what would be right. A change is seen by the next call into the elevator. (The kernel clamps values instead. In
//! a tool that compares settings it would be worse if a setting silently differed from the value requested.)

use super::interface::Tunable;
use crate::relaxed::FieldU64;
use crate::suggest::did_you_mean;

/// One row of an elevator's table.
pub(crate) struct TunableDef {
    /// The kernel's name.
    pub(crate) name: &'static str,
    /// Value at start.
    pub(crate) default: u64,
    /// Minimum value accepted.
    pub(crate) min: u64,
    /// Greatest value accepted.
    pub(crate) max: u64,
    /// "ms", "requests" or "".
    pub(crate) unit: &'static str,
}

/// The greatest value of a kernel tunable that is kept as an `int`.
pub(crate) const INT_MAX: u64 = i32::MAX as u64;

/// The values of `N` tunables.
pub(crate) struct TunableSet<const N: usize> {
    defs: &'static [TunableDef; N],
    values: [FieldU64; N],
}

impl<const N: usize> TunableSet<N> {
    /// All at their defaults.
    pub(crate) fn new(defs: &'static [TunableDef; N]) -> TunableSet<N> {
        let set = TunableSet { defs, values: core::array::from_fn(|_| FieldU64::default()) };
        for (value, def) in set.values.iter().zip(defs) {
            debug_assert!((def.min..=def.max).contains(&def.default), "{}", def.name);
            value.set(def.default);
        }
        set
    }

    /// Value of row `i`.
    #[inline]
    pub(crate) fn get(&self, i: usize) -> u64 {
        self.values[i].get()
    }

    /// Sets row `i`. Panics when the elevator itself sets a value outside the range.
    pub(crate) fn put(&self, i: usize, value: u64) {
        let def = &self.defs[i];
        assert!((def.min..=def.max).contains(&value), "{}={value}", def.name);
        self.values[i].set(value);
    }

    /// Sets the tunable called `name`, for `elevator`.
    pub(crate) fn set(&self, elevator: &str, name: &str, value: u64) -> Result<(), String> {
        let Some(i) = self.defs.iter().position(|d| d.name == name) else {
            return Err(unknown_tunable(elevator, name, self.defs.iter().map(|d| d.name)));
        };
        let TunableDef { min, max, unit, .. } = self.defs[i];
        if !(min..=max).contains(&value) {
            let space = if unit.is_empty() { "" } else { " " };
            return Err(format!("iosched.{name}={value}: must be {min}..={max}{space}{unit} ({elevator})"));
        }
        self.values[i].set(value);
        Ok(())
    }

    /// All of them with their present values.
    pub(crate) fn list(&self) -> Vec<Tunable> {
        let row = |(d, v): (&TunableDef, &FieldU64)| Tunable {
            name: d.name,
            value: v.get(),
            min: d.min,
            max: d.max,
            unit: d.unit,
        };
        self.defs.iter().zip(&self.values).map(row).collect()
    }
}

/// The message for a tunable that `elevator` does not have.
pub(crate) fn unknown_tunable(elevator: &str, name: &str, names: impl Iterator<Item = &'static str> + Clone) -> String {
    let mut list = names.clone().peekable();
    if list.peek().is_none() {
        return format!("{name}: {elevator} has no tunables");
    }
    let all = list.collect::<Vec<_>>().join(", ");
    format!("{name}: no tunable of {elevator}; {}It has {all}", did_you_mean(name, names))
}

#[cfg(test)]
mod tests {
    use super::*;

    static DEFS: [TunableDef; 2] = [
        TunableDef { name: "read_expire", default: 500, min: 0, max: INT_MAX, unit: "ms" },
        TunableDef { name: "front_merges", default: 1, min: 0, max: 1, unit: "" },
    ];

    #[test]
    fn values_are_set_by_name_and_bad_ones_refused_with_the_rule() {
        let t = TunableSet::new(&DEFS);
        assert_eq!((t.get(0), t.get(1)), (500, 1));
        assert_eq!(t.set("x", "read_expire", 7), Ok(()));
        assert_eq!(t.list()[0].value, 7);
        assert_eq!(t.set("x", "front_merges", 2).unwrap_err(), "iosched.front_merges=2: must be 0..=1 (x)");
        assert_eq!(
            t.set("x", "read_expire", 1 << 40).unwrap_err(),
            format!("iosched.read_expire={}: must be 0..={INT_MAX} ms (x)", 1u64 << 40)
        );
        assert_eq!((t.get(0), t.get(1)), (7, 1));
    }

    #[test]
    fn unknown_names_are_answered_with_the_nearest() {
        let t = TunableSet::new(&DEFS);
        let e = t.set("x", "read-expires", 1).unwrap_err();
        assert!(e.contains("did you mean 'read_expire'?"), "{e}");
        let e = t.set("x", "quantum", 1).unwrap_err();
        assert!(!e.contains("did you mean") && e.contains("read_expire, front_merges"), "{e}");
        assert_eq!(unknown_tunable("noop", "quantum", [].into_iter()), "quantum: noop has no tunables");
    }
}
