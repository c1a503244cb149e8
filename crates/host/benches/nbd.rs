// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cost of the NBD protocol per request, without sockets and disk: a receive of 32 requests is parsed, and each reply's
//! head written.
extern crate mqblk_host as host;

use host::export::nbd::reply::HEAD_BYTES;
use host::export::nbd::{Command, Event, Export, Negotiated, Session};
use host::nbd::wire::{BytesIn, ReplyStyle};
use host::nbd::wire::{RequestHeader, command, command_flag};
use std::hint::black_box;
use std::sync::Arc;

fn received(style: ReplyStyle, kind: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    for cookie in 0..32 {
        let carries = kind == command::WRITE && style == ReplyStyle::Extended;
        let flags = if carries { command_flag::PAYLOAD_LEN } else { 0 };
        let header = RequestHeader { flags, kind, cookie, offset: cookie << 12, length: 4096 };
        match style {
            ReplyStyle::Extended => bytes.extend(header.to_extended()),
            _ => bytes.extend(header.to_compact().expect("32 bits")),
        }
        bytes.extend(vec![0; if kind == command::WRITE { 4096 } else { 0 }]);
    }
    bytes
}

fn main() {
    println!("clock: {:?}", host::clock::start());
    let smoke = !std::env::args().any(|a| a == "--bench");
    let batches: u64 = if smoke { 10 } else { 2_000_000 };
    for style in [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended] {
        for (kind, name) in [(command::READ, "reads"), (command::WRITE, "writes")] {
            let export = Arc::new(Export { size_bytes: 1 << 20, ..Export::default() });
            let mut session = Session::new(&Negotiated { export, style, base_allocation: false, tls: false });
            let bytes = received(style, kind);
            let mut heads = [[0u8; HEAD_BYTES]; 32];
            let mut sent = 0;
            let t0 = host::clock::now();
            for _ in 0..batches {
                let mut input = BytesIn::new(black_box(&bytes));
                let mut free = heads.iter_mut();
                loop {
                    match session.next_event(&mut input) {
                        Ok(Event::NeedMore) => break,
                        Ok(Event::Payload { bytes, .. }) => sent += black_box(bytes).len(),
                        Ok(Event::Request(r)) => {
                            let head = free.next().expect("32 requests");
                            sent += match r.command {
                                Command::Read => style.data(r.reply_to(), r.offset, r.length as u32, true, head),
                                _ => style.success(r.reply_to(), head),
                            };
                        }
                        event => panic!("{event:?}"),
                    }
                }
                black_box(&heads);
            }
            let ns = host::clock::now().since(t0).as_ns();
            assert!(sent > 0);
            println!("{style:?} {name}: {:.1} ns per request", ns as f64 / (batches * 32) as f64);
        }
    }
}
