// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The settings of a run as configurations: those that each disk has, and those that say what its disks share.
//!
//! Guarantees: what [`RunSettings::read`] takes fits together as far as that can be known without a disk.

use crate::disk::{Disk, Shared};
use crate::driver::null::{Null, NullOptions};
use crate::error::{Error, Result};
use crate::process::nr_cpus;
use crate::topology;
use blk::cpumap::CpuTopology;
use blk::settings::{QueueConfig, SettingInfo};
use blk::tags::{TagSet, TagSetConfig};
use std::path::Path;
use std::sync::Arc;

/// What a run can be told besides the settings of its disks ([`blk::settings::SETTINGS`]).
pub const RUN_SETTINGS: &[SettingInfo] = &[
    SettingInfo::fixed(
        "shared_tags",
        "0 | 1",
        "1: the disks of a run share the driver tags, as LUNs of one host adapter do",
    ),
    SettingInfo::live(
        "fair_tag_sharing",
        "0 | 1",
        "with shared_tags=1: each busy disk may use its share of the tags; 0: first come, first served",
    )
    .of_tag_set(),
];

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// Of every disk.
    pub disk: QueueConfig,
    /// `shared_tags`: the disks are made with one tag set.
    pub shared_tags: bool,
    /// `fair_tag_sharing`: what that set begins with.
    pub fair_tag_sharing: bool,
}

impl RunSettings {
    /// Reads settings, later ones over earlier ones. Without `nr_cpus` disks have this machine's CPUs as they are related. If
    /// this process may not use all of them, disks have as many as it may use, all alike.
    pub fn read(settings: &[(String, String)]) -> Result<RunSettings> {
        let nr_cpus = nr_cpus();
        let machine = topology::read(Path::new(topology::SYSTEM), nr_cpus);
        let topology = machine.unwrap_or_else(|| CpuTopology::uniform(nr_cpus));
        let mut disk = QueueConfig { topology, ..QueueConfig::default() };
        let (mut shared_tags, mut fair) = (false, None);
        for (key, value) in settings {
            match key.as_str() {
                "shared_tags" => shared_tags = switch(key, value)?,
                "fair_tag_sharing" => fair = Some(switch(key, value)?),
                _ => disk.set(key, value).map_err(|e| Error::usage(e.to_string()))?,
            }
        }
        disk.check().map_err(|e| Error::usage(e.to_string()))?;
        if let (Some(fair), false) = (fair, shared_tags) {
            let text = format!("fair_tag_sharing={}: has no effect without shared_tags=1; add that", u8::from(fair));
            return Err(Error::usage(text));
        }
        Ok(RunSettings { disk, shared_tags, fair_tag_sharing: fair.unwrap_or(true) })
    }

    /// What the disks share, if they are to share tags.
    pub fn shared(&self) -> Result<Option<Shared>> {
        if !self.shared_tags {
            return Ok(None);
        }
        let config = TagSetConfig { fair_tag_sharing: self.fair_tag_sharing, ..TagSetConfig::of(&self.disk) };
        let tags = TagSet::new(config).map_err(|e| Error::usage(e.to_string()))?;
        Ok(Some(Shared { tags, waiter_lock: Arc::default() }))
    }
}

pub(super) fn switch(key: &str, value: &str) -> Result<bool> {
    match value {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(Error::usage(format!("{key}={value}: must be 0 or 1"))),
    }
}

/// Refuses settings that no disk can have, without opening one.
pub fn check_settings(settings: &[(String, String)]) -> Result<()> {
    probe(&RunSettings::read(settings)?)
}

/// Refuses settings that no disk can have (an unknown elevator, its tunables) before a file is made for one.
pub(super) fn probe(settings: &RunSettings) -> Result<()> {
    // The limit of a request's size is the driver's own.
    let config = QueueConfig { max_sectors_kb: None, ..settings.disk.clone() };
    Disk::new(Arc::new(Null::new(NullOptions::default())), config, settings.shared()?.as_ref()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(settings: &[(&str, &str)]) -> Result<RunSettings> {
        let owned: Vec<_> = settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let read = RunSettings::read(&owned)?;
        probe(&read).map(|()| read)
    }

    #[test]
    fn tags_are_shared_fairly_unless_told_otherwise() {
        assert!(read(&[]).unwrap().shared().unwrap().is_none());
        let set = |s: &[(&str, &str)]| read(s).unwrap().shared().unwrap().expect("a set").tags.config();
        let config = set(&[("shared_tags", "1"), ("queue_depth", "16"), ("nr_hw_queues", "1")]);
        assert_eq!((config.queue_depth, config.nr_hw_queues, config.fair_tag_sharing), (16, 1, true));
        assert!(!set(&[("fair_tag_sharing", "0"), ("shared_tags", "1")]).fair_tag_sharing);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_a_remedy() {
        let refused = |s: &[(&str, &str)]| read(s).expect_err("refused").to_string();
        assert_eq!(refused(&[("shared_tags", "2")]), "shared_tags=2: must be 0 or 1");
        assert!(refused(&[("fair_tag_sharing", "0")]).ends_with("has no effect without shared_tags=1; add that"));
        assert!(refused(&[("shared_tags", "1"), ("mode", "sq")]).starts_with("mode=sq: has no shared tags"));
    }
}
