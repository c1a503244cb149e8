// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A hostile driver and a hostile front end made of arbitrary bytes, for `fuzz/` and, with bytes from seeds, for tests.
//!
//! Guarantees: the generators themselves never panic. Their assertions are properties that no client may break: chains are bounded, data
//! lies in the guest's memory, and after a client has gone none of its requests is in flight and none of its memory is mapped.

use super::backend::Connection;
use super::bounce;
use super::descriptor::{RingAddress, RingFeatures, View};
use super::device::{Cache, Device, SERIAL_BYTES};
use super::inflight::Inflight;
use super::inflight_packed::PackedInflight;
use super::log::{DirtyLog, RingLog};
use super::memory::{GuestMemory, SlotAddress};
use super::packed::PackedRing;
use super::request;
use super::ring::Ring;
use super::split::SplitRing;
use crate::mem::{Alarm, Region, Regions};
use crate::serve::{IoThreads, Polling, ServedDisk, ThreadOptions};
use crate::target::{Needs, TargetSpec};
use blk::settings::QueueConfig;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use vhost::vhost_user::BackendReqHandler;

/// Bytes of the guest's memory, whose addresses are offsets in it; it is small so that small numbers are addresses.
const BYTES: usize = 0x4000;

/// Arbitrary bytes, consumed one after the other; zeroes follow after the last one.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, n: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(n.min(self.0.len()));
        self.0 = tail;
        head
    }

    fn number(&mut self, bytes: usize) -> u64 {
        self.take(bytes).iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
    }
}

fn file(bytes: usize) -> OwnedFd {
    let fd = memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&fd, bytes as u64).expect("its length");
    fd
}

/// Writes `pattern` over and over.
fn fill(region: &Region, pattern: &[u8]) {
    for (at, byte) in (0..region.len()).zip(pattern.iter().cycle()) {
        region.store_u8(at, *byte, Relaxed);
    }
}

fn region(fd: &OwnedFd, bytes: usize, alarm: &Arc<Alarm>) -> Arc<Region> {
    Arc::new(Region::map_shared(fd.as_fd(), 0, bytes, alarm).expect("a mapping"))
}

/// Reads a ring in memory that holds these bytes and keeps changing. Returns how many requests were found.
pub fn ring(bytes: &[u8]) -> usize {
    let mut bytes = Bytes(bytes);
    let [flags, size] = [bytes.number(1), bytes.number(1)];
    let base = bytes.number(4) as u32;
    let (is_packed, is_tracked, is_logged) = (flags & 1 != 0, flags & 8 != 0, flags & 16 != 0);
    let features = RingFeatures { event_idx: flags & 2 != 0, indirect: flags & 4 != 0 };
    let size = if is_packed { 1 + (size as u16 % 40) } else { 1 << (size % 6) };
    let alarm = Alarm::new().expect("an alarm");
    let (fd, notes) = (file(BYTES), file(0x4000));
    let (all, notes) = (region(&fd, BYTES, &alarm), region(&notes, 0x4000, &alarm));
    if is_tracked {
        fill(&notes, bytes.take(96));
    }
    let pattern = bytes.take(bytes.0.len() / 2);
    fill(&all, pattern);
    let regions = Arc::new(Regions::new());
    let slot = |at: u64, len| SlotAddress { guest: at, user: at, len, file_offset: at };
    let memory = GuestMemory::new(Arc::clone(&alarm)).with(slot(0, 0x3000), fd.as_fd(), &regions).expect("a slot");
    // The second slot ends within a page.
    let memory = Arc::new(memory.with(slot(0x3000, 0xf3c), fd.as_fd(), &regions).expect("a slot"));
    let address = RingAddress { desc: 0, avail: 0x400, used: 0x800 };
    let log = Arc::new(DirtyLog::new(region(&fd, 1, &alarm)));
    let log = is_logged.then(|| RingLog::new(&log, &memory, address, 0x800)).flatten();
    let made = if is_packed {
        PackedRing::new(&memory, address, size, base, features).and_then(|mut ring| {
            ring.log = log;
            if is_tracked {
                ring.track(PackedInflight::new(&notes, 0, 40.max(size), ring.used())?)?;
            }
            Some(Ring::Packed(ring))
        })
    } else {
        SplitRing::new(&memory, address, size, base as u16, features).map(|mut ring| {
            ring.log = log;
            if is_tracked && let Some(notes) = Inflight::new(&notes, 0, 32) {
                ring.track(notes);
            }
            Ring::Split(ring)
        })
    };
    let Some(mut ring) = made else { return 0 };
    let view = View { memory, regions };
    walk(&mut ring, &view, &all, &mut bytes)
}

