// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A question: `KEY=VALUE[,KEY=VALUE...]`. Keys are settings of the block layer, paths in the machine file, and options of
//! the jobs.
//!
//! Guarantees: an unknown key is rejected with the nearest known one. A known key for which the simulator has no model is
//! no error: the answer is then "cannot tell", with the reason.

use crate::scenario::file::{Attach, Row, Scalar, Scenario};
use blk::settings::{QueueConfig, SETTINGS};
use blk::suggest::nearest;
use toml::Value;

/// The machine with the changes of a question.
#[derive(Clone, Debug)]
pub struct Variant {
    /// The machine, with the changes to its file.
    pub scenario: Scenario,
    /// The settings; the name of the row is the question.
    pub row: Row,
    /// Options of all jobs.
    pub job: Vec<(String, String)>,
    /// Constants that the question sets, so their values are known.
    pub places: Vec<String>,
    /// Reasons for which there is no answer.
    pub cannot: Vec<String>,
}

impl Variant {
    /// The machine without changes.
    pub fn as_it_is(scenario: &Scenario) -> Variant {
        let row = Row::named("as it is");
        Variant { scenario: scenario.clone(), row, job: Vec::new(), places: Vec::new(), cannot: Vec::new() }
    }
}

/// Tables of a machine file whose fields a question may set.
const TABLES: [&str; 4] = ["disk", "machine", "costs", "guests"];

/// Names that are neither settings of ours nor modelled, each with the reason.
const NOT_SIMULATED: [(&str, &str); 12] = [
    ("read_ahead_kb", "read-ahead happens in the page cache, which is not simulated"),
    ("io_timeout", "no request of a simulated disk takes that long"),
    ("iostats", "counting costs a simulated machine no time"),
    ("nr_poll_queues", "polled completions are not simulated"),
    ("io_poll", "polled completions are not simulated"),
    ("write_cache", "it tells the kernel whether to flush; for the drive's own cache, ask disk.hdd.write_cache=false"),
    ("rotational", "it only tells other programs the kind of disk"),
    ("filesystem", "file systems are not simulated"),
    ("fs", "file systems are not simulated"),
    ("mount", "file systems are not simulated"),
    ("vm.dirty_ratio", "the page cache is not simulated"),
    ("cpufreq", "power states of CPUs are not simulated"),
];

/// Reads a question about a machine; `table` is the machine's file.
///
/// # Errors
/// A key that is unknown, or a value that is not valid.
pub fn read(text: &str, machine: &Scenario, table: &toml::Table) -> Result<Variant, String> {
    let mut v = Variant::as_it_is(machine);
    v.row.name = text.to_owned();
    let mut table = table.clone();
    for part in text.split(',') {
        let Some((key, value)) = part.split_once('=').map(|(k, v)| (k.trim(), v.trim())) else {
            return Err(format!("'{part}': must be KEY=VALUE, such as nr_hw_queues=8 or disk.read_us=80"));
        };
        if key.is_empty() || value.is_empty() {
            return Err(format!("'{part}': must be KEY=VALUE, such as nr_hw_queues=8 or disk.read_us=80"));
        }
        one(&mut v, &mut table, key, value)?;
    }
    if !v.places.is_empty() {
        v.scenario = Value::Table(table).try_into().map_err(|e: toml::de::Error| one_line(e.message()))?;
        v.scenario.recheck()?;
    }
    if v.row.set.contains_key("scheduler") {
        // As in the kernel, a new elevator begins with its own values.
        v.scenario.settings.retain(|name, _| name != "nr_requests" && !name.starts_with("iosched."));
    }
    let attach = v.scenario.disk.attach;
    if attach == Attach::Scsi && v.row.set.contains_key("queue_depth") {
        return Err(
            "queue_depth: for a SCSI disk use lun_queue_depth (the LUN) or disk.queue_depth (the host's queues)".into(),
        );
    }
    Ok(v)
}

/// As [`read`], for a machine whose file has the text `file`.
///
/// # Errors
/// The errors of [`read`], or a `file` that is not TOML.
pub fn read_in(text: &str, machine: &Scenario, file: &str) -> Result<Variant, String> {
    let table: toml::Table = file.parse().map_err(|e: toml::de::Error| one_line(e.message()))?;
    read(text, machine, &table)
}

