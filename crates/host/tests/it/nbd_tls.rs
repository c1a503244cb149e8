// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NBD under TLS with existing clients (libnbd's programs, qemu-img, qemu-io), and with our own client, which sends what others do
//! not: requests cut anywhere, garbage in every phase, silence.

use crate::certificates;
use crate::serving;
use crate::waiting::{LONG, POLL, until};

use certificates::{Authority, For, NOW};
use host::export::nbd::{Address, NbdDisk, NbdExport, NbdOptions};
use host::nbd::wire::{command, opt, option_header, rep};
use host::net::certificates::NbdTls;
use host::net::certificates::Tls;
use host::net::client_names::ClientNames;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serving::{Served, pattern, request, run, try_run};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

struct Server {
    served: Served,
    authority: Authority,
    /// Certificates of the server.
    directory: PathBuf,
    export: Option<NbdExport>,
}

impl Server {
    fn new(target: &str, tcp: bool, required: bool, verify: bool) -> Server {
        Server::for_names(target, tcp, required, verify, &[])
    }

    fn for_names(target: &str, tcp: bool, required: bool, verify: bool, names: &[&str]) -> Server {
        let served = Served::new("nbd-tls", target, 2);
        let authority = Authority::new("tests");
        let directory = authority.server(&served.directory, "server", NOW);
        authority.revoke(&directory, 4711);
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let client_names = ClientNames::read(&names).unwrap();
        let files = NbdTls { client_names, ..NbdTls::in_directory(&directory, verify, required) };
        let tls = Tls::load(&files).map_err(|e| e.text).unwrap();
        let disk = NbdDisk { description: "secret".into(), ..served.nbd_disk() };
        let mut options = NbdOptions { tls: Some(tls), ..served.nbd_options(disk) };
        if tcp {
            options.address = Address::Tcp("127.0.0.1:0".parse().unwrap());
        }
        let export = Some(NbdExport::start(&served.threads, options).unwrap());
        Server { served, authority, directory, export }
    }

    fn address(&self) -> &Address {
        self.export.as_ref().unwrap().address()
    }

    fn plain(&self) -> String {
        match self.address() {
            Address::Unix(path) => format!("nbd+unix:///d?socket={}", path.display()),
            Address::Tcp(at) => format!("nbd://{at}/d"),
        }
    }

    /// Returns the URI for a client with the certificates of this directory.
    fn uri(&self, certificates: &Path) -> String {
        let certificates = certificates.display();
        match self.address() {
            Address::Unix(path) => {
                format!("nbds+unix:///d?socket={}&tls-certificates={certificates}", path.display())
            }
            Address::Tcp(at) => format!("nbds://{at}/d?tls-certificates={certificates}"),
        }
    }

    /// Returns the arguments for QEMU's programs.
    fn qemu(&self, certificates: &Path) -> [String; 2] {
        let object = format!("tls-creds-x509,id=t,endpoint=client,dir={}", certificates.display());
        let place = match self.address() {
            Address::Unix(path) => format!("server.type=unix,server.path={},tls-hostname=localhost", path.display()),
            Address::Tcp(at) => format!("server.type=inet,server.host={},server.port={}", at.ip(), at.port()),
        };
        [object, format!("driver=nbd,{place},export=d,tls-creds=t")]
    }

    fn connect(&self) -> UnixStream {
        let Address::Unix(path) = self.address() else { panic!("a Unix socket") };
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        stream
    }

    /// Connects, up to the answer to STARTTLS.
    fn asked(&self) -> UnixStream {
        let mut stream = self.connect();
        stream.read_exact(&mut [0; 18]).unwrap();
        stream.write_all(&[&3u32.to_be_bytes()[..], &option_header(opt::STARTTLS, 0)].concat()).unwrap();
        assert_eq!(answer(&mut stream), rep::ACK);
        stream
    }

