// SPDX-License-Identifier: Apache-2.0 OR MIT
//! vhost-user-blk with two clients: blkio, a real one, and a front end that does single steps, valid or invalid. Servers run in this
//! process, on sockets in their own directory.

use crate::own_process;
use crate::serving;
use crate::vhost_server;
use crate::waiting::{LONG, POLL, until};

use host::export::vhost::{ExportOptions, VhostExport};
use serving::vhost_options;
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::time::Instant;
use vhost_server::{BOTH, PROTOCOL, Server};
use vuclient::raw::dirty::{DirtyLog, MemorySnapshot};
use vuclient::raw::message::feature::{
    BLK_CONFIG_WCE, BLK_DISCARD, BLK_FLUSH, BLK_WRITE_ZEROES, EVENT_IDX, INDIRECT_DESC, LOG_ALL, RING_PACKED, VERSION_1,
};
use vuclient::raw::message::{PROTOCOL_FEATURES, protocol, request};
use vuclient::raw::ring::{INDIRECT, NEXT, WRITE, descriptor};
use vuclient::raw::{Format, Notify, Raw, Segment, Used, block};
use vuclient::{VerifyOptions, verify};

/// Each round takes longer than a signal may be put off, because 4 MiB are copied for each request.
#[test]
fn a_signal_is_put_off_for_a_short_time_only() {
    let (requests, bytes) = (80, 4 << 20);
    let server = Server::new("ram:size=64m", 1, 1);
    let mut raw = Raw::ready(&server.socket, VERSION_1 | BLK_FLUSH, PROTOCOL).unwrap();
    raw.start(0, 256, Format::Split, Notify::Both).unwrap();
    // So that all are available when the first is taken.
    raw.enable(0, false).unwrap();
    let data = raw.guest.take(bytes as usize, 4096).unwrap();
    for _ in 0..requests {
        let mut request = raw.block(block::IN, 0, 0).unwrap();
        (request.data, request.len) = (data, bytes);
        raw.submit(0, &request.segments()).unwrap();
    }
    raw.enable(0, true).unwrap();
    raw.kick(0).unwrap();
    let (mut completed, mut calls) = (0, 0);
    while completed < requests {
        completed += raw.wait_used(0, LONG).unwrap().len() as u64;
        calls += raw.calls(0).unwrap();
    }
    // The answer comes after the last round.
    raw.enable(0, false).unwrap();
    calls += raw.calls(0).unwrap();
    assert_eq!(calls, 8, "a call for each round, of 2, 4, 8, and then 16 requests");
    drop(raw);
    server.check_idle();
}

#[test]
fn a_real_client_finds_what_it_wrote() {
    for (target, virtqueues, iothreads) in
        [("ram:size=64m", 1, 1), ("ram:size=64m", 4, 2), ("file", 2, 2), ("file", 3, 1)]
    {
        let server = Server::new(target, virtqueues, iothreads);
        let seed = 7 * virtqueues as u64 + iothreads as u64;
        println!("{target}: {virtqueues} virtqueues on {iothreads} IOThreads, seed {seed}");
        let options = VerifyOptions {
            queues: virtqueues as u32,
            size: 32 << 20,
            seed,
            requests: 1500,
            ..VerifyOptions::default()
        };
        let report = verify(&server.socket, &options).unwrap();
        assert!(report.reads > 100 && report.writes > 100, "{report:?}");
        server.check_idle();
    }
}

#[test]
fn a_second_client_is_served_after_the_first() {
    let server = Server::new("ram:size=64m", 2, 2);
    for seed in 0..3 {
        let options = VerifyOptions { queues: 2, size: 8 << 20, seed, requests: 200, ..VerifyOptions::default() };
        verify(&server.socket, &options).unwrap();
    }
    server.check_idle();
}

