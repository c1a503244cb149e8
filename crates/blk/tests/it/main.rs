// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All integration tests of this crate in one program, because each program has to be linked, and most tests take less time
//! than that.

// What several of them use.
extern crate mqblk_blk as blk;

mod oracle;
mod threads;
mod ways;

mod alua_answers;
mod core_bfq;
mod core_complete;
mod core_debugfs;
mod core_dispatch;
mod core_flush;
mod core_hotplug;
mod core_kyber;
mod core_limits;
mod core_multipath;
mod core_multipath_threads;
mod core_races;
mod core_rebuild;
mod core_rmw;
mod core_scsi;
mod core_scsi_eh;
mod core_stripe;
mod core_submit;
mod core_tag_set;
mod core_tag_set_threads;
mod core_threads;
mod core_trace;
mod core_trace_lives;
mod core_wbt;
mod oracle_bfq;
mod oracle_kyber;
mod oracle_mq_deadline;

/// The elevators that random tests draw from.
const DRAWN: [&str; 4] = blk::elevator::MqElevator::names_without(&[(
    blk::elevator::MqElevator::K2,
    "came later: seeds draw what they drew",
)]);
