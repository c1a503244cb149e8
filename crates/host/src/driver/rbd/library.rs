// SPDX-License-Identifier: Apache-2.0 OR MIT
//! librados and librbd, loaded when the first RBD target is opened: nothing links with Ceph, and nothing needs it to build.
//!
//! Guarantees: [`Library::get`] tries once per process. A library that is missing, or lacks a function, gives one message that names the
//! packages. Libraries stay loaded, because Ceph's threads run their code until the process ends.
//! Needs from callers (only [`super::image`]): pointers that are passed in were returned by the library, are of the same kind, and were
//! not yet released.
//! Source: `rados/librados.h` and `rbd/librbd.h` of Ceph 16.2.15, whose C functions keep their signatures: any change other than an
//! addition would change the number in `librbd.so.1` and `librados.so.2`. Functions that are younger than Ceph 14 are optional.

use crate::error::{Error, ErrorKind, Result};
use libc::{c_char, c_int, c_void, iovec, size_t, ssize_t};
use std::sync::OnceLock;

/// The type of `rados_t`, `rados_ioctx_t`, `rbd_image_t` and `rbd_completion_t`.
pub(super) type Handle = *mut c_void;

/// `RBD_LOCK_MODE_EXCLUSIVE`.
pub(super) const LOCK_EXCLUSIVE: c_int = 0;
/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`.
pub(super) const ZEROES_THICK: c_int = 1;
/// `EVENT_TYPE_EVENTFD`.
pub(super) const EVENT_TYPE_EVENTFD: c_int = 2;

/// `rbd_image_info_t`.
#[repr(C)]
#[derive(Default)]
pub(super) struct ImageInfo {
    pub(super) size: u64,
    pub(super) obj_size: u64,
    pub(super) num_objs: u64,
    pub(super) order: c_int,
    pub(super) block_name_prefix: [c_char; 24],
    pub(super) parent_pool: i64,
    pub(super) parent_name: [[c_char; 32]; 3],
}

/// `rbd_image_watcher_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Watcher {
    pub(super) addr: *mut c_char,
    pub(super) id: i64,
    pub(super) cookie: u64,
}

/// `rbd_config_option_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ConfigOption {
    pub(super) name: *mut c_char,
    pub(super) value: *mut c_char,
    pub(super) source: c_int,
}

/// The callback of `rbd_diff_iterate2`.
pub(super) type DiffCallback = extern "C" fn(u64, size_t, c_int, *mut c_void) -> c_int;

