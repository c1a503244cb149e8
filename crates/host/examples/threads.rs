// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The block layer in a program with threads and io_uring: `cargo run -p mqblk-host --example threads`.
//!
//! Two threads write a file, each through a submitter, a hardware queue and an io_uring of its own. A thread that has
//! nothing to do sleeps in its ring.

use mqblk_host::blk::{Bio, CpuId, DataRef, HctxId, QueueConfig, Sector};
use mqblk_host::clock::now;
use mqblk_host::driver::file::{File, FileOptions};
use mqblk_host::{BufferPool, Disk, Regions, Submitter};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const LETTERS: [u8; 2] = *b"ab";
const THREADS: u32 = LETTERS.len() as u32;
const BLOCKS: u64 = 256;
const BLOCK_BYTES: u64 = 4096;
const DEPTH: u32 = 8;

/// Waits until at most `left` bios are outstanding.
fn wait(disk: &Disk, submitter: &mut Submitter, left: u32) -> Result<()> {
    while submitter.outstanding() > left {
        submitter.poll(now());
        match submitter.reap_one() {
            Some(done) if done.status.is_ok() => {}
            Some(done) => return Err(format!("{:?}: {}", done.op, done.status).into()),
            None => {
                // The block layer's own timer ends the sleep, too.
                submitter.rest();
                let timeout = disk.queue.next_timer().map(|due| due.since(now()));
                let hctx = submitter.hctxs().next().ok_or("a submitter has a hardware queue")?;
                disk.waker.wait(submitter.id(), hctx, 1, timeout);
            }
        }
    }
    Ok(())
}

/// Writes the blocks of one thread, each with the bytes at `data`, and makes them durable.
fn write(disk: &Disk, thread: u32, data: DataRef) -> Result<String> {
    let mut submitter = disk.queue.submitter(CpuId::new(thread)).ok_or("all submitters are in use")?;
    let hctxs: Vec<usize> = submitter.hctxs().map(HctxId::index).collect();
    for block in 0..BLOCKS {
        wait(disk, &mut submitter, DEPTH - 1)?;
        let byte = (u64::from(thread) * BLOCKS + block) * BLOCK_BYTES;
        submitter.submit(&Bio::write(Sector(byte / 512), BLOCK_BYTES as u32 / 512, data), now())?;
    }
    wait(disk, &mut submitter, 0)?;
    submitter.submit(&Bio::flush(), now())?;
    wait(disk, &mut submitter, 0)?;
    Ok(format!("thread {thread}: {BLOCKS} blocks through hardware queue {hctxs:?}\n"))
}

fn run(path: &Path) -> Result<String> {
    std::fs::File::create(path)?.set_len(u64::from(THREADS) * BLOCKS * BLOCK_BYTES)?;
    let regions = Arc::new(Regions::new());
    let mut pool = BufferPool::new(&regions, THREADS, BLOCK_BYTES as usize, false)?;
    let (driver, _warnings) = File::open(path, &FileOptions { write: true, ..FileOptions::default() }, regions)?;
    let mut config = QueueConfig::default();
    config.set("nr_cpus", &THREADS.to_string())?;
    let disk = &Disk::new(Arc::new(driver), config, None)?;
    let mut text =
        format!("{} hardware queues, scheduler {}\n", disk.queue.map().nr_hw_queues(), disk.queue.scheduler());
    std::thread::scope(|scope| -> Result<()> {
        let mut running = Vec::new();
        for thread in 0..THREADS {
            pool.with_slot(thread, |bytes| bytes.fill(LETTERS[thread as usize]));
            let data = pool.lend(thread);
            running.push(scope.spawn(move || write(disk, thread, data)));
        }
        for thread in running {
            text += &thread.join().expect("a thread that writes does not panic")?;
        }
        Ok(())
    })?;
    let bytes = std::fs::read(path)?;
    let halves = bytes.chunks((BLOCKS * BLOCK_BYTES) as usize);
    let is_equal = halves.zip(LETTERS).all(|(half, letter)| half.iter().all(|byte| *byte == letter));
    Ok(text + &format!("{} KiB, data in the file is equal: {is_equal}\n", bytes.len() >> 10))
}

fn main() -> Result<()> {
    let path = std::env::temp_dir().join(format!("mqblk-example-{}", std::process::id()));
    let text = run(&path);
    let removed = std::fs::remove_file(&path);
    print!("{}", text?);
    removed?;
    Ok(())
}

#[test]
fn each_thread_writes_through_its_own_hardware_queue() {
    let path = std::env::temp_dir().join(format!("mqblk-example-test-{}", std::process::id()));
    let text = run(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let expected = "\
2 hardware queues, scheduler none
thread 0: 256 blocks through hardware queue [0]
thread 1: 256 blocks through hardware queue [1]
2048 KiB, data in the file is equal: true
";
    assert_eq!(text, expected);
}
