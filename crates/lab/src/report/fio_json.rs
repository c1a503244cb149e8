// SPDX-License-Identifier: Apache-2.0 OR MIT
//! fio's JSON layout (`--output-format=json` and `json+`), as fio 3.33 writes it, and one key of our own: `mqblk`.
//!
//! Guarantees: the keys, nesting, order, number format and white space are those of fio 3.33. So scripts written for fio's
//! JSON can read it (tests/it/fio_parity.rs compares key sets with the installed fio). Figures that fio does not have are
//! under `mqblk` at the top level. Does not: write keys of features we do not have (block infos).

use std::io;

use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, PrettyFormatter};
use workload::stats::{BATCH_NAMES, DEPTH_NAMES, Dir, LAT_MS_NAMES, LAT_NS_NAMES, LAT_US_NAMES};

use super::fio_model::{CpuIdleness, DirReport, DiskUtil, FioReport, JobReport, LatReport, PrioReport};
use super::num;
use super::oltp::OltpReport;
use super::steady_state::SteadyState;
use crate::iostat::Iostat;
use crate::simulated::Simulated;
use crate::stage::StageFacts;

/// fio's `eta` of a completed job: "unknown".
const ETA_UNKNOWN: i32 = i32::MAX;

/// The key `mqblk`: what fio does not report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MqblkKey {
    /// Version of the program.
    pub version: String,
    /// The target and its settings in effect, as `key=value`.
    pub settings: Vec<String>,
    /// Settings that were changed during the run, as `target: at TIME: ...`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// Stages, merges, hctx counts, costs; `None` when not measured.
    pub stages: Option<StageFacts>,
    /// Transactions of jobs that are transaction loops.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub oltp: Vec<OltpReport>,
    /// The kernel's counters, if the run used the kernel's devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub iostat: Vec<Iostat>,
    /// The machine that the run was simulated on. If present, all times are virtual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<Simulated>,
    /// The command that repeats the run.
    pub command: String,
}

/// The JSON text of a report. `plus` adds the histogram bins of json+; `mqblk` our own key.
pub fn render(r: &FioReport, plus: bool, mqblk: Option<&MqblkKey>) -> String {
    let mut out = Vec::new();
    let mut ser = serde_json::Serializer::with_formatter(&mut out, FioFormatter(PrettyFormatter::with_indent(b"  ")));
    Top::of(r, plus, mqblk).serialize(&mut ser).expect("plain data serialises into memory");
    out.push(b'\n');
    String::from_utf8(out).expect("JSON is UTF-8")
}

#[derive(Serialize)]
struct Top<'a> {
    #[serde(rename = "fio version")]
    version: &'a str,
    timestamp: u64,
    timestamp_ms: u64,
    time: String,
    #[serde(rename = "global options", skip_serializing_if = "Entries::is_empty")]
    global: Entries<&'a str, &'a str>,
    jobs: Vec<Job<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    disk_util: Vec<Disk<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_idleness: Option<Entries<String, f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mqblk: Option<&'a MqblkKey>,
}

impl<'a> Top<'a> {
    fn of(r: &'a FioReport, plus: bool, mqblk: Option<&'a MqblkKey>) -> Top<'a> {
        Top {
            version: &r.version,
            timestamp: r.unix_ms / 1000,
            timestamp_ms: r.unix_ms,
            time: num::ctime(r.unix_ms / 1000),
            global: options(&r.global_options),
            jobs: r.jobs.iter().map(|j| Job::of(j, plus)).collect(),
            disk_util: r.disk_util.iter().map(Disk::of).collect(),
            cpu_idleness: r.cpu_idleness.as_ref().map(idleness),
            mqblk,
        }
    }
}

