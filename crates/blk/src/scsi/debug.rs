// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A simulated SCSI host with injected faults, after the kernel's scsi_debug.
//!
//! Guarantees: without faults each command completes with its medium's outcome, [`DebugOptions::delay`] after it was
//! queued. A [`Fault`] changes only the commands that it names, as often as it says. The same commands at the same
//! times complete in the same way. Aborts, resets and probes succeed at once, unless [`DebugHost::script`] says
//! otherwise. Does not do: store data; the [`Medium`] does. Source: the options of drivers/scsi/scsi_debug.c
//! (`every_nth`, `opts`, `ndelay`, `host_max_queue`).

use super::cdb::Cdb;
use super::disposition::{HostByte, Outcome};
use super::transport::{
    Abort, AcceptedCommand, Busy, Command, CommandBatch, Help, LunId, Outcomes, Probed, Reset, Transport,
    TransportLimits,
};
use crate::driver::TimedOut;
use crate::id::HctxId;
use crate::lock::Lock;
use crate::sync::Mutex;
use crate::time::{Duration, Instant};
use std::collections::VecDeque;

/// Storage for the data of a debug host.
pub trait Medium: Send + Sync {
    /// Executes a command and returns its outcome.
    fn execute(&self, lun: LunId, command: &Command<'_>) -> Outcome;
}

/// A medium that stores no data.
pub struct NoMedium;

impl Medium for NoMedium {
    #[inline]
    fn execute(&self, _: LunId, _: &Command<'_>) -> Outcome {
        Outcome::GOOD
    }
}

/// Options of a debug host.
#[derive(Clone, Copy, Debug)]
pub struct DebugOptions {
    /// Number of LUNs, numbered from 0.
    pub luns: u16,
    /// How long a command takes; zero: the next poll finds it completed.
    pub delay: Duration,
    /// Maximum number of commands in flight on a hardware queue, of all LUNs together, before the host is busy; 0 = no limit.
    pub host_max_queue: u32,
}

/// A fault: which commands it affects, and how.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Only commands of this LUN; `None`: of any.
    pub lun: Option<LunId>,
    /// Only commands with this operation code; `None`: with any.
    pub opcode: Option<u8>,
    /// This many matching commands are left alone first.
    pub skip: u32,
    /// Then this many are affected.
    pub times: u32,
    /// What happens.
    pub what: InjectedFault,
}

/// The effect of a fault on a command.
#[derive(Clone, Copy, Debug)]
pub enum InjectedFault {
    /// It is not executed, and completes with this outcome.
    Ends(Outcome),
    /// It is executed, and takes this much longer.
    Slow(Duration),
    /// It is not executed, and never completes by itself.
    Lost,
    /// It is not accepted.
    Busy(Busy),
}

/// An action of error handling that a host may be requested to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EhAid {
    /// An abort.
    Abort,
    /// A reset.
    Reset(Reset),
    /// A command of the midlayer's own with this operation code.
    Probe(u8),
}

/// The scripted result of an action of error handling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It works.
    Works,
    /// It works after this time.
    After(Duration),
    /// It fails at once; a probe cannot be sent.
    Fails,
    /// It begins and never completes.
    Never,
    /// The answer to a probe: outcome and data.
    Says(Outcome, Vec<u8>),
}

#[derive(Debug)]
struct Scripted {
    aid: EhAid,
    lun: Option<LunId>,
    reply: Reply,
    times: u32,
}

/// An action in progress: kind, LUN, late command, and when it completes.
#[derive(Debug)]
struct PendingAid {
    aid: EhAid,
    lun: LunId,
    late: Option<(HctxId, TimedOut)>,
    due: Option<Instant>,
    answer: Probed,
}

#[derive(Debug, Default)]
struct Helper {
    script: Vec<Scripted>,
    under_way: Vec<PendingAid>,
    log: Vec<(EhAid, LunId)>,
}

/// A simulated SCSI host with injected faults. See the module's text.
pub struct DebugHost<L: Lock, M> {
    options: DebugOptions,
    medium: M,
    /// By LUN, then hardware queue.
    places: Box<[Mutex<L, HctxCommands>]>,
    faults: Mutex<L, Vec<Fault>>,
    has_faults: crate::sync::AtomicBool,
    helper: Mutex<L, Helper>,
}

/// Hardware queues of a LUN at most.
const MAX_HCTXS: usize = 64;

#[derive(Default)]
struct HctxCommands {
    /// Commands in flight in the order of their completion times, except for slow ones.
    out: VecDeque<Out>,
    /// Commands that never complete.
    lost: Vec<(Instant, AcceptedCommand, [u8; 16])>,
}

struct Out {
    due: Instant,
    issued: Instant,
    ticket: AcceptedCommand,
    cdb: [u8; 16],
    outcome: Outcome,
}

