// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which blocks are being rewritten in part, so that nobody else does the same to them meanwhile.
//!
//! Guarantees: ranges that are held do not overlap. Who does not get one tries again. Writes of whole blocks by direct I/O
//! are not asked for here: who has such a write and another one to the same block under way has no promise from any block
//! device either.

use parking_lot::Mutex;
use std::ops::Range;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Partials(Mutex<Vec<Range<u64>>>);

impl Partials {
    /// Room for `holders` at a time without allocation.
    pub(super) fn new(holders: usize) -> Partials {
        Partials(Mutex::new(Vec::with_capacity(holders)))
    }

    /// Holds a range of bytes, if none of it is held.
    pub(super) fn hold(&self, range: Range<u64>) -> bool {
        let mut held = self.0.lock();
        if held.iter().any(|h| h.start < range.end && range.start < h.end) {
            return false;
        }
        held.push(range);
        true
    }

    /// Gives a range back.
    pub(super) fn give_back(&self, range: &Range<u64>) {
        let mut held = self.0.lock();
        let at = held.iter().position(|h| h == range).expect("a range is given back that is held");
        held.swap_remove(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_does_not_overlap() {
        let p = Partials::new(4);
        assert!(p.hold(512..1024) && p.hold(1024..4096));
        assert!(!p.hold(0..513) && !p.hold(1023..1025) && !p.hold(600..700) && !p.hold(0..8192));
        p.give_back(&(512..1024));
        assert!(p.hold(0..1024));
    }
}
