// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's memory as the front end describes it: maps guest addresses to regions and offsets.
//!
//! Guarantees: an address translates only if every byte of it is in a mapped slot. Translated memory stays mapped as long as the
//! [`GuestMemory`] that translated it. Slots do not overlap. Needs from callers: all I/O to a slot has completed before the slot is
//! removed ([`GuestMemory::without`]).
//!
//! Source: vhost-user protocol, "Memory region description", SET_MEM_TABLE, ADD_MEM_REG, REM_MEM_REG.

use crate::error::{Error, Result};
use crate::mem::{Alarm, BUFFER_ALIGN, Region, Regions, Window};
use blk::bio::DataRef;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The answer to GET_MAX_MEM_SLOTS: more slots than QEMU's virtual machines need for their DIMMs.
pub const MAX_SLOTS: usize = 509;

/// Addresses of a slot, as the front end gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotAddress {
    /// Guest physical address.
    pub guest: u64,
    /// The same address in the front end's own address space; ring addresses are in that space.
    pub user: u64,
    /// Bytes.
    pub len: u64,
    /// Offset in the file.
    pub file_offset: u64,
}

/// One mapped slot.
#[derive(Clone, Debug)]
struct Slot {
    address: SlotAddress,
    region: Arc<Region>,
    /// Number of the region in the disk's table.
    number: u16,
}

/// A guest's memory at one time. Cheap to clone; a change makes a new value.
#[derive(Clone, Debug)]
pub struct GuestMemory {
    slots: Vec<Slot>,
    alarm: Arc<Alarm>,
    /// A slot does not begin or end at a page boundary, so data may be split at any byte.
    is_ragged: bool,
}

impl GuestMemory {
    /// Makes memory without slots. The alarm is raised when pages of a slot are gone.
    pub(crate) fn new(alarm: Arc<Alarm>) -> GuestMemory {
        GuestMemory { slots: Vec::new(), alarm, is_ragged: false }
    }

