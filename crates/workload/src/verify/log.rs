// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The blocks that were written and are still to be read back.
//!
//! There are two forms. If no block is written twice in a pass (sequential, or a random map), writes are kept in order of
//! issue in one deque. It is reserved at the start, without an allocation per I/O up to [`RESERVED`] blocks. Otherwise
//! blocks are kept by offset, and a later write replaces what it overlaps. That allocates, which is acceptable because
//! verification is not a measurement.
//!
//! Guarantees: a block is read back only after its write completed. A failed write is removed. Needs from callers: a call
//! of [`WriteLog::must_wait`] before each write. Two overlapping writes in flight would leave undefined data, and a write
//! that overlaps a block being read back would make that block look damaged.

use super::Stamp;
use std::collections::{BTreeMap, VecDeque};

/// Entries reserved at the start (40 MiB).
pub const RESERVED: u64 = 1 << 20;

/// One written block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Byte offset.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
    /// Identifies the write of the data.
    pub stamp: Stamp,
    /// The block was trimmed after it was written.
    pub trimmed: bool,
    state: EntryState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryState {
    InFlight,
    Written,
    /// Taken to be read back.
    Reading,
    /// Its trim is in flight.
    Trimming,
    /// Not to be read back: the write failed, or the block is trimmed for good.
    Gone,
}

/// Whether a block can be trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trimmable {
    /// It is written, and not yet taken to be read back.
    Yes,
    /// Its write has not completed.
    InFlight,
    /// It is read back, trimmed or overwritten.
    No,
}

/// Identifies a piece while its write is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PieceId(u64);

/// The next piece to read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextPiece {
    /// Read this piece; [`WriteLog::finish_read`] must follow.
    Read(Piece, PieceId),
    /// The write or trim of the next piece has not completed.
    InFlight,
    /// Nothing is left.
    None,
}

/// The log of one job thread.
#[derive(Clone, Debug)]
pub enum WriteLog {
    /// In order of issue; `first` is the id of the front entry.
    Ordered {
        /// The pieces.
        pieces: VecDeque<Piece>,
        /// Id of the front entry.
        first: u64,
        /// How many of them are not to be read back.
        gone: usize,
    },
    /// By offset. Pieces that are being read back or trimmed for good stay until that is over.
    Keyed {
        /// The pieces.
        map: BTreeMap<u64, Piece>,
        /// How many of them are being read back, or trimmed for good.
        reading: usize,
    },
}

impl WriteLog {
    /// An empty log. `unique` says that no block is written twice before it is read back; `blocks` is how many there are.
    pub fn new(unique: bool, blocks: u64) -> WriteLog {
        if unique {
            let pieces = VecDeque::with_capacity(blocks.min(RESERVED) as usize);
            WriteLog::Ordered { pieces, first: 0, gone: 0 }
        } else {
            WriteLog::Keyed { map: BTreeMap::new(), reading: 0 }
        }
    }

    /// Number of pieces that are still to be read back.
    pub fn len(&self) -> usize {
        match self {
            WriteLog::Ordered { pieces, gone, .. } => pieces.len() - gone,
            WriteLog::Keyed { map, reading } => map.len() - reading,
        }
    }

    /// Whether nothing is left to read back.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a write of these bytes must wait for an overlapping write or read in flight.
    pub fn must_wait(&self, offset: u64, len: u64) -> bool {
        match self {
            WriteLog::Ordered { .. } => false,
            WriteLog::Keyed { map, .. } => overlapping(map, offset, len).any(|p| p.state != EntryState::Written),
        }
    }

    /// Adds a write that is issued.
    ///
    /// # Panics
    /// When [`WriteLog::must_wait`] holds for it.
    pub fn begin(&mut self, offset: u64, len: u32, stamp: Stamp) -> PieceId {
        assert!(!self.must_wait(offset, u64::from(len)), "overlapping verified writes in flight");
        let piece = Piece { offset, len, stamp, trimmed: false, state: EntryState::InFlight };
        match self {
            WriteLog::Ordered { pieces, first, .. } => {
                pieces.push_back(piece);
                PieceId(*first + pieces.len() as u64 - 1)
            }
            WriteLog::Keyed { map, .. } => {
                loop {
                    let old = overlapping(map, offset, u64::from(len)).next().map(|p| p.offset);
                    let Some(old) = old else { break };
                    map.remove(&old);
                }
                map.insert(offset, piece);
                PieceId(offset)
            }
        }
    }

