// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fault injection by `mqblk ctl inject`, as clients of NBD, FUSE and vhost-user-blk see it.

use crate::common;
use crate::serve_metrics::get;

use common::{Daemon, Dir, Done, LONG, until_reported};
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::thread;
use vuclient::raw::message::feature::{BLK_FLUSH, VERSION_1};
use vuclient::raw::message::protocol;
use vuclient::raw::{Format, Notify, Raw, block};

/// Carries out steps with a semicolon between them: an operation, an offset and a length. Prints how each ended; of a prefix the length of
/// the data, which nothing but zeroes may follow.
const SESSION: &str = "
import nbd, sys, errno
h = nbd.NBD()
h.connect_uri(sys.argv[1])
for step in sys.argv[2].split(';'):
    op, at, n = step.split()
    at, n = int(at), int(n)
    try:
        if op == 'read': h.pread(n, at)
        elif op == 'write': h.pwrite(b'x' * n, at)
        elif op == 'zero': h.zero(n, at)
        elif op == 'trim': h.trim(n, at)
        elif op == 'flush': h.flush()
        elif op == 'prefix':
            data = h.pread(n, at)
            kept = len(data) - len(data.lstrip(b'x'))
            assert not any(data[kept:])
            print(kept)
            continue
        print('ok')
    except nbd.Error as e:
        print(errno.errorcode[e.errnum])
";

/// A disk `a` in memory behind an NBD export of the same name.
const NBD: &str = "[[disk]]\nname = \"a\"\ntarget = \"ram:size=16m\"\n\
     [[export]]\nname = \"a.n\"\ndisk = \"a\"\ntype = \"nbd\"\nsocket = \"nbd.sock\"\nexport_name = \"a\"\n";

/// Starts a daemon with this configuration and with metrics.
fn start(config: &str) -> Daemon {
    let dir = Dir::new("inject");
    dir.file("serve.toml", config);
    Daemon::start(dir, &["--metrics", "127.0.0.1:0"])
}

impl Daemon {
    /// Runs `ctl inject a` with these flags. Returns its output.
    #[track_caller]
    fn inject(&self, flags: &str) -> String {
        let flags: Vec<&str> = flags.split_whitespace().collect();
        self.ctl(&[&["inject", "a"], &flags[..]].concat()).exits(0).out
    }

    /// Returns the disk of `ctl list`.
    fn disk(&self) -> Value {
        self.json("list")["disks"][0].clone()
    }

    /// Runs [`SESSION`] over NBD.
    fn try_session(&self, steps: &str) -> Done {
        let uri = format!("nbd+unix:///a?socket={}", self.dir.path("nbd.sock").display());
        self.dir.program("/usr/bin/python3", &["-c", SESSION, &uri, steps])
    }

    /// Carries out steps of [`SESSION`]. Returns how they ended.
    fn session(&self, steps: &str) -> Vec<String> {
        self.try_session(steps).exits(0).out.lines().map(str::to_owned).collect()
    }

    /// Waits until the rule of the disk has hit a request.
    #[track_caller]
    fn wait_for_hit(&self) {
        until_reported("the rule hits a request", || self.disk()["injections"][0]["hits"] != 0);
    }

    /// Sends a read, which a rule of the disk delays, and does something meanwhile. Returns how the client ended.
    #[track_caller]
    fn while_a_read_is_delayed(&self, meanwhile: impl FnOnce()) -> Done {
        thread::scope(|scope| {
            let waits = scope.spawn(|| self.try_session("read 0 512"));
            until_reported("the read is delayed", || self.json("stats")["disks"][0]["in_flight"] == 1);
            meanwhile();
            waits.join().unwrap()
        })
    }

    /// Makes it read another configuration, with complete success.
    #[track_caller]
    fn reload(&self, config: &str) {
        self.dir.file("serve.toml", config);
        let said = self.done(&["reload"]);
        assert!(!said.contains("failed"), "{said}");
    }

