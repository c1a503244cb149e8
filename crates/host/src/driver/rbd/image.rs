// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cluster, an open image of it, and the image's I/O: librbd's handles as values that are released exactly once.
//!
//! Guarantees: a cluster outlives its images, and an image outlives its I/O. [`Image::poll`] returns each submitted [`Io`]
//! exactly once, and the I/O's list of pieces stays in place until then. No callback of ours runs on a thread of Ceph's: an
//! eventfd signals completions, and `poll` fetches them.
//! Needs from callers: the memory of an [`Io`]'s pieces is not reused before `poll` has returned the I/O. Writes of an image
//! that [`Image::copies_writes`] are an exception.
//! Blocking: everything but [`Image::submit`] and [`Image::poll`] may wait for the cluster.
//! Source: `rados/librados.h` and `rbd/librbd.h` (Ceph 16). librbd reads a read's array of pieces when the read completes,
//! and a write's during the call.

use super::library::{
    ConfigOption, EVENT_TYPE_EVENTFD, Handle, ImageInfo, LOCK_EXCLUSIVE, Library, Watcher, ZEROES_THICK,
};
use crate::error::{Error, Result};
use crate::event;
use crate::mem::Span;
use libc::{c_char, c_int, c_void, iovec, size_t};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// Feature bit of the exclusive lock (`RBD_FEATURE_EXCLUSIVE_LOCK`).
pub(super) const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;
/// Feature bit of stripes over several objects (`RBD_FEATURE_STRIPINGV2`).
pub(super) const FEATURE_STRIPINGV2: u64 = 1 << 1;

fn c_string(text: &str) -> Result<CString> {
    CString::new(text)
        .map_err(|_| Error::usage(format!("'{text}' has a zero byte, which Ceph does not allow in a name")))
}

/// Returns the error for a negative errno.
fn failed(code: c_int, what: impl Into<String>) -> Error {
    Error::os(std::io::Error::from_raw_os_error(code.saturating_neg()), what)
}

fn check(code: c_int, what: impl FnOnce() -> String) -> Result<()> {
    if code < 0 { Err(failed(code, what())) } else { Ok(()) }
}

/// A connection to a cluster, made by [`Cluster::connect`].
pub(super) struct Cluster {
    library: &'static Library,
    handle: Handle,
}

// SAFETY: librados' functions on a cluster handle may be called by any thread; setting it up is over when it is shared.
unsafe impl Send for Cluster {}
// SAFETY: as above.
unsafe impl Sync for Cluster {}

impl Cluster {
    /// Makes a handle that is not connected yet. `cluster` and `user` are `ceph` and `admin` unless set. Reads the
    /// configuration file `conf`; without it, the file in the default places, if there is one.
    pub(super) fn new(cluster: Option<&str>, user: Option<&str>, conf: Option<&Path>) -> Result<Cluster> {
        let library = Library::get()?;
        let (name, cluster) = (format!("client.{}", user.unwrap_or("admin")), c_string(cluster.unwrap_or("ceph"))?);
        let user = c_string(&name)?;
        let mut handle = null_mut();
        // SAFETY: two strings that live during the call, and where the handle goes.
        let code = unsafe { (library.rados_create2)(&raw mut handle, cluster.as_ptr(), user.as_ptr(), 0) };
        check(code, || format!("cannot create a Ceph client named {name}"))?;
        let this = Cluster { library, handle };
        let path = conf.map(|p| c_string(&p.to_string_lossy())).transpose()?;
        // SAFETY: a handle that is not connected, and a string or none.
        let code = unsafe { (library.rados_conf_read_file)(handle, path.as_ref().map_or(null(), |p| p.as_ptr())) };
        // As QEMU: without a file everything may be in options.
        if let Some(conf) = conf {
            check(code, || format!("cannot read Ceph's configuration {} (option conf)", conf.display()))?;
        }
        Ok(this)
    }

    /// Sets one of Ceph's options.
    pub(super) fn set(&self, name: &str, value: &str) -> Result<()> {
        let (key, text) = (c_string(name)?, c_string(value)?);
        // SAFETY: a live handle, and strings that live during the call.
        let code = unsafe { (self.library.rados_conf_set)(self.handle, key.as_ptr(), text.as_ptr()) };
        match -code {
            libc::ENOENT => Err(Error::usage(format!(
                "option {name}: neither mqblk (conf, id, cluster, images, exclusive) nor Ceph's configuration has an option of this name"
            ))),
            libc::EINVAL => Err(Error::usage(format!("option {name}: Ceph's configuration does not take this value"))),
            _ => check(code, || format!("cannot set option {name}")),
        }
    }

