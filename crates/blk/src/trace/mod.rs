// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A submitter's trace: the steps of its bios and requests, as typed events at the kernel's tracepoints.
//!
//! Guarantees: events are in the order in which the submitter made them, and their times are the times that were passed to
//! the core. The log belongs to the submitter. It is allocated and touched when tracing is turned on, so nothing is shared
//! and nothing is allocated per event. (`log` describes how events are stored.) When the log is full, further events are
//! counted, not stored. While tracing is off, each tracepoint costs one branch on a plain field of the submitter. The code
//! after the branch is out of line and marked cold, so the compiler lays out the data path as if there were no tracing.
//!
//! Needs from callers: to drain it ([`Submitter::drain_trace`](crate::submitter::Submitter::drain_trace)) before it is full.
//!
//! A submitter that completes or dispatches requests for another has these events in its own log. So the events of one
//! request may be in several logs; all logs sorted by time are the disk's trace. A bio that is rejected before it reaches
//! a queue has no events, as in the kernel. If the driver rejects a request for lack of resources, the events are
//! [`Issue`](EventKind::Issue) and [`Requeue`](EventKind::Requeue), as with kernel drivers that start the request first.
//!
//! Source: include/trace/events/block.h and kernel/trace/blktrace.c of Linux 6.19 (the events of each step).

pub(crate) mod event;
pub(crate) mod log;
mod points;

pub use event::{Event, EventKind, TraceLog};
