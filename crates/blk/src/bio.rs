// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A bio: one I/O as submitted, and the pool of slots that holds bios while they are in the block layer.
//!
//! Each submitter owns one `BioPool`, allocated once. A submitted [`Bio`] is copied into a slot; requests link slots
//! into chains (one chain per request, in sector order); the slot returns to its submitter when the bio completes. This
//! crate never accesses the data itself: [`DataRef`] is an address that only the driver's side can use.

use crate::id::{MAX_SUBMITTERS, SECTOR_SHIFT, SECTOR_SIZE, Sector, SubmitterId};
use crate::relaxed::{FieldU8, FieldU16, FieldU32, FieldU64};
use crate::status::BlkStatus;
use crate::time::Instant;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// The operation of a bio or request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// Device to memory.
    Read = 0,
    /// Memory to device.
    Write = 1,
    /// Make everything completed so far durable; has no sectors.
    Flush = 2,
    /// The sectors' content is no longer needed.
    Discard = 3,
    /// The sectors read as zeroes afterwards.
    WriteZeroes = 4,
}

impl Op {
    /// Number of operations, for tables indexed by `op as usize`.
    pub const COUNT: usize = 5;

    /// Whether the operation changes the medium's content.
    #[inline]
    pub const fn is_write(self) -> bool {
        matches!(self, Op::Write | Op::Discard | Op::WriteZeroes)
    }

    /// Whether the operation has data segments.
    #[inline]
    pub const fn has_data(self) -> bool {
        matches!(self, Op::Read | Op::Write)
    }

    #[inline]
    pub(crate) fn from_u8(n: u8) -> Op {
        match n {
            0 => Op::Read,
            1 => Op::Write,
            2 => Op::Flush,
            3 => Op::Discard,
            4 => Op::WriteZeroes,
            _ => unreachable!("operation {n}"),
        }
    }
}

/// Modifiers of an operation (`REQ_*`), a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpFlags(u16);

