// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The NBD driver under TLS: with independent servers and with our own, killed under load and restarted; with invalid certificates; and
//! with scripted servers that behave as no real one does: plain text after STARTTLS, records cut anywhere, connections that end without
//! close_notify.

use crate::common;
use crate::nbd_load;
use crate::serving;
use crate::waiting::LONG;

use blk::bio::{Bio, DataRef, OpFlags};
use blk::id::Sector;
use blk::status::BlkStatus;
use common::peers::Peer;
use common::peers::certificates::{Authority, For, NOW};
use common::until;
use host::driver::nbd::{self, Nbd};
use host::export::nbd::{Address, NbdExport, NbdOptions};
use host::mem::Regions;
use host::nbd::wire::{BytesIn, opt, rep};
use host::net::certificates::NbdTls;
use host::net::certificates::Tls;
use nbd_load::{check_clean, fixture, goes_on, is_connected, prepared, run_while, survives_kills};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serving::{Served, check_drained};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

/// A directory of a test's certificates.
struct Pki {
    directory: PathBuf,
    authority: Authority,
    server: PathBuf,
    client: PathBuf,
}

impl Pki {
    fn new() -> Pki {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("mqblk-pki-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).unwrap();
        let authority = Authority::new("tests");
        let server = authority.server(&directory, "server", NOW);
        let client = authority.client(&directory, "client", 7);
        Pki { directory, authority, server, client }
    }

    fn peer(&self, program: &'static str, arguments: &[&str]) -> Peer {
        Peer::under_tls(program, arguments, &self.server, &self.client)
    }
}

impl Drop for Pki {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn refused(target: &str) -> String {
    let target = nbd::parse(target).unwrap();
    let e = Nbd::open(&target, true, Arc::new(Regions::new())).err().expect("refused").to_string();
    assert!(!e.contains('\n') && !e.contains("PRIVATE KEY-"), "{e}");
    e
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "'{part}' is not in '{text}'");
    }
}

/// Verified requests of all lengths, up to many records each way, over several connections.
const LENGTHS: &str = "[global]\nioengine=io_uring\nsize=4m\nverify=crc32c\niodepth=8\n\
    [long]\nrw=randwrite\nbs=1m\n[mixed]\nrw=randwrite\nbsrange=512-256k\nbs_unaligned=0\noffset=4m\n";

#[test]
fn nbdkit_and_qemu_carry_short_and_long_requests() {
    let pki = Pki::new();
    for peer in [pki.peer("nbdkit", &["memory", "8M"]), pki.peer("qemu-nbd", &[])] {
        let target = peer.target("&connections=2");
        check_clean(&prepared(LENGTHS, &target, &Arc::default()).run(&mut |_| {}).expect("runs"));
    }
}

/// Over TCP, where the certificate must match the target's host (a name or an address), and over a Unix socket.
#[test]
fn our_own_server_carries_short_and_long_requests() {
    let pki = Pki::new();
    let served = Served::new("nbd-tls-driver", "ram:size=64m", 2);
    let tls = || Some(Tls::load(&NbdTls::in_directory(&pki.server, true, true)).map_err(|e| e.text).unwrap());
    let options = |address| NbdOptions { address, tls: tls(), ..served.nbd_options(served.nbd_disk()) };
    let start = |address| NbdExport::start(&served.threads, options(address)).unwrap();
    let (tcp, socket) = (start(Address::Tcp("127.0.0.1:0".parse().unwrap())), served.directory.join("nbd.sock"));
    let unix = start(Address::Unix(socket.clone()));
    let Address::Tcp(at) = tcp.address() else { panic!("a TCP port") };
    let certificates = format!("tls-certificates={}&connections=3", pki.client.display());
    for place in [
        format!("nbds://127.0.0.1:{}/d?{certificates}", at.port()),
        format!("nbds://somebody@localhost:{}/d?{certificates}", at.port()),
        format!("nbds+unix:///d?socket={}&{certificates}", socket.display()),
        format!("nbds+unix:///d?socket={}&{certificates}&tls-hostname=127.0.0.1", socket.display()),
    ] {
        check_clean(&prepared(LENGTHS, &place, &Arc::default()).run(&mut |_| {}).expect("runs"));
    }
    drop((tcp, unix));
    check_drained(&served.disk);
    fs::remove_dir_all(&served.directory).unwrap();
}

