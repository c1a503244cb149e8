// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads that make the system calls of one hctx's requests.
//!
//! Threads are started as jobs need them, up to a limit, and end with [`Workers`]. A job that is added wakes one thread, and a thread that
//! takes a job wakes the next one if more jobs wait. So a burst of short system calls needs few threads, and calls that block get more.
//!
//! Guarantees: jobs begin in the order in which they were added; each request has one result. The descriptor is readable while there are
//! results or a mark. `drop` waits for all jobs. A thread that panics ends the process, because its request would never complete. Needs
//! from callers: the memory of a job stays valid until its result is taken or [`Workers`] is dropped.

use super::open::Opened;
use super::slot::{Operation, ZERO_CHUNK};
use super::syscalls;
use crate::error::{Error, Result};
use crate::event;
use crate::mem::Region;
use crate::panics;
use blk::driver::readahead::Range;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Maximum number of threads of one hctx, as in QEMU's pool.
const MAX_THREADS: u32 = 64;

/// What a thread does.
pub(super) enum Job {
    /// A system call for the request with this tag.
    Request { index: usize, op: Operation },
    /// Advice, which has no result.
    ReadAhead(Range),
    /// Runs a function of a test.
    #[cfg(test)]
    Function(Box<dyn FnOnce() + Send>),
}

// SAFETY: the raw pointers in the operation are addresses for the kernel, of memory that outlives the job (module's text).
unsafe impl Send for Job {}

/// See the module's text.
pub(super) struct Workers(Arc<Shared>);

struct Shared {
    queue: Mutex<Queue>,
    /// Idle threads wait here.
    wanted: Condvar,
    /// Readable while `Queue::signalled`.
    event: OwnedFd,
    /// There may be results or a mark; changed under the lock.
    has_results: AtomicBool,
    file: Arc<Opened>,
    /// [`ZERO_CHUNK`] bytes that are never written, aligned as O_DIRECT needs it.
    zeroes: Region,
    /// Where the threads may run: as the thread that started the driver, not as the one that needs another thread.
    cpus: Option<CpuSet>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Tags of requests, and io_uring's form of what their system calls returned.
    results: VecDeque<(usize, i32)>,
    /// A wake-up that was not taken yet.
    mark: bool,
    signalled: bool,
    threads: Vec<JoinHandle<()>>,
    max_threads: usize,
    /// Waiting threads that were not woken.
    idle: u32,
    /// A thread was started or woken and has not checked `jobs` yet.
    coming: bool,
    /// The log has the last failure to start a thread.
    has_warned: bool,
    stop: bool,
}

impl Workers {
    /// Starts the first thread, so that there is always one.
    ///
    /// # Errors
    /// The system has no thread, descriptor or memory left.
    pub(super) fn start(depth: u32, file: Arc<Opened>) -> Result<Workers> {
        let max_threads = depth.clamp(1, MAX_THREADS) as usize;
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                jobs: VecDeque::with_capacity(depth as usize),
                results: VecDeque::with_capacity(depth as usize),
                threads: Vec::with_capacity(max_threads),
                max_threads,
                ..Queue::default()
            }),
            wanted: Condvar::new(),
            event: event::new()?,
            has_results: AtomicBool::new(false),
            file,
            zeroes: Region::new(ZERO_CHUNK, false)?,
            cpus: sched_getaffinity(None).ok(),
        });
        let first = shared.spawn().map_err(|e| Error::os(e, "cannot start a thread for the I/O of a file"))?;
        let mut queue = shared.queue.lock();
        queue.threads.push(first);
        drop(queue);
        Ok(Workers(shared))
    }

    /// Returns the descriptor that is readable while there are results.
    pub(super) fn fd(&self) -> RawFd {
        self.0.event.as_raw_fd()
    }

    /// Locks the jobs and the results.
    pub(super) fn lock(&self) -> Access<'_> {
        Access { shared: &self.0, queue: self.0.queue.lock() }
    }

    /// Whether there may be results, without the lock. May be stale; a caller that finds none looks under the lock before it sleeps.
    #[inline]
    pub(super) fn may_have_results(&self) -> bool {
        // Relaxed: a hint; results are read under the lock.
        self.0.has_results.load(Ordering::Relaxed)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.stop = true;
        let threads = std::mem::take(&mut queue.threads);
        drop(queue);
        self.0.wanted.notify_all();
        for thread in threads {
            thread.join().expect("a thread that makes system calls does not panic");
        }
    }
}

/// The jobs and results of [`Workers`], locked. Dropping it wakes a thread for new jobs.
pub(super) struct Access<'a> {
    shared: &'a Arc<Shared>,
    queue: MutexGuard<'a, Queue>,
}

impl Access<'_> {
    pub(super) fn add(&mut self, job: Job) {
        self.queue.jobs.push_back(job);
    }

    /// Makes the descriptor readable until the mark is taken.
    pub(super) fn set_mark(&mut self) {
        self.queue.mark = true;
        self.shared.signal(&mut self.queue);
    }

    /// Takes the mark. Returns whether there was one.
    pub(super) fn take_mark(&mut self) -> bool {
        std::mem::take(&mut self.queue.mark)
    }

    /// Takes a result: the request's tag, and bytes or a negative errno.
    pub(super) fn take_result(&mut self) -> Option<(usize, i32)> {
        self.queue.results.pop_front()
    }

    /// Returns the number of results and marks.
    pub(super) fn ready(&self) -> usize {
        self.queue.results.len() + usize::from(self.queue.mark)
    }
}

impl Drop for Access<'_> {
    fn drop(&mut self) {
        if self.queue.signalled && self.ready() == 0 {
            self.queue.signalled = false;
            event::drain(&self.shared.event);
            // Relaxed: see `Workers::may_have_results`.
            self.shared.has_results.store(false, Ordering::Relaxed);
        }
        self.shared.wake_worker(&mut self.queue);
    }
}

