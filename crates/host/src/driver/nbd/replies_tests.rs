// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replies of good and bad servers, complete and split anywhere.

use super::*;
use proptest::prelude::*;

const DEPTH: usize = 8;
/// Where the read with tag 3 begins.
const OFFSET: u64 = 1 << 20;
const LEN: u32 = 4096;

fn simple(error: u32, cookie: u64) -> Vec<u8> {
    [&SIMPLE_REPLY_MAGIC.to_be_bytes()[..], &error.to_be_bytes(), &cookie.to_be_bytes()].concat()
}

fn structured(flags: u16, kind: u16, cookie: u64, payload: &[u8]) -> Vec<u8> {
    let head = [&STRUCTURED_REPLY_MAGIC.to_be_bytes()[..], &flags.to_be_bytes(), &kind.to_be_bytes()].concat();
    [&head[..], &cookie.to_be_bytes(), &(payload.len() as u32).to_be_bytes(), payload].concat()
}

fn data(last: bool, cookie: u64, at: u32, bytes: &[u8]) -> Vec<u8> {
    let payload = [&(OFFSET + u64::from(at)).to_be_bytes()[..], bytes].concat();
    structured(u16::from(last), chunk::OFFSET_DATA, cookie, &payload)
}

fn hole(last: bool, cookie: u64, at: u32, len: u32) -> Vec<u8> {
    let payload = [&(OFFSET + u64::from(at)).to_be_bytes()[..], &len.to_be_bytes()].concat();
    structured(u16::from(last), chunk::OFFSET_HOLE, cookie, &payload)
}

fn error(last: bool, cookie: u64, code: u32, text: &str) -> Vec<u8> {
    let payload = [&code.to_be_bytes()[..], &(text.len() as u16).to_be_bytes(), text.as_bytes()].concat();
    structured(u16::from(last), chunk::ERROR, cookie, &payload)
}

/// The result of a conversation.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    memory: Vec<u8>,
    ends: Vec<(u16, Option<NbdError>)>,
    violation: Option<Violation>,
}

/// A read with tag 3 and a write with tag 5 are in flight; the replies arrive in pieces of these lengths, which repeat.
fn run(style: ReplyStyle, bytes: &[u8], cuts: &[usize]) -> Outcome {
    let mut calls = Calls::new(DEPTH);
    calls.begin(READ, true, OFFSET, LEN);
    calls.begin(WRITE, false, 0, 512);
    let mut replies = Replies::new(style);
    let mut outcome = Outcome { memory: vec![0xee; LEN as usize], ..Outcome::default() };
    let (mut left, mut held) = (bytes, Vec::new());
    let mut cuts = cuts.iter().cycle();
    loop {
        let n = cuts.next().copied().unwrap_or(left.len()).clamp(1, left.len().max(1)).min(left.len());
        held.extend(&left[..n]);
        left = &left[n..];
        let mut input = BytesIn::new(&held);
        loop {
            match replies.next(&mut input, &mut calls) {
                Ok(ReplyEvent::NeedMore) => break,
                Ok(ReplyEvent::Data { tag, at, bytes }) => {
                    assert_eq!(tag, 3);
                    outcome.memory[at as usize..][..bytes.len()].copy_from_slice(bytes);
                }
                Ok(ReplyEvent::Zeroes { tag, at, len }) => {
                    assert_eq!(tag, 3);
                    outcome.memory[at as usize..][..len as usize].fill(0);
                }
                Ok(ReplyEvent::End { tag, error }) => outcome.ends.push((tag, error)),
                Err(violation) => {
                    outcome.violation = Some(violation);
                    return outcome;
                }
            }
        }
        let rest = input.rest();
        assert!(rest.len() < MOST_LEFT, "{} bytes left over", rest.len());
        held = rest.to_vec();
        if left.is_empty() {
            return outcome;
        }
    }
}

const READ: u64 = 7 << TAG_BITS | 3;
const WRITE: u64 = 8 << TAG_BITS | 5;

fn ok(style: ReplyStyle, bytes: &[Vec<u8>]) -> Outcome {
    let outcome = run(style, &bytes.concat(), &[]);
    assert_eq!(outcome.violation, None);
    outcome
}

fn violation(style: ReplyStyle, bytes: &[Vec<u8>]) -> Violation {
    run(style, &bytes.concat(), &[]).violation.expect("a violation")
}

#[test]
fn simple_replies_end_requests_in_any_order() {
    let payload = vec![0x5a; LEN as usize];
    let outcome = ok(ReplyStyle::Simple, &[simple(28, WRITE), simple(0, READ), payload.clone()]);
    assert_eq!(outcome.ends, [(5, Some(NbdError::NoSpc)), (3, None)]);
    assert_eq!(outcome.memory, payload);
    let failed = ok(ReplyStyle::Simple, &[simple(5, READ), simple(0, WRITE)]);
    assert_eq!(failed.ends, [(3, Some(NbdError::Io)), (5, None)]);
}