    /// The write of `id` has completed.
    pub fn finish(&mut self, id: PieceId, ok: bool) {
        match self {
            WriteLog::Ordered { pieces, first, gone } => {
                let piece = &mut pieces[(id.0 - *first) as usize];
                piece.state = if ok { EntryState::Written } else { EntryState::Gone };
                *gone += usize::from(!ok);
            }
            WriteLog::Keyed { map, .. } if ok => {
                map.get_mut(&id.0).expect("a piece in flight stays in the log").state = EntryState::Written;
            }
            WriteLog::Keyed { map, .. } => {
                map.remove(&id.0);
            }
        }
    }

    /// Whether the piece `id` of the write `stamp` can be trimmed.
    pub fn trimmable(&self, id: PieceId, stamp: Stamp) -> Trimmable {
        match self.piece(id).filter(|p| p.stamp == stamp && !p.trimmed).map(|p| p.state) {
            Some(EntryState::Written) => Trimmable::Yes,
            Some(EntryState::InFlight) => Trimmable::InFlight,
            _ => Trimmable::No,
        }
    }

    /// Begins the trim of the piece `id`, which `keeps` the piece to be read back as zeroes or removes it. Returns offset and length;
    /// [`WriteLog::finish_trim`] must follow.
    ///
    /// # Panics
    /// When the piece is not [`Trimmable::Yes`].
    pub fn trim(&mut self, id: PieceId, keeps: bool) -> (u64, u32) {
        let piece = self.piece_mut(id).filter(|p| p.state == EntryState::Written).expect("a written piece is trimmed");
        (piece.state, piece.trimmed) = (EntryState::Trimming, true);
        let place = (piece.offset, piece.len);
        match self {
            WriteLog::Ordered { gone, .. } => *gone += usize::from(!keeps),
            WriteLog::Keyed { reading, .. } => *reading += usize::from(!keeps),
        }
        place
    }

    /// The trim of the piece `id` is over.
    pub fn finish_trim(&mut self, id: PieceId, keeps: bool) {
        match self {
            WriteLog::Keyed { map, reading } if !keeps => {
                map.remove(&id.0);
                *reading -= 1;
            }
            _ => {
                let piece = self.piece_mut(id).expect("a piece that is trimmed stays in the log");
                piece.state = if keeps { EntryState::Written } else { EntryState::Gone };
            }
        }
    }

    /// The trim of the piece `id` has failed. What it holds is unknown.
    pub fn fail_trim(&mut self, id: PieceId, keeps: bool) {
        if keeps { self.finish(id, false) } else { self.finish_trim(id, false) }
    }

    fn piece(&self, id: PieceId) -> Option<&Piece> {
        match self {
            WriteLog::Ordered { pieces, first, .. } => pieces.get(id.0.checked_sub(*first)? as usize),
            WriteLog::Keyed { map, .. } => map.get(&id.0),
        }
    }

    fn piece_mut(&mut self, id: PieceId) -> Option<&mut Piece> {
        match self {
            WriteLog::Ordered { pieces, first, .. } => pieces.get_mut(id.0.checked_sub(*first)? as usize),
            WriteLog::Keyed { map, .. } => map.get_mut(&id.0),
        }
    }

    /// The read of piece `id` is over.
    pub fn finish_read(&mut self, id: PieceId) {
        if let WriteLog::Keyed { map, reading } = self {
            let piece = map.remove(&id.0);
            assert!(piece.is_some_and(|p| p.state == EntryState::Reading), "piece {id:?} was not being read");
            *reading -= 1;
        }
    }

    /// Takes the next piece to read back: the oldest, or the one with the lowest offset.
    pub fn take_next(&mut self) -> NextPiece {
        match self {
            WriteLog::Ordered { pieces, first, gone } => {
                while let Some(front) = pieces.front().copied() {
                    if matches!(front.state, EntryState::InFlight | EntryState::Trimming) {
                        return NextPiece::InFlight;
                    }
                    pieces.pop_front();
                    *first += 1;
                    if front.state == EntryState::Written {
                        return NextPiece::Read(front, PieceId(*first - 1));
                    }
                    *gone -= 1;
                }
                NextPiece::None
            }
            WriteLog::Keyed { map, reading } => match map.values_mut().find(|p| p.state != EntryState::Reading) {
                None => NextPiece::None,
                Some(p) if p.state != EntryState::Written => NextPiece::InFlight,
                Some(p) => {
                    p.state = EntryState::Reading;
                    *reading += 1;
                    NextPiece::Read(*p, PieceId(p.offset))
                }
            },
        }
    }

    /// Removes all pieces. Only allowed with nothing in flight.
    pub fn clear(&mut self) {
        match self {
            WriteLog::Ordered { pieces, first, gone } => {
                *first += pieces.len() as u64;
                *gone = 0;
                pieces.clear();
            }
            WriteLog::Keyed { map, reading } => {
                map.clear();
                *reading = 0;
            }
        }
    }
}

