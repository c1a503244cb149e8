// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The settings in effect on a stack, its CPU -> hctx map, and the limits of its I/Os in flight.
//!
//! Guarantees: every row of `blk`'s settings table is present with the value in effect, defaults resolved. Values have the
//! form that `--set` takes. Does not: read the host (see `inspect --host`).

use blk::cpumap::HctxType;
use blk::lock::Lock;
use blk::queue::RequestQueue;
use blk::settings::{Mode, QueueConfig, SETTINGS};
use host::disk::Queue;
use host::run::RUN_SETTINGS;
use serde::{Deserialize, Serialize};

/// One setting in effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The kernel's name; a tunable of the elevator starts with `iosched.`.
    pub name: String,
    /// Value as `--set` takes it.
    pub value: String,
    /// Whether the user did not set it.
    pub default: bool,
    /// Its meaning, or the range of a tunable.
    pub help: String,
}

impl Setting {
    /// `name=value`.
    pub fn assignment(&self) -> String {
        format!("{}={}", self.name, self.value)
    }
}

/// Settings of a kernel device in effect. Settings in `asked` are marked as set.
pub(crate) fn of_kernel(in_effect: &[(String, String)], asked: &[(String, String)]) -> Vec<Setting> {
    let setting = |(name, value): &(String, String)| Setting {
        name: name.clone(),
        value: value.clone(),
        default: !asked.iter().any(|(key, _)| key == name),
        help: String::new(),
    };
    in_effect.iter().map(setting).collect()
}

/// All settings of a disk; `asked` are those that the user set.
pub fn in_effect<L: Lock>(queue: &RequestQueue<L>, asked: &[(String, String)]) -> Vec<Setting> {
    let config = queue.config();
    let is_default = |name: &str| !asked.iter().any(|(key, _)| key == name);
    let mut all: Vec<Setting> = SETTINGS
        .iter()
        .chain(RUN_SETTINGS)
        .filter_map(|s| {
            let value = value(queue, &config, s.name)?;
            Some(Setting { name: s.name.into(), value, default: is_default(s.name), help: s.help.into() })
        })
        .collect();
    all.extend(queue.iosched().iter().map(|t| {
        let name = format!("iosched.{}", t.name);
        let range = format!("{}..={} {}", t.min, t.max, t.unit);
        Setting { value: t.value.to_string(), default: is_default(&name), help: range.trim_end().into(), name }
    }));
    all
}

fn value<L: Lock>(queue: &RequestQueue<L>, c: &QueueConfig, name: &str) -> Option<String> {
    let map = queue.map();
    let types = |ty| map.nr_queues(ty).to_string();
    Some(match name {
        "mode" => c.mode.to_string(),
        "nr_cpus" => c.topology.nr_cpus.to_string(),
        "nr_hw_queues" => types(HctxType::Default),
        "nr_read_queues" => types(HctxType::Read),
        "nr_poll_queues" => types(HctxType::Poll),
        "queue_depth" => c.queue_depth.to_string(),
        "reserved_tags" => c.reserved_tags.to_string(),
        "host_tagset" => u8::from(c.host_tagset).to_string(),
        "nr_requests" => queue.nr_requests().to_string(),
        "scheduler" => queue.scheduler(),
        "nomerges" => c.nomerges.to_string(),
        "iostats" => u8::from(c.iostats).to_string(),
        "io_timeout" => c.io_timeout_ms.to_string(),
        "rq_affinity" => c.rq_affinity.to_string(),
        "read_ahead_kb" => c.read_ahead_kb.map_or_else(|| "system".to_owned(), |kb| kb.to_string()),
        "max_sectors_kb" => (queue.limits().max_sectors / 2).to_string(),
        "wbt_lat_usec" => queue.wbt_lat_usec().to_string(),
        "shared_tags" => u8::from(queue.tag_set().is_some()).to_string(),
        "fair_tag_sharing" => u8::from(queue.tag_set()?.config().fair_tag_sharing).to_string(),
        limit => c.io_limits.get(limit)?.to_string(),
    })
}

/// One hardware queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HctxFacts {
    /// Its number.
    pub hctx: u16,
    /// `default`, `read` or `poll`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// CPUs that use it.
    pub cpus: Vec<u16>,
    /// NUMA nodes of those CPUs.
    pub nodes: Vec<u16>,
}

/// A limit on the I/Os in flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bound {
    /// The resource that is limited.
    pub what: &'static str,
    /// The number.
    pub limit: u64,
    /// The settings that it follows from.
    pub because: String,
}

/// A stack, described.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StackFacts {
    /// The target as the user named it.
    pub target: String,
    /// Size of the disk.
    pub size_bytes: u64,
    /// Logical block size.
    pub logical_block_bytes: u32,
    /// Settings and tunables.
    pub settings: Vec<Setting>,
    /// Hardware queues.
    pub hctxs: Vec<HctxFacts>,
    /// Limits on the requests in flight, tightest first.
    pub in_flight: Vec<Bound>,
}

