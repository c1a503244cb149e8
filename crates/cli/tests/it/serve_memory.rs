// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of a daemon's clients: it goes back when they leave, and has a limit.

use crate::common;

use common::{Dir, Done, LONG, number, until, until_reported};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Connects clients that each write so many MiB at once, one after the other, prints the daemon's memory, and ends.
const CLIENTS: &str = "
import nbd, sys
uri, count, mib = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
clients = []
for i in range(count):
    h = nbd.NBD()
    h.connect_uri(uri)
    clients.append(h)
data = b'x' * (mib << 20)
for h in clients:
    try:
        h.pwrite(data, 0)
        print('written', flush=True)
    except nbd.Error as e:
        print(e.errno, flush=True)
        # The client stays.
        h.pwrite(data[:512], 0)
print(open('/proc/%s/status' % sys.argv[4]).read().split('VmRSS:')[1].split()[0])
";

#[test]
fn memory_of_clients_goes_back_when_they_leave() {
    let dir = Dir::new("client-memory");
    let args = ["serve", "null:size=1g", "--control", "ctl.sock", "--max-client-memory", "1g"];
    let daemon = dir.start(&args, "serving on");
    let uri = format!("nbd+unix:///null?socket={}", dir.path("null.nbd.sock").display());
    let pid = daemon.id().to_string();
    let taken =
        || number(&dir.mqblk(&["ctl", "--control", "ctl.sock", "stats"]).exits(0).json(), "/client_memory/taken");
    let clients = |count: &str, mib: &str| {
        let done = dir.program("/usr/bin/python3", &["-c", CLIENTS, &uri, count, mib, &pid]).exits(0).out;
        // An IOThread drops a client after the client has seen the end.
        until_reported("memory of clients that have left is given back", || taken() == 0.0);
        done
    };
    let told = clients("10", "30");
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines[..10], ["written"; 10]);
    assert!(lines[10].parse::<u64>().unwrap() > 300 << 10, "their buffers hold 300 MiB: {told}");
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let rss = status.split("VmRSS:").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
    assert!(rss.parse::<u64>().unwrap() < 150 << 10, "{rss} kB without a client");
    daemon.signal("TERM");
    daemon.ends().exits(0);
}

/// Runs clients at a daemon whose clients may have 200 MiB. Returns what became of each, and what the daemon said.
fn clients_with_200_mib(test: &str, count: usize, mib: &str) -> (Vec<String>, Done) {
    let dir = Dir::new(test);
    let daemon = dir.start(&["serve", "null:size=1g", "--max-client-memory", "200m"], "serving on");
    let uri = format!("nbd+unix:///null?socket={}", dir.path("null.nbd.sock").display());
    let (n, pid) = (count.to_string(), daemon.id().to_string());
    let told = dir.program("/usr/bin/python3", &["-c", CLIENTS, &uri, &n, mib, &pid]).exits(0).out;
    daemon.signal("TERM");
    (told.lines().take(count).map(str::to_owned).collect(), daemon.ends().exits(0))
}

/// A request fails if with its buffers the client's owner would go beyond half of the memory; the others are served.
#[test]
fn clients_have_no_more_memory_than_the_limit() {
    // Each has 8 MiB, and 32 MiB more for a long request: two get these.
    let (told, done) = clients_with_200_mib("client-memory-limit", 4, "30");
    assert_eq!(told, ["written", "written", "ENOMEM", "ENOMEM"]);
    done.says(&["buffers of 33554432 bytes: clients of uid ", " have 100663296 of 209715200, and one user"]);
}

/// Each client has 8 MiB, and half of the memory has room for one request over 32 MiB. The first one used to keep that until its client
/// left.
#[test]
fn the_longest_requests_have_their_memory_one_by_one() {
    assert_eq!(clients_with_200_mib("client-memory-longest", 4, "40").0, ["written"; 4]);
}

/// Types of option replies.
const ACK: u32 = 1;
const INFO: u32 = 3;
const ERR_POLICY: u32 = 0x8000_0002;
/// Commands, and an error of a reply.
const READ: u16 = 0;
const WRITE: u16 = 1;
const ENOMEM: u32 = 12;

/// A client in the handshake, which sends its options itself.
struct Raw<S>(S);

impl Raw<UnixStream> {
    fn new(socket: &Path) -> Raw<UnixStream> {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        Raw::greeted(stream)
    }
}

impl<S: Read + Write> Raw<S> {
    /// Receives the greeting.
    fn greeted(mut stream: S) -> Raw<S> {
        stream.read_exact(&mut [0; 18]).unwrap();
        // "Fixed newstyle", without zeroes.
        stream.write_all(&3u32.to_be_bytes()).unwrap();
        Raw(stream)
    }

    fn send(&mut self, option: u32, data: &[u8]) {
        let head = [&b"IHAVEOPT"[..], &option.to_be_bytes(), &(data.len() as u32).to_be_bytes()].concat();
        self.0.write_all(&[&head[..], data].concat()).unwrap();
    }

    /// Asks for the default export by GO. Returns the type of the last reply.
    fn go(&mut self) -> u32 {
        self.send(7, &[0; 6]);
        loop {
            let mut head = [0; 20];
            self.0.read_exact(&mut head).unwrap();
            let field = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            self.0.read_exact(&mut vec![0; field(16) as usize]).unwrap();
            if field(12) != INFO {
                return field(12);
            }
        }
    }

