// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `libmqblk_fio.so`: an I/O engine for fio (`ioengine=external:PATH`), so that existing fio jobs drive this block layer
//! unchanged.
//!
//! Guarantees: fio decides what is read, written, verified and measured, as with any engine; I/O goes from and to fio's own
//! buffers. Jobs of one process (`thread=1`) with the same `filename` have one disk and one request queue, forked jobs one
//! each. A fio whose structures are not known is refused with a sentence. Does not: take options of its own in a job file, for
//! which more of fio's inside would have to be known; settings come in `filename=TARGET?setting=value` and in `MQBLK_SET`.
//!
//! Layers: [`abi`] is the edge to C, the only file with `unsafe`; [`layout`] has what is known of fio's structures; [`name`] reads
//! file names; [`disks`] are what is open in this process; [`job`] is one job's submitting and reaping.

#[allow(unsafe_code, reason = "called by fio, on fio's structures")]
mod abi;
mod disks;
mod job;
mod layout;
mod name;
