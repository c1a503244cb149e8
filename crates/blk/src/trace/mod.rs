// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A submitter's trace: what happened to its bios and requests, as typed events at the places of the kernel's tracepoints.
//!
//! Guarantees: events are in the order in which the submitter made them, and their times are those the core was called with.
//! The log belongs to the submitter. It is allocated and touched when tracing is turned on, so nothing is shared and nothing
//! is allocated per event. (`log` tells how few bytes an event takes.) When it is full further events are counted, not
//! stored. Off, each place costs one branch on a plain field of the submitter. All that is behind the branch is out of line
//! and marked cold. So the compiler lays out the data path as if it were not there.
//!
//! Needs from callers: to drain it ([`Submitter::drain_trace`](crate::submitter::Submitter::drain_trace)) before it is full.
//!
//! What one submitter completes or dispatches for another is in its own log, so a request's life may be in several; sorted
//! by time they are the disk's trace. A bio that is refused before it reaches a queue has no events, as in the kernel.
//! An issue that the driver turns down for lack of resources is an [`Issue`](EventKind::Issue) and a
//! [`Requeue`](EventKind::Requeue), as of drivers that start the request first.
//!
//! Source: include/trace/events/block.h and kernel/trace/blktrace.c of Linux 6.19 (which event at which step).

pub(crate) mod event;
pub(crate) mod log;
mod points;

pub use event::{Event, EventKind, TraceLog};
