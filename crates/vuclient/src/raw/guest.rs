// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guest memory as a protocol test lays it out: regions at chosen guest addresses.
//!
//! Guarantees: reads, writes and the ordered accesses of rings go to exactly the region that holds the address, or are
//! an error. [`Guest::take`] hands out each byte of a region once, until [`Guest::rewind`]. Does not register memory
//! with the server: [`super::Raw::set_memory`] does.

use std::sync::atomic::Ordering;

use vm_memory::{AtomicAccess, AtomicInteger, Bytes};

use crate::error::Error;
use crate::memory::Memory;

/// Regions of memory shared with the server.
#[derive(Default)]
pub struct Guest {
    regions: Vec<Region>,
}

pub(super) struct Region {
    pub guest: u64,
    pub memory: Memory,
    /// Bytes of the region; its mapping may be longer.
    pub len: usize,
    used: usize,
}

impl Guest {
    pub(super) fn add(&mut self, guest: u64, len: usize) -> Result<&Region, Error> {
        let memory = Memory::new(len)?;
        self.regions.push(Region { guest, len: memory.len(), memory, used: 0 });
        Ok(&self.regions[self.regions.len() - 1])
    }

    /// A region of exactly `len` bytes, which need not be whole pages.
    pub(super) fn add_part(&mut self, guest: u64, len: usize) -> Result<&Region, Error> {
        self.regions.push(Region { guest, memory: Memory::new(len)?, len, used: 0 });
        Ok(&self.regions[self.regions.len() - 1])
    }

    pub(super) fn remove(&mut self, guest: u64) -> Option<Region> {
        let at = self.regions.iter().position(|region| region.guest == guest)?;
        Some(self.regions.remove(at))
    }

    pub(super) fn regions(&self) -> impl Iterator<Item = &Region> {
        self.regions.iter()
    }

    /// Takes `len` bytes from the first region with room, at a multiple of `align`. Returns their guest address.
    ///
    /// # Errors
    /// When no region has room.
    pub fn take(&mut self, len: usize, align: usize) -> Result<u64, Error> {
        for region in &mut self.regions {
            let at = region.used.next_multiple_of(align);
            if at.checked_add(len).is_some_and(|end| end <= region.len) {
                region.used = at + len;
                return Ok(region.guest + at as u64);
            }
        }
        Err(Error::Usage(format!(
            "{len} bytes: no region has so much memory left; give more memory, or free all of it with rewind"
        )))
    }

    /// Returns the position of [`Self::take`] in the first region.
    pub fn mark(&self) -> usize {
        self.regions.first().map_or(0, |region| region.used)
    }

    /// Frees all bytes taken from the first region after `mark`.
    pub fn rewind(&mut self, mark: usize) {
        if let Some(region) = self.regions.first_mut() {
            region.used = region.used.min(mark);
        }
    }

    /// Returns the memory that holds all `len` bytes at `address`, and their offset in it.
    fn find(&self, address: u64, len: usize) -> Result<(&Memory, usize), Error> {
        let inside = self.regions.iter().find_map(|region| {
            let at = usize::try_from(address.checked_sub(region.guest)?).ok()?;
            (at.checked_add(len)? <= region.len).then_some((&region.memory, at))
        });
        inside.ok_or_else(|| Error::Usage(format!("{len} bytes at {address:#x}: in no region of this guest")))
    }

    /// Returns the front-end's own address of guest address `address`, as SET_VRING_ADDR needs it.
    ///
    /// # Errors
    /// When no region holds it.
    pub fn user_address(&self, address: u64) -> Result<u64, Error> {
        self.find(address, 1).map(|(memory, at)| (memory.address() + at) as u64)
    }

