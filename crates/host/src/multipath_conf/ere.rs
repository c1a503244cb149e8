// SPDX-License-Identifier: Apache-2.0 OR MIT
//! POSIX extended regular expressions, as used for vendor, product and revision in multipath.conf.
//!
//! Guarantees: an expression means the same as to multipath-tools, which uses libc's regcomp(3) and regexec(3). The compiled size is
//! bounded. Bytes are compared, as in the C locale. Does not report where it matched.

use std::ffi::CString;
use std::fmt;
use std::ptr;
use std::sync::Arc;

/// Maximum number of steps of one expression, repetitions included: memory and time of regcomp(3) grow with the square of the steps.
const MOST: usize = 2000;
/// Deepest nesting of groups: regcomp(3) recurses.
const DEEPEST: usize = 50;

/// A compiled expression.
#[derive(Clone)]
pub struct Ere {
    text: String,
    compiled: Arc<Compiled>,
}

struct Compiled(libc::regex_t);

// SAFETY: POSIX allows regexec(3) on one compiled expression in several threads at a time; nothing else is called on it before the last
// owner frees it.
unsafe impl Send for Compiled {}
// SAFETY: as above.
unsafe impl Sync for Compiled {}

impl Drop for Compiled {
    fn drop(&mut self) {
        // SAFETY: regcomp(3) has filled it in, and nothing uses it any more.
        unsafe { libc::regfree(&raw mut self.0) }
    }
}

impl fmt::Debug for Ere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ere({:?})", self.text)
    }
}

impl PartialEq for Ere {
    fn eq(&self, other: &Ere) -> bool {
        self.text == other.text
    }
}

impl Eq for Ere {}

impl Ere {
    /// Compiles an expression.
    ///
    /// # Errors
    /// The expression is invalid; the text follows the option's name in messages.
    pub fn new(text: &str) -> Result<Ere, String> {
        check_size(text.as_bytes())?;
        let expression = CString::new(text).map_err(|_| "has a NUL byte".to_owned())?;
        let mut compiled = std::mem::MaybeUninit::<libc::regex_t>::zeroed();
        // SAFETY: both pointers are valid for the call, and the expression ends in a NUL byte.
        let code =
            unsafe { libc::regcomp(compiled.as_mut_ptr(), expression.as_ptr(), libc::REG_EXTENDED | libc::REG_NOSUB) };
        if code != 0 {
            return Err(rule_of(code).to_owned());
        }
        // SAFETY: regcomp(3) has succeeded.
        let compiled = Compiled(unsafe { compiled.assume_init() });
        Ok(Ere { text: text.to_owned(), compiled: Arc::new(compiled) })
    }

    /// Whether the expression matches any part of the text; text after a NUL byte is ignored.
    pub fn is_match(&self, text: &str) -> bool {
        let text = CString::new(text.split('\0').next().unwrap_or_default()).expect("split at NUL bytes");
        // SAFETY: what regcomp(3) made lives as long as `self`, the text ends in a NUL byte, and no matches are asked for.
        unsafe { libc::regexec(&raw const self.compiled.0, text.as_ptr(), 0, ptr::null_mut(), 0) == 0 }
    }
}

/// Returns why regcomp(3) rejects an expression, with a remedy.
fn rule_of(code: libc::c_int) -> &'static str {
    match code {
        libc::REG_EPAREN => "has a '(' without its ')'; put '\\(' for the character itself",
        // glibc returns REG_BADPAT for a '[' at the very end.
        libc::REG_EBRACK | libc::REG_BADPAT => "has a '[' without its ']'; put '\\[' for the character itself",
        libc::REG_ECTYPE => {
            "has a class that is none of alpha, digit, alnum, upper, lower, space, blank, punct, print, graph, cntrl, xdigit"
        }
        libc::REG_ECOLLATE => "has [. .] or [= =] around more than one character; name the characters",
        libc::REG_ERANGE => "has a range that ends before it begins",
        libc::REG_EESCAPE => "ends in '\\'; put '\\\\' for the character itself",
        libc::REG_ESUBREG => "has a reference, such as \\1, to a group that is not there",
        libc::REG_EBRACE | libc::REG_BADBR => "has a '{' that does not begin {n}, {n,} or {n,m} with n <= m",
        libc::REG_BADRPT => "has nothing before '*', '+', '?' or '{' to repeat; '.*' stands for anything",
        libc::REG_ESPACE => "is too large; repeat less",
        _ => "is no extended regular expression",
    }
}

/// Rejects an expression for which regcomp(3) would exhaust memory or the stack. The steps of a group count as often as the group may be
/// repeated. An invalid expression may pass.
fn check_size(text: &[u8]) -> Result<(), String> {
    // Steps of each open group, and of the last item.
    let (mut groups, mut last, mut rest) = (vec![0_usize], 0_usize, text);
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        let more = match byte {
            b'(' if groups.len() > DEEPEST => return Err(format!("has more than {DEEPEST} nested groups")),
            b'(' => {
                groups.push(0);
                0
            }
            b')' if groups.len() > 1 => {
                last = groups.pop().unwrap_or(0).max(1);
                last
            }
            b'*' | b'?' => 1,
            b'+' => {
                let copy = last;
                last = last.saturating_mul(2);
                copy
            }
            b'{' => {
                let end = rest.iter().position(|b| *b == b'}').unwrap_or(rest.len());
                let numbers = str::from_utf8(&rest[..end]).unwrap_or_default().split(',');
                let times = numbers.filter_map(|n| n.parse::<usize>().ok()).max().unwrap_or(1);
                rest = rest.get(end + 1..).unwrap_or_default();
                let copies = last.saturating_mul(times);
                last = last.saturating_add(copies);
                copies
            }
            _ => {
                rest = match byte {
                    b'\\' => rest.get(1..).unwrap_or_default(),
                    b'[' => behind_bracket(rest),
                    _ => rest,
                };
                last = 1;
                1
            }
        };
        let group = groups.last_mut().expect("one is always open");
        *group = group.saturating_add(more);
        if groups.iter().fold(0, |sum: usize, group| sum.saturating_add(*group)) > MOST {
            return Err(format!("is too large: it would take more than {MOST} steps; repeat less"));
        }
    }
    Ok(())
}