fn walk(ring: &mut Ring, view: &View, all: &Region, bytes: &mut Bytes<'_>) -> usize {
    let own = Region::new(1 << 20, false).expect("a buffer");
    let own_number = view.regions.add(Arc::new(own)).expect("a number");
    let (mut chain, mut segments, mut hint) = (Vec::new(), Vec::new(), 0);
    let mut found = 0;
    for _ in 0..200 {
        match ring.next(view, &mut chain) {
            Ok(Some(head)) => {
                assert!(!chain.is_empty() && chain.len() <= 2 * super::descriptor::MAX_CHAIN, "{}", chain.len());
                let parsed = request::parse(view, &chain, &mut segments, &mut hint);
                if let Ok(request) = parsed {
                    found += 1;
                    let sum: u64 = segments.iter().map(|(_, len)| u64::from(*len)).sum();
                    assert_eq!(sum, request.bytes);
                    assert!(request.status.offset() < BYTES as u64 && segments.len() <= chain.len());
                    if bounce::is_mapped(view, &segments) && sum <= 1 << 20 {
                        let data = blk::bio::DataRef::new(own_number, 0);
                        assert!(bounce::gather(view, &segments, data).is_some());
                        assert!(bounce::scatter(view, &segments, data).is_some());
                    }
                }
                ring.add_used(head, 1);
                if bytes.number(1) & 1 == 0 {
                    ring.publish();
                    ring.wants_signal();
                }
            }
            Ok(None) => {
                ring.publish();
                ring.enable_kicks();
                ring.disable_kicks();
                if bytes.0.is_empty() {
                    return found;
                }
            }
            Err(_) => return found,
        }
        // The driver continues writing.
        let (at, value) = (bytes.number(2) as usize % (BYTES - 1), bytes.number(2) as u16);
        all.store_u16(at & !1, value, Relaxed);
    }
    found
}

/// Returns the disk that all front ends share.
fn disk() -> &'static (Arc<IoThreads>, Arc<ServedDisk>) {
    static DISK: OnceLock<(Arc<IoThreads>, Arc<ServedDisk>)> = OnceLock::new();
    DISK.get_or_init(|| {
        let polling = Polling::default();
        let options = ThreadOptions { name: "io".into(), cpus: Vec::new(), polling };
        let threads = Arc::new(IoThreads::start(&[options]).expect("an IOThread"));
        let regions = Arc::new(Regions::new());
        let needs = Needs { write: true, direct: false, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
        let spec = TargetSpec::parse("ram:size=1m").expect("a target");
        let driver = spec.open(&needs, Arc::clone(&regions)).expect("a disk").driver;
        let disk = threads.disk("fuzz", driver, regions, QueueConfig::default()).expect("a disk");
        (threads, disk)
    })
}

/// Sends messages as a front end does: bytes, with descriptors attached to the first byte.
struct Sender {
    stream: UnixStream,
    memory: OwnedFd,
}

