// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Targets in stripes: `stripe:[chunk=SIZE:]TARGET+TARGET+...`, each TARGET with a device and queues of its own.
//!
//! `TARGET*N` means N targets; a `%` in TARGET is replaced by their number, from 0 on: `stripe:chunk=1m:/lun/data%*16`. `TARGET*A-B`
//! means numbers A to B, because LUNs of an iSCSI target often begin at 1. Guarantees: an impossible stripe is refused when it is read,
//! as far as sizes are in the text. No target that keeps data beyond the run is in a stripe twice under one name. Does not do: stripes of
//! stripes; names with a `+` in them.

use super::TargetSpec;
use crate::driver::host_driver::HostDriver;
use crate::error::{Error, Result};
use crate::secrets::without_secrets;
use blk::id::{SECTOR_SHIFT, SECTOR_SIZE, Sector};
use blk::stripe::{MAX_STRIPES, Stripe, StripeError, StripeMap};
use std::sync::Arc;

/// Bytes of a chunk where none is given. Source: lvm.conf(5), `stripesize`.
const CHUNK_BYTES: u64 = 64 << 10;

/// A stripe as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripeSpec {
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// What it is made of, in order.
    pub members: Vec<TargetSpec>,
}

impl StripeSpec {
    /// Reads what follows `stripe:`.
    pub(super) fn parse(text: &str) -> Result<StripeSpec> {
        let shown = without_secrets(text);
        let refuse = |what: String| Error::usage(format!("target 'stripe:{shown}': {what}"));
        let (chunk_bytes, list) = match text.strip_prefix("chunk=") {
            None => (CHUNK_BYTES, text),
            Some(rest) => {
                let (size, list) = rest.split_once(':').unwrap_or((rest, ""));
                let bytes =
                    super::bytes(size).ok_or_else(|| refuse(format!("chunk={size}: must be bytes, such as 64k")))?;
                (bytes, list)
            }
        };
        if list.is_empty() {
            return Err(refuse("needs targets, such as stripe:chunk=64k:disk0.img+disk1.img".to_owned()));
        }
        let mut members = Vec::new();
        for item in list.split('+') {
            for name in repeated(item).map_err(refuse)? {
                if name.starts_with("stripe:") {
                    return Err(refuse("a stripe cannot contain a stripe: list all targets in one".to_owned()));
                }
                let spec = TargetSpec::parse(&name)?;
                if !spec.is_private() && members.contains(&spec) {
                    let name = without_secrets(&name);
                    return Err(refuse(format!("'{name}' is listed twice; with *N, write % where the number goes")));
                }
                members.push(spec);
            }
        }
        // If the size of a member is unknown before it is opened, the member counts as large enough.
        let size = |m: &TargetSpec| m.size_bytes().unwrap_or(chunk_bytes) >> SECTOR_SHIFT;
        let stripes: Vec<_> = members.iter().map(|m| Stripe { start: Sector(0), nr_sectors: size(m) }).collect();
        StripeMap::new(chunk_bytes, SECTOR_SIZE, &stripes).map_err(|e| refuse(e.to_string()))?;
        Ok(StripeSpec { chunk_bytes, members })
    }

    /// Where sectors lie, of members that are open.
    pub(crate) fn map(&self, text: &str, drivers: &[Arc<dyn HostDriver>]) -> Result<StripeMap> {
        stripe_map(self.chunk_bytes, drivers).map_err(|e| Error::usage(format!("target '{text}': {e}")))
    }

    /// Bytes of each member so that the whole has `bytes`.
    pub(crate) fn member_bytes(&self, bytes: u64) -> u64 {
        let row = self.chunk_bytes.saturating_mul(self.members.len() as u64);
        bytes.div_ceil(row).saturating_mul(self.chunk_bytes)
    }
}

/// Where sectors lie, of members that are open.
pub(crate) fn stripe_map(
    chunk_bytes: u64,
    drivers: &[Arc<dyn HostDriver>],
) -> std::result::Result<StripeMap, StripeError> {
    let block = drivers.iter().map(|d| d.limits().logical_block_size).max().unwrap_or(SECTOR_SIZE);
    let all: Vec<_> = drivers.iter().map(|d| Stripe { start: Sector(0), nr_sectors: d.capacity().0 }).collect();
    StripeMap::new(chunk_bytes, block, &all)
}

