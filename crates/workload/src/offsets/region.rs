// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The part of a target that one job instance works in: `offset`, `offset_increment`, `offset_align` and `size`.

use crate::error::SetupError;
use crate::job::{Extent, FileShare, Job};

/// A file of a job thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileTarget {
    /// Its size.
    pub bytes: u64,
    /// What the job asks of it.
    pub share: FileShare,
}

/// A byte range of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub start: u64,
    /// Length in bytes, at least one block of the job.
    pub len: u64,
}

impl Region {
    /// One past the last byte.
    #[inline]
    pub const fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Returns the region of instance `instance` (0-based, counted over `numjobs`) of `job` in a target of `target_bytes`,
    /// of which the job asks `share`.
    ///
    /// A percentage `offset` is rounded up to a multiple of `offset_align` (or the smallest block). A percentage `size` is
    /// relative to the whole target; it is cut at the target's end and rounded down to the smallest block, as in fio. With
    /// `filesize` the region reaches to the end of a file of that size, and a `size` in bytes is only the amount to move.
    pub(crate) fn resolve(job: &Job, share: FileShare, instance: u32, target_bytes: u64) -> Result<Region, SetupError> {
        let target_bytes = match share.filesize_bytes {
            Some(filesize) if filesize > target_bytes => {
                let rule = format!("the target has {target_bytes} bytes");
                let remedy = "lower filesize, or use a larger target";
                return Err(SetupError::new(&job.name, "filesize", filesize, rule, remedy));
            }
            Some(filesize) => filesize,
            None => target_bytes,
        };
        let block = job.min_block_bytes().max(1);
        let start = start_offset(job, instance, target_bytes, block);
        let Some(start) = start.filter(|&s| s < target_bytes) else {
            let value = start.map_or("beyond 2^64".into(), |s| s.to_string());
            let rule = format!("instance {instance} must start inside the target of {target_bytes} bytes");
            let remedy = "lower offset, offset_increment or numjobs, or use a larger target";
            return Err(SetupError::new(&job.name, "offset", value, rule, remedy));
        };
        let rest = target_bytes - start;
        let len = match share.size {
            None => rest,
            Some(Extent::Percent(100)) => rest,
            Some(percent @ Extent::Percent(_)) => {
                let len = percent.of(target_bytes).min(rest);
                len - len % block
            }
            _ if share.filesize_bytes.is_some() => rest,
            Some(Extent::Bytes(bytes)) if bytes > rest => {
                let rule = format!(
                    "must be at most {rest}: the target has {target_bytes} bytes, and the job starts at {start}"
                );
                let remedy = "lower size or offset, or use a larger target";
                return Err(SetupError::new(&job.name, "size", bytes, rule, remedy));
            }
            Some(Extent::Bytes(bytes)) => bytes,
        };
        if len < block {
            let rule = format!("the region must hold at least one block of {block} bytes");
            let remedy = if job.nr_files() > 1 {
                "raise size, lower bs or use fewer files, which share size"
            } else {
                "raise size or lower bs"
            };
            return Err(SetupError::new(&job.name, "size", len, rule, remedy));
        }
        Ok(Region { start, len })
    }
}

/// Bytes of all regions of a job thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Amount {
    /// Sum of the lengths.
    pub regions: u64,
    /// What one pass over the regions moves unless `io_size` is set.
    pub size: u64,
}

impl Amount {
    /// Of `job` in these regions.
    pub fn of(job: &Job, regions: impl Iterator<Item = Region>) -> Amount {
        let regions = regions.map(|r| r.len).fold(0, u64::saturating_add);
        let size = match job.size {
            Some(Extent::Bytes(size)) => size.min(regions),
            _ => regions,
        };
        Amount { regions, size }
    }
}

fn start_offset(job: &Job, instance: u32, target_bytes: u64, block: u64) -> Option<u64> {
    let increment = job.offset_increment.of(target_bytes).checked_mul(u64::from(instance))?;
    let raw = job.offset.of(target_bytes).checked_add(increment)?;
    match job.offset {
        Extent::Bytes(_) => Some(raw),
        Extent::Percent(_) => {
            let align = if job.offset_align_bytes > 0 { job.offset_align_bytes } else { block };
            raw.checked_next_multiple_of(align)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn resolve(job: &Job, instance: u32, target_bytes: u64) -> Result<Region, SetupError> {
        Region::resolve(job, FileShare::of(job), instance, target_bytes)
    }

    #[test]
    fn instances_follow_each_other_by_the_increment() {
        let mut job = Job::new("a");
        job.offset = Extent::Bytes(MIB);
        job.offset_increment = Extent::Percent(10);
        job.size = Some(Extent::Bytes(2 * MIB));
        let regions: Vec<u64> = (0..3).map(|i| resolve(&job, i, 20 * MIB).unwrap().start).collect();
        assert_eq!(regions, [MIB, 3 * MIB, 5 * MIB]);
        let e = resolve(&job, 10, 20 * MIB).unwrap_err();
        assert_eq!(e.option, "offset");
    }

    #[test]
    fn percentages_are_cut_and_aligned() {
        let mut job = Job::new("a");
        job.offset = Extent::Percent(33);
        job.size = Some(Extent::Percent(90));
        let r = resolve(&job, 0, 100_000).unwrap();
        assert_eq!(r.start % 4096, 0);
        assert!(r.start >= 33_000 && r.len.is_multiple_of(4096) && r.end() <= 100_000, "{r:?}");
    }

    fn amount(job: &Job, region: Region) -> u64 {
        Amount::of(job, [region].into_iter()).size
    }

    /// As measured with fio 3.33: random offsets cover the whole file, and the amount is `size`.
    #[test]
    fn filesize_makes_the_region_and_size_the_amount() {
        let mut job = Job::new("a");
        (job.filesize_bytes, job.size) = (Some(8 * MIB), Some(Extent::Bytes(2 * MIB)));
        job.offset = Extent::Bytes(4 * MIB);
        let r = resolve(&job, 0, 100 * MIB).unwrap();
        assert_eq!((r.start, r.end(), amount(&job, r)), (4 * MIB, 8 * MIB, 2 * MIB));
        job.filesize_bytes = Some(5 * MIB);
        assert_eq!(amount(&job, resolve(&job, 0, 100 * MIB).unwrap()), MIB);
        let e = resolve(&job, 0, MIB).unwrap_err().to_string();
        assert!(e.starts_with("filesize=5242880: the target has 1048576 bytes; lower filesize"), "{e}");
    }

    #[test]
    fn what_does_not_fit_is_said_with_a_remedy() {
        let mut job = Job::new("a");
        job.size = Some(Extent::Bytes(8 * MIB));
        let e = resolve(&job, 0, MIB).unwrap_err().to_string();
        assert_eq!(
            e,
            "size=8388608: must be at most 1048576: the target has 1048576 bytes, and the job starts at 0; \
             lower size or offset, or use a larger target (job 'a')"
        );
        job.size = Some(Extent::Bytes(100));
        assert_eq!(resolve(&job, 0, MIB).unwrap_err().option, "size");
    }
}