    fn encrypted(&self) -> StreamOwned<ClientConnection, UnixStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.directory.join("ca-cert.pem")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots).with_no_client_auth();
        let client = ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap();
        StreamOwned::new(client, self.asked())
    }

    /// Connects up to the transmission phase, with simple replies.
    fn raw(&self) -> StreamOwned<ClientConnection, UnixStream> {
        let mut stream = self.encrypted();
        stream.write_all(&[&option_header(opt::EXPORT_NAME, 1)[..], b"d"].concat()).unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
        stream
    }

    fn wait_empty(&self) {
        until("no client is connected", || self.export.as_ref().unwrap().connections() == 0);
    }

    fn check_idle(mut self) {
        self.export = None;
        serving::check_drained(&self.served.disk);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.export = None;
        let _ = fs::remove_dir_all(&self.served.directory);
    }
}

/// Reads the answer to an option, including its text. Returns its type.
fn answer(stream: &mut impl Read) -> u32 {
    let mut head = [0; 20];
    stream.read_exact(&mut head).unwrap();
    let [.., a, b, c, d] = head;
    let mut text = vec![0; u32::from_be_bytes([a, b, c, d]) as usize];
    stream.read_exact(&mut text).unwrap();
    u32::from_be_bytes(head[12..16].try_into().unwrap())
}

#[test]
fn libnbd_copies_both_ways() {
    for (target, tcp) in [("ram:size=64m", false), ("file", true)] {
        let server = Server::new(target, tcp, true, false);
        let uri = server.uri(&server.directory);
        let told = run("nbdinfo", &["--json", &uri]);
        for part in ["\"TLS\": true", "\"export-size\": 67108864", "\"structured\": true"] {
            assert!(told.contains(part), "'{part}' is missing in {told}");
        }
        assert!(run("nbdinfo", &["--list", &uri]).contains("secret"));
        let data = pattern(64 * MIB, 7);
        let (there, back) = (server.served.directory.join("there"), server.served.directory.join("back"));
        fs::write(&there, &data).unwrap();
        for more in [&[][..], &["--request-size=33554432"]] {
            fs::write(&back, []).unwrap();
            run("nbdcopy", &[&["--flush", there.to_str().unwrap(), &uri], more].concat());
            run("nbdcopy", &[&[&uri, back.to_str().unwrap()], more].concat());
            assert!(fs::read(&back).unwrap() == data, "{target} {more:?}: the way back differs");
        }
        server.wait_empty();
        server.check_idle();
    }
}

#[test]
fn qemu_copies_both_ways() {
    for tcp in [false, true] {
        let server = Server::new("ram:size=32m", tcp, true, true);
        let client = server.authority.client(&server.served.directory, "client", 1);
        let [object, image] = server.qemu(&client);
        let (there, back) = (server.served.directory.join("there"), server.served.directory.join("back"));
        let data = pattern(32 * MIB, 3);
        fs::write(&there, &data).unwrap();
        let (there, back) = (there.to_str().unwrap(), back.to_str().unwrap());
        let told = run("qemu-img", &["info", "--object", &object, "--image-opts", &image]);
        assert!(told.contains("32 MiB"), "{told}");
        let to = ["convert", "-n", "-f", "raw", "--object", &object, there, "--target-image-opts", &image];
        run("qemu-img", &to);
        run("qemu-img", &["convert", "-O", "raw", "--object", &object, "--image-opts", &image, back]);
        assert!(fs::read(back).unwrap() == data, "tcp {tcp}: the way back differs");
        let io = ["-c", "write -P 7 1M 2M", "-c", "write -z 2M 64k", "-c", "flush", "-c", "read -P 0 2M 64k"];
        let told = run("qemu-io", &[&["--object", &object, "--image-opts", &image], &io[..]].concat());
        assert!(!told.contains("failed") && !told.contains("error"), "{told}");
        server.check_idle();
    }
}