impl Sender {
    fn send(&self, bytes: &[u8], fds: &[&OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); 512];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, flags);
    }

    fn message(&self, request: u32, flags: u32, payload: &[u8], fds: &[&OwnedFd]) {
        let words = [request, flags, payload.len() as u32].map(u32::to_le_bytes);
        self.send(&[&words.concat(), payload].concat(), fds);
    }

    fn words(&self, request: u32, words: &[u64], fds: &[&OwnedFd]) {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        self.message(request, 1, &bytes, fds);
    }

    /// Sends the valid messages that must precede all others.
    fn introduce(&self, features: u64) {
        self.message(3, 1, &[], &[]);
        self.message(1, 1, &[], &[]);
        self.message(15, 1, &[], &[]);
        // MQ, LOG_SHMFD, REPLY_ACK, BACKEND_REQ, CONFIG, INFLIGHT_SHMFD, RESET_DEVICE, CONFIGURE_MEM_SLOTS
        self.words(16, &[1 | 2 | 8 | 1 << 5 | 1 << 9 | 1 << 12 | 1 << 13 | 1 << 15], &[]);
        self.words(2, &[features], &[]);
        self.words(5, &[1, 0, BYTES as u64, 0, 0], &[&self.memory]);
    }

    /// Sends one message that is made of these bytes, usually a valid one.
    fn next(&self, bytes: &mut Bytes<'_>) {
        let (what, event) = (bytes.number(1), eventfd());
        let index = bytes.number(1) & 3;
        match what % 16 {
            0 => self.send(bytes.take(24), &[]),
            1 => self.message(bytes.number(1) as u32, 1 | (index as u32) << 2, bytes.take(40), &[]),
            2 => self.message(bytes.number(1) as u32, 1, bytes.take(20), &[&self.memory]),
            3 => self.words(8, &[index | (1 + bytes.number(1) % 32) << 32], &[]),
            4 => self.words(9, &[index | (what >> 4 & 1) << 32, 0, 0x800, 0x400, 0x800], &[]),
            5 => {
                let [desc, used, avail, log] = [0; 4].map(|_| bytes.number(2));
                self.words(9, &[index, desc & !15, used & !3, avail & !3, log], &[]);
            }
            6 => self.words(10, &[index | bytes.number(4) << 32], &[]),
            7 => self.words(12, &[index], &[&event]),
            8 => self.words(13, &[index], &[&event]),
            9 => self.words(18, &[index | (what >> 4 & 1) << 32], &[]),
            10 => self.words(11, &[index], &[]),
            11 => self.words(31, &[0, 0, index | (bytes.number(1) << 16)], &[]),
            12 => self.words(32, &[BYTES as u64, 0, 1 | (bytes.number(1) << 16)], &[&self.memory]),
            13 => self.words(6, &[1 + bytes.number(2) % 64, 0], &[&self.memory]),
            14 => {
                let (at, len) = (bytes.number(2), 1 + bytes.number(2) % BYTES as u64);
                let request = if what & 16 == 0 { 37 } else { 38 };
                let fds: &[&OwnedFd] = if request == 37 { &[&self.memory] } else { &[] };
                self.words(request, &[0, at, len, at, 0], fds);
            }
            _ => {
                // As for a running ring: the kick is signalled, too.
                self.words(12, &[index], &[&event]);
                crate::event::signal(&event);
            }
        }
    }
}

fn eventfd() -> OwnedFd {
    crate::event::new().expect("an eventfd")
}

