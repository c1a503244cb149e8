// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The path of a request through one disk. Each file is a step; most steps are methods of the submitter's `Env`.
//!
//! Down, in the order of a request:
//! - [`submit`]: from bio to request: checks the bio and calls the steps below in order.
//! - [`split`]: splits a bio that is larger than one request may be.
//! - [`merge`]: merges a bio into an adjoining request.
//! - [`tag`]: takes a tag for a new request, waits for a tag, keeps a freed tag.
//! - [`plug`]: collects requests for a moment; [`unplug`]: passes them to the driver, a software queue or the elevator.
//! - [`flush`]: the steps of a flush or FUA write.
//! - [`dispatch`]: runs hardware queues: takes requests from lists and elevator, gets driver tags for them, and issues
//!   them to the driver.
//!
//! Up:
//! - [`complete`]: handles the completions that a poll of the driver returns: completes requests and bios, frees tags,
//!   runs waiting hardware queues.
//! - [`enospc`]: writes that wait for space.
//! - [`requeue`]: requests that the driver returned to be issued again.
//! - [`timeout`]: requests that the driver has had for too long.

pub(crate) mod complete;
pub(crate) mod dispatch;
mod enospc;
pub(crate) mod flush;
pub(crate) mod merge;
pub(crate) mod plug;
mod requeue;
mod split;
pub(crate) mod submit;
mod tag;
pub(crate) mod timeout;
mod unplug;
