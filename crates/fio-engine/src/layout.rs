// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Layouts of fio's structures: byte offsets, by version.
//!
//! fio has no stable interface for engines outside its tree; `FIO_IOOPS_VERSION` only says that something may have changed. All
//! fields here lie before any `#ifdef` of their structure, so they do not depend on how a fio was configured. Fields of `thread_data`
//! are only read, and are checked for consistency ([`JobOptions::sensible`]) before the engine relies on them.
//!
//! Source: `offsetof` in a program compiled with ioengines.h, io_u.h, file.h and thread_options.h of each version. For fio 3.39 of
//! Debian 13 also an engine that printed the arguments of its functions.

/// A version of fio that may load this engine, and the layout of its structures.
pub struct Layout {
    /// `fio_version_string`.
    pub version: &'static str,
    /// `FIO_IOOPS_VERSION`.
    pub ioops: i32,
    pub ops: Ops,
    pub flags: Flags,
    pub io_u: IoU,
    pub td: Td,
}

/// Offsets in `struct ioengine_ops`.
pub struct Ops {
    pub name: usize,
    pub version: usize,
    pub flags: usize,
    pub init: usize,
    pub post_init: usize,
    pub queue: usize,
    pub commit: usize,
    pub getevents: usize,
    pub event: usize,
    pub cleanup: usize,
    pub open_file: usize,
    pub close_file: usize,
    pub invalidate: usize,
    pub get_file_size: usize,
    pub io_u_init: usize,
}

/// Values of `enum fio_ioengine_flags`.
pub struct Flags {
    /// Buffers are page-aligned.
    pub rawio: i32,
    /// fio does not look for the kernel's disk statistics by the file's name.
    pub nodiskutil: i32,
    /// Only the job's own thread submits.
    pub no_offload: i32,
}

/// Offsets in `struct io_u`.
pub struct IoU {
    pub file: usize,
    pub ddir: usize,
    pub ioprio: usize,
    pub offset: usize,
    pub buf: usize,
    pub xfer_buf: usize,
    pub xfer_buflen: usize,
    pub resid: usize,
    pub error: usize,
}

/// Offsets in `struct thread_data` (with its `thread_options`).
pub struct Td {
    pub ddir: usize,
    pub iodepth: usize,
    pub iodepth_batch: usize,
    pub max_bs: usize,
    pub odirect: usize,
    pub sync_io: usize,
}

const V3_33: Layout = Layout {
    version: "fio-3.33",
    ioops: 31,
    ops: Ops {
        name: 16,
        version: 24,
        flags: 28,
        init: 48,
        post_init: 56,
        queue: 72,
        commit: 80,
        getevents: 88,
        event: 96,
        cleanup: 120,
        open_file: 128,
        close_file: 136,
        invalidate: 144,
        get_file_size: 160,
        io_u_init: 200,
    },
    flags: Flags { rawio: 1 << 1, nodiskutil: 1 << 4, no_offload: 1 << 15 },
    io_u: IoU {
        file: 32,
        ddir: 44,
        ioprio: 54,
        offset: 72,
        buf: 88,
        xfer_buf: 104,
        xfer_buflen: 112,
        resid: 136,
        error: 144,
    },
    td: Td { ddir: 176, iodepth: 208, iodepth_batch: 216, max_bs: 392, odirect: 508, sync_io: 544 },
};

const V3_39: Layout = Layout { version: "fio-3.39", ioops: 36, ..V3_33 };

/// Without `cancel` in `ioengine_ops`, with a `numberio` of 64 bits in `io_u` and a `filetype` in the options.
const V3_41: Layout = Layout {
    version: "fio-3.41",
    ioops: 39,
    ops: Ops {
        cleanup: 112,
        open_file: 120,
        close_file: 128,
        invalidate: 136,
        get_file_size: 152,
        io_u_init: 192,
        ..V3_33.ops
    },
    io_u: IoU {
        ioprio: 64,
        offset: 80,
        buf: 96,
        xfer_buf: 112,
        xfer_buflen: 120,
        resid: 144,
        error: 152,
        ..V3_33.io_u
    },
    td: Td { odirect: 512, sync_io: 548, ..V3_33.td },
    ..V3_33
};

/// With `syncfs`, as a flag and as an option.
const V3_42: Layout = Layout {
    version: "fio-3.42",
    flags: Flags { no_offload: 1 << 16, ..V3_41.flags },
    td: Td { sync_io: 552, ..V3_41.td },
    ..V3_41
};

/// All versions known.
static KNOWN: [Layout; 4] = [V3_33, V3_39, V3_41, V3_42];

/// Returns the layout for a version string, or the error message that rejects it.
pub fn known(version: Option<&str>) -> Result<&'static Layout, String> {
    let names: Vec<_> = KNOWN.iter().map(|k| k.version).collect();
    let (last, others) = names.split_last().expect("there are known versions");
    let this = version.unwrap_or("a program that reports no version");
    KNOWN.iter().find(|k| Some(k.version) == version).ok_or_else(|| {
        format!(
            "libmqblk_fio.so supports {} and {last}, not {this}: engines depend on fio's internals; use a supported \
             version, or run the job file with 'mqblk run'",
            others.join(", ")
        )
    })
}