#[test]
fn nbdkit_killed_under_a_verify_job_is_not_noticed() {
    let pki = Pki::new();
    let file = common::TempFile::new();
    survives_kills(pki.peer("nbdkit", &["file", file.0.to_str().unwrap()]), Peer::kill);
}

#[test]
fn qemu_nbd_killed_under_a_verify_job_is_not_noticed() {
    let pki = Pki::new();
    survives_kills(pki.peer("qemu-nbd", &[]), Peer::kill);
}

/// Our driver on our server, which disconnects all clients again and again.
#[test]
fn our_own_server_ended_under_a_verify_job_is_not_noticed() {
    let pki = Pki::new();
    let served = Served::new("nbd-tls-own", "ram:size=8m", 2);
    let tls = || Some(Tls::load(&NbdTls::in_directory(&pki.server, true, true)).map_err(|e| e.text).unwrap());
    let start = || {
        let options = NbdOptions { tls: tls(), ..served.nbd_options(served.nbd_disk()) };
        NbdExport::start(&served.threads, options).unwrap()
    };
    let (socket, client) = (served.directory.join("nbd.sock"), pki.client.display());
    let target = format!("nbds+unix:///d?socket={}&tls-certificates={client}&connections=2", socket.display());
    let mut current = Some(start());
    let outcome = run_while(&format!("{target}&reconnect_delay=60"), |disk| {
        for _ in 0..3 {
            goes_on(disk);
            drop(current.take());
            current = Some(start());
        }
        goes_on(disk);
    });
    check_clean(&outcome);
    drop(current);
    check_drained(&served.disk);
    fs::remove_dir_all(&served.directory).unwrap();
}

/// A target with TLS never falls back to plain text, and a target without TLS never uses it.
#[test]
fn with_tls_or_without_is_for_the_target_to_say() {
    let pki = Pki::new();
    let plain = [Peer::nbdkit(&["--tls=off", "memory", "1M"]), Peer::qemu(&[])];
    for peer in &plain {
        let target = peer.target(&format!("&tls-certificates={}", pki.client.display())).replace("nbd+", "nbds+");
        has(&refused(&target), &["TLS, which nbds:// requires, is refused by the server", "turn it on there"]);
    }
    for peer in [pki.peer("nbdkit", &["memory", "1M"]), pki.peer("qemu-nbd", &[])] {
        let socket = peer.socket();
        let e = refused(&format!("nbd+unix:///?socket={}", socket.display()));
        has(&e, &["the server requires TLS: write nbds:// for nbd://", "tls-certificates=DIR"]);
    }
    let served = Served::new("nbd-tls-only", "ram:size=1m", 1);
    let socket = served.directory.join("nbd.sock");
    for tls in [None, Some(NbdTls::in_directory(&pki.server, false, true))] {
        let (scheme, says) = match &tls {
            None => ("nbds+unix", "is refused by the server"),
            Some(_) => ("nbd+unix", "the server requires TLS"),
        };
        let tls = tls.map(|files| Tls::load(&files).map_err(|e| e.text).unwrap());
        let options = NbdOptions { tls, ..served.nbd_options(served.nbd_disk()) };
        let export = NbdExport::start(&served.threads, options).unwrap();
        has(&refused(&format!("{scheme}:///d?socket={}", socket.display())), &[says]);
        drop(export);
    }
    fs::remove_dir_all(&served.directory).unwrap();
}