#[derive(Serialize)]
struct Job<'a> {
    jobname: &'a str,
    groupid: u32,
    error: i32,
    eta: i32,
    elapsed: u64,
    #[serde(rename = "job options")]
    options: Entries<&'a str, &'a str>,
    read: Direction,
    write: Direction,
    trim: Direction,
    sync: Sync,
    job_runtime: u64,
    usr_cpu: f64,
    sys_cpu: f64,
    ctx: u64,
    majf: u64,
    minf: u64,
    iodepth_level: Entries<&'static str, f64>,
    iodepth_submit: Entries<&'static str, f64>,
    iodepth_complete: Entries<&'static str, f64>,
    latency_ns: Entries<&'static str, f64>,
    latency_us: Entries<&'static str, f64>,
    latency_ms: Entries<&'static str, f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_err: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_error: Option<i32>,
    latency_depth: u32,
    latency_target: u64,
    latency_percentile: f64,
    latency_window: u64,
    #[serde(skip_serializing_if = "str::is_empty")]
    desc: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    steadystate: Option<SteadyState>,
}

impl<'a> Job<'a> {
    fn of(j: &'a JobReport, plus: bool) -> Job<'a> {
        let [read, write, trim] = Dir::ALL.map(|d| Direction::of(j.dir(d), plus, j.prios_are_total));
        Job {
            jobname: &j.name,
            groupid: j.group_id,
            error: j.error,
            eta: ETA_UNKNOWN,
            elapsed: j.elapsed_s,
            options: options(&j.options),
            read,
            write,
            trim,
            sync: Sync { total_ios: j.sync_ios, lat_ns: Latency::of(&j.sync_lat, plus) },
            job_runtime: j.job_runtime_ms,
            usr_cpu: j.usr_cpu,
            sys_cpu: j.sys_cpu,
            ctx: j.ctx,
            majf: j.majf,
            minf: j.minf,
            iodepth_level: table(&DEPTH_NAMES, &j.iodepth_level),
            iodepth_submit: table(&BATCH_NAMES, &j.iodepth_submit),
            iodepth_complete: table(&BATCH_NAMES, &j.iodepth_complete),
            latency_ns: table(&LAT_NS_NAMES, &j.latency_ns),
            latency_us: table(&LAT_US_NAMES, &j.latency_us),
            latency_ms: table(&LAT_MS_NAMES, &j.latency_ms),
            total_err: j.errors.as_ref().map(|e| e.0),
            first_error: j.errors.as_ref().map(|e| e.1),
            latency_depth: j.latency_depth,
            latency_target: j.latency_goal.map_or(0, |goal| goal.target_ns),
            latency_percentile: j.latency_goal.map_or(100.0, |goal| goal.percentile),
            latency_window: j.latency_goal.map_or(0, |goal| goal.window_ns / 1000),
            desc: &j.description,
            steadystate: j.steady.as_ref().map(SteadyState::of),
        }
    }
}

#[derive(Serialize)]
struct Direction {
    io_bytes: u64,
    io_kbytes: u64,
    bw_bytes: u64,
    bw: u64,
    iops: f64,
    runtime: u64,
    total_ios: u64,
    short_ios: u64,
    drop_ios: u64,
    slat_ns: Latency,
    clat_ns: Latency,
    lat_ns: Latency,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    prios: Vec<Priority>,
    bw_min: u64,
    bw_max: u64,
    bw_agg: f64,
    bw_mean: f64,
    bw_dev: f64,
    bw_samples: u64,
    iops_min: u64,
    iops_max: u64,
    iops_mean: f64,
    iops_stddev: f64,
    iops_samples: u64,
}

/// The statistics of a priority. Only one of the latencies is there.
#[derive(Serialize)]
struct Priority {
    prioclass: u8,
    prio: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    lat_ns: Option<Latency>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clat_ns: Option<Latency>,
}

impl Priority {
    fn of(p: &PrioReport, plus: bool, is_total: bool) -> Priority {
        let lat = Latency::of(&p.lat, plus);
        let (lat_ns, clat_ns) = if is_total { (Some(lat), None) } else { (None, Some(lat)) };
        Priority { prioclass: p.class, prio: p.level, lat_ns, clat_ns }
    }
}

impl Direction {
    fn of(d: &DirReport, plus: bool, prios_are_total: bool) -> Direction {
        Direction {
            io_bytes: d.io_bytes,
            io_kbytes: d.io_bytes / 1024,
            bw_bytes: d.bw_bytes(),
            bw: d.bw_bytes() / 1024,
            iops: d.iops_exact(),
            runtime: d.runtime_ms,
            total_ios: d.total_ios,
            short_ios: d.short_ios,
            drop_ios: d.drop_ios,
            slat_ns: Latency::of(&d.slat, plus),
            clat_ns: Latency::of(&d.clat, plus),
            lat_ns: Latency::of(&d.lat, plus),
            prios: d.prios.iter().map(|p| Priority::of(p, plus, prios_are_total)).collect(),
            bw_min: d.bw.min,
            bw_max: d.bw.max,
            bw_agg: d.bw_agg,
            bw_mean: d.bw.mean,
            bw_dev: d.bw.stddev,
            bw_samples: d.bw.samples,
            iops_min: d.iops.min,
            iops_max: d.iops.max,
            iops_mean: d.iops.mean,
            iops_stddev: d.iops.stddev,
            iops_samples: d.iops.samples,
        }
    }
}

#[derive(Serialize)]
struct Sync {
    total_ios: u64,
    lat_ns: Latency,
}

#[derive(Serialize)]
struct Latency {
    min: u64,
    max: u64,
    mean: f64,
    stddev: f64,
    #[serde(rename = "N")]
    n: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    percentile: Option<Entries<String, u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bins: Option<Entries<String, u64>>,
}

impl Latency {
    fn of(l: &LatReport, plus: bool) -> Latency {
        let wanted = l.n > 0 && !l.percentiles.is_empty();
        let percentile = l.percentiles.iter().map(|(p, ns)| (format!("{p:.6}"), *ns)).collect();
        let bins = l.bins.iter().map(|(ns, count)| (ns.to_string(), *count)).collect();
        Latency {
            min: l.min,
            max: l.max,
            mean: l.mean,
            stddev: l.stddev,
            n: l.n,
            percentile: wanted.then_some(Entries(percentile)),
            bins: (wanted && plus).then_some(Entries(bins)),
        }
    }
}

#[derive(Serialize)]
struct Disk<'a> {
    name: &'a str,
    read_ios: u64,
    write_ios: u64,
    read_merges: u64,
    write_merges: u64,
    read_ticks: u64,
    write_ticks: u64,
    in_queue: u64,
    util: f64,
}

