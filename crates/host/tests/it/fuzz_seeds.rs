// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Seeds of the fuzz targets for NBD, FUSE, iSCSI and multipath.conf, built from the formats' own values. The targets' bodies run
//! on them. The seeds for vhost-user are in `fuzzing.rs`, because only a test of the library has access.

#[path = "../../../../fuzz/bodies/fuse.rs"]
mod fuse;
#[path = "../../../../fuzz/bodies/iscsi.rs"]
mod iscsi;
#[path = "../../../../fuzz/bodies/multipath_conf.rs"]
mod multipath_conf;
#[path = "../../../../fuzz/bodies/nbd.rs"]
mod nbd;
#[path = "../../../../fuzz/bodies/nbd_client.rs"]
mod nbd_client;
#[path = "../../../../fuzz/bodies/seeds.rs"]
mod seeds;

use host::driver::nbd::replies::cookie;
use host::export::fuse::wire::{IN_HEADER, ROOT, opcode};
use host::nbd::wire::{
    BASE_ALLOCATION, NBD_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, RequestHeader, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, chunk, command, command_flag, handshake_flag, info, opt, option_header, rep,
};
use seeds::{Seed, check};

/// Length of the pieces into which the second of two runs splits the input. Both runs must agree.
const PIECE: u8 = 7;

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

fn option(code: u32, data: &[u8]) -> Vec<u8> {
    [&option_header(code, data.len() as u32)[..], data].concat()
}

fn choose(code: u32, export: &str) -> Vec<u8> {
    option(code, &[&string(export)[..], &1u16.to_be_bytes(), &info::BLOCK_SIZE.to_be_bytes()].concat())
}

fn request(kind: u16, flags: u16, offset: u64, length: u64) -> RequestHeader {
    RequestHeader { flags, kind, cookie: 0x1234, offset, length }
}

/// Makes the input of a client: TLS mode, then everything that it sends.
fn client(tls: u8, parts: &[Vec<u8>]) -> Vec<u8> {
    let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    [&[tls, PIECE][..], &u32::from(flags).to_be_bytes(), &parts.concat()].concat()
}

/// Makes one request of each kind.
fn requests() -> Vec<(RequestHeader, Vec<u8>)> {
    let with = |header, data: Vec<u8>| (header, data);
    vec![
        with(request(command::READ, 0, 0, 4096), vec![]),
        with(request(command::WRITE, command_flag::FUA, 512, 512), vec![0x5a; 512]),
        with(request(command::FLUSH, 0, 0, 0), vec![]),
        with(request(command::TRIM, 0, 4096, 8192), vec![]),
        with(request(command::WRITE_ZEROES, command_flag::NO_HOLE, 0, 65536), vec![]),
        with(request(command::CACHE, 0, 0, 4096), vec![]),
        with(request(command::BLOCK_STATUS, 0, 0, 1 << 20), vec![]),
        with(request(command::DISC, 0, 0, 0), vec![]),
    ]
}

fn compact(skip: &[u16]) -> Vec<u8> {
    let kept = requests().into_iter().filter(|(r, _)| !skip.contains(&r.kind));
    kept.flat_map(|(r, data)| [&r.to_compact().expect("short")[..], &data].concat()).collect()
}

fn extended() -> Vec<u8> {
    let with_length = |(mut r, data): (RequestHeader, Vec<u8>)| {
        if r.kind == command::WRITE {
            r.flags |= command_flag::PAYLOAD_LEN;
        }
        [&r.to_extended()[..], &data].concat()
    };
    requests().into_iter().flat_map(with_length).collect()
}

#[test]
fn seeds_of_nbd() {
    let contexts =
        option(opt::SET_META_CONTEXT, &[&string("a")[..], &1u32.to_be_bytes(), &string(BASE_ALLOCATION)].concat());
    let old = [&option(opt::EXPORT_NAME, b"a")[..], &compact(&[command::BLOCK_STATUS])].concat();
    let modern = [option(opt::STRUCTURED_REPLY, &[]), contexts.clone(), choose(opt::GO, "a"), compact(&[])];
    let wide = [option(opt::EXTENDED_HEADERS, &[]), contexts, choose(opt::GO, "a"), extended()];
    let asks = [option(opt::LIST, &[]), choose(opt::INFO, "b"), choose(opt::INFO, "none"), option(opt::ABORT, &[])];
    let tls = [option(opt::STARTTLS, &[]), choose(opt::GO, "b"), compact(&[command::BLOCK_STATUS])];
    let seeds = [
        Seed { name: "old", bytes: client(0, &[old]), reach: 6 },
        Seed { name: "modern", bytes: client(0, &modern), reach: 7 },
        Seed { name: "extended", bytes: client(0, &wide), reach: 7 },
        Seed { name: "asks", bytes: client(1, &asks), reach: 1 },
        Seed { name: "tls", bytes: client(2, &tls), reach: 6 },
    ];
    check("nbd", &seeds, nbd::run);
}

fn simple(error: u32, tag: u16, data: usize) -> Vec<u8> {
    let head = [&SIMPLE_REPLY_MAGIC.to_be_bytes()[..], &error.to_be_bytes(), &cookie(tag, 1).to_be_bytes()];
    [&head.concat()[..], &vec![0x5a; data]].concat()
}

