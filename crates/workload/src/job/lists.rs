// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options whose value has a grammar of its own: `rw`, `bssplit`, `random_distribution`, `filename`, `file_service_type`, `cpus_allowed`, `percentile_list`.
//!
//! Guarantees: the results have the properties documented at their types in `values` (shares of zones sum to 100, lists
//! ascend, ...). fio accepts some lists that are contradictory; these are rejected here. Source: fio HOWTO.

use super::error::{Reject, quote};
use super::policy::{IoClass, PrioShare, SizePrios};
use super::units::{self, Units};
use super::values::{Distribution, Extent, FileService, PerDir, PrioClass, Rw, RwMode, SizeWeight, Zone};
use blk::suggest::did_you_mean;

/// Longest `bssplit` per direction; fio's bound.
const BSSPLIT_MAX: usize = 64;
/// Maximum number of zones per direction; fio's bound.
const ZONES_MAX: usize = 256;
/// Longest `percentile_list`; fio's bound.
const PERCENTILES_MAX: usize = 20;
/// Highest CPU number a list may name, so that `0-4000000000` is not expanded.
const CPU_MAX: u64 = 65_535;
/// fio's default exponents.
const ZIPF_DEFAULT_THETA: f64 = 1.1;
const PARETO_DEFAULT_H: f64 = 0.2;

/// The words `rw=` knows, in fio's order.
pub(super) const RW_WORDS: [&str; 11] = [
    "read",
    "write",
    "trim",
    "randread",
    "randwrite",
    "randtrim",
    "rw",
    "readwrite",
    "randrw",
    "trimwrite",
    "randtrimwrite",
];

/// `rw=WORD[:N]`: the mode, and N as typed.
pub(super) fn rw(text: &str) -> Result<(Rw, Option<&str>), Reject> {
    let (word, modifier) = text.split_once(':').map_or((text, None), |(w, m)| (w, Some(m)));
    let (base, random) = word.strip_prefix("rand").map_or((word, false), |base| (base, true));
    let mode = match (base, random) {
        ("read", _) => RwMode::Read,
        ("write", _) => RwMode::Write,
        ("trim", _) => RwMode::Trim,
        ("rw", _) | ("readwrite", false) => RwMode::ReadWrite,
        ("trimwrite", _) => RwMode::TrimWrite,
        _ => {
            let hint = did_you_mean(word, RW_WORDS.iter().copied());
            return Err(Reject::new("is no I/O pattern", &format!("{hint}use one of {}", RW_WORDS.join(", "))));
        }
    };
    Ok((Rw { mode, random }, modifier))
}

/// Parses one direction of `bssplit=`: `size/percent:size/:...`; blank percentages share the remainder.
pub(super) fn bssplit(text: &str, units: Units, max_bytes: u64) -> Result<Vec<SizeWeight>, Reject> {
    let entry = |item: &str| {
        let (size, pct) = item.split_once('/').unwrap_or((item, ""));
        Ok((units::int_in(size, units, 1, max_bytes)?, share(pct)?))
    };
    let entries = text.split(':').map(entry).collect::<Result<Vec<_>, Reject>>()?;
    if entries.len() > BSSPLIT_MAX {
        let rule = format!("has {} sizes for one direction", entries.len());
        return Err(Reject::new(&rule, &format!("give at most {BSSPLIT_MAX}")));
    }
    let given: Option<Vec<u32>> = entries.iter().map(|e| e.1).collect();
    // fio does not ask for 100: the size with the largest share gets what is missing.
    let shares = match given.filter(|shares| shares.iter().any(|&pct| pct > 0)) {
        Some(shares) => shares,
        None => fill_shares(entries.iter().map(|e| e.1).collect())?,
    };
    Ok(entries.iter().zip(shares).map(|(e, pct)| SizeWeight { bytes: e.0, pct }).collect())
}

