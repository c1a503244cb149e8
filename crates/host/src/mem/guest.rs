// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that another process has, too: a guest's, of which a vhost-user front end sends descriptors.
//!
//! Guarantees: a [`Window`] reaches only bytes of its region, checked when it is made and at each access. Every access is atomic, so
//! concurrent changes by the other process show old or new values and nothing worse. If the other process truncates the file under the
//! mapping, the missing pages read as zeroes, and an alarm is raised (`fault`).

use super::fault::{Alarm, Watch};
use super::{BUFFER_ALIGN, Region};
use crate::error::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// What a region has that another process has, too.
#[derive(Debug)]
pub(super) struct Shared {
    watch: &'static Watch,
    alarm: Arc<Alarm>,
    /// Bytes of the mapping: whole pages.
    mapped: usize,
}

impl Shared {
    /// Its end begins; how much is to be unmapped.
    pub(super) fn unwatch(&self) -> usize {
        self.watch.unregister();
        self.mapped
    }
}

/// Whether the file's pages always come when they are touched: it is a memfd, or a file of tmpfs or hugetlbfs. Other file systems ask
/// a device, a server or a process (FUSE) for pages, which may never answer, and an access to the mapping then waits in the kernel for
/// good. This asks only the kernel itself: calls such as fstatfs(2) wait for the file system, too.
pub(crate) fn is_memory_file(fd: BorrowedFd<'_>) -> bool {
    // Only these files can have seals. Source: `memfd_file_seals_ptr` in mm/memfd.c.
    rustix::fs::fcntl_get_seals(fd).is_ok()
}

/// Bytes of a page of this file when it is mapped.
fn page_bytes(fd: BorrowedFd<'_>) -> usize {
    const HUGETLBFS_MAGIC: u64 = 0x958458f6;
    match rustix::fs::fstatfs(fd) {
        Ok(s) if s.f_type as u64 == HUGETLBFS_MAGIC => usize::try_from(s.f_bsize).unwrap_or(BUFFER_ALIGN),
        _ => BUFFER_ALIGN,
    }
}

impl Region {
    /// Maps `len` bytes of a file from byte `offset` on, shared. Fails when the file is shorter than that: the pages
    /// behind its end could not be touched. If they go away later the alarm is raised.
    pub(crate) fn map_shared(fd: BorrowedFd<'_>, offset: u64, len: usize, alarm: &Arc<Alarm>) -> Result<Region> {
        let bytes = rustix::fs::fstat(fd).map(|s| s.st_size as u64).unwrap_or(0);
        let fits = len > 0 && offset.checked_add(len as u64).is_some_and(|end| end <= bytes);
        if !fits || !offset.is_multiple_of(BUFFER_ALIGN as u64) {
            return Err(Error::usage(format!(
                "memory region of {len} bytes at {offset} of a file of {bytes}: must lie in the file, at a multiple of 4096"
            )));
        }
        let page = page_bytes(fd);
        let mapped =
            len.checked_next_multiple_of(page).ok_or_else(|| Error::usage(format!("{len} bytes: too many")))?;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), mapped, prot, libc::MAP_SHARED, fd.as_raw_fd(), offset as libc::off_t)
        };
        let Some(base) = NonNull::new(base.cast::<u8>()).filter(|p| p.as_ptr().cast() != libc::MAP_FAILED) else {
            return Err(Error::last_os(format!("cannot map {len} bytes of the client's memory")));
        };
        // SAFETY: the range is the mapping just made. Advice may be refused; nothing depends on it.
        unsafe { libc::madvise(base.as_ptr().cast(), mapped, libc::MADV_DONTFORK) };
        // SAFETY: as above.
        unsafe { libc::madvise(base.as_ptr().cast(), mapped, libc::MADV_DONTDUMP) };
        // SAFETY: the mapping is the region's, which ends the watch before it unmaps, and keeps the alarm.
        let watch = unsafe { Watch::register(base, mapped, page, alarm) };
        Ok(Region {
            base,
            len,
            slots: None,
            shared: Some(Shared { watch, alarm: Arc::clone(alarm), mapped }),
            is_foreign: false,
            is_for_clients: false,
        })
    }

    /// Whether pages of it, or of another region of the same client, have gone. What was read before a call that returns false was the
    /// client's.
    #[inline]
    pub(crate) fn has_gone(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.alarm.is_raised())
    }

    /// Whether another process has it, too.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }
}

macro_rules! access {
    ($load:ident, $store:ident, $atomic:ty, $value:ty) => {
        /// The little-endian number at byte `at`. Panics when that is outside or not aligned.
        #[inline]
        pub(crate) fn $load(&self, at: usize, order: Ordering) -> $value {
            <$value>::from_le(self.atomic::<$atomic>(at).load(order))
        }

        /// Puts a little-endian number at byte `at`. Panics when that is outside or not aligned.
        #[inline]
        pub(crate) fn $store(&self, at: usize, value: $value, order: Ordering) {
            self.atomic::<$atomic>(at).store(value.to_le(), order);
        }
    };
}

