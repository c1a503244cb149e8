// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Disks without interrupts: waiting threads collect, as the threads of this program do at its driver `model` in real
//! time.
//!
//! A waiting thread sleeps on a timer of its own until the first I/O of its hardware queue is done. So all that wait in one
//! hardware queue are woken for the same I/O, and each polls. It collects what is done, for all threads, and tries its bios
//! that wait for a tag. While it has such bios it does so every 100 us. What makes one of them poll at once (a notification,
//! an I/O that is done before all others) makes all of the hardware queue poll. That decides which thread gets a tag. A
//! kernel behaves otherwise: there a process that waits for a tag sleeps through completions.
//!
//! Guarantees: a timer's CPU needs its time to begin like any other's, and the thread may then go to another CPU that is
//! free. Does not do: wait in more than the first of a thread's hardware queues, as `crates/host/src/run/waiter.rs` does
//! not.

use super::super::task::TaskVolume;
use super::{Event, Machine, TaskState};
use blk::time::Instant;

/// As long as a thread of this program sleeps at most (`crates/host/src/run/waiter.rs`): with a bio that waits for a tag, and without.
const BLIND_NS: u64 = 100_000;
const LOOK_AROUND_NS: u64 = 50_000_000;

impl Machine {
    /// A disk does not interrupt, and its device is made so: a thread that waits for it sleeps until something of its hardware queue may be done,
    /// and collects whatever is. Before threads are added.
    pub fn let_waiters_poll(&mut self, disk: u16) {
        self.disks[usize::from(disk)].is_polled = true;
    }

    /// When a thread that sleeps from `at` on polls its disks by itself.
    fn first_look(&self, task: u32, at: u64) -> u64 {
        let first = |volume: &TaskVolume| {
            let d = &self.disks[usize::from(volume.disk)];
            let due = volume.sub.hctxs().filter_map(|h| d.device.next_due(h.index() as u16)).min();
            let timer = d.q.next_timer().map(Instant::as_ns);
            // Another thread may bring what a bio waits for.
            let short = (volume.sub.waiting() > 0).then_some(at + BLIND_NS);
            due.into_iter().chain(timer).chain(short).min()
        };
        self.tasks[task as usize].volumes.iter().filter_map(first).fold(at + LOOK_AROUND_NS, u64::min).max(at)
    }

    /// Has a thread of `cpu` that sleeps from `at` on poll its disks by itself, by `until` at the latest. If something is due,
    /// it does not sleep at all.
    pub(super) fn set_timer(&mut self, task: u32, cpu: u32, until: u64, at: u64) {
        let until = self.first_look(task, at).min(until);
        let t = &mut self.tasks[task as usize];
        if until > at {
            return self.events.push(until, Event::Ready { task, sleep: t.sleep });
        }
        t.state = TaskState::Runs;
        self.stand_in_line(cpu, task);
    }

    /// The timer of a thread goes off, on the CPU where it went to sleep.
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

    /// All that sleep in a hardware queue look again, as the driver's one condition variable has it.
    pub(super) fn wake_sleepers(&mut self, disk: u16, hctx: u16, cpu: u32, at: u64) {
        let nr = self.disks[usize::from(disk)].handlers[usize::from(hctx)].all.len();
        for i in 0..nr {
            let task = self.disks[usize::from(disk)].handlers[usize::from(hctx)].all[i].task;
            self.wake(task, cpu, at);
        }
    }
}
