// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bfq against what the Linux kernel's bfq did, see `oracle/mod.rs`.
//!
//! The case is one process with reads and synchronous writes at random sectors. That is one bfq queue. So all of this
//! follows from bfq's definition and is compared, request by request:
//!
//! - what merges (nothing here);
//! - that reads and synchronous writes share a queue and are not distinguished;
//! - the order inside it: nearest ahead of the head first, then a new sweep from the lowest, because everything behind is
//!   farther than `back_seek_max`;
//! - that the queue in service is given the disk whenever it has a request: no issue comes later than in the trace.
//!
//! Not comparable:
//!
//! - when a bio had to wait for a scheduler tag: bfq's depth limits count per word of the kernel's bitmap, whose words are
//!   not ours. They also depend on the weight raising of the moment;
//! - the lengths of turns and waits: an emulated CPU at HZ=250 made these times, and no other queue could have been served
//!   meanwhile;
//! - shares, budgets and raising of several processes, which no recorded case has.
//!
//! Those rules are tested against hand-computed numbers in the elevator.

use crate::oracle;

use oracle::replay;

#[test]
fn several_driver_tags() {
    assert_eq!(replay("bfq", "bfq-hw4"), (62, 0));
}
