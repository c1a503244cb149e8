// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The way of a request through one disk: each file is a step, and most are methods of the submitter's `Env`.
//!
//! Down, in the order of a request:
//! - [`submit`]: from bio to request: checks it, and asks the following in their order.
//! - [`split`]: cuts a bio that is larger than one request may be.
//! - [`merge`]: whether a bio continues a request that is there.
//! - [`tag`]: takes a tag for a new request, waits for one, keeps a free one.
//! - [`plug`]: holds requests back for a moment; [`unplug`]: sends them on, to the driver, a software queue or the elevator.
//! - [`flush`]: the steps of a flush or FUA write.
//! - [`dispatch`]: runs hardware queues: from lists and elevator, with a driver tag, to the driver.
//!
//! Up:
//! - [`complete`]: what a poll of the driver brings: ends requests and bios, frees tags, runs what waited.
//! - [`requeue`]: requests that the driver gave back.
//! - [`timeout`]: requests that the driver has had for too long.

pub(crate) mod complete;
pub(crate) mod dispatch;
pub(crate) mod flush;
pub(crate) mod merge;
pub(crate) mod plug;
mod requeue;
mod split;
pub(crate) mod submit;
mod tag;
pub(crate) mod timeout;
mod unplug;
