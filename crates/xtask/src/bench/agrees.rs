// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One run of the jobs of the storvsc patch (scenarios/azure-p80.fio): on the driver `model` in real time, or on the same
//! device on a simulated machine of two CPUs.
//!
//! Guarantees: both get the same job text, device and settings. Figures are those that the patch published: bandwidth of the
//! readers, I/Os per second of the writer. They depend on which of several waiting threads gets a tag or a slot at the device.
//! The simulated disk has no interrupts, because the driver has none (`attach = "model"`). Before each simulated run, I/Os of a
//! known latency measure how late a sleeping thread of this machine resumes after a completion (`idle_ns`, `idle_spread_ns`).
//! That delay includes the timer, the wake-up and the context switch, so the simulation adds no cost for them.
//! `mqblk calibrate` measures the CPU time that the program itself needs per I/O.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::job::{self, Figures, Mixed};
use super::rows::Agrees;

const JOBS: &str = "\
[global]
time_based
direct=1
ioengine=libaio
runtime=SECONDS
[seq_read]
bs=32k
size=23G
rw=read
numjobs=2
iodepth=110
iodepth_batch_submit=55
iodepth_batch_complete=55
[seq_write]
bs=8k
size=10G
rw=write
iodepth=1
overwrite=1
";

const TARGET: &str = "model:size=16t,bw=750m,iops=18000,lat_us=2500,parallel=64";

const SETTINGS: [(&str, &str); 4] =
    [("scheduler", "mq-deadline"), ("queue_depth", "55"), ("nr_requests", "55"), ("max_sectors_kb", "64")];

/// The device of [`TARGET`] behind two CPUs; `bw=750m` is 750 MiB/s.
const MACHINE: &str = "\
title = \"the driver model\"
source = \"this program\"
jobs = \"agrees.fio\"
[machine]
sockets = 1
cores = 2
threads = 1
[disk]
attach = \"model\"
size_gib = 16384
bw_mb = 786.432
iops = 18000
read_us = 2500
write_us = 2500
parallel = 64
queue_depth = 55
[costs.path]
idle_ns = IDLE
idle_spread_ns = SPREAD
irq_ns = 0
wakeup_ns = 0
ipi_ns = 0
switch_ns = 0
doorbell_ns = 0
WORK
[settings]
scheduler = \"mq-deadline\"
nr_requests = 55
max_sectors_kb = 64
[[row]]
name = \"simulated\"
set = { nr_hw_queues = QUEUES }
";

/// Latency of each I/O at the device, one at a time. What a run measures beyond this is the delay of the wake-up.
const KNOWN_NS: f64 = 100_000.0;

const WORK: [&str; 6] = ["app_ns", "syscall_ns", "submit_ns", "hold_ns", "dispatch_ns", "complete_ns"];

const ONE_BY_ONE: &str = "\
[one]
rw=randread
bs=4k
size=1g
iodepth=1
time_based
runtime=SECONDS
";

/// Runs the jobs once for `seconds`. Returns the figures, and what is kept of the program's report.
///
/// # Errors
/// A program does not start, fails, or prints no figures.
pub fn run(agrees: Agrees, mqblk: &Path, scratch: &Path, seconds: u32) -> Result<(Figures, Value), String> {
    let jobs = scratch.join("agrees.fio");
    let write =
        |path: &Path, text: String| fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()));
    write(&jobs, JOBS.replace("SECONDS", &seconds.to_string()))?;
    let mut command = Command::new(mqblk);
    if agrees.is_simulated {
        let machine = scratch.join("agrees.toml");
        let one = scratch.join("one.fio");
        write(&one, ONE_BY_ONE.replace("SECONDS", &seconds.to_string()))?;
        let (idle, spread) = sleeps_on(&one, mqblk)?;
        let work = work(mqblk)?;
        let text = MACHINE.replace("QUEUES", &agrees.queues.to_string()).replace("WORK", &work);
        write(&machine, text.replace("IDLE", &idle.to_string()).replace("SPREAD", &spread.to_string()))?;
        command.arg("sim").arg(&machine).arg("--json");
    } else {
        command.arg("run").arg(&jobs).args(["--json", "--target", TARGET]);
        command.arg(format!("--set=nr_hw_queues={}", agrees.queues));
        SETTINGS.iter().for_each(|(name, value)| {
            command.arg(format!("--set={name}={value}"));
        });
    }
    let result = result_of(command)?;
    if agrees.is_simulated {
        let mixed = simulated(&result).ok_or("a figure of the simulated machine is missing")?;
        let iops = mixed.read_mb * 1e6 / 32768.0 + mixed.write_iops;
        let total_ios = (iops * f64::from(seconds)) as u64;
        return Ok((Figures { iops, total_ios, mixed: Some(mixed), ..Figures::default() }, Value::Null));
    }
    let mut figures = job::figures(&result)?;
    figures.mixed = Some(measured(&result).ok_or("a figure of the run is missing")?);
    Ok((figures, job::kept(result)))
}

