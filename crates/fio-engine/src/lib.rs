// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `libmqblk_fio.so`: an I/O engine for fio (`ioengine=external:PATH`), so that existing fio jobs drive this block layer
//! unchanged.
//!
//! Guarantees: fio decides what is read, written, verified and measured, as with any engine. I/O uses fio's own buffers. Jobs of one
//! process (`thread=1`) with the same `filename` share one disk and one request queue; each forked job has its own. A fio whose
//! structures are not known is rejected with a message. Does not: have options of its own in a job file, because that would require more
//! knowledge of fio's internals. Settings are in `filename=TARGET?setting=value` and in `MQBLK_SET`.
//!
//! Layers: [`abi`] is the interface to C and the only file with `unsafe`; [`layout`] describes fio's structures; [`name`] reads file
//! names; [`disks`] holds the open disks of this process; [`job`] submits and reaps the I/O of one job.

#[allow(unsafe_code, reason = "called by fio, on fio's structures")]
mod abi;
mod disks;
mod job;
mod layout;
mod name;
