// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The NBD driver with independent servers: requests that they reject, delay, pause and fail, what remains when they are killed, and the
//! fate of requests when they return. Tests of all drivers are in `driver_conformance`.

use crate::common;
use crate::nbd_load;
use crate::serving;
use crate::waiting::{LONG, POLL};

use blk::bio::{Bio, DataRef, OpFlags};
use blk::driver::Driver;
use blk::id::Sector;
use blk::status::BlkStatus;
use common::peers::Peer;
use common::{DriverFixture, until};
use host::driver::HostDriver;
use host::driver::nbd::{self, Nbd};
use host::error::ErrorKind;
use host::export::nbd::{Address, NbdExport, NbdOptions};
use host::mem::Regions;
use nbd_load::{check_clean, fixture, goes_on, is_connected, open, prepared, run_while, survives_kills};
use serving::{Served, check_drained, run};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn nbdkit_killed_under_a_verify_job_is_not_noticed() {
    survives_kills(Peer::nbdkit_file(&[], &[]), Peer::kill);
}

#[test]
fn nbdkit_killed_while_it_delays_is_not_noticed() {
    survives_kills(Peer::nbdkit_file(&["--filter=delay"], &["delay-read=5ms", "delay-write=5ms"]), Peer::kill);
}

#[test]
fn qemu_nbd_killed_under_a_verify_job_is_not_noticed() {
    survives_kills(Peer::qemu(&[]), Peer::kill);
}

/// nbdkit then answers its requests with "shutting down", or closes the connection.
#[test]
fn nbdkit_told_to_end_under_a_verify_job_is_not_noticed() {
    survives_kills(Peer::nbdkit_file(&["--filter=delay"], &["delay-write=5ms"]), |peer| {
        let pid = peer.pid().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        until("the server does not listen", || UnixStream::connect(peer.socket()).is_err());
    });
}

#[test]
fn without_a_delay_the_jobs_report_the_loss() {
    let mut peer = Peer::nbdkit_file(&[], &[]);
    let target = peer.target("");
    let outcome = run_while(&target, |disk| {
        goes_on(disk);
        peer.kill();
        until("no request is in flight", || disk.queue.stats().in_flight == 0);
    });
    for t in &outcome.threads {
        assert_eq!(t.as_ref().expect("it ran").stats.first_error, 5, "EIO");
    }
}

#[test]
fn requests_wait_for_as_long_as_the_delay_and_no_longer() {
    let mut peer = Peer::nbdkit_file(&[], &[]);
    let (mut fixture, nbd) = fixture(&peer.target("&reconnect_delay=1"));
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
    let began = Instant::now();
    peer.kill();
    assert_eq!(fixture.write(8, &[2; 4096], OpFlags::NONE), BlkStatus::IoErr);
    assert!(began.elapsed() >= Duration::from_millis(900), "it has waited");
    // From now on, requests fail without a wait until the server is back.
    assert_eq!(fixture.io(Bio::flush()), BlkStatus::IoErr);
    let (queues, refusal) = nbd.status();
    assert_eq!((queues[0].connected, queues[0].losses), (false, 1));
    assert!(refusal.is_some_and(|r| r.contains("cannot connect")));
    peer.start();
    until("the disk is connected", || is_connected(&nbd));
    assert_eq!(fixture.read(0, 4096), (BlkStatus::Ok, vec![1; 4096]));
}

/// An idle disk is not polled. The driver still notices the lost connection and the server's return.
#[test]
fn an_idle_disk_reconnects_by_itself() {
    let mut peer = Peer::nbdkit_file(&[], &[]);
    let (mut fixture, nbd) = fixture(&peer.target(""));
    assert_eq!(fixture.write(0, &[7; 4096], OpFlags::FUA), BlkStatus::Ok);
    for _ in 0..3 {
        peer.kill();
        until("the connection is lost", || !is_connected(&nbd));
        peer.start();
        until("the disk is connected", || is_connected(&nbd));
        assert_eq!(fixture.read(0, 4096), (BlkStatus::Ok, vec![7; 4096]));
    }
    assert_eq!(nbd.status().0[0].losses, 3);
}

