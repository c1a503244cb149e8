// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The legacy single-queue mode (Linux up to 4.20), kept as the baseline for comparisons with multi-queue.
//!
//! One `queue_lock` guards merging, request allocation, the elevator, dispatch and completion; one driver queue. Its cost
//! should come only from that lock and the shared cache lines, so this code avoids other costs of the old code. The lock is
//! dropped around a whole batch to the driver (the SCSI layer: around every command). It is taken once per polled batch of
//! completions (the old code: once per request). Source: block/blk-core.c of 4.19.

//!
//! - [`sq_queue`]: the data that the lock protects; [`request_list`]: how many requests a direction may have, and which
//!   submitters wait.
//! - [`path`]: the path of a request, as methods of the submitter's `Env`.

mod path;
pub(crate) mod request_list;
pub(crate) mod sq_queue;
