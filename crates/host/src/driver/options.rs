// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options of targets: `name=value,...`, each with its valid values.

use crate::error::{Error, Result};
use blk::suggest::did_you_mean;
use std::str::FromStr;

/// One option of a kind: its name, its valid values (for messages), and how it is set.
pub(crate) struct OptionDef<T> {
    pub(crate) name: &'static str,
    pub(crate) range: &'static str,
    pub(crate) set: fn(&mut T, &str) -> Option<()>,
}

pub(crate) const SIZE_RANGE: &str = "4096..=8e, such as 16g";
pub(crate) const BLOCKSIZE_RANGE: &str = "512, 1024, 2048 or 4096";

pub(crate) fn set<T>(field: &mut T, value: Option<T>) -> Option<()> {
    *field = value?;
    Some(())
}

pub(crate) fn within(v: &str, min: u64, max: u64) -> Option<u64> {
    u64::from_str(v).ok().filter(|n| (min..=max).contains(n))
}

pub(crate) fn blocksize(v: &str) -> Option<u32> {
    bytes(v).filter(|n| [512, 1024, 2048, 4096].contains(n)).map(|n| n as u32)
}

pub(crate) fn disk_size(v: &str) -> Option<u64> {
    bytes(v).filter(|n| (4096..=8 << 60).contains(n))
}

/// Parses bytes with an optional unit: k, m, g, t, p, e, each 1024 times the one before, also written as kb or kib.
pub fn bytes(v: &str) -> Option<u64> {
    let digits = v.len() - v.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = v.split_at(digits);
    let unit = unit.to_ascii_lowercase();
    let shift = match unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit) {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        "e" => 60,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Parses `name=value,...` over the defaults of a kind.
pub(crate) fn read<T: Default>(kind: &str, text: &str, defs: &[OptionDef<T>]) -> Result<T> {
    let mut options = T::default();
    for item in text.split(',').filter(|item| !item.is_empty()) {
        let (name, value) = item.split_once('=').unwrap_or((item, ""));
        let Some(def) = defs.iter().find(|d| d.name == name) else {
            let hint = did_you_mean(name, defs.iter().map(|d| d.name));
            let all: Vec<_> = defs.iter().map(|d| d.name).collect();
            let all = all.join(", ");
            return Err(Error::usage(format!("target '{kind}' has no option '{name}'; {hint}Options: {all}")));
        };
        if (def.set)(&mut options, value).is_none() {
            return Err(Error::usage(format!("target '{kind}': {name}={value}: must be {}", def.range)));
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{model, null, ram};

    #[test]
    fn every_option_has_a_range_and_refuses_nonsense() {
        fn check<T: Default>(defs: &[OptionDef<T>]) {
            for d in defs {
                assert!((d.set)(&mut T::default(), "nonsense").is_none() && !d.range.is_empty(), "{}", d.name);
            }
        }
        check(null::OPTIONS);
        check(ram::OPTIONS);
        check(model::OPTIONS);
    }
}