fn structured(done: bool, kind: u16, tag: u16, payload: &[&[u8]]) -> Vec<u8> {
    let (flags, payload) = (if done { chunk::DONE } else { 0 }, payload.concat());
    let head = [&STRUCTURED_REPLY_MAGIC.to_be_bytes()[..], &flags.to_be_bytes(), &kind.to_be_bytes()].concat();
    [&head[..], &cookie(tag, 1).to_be_bytes(), &(payload.len() as u32).to_be_bytes(), &payload].concat()
}

fn answer(option: u32, kind: u32, data: &[&[u8]]) -> Vec<u8> {
    let data = data.concat();
    let head = [&OPTION_REPLY_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &kind.to_be_bytes()].concat();
    [&head[..], &(data.len() as u32).to_be_bytes(), &data].concat()
}

#[test]
fn seeds_of_nbd_client() {
    let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    let greeting = [&NBD_MAGIC.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &flags.to_be_bytes()].concat();
    let export = |code: u32| {
        answer(code, rep::INFO, &[&info::EXPORT.to_be_bytes(), &(1u64 << 30).to_be_bytes(), &0x1ffu16.to_be_bytes()])
    };
    let sizes = [512u32, 4096, 32 << 20].map(u32::to_be_bytes).concat();
    let modern = [
        vec![0, PIECE],
        greeting.clone(),
        answer(opt::STRUCTURED_REPLY, rep::ACK, &[]),
        answer(opt::GO, rep::INFO, &[&info::NAME.to_be_bytes(), b"disk"]),
        export(opt::GO),
        answer(opt::GO, rep::INFO, &[&info::BLOCK_SIZE.to_be_bytes(), &sizes]),
        answer(opt::GO, rep::ACK, &[]),
    ];
    let refused = [
        vec![0, PIECE],
        greeting,
        answer(opt::STRUCTURED_REPLY, rep::ERR_UNSUP, &[]),
        answer(opt::GO, rep::ERR_UNKNOWN, &[b"there is no such export"]),
    ];
    // Reads of 512, 4096, 8192 and 65536 bytes have tags 0 to 3, writes the others.
    let simples = [vec![1, PIECE], simple(0, 4, 0), simple(0, 0, 512), simple(28, 5, 0), simple(5, 2, 0)];
    let at = |tag: u16, offset: u64| (u64::from(tag) << 20 | offset).to_be_bytes();
    let chunks = [
        vec![2, PIECE],
        structured(false, chunk::OFFSET_DATA, 1, &[&at(1, 512), &[0x5a; 512]]),
        structured(true, chunk::NONE, 6, &[]),
        structured(false, chunk::OFFSET_HOLE, 1, &[&at(1, 1024), &3072u32.to_be_bytes()]),
        structured(true, chunk::OFFSET_DATA, 1, &[&at(1, 0), &[0xa5; 512]]),
        structured(true, chunk::ERROR, 2, &[&5u32.to_be_bytes(), &4u16.to_be_bytes(), b"oops"]),
        structured(true, chunk::OFFSET_HOLE, 3, &[&at(3, 0), &65536u32.to_be_bytes()]),
    ];
    let seeds = [
        Seed { name: "modern", bytes: modern.concat(), reach: 1 },
        Seed { name: "refused", bytes: refused.concat(), reach: 0 },
        Seed { name: "simple", bytes: simples.concat(), reach: 4 },
        Seed { name: "structured", bytes: chunks.concat(), reach: 4 },
    ];
    check("nbd_client", &seeds, nbd_client::run);
}

/// Makes a message for a disk of 61 blocks of 512 bytes. The disk supports discards and zeroes, or is read-only.
#[allow(clippy::disallowed_methods, reason = "the kernel speaks in the byte order of its machine")]
fn message(is_read_only: bool, opcode: u32, fields: &[u32]) -> Vec<u8> {
    let mut bytes = vec![if is_read_only { 0xfc } else { 0xf4 }];
    bytes.extend(((IN_HEADER + 4 * fields.len()) as u32).to_ne_bytes());
    bytes.extend(opcode.to_ne_bytes());
    bytes.extend(7u64.to_ne_bytes());
    bytes.extend(ROOT.to_ne_bytes());
    bytes.extend([0; 16]);
    fields.iter().for_each(|f| bytes.extend(f.to_ne_bytes()));
    bytes
}

