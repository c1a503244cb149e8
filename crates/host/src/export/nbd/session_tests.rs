// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Directed tests of the transmission phase: the right error for each wrong request, and a stream that stays synchronized after it.

use super::*;
use crate::export::nbd::export::{BlockSizes, Export};
use std::sync::Arc;

const SIZE: u64 = 1 << 20;

fn everything() -> Export {
    Export {
        size_bytes: SIZE,
        flush: true,
        fua: true,
        trim: true,
        write_zeroes: true,
        fast_zero: FastZero::Served,
        cache: true,
        block: BlockSizes { min: 512, preferred: 4096, max: 1 << 18 },
        base_allocation: true,
        ..Export::default()
    }
}

fn session(export: Export, style: ReplyStyle) -> Session {
    let base_allocation = export.base_allocation;
    Session::new(&Negotiated { export: Arc::new(export), style, base_allocation, tls: false })
}

fn header(kind: u16, flags: u16, offset: u64, length: u64) -> RequestHeader {
    RequestHeader { flags, kind, cookie: 0x1234, offset, length }
}

/// Returns how a single request is judged.
fn judged(session: &mut Session, h: RequestHeader) -> Result<Command, NbdError> {
    let compact = h.to_compact();
    let extended = h.to_extended();
    let bytes = if session.style == ReplyStyle::Extended { &extended[..] } else { &compact.as_ref().unwrap()[..] };
    let mut input = BytesIn::new(bytes);
    let mut event = session.next_event(&mut input).expect("in step");
    assert!(input.is_empty());
    // Consume the payload. A refusal comes after it.
    let payload = vec![0; SIZE as usize * 72];
    let carries = match session.style {
        ReplyStyle::Extended => h.flags & flag::PAYLOAD_LEN != 0,
        _ => h.kind == command::WRITE,
    };
    let length = if carries { h.length as usize } else { 0 };
    let mut input = BytesIn::new(&payload[..length]);
    assert!(length == 0 || !matches!(event, Event::Refused(_)), "{event:?} before its payload");
    loop {
        match session.next_event(&mut input).expect("in step") {
            Event::NeedMore => break,
            Event::Payload { .. } => {}
            refused => assert_eq!(std::mem::replace(&mut event, refused), Event::NeedMore),
        }
    }
    assert!(input.is_empty() && session.state == SessionState::Header);
    match event {
        Event::Request(r) => {
            assert_eq!((r.cookie, r.offset, r.length, r.flags), (h.cookie, h.offset, h.length, h.flags));
            Ok(r.command)
        }
        Event::Refused(r) => {
            assert_eq!((r.reply_to.cookie, r.reply_to.offset, r.kind), (h.cookie, h.offset, h.kind));
            Err(r.error)
        }
        event => panic!("{event:?}"),
    }
}

#[test]
fn good_requests_pass_with_their_flags() {
    use Command as C;
    let mut s = session(everything(), ReplyStyle::Structured);
    for (kind, flags, offset, length, want) in [
        (0, 0, 0, 512, C::Read),
        (0, flag::DF | flag::FUA, SIZE - 512, 512, C::Read),
        (0, 0, 0, 1 << 18, C::Read),
        (1, flag::FUA, 512, 1024, C::Write),
        (3, flag::FUA, 0, 0, C::Flush),
        (4, flag::FUA, 0, SIZE, C::Trim),
        (5, 0, 0, SIZE, C::Cache),
        (6, flag::FUA | flag::NO_HOLE | flag::FAST_ZERO, 0, SIZE, C::WriteZeroes),
        (7, flag::REQ_ONE, 0, SIZE, C::BlockStatus),
    ] {
        assert_eq!(judged(&mut s, header(kind, flags, offset, length)), Ok(want), "{want:?}");
    }
}

