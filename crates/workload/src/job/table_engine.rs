// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Option rows that belong to single I/O engines of fio. See `options`; `hipri`, which several have, is in `table_io`.

use super::option::{BOOL, FLAG, INT, OptionInfo, PCT, foreign, no, quiet, warn};

const URING: &str = "mqblk's file target chooses this itself";

#[rustfmt::skip] // A table: one row per line.
pub(super) static ROWS: &[OptionInfo] = &[
    no("hipri_percentage", PCT, "100", "Percent of I/Os that are polled", "use hipri alone"),
    no("uncached", INT, "0", "Uncached buffered I/O", "use direct=1"),
    warn("nowait", BOOL, "0", "Fail instead of blocking", "mqblk's drivers choose how they submit"),
    warn("force_async", INT, "0", "Punt every n-th I/O to a thread", "mqblk's drivers choose how they submit"),
    no("sqthread_poll", FLAG, "", "A kernel thread submits", "remove the line; it would hide CPU time that mqblk reports").off(&["0"]),
    quiet("sqthread_poll_cpu", INT, "0", "CPU of the kernel thread"),
    warn("userspace_reap", FLAG, "", "Reap libaio events without a system call", URING).off(&["0"]),
    warn("fixedbufs", FLAG, "", "Register buffers", URING).off(&["0"]),
    warn("registerfiles", FLAG, "", "Register files", URING).off(&["0"]),
    warn("nonvectored", INT, "", "Plain instead of vectored calls", URING),
    foreign("cmd_type"),
    foreign("thp"),
    foreign("cpuload"), foreign("cpuchunks"), foreign("cpumode"), foreign("exit_on_io_done"),
    foreign("hostname"), foreign("bindname"), foreign("port"), foreign("protocol").alias(&["proto"]), foreign("nodelay"), foreign("listen"),
    foreign("pingpong"), foreign("interface"), foreign("ttl"), foreign("window_size"), foreign("mss"), foreign("verb"),
    foreign("stat_type"), foreign("program"), foreign("arguments"), foreign("grace_time"), foreign("std_redirect"),
    foreign("donorname"), foreign("inplace"), foreign("volume"), foreign("brick"), foreign("single-instance"), foreign("skip_bad"),
    foreign("readfua"), foreign("writefua"), foreign("sg_write_mode"), foreign("stream_id"), foreign("uri"),
    foreign("clustername"), foreign("rbdname"), foreign("pool"), foreign("clientname"), foreign("conf"), foreign("busy_poll"), foreign("touch_objects"),
    foreign("namenode"), foreign("hdfsdirectory"), foreign("chunk_size"), foreign("cont"), foreign("object_class"),
    foreign("serverip"), foreign("direct_write_to_pmem"), foreign("busy_wait_polling"),
    foreign("http_host"), foreign("http_user"), foreign("http_pass"), foreign("https"), foreign("http_mode"), foreign("http_s3_region"),
    foreign("http_s3_key"), foreign("http_s3_keyid"), foreign("http_s3_sse_customer_key"), foreign("http_s3_sse_customer_algorithm"),
    foreign("http_s3_storage_class"), foreign("http_swift_auth_token"), foreign("http_verbose"),
    foreign("gpu_dev_ids"), foreign("gpu_dev_id"), foreign("cuda_io"), foreign("nfs_url"),
    foreign("xnvme_async"), foreign("xnvme_sync"), foreign("xnvme_admin"), foreign("xnvme_dev_nsid"), foreign("xnvme_iovec"),
    foreign("device-names"), foreign("load"), foreign("test-duration"), foreign("threads-per-queue"), foreign("read-req-num-512-blocks"),
    foreign("large-block-op-kbytes"), foreign("prep"), foreign("block"), foreign("numruns"), foreign("dir"),
];
