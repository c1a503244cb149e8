// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All integration tests of this crate in one program, because each further program costs a link, which takes longer than most tests.

// Modules that several tests use.
extern crate mqblk_host as host;

mod certificates;
#[allow(unsafe_code, reason = "buffers are given back")]
mod common;
mod emulated;
mod nbd_load;
mod nbd_server;
mod own_process;
#[allow(unsafe_code, reason = "buffers are given back")]
mod serving;
mod vhost_server;
mod waiting;

mod changes;
mod daemon;
mod driver_conformance;
mod file_driver;
mod fuse;
mod fuzz_seeds;
mod image_lock;
mod iothread_panic;
mod iscsi_driver;
mod iscsi_errors;
mod iscsi_events;
mod iscsi_lio;
mod iscsi_scripted;
mod iscsi_scripted_eh;
mod kernel_settings;
mod moving;
mod multipath;
mod multipath_alua;
mod multipath_locks;
mod multipath_manual;
mod multipath_nbd;
mod multipath_resize;
mod multipath_told;
mod nbd_any_size;
mod nbd_driver;
mod nbd_driver_tls;
mod nbd_pipelined;
mod nbd_protocol;
mod nbd_serve;
mod nbd_space;
mod nbd_tls;
mod rbd_driver;
mod run_queues;
mod stripe;
mod vhost_cache;
mod vhost_churn;
mod vhost_hostile;
mod vhost_lean;
mod vhost_short;
mod vhost_user;
mod virtio_conformance;
