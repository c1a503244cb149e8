// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interface to fio: the functions that fio calls, and access to its structures at the offsets of [`layout`](crate::layout).
//!
//! Guarantees: only single fields of live structures are read or written, and only of a fio whose layout is known. The safe modules do
//! everything else. Needs from the caller, which is fio: a `thread_data`, `io_u` or `fio_file` that it passes is live during the call.
//! fio does not touch a queued `io_u` and its buffer until the engine has returned it. Calls for a job come from the thread that the job
//! runs on. The exception is the query of a file's size, which comes earlier.
//!
//! Source: fio 3.33 to 3.42, ioengines.h, HOWTO ("External engines").

use crate::disks::{self, JobPlace, Size};
use crate::job::{Io, Job, Queued};
use crate::layout::{self, JobOptions, Layout, RawOptions, ddir, file, q};
use blk::bio::Op;
use host::mem::ForeignBuffers;
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

/// Pointer to one of fio's structures.
type Raw = *mut c_void;

/// State of a job, owned by the thread that runs it.
struct Running {
    job: Job,
    /// The job's I/O units, until their buffers are known.
    io_us: Vec<usize>,
    max_bs: u64,
    batch: u32,
}

thread_local! {
    static RUNNING: RefCell<Option<Running>> = const { RefCell::new(None) };
}

/// The layout of the fio that loaded the engine; fio calls no function of an engine without one.
static LAYOUT: OnceLock<&'static Layout> = OnceLock::new();

#[inline]
fn at() -> &'static Layout {
    LAYOUT.get().expect("fio calls only the functions of a table that was made for it")
}

/// `struct ioengine_ops`. fio writes its list and handle fields.
type Ops = [u64; layout::OPS_BYTES / 8];

/// Reads the value at byte `at` of `base`.
///
/// # Safety
/// `base` is a live structure of fio with a field of this type at this offset. fio does not write the field meanwhile.
unsafe fn get<T: Copy>(base: Raw, at: usize) -> T {
    // SAFETY: the caller's promise; unaligned, so that alignment need not be promised.
    unsafe { base.cast::<u8>().add(at).cast::<T>().read_unaligned() }
}

/// Sets the value at byte `at` of `base`.
///
/// # Safety
/// As for [`get`].
unsafe fn set<T>(base: Raw, at: usize, value: T) {
    // SAFETY: the caller's promise.
    unsafe { base.cast::<u8>().add(at).cast::<T>().write_unaligned(value) }
}

/// The function that fio looks up in the library. It returns the engine's table in `table`.
///
/// # Safety
/// `table` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn get_ioengine(table: *mut Raw) {
    static TABLE: OnceLock<usize> = OnceLock::new();
    let at = *TABLE.get_or_init(|| Box::into_raw(make_table()).addr());
    // SAFETY: the caller's promise. The table is leaked, so fio may keep it for ever.
    unsafe { *table = std::ptr::with_exposed_provenance_mut(at) };
}

/// Returns the version of the program that loaded the engine, if it is fio.
fn version() -> Option<String> {
    // SAFETY: a search for a symbol by name.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"fio_version_string".as_ptr()) };
    // SAFETY: this symbol of fio is a constant text that ends with a zero.
    (!at.is_null()).then(|| unsafe { CStr::from_ptr(at.cast::<c_char>()) }.to_string_lossy().into_owned())
}

fn make_table() -> Box<Ops> {
    let mut table = Box::new([0; layout::OPS_BYTES / 8]);
    let base: Raw = (&raw mut *table).cast();
    let layout = match layout::known(version().as_deref()) {
        Ok(known) => *LAYOUT.get_or_init(|| known),
        // With version 0, fio reports which version it needs and does not use this table.
        Err(why) => {
            disks::say(&why);
            return table;
        }
    };
    let ops = &layout.ops;
    let functions: [(usize, *const ()); 12] = [
        (ops.init, init as *const ()),
        (ops.post_init, post_init as *const ()),
        (ops.queue, queue as *const ()),
        (ops.commit, commit as *const ()),
        (ops.getevents, getevents as *const ()),
        (ops.event, event as *const ()),
        (ops.cleanup, cleanup as *const ()),
        (ops.open_file, open_file as *const ()),
        (ops.close_file, close_file as *const ()),
        (ops.invalidate, invalidate as *const ()),
        (ops.get_file_size, get_file_size as *const ()),
        (ops.io_u_init, io_u_init as *const ()),
    ];
    // SAFETY: as above; each function has the signature of its field.
    unsafe {
        set(base, ops.name, c"mqblk".as_ptr());
        set(base, ops.version, layout.ioops);
        set(base, ops.flags, layout.flags.rawio | layout.flags.nodiskutil | layout.flags.no_offload);
        functions.into_iter().for_each(|(at, function)| set(base, at, function));
    }
    // Starts the clock before fio forks.
    host::clock::start();
    let _ = disks::regions();
    table
}