    fn metric(&self, series: &str) -> String {
        let at = self.started.seen().lines().find_map(|l| l.split("metrics at http://").nth(1)).unwrap();
        let page = get(at.trim_end_matches("/metrics"));
        let line = page.lines().find_map(|l| l.strip_prefix(series)).unwrap_or_else(|| panic!("no {series} in {page}"));
        line.trim().to_owned()
    }
}

#[test]
fn errors_hit_the_requests_that_their_rule_names() {
    let mut d = start(NBD);
    let added = d.inject("--error medium --op write,write-zeroes --sector 8+8 --count 3");
    assert_eq!(added, "disk 'a': added rule 1 (error=medium op=write,write-zeroes sector=8+8 count=3)\n");
    let steps = "write 4096 4096;write 0 4096;read 4096 4096;write 0 8192;zero 4608 512;write 4096 4096;flush 0 0";
    assert_eq!(d.session(steps), ["EIO", "ok", "ok", "EIO", "EIO", "ok", "ok"]);
    d.inject("--error NOSPC --op flush");
    assert_eq!(d.session("flush 0 0;write 0 512;flush 0 0"), ["ENOSPC", "ok", "ENOSPC"]);

    let disk = d.disk();
    let flush = json!({ "fault": "error", "status": "nospc", "op": ["flush"], "probability": 1.0, "seed": disk["injections"][1]["rule"]["seed"] });
    assert_eq!((&disk["injections"][0]["hits"], &disk["injections"][1]["rule"]), (&json!(3), &flush), "{disk:#}");
    let trouble = disk["troubles"][0].as_str().unwrap();
    assert!(trouble.starts_with("faults are injected: rule 1 (error=medium"), "{trouble}");
    assert!(trouble.ends_with("'mqblk ctl inject a --remove all' ends that"), "{trouble}");
    assert!(d.ctl(&["list"]).exits(0).out.contains("\n  faults are injected: rule 1"));
    let listed = d.inject("--list");
    assert!(listed.contains("rule 2 (error=nospc op=flush) has hit 2 requests\n"), "{listed}");
    let as_json = d.ctl(&["inject", "a", "--list", "--json"]).exits(0).json();
    assert_eq!(as_json["injections"], disk["injections"]);
    assert_eq!(d.metric("mqblk_disk_injected_faults_total{disk=\"a\"}"), "5");

    d.started.until("requests got an injected fault");
    let removed = d.inject("--remove 1");
    assert!(removed.starts_with("disk 'a': removed; rule 1 ("), "{removed}");
    d.inject("--remove all");
    assert_eq!(d.inject("--remove all"), "disk 'a' has no rules\n");
    // An injected failure of a flush is not one of the device, which would be remembered.
    assert_eq!(d.session("flush 0 0;write 4096 4096"), ["ok", "ok"]);
    assert_eq!(d.metric("mqblk_disk_flush_failed{disk=\"a\"}"), "0");
    assert_eq!((&d.disk()["injections"], &d.disk()["troubles"]), (&json!([]), &json!([])));
    d.ends().says(&["fault injection begins: rule 2 (error=nospc op=flush)", "fault injection ends: rule 1 ("]);
}

#[test]
fn a_seed_repeats_which_requests_fail() {
    let d = start(NBD);
    let steps = ["read 0 512"; 100].join(";");
    let with = |seed: &str| {
        d.inject(&format!("--error --probability 0.5 --seed {seed}"));
        let results = d.session(&steps);
        d.inject("--remove all");
        assert!(results.iter().any(|r| r == "ok") && results.iter().any(|r| r == "EIO"), "{results:?}");
        results
    };
    let first = with("7");
    assert_eq!(first, with("7"));
    assert_ne!(first, with("8"));
    d.ends();
}

