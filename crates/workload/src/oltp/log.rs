// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The redo log: a commit appends a record. The log writer writes all waiting records at once, and acknowledges all of them.
//!
//! Guarantees: one write is in flight at a time. Records are written in the order of arrival, each once. A record is
//! durable only when the write that contains it has completed without error. A write contains the records that arrived
//! while the previous write was in flight, and those that arrived within `group_commit_us` after the first of them. The log
//! is circular: a write does not cross its end. Needs from callers: they report the completion of every write. Does not do:
//! keep the contents of records; recovery.

use std::collections::VecDeque;

/// The part of a target that holds the redo log, and how it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogPlan {
    /// First byte.
    pub start: u64,
    /// Length in bytes: whole blocks, and at least one record.
    pub len: u64,
    /// Writes are whole blocks of this many bytes.
    pub block: u32,
    /// Maximum number of bytes of a write: whole blocks, and at least one record.
    pub max_write: u32,
    /// Bytes of a record.
    pub record: u32,
    /// How long the first record of a write waits for others, nanoseconds.
    pub group_ns: u64,
}

/// A commit that waits for its redo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub session: u32,
    pub asked_ns: u64,
}

/// A write of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogWrite {
    pub offset: u64,
    pub len: u32,
    /// The log was full, so this write is at its beginning again.
    pub wraps: bool,
}

#[derive(Clone, Debug)]
pub(super) struct RedoLog {
    plan: LogPlan,
    waiting: VecDeque<Record>,
    /// The records of the write in flight; empty = none is in flight.
    writing: Vec<Record>,
    /// Number of records appended so far, and how many of them are durable.
    left: u64,
    durable: u64,
    /// Offset of the next write from the log's start.
    position: u64,
}

impl LogPlan {
    /// Bytes of a write with `n` records.
    fn bytes_of(&self, n: u64) -> u64 {
        (n * u64::from(self.record)).next_multiple_of(u64::from(self.block))
    }

    /// Number of records that fit into `bytes`, which are whole blocks.
    fn records_in(&self, bytes: u64) -> u64 {
        bytes / u64::from(self.record)
    }
}

impl RedoLog {
    pub(super) fn new(plan: LogPlan, sessions: u32) -> RedoLog {
        let n = sessions as usize;
        let (waiting, writing) = (VecDeque::with_capacity(n), Vec::with_capacity(n));
        RedoLog { plan, waiting, writing, left: 0, durable: 0, position: 0 }
    }

    /// Appends a record. Returns its number, which [`RedoLog::durable`] reaches when the record is durable.
    pub(super) fn leave(&mut self, session: u32, now_ns: u64) -> u64 {
        self.waiting.push_back(Record { session, asked_ns: now_ns });
        self.left += 1;
        self.left
    }

    /// Records up to this number are durable.
    pub(super) fn durable(&self) -> u64 {
        self.durable
    }

    /// Whether no session waits.
    pub(super) fn is_quiet(&self) -> bool {
        self.waiting.is_empty() && self.writing.is_empty()
    }

    /// Returns when a write is due that waits only for time.
    pub(super) fn due_at(&self) -> Option<u64> {
        let first = self.waiting.front().filter(|_| self.writing.is_empty())?;
        let full = self.plan.bytes_of(self.waiting.len() as u64) >= u64::from(self.plan.max_write);
        Some(if full { first.asked_ns } else { first.asked_ns.saturating_add(self.plan.group_ns) })
    }

    /// Returns the write to make at `now_ns`, if one is due. With `at_once` a write is due if records wait.
    pub(super) fn next_write(&mut self, now_ns: u64, at_once: bool) -> Option<LogWrite> {
        let due = self.due_at()?;
        if due > now_ns && !at_once {
            return None;
        }
        let plan = self.plan;
        let wraps = plan.len - self.position < plan.bytes_of(1);
        if wraps {
            self.position = 0;
        }
        let room = (plan.len - self.position).min(u64::from(plan.max_write));
        let n = plan.records_in(room).min(self.waiting.len() as u64);
        self.writing.extend(self.waiting.drain(..n as usize));
        let len = plan.bytes_of(n);
        let offset = plan.start + self.position;
        self.position += len;
        // At most `max_write`, which has 32 bits.
        Some(LogWrite { offset, len: len as u32, wraps })
    }

