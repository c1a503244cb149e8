// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What preflight finds on the machine, and that it leaves no trace.

use super::*;
use crate::net::certificates::NbdTls;
use crate::serve::check::HostFacts;
use crate::serve::geometry::Geometry;
use crate::serve::mapping::Mapping;
use crate::serve::plan::{ExportKind, ExportPlan, FusePlan, NbdListen, NbdPlan, ServePlan, VhostUserPlan};
use crate::target::TargetSpec;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("pre-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn image(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.0.join(name);
        fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    }

    fn list(&self) -> Vec<String> {
        let names = fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    /// Returns all errors when this image is served like this.
    fn look(&self, image: &Path, read_only: bool, kind: ExportKind) -> String {
        let text = image.to_str().unwrap();
        let disk = DiskPlan { read_only, ..DiskPlan::new("a", TargetSpec::File(image.into()), text) };
        let export = ExportPlan {
            name: "e".to_owned(),
            disk: "a".to_owned(),
            read_only: false,
            geometry: Geometry::default(),
            mapping: Mapping::default(),
            kind,
        };
        let plan = ServePlan { disks: vec![disk], exports: vec![export], ..ServePlan::default() };
        let before = self.list();
        let found = preflight(&plan.check(&HostFacts { cpus: vec![0] }).unwrap());
        assert_eq!(self.list(), before, "nothing is touched");
        found.err().map(|e| e.to_string()).unwrap_or_default()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn vhost(socket: PathBuf) -> ExportKind {
    ExportKind::VhostUserBlk(VhostUserPlan {
        socket,
        socket_mode: None,
        num_queues: 1,
        queue_size: 2,
        allow_file_memory: false,
    })
}

fn nbd(listen: NbdListen, tls: Option<NbdTls>) -> ExportKind {
    ExportKind::Nbd(NbdPlan { listen, socket_mode: None, name: String::new(), tls, max_connections: 1 })
}

#[test]
fn images_are_there_usable_and_whole() {
    let dir = Dir::new("images");
    let socket = dir.0.join("s");
    let say = |image: &Path, read_only| dir.look(image, read_only, vhost(socket.clone()));
    assert_eq!(say(&dir.image("good", 1 << 20), false), "");
    assert!(say(&dir.0.join("none"), false).contains("none: the image does not exist; create it first (truncate"));
    assert!(say(&dir.image("empty", 0), false).contains("is empty; give it a size"));
    let odd = say(&dir.image("odd", 1000), false);
    assert!(
        odd.contains("has 1000 bytes, which is not whole blocks of 512") && odd.contains("truncate -s 1024 FILE"),
        "{odd}"
    );
    let any_size = dir.look(&dir.0.join("odd"), false, nbd(NbdListen::Unix(socket.clone()), None));
    assert_eq!(any_size, "", "NBD serves any bytes");
    assert!(say(&dir.0, false).contains("is a directory: a disk must be a regular file or a block device"));
    assert!(say(Path::new("/dev/null"), false).contains("is a special file"));
    assert!(odd.ends_with("(disk 'a')"));
}

#[test]
fn a_locked_image_is_in_use() {
    let dir = Dir::new("locked");
    let image = dir.image("i", 4096);
    let say = |read_only| dir.look(&image, read_only, vhost(dir.0.join("s")));
    let reader = ImageLock::take(&image, false).unwrap();
    assert_eq!(say(true), "");
    assert!(say(false).contains("is in use: another program has it"));
    drop(reader);
    let _writer = ImageLock::take(&image, true).unwrap();
    assert!(say(true).contains("is in use: another program"));
}

#[test]
fn one_image_under_two_names_is_one_image() {
    let dir = Dir::new("twins");
    let (a, b) = (dir.image("a", 4096), dir.0.join("b"));
    std::os::unix::fs::symlink(&a, &b).unwrap();
    let disk = |name: &str, path: &Path| DiskPlan::new(name, TargetSpec::File(path.into()), name);
    let export = ExportPlan {
        name: "e".to_owned(),
        disk: "a".to_owned(),
        read_only: false,
        geometry: Geometry::default(),
        mapping: Mapping::default(),
        kind: vhost(dir.0.join("s")),
    };
    let plan = ServePlan { disks: vec![disk("a", &a), disk("b", &b)], exports: vec![export], ..ServePlan::default() };
    let e = preflight(&plan.check(&HostFacts { cpus: vec![0] }).unwrap()).unwrap_err().to_string();
    assert!(e.starts_with("target=b: is the same image as 'a' of disk 'a'"), "{e}");
}

/// Images that are paths of a disk used to be unchecked, so those of another daemon were served.
#[test]
fn images_that_are_paths_are_looked_at_as_others() {
    let dir = Dir::new("paths");
    let (a, b) = (dir.image("a", 4096), dir.image("b", 4096));
    let disk = |name: &str, paths: &[&Path]| {
        let paths: Vec<_> = paths.iter().map(|p| p.to_str().unwrap()).collect();
        let text = format!("multipath:{}", paths.join("+"));
        DiskPlan::new(name, TargetSpec::parse(&text).unwrap(), name)
    };
    let look = |disks: Vec<DiskPlan>| {
        let export = ExportPlan {
            name: "e".to_owned(),
            disk: "a".to_owned(),
            read_only: false,
            geometry: Geometry::default(),
            mapping: Mapping::default(),
            kind: vhost(dir.0.join("s")),
        };
        let plan = ServePlan { disks, exports: vec![export], ..ServePlan::default() };
        let found = preflight(&plan.check(&HostFacts { cpus: vec![0] }).unwrap());
        found.err().map(|e| e.to_string()).unwrap_or_default()
    };
    let again = PathBuf::from(format!("/.{}", a.display()));
    let missing = dir.0.join("missing");
    assert_eq!(look(vec![disk("a", &[&a, &again, &missing])]), "", "one image by two names, and a path that may come");
    assert!(look(vec![disk("a", &[&missing, &missing])]).contains("the image does not exist"));
    let said = look(vec![disk("a", &[&a, &b])]);
    assert!(said.contains("is a different file from") && said.contains("paths must lead to one disk"), "{said}");
    let link = dir.0.join("link");
    std::os::unix::fs::symlink(&a, &link).unwrap();
    let said = look(vec![disk("a", &[&a]), DiskPlan::new("b", TargetSpec::File(link), "b")]);
    assert!(said.contains("is the same image as 'a' of disk 'a'"), "{said}");
    let _others = ImageLock::take(&a, true).unwrap();
    let said = look(vec![disk("a", &[&again])]);
    assert!(said.contains("is in use: another program"), "{said}");
}

#[test]
fn a_socket_in_use_is_told_from_one_left_behind() {
    let dir = Dir::new("sockets");
    let (image, socket) = (dir.image("i", 4096), dir.0.join("s"));
    let say = |path: &Path| dir.look(&image, false, vhost(path.into()));
    let listener = UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    assert!(
        say(&socket)
            .contains("another program listens there already; end that program or choose another path (export 'e')")
    );
    assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "no client has connected");
    drop(listener);
    assert_eq!(say(&socket), "", "its owner is gone");
    assert!(say(&image).contains("a file of that name exists that is not a socket"));
    assert!(say(&dir.0.join("no/s")).contains("No such file or directory (os error 2); create it first"));
    assert!(say(&image.join("s")).contains("is no directory"));
}

#[test]
fn a_tcp_port_in_use_is_said_so() {
    let dir = Dir::new("tcp");
    let image = dir.image("i", 4096);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let said = dir.look(&image, false, nbd(NbdListen::Tcp(address.into()), None));
    assert!(said.starts_with(&format!("listen={address}: Address already in use")), "{said}");
    assert!(said.contains("choose another port"));
    let foreign = NbdListen::Tcp("192.0.2.1:10809".parse().unwrap());
    assert!(dir.look(&image, false, nbd(foreign, None)).contains("choose an address of this host"));
}

#[test]
fn files_of_tls_and_mountpoints_are_there() {
    let dir = Dir::new("files");
    let image = dir.image("i", 4096);
    let tls = NbdTls { cert: dir.0.join("cert.pem"), key: dir.0.clone(), ..NbdTls::in_directory(&dir.0, false, true) };
    let said = dir.look(&image, false, nbd(NbdListen::Unix(dir.0.join("s")), Some(tls)));
    assert!(said.contains("cert.pem: No such file or directory (os error 2); name a PEM file"), "{said}");
    let fuse = |mountpoint: PathBuf| ExportKind::Fuse(FusePlan { mountpoint, allow_other: false });
    assert!(dir.look(&image, false, fuse(dir.0.join("m"))).contains("make an empty file of that name first"));
    assert!(dir.look(&image, false, fuse(dir.0.clone())).contains("must be a regular file"));
}

/// An export that this daemon already serves has a listening socket and a locked image; neither is reported as in the way of a reload.
#[test]
fn a_reload_is_not_in_its_own_way() {
    let dir = Dir::new("reload");
    let (a, b) = (dir.image("a", 4096), dir.image("b", 4096));
    let plan = |names: &[(&str, &Path)]| {
        let disks = names.iter().map(|(n, p)| DiskPlan::new(*n, TargetSpec::File((*p).into()), *n)).collect();
        let exports = names.iter().map(|(n, _)| ExportPlan {
            name: format!("e{n}"),
            disk: (*n).to_owned(),
            read_only: false,
            geometry: Geometry::default(),
            mapping: Mapping::default(),
            kind: vhost(dir.0.join(format!("{n}.sock"))),
        });
        let plan = ServePlan { disks, exports: exports.collect(), ..ServePlan::default() };
        plan.check(&HostFacts { cpus: vec![0] }).unwrap()
    };
    let (old, mut new) = (plan(&[("a", &a)]), plan(&[("a", &a), ("b", &b)]));
    let (_lock, _socket) = (ImageLock::take(&a, true).unwrap(), UnixListener::bind(dir.0.join("a.sock")).unwrap());
    assert!(preflight(&new).is_err());
    let steps = crate::serve::reload::reload(&old, &mut new);
    preflight_added(&new, &steps).unwrap();
    let _other = UnixListener::bind(dir.0.join("b.sock")).unwrap();
    assert!(preflight_added(&new, &steps).unwrap_err().to_string().contains("b.sock: another program listens there"));
}