    /// Returns the value of one of Ceph's options.
    pub(super) fn option(&self, name: &str) -> Option<String> {
        let (key, mut text) = (c_string(name).ok()?, [0 as c_char; 4096]);
        // SAFETY: a live handle, a string, and a buffer of the length that is told.
        let code = unsafe { (self.library.rados_conf_get)(self.handle, key.as_ptr(), text.as_mut_ptr(), text.len()) };
        // SAFETY: the call has put a string there that ends within the buffer.
        (code >= 0).then(|| unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// Connects to the cluster, within `client_mount_timeout`.
    pub(super) fn connect(&self) -> Result<()> {
        // SAFETY: a handle that is not connected.
        let code = unsafe { (self.library.rados_connect)(self.handle) };
        check(code, || {
            let monitors = self.option("mon_host").filter(|m| !m.is_empty());
            let at = monitors.map_or_else(
                || "no monitors are known: set conf=FILE, or mon_host".to_owned(),
                |m| {
                    format!(
                        "monitors: {m}; within client_mount_timeout={} s",
                        self.option("client_mount_timeout").unwrap_or_default()
                    )
                },
            );
            format!("cannot connect to the Ceph cluster ({at})")
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: every image holds the cluster, so none is open.
        unsafe { (self.library.rados_shutdown)(self.handle) };
    }
}

/// The name of an image, and how it is opened.
pub(super) struct ImageName<'a> {
    pub(super) pool: &'a str,
    pub(super) namespace: &'a str,
    pub(super) image: &'a str,
    pub(super) snapshot: Option<&'a str>,
    pub(super) read_only: bool,
}

/// What an I/O does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Read,
    Write,
    Flush,
    Discard,
    /// `thick`: the zeroes are written and allocate space.
    WriteZeroes {
        thick: bool,
    },
}

/// One I/O. Made once and used again.
pub(super) struct Io {
    /// The caller's identifier of the I/O.
    pub(super) cookie: u64,
    pub(super) action: Action,
    /// Bytes of the image.
    pub(super) offset: u64,
    pub(super) len: u64,
    pieces: Vec<iovec>,
}

// SAFETY: the addresses are used by librbd only, under the caller's promise of the module's text.
unsafe impl Send for Io {}

impl Io {
    pub(super) fn new() -> Box<Io> {
        Box::new(Io { cookie: 0, action: Action::Flush, offset: 0, len: 0, pieces: Vec::with_capacity(4) })
    }

    /// Removes all pieces of memory.
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
    }

    /// Adds a piece of memory; adjacent pieces are merged.
    pub(super) fn push(&mut self, span: Span<'_>) {
        match self.pieces.last_mut() {
            Some(last) if last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == span.as_ptr() => {
                last.iov_len += span.len();
            }
            _ => self.pieces.push(iovec { iov_base: span.as_ptr().cast(), iov_len: span.len() }),
        }
    }
}

/// An open image.
pub(super) struct Image {
    library: &'static Library,
    handle: Handle,
    context: Handle,
    completed: OwnedFd,
    cluster: Arc<Cluster>,
}

// SAFETY: librbd's functions on an image may be called by any thread.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

/// Maximum number of clients of an image that are accepted.
const MAX_WATCHERS: usize = 1 << 16;

/// Extents that `rbd_diff_iterate2` has reported.
struct Diff {
    /// Extents that end before this offset are omitted.
    from: u64,
    extents: Vec<(u64, u64)>,
    most: usize,
}

extern "C" fn note_extent(offset: u64, len: size_t, exists: c_int, diff: *mut c_void) -> c_int {
    // SAFETY: the pointer is the one that `Image::extents` gave, whose value no other thread uses during the call.
    let diff = unsafe { &mut *diff.cast::<Diff>() };
    let len = len as u64;
    if exists != 0 && offset.saturating_add(len) > diff.from {
        let is_full = diff.extents.len() == diff.most;
        match diff.extents.last_mut() {
            Some((at, n)) if *at + *n == offset => *n += len,
            // The caller cannot tell what lies between extents that are out of order.
            Some((at, n)) if *at + *n > offset => return -libc::EINVAL,
            _ if is_full => return -libc::ECANCELED,
            _ => diff.extents.push((offset, len)),
        }
    }
    0
}

impl Image {
    pub(super) fn open(cluster: &Arc<Cluster>, place: &ImageName<'_>) -> Result<Image> {
        let library = cluster.library;
        let completed = event::new()?;
        let (pool, image) = (c_string(place.pool)?, c_string(place.image)?);
        let (namespace, snapshot) = (c_string(place.namespace)?, place.snapshot.map(c_string).transpose()?);
        let mut context = null_mut();
        // SAFETY: a connected cluster, a string, and where the context goes.
        let code = unsafe { (library.rados_ioctx_create)(cluster.handle, pool.as_ptr(), &raw mut context) };
        check(code, || format!("cannot use Ceph's pool '{}'", place.pool))?;
        // SAFETY: the context just made, and a string.
        unsafe { (library.rados_ioctx_set_namespace)(context, namespace.as_ptr()) };
        let open = if place.read_only { library.rbd_open_read_only } else { library.rbd_open };
        let (mut handle, snapshot) = (null_mut(), snapshot.as_ref().map_or(null(), |s| s.as_ptr()));
        // SAFETY: a live context, strings or none, and where the image goes.
        let mut code = unsafe { open(context, image.as_ptr(), &raw mut handle, snapshot) };
        if code >= 0 {
            // SAFETY: the image just opened; the descriptor lives until it is closed.
            code = unsafe { (library.rbd_set_image_notification)(handle, completed.as_raw_fd(), EVENT_TYPE_EVENTFD) };
            if code < 0 {
                // SAFETY: opened above, not used yet.
                unsafe { (library.rbd_close)(handle) };
            }
        }
        if code < 0 {
            // SAFETY: made above, and no image uses it.
            unsafe { (library.rados_ioctx_destroy)(context) };
            let name = place.snapshot.map_or_else(String::new, |s| format!("@{s}"));
            return Err(failed(
                code,
                format!("cannot open RBD image '{}{name}' of pool '{}'", place.image, place.pool),
            ));
        }
        Ok(Image { library, handle, context, completed, cluster: Arc::clone(cluster) })
    }

