// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The scenario file: its fields, their ranges, and errors that name the line.

use super::build;
use super::disk;
pub use super::disk::{Attach, Disk, DiskChange};
use super::known::{self, Measured, Uncertain};
pub(super) use super::rule::{Broken, key};
use crate::machine::costs::{Costs, Shape};
use crate::machine::guest_times::Mapping;
use crate::machine::kernel::Layer;
use blk::suggest::nearest;
use config::typed::{self, ConfigError};
use serde::Deserialize;
use std::collections::BTreeMap;

/// A value in the file's tables of settings.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Scalar {
    /// A number.
    Number(i64),
    /// A word.
    Word(String),
    /// A boolean.
    Flag(bool),
}

impl Scalar {
    /// Returns the value as `--set` takes it.
    pub fn text(&self) -> String {
        match self {
            Scalar::Number(n) => n.to_string(),
            Scalar::Word(w) => w.clone(),
            Scalar::Flag(f) => u8::from(*f).to_string(),
        }
    }
}

/// Settings by the kernel's names.
pub type Settings = BTreeMap<String, Scalar>;

/// A thread of the hypervisor that serves virtqueues.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerTimes {
    /// CPU time per request, submission and completion together, microseconds.
    pub serve_us: f64,
    /// Time from a kick or a completion until a sleeping thread runs, microseconds.
    pub wake_us: f64,
    /// The same on a core that is not in deep sleep ([`Guests::deep_after_us`]), microseconds; default: `wake_us`.
    pub awake_us: Option<f64>,
    /// How long the thread polls before it sleeps (poll-max-ns), microseconds.
    #[serde(default)]
    pub poll_us: f64,
}

/// What makes the log of a database durable.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogTimes {
    /// A flush of the host's storage, microseconds; flushes of all virtual machines wait in one queue.
    pub flush_us: f64,
    /// Time to write the log of one transaction at the speed of the storage, microseconds.
    pub commit_us: f64,
}

/// Virtual machines with a database in each. Each user runs one transaction after the other.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guests {
    /// vCPUs of each virtual machine.
    pub vcpus: u16,
    /// Virtqueues of the disk of each virtual machine.
    pub queues: u16,
    /// Which IOThread serves which virtqueue.
    #[serde(default)]
    pub mapping: Mapping,
    /// Numbers of users of each database, simulated one after the other.
    pub users: Vec<u32>,
    /// Time of a guest exit for a kick, microseconds.
    pub kick_us: f64,
    /// Time from the hypervisor's thread to the guest's interrupt, microseconds.
    pub inject_us: f64,
    /// The main loop, which serves all virtqueues where there are no IOThreads.
    pub main_loop: ServerTimes,
    /// An IOThread.
    pub iothread: ServerTimes,
    /// Computing time of a transaction, microseconds.
    pub cpu_us: f64,
    /// Computing time that each other running user of the database adds, microseconds.
    pub per_user_us: f64,
    /// How long a transaction holds the lock that the users of its database wait for most, microseconds; 0: there is none.
    #[serde(default)]
    pub lock_us: f64,
    /// How much longer the lock is held for each user that spins for it meanwhile, microseconds.
    #[serde(default)]
    pub waiter_us: f64,
    /// With a log, a flush makes writes durable; without one, a write is durable once it completes.
    pub log: Option<LogTimes>,
    /// Cores of the host that share a last-level cache. A vCPU that becomes runnable finds an idle core only among them; 0:
    /// among all cores.
    #[serde(default)]
    pub l3_cores: u32,
    /// Idle time after which a core enters deep sleep, microseconds; 0: at once.
    #[serde(default)]
    pub deep_after_us: f64,
    /// Blocks that a transaction reads, one after the other.
    pub reads: u32,
    /// Durable writes of a transaction, one after the other.
    pub writes: u32,
}

/// A constant that was chosen so that the simulation matches a published figure.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fitted {
    /// The path of the constant in the file.
    pub constant: String,
    /// The row of the published figure.
    pub row: String,
    /// The figure, as `job.metric`.
    pub figure: String,
    /// The plausible range.
    pub range: [f64; 2],
    /// The physical meaning of the constant, and the source of the range.
    pub meaning: String,
}

