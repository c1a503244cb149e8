// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A whole NBD connection of arbitrary bytes: no panic, requests within their export, answers bounded by the table, and
//! the same outcome whether the bytes come at once or in pieces.
//!
//! The first byte chooses the TLS mode, the second how long the pieces are. The in-tree twin, whose clients are well
//! formed more often, is `crates/host/src/export/nbd/streams.rs`.
//! Run on arbitrary bytes by `fuzz/fuzz_targets`, and on seeds by plain tests.

use host::export::nbd::{
    Command, Event, Export, ExportTable, Handshake, Negotiated, Session, Step, TlsMode, Violation,
};
use host::nbd::wire::BytesIn;
use std::sync::Arc;

const SIZE: u64 = 1 << 20;

fn table() -> Arc<ExportTable> {
    let mut a = Export { description: "first".to_owned(), size_bytes: SIZE, ..Export::with_everything("a") };
    a.block.min = 512;
    let b = Export { name: "b".to_owned(), size_bytes: SIZE, read_only: true, tls_only: true, ..Export::default() };
    Arc::new(ExportTable::new(vec![a, b], Some("a")).expect("good exports"))
}

enum Phase {
    Handshake(Handshake),
    Session(Box<Session>, Negotiated),
    Over,
}

/// Everything that was sent and understood.
#[derive(Default, PartialEq, Debug)]
struct Transcript {
    sent: Vec<u8>,
    events: Vec<String>,
    payload: Vec<u8>,
}

struct Connection {
    phase: Phase,
    told: Transcript,
}

impl Connection {
    fn run(tls: TlsMode, pieces: impl Iterator<Item = impl AsRef<[u8]>>) -> Transcript {
        let phase = Phase::Handshake(Handshake::new(table(), tls));
        let mut connection = Connection { phase, told: Transcript::default() };
        for piece in pieces {
            let mut input = BytesIn::new(piece.as_ref());
            while connection.step(&mut input) {}
            assert!(input.is_empty() || matches!(connection.phase, Phase::Over));
        }
        connection.told
    }

    /// Whether there may be more in the input.
    fn step(&mut self, input: &mut BytesIn<'_>) -> bool {
        let told = &mut self.told;
        match &mut self.phase {
            Phase::Over => return false,
            Phase::Handshake(handshake) => {
                let before = told.sent.len();
                let step = handshake.feed(input, &mut told.sent);
                assert!(told.sent.len() - before < 4096);
                match step {
                    Step::NeedMore => return false,
                    Step::Replied => {}
                    Step::StartTls => handshake.tls_started(),
                    Step::Close(reason) => {
                        told.events.push(reason.to_string());
                        self.phase = Phase::Over;
                    }
                    Step::Transmission(n) => self.phase = Phase::Session(Box::new(Session::new(&n)), n),
                }
            }
            Phase::Session(session, negotiated) => match session.next_event(input) {
                Ok(Event::NeedMore) => return false,
                Ok(Event::Payload { bytes, .. }) => told.payload.extend(bytes),
                Ok(Event::Request(r)) => {
                    let export = &negotiated.export;
                    assert!(r.offset + r.length <= SIZE && (r.length > 0 || r.command == Command::Flush));
                    assert!((r.offset | r.length) % u64::from(export.block.min) == 0);
                    let writes = matches!(r.command, Command::Write | Command::Trim | Command::WriteZeroes);
                    assert!(!(writes && export.read_only));
                    told.events.push(format!("{r:?}"));
                }
                Ok(Event::Refused(r)) => told.events.push(format!("{r:?}")),
                Ok(Event::Disconnect) | Err(Violation::BadMagic(_) | Violation::PayloadTooLong(_)) => {
                    self.phase = Phase::Over;
                }
            },
        }
        true
    }
}

/// How many requests, options that end a handshake and refusals were understood.
pub fn run(data: &[u8]) -> usize {
    let [tls, piece, bytes @ ..] = data else { return 0 };
    let tls = [TlsMode::Off, TlsMode::Optional, TlsMode::Required][usize::from(*tls) % 3];
    let whole = Connection::run(tls, std::iter::once(bytes));
    let pieces = Connection::run(tls, bytes.chunks(usize::from(*piece).max(1)));
    assert_eq!(pieces, whole);
    whole.events.len()
}
