// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an IOThread serves: the contract between the thread and an export's virtqueue, connection or queue.
//!
//! Guarantees, by the thread: all calls come from the thread that serves the source; a source is handed back, moved or dropped only when
//! none of its requests is in flight. Calls are per round, not per request.

use super::port::{Port, SourceId};
use blk::submitter::Done;
use blk::time::Instant;
use rustix::event::epoll::EventFlags;
use std::any::Any;
use std::os::fd::BorrowedFd;

/// The name of a source in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLabel<'a> {
    /// Kind of export.
    pub kind: &'static str,
    /// Name of the export.
    pub export: &'a str,
    /// Number in the export, 0 if there is only one.
    pub index: u32,
}

/// A virtqueue, a client's connection, a queue of a device: it takes requests from a client and answers them.
pub trait Source: Any + Send {
    /// Takes requests that clients have sent and submits them to `port`, each bio tagged with `id`. Returns whether there were any.
    fn serve(&mut self, id: SourceId, port: &mut Port, now: Instant) -> bool;

    /// Handles completed bios of this source, in this order; [`SourceId::own`] has the number it tagged each with.
    fn ended(&mut self, done: &[Done], port: &mut Port);

    /// Ends a round: sends the replies.
    fn finish_round(&mut self) {}

    /// Whether it has left by itself, with no request in flight. Its handle is invalid after that.
    fn is_finished(&self) -> bool {
        false
    }

    /// Makes its descriptor report the next request. Returns whether the thread may sleep: no request arrived in the meantime.
    fn prepare_sleep(&mut self) -> bool;

    /// Called when the thread is awake again and serves all sources in rounds.
    fn wake_up(&mut self) {}

    /// Returns the descriptor that becomes ready when a client has sent something; `None`: the thread must poll.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Returns which events of its descriptor end a sleep.
    fn interest(&self) -> EventFlags;

    /// Pauses or resumes it. While paused it takes no new requests; those in flight continue.
    fn set_paused(&mut self, paused: bool);

    /// Whether another IOThread may serve it. If so, its export's `RunningExport::remap` must not reject the move.
    fn can_move(&self) -> bool {
        true
    }

    /// Returns its name in reports.
    fn label(&self) -> SourceLabel<'_>;

    /// Returns the number of requests served so far.
    fn served(&self) -> u64;

    /// Returns the number of requests in flight.
    fn in_flight(&self) -> usize;
}

impl dyn Source {
    /// Returns the source as the type that it was added as.
    ///
    /// # Panics
    /// It was added as another type.
    pub fn of_type<S: Source>(&mut self) -> &mut S {
        let any: &mut dyn Any = self;
        any.downcast_mut().expect("a source is of the type it was added as")
    }

    /// As `of_type`, by value.
    ///
    /// # Panics
    /// It was added as another type.
    pub fn into_type<S: Source>(self: Box<Self>) -> Box<S> {
        let any: Box<dyn Any> = self;
        any.downcast().expect("a source is of the type it was added as")
    }
}
