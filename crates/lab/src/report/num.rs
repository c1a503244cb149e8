// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Short numbers and dates in the forms fio prints.
//!
//! Guarantees: the same characters as fio 3.33 for the same value (tests/it/fio_parity.rs compares with the installed fio).
//! Does not: follow the locale or the time zone; dates are UTC.

/// Whether a number is scaled by 1024 (`Ki`, `Mi`, ...) or 1000 (`k`, `M`, ...).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Steps of 1024.
    Binary,
    /// Steps of 1000.
    Decimal,
}

impl Scale {
    const fn step(self) -> u64 {
        match self {
            Scale::Binary => 1024,
            Scale::Decimal => 1000,
        }
    }

    const fn prefixes(self) -> [&'static str; 6] {
        match self {
            Scale::Binary => ["", "Ki", "Mi", "Gi", "Ti", "Pi"],
            Scale::Decimal => ["", "k", "M", "G", "T", "P"],
        }
    }
}

/// Digits of rates and sizes in fio's text (its `significant_figures` default).
pub const RATE_DIGITS: usize = 4;
/// Digits of minimum and maximum latencies in fio's text.
pub const LATENCY_DIGITS: usize = 6;

/// `value` in at most `digits` digits with a prefix, then `unit`: 793497 becomes `793k`, 15041000 B/s `15.0MB/s`.
///
/// fio's rule: divide until the whole part fits. If n digits are then free, and n is at least 2, there are n - 1 decimals,
/// because the point takes a place. The decimals are rounded apart from the whole part, so that a tie falls as in fio; what overflows
/// is carried into the whole part.
pub fn short(value: u64, digits: usize, scale: Scale, unit: &str) -> String {
    short_from(value, digits, scale, unit, 0)
}

/// As [`short`], of a value that already has a prefix, by its number: 0 none, 1 kilo, ...
pub(super) fn short_from(value: u64, digits: usize, scale: Scale, unit: &str, prefix: usize) -> String {
    let prefixes = scale.prefixes();
    let (mut whole, mut rest, mut prefix) = (value, None, prefix);
    while whole.to_string().len() > digits && prefix + 1 < prefixes.len() {
        rest = Some(whole % scale.step());
        whole /= scale.step();
        prefix += 1;
    }
    let prefix = prefixes[prefix];
    let Some(rest) = rest else { return format!("{whole}{prefix}{unit}") };
    let free = digits.saturating_sub(whole.to_string().len());
    if free <= 1 {
        let rounded = whole + u64::from(rest >= scale.step() / 2);
        return format!("{rounded}{prefix}{unit}");
    }
    let fraction = format!("{:.*}", free - 1, rest as f64 / scale.step() as f64);
    let carried = whole + u64::from(fraction.starts_with('1'));
    format!("{carried}.{}{prefix}{unit}", &fraction[2..])
}

/// A size in bytes as fio prints it first (`3100MiB`), or second, in parentheses (`3250MB`).
pub fn bytes(value: u64, scale: Scale) -> String {
    short(value, RATE_DIGITS, scale, "B")
}

/// A bandwidth in bytes per second.
pub fn bytes_per_second(value: u64, scale: Scale) -> String {
    short(value, RATE_DIGITS, scale, "B/s")
}

/// Formats a latency in nanoseconds with three significant digits: `812ns`, `4.02us`, `37.1ms`, `2.50s`.
pub fn latency(ns: f64) -> String {
    let (value, unit) = match ns {
        n if n < 999.5 => return format!("{n:.0}ns"),
        n if n < 999_500.0 => (n / 1e3, "us"),
        n if n < 999_500_000.0 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    let decimals = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.decimals$}{unit}")
}

/// Seconds since 1970 as ctime(3) writes them, in UTC: `Sat Nov 21 00:31:01 2026`.
pub fn ctime(unix_seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let (year, month, day) = civil(days);
    let weekday = DAYS[(days % 7) as usize];
    let month = MONTHS[month as usize - 1];
    format!("{weekday} {month} {day:2} {:02}:{:02}:{:02} {year}", second / 3600, second / 60 % 60, second % 60)
}

