// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Directed tests of the handshake: each option, each refusal, each limit.

use super::*;
use crate::nbd::wire::{option_header, transmission_flag};

fn table() -> Arc<ExportTable> {
    let plain = Export {
        name: "plain".into(),
        description: "a disk".into(),
        size_bytes: 1 << 20,
        base_allocation: true,
        ..Export::default()
    };
    let secret = Export { name: "secret".into(), size_bytes: 1 << 20, tls_only: true, ..Export::default() };
    let mut strict =
        Export { name: "strict".into(), size_bytes: 1 << 20, require_block_size: true, ..Export::default() };
    strict.block.min = 512;
    Arc::new(ExportTable::new(vec![plain, secret, strict], Some("plain")).unwrap())
}

/// A client that sends one option at a time.
struct Client(Handshake);

/// Replies as (type, data).
type Replies = Vec<(u32, Vec<u8>)>;

impl Client {
    fn new(tls: TlsMode) -> Client {
        Client::with_flags(tls, 3)
    }

    fn with_flags(tls: TlsMode, flags: u32) -> Client {
        let mut client = Client(Handshake::new(table(), tls));
        let mut out = Vec::new();
        client.0.feed(&mut BytesIn::new(&flags.to_be_bytes()), &mut out);
        assert!(out.is_empty());
        client
    }

    fn raw(&mut self, option: u32, data: &[u8]) -> (Step, Vec<u8>) {
        let mut out = Vec::new();
        let bytes = [&option_header(option, data.len() as u32), data].concat();
        let mut input = BytesIn::new(&bytes);
        let step = self.0.feed(&mut input, &mut out);
        assert!(input.is_empty());
        (step, out)
    }

    fn send(&mut self, option: u32, data: &[u8]) -> (Step, Replies) {
        let (step, out) = self.raw(option, data);
        let mut input = BytesIn::new(&out);
        let mut replies = Vec::new();
        while !input.is_empty() {
            assert_eq!((input.u64(), input.u32()), (Some(OPTION_REPLY_MAGIC), Some(option)));
            let kind = input.u32().unwrap();
            let bytes = input.u32().unwrap() as usize;
            replies.push((kind, input.take_exact(bytes).unwrap().to_vec()));
        }
        (step, replies)
    }

    /// Sends an option. Returns the type of the last reply.
    fn ask(&mut self, option: u32, data: &[u8]) -> u32 {
        self.send(option, data).1.last().expect("a reply").0
    }

    fn closed(&mut self, option: u32, data: &[u8]) -> CloseReason {
        match self.raw(option, data).0 {
            Step::Close(reason) => reason,
            step => panic!("{step:?}"),
        }
    }
}

fn go(name: &str, items: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((items.len() as u16).to_be_bytes());
    data.extend(items.iter().flat_map(|i| i.to_be_bytes()));
    data
}

fn meta(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend((query.len() as u32).to_be_bytes());
        data.extend(query.as_bytes());
    }
    data
}

fn entered(step: Step) -> Negotiated {
    match step {
        Step::Transmission(negotiated) => negotiated,
        step => panic!("{step:?}"),
    }
}

#[test]
fn the_greeting_offers_fixed_newstyle_without_zeroes() {
    assert_eq!(greeting(), *b"NBDMAGICIHAVEOPT\0\x03");
}

#[test]
fn export_name_answers_size_flags_and_optional_zeroes() {
    for (flags, bytes) in [(1, 134), (3, 10), (0, 134)] {
        let (step, out) = Client::with_flags(TlsMode::Off, flags).raw(opt::EXPORT_NAME, b"");
        assert_eq!(entered(step).export.name, "plain");
        assert_eq!(out.len(), bytes);
        assert_eq!(out[..10], [0, 0, 0, 0, 0, 0x10, 0, 0, 0, 1]);
    }
    let mut client = Client::new(TlsMode::Off);
    assert_eq!(client.closed(opt::EXPORT_NAME, b"nobody"), CloseReason::NoSuchExport);
    // A closed handshake stays closed.
    assert_eq!(client.0.feed(&mut BytesIn::new(b"x"), &mut Vec::new()).reason(), Some(CloseReason::NoSuchExport));
}

