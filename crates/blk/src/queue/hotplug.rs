// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPUs that go away and come back, and what becomes of their hardware queues.
//!
//! Guarantees: once [`RequestQueue::is_offline`] is true, no submitter submits from that CPU, and its software queues are
//! empty. A hardware queue that had no other CPU has no tag in use then: a driver may shut it down. No request is lost on
//! the way and none waits for the CPU to come back.
//!
//! How: first drain, then move, as the kernel does. A submitter of the CPU finds out at its next call (it is notified) and
//! continues from the nearest CPU that is left. It polls the queues it came from as long as it has bios in flight. The
//! others never stop, and pay nothing: they check only the word that a freeze sets. When the CPU is back its submitters
//! return at their next idle moment.
//!
//! Does not do: finding out that a CPU goes away; the owner of the threads reports it. The map of CPUs to hardware queues
//! stays, as in the kernel, where it covers all possible CPUs. Source: block/blk-mq.c (`blk_mq_hctx_notify_offline`,
//! `blk_mq_hctx_notify_dead`, `blk_mq_hctx_notify_online`), commit bf0beec0607d.

use super::online::{LEAVING, OFFLINE, ONLINE};
use crate::cpumap::HctxType;
use crate::id::{CpuId, HctxId};
use crate::lock::Lock;
use crate::queue::request_queue::RequestQueue;
use crate::queue::state::QueueState;
use crate::submitter::{Env, Local, Submitter};
use crate::time::Instant;

/// Why a CPU cannot go away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HotplugError {
    /// The stack has no such CPU.
    #[error("cpu={cpu}: must be 0..={}, the stack's CPUs", .nr_cpus - 1)]
    NoSuchCpu {
        /// What was asked for.
        cpu: usize,
        /// How many there are.
        nr_cpus: usize,
    },
    /// It is the last one: no CPU would be left to submit.
    #[error("cpu={0}: is the last CPU online; bring another CPU online first")]
    LastOne(usize),
}

impl<L: Lock> RequestQueue<L> {
    /// Begins to take `cpu` away: its submitters are notified and go elsewhere; ask [`RequestQueue::is_offline`] until it
    /// is true. Nothing happens if it is leaving or gone already.
    ///
    /// # Errors
    /// There is no such CPU, or no other is left.
    pub fn begin_offline(&self, cpu: CpuId) -> Result<(), HotplugError> {
        let _one = self.sealing.lock();
        let mask = &self.online;
        let nr_cpus = mask.nr_cpus();
        if cpu.index() >= nr_cpus {
            return Err(HotplugError::NoSuchCpu { cpu: cpu.index(), nr_cpus });
        }
        if mask.get(cpu.index()) != ONLINE {
            return Ok(());
        }
        if (0..nr_cpus).filter(|c| mask.get(*c) == ONLINE).count() == 1 {
            return Err(HotplugError::LastOne(cpu.index()));
        }
        mask.set(cpu.index(), LEAVING);
        // Submitters that come in from outside see the generation, those inside the gate.
        self.renew_generation();
        self.begin_leaving();
        self.notify_all();
        Ok(())
    }

    /// Whether a CPU that [`RequestQueue::begin_offline`] was called for is gone: its submitters have left and hardware
    /// queues of no other CPU are drained. Submitters have to continue polling for this to become true. Panics when the stack has
    /// no such CPU.
    pub fn is_offline(&self, cpu: CpuId) -> bool {
        let _one = self.sealing.lock();
        let state = self.online.get(cpu.index());
        if state != LEAVING {
            return state == OFFLINE;
        }
        // Of a drained queue nothing is left to check, and its state may just be replaced.
        if !self.is_sealed() {
            if !self.each_submitter(|s| !s.is_inside() || s.cpu() != cpu) {
                return false;
            }
            let st = self.state();
            if HctxType::ALL.iter().any(|ty| self.is_last_cpu_in_use(&st, cpu, *ty)) {
                return false;
            }
            for ty in HctxType::ALL {
                self.dispatch_dead_ctx(&st, cpu, ty);
            }
        }
        self.online.set(cpu.index(), OFFLINE);
        self.end_leaving();
        true
    }

    /// Brings a CPU back. Its submitters return from where they went at their next idle moment. Panics when the stack has
    /// no such CPU.
    pub fn online(&self, cpu: CpuId) {
        let _one = self.sealing.lock();
        if self.online.get(cpu.index()) == LEAVING {
            self.end_leaving();
        }
        self.online.set(cpu.index(), ONLINE);
        self.renew_generation();
    }

