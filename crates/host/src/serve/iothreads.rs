// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All IOThreads of a daemon, and which one serves each source.
//!
//! Guarantees: one thread at a time serves a source. A source is moved or handed back only when none of its requests is in flight; until
//! then only its own client waits. A handle never reaches a source other than its own, even after that source has left. Threads can be
//! added and removed at run time; one that serves something cannot be removed. A thread that panics ends the process (`panics`): its
//! requests may still use memory that unwinding would free, and hold block locks. Needs from callers: an [`IoThreads`] outlives the disks'
//! I/O; no function here is called from an IOThread.

use super::adaptive::Polling;
use super::disk::{Parts, ServedDisk};
use super::ending::{self, END_TIME};
use super::geometry::Geometry;
use super::iothread::IoThread;
use super::latency::Latency;
use super::port::SourceId;
use super::source::Source;
use super::wakeup::{MAX_IOTHREADS, Wakeups};
use crate::clock;
use crate::driver::HostDriver;
use crate::error::{Error, ErrorKind, Result};
use crate::mem::Regions;
use crate::panics;
use crate::process::{allowed_cpus, pin_thread};
use crate::sandbox::{self, Role};
use blk::settings::QueueConfig;
use blk::stripe::StripeMap;
use blk::time::Duration;
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

/// Options of an IOThread.
#[derive(Clone, Debug, Default)]
pub struct ThreadOptions {
    /// Name of the IOThread; also the name of the system's thread, cut to 15 bytes.
    pub name: String,
    /// CPUs it runs on; empty = all.
    pub cpus: Vec<u32>,
    /// How it polls.
    pub polling: Polling,
}

/// A handle of a source that an IOThread serves.
#[derive(Clone)]
pub struct SourceHandle(pub(super) Arc<SourceRecord>);

impl SourceHandle {
    /// Returns a number that is unique in this process and never reused.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Returns the latencies of its I/Os so far, in ascending order: nanoseconds (to 0.8 %) and how many I/Os. One request may be several
    /// I/Os.
    pub fn latency(&self) -> Vec<(u64, u64)> {
        self.0.latency.bins()
    }
}

/// The next number of a source.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

pub(super) struct SourceRecord {
    pub(super) disk: Arc<ServedDisk>,
    /// Locked while the source is being moved.
    location: Mutex<SourceLocation>,
    pub(super) latency: Latency,
    number: u64,
}

#[derive(Clone, Copy)]
struct SourceLocation {
    thread: usize,
    id: SourceId,
}

/// What an IOThread did, and what it serves.
pub struct ThreadReport {
    /// Its number.
    pub number: usize,
    /// Its name.
    pub name: String,
    /// Time since it started.
    pub alive: Duration,
    /// Part of [`ThreadReport::alive`] spent in rounds that found work.
    pub busy: Duration,
    /// CPU time, polling included.
    pub cpu: Duration,
    /// How often it slept.
    pub sleeps: u64,
    /// Its sources.
    pub sources: Vec<SourceReport>,
}

/// A source, as its IOThread reports it.
pub struct SourceReport {
    /// The source's handle, to move it.
    pub handle: SourceHandle,
    /// Name of its disk.
    pub disk: String,
    /// Kind of export.
    pub kind: &'static str,
    /// Name of the export.
    pub export: String,
    /// Its number in the export, if it has one.
    pub index: u32,
    /// Requests served so far.
    pub served: u64,
    /// Requests in flight.
    pub in_flight: usize,
    /// Whether another IOThread may serve it.
    pub can_move: bool,
}

type Visit = Box<dyn FnOnce(Option<&mut dyn Source>) + Send>;

/// The result of adding a source; one that could not be added is returned.
pub(super) type Added = std::result::Result<SourceId, (Error, Box<dyn Source>)>;

pub(super) enum Command {
    Add {
        source: Box<dyn Source>,
        record: Arc<SourceRecord>,
        reply: Sender<Added>,
    },
    Remove {
        id: SourceId,
        record: Arc<SourceRecord>,
        reply: Sender<Option<Box<dyn Source>>>,
    },
    /// Cancels a `Remove`, if the source is still there. The reply is the number of its requests in flight.
    Keep {
        id: SourceId,
        record: Arc<SourceRecord>,
        reply: Sender<Option<usize>>,
    },
    Visit {
        id: SourceId,
        record: Arc<SourceRecord>,
        visit: Visit,
    },
    Report {
        reply: Sender<ThreadReport>,
    },
    Retune {
        polling: Polling,
        cpus: Vec<u32>,
        reply: Sender<Result<()>>,
    },
    Stop {
        even_if_used: bool,
        reply: Sender<usize>,
    },
}