/// One row of the table.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Name of the row.
    pub name: String,
    /// Whose block layer it is in this row; default: the scenario's.
    pub layer: Option<Layer>,
    /// Settings of this row only.
    #[serde(default)]
    pub set: Settings,
    /// Options of all jobs in this row only.
    #[serde(default)]
    pub job: BTreeMap<String, Scalar>,
    /// Costs in this row; default: the scenario's.
    #[serde(default)]
    pub costs: Option<Costs>,
    /// Fields of the disk that differ in this row.
    #[serde(default)]
    pub disk: DiskChange,
    /// The row that this row is compared with; default: the first one.
    pub against: Option<String>,
    /// Number of virtual machines.
    pub vms: Option<u32>,
    /// IOThreads of each virtual machine; 0: the main loop serves all virtqueues.
    pub iothreads: Option<u32>,
    /// Published figures by `job.metric`; for virtual machines by `usersN.tpm`.
    #[serde(default)]
    pub published: BTreeMap<String, f64>,
    /// Figures that were published only as a change: as multiples of the figure of the row that this row is compared with.
    #[serde(default)]
    pub published_ratio: BTreeMap<String, f64>,
}

impl Row {
    /// A row that changes nothing.
    pub fn named(name: impl Into<String>) -> Row {
        Row { name: name.into(), ..Row::default() }
    }
}

/// A scenario.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// One line about the scenario; optional in a machine file.
    #[serde(default)]
    pub title: String,
    /// The author and source of the test; in a machine file, the source of its figures.
    #[serde(default)]
    pub source: String,
    /// The job file, in the same directory; absent for virtual machines.
    pub jobs: Option<String>,
    /// Virtual machines; with these, the CPUs are the host's.
    pub guests: Option<Guests>,
    /// Whose block layer it is.
    #[serde(default)]
    pub layer: Layer,
    /// The CPUs.
    pub machine: Shape,
    /// Costs of the CPUs' work.
    #[serde(default)]
    pub costs: Costs,
    /// The disk.
    pub disk: Disk,
    /// Settings of all rows.
    #[serde(default)]
    pub settings: Settings,
    /// Constants that were fitted to published figures.
    #[serde(default)]
    pub fitted: Vec<Fitted>,
    /// Published figures that do not describe the disk, each with its meaning.
    #[serde(default)]
    pub beside: Vec<String>,
    /// Rows; a machine file has none.
    #[serde(default)]
    pub row: Vec<Row>,
    /// Changes that were published without the load at which they were measured, as multiples. Each has to lie in the range
    /// of all rows that name a row in `against`.
    #[serde(default)]
    pub over_rows: BTreeMap<String, f64>,
    /// Ranges of constants that are not known exactly.
    #[serde(default)]
    pub uncertain: Uncertain,
    /// Figures that were measured on the real machine.
    #[serde(default)]
    pub measured: Measured,
}

/// Checks the rules of figures that are in the table `of`.
fn check_published(of: &[String], figures: &BTreeMap<String, f64>) -> Result<(), Broken> {
    for (figure, value) in figures {
        let key = || [of, std::slice::from_ref(figure)].concat();
        check_figure(figure).map_err(|why| (key(), why))?;
        if !value.is_finite() || *value <= 0.0 {
            return Err((key(), format!("{figure} = {value}: must be above 0")));
        }
    }
    Ok(())
}

/// Figures of a job that can be published and simulated.
const METRICS: [&str; 9] = ["iops", "bw", "lat_us", "p50_us", "p99_us", "tps", "commit_us", "tpm", "idle_pct"];

/// Takes the place of a job in figures of the CPUs: `cpu.idle_pct`.
pub const CPU: &str = "cpu";

impl Scenario {
    /// Reads the text of `file`.
    ///
    /// # Errors
    /// The first error, with its line.
    pub fn parse(file: &str, text: &str) -> Result<Scenario, ConfigError> {
        let scenario = Scenario::parse_machine(file, text)?;
        scenario.check_scenario().map_err(|(key, rule)| typed::broken(file, text, &key, rule))?;
        Ok(scenario)
    }

