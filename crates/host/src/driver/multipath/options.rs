// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of a multipath disk, in the names and with the defaults of multipath.conf(5).
//!
//! Guarantees: plain values, from any source (a target's text, a configuration, multipath.conf). [`FromStr`] parses words, and `Display`
//! writes them. Does not check the paths.
//!
//! Differences from multipath-tools: `fast_io_fail_tmo` may be 0 (a lost session's commands are retried on another path at once), and
//! applies to this driver's own sessions and connections; `path_checker` has the value `auto`, the default: the checker that fits the
//! path.

use blk::multipath::{BASE_WEIGHT, MAX_WEIGHT, Selector};
use blk::suggest::did_you_mean;
use blk::time::Duration;
use std::fmt;
use std::str::FromStr;

/// Longest `polling_interval`, `checker_timeout` and the like, seconds.
pub const MAX_SECONDS: u64 = 24 * 3600;
/// Maximum number of checks of `no_path_retry`.
pub const MAX_RETRIES: u32 = 1_000_000;
/// Largest priority of a path.
pub const MAX_PRIO: u32 = 1_000_000;
/// Maximum number of `pg_init_retries` (`MAX_PG_INIT_RETRIES` of dm-mpath).
pub const MAX_PG_INIT_RETRIES: u32 = 50;
/// Longest `pg_init_delay_msecs`.
pub const MAX_PG_INIT_DELAY_MS: u64 = 60_000;

/// A disk's options. See the module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MultipathOptions {
    /// `path_selector`: how a group's paths share its requests. Default `service-time 0`.
    pub path_selector: Selector,
    /// `path_grouping_policy`. Default `failover`.
    pub path_grouping_policy: PathGroupingPolicy,
    /// `prio`: the source of a path's priority. Default `const`.
    pub prio: Prioritizer,
    /// `prio_args exclusive_pref_bit`: a port group that is preferred and optimized has the highest priority. Default: no.
    pub exclusive_pref_bit: bool,
    /// `hardware_handler`. Default: none.
    pub hardware_handler: HardwareHandler,
    /// `pg_init_retries` of `features`: how often the handler retries, 0..=[`MAX_PG_INIT_RETRIES`]. Default 0.
    pub pg_init_retries: u32,
    /// `pg_init_delay_msecs` of `features`: delay before a retry, up to [`MAX_PG_INIT_DELAY_MS`]. Default: 2 s.
    pub pg_init_delay: Option<Duration>,
    /// `failback`. Default `manual`.
    pub failback: Failback,
    /// `no_path_retry`. Default `fail`.
    pub no_path_retry: NoPathRetry,
    /// `path_checker`. Default: the checker that fits the path.
    pub path_checker: PathChecker,
    /// `polling_interval`: time between checks of a path that has failed or has just come back, 1 s to [`MAX_SECONDS`]. Default 5 s.
    pub polling_interval: Duration,
    /// `max_polling_interval`: the interval doubles up to this while a path stays up. Default: 4 times `polling_interval`.
    pub max_polling_interval: Option<Duration>,
    /// `checker_timeout`: time limit of a check. Default 15 s; the kernel's is 30 s.
    pub checker_timeout: Duration,
    /// `fast_io_fail_tmo`: how long the commands of a lost session wait for the session to be made again before they are
    /// retried on another path. `None` is `off`: the path's own settings apply. Default 5 s.
    pub fast_io_fail_tmo: Option<Duration>,
}

impl Default for MultipathOptions {
    fn default() -> Self {
        MultipathOptions {
            path_selector: Selector::ServiceTime,
            path_grouping_policy: PathGroupingPolicy::Failover,
            prio: Prioritizer::Const,
            exclusive_pref_bit: false,
            hardware_handler: HardwareHandler::None,
            pg_init_retries: 0,
            pg_init_delay: None,
            failback: Failback::Manual,
            no_path_retry: NoPathRetry::Fail,
            path_checker: PathChecker::Auto,
            polling_interval: Duration::from_secs(5),
            max_polling_interval: None,
            checker_timeout: Duration::from_secs(15),
            fast_io_fail_tmo: Some(Duration::from_secs(5)),
        }
    }
}

