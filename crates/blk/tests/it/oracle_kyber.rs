// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All decisions of kyber, compared with the Linux kernel's kyber, see `oracle/mod.rs`.
//!
//! This compares merges (none in this case, because the sectors are random), the order within a domain, and the turns of
//! the domains, as shown by the domain of each issued request. With one software queue and enough tokens, all of these
//! follow from kyber's definition alone.
//!
//! Not comparable on such a trace:
//!
//! - times: they come from an emulated CPU at HZ=250;
//! - which token a request had and which hardware queue was woken for a token, because no event shows it;
//! - the depths of the domains: they stay as they are in the kernel and here, because kyber judges the total latency by 500
//!   requests and the trace has 62;
//! - with several CPUs, the order in which software queues were inserted into while one was being emptied.
//!
//! The rules for depths are tested against hand-computed numbers in the elevator.

use crate::oracle;

use oracle::replay;

#[test]
fn several_driver_tags() {
    assert_eq!(replay("kyber", "kyber-hw4"), (62, 0));
}