#[test]
fn a_server_that_is_not_the_right_one_is_refused() {
    let pki = Pki::new();
    let (parent, authority) = (&pki.directory, &pki.authority);
    let at = |server: &Path, options: &str| {
        let peer = Peer::under_tls("nbdkit", &["memory", "1M"], server, &pki.client);
        refused(&peer.target(options))
    };
    let stranger = Authority::new("strangers").server(parent, "stranger", NOW);
    let ca = pki.client.join("ca-cert.pem").display().to_string();
    has(&at(&stranger, ""), &["not signed by an authority in '", &ca, "put the server's authority there"]);
    has(&at(&authority.server(parent, "expired", (2000, 2001)), ""), &["its certificate has expired"]);
    has(&at(&authority.server(parent, "early", (2099, 2100)), ""), &["is not valid yet", "clock"]);
    let told = at(&pki.server, "&tls-hostname=storage.example");
    has(&told, &["not for 'storage.example' but for", "localhost", "tls-hostname=NAME"]);
    let other = authority.server(parent, "other", NOW);
    let put = |directory: &Path, (cert, key): (String, String)| {
        fs::write(directory.join("server-cert.pem"), cert).unwrap();
        fs::write(directory.join("server-key.pem"), key).unwrap();
    };
    put(&other, authority.issue_to(&["other.example", "x.example"], For::Server, 3, NOW));
    has(&at(&other, ""), &["not for 'localhost' but for", "other.example"]);
    put(&other, authority.issue(For::Client, 4, NOW));
    has(&at(&other, ""), &["not for servers (extended key usage)"]);
    // Without a directory, the system's certificate authorities are used, and none of them has signed this server.
    let peer = pki.peer("nbdkit", &["memory", "1M"]);
    has(&refused(&format!("nbds+unix:///?socket={}", peer.socket().display())), &["tls-certificates=DIR"]);
    // A client that does not verify can connect, with an unknown server and under any name.
    fs::copy(pki.client.join("ca-cert.pem"), stranger.join("ca-cert.pem")).unwrap();
    let peer = Peer::under_tls("nbdkit", &["--tls=on", "memory", "1M"], &stranger, &pki.client);
    let trusting = peer.target("&tls-verify-peer=0&tls-hostname=anybody");
    let (mut fixture, _nbd) = fixture(&trusting);
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::FUA), BlkStatus::Ok);
    // This comes last because it changes the client's files.
    authority.revoke(&pki.client, 1);
    has(&at(&pki.server, ""), &["has been revoked", "ca-crl.pem"]);
}

#[test]
fn a_client_that_is_not_wanted_hears_what_to_do() {
    let pki = Pki::new();
    let (parent, authority) = (&pki.directory, &pki.authority);
    let nobody = authority.directory(parent, "nobody");
    let stranger = Authority::new("strangers").client(parent, "stranger", 1);
    fs::copy(pki.client.join("ca-cert.pem"), stranger.join("ca-cert.pem")).unwrap();
    let served = Served::new("nbd-tls-who", "ram:size=1m", 1);
    let tls = Tls::load(&NbdTls::in_directory(&pki.server, true, true)).map_err(|e| e.text).unwrap();
    let options = NbdOptions { tls: Some(tls), ..served.nbd_options(served.nbd_disk()) };
    let export = NbdExport::start(&served.threads, options).unwrap();
    let (kit, qemu) = (pki.peer("nbdkit", &["memory", "1M"]), pki.peer("qemu-nbd", &[]));
    for socket in [served.directory.join("nbd.sock"), kit.socket(), qemu.socket()] {
        let at = |certificates: &Path| {
            let certificates = certificates.display();
            refused(&format!("nbds+unix:///?socket={}&tls-certificates={certificates}", socket.display()))
        };
        has(&at(&nobody), &["requires a client certificate", "put client-cert.pem and client-key.pem", "nobody"]);
        has(&at(&stranger), &["not accept our client certificate"]);
    }
    drop(export);
    fs::remove_dir_all(&served.directory).unwrap();
}

