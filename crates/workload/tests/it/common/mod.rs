// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device for tests. It completes I/Os in random order in virtual time, on plain memory, and checks the engine's
//! guarantees while it does so.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use blk::bio::Op;
use blk::status::BlkStatus;
use blk::time::{Duration, Instant};
use std::process::Command;
use workload::engine::{IoReq, JobThread, Next, ThreadId};
use workload::job::Job;
use workload::rng::Taus88;
use workload::verify::VerifyError;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

/// Whether fio 3.33 is installed. Prints a message if it is not.
pub fn fio_is_3_33() -> bool {
    let version = Command::new("fio").arg("--version").output();
    let found = version.is_ok_and(|o| o.stdout.starts_with(b"fio-3.33"));
    // CI counts a test that returns as passed, so in CI it must fail instead.
    assert!(found || std::env::var("CI").as_deref() != Ok("true"), "needs fio 3.33 in PATH");
    if !found {
        eprintln!("skipped: needs fio 3.33 in PATH (Debian 12: apt-get install fio)");
    }
    found
}

/// An issued I/O with its time.
#[derive(Clone, Copy, Debug)]
pub struct Issued {
    pub io: IoReq,
    pub at: Instant,
    /// How many others were in flight.
    pub others: usize,
}

struct Out {
    io: IoReq,
    submitted: bool,
}

/// The device with one job thread on it.
pub struct Harness {
    pub thread: JobThread,
    pub data: Vec<u8>,
    pub trace: Vec<Issued>,
    pub verify_errors: Vec<VerifyError>,
    pub now: Instant,
    /// Each completion takes up to this long.
    pub latency_ns: u64,
    /// The number of an I/O (0-based) that fails, with its status.
    pub fail: Option<(usize, BlkStatus)>,
    /// Called for every write after its data is in `data`; may damage the data.
    pub damage: Option<fn(&mut [u8], &IoReq)>,
    /// Discards are accepted and do nothing.
    pub keeps_trimmed: bool,
    pub max_out: usize,
    bufs: Vec<Vec<u8>>,
    out: Vec<Out>,
    rng: Taus88,
    completed: usize,
}

impl Harness {
    pub fn new(job: &Job, target_bytes: u64, seed: u32) -> Harness {
        let id = ThreadId { instance: 0, number: 1, entropy: 0 };
        let mut thread = JobThread::new(job, id, target_bytes).expect("the job fits");
        let mut bufs = vec![vec![0u8; thread.max_io_bytes() as usize]; thread.depth() as usize];
        bufs.iter_mut().for_each(|b| thread.fill_first(b));
        Harness {
            thread,
            data: vec![0; target_bytes as usize],
            trace: Vec::new(),
            verify_errors: Vec::new(),
            now: Instant::from_ns(1_000_000_007),
            latency_ns: 100_000,
            fail: None,
            damage: None,
            keeps_trimmed: false,
            max_out: 0,
            bufs,
            out: Vec::new(),
            rng: Taus88::new(seed),
            completed: 0,
        }
    }

    /// Runs to the end.
    pub fn run(&mut self) -> &mut Harness {
        while self.step() {}
        assert!(self.out.is_empty() && self.thread.in_flight() == 0, "done with I/Os out");
        self
    }

    /// One call of `next`; false when done.
    pub fn step(&mut self) -> bool {
        let asked = self.now;
        let next = self.thread.next(asked);
        if let Next::Io(io) = next {
            self.take(io);
            return true;
        }
        self.submit();
        match next {
            Next::Io(_) => unreachable!(),
            Next::Reap { min, max } => {
                let out = self.out.len() as u32;
                assert!(min <= out && min <= max, "reap {min}..={max} with {out} out");
                let span = max.min(out) - min;
                let n = min + if span == 0 { 0 } else { self.rng.between(0, span) };
                self.complete(n);
            }
            Next::Wait(t) => {
                assert!(t > asked, "waits for the past");
                if !self.out.is_empty() && self.rng.between(0, 1) == 0 {
                    self.complete(1);
                } else {
                    self.now = self.now.max(t);
                }
            }
            Next::Spin(t) => {
                assert!(t > asked && self.out.is_empty(), "spins with I/Os out");
                self.now = self.now.max(t);
            }
            Next::Done => return false,
        }
        true
    }

    fn take(&mut self, io: IoReq) {
        assert!((io.slot as usize) < self.bufs.len(), "slot {} of {}", io.slot, self.bufs.len());
        assert!(self.out.iter().all(|o| o.io.slot != io.slot), "slot {} handed out twice", io.slot);
        assert!(io.offset_bytes + u64::from(io.len_bytes) <= self.data.len() as u64, "{io:?} outside the target");
        assert_eq!(io.len_bytes == 0, io.op == Op::Flush);
        if io.fill {
            assert_eq!(io.op, Op::Write);
            self.thread.fill(io.slot, &mut self.bufs[io.slot as usize][..io.len_bytes as usize]);
        }
        self.trace.push(Issued { io, at: self.now, others: self.out.len() });
        self.out.push(Out { io, submitted: false });
        self.max_out = self.max_out.max(self.out.len());
        if io.commit {
            self.submit();
        }
    }

    fn submit(&mut self) {
        self.now = self.now + Duration::from_ns(u64::from(self.rng.between(0, 300)));
        self.thread.submitted(self.now);
        self.out.iter_mut().for_each(|o| o.submitted = true);
    }

    fn complete(&mut self, n: u32) {
        self.now = self.now + Duration::from_ns(u64::from(self.rng.next_u32()) % (self.latency_ns + 1));
        for _ in 0..n {
            let pick = self.rng.between(0, self.out.len() as u32 - 1) as usize;
            let io = self.out.swap_remove(pick).io;
            let failed = self.fail.filter(|f| f.0 == self.completed).map(|f| f.1);
            self.completed += 1;
            if failed.is_none() {
                self.transfer(&io);
            }
            let done = self.thread.complete(io.slot, failed.unwrap_or_default(), self.now);
            if done.needs_verify {
                let buf = &self.bufs[io.slot as usize][..io.len_bytes as usize];
                self.verify_errors.extend(self.thread.verify(io.slot, buf).err());
            }
        }
        self.thread.reaped(n);
    }

    fn transfer(&mut self, io: &IoReq) {
        let range = io.offset_bytes as usize..io.offset_bytes as usize + io.len_bytes as usize;
        let buf = &mut self.bufs[io.slot as usize][..io.len_bytes as usize];
        match io.op {
            Op::Read => buf.copy_from_slice(&self.data[range]),
            Op::Write => {
                self.data[range.clone()].copy_from_slice(buf);
                if let Some(damage) = self.damage {
                    damage(&mut self.data[range], io);
                }
            }
            Op::Discard if !self.keeps_trimmed => self.data[range].fill(0),
            _ => {}
        }
    }

    /// Issued I/Os of one operation.
    pub fn count(&self, op: Op) -> usize {
        self.trace.iter().filter(|i| i.io.op == op).count()
    }
}
