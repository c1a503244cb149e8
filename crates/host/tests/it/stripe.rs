// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A striped disk served to real clients: the place of data in its files, and the effect of its members' errors, flushes and settings on
//! users of the whole disk.

use crate::common;
use crate::serving;

use blk::bio::Op;
use blk::settings::QueueConfig;
use common::peers::Peer;
use host::export::nbd::NbdExport;
use host::export::vhost::{ExportOptions, VhostExport};
use host::serve::{Member, ServedDisk};
use serving::{Served, check_drained, run, vhost_options};
use std::fs;
use std::path::PathBuf;
use vuclient::{VerifyOptions, verify};

const CHUNK: u64 = 64 << 10;

struct Server {
    served: Served,
    export: NbdExport,
}

impl Server {
    fn new(targets: &[&str], config: QueueConfig) -> Server {
        let served = Served::striped("stripe", targets, CHUNK, config);
        let export = NbdExport::start(&served.threads, served.nbd_options(served.nbd_disk())).unwrap();
        Server { served, export }
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///d?socket={}", self.path("nbd.sock"))
    }

    fn path(&self, file: &str) -> String {
        self.served.directory.join(file).to_str().unwrap().to_owned()
    }

    fn disk(&self) -> &ServedDisk {
        &self.served.disk
    }

    fn python(&self, script: &str) {
        let before = format!(
            "import nbd, errno\ndef connect():\n    h = nbd.NBD()\n    h.set_strict_mode(0)\n    \
             h.add_meta_context('base:allocation')\n    h.connect_uri({:?})\n    return h\n\
             def fails(number, f):\n    try:\n        f()\n    except nbd.Error as e:\n        \
             assert e.errnum == number, e\n    else:\n        raise AssertionError('did not fail')\nh = connect()\n",
            self.uri()
        );
        run("/usr/bin/python3", &["-c", &(before + script)]);
    }

    /// Ends the export, checks that nothing is in flight, and returns the contents of the files.
    fn end(self) -> Vec<Vec<u8>> {
        let Server { served, export } = self;
        drop(export);
        check_drained(&served.disk);
        let images = (0..).map(|i| served.directory.join(format!("{i}.img"))).take_while(|path| path.exists());
        let contents = images.map(|path| fs::read(path).unwrap()).collect();
        fs::remove_dir_all(&served.directory).unwrap();
        contents
    }
}

/// Returns the bytes of a striped disk, assembled from its files chunk by chunk.
fn joined(files: &[Vec<u8>], bytes: u64) -> Vec<u8> {
    let (n, chunk) = (files.len() as u64, CHUNK as usize);
    let at = |c: u64| (c / n * CHUNK) as usize;
    (0..bytes / CHUNK).flat_map(|c| files[(c % n) as usize][at(c)..at(c) + chunk].to_vec()).collect()
}

/// Returns random bytes.
fn noise(bytes: u64) -> Vec<u8> {
    let word = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i >> 7).to_le_bytes();
    (0..bytes / 8).flat_map(word).collect()
}

