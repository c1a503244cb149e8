// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bios that one submitter holds back: queues of bios under limits, and queues of bios that wait for a token.

use super::line::BioLine;
use super::state::NR_FIFOS;
use super::wbt::KINDS;
use crate::bio::BioPool;

/// A submitter's held bios.
#[derive(Debug, Default)]
pub(crate) struct HeldBios {
    pub(super) nr: usize,
    pub(super) fifos: [BioLine; NR_FIFOS],
    /// The first bio of the queue has an entry in the limiter.
    pub(super) is_queued: [bool; NR_FIFOS],
    /// Bios that wait for a token; the first bio of each queue has asked for one.
    pub(super) tokens: [BioLine; KINDS],
    /// The kind of token that is missing for the bio that has just not become a request.
    pub(super) throttled: Option<usize>,
}

impl HeldBios {
    /// Number of held bios.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.nr
    }

    /// Whether bios wait for tokens of a kind.
    pub(super) fn is_throttled(&self, kind: usize) -> bool {
        !self.tokens[kind].is_empty()
    }

    /// Holds a bio that has just not become a request, if the reason is a missing token. Returns whether it was.
    pub(crate) fn hold_throttled(&mut self, pool: &BioPool, index: u32) -> bool {
        let Some(kind) = self.throttled.take() else { return false };
        self.tokens[kind].push_back(pool, index);
        self.nr += 1;
        true
    }

    /// Clears the kind of the missing token, because the bio completes instead of waiting.
    pub(crate) fn refuse_throttled(&mut self) {
        self.throttled = None;
    }
}
