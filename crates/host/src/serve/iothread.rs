// SPDX-License-Identifier: Apache-2.0 OR MIT
//! IOThreads: each a thread that serves its sources in rounds, polls for a while, then sleeps.
//!
//! Guarantees: a source is served by one thread at a time; it is handed back only when nothing of it is in flight; a kick, a
//! completion, a timer, a command or a wake-up from another thread ends a sleep. One clock reading serves a round.
//! Needs from callers: [`IoThreads`] outlives the disks' I/O.

use super::adaptive::{Adaptive, Polling};
use super::bell::Bell;
use super::disk::ServedDisk;
use super::port::{Port, SourceId};
use crate::clock;
use crate::driver::HostDriver;
use crate::error::{Error, Result};
use crate::export::nbd::Connection;
use crate::export::vhost::VirtQueue;
use crate::mem::Regions;
use crate::run::pin_thread;
use blk::settings::QueueConfig;
use blk::submitter::Done;
use blk::time::{Duration, Instant};
use rustix::event::epoll;
use rustix::time::Timespec;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Events taken from one look at all descriptors.
const EVENTS: usize = 64;
/// What an event of the bell carries; sources carry their number.
const BELL: u64 = u64::MAX;
/// What an event of a driver's descriptor carries: there is a poll after every sleep anyway.
const DRIVER: u64 = u64::MAX - 1;

/// What an IOThread serves.
pub enum Source {
    /// A virtqueue of a virtual machine.
    VirtQueue(Box<VirtQueue>),
    /// An NBD client. It leaves by itself when its client does; its handle means nothing after that.
    Nbd(Box<Connection>),
}

/// How a thread is to be.
#[derive(Clone, Debug, Default)]
pub struct ThreadOptions {
    /// Its name; it is also the thread's, cut to 15 bytes.
    pub name: String,
    /// CPUs it runs on; empty = all.
    pub cpus: Vec<u32>,
    /// How it polls.
    pub polling: Polling,
}

/// Where a source is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceHandle {
    thread: usize,
    id: SourceId,
}

type Visit = Box<dyn FnOnce(&mut Source) + Send>;

enum Command {
    Add { source: Source, disk: Arc<ServedDisk>, reply: Sender<Result<SourceId>> },
    Remove { id: SourceId, reply: Sender<Source> },
    Visit { id: SourceId, visit: Visit },
    Stop,
}

struct Mailbox {
    sender: Mutex<Sender<Command>>,
    has_mail: Arc<AtomicBool>,
}

/// All IOThreads of a daemon.
pub struct IoThreads {
    bells: Arc<[Bell]>,
    mail: Vec<Mailbox>,
    handles: Vec<JoinHandle<()>>,
}

impl IoThreads {
    /// Starts a thread for each entry.
    pub fn start(options: &[ThreadOptions]) -> Result<IoThreads> {
        clock::start();
        let bells: Arc<[Bell]> = options.iter().map(|_| Bell::new()).collect::<Result<_>>()?;
        let mut all = IoThreads { bells: Arc::clone(&bells), mail: Vec::new(), handles: Vec::new() };
        for (number, options) in options.iter().enumerate() {
            let (sender, receiver) = mpsc::channel();
            let has_mail = Arc::new(AtomicBool::new(false));
            let mut thread = IoThread::new(number as u16, options, &bells, receiver, Arc::clone(&has_mail))?;
            let (cpus, (started, start)) = (options.cpus.clone(), mpsc::channel());
            let run = move || {
                let pinned = if cpus.is_empty() { Ok(()) } else { pin_thread(&cpus) };
                let go = pinned.is_ok();
                let _ = started.send(pinned);
                if go {
                    thread.run();
                }
            };
            let handle = std::thread::Builder::new()
                .name(options.name.chars().take(15).collect())
                .spawn(run)
                .map_err(|e| Error::os(e, format!("cannot start IOThread '{}'", options.name)))?;
            all.handles.push(handle);
            all.mail.push(Mailbox { sender: Mutex::new(sender), has_mail });
            start.recv().expect("a thread says how it started").map_err(|e| e.within(&options.name))?;
        }
        Ok(all)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }

    /// A disk for these threads.
    pub fn disk(
        &self,
        name: &str,
        driver: Arc<dyn HostDriver>,
        regions: Arc<Regions>,
        config: QueueConfig,
    ) -> Result<Arc<ServedDisk>> {
        ServedDisk::new(name.to_owned(), driver, regions, config, &self.bells).map(Arc::new)
    }

    /// Has a thread serve a source of a disk from now on.
    pub fn add(&self, thread: usize, disk: &Arc<ServedDisk>, source: Source) -> Result<SourceHandle> {
        let (reply, answer) = mpsc::channel();
        self.send(thread, Command::Add { source, disk: Arc::clone(disk), reply });
        let id = answer.recv().expect("IOThreads answer")?;
        Ok(SourceHandle { thread, id })
    }

    /// Takes a source away, when nothing of it is in flight any more.
    pub fn remove(&self, handle: SourceHandle) -> Source {
        let (reply, answer) = mpsc::channel();
        self.send(handle.thread, Command::Remove { id: handle.id, reply });
        answer.recv().expect("IOThreads answer")
    }

