// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A virtqueue with the least cost that a correct driver can have: chains, headers and buffers are written once for each slot, and
//! reused.
//!
//! Guarantees: a completed request was in flight, is returned once, and its status byte is checked. Kicks are sent when the device asks for
//! them (EVENT_IDX, or the ring's flags); calls are enabled only while a thread waits; every wait has a timeout. Per request it writes an
//! entry of the available ring (packed: the chain's descriptors) and reads a used one and a status. Per batch there is one barrier and at
//! most one kick. References into guest memory are checked once, when the queue is made.
//! Needs: chains written by [`Raw::lay`] to a ring that nothing else uses, neither before nor afterwards. Does not compare data. A device
//! that does not write the status byte is detected only after [`FixedQueue::rewrite`]: otherwise the byte holds the slot's previous status.
//! Source: virtio 1.2, 2.7 and 2.8; 5.2.6 for the request.

mod packed;
mod split;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::epoll;

use super::block::{self, BlockRequest, NO_STATUS};
use super::guest::Guest;
use super::message::{feature, timespec};
use super::ring::{INDIRECT, NEXT, Ring, WRITE, descriptor};
use super::{Format, Raw};
use crate::error::Error;
use crate::phases::silent;
use packed::Packed;
use split::Split;

/// A descriptor without the fields that depend on its ring position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    addr: u64,
    len: u32,
    flags: u16,
}

/// The chains of a virtqueue's slots, written by [`Raw::lay`].
pub struct Slots {
    requests: Vec<BlockRequest>,
    chains: Vec<Vec<Piece>>,
    /// Split: the first descriptor of each chain.
    heads: Vec<u16>,
}

enum Wires<'g> {
    Split(Split<'g>),
    Packed(Packed<'g>),
}

/// A virtqueue in use.
pub struct FixedQueue<'g> {
    wires: Wires<'g>,
    status: Vec<&'g AtomicU8>,
    sectors: Vec<&'g AtomicU64>,
    kick: Option<&'g OwnedFd>,
    /// Epoll set with only the call descriptor, edge-triggered, so that a wait is one system call.
    calls: Option<OwnedFd>,
    in_flight: usize,
    kicks: u64,
}

impl Raw {
    /// Writes a chain for each of `requests`, direct or in an indirect table of its own, for [`Raw::fixed_queue`].
    ///
    /// # Errors
    /// If the ring has no room for all chains at once, or guest memory has no room for the tables.
    pub fn lay(&mut self, queue: u16, requests: Vec<BlockRequest>, is_indirect: bool) -> Result<Slots, Error> {
        let ring = self.ring(queue)?.0.clone();
        let (mut chains, mut heads, mut slot) = (Vec::new(), Vec::new(), 0u16);
        for request in &requests {
            let chain = if is_indirect { vec![self.table(ring.format, request)?] } else { pieces(request) };
            if usize::from(slot) + chain.len() > usize::from(ring.size) {
                let (size, all) = (ring.size, requests.len());
                return Err(Error::Usage(format!("{all} chains of {}: the ring has {size} descriptors", chain.len())));
            }
            heads.push(slot);
            if ring.format == Format::Split {
                for (i, piece) in (slot..).zip(&chain) {
                    ring.write_desc(&self.guest, i, piece.addr, piece.len, piece.flags, i + 1)?;
                }
            }
            slot += chain.len() as u16;
            chains.push(chain);
        }
        Ok(Slots { requests, chains, heads })
    }

    /// Writes an indirect table for a request's chain. Returns the descriptor that refers to it. Packed tables have no NEXT flag: their
    /// order is that of the chain (2.8.7).
    fn table(&mut self, format: Format, request: &BlockRequest) -> Result<Piece, Error> {
        let pieces = pieces(request);
        let len = 16 * pieces.len();
        let at = self.guest.take(len, 16)?;
        let bytes = (1u16..).zip(&pieces).flat_map(|(next, piece)| match format {
            Format::Split => descriptor(format, piece.addr, piece.len, piece.flags, next),
            Format::Packed => descriptor(format, piece.addr, piece.len, piece.flags & !NEXT, 0),
        });
        self.guest.write(at, &bytes.collect::<Vec<u8>>())?;
        Ok(Piece { addr: at, len: len as u32, flags: INDIRECT })
    }

