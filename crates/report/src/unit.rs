// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Units of a report's numbers, and how they are shown.
//!
//! Guarantees: three significant digits, a unit prefix that keeps the number readable, and a no-break space between number and unit.
//! Needs from callers: values in the base unit (nanoseconds, bytes per second, I/Os per second, 1 for ratios). Does not: follow the locale.

use serde::{Deserialize, Serialize};

/// The unit of a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A whole number, or a mean of whole numbers.
    #[default]
    Count,
    /// I/Os or transactions per second.
    PerSecond,
    /// Bytes.
    Bytes,
    /// Bytes per second.
    BytesPerSecond,
    /// Nanoseconds.
    Nanoseconds,
    /// Seconds.
    Seconds,
    /// 0 to 100.
    Percent,
    /// A share, 0 to 1, that is shown as a percentile: 0.99 is p99.
    Quantile,
    /// B over A, shown as a change: 1.04 is +4.0%.
    Ratio,
}

/// The no-break space between number and unit.
const SPACE: &str = "\u{a0}";

impl Unit {
    /// Formats a value for tables and labels: `215k`, `148 us` with the sign for micro, `99.9%`.
    pub fn text(self, v: f64) -> String {
        match self {
            Unit::Count => count(v),
            Unit::PerSecond => si(v, ["", "k", "M", "G", "T"], ""),
            Unit::Bytes => binary(v, "B"),
            Unit::BytesPerSecond => binary(v, "B/s"),
            Unit::Nanoseconds => time(v),
            Unit::Seconds => format!("{}{SPACE}s", digits(v)),
            Unit::Percent => format!("{v:.1}%"),
            Unit::Quantile => quantile(v),
            Unit::Ratio => signed_percent(100.0 * (v - 1.0)),
        }
    }

    /// Formats a value for the tick of an axis, with no more digits than it needs.
    pub fn tick(self, v: f64) -> String {
        match self {
            Unit::Percent => format!("{}%", trimmed(v)),
            Unit::Ratio => signed(&format!("{}%", trimmed(100.0 * (v - 1.0))), v >= 1.0),
            Unit::Seconds => trimmed(v),
            Unit::Count | Unit::PerSecond => prefixed(v, 1e3, ["", "k", "M", "G", "T"], ""),
            Unit::Bytes => prefixed(v, 1024.0, ["", "Ki", "Mi", "Gi", "Ti"], "B"),
            Unit::BytesPerSecond => prefixed(v, 1024.0, ["", "Ki", "Mi", "Gi", "Ti"], "B/s"),
            Unit::Nanoseconds => match v {
                v if v < 1e3 => format!("{}{SPACE}ns", trimmed(v)),
                v if v < 1e6 => format!("{}{SPACE}\u{b5}s", trimmed(v / 1e3)),
                v if v < 1e9 => format!("{}{SPACE}ms", trimmed(v / 1e6)),
                v => format!("{}{SPACE}s", trimmed(v / 1e9)),
            },
            Unit::Quantile => quantile(v),
        }
    }
}

/// `+4.0%`, with a true minus sign.
pub fn signed_percent(percent: f64) -> String {
    signed(&format!("{:.1}%", percent.abs()), percent >= 0.0)
}

fn signed(text: &str, plus: bool) -> String {
    let text = text.trim_start_matches('-');
    match (text.trim_start_matches(['0', '.']) == "%", plus) {
        (true, _) => text.to_owned(),
        (false, true) => format!("+{text}"),
        (false, false) => format!("\u{2212}{text}"),
    }
}

/// Up to three significant digits.
fn digits(v: f64) -> String {
    match v.abs() {
        a if a >= 99.95 || a == 0.0 => format!("{v:.0}"),
        a if a >= 9.995 => format!("{v:.1}"),
        _ => format!("{v:.2}"),
    }
}

/// At most four decimals, without zeros at the end.
fn trimmed(v: f64) -> String {
    let text = format!("{v:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

fn count(v: f64) -> String {
    if v.fract() != 0.0 && v.abs() < 1e3 { digits(v) } else { grouped(v) }
}

/// `12 345` with thin spaces.
fn grouped(v: f64) -> String {
    let whole = format!("{:.0}", v.abs());
    let mut out = String::from(if v < 0.0 { "\u{2212}" } else { "" });
    for (i, c) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) && whole.len() > 4 {
            out.push('\u{202f}');
        }
        out.push(c);
    }
    out
}