#[test]
fn every_kind_of_request_does_what_it_says() {
    for (format, _) in BOTH {
        let server = Server::new("ram:size=16m", 1, 1);
        let mut raw = server.raw(format, BLK_DISCARD | BLK_WRITE_ZEROES, Notify::Both);
        let data: Vec<u8> = (0..8192u32).map(|i| (i * 7 + 1) as u8).collect();
        let write = raw.block(block::OUT, 40, 8192).unwrap();
        raw.guest.write(write.data, &data).unwrap();
        assert_eq!(raw.execute(0, &write, LONG).unwrap(), (block::OK, 1));
        let flush = raw.block(block::FLUSH, 0, 0).unwrap();
        assert_eq!(raw.execute(0, &flush, LONG).unwrap(), (block::OK, 1));
        let zero = raw.block(block::WRITE_ZEROES, 0, 32).unwrap();
        raw.guest.write(zero.data, &[block::range(42, 1, 0), block::range(43, 1, 1)].concat()).unwrap();
        assert_eq!(raw.execute(0, &zero, LONG).unwrap(), (block::OK, 1));
        let read = raw.block(block::IN, 40, 8192).unwrap();
        assert_eq!(raw.execute(0, &read, LONG).unwrap(), (block::OK, 8193));
        let mut right = data.clone();
        right[1024..2048].fill(0);
        assert_eq!(raw.guest.read(read.data, 8192).unwrap(), right);
        let discard = raw.block(block::DISCARD, 0, 16).unwrap();
        raw.guest.write(discard.data, &block::range(40, 2, 0)).unwrap();
        assert_eq!(raw.execute(0, &discard, LONG).unwrap(), (block::OK, 1));
        let serial = raw.block(block::GET_ID, 0, 20).unwrap();
        assert_eq!(raw.execute(0, &serial, LONG).unwrap(), (block::OK, 21));
        assert_eq!(raw.guest.read(serial.data, 20).unwrap(), b"mqblk-1\0\0\0\0\0\0\0\0\0\0\0\0\0");
        drop(raw);
        server.check_idle();
    }
}

#[test]
fn what_cannot_be_done_is_answered_so() {
    for (format, _) in BOTH {
        let server = Server::new("ram:size=16m", 1, 1);
        let mut raw = server.raw(format, BLK_DISCARD | BLK_WRITE_ZEROES, Notify::Both);
        let end = (16 << 20) / 512;
        let cases = [
            (99, 0, 0, block::UNSUPP),
            (block::IN, 1 << 40, 512, block::IOERR),
            (block::IN, end, 512, block::IOERR),
            (block::IN, end - 1, 1024, block::IOERR),
            (block::IN, u64::MAX, 512, block::IOERR),
            (block::OUT, end - 1, 1024, block::IOERR),
            (block::IN, 0, 513, block::IOERR),
            (block::OUT, 0, 100, block::IOERR),
            (block::IN, 0, 0, block::IOERR),
            (block::DISCARD, 0, 15, block::UNSUPP),
            (block::DISCARD, 0, 0, block::UNSUPP),
            (block::WRITE_ZEROES, 0, 17 * 16, block::UNSUPP),
        ];
        for (kind, sector, len, status) in cases {
            let request = raw.block(kind, sector, len).unwrap();
            // The length does not include a status after data that was not written.
            let written = u32::from(kind != block::IN || len == 0);
            assert_eq!(raw.execute(0, &request, LONG).unwrap(), (status, written), "{kind} at {sector} of {len}");
        }
        for (sector, sectors, flags, status) in
            [(end, 1, 0, block::IOERR), (0, 1, 2, block::UNSUPP), (u64::MAX, 2, 0, block::IOERR)]
        {
            let zero = raw.block(block::WRITE_ZEROES, 0, 16).unwrap();
            raw.guest.write(zero.data, &block::range(sector, sectors, flags)).unwrap();
            assert_eq!(raw.execute(0, &zero, LONG).unwrap().0, status, "{sector}+{sectors} flags {flags}");
        }
        let good = raw.block(block::IN, 0, 512).unwrap();
        assert_eq!(raw.execute(0, &good, LONG).unwrap().0, block::OK);
    }
}

#[test]
fn a_read_only_disk_is_not_written() {
    let server = Server::with("ram:size=16m", 1, 1, true);
    let mut raw = server.raw(Format::Split, 0, Notify::Both);
    for kind in [block::OUT, block::DISCARD, block::WRITE_ZEROES] {
        let request = raw.block(kind, 0, 512).unwrap();
        assert_eq!(raw.execute(0, &request, LONG).unwrap().0, block::IOERR, "{kind}");
    }
    assert_ne!(raw.features().unwrap() & 1 << 5, 0, "VIRTIO_BLK_F_RO");
}