#[test]
fn unusable_credentials_are_rejected_before_connecting() {
    let pki = Pki::new();
    let (parent, authority) = (&pki.directory, &pki.authority);
    let at = |directory: &Path| {
        // No process listens there, because the driver fails before it connects.
        refused(&format!("nbds://localhost:9/d?tls-certificates={}", directory.display()))
    };
    has(&at(&parent.join("none")), &["tls-certificates=", "none/ca-cert.pem: No such file", "name a PEM file"]);
    let broken = authority.client(parent, "broken", 1);
    let put = |name: &str, text: &str| fs::write(broken.join(name), text).unwrap();
    let (cert, key) = authority.issue(For::Client, 2, NOW);
    put("client-key.pem", &key);
    has(&at(&broken), &["client-key.pem: is not the key of the certificate"]);
    put("client-cert.pem", &key);
    has(&at(&broken), &["client-cert.pem: holds no certificate"]);
    put("client-cert.pem", &authority.issue(For::Client, 2, (2000, 2001)).0);
    has(&at(&broken), &["client-cert.pem: holds a certificate that expired"]);
    put("client-cert.pem", &cert);
    fs::remove_file(broken.join("client-key.pem")).unwrap();
    has(&at(&broken), &["client-key.pem: No such file"]);
    put("client-key.pem", &key);
    put("ca-crl.pem", "nothing");
    has(&at(&broken), &["ca-crl.pem: holds no revocation list"]);
    // Once, a dangling link counted as a missing list or a missing client certificate.
    let dangling = |name: &str| {
        fs::remove_file(broken.join(name)).unwrap();
        symlink("nowhere", broken.join(name)).unwrap();
    };
    dangling("ca-crl.pem");
    has(&at(&broken), &["ca-crl.pem: No such file"]);
    fs::remove_file(broken.join("ca-crl.pem")).unwrap();
    dangling("client-cert.pem");
    dangling("client-key.pem");
    has(&at(&broken), &["client-cert.pem: No such file"]);
    let unverified =
        format!("nbds://localhost:9/d?tls-verify-peer=0&tls-certificates={}", parent.join("none").display());
    has(&refused(&unverified), &["cannot check whether it exists: No such file"]);
    put("ca-cert.pem", "-----BEGIN CERTIFICATE-----\n");
    has(&at(&broken), &["ca-cert.pem: is no PEM file"]);
    has(&refused("nbds://a..b/"), &["'a..b' is not a valid name for a certificate", "tls-hostname=NAME"]);
}