fn si(v: f64, prefixes: [&'static str; 5], unit: &str) -> String {
    scaled(v, 1e3, prefixes, unit)
}

fn binary(v: f64, unit: &str) -> String {
    scaled(v, 1024.0, ["", "Ki", "Mi", "Gi", "Ti"], unit)
}

fn scaled(v: f64, step: f64, prefixes: [&'static str; 5], unit: &str) -> String {
    let (v, prefix) = reduce(v, step, 999.5, prefixes);
    let space = if unit.is_empty() { "" } else { SPACE };
    format!("{}{space}{prefix}{unit}", digits(v))
}

fn prefixed(v: f64, step: f64, prefixes: [&'static str; 5], unit: &str) -> String {
    let (v, prefix) = reduce(v, step, step - 0.001, prefixes);
    let space = if unit.is_empty() { "" } else { SPACE };
    format!("{}{space}{prefix}{unit}", trimmed(v))
}

fn reduce(mut v: f64, step: f64, limit: f64, prefixes: [&'static str; 5]) -> (f64, &'static str) {
    let mut i = 0;
    while v.abs() >= limit && i + 1 < prefixes.len() {
        v /= step;
        i += 1;
    }
    (v, prefixes[i])
}

fn time(ns: f64) -> String {
    match ns.abs() {
        a if a < 999.5 => format!("{}{SPACE}ns", digits(ns)),
        a if a < 999_500.0 => format!("{}{SPACE}\u{b5}s", digits(ns / 1e3)),
        a if a < 999_500_000.0 => format!("{}{SPACE}ms", digits(ns / 1e6)),
        _ => format!("{}{SPACE}s", digits(ns / 1e9)),
    }
}

/// `p50`, `p99.9`.
fn quantile(q: f64) -> String {
    let text = format!("{:.6}", 100.0 * q);
    format!("p{}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        let shown = |unit: Unit, values: &[f64]| {
            let all: Vec<String> = values.iter().map(|v| unit.text(*v).replace(['\u{a0}', '\u{202f}'], " ")).collect();
            all.join(", ")
        };
        assert_eq!(
            shown(Unit::PerSecond, &[0.0, 7.0, 812.4, 99_950.0, 215_300.0, 4.2e6]),
            "0, 7.00, 812, 100k, 215k, 4.20M"
        );
        assert_eq!(
            shown(Unit::Nanoseconds, &[37.0, 999.6, 148_300.0, 2.5e9]),
            "37.0 ns, 1.00 \u{b5}s, 148 \u{b5}s, 2.50 s"
        );
        assert_eq!(shown(Unit::BytesPerSecond, &[4096.0, 881_000_000.0]), "4.00 KiB/s, 840 MiB/s");
        assert_eq!(shown(Unit::Ratio, &[1.041, 0.8, 1.0]), "+4.1%, \u{2212}20.0%, 0.0%");
        assert_eq!(shown(Unit::Count, &[3.0, 1234.0, 1_234_567.0, 3.25]), "3, 1234, 1 234 567, 3.25");
        assert_eq!(shown(Unit::Quantile, &[0.5, 0.99, 0.9999]), "p50, p99, p99.99");
    }

    #[test]
    fn ticks_are_short() {
        let shown = |unit: Unit, v: f64| unit.tick(v).replace('\u{a0}', " ");
        assert_eq!((shown(Unit::PerSecond, 200_000.0), shown(Unit::PerSecond, 0.0)), ("200k".into(), "0".into()));
        assert_eq!(
            (shown(Unit::Nanoseconds, 1e5), shown(Unit::Nanoseconds, 2.5e6)),
            ("100 \u{b5}s".into(), "2.5 ms".into())
        );
        assert_eq!(
            (shown(Unit::Ratio, 1.05), shown(Unit::Ratio, 1.0), shown(Unit::Ratio, 0.975)),
            ("+5%".into(), "0%".into(), "\u{2212}2.5%".into())
        );
    }
}
