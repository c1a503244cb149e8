// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Identifiers: small newtypes whose constructors check the range, so that a tag is never used as a CPU number.

/// log2 of the sector size. Sectors of 512 bytes are the unit of every address and length, for any logical block size.
pub const SECTOR_SHIFT: u32 = 9;
/// Bytes of one sector.
pub const SECTOR_SIZE: u32 = 1 << SECTOR_SHIFT;

/// Maximum number of tags a tag set may have (`BLK_MQ_MAX_DEPTH`, block/blk-mq.h).
pub const BLK_MQ_MAX_DEPTH: u32 = 10240;
/// Maximum number of CPUs of one stack. NR_CPUS of large distributions' kernels is 8192. A CPU number takes two bytes of a request
/// here.
pub const MAX_CPUS: u32 = 4096;
/// Maximum number of submitters of one disk.
pub const MAX_SUBMITTERS: u32 = 1024;

/// An address on a disk, in 512-byte sectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sector(pub u64);

/// Number of a CPU of the stack (virtual in simulation), below [`MAX_CPUS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(u16);

/// Number of a hardware queue of one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HctxId(u16);

/// A driver tag: the number that identifies a request at the driver; unique within its hctx while in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(u16);

/// Number of a submitter of one disk. A submitter is the entry of one thread, or one virtual CPU, to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubmitterId(u16);

macro_rules! bounded_id {
    ($name:ident, $bound:expr) => {
        impl $name {
            /// Makes it from a number. Panics when the number is out of range, which is a bug of the caller.
            #[inline]
            pub const fn new(n: u32) -> Self {
                assert!(n < $bound, "identifier out of range");
                Self(n as u16)
            }

            /// Returns the number as an index.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

bounded_id!(CpuId, MAX_CPUS);
bounded_id!(HctxId, MAX_CPUS);
bounded_id!(Tag, BLK_MQ_MAX_DEPTH);
bounded_id!(SubmitterId, MAX_SUBMITTERS);

impl core::fmt::Display for Sector {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "identifier out of range")]
    fn a_tag_beyond_the_depth_limit_is_refused() {
        let _ = Tag::new(BLK_MQ_MAX_DEPTH);
    }

    #[test]
    fn ids_keep_their_number() {
        assert_eq!(CpuId::new(MAX_CPUS - 1).index(), MAX_CPUS as usize - 1);
        assert_eq!(HctxId::new(3).to_string(), "3");
    }
}