    /// Writes `bytes` to guest memory.
    ///
    /// # Errors
    /// When no region holds all of it.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        let (memory, at) = self.find(address, bytes.len())?;
        memory.slice(at, bytes.len()).copy_from(bytes);
        Ok(())
    }

    /// Reads `len` bytes of guest memory.
    ///
    /// # Errors
    /// When no region holds all of it.
    pub fn read(&self, address: u64, len: usize) -> Result<Vec<u8>, Error> {
        let (memory, at) = self.find(address, len)?;
        let mut bytes = vec![0u8; len];
        memory.slice(at, len).copy_to(&mut bytes[..]);
        Ok(bytes)
    }

    /// Truncates the file of the region at `address` to `len` bytes, as a hostile client may while the server has the
    /// file mapped. An access beyond `len` kills this process, too.
    ///
    /// # Errors
    /// When there is no such region, or the system refuses.
    pub fn cut_short(&self, address: u64, len: u64) -> Result<(), Error> {
        let found = self.regions.iter().find(|region| region.guest == address);
        let region = found.ok_or_else(|| Error::Usage(format!("no region at {address:#x}")))?;
        rustix::fs::ftruncate(region.memory.fd(), len)
            .map_err(Error::io(format!("cannot make a memfd {len} bytes long")))
    }

    /// Returns a reference to a number, for callers that access it often.
    ///
    /// # Errors
    /// When no region holds it, or it is not aligned.
    pub(super) fn atomic<T: AtomicInteger>(&self, address: u64) -> Result<&T, Error> {
        let (memory, at) = self.find(address, size_of::<T>())?;
        memory.atomic(at).ok_or_else(|| Error::Usage(format!("a number at {address:#x}: is not aligned")))
    }

    /// Stores a number after all earlier writes.
    pub(super) fn store<T: AtomicAccess>(&self, address: u64, value: T) -> Result<(), Error> {
        let (memory, at) = self.find(address, size_of::<T>())?;
        // Pairs with: the server's acquire of the ring's index or flags (virtio 1.2, 2.7.13.3 and 2.8.21.3).
        let done = memory.slice(at, size_of::<T>()).store(value, 0, Ordering::Release);
        done.map_err(|e| Error::Usage(format!("store at {address:#x}: {e}")))
    }

    /// Loads a number before all later reads.
    pub(super) fn load<T: AtomicAccess>(&self, address: u64) -> Result<T, Error> {
        let (memory, at) = self.find(address, size_of::<T>())?;
        // Pairs with: the server's release of the used index or flags (virtio 1.2, 2.7.8 and 2.8.14).
        let value = memory.slice(at, size_of::<T>()).load(0, Ordering::Acquire);
        value.map_err(|e| Error::Usage(format!("load at {address:#x}: {e}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_exactly_one_region() {
        let mut guest = Guest::default();
        guest.add(0x10_0000, 4096).unwrap();
        guest.add(0x10_1000, 4096).unwrap();
        guest.write(0x10_0ffd, b"abc").unwrap();
        assert_eq!(guest.read(0x10_0ffd, 3).unwrap(), b"abc");
        // Two regions side by side are still two mappings.
        for (address, len) in [(0x10_0ffe, 3), (0xf_ffff, 1), (0x10_2000, 1), (u64::MAX, 2)] {
            assert!(guest.read(address, len).is_err(), "{address:#x}");
        }
        guest.store(0x10_1002, 0x1234u16).unwrap();
        assert_eq!(guest.read(0x10_1002, 2).unwrap(), [0x34, 0x12]);
        assert_eq!(guest.load::<u16>(0x10_1002).unwrap(), 0x1234);
    }

    #[test]
    fn memory_is_handed_out_once() {
        let mut guest = Guest::default();
        guest.add(0x1000, 4096).unwrap();
        assert_eq!(guest.take(3, 1).unwrap(), 0x1000);
        let mark = guest.mark();
        assert_eq!(guest.take(4000, 16).unwrap(), 0x1010);
        assert!(guest.take(100, 1).is_err());
        guest.rewind(mark);
        assert_eq!(guest.take(100, 1).unwrap(), 0x1003);
    }
}