#[test]
fn an_export_that_has_changed_is_not_used() {
    let mut peer = Peer::nbdkit(&["memory", "8M"]);
    let (mut fixture, nbd) = fixture(&peer.target("&reconnect_delay=1"));
    assert_eq!(fixture.io(Bio::flush()), BlkStatus::Ok);
    peer.set_argument("8M", "16M");
    peer.start();
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::IoErr);
    let refusal = nbd.status().1.expect("refused");
    assert!(refusal.contains("has changed from 8388608 bytes"), "{refusal}");
    peer.set_argument("16M", "8M");
    peer.start();
    until("the disk is connected", || is_connected(&nbd));
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), BlkStatus::Ok);
}

#[test]
fn errors_of_the_server_keep_their_meaning() {
    let filter = ["--filter=error", "memory", "8M"];
    for (error, status) in [("ENOSPC", BlkStatus::NoSpc), ("EIO", BlkStatus::IoErr), ("ENOMEM", BlkStatus::Resource)] {
        let peer = Peer::nbdkit(&[&filter[..], &[&format!("error-pwrite={error}"), "error-pwrite-rate=100%"]].concat());
        let (mut fixture, nbd) = fixture(&peer.target(""));
        assert_eq!(fixture.write(0, &[1; 4096], OpFlags::NONE), status, "{error}");
        assert_eq!(fixture.read(0, 4096), (BlkStatus::Ok, vec![0; 4096]));
        assert_eq!(nbd.status().0[0].losses, 0, "an error is an answer");
    }
}

/// Half of the reads fail at random. Each other read gets its own data.
#[test]
fn failed_reads_do_not_disturb_their_neighbours() {
    let peer = Peer::nbdkit_file(&["--filter=error"], &["error-pread-rate=50%", "error-pread=EIO"]);
    let (mut fixture, _nbd) = fixture(&peer.target(""));
    let slots = fixture.pool.slots();
    for slot in 0..slots {
        assert_eq!(fixture.write(u64::from(slot) * 16, &[slot as u8; 4096], OpFlags::NONE), BlkStatus::Ok);
    }
    let (mut good, mut bad) = (0, 0);
    for _ in 0..10 {
        let bios = (0..slots).map(|slot| (slot, Bio::read(Sector(u64::from(slot) * 16), 8, DataRef::NONE)));
        for (slot, status) in fixture.io_batch(bios.collect()).into_iter().enumerate() {
            match status {
                BlkStatus::Ok => {
                    fixture.pool.with_slot(slot as u32, |b| assert_eq!(b[..4096], [slot as u8; 4096]));
                    good += 1;
                }
                BlkStatus::IoErr => bad += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(good > 100 && bad > 100, "{good} good, {bad} bad");
}

#[test]
fn delayed_replies_in_any_order_find_their_requests() {
    let peer = Peer::nbdkit_file(&["--filter=delay"], &["delay-read=2ms"]);
    check_clean(&run_while(&peer.target(""), |disk| (0..5).for_each(|_| goes_on(disk))));
}

struct Pause(UnixStream);

impl Pause {
    fn say(&mut self, word: u8) {
        self.0.write_all(&[word]).unwrap();
        let mut answer = [0];
        self.0.read_exact(&mut answer).unwrap();
        assert_eq!(answer[0], word.to_ascii_uppercase());
    }
}

/// Starts a server with the pause filter. Returns it, a fixture on it, and the control of the filter.
fn paused(options: &str) -> (Peer, DriverFixture, Arc<Nbd>, Pause) {
    let control = std::env::temp_dir().join(format!("mqblk-pause-{}-{}", std::process::id(), options.len()));
    let parameter = format!("pause-control={}", control.display());
    let peer = Peer::nbdkit_file(&["--filter=pause"], &[&parameter]);
    let (fixture, nbd) = fixture(&peer.target(options));
    let pause = Pause(UnixStream::connect(&control).unwrap());
    std::fs::remove_file(control).unwrap();
    (peer, fixture, nbd, pause)
}

#[test]
fn a_paused_server_is_waited_for() {
    let (_peer, mut fixture, nbd, mut pause) = paused("");
    assert_eq!(fixture.write(0, &[3; 4096], OpFlags::NONE), BlkStatus::Ok);
    pause.say(b'p');
    let asked = || fixture.disk.hctx_stats().iter().map(|h| h.timeouts).sum::<u64>();
    let before = asked();
    let disk = fixture.disk.clone();
    std::thread::scope(|s| {
        s.spawn(|| {
            // The block layer has called the driver's timeout handler more than once.
            until("requests have timed out three more times", || {
                disk.hctx_stats().iter().map(|h| h.timeouts).sum::<u64>() >= before + 3
            });
            pause.say(b'r');
        });
        assert_eq!(fixture.read(0, 4096), (BlkStatus::Ok, vec![3; 4096]));
    });
    assert_eq!(nbd.status().0[0].losses, 0);
}

/// Calls `what` while another thread gives up requests again and again.
fn while_given_up<T>(nbd: &Nbd, give_up: bool, what: impl FnOnce() -> T) -> T {
    /// Sets the flag when it is dropped, also when a test fails.
    struct StopOnDrop<'a>(&'a AtomicBool);
    impl Drop for StopOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                nbd.path().set_give_up(give_up);
                std::thread::sleep(POLL);
            }
        });
        let _over = StopOnDrop(&over);
        what()
    })
}

