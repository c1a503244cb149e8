// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Option rows: which I/O is issued, how and when; randomness, rates, verification and data. See `options`.

use super::draft::{merge, merge_some};
use super::option::Parser::{Bool, Flag, Int, Ints, Text, Time, Words};
use super::option::{
    BOOL, FLAG, FLOATS, INT, INTS, OptionInfo, PCT, Parser, TEXT, TIME, TIME_US, no, quiet, warn, words, yes,
};
use super::pattern;
use super::spec::{BLOCK_BYTES_MAX, IODEPTH_MAX, NUMJOBS_MAX};
use super::units::{SEC_NS, USEC_NS};
use super::values::{CpusPolicy, PrioClass, RateProcess, RwSequencer, SyncMode, ThinktimeBlocks};
use super::{lists, setters};

const DEPTH: u64 = IODEPTH_MAX as u64;
const U32: u64 = u32::MAX as u64;
const LATENCY_TARGET: &str = "mqblk does not search for a depth; run the job at several iodepth values";
const RATE_MIN: &str = "mqblk does not end a job for being slow; check the rate in the results";
const TRIM_VERIFY: &str = "mqblk does not trim while verifying; use rw=trim in a job of its own";
const DEDUPE: &str = "mqblk shapes data by buffer_pattern, zero_buffers and refill_buffers only";