struct Running {
    name: String,
    sender: Sender<Command>,
    has_mail: Arc<AtomicBool>,
    handle: JoinHandle<()>,
}

impl Running {
    fn send(&self, wakeups: &Wakeups, thread: usize, command: Command) {
        self.sender.send(command).expect("an IOThread runs as long as its handle");
        // Pairs with: IoThread::take_mail
        self.has_mail.store(true, Ordering::Release);
        wakeups.wake(thread as u16);
    }
}

/// All IOThreads of a daemon. See the module's text.
pub struct IoThreads {
    wakeups: Arc<Wakeups>,
    /// By number; `None` where a thread was removed.
    threads: RwLock<Vec<Option<Running>>>,
}

impl IoThreads {
    /// Starts a thread for each entry; they are numbered from 0.
    pub fn start(options: &[ThreadOptions]) -> Result<IoThreads> {
        clock::start();
        let all = IoThreads { wakeups: Arc::new(Wakeups::new()), threads: RwLock::default() };
        options.iter().try_for_each(|o| all.start_one(o).map(drop))?;
        Ok(all)
    }

    /// Starts one more thread. Returns its number, which may be that of a removed thread.
    pub fn start_one(&self, options: &ThreadOptions) -> Result<usize> {
        let mut threads = self.threads.write();
        let number = threads.iter().position(Option::is_none).unwrap_or(threads.len());
        if number >= MAX_IOTHREADS {
            return Err(Error::usage(format!("IOThread '{}': there are {MAX_IOTHREADS} already", options.name)));
        }
        self.wakeups.make(number as u16)?;
        let (sender, receiver) = mpsc::channel();
        let has_mail = Arc::new(AtomicBool::new(false));
        let mut thread = IoThread::new(number as u16, options, &self.wakeups, receiver, Arc::clone(&has_mail))?;
        let (cpus, (started, start)) = (options.cpus.clone(), mpsc::channel());
        let run = move || {
            sandbox::enter(Role::IoThread);
            let pinned = if cpus.is_empty() { Ok(()) } else { pin_thread(&cpus) };
            let go = pinned.is_ok();
            let _ = started.send(pinned);
            if go {
                panics::end_process("IOThread");
                thread.run();
            }
        };
        let handle = std::thread::Builder::new()
            .name(options.name.chars().take(15).collect())
            .spawn(run)
            .map_err(|e| Error::os(e, format!("cannot start IOThread '{}'", options.name)))?;
        if let Err(e) = start.recv().expect("a thread says how it started") {
            let _ = handle.join();
            return Err(e.within(&options.name));
        }
        let running = Some(Running { name: options.name.clone(), sender, has_mail, handle });
        if number == threads.len() {
            threads.push(running);
        } else {
            threads[number] = running;
        }
        Ok(number)
    }

    /// Stops a thread that serves no source.
    ///
    /// # Errors
    /// Usage: the thread serves a source, or does not exist.
    pub fn stop_one(&self, thread: usize) -> Result<()> {
        // The lock prevents that a source is added in the meantime.
        let mut threads = self.threads.write();
        let Some(running) = threads.get_mut(thread).and_then(Option::take) else { return Err(gone(thread)) };
        let (reply, answer) = mpsc::channel();
        running.send(&self.wakeups, thread, Command::Stop { even_if_used: false, reply });
        let used = answer.recv().expect("IOThreads answer");
        if used > 0 {
            let text = format!("IOThread '{}' still serves {used} queues or clients: move them first", running.name);
            threads[thread] = Some(running);
            return Err(Error::usage(text));
        }
        drop(threads);
        join(running.handle);
        Ok(())
    }

    /// Returns one more than the greatest number of a thread.
    pub fn len(&self) -> usize {
        self.threads.read().len()
    }

    /// Whether there is no thread.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there is a thread of this number.
    pub fn contains(&self, thread: usize) -> bool {
        self.threads.read().get(thread).is_some_and(Option::is_some)
    }