/// Data in segments of odd lengths at odd addresses, and a header and a status that are split in two.
#[test]
fn data_may_be_framed_in_any_way() {
    for (format, _) in BOTH {
        for target in ["ram:size=16m", "file"] {
            let server = Server::new(target, 1, 1);
            let mut raw = server.raw(format, 0, Notify::Both);
            let at = raw.guest.take(64 << 10, 4096).unwrap() + 3;
            let data: Vec<u8> = (0..4096u32).map(|i| (i * 11 + 5) as u8).collect();
            let cut = |kind: u32, raw: &mut Raw| {
                let header = raw.block(kind, 9, 0).unwrap();
                let segment = |addr, len, write| Segment { addr, len, write };
                let write = kind == block::IN;
                let mut all = vec![segment(header.header, 5, false), segment(header.header + 5, 11, false)];
                for (from, len) in [(0u32, 1), (1, 510), (511, 1025), (1536, 2560)] {
                    // With gaps, so that the segments cannot be merged.
                    all.push(segment(at + 2 * u64::from(from), len, write));
                }
                all.push(segment(header.status, 1, true));
                (header, all)
            };
            let (header, segments) = cut(block::OUT, &mut raw);
            let mut from = 0;
            for s in &segments[2..6] {
                raw.guest.write(s.addr, &data[from..from + s.len as usize]).unwrap();
                from += s.len as usize;
            }
            raw.submit(0, &segments).unwrap();
            raw.kick(0).unwrap();
            assert_eq!(raw.wait_used(0, LONG).unwrap().len(), 1);
            assert_eq!(header.status(&raw.guest).unwrap(), block::OK);
            let straight = raw.block(block::IN, 9, 4096).unwrap();
            assert_eq!(raw.execute(0, &straight, LONG).unwrap(), (block::OK, 4097));
            assert_eq!(raw.guest.read(straight.data, 4096).unwrap(), data);
            let (header, segments) = cut(block::IN, &mut raw);
            segments[2..6].iter().for_each(|s| raw.guest.write(s.addr, &vec![0xee; s.len as usize]).unwrap());
            raw.submit(0, &segments).unwrap();
            raw.kick(0).unwrap();
            assert_eq!(raw.wait_used(0, LONG).unwrap()[0].len, 4097);
            assert_eq!(header.status(&raw.guest).unwrap(), block::OK);
            let mut back = Vec::new();
            for s in &segments[2..6] {
                back.extend(raw.guest.read(s.addr, s.len as usize).unwrap());
            }
            assert_eq!(back, data);
            drop(raw);
            server.check_idle();
        }
    }
}

#[test]
fn many_laps_of_a_ring_lose_nothing() {
    for (format, _) in BOTH {
        for features in [0, EVENT_IDX] {
            let server = Server::new("ram:size=16m", 2, 2);
            let mut raw = server.raw(format, features, Notify::Both);
            raw.start(1, 16, format, Notify::Both).unwrap();
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
        }
    }
}

#[test]
fn rings_without_kick_or_call_are_served() {
    for (format, _) in BOTH {
        for notify in [Notify::NoCall, Notify::NoKick, Notify::Neither] {
            let server = Server::new("ram:size=16m", 1, 1);
            let mut raw = server.raw(format, 0, notify);
            for sector in 0..20 {
                let read = raw.block(block::IN, sector, 512).unwrap();
                raw.submit(0, &read.segments()).unwrap();
                if notify == Notify::NoCall {
                    raw.kick(0).unwrap();
                }
                assert_eq!(raw.wait_used(0, LONG).unwrap().len(), 1, "{notify:?}");
                assert_eq!(read.status(&raw.guest).unwrap(), block::OK);
            }
        }
    }
}

#[test]
fn a_stopped_queue_goes_on_where_it_was() {
    for (format, _) in BOTH {
        let server = Server::new("ram:size=16m", 1, 1);
        let mut raw = server.raw(format, 0, Notify::Both);
        let read = raw.block(block::IN, 0, 512).unwrap();
        for _ in 0..3 {
            raw.execute(0, &read, LONG).unwrap();
        }
        let (ring, base) = raw.stop(0).unwrap();
        raw.start_ring(0, ring, base, Notify::Both).unwrap();
        for _ in 0..100 {
            assert_eq!(raw.execute(0, &read, LONG).unwrap().0, block::OK);
        }
    }
}

#[test]
fn memory_is_added_and_taken_away_while_rings_run() {
    let server = Server::new("ram:size=16m", 1, 1);
    let mut raw = server.raw(Format::Split, 0, Notify::Both);
    for _ in 0..20 {
        raw.add_memory(0x8000_0000, 1 << 20).unwrap();
        let mark = raw.guest.mark();
        let mut read = raw.block(block::IN, 0, 512).unwrap();
        read.data = 0x8000_0000 + 4096;
        raw.guest.write(read.data, &[0xff; 512]).unwrap();
        assert_eq!(raw.execute(0, &read, LONG).unwrap(), (block::OK, 513));
        assert_eq!(raw.guest.read(read.data, 512).unwrap(), [0; 512]);
        raw.remove_memory(0x8000_0000).unwrap();
        assert!(raw.remove_memory(0x8000_0000).is_err());
        let read = raw.block(block::IN, 0, 512).unwrap();
        assert_eq!(raw.execute(0, &read, LONG).unwrap().0, block::OK);
        raw.guest.rewind(mark);
    }
    // One region for the first slot, and one for the buffers for data that is not in whole blocks.
    assert!(server.disk.regions.count() <= 2, "slots are left behind");
    drop(raw);
    server.check_idle();
}

