// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk over your own driver: `cargo run -p mqblk-blk --example own_driver`.
//!
//! The driver keeps the disk in memory and completes each request 10 us after its issue. The program counts the time
//! itself, so that every run prints the same.

use mqblk_blk::{
    Bio, BlkStatus, Completions, CpuId, DataRef, Driver, Duration, HctxId, InFlight, Instant, Limits, NoNotify, Op,
    QueueConfig, QueueRqStatus, RequestQueue, RqBatch, RqRef, Sector,
};
use std::sync::{Arc, Mutex};

struct MemoryDriver {
    sectors: Mutex<Vec<u8>>,
    /// The memory that bios point into.
    buffers: Mutex<Vec<u8>>,
    /// Issued requests, with the time at which each completes.
    issued: Mutex<Vec<(Instant, InFlight)>>,
}

impl MemoryDriver {
    /// Copies a request's data: one segment for each bio that was merged into it.
    fn copy(&self, rq: &RqRef<'_>) {
        let (mut sectors, mut buffers) = (self.sectors.lock().unwrap(), self.buffers.lock().unwrap());
        let mut at = rq.sector().0 as usize * 512;
        for segment in rq.segments() {
            let (from, len) = (segment.data.offset() as usize, segment.len_bytes as usize);
            let (disk, buffer) = (&mut sectors[at..][..len], &mut buffers[from..][..len]);
            let (to, from) = if rq.op() == Op::Read { (buffer, disk) } else { (disk, buffer) };
            to.copy_from_slice(from);
            at += len;
        }
    }
}

impl Driver for MemoryDriver {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn limits(&self) -> Limits {
        Limits::with_max_hw_sectors(256)
    }

    fn capacity(&self) -> Sector {
        Sector(self.sectors.lock().unwrap().len() as u64 / 512)
    }

    fn start(&self, nr_hw_queues: u16, _queue_depth: u32) -> Result<(), String> {
        if nr_hw_queues == 1 { Ok(()) } else { Err(format!("nr_hw_queues={nr_hw_queues}: must be 1")) }
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, now: Instant) -> QueueRqStatus {
        while let Some(rq) = batch.front() {
            self.copy(&rq);
            self.issued.lock().unwrap().push((now + Duration::from_us(10), batch.accept()));
        }
        QueueRqStatus::Queued
    }

    fn poll(&self, _hctx: HctxId, done: &mut Completions, now: Instant) {
        for (_, rq) in self.issued.lock().unwrap().extract_if(.., |(due, _)| *due <= now).take(done.room()) {
            done.push(rq, BlkStatus::Ok);
        }
    }
}

fn run() -> Result<String, Box<dyn std::error::Error>> {
    let (sectors, buffers) = (Mutex::new(vec![0; 1 << 20]), Mutex::new(vec![7; 64 << 10]));
    let driver = Arc::new(MemoryDriver { sectors, buffers, issued: Mutex::default() });
    let disk = RequestQueue::<parking_lot::RawMutex>::new(driver.clone(), QueueConfig::default(), Box::new(NoNotify))?;
    let mut submitter = disk.submitter(CpuId::new(0)).ok_or("all submitters are in use")?;
    let mut text = format!("{} sectors, scheduler {}\n", disk.capacity().0, disk.scheduler());

    let write = |n: u64| Bio::write(Sector(n * 8), 8, DataRef::new(0, n * 4096)).with_user_data(n);
    let read = Bio::read(Sector(0), 16, DataRef::new(0, 32 << 10)).with_user_data(2);
    let mut now = Instant::ZERO;
    for bios in [vec![write(0), write(1)], vec![read]] {
        // Adjacent bios that are submitted under a plug become one request.
        submitter.start_plug(bios.len() as u32);
        bios.iter().try_for_each(|bio| submitter.submit(bio, now))?;
        submitter.finish_plug(now);
        while submitter.outstanding() > 0 {
            now = now + Duration::from_us(5);
            submitter.poll(now);
            let us = now.as_ns() / 1000;
            submitter.reap(|d| text += &format!("{us} us: bio {} {:?} {:?}\n", d.user_data, d.op, d.status));
        }
    }
    let is_equal = driver.buffers.lock().unwrap()[32 << 10..][..8192] == [7; 8192];
    Ok(text + &format!("{} bio merged, data read back is equal: {is_equal}\n", disk.stats().merges()))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    print!("{}", run()?);
    Ok(())
}

#[test]
fn adjacent_writes_merge_and_data_comes_back() {
    let expected = "\
2048 sectors, scheduler mq-deadline
10 us: bio 0 Write Ok
10 us: bio 1 Write Ok
20 us: bio 2 Read Ok
1 bio merged, data read back is equal: true
";
    assert_eq!(run().unwrap(), expected);
}