fn result_of(mut command: Command) -> Result<Value, String> {
    let output = command.output().map_err(|e| format!("cannot run {command:?}: {e}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}\n{}\nby {command:?}", output.status, said.trim()));
    }
    job::parse(&String::from_utf8_lossy(&output.stdout))
}

/// Returns how long after a completion a thread of this machine still sleeps, and half the range of that delay, in nanoseconds.
fn sleeps_on(one: &Path, mqblk: &Path) -> Result<(u64, u64), String> {
    let mut command = Command::new(mqblk);
    command.arg("run").arg(one).args(["--json", "--target", "model:size=1g,lat_us=100"]);
    late(&result_of(command)?).ok_or_else(|| "a percentile of the run one by one is missing".to_owned())
}

fn late(result: &Value) -> Option<(u64, u64)> {
    let percentiles = &result["jobs"][0]["read"]["clat_ns"]["percentile"];
    let of = |name: &str| Some((percentiles[name].as_f64()? - KNOWN_NS).max(0.0));
    // In a uniform distribution, four fifths of the range lie between the 10th and the 90th percentile.
    let spread = (of("90.000000")? - of("10.000000")?) / 2.0 / 0.8;
    Some((of("50.000000")? as u64, spread as u64))
}

/// Returns the CPU time of our block layer and job engine for an I/O, as fields of `[costs.path]`.
fn work(mqblk: &Path) -> Result<String, String> {
    let mut command = Command::new(mqblk);
    command.args(["calibrate", "--seconds=1", "--json", "--eta=never"]);
    let result = result_of(command)?;
    let lines: Option<Vec<_>> = WORK.iter().map(|name| cost(&result, name)).collect();
    Ok(lines.ok_or("a cost of calibrate is missing")?.join("\n"))
}

fn cost(result: &Value, name: &str) -> Option<String> {
    let place = format!("costs.path.{name}");
    let median = result["costs"].as_array()?.iter().find(|c| c["name"] == *place)?["median_ns"].as_f64()?;
    Some(format!("{name} = {}", median.round() as u32))
}

fn simulated(result: &Value) -> Option<Mixed> {
    let figures = result["rows"][0]["figures"].as_array()?;
    let of = |name: &str| figures.iter().find(|f| f["name"] == name)?["simulated"].as_f64();
    Some(Mixed { read_mb: of("seq_read.bw")? / 1e6, write_iops: of("seq_write.iops")? })
}

fn measured(result: &Value) -> Option<Mixed> {
    let jobs = result["jobs"].as_array()?;
    let sum = |dir: &str, field: &str| jobs.iter().map(|job| job[dir][field].as_f64()).sum::<Option<f64>>();
    Some(Mixed { read_mb: sum("read", "bw_bytes")? / 1e6, write_iops: sum("write", "iops")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn figures_of_both_are_read() {
        let job = |bw: f64, iops: f64| json!({"read": {"bw_bytes": bw}, "write": {"iops": iops}});
        let result = json!({"jobs": [job(4e8, 0.0), job(3e8, 0.0), job(0.0, 150.0)]});
        assert_eq!(measured(&result), Some(Mixed { read_mb: 700.0, write_iops: 150.0 }));
        let figure = |name: &str, v: f64| json!({"name": name, "simulated": v});
        let result = json!({"rows": [{"figures": [figure("seq_read.bw", 7e8), figure("seq_write.iops", 151.0)]}]});
        assert_eq!(simulated(&result), Some(Mixed { read_mb: 700.0, write_iops: 151.0 }));
        assert_eq!(simulated(&json!({})), None);
        let percentile = json!({"10.000000": 120_000, "50.000000": 130_000, "90.000000": 152_000});
        let result = json!({"jobs": [{"read": {"clat_ns": {"percentile": percentile}}}]});
        assert_eq!((late(&result), late(&json!({}))), (Some((30_000, 20_000)), None));
        let result =
            json!({"costs": [{"name": "costs.path.app_ns", "median_ns": 90.7}, {"name": "costs.path.irq_ns"}]});
        let of = |name| cost(&result, name);
        assert_eq!((of("app_ns"), of("irq_ns"), of("hold_ns")), (Some("app_ns = 91".to_owned()), None, None));
    }
}