impl Step {
    fn reason(&self) -> Option<CloseReason> {
        match self {
            Step::Close(reason) => Some(*reason),
            _ => None,
        }
    }
}

#[test]
fn info_and_go_tell_what_was_asked_for_once() {
    let mut client = Client::new(TlsMode::Off);
    let all = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, info::BLOCK_SIZE, 77];
    let (step, replies) = client.send(opt::INFO, &go("", &all));
    assert!(matches!(step, Step::Replied));
    let want: Replies = vec![
        (rep::INFO, b"\0\x01plain".to_vec()),
        (rep::INFO, b"\0\x02a disk".to_vec()),
        (rep::INFO, vec![0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 2, 0, 0, 0]),
        (rep::INFO, vec![0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 1]),
        (rep::ACK, vec![]),
    ];
    assert_eq!(replies, want);
    let (step, replies) = client.send(opt::GO, &go("plain", &[]));
    assert_eq!(replies.len(), 2);
    let negotiated = entered(step);
    assert_eq!((negotiated.style, negotiated.base_allocation, negotiated.tls), (ReplyStyle::Simple, false, false));
    let mut client = Client::new(TlsMode::Off);
    assert_eq!(client.ask(opt::GO, &go("nobody", &[])), rep::ERR_UNKNOWN);
    assert_eq!(client.ask(opt::INFO, b""), rep::ERR_INVALID);
    assert_eq!(client.ask(opt::INFO, &go("plain", &[0])[..12]), rep::ERR_INVALID);
    assert_eq!(client.ask(opt::INFO, &[go("plain", &[]), vec![0]].concat()), rep::ERR_INVALID);
    assert_eq!(client.ask(opt::INFO, &go(&"x".repeat(4097), &[])), rep::ERR_INVALID);
    assert_eq!(client.ask(opt::INFO, &[0xff; 10]), rep::ERR_INVALID);
}

#[test]
fn an_export_can_insist_on_its_block_sizes() {
    let mut client = Client::new(TlsMode::Off);
    let (_, replies) = client.send(opt::GO, &go("strict", &[]));
    let kinds: Vec<u32> = replies.iter().map(|r| r.0).collect();
    assert_eq!(kinds, [rep::INFO, rep::ERR_BLOCK_SIZE_REQD]);
    assert_eq!(replies[0].1[..6], [0, 3, 0, 0, 2, 0]);
    assert_eq!(client.ask(opt::GO, &go("strict", &[info::BLOCK_SIZE])), rep::ACK);
    assert_eq!(Client::new(TlsMode::Off).closed(opt::EXPORT_NAME, b"strict"), CloseReason::NoSuchExport);
}

#[test]
fn the_list_has_names_and_descriptions() {
    let mut client = Client::new(TlsMode::Off);
    let (_, replies) = client.send(opt::LIST, &[]);
    assert_eq!(replies.len(), 3, "two exports: the one that wants TLS is hidden");
    assert_eq!(replies[0], (rep::SERVER, b"\0\0\0\x05plaina disk".to_vec()));
    assert_eq!(client.ask(opt::LIST, &[1]), rep::ERR_INVALID);
}

#[test]
fn unknown_options_are_unsupported_and_the_next_one_is_read() {
    let mut client = Client::new(TlsMode::Off);
    for option in [0, 4, 12, 4711, u32::MAX] {
        assert_eq!(client.ask(option, b"whatever"), rep::ERR_UNSUP);
    }
    let (step, replies) = client.send(opt::ABORT, b"data is ignored");
    assert_eq!((step.reason(), replies[0].0), (Some(CloseReason::Aborted), rep::ACK));
}

