// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The I/O that reaches the driver from a guest with the write cache on, and with it switched off. With the cache off, writes are
//! durable when they complete, by the means that the device has. Counted at the driver, below the whole stack.

use crate::serving;
use crate::waiting::LONG;

use blk::bio::{Op, OpFlags};
use blk::driver::{Completions, Driver, InFlight, RqBatch};
use blk::id::{HctxId, Sector};
use blk::limits::Limits;
use blk::settings::QueueConfig;
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::Instant;
use host::driver::HostDriver;
use host::export::vhost::{ExportOptions, VhostExport};
use host::mem::Regions;
use host::serve::{IoThreads, Polling, ThreadOptions};
use serving::vhost_options;
use std::collections::VecDeque;
use std::fs;
use std::sync::{Arc, Mutex};
use vuclient::raw::message::feature::{BLK_CONFIG_WCE, BLK_DISCARD, BLK_FLUSH, BLK_WRITE_ZEROES, VERSION_1};
use vuclient::raw::message::{protocol, request};
use vuclient::raw::{Format, Notify, Raw, block};

const PROTOCOL: u64 = protocol::MQ | protocol::REPLY_ACK | protocol::CONFIG;

/// A device that records its requests and executes none.
struct RecordingDriver {
    limits: Limits,
    asked: Mutex<Vec<(Op, bool)>>,
    done: Mutex<VecDeque<InFlight>>,
}

impl Driver for RecordingDriver {
    fn name(&self) -> &'static str {
        "witness"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn capacity(&self) -> Sector {
        Sector(1 << 20)
    }

    fn start(&self, _nr_hw_queues: u16, _queue_depth: u32) -> Result<(), String> {
        Ok(())
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, _now: Instant) -> QueueRqStatus {
        while let Some(rq) = batch.front() {
            self.asked.lock().unwrap().push((rq.op(), rq.flags().contains(OpFlags::FUA)));
            self.done.lock().unwrap().push_back(batch.accept());
        }
        QueueRqStatus::Queued
    }

    fn poll(&self, _hctx: HctxId, done: &mut Completions, _now: Instant) {
        let mut ended = self.done.lock().unwrap();
        let n = ended.len().min(done.room());
        ended.drain(..n).for_each(|rq| done.push(rq, BlkStatus::Ok));
    }
}

impl HostDriver for RecordingDriver {}

/// Returns the requests of a device, in one list for each step: a write, a flush; a write, a write of zeroes and a discard with the
/// guest's cache switched off; a write, a write of zeroes and a discard with it on again.
fn asked_of(write_cache: bool, fua: bool) -> [Vec<(Op, bool)>; 8] {
    let directory = std::env::temp_dir().join(format!("mqblk-cache-{}-{write_cache}-{fua}", std::process::id()));
    fs::create_dir(&directory).unwrap();
    let option = ThreadOptions { name: "io0".into(), cpus: Vec::new(), polling: Polling::default() };
    let threads = Arc::new(IoThreads::start(&[option]).unwrap());
    let (max_discard_sectors, max_write_zeroes_sectors) = (1024, 1024);
    let limits = Limits {
        write_cache,
        fua,
        max_discard_sectors,
        max_write_zeroes_sectors,
        discard_granularity: 512,
        ..Limits::default()
    };
    let witness = Arc::new(RecordingDriver { limits, asked: Mutex::default(), done: Mutex::default() });
    let driver: Arc<dyn HostDriver> = Arc::clone(&witness) as _;
    let disk = threads.disk("disk", driver, Arc::new(Regions::new()), QueueConfig::default()).unwrap();
    let socket = directory.join("vhost.sock");
    let options = ExportOptions { socket: socket.clone(), discard: true, ..vhost_options() };
    let export = VhostExport::start(&threads, &disk, options).unwrap();
    let features = VERSION_1 | BLK_FLUSH | BLK_CONFIG_WCE | BLK_DISCARD | BLK_WRITE_ZEROES;
    let mut raw = Raw::ready(socket.to_str().unwrap(), features, PROTOCOL).unwrap();
    raw.start(0, 64, Format::Split, Notify::Both).unwrap();
    let asked = |raw: &mut Raw, kind: u32| {
        let is_range = [block::DISCARD, block::WRITE_ZEROES].contains(&kind);
        let bytes = if kind == block::OUT { 4096 } else { 16 * u32::from(is_range) };
        let request = raw.block(kind, if is_range { 0 } else { 8 }, bytes).unwrap();
        if is_range {
            raw.guest.write(request.data, &block::range(8, 8, 0)).unwrap();
        }
        assert_eq!(raw.execute(0, &request, LONG).unwrap().0, block::OK);
        std::mem::take(&mut *witness.asked.lock().unwrap())
    };
    let cache = |raw: &mut Raw, on: u8| {
        let at = [32u32, 1, 0].map(u32::to_le_bytes).concat();
        raw.call(request::SET_CONFIG, &[&at[..], &[on]].concat(), &[]).unwrap();
        assert_eq!(raw.config(32, 1).unwrap(), [on]);
    };
    let (write, flush) = (asked(&mut raw, block::OUT), asked(&mut raw, block::FLUSH));
    cache(&mut raw, 0);
    let changes = [block::OUT, block::WRITE_ZEROES, block::DISCARD];
    let [write_through, zero_through, discard_through] = changes.map(|kind| asked(&mut raw, kind));
    cache(&mut raw, 1);
    let [write_back, zero_back, discard_back] = changes.map(|kind| asked(&mut raw, kind));
    drop((raw, export));
    serving::check_drained(&disk);
    fs::remove_dir_all(&directory).unwrap();
    [write, flush, write_through, zero_through, discard_through, write_back, zero_back, discard_back]
}

const FLUSH: (Op, bool) = (Op::Flush, false);

const fn plain(op: Op) -> (Op, bool) {
    (op, false)
}

/// What a device is asked for, given what comes for a flush, and for each change with the cache off.
fn expected(flush: &[(Op, bool)], through: [&[(Op, bool)]; 3]) -> [Vec<(Op, bool)>; 8] {
    let [write, zero, discard] = through.map(<[_]>::to_vec);
    let [write_back, zero_back, discard_back] = [Op::Write, Op::WriteZeroes, Op::Discard].map(|op| vec![plain(op)]);
    [write_back.clone(), flush.to_vec(), write, zero, discard, write_back, zero_back, discard_back]
}

/// Once, zeroes and discards were not flushed.
#[test]
fn write_through_guest_gets_durable_changes_with_fua() {
    let then_flush = [Op::WriteZeroes, Op::Discard].map(|op| [plain(op), FLUSH]);
    let through: [&[_]; 3] = [&[(Op::Write, true)], &then_flush[0], &then_flush[1]];
    assert_eq!(asked_of(true, true), expected(&[FLUSH], through));
}

/// A flush after each write replaces FUA, which the device does not have.
#[test]
fn write_through_guest_gets_durable_changes_without_fua() {
    let then_flush = [Op::Write, Op::WriteZeroes, Op::Discard].map(|op| [plain(op), FLUSH]);
    let through: [&[_]; 3] = [&then_flush[0], &then_flush[1], &then_flush[2]];
    assert_eq!(asked_of(true, false), expected(&[FLUSH], through));
}

#[test]
fn a_device_without_a_cache_is_asked_for_nothing_more() {
    let through = [Op::Write, Op::WriteZeroes, Op::Discard].map(|op| [plain(op)]);
    assert_eq!(asked_of(false, false), expected(&[], [&through[0], &through[1], &through[2]]));
}
