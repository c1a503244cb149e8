// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Faults of the requests at one port.
//!
//! Guarantees: each piece of a request ends once, here or at the disk. A delayed piece waits until its time, the end of its rule, or until the
//! disk gives up what is in flight; [`Injection::delayed`] counts it. A write is torn once, at a block of any of its pieces. Pieces with the
//! same user data and operation in one round belong to one request: while it is in flight, no other request has its number.

use super::{Fault, Hit, Injection};
use blk::bio::{Bio, Op};
use blk::id::{SECTOR_SHIFT, SECTOR_SIZE};
use blk::rmw::ByteIo;
use blk::status::BlkStatus;
use blk::submitter::Done;
use blk::time::Instant;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// A request, or a piece of one, as an export passes it on.
#[derive(Clone, Copy, Debug)]
pub(in crate::serve) enum ClientIo {
    /// In sectors, or a flush.
    Bio(Bio),
    /// In bytes.
    Bytes(ByteIo),
}

impl ClientIo {
    fn op(&self) -> Op {
        match self {
            ClientIo::Bio(bio) => bio.op,
            ClientIo::Bytes(io) => io.op,
        }
    }

    fn user_data(&self) -> u64 {
        match self {
            ClientIo::Bio(bio) => bio.user_data,
            ClientIo::Bytes(io) => io.user_data,
        }
    }

    /// Returns its range in bytes.
    fn range(&self) -> Range<u64> {
        let (start, bytes) = match self {
            ClientIo::Bio(bio) => (bio.sector.0 << SECTOR_SHIFT, u64::from(bio.nr_sectors) << SECTOR_SHIFT),
            ClientIo::Bytes(io) => (io.offset, io.bytes),
        };
        start..start.saturating_add(bytes)
    }

    /// Returns the sectors that it touches.
    fn sectors(&self) -> Range<u64> {
        let Range { start, end } = self.range();
        start >> SECTOR_SHIFT..end.div_ceil(u64::from(SECTOR_SIZE))
    }

    /// Returns the part before the byte `end` of the disk; `None` if there is nothing.
    fn before(self, end: u64) -> Option<ClientIo> {
        let range = self.range();
        let bytes = end.min(range.end).saturating_sub(range.start);
        let part = match self {
            ClientIo::Bio(bio) => ClientIo::Bio(Bio { nr_sectors: (bytes >> SECTOR_SHIFT) as u32, ..bio }),
            ClientIo::Bytes(io) => ClientIo::Bytes(ByteIo { bytes, ..io }),
        };
        (bytes > 0).then_some(part)
    }
}

/// A request whose pieces are being passed on.
struct InPieces {
    user_data: u64,
    op: Op,
    hit: Option<Hit>,
    /// The rules that it has met without a hit.
    missed: Vec<u32>,
}

/// A delayed piece.
struct Delayed {
    io: ClientIo,
    /// Number of the rule.
    rule: u32,
}

/// A write that will be torn when all its pieces are here.
struct Torn {
    user_data: u64,
    random: u64,
    pieces: Vec<ClientIo>,
}

/// See the module's text.
#[derive(Default)]
pub(in crate::serve) struct PortFaults {
    /// The request whose pieces came last in this round.
    request: Option<InPieces>,
    /// What has ended without the disk.
    ended: Vec<Done>,
    /// Delayed pieces by the time at which they reach the disk, and their order.
    delayed: BTreeMap<(Instant, u64), Delayed>,
    /// Number of pieces that were delayed so far.
    delays: u64,
    /// Writes of this round that will be torn.
    torn: Vec<Torn>,
    /// User data of each piece of a torn write that is at the disk.
    torn_at_disk: Vec<u64>,
    /// [`Injection::removals`] when `delayed` was compared with the rules.
    seen: u64,
}