/// If TLS is required, nothing is disclosed without it. If TLS is offered, clients may connect with or without it.
#[test]
fn plain_clients_are_refused_where_tls_is_required() {
    let server = Server::new("ram:size=16m", false, true, false);
    for arguments in [&["--list"][..], &[]] {
        let done = try_run("nbdinfo", &[arguments, &[&server.plain()]].concat());
        assert!(!done.status.success());
        assert!(!String::from_utf8_lossy(&done.stdout).contains("secret"));
    }
    let mut stream = server.connect();
    stream.read_exact(&mut [0; 18]).unwrap();
    stream.write_all(&3u32.to_be_bytes()).unwrap();
    for option in [opt::LIST, opt::INFO, opt::GO, opt::STRUCTURED_REPLY, opt::SET_META_CONTEXT, 4711] {
        stream.write_all(&option_header(option, 0)).unwrap();
        assert_eq!(answer(&mut stream), rep::ERR_TLS_REQD, "option {option}");
    }
    stream.write_all(&[&option_header(opt::EXPORT_NAME, 1)[..], b"d"].concat()).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    server.check_idle();

    let both = Server::new("ram:size=16m", false, false, false);
    run("nbdinfo", &[&both.plain()]);
    assert!(run("nbdinfo", &["--json", &both.uri(&both.directory)]).contains("\"TLS\": true"));
    both.check_idle();
}

#[test]
fn clients_are_verified_where_that_is_asked() {
    for tcp in [false, true] {
        let server = Server::new("ram:size=16m", tcp, true, true);
        let parent = &server.served.directory;
        let strangers = Authority::new("strangers").client(parent, "stranger", 1);
        // The client trusts the server, and shows a certificate of another authority.
        fs::copy(server.directory.join("ca-cert.pem"), strangers.join("ca-cert.pem")).unwrap();
        let refused =
            [server.authority.directory(parent, "nobody"), strangers, server.authority.client(parent, "revoked", 4711)];
        for client in &refused {
            let done = try_run("nbdinfo", &[&server.uri(client)]);
            assert!(!done.status.success(), "{} was let in", client.display());
            let [object, image] = server.qemu(client);
            let done = try_run("qemu-img", &["info", "--object", &object, "--image-opts", &image]);
            assert!(!done.status.success(), "{} was let in", client.display());
        }
        let friend = server.authority.client(parent, "friend", 5);
        run("nbdinfo", &[&server.uri(&friend)]);
        server.wait_empty();
        server.check_idle();
    }
}

/// A certificate of the authority is not enough if names are listed. A common name (`localhost` in these certificates) is none of them.
#[test]
fn only_clients_with_a_listed_name_are_served() {
    for tcp in [false, true] {
        let listed = ["vm1.example", "localhost", "10.0.0.7", "vm3.site.example"];
        let server = Server::for_names("ram:size=16m", tcp, true, true, &listed);
        let parent = &server.served.directory;
        let client = |directory: &str, names: &[&str]| {
            let directory = server.authority.directory(parent, directory);
            let (cert, key) = server.authority.issue_to(names, For::Client, 7, NOW);
            fs::write(directory.join("client-cert.pem"), cert).unwrap();
            fs::write(directory.join("client-key.pem"), key).unwrap();
            directory
        };
        for (directory, names) in [
            ("first", &["vm1.example"][..]),
            ("case", &["other.example", "VM1.example"]),
            ("ip", &["10.0.0.7"]),
            ("wildcard", &["*.site.example"]),
        ] {
            run("nbdinfo", &[&server.uri(&client(directory, names))]);
        }
        for (directory, names) in [
            ("other", &["vm2.example"][..]),
            ("below", &["x.vm1.example"]),
            ("above", &["site.example"]),
            ("foreign", &["*.vm3.site.example"]),
            ("common", &[]),
            ("address", &["10.0.0.8"]),
        ] {
            let directory = client(directory, names);
            let done = try_run("nbdinfo", &[&server.uri(&directory)]);
            assert!(!done.status.success(), "{names:?} was let in");
            let [object, image] = server.qemu(&directory);
            let done = try_run("qemu-img", &["info", "--object", &object, "--image-opts", &image]);
            assert!(!done.status.success(), "{names:?} was let in");
        }
        server.wait_empty();
        server.check_idle();
    }
}

