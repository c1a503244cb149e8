// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the entry of a thread that panics leaves behind; `crates/blk/tests/it/core_rmw.rs` tests entries over a whole disk.

use super::*;
use crate::submitter::SubmitError;
use std::thread::JoinHandle;

type Raw = parking_lot::RawMutex;
const BLOCK: u64 = 4096;

struct Unwoken;

impl Wake for Unwoken {
    fn wake(&self) {}
}

/// Takes all bios, and completes none.
#[derive(Default)]
struct Sink(Vec<Bio>);

impl Below for Sink {
    fn submit(&mut self, bio: &Bio, _now: Instant) -> Result<(), SubmitError> {
        self.0.push(*bio);
        Ok(())
    }
}

/// One buffer, which is always free.
struct Buffer;

impl Memory for Buffer {
    fn take(&mut self) -> Result<(u32, DataRef), NoBuffer> {
        Ok((0, DataRef::new(0, 0)))
    }

    fn give_back(&mut self, _buffer: u32) {}

    fn copy(&mut self, _from: DataRef, _to: DataRef, _bytes: u64) -> bool {
        true
    }

    fn zero(&mut self, _to: DataRef, _bytes: u64) {}
}

/// Submits a write of a block, or of a part of it.
fn write(entry: &mut Entry<Raw, Unwoken>, below: &mut Sink, block: u64, bytes: u64) {
    let io = ByteIo { user_data: block, ..ByteIo::new(Op::Write, block * BLOCK, bytes, DataRef::new(0, 0)) };
    entry.submit_bytes(below, &mut Buffer, io, Instant::from_ns(0));
}

/// The writes of such a thread may still reach the disk, later than writes that would enter now.
#[test]
fn writes_and_locks_of_a_thread_that_panics_stay() {
    let locks: Arc<BlockLocks<Raw, Unwoken>> = Arc::default();
    let mut other = Entry::new(&locks, Unwoken, BLOCK as u32);
    let shared = Arc::clone(&locks);
    let thread: JoinHandle<()> = std::thread::spawn(move || {
        let mut entry = Entry::new(&shared, Unwoken, BLOCK as u32);
        let mut below = Sink::default();
        write(&mut entry, &mut below, 0, 512);
        write(&mut entry, &mut below, 2, BLOCK);
        assert_eq!(below.0.len(), 1, "the part has its lock, and waits for the other entry");
        // As a panic, without its message.
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    let panic = thread.join().unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    let mut below = Sink::default();
    other.begin(&mut below, &mut Buffer, Instant::from_ns(0));
    write(&mut other, &mut below, 0, BLOCK);
    write(&mut other, &mut below, 2, 512);
    assert_eq!(below.0.len(), 0, "blocks with a lock, and with a write inside");
    write(&mut other, &mut below, 1, BLOCK);
    assert_eq!(below.0.len(), 1, "no other block waits");
    assert!(!locks.is_unused() && !other.is_idle());
    // Its I/O waits for ever.
    std::mem::forget(other);
}

/// A write that waits has not reached the disk.
#[test]
fn what_a_thread_that_panics_waits_for_is_free() {
    let locks: Arc<BlockLocks<Raw, Unwoken>> = Arc::default();
    let mut other = Entry::new(&locks, Unwoken, BLOCK as u32);
    let mut below = Sink::default();
    write(&mut other, &mut below, 0, 512);
    assert_eq!(below.0.len(), 1, "the block is read");
    let shared = Arc::clone(&locks);
    let thread: JoinHandle<()> = std::thread::spawn(move || {
        let mut entry = Entry::new(&shared, Unwoken, BLOCK as u32);
        let mut below = Sink::default();
        write(&mut entry, &mut below, 0, BLOCK);
        assert!(below.0.is_empty() && !entry.is_idle(), "it waits");
        // As a panic, without its message.
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    let panic = thread.join().unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    write(&mut other, &mut below, 0, 1024);
    assert_eq!(below.0.len(), 1, "another part waits for the first");
    for op in [Op::Read, Op::Write] {
        let user_data = u64::from(Entry::<Raw, Unwoken>::OWN) << 32;
        other.end(&mut vec![Done { user_data, op, status: BlkStatus::Ok }], 0);
        other.begin(&mut below, &mut Buffer, Instant::from_ns(0));
    }
    assert_eq!(below.0.len(), 3, "the first part is written, and its block is read for the other");
    // Its I/O is still inside.
    std::mem::forget(other);
}
