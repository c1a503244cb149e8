// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shared by tests of exports: a disk on IOThreads with its own directory, and clients under a time limit.

#![allow(dead_code, reason = "each test program uses a part")]

use blk::id::Sector;
use blk::settings::QueueConfig;
use blk::stripe::{Stripe, StripeMap};
use host::driver::HostDriver;
use host::driver::file::{File, FileOptions};
use host::export::nbd::{Address, NbdDisk, NbdOptions};
use host::export::vhost::ExportOptions;
use host::mem::Regions;
use host::nbd::wire::RequestHeader;
use host::serve::geometry::Geometry;
use host::serve::{IoThreads, Polling, ServedDisk, ThreadOptions};
use host::target::{Needs, TargetSpec};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A disk that is not served yet.
pub struct Served {
    pub directory: PathBuf,
    pub threads: Arc<IoThreads>,
    pub disk: Arc<ServedDisk>,
}

impl Served {
    /// Makes a disk of `target`, or of a new file of 64 MiB if `target` is "file", with this number of IOThreads.
    pub fn new(test: &str, target: &str, iothreads: usize) -> Served {
        let (directory, threads) = begin(test, iothreads);
        let target = if target == "file" {
            let image = directory.join("disk.img");
            fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
            image.to_str().unwrap().to_owned()
        } else {
            target.to_owned()
        };
        let regions = Arc::new(Regions::new());
        let driver = open(&target, &regions);
        let disk = threads.disk("disk", driver, regions, QueueConfig::default()).unwrap();
        Served { directory, threads, disk }
    }

    /// Makes a disk of a new file `disk.img` of this many bytes, which need not be whole sectors.
    pub fn of_any_size(test: &str, bytes: u64, iothreads: usize) -> Served {
        let (directory, threads) = begin(test, iothreads);
        let image = directory.join("disk.img");
        fs::File::create(&image).unwrap().set_len(bytes).unwrap();
        let regions = Arc::new(Regions::new());
        let options = FileOptions { any_size: true, ..FileOptions::default() };
        let (driver, _) = File::open(&image, &options, Arc::clone(&regions)).unwrap();
        let disk = threads.disk("disk", Arc::new(driver), regions, QueueConfig::default()).unwrap();
        Served { directory, threads, disk }
    }

    /// Makes a stripe over targets. A target of digits only is a new file of that many bytes, `0.img` in the directory and so on.
    pub fn striped(test: &str, targets: &[&str], chunk: u64, config: QueueConfig) -> Served {
        let (directory, threads) = begin(test, 2);
        let regions = Arc::new(Regions::new());
        let made = |(i, target): (usize, &&str)| match target.parse() {
            Ok(bytes) => {
                let image = directory.join(format!("{i}.img"));
                fs::File::create(&image).unwrap().set_len(bytes).unwrap();
                open(image.to_str().unwrap(), &regions)
            }
            Err(_) => open(target, &regions),
        };
        let drivers: Vec<_> = targets.iter().enumerate().map(made).collect();
        let stripes: Vec<_> = drivers.iter().map(|d| Stripe { start: Sector(0), nr_sectors: d.capacity().0 }).collect();
        let map = StripeMap::new(chunk, 512, &stripes).unwrap();
        let disk = threads.striped("disk", map, drivers, regions, config).unwrap();
        Served { directory, threads, disk }
    }

    /// Returns the disk of an NBD export, for struct updates: `d` at a Unix socket, on all IOThreads.
    pub fn nbd_disk(&self) -> NbdDisk {
        NbdDisk {
            disk: Arc::clone(&self.disk),
            name: "d".into(),
            label: "d".into(),
            description: String::new(),
            read_only: false,
            discard: true,
            write_through: false,
            geometry: Geometry::default(),
            iothreads: (0..self.threads.len()).collect(),
        }
    }

    /// Returns the options of a server of this disk at `nbd.sock` in its directory, for struct updates.
    pub fn nbd_options(&self, disk: NbdDisk) -> NbdOptions {
        NbdOptions {
            address: Address::Unix(self.directory.join("nbd.sock")),
            default: Some(disk.name.clone()),
            disks: vec![disk],
            socket_mode: None,
            max_connections: 256,
            tls: None,
        }
    }
}

/// Makes a directory and IOThreads.
fn begin(test: &str, iothreads: usize) -> (PathBuf, Arc<IoThreads>) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let directory = std::env::temp_dir().join(format!("mqblk-{test}-{}-{number}", std::process::id()));
    fs::create_dir(&directory).unwrap();
    let option = |i| ThreadOptions { name: format!("io{i}"), cpus: Vec::new(), polling: Polling::default() };
    let threads = Arc::new(IoThreads::start(&(0..iothreads).map(option).collect::<Vec<_>>()).unwrap());
    (directory, threads)
}

fn open(target: &str, regions: &Arc<Regions>) -> Arc<dyn HostDriver> {
    let needs = Needs { write: true, direct: false, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
    TargetSpec::parse(target).unwrap().open(&needs, Arc::clone(regions)).unwrap().driver
}

/// Checks that nothing of a disk is in use after its exports have ended.
#[track_caller]
pub fn check_drained(disk: &ServedDisk) {
    for member in disk.members() {
        member.queue.begin_freeze();
        assert!(member.queue.is_drained(), "a tag is still in use");
    }
    assert_eq!(disk.stats().in_flight, 0);
}

/// Runs a client for at most a minute.
pub fn try_run(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60").arg(program).args(arguments).env("LC_ALL", "C");
    command.output().unwrap_or_else(|e| panic!("cannot run {program} under timeout: {e}"))
}

/// Does the same with a client that must succeed. Returns its output.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = try_run(program, arguments);
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{program} {arguments:?}: {status}\n{stdout}\n{stderr}");
    stdout.into_owned()
}

/// Returns the bytes of an NBD request.
pub fn request(kind: u16, cookie: u64, offset: u64, length: u64) -> Vec<u8> {
    RequestHeader { flags: 0, kind, cookie, offset, length }.to_compact().unwrap().to_vec()
}

/// Returns bytes that depend on their offset.
pub fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
}

/// Returns the options of an export with one virtqueue on the first IOThread and no socket yet, for struct updates.
pub fn vhost_options() -> ExportOptions {
    ExportOptions {
        name: "export".into(),
        socket: PathBuf::new(),
        socket_mode: None,
        mapping: vec![0],
        read_only: false,
        geometry: Geometry::default(),
        write_through: false,
        allow_file_memory: false,
        discard: true,
        serial: "mqblk-1".into(),
        queue_size: 256,
    }
}
