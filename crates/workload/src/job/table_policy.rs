// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Option rows: what ends a job early, commands around it, hidden latencies, priorities of single I/Os. See `options`.

use super::draft::{Draft, merge};
use super::error::Reject;
use super::lists;
use super::option::Parser::{Bool, Flag, Int, Ints, Text, Time, Words};
use super::option::{INT, INTS, OptionInfo, no, quiet, yes};
use super::policy::{ExitWhat, SizePrios, SteadyMetric};
use super::setters::set_rate;
use super::spec::BLOCK_BYTES_MAX;
use super::units::{self, MSEC_NS, SEC_NS, USEC_NS, Units};
use super::values::{Dir, PerDir, PrioClass};

const U32: u64 = u32::MAX as u64;
const U63: u64 = i64::MAX as u64;
const HINT: &str = "mqblk's priorities have a class and a level only";

#[rustfmt::skip] // A table: one row per line.
pub(super) static ROWS: &[OptionInfo] = &[
    yes("zonemode", Text { syntax: "none|strided", set: set_zonemode }, "none", "strided: work in one zone after the other"),
    yes("zonesize", Int { min: 0, max: U63, set: |d, v| d.zones.size_bytes = v }, "0", "Strided zones: bytes to issue in a zone before the next one"),
    yes("zonerange", Int { min: 0, max: U63, set: |d, v| d.zones.range_bytes = v }, "0", "Strided zones: length of a zone; default: zonesize"),
    yes("zoneskip", Int { min: 0, max: U63, set: |d, v| d.zones.skip_bytes = v }, "0", "Strided zones: gap between zones"),

    yes("buffer_compress_percentage", Int { min: 0, max: 100, set: |d, v| d.shape.compress_pct = v as u32 }, "", "Percent of written data that compresses"),
    yes("buffer_compress_chunk", Int { min: 0, max: BLOCK_BYTES_MAX, set: |d, v| d.shape.chunk_bytes = v }, "512", "Size of the pieces that compress in part"),
    yes("dedupe_percentage", Int { min: 0, max: 100, set: |d, v| d.shape.dedupe_pct = v as u32 }, "", "Percent of writes that repeat the data of others"),
    yes("dedupe_mode", Words { words: &["repeat", "working_set"], set: |d, v| d.has_working_set = v == "working_set" }, "repeat", "What they repeat: data nearby, or a fixed set"),
    yes("dedupe_working_set_percentage", Int { min: 0, max: 100, set: |d, v| d.shape.working_set_pct = Some(v as u32) }, "5", "Size of the fixed set in percent of size"),
    yes("dedupe_global", Bool(|d, v| d.dedupe_global = v), "0", "Threads of all jobs share the fixed set"),

    yes("rate_min", Ints { min: 0, max: u64::MAX, set: |d, v| set_rate(&mut d.job.limits.min_bytes_per_s, v) }, "", "End the job when its bandwidth is below this (bytes/s)").alias(&["ratemin"]),
    yes("rate_iops_min", Ints { min: 0, max: U32, set: |d, v| set_rate(&mut d.job.limits.min_iops, v) }, "", "End the job when its I/Os per second are below this"),
    yes("rate_cycle", Int { min: 0, max: U32, set: |d, v| d.job.limits.rate_cycle_ns = v * MSEC_NS }, "1000", "Milliseconds over which rate_min and rate_iops_min are averaged").alias(&["ratecycle"]),
    yes("max_latency", Text { syntax: "TIME(us)[,WRITE[,TRIM]]", set: set_max_latency }, "", "End the job when an I/O takes longer"),
    yes("thinktime_iotime", Time { unit_ns: USEC_NS, set: |d, v| d.job.thinktime_iotime_ns = v }, "0", "Pause after this much time of I/O"),

    yes("latency_target", Time { unit_ns: USEC_NS, set: |d, v| d.latency.target_ns = v }, "0", "Look for the largest depth at which I/Os are this fast"),
    yes("latency_window", Time { unit_ns: USEC_NS, set: |d, v| d.latency.window_ns = v }, "0", "latency_target: time at each depth"),
    yes("latency_percentile", Text { syntax: "PERCENT", set: set_latency_percentile }, "100", "latency_target: percent of the I/Os that have to be fast enough"),
    yes("latency_run", Bool(|d, v| d.latency.runs_on = v), "0", "latency_target: continue to adapt the depth"),
    yes("steadystate", Text { syntax: "iops|iops_slope|bw|bw_slope|lat|lat_slope:LIMIT[%]", set: set_steadystate }, "iops_slope:0.01%", "End the job when its rate no longer changes").alias(&["ss"]),
    yes("steadystate_duration", Time { unit_ns: SEC_NS, set: |d, v| d.steady.duration_s = v / SEC_NS }, "0", "Time over which the job has to be steady; 0 = off").alias(&["ss_dur"]),
    yes("steadystate_ramp_time", Time { unit_ns: SEC_NS, set: |d, v| d.steady.ramp_ns = v }, "0", "Time before steadiness counts").alias(&["ss_ramp"]),
    yes("steadystate_check_interval", Time { unit_ns: SEC_NS, set: |d, v| d.steady.interval_s = (v / SEC_NS).max(1) }, "1", "Time between two samples of steadiness").alias(&["ss_interval"]),
    yes("flow", Int { min: 0, max: U32, set: |d, v| d.flow.weight = v }, "0", "Weight of the job's I/Os against those of other jobs"),
    yes("flow_id", Int { min: 0, max: U32, set: |d, v| d.flow.id = v }, "0", "The jobs that flow weighs against each other"),
    yes("flow_sleep", Int { min: 0, max: U32, set: |d, v| d.flow.sleep_ns = v * USEC_NS }, "0", "Microseconds that a job ahead of its flow sleeps"),
    quiet("flow_watermark", INT, "", "Deprecated in fio, without effect"),

    yes("exitall", Flag(|d, v| d.job.exit.exitall = v), "", "When a job ends, end others, too"),
    yes("exit_what", Words { words: &["group", "stonewall", "all"], set: |d, v| d.job.exit.what = match v { "stonewall" => ExitWhat::Stonewall, "all" => ExitWhat::All, _ => ExitWhat::Group } }, "group", "Which jobs exitall ends: of the group, that run, or all"),
    yes("exitall_on_error", Flag(|d, v| d.job.exit.on_error = v), "", "When this job fails, end others, too"),
    yes("exec_prerun", Text { syntax: "COMMAND", set: |d, v, _| { d.job.commands.prerun = Some(v.to_owned()); Ok(()) } }, "", "Shell command before the job"),
    yes("exec_postrun", Text { syntax: "COMMAND", set: |d, v, _| { d.job.commands.postrun = Some(v.to_owned()); Ok(()) } }, "", "Shell command after the job"),


    yes("cmdprio_percentage", Ints { min: 0, max: 100, set: set_percentage }, "0", "Percent of I/Os with the priority of cmdprio"),
    yes("cmdprio_class", Ints { min: 1, max: 3, set: |d, v| each(v, |dir, v| d.job.cmdprio.prio[dir].class = PrioClass::of_number(v)) }, "", "Priority class of these I/Os: 1 real time, 2 best effort, 3 idle; default 1"),
    yes("cmdprio", Ints { min: 0, max: 7, set: |d, v| each(v, |dir, v| d.job.cmdprio.prio[dir].level = v as u8) }, "", "Priority of these I/Os within their class, 0 highest"),
    yes("cmdprio_bssplit", Text { syntax: "SIZE/PERCENT[/CLASS/LEVEL]:...[,WRITE]", set: set_cmdprio_bssplit }, "", "Priorities of I/Os by their size"),
    no("cmdprio_hint", INTS, "", "I/O hint of these I/Os", HINT).off(&["0"]),
];