    /// Whether pages of the memory are gone. If this returns false, everything that was read before was the guest's data.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.alarm.is_raised()
    }

    /// Whether a slot begins or ends within a page of the guest. The memory of real guests never does, but a client that shares only its
    /// rings (virtio-driver) has such slots.
    #[inline]
    pub(crate) fn is_ragged(&self) -> bool {
        self.is_ragged
    }

    /// Returns this memory with one more slot, which is mapped from `fd` and added to `regions`.
    pub(crate) fn with(&self, address: SlotAddress, fd: BorrowedFd<'_>, regions: &Regions) -> Result<GuestMemory> {
        let SlotAddress { guest, user, len, file_offset } = address;
        let describe = || format!("memory slot of {len} bytes at guest address {guest:#x}");
        if len == 0 || guest.checked_add(len).is_none() || user.checked_add(len).is_none() {
            return Err(Error::usage(format!("{}: must have bytes and end below 2^64", describe())));
        }
        let overlaps = |a: u64, b: u64, other: u64| a < b + other && b < a + len;
        if self.slots.iter().any(|s| overlaps(guest, s.address.guest, s.address.len)) {
            return Err(Error::usage(format!("{}: overlaps another slot", describe())));
        }
        if self.slots.len() == MAX_SLOTS {
            return Err(Error::usage(format!("{}: there are {MAX_SLOTS} already", describe())));
        }
        let bytes = usize::try_from(len).map_err(|_| Error::usage(format!("{}: too large", describe())))?;
        let region = Arc::new(Region::map_shared(fd, file_offset, bytes, &self.alarm)?);
        let number = regions.add(Arc::clone(&region))?;
        let mut slots = self.slots.clone();
        slots.push(Slot { address, region, number });
        Ok(self.of(slots))
    }

    /// Returns this memory without the slot at these addresses, and the slot's number in the table of regions, which still holds it.
    /// `None` if there is no such slot. The file's offset does not matter.
    pub(crate) fn without(&self, guest: u64, user: u64, len: u64) -> Option<(GuestMemory, u16)> {
        let is = |s: &Slot| (s.address.guest, s.address.user, s.address.len) == (guest, user, len);
        let at = self.slots.iter().position(is)?;
        let mut slots = self.slots.clone();
        let gone = slots.remove(at);
        Some((self.of(slots), gone.number))
    }

    /// Returns the same client's memory with other slots.
    fn of(&self, slots: Vec<Slot>) -> GuestMemory {
        let is_ragged = |s: &Slot| !(s.address.guest | s.address.len).is_multiple_of(BUFFER_ALIGN as u64);
        GuestMemory { is_ragged: slots.iter().any(is_ragged), slots, alarm: Arc::clone(&self.alarm) }
    }

    /// Returns the numbers of all slots in the table of regions.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u16> + '_ {
        self.slots.iter().map(|s| s.number)
    }

    /// Translates a guest address. Also returns how many of the `len` bytes follow there in one slot, at least one if `len` is not 0.
    /// `None` if nothing is mapped there. `hint` is the index of the slot that was found last.
    #[inline]
    pub(crate) fn translate(&self, guest: u64, len: u32, hint: &mut usize) -> Option<(DataRef, u32)> {
        let hit = |s: &Slot| guest.checked_sub(s.address.guest).filter(|offset| *offset < s.address.len);
        let (slot, offset) = match self.slots.get(*hint).and_then(|s| Some((s, hit(s)?))) {
            Some(found) => found,
            None => {
                *hint = self.slots.iter().position(|s| hit(s).is_some())?;
                let slot = &self.slots[*hint];
                (slot, hit(slot)?)
            }
        };
        let here = (slot.address.len - offset).min(u64::from(len)) as u32;
        Some((DataRef::new(slot.number, offset), here))
    }

    /// Prefetches the cache line at a guest address for reading and writing, if something is mapped there.
    #[inline]
    pub(crate) fn prefetch(&self, guest: u64, hint: &mut usize) {
        if self.translate(guest, 1, hint).is_some() {
            let slot = &self.slots[*hint];
            slot.region.prefetch::<true>((guest - slot.address.guest) as usize);
        }
    }

    /// Translates an address of the front end's address space to a guest address.
    pub(crate) fn guest_address(&self, user: u64) -> Option<u64> {
        let find = |s: &Slot| {
            let at = user.checked_sub(s.address.user).filter(|at| *at < s.address.len)?;
            s.address.guest.checked_add(at)
        };
        self.slots.iter().find_map(find)
    }

    /// Returns `len` bytes of a ring at an address of the front end's address space. `None` if they are not in one slot, or not aligned.
    pub(crate) fn window(&self, user: u64, len: usize, align: usize) -> Option<Window> {
        let find = |s: &Slot| Some((Arc::clone(&s.region), user.checked_sub(s.address.user)?));
        let slots = self.slots.iter().filter_map(find);
        slots.filter_map(|(region, at)| Window::new(&region, at, len, align)).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, OwnedFd};

    const MIB: u64 = 1 << 20;

    fn file(bytes: u64) -> OwnedFd {
        let fd = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        fd
    }

    fn empty() -> GuestMemory {
        GuestMemory::new(Alarm::new().unwrap())
    }

    fn slot(guest: u64, len: u64) -> SlotAddress {
        SlotAddress { guest, user: guest + (1 << 40), len, file_offset: 0 }
    }

    #[test]
    fn addresses_translate_within_their_slot_only() {
        let (fd, regions) = (file(2 * MIB), Regions::new());
        let memory = empty().with(slot(MIB, MIB), fd.as_fd(), &regions).unwrap();
        let memory = memory.with(slot(4 * MIB, 2 * MIB), fd.as_fd(), &regions).unwrap();
        let mut hint = 0;
        for _ in 0..2 {
            assert_eq!(memory.translate(5 * MIB, 8, &mut hint), Some((DataRef::new(1, MIB), 8)));
            assert_eq!(hint, 1);
            assert_eq!(memory.translate(2 * MIB - 3, 8, &mut hint), Some((DataRef::new(0, MIB - 3), 3)));
        }
        for outside in [0, MIB - 1, 2 * MIB, 3 * MIB, 6 * MIB, u64::MAX] {
            assert_eq!(memory.translate(outside, 1, &mut hint), None, "{outside:#x}");
        }
        let user = 1 << 40;
        assert!(memory.window(user + MIB, MIB as usize, 16).is_some());
        assert!(memory.window(user + MIB, MIB as usize + 1, 16).is_none(), "reaches past the slot");
        assert!(memory.window(user + MIB + 8, 16, 16).is_none(), "not aligned");
        assert!(memory.window(MIB, 16, 16).is_none(), "a guest address");
        assert_eq!(memory.guest_address(user + 5 * MIB + 3), Some(5 * MIB + 3));
        assert_eq!((memory.guest_address(MIB), memory.guest_address(user + 6 * MIB)), (None, None));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (fd, regions) = (file(2 * MIB), Regions::new());
        let memory = empty().with(slot(MIB, MIB), fd.as_fd(), &regions).unwrap();
        for bad in [slot(2 * MIB - 1, 4096), slot(0, 2 * MIB), slot(MIB, MIB), slot(8 * MIB, 0), slot(8 * MIB, 4 * MIB)]
        {
            assert!(memory.with(bad, fd.as_fd(), &regions).is_err(), "{bad:?}");
        }
        let wraps = SlotAddress { guest: u64::MAX - 5, user: 0, len: 4096, file_offset: 0 };
        assert!(memory.with(wraps, fd.as_fd(), &regions).is_err());
        assert!(memory.without(MIB, 1, MIB).is_none(), "another user address");
        let (none, number) = memory.without(MIB, MIB + (1 << 40), MIB).unwrap();
        assert_eq!((number, none.numbers().count()), (0, 0));
    }
}