#[rustfmt::skip] // A table: one row per line.
pub(super) static ROWS: &[OptionInfo] = &[
    yes("rw", Text { syntax: "PATTERN[:MODIFIER]", set: setters::set_rw }, "read", "Directions and order, such as read, randwrite, randrw").alias(&["readwrite"]),
    yes("rw_sequencer", Words { words: &["sequential", "identical"], set: |d, v| d.job.rw_sequencer = if v == "identical" { RwSequencer::Identical } else { RwSequencer::Sequential } }, "sequential", "What rw=randread:8 does between fresh offsets"),
    yes("rwmixread", Int { min: 0, max: 100, set: |d, v| d.job.rwmixread_pct = v as u32 }, "50", "Percent of a mixed job that reads"),
    yes("rwmixwrite", Int { min: 0, max: 100, set: |d, v| d.job.rwmixread_pct = 100 - v as u32 }, "50", "Percent of a mixed job that writes"),
    yes("bs", Ints { min: 1, max: BLOCK_BYTES_MAX, set: |d, v| merge_some(&mut d.bs, v) }, "4096", "Block size").alias(&["blocksize"]),
    yes("bsrange", Text { syntax: "SIZE-SIZE[,WRITE[,TRIM]]", set: setters::set_bsrange }, "", "Uniform range of block sizes").alias(&["blocksize_range"]),
    yes("bssplit", Text { syntax: "SIZE/PERCENT:...[,WRITE[,TRIM]]", set: setters::set_bssplit }, "", "Block sizes with weights"),
    yes("ba", Ints { min: 1, max: u64::MAX, set: |d, v| merge_some(&mut d.job.blockalign_bytes, v) }, "", "Grid of random offsets; default: smallest block size").alias(&["blockalign"]),
    yes("number_ios", Int { min: 0, max: u64::MAX, set: |d, v| d.job.number_ios = Some(v).filter(|v| *v > 0) }, "0", "End after this many I/Os; 0 = no limit"),
    yes("loops", Int { min: 1, max: u64::MAX, set: |d, v| d.job.loops = v }, "1", "Repeat the job"),
    yes("numjobs", Int { min: 1, max: NUMJOBS_MAX as u64, set: |d, v| d.job.numjobs = v as u32 }, "1", "Instances of the job"),

    yes("ioengine", Text { syntax: "ENGINE", set: setters::set_ioengine }, "psync", "How the job submits: libaio, io_uring (many), psync, sync (one), null"),
    yes("iodepth", Int { min: 1, max: DEPTH, set: |d, v| d.job.iodepth = v as u32 }, "1", "I/Os kept in flight"),
    yes("iodepth_batch", Int { min: 0, max: DEPTH, set: |d, v| d.batch_submit = Some(v) }, "1", "I/Os submitted at once; 0 = iodepth").alias(&["iodepth_batch_submit"]),
    yes("iodepth_batch_complete_min", Int { min: 0, max: DEPTH, set: |d, v| d.batch_complete_min = Some(v) }, "1", "Wait for at least this many completions").alias(&["iodepth_batch_complete"]),
    yes("iodepth_batch_complete_max", Int { min: 0, max: DEPTH, set: |d, v| d.batch_complete_max = Some(v) }, "", "Take at most this many completions at once; default: as the minimum"),
    yes("iodepth_low", Int { min: 0, max: DEPTH, set: |d, v| d.iodepth_low = Some(v) }, "", "Refill the queue when only this many are in flight; default: iodepth"),
    yes("hipri", Flag(|d, v| d.job.hipri = v), "", "Poll for completions"),
    yes("sync", Words { words: &["none", "0", "sync", "1", "dsync"], set: |d, v| d.job.sync = match v { "sync" | "1" => SyncMode::Sync, "dsync" => SyncMode::Dsync, _ => SyncMode::None } }, "none", "O_SYNC or O_DSYNC writes"),
    yes("fsync", Int { min: 0, max: U32, set: |d, v| d.job.fsync_every = v as u32 }, "0", "Flush after every n writes"),
    yes("fdatasync", Int { min: 0, max: U32, set: |d, v| d.job.fdatasync_every = v as u32 }, "0", "As fsync, data only"),
    yes("end_fsync", Bool(|d, v| d.job.end_fsync = v), "0", "Flush when the job ends"),
    yes("prio", Int { min: 0, max: 7, set: |d, v| d.job.prio = Some(v as u8) }, "", "I/O priority, 0 highest"),
    yes("prioclass", Int { min: 0, max: 3, set: |d, v| d.job.prioclass = match v { 1 => PrioClass::RealTime, 2 => PrioClass::BestEffort, 3 => PrioClass::Idle, _ => PrioClass::None } }, "", "I/O priority class: 1 real time, 2 best effort, 3 idle"),
    yes("cgroup_weight", Int { min: 1, max: 1000, set: |d, v| d.job.weight = Some(v as u16) }, "", "Share of the disk under scheduler=bfq, without a cgroup").alias(&["weight"]),

    yes("runtime", Time { unit_ns: SEC_NS, set: |d, v| d.job.runtime_ns = Some(v).filter(|v| *v > 0) }, "0", "End after this time; 0 = no limit").alias(&["timeout"]),
    yes("time_based", Flag(|d, v| d.job.time_based = v), "", "Repeat until runtime has passed"),
    yes("ramp_time", Time { unit_ns: SEC_NS, set: |d, v| d.job.ramp_time_ns = v }, "0", "Run this long before measuring"),
    yes("startdelay", Text { syntax: "TIME(s)[-TIME]", set: setters::set_startdelay }, "0", "Delay before the start; from a range, each instance draws its own"),
    yes("rate", Ints { min: 0, max: u64::MAX, set: |d, v| setters::set_rate(&mut d.job.rate_bytes_per_s, v) }, "", "Limit in bytes/s"),
    yes("rate_iops", Ints { min: 0, max: U32, set: |d, v| setters::set_rate(&mut d.job.rate_iops, v) }, "", "Limit in I/Os per second"),
    yes("rate_process", Words { words: &["linear", "poisson"], set: |d, v| d.job.rate_process = if v == "poisson" { RateProcess::Poisson } else { RateProcess::Linear } }, "linear", "Even gaps, or a Poisson process"),
    yes("thinktime", Time { unit_ns: USEC_NS, set: |d, v| d.job.thinktime_ns = v }, "0", "Pause after thinktime_blocks I/Os"),
    yes("thinktime_spin", Time { unit_ns: USEC_NS, set: |d, v| d.job.thinktime_spin_ns = v }, "0", "Part of thinktime that burns CPU"),
    yes("thinktime_blocks", Int { min: 1, max: u64::MAX, set: |d, v| d.job.thinktime_blocks = v }, "1", "I/Os between pauses"),
    yes("thinktime_blocks_type", Words { words: &["complete", "issue"], set: |d, v| d.job.thinktime_blocks_type = if v == "issue" { ThinktimeBlocks::Issue } else { ThinktimeBlocks::Complete } }, "complete", "What thinktime_blocks counts"),

    yes("random_distribution", Text { syntax: "random|zipf:T|pareto:H|normal:D|zoned:A/SIZE:...", set: |d, v, u| { merge(&mut d.job.random_distribution, lists::distribution(v, u)?); Ok(()) } }, "random", "Where random offsets fall"),
    yes("percentage_random", Ints { min: 0, max: 100, set: |d, v| setters::set_percent(&mut d.job.percentage_random, v) }, "100,100,100", "Percent of a random job that is random"),
    yes("norandommap", Flag(|d, v| d.job.norandommap = v), "", "Blocks may repeat before all were touched"),
    yes("randseed", Int { min: 0, max: u64::MAX, set: |d, v| d.job.randseed = v }, "0x89", "Seed"),
    yes("randrepeat", Bool(|d, v| d.job.randrepeat = v), "1", "The same sequence in every run"),
    yes("allrandrepeat", Bool(|d, v| d.allrandrepeat = v), "0", "As randrepeat, for every generator; if set, overrides randrepeat=0"),
    quiet("softrandommap", BOOL, "0", "Continue without a random map if memory is short"),
    warn("random_generator", words(&["tausworthe", "lfsr", "tausworthe64"]), "tausworthe", "Generator of random offsets", "mqblk has one generator; coverage and distribution are as asked").off(&["tausworthe", "tausworthe64"]),

    yes("verify", Text { syntax: "crc32c|md5|sha256|xxhash|pattern|0", set: setters::set_verify }, "0", "Checksum or pattern in each written block"),
    yes("do_verify", Bool(|d, v| d.job.do_verify = v), "1", "Read back and check after writing"),
    yes("verify_fatal", Bool(|d, v| d.job.verify_fatal = v), "0", "End at the first bad block"),
    yes("verify_backlog", Int { min: 0, max: u64::MAX, set: |d, v| d.job.verify_backlog = v }, "0", "Check after every n written blocks"),
    yes("verify_backlog_batch", Int { min: 0, max: U32, set: |d, v| d.verify_backlog_batch = Some(v) }, "", "Blocks per such check; default: verify_backlog"),
    yes("verify_pattern", Text { syntax: "PATTERN", set: |d, v, _| { d.job.verify_pattern = Some(pattern::parse(v, true)?); Ok(()) } }, "", "Bytes each block is filled with; %o = its offset"),
    yes("buffer_pattern", Text { syntax: "PATTERN", set: |d, v, _| { d.buffer_pattern = Some(pattern::parse(v, false)?); Ok(()) } }, "", "Bytes that write buffers hold"),
    yes("zero_buffers", Flag(|d, v| d.zero_buffers = v), "", "Write buffers hold zeroes"),
    yes("refill_buffers", Flag(|d, v| d.job.refill_buffers = v), "", "Fresh data for every write"),
    yes("scramble_buffers", Bool(|d, v| d.job.scramble_buffers = v), "1", "Change a reused buffer a little"),

    yes("group_reporting", Flag(|d, v| d.job.group_reporting = v), "", "One result for all instances"),
    yes("new_group", Flag(|d, v| d.job.new_group = v), "", "Start a reporting group"),
    yes("stonewall", Flag(|d, v| d.job.stonewall = v), "", "Wait for all jobs above").alias(&["wait_for_previous"]),
    yes("cpus_allowed", Text { syntax: "CPU[-CPU][,...]", set: |d, v, _| { d.job.cpus_allowed = Some(lists::cpus(v)?); Ok(()) } }, "", "CPUs the job may use"),
    yes("cpumask", Text { syntax: "INT", set: setters::set_cpumask }, "", "As cpus_allowed, as a bit mask"),
    yes("cpus_allowed_policy", Words { words: &["shared", "split"], set: |d, v| d.job.cpus_allowed_policy = if v == "split" { CpusPolicy::Split } else { CpusPolicy::Shared } }, "shared", "Share the CPUs, or one per instance"),

    no("bs_unaligned", FLAG, "", "bsrange: any size, not only multiples of the smallest", "I/O is in whole sectors; remove the line: sizes are then multiples of the smallest").alias(&["blocksize_unaligned"]).off(&["0"]),
    no("bs_is_seq_rand", BOOL, "0", "Block sizes by order, not direction", "give bs=READ,WRITE, or two jobs"),
    no("serialize_overlap", BOOL, "0", "Wait for I/Os that collide", "use iodepth=1, or leave norandommap out, so that blocks do not collide"),
    no("io_submit_mode", words(&["inline", "offload"]), "inline", "Which thread submits", "mqblk submits inline, and measures rate-limited I/Os from their intended start; remove the line"),
    no("write_barrier", INT, "0", "Make every n-th write a barrier", "use fdatasync=N"),
    no("sync_file_range", TEXT, "", "Call sync_file_range", "use fdatasync=N"),
    no("fsync_on_close", BOOL, "0", "Flush on close", "use end_fsync=1"),
    no("atomic", BOOL, "0", "Atomic writes", "remove the line; mqblk has no atomic writes"),
    no("write_hint", words(&["none", "short", "medium", "long", "extreme"]), "none", "Expected life time of data", "mqblk passes no hints; remove the line"),
    no("nice", Text { syntax: "INT", set: |_, v, u| super::units::int(v, u).map(|_| ()) }, "0", "CPU priority", "start mqblk itself under nice(1)"),
    no("numa_cpu_nodes", TEXT, "", "NUMA nodes to run on", "give the node's CPUs by cpus_allowed"),
    no("numa_mem_policy", TEXT, "", "NUMA memory policy", "start mqblk itself under numactl(8)"),
    warn("lockmem", INT, "0", "Lock memory", "mqblk locks no extra memory"),
    no("exitall", FLAG, "", "End all jobs when one ends", "give each job the same runtime and time_based instead").off(&["0"]),
    quiet("exit_what", words(&["group", "stonewall", "all"]), "group", "Which jobs exitall ends"),
    no("exitall_on_error", FLAG, "", "End all jobs when one fails", "remove the line").off(&["0"]),
    no("rate_min", INTS, "", "Least bandwidth", RATE_MIN).alias(&["ratemin"]).off(&["0"]),
    no("rate_iops_min", INTS, "", "Least I/Os per second", RATE_MIN).off(&["0"]),
    quiet("rate_cycle", INT, "1000", "Window of rate_min").alias(&["ratecycle"]),
    no("rate_ignore_thinktime", BOOL, "0", "Do not catch up on thinktime", "use rate or thinktime, not both"),
    no("thinktime_iotime", TIME, "0", "Pause after this much I/O time", "use thinktime_blocks"),
    no("max_latency", INTS_US, "0", "End when an I/O takes longer", "remove the line; the results show the longest I/O"),
    no("latency_target", TIME_US, "0", "Search the depth for a latency", LATENCY_TARGET),
    quiet("latency_window", TIME_US, "0", "Time the target must hold"),
    quiet("latency_percentile", FLOATS, "100", "Percentile the target is for"),
    quiet("latency_run", BOOL, "0", "Keep searching"),
    no("flow", INT, "0", "Weight against other jobs", "use rate or rate_iops to hold jobs in proportion"),
    quiet("flow_id", INT, "0", "Group that flow acts in"),
    quiet("flow_sleep", INT, "0", "Pause of a job held back by flow"),
    quiet("flow_watermark", INT, "", "Deprecated in fio, without effect"),
    no("steadystate", TEXT, "", "End when results are steady", "use runtime; mqblk compare warns when a device is not steady").alias(&["ss"]),
    quiet("steadystate_duration", TIME, "0", "Time to be steady").alias(&["ss_dur"]),
    quiet("steadystate_ramp_time", TIME, "0", "Time before steadiness counts").alias(&["ss_ramp"]),

    no("verify_only", FLAG, "", "Check data of an earlier run", "use rw=read with the same verify=").off(&["0"]),
    no("verify_interval", Int { min: 80, max: u64::MAX, set: |_, _| () }, "", "A header every n bytes", "use bs=N; mqblk puts one header into each block"),
    no("verify_offset", Int { min: 40, max: u64::MAX, set: |_, _| () }, "", "Move the header", "remove the line; a header is at the start of its block"),
    no("experimental_verify", BOOL, "", "Verify by running twice", "use verify= and do_verify=1").off(&["0"]),
    no("verify_state_load", BOOL, "", "Continue a verify", "mqblk keeps no verify state between runs").off(&["0"]),
    quiet("verify_state_save", BOOL, "1", "Save the state of a verify"),
    warn("verify_dump", BOOL, "0", "Dump bad blocks into files", "mqblk reports the offset of a bad block but writes no dump files"),
    warn("verify_async", INT, "0", "Threads that verify", "mqblk verifies in the submitting thread"),
    quiet("verify_async_cpus", TEXT, "", "CPUs of verify threads"),
    no("trim_percentage", PCT, "0", "Percent of verified blocks to trim", TRIM_VERIFY),
    quiet("trim_verify_zero", BOOL, "1", "Trimmed blocks must read as zero"),
    quiet("trim_backlog", INT, "", "Trim after n blocks"),
    quiet("trim_backlog_batch", INT, "", "Trim n blocks at once"),
    no("buffer_compress_percentage", PCT, "", "How well data compresses", DEDUPE).off(&["0"]),
    quiet("buffer_compress_chunk", INT, "512", "Size of compressible pieces"),
    no("dedupe_percentage", PCT, "", "How many blocks repeat", DEDUPE).off(&["0"]),
    quiet("dedupe_mode", words(&["repeat", "working_set"]), "repeat", "Which blocks repeat"),
    quiet("dedupe_working_set_percentage", PCT, "5", "Size of the repeated set"),
    quiet("dedupe_global", BOOL, "0", "Share the repeated set"),
];

/// Up to three times in us; sets nothing.
const INTS_US: Parser = Text {
    syntax: "TIME(us)[,WRITE[,TRIM]]",
    set: |_, v, _| super::units::per_dir(v, &[','], |part| super::units::time_ns(part, USEC_NS)).map(|_| ()),
};
