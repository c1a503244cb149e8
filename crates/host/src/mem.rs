// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that I/O goes to and comes from: regions, the table that numbers them, and pools of buffers in them.
//!
//! Guarantees. A [`DataRef`] may come from anywhere (a job, a guest, a bug). `Regions::resolve` makes a pointer of it only after checking
//! region number and range. For a region that belongs to a [`BufferPool`] it also checks that every slot in the range is lent for I/O. So
//! safe code can neither leave a region nor get a slice of memory that I/O may change. Slices exist only of slots that are not lent
//! ([`BufferPool::with_slot`]); I/O goes only to slots that are. Spans do not leave this crate, whose drivers use them only until they
//! complete the request. A region stays in its table until it is taken out. Only a caller that knows of no I/O to the region may do that,
//! so a resolved pointer stays valid.
//!
//! Concurrent I/O to the same bytes is allowed, as on real hardware. Copies (`Span::copy_to`, `Span::zero`) are done by machine
//! code that the compiler cannot see into. So a race shows old or new bytes and is not undefined behaviour.
//!
//! Not done here: growing a region. Regions shared with another process are in `guest`, those mapped by other code of this
//! process in `foreign`.

mod fault;
mod foreign;
mod guest;
mod table;

pub(crate) use fault::Alarm;
pub use foreign::ForeignBuffers;
pub(crate) use guest::{Window, is_memory_file};

use crate::error::{Error, ErrorKind, Result};
use blk::bio::DataRef;
use blk::status::BlkStatus;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use table::Table;

/// Maximum number of regions of one table.
pub const MAX_REGIONS: usize = 1024;
/// Buffers start on multiples of this: what every device's O_DIRECT takes.
pub const BUFFER_ALIGN: usize = 4096;

/// Anonymous zeroed memory, page-aligned, given pages when first touched. Unmapped when dropped.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    /// For a region that is cut into slots: the slots' size as a shift, and which are lent.
    slots: Option<(u32, Box<[AtomicBool]>)>,
    /// Another process has it, too, and it may be taken out of its table: drivers do not register it with the kernel.
    shared: Option<guest::Shared>,
    /// A mapping of other code in this process, which is not ended here and may be taken out, too.
    is_foreign: bool,
    /// Its pages go back to the system between clients: drivers do not register it with the kernel, which would keep them.
    is_for_clients: bool,
}