fn one(v: &mut Variant, table: &mut toml::Table, key: &str, value: &str) -> Result<(), String> {
    if let Some((_, why)) = NOT_SIMULATED.iter().find(|(name, _)| *name == key) {
        v.cannot.push(format!("{key}: {why}"));
        return Ok(());
    }
    if let Some(option) = key.strip_prefix("job.") {
        if matches!(option, "direct" | "buffered") {
            v.cannot.push(format!("{key}: the page cache is not simulated"));
        }
        v.job.push((option.to_owned(), value.to_owned()));
        return Ok(());
    }
    if key == "iothreads" || key == "vms" {
        let n = value.parse::<u32>().ok().filter(|n| *n <= 1024 && (*n > 0 || key == "iothreads"));
        let n = n.ok_or_else(|| format!("{key}={value}: must be {}..=1024", u32::from(key == "vms")))?;
        if v.scenario.guests.is_none() {
            v.cannot.push(format!(
                "{key}: IOThreads serve virtual machines, and this machine has no [guests]; jobs on the host \
                 bypass them"
            ));
        } else if key == "vms" {
            v.row.vms = Some(n);
        } else {
            v.row.iothreads = Some(n);
        }
        return Ok(());
    }
    let key = if key == "lun_queue_depth" { "disk.lun_queue_depth" } else { key };
    if let Some((name, field)) = key.split_once('.').filter(|(t, _)| TABLES.contains(t)) {
        if key == "disk.lun_queue_depth" && v.scenario.disk.attach != Attach::Scsi {
            return Err(format!(
                "{key}={value}: only a disk with attach = \"scsi\" has one; did you mean queue_depth?"
            ));
        }
        if name == "guests" && v.scenario.guests.is_none() {
            v.cannot.push(format!("{key}: this machine has no virtual machines ([guests])"));
            return Ok(());
        }
        v.places.push(key.to_owned());
        return put(table, name, field, value);
    }
    setting(v, key, value)
}

/// Applies a setting of the block layer, or a module parameter that sets one.
fn setting(v: &mut Variant, key: &str, value: &str) -> Result<(), String> {
    let is_parameter = crate::scenario::effect::of(key, value, v.scenario.disk.attach).is_some();
    if !is_parameter {
        let known = key.starts_with("iosched.") || SETTINGS.iter().any(|s| s.name == key);
        if !known {
            let others =
                ["iothreads", "vms", "lun_queue_depth", "scsi_mod.use_blk_mq", "disk.read_us", "disk.write_us"];
            let all = SETTINGS.iter().map(|s| s.name).chain(others);
            let hint = nearest(key, all).map_or_else(
                || "must be a setting of the block layer, disk.FIELD, machine.FIELD, costs.path.FIELD, job.OPTION, iothreads or vms".into(),
                |n| format!("did you mean '{n}'?"),
            );
            return Err(format!("{key}: unknown name; {hint}"));
        }
        QueueConfig::default().set(key, value).map_err(|e| e.to_string())?;
    }
    let scalar = value.parse().map_or_else(|_| Scalar::Word(value.to_owned()), Scalar::Number);
    v.row.set.insert(key.to_owned(), scalar);
    Ok(())
}

/// Sets a value at its path in the file.
fn put(table: &mut toml::Table, name: &str, field: &str, value: &str) -> Result<(), String> {
    let value = match (value.parse::<i64>(), value.parse::<f64>(), value) {
        (Ok(n), ..) => Value::Integer(n),
        (_, Ok(x), _) if x.is_finite() => Value::Float(x),
        (.., "true" | "false") => Value::Boolean(value == "true"),
        _ => Value::String(value.to_owned()),
    };
    let mut at = table.entry(name).or_insert_with(|| Value::Table(toml::Table::new()));
    let mut parts: Vec<&str> = field.split('.').collect();
    let last = parts.pop().expect("split gives one");
    for part in parts {
        let inner = at.as_table_mut().ok_or_else(|| format!("{name}.{field}: the part before '{part}' is no table"))?;
        at = inner.entry(part).or_insert_with(|| Value::Table(toml::Table::new()));
    }
    at.as_table_mut()
        .ok_or_else(|| format!("{name}.{field}: the part before '{last}' is no table"))?
        .insert(last.to_owned(), value);
    Ok(())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use blk::qos::rates::LIMIT_NAMES;

    /// Settings that the simulated block layer uses, in addition to [`LIMIT_NAMES`].
    const SIMULATED: [&str; 12] = [
        "mode",
        "nr_hw_queues",
        "nr_read_queues",
        "queue_depth",
        "reserved_tags",
        "host_tagset",
        "nr_requests",
        "scheduler",
        "nomerges",
        "rq_affinity",
        "max_sectors_kb",
        "wbt_lat_usec",
    ];

    /// Settings that the machine's file has instead, so they are rejected.
    const REFUSED: [&str; 1] = ["nr_cpus"];

    #[test]
    fn each_setting_is_simulated_or_listed_with_a_reason() {
        for s in SETTINGS {
            let simulated = [&SIMULATED[..], &LIMIT_NAMES, &REFUSED].iter().any(|list| list.contains(&s.name));
            let listed = NOT_SIMULATED.iter().any(|(name, why)| *name == s.name && !why.is_empty());
            assert!(simulated != listed, "{}: must be either in SIMULATED or in NOT_SIMULATED", s.name);
        }
        let file = include_str!("../../../../scenarios/azure-p80.toml");
        let machine = Scenario::parse("azure-p80.toml", file).unwrap();
        for name in REFUSED {
            let asked = read_in(&format!("{name}=2"), &machine, file).unwrap();
            let refused = crate::scenario::build::check(&asked.scenario, &asked.row).map(drop).unwrap_err();
            assert!(refused.0.contains("change it there"), "{refused}");
        }
    }
}
