// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An iSCSI target of arbitrary bytes, as the driver sees it: no panic, data segments within what was declared, the same messages
//! whether the bytes come at once or in pieces, and a login that ends.
//!
//! The first byte chooses digests and login, the second how long the pieces are.
//! Run on arbitrary bytes by `fuzz/fuzz_targets`, and on seeds by plain tests.

use host::driver::iscsi::login::{Chap, Login, MAX_ROUNDS, Progress, Wanted};
use host::driver::iscsi::reader::{MAX_KEPT, MOST_LEFT, PduEvent, Reader};

const MAX_DATA: u32 = 8192;

/// What was understood: messages, and bytes of data.
fn read(header_digest: bool, data_digest: bool, bytes: &[u8], piece: usize) -> (Vec<String>, Vec<u8>, bool) {
    let mut reader = Reader::new(header_digest, data_digest, MAX_DATA);
    let (mut held, mut told, mut data) = (Vec::new(), Vec::new(), Vec::new());
    for now in bytes.chunks(piece) {
        held.extend_from_slice(now);
        let mut input = &held[..];
        loop {
            match reader.next(&mut input) {
                Ok(PduEvent::NeedMore) => break,
                Ok(PduEvent::Data { bytes, .. }) => {
                    assert!(!bytes.is_empty() && bytes.len() <= MAX_DATA as usize);
                    data.extend_from_slice(bytes);
                }
                Ok(PduEvent::Pdu(read)) => {
                    assert!(reader.kept().len() <= MAX_KEPT && reader.kept().len() <= read.data_len as usize);
                    data.extend_from_slice(reader.kept());
                    told.push(format!("{read:?}"));
                }
                Ok(said) => told.push(format!("{said:?}")),
                Err(e) => {
                    assert!(!e.to_string().chars().any(char::is_control));
                    return (told, data, true);
                }
            }
        }
        held = input.to_vec();
        assert!(held.len() < MOST_LEFT);
    }
    (told, data, false)
}

/// Rounds of a login that the bytes answer; 100 more if it is done.
fn log_in(bytes: &[u8]) -> usize {
    let chap = |name: &str| Some(Chap { user: name.into(), password: "secret".into() });
    let mut login = Login::new(Wanted {
        initiator: "iqn.2026-11.test:me".into(),
        target: Some("iqn.2026-11.test:t1".into()),
        isid: [0x80, 1, 2, 3, 0, 0],
        chap: chap("me"),
        target_chap: None,
        challenge: [7; 16],
        header_digest: false,
        data_digest: false,
    });
    let (mut reader, mut input, mut rounds) = (Reader::new(false, false, MAX_DATA), bytes, 0);
    while login.request().is_ok() {
        let read = loop {
            match reader.next(&mut input) {
                Ok(PduEvent::Pdu(read)) => break read,
                Ok(PduEvent::NeedMore) | Err(_) => return rounds,
                Ok(_) => {}
            }
        };
        match login.feed(&read.pdu, reader.kept()) {
            Ok(Progress::Continue) => rounds += 1,
            Ok(Progress::Redirect(_)) | Err(_) => return rounds,
            Ok(Progress::Done(params)) => {
                assert!(params.first_burst <= params.max_burst && params.max_send_data >= 512);
                return 100 + rounds;
            }
        }
        assert!(rounds <= MAX_ROUNDS as usize);
    }
    rounds
}

/// How many messages were understood; of a login, see [`log_in`].
pub fn run(bytes: &[u8]) -> usize {
    let [kind, piece, bytes @ ..] = bytes else { return 0 };
    if kind % 8 >= 4 {
        return log_in(bytes);
    }
    let (header, data) = (kind % 2 == 1, kind % 4 >= 2);
    let whole = read(header, data, bytes, bytes.len().max(1));
    assert_eq!(whole, read(header, data, bytes, usize::from(*piece).max(1)), "it depends on the cuts");
    whole.0.len()
}
