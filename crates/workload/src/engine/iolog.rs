// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a job thread records for `write_iolog`.
//!
//! Guarantees: the lines and their order are fio's. A file is open from its first I/O, or from when it is chosen, until it has no further
//! offset or the part of the pass is over. Reading back and I/O in `ramp_time` have lines. As in fio, a flush has the offset of the
//! last I/O in its slot. A job that keeps no such log does nothing here.

use super::{JobThread, Kind, Next, Phase};
use crate::job::Dir;
use crate::logs::{IologAct, IologRecord, IssueLog};
use blk::time::Instant;

impl JobThread {
    /// Begins the log. I/Os are recorded where the slow path hands them out, so all of them take it.
    pub(super) fn begin_iolog(&mut self) {
        self.plan.fast = None;
        let nr_files = self.files.as_ref().map_or(1, |files| files.len());
        self.iolog = Some(Box::new(IssueLog { open: vec![false; nr_files], of_slot: vec![0; self.slots.len()] }));
        self.record(IologAct::Begin, 0, (0, 0), Instant::ZERO);
        (0..nr_files).for_each(|file| self.record(IologAct::Add, file, (0, 0), Instant::ZERO));
    }

    fn record(&mut self, act: IologAct, file: usize, (offset, len): (u64, u32), now: Instant) {
        let at_us = now.as_ns().saturating_sub(self.clock.epoch) / 1000;
        if let Some(recorder) = &mut self.recorder {
            recorder.issued(IologRecord { at_us, offset, len, file: file as u32, act });
        }
    }

    /// Records that a file was opened or closed, if it was not before.
    pub(super) fn log_open(&mut self, file: usize, opens: bool, now: Instant) {
        let Some(log) = &mut self.iolog else { return };
        if std::mem::replace(&mut log.open[file], opens) != opens {
            self.record(if opens { IologAct::Open } else { IologAct::Close }, file, (0, 0), now);
        }
    }

    /// Records that all files were closed.
    pub(super) fn log_all_closed(&mut self, now: Instant) {
        let nr_files = self.iolog.as_ref().map_or(0, |log| log.open.len());
        (0..nr_files).for_each(|file| self.log_open(file, false, now));
    }

    /// Records an I/O that is handed out.
    #[inline(never)]
    pub(super) fn log_next(&mut self, next: &Next, now: Instant) {
        let (Next::Io(io), Some(log)) = (next, &mut self.iolog) else { return };
        let (slot, file) = (io.slot as usize, self.files.as_ref().map_or(0, |files| files.of(io.slot) as usize));
        let s = self.slots[slot];
        if s.kind != Kind::Flush {
            log.of_slot[slot] = s.offset;
        }
        let (place, was_open) = ((log.of_slot[slot], s.len), log.open[file]);
        let act = match s.kind {
            Kind::Read | Kind::ReadBack => IologAct::Read,
            Kind::Write => IologAct::Write,
            Kind::Trim => IologAct::Trim,
            // The files are closed, so fio has nothing to flush.
            Kind::Flush if self.phase == Phase::VerifySync => return,
            Kind::Flush if self.flushes_data() => IologAct::Datasync,
            Kind::Flush => IologAct::Sync,
        };
        self.log_open(file, true, now);
        self.record(act, file, place, now);
        if s.kind == Kind::Flush && self.phase == Phase::EndSync && !was_open {
            self.log_open(file, false, now);
        }
    }

    /// Whether the flush that is handed out is one of `fdatasync`.
    fn flushes_data(&self) -> bool {
        let (written, fsync) = (self.issued_ios[Dir::Write as usize], self.plan.fsync_every);
        let is_of_fsync = fsync > 0 && written.is_multiple_of(fsync);
        self.phase == Phase::Io && self.plan.fdatasync_every > 0 && !is_of_fsync
    }
}
