// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a client of each export types, exactly: QEMU arguments, libvirt XML, NBD URIs and the commands that take them.
//!
//! Guarantees: what is printed can be pasted: paths are absolute, and quoted for the shell, QEMU's option syntax, XML or URIs.
//! Does not do: know the client's machine; sizes of guest memory are an example, and reported so.
//!
//! Source: QEMU docs/system/devices/vhost-user.rst (shared guest memory), libvirt formatdomain (`type='vhostuser'`, with
//! what its validation refuses there: cache, io, discard, iothread, serial, readonly), NBD doc/uri.md.

use host::net::certificates::NbdTls;
use host::serve::check::Export;
use host::serve::plan::{ExportKind, FusePlan, NbdListen, NbdPlan, UblkPlan, VhostUserPlan};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// One way to use an export.
#[derive(Debug, PartialEq, Eq)]
pub struct Hint {
    /// Short, for JSON: `qemu`.
    pub key: &'static str,
    /// For people: what it is and what it needs.
    pub title: &'static str,
    /// What to type or paste; several lines.
    pub text: String,
}

/// How clients reach this export; `index` is its number in the plan.
pub fn hints(export: &Export<'_>, index: usize) -> Vec<Hint> {
    match &export.plan.kind {
        ExportKind::VhostUserBlk(v) => vhost(export, v, index),
        ExportKind::Nbd(nbd) => nbd_hints(nbd, export.read_only),
        ExportKind::Fuse(fuse) => fuse_hints(fuse, export.read_only),
        ExportKind::Ublk(ublk) => ublk_hints(ublk),
    }
}

fn vhost(export: &Export<'_>, v: &VhostUserPlan, index: usize) -> Vec<Hint> {
    let id = qemu_id(&export.plan.name);
    let path = absolute(&v.socket);
    let chardev = quoted(&format!("socket,id={id},path={},reconnect=1", path.replace(',', ",,")));
    let qemu = format!(
        "-object memory-backend-memfd,id=mem,size=1G,share=on -numa node,memdev=mem \\\n\
         -chardev {chardev} \\\n\
         -device vhost-user-blk-pci,chardev={id},num-queues={},queue-size={}",
        v.num_queues, v.queue_size
    );
    let dev = guest_name(&export.plan.disk, index);
    let xml = format!(
        "<disk type='vhostuser' device='disk'>\n  \
           <driver name='qemu' type='raw' queues='{}' queue_size='{}'/>\n  \
           <source type='unix' path='{}'>\n    \
             <reconnect enabled='yes' timeout='1'/>\n  \
           </source>\n  \
           <target dev='{dev}' bus='virtio'/>\n\
         </disk>",
        v.num_queues,
        v.queue_size,
        xml_text(&path)
    );
    vec![
        Hint { key: "qemu", title: "QEMU (the guest's memory must be shared; size= as of -m, here 1G)", text: qemu },
        Hint {
            key: "libvirt",
            title: "libvirt (virsh attach-device DOMAIN FILE; in place of the disk of that name, if there is one)",
            text: xml,
        },
        Hint {
            key: "libvirt_memory",
            title: "libvirt, once in the domain (the guest's memory must be shared)",
            text: "<memoryBacking>\n  <source type='memfd'/>\n  <access mode='shared'/>\n</memoryBacking>".to_owned(),
        },
    ]
}

fn nbd_hints(nbd: &NbdPlan, read_only: bool) -> Vec<Hint> {
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
    // fio and nbd-client speak no TLS. fio only reads: a pasted line must not destroy data.
    if nbd.tls.is_none() {
        let drive = match read_only {
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
            Hint { key: "kernel", title: "Linux block device, 4 connections", text: nbd_client(nbd) },
        ]);
    }
    hints
}

/// `qemu-img` with credentials of a directory; clients are verified or not, as the server likes.
fn qemu_tls(nbd: &NbdPlan, directory: &Path) -> String {
    let directory = absolute(directory).replace(',', ",,");
    let object = quoted(&format!("tls-creds-x509,id=tls0,endpoint=client,dir={directory}"));
    let host = match &nbd.listen {
        NbdListen::Unix(_) => ",tls-hostname=localhost",
        NbdListen::Tcp(_) => "",
    };
    format!("qemu-img info --object {object} --image-opts driver=nbd,{},tls-creds=tls0{host}", server(nbd))
}

/// Options of `-blockdev driver=nbd`.
fn server(nbd: &NbdPlan) -> String {
    let export = nbd.name.replace(',', ",,");
    let at = match &nbd.listen {
        NbdListen::Unix(path) => format!("server.type=unix,server.path={}", absolute(path).replace(',', ",,")),
        NbdListen::Tcp(address) => {
            let address = reachable(*address);
            format!("server.type=inet,server.host={},server.port={}", address.ip(), address.port())
        }
    };
    quoted(&format!("{at},export={export}"))
}