impl HctxCommands {
    /// Gives the commands in flight for which `which` is true back with this status. Returns whether there was any.
    fn bring_back(&mut self, host: HostByte, now: Instant, which: impl Fn(&AcceptedCommand, Instant) -> bool) -> bool {
        let outcome = Outcome::host(host);
        let mut found = false;
        for out in self.out.iter_mut().filter(|o| o.due > now && which(&o.ticket, o.issued)) {
            (out.due, out.outcome, found) = (now, outcome, true);
        }
        self.out.make_contiguous().sort_by_key(|o| o.due);
        for (issued, ticket, cdb) in self.lost.extract_if(.., |(issued, ticket, _)| which(ticket, *issued)) {
            self.out.push_front(Out { due: now, issued, ticket, cdb, outcome });
            found = true;
        }
        found
    }
}

impl<L: Lock, M: Medium> DebugHost<L, M> {
    /// Makes a host with these options and with its data in `medium`.
    pub fn new(options: DebugOptions, medium: M) -> DebugHost<L, M> {
        let places = (0..usize::from(options.luns) * MAX_HCTXS).map(|_| Mutex::new(HctxCommands::default())).collect();
        DebugHost {
            options,
            medium,
            places,
            faults: Mutex::new(Vec::new()),
            has_faults: crate::sync::AtomicBool::new(false),
            helper: Mutex::new(Helper::default()),
        }
    }

    /// Answers the next `times` actions of this kind, for one LUN or all, with `reply`. Earlier scripts are used up first.
    pub fn script(&self, aid: EhAid, lun: Option<LunId>, reply: Reply, times: u32) {
        self.helper.lock().script.push(Scripted { aid, lun, reply, times });
    }

    /// Returns the actions that were requested from the host so far, in order.
    pub fn log(&self) -> Vec<(EhAid, LunId)> {
        self.helper.lock().log.clone()
    }

    /// Returns the resets that were begun and are neither completed nor dropped.
    pub fn resets_under_way(&self) -> Vec<(EhAid, LunId)> {
        let helper = self.helper.lock();
        let resets = helper.under_way.iter().filter(|u| matches!(u.aid, EhAid::Reset(_)));
        resets.map(|u| (u.aid, u.lun)).collect()
    }

    /// Number of commands of a LUN that are in flight and never complete by themselves.
    pub fn lost(&self, lun: LunId) -> usize {
        let hctxs = 0..MAX_HCTXS as u32;
        hctxs.map(|hctx| self.place(lun, HctxId::new(hctx)).lock().lost.len()).sum()
    }

    /// Begins an action or polls it. Returns its state, and the answer to a probe.
    fn help(&self, aid: EhAid, lun: LunId, late: Option<(HctxId, TimedOut)>, now: Instant) -> (Help, Probed) {
        let mut helper = self.helper.lock();
        let mut answer = Probed { outcome: Outcome::GOOD, data: Vec::new() };
        if let Some(at) = helper.under_way.iter().position(|u| (u.aid, u.lun, u.late) == (aid, lun, late)) {
            if helper.under_way[at].due.is_none_or(|due| due > now) {
                return (Help::Begun, answer);
            }
            return (Help::Done, helper.under_way.remove(at).answer);
        }
        helper.log.push((aid, lun));
        let names = |s: &Scripted| s.aid == aid && s.lun.is_none_or(|l| l == lun);
        let reply = match helper.script.iter().position(names) {
            None => Reply::Works,
            Some(at) => {
                let scripted = &mut helper.script[at];
                scripted.times = scripted.times.saturating_sub(1);
                if scripted.times == 0 { helper.script.remove(at).reply } else { scripted.reply.clone() }
            }
        };
        let due = match reply {
            Reply::Works => return (Help::Done, answer),
            Reply::Fails => return (Help::Failed, answer),
            Reply::Never => None,
            Reply::After(time) => Some(now + time),
            Reply::Says(outcome, data) => {
                answer = Probed { outcome, data };
                return (Help::Done, answer);
            }
        };
        helper.under_way.push(PendingAid { aid, lun, late, due, answer: answer.clone() });
        (Help::Begun, answer)
    }

    /// Gives back all commands of a LUN with this status.
    fn bring_back(&self, lun: LunId, host: HostByte, now: Instant) {
        for hctx in 0..MAX_HCTXS as u32 {
            self.place(lun, HctxId::new(hctx)).lock().bring_back(host, now, |_, _| true);
        }
    }

    /// Adds a fault. Of several faults that match a command, the one added first applies.
    pub fn inject(&self, fault: Fault) {
        self.faults.lock().push(fault);
        self.has_faults.store(true, crate::sync::Ordering::Relaxed);
    }

    /// Number of faults that have not happened as often as they should.
    pub fn faults_left(&self) -> usize {
        self.faults.lock().len()
    }

    fn place(&self, lun: LunId, hctx: HctxId) -> &Mutex<L, HctxCommands> {
        &self.places[usize::from(lun.0) * MAX_HCTXS + hctx.index()]
    }

    #[inline]
    fn mishap(&self, lun: LunId, opcode: u8) -> Option<InjectedFault> {
        if !self.has_faults.load(crate::sync::Ordering::Relaxed) {
            return None;
        }
        self.next_mishap(lun, opcode)
    }