    /// Makes a started virtqueue usable with `slots`, which [`Raw::lay`] wrote for it.
    ///
    /// # Errors
    /// If the queue was not started, its ring was already used, or the system has no file descriptor left.
    pub fn fixed_queue(&self, queue: u16, slots: &Slots) -> Result<FixedQueue<'_>, Error> {
        let found = self.queues.get(&queue).ok_or_else(|| super::not_started(queue))?;
        let (guest, ring): (&Guest, &Ring) = (&self.guest, &found.ring);
        if ring.position() != 0 {
            return Err(Error::Usage(format!("virtqueue {queue}: its ring was already used without a fixed queue")));
        }
        let has_event_idx = self.agreed() & feature::EVENT_IDX != 0;
        let wires = match ring.format {
            Format::Split => Wires::Split(Split::new(guest, ring, slots.heads.clone(), has_event_idx)?),
            Format::Packed => Wires::Packed(Packed::new(guest, ring, slots.chains.clone(), has_event_idx)?),
        };
        let calls = found.call.as_ref().map(|call| {
            let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            epoll::add(&set, call, epoll::EventData::new_u64(0), epoll::EventFlags::IN | epoll::EventFlags::ET)?;
            Ok(set)
        });
        let mut fixed = FixedQueue {
            wires,
            status: slots.requests.iter().map(|r| guest.atomic(r.status)).collect::<Result<_, _>>()?,
            sectors: slots.requests.iter().map(|r| guest.atomic(r.header + 8)).collect::<Result<_, _>>()?,
            kick: found.kick.as_ref(),
            calls: calls.transpose().map_err(Error::io::<rustix::io::Errno>("epoll"))?,
            in_flight: 0,
            kicks: 0,
        };
        fixed.refuse_calls();
        Ok(fixed)
    }
}

impl FixedQueue<'_> {
    /// Changes the sector of a slot that is not in flight, and resets its status byte.
    #[inline]
    pub fn rewrite(&mut self, slot: usize, sector: u64) {
        self.sectors[slot].store(sector.to_le(), Ordering::Relaxed);
        self.status[slot].store(NO_STATUS, Ordering::Relaxed);
    }

    /// Puts a slot's request, which must not be in flight, on the ring. Call [`Self::show`] afterwards.
    #[inline]
    pub fn put(&mut self, slot: usize) {
        self.in_flight += 1;
        match &mut self.wires {
            Wires::Split(split) => split.put(slot),
            Wires::Packed(packed) => packed.put(slot),
        }
    }

    /// Makes all requests that were put visible to the device, and kicks the device if it asks for a kick.
    ///
    /// # Errors
    /// When the kick fails.
    #[inline]
    pub fn show(&mut self) -> Result<(), Error> {
        let is_wanted = match &mut self.wires {
            Wires::Split(split) => split.show(),
            Wires::Packed(packed) => packed.show(),
        };
        match self.kick {
            Some(kick) if is_wanted => {
                self.kicks += 1;
                super::notify(kick)
            }
            _ => Ok(()),
        }
    }

    /// Calls `each` with the queue and the slot of each completed request, in the ring's order; `each` may put the slot again. Returns how
    /// many completed: at most as many as were in flight at the start of the call.
    ///
    /// # Errors
    /// If the used ring is invalid, or a status is not OK.
    #[inline]
    pub fn take_all(&mut self, mut each: impl FnMut(&mut Self, usize)) -> Result<usize, Error> {
        if let Wires::Split(split) = &mut self.wires {
            split.look()?;
        }
        let most = self.in_flight;
        for count in 0..most {
            let taken = match &mut self.wires {
                Wires::Split(split) => split.take()?,
                Wires::Packed(packed) => packed.take()?,
            };
            let Some(slot) = taken else { return Ok(count) };
            let status = self.status[slot].load(Ordering::Relaxed);
            if status != block::OK {
                return Err(Error::Server(format!("a request ended with status {status}")));
            }
            self.in_flight -= 1;
            each(self, slot);
        }
        Ok(most)
    }

    /// Waits until a request has completed; a pending call may end the wait early.
    ///
    /// # Errors
    /// If there is no call within `patience`, or the queue has no call descriptor.
    pub fn wait(&mut self, patience: Duration) -> Result<(), Error> {
        let Some(calls) = &self.calls else {
            return Err(Error::Usage("a virtqueue without a call descriptor cannot be waited for".into()));
        };
        let is_there = match &mut self.wires {
            Wires::Split(split) => split.ask_for_call(),
            Wires::Packed(packed) => packed.ask_for_call(),
        };
        if !is_there {
            let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }];
            // A pending call of an earlier completion can only end the wait early.
            let count = epoll::wait(calls.as_fd(), &mut events[..], Some(&timespec(patience)));
            if count.map_err(Error::io("epoll_wait"))? == 0 {
                return Err(silent(patience));
            }
        }
        self.refuse_calls();
        Ok(())
    }

    fn refuse_calls(&mut self) {
        match &mut self.wires {
            Wires::Split(split) => split.refuse_calls(),
            Wires::Packed(packed) => packed.refuse_calls(),
        }
    }

    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the number of kicks so far.
    pub fn kicks(&self) -> u64 {
        self.kicks
    }
}

