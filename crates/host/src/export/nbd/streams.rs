// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole connections of misbehaving clients: options and requests, well formed and not, in any order, mixed with noise and split anywhere.
//! The code under test never panics, keeps its limits, and has the same outcome however the bytes were split.

use super::{Command, Event, Export, ExportTable, Handshake, Negotiated, Session, Step, TlsMode};
use crate::nbd::wire::BytesIn;
use crate::nbd::wire::{MAX_OPTION_DATA, RequestHeader, command, command_flag, opt, option_header};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::sync::Arc;

const SIZE: u64 = 1 << 16;

fn table() -> Arc<ExportTable> {
    let mut a = Export { description: "first".into(), size_bytes: SIZE, ..Export::with_everything("a") };
    a.block.min = 512;
    let b = Export { name: "b".into(), size_bytes: SIZE, read_only: true, tls_only: true, ..Export::default() };
    Arc::new(ExportTable::new(vec![a, b], Some("a")).unwrap())
}

/// What the code under test did with a connection's bytes, independent of how they were split.
#[derive(Debug, Default, PartialEq)]
struct Transcript {
    sent: Vec<u8>,
    events: Vec<String>,
    payload: Vec<u8>,
}

enum Phase {
    Handshake(Handshake),
    Session(Box<Session>, Negotiated),
    Over,
}

struct Connection {
    phase: Phase,
    told: Transcript,
}

impl Connection {
    fn new(tls: TlsMode) -> Connection {
        Connection { phase: Phase::Handshake(Handshake::new(table(), tls)), told: Transcript::default() }
    }

    fn receive(&mut self, bytes: &[u8]) {
        let mut input = BytesIn::new(bytes);
        let mut turns = 0;
        while self.turn(&mut input) {
            turns += 1;
            assert!(turns <= 2 * bytes.len() + 4, "no progress");
        }
        assert!(input.is_empty() || matches!(self.phase, Phase::Over), "something was left in the buffer");
    }

    fn turn(&mut self, input: &mut BytesIn<'_>) -> bool {
        match &mut self.phase {
            Phase::Over => false,
            Phase::Handshake(handshake) => {
                let before = self.told.sent.len();
                let step = handshake.feed(input, &mut self.told.sent);
                assert!(self.told.sent.len() - before < 4096, "answers are bounded by the table");
                match step {
                    Step::NeedMore => return false,
                    Step::Replied => return true,
                    Step::StartTls => handshake.tls_started(),
                    Step::Transmission(n) => {
                        self.told.events.push(format!("{n:?}"));
                        self.phase = Phase::Session(Box::new(Session::new(&n)), n);
                        return true;
                    }
                    Step::Close(_) => self.phase = Phase::Over,
                }
                self.told.events.push(format!("{step:?}"));
                true
            }
            Phase::Session(session, negotiated) => {
                match session.next_event(input) {
                    Ok(Event::NeedMore) => return false,
                    Ok(Event::Payload { cookie, bytes, left }) => {
                        assert!(!bytes.is_empty());
                        self.told.payload.extend(bytes);
                        if left == 0 {
                            self.told.events.push(format!("payload of {cookie}"));
                        }
                        return true;
                    }
                    Ok(Event::Request(r)) => {
                        let export = &negotiated.export;
                        let aligned = (r.offset | r.length) % u64::from(export.block.min) == 0;
                        assert!(aligned && r.offset + r.length <= export.size_bytes, "{r:?}");
                        assert!(r.length > 0 || r.command == Command::Flush, "{r:?}");
                        let writes = matches!(r.command, Command::Write | Command::Trim | Command::WriteZeroes);
                        assert!(!(writes && export.read_only), "{r:?}");
                        self.told.events.push(format!("{r:?}"));
                        return true;
                    }
                    event => {
                        self.told.events.push(format!("{event:?}"));
                        if !matches!(event, Ok(Event::Refused(_))) {
                            self.phase = Phase::Over;
                        }
                    }
                }
                true
            }
        }
    }
}

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text].concat()
}

fn option(code: u32, data: &[u8]) -> Vec<u8> {
    [&option_header(code, data.len() as u32)[..], data].concat()
}

fn any_name() -> impl Strategy<Value = &'static [u8]> {
    prop::sample::select(vec![&b""[..], b"a", b"b", b"nobody", b"\xff"])
}

fn any_option() -> impl Strategy<Value = Vec<u8>> {
    let noise = prop::collection::vec(any::<u8>(), 0..40);
    let query = prop::sample::select(vec!["", "base:", "base:allocation", "x-a:b", "nonsense"]);
    prop_oneof![
        (0u32..14, noise).prop_map(|(code, data)| option(code, &data)),
        (0u32..14).prop_map(|code| option(code, &[])),
        (any_name(), prop::collection::vec(0u16..5, 0..5)).prop_map(|(name, items)| {
            let items = [vec![items.len() as u16], items].concat();
            option(opt::INFO, &[string(name), items.iter().flat_map(|i| i.to_be_bytes()).collect()].concat())
        }),
        (9u32..11, any_name(), prop::collection::vec(query, 0..4)).prop_map(|(code, name, queries)| {
            let count = (queries.len() as u32).to_be_bytes().to_vec();
            let queries: Vec<u8> = queries.iter().flat_map(|q| string(q.as_bytes())).collect();
            option(code, &[string(name), count, queries].concat())
        }),
        Just(option(4711, &vec![0; MAX_OPTION_DATA as usize + 1])),
    ]
}

