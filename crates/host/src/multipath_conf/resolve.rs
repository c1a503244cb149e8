// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options that a configuration sets for one disk, and the line that sets each.
//!
//! Guarantees: the value of an option comes from the first of these sections that sets it: a `multipath` with the disk's WWID, a
//! `protocol` with its paths' protocol, `overrides`, a `device` whose expressions match, an entry of the hardware table that matches,
//! `defaults`, the built-in value. If several `multipath`, `protocol` or `device` sections match, the last one that sets the option wins.
//! `device` sections and entries with the same vendor, product and revision count as one, in the place of the last. `prio_args` are
//! arguments only of a `prio` from the same place; here the hardware table and `devices` are one place.
//! Source: multipath-tools, libmultipath/propsel.c (`select_prio`), config.c (`factorize_hwtable`); multipath.conf(5).

use super::options::{self, EXCLUSIVE_PREF_BIT, OPTIONS, OptionDef};
use super::{Block, Config, Device, Setting, hardware};
use crate::driver::multipath::{MultipathOptions, NoPathRetry, selector};
use blk::time::Duration;
use std::fmt;
use std::sync::Arc;

/// What identifies a disk. Unknown fields are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// World wide identifier. For a SCSI disk: the digit of the designator's type, then the designator of VPD page 0x83.
    pub wwid: String,
    /// `vendor` of INQUIRY, without trailing spaces.
    pub vendor: String,
    /// `product` of INQUIRY, likewise.
    pub product: String,
    /// `revision` of INQUIRY, likewise.
    pub revision: String,
    /// `scsi:iscsi` and the like.
    pub protocol: String,
}

impl Identity {
    /// Whether vendor or product is known. If neither is, no `device` section matches, not even with `.*`.
    pub(super) fn has_maker(&self) -> bool {
        !(self.vendor.is_empty() && self.product.is_empty())
    }
}

/// The part of a configuration that a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// No section: the built-in default.
    BuiltIn,
    /// `defaults`
    Defaults,
    /// The hardware table.
    Hardware,
    /// A `device` of `devices`.
    Device,
    /// `overrides`
    Overrides,
    /// A `protocol` of `overrides`.
    Protocol,
    /// A `multipath` of `multipaths`.
    Multipath,
}

impl Origin {
    /// Whether both are one place to multipath-tools, where a prioritizer has its arguments from.
    fn is_place_of(self, other: Origin) -> bool {
        let place = |origin: Origin| match origin {
            Origin::Hardware => Origin::Device,
            Origin::BuiltIn => Origin::Defaults,
            other => other,
        };
        place(self) == place(other)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::BuiltIn => "built in",
            Origin::Defaults => "defaults",
            Origin::Hardware => "hardware table",
            Origin::Device => "devices",
            Origin::Overrides => "overrides",
            Origin::Protocol => "overrides, protocol",
            Origin::Multipath => "multipaths",
        })
    }
}

/// The value of an option for a disk, and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The option.
    pub option: &'static OptionDef,
    /// Its value.
    pub value: String,
    /// The section that sets it.
    pub origin: Origin,
    /// The file that sets it; empty = built in or hardware table.
    pub file: Arc<str>,
    /// The line that sets it; `None` = built in or hardware table.
    pub line: Option<u32>,
}

impl Found {
    /// Returns the place that sets it, `FILE:LINE`; `None` = built in or hardware table.
    pub fn place(&self) -> Option<String> {
        self.line.map(|line| format!("{}:{line}", self.file))
    }
}

/// The values of all options for a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Every option that is set or has a default, in the order of [`OPTIONS`].
    pub found: Vec<Found>,
}

