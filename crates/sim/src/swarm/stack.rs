// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Draws a stack: CPUs, queues, depths, elevator, limits, device, faults. Each seed switches some features off, which
//! finds more than every feature on in every case (Groce et al., Swarm Testing, 2012).

use super::report::CAPACITY;
use crate::disk::Behaviour;
use crate::disk::service::Service;
use crate::fault::Plant;
use crate::liveness::{STARVING, WATCHED};
use crate::pressure::LEGACY;
use crate::rng::Rng;
use blk::cpumap::CpuTopology;
use blk::elevator::{CustomElevator, LEGACY_NAMES, MqElevator, NONE, bfq, deadline, k2, kyber, mq_deadline};
use blk::limits::Limits;
use blk::settings::{Mode, QueueConfig};

fn draw_limits(rng: &mut Rng) -> Limits {
    let lbs = rng.pick(&[512, 512, 512, 1024, 4096]);
    let lb = lbs >> 9;
    let max = lb * rng.pick(&[1, 2, 4, 7, 16, 33, 128]);
    let cache = rng.below(3) > 0;
    Limits {
        logical_block_size: lbs,
        physical_block_size: lbs * rng.pick(&[1, 1, 2, 8]),
        max_hw_sectors: max,
        max_sectors: max,
        chunk_sectors: lb * rng.pick(&[0, 0, 4, 16, 64]),
        max_segments: rng.pick(&[1, 2, 5, 128]),
        max_segment_size: rng.pick(&[lbs, 2 * lbs + 512, 65536]).max(lbs),
        max_discard_sectors: lb * rng.pick(&[0, 1, 8, 100]),
        discard_granularity: rng.pick(&[0, lbs, 4 * lbs]),
        max_write_zeroes_sectors: lb * rng.pick(&[0, 1, 8, 100]),
        write_cache: cache,
        fua: cache && rng.below(2) == 0,
        takes_bytes: false,
        read_only: false,
        rotational: false,
    }
}

/// The elevators that a stack draws from.
const SCHEDULERS: [&str; 4] = MqElevator::names_without(&[(
    MqElevator::K2,
    "replaces kyber in some cases, because another random draw would change the cases of all seeds",
)]);

/// Settings of a stack.
pub(super) fn draw_config(rng: &mut Rng) -> QueueConfig {
    let cpus = rng.pick(&[1u16, 2, 3, 4, 8, 16, 64]);
    let topology = match rng.below(3) {
        0 if cpus >= 4 => CpuTopology::symmetric(2, cpus / 4, 2),
        _ => CpuTopology::uniform(cpus),
    };
    let cpus = topology.nr_cpus;
    let mut c = QueueConfig { topology, ..QueueConfig::default() };
    if rng.below(4) == 0 {
        c.mode = Mode::Sq;
        c.scheduler = rng.pick(&[None, Some(LEGACY[0]), Some(LEGACY[1])]).map(String::from);
        c.nr_requests = rng.pick(&[None, Some(4), Some(9), Some(32)]);
    } else {
        c.nr_hw_queues = Some(1 + rng.below(u64::from(cpus)) as u16);
        c.nr_read_queues = if rng.below(3) == 0 { 1 + rng.below(u64::from(cpus)) as u16 } else { 0 };
        c.nr_poll_queues = if rng.below(3) == 0 { 1 + rng.below(u64::from(cpus)) as u16 } else { 0 };
        // The default is as likely as each name.
        let n = rng.below(1 + SCHEDULERS.len() as u64) as usize;
        c.scheduler = n.checked_sub(1).map(|n| SCHEDULERS[n].into());
    }
    c.queue_depth = rng.pick(&[1, 1, 2, 3, 4, 8, 31, 64, 256, 1024]);
    c.reserved_tags = if rng.below(3) == 0 { rng.below(u64::from(c.queue_depth.min(4))) as u32 } else { 0 };
    c.host_tagset = c.mode == Mode::Mq && rng.below(4) == 0;
    if c.mode == Mode::Sq {
        c.reserved_tags = 0;
    }
    if c.mode == Mode::Mq && rng.below(3) == 0 {
        // Only an elevator may exceed the depth. `set` would raise 2 and 3, so draws begin at 4 here.
        let elevator = c.scheduler.as_deref().is_some_and(|name| name != NONE);
        let n = if elevator { 4 + rng.below(60) as u32 } else { c.queue_depth };
        c.nr_requests = Some(n).filter(|n| *n > c.reserved_tags && *n >= 4);
        // Without an explicit scheduler the rule depends on the default, so directed tests cover that.
        if c.scheduler.is_none() {
            c.nr_requests = None;
        }
    }
    c.io_timeout_ms = rng.pick(&[1, 20, 30_000]);
    c.nomerges = rng.below(3) as u8;
    c.rq_affinity = rng.below(3) as u8;
    c.bios_per_submitter = rng.pick(&[1, 2, 3, 8, 32, 128]);
    // Decided without a draw, so that the other cases of known seeds stay what they are.
    if c.scheduler.as_deref() == Some(kyber::NAME) && matches!(c.bios_per_submitter, 3 | 8) {
        c.scheduler = Some(k2::NAME.into());
        if c.bios_per_submitter == 8 {
            // Small enough to be reached.
            c.iosched.push(("max_inflight".into(), 2));
        }
    }
    c
}

