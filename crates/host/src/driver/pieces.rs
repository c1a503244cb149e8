// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory of a request's data: pieces given by region and offset, which are checked at each access.
//!
//! Guarantees: adjacent pieces are merged; the list keeps its capacity, so a reused slot allocates nothing.
//! Needs from callers: pieces resolve when they are added, and belong to a request in flight.

use crate::mem::{Region, Regions, Span};
use crate::net::vectored::{Incoming, Outgoing};
use blk::bio::DataRef;

#[derive(Clone, Copy, Debug)]
struct Piece {
    data: DataRef,
    len: u32,
}

/// Initial capacity, in pieces.
const PIECES: usize = 4;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Pieces(Vec<Piece>);

impl Pieces {
    pub(super) fn new() -> Pieces {
        Pieces(Vec::with_capacity(PIECES))
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Appends a piece.
    pub(super) fn push(&mut self, data: DataRef, len: u32) {
        match self.0.last_mut() {
            Some(last)
                if last.data.region() == data.region() && last.data.offset() + u64::from(last.len) == data.offset() =>
            {
                last.len += len;
            }
            _ => self.0.push(Piece { data, len }),
        }
    }

    /// Whether any of their memory is gone.
    pub(super) fn have_gone(&self, regions: &Regions) -> bool {
        self.0.iter().any(|piece| regions.get(piece.data.region()).is_some_and(Region::has_gone))
    }

    /// Calls `f` with each piece of memory between two offsets of the request, in order, until it returns false.
    pub(super) fn walk<'a>(&self, at: u32, len: u32, regions: &'a Regions, mut f: impl FnMut(Span<'a>) -> bool) {
        let (mut skip, mut left) = (at, len);
        for piece in &self.0 {
            if skip >= piece.len {
                skip -= piece.len;
                continue;
            }
            let n = (piece.len - skip).min(left);
            let data = piece.data.advance(u64::from(skip));
            let span = regions.resolve(data, n as usize).expect("a request's memory stays until it has ended");
            (skip, left) = (0, left - n);
            if !f(span) || left == 0 {
                return;
            }
        }
    }

    /// Appends data of a write to `out`.
    pub(super) fn push_source<'a>(&self, at: u32, len: u32, regions: &'a Regions, out: &mut Outgoing<'a>) {
        self.walk(at, len, regions, |span| {
            out.push_span(span);
            true
        });
    }

    /// Appends the memory for up to `left` bytes of a read, from its byte `at` on, to `incoming`. Returns how many bytes.
    pub(super) fn push_destination<'a>(
        &self,
        at: u32,
        left: u32,
        regions: &'a Regions,
        incoming: &mut Incoming<'a>,
    ) -> u32 {
        let mut bytes = 0;
        self.walk(at, left, regions, |span| {
            incoming.push_span(span);
            bytes += span.len() as u32;
            // One piece is reserved for the data that follows.
            incoming.capacity() > 1
        });
        bytes
    }

    /// Stores data of a read.
    ///
    /// # Panics
    /// The pieces have fewer bytes.
    pub(super) fn put(&self, at: u32, mut bytes: &[u8], regions: &Regions) {
        self.walk(at, bytes.len() as u32, regions, |span| {
            let (here, rest) = bytes.split_at(span.len());
            span.copy_from(here);
            bytes = rest;
            true
        });
        assert!(bytes.is_empty(), "a request's pieces are shorter than the request");
    }
}