#[test]
fn chunks_come_in_any_order_with_holes_and_the_end_apart() {
    let s = ReplyStyle::Structured;
    let outcome = ok(
        s,
        &[
            data(false, READ, 3072, &[3; 1024]),
            data(false, READ, 0, &[1; 512]),
            structured(chunk::DONE, chunk::NONE, WRITE, &[]),
            hole(false, READ, 512, 1024),
            data(false, READ, 1536, &[2; 1536]),
            structured(chunk::DONE, chunk::NONE, READ, &[]),
        ],
    );
    assert_eq!(outcome.ends, [(5, None), (3, None)]);
    let parts = [(0, 512, 1u8), (512, 1024, 0), (1536, 1536, 2), (3072, 1024, 3)];
    assert!(parts.iter().all(|(at, n, fill)| outcome.memory[*at..*at + *n].iter().all(|b| b == fill)));
    assert_eq!(ok(s, &[hole(true, READ, 0, LEN)]).ends, [(3, None)]);
}

#[test]
fn an_error_chunk_fails_the_read_whatever_else_comes() {
    let s = ReplyStyle::Structured;
    let outcome = ok(s, &[data(false, READ, 0, &[1; 512]), error(true, READ, 5, "the medium is broken")]);
    assert_eq!(outcome.ends, [(3, Some(NbdError::Io))]);
    let first = ok(s, &[error(false, READ, 28, ""), error(false, READ, 5, "b"), hole(true, READ, 0, 512)]);
    assert_eq!(first.ends, [(3, Some(NbdError::NoSpc))], "the first error counts");
    let odd = structured(chunk::DONE, 1 << 15 | 77, WRITE, &[0, 0, 0, 0, 0, 0, 1, 2]);
    assert_eq!(ok(s, &[odd]).ends, [(5, Some(NbdError::Io))], "an unknown error without a number");
    assert_eq!(ok(s, &[simple(22, READ)]).ends, [(3, Some(NbdError::Inval))], "a simple one is as good");
}

#[test]
fn what_is_not_out_cannot_be_answered() {
    for cookie in [0, 3, READ + 1, READ ^ 1 << 40, 9 << TAG_BITS | 9999] {
        assert_eq!(violation(ReplyStyle::Simple, &[simple(0, cookie)]), Violation::Cookie(cookie));
    }
    let twice = [simple(0, WRITE), simple(0, WRITE)];
    assert_eq!(violation(ReplyStyle::Simple, &twice), Violation::Cookie(WRITE), "once is enough");
}

#[test]
fn a_late_reply_does_not_find_the_tags_next_request() {
    let mut calls = Calls::new(DEPTH);
    calls.begin(cookie(3, 1), true, 0, 512);
    calls.clear();
    calls.begin(cookie(3, 2), true, 0, 512);
    let bytes = simple(0, cookie(3, 1));
    let said = Replies::new(ReplyStyle::Simple).next(&mut BytesIn::new(&bytes), &mut calls);
    assert_eq!(said, Err(Violation::Cookie(cookie(3, 1))));
}

#[test]
fn bad_replies_are_violations() {
    let s = ReplyStyle::Structured;
    let none = |flags, bytes: &[u8]| structured(flags, chunk::NONE, WRITE, bytes);
    assert_eq!(violation(s, &[vec![0; 16]]), Violation::Magic(0));
    assert_eq!(violation(ReplyStyle::Simple, &[none(1, &[])]), Violation::Magic(STRUCTURED_REPLY_MAGIC));
    assert_eq!(violation(s, &[simple(0, READ)]), Violation::Simple);
    assert_eq!(violation(s, &[none(0, &[])]), Violation::Length(0));
    assert_eq!(violation(s, &[none(1, &[1])]), Violation::Length(1));
    assert_eq!(violation(s, &[structured(1, chunk::OFFSET_DATA, WRITE, &[0; 9])]), Violation::Chunk(1));
    assert_eq!(violation(s, &[structured(1, chunk::BLOCK_STATUS, READ, &[0; 12])]), Violation::Chunk(5));
    assert_eq!(violation(s, &[structured(1, chunk::OFFSET_DATA, READ, &[0; 8])]), Violation::Length(8));
    assert_eq!(violation(s, &[structured(1, chunk::OFFSET_HOLE, READ, &[0; 13])]), Violation::Length(13));
    assert_eq!(violation(s, &[structured(1, chunk::ERROR, READ, &[0; 5])]), Violation::Length(5));
    let long = vec![1; MAX_ERROR_BYTES as usize + 1];
    assert_eq!(violation(s, &[structured(1, chunk::ERROR, READ, &long)]), Violation::Length(long.len() as u32));
    assert_eq!(violation(s, &[hole(true, READ, 0, LEN - 1)]), Violation::Missing);
    assert_eq!(violation(s, &[hole(true, READ, 0, LEN + 1)]), Violation::Range);
    assert_eq!(violation(s, &[hole(true, READ, 0, 0)]), Violation::Range);
    let before = structured(1, chunk::OFFSET_HOLE, READ, &[&(OFFSET - 1).to_be_bytes()[..], &[0, 0, 0, 1]].concat());
    assert_eq!(violation(s, &[before]), Violation::Range);
    for twice in [
        [hole(false, READ, 0, 512), hole(false, READ, 511, 2)],
        [hole(false, READ, 512, 512), hole(false, READ, 0, 513)],
        [hole(false, READ, 512, 512), hole(false, READ, 600, 1)],
        [hole(false, READ, 512, 512), hole(false, READ, 510, 4)],
    ] {
        assert_eq!(violation(s, &twice), Violation::Range);
    }
    let scattered: Vec<_> = (0..=MAX_SCATTERED as u32).map(|i| hole(false, READ, 1 + 2 * i, 1)).collect();
    assert_eq!(violation(s, &scattered), Violation::Scattered);
}