/// Parses one direction of `cmdprio_bssplit=`: `size/percent[/class/level]:...`, by size. Entries of 0 percent do not count.
pub(super) fn cmdprio_bssplit(text: &str, units: Units, max_bytes: u64) -> Result<Vec<SizePrios>, Reject> {
    let number = |text: &str, max: u8| match text.trim().parse::<u8>() {
        Ok(n) if n <= max => Ok(n),
        _ => Err(Reject::new(&format!("has '{}'", quote(text)), &format!("write a number 0..={max}"))),
    };
    let mut sizes: Vec<SizePrios> = Vec::new();
    for item in text.split(':') {
        let parts: Vec<&str> = item.split('/').collect();
        let bytes = units::int_in(parts[0], units, 1, max_bytes)?;
        let prio = match parts[1..] {
            [] | [_] => None,
            [_, class, level] => {
                Some(IoClass { class: PrioClass::of_number(number(class, 3)?.into()), level: number(level, 7)? })
            }
            _ => return Err(Reject::new(&format!("has '{}'", quote(item)), "write size/percent[/class/level]")),
        };
        let Some(pct) = share(parts.get(1).unwrap_or(&""))?.filter(|pct| *pct > 0) else { continue };
        let share = PrioShare { pct, prio };
        match sizes.iter_mut().find(|s| s.bytes == bytes) {
            Some(size) => size.shares.push(share),
            None => sizes.push(SizePrios { bytes, shares: vec![share] }),
        }
    }
    if let Some(size) = sizes.iter().find(|s| s.shares.iter().map(|s| s.pct).sum::<u32>() > 100) {
        let rule = format!("has percentages for {} bytes that sum to more than 100", size.bytes);
        return Err(Reject::new(&rule, "lower them"));
    }
    sizes.sort_by_key(|s| s.bytes);
    Ok(sizes)
}

/// A percentage, or `None` for a blank.
fn share(text: &str) -> Result<Option<u32>, Reject> {
    let text = text.trim();
    let text = text.strip_suffix('%').unwrap_or(text);
    match (text.is_empty(), text.parse::<u32>()) {
        (true, _) => Ok(None),
        (false, Ok(pct)) if pct <= 100 => Ok(Some(pct)),
        _ => Err(Reject::new(
            &format!("has '{}' for a percentage", quote(text)),
            "percentages are whole numbers 0..=100",
        )),
    }
}

/// Gives each blank an equal part of the remainder. The last blank takes the rest, so the sum is 100.
fn fill_shares(shares: Vec<Option<u32>>) -> Result<Vec<u32>, Reject> {
    let given: u32 = shares.iter().flatten().sum();
    let blanks = shares.iter().filter(|s| s.is_none()).count() as u32;
    if given > 100 || (blanks == 0 && given != 100) {
        let rule = format!("has percentages that sum to {given}");
        return Err(Reject::new(&rule, "they must sum to 100; a blank percentage takes the rest"));
    }
    let mut left = 100 - given;
    let mut blanks_left = blanks;
    let fill = |share: Option<u32>| {
        share.unwrap_or_else(|| {
            let part = if blanks_left == 1 { left } else { (100 - given) / blanks };
            blanks_left -= 1;
            left -= part;
            part
        })
    };
    Ok(shares.into_iter().map(fill).collect())
}

/// `random_distribution=`. Only zoned forms take one value per direction, as in fio.
pub(super) fn distribution(text: &str, units: Units) -> Result<PerDir<Option<Distribution>>, Reject> {
    let (word, arguments) = text.split_once([':', '=']).map_or((text, None), |(w, a)| (w, Some(a)));
    if let "zoned" | "zoned_abs" = word {
        let zones = arguments
            .ok_or_else(|| Reject::new("has no zones", "write access%/size%:..., such as zoned:60/10:40/90"))?;
        let absolute = word == "zoned_abs";
        return units::per_dir(zones, &[','], |part| zoned(part, absolute, units).map(Distribution::Zoned));
    }
    let arguments = arguments.map(floats).transpose()?.unwrap_or_default();
    skewed(word, &arguments).map(|d| PerDir::all(Some(d)))
}

