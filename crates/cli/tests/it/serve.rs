// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk serve --dry-run`: the printed commands work with their clients. A configuration with errors is rejected with exit status 2
//! and one message per error, and nothing is changed.

use crate::common;

use common::{Dir, Done, until_reported};
use serde_json::Value;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");

fn image(dir: &Dir, name: &str, bytes: u64) {
    File::create(dir.path(name)).unwrap().set_len(bytes).unwrap();
}

/// Makes a dry run, which must change nothing in the directory.
#[track_caller]
fn dry_run(dir: &Dir, args: &[&str]) -> Done {
    let before = dir.list();
    let done = dir.mqblk(&[&["serve", "--dry-run"], args].concat());
    assert_eq!(dir.list(), before, "nothing is touched: {done:?}");
    done
}

fn text<'a>(v: &'a Value, pointer: &str) -> &'a str {
    v.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("no text at {pointer} in {v:#}"))
}

/// A server of QEMU in place of the daemon, killed by its own pid.
struct QemuNbd(String);

impl QemuNbd {
    fn start(dir: &Dir, socket: &str, more: &[&str], image: &str) -> QemuNbd {
        let args = ["--fork", "--pid-file=pid", "-f", "raw", "-t", "-e", "4", "-k", socket];
        dir.program("qemu-nbd", &[&args[..], more, &[image]].concat()).exits(0);
        QemuNbd(fs::read_to_string(dir.path("pid")).unwrap().trim().to_owned())
    }
}

impl Drop for QemuNbd {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-9", &self.0]).status();
    }
}

#[test]
fn a_disk_alone_is_served_over_nbd_and_vhost_user() {
    let dir = Dir::new("serve");
    image(&dir, "disk.img", 1 << 20);
    let out = dry_run(&dir, &["disk.img", "--num-queues", "4"]).exits(0);
    let here = dir.as_path().to_str().unwrap();
    out.prints(&[
        "plan: 1 disk, 2 exports, ",
        "disk disk.img: disk.img, past the page cache, write back, on_enospc=report\n",
        "export disk.img.vhost: vhost-user-blk of disk 'disk.img', on disk.img.vhost.sock, 4 queues of up to 256\n",
        "    -object memory-backend-memfd,id=mem,size=1G,share=on -numa node,memdev=mem \\\n",
        &format!("    -chardev socket,id=disk.img.vhost,path={here}/disk.img.vhost.sock,reconnect=1 \\\n"),
        "    -device vhost-user-blk-pci,chardev=disk.img.vhost,num-queues=4,queue-size=256\n",
        "    <disk type='vhostuser' device='disk'>\n      <driver name='qemu' type='raw' queues='4' queue_size='256'/>\n",
        &format!("nbdinfo 'nbd+unix:///disk.img?socket={here}/disk.img.nbd.sock'\n"),
    ]);
    let json =
        dry_run(&dir, &["disk.img", "--json", "--iothreads", "3", "--num-queues", "4", "--read-only"]).exits(0).json();
    assert_eq!(json["iothreads"].as_array().unwrap().len(), 3);
    assert_eq!(
        json["exports"][0]["iothreads"],
        serde_json::json!(["iothread0", "iothread1", "iothread2", "iothread0"])
    );
    assert_eq!(
        (&json["disks"][0]["read_only"], &json["exports"][1]["read_only"]),
        (&Value::Bool(true), &Value::Bool(true))
    );
}