#[test]
fn rules_end_with_their_disk_and_bad_ones_are_rejected() {
    let d = start(NBD);
    for (flags, text) in [
        ("--error --sector 32768", "must be within the 32768 sectors of the disk"),
        ("--error --probability 2", "probability=2: must be above 0 and at most 1"),
        ("--error --op flush --sector 0", "a flush has no sectors"),
        ("--remove 1", "there is no rule 1"),
        ("--error lost", "ioerr"),
    ] {
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let done = d.ctl(&[&["inject", "a"], &flags[..]].concat()).exits(2);
        assert!(done.err.contains(text), "'{text}' is missing in {done:?}");
    }
    d.ctl(&["inject", "b", "--error"]).exits(2).says(&["there is no disk 'b'"]);
    assert_eq!(d.disk()["injections"], json!([]));
    d.inject("--error");
    assert_eq!(d.session("read 0 512;zero 0 512;trim 0 4096"), ["EIO"; 3]);
    d.ctl(&["remove", "--force", "a"]).exits(0);
    d.dir.file("again.toml", NBD);
    d.ctl(&["add", "again.toml"]).exits(0);
    assert_eq!((d.session("read 0 512"), &d.disk()["injections"]), (vec!["ok".to_owned()], &json!([])));
    d.inject("--error");
    // A reload that opens another target under the name ends the rules, too. One without a difference does not.
    d.ctl(&["reload"]).exits(0);
    assert_eq!(d.session("read 0 512"), ["EIO"]);
    d.dir.file("serve.toml", &NBD.replace("16m", "8m"));
    d.ctl(&["reload"]).exits(0);
    assert_eq!((d.session("read 0 512"), &d.disk()["injections"]), (vec!["ok".to_owned()], &json!([])));
    d.ends().says(&["fault injection ends with the disk: rule 1 (error=ioerr)"]);
}

#[test]
fn a_delayed_request_waits_for_its_rule_and_no_other_waits() {
    let d = start(NBD);
    d.inject("--delay 1ms");
    assert_eq!(d.session("read 0 512;write 0 4096;flush 0 0;zero 0 512"), ["ok"; 4]);
    d.inject("--remove all");
    d.inject("--delay 60m --op write");
    thread::scope(|scope| {
        let waits = scope.spawn(|| d.session("write 0 512"));
        d.wait_for_hit();
        assert_eq!(d.session("read 0 512;flush 0 0"), ["ok"; 2]);
        assert!(!waits.is_finished());
        d.inject("--remove all");
        assert_eq!(waits.join().unwrap(), ["ok"]);
    });
    d.ends();
}

/// Once, `remove --force` of an export failed as long as one of its requests was delayed, up to an hour.
#[test]
fn no_end_waits_for_delayed_requests() {
    type End = fn(&Daemon);
    let ends: [(&str, bool, End); 7] = [
        ("rule", true, |d| drop(d.inject("--remove all"))),
        ("export", true, |d| assert_eq!(d.done(&["remove", "--force", "a.n"]), "ended export 'a.n'\n")),
        ("disk", true, |d| assert_eq!(d.done(&["remove", "--force", "a"]), "ended export 'a.n'\nclosed disk 'a'\n")),
        ("reload with another target", true, |d| d.reload(&NBD.replace("16m", "8m"))),
        ("reload without the disk", true, |d| d.reload(&NBD.replace("\"a", "\"b").replace("nbd.sock", "b.sock"))),
        ("shutdown", false, |d| drop(d.done(&["shutdown"]))),
        ("SIGTERM", false, |d| d.started.signal("TERM")),
    ];
    for (what, lives, end) in ends {
        let d = start(NBD);
        d.inject("--delay 60m --op read");
        d.while_a_read_is_delayed(|| {
            println!("{what}");
            d.refused(&["remove", "a.n"], "export 'a.n' has clients");
            end(&d);
        });
        let done = if lives { d.ends() } else { d.started.ends().exits(0) };
        done.says(&["fault injection ends"]);
    }
}