/// Once, each check closed the connection of all requests in flight.
#[test]
fn what_is_answered_soon_is_not_given_up() {
    let peer = Peer::nbdkit(&["--filter=delay", "memory", "1m", "rdelay=50ms"]);
    let (mut fixture, nbd) = fixture(&peer.target(""));
    while_given_up(&nbd, true, || {
        for _ in 0..5 {
            assert_eq!(fixture.read(0, 4096), (BlkStatus::Ok, vec![0; 4096]));
        }
    });
    assert_eq!(nbd.status().0[0].losses, 0);
}

#[test]
fn what_is_not_answered_is_given_up_once() {
    let (_peer, mut fixture, nbd, mut pause) = paused("&reconnect_delay=3600");
    assert_eq!(fixture.write(0, &[3; 4096], OpFlags::NONE), BlkStatus::Ok);
    pause.say(b'p');
    let read = while_given_up(&nbd, true, || fixture.read(0, 4096));
    assert_eq!(read, (BlkStatus::Timeout, vec![0xee; 4096]));
    pause.say(b'r');
    nbd.path().set_give_up(false);
    until("the disk is connected", || is_connected(&nbd));
    assert_eq!(fixture.read(0, 4096), (BlkStatus::Ok, vec![3; 4096]));
    assert_eq!(nbd.status().0[0].losses, 1);
}

/// Once, the time limit restarted each time that giving up ended.
#[test]
fn patience_ends_when_it_would_have_without_giving_up() {
    let mut peer = Peer::nbdkit(&["memory", "1m"]);
    let (mut fixture, nbd) = fixture(&peer.target("&reconnect_delay=2"));
    assert_eq!(fixture.write(0, &[3; 4096], OpFlags::NONE), BlkStatus::Ok);
    peer.kill();
    until("the connection is lost", || !is_connected(&nbd));
    let read = while_given_up(&nbd, false, || fixture.read(0, 4096));
    assert_eq!(read.0, BlkStatus::IoErr);
}

#[test]
fn late_reply_does_not_answer_the_next_use_of_a_tag() {
    let (_peer, mut fixture, nbd, mut pause) = paused("&timeout=1");
    for (sector, fill) in [(0, 1), (64, 2)] {
        assert_eq!(fixture.write(sector, &[fill; 4096], OpFlags::NONE), BlkStatus::Ok);
    }
    pause.say(b'p');
    let began = Instant::now();
    assert_eq!(
        fixture.read(0, 4096),
        (BlkStatus::Timeout, vec![0xee; 4096]),
        "nothing came, nothing was written to its buffer"
    );
    assert!(began.elapsed() >= Duration::from_secs(1));
    pause.say(b'r');
    until("the disk is connected", || is_connected(&nbd));
    for _ in 0..20 {
        assert_eq!(fixture.read(64, 4096), (BlkStatus::Ok, vec![2; 4096]), "not the late reply's data");
    }
    let status = &nbd.status().0[0];
    assert_eq!((status.losses, status.last_loss.as_deref()), (1, Some("no reply for 1 s")));
}

#[test]
fn one_connection_where_several_are_not_safe() {
    let peer = Peer::nbdkit(&["--filter=multi-conn", "memory", "8M", "multi-conn-mode=disable"]);
    let target = nbd::parse(&peer.target("&connections=4")).unwrap();
    let (nbd, warning) = Nbd::open(&target, true, Arc::new(Regions::new())).unwrap();
    let warning = warning.expect("a warning").to_string();
    assert!(warning.contains("connections=4") && warning.contains("CAN_MULTI_CONN"), "{warning}");
    assert_eq!(nbd.max_hw_queues(), 1);
    let refused = nbd.start(2, 8).unwrap_err();
    assert!(refused.contains("set nr_hw_queues=1"), "{refused}");
}

