// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NBD on IOThreads with existing clients (nbdinfo, nbdcopy, qemu-io, fio) and with sockets that violate the protocol. Servers
//! run in this process, on sockets in their own directory.

use crate::own_process;
use crate::serving;
use crate::waiting::{LONG, POLL, until};

use host::export::nbd::{Address, NbdDisk, NbdExport, NbdOptions};
use host::nbd::wire::{RequestHeader, command};
use host::serve::geometry::Geometry;
use host::serve::{IoThreads, ServedDisk};
use serving::{Served, pattern, request, run, try_run};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const MIB: usize = 1 << 20;

/// A daemon with one disk and one NBD server.
struct Server {
    directory: PathBuf,
    disk: Arc<ServedDisk>,
    threads: Arc<IoThreads>,
    export: Option<NbdExport>,
}

impl Server {
    fn new(target: &str, iothreads: usize) -> Server {
        Server::with(target, iothreads, false, false)
    }

    fn with(target: &str, iothreads: usize, tcp: bool, read_only: bool) -> Server {
        let Served { directory, threads, disk } = Served::new("nbd-serve", target, iothreads);
        let address =
            if tcp { Address::Tcp("127.0.0.1:0".parse().unwrap()) } else { Address::Unix(directory.join("nbd.sock")) };
        let mut server = Server { directory, disk, threads, export: None };
        server.export = Some(server.start(address, read_only).unwrap());
        server
    }

    fn start(&self, address: Address, read_only: bool) -> host::error::Result<NbdExport> {
        let disk = Arc::clone(&self.disk);
        let iothreads = (0..self.threads.len()).collect();
        let (name, label, description) = ("d".into(), "d".into(), "the disk".into());
        let disk = NbdDisk {
            disk,
            name,
            label,
            description,
            read_only,
            discard: true,
            write_through: false,
            geometry: Geometry::default(),
            iothreads,
        };
        let default = Some("d".into());
        let options =
            NbdOptions { address, disks: vec![disk], default, socket_mode: None, max_connections: 256, tls: None };
        NbdExport::start(&self.threads, options)
    }

    fn export(&self) -> &NbdExport {
        self.export.as_ref().expect("it was started")
    }

    fn uri(&self) -> String {
        match self.export().address() {
            Address::Unix(path) => format!("nbd+unix:///d?socket={}", path.display()),
            Address::Tcp(at) => format!("nbd://{at}/d"),
        }
    }

    /// Connects with the shortest possible handshake, with simple replies.
    fn raw(&self) -> UnixStream {
        let Address::Unix(path) = self.export().address() else { panic!("a Unix socket") };
        let mut stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        let option = [&3u32.to_be_bytes()[..], b"IHAVEOPT", &1u32.to_be_bytes(), &1u32.to_be_bytes(), b"d"].concat();
        stream.write_all(&option).unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
        stream
    }

    /// Waits until no client is connected.
    fn wait_empty(&self) {
        until("no client is connected", || self.export().connections() == 0);
    }