#[test]
fn each_wrong_request_gets_the_error_of_the_specification() {
    use NbdError as E;
    let mut s = session(everything(), ReplyStyle::Structured);
    for (kind, flags, offset, length, want, why) in [
        (0, 0, SIZE, 512, E::Inval, "read past the end"),
        (0, 0, u64::MAX - 511, 512, E::Inval, "the end is not a number"),
        (0, 0, 0, 0, E::Inval, "no length"),
        (0, 0, 0, 513, E::Inval, "unaligned length"),
        (0, 0, 1, 512, E::Inval, "unaligned offset"),
        (0, 0, 0, (1 << 18) + 512, E::Inval, "longer than the maximum"),
        (0, flag::DF, 0, (1 << 18) + 512, E::Overflow, "too long for one piece"),
        (0, flag::NO_HOLE, 0, 512, E::Inval, "a flag of another command"),
        (0, 1 << 9, 0, 512, E::Inval, "an unknown flag"),
        (0, flag::PAYLOAD_LEN, 0, 512, E::Inval, "a flag of extended headers"),
        (1, 0, SIZE - 512, 1024, E::NoSpc, "write past the end"),
        (1, 0, 256, 512, E::Inval, "unaligned write"),
        (1, 0, 0, (1 << 18) + 512, E::Inval, "long write that is still read over"),
        (1, flag::DF, 0, 512, E::Inval, "a flag of reads"),
        (3, 0, 512, 0, E::Inval, "a flush of a place"),
        (4, 0, SIZE, 512, E::Inval, "trim past the end"),
        (4, flag::NO_HOLE, 0, 512, E::Inval, "a flag of zeroes"),
        (5, 0, 0, SIZE + 512, E::Inval, "cache past the end"),
        (6, 0, 0, SIZE + 512, E::NoSpc, "zeroes past the end"),
        (6, flag::REQ_ONE, 0, 512, E::Inval, "a flag of block status"),
        (7, 0, SIZE - 512, 1024, E::Inval, "status past the end"),
        (8, 0, 0, 0, E::Inval, "an experimental command"),
        (u16::MAX, 0, 0, 0, E::Inval, "an unknown command"),
    ] {
        assert_eq!(judged(&mut s, header(kind, flags, offset, length)), Err(want), "{why}");
        assert_eq!(judged(&mut s, header(0, 0, 0, 512)), Ok(Command::Read), "the one after: {why}");
    }
}

#[test]
fn unoffered_commands_and_writes_to_read_only_are_rejected() {
    let bare = Export { size_bytes: SIZE, ..Export::default() };
    let mut s = session(bare, ReplyStyle::Simple);
    for kind in [3, 4, 5, 6, 7] {
        let length = if kind == 3 { 0 } else { 512 };
        assert_eq!(judged(&mut s, header(kind, 0, 0, length)), Err(NbdError::Inval), "{kind}");
    }
    assert_eq!(judged(&mut s, header(0, flag::DF, 0, 512)), Err(NbdError::Inval), "DF wants chunks");
    assert_eq!(judged(&mut s, header(1, flag::FUA, 0, 512)), Err(NbdError::Inval), "FUA is not offered");
    assert_eq!(judged(&mut s, header(1, 0, 1, 3)), Ok(Command::Write), "single bytes by default");
    let mut s = session(Export { read_only: true, ..everything() }, ReplyStyle::Structured);
    for kind in [1, 4, 6] {
        assert_eq!(judged(&mut s, header(kind, 0, 0, 512)), Err(NbdError::Perm), "{kind}");
    }
    assert_eq!(judged(&mut s, header(0, 0, 0, 512)), Ok(Command::Read));
    assert_eq!(judged(&mut s, header(3, 0, 0, 0)), Ok(Command::Flush));
}

#[test]
fn fast_zeroes_are_offered_refused_or_served() {
    let fast = header(6, flag::FAST_ZERO, 0, 512);
    for (fast_zero, want) in [
        (FastZero::NotOffered, Err(NbdError::Inval)),
        (FastZero::Refused, Err(NbdError::NotSup)),
        (FastZero::Served, Ok(Command::WriteZeroes)),
    ] {
        let mut s = session(Export { fast_zero, ..everything() }, ReplyStyle::Simple);
        assert_eq!(judged(&mut s, fast), want);
        assert_eq!(judged(&mut s, header(6, 0, 0, 512)), Ok(Command::WriteZeroes));
    }
}

#[test]
fn block_status_wants_a_context() {
    let mut s = session(Export { base_allocation: false, ..everything() }, ReplyStyle::Structured);
    assert_eq!(judged(&mut s, header(7, 0, 0, 512)), Err(NbdError::Inval));
    // A block status reply has no simple form, whatever was selected.
    assert_eq!(judged(&mut session(everything(), ReplyStyle::Simple), header(7, 0, 0, 512)), Err(NbdError::Inval));
}

#[test]
fn extended_headers_have_64_bits_and_say_what_follows() {
    let size_bytes = 1 << 40;
    let mut s = session(Export { size_bytes, ..everything() }, ReplyStyle::Extended);
    assert_eq!(judged(&mut s, header(6, 0, 0, size_bytes)), Ok(Command::WriteZeroes));
    assert_eq!(judged(&mut s, header(7, 0, 0, size_bytes)), Ok(Command::BlockStatus));
    assert_eq!(judged(&mut s, header(0, 0, 0, 1 << 33)), Err(NbdError::Inval));
    assert_eq!(judged(&mut s, header(1, flag::PAYLOAD_LEN, 0, 512)), Ok(Command::Write));
    // Without the flag there is no payload to skip, and nothing to write.
    assert_eq!(judged(&mut s, header(1, 0, 0, 512)), Err(NbdError::Inval));
    // An unexpected payload is skipped.
    for kind in [0, 3, 4, 6, 7, 99] {
        assert_eq!(judged(&mut s, header(kind, flag::PAYLOAD_LEN, 0, 512)), Err(NbdError::Inval), "{kind}");
    }
    let mut input = BytesIn::new(&[0x25, 0x60, 0x95, 0x13]);
    assert_eq!(s.next_event(&mut input), Ok(Event::NeedMore));
    let mut input = BytesIn::new(&[0; 28]);
    assert_eq!(s.next_event(&mut input), Err(Violation::BadMagic(0x2560_9513)), "a compact header");
}

