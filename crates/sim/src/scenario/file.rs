// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file of a scenario: its fields, their ranges, and errors that name the line.

use crate::machine::costs::{Costs, Shape};
use blk::suggest::nearest;
use serde::Deserialize;
use std::collections::BTreeMap;
use thiserror::Error;

/// What is wrong with a scenario, and where.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("{}{}: {text}", file, line.map_or(String::new(), |l| format!(":{l}")))]
pub struct ScenarioError {
    /// The file.
    pub file: String,
    /// The line, from 1, where there is one.
    pub line: Option<usize>,
    /// The rule, the value, and what to do.
    pub text: String,
}

/// A value as settings have it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Scalar {
    /// A number.
    Number(i64),
    /// A word.
    Word(String),
    /// Yes or no.
    Flag(bool),
}

impl Scalar {
    /// As `--set` takes it.
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

/// How a disk is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attach {
    /// A driver of its own with hardware queues: NVMe, virtio-blk.
    #[default]
    Direct,
    /// Through the SCSI midlayer.
    Scsi,
    /// eMMC or an SD card: a driver of its own with one queue.
    Mmc,
}

/// The disk.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// How it is attached.
    #[serde(default)]
    pub attach: Attach,
    /// Its size.
    pub size_gib: u64,
    /// Time a read is in service, microseconds.
    pub read_us: f64,
    /// Time any other I/O is, microseconds.
    pub write_us: f64,
    /// Each of these times is spread by up to this much either way, percent.
    #[serde(default)]
    pub jitter_pct: u32,
    /// Most I/Os per second; 0 = no cap.
    #[serde(default)]
    pub iops: u64,
    /// Most bytes per second, in units of a million; 0 = no cap.
    #[serde(default)]
    pub bw_mb: f64,
    /// What the caps let through after a pause, as time.
    #[serde(default = "one")]
    pub burst_ms: u64,
    /// I/Os in service at once.
    #[serde(default = "parallel")]
    pub parallel: u32,
    /// Reads and writes have caps and service of their own: reads come from a cache in front of what takes the writes.
    #[serde(default)]
    pub split: bool,
    /// SCSI: commands the LUN may have.
    pub lun_queue_depth: Option<u32>,
    /// SCSI: commands of each hardware queue of the host; else: tags of each hardware queue.
    #[serde(default = "queue_depth")]
    pub queue_depth: u32,
}

fn one() -> u64 {
    1
}

fn parallel() -> u32 {
    65_536
}

fn queue_depth() -> u32 {
    1024
}

/// A constant that was chosen so that a published figure comes out.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fitted {
    /// Which constant: its place in the file.
    pub constant: String,
    /// The row and the figure.
    pub row: String,
    /// The figure, as `job.metric`.
    pub figure: String,
    /// What is plausible.
    pub range: [f64; 2],
    /// What it is physically, and where the range is from.
    pub meaning: String,
}

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// What it is called.
    pub name: String,
    /// Settings that are its own.
    #[serde(default)]
    pub set: Settings,
    /// Options of all jobs that are its own.
    #[serde(default)]
    pub job: BTreeMap<String, Scalar>,
    /// What the CPUs' work costs in it, where that is another.
    #[serde(default)]
    pub costs: Option<Costs>,
    /// What was published, by `job.metric`.
    #[serde(default)]
    pub published: BTreeMap<String, f64>,
}

/// A scenario.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it is about, in a line.
    pub title: String,
    /// Who published it, and where.
    pub source: String,
    /// The job file, beside this file.
    pub jobs: String,
    /// CPUs.
    pub machine: Shape,
    /// What their work costs.
    #[serde(default)]
    pub costs: Costs,
    /// The disk.
    pub disk: Disk,
    /// Settings of all rows.
    #[serde(default)]
    pub settings: Settings,
    /// Constants that were fitted.
    #[serde(default)]
    pub fitted: Vec<Fitted>,
    /// Figures that were published and are not of the disk, with what they are.
    #[serde(default)]
    pub beside: Vec<String>,
    /// Rows.
    pub row: Vec<Row>,
}