/// What is atomic at any bit pattern.
trait Atomic {}
impl Atomic for AtomicU8 {}
impl Atomic for AtomicU16 {}
impl Atomic for AtomicU32 {}
impl Atomic for AtomicU64 {}

impl Region {
    #[inline]
    fn atomic<T: Atomic>(&self, at: usize) -> &T {
        let size = size_of::<T>();
        assert!(self.is_shared() && at <= self.len && size <= self.len - at, "byte {at} of a region of {}", self.len);
        assert!(at.is_multiple_of(size), "byte {at} of a region is not aligned");
        // SAFETY: inside the region and aligned, as the region starts on a page. All that this process does to shared
        // regions is done by atomics, by `Span` and by the kernel.
        unsafe { &*self.base.as_ptr().add(at).cast::<T>() }
    }

    access!(load_u8, store_u8, AtomicU8, u8);
    access!(load_u16, store_u16, AtomicU16, u16);
    access!(load_u32, store_u32, AtomicU32, u32);

    /// The little-endian number at byte `at`. Panics when that is outside or not aligned.
    #[inline]
    pub(crate) fn load_u64(&self, at: usize, order: Ordering) -> u64 {
        u64::from_le(self.atomic::<AtomicU64>(at).load(order))
    }

    /// Puts a little-endian number at byte `at`. Panics when that is outside or not aligned.
    #[inline]
    pub(crate) fn store_u64(&self, at: usize, value: u64, order: Ordering) {
        self.atomic::<AtomicU64>(at).store(value.to_le(), order);
    }

    /// Sets bits of the byte at `at`, beside other writers. Panics when it is outside.
    #[inline]
    pub(crate) fn set_bits(&self, at: usize, bits: u8) {
        let byte = self.atomic::<AtomicU8>(at);
        // A thread that finds the bit sees the data that was written before. Pairs with: the front end, which takes the bits and then
        // reads. The bit is set even if it is set already, because the front end may take it meanwhile.
        byte.fetch_or(bits, Ordering::Release);
    }

    /// Prefetches the cache line of byte `at`, for writing, too, if `WRITE`. Has no other effect, and none for a byte outside.
    #[inline]
    pub(crate) fn prefetch<const WRITE: bool>(&self, at: usize) {
        #[cfg(target_arch = "x86_64")]
        if at < self.len {
            use std::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch};
            let line = self.base.as_ptr().wrapping_add(at).cast::<i8>();
            // SAFETY: a prefetch reads and writes nothing and never faults.
            unsafe { if WRITE { _mm_prefetch::<_MM_HINT_ET0>(line) } else { _mm_prefetch::<_MM_HINT_T0>(line) } }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    /// The 8 bytes at `at` as a little-endian number; it need not be aligned. Panics when they are outside.
    #[inline]
    pub(crate) fn read_u64(&self, at: usize) -> u64 {
        let word = |at| self.load_u64(at, Ordering::Relaxed);
        let (first, inside) = (at - at % 8, at % 8);
        if inside == 0 {
            return word(at);
        }
        if first + 16 > self.len {
            return u64::from_le_bytes(std::array::from_fn(|i| self.load_u8(at + i, Ordering::Relaxed)));
        }
        // Some drivers do not align their headers. Both words hold bytes of the number, so no other page is touched.
        word(first) >> (8 * inside) | word(first + 8) << (64 - 8 * inside)
    }
}

/// A range of a shared region.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    region: Arc<Region>,
    at: usize,
    len: usize,
}

macro_rules! within {
    ($load:ident, $store:ident, $value:ty) => {
        /// The little-endian number at byte `at`. Panics when that is outside or not aligned.
        #[inline]
        pub(crate) fn $load(&self, at: usize, order: Ordering) -> $value {
            self.region.$load(self.place(at, size_of::<$value>()), order)
        }

        /// Puts a little-endian number at byte `at`. Panics when that is outside or not aligned.
        #[inline]
        pub(crate) fn $store(&self, at: usize, value: $value, order: Ordering) {
            self.region.$store(self.place(at, size_of::<$value>()), value, order);
        }
    };
}

impl Window {
    /// `len` bytes from byte `at` of a region on; `None` when they are not all inside, or `at` is not a multiple of `align`
    /// (at most 4096).
    pub(crate) fn new(region: &Arc<Region>, at: u64, len: usize, align: usize) -> Option<Window> {
        let at = usize::try_from(at).ok()?;
        let fits = at.checked_add(len).is_some_and(|end| end <= region.len);
        (fits && at.is_multiple_of(align)).then(|| Window { region: Arc::clone(region), at, len })
    }

    #[inline]
    fn place(&self, at: usize, size: usize) -> usize {
        assert!(at <= self.len && size <= self.len - at, "byte {at} of a window of {}", self.len);
        self.at + at
    }

    within!(load_u16, store_u16, u16);
    within!(load_u32, store_u32, u32);

    /// As [`Region::prefetch`], to be read.
    #[inline]
    pub(crate) fn prefetch(&self, at: usize) {
        if at < self.len {
            self.region.prefetch::<false>(self.at + at);
        }
    }

