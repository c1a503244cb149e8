// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rings and requests from the driver's side: valid ones are accepted, invalid ones are refused.

use super::descriptor::{Desc, Head, RingAddress, RingError, RingFeatures, View};
use super::memory::{GuestMemory, SlotAddress};
use super::packed::PackedRing;
use super::request::{self, BadChain, Kind, Request};
use super::ring::Ring;
use super::split::SplitRing;
use crate::mem::{Alarm, Region, Regions, Window};
use proptest::prelude::*;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const SIZE: u16 = 8;
const DESC: u64 = 0;
const AVAIL: u64 = 0x1000;
const USED: u64 = 0x2000;
/// Offset of tables and data.
const DATA: u64 = 0x3000;
const BYTES: u64 = 0x8000;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// A guest with one slot of memory, whose guest and user addresses are offsets in it.
struct Guest {
    view: View,
    all: Window,
    ring: Ring,
    chain: Vec<Desc>,
}

impl Guest {
    fn new(packed: bool, event_idx: bool) -> Guest {
        Guest::at(packed, event_idx, if packed { 0x8000_8000 } else { 0 })
    }

    fn at(packed: bool, event_idx: bool, base: u32) -> Guest {
        let fd = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, BYTES).unwrap();
        let regions = Arc::new(Regions::new());
        let address = SlotAddress { guest: 0, user: 0, len: BYTES, file_offset: 0 };
        let memory = Arc::new(GuestMemory::new(Alarm::new().unwrap()).with(address, fd.as_fd(), &regions).unwrap());
        let same = Arc::new(Region::map_shared(fd.as_fd(), 0, BYTES as usize, &Alarm::new().unwrap()).unwrap());
        let all = Window::new(&same, 0, BYTES as usize, 1).unwrap();
        let features = RingFeatures { event_idx, indirect: true };
        let address = RingAddress { desc: DESC, avail: AVAIL, used: USED };
        let ring = if packed {
            Ring::Packed(PackedRing::new(&memory, address, SIZE, base, features).unwrap())
        } else {
            Ring::Split(SplitRing::new(&memory, address, SIZE, base as u16, features).unwrap())
        };
        Guest { view: View { memory, regions }, all, ring, chain: Vec::new() }
    }

    fn put(&self, table: u64, index: u16, addr: u64, len: u32, words: (u16, u16)) {
        let at = (table + 16 * u64::from(index)) as usize;
        self.all.store_u32(at, addr as u32, Relaxed);
        self.all.store_u32(at + 4, (addr >> 32) as u32, Relaxed);
        self.all.store_u32(at + 8, len, Relaxed);
        self.all.store_u16(at + 12, words.0, Relaxed);
        self.all.store_u16(at + 14, words.1, Relaxed);
    }

    /// Writes a descriptor of a split ring.
    fn split(&self, index: u16, addr: u64, len: u32, flags: u16, next: u16) {
        self.put(DESC, index, addr, len, (flags, next));
    }

    /// Makes heads of a split ring available.
    fn offer(&self, heads: &[u16]) {
        let idx = self.all.load_u16(AVAIL as usize + 2, Relaxed);
        for (i, head) in heads.iter().enumerate() {
            let slot = usize::from(idx.wrapping_add(i as u16) % SIZE);
            self.all.store_u16(AVAIL as usize + 4 + 2 * slot, *head, Relaxed);
        }
        self.all.store_u16(AVAIL as usize + 2, idx.wrapping_add(heads.len() as u16), Relaxed);
    }

    /// Writes a descriptor of a packed ring, available in the round that `wrap` gives.
    fn packed(&self, index: u16, addr: u64, len: u32, id: u16, flags: u16, wrap: bool) {
        let bits = if wrap { 1 << 7 } else { 1 << 15 };
        self.put(DESC, index, addr, len, (id, flags | bits));
    }

    fn next(&mut self) -> Result<Option<Head>, RingError> {
        self.ring.next(&self.view, &mut self.chain)
    }
}

fn desc(addr: u64, len: u32, write: bool) -> Desc {
    Desc { addr, len, write }
}

