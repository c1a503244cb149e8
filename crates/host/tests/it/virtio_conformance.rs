// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requirements of the virtio specification for devices that no other test shows: see `docs/virtio-conformance.md`.

use crate::serving;
use crate::waiting::LONG;

use host::export::vhost::{ExportOptions, VhostExport};
use host::serve::geometry::Geometry;
use serving::{Served, vhost_options};
use std::fs;
use vuclient::raw::message::feature::{
    BLK_CONFIG_WCE, BLK_DISCARD, BLK_FLUSH, BLK_WRITE_ZEROES, EVENT_IDX, INDIRECT_DESC, RING_PACKED, VERSION_1,
};
use vuclient::raw::message::protocol;
use vuclient::raw::ring::{INDIRECT, NEXT, WRITE, descriptor};
use vuclient::raw::{Format, Notify, Raw, Segment, Used, block};

const PROTOCOL: u64 = protocol::MQ | protocol::REPLY_ACK | protocol::CONFIG | protocol::CONFIGURE_MEM_SLOTS;
const BOTH: [(Format, u64); 2] = [(Format::Split, 0), (Format::Packed, RING_PACKED)];

/// A disk in memory, served to one client.
struct Server {
    served: Served,
    socket: String,
    export: Option<VhostExport>,
}

impl Server {
    fn new(read_only: bool) -> Server {
        Server::of("ram:size=16m", read_only, Geometry::default())
    }

    fn of(target: &str, read_only: bool, geometry: Geometry) -> Server {
        let served = Served::new("conformance", target, 1);
        let socket = served.directory.join("vhost.sock");
        let options = ExportOptions {
            socket: socket.clone(),
            read_only,
            geometry,
            serial: "a serial of 20 bytes".into(),
            ..vhost_options()
        };
        let export = Some(VhostExport::start(&served.threads, &served.disk, options).unwrap());
        Server { served, socket: socket.to_str().unwrap().into(), export }
    }

    fn raw(&self, format: Format, features: u64) -> Raw {
        let packed = if format == Format::Packed { RING_PACKED } else { 0 };
        let mut raw = Raw::ready(&self.socket, VERSION_1 | BLK_FLUSH | packed | features, PROTOCOL).unwrap();
        raw.start(0, 64, format, Notify::Both).unwrap();
        raw
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.export = None;
        let _ = fs::remove_dir_all(&self.served.directory);
    }
}

/// 2.7.8.2: at least `len` bytes are written, from the first writable byte on. So `len` does not include a status after data that was
/// not written.
#[test]
fn the_length_told_was_written_from_the_first_byte_on() {
    for (format, _) in BOTH {
        let server = Server::new(false);
        let mut raw = server.raw(format, 0);
        let end = (16 << 20) / 512;
        let cases = [
            (block::IN, 0, 512, block::OK, 513),
            (block::IN, end, 512, block::IOERR, 0),
            (block::IN, 0, 513, block::IOERR, 0),
            (block::IN, 0, 0, block::IOERR, 1),
            (block::OUT, end, 512, block::IOERR, 1),
            (block::FLUSH, 0, 0, block::OK, 1),
            (block::GET_ID, 0, 20, block::OK, 21),
            (block::GET_ID, 0, 7, block::OK, 8),
            (block::GET_ID, 0, 512, block::OK, 20),
        ];
        for (kind, sector, len, status, written) in cases {
            let request = raw.block(kind, sector, len).unwrap();
            assert_eq!(raw.execute(0, &request, LONG).unwrap(), (status, written), "{kind} of {len}, {format:?}");
        }
        // An unknown request type with a buffer for an answer.
        let unknown = raw.block(99, 0, 512).unwrap();
        let mut segments = unknown.segments();
        segments[1].write = true;
        raw.submit(0, &segments).unwrap();
        raw.kick(0).unwrap();
        assert_eq!(raw.wait_used(0, LONG).unwrap()[0].len, 0);
        assert_eq!(unknown.status(&raw.guest).unwrap(), block::UNSUPP);
    }
}

