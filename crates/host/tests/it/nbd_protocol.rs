// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The NBD state machines with common clients: nbdinfo, nbdcopy, qemu-img, qemu-io, fio, and libnbd from
//! Python. The server around the state machines is for tests only (see `nbd_server`).

use crate::nbd_server;
use crate::serving;

use host::export::nbd::{BlockSizes, Export, FastZero, TlsMode};
use nbd_server::{Disk, Server, count};
use serving::{run, try_run};
use sim::rng::Rng;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

const MIB: usize = 1 << 20;

fn everything(name: &str) -> Export {
    Export { description: format!("the disk called {name}"), ..Export::with_everything(name) }
}

/// Makes bytes without short repetitions, with holes between them.
fn sparse(bytes: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut data = vec![0; bytes];
    for (i, piece) in data.chunks_mut(64 << 10).enumerate() {
        if i % 3 != 1 {
            piece.copy_from_slice(&rng.bytes(piece.len()));
        }
    }
    data
}

fn blank(name: &str, bytes: usize) -> Server {
    Server::start(vec![(everything(name), Disk::of(vec![0; bytes]))], TlsMode::Off)
}

struct TempFile(PathBuf);

impl TempFile {
    fn of(bytes: &[u8]) -> TempFile {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("nbd-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, bytes).expect("a file");
        TempFile(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a path in UTF-8")
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn has_all(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "'{part}' is missing in:\n{text}");
    }
}

#[test]
fn nbdinfo_sees_what_the_export_says() {
    let block = BlockSizes { min: 512, preferred: 65536, max: 8 << 20 };
    let shut = Export { read_only: true, rotational: true, block, ..everything("shut") };
    let bare = Export { name: "bare".to_owned(), ..Export::default() };
    let disks = [everything("open"), shut, bare].map(|e| (e, Disk::of(vec![0; 4 * MIB])));
    let server = Server::start(disks.into(), TlsMode::Off);
    let open = run("nbdinfo", &["--json", &server.uri("open")]);
    let want = ["\"protocol\": \"newstyle-fixed\"", "\"structured\": true", "\"export-name\": \"open\""];
    has_all(&open, &want);
    has_all(&open, &["\"description\": \"the disk called open\"", "\"base:allocation\"", "\"export-size\": 4194304"]);
    has_all(
        &open,
        &["\"block_size_minimum\": 1", "\"block_size_preferred\": 4096", "\"block_size_maximum\": 33554432"],
    );
    let shut = run("nbdinfo", &["--json", &server.uri("shut")]);
    has_all(&shut, &["\"block_size_minimum\": 512", "\"is_read_only\": true", "\"is_rotational\": true"]);
    has_all(&shut, &["\"block_size_preferred\": 65536", "\"block_size_maximum\": 8388608"]);
    let list = run("nbdinfo", &["--list", &server.uri("")]);
    has_all(&list, &["export=\"open\"", "export=\"shut\"", "export=\"bare\"", "the disk called shut"]);
    for can in ["fua", "flush", "trim", "zero", "fast-zero", "cache", "multi-conn", "df", "structured-reply"] {
        run("nbdinfo", &["--can", can, &server.uri("open")]);
        let all = ["df", "structured-reply"].contains(&can);
        let bare = try_run("nbdinfo", &["--can", can, &server.uri("bare")]).status;
        assert_eq!(bare.code(), Some(if all { 0 } else { 2 }), "{can}");
    }
    for can in ["trim", "zero", "write"] {
        assert_eq!(try_run("nbdinfo", &["--can", can, &server.uri("shut")]).status.code(), Some(2), "{can}");
    }
    run("nbdinfo", &["--is", "rotational", &server.uri("shut")]);
    assert_eq!(run("nbdinfo", &["--size", &server.uri("")]).trim(), "4194304", "no name is the default export");
    assert!(!try_run("nbdinfo", &[&server.uri("nobody")]).status.success());
    let missing = try_run("qemu-img", &["info", &server.uri("nobody")]);
    has_all(&String::from_utf8_lossy(&missing.stderr), &["there is no export of this name"]);
}

#[test]
fn maps_agree_with_the_data() {
    let data = sparse(MIB, 5);
    let server = Server::start(vec![(everything("d"), Disk::of(data.clone()))], TlsMode::Off);
    let map = run("nbdinfo", &["--map", &server.uri("d")]);
    let rows: Vec<Vec<&str>> = map.lines().map(|l| l.split_whitespace().collect()).collect();
    // Every third of sixteen pieces of 64 KiB is a hole.
    assert_eq!(rows.len(), 11, "{map}");
    assert_eq!(rows[0][..3], ["0", "65536", "0"], "{map}");
    assert_eq!(rows[1][..4], ["65536", "65536", "3", "hole,zero"], "{map}");
    let total = run("nbdinfo", &["--map", "--totals", &server.uri("d")]);
    has_all(&total, &["720896", "327680"]);
    let map = run("qemu-img", &["map", "--output=json", &server.uri("d")]);
    assert_eq!(map.matches("\"zero\": true").count(), 5, "{map}");
    assert!(count(&server.disk(0).statuses) > 0);
}

#[test]
fn nbdcopy_copies_both_ways_on_several_connections() {
    let data = sparse(40 * MIB, 7);
    let source = TempFile::of(&data);
    let server = blank("d", data.len());
    run("nbdcopy", &["--flush", source.path(), &server.uri("d")]);
    assert!(*server.disk(0).bytes.lock().unwrap() == data, "the copy differs");
    assert!(count(&server.disk(0).connections) > 1, "multi-conn was offered");
    assert!(count(&server.disk(0).flushes) > 0);
    let back = TempFile::of(&[]);
    run("nbdcopy", &[&server.uri("d"), back.path()]);
    assert!(std::fs::read(&back.0).unwrap() == data, "the way back differs");
    let other = blank("d", data.len());
    run("nbdcopy", &["--synchronous", &server.uri("d"), &other.uri("d")]);
    assert!(*other.disk(0).bytes.lock().unwrap() == data, "from one export to another");
    assert_eq!(count(&server.disk(0).refused) + count(&other.disk(0).refused), 0, "good clients are not refused");
}

#[test]
fn qemu_img_converts_compares_and_knows_the_size() {
    let data = sparse(8 * MIB, 9);
    let file = TempFile::of(&data);
    let server = blank("d", data.len());
    let uri = server.uri("d");
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", file.path(), &uri]);
    assert!(*server.disk(0).bytes.lock().unwrap() == data, "converted");
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", file.path(), &uri]);
    has_all(&run("qemu-img", &["info", &uri]), &["virtual size: 8 MiB (8388608 bytes)"]);
    server.disk(0).bytes.lock().unwrap()[4 * MIB] ^= 1;
    let differs = try_run("qemu-img", &["compare", "-f", "raw", "-F", "raw", file.path(), &uri]);
    assert_eq!(differs.status.code(), Some(1), "a wrong byte is found");
    assert_eq!(count(&server.disk(0).refused), 0, "good clients are not refused");
}

#[test]
fn qemu_io_writes_zeroes_discards_and_flushes() {
    let server = blank("d", 4 * MIB);
    let disk = server.disk(0);
    let io = |commands: &[&str]| {
        let mut arguments = vec!["-f", "raw", "-d", "unmap"];
        for command in commands {
            arguments.extend(["-c", command]);
        }
        let uri = server.uri("d");
        arguments.push(&uri);
        let told = run("qemu-io", &arguments);
        assert!(!told.contains("failed") && !told.contains("error"), "{told}");
    };
    io(&["write -P 0x5a 0 1M", "read -P 0x5a 0 1M", "write -P 0xa5 300k 3000", "read -P 0xa5 300k 3000"]);
    io(&["read -P 0x5a 310272 1k", "read -P 0 1M 1M"]);
    let before = count(&disk.fua);
    io(&["write -f -P 1 2M 64k", "flush"]);
    assert!(count(&disk.fua) > before && count(&disk.flushes) > 0);
    io(&["write -z 0 64k", "read -P 0 0 64k", "read -P 0x5a 64k 64k", "write -z -u 128k 64k", "read -P 0 128k 64k"]);
    assert!(count(&disk.zeroes) >= 2);
    io(&["discard 256k 16k", "read -P 0 256k 16k"]);
    assert!(count(&disk.trims) > 0);
    io(&["aio_write -P 7 3M 512k", "aio_read -P 0x5a 512k 256k", "aio_flush", "read -P 7 3M 512k"]);
    assert_eq!(disk.style.load(Ordering::Relaxed), 1, "qemu negotiates structured replies");
    assert_eq!(count(&disk.refused), 0, "good clients are not refused");
}

#[test]
fn fio_verifies_what_it_wrote_at_depth_32() {
    let server = blank("d", 16 * MIB);
    let uri = format!("--uri={}", server.uri("d"));
    let fixed = ["--name=j", "--ioengine=nbd", "--rw=randrw", "--bsrange=512-64k", "--size=16m", "--iodepth=32"];
    let more = [
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--randseed=4711",
        "--trim_percentage=10",
        "--fsync=64",
    ];
    let told = run("fio", &[&fixed[..], &more, &[&uri]].concat());
    has_all(&told, &["err= 0"]);
    assert_eq!(count(&server.disk(0).refused), 0, "good clients are not refused");
    assert!(count(&server.disk(0).flushes) > 0);
}

/// Runs a Python script with libnbd, which must succeed.
fn python(server: &Server, export: &str, script: &str) {
    let before = format!("import nbd, errno, os\nuri = '{}'\n", server.uri(export));
    let helpers = "
def connect():
    h = nbd.NBD()
    h.set_strict_mode(0)
    h.add_meta_context('base:allocation')
    h.connect_uri(uri)
    return h
def fails(want, f):
    try:
        f()
    except nbd.Error as e:
        assert e.errnum == want, (e.errnum, want, str(e))
    else:
        raise AssertionError('did not fail')
";
    run("/usr/bin/python3", &["-c", &(before + helpers + script)]);
}

#[test]
fn libnbd_gets_the_right_error_and_goes_on() {
    let server = blank("d", 4 * MIB);
    python(
        &server,
        "d",
        "
h = connect()
size = h.get_size()
fails(errno.EINVAL, lambda: h.pread(512, size))
fails(errno.ENOSPC, lambda: h.pwrite(b'x' * 512, size - 256))
fails(errno.ENOSPC, lambda: h.zero(512, size))
fails(errno.EINVAL, lambda: h.trim(512, size))
fails(errno.EINVAL, lambda: h.pread(512, 0, nbd.CMD_FLAG_NO_HOLE))
fails(errno.EINVAL, lambda: h.pwrite(b'x' * 100000, 0, 1 << 9))
# More than sockets hold: the error must not come before all is sent.
fails(errno.ENOSPC, lambda: h.pwrite(b'x' * (32 << 20), size))
fails(errno.EINVAL, lambda: h.pread(0, 0))
fails(errno.EINVAL, lambda: h.block_status(512, size, lambda *a: 0))
h.pwrite(b'y' * 8192, 4096, nbd.CMD_FLAG_FUA)
assert h.pread(8192, 4096) == b'y' * 8192
chunks = []
h.pread_structured(16384, 0, lambda b, o, s, e: chunks.append((o, s, len(b))) and 0)
hole, data = nbd.READ_HOLE, nbd.READ_DATA
assert chunks == [(0, hole, 4096), (4096, data, 4096), (8192, data, 4096), (12288, hole, 4096)], chunks
chunks.clear()
h.pread_structured(16384, 0, lambda b, o, s, e: chunks.append((o, s, len(b))) and 0, nbd.CMD_FLAG_DF)
assert chunks == [(0, data, 16384)], chunks
told = []
h.block_status(size, 0, lambda c, o, e, err: told.append((c, o, e)) and 0)
assert told == [('base:allocation', 0, [4096, 3, 8192, 0, size - 12288, 3])], told
told.clear()
h.block_status(size - 4096, 4096, lambda c, o, e, err: told.append(e) and 0, nbd.CMD_FLAG_REQ_ONE)
assert told == [[8192, 0]], told
h.zero(4096, 4096, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_FUA)
h.cache(4096, 0)
h.flush()
assert h.pread(8192, 4096) == bytes(4096) + b'y' * 4096
h.shutdown()
",
    );
    assert_eq!(count(&server.disk(0).refused), 9);
    assert_eq!(count(&server.disk(0).caches), 1);
}

#[test]
fn libnbd_without_structured_replies_gets_simple_ones() {
    let server = blank("d", MIB);
    python(
        &server,
        "d",
        "
h = nbd.NBD()
h.set_strict_mode(0)
h.set_request_structured_replies(False)
h.connect_uri(uri)
assert not h.get_structured_replies_negotiated() and not h.can_df()
h.pwrite(b'z' * 1000, 1)
assert h.pread(1002, 0) == bytes(1) + b'z' * 1000 + bytes(1)
fails(errno.EINVAL, lambda: h.pread(512, 1 << 20))
fails(errno.EINVAL, lambda: h.pread(512, 0, nbd.CMD_FLAG_DF))
assert h.pread(1, 1) == b'z'
h.shutdown()
",
    );
    assert_eq!(server.disk(0).style.load(Ordering::Relaxed), 0);
}

#[test]
fn read_only_broken_and_slow_exports_say_so() {
    let shut = Export { read_only: true, ..everything("shut") };
    let broken = Disk { bad: Some(65536..69632), ..Disk::of(vec![1; MIB]) };
    let mut slow = Export { fast_zero: FastZero::Refused, ..everything("slow") };
    slow.block = BlockSizes { min: 4096, preferred: 4096, max: 65536 };
    let shut = (shut, Disk::of(vec![0; MIB]));
    let server =
        Server::start(vec![shut, (everything("broken"), broken), (slow, Disk::of(vec![0; MIB]))], TlsMode::Off);
    python(
        &server,
        "shut",
        "
h = connect()
for f in [lambda: h.pwrite(b'x' * 512, 0), lambda: h.zero(512, 0), lambda: h.trim(512, 0)]:
    fails(errno.EPERM, f)
assert h.pread(512, 0) == bytes(512)
",
    );
    python(
        &server,
        "broken",
        "
h = connect()
fails(errno.EIO, lambda: h.pread(131072, 0))
assert h.pread(65536, 0) == b'\\1' * 65536
seen = []
fails(errno.EIO, lambda: h.pread_structured(131072, 0, lambda b, o, s, e: seen.append((o, s)) and 0))
assert seen == [(65536, nbd.READ_ERROR)], seen
",
    );
    python(
        &server,
        "slow",
        "
h = connect()
fails(errno.ENOTSUP, lambda: h.zero(4096, 0, nbd.CMD_FLAG_FAST_ZERO))
h.zero(4096, 0)
fails(errno.EINVAL, lambda: h.pread(512, 0))
fails(errno.EINVAL, lambda: h.pwrite(b'x' * 131072, 0))
fails(errno.EINVAL, lambda: h.pread(131072, 0))
fails(errno.EOVERFLOW, lambda: h.pread_structured(131072, 0, lambda *a: 0, nbd.CMD_FLAG_DF))
h.trim(1 << 20, 0)
",
    );
}

#[test]
fn libnbd_haggles_over_options() {
    let server = Server::start(
        vec![(everything("d"), Disk::of(vec![0; MIB])), (everything("e"), Disk::of(vec![0; MIB]))],
        TlsMode::Off,
    );
    python(
        &server,
        "",
        "
h = nbd.NBD()
h.set_opt_mode(True)
h.connect_uri(uri)
names = []
assert h.opt_list(lambda n, d: names.append((n, d)) and 0) == 2
assert names == [('d', 'the disk called d'), ('e', 'the disk called e')], names
h.set_export_name('nobody')
fails(errno.ENOENT, h.opt_info)
h.set_export_name('e')
h.set_full_info(True)
h.opt_info()
assert h.get_canonical_export_name() == 'e' and h.get_export_description() == 'the disk called e'
contexts = []
assert h.opt_list_meta_context(lambda c: contexts.append(c) and 0) == 1
assert contexts == ['base:allocation']
h.add_meta_context('x-foo:bar')
h.add_meta_context('base:allocation')
h.opt_go()
assert h.can_meta_context('base:allocation') and not h.can_meta_context('x-foo:bar')
h.pwrite(b'q', 5)
h.shutdown()
h = nbd.NBD()
h.set_opt_mode(True)
h.connect_uri(uri)
h.opt_abort()
assert h.aio_is_closed()
",
    );
    assert_eq!(server.disk(1).bytes.lock().unwrap()[5], b'q');
}

#[test]
fn with_tls_required_plain_clients_are_told_why() {
    let server = Server::start(vec![(everything("d"), Disk::of(vec![0; MIB]))], TlsMode::Required);
    let uri = server.uri("d");
    assert!(!try_run("nbdinfo", &[&uri]).status.success());
    let told = try_run("qemu-img", &["info", &uri]);
    has_all(&String::from_utf8_lossy(&told.stderr), &["TLS is required: send NBD_OPT_STARTTLS first"]);
    assert_eq!(count(&server.disk(0).connections), 0);
}

#[test]
fn a_tls_client_begins_its_handshake_after_the_answer() {
    for tls in [TlsMode::Optional, TlsMode::Required] {
        let server = Server::start(vec![(everything("d"), Disk::of(vec![0; MIB]))], tls);
        let uri = server.uri("d").replace("nbd+unix", "nbds+unix");
        assert!(!try_run("nbdinfo", &[&uri]).status.success(), "its hello is not answered");
        assert_eq!(server.tls_record(), 22, "a handshake record");
    }
    let server = blank("d", MIB);
    let uri = server.uri("d").replace("nbd+unix", "nbds+unix");
    assert!(!try_run("nbdinfo", &[&uri]).status.success());
    assert_eq!(server.tls_record(), 0, "no TLS is offered");
}