#[test]
fn the_write_cache_can_be_switched() {
    let server = Server::new("ram:size=16m", 1, 1);
    let mut raw = server.raw(Format::Split, BLK_CONFIG_WCE, Notify::Both);
    assert_eq!(raw.config(32, 1).unwrap(), [1], "with FLUSH a driver has a cache to flush");
    raw.call(
        request::SET_CONFIG,
        &[&32u32.to_le_bytes()[..], &1u32.to_le_bytes(), &0u32.to_le_bytes(), &[0]].concat(),
        &[],
    )
    .unwrap();
    assert_eq!(raw.config(32, 1).unwrap(), [0]);
    let write = raw.block(block::OUT, 0, 512).unwrap();
    assert_eq!(raw.execute(0, &write, LONG).unwrap().0, block::OK);
}

#[test]
fn bad_messages_are_rejected_and_bad_chains_stop_one_queue() {
    type Wrong = fn(&mut Raw, &block::BlockRequest);
    let wrong: [(&str, Wrong); 7] = [
        ("a loop", |raw, read| {
            raw.write_desc(0, 0, read.header, 16, NEXT, 1).unwrap();
            raw.write_desc(0, 1, read.data, 512, NEXT | WRITE, 0).unwrap();
        }),
        ("a next beyond the table", |raw, read| {
            raw.write_desc(0, 0, read.header, 16, NEXT, 4000).unwrap();
        }),
        ("a header outside memory", |raw, read| {
            raw.write_desc(0, 0, u64::MAX - 7, 16, NEXT, 1).unwrap();
            raw.write_desc(0, 1, read.status, 1, WRITE, 0).unwrap();
        }),
        ("a status outside memory", |raw, read| {
            raw.write_desc(0, 0, read.header, 16, NEXT, 1).unwrap();
            raw.write_desc(0, 1, u64::MAX, 1, WRITE, 0).unwrap();
        }),
        ("no room for a status", |raw, read| {
            raw.write_desc(0, 0, read.header, 16, 0, 0).unwrap();
        }),
        ("a short header", |raw, read| {
            raw.write_desc(0, 0, read.header, 7, NEXT, 1).unwrap();
            raw.write_desc(0, 1, read.status, 1, WRITE, 0).unwrap();
        }),
        ("an indirect table that was not negotiated", |raw, read| {
            let table = descriptor(Format::Split, read.header, 16, 0, 0);
            let at = raw.guest.take(table.len(), 16).unwrap();
            raw.guest.write(at, &table).unwrap();
            raw.write_desc(0, 0, at, 16, INDIRECT, 0).unwrap();
        }),
    ];
    let server = Server::new("ram:size=16m", 2, 1);
    for (name, write) in wrong {
        let mut raw = server.raw(Format::Split, 0, Notify::Both);
        raw.start(1, 64, Format::Split, Notify::Both).unwrap();
        let read = raw.block(block::IN, 0, 512).unwrap();
        write(&mut raw, &read);
        raw.offer(0, 0).unwrap();
        raw.kick(0).unwrap();
        // The other virtqueue of the same device is served after the invalid one, so the invalid one was read.
        let good = raw.block(block::IN, 0, 512).unwrap();
        for _ in 0..3 {
            assert_eq!(raw.execute(1, &good, LONG).unwrap().0, block::OK, "beside {name}");
        }
        assert_ne!(read.status(&raw.guest).unwrap(), block::OK, "{name}");
        drop(raw);
        let mut next = server.raw(Format::Split, 0, Notify::Both);
        let read = next.block(block::IN, 0, 512).unwrap();
        assert_eq!(next.execute(0, &read, LONG).unwrap().0, block::OK, "after {name}");
    }
    server.check_idle();
}

/// A request fails if its data is not in the guest's memory. The driver that sent it is served on.
#[test]
fn data_outside_memory_fails_its_request() {
    for (format, _) in BOTH {
        let server = Server::new("ram:size=16m", 1, 1);
        let mut raw = server.raw(format, INDIRECT_DESC, Notify::Both);
        for (addr, len) in [(u64::MAX - 511, 512), (1 << 60, 4096), (0x10_0000 + (8 << 20) - 512, 1024)] {
            let mut read = raw.block(block::IN, 0, len).unwrap();
            read.data = addr;
            assert_eq!(raw.execute(0, &read, LONG).unwrap(), (block::IOERR, 0), "{addr:#x}");
        }
        let read = raw.block(block::IN, 0, 512).unwrap();
        assert_eq!(raw.execute(0, &read, LONG).unwrap().0, block::OK);
    }
}

