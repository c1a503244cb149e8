// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The raw front-end against qemu-storage-daemon: valid requests work, and invalid ones reach the server.
//!
//! The split ring only: this server has no packed one. Servers may handle invalid input differently; the tests require
//! only what any server must guarantee.

use crate::qsd;

use std::time::Duration;

use qsd::{Directory, NULL, Qsd};
use vuclient::raw::message::feature::{
    BLK_DISCARD, BLK_FLUSH, BLK_WRITE_ZEROES, EVENT_IDX, INDIRECT_DESC, RING_PACKED, VERSION_1,
};
use vuclient::raw::message::{PROTOCOL_FEATURES, protocol, request};
use vuclient::raw::ring::{INDIRECT, NEXT, WRITE, descriptor};
use vuclient::raw::{Format, Notify, Raw, Used, block};

const PROTOCOL: u64 = protocol::MQ | protocol::REPLY_ACK | protocol::CONFIG | protocol::CONFIGURE_MEM_SLOTS;
const LONG: Duration = Duration::from_secs(300);

fn image() -> (Directory, Qsd) {
    let directory = Directory::new();
    let (_, blockdev) = directory.image(16 << 20);
    let qsd = Qsd::start(&directory, &[&blockdev], 2);
    (directory, qsd)
}

fn started(qsd: &Qsd, features: u64, notify: Notify) -> Raw {
    let mut raw = Raw::ready(qsd.socket(), VERSION_1 | BLK_FLUSH | features, PROTOCOL).unwrap();
    raw.start(0, 64, Format::Split, notify).unwrap();
    raw
}

#[test]
fn features_queues_and_configuration_are_told() {
    let (_directory, qsd) = image();
    let mut raw = Raw::connect(qsd.socket()).unwrap();
    raw.set_owner().unwrap();
    let features = raw.features().unwrap();
    for bit in [VERSION_1, EVENT_IDX, INDIRECT_DESC, PROTOCOL_FEATURES, BLK_FLUSH, BLK_DISCARD, BLK_WRITE_ZEROES] {
        assert_ne!(features & bit, 0, "{features:#x} without {bit:#x}");
    }
    // If this fails, the server has a packed ring, and tests can use it.
    assert_eq!(features & RING_PACKED, 0, "{features:#x}");
    assert_eq!(raw.protocol_features().unwrap() & PROTOCOL, PROTOCOL);
    raw.set_protocol_features(PROTOCOL).unwrap();
    raw.set_features(features).unwrap();
    assert_eq!(raw.queue_num().unwrap(), 2);
    let capacity = raw.config(0, 8).unwrap();
    assert_eq!(u64::from_le_bytes(capacity.try_into().unwrap()), (16 << 20) / 512);
}

#[test]
fn data_zeroes_and_serial_go_through_a_split_ring() {
    let (_directory, qsd) = image();
    let mut raw = started(&qsd, BLK_DISCARD | BLK_WRITE_ZEROES, Notify::Both);
    let data: Vec<u8> = (0..8192u32).map(|i| (i * 7 + 1) as u8).collect();
    let write = raw.block(block::OUT, 40, 8192).unwrap();
    raw.guest.write(write.data, &data).unwrap();
    assert_eq!(raw.execute(0, &write, LONG).unwrap(), (block::OK, 1));
    let flush = raw.block(block::FLUSH, 0, 0).unwrap();
    assert_eq!(raw.execute(0, &flush, LONG).unwrap(), (block::OK, 1));
    let zero = raw.block(block::WRITE_ZEROES, 0, 16).unwrap();
    raw.guest.write(zero.data, &block::range(42, 2, 0)).unwrap();
    assert_eq!(raw.execute(0, &zero, LONG).unwrap(), (block::OK, 1));
    let read = raw.block(block::IN, 40, 8192).unwrap();
    assert_eq!(raw.execute(0, &read, LONG).unwrap(), (block::OK, 8193));
    let mut right = data.clone();
    right[1024..2048].fill(0);
    assert_eq!(raw.guest.read(read.data, 8192).unwrap(), right);
    let serial = raw.block(block::GET_ID, 0, 20).unwrap();
    assert_eq!(raw.execute(0, &serial, LONG).unwrap().0, block::OK);
    assert_ne!(raw.guest.read(serial.data, 20).unwrap(), [0; 20]);
    let unknown = raw.block(99, 0, 0).unwrap();
    assert_eq!(raw.execute(0, &unknown, LONG).unwrap().0, block::UNSUPP);
    let beyond = raw.block(block::IN, 1 << 40, 512).unwrap();
    assert_eq!(raw.execute(0, &beyond, LONG).unwrap().0, block::IOERR);
}

