// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Disks without interrupts: waiting threads collect completions themselves, as this program's threads do with the driver
//! `model` in real time.
//!
//! A waiting thread sleeps on its own timer until the first I/O of its hardware queue completes. So all threads that wait in
//! one hardware queue are woken for the same I/O, and each polls. A poll collects completions for all threads, and retries
//! the thread's bios that wait for a tag. While a thread has such bios it polls every 100 us. A notification, or an I/O that
//! completes before all others, makes all threads of the hardware queue poll at once. That decides which thread gets a tag. A
//! kernel behaves differently: there a process that waits for a tag sleeps through completions.
//!
//! Guarantees: waking an idle CPU by a timer takes time as any wake-up does, and the thread may then move to a free CPU. Does
//! not do: wait in more than the first of a thread's hardware queues; neither does `crates/host/src/run/waiter.rs`.

use super::super::task::TaskVolume;
use super::{Event, Machine, TaskState};
use blk::time::Instant;

/// Longest sleeps of a thread of this program (`crates/host/src/run/waiter.rs`): with a bio that waits for a tag, and without.
const BLIND_NS: u64 = 100_000;
const LOOK_AROUND_NS: u64 = 50_000_000;

impl Machine {
    /// Makes a disk one without interrupts; its device must be a polled one. A thread that waits for the disk sleeps until
    /// something may be done in its hardware queue, and collects all completions. To be called before threads are added.
    pub fn let_waiters_poll(&mut self, disk: u16) {
        self.disks[usize::from(disk)].is_polled = true;
    }

    /// When a thread that sleeps from `at` on first polls its disks by itself.
    fn first_look(&self, task: u32, at: u64) -> u64 {
        let first = |volume: &TaskVolume| {
            let d = &self.disks[usize::from(volume.disk)];
            let due = volume.sub.hctxs().filter_map(|h| d.device.next_due(h.index() as u16)).min();
            let timer = d.q.next_timer().map(Instant::as_ns);
            // Another thread may release the tag that a bio waits for.
            let short = (volume.sub.waiting() > 0).then_some(at + BLIND_NS);
            due.into_iter().chain(timer).chain(short).min()
        };
        self.tasks[task as usize].volumes.iter().filter_map(first).fold(at + LOOK_AROUND_NS, u64::min).max(at)
    }

    /// Schedules the poll of a thread of `cpu` that sleeps from `at` on, by `until` at the latest. If something is due, the
    /// thread does not sleep at all.
    pub(super) fn set_timer(&mut self, task: u32, cpu: u32, until: u64, at: u64) {
        let until = self.first_look(task, at).min(until);
        let t = &mut self.tasks[task as usize];
        if until > at {
            return self.events.push(until, Event::Ready { task, sleep: t.sleep });
        }
        t.state = TaskState::Runs;
        self.stand_in_line(cpu, task);
    }

    /// Handles the expiry of a thread's timer, on the CPU where the thread went to sleep.
    pub(super) fn wake_by_timer(&mut self, task: u32, at: u64) {
        let cpu = self.tasks[task as usize].cpu;
        self.rouse(cpu, at);
        let irq_ns = u64::from(self.costs.path.irq_ns);
        let c = &mut self.cpus[cpu as usize];
        c.free_at = c.free_at.max(at) + irq_ns;
        c.times.irq_ns += irq_ns;
        c.put_off(irq_ns);
        let at = c.free_at;
        self.wake(task, cpu, at);
    }

    /// Wakes all threads that sleep in a hardware queue, because the driver has one condition variable for all of them.
    pub(super) fn wake_sleepers(&mut self, disk: u16, hctx: u16, cpu: u32, at: u64) {
        let nr = self.disks[usize::from(disk)].handlers[usize::from(hctx)].all.len();
        for i in 0..nr {
            let task = self.disks[usize::from(disk)].handlers[usize::from(hctx)].all[i].task;
            self.wake(task, cpu, at);
        }
    }
}