impl MultipathOptions {
    /// Returns the longest time between two checks of a path.
    pub fn longest_interval(&self) -> Duration {
        let four = Duration::from_ns(self.polling_interval.as_ns().saturating_mul(4));
        self.max_polling_interval.unwrap_or(four).max(self.polling_interval)
    }

    /// Returns a warning about an opened path, if the options need port groups and its target has none.
    pub(super) fn without_port_groups(&self, has_some: bool) -> Option<&'static str> {
        match (has_some, self.hardware_handler, self.prio) {
            (false, HardwareHandler::Alua, _) => {
                Some("hardware_handler=1 alua: its target reports no target port groups (ALUA); leave the handler out")
            }
            (false, _, Prioritizer::Alua) => {
                Some("prio=alua: its target reports no target port groups (ALUA), so its priority is 0")
            }
            _ => None,
        }
    }

    /// Whether paths are asked for their ALUA state.
    pub fn asks_access(&self) -> bool {
        self.prio == Prioritizer::Alua || self.hardware_handler == HardwareHandler::Alua
    }
}

/// `prio`: the source of a path's priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prioritizer {
    /// The number given for the path; 1 unless set.
    #[default]
    Const,
    /// The ALUA state of the port group that the path leads to.
    Alua,
}

/// `hardware_handler`: how a path is activated before it is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HardwareHandler {
    /// None.
    #[default]
    None,
    /// `1 alua`: SET TARGET PORT GROUPS, if the target supports explicit transitions.
    Alua,
}

/// `path_grouping_policy`: which paths make a priority group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathGroupingPolicy {
    /// Each path is a group of its own.
    #[default]
    Failover,
    /// All paths are one group.
    Multibus,
    /// Paths of the same priority are a group.
    GroupByPrio,
    /// Paths to the same port group of their target are a group, with [`Prioritizer::Alua`].
    GroupByTpg,
}

/// `failback`: what happens when a better group than the one in use has a path again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Failback {
    /// No failback: the administrator switches manually.
    #[default]
    Manual,
    /// The better group is used at once.
    Immediate,
    /// The better group is used at once if that path is its first one.
    Followover,
    /// The better group is used after this time, if it still has a path.
    After(Duration),
}

/// `no_path_retry`: what happens to requests while there is no path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NoPathRetry {
    /// They fail.
    #[default]
    Fail,
    /// They wait.
    Queue,
    /// They wait for this many checks (each `polling_interval`), then fail until there is a path again.
    Retries(u32),
}

/// `path_checker`: how a path is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathChecker {
    /// `tur` for iSCSI, `directio` for files, NBD and RBD, `none` for disks in memory.
    #[default]
    Auto,
    /// TEST UNIT READY, in a separate session.
    Tur,
    /// A read of the first block, over a separate descriptor, connection or session.
    Directio,
    /// No check: a failed path is retried after `polling_interval`.
    None,
}

const GROUPING: [(&str, PathGroupingPolicy); 4] = [
    ("failover", PathGroupingPolicy::Failover),
    ("multibus", PathGroupingPolicy::Multibus),
    ("group_by_prio", PathGroupingPolicy::GroupByPrio),
    ("group_by_tpg", PathGroupingPolicy::GroupByTpg),
];
const CHECKERS: [(&str, PathChecker); 4] = [
    ("auto", PathChecker::Auto),
    ("tur", PathChecker::Tur),
    ("directio", PathChecker::Directio),
    ("none", PathChecker::None),
];

/// Prioritizers of multipath-tools; those that are implemented here come first.
const PRIORITIZERS: [&str; 15] = [
    "const",
    "alua",
    "none",
    "sysfs",
    "emc",
    "ontap",
    "rdac",
    "hp_sw",
    "hds",
    "random",
    "weightedpath",
    "path_latency",
    "ana",
    "datacore",
    "iet",
];

/// Returns why a text is not a valid `prio`.
pub(super) fn no_prioritizer(text: &str) -> String {
    let is_known = PRIORITIZERS.contains(&text);
    let hint = if is_known { String::new() } else { did_you_mean(text, PRIORITIZERS[..2].iter().copied()) };
    let what = if is_known { "is a prioritizer of multipath-tools that mqblk does not have; " } else { "" };
    format!(
        "{what}{hint}must be const, alua or one number for each path, 0..={MAX_PRIO}, in the order of the paths: prio=50+10"
    )
}