/// Bytes that are reserved for `struct ioengine_ops`, more than any version needs.
pub const OPS_BYTES: usize = 1024;

/// Offsets in `struct fio_file`, and values of `enum fio_filetype`: the same in all versions.
pub mod file {
    pub const FILETYPE: usize = 16;
    pub const FILE_NAME: usize = 40;
    pub const REAL_FILE_SIZE: usize = 48;
    /// A file, which fio may create and extend.
    pub const TYPE_FILE: u32 = 1;
    /// A device, which has a fixed size.
    pub const TYPE_BLOCK: u32 = 2;
}

/// Values of `enum fio_ddir`.
pub mod ddir {
    pub const READ: u32 = 0;
    pub const WRITE: u32 = 1;
    pub const TRIM: u32 = 2;
    pub const SYNC: u32 = 3;
    pub const DATASYNC: u32 = 4;
    pub const SYNC_FILE_RANGE: u32 = 5;
}

/// Return values of `queue`, `enum fio_q_status`.
pub mod q {
    pub const COMPLETED: i32 = 0;
    pub const QUEUED: i32 = 1;
    pub const BUSY: i32 = 2;
}

/// Options of a job that the engine uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobOptions {
    /// `rw` with writes or trims.
    pub writes: bool,
    pub iodepth: u32,
    /// `iodepth_batch_submit`.
    pub batch: u32,
    pub direct: bool,
    /// `sync=`: each write is durable when it completes.
    pub sync: bool,
    /// Bytes between two buffers of the job.
    pub max_bs: u64,
}

impl JobOptions {
    /// The options that are assumed when those of a job cannot be read.
    pub const UNKNOWN: JobOptions =
        JobOptions { writes: true, iodepth: 1, batch: 1, direct: false, sync: false, max_bs: 0 };

    /// Makes options from the words at the offsets above. `None` when they are inconsistent, which means that this fio was built with
    /// other structures than its version says.
    pub fn sensible(words: RawOptions) -> Option<JobOptions> {
        let RawOptions { ddir, iodepth, iodepth_batch, max_bs, odirect, sync_io } = words;
        let max_bs = max_bs.into_iter().max()?;
        let sense = (1..=0x1f).contains(&ddir)
            && (1..=1 << 20).contains(&iodepth)
            && (1..=iodepth).contains(&iodepth_batch)
            && odirect <= 1
            && (1..=1 << 32).contains(&max_bs)
            && [0, libc::O_SYNC, libc::O_DSYNC].contains(&(sync_io as i32));
        sense.then_some(JobOptions {
            writes: ddir & (1 << 1 | 1 << 3) != 0,
            iodepth,
            batch: iodepth_batch,
            direct: odirect == 1,
            sync: sync_io != 0,
            max_bs,
        })
    }
}

/// The values at the offsets of [`Td`].
#[derive(Clone, Copy, Debug)]
pub struct RawOptions {
    pub ddir: u32,
    pub iodepth: u32,
    pub iodepth_batch: u32,
    pub max_bs: [u64; 3],
    pub odirect: u32,
    pub sync_io: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fio_that_is_not_known_is_named_with_those_that_are() {
        assert_eq!(known(Some("fio-3.33")).map(|k| k.ioops), Ok(31));
        let text = known(Some("fio-3.40")).map(|k| k.ioops).unwrap_err();
        assert!(
            text.contains("supports fio-3.33, fio-3.39, fio-3.41 and fio-3.42, not fio-3.40")
                && text.contains("'mqblk run'"),
            "{text}"
        );
        assert!(known(None).map(|k| k.ioops).unwrap_err().contains("reports no version"));
    }

    #[test]
    fn options_without_sense_are_not_gone_by() {
        let words = RawOptions {
            ddir: 6,
            iodepth: 32,
            iodepth_batch: 8,
            max_bs: [4096, 8192, 4096],
            odirect: 1,
            sync_io: libc::O_DSYNC as u32,
        };
        let options = JobOptions::sensible(words).unwrap();
        assert!(options.writes && options.direct && options.sync);
        assert_eq!((options.iodepth, options.batch, options.max_bs), (32, 8, 8192));
        assert!(JobOptions::sensible(RawOptions { iodepth_batch: 33, ..words }).is_none());
        assert!(JobOptions::sensible(RawOptions { odirect: 7, ..words }).is_none());
        assert!(JobOptions::sensible(RawOptions { sync_io: 1, ..words }).is_none());
        assert!(JobOptions::sensible(RawOptions { max_bs: [0; 3], ..words }).is_none());
        assert!(!JobOptions::sensible(RawOptions { ddir: 5, ..words }).unwrap().writes);
    }
}
