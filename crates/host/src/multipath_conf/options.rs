// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of multipath.conf(5): the sections of each, its valid values, its default,
//! and what it does here.
//!
//! Guarantees: an accepted value is stored in one canonical spelling, which parses to itself. An option that multipath-tools knows but
//! that has no effect here is accepted with a warning. The order is that of `multipath -t`.
//! Source: multipath-tools 0.9 and 0.10, multipath.conf(5).

use super::ere::Ere;
use crate::driver::multipath::{
    Failback, HardwareHandler, MAX_SECONDS, NoPathRetry, PathChecker, PathGroupingPolicy, selector,
};
use blk::multipath::{Features, Table, TableError};

/// The argument of the prioritizer alua.
pub(super) const EXCLUSIVE_PREF_BIT: &str = "exclusive_pref_bit";

/// A set of sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sections(u8);

impl Sections {
    /// `defaults`.
    pub const DEFAULTS: Sections = Sections(1);
    /// A `device` of `devices`.
    pub const DEVICE: Sections = Sections(2);
    /// `overrides`.
    pub const OVERRIDES: Sections = Sections(4);
    /// A `multipath` of `multipaths`.
    pub const MULTIPATH: Sections = Sections(8);
    /// A `protocol` of `overrides`.
    pub const PROTOCOL: Sections = Sections(16);

    const ALL_BUT_MULTIPATH: Sections = Sections(1 | 2 | 4);
    const ALL: Sections = Sections(1 | 2 | 4 | 8);
    const TIMES: Sections = Sections(1 | 2 | 4 | 16);
    const MAPS: Sections = Sections(1 | 8);

    /// Whether the set has at least one section of `other`.
    pub fn contains(self, other: Sections) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the sections' names, for a message.
    pub(super) fn names(self) -> String {
        let named = [
            (Sections::DEFAULTS, "'defaults'"),
            (Sections::DEVICE, "a 'device' of 'devices'"),
            (Sections::OVERRIDES, "'overrides'"),
            (Sections::MULTIPATH, "a 'multipath' of 'multipaths'"),
            (Sections::PROTOCOL, "a 'protocol' of 'overrides'"),
        ];
        let names: Vec<_> = named.into_iter().filter(|(s, _)| self.contains(*s)).map(|(_, name)| name).collect();
        names.join(", ")
    }
}

