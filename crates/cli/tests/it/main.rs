// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All integration tests of this crate in one program, because each further program costs a link, which takes longer than most tests.

// Modules that several tests use.
#[path = "../../../host/tests/it/common/ceph.rs"]
#[allow(dead_code, reason = "shared with the driver's tests")]
mod ceph;
#[path = "../../../host/tests/it/certificates/mod.rs"]
mod certificates;
mod common;
#[cfg(target_arch = "x86_64")]
#[path = "../../../host/tests/it/emulated/mod.rs"]
mod emulated;
#[cfg(target_arch = "x86_64")]
#[path = "guest/machine.rs"]
mod machine;
#[path = "../../../host/tests/it/common/stopping.rs"]
mod stopping;
#[path = "common/tgtd.rs"]
mod tgtd;
#[path = "../../../host/tests/it/waiting/mod.rs"]
mod waiting;

mod calibrate;
mod compare;
mod dashboards;
mod documents;
mod errors;
mod fio_agreement;
mod fio_command_line;
mod fio_iolog;
mod fio_logs;
mod fio_policies;
mod fio_verify_files;
mod guest;
mod inspect;
mod iscsi;
mod json;
mod kernel_target;
mod multipath;
mod nbd;
mod oltp;
mod packaged;
mod report;
mod run;
mod run_status;
mod serve;
mod serve_confinement;
mod serve_aio;
mod serve_ctl;
mod serve_failed_flush;
mod serve_fuse;
mod serve_geometry;
mod serve_image;
mod serve_inject;
mod serve_log;
mod serve_memory;
mod serve_metrics;
mod serve_multipath;
mod serve_nbd;
mod serve_paths;
mod serve_pidfile;
mod serve_postgres;
mod serve_rbd;
mod serve_secrets;
mod serve_socket;
mod serve_stripe;
mod serve_stuck;
mod serve_systemd;
mod serve_top;
mod serve_user;
mod serve_vhost;
mod several_files;
mod sim;
mod sim_target;
mod stripe_iscsi;
mod trace;
mod tune;
mod tune_guests;
mod unanswered;
mod whatif;
