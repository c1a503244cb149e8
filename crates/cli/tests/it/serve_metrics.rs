// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk serve --metrics`: a page that Prometheus accepts and that counts the I/O, and hostile clients.

use crate::common;

use common::{Dir, NbdClient, Started, until};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use vuclient::{VerifyOptions, verify};

fn serving(dir: &Dir, metrics: &str) -> (Started, String) {
    File::create(dir.path("a.img")).unwrap().set_len(32 << 20).unwrap();
    let args = ["serve", "a.img", "--control=ctl.sock", "--num-queues=2", "--metrics", metrics];
    let mut daemon = dir.start(&args, "metrics at ");
    daemon.until("serving on");
    let at = daemon.seen().lines().find_map(|l| l.split("metrics at ").nth(1)).unwrap().to_owned();
    (daemon, at)
}

fn exchange(mut client: impl Read + Write, request: &[u8]) -> String {
    client.write_all(request).unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    String::from_utf8(answer).unwrap()
}

pub fn get(address: &str) -> String {
    let answer = exchange(TcpStream::connect(address).unwrap(), b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    body.to_owned()
}

fn is_name(text: &str) -> bool {
    !text.starts_with(|c: char| c.is_ascii_digit())
        && !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Splits `name{label="text",...}` into the name and the labels in their order.
pub fn parse_series(series: &str) -> (&str, Vec<(String, String)>) {
    let Some((name, rest)) = series.split_once('{') else { return (series, Vec::new()) };
    let mut rest = rest.strip_suffix('}').unwrap();
    let mut labels = Vec::new();
    while !rest.is_empty() {
        let (label, more) = rest.split_once("=\"").unwrap();
        let (mut text, mut chars) = (String::new(), more.char_indices());
        let end = loop {
            match chars.next().expect("a text has an end") {
                (_, '\\') => match chars.next().unwrap().1 {
                    'n' => text.push('\n'),
                    c @ ('\\' | '"') => text.push(c),
                    c => panic!("\\{c} is no escape"),
                },
                (at, '"') => break at + 1,
                (_, c) => text.push(c),
            }
        };
        assert!(is_name(label), "{series}");
        labels.push((label.to_owned(), text));
        rest = more[end..].strip_prefix(',').unwrap_or(&more[end..]);
    }
    (name, labels)
}

/// Checks the rules of the text format and of `promtool check metrics`. Returns the values by series.
pub fn parse(page: &str) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    let (mut seen, mut family) = (BTreeSet::new(), None::<(&str, &str)>);
    assert!(page.ends_with('\n'));
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, text) = help.split_once(' ').unwrap();
            let kind = lines.next().unwrap().strip_prefix(&format!("# TYPE {name} ")).expect("TYPE comes after HELP");
            assert!(is_name(name) && name.starts_with("mqblk_") && text.ends_with('.'), "{line}");
            assert!(seen.insert(name), "{name} stands in two pieces");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
            assert!(["counter", "gauge"].contains(&kind), "{kind}");
            for unit in ["_ns", "_ms", "_us", "_kb", "_sectors", "_milliseconds"] {
                assert!(!name.contains(&format!("{unit}_")) && !name.ends_with(unit), "{name}: no base unit");
            }
            family = Some((name, kind));
            assert!(lines.peek().is_some_and(|l| l.starts_with(name)), "{name} has no samples");
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = parse_series(series);
        assert_eq!(Some(name), family.map(|f| f.0), "a sample outside its family: {line}");
        let names: BTreeSet<_> = labels.iter().map(|(l, _)| l).collect();
        assert_eq!(names.len(), labels.len(), "{line}");
        let value: f64 = value.parse().unwrap();
        assert!(value >= 0.0 && value.is_finite(), "{line}");
        assert!(all.insert(series.to_owned(), value).is_none(), "{series} is there twice");
    }
    all
}

