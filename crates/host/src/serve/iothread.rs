// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An IOThread: serves its sources in rounds, polls for a while when there is no work, then sleeps.
//!
//! Guarantees: a source is handed back only when none of its requests is in flight. A kick, a completion, a timer, a command or a wake-up
//! from another thread ends a sleep. One clock reading serves a round.

use super::adaptive::{Adaptive, For};
use super::disk::ServedDisk;
use super::iothreads::{Added, Command, SourceHandle, SourceRecord, SourceReport, ThreadOptions, ThreadReport};
use super::port::{Port, SourceId};
use super::source::{Source, SourceLabel};
use super::trial::{ThreadUsage, Trial};
use super::wakeup::Wakeups;
use crate::clock;
use crate::error::{Error, Result};
use crate::process::{UsageScope, pin_thread, usage};
use blk::submitter::Done;
use blk::time::{Duration, Instant};
use rustix::event::epoll;
use rustix::time::Timespec;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};

/// Maximum number of events of one epoll_wait.
const EVENTS: usize = 64;
/// Event data of the wake-up's descriptor; the event data of a source is its number.
const WAKEUP: u64 = u64::MAX;
/// Event data of all drivers' descriptors: they need not be distinguished, because all drivers are polled after a sleep.
const DRIVER: u64 = u64::MAX - 1;

/// The load of a thread so far.
#[derive(Default)]
struct Load {
    began: Instant,
    /// Time spent in rounds that found work.
    busy: Duration,
    sleeps: u64,
}

struct Entry {
    source: Box<dyn Source>,
    record: Arc<SourceRecord>,
    port: usize,
    /// The events that its descriptor is watched for.
    interest: epoll::EventFlags,
    /// Set while the source is being removed: the thread that waits for it.
    leaving: Option<Sender<Option<Box<dyn Source>>>>,
}

/// One IOThread. See the module's text.
pub struct IoThread {
    number: u16,
    name: String,
    wakeups: Arc<Wakeups>,
    commands: Receiver<Command>,
    has_mail: Arc<AtomicBool>,
    epoll: OwnedFd,
    sources: Vec<Option<Entry>>,
    ports: Vec<Option<Port>>,
    done: Vec<Done>,
    /// Polling state for waits for clients, and for disks.
    adaptive: [Adaptive; 2],
    /// Finds the best longest polling time, if the options set none.
    trial: Option<Trial>,
    /// Number of sources that are being removed.
    leaving_count: usize,
    stop: bool,
    load: Load,
}

impl IoThread {
    pub(super) fn new(
        number: u16,
        options: &ThreadOptions,
        wakeups: &Arc<Wakeups>,
        commands: Receiver<Command>,
        has_mail: Arc<AtomicBool>,
    ) -> Result<IoThread> {
        let failed = |e: rustix::io::Errno| Error::os(e.into(), format!("cannot make IOThread '{}'", options.name));
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let wakeup = wakeups.get(number).fd();
        epoll::add(&epoll, wakeup, epoll::EventData::new_u64(WAKEUP), epoll::EventFlags::IN).map_err(failed)?;
        Ok(IoThread {
            number,
            name: options.name.clone(),
            wakeups: Arc::clone(wakeups),
            commands,
            has_mail,
            epoll,
            sources: Vec::new(),
            ports: Vec::new(),
            done: Vec::with_capacity(256),
            adaptive: Adaptive::both(options.polling),
            trial: options.polling.max.is_none().then(Trial::default),
            leaving_count: 0,
            stop: false,
            load: Load::default(),
        })
    }

    pub(super) fn run(&mut self) {
        clock::sleep_precisely();
        self.load.began = clock::now();
        // Since when there was no work, and whether I/O was in flight then.
        let mut idle: Option<(Instant, usize)> = None;
        // When the last round began, if it found work.
        let mut worked: Option<Instant> = None;
        while !self.stop {
            let now = clock::now();
            if let Some(before) = worked.take() {
                self.load.busy = self.load.busy + now.since(before);
            }
            if self.round(now) {
                worked = Some(now);
                if let Some((_, kind)) = idle.take() {
                    self.adaptive[kind].caught();
                    self.wait_ended(now, false);
                }
                continue;
            }
            let (since, kind) = *idle.get_or_insert_with(|| (now, usize::from(self.has_io_out())));
            if now.since(since) < self.adaptive[kind].time() {
                core::hint::spin_loop();
            } else if self.sleep() {
                self.load.sleeps += 1;
                self.adaptive[kind].slept();
                idle = None;
                self.wait_ended(now, kind == For::Disk as usize);
            }
        }
    }

    #[inline]
    fn wait_ended(&mut self, now: Instant, slept_for_disk: bool) {
        if self.trial.as_mut().is_some_and(|trial| trial.wait_ended(now, slept_for_disk)) {
            self.judge(now);
        }
    }

    #[cold]
    fn judge(&mut self, now: Instant) {
        let served = self.sources.iter().flatten().map(|entry| entry.source.served()).sum();
        let trial = self.trial.as_mut().expect("just asked");
        if trial.judge(ThreadUsage { now, cpu: cpu_time(), served }) {
            let time = trial.time();
            self.adaptive.iter_mut().for_each(|a| *a = a.with_max(time));
        }
    }