#[test]
fn a_split_chain_comes_out_and_goes_back() {
    let mut g = Guest::new(false, false);
    assert_eq!(g.next(), Ok(None));
    g.split(5, 0x100, 16, NEXT, 2);
    g.split(2, 0x200, 512, NEXT | WRITE, 7);
    g.split(7, 0x300, 1, WRITE, 0);
    g.offer(&[5]);
    assert_eq!(g.next(), Ok(Some(Head { id: 5, entries: 1, note: 0 })));
    assert_eq!(g.chain, [desc(0x100, 16, false), desc(0x200, 512, true), desc(0x300, 1, true)]);
    assert_eq!(g.next(), Ok(None));
    g.ring.add_used(Head { id: 5, entries: 1, note: 0 }, 513);
    assert_eq!(g.all.load_u16(USED as usize + 2, Relaxed), 0, "not published yet");
    g.ring.publish();
    assert_eq!(g.all.load_u16(USED as usize + 2, Relaxed), 1);
    assert_eq!((g.all.load_u32(USED as usize + 4, Relaxed), g.all.load_u32(USED as usize + 8, Relaxed)), (5, 513));
    assert!(g.ring.wants_signal() && !g.ring.wants_signal(), "once");
    g.all.store_u16(AVAIL as usize, 1, Relaxed);
    g.ring.add_used(Head { id: 5, entries: 1, note: 0 }, 1);
    g.ring.publish();
    assert!(!g.ring.wants_signal(), "the driver wants no interrupt");
    assert_eq!(g.ring.base(), 1);
}

#[test]
fn a_split_ring_goes_on_past_the_end_of_its_index() {
    let mut g = Guest::at(false, true, 0xfffe);
    g.all.store_u16(AVAIL as usize + 2, 0xfffe, Relaxed);
    g.split(0, 0x100, 16, 0, 0);
    for round in 0..4u16 {
        g.offer(&[0]);
        assert_eq!(g.next(), Ok(Some(Head { id: 0, entries: 1, note: 0 })));
        // The driver asks to be notified of the third one only.
        g.all.store_u16(AVAIL as usize + 4 + 2 * usize::from(SIZE), 2, Relaxed);
        g.ring.add_used(Head { id: 0, entries: 1, note: 0 }, 0);
        g.ring.publish();
        assert_eq!(g.ring.wants_signal(), round == 2);
    }
    g.ring.enable_kicks();
    assert_eq!(g.all.load_u16(USED as usize + 4 + 8 * usize::from(SIZE), Relaxed), 2, "kick me for the next");
}

#[test]
fn bad_split_chains_are_refused() {
    type Prepare = fn(&Guest);
    let cases: [(Prepare, RingError); 8] = [
        (|g| g.offer(&[8]), RingError::OutsideTable { index: 8, size: 8 }),
        (
            |g| {
                g.split(1, 0, 1, NEXT, 200);
                g.offer(&[1]);
            },
            RingError::OutsideTable { index: 200, size: 8 },
        ),
        (
            |g| {
                g.split(1, 0, 1, NEXT, 2);
                g.split(2, 0, 1, NEXT, 1);
                g.offer(&[1]);
            },
            RingError::Loop { most: 8 },
        ),
        (|g| g.offer(&[0; 9]), RingError::TooManyAvailable { index: 9, next: 0, size: 8 }),
        (
            |g| {
                g.split(0, DATA, 32, INDIRECT | NEXT, 1);
                g.offer(&[0]);
            },
            RingError::BadIndirect { flags: 5 },
        ),
        (
            |g| {
                g.split(0, DATA, 33, INDIRECT, 0);
                g.offer(&[0]);
            },
            RingError::IndirectLength { len: 33, most: 16416 },
        ),
        (
            |g| {
                g.split(0, BYTES - 8, 16, INDIRECT, 0);
                g.offer(&[0]);
            },
            RingError::IndirectAddress { addr: BYTES - 8 },
        ),
        (
            |g| {
                g.split(0, DATA, 32, INDIRECT, 0);
                g.put(DATA, 0, 0, 1, (INDIRECT, 0));
                g.offer(&[0]);
            },
            RingError::BadIndirect { flags: 4 },
        ),
    ];
    for (prepare, error) in cases {
        let mut g = Guest::new(false, false);
        prepare(&g);
        assert_eq!(g.next(), Err(error));
    }
}

