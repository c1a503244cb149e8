// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What operations of the host's kernel cost: a system call, waking a thread, switching to it, an interrupt; and a VM exit of its
//! hypervisor.
//!
//! Guarantees: overhead of the measurement (the system call around an operation, reading the clock) is measured as well and subtracted.
//! Does not do: a device's interrupt, which no program can cause. A timer's interrupt represents it: its handler does less than a
//! driver's. In a virtual machine the time includes what the hypervisor does to deliver the interrupt.

use super::{CostKind, Probe, line, per_op};
use crate::clock;
use crate::process::{UsageScope, pin_thread, usage};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub(super) fn probes(first: u32, other: Option<(u32, u32)>) -> Vec<Probe> {
    let mut all = vec![
        Probe::one(CostKind::Syscall, first, || Ok(syscall_ns())),
        Probe {
            gives: vec![CostKind::Switch],
            cpus: vec![first],
            run: Box::new(move |samples| {
                if let Some(ns) = switch_ns(first)? {
                    samples(CostKind::Switch, ns);
                }
                Ok(())
            }),
        },
        Probe::one(CostKind::Irq, first, timer_interrupt_ns),
        Probe::one(CostKind::VmExit, first, vm_exit_ns),
    ];
    let Some((a, b)) = other else { return all };
    all.push(Probe {
        gives: vec![CostKind::Wakeup, CostKind::WakeupDelay],
        cpus: vec![a, b],
        run: Box::new(move |samples| {
            if let Some((waker, delay)) = wakeup_ns(a, b)? {
                samples(CostKind::Wakeup, waker);
                samples(CostKind::WakeupDelay, delay);
            }
            Ok(())
        }),
    });
    all.push(Probe {
        gives: vec![CostKind::Ipi],
        cpus: vec![a, b],
        run: Box::new(move |samples| {
            if let Some(ns) = membarrier_ns(b)? {
                samples(CostKind::Ipi, ns);
            }
            Ok(())
        }),
    });
    all
}

fn failed(what: &str) -> String {
    format!("{what}: {}", std::io::Error::last_os_error())
}

/// A system call that does next to nothing, and that the C library does not answer itself.
fn syscall_ns() -> f64 {
    per_op(2_000, || {
        // SAFETY: takes no arguments and cannot fail.
        unsafe { libc::syscall(libc::SYS_getppid) };
    })
}

/// CPUID in a virtual machine, which always leaves it (Intel SDM volume 3, 27.1.2; on AMD all hypervisors ask for it) and is answered by the
/// hypervisor's kernel; so is a virtio disk's doorbell with an ioeventfd.
#[cfg(target_arch = "x86_64")]
fn vm_exit_ns() -> Result<f64, String> {
    use core::arch::x86_64::__cpuid;
    const IS_VIRTUAL: u32 = 1 << 31;
    if __cpuid(1).ecx & IS_VIRTUAL == 0 {
        return Err("this host is not a virtual machine: there is no hypervisor to exit to".into());
    }
    Ok(per_op(50, || {
        core::hint::black_box(__cpuid(1));
    }))
}

#[cfg(not(target_arch = "x86_64"))]
fn vm_exit_ns() -> Result<f64, String> {
    Err("known on x86-64 only".into())
}

/// Yields of a sample of switches.
const YIELDS: u32 = 500;

/// Two threads on one CPU that give it to each other. The kernel counts how often it did change, so yields that stayed are told
/// apart; `None`: another process had the CPU.
fn switch_ns(cpu: u32) -> Result<Option<f64>, String> {
    let there = AtomicU32::new(0);
    let until = clock::now().as_ns() + line::LIMIT_NS;
    let is_late = || clock::now().as_ns() > until;
    let here = || {
        let pinned = pin_thread(&[cpu]).map_err(|e| e.to_string());
        // Pairs with: switch_ns
        there.fetch_add(1, Ordering::AcqRel);
        // Pairs with: switch_ns
        while there.load(Ordering::Acquire) < 2 && !is_late() {
            std::thread::yield_now();
        }
        let before = usage(UsageScope::Thread).ctx;
        let begun = clock::now();
        for n in 0..YIELDS {
            if n % 16 == 0 && is_late() {
                break;
            }
            std::thread::yield_now();
        }
        let took = clock::now().since(begun).as_ns();
        pinned.map(|()| (took, usage(UsageScope::Thread).ctx - before))
    };
    let (one, two) = std::thread::scope(|s| {
        let (one, two) = (s.spawn(here), s.spawn(here));
        (one.join().expect("it yields only"), two.join().expect("it yields only"))
    });
    let ((took_a, switches_a), (took_b, switches_b)) = (one?, two?);
    if is_late() {
        return Ok(None);
    }
    // The two threads take turns, so the time of one thread is the time of both.
    let (took, switches) = (took_a.max(took_b) as f64, switches_a + switches_b);
    if switches < u64::from(YIELDS) / 2 {
        return Err(format!(
            "{switches} switches in {} calls of sched_yield: this kernel does not switch threads there",
            2 * YIELDS
        ));
    }
    let calls = f64::from(2 * YIELDS) * syscall_ns();
    Ok(Some(((took - calls) / switches as f64).max(1.0)))
}

/// Interrupts of a sample.
const SHOTS: usize = 20;
/// A timer is set so far ahead, and watched for twice as long after that.
const AHEAD_NS: u64 = 20_000;