impl StackFacts {
    /// Describes a disk.
    pub fn of(target: &str, queue: &Queue, asked: &[(String, String)]) -> StackFacts {
        StackFacts {
            target: target.to_owned(),
            size_bytes: queue.capacity().0 << 9,
            logical_block_bytes: queue.limits().logical_block_size,
            settings: in_effect(queue, asked),
            hctxs: hctxs(queue),
            in_flight: bounds(queue),
        }
    }
}

fn hctxs(queue: &Queue) -> Vec<HctxFacts> {
    let (map, topology) = (queue.map(), queue.config().topology);
    (0..map.nr_hw_queues())
        .map(|hctx| {
            let cpus = map.cpus_of(hctx).to_vec();
            let mut nodes: Vec<u16> = cpus.iter().map(|c| topology.node_of[usize::from(*c)]).collect();
            nodes.sort_unstable();
            nodes.dedup();
            HctxFacts { hctx, kind: map.hctx_type(hctx).name(), cpus, nodes }
        })
        .collect()
}

fn bounds(queue: &Queue) -> Vec<Bound> {
    let c = queue.config();
    let hctxs = u64::from(queue.map().nr_hw_queues());
    let requests = u64::from(queue.nr_requests());
    let tags = u64::from(c.queue_depth - c.reserved_tags);
    // Number of maps of tags.
    let (maps, of) = if c.host_tagset {
        (1, " for all hardware queues (host_tagset=1)".to_owned())
    } else {
        (hctxs, format!(" x {hctxs} hardware queues"))
    };
    let mut bounds = vec![Bound {
        what: "requests at the driver",
        limit: tags * maps,
        because: format!("(queue_depth={} - reserved_tags={}){of}", c.queue_depth, c.reserved_tags),
    }];
    match (c.mode, queue.scheduler().as_str()) {
        (Mode::Sq, _) => bounds.push(Bound {
            what: "requests in the block layer, per direction",
            limit: requests,
            because: format!("nr_requests={requests}; submitters are congested from 7/8 of it on"),
        }),
        (Mode::Mq, "none") => {
            let per_queue = requests.min(tags);
            bounds[0].limit = per_queue * maps;
            bounds[0].because = format!("min(nr_requests={requests}, queue_depth={}){of}", c.queue_depth);
        }
        (Mode::Mq, name) => bounds.push(Bound {
            what: "requests in the block layer, scheduler included",
            limit: requests * maps,
            because: format!("nr_requests={requests} scheduler tags{of} ({name})"),
        }),
    }
    bounds.sort_by_key(|b| b.limit);
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::disk::Disk;
    use host::run::RunSettings;
    use host::target::{Needs, TargetSpec};
    use std::sync::Arc;

    fn disk(settings: &[(&str, &str)]) -> (Disk, Vec<(String, String)>) {
        let settings: Vec<(String, String)> =
            settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let needs = Needs { write: true, direct: false, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
        let open = TargetSpec::parse("null").unwrap().open(&needs, Arc::new(host::mem::Regions::new())).unwrap();
        let read = RunSettings::read(&settings).unwrap();
        (Disk::new(open.driver, read.disk.clone(), read.shared().unwrap().as_ref()).unwrap(), settings)
    }

    #[test]
    fn every_setting_of_the_table_has_a_value_that_set_takes_back() {
        for mode in ["mq", "sq"] {
            let (d, asked) = disk(&[("nr_cpus", "4"), ("mode", mode)]);
            let all = in_effect(&d.queue, &asked);
            for s in SETTINGS {
                let got = all.iter().find(|x| x.name == s.name).unwrap_or_else(|| panic!("{} has no value", s.name));
                QueueConfig::default().set(&got.name, &got.value).unwrap();
                assert_eq!(got.default, s.name != "nr_cpus" && s.name != "mode");
            }
        }
    }

    #[test]
    fn the_map_and_the_bounds_follow_the_settings() {
        let (d, asked) = disk(&[
            ("nr_cpus", "4"),
            ("nr_hw_queues", "2"),
            ("nr_poll_queues", "1"),
            ("queue_depth", "32"),
            ("scheduler", "mq-deadline"),
        ]);
        let f = StackFacts::of("null", &d.queue, &asked);
        let kinds: Vec<_> = f.hctxs.iter().map(|h| (h.hctx, h.kind, h.cpus.len())).collect();
        assert_eq!(kinds, [(0, "default", 2), (1, "default", 2), (2, "poll", 4)]);
        assert_eq!(f.in_flight[0].limit, 96);
        assert!(f.in_flight[1].because.contains("scheduler tags"), "{:?}", f.in_flight);
        assert!(f.settings.iter().any(|s| s.name == "iosched.read_expire" && s.default));
    }
}