#[test]
fn what_cannot_be_opened_says_why() {
    let refused = |target: &str, write| {
        let target = nbd::parse(target).unwrap();
        Nbd::open(&target, write, Arc::new(Regions::new())).err().expect("refused")
    };
    let e = refused("nbd+unix:///d?socket=/nonexistent/sock", true);
    assert_eq!(
        (e.kind(), e.to_string().contains("NBD server at /nonexistent/sock: cannot connect")),
        (ErrorKind::NotFound, true),
        "{e}"
    );
    let peer = Peer::nbdkit(&["--readonly", "memory", "8M"]);
    assert!(refused(&peer.target(""), true).to_string().contains("is read-only"));
    let (nbd, _) = Nbd::open(&nbd::parse(&peer.target("")).unwrap(), false, Arc::new(Regions::new())).unwrap();
    assert!(nbd.limits().read_only);
    let peer = Peer::qemu(&["-x", "disk0"]);
    let e = refused(&peer.target(""), true);
    assert_eq!((e.kind(), e.to_string().contains("has no export ''")), (ErrorKind::NotFound, true), "{e}");
    for bytes in ["0", "100", "1049000"] {
        let odd = Peer::nbdkit(&["memory", bytes]);
        let e = refused(&odd.target(""), false).to_string();
        assert!(e.contains(&format!("has {bytes} bytes: must be whole blocks of 512")), "{e}");
    }
}

#[test]
fn limits_are_what_the_server_says() {
    let policy =
        ["blocksize-minimum=4096", "blocksize-preferred=65536", "blocksize-maximum=1M", "blocksize-error-policy=error"];
    let peer = Peer::nbdkit(&[&["--filter=blocksize-policy", "memory", "8M"], &policy[..]].concat());
    let (nbd, regions) = open(&peer.target(""));
    let limits = nbd.limits();
    assert_eq!((limits.logical_block_size, limits.physical_block_size), (4096, 65536));
    assert_eq!(limits.max_hw_sectors, 2048);
    assert!(limits.write_cache && limits.fua && !limits.read_only && limits.max_discard_sectors > 0);
    // The server rejects requests that are larger or unaligned, so it must not get any.
    let mut fixture = DriverFixture::on(nbd, regions, |_| ());
    for sector in (0..64).step_by(8) {
        assert_eq!(fixture.write(sector, &[sector as u8; 32 << 10], OpFlags::FUA), BlkStatus::Ok);
    }
    fixture.write_zeroes_all(16384);
    assert_eq!(fixture.read(0, 4096), (BlkStatus::Ok, vec![0; 4096]));
    let poor = Peer::nbdkit(&["--filter=nozero", "--filter=fua", "memory", "8M", "zeromode=none"]);
    let limits = open(&poor.target("")).0.limits();
    assert_eq!((limits.fua, limits.max_write_zeroes_sectors), (false, 0));
}

/// Starts a scripted server. It serves connections one by one. Each of `turns` gets one connection after the
/// handshake.
fn odd_server(turns: Vec<Box<dyn Fn(UnixStream) + Send>>) -> (std::path::PathBuf, std::thread::JoinHandle<()>) {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let name = format!("mqblk-odd-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        for turn in turns {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(LONG)).unwrap();
            stream.write_all(&[b"NBDMAGICIHAVEOPT".as_slice(), &[0, 3]].concat()).unwrap();
            // Client flags, structured replies (which this server does not support), GO for the export without a name.
            stream.read_exact(&mut [0; 4 + 16]).unwrap();
            let reply = |option: u32, kind: u32, data: &[u8]| {
                let words = [option, kind, data.len() as u32].map(u32::to_be_bytes).concat();
                [&0x0003_e889_0455_65a9u64.to_be_bytes()[..], &words, data].concat()
            };
            stream.write_all(&reply(8, 1 << 31 | 1, &[])).unwrap();
            stream.read_exact(&mut [0; 16 + 8]).unwrap();
            let export = [&[0, 0][..], &(1u64 << 20).to_be_bytes(), &0x25u16.to_be_bytes()].concat();
            stream.write_all(&[reply(7, 3, &export), reply(7, 1, &[])].concat()).unwrap();
            turn(stream);
        }
    });
    (path, server)
}