    /// Reads the text of `file` as a machine with a disk, on which any jobs run. The format is the same, but title, source,
    /// jobs, guests and rows are optional.
    ///
    /// # Errors
    /// The first error, with its line.
    pub fn parse_machine(file: &str, text: &str) -> Result<Scenario, ConfigError> {
        let scenario: Scenario = typed::read(file, text)?;
        scenario.check().map_err(|(key, rule)| typed::broken(file, text, &key, rule))?;
        Ok(scenario)
    }

    /// Checks the rules again after a change.
    ///
    /// # Errors
    /// The first broken rule.
    pub(crate) fn recheck(&self) -> Result<(), String> {
        self.check().map_err(|(_, why)| why)
    }

    /// Checks what a scenario needs and a machine file does not.
    fn check_scenario(&self) -> Result<(), Broken> {
        let bad = |name: &str, why: &str| Err((key([name]), why.to_owned()));
        for (name, text) in [("title", &self.title), ("source", &self.source)] {
            if text.is_empty() {
                return bad("title", &format!("{name} is missing: a scenario names its subject and its publisher"));
            }
        }
        if self.row.is_empty() {
            return bad("row", "there is no [[row]]: a scenario has at least one");
        }
        if self.guests.is_none() && self.jobs.is_none() {
            return bad("title", "there is neither jobs nor [guests]: name a job file, or describe guests");
        }
        Ok(())
    }

    /// Checks the rules beyond the types. The error is the key that breaks a rule, and the rule.
    fn check(&self) -> Result<(), Broken> {
        let Shape { sockets, cores, threads } = self.machine;
        for (name, n) in [("sockets", sockets), ("cores", cores), ("threads", threads)] {
            if n == 0 {
                return Err((key(["machine", name]), format!("{name} = 0: must be 1 or more")));
            }
        }
        let all = [sockets, cores, threads].map(u64::from).iter().product::<u64>();
        if all > u64::from(blk::id::MAX_CPUS) {
            let (n, most) = (all, blk::id::MAX_CPUS);
            let rule = format!("{n} CPUs: must be at most {most}; lower sockets, cores or threads");
            return Err((key(["machine"]), rule));
        }
        check_costs(&[], &self.costs)?;
        for (i, row) in self.row.iter().enumerate() {
            row.costs.as_ref().map_or(Ok(()), |costs| check_costs(&key(["row", &i.to_string()]), costs))?;
        }
        disk::check(&self.disk)?;
        build::check_settings(self).map_err(|(key, e)| (key, e.to_string()))?;
        known::check(self)?;
        match (&self.guests, &self.jobs) {
            (Some(_), Some(_)) => {
                return Err((
                    key(["jobs"]),
                    "jobs and [guests]: guests are loaded by users, not by a job file; remove one of the two".into(),
                ));
            }
            (Some(_), None) if self.disk.hdd.is_some() || self.disk.array.is_some() => {
                let name = if self.disk.hdd.is_some() { "hdd" } else { "array" };
                let text = format!("[disk.{name}]: is simulated for jobs, not for [guests]; give only times and caps");
                return Err((key(["disk", name]), text));
            }
            (Some(g), None) => check_guests(g, all as u32)?,
            (None, _) => {}
        }
        self.check_rows()
    }