#[test]
fn extended_replies_win_over_structured_ones() {
    let mut client = Client::new(TlsMode::Off);
    assert_eq!(client.ask(opt::STRUCTURED_REPLY, &[1]), rep::ERR_INVALID);
    assert_eq!(client.ask(opt::STRUCTURED_REPLY, &[]), rep::ACK);
    let (step, replies) = client.send(opt::INFO, &go("plain", &[]));
    assert!(matches!(step, Step::Replied));
    assert_eq!(replies[0].1[11], 1 | transmission_flag::SEND_DF as u8);
    assert_eq!(client.ask(opt::EXTENDED_HEADERS, &[1]), rep::ERR_INVALID);
    assert_eq!(client.ask(opt::EXTENDED_HEADERS, &[]), rep::ACK);
    assert_eq!(client.ask(opt::STRUCTURED_REPLY, &[]), rep::ERR_EXT_HEADER_REQD);
    assert_eq!(entered(client.send(opt::GO, &go("plain", &[])).0).style, ReplyStyle::Extended);
    let mut client = Client::new(TlsMode::Off);
    client.ask(opt::EXTENDED_HEADERS, &[]);
    assert_eq!(client.closed(opt::EXPORT_NAME, b"plain"), CloseReason::ExportNameAfterExtended);
}

#[test]
fn contexts_are_listed_by_wildcard_and_selected_by_name() {
    let mut client = Client::new(TlsMode::Off);
    let listed: Replies = vec![(rep::META_CONTEXT, b"\0\0\0\0base:allocation".to_vec()), (rep::ACK, vec![])];
    for queries in [&[][..], &["base:"], &["x-y:z", "base:allocation", "base:allocation"]] {
        assert_eq!(client.send(opt::LIST_META_CONTEXT, &meta("plain", queries)).1, listed);
    }
    assert_eq!(client.send(opt::LIST_META_CONTEXT, &meta("plain", &["base:dirt", "no colon"])).1.len(), 1);
    assert_eq!(client.ask(opt::SET_META_CONTEXT, &meta("plain", &["base:allocation"])), rep::ERR_INVALID);
    client.ask(opt::STRUCTURED_REPLY, &[]);
    let selected: Replies = vec![(rep::META_CONTEXT, b"\0\0\0\x01base:allocation".to_vec()), (rep::ACK, vec![])];
    assert_eq!(client.send(opt::SET_META_CONTEXT, &meta("plain", &["base:allocation"])).1, selected);
    for queries in [&[][..], &["base:"]] {
        assert_eq!(client.send(opt::SET_META_CONTEXT, &meta("plain", queries)).1.len(), 1);
    }
    assert_eq!(client.ask(opt::SET_META_CONTEXT, &meta("nobody", &["base:"])), rep::ERR_UNKNOWN);
    let whole = meta("plain", &["base:allocation"]);
    for data in [&whole[..whole.len() - 1], &[whole.clone(), vec![0]].concat(), b"", &[0xff; 64]] {
        assert_eq!(client.ask(opt::SET_META_CONTEXT, data), rep::ERR_INVALID);
    }
    // Nothing is selected: the last SET failed, and it also discarded the earlier selection.
    assert!(!entered(client.send(opt::GO, &go("plain", &[])).0).base_allocation);
}

#[test]
fn a_context_counts_for_the_export_it_was_selected_for() {
    for (name, gone, want) in [("plain", "plain", true), ("", "plain", true), ("plain", "strict", false)] {
        let mut client = Client::new(TlsMode::Off);
        client.ask(opt::STRUCTURED_REPLY, &[]);
        client.ask(opt::SET_META_CONTEXT, &meta(name, &["base:allocation"]));
        let step = client.send(opt::GO, &go(gone, &[info::BLOCK_SIZE])).0;
        assert_eq!(entered(step).base_allocation, want, "{name} {gone}");
    }
}

