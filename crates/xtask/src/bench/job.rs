// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Filling the blanks of a job text, and reading the result fio's JSON gives.
//!
//! Guarantees: no blank is left over (an unknown one panics: rows are ours, not input); a result
//! without the figures asked for is an error that names the missing field.

use serde::Serialize;
use serde_json::Value;

/// What the blanks of a job or an argument stand for.
#[derive(Clone)]
pub struct Placeholders {
    /// `{limit}`: what ends the job.
    pub limit: String,
    /// `{cpu0}` and `{cpu1}`.
    pub cpus: Vec<usize>,
    /// `{file}`.
    pub file: String,
    /// `{size}` of the file in bytes.
    pub size: u64,
    /// `{engine}`, as fio's `ioengine` wants it.
    pub engine: String,
    /// `{nbd}`, a socket.
    pub nbd: String,
    /// `{iscsi}`, a URL.
    pub iscsi: String,
    /// `{ceph}`, a directory.
    pub ceph: String,
    /// `{loop}`, a block device.
    pub loop_device: String,
}

impl Placeholders {
    /// `text` with every blank filled; `extra` is what `{extra}` stands for.
    ///
    /// # Panics
    /// When a blank is left: a row names one that does not exist, or more CPUs than it asked for.
    pub fn fill(&self, text: &str, extra: &str) -> String {
        let mut filled = text
            .replace("{limit}", &self.limit)
            .replace("{extra}", extra)
            .replace("{file}", &self.file)
            .replace("{size}", &self.size.to_string())
            .replace("{engine}", &self.engine)
            .replace("{nbd}", &self.nbd)
            .replace("{iscsi}", &self.iscsi)
            .replace("{ceph}", &self.ceph)
            .replace("{loop}", &self.loop_device);
        for (index, cpu) in self.cpus.iter().enumerate() {
            filled = filled.replace(&format!("{{cpu{index}}}"), &cpu.to_string());
        }
        assert!(!filled.contains('{'), "a blank is left in {filled:?}");
        filled
    }
}

/// The figures of one run.
#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct Figures {
    /// I/Os per second, all jobs and directions.
    pub iops: f64,
    /// I/Os done.
    pub total_ios: u64,
    /// User and system time per I/O in microseconds, from the program's own report.
    pub cpu_us_per_io: f64,
    /// Instead of all that, of a server without clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<Idle>,
    /// Instead of all that, of layers of `blk`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<Layers>,
    /// Beside all that, of a disk of several paths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paths: Option<Paths>,
    /// Beside all that, of readers with a writer beside them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mixed: Option<Mixed>,
    /// Beside all that, of a disk that a path was pulled from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall: Option<Stall>,
}

/// What readers and a writer beside each other do.
#[derive(Debug, Clone, Copy, Serialize, PartialEq)]
pub struct Mixed {
    /// Million bytes read per second.
    pub read_mb: f64,
    /// Writes per second.
    pub write_iops: f64,
}

/// What a selector makes of paths.
#[derive(Debug, Clone, Serialize, PartialEq)]
pub struct Paths {
    /// Half of the I/Os take no longer.
    pub p50_us: f64,
    /// 99 of 100 take no longer.
    pub p99_us: f64,
    /// What each path carried, in percent of the I/Os.
    pub share_percent: Vec<f64>,
}

/// What a user sees of a path that is pulled.
#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct Stall {
    /// Longest time without the end of an I/O before anything happened, milliseconds as all of them.
    pub gap_before_ms: u64,
    /// The same from when the path was away.
    pub gap_ms: u64,
    /// The path's return ended it.
    pub is_cut_short: bool,
    /// The same from when the path was back; `None`: it was never away.
    pub gap_back_ms: Option<u64>,
    /// Of the I/O that took longest of those that ended after the path was away.
    pub longest_ms: f64,
    /// I/O errors, and blocks that were not what was written last.
    pub errors: u64,
    /// Settings that the times depend on; seconds.
    pub settings: String,
}

/// The figures of layers of `blk` over a disk that does nothing.
#[derive(Debug, Clone, Copy, Serialize, serde::Deserialize, PartialEq)]
pub struct Layers {
    /// Nanoseconds of an I/O without the layers, one at a time.
    pub plain_ns: f64,
    /// Nanoseconds more with them.
    pub added_ns: f64,
    /// The same in batches of 32.
    pub plain_ns_32: f64,
    /// Nanoseconds more with them.
    pub added_ns_32: f64,
    /// What two threads on a disk each do, in terms of one alone.
    pub scaling: f64,
    /// The same without the layers.
    pub plain_scaling: f64,
}

/// The figures of a server without clients.
#[derive(Debug, Clone, Copy, Serialize, PartialEq)]
pub struct Idle {
    /// Percent of a CPU.
    pub cpu_percent: f64,
    /// Memory that is resident.
    pub resident_mb: f64,
}

/// Reads the figures from fio's JSON layout.
///
/// # Errors
/// When a job reports an error, did nothing, or lacks a field.
pub fn figures(result: &Value) -> Result<Figures, String> {
    let jobs = result["jobs"].as_array().ok_or("no `jobs` in the result")?;
    let (mut iops, mut total_ios, mut cpu_us) = (0.0, 0, 0.0);
    for job in jobs {
        let name = job["jobname"].as_str().unwrap_or("?");
        let missing = |field: &str| format!("no `{field}` in job '{name}' of the result");
        if job["error"].as_i64() != Some(0) {
            return Err(format!("job '{name}' reports error {}", job["error"]));
        }
        for direction in ["read", "write", "trim"] {
            let direction = &job[direction];
            iops += direction["iops"].as_f64().unwrap_or(0.0);
            total_ios += direction["total_ios"].as_u64().unwrap_or(0);
        }
        // Both are percentages of the time this job ran, which is in milliseconds.
        let percent = |field| job[field].as_f64().ok_or_else(|| missing(field));
        let share = (percent("usr_cpu")? + percent("sys_cpu")?) / 100.0;
        cpu_us += share * percent("job_runtime")? * 1000.0;
    }
    if total_ios == 0 {
        return Err("the run did no I/O".to_owned());
    }
    Ok(Figures { iops, total_ios, cpu_us_per_io: cpu_us / total_ios as f64, ..Figures::default() })
}