/// What an option's value must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number in this range.
    Number(u64, u64),
    /// A [`Failback`].
    Failback,
    /// A [`NoPathRetry`].
    NoPathRetry,
    /// A path selector that [`selector`] accepts.
    Selector,
    /// A number and that many words: the features of a device-mapper table line.
    Features,
    /// A number and that many words, such as a [`HardwareHandler`].
    Handler,
    /// An argument of the prioritizer alua, or any other text.
    PrioArgs,
    /// One of these words, each with a note if it has a different effect here.
    Words(&'static [(&'static str, Option<&'static str>)]),
    /// `yes` or `no`.
    YesNo,
    /// Seconds, from this number up to [`MAX_SECONDS`], or this word.
    SecondsOr(u64, &'static str),
    /// A regular expression.
    Ere,
    /// Any text, which must not be empty.
    Name,
    /// Any text.
    Text,
}

/// An option.
#[derive(Debug, PartialEq, Eq)]
pub struct OptionDef {
    /// Its name.
    pub name: &'static str,
    /// The sections that it may be in.
    pub sections: Sections,
    /// What its value must be.
    pub kind: Kind,
    /// Its value if no section sets it.
    pub default: Option<&'static str>,
    /// Why it has no effect here; `None` = it does what multipath.conf(5) says.
    pub idle: Option<&'static str>,
}

const POLICIES: &[(&str, Option<&str>)] = &[
    ("failover", None),
    ("multibus", None),
    ("group_by_prio", None),
    ("group_by_serial", Some("multibus is used: paths of a disk have one serial number")),
    ("group_by_node_name", Some("failover is used: only Fibre Channel has node names")),
    ("group_by_tpg", None),
];

const TUR: Option<&str> = Some("tur is used: vendor-specific checkers are not supported");
const CHECKERS: &[(&str, Option<&str>)] = &[
    // Not in multipath-tools: the checker that fits the path.
    ("auto", None),
    ("tur", None),
    ("directio", None),
    ("none", None),
    ("readsector0", Some("directio is used: it replaced readsector0 in multipath, too")),
    ("emc_clariion", TUR),
    ("hp_sw", TUR),
    ("rdac", TUR),
    ("cciss_tur", TUR),
];

const UNCOUNTED: &str = "is used; without the number of arguments, multipath-tools makes no map";

const PRIO: Option<&str> = Some("path priorities are set as prio=50+10; without it, all are 1");
const PRIOS: &[(&str, Option<&str>)] = &[
    ("const", None),
    ("none", None),
    ("sysfs", Some("alua is used: it reads from the target what sysfs would show")),
    ("alua", None),
    ("emc", PRIO),
    ("ontap", PRIO),
    ("rdac", PRIO),
    ("hp_sw", PRIO),
    ("hds", PRIO),
    ("random", PRIO),
    ("weightedpath", PRIO),
    ("path_latency", PRIO),
    ("ana", PRIO),
    ("datacore", PRIO),
    ("iet", PRIO),
];

const MAPPER: Option<&str> = Some("mqblk uses no device mapper, udev or multipathd");
const FOUND: Option<&str> = Some("paths are configured, not discovered");
const KEYS: Option<&str> = Some("reservations are passed through; keys are not stored");
const SHAKY: Option<&str> = Some("marginal paths are not detected");
const SINGLE: Option<&str> = Some("the selector chooses a path for each request, as in the kernel since 4.0");
const REMOTE: Option<&str> = Some("it applies to Fibre Channel and SAS ports");
const IGNORED: Option<&str> = Some("multipath ignores it, too");

const fn used(name: &'static str, sections: Sections, kind: Kind, default: Option<&'static str>) -> OptionDef {
    OptionDef { name, sections, kind, default, idle: None }
}

const fn idle(name: &'static str, sections: Sections, kind: Kind, idle: Option<&'static str>) -> OptionDef {
    OptionDef { name, sections, kind, default: None, idle }
}

const NUMBER: Kind = Kind::Number(0, u32::MAX as u64);

/// All options.
pub static OPTIONS: &[OptionDef] = &[
    used("wwid", Sections::MULTIPATH, Kind::Name, None),
    used("alias", Sections::MULTIPATH, Kind::Name, None),
    used("vendor", Sections::DEVICE, Kind::Ere, None),
    used("product", Sections::DEVICE, Kind::Ere, None),
    used("revision", Sections::DEVICE, Kind::Ere, None),
    used("type", Sections::PROTOCOL, Kind::Name, None),
    used("product_blacklist", Sections::DEVICE, Kind::Ere, None),
    idle("vpd_vendor", Sections::DEVICE, Kind::Text, Some("vendor-specific VPD pages are not read")),
    idle("verbosity", Sections::DEFAULTS, Kind::Number(0, 6), MAPPER),
    used("polling_interval", Sections::DEFAULTS, Kind::Number(1, MAX_SECONDS), Some("5")),
    used("max_polling_interval", Sections::DEFAULTS, Kind::Number(1, MAX_SECONDS), None),
    idle("reassign_maps", Sections::DEFAULTS, Kind::YesNo, MAPPER),
    idle("multipath_dir", Sections::DEFAULTS, Kind::Text, MAPPER),
    used("path_selector", Sections::ALL, Kind::Selector, Some("service-time 0")),
    used("path_grouping_policy", Sections::ALL, Kind::Words(POLICIES), Some("failover")),
    idle("uid_attrs", Sections::DEFAULTS, Kind::Text, MAPPER),
    idle("uid_attribute", Sections::ALL_BUT_MULTIPATH, Kind::Text, MAPPER),
    idle("getuid_callout", Sections::ALL_BUT_MULTIPATH, Kind::Text, IGNORED),
    used("prio", Sections::ALL, Kind::Words(PRIOS), Some("const")),
    used("prio_args", Sections::ALL, Kind::PrioArgs, Some("")),
    used("features", Sections::ALL, Kind::Features, Some("0")),
    used("path_checker", Sections::ALL_BUT_MULTIPATH, Kind::Words(CHECKERS), Some("auto")),
    idle("alias_prefix", Sections::ALL_BUT_MULTIPATH, Kind::Text, Some("disks have the names that they are served by")),
    used("failback", Sections::ALL, Kind::Failback, Some("manual")),
    idle("rr_min_io", Sections::ALL, NUMBER, Some("it applies to bio-based mode; mqblk sends requests")),
    idle("rr_min_io_rq", Sections::ALL, NUMBER, SINGLE),
    idle("max_fds", Sections::DEFAULTS, Kind::Text, MAPPER),
    idle("rr_weight", Sections::ALL, Kind::Words(&[("uniform", None), ("priorities", None)]), SINGLE),
    used("no_path_retry", Sections::ALL, Kind::NoPathRetry, Some("fail")),
    idle("queue_without_daemon", Sections::DEFAULTS, Kind::Text, MAPPER),
    used("checker_timeout", Sections::DEFAULTS, Kind::Number(1, MAX_SECONDS), Some("15")),
    idle("allow_usb_devices", Sections::DEFAULTS, Kind::YesNo, FOUND),
    idle("pg_timeout", Sections::ALL, Kind::Text, IGNORED),
    idle("flush_on_last_del", Sections::ALL, Kind::Text, Some("disks remain when their paths are removed")),
    idle(
        "user_friendly_names",
        Sections::ALL,
        Kind::YesNo,
        Some("a disk has its alias, or the name that it is served by"),
    ),
    idle("mode", Sections::MAPS, Kind::Text, MAPPER),
    idle("uid", Sections::MAPS, Kind::Text, MAPPER),
    idle("gid", Sections::MAPS, Kind::Text, MAPPER),
    used("fast_io_fail_tmo", Sections::TIMES, Kind::SecondsOr(0, "off"), Some("5")),
    idle("dev_loss_tmo", Sections::TIMES, Kind::SecondsOr(1, "infinity"), REMOTE),
    idle("eh_deadline", Sections::TIMES, Kind::SecondsOr(0, "off"), REMOTE),
    idle("bindings_file", Sections::DEFAULTS, Kind::Text, MAPPER),
    idle("wwids_file", Sections::DEFAULTS, Kind::Text, MAPPER),
    idle("prkeys_file", Sections::DEFAULTS, Kind::Text, KEYS),
    idle("log_checker_err", Sections::DEFAULTS, Kind::Text, MAPPER),
    idle("reservation_key", Sections::MAPS, Kind::Text, KEYS),
    idle("all_tg_pt", Sections::ALL_BUT_MULTIPATH, Kind::YesNo, KEYS),
    used("hardware_handler", Sections::DEVICE, Kind::Handler, None),
    idle("retain_attached_hw_handler", Sections::ALL_BUT_MULTIPATH, Kind::YesNo, IGNORED),
    used("detect_prio", Sections::ALL_BUT_MULTIPATH, Kind::YesNo, Some("yes")),
    used("detect_checker", Sections::ALL_BUT_MULTIPATH, Kind::YesNo, Some("yes")),
    used("detect_pgpolicy", Sections::ALL_BUT_MULTIPATH, Kind::YesNo, Some("yes")),
    used("detect_pgpolicy_use_tpg", Sections::ALL_BUT_MULTIPATH, Kind::YesNo, Some("no")),
    idle("force_sync", Sections::DEFAULTS, Kind::YesNo, MAPPER),
    idle("strict_timing", Sections::DEFAULTS, Kind::YesNo, MAPPER),
    idle("deferred_remove", Sections::ALL, Kind::YesNo, MAPPER),
    idle("partition_delimiter", Sections::DEFAULTS, Kind::Text, MAPPER),
    used("config_dir", Sections::DEFAULTS, Kind::Text, None),
    idle("san_path_err_threshold", Sections::ALL, Kind::Text, SHAKY),
    idle("san_path_err_forget_rate", Sections::ALL, Kind::Text, SHAKY),
    idle("san_path_err_recovery_time", Sections::ALL, Kind::Text, SHAKY),
    idle("marginal_path_err_sample_time", Sections::ALL, Kind::Text, SHAKY),
    idle("marginal_path_err_rate_threshold", Sections::ALL, Kind::Text, SHAKY),
    idle("marginal_path_err_recheck_gap_time", Sections::ALL, Kind::Text, SHAKY),
    idle("marginal_path_double_failed_time", Sections::ALL, Kind::Text, SHAKY),
    idle("marginal_pathgroups", Sections::DEFAULTS, Kind::Text, SHAKY),
    idle("delay_watch_checks", Sections::ALL, Kind::Text, SHAKY),
    idle("delay_wait_checks", Sections::ALL, Kind::Text, SHAKY),
    idle("find_multipaths", Sections::DEFAULTS, Kind::Text, FOUND),
    idle("find_multipaths_timeout", Sections::DEFAULTS, Kind::Text, FOUND),
    idle("uxsock_timeout", Sections::DEFAULTS, NUMBER, MAPPER),
    idle("retrigger_tries", Sections::DEFAULTS, NUMBER, MAPPER),
    idle("retrigger_delay", Sections::DEFAULTS, NUMBER, MAPPER),
    idle("missing_uev_wait_timeout", Sections::DEFAULTS, NUMBER, MAPPER),
    idle("skip_kpartx", Sections::ALL, Kind::YesNo, MAPPER),
    idle("disable_changed_wwids", Sections::DEFAULTS, Kind::Text, IGNORED),
    idle("remove_retries", Sections::DEFAULTS, NUMBER, MAPPER),
    idle("max_sectors_kb", Sections::ALL, NUMBER, Some("max_sectors is a setting of the block layer")),
    idle("ghost_delay", Sections::ALL, Kind::Text, MAPPER),
    idle("auto_resize", Sections::DEFAULTS, Kind::Text, Some("mqblk ctl resize adopts a new size")),
    idle("enable_foreign", Sections::DEFAULTS, Kind::Text, MAPPER),
    idle("recheck_wwid", Sections::ALL_BUT_MULTIPATH, Kind::YesNo, Some("it is checked always")),
];

/// Returns the option of a name.
pub(super) fn find(name: &str) -> Option<&'static OptionDef> {
    // Its old name.
    let name = if name == "checker" { "path_checker" } else { name };
    OPTIONS.iter().find(|o| o.name == name)
}