    #[cold]
    fn next_mishap(&self, lun: LunId, opcode: u8) -> Option<InjectedFault> {
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

    /// Returns when the next command of a LUN and hardware queue completes.
    pub fn next_due(&self, lun: LunId, hctx: HctxId) -> Option<Instant> {
        self.place(lun, hctx).lock().out.front().map(|out| out.due)
    }
}

impl<L: Lock, M: Medium> Transport for DebugHost<L, M> {
    fn name(&self) -> &'static str {
        "scsi_debug"
    }

    fn limits(&self) -> TransportLimits {
        TransportLimits {
            max_sectors: 1 << 16,
            max_segments: 128,
            timeout: Duration::from_secs(30),
            host_reset: Duration::from_secs(30),
        }
    }

    fn start(&self, lun: LunId, nr_hw_queues: u16, queue_depth: u32) -> Result<(), String> {
        if lun.0 >= self.options.luns {
            return Err(format!("LUN {}: must be 0..={}", lun.0, self.options.luns - 1));
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
            let (mut due, mut outcome, cdb) = (now + self.options.delay, None, *command.cdb.padded());
            match self.mishap(lun, command.cdb.opcode()) {
                None => {}
                Some(InjectedFault::Ends(how)) => outcome = Some(how),
                Some(InjectedFault::Slow(by)) => due = due + by,
                Some(InjectedFault::Busy(busy)) => return Some(busy),
                Some(InjectedFault::Lost) => {
                    let ticket = batch.accept();
                    place.lost.push((now, ticket, cdb));
                    continue;
                }
            }
            let outcome = outcome.unwrap_or_else(|| self.medium.execute(lun, &command));
            let ticket = batch.accept();
            let behind = place.out.iter().rev().take_while(|other| other.due > due).count();
            let at = place.out.len() - behind;
            place.out.insert(at, Out { due, issued: now, ticket, cdb, outcome });
        }
        None
    }

    #[inline]
    fn poll(&self, lun: LunId, hctx: HctxId, ended: &mut Outcomes<'_>, now: Instant) {
        let mut place = self.place(lun, hctx).lock();
        while ended.room() > 0
            && let Some(Out { ticket, cdb, outcome, .. }) = place.out.pop_front_if(|out| out.due <= now)
        {
            ended.push(ticket, &outcome, Some(&cdb));
        }
    }

    fn abort(&self, lun: LunId, hctx: HctxId, late: TimedOut, now: Instant) -> Abort {
        let is_it = |ticket: &AcceptedCommand, issued: Instant| ticket.tag() == late.tag && issued == late.issued;
        let is_out = |place: &HctxCommands| {
            let slow = place.out.iter().any(|o| o.due > now && is_it(&o.ticket, o.issued));
            slow || place.lost.iter().any(|(issued, ticket, _)| is_it(ticket, *issued))
        };
        if !is_out(&self.place(lun, hctx).lock()) {
            return Abort::Gone;
        }
        match self.help(EhAid::Abort, lun, Some((hctx, late)), now).0 {
            Help::Begun => Abort::Begun,
            Help::Failed => Abort::Failed,
            Help::Done => {
                self.place(lun, hctx).lock().bring_back(HostByte::Abort, now, is_it);
                Abort::Begun
            }
        }
    }

    fn reset(&self, what: Reset, lun: LunId, now: Instant) -> Help {
        let how = self.help(EhAid::Reset(what), lun, None, now).0;
        if how == Help::Done {
            let all = if what == Reset::Lun { lun.0..lun.0 + 1 } else { 0..self.options.luns };
            all.for_each(|lun| self.bring_back(LunId(lun), HostByte::Reset, now));
        }
        how
    }

    fn drop_reset(&self, what: Reset, lun: LunId) {
        let aid = EhAid::Reset(what);
        self.helper.lock().under_way.retain(|u| (u.aid, u.lun) != (aid, lun));
    }

    fn probe(&self, lun: LunId, cdb: &Cdb, now: Instant) -> bool {
        let aid = EhAid::Probe(cdb.opcode());
        let (how, answer) = self.help(aid, lun, None, now);
        if how == Help::Done {
            let due = Some(now + self.options.delay);
            self.helper.lock().under_way.push(PendingAid { aid, lun, late: None, due, answer });
        }
        how != Help::Failed
    }

    fn probed(&self, lun: LunId, now: Instant) -> Option<Probed> {
        let mut helper = self.helper.lock();
        let is_answer =
            |u: &PendingAid| matches!(u.aid, EhAid::Probe(_)) && u.lun == lun && u.due.is_some_and(|due| due <= now);
        let at = helper.under_way.iter().position(is_answer)?;
        Some(helper.under_way.remove(at).answer)
    }

    fn drop_probe(&self, lun: LunId) {
        self.helper.lock().under_way.retain(|u| u.lun != lun || !matches!(u.aid, EhAid::Probe(_)));
    }

    fn abandon(&self, lun: LunId, now: Instant) {
        self.bring_back(lun, HostByte::NoConnect, now);
    }
}