/// Whole blocks of the size that is set for an export are served, also where the disk has larger ones. All other requests fail.
#[test]
fn block_sizes_of_an_export_are_shown_and_checked() {
    for (target, logical, physical) in [("ram:size=16m", 4096u32, 8192), ("ram:size=16m,blocksize=4k", 512, 4096)] {
        let geometry = Geometry { logical: Some(logical), physical: Some(physical) };
        let server = Server::of(target, false, geometry);
        let mut raw = server.raw(Format::Split, BLK_WRITE_ZEROES);
        let shown = raw.config(0, 60).unwrap();
        assert_eq!(shown[20..24], logical.to_le_bytes(), "{target}");
        assert_eq!(logical << shown[24], physical, "{target}");
        let sectors = logical / 512;
        let inside = if logical == 512 { block::OK } else { block::IOERR };
        for (kind, sector, len, status) in [
            (block::OUT, sectors, logical, block::OK),
            (block::IN, sectors, logical, block::OK),
            (block::IN, 1, logical, inside),
            (block::OUT, 0, logical / 2, block::IOERR),
            (block::IN, 0, logical + 256, block::IOERR),
        ] {
            let request = raw.block(kind, sector.into(), len).unwrap();
            assert_eq!(raw.execute(0, &request, LONG).unwrap().0, status, "{kind} of {len} at {sector}, {target}");
        }
        for (sector, status) in [(sectors, block::OK), (1, inside)] {
            let request = raw.block(block::WRITE_ZEROES, 0, 16).unwrap();
            raw.guest.write(request.data, &block::range(sector.into(), sectors, 0)).unwrap();
            assert_eq!(raw.execute(0, &request, LONG).unwrap().0, status, "zeroes at {sector}, {target}");
        }
    }
}

/// 2.7.5.1, 2.8.14: the device does not change what belongs to the driver: header, data of writes, descriptors (split), available ring.
#[test]
fn what_the_driver_writes_is_not_written() {
    for (format, _) in BOTH {
        let server = Server::new(false);
        let mut raw = server.raw(format, BLK_WRITE_ZEROES);
        for (kind, len) in [(block::OUT, 8192), (block::FLUSH, 0), (block::WRITE_ZEROES, 16)] {
            let request = raw.block(kind, 3, len).unwrap();
            let data: Vec<u8> = match kind {
                block::WRITE_ZEROES => block::range(9, 1, 0).to_vec(),
                _ => (0..len).map(|i| (i * 5 + 1) as u8).collect(),
            };
            if len > 0 {
                raw.guest.write(request.data, &data).unwrap();
            }
            let header = raw.guest.read(request.header, 16).unwrap();
            raw.enable(0, false).unwrap();
            raw.submit(0, &request.segments()).unwrap();
            let (ring, guest) = raw.ring(0).unwrap();
            let (desc, driver) = (ring.desc, ring.driver);
            let n = if format == Format::Split { 6 + 2 * 64 } else { 4 };
            let before = (guest.read(desc, 16 * 64).unwrap(), guest.read(driver, n).unwrap());
            raw.enable(0, true).unwrap();
            raw.kick(0).unwrap();
            assert_eq!(raw.wait_used(0, LONG).unwrap().len(), 1);
            assert_eq!(request.status(&raw.guest).unwrap(), block::OK, "{kind}");
            assert!(len == 0 || raw.guest.read(request.data, len as usize).unwrap() == data, "{kind}: data");
            assert_eq!(raw.guest.read(request.header, 16).unwrap(), header, "{kind}: header");
            assert_eq!(raw.guest.read(driver, n).unwrap(), before.1, "{kind}: the driver's area");
            if format == Format::Split {
                assert_eq!(raw.guest.read(desc, 16 * 64).unwrap(), before.0, "{kind}: descriptors");
            }
        }
    }
}

/// 2.7.10.2: a kick without new requests has no effect, and requests continue.
#[test]
fn spurious_kicks_are_no_harm() {
    for (format, _) in BOTH {
        for features in [0, EVENT_IDX] {
            let server = Server::new(false);
            let mut raw = server.raw(format, features);
            for sector in 0..50 {
                let mark = raw.guest.mark();
                (0..5).for_each(|_| raw.kick(0).unwrap());
                let read = raw.block(block::IN, sector, 512).unwrap();
                assert_eq!(raw.execute(0, &read, LONG).unwrap(), (block::OK, 513));
                (0..3).for_each(|_| raw.kick(0).unwrap());
                raw.guest.rewind(mark);
            }
            let (ring, guest) = raw.ring(0).unwrap();
            assert_eq!(ring.take_used(guest).unwrap(), []);
        }
    }
}

