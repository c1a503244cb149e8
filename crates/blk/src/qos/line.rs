// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A queue of a submitter's held bios, oldest first, linked through their own slots: it has no bound of its own and
//! allocates nothing. Needs from callers: a bio is in one such queue at most, and in no request at the same time.

use crate::bio::{BioId, BioPool};

const NONE: u32 = u32::MAX;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct BioLine {
    head: u32,
    tail: u32,
    len: usize,
}

impl Default for BioLine {
    fn default() -> BioLine {
        BioLine { head: NONE, tail: NONE, len: 0 }
    }
}

impl BioLine {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn front(&self) -> Option<u32> {
        (self.len > 0).then_some(self.head)
    }

    pub(crate) fn push_back(&mut self, pool: &BioPool, index: u32) {
        pool.slot(index as usize).next.set(NONE);
        if self.len == 0 {
            self.head = index;
        } else {
            pool.slot(self.tail as usize).next.set(index);
        }
        self.tail = index;
        self.len += 1;
    }

    pub(crate) fn pop_front(&mut self, pool: &BioPool) -> Option<u32> {
        let index = self.front()?;
        let next = &pool.slot(index as usize).next;
        self.head = next.get();
        self.len -= 1;
        // The value in the slot of a bio that is part of no request.
        next.set(BioId::NONE.bits());
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_first_in_first_out_and_leaves_no_links_behind() {
        let pool = BioPool::new(8);
        let mut line = BioLine::default();
        for round in 0..3u32 {
            for index in [3, 1, 7] {
                line.push_back(&pool, index);
            }
            assert_eq!((line.front(), line.len()), (Some(3), 3));
            assert_eq!(line.pop_front(&pool), Some(3));
            line.push_back(&pool, 3);
            let order: Vec<u32> = core::iter::from_fn(|| line.pop_front(&pool)).collect();
            assert_eq!(order, [1, 7, 3], "round {round}");
            assert!(line.is_empty() && line.front().is_none());
            assert!([1, 3, 7].iter().all(|i| pool.slot(*i).next.get() == BioId::NONE.bits()));
        }
    }
}
