// SPDX-License-Identifier: Apache-2.0 OR MIT
//! noop, of the legacy single-queue mode: requests in the order they came, with merging.
//!
//! # Synopsis
//! First come, first served. A bio is merged with the request that ends where it starts, or with the last merged one.
//!
//! # Options
//! None.
//!
//! # Limits
//! There are no front merges but those of the one-hit cache. Requests are joined only with their neighbours in order
//! of arrival, so two requests become one only if one arrived directly after the other.
//!
//! # Since
//! Behaviour of Linux 4.19 block/noop-iosched.c.

use super::deadline_lists::SortNodes;
use super::fifo::Fifo;
use super::interface::{ElvCx, Tunable};
use super::legacy::Policy;
use super::tunables::unknown_tunable;
use crate::bio::BioSlot;

/// The name in `queue/scheduler`.
pub const NAME: &str = "noop";

/// The policy: a list.
pub(crate) struct Noop {
    list: Fifo,
}

impl Policy for Noop {
    const NAME: &'static str = NAME;

    fn new(_nodes: &SortNodes) -> Noop {
        Noop { list: Fifo::new() }
    }

    fn insert(&mut self, _cx: &ElvCx<'_>, n: &mut SortNodes, rq: u32) {
        self.list.push_back(&mut n.fifo, rq);
    }

    fn pick(&mut self, _cx: &ElvCx<'_>, n: &mut SortNodes) -> Option<u32> {
        self.list.pop_front(&mut n.fifo)
    }

    fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    fn front_candidate(&self, _n: &SortNodes, _bio: &BioSlot) -> Option<u32> {
        None
    }

    fn former(&self, n: &SortNodes, rq: u32) -> Option<u32> {
        n.fifo.former(rq)
    }

    fn latter(&self, n: &SortNodes, rq: u32) -> Option<u32> {
        n.fifo.latter(rq)
    }

    fn front_merged(&mut self, _cx: &ElvCx<'_>, _n: &mut SortNodes, _rq: u32) {}

    fn joined(&mut self, _cx: &ElvCx<'_>, n: &mut SortNodes, _kept: u32, gone: u32) {
        self.list.remove(&mut n.fifo, gone);
    }

    fn tunables(&self) -> Vec<Tunable> {
        Vec::new()
    }

    fn set_tunable(&mut self, name: &str, _value: u64) -> Result<(), String> {
        Err(unknown_tunable(NAME, name, [].into_iter()))
    }
}
