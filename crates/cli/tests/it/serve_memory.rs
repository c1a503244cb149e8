// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of a daemon's clients: it goes back when they leave, and has a limit.

use crate::common;

use common::{Dir, number};
use std::fs;
use std::time::{Duration, Instant};

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
    except nbd.Error:
        print('refused', flush=True)
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
        let until = Instant::now() + Duration::from_secs(300);
        while taken() > 0.0 {
            assert!(Instant::now() < until, "memory of clients that have left is not given back");
            std::thread::yield_now();
        }
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

/// A client that would go beyond the limit is refused its buffers; the others are served.
#[test]
fn clients_have_no_more_memory_than_the_limit() {
    let dir = Dir::new("client-memory-limit");
    let daemon = dir.start(&["serve", "null:size=1g", "--max-client-memory", "100m"], "serving on");
    let uri = format!("nbd+unix:///null?socket={}", dir.path("null.nbd.sock").display());
    let pid = daemon.id().to_string();
    let done = dir.program("/usr/bin/python3", &["-c", CLIENTS, &uri, "4", "30", &pid]).exits(0).out;
    // Each has 8 MiB, and 32 MiB more for a long request: two get these.
    assert_eq!(done.lines().take(4).collect::<Vec<_>>(), ["written", "written", "refused", "refused"]);
    daemon.signal("TERM");
    daemon.ends().exits(0).says(&["buffers of 33554432 bytes: clients have 100663296 of 104857600"]);
}

/// Each client has 8 MiB, and there is room for one request over 32 MiB. The first of them used to keep that until its client left.
#[test]
fn the_longest_requests_have_their_memory_one_by_one() {
    let dir = Dir::new("client-memory-longest");
    let daemon = dir.start(&["serve", "null:size=1g", "--max-client-memory", "100m"], "serving on");
    let uri = format!("nbd+unix:///null?socket={}", dir.path("null.nbd.sock").display());
    let pid = daemon.id().to_string();
    let done = dir.program("/usr/bin/python3", &["-c", CLIENTS, &uri, "4", "40", &pid]).exits(0).out;
    assert_eq!(done.lines().take(4).collect::<Vec<_>>(), ["written"; 4]);
    daemon.signal("TERM");
    daemon.ends().exits(0);
}
