// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bfq compared with the Linux kernel's bfq, see `oracle/mod.rs`.
//!
//! The case is one process with reads and synchronous writes at random sectors, so there is one bfq queue. The
//! following properties follow from bfq's definition and are compared, request by request:
//!
//! - what merges (nothing here);
//! - that reads and synchronous writes share a queue and are not distinguished;
//! - the order inside the queue: nearest ahead of the head first, then a new sweep from the lowest sector, because all
//!   sectors behind the head are farther than `back_seek_max`;
//! - that the queue in service is given the disk whenever it has a request: no issue comes later than in the trace.
//!
//! Not comparable:
//!
//! - when a bio had to wait for a scheduler tag: bfq's depth limits count per word of the kernel's bitmap, whose words
//!   differ from those here. They also depend on the present weight raising;
//! - the lengths of service turns and idle waits: they come from an emulated CPU at HZ=250, and there was no other queue
//!   to serve;
//! - shares, budgets and raising of several processes, which no recorded case has.
//!
//! Those rules are tested against hand-computed numbers in the elevator.

use crate::oracle;

use oracle::replay;

#[test]
fn several_driver_tags() {
    assert_eq!(replay("bfq", "bfq-hw4"), (62, 0));
}
