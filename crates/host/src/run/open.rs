// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An open target: one device with its queues, or several devices that it is striped over.

use super::grid::Grid;
use crate::disk::{Disk, Shared};
use crate::driver::HostDriver;
use crate::driver::file::FilePart;
use crate::error::{Error, ErrorKind, Result};
use crate::mem::Regions;
use crate::target::{Needs, TargetSpec, TargetWarning, add_new};
use blk::id::SECTOR_SHIFT;
use blk::qos::rates::LIMIT_NAMES;
use blk::settings::QueueConfig;
use blk::stripe::StripeMap;
use std::sync::Arc;

/// A target's drivers, before their use is known.
pub(super) struct Opened {
    pub(super) drivers: Vec<Arc<dyn HostDriver>>,
    /// Where sectors lie, if it is striped.
    pub(super) map: Option<Arc<StripeMap>>,
    pub(super) warnings: Vec<TargetWarning>,
}

impl Opened {
    /// Opens what `text`, read as `spec`, names. With `any_size` a buffered file may end within a sector.
    pub(super) fn new(
        (text, spec): (&str, &TargetSpec),
        any_size: bool,
        needs: &Needs,
        regions: &Arc<Regions>,
    ) -> Result<Opened> {
        let TargetSpec::Stripe(stripe) = spec else {
            let open = spec.open_part(FilePart::default(), any_size, needs, Arc::clone(regions))?;
            return Ok(Opened { drivers: vec![open.driver], map: None, warnings: open.warnings });
        };
        let each = Needs { min_bytes: stripe.member_bytes(needs.min_bytes), ..*needs };
        let (mut drivers, mut warnings) = (Vec::new(), Vec::new());
        for member in &stripe.members {
            let open = member.open(&each, Arc::clone(regions))?;
            drivers.push(open.driver);
            add_new(&mut warnings, open.warnings);
        }
        let map = stripe.map(text, &drivers)?;
        let rest: u64 = drivers.iter().map(|d| d.capacity().0.saturating_sub(map.used_sectors())).sum();
        if rest > 0 {
            let used = map.used_sectors() << SECTOR_SHIFT;
            let text = format!(
                "'{text}' uses {used} bytes of each target, the whole chunks that fit on the smallest; {} bytes in total \
                 are not used",
                rest << SECTOR_SHIFT
            );
            warnings.push(TargetWarning::new(text));
        }
        let (has, need) = (map.capacity().0 << SECTOR_SHIFT, needs.min_bytes);
        if has < need {
            let text = format!("'{text}' has {has} bytes, the job needs {need}: give the job a smaller size");
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        Ok(Opened { drivers, map: Some(Arc::new(map)), warnings })
    }

    /// Bytes of the whole.
    pub(super) fn bytes(&self) -> u64 {
        match &self.map {
            Some(map) => map.capacity().0 << SECTOR_SHIFT,
            None => {
                let driver = &self.drivers[0];
                driver.space().exact_bytes().unwrap_or_else(|| driver.capacity().0 << SECTOR_SHIFT)
            }
        }
    }

    /// What it allows.
    pub(super) fn grid(&self) -> Grid {
        let driver = &self.drivers[0];
        Grid {
            block: self.block_bytes(),
            takes_bytes: self.map.is_none() && driver.limits().takes_bytes,
            is_direct: self.map.is_none() && driver.is_direct() == Some(true),
        }
    }

    /// The largest logical block of its devices, bytes.
    pub(super) fn block_bytes(&self) -> u32 {
        self.drivers.iter().map(|d| d.limits().logical_block_size).max().unwrap_or(512)
    }

    /// Starts the block layer on each device.
    pub(super) fn start(&self, config: &QueueConfig, shared: Option<&Shared>) -> Result<Vec<Arc<Disk>>> {
        let start = |d: &Arc<dyn HostDriver>| Disk::new(Arc::clone(d), config.clone(), shared).map(Arc::new);
        self.drivers.iter().map(start).collect()
    }
}

/// Refuses limits on a target that is several devices: each would be limited by itself.
pub(super) fn check_limits(text: &str, spec: &TargetSpec, settings: &[(String, String)]) -> Result<()> {
    let limit = settings.iter().find(|(name, _)| LIMIT_NAMES.contains(&name.as_str()));
    match (spec, limit) {
        (TargetSpec::Stripe(_), Some((name, value))) => Err(Error::usage(format!(
            "{name}={value}: limits are not supported for a striped target ('{text}'); leave it out, or use the job's \
             rate"
        ))),
        _ => Ok(()),
    }
}