/// Seconds since 1970 in UTC for a file name: `20261121T003101Z`.
pub fn compact_utc(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let (year, month, day) = civil(days);
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{day:02}T{h:02}{m:02}{s:02}Z")
}

/// Year, month and day of a number of days since 1970-01-01 in the Gregorian calendar. Years are counted from March, so that the leap day is
/// the last of its year (the method of H. Hinnant's "chrono-compatible low-level date algorithms").
pub fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn as_fio_printed_them() {
        // Values and texts from runs of fio 3.33.
        for (v, text) in [(793_497, "793k"), (3672, "3672"), (74_600, "74.6k"), (1_954_000, "1954k"), (256_000, "256k")]
        {
            assert_eq!(short(v, RATE_DIGITS, Scale::Decimal, ""), text);
        }
        assert_eq!(short(1_199_700, LATENCY_DIGITS, Scale::Decimal, ""), "1199.7k");
        assert_eq!(short(436_441, LATENCY_DIGITS, Scale::Decimal, ""), "436441");
        assert_eq!(bytes(1_048_576, Scale::Binary), "1024KiB");
        assert_eq!(bytes(1_048_576, Scale::Decimal), "1049kB");
        assert_eq!(bytes_per_second(15_041_041, Scale::Decimal), "15.0MB/s");
        assert_eq!(bytes_per_second(15_041_041, Scale::Binary), "14.3MiB/s");
        assert_eq!(bytes(10_000_000, Scale::Binary), "9766KiB");
        assert_eq!(bytes(10_485_760, Scale::Binary), "10.0MiB");
        assert_eq!(
            (bytes(10_238, Scale::Binary), bytes_per_second(89_043, Scale::Binary)),
            ("10.00KiB".into(), "87.0KiB/s".into())
        );
    }

    #[test]
    fn latencies_have_three_digits() {
        for (ns, text) in [
            (0.4, "0ns"),
            (812.2, "812ns"),
            (999.6, "1.00us"),
            (4_020.0, "4.02us"),
            (37_100.0, "37.1us"),
            (999_499.0, "999us"),
            (1_500_000.0, "1.50ms"),
            (2.5e9, "2.50s"),
        ] {
            assert_eq!(latency(ns), text);
        }
    }

    #[test]
    fn dates() {
        assert_eq!(ctime(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(ctime(951_782_400), "Tue Feb 29 00:00:00 2000");
        assert_eq!(ctime(1_795_221_061), "Sat Nov 21 00:31:01 2026");
        assert_eq!(ctime(4_107_542_399), "Sun Feb 28 23:59:59 2100");
        assert_eq!(compact_utc(1_795_221_061), "20261121T003101Z");
    }

    proptest! {
        #[test]
        fn the_short_form_is_near_the_value(v in 0u64..1_000_000_000_000_000, digits in 4usize..7, binary: bool) {
            let scale = if binary { Scale::Binary } else { Scale::Decimal };
            let text = short(v, digits, scale, "");
            let split = text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len());
            let power = scale.prefixes().iter().position(|p| *p == &text[split..]).unwrap();
            let back = text[..split].parse::<f64>().unwrap() * (scale.step() as f64).powi(power as i32);
            prop_assert!((back - v as f64).abs() <= v as f64 * 0.006, "{} -> {}", v, text);
            prop_assert!(text[..split].len() <= digits + 1);
        }

        #[test]
        fn days_count_up_by_one(day in 0u64..200_000) {
            let (a, b) = (civil(day), civil(day + 1));
            prop_assert!(b == (a.0, a.1, a.2 + 1) || b == (a.0, a.1 + 1, 1) || b == (a.0 + 1, 1, 1));
            prop_assert!((28..=31).contains(&a.2) || b.2 == a.2 + 1);
        }
    }
}
