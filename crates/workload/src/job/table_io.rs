// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Option rows: which I/O is issued, how and when; randomness, rates, verification and data. See `options`.

use super::draft::{merge, merge_some};
use super::option::Parser::{Bool, Flag, Int, Ints, Text, Time, Words};
use super::option::{BOOL, INT, OptionInfo, TEXT, no, quiet, warn, words, yes};
use super::pattern;
use super::spec::{BLOCK_BYTES_MAX, IODEPTH_MAX, NUMJOBS_MAX};
use super::units::{SEC_NS, USEC_NS};
use super::values::{CpusPolicy, PrioClass, RandomGenerator, RateProcess, RwSequencer, SyncMode, ThinktimeBlocks};
use super::{lists, setters};

const DEPTH: u64 = IODEPTH_MAX as u64;
const U32: u64 = u32::MAX as u64;
const PLACE: &str = "mqblk places no memory and no threads by node; start it under numactl(8), or give cpus_allowed";

#[rustfmt::skip] // A table: one row per line.
pub(super) static ROWS: &[OptionInfo] = &[
    yes("rw", Text { syntax: "PATTERN[:MODIFIER]", set: setters::set_rw }, "read", "Directions and order, such as read, randwrite, randrw").alias(&["readwrite"]),
    yes("rw_sequencer", Words { words: &["sequential", "identical"], set: |d, v| d.job.rw_sequencer = if v == "identical" { RwSequencer::Identical } else { RwSequencer::Sequential } }, "sequential", "What rw=randread:8 does between fresh offsets"),
    yes("rwmixread", Int { min: 0, max: 100, set: |d, v| d.job.rwmixread_pct = v as u32 }, "50", "Percent of a mixed job that reads"),
    yes("rwmixwrite", Int { min: 0, max: 100, set: |d, v| d.job.rwmixread_pct = 100 - v as u32 }, "50", "Percent of a mixed job that writes"),
    yes("bs", Ints { min: 1, max: BLOCK_BYTES_MAX, set: |d, v| merge_some(&mut d.bs, v) }, "4096", "Block size").alias(&["blocksize"]),
    yes("bsrange", Text { syntax: "SIZE-SIZE[,WRITE[,TRIM]]", set: setters::set_bsrange }, "", "Uniform range of block sizes").alias(&["blocksize_range"]),
    yes("bssplit", Text { syntax: "SIZE/PERCENT:...[,WRITE[,TRIM]]", set: setters::set_bssplit }, "", "Block sizes with weights"),
    yes("bs_unaligned", Flag(|d, v| d.job.bs_unaligned = v), "0", "bsrange: any size, not only multiples of the smallest").alias(&["blocksize_unaligned"]),
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
    yes("prioclass", Int { min: 0, max: 3, set: |d, v| d.job.prioclass = PrioClass::of_number(v) }, "", "I/O priority class: 1 real time, 2 best effort, 3 idle"),
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
    yes("randseed", Int { min: 0, max: u64::MAX, set: |d, v| d.randseed = Some(v) }, "0x89", "Seed"),
    yes("randrepeat", Bool(|d, v| d.job.randrepeat = v), "1", "The same sequence in every run"),
    yes("allrandrepeat", Bool(|d, v| d.job.allrandrepeat = v), "0", "Sizes, mixes and data repeat, whatever the seeds are"),
    quiet("softrandommap", BOOL, "0", "Continue without a random map if memory is short"),
    yes("random_generator", Words { words: &["tausworthe", "lfsr", "tausworthe64"], set: |d, v| d.job.random_generator = match v { "lfsr" => RandomGenerator::Lfsr, "tausworthe64" => RandomGenerator::Tausworthe64, _ => RandomGenerator::Tausworthe } }, "tausworthe", "What draws random offsets; lfsr covers all blocks without a map"),

    yes("verify", Text { syntax: "KIND|0", set: setters::set_verify }, "0", "Checksum or pattern in each written block: crc7, crc16, crc32, crc32c, crc64, md5, sha1, sha256, sha512, sha3-224, sha3-256, sha3-384, sha3-512, xxhash, meta, pattern, null"),
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

    yes("bs_is_seq_rand", Bool(|d, v| d.job.bs_is_seq_rand = v), "0", "Sequential I/Os have the sizes of reads, random ones those of writes"),
    no("serialize_overlap", BOOL, "0", "Wait for I/Os that collide", "use iodepth=1, or leave norandommap out, so that blocks do not collide"),
    warn("io_submit_mode", words(&["inline", "offload"]), "inline", "Which thread submits", "mqblk submits inline, and measures rate-limited I/Os from their intended start"),
    no("write_barrier", INT, "0", "Make every n-th write a barrier", "use fdatasync=N"),
    no("sync_file_range", TEXT, "", "Call sync_file_range", "use fdatasync=N"),
    yes("fsync_on_close", Bool(|d, v| d.fsync_on_close = v), "0", "As end_fsync"),
    no("atomic", BOOL, "0", "Atomic writes", "remove the line; mqblk has no atomic writes"),
    warn("write_hint", words(&["none", "short", "medium", "long", "extreme"]), "none", "Expected life time of data", "mqblk passes no hints"),
    warn("nice", Text { syntax: "INT", set: |_, v, u| super::units::int(v, u).map(|_| ()) }, "0", "CPU priority", "start mqblk itself under nice(1)"),
    warn("numa_cpu_nodes", TEXT, "", "NUMA nodes to run on", PLACE),
    warn("numa_mem_policy", TEXT, "", "NUMA memory policy", PLACE),
    warn("lockmem", INT, "0", "Lock memory", "mqblk locks no extra memory"),
    no("rate_ignore_thinktime", BOOL, "0", "Do not catch up on thinktime", "use rate or thinktime, not both"),

    yes("verify_only", Flag(|d, v| d.job.verify_only = v), "", "Write nothing; check data of an earlier run of the job"),
    yes("verify_interval", Int { min: 80, max: U32, set: |d, v| d.job.verify_interval = Some(v) }, "", "A header every n bytes; default: the smallest block"),
    yes("verify_offset", Int { min: 40, max: U32, set: |d, v| d.job.verify_offset = Some(v) }, "", "Place of the header in its block; default: in front"),
    warn("experimental_verify", BOOL, "", "Draw the writes again to verify them", "mqblk remembers the writes, and verifies the same blocks").off(&["0"]),
    yes("verify_state_load", Bool(|d, v| d.job.verify_state_load = v), "", "Verify as far as an earlier run wrote, by its local-JOB-N-verify.state"),
    yes("verify_state_save", Bool(|d, v| d.job.verify_state_save = v), "1", "Leave a file that says how far the writes of a verified job got"),
    yes("verify_dump", Bool(|d, v| d.job.verify_dump = v), "0", "Leave bad blocks in FILE.OFFSET.received and .expected, or .hdr_fail"),
    warn("verify_async", INT, "0", "Threads that verify", "mqblk verifies on the job's own thread, with the same results; use numjobs for more threads"),
    warn("verify_async_cpus", TEXT, "", "CPUs of verify threads", "mqblk verifies on the job's own thread; use cpus_allowed"),
    yes("trim_percentage", Int { min: 0, max: 100, set: |d, v| d.job.trim_pct = v as u32 }, "0", "Percent of the verified blocks to trim; needs trim_backlog"),
    yes("trim_verify_zero", Bool(|d, v| d.job.trim_verify_zero = v), "1", "Trimmed blocks must read back as zeroes; 0 = they are not read back"),
    yes("trim_backlog", Int { min: 0, max: u64::MAX, set: |d, v| d.job.trim_backlog = v }, "", "Trim after every n written blocks"),
    yes("trim_backlog_batch", Int { min: 0, max: U32, set: |d, v| d.job.trim_backlog_batch = v }, "", "Blocks per such trim; default: trim_backlog"),
];