/// Reads the options of a job.
///
/// # Safety
/// `td` is a live `thread_data`.
unsafe fn options(td: Raw) -> JobOptions {
    // SAFETY: fields of `thread_data` at their offsets, set before any engine is called.
    let raw = unsafe {
        RawOptions {
            ddir: get(td, at().td.ddir),
            iodepth: get(td, at().td.iodepth),
            iodepth_batch: get(td, at().td.iodepth_batch),
            max_bs: get(td, at().td.max_bs),
            odirect: get(td, at().td.odirect),
            sync_io: get(td, at().td.sync_io),
        }
    };
    JobOptions::sensible(raw).unwrap_or_else(|| {
        disks::say("this fio lays out its job options in an unexpected way: direct= is read only from MQBLK_SET, and sync= is ignored");
        JobOptions::UNKNOWN
    })
}

/// Reads the name of a file.
///
/// # Safety
/// `f` is a live `fio_file`.
unsafe fn file_name(f: Raw) -> String {
    // SAFETY: the caller's promise. The name ends with a zero and lives as long as the file.
    unsafe {
        let name: *const c_char = get(f, file::FILE_NAME);
        CStr::from_ptr(name).to_string_lossy().into_owned()
    }
}

unsafe extern "C" fn get_file_size(td: Raw, f: Raw) -> c_int {
    // SAFETY: fio passes a live file.
    let name = unsafe { file_name(f) };
    disks::show(td.addr(), &name);
    // SAFETY: fio passes a live job.
    let writes = unsafe { options(td) }.writes;
    let size = disks::read_name(&name).and_then(|named| {
        if writes {
            disks::lock_images(&named)?;
        }
        disks::size(&named)
    });
    let (bytes, kind) = match size {
        Ok(Size::File(bytes)) => (bytes, file::TYPE_FILE),
        Ok(Size::Device(bytes)) => (bytes, file::TYPE_BLOCK),
        Err(e) => {
            disks::say(&e.to_string());
            return 1;
        }
    };
    // SAFETY: as above; an engine's `get_file_size` is what sets these fields.
    unsafe {
        set(f, file::REAL_FILE_SIZE, bytes);
        set(f, file::FILETYPE, kind);
    }
    0
}

unsafe extern "C" fn init(td: Raw) -> c_int {
    // SAFETY: fio passes a live job.
    let options = unsafe { options(td) };
    let place: JobPlace = disks::place(td.addr());
    let running =
        Running { job: Job::new(place, options), io_us: Vec::new(), max_bs: options.max_bs, batch: options.batch };
    RUNNING.with_borrow_mut(|r| *r = Some(running));
    0
}

unsafe extern "C" fn io_u_init(_td: Raw, io: Raw) -> c_int {
    with(|r| r.io_us.push(io.expose_provenance()));
    0
}

/// Registers the job's buffers. They are one piece of memory. All I/O units exist now and point to their parts of it.
unsafe extern "C" fn post_init(_td: Raw) -> c_int {
    with(|r| {
        let units = std::mem::take(&mut r.io_us);
        // SAFETY: fio keeps the I/O units that it passed to `io_u_init` until the job ends, and has assigned their buffers.
        let buf = |unit: usize| unsafe { get::<*mut u8>(std::ptr::with_exposed_provenance_mut(unit), at().io_u.buf) };
        let buffers: Vec<*mut u8> = units.into_iter().map(buf).collect();
        let (Some(first), Some(last)) = (buffers.iter().min().copied(), buffers.iter().max().copied()) else { return };
        let stride = r.max_bs as usize;
        let evenly = buffers.len().checked_sub(1).and_then(|n| n.checked_mul(stride));
        let Some(start) = NonNull::new(first).filter(|_| evenly == Some(last.addr() - first.addr())) else { return };
        let len = last.addr() - first.addr() + stride;
        // SAFETY: fio has allocated buffers of `max_bs` bytes one after the other, as checked above. It frees them after `cleanup`, which
        // waits for all I/O and drops this value. Rust makes no references to them.
        match unsafe { ForeignBuffers::new(&disks::regions(), start, len) } {
            Ok(buffers) => r.job.lend(buffers),
            Err(e) => disks::say(&e.to_string()),
        }
    });
    0
}

unsafe extern "C" fn open_file(_td: Raw, f: Raw) -> c_int {
    // SAFETY: fio passes a live file.
    let name = unsafe { file_name(f) };
    let opened = with(|r| r.job.open(f.addr(), &name));
    if let Some(Err(e)) = &opened {
        disks::say(&e.to_string());
    }
    c_int::from(!matches!(opened, Some(Ok(()))))
}

/// Does nothing: a disk stays open until its job ends, because fio may close and open a file in each of its loops.
unsafe extern "C" fn close_file(_td: Raw, _f: Raw) -> c_int {
    0
}

