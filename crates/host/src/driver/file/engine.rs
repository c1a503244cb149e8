// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine of one hctx: a ring, or a pool of threads.

use super::open::Opened;
use super::pool::Pool;
use super::ring::Ring;
use crate::driver::aio::{self, Aio};
use crate::mem::Regions;
use blk::driver::{Completions, RqBatch};
use blk::status::QueueRqStatus;
use blk::time::Duration;
use std::os::fd::RawFd;
use std::sync::Arc;

/// See the module's text.
#[allow(clippy::large_enum_variant, reason = "a ring behind a pointer would cost each call another access")]
pub(super) enum Engine {
    Ring(Ring),
    Pool(Pool),
}

impl Engine {
    /// Makes an engine for requests with tags below `depth`, a power of two. If the process may not use a ring of this depth and `aio` does
    /// not insist, it is a pool; `aio` says so from then on.
    ///
    /// # Errors
    /// What the system refuses.
    pub(super) fn new(
        depth: u32,
        aio: &aio::Choice,
        file: &Arc<Opened>,
        regions: &Arc<Regions>,
    ) -> std::result::Result<Engine, String> {
        if aio.now() == Aio::IoUring {
            match Ring::shared(depth, Arc::clone(file), Arc::clone(regions)) {
                Ok(ring) => return Ok(Engine::Ring(ring)),
                Err(e) if aio.fall_back(&e) => log::warn!("{}", aio::explain(&e)),
                Err(e) => return Err(aio::failed(&e)),
            }
        }
        let pool = Pool::start(depth, Arc::clone(file), Arc::clone(regions));
        pool.map(Engine::Pool).map_err(|e| e.to_string())
    }

    /// Returns the ring, unless this is a pool.
    pub(super) fn ring(&self) -> Option<&Ring> {
        match self {
            Engine::Ring(ring) => Some(ring),
            Engine::Pool(_) => None,
        }
    }

    /// Whether requests wait for the next poll, although nothing has completed.
    pub(super) fn has_unsubmitted(&self) -> bool {
        match self {
            Engine::Ring(ring) => ring.has_unsubmitted(),
            Engine::Pool(_) => false,
        }
    }

    /// Returns the descriptor that is readable when there are completions.
    pub(super) fn fd(&self) -> RawFd {
        match self {
            Engine::Ring(ring) => ring.fd(),
            Engine::Pool(pool) => pool.fd(),
        }
    }

    #[inline]
    pub(super) fn queue_rqs(&self, batch: &mut RqBatch<'_>) -> QueueRqStatus {
        match self {
            Engine::Ring(ring) => ring.queue_rqs(batch),
            Engine::Pool(pool) => pool.queue_rqs(batch),
        }
    }

    #[inline]
    pub(super) fn poll(&self, done: &mut Completions) {
        match self {
            Engine::Ring(ring) => ring.poll(done),
            Engine::Pool(pool) => pool.poll(done),
        }
    }

    #[inline]
    pub(super) fn wait(&self, seen: u64, min: u32, timeout: Option<Duration>) {
        match self {
            Engine::Ring(ring) => ring.wait(seen, min, timeout),
            Engine::Pool(pool) => pool.wait(seen, min, timeout),
        }
    }

    #[inline]
    pub(super) fn wakes(&self) -> u64 {
        match self {
            Engine::Ring(ring) => ring.wakes(),
            Engine::Pool(pool) => pool.wakes(),
        }
    }

    pub(super) fn wake(&self) {
        match self {
            Engine::Ring(ring) => ring.wake(),
            Engine::Pool(pool) => pool.wake(),
        }
    }
}
