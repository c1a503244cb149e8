// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Layouts of fio's structures: byte offsets, by version.
//!
//! fio has no stable interface for engines outside its tree; `FIO_IOOPS_VERSION` only says that something may have changed. All
//! fields here lie before any `#ifdef` of their structure, so they do not depend on how a fio was configured. Fields of `thread_data`
//! are only read, and are checked for consistency ([`JobOptions::sensible`]) before the engine relies on them.
//!
//! Source: `offsetof` in a program compiled with ioengines.h, io_u.h, file.h and thread_options.h of fio 3.33. For fio 3.39 of Debian
//! 13, an engine that printed the arguments of its functions.

/// A version of fio that may load this engine, and the interface version that it requires.
pub struct FioVersion {
    /// `fio_version_string`.
    pub version: &'static str,
    /// `FIO_IOOPS_VERSION`.
    pub ioops: i32,
}

/// All versions known; their layouts are the same.
pub const KNOWN: [FioVersion; 2] =
    [FioVersion { version: "fio-3.33", ioops: 31 }, FioVersion { version: "fio-3.39", ioops: 36 }];

/// Returns the entry for a version string, or the error message that rejects it.
pub fn known(version: Option<&str>) -> Result<&'static FioVersion, String> {
    let names: Vec<_> = KNOWN.iter().map(|k| k.version).collect();
    let this = version.unwrap_or("a program that reports no version");
    KNOWN.iter().find(|k| Some(k.version) == version).ok_or_else(|| {
        format!(
            "libmqblk_fio.so supports {}, not {this}: engines depend on fio's internals; use a supported version, or \
             run the job file with 'mqblk run'",
            names.join(" and ")
        )
    })
}

/// Bytes that are reserved for `struct ioengine_ops`, more than any version needs.
pub const OPS_BYTES: usize = 1024;

/// Offsets in `struct ioengine_ops`.
pub mod ops {
    pub const NAME: usize = 16;
    pub const VERSION: usize = 24;
    pub const FLAGS: usize = 28;
    pub const INIT: usize = 48;
    pub const POST_INIT: usize = 56;
    pub const QUEUE: usize = 72;
    pub const COMMIT: usize = 80;
    pub const GETEVENTS: usize = 88;
    pub const EVENT: usize = 96;
    pub const CLEANUP: usize = 120;
    pub const OPEN_FILE: usize = 128;
    pub const CLOSE_FILE: usize = 136;
    pub const INVALIDATE: usize = 144;
    pub const GET_FILE_SIZE: usize = 160;
    pub const IO_U_INIT: usize = 200;
}

/// Values of `enum fio_ioengine_flags`.
pub mod flags {
    /// Buffers are page-aligned.
    pub const RAWIO: i32 = 1 << 1;
    /// fio does not look for the kernel's disk statistics by the file's name.
    pub const NODISKUTIL: i32 = 1 << 4;
    /// Only the job's own thread submits.
    pub const NO_OFFLOAD: i32 = 1 << 15;
}

/// Offsets in `struct io_u`.
pub mod io_u {
    pub const FILE: usize = 32;
    pub const DDIR: usize = 44;
    pub const IOPRIO: usize = 54;
    pub const OFFSET: usize = 72;
    pub const BUF: usize = 88;
    pub const XFER_BUF: usize = 104;
    pub const XFER_BUFLEN: usize = 112;
    pub const RESID: usize = 136;
    pub const ERROR: usize = 144;
}

/// Offsets in `struct fio_file`, and values of `enum fio_filetype`.
pub mod file {
    pub const FILETYPE: usize = 16;
    pub const FILE_NAME: usize = 40;
    pub const REAL_FILE_SIZE: usize = 48;
    /// A file, which fio may create and extend.
    pub const TYPE_FILE: u32 = 1;
    /// A device, which has a fixed size.
    pub const TYPE_BLOCK: u32 = 2;
}

/// Offsets in `struct thread_data` (with its `thread_options`).
pub mod td {
    pub const DDIR: usize = 176;
    pub const IODEPTH: usize = 208;
    pub const IODEPTH_BATCH: usize = 216;
    pub const MAX_BS: usize = 392;
    pub const ODIRECT: usize = 508;
    pub const SYNC_IO: usize = 544;
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

/// The values at the offsets of [`td`].
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
            text.contains("supports fio-3.33 and fio-3.39, not fio-3.40") && text.contains("'mqblk run'"),
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