    /// Returns an eventfd that is readable when [`Image::poll`] may find completions. The caller drains it before it polls.
    pub(super) fn completed(&self) -> BorrowedFd<'_> {
        self.completed.as_fd()
    }

    /// Returns the size in bytes as it is now: librbd follows changes made by other clients.
    pub(super) fn size(&self) -> Result<u64> {
        let mut size = 0;
        // SAFETY: an open image, and where the number goes.
        let code = unsafe { (self.library.rbd_get_size)(self.handle, &raw mut size) };
        check(code, || "cannot find out the RBD image's size".to_owned()).map(|()| size)
    }

    /// Returns the size of the image's objects, in bytes.
    pub(super) fn object_bytes(&self) -> Result<u64> {
        let mut info = ImageInfo::default();
        // SAFETY: an open image, and a structure of the size that is told.
        let code = unsafe { (self.library.rbd_stat)(self.handle, &raw mut info, size_of::<ImageInfo>()) };
        check(code, || "cannot find out the RBD image's layout".to_owned()).map(|()| info.obj_size)
    }

    /// Returns the image's features, as bits.
    pub(super) fn features(&self) -> Result<u64> {
        let mut features = 0;
        // SAFETY: an open image, and where the number goes.
        let code = unsafe { (self.library.rbd_get_features)(self.handle, &raw mut features) };
        check(code, || "cannot find out the RBD image's features".to_owned()).map(|()| features)
    }

    /// Returns the value of one of Ceph's options for this image, because an image may override it.
    pub(super) fn option(&self, name: &str) -> Option<String> {
        let mut most: c_int = 0;
        let mut all: Vec<ConfigOption> = Vec::new();
        for _ in 0..3 {
            let list = if all.is_empty() { null_mut() } else { all.as_mut_ptr() };
            // SAFETY: the image is open, and `most` is the length of the array. Without an array, the call only returns the length.
            let code = unsafe { (self.library.rbd_config_image_list)(self.handle, list, &raw mut most) };
            match code {
                code if code >= 0 && !all.is_empty() => break,
                code if code >= 0 || code == -libc::ERANGE => {
                    let none = ConfigOption { name: null_mut(), value: null_mut(), source: 0 };
                    all = vec![none; usize::try_from(most).ok().filter(|n| (1..1 << 16).contains(n))?];
                }
                _ => return None,
            }
        }
        let told = &all[..usize::try_from(most).ok()?.min(all.len())];
        let found = told.iter().find(|o| {
            // SAFETY: a name that librbd stored is a C string until the list is given back.
            !o.name.is_null() && unsafe { CStr::from_ptr(o.name) }.to_bytes() == name.as_bytes()
        });
        // SAFETY: as above.
        let value = found.map(|o| unsafe { CStr::from_ptr(o.value) }.to_string_lossy().into_owned());
        if told.first().is_some_and(|o| !o.name.is_null()) {
            // SAFETY: what the call above has put there, given back once.
            unsafe { (self.library.rbd_config_image_list_cleanup)(all.as_mut_ptr(), most) };
        }
        value.or_else(|| self.cluster.option(name))
    }