fn set_zonemode(draft: &mut Draft, text: &str, _: Units) -> Result<(), Reject> {
    draft.zone_mode = Some(match text {
        "none" => false,
        "strided" => true,
        "zbd" => return Err(Reject::unsupported("not supported by mqblk", "use a plain device, or zonemode=strided")),
        _ => return Err(Reject::new("must be none or strided", "")),
    });
    Ok(())
}

/// Calls `set` for each direction that was given.
fn each(values: PerDir<Option<u64>>, mut set: impl FnMut(Dir, u64)) {
    for dir in Dir::ALL {
        if let Some(value) = values[dir] {
            set(dir, value);
        }
    }
}

fn set_percentage(draft: &mut Draft, values: PerDir<Option<u64>>) {
    each(values, |dir, pct| draft.job.cmdprio.pct[dir] = pct as u32);
}

fn set_latency_percentile(draft: &mut Draft, text: &str, _: Units) -> Result<(), Reject> {
    match lists::floats(text)?[..] {
        [percent] if percent > 0.0 && percent <= 100.0 => draft.latency.percentile = percent,
        _ => return Err(Reject::new("must be one number above 0 and at most 100", "")),
    }
    Ok(())
}

fn set_steadystate(draft: &mut Draft, text: &str, units: Units) -> Result<(), Reject> {
    let shape = || Reject::new("needs a criterion and a limit", "write e.g. iops:2%, bw_slope:0.1% or lat:5%");
    let (criterion, limit) = text.split_once(':').ok_or_else(shape)?;
    let (metric, is_slope) = match criterion.strip_suffix("_slope").map_or((criterion, false), |c| (c, true)) {
        ("iops", slope) => (SteadyMetric::Iops, slope),
        ("bw", slope) => (SteadyMetric::Bandwidth, slope),
        ("lat", slope) => (SteadyMetric::Latency, slope),
        _ => return Err(shape()),
    };
    let percent = limit.trim().strip_suffix('%');
    let limit = match (percent, metric) {
        (None, SteadyMetric::Bandwidth) => units::int_in(limit, units, 0, U63)? as f64,
        (None, SteadyMetric::Latency) => units::time_ns(limit, 1)? as f64,
        (percent, _) => match lists::floats(percent.unwrap_or(limit))?[..] {
            [limit] if limit >= 0.0 => limit,
            _ => return Err(shape()),
        },
    };
    let steady = &mut draft.steady;
    (steady.metric, steady.is_slope, steady.limit, steady.is_percent) = (metric, is_slope, limit, percent.is_some());
    Ok(())
}

fn set_max_latency(draft: &mut Draft, text: &str, _: Units) -> Result<(), Reject> {
    set_rate(&mut draft.job.limits.max_latency_ns, units::per_dir(text, &[','], |part| units::time_ns(part, USEC_NS))?);
    Ok(())
}

fn set_cmdprio_bssplit(draft: &mut Draft, text: &str, units: Units) -> Result<(), Reject> {
    let split: PerDir<Option<Vec<SizePrios>>> =
        units::per_dir(text, &[','], |part| lists::cmdprio_bssplit(part, units, BLOCK_BYTES_MAX))?;
    merge(&mut draft.job.cmdprio.by_size, split);
    Ok(())
}
