// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether all I/O of a job is whole blocks.

use crate::job::{BlockSizes, Dir, Job};
use crate::offsets::{FileTarget, Region};

/// What makes I/O of a job begin or end within a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffGrid {
    /// The option.
    pub option: &'static str,
    /// Its value, or what follows from it, in bytes.
    pub value: u64,
}

impl OffGrid {
    /// Returns why some I/O of instance `instance` of `job` to `file` is not whole blocks of `block` bytes. `None` if all is,
    /// or if the job does not fit the file.
    pub fn of(job: &Job, instance: u32, file: FileTarget, block: u32) -> Option<OffGrid> {
        off_grid(job, Region::resolve(job, file.share, instance, file.bytes).ok()?, block.into())
    }
}

/// Returns why some I/O of `job` in `region` is not whole blocks of `block` bytes; `None` if all is.
pub(super) fn off_grid(job: &Job, region: Region, block: u64) -> Option<OffGrid> {
    if let Some(replay) = &job.replay {
        let units = [("replay_align", replay.offset_unit), ("length of I/O in the trace", replay.length_unit)];
        let odd = units.into_iter().find(|(_, unit)| *unit < block);
        return odd.map(|(option, value)| OffGrid { option, value });
    }
    let odd = |value: &u64| !value.is_multiple_of(block);
    let named = |option| move |value| OffGrid { option, value };
    let in_use = || Dir::ALL.into_iter().filter(|&d| job.rw.has(d));
    let add = job.seq_offset_add_bytes;
    odd_size(job, block)
        .or_else(|| in_use().filter_map(|d| job.blockalign_bytes[d]).find(odd).map(named("blockalign")))
        .or_else(|| Some(add.unsigned_abs()).filter(odd).map(named("rw")))
        // Backwards, a stream begins at the end of the region.
        .or_else(|| Some(region.len).filter(|len| add < 0 && odd(len)).map(named("size")))
        .or_else(|| job.strided.map(|zones| zones.range_bytes).filter(odd).map(named("zonerange")))
        .or_else(|| job.strided.map(|zones| zones.skip_bytes).filter(odd).map(named("zoneskip")))
        .or_else(|| Some(region.start).filter(odd).map(named("offset")))
}

fn odd_size(job: &Job, block: u64) -> Option<OffGrid> {
    let odd = |value: &u64| !value.is_multiple_of(block);
    let named = |option| move |value| OffGrid { option, value };
    job.sizes_in_use().find_map(|sizes| match sizes {
        BlockSizes::Fixed(bytes) => Some(*bytes).filter(odd).map(named("bs")),
        BlockSizes::Range { min_bytes, max_bytes } => {
            let whole = [*min_bytes, *max_bytes].into_iter().find(odd).map(named("bsrange"));
            whole.or_else(|| job.bs_unaligned.then_some(OffGrid { option: "bs_unaligned", value: 1 }))
        }
        BlockSizes::Split(split) => split.iter().map(|s| s.bytes).find(odd).map(named("bssplit")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobFile, ParseContext};

    fn found(text: &str, start: u64, block: u64) -> Option<(&'static str, u64)> {
        let text = format!("[a]\nsize=100001\n{text}\n");
        let file = JobFile::parse_str(&text, &ParseContext::bare("a.fio"), &[]).expect("a good job");
        off_grid(&file.jobs[0], Region { start, len: 100_001 }, block).map(|o| (o.option, o.value))
    }

    #[test]
    fn each_option_that_leaves_the_grid_is_named() {
        for (text, expected) in [
            ("bs=2300", Some(("bs", 2300))),
            ("bs=4k,2300\nrw=read", None),
            ("bs=4k,2300\nrw=write", Some(("bs", 2300))),
            ("bsrange=512-1000", Some(("bsrange", 1000))),
            ("bsrange=1k-4k\nbs_unaligned=1", Some(("bs_unaligned", 1))),
            ("bs=4k\nbs_unaligned=1", None),
            ("bssplit=512/50:700/50", Some(("bssplit", 700))),
            ("rw=randread\nblockalign=1", Some(("blockalign", 1))),
            ("rw=read:16", Some(("rw", 16))),
            ("rw=read:-4k", Some(("size", 100_001))),
            ("rw=read:4k", None),
            ("rw=randread", None),
            ("zonesize=4k\nzonerange=5000", Some(("zonerange", 5000))),
            ("zonesize=5000\nzonerange=4k\nzoneskip=100", Some(("zoneskip", 100))),
        ] {
            assert_eq!(found(text, 0, 512), expected, "{text}");
        }
        assert_eq!(found("", 100, 512), Some(("offset", 100)));
        assert_eq!((found("bs=512", 0, 512), found("bs=512", 0, 4096)), (None, Some(("bs", 512))));
    }
}
