// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An NBD server of arbitrary bytes, as the driver sees it: no panic, data only inside of the reads that are out, each request
//! ended at most once, and the same outcome whether the bytes come at once or in pieces.
//!
//! The first byte chooses between handshake and replies (simple or structured), the second how long the pieces are. The
//! in-tree twins, whose servers are well formed more often, are the properties of `crates/host/src/driver/nbd`.
//! Run on arbitrary bytes by `fuzz/fuzz_targets`, and on seeds by plain tests.

use host::driver::nbd::handshake::{Handshake, MAX_REPLY};
use host::driver::nbd::replies::{Calls, LARGE, MOST_LEFT, Replies, ReplyEvent, cookie};
use host::nbd::wire::{BytesIn, ReplyStyle};

const DEPTH: u16 = 8;
/// Of the reads that are out; the last one is a large one.
const LENGTHS: [u32; 4] = [512, 4096, 8192, LARGE];

fn shake_hands(mut bytes: &[u8], tls: bool) -> usize {
    let (mut handshake, mut out) = (Handshake::new("disk", tls), Vec::new());
    let mut told_of_tls = false;
    while let Some((now, rest)) = bytes.split_at_checked(handshake.want()) {
        bytes = rest;
        assert!(handshake.want() <= MAX_REPLY);
        told_of_tls |= handshake.wants_tls();
        match handshake.feed(now, &mut out) {
            Ok(None) => {}
            Ok(Some((served, _))) => {
                assert!(!tls || told_of_tls, "never without TLS");
                assert!(served.min_block.is_power_of_two() && served.max_payload >= served.min_block);
                return 1;
            }
            Err(e) => {
                assert!(!e.to_string().chars().any(char::is_control));
                return 0;
            }
        }
    }
    0
}

/// What was understood of the replies.
fn converse(style: ReplyStyle, bytes: &[u8], piece: usize) -> (Vec<u16>, bool) {
    let mut calls = Calls::new(usize::from(DEPTH));
    for tag in 0..DEPTH {
        let len = LENGTHS[usize::from(tag) % LENGTHS.len()];
        calls.begin(cookie(tag, 1), tag < 4, u64::from(tag) << 20, len);
    }
    let mut replies = Replies::new(style);
    let (mut held, mut ends) = (Vec::new(), Vec::new());
    for now in bytes.chunks(piece) {
        held.extend_from_slice(now);
        let mut input = BytesIn::new(&held);
        loop {
            let inside = |tag: u16, at: u32, len: u32| {
                assert!(tag < 4 && u64::from(at) + u64::from(len) <= u64::from(LENGTHS[usize::from(tag)]));
            };
            match replies.next(&mut input, &mut calls) {
                Ok(ReplyEvent::NeedMore) => break,
                Ok(ReplyEvent::Data { tag, at, bytes }) => inside(tag, at, bytes.len() as u32),
                Ok(ReplyEvent::Zeroes { tag, at, len }) => inside(tag, at, len),
                Ok(ReplyEvent::End { tag, .. }) => ends.push(tag),
                Err(_) => return (ends, true),
            }
        }
        let rest = input.rest().to_vec();
        assert!(rest.len() < MOST_LEFT);
        held = rest;
    }
    (ends, false)
}

/// How many requests have ended; of a handshake, 1 = it was agreed.
pub fn run(bytes: &[u8]) -> usize {
    let [kind, piece, bytes @ ..] = bytes else { return 0 };
    let style = match kind % 3 {
        0 => return shake_hands(bytes, *kind % 2 == 1),
        1 => ReplyStyle::Simple,
        _ => ReplyStyle::Structured,
    };
    let whole = converse(style, bytes, bytes.len().max(1));
    assert_eq!(whole, converse(style, bytes, usize::from(*piece).max(1)), "it depends on the cuts");
    let (ends, _) = whole;
    let mut once = ends.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), ends.len(), "a request has ended twice");
    ends.len()
}