impl<'a> Disk<'a> {
    fn of(d: &'a DiskUtil) -> Disk<'a> {
        Disk {
            name: &d.name,
            read_ios: d.ios[0],
            write_ios: d.ios[1],
            read_merges: d.merges[0],
            write_merges: d.merges[1],
            read_ticks: d.ticks[0],
            write_ticks: d.ticks[1],
            in_queue: d.in_queue,
            util: d.util,
        }
    }
}

/// An object whose keys are data, in their order.
struct Entries<K, V>(Vec<(K, V)>);

impl<K, V> Entries<K, V> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K: Serialize, V: Serialize> Serialize for Entries<K, V> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(Some(self.0.len()))?;
        for (k, v) in &self.0 {
            map.serialize_entry(k, v)?;
        }
        map.end()
    }
}

/// `system`, and `cpu-N` of each CPU.
fn idleness(idle: &CpuIdleness) -> Entries<String, f64> {
    let percpu = idle.percpu.iter().map(|(cpu, percent)| (format!("cpu-{cpu}"), *percent));
    Entries([("system".to_owned(), idle.system)].into_iter().chain(percpu).collect())
}

fn options(list: &[(String, String)]) -> Entries<&str, &str> {
    Entries(list.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect())
}

fn table(names: &[&'static str], values: &[f64]) -> Entries<&'static str, f64> {
    Entries(names.iter().copied().zip(values.iter().copied()).collect())
}

/// fio's white space and numbers: two blanks of indent, ` : ` after a key, six decimals.
struct FioFormatter(PrettyFormatter<'static>);

impl Formatter for FioFormatter {
    fn write_f64<W: ?Sized + io::Write>(&mut self, w: &mut W, value: f64) -> io::Result<()> {
        write!(w, "{value:.6}")
    }
    fn begin_array<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.begin_array(w)
    }
    fn end_array<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.end_array(w)
    }
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(w, first)
    }
    fn end_array_value<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.end_array_value(w)
    }
    fn begin_object<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.begin_object(w)
    }
    fn end_object<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.end_object(w)
    }
    fn begin_object_key<W: ?Sized + io::Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(w, first)
    }
    fn begin_object_value<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        w.write_all(b" : ")
    }
    fn end_object_value<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.end_object_value(w)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn report() -> FioReport {
        let clat = LatReport {
            min: 1,
            max: 9,
            mean: 4.5,
            stddev: 0.5,
            n: 2,
            percentiles: vec![(99.5, 9)],
            bins: vec![(1, 1), (9, 1)],
        };
        let read = DirReport { io_bytes: 8192, runtime_ms: 1000, total_ios: 2, clat, ..DirReport::default() };
        let job = JobReport {
            name: "a \"quoted\" name".into(),
            options: vec![("rw".into(), "read".into()), ("bs".into(), "4k".into())],
            dirs: [read, DirReport::default(), DirReport::default()],
            ..JobReport::default()
        };
        FioReport { version: "fio-3.33".into(), unix_ms: 1_500, jobs: vec![job], ..FioReport::default() }
    }

    #[test]
    fn looks_like_fio_s_and_parses() {
        let text = render(&report(), false, None);
        assert!(
            text.starts_with(
                "{\n  \"fio version\" : \"fio-3.33\",\n  \"timestamp\" : 1,\n  \"timestamp_ms\" : 1500,\n"
            ),
            "{text}"
        );
        assert!(text.contains("        \"iops\" : 2.000000,\n"), "{text}");
        let v: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(v["jobs"][0]["jobname"], "a \"quoted\" name");
        assert_eq!(v["jobs"][0]["job options"]["bs"], "4k");
        assert_eq!(v["jobs"][0]["read"]["clat_ns"]["percentile"]["99.500000"], 9);
        assert!(v.get("global options").is_none() && v.get("disk_util").is_none() && v.get("mqblk").is_none());
        assert!(v["jobs"][0]["read"]["clat_ns"].get("bins").is_none(), "bins are json+ only");
    }

    #[test]
    fn json_plus_has_bins_and_our_key_stands_alone() {
        let key = MqblkKey { version: "mqblk-0".into(), stages: Some(StageFacts::default()), ..MqblkKey::default() };
        let v: Value = serde_json::from_str(&render(&report(), true, Some(&key))).unwrap();
        assert_eq!(v["jobs"][0]["read"]["clat_ns"]["bins"]["9"], 1);
        assert!(v["jobs"][0]["read"]["slat_ns"].get("bins").is_none());
        assert_eq!(serde_json::from_value::<MqblkKey>(v["mqblk"].clone()).unwrap(), key);
    }

    /// Reads the file like a plotting script: options of the first job, overridden by the global ones, then rates and
    /// latencies in ms.
    #[test]
    fn a_plotting_script_finds_what_it_looks_for() {
        let mut r = report();
        r.global_options = vec![("iodepth".into(), "8".into())];
        let v: Value = serde_json::from_str(&render(&r, true, None)).unwrap();
        let mut options = v["jobs"][0]["job options"].as_object().unwrap().clone();
        options.extend(v["global options"].as_object().unwrap().clone());
        assert_eq!((options["rw"].as_str(), options["iodepth"].as_str()), (Some("read"), Some("8")));
        let read = &v["jobs"][0]["read"];
        assert_eq!((read["iops"].as_f64(), read["bw"].as_u64()), (Some(2.0), Some(8)));
        assert_eq!(read["lat_ns"]["mean"].as_f64(), Some(0.0));
        assert_eq!(read["clat_ns"]["percentile"]["99.500000"].as_f64().map(|ns| ns / 1e6), Some(9e-6));
    }
}
