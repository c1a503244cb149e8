// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Option rows: reporting, logs, clocks, errors, and the process the job runs in. See `options`.

use super::option::Parser::{Bool, Int, OptionalText, Text, Words};
use super::option::{BOOL, FLAG, INT, OptionInfo, TEXT, no, quiet, warn, words, yes};
use super::{lists, setters};

const LOG: &str = "mqblk writes no per-interval logs; the results and --json hold the percentiles";
const CLOCK: &str = "mqblk records latencies anyway, and reads the clock once per batch";
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
    quiet("disk_util", BOOL, "1", "Report the disk's utilisation"),
    quiet("error_dump", BOOL, "0", "Print each error"),
    quiet("per_job_logs", BOOL, "1", "Job number in log names"),
    quiet("bwavgtime", INT, "500", "Window of bandwidth logs (ms)"),
    quiet("iopsavgtime", INT, "500", "Window of IOPS logs (ms)"),
    quiet("log_entries", INT, "1024", "First size of a log"),
    quiet("log_avg_msec", INT, "0", "Average logs over this time (ms)"),
    quiet("log_hist_msec", INT, "0", "Interval of histogram logs (ms)"),
    quiet("log_hist_coarseness", INT, "0", "Coarseness of histogram logs"),
    quiet("log_max_value", BOOL, "0", "Log the largest value"),
    quiet("log_offset", BOOL, "0", "Log offsets"),
    quiet("log_prio", BOOL, "0", "Log priorities"),
    quiet("log_compression", INT, "", "Compress logs"),
    quiet("log_compression_cpus", TEXT, "", "CPUs that compress logs"),
    quiet("log_store_compressed", BOOL, "", "Store logs compressed"),
    quiet("log_unix_epoch", BOOL, "", "Unix time in logs"),
    quiet("log_alternate_epoch", BOOL, "", "Another clock's time in logs"),
    quiet("log_alternate_epoch_clock_id", INT, "", "Which clock"),
    warn("write_bw_log", OptionalText, "", "Log bandwidth", LOG),
    warn("write_lat_log", OptionalText, "", "Log latencies", LOG),
    warn("write_iops_log", OptionalText, "", "Log IOPS", LOG),
    warn("write_hist_log", OptionalText, "", "Log histograms", LOG),
    warn("significant_figures", Int { min: 1, max: 10, set: |_, _| () }, "4", "Digits in the text report", "mqblk's report has fixed precision; --json has full values"),
    warn("unit_base", words(&["0", "1", "8"]), "", "Report bits or bytes", "mqblk reports bytes").off(&["0", "8"]),
    warn("gtod_reduce", BOOL, "0", "Read the clock rarely", CLOCK),
    warn("disable_lat", BOOL, "0", "No total latencies", CLOCK),
    warn("disable_clat", BOOL, "0", "No completion latencies", CLOCK),
    warn("disable_slat", BOOL, "0", "No submission latencies", CLOCK),
    warn("disable_bw_measurement", BOOL, "0", "No bandwidth samples", CLOCK).alias(&["disable_bw"]),
    warn("gtod_cpu", INT, "", "A CPU that reads the clock", CLOCK).off(&["0"]),
    warn("clocksource", words(&["gettimeofday", "clock_gettime", "cpu"]), "", "Which clock", "mqblk uses the monotonic clock"),
    warn("mem", Text { syntax: "malloc|shm|shmhuge|mmap|mmapshared|mmaphuge", set: setters::check_mem }, "malloc", "Memory of buffers", BUFFERS).alias(&["iomem"]),
    warn("iomem_align", INT, "", "Alignment of buffers", BUFFERS).alias(&["mem_align"]),
    warn("hugepage-size", INT, "2m", "Size of huge pages", BUFFERS),

    no("stats", BOOL, "1", "Collect statistics", "mqblk always collects statistics; remove the line"),
    no("unified_rw_reporting", words(&["none", "mixed", "both", "0", "1", "2"]), "none", "Sum over directions", "mqblk reports each direction; add them up from --json").off(&["none", "0"]),
    no("block_error_percentiles", BOOL, "0", "Histogram of trim errors", "remove the line"),
    no("continue_on_error", TEXT, "none", "Continue after errors", "mqblk ends a job at its first error; remove the line").off(&["none", "0"]),
    no("ignore_error", TEXT, "", "Errors that do not count", "mqblk ends a job at its first error; remove the line"),
    no("profile", TEXT, "", "A built-in benchmark", "write the load as job sections"),
    no("cgroup", TEXT, "", "Put the job into a cgroup", "start mqblk itself in the cgroup (systemd-run --scope)"),
    quiet("cgroup_nodelete", BOOL, "0", "Keep the cgroup"),
    no("uid", INT, "", "Run as this user", "start mqblk as that user"),
    no("gid", INT, "", "Run as this group", "start mqblk as that group"),
];