/// Figures of a job that can be published and simulated.
pub const METRICS: [&str; 7] = ["iops", "bw", "lat_us", "p50_us", "p99_us", "tps", "commit_us"];

impl Scenario {
    /// Reads the text of `file`.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line.
    pub fn parse(file: &str, text: &str) -> Result<Scenario, ScenarioError> {
        let scenario: Scenario = toml::from_str(text).map_err(|e| {
            let line = e.span().map(|s| line_at(text, s.start));
            ScenarioError { file: file.into(), line, text: e.message().trim().to_owned() }
        })?;
        scenario.check().map_err(|(place, why)| ScenarioError {
            file: file.into(),
            line: find(text, &place),
            text: why,
        })?;
        Ok(scenario)
    }

    /// The rules beyond the types: the place that breaks one, and which.
    fn check(&self) -> Result<(), (String, String)> {
        let bad = |place: &str, why: String| Err((place.to_owned(), why));
        let Shape { sockets, cores, threads } = self.machine;
        for (name, n) in [("sockets", sockets), ("cores", cores), ("threads", threads)] {
            if n == 0 {
                return bad(name, format!("{name} = 0: must be 1 or more"));
            }
        }
        if self.machine.cpus() > u32::from(blk::id::MAX_CPUS) {
            let (n, most) = (self.machine.cpus(), blk::id::MAX_CPUS);
            return bad("[machine]", format!("{n} CPUs: must be at most {most}; lower sockets, cores or threads"));
        }
        let d = &self.disk;
        if d.size_gib == 0 || d.size_gib > 1 << 20 {
            return bad("size_gib", format!("size_gib = {}: must be 1..={}", d.size_gib, 1 << 20));
        }
        for (name, us) in [("read_us", d.read_us), ("write_us", d.write_us)] {
            if !(0.0..=1e9).contains(&us) {
                return bad(name, format!("{name} = {us}: must be 0..=1e9 microseconds"));
            }
        }
        if d.jitter_pct > 100 {
            return bad("jitter_pct", format!("jitter_pct = {}: must be 0..=100", d.jitter_pct));
        }
        if d.parallel == 0 || d.parallel > parallel() {
            return bad("parallel", format!("parallel = {}: must be 1..={}", d.parallel, parallel()));
        }
        if !(0.0..=1e9).contains(&d.bw_mb) {
            return bad("bw_mb", format!("bw_mb = {}: must be 0..=1e9 million bytes per second", d.bw_mb));
        }
        if d.lun_queue_depth.is_some() && d.attach != Attach::Scsi {
            return bad("lun_queue_depth", "lun_queue_depth: only a disk with attach = \"scsi\" has one".into());
        }
        if self.row.is_empty() {
            return bad("[[row]]", "there is no [[row]]: a scenario has at least one".into());
        }
        self.check_rows()
    }

    fn check_rows(&self) -> Result<(), (String, String)> {
        for (i, row) in self.row.iter().enumerate() {
            let place = format!("name = \"{}\"", row.name);
            if self.row[..i].iter().any(|r| r.name == row.name) {
                return Err((place, format!("two rows are called '{}': rename one", row.name)));
            }
            for (figure, value) in &row.published {
                check_figure(figure).map_err(|why| (format!("\"{figure}\""), why))?;
                if !value.is_finite() || *value <= 0.0 {
                    return Err((format!("\"{figure}\""), format!("{figure} = {value}: must be above 0")));
                }
            }
        }
        for f in &self.fitted {
            let place = format!("constant = \"{}\"", f.constant);
            let Some(row) = self.row.iter().find(|r| r.name == f.row) else {
                let names = self.row.iter().map(|r| r.name.as_str());
                let hint = nearest(&f.row, names).map_or(String::new(), |n| format!("; did you mean '{n}'?"));
                return Err((place, format!("row = '{}': there is no such row{hint}", f.row)));
            };
            if !row.published.contains_key(&f.figure) {
                return Err((place, format!("figure = '{}': row '{}' has published no such figure", f.figure, f.row)));
            }
            let Some(value) = self.constant(&f.constant) else {
                let known = CONSTANTS.join(", ");
                return Err((place, format!("constant = '{}': must be one of {known}", f.constant)));
            };
            let [low, high] = f.range;
            if !(low..=high).contains(&value) {
                return Err((place, format!("{} = {value}: outside its plausible range {low} to {high}", f.constant)));
            }
        }
        Ok(())
    }

