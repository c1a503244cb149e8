// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The owner of a host's [`EhLadder`]: carries out its actions at the transport, and takes devices offline.
//!
//! Guarantees: without errors, a command costs one load of a word that no thread writes. The ladder's lock is the
//! innermost one (a transport may hold its own lock while it gives a command back). The transport is called with the
//! ladder unlocked, by one thread at a time; a second thread returns. A command that was admitted just before recovery
//! began goes to the transport like any other: a reset gives it back, and it is held.

use super::cdb::Cdb;
use super::device::{Device, DeviceState};
use super::disposition::{DeviceEvent, Outcome};
use super::eh::{CommandId, EhAction, EhLadder, EhOptions, EhResult, EhStats, HeldCommand, ProbeKind, Returned};
use super::sense::SENSE_BYTES;
use super::transport::{LunId, Record, Transport};
use crate::driver::{InFlight, TimedOut};
use crate::id::HctxId;
use crate::lock::Lock;
use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering};
use crate::time::Instant;
use std::sync::Arc;

const ACTIVE: u32 = 1;
const STOPS: u32 = 2;

/// See the module's text.
pub(super) struct Recovery {
    /// [`ACTIVE`] and [`STOPS`], copied from the ladder's state.
    flags: AtomicU32,
    is_driven: AtomicBool,
    shared: Box<dyn Guarded>,
}

struct Shared {
    ladder: EhLadder,
    devices: Vec<(LunId, Arc<Device>)>,
}

/// A lock whose type is erased, so that hosts, disks and batches need not be generic over it.
trait Guarded: Send + Sync {
    fn with(&self, what: &mut dyn FnMut(&mut Shared));
}

impl<L: Lock> Guarded for Mutex<L, Shared> {
    fn with(&self, what: &mut dyn FnMut(&mut Shared)) {
        what(&mut self.lock());
    }
}

impl Recovery {
    pub(super) fn new<L: Lock>(options: EhOptions) -> Recovery {
        let shared = Shared { ladder: EhLadder::new(options), devices: Vec::new() };
        let shared = Box::new(Mutex::<L, Shared>::new(shared));
        Recovery { flags: AtomicU32::new(0), is_driven: AtomicBool::new(false), shared }
    }

    /// Whether a command of the host is late or held.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.flags.load(Ordering::Relaxed) != 0
    }

    /// Whether the host takes no new commands.
    #[inline]
    pub(super) fn stops_commands(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & STOPS != 0
    }

    fn with<R>(&self, what: impl FnOnce(&mut Shared) -> R) -> R {
        let (mut what, mut result) = (Some(what), None);
        self.shared.with(&mut |shared| {
            result = what.take().map(|what| what(shared));
            let ladder = &shared.ladder;
            let [active, stops] = [!ladder.is_calm(), ladder.stops_commands()].map(u32::from);
            let flags = (active * ACTIVE) | (stops * STOPS);
            self.flags.store(flags, Ordering::Relaxed);
        });
        result.expect("it was called")
    }

    /// Adds a device: its commands count as in flight at the host.
    pub(super) fn join(&self, lun: LunId, device: &Arc<Device>) {
        self.with(|s| s.devices.push((lun, Arc::clone(device))));
    }

    pub(super) fn stats(&self) -> EhStats {
        self.with(|s| s.ladder.stats())
    }

    /// Turns giving up on or off: while it is on, recovery takes one second at most.
    pub(super) fn set_give_up(&self, give_up: bool) {
        self.with(|s| s.ladder.set_give_up(give_up));
    }

    #[cold]
    pub(super) fn gives_up(&self) -> bool {
        self.with(|s| s.ladder.gives_up())
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        if self.is_active() { self.with(|s| s.ladder.next_due()) } else { None }
    }

    /// Notes a command that is late.
    pub(super) fn late(&self, id: CommandId, issued: Instant) {
        self.with(|s| s.ladder.late(id, issued));
    }

    /// Handles a command that the transport gave back.
    pub(super) fn came_back(&self, id: CommandId, rq: InFlight, record: Record, outcome: &Outcome) -> Returned {
        self.with(|s| s.ladder.came_back(id, rq, record, outcome))
    }

    /// Returns up to `most` released commands of a LUN and hardware queue.
    pub(super) fn take_freed(&self, lun: LunId, hctx: HctxId, most: usize) -> Vec<HeldCommand> {
        self.with(|s| s.ladder.take_freed(lun, hctx, most))
    }

    /// Reports a LUN's answers to probes, before any thread can [take](Recovery::take_freed) the commands that waited
    /// for recovery.
    pub(super) fn tell_heard(&self, lun: LunId, tell: impl Fn(DeviceEvent)) {
        self.with(|s| s.ladder.take_heard(lun).into_iter().for_each(tell));
    }

    /// Carries out the actions that are due now.
    pub(super) fn drive(&self, transport: &dyn Transport, now: Instant) {
        // Pairs with: the store below.
        if self.is_driven.swap(true, Ordering::Acquire) {
            return;
        }
        let next = |s: &mut Shared| {
            let in_flight = s.devices.iter().map(|(_, device)| device.in_flight()).sum();
            s.ladder.next(now, in_flight)
        };
        while let Some(action) = self.with(next) {
            let result = self.carry(&action, transport, now);
            self.with(|s| s.ladder.result(&action, result, now));
        }
        // Pairs with: the swap above.
        self.is_driven.store(false, Ordering::Release);
    }

    fn carry(&self, action: &EhAction, transport: &dyn Transport, now: Instant) -> EhResult {
        match *action {
            EhAction::Abort(CommandId { lun, hctx, tag }, issued) => {
                EhResult::Abort(transport.abort(lun, hctx, TimedOut { tag, issued }, now))
            }
            EhAction::Reset(what, lun) => EhResult::Reset(transport.reset(what, lun, now)),
            EhAction::Probe(lun, question) => {
                let cdb = match question {
                    ProbeKind::Sense => Cdb::request_sense(SENSE_BYTES as u8),
                    ProbeKind::StartUnit => Cdb::start_unit(),
                    ProbeKind::Ready => Cdb::test_unit_ready(),
                };
                EhResult::Sent(transport.probe(lun, &cdb, now))
            }
            EhAction::Probed(lun) => EhResult::Answer(transport.probed(lun, now)),
            EhAction::DropProbe(lun) => {
                transport.drop_probe(lun);
                EhResult::Done
            }
            EhAction::DropReset(what, lun) => {
                transport.drop_reset(what, lun);
                EhResult::Done
            }
            EhAction::Offline(lun) => {
                let devices = self.with(|s| s.devices.iter().filter(|(l, _)| *l == lun).cloned().collect::<Vec<_>>());
                // A device that its transport has already given up keeps its state.
                let in_use =
                    |d: &&(LunId, Arc<Device>)| matches!(d.1.state(), DeviceState::Running | DeviceState::Blocked);
                devices.iter().filter(in_use).for_each(|(_, device)| device.set_state(DeviceState::Offline));
                transport.abandon(lun, now);
                EhResult::Done
            }
        }
    }
}
