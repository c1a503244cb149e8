// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replies as a client reads them: every kind in every style, layouts by the byte, extents by their rules.

use super::*;
use crate::export::nbd::export::{Export, FastZero};
use crate::export::nbd::handshake::Negotiated;
use crate::export::nbd::session::{Event, Session};
use crate::nbd::wire::{RequestHeader, command_flag};
use proptest::prelude::*;
use std::sync::Arc;

const STYLES: [ReplyStyle; 3] = [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended];
const WHO: ReplyTo = ReplyTo { cookie: 0x0102_0304_0506_0708, offset: 0x1122_3344 };

/// A block status request as a session gives it.
fn status_request(style: ReplyStyle, kind: u16, flags: u16, length: u64) -> Request {
    let export = Export {
        size_bytes: 1 << 50,
        write_zeroes: true,
        fast_zero: FastZero::Served,
        base_allocation: true,
        ..Export::default()
    };
    let mut session = Session::new(&Negotiated { export: Arc::new(export), style, base_allocation: true, tls: false });
    let header = RequestHeader { flags, kind, cookie: WHO.cookie, offset: WHO.offset, length };
    let (long, short) = (header.to_extended(), header.to_compact());
    let bytes = short.as_ref().filter(|_| style != ReplyStyle::Extended).map_or(&long[..], |b| &b[..]);
    match session.next_event(&mut BytesIn::new(bytes)) {
        Ok(Event::Request(request)) => request,
        event => panic!("{event:?}"),
    }
}

/// The one reply in `bytes`, and its payload.
fn read(bytes: &[u8]) -> (ReplyHead, &[u8]) {
    let mut input = BytesIn::new(bytes);
    let head = ReplyHead::take(&mut input).expect("a magic").expect("a whole head");
    if let ReplyHead::Chunk { length, .. } = head {
        assert_eq!(length, input.rest().len() as u64);
    }
    // With one byte less there is no head, and nothing is consumed.
    let mut short = BytesIn::new(&bytes[..input.position() - 1]);
    assert_eq!((ReplyHead::take(&mut short), short.position()), (Ok(None), 0));
    (head, input.rest())
}

fn chunk_head(style: ReplyStyle, kind: u16, done: bool, length: u64) -> ReplyHead {
    let offset = (style == ReplyStyle::Extended).then_some(WHO.offset);
    ReplyHead::Chunk { flags: u16::from(done), kind, cookie: WHO.cookie, offset, length }
}

#[test]
fn layouts_are_those_of_the_specification() {
    let mut to = [0xff; HEAD_BYTES];
    let n = ReplyStyle::Simple.error(WHO, NbdError::NoSpc, &mut to);
    assert_eq!(to[..n], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 1, 2, 3, 4, 5, 6, 7, 8]);
    let n = ReplyStyle::Structured.data(WHO, 9, 2, false, &mut to);
    let want = [0x66, 0x8e, 0x33, 0xef, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 9];
    assert_eq!(to[..n], want);
    let n = ReplyStyle::Extended.success(WHO, &mut to);
    let mut want = vec![0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0x11, 0x22, 0x33, 0x44];
    want.extend([0; 8]);
    assert_eq!(to[..n], want);
}