    /// Makes a disk that these threads serve, with the default block sizes.
    pub fn disk(
        &self,
        name: &str,
        driver: Arc<dyn HostDriver>,
        regions: Arc<Regions>,
        config: QueueConfig,
    ) -> Result<Arc<ServedDisk>> {
        self.disk_of(name, Parts::Plain(driver), regions, config, Geometry::default())
    }

    /// Makes a disk that these threads serve, striped over as many drivers as the map has stripes. All members have `config`, and their
    /// data is in `regions`.
    pub fn striped(
        &self,
        name: &str,
        map: StripeMap,
        drivers: Vec<Arc<dyn HostDriver>>,
        regions: Arc<Regions>,
        config: QueueConfig,
    ) -> Result<Arc<ServedDisk>> {
        self.disk_of(name, Parts::Striped(Arc::new(map), drivers), regions, config, Geometry::default())
    }

    /// Makes a disk that these threads serve.
    pub(super) fn disk_of(
        &self,
        name: &str,
        parts: Parts,
        regions: Arc<Regions>,
        config: QueueConfig,
        geometry: Geometry,
    ) -> Result<Arc<ServedDisk>> {
        let cpus = self.len().max(1) as u16;
        ServedDisk::new(name.to_owned(), parts, regions, config, geometry, cpus, &self.wakeups).map(Arc::new)
    }

    /// Makes a thread serve a source of a disk from now on.
    pub fn add(&self, thread: usize, disk: &Arc<ServedDisk>, source: impl Source) -> Result<SourceHandle> {
        let location = Mutex::new(SourceLocation { thread, id: SourceId(0) });
        // Relaxed: the number only has to be unique.
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let record = Arc::new(SourceRecord { disk: Arc::clone(disk), location, latency: Latency::new(), number });
        let mut location = record.location.lock();
        location.id = self.put(thread, &record, Box::new(source)).map_err(|(e, _)| e)?;
        drop(location);
        Ok(SourceHandle(record))
    }

    /// Removes a source once none of its requests is in flight, and returns it. Returns `None` if it has left by itself.
    pub fn remove(&self, handle: &SourceHandle) -> Option<Box<dyn Source>> {
        let location = handle.0.location.lock();
        self.take(*location, handle)
    }

    /// Moves a source to another thread. No thread serves the source until its requests in flight have completed. Returns how long that
    /// took.
    ///
    /// # Errors
    /// Usage: the source has left, or there is no such thread. Io: its requests in flight have not completed after 10 s; the source then
    /// continues on its old thread.
    pub fn move_to(&self, handle: &SourceHandle, thread: usize) -> Result<Duration> {
        let mut location = handle.0.location.lock();
        if location.thread == thread {
            return Ok(Duration::ZERO);
        }
        if !self.contains(thread) {
            return Err(gone(thread));
        }
        let began = clock::now();
        let source = match self.take_within(*location, handle, END_TIME) {
            Ok(source) => source.ok_or_else(|| Error::usage("it has ended in the meantime"))?,
            Err(n) => return Err(stuck(handle, n)),
        };
        match self.put(thread, &handle.0, source) {
            Ok(id) => *location = SourceLocation { thread, id },
            Err((e, source)) => {
                // The old port still exists or can be made again.
                location.id = self.put(location.thread, &handle.0, source).map_err(|(e, _)| e)?;
                return Err(e);
            }
        }
        Ok(clock::now().since(began))
    }

    /// Calls a function on a source, on its thread, and returns the result; `None` if the source has left.
    ///
    /// # Panics
    /// The source was added as another type.
    pub fn visit<S: Source, T: Send + 'static>(
        &self,
        handle: &SourceHandle,
        visit: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Option<T> {
        let location = handle.0.location.lock();
        let (reply, answer) = mpsc::channel();
        let visit = Box::new(move |source: Option<&mut dyn Source>| {
            let _ = reply.send(source.map(|source| visit(source.of_type())));
        });
        self.send(location.thread, Command::Visit { id: location.id, record: Arc::clone(&handle.0), visit }).ok()?;
        answer.recv().expect("IOThreads answer")
    }

    /// Returns the number of the thread that serves a source.
    pub fn thread_of(&self, handle: &SourceHandle) -> usize {
        handle.0.location.lock().thread
    }