/// A shell runs the commands as printed, in a directory whose name needs different quoting in every syntax. QEMU's NBD server
/// replaces the daemon.
#[test]
fn the_printed_nbd_commands_work() {
    let dir = Dir::new("serve");
    let odd = "a b,c;#&'d";
    fs::create_dir(dir.path(odd)).unwrap();
    image(&dir, "disk 1.img", 8 << 20);
    let json = dry_run(&dir, &["disk 1.img", "--json", "--socket-dir", odd]).exits(0).json();
    let clients = &json["exports"][1]["clients"];
    assert_eq!(text(&json, "/exports/1/type"), "nbd");
    let socket = dir.path(text(&json, "/exports/1/listen"));
    let name = text(&json, "/exports/1/export_name");
    let _server = QemuNbd::start(&dir, socket.to_str().unwrap(), &["-x", name], "disk 1.img");
    let shell =
        |key: &str, more: &str| dir.program("bash", &["-c", &format!("{}{more}", text(clients, &format!("/{key}")))]);
    shell("nbdinfo", "").exits(0).prints(&["export-size: 8388608"]);
    shell("nbdcopy", "").exits(0);
    assert_eq!(fs::read(dir.path("copy.img")).unwrap(), fs::read(dir.path("disk 1.img")).unwrap());
    shell("qemu_img", "").exits(0).prints(&["virtual size: 8 MiB"]);
    shell("fio", " --runtime=1").exits(0).prints(&["ioengine=nbd", "err= 0"]);
    // Options on the command line do not override a job file.
    dir.file("try.fio", &text(clients, "/fio_job").replace("runtime=10", "runtime=1"));
    dir.program("fio", &["try.fio"]).exits(0).prints(&["ioengine=nbd", "err= 0"]);
    // qemu-img accepts the argument of -blockdev as --image-opts.
    let qemu = text(clients, "/qemu");
    let options = qemu.strip_prefix("-blockdev ").unwrap().split(" -device").next().unwrap();
    let by_options = format!("qemu-img info --image-opts {}", options.replace("node-name=n,", ""));
    dir.program("bash", &["-c", &by_options]).exits(0).prints(&["virtual size: 8 MiB"]);
}

#[test]
fn the_published_domain_works() {
    let dir = Dir::new("serve");
    image(&dir, "data.img", 1 << 20);
    let domain = fs::read_to_string(Path::new(EXAMPLES).join("iothreads-domain.xml")).unwrap();
    let here = dir.path("data.img");
    dir.file("vm.xml", &domain.replace("/var/lib/libvirt/images/data.img", here.to_str().unwrap()));
    for args in [&["--libvirt", "vm.xml"][..], &["vm.xml"]] {
        let done = dry_run(&dir, args).exits(0);
        done.says(&[
            "warning: disk 'vda' is left out: driver type='qcow2'",
            "warning: disk 'sda' is left out: it is a cdrom",
        ]);
        done.prints(&[
            "plan: 1 disk, 1 export, 4 IOThreads\n",
            "on oracle1.vdb.vhost.sock, 96 queues of up to 256\n",
            "  virtqueues 0..=95 round robin: iothread1 iothread2 iothread3 iothread4\n",
            "      <driver name='qemu' type='raw' queues='96' queue_size='256'/>\n",
            "      <target dev='vdb' bus='virtio'/>\n",
            "      <source type='memfd'/>\n      <access mode='shared'/>\n",
        ]);
    }
    dir.file("vm.xml", &domain);
    let done = dry_run(&dir, &["--libvirt", "vm.xml"]).exits(2);
    done.says(&["mqblk: vm.xml: target=/var/lib/libvirt/images/data.img: the image does not exist", "(disk 'vdb')"]);
    dir.file("net.xml", "<network/>");
    dry_run(&dir, &["--libvirt", "net.xml"])
        .exits(2)
        .says(&["mqblk: net.xml: begins with <network>, not with <domain>"]);
    dry_run(&dir, &["--libvirt", "none.xml"])
        .exits(2)
        .says(&["libvirt domain 'none.xml': No such file", "virsh dumpxml"]);
    let twice = domain.replace("<iothread id='2'/>", "<iothread id='1'/>");
    dir.file("vm.xml", &twice);
    dry_run(&dir, &["vm.xml"]).exits(2).says(&["mqblk: vm.xml: iothreads: IOThread 'iothread1' is named twice"]);
}