// SAFETY: a Region is an address range it owns, or that outlives it (`foreign`); its bytes are reached only through `Span`, whose accesses may race, and
// through slices made under the slot rule of the module's text.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `len` bytes, rounded up to whole pages. `huge` asks for transparent huge pages, as advice.
    pub fn new(len: usize, huge: bool) -> Result<Region> {
        let asked = len;
        let Some(len) = len.checked_next_multiple_of(BUFFER_ALIGN).filter(|n| *n > 0) else {
            return Err(Error::usage(format!("memory region of {asked} bytes: must be 1..=2^63 bytes")));
        };
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // Miri maps no memory without reserving it.
        let lazily = if cfg!(miri) { 0 } else { libc::MAP_NORESERVE };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | lazily;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        let Some(base) = NonNull::new(base.cast::<u8>()).filter(|p| p.as_ptr().cast() != libc::MAP_FAILED) else {
            return Err(Error::last_os(format!("cannot map {len} bytes of memory; ask for less")));
        };
        if huge {
            // SAFETY: the range is the mapping just made. Advice may be refused; nothing depends on it.
            unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        }
        Ok(Region { base, len, slots: None, shared: None, is_foreign: false, is_for_clients: false })
    }

    /// As [`Region::new`], for clients that come and go: [`Region::discard`] gives all of its pages back.
    pub(crate) fn for_clients(len: usize) -> Result<Region> {
        let mut region = Region::new(len, false)?;
        region.is_for_clients = true;
        Ok(region)
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a region has at least one page.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether it may be taken out of its table.
    #[inline]
    pub(crate) fn may_go(&self) -> bool {
        self.is_foreign || self.shared.is_some()
    }

    /// Whether drivers may register it with the kernel, which pins its pages.
    #[inline]
    pub(crate) fn may_be_registered(&self) -> bool {
        !self.may_go() && !self.is_for_clients
    }

    /// Start address, for registration with the kernel.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The `len` bytes at `offset`, or `Inval` if they are not all inside, or not all lent.
    #[inline]
    pub(crate) fn span(&self, offset: u64, len: usize) -> std::result::Result<Span<'_>, BlkStatus> {
        let Some(end) = offset.checked_add(len as u64).filter(|end| *end <= self.len as u64) else {
            return Err(BlkStatus::Inval);
        };
        if let Some((shift, lent)) = &self.slots {
            let (first, last) = (offset >> shift, end.saturating_sub(1).max(offset) >> shift);
            // Pairs with: BufferPool::lend, BufferPool::give_back.
            let all_lent = (first..=last).all(|i| lent.get(i as usize).is_some_and(|l| l.load(Ordering::Acquire)));
            if !all_lent {
                return Err(BlkStatus::Inval);
            }
        }
        // SAFETY: offset <= len, checked above, so the result is inside the mapping or one past its end.
        let ptr = unsafe { self.base.add(offset as usize) };
        Ok(Span { ptr, len, _region: PhantomData })
    }

    /// Gives the pages wholly inside the range back to the system; they read as zeroes afterwards. Bytes of pages that
    /// are only partly inside are zeroed.
    pub(crate) fn discard(&self, offset: u64, len: usize) -> std::result::Result<(), BlkStatus> {
        let page = BUFFER_ALIGN as u64;
        let end = offset + len as u64;
        let (first, last) = (offset.next_multiple_of(page).min(end), end / page * page);
        if first >= last {
            self.span(offset, len)?.zero();
            return Ok(());
        }
        self.span(offset, (first - offset) as usize)?.zero();
        self.span(last, (end - last) as usize)?.zero();
        let whole = self.span(first, (last - first) as usize)?;
        // SAFETY: the range lies inside this private anonymous mapping, of which no slice exists (`span` checked).
        let ret = unsafe { libc::madvise(whole.ptr.as_ptr().cast(), whole.len, libc::MADV_DONTNEED) };
        if ret != 0 {
            whole.zero();
        }
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.is_foreign {
            return;
        }
        let mapped = self.shared.as_ref().map_or(self.len, guest::Shared::unwatch);
        // SAFETY: the mapping is this value's own and spans borrow it, so none is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), mapped) };
    }
}

/// A checked range of a region. Bytes may change under it at any time; it is copied from and to, never sliced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<'a> {
    ptr: NonNull<u8>,
    len: usize,
    _region: PhantomData<&'a Region>,
}

impl<'a> Span<'a> {
    /// Length in bytes.
    #[inline]
    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Its address, for the kernel.
    #[inline]
    pub(crate) fn as_ptr(self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// The part from byte `from` on, `len` bytes long. Panics when it is not inside.
    #[inline]
    pub(crate) fn part(self, from: usize, len: usize) -> Span<'a> {
        assert!(from <= self.len && len <= self.len - from, "part {from}+{len} of a span of {} bytes", self.len);
        // SAFETY: `from` is inside the span.
        Span { ptr: unsafe { self.ptr.add(from) }, len, _region: PhantomData }
    }

    /// Copies all bytes to `to`. Panics when the lengths differ.
    #[inline]
    pub(crate) fn copy_to(self, to: Span<'_>) {
        assert_eq!(self.len, to.len, "copy between spans of different length");
        // SAFETY: both ranges are inside live regions (a span borrows its region) and of this length.
        unsafe { racy::copy(self.ptr.as_ptr(), to.ptr.as_ptr(), self.len) };
    }

    /// Copies all of `bytes` into it. Panics when the lengths differ.
    #[inline]
    pub(crate) fn copy_from(self, bytes: &[u8]) {
        assert_eq!(self.len, bytes.len(), "copy of a slice into a span of different length");
        // SAFETY: the slice is readable, the span inside a live region; nothing else refers to the span's bytes (module).
        unsafe { racy::copy(bytes.as_ptr(), self.ptr.as_ptr(), self.len) };
    }

    /// Copies all bytes to `to`. Panics when the lengths differ.
    #[inline]
    pub(crate) fn copy_to_slice(self, to: &mut [u8]) {
        assert_eq!(self.len, to.len(), "copy of a span into a slice of different length");
        // SAFETY: the span is inside a live region, the slice writable; nothing else refers to either's bytes (module).
        unsafe { racy::copy(self.ptr.as_ptr(), to.as_mut_ptr(), self.len) };
    }

