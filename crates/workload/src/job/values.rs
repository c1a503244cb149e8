// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The value types of a resolved job: the possible values of an option.
//!
//! Guarantees: a value of these types from [`super::JobFile::parse_str`] is within the range that its doc states. Units are
//! in the name (`_bytes`, `_ns`, `_pct`). Needs from callers: nothing. Does not do: parsing (see `options`), defaults (see
//! `spec`), or any choice at run time. Source of the meanings: fio's HOWTO, release 3.33.

use std::fmt;
use std::ops::{Index, IndexMut};

/// Data direction of one I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dir {
    /// Data moves from the device.
    Read,
    /// Data moves to the device.
    Write,
    /// A range is discarded.
    Trim,
}

impl Dir {
    /// All directions in fio's order, which is the order of `a,b,c` values.
    pub const ALL: [Dir; 3] = [Dir::Read, Dir::Write, Dir::Trim];
}

impl fmt::Display for Dir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dir::Read => "read",
            Dir::Write => "write",
            Dir::Trim => "trim",
        })
    }
}

/// One value per direction; what fio writes as `read,write,trim`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerDir<T> {
    /// Value for reads.
    pub read: T,
    /// Value for writes.
    pub write: T,
    /// Value for trims.
    pub trim: T,
}

impl<T: Clone> PerDir<T> {
    /// The same value for every direction.
    pub fn all(value: T) -> Self {
        PerDir { read: value.clone(), write: value.clone(), trim: value }
    }
}

impl<T> Index<Dir> for PerDir<T> {
    type Output = T;
    fn index(&self, dir: Dir) -> &T {
        match dir {
            Dir::Read => &self.read,
            Dir::Write => &self.write,
            Dir::Trim => &self.trim,
        }
    }
}

impl<T> IndexMut<Dir> for PerDir<T> {
    fn index_mut(&mut self, dir: Dir) -> &mut T {
        match dir {
            Dir::Read => &mut self.read,
            Dir::Write => &mut self.write,
            Dir::Trim => &mut self.trim,
        }
    }
}

/// The directions that a job issues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RwMode {
    /// Reads only.
    Read,
    /// Writes only.
    Write,
    /// Trims only.
    Trim,
    /// Reads and writes mixed by `rwmixread_pct`.
    ReadWrite,
    /// Each block is trimmed, then written.
    TrimWrite,
    /// What a trace has (`read_iolog`).
    Replay {
        /// It has reads.
        reads: bool,
        /// It has writes.
        writes: bool,
        /// It has trims.
        trims: bool,
    },
}

/// `rw=`: directions and whether offsets are random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rw {
    /// Directions.
    pub mode: RwMode,
    /// Random offsets (`rand...`), else sequential.
    pub random: bool,
}

impl Rw {
    /// Whether the job issues I/O in this direction.
    pub fn has(self, dir: Dir) -> bool {
        match self.mode {
            RwMode::Read => dir == Dir::Read,
            RwMode::Write => dir == Dir::Write,
            RwMode::Trim => dir == Dir::Trim,
            RwMode::ReadWrite => dir != Dir::Trim,
            RwMode::TrimWrite => dir != Dir::Read,
            RwMode::Replay { reads, writes, trims } => match dir {
                Dir::Read => reads,
                Dir::Write => writes,
                Dir::Trim => trims,
            },
        }
    }
}

impl fmt::Display for Rw {
    /// fio's canonical word: `read`, `randrw`, `randtrimwrite`, ...
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.random {
            f.write_str("rand")?;
        }
        f.write_str(match self.mode {
            RwMode::Read => "read",
            RwMode::Write => "write",
            RwMode::Trim => "trim",
            RwMode::ReadWrite => "rw",
            RwMode::TrimWrite => "trimwrite",
            RwMode::Replay { reads: true, writes: false, trims: false } => "read",
            RwMode::Replay { reads: false, writes: true, trims: false } => "write",
            RwMode::Replay { reads: false, writes: false, .. } => "trim",
            RwMode::Replay { .. } => "rw",
        })
    }
}

