// SPDX-License-Identifier: Apache-2.0 OR MIT
//! LSEEK: finds the next data or hole. The disk's helper thread answers requests that may have to wait for a file system.
//!
//! Guarantees: a write that was answered before the LSEEK counts as data; an unanswered one may count as data or as a hole. If the disk
//! does not know its holes, the kernel gets ENOSYS. The kernel then sends no further LSEEK and treats everything as data, up to the file's
//! size at that time. An LSEEK counts as in flight until it is answered.
//!
//! Source: lseek(2); Linux fs/fuse/file.c (what ENOSYS does).

use super::{Channel, Kind, SECTOR, Slot};
use crate::driver::{Allocation, Stretch};
use crate::export::fuse::wire;
use crate::serve::Port;
use crate::serve::helper::{HelperRequest, HelperWork};
use blk::id::Sector;

/// Maximum number of stretches of one answer: that of the offset, and the next.
const STRETCHES: usize = 2;

impl Channel {
    /// Starts to look for data, or a hole, at or after `offset`, in a disk of `size` bytes.
    #[cold]
    pub(super) fn seek(&mut self, unique: u64, offset: u64, hole: bool, size: u64, port: &Port) {
        match self.shared.disk.helper.stored().allocation() {
            Allocation::Data => self.reply(unique, libc::ENOSYS, &[]),
            Allocation::Hole if hole => self.reply(unique, 0, wire::lseek_out(offset).as_bytes()),
            Allocation::Hole => self.reply(unique, libc::ENXIO, &[]),
            Allocation::Survey => {
                let number = self.free.pop().expect("a request is received when there is a slot");
                let kind = if hole { Kind::SeekHole } else { Kind::SeekData };
                self.slots[usize::from(number)] = Some(Slot::new(unique, kind, offset, size - offset));
                self.ask(number, port);
            }
        }
    }

    /// Asks the helper thread about the range after its previous answer.
    fn ask(&mut self, number: u16, port: &Port) {
        let block = self.block();
        let slot = self.slot(number);
        let (from, end) = ((slot.offset + slot.walked) / block * block, slot.offset + slot.bytes);
        let nr_sectors = (end - from).div_ceil(SECTOR);
        let asked = self.shared.disk.helper.ask(HelperRequest {
            work: HelperWork::Survey { most: STRETCHES },
            sector: Sector(from / SECTOR),
            nr_sectors,
            number,
            to: self.answers.clone(),
            waker: port.waker(),
        });
        self.asked += usize::from(asked);
        if !asked {
            self.look(number, &[Stretch { nr_sectors, is_hole: false }], port);
        }
    }

    /// Takes the answers of the helper thread. Returns whether there were any.
    #[cold]
    pub(super) fn take_answers(&mut self, port: &Port) -> bool {
        let answers = self.answers.take();
        self.asked -= answers.len();
        for (number, stretches) in &answers {
            self.look(*number, stretches, port);
        }
        !answers.is_empty()
    }

    /// Searches the stretches of an answer; replies, or asks for more.
    fn look(&mut self, number: u16, stretches: &[Stretch], port: &Port) {
        assert!(!stretches.is_empty(), "a survey has at least one stretch");
        let block = self.block();
        let slot = self.slot(number);
        let (unique, offset, end) = (slot.unique, slot.offset, slot.offset + slot.bytes);
        let hole = slot.kind == Kind::SeekHole;
        let mut at = (offset + slot.walked) / block * block;
        let is_wanted = |s: &&Stretch| {
            let found = s.is_hole == hole;
            at += if found { 0 } else { s.nr_sectors * SECTOR };
            found
        };
        let found = stretches.iter().find(is_wanted).is_some();
        if !found && at < end {
            slot.walked = at - offset;
            return self.ask(number, port);
        }
        self.slots[usize::from(number)] = None;
        self.free.push(number);
        match (found, hole) {
            (true, _) => self.reply(unique, 0, wire::lseek_out(at.max(offset)).as_bytes()),
            // The end of a file is a hole.
            (false, true) => self.reply(unique, 0, wire::lseek_out(end).as_bytes()),
            (false, false) => self.reply(unique, libc::ENXIO, &[]),
        }
    }

    /// Returns the bytes of a block of the disk's targets.
    fn block(&self) -> u64 {
        u64::from(self.shared.disk.block_size())
    }
}