    /// Sets all bytes to zero.
    #[inline]
    pub(crate) fn zero(self) {
        // SAFETY: the range is inside a live region.
        unsafe { racy::zero(self.ptr.as_ptr(), self.len) };
    }
}

/// Copies bytes that may change meanwhile.
///
/// # Safety
/// As many bytes as `to` has are readable at `from`, and nothing refers to them by `&mut`.
pub(crate) unsafe fn copy_racy(from: *const u8, to: &mut [u8]) {
    // SAFETY: the caller's promise; the slice is writable.
    unsafe { racy::copy(from, to.as_mut_ptr(), to.len()) };
}

/// Copies that may race with other accesses to the same bytes.
#[cfg(target_arch = "x86_64")]
mod racy {
    use core::arch::asm;

    /// # Safety
    /// Both ranges of `len` bytes must be mapped, `to` writable. No `&` or `&mut` of Rust to them may be in use.
    #[inline]
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: the caller's promise. To the abstract machine the block is a sequence of relaxed atomic byte loads
        // and stores, which may race. The direction flag is clear in Rust code.
        unsafe {
            asm!("rep movsb", inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _,
                 options(nostack, preserves_flags));
        }
    }

    /// # Safety
    /// As for `copy`.
    #[inline]
    pub(super) unsafe fn zero(to: *mut u8, len: usize) {
        // SAFETY: as in `copy`.
        unsafe {
            asm!("rep stosb", inout("rcx") len => _, in("al") 0u8, inout("rdi") to => _,
                 options(nostack, preserves_flags));
        }
    }
}

/// Copies that may race with other accesses to the same bytes.
#[cfg(not(target_arch = "x86_64"))]
mod racy {
    use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

