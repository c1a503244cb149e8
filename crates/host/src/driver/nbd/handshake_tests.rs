// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Handshakes with old and new servers, and with peers that are not NBD servers.

use super::*;
use proptest::prelude::*;

fn greeting(flags: u16) -> Vec<u8> {
    [&NBD_MAGIC.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &flags.to_be_bytes()].concat()
}

fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let head = [&OPTION_REPLY_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &kind.to_be_bytes()].concat();
    [&head[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

fn export(size: u64, flags: u16) -> Vec<u8> {
    let data = [&info::EXPORT.to_be_bytes()[..], &size.to_be_bytes(), &flags.to_be_bytes()].concat();
    reply(opt::GO, rep::INFO, &data)
}

fn blocks(min: u32, preferred: u32, max: u32) -> Vec<u8> {
    let words = [min, preferred, max].map(u32::to_be_bytes).concat();
    reply(opt::GO, rep::INFO, &[&info::BLOCK_SIZE.to_be_bytes()[..], &words].concat())
}

/// Runs a handshake. Returns the result, and everything that the client sent.
fn shake(name: &str, server: &[Vec<u8>]) -> (Result<Option<(Served, ReplyStyle)>>, Vec<u8>) {
    shake_under(name, false, server)
}

fn shake_under(name: &str, tls: bool, server: &[Vec<u8>]) -> (Result<Option<(Served, ReplyStyle)>>, Vec<u8>) {
    let bytes = server.concat();
    let (mut left, mut out) = (&bytes[..], Vec::new());
    let mut handshake = Handshake::new(name, tls);
    loop {
        let Some((now, rest)) = left.split_at_checked(handshake.want()) else { return (Ok(None), out) };
        left = rest;
        match handshake.feed(now, &mut out) {
            Ok(None) => {}
            agreed => {
                assert!(agreed.is_err() || left.is_empty(), "bytes too many");
                return (agreed, out);
            }
        }
    }
}

fn agreed(server: &[Vec<u8>]) -> (Served, ReplyStyle) {
    shake("d", server).0.unwrap().expect("an end")
}

fn refused(server: &[Vec<u8>]) -> Error {
    shake("d", server).0.unwrap_err()
}

const FIXED: u16 = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;

fn structured() -> Vec<u8> {
    reply(opt::STRUCTURED_REPLY, rep::ACK, &[])
}

fn go_end() -> Vec<u8> {
    reply(opt::GO, rep::ACK, &[])
}

#[test]
fn a_modern_server_tells_everything() {
    let name = reply(opt::GO, rep::INFO, &[&info::NAME.to_be_bytes()[..], b"d"].concat());
    let server = [greeting(FIXED), structured(), name, export(1 << 30, 0x1ff), blocks(512, 4096, 64 << 20), go_end()];
    let (served, style) = agreed(&server);
    assert_eq!(style, ReplyStyle::Structured);
    let max_payload = MAX_PAYLOAD;
    let expected = Served { size_bytes: 1 << 30, flags: 0x1ff, min_block: 512, preferred_block: 4096, max_payload };
    assert_eq!(served, expected);
    assert!(served.can(transmission_flag::CAN_MULTI_CONN) && !served.can(transmission_flag::SEND_FAST_ZERO));
    let sent = shake("d", &server).1;
    assert_eq!(sent[..4], 3u32.to_be_bytes());
    assert_eq!(sent[4..20], option_header(opt::STRUCTURED_REPLY, 0));
    assert_eq!(sent[20..36], option_header(opt::GO, 9));
    assert_eq!(sent[36..], [0, 0, 0, 1, b'd', 0, 1, 0, 3]);
}

#[test]
fn an_older_server_is_asked_by_name() {
    let unsup = |option| reply(option, rep::ERR_UNSUP, b"what?");
    let by_name = [&(5u64 << 20).to_be_bytes()[..], &5u16.to_be_bytes()].concat();
    for (flags, padding) in [(FIXED, 0), (handshake_flag::FIXED_NEWSTYLE, EXPORT_NAME_PADDING)] {
        let answer = [&by_name[..], &vec![0; padding]].concat();
        let server = [greeting(flags), unsup(opt::STRUCTURED_REPLY), unsup(opt::GO), answer];
        let (served, style) = agreed(&server);
        assert_eq!((style, served.size_bytes, served.flags), (ReplyStyle::Simple, 5 << 20, 5));
        assert_eq!((served.min_block, served.preferred_block, served.max_payload), (1, 4096, MAX_PAYLOAD));
        let sent = shake("d", &server).1;
        assert!(sent.ends_with(&[&option_header(opt::EXPORT_NAME, 1)[..], b"d"].concat()));
    }
    let no_flags = [greeting(FIXED), structured(), export(1 << 20, 0x1fe), go_end()];
    assert_eq!(agreed(&no_flags).0.flags, 0, "without HAS_FLAGS the others mean nothing");
}

#[test]
fn refusals_say_why_and_cannot_write_to_the_terminal() {
    let go = |kind, text: &[u8]| refused(&[greeting(FIXED), structured(), reply(opt::GO, kind, text)]);
    let e = go(rep::ERR_UNKNOWN, b"no such export\x1b[2J\n");
    assert_eq!(
        (e.kind(), e.to_string().contains("has no export 'd' (it says: no such export [2J)")),
        (ErrorKind::NotFound, true),
        "{e}"
    );
    assert!(go(rep::ERR_POLICY, b"").to_string().ends_with("denies access to export 'd'"));
    assert!(go(rep::ERR_TLS_REQD, b"").to_string().contains("requires TLS: write nbds://"));
    let early = refused(&[greeting(FIXED), reply(opt::STRUCTURED_REPLY, rep::ERR_TLS_REQD, b"")]);
    assert!(early.to_string().contains("requires TLS: write nbds://"));
    assert!(go(rep::ERR_SHUTDOWN, b"").to_string().contains("shutting down"));
    assert!(go(rep::ERROR | 77, &[b'x'; 4000]).to_string().len() < 300);
    assert!(refused(&[greeting(0)]).to_string().contains("oldstyle"));
    let old = [&NBD_MAGIC.to_be_bytes()[..], &0x0000_4202_8186_1253u64.to_be_bytes(), &[0, 0]].concat();
    assert!(refused(&[old]).to_string().contains("oldstyle"));
    assert!(refused(&[b"SSH-2.0-OpenSSH_9.2".to_vec()]).to_string().contains("no NBD server"));
}

/// It is asked for before anything else, and everything else behind it.
#[test]
fn tls_comes_first_or_nothing_comes() {
    let ack = reply(opt::STARTTLS, rep::ACK, &[]);
    let server = [greeting(FIXED), ack.clone(), structured(), export(1 << 20, 1), go_end()];
    let (agreed, sent) = shake_under("d", true, &server);
    assert_eq!(agreed.unwrap().expect("an end").0.size_bytes, 1 << 20);
    assert_eq!(sent[4..20], option_header(opt::STARTTLS, 0));
    assert_eq!(sent[20..36], option_header(opt::STRUCTURED_REPLY, 0));
    assert_eq!(sent[36..52], option_header(opt::GO, 9));
    // Until TLS has begun nothing more is expected and nothing is sent.
    let (mut handshake, mut out) = (Handshake::new("d", true), Vec::new());
    handshake.feed(&greeting(FIXED), &mut out).unwrap();
    out.clear();
    assert!(!handshake.wants_tls());
    handshake.feed(&ack, &mut out).unwrap();
    assert!(handshake.wants_tls() && handshake.want() == 0 && out.is_empty());
    let refused = |answer: Vec<u8>| shake_under("d", true, &[greeting(FIXED), answer]).0.unwrap_err();
    for kind in [rep::ERR_UNSUP, rep::ERR_POLICY, rep::ERROR | 99] {
        let e = refused(reply(opt::STARTTLS, kind, b"no\x1b"));
        assert_eq!(e.kind(), ErrorKind::Denied);
        assert!(e.to_string().contains("is refused by the server") && e.to_string().contains("(it says: no)"), "{e}");
    }
    // Answers to what was not asked, or with what does not belong there.
    for answer in [structured(), reply(opt::STARTTLS, rep::ACK, b"x"), reply(opt::STARTTLS, rep::INFO, &[])] {
        assert!(refused(answer).to_string().contains("violates the NBD protocol"));
    }
    let late = [greeting(FIXED), structured(), reply(opt::GO, rep::ERR_TLS_REQD, b"")];
    assert!(shake("d", &late).0.unwrap_err().to_string().contains("write nbds://"));
}

#[test]
fn what_contradicts_itself_is_refused() {
    for (min, preferred, max) in [
        (0, 4096, 8192),
        (3, 4096, 8192),
        (1 << 17, 1 << 17, 1 << 20),
        (512, 100, 4096),
        (4096, 512, 8192),
        (4096, 4096, 512),
    ] {
        let e = refused(&[greeting(FIXED), structured(), export(1 << 20, 1), blocks(min, preferred, max), go_end()]);
        assert!(e.to_string().contains("contradict"), "{min} {preferred} {max}: {e}");
    }
    let broken = |data: &[Vec<u8>]| refused(&[&[greeting(FIXED), structured()], data].concat()).to_string();
    for data in [
        vec![go_end()],
        vec![reply(opt::INFO, rep::ACK, &[])],
        vec![reply(opt::GO, rep::SERVER, b"abc")],
        vec![reply(opt::GO, rep::INFO, &[0])],
        vec![reply(opt::GO, rep::INFO, &[0, 0, 1])],
        vec![reply(opt::GO, rep::INFO, &[0, 3, 1])],
        vec![reply(opt::GO, rep::INFO, &[9; MAX_REPLY + 1])],
        vec![vec![0; 20]],
        vec![reply(opt::GO, rep::INFO, &[0, 9]); MAX_REPLIES as usize],
    ] {
        assert!(broken(&data).contains("violates the NBD protocol"), "{data:?}");
    }
}

proptest! {
    /// Any bytes: an end or a wait for more, no panic, and what is agreed on holds together.
    #[test]
    fn any_server_is_survived(
        tls in any::<bool>(),
        parts in prop::collection::vec((0..8u8, any::<u32>(), prop::collection::vec(any::<u8>(), 0..60)), 0..12),
    ) {
        let begun = if tls { reply(opt::STARTTLS, rep::ACK, &[]) } else { Vec::new() };
        let mut server = vec![greeting(FIXED), begun, structured()];
        for (kind, n, data) in parts {
            server.push(match kind {
                0 => reply(opt::GO, n % 12, &data),
                1 => reply(opt::GO, rep::ERROR | (n % 12), &data),
                2 => export(u64::from(n) << 9, n as u16),
                3 => blocks(1 << (n % 20), 1 << (n % 32), n),
                4 => go_end(),
                5 => reply(n % 12, rep::ACK, &data),
                6 => reply(opt::GO, rep::INFO, &data),
                _ => data,
            });
        }
        let bytes = server.concat();
        let (mut left, mut out) = (&bytes[..], Vec::new());
        let mut handshake = Handshake::new("d", tls);
        while let Some((now, rest)) = left.split_at_checked(handshake.want()) {
            left = rest;
            prop_assert!(handshake.want() <= MAX_REPLY);
            match handshake.feed(now, &mut out) {
                Ok(None) => {}
                Ok(Some((served, _))) => {
                    prop_assert!(served.min_block.is_power_of_two() && served.min_block <= 65536);
                    prop_assert!(served.max_payload >= served.min_block && served.max_payload <= MAX_PAYLOAD);
                    break;
                }
                Err(_) => break,
            }
        }
    }
}
