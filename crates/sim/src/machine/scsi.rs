// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A simulated LUN behind the block layer's SCSI midlayer: its depth, its host's tags, and the device behind them.

use super::costs::PathCosts;
use super::device::DeviceSpec;
use super::dm::{DmSpec, Paths};
use super::meter::MeteredLock;
use super::service::{Job, Service};
use super::station::Station;
use blk::id::HctxId;
use blk::limits::Limits;
use blk::scsi::disk::{DiskOptions, SD_MAX_RETRIES, ScsiDisk};
use blk::scsi::disposition::{Failfast, Outcome};
use blk::scsi::host::{HostTemplate, ScsiHost};
use blk::scsi::transport::{AcceptedCommand, Busy, CommandBatch, LunId, Outcomes, Transport, TransportLimits};
use blk::settings::SettingError;
use blk::time::{Duration, Instant};
use std::sync::Arc;

/// What lies between the midlayer and the device.
#[derive(Clone, Copy, Debug)]
pub struct ScsiSpec {
    /// Commands the LUN may have: `queue_depth` in its sysfs directory.
    pub lun_queue_depth: u32,
    /// Commands of a hardware queue of the host.
    pub can_queue: u32,
    /// Device-mapper multipath above.
    pub dm: Option<DmSpec>,
}

/// A command that was sent.
pub(crate) struct Sent {
    ticket: AcceptedCommand,
    /// The path that multipath chose, if there is multipath.
    path: u16,
}

struct SimTransport {
    limits: Limits,
    station: Arc<Station<Sent>>,
    paths: Option<Paths>,
}

/// Makes a LUN that has a host of its own.
///
/// # Errors
/// A setting that the midlayer rejects.
pub(crate) fn lun(
    spec: DeviceSpec,
    scsi: &ScsiSpec,
    nr_hw_queues: u16,
    path: PathCosts,
    service: Box<dyn Service>,
    paths: Option<Paths>,
) -> Result<(ScsiDisk, Arc<Station<Sent>>), SettingError> {
    let station = Arc::new(Station::new(path, service));
    let transport = SimTransport { limits: spec.limits, station: station.clone(), paths };
    let template = HostTemplate {
        can_queue: scsi.can_queue,
        cmd_per_lun: scsi.lun_queue_depth,
        nr_hw_queues,
        ..HostTemplate::default()
    };
    let options = DiskOptions {
        block_size: spec.limits.logical_block_size,
        blocks: spec.sectors / u64::from(spec.limits.logical_block_size / 512),
        limits: spec.limits,
        has_unmap: false,
        unmap_zeroes: false,
        wide: true,
        retries: SD_MAX_RETRIES,
        failfast: Failfast::default(),
    };
    let host = ScsiHost::new::<MeteredLock>(template, Arc::new(transport));
    let disk = ScsiDisk::new(host, LunId(0), options).map_err(SettingError)?;
    Ok((disk, station))
}

impl Transport for SimTransport {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn limits(&self) -> TransportLimits {
        TransportLimits {
            max_sectors: self.limits.max_hw_sectors,
            max_segments: self.limits.max_segments,
            timeout: Duration::from_secs(180),
            host_reset: Duration::from_secs(30),
        }
    }

    fn start(&self, _lun: LunId, nr_hw_queues: u16, queue_depth: u32) -> Result<(), String> {
        self.station.start(nr_hw_queues, queue_depth);
        Ok(())
    }

    fn queue(&self, batch: &mut CommandBatch<'_, '_>, _now: Instant) -> Option<Busy> {
        let hctx = batch.hctx().index();
        let mut queue = self.station.queue(hctx);
        while let Some(command) = batch.front() {
            let rq = command.rq;
            let (sector, nr_sectors, tag) = (rq.sector().0, rq.nr_sectors(), rq.tag().index());
            let job = Job { hctx: hctx as u16, tag: tag as u32, op: rq.op(), sector, nr_sectors };
            let made = rq.made();
            let ticket = batch.accept();
            let path = self.paths.as_ref().map_or(0, Paths::down);
            queue.begin(&job, made, Sent { ticket, path });
        }
        queue.ring();
        None
    }

    fn poll(&self, _lun: LunId, hctx: HctxId, ended: &mut Outcomes<'_>, _now: Instant) {
        let mut queue = self.station.queue(hctx.index());
        while ended.room() > 0
            && let Some(Sent { ticket, path }) = queue.end_one()
        {
            if let Some(paths) = &self.paths {
                paths.up(path);
            }
            ended.push(ticket, &Outcome::GOOD, None);
        }
    }
}