/// Returns what follows the bracket expression that `rest` is in.
fn behind_bracket(rest: &[u8]) -> &[u8] {
    let mut at = usize::from(rest.first() == Some(&b'^'));
    // A ']' in the first position is a literal.
    at += usize::from(rest.get(at) == Some(&b']'));
    while let Some(byte) = rest.get(at) {
        let closing = match rest.get(at + 1) {
            Some(kind @ (b':' | b'.' | b'=')) if *byte == b'[' => Some([*kind, b']']),
            _ => None,
        };
        at += match closing {
            Some(closing) => rest[at + 2..].windows(2).position(|w| w == closing).map_or(1, |n| n + 4),
            None if *byte == b']' => return &rest[at + 1..],
            None => 1,
        };
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPRESSIONS: &[&str] = &[
        "IBM",
        "^IBM$",
        "^2107900$",
        "(COMPAQ|HP)",
        "^(MSA|HSV)1.*",
        "MSA [25]0[0-9]*",
        ".*",
        "^.?$",
        "HSV2[01]0|HSV3[046]0|HSV4[05]0",
        "^DISK [[:digit:]]{2,3}$",
        "[^A-Z]",
        "[]x]",
        "[^]x]",
        "[a-]",
        "\\.",
        "a{2}",
        "(ab){1,2}c",
        "(a|b)*c",
        "(a*)*b",
        "x?y+",
        "^(A|B|)C$",
        "[[:upper:]][[:lower:]]*[[:space:]]",
        "LUN$|^LUN",
        "a**",
        "()",
        "A)",
        "^^A",
        "(^A|B$)",
    ];
    const TEXTS: &[&str] = &[
        "",
        "IBM",
        "IBM ",
        "2107900",
        "2107900x",
        "HP",
        "COMPAQ MSA",
        "MSA1000",
        "HSV110 (C)COMPAQ",
        "HSV210",
        "HSV360",
        "DISK 12",
        "DISK 1234",
        "abc",
        "ababc",
        "aa",
        "a",
        "aaab",
        "ccc",
        "xy",
        "yy",
        "AC",
        "BC",
        "C",
        "Ab c",
        "my LUN",
        "LUN 3",
        "x]y",
        "a-b",
        "1.5",
        "A)",
        "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    ];

    #[test]
    fn what_is_wrong_is_said() {
        for (expression, rule) in [
            ("*", "nothing before '*'"),
            ("a|+", "nothing before '*'"),
            ("({1})", "nothing before '*'"),
            ("(a", "'(' without its ')'"),
            ("[a", "'[' without its ']'"),
            ("[", "'[' without its ']'"),
            ("[[:alpha]", "'[' without its ']'"),
            ("[[:alphabet:]]", "class that is none of"),
            ("[[.ab.]]", "more than one character"),
            ("[z-a]", "ends before it begins"),
            ("a{", "does not begin {n}"),
            ("a{2,1}", "n <= m"),
            ("a{2001}", "too large"),
            (&*format!("a{}", "+".repeat(1 << 20)), "too large"),
            (&*format!("a{}", "*".repeat(1 << 20)), "too large"),
            ("(a{0}){255}{255}{255}{255}", "too large"),
            ("a{+1}", "does not begin"),
            ("a\\", "ends in '\\'"),
            ("((a{255}){255}){255}", "too large"),
            ("[[:x:][=]=]](a{1000}){1000}", "too large"),
            ("a\\1", "to a group that is not there"),
            ("a\0b", "NUL byte"),
        ] {
            let e = Ere::new(expression).unwrap_err();
            assert!(e.contains(rule), "{expression}: {e}");
        }
        let deep = "(".repeat(100_000);
        assert!(Ere::new(&deep).unwrap_err().contains("nested groups"));
    }

    /// With these expressions a backtracking matcher would practically never finish.
    #[test]
    fn time_is_bounded() {
        let nasty = Ere::new("(a*)*(a*)*(a|aa)+$").unwrap();
        assert!(!nasty.is_match(&("a".repeat(5000) + "b")));
        let optional = Ere::new("^(a?){900}$").unwrap();
        assert!(!optional.is_match(&"a".repeat(1000)));
    }

    /// Starts 1800 child processes: run by `cargo xtask test --deep`. No other test of this program starts any: between fork and exec a
    /// child holds copies of sockets and locked files that a test expects to be closed.
    mod deep {
        use super::*;
        use std::process::Command;

        /// Compares with grep -E, which has the same expressions, on expressions and texts from configurations.
        #[test]
        fn it_matches_what_grep_matches() {
            for expression in EXPRESSIONS.iter().copied() {
                let ours = Ere::new(expression).unwrap_or_else(|e| panic!("{expression}: {e}"));
                for text in TEXTS.iter().copied() {
                    let mut grep = Command::new("sh");
                    grep.env("LC_ALL", "C").args([
                        "-c",
                        "printf '%s\\n' \"$1\" | grep -qE -e \"$2\"",
                        "sh",
                        text,
                        expression,
                    ]);
                    let status = grep.status().unwrap().code();
                    assert!(matches!(status, Some(0 | 1)), "{expression}: {status:?}");
                    assert_eq!(ours.is_match(text), status == Some(0), "'{expression}' on '{text}'");
                }
            }
        }
    }
}