/// A distribution by its name and numbers.
fn skewed(word: &str, numbers: &[f64]) -> Result<Distribution, Reject> {
    let (first, center) = match *numbers {
        [] => (None, None),
        [a] => (Some(a), None),
        [a, c] => (Some(a), Some(c)),
        _ => return Err(Reject::new("has too many numbers", "write NAME:value[:center]")),
    };
    one_distribution(word, first, centered(center)?)
}

fn centered(center: Option<f64>) -> Result<Option<f64>, Reject> {
    match center {
        Some(center) if !(0.0..=1.0).contains(&center) => {
            Err(Reject::new(&format!("has center {center}"), "the center must be 0..=1"))
        }
        _ => Ok(center),
    }
}

/// `file_service_type=`: how the next file is chosen, and for how many I/Os; 0 = to the end of the file.
pub(super) fn file_service(text: &str) -> Result<(FileService, u32), Reject> {
    let (word, argument) = text.split_once(':').map_or((text, None), |(w, a)| (w, Some(a)));
    let service = match word {
        "roundrobin" => FileService::RoundRobin,
        "random" => FileService::Random,
        "sequential" => FileService::Sequential,
        "zipf" | "pareto" | "normal" | "gauss" => {
            let numbers = argument.map(floats).transpose()?.unwrap_or_default();
            let word = if word == "gauss" { "normal" } else { word };
            let deviation = (word == "normal").then(|| numbers.first().copied().unwrap_or(0.0));
            let distribution = match deviation {
                Some(0.0) if numbers.len() <= 2 => {
                    Distribution::Normal { dev_pct: 0.0, center: centered(numbers.get(1).copied())? }
                }
                _ => skewed(word, &numbers)?,
            };
            return Ok((FileService::Skewed(distribution), 1));
        }
        _ => {
            let known = ["roundrobin", "random", "sequential", "zipf", "pareto", "normal", "gauss"];
            let hint = did_you_mean(word, known.into_iter());
            let remedy = "use roundrobin[:N], random[:N], sequential, zipf[:T], pareto[:H], normal[:D] or gauss[:D]";
            return Err(Reject::new("is no way to choose a file", &format!("{hint}{remedy}")));
        }
    };
    let ios = argument.map_or(Ok(1), |n| n.trim().parse());
    let ios = ios.map_err(|_| Reject::new("has a number of I/Os that is none", "write e.g. roundrobin:8"))?;
    Ok((service, ios))
}

/// The names of `filename=`, which `:` separates; a `:` in a name is `\:`. The names keep their `\:`.
pub(super) fn file_names(text: &str) -> Vec<String> {
    let mut names = vec![String::new()];
    let mut last = ' ';
    for c in text.trim().chars() {
        let name = names.last_mut().expect("starts with one");
        if c == ':' && last != '\\' {
            // As in fio, a colon before a name is ignored.
            if !name.is_empty() {
                names.push(String::new());
            }
        } else {
            name.push(c);
        }
        last = c;
    }
    names.retain(|name| !name.is_empty());
    names
}

fn one_distribution(word: &str, value: Option<f64>, center: Option<f64>) -> Result<Distribution, Reject> {
    match word {
        "random" if value.is_none() => Ok(Distribution::Random),
        "zipf" => match value.unwrap_or(ZIPF_DEFAULT_THETA) {
            theta if theta > 0.0 && theta != 1.0 => Ok(Distribution::Zipf { theta, center }),
            _ => {
                Err(Reject::new("has a theta out of range", "zipf's theta must be above 0 and not 1, such as zipf:1.2"))
            }
        },
        "pareto" => match value.unwrap_or(PARETO_DEFAULT_H) {
            h if h > 0.0 && h < 1.0 => Ok(Distribution::Pareto { h, center }),
            _ => Err(Reject::new(
                "has a power out of range",
                "pareto's power must be between 0 and 1, such as pareto:0.2",
            )),
        },
        "normal" => match value {
            Some(dev_pct) if dev_pct > 0.0 && dev_pct <= 100.0 => Ok(Distribution::Normal { dev_pct, center }),
            _ => Err(Reject::new("needs a deviation", "write normal:DEVIATION with 0 < deviation <= 100 (percent)")),
        },
        _ => {
            let known = ["random", "zipf", "pareto", "normal", "zoned", "zoned_abs"];
            let hint = did_you_mean(word, known.into_iter());
            Err(Reject::new(
                "is no distribution",
                &format!("{hint}use random, zipf:T, pareto:H, normal:D, zoned:..., zoned_abs:..."),
            ))
        }
    }
}

