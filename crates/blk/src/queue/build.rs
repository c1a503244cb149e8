// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes a [`QueueState`] from settings: map, tags, requests, lists and elevator, all allocated before the first I/O.
//!
//! Guarantees: settings that contradict each other, or need too much memory, are rejected. The error names one setting,
//! its value and a remedy; then nothing has changed. Defaults that depend on other settings are chosen here. Does not do:
//! start the driver, or put the state into effect; the queue does both.

use crate::cpumap::{HctxType, QueueMap};
use crate::elevator::registry::{self, DiskShape, NONE};
use crate::id::{CpuId, HctxId};
use crate::lock::Lock;
use crate::queue::hctx::{Ctx, Hctx, RqList};
use crate::queue::state::QueueState;
use crate::relaxed::FieldU32;
use crate::request::{RequestId, RequestSlab};
use crate::settings::{BLKDEV_DEFAULT_RQ, BLKDEV_MIN_RQ, MAX_SCHED_RQ, Mode, QueueConfig, SettingError};
use crate::sq::sq_queue::SqQueue;
use crate::tags::hctx_tags::HctxTags;
use crate::tags::tag_set::Member;
use std::sync::Arc;

/// Makes everything that depends on the settings, except the driver's queues.
pub(crate) fn build<L: Lock>(config: &QueueConfig, member: Option<&Member<L>>) -> Result<QueueState<L>, SettingError> {
    config.check()?;
    let map = QueueMap::new(&config.topology, config.hw_queues(), config.nr_read_queues, config.nr_poll_queues)
        .map_err(|e| SettingError(e.to_string()))?;
    let nr_hctx = map.nr_hw_queues();
    let depth = config.queue_depth;
    if config.mode == Mode::Sq {
        return build_sq(config, map);
    }
    let default = if config.no_sched_by_default { NONE } else { registry::default_name(nr_hctx, config.host_tagset) };
    let name = config.scheduler.as_deref().unwrap_or(default);
    let with_elevator = name != NONE;
    let nr_requests = nr_requests(config, name, member.is_some())?;
    let stride = 1 + if with_elevator { nr_requests } else { depth };
    check_memory(config, nr_hctx, stride)?;
    let slab = RequestSlab::new(nr_hctx as usize * stride as usize);
    let shape = DiskShape { nr_slab_requests: slab.len(), map: &map, nr_requests };
    let elevator =
        registry::make::<L>(name, config.custom_elevators, &shape).map_err(|e| SettingError(e.to_string()))?;
    if let Some(e) = &elevator {
        for (k, v) in &config.iosched {
            e.set_tunable(k, *v).map_err(SettingError)?;
        }
    } else if let Some((k, _)) = config.iosched.first() {
        let text = format!("iosched.{k}: scheduler 'none' has no tunables; set scheduler=mq-deadline as well");
        return Err(SettingError(text));
    }
    // Without an elevator nr_requests bounds the driver tags in use.
    let driver_depth = if with_elevator { depth } else { nr_requests };
    let nr_maps = if config.host_tagset { 1 } else { nr_hctx };
    let tags = |depth: u32| (0..nr_maps).map(move |_| HctxTags::new(depth, config.reserved_tags));
    let (driver_tags, share) = match member {
        Some(member) => member.set.tags_for(member.slot),
        None => (tags(driver_depth).collect(), None),
    };
    let (hctxs, ctxs) = wire(&map, &config.topology, stride as usize, stride as usize);
    Ok(QueueState {
        driver_tags,
        map_mask: if config.host_tagset { 0 } else { usize::MAX },
        host_tagset: config.host_tagset,
        tags_are_shared: share.is_some() || config.host_tagset && nr_hctx > 1,
        share,
        sched_tags: if elevator.is_some() { tags(nr_requests).collect() } else { Box::new([]) },
        driver_rqs: if elevator.is_some() {
            (0..nr_hctx as usize * depth as usize).map(|_| FieldU32::default()).collect()
        } else {
            Box::new([])
        },
        hctxs,
        ctxs,
        map,
        slab,
        stride,
        queue_depth: depth,
        nr_requests,
        elevator,
        sq: None,
    })
}

