// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arithmetic in option values: `(4 * 1024)`, `8*$ncpus` after its keyword is replaced.
//!
//! Guarantees: integers only, every step checked, nesting bounded, so no input panics or recurses without limit. Operators
//! `+ - * / % ^` with the usual precedence (`^` binds tightest and to the right), parentheses, unary minus; division
//! truncates. Does not do: names (keywords are replaced before) or fractions. Source: fio HOWTO, "Job file parameters".

use super::error::quote;

/// Deepest nesting of parentheses and signs, far beyond what users write.
const DEPTH_MAX: u32 = 32;

/// Evaluates `text`; `number` turns one operand (digits with an optional unit) into a value.
pub(super) fn eval(text: &str, number: &dyn Fn(&str) -> Result<i128, String>) -> Result<i128, String> {
    let mut p = Parser { rest: text.trim(), depth: 0, number };
    let value = p.sum()?;
    if p.rest.is_empty() { Ok(value) } else { Err(format!("unexpected '{}'", quote(p.rest))) }
}

/// Whether `text` could be an expression of plain numbers. A value with a keyword is computed only in that case.
pub(super) fn looks_like_expr(text: &str) -> bool {
    let operator = |c: char| "+-*/%^()".contains(c);
    text.chars().any(|c| c.is_ascii_digit())
        && text.chars().skip(1).any(operator)
        && text.chars().all(|c| c.is_ascii_digit() || operator(c) || c == ' ')
}

struct Parser<'a> {
    rest: &'a str,
    depth: u32,
    number: &'a dyn Fn(&str) -> Result<i128, String>,
}

impl Parser<'_> {
    /// Takes one of the characters in `set` from the front, with the space around it.
    fn take(&mut self, set: &str) -> Option<char> {
        let c = self.rest.chars().next().filter(|c| set.contains(*c))?;
        self.rest = self.rest[c.len_utf8()..].trim_start();
        Some(c)
    }

    fn sum(&mut self) -> Result<i128, String> {
        let mut left = self.product()?;
        while let Some(op) = self.take("+-") {
            let right = self.product()?;
            let next = if op == '+' { left.checked_add(right) } else { left.checked_sub(right) };
            left = next.ok_or("the result is too large")?;
        }
        Ok(left)
    }

    fn product(&mut self) -> Result<i128, String> {
        let mut left = self.power()?;
        while let Some(op) = self.take("*/%") {
            let right = self.power()?;
            left = match op {
                '*' => left.checked_mul(right).ok_or("the result is too large")?,
                '/' => left.checked_div(right).ok_or("division by zero")?,
                _ => left.checked_rem(right).ok_or("division by zero")?,
            };
        }
        Ok(left)
    }

    fn power(&mut self) -> Result<i128, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("nested deeper than {DEPTH_MAX}"));
        }
        let base = self.atom()?;
        let value = if self.take("^").is_some() {
            let exponent = u32::try_from(self.power()?).map_err(|_| "an exponent must be 0..=4294967295")?;
            base.checked_pow(exponent).ok_or("the result is too large")?
        } else {
            base
        };
        self.depth -= 1;
        Ok(value)
    }

    fn atom(&mut self) -> Result<i128, String> {
        if self.take("-").is_some() {
            return self.power()?.checked_neg().ok_or_else(|| "the result is too large".to_owned());
        }
        if self.take("(").is_some() {
            let value = self.sum()?;
            return if self.take(")").is_some() { Ok(value) } else { Err("a ')' is missing".to_owned()) };
        }
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(self.rest.len());
        if end == 0 {
            return Err("a number is missing".to_owned());
        }
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        (self.number)(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calc(text: &str) -> Result<i128, String> {
        eval(text, &|word| word.parse().map_err(|_| format!("'{word}' is no number")))
    }

    #[test]
    fn precedence_and_signs() {
        assert_eq!(calc("2+3*4"), Ok(14));
        assert_eq!(calc("(2+3)*4"), Ok(20));
        assert_eq!(calc(" 2 ^ 3 ^ 2 "), Ok(512));
        assert_eq!(calc("17/2"), Ok(8));
        assert_eq!(calc("17%5-4"), Ok(-2));
        assert_eq!(calc("-2*-(3)"), Ok(6));
    }

    #[test]
    fn every_wrong_form_is_an_error() {
        for text in ["", "1+", "(1", "1)", "1//2", "1/0", "1%0", "2^-1", "9^99999", "x", "1 2", "\u{e9}", "()"] {
            assert!(calc(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        assert!(calc(&"(".repeat(1_000_000)).is_err());
        assert!(calc(&"-".repeat(1_000_000)).is_err());
        assert!(calc(&"2^".repeat(100_000)).is_err());
        assert_eq!(calc(&format!("{}1{}", "(".repeat(30), ")".repeat(30))), Ok(1));
    }

    #[test]
    fn only_plain_numbers_look_like_an_expression() {
        assert!(looks_like_expr("8*2"));
        assert!(looks_like_expr("(2)+1"));
        for text in ["8", "-8", "/dev/2", "2x*3", "*", ""] {
            assert!(!looks_like_expr(text), "{text:?}");
        }
    }
}
