// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bios that one submitter holds back, in lines: those under limits, those that wait for a token.

use super::line::BioLine;
use super::state::NR_FIFOS;
use super::wbt::KINDS;
use crate::bio::BioPool;

/// A submitter's held bios.
#[derive(Debug, Default)]
pub(crate) struct HeldBios {
    pub(super) nr: usize,
    pub(super) fifos: [BioLine; NR_FIFOS],
    /// The first of the line has a place among the turns.
    pub(super) is_queued: [bool; NR_FIFOS],
    /// Waiting for a token; the first has asked.
    pub(super) tokens: [BioLine; KINDS],
    /// Why the bio that did not become a request just now has to be held: it needs a token of this kind.
    pub(super) throttled: Option<usize>,
}

impl HeldBios {
    /// Bios held.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.nr
    }

    /// Whether bios wait for tokens of a kind.
    pub(super) fn is_throttled(&self, kind: usize) -> bool {
        !self.tokens[kind].is_empty()
    }

    /// Holds a bio that just did not become a request, if that was for want of a token.
    pub(crate) fn hold_throttled(&mut self, pool: &BioPool, index: u32) -> bool {
        let Some(kind) = self.throttled.take() else { return false };
        self.tokens[kind].push_back(pool, index);
        self.nr += 1;
        true
    }

    /// Forgets why the bio was refused: it ends instead of waiting.
    pub(crate) fn refuse_throttled(&mut self) {
        self.throttled = None;
    }
}