/// A message that breaks a rule is rejected if it requested an answer, and its client is dropped. Otherwise the client would continue as
/// if the message had taken effect.
#[test]
fn client_that_breaks_a_message_rule_is_dropped() {
    let server = Server::new("ram:size=16m", 2, 1);
    let number = |index: u32, num: u32| [index.to_le_bytes(), num.to_le_bytes()].concat();
    let refuse = |what: &str, f: &dyn Fn(&mut Raw) -> bool| {
        let mut raw = Raw::ready(&server.socket, VERSION_1 | BLK_FLUSH, PROTOCOL).unwrap();
        assert!(f(&mut raw), "{what}");
        assert!(raw.is_dropped(LONG).unwrap(), "{what}");
    };
    refuse("a second owner", &|raw| raw.set_owner().is_err());
    refuse("a feature that was not offered", &|raw| raw.set_features(1 << 62).is_err());
    for (index, num) in [(0, 0), (0, 3), (0, 2048), (2, 64), (u32::MAX, 64)] {
        let text = format!("virtqueue {index} of {num}");
        refuse(&text, &|raw| raw.call(request::SET_VRING_NUM, &number(index, num), &[]).is_err());
    }
    let address = |desc: u64| [&number(0, 0)[..], &[desc, desc, desc, 0].map(u64::to_le_bytes).concat()].concat();
    refuse("a ring outside memory", &|raw| {
        raw.call(request::SET_VRING_NUM, &number(0, 64), &[]).unwrap();
        raw.call(request::SET_VRING_ADDR, &address(1 << 50), &[]).unwrap();
        raw.call(request::SET_VRING_KICK, &0x100u64.to_le_bytes(), &[]).is_err()
    });
    refuse("no such virtqueue", &|raw| raw.call(request::SET_VRING_ENABLE, &number(7, 1), &[]).is_err());
    // A header with a length beyond that of any message.
    refuse("no message", &|raw| raw.channel.send_bytes(&[2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x7f], &[]).is_ok());
    let mut next = server.raw(Format::Split, 0, Notify::Both);
    let read = next.block(block::IN, 0, 512).unwrap();
    assert_eq!(next.execute(0, &read, LONG).unwrap().0, block::OK);
    drop(next);
    server.check_idle();
}

/// Clients that disconnect with requests in flight leave no descriptor, no memory and no tag behind.
#[test]
fn clients_that_come_and_go_leave_nothing_behind() {
    if !own_process::is_alone("vhost_user::clients_that_come_and_go_leave_nothing_behind", &[]) {
        return;
    }
    let server = Server::new("ram:size=16m", 1, 1);
    let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
    let leave = |n: u64| {
        let mut raw = server.raw(if n.is_multiple_of(2) { Format::Split } else { Format::Packed }, 0, Notify::Both);
        for i in 0..8 {
            let read = raw.block(block::IN, n + i, 4096).unwrap();
            raw.submit(0, &read.segments()).unwrap();
        }
        raw.kick(0).unwrap();
    };
    leave(0);
    // Everything of the first client is released when the next one is served.
    drop(server.raw(Format::Split, 0, Notify::Both));
    let before = descriptors();
    (0..100).for_each(leave);
    drop(server.raw(Format::Split, 0, Notify::Both));
    let after = descriptors();
    assert!(after < before + 60, "{before} descriptors before, {after} after");
    assert!(server.disk.regions.count() <= 2, "slots are left behind");
    server.check_idle();
}

/// Once, requests that waited for a buffer were never done after their queue was stopped or had broken a rule. The stop waited
/// for them for ever. Here more requests wait than there are buffers, and then the client leaves.
#[test]
fn requests_waiting_for_a_buffer_end_with_their_queue() {
    for (format, _) in BOTH {
        let server = Server::new("model:lat_us=3000,over=ram,size=64m", 1, 1);
        for _ in 0..3 {
            let mut raw = Raw::ready(&server.socket, VERSION_1 | BLK_FLUSH | RING_PACKED, PROTOCOL).unwrap();
            if format == Format::Split {
                raw.set_features(VERSION_1 | BLK_FLUSH | PROTOCOL_FEATURES).unwrap();
            }
            raw.start(0, 256, format, Notify::Both).unwrap();
            let reads: Vec<_> = (0..60).map(|i| apart(&mut raw, block::IN, i, 4096, 7)).collect();
            for read in &reads {
                raw.submit(0, &read.segments()).unwrap();
            }
            raw.kick(0).unwrap();
            assert!(!raw.wait_used(0, LONG).unwrap().is_empty());
        }
        server.check_idle();
    }
}

