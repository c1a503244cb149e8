// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPUs that go offline and come back online, and the handling of their submitters and hardware queues.
//!
//! Guarantees: once [`RequestQueue::is_offline`] is true, no submitter submits from that CPU, and its software queues are
//! empty. A hardware queue without another online CPU has no tag in use then, so a driver may shut it down. No request is
//! lost, and none waits for the CPU to come back.
//!
//! How: first drain, then move, as the kernel does. A submitter of the CPU is notified, moves in its next call, and
//! continues from the nearest online CPU. It polls its former queues as long as it has bios in flight. Other submitters
//! never stop, and have no extra cost: they check only the word that a freeze sets. When the CPU is back online, its
//! submitters return when they are next idle.
//!
//! Does not do: detecting that a CPU goes offline; the owner of the threads reports it. The map of CPUs to hardware
//! queues does not change, as in the kernel, where it covers all possible CPUs. Source: block/blk-mq.c
//! (`blk_mq_hctx_notify_offline`, `blk_mq_hctx_notify_dead`, `blk_mq_hctx_notify_online`), commit bf0beec0607d.

use super::online::{LEAVING, OFFLINE, ONLINE};
use crate::cpumap::HctxType;
use crate::id::{CpuId, HctxId};
use crate::lock::Lock;
use crate::queue::request_queue::RequestQueue;
use crate::queue::state::QueueState;
use crate::submitter::{Env, Local, Submitter};
use crate::time::Instant;

/// Why a CPU cannot go offline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HotplugError {
    /// The stack has no such CPU.
    #[error("cpu={cpu}: must be 0..={}, the stack's CPUs", .nr_cpus - 1)]
    NoSuchCpu {
        /// The requested CPU number.
        cpu: usize,
        /// Number of CPUs of the stack.
        nr_cpus: usize,
    },
    /// It is the last CPU online: no CPU would be left to submit.
    #[error("cpu={0}: is the last CPU online; bring another CPU online first")]
    LastOne(usize),
}

impl<L: Lock> RequestQueue<L> {
    /// Begins to take `cpu` offline: its submitters are notified and move to other CPUs. Poll
    /// [`RequestQueue::is_offline`] until it is true. Does nothing if the CPU is leaving or offline already.
    ///
    /// # Errors
    /// There is no such CPU, or no other CPU is online.
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
        // Submitters that enter see the new generation; submitters that are inside see the gate.
        self.renew_generation();
        self.begin_leaving();
        self.notify_all();
        Ok(())
    }

    /// Whether a CPU for which [`RequestQueue::begin_offline`] was called is offline: its submitters have left, and its hardware
    /// queues without another online CPU are drained. Submitters have to continue polling for this to become true. Panics when
    /// the stack has no such CPU.
    pub fn is_offline(&self, cpu: CpuId) -> bool {
        let _one = self.sealing.lock();
        let state = self.online.get(cpu.index());
        if state != LEAVING {
            return state == OFFLINE;
        }
        // If the queue is drained there is nothing to check, and its state may be in replacement.
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

    /// Brings a CPU back online. Its submitters return to it when they are next idle. Panics when the stack has no such
    /// CPU.
    pub fn online(&self, cpu: CpuId) {
        let _one = self.sealing.lock();
        if self.online.get(cpu.index()) == LEAVING {
            self.end_leaving();
        }
        self.online.set(cpu.index(), ONLINE);
        self.renew_generation();
    }

    /// Whether the CPU is online and not about to leave. Panics when the stack has no such CPU.
    pub fn is_online(&self, cpu: CpuId) -> bool {
        self.online.get(cpu.index()) == ONLINE
    }

    /// Whether a CPU of the hardware queue is online; if none is, the hardware queue is inactive (`BLK_MQ_S_INACTIVE`).
    pub(crate) fn hctx_has_cpu(&self, st: &QueueState<L>, hctx: usize) -> bool {
        st.hctxs[hctx].cpus.iter().any(|c| self.online.get(c.index()) == ONLINE)
    }

    fn is_last_cpu_in_use(&self, st: &QueueState<L>, cpu: CpuId, ty: HctxType) -> bool {
        let hctx = usize::from(st.map.hctx(cpu.index() as u16, ty));
        !self.hctx_has_cpu(st, hctx) && st.hctx_tags_in_use(hctx) > 0
    }

    /// Moves the requests in a software queue of an offline CPU to `hctx->dispatch`, from which any CPU can dispatch
    /// them.
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
    /// Moves this submitter to its home CPU, or to the CPU that replaces it. First flushes the plug of the present CPU.
    #[cold]
    pub(crate) fn follow_cpu(&mut self, now: Instant) {
        loop {
            let to = self.env.q.online.stand_in(self.home);
            // Checked again after each step: this thread publishes its CPU and then checks that the CPU stays online,
            // while the other marks the CPU as leaving and then checks which submitters are on it.
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

    /// The part of a poll for a submitter that is not on its home CPU, or still polls its former hardware queues.
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

    /// Returns the hardware queues to which this submitter's requests go or have gone, without repeats: these have its
    /// completions.
    pub fn hctxs(&self) -> impl Iterator<Item = HctxId> + '_ {
        let all = self.env.polled().iter().chain(&self.local.left_behind);
        all.map(|h| HctxId::new(u32::from(*h)))
    }
}

impl<L: Lock> Env<L> {
    /// Removes this submitter from the wait queue for a tag that it may not need any more, and passes on a wake-up that
    /// it received.
    fn forget_tag_wait(&self, local: &mut Local) {
        self.return_cached_tags(local);
        self.note_wake_up(local);
        local.blocked_on_tag = false;
        self.settle_tag_wait(local);
    }
}
