// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists of CPUs such as `0-3,8,^2`, the syntax of libvirt's `cpuset` and the kernel's `cpu_list`.
//!
//! Guarantees: a parsed list is sorted, without duplicates, and bounded ([`MAX_CPUS`]), whatever the text; a written list parses to the
//! same list. Does not do: check whether the CPUs exist (see `super::check`).
//!
//! Source: Linux Documentation/admin-guide/cputopology.rst; libvirt formatdomain, `cpuset` (`^N` removes CPU N from the list).

use crate::error::{Error, Result};
use blk::id::MAX_CPUS;
use std::fmt::Write;

/// Parses a list.
///
/// # Errors
/// Usage: the text is not a list, a range goes backwards, a number is [`MAX_CPUS`] or more, or no CPU is left.
pub fn parse(text: &str) -> Result<Vec<u32>> {
    let refused = |why: &str| {
        Error::usage(format!("'{}': {why}; write CPUs as 0-3,8 with numbers below {MAX_CPUS}", text.escape_debug()))
    };
    let number = |text: &str| text.trim().parse::<u32>().ok().filter(|n| *n < MAX_CPUS);
    let mut wanted = vec![false; MAX_CPUS as usize];
    for part in text.split(',') {
        let part = part.trim();
        let (part, take) = part.strip_prefix('^').map_or((part, true), |rest| (rest, false));
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Some(first), Some(last)) = (number(first), number(last)) else {
            return Err(refused("is no list of CPUs"));
        };
        if first > last {
            return Err(refused("has a range that goes backwards"));
        }
        wanted[first as usize..=last as usize].fill(take);
    }
    let cpus: Vec<u32> = (0..MAX_CPUS).filter(|n| wanted[*n as usize]).collect();
    if cpus.is_empty() { Err(refused("leaves no CPU")) } else { Ok(cpus) }
}

/// Formats a sorted list, with ranges joined: `0-3,8`.
pub fn list(cpus: &[u32]) -> String {
    let mut out = String::new();
    for run in cpus.chunk_by(|a, b| b.checked_sub(1) == Some(*a)) {
        let comma = if out.is_empty() { "" } else { "," };
        // Writing to a String cannot fail.
        let _ = match run {
            [one] => write!(out, "{comma}{one}"),
            [first, .., last] => write!(out, "{comma}{first}-{last}"),
            [] => Ok(()),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_libvirt_and_the_kernel_write_them() {
        for (text, cpus) in
            [("0", &[0][..]), ("0-3,8", &[0, 1, 2, 3, 8]), (" 5, 4 ,4", &[4, 5]), ("1-4,^3", &[1, 2, 4])]
        {
            assert_eq!(parse(text).unwrap(), cpus, "{text}");
        }
        assert_eq!(list(&[0, 1, 2, 3, 8, 10, 11]), "0-3,8,10-11");
        assert_eq!(parse(&list(&[4095])).unwrap(), [4095]);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in ["", "a", "1-", "-1", "1,,2", "4096", "99999999999", "3-1", "1,^1", "0x1"] {
            assert!(parse(text).unwrap_err().to_string().contains("write CPUs as 0-3,8"), "{text}");
        }
    }
}