    /// Ends the export. Then nothing of the disk may be in use.
    fn check_idle(mut self) {
        self.export = None;
        serving::check_drained(&self.disk);
        assert!(!fs::exists(self.directory.join("nbd.sock")).unwrap(), "the socket is left behind");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.export = None;
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The client is told before its export is confirmed, and one more may come when a place is free.
#[test]
fn a_client_beyond_the_limit_is_told_so() {
    let server = Server::new("ram:size=16m", 1);
    let disk = || NbdDisk {
        disk: Arc::clone(&server.disk),
        name: "d".into(),
        label: "d".into(),
        description: "the disk".into(),
        read_only: false,
        discard: true,
        write_through: false,
        geometry: Geometry::default(),
        iothreads: vec![0],
    };
    drop(server.export().update(vec![disk()], Some("d"), 1).unwrap());
    let first = server.raw();
    let refused = try_run("nbdinfo", &["--size", &server.uri()]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("server policy prevents NBD_OPT_GO"), "{said}");
    drop(first);
    server.wait_empty();
    assert_eq!(run("nbdinfo", &["--size", &server.uri()]).trim(), "16777216");
    server.check_idle();
}

/// Clients that connect and send nothing, three times as many as there are places for handshakes, do not keep another client away.
#[test]
fn silent_clients_keep_no_other_away() {
    let server = Server::new("ram:size=16m", 1);
    let Address::Unix(path) = server.export().address() else { panic!("a Unix socket") };
    let silent: Vec<_> = (0..100).map(|_| UnixStream::connect(path).unwrap()).collect();
    assert_eq!(run("nbdinfo", &["--size", &server.uri()]).trim(), "16777216");
    // Those that had to leave see the end.
    let ends = silent.iter().filter(|s| {
        s.set_nonblocking(true).unwrap();
        let mut all = Vec::new();
        (&**s).read_to_end(&mut all).is_ok()
    });
    assert!(ends.count() >= 100 - 32, "they hold more than all places");
    server.check_idle();
}

#[test]
fn nbdinfo_sees_the_disk() {
    for tcp in [false, true] {
        let server = Server::with("ram:size=16m", 2, tcp, false);
        let told = run("nbdinfo", &["--json", &server.uri()]);
        for part in ["\"export-size\": 16777216", "\"description\": \"the disk\"", "\"structured\": true"] {
            assert!(told.contains(part), "'{part}' is missing in {told}");
        }
        for can in ["multi-conn", "flush", "fua", "trim", "zero", "df"] {
            run("nbdinfo", &["--can", can, &server.uri()]);
        }
        let map = run("nbdinfo", &["--map", &server.uri()]);
        assert!(map.contains("data"), "{map}");
        server.check_idle();
    }
    let shut = Server::with("ram:size=16m", 1, false, true);
    run("nbdinfo", &["--is", "read-only", &shut.uri()]);
}

#[test]
fn nbdcopy_copies_both_ways_on_several_connections() {
    for (target, tcp) in [("ram:size=64m", false), ("file", false), ("ram:size=64m", true)] {
        let server = Server::with(target, 2, tcp, false);
        let data = pattern(64 * MIB, 7);
        let (there, back) = (server.directory.join("there"), server.directory.join("back"));
        fs::write(&there, &data).unwrap();
        fs::write(&back, []).unwrap();
        run("nbdcopy", &["--flush", there.to_str().unwrap(), &server.uri()]);
        run("nbdcopy", &[&server.uri(), back.to_str().unwrap()]);
        assert!(fs::read(&back).unwrap() == data, "{target}: the way back differs");
        // The longest possible requests.
        fs::write(&back, []).unwrap();
        let longest = "--request-size=33554432";
        run("nbdcopy", &[longest, there.to_str().unwrap(), &server.uri()]);
        run("nbdcopy", &[longest, &server.uri(), back.to_str().unwrap()]);
        assert!(fs::read(&back).unwrap() == data, "{target}: with long requests the way back differs");
        server.wait_empty();
        server.check_idle();
    }
}

#[test]
fn qemu_io_writes_zeroes_discards_and_flushes() {
    for target in ["ram:size=64m", "file"] {
        let server = Server::new(target, 1);
        let io = |commands: &[&str]| {
            let mut arguments = vec!["-f", "raw", "-d", "unmap"];
            commands.iter().for_each(|c| arguments.extend(["-c", c]));
            let uri = server.uri();
            arguments.push(&uri);
            let told = run("qemu-io", &arguments);
            assert!(!told.contains("failed") && !told.contains("error"), "{target}: {told}");
        };
        io(&["write -P 0x5a 0 1M", "read -P 0x5a 0 1M", "write -P 0xa5 300k 3000", "read -P 0xa5 300k 3000"]);
        io(&["write -f -P 1 2M 64k", "flush", "read -P 1 2M 64k"]);
        io(&[
            "write -z 0 64k",
            "read -P 0 0 64k",
            "read -P 0x5a 64k 64k",
            "write -z -u 128k 64k",
            "read -P 0 128k 64k",
        ]);
        io(&["write -z -f 512k 64k", "read -P 0 512k 64k", "discard 256k 16k"]);
        io(&["aio_write -P 7 3M 512k", "aio_read -P 0x5a 768k 256k", "aio_flush", "read -P 7 3M 512k"]);
        io(&["write -P 9 8M 32M", "read -P 9 8M 32M"]);
        server.check_idle();
    }
}

#[test]
fn fio_verifies_what_it_wrote_at_depth_32() {
    for (target, jobs) in [("ram:size=64m", 1), ("file", 1), ("ram:size=64m", 4), ("file", 3)] {
        let server = Server::new(target, 2);
        let uri = format!("--uri={}", server.uri());
        let jobs = format!("--numjobs={jobs}");
        let fixed = ["--name=j", "--ioengine=nbd", "--rw=randrw", "--bsrange=512-256k", "--size=16m", "--iodepth=32"];
        let more = [
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--randseed=4711",
            "--fsync=64",
            "--offset_increment=16m",
        ];
        let told = run("fio", &[&fixed[..], &more, &[&uri, &jobs]].concat());
        assert!(told.contains("err= 0"), "{told}");
        server.wait_empty();
        server.check_idle();
    }
}

/// The client of the benches: it sends 32 requests at once, and answers all replies that one call has received with one send.
#[test]
fn a_client_that_sends_in_batches_is_answered() {
    let server = Server::new("ram:size=16m", 2);
    let Address::Unix(path) = server.export().address() else { panic!("a Unix socket") };
    let socket = path.to_str().unwrap();
    for (write, connections, iodepth, block) in [(false, 1, 32, 4096), (true, 2, 32, 4096), (false, 2, 128, 512)] {
        let runtime = Duration::from_millis(100);
        let options = vuclient::NbdOptions { export: "d".into(), connections, iodepth, block, write, runtime };
        let report = vuclient::nbd(socket, &options).unwrap();
        assert!(report.requests >= u64::from(iodepth * connections) && report.receives > 0, "{report:?}");
    }
    server.wait_empty();
    let whole = vuclient::NbdOptions { block: 16 << 20, iodepth: 1, ..vuclient_defaults() };
    assert!(vuclient::nbd(socket, &vuclient::NbdOptions { export: "none".into(), ..whole.clone() }).is_err());
    let e = vuclient::nbd(socket, &vuclient::NbdOptions { block: 32 << 20, ..whole }).unwrap_err().to_string();
    assert!(e.contains("smaller than a block"), "{e}");
    server.wait_empty();
    server.check_idle();
}

fn vuclient_defaults() -> vuclient::NbdOptions {
    let runtime = Duration::from_millis(50);
    vuclient::NbdOptions { export: "d".into(), connections: 1, iodepth: 1, block: 512, write: false, runtime }
}

/// A client may split requests anywhere. Invalid requests are rejected, and the client continues.
#[test]
fn a_raw_client_may_cut_its_bytes_anywhere() {
    let server = Server::new("ram:size=16m", 1);
    let mut stream = server.raw();
    let data = pattern(100_864, 3);
    let mut bytes = [&request(command::WRITE, 1, 512, data.len() as u64)[..], &data].concat();
    bytes.extend(request(command::READ, 2, 512, 0));
    bytes.extend([&request(command::WRITE, 3, 16 << 20, 512)[..], &[0; 512]].concat());
    for piece in bytes.chunks(9973) {
        stream.write_all(piece).unwrap();
    }
    let mut replies = std::collections::BTreeMap::new();
    for _ in 0..3 {
        let mut reply = [0; 16];
        stream.read_exact(&mut reply).unwrap();
        replies.insert(reply[15], reply[7]);
    }
    assert_eq!(replies.into_iter().collect::<Vec<_>>(), [(1, 0), (2, 22), (3, 28)]);
    stream.write_all(&request(command::READ, 4, 512, data.len() as u64)).unwrap();
    let mut back = vec![0; 16 + data.len()];
    stream.read_exact(&mut back).unwrap();
    assert!(back[16..] == data);
    // Requests before the disconnect are answered, although nothing more arrives.
    stream.write_all(&[request(command::READ, 5, 0, 512), request(command::DISC, 6, 0, 0)].concat()).unwrap();
    back.clear();
    stream.read_to_end(&mut back).unwrap();
    assert_eq!(back.len(), 16 + 512);
    server.wait_empty();
    server.check_idle();
}

/// If a client sends many requests and reads no replies, the server stops receiving from it. No other client has to wait.
#[test]
fn a_client_that_takes_no_replies_stops_only_itself() {
    let server = Server::new("ram:size=16m", 1);
    let mut stream = server.raw();
    stream.set_nonblocking(true).unwrap();
    let reads = request(command::READ, 1, 0, 1 << 20).repeat(1000);
    let mut sent = 0;
    let until = std::time::Instant::now() + Duration::from_secs(1);
    while sent < 64 << 20 && std::time::Instant::now() < until {
        match stream.write(&reads) {
            Ok(n) => sent += n,
            Err(e) => {
                assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock);
                std::thread::sleep(POLL);
            }
        }
    }
    assert!(sent < 8 << 20, "{sent} bytes of requests were received");
    run("nbdinfo", &["--map", &server.uri()]);
    run("qemu-io", &["-f", "raw", "-c", "write -P 3 0 2M", "-c", "read -P 3 0 2M", &server.uri()]);
    // The server ends while the client is connected.
    server.check_idle();
    drop(stream);
}

#[test]
fn clients_that_vanish_leave_nothing_behind() {
    if !own_process::is_alone("nbd_serve::clients_that_vanish_leave_nothing_behind", &[]) {
        return;
    }
    for target in ["ram:size=16m", "file"] {
        let server = Server::new(target, 2);
        let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
        let vanish = |n: u64| {
            let mut stream = server.raw();
            let bytes = match n % 5 {
                0 => request(command::READ, 1, 0, 1 << 20).repeat(100),
                1 => [&request(command::WRITE, 1, 0, 1 << 20)[..], &[0x77; 70_000]].concat(),
                2 => request(command::READ, 1, 0, 4096)[..11].to_vec(),
                3 => b"no request at all, and long enough".to_vec(),
                _ => [request(command::FLUSH, 1, 0, 0), request(command::TRIM, 2, 0, 1 << 20)].concat(),
            };
            stream.write_all(&bytes).unwrap();
        };
        (0..50).for_each(vanish);
        server.wait_empty();
        let (before, regions) = (descriptors(), server.disk.regions.count());
        for n in 0..50 {
            vanish(n);
            server.wait_empty();
        }
        let after = descriptors();
        assert!(after < before + 40, "{before} descriptors before, {after} after");
        let told = run("qemu-io", &["-f", "raw", "-c", "read -P 0 0 1M", &server.uri()]);
        assert!(!told.contains("failed"), "a write that did not arrive was begun: {told}");
        // Memory is reused. A client may connect while the one before it disconnects, and have its own region for long requests.
        let used = server.disk.regions.count();
        assert!(used <= regions + 2, "{regions} regions after the first 50 clients, {used} after the second");
        server.check_idle();
    }
}

/// Reads a simple reply without data. Returns its error number.
fn reply(stream: &mut UnixStream) -> u32 {
    let mut reply = [0; 16];
    stream.read_exact(&mut reply).unwrap();
    u32::from_be_bytes(reply[4..8].try_into().unwrap())
}

/// Disconnecting clients of a slow disk, and the end of a server, wait only for requests in flight.
#[test]
fn what_is_in_flight_at_a_slow_disk_ends_first() {
    let server = Server::new("model:over=ram,size=16m,lat_us=30000,parallel=8", 2);
    for n in 0..6u64 {
        let mut stream = server.raw();
        let bytes = match n % 3 {
            0 => request(command::READ, 1, 0, 128 << 10).repeat(60),
            1 => [&request(command::WRITE, 1, 0, 4096)[..], &[1; 4096]].concat().repeat(60),
            _ => [request(command::TRIM, 1, 0, 1 << 20), request(command::FLUSH, 2, 0, 0)].concat(),
        };
        stream.write_all(&bytes).unwrap();
    }
    server.wait_empty();
    let mut stream = server.raw();
    stream.write_all(&request(command::READ, 1, 0, 4096).repeat(20)).unwrap();
    // The client's requests are in flight now.
    stream.read_exact(&mut [0; 16]).unwrap();
    server.check_idle();
}

/// A request that is longer than one bio, with a flush after it, gets one answer when all is done.
#[test]
fn zeroes_and_trims_may_be_longer_than_a_bio() {
    let server = Server::new("ram:size=4g", 1);
    let mut stream = server.raw();
    for offset in [0, 1 << 30, (3 << 30) - 4096] {
        stream.write_all(&[&request(command::WRITE, 1, offset, 4096)[..], &[7; 4096]].concat()).unwrap();
        assert_eq!(reply(&mut stream), 0);
    }
    let fua = RequestHeader { flags: 1, kind: command::WRITE_ZEROES, cookie: 2, offset: 0, length: 3 << 30 };
    stream.write_all(&fua.to_compact().unwrap()).unwrap();
    assert_eq!(reply(&mut stream), 0);
    stream
        .write_all(
            &[request(command::TRIM, 3, 0, u64::from(u32::MAX) & !511), request(command::FLUSH, 4, 0, 0)].concat(),
        )
        .unwrap();
    assert_eq!((reply(&mut stream), reply(&mut stream)), (0, 0));
    for offset in [0, 1 << 30, (3 << 30) - 4096] {
        stream.write_all(&request(command::READ, 5, offset, 4096)).unwrap();
        assert_eq!(reply(&mut stream), 0);
        let mut data = [1; 4096];
        stream.read_exact(&mut data).unwrap();
        assert_eq!(data, [0; 4096], "at {offset}");
    }
    drop(stream);
    server.check_idle();
}

/// A failed I/O is reported without data, and the client continues.
#[test]
fn a_failing_disk_is_told_of() {
    let server = Server::new("file", 1);
    let image = fs::OpenOptions::new().write(true).open(server.directory.join("disk.img")).unwrap();
    image.set_len(1 << 20).unwrap();
    let mut stream = server.raw();
    for length in [4096, 1 << 20] {
        stream.write_all(&request(command::READ, 1, 32 << 20, length)).unwrap();
        assert_eq!(reply(&mut stream), 5);
    }
    stream.write_all(&request(command::READ, 1, 0, 512)).unwrap();
    assert_eq!(reply(&mut stream), 0);
    stream.read_exact(&mut [0; 512]).unwrap();
    drop(stream);
    server.check_idle();
}

#[test]
fn a_socket_in_use_is_left_alone() {
    let server = Server::new("ram:size=16m", 1);
    let refusal = server.start(server.export().address().clone(), false).err().unwrap().to_string();
    assert!(refusal.contains("is in use"), "{refusal}");
    run("nbdinfo", &[&server.uri()]);
    let stale = server.directory.join("stale.sock");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    drop(server.start(Address::Unix(stale.clone()), false).unwrap());
    assert!(!fs::exists(&stale).unwrap());
}

/// Clients in the middle of their handshake do not prevent a server from ending.
#[test]
fn a_server_ends_under_silent_clients() {
    let server = Server::new("ram:size=16m", 1);
    let Address::Unix(path) = server.export().address().clone() else { panic!("a Unix socket") };
    let silent: Vec<UnixStream> = (0..40).map(|_| UnixStream::connect(&path).unwrap()).collect();
    server.check_idle();
    drop(silent);
}

/// Once, each thread that waited for a disconnected client waited until its socket had no holder. The other waiting threads counted as
/// holders, too, and they did not signal their end.
#[test]
fn a_client_that_many_let_go_at_once_is_gone_for_all_of_them() {
    let mut server = Server::new("null:size=1m", 1);
    let _client = server.raw();
    let export = Arc::new(server.export.take().unwrap());
    until("the client is served", || export.connections() > 0);
    let (done, all_done) = std::sync::mpsc::channel();
    for _ in 0..8 {
        let (export, done) = (Arc::clone(&export), done.clone());
        std::thread::spawn(move || {
            export.let_go("d");
            done.send(()).unwrap();
        });
    }
    for there in 0..8 {
        assert!(all_done.recv_timeout(LONG).is_ok(), "only {there} of 8 came back");
    }
    assert_eq!(export.connections(), 0);
}
