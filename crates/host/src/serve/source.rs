// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an IOThread serves: the contract between the thread and an export's virtqueue, connection or queue.
//!
//! Guarantees, by the thread: all calls come from the thread that has the source; a source is handed back, moved or dropped
//! only when nothing of it is in flight. Calls are per round, not per request.

use super::port::{Port, SourceId};
use blk::submitter::Done;
use blk::time::Instant;
use rustix::event::epoll::EventFlags;
use std::any::Any;
use std::os::fd::BorrowedFd;

/// How reports name a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLabel<'a> {
    /// Kind of export.
    pub kind: &'static str,
    /// Name of the export.
    pub export: &'a str,
    /// Number in the export, 0 if there is only one.
    pub index: u32,
}

/// A virtqueue, a client's connection, a queue of a device: what takes requests from a client and answers them.
pub trait Source: Any + Send {
    /// Takes requests that clients have sent and submits them to `port`, each bio tagged with `id`. Returns whether there were any.
    fn serve(&mut self, id: SourceId, port: &mut Port, now: Instant) -> bool;

    /// Handles completed bios of this source, in this order; [`SourceId::own`] has the number it tagged each with.
    fn ended(&mut self, done: &[Done], port: &mut Port);

    /// Ends a round: sends its replies.
    fn finish_round(&mut self) {}

    /// Whether it has left by itself, with nothing in flight. Its handle means nothing after that.
    fn is_finished(&self) -> bool {
        false
    }

    /// Makes its descriptor report the next request. Returns whether the thread may sleep now: nothing came meanwhile.
    fn prepare_sleep(&mut self) -> bool;

    /// The thread is awake and checks everything by itself.
    fn wake_up(&mut self) {}

    /// The descriptor that becomes ready when a client has sent something; `None`: the thread must poll.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Which events of its descriptor end a sleep.
    fn interest(&self) -> EventFlags;

    /// While paused it takes nothing new; what is in flight continues.
    fn set_paused(&mut self, paused: bool);

    /// Whether another IOThread may serve it. If so, its export's `RunningExport::remap` must not reject the move.
    fn can_move(&self) -> bool {
        true
    }

    /// How reports name it.
    fn label(&self) -> SourceLabel<'_>;

    /// Requests served so far.
    fn served(&self) -> u64;

    /// Requests that are not answered.
    fn in_flight(&self) -> usize;
}

impl dyn Source {
    /// The source as the type that it was added as.
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