#[test]
fn the_example_configuration_works() {
    let dir = Dir::new("serve");
    let example = format!("{EXAMPLES}/serve.toml");
    let out = dry_run(&dir, &[&example]).exits(0);
    out.prints(&[
        "IOThread io0: CPU 0, polls adaptively\n",
        "disk data: ram:size=64m, write back, on_enospc=report, serial 'MQBLK0001'\n",
        "  settings: iosched.read_expire=250 nr_requests=128 scheduler=mq-deadline\n",
        "  virtqueues: io0 0,3; io1 1-2\n",
        "export scratch.nbd: nbd of disk 'scratch', 'scratch' on data.nbd.sock, read-only\n",
    ]);
    let set = dry_run(&dir, &[&example, "--set", "nr_requests=64"]).exits(0);
    set.prints(&[
        "  settings: iosched.read_expire=250 scheduler=mq-deadline nr_requests=64\n",
        "disk scratch: null:size=1g, write back, on_enospc=report\n  settings: nr_requests=64\n",
    ]);
    let done = dry_run(&dir, &[&example, "--set", "scheduler=none"]).exits(2);
    done.says(&[
        "serve.toml:36: nr_requests=128",
        "must be at most queue_depth=64 with scheduler 'none'",
        "(disk 'data')",
    ]);
    dir.file(
        "idle.toml",
        "[[disk]]\ntarget=\"null\"\n[[disk]]\ntarget=\"ram\"\n[[export]]\ntype=\"nbd\"\ndisk=\"null\"\n",
    );
    dry_run(&dir, &["idle.toml"]).exits(0).says(&["warning: disk 'ram' has no export: no client can reach it\n"]);
    let named = dry_run(&dir, &[&example, "--iothreads", "2"]).exits(2);
    named.says(&["--iothreads=2: the file names its IOThreads ('io0', ...); leave the flag out"]);
}

#[test]
fn bad_configurations_are_refused_with_their_lines() {
    let dir = Dir::new("serve");
    let refused = |config: &str, says: &[&str]| {
        dir.file("c.toml", config);
        let done = dry_run(&dir, &["c.toml"]).exits(2);
        assert_eq!(done.out, "");
        let lines: String = says.iter().map(|l| format!("mqblk: {l}\n")).collect();
        assert_eq!(done.err, lines);
    };
    let export = "[[export]]\ntype = \"nbd\"\n";
    refused(
        &format!("[[disk]]\ntarget = \"null\"\nreadonly = true\n{export}"),
        &["c.toml:3: readonly: is no key of [[disk]]; did you mean 'read_only'? Keys: aio, allow_mounted_write, \
             allow_stale_writes, checker_timeout, chunk, conf, detect_prio, direct, discard, failback, fast_io_fail_tmo, format, hardware_handler, logical_block_size, \
             max_polling_interval, name, no_path_retry, offset, on_enospc, path_checker, path_cpus, path_grouping_policy, path_selector, pg_init_delay_msecs, \
             pg_init_retries, physical_block_size, polling_interval, prio, prio_args, queue, read_only, serial, size, stack, target, targets, \
             write_cache (disk 'null')"],
    );
    refused(
        &format!("[[disk]]\ntarget = \"x.img\"\n{export}max_connections = 0\n"),
        &["c.toml:5: max_connections=0: must be a whole number, 1..=256 (export 'x.img.nbd')"],
    );
    refused(
        &format!("[[disk]]\ntarget = \"x.img\"\n{export}"),
        &["c.toml:2: target=x.img: the image does not exist; create it first (truncate -s 10G FILE) (disk 'x.img')"],
    );
    refused(
        &format!("[[disk]]\ntarget = \"null\"\n{export}{export}socket = \"null.nbd.sock\"\nexport_name = \"null\"\n"),
        &[
            "c.toml:7: socket=null.nbd.sock: there export 'null.nbd' serves the export name 'null' already; give one of \
             them another export_name (export 'null.nbd-2')",
        ],
    );
    refused("[[disk]\n", &["c.toml:1: is not TOML here: unclosed array table, expected `]`"]);
    dry_run(&dir, &["none.toml"]).exits(2).says(&["configuration 'none.toml': No such file", "name a TOML file"]);
    image(&dir, "big.toml", 2 << 20);
    dry_run(&dir, &["big.toml"]).exits(2).says(&["configuration 'big.toml': is larger than 1048576 bytes"]);
    fs::write(dir.path("bad.toml"), [0xff; 9]).unwrap();
    dry_run(&dir, &["bad.toml"]).exits(2).says(&["configuration 'bad.toml': is not text (UTF-8)"]);
}

