// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon in this process, on plans made by hand: what a change may affect, and which clients are notified.

use crate::common;
use crate::own_process;
use crate::serving;
use crate::waiting::until;

use blk::driver::Driver;
use common::peers::Peer;
use host::driver::Aio;
use host::driver::nbd::{self, Nbd};
use host::image_lock::ImageLock;
use host::mem::Regions;
use host::serve::check::{CheckedPlan, HostFacts};
use host::serve::daemon::{Changes, Daemon};
use host::serve::geometry::Geometry;
use host::serve::mapping::Mapping;
use host::serve::plan::{
    DiskPlan, ExportKind, ExportPlan, IoThreadPlan, NbdListen, NbdPlan, OnEnospc, QUEUE_SIZE, ServePlan, VhostUserPlan,
};
use host::target::TargetSpec;
use serving::run;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that is removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("mqblk-daemon-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Directory(path)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn disk(name: &str, target: &str) -> DiskPlan {
    DiskPlan::new(name, TargetSpec::parse(target).unwrap(), target)
}

/// Makes an NBD export of a disk on one IOThread. Clients use the export name `d`.
fn export(name: &str, disk: &str, socket: &Path, iothread: &str) -> ExportPlan {
    let nbd = NbdPlan {
        listen: NbdListen::Unix(socket.into()),
        socket_mode: None,
        name: "d".into(),
        tls: None,
        max_connections: 16,
    };
    ExportPlan {
        name: name.into(),
        disk: disk.into(),
        read_only: false,
        geometry: Geometry::default(),
        mapping: Mapping::round_robin([iothread]),
        kind: ExportKind::Nbd(nbd),
    }
}

fn plan(disks: &[DiskPlan], exports: &[ExportPlan]) -> CheckedPlan {
    let iothreads = ["io0", "io1", "io2"].into_iter().map(IoThreadPlan::new).collect();
    let plan = ServePlan { iothreads, disks: disks.to_vec(), exports: exports.to_vec() };
    plan.check_running(&HostFacts::read()).unwrap()
}

fn start(disks: &[DiskPlan], exports: &[ExportPlan]) -> Daemon {
    Daemon::start(plan(disks, exports)).unwrap().0
}

#[track_caller]
fn change(daemon: &mut Daemon, to: CheckedPlan) -> Changes {
    let changes = daemon.change(to, false).unwrap();
    assert!(changes.failed.is_empty(), "{:?}", changes.failed);
    changes
}

fn uri(socket: &Path) -> String {
    format!("nbd+unix:///d?socket={}", socket.display())
}

/// Connects a client that stays connected.
fn client(socket: &Path) -> Nbd {
    let target = nbd::parse(&format!("{}&connections=1", uri(socket))).unwrap();
    Nbd::open(&target, false, Arc::new(Regions::new())).unwrap().0
}

/// Returns the IOThread that serves each export's clients.
fn places(daemon: &Daemon) -> BTreeMap<String, String> {
    let reports = daemon.report();
    let all = reports.iter().flat_map(|t| t.sources.iter().map(|s| (s.export.clone(), t.name.clone())));
    all.collect()
}

/// Two NBD servers may have exports of the same name. Once, sources were identified by that name, so a change of one export also moved
/// the other's clients, and balancing looked up the wrong IOThreads.
#[test]
fn clients_of_an_export_of_the_same_name_on_another_server_stay() {
    let directory = Directory::new();
    let (one, two) = (directory.at("one.sock"), directory.at("two.sock"));
    let disks = [disk("a", "ram:size=1m")];
    let mut daemon = start(&disks, &[export("first", "a", &one, "io0"), export("second", "a", &two, "io2")]);
    let _clients = [client(&one), client(&two)];
    let at = |pairs: [(&str, &str); 2]| BTreeMap::from(pairs.map(|(e, t)| (e.to_owned(), t.to_owned())));
    // A client is accepted a little before it is served.
    until("both clients are served", || places(&daemon).len() == 2);
    assert_eq!(places(&daemon), at([("first", "io0"), ("second", "io2")]));
    change(&mut daemon, plan(&disks, &[export("first", "a", &one, "io1"), export("second", "a", &two, "io2")]));
    assert_eq!(places(&daemon), at([("first", "io1"), ("second", "io2")]));
}

