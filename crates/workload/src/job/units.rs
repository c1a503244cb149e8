// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Numbers with units: bytes, times, percentages, ranges and `read,write,trim` triples.
//!
//! Guarantees: a value is parsed as a whole or rejected. fio parses a prefix of `1.5k` (1) or `1x` (1) and ignores the
//! rest, which starts an unintended run. Each accepted form has the meaning of fio 3.33, measured with the program where it
//! and its manual differ (see [`unit_quirk`]). Needs from callers: the `kb_base` in effect. Does not do: ranges of single
//! options (the table has them). Source: fio HOWTO, "Parameter types".

use super::arith;
use super::error::{Reject, quote};
use super::values::{Extent, PerDir};

/// Nanoseconds of the units a time can be given in.
pub(super) const USEC_NS: u64 = 1_000;
/// One millisecond.
pub(super) const MSEC_NS: u64 = 1_000_000;
/// One second.
pub(super) const SEC_NS: u64 = 1_000_000_000;

/// The base of unit prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Units {
    /// 1024 (fio's default: `k` = 1024, `kib` = 1000) or 1000 (`k` = 1000, `kib` = 1024).
    pub kb_base: u64,
}

impl Units {
    /// Factor of a data suffix (lower case, without digits); `None` = no such unit.
    fn data_factor(self, suffix: &str) -> Option<i128> {
        let inverted = if self.kb_base == 1000 { 1024 } else { 1000 };
        let power = match suffix.bytes().next() {
            None | Some(b'b') => 0,
            Some(b'k') => 1,
            Some(b'm') => 2,
            Some(b'g') => 3,
            Some(b't') => 4,
            Some(b'p') => 5,
            Some(_) => return None,
        };
        let base = match (power, suffix.get(1..).unwrap_or("")) {
            (0, "") | (1.., "" | "b" | "i") => i128::from(self.kb_base),
            (1.., "ib") => inverted,
            _ => return None,
        };
        base.checked_pow(power)
    }
}

/// Splits `text` into digits and suffix; understands `0x`. The value is not negative.
fn digits(text: &str) -> Result<(i128, &str), Reject> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (body, radix) = hex.map_or((text, 10), |body| (body, 16));
    let end = body.find(|c: char| !c.is_digit(radix)).unwrap_or(body.len());
    if end == 0 {
        return Err(Reject::new("is not a whole number", ""));
    }
    let (number, suffix) = body.split_at(end);
    let value = i128::from_str_radix(number, radix).map_err(|_| Reject::new("is too large", ""))?;
    Ok((value, suffix))
}

/// A number with an optional data unit, sign included; without the parenthesised form.
fn plain_int(text: &str, units: Units) -> Result<i128, Reject> {
    let unsigned = text.strip_prefix('-');
    let body = unsigned.or_else(|| text.strip_prefix('+')).unwrap_or(text);
    let (value, suffix) = digits(body)?;
    if suffix.starts_with('.') {
        return Err(Reject::new("must be a whole number", "use a smaller unit, such as 1536 for 1.5k"));
    }
    let factor = units.data_factor(&suffix.to_ascii_lowercase()).ok_or_else(|| {
        Reject::new(&format!("has no unit '{}'", quote(suffix)), "units of data are k, m, g, t, p (also kb, kib, b)")
    })?;
    let value = value.checked_mul(factor).ok_or_else(|| Reject::new("is too large", ""))?;
    Ok(if unsigned.is_some() { -value } else { value })
}

/// `int`: a number with an optional data unit (`4k`, `0x10`, `1mib`), or an expression in parentheses.
pub(super) fn int(text: &str, units: Units) -> Result<i128, Reject> {
    let text = text.trim();
    if text.starts_with('(') {
        let number = |word: &str| plain_int(word, units).map_err(|r| format!("'{}' {}", quote(word), r.rule));
        return arith::eval(text, &number).map_err(|e| Reject::new(&format!("cannot be computed: {e}"), ""));
    }
    plain_int(text, units)
}

/// [`int`] within `min..=max`.
pub(super) fn int_in(text: &str, units: Units, min: u64, max: u64) -> Result<u64, Reject> {
    let value = int(text, units)?;
    match u64::try_from(value) {
        Ok(value) if (min..=max).contains(&value) => Ok(value),
        Err(_) if value > 0 && max == u64::MAX => Err(Reject::new("is too large", "")),
        _ => Err(Reject::new(&range_rule(min, max), "")),
    }
}