    /// The write in flight has completed. Its records go to `to`, in order; they are acknowledged if the write succeeded.
    pub(super) fn ended(&mut self, written: bool, to: &mut Vec<Record>) {
        assert!(!self.writing.is_empty(), "a redo write ended that was not out");
        if written {
            self.durable += self.writing.len() as u64;
        }
        to.append(&mut self.writing);
    }

    /// Drops the waiting records: nothing more is written.
    pub(super) fn give_up(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: LogPlan =
        LogPlan { start: 1 << 20, len: 8192, block: 512, max_write: 2048, record: 600, group_ns: 100 };

    fn sessions(records: &[Record]) -> Vec<u32> {
        records.iter().map(|r| r.session).collect()
    }

    #[test]
    fn a_log_write_takes_what_queued_during_the_last_one() {
        let mut log = RedoLog::new(LogPlan { group_ns: 0, ..PLAN }, 8);
        assert_eq!((log.next_write(0, true), log.due_at()), (None, None));
        assert_eq!(log.leave(7, 10), 1);
        assert_eq!(log.next_write(10, false), Some(LogWrite { offset: 1 << 20, len: 1024, wraps: false }));
        assert_eq!((log.leave(3, 20), log.leave(4, 21)), (2, 3));
        assert_eq!((log.next_write(30, true), log.due_at()), (None, None), "one write at a time");
        let mut acknowledged = Vec::new();
        log.ended(true, &mut acknowledged);
        assert_eq!((sessions(&acknowledged), log.durable()), (vec![7], 1));
        // 1200 bytes are three blocks.
        assert_eq!(log.next_write(30, false), Some(LogWrite { offset: (1 << 20) + 1024, len: 1536, wraps: false }));
        acknowledged.clear();
        log.ended(false, &mut acknowledged);
        assert_eq!((sessions(&acknowledged), log.durable()), (vec![3, 4], 1), "what was not written is not durable");
        assert!(log.is_quiet());
    }

    #[test]
    fn the_first_waits_for_company_until_its_time_or_a_full_write() {
        let mut log = RedoLog::new(PLAN, 8);
        log.leave(0, 1000);
        assert_eq!((log.due_at(), log.next_write(1099, false)), (Some(1100), None));
        log.leave(1, 1050);
        assert_eq!(log.due_at(), Some(1100), "of the first");
        assert!(log.next_write(1100, false).is_some());
        log.ended(true, &mut Vec::new());
        for session in 0..5 {
            log.leave(session, 2000);
        }
        // Three records take 1800 bytes, and a fourth does not fit into 2048.
        assert_eq!(log.next_write(2000, false).map(|w| w.len), Some(2048), "full");
        let mut acknowledged = Vec::new();
        log.ended(true, &mut acknowledged);
        assert_eq!(sessions(&acknowledged), [0, 1, 2]);
        assert_eq!(log.next_write(2099, true).map(|w| w.len), Some(1536), "at once, for it ends");
    }

    #[test]
    fn it_is_written_round_and_never_beyond_its_end() {
        let mut log = RedoLog::new(LogPlan { len: 3072, group_ns: 0, ..PLAN }, 8);
        let mut seen = Vec::new();
        for turn in 0..4 {
            // In the second turn there is room for only one of its two records.
            let n = if turn == 0 { 3 } else { 2 };
            (0..n).for_each(|s| _ = log.leave(s, 0));
            while let Some(w) = log.next_write(0, false) {
                assert!(w.offset >= PLAN.start && w.offset + u64::from(w.len) <= PLAN.start + 3072, "{w:?}");
                seen.push((w.offset - PLAN.start, w.len, w.wraps));
                log.ended(true, &mut Vec::new());
            }
        }
        assert_eq!(seen[..3], [(0, 2048, false), (2048, 1024, false), (0, 1024, true)]);
        assert_eq!(log.durable(), 9);
    }
}
