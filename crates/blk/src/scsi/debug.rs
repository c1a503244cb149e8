// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A SCSI host that is only software, with faults that come when they are asked for: the kernel's scsi_debug.
//!
//! Guarantees: without faults each command ends as its medium says, [`DebugOptions::delay`] after it came; a [`Fault`] changes
//! that for the commands it names, as often as it says, and nothing else. The same commands at the same times end the same
//! way. Does not do: keep data; that is the [`Medium`]'s.
//! Source: the options of drivers/scsi/scsi_debug.c (`every_nth`, `opts`, `ndelay`, `host_max_queue`).

use super::disposition::Outcome;
use super::transport::{Busy, Command, CommandBatch, LunId, Outcomes, Ticket, Transport, TransportLimits};
use crate::id::HctxId;
use crate::lock::Lock;
use crate::sync::Mutex;
use crate::time::{Duration, Instant};
use std::collections::VecDeque;

/// Where the data of a debug host is.
pub trait Medium: Send + Sync {
    /// Does what a command asks for, and says how it went.
    fn execute(&self, lun: LunId, command: &Command<'_>) -> Outcome;
}

/// A medium that keeps nothing.
pub struct NoMedium;

impl Medium for NoMedium {
    #[inline]
    fn execute(&self, _: LunId, _: &Command<'_>) -> Outcome {
        Outcome::GOOD
    }
}

/// How a debug host is made.
#[derive(Clone, Copy, Debug)]
pub struct DebugOptions {
    /// LUNs 0 to one below.
    pub luns: u16,
    /// How long a command takes; zero: it has ended when it is next asked.
    pub delay: Duration,
    /// Commands of a hardware queue, of all LUNs together, before it says that it is busy; 0 = as many as come.
    pub host_max_queue: u32,
}

/// Which commands something happens to, and what.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Of this LUN only.
    pub lun: Option<LunId>,
    /// With this operation code only.
    pub opcode: Option<u8>,
    /// So many that it names are let go first.
    pub skip: u32,
    /// Then it happens to so many.
    pub times: u32,
    /// What happens.
    pub what: Mishap,
}

/// What happens to a command.
#[derive(Clone, Copy, Debug)]
pub enum Mishap {
    /// It is not executed, and ends so.
    Ends(Outcome),
    /// It is executed, and takes this much longer.
    Slow(Duration),
    /// It is not executed, and never ends by itself.
    Lost,
    /// It is not taken.
    Busy(Busy),
}

/// See the module's text.
pub struct DebugHost<L: Lock, M> {
    options: DebugOptions,
    medium: M,
    /// By LUN, then hardware queue.
    places: Box<[Mutex<L, Place>]>,
    faults: Mutex<L, Vec<Fault>>,
    has_faults: crate::sync::AtomicBool,
}

/// Hardware queues of a LUN at most.
const MAX_HCTXS: usize = 64;

#[derive(Default)]
struct Place {
    /// In order of their ends, but for slow ones.
    out: VecDeque<(Instant, Ticket, Outcome)>,
    /// Commands that never end.
    lost: Vec<Ticket>,
}

impl<L: Lock, M: Medium> DebugHost<L, M> {
    /// A host as `options` say, with its data in `medium`.
    pub fn new(options: DebugOptions, medium: M) -> DebugHost<L, M> {
        let places = (0..usize::from(options.luns) * MAX_HCTXS).map(|_| Mutex::new(Place::default())).collect();
        DebugHost {
            options,
            medium,
            places,
            faults: Mutex::new(Vec::new()),
            has_faults: crate::sync::AtomicBool::new(false),
        }
    }

    /// Lets something happen from now on; faults that were asked for earlier come first.
    pub fn inject(&self, fault: Fault) {
        self.faults.lock().push(fault);
        self.has_faults.store(true, crate::sync::Ordering::Relaxed);
    }

    /// Faults that have not happened as often as they were to.
    pub fn faults_left(&self) -> usize {
        self.faults.lock().len()
    }