/// `./x` and `x` are one socket, and so one server. Once, the end of the export that was named first also ended the other one.
#[test]
fn exports_with_two_spellings_of_a_socket_share_a_server() {
    if !own_process::is_alone("daemon::exports_with_two_spellings_of_a_socket_share_a_server", &[]) {
        return;
    }
    let directory = Directory::new();
    std::env::set_current_dir(&directory.0).unwrap();
    let disks = [disk("a", "ram:size=1m"), disk("b", "ram:size=2m")];
    let named = |export: ExportPlan, name: &str| {
        let ExportKind::Nbd(nbd) = export.kind.clone() else { panic!("an NBD export") };
        ExportPlan { kind: ExportKind::Nbd(NbdPlan { name: name.into(), ..nbd }), ..export }
    };
    let first = named(export("first", "a", Path::new("./x.sock"), "io0"), "a");
    let second = named(export("second", "b", Path::new("x.sock"), "io0"), "b");
    let mut daemon = start(&disks, &[first.clone(), second.clone()]);
    let size = |name: &str| {
        run("nbdinfo", &["--size", &format!("nbd+unix:///{name}?socket={}", directory.at("x.sock").display())])
    };
    assert_eq!((size("a").trim(), size("b").trim()), ("1048576", "2097152"));
    let target = nbd::parse(&format!("nbd+unix:///b?socket={}", directory.at("x.sock").display())).unwrap();
    let _client = Nbd::open(&target, false, Arc::new(Regions::new())).unwrap().0;
    let clients = |daemon: &Daemon| daemon.plan().exports().map(|e| daemon.clients(&e)).collect::<Vec<_>>();
    // A client counts until the daemon has seen it leave.
    let wait_for = |daemon: &Daemon, wanted: &[usize]| {
        until(&format!("the exports have {wanted:?} clients"), || clients(daemon) == wanted);
    };
    wait_for(&daemon, &[0, 1]);
    change(&mut daemon, plan(&disks, std::slice::from_ref(&second)));
    assert_eq!(size("b").trim(), "2097152");
    wait_for(&daemon, &[1]);
    // Two disks cannot have the same name on that server, however the socket is written.
    let twin = named(first, "b");
    let iothreads = vec![IoThreadPlan::new("io0")];
    let twins = ServePlan { iothreads, disks: disks.to_vec(), exports: vec![second, twin] };
    let refused = twins.check_running(&HostFacts::read()).unwrap_err().to_string();
    assert!(refused.contains("serves the export name 'b' already"), "{refused}");
}

/// Once, servers after the first one that rejected a new size were not notified.
#[test]
fn server_that_rejects_a_new_size_hides_it_from_no_other() {
    let directory = Directory::new();
    let (one, two, image) = (directory.at("one.sock"), directory.at("two.sock"), directory.at("disk.img"));
    fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let disks = [disk("a", image.to_str().unwrap())];
    let daemon = start(&disks, &[export("first", "a", &one, "io0"), export("second", "a", &two, "io1")]);
    // Without its IOThread, the first export cannot be started again.
    daemon.threads().stop_one(0).unwrap();
    let told = daemon.resize("a", Some(2 << 20), true).unwrap_err().to_string();
    for part in ["disk 'a' has 2097152 bytes now", "one.sock keeps the old size", "IOThread"] {
        assert!(told.contains(part), "'{part}' is missing in: {told}");
    }
    assert!(!told.contains("two.sock"), "{told}");
    assert_eq!(run("nbdinfo", &["--size", &uri(&two)]).trim(), "2097152");
    assert_eq!(client(&two).capacity().0, 4096);
}