/// New files are used from the next connection on. Unusable ones do not replace the earlier ones.
#[test]
fn renewed_certificates_count_when_it_connects_again() {
    let pki = Pki::new();
    let mut peer = pki.peer("nbdkit", &["memory", "1M"]);
    let (mut fixture, nbd) = fixture(&peer.target("&reconnect_delay=60"));
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::FUA), BlkStatus::Ok);
    let key = pki.client.join("client-key.pem");
    fs::remove_file(&key).unwrap();
    peer.start();
    assert_eq!(fixture.write(0, &[2; 4096], OpFlags::FUA), BlkStatus::Ok);
    // Server and client of another authority.
    let next = Authority::new("next");
    for (from, to) in [
        (next.server(&pki.directory, "next-server", NOW), &pki.server),
        (next.client(&pki.directory, "next-client", 1), &pki.client),
    ] {
        for file in fs::read_dir(from).unwrap() {
            let path = file.unwrap().path();
            fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
    peer.start();
    assert_eq!(fixture.write(0, &[3; 4096], OpFlags::FUA), BlkStatus::Ok);
    assert_eq!((nbd.status().0[0].losses, is_connected(&nbd)), (2, true));
}

/// When a revocation list is removed or only partly replaced, all revocations stay in effect.
#[test]
fn a_revocation_list_that_has_gone_still_counts() {
    let pki = Pki::new();
    let (list, cert, key) = (pki.client.join("ca-crl.pem"), "server-cert.pem", "server-key.pem");
    pki.authority.revoke(&pki.client, 99);
    let mut peer = pki.peer("nbdkit", &["memory", "1M"]);
    let (mut fixture, nbd) = fixture(&peer.target("&reconnect_delay=60"));
    assert_eq!(fixture.write(0, &[1; 4096], OpFlags::FUA), BlkStatus::Ok);
    fs::remove_file(&list).unwrap();
    // The server's valid files, and those with a revoked certificate.
    let good = [cert, key].map(|name| (pki.server.join(name), fs::read(pki.server.join(name)).unwrap()));
    let (revoked, its_key) = pki.authority.issue(For::Server, 99, NOW);
    fs::write(&good[0].0, revoked).unwrap();
    fs::write(&good[1].0, its_key).unwrap();
    peer.start();
    until("the revoked certificate is reported", || {
        assert!(nbd.status().0[0].losses == 0 || !is_connected(&nbd), "the revoked one is used");
        nbd.status().1.is_some_and(|why| why.contains("has been revoked"))
    });
    good.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    peer.start();
    assert_eq!(fixture.write(0, &[2; 4096], OpFlags::FUA), BlkStatus::Ok);
    // The client's certificate also stays in use when its files are gone.
    for name in ["client-cert.pem", "client-key.pem"] {
        fs::remove_file(pki.client.join(name)).unwrap();
    }
    peer.start();
    assert_eq!(fixture.write(0, &[3; 4096], OpFlags::FUA), BlkStatus::Ok);
}

type Encrypted = StreamOwned<ServerConnection, UnixStream>;

/// Starts a scripted server. It handles connections one by one up to STARTTLS. Each of `turns` continues one after that answer.
fn odd_server<T>(pki: &Pki, turns: Vec<T>) -> (PathBuf, JoinHandle<()>)
where
    T: FnOnce(UnixStream, &Arc<ServerConfig>) + Send + 'static,
{
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let cert = CertificateDer::from_pem_file(pki.server.join("server-cert.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(pki.server.join("server-key.pem")).unwrap();
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_no_client_auth().with_single_cert(vec![cert], key).unwrap());
    let path = pki.directory.join("odd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        for turn in turns {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(LONG)).unwrap();
            stream.write_all(&[b"NBDMAGICIHAVEOPT".as_slice(), &[0, 3]].concat()).unwrap();
            let mut asked = [0; 4 + 16];
            stream.read_exact(&mut asked).unwrap();
            assert_eq!(asked[12..20], [0, 0, 0, 5, 0, 0, 0, 0], "TLS is asked for first");
            turn(stream, &config);
        }
    });
    (path, server)
}

fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let words = [option, kind, data.len() as u32].map(u32::to_be_bytes).concat();
    [&0x0003_e889_0455_65a9u64.to_be_bytes()[..], &words, data].concat()
}

/// Returns the option replies of a server without structured replies and with one export.
fn options_of(size: u64) -> Vec<u8> {
    let export = [&[0, 0][..], &size.to_be_bytes(), &0x25u16.to_be_bytes()].concat();
    let go = [option_reply(opt::GO, rep::INFO, &export), option_reply(opt::GO, rep::ACK, &[])].concat();
    [option_reply(opt::STRUCTURED_REPLY, rep::ERR_UNSUP, &[]), go].concat()
}

/// Does the TLS handshake and the options after it. The returned stream is in the transmission phase.
fn encrypted(mut stream: UnixStream, config: &Arc<ServerConfig>) -> Encrypted {
    stream.write_all(&option_reply(opt::STARTTLS, rep::ACK, &[])).unwrap();
    let mut stream = StreamOwned::new(ServerConnection::new(Arc::clone(config)).unwrap(), stream);
    let all = options_of(64 << 20);
    // Both requests are sent again.
    stream.read_exact(&mut [0; 16]).unwrap();
    stream.write_all(&all[..20]).unwrap();
    stream.read_exact(&mut [0; 16 + 8]).unwrap();
    stream.write_all(&all[20..]).unwrap();
    stream
}