/// Reads the next request, which must be a read. Returns its cookie.
fn next_cookie(stream: &mut UnixStream) -> [u8; 8] {
    let mut header = [0; 28];
    stream.read_exact(&mut header).unwrap();
    assert_eq!(header[..8], [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 0], "a read");
    header[8..16].try_into().unwrap()
}

fn answer(cookie: [u8; 8], magic: u32, data: &[u8]) -> Vec<u8> {
    [&magic.to_be_bytes()[..], &[0; 4], &cookie, data].concat()
}

const SIMPLE: u32 = 0x6744_6698;

/// A wrong answer of a server only closes its connection. Requests are sent again on the next connection.
#[test]
fn a_server_that_lies_is_left_and_the_next_one_asked() {
    let mut first = Vec::new();
    let wrong: Vec<fn([u8; 8]) -> Vec<u8>> = vec![
        |cookie| answer(cookie, 0xbad, &[9; 4096]),
        |mut cookie| {
            cookie[0] ^= 0x80;
            answer(cookie, SIMPLE, &[9; 4096])
        },
        |_| answer([0; 8], SIMPLE, &[]),
        |cookie| answer(cookie, SIMPLE, &[9; 4095]),
        |cookie| [answer(cookie, SIMPLE, &[9; 4096])[..20].to_vec()].concat(),
        |_| Vec::new(),
    ];
    let turns = wrong.into_iter().map(|lie| {
        Box::new(move |mut stream: UnixStream| {
            let cookie = next_cookie(&mut stream);
            stream.write_all(&lie(cookie)).unwrap();
        }) as Box<dyn Fn(UnixStream) + Send>
    });
    first.extend(turns);
    let lies = first.len() as u64;
    // The last server answers correctly, and then repeats an answer.
    first.push(Box::new(|mut stream| {
        let cookie = next_cookie(&mut stream);
        stream.write_all(&answer(cookie, SIMPLE, &[5; 4096])).unwrap();
        stream.write_all(&answer(cookie, SIMPLE, &[6; 4096])).unwrap();
        let _ = stream.read(&mut [0]);
    }));
    let (path, server) = odd_server(first);
    let (mut fixture, nbd) = fixture(&format!("nbd+unix:///?socket={}&reconnect_delay=60", path.display()));
    assert_eq!(fixture.read(0, 4096), (BlkStatus::Ok, vec![5; 4096]));
    until("the connection is lost", || nbd.status().0[0].losses > lies);
    let status = &nbd.status().0[0];
    assert!(status.last_loss.as_deref().unwrap().contains("is not out"), "{status:?}");
    assert_eq!(status.replayed, lies);
    server.join().unwrap();
    std::fs::remove_file(path).unwrap();
}

/// Requests are sent again in the order in which they were issued, and whole, also one whose sending was interrupted.
#[test]
fn what_was_cut_off_is_sent_again_in_order() {
    let requests = |stream: &mut UnixStream| {
        (0..4)
            .map(|_| {
                let mut request = [0; 28 + 4096];
                stream.read_exact(&mut request).unwrap();
                request.to_vec()
            })
            .collect::<Vec<_>>()
    };
    let turns: Vec<Box<dyn Fn(UnixStream) + Send>> = vec![
        Box::new(|mut stream| {
            // Receives two and a half writes and answers none.
            stream.read_exact(&mut [0; 2 * (28 + 4096) + 1000]).unwrap();
        }),
        Box::new(move |mut stream| {
            let all = requests(&mut stream);
            for (i, request) in all.iter().enumerate() {
                assert_eq!(request[6..8], [0, 1], "a write");
                assert_eq!(request[16..24], (i as u64 * 65536).to_be_bytes(), "in order");
                assert!(request[28..].iter().all(|b| *b == i as u8));
            }
            for request in all.iter().rev() {
                let cookie = request[8..16].try_into().unwrap();
                stream.write_all(&answer(cookie, SIMPLE, &[])).unwrap();
            }
            let _ = stream.read(&mut [0]);
        }),
    ];
    let (path, server) = odd_server(turns);
    let (mut fixture, nbd) = fixture(&format!("nbd+unix:///?socket={}&reconnect_delay=60", path.display()));
    let bios = (0..4u32).map(|i| {
        fixture.pool.with_slot(i, |b| b.fill(i as u8));
        (i, Bio::write(Sector(u64::from(i) * 128), 8, DataRef::NONE))
    });
    let bios = bios.collect();
    assert_eq!(fixture.io_batch(bios), [BlkStatus::Ok; 4]);
    assert_eq!(nbd.status().0[0].losses, 1);
    drop((fixture, nbd));
    server.join().unwrap();
    std::fs::remove_file(path).unwrap();
}