    fn check_rows(&self) -> Result<(), Broken> {
        for (i, row) in self.row.iter().enumerate() {
            let of_row = |name: &str| key(["row", &i.to_string(), name]);
            if self.row[..i].iter().any(|r| r.name == row.name) {
                return Err((of_row("name"), format!("two rows are called '{}': rename one", row.name)));
            }
            disk::check(&self.disk.changed(&row.disk)).map_err(|(_, why)| (of_row("disk"), why))?;
            if let Some(other) = row.against.as_ref().filter(|o| self.row.iter().all(|r| r.name != **o)) {
                return Err((of_row("against"), format!("against = '{other}': there is no such row")));
            }
            for (name, n) in [("vms", row.vms), ("iothreads", row.iothreads)] {
                let Some(n) = n else { continue };
                if self.guests.is_none() {
                    return Err((of_row(name), format!("{name} = {n}: only a scenario with [guests] has {name}")));
                }
                if n > 1024 || name == "vms" && n == 0 {
                    return Err((of_row(name), format!("{name} = {n}: must be {}..=1024", u32::from(name == "vms"))));
                }
            }
            check_published(&of_row("published"), &row.published)?;
            check_published(&of_row("published_ratio"), &row.published_ratio)?;
        }
        check_published(&key(["over_rows"]), &self.over_rows)?;
        if !self.over_rows.is_empty() && self.row.iter().all(|r| r.against.is_none()) {
            return Err((key(["over_rows"]), "[over_rows]: needs a row with 'against' to compute changes from".into()));
        }
        for (i, f) in self.fitted.iter().enumerate() {
            let of_fitted = |name: &str| key(["fitted", &i.to_string(), name]);
            let Some(row) = self.row.iter().find(|r| r.name == f.row) else {
                let names = self.row.iter().map(|r| r.name.as_str());
                let hint = nearest(&f.row, names).map_or(String::new(), |n| format!("; did you mean '{n}'?"));
                return Err((of_fitted("row"), format!("row = '{}': there is no such row{hint}", f.row)));
            };
            if !row.published.contains_key(&f.figure) {
                return Err((
                    of_fitted("figure"),
                    format!("figure = '{}': row '{}' has no such published figure", f.figure, f.row),
                ));
            }
            let Some(value) = self.constant(&f.constant) else {
                let known = CONSTANTS.join(", ");
                return Err((of_fitted("constant"), format!("constant = '{}': must be one of {known}", f.constant)));
            };
            let [low, high] = f.range;
            if !(low..=high).contains(&value) {
                return Err((
                    of_fitted("constant"),
                    format!("{} = {value}: outside its plausible range {low} to {high}", f.constant),
                ));
            }
        }
        Ok(())
    }

    /// Returns a constant that can be fitted, by its path in the file.
    pub fn constant(&self, name: &str) -> Option<f64> {
        let d = &self.disk;
        if let Some(name) = name.strip_prefix("guests.") {
            let g = self.guests.as_ref()?;
            return Some(match name {
                "cpu_us" => g.cpu_us,
                "per_user_us" => g.per_user_us,
                "lock_us" => g.lock_us,
                "log.flush_us" => g.log?.flush_us,
                "reads" => f64::from(g.reads),
                "main_loop.serve_us" => g.main_loop.serve_us,
                "main_loop.wake_us" => g.main_loop.wake_us,
                "iothread.serve_us" => g.iothread.serve_us,
                "iothread.wake_us" => g.iothread.wake_us,
                _ => return None,
            });
        }
        Some(match name {
            "disk.read_us" => d.read_us,
            "disk.write_us" => d.write_us,
            "disk.bw_mb" => d.bw_mb,
            "disk.iops" => d.iops as f64,
            _ if CONSTANTS.contains(&name) => f64::from(self.costs.field(name)?),
            _ => return None,
        })
    }

    /// Whether a published figure was used to choose a constant.
    pub fn is_fitted(&self, row: &str, figure: &str) -> bool {
        self.fitted.iter().any(|f| f.row == row && f.figure == figure)
    }
}

/// Names that [`Scenario::constant`] knows.
const CONSTANTS: [&str; 21] = [
    "guests.cpu_us",
    "guests.per_user_us",
    "guests.lock_us",
    "guests.log.flush_us",
    "guests.reads",
    "guests.main_loop.serve_us",
    "guests.main_loop.wake_us",
    "guests.iothread.serve_us",
    "guests.iothread.wake_us",
    "disk.read_us",
    "disk.write_us",
    "disk.bw_mb",
    "disk.iops",
    "costs.path.app_ns",
    "costs.path.submit_ns",
    "costs.path.hold_ns",
    "costs.line.lines",
    "costs.line.socket_ns",
    "costs.line.remote_ns",
    "costs.kernel.hold_pct",
    "costs.kernel.lines_pct",
];

/// Checks the rules of costs that are in the table `of`.
fn check_costs(of: &[String], costs: &Costs) -> Result<(), Broken> {
    let pct = costs.path.sibling_pct;
    if !(1..=100).contains(&pct) {
        let key = [of, &key(["costs", "path", "sibling_pct"])].concat();
        return Err((key, format!("sibling_pct = {pct}: must be 1..=100 percent")));
    }
    Ok(())
}