    /// Has its thread do something to a source, and waits for what comes of it.
    pub fn visit<T: Send + 'static>(
        &self,
        handle: SourceHandle,
        visit: impl FnOnce(&mut Source) -> T + Send + 'static,
    ) -> T {
        let (reply, answer) = mpsc::channel();
        let visit = Box::new(move |source: &mut Source| {
            let _ = reply.send(visit(source));
        });
        self.send(handle.thread, Command::Visit { id: handle.id, visit });
        answer.recv().expect("IOThreads answer")
    }

    fn send(&self, thread: usize, command: Command) {
        let mail = &self.mail[thread];
        let sender = mail.sender.lock().unwrap_or_else(PoisonError::into_inner);
        sender.send(command).expect("an IOThread runs as long as its handle");
        // Pairs with: IoThread::take_mail
        mail.has_mail.store(true, Ordering::Release);
        self.bells[thread].ring();
    }
}

impl Drop for IoThreads {
    fn drop(&mut self) {
        for thread in 0..self.mail.len() {
            self.send(thread, Command::Stop);
        }
        for handle in self.handles.drain(..) {
            if let Err(panic) = handle.join()
                && !std::thread::panicking()
            {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

struct Entry {
    source: Source,
    port: usize,
    /// What is waited for at its descriptor.
    interest: epoll::EventFlags,
    /// Somebody waits for it.
    leaving: Option<Sender<Source>>,
}

/// One IOThread. See the module's text.
pub struct IoThread {
    number: u16,
    bells: Arc<[Bell]>,
    commands: Receiver<Command>,
    has_mail: Arc<AtomicBool>,
    epoll: OwnedFd,
    sources: Vec<Option<Entry>>,
    ports: Vec<Option<Port>>,
    done: Vec<Done>,
    /// For waits with nothing out and with I/O out: a client may come back soon while its disk takes long.
    adaptive: [Adaptive; 2],
    /// Somebody's source is leaving.
    partings: usize,
    stop: bool,
}

impl IoThread {
    fn new(
        number: u16,
        options: &ThreadOptions,
        bells: &Arc<[Bell]>,
        commands: Receiver<Command>,
        has_mail: Arc<AtomicBool>,
    ) -> Result<IoThread> {
        let failed = |e: rustix::io::Errno| Error::os(e.into(), format!("cannot make IOThread '{}'", options.name));
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let bell = bells[usize::from(number)].fd();
        epoll::add(&epoll, bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN).map_err(failed)?;
        Ok(IoThread {
            number,
            bells: Arc::clone(bells),
            commands,
            has_mail,
            epoll,
            sources: Vec::new(),
            ports: Vec::new(),
            done: Vec::with_capacity(256),
            adaptive: [0; 2].map(|_| Adaptive::new(options.polling)),
            partings: 0,
            stop: false,
        })
    }

    fn run(&mut self) {
        clock::sleep_precisely();
        // Since when there was nothing to do, and whether I/O was out then.
        let mut idle: Option<(Instant, usize)> = None;
        while !self.stop {
            let now = clock::now();
            if self.round(now) {
                if let Some((_, kind)) = idle.take() {
                    self.adaptive[kind].caught();
                }
                continue;
            }
            let (since, kind) = *idle.get_or_insert_with(|| (now, usize::from(self.has_io_out())));
            if now.since(since) < self.adaptive[kind].time() {
                core::hint::spin_loop();
            } else if self.sleep() {
                self.adaptive[kind].slept(clock::now().since(since));
                idle = None;
            }
        }
    }

    fn has_io_out(&self) -> bool {
        self.ports.iter().flatten().any(|p| !p.is_idle())
    }

    /// Looks at everything once. Whether there was anything to do.
    fn round(&mut self, now: Instant) -> bool {
        // Pairs with: IoThreads::send
        let mut worked = self.has_mail.load(Ordering::Acquire);
        if worked {
            self.take_mail();
        }
        self.ports.iter_mut().flatten().for_each(|p| p.begin(now));
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
        if finished || self.partings > 0 {
            self.part();
        }
        worked
    }

    /// Issues and completes at one port. Whether anything ended.
    #[inline]
    fn end_of(&mut self, i: usize) -> bool {
        let Some(port) = self.ports[i].as_mut() else { return false };
        port.end(clock::now(), &mut self.done);
        let any = !self.done.is_empty();
        for d in self.done.drain(..) {
            let (source, own) = SourceId::of(d.user_data);
            let entry = self.sources[source].as_mut().expect("a source stays until its bios have ended");
            entry.source.ended(own, &d, port);
        }
        any
    }

    /// Waits for something to do, if there is nothing. Whether it slept.
    fn sleep(&mut self) -> bool {
        let bells = Arc::clone(&self.bells);
        let bell = &bells[usize::from(self.number)];
        if !bell.doze() {
            return false;
        }
        let mut ready = true;
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
        bell.wake_up();
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
        // An interruption is as good as an event: everything is looked at.
        let n = epoll::wait(&self.epoll, &mut events[..], timeout.as_ref()).unwrap_or(0);
        for event in &events[..n] {
            match event.data.u64() {
                BELL => self.bells[usize::from(self.number)].drain(),
                DRIVER => {}
                source => {
                    if let Some(Some(entry)) = self.sources.get_mut(source as usize) {
                        entry.source.readable();
                    }
                }
            }
        }
        true
    }

    #[cold]
    fn take_mail(&mut self) {
        // Pairs with: IoThreads::send
        self.has_mail.swap(false, Ordering::AcqRel);
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Add { source, disk, reply } => {
                    let _ = reply.send(self.add(source, &disk));
                }
                Command::Remove { id, reply } => {
                    let entry = self.sources[id.0 as usize].as_mut().expect("who has a handle has a source");
                    entry.source.stop();
                    entry.leaving = Some(reply);
                    self.partings += 1;
                }
                Command::Visit { id, visit } => {
                    let entry = self.sources[id.0 as usize].as_mut().expect("who has a handle has a source");
                    visit(&mut entry.source);
                }
                Command::Stop => self.stop = true,
            }
        }
    }

    fn add(&mut self, source: Source, disk: &Arc<ServedDisk>) -> Result<SourceId> {
        let port = self.port_of(disk)?;
        let free = self.sources.iter().position(Option::is_none);
        let id = free.unwrap_or(self.sources.len());
        let interest = source.interest();
        if let Some(fd) = source.fd() {
            let data = epoll::EventData::new_u64(id as u64);
            epoll::add(&self.epoll, fd, data, interest)
                .map_err(|e| Error::os(e.into(), "cannot wait for a client's descriptor"))?;
        }
        self.ports[port].as_mut().expect("just found").users += 1;
        let entry = Some(Entry { source, port, interest, leaving: None });
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

    /// Has completions of a port's hardware queues end a sleep.
    fn watch_driver(&self, port: usize) {
        for fd in self.ports[port].as_ref().expect("it is there").fds() {
            // SAFETY: the driver keeps its descriptor open as long as it lives, and the port keeps the driver.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            // Watched already, it stays so.
            let _ = epoll::add(&self.epoll, fd, epoll::EventData::new_u64(DRIVER), epoll::EventFlags::IN);
        }
    }

    /// Hands back sources of which nothing is in flight, and drops those that are finished.
    #[cold]
    fn part(&mut self) {
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
            let users = &mut self.ports[port].as_mut().expect("a source has a port").users;
            *users -= 1;
            if *users == 0 && self.ports[port].as_ref().is_some_and(Port::is_idle) {
                self.ports[port] = None;
            }
            if let Some(leaving) = leaving {
                self.partings -= 1;
                let _ = leaving.send(source);
            }
        }
    }
}

impl Source {
    #[inline]
    fn serve(&mut self, id: SourceId, port: &mut Port, now: Instant) -> bool {
        match self {
            Source::VirtQueue(q) => q.serve(id, port, now),
            Source::Nbd(c) => c.serve(id, port, now),
        }
    }

    #[inline]
    fn ended(&mut self, own: u32, done: &Done, port: &mut Port) {
        match self {
            Source::VirtQueue(q) => q.bio_ended(own as u16, done.status, port),
            Source::Nbd(c) => c.bio_ended(own as u16, done.status),
        }
    }

    #[inline]
    fn finish_round(&mut self) {
        match self {
            Source::VirtQueue(q) => q.finish_round(),
            Source::Nbd(c) => c.finish_round(),
        }
    }

    /// Whether it is at its end, with nothing in flight.
    #[inline]
    fn is_finished(&self) -> bool {
        match self {
            Source::VirtQueue(_) => false,
            Source::Nbd(c) => c.is_finished(),
        }
    }

    fn prepare_sleep(&mut self) -> bool {
        match self {
            Source::VirtQueue(q) => q.prepare_sleep(),
            Source::Nbd(c) => c.prepare_sleep(),
        }
    }

    fn wake_up(&mut self) {
        match self {
            Source::VirtQueue(q) => q.wake_up(),
            Source::Nbd(_) => {}
        }
    }

    fn readable(&mut self) {
        match self {
            Source::VirtQueue(q) => q.take_kick(),
            // It is looked at in every round.
            Source::Nbd(_) => {}
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Source::VirtQueue(q) => q.kick_fd(),
            Source::Nbd(c) => Some(c.fd()),
        }
    }

    /// What of its descriptor is to end a sleep.
    fn interest(&self) -> epoll::EventFlags {
        match self {
            Source::VirtQueue(_) => epoll::EventFlags::IN,
            Source::Nbd(c) => c.interest(),
        }
    }

    fn stop(&mut self) {
        match self {
            Source::VirtQueue(q) => q.set_enabled(false),
            Source::Nbd(c) => c.kill(),
        }
    }

    fn in_flight(&self) -> usize {
        match self {
            Source::VirtQueue(q) => q.in_flight(),
            Source::Nbd(c) => c.in_flight(),
        }
    }
}