/// Starts our own server on a socket in its directory. Returns it and its target.
fn export(served: &Served) -> (NbdExport, String) {
    let socket = served.directory.join("nbd.sock");
    let uri = format!("nbd+unix:///d?socket={}", socket.display());
    (export_at(served, Address::Unix(socket)), uri)
}

fn export_at(served: &Served, address: Address) -> NbdExport {
    let options = NbdOptions { address, default: None, ..served.nbd_options(served.nbd_disk()) };
    NbdExport::start(&served.threads, options).unwrap()
}

/// Over TCP, by address and by a name that may have several addresses: requests of all lengths, long ones in many pieces.
#[test]
fn tcp_carries_short_and_long_requests() {
    let served = Served::new("nbd-tcp", "ram:size=64m", 2);
    let export = export_at(&served, Address::Tcp("127.0.0.1:0".parse().unwrap()));
    let Address::Tcp(at) = export.address() else { panic!("a TCP port") };
    let jobs = "[global]\nioengine=io_uring\nsize=32m\nverify=crc32c\niodepth=4\n\
        [long]\nrw=randwrite\nbs=2m\n[mixed]\nrw=randwrite\nbsrange=512-256k\nbs_unaligned=0\noffset=32m\n";
    for host in ["127.0.0.1", "localhost"] {
        let target = format!("nbd://{host}:{}/d?connections=2", at.port());
        let outcome = prepared(jobs, &target, &Arc::default()).run(&mut |_| {}).expect("runs");
        check_clean(&outcome);
    }
    drop(export);
    check_drained(&served.disk);
    std::fs::remove_dir_all(&served.directory).unwrap();
}

/// Our driver on our server, which disconnects all clients again and again.
#[test]
fn our_own_server_ended_under_a_verify_job_is_not_noticed() {
    let served = Served::new("nbd-own", "ram:size=8m", 2);
    let (first, uri) = export(&served);
    let mut current = Some(first);
    let outcome = run_while(&format!("{uri}&connections=2&reconnect_delay=60"), |disk| {
        for _ in 0..3 {
            goes_on(disk);
            drop(current.take());
            current = Some(export(&served).0);
        }
        goes_on(disk);
    });
    check_clean(&outcome);
    drop(current);
    check_drained(&served.disk);
    std::fs::remove_dir_all(&served.directory).unwrap();
}

/// Data of our clients passes through two of our servers and our driver between them.
#[test]
fn servers_in_a_chain_carry_everything() {
    let last = Served::new("nbd-last", "ram:size=16m", 1);
    let (_last_export, behind) = export(&last);
    let front = Served::new("nbd-front", &format!("{behind}&connections=2"), 2);
    let (front_export, uri) = export(&front);
    let script = [
        "write -P 0x21 0 1M",
        "write -z 256k 64k",
        "discard 512k 64k",
        "write -f -P 0x22 15M 1M",
        "flush",
        "read -P 0x22 15M 1M",
        "read -P 0x21 64k 64k",
        "read -P 0 256k 64k",
    ];
    let arguments: Vec<&str> =
        ["-f", "raw"].into_iter().chain(script.iter().flat_map(|c| ["-c", c])).chain([uri.as_str()]).collect();
    let out = run("qemu-io", &arguments);
    assert!(!out.contains("verification failed") && !out.contains("error"), "{out}");
    let copy = |uri: &str, name: &str| {
        let path = front.directory.join(name);
        run("nbdcopy", &[uri, path.to_str().unwrap()]);
        std::fs::read(path).unwrap()
    };
    assert!(copy(&uri, "a") == copy(&behind, "b"), "the same through one server and through two");
    drop(front_export);
    check_drained(&front.disk);
    std::fs::remove_dir_all(&front.directory).unwrap();
    std::fs::remove_dir_all(&last.directory).unwrap();
}