/// I/Os per second in what iscsi-perf printed: those over all of its time.
pub fn iscsi_perf(stdout: &str) -> Option<f64> {
    let mut lines = stdout.lines().flat_map(|line| line.split('\r'));
    let all = lines.find_map(|line| line.trim().strip_prefix("iops average "))?;
    all.split_whitespace().next()?.parse().ok().filter(|iops| *iops > 0.0)
}

/// The JSON in what a program printed: fio may say a note before it.
///
/// # Errors
/// When there is none.
pub fn parse(stdout: &str) -> Result<Value, String> {
    let start = stdout.find('{').ok_or("no JSON on standard output")?;
    serde_json::from_str(&stdout[start..]).map_err(|e| format!("JSON cannot be read: {e}"))
}

/// The jobs of a result without what is zero throughout: what is worth keeping of one run.
pub fn kept(mut result: Value) -> Value {
    let mut jobs = result["jobs"].take();
    prune(&mut jobs);
    jobs
}

/// Removes zeros; says whether anything is left.
fn prune(value: &mut Value) -> bool {
    match value {
        Value::Object(map) => {
            map.retain(|_, inner| prune(inner));
            !map.is_empty()
        }
        Value::Array(items) => {
            items.retain_mut(prune);
            !items.is_empty()
        }
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Null => false,
        Value::Bool(_) | Value::String(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn blanks() -> Placeholders {
        let (engine, nbd) = ("external:e.so".into(), "n.sock".into());
        let (iscsi, ceph, loop_device) = (String::new(), String::new(), String::new());
        Placeholders {
            limit: "number_ios=10".into(),
            cpus: vec![3],
            file: "x.dat".into(),
            size: 4096,
            engine,
            nbd,
            iscsi,
            ceph,
            loop_device,
        }
    }

    #[test]
    fn blanks_are_filled() {
        let text = "{limit}\n{extra}\nfilename={file}\nsize={size}\ncpus_allowed={cpu0}";
        let want = "number_ios=10\na=1\nfilename=x.dat\nsize=4096\ncpus_allowed=3";
        assert_eq!(blanks().fill(text, "a=1"), want);
        assert_eq!(blanks().fill("{extra}", "ioengine={engine}\nuri={nbd}"), "ioengine=external:e.so\nuri=n.sock");
    }

    #[test]
    #[should_panic(expected = "a blank is left")]
    fn an_unfilled_placeholder_is_a_mistake_in_the_row() {
        blanks().fill("cpus_allowed={cpu1}", "");
    }

    #[test]
    fn figures_add_up_over_jobs_and_directions() {
        let job = |iops: f64, ios: u64| {
            json!({"jobname": "a", "error": 0, "job_runtime": 2000, "usr_cpu": 30.0,
                   "sys_cpu": 20.0, "read": {"iops": iops, "total_ios": ios},
                   "write": {"iops": 1.0, "total_ios": 2}})
        };
        let result = json!({"jobs": [job(100.0, 998), job(50.0, 998)]});
        let want = Figures { iops: 152.0, total_ios: 2000, cpu_us_per_io: 1000.0, ..Figures::default() };
        assert_eq!(figures(&result), Ok(want));
    }

    #[test]
    fn a_result_that_shows_nothing_is_refused() {
        let idle = json!({"jobname": "a", "error": 0, "job_runtime": 1, "usr_cpu": 0.0,
                          "sys_cpu": 0.0});
        for (jobs, why) in [
            (json!([idle]), "no I/O"),
            (json!([{"jobname": "a", "error": 5}]), "error 5"),
            (json!([{"jobname": "a", "error": 0}]), "usr_cpu"),
        ] {
            let error = figures(&json!({ "jobs": jobs })).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert!(figures(&json!({})).is_err());
    }

    #[test]
    fn a_note_before_the_json_is_passed_over() {
        assert_eq!(parse("note: x\n{\"a\": 1}").unwrap()["a"], 1);
        assert!(parse("nothing").is_err());
        assert!(parse("{\"a\":").is_err());
    }

    #[test]
    fn iscsi_perf_says_its_figure_last() {
        let said = "will run for 2 seconds.\n\n\r00:00:01 - lba 1, iops current 35401 (138 MB/s), iops average 35401 (138 MB/s), \
                    in_flight 32, busy 0\riops average 42833 (167 MB/s)      \n\nfinished.\n";
        assert_eq!(iscsi_perf(said), Some(42833.0));
        assert_eq!(iscsi_perf("Failed to login\n"), None);
        assert_eq!(iscsi_perf("iops average 0 (0 MB/s)\n"), None);
    }

    #[test]
    fn zeros_are_not_kept() {
        let job = json!({"a": 0, "b": {"c": 0.0}, "d": [0, 2], "e": "x", "f": {"g": 1}});
        let want = json!([{"d": [2], "e": "x", "f": {"g": 1}}]);
        assert_eq!(kept(json!({"jobs": [job], "other": 1})), want);
    }
}