/// `rw_sequencer=`: the offsets of a random job between two fresh ones, when `rand_offset_every` > 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RwSequencer {
    /// Continue at the end of the last I/O.
    #[default]
    Sequential,
    /// Repeat the last offset.
    Identical,
}

/// Block sizes of one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockSizes {
    /// `bs=`: every I/O has this many bytes (>= 1).
    Fixed(u64),
    /// `bsrange=`: uniform over `min_bytes..=max_bytes` (1 <= min <= max), in steps of `min_bytes` unless `bs_unaligned`.
    Range {
        /// Smallest size.
        min_bytes: u64,
        /// Largest size.
        max_bytes: u64,
    },
    /// `bssplit=`: sizes with weights; never empty. The size with the largest weight gets what is missing to 100.
    Split(Vec<SizeWeight>),
}

/// One entry of `bssplit=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeWeight {
    /// Block size, >= 1.
    pub bytes: u64,
    /// Share of I/Os of this size, 0..=100.
    pub pct: u32,
}

impl BlockSizes {
    /// The smallest size this direction can issue; the grid of random offsets when no `blockalign` is given.
    pub fn min_bytes(&self) -> u64 {
        match self {
            BlockSizes::Fixed(bytes) => *bytes,
            BlockSizes::Range { min_bytes, .. } => *min_bytes,
            BlockSizes::Split(split) => split.iter().map(|s| s.bytes).min().unwrap_or(0),
        }
    }

    /// The largest size this direction can issue, which is the least size of a buffer.
    pub fn max_bytes(&self) -> u64 {
        match self {
            BlockSizes::Fixed(bytes) => *bytes,
            BlockSizes::Range { max_bytes, .. } => *max_bytes,
            BlockSizes::Split(split) => split.iter().map(|s| s.bytes).max().unwrap_or(0),
        }
    }
}

/// A size given in bytes or as a share of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Bytes.
    Bytes(u64),
    /// Percent of the target's (or file's) size, 0..=100.
    Percent(u32),
}

impl Extent {
    /// Returns the number of bytes of a whole of `whole_bytes`; a percentage is rounded down.
    pub fn of(self, whole_bytes: u64) -> u64 {
        match self {
            Extent::Bytes(bytes) => bytes,
            Extent::Percent(pct) => {
                let bytes = u128::from(whole_bytes) * u128::from(pct) / 100;
                // pct <= 100, so the quotient fits; saturate in case a caller built an invalid value.
                u64::try_from(bytes).unwrap_or(u64::MAX)
            }
        }
    }
}

impl Default for Extent {
    fn default() -> Self {
        Extent::Bytes(0)
    }
}

/// `ioengine=`: names of fio engines, which determine how a job submits. They select code here only through [`Submit`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IoEngine {
    /// `libaio`: asynchronous.
    Libaio,
    /// `io_uring`: asynchronous.
    IoUring,
    /// `posixaio`: asynchronous.
    PosixAio,
    /// `sync`: lseek + read/write, one at a time.
    Sync,
    /// `psync`: pread/pwrite, one at a time; fio's default.
    #[default]
    Psync,
    /// `vsync`: readv/writev with coalescing, one at a time.
    Vsync,
    /// `pvsync`: preadv/pwritev, one at a time.
    Pvsync,
    /// `pvsync2`: preadv2/pwritev2, one at a time.
    Pvsync2,
    /// `null`: no I/O reaches a device.
    Null,
}

/// How a job submits, which is all that a runner needs of [`IoEngine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Submit {
    /// Up to `iodepth` in flight, in batches.
    Async,
    /// One at a time; the submitter waits for each.
    Sync,
    /// As `Async`, and the job uses the null target whatever `filename` is.
    Null,
}

impl IoEngine {
    /// How a job with this engine submits.
    pub fn submit(self) -> Submit {
        match self {
            IoEngine::Libaio | IoEngine::IoUring | IoEngine::PosixAio => Submit::Async,
            IoEngine::Sync | IoEngine::Psync | IoEngine::Vsync | IoEngine::Pvsync | IoEngine::Pvsync2 => Submit::Sync,
            IoEngine::Null => Submit::Null,
        }
    }