#[test]
fn chunks_lie_in_the_files_in_turn_and_nothing_lies_beyond() {
    // Four files, then three, of different lengths. Space beyond the chunks of the shortest one is not used.
    for sizes in [&["8388608", "8454144", "8392704", "9437184"][..], &["3145728", "3149824", "4194304"]] {
        let server = Server::new(sizes, QueueConfig::default());
        let least: u64 = sizes.iter().map(|s| s.parse::<u64>().unwrap()).min().unwrap();
        let bytes = least * sizes.len() as u64;
        assert_eq!(server.disk().capacity().0 << 9, bytes);
        let mut source = noise(bytes);
        let (from, back) = (server.path("source"), server.path("back"));
        fs::write(&from, &source).unwrap();
        run("nbdcopy", &["--flush", &from, &server.uri()]);
        // Not aligned to chunks: across one boundary, across rows, and within a chunk.
        let one = |word: &str, at: usize, len: usize| vec!["-c".to_owned(), format!("{word} {at} {len}")];
        let mut edit = Vec::new();
        for (at, len, byte) in [(61440, 8192, 1u8), (1 << 19, 1 << 20, 2), (200 << 10, 512, 3), (2 << 20, 300 << 10, 4)]
        {
            edit.extend(one(&format!("write -P {byte}"), at + 512, len));
            edit.extend(one(&format!("read -P {byte}"), at + 512, len));
            source[at + 512..at + 512 + len].fill(byte);
        }
        for (at, len) in [(900 << 10, 200 << 10), (2500 << 10, 4096)] {
            edit.extend(one("write -z", at + 512, len));
            source[at + 512..at + 512 + len].fill(0);
        }
        let edit: Vec<&str> = edit.iter().map(String::as_str).collect();
        let uri = server.uri();
        run("qemu-io", &[&["-f", "raw"][..], &edit, &["-c", "flush", &uri]].concat());
        run("nbdcopy", &[&server.uri(), &back]);
        assert!(fs::read(&back).unwrap() == source, "read back over {} files", sizes.len());
        let files = server.end();
        assert!(joined(&files, bytes) == source, "the layout of {} files", sizes.len());
        for (i, file) in files.iter().enumerate() {
            assert!(file[least as usize..].iter().all(|b| *b == 0), "file {i} was written beyond its part");
        }
    }
}

#[test]
fn fio_finds_what_it_wrote() {
    let server =
        Server::new(&["8388608"; 4], QueueConfig { scheduler: Some("mq-deadline".into()), ..QueueConfig::default() });
    let uri = format!("--uri={}", server.uri());
    let fixed = ["--name=j", "--ioengine=nbd", &uri, "--verify=crc32c", "--randseed=7", "--size=24m"];
    // I/Os longer and shorter than a chunk, and across its boundaries.
    for more in [["--rw=randwrite", "--bsrange=4k-200k", "--iodepth=16"], ["--rw=write", "--bs=1m", "--iodepth=4"]] {
        run("fio", &[&fixed[..], &more, &["--fsync=32", "--bs_unaligned=0"]].concat());
    }
    let used = |m: &Member| m.queue.stats().op(Op::Write).sectors;
    assert!(server.disk().members().iter().all(|m| used(m) > 4096), "a member has hardly any part in it");
    server.end();
}

#[test]
fn a_flush_and_a_discard_reach_every_member() {
    let server = Server::new(&["8388608"; 4], QueueConfig::default());
    let count = |server: &Server, op: Op| -> Vec<u64> {
        server.disk().members().iter().map(|m| m.queue.stats().op(op).ios).collect()
    };
    server.python("h.pwrite(b'x' * 4096, 0)\nh.flush()\n");
    assert_eq!(count(&server, Op::Flush), [1; 4]);
    assert_eq!(server.disk().stats().op(Op::Flush).ios, 4);
    server.python("h.trim(1 << 20, 32768)\n");
    assert_eq!(count(&server, Op::Discard), [1; 4], "one range of each");
    // 16 and a half chunks from the middle of the first one. Holes are not known, so all of it is data.
    server.python("assert h.pread(4096, 32768) == bytes(4096)\nassert h.pread(512, 0) == b'x' * 512\n");
    server.python(
        "told = []\nh.block_status(1 << 20, 0, lambda c, o, e, err: told.extend(e) and 0)\nassert told == [1 << 20, 0], told\n",
    );
    server.end();
}