    /// The little-endian number at byte `at`. Panics when that is outside or not aligned.
    #[inline]
    pub(crate) fn load_u64(&self, at: usize, order: Ordering) -> u64 {
        self.region.load_u64(self.place(at, size_of::<u64>()), order)
    }

    /// Puts a little-endian number at byte `at`. Panics when that is outside or not aligned.
    #[inline]
    pub(crate) fn store_u64(&self, at: usize, value: u64, order: Ordering) {
        self.region.store_u64(self.place(at, size_of::<u64>()), value, order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn file(bytes: u64) -> std::os::fd::OwnedFd {
        let fd = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        fd
    }

    fn alarm() -> Arc<Alarm> {
        Alarm::new().unwrap()
    }

    /// The first page is there still, the second is not, and the third was never there.
    #[test]
    fn lost_pages_read_as_zeroes_and_alarm_their_client_only() {
        let (ours, other) = (alarm(), alarm());
        let (fd, beside) = (file(16384), file(16384));
        let region = Arc::new(Region::map_shared(fd.as_fd(), 0, 16384, &ours).unwrap());
        let neighbour = Region::map_shared(beside.as_fd(), 0, 16384, &other).unwrap();
        (0..16384).for_each(|i| region.store_u8(i, 0xa5, Ordering::Relaxed));
        neighbour.store_u8(16383, 7, Ordering::Relaxed);
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        assert_eq!(region.load_u8(4095, Ordering::Relaxed), 0xa5);
        assert!(!ours.is_raised());
        assert_eq!(region.read_u64(4097), 0);
        assert!(ours.is_raised() && !other.is_raised());
        region.store_u32(8192, 1, Ordering::Relaxed);
        assert_eq!(region.load_u8(4095, Ordering::Relaxed), 0xa5, "the page before is as it was");
        // A copy by the processor's own instruction continues where it stopped.
        let to = Region::new(16384, false).unwrap();
        region.span(0, 16384).unwrap().copy_to(to.span(0, 16384).unwrap());
        rustix::fs::ftruncate(&fd, 0).unwrap();
        to.span(0, 16384).unwrap().copy_to(region.span(0, 16384).unwrap());
        assert_eq!(neighbour.load_u8(16383, Ordering::Relaxed), 7);
        assert!(!other.is_raised());
    }

    #[test]
    fn a_large_range_that_went_away_is_replaced_as_a_whole() {
        let alarm = alarm();
        let pages = 300;
        let fd = file(pages * 4096);
        let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let region = Region::map_shared(fd.as_fd(), 0, pages as usize * 4096, &alarm).unwrap();
        rustix::fs::ftruncate(&fd, 0).unwrap();
        let before = maps();
        // Every other page, so that single mappings could not be joined.
        for page in (0..pages as usize).step_by(2) {
            assert_eq!(region.load_u8(page * 4096, Ordering::Relaxed), 0);
        }
        assert!(maps() < before + 200, "a mapping for each page");
        assert!(alarm.is_raised());
    }

    #[test]
    fn two_mappings_of_a_file_are_the_same_memory() {
        let fd = file(16384);
        let map = |offset, len| Arc::new(Region::map_shared(fd.as_fd(), offset, len, &alarm()).unwrap());
        let (all, end) = (map(0, 16384), map(8192, 8192));
        let (a, b) = (Window::new(&all, 8192, 64, 8).unwrap(), Window::new(&end, 0, 64, 8).unwrap());
        a.store_u16(6, 0x1234, Ordering::Relaxed);
        a.store_u32(8, 7, Ordering::Relaxed);
        assert_eq!(b.load_u64(0, Ordering::Relaxed), 0x1234 << 48);
        assert_eq!(end.read_u64(6), 7 << 16 | 0x1234, "not aligned");
        let odd = map(0, 8203);
        (8185..8203).for_each(|at| odd.store_u8(at, at as u8, Ordering::Relaxed));
        for at in 8185..=8195 {
            let expected = u64::from_le_bytes(std::array::from_fn(|i| (at + i) as u8));
            assert_eq!(odd.read_u64(at), expected, "byte {at} of a region that ends within a word");
        }
    }

    #[test]
    fn what_is_not_in_the_file_or_the_region_is_refused() {
        let fd = file(8192);
        for (offset, len) in [(0, 0), (0, 8193), (4096, 4097), (1, 4096), (u64::MAX, 4096)] {
            assert!(Region::map_shared(fd.as_fd(), offset, len, &alarm()).is_err(), "{offset}+{len}");
        }
        let region = Arc::new(Region::map_shared(fd.as_fd(), 0, 8192, &alarm()).unwrap());
        for (at, len, align) in [(0, 8193, 1), (8192, 1, 1), (u64::MAX, 2, 1), (2, 4, 4)] {
            assert!(Window::new(&region, at, len, align).is_none(), "{at}+{len}");
        }
    }

    #[test]
    #[should_panic(expected = "byte 7 of a window of 8")]
    fn an_access_past_the_end_is_a_panic() {
        let region = Arc::new(Region::map_shared(file(4096).as_fd(), 0, 4096, &alarm()).unwrap());
        Window::new(&region, 0, 8, 8).unwrap().load_u16(7, Ordering::Relaxed);
    }
}