/// 2.7.7.2 without EVENT_IDX: the flags decide about calls, and used_event is ignored.
#[test]
fn flags_decide_about_calls_without_event_idx() {
    let server = Server::new(false);
    let mut raw = server.raw(Format::Split, 0);
    let read = raw.block(block::IN, 0, 512).unwrap();
    for (flags, is_called) in [(0, true), (1, false), (0, true)] {
        let (ring, guest) = raw.ring(0).unwrap();
        ring.set_avail_flags(guest, flags).unwrap();
        // First an index that is not passed, then one that is.
        ring.set_used_event(guest, if flags == 0 { 0x8000 } else { ring.position() }).unwrap();
        raw.calls(0).unwrap();
        raw.execute(0, &read, LONG).unwrap();
        if is_called {
            assert!(raw.wait_call(0, LONG).unwrap());
        } else {
            // The call of the next request, which is enabled, shows that a call of this one would have arrived.
            assert_eq!(raw.calls(0).unwrap(), 0);
        }
    }
}

/// 2.7.7.2 and 2.7.10.2 with EVENT_IDX: the lowest bit of the driver's flags is ignored, and the device's flags are 0.
#[test]
fn flags_mean_nothing_with_event_idx() {
    let server = Server::new(false);
    let mut raw = server.raw(Format::Split, EVENT_IDX);
    let read = raw.block(block::IN, 0, 512).unwrap();
    for i in 0..10u16 {
        let (ring, guest) = raw.ring(0).unwrap();
        ring.set_avail_flags(guest, 1).unwrap();
        ring.set_used_event(guest, i).unwrap();
        raw.calls(0).unwrap();
        raw.execute(0, &read, LONG).unwrap();
        assert!(raw.wait_call(0, LONG).unwrap(), "the entry of index {i} was asked for");
        let (ring, guest) = raw.ring(0).unwrap();
        assert_eq!(ring.kick_wanted(guest).unwrap().0, 0);
    }
}

/// 2.7.5.3.2: a chain may have descriptors and then one that refers to a table. The write flag of that one is ignored.
#[test]
fn a_chain_may_end_in_a_table() {
    let server = Server::new(false);
    let mut raw = server.raw(Format::Split, INDIRECT_DESC);
    let read = raw.block(block::IN, 0, 1024).unwrap();
    let table = [
        descriptor(Format::Split, read.data, 1024, NEXT | WRITE, 1),
        descriptor(Format::Split, read.status, 1, WRITE, 0),
    ]
    .concat();
    let at = raw.guest.take(table.len(), 16).unwrap();
    raw.guest.write(at, &table).unwrap();
    for (slot, flags) in [(3, INDIRECT), (9, INDIRECT | WRITE)] {
        raw.guest.write(read.status, &[block::NO_STATUS]).unwrap();
        raw.write_desc(0, slot, read.header, 16, NEXT, slot + 1).unwrap();
        raw.write_desc(0, slot + 1, at, table.len() as u32, flags, 0).unwrap();
        raw.offer(0, slot).unwrap();
        raw.kick(0).unwrap();
        assert_eq!(raw.wait_used(0, LONG).unwrap(), [Used { id: u32::from(slot), len: 1025 }]);
        assert_eq!(read.status(&raw.guest).unwrap(), block::OK);
    }
}

/// 5.2.6.2: ranges with unknown flags are rejected, and so is the unmap flag for a discard. After write zeroes, the range reads as
/// zeroes, with or without unmap.
#[test]
fn ranges_with_unknown_flags_are_unsupported() {
    for (format, _) in BOTH {
        let server = Server::new(false);
        let mut raw = server.raw(format, BLK_DISCARD | BLK_WRITE_ZEROES);
        let write = raw.block(block::OUT, 0, 8192).unwrap();
        raw.guest.write(write.data, &[0x5a; 8192]).unwrap();
        assert_eq!(raw.execute(0, &write, LONG).unwrap().0, block::OK);
        let range = |raw: &mut Raw, kind: u32, sector: u64, flags: u32| {
            let request = raw.block(kind, 0, 16).unwrap();
            raw.guest.write(request.data, &block::range(sector, 2, flags)).unwrap();
            raw.execute(0, &request, LONG).unwrap().0
        };
        for (kind, unknown) in [(block::DISCARD, 1), (block::DISCARD, 2), (block::DISCARD, 1 << 31)]
            .into_iter()
            .chain([(block::WRITE_ZEROES, 2), (block::WRITE_ZEROES, 3), (block::WRITE_ZEROES, 1 << 31)])
        {
            assert_eq!(range(&mut raw, kind, 0, unknown), block::UNSUPP, "{kind} flags {unknown:#x}");
        }
        for (sector, flags) in [(2, 0), (6, 1)] {
            assert_eq!(range(&mut raw, block::WRITE_ZEROES, sector, flags), block::OK);
        }
        let read = raw.block(block::IN, 0, 8192).unwrap();
        assert_eq!(raw.execute(0, &read, LONG).unwrap().0, block::OK);
        let mut right = [0x5a; 8192];
        right[1024..2048].fill(0);
        right[3072..4096].fill(0);
        assert!(raw.guest.read(read.data, 8192).unwrap() == right, "{format:?}");
    }
}