/// A one-shot timer without a waiter expires on this CPU: the gap that it leaves in the readings of a thread that does nothing but
/// read the clock.
fn timer_interrupt_ns() -> Result<f64, String> {
    // SAFETY: takes two numbers; the descriptor has no owner yet.
    let timer = unsafe {
        let fd = libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK);
        if fd < 0 {
            return Err(failed("timerfd_create"));
        }
        OwnedFd::from_raw_fd(fd)
    };
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let at = libc::itimerspec { it_interval: zero, it_value: libc::timespec { tv_sec: 0, tv_nsec: AHEAD_NS as i64 } };
    let mut gaps = Vec::with_capacity(SHOTS);
    for _ in 0..SHOTS {
        // SAFETY: a live descriptor and a live itimerspec; no old value is asked for.
        if unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &at, std::ptr::null_mut()) } != 0 {
            return Err(failed("timerfd_settime"));
        }
        let begun = clock::now();
        let (mut last, mut widest, mut readings) = (begun, 0, 0u64);
        while last.since(begun).as_ns() < 3 * AHEAD_NS {
            let now = clock::now();
            widest = widest.max(now.since(last).as_ns());
            readings += 1;
            last = now;
        }
        let reading = (last.since(begun).as_ns() - widest) / readings.max(1);
        gaps.push(widest.saturating_sub(reading) as f64);
    }
    gaps.sort_by(f64::total_cmp);
    Ok(gaps[SHOTS / 2].max(1.0))
}

fn eventfd() -> Result<OwnedFd, String> {
    // SAFETY: takes two numbers; the descriptor has no owner yet.
    unsafe {
        let fd = libc::eventfd(0, libc::EFD_CLOEXEC);
        if fd < 0 { Err(failed("eventfd")) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// Wake-ups of a sample.
const WAKES: u32 = 20;
/// From the moment a thread says that it goes to sleep until it is surely asleep.
const ASLEEP_NS: u64 = 30_000;

/// A thread on `b` sleeps in a read of an eventfd, one on `a` wakes it: the time the waker's call takes more than one that
/// wakes no thread, and from there until the other one runs; medians. `None`: another process had the CPUs.
fn wakeup_ns(a: u32, b: u32) -> Result<Option<(f64, f64)>, String> {
    let event = eventfd()?;
    let fd = event.as_raw_fd();
    let (turns, woken_at) = (line::PingPong::new(), AtomicU64::new(0));
    let ring = || {
        let one = 1u64;
        // SAFETY: eight bytes of a live number.
        unsafe { libc::write(fd, (&raw const one).cast(), 8) }
    };
    std::thread::scope(|s| {
        let sleeper = s.spawn(|| {
            let pinned = pin_thread(&[b]).map_err(|e| e.to_string());
            for n in 0..WAKES {
                if turns.is_over() {
                    break;
                }
                turns.give(3 * n + 1);
                let mut count = 0u64;
                // SAFETY: eight bytes into a live number.
                unsafe { libc::read(fd, (&raw mut count).cast(), 8) };
                // Pairs with: wakeup_ns
                woken_at.store(clock::now().as_ns(), Ordering::Release);
                turns.give(3 * n + 2);
                if !turns.wait(3 * n + 3) {
                    break;
                }
            }
            pinned
        });
        let waker = s.spawn(|| {
            let pinned = pin_thread(&[a]).map_err(|e| e.to_string());
            let (mut calls, mut delays) = (Vec::new(), Vec::new());
            for n in 0..WAKES {
                if !turns.wait(3 * n + 1) {
                    break;
                }
                let sleeps = clock::now().as_ns() + ASLEEP_NS;
                while clock::now().as_ns() < sleeps {
                    core::hint::spin_loop();
                }
                let before = clock::now().as_ns();
                ring();
                let after = clock::now().as_ns();
                if !turns.wait(3 * n + 2) {
                    break;
                }
                calls.push((after - before) as f64);
                // Pairs with: wakeup_ns
                delays.push(woken_at.load(Ordering::Acquire).saturating_sub(after) as f64);
                turns.give(3 * n + 3);
            }
            // It may sleep for the turn that was given up.
            ring();
            pinned.map(|()| (calls, delays))
        });
        sleeper.join().expect("it sleeps only")?;
        let (calls, delays) = waker.join().expect("it wakes only")?;
        if calls.is_empty() || turns.is_over() {
            return Ok(None);
        }
        let alone = per_op(20, || {
            ring();
        });
        let median = |mut v: Vec<f64>| {
            v.sort_by(f64::total_cmp);
            v[v.len() / 2]
        };
        Ok(Some(((median(calls) - alone).max(1.0), median(delays).max(1.0))))
    })
}

/// Barriers of a sample.
const BARRIERS: u32 = 50;

/// A barrier in all running threads of this process, of which there is one more, on `b`: an IPI there and its answer. `None`: that
/// thread did not come to run.
fn membarrier_ns(b: u32) -> Result<Option<f64>, String> {
    let barrier = |command: libc::c_int| {
        // SAFETY: takes three numbers.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
    };
    if barrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) != 0 {
        return Err(failed("membarrier, in place of an IPI"));
    }
    let turns = line::PingPong::new();
    std::thread::scope(|s| {
        let busy = s.spawn(|| {
            let pinned = pin_thread(&[b]).map_err(|e| e.to_string());
            turns.give(1);
            let _ = turns.wait(2);
            pinned
        });
        if !turns.wait(1) {
            return Ok(None);
        }
        let ns = per_op(BARRIERS, || {
            barrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
        });
        turns.give(2);
        busy.join().expect("it spins only")?;
        Ok(Some((ns - syscall_ns()).max(1.0)))
    })
}
