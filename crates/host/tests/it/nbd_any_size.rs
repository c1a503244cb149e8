// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Images that end within a sector, over NBD: random byte ranges against a model, and requests across the end.

use crate::serving;

use host::export::nbd::{NbdDisk, NbdExport};
use host::nbd::wire::{NbdError, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, command};
use host::serve::geometry::Geometry;
use serving::{Served, check_drained, request};
use sim::rng::Rng;
use std::fs;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const SIZES: [usize; 4] = [1, 511, 513, 4097];

/// A client with simple replies and one request at a time.
struct Client {
    stream: UnixStream,
    size: u64,
    cookie: u64,
}

impl Client {
    /// Connects to the server in this directory.
    fn new(directory: &Path) -> Client {
        let mut stream = UnixStream::connect(directory.join("nbd.sock")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        // The client flags, and the option that names the export.
        let option = [&3u32.to_be_bytes()[..], b"IHAVEOPT", &1u32.to_be_bytes(), &1u32.to_be_bytes(), b"d"].concat();
        stream.write_all(&option).unwrap();
        let mut size = [0; 8];
        stream.read_exact(&mut size).unwrap();
        stream.read_exact(&mut [0; 2]).unwrap();
        Client { stream, size: u64::from_be_bytes(size), cookie: 0 }
    }

    /// Returns the data of a read, or the error.
    fn ask(&mut self, kind: u16, at: Range<usize>, data: &[u8]) -> Result<Vec<u8>, u32> {
        self.cookie += 1;
        let header = request(kind, self.cookie, at.start as u64, at.len() as u64);
        self.stream.write_all(&[&header[..], data].concat()).unwrap();
        let mut reply = [0; SIMPLE_REPLY_BYTES];
        self.stream.read_exact(&mut reply).unwrap();
        let number = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().unwrap());
        assert_eq!((number(0), u64::from(number(8)) << 32 | u64::from(number(12))), (SIMPLE_REPLY_MAGIC, self.cookie));
        if number(4) != 0 {
            return Err(number(4));
        }
        let mut read = vec![0; if kind == command::READ { at.len() } else { 0 }];
        self.stream.read_exact(&mut read).unwrap();
        Ok(read)
    }

    /// Does random I/O to its own bytes. Returns what they are in the end.
    fn play(&mut self, own: Range<usize>, seed: u64) -> Vec<u8> {
        let mut rng = Rng::new(seed);
        let mut model = self.ask(command::READ, own.clone(), &[]).unwrap();
        for round in 0..300 {
            let from = rng.below(own.len() as u64) as usize;
            let to = from + 1 + rng.below((own.len() - from) as u64) as usize;
            let at = own.start + from..own.start + to;
            match rng.below(8) {
                0..=3 => {
                    let fill = rng.bytes(to - from);
                    self.ask(command::WRITE, at, &fill).unwrap();
                    model[from..to].copy_from_slice(&fill);
                }
                4 => {
                    self.ask(command::WRITE_ZEROES, at, &[]).unwrap();
                    model[from..to].fill(0);
                }
                5 => {
                    self.ask(command::TRIM, at.clone(), &[]).unwrap();
                    let now = self.ask(command::READ, at, &[]).unwrap();
                    assert!(now.iter().zip(&model[from..to]).all(|(is, was)| is == was || *is == 0), "round {round}");
                    model[from..to].copy_from_slice(&now);
                }
                6 => drop(self.ask(command::FLUSH, 0..0, &[]).unwrap()),
                _ => {}
            }
            let all = self.ask(command::READ, own.clone(), &[]).unwrap();
            assert!(all == model, "seed {seed}, round {round}");
        }
        model
    }
}

fn serve(bytes: usize) -> (Served, NbdExport) {
    let served = Served::of_any_size("nbd-any-size", bytes as u64, 2);
    let export = NbdExport::start(&served.threads, served.nbd_options(served.nbd_disk())).unwrap();
    (served, export)
}