fn zoned(text: &str, absolute: bool, units: Units) -> Result<Vec<Zone>, Reject> {
    let mut accesses = Vec::new();
    let mut spans = Vec::new();
    for item in text.split(':') {
        let (access, span) = item
            .split_once('/')
            .ok_or_else(|| Reject::new(&format!("has a zone '{}' without '/'", quote(item)), "write access%/size"))?;
        accesses.push(share(access)?);
        spans.push(span);
    }
    if accesses.len() > ZONES_MAX {
        return Err(Reject::new(&format!("has {} zones", accesses.len()), &format!("give at most {ZONES_MAX}")));
    }
    let accesses = fill_shares(accesses)?;
    let spans = if absolute {
        let bytes = |span: &&str| units::int_in(span, units, 1, u64::MAX).map(Extent::Bytes);
        spans.iter().map(bytes).collect::<Result<Vec<_>, _>>()?
    } else {
        let shares = fill_shares(spans.iter().map(|s| share(s)).collect::<Result<Vec<_>, _>>()?)?;
        shares.into_iter().map(Extent::Percent).collect()
    };
    let unreachable = |(access, span): (&u32, &Extent)| *access > 0 && *span == Extent::Percent(0);
    if accesses.iter().zip(&spans).any(unreachable) {
        return Err(Reject::new("has accesses to an empty zone", "give the zone a size, or no accesses"));
    }
    Ok(accesses.into_iter().zip(spans).map(|(access_pct, span)| Zone { access_pct, span }).collect())
}

/// Floats separated by `:`; each finite.
pub(super) fn floats(text: &str) -> Result<Vec<f64>, Reject> {
    let one = |item: &str| match item.trim().parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err(Reject::new(&format!("has '{}', which is no number", quote(item)), "write numbers separated by ':'")),
    };
    text.split(':').map(one).collect()
}

/// `percentile_list=`: sorted, without repeats.
pub(super) fn percentiles(list: Vec<f64>) -> Result<Vec<f64>, Reject> {
    if let Some(bad) = list.iter().find(|p| !(**p > 0.0 && **p <= 100.0)) {
        return Err(Reject::new(&format!("has percentile {bad}"), "each must be above 0 and at most 100"));
    }
    if list.len() > PERCENTILES_MAX {
        let rule = format!("has {} percentiles", list.len());
        return Err(Reject::new(&rule, &format!("give at most {PERCENTILES_MAX}")));
    }
    let mut list = list;
    list.sort_by(f64::total_cmp);
    list.dedup();
    Ok(list)
}

/// `cpus_allowed=0,5,8-15` (fio also takes `:` between the parts): ascending, without repeats.
pub(super) fn cpus(text: &str) -> Result<Vec<u32>, Reject> {
    let number = |item: &str| match item.trim().parse::<u64>() {
        Ok(cpu) if cpu <= CPU_MAX => Ok(cpu as u32),
        _ => Err(Reject::new(
            &format!("has '{}' for a CPU number", quote(item)),
            "write CPU numbers and ranges: 0,5,8-15",
        )),
    };
    let mut cpus = Vec::new();
    for item in text.split([',', ':']) {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(Reject::new(&format!("has the range '{}'", quote(item)), "write the smaller number first"));
        }
        cpus.extend(first..=last);
        // Repeated wide ranges must not grow the list without bound.
        cpus.sort_unstable();
        cpus.dedup();
    }
    Ok(cpus)
}

/// `cpumask=`: bit n is CPU n.
pub(super) fn cpu_mask(mask: u64) -> Result<Vec<u32>, Reject> {
    let cpus: Vec<u32> = (0..u64::BITS).filter(|n| mask >> n & 1 == 1).collect();
    if cpus.is_empty() { Err(Reject::new("names no CPU", "set at least one bit")) } else { Ok(cpus) }
}