fn range_rule(min: u64, max: u64) -> String {
    if max == u64::MAX { format!("must be at least {min}") } else { format!("must be {min}..={max}") }
}

/// A time of fio's command line in ns: `10` (seconds), `500ms`, `1h`.
///
/// # Errors
/// The rule that the text breaks.
pub fn command_line_time_ns(text: &str) -> Result<u64, String> {
    time_ns(text, SEC_NS).map_err(|e| format!("{}; write it as 10 (seconds), 500ms or 1m", e.rule))
}

/// A time in ns: `10`, `500ms`, `1h`; `unit_ns` is what a bare number counts, and a number in parentheses counts us.
pub(super) fn time_ns(text: &str, unit_ns: u64) -> Result<u64, Reject> {
    let text = text.trim();
    let value = if text.starts_with('(') {
        // Numbers in the expression count us, so that `(2*500000)` is one second and `(2*1s)` two.
        let number = |word: &str| match plain_time(word, USEC_NS) {
            Ok(ns) => Ok(ns / i128::from(USEC_NS)),
            Err(reject) => Err(format!("'{}' {}", quote(word), reject.rule)),
        };
        let usec = arith::eval(text, &number).map_err(|e| Reject::new(&format!("cannot be computed: {e}"), ""))?;
        usec.checked_mul(i128::from(USEC_NS)).ok_or_else(|| Reject::new("is too large", ""))?
    } else {
        plain_time(text, unit_ns)?
    };
    u64::try_from(value).map_err(|_| Reject::new("is not a time from 0 to 584 years", ""))
}

fn plain_time(text: &str, unit_ns: u64) -> Result<i128, Reject> {
    let (value, suffix) = digits(text)?;
    if suffix.starts_with('.') {
        return Err(Reject::new("must be a whole number", "use a smaller unit, such as 1500ms for 1.5s"));
    }
    let unit_ns = match suffix.to_ascii_lowercase().as_str() {
        "" => unit_ns,
        "us" | "usec" => USEC_NS,
        "ms" | "msec" => MSEC_NS,
        "s" | "sec" => SEC_NS,
        "m" => 60 * SEC_NS,
        "h" => 3_600 * SEC_NS,
        "d" => 86_400 * SEC_NS,
        _ => {
            let rule = format!("has no time unit '{}'", quote(suffix));
            return Err(Reject::new(&rule, "units of time are us, ms, s, m, h, d"));
        }
    };
    value.checked_mul(i128::from(unit_ns)).ok_or_else(|| Reject::new("is too large", ""))
}

/// `a-b` or `a:b` of times, or one time for both; the smaller first.
pub(super) fn time_range_ns(text: &str, unit_ns: u64) -> Result<(u64, u64), Reject> {
    match text.split_once(['-', ':']) {
        None => time_ns(text, unit_ns).map(|t| (t, t)),
        Some((a, b)) => {
            let (a, b) = (time_ns(a, unit_ns)?, time_ns(b, unit_ns)?);
            Ok((a.min(b), a.max(b)))
        }
    }
}

/// Bytes or `n%` with n in 0..=100.
pub(super) fn extent(text: &str, units: Units) -> Result<Extent, Reject> {
    match text.trim().strip_suffix('%') {
        Some(pct) => match pct.parse::<u32>() {
            Ok(pct) if pct <= 100 => Ok(Extent::Percent(pct)),
            _ => Err(Reject::new("a percentage must be a whole number 0..=100", "")),
        },
        None => int_in(text, units, 0, u64::MAX).map(Extent::Bytes),
    }
}

/// `a-b` or `a:b` within `min..=max`, the smaller first (fio swaps them too).
pub(super) fn range(text: &str, units: Units, min: u64, max: u64) -> Result<(u64, u64), Reject> {
    let (a, b) = text
        .split_once(['-', ':'])
        .ok_or_else(|| Reject::new("is not a range", "write smallest-largest, such as 4k-16k"))?;
    let (a, b) = (int_in(a, units, min, max)?, int_in(b, units, min, max)?);
    Ok((a.min(b), a.max(b)))
}

