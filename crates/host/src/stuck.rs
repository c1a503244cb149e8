// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Signalling an event descriptor of a client that may make that wait.
//!
//! Whether a write waits is a flag of the open file, which the client shares: it can be changed between any check and the write. An event
//! descriptor can neither be opened anew nor be written with `RWF_NOWAIT` (Linux 6.18). A write that cannot wait needs a ring (see
//! `export::vhost::call`), which takes twice as long as a plain write. So a watched thread makes a plain write here: a thread seen in the
//! same write twice is interrupted by a signal.
//!
//! Guarantees: [`signal`] returns after 3 [`TICK`]s at most; one that does not wait costs a write and two plain stores. A thread is
//! watched from its first call until it ends. Needs from callers: an [event descriptor](is_eventfd), because a write to something else
//! may wait where no signal interrupts it. Does not do: anything with SIGURG that reaches a thread elsewhere; it interrupts one call, as
//! any signal may.
//!
//! Source: eventfd(2); signal(7), "Interruption of system calls".

use parking_lot::Mutex;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

/// From one look at all threads to the next.
const TICK: Duration = Duration::from_millis(100);
/// Ignored where it has no handler, so a stray one does no harm.
const SIGNAL: libc::c_int = libc::SIGURG;

/// A descriptor that made its writer wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waits;

/// What others see of a thread.
struct WriterThread {
    thread: libc::pid_t,
    /// Odd while the thread writes; another number for each write.
    writes: AtomicU64,
}

/// The threads that are watched, and whether there is a watcher.
static WATCHED: Mutex<(Vec<Weak<WriterThread>>, bool)> = Mutex::new((Vec::new(), false));

thread_local! {
    static WRITER: Arc<WriterThread> = register();
}

/// Whether it is an eventfd. Reads of other things, writes to them and waits for them may hang for as long as their maker likes.
pub(crate) fn is_eventfd(fd: impl AsFd) -> bool {
    let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    std::fs::read_link(link).is_ok_and(|to| to.as_os_str() == "anon_inode:[eventfd]")
}

/// Makes an event descriptor readable.
///
/// # Errors
/// It was full and would have waited. It may or may not be readable.
#[inline]
pub(crate) fn signal(fd: impl AsFd) -> Result<(), Waits> {
    let written = WRITER.with(|place| {
        let count = place.writes.load(Ordering::Relaxed);
        place.writes.store(count.wrapping_add(1), Ordering::Relaxed);
        let written = rustix::io::write(fd, &1u64.to_le_bytes());
        place.writes.store(count.wrapping_add(2), Ordering::Relaxed);
        written
    });
    // A full eventfd that does not block is readable already.
    if written == Err(rustix::io::Errno::INTR) { Err(Waits) } else { Ok(()) }
}

#[cold]
fn register() -> Arc<WriterThread> {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(install);
    // SAFETY: zero is a valid value of this plain structure, which the calls get a pointer to; SIGURG is a signal. Inherited
    // masks may hold it back.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, SIGNAL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
    }
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    let place = Arc::new(WriterThread { thread, writes: AtomicU64::new(0) });
    let mut watched = WATCHED.lock();
    watched.0.push(Arc::downgrade(&place));
    if !watched.1 {
        // If the watch thread cannot be started, the next thread that registers tries again.
        watched.1 = std::thread::Builder::new().name("mqblk-watch".into()).spawn(watch).is_ok();
    }
    place
}

extern "C" fn interrupt(_signal: libc::c_int) {}

/// A handler that does nothing, but without SA_RESTART.
fn install() {
    // SAFETY: zero is a valid value of this plain structure, which the call gets a pointer to; the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = interrupt as *const () as usize;
        libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut());
    }
}

/// Looks after the threads as long as there are any.
fn watch() {
    let mut before: Vec<(libc::pid_t, u64)> = Vec::new();
    loop {
        std::thread::sleep(TICK);
        let mut watched = WATCHED.lock();
        watched.0.retain(|place| place.strong_count() > 0);
        if watched.0.is_empty() {
            watched.1 = false;
            return;
        }
        let places: Vec<Arc<WriterThread>> = watched.0.iter().filter_map(Weak::upgrade).collect();
        drop(watched);
        let writing = |p: &Arc<WriterThread>| (p.thread, p.writes.load(Ordering::Relaxed));
        let now: Vec<_> = places.iter().map(writing).filter(|(_, count)| !count.is_multiple_of(2)).collect();
        for (thread, _) in now.iter().filter(|one| before.contains(one)) {
            // A thread that has ended meanwhile gets no signal, and the signal does no harm to a new thread with the same number.
            // SAFETY: only numbers are passed.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), *thread, SIGNAL) };
        }
        before = now;
    }
}

/// An event descriptor that waits, and is full: the next write blocks.
#[cfg(test)]
pub(crate) fn full_and_waiting() -> std::os::fd::OwnedFd {
    let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd");
    rustix::io::write(&fd, &(u64::MAX - 1).to_le_bytes()).expect("it is empty");
    fd
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// A client cleared O_NONBLOCK of the descriptor that it shares with us and filled it: the IOThread hung for ever.
    #[test]
    fn a_full_descriptor_that_blocks_delays_no_other() {
        let (send, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let fd = full_and_waiting();
            for _ in 0..3 {
                send.send(signal(&fd)).unwrap();
            }
            let empty = crate::event::new().unwrap();
            send.send(signal(&empty)).unwrap();
        });
        let next = || ended.recv_timeout(Duration::from_secs(30)).expect("the write stands still");
        assert_eq!([next(), next(), next()], [Err(Waits); 3]);
        assert_eq!(next(), Ok(()));
    }

    #[test]
    fn what_is_no_eventfd_is_known() {
        assert!(is_eventfd(crate::event::new().unwrap()));
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        assert!(!is_eventfd(reader) && !is_eventfd(writer));
        assert!(!is_eventfd(std::fs::File::open("/dev/null").unwrap()));
    }
}