fn next_cookie(stream: &mut Encrypted) -> [u8; 8] {
    let mut header = [0; 28];
    stream.read_exact(&mut header).unwrap();
    assert_eq!(header[..8], [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 0], "a read");
    header[8..16].try_into().unwrap()
}

fn answer(cookie: [u8; 8], data: &[u8]) -> Vec<u8> {
    [&0x6744_6698u32.to_be_bytes()[..], &[0; 4], &cookie, data].concat()
}

type ServerStep = Box<dyn FnOnce(UnixStream, &Arc<ServerConfig>) + Send>;

/// An attacker between client and server could append answers to the one to STARTTLS. A client must not have read these
/// before TLS began.
#[test]
fn plain_text_behind_the_answer_to_starttls_is_refused() {
    let pki = Pki::new();
    let ack = option_reply(opt::STARTTLS, rep::ACK, &[]);
    let whole: Vec<u8> = [&ack[..], &options_of(1 << 30)].concat();
    let half: Vec<u8> = [&ack[..], &option_reply(opt::STRUCTURED_REPLY, rep::ACK, &[])].concat();
    let data = option_reply(opt::STARTTLS, rep::ACK, b"x");
    let lies = [(whole, "is not TLS"), (half, "is not TLS"), (data, "violates the NBD protocol")];
    let texts: Vec<&str> = lies.iter().map(|(_, text)| *text).collect();
    let turns = lies.map(|(lie, _)| -> ServerStep {
        Box::new(move |mut stream, config| {
            stream.write_all(&lie).unwrap();
            // The server continues as if it had sent nothing in plain text.
            let mut tls = ServerConnection::new(Arc::clone(config)).unwrap();
            let _ = tls.complete_io(&mut stream);
        })
    });
    let (path, server) = odd_server(&pki, turns.into());
    for text in texts {
        let client = pki.client.display();
        let e = refused(&format!("nbds+unix:///?socket={}&tls-certificates={client}", path.display()));
        has(&e, &[text]);
    }
    server.join().unwrap();
}

/// However a TLS connection ends, only the connection is lost. Requests are sent again on the next one.
#[test]
fn an_undeclared_end_is_a_lost_connection() {
    let pki = Pki::new();
    let ends: Vec<fn(Encrypted, Vec<u8>)> = vec![
        // Closed without close_notify: between two records, in the middle of an answer, and before any answer.
        |mut stream, answer| stream.write_all(&answer[..2000]).unwrap(),
        |_, _| (),
        // Closed with close_notify: after half of the answer, and after all but its last byte.
        |mut stream, answer| {
            stream.write_all(&answer[..2000]).unwrap();
            stream.conn.send_close_notify();
            let _ = stream.flush();
        },
        |mut stream, answer| stream.write_all(&answer[..answer.len() - 1]).unwrap(),
        // A truncated record, a forged record, and the right answer in plain text.
        |mut stream, answer| {
            let mut bytes = Vec::new();
            stream.conn.writer().write_all(&answer).unwrap();
            while stream.conn.wants_write() {
                stream.conn.write_tls(&mut bytes).unwrap();
            }
            stream.sock.write_all(&bytes[..bytes.len() / 2]).unwrap();
        },
        |mut stream, _| {
            stream.sock.write_all(&[&[23, 3, 3, 0, 64][..], &[7; 64]].concat()).unwrap();
            let _ = stream.sock.read(&mut [0]);
        },
        |mut stream, answer| {
            stream.sock.write_all(&answer).unwrap();
            let _ = stream.sock.read(&mut [0]);
        },
    ];
    let count = ends.len() as u64;
    let turn = |end: fn(Encrypted, Vec<u8>)| -> ServerStep {
        Box::new(move |stream, config| {
            let mut stream = encrypted(stream, config);
            let cookie = next_cookie(&mut stream);
            end(stream, answer(cookie, &[9; 4096]));
        })
    };
    let mut turns: Vec<ServerStep> = ends.into_iter().map(turn).collect();
    turns.push(turn(|mut stream, mut answer| {
        answer[16..].fill(5);
        stream.write_all(&answer).unwrap();
        let _ = stream.read(&mut [0]);
    }));
    let (path, server) = odd_server(&pki, turns);
    let client = pki.client.display();
    let (mut fixture, nbd) =
        fixture(&format!("nbds+unix:///?socket={}&tls-certificates={client}&reconnect_delay=60", path.display()));
    assert_eq!(fixture.read(0, 4096), (BlkStatus::Ok, vec![5; 4096]));
    let status = nbd.status().0[0].clone();
    assert_eq!((status.losses, status.replayed), (count, count));
    has(status.last_loss.as_deref().unwrap(), &["violates TLS"]);
    drop((fixture, nbd));
    server.join().unwrap();
}