#[test]
fn with_tls_required_nothing_else_is_answered_in_plain_text() {
    let mut client = Client::new(TlsMode::Required);
    let data = go("plain", &[]);
    for option in [opt::LIST, opt::INFO, opt::GO, opt::STRUCTURED_REPLY, opt::SET_META_CONTEXT, 4711] {
        assert_eq!(client.send(option, &data).1.iter().map(|r| r.0).collect::<Vec<_>>(), [rep::ERR_TLS_REQD]);
    }
    assert_eq!(client.ask(4711, &[0; MAX_OPTION_DATA as usize + 1]), rep::ERR_TLS_REQD);
    assert_eq!(client.ask(opt::STARTTLS, &[1]), rep::ERR_INVALID);
    let (step, replies) = client.send(opt::STARTTLS, &[]);
    assert!(matches!(step, Step::StartTls) && replies == [(rep::ACK, vec![])]);
    client.0.tls_started();
    assert_eq!(client.ask(opt::STARTTLS, &[]), rep::ERR_INVALID);
    assert_eq!(client.send(opt::LIST, &[]).1.len(), 4, "under TLS all three are visible");
    let negotiated = entered(client.send(opt::GO, &go("secret", &[])).0);
    assert!(negotiated.tls && negotiated.export.name == "secret");
    assert_eq!(Client::new(TlsMode::Required).closed(opt::EXPORT_NAME, b"plain"), CloseReason::TlsRequired);
    // A client that is not "fixed" cannot start TLS, so it is not served.
    assert_eq!(Client::with_flags(TlsMode::Required, 0).closed(opt::EXPORT_NAME, b""), CloseReason::TlsRequired);
}

#[test]
fn tls_only_exports_stay_hidden_without_tls() {
    let mut client = Client::new(TlsMode::Optional);
    assert_eq!(client.ask(opt::INFO, &go("plain", &[])), rep::ACK);
    assert_eq!(client.ask(opt::INFO, &go("secret", &[])), rep::ERR_TLS_REQD);
    assert_eq!(client.ask(opt::INFO, &go("nobody", &[])), rep::ERR_TLS_REQD);
    assert_eq!(client.ask(opt::LIST_META_CONTEXT, &meta("secret", &[])), rep::ERR_TLS_REQD);
    assert_eq!(client.closed(opt::EXPORT_NAME, b"secret"), CloseReason::TlsRequired);
    let mut client = Client::new(TlsMode::Off);
    assert_eq!(client.ask(opt::INFO, &go("secret", &[])), rep::ERR_UNKNOWN);
    assert_eq!(client.ask(opt::STARTTLS, &[]), rep::ERR_POLICY);
}

#[test]
fn tls_forgets_what_was_negotiated_before() {
    let mut client = Client::new(TlsMode::Optional);
    client.ask(opt::STRUCTURED_REPLY, &[]);
    client.ask(opt::SET_META_CONTEXT, &meta("plain", &["base:allocation"]));
    client.ask(opt::STARTTLS, &[]);
    client.0.tls_started();
    let negotiated = entered(client.send(opt::GO, &go("plain", &[])).0);
    assert_eq!((negotiated.style, negotiated.base_allocation), (ReplyStyle::Simple, false));
}

#[test]
fn plain_text_behind_starttls_is_left_alone() {
    let mut client = Client::new(TlsMode::Required);
    let injected = [option_header(opt::STARTTLS, 0), option_header(opt::LIST, 0)].concat();
    let mut input = BytesIn::new(&injected);
    assert!(matches!(client.0.feed(&mut input, &mut Vec::new()), Step::StartTls));
    assert_eq!(input.position(), 16);
}

#[test]
fn clients_that_break_the_frame_are_dropped() {
    let dropped = |bytes: &[u8]| Client::new(TlsMode::Off).0.feed(&mut BytesIn::new(bytes), &mut Vec::new()).reason();
    assert_eq!(dropped(b"GET / HTTP/1.1\r\n"), Some(CloseReason::BadMagic(u64::from_be_bytes(*b"GET / HT"))));
    let mut client = Client::with_flags(TlsMode::Off, 7);
    assert_eq!(client.0.feed(&mut BytesIn::new(&[]), &mut Vec::new()).reason(), Some(CloseReason::BadFlags(7)));
    assert_eq!(Client::with_flags(TlsMode::Off, 2).closed(opt::LIST, &[]), CloseReason::NotFixed(opt::LIST));
}