    /// Whether a write's memory may be reused when [`Image::submit`] has returned.
    pub(super) fn copies_writes(&self) -> bool {
        self.option("rbd_disable_zero_copy_writes").as_deref() == Some("true")
    }

    /// Whether the image can write zeroes without sending them.
    pub(super) fn writes_zeroes(&self) -> bool {
        self.library.rbd_aio_write_zeroes.is_some()
    }

    pub(super) fn resize(&self, bytes: u64) -> Result<()> {
        // SAFETY: an open image, and no progress callback.
        let code = unsafe { (self.library.rbd_resize2)(self.handle, bytes, true, None, null_mut()) };
        check(code, || format!("cannot resize the RBD image to {bytes} bytes"))
    }

    /// Returns ranges of bytes that are stored, in order, at most `most` of them, and the offset up to which they are
    /// complete. Only writes that completed before the call are sure to be seen. The first range may begin before `offset`.
    /// Fails if librbd reports ranges out of order, which it does object by object with [`FEATURE_STRIPINGV2`]. `object`:
    /// [`Image::object_bytes`].
    pub(super) fn extents(&self, object: u64, offset: u64, end: u64, most: usize) -> Result<(Vec<(u64, u64)>, u64)> {
        // Begins at an object's first byte, because some versions report wrong offsets for a part of an object.
        let from = offset / object * object;
        let (len, mut diff) = (end - from, Diff { from: offset, extents: Vec::new(), most });
        let to = (&raw mut diff).cast();
        // SAFETY: an open image, and a callback that gets the pointer it knows, which lives during the call.
        let code = unsafe { (self.library.rbd_diff_iterate2)(self.handle, null(), from, len, 1, 0, note_extent, to) };
        let Diff { extents, .. } = diff;
        match code {
            0.. => Ok((extents, end)),
            _ if code == -libc::ECANCELED => {
                let known = extents.last().map_or(offset, |(at, n)| at + n);
                Ok((extents, known))
            }
            _ => Err(failed(code, "cannot find out which parts of the RBD image hold data")),
        }
    }

    /// Whether this handle has the exclusive lock.
    pub(super) fn owns_lock(&self) -> bool {
        let mut owns = 0;
        // SAFETY: an open image, and where the answer goes.
        let code = unsafe { (self.library.rbd_is_exclusive_lock_owner)(self.handle, &raw mut owns) };
        code >= 0 && owns != 0
    }

    /// Takes the exclusive lock and keeps it: other clients are refused until the image is closed.
    pub(super) fn acquire_lock(&self) -> Result<()> {
        // SAFETY: an open image.
        let code = unsafe { (self.library.rbd_lock_acquire)(self.handle, LOCK_EXCLUSIVE) };
        check(code, || "cannot take the RBD image's exclusive lock".to_owned())
    }

    /// Returns the addresses of the exclusive lock's owners.
    pub(super) fn lock_owners(&self) -> Result<Vec<String>> {
        let (mut mode, mut most) = (0, 8);
        let mut list = [null_mut::<c_char>(); 8];
        // SAFETY: an open image, and an array of the length that is told.
        let code =
            unsafe { (self.library.rbd_lock_get_owners)(self.handle, &raw mut mode, list.as_mut_ptr(), &raw mut most) };
        if code == -libc::ENOENT {
            return Ok(Vec::new());
        }
        check(code, || "cannot find the owner of the RBD image's exclusive lock".to_owned())?;
        let told = &list[..most.min(list.len())];
        // SAFETY: the entries that librbd stored are C strings until the list is given back.
        let owners = told.iter().map(|o| unsafe { CStr::from_ptr(*o) }.to_string_lossy().into_owned()).collect();
        // SAFETY: what the call above has put there, given back once.
        unsafe { (self.library.rbd_lock_get_owners_cleanup)(list.as_mut_ptr(), most) };
        Ok(owners)
    }

