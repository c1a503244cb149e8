// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The driver's side of a virtqueue, split or packed, in guest memory.
//!
//! Guarantees: [`Ring::write_desc`] writes exactly what it is given, even if that is invalid; [`Ring::submit`] writes a valid chain;
//! [`Ring::take_used`] takes each used entry once, in the ring's order, and reports an impossible used index. Does not handle messages or
//! eventfds: [`super::Raw`] does.
//! Source: virtio 1.2, 2.7 (split) and 2.8 (packed).

use super::guest::Guest;
use crate::error::Error;

/// Descriptor flag: another follows (split: at `next`; packed: in the next slot).
pub const NEXT: u16 = 1;
/// Descriptor flag: the device writes here.
pub const WRITE: u16 = 2;
/// Descriptor flag: the buffer is a table of descriptors.
pub const INDIRECT: u16 = 4;
/// Packed descriptor flag: made available in this lap, if equal to the driver's wrap counter.
pub const AVAIL: u16 = 1 << 7;
/// Packed descriptor flag: used in this lap, if equal to the device's wrap counter.
pub const USED: u16 = 1 << 15;

/// Format of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Descriptor table, available ring, used ring.
    Split,
    /// One ring of descriptors (feature RING_PACKED).
    Packed,
}

/// A piece of a request's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Guest address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Whether the device writes there.
    pub write: bool,
}

/// A request that the device has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Split: the chain's first descriptor; packed: its buffer id.
    pub id: u32,
    /// Bytes the device says it wrote.
    pub len: u32,
}

/// A virtqueue's driver side.
#[derive(Clone, Debug)]
pub struct Ring {
    /// Split or packed.
    pub format: Format,
    /// Descriptors.
    pub size: u16,
    /// Guest address of the descriptors.
    pub desc: u64,
    /// Guest address of the available ring, or of the driver's event suppression.
    pub driver: u64,
    /// Guest address of the used ring, or of the device's event suppression.
    pub device: u64,
    /// Split: the available index. Packed: the slot of the next descriptor.
    next_avail: u16,
    avail_wrap: bool,
    /// Split: the index of the next used entry. Packed: the slot of the next used descriptor.
    next_used: u16,
    used_wrap: bool,
    /// Split: the slot of the next chain.
    next_slot: u16,
    /// Packed: slots of each buffer id that is in flight; otherwise 0.
    chains: Vec<u16>,
}

/// Encodes a descriptor. `last` is `next` in a split ring; in a packed ring it is the buffer id, which precedes the flags.
pub fn descriptor(format: Format, addr: u64, len: u32, flags: u16, last: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&addr.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    let (first, second) = match format {
        Format::Split => (flags, last),
        Format::Packed => (last, flags),
    };
    bytes[12..14].copy_from_slice(&first.to_le_bytes());
    bytes[14..].copy_from_slice(&second.to_le_bytes());
    bytes
}

impl Ring {
    /// Takes memory for a ring of `size` descriptors and empties it.
    ///
    /// # Errors
    /// When the guest has no room.
    pub fn new(guest: &mut Guest, format: Format, size: u16) -> Result<Ring, Error> {
        Ring::apart(guest, format, size, 4)
    }