    /// fio's name.
    pub fn name(self) -> &'static str {
        match self {
            IoEngine::Libaio => "libaio",
            IoEngine::IoUring => "io_uring",
            IoEngine::PosixAio => "posixaio",
            IoEngine::Sync => "sync",
            IoEngine::Psync => "psync",
            IoEngine::Vsync => "vsync",
            IoEngine::Pvsync => "pvsync",
            IoEngine::Pvsync2 => "pvsync2",
            IoEngine::Null => "null",
        }
    }
}

/// `sync=`: durability of each write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SyncMode {
    /// Writes may stay in a volatile cache.
    #[default]
    None,
    /// O_SYNC: data and metadata durable before completion.
    Sync,
    /// O_DSYNC: data durable before completion (FUA).
    Dsync,
}

/// `random_distribution=` of one direction.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Distribution {
    /// Uniform.
    #[default]
    Random,
    /// `zipf:theta[:center]`, theta > 0 and != 1.
    Zipf {
        /// Exponent.
        theta: f64,
        /// Position of the hot spot, 0.0..=1.0 of the range; `None` scatters the hot blocks by a hash.
        center: Option<f64>,
    },
    /// `pareto:h[:center]`, 0 < h < 1.
    Pareto {
        /// Power.
        h: f64,
        /// As for zipf.
        center: Option<f64>,
    },
    /// `normal:dev[:center]`, 0 < dev <= 100.
    Normal {
        /// Deviation in percent of the range.
        dev_pct: f64,
        /// As for zipf.
        center: Option<f64>,
    },
    /// `zoned:` / `zoned_abs:`; never empty. Access shares sum to 100.
    Zoned(Vec<Zone>),
}

impl Distribution {
    /// Whether some blocks are hotter than others, apart from zones.
    pub fn is_skewed(&self) -> bool {
        matches!(self, Distribution::Zipf { .. } | Distribution::Pareto { .. } | Distribution::Normal { .. })
    }
}

/// `fallocate=`: how the space of a new file is reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallocate {
    /// Not at all.
    None,
    /// By the file system.
    #[default]
    Native,
    /// By the file system; as `Native` where it can.
    Posix,
    /// By the file system, before the file has its size.
    Keep,
    /// Not at all; the file has its size.
    Truncate,
}

/// `file_service_type=`: which of several files the next I/O goes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum FileService {
    /// Each file in turn.
    #[default]
    RoundRobin,
    /// One file to its end, then the next.
    Sequential,
    /// Any file, each as often.
    Random,
    /// Some files more often; a skewed distribution. A deviation may be 0.
    Skewed(Distribution),
}

impl FileService {
    /// Whether a file that is at its end starts over, so that only the amount of I/O ends the job.
    pub fn restarts_files(&self) -> bool {
        matches!(self, FileService::Skewed(_))
    }
}

/// One zone of `random_distribution=zoned:...`. Zones lie one after the other from the start of the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Share of accesses that fall into the zone, 0..=100.
    pub access_pct: u32,
    /// Length of the zone; percentages of all zones sum to 100.
    pub span: Extent,
}

/// `random_generator=`: what draws random offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RandomGenerator {
    /// 32 bits, or 64 where the blocks need them.
    #[default]
    Tausworthe,
    /// A shift register that returns each block once, without a random map.
    Lfsr,
    /// 64 bits.
    Tausworthe64,
}