impl Config {
    /// Returns the value of each option for a disk.
    pub fn resolve(&self, disk: &Identity) -> Resolved {
        let layers = self.layers(disk);
        let about_whom = ["wwid", "vendor", "product", "revision", "type"];
        let of = |option: &'static OptionDef| {
            let given = layers.iter().find_map(|(origin, settings)| {
                let setting = settings.iter().find(|s| s.option == option)?;
                let Setting { value, file, line, .. } = setting.clone();
                let line = (*origin != Origin::Hardware).then_some(line);
                Some(Found { option, value, origin: *origin, file, line })
            });
            let built_in = |value: &str| {
                let file = Arc::default();
                Found { option, value: value.to_owned(), origin: Origin::BuiltIn, file, line: None }
            };
            given.or_else(|| option.default.map(built_in))
        };
        let options = OPTIONS.iter().filter(|o| !about_whom.contains(&o.name));
        let mut resolved = Resolved { found: options.filter_map(of).collect() };
        resolved.reconcile();
        resolved
    }

    /// Returns the sections that apply to this disk, highest precedence first.
    fn layers(&self, disk: &Identity) -> Vec<(Origin, &[Setting])> {
        fn last_first<'a>(
            blocks: impl DoubleEndedIterator<Item = &'a Block>,
            origin: Origin,
        ) -> impl Iterator<Item = (Origin, &'a [Setting])> {
            blocks.rev().map(move |b| (origin, &b.settings[..]))
        }
        let is = |block: &&Block, name: &str, value: &str| block.get(name).is_some_and(|s| s.value == value);
        let multipaths = self.multipaths.iter().filter(|b| is(b, "wwid", &disk.wwid));
        let protocols = self.protocols.iter().filter(|b| is(b, "type", &disk.protocol));
        last_first(multipaths, Origin::Multipath)
            .chain(last_first(protocols, Origin::Protocol))
            .chain([(Origin::Overrides, &self.overrides[..])])
            .chain(self.device_layers(disk))
            .chain([(Origin::Defaults, &self.defaults[..])])
            .collect()
    }

    /// Returns the `device` sections and the entries of the hardware table that apply to this disk, highest precedence first. Those with
    /// the same vendor, product and revision follow the last of them.
    fn device_layers(&self, disk: &Identity) -> Vec<(Origin, &[Setting])> {
        let table = hardware::table().iter().map(|d| (Origin::Hardware, d));
        let given = self.devices.iter().map(|d| (Origin::Device, d));
        let mut left: Vec<(Origin, &Device)> = table.chain(given).filter(|(_, d)| d.applies_to(disk)).collect();
        let mut layers = Vec::new();
        while let Some((origin, last)) = left.pop() {
            let (same, others): (Vec<_>, Vec<_>) = left.into_iter().partition(|(_, d)| d.selects_as(last));
            let of_same = same.into_iter().rev().map(|(origin, d)| (origin, &d.block.settings[..]));
            layers.push((origin, &last.block.settings[..]));
            layers.extend(of_same);
            left = others;
        }
        layers
    }
}

impl Device {
    fn applies_to(&self, disk: &Identity) -> bool {
        disk.has_maker()
            && self.vendor.is_match(&disk.vendor)
            && self.product.is_match(&disk.product)
            && self.revision.as_ref().is_none_or(|r| r.is_match(&disk.revision))
    }

    /// Whether both have the same expressions.
    fn selects_as(&self, other: &Device) -> bool {
        (&self.vendor, &self.product, &self.revision) == (&other.vendor, &other.product, &other.revision)
    }
}

impl Resolved {
    /// Returns the value of the option of this name.
    pub fn get(&self, name: &str) -> Option<&Found> {
        self.found.iter().find(|f| f.option.name == name)
    }

    /// Whether an option is `yes`.
    pub fn is_yes(&self, name: &str) -> bool {
        self.value(name) == "yes"
    }

    fn value(&self, name: &str) -> &str {
        self.get(name).map_or("", |f| &f.value)
    }

    /// Makes two options consistent: `queue_if_no_path` in `features` means `no_path_retry queue`, unless a section sets `no_path_retry`.
    fn reconcile(&mut self) {
        let Some(features) = self.get("features").filter(|f| options::queue_if_no_path(&f.value)).cloned() else {
            return;
        };
        let retry = self.found.iter_mut().find(|f| f.option.name == "no_path_retry");
        if let Some(retry) = retry.filter(|f| f.origin == Origin::BuiltIn) {
            retry.value = NoPathRetry::Queue.to_string();
            (retry.origin, retry.file, retry.line) = (features.origin, features.file, features.line);
        }
    }

    /// Whether this is the argument of the prioritizer.
    fn prio_has(&self, argument: &str) -> bool {
        let (Some(prio), Some(args)) = (self.get("prio"), self.get("prio_args")) else { return false };
        args.value == argument && args.origin.is_place_of(prio.origin)
    }

    /// Returns the disk's `alias`, if it has one.
    pub fn alias(&self) -> Option<&str> {
        self.get("alias").map(|f| &f.value[..])
    }

    /// Returns the options for a disk's driver, as configured. They do not include what is detected (`detect_prio` and the like).
    pub fn options(&self) -> MultipathOptions {
        // Values are stored in the spelling that their type writes, so each can be parsed again.
        const READ: &str = "a value that is kept reads back";
        let seconds = |name: &str| self.value(name).parse().ok().map(Duration::from_secs);
        let or = MultipathOptions::default();
        let features = options::pg_init(self.value("features"));
        MultipathOptions {
            path_selector: selector(self.value("path_selector")).expect(READ),
            path_grouping_policy: options::policy(self.value("path_grouping_policy")),
            // For a prioritizer that is not implemented here, the priorities configured with the paths apply.
            prio: self.value("prio").parse().unwrap_or_default(),
            exclusive_pref_bit: self.prio_has(EXCLUSIVE_PREF_BIT),
            hardware_handler: self.value("hardware_handler").parse().unwrap_or_default(),
            pg_init_retries: features.pg_init_retries,
            pg_init_delay: features.pg_init_delay,
            failback: self.value("failback").parse().expect(READ),
            no_path_retry: self.value("no_path_retry").parse().expect(READ),
            path_checker: options::checker(self.value("path_checker")),
            polling_interval: seconds("polling_interval").unwrap_or(or.polling_interval),
            max_polling_interval: seconds("max_polling_interval"),
            checker_timeout: seconds("checker_timeout").unwrap_or(or.checker_timeout),
            fast_io_fail_tmo: seconds("fast_io_fail_tmo"),
        }
    }
}