/// 5.2.6.2: a disk that is offered read-only is not written, whatever features were acknowledged.
#[test]
fn a_read_only_disk_keeps_its_data() {
    let server = Server::new(true);
    let mut raw = server.raw(Format::Split, 0);
    let write = raw.block(block::OUT, 0, 512).unwrap();
    raw.guest.write(write.data, &[0xff; 512]).unwrap();
    assert_eq!(raw.execute(0, &write, LONG).unwrap().0, block::IOERR);
    let read = raw.block(block::IN, 0, 512).unwrap();
    assert_eq!(raw.execute(0, &read, LONG).unwrap().0, block::OK);
    assert_eq!(raw.guest.read(read.data, 512).unwrap(), [0; 512]);
}

/// 5.2.5.2: CONFIG_WCE is offered with FLUSH. Without FLUSH negotiated, the cache is off. The padding of the configuration is 0.
#[test]
fn the_cache_is_off_for_a_driver_that_cannot_flush() {
    let server = Server::new(false);
    let mut raw = Raw::connect(&server.socket).unwrap();
    raw.set_owner().unwrap();
    let features = raw.features().unwrap();
    assert_eq!(features & (BLK_FLUSH | BLK_CONFIG_WCE), BLK_FLUSH | BLK_CONFIG_WCE);
    raw.protocol_features().unwrap();
    raw.set_protocol_features(PROTOCOL).unwrap();
    raw.set_features(features & !BLK_FLUSH).unwrap();
    assert_eq!(raw.config(32, 2).unwrap(), [0, 0], "writeback, unused0");
    assert_eq!(raw.config(57, 3).unwrap(), [0; 3], "unused1");
    raw.set_features(features).unwrap();
    assert_eq!(raw.config(32, 2).unwrap(), [1, 0]);
}

/// 2.8.12: descriptors are taken in the ring's order and returned in the order of completion. 2.8.17: a list is processed in its
/// order.
#[test]
fn packed_descriptors_are_taken_and_given_back_in_order() {
    let server = Server::new(false);
    let mut raw = server.raw(Format::Packed, 0);
    for lap in 0..40u64 {
        let mark = raw.guest.mark();
        let mut ids = Vec::new();
        let data: Vec<u8> = (0..1024u32).map(|i| (i as u64 * 3 + lap) as u8).collect();
        // Each write overwrites the one before, in three segments in the order of the list. Then the data is read back.
        for i in 0..3u8 {
            let write = raw.block(block::OUT, 7, 1024).unwrap();
            raw.guest.write(write.data, &data.iter().map(|b| b.wrapping_add(i)).collect::<Vec<u8>>()).unwrap();
            let all = write.segments();
            let piece = |from: u64, len| Segment { addr: write.data + from, len, write: false };
            let list = [all[0], piece(0, 512), piece(512, 256), piece(768, 256), all[2]];
            ids.push(u32::from(raw.submit(0, &list).unwrap()));
            raw.kick(0).unwrap();
            let used = raw.wait_used(0, LONG).unwrap();
            assert_eq!(used.iter().map(|u| u.id).collect::<Vec<_>>(), ids.split_off(ids.len() - 1));
        }
        let read = raw.block(block::IN, 7, 1024).unwrap();
        assert_eq!(raw.execute(0, &read, LONG).unwrap(), (block::OK, 1025));
        let last: Vec<u8> = data.iter().map(|b| b.wrapping_add(2)).collect();
        assert!(raw.guest.read(read.data, 1024).unwrap() == last, "lap {lap}");
        raw.guest.rewind(mark);
    }
}