/// Returns `nr_requests` of a disk with the elevator `name`, after defaults.
fn nr_requests(config: &QueueConfig, name: &str, is_member: bool) -> Result<u32, SettingError> {
    let (depth, with_elevator) = (config.queue_depth, name != NONE);
    Ok(match (config.nr_requests, with_elevator) {
        (Some(n), true) if n > MAX_SCHED_RQ => {
            return Err(SettingError(format!("nr_requests={n}: must be 4..={MAX_SCHED_RQ} with scheduler '{name}'")));
        }
        (Some(n), false) if n > depth => {
            return Err(SettingError(format!(
                "nr_requests={n} (the minimum is {BLKDEV_MIN_RQ}): must be at most queue_depth={depth} with scheduler \
                 'none'; leave it out, or choose an elevator"
            )));
        }
        (Some(n), false) if n != depth && is_member => {
            return Err(SettingError(format!(
                "nr_requests={n}: must be the tag set's queue_depth={depth} with scheduler 'none'; change the tag set, \
                 or choose an elevator"
            )));
        }
        (Some(n), _) if n <= config.reserved_tags => {
            let r = config.reserved_tags;
            return Err(SettingError(format!("nr_requests={n}: must be above reserved_tags={r}")));
        }
        (Some(n), _) => n,
        (None, true) => 2 * depth.min(BLKDEV_DEFAULT_RQ).max(config.reserved_tags + 1),
        (None, false) => depth,
    })
}

/// Maximum memory for requests and the lists they wait on.
const MAX_REQUEST_BYTES: u64 = 1 << 30;

/// Rejects settings that need too much memory. Requests and lists are allocated before the first I/O, and settings that
/// are valid one by one may need gigabytes together.
fn check_memory(config: &QueueConfig, nr_hctx: u16, stride: u32) -> Result<(), SettingError> {
    let lists = u64::from(nr_hctx) * 4 + u64::from(config.topology.nr_cpus) * 3;
    let bytes = u64::from(stride)
        * (u64::from(nr_hctx) * size_of::<crate::request::Request>() as u64 + lists * size_of::<RequestId>() as u64);
    if bytes <= MAX_REQUEST_BYTES {
        return Ok(());
    }
    let (name, value) = config.nr_requests.map_or(("queue_depth", config.queue_depth), |n| ("nr_requests", n));
    Err(SettingError(format!(
        "{name}={value}: requests of {nr_hctx} hardware queues for {} CPUs take {} MiB, must be at most {} MiB; lower {name} \
         or nr_hw_queues",
        config.topology.nr_cpus,
        bytes >> 20,
        MAX_REQUEST_BYTES >> 20
    )))
}

fn build_sq<L: Lock>(config: &QueueConfig, map: QueueMap) -> Result<QueueState<L>, SettingError> {
    let nr_requests = config.nr_requests.unwrap_or(BLKDEV_DEFAULT_RQ);
    check_memory(config, 1, nr_requests.saturating_mul(3))?;
    let sq = SqQueue::new(config, nr_requests).map_err(SettingError)?;
    let slab = RequestSlab::new(sq.slab_len());
    let (hctxs, ctxs) = wire(&map, &config.topology, slab.len(), 0);
    Ok(QueueState {
        driver_tags: Arc::new([]),
        map_mask: usize::MAX,
        host_tagset: false,
        share: None,
        tags_are_shared: false,
        sched_tags: Box::new([]),
        driver_rqs: (0..config.queue_depth).map(|_| FieldU32::default()).collect(),
        hctxs,
        ctxs,
        map,
        stride: slab.len() as u32,
        slab,
        queue_depth: config.queue_depth,
        nr_requests,
        elevator: None,
        sq: Some(sq),
    })
}

type Wiring<L> = (Box<[Hctx<L>]>, Box<[Ctx<L>]>);

/// Makes the hardware queues with room for `hctx_rqs` requests each, and the software queues with room for `ctx_rqs`
/// each.
fn wire<L: Lock>(map: &QueueMap, topo: &crate::cpumap::CpuTopology, hctx_rqs: usize, ctx_rqs: usize) -> Wiring<L> {
    let hctxs: Box<[Hctx<L>]> = (0..map.nr_hw_queues())
        .map(|h| {
            let cpus = map.cpus_of(h).iter().map(|c| CpuId::new(u32::from(*c))).collect();
            Hctx::new(HctxId::new(u32::from(h)), cpus, hctx_rqs)
        })
        .collect();
    let types = [HctxType::Default, HctxType::Read, HctxType::Poll];
    let ctxs = (0..topo.nr_cpus)
        .flat_map(|cpu| types.map(|ty| (cpu, ty)))
        .map(|(cpu, ty)| {
            let cpus = map.cpus_of(map.hctx(cpu, ty));
            let index = cpus.iter().position(|c| *c == cpu).expect("a CPU is in the mask of its hctx");
            Ctx { rqs: RqList::new(ctx_rqs), index_in_hctx: index as u32 }
        })
        .collect();
    (hctxs, ctxs)
}