    fn has_io_out(&self) -> bool {
        self.ports.iter().flatten().any(|p| !p.is_idle())
    }

    /// Serves every source once. Returns whether there was any work.
    fn round(&mut self, now: Instant) -> bool {
        // Pairs with: Running::send
        let mut worked = self.has_mail.load(Ordering::Acquire);
        if worked {
            self.take_mail();
        }
        for port in self.ports.iter_mut().flatten() {
            worked |= port.has_work();
            port.begin(now);
        }
        for (i, entry) in self.sources.iter_mut().enumerate() {
            if let Some(Entry { source, port, .. }) = entry {
                let port = self.ports[*port].as_mut().expect("a source has a port");
                worked |= source.serve(SourceId(i as u32), port, now);
            }
        }
        for i in 0..self.ports.len() {
            worked |= self.end_of(i);
        }
        let mut finished = false;
        for entry in self.sources.iter_mut().flatten() {
            entry.source.finish_round();
            finished |= entry.source.is_finished();
        }
        if finished || self.leaving_count > 0 {
            self.remove_leaving();
        }
        worked
    }

    /// Issues and completes bios at one port. Returns whether any completed.
    #[inline]
    fn end_of(&mut self, i: usize) -> bool {
        let Some(port) = self.ports[i].as_mut() else { return false };
        let now = clock::now();
        port.end(now, &mut self.done);
        let any = !self.done.is_empty();
        // One virtual call per run of bios of the same source, not per bio.
        let is_same = |a: &Done, b: &Done| SourceId::of(a.user_data).0 == SourceId::of(b.user_data).0;
        for run in self.done.chunk_by(is_same) {
            let (source, _) = SourceId::of(run[0].user_data);
            let entry = self.sources[source].as_mut().expect("a source stays until its bios have ended");
            for ns in run.iter().filter_map(|d| port.took(d, now)) {
                entry.record.latency.record(ns);
            }
            entry.source.ended(run, port);
        }
        self.done.clear();
        any
    }

