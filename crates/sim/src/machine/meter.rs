// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clock of the CPU that is being simulated, and a lock that advances it.
//!
//! While the machine runs a piece of work of one of its CPUs, the block layer's locks report how long that CPU waited. They
//! count the wait for another CPU, and the transfer time of the lock's cache lines. So contention is that of the core's own
//! lock domains.
//!
//! Guarantees: a lock is held by one CPU at a time of virtual time, in the order in which the machine runs the CPUs.
//! Outside [`run`] the lock is a plain mutex. Needs from callers: pieces of work that are short compared with the time
//! between events. A piece is run as a whole, so a piece that begins earlier gets its locks first, even a lock that it
//! takes late.

#![allow(unsafe_code, reason = "lock_api's trait for locks is an unsafe one; this one forwards to parking_lot's")]

use super::costs::{KernelCosts, LineCosts, Shape, Waiting};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// No CPU.
const NO_CPU: u32 = u32::MAX;

struct Meter {
    on: Cell<bool>,
    cpu: Cell<u32>,
    now: Cell<u64>,
    begun: Cell<u64>,
    spun: Cell<u64>,
    hold: Cell<u64>,
    horizon: Cell<u64>,
    shape: Cell<Shape>,
    line: Cell<LineCosts>,
    kernel: Cell<KernelCosts>,
    /// Number of other CPUs.
    others: Cell<u64>,
}

const NO_COSTS: LineCosts =
    LineCosts { atomic_ns: 0, core_ns: 0, socket_ns: 0, remote_ns: 0, lines: 0, waiting: Waiting::Queued };

thread_local! {
    static METER: Meter = const { Meter {
        on: Cell::new(false),
        cpu: Cell::new(0),
        now: Cell::new(0),
        begun: Cell::new(0),
        spun: Cell::new(0),
        hold: Cell::new(0),
        horizon: Cell::new(u64::MAX),
        shape: Cell::new(Shape { sockets: 1, cores: 1, threads: 1 }),
        line: Cell::new(NO_COSTS),
        kernel: Cell::new(KernelCosts { hold_pct: 100, lines_pct: 100 }),
        others: Cell::new(0),
    } };
}

/// The cost of a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// When it ended.
    pub end_ns: u64,
    /// How long it waited for locks.
    pub spun_ns: u64,
}

/// Sets the costs of locks and cache lines for this thread's machine.
pub fn configure(shape: Shape, line: LineCosts, kernel: KernelCosts) {
    METER.with(|m| {
        m.shape.set(shape);
        m.line.set(line);
        m.kernel.set(kernel);
        m.others.set(u64::from(shape.cpus()) - 1);
    });
}

/// Runs a piece of work of `cpu` that begins at `now`; each lock it takes is held for `hold_ns`.
#[inline]
pub fn run(cpu: u32, now_ns: u64, hold_ns: u32, work: impl FnOnce()) -> Spent {
    METER.with(|m| {
        m.on.set(true);
        m.cpu.set(cpu);
        m.now.set(now_ns);
        m.begun.set(now_ns);
        m.spun.set(0);
        m.horizon.set(u64::MAX);
        m.hold.set(u64::from(hold_ns));
    });
    work();
    METER.with(|m| {
        m.on.set(false);
        Spent { end_ns: m.now.get(), spun_ns: m.spun.get() }
    })
}

/// Adds `ns` of work to the running CPU's time.
#[inline]
pub fn charge(ns: u32) {
    METER.with(|m| m.now.set(m.now.get() + u64::from(ns)));
}

/// Returns the running CPU's time.
#[inline]
pub fn now() -> u64 {
    METER.with(|m| m.now.get())
}

/// Announces another event at `at`, when interruptible work should yield.
#[inline]
pub fn expect(at: u64) {
    METER.with(|m| m.horizon.set(m.horizon.get().min(at)));
}

/// Whether the announced event is due.
#[inline]
pub fn is_due() -> bool {
    METER.with(|m| m.now.get() > m.horizon.get())
}

/// The running CPU asks for a lock. Returns the CPU, the time after its atomic operation, and the time before which no CPU
/// will ask any more; `None` outside [`run`].
#[inline]
pub fn ask_for_lock() -> Option<(u32, u64, u64)> {
    METER.with(|m| m.on.get().then(|| (m.cpu.get(), m.now.get() + u64::from(m.line.get().atomic_ns), m.begun.get())))
}

/// The running CPU, which asked at `asked`, got the lock at `from` and released it at `to`.
#[inline]
pub fn held(asked: u64, from: u64, to: u64) {
    METER.with(|m| {
        m.spun.set(m.spun.get() + (from - asked));
        m.now.set(to);
    });
}

