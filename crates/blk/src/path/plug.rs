// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The plug: requests a submitter holds back for a moment so that they reach the driver as one batch.
//!
//! Order is kept. A plug belongs to one submitter of one disk. In the kernel, a plug belongs to a task and may span
//! disks. Source: block/blk-core.c, blk-mq.c (`blk_plug`, `blk_add_rq_to_plug`).

use crate::lock::Lock;
use crate::request::Rq;
use crate::tags::hctx_tags::HctxTags;
use crate::tags::sbitmap::TagBatch;

/// `BLK_MAX_REQUEST_COUNT`: a plug that holds so many is flushed.
pub(crate) const BLK_MAX_REQUEST_COUNT: usize = 32;
/// `BLK_PLUG_FLUSH_SIZE` in sectors (128 KiB): a request that large flushes the plug.
pub(crate) const BLK_PLUG_FLUSH_SECTORS: u32 = 256;

/// Tags of one hctx, taken as a batch for later requests. While the plug is closed, it holds at most the one tag that
/// [`Plug::keep_tag`] kept.
pub(crate) struct TagCache {
    pub(crate) hctx: usize,
    pub(crate) bits: TagBatch,
}

pub(crate) struct Plug {
    depth: u32,
    /// How many more requests are expected; it is the size of the next batch of tags.
    pub(crate) nr_ios: u32,
    pub(crate) rqs: Vec<Rq>,
    pub(crate) cache: TagCache,
}

impl Plug {
    pub(crate) fn new(capacity: usize) -> Plug {
        Plug {
            depth: 0,
            nr_ios: 0,
            rqs: Vec::with_capacity(capacity.min(2 * BLK_MAX_REQUEST_COUNT)),
            cache: TagCache { hctx: 0, bits: TagBatch::EMPTY },
        }
    }

    #[inline]
    pub(crate) fn start(&mut self, nr_ios: u32) {
        if self.depth == 0 {
            self.nr_ios = nr_ios;
        }
        self.depth += 1;
    }

    /// Whether the next [`Plug::finish`] closes it.
    #[inline]
    pub(crate) fn is_outermost(&self) -> bool {
        self.depth == 1
    }

    /// Closes one level; true when that was the outermost.
    #[inline]
    pub(crate) fn finish(&mut self) -> bool {
        assert!(self.depth > 0, "finish_plug without start_plug");
        self.depth -= 1;
        if self.depth == 0 {
            self.nr_ios = 0;
        }
        self.depth == 0
    }

    /// Keeps a freed tag for the submitter's next request, if no submitter waits for a tag. At a depth of one this saves
    /// each I/O the two locked instructions of a put and a get. The submitter gives the tag back when it polls again, goes
    /// idle or is dropped, or at its next completion that keeps no tag. So a later waiter waits only for a request or two.
    /// False: the caller has to put the tag.
    #[inline]
    pub(crate) fn keep_tag<L: Lock>(&mut self, hctx: usize, tag: u32, tags: &HctxTags<L>) -> bool {
        if self.is_open() || !self.cache.bits.is_empty() || tags.has_waiters() {
            return false;
        }
        let Some(bits) = tags.batch_of(tag) else { return false };
        self.cache = TagCache { hctx, bits };
        true
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.depth > 0
    }

    /// Whether the plug is closed and holds requests.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.depth == 0 && !self.rqs.is_empty()
    }
}