/// Runs a front end's connection whose messages and memory are made of these bytes. Returns how many messages were accepted.
pub fn messages(bytes: &[u8]) -> usize {
    let mut bytes = Bytes(bytes);
    let [flags, count] = [bytes.number(1), bytes.number(1)];
    let (threads, disk) = disk();
    // One at a time, because memory of another connection would count as left behind by this one.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = disk.regions.count();
    let alarm = Alarm::new().expect("an alarm");
    let (ours, theirs) = UnixStream::pair().expect("a socket");
    let sender = Sender { stream: theirs, memory: file(BYTES) };
    fill(&region(&sender.memory, BYTES, &alarm), bytes.take(bytes.0.len() / 2));
    if flags & 1 != 0 {
        let packed = if flags & 2 != 0 { 1 << 34 } else { 0 };
        sender
            .introduce(1 << 32 | 1 << 30 | 1 << 28 | 1 << 9 | 1 << 11 | packed | (flags & 4) << 24 | (flags & 8) << 26);
    }
    for _ in 0..count % 32 {
        sender.next(&mut bytes);
    }
    if flags & 16 != 0 {
        let _ = ftruncate(&sender.memory, (flags & 0xe0) << 8);
    }
    let _ = sender.stream.shutdown(Shutdown::Write);
    ours.set_write_timeout(Some(Duration::from_millis(5))).expect("a limit");
    let device = Arc::new(Device {
        name: "fuzz".into(),
        limits: *disk.limits(),
        block_size: disk.block_size(),
        checked_block: 512,
        queue_size: 256,
        read_only: false,
        num_queues: 2,
        allow_file_memory: false,
        write_through: false,
        serial: [b'x'; SERIAL_BYTES],
        cache: Cache::default(),
        call_waits: std::sync::atomic::AtomicBool::new(false),
    });
    let connection = Connection::new(Arc::clone(threads), Arc::clone(disk), device, vec![0, 0], alarm);
    let mut handler = BackendReqHandler::from_stream(ours, Arc::new(Mutex::new(connection)));
    let mut taken = 0;
    while handler.handle_request().is_ok() {
        taken += 1;
    }
    drop(handler);
    // The buffers of a port are kept, and there may have been none before.
    assert!(disk.regions.count() <= before + 1, "memory of a client is left behind");
    assert_eq!(disk.stats().in_flight, 0, "something of a client is in flight");
    taken
}

