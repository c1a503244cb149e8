// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Elevators under load: no request starves, and shares follow the weights.
//!
//! A pressure case is drawn from a seed. It has an elevator with its tunables, and clients that keep it backlogged in front
//! of a device of known speed. That device serves one request after the other, with a fixed time for each and per sector. The
//! order of dispatch is checked against a bound of that elevator. Bounds count the requests or sectors that may go first, not
//! time, so they do not depend on the device. Each module derives its bound from the elevator's rules, as a worst case, and
//! asserts it for every request of every case.
//!
//! | elevator | what takes turns | bound | derived in |
//! |---|---|---|---|
//! | none | CPUs of the hardware queue | each CPU's requests keep their order; between two requests of one CPU at most one of each other CPU, and one that was refused | `none` |
//! | mq-deadline | reads and writes; classes | `fifo_batch` and `writes_starved` between directions; after a request's expiry, `fifo_batch` times the requests before it in the FIFO; a lower class after `prio_aging_expire` | `deadline` |
//! | kyber | domains | one batch of each other domain; each CPU's requests keep their order | `kyber` |
//! | k2 | latency and bulk | `latency_batch` latency requests between two bulk requests while bulk is eligible, one bulk request between two latency requests; order within a class; `max_inflight` at the disk | `k2` |
//! | bfq | submitters | service within two budgets of the share by weight, at any time; after a request's expiry, one turn per request before it | `bfq` |
//! | bfq with `low_latency` | submitters in bursts and later ones, all classes | two budgets for each of the same class, by the largest weight that bfq may give the others; of lower classes two turns; IDLE one request every 200 ms | `bursts` |
//! | noop | none | order of submission | `legacy` |
//! | deadline | reads and writes | as mq-deadline, without classes | `legacy` |
//! | any, with limits | submitters under a rate | no more than the rate and its burst, no less than the rate while bios wait; at most one I/O of each other submitter between two of one | `limits` |
//! | none, several hardware queues | hardware queues | each as if it were alone | `hctxs` |
//!
//! Legacy elevators, limits and hardware queues are tested in the whole stack, on a device that accepts every request it is given.
//!
//! Guarantees: the same seed gives the same trace; a violation is a panic that names the request, the bound and the observed
//! value. `liveness` checks the cases of other kinds, with the same bounds and looser ones. Not here: requeues (they go first by contract, so they have no bound), merges (a request that grows is a different
//! one).

mod bfq;
pub(crate) mod bound;
mod bursts;
mod deadline;
mod hctxs;
mod k2;
pub(crate) mod kyber;
mod legacy;
mod limits;
mod none;
mod stack;
pub(crate) mod turns;
pub(crate) mod unfair;
mod world;

use crate::kind::Kind;
use crate::rng::Rng;
use crate::trace::Trace;
use blk::elevator::{LEGACY_NAMES, MqElevator};
pub use bound::Pressed;
use bound::{HCTXS, LIMITS};
pub use unfair::Unfair;

/// Elevators, in the order from which a seed chooses.
const ELEVATORS: [&str; 4] =
    MqElevator::names_without(&[(MqElevator::K2, "chosen by a draw of its own, so that seeds stay what they are")]);
/// Legacy elevators, in the order from which a seed chooses. A new one breaks the pattern, so that its position is a decision.
pub(crate) const LEGACY: [&str; 2] = {
    let [deadline, noop] = LEGACY_NAMES;
    [noop, deadline]
};
/// Subjects other than blk-mq elevators, in the order from which a seed chooses.
const OTHERS: [&str; 4] = [LEGACY[0], LEGACY[1], LIMITS, HCTXS];

/// Runs the pressure case of a seed. Panics on a violation: see [`swarm::press`](crate::swarm::press).
pub fn run(seed: u64, unfair: Option<Unfair>, trace: &Trace) -> Pressed {
    // A separate stream, so that the main case of the seed draws what it always drew.
    let mut rng = Rng::new(seed ^ 0x9e55);
    let elevator = match unfair {
        Some(u) => u.subject(&mut rng),
        None if Kind::Pressure.is_due(seed) => rng.pick(&OTHERS),
        None => {
            let drawn = rng.pick(&ELEVATORS);
            // A separate stream as well, so that the other cases draw what they drew before k2 existed.
            if Rng::new(seed ^ 0x2b2b).below(5) == 0 { MqElevator::K2.name() } else { drawn }
        }
    };
    trace.event(0, 'S', format_args!("pressure on {elevator}"));
    let pressed = match (MqElevator::named(elevator), elevator) {
        (Some(MqElevator::None), _) => none::run(seed, &mut rng, trace),
        (Some(MqElevator::MqDeadline), _) => deadline::run(&mut rng, unfair, trace),
        (Some(MqElevator::Kyber), _) => kyber::run(&mut rng, unfair, trace),
        (Some(MqElevator::Bfq), _) if unfair != Some(Unfair::WrongWeights) && Rng::new(seed ^ 0xb125).below(2) == 0 => {
            bursts::run(seed, &mut rng, unfair, trace)
        }
        (Some(MqElevator::Bfq), _) => bfq::run(&mut rng, unfair, trace),
        (Some(MqElevator::K2), _) => k2::run(&mut rng, unfair, trace),
        (None, LIMITS) => limits::run(seed, &mut rng, unfair, trace),
        (None, HCTXS) => hctxs::run(seed, &mut rng, unfair, trace),
        (None, _) => legacy::run(elevator, seed, &mut rng, unfair, trace),
    };
    Pressed { elevator, ..pressed }
}