fn overlapping(map: &BTreeMap<u64, Piece>, offset: u64, len: u64) -> impl Iterator<Item = &Piece> {
    // Entries never overlap each other, so at most one begins before `offset` and reaches into it.
    let before = map.range(..offset).next_back().map(|(_, p)| p).filter(move |p| p.offset + u64::from(p.len) > offset);
    before.into_iter().chain(map.range(offset..offset + len).map(|(_, p)| p))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { seed: 1, number: 1 };

    fn read(log: &mut WriteLog) -> Option<u64> {
        match log.take_next() {
            NextPiece::Read(p, id) => {
                log.finish_read(id);
                Some(p.offset)
            }
            NextPiece::InFlight => panic!("in flight"),
            NextPiece::None => None,
        }
    }

    #[test]
    fn ordered_pieces_come_back_in_order_without_failures() {
        let mut log = WriteLog::new(true, 4);
        let ids: Vec<PieceId> = [30, 10, 20].map(|o| log.begin(o, 10, STAMP)).to_vec();
        assert_eq!(log.take_next(), NextPiece::InFlight);
        log.finish(ids[2], true);
        assert_eq!(log.take_next(), NextPiece::InFlight);
        log.finish(ids[0], true);
        log.finish(ids[1], false);
        assert_eq!([read(&mut log), read(&mut log), read(&mut log)], [Some(30), Some(20), None]);
        let id = log.begin(40, 10, STAMP);
        log.finish(id, true);
        log.clear();
        let id = log.begin(50, 10, STAMP);
        log.finish(id, true);
        assert_eq!(read(&mut log), Some(50), "ids stay right after a clear");
    }

    #[test]
    fn keyed_pieces_replace_what_they_overlap() {
        let mut log = WriteLog::new(false, 4);
        for (offset, len) in [(0, 100), (100, 100), (50, 100)] {
            assert!(!log.must_wait(offset, u64::from(len)));
            let id = log.begin(offset, len, STAMP);
            assert!(log.must_wait(offset + 10, 1) && !log.must_wait(offset + 500, 1));
            log.finish(id, true);
        }
        assert_eq!(log.len(), 1);
        let NextPiece::Read(piece, id) = log.take_next() else { panic!("a piece is left") };
        assert_eq!((piece.offset, log.len(), log.take_next()), (50, 0, NextPiece::None));
        assert!(log.must_wait(149, 1), "a block being read back is not overwritten");
        log.finish_read(id);
        assert!(!log.must_wait(149, 1));
    }

    #[test]
    fn a_piece_whose_trim_failed_is_not_read_back() {
        for (unique, keeps) in [(true, true), (true, false), (false, true), (false, false)] {
            let mut log = WriteLog::new(unique, 4);
            let id = log.begin(10, 10, STAMP);
            log.finish(id, true);
            log.trim(id, keeps);
            log.fail_trim(id, keeps);
            assert_eq!((log.len(), log.take_next()), (0, NextPiece::None), "{unique} {keeps}");
        }
    }

    #[test]
    fn trimmed_pieces_stay_or_leave() {
        for unique in [true, false] {
            let mut log = WriteLog::new(unique, 4);
            let stamps = [1, 2, 3].map(|n| Stamp { seed: n, number: n as u16 });
            let ids: Vec<PieceId> = stamps.iter().map(|&s| log.begin(s.seed * 10, 10, s)).collect();
            assert_eq!(log.trimmable(ids[0], stamps[0]), Trimmable::InFlight);
            ids.iter().for_each(|&id| log.finish(id, true));
            assert_eq!(log.trimmable(ids[0], stamps[1]), Trimmable::No, "another write");
            assert_eq!((log.trim(ids[0], true), log.trim(ids[1], false)), ((10, 10), (20, 10)));
            assert_eq!((log.len(), log.take_next()), (2, NextPiece::InFlight), "one of them is not read back");
            log.finish_trim(ids[0], true);
            log.finish_trim(ids[1], false);
            assert_eq!(log.trimmable(ids[0], stamps[0]), Trimmable::No, "trimmed once");
            let NextPiece::Read(piece, id) = log.take_next() else { panic!("a piece is left") };
            log.finish_read(id);
            assert!(piece.trimmed && piece.offset == 10);
            assert_eq!([read(&mut log), read(&mut log)], [Some(30), None]);
            assert_eq!((log.len(), log.trimmable(ids[2], stamps[2])), (0, Trimmable::No));
        }
    }
}