#[cfg(test)]
#[path = "../../../../../fuzz/bodies/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::seeds::{Seed, check};
    use super::*;

    /// Returns bytes in which small numbers are more frequent than large ones.
    fn bytes(seed: u64, n: usize) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let one = |_| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let byte = (state >> 33) as u8;
            match state >> 62 {
                0 => byte,
                1 => byte & 7,
                _ => byte & 0x83,
            }
        };
        (0..n).map(one).collect()
    }

    #[test]
    fn rings_of_arbitrary_bytes_are_survived() {
        for seed in 0..3000 {
            println!("seed {seed}");
            ring(&bytes(seed, 64 + seed as usize % 700));
        }
    }

    /// A record for a longer queue than the ring, with a position beyond the ring. The ring used to be read there.
    #[test]
    fn a_place_behind_the_ring_is_refused() {
        ring(&[0x2f, 0x28, 0, 0, 0, 0, 8, 0]);
    }

    #[test]
    fn front_ends_of_arbitrary_bytes_are_survived() {
        for seed in 0..1500 {
            println!("seed {seed}");
            messages(&bytes(seed, 32 + seed as usize % 500));
        }
    }

    #[test]
    fn parts_of_notes_have_their_size() {
        use super::super::{inflight, inflight_packed};
        assert!(inflight_packed::queue_bytes(40) <= 0x4000 && inflight::queue_bytes(32) <= 0x4000);
    }

    /// Offset of the driver area in the memory of [`ring`] and [`messages`], and the ring's size.
    const DRIVER: usize = 0x400;
    const SIZE: u16 = 32;
    const FROM_DEVICE: u16 = 2;

    /// A request's segments: guest address, bytes, flags.
    type Segments = Vec<(u64, u32, u16)>;

    /// Returns memory with the first requests of a ring, whose headers are at 0x300, and the number of requests.
    fn memory(is_packed: bool) -> (Vec<u8>, u16) {
        let mut bytes = vec![0; 0x500];
        let mut put = |at: usize, what: &[u8]| bytes[at..at + what.len()].copy_from_slice(what);
        // Read, write, flush, get the serial, discard, and an unknown type (virtio 1.3, 5.2.6).
        let kinds: [(u32, u32, u16); 6] =
            [(0, 512, FROM_DEVICE), (1, 1024, 0), (4, 0, 0), (8, 20, FROM_DEVICE), (11, 16, 0), (99, 0, 0)];
        let mut slot = 0u16;
        for (number, (what, len, flags)) in kinds.iter().enumerate() {
            let header = 0x300 + 16 * number as u64;
            put(header as usize, &[&what.to_le_bytes()[..], &[0; 4], &8u64.to_le_bytes()].concat());
            let mut segments: Segments = vec![(header, 16, 0)];
            if *len > 0 {
                segments.push((0x1000 + 0x400 * number as u64, *len, *flags));
            }
            segments.push((0x2ff0 - number as u64, 1, FROM_DEVICE));
            let (first, last) = (slot, slot + segments.len() as u16 - 1);
            for (addr, len, flags) in segments {
                let flags = flags | u16::from(slot < last);
                // Packed: the id of the chain, and the wrap counter of the first round.
                let end = match is_packed {
                    true => [first.to_le_bytes(), (flags | 1 << 7).to_le_bytes()],
                    false => [flags.to_le_bytes(), (slot + 1).to_le_bytes()],
                };
                put(16 * usize::from(slot), &[&addr.to_le_bytes()[..], &len.to_le_bytes(), &end.concat()].concat());
                slot += 1;
            }
            if !is_packed {
                put(DRIVER + 4 + 2 * number, &first.to_le_bytes());
                put(DRIVER + 2, &(number as u16 + 1).to_le_bytes());
            }
        }
        (bytes, kinds.len() as u16)
    }

    #[test]
    fn seeds_of_vhost_ring() {
        let seed = |name, flags: u8, base: u32| {
            let is_packed = flags & 1 != 0;
            let (memory, requests) = memory(is_packed);
            let size = if is_packed { SIZE as u8 - 1 } else { 5 };
            // An empty record of requests in flight, and a driver that writes outside the ring.
            let notes = if flags & 8 != 0 { 96 } else { 0 };
            let bytes = [&[flags, size][..], &base.to_le_bytes(), &vec![0; notes], &memory, &[0xfe; 0x500]].concat();
            Seed { name, bytes, reach: usize::from(requests) }
        };
        let wrapped = 0x8000_8000;
        let seeds = [
            seed("split", 0, 0),
            seed("split-event-indirect-logged", 0b1_0110, 0),
            seed("split-tracked", 0b1000, 0),
            seed("packed", 1, wrapped),
            seed("packed-event-indirect-logged", 0b1_0111, wrapped),
        ];
        check("vhost_ring", &seeds, ring);
    }

    #[test]
    fn seeds_of_vhost_messages() {
        // `Sender::next` defines which message these bytes make.
        let start = |base: [u8; 4]| {
            let addresses = vec![4, 0];
            let base = [&[6, 0][..], &base].concat();
            vec![
                vec![3, 0, SIZE as u8 - 1],
                addresses,
                base,
                vec![8, 0],
                vec![7, 0],
                vec![0x19, 0],
                vec![15, 0],
                vec![10, 0],
            ]
        };
        let seed = |name, flags: u8, messages: &[Vec<u8>], reach| {
            let (mut memory, _) = memory(flags & 2 != 0);
            let mut after = messages.concat();
            // Half of the bytes after the first two are memory.
            let half = memory.len().max(after.len());
            memory.resize(half, 0);
            after.resize(half, 0);
            Seed { name, bytes: [&[flags, messages.len() as u8][..], &memory, &after].concat(), reach }
        };
        let wrapped = [0, 0x80, 0, 0x80];
        let noted = [&[vec![11, 1, SIZE as u8]][..], &start([0; 4])].concat();
        let slots = [vec![14, 0, 0, 0x40, 0xff, 0x0f], vec![12, 0, SIZE as u8], vec![5, 1, 0, 0, 0, 8, 0, 4, 0, 0]];
        let seeds = [
            seed("split", 1, &start([0; 4]), 6 + 8),
            seed("packed", 3, &start(wrapped), 6 + 8),
            seed("split-inflight", 1, &noted, 6 + 9),
            seed("slots", 1, &slots, 6 + 3),
            // The memory's file is cut short before the back end maps it.
            seed("cut-short", 0x11, &start([0; 4]), 5),
            seed("stranger", 0, &start([0; 4])[..2], 2),
        ];
        check("vhost_messages", &seeds, messages);
    }
}