#[test]
fn many_laps_of_the_ring_lose_nothing() {
    let (_directory, qsd) = image();
    let mut raw = started(&qsd, 0, Notify::Both);
    raw.start(1, 16, Format::Split, Notify::Both).unwrap();
    for lap in 0..400u64 {
        let mark = raw.guest.mark();
        let mut ids = Vec::new();
        for i in 0..5 {
            let read = raw.block(block::IN, (lap + i) % 1000, 512).unwrap();
            ids.push(raw.submit(1, &read.segments()).unwrap());
        }
        raw.kick(1).unwrap();
        let mut used: Vec<Used> = Vec::new();
        while used.len() < ids.len() {
            used.extend(raw.wait_used(1, LONG).unwrap());
        }
        let mut ended: Vec<u16> = used.iter().map(|used| used.id as u16).collect();
        ended.sort_unstable();
        ids.sort_unstable();
        assert_eq!(ended, ids, "lap {lap}");
        raw.guest.rewind(mark);
    }
    assert!(raw.wait_call(1, LONG).unwrap());
}

#[test]
fn an_indirect_table_is_followed() {
    let (_directory, qsd) = image();
    let mut raw = started(&qsd, INDIRECT_DESC, Notify::Both);
    let read = raw.block(block::IN, 0, 1024).unwrap();
    let table: Vec<u8> = [
        descriptor(Format::Split, read.header, 16, NEXT, 1),
        descriptor(Format::Split, read.data, 1024, NEXT | WRITE, 2),
        descriptor(Format::Split, read.status, 1, WRITE, 0),
    ]
    .concat();
    let at = raw.guest.take(table.len(), 16).unwrap();
    raw.guest.write(at, &table).unwrap();
    raw.write_desc(0, 9, at, table.len() as u32, INDIRECT, 0).unwrap();
    raw.offer(0, 9).unwrap();
    raw.kick(0).unwrap();
    assert_eq!(raw.wait_used(0, LONG).unwrap(), [Used { id: 9, len: 1025 }]);
    assert_eq!(read.status(&raw.guest).unwrap(), block::OK);
}

#[test]
fn calls_come_when_wanted_and_not_when_not() {
    let (_directory, qsd) = image();
    let mut raw = started(&qsd, 0, Notify::Both);
    let read = raw.block(block::IN, 0, 512).unwrap();
    let (ring, guest) = raw.ring(0).unwrap();
    ring.set_avail_flags(guest, 1).unwrap();
    raw.calls(0).unwrap();
    raw.execute(0, &read, LONG).unwrap();
    assert!(!raw.wait_call(0, Duration::from_millis(100)).unwrap());
    let (ring, guest) = raw.ring(0).unwrap();
    ring.set_avail_flags(guest, 0).unwrap();
    raw.execute(0, &read, LONG).unwrap();
    assert!(raw.wait_call(0, LONG).unwrap());
}

#[test]
fn a_stopped_queue_goes_on_where_it_was() {
    let (_directory, qsd) = image();
    let mut raw = started(&qsd, 0, Notify::Both);
    let read = raw.block(block::IN, 0, 512).unwrap();
    for _ in 0..3 {
        raw.execute(0, &read, LONG).unwrap();
    }
    let (ring, base) = raw.stop(0).unwrap();
    assert_eq!(base, 3);
    assert!(raw.kick(0).is_err(), "a stopped queue has no kick");
    raw.start_ring(0, ring, base, Notify::Both).unwrap();
    assert_eq!(raw.execute(0, &read, LONG).unwrap().0, block::OK);
}