#[test]
fn seeds_of_fuse() {
    let fields = |at: u32, size: u32| [0, 0, at, 0, size, 0, 0, 0, 0, 0];
    let seed = |name, bytes, reach| Seed { name, bytes, reach };
    let punch = |at: u32, len: u32| [0, 0, at, 0, len, 0, 3, 0];
    let seeds = [
        seed("init", message(false, opcode::INIT, &[7, 31, 1 << 17, 1 << 5]), 1),
        seed("getattr", message(false, opcode::GETATTR, &[0; 4]), 2),
        seed("open", message(false, opcode::OPEN, &[0, 0]), 2),
        seed("read", message(false, opcode::READ, &fields(4096, 512)), 2),
        seed("read-behind", message(false, opcode::READ, &fields(1 << 20, 512)), 2),
        seed("write", message(false, opcode::WRITE, &fields(512, 1024)), 2),
        seed("write-part", message(false, opcode::WRITE, &fields(513, 10)), 2),
        seed("write-read-only", message(true, opcode::WRITE, &fields(0, 512)), 1),
        seed("punch", message(false, opcode::FALLOCATE, &punch(1024, 2048)), 2),
        seed("seek-data", message(false, opcode::LSEEK, &[0, 0, 4096, 0, 3, 0]), 2),
        seed("seek-hole", message(true, opcode::LSEEK, &[0, 0, 4097, 0, 4, 0]), 2),
        seed("seek-negative", message(false, opcode::LSEEK, &[0, 0, 0, 1 << 31, 3, 0]), 1),
        seed("fsync", message(false, opcode::FSYNC, &[0; 4]), 2),
        seed("setattr", message(false, opcode::SETATTR, &[0; 22]), 2),
        seed("forget", message(false, opcode::FORGET, &[1, 0]), 2),
        seed("unknown", message(false, 9999, &[]), 1),
    ];
    check("fuse", &seeds, fuse::run);
}

/// Makes a PDU of an iSCSI target: opcode, flags, tag and data, optionally with digests of header and data.
fn pdu(kind: u8, flags: u8, tag: u32, data: &[u8], digests: (bool, bool)) -> Vec<u8> {
    let mut header = [0; 48];
    (header[0], header[1]) = (kind, flags);
    header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
    header[16..20].copy_from_slice(&tag.to_be_bytes());
    let mut all = header.to_vec();
    if digests.0 {
        all.extend(crc32c::crc32c(&header).to_le_bytes());
    }
    let padded = [data, &[0; 3][..data.len().wrapping_neg() & 3]].concat();
    all.extend(&padded);
    if digests.1 && !data.is_empty() {
        all.extend(crc32c::crc32c(&padded).to_le_bytes());
    }
    all
}

#[test]
fn seeds_of_iscsi() {
    let talk = |digests| {
        [
            pdu(0x25, 0x81, 1, &[0xa5; 512], digests),
            pdu(0x21, 0x80, 2, &[0, 18, 0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0, 0, 0], digests),
            pdu(0x31, 0x80, 3, b"", digests),
            pdu(0x20, 0x80, u32::MAX, b"ping!", digests),
            pdu(0x32, 0x80, u32::MAX, b"", digests),
        ]
        .concat()
    };
    let seed = |name, kind: u8, bytes: Vec<u8>, reach| Seed { name, bytes: [vec![kind, PIECE], bytes].concat(), reach };
    let none = (false, false);
    let login = [
        pdu(0x23, 0x00, 0, b"AuthMethod=CHAP\0TargetPortalGroupTag=1\0", none),
        pdu(0x23, 0x00, 0, b"CHAP_A=5\0CHAP_I=9\0CHAP_C=0x0123456789abcdef\0", none),
        pdu(0x23, 0x81, 0, b"", none),
        pdu(0x23, 0x87, 0, b"HeaderDigest=None\0MaxBurstLength=262144\0InitialR2T=No\0", none),
    ];
    let seeds = [
        // The data is complete.
        seed("plain", 0, talk(none), 6),
        seed("header-digest", 1, talk((true, false)), 6),
        seed("data-digest", 2, talk((false, true)), 6),
        seed("digests", 3, talk((true, true)), 6),
        seed("login", 4, login.concat(), 103),
        seed("login-early", 4, login[3].clone(), 0),
    ];
    check("iscsi", &seeds, iscsi::run);
}

#[test]
fn seeds_of_multipath_conf() {
    let seed = |name, text: &str, reach| Seed { name, bytes: text.into(), reach };
    // Options with a default, then those that the text sets in addition.
    let built_in = 15;
    let seeds = [
        seed("empty", "# nothing\n", built_in),
        seed(
            "defaults",
            "defaults {\n\tpath_selector \"historical-service-time 2 900 3\"\n\tmax_polling_interval 60\n}\n",
            built_in + 1,
        ),
        seed(
            "devices",
            "devices {\n device {\n vendor \"^(A|[^B-]{1,3})\"\n product .*\n prio_args \"2.5\"\" SSD\"\n }\n}\n",
            built_in,
        ),
        seed("multipaths", "multipaths {\nmultipath {\nwwid \"x\"\nalias data\nno_path_retry 12\n}\n}\n", built_in),
        seed("blacklist", "blacklist {\ndevnode \"!^sd[[:alpha:]]\"\ndevice {\nvendor A\n}\n}\n", built_in),
        seed(
            "overrides",
            "overrides {\nprotocol {\ntype \"scsi:fcp\"\ndev_loss_tmo infinity\n}\nfeatures \"1 queue_if_no_path\"\n}\n",
            built_in,
        ),
        seed("refused", "defaults {\nprio \"x\n{ }\nfoo bar baz\n", 0),
    ];
    check("multipath_conf", &seeds, multipath_conf::run);
}