/// Records are independent of the borders of answers. Several answers in one record are all reported to a thread that sleeps
/// for the first. The server may change its keys, and request that ours change, at any time.
#[test]
fn records_may_be_cut_anywhere() {
    let pki = Pki::new();
    let turn: ServerStep = Box::new(|stream, config| {
        let mut stream = encrypted(stream, config);
        let answers = |stream: &mut Encrypted, fill: u8| -> Vec<u8> {
            (0..4).flat_map(|_| answer(next_cookie(stream), &[fill; 4096])).collect()
        };
        // All answers in as few records as possible, in one write.
        let all = answers(&mut stream, 1);
        stream.write_all(&all).unwrap();
        // Records of a few bytes.
        for piece in answers(&mut stream, 2).chunks(7) {
            stream.write_all(piece).unwrap();
        }
        // Ciphertext that arrives byte by byte.
        let all = answers(&mut stream, 3);
        let mut bytes = Vec::new();
        stream.conn.writer().write_all(&all).unwrap();
        while stream.conn.wants_write() {
            stream.conn.write_tls(&mut bytes).unwrap();
        }
        bytes.iter().for_each(|byte| stream.sock.write_all(&[*byte]).unwrap());
        // New keys in the middle of an answer.
        for piece in answers(&mut stream, 4).chunks(1000) {
            stream.conn.refresh_traffic_keys().unwrap();
            stream.write_all(piece).unwrap();
        }
        // The disconnect, and close_notify.
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!((rest.len(), BytesIn::new(&rest[4..]).u32()), (28, Some(2)), "a disconnect");
    });
    let (path, server) = odd_server(&pki, vec![turn]);
    let client = pki.client.display();
    let (mut fixture, nbd) = fixture(&format!("nbds+unix:///?socket={}&tls-certificates={client}", path.display()));
    fixture.may_wait = true;
    for fill in 1..=4 {
        let reads = (0..4).map(|slot| {
            let at = Sector(u64::from(slot) * 128);
            (slot, Bio::read(at, 8, DataRef::NONE))
        });
        assert_eq!(fixture.io_batch(reads.collect()), [BlkStatus::Ok; 4]);
        (0..4).for_each(|slot| fixture.pool.with_slot(slot, |b| assert_eq!(b[..4096], [fill; 4096])));
    }
    assert_eq!(nbd.status().0[0].losses, 0);
    drop((fixture, nbd));
    server.join().unwrap();
}