/// The rule that a word breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MustBe(pub &'static str);

impl fmt::Display for MustBe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "must be {}", self.0)
    }
}

/// Parses seconds from `min` to [`MAX_SECONDS`].
pub(super) fn seconds(text: &str, min: u64) -> Option<Duration> {
    text.parse().ok().filter(|n| (min..=MAX_SECONDS).contains(n)).map(Duration::from_secs)
}

fn word_of<T: Copy + PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, v)| *v == value).map_or("", |(word, _)| word)
}

fn of_word<T: Copy>(words: &[(&str, T)], text: &str) -> Option<T> {
    words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value)
}

impl FromStr for Prioritizer {
    type Err = MustBe;

    /// Accepts `sysfs`, too: these are priorities that the kernel has read with the same commands, so the numbers are the same.
    fn from_str(text: &str) -> Result<Self, MustBe> {
        match text {
            "const" | "none" => Ok(Prioritizer::Const),
            "alua" | "sysfs" => Ok(Prioritizer::Alua),
            _ => Err(MustBe("const or alua")),
        }
    }
}

impl fmt::Display for Prioritizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Prioritizer::Const => "const",
            Prioritizer::Alua => "alua",
        })
    }
}

impl FromStr for HardwareHandler {
    type Err = MustBe;

    fn from_str(text: &str) -> Result<Self, MustBe> {
        match text {
            "0" => Ok(HardwareHandler::None),
            "1 alua" => Ok(HardwareHandler::Alua),
            _ => Err(MustBe("0 for none or '1 alua'")),
        }
    }
}

impl fmt::Display for HardwareHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HardwareHandler::None => "0",
            HardwareHandler::Alua => "1 alua",
        })
    }
}

impl FromStr for PathGroupingPolicy {
    type Err = MustBe;

    fn from_str(text: &str) -> Result<Self, MustBe> {
        of_word(&GROUPING, text).ok_or(MustBe("failover, multibus, group_by_prio or group_by_tpg"))
    }
}

impl fmt::Display for PathGroupingPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(word_of(&GROUPING, *self))
    }
}

impl FromStr for PathChecker {
    type Err = MustBe;

    fn from_str(text: &str) -> Result<Self, MustBe> {
        of_word(&CHECKERS, text).ok_or(MustBe("auto, tur, directio or none"))
    }
}

impl fmt::Display for PathChecker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(word_of(&CHECKERS, *self))
    }
}

impl FromStr for Failback {
    type Err = MustBe;

    fn from_str(text: &str) -> Result<Self, MustBe> {
        Ok(match text {
            "manual" => Failback::Manual,
            "immediate" => Failback::Immediate,
            "followover" => Failback::Followover,
            _ => match seconds(text, 0).ok_or(MustBe("manual, immediate, followover or seconds, 0..=86400"))? {
                Duration::ZERO => Failback::Immediate,
                after => Failback::After(after),
            },
        })
    }
}

impl fmt::Display for Failback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failback::Manual => f.write_str("manual"),
            Failback::Immediate => f.write_str("immediate"),
            Failback::Followover => f.write_str("followover"),
            Failback::After(after) => write!(f, "{}", after.as_ns() / 1_000_000_000),
        }
    }
}

impl FromStr for NoPathRetry {
    type Err = MustBe;

    fn from_str(text: &str) -> Result<Self, MustBe> {
        let count = || text.parse().ok().filter(|n| *n <= MAX_RETRIES);
        Ok(match text {
            "fail" => NoPathRetry::Fail,
            "queue" => NoPathRetry::Queue,
            _ => match count().ok_or(MustBe("fail, queue or a number of checks, 0..=1000000"))? {
                0 => NoPathRetry::Fail,
                n => NoPathRetry::Retries(n),
            },
        })
    }
}

impl fmt::Display for NoPathRetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoPathRetry::Fail => f.write_str("fail"),
            NoPathRetry::Queue => f.write_str("queue"),
            NoPathRetry::Retries(n) => write!(f, "{n}"),
        }
    }
}