    /// Sleeps until there is work, unless there is some already. Returns whether it slept.
    fn sleep(&mut self) -> bool {
        let wakeups = Arc::clone(&self.wakeups);
        let wakeup = wakeups.get(self.number);
        if !wakeup.doze() {
            return false;
        }
        let mut ready = !self.ports.iter().flatten().any(Port::has_work);
        for (i, entry) in self.sources.iter_mut().enumerate() {
            let Some(entry) = entry else { continue };
            ready &= entry.source.prepare_sleep();
            let interest = entry.source.interest();
            if interest != entry.interest
                && let Some(fd) = entry.source.fd()
                && epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(i as u64), interest).is_ok()
            {
                entry.interest = interest;
            }
        }
        let slept = ready && self.wait();
        wakeup.wake_up();
        for entry in self.sources.iter_mut().flatten() {
            entry.source.wake_up();
        }
        slept
    }

    fn wait(&mut self) -> bool {
        let now = clock::now();
        let mut limit: Option<Duration> = None;
        for i in 0..self.ports.len() {
            let Some(port) = self.ports[i].as_mut() else { continue };
            port.rest();
            if port.has_moved() {
                self.watch_driver(i);
            }
            let port = self.ports[i].as_ref().expect("it is there");
            limit = limit.into_iter().chain(port.sleep_limit(now)).min();
        }
        let timeout = limit.map(|d| Timespec {
            tv_sec: (d.as_ns() / 1_000_000_000) as i64,
            tv_nsec: (d.as_ns() % 1_000_000_000) as i64,
        });
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; EVENTS];
        // An interruption counts as an event: everything is checked afterwards.
        let n = epoll::wait(&self.epoll, &mut events[..], timeout.as_ref()).unwrap_or(0);
        // All other descriptors need no handling: their sources and drivers are checked in every round.
        if events[..n].iter().any(|e| e.data.u64() == WAKEUP) {
            self.wakeups.get(self.number).drain();
        }
        true
    }

    #[cold]
    fn take_mail(&mut self) {
        // Pairs with: Running::send
        self.has_mail.swap(false, Ordering::AcqRel);
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Add { source, record, reply } => {
                    let _ = reply.send(self.add(source, record));
                }
                Command::Remove { id, record, reply } => match self.entry(id, &record) {
                    Some(entry) => {
                        entry.source.set_paused(true);
                        entry.leaving = Some(reply);
                        self.leaving_count += 1;
                    }
                    None => drop(reply.send(None)),
                },
                Command::Keep { id, record, reply } => {
                    let _ = reply.send(self.keep(id, &record));
                }
                Command::Visit { id, record, visit } => {
                    visit(self.entry(id, &record).map(|entry| entry.source.as_mut()));
                }
                Command::Report { reply } => {
                    let _ = reply.send(self.report());
                }
                Command::Retune { polling, cpus, reply } => {
                    self.adaptive = Adaptive::both(polling);
                    self.trial = polling.max.is_none().then(Trial::default);
                    let _ = reply.send(pin_thread(&cpus));
                }
                Command::Stop { even_if_used, reply } => {
                    let used = self.sources.iter().flatten().count();
                    self.stop = even_if_used || used == 0;
                    let _ = reply.send(used);
                }
            }
        }
    }

    /// Cancels the removal of a source. Returns the number of its requests in flight.
    fn keep(&mut self, id: SourceId, record: &Arc<SourceRecord>) -> Option<usize> {
        let entry = self.entry(id, record)?;
        entry.leaving.take()?;
        entry.source.set_paused(false);
        let in_flight = entry.source.in_flight();
        self.leaving_count -= 1;
        Some(in_flight)
    }

    /// Returns the source with this record; `None` if it has left.
    fn entry(&mut self, id: SourceId, record: &Arc<SourceRecord>) -> Option<&mut Entry> {
        self.sources.get_mut(id.0 as usize)?.as_mut().filter(|entry| Arc::ptr_eq(&entry.record, record))
    }

    #[cold]
    fn report(&self) -> ThreadReport {
        let sources = self.sources.iter().flatten().map(|entry| {
            let SourceLabel { kind, export, index } = entry.source.label();
            SourceReport {
                handle: SourceHandle(Arc::clone(&entry.record)),
                disk: entry.record.disk.name.clone(),
                kind,
                export: export.to_owned(),
                index,
                served: entry.source.served(),
                in_flight: entry.source.in_flight(),
                can_move: entry.source.can_move(),
            }
        });
        ThreadReport {
            number: usize::from(self.number),
            name: self.name.clone(),
            alive: clock::now().since(self.load.began),
            busy: self.load.busy,
            cpu: cpu_time(),
            sleeps: self.load.sleeps,
            sources: sources.collect(),
        }
    }

    fn add(&mut self, mut source: Box<dyn Source>, record: Arc<SourceRecord>) -> Added {
        let port = match self.port_of(&record.disk) {
            Ok(port) => port,
            Err(e) => return Err((e, source)),
        };
        let free = self.sources.iter().position(Option::is_none);
        let id = free.unwrap_or(self.sources.len());
        source.set_paused(false);
        let interest = source.interest();
        if let Some(fd) = source.fd()
            && let Err(e) = epoll::add(&self.epoll, fd, epoll::EventData::new_u64(id as u64), interest)
        {
            self.leave_port_unless_used(port);
            return Err((Error::os(e.into(), "cannot wait for a client's descriptor"), source));
        }
        self.ports[port].as_mut().expect("just found").users += 1;
        let entry = Some(Entry { source, record, port, interest, leaving: None });
        if id == self.sources.len() {
            self.sources.push(entry);
        } else {
            self.sources[id] = entry;
        }
        Ok(SourceId(id as u32))
    }

    fn port_of(&mut self, disk: &Arc<ServedDisk>) -> Result<usize> {
        let is = |p: &Option<Port>| p.as_ref().is_some_and(|p| Arc::ptr_eq(p.disk(), disk));
        if let Some(at) = self.ports.iter().position(is) {
            return Ok(at);
        }
        let port = Some(Port::new(disk, self.number)?);
        let at = self.ports.iter().position(Option::is_none).unwrap_or(self.ports.len());
        if at == self.ports.len() {
            self.ports.push(port);
        } else {
            self.ports[at] = port;
        }
        self.watch_driver(at);
        Ok(at)
    }

    /// Makes completions of a port's hardware queues end a sleep.
    fn watch_driver(&self, port: usize) {
        for fd in self.ports[port].as_ref().expect("it is there").fds() {
            // SAFETY: the driver keeps its descriptor open as long as it lives, and the port keeps the driver.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            // If it is already watched, the call fails and it stays watched.
            let _ = epoll::add(&self.epoll, fd, epoll::EventData::new_u64(DRIVER), epoll::EventFlags::IN);
        }
    }

    /// Hands back sources that are being removed, and drops finished ones, if none of their requests is in flight.
    #[cold]
    fn remove_leaving(&mut self) {
        for i in 0..self.sources.len() {
            let wanted = |e: &Entry| e.leaving.is_some() || e.source.is_finished();
            let ready = |e: &Entry| wanted(e) && e.source.in_flight() == 0;
            if !self.sources[i].as_ref().is_some_and(ready) {
                continue;
            }
            let Entry { source, port, leaving, .. } = self.sources[i].take().expect("just seen");
            if let Some(fd) = source.fd() {
                let _ = epoll::delete(&self.epoll, fd);
            }
            self.ports[port].as_mut().expect("a source has a port").users -= 1;
            self.leave_port_unless_used(port);
            if let Some(leaving) = leaving {
                self.leaving_count -= 1;
                let _ = leaving.send(Some(source));
            }
        }
    }

    fn leave_port_unless_used(&mut self, port: usize) {
        if self.ports[port].as_ref().is_some_and(|p| p.users == 0 && p.is_idle()) {
            self.ports[port] = None;
        }
    }
}

/// Returns the CPU time of the calling thread.
fn cpu_time() -> Duration {
    let used = usage(UsageScope::Thread);
    Duration::from_ns(used.usr_ns + used.sys_ns)
}
