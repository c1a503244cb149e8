// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A third iSCSI target that is not ours: that of the Linux kernel, in a guest under QEMU's emulation (x86-64), reached by ports of
//! this host. It knows what tgtd and istgt do not: COMPARE AND WRITE, and target port groups whose states change.
//!
//! Guarantees: the guest ends with its test, and by itself after [`LIMIT_S`]. No KVM is needed and none is used.

use super::DISK_BYTES;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub const IQN: &str = "iqn.2026-11.test:lio";
/// Its directory in the guest's configfs, and those of its disk.
pub const NODE: &str = "/sys/kernel/config/target/iscsi/iqn.2026-11.test:lio";
pub const DISK: &str = "/sys/kernel/config/target/core/fileio_0/disk";
/// Seconds after which the guest is ended; it starts in some.
const LIMIT_S: &str = "300";
/// Ports that are tried until both are free.
const TRIES: u32 = 20;

/// A target that runs. LUN 0 of each of its two portal groups is the same disk, in target port groups 1 and 2.
pub struct Lio {
    child: Child,
    orders: ChildStdin,
    console: BufReader<ChildStdout>,
    seen: String,
    ports: [u16; 2],
}

impl Lio {
    pub fn new() -> Lio {
        let [kernel, root] = prepared();
        (0..TRIES).find_map(|_| Lio::try_start(&kernel, &root)).expect("two free ports, and a guest that comes up")
    }

    fn try_start(kernel: &str, root: &str) -> Option<Lio> {
        // Both are held until both are known.
        let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let ports = ports.map(|listener| listener.local_addr().unwrap().port());
        let forward = |i: usize| format!("hostfwd=tcp:127.0.0.1:{}-10.0.2.15:{}", ports[i], 3260 + i);
        let mut command = Command::new("timeout");
        command.args(["-k", "5", LIMIT_S, "qemu-system-x86_64", "-machine", "q35", "-smp", "2", "-m", "512"]);
        // QEMU 7.2 breaks newer kernels' slab allocator with cmpxchg16b.
        command.args(["-accel", "tcg,thread=multi", "-cpu", "max,-cx16"]);
        command.args(["-netdev", &format!("user,id=net,restrict=on,{},{}", forward(0), forward(1))]);
        command.args(["-device", "virtio-net-pci,netdev=net", "-nodefaults", "-display", "none", "-serial", "stdio"]);
        // The kernel's test of its timer gives up where the host has others to run.
        let line = format!("console=ttyS0 panic=-1 quiet no_timer_check BYTES={DISK_BYTES}");
        command.args(["-no-reboot", "-kernel", kernel, "-initrd", root, "-append", &line]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot run timeout: {e}"));
        let (orders, console) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut lio = Lio { child, orders, console, seen: String::new(), ports };
        if lio.says("LIO-IS-UP").is_some() {
            return Some(lio);
        }
        // QEMU says nothing there if it is a port that another process has taken.
        assert!(lio.seen.is_empty(), "the guest is no target:\n{}", lio.seen);
        None
    }

    /// What stands behind `sign` on the next line that begins with it.
    fn says(&mut self, sign: &str) -> Option<String> {
        let mut line = Vec::new();
        while self.console.read_until(b'\n', &mut line).unwrap() > 0 {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            self.seen.push_str(&text);
            self.seen.push('\n');
            line.clear();
            if let Some(rest) = text.strip_prefix(sign) {
                return Some(rest.to_owned());
            }
        }
        None
    }

    /// Has the guest's shell carry out a line.
    pub fn does(&mut self, line: &str) {
        writeln!(self.orders, "{line}").unwrap();
        let status = self.says("LIO-DID: ");
        assert_eq!(status.as_deref(), Some("0"), "{line}\n{}", self.seen);
    }

    /// Its LUN 0 by portal 1 or 2; `login` is `USER%PASSWORD@` or nothing, `options` begin with `?`.
    pub fn url_as(&self, login: &str, portal: usize, options: &str) -> String {
        format!("iscsi://{login}127.0.0.1:{}/{IQN}/0{options}", self.ports[portal - 1])
    }

    pub fn url(&self, portal: usize, options: &str) -> String {
        self.url_as("", portal, options)
    }
}

/// Kernel and root.
fn prepared() -> [String; 2] {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/lio");
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../guest");
    let output = Command::new("bash").arg(tests.join("prepare.sh")).arg(&cache).stdin(Stdio::null()).output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "prepare.sh: {out}\n{}", String::from_utf8_lossy(&output.stderr));
    let mut lines = out.lines().map(str::to_owned);
    [(); 2].map(|()| lines.next().unwrap())
}

impl Drop for Lio {
    fn drop(&mut self) {
        // `timeout` hands it on.
        let _ = Command::new("kill").arg(self.child.id().to_string()).stderr(Stdio::null()).status();
        let _ = self.child.wait();
    }
}