    /// # Safety
    /// Both ranges of `len` bytes must be mapped, `to` writable. No `&` or `&mut` of Rust to them may be in use.
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        let words = if from.addr() % 8 == 0 && to.addr() % 8 == 0 { len / 8 } else { 0 };
        for i in 0..words {
            // SAFETY: inside the caller's ranges, aligned as checked; atomics may race.
            let (from, to) = unsafe { (&*from.cast::<AtomicU64>().add(i), &*to.cast::<AtomicU64>().add(i)) };
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        for i in words * 8..len {
            // SAFETY: as above.
            let (from, to) = unsafe { (&*from.cast::<AtomicU8>().add(i), &*to.cast::<AtomicU8>().add(i)) };
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// # Safety
    /// As for `copy`.
    pub(super) unsafe fn zero(to: *mut u8, len: usize) {
        for i in 0..len {
            // SAFETY: inside the caller's range; atomics may race.
            unsafe { &*to.cast::<AtomicU8>().add(i) }.store(0, Ordering::Relaxed);
        }
    }
}

/// The numbered regions of one stack: what the region number of a [`DataRef`] means. Shared by submitters and drivers.
#[derive(Debug)]
pub struct Regions(Table<Region>);

impl Default for Regions {
    fn default() -> Self {
        Regions::new()
    }
}

impl Regions {
    /// A table without regions.
    pub fn new() -> Regions {
        Regions(Table::new(MAX_REGIONS))
    }

    /// Adds a region and tells its number. Fails when there are [`MAX_REGIONS`].
    pub fn add(&self, region: Arc<Region>) -> Result<u16> {
        self.0.add(region).ok_or_else(|| {
            let ctx = format!("at most {MAX_REGIONS} memory regions per stack; use fewer, larger ones");
            Error::new(ErrorKind::Resource, ctx)
        })
    }

    /// Takes a shared or foreign region out; its number may mean another one from now on. Panics when there is no such region or it is
    /// not a shared one: those may be known to the kernel by their number.
    ///
    /// # Safety
    /// No I/O to it is in flight, and none will be submitted: every bio with a [`DataRef`] of this number has ended.
    pub(crate) unsafe fn remove(&self, number: u16) {
        // SAFETY: by the caller's promise no thread uses what `get` or `resolve` gave of it.
        let region = unsafe { self.0.remove(number) };
        assert!(region.may_go(), "memory region {number} is not shared and stays");
    }

    /// How many regions there are.
    pub fn count(&self) -> usize {
        let mut count = 0;
        self.each(|_, _| count += 1);
        count
    }

    /// Calls `f` for each region. None is added or taken out meanwhile, so `f` must do neither.
    pub(crate) fn each(&self, f: impl FnMut(u16, &Region)) {
        self.0.each(f);
    }

    /// Returns the region of this number. Only for regions to which I/O is in flight, since no thread removes those.
    #[inline]
    pub(crate) fn get(&self, number: u16) -> Option<&Region> {
        self.0.get(number)
    }

    /// The bytes that `data` names, or `Inval` if they are not all in one region, or not all lent to I/O.
    #[inline]
    pub(crate) fn resolve(&self, data: DataRef, len: usize) -> std::result::Result<Span<'_>, BlkStatus> {
        self.get(data.region()).ok_or(BlkStatus::Inval)?.span(data.offset(), len)
    }
}

/// Equal buffers of one job in a region of their own. A slot is either the owner's (it may look into it) or lent to
/// I/O; the pool keeps the two apart.
#[derive(Debug)]
pub struct BufferPool {
    region: Arc<Region>,
    number: u16,
    slot_bytes: usize,
    shift: u32,
}

impl BufferPool {
    /// `slots` buffers of `slot_bytes`, in a new region added to `regions`. Slots start on multiples of
    /// [`BUFFER_ALIGN`] or a larger power of two; memory is taken when first touched.
    pub fn new(regions: &Regions, slots: u32, slot_bytes: usize, huge: bool) -> Result<BufferPool> {
        let refuse = || Error::usage(format!("{slots} buffers of {slot_bytes} bytes: must be 1 or more of 1..=2^32"));
        if slots == 0 || slot_bytes == 0 || slot_bytes > 1 << 32 {
            return Err(refuse());
        }
        let stride = slot_bytes.next_power_of_two().max(BUFFER_ALIGN);
        let bytes = stride.checked_mul(slots as usize).ok_or_else(refuse)?;
        let mut region = Region::new(bytes, huge)?;
        let lent = (0..slots).map(|_| AtomicBool::new(false)).collect();
        region.slots = Some((stride.trailing_zeros(), lent));
        let region = Arc::new(region);
        let number = regions.add(Arc::clone(&region))?;
        Ok(BufferPool { region, number, slot_bytes, shift: stride.trailing_zeros() })
    }

    fn lent(&self, slot: u32) -> &AtomicBool {
        let (_, lent) = self.region.slots.as_ref().expect("a pool's region has slots");
        &lent[slot as usize]
    }

    /// Number of buffers.
    pub fn slots(&self) -> u32 {
        self.region.slots.as_ref().map_or(0, |(_, lent)| lent.len() as u32)
    }

    /// Bytes of one buffer.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Gives a buffer to I/O until [`BufferPool::give_back`]: the data of one bio. Panics when it is lent already.
    #[inline]
    pub fn lend(&mut self, slot: u32) -> DataRef {
        let lent = self.lent(slot);
        assert!(!lent.load(Ordering::Relaxed), "buffer {slot} lent twice");
        // Pairs with: Region::span. A plain store will do: `&mut self` is the only writer.
        lent.store(true, Ordering::Release);
        DataRef::new(self.number, u64::from(slot) << self.shift)
    }

    /// Takes a buffer back when its bio has ended. Panics when it was not lent.
    ///
    /// # Safety
    /// No I/O to or from the buffer is in flight: every bio submitted with its [`DataRef`] since it was lent has ended. No
    /// `Span` of it is used any more; a driver drops a request's when it completes the request.
    #[inline]
    pub unsafe fn give_back(&mut self, slot: u32) {
        let lent = self.lent(slot);
        assert!(lent.load(Ordering::Relaxed), "buffer {slot} given back but not lent");
        // Pairs with: Region::span.
        lent.store(false, Ordering::Release);
    }