/// Defines the modifiers, and the table of their names.
macro_rules! op_flags {
    ($($(#[$doc:meta])* $flag:ident = $bit:literal;)+) => {
        impl OpFlags {
            $($(#[$doc])* pub const $flag: OpFlags = OpFlags(1 << $bit);)+

            /// Every modifier with its name, in the order of their bits.
            pub const NAMED: &'static [(OpFlags, &'static str)] = &[$((OpFlags::$flag, stringify!($flag))),+];
        }
    };
}

op_flags! {
    /// The write is on stable media when it completes. This flag and [`OpFlags::PREFLUSH`] are errors on any operation
    /// but a write or flush.
    FUA = 0;
    /// Flush the volatile cache before the write.
    PREFLUSH = 1;
    /// Synchronous: a thread waits for the I/O (reads always count as synchronous).
    SYNC = 2;
    /// Fail with [`BlkStatus::Again`] rather than wait for a tag.
    NOWAIT = 3;
    /// The I/O goes to a poll queue.
    POLLED = 4;
    /// Never merged with a neighbour.
    NOMERGE = 5;
    /// Read-ahead: may be dropped.
    RAHEAD = 6;
    /// Metadata, preferred by some elevators.
    META = 7;
    /// Takes one of the reserved tags, bypasses the elevator and is never merged. The bio fails on a disk without
    /// reserved tags. It also fails if it is a flush or has [`OpFlags::FUA`], because a flush sequence waits for
    /// normal tags.
    RESERVED = 8;
    /// The submitter does not expect to issue more I/O of this kind. A write with this flag and [`OpFlags::SYNC`] is a
    /// direct write, which write-back throttling ignores.
    IDLE = 9;
    /// Write-back that is in no hurry.
    BACKGROUND = 10;
    /// For a write of zeroes: the sectors keep their space. Without this flag the disk may deallocate them.
    NOUNMAP = 11;
    /// For a write of zeroes: fail with [`BlkStatus::NotSupp`] if it would not be cheaper than writing the zeroes
    /// (`BLKDEV_ZERO_NOFALLBACK`).
    NOFALLBACK = 12;
    /// The read or write begins or ends within a sector: its [`Margins`] are not part of it ([`Bio::at_bytes`]). Never merged. The
    /// bio fails on a disk without [`Limits::takes_bytes`](crate::limits::Limits::takes_bytes).
    BYTES = 13;
}

impl OpFlags {
    /// No modifier.
    pub const NONE: OpFlags = OpFlags(0);

    /// Returns the names of the modifiers that are set, in the order of their bits.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        OpFlags::NAMED.iter().filter(move |(flag, _)| self.contains(*flag)).map(|(_, name)| *name)
    }

    /// Whether the lists together contain every modifier. A consumer that handles some modifiers and ignores others
    /// asserts this at compile time, so a new modifier needs a decision there.
    pub const fn are_all(lists: &[&[OpFlags]]) -> bool {
        let mut all = OpFlags::NONE;
        let mut list = 0;
        while list < lists.len() {
            let mut i = 0;
            while i < lists[list].len() {
                all = all.union(lists[list][i]);
                i += 1;
            }
            list += 1;
        }
        all.0.count_ones() as usize == OpFlags::NAMED.len()
    }

    /// Returns the modifiers in a table, for [`OpFlags::are_all`].
    pub const fn of_table<T, const N: usize>(table: &[(OpFlags, T); N]) -> [OpFlags; N] {
        let mut flags = [OpFlags::NONE; N];
        let mut i = 0;
        while i < N {
            flags[i] = table[i].0;
            i += 1;
        }
        flags
    }

    /// Whether every bit of `other` is set.
    #[inline]
    pub const fn contains(self, other: OpFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any bit of `other` is set.
    #[inline]
    pub const fn intersects(self, other: OpFlags) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the union of both sets.
    #[inline]
    pub const fn union(self, other: OpFlags) -> OpFlags {
        OpFlags(self.0 | other.0)
    }

    /// Returns this set without the bits of `other`.
    #[inline]
    pub const fn without(self, other: OpFlags) -> OpFlags {
        OpFlags(self.0 & !other.0)
    }

    /// Whether an operation with these modifiers counts as synchronous (`op_is_sync`).
    #[inline]
    pub(crate) const fn is_sync(self, op: Op) -> bool {
        matches!(op, Op::Read) || self.intersects(OpFlags::SYNC.union(OpFlags::FUA).union(OpFlags::PREFLUSH))
    }

    #[inline]
    pub(crate) const fn bits(self) -> u16 {
        self.0
    }

    #[inline]
    pub(crate) const fn from_bits(bits: u16) -> OpFlags {
        OpFlags(bits)
    }
}

/// Scheduling class (`IOPRIO_CLASS_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum IoPrioClass {
    /// Not set: treated as best effort.
    #[default]
    None = 0,
    /// Real time: served first.
    Rt = 1,
    /// Best effort.
    Be = 2,
    /// Served when the disk has no other I/O.
    Idle = 3,
}

/// I/O priority: class, level 0 (highest) ..= 7, and a hint. Bios that differ in any of these never share a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IoPrio(u16);

const LEVEL_BITS: u16 = 3;
const HINT_BITS: u16 = 10;

impl IoPrio {
    /// Makes a priority from class and level; panics when `level` is above 7.
    #[inline]
    pub const fn new(class: IoPrioClass, level: u8) -> IoPrio {
        assert!(level <= 7, "I/O priority level out of range");
        IoPrio((class as u16) << 13 | level as u16)
    }

    /// Returns the same priority with a hint, 0..=1023 (`IOPRIO_PRIO_HINT`, for example a duration limit). Panics
    /// when it is larger. No elevator uses the hint and no device gets it; it only keeps bios with different hints
    /// apart.
    #[inline]
    pub const fn with_hint(self, hint: u16) -> IoPrio {
        assert!(hint <= Self::MAX_HINT, "I/O priority hint out of range");
        IoPrio(self.0 & !(Self::MAX_HINT << LEVEL_BITS) | hint << LEVEL_BITS)
    }

    /// The greatest hint.
    pub const MAX_HINT: u16 = (1 << HINT_BITS) - 1;

    /// Returns the class.
    #[inline]
    pub const fn class(self) -> IoPrioClass {
        match self.0 >> 13 {
            1 => IoPrioClass::Rt,
            2 => IoPrioClass::Be,
            3 => IoPrioClass::Idle,
            _ => IoPrioClass::None,
        }
    }

    /// Returns class and level as one number, without the hint (`IOPRIO_PRIO_VALUE`).
    #[inline]
    pub const fn value(self) -> u16 {
        (self.class() as u16) << 13 | self.level() as u16
    }

    /// Returns the level inside the class, 0..=7.
    #[inline]
    pub const fn level(self) -> u8 {
        (self.0 & 7) as u8
    }

    #[inline]
    pub(crate) const fn bits(self) -> u16 {
        self.0
    }

    #[inline]
    pub(crate) const fn from_bits(bits: u16) -> IoPrio {
        IoPrio(bits)
    }
}

/// A reference to a bio's data, which submitter and driver interpret in the same way: a memory region number and a byte
/// offset in it. `blk` only adds offsets; the code that accesses the data checks the reference against the region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataRef(u64);

impl DataRef {
    /// No data (flush, discard, write zeroes).
    pub const NONE: DataRef = DataRef(0);
    /// Largest offset in a region: 48 bits.
    pub const MAX_OFFSET: u64 = (1 << 48) - 1;

    /// Makes a reference to `offset` in region `region`. Panics when the offset is above [`DataRef::MAX_OFFSET`].
    #[inline]
    pub const fn new(region: u16, offset: u64) -> DataRef {
        assert!(offset <= Self::MAX_OFFSET, "data offset out of range");
        DataRef((region as u64) << 48 | offset)
    }

    /// Returns the number of the memory region.
    #[inline]
    pub const fn region(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// Returns the byte offset in the region.
    #[inline]
    pub const fn offset(self) -> u64 {
        self.0 & Self::MAX_OFFSET
    }

    /// Returns the reference advanced by `bytes`. Panics when the offset gets above [`DataRef::MAX_OFFSET`].
    #[inline]
    pub const fn advance(self, bytes: u64) -> DataRef {
        DataRef::new(self.region(), self.offset() + bytes)
    }

    #[inline]
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> DataRef {
        DataRef(bits)
    }
}

/// The bytes at both ends of a bio's sectors that are not part of the I/O, less than a sector each. Without effect unless
/// the bio has [`OpFlags::BYTES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Margins(u32);

impl Margins {
    /// Whole sectors.
    pub const NONE: Margins = Margins(0);

    const fn new(head: u32, tail: u32) -> Margins {
        Margins(head | tail << 16)
    }

    /// Bytes of the first sector before the I/O.
    #[inline]
    pub(crate) const fn head(self) -> u32 {
        self.0 & 0xffff
    }

    /// Bytes of the last sector after the I/O.
    #[inline]
    pub(crate) const fn tail(self) -> u32 {
        self.0 >> 16
    }
}

/// One I/O, as submitted.
#[derive(Clone, Copy, Debug)]
pub struct Bio {
    /// The operation.
    pub op: Op,
    /// Modifiers of the operation.
    pub flags: OpFlags,
    /// Priority; the default is "not set".
    pub prio: IoPrio,
    /// First sector.
    pub sector: Sector,
    /// Length in sectors; 0 only for [`Op::Flush`].
    pub nr_sectors: u32,
    /// With [`OpFlags::BYTES`]: what the I/O leaves out of its sectors.
    pub margins: Margins,
    /// The data, `nr_sectors` x 512 contiguous bytes without the margins, for operations that carry some.
    pub data: DataRef,
    /// Returned unchanged when the bio completes.
    pub user_data: u64,
}

// The margins take no space of their own.
const _: () = assert!(size_of::<Bio>() == 40);

impl Bio {
    /// Makes a read of `nr_sectors` from `sector` into `data`.
    pub const fn read(sector: Sector, nr_sectors: u32, data: DataRef) -> Bio {
        Bio {
            op: Op::Read,
            flags: OpFlags::NONE,
            prio: IoPrio(0),
            sector,
            nr_sectors,
            margins: Margins::NONE,
            data,
            user_data: 0,
        }
    }

    /// Makes a write of `nr_sectors` to `sector` from `data`.
    pub const fn write(sector: Sector, nr_sectors: u32, data: DataRef) -> Bio {
        Bio { op: Op::Write, ..Bio::read(sector, nr_sectors, data) }
    }

    /// Makes a flush of the volatile write cache.
    pub const fn flush() -> Bio {
        Bio { op: Op::Flush, flags: OpFlags::PREFLUSH, ..Bio::read(Sector(0), 0, DataRef::NONE) }
    }

    /// Returns the bio for `bytes` bytes from byte `offset` of the disk, neither of which has to be whole sectors, with the
    /// flag [`OpFlags::BYTES`]. `bytes` must not be 0.
    pub const fn at_bytes(mut self, offset: u64, bytes: u32) -> Bio {
        let end = offset + bytes as u64;
        let (first, past) = (offset >> SECTOR_SHIFT, end.div_ceil(SECTOR_SIZE as u64));
        self.sector = Sector(first);
        self.nr_sectors = (past - first) as u32;
        self.margins = Margins::new((offset - (first << SECTOR_SHIFT)) as u32, ((past << SECTOR_SHIFT) - end) as u32);
        self.flags = self.flags.union(OpFlags::BYTES).union(OpFlags::NOMERGE);
        self
    }

    /// Returns the bytes of the disk that the bio covers.
    #[inline]
    pub const fn bytes(&self) -> Range<u64> {
        let start = self.sector.0 << SECTOR_SHIFT;
        let end = start + ((self.nr_sectors as u64) << SECTOR_SHIFT);
        if self.flags.contains(OpFlags::BYTES) {
            start + self.margins.head() as u64..end - self.margins.tail() as u64
        } else {
            start..end
        }
    }

    /// Returns the number of segments of the data, one contiguous range, under `max_segment_size`.
    #[inline]
    pub(crate) fn segments(&self, max_segment_size: u32) -> u32 {
        if !self.op.has_data() {
            return 0;
        }
        let bytes = self.nr_sectors << 9;
        if bytes <= max_segment_size { 1 } else { bytes.div_ceil(max_segment_size) }
    }

    /// Returns the bio with this `user_data`.
    pub const fn with_user_data(mut self, user_data: u64) -> Bio {
        self.user_data = user_data;
        self
    }

    /// Returns the bio with `flags` added.
    pub const fn with_flags(mut self, flags: OpFlags) -> Bio {
        self.flags = self.flags.union(flags);
        self
    }
}

/// Identifies a bio slot among all pools of a disk: submitter and index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BioId(u32);

const BIO_INDEX_BITS: u32 = 22;
const BIO_INDEX_MASK: u32 = (1 << BIO_INDEX_BITS) - 1;
/// Maximum number of bio slots of one submitter.
pub const MAX_BIOS_PER_SUBMITTER: u32 = (1 << BIO_INDEX_BITS) - 1 - PIECE_SLOTS;
/// Slots of each submitter that only pieces of split bios use. So the first of several waiting bios always gets slots
/// for its pieces and completes.
pub(crate) const PIECE_SLOTS: u32 = 8;
const _: () = assert!(MAX_SUBMITTERS <= 1 << (32 - BIO_INDEX_BITS));

impl BioId {
    /// End of a chain.
    pub(crate) const NONE: BioId = BioId(u32::MAX);

    #[inline]
    pub(crate) fn new(submitter: SubmitterId, index: u32) -> BioId {
        debug_assert!(index < BIO_INDEX_MASK);
        BioId((submitter.index() as u32) << BIO_INDEX_BITS | index)
    }

    #[inline]
    pub(crate) fn submitter(self) -> usize {
        (self.0 >> BIO_INDEX_BITS) as usize
    }

    #[inline]
    pub(crate) fn index(self) -> usize {
        (self.0 & BIO_INDEX_MASK) as usize
    }

    #[inline]
    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    #[inline]
    pub(crate) fn from_bits(bits: u32) -> BioId {
        BioId(bits)
    }
}

/// A bio inside the block layer. One cache line, owned by the holder of its [`BioId`].
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct BioSlot {
    pub(crate) sector: FieldU64,
    pub(crate) data: FieldU64,
    pub(crate) user_data: FieldU64,
    pub(crate) submit_ns: FieldU64,
    pub(crate) nr_sectors: FieldU32,
    /// Next bio of the same request.
    pub(crate) next: FieldU32,
    /// For a piece of a split bio: index of the parent in the same pool; otherwise its own index.
    pub(crate) parent: FieldU32,
    /// For a parent: number of pieces, itself included, that have not completed; only its submitter writes it.
    pub(crate) remaining: FieldU32,
    /// The bio's [`Margins`], without effect unless it has [`OpFlags::BYTES`].
    margins: FieldU32,
    pub(crate) prio: FieldU16,
    pub(crate) flags: FieldU16,
    pub(crate) op: FieldU8,
    pub(crate) status: FieldU8,
    /// For a merged bio: 1 = merged in front. Has no meaning for other bios.
    pub(crate) front_merged: FieldU8,
    /// The bio's token of write-back throttling: kind + 1; 0 = none.
    pub(crate) wbt: FieldU8,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<BioSlot>() == 64);

impl BioSlot {
    #[inline]
    pub(crate) fn fill(&self, bio: &Bio, own_index: u32, now: Instant) {
        self.sector.set(bio.sector.0);
        self.data.set(bio.data.bits());
        self.user_data.set(bio.user_data);
        self.submit_ns.set(now.as_ns());
        self.nr_sectors.set(bio.nr_sectors);
        self.next.set(BioId::NONE.bits());
        self.parent.set(own_index);
        self.remaining.set(1);
        self.margins.set(bio.margins.0);
        self.prio.set(bio.prio.bits());
        self.flags.set(bio.flags.bits());
        self.op.set(bio.op as u8);
        self.status.set(BlkStatus::Ok.as_u8());
        debug_assert_eq!(self.wbt.get(), 0, "a token was left in the slot");
    }

    /// Makes this slot the piece with the first `nr_sectors` of `parent`. The piece is not merged, because it has the
    /// maximum size already.
    pub(crate) fn copy_front(&self, parent: &BioSlot, nr_sectors: u32, parent_index: u32) {
        self.sector.set(parent.sector.get());
        self.data.set(parent.data.get());
        self.submit_ns.set(parent.submit_ns.get());
        self.nr_sectors.set(nr_sectors);
        self.margins.set(Margins::new(parent.margins().head(), 0).0);
        self.next.set(BioId::NONE.bits());
        self.parent.set(parent_index);
        self.prio.set(parent.prio.get());
        self.flags.set(parent.flags().union(OpFlags::NOMERGE).without(OpFlags::POLLED).bits());
        self.op.set(parent.op.get());
        self.status.set(BlkStatus::Ok.as_u8());
    }

    /// Moves the token of write-back throttling, if there is one, to `other`.
    pub(crate) fn move_token_to(&self, other: &BioSlot) {
        other.wbt.set(self.wbt.get());
        self.wbt.set(0);
    }

    /// Removes the first `nr_sectors`, which are in a piece now. Split bios do not use poll queues.
    pub(crate) fn drop_front(&self, nr_sectors: u32) {
        self.flags.set(self.flags().without(OpFlags::POLLED).bits());
        self.sector.set(self.sector.get() + u64::from(nr_sectors));
        self.nr_sectors.set(self.nr_sectors.get() - nr_sectors);
        if self.op().has_data() {
            let data = DataRef::from_bits(self.data.get());
            self.data.set(data.advance((u64::from(nr_sectors) << 9) - u64::from(self.margins().head())).bits());
        }
        self.margins.set(Margins::new(0, self.margins().tail()).0);
    }

    /// What the I/O leaves out of its sectors.
    #[inline]
    pub(crate) fn margins(&self) -> Margins {
        if self.flags().contains(OpFlags::BYTES) { Margins(self.margins.get()) } else { Margins::NONE }
    }

    #[inline]
    pub(crate) fn op(&self) -> Op {
        Op::from_u8(self.op.get())
    }

    #[inline]
    pub(crate) fn flags(&self) -> OpFlags {
        OpFlags::from_bits(self.flags.get())
    }

    #[inline]
    pub(crate) fn end_sector(&self) -> u64 {
        self.sector.get() + u64::from(self.nr_sectors.get())
    }

    /// Returns the number of segments of the bio's data under `max_segment_size`.
    #[inline]
    pub(crate) fn segments(&self, max_segment_size: u32) -> u32 {
        self.bio().segments(max_segment_size)
    }

    /// Returns the part of the submitted bio that is left.
    #[inline]
    pub(crate) fn bio(&self) -> Bio {
        Bio {
            op: self.op(),
            flags: self.flags(),
            prio: IoPrio::from_bits(self.prio.get()),
            sector: Sector(self.sector.get()),
            nr_sectors: self.nr_sectors.get(),
            margins: Margins(self.margins.get()),
            data: DataRef::from_bits(self.data.get()),
            user_data: self.user_data.get(),
        }
    }
}

/// The bio slots of one submitter.
#[derive(Debug)]
pub(crate) struct BioPool {
    slots: Box<[BioSlot]>,
    /// The submitter's weight for elevators that share by weight; 0 = by priority.
    weight: FieldU16,
}

impl BioPool {
    /// Makes `nr_bios` slots for bios, followed by the slots for pieces only.
    pub(crate) fn new(nr_bios: u32) -> BioPool {
        assert!(nr_bios <= MAX_BIOS_PER_SUBMITTER);
        let slots = (0..nr_bios + PIECE_SLOTS).map(|_| BioSlot::default()).collect();
        BioPool { slots, weight: FieldU16::default() }
    }

    /// Returns the number of slots for bios.
    pub(crate) fn nr_bios(&self) -> u32 {
        self.slots.len() as u32 - PIECE_SLOTS
    }

    #[inline]
    pub(crate) fn slot(&self, index: usize) -> &BioSlot {
        &self.slots[index]
    }
}

/// The pools of all submitters of a disk. A submitter number gets its pool on first use. Later submitters with that
/// number use the same pool, so chains can be followed without a lock.
#[derive(Debug)]
pub struct BioPools {
    pools: Box<[OnceLock<Arc<BioPool>>]>,
    bios_per_submitter: u32,
}

impl BioPools {
    pub(crate) fn new(bios_per_submitter: u32) -> BioPools {
        BioPools { pools: (0..MAX_SUBMITTERS).map(|_| OnceLock::new()).collect(), bios_per_submitter }
    }

    /// Returns the pool of a submitter, and makes it on first use.
    pub(crate) fn pool_or_init(&self, submitter: SubmitterId) -> &Arc<BioPool> {
        self.pools[submitter.index()].get_or_init(|| Arc::new(BioPool::new(self.bios_per_submitter)))
    }

    /// Returns the weight that was set for a submitter; 0 = none.
    #[inline]
    pub(crate) fn weight(&self, submitter: usize) -> u16 {
        self.pools[submitter].get().map_or(0, |pool| pool.weight.get())
    }

    /// Sets a submitter's weight; 0 removes it.
    pub(crate) fn set_weight(&self, submitter: SubmitterId, weight: u16) {
        self.pool_or_init(submitter).weight.set(weight);
    }

    #[inline]
    pub(crate) fn bio(&self, id: BioId) -> &BioSlot {
        let pool = self.pools[id.submitter()].get().expect("a bio's submitter has a pool");
        pool.slot(id.index())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_priorities_keep_their_parts() {
        let f = OpFlags::FUA.union(OpFlags::SYNC);
        assert!(f.contains(OpFlags::FUA) && f.intersects(OpFlags::SYNC) && !f.contains(OpFlags::NOWAIT));
        assert_eq!(f.without(OpFlags::FUA), OpFlags::SYNC);
        let p = IoPrio::new(IoPrioClass::Idle, 7);
        assert_eq!((p.class(), p.level()), (IoPrioClass::Idle, 7));
        assert_eq!(IoPrio::default().class(), IoPrioClass::None);
    }

    #[test]
    fn data_refs_advance_inside_their_region() {
        let d = DataRef::new(7, 4096).advance(512);
        assert_eq!((d.region(), d.offset()), (7, 4608));
    }

    #[test]
    fn bytes_are_whole_sectors_with_margins() {
        let at = |offset, bytes| Bio::write(Sector(0), 0, DataRef::NONE).at_bytes(offset, bytes);
        let shown = |b: Bio| (b.sector.0, b.nr_sectors, b.margins.head(), b.margins.tail());
        assert_eq!(shown(at(2300, 2300)), (4, 5, 252, 8));
        assert_eq!(shown(at(513, 1)), (1, 1, 1, 510));
        assert_eq!(shown(at(1024, 512)), (2, 1, 0, 0));
        assert!(at(1, 1).flags.contains(OpFlags::BYTES.union(OpFlags::NOMERGE)));
    }

    #[test]
    fn a_split_keeps_each_margin_at_its_end() {
        let (parent, piece) = (BioSlot::default(), BioSlot::default());
        parent.fill(&Bio::write(Sector(0), 0, DataRef::new(1, 0)).at_bytes(100, 2000), 0, Instant::ZERO);
        piece.copy_front(&parent, 2, 0);
        parent.drop_front(2);
        let shown = |s: &BioSlot| (s.sector.get(), s.nr_sectors.get(), s.margins().head(), s.margins().tail());
        assert_eq!(shown(&piece), (0, 2, 100, 0));
        assert_eq!(shown(&parent), (2, 3, 0, 460));
        assert_eq!(DataRef::from_bits(parent.data.get()).offset(), 1024 - 100);
    }

    #[test]
    fn segments_follow_the_segment_size() {
        let s = BioSlot::default();
        s.fill(&Bio::read(Sector(0), 256, DataRef::NONE), 0, Instant::ZERO);
        assert_eq!(s.segments(65536), 2);
        assert_eq!(s.segments(1 << 20), 1);
        s.fill(&Bio { op: Op::Discard, ..Bio::read(Sector(0), 256, DataRef::NONE) }, 0, Instant::ZERO);
        assert_eq!(s.segments(65536), 0);
    }
}