/// The rule stays, and delays later requests.
#[test]
fn an_export_that_waits_for_a_delayed_request_ends_by_force() {
    let vhost = "[[export]]\nname = \"a.v\"\ndisk = \"a\"\ntype = \"vhost-user-blk\"\nsocket = \"v.sock\"\n";
    let disk = NBD.split("[[export]]").next().unwrap();
    let both = [NBD, vhost].concat();
    let d = start(&both);
    d.inject("--delay 60m --op read");
    d.while_a_read_is_delayed(|| {
        d.dir.file("serve.toml", &[disk, vhost].concat());
        let stuck = "failed: export 'a.n' has disconnected its clients, but has not ended after 10 s: 1 request of disk 'a' in flight \
                     (faults are injected: rule 1 (delay=3600s op=read) has hit 1 requests; 'mqblk ctl inject a --remove all' ends that)";
        d.ctl(&["reload"]).exits(0).prints(&[stuck, "mqblk ctl remove --force a.n"]);
        assert_eq!(d.done(&["remove", "--force", "a.n"]), "ended 'a.n'\n");
    });
    d.reload(&both);
    let read = d.while_a_read_is_delayed(|| {
        assert_eq!(d.disk()["injections"][0]["hits"], 2);
        d.inject("--remove all");
    });
    assert_eq!(read.exits(0).out, "ok\n");
    d.ends();
}

#[test]
fn a_torn_write_leaves_its_first_blocks_and_an_error() {
    let d = start(NBD);
    let mut lengths = Vec::new();
    for (seed, sector) in [(3, 0), (3, 2048), (4, 4096)] {
        d.inject(&format!("--torn --seed {seed} --sector {sector}+256"));
        let at = sector * 512;
        let results = d.session(&format!("write {at} 131072;prefix {at} 131072"));
        assert_eq!(results[0], "EIO");
        lengths.push(results[1].parse::<u64>().unwrap());
        d.inject("--remove all");
    }
    assert!(lengths.iter().all(|n| n.is_multiple_of(512) && *n < 131_072), "{lengths:?}");
    assert!(lengths[0] == lengths[1] && lengths[0] != lengths[2], "by the seed: {lengths:?}");
    assert_eq!(d.session("write 0 131072;prefix 0 131072"), ["ok", "131072"]);
    d.inject("--torn");
    assert_eq!(d.session("zero 0 131072;read 0 4096;write 0 512;prefix 0 512"), ["ok", "ok", "EIO", "0"]);
    let mixed = d.ctl(&["inject", "a", "--torn", "--op", "discard"]).exits(2);
    mixed.says(&["torn: only writes can be torn"]);
    d.ends();
}

#[test]
fn every_export_of_a_striped_disk_reports_injected_errors() {
    let config = "[[disk]]\nname = \"a\"\nstack = \"stripe\"\nchunk = \"64k\"\n\
         targets = [\"ram:size=8m\", \"ram:size=8m\"]\n\
         [[export]]\nname = \"a.n\"\ndisk = \"a\"\ntype = \"nbd\"\nsocket = \"nbd.sock\"\nexport_name = \"a\"\n\
         [[export]]\nname = \"a.v\"\ndisk = \"a\"\ntype = \"vhost-user-blk\"\nsocket = \"v.sock\"\n\
         [[export]]\nname = \"a.f\"\ndisk = \"a\"\ntype = \"fuse\"\nmountpoint = \"mount\"\n";
    let dir = Dir::new("inject");
    dir.file("serve.toml", config).file("mount", "");
    let d = Daemon::start(dir, &[]);
    // The sector is one of the disk: it is in the second chunk, and so on the second target.
    d.inject("--error --op write --sector 128+8");
    assert_eq!(d.session("write 65536 4096;write 0 4096"), ["EIO", "ok"]);
    let file = OpenOptions::new().write(true).open(d.dir.path("mount")).unwrap();
    assert_eq!(file.write_all_at(&[7; 4096], 65536).unwrap_err().raw_os_error(), Some(5));
    file.write_all_at(&[7; 4096], 0).unwrap();
    drop(file);
    let socket = d.dir.path("v.sock");
    let mut raw = Raw::ready(socket.to_str().unwrap(), VERSION_1 | BLK_FLUSH, protocol::MQ | protocol::CONFIG).unwrap();
    raw.start(0, 64, Format::Split, Notify::Both).unwrap();
    let mut status = |sector: u64| {
        let request = raw.block(block::OUT, sector, 4096).unwrap();
        raw.execute(0, &request, LONG).unwrap().0
    };
    assert_eq!((status(128), status(0)), (block::IOERR, block::OK));
    drop(raw);
    assert_eq!(d.disk()["injections"][0]["hits"], json!(3));
    d.ends();
}
