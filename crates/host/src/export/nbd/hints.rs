// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a user passes to clients of an NBD export: its URI, and the commands that take it.
//!
//! Source: NBD doc/uri.md.

use super::spec::{NbdListen, NbdPlan};
use crate::net::certificates::NbdTls;
use crate::net::listen::TcpListen;
use crate::serve::export_spec::{Hint, HintContext};
use crate::shell::{absolute, quoted};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

pub(super) fn hints(nbd: &NbdPlan, export: &HintContext<'_>) -> Vec<Hint> {
    let uri = uri(nbd);
    let shell = quoted(&uri);
    let mut hints = vec![
        Hint { key: "uri", title: "URI", text: uri.clone() },
        Hint { key: "nbdinfo", title: "what it offers", text: format!("nbdinfo {shell}") },
        Hint { key: "nbdcopy", title: "copy it", text: format!("nbdcopy {shell} copy.img") },
    ];
    if let Some(directory) = nbd.tls.as_ref().map(|tls| tls.directory().unwrap_or_else(|| Path::new("DIR"))) {
        let text = qemu_tls(nbd, directory);
        hints.push(Hint { key: "qemu_img", title: "qemu-img (QEMU takes the same objects)", text });
    }
    // fio and nbd-client do not support TLS. The fio command only reads, because a pasted line must not destroy data.
    if nbd.tls.is_none() {
        let drive = match export.read_only {
            true => {
                format!("-blockdev driver=nbd,node-name=n,read-only=on,{} -device virtio-blk-pci,drive=n", server(nbd))
            }
            false => format!("-blockdev driver=nbd,node-name=n,{} -device virtio-blk-pci,drive=n", server(nbd)),
        };
        hints.extend([
            Hint { key: "qemu_img", title: "qemu-img, qemu-io", text: format!("qemu-img info {shell}") },
            Hint { key: "qemu", title: "QEMU", text: drive },
            Hint {
                key: "fio",
                title: "fio",
                text: format!(
                    "fio --name=try --ioengine=nbd --uri={shell} --rw=randread --bs=4k --iodepth=32 --time_based --runtime=10"
                ),
            },
            Hint {
                key: "fio_job",
                title: "fio job file",
                text: format!("[try]\nioengine=nbd\nuri={uri}\nrw=randread\nbs=4k\niodepth=32\ntime_based\nruntime=10"),
            },
            Hint { key: "kernel", title: "Linux block device, 4 connections", text: nbd_client(nbd, export) },
        ]);
    }
    hints
}

/// Returns a `qemu-img` command with the credentials of a directory. They work whether or not the server verifies clients.
fn qemu_tls(nbd: &NbdPlan, directory: &Path) -> String {
    let directory = absolute(directory).replace(',', ",,");
    let object = quoted(&format!("tls-creds-x509,id=tls0,endpoint=client,dir={directory}"));
    let host = match &nbd.listen {
        NbdListen::Unix(_) => ",tls-hostname=localhost",
        NbdListen::Tcp(_) => "",
    };
    format!("qemu-img info --object {object} --image-opts driver=nbd,{},tls-creds=tls0{host}", server(nbd))
}

/// Returns the server's options of `-blockdev driver=nbd`.
fn server(nbd: &NbdPlan) -> String {
    let export = nbd.name.replace(',', ",,");
    let at = match &nbd.listen {
        NbdListen::Unix(path) => format!("server.type=unix,server.path={}", absolute(path).replace(',', ",,")),
        NbdListen::Tcp(listen) => {
            let (host, port) = host_and_port(listen);
            format!("server.type=inet,server.host={host},server.port={port}")
        }
    };
    quoted(&format!("{at},export={export}"))
}

fn nbd_client(nbd: &NbdPlan, export: &HintContext<'_>) -> String {
    let (name, block) = (quoted(&nbd.name), export.block_option("-b"));
    match &nbd.listen {
        NbdListen::Unix(path) => {
            format!("nbd-client -unix {} /dev/nbd0 -N {name} -C 4{block}", quoted(&absolute(path)))
        }
        NbdListen::Tcp(listen) => {
            let (host, port) = host_and_port(listen);
            format!("nbd-client {host} {port} /dev/nbd0 -N {name} -C 4{block}")
        }
    }
}

/// Returns the URI of an export. Source: NBD doc/uri.md.
fn uri(nbd: &NbdPlan) -> String {
    let scheme = if nbd.tls.is_some() { "nbds" } else { "nbd" };
    let name = percent(nbd.name.as_bytes());
    let directory = nbd.tls.as_ref().and_then(NbdTls::directory);
    let certificates = directory.map(|d| format!("tls-certificates={}", percent(absolute(d).as_bytes())));
    match &nbd.listen {
        NbdListen::Unix(path) => {
            let more = certificates.map(|c| format!("&{c}")).unwrap_or_default();
            format!("{scheme}+unix:///{name}?socket={}{more}", percent(absolute(path).as_bytes()))
        }
        NbdListen::Tcp(listen) => {
            let more = certificates.map(|c| format!("?{c}")).unwrap_or_default();
            let at = match listen.name() {
                Some(_) => listen.to_string(),
                None => reachable(listen.first()).to_string(),
            };
            format!("{scheme}://{at}/{name}{more}")
        }
    }
}

/// Returns the name or address of a host to connect to, and the port.
fn host_and_port(listen: &TcpListen) -> (String, u16) {
    let at = reachable(listen.first());
    (listen.name().map_or_else(|| at.ip().to_string(), str::to_owned), at.port())
}

/// Returns an address to connect to: loopback for a server that listens on all addresses.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Percent-encodes all bytes but letters, digits and `-._~/`. Source: RFC 3986, section 2.
fn percent(bytes: &[u8]) -> String {
    let one = |b: &u8| match b {
        b if b.is_ascii_alphanumeric() || b"-._~/".contains(b) => char::from(*b).to_string(),
        b => format!("%{b:02X}"),
    };
    bytes.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nbd(listen: NbdListen, name: &str) -> NbdPlan {
        NbdPlan { listen, socket_mode: None, name: name.to_owned(), tls: None, max_connections: 1 }
    }

    #[test]
    fn uris_are_percent_encoded() {
        let unix = |path: &str, name: &str| uri(&nbd(NbdListen::Unix(path.into()), name));
        assert_eq!(unix("/run/a.sock", ""), "nbd+unix:///?socket=/run/a.sock");
        assert_eq!(unix("/run/a b&c;#.sock", "x y"), "nbd+unix:///x%20y?socket=/run/a%20b%26c%3B%23.sock");
        let tcp = |address: &str| uri(&nbd(NbdListen::Tcp(address.parse().unwrap()), "d"));
        assert_eq!(tcp("10.0.0.1:10809"), "nbd://10.0.0.1:10809/d");
        assert_eq!(tcp("0.0.0.0:1"), "nbd://127.0.0.1:1/d");
        assert_eq!(tcp("[::]:1"), "nbd://[::1]:1/d");
        assert_eq!(tcp("localhost:10809"), "nbd://localhost:10809/d");
        let plan = nbd(NbdListen::Tcp("localhost:10809".parse().unwrap()), "d");
        assert!(server(&plan).contains("server.host=localhost,server.port=10809"), "{}", server(&plan));
    }
}