fn any_request(extended: bool) -> impl Strategy<Value = Vec<u8>> {
    let place = prop_oneof![
        20 => (0u64..SIZE / 512 + 2).prop_map(|n| n * 512),
        2 => 0..SIZE + 100,
        1 => prop::sample::select(vec![u64::MAX, u64::MAX - 511, 1 << 32, (1 << 32) - 1]),
    ];
    let length = prop_oneof![
        40 => (0u64..6).prop_map(|n| n * 512),
        4 => 0..SIZE,
        1 => Just(u64::MAX),
        1 => Just(65 << 20),
    ];
    let flags = prop_oneof![8 => Just(0u16), 3 => 0u16..64, 1 => any::<u16>()];
    let kind = prop_oneof![9 => 0u16..8, 1 => any::<u16>()];
    let keep_alive = |kind| if kind == command::DISC { command::READ } else { kind };
    (flags, kind.prop_map(keep_alive), any::<u64>(), place, length).prop_map(
        move |(flags, kind, cookie, offset, length)| {
            let flags =
                if extended && kind == command::WRITE && flags == 0 { command_flag::PAYLOAD_LEN } else { flags };
            let header = RequestHeader { flags, kind, cookie, offset, length };
            let carries = if extended { flags & command_flag::PAYLOAD_LEN != 0 } else { kind == command::WRITE };
            let payload = if carries && length <= SIZE { vec![0x5a; length as usize] } else { Vec::new() };
            let short = RequestHeader { length: length & u64::from(u32::MAX), ..header };
            match short.to_compact() {
                Some(bytes) if !extended => [&bytes[..], &payload].concat(),
                _ => [&header.to_extended()[..], &payload].concat(),
            }
        },
    )
}

/// All bytes of a client.
fn any_stream() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![9 => Just(3u32), 1 => 0u32..8];
    let enter = prop_oneof![
        6 => Just(option(opt::GO, &[string(b"a"), vec![0, 0]].concat())),
        1 => Just(option(opt::EXPORT_NAME, b"a")),
        1 => Just(option(opt::GO, &[string(b"b"), vec![0, 0]].concat())),
    ];
    let style = prop::sample::select(vec![None, Some(opt::STRUCTURED_REPLY), Some(opt::EXTENDED_HEADERS)]);
    let safe = any_option().prop_filter("goes on", |o| !matches!(o.get(11), Some(1 | 2 | 11)));
    (flags, prop::collection::vec(safe, 0..4), style, enter, any::<prop::sample::Index>(), any::<u8>(), 0..12u8)
        .prop_flat_map(|(flags, options, style, enter, place, noise, odd)| {
            let extended = style == Some(opt::EXTENDED_HEADERS);
            prop::collection::vec(any_request(extended), 0..12).prop_map(move |requests| {
                let mut bytes = flags.to_be_bytes().to_vec();
                bytes.extend(options.concat());
                bytes.extend(style.map(|code| option(code, &[])).unwrap_or_default());
                bytes.extend(&enter);
                bytes.extend(requests.concat());
                // In some streams one byte is corrupted.
                if odd == 0 {
                    let at = place.index(bytes.len());
                    bytes[at] ^= noise;
                }
                bytes
            })
        })
}

fn any_tls() -> impl Strategy<Value = TlsMode> {
    prop::sample::select(vec![TlsMode::Off, TlsMode::Off, TlsMode::Optional, TlsMode::Required])
}

fn check_cuts(tls: TlsMode, bytes: &[u8], cuts: &[prop::sample::Index]) {
    let mut whole = Connection::new(tls);
    whole.receive(bytes);
    let mut places: Vec<usize> = cuts.iter().map(|c| c.index(bytes.len() + 1)).collect();
    places.sort_unstable();
    let mut pieces = Connection::new(tls);
    let mut from = 0;
    for to in places.into_iter().chain([bytes.len()]) {
        pieces.receive(&bytes[from..to]);
        from = to;
    }
    assert_eq!(pieces.told, whole.told);
    let mut single = Connection::new(tls);
    bytes.chunks(1).for_each(|b| single.receive(b));
    assert_eq!(single.told, whole.told);
}

proptest! {
    #[test]
    fn sessions_do_not_depend_on_how_bytes_are_cut(
        tls in any_tls(),
        bytes in any_stream(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        check_cuts(tls, &bytes, &cuts);
    }

    #[test]
    fn noise_is_survived(
        tls in any_tls(),
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        check_cuts(tls, &bytes, &cuts);
    }
}

/// The generator is useful only if most of its clients reach requests that are served.
#[test]
fn most_generated_clients_reach_their_requests() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut served, mut refused, mut written) = (0, 0, 0);
    for _ in 0..200 {
        let bytes = any_stream().new_tree(&mut runner).expect("a stream").current();
        let mut connection = Connection::new(TlsMode::Off);
        connection.receive(&bytes);
        served += connection.told.events.iter().filter(|e| e.starts_with("Request")).count();
        refused += connection.told.events.iter().filter(|e| e.contains("Refused")).count();
        written += connection.told.payload.len();
    }
    assert!(served > 100 && refused > 100 && written > 10_000, "{served} served, {refused} refused, {written} bytes");
}