/// Returns how long a CPU takes to fetch one line from another CPU.
#[inline]
pub fn line_ns(from: u32, to: u32) -> u64 {
    METER.with(|m| m.line.get().line_ns(m.shape.get().distance(from, to)))
}

/// Returns how long code of the kernel's table takes.
#[inline]
pub fn scaled(ns: u32) -> u32 {
    METER.with(|m| ns * m.kernel.get().hold_pct / 100)
}

/// Returns the costs of the kernel's locks.
#[inline]
pub fn kernel_costs() -> KernelCosts {
    METER.with(|m| m.kernel.get())
}

/// See the module's text.
pub struct MeteredLock {
    lock: parking_lot::RawMutex,
    /// When the lock was last released, and how long that turn took, including the transfer of cache lines.
    free_at: AtomicU64,
    turn_ns: AtomicU64,
    turn_at: AtomicU64,
    owner: AtomicU32,
}

impl MeteredLock {
    #[inline]
    fn taken(&self) {
        METER.with(|m| {
            if !m.on.get() {
                return;
            }
            let (cpu, line) = (m.cpu.get(), m.line.get());
            let mut now = m.now.get() + u64::from(line.atomic_ns);
            let owner = self.owner.load(Ordering::Relaxed);
            let mut waiters = 0;
            let free_at = self.free_at.load(Ordering::Relaxed);
            if free_at > now {
                let wait = free_at - now;
                // Each waiter has a turn before this one; there are at most as many as other CPUs.
                waiters = (wait / self.turn_ns.load(Ordering::Relaxed).max(1)).min(m.others.get());
                m.spun.set(m.spun.get() + wait);
                now = free_at;
            }
            self.turn_at.store(now, Ordering::Relaxed);
            if owner != cpu && owner != NO_CPU {
                let one = line.line_ns(m.shape.get().distance(owner, cpu));
                let extra = if line.waiting == Waiting::Ticket { waiters } else { 0 };
                now += one * (u64::from(line.lines) + extra);
            }
            self.owner.store(cpu, Ordering::Relaxed);
            m.now.set(now);
        });
    }

    #[inline]
    fn given_back(&self) {
        METER.with(|m| {
            if m.on.get() {
                let now = m.now.get() + m.hold.get();
                m.now.set(now);
                self.free_at.store(now, Ordering::Relaxed);
                self.turn_ns.store(now - self.turn_at.load(Ordering::Relaxed).min(now), Ordering::Relaxed);
            }
        });
    }
}

/// A lock whose hold time is known when it is taken. It keeps a calendar of holds. A CPU that arrives at an earlier virtual
/// time thus gets the lock before a hold that was recorded first but begins later. The lock guards no data; it only
/// accounts for time.
#[derive(Default)]
pub struct Calendar(parking_lot::Mutex<LockHolds>);

#[derive(Default)]
struct LockHolds {
    /// Begin and end of each hold, in order.
    holds: VecDeque<(u64, u64)>,
    owner: Option<u32>,
}

/// Number of holds that are remembered. They cover a few microseconds, which is as far as the clocks of CPUs are apart.
const REMEMBERED: usize = 64;

impl Calendar {
    /// The running CPU waits for the lock, holds it for `ns` plus the costs of any lock, and releases it.
    pub fn take_for(&self, ns: u32) {
        let mut b = self.0.lock();
        METER.with(|m| {
            let (cpu, line) = (m.cpu.get(), m.line.get());
            let came = m.now.get() + u64::from(line.atomic_ns);
            let one = b.owner.replace(cpu).map_or(0, |o| line.line_ns(m.shape.get().distance(o, cpu)));
            let held = m.hold.get() + u64::from(ns) + one * u64::from(line.lines);
            let (mut at, mut place, mut waited) = (came, b.holds.len(), 0);
            for (i, (from, to)) in b.holds.iter().enumerate() {
                if at + held <= *from {
                    place = i;
                    break;
                }
                waited += u64::from(*to > came);
                at = at.max(*to);
            }
            let extra = if line.waiting == Waiting::Ticket { one * waited } else { 0 };
            let end = at + held + extra;
            b.holds.insert(place, (at, end));
            if b.holds.len() > REMEMBERED {
                b.holds.pop_front();
            }
            m.spun.set(m.spun.get() + (at - came));
            m.now.set(end);
        });
    }
}

// SAFETY: the inner lock provides the exclusion. `lock` returns, and `try_lock` returns true, after the inner lock was
// taken and before `unlock` releases it. The rest is bookkeeping in atomics.
unsafe impl lock_api::RawMutex for MeteredLock {
    #[allow(clippy::declare_interior_mutable_const, reason = "the trait's way of making a lock")]
    const INIT: MeteredLock = MeteredLock {
        lock: <parking_lot::RawMutex as lock_api::RawMutex>::INIT,
        free_at: AtomicU64::new(0),
        turn_ns: AtomicU64::new(0),
        turn_at: AtomicU64::new(0),
        owner: AtomicU32::new(NO_CPU),
    };