    /// Sends the head of a request for the first bytes. Its cookie is the command.
    fn request(&mut self, command: u16, bytes: u32) {
        let (magic, cookie) = (0x2560_9513u32.to_be_bytes(), u64::from(command).to_be_bytes());
        let head = [&magic[..], &[0; 2], &command.to_be_bytes(), &cookie, &[0; 8], &bytes.to_be_bytes()].concat();
        self.0.write_all(&head).unwrap();
    }

    /// Receives a reply without data. Returns its cookie and its error.
    fn reply(&mut self) -> (u64, u32) {
        let mut head = [0; 16];
        self.0.read_exact(&mut head).unwrap();
        assert_eq!(head[..4], 0x6744_6698u32.to_be_bytes());
        let error = u32::from_be_bytes(head[4..8].try_into().unwrap());
        (u64::from_be_bytes(head[8..].try_into().unwrap()), error)
    }

    /// Writes so many bytes. Returns the error.
    fn write(&mut self, bytes: u32) -> u32 {
        self.request(WRITE, bytes);
        self.0.write_all(&vec![0; bytes as usize]).unwrap();
        let (cookie, error) = self.reply();
        assert_eq!(cookie, u64::from(WRITE));
        error
    }
}

/// A client used to be dropped with everything that it had in flight if there was no memory for one more request.
#[test]
fn a_request_without_memory_fails_and_its_client_stays() {
    let dir = Dir::new("client-memory-stays");
    let args = ["serve", "null:size=1g", "--control", "ctl.sock", "--max-client-memory", "200m"];
    let daemon = dir.start(&args, "serving on");
    let [mut long, mut other] = [(), ()].map(|()| Raw::new(&dir.path("null.nbd.sock")));
    assert_eq!([long.go(), other.go()], [ACK, ACK]);
    // It has 64 MiB until its data has arrived. With 32 MiB for another request the user would have more than half.
    long.request(WRITE, 40 << 20);
    let taken =
        || number(&dir.mqblk(&["ctl", "--control", "ctl.sock", "stats"]).exits(0).json(), "/client_memory/taken");
    until_reported("the long request has its memory", || taken() >= f64::from(80u32 << 20));
    other.request(READ, 1 << 20);
    assert_eq!(other.reply(), (u64::from(READ), ENOMEM));
    assert_eq!((other.write(1 << 20), other.write(512)), (ENOMEM, 0));
    long.0.write_all(&vec![0; 40 << 20]).unwrap();
    assert_eq!((long.reply(), other.write(1 << 20)), ((u64::from(WRITE), 0), 0));
    drop((long, other));
    daemon.signal("TERM");
    daemon.ends().exits(0).says(&["a request fails for lack of memory: buffers of 33554432 bytes: clients of uid "]);
}

/// A client for which there was no memory used to be dropped after the server had confirmed its export.
#[test]
fn a_client_without_memory_is_refused_its_export() {
    let dir = Dir::new("client-memory-refused");
    let daemon = dir.start(&["serve", "null:size=1g", "--max-client-memory", "10m"], "serving on");
    let socket = dir.path("null.nbd.sock");
    let mut first = Raw::new(&socket);
    assert_eq!(first.go(), ACK);
    assert_eq!(Raw::new(&socket).go(), ERR_POLICY);
    // EXPORT_NAME has no reply for an error, so this client gets nothing.
    let mut old = Raw::new(&socket);
    old.send(1, b"");
    assert_eq!(old.0.read(&mut [0; 1]).unwrap(), 0);
    drop(first);
    // An IOThread drops a client after the client has left.
    until("memory of a client that has left is given back", || Raw::new(&socket).go() == ACK);
    daemon.signal("TERM");
    daemon.ends().exits(0).says(&["a client is refused: buffers of 8388608 bytes: clients have 8388608 of 10485760"]);
}

/// Clients of one user used to take all memory, and clients of all others were refused then.
#[test]
fn one_user_leaves_memory_to_other_clients() {
    let dir = Dir::new("client-memory-owner");
    let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let export =
        |name: &str, listen: &str| format!("[[export]]\nname = \"{name}\"\ndisk = \"d\"\ntype = \"nbd\"\n{listen}\n");
    let exports = [export("local", "socket = \"d.sock\""), export("remote", &format!("listen = \"{at}\""))].concat();
    dir.file("c.toml", &format!("[[disk]]\nname = \"d\"\ntarget = \"null:size=1g\"\n{exports}"));
    let daemon = dir.start(&["serve", "c.toml", "--max-client-memory", "100m"], "serving on");
    let mut local: Vec<_> = (0..8).map(|_| Raw::new(&dir.path("d.sock"))).collect();
    // Six have 48 MiB; with a seventh the user would have more than half.
    let answers: Vec<u32> = local.iter_mut().map(Raw::go).collect();
    assert_eq!(answers, [ACK, ACK, ACK, ACK, ACK, ACK, ERR_POLICY, ERR_POLICY]);
    let remote = TcpStream::connect(at).unwrap();
    remote.set_read_timeout(Some(LONG)).unwrap();
    let mut remote = Raw::greeted(remote);
    assert_eq!(remote.go(), ACK);
    drop((local, remote));
    daemon.signal("TERM");
    let done = daemon.ends().exits(0);
    done.says(&["buffers of 8388608 bytes: clients of uid ", " have 50331648 of 104857600, and one user"]);
}