    /// Whether the CPU is there and not about to leave. Panics when the stack has no such CPU.
    pub fn is_online(&self, cpu: CpuId) -> bool {
        self.online.get(cpu.index()) == ONLINE
    }

    /// Whether some CPU of the hardware queue is online: if not, it is inactive (`BLK_MQ_S_INACTIVE`).
    pub(crate) fn hctx_has_cpu(&self, st: &QueueState<L>, hctx: usize) -> bool {
        st.hctxs[hctx].cpus.iter().any(|c| self.online.get(c.index()) == ONLINE)
    }

    fn is_last_cpu_in_use(&self, st: &QueueState<L>, cpu: CpuId, ty: HctxType) -> bool {
        let hctx = usize::from(st.map.hctx(cpu.index() as u16, ty));
        !self.hctx_has_cpu(st, hctx) && st.hctx_tags_in_use(hctx) > 0
    }

    /// What is left in a software queue of a CPU that is gone goes to where any CPU dispatches it from.
    fn dispatch_dead_ctx(&self, st: &QueueState<L>, cpu: CpuId, ty: HctxType) {
        let ctx = st.ctx(cpu, ty);
        if ctx.rqs.is_empty() {
            return;
        }
        let h = &st.hctxs[usize::from(st.map.hctx(cpu.index() as u16, ty))];
        ctx.rqs.with(|rqs| {
            h.ctx_map.clear_bit(ctx.index_in_hctx);
            h.dispatch.with(|list| list.extend(rqs.drain(..)));
        });
        h.set_flag(crate::queue::hctx::state::RUN_PENDING);
        self.owe_work();
        self.notify_all();
    }
}

impl<L: Lock> Submitter<L> {
    /// Goes to the CPU where this submitter belongs now: home, or its stand-in. What it holds back for its present CPU is
    /// sent on its way before.
    #[cold]
    pub(crate) fn follow_cpu(&mut self, now: Instant) {
        loop {
            let to = self.env.q.online.stand_in(self.home);
            // Checked once more after each step: "publish my CPU, then check whether it stays" against "mark the CPU as
            // leaving, then check which submitters are there".
            if to == self.env.cpu {
                break;
            }
            self.go_to(to, now);
        }
        self.note_displaced();
    }

    fn note_displaced(&mut self) {
        self.displaced = self.env.cpu != self.home || !self.local.left_behind.is_empty();
    }

    fn go_to(&mut self, to: CpuId, now: Instant) {
        let (env, local) = (&mut self.env, &mut self.local);
        env.flush_plug(local, now);
        env.forget_tag_wait(local);
        local.left_behind.extend_from_slice(env.polled());
        env.go_to(to);
        env.trace_cpu(local, to);
        let polled = env.polled();
        local.left_behind.retain(|h| !polled.contains(h));
        local.left_behind.sort_unstable();
        local.left_behind.dedup();
    }

    /// Part of a poll of one that is not at home, or still polling the hardware queues it came from.
    #[cold]
    pub(crate) fn poll_displaced(&mut self, now: Instant) {
        let (env, local) = (&self.env, &mut self.local);
        let mut hctxs = core::mem::take(&mut local.left_behind);
        hctxs.retain(|h| {
            let hctx = usize::from(*h);
            env.poll_hctx(local, hctx, now);
            env.st.hctx_tags_in_use(hctx) > 0
        });
        if env.in_flight() == 0 {
            hctxs.clear();
        }
        local.left_behind = hctxs;
        self.note_displaced();
        if self.env.cpu != self.home && self.env.q.is_online(self.home) {
            self.follow_cpu(now);
        }
    }

    /// Hardware queues this submitter's requests go to or have gone to, without repeats: where its completions appear.
    pub fn hctxs(&self) -> impl Iterator<Item = HctxId> + '_ {
        let all = self.env.polled().iter().chain(&self.local.left_behind);
        all.map(|h| HctxId::new(u32::from(*h)))
    }
}

impl<L: Lock> Env<L> {
    /// Takes this submitter out of the line for a tag it may not want any more; a wake-up spent on it goes to others.
    fn forget_tag_wait(&self, local: &mut Local) {
        self.return_cached_tags(local);
        self.note_wake_up(local);
        local.blocked_on_tag = false;
        self.settle_tag_wait(local);
    }
}