#[test]
fn memory_is_added_and_taken_away_while_rings_run() {
    let (_directory, qsd) = image();
    let mut raw = started(&qsd, 0, Notify::Both);
    raw.add_memory(0x8000_0000, 1 << 20).unwrap();
    let mut read = raw.block(block::IN, 0, 512).unwrap();
    read.data = 0x8000_0000 + 4096;
    raw.guest.write(read.data, &[0xff; 512]).unwrap();
    assert_eq!(raw.execute(0, &read, LONG).unwrap(), (block::OK, 513));
    assert_eq!(raw.guest.read(read.data, 512).unwrap(), [0; 512]);
    raw.remove_memory(0x8000_0000).unwrap();
    assert!(raw.remove_memory(0x8000_0000).is_err());
    let read = raw.block(block::IN, 0, 512).unwrap();
    assert_eq!(raw.execute(0, &read, LONG).unwrap().0, block::OK);
}

#[test]
fn malformed_chains_fail_and_the_server_survives() {
    let (_directory, mut qsd) = image();
    type Wrong = fn(&mut Raw, &block::BlockRequest);
    let wrong: [(&str, Wrong); 5] = [
        ("a loop", |raw, read| {
            raw.write_desc(0, 0, read.header, 16, NEXT, 1).unwrap();
            raw.write_desc(0, 1, read.data, 512, NEXT | WRITE, 0).unwrap();
        }),
        ("a next beyond the table", |raw, read| {
            raw.write_desc(0, 0, read.header, 16, NEXT, 4000).unwrap();
        }),
        ("an address outside memory", |raw, read| {
            raw.write_desc(0, 0, read.header, 16, NEXT, 1).unwrap();
            raw.write_desc(0, 1, u64::MAX - 100, 512, NEXT | WRITE, 2).unwrap();
            raw.write_desc(0, 2, read.status, 1, WRITE, 0).unwrap();
        }),
        ("no room for a status", |raw, read| {
            raw.write_desc(0, 0, read.header, 16, 0, 0).unwrap();
        }),
        ("a short header", |raw, read| {
            raw.write_desc(0, 0, read.header, 7, NEXT, 1).unwrap();
            raw.write_desc(0, 1, read.status, 1, WRITE, 0).unwrap();
        }),
    ];
    for (name, write) in wrong {
        let mut raw = started(&qsd, 0, Notify::Both);
        let read = raw.block(block::IN, 0, 512).unwrap();
        write(&mut raw, &read);
        raw.offer(0, 0).unwrap();
        raw.kick(0).unwrap();
        // A server may fail, drop or ignore the request, but must not complete it with success.
        let _ = raw.wait_used(0, Duration::from_millis(200));
        assert_ne!(read.status(&raw.guest).unwrap(), block::OK, "{name}");
        drop(raw);
        assert!(qsd.is_alive(), "{name}");
        let mut good = started(&qsd, 0, Notify::Both);
        let read = good.block(block::IN, 0, 512).unwrap();
        assert_eq!(good.execute(0, &read, LONG).unwrap().0, block::OK, "after {name}");
    }
}

#[test]
fn a_message_that_is_none_drops_its_sender_only() {
    let directory = Directory::new();
    let mut qsd = Qsd::start(&directory, &[NULL], 1);
    let mut raw = Raw::ready(qsd.socket(), VERSION_1, PROTOCOL).unwrap();
    // A header that announces more than any message has.
    raw.channel.send_bytes(&[2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x7f], &[]).unwrap();
    assert!(raw.is_dropped(LONG).unwrap());
    assert!(raw.call(request::SET_OWNER, &[], &[]).is_err());
    assert!(qsd.is_alive());
    Raw::ready(qsd.socket(), VERSION_1, PROTOCOL).unwrap();
}