#[test]
fn indirect_tables_are_read() {
    let mut g = Guest::new(false, false);
    g.put(DATA, 0, 0x10, 16, (NEXT, 2));
    g.put(DATA, 2, 0x20, 1, (WRITE, 0));
    g.split(3, DATA, 48, INDIRECT, 0);
    g.offer(&[3]);
    assert_eq!(g.next(), Ok(Some(Head { id: 3, entries: 1, note: 0 })));
    assert_eq!(g.chain, [desc(0x10, 16, false), desc(0x20, 1, true)]);
    // In a packed ring the table is the chain, whatever its ids say.
    let mut g = Guest::new(true, false);
    g.put(DATA, 0, 0x10, 16, (99, 0));
    g.put(DATA, 1, 0x20, 1, (0, WRITE));
    g.packed(0, DATA, 32, 77, INDIRECT, true);
    assert_eq!(g.next(), Ok(Some(Head { id: 77, entries: 1, note: 0 })));
    assert_eq!(g.chain, [desc(0x10, 16, false), desc(0x20, 1, true)]);
}

#[test]
fn packed_chains_wrap_and_come_back_in_another_order() {
    let mut g = Guest::new(true, false);
    let mut place = (0u16, true);
    for round in 0..20u16 {
        // Three descriptors each, so the ring of eight wraps in the middle of a chain.
        let mut at = place;
        for (i, flags) in [NEXT, NEXT | WRITE, WRITE].into_iter().enumerate() {
            g.packed(at.0, 0x100 * (i as u64 + 1), 8, round, flags, at.1);
            at = if at.0 + 1 == SIZE { (0, !at.1) } else { (at.0 + 1, at.1) };
        }
        let head = Head { id: round, entries: 3, note: 0 };
        assert_eq!(g.next(), Ok(Some(head)));
        assert_eq!(g.chain.len(), 3);
        assert_eq!(g.next(), Ok(None));
        g.ring.add_used(head, 9);
        g.ring.publish();
        let flags = g.all.load_u16(usize::from(place.0) * 16 + 14, Relaxed);
        assert_eq!((flags & 0x8000 != 0, flags & 0x80 != 0), (place.1, place.1), "used in this time round");
        assert_eq!(g.all.load_u16(usize::from(place.0) * 16 + 12, Relaxed), round);
        assert!(g.ring.wants_signal());
        place = at;
    }
    let bits = u32::from(place.0) | u32::from(place.1) << 15;
    assert_eq!(g.ring.base(), bits | bits << 16);
}

#[test]
fn packed_used_descriptors_are_shown_together_by_the_first() {
    let mut g = Guest::new(true, false);
    for i in 0..3 {
        g.packed(i, 0, 16, i, 0, true);
        assert!(g.next().unwrap().is_some());
    }
    (0..3).for_each(|id| g.ring.add_used(Head { id, entries: 1, note: 0 }, 0));
    let flags = |g: &Guest, i: usize| g.all.load_u16(16 * i + 14, Relaxed) & 0x8080;
    assert_eq!([flags(&g, 0), flags(&g, 1), flags(&g, 2)], [0x80, 0x8080, 0x8080]);
    g.ring.publish();
    assert_eq!(flags(&g, 0), 0x8080);
}

#[test]
fn packed_signals_follow_the_drivers_event() {
    let mut g = Guest::new(true, true);
    let mut signalled = Vec::new();
    for i in 0..12u16 {
        let (index, wrap) = (i % SIZE, i < SIZE);
        g.packed(index, 0, 16, 0, 0, wrap);
        let head = g.next().unwrap().unwrap();
        // Notify at descriptor 1, in the second round.
        g.all.store_u16(AVAIL as usize, 1, Relaxed);
        g.all.store_u16(AVAIL as usize + 2, 2, Relaxed);
        g.ring.add_used(head, 0);
        g.ring.publish();
        if g.ring.wants_signal() {
            signalled.push(i);
        }
    }
    assert_eq!(signalled, [9]);
    g.all.store_u16(AVAIL as usize + 2, 1, Relaxed);
    g.packed(4, 0, 16, 0, 0, false);
    let head = g.next().unwrap().unwrap();
    g.ring.add_used(head, 0);
    g.ring.publish();
    assert!(!g.ring.wants_signal(), "events are off");
}

#[test]
fn a_packed_chain_that_the_driver_has_not_finished_is_refused() {
    let mut g = Guest::new(true, false);
    g.packed(0, 0, 16, 0, NEXT, true);
    assert_eq!(g.next(), Err(RingError::Unfinished));
    for i in 0..SIZE {
        g.packed(i, 0, 16, 0, NEXT, true);
    }
    assert!(g.next().is_err(), "a chain longer than the ring");
}