#[test]
fn a_page_has_what_was_done() {
    let dir = Dir::new("metrics");
    let (daemon, at) = serving(&dir, "localhost:0");
    let address = at.strip_prefix("http://").and_then(|a| a.strip_suffix("/metrics")).unwrap();
    let before = parse(&get(address));
    let socket = dir.path("a.img.vhost.sock");
    let options = VerifyOptions { queues: 2, size: 16 << 20, requests: 1000, ..VerifyOptions::default() };
    let report = verify(socket.to_str().unwrap(), &options).unwrap();
    let client = NbdClient::connect(&format!("nbd+unix:///a.img?socket={}", dir.path("a.img.nbd.sock").display()));
    // A client may be connected before the daemon has counted it.
    let mut page = String::new();
    until("the client is counted", || {
        page = get(address);
        page.contains("type=\"nbd\",disk=\"a.img\"} 1\n")
    });
    if std::env::var_os("MQBLK_SHOW_PAGE").is_some() {
        println!("{page}");
    }
    let after = parse(&page);
    assert!(client.finds_itself_served());
    for (series, value) in &before {
        let counts = series.contains("_total");
        assert!(!counts || after[series] >= *value, "{series} went from {value} to {}", after[series]);
    }
    let is = |series: &str| *after.get(series).unwrap_or_else(|| panic!("{series} is not in\n{page}"));
    assert_eq!(is("mqblk_disk_size_bytes{disk=\"a.img\"}"), f64::from(32 << 20));
    assert!(is("mqblk_disk_writes_completed_total{disk=\"a.img\"}") > 0.0);
    assert!(is("mqblk_disk_write_bytes_total{disk=\"a.img\"}") >= report.writes as f64 * 512.0);
    assert!(is("mqblk_disk_read_time_seconds_total{disk=\"a.img\"}") > 0.0);
    assert_eq!(is("mqblk_disk_errors_total{disk=\"a.img\"}"), 0.0);
    assert!(is("mqblk_stage_seconds_total{disk=\"a.img\",stage=\"device\"}") > 0.0);
    is("mqblk_stage_seconds_total{disk=\"a.img\",stage=\"tag_wait\"}");
    assert!(is("mqblk_hctx_dispatched_total{disk=\"a.img\",hctx=\"0\"}") > 0.0);
    assert!(is("mqblk_iothread_busy_seconds_total{iothread=\"iothread0\"}") > 0.0);
    assert_eq!(is("mqblk_export_clients{export=\"a.img.nbd\",type=\"nbd\",disk=\"a.img\"}"), 1.0);
    is("mqblk_build_info{version=\"0.1.0\"}");
    daemon.signal("TERM");
    daemon.ends().exits(0);
}

#[test]
fn bad_slow_or_frequent_scrapes_are_rejected_or_dropped() {
    let dir = Dir::new("metrics");
    let (daemon, _) = serving(&dir, "unix:m.sock");
    let path = dir.path("m.sock");
    let ask = |request: &[u8]| exchange(UnixStream::connect(&path).unwrap(), request);
    let page = ask(b"GET /metrics?x=1 HTTP/1.0\n\n");
    parse(page.split_once("\r\n\r\n").unwrap().1);
    let head = ask(b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    for (request, status) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "404 "),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405 "),
        (b"GET /metrics\r\n\r\n", "400 "),
        (b"\xff\xfe\r\n\r\n", "400 "),
        (b"\r\n\r\n", "400 "),
        (&[b'x'; 8192], "431 "),
    ] {
        let answer = ask(request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    // Silent clients occupy connections until they time out. Clients beyond the limit are rejected with a message, and later connections
    // are free again.
    let mut idle: Vec<_> = (0..64).map(|_| UnixStream::connect(&path).unwrap()).collect();
    let mut told = 0;
    for client in &mut idle {
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 503 "), "a silent client is dropped: {text}");
        told += usize::from(!text.is_empty());
    }
    assert!(told >= 16, "only {told} of 64 were too many");
    until("a connection is free", || ask(b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
    daemon.signal("TERM");
    daemon.ends().exits(0);
    assert!(!path.exists());
    let bad = dir.mqblk(&["serve", "a.img", "--metrics=9750"]).exits(2);
    bad.says(&["'9750': must be an address and a port, such as ", ", or unix:PATH"]);
}