#[test]
fn long_data_is_skipped_and_keeps_no_memory() {
    let mut client = Client::new(TlsMode::Off);
    let long = vec![0; MAX_OPTION_DATA as usize + 1];
    assert_eq!(client.ask(opt::INFO, &long), rep::ERR_TOO_BIG);
    assert_eq!(client.ask(opt::LIST, &[]), rep::ACK);
    assert!(client.0.pending.capacity() < 1024, "{}", client.0.pending.capacity());
    assert_eq!(client.ask(opt::INFO, &long[1..]), rep::ERR_INVALID, "as much as is looked at");
    assert!(client.0.pending.capacity() <= 2 * MAX_OPTION_DATA as usize);
    // Data that is announced but does not arrive takes no memory either.
    let mut client = Client::new(TlsMode::Off);
    client.0.feed(&mut BytesIn::new(&option_header(opt::INFO, MAX_OPTION_DATA)), &mut Vec::new());
    assert!(client.0.pending.capacity() < 1024);
    assert_eq!(Client::new(TlsMode::Off).closed(opt::EXPORT_NAME, &long), CloseReason::NoSuchExport);
    assert_eq!(Client::with_flags(TlsMode::Off, 0).closed(opt::GO, &long), CloseReason::NotFixed(opt::GO));
    assert_eq!(Client::new(TlsMode::Off).closed(opt::ABORT, &long), CloseReason::Aborted);
}

#[test]
fn no_handshake_lasts_for_ever() {
    let mut client = Client::new(TlsMode::Off);
    for _ in 0..MAX_OPTIONS {
        assert_eq!(client.ask(4711, &[]), rep::ERR_UNSUP);
    }
    assert_eq!(client.closed(4711, &[]), CloseReason::TooMuch);
    let mut client = Client::new(TlsMode::Off);
    let step = client.0.feed(&mut BytesIn::new(&option_header(4711, u32::MAX)), &mut Vec::new());
    assert_eq!(step.reason(), Some(CloseReason::TooMuch), "before any of it is read");
}

#[test]
fn a_server_that_shuts_down_says_so() {
    let mut client = Client::new(TlsMode::Off);
    client.0.shut_down();
    assert_eq!(client.ask(opt::LIST, &[]), rep::ERR_SHUTDOWN);
    assert_eq!(client.ask(opt::GO, &go("plain", &[])), rep::ERR_SHUTDOWN);
    assert_eq!(client.ask(opt::ABORT, &[]), rep::ACK);
    let mut client = Client::new(TlsMode::Off);
    client.0.shut_down();
    assert_eq!(client.closed(opt::EXPORT_NAME, b"plain"), CloseReason::ShuttingDown);
}

#[test]
fn reasons_are_sentences() {
    let all = [
        (CloseReason::BadFlags(4), "client flags 0x4"),
        (CloseReason::BadMagic(1), "0x0000000000000001 in place of an option"),
        (CloseReason::NotFixed(3), "option 3 from a client"),
        (CloseReason::TooMuch, "more than 4096 options or 4194304 bytes"),
    ];
    for (reason, text) in all {
        assert!(reason.to_string().contains(text), "{reason}");
    }
}

#[test]
fn a_client_that_is_not_admitted_gets_an_error() {
    let mut client = Client::new(TlsMode::Off);
    let (step, mut out) = client.raw(opt::GO, &go("", &[]));
    entered(step);
    assert_eq!(client.0.refuse_entry("no memory", &mut out), Some(()));
    assert_eq!(u32::from_be_bytes(*out[12..].first_chunk().unwrap()), rep::ERR_POLICY);
    assert!(out.ends_with(b"no memory"));
    entered(client.raw(opt::GO, &go("", &[])).0);
    let mut old = Client::new(TlsMode::Off);
    let (step, mut out) = old.raw(opt::EXPORT_NAME, b"");
    entered(step);
    assert_eq!(old.0.refuse_entry("no memory", &mut out), None);
    assert!(out.is_empty(), "such a client can only be dropped");
}
