// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration of a ublk export.

use super::export::{UblkExport, UblkOptions, check_kernel};
use crate::error::Result;
use crate::serve::export_spec::{
    ExportKeys, ExportSetup, ExportSpec, ExportValue, Hint, HintContext, Report, check_queues,
};
use crate::serve::running::RunningExport;

/// Largest `num_queues` of a ublk device: the kernel driver's `UBLK_MAX_NR_QUEUES`.
pub const UBLK_QUEUES_MAX: u16 = 4096;
/// Maximum number of tags of a queue: the kernel driver's `UBLK_MAX_QUEUE_DEPTH`.
const UBLK_DEPTH_MAX: u16 = 4096;

/// A block device `/dev/ublkbID`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UblkPlan {
    /// The device's number; `None` = the kernel's choice.
    pub id: Option<u32>,
    /// Hardware queues, `1..=`[`UBLK_QUEUES_MAX`].
    pub num_queues: u16,
    /// Tags of each queue, `1..=4096`.
    pub queue_depth: u16,
    /// The device outlives the daemon and waits for its next start.
    pub recovery: bool,
}

impl ExportSpec for UblkPlan {
    const TYPE: &'static str = "ublk";
    const SHORT: &'static str = "ublk";
    const NEEDS_ROOT: bool = true;

    fn read(keys: &mut dyn ExportKeys, _name: &str, _disk: &str) -> UblkPlan {
        UblkPlan {
            id: keys.number("id", 0..=u32::MAX.into()).map(|n| n as u32),
            num_queues: keys.num_queues(UBLK_QUEUES_MAX),
            queue_depth: keys.number("queue_depth", 1..=UBLK_DEPTH_MAX.into()).unwrap_or(128) as u16,
            recovery: keys.flag("recovery").unwrap_or(false),
        }
    }

    fn num_queues(&self) -> Option<u16> {
        Some(self.num_queues)
    }

    fn check(&self, report: &mut Report<'_>) {
        check_queues(self.num_queues, UBLK_QUEUES_MAX, report);
        let depth = self.queue_depth;
        if !(1..=UBLK_DEPTH_MAX).contains(&depth) {
            report("queue_depth", format!("queue_depth={depth}: must be 1..={UBLK_DEPTH_MAX}"));
        }
        if self.recovery && self.id.is_none() {
            let text = "recovery=true: needs id=N, because a restarted daemon finds its device by the number";
            report("recovery", text.to_owned());
        }
    }

    fn clash(&self, other: &UblkPlan, name: &str) -> Option<(&'static str, String)> {
        let id = self.id.filter(|id| other.id == Some(*id))?;
        Some(("id", format!("id={id}: export '{name}' uses this id; choose another")))
    }

    fn preflight(&self, report: &mut Report<'_>) {
        if let Err(e) = check_kernel() {
            report("type", format!("type=ublk: {e}"));
        }
    }

    fn begin(&self, setup: ExportSetup<'_>) -> Result<Option<Box<dyn RunningExport>>> {
        let options = UblkOptions {
            name: setup.name,
            id: self.id,
            queue_depth: self.queue_depth,
            mapping: setup.iothreads,
            read_only: setup.read_only,
            geometry: setup.geometry,
            discard: setup.discard,
            write_through: setup.write_through,
            recovery: self.recovery,
        };
        Ok(Some(Box::new(UblkExport::start(setup.threads, setup.disk, &options)?)))
    }

    fn summary(&self) -> String {
        format!("{} queues of {}", self.num_queues, self.queue_depth)
    }

    fn values(&self) -> Vec<(&'static str, ExportValue)> {
        vec![
            ("id", ExportValue::Number(self.id.map(u64::from))),
            ("num_queues", ExportValue::Number(Some(self.num_queues.into()))),
            ("queue_depth", ExportValue::Number(Some(self.queue_depth.into()))),
        ]
    }

    fn hints(&self, _export: &HintContext<'_>) -> Vec<Hint> {
        let id = self.id.map_or("N".to_owned(), |id| id.to_string());
        vec![Hint { key: "device", title: "Linux block device", text: format!("/dev/ublkb{id}") }]
    }
}