    /// Returns the clients that have the image open for writing, including this one: addresses and client numbers. A dead
    /// client's entry times out after 30 s.
    pub(super) fn watchers(&self) -> Result<Vec<(String, i64)>> {
        let (mut most, mut list) = (64, Vec::new());
        let code = loop {
            list.resize(most, Watcher { addr: null_mut(), id: 0, cookie: 0 });
            // SAFETY: an open image, and an array of the length that is told.
            let code = unsafe { (self.library.rbd_watchers_list)(self.handle, list.as_mut_ptr(), &raw mut most) };
            // With ERANGE, `most` is the number of watchers.
            if code != -libc::ERANGE || most <= list.len() || most > MAX_WATCHERS {
                break code;
            }
        };
        check(code, || "cannot list the users of the RBD image".to_owned())?;
        let n = most.min(list.len());
        // SAFETY: an address that was told is a string, until it is given back.
        let all = list[..n]
            .iter()
            .map(|w| (unsafe { CStr::from_ptr(w.addr) }.to_string_lossy().into_owned(), w.id))
            .collect();
        // SAFETY: what the call above has put there, given back once.
        unsafe { (self.library.rbd_watchers_list_cleanup)(list.as_mut_ptr(), n) };
        Ok(all)
    }

    /// Starts an I/O. If librbd refuses it, returns its errno and the I/O.
    pub(super) fn submit(&self, io: Box<Io>) -> std::result::Result<(), (i32, Box<Io>)> {
        let l = self.library;
        let io = Box::into_raw(io);
        let mut completion = null_mut();
        // SAFETY: no callback; the argument is kept for `poll`; and where the completion goes.
        let made = unsafe { (l.rbd_aio_create_completion)(io.cast(), None, &raw mut completion) };
        // SAFETY: the box of above. No other thread has it before the calls below, and these do not change it.
        let (action, offset, len, list, n) = unsafe {
            let what = &*io;
            (what.action, what.offset, what.len, what.pieces.as_ptr(), what.pieces.len() as c_int)
        };
        let code = if made < 0 {
            made
        } else {
            // SAFETY: an open image, a fresh completion, and pieces that stay in place until it is done (module's text).
            unsafe {
                match (action, l.rbd_aio_write_zeroes) {
                    (Action::Read, _) => (l.rbd_aio_readv)(self.handle, list, n, offset, completion),
                    (Action::Write, _) => (l.rbd_aio_writev)(self.handle, list, n, offset, completion),
                    (Action::Flush, _) => (l.rbd_aio_flush)(self.handle, completion),
                    (Action::Discard, _) => (l.rbd_aio_discard)(self.handle, offset, len, completion),
                    (Action::WriteZeroes { thick }, Some(f)) => {
                        let flags = if thick { ZEROES_THICK } else { 0 };
                        f(self.handle, offset, len as size_t, completion, flags, 0)
                    }
                    (Action::WriteZeroes { .. }, None) => -libc::EOPNOTSUPP,
                }
            }
        };
        if code >= 0 {
            return Ok(());
        }
        if made >= 0 {
            // SAFETY: made above, and refused: it will never complete.
            unsafe { (l.rbd_aio_release)(completion) };
        }
        // SAFETY: the box of above, which was not taken.
        Err((-code, unsafe { Box::from_raw(io) }))
    }

    /// Passes each completed I/O to `each`, with its result: bytes, or a negative errno.
    pub(super) fn poll(&self, mut each: impl FnMut(Box<Io>, i64)) {
        let mut list = [null_mut(); 32];
        loop {
            // SAFETY: an open image, and an array of the length that is told.
            let n = unsafe { (self.library.rbd_poll_io_events)(self.handle, list.as_mut_ptr(), list.len() as c_int) };
            let n = usize::try_from(n).unwrap_or(0).min(list.len());
            for completion in &list[..n] {
                // SAFETY: `submit` made the completion, with a boxed `Io` as its argument. librbd reports each completion once, and it is
                // released after its last use.
                let (io, result) = unsafe {
                    let io = Box::from_raw((self.library.rbd_aio_get_arg)(*completion).cast::<Io>());
                    let result = (self.library.rbd_aio_get_return_value)(*completion);
                    (self.library.rbd_aio_release)(*completion);
                    (io, result as i64)
                };
                each(io, result);
            }
            if n < list.len() {
                return;
            }
        }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: open, and this is its end; then nothing uses the context, either.
        unsafe {
            (self.library.rbd_close)(self.handle);
            (self.library.rados_ioctx_destroy)(self.context);
        }
    }
}