#[test]
fn every_reply_of_every_style_is_read_back() {
    for style in STYLES {
        let mut to = [0xff; HEAD_BYTES];
        let plain = |error| ReplyHead::Simple { error, cookie: WHO.cookie };
        let n = style.success(WHO, &mut to);
        match style {
            ReplyStyle::Extended => assert_eq!(read(&to[..n]), (chunk_head(style, chunk::NONE, true, 0), &[][..])),
            _ => assert_eq!(read(&to[..n]), (plain(0), &[][..])),
        }
        for error in NbdError::ALL {
            let n = style.error(WHO, error, &mut to);
            let mut message = Vec::new();
            style.error_with_message(WHO, error, "why", &mut message);
            let mut at = [0; HEAD_BYTES];
            let at_bytes = style.error_at(WHO, error, 77, false, &mut at);
            if style == ReplyStyle::Simple {
                assert_eq!(read(&to[..n]), (plain(error.code()), &[][..]));
                assert_eq!((&message[..], &at[..at_bytes]), (&to[..n], &to[..n]));
                continue;
            }
            let code = error.code().to_be_bytes();
            let payload = [&code[..], &[0, 0]].concat();
            assert_eq!(read(&to[..n]), (chunk_head(style, chunk::ERROR, true, 6), &payload[..]));
            let payload = [&code[..], &[0, 3], b"why"].concat();
            assert_eq!(read(&message), (chunk_head(style, chunk::ERROR, true, 9), &payload[..]));
            let payload = [&code[..], &[0; 9], &[77]].concat();
            assert_eq!(read(&at[..at_bytes]), (chunk_head(style, chunk::ERROR_OFFSET, false, 14), &payload[..]));
        }
        if style == ReplyStyle::Simple {
            let n = style.data(WHO, WHO.offset, 5, true, &mut to);
            assert_eq!(read(&to[..n]), (plain(0), &[][..]));
            continue;
        }
        let n = style.end(WHO, &mut to);
        assert_eq!(read(&to[..n]), (chunk_head(style, chunk::NONE, true, 0), &[][..]));
        let n = style.data(WHO, 0x5566, 3, true, &mut to);
        let whole = [&to[..n], b"abc"].concat();
        let payload = [&0x5566u64.to_be_bytes()[..], b"abc"].concat();
        assert_eq!(read(&whole), (chunk_head(style, chunk::OFFSET_DATA, true, 11), &payload[..]));
        let n = style.hole(WHO, 0x5566, 9, false, &mut to);
        let payload = [&0x5566u64.to_be_bytes()[..], &[0, 0, 0, 9]].concat();
        assert_eq!(read(&to[..n]), (chunk_head(style, chunk::OFFSET_HOLE, false, 12), &payload[..]));
    }
    assert_eq!(ReplyHead::take(&mut BytesIn::new(&[1, 2, 3, 4])), Err(0x0102_0304));
}

#[test]
fn messages_are_cut_between_characters() {
    let mut to = Vec::new();
    let long = "x".to_owned() + &"\u{e9}".repeat(3000);
    ReplyStyle::Structured.error_with_message(WHO, NbdError::Io, &long, &mut to);
    let (_, payload) = read(&to);
    assert_eq!(payload[4..6], 4095u16.to_be_bytes());
    assert_eq!(std::str::from_utf8(&payload[6..]).map(str::len), Ok(4095));
}

/// The extents of a status reply, as a client reads them.
fn extents(style: ReplyStyle, bytes: &[u8]) -> Vec<Extent> {
    let (head, payload) = read(bytes);
    let mut input = BytesIn::new(payload);
    assert_eq!(input.u32(), Some(BASE_ALLOCATION_ID));
    let extended = style == ReplyStyle::Extended;
    let count = if extended { input.u32().unwrap() as usize } else { input.rest().len() / 8 };
    let kind = if extended { chunk::BLOCK_STATUS_EXT } else { chunk::BLOCK_STATUS };
    assert_eq!(head, chunk_head(style, kind, true, payload.len() as u64));
    let mut found = Vec::new();
    while !input.is_empty() {
        let length = if extended { input.u64().unwrap() } else { u64::from(input.u32().unwrap()) };
        if extended {
            assert_eq!(input.u32(), Some(0));
        }
        found.push(Extent { length, flags: input.u32().unwrap() });
    }
    assert_eq!(found.len(), count);
    found
}

