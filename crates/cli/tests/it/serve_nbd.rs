// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk serve` as a daemon for NBD clients under TLS: the printed commands work as printed, clients without TLS are rejected, and
//! unusable certificates are rejected before anything is changed.

use crate::certificates;
use crate::common;

use certificates::{Authority, NOW};
use common::{Dir, until};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Returns the commands for the clients of an NBD export.
fn clients<'a>(plan: &'a Value, export: &str) -> &'a Value {
    let exports = plan["exports"].as_array().unwrap();
    &exports.iter().find(|e| e["name"] == export).unwrap()["clients"]
}

/// `localhost` often has an address of IPv4 and one of IPv6; clients come to either.
#[test]
fn a_server_listens_at_all_addresses_of_a_name() {
    let dir = Dir::new("serve-nbd-name");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let disk = "[[disk]]\nname = \"d\"\ntarget = \"ram:size=1m\"\n[[export]]\ntype = \"nbd\"\nexport_name = \"d\"\n";
    dir.file("c.toml", &format!("{disk}listen = \"localhost:{port}\"\n"));
    let daemon = dir.start(&["serve", "c.toml"], "serving on");
    assert!(!daemon.seen().contains("is not loopback"), "{}", daemon.seen());
    let all: Vec<_> = ("localhost", port).to_socket_addrs().unwrap().collect();
    let here = all.iter().filter(|at| TcpListener::bind((at.ip(), 0)).is_ok());
    for uri in here.map(|at| format!("nbd://{at}/d")).chain([format!("nbd://localhost:{port}/d")]) {
        assert_eq!(dir.program("nbdinfo", &["--size", &uri]).exits(0).out.trim(), "1048576", "{uri}");
    }
    daemon.signal("TERM");
    daemon.ends().exits(0);
}