/// The elevators of a case: they check their rules, and starve requests if that is planted.
pub(super) fn checked(plant: Option<Plant>) -> &'static [CustomElevator] {
    match plant {
        Some(plant @ Plant::Starves(_)) if plant.told().is_some() => &[],
        Some(Plant::Starves(_)) => STARVING,
        _ => WATCHED,
    }
}

/// Chooses the elevator that starves requests if that is planted. Its tunables are such that a small case reaches its bounds.
pub(super) fn plant(c: &mut QueueConfig, plant: Option<Plant>) {
    let Some(Plant::Starves(name)) = plant else { return };
    (c.mode, c.nr_requests) = (Mode::Mq, None);
    // The elevators that are checked at the driver cannot be wrapped. The disk has another one, and the check does not know.
    let (real, tunables): (&str, &[(&str, u64)]) = match name {
        NONE => (mq_deadline::NAME, &[]),
        deadline::NAME => (deadline::NAME, &[("writes_starved", 1 << 20), ("fifo_batch", 1 << 20)]),
        bfq::NAME => {
            (bfq::NAME, &[("low_latency", 0), ("max_budget", 8), ("fifo_expire_sync", 0), ("fifo_expire_async", 0)])
        }
        name if LEGACY_NAMES.contains(&name) => (deadline::NAME, &[]),
        name => (name, &[]),
    };
    if LEGACY_NAMES.contains(&real) {
        (c.mode, c.reserved_tags, c.host_tagset) = (Mode::Sq, 0, false);
        (c.nr_hw_queues, c.nr_read_queues, c.nr_poll_queues) = (None, 0, 0);
    }
    c.scheduler = Some(real.into());
    c.iosched = tunables.iter().map(|(name, value)| ((*name).into(), *value)).collect();
}

/// Draws the device and its faults; faults that fail I/O only if `faults` is set.
pub(super) fn draw_behaviour(rng: &mut Rng, faults: bool) -> Behaviour {
    let busy = rng.below(2) == 0;
    Behaviour {
        limits: draw_limits(rng),
        capacity: CAPACITY,
        resource: if busy { rng.pick(&[0, 50, 300]) } else { 0 },
        dev_resource: if busy { rng.pick(&[0, 50, 500]) } else { 0 },
        issue_error: if faults { 60 } else { 0 },
        complete_error: if faults { 60 } else { 0 },
        give_back: if faults { 100 } else { 0 },
        lost: if faults { rng.pick(&[0, 20, 200]) } else { 0 },
        duplicate: 0,
        path_loss: 0,
        at_once: rng.pick(&[0, 0, 300, 1000]),
        device_cap: rng.pick(&[usize::MAX, usize::MAX, 1, 3]),
        service: draw_service(rng),
        manual: false,
        record: true,
        plant: None,
    }
}

/// Draws faults that were added later. They come from a separate stream, so that a kept seed still draws what it drew before.
pub(super) fn add_faults(rng: &mut Rng, b: &mut Behaviour, faults: bool) {
    b.duplicate = rng.pick(&[0, 0, 0, 20, 200]);
    b.path_loss = if faults { rng.pick(&[0, 0, 1, 10]) } else { 0 };
}

fn draw_service(rng: &mut Rng) -> Service {
    const US: u64 = 1000;
    match rng.below(8) {
        0 => Service::Ideal { ns: rng.pick(&[1, 10 * US]) },
        1 => Service::Ssd { units: rng.pick(&[1, 8, 64]), read_ns: 80 * US, write_ns: rng.pick(&[15, 600]) * US },
        2 => Service::Hdd { full_seek_ns: 16_000 * US, rotation_ns: 8_333 * US, sector_ns: 3 * US },
        3 => Service::Capped { latency_ns: 500 * US, iops: rng.pick(&[500, 20_000]), sectors_per_sec: 1_500_000 },
        4 => Service::Array {
            hit_per_mille: rng.pick(&[100, 700]),
            hit_ns: 200 * US,
            spindles: rng.pick(&[2, 24]),
            miss_ns: 6_000 * US,
        },
        _ => Service::Any { max_ns: rng.pick(&[1, 1000, 1_000_000]) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fault that is nearly always on hides what shows only without it. A fault that is nearly always off finds nothing.
    #[test]
    fn each_fault_is_off_in_most_cases_and_on_in_many() {
        const SEEDS: u64 = 4000;
        let mut on = [0u64; 10];
        for seed in 0..SEEDS {
            let mut rng = Rng::new(seed);
            let faults = rng.below(4) == 0;
            let mut b = draw_behaviour(&mut rng, faults);
            add_faults(&mut rng, &mut b, faults);
            let faults = [
                b.resource > 0,
                b.dev_resource > 0,
                b.issue_error > 0,
                b.complete_error > 0,
                b.give_back > 0,
                b.lost > 0,
                b.duplicate > 0,
                b.path_loss > 0,
                b.at_once > 0,
                b.device_cap < usize::MAX,
            ];
            on.iter_mut().zip(faults).for_each(|(n, f)| *n += u64::from(f));
        }
        assert!(on.iter().all(|n| (SEEDS / 20..=SEEDS * 11 / 20).contains(n)), "of {SEEDS}: {on:?}");
    }
}