fn check_guests(g: &Guests, cores: u32) -> Result<(), Broken> {
    let log = g.log.unwrap_or(LogTimes { flush_us: 0.0, commit_us: 0.0 });
    let times = [
        ("kick_us", g.kick_us),
        ("inject_us", g.inject_us),
        ("cpu_us", g.cpu_us),
        ("per_user_us", g.per_user_us),
        ("lock_us", g.lock_us),
        ("waiter_us", g.waiter_us),
        ("deep_after_us", g.deep_after_us),
        ("log", log.flush_us),
        ("log", log.commit_us),
    ];
    let of = |name, t: &ServerTimes| [t.serve_us, t.wake_us, t.poll_us, t.awake_us.unwrap_or(0.0)].map(|us| (name, us));
    let servers = of("main_loop", &g.main_loop).into_iter().chain(of("iothread", &g.iothread));
    for (name, us) in times.into_iter().chain(servers) {
        if !(0.0..=1e6).contains(&us) {
            return Err((key(["guests", name]), format!("{name}: {us} us: must be 0..=1e6")));
        }
    }
    if g.vcpus == 0 || g.queues == 0 || g.queues > g.vcpus {
        let text = format!("queues = {} of {} vCPUs: must be 1 to the number of vCPUs", g.queues, g.vcpus);
        return Err((key(["guests", "queues"]), text));
    }
    if g.users.is_empty() || g.users.iter().any(|u| !(1..=1000).contains(u)) {
        return Err((key(["guests", "users"]), "users: must be one or more numbers of 1..=1000".into()));
    }
    if g.reads == 0 && g.writes == 0 {
        return Err((key(["guests", "reads"]), "reads = 0, writes = 0: one must be 1 or more".into()));
    }
    if g.l3_cores > cores || g.l3_cores > 0 && !cores.is_multiple_of(g.l3_cores) {
        let text = format!("l3_cores = {}: must divide the {cores} CPUs of the host evenly", g.l3_cores);
        return Err((key(["guests", "l3_cores"]), text));
    }
    Ok(())
}

/// Splits `job.metric`.
pub fn split_figure(figure: &str) -> Option<(&str, &str)> {
    figure.rsplit_once('.')
}

