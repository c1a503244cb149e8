// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Handling of pages that a client takes away from its memory: its file was truncated, or has no room for a page.
//!
//! Guarantees: an access of this process to a [`Watch`]ed range always returns, whatever the client does to its file. The missing page
//! (SIGBUS) becomes a private zero page. The [`Alarm`] of the range is raised before any thread can read a zero of that page. So a thread
//! that sees no alarm after a read has read the client's data. Other ranges, and other clients, notice nothing.
//!
//! System calls that find no page (`io_uring`, `pwritev`) fail with EFAULT as usual, as long as this process has not accessed the page
//! before. A SIGBUS from elsewhere goes to the previous handler: it kills, as it should.
//!
//! Files that cannot shrink (`F_SEAL_SHRINK`, as QEMU's memory-backend-memfd has it) need none of this. Clients are not asked
//! for them, since file-backed and huge-page guests cannot have seals.
//!
//! Source: sigaction(2), mmap(2) ("SIGBUS"), memfd_create(2) on sealing, signal-safety(7).

use crate::error::Result;
use crate::event;
use parking_lot::Mutex;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};

/// Pages replaced one by one; after that the rest of the range is, since each costs a mapping, of which a process has 65530.
const SINGLE_PAGES: u32 = 64;

/// Raised when memory of one client has gone.
#[derive(Debug)]
pub(crate) struct Alarm {
    raised: AtomicBool,
    fd: OwnedFd,
}

impl Alarm {
    pub(crate) fn new() -> Result<Arc<Alarm>> {
        Ok(Arc::new(Alarm { raised: AtomicBool::new(false), fd: event::new()? }))
    }

    /// Whether memory has gone. What was read before a call that returns false was the client's.
    #[inline]
    pub(crate) fn is_raised(&self) -> bool {
        // Pairs with: repair
        self.raised.load(Ordering::Acquire)
    }

    /// Readable once it is raised.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A place for a watched range. Places are never freed, so that the handler can walk them, but used again.
#[derive(Debug)]
pub(super) struct Watch {
    next: AtomicPtr<Watch>,
    /// Odd while the rest is being changed.
    version: AtomicU32,
    base: AtomicUsize,
    /// 0 = nothing is watched here.
    len: AtomicUsize,
    page: AtomicUsize,
    /// Owned by the region; valid as long as `len` is not 0.
    alarm: AtomicPtr<Alarm>,
    repaired: AtomicU32,
}

static PLACES: AtomicPtr<Watch> = AtomicPtr::new(null_mut());
/// Held by a thread that changes a place.
static CHANGE: Mutex<()> = Mutex::new(());
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// All places, newest first.
fn places() -> impl Iterator<Item = &'static Watch> {
    // Pairs with: Watch::register
    // SAFETY: places are leaked boxes, which last for ever, or null.
    let get = |at: &AtomicPtr<Watch>| unsafe { at.load(Ordering::Acquire).as_ref() };
    std::iter::successors(get(&PLACES), move |w| get(&w.next))
}