fn nbd_client(nbd: &NbdPlan) -> String {
    let name = quoted(&nbd.name);
    match &nbd.listen {
        NbdListen::Unix(path) => format!("nbd-client -unix {} /dev/nbd0 -N {name} -C 4", quoted(&absolute(path))),
        NbdListen::Tcp(address) => {
            let address = reachable(*address);
            format!("nbd-client {} {} /dev/nbd0 -N {name} -C 4", address.ip(), address.port())
        }
    }
}

fn fuse_hints(fuse: &FusePlan, read_only: bool) -> Vec<Hint> {
    let path = quoted(&absolute(&fuse.mountpoint));
    let flag = if read_only { " --read-only" } else { "" };
    // fio takes a colon in a name for the end of the name. It only reads: a pasted line must not destroy data.
    let file = quoted(&format!("--filename={}", absolute(&fuse.mountpoint).replace(':', "\\:")));
    vec![
        Hint {
            key: "losetup",
            title: "Linux block device (root; umount and losetup --detach it before the daemon ends)",
            text: format!("losetup --find --show --direct-io=on{flag} {path}"),
        },
        Hint {
            key: "fio",
            title: "fio",
            text: format!(
                "fio --name=try {file} --readonly --direct=1 --rw=randread --bs=4k --ioengine=libaio --iodepth=32 \
                 --time_based --runtime=10"
            ),
        },
        Hint { key: "qemu_img", title: "qemu-img, qemu-io", text: format!("qemu-img info -f raw {path}") },
    ]
}

fn ublk_hints(ublk: &UblkPlan) -> Vec<Hint> {
    let id = ublk.id.map_or("N".to_owned(), |id| id.to_string());
    vec![Hint { key: "device", title: "Linux block device", text: format!("/dev/ublkb{id}") }]
}

/// The URI of an export. Source: NBD doc/uri.md.
pub fn uri(nbd: &NbdPlan) -> String {
    let scheme = if nbd.tls.is_some() { "nbds" } else { "nbd" };
    let name = percent(nbd.name.as_bytes());
    let directory = nbd.tls.as_ref().and_then(NbdTls::directory);
    let certificates = directory.map(|d| format!("tls-certificates={}", percent(absolute(d).as_bytes())));
    match &nbd.listen {
        NbdListen::Unix(path) => {
            let more = certificates.map(|c| format!("&{c}")).unwrap_or_default();
            format!("{scheme}+unix:///{name}?socket={}{more}", percent(absolute(path).as_bytes()))
        }
        NbdListen::Tcp(address) => {
            let more = certificates.map(|c| format!("?{c}")).unwrap_or_default();
            format!("{scheme}://{}/{name}{more}", reachable(*address))
        }
    }
}

/// An address to connect to: a server on all addresses is on this host's own.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// A path for clients in other directories.
fn absolute(path: &Path) -> String {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    whole.to_string_lossy().into_owned()
}

/// All but letters, digits, `-._~/` by their bytes. Source: RFC 3986, section 2.
fn percent(bytes: &[u8]) -> String {
    let one = |b: &u8| match b {
        b if b.is_ascii_alphanumeric() || b"-._~/".contains(b) => char::from(*b).to_string(),
        b => format!("%{b:02X}"),
    };
    bytes.iter().map(one).collect()
}

/// One word for the shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._/=,:+@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// A value between apostrophes in XML.
fn xml_text(text: &str) -> String {
    quick_xml::escape::escape(text).into_owned()
}

/// QEMU's ids begin with a letter.
fn qemu_id(name: &str) -> String {
    if name.starts_with(|c: char| c.is_ascii_alphabetic()) { name.to_owned() } else { format!("d{name}") }
}

/// The name in the guest: the disk's own if it is one, else by its number, after vda.
fn guest_name(disk: &str, index: usize) -> String {
    let letters = disk.strip_prefix("vd").unwrap_or_default();
    if !letters.is_empty() && letters.len() <= 3 && letters.bytes().all(|b| b.is_ascii_lowercase()) {
        return disk.to_owned();
    }
    let mut n = index + 1;
    let mut name = String::new();
    loop {
        // `n % 26` is below 26.
        name.insert(0, char::from(b'a' + (n % 26) as u8));
        n /= 26;
        if n == 0 {
            return format!("vd{name}");
        }
        n -= 1;
    }
}

#[cfg(test)]
mod tests;