/// Records may be split anywhere, and a record may have many requests.
#[test]
fn requests_and_records_may_be_cut_anywhere() {
    let server = Server::new("file", false, true, false);
    let mut stream = server.raw();
    let data = pattern(100_864, 3);
    let write = [&request(command::WRITE, 1, 512, data.len() as u64)[..], &data].concat();
    for piece in write.chunks(9973) {
        stream.write_all(piece).unwrap();
    }
    stream.write_all(&request(command::READ, 2, 512, 0)).unwrap();
    let mut replies = [[0; 16]; 2].map(|mut reply| {
        stream.read_exact(&mut reply).unwrap();
        (reply[15], reply[7])
    });
    replies.sort_unstable();
    assert_eq!(replies, [(1, 0), (2, 22)]);
    // The ciphertext arrives byte by byte, and 200 requests in a few records.
    let reads: Vec<u8> = (0..100).flat_map(|n| request(command::READ, n, 512 * (n + 1), 512)).collect();
    let StreamOwned { conn, sock } = &mut stream;
    let mut ciphertext = Vec::new();
    conn.writer().write_all(&reads).unwrap();
    while conn.wants_write() {
        conn.write_tls(&mut ciphertext).unwrap();
    }
    ciphertext.iter().for_each(|byte| sock.write_all(&[*byte]).unwrap());
    stream.write_all(&reads).unwrap();
    for _ in 0..200 {
        let mut reply = [0; 16 + 512];
        stream.read_exact(&mut reply).unwrap();
        let at = 512 * usize::from(reply[15]);
        assert!(reply[16..] == data[at..at + 512], "block {at}");
    }
    // Frequent key changes must not use more memory.
    for _ in 0..100 {
        stream.conn.refresh_traffic_keys().unwrap();
        stream.write_all(&request(command::READ, 7, 512, 512)).unwrap();
        let mut reply = [0; 16 + 512];
        stream.read_exact(&mut reply).unwrap();
        assert!(reply[16..] == data[..512]);
    }
    // Requests before the disconnect are answered, and the server sends close_notify.
    stream.write_all(&[request(command::READ, 5, 512, 512), request(command::DISC, 6, 0, 0)].concat()).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len(), 16 + 512);
    server.wait_empty();
    server.check_idle();
}

/// Garbage before, in and after the handshake disconnects its client and no other.
#[test]
fn garbage_ends_its_client_only() {
    let server = Server::new("ram:size=16m", false, true, false);
    let mut good = server.raw();
    let end_of = |mut stream: UnixStream| {
        let mut rest = Vec::new();
        // An alert may come before the end. If the server has left data unread, the end is a reset.
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.len() < 256, "{} bytes came back", rest.len());
    };
    // Plain text instead of TLS, invalid record headers, and a record that never ends.
    let hello = [&[22, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3][..], &[0x5a; 194]].concat();
    for garbage in [&b"IHAVEOPT plain text"[..], &[0xff; 4096], &[22, 3, 1, 0xff, 0xff], &hello] {
        let mut stream = server.asked();
        stream.write_all(garbage).unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        end_of(stream);
    }
    // Plain text in the same packet as STARTTLS never counts as an option.
    let mut stream = server.connect();
    stream.read_exact(&mut [0; 18]).unwrap();
    let both = [&3u32.to_be_bytes()[..], &option_header(opt::STARTTLS, 0), &option_header(opt::LIST, 0)].concat();
    stream.write_all(&both).unwrap();
    assert_eq!(answer(&mut stream), rep::ACK);
    end_of(stream);
    // In the middle of the transmission phase, with requests in flight.
    for garbage in [&[23, 3, 3, 0, 32][..], &[0; 100_000]] {
        let mut stream = server.raw();
        stream.write_all(&request(command::WRITE, 1, 0, 512)).unwrap();
        // The first part of the garbage may have closed the connection.
        let _ = stream.sock.write_all(garbage);
        let _ = stream.sock.shutdown(std::net::Shutdown::Write);
        let _ = stream.sock.read_to_end(&mut Vec::new());
    }
    good.write_all(&request(command::READ, 1, 0, 512)).unwrap();
    let mut reply = [1; 16 + 512];
    good.read_exact(&mut reply).unwrap();
    assert!(reply[16..] == [0; 512], "a write that did not arrive was begun");
    drop(good);
    server.wait_empty();
    server.check_idle();
}