impl OptionDef {
    /// Whether a value of the option is written in quotes.
    pub(super) fn is_quoted(&self, value: &str) -> bool {
        let may_be_number =
            matches!(self.kind, Kind::Number(..) | Kind::Failback | Kind::NoPathRetry | Kind::SecondsOr(..));
        !may_be_number || value.parse::<u64>().is_err()
    }

    /// Returns a value in its canonical spelling, and a note if it has a different effect here.
    ///
    /// # Errors
    /// The rule that the value breaks, as text.
    pub(super) fn read(&self, value: &str) -> Result<(String, Option<&'static str>), String> {
        let plain = |text: String| Ok((text, None));
        match self.kind {
            Kind::Number(min, max) => match value.parse::<u64>() {
                Ok(n) if (min..=max).contains(&n) => plain(n.to_string()),
                _ => Err(format!("must be a number, {min}..={max}")),
            },
            Kind::Failback => plain(value.parse::<Failback>().map_err(|e| e.to_string())?.to_string()),
            Kind::NoPathRetry => plain(value.parse::<NoPathRetry>().map_err(|e| e.to_string())?.to_string()),
            Kind::Selector => {
                let read = selector(value).map_err(|e| e.to_string())?;
                let args: Vec<_> = read.args().iter().map(|a| format!(" {a}")).collect();
                let is_counted = value.split_ascii_whitespace().nth(1).is_some();
                let text = format!("{} {}{}", read.name(), args.len(), args.concat());
                Ok((text, (!is_counted).then_some(UNCOUNTED)))
            }
            Kind::Features => features(value),
            Kind::Handler => {
                let words = counted(value)?.join(" ");
                let instead =
                    words.parse::<HardwareHandler>().is_err().then_some("no handler is used: only alua is supported");
                Ok((words, instead))
            }
            Kind::PrioArgs => {
                let is_here = matches!(value, "" | EXCLUSIVE_PREF_BIT);
                Ok((
                    value.to_owned(),
                    (!is_here).then_some("it is ignored: only exclusive_pref_bit is supported, with prio alua"),
                ))
            }
            Kind::Words(words) => match words.iter().find(|(word, _)| *word == value) {
                Some((word, instead)) => Ok(((*word).to_owned(), *instead)),
                None => {
                    let names = words.iter().map(|(word, _)| *word);
                    let hint = blk::suggest::did_you_mean(value, names.clone());
                    Err(format!("{hint}must be one of {}", names.collect::<Vec<_>>().join(", ")))
                }
            },
            Kind::YesNo => match value {
                "yes" | "1" => plain("yes".into()),
                "no" | "0" => plain("no".into()),
                _ => Err("must be yes or no".into()),
            },
            Kind::SecondsOr(min, word) => match value.parse::<u64>() {
                _ if value == word => plain(word.into()),
                Ok(n) if (min..=MAX_SECONDS).contains(&n) => plain(n.to_string()),
                // Kernels count seconds in 32 bits, so such a long time means forever.
                Ok(n) if word == "infinity" && n > MAX_SECONDS => plain(n.to_string()),
                _ => Err(format!("must be seconds, {min}..={MAX_SECONDS}, or {word}")),
            },
            Kind::Ere => Ere::new(value).and_then(|_| plain(value.to_owned())),
            Kind::Name if value.is_empty() => Err("must not be empty".into()),
            Kind::Name | Kind::Text => plain(value.to_owned()),
        }
    }
}