    /// Looks into a buffer. Panics when it is lent.
    #[inline]
    pub fn with_slot<R>(&mut self, slot: u32, look: impl FnOnce(&mut [u8]) -> R) -> R {
        assert!(!self.lent(slot).load(Ordering::Relaxed), "buffer {slot} is lent to I/O");
        // SAFETY: the slot is inside the region (`lent` checked its number). It is not lent, so `Region::span` refuses
        // it and, by the promise made at give_back, no I/O is left in it; `&mut self` excludes a second slice and a
        // lend while this one lives.
        let bytes = unsafe {
            let start = self.region.base.as_ptr().add((slot as usize) << self.shift);
            std::slice::from_raw_parts_mut(start, self.slot_bytes)
        };
        look(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_outside_its_region_is_refused() {
        let regions = Regions::new();
        let number = regions.add(Arc::new(Region::new(8192, false).unwrap())).unwrap();
        let at = |offset| DataRef::new(number, offset);
        assert_eq!(regions.resolve(at(0), 8192).unwrap().len(), 8192);
        assert!(regions.resolve(at(8192), 0).unwrap().is_empty());
        for (data, len) in [(at(0), 8193), (at(8191), 2), (at(DataRef::MAX_OFFSET), 1), (at(1), usize::MAX)] {
            assert_eq!(regions.resolve(data, len).unwrap_err(), BlkStatus::Inval);
        }
        assert_eq!(regions.resolve(DataRef::new(number + 1, 0), 1).unwrap_err(), BlkStatus::Inval);
        assert_eq!(regions.resolve(DataRef::new(u16::MAX, 0), 1).unwrap_err(), BlkStatus::Inval);
    }

    #[test]
    fn io_reaches_lent_buffers_only() {
        let regions = Regions::new();
        let mut pool = BufferPool::new(&regions, 3, 5000, false).unwrap();
        pool.with_slot(1, |b| b.fill(7));
        let data = pool.lend(1);
        let span = regions.resolve(data, 5000).unwrap();
        span.part(1, 9).zero();
        assert!(regions.resolve(data, 8193).is_err(), "slot 2 is not lent");
        assert!(regions.resolve(DataRef::new(data.region(), 0), 512).is_err(), "slot 0 is not lent");
        // SAFETY: no I/O was submitted.
        unsafe { pool.give_back(1) };
        assert!(regions.resolve(data, 512).is_err());
        pool.with_slot(1, |b| {
            assert_eq!(b.len(), 5000);
            assert_eq!((b[0], &b[1..10], b[10]), (7, &[0; 9][..], 7));
        });
    }

    #[test]
    #[should_panic(expected = "buffer 0 is lent to I/O")]
    fn a_lent_buffer_cannot_be_looked_into() {
        let mut pool = BufferPool::new(&Regions::new(), 1, 512, false).unwrap();
        let _ = pool.lend(0);
        pool.with_slot(0, |_| ());
    }

    #[test]
    fn spans_copy_and_discard_to_the_byte() {
        let region = Region::new(5 * BUFFER_ALIGN, true).unwrap();
        let other = Region::new(5 * BUFFER_ALIGN, false).unwrap();
        let mut ones = BufferPool::new(&Regions::new(), 1, 5 * BUFFER_ALIGN, false).unwrap();
        ones.with_slot(0, |b| b.fill(0xa5));
        let _ = ones.lend(0);
        ones.region.span(0, region.len()).unwrap().copy_to(region.span(0, region.len()).unwrap());
        for (offset, len) in [(512, 512), (BUFFER_ALIGN as u64 - 512, 1024), (1024, 4 * BUFFER_ALIGN)] {
            region.discard(offset, len).unwrap();
            let (all, seen) = (region.span(0, region.len()).unwrap(), other.span(0, other.len()).unwrap());
            all.copy_to(seen);
            // SAFETY: `other` is this test's own and nothing else uses it now.
            let bytes = unsafe { std::slice::from_raw_parts(other.base(), other.len()) };
            let (from, to) = (offset as usize, offset as usize + len);
            assert!(bytes[from..to].iter().all(|b| *b == 0), "{offset}+{len}");
            assert_eq!((bytes[511], bytes[to]), (0xa5, 0xa5));
        }
    }

    #[test]
    fn impossible_pools_are_refused() {
        let regions = Regions::new();
        assert!(BufferPool::new(&regions, 0, 512, false).is_err());
        assert!(BufferPool::new(&regions, u32::MAX, 1 << 32, false).is_err());
        assert!(Region::new(0, false).unwrap_err().to_string().contains("0 bytes"));
    }
}