/// `read[,write[,trim]]`. An empty part keeps what was there (`None`). The last part also holds for the directions after it,
/// unless a comma ends the value.
pub(super) fn per_dir<T: Clone>(
    text: &str,
    separators: &[char],
    part: impl Fn(&str) -> Result<T, Reject>,
) -> Result<PerDir<Option<T>>, Reject> {
    let parts: Vec<&str> = text.split(separators).map(str::trim).collect();
    if parts.len() > 3 {
        let rule = format!("has {} values", parts.len());
        return Err(Reject::new(&rule, "give at most three: read,write,trim"));
    }
    if parts.iter().all(|p| p.is_empty()) {
        return Err(Reject::new("is empty", "give a value"));
    }
    let value = |p: &&str| if p.is_empty() { Ok(None) } else { part(p).map(Some) };
    let values = parts.iter().map(value).collect::<Result<Vec<_>, _>>()?;
    let last = values.len() - 1;
    Ok(PerDir { read: values[0].clone(), write: values[1.min(last)].clone(), trim: values[2.min(last)].clone() })
}

/// Returns a warning about a binary-looking suffix, because fio's rule is unexpected: with `kb_base=1024` it parses `4kib`
/// as 4000, and `4ki` as `4k` although its manual says otherwise.
pub(super) fn unit_quirk(text: &str, units: Units) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let bytes = lower.as_bytes();
    let at = (1..bytes.len().saturating_sub(1))
        .find(|&i| bytes[i - 1].is_ascii_digit() && b"kmgtp".contains(&bytes[i]) && bytes[i + 1] == b'i')?;
    let prefix = char::from(bytes[at]);
    let with_b = bytes.get(at + 2) == Some(&b'b');
    match (units.kb_base, with_b) {
        (1024, true) => Some(format!(
            "'{prefix}ib' counts in powers of 1000 under kb_base=1024 (fio's rule); write '{prefix}' for powers of 1024"
        )),
        (1000, true) => None,
        (base, _) => Some(format!(
            "'{prefix}i' counts in powers of {base} here, as fio 3.33 does, though its manual says otherwise; \
             write '{prefix}' or '{prefix}ib'"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const K1024: Units = Units { kb_base: 1024 };
    const K1000: Units = Units { kb_base: 1000 };

    fn plain(text: &str, units: Units) -> Option<i128> {
        int(text, units).ok()
    }

    /// Measured with fio 3.33: `bs=VALUE` on the null engine prints the block size it took.
    #[test]
    fn factors_are_those_of_the_program() {
        let cases =
            [("4k", 4096, 4000), ("4KB", 4096, 4000), ("4ki", 4096, 4000), ("4kib", 4000, 4096), ("4KiB", 4000, 4096)];
        for (text, base_1024, base_1000) in cases {
            assert_eq!((plain(text, K1024), plain(text, K1000)), (Some(base_1024), Some(base_1000)), "{text}");
        }
        assert_eq!(plain("1m", K1024), Some(1 << 20));
        assert_eq!(plain("1g", K1024), Some(1 << 30));
        assert_eq!(plain("1t", K1024), Some(1 << 40));
        assert_eq!(plain("1p", K1024), Some(1 << 50));
        assert_eq!(plain("1tib", K1024), Some(1_000_000_000_000));
        assert_eq!(plain("010", K1024), Some(10), "no octal");
        assert_eq!(plain("0x10k", K1024), Some(16384));
        assert_eq!(plain("4096B", K1000), Some(4096));
    }

    #[test]
    fn a_rest_behind_the_number_is_an_error() {
        for text in [
            "", "k", "-", "+", "4 k", "4x", "4kk", "4kbb", "4kxb", "1e", "1z", "1.5k", "0x", "--4", "+-4", "4k ",
            " 4k x",
        ] {
            let text_ok = text.trim() == "4k";
            assert_eq!(int(text, K1024).is_ok(), text_ok, "{text:?}");
        }
        assert!(int(&"9".repeat(200), K1024).is_err());
        assert!(int(&format!("{}p", "9".repeat(38)), K1024).is_err());
    }

    #[test]
    fn times() {
        for (text, ns) in [
            ("5", 5 * SEC_NS),
            ("5s", 5 * SEC_NS),
            ("5SEC", 5 * SEC_NS),
            ("5ms", 5 * MSEC_NS),
            ("5msec", 5 * MSEC_NS),
            ("5us", 5 * USEC_NS),
            ("5usec", 5 * USEC_NS),
            ("2m", 120 * SEC_NS),
            ("2h", 7_200 * SEC_NS),
            ("2d", 172_800 * SEC_NS),
        ] {
            assert_eq!(time_ns(text, SEC_NS).ok(), Some(ns), "{text}");
        }
        assert_eq!(time_ns("5", USEC_NS).ok(), Some(5_000), "the option says what a bare number counts");
        for text in ["", "s", "-5", "5ns", "5x", "5.5", "5 s", "999999999999d"] {
            assert!(time_ns(text, SEC_NS).is_err(), "{text:?}");
        }
    }

    #[test]
    fn surprising_units_are_found_inside_lists() {
        for text in ["4kib", "1k,4KiB", "4k/50:8kib/50", "16ki"] {
            assert!(unit_quirk(text, K1024).is_some(), "{text}");
        }
        for text in ["4k", "4kb", "kib", "4", "", "k", "random"] {
            assert_eq!(unit_quirk(text, K1024), None, "{text}");
        }
        assert_eq!(unit_quirk("4kib", K1000), None, "kb_base=1000 has no surprise in kib");
        assert!(unit_quirk("4ki", K1000).is_some());
    }

    proptest! {
        #[test]
        fn plain_numbers_read_back(value in any::<u64>()) {
            prop_assert_eq!(int_in(&value.to_string(), K1024, 0, u64::MAX).ok(), Some(value));
            prop_assert_eq!(int_in(&format!("{value:#x}"), K1000, 0, u64::MAX).ok(), Some(value));
            prop_assert_eq!(plain(&format!("-{value}"), K1024), Some(-i128::from(value)));
        }

        #[test]
        fn units_multiply(value in 0..1_u64 << 13, power in 0..6_u32) {
            let suffix = ["", "k", "M", "g", "T", "p"][power as usize];
            let expected = value.checked_mul(1024_u64.pow(power));
            prop_assert_eq!(int_in(&format!("{value}{suffix}"), K1024, 0, u64::MAX).ok(), expected);
        }

        #[test]
        fn ranges_are_ordered(a in 1..1_u64 << 40, b in 1..1_u64 << 40, separator in "[-:]") {
            let text = format!("{a}{separator}{b}");
            prop_assert_eq!(range(&text, K1024, 1, u64::MAX).ok(), Some((a.min(b), a.max(b))));
        }

        #[test]
        fn bounds_hold(value in any::<u32>(), min in any::<u32>(), width in any::<u32>()) {
            let (min, max) = (u64::from(min), u64::from(min) + u64::from(width));
            let inside = (min..=max).contains(&u64::from(value));
            prop_assert_eq!(int_in(&value.to_string(), K1024, min, max).is_ok(), inside);
        }

        #[test]
        fn percentages_are_whole_and_at_most_100(pct in 0..200_u32) {
            let expected = (pct <= 100).then_some(Extent::Percent(pct));
            prop_assert_eq!(extent(&format!("{pct}%"), K1024).ok(), expected);
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,20}", unit in 1..u64::MAX) {
            let _ = int(&text, K1024);
            let _ = extent(&text, K1000);
            let _ = time_range_ns(&text, unit);
            let _ = unit_quirk(&text, K1024);
            let _ = per_dir(&text, &[','], |part| range(part, K1024, 0, u64::MAX));
        }

        #[test]
        fn triples_fill_up(read in 0..9_u64, write in 0..9_u64, trim in 0..9_u64) {
            let parse = |text: String| per_dir(&text, &[','], |p| int_in(p, K1024, 0, 9)).ok();
            let triple = |r, w, t| Some(PerDir { read: r, write: w, trim: t });
            prop_assert_eq!(parse(format!("{read}")), triple(Some(read), Some(read), Some(read)));
            prop_assert_eq!(parse(format!("{read},{write}")), triple(Some(read), Some(write), Some(write)));
            prop_assert_eq!(parse(format!("{read},{write},")), triple(Some(read), Some(write), None));
            prop_assert_eq!(parse(format!(",,{trim}")), triple(None, None, Some(trim)));
        }
    }
}
