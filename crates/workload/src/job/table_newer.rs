// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Option rows that fio has since the releases after 3.33, up to 3.42, and names that it has deprecated. See `options`.
//! `cmdprio_hint` and `steadystate_check_interval` are in `table_policy`.

use super::option::Parser::Bool;
use super::option::{BOOL, FLAG, FLOATS, INT, OptionInfo, TEXT, foreign, no, quiet, warn, words, yes};

const PLACEMENT: &str = "mqblk passes no data placement to devices; remove the line";
const PROTECTION: &str = "mqblk adds no protection information or other metadata; remove the line";
const ZONED: &str = "mqblk does not drive zoned devices as such; remove the line";
const PRECONDITION: &str = "mqblk has no such preconditioning; write the device with rw=randwrite and norandommap=1";

#[rustfmt::skip] // A table: one row per line.
pub(super) static ROWS: &[OptionInfo] = &[
    warn("comm", TEXT, "", "Name of the job's process", "mqblk's threads are called job-N"),
    warn("end_syncfs", BOOL, "0", "Flush the file system at the end", "use end_fsync=1, which flushes the file"),
    no("filetype", words(&["none", "file", "block", "char"]), "none", "Kind of all files", "remove the line; mqblk looks at what the file is"),
    no("num_range", INT, "1", "Ranges of a trim", "remove the line; mqblk trims one range at a time").off(&["0"]),
    warn("priohint", INT, "", "I/O hint of the job", "mqblk's priorities have a class and a level only").off(&["0"]),
    no("ramp_size", INT, "0", "Bytes before measuring", "use ramp_time"),
    warn("thinkcycles", INT, "0", "Spin for so many cycles between I/Os", "use thinktime with thinktime_spin"),
    quiet("job_start_clock_id", INT, "", "Clock of a field of fio's JSON that mqblk's does not have"),
    quiet("log_issue_time", BOOL, "0", "Issue times in logs"),
    quiet("log_window_value", words(&["avg", "max", "both"]), "avg", "Which value of a window a log has"),
    quiet("percentage_sequential", INT, "", "Deprecated in fio, without effect"),
    quiet("rwmixcycle", INT, "", "Deprecated in fio, without effect"),
    quiet("verifysort", BOOL, "", "Deprecated in fio, without effect"),
    quiet("verifysort_nr", INT, "", "Deprecated in fio, without effect"),
    no("verify_pattern_interval", INT, "0", "A pattern anew every n bytes", "use bs=N; the pattern begins with each block"),
    yes("verify_write_sequence", Bool(|d, v| d.job.verify_write_sequence = v), "1", "Check the number of the write in headers"),
    yes("verify_header_seed", Bool(|d, v| d.job.verify_header_seed = v), "1", "Check the seed in headers, and so the whole data; 0 = only the checksum"),
    no("fdp", BOOL, "0", "Flexible data placement", PLACEMENT),
    no("dataplacement", words(&["none", "fdp", "streams"]), "none", "Data placement", PLACEMENT).alias(&["data_placement"]),
    quiet("plid_select", words(&["random", "roundrobin", "scheme"]), "", "How data is placed").alias(&["fdp_pli_select"]),
    quiet("plids", TEXT, "", "Where data is placed").alias(&["fdp_pli"]),
    quiet("dp_scheme", TEXT, "", "File with a scheme of data placement"),
    no("sprandom", BOOL, "0", "Precondition a flash device", PRECONDITION),
    quiet("spr_num_regions", INT, "100", "sprandom: regions"),
    quiet("spr_op", FLOATS, "0.15", "sprandom: over-provisioning"),
    quiet("spr_cs", INT, "0", "sprandom: cache size"),
    no("recover_zbd_write_error", BOOL, "0", "Continue after errors of zones", ZONED),
    no("write_zone_remainder", BOOL, "0", "Fill the remainder of zones by writes", ZONED),

    warn("libaio_vectored", BOOL, "0", "Vectored calls", "mqblk's file target chooses this itself"),
    no("write_mode", words(&["write", "uncor", "zeroes", "verify"]), "write", "Which NVMe command writes", "remove the line; mqblk writes by plain writes"),
    no("verify_mode", words(&["read", "compare"]), "read", "Which NVMe command verifies", "remove the line; mqblk reads and compares"),
    no("deac", FLAG, "", "Deallocate by write zeroes", "use rw=trim").off(&["0"]),
    no("md_per_io_size", INT, "", "Bytes of metadata", PROTECTION).off(&["0"]),
    no("pi_act", INT, "", "Who handles protection information", PROTECTION),
    no("pi_chk", TEXT, "", "Which protection information is checked", PROTECTION),
    no("apptag", INT, "", "Application tag", PROTECTION),
    no("apptag_mask", INT, "", "Mask of the application tag", PROTECTION),
    foreign("engine_name"), foreign("svcl"), foreign("no_completion_thread"), foreign("initiator"),
    foreign("hdfs_use_direct"), foreign("chunck_size"),
    foreign("http_object_mode"), foreign("http_s3_security_token"),
    foreign("rbd_encryption_format"), foreign("rbd_encryption_passphrase"),
    foreign("xnvme_be"), foreign("xnvme_dev_subnqn"), foreign("xnvme_mem"),
    foreign("libblkio_driver"), foreign("libblkio_path"), foreign("libblkio_pre_connect_props"), foreign("libblkio_pre_start_props"),
    foreign("libblkio_num_entries"), foreign("libblkio_queue_size"), foreign("libblkio_vectored"), foreign("libblkio_wait_mode"),
    foreign("libblkio_write_zeroes_on_trim"), foreign("libblkio_force_enable_completion_eventfd"),
];