impl Shared {
    fn spawn(self: &Arc<Self>) -> io::Result<JoinHandle<()>> {
        let shared = Arc::clone(self);
        std::thread::Builder::new().name("mqblk-aio".into()).spawn(move || shared.work())
    }

    /// Wakes or starts a thread if jobs wait and none is coming.
    fn wake_worker(self: &Arc<Self>, queue: &mut Queue) {
        if queue.jobs.is_empty() || queue.coming || queue.stop {
            return;
        }
        if queue.idle > 0 {
            queue.idle -= 1;
            queue.coming = true;
            self.wanted.notify_one();
        } else if queue.threads.len() < queue.max_threads {
            match self.spawn() {
                Ok(thread) => {
                    queue.threads.push(thread);
                    queue.coming = true;
                    queue.has_warned = false;
                }
                // The threads that there are take the job. The next job tries again.
                Err(e) if !queue.has_warned => {
                    queue.has_warned = true;
                    let n = queue.threads.len();
                    log::warn!("cannot start another thread for the I/O of a file: {e}; {n} are running");
                }
                Err(_) => {}
            }
        }
    }

    /// Makes the descriptor readable.
    fn signal(&self, queue: &mut Queue) {
        if !queue.signalled {
            queue.signalled = true;
            // Relaxed: see `Workers::may_have_results`.
            self.has_results.store(true, Ordering::Relaxed);
            event::signal(&self.event);
        }
    }

    /// The life of a thread.
    fn work(self: &Arc<Self>) {
        panics::end_process("I/O thread");
        if let Some(cpus) = &self.cpus {
            // A thread that may not run there runs where it is.
            let _ = sched_setaffinity(None, cpus);
        }
        let mut queue = self.queue.lock();
        loop {
            queue.coming = false;
            while let Some(job) = queue.jobs.pop_front() {
                self.wake_worker(&mut queue);
                if let Some(result) = MutexGuard::unlocked(&mut queue, || self.run(job)) {
                    queue.results.push_back(result);
                    self.signal(&mut queue);
                }
            }
            if queue.stop {
                return;
            }
            queue.idle += 1;
            self.wanted.wait(&mut queue);
        }
    }

    fn run(&self, job: Job) -> Option<(usize, i32)> {
        match job {
            // SAFETY: the memory outlives the job (module's text), and only this thread has the job.
            Job::Request { index, op } => Some((index, unsafe { op.run(self.file.borrow(), self.zeroes.base()) })),
            Job::ReadAhead(range) => {
                syscalls::read_ahead(self.file.borrow(), range);
                None
            }
            #[cfg(test)]
            Job::Function(function) => {
                function();
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::file::FileOptions;
    use std::fs;
    use std::io::Write;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::sync::mpsc;
    use std::time::Duration;

    fn workers(depth: u32) -> Workers {
        let path = std::env::temp_dir().join(format!("mqblk-workers-{}", std::process::id()));
        fs::File::create(&path).unwrap().set_len(4096).unwrap();
        let options = FileOptions { direct: false, ..FileOptions::default() };
        let (file, _) = Opened::open(&path, &options).unwrap();
        fs::remove_file(&path).unwrap();
        Workers::start(depth, Arc::new(file)).unwrap()
    }

    #[test]
    fn jobs_that_block_run_at_once_up_to_the_limit() {
        for (depth, at_once) in [(1, 1), (8, 8), (1024, MAX_THREADS as usize)] {
            let workers = workers(depth);
            let (began, begins) = mpsc::channel();
            let (release, released) = mpsc::channel::<()>();
            let released = Arc::new(Mutex::new(released));
            let most = at_once + 1;
            for number in 0..most {
                let (began, released) = (began.clone(), Arc::clone(&released));
                let job = move || {
                    began.send(number).unwrap();
                    let _ = released.lock().recv();
                };
                workers.lock().add(Job::Function(Box::new(job)));
            }
            let next = || begins.recv_timeout(Duration::from_secs(300)).expect("a thread takes the job");
            let mut running: Vec<usize> = (0..at_once).map(|_| next()).collect();
            running.sort_unstable();
            assert_eq!(running, (0..at_once).collect::<Vec<_>>(), "jobs begin in their order");
            assert_eq!(workers.lock().queue.threads.len(), at_once);
            assert!(begins.try_recv().is_err(), "the last one waits for a thread");
            release.send(()).unwrap();
            assert_eq!(next(), at_once);
            drop(release);
        }
    }

    /// Says that the thread unwinds.
    struct Unwinds;

    impl Drop for Unwinds {
        fn drop(&mut self) {
            let _ = writeln!(io::stderr(), "the thread unwinds");
        }
    }

    fn fail() {
        let _unwinds = Unwinds;
        panic!("on purpose");
    }

    /// Once, the request of a thread that panicked was lost, and its client waited for ever.
    #[test]
    fn a_panic_ends_the_process_before_it_unwinds() {
        const INSIDE: &str = "MQBLK_TEST_PANIC";
        if std::env::var_os(INSIDE).is_some() {
            workers(1).lock().add(Job::Function(Box::new(fail)));
            return;
        }
        let name = "driver::file::workers::tests::a_panic_ends_the_process_before_it_unwinds";
        let mut command = Command::new(std::env::current_exe().unwrap());
        let out = command.args(["--exact", name]).env(INSIDE, "1").output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.signal(), Some(libc::SIGABRT), "{text}");
        assert!(text.contains("mqblk: I/O thread 'mqblk-aio' panicked: on purpose; the process ends"), "{text}");
        assert!(!text.contains("unwinds"), "{text}");
    }
}
