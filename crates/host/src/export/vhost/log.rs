// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dirty log of a live migration: which pages of the guest's memory were written by this device.
//!
//! Guarantees: a page's bit is set after the page was written and before the request is answered. The bit is set atomically, because other
//! devices set bits in the same memory. A page for which the log has no bit is not logged. Needs from callers: they mark a page after they
//! have written it, because the front end clears a bit before it copies the page. With logging off there is no log; the cost is one branch
//! per request.
//!
//! Source: vhost-user protocol, "Migration"; `VHOST_LOG_PAGE` of linux/vhost.h.

use super::descriptor::RingAddress;
use super::memory::GuestMemory;
use crate::mem::Region;
use std::sync::Arc;

/// Bytes of a page; each page has one bit.
const PAGE: u64 = 4096;

/// The log of a front end.
pub(super) struct DirtyLog {
    bits: Arc<Region>,
}

impl DirtyLog {
    pub(super) fn new(bits: Arc<Region>) -> DirtyLog {
        DirtyLog { bits }
    }

    /// Marks `len` bytes of the guest's memory as written.
    #[cold]
    pub(super) fn mark(&self, guest: u64, len: u64) {
        if len == 0 {
            return;
        }
        let (first, last) = (guest / PAGE, guest.saturating_add(len - 1) / PAGE);
        // Accesses outside the memory were rejected, but a log may be shorter than the memory.
        let last = last.min(self.bits.len() as u64 * 8 - 1);
        for page in first..=last {
            self.bits.set_bits((page / 8) as usize, 1 << (page % 8));
        }
    }
}

/// A ring's writes to its own memory.
#[derive(Clone)]
pub(super) struct RingLog {
    log: Arc<DirtyLog>,
    /// Guest address of the descriptors, which only a packed ring writes.
    desc: u64,
    /// Guest address of the used ring, or of the device's event suppression, as the front end gives it.
    used: u64,
}

impl RingLog {
    /// Returns `None` if the descriptors are not in the guest's memory.
    pub(super) fn new(log: &Arc<DirtyLog>, memory: &GuestMemory, address: RingAddress, used: u64) -> Option<RingLog> {
        Some(RingLog { log: Arc::clone(log), desc: memory.guest_address(address.desc)?, used })
    }

    /// Marks bytes of the used ring, or of the device's event suppression.
    #[cold]
    pub(super) fn used(&self, at: usize, len: usize) {
        self.log.mark(self.used.wrapping_add(at as u64), len as u64);
    }

    /// Marks bytes of the descriptors.
    #[cold]
    pub(super) fn desc(&self, at: usize, len: usize) {
        self.log.mark(self.desc.wrapping_add(at as u64), len as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Alarm;
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn pages_have_their_bits_and_none_is_behind_the_end() {
        let fd = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        let map = |len| Arc::new(Region::map_shared(fd.as_fd(), 0, len, &Alarm::new().unwrap()).unwrap());
        let (log, all) = (DirtyLog::new(map(3)), map(4096));
        let bytes = || -> Vec<u8> { (0..5).map(|i| all.load_u8(i, Relaxed)).collect() };
        log.mark(4095, 0);
        assert_eq!(bytes(), [0, 0, 0, 0, 0]);
        log.mark(4095, 2);
        assert_eq!(bytes(), [0b11, 0, 0, 0, 0]);
        log.mark(7 * 4096, 10 * 4096);
        assert_eq!(bytes(), [0b1000_0011, 0xff, 1, 0, 0]);
        log.mark(20 * 4096, u64::MAX);
        assert_eq!(bytes(), [0b1000_0011, 0xff, 0xf1, 0, 0]);
        log.mark(u64::MAX - 3, 100);
        log.mark(24 * 4096, 1);
        assert_eq!(bytes(), [0b1000_0011, 0xff, 0xf1, 0, 0]);
    }
}
