// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A queue that mostly holds at most one entry. The first entry is kept inline, so that a check of a CPU's queue touches a
//! cache line that is read anyway.
//!
//! Guarantees: the order of a `VecDeque`. Memory is allocated when a second entry arrives, and kept.

use std::collections::VecDeque;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Few<T> {
    len: u32,
    /// The head of the queue; a stale value when the queue is empty.
    first: T,
    /// The entries after the head.
    #[allow(clippy::box_collection, reason = "a line takes 24 bytes less of its CPU's two cache lines")]
    rest: Option<Box<VecDeque<T>>>,
}

impl<T: Copy + Default> Few<T> {
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub fn push_back(&mut self, last: T) {
        if self.len == 0 {
            self.first = last;
        } else {
            self.rest.get_or_insert_default().push_back(last);
        }
        self.len += 1;
    }

    #[inline]
    pub fn push_front(&mut self, first: T) {
        if self.len > 0 {
            self.rest.get_or_insert_default().push_front(self.first);
        }
        self.first = first;
        self.len += 1;
    }

    #[inline]
    pub fn pop_front(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        let first = self.first;
        if self.len > 0 {
            self.first = self.rest.as_mut().and_then(|r| r.pop_front()).expect("as many as counted");
        }
        Some(first)
    }

    /// Takes the first entry for which `is_wanted` is true.
    pub fn take_first(&mut self, mut is_wanted: impl FnMut(T) -> bool) -> Option<T> {
        if self.len == 0 {
            return None;
        }
        if is_wanted(self.first) {
            return self.pop_front();
        }
        let rest = self.rest.as_mut()?;
        let taken = rest.iter().position(|t| is_wanted(*t)).and_then(|i| rest.remove(i))?;
        self.len -= 1;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn the_order_is_that_of_a_vec_deque() {
        let (mut rng, mut few, mut all) = (Rng::new(3), Few::default(), VecDeque::new());
        for n in 0..10_000u32 {
            match rng.below(8) {
                0..=2 => {
                    few.push_back(n);
                    all.push_back(n);
                }
                3 => {
                    few.push_front(n);
                    all.push_front(n);
                }
                4..=6 => assert_eq!(few.pop_front(), all.pop_front()),
                _ => {
                    let third = |t: u32| t.is_multiple_of(3);
                    let taken = all.iter().position(|t| third(*t)).and_then(|i| all.remove(i));
                    assert_eq!(few.take_first(third), taken);
                }
            }
            assert_eq!((few.len(), few.is_empty()), (all.len(), all.is_empty()));
        }
    }
}