    /// As [`Self::new`], with its three parts at multiples of `align`, at least 4. With the alignment of a cache line, parts that the
    /// driver writes share no line with parts that the device writes.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn apart(guest: &mut Guest, format: Format, size: u16, align: usize) -> Result<Ring, Error> {
        let n = usize::from(size);
        let (driver_len, device_len) = match format {
            Format::Split => (6 + 2 * n, 6 + 8 * n),
            Format::Packed => (4, 4),
        };
        let desc = guest.take(16 * n.max(1), align.max(16))?;
        let driver = guest.take(driver_len, align)?;
        let device = guest.take(device_len, align)?;
        for (at, len) in [(desc, 16 * n), (driver, driver_len), (device, device_len)] {
            guest.write(at, &vec![0; len])?;
        }
        Ok(Ring {
            format,
            size,
            desc,
            driver,
            device,
            next_avail: 0,
            avail_wrap: true,
            next_used: 0,
            used_wrap: true,
            next_slot: 0,
            chains: vec![0; n],
        })
    }

    /// Writes descriptor `index` exactly as given. For a packed ring `last` is the id, and `flags` needs the bits of [`Self::avail_bits`]
    /// to make it available.
    ///
    /// # Errors
    /// When `index` lies outside guest memory (it may lie outside the table).
    pub fn write_desc(
        &self,
        guest: &Guest,
        index: u16,
        addr: u64,
        len: u32,
        flags: u16,
        last: u16,
    ) -> Result<(), Error> {
        let at = self.desc + 16 * u64::from(index);
        let bytes = descriptor(self.format, addr, len, flags, last);
        match self.format {
            Format::Split => guest.write(at, &bytes),
            Format::Packed => {
                guest.write(at, &bytes[..14])?;
                guest.store(at + 14, flags)
            }
        }
    }

    /// The AVAIL and USED bits that make a packed descriptor available in this lap.
    pub fn avail_bits(&self) -> u16 {
        if self.avail_wrap { AVAIL } else { USED }
    }

    /// Split: puts `head` into the available ring and makes it visible to the device.
    ///
    /// # Errors
    /// On a packed ring, which has no heads.
    pub fn offer(&mut self, guest: &Guest, head: u16) -> Result<(), Error> {
        self.must_be(Format::Split, "offer")?;
        let at = self.driver + 4 + 2 * u64::from(self.next_avail % self.size.max(1));
        guest.write(at, &head.to_le_bytes())?;
        self.next_avail = self.next_avail.wrapping_add(1);
        guest.store(self.driver + 2, self.next_avail)
    }

    /// Split: sets the available index, valid or not, and continues from there.
    ///
    /// # Errors
    /// On a packed ring.
    pub fn set_avail_index(&mut self, guest: &Guest, index: u16) -> Result<(), Error> {
        self.must_be(Format::Split, "set_avail_index")?;
        self.next_avail = index;
        guest.store(self.driver + 2, index)
    }

    /// Puts a valid chain on the ring and makes it visible to the device. Returns the id of its later [`Used`] entry.
    ///
    /// # Errors
    /// If there are no segments, or more than the ring has descriptors.
    pub fn submit(&mut self, guest: &Guest, segments: &[Segment]) -> Result<u16, Error> {
        let count = segments.len();
        if count == 0 || count > usize::from(self.size) {
            return Err(Error::Usage(format!("{count} segments: must be 1..={} in this ring", self.size)));
        }
        match self.format {
            Format::Split => self.submit_split(guest, segments),
            Format::Packed => self.submit_packed(guest, segments),
        }
    }

    fn submit_split(&mut self, guest: &Guest, segments: &[Segment]) -> Result<u16, Error> {
        let head = self.next_slot;
        for (i, segment) in segments.iter().enumerate() {
            let slot = self.next_slot;
            self.next_slot = (slot + 1) % self.size;
            let more = if i + 1 < segments.len() { NEXT } else { 0 };
            let flags = more | if segment.write { WRITE } else { 0 };
            self.write_desc(guest, slot, segment.addr, segment.len, flags, self.next_slot)?;
        }
        self.offer(guest, head)?;
        Ok(head)
    }

    fn submit_packed(&mut self, guest: &Guest, segments: &[Segment]) -> Result<u16, Error> {
        let Some(id) = self.chains.iter().position(|&slots| slots == 0) else {
            return Err(Error::Usage("all buffer ids are with the device".into()));
        };
        let id = id as u16;
        let head = (self.next_avail, self.avail_bits());
        let mut first_flags = 0;
        for (i, segment) in segments.iter().enumerate() {
            let more = if i + 1 < segments.len() { NEXT } else { 0 };
            let flags = more | if segment.write { WRITE } else { 0 } | self.avail_bits();
            // The first descriptor is made available last, so that the device sees the whole chain (2.8.21.1).
            let shown = if i == 0 { flags ^ (AVAIL | USED) } else { flags };
            self.write_desc(guest, self.next_avail, segment.addr, segment.len, shown, id)?;
            if i == 0 {
                first_flags = flags;
            }
            self.advance();
        }
        self.chains[usize::from(id)] = segments.len() as u16;
        guest.store(self.desc + 16 * u64::from(head.0) + 14, first_flags)?;
        Ok(id)
    }

    /// Packed: advances to the next slot, after a direct [`Self::write_desc`].
    pub fn advance(&mut self) {
        self.next_avail += 1;
        if self.next_avail == self.size {
            self.next_avail = 0;
            self.avail_wrap = !self.avail_wrap;
        }
    }

    /// Returns the slot (packed) or index (split) of the next available entry.
    pub fn position(&self) -> u16 {
        self.next_avail
    }

    /// Returns the requests that the device has completed since the last call.
    ///
    /// # Errors
    /// If the used ring is invalid: an index too far ahead, or (packed) an id that is not in flight.
    pub fn take_used(&mut self, guest: &Guest) -> Result<Vec<Used>, Error> {
        match self.format {
            Format::Split => self.take_split(guest),
            Format::Packed => self.take_packed(guest),
        }
    }

    fn take_split(&mut self, guest: &Guest) -> Result<Vec<Used>, Error> {
        let index: u16 = guest.load(self.device + 2)?;
        let count = index.wrapping_sub(self.next_used);
        if count > self.size {
            let seen = self.next_used;
            return Err(Error::Server(format!(
                "used index {index} after {seen}: must advance by at most {}",
                self.size
            )));
        }
        let mut taken = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let at = self.device + 4 + 8 * u64::from(self.next_used % self.size);
            taken.push(Used { id: guest.load(at)?, len: guest.load(at + 4)? });
            self.next_used = self.next_used.wrapping_add(1);
        }
        Ok(taken)
    }

    fn take_packed(&mut self, guest: &Guest) -> Result<Vec<Used>, Error> {
        let mut taken = Vec::new();
        loop {
            let at = self.desc + 16 * u64::from(self.next_used);
            let flags: u16 = guest.load(at + 14)?;
            let right = if self.used_wrap { AVAIL | USED } else { 0 };
            if flags & (AVAIL | USED) != right || taken.len() > usize::from(self.size) {
                return Ok(taken);
            }
            let id: u16 = guest.load(at + 12)?;
            let slots = self.chains.get_mut(usize::from(id)).map_or(0, std::mem::take);
            if slots == 0 {
                return Err(Error::Server(format!("the device completed buffer {id}, which is not in flight")));
            }
            taken.push(Used { id: u32::from(id), len: guest.load(at + 8)? });
            self.next_used += slots;
            if self.next_used >= self.size {
                self.next_used -= self.size;
                self.used_wrap = !self.used_wrap;
            }
        }
    }

    /// Packed: records that `id`, written by [`Self::write_desc`], is in flight and occupies `slots` slots.
    pub fn expect(&mut self, id: u16, slots: u16) {
        if let Some(chain) = self.chains.get_mut(usize::from(id)) {
            *chain = slots;
        }
    }

    /// Split: sets the flags of the available ring (1: no calls).
    ///
    /// # Errors
    /// On a packed ring.
    pub fn set_avail_flags(&self, guest: &Guest, flags: u16) -> Result<(), Error> {
        self.must_be(Format::Split, "set_avail_flags")?;
        guest.store(self.driver, flags)
    }

    /// Split with EVENT_IDX: asks for a call when the used index has passed `index`.
    ///
    /// # Errors
    /// On a packed ring.
    pub fn set_used_event(&self, guest: &Guest, index: u16) -> Result<(), Error> {
        self.must_be(Format::Split, "set_used_event")?;
        guest.store(self.driver + 4 + 2 * u64::from(self.size), index)
    }

    /// Split: returns the device's kick suppression: the used ring's flags, and the avail_event of EVENT_IDX.
    ///
    /// # Errors
    /// On a packed ring.
    pub fn kick_wanted(&self, guest: &Guest) -> Result<(u16, u16), Error> {
        self.must_be(Format::Split, "kick_wanted")?;
        Ok((guest.load(self.device)?, guest.load(self.device + 4 + 8 * u64::from(self.size))?))
    }

    /// Packed: sets the driver's event suppression: descriptor offset with wrap bit, and flags (0: calls, 1: no calls, 2: a call at that
    /// descriptor).
    ///
    /// # Errors
    /// On a split ring.
    pub fn set_driver_event(&self, guest: &Guest, offset_wrap: u16, flags: u16) -> Result<(), Error> {
        self.must_be(Format::Packed, "set_driver_event")?;
        guest.store(self.driver, offset_wrap)?;
        guest.store(self.driver + 2, flags)
    }

    /// Packed: returns the device's event suppression, as [`Self::set_driver_event`].
    ///
    /// # Errors
    /// On a split ring.
    pub fn device_event(&self, guest: &Guest) -> Result<(u16, u16), Error> {
        self.must_be(Format::Packed, "device_event")?;
        Ok((guest.load(self.device)?, guest.load(self.device + 2)?))
    }

    fn must_be(&self, format: Format, what: &str) -> Result<(), Error> {
        let is = self.format;
        if is == format {
            Ok(())
        } else {
            Err(Error::Usage(format!("{what}: only on a {format:?} ring, this is {is:?}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn guest() -> Guest {
        let mut guest = Guest::default();
        guest.add(0x1000, 1 << 16).unwrap();
        guest
    }

    fn segments(count: usize) -> Vec<Segment> {
        (0..count as u64).map(|i| Segment { addr: 0x9000 + i, len: i as u32 + 1, write: i % 2 == 1 }).collect()
    }

    /// The device's side of a packed ring, written from 2.8.21 independently of the driver's code.
    struct PackedDevice {
        slot: u16,
        wrap: bool,
    }

    /// What the device found: buffer id, slots, segments.
    type Chain = (u16, u16, Vec<Segment>);

    impl PackedDevice {
        fn field(guest: &Guest, ring: &Ring, slot: u16, at: u64, len: usize) -> u64 {
            let bytes = guest.read(ring.desc + 16 * u64::from(slot) + at, len).unwrap();
            bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
        }

        fn next(&self, guest: &Guest, ring: &Ring) -> Option<Chain> {
            let (mut slot, mut wrap, mut found) = (self.slot, self.wrap, Vec::new());
            loop {
                let flags = Self::field(guest, ring, slot, 14, 2) as u16;
                let (avail, used) = (flags & 0x80 != 0, flags & 0x8000 != 0);
                if avail != wrap || used == wrap {
                    assert!(found.is_empty(), "half a chain was shown");
                    return None;
                }
                let addr = Self::field(guest, ring, slot, 0, 8);
                let len = Self::field(guest, ring, slot, 8, 4) as u32;
                found.push(Segment { addr, len, write: flags & 2 != 0 });
                if flags & 1 == 0 {
                    let id = Self::field(guest, ring, slot, 12, 2) as u16;
                    return Some((id, found.len() as u16, found));
                }
                slot += 1;
                if slot == ring.size {
                    (slot, wrap) = (0, !wrap);
                }
            }
        }

        fn end(&mut self, guest: &Guest, ring: &Ring, id: u16, slots: u16, len: u32) {
            let flags: u16 = if self.wrap { 0x8080 } else { 0 };
            let bytes = [&len.to_le_bytes()[..], &id.to_le_bytes(), &flags.to_le_bytes()].concat();
            guest.write(ring.desc + 16 * u64::from(self.slot) + 8, &bytes).unwrap();
            self.slot += slots;
            if self.slot >= ring.size {
                self.slot -= ring.size;
                self.wrap = !self.wrap;
            }
        }
    }

    #[test]
    fn packed_chains_arrive_whole_and_answers_come_back() {
        for seed in 0..20 {
            let mut random = Random::new(seed, 0);
            let mut guest = guest();
            // Not a power of two: packed rings may have any size.
            let mut ring = Ring::new(&mut guest, Format::Packed, 13).unwrap();
            let mut device = PackedDevice { slot: 0, wrap: true };
            let mut with_device = std::collections::VecDeque::new();
            let mut free = 13;
            for step in 0..500u32 {
                let count = 1 + random.below(4) as usize;
                if count <= free && random.chance(60) {
                    let id = ring.submit(&guest, &segments(count)).unwrap();
                    with_device.push_back((id, count));
                    free -= count;
                } else if let Some((id, count)) = with_device.pop_front() {
                    let chain = device.next(&guest, &ring);
                    assert_eq!(chain, Some((id, count as u16, segments(count))), "seed {seed} step {step}");
                    assert_eq!(ring.take_used(&guest).unwrap(), [], "seed {seed} step {step}");
                    device.end(&guest, &ring, id, count as u16, step);
                    let used = ring.take_used(&guest).unwrap();
                    assert_eq!(used, [Used { id: u32::from(id), len: step }], "seed {seed} step {step}");
                    free += count;
                } else {
                    assert_eq!(device.next(&guest, &ring), None, "seed {seed} step {step}");
                }
            }
        }
    }

    #[test]
    fn packed_descriptors_have_the_bytes_of_the_specification() {
        let mut guest = guest();
        let mut ring = Ring::new(&mut guest, Format::Packed, 2).unwrap();
        ring.submit(&guest, &segments(2)).unwrap();
        // In the first lap AVAIL is set and USED is not: 0x80, with NEXT 0x81, with WRITE 0x82.
        let bytes = guest.read(ring.desc, 32).unwrap();
        assert_eq!(&bytes[..16], [0, 0x90, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0x81, 0]);
        assert_eq!(&bytes[16..], [1, 0x90, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0x82, 0]);
        // In the second lap it is the other way round.
        assert_eq!(ring.avail_bits(), USED);
    }

    #[test]
    fn a_device_that_ends_what_it_does_not_have_is_found_out() {
        let mut guest = guest();
        let mut ring = Ring::new(&mut guest, Format::Packed, 4).unwrap();
        let mut device = PackedDevice { slot: 0, wrap: true };
        device.end(&guest, &ring, 3, 1, 0);
        assert!(ring.take_used(&guest).unwrap_err().to_string().contains("buffer 3, which is not in flight"));
        let mut ring = Ring::new(&mut guest, Format::Split, 4).unwrap();
        guest.store(ring.device + 2, 5u16).unwrap();
        assert!(
            ring.take_used(&guest).unwrap_err().to_string().contains("used index 5 after 0: must advance by at most 4")
        );
    }

    #[test]
    fn split_structures_have_the_layout_of_the_specification() {
        let mut guest = guest();
        let mut ring = Ring::new(&mut guest, Format::Split, 4).unwrap();
        assert_eq!((ring.desc % 16, ring.driver % 2, ring.device % 4), (0, 0, 0));
        assert_eq!(ring.submit(&guest, &segments(3)).unwrap(), 0);
        assert_eq!(ring.submit(&guest, &segments(2)).unwrap(), 3);
        // The second chain begins in the last slot and continues in the first.
        assert_eq!(guest.read(ring.desc + 48, 16).unwrap(), [0, 0x90, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(guest.read(ring.driver, 8).unwrap(), [0, 0, 2, 0, 0, 0, 3, 0]);
        guest.write(ring.device, &[0, 0, 1, 0, 3, 0, 0, 0, 9, 0, 0, 0]).unwrap();
        assert_eq!(ring.take_used(&guest).unwrap(), [Used { id: 3, len: 9 }]);
        assert_eq!(ring.take_used(&guest).unwrap(), []);
        assert!(ring.submit(&guest, &segments(5)).is_err() && ring.submit(&guest, &[]).is_err());
        assert!(ring.device_event(&guest).is_err() && ring.set_driver_event(&guest, 0, 0).is_err());
    }
}