/// `verify=`: checksum or pattern that each written block carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VerifyKind {
    /// A header without a checksum of the data.
    Meta,
    /// MD5 in fio's header.
    Md5,
    /// CRC-64 in fio's header.
    Crc64,
    /// CRC-32 in fio's header.
    Crc32,
    /// CRC-32C in fio's header.
    Crc32c,
    /// CRC-16 in fio's header.
    Crc16,
    /// CRC-7 in fio's header.
    Crc7,
    /// fio's form of SHA-256 in its header.
    Sha256,
    /// fio's form of SHA-512 in its header.
    Sha512,
    /// SHA3-224 in fio's header.
    Sha3_224,
    /// SHA3-256 in fio's header.
    Sha3_256,
    /// SHA3-384 in fio's header.
    Sha3_384,
    /// SHA3-512 in fio's header.
    Sha3_512,
    /// XXH32 in fio's header.
    Xxhash,
    /// SHA-1 in fio's header.
    Sha1,
    /// The block is `verify_pattern`, without a header.
    Pattern,
    /// Blocks are read back, but not checked.
    Null,
}

impl VerifyKind {
    /// All kinds, with fio's names.
    pub const ALL: [(VerifyKind, &'static str); 17] = [
        (VerifyKind::Meta, "meta"),
        (VerifyKind::Md5, "md5"),
        (VerifyKind::Crc64, "crc64"),
        (VerifyKind::Crc32, "crc32"),
        (VerifyKind::Crc32c, "crc32c"),
        (VerifyKind::Crc16, "crc16"),
        (VerifyKind::Crc7, "crc7"),
        (VerifyKind::Sha256, "sha256"),
        (VerifyKind::Sha512, "sha512"),
        (VerifyKind::Sha3_224, "sha3-224"),
        (VerifyKind::Sha3_256, "sha3-256"),
        (VerifyKind::Sha3_384, "sha3-384"),
        (VerifyKind::Sha3_512, "sha3-512"),
        (VerifyKind::Xxhash, "xxhash"),
        (VerifyKind::Sha1, "sha1"),
        (VerifyKind::Pattern, "pattern"),
        (VerifyKind::Null, "null"),
    ];

    /// fio's name.
    pub fn name(self) -> &'static str {
        VerifyKind::ALL.iter().find(|(kind, _)| *kind == self).expect("every kind is listed").1
    }

    /// Whether blocks have fio's header.
    pub const fn has_header(self) -> bool {
        !matches!(self, VerifyKind::Pattern | VerifyKind::Null)
    }
}

/// A fill pattern, repeated over a block. Never empty, at most 512 bytes, as in fio.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The bytes; the eight at each offset placeholder are zero.
    pub bytes: Vec<u8>,
    /// Positions of `%o`: each is the first of eight bytes that hold the block's offset in the target, little-endian.
    pub offset_at: Vec<usize>,
}

/// The content of a write buffer before verify headers are added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BufferFill {
    /// Pseudo-random bytes.
    #[default]
    Random,
    /// `zero_buffers`.
    Zero,
    /// `buffer_pattern=`.
    Pattern(Pattern),
}

/// `rate_process=`: when the I/Os of a rate-limited job are due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RateProcess {
    /// Evenly spaced.
    #[default]
    Linear,
    /// A Poisson process (exponential gaps), as from independent users.
    Poisson,
}

/// `thinktime_blocks_type=`: the blocks that `thinktime_blocks` counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ThinktimeBlocks {
    /// Completed blocks; the pause waits for the queue to drain.
    #[default]
    Complete,
    /// Issued blocks.
    Issue,
}

/// `prioclass=`: I/O priority class, the numbers of ioprio_set(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PrioClass {
    /// 0: none given.
    #[default]
    None,
    /// 1.
    RealTime,
    /// 2.
    BestEffort,
    /// 3.
    Idle,
}

impl PrioClass {
    /// The class with this number; `None` for any other than 1, 2 and 3.
    pub const fn of_number(number: u64) -> PrioClass {
        match number {
            1 => PrioClass::RealTime,
            2 => PrioClass::BestEffort,
            3 => PrioClass::Idle,
            _ => PrioClass::None,
        }
    }
}

/// `cpus_allowed_policy=`: how the instances of a job share `cpus_allowed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CpusPolicy {
    /// Every instance may use every CPU of the set.
    #[default]
    Shared,
    /// Instance n is bound to the n-th CPU of the set, modulo its length.
    Split,
}
