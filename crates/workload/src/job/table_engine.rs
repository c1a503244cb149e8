// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Option rows that belong to single I/O engines of fio. See `options`; `hipri`, which several have, is in `table_io`.

use super::option::{BOOL, FLAG, INT, INTS, OptionInfo, PCT, Parser, Support, TEXT, no, quiet, warn};

const NOT_THIS: &str = "belongs to a fio engine that mqblk does not have; mqblk drives its own targets (file, block device, null, ram, model)";
const CMDPRIO: &str = "mqblk gives all I/Os of a job one priority; use prio and prioclass in two jobs";
const URING: &str = "mqblk's file target chooses this itself";

/// Whether the option belongs to an engine that mqblk has no counterpart for. The rejection of the engine is then sufficient.
pub(super) fn is_foreign(name: &str) -> bool {
    ROWS.iter().any(|row| row.name == name && row.support == Support::Refused(NOT_THIS))
}

/// An option of an engine that mqblk has no counterpart for.
const fn other(name: &'static str) -> OptionInfo {
    no(name, Parser::OptionalText, "", "Option of an I/O engine that mqblk does not have", NOT_THIS)
}

#[rustfmt::skip] // A table: one row per line.
pub(super) static ROWS: &[OptionInfo] = &[
    no("hipri_percentage", PCT, "100", "Percent of I/Os that are polled", "use hipri alone"),
    no("uncached", INT, "0", "Uncached buffered I/O", "use direct=1"),
    no("nowait", BOOL, "0", "Fail instead of blocking", "remove the line"),
    no("force_async", INT, "0", "Punt every n-th I/O to a thread", "remove the line"),
    no("sqthread_poll", FLAG, "", "A kernel thread submits", "remove the line; it would hide CPU time that mqblk reports").off(&["0"]),
    quiet("sqthread_poll_cpu", INT, "0", "CPU of the kernel thread"),
    no("cmdprio_percentage", INTS, "0", "Percent of I/Os with another priority", CMDPRIO),
    no("cmdprio_bssplit", TEXT, "", "Priorities by block size", CMDPRIO),
    quiet("cmdprio_class", INTS, "", "Priority class of the I/Os that cmdprio_percentage selects"),
    quiet("cmdprio", INTS, "", "Priority within cmdprio_class"),
    warn("userspace_reap", FLAG, "", "Reap libaio events without a system call", URING).off(&["0"]),
    warn("fixedbufs", FLAG, "", "Register buffers", URING).off(&["0"]),
    warn("registerfiles", FLAG, "", "Register files", URING).off(&["0"]),
    warn("nonvectored", INT, "", "Plain instead of vectored calls", URING),
    other("cmd_type"),
    other("thp"),
    other("cpuload"), other("cpuchunks"), other("cpumode"), other("exit_on_io_done"),
    other("hostname"), other("bindname"), other("port"), other("protocol").alias(&["proto"]), other("nodelay"), other("listen"),
    other("pingpong"), other("interface"), other("ttl"), other("window_size"), other("mss"), other("verb"),
    other("stat_type"), other("program"), other("arguments"), other("grace_time"), other("std_redirect"),
    other("donorname"), other("inplace"), other("volume"), other("brick"), other("single-instance"), other("skip_bad"),
    other("readfua"), other("writefua"), other("sg_write_mode"), other("stream_id"), other("uri"),
    other("clustername"), other("rbdname"), other("pool"), other("clientname"), other("conf"), other("busy_poll"), other("touch_objects"),
    other("namenode"), other("hdfsdirectory"), other("chunk_size"), other("cont"), other("object_class"),
    other("serverip"), other("direct_write_to_pmem"), other("busy_wait_polling"),
    other("http_host"), other("http_user"), other("http_pass"), other("https"), other("http_mode"), other("http_s3_region"),
    other("http_s3_key"), other("http_s3_keyid"), other("http_s3_sse_customer_key"), other("http_s3_sse_customer_algorithm"),
    other("http_s3_storage_class"), other("http_swift_auth_token"), other("http_verbose"),
    other("gpu_dev_ids"), other("gpu_dev_id"), other("cuda_io"), other("nfs_url"),
    other("xnvme_async"), other("xnvme_sync"), other("xnvme_admin"), other("xnvme_dev_nsid"), other("xnvme_iovec"),
    other("device-names"), other("load"), other("test-duration"), other("threads-per-queue"), other("read-req-num-512-blocks"),
    other("large-block-op-kbytes"), other("prep"), other("block"), other("numruns"), other("dir"),
];