/// Parses `path_selector`: `service-time 0`, with or without the number of arguments, or `historical-service-time 2 BASE_WEIGHT
/// THRESHOLD`.
///
/// # Errors
/// No such selector, or invalid arguments.
pub fn selector(text: &str) -> Result<Selector, MustBe> {
    let rule = MustBe(
        "round-robin, queue-length, service-time, io-affinity or historical-service-time, optionally followed by 0; the last \
         one also takes 1 BASE_WEIGHT or 2 BASE_WEIGHT THRESHOLD, which are 0..=1023 and 0..=65535",
    );
    let mut words = text.split_ascii_whitespace();
    let name = words.next().ok_or(rule)?;
    let arguments: Vec<u16> = match words.next() {
        None => Vec::new(),
        Some(n) => {
            let all: Option<Vec<u16>> = words.map(|word| word.parse().ok()).collect();
            all.filter(|all| n.parse() == Ok(all.len())).ok_or(rule)?
        }
    };
    let plain = |selector| if arguments.is_empty() { Ok(selector) } else { Err(rule) };
    match name {
        "round-robin" => plain(Selector::RoundRobin),
        "queue-length" => plain(Selector::QueueLength),
        "service-time" => plain(Selector::ServiceTime),
        "io-affinity" => plain(Selector::IoAffinity),
        "historical-service-time" if arguments.len() <= 2 => {
            let base_weight = arguments.first().copied().unwrap_or(BASE_WEIGHT);
            let threshold_multiplier = arguments.get(1).copied().unwrap_or(0);
            let fits = base_weight <= MAX_WEIGHT;
            if fits { Ok(Selector::HistoricalServiceTime { base_weight, threshold_multiplier }) } else { Err(rule) }
        }
        _ => Err(rule),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_and_written() {
        fn both<T: FromStr<Err = MustBe> + fmt::Display>(words: &[&str]) {
            for word in words {
                let read: T = word.parse().unwrap_or_else(|e| panic!("{word}: {e}"));
                assert_eq!(read.to_string(), *word);
            }
        }
        both::<Failback>(&["manual", "immediate", "followover", "30"]);
        both::<NoPathRetry>(&["fail", "queue", "12"]);
        both::<PathChecker>(&["auto", "tur", "directio", "none"]);
        both::<Prioritizer>(&["const", "alua"]);
        both::<HardwareHandler>(&["0", "1 alua"]);
        assert!("emc".parse::<Prioritizer>().is_err() && "alua".parse::<HardwareHandler>().is_err());
        both::<PathGroupingPolicy>(&["failover", "multibus", "group_by_prio", "group_by_tpg"]);
        assert_eq!("0".parse(), Ok(NoPathRetry::Fail));
        assert_eq!("0".parse(), Ok(Failback::Immediate));
        for text in ["-1", "", "later", "86401"] {
            assert!(text.parse::<Failback>().is_err(), "{text}");
        }
        assert!("1000001".parse::<NoPathRetry>().is_err() && "up".parse::<PathChecker>().is_err());
    }

    #[test]
    fn selectors_are_read_as_in_multipath_conf() {
        assert_eq!(selector("service-time 0"), Ok(Selector::ServiceTime));
        assert_eq!(selector("round-robin"), Ok(Selector::RoundRobin));
        let historical = |base_weight, threshold_multiplier| {
            Ok(Selector::HistoricalServiceTime { base_weight, threshold_multiplier })
        };
        assert_eq!(selector("historical-service-time 0"), historical(BASE_WEIGHT, 0));
        assert_eq!(selector("historical-service-time 2 900 3"), historical(900, 3));
        for text in
            ["", "fastest 0", "round-robin 1 5", "service-time 1", "historical-service-time 1 1024", "service-time x"]
        {
            assert!(selector(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_path_that_stays_up_is_asked_four_times_as_seldom() {
        let options = MultipathOptions::default();
        assert_eq!(options.longest_interval(), Duration::from_secs(20));
        let short = MultipathOptions { max_polling_interval: Some(Duration::from_secs(1)), ..options };
        assert_eq!(short.longest_interval(), Duration::from_secs(5));
    }
}