macro_rules! functions {
    ($(from $library:ident as $file:literal { $($name:ident($($arg:ty),*) $(-> $ret:ty)?;)* })*
     optional from $younger:ident { $($optional:ident($($oarg:ty),*) $(-> $oret:ty)?;)* }) => {
        /// The functions, under their own names.
        pub(super) struct Library {
            $($(pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*)*
            $(pub(super) $optional: Option<unsafe extern "C" fn($($oarg),*) $(-> $oret)?>,)*
        }

        impl Library {
            fn load() -> std::result::Result<Library, libloading::Error> {
                // SAFETY: constructors of Ceph's libraries set up their own data and need nothing of the process.
                $(let $library = unsafe { libloading::Library::new($file) }?;)*
                let library = Library {
                    // SAFETY: each signature is that of the function of this name in the header (module's text).
                    $($($name: unsafe { *$library.get(stringify!($name))? },)*)*
                    // SAFETY: as above.
                    $($optional: unsafe { $younger.get(stringify!($optional)) }.ok().map(|f| *f),)*
                };
                // Never unloaded: see above.
                std::mem::forget(($($library,)*));
                Ok(library)
            }
        }
    };
}

functions! {
    from rados as "librados.so.2" {
        rados_create2(*mut Handle, *const c_char, *const c_char, u64) -> c_int;
        rados_conf_read_file(Handle, *const c_char) -> c_int;
        rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
        rados_conf_get(Handle, *const c_char, *mut c_char, size_t) -> c_int;
        rados_connect(Handle) -> c_int;
        rados_shutdown(Handle);
        rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
        rados_ioctx_set_namespace(Handle, *const c_char);
        rados_ioctx_destroy(Handle);
    }
    from rbd as "librbd.so.1" {
        rbd_open(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
        rbd_open_read_only(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
        rbd_close(Handle) -> c_int;
        rbd_stat(Handle, *mut ImageInfo, size_t) -> c_int;
        rbd_get_size(Handle, *mut u64) -> c_int;
        rbd_get_features(Handle, *mut u64) -> c_int;
        rbd_resize2(Handle, u64, bool, Option<extern "C" fn(u64, u64, *mut c_void) -> c_int>, *mut c_void) -> c_int;
        rbd_set_image_notification(Handle, c_int, c_int) -> c_int;
        rbd_poll_io_events(Handle, *mut Handle, c_int) -> c_int;
        rbd_aio_create_completion(*mut c_void, Option<extern "C" fn(Handle, *mut c_void)>, *mut Handle) -> c_int;
        rbd_aio_get_return_value(Handle) -> ssize_t;
        rbd_aio_get_arg(Handle) -> *mut c_void;
        rbd_aio_release(Handle);
        rbd_aio_readv(Handle, *const iovec, c_int, u64, Handle) -> c_int;
        rbd_aio_writev(Handle, *const iovec, c_int, u64, Handle) -> c_int;
        rbd_aio_discard(Handle, u64, u64, Handle) -> c_int;
        rbd_aio_flush(Handle, Handle) -> c_int;
        rbd_diff_iterate2(Handle, *const c_char, u64, u64, u8, u8, DiffCallback, *mut c_void) -> c_int;
        rbd_is_exclusive_lock_owner(Handle, *mut c_int) -> c_int;
        rbd_lock_acquire(Handle, c_int) -> c_int;
        rbd_lock_get_owners(Handle, *mut c_int, *mut *mut c_char, *mut size_t) -> c_int;
        rbd_lock_get_owners_cleanup(*mut *mut c_char, size_t);
        rbd_watchers_list(Handle, *mut Watcher, *mut size_t) -> c_int;
        rbd_watchers_list_cleanup(*mut Watcher, size_t);
        rbd_config_image_list(Handle, *mut ConfigOption, *mut c_int) -> c_int;
        rbd_config_image_list_cleanup(*mut ConfigOption, c_int);
    }
    optional from rbd {
        rbd_aio_write_zeroes(Handle, u64, size_t, Handle, c_int, c_int) -> c_int;
    }
}

impl Library {
    /// Returns the libraries; loads them at the first call.
    ///
    /// # Errors
    /// The libraries are not installed, or too old; the text says how to get them.
    pub(super) fn get() -> Result<&'static Library> {
        static LIBRARY: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
        let loaded = LIBRARY.get_or_init(|| {
            Library::load().map_err(|e| {
                let cause = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
                missing(&cause)
            })
        });
        loaded.as_ref().map_err(|text| Error::new(ErrorKind::Resource, text.clone()))
    }
}

fn missing(why: &str) -> String {
    format!(
        "RBD needs Ceph's client libraries librados.so.2 and librbd.so.1 of Ceph 14 or later ({why}); install them (Debian and Ubuntu: \
         apt-get install librbd1 librados2)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_headers_sizes() {
        // librbd.h: three u64, int and 24 characters, i64, 96 characters, with the alignment of x86-64 and AArch64.
        assert_eq!(size_of::<ImageInfo>(), 24 + 4 + 24 + 4 + 8 + 96);
        assert_eq!((size_of::<Watcher>(), size_of::<ConfigOption>()), (24, 24));
    }

    #[test]
    fn a_missing_library_names_its_packages() {
        let text = missing("librbd.so.1: cannot open shared object file");
        assert!(
            text.contains("librbd.so.1: cannot open") && text.contains("apt-get install librbd1 librados2"),
            "{text}"
        );
        // Whichever is true here, it stays so.
        assert_eq!(Library::get().is_ok(), Library::get().is_ok());
    }
}