/// A client that stops in the TLS handshake is disconnected after the time limit for handshakes. Meanwhile other clients
/// can connect, and the end of a server does not wait for it.
#[test]
fn a_client_that_stalls_in_the_handshake_is_let_go() {
    let server = Server::new("ram:size=16m", false, true, false);
    let mut stalled = server.asked();
    // The beginning of a record.
    stalled.write_all(&[22, 3, 1, 2]).unwrap();
    run("nbdinfo", &[&server.uri(&server.directory)]);
    assert_eq!(stalled.read(&mut [0]).unwrap(), 0);
    let silent: Vec<UnixStream> = (0..20).map(|_| server.asked()).collect();
    server.check_idle();
    drop(silent);
}

/// If a client sends many requests and reads no replies, the server stops receiving from it, so the waiting replies are bounded.
#[test]
fn a_client_that_takes_no_replies_stops_only_itself() {
    let server = Server::new("ram:size=16m", false, true, false);
    let mut stream = server.raw();
    stream.sock.set_nonblocking(true).unwrap();
    let reads = request(command::READ, 1, 0, 1 << 20).repeat(1000);
    let mut sent = 0;
    let until = Instant::now() + Duration::from_secs(1);
    while sent < 64 << 20 && Instant::now() < until {
        match stream.write(&reads) {
            Ok(n) => sent += n,
            Err(e) => {
                assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock);
                std::thread::sleep(POLL);
            }
        }
    }
    assert!(sent < 8 << 20, "{sent} bytes of requests were received");
    run("nbdinfo", &["--map", &server.uri(&server.directory)]);
    server.check_idle();
    drop(stream);
}

