// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests without I/O: block status and cache. The disk's helper thread serves those that may have to wait for a file system.
//!
//! Guarantees: a write that was answered before a status request is reported as data; an unanswered one may be reported as data or as a
//! hole. A reply has at most [`EXTENTS`] extents, all of whole blocks; the client asks again for the rest. These requests count as in
//! flight.
//!
//! Source: the NBD protocol, sections "Metadata querying", "`NBD_CMD_BLOCK_STATUS`", "`NBD_CMD_CACHE`".

use super::super::reply::{Extent, HEAD_BYTES};
use super::super::session::Request;
use super::{Connection, ConnectionState, SECTOR};
use crate::driver::{Allocation, Stretch};
use crate::nbd::wire::extent_flag;
use crate::serve::Port;
use crate::serve::helper::{HelperRequest, HelperWork};
use blk::id::Sector;

/// Maximum number of extents of one reply: some milliseconds of work for a fragmented file.
const EXTENTS: usize = 1024;
const HOLE: u32 = extent_flag::HOLE | extent_flag::ZERO;

impl Connection {
    /// Answers a block status request: at once if the allocation is known, otherwise by the helper thread.
    pub(super) fn tell_extents(&mut self, slot: u16, request: &Request, port: &Port) {
        let is_hole = match port.disk().helper.stored().allocation() {
            Allocation::Data => false,
            Allocation::Hole => true,
            Allocation::Survey => {
                let most = if request.one_extent() { 1 } else { EXTENTS };
                if self.ask(slot, request, port, HelperWork::Survey { most }) {
                    return;
                }
                false
            }
        };
        let all = Stretch { nr_sectors: sectors_of(request).1, is_hole };
        self.put_extents(slot, &[all]);
    }

    /// Passes a cache request to the helper thread. For a disk without a cache there is nothing to do.
    pub(super) fn prefetch(&mut self, slot: u16, request: &Request, port: &Port) {
        if !port.disk().helper.stored().caches() || !self.ask(slot, request, port, HelperWork::Prefetch) {
            self.release(slot);
        }
    }

    fn ask(&mut self, slot: u16, request: &Request, port: &Port, work: HelperWork) -> bool {
        let (sector, nr_sectors) = sectors_of(request);
        let asked = port.disk().helper.ask(HelperRequest {
            work,
            sector,
            nr_sectors,
            number: slot,
            to: self.answers.clone(),
            waker: port.waker(),
        });
        self.asked += usize::from(asked);
        asked
    }

    /// Takes the answers of the helper thread. Returns whether there were any.
    #[cold]
    pub(super) fn take_answers(&mut self) -> bool {
        let answers = self.answers.take();
        self.asked -= answers.len();
        for (slot, stretches) in &answers {
            if stretches.is_empty() {
                self.release(*slot);
            } else {
                self.put_extents(*slot, stretches);
            }
        }
        !answers.is_empty()
    }

    /// Queues the reply to a block status request.
    fn put_extents(&mut self, slot: u16, stretches: &[Stretch]) {
        let s = &mut self.slots[usize::from(slot)];
        s.holds = 0;
        let Some(request) = s.request.filter(|_| self.state != ConnectionState::Dead && !s.silent) else {
            self.free_slot(slot);
            return;
        };
        // Stretches are whole sectors, and the request need not be.
        let (mut skip, mut left) = (request.offset % SECTOR, request.length);
        let extents = stretches.iter().map_while(|s| {
            let length = (s.nr_sectors * SECTOR - std::mem::take(&mut skip)).min(left);
            left -= length;
            (length > 0).then_some(Extent { length, flags: if s.is_hole { HOLE } else { 0 } })
        });
        self.scratch.clear();
        if self.block > 1 {
            self.style.block_status(&request, whole_blocks(extents, self.block), &mut self.scratch);
        } else {
            self.style.block_status(&request, extents, &mut self.scratch);
        }
        let n = self.scratch.len();
        if n <= HEAD_BYTES {
            s.head.iter_mut().zip(&self.scratch).for_each(|(to, from)| *to = *from);
            s.head_bytes = n;
        } else if let Ok(Some(buffer)) = self.buffers.take(slot, n) {
            self.buffers.span(buffer, 0, n).copy_from(&self.scratch);
            (s.buffer, s.data_bytes) = (Some(buffer), n);
        } else {
            unreachable!("{EXTENTS} extents are shorter than a slot's buffer");
        }
        self.out.push_back(slot);
    }
}

/// Returns extents of whole blocks. A block is a hole only if all of it is. An incomplete block at the end is left out, unless it is the
/// only one: then it counts as data.
fn whole_blocks(extents: impl Iterator<Item = Extent>, block: u64) -> Vec<Extent> {
    let mut all = Vec::new();
    // The block that is not complete yet.
    let mut part = Extent { length: 0, flags: HOLE };
    for Extent { mut length, flags } in extents {
        if part.length > 0 {
            let here = length.min(block - part.length);
            part = Extent { length: part.length + here, flags: part.flags & flags };
            length -= here;
            if part.length < block {
                continue;
            }
            all.push(part);
        }
        let rest = length % block;
        if length > rest {
            all.push(Extent { length: length - rest, flags });
        }
        part = Extent { length: rest, flags };
    }
    if all.is_empty() {
        all.push(Extent { length: block, flags: 0 });
    }
    all
}

/// Returns the sectors that a request touches.
fn sectors_of(request: &Request) -> (Sector, u64) {
    let (first, end) = (request.offset / SECTOR, (request.offset + request.length).div_ceil(SECTOR));
    (Sector(first), end - first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_a_hole_only_if_all_of_it_is() {
        for (stretches, expected) in [
            (&[(8u64, true), (16, false)][..], &[(8u64, true), (16, false)][..]),
            (&[(20, true), (12, false)], &[(16, true), (8, false), (8, false)]),
            (&[(4, true), (4, true)], &[(8, true)]),
            (&[(3, true), (13, true)], &[(8, true), (8, true)]),
            // The survey ended inside a block.
            (&[(8, false), (3, true)], &[(8, false)]),
            (&[(1, false), (2, true), (1, false)], &[(8, false)]),
        ] {
            let flags = |is_hole: bool| if is_hole { HOLE } else { 0 };
            let extents = stretches.iter().map(|(n, hole)| Extent { length: n * SECTOR, flags: flags(*hole) });
            let found = whole_blocks(extents, 4096);
            let expected: Vec<_> =
                expected.iter().map(|(n, hole)| Extent { length: n * SECTOR, flags: flags(*hole) }).collect();
            assert_eq!(found, expected, "{stretches:?}");
        }
    }
}