#[test]
fn extents_are_joined_cut_and_never_none() {
    let e = |length, flags| Extent { length, flags };
    for style in [ReplyStyle::Structured, ReplyStyle::Extended] {
        let told = |flags, given: &[Extent]| {
            let mut to = b"before".to_vec();
            style.block_status(&status_request(style, 7, flags, 100), given.iter().copied(), &mut to);
            extents(style, &to[6..])
        };
        assert_eq!(told(0, &[e(10, 3), e(20, 3), e(30, 0), e(100, 3)]), [e(30, 3), e(30, 0), e(40, 3)]);
        assert_eq!(told(command_flag::REQ_ONE, &[e(10, 3), e(20, 3), e(30, 0)]), [e(30, 3)]);
        assert_eq!(told(command_flag::REQ_ONE, &[e(1000, 1)]), [e(100, 1)]);
        assert_eq!(told(0, &[]), [e(100, 0)]);
        assert_eq!(told(0, &[e(10, 1)]), [e(10, 1)], "less than was asked for is allowed");
    }
    let many = (0..1_000_000).map(|i| e(1, i % 2));
    let mut to = Vec::new();
    let request = status_request(ReplyStyle::Structured, 7, 0, 1 << 20);
    ReplyStyle::Structured.block_status(&request, many, &mut to);
    assert_eq!(extents(ReplyStyle::Structured, &to).len(), MAX_EXTENTS);
    let mut to = Vec::new();
    let request = status_request(ReplyStyle::Extended, 7, 0, 1 << 45);
    ReplyStyle::Extended.block_status(&request, [e(1 << 44, 0), e(1 << 44, 0)], &mut to);
    assert_eq!(extents(ReplyStyle::Extended, &to), [e(1 << 45, 0)]);
}

#[test]
fn every_status_has_the_error_the_protocol_has_for_it() {
    let zero = status_request(ReplyStyle::Simple, 6, 0, 512);
    let fast = status_request(ReplyStyle::Simple, 6, command_flag::FAST_ZERO, 512);
    for (status, want) in [
        (BlkStatus::Ok, None),
        (BlkStatus::NoSpc, Some(NbdError::NoSpc)),
        (BlkStatus::NotSupp, Some(NbdError::Inval)),
        (BlkStatus::Inval, Some(NbdError::Inval)),
        (BlkStatus::Resource, Some(NbdError::NoMem)),
        (BlkStatus::IoErr, Some(NbdError::Io)),
        (BlkStatus::Medium, Some(NbdError::Io)),
        (BlkStatus::Offline, Some(NbdError::Io)),
        (BlkStatus::Timeout, Some(NbdError::Io)),
    ] {
        assert_eq!(error_of(status, &zero), want, "{status}");
    }
    assert_eq!(error_of(BlkStatus::NotSupp, &fast), Some(NbdError::NotSup));
}

proptest! {
    /// Whatever extents a disk reports, a client reads the same states from the reply, as far as the reply goes.
    #[test]
    fn extents_say_what_they_were_made_of(
        given in prop::collection::vec((1u64..50, 0u32..4), 0..60),
        length in 1u64..1000,
        one: bool,
        extended: bool,
    ) {
        let style = if extended { ReplyStyle::Extended } else { ReplyStyle::Structured };
        let given: Vec<Extent> = given.into_iter().map(|(length, flags)| Extent { length, flags }).collect();
        let request = status_request(style, 7, if one { command_flag::REQ_ONE } else { 0 }, length);
        let mut to = Vec::new();
        style.block_status(&request, given.iter().copied(), &mut to);
        let told = extents(style, &to);
        let spread = |extents: &[Extent]| -> Vec<u32> {
            extents.iter().flat_map(|e| std::iter::repeat_n(e.flags, e.length as usize)).collect()
        };
        let (truth, told_bytes) = (spread(&given), spread(&told));
        prop_assert!(!told.is_empty() && told_bytes.len() as u64 <= length);
        prop_assert!(!one || told.len() == 1);
        prop_assert!(told.windows(2).all(|w| w[0].flags != w[1].flags));
        if given.is_empty() {
            prop_assert_eq!(told_bytes, vec![0; length as usize]);
        } else {
            prop_assert_eq!(&told_bytes[..], &truth[..told_bytes.len()]);
            prop_assert!(one || told_bytes.len() == truth.len().min(length as usize));
        }
    }
}