/// Makes a request whose data and status are in separate pages.
fn apart(raw: &mut Raw, kind: u32, sector: u64, len: u32, skew: u64) -> block::BlockRequest {
    let mut request = raw.block(kind, sector, 0).unwrap();
    request.len = len;
    request.data = raw.guest.take(len as usize + 4096, 4096).unwrap() + skew;
    request.status = raw.guest.take(1, 4096).unwrap();
    raw.guest.write(request.status, &[block::NO_STATUS]).unwrap();
    request
}

/// Waits until every change of the device since `before` is logged, because the device sets the bit after it has written. Returns the
/// changed pages and the logged pages.
fn logged(raw: &Raw, before: &MemorySnapshot, log: &DirtyLog, what: &str) -> (BTreeSet<u64>, BTreeSet<u64>) {
    let end = Instant::now() + LONG;
    let mut seen = BTreeSet::new();
    loop {
        let changed = before.changed(&MemorySnapshot::new(&raw.guest));
        seen.extend(log.take());
        if changed.is_subset(&seen) {
            return (changed, seen);
        }
        assert!(Instant::now() < end, "{what}: pages {:?} changed and are not logged", changed.difference(&seen));
        std::thread::sleep(POLL);
    }
}

/// A migration's log has every page that changed between two checks of memory. Of the other pages, it has only those of the rings and
/// those of buffers for reads.
#[test]
fn every_page_that_the_device_writes_is_logged() {
    for (format, packed) in BOTH {
        for (target, event_idx) in [("ram:size=16m", 0), ("file", EVENT_IDX)] {
            let features = VERSION_1 | BLK_FLUSH | packed | event_idx | PROTOCOL_FEATURES;
            let server = Server::new(target, 1, 1);
            let mut raw = Raw::ready(&server.socket, features, PROTOCOL | protocol::LOG_SHMFD).unwrap();
            let fill = apart(&mut raw, block::OUT, 0, 0x40000, 0);
            raw.guest.write(fill.data, &[0x77; 0x40000]).unwrap();
            raw.start(0, 64, format, Notify::Both).unwrap();
            assert_eq!(raw.execute(0, &fill, LONG).unwrap().0, block::OK);
            // In QEMU's order, on a running ring.
            let log = raw.set_log(4096).unwrap();
            raw.set_features(features | LOG_ALL).unwrap();
            raw.log_ring(0, true).unwrap();
            // Whole blocks (by io_uring if the disk is a file), data through a buffer, the serial, and requests that write nothing.
            let cases = [
                ("a read", block::IN, 16, 0x10000, 0),
                ("a read at odd addresses", block::IN, 16, 0x3000, 7),
                ("the serial", block::GET_ID, 0, 20, 4090),
                ("a write", block::OUT, 16, 0x4000, 0),
                ("a flush", block::FLUSH, 0, 0, 0),
                ("a read behind the end", block::IN, 1 << 40, 512, 0),
            ];
            for (what, kind, sector, len, skew) in cases {
                let what = format!("{what}, {format:?}, {target}");
                let request = apart(&mut raw, kind, sector, len, skew);
                // The ring is disabled meanwhile, because a device that polls needs no kick.
                raw.enable(0, false).unwrap();
                raw.submit(0, &request.segments()).unwrap();
                let before = MemorySnapshot::new(&raw.guest);
                raw.enable(0, true).unwrap();
                raw.kick(0).unwrap();
                assert_eq!(raw.wait_used(0, LONG).unwrap().len(), 1);
                let (changed, seen) = logged(&raw, &before, &log, &what);
                let is_read = len > 0 && request.status(&raw.guest).unwrap() == block::OK && kind != block::OUT;
                let pages = |at: u64, len: u64| at / 4096..(at + len.max(1)).div_ceil(4096);
                let data: BTreeSet<u64> = pages(request.data, u64::from(len)).collect();
                assert!(!is_read || data.is_subset(&changed), "{what}: {changed:?} without {data:?}");
                assert!(changed.contains(&(request.status / 4096)), "{what}: its status");
                let (ring, _) = raw.ring(0).unwrap();
                let mut right: BTreeSet<u64> =
                    pages(ring.desc, 16 * 64).chain(pages(ring.device, 6 + 8 * 64)).collect();
                right.insert(request.status / 4096);
                right.extend(data.iter().filter(|_| is_read));
                assert!(seen.is_subset(&right), "{what}: {seen:?} of {right:?}");
            }
            raw.set_features(features).unwrap();
            raw.log_ring(0, false).unwrap();
            log.take();
            let read = apart(&mut raw, block::IN, 0, 4096, 0);
            assert_eq!(raw.execute(0, &read, LONG).unwrap().0, block::OK);
            assert_eq!(log.take(), BTreeSet::new(), "off");
            drop(raw);
            server.check_idle();
        }
    }
}

