// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Option rows: reporting, logs, clocks, errors, and the process the job runs in. See `options`.

use super::option::Parser::{Bool, Int, Name, Text, Words};
use super::option::{BOOL, FLAG, INT, OptionInfo, TEXT, no, quiet, warn, words, yes};
use super::{lists, logs, setters};

const UNPACKED: &str = "mqblk writes logs during the run, uncompressed, and keeps no more of them in memory";
/// Longest window that a log may have, milliseconds.
const MS_MAX: u64 = u32::MAX as u64;
const FIRST_ERROR: &str = "mqblk ends a job at its first error; a run without errors is the same";
const BUFFERS: &str = "mqblk allocates its own aligned buffers before the run";

#[rustfmt::skip] // A table: one row per line.
pub(super) static ROWS: &[OptionInfo] = &[
    yes("clat_percentiles", Bool(|d, v| d.job.clat_percentiles = v), "1", "Report percentiles of completion latency"),
    yes("lat_percentiles", Bool(|d, v| d.job.lat_percentiles = v), "0", "Report percentiles of total latency"),
    yes("slat_percentiles", Bool(|d, v| d.job.slat_percentiles = v), "0", "Report percentiles of submission latency"),
    yes("percentile_list", Text { syntax: "NUMBER[:NUMBER...]", set: |d, v, _| { d.job.percentile_list = lists::percentiles(lists::floats(v)?)?; Ok(()) } }, "1:5:10:20:30:40:50:60:70:80:90:95:99:99.5:99.9:99.95:99.99", "Percentiles to report"),
    yes("kb_base", Words { words: &["1024", "1000"], set: |d, v| d.units.kb_base = if v == "1000" { 1000 } else { 1024 } }, "1024", "Meaning of k: 1024, or 1000 with kib = 1024"),

    quiet("thread", FLAG, "", "Threads instead of processes; mqblk always uses threads"),
    quiet("threads", INT, "", "Belongs to fio's tiobench profile; no effect in a job"),
    yes("gtod_reduce", Bool(logs::set_gtod_reduce), "0", "Report and log no latencies"),
    yes("disable_lat", Bool(|d, v| d.job.logs.no_lat = v), "0", "Report and log no total latencies"),
    yes("disable_clat", Bool(|d, v| d.job.logs.no_clat = v), "0", "Report and log no completion latencies"),
    yes("disable_slat", Bool(|d, v| d.job.logs.no_slat = v), "0", "Report and log no submission latencies"),
    yes("disable_bw_measurement", Bool(|d, v| d.job.logs.no_bw = v), "0", "Log no bandwidth of single I/Os").alias(&["disable_bw"]),
    quiet("gtod_cpu", INT, "", "A CPU that reads the clock; mqblk's clock is read without a system call"),
    quiet("clocksource", words(&["gettimeofday", "clock_gettime", "cpu"]), "", "Which clock; mqblk always has its monotonic clock"),
    quiet("disk_util", BOOL, "1", "Report the disk's utilisation"),
    quiet("error_dump", BOOL, "0", "Print each error"),
    yes("per_job_logs", Bool(|d, v| d.job.logs.per_job = v), "1", "A log file per thread, with its number in the name"),
    yes("bwavgtime", Int { min: 0, max: MS_MAX, set: |d, v| d.job.logs.bw.interval_ms = v }, "500", "Window of bandwidth samples and logs (ms)"),
    yes("iopsavgtime", Int { min: 0, max: MS_MAX, set: |d, v| d.job.logs.iops.interval_ms = v }, "500", "Window of IOPS samples and logs (ms)"),
    quiet("log_entries", INT, "1024", "First size of a log"),
    yes("log_avg_msec", Int { min: 0, max: MS_MAX, set: |d, v| d.job.logs.avg_ms = v }, "0", "Average logs over this time (ms)"),
    yes("log_hist_msec", Int { min: 0, max: MS_MAX, set: |d, v| d.job.logs.hist_ms = v }, "0", "Time between histograms in a log (ms)"),
    yes("log_hist_coarseness", Int { min: 0, max: 6, set: |d, v| d.job.logs.hist_coarseness = v as u32 }, "0", "Join 2^N buckets of logged histograms"),
    yes("log_max_value", Bool(|d, v| d.job.logs.max_value = v), "0", "Log the largest latency of a window, not the mean"),
    yes("log_offset", Bool(|d, v| d.job.logs.offset = v), "0", "Log offsets"),
    yes("log_prio", Bool(|d, v| d.job.logs.prio = v), "0", "Log priorities"),
    warn("log_compression", INT, "", "Compress logs", UNPACKED),
    warn("log_compression_cpus", TEXT, "", "CPUs that compress logs", UNPACKED),
    warn("log_store_compressed", BOOL, "", "Store logs compressed", UNPACKED).off(&["0"]),
    yes("log_unix_epoch", Bool(|d, v| d.job.logs.unix_epoch = v), "", "Log Unix time"),
    yes("log_alternate_epoch", Bool(|d, v| d.job.logs.alternate_epoch = v), "", "Log another clock's time"),
    yes("log_alternate_epoch_clock_id", Int { min: 0, max: i32::MAX as u64, set: |d, v| d.job.logs.clock_id = v as i32 }, "", "Number of that clock (clock_gettime)"),
    yes("write_bw_log", Name(|d, v| d.job.logs.bw.name = logs::name(v)), "", "Log bandwidth to NAME_bw.N.log"),
    yes("write_lat_log", Name(|d, v| d.job.logs.lat = logs::name(v)), "", "Log latencies to NAME_lat.N.log, _slat and _clat"),
    yes("write_iops_log", Name(|d, v| d.job.logs.iops.name = logs::name(v)), "", "Log IOPS to NAME_iops.N.log"),
    yes("write_hist_log", Name(|d, v| d.job.logs.hist = logs::name(v)), "", "Log histograms to NAME_clat_hist.N.log"),
    warn("significant_figures", Int { min: 1, max: 10, set: |_, _| () }, "4", "Digits in the text report", "mqblk's report has fixed precision; --json has full values"),
    warn("unit_base", words(&["0", "1", "8"]), "", "Report bits or bytes", "mqblk reports bytes").off(&["0", "8"]),
    warn("mem", Text { syntax: "malloc|shm|shmhuge|mmap|mmapshared|mmaphuge", set: setters::check_mem }, "malloc", "Memory of buffers", BUFFERS).alias(&["iomem"]),
    warn("iomem_align", INT, "", "Alignment of buffers", BUFFERS).alias(&["mem_align"]),
    warn("hugepage-size", INT, "2m", "Size of huge pages", BUFFERS),

    warn("stats", BOOL, "1", "Collect statistics", "mqblk always collects statistics"),
    no("unified_rw_reporting", words(&["none", "mixed", "both", "0", "1", "2"]), "none", "Sum over directions", "mqblk reports each direction; add them up from --json").off(&["none", "0"]),
    warn("block_error_percentiles", BOOL, "0", "Histogram of trim errors", FIRST_ERROR),
    warn("continue_on_error", TEXT, "none", "Continue after errors", FIRST_ERROR).off(&["none", "0"]),
    warn("ignore_error", TEXT, "", "Errors that do not count", FIRST_ERROR),
    no("profile", TEXT, "", "A built-in benchmark", "write the load as job sections"),
    no("cgroup", TEXT, "", "Put the job into a cgroup", "start mqblk itself in the cgroup (systemd-run --scope)"),
    quiet("cgroup_nodelete", BOOL, "0", "Keep the cgroup"),
    no("uid", INT, "", "Run as this user", "start mqblk as that user"),
    no("gid", INT, "", "Run as this group", "start mqblk as that group"),
];