#[test]
fn an_error_of_one_member_is_the_clients_and_the_rest_goes_on() {
    let bad = Peer::nbdkit(&["--filter=error", "memory", "8M", "error-pwrite=EIO", "error-pwrite-rate=100%"]);
    let full = Peer::nbdkit(&["--filter=error", "memory", "8M", "error-pwrite=ENOSPC", "error-pwrite-rate=100%"]);
    for (peer, error) in [(bad, "EIO"), (full, "ENOSPC")] {
        let server = Server::new(&["8388608", &peer.target(""), "8388608"], QueueConfig::default());
        server.python(&format!(
            "c = 65536\nh.pwrite(b'a' * c, 0)\nfails(errno.{error}, lambda: h.pwrite(b'b' * 512, c))\n\
             fails(errno.{error}, lambda: h.pwrite(b'c' * 3 * c, 3 * c))\nh.pwrite(b'd' * c, 2 * c)\n\
             assert h.pread(3 * c, 0) == b'a' * c + bytes(c) + b'd' * c\nh.flush()\n"
        ));
        assert!(server.disk().members()[1].queue.stats().errors > 0);
        assert_eq!(server.disk().stats().errors, server.disk().members()[1].queue.stats().errors);
        server.end();
    }
}

fn settings(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

#[test]
fn settings_are_those_of_all_members_or_of_none() {
    let one_queue = Peer::nbdkit(&["--filter=multi-conn", "memory", "8M", "multi-conn-mode=disable"]);
    // The last member can have only one hardware queue, the others any number.
    let server = Server::new(&["8388608", "null:size=8m", &one_queue.target("")], QueueConfig::default());
    let disk = server.disk();
    let schedulers = || disk.members().iter().map(|m| m.queue.scheduler()).collect::<Vec<_>>();
    disk.change(&settings(&[("scheduler", "bfq"), ("nr_requests", "32")])).unwrap();
    assert_eq!(schedulers(), ["bfq"; 3]);
    let before: Vec<_> = disk.members().iter().map(|m| m.queue.config()).collect();
    disk.change(&settings(&[("nr_hw_queues", "2"), ("scheduler", "kyber")])).unwrap_err();
    assert_eq!(schedulers(), ["bfq"; 3], "not the first two either");
    for (m, before) in disk.members().iter().zip(&before) {
        let now = m.queue.config();
        assert_eq!((now.nr_requests, now.nr_hw_queues), (before.nr_requests, before.nr_hw_queues));
    }
    let e = disk.resize(Some(1 << 20), true, None).unwrap_err().to_string();
    assert!(e.starts_with("disk 'disk' is striped over 3 targets and keeps its size;"), "{e}");
    disk.drain().unwrap();
    assert!(disk.members().iter().all(|m| m.queue.is_drained()));
    assert!(disk.resume());
    server.python("h.pwrite(b'x' * 4096, 0)\n");
    server.end();
}

/// Two virtqueues on two IOThreads, verified by an independent client, while the queues of all members are rebuilt again and again.
#[test]
fn a_guest_finds_what_it_wrote_while_settings_change() {
    let served = Served::striped("stripe-vhost", &["8388608"; 4], CHUNK, QueueConfig::default());
    let socket = served.directory.join("vhost.sock");
    let options = ExportOptions { socket: PathBuf::from(&socket), mapping: vec![0, 1], ..vhost_options() };
    let export = VhostExport::start(&served.threads, &served.disk, options).unwrap();
    let socket = socket.to_str().unwrap();
    let (disk, mut changes) = (&served.disk, 0);
    std::thread::scope(|s| {
        let client = s.spawn(|| {
            let options = VerifyOptions { queues: 2, iodepth: 8, requests: 3000, seed: 11, ..VerifyOptions::default() };
            verify(socket, &options)
        });
        let turns = [("none", "64"), ("mq-deadline", "32"), ("kyber", "256"), ("bfq", "64")];
        for (scheduler, nr_requests) in turns.into_iter().cycle() {
            if client.is_finished() {
                break;
            }
            disk.change(&settings(&[("scheduler", scheduler), ("nr_requests", nr_requests)])).unwrap();
            changes += 1;
        }
        let report = client.join().unwrap().unwrap();
        assert!(report.writes > 1000, "{report:?}");
    });
    assert!(changes > 0);
    assert!(disk.members().iter().all(|m| m.queue.stats().op(Op::Flush).ios > 0));
    drop(export);
    check_drained(disk);
    fs::remove_dir_all(&served.directory).unwrap();
}