/// Reads are in flight when the log is set. It takes effect after they have completed, or they are logged. A log that is too short for
/// the memory is filled as far as it goes.
#[test]
fn a_log_that_comes_late_or_is_too_short_is_no_harm() {
    for (format, packed) in BOTH {
        let features = VERSION_1 | BLK_FLUSH | packed | PROTOCOL_FEATURES;
        let server = Server::new("model:lat_us=20000,over=ram,size=16m", 1, 1);
        let mut raw = Raw::ready(&server.socket, features, PROTOCOL | protocol::LOG_SHMFD).unwrap();
        raw.start(0, 64, format, Notify::Both).unwrap();
        // The second log has no bits for the memory that is used here.
        for pages in [4096, 8] {
            let reads: Vec<_> = (0..8).map(|i| apart(&mut raw, block::IN, i, 4096, 0)).collect();
            for read in &reads {
                raw.guest.write(read.data, &[0x99; 4096]).unwrap();
                raw.submit(0, &read.segments()).unwrap();
            }
            raw.kick(0).unwrap();
            let log = raw.set_log(pages).unwrap();
            raw.set_features(features | LOG_ALL).unwrap();
            raw.log_ring(0, true).unwrap();
            let before = MemorySnapshot::new(&raw.guest);
            let mut ended = 0;
            while ended < reads.len() {
                ended += raw.wait_used(0, LONG).unwrap().len();
            }
            if pages == 4096 {
                logged(&raw, &before, &log, "late");
            }
            let read = apart(&mut raw, block::IN, 0, 4096, 0);
            assert_eq!(raw.execute(0, &read, LONG).unwrap().0, block::OK);
            assert_eq!(log.take().is_empty(), pages == 8);
            raw.set_features(features).unwrap();
        }
    }
}

/// A front end with a backend channel is notified of another size at once, and finds it in the configuration. A front end without a
/// channel gets no message.
#[test]
fn another_size_is_told_over_the_channel_of_the_front_end() {
    let server = Server::new("ram:size=16m", 1, 1);
    let export = server.export.as_ref().unwrap();
    let size = |raw: &mut Raw| u64::from_le_bytes(raw.config(0, 8).unwrap().try_into().unwrap());
    assert!(!export.resized(), "none is there");
    for answers in [0, protocol::REPLY_ACK] {
        let protocol = protocol::MQ | protocol::CONFIG | protocol::BACKEND_REQ | answers;
        let mut raw = Raw::ready(&server.socket, VERSION_1 | BLK_FLUSH, protocol).unwrap();
        assert!(!export.resized(), "it gave no channel");
        let channel = raw.backend_channel().unwrap();
        // This is answered after the channel was accepted, with or without REPLY_ACK.
        assert_eq!(size(&mut raw), server.disk.capacity().0);
        for _ in 0..3 {
            assert!(export.resized());
            let said = channel.receive().unwrap();
            assert_eq!((said.request, said.flags, said.payload.len()), (2, 1, 0), "CONFIG_CHANGE_MSG");
            assert_eq!(size(&mut raw), server.disk.capacity().0);
        }
        // A channel without a peer does no harm.
        drop(channel);
        assert!(!export.resized());
        assert_eq!(size(&mut raw), server.disk.capacity().0);
        drop(raw);
        // The next client is served when everything of this one is released.
        drop(server.raw(Format::Split, 0, Notify::Both));
    }
    let raw = Raw::ready(&server.socket, VERSION_1 | BLK_FLUSH, PROTOCOL | protocol::BACKEND_REQ).unwrap();
    let file = fs::File::open("/dev/null").unwrap();
    assert!(raw.channel.send(request::SET_BACKEND_REQ_FD, 1, &[], &[file.as_fd()]).is_ok());
    assert!(raw.is_dropped(LONG).unwrap(), "no socket");
    drop(raw);
    server.check_idle();
}