#[test]
fn the_printed_commands_work_under_tls() {
    let dir = Dir::new("serve-nbd");
    let image: Vec<u8> = (0..8u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(dir.path("disk.img"), &image).unwrap();
    Authority::new("tests").server(dir.as_path(), "pki", NOW);
    let arguments = ["serve", "disk.img", "--tls-certificates", "pki"];
    let plan = dir.mqblk(&[&arguments[..], &["--dry-run", "--json"]].concat()).exits(0).json();
    assert_eq!(plan["exports"][1]["tls"], "require");
    let started = dir.start(&arguments, "serving");
    let clients = clients(&plan, "disk.img.nbd");
    let shell = |key: &str| dir.program("bash", &["-c", clients[key].as_str().unwrap()]);
    shell("nbdinfo").exits(0).prints(&["export-size: 8388608", "protocol: newstyle-fixed with TLS"]);
    shell("nbdcopy").exits(0);
    assert!(fs::read(dir.path("copy.img")).unwrap() == image, "the copy differs");
    shell("qemu_img").exits(0).prints(&["virtual size: 8 MiB"]);
    let plain = format!("nbd+unix:///?socket={}", dir.path("disk.img.nbd.sock").display());
    assert_ne!(dir.program("nbdinfo", &[&plain]).status, 0);
    started.signal("TERM");
    started.ends().exits(0);
}

#[test]
fn a_configuration_offers_tls_over_tcp() {
    let dir = Dir::new("serve-nbd");
    let authority = Authority::new("tests");
    authority.server(dir.as_path(), "pki", NOW);
    let client = authority.client(dir.as_path(), "client", 1);
    let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    dir.file(
        "c.toml",
        &format!(
            "[[disk]]\ntarget = \"ram:size=8m\"\nname = \"d\"\n[[export]]\ntype = \"nbd\"\nlisten = \"{at}\"\n\
             tls = \"on\"\ntls_certificates = \"pki\"\ntls_verify_peer = true\n"
        ),
    );
    let started = dir.start(&["serve", "c.toml"], "serving");
    dir.program("nbdinfo", &[&format!("nbd://{at}/d")]).exits(0);
    let uri = |directory: &str| format!("nbds://{at}/d?tls-certificates={directory}");
    dir.program("nbdinfo", &[&uri(client.to_str().unwrap())]).exits(0).prints(&["with TLS"]);
    let stranger = authority.directory(dir.as_path(), "stranger");
    assert_ne!(dir.program("nbdinfo", &[&uri(stranger.to_str().unwrap())]).status, 0);
    started.signal("TERM");
    started.ends().exits(0);
}

#[test]
fn certificates_that_cannot_be_used_are_refused() {
    let dir = Dir::new("serve-nbd");
    let authority = Authority::new("tests");
    authority.server(dir.as_path(), "expired", (2000, 2001));
    authority.server(dir.as_path(), "pki", NOW);
    dir.file("c.toml", "[[disk]]\ntarget = \"null\"\n[[export]]\ntype = \"nbd\"\ntls = \"on\"\ntls_cert = \"expired/server-cert.pem\"\ntls_key = \"pki/server-key.pem\"\n");
    dir.file("vhost.toml", "[[disk]]\ntarget = \"null\"\n[[export]]\ntype = \"vhost-user-blk\"\n");
    let before = dir.list();
    let refused = |arguments: &[&str], says: &str| {
        let done = dir.mqblk(&[&["serve"], arguments].concat()).exits(2);
        assert_eq!((dir.list(), done.out.as_str()), (before.clone(), ""), "nothing is touched: {done:?}");
        done.says(&[says]);
        done
    };
    let one = |arguments: &[&str], says: &str| assert_eq!(refused(arguments, says).err.lines().count(), 1);
    one(
        &["null", "--tls-certificates", "none"],
        "mqblk: tls_cert=none/server-cert.pem: No such file or directory (os error 2); name a PEM file (export 'null.nbd')",
    );
    one(
        &["null", "--tls-certificates", "expired"],
        "tls_cert=expired/server-cert.pem: holds a certificate that expired ",
    );
    one(&["c.toml"], "mqblk: c.toml:6: tls_cert=expired/server-cert.pem: holds a certificate that expired ");
    one(&["vhost.toml", "--tls-certificates", "pki"], "--tls-certificates=pki: there is no NBD export");
    refused(&["null", "--tls", "require"], "--tls-certificates <DIR>");
    refused(&["null", "--tls-verify-peer"], "--tls-certificates <DIR>");
    refused(&["null", "--tls", "yes", "--tls-certificates", "pki"], "[possible values: off, on, require]");
}

/// Once, unusable new certificates were ignored without a message until the old ones expired.
#[test]
fn renewed_certificates_that_cannot_be_used_are_told() {
    let dir = Dir::new("serve-nbd");
    let authority = Authority::new("tests");
    let pki = authority.server(dir.as_path(), "pki", NOW);
    let expired = authority.server(dir.as_path(), "expired", (2000, 2001));
    let next = authority.server(dir.as_path(), "next", NOW);
    File::create(dir.path("disk.img")).unwrap().set_len(1 << 20).unwrap();
    let arguments = ["serve", "disk.img", "--tls-certificates=pki", "--control=ctl.sock", "--metrics=unix:m.sock"];
    let mut started = dir.start(&arguments, "serving");
    let uri = format!("nbds+unix:///?socket={}&tls-certificates=pki", dir.path("disk.img.nbd.sock").display());
    let put = |from: &Path| {
        for name in ["server-key.pem", "server-cert.pem"] {
            fs::copy(from.join(name), dir.path("new.pem")).unwrap();
            fs::rename(dir.path("new.pem"), pki.join(name)).unwrap();
        }
    };
    let ctl = |what: &str| dir.mqblk(&["ctl", "--control=ctl.sock", what]).exits(0).out;
    let stale = || {
        let mut client = UnixStream::connect(dir.path("m.sock")).unwrap();
        client.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut page = String::new();
        client.read_to_string(&mut page).unwrap();
        let line = page.lines().find(|l| l.starts_with("mqblk_export_certificates_stale{")).expect("it is on the page");
        line.rsplit_once(' ').unwrap().1.to_owned()
    };
    let old_ones = "the certificates that were loaded before are still in use";
    // The metrics page may be a moment old.
    let shown = |wanted: &str| until(&format!("the page has {wanted}"), || stale() == wanted);
    assert_eq!(ctl("reload"), "nothing has changed\n");
    shown("0");
    put(&expired);
    let told = ctl("reload");
    assert!(told.starts_with("failed: NBD server at "), "{told}");
    assert!(
        told.contains("tls_cert=pki/server-cert.pem: holds a certificate that expired ") && told.contains(old_ones)
    );
    started.until(old_ones);
    let list = ctl("list");
    assert!(list.contains("holds a certificate that expired ") && list.contains(old_ones), "{list}");
    shown("1");
    dir.program("nbdinfo", &[&uri]).exits(0);
    started.signal("HUP");
    started.until("reload: done: failed: NBD server at ");
    put(&next);
    assert!(ctl("reload").starts_with("renewed the certificates of the NBD server at "));
    started.until("certificates have been renewed");
    shown("0");
    assert!(!ctl("list").contains(old_ones));
    dir.program("nbdinfo", &[&uri]).exits(0);
    started.signal("TERM");
    started.ends().exits(0);
}