    fn place(&self, lun: LunId, hctx: HctxId) -> &Mutex<L, Place> {
        &self.places[usize::from(lun.0) * MAX_HCTXS + hctx.index()]
    }

    #[inline]
    fn mishap(&self, lun: LunId, opcode: u8) -> Option<Mishap> {
        if !self.has_faults.load(crate::sync::Ordering::Relaxed) {
            return None;
        }
        self.next_mishap(lun, opcode)
    }

    #[cold]
    fn next_mishap(&self, lun: LunId, opcode: u8) -> Option<Mishap> {
        let mut faults = self.faults.lock();
        let names = |f: &Fault| f.lun.is_none_or(|l| l == lun) && f.opcode.is_none_or(|o| o == opcode);
        let index = faults.iter().position(names)?;
        let fault = &mut faults[index];
        if fault.skip > 0 {
            fault.skip -= 1;
            return None;
        }
        let what = fault.what;
        fault.times = fault.times.saturating_sub(1);
        if fault.times == 0 {
            faults.remove(index);
            self.has_faults.store(!faults.is_empty(), crate::sync::Ordering::Relaxed);
        }
        Some(what)
    }

    /// When the next command of a LUN and hardware queue ends.
    pub fn next_due(&self, lun: LunId, hctx: HctxId) -> Option<Instant> {
        self.place(lun, hctx).lock().out.front().map(|(due, ..)| *due)
    }
}

impl<L: Lock, M: Medium> Transport for DebugHost<L, M> {
    fn name(&self) -> &'static str {
        "scsi_debug"
    }

    fn limits(&self) -> TransportLimits {
        TransportLimits { max_sectors: 1 << 16, max_segments: 128, timeout: Duration::from_secs(30) }
    }

    fn start(&self, lun: LunId, nr_hw_queues: u16, queue_depth: u32) -> Result<(), String> {
        if lun.0 >= self.options.luns {
            return Err(format!("LUN {}: the host has 0 to {}", lun.0, self.options.luns - 1));
        }
        if usize::from(nr_hw_queues) > MAX_HCTXS {
            return Err(format!("nr_hw_queues={nr_hw_queues}: must be at most {MAX_HCTXS}"));
        }
        for hctx in 0..nr_hw_queues {
            let mut place = self.place(lun, HctxId::new(u32::from(hctx))).lock();
            assert!(place.out.is_empty() && place.lost.is_empty(), "LUN {} restarted with commands in flight", lun.0);
            place.out.reserve(queue_depth as usize);
        }
        Ok(())
    }

    #[inline]
    fn queue(&self, batch: &mut CommandBatch<'_, '_>, now: Instant) -> Option<Busy> {
        let lun = batch.lun();
        let mut place = self.place(lun, batch.hctx()).lock();
        let most = self.options.host_max_queue as usize;
        while let Some(command) = batch.front() {
            if most > 0 && place.out.len() + place.lost.len() >= most {
                return Some(Busy::Host);
            }
            let (mut due, mut outcome) = (now + self.options.delay, None);
            match self.mishap(lun, command.cdb.opcode()) {
                None => {}
                Some(Mishap::Ends(how)) => outcome = Some(how),
                Some(Mishap::Slow(by)) => due = due + by,
                Some(Mishap::Busy(busy)) => return Some(busy),
                Some(Mishap::Lost) => {
                    let ticket = batch.accept();
                    place.lost.push(ticket);
                    continue;
                }
            }
            let outcome = outcome.unwrap_or_else(|| self.medium.execute(lun, &command));
            let ticket = batch.accept();
            let behind = place.out.iter().rev().take_while(|(other, ..)| *other > due).count();
            let at = place.out.len() - behind;
            place.out.insert(at, (due, ticket, outcome));
        }
        None
    }

    #[inline]
    fn poll(&self, lun: LunId, hctx: HctxId, ended: &mut Outcomes<'_>, now: Instant) {
        let mut place = self.place(lun, hctx).lock();
        while ended.room() > 0
            && let Some((_, ticket, outcome)) = place.out.pop_front_if(|(due, ..)| *due <= now)
        {
            ended.push(ticket, &outcome);
        }
    }
}