/// Memory slots may begin and end within a page. Data across two such slots is complete.
#[test]
fn data_across_slots_that_end_anywhere_is_whole() {
    for target in ["ram:size=16m", "file"] {
        let server = Server::new(target, 1, 1);
        let mut raw = server.raw(Format::Split, 0, Notify::Both);
        let (first, second) = (0x8000_0000u64, 0x8000_0000 + 2 * 4096 + 700);
        raw.add_memory_part(first, (second - first) as usize).unwrap();
        raw.add_memory_part(second, 3 * 4096 + 100).unwrap();
        let data: Vec<u8> = (0..16384u32).map(|i| (i * 13 + 5) as u8).collect();
        for at in [second - 512, second - 1024, second - 4096 - 700, first + 4096, second, second + 324] {
            let len = 4096;
            let cut = second.saturating_sub(at).min(len) as usize;
            let mut write = raw.block(block::OUT, 8, len as u32).unwrap();
            write.data = at;
            if cut > 0 {
                raw.guest.write(at, &data[..cut]).unwrap();
            }
            if cut < len as usize {
                raw.guest.write(at + cut as u64, &data[cut..len as usize]).unwrap();
            }
            assert_eq!(raw.execute(0, &write, LONG).unwrap(), (block::OK, 1), "{at:#x}");
            let read = raw.block(block::IN, 8, len as u32).unwrap();
            assert_eq!(raw.execute(0, &read, LONG).unwrap(), (block::OK, 4097));
            assert!(raw.guest.read(read.data, len as usize).unwrap() == data[..len as usize], "{target} {at:#x}");
            let mut back = read;
            back.data = at;
            raw.guest.write(read.status, &[0xee]).unwrap();
            assert_eq!(raw.execute(0, &back, LONG).unwrap(), (block::OK, 4097));
            let mut seen = if cut > 0 { raw.guest.read(at, cut).unwrap() } else { Vec::new() };
            if cut < len as usize {
                seen.extend(raw.guest.read(at + cut as u64, len as usize - cut).unwrap());
            }
            assert!(seen == data[..len as usize], "{target} {at:#x}: read back");
        }
    }
}

/// A client that has sent half a message delays nothing: the export can end, and the client is dropped.
#[test]
fn half_a_message_does_not_hold_up_the_end_of_an_export() {
    let server = Server::new("ram:size=16m", 1, 1);
    let raw = Raw::ready(&server.socket, VERSION_1 | BLK_FLUSH, PROTOCOL).unwrap();
    raw.channel.send_bytes(&[2, 0, 0, 0, 1, 0], &[]).unwrap();
    server.check_idle();
    assert!(raw.is_dropped(LONG).unwrap());
}

/// While an export waits for its I/O in flight, another export may already use its socket's path. Once, the end of the first removed that
/// socket.
#[test]
fn the_socket_is_gone_before_what_is_in_flight_is_waited_for() {
    let mut server = Server::new("ram:size=16m", 1, 1);
    let mut raw = server.raw(Format::Split, 0, Notify::Both);
    server.disk.drain().unwrap();
    let read = apart(&mut raw, block::IN, 0, 4096, 7);
    raw.submit(0, &read.segments()).unwrap();
    raw.kick(0).unwrap();
    until("the read is in flight", || server.threads.report().iter().flat_map(|t| &t.sources).any(|s| s.in_flight > 0));
    let export = server.export.take();
    std::thread::scope(|scope| {
        let ends = scope.spawn(move || drop(export));
        until("the socket is gone or the export has ended", || {
            ends.is_finished() || !fs::exists(&server.socket).unwrap()
        });
        assert!(!ends.is_finished(), "it waits for what is in flight");
        let options = ExportOptions { socket: server.socket.clone().into(), ..vhost_options() };
        server.export = Some(VhostExport::start(&server.threads, &server.disk, options).unwrap());
        assert!(server.disk.resume());
        ends.join().unwrap();
    });
    assert!(fs::exists(&server.socket).unwrap(), "the other one's socket");
    let mut raw = Raw::ready(&server.socket, VERSION_1 | PROTOCOL_FEATURES, PROTOCOL).unwrap();
    assert_eq!(raw.queue_num().unwrap(), 1);
}

#[test]
fn a_socket_in_use_is_left_alone_and_a_stale_one_replaced() {
    let server = Server::new("ram:size=16m", 1, 1);
    let options = |socket: &str| ExportOptions { socket: socket.into(), ..vhost_options() };
    let start = |socket: &str| VhostExport::start(&server.threads, &server.disk, options(socket));
    let refusal = start(&server.socket).err().unwrap().to_string();
    assert!(refusal.contains("is in use"), "{refusal}");
    let stale = server.directory.join("stale.sock");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    assert!(fs::exists(&stale).unwrap());
    drop(start(stale.to_str().unwrap()).unwrap());
    assert!(!fs::exists(&stale).unwrap());
    let mut raw = Raw::ready(&server.socket, VERSION_1 | PROTOCOL_FEATURES, PROTOCOL).unwrap();
    assert_eq!(raw.queue_num().unwrap(), 1);
}