/// `NAME*N` as N names, `NAME*A-B` as those with the numbers A to B.
fn repeated(item: &str) -> std::result::Result<Vec<String>, String> {
    if item.is_empty() {
        return Err("has an empty target between two '+'".to_owned());
    }
    let Some((name, times)) = item.rsplit_once('*') else { return Ok(vec![item.to_owned()]) };
    let number = |text: &str| text.parse::<u32>().ok();
    let numbers = match times.split_once('-') {
        None => number(times).map(|n| 0..u64::from(n)),
        Some((first, last)) => number(first).zip(number(last)).map(|(a, b)| a.into()..u64::from(b) + 1),
    };
    let numbers = numbers.filter(|n| (1..=MAX_STRIPES as u64).contains(&n.end.saturating_sub(n.start)));
    let numbers = numbers.ok_or_else(|| {
        let item = without_secrets(item);
        format!("{item}: after *, write 1..={MAX_STRIPES}, or a range of up to {MAX_STRIPES} numbers, such as 1-16")
    })?;
    // The first % of a login comes before its password.
    let login = if name.starts_with("iscsi://") { name.rfind('@').map_or(0, |at| at + 1) } else { 0 };
    let (login, rest) = name.split_at(login);
    Ok(numbers.map(|n| format!("{login}{}", rest.replace('%', &n.to_string()))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_listed_or_counted() {
        let read = |text: &str| match TargetSpec::parse(text).unwrap() {
            TargetSpec::Stripe(s) => s,
            other => panic!("{other:?}"),
        };
        let two = read("stripe:chunk=1m:/lun/a+ram:size=4m,blocksize=4k");
        assert_eq!((two.chunk_bytes, two.members.len()), (1 << 20, 2));
        assert_eq!(two.members[0], TargetSpec::File("/lun/a".into()));
        assert_eq!(two.members[1].size_bytes(), Some(4 << 20));
        let many = read("stripe:data%.img*16+null*2");
        assert_eq!((many.chunk_bytes, many.members.len()), (64 << 10, 18));
        assert_eq!(many.members[15], TargetSpec::File("data15.img".into()));
        let luns = read("stripe:iscsi://me%secret@san/iqn.2026-11.test:a/%*1-16");
        assert_eq!(luns.members.len(), 16);
        let last = "iscsi://me%secret@san/iqn.2026-11.test:a/16";
        assert_eq!(luns.members[15], TargetSpec::parse(last).unwrap());
        // 18 chunks to a row.
        assert_eq!(many.member_bytes(((18 * 64) << 10) + 1), 128 << 10);
    }

    #[test]
    fn what_is_no_stripe_is_refused_with_a_remedy() {
        for (text, message) in [
            ("stripe:", "needs targets, such as"),
            ("stripe:null", "1 stripes: must be 2..=256"),
            ("stripe:chunk=3k:null+null", "chunk=3072: must be a power of two"),
            ("stripe:chunk=x:null+null", "chunk=x: must be bytes, such as 64k"),
            ("stripe:a+b+a", "'a' is listed twice"),
            ("stripe:a*2", "write % where the number goes"),
            ("stripe:a%*300", "after *, write 1..=256, or a range"),
            ("stripe:a%*16-1", "or a range of up to 256 numbers, such as 1-16"),
            ("stripe:a%*1-999999999999", "a%*1-999999999999: after *"),
            (
                "stripe:iscsi://me%secret@h/iqn.2026-11.test:a/1*2",
                "'iscsi://me%***@h/iqn.2026-11.test:a/1' is listed twice",
            ),
            ("stripe:a++b", "has an empty target"),
            ("stripe:a+stripe:b+c", "a stripe cannot contain a stripe"),
            ("stripe:null:sice=1g+null", "did you mean 'size'"),
            ("stripe:chunk=1m:ram:size=4k+null", "must be at least one chunk"),
        ] {
            let e = TargetSpec::parse(text).expect_err(text).to_string();
            assert!(e.contains(message), "{text}: {e}");
        }
    }
}