#[test]
fn a_payload_is_told_in_place_whatever_the_cut() {
    let mut s = session(everything(), ReplyStyle::Simple);
    let mut bytes = header(1, 0, 0, 1024).to_compact().unwrap().to_vec();
    bytes.extend((0..1024).map(|i| i as u8));
    bytes.extend(header(3, 0, 0, 0).to_compact().unwrap());
    let mut input = BytesIn::new(&bytes[..528]);
    assert!(matches!(s.next_event(&mut input), Ok(Event::Request(r)) if r.command == Command::Write));
    assert_eq!(s.payload_left(), 1024);
    assert_eq!(input.position(), 28, "so the reader knows where in its buffer the payload is");
    let want = Event::Payload { cookie: 0x1234, bytes: &bytes[28..528], left: 524 };
    assert_eq!(s.next_event(&mut input), Ok(want));
    assert_eq!(s.next_event(&mut input), Ok(Event::NeedMore));
    // Some of the payload is read without the input.
    s.payload_received(500);
    assert_eq!(s.payload_left(), 24);
    let mut input = BytesIn::new(&bytes[1028..]);
    assert_eq!(s.next_event(&mut input), Ok(Event::Payload { cookie: 0x1234, bytes: &bytes[1028..1052], left: 0 }));
    assert!(matches!(s.next_event(&mut input), Ok(Event::Request(r)) if r.command == Command::Flush));
    assert_eq!(s.next_event(&mut input), Ok(Event::NeedMore));
}

#[test]
#[should_panic(expected = "beyond its end")]
fn reading_more_payload_than_there_is_is_a_bug_of_the_caller() {
    session(everything(), ReplyStyle::Simple).payload_received(1);
}

#[test]
fn clients_out_of_step_or_out_of_bounds_are_dropped_for_good() {
    let mut s = session(everything(), ReplyStyle::Simple);
    let mut input = BytesIn::new(&[7; 64]);
    assert_eq!(s.next_event(&mut input), Err(Violation::BadMagic(0x0707_0707)));
    assert_eq!(s.next_event(&mut input), Err(Violation::BadMagic(0x0707_0707)));
    let most = u64::from(MAX_SERVED);
    let mut s = session(everything(), ReplyStyle::Simple);
    assert_eq!(judged(&mut s, header(1, 0, 0, most)), Err(NbdError::NoSpc), "64 MiB are still read over");
    let bytes = header(1, 0, 0, most + 1).to_compact().unwrap();
    assert_eq!(s.next_event(&mut BytesIn::new(&bytes)), Err(Violation::PayloadTooLong(most + 1)));
    let mut s = session(everything(), ReplyStyle::Extended);
    let bytes = header(3, flag::PAYLOAD_LEN, 0, u64::MAX).to_extended();
    assert_eq!(s.next_event(&mut BytesIn::new(&bytes)), Err(Violation::PayloadTooLong(u64::MAX)));
    assert!(Violation::PayloadTooLong(5).to_string().contains("5 bytes of data: at most 67108864"));
}

#[test]
fn after_a_disconnect_nothing_counts() {
    let mut s = session(everything(), ReplyStyle::Simple);
    let mut bytes = header(2, 0xffff, 7, 9).to_compact().unwrap().to_vec();
    bytes.extend([1; 99]);
    let mut input = BytesIn::new(&bytes);
    assert_eq!(s.next_event(&mut input), Ok(Event::Disconnect));
    assert_eq!(s.next_event(&mut input), Ok(Event::Disconnect));
}

#[test]
fn shutting_down_and_resizing_count_from_the_next_request() {
    let mut s = session(everything(), ReplyStyle::Simple);
    assert_eq!(judged(&mut s, header(0, 0, SIZE, 512)), Err(NbdError::Inval));
    s.set_size_bytes(SIZE * 2);
    assert_eq!(judged(&mut s, header(0, 0, SIZE, 512)), Ok(Command::Read));
    s.shut_down();
    assert_eq!(judged(&mut s, header(1, 0, 0, 512)), Err(NbdError::Shutdown));
    assert_eq!(judged(&mut s, header(0, 0, 0, 512)), Err(NbdError::Shutdown));
}
