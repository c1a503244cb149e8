// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The I/O that reaches the driver from a guest with the write cache on, and with it switched off. With the cache off, writes are
//! durable when they complete, by the means that the device has. Counted at the driver, below the whole stack.

use crate::serving;

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
use std::time::Duration;
use vuclient::raw::message::feature::{BLK_CONFIG_WCE, BLK_FLUSH, VERSION_1};
use vuclient::raw::message::{protocol, request};
use vuclient::raw::{Format, Notify, Raw, block};

const PROTOCOL: u64 = protocol::MQ | protocol::REPLY_ACK | protocol::CONFIG;
const LONG: Duration = Duration::from_secs(300);

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

/// Returns the requests of a device, in one list for each step: a write, a flush, a write with the guest's cache switched
/// off, and a write with it on again.
fn asked_of(write_cache: bool, fua: bool) -> [Vec<(Op, bool)>; 4] {
    let directory = std::env::temp_dir().join(format!("mqblk-cache-{}-{write_cache}-{fua}", std::process::id()));
    fs::create_dir(&directory).unwrap();
    let option = ThreadOptions { name: "io0".into(), cpus: Vec::new(), polling: Polling::default() };
    let threads = Arc::new(IoThreads::start(&[option]).unwrap());
    let limits = Limits { write_cache, fua, ..Limits::default() };
    let witness = Arc::new(RecordingDriver { limits, asked: Mutex::default(), done: Mutex::default() });
    let driver: Arc<dyn HostDriver> = Arc::clone(&witness) as _;
    let disk = threads.disk("disk", driver, Arc::new(Regions::new()), QueueConfig::default()).unwrap();
    let socket = directory.join("vhost.sock");
    let options = ExportOptions { socket: socket.clone(), discard: false, ..vhost_options() };
    let export = VhostExport::start(&threads, &disk, options).unwrap();
    let features = VERSION_1 | BLK_FLUSH | BLK_CONFIG_WCE;
    let mut raw = Raw::ready(socket.to_str().unwrap(), features, PROTOCOL).unwrap();
    raw.start(0, 64, Format::Split, Notify::Both).unwrap();
    let asked = |raw: &mut Raw, kind: u32| {
        let request = raw.block(kind, 8, if kind == block::OUT { 4096 } else { 0 }).unwrap();
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
    let through = asked(&mut raw, block::OUT);
    cache(&mut raw, 1);
    let back = asked(&mut raw, block::OUT);
    drop((raw, export));
    serving::check_drained(&disk);
    fs::remove_dir_all(&directory).unwrap();
    [write, flush, through, back]
}

const PLAIN: (Op, bool) = (Op::Write, false);

#[test]
fn write_through_guest_gets_durable_writes_with_fua() {
    let flush = vec![(Op::Flush, false)];
    assert_eq!(asked_of(true, true), [vec![PLAIN], flush, vec![(Op::Write, true)], vec![PLAIN]]);
}

/// A flush after each write replaces FUA, which the device does not have.
#[test]
fn write_through_guest_gets_durable_writes_without_fua() {
    let flush = (Op::Flush, false);
    assert_eq!(asked_of(true, false), [vec![PLAIN], vec![flush], vec![PLAIN, flush], vec![PLAIN]]);
}

#[test]
fn a_device_without_a_cache_is_asked_for_nothing_more() {
    assert_eq!(asked_of(false, false), [vec![PLAIN], vec![], vec![PLAIN], vec![PLAIN]]);
}