/// Two clients change their own parts of the image, and so of the same sectors.
#[test]
fn neighbours_change_only_their_bytes_up_to_the_end() {
    for (size, seed) in SIZES.into_iter().zip(1..) {
        let (served, export) = serve(size);
        let image = served.directory.join("disk.img");
        let middle = size - size.min(200) / 2;
        let parts: Vec<_> = [0..middle, middle..size].into_iter().filter(|part| !part.is_empty()).collect();
        let play = |part: Range<usize>| {
            let seed = 0x5eed_0020 + seed + part.start as u64;
            Client::new(&served.directory).play(part, seed)
        };
        let expected: Vec<u8> = std::thread::scope(|scope| {
            let play = &play;
            let all: Vec<_> = parts.into_iter().map(|part| scope.spawn(move || play(part))).collect();
            all.into_iter().flat_map(|client| client.join().unwrap()).collect()
        });
        assert!(fs::read(&image).unwrap() == expected, "size {size}");
        drop(export);
        check_drained(&served.disk);
        fs::remove_dir_all(&served.directory).unwrap();
    }
}

#[test]
fn requests_across_an_end_within_a_sector_fail() {
    for size in SIZES {
        let (served, export) = serve(size);
        let mut client = Client::new(&served.directory);
        assert_eq!(client.size, size as u64);
        let across = size - 1..size + 1;
        assert_eq!(client.ask(command::READ, across.clone(), &[]), Err(NbdError::Inval as u32));
        assert_eq!(client.ask(command::WRITE, across.clone(), &[9; 2]), Err(NbdError::NoSpc as u32));
        assert_eq!(client.ask(command::WRITE_ZEROES, across.clone(), &[]), Err(NbdError::NoSpc as u32));
        assert_eq!(client.ask(command::TRIM, across, &[]), Err(NbdError::Inval as u32));
        client.ask(command::WRITE, size - 1..size, &[7]).unwrap();
        assert_eq!(client.ask(command::READ, size - 1..size, &[]), Ok(vec![7]));
        let mut expected = vec![0; size];
        expected[size - 1] = 7;
        assert!(fs::read(served.directory.join("disk.img")).unwrap() == expected, "size {size}");
        drop((client, export));
        check_drained(&served.disk);
        fs::remove_dir_all(&served.directory).unwrap();
    }
}

/// A client that connected before sees the new size in its requests, one that connects later in its handshake.
#[test]
fn an_image_gets_another_size_under_its_clients() {
    let (served, export) = serve(513);
    let mut client = Client::new(&served.directory);
    client.ask(command::WRITE, 0..513, &[5; 513]).unwrap();
    for (size, shrink) in [(1000, false), (1024, false), (4097, false), (700, true)] {
        assert_eq!(served.disk.resize(Some(size), shrink, None).unwrap(), size);
        export.resized().unwrap();
        let size = size as usize;
        assert_eq!(Client::new(&served.directory).size, size as u64);
        let mut expected = vec![0; size];
        expected[..513].fill(5);
        assert!(client.ask(command::READ, 0..size, &[]) == Ok(expected), "size {size}");
        assert!(client.ask(command::READ, 0..size + 1, &[]).is_err());
    }
    drop((client, export));
    check_drained(&served.disk);
    fs::remove_dir_all(&served.directory).unwrap();
}

/// A resize used to accept a size that the server then refused for its export with blocks; all disks of the server kept their old size.
#[test]
fn an_export_that_sets_its_block_has_whole_blocks() {
    let served = Served::of_any_size("nbd-any-size-block", 1000, 1);
    let start = || {
        let geometry = Geometry { logical: Some(512), physical: None };
        NbdExport::start(&served.threads, served.nbd_options(NbdDisk { geometry, ..served.nbd_disk() }))
    };
    let why = start().err().unwrap().to_string();
    assert!(why.contains("the disk has 1000 bytes, 488 more than whole blocks; leave it out"), "{why}");
    assert_eq!(served.disk.resize(Some(4096), false, None).unwrap(), 4096);
    let export = start().unwrap();
    let why = served.disk.resize(Some(4097), false, Some(512)).unwrap_err().to_string();
    assert!(why.contains("size=4097: must be a multiple of 512"), "{why}");
    let image = served.directory.join("disk.img");
    assert_eq!((served.disk.bytes(), fs::metadata(&image).unwrap().len()), (4096, 4096));
    // The size of the image, which changed by itself.
    fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(4097).unwrap();
    assert!(served.disk.resize(None, false, Some(512)).is_err());
    assert_eq!(served.disk.bytes(), 4096);
    assert_eq!(served.disk.resize(Some(4608), false, Some(512)).unwrap(), 4608);
    export.resized().unwrap();
    assert_eq!(Client::new(&served.directory).size, 4608);
    drop(export);
    check_drained(&served.disk);
    fs::remove_dir_all(&served.directory).unwrap();
}