/// Once, the end of an export waited without limit, even for the I/O of a departed client at a server that is down.
#[test]
fn export_with_stuck_io_ends_by_itself_or_by_force() {
    let directory = Directory::new();
    let (socket, mut far) = (directory.at("one.sock"), Peer::nbdkit(&["memory", "16m"]));
    let disks = [disk("a", &far.target("&reconnect_delay=3600")), disk("b", "ram:size=1m")];
    let mut daemon = start(&disks, &[export("first", "a", &socket, "io0")]);
    far.kill();
    let mut client = Command::new("qemu-io");
    client.args(["-f", "raw", "-c", "write 0 64k", &uri(&socket)]);
    let mut client = client.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the write is in flight", || daemon.report().iter().flat_map(|t| &t.sources).any(|s| s.in_flight > 0));
    client.kill().unwrap();
    client.wait().unwrap();
    let changes = daemon.change(plan(&disks[1..], &[]), false).unwrap();
    let told = changes.failed.iter().map(ToString::to_string).collect::<String>();
    for part in
        ["export 'first'", "has not ended after 10 s", "1 request of disk 'a' in flight", "remove --force first"]
    {
        assert!(told.contains(part), "'{part}' is missing in: {told}");
    }
    assert!(daemon.disk("a").is_none() && daemon.disk("b").is_some());
    // An image has only one owner: it is closed when its export has ended.
    assert!(daemon.finish("a", false).unwrap_err().to_string().contains("has not ended"));
    assert!(daemon.finish("first", true).unwrap());
    assert!(!daemon.finish("first", true).unwrap() && !daemon.finish("b", true).unwrap());
    // The same name again is a new disk.
    far.start();
    change(&mut daemon, plan(&disks, &[export("first", "a", &socket, "io0")]));
    assert_eq!(run("nbdinfo", &["--size", &uri(&socket)]).trim(), "16777216");
}

/// Once, the server kept serving disks that were closed and whose images were no longer locked.
#[test]
fn a_server_that_cannot_go_on_with_what_is_left_ends() {
    let directory = Directory::new();
    let (socket, image) = (directory.at("one.sock"), directory.at("disk.img"));
    fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let disks = [disk("a", image.to_str().unwrap()), disk("b", "ram:size=2m")];
    let second = export("second", "b", &socket, "io1");
    let ExportKind::Nbd(nbd) = second.kind.clone() else { panic!("an NBD export") };
    let second = ExportPlan { kind: ExportKind::Nbd(NbdPlan { name: "b".into(), ..nbd }), ..second };
    let mut daemon = start(&disks, &[export("first", "a", &socket, "io0"), second.clone()]);
    // Without its IOThread, the second export cannot be started again.
    daemon.threads().stop_one(1).unwrap();
    let changes = daemon.change(plan(&disks[1..], std::slice::from_ref(&second)), false).unwrap();
    assert!(changes.failed.iter().any(|e| e.to_string().contains("IOThread")), "{:?}", changes.failed);
    assert!(daemon.disk("a").is_none());
    assert_eq!(daemon.plan().exports().count(), 0, "what runs");
    assert!(!socket.exists(), "no client is served");
    wait_until_free(&image);
    assert!(daemon.change(plan(&disks[..1], &[]), false).unwrap().failed.is_empty());
}

/// Once, only free space could end a write that waits for space.
#[test]
fn what_is_held_for_want_of_space_ends_by_force() {
    Aio::ALL.into_iter().for_each(held_writes_end_by_force);
}

fn held_writes_end_by_force(aio: Aio) {
    let directory = Directory::new();
    let (socket, full) = (directory.at("one.sock"), directory.at("full"));
    fs::create_dir(&full).unwrap();
    run("mount", &["-t", "tmpfs", "-o", "size=1m", "none", full.to_str().unwrap()]);
    let image = full.join("disk.img");
    fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let held = DiskPlan { on_enospc: OnEnospc::Stop, aio: Some(aio), ..disk("a", image.to_str().unwrap()) };
    let mut daemon = start(&[held], &[export("first", "a", &socket, "io0")]);
    // The file system is unmounted when the last open file on it is closed.
    run("umount", &["--lazy", full.to_str().unwrap()]);
    let mut client = Command::new("qemu-io");
    client.args(["-f", "raw", "-c", "write 0 4m", &uri(&socket)]);
    assert_eq!(daemon.disk("a").unwrap().members()[0].driver.aio(), Some(aio));
    let mut client = client.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the write is held", || daemon.disk("a").unwrap().held_on_enospc() > 0);
    let changes = daemon.change(plan(&[], &[]), true).unwrap();
    // Otherwise, if an assertion fails, the end of the daemon would wait.
    daemon.open_disks_now().iter().for_each(|d| d.set_hold_on_enospc(false));
    assert!(changes.failed.is_empty(), "{:?}", changes.failed);
    assert!(changes.done.iter().any(|line| line == "ended export 'first'"), "{:?}", changes.done);
    client.kill().unwrap();
    client.wait().unwrap();
}