pub(super) fn check_figure(figure: &str) -> Result<(), String> {
    let Some((_, metric)) = split_figure(figure) else {
        return Err(format!("'{figure}': must be JOB.METRIC, with METRIC one of {}", METRICS.join(", ")));
    };
    if METRICS.contains(&metric) {
        return Ok(());
    }
    let hint = nearest(metric, METRICS.iter().copied()).map_or(String::new(), |n| format!("; did you mean '{n}'?"));
    Err(format!("'{figure}': unknown metric '{metric}', must be one of {}{hint}", METRICS.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"title = "t"
source = "s"
jobs = "a.fio"
[machine]
sockets = 1
cores = 4
threads = 1
[disk]
size_gib = 10
read_us = 100
write_us = 200
[[fitted]]
constant = "disk.write_us"
row = "one"
figure = "a.iops"
range = [100, 300]
meaning = "m"
[[row]]
name = "one"
set = { nr_hw_queues = 1, scheduler = "none" }
published = { "a.iops" = 1000 }
"#;

    fn error(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "{from}");
        Scenario::parse("x.toml", &GOOD.replacen(from, to, 1)).expect_err("wrong").to_string()
    }

    #[test]
    fn a_good_file_is_read() {
        let s = Scenario::parse("x.toml", GOOD).unwrap();
        assert_eq!(s.row[0].set["nr_hw_queues"].text(), "1");
        assert!(s.is_fitted("one", "a.iops"));
        assert_eq!(s.disk.burst_ms, 1);
    }

    #[test]
    fn a_machine_needs_no_rows_and_a_scenario_does() {
        let machine =
            "[machine]\nsockets = 1\ncores = 4\nthreads = 1\n[disk]\nsize_gib = 10\nread_us = 100\nwrite_us = 200\n";
        let m = Scenario::parse_machine("m.toml", machine).unwrap();
        assert_eq!((m.machine.cpus(), m.row.len()), (4, 0));
        let e = Scenario::parse_machine("m.toml", &machine.replace("cores = 4", "cores = 0")).unwrap_err().to_string();
        assert_eq!(e, "m.toml:3: cores = 0: must be 1 or more");
        let many = machine
            .replace("sockets = 1", "sockets = 4096")
            .replace("= 4\n", "= 1024\n")
            .replace("threads = 1", "threads = 1024");
        let e = Scenario::parse_machine("m.toml", &many).unwrap_err().to_string();
        assert!(e.starts_with("m.toml:1: 4294967296 CPUs: must be at most"), "{e}");
        let e = Scenario::parse("m.toml", machine).unwrap_err().to_string();
        assert!(e.starts_with("m.toml: title is missing"), "{e}");
        let e =
            Scenario::parse("m.toml", &format!("title = \"t\"\nsource = \"s\"\n{machine}")).unwrap_err().to_string();
        assert!(e.ends_with("there is no [[row]]: a scenario has at least one"), "{e}");
    }

    #[test]
    fn what_guests_share_has_rules() {
        let guests = "[guests]\nvcpus = 4\nqueues = 2\nusers = [2]\nkick_us = 2\ninject_us = 4\ncpu_us = 40\nper_user_us = 0\n\
                      reads = 0\nwrites = 1\nlog = { flush_us = 100, commit_us = 2 }\nl3_cores = 2\n\
                      main_loop = { serve_us = 5, wake_us = 60, awake_us = 8 }\niothread = { serve_us = 5, wake_us = 8 }\n[disk]";
        let text = GOOD
            .replace("jobs = \"a.fio\"\n", "")
            .replace("[disk]", guests)
            .replace("disk.write_us", "guests.log.flush_us");
        let text = text.replace("a.iops", "users2.tpm");
        let s = Scenario::parse("x.toml", &text).unwrap();
        assert_eq!(s.constant("guests.log.flush_us"), Some(100.0));
        let error = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            Scenario::parse("x.toml", &text.replacen(from, to, 1)).expect_err("wrong").to_string()
        };
        assert!(error("writes = 1", "writes = 0").ends_with("reads = 0, writes = 0: one must be 1 or more"));
        assert!(error("flush_us = 100", "flush_us = -1").ends_with("log: -1 us: must be 0..=1e6"));
        assert!(error("awake_us = 8", "awake_us = 2e6").ends_with("main_loop: 2000000 us: must be 0..=1e6"));
        let groups = error("l3_cores = 2", "l3_cores = 3");
        assert!(groups.ends_with("l3_cores = 3: must divide the 4 CPUs of the host evenly"), "{groups}");
        let pct = error("[guests]", "[costs.path]\nsibling_pct = 0\n[guests]");
        assert!(pct.ends_with("sibling_pct = 0: must be 1..=100 percent"), "{pct}");
    }

    #[test]
    fn errors_name_line_rule_and_value() {
        assert!(
            error("cores = 4", "cors = 4").starts_with("x.toml:6: unknown field `cors`"),
            "{}",
            error("cores", "cors")
        );
        assert_eq!(error("cores = 4", "cores = 0"), "x.toml:6: cores = 0: must be 1 or more");
        assert_eq!(error("write_us = 200", "write_us = -1"), "x.toml:11: write_us = -1: must be 0..=1e9 microseconds");
        assert_eq!(
            error("\"a.iops\" = 1000", "\"a.iop\" = 1000"),
            "x.toml:21: 'a.iop': unknown metric 'iop', must be one of iops, bw, lat_us, p50_us, p99_us, tps, commit_us, tpm, idle_pct; did \
             you mean 'iops'?"
        );
        assert_eq!(
            error("range = [100, 300]", "range = [10, 30]"),
            "x.toml:13: disk.write_us = 200: outside its plausible range 10 to 30"
        );
        assert_eq!(
            error("row = \"one\"", "row = \"ones\""),
            "x.toml:14: row = 'ones': there is no such row; did you mean 'one'?"
        );
        assert!(error("sockets = 1", "sockets = ").starts_with("x.toml:5: "));
        assert_eq!(
            error("[[row]]", "[over_rows]\n\"a.iops\" = 2\n[[row]]"),
            "x.toml:18: [over_rows]: needs a row with 'against' to compute changes from"
        );
        let zero = error("[[row]]", "[over_rows]\n\"a.bw\" = 0\n[[row]]");
        assert_eq!(zero, "x.toml:19: a.bw = 0: must be above 0");
    }
}