#[test]
fn clients_that_vanish_leave_nothing_behind() {
    let server = Server::new("file", false, true, false);
    for n in 0..40u64 {
        let mut stream = server.raw();
        let bytes = match n % 4 {
            0 => request(command::READ, 1, 0, 1 << 20).repeat(100),
            1 => [&request(command::WRITE, 1, 0, 1 << 20)[..], &[0x77; 70_000]].concat(),
            2 => request(command::READ, 1, 0, 4096)[..11].to_vec(),
            _ => [request(command::FLUSH, 1, 0, 0), request(command::TRIM, 2, 0, 1 << 20)].concat(),
        };
        stream.write_all(&bytes).unwrap();
        if n % 3 == 0 {
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
    }
    server.wait_empty();
    let told = run(
        "qemu-img",
        &{
            let [object, image] = server.qemu(&server.directory);
            ["info".to_owned(), "--object".to_owned(), object, "--image-opts".to_owned(), image]
        }
        .each_ref()
        .map(String::as_str),
    );
    assert!(told.contains("64 MiB"), "{told}");
    server.check_idle();
}

/// Certificates are renewed under a running server. While new ones are being written, or if they are unusable, the old ones stay in use.
#[test]
fn certificates_are_renewed_while_it_runs() {
    // Over TCP, because libnbd checks a server's certificate only if there is a host name to compare.
    let server = Server::new("ram:size=16m", true, true, false);
    let old = server.uri(&server.authority.directory(&server.served.directory, "old"));
    run("nbdinfo", &[&old]);
    let put = |from: &Path, name: &str| {
        let new = server.served.directory.join("new.pem");
        fs::copy(from.join(name), &new).unwrap();
        fs::rename(&new, server.directory.join(name)).unwrap();
    };
    let other = Authority::new("the next one");
    let new = other.server(&server.served.directory, "next", NOW);
    put(&new, "server-cert.pem");
    // The key of the new certificate is not written yet.
    run("nbdinfo", &[&old]);
    put(&new, "server-key.pem");
    let uri = server.uri(&new);
    run("nbdinfo", &[&uri]);
    assert!(!try_run("nbdinfo", &[&old]).status.success(), "the old certificate is still shown");
    put(&other.server(&server.served.directory, "expired", (2000, 2001)), "server-cert.pem");
    run("nbdinfo", &[&uri]);
    server.wait_empty();
    server.check_idle();
}

/// Errors of certificates are reported before anything starts, with the file and a remedy.
#[test]
fn wrong_certificates_are_refused_with_the_reason() {
    let directory = std::env::temp_dir().join(format!("mqblk-certificates-{}", std::process::id()));
    fs::create_dir(&directory).unwrap();
    let (a, b) = (Authority::new("a"), Authority::new("b"));
    let good = a.server(&directory, "good", NOW);
    let verifying = NbdTls::in_directory(&good, true, true);
    Tls::load(&verifying).map_err(|e| e.text).unwrap();
    let refusal = |files: &NbdTls| {
        let problem = Tls::load(files).err().expect("refused");
        format!("{}: {}: {}", problem.role.key(), problem.path.file_name().unwrap().display(), problem.text)
    };
    let expired = a.server(&directory, "expired", (2000, 2001));
    let early = a.server(&directory, "early", (2099, 2100));
    let client = a.client(&directory, "client", 1);
    fs::rename(client.join("client-cert.pem"), client.join("server-cert.pem")).unwrap();
    fs::rename(client.join("client-key.pem"), client.join("server-key.pem")).unwrap();
    let swapped = b.server(&directory, "swapped", NOW);
    fs::copy(good.join("server-key.pem"), swapped.join("server-key.pem")).unwrap();
    let text = directory.join("text.pem");
    fs::write(&text, "no certificate\n").unwrap();
    let cut = directory.join("cut.pem");
    let whole = fs::read_to_string(good.join("server-cert.pem")).unwrap();
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let broken = directory.join("broken.pem");
    fs::write(&broken, "-----BEGIN CERTIFICATE-----\nMAAwAA==\n-----END CERTIFICATE-----\n").unwrap();
    let locked = directory.join("locked.pem");
    let phrase = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAAwAA==\n-----END ENCRYPTED PRIVATE KEY-----\n";
    fs::write(&locked, phrase).unwrap();
    let in_directory = |d: &Path| NbdTls::in_directory(d, true, true);
    let cert = |cert: &Path| NbdTls { cert: cert.into(), ..verifying.clone() };
    for (files, told) in [
        (
            in_directory(&directory),
            "tls_cert: server-cert.pem: No such file or directory (os error 2); name a PEM file",
        ),
        (in_directory(&expired), "tls_cert: server-cert.pem: holds a certificate that expired "),
        (in_directory(&early), "tls_cert: server-cert.pem: holds a certificate that becomes valid in "),
        (in_directory(&client), "tls_cert: server-cert.pem: holds a certificate that is not for servers"),
        (in_directory(&swapped), "tls_key: server-key.pem: is not the key of the certificate '"),
        (cert(&text), "tls_cert: text.pem: holds no certificate (PEM)"),
        (cert(&cut), "tls_cert: cut.pem: is no PEM file: a section without its end"),
        (cert(&broken), "tls_cert: broken.pem: holds a broken certificate: "),
        (cert(&directory), "is no regular file; name a PEM file"),
        (NbdTls { key: locked, ..verifying.clone() }, "tls_key: locked.pem: holds no private key (PEM)"),
        (
            NbdTls { client_ca: Some(text.clone()), ..verifying.clone() },
            "tls_client_ca: text.pem: holds no certificate",
        ),
        (NbdTls { client_crl: Some(text), ..verifying.clone() }, "tls_client_crl: text.pem: holds no revocation list"),
    ] {
        let said = refusal(&files);
        assert!(said.contains(told), "'{told}' is not in '{said}'");
        assert!(!said.contains('\n') && !said.contains("PRIVATE KEY-"), "{said}");
    }
    fs::remove_dir_all(&directory).unwrap();
}