fn not_there(id: u32) -> Error {
    Error::Server(format!("the device completed request {id}, which is not in flight"))
}

fn pieces(request: &BlockRequest) -> Vec<Piece> {
    let segments = request.segments();
    let last = segments.len() - 1;
    let flags = |i, write| if i < last { NEXT } else { 0 } | if write { WRITE } else { 0 };
    let all = segments.iter().enumerate();
    all.map(|(i, s)| Piece { addr: s.addr, len: s.len, flags: flags(i, s.write) }).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::net::UnixStream;

    use rustix::event::{EventfdFlags, eventfd};

    use super::super::message::Channel;
    use super::super::ring::{AVAIL, USED};
    use super::super::{Queue, notify};
    use super::*;

    const RING: u16 = 8;

    /// A connection without a server, with a virtqueue of 8 descriptors, and two slots of direct chains in it or four of indirect.
    fn raw(format: Format, features: u64, is_indirect: bool) -> (Raw, Slots, Ring) {
        let channel = Channel::over(UnixStream::pair().unwrap().0, Duration::from_secs(1));
        let mut raw = Raw { channel, guest: Guest::default(), protocol: 0, features, queues: BTreeMap::new() };
        raw.guest.add(0x1000, 1 << 20).unwrap();
        let ring = Ring::apart(&mut raw.guest, format, RING, block::LINE).unwrap();
        let fd = || Some(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        raw.queues.insert(0, Queue { ring: ring.clone(), kick: fd(), call: fd() });
        let count = if is_indirect { 4 } else { 2 };
        let requests = BlockRequest::apart(&mut raw.guest, block::IN, count, 512, |i| i as u64).unwrap();
        let slots = raw.lay(0, requests, is_indirect).unwrap();
        (raw, slots, ring)
    }

    fn taken(fixed: &mut FixedQueue<'_>) -> Result<Vec<usize>, Error> {
        let mut slots = Vec::new();
        fixed.take_all(|_, slot| slots.push(slot))?;
        Ok(slots)
    }

    fn end(raw: &Raw, slots: &Slots, slot: usize, status: u8) {
        raw.guest.write(slots.requests[slot].status, &[status]).unwrap();
    }

    /// The device's side of a split ring: completes `id` as used entry `index`.
    fn end_split(raw: &Raw, ring: &Ring, index: u16, id: u32) {
        raw.guest.store(ring.device + 4 + 8 * u64::from(index % RING), id).unwrap();
        raw.guest.store(ring.device + 2, index.wrapping_add(1)).unwrap();
    }

    /// The device's side of a packed ring: completes `id` in ring slot `at`, in the lap of `wrap`.
    fn end_packed(raw: &Raw, ring: &Ring, at: u16, id: u16, wrap: bool) {
        let place = ring.desc + 16 * u64::from(at);
        raw.guest.store(place + 12, id).unwrap();
        raw.guest.store(place + 14, if wrap { AVAIL | USED } else { 0u16 }).unwrap();
    }

    #[test]
    fn an_index_passes_an_event_once_even_across_wrap_around() {
        for (event, new, old, passed) in [
            (5, 6, 5, true),
            (5, 5, 4, false),
            (5, 9, 6, false),
            (5, 9, 5, true),
            (65535, 1, 65534, true),
            (0, 1, 65534, true),
            (1, 1, 65534, false),
        ] {
            assert_eq!(split::has_passed(event, new, old), passed, "{event} {old}..{new}");
        }
    }

    #[test]
    fn a_split_device_is_shown_heads_and_kicked_when_it_wants_it() {
        let (raw, slots, ring) = raw(Format::Split, feature::EVENT_IDX, false);
        let mut fixed = raw.fixed_queue(0, &slots).unwrap();
        let avail_event = ring.device + 4 + 8 * u64::from(RING);
        let mut next = 0u16;
        for lap in 0..70_000u32 {
            // The device asks for a kick at every third request.
            let event = (lap - lap % 3) as u16;
            raw.guest.store(avail_event, event).unwrap();
            fixed.put(1);
            assert_eq!(raw.guest.load::<u16>(ring.driver + 2).unwrap(), next, "shown too early");
            let before = fixed.kicks();
            fixed.show().unwrap();
            assert_eq!(fixed.kicks() - before, u64::from(lap % 3 == 0), "lap {lap}");
            let at = ring.driver + 4 + 2 * u64::from(next % RING);
            assert_eq!(raw.guest.load::<u16>(at).unwrap(), 3, "the head of the second slot");
            end(&raw, &slots, 1, block::OK);
            end_split(&raw, &ring, next, 3);
            assert_eq!(taken(&mut fixed).unwrap(), [1]);
            next = next.wrapping_add(1);
        }
        assert_eq!(fixed.in_flight(), 0);
    }

    #[test]
    fn without_event_idx_flags_suppress_signals() {
        let (raw, slots, ring) = raw(Format::Split, 0, true);
        let mut fixed = raw.fixed_queue(0, &slots).unwrap();
        assert_eq!(raw.guest.load::<u16>(ring.driver).unwrap(), 1, "calls are not wanted");
        raw.guest.store(ring.device, 1u16).unwrap();
        fixed.put(0);
        fixed.show().unwrap();
        assert_eq!(fixed.kicks(), 0);
        raw.guest.store(ring.device, 0u16).unwrap();
        fixed.put(1);
        fixed.show().unwrap();
        fixed.show().unwrap();
        assert_eq!(fixed.kicks(), 1, "nothing new is no reason");
        let silence = fixed.wait(Duration::from_millis(1)).unwrap_err().to_string();
        assert!(silence.contains("completed no request"), "{silence}");
        assert_eq!(raw.guest.load::<u16>(ring.driver).unwrap(), 0, "a wait wants calls");
        // A call ends the wait, whether it arrives before or during it.
        notify(raw.queues[&0].call.as_ref().unwrap()).unwrap();
        fixed.wait(Duration::from_secs(20)).unwrap();
        assert_eq!(raw.guest.load::<u16>(ring.driver).unwrap(), 1);
        // A request that has already completed needs no call.
        end(&raw, &slots, 1, block::OK);
        end_split(&raw, &ring, 0, 1);
        fixed.wait(Duration::from_millis(1)).unwrap();
        assert_eq!(taken(&mut fixed).unwrap(), [1]);
    }

    #[test]
    fn a_split_device_that_ends_what_it_has_not_is_found_out() {
        for (what, id, index, words) in [
            ("of another slot", 3u32, 0u16, "request 3, which is not in flight"),
            ("beyond the table", 70_000, 0, "request 70000, which is not in flight"),
            ("the middle of a chain", 1, 0, "request 1, which is not in flight"),
            ("too many", 0, 1, "used index 2 after 0: must advance by at most 1"),
        ] {
            let (raw, slots, ring) = raw(Format::Split, feature::EVENT_IDX, false);
            let mut fixed = raw.fixed_queue(0, &slots).unwrap();
            fixed.put(0);
            fixed.show().unwrap();
            end(&raw, &slots, 0, block::OK);
            end_split(&raw, &ring, index, id);
            let error = taken(&mut fixed).unwrap_err().to_string();
            assert!(error.contains(words), "{what}: {error}");
        }
    }

    #[test]
    fn a_bad_or_unwritten_status_is_an_error() {
        for (status, words) in [(block::IOERR, "status 1"), (block::NO_STATUS, "status 238")] {
            let (raw, slots, ring) = raw(Format::Split, feature::EVENT_IDX, true);
            let mut fixed = raw.fixed_queue(0, &slots).unwrap();
            end(&raw, &slots, 2, block::OK);
            fixed.rewrite(2, 77);
            assert_eq!(raw.guest.read(slots.requests[2].header + 8, 8).unwrap(), 77u64.to_le_bytes());
            fixed.put(2);
            fixed.show().unwrap();
            if status != block::NO_STATUS {
                end(&raw, &slots, 2, status);
            }
            end_split(&raw, &ring, 0, 2);
            let error = taken(&mut fixed).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn packed_chains_are_whole_in_both_laps_and_kicks_are_asked() {
        let (raw, slots, ring) = raw(Format::Packed, feature::EVENT_IDX, false);
        let mut fixed = raw.fixed_queue(0, &slots).unwrap();
        let (mut at, mut wrap) = (0u16, true);
        for turn in 0..40u16 {
            let slot = usize::from(turn % 2);
            // The device asks for a kick at the middle of this chain, or only a lap later.
            let wants = turn % 3 == 0;
            let (middle, its_wrap) = if at + 1 < RING { (at + 1, wrap) } else { (0, !wrap) };
            let event = middle | u16::from(its_wrap == wants) << 15;
            raw.guest.store(ring.device, u32::from(event) | 2 << 16).unwrap();
            let before = fixed.kicks();
            fixed.put(slot);
            fixed.show().unwrap();
            assert_eq!(fixed.kicks() - before, u64::from(wants), "turn {turn}");
            let (mut here, mut lap) = (at, wrap);
            for (i, flags) in [NEXT, NEXT | WRITE, WRITE].into_iter().enumerate() {
                let place = ring.desc + 16 * u64::from(here);
                let shown = flags | if lap { AVAIL } else { USED };
                assert_eq!(raw.guest.load::<u16>(place + 14).unwrap(), shown, "turn {turn}, descriptor {i}");
                assert_eq!(raw.guest.load::<u64>(place).unwrap(), slots.chains[slot][i].addr);
                (here, lap) = if here + 1 == RING { (0, !lap) } else { (here + 1, lap) };
            }
            assert!(taken(&mut fixed).unwrap().is_empty());
            end(&raw, &slots, slot, block::OK);
            end_packed(&raw, &ring, at, slot as u16, wrap);
            assert_eq!(taken(&mut fixed).unwrap(), [slot], "turn {turn}");
            assert!(fixed.wait(Duration::from_millis(1)).is_err());
            assert_eq!(raw.guest.load::<u16>(ring.driver).unwrap(), here | u16::from(lap) << 15, "asked for the next");
            fixed.refuse_calls();
            (at, wrap) = (here, lap);
        }
        fixed.put(1);
        end_packed(&raw, &ring, at, 0, wrap);
        assert!(taken(&mut fixed).unwrap_err().to_string().contains("request 0, which is not in flight"));
    }

    #[test]
    fn what_does_not_fit_into_the_ring_is_refused() {
        let (mut raw, _, _) = raw(Format::Split, 0, true);
        let requests = BlockRequest::apart(&mut raw.guest, block::IN, 3, 512, |_| 0).unwrap();
        let error = raw.lay(0, requests, false).err().unwrap().to_string();
        assert!(error.contains("3 chains of 3: the ring has 8 descriptors"), "{error}");
    }
}
