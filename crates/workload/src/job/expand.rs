// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replacement inside a value: `${VARIABLE}` and the keywords `$pagesize`, `$mb_memory`, `$ncpus`.
//!
//! Guarantees: there is one pass, so a replacement is not expanded again. A value of plain numbers around a keyword is
//! computed (`8*$ncpus`), as fio does. Needs from callers: the environment and the machine's figures, as arguments. Does
//! not do: decide whether an unset variable (replaced by nothing, as in fio) is an error. Source: fio HOWTO, "Environment
//! variables" and "Reserved keywords".

use super::arith;
use super::error::quote;

/// The data that a value may refer to.
pub(super) struct Lookup<'a> {
    pub env: &'a dyn Fn(&str) -> Option<String>,
    pub keywords: [(&'static str, u64); 3],
}

/// A value after replacement.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Expanded {
    pub text: String,
    /// Variables that are unset or empty.
    pub unset: Vec<String>,
}

/// Longest value after replacement; far beyond any option.
pub(super) const VALUE_BYTES_MAX: usize = 65_536;

/// Replaces variables and keywords in `value`.
pub(super) fn expand(value: &str, lookup: &Lookup<'_>) -> Result<Expanded, String> {
    let mut out = Expanded { text: String::new(), unset: Vec::new() };
    let mut keyword_seen = false;
    let mut rest = value;
    while let Some(at) = rest.find('$') {
        out.text.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some((name, after)) = rest.strip_prefix('{').and_then(|body| body.split_once('}')) {
            match (lookup.env)(name).filter(|v| !v.is_empty()) {
                Some(text) => out.text.push_str(&text),
                None => out.unset.push(name.to_owned()),
            }
            rest = after;
        } else if let Some((name, figure)) = lookup.keywords.iter().find(|(name, _)| rest.starts_with(name)) {
            out.text.push_str(&figure.to_string());
            rest = &rest[name.len()..];
            keyword_seen = true;
        } else {
            out.text.push('$');
        }
        if out.text.len() > VALUE_BYTES_MAX {
            return Err(format!("the value is longer than {VALUE_BYTES_MAX} bytes"));
        }
    }
    out.text.push_str(rest);
    if keyword_seen && arith::looks_like_expr(&out.text) {
        let number = |word: &str| word.parse::<i128>().map_err(|_| format!("'{}' is too large", quote(word)));
        out.text = arith::eval(&out.text, &number)?.to_string();
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(value: &str) -> Result<Expanded, String> {
        let env = |name: &str| match name {
            "SIZE" => Some("64m".to_owned()),
            "SELF" => Some("${SELF}$ncpus".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        let keywords = [("pagesize", 4096), ("mb_memory", 1000), ("ncpus", 4)];
        expand(value, &Lookup { env: &env, keywords })
    }

    fn text(value: &str) -> String {
        run(value).expect(value).text
    }

    #[test]
    fn variables_are_replaced_once() {
        assert_eq!(text("a${SIZE}b${SIZE}"), "a64mb64m");
        assert_eq!(text("${SELF}"), "${SELF}$ncpus");
        assert_eq!(text("x$HOME ${unclosed"), "x$HOME ${unclosed");
        let unset = run("x${NOPE}${EMPTY}y").expect("valid");
        assert_eq!((unset.text.as_str(), unset.unset.len()), ("xy", 2));
    }

    /// The results are those of fio 3.33 with two CPUs replaced by four.
    #[test]
    fn keywords_and_their_arithmetic() {
        assert_eq!(text("$pagesize"), "4096");
        assert_eq!(text("8*$ncpus"), "32");
        assert_eq!(text("2+3*$ncpus"), "14");
        assert_eq!(text("(2+3) * $ncpus"), "20");
        assert_eq!(text("17/$ncpus"), "4");
        assert_eq!(text("2*$mb_memory*1024"), "2048000");
    }

    #[test]
    fn text_with_a_keyword_stays_text() {
        assert_eq!(text("/tmp/$ncpus-x"), "/tmp/4-x");
        assert_eq!(text("8*2"), "8*2");
        assert!(run("$ncpus/0").is_err());
    }

    #[test]
    fn growth_is_bounded() {
        let env = |_: &str| Some("x".repeat(1_000));
        let value = "${A}".repeat(1_000);
        assert!(expand(&value, &Lookup { env: &env, keywords: [("pagesize", 1); 3] }).is_err());
    }
}