#[test]
fn payload_received_elsewhere_counts() {
    let mut calls = Calls::new(DEPTH);
    calls.begin(READ, true, OFFSET, LARGE);
    assert!(calls.has_large_reads());
    let mut replies = Replies::new(ReplyStyle::Simple);
    let bytes = [simple(0, READ), vec![1; 100]].concat();
    let mut input = BytesIn::new(&bytes);
    assert!(
        matches!(replies.next(&mut input, &mut calls), Ok(ReplyEvent::Data { tag: 3, at: 0, bytes }) if bytes.len() == 100)
    );
    assert_eq!(replies.payload_left(), Some((3, 100, LARGE - 100)));
    replies.payload_received(LARGE - 100);
    assert_eq!(replies.payload_left(), None);
    assert_eq!(replies.next(&mut input, &mut calls), Ok(ReplyEvent::End { tag: 3, error: None }));
    assert!(!calls.has_large_reads());
}

/// Chunks that good and bad servers send.
fn chunk_bytes() -> impl Strategy<Value = Vec<u8>> {
    let cookies = prop::sample::select(vec![READ, READ, READ, WRITE, WRITE, 0, READ + 1]);
    (0..9u8, cookies, 0..LEN + 2, 0..1200usize, any::<bool>()).prop_map(|(kind, cookie, at, n, last)| match kind {
        0 => simple(0, cookie),
        1 => simple(5, cookie),
        2 | 3 => data(last, cookie, at, &vec![n as u8; n]),
        4 | 5 => hole(last, cookie, at, n as u32),
        6 => error(last, cookie, n as u32 % 40, "why"),
        7 => structured(u16::from(last), n as u16, cookie, &vec![0; n]),
        _ => vec![at as u8; n % 40],
    })
}

proptest! {
    /// Whatever the bytes and the splits: the outcome is the same, nothing panics, and no request completes twice.
    #[test]
    fn the_outcome_does_not_depend_on_the_cuts(
        chunks in prop::collection::vec(chunk_bytes(), 0..12),
        cuts in prop::collection::vec(1..700usize, 1..6),
        is_structured: bool,
    ) {
        let style = if is_structured { ReplyStyle::Structured } else { ReplyStyle::Simple };
        let bytes = chunks.concat();
        let whole = run(style, &bytes, &[]);
        let cut = run(style, &bytes, &cuts);
        prop_assert_eq!(&whole.ends, &cut.ends);
        prop_assert_eq!(&whole.violation, &cut.violation);
        if whole.violation.is_none() {
            prop_assert_eq!(&whole.memory, &cut.memory);
        }
        prop_assert!(whole.ends.len() <= 2);
        let ok_read = whole.ends.contains(&(3, None));
        prop_assert!(!ok_read || whole.memory.len() == LEN as usize);
    }

    /// A read whose pieces come in any size and order gets each byte at the right place.
    #[test]
    fn pieces_in_any_order_make_the_whole(order in Just((0..16u32).collect::<Vec<_>>()).prop_shuffle(), cut in 1..99usize) {
        let bytes: Vec<_> = order.iter().map(|i| data(false, READ, i * 256, &[*i as u8; 256])).collect();
        let end = structured(chunk::DONE, chunk::NONE, READ, &[]);
        let outcome = run(ReplyStyle::Structured, &[bytes.concat(), end].concat(), &[cut]);
        prop_assert_eq!(outcome.ends, [(3, None)]);
        let expected: Vec<u8> = (0..16u8).flat_map(|i| [i; 256]).collect();
        prop_assert_eq!(outcome.memory, expected);
    }
}