#[test]
fn images_and_sockets_that_cannot_be_used_are_refused() {
    let dir = Dir::new("serve");
    image(&dir, "disk.img", 1 << 20);
    image(&dir, "odd.img", 1000);
    image(&dir, "empty.img", 0);
    let refused = |args: &[&str], says: &[&str]| {
        let done = dry_run(&dir, args).exits(2);
        assert_eq!(done.out, "");
        done.says(says);
    };
    refused(&["none.img"], &["mqblk: target=none.img: the image does not exist; create it first"]);
    refused(
        &["odd.img"],
        &["target=odd.img: has 1000 bytes, which is not whole blocks of 512", "truncate -s 1024 FILE"],
    );
    refused(&["empty.img"], &["target=empty.img: is empty"]);
    refused(&["."], &["target=.: is a directory"]);
    refused(&["nul:size=1g"], &["there is no target 'nul:'; did you mean 'null:'?"]);
    refused(&["disk.img", "--set", "schedulr=none"], &["schedulr: no such setting; did you mean 'scheduler'?"]);
    refused(&["disk.img", "--set", "shared_tags=1"], &["shared_tags=1: is for the disks of a run"]);
    refused(&["disk.img", "--num-queues", "257"], &["257 is not in 1..=256"]);
    refused(&["disk.img", "--libvirt", "x.xml"], &["cannot be used with"]);
    refused(&[], &["DISK | CONFIG.toml"]);
    refused(
        &["disk.img", "--socket-dir", "none"],
        &["socket=none/disk.img.vhost.sock: directory 'none': No such file", "create it first"],
    );
    let long = "x".repeat(100);
    refused(&["disk.img", "--socket-dir", &long], &["has 120 bytes, Unix sockets take 107; choose a shorter path"]);
    let socket = UnixListener::bind(dir.path("disk.img.nbd.sock")).unwrap();
    refused(
        &["disk.img"],
        &["socket=disk.img.nbd.sock: another program listens there already", "(export 'disk.img.nbd')"],
    );
    drop(socket);
    // A child process that another test has just forked has a copy of the socket until exec.
    until_reported("the socket is free", || dry_run(&dir, &["disk.img"]).status == 0);
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap();
    dir.file("tcp.toml", &format!("[[disk]]\ntarget=\"disk.img\"\n[[export]]\ntype=\"nbd\"\nlisten=\"{address}\"\n"));
    refused(&["tcp.toml"], &[&format!("tcp.toml:5: listen={address}: Address already in use")]);
    let server = QemuNbd::start(&dir, dir.path("q").to_str().unwrap(), &[], "disk.img");
    refused(&["disk.img"], &["target=disk.img: image 'disk.img' is in use: another program"]);
    drop(server);
}

/// The kernel may have ublk or not. In both cases, mqblk's report must be correct.
#[test]
fn a_kernel_without_ublk_is_told_so_before_anything_is_touched() {
    let dir = Dir::new("ublk");
    let config = |more: &str| format!("[[disk]]\ntarget = \"ram:size=1m\"\n[[export]]\ntype = \"ublk\"\n{more}");
    dir.file("c.toml", &config("id = 7\nrecovery = true\n"));
    let done = dry_run(&dir, &["c.toml"]);
    if Path::new("/dev/ublk-control").exists() {
        done.exits(0).prints(&["/dev/ublkb7"]);
    } else {
        done.exits(2).says(&["c.toml:4: type=ublk: this kernel has no ublk", "modprobe ublk_drv", "use type=fuse"]);
    }
    dir.file("c.toml", &config("recovery = true\n"));
    dry_run(&dir, &["c.toml"]).exits(2).says(&["c.toml:5: recovery=true: needs id=N"]);
}