impl PortFaults {
    /// Takes a request, or a piece of one, from a client. Returns what reaches the disk now.
    pub(in crate::serve) fn admit(&mut self, io: ClientIo, injection: &Injection, now: Instant) -> Option<ClientIo> {
        let Some(Hit { rule, fault, random }) = self.hit(&io, injection) else { return Some(io) };
        match fault {
            Fault::Error(status) => self.ended.push(Done { user_data: io.user_data(), op: io.op(), status }),
            Fault::Delay(time) => {
                self.delays += 1;
                // Relaxed: only a count.
                injection.delayed.fetch_add(1, Ordering::Relaxed);
                self.delayed.insert((now + time, self.delays), Delayed { io, rule });
            }
            Fault::Torn => {
                let user_data = io.user_data();
                match self.torn.last_mut().filter(|torn| torn.user_data == user_data) {
                    Some(torn) => torn.pieces.push(io),
                    None => self.torn.push(Torn { user_data, random, pieces: vec![io] }),
                }
            }
        }
        None
    }

    /// Returns the decision about the request that `io` belongs to.
    fn hit(&mut self, io: &ClientIo, injection: &Injection) -> Option<Hit> {
        let (user_data, op) = (io.user_data(), io.op());
        if !self.request.as_ref().is_some_and(|r| r.user_data == user_data && r.op == op) {
            self.request = Some(InPieces { user_data, op, hit: None, missed: Vec::new() });
        }
        let request = self.request.as_mut()?;
        if request.hit.is_none() {
            request.hit = injection.decide(op, &io.sectors(), &mut request.missed);
        }
        request.hit
    }

    /// Makes pieces due whose rule was removed, or all if the disk gives up.
    pub(in crate::serve) fn follow(&mut self, injection: &Injection) {
        let removals = injection.removals();
        let is_removed = std::mem::replace(&mut self.seen, removals) != removals;
        // Relaxed: the wake-up that follows orders it.
        let gives_up = injection.gives_up.load(Ordering::Relaxed);
        if self.delayed.is_empty() || !(is_removed || gives_up) {
            return;
        }
        let rules = injection.rules();
        let is_ended = |delayed: &Delayed| gives_up || rules.iter().all(|rule| rule.id != delayed.rule);
        let due = |((at, number), delayed)| ((if is_ended(&delayed) { Instant::ZERO } else { at }, number), delayed);
        self.delayed = std::mem::take(&mut self.delayed).into_iter().map(due).collect();
    }

    /// Takes a delayed piece that reaches the disk now.
    pub(in crate::serve) fn take_due(&mut self, injection: &Injection, now: Instant) -> Option<ClientIo> {
        let first = self.delayed.first_entry().filter(|first| first.key().0 <= now)?;
        // Relaxed: only a count.
        injection.delayed.fetch_sub(1, Ordering::Relaxed);
        Some(first.remove().io)
    }

    /// Returns when the next piece is due.
    pub(in crate::serve) fn next_due(&self) -> Option<Instant> {
        self.delayed.first_key_value().map(|((at, _), _)| *at)
    }

    /// Whether [`PortFaults::tear`] has something to do in this round.
    pub(in crate::serve) fn has_torn(&self) -> bool {
        !self.torn.is_empty()
    }

    /// Tears the writes whose pieces came in this round, at blocks of `block` bytes. `pass_on` gets what reaches the disk.
    pub(in crate::serve) fn tear(&mut self, block: u64, mut pass_on: impl FnMut(ClientIo)) {
        for Torn { user_data, random, pieces } in std::mem::take(&mut self.torn) {
            let start = pieces.iter().map(|piece| piece.range().start).min().unwrap_or(0);
            let end = pieces.iter().map(|piece| piece.range().end).max().unwrap_or(0);
            let at = tear_point(start..end, block, random);
            for piece in pieces {
                match piece.before(at) {
                    Some(kept) => {
                        self.torn_at_disk.push(user_data);
                        pass_on(kept);
                    }
                    None => self.ended.push(Done { user_data, op: piece.op(), status: BlkStatus::IoErr }),
                }
            }
        }
    }