/// Whether this process has the image open.
fn is_open(image: &Path) -> bool {
    let mut open = fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    open.any(|file| file == image)
}

/// Once, sockets were removed by name, even if another process had replaced them.
#[test]
fn sockets_that_others_have_put_in_the_place_of_ours_stay() {
    let directory = Directory::new();
    let sockets = [directory.at("one.sock"), directory.at("two.sock"), directory.at("three.sock")];
    let vhost = |name: &str, socket: &Path| ExportPlan {
        kind: ExportKind::VhostUserBlk(VhostUserPlan {
            socket: socket.into(),
            socket_mode: Some(0o600),
            num_queues: 1,
            queue_size: QUEUE_SIZE,
            allow_file_memory: false,
        }),
        ..export(name, "a", socket, "io0")
    };
    let exports = [export("first", "a", &sockets[0], "io0"), vhost("second", &sockets[1]), vhost("third", &sockets[2])];
    let mut daemon = start(&[disk("a", "ram:size=1m")], &exports);
    let _successors = [0, 1].map(|i: usize| {
        fs::remove_file(&sockets[i]).unwrap();
        UnixListener::bind(&sockets[i]).unwrap()
    });
    change(&mut daemon, plan(&[], &[]));
    assert_eq!(sockets.map(|s| s.exists()), [true, true, false]);
}

/// The image is not in use in this process. But a child that another test starts has all of this process's descriptors until it calls
/// exec.
#[track_caller]
fn wait_until_free(image: &Path) {
    until("the image is free", || ImageLock::probe(image, true).is_ok());
}

/// Once, the lock was free while a list, stats or a scrape still had the disk, and with it the file, open.
#[test]
fn an_image_is_locked_while_its_disk_is_referenced() {
    let directory = Directory::new();
    let (socket, image) = (directory.at("one.sock"), directory.at("disk.img"));
    fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let disks = [disk("a", image.to_str().unwrap())];
    let mut daemon = start(&disks, &[export("first", "a", &socket, "io0")]);
    let view = daemon.view();
    let looked_at = view.disk("a").unwrap();
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| change(&mut daemon, plan(&[], &[])));
        until("only the test has the disk", || Arc::strong_count(&looked_at) == 1);
        assert!(is_open(&image));
        let refused = ImageLock::take(&image, true).unwrap_err().to_string();
        assert!(refused.contains("is in use"), "{refused}");
        drop(looked_at);
        let done = closing.join().unwrap().done;
        assert!(done.iter().any(|line| line == "closed disk 'a'"), "{done:?}");
    });
    assert!(!is_open(&image) && view.disk("a").is_none());
    wait_until_free(&image);
}

/// Once, a client in the middle of its handshake kept all disks of its server open for up to 10 s, without a lock.
#[test]
fn a_handshake_keeps_no_disk_open() {
    let directory = Directory::new();
    let (socket, image) = (directory.at("one.sock"), directory.at("disk.img"));
    fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let disks = [disk("a", image.to_str().unwrap()), disk("b", "ram:size=2m")];
    let second = export("second", "b", &socket, "io0");
    let ExportKind::Nbd(nbd) = second.kind.clone() else { panic!("an NBD export") };
    let second = ExportPlan { kind: ExportKind::Nbd(NbdPlan { name: "b".into(), ..nbd }), ..second };
    let mut daemon = start(&disks, &[export("first", "a", &socket, "io0"), second.clone()]);
    let mut silent = UnixStream::connect(&socket).unwrap();
    // The server has sent `NBDMAGIC`, `IHAVEOPT` and flags. Now it waits for the client.
    silent.read_exact(&mut [0; 18]).unwrap();
    change(&mut daemon, plan(&disks[1..], std::slice::from_ref(&second)));
    assert!(!is_open(&image));
    // The export that it requests now is gone. It sends NO_ZEROES and FIXED_NEWSTYLE, and OPT_EXPORT_NAME "d".
    silent.write_all(&[&[0, 0, 0, 3][..], b"IHAVEOPT", &[0, 0, 0, 1, 0, 0, 0, 1], b"d"].concat()).unwrap();
    let mut size = Vec::new();
    silent.read_to_end(&mut size).unwrap();
    assert!(size.len() <= 10, "it is let go");
}