/// Splits `N WORD...`, which must have N words.
fn counted(value: &str) -> Result<Vec<&str>, String> {
    let words: Vec<_> = value.split_ascii_whitespace().collect();
    match words.split_first() {
        Some((n, rest)) if n.parse() == Ok(rest.len()) => Ok(words),
        _ => Err("must be a count and that many words, in quotes: \"1 alua\"; \"0\" for none".into()),
    }
}

fn features(value: &str) -> Result<(String, Option<&'static str>), String> {
    let words = counted(value)?;
    // Parsed as a device-mapper table line, without a handler or groups.
    let table: Result<Table, TableError> = format!("{value} 0 0 0").parse();
    table.map_err(|e| format!("'{}': {}", e.value, e.rule))?;
    Ok((words.join(" "), None))
}

/// Whether a parsed value of `features` has `queue_if_no_path`.
pub(super) fn queue_if_no_path(value: &str) -> bool {
    value.split_ascii_whitespace().any(|word| word == "queue_if_no_path")
}

/// Returns a parsed value of `features` as a device-mapper table line has it.
pub(super) fn pg_init(value: &str) -> Features {
    format!("{value} 0 0 0").parse::<Table>().map(|table| table.features).unwrap_or_default()
}

/// Returns the policy that is used for a configured one.
pub(super) fn policy(value: &str) -> PathGroupingPolicy {
    match value {
        "multibus" | "group_by_serial" => PathGroupingPolicy::Multibus,
        "group_by_prio" => PathGroupingPolicy::GroupByPrio,
        "group_by_tpg" => PathGroupingPolicy::GroupByTpg,
        _ => PathGroupingPolicy::Failover,
    }
}

/// Returns the checker that is used for a configured one.
pub(super) fn checker(value: &str) -> PathChecker {
    match value {
        "auto" => PathChecker::Auto,
        "directio" | "readsector0" => PathChecker::Directio,
        "none" => PathChecker::None,
        _ => PathChecker::Tur,
    }
}