    /// Ends a round: torn writes in `done[from..]` fail, and what has ended here is appended.
    pub(in crate::serve) fn end(&mut self, done: &mut Vec<Done>, from: usize) {
        self.request = None;
        for d in done.iter_mut().skip(from).filter(|d| d.op == Op::Write) {
            let Some(at) = self.torn_at_disk.iter().position(|user_data| *user_data == d.user_data) else { continue };
            self.torn_at_disk.swap_remove(at);
            if d.status.is_ok() {
                d.status = BlkStatus::IoErr;
            }
        }
        done.append(&mut self.ended);
    }

    /// Whether no request is here.
    pub(in crate::serve) fn is_idle(&self) -> bool {
        self.ended.is_empty() && self.delayed.is_empty() && self.torn.is_empty() && self.torn_at_disk.is_empty()
    }
}

/// Returns the byte at which a write is torn: its first byte, or the beginning of a block inside it.
fn tear_point(range: Range<u64>, block: u64, random: u64) -> u64 {
    let Range { start, end } = range;
    let inside = (end.max(start + 1) - 1) / block - start / block;
    match random % (inside + 1) {
        0 => start,
        n => (start / block + n) * block,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::rule;
    use super::super::{FaultRule, Injection};
    use super::*;
    use blk::bio::DataRef;
    use blk::id::Sector;
    use blk::time::Duration;
    use std::collections::BTreeSet;

    const NOW: Instant = Instant::ZERO;

    fn write(user_data: u64, sector: u64) -> ClientIo {
        ClientIo::Bio(Bio::write(Sector(sector), 8, DataRef::NONE).with_user_data(user_data))
    }

    #[test]
    fn a_request_in_pieces_meets_each_rule_once() {
        let injection = Injection::default();
        let medium = rule(Fault::Error(BlkStatus::Medium));
        injection.add(FaultRule { probability: 0.5, ..medium.clone() }).unwrap();
        let mut faults = PortFaults::default();
        let mut failed = 0;
        for request in 0..100 {
            let passed =
                (0..8).filter(|piece| faults.admit(write(request, 8 * piece), &injection, NOW).is_some()).count();
            assert!(passed == 0 || passed == 8, "{passed} of 8 pieces passed");
            let mut done = Vec::new();
            faults.end(&mut done, 0);
            assert_eq!(done.len(), 8 - passed);
            assert!(done.iter().all(|d| d.user_data == request && d.status == BlkStatus::Medium));
            failed += usize::from(passed == 0);
        }
        assert_eq!(injection.hits(), failed as u64);
        assert!((20..80).contains(&failed), "{failed}");
        // A piece outside of the sectors may pass before one inside fails.
        injection.remove(None);
        injection.add(FaultRule { sectors: Some(8..9), count: Some(1), ..medium }).unwrap();
        let passed: Vec<_> = (0..3).map(|piece| faults.admit(write(7, 8 * piece), &injection, NOW).is_some()).collect();
        assert_eq!((passed, injection.rules()[0].hits), (vec![true, false, false], 1));
    }

    #[test]
    fn delays_end_in_time_or_with_their_rule() {
        let at = |ms| NOW + Duration::from_ms(ms);
        let delay = |ms, sectors| FaultRule { sectors: Some(sectors), ..rule(Fault::Delay(Duration::from_ms(ms))) };
        let injection = Injection::default();
        let slow = injection.add(delay(10, 0..8)).unwrap();
        injection.add(delay(5, 8..16)).unwrap();
        let mut faults = PortFaults::default();
        faults.follow(&injection);
        let mut admit = |user_data, sector| faults.admit(write(user_data, sector), &injection, NOW).is_some();
        assert_eq!([admit(1, 0), admit(2, 8), admit(3, 16), admit(4, 8)], [false, false, true, false]);
        let mut done = Vec::new();
        faults.end(&mut done, 0);
        assert!(done.is_empty() && !faults.is_idle());
        assert_eq!(faults.next_due(), Some(at(5)));
        assert!(faults.take_due(&injection, at(4)).is_none());
        assert_eq!(injection.delayed(), 3);
        let due = |faults: &mut PortFaults, now| faults.take_due(&injection, now).map(|io| io.user_data());
        assert_eq!(
            [due(&mut faults, at(5)), due(&mut faults, at(5)), due(&mut faults, at(5))],
            [Some(2), Some(4), None]
        );
        faults.follow(&injection);
        assert_eq!((faults.next_due(), due(&mut faults, at(9))), (Some(at(10)), None));
        injection.remove(Some(slow));
        faults.follow(&injection);
        assert_eq!(due(&mut faults, at(5)), Some(1));
        assert!(faults.is_idle() && injection.delayed() == 0);
    }

    /// Once, an export that was removed by force waited for its delayed requests.
    #[test]
    fn a_disk_that_gives_up_ends_delays_and_keeps_the_rule() {
        let injection = Injection::default();
        injection.add(rule(Fault::Delay(Duration::from_secs(3600)))).unwrap();
        let mut faults = PortFaults::default();
        let due = |faults: &mut PortFaults| {
            faults.follow(&injection);
            faults.take_due(&injection, NOW).map(|io| io.user_data())
        };
        for request in [1, 2] {
            assert!(faults.admit(write(request, 0), &injection, NOW).is_none());
            assert_eq!((due(&mut faults), injection.delayed()), (None, 1));
            injection.set_give_up(true);
            assert_eq!((due(&mut faults), injection.delayed()), (Some(request), 0));
            injection.set_give_up(false);
        }
        assert_eq!(injection.rules()[0].hits, 2);
    }

    #[test]
    fn a_torn_write_fails_and_keeps_its_first_blocks() {
        let injection = Injection::default();
        injection.add(rule(Fault::Torn)).unwrap();
        let mut faults = PortFaults::default();
        let mut lengths = BTreeSet::new();
        for request in 0..200 {
            assert!((0..4).all(|piece| faults.admit(write(request, 8 * piece), &injection, NOW).is_none()));
            let mut kept = Vec::new();
            faults.tear(1024, |io| kept.push(io));
            let mut end = 0;
            for io in &kept {
                assert_eq!(io.range().start, end, "the pieces adjoin");
                end = io.range().end;
            }
            assert!(end < 4 * 4096 && end.is_multiple_of(1024), "{end}");
            lengths.insert(end);
            // The other request of the round is whole.
            assert!(faults.admit(ClientIo::Bio(Bio::flush()), &injection, NOW).is_some());
            let ok = |user_data| Done { user_data, op: Op::Write, status: BlkStatus::Ok };
            let mut done = vec![ok(request + 1000)];
            done.extend(kept.iter().map(|io| ok(io.user_data())));
            faults.end(&mut done, 0);
            let failed = done.iter().filter(|d| d.user_data == request && d.status == BlkStatus::IoErr).count();
            assert_eq!((done.len(), failed, done[0].status), (5, 4, BlkStatus::Ok));
            assert!(faults.is_idle());
        }
        assert!(lengths.len() > 8 && lengths.contains(&0), "any of 16 lengths: {lengths:?}");
        assert_eq!(injection.hits(), 200);
    }

    #[test]
    fn writes_are_torn_between_blocks_of_the_disk() {
        let points =
            |range: Range<u64>| (0..8).map(|random| tear_point(range.clone(), 512, random)).collect::<BTreeSet<_>>();
        assert_eq!(points(0..512), BTreeSet::from([0]));
        assert_eq!(points(1024..2560), BTreeSet::from([1024, 1536, 2048]));
        assert_eq!(points(1000..1100), BTreeSet::from([1000, 1024]));
    }

    #[test]
    fn sectors_of_byte_requests_are_those_that_they_touch() {
        let sectors = |offset, bytes| ClientIo::Bytes(ByteIo::new(Op::Read, offset, bytes, DataRef::NONE)).sectors();
        assert_eq!((sectors(0, 1), sectors(511, 2), sectors(512, 512)), (0..1, 0..2, 1..2));
        assert_eq!(ClientIo::Bio(Bio::flush()).sectors(), 0..0);
    }
}