    /// A constant that can be fitted, by its place in the file.
    pub fn constant(&self, name: &str) -> Option<f64> {
        let (d, p, l) = (&self.disk, &self.costs.path, &self.costs.line);
        Some(match name {
            "disk.read_us" => d.read_us,
            "disk.write_us" => d.write_us,
            "disk.bw_mb" => d.bw_mb,
            "disk.iops" => d.iops as f64,
            "costs.path.app_ns" => f64::from(p.app_ns),
            "costs.path.submit_ns" => f64::from(p.submit_ns),
            "costs.path.hold_ns" => f64::from(p.hold_ns),
            "costs.line.lines" => f64::from(l.lines),
            _ => return None,
        })
    }

    /// Whether a published figure was used to choose a constant.
    pub fn is_fitted(&self, row: &str, figure: &str) -> bool {
        self.fitted.iter().any(|f| f.row == row && f.figure == figure)
    }
}

/// Names that [`Scenario::constant`] knows.
const CONSTANTS: [&str; 8] = [
    "disk.read_us",
    "disk.write_us",
    "disk.bw_mb",
    "disk.iops",
    "costs.path.app_ns",
    "costs.path.submit_ns",
    "costs.path.hold_ns",
    "costs.line.lines",
];

/// `job.metric`.
pub fn split_figure(figure: &str) -> Option<(&str, &str)> {
    figure.rsplit_once('.')
}

fn check_figure(figure: &str) -> Result<(), String> {
    let Some((_, metric)) = split_figure(figure) else {
        return Err(format!("'{figure}': must be JOB.METRIC, with METRIC one of {}", METRICS.join(", ")));
    };
    if METRICS.contains(&metric) {
        return Ok(());
    }
    let hint = nearest(metric, METRICS.iter().copied()).map_or(String::new(), |n| format!("; did you mean '{n}'?"));
    Err(format!("'{figure}': unknown metric '{metric}', must be one of {}{hint}", METRICS.join(", ")))
}

fn line_at(text: &str, byte: usize) -> usize {
    text.as_bytes()[..byte.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1
}

/// The first line that has `place` where a key or a table begins.
fn find(text: &str, place: &str) -> Option<usize> {
    let at = |l: &str| l.trim_start().starts_with(place);
    text.lines().position(at).or_else(|| text.lines().position(|l| l.contains(place))).map(|n| n + 1)
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
            "x.toml:13: figure = 'a.iops': row 'one' has published no such figure".replace("13", "21").replace(
                "figure = 'a.iops': row 'one' has published no such figure",
                "'a.iop': unknown metric 'iop', must be one of iops, bw, lat_us, p50_us, p99_us, tps, commit_us; did you \
                 mean 'iops'?"
            )
        );
        assert_eq!(
            error("range = [100, 300]", "range = [10, 30]"),
            "x.toml:13: disk.write_us = 200: outside its plausible range 10 to 30"
        );
        assert_eq!(
            error("row = \"one\"", "row = \"ones\""),
            "x.toml:13: row = 'ones': there is no such row; did you mean 'one'?"
        );
        assert!(error("sockets = 1", "sockets = ").starts_with("x.toml:5: "));
    }
}