    /// Returns reports of all threads. Sleeping threads are woken for it.
    pub fn report(&self) -> Vec<ThreadReport> {
        let (reply, answers) = mpsc::channel();
        for (number, running) in self.threads.read().iter().enumerate() {
            if let Some(running) = running {
                running.send(&self.wakeups, number, Command::Report { reply: reply.clone() });
            }
        }
        drop(reply);
        let mut all: Vec<_> = answers.iter().collect();
        all.sort_by_key(|r| r.number);
        all
    }

    /// Changes polling and CPUs of an IOThread.
    pub fn retune(&self, thread: usize, polling: Polling, cpus: &[u32]) -> Result<()> {
        let cpus = if cpus.is_empty() { allowed_cpus() } else { cpus.to_vec() };
        let (reply, answer) = mpsc::channel();
        self.send(thread, Command::Retune { polling, cpus, reply })?;
        answer.recv().expect("IOThreads answer")
    }

    fn put(&self, thread: usize, record: &Arc<SourceRecord>, source: Box<dyn Source>) -> Added {
        let threads = self.threads.read();
        let Some(Some(running)) = threads.get(thread) else { return Err((gone(thread), source)) };
        let (reply, answer) = mpsc::channel();
        running.send(&self.wakeups, thread, Command::Add { source, record: Arc::clone(record), reply });
        drop(threads);
        answer.recv().expect("IOThreads answer")
    }

    fn take(&self, location: SourceLocation, handle: &SourceHandle) -> Option<Box<dyn Source>> {
        let (reply, answer) = mpsc::channel();
        self.send(location.thread, Command::Remove { id: location.id, record: Arc::clone(&handle.0), reply }).ok()?;
        answer.recv().expect("IOThreads answer")
    }

    /// As `take`, but gives up after `limit`: then the source stays, and the error is the number of its requests in flight.
    fn take_within(
        &self,
        location: SourceLocation,
        handle: &SourceHandle,
        limit: std::time::Duration,
    ) -> std::result::Result<Option<Box<dyn Source>>, usize> {
        let (reply, answer) = mpsc::channel();
        let (id, record) = (location.id, &handle.0);
        if self.send(location.thread, Command::Remove { id, record: Arc::clone(record), reply }).is_err() {
            return Ok(None);
        }
        if let Ok(source) = answer.recv_timeout(limit) {
            return Ok(source);
        }
        let (reply, kept) = mpsc::channel();
        let is_there = self.send(location.thread, Command::Keep { id, record: Arc::clone(record), reply }).is_ok();
        match kept.recv().ok().flatten().filter(|_| is_there) {
            Some(in_flight) => Err(in_flight),
            // The requests completed at the last moment.
            None => Ok(answer.recv().expect("IOThreads answer")),
        }
    }

    fn send(&self, thread: usize, command: Command) -> Result<()> {
        match self.threads.read().get(thread) {
            Some(Some(running)) => running.send(&self.wakeups, thread, command),
            _ => return Err(gone(thread)),
        }
        Ok(())
    }
}

fn stuck(handle: &SourceHandle, in_flight: usize) -> Error {
    let requests = if in_flight == 1 { "1 request is".to_owned() } else { format!("{in_flight} requests are") };
    let text = format!(
        "{requests} in flight and did not end in {} s, so it stays on its IOThread: {}; check the disk's storage, \
         then move it again",
        END_TIME.as_secs(),
        ending::in_flight(&handle.0.disk)
    );
    Error::new(ErrorKind::Io, text)
}

fn gone(thread: usize) -> Error {
    Error::usage(format!("there is no IOThread number {thread}"))
}

fn join(handle: JoinHandle<()>) {
    if let Err(panic) = handle.join()
        && !std::thread::panicking()
    {
        std::panic::resume_unwind(panic);
    }
}

impl Drop for IoThreads {
    fn drop(&mut self) {
        let all: Vec<_> = self.threads.get_mut().iter_mut().map(Option::take).collect();
        let (reply, _answer) = mpsc::channel();
        for (number, running) in all.iter().enumerate() {
            if let Some(running) = running {
                running.send(&self.wakeups, number, Command::Stop { even_if_used: true, reply: reply.clone() });
            }
        }
        all.into_iter().flatten().for_each(|running| join(running.handle));
    }
}