unsafe extern "C" fn invalidate(_td: Raw, f: Raw) -> c_int {
    // SAFETY: fio passes a live file.
    let name = unsafe { file_name(f) };
    let Ok(named) = disks::read_name(&name) else { return 0 };
    for path in named.target.files() {
        if let Err(e) = host::create::drop_cached_pages(path) {
            disks::say(&e.to_string());
            return -libc::EIO;
        }
    }
    0
}

/// Returns the I/O that an I/O unit requests; `None` for an operation that no disk has.
///
/// # Safety
/// `unit` is a live `io_u` that fio has filled in.
unsafe fn io_of(unit: Raw) -> Option<Io> {
    // SAFETY: the caller's promise.
    unsafe {
        let op = match get::<u32>(unit, at().io_u.ddir) {
            ddir::READ => Op::Read,
            ddir::WRITE => Op::Write,
            ddir::TRIM => Op::Discard,
            ddir::SYNC | ddir::DATASYNC | ddir::SYNC_FILE_RANGE => Op::Flush,
            _ => return None,
        };
        Some(Io {
            id: unit.expose_provenance() as u64,
            file: get::<Raw>(unit, at().io_u.file).addr(),
            op,
            offset: get(unit, at().io_u.offset),
            len: get(unit, at().io_u.xfer_buflen),
            buf: get::<Raw>(unit, at().io_u.xfer_buf).expose_provenance(),
            prio: get(unit, at().io_u.ioprio),
        })
    }
}

/// Stores the result of an I/O in its unit.
///
/// # Safety
/// `unit` is a live `io_u` that fio has queued, or queues in this call.
unsafe fn end(unit: Raw, errno: c_int) {
    // SAFETY: the caller promises a live `io_u`, and engines may set these fields.
    unsafe {
        set::<u32>(unit, at().io_u.error, errno as u32);
        set::<u64>(unit, at().io_u.resid, 0);
    }
}

unsafe extern "C" fn queue(_td: Raw, unit: Raw) -> c_int {
    // SAFETY: fio passes an I/O unit it has filled in.
    let io = unsafe { io_of(unit) };
    let queued = with(|r| match io.map(|io| (r.job.queue(&io), io)) {
        None => Queued::Ended(libc::EINVAL),
        Some((Queued::NotLent, io)) => queue_stray(r, &io),
        Some((queued, _)) => queued,
    });
    let errno = match queued.unwrap_or(Queued::Ended(libc::EBADF)) {
        Queued::Ended(errno) => errno,
        Queued::Taken => return q::QUEUED,
        Queued::Full => return q::BUSY,
        Queued::NotLent => libc::EFAULT,
    };
    // SAFETY: as above.
    unsafe { end(unit, errno) };
    q::COMPLETED
}

/// Queues an I/O whose buffer is not one of those that fio has allocated for the job.
#[cold]
fn queue_stray(r: &mut Running, io: &Io) -> Queued {
    let Some(start) = NonNull::new(std::ptr::with_exposed_provenance_mut(io.buf)) else { return Queued::NotLent };
    // SAFETY: fio does not touch the buffer of a queued I/O unit until the unit is returned. The job drops this value when the I/O
    // has completed. Rust makes no references to it.
    match unsafe { ForeignBuffers::new(&disks::regions(), start, io.len as usize) } {
        Ok(buffers) => r.job.lend_once(io.id, buffers),
        Err(e) => {
            disks::say(&e.to_string());
            return Queued::NotLent;
        }
    }
    r.job.queue(io)
}

unsafe extern "C" fn commit(_td: Raw) -> c_int {
    with(|r| {
        if r.batch > 1 {
            r.job.commit();
        }
    });
    0
}

unsafe extern "C" fn getevents(_td: Raw, min: c_uint, max: c_uint, _limit: *const libc::timespec) -> c_int {
    // fio passes a time limit only with a `min` of 0, and then this does not wait.
    with(|r| r.job.reap(min as usize, max as usize)).unwrap_or(0) as c_int
}

unsafe extern "C" fn event(_td: Raw, n: c_int) -> Raw {
    let Some(Some((id, errno))) = with(|r| r.job.event(n as usize)) else { return std::ptr::null_mut() };
    let unit: Raw = std::ptr::with_exposed_provenance_mut(id as usize);
    // SAFETY: the number of an I/O is the address of its unit, which fio does not touch until this call returns it.
    unsafe { end(unit, errno) };
    unit
}

unsafe extern "C" fn cleanup(_td: Raw) {
    // Waits for the I/O in flight, because fio frees the buffers after this.
    drop(RUNNING.with_borrow_mut(Option::take));
}

/// Calls `f` with the job of this thread, if it has one.
#[inline]
fn with<R>(f: impl FnOnce(&mut Running) -> R) -> Option<R> {
    RUNNING.with_borrow_mut(|r| r.as_mut().map(f))
}