    type GuardMarker = lock_api::GuardSend;

    #[inline]
    fn lock(&self) {
        self.lock.lock();
        self.taken();
    }

    #[inline]
    fn try_lock(&self) -> bool {
        let got = self.lock.try_lock();
        if got {
            self.taken();
        }
        got
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.given_back();
        // SAFETY: the trait requires that the caller holds the lock.
        unsafe { self.lock.unlock() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_api::RawMutex;

    type Mutex = lock_api::Mutex<MeteredLock, ()>;

    const COSTS: LineCosts =
        LineCosts { atomic_ns: 1, core_ns: 10, socket_ns: 100, remote_ns: 1000, lines: 2, waiting: Waiting::Queued };

    fn configure_two_by_two() {
        configure(Shape { sockets: 2, cores: 2, threads: 1 }, COSTS, KernelCosts::default());
    }

    fn configure_eight(waiting: Waiting) {
        let shape = Shape { sockets: 1, cores: 8, threads: 1 };
        configure(shape, LineCosts { waiting, ..COSTS }, KernelCosts::default());
    }

    #[test]
    fn a_lock_costs_what_its_hand_over_costs() {
        configure_two_by_two();
        let m = Mutex::new(());
        let take = |cpu, now| run(cpu, now, 50, || drop(m.lock()));
        assert_eq!(take(0, 0), Spent { end_ns: 51, spun_ns: 0 });
        assert_eq!(take(0, 100), Spent { end_ns: 151, spun_ns: 0 }, "its own");
        assert_eq!(take(1, 200), Spent { end_ns: 200 + 1 + 200 + 50, spun_ns: 0 }, "two lines from the next core");
        assert_eq!(take(2, 1000), Spent { end_ns: 1000 + 1 + 2000 + 50, spun_ns: 0 }, "from the other socket");
    }

    #[test]
    fn a_late_taker_waits_while_it_is_held() {
        configure_two_by_two();
        let m = Mutex::new(());
        run(0, 0, 1000, || drop(m.lock()));
        assert_eq!(run(1, 400, 1000, || drop(m.lock())), Spent { end_ns: 1001 + 200 + 1000, spun_ns: 600 });
    }

    #[test]
    fn a_late_lock_in_a_piece_does_not_delay_an_earlier_one() {
        configure_two_by_two();
        let c = Calendar::default();
        let late = run(0, 0, 50, || {
            charge(10_000);
            c.take_for(100);
        });
        assert_eq!(late, Spent { end_ns: 10_151, spun_ns: 0 });
        assert_eq!(run(0, 5_000, 50, || c.take_for(100)), Spent { end_ns: 5_151, spun_ns: 0 });
        assert_eq!(run(0, 9_900, 50, || c.take_for(100)).spun_ns, 250, "the gap before is too short");
        assert_eq!(run(0, 10_010, 50, || c.take_for(100)).spun_ns, 290, "a later one waits for all before");
    }

    #[test]
    fn a_ticket_lock_costs_a_line_for_each_that_waits() {
        configure_eight(Waiting::Ticket);
        let ends = |waiting| {
            configure_eight(waiting);
            let m = Mutex::new(());
            (0..8).map(|cpu| run(cpu, 0, 1000, || drop(m.lock())).end_ns).last().unwrap()
        };
        assert!(ends(Waiting::Ticket) > ends(Waiting::Queued) + 1000);
    }

    /// Each waiter costs one line transfer. The cost once grew without bound for short critical sections.
    #[test]
    fn a_ticket_lock_costs_at_most_a_line_for_each_cpu() {
        configure_eight(Waiting::Ticket);
        let m = Mutex::new(());
        let mut at = [0; 8];
        for round in 0..1000 {
            let end = (0..8).map(|cpu| run(cpu, at[cpu as usize], 10, || drop(m.lock())).end_ns).collect::<Vec<_>>();
            let longest = 8 * (1 + (2 + 7) * 100 + 10);
            let took = end.iter().zip(&at).map(|(e, a)| e - a).max().unwrap();
            assert!(took <= longest, "round {round}: {took} ns for one turn");
            at.copy_from_slice(&end);
        }
    }

    #[test]
    fn outside_of_a_run_it_is_a_plain_lock() {
        let m = Mutex::new(());
        let guard = m.lock();
        assert!(m.try_lock().is_none());
        drop(guard);
        let raw = MeteredLock::INIT;
        assert!(raw.try_lock());
        assert!(!raw.try_lock());
        // SAFETY: taken above.
        unsafe { raw.unlock() };
        assert!(raw.try_lock());
    }
}