impl Watch {
    /// Watches `len` bytes at `base`, mapped in pages of `page`.
    ///
    /// # Safety
    /// The range is a mapping of the caller's, and stays so, as `alarm` stays alive, until `unregister`.
    pub(super) unsafe fn register(base: NonNull<u8>, len: usize, page: usize, alarm: &Arc<Alarm>) -> &'static Watch {
        install();
        let _change = CHANGE.lock();
        let free = places().find(|w| w.len.load(Ordering::Relaxed) == 0);
        let watch = free.unwrap_or_else(|| {
            let new: &'static Watch = Box::leak(Box::new(Watch {
                next: AtomicPtr::new(PLACES.load(Ordering::Relaxed)),
                version: AtomicU32::new(0),
                base: AtomicUsize::new(0),
                len: AtomicUsize::new(0),
                page: AtomicUsize::new(0),
                alarm: AtomicPtr::new(null_mut()),
                repaired: AtomicU32::new(0),
            }));
            // Pairs with: places
            PLACES.store(std::ptr::from_ref(new).cast_mut(), Ordering::Release);
            new
        });
        watch.change(base.as_ptr().addr(), len, page, Arc::as_ptr(alarm).cast_mut());
        watch
    }

    /// The range is about to be unmapped.
    pub(super) fn unregister(&self) {
        let _change = CHANGE.lock();
        self.change(0, 0, 0, null_mut());
    }

    fn change(&self, base: usize, len: usize, page: usize, alarm: *mut Alarm) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        // No reader sees a new field with the old version. Pairs with: Watch::holds
        fence(Ordering::Release);
        self.base.store(base, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.page.store(page, Ordering::Relaxed);
        self.alarm.store(alarm, Ordering::Relaxed);
        self.repaired.store(0, Ordering::Relaxed);
        // Pairs with: Watch::holds
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Whether `address` is in it. One that is being changed is not the range that its user is just accessing.
    fn holds(&self, address: usize) -> bool {
        // Pairs with: Watch::change
        let version = self.version.load(Ordering::Acquire);
        let (base, len) = (self.base.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        // Pairs with: Watch::change
        fence(Ordering::Acquire);
        let same = self.version.load(Ordering::Relaxed) == version;
        same && version.is_multiple_of(2) && address.checked_sub(base).is_some_and(|at| at < len)
    }
}

/// Installs the handler, once.
fn install() {
    BEFORE.get_or_init(|| {
        // SAFETY: zero is a valid value of this plain structure, and the calls get pointers to local variables. The handler does only what
        // is allowed in a signal handler.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before);
            before
        }
    });
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        // SAFETY: as above; BEFORE is set.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            libc::sigemptyset(&raw mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &raw const action, null_mut());
        }
    });
}

/// Does only what a handler may: atomics, mmap, write.
extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid structure to a handler with SA_SIGINFO; errno is this thread's own.
    unsafe {
        let errno = *libc::__errno_location();
        let missing = (*info).si_code == libc::BUS_ADRERR || (*info).si_code == libc::BUS_MCEERR_AR;
        if !(missing && repair((*info).si_addr().addr())) {
            pass_on(signal, info, context);
        }
        *libc::__errno_location() = errno;
    }
}

/// Puts a zero page in the place of the one that is not there, if it is one of a watched range.
fn repair(address: usize) -> bool {
    let Some(watch) = places().find(|w| w.holds(address)) else { return false };
    let (base, len) = (watch.base.load(Ordering::Relaxed), watch.len.load(Ordering::Relaxed));
    let page = watch.page.load(Ordering::Relaxed);
    let (from, bytes) = if watch.repaired.fetch_add(1, Ordering::Relaxed) < SINGLE_PAGES {
        (address / page * page, page)
    } else {
        (base, len)
    };
    // SAFETY: this thread is accessing the range, so its region lives, and with it the alarm.
    let Some(alarm) = (unsafe { watch.alarm.load(Ordering::Relaxed).as_ref() }) else { return false };
    // Raise the alarm before the zeroes appear. Pairs with: Alarm::is_raised
    alarm.raised.store(true, Ordering::SeqCst);
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the range is within the watched mapping. The region owns the mapping, and accesses it only by atomics and by copies that may
    // race, so its bytes may change. If another thread maps zeroes here now, too, only zeroes are lost.
    let made = unsafe { libc::mmap(std::ptr::without_provenance_mut(from), bytes, prot, flags, -1, 0) };
    if made == libc::MAP_FAILED {
        return false;
    }
    let one = 1u64.to_le_bytes();
    // SAFETY: eight bytes of this frame; the descriptor is open as long as the alarm. It does not block.
    unsafe { libc::write(alarm.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    true
}

/// Forwards the signal to the handler that was installed before ours.
///
/// # Safety
/// Called by a handler with its arguments.
unsafe fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    type Plain = extern "C" fn(libc::c_int);
    type Full = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
    let before = BEFORE.get().filter(|b| b.sa_sigaction != libc::SIG_DFL && b.sa_sigaction != libc::SIG_IGN);
    // SAFETY: the address in `before` is a handler of the form that its flags give; `signal` and `raise` may be called here.
    unsafe {
        match before {
            Some(b) if b.sa_flags & libc::SA_SIGINFO != 0 => {
                std::mem::transmute::<usize, Full>(b.sa_sigaction)(signal, info, context);
            }
            Some(b) => std::mem::transmute::<usize, Plain>(b.sa_sigaction)(signal),
            None => {
                libc::signal(signal, libc::SIG_DFL);
                // A signal from an access comes again by itself; a signal that was sent has to be raised again.
                if (*info).si_code <= 0 {
                    libc::raise(signal);
                }
            }
        }
    }
}
