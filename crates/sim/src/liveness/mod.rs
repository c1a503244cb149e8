// SPDX-License-Identifier: Apache-2.0 OR MIT
//! No elevator starves a request, in any case: for each request that an elevator holds, the check counts what goes
//! first.
//!
//! The check uses no random numbers and changes nothing, so a case runs the same with it. It has two observers:
//!
//! - [`watched`] wraps each elevator of blk-mq and sees its calls. The rules of each elevator are in a module of its name.
//! - [`at_driver`] compares the times at which requests entered and left a queue when the driver is offered them. It serves `none` and
//!   the legacy elevators, which have no interface that can be wrapped.
//!
//! | elevator | what may go before a request | checked in |
//! |---|---|---|
//! | mq-deadline | as many sweeps as requests were before it in its FIFO; with one class pending, one batch of writes, or `writes_starved` + 1 batches of reads; after its expiry, a batch for each request before it, and one more | `mq_deadline` |
//! | kyber | one batch of each other domain while its own domain has nothing at the device; requests of other CPUs, at most those that the scheduler tags allow; none of its own CPU and domain | `kyber` |
//! | k2 | later requests of the other class only: `latency_batch` for each request before it, or one bulk request for each | `k2` |
//! | bfq | in its class, from each other queue the share of that queue's weight, with two budgets each; of lower classes two turns and an IDLE request every 200 ms; IDLE after 200 ms two turns of others; after its expiry one turn for each request before it | `bfq` |
//! | none | nothing of its CPU; of other CPUs one request for each before it, and once what the tags allow | `at_driver` |
//! | noop | nothing | `at_driver` |
//! | deadline | as mq-deadline, without classes | `at_driver` |
//!
//! Not counted as going first: requests that the driver gave back, because they go first by contract; higher classes,
//! because a class waits for those by contract; whatever happens while the device, a token or a limit holds a request
//! back. If an elevator is made anew or a tunable changes, counts begin anew. Requests of a flush sequence and of
//! reserved tags never enter an elevator. How long a dispatched request waits for a tag or the driver is not the
//! elevator's doing; that it leaves at all shows in the liveness phase.

mod at_driver;
mod bfq;
mod k2;
mod kyber;
mod mq_deadline;
mod watched;

pub(crate) use at_driver::{AtDriver, Offers};
pub(crate) use watched::{STARVING, WATCHED};

use crate::pressure::bound::SeenRequest;
use blk::bio::IoPrioClass;
use blk::elevator::{Elevator, Tunable};

/// A request as the rules see it.
#[derive(Clone, Copy, Debug)]
struct Held {
    seen: SeenRequest,
    hctx: usize,
    /// A thread waits for it.
    sync: bool,
    /// (8 - priority level) x 10.
    weight: u64,
    sector: u64,
    /// The driver gave it back before.
    again: bool,
}

impl Held {
    /// The number of its class: RT, BE, IDLE.
    fn class(&self) -> usize {
        match self.seen.class {
            IoPrioClass::Rt => 0,
            IoPrioClass::None | IoPrioClass::Be => 1,
            IoPrioClass::Idle => 2,
        }
    }

    fn direction(&self) -> usize {
        usize::from(self.seen.op.is_write())
    }
}

/// The rules of one elevator. Each method panics when a request starves.
trait Rules: Send {
    /// The elevator has these tunables from now on.
    fn tuned(&mut self, tunables: &[Tunable]);
    /// A request was inserted.
    fn queued(&mut self, r: &Held);
    /// A request that was inserted was joined to another.
    fn joined(&mut self, r: &Held);
    /// A bio was merged into a request; the largest request now has so many sectors.
    fn grown(&mut self, _largest: u32) {}
    /// The elevator is about to be asked for a request of a hardware queue.
    fn asked(&mut self, now: u64, hctx: usize, elevator: &dyn Elevator);
    /// It gave this request.
    fn given(&mut self, r: &Held, now: u64, elevator: &dyn Elevator);
    /// A request is not at the device any more; `comes_back`: the driver gave it back.
    fn left(&mut self, _r: &Held, _comes_back: bool) {}
}

/// The value of a tunable.
fn value(tunables: &[Tunable], name: &str) -> u64 {
    tunables.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("there is no tunable {name}")).value
}