/// Returns the descriptors of a request that is split at `cuts`.
fn framed(readable: u32, writable: u32, cuts: &[u32]) -> Vec<Desc> {
    let mut chain = Vec::new();
    for (start, len, write) in [(DATA, readable, false), (DATA + 0x2000, writable, true)] {
        let mut at: Vec<u32> = cuts.iter().map(|c| c % len.max(1)).chain([0, len]).collect();
        at.sort_unstable();
        for pair in at.windows(2).filter(|p| p[0] < p[1]) {
            chain.push(desc(start + u64::from(pair[0]), pair[1] - pair[0], write));
        }
    }
    chain
}

fn parse(g: &Guest, chain: &[Desc]) -> (Result<Request, BadChain>, Vec<(u64, u32)>) {
    let (mut segments, mut hint) = (Vec::new(), 0);
    let request = request::parse(&g.view, chain, &mut segments, &mut hint);
    (request, segments)
}

fn header(g: &Guest, kind: u32, sector: u32) {
    g.all.store_u32(DATA as usize, kind, Relaxed);
    g.all.store_u32(DATA as usize + 8, sector, Relaxed);
}

proptest! {
    #[test]
    fn any_framing_of_a_request_means_the_same(write: bool, cuts in prop::collection::vec(0u32..5000, 0..9)) {
        let g = Guest::new(false, false);
        header(&g, u32::from(write), 77);
        let (readable, writable) = if write { (16 + 4096, 1) } else { (16, 4097) };
        let (request, segments) = parse(&g, &framed(readable, writable, &cuts));
        let request = request.unwrap();
        prop_assert_eq!((request.kind, request.sector, request.bytes), (if write { Kind::Out } else { Kind::In }, 77, 4096));
        prop_assert_eq!(request.status.offset(), DATA + 0x2000 + u64::from(writable) - 1);
        let mut next = if write { DATA + 16 } else { DATA + 0x2000 };
        for (addr, len) in segments {
            prop_assert_eq!(addr, next);
            next += u64::from(len);
        }
        prop_assert_eq!(next, if write { DATA + 16 + 4096 } else { DATA + 0x2000 + 4096 });
    }

    /// Whatever is in the memory of a ring: no panic, no chain longer than allowed, and reading terminates.
    #[test]
    fn random_memory_is_survived(packed: bool, seed: u64, offered in 0u16..20) {
        let mut g = Guest::new(packed, true);
        let mut state = seed | 1;
        for at in (0..BYTES as usize).step_by(8) {
            // Small numbers are more frequent, because random addresses and lengths would all be refused at once.
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let keep = if state >> 62 == 0 { u64::MAX } else { 0x0003_0007_0000_7fff };
            let word = (state >> 7) & keep;
            g.all.store_u32(at, word as u32, Relaxed);
            g.all.store_u32(at + 4, (word >> 32) as u32, Relaxed);
        }
        g.all.store_u16(AVAIL as usize + 2, offered, Relaxed);
        for _ in 0..32 {
            match g.next() {
                Ok(Some(head)) => {
                    prop_assert!(g.chain.len() <= 1026);
                    let (request, segments) = parse(&g, &g.chain.clone());
                    if request.is_ok() {
                        prop_assert!(segments.len() <= g.chain.len());
                    }
                    g.ring.add_used(head, 0);
                    g.ring.publish();
                    g.ring.wants_signal();
                }
                Ok(None) | Err(_) => break,
            }
        }
    }
}

#[test]
fn a_chain_that_is_no_request_breaks_the_queue() {
    let g = Guest::new(false, false);
    header(&g, 0, 0);
    let (head, status) = (desc(DATA, 16, false), desc(DATA + 64, 1, true));
    let bad = |chain: &[Desc]| parse(&g, chain).0.unwrap_err();
    assert_eq!(bad(&[head]), BadChain::NoStatus);
    assert_eq!(bad(&[]), BadChain::NoStatus);
    assert_eq!(bad(&[status]), BadChain::ShortHeader { bytes: 0 });
    assert_eq!(bad(&[desc(DATA, 15, false), status]), BadChain::ShortHeader { bytes: 15 });
    assert_eq!(bad(&[head, desc(DATA + 64, 0, true)]), BadChain::NoStatus);
    assert_eq!(bad(&[head, desc(BYTES, 1, true)]), BadChain::Outside { addr: BYTES });
    assert_eq!(bad(&[desc(BYTES - 8, 16, false), status]), BadChain::Outside { addr: BYTES });
    assert_eq!(bad(&[head, status, head, status]), BadChain::Order);
    assert_eq!(bad(&[head, desc(u64::MAX, 2, true)]), BadChain::Outside { addr: u64::MAX });
}