/// TLS sends records while no request is in flight: new keys here, tickets elsewhere. Once, these stayed in the socket,
/// and a thread that was about to sleep polled in vain until the reconnect thread's next check.
#[test]
fn unsolicited_tls_records_keep_no_thread_awake() {
    let pki = Pki::new();
    let (go, going) = channel::<()>();
    let (tell, told) = channel();
    let turn: ServerStep = Box::new(move |stream, config| {
        let mut stream = encrypted(stream, config);
        let cookie = next_cookie(&mut stream);
        stream.write_all(&answer(cookie, &[1; 4096])).unwrap();
        while going.recv().is_ok() {
            stream.conn.refresh_traffic_keys().unwrap();
            while stream.conn.wants_write() {
                stream.conn.write_tls(&mut stream.sock).unwrap();
            }
            tell.send(()).unwrap();
        }
        let _ = stream.read(&mut [0]);
    });
    let (path, server) = odd_server(&pki, vec![turn]);
    let client = pki.client.display();
    let (mut fixture, nbd) = fixture(&format!("nbds+unix:///?socket={}&tls-certificates={client}", path.display()));
    assert_eq!(fixture.read(0, 4096), (BlkStatus::Ok, vec![1; 4096]));
    let mut seen = 0;
    for round in 0..20 {
        go.send(()).unwrap();
        told.recv_timeout(LONG).unwrap();
        // Not if the reconnect thread, which checks at intervals, was faster.
        seen += u32::from(fixture.is_readable());
        fixture.poll();
        assert!(!fixture.is_readable(), "round {round}: it is left there");
    }
    assert!(seen > 0 && nbd.status().0[0].losses == 0, "{seen} {:?}", nbd.status());
    drop((go, fixture, nbd));
    server.join().unwrap();
}

/// A server that does not read fills the socket, but not memory. Waiting data is sent when the server reads again, even if the
/// server reads so little that the socket never becomes writable. The reconnect thread then sends the waiting data in several steps,
/// until no ciphertext is left. Data that is not encrypted yet must not be forgotten.
#[test]
fn a_server_that_does_not_read_is_waited_for() {
    const LEN: usize = common::SLOT_BYTES;
    const SLOWLY: u32 = 20;
    let pki = Pki::new();
    let turn: ServerStep = Box::new(move |stream, config| {
        let mut stream = encrypted(stream, config);
        // Three megabytes are sent. The socket holds some hundred kilobytes, and becomes writable when three quarters of it are free.
        // This reads the driver's buffered ciphertext and more, without making the socket writable and without an answer, which would wake
        // the waiter.
        let mut answers = Vec::new();
        for i in 0..96 {
            if i < SLOWLY {
                until("the driver has sent more than 80 KiB", || {
                    rustix::io::ioctl_fionread(&stream.sock).unwrap() > 80 << 10
                });
            }
            let mut request = vec![0; 28 + LEN];
            stream.read_exact(&mut request).unwrap();
            let fill = (u64::from_be_bytes(request[16..24].try_into().unwrap()) / 65536) as u8;
            assert!(request[28..].iter().all(|byte| *byte == fill), "request {fill}");
            answers.extend(answer(request[8..16].try_into().unwrap(), &[]));
            if i >= SLOWLY {
                stream.write_all(&std::mem::take(&mut answers)).unwrap();
            }
        }
        let _ = stream.read(&mut [0]);
    });
    let (path, server) = odd_server(&pki, vec![turn]);
    let client = pki.client.display();
    let (mut fixture, nbd) = fixture(&format!("nbds+unix:///?socket={}&tls-certificates={client}", path.display()));
    fixture.may_wait = true;
    assert_eq!(fixture.pool.slots(), 96);
    let writes = (0..96).map(|slot| {
        fixture.pool.with_slot(slot, |b| b.fill(slot as u8));
        (slot, Bio::write(Sector(u64::from(slot) * 128), (LEN / 512) as u32, DataRef::NONE))
    });
    let writes = writes.collect();
    assert!(fixture.io_batch(writes).iter().all(|status| *status == BlkStatus::Ok));
    assert_eq!(nbd.status().0[0].losses, 0);
    drop((fixture, nbd));
    server.join().unwrap();
}
