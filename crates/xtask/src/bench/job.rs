// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fills the blanks of a job text, and reads the figures in fio's JSON result.
//!
//! Guarantees: no blank is left over. An unknown blank panics, because rows are part of this program and not input. A result without
//! a required figure is an error that names the missing field.

use serde::Serialize;
use serde_json::Value;

/// The values for the blanks of a job or an argument.
#[derive(Clone)]
pub struct Placeholders {
    /// `{limit}`: the lines that limit the job, by time or by number of I/Os.
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
    /// Returns `text` with every blank filled. `extra` is the value of `{extra}`.
    ///
    /// # Panics
    /// When a blank is left: a row names a blank that does not exist, or more CPUs than the row requires.
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
    /// Figures of a server without clients. They replace the three above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<Idle>,
    /// Figures of layers of `blk`. They replace the first three.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<Layers>,
    /// Additional figures of a disk of several paths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paths: Option<Paths>,
    /// Additional figures of readers and a writer that run at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mixed: Option<Mixed>,
    /// Additional figures of a disk that lost a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall: Option<Stall>,
}

/// Rates of readers and a writer that run at the same time.
#[derive(Debug, Clone, Copy, Serialize, PartialEq)]
pub struct Mixed {
    /// Million bytes read per second.
    pub read_mb: f64,
    /// Writes per second.
    pub write_iops: f64,
}

/// Latency and path shares under a path selector.
#[derive(Debug, Clone, Serialize, PartialEq)]
pub struct Paths {
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile of the latency.
    pub p99_us: f64,
    /// What each path carried, in percent of the I/Os.
    pub share_percent: Vec<f64>,
}

/// The effect of a lost path on I/O.
#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct Stall {
    /// Longest time without a completion before the path was pulled. All times are in milliseconds.
    pub gap_before_ms: u64,
    /// The same from when the path was pulled until it was back.
    pub gap_ms: u64,
    /// That gap ended only after the path was back.
    pub is_cut_short: bool,
    /// Longest time without a completion after the path was back. `None`: the path was never away.
    pub gap_back_ms: Option<u64>,
    /// Longest latency among the I/Os that completed after the path was pulled.
    pub longest_ms: f64,
    /// I/O errors, and blocks that do not hold what was written last.
    pub errors: u64,
    /// The settings that these times depend on, in seconds.
    pub settings: String,
}

/// The figures of layers of `blk` over a disk that does nothing.
#[derive(Debug, Clone, Copy, Serialize, serde::Deserialize, PartialEq)]
pub struct Layers {
    /// Nanoseconds of an I/O without the layers, one at a time.
    pub plain_ns: f64,
    /// Additional nanoseconds with the layers.
    pub added_ns: f64,
    /// The same in batches of 32.
    pub plain_ns_32: f64,
    /// Additional nanoseconds with the layers.
    pub added_ns_32: f64,
    /// Rate of two threads with a disk each, divided by the rate of one thread.
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
        // Both CPU figures are percentages of the job's run time, which is in milliseconds.
        let percent = |field| job[field].as_f64().ok_or_else(|| missing(field));
        let share = (percent("usr_cpu")? + percent("sys_cpu")?) / 100.0;
        cpu_us += share * percent("job_runtime")? * 1000.0;
    }
    if total_ios == 0 {
        return Err("the run did no I/O".to_owned());
    }
    Ok(Figures { iops, total_ios, cpu_us_per_io: cpu_us / total_ios as f64, ..Figures::default() })
}

/// Returns the I/Os per second over the whole run, from the output of iscsi-perf.
pub fn iscsi_perf(stdout: &str) -> Option<f64> {
    let mut lines = stdout.lines().flat_map(|line| line.split('\r'));
    let all = lines.find_map(|line| line.trim().strip_prefix("iops average "))?;
    all.split_whitespace().next()?.parse().ok().filter(|iops| *iops > 0.0)
}

/// Returns the JSON in what a program printed. fio may print a note before it.
///
/// # Errors
/// When there is none.
pub fn parse(stdout: &str) -> Result<Value, String> {
    let start = stdout.find('{').ok_or("no JSON on standard output")?;
    serde_json::from_str(&stdout[start..]).map_err(|e| format!("JSON cannot be read: {e}"))
}

/// Returns the jobs of a result without the fields that are zero throughout, as they are stored with a run.
pub fn kept(mut result: Value) -> Value {
    let mut jobs = result["jobs"].take();
    prune(&mut jobs);
    jobs
}

/// Removes zeros. Returns whether anything is left.
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
