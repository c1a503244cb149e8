// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A Linux guest under QEMU's emulation, whose one disk is a vhost-user-blk export.
//!
//! Guarantees: a guest ends with its test, and by itself after `limit_s`. No KVM is needed and none is used. Needs: QEMU, and once a kernel from
//! the package archive (see `prepare.sh`).

use crate::common::Dir;
use std::fmt::Debug;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// How a guest's machine is made.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    /// Queues of its disk; it has as many CPUs, and at least two.
    pub queues: u32,
    pub is_packed: bool,
    /// The guest may switch the cache, and is told of it; else it must go by FLUSH alone.
    pub has_config_wce: bool,
    pub poll_queues: u32,
    /// Seconds after which it is ended.
    pub limit_s: u32,
    /// Files of the test's directory that stand in the guest's root.
    pub files: &'a [&'a str],
}

impl Default for Machine<'_> {
    fn default() -> Self {
        Machine { queues: 1, is_packed: false, has_config_wce: true, poll_queues: 0, limit_s: 300, files: &[] }
    }
}

/// Kernel and root.
fn prepared() -> PathBuf {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../guest");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest/prepare.sh");
    let output = Command::new("bash").arg(script).arg(&cache).stdin(Stdio::null()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "prepare.sh: {}\n{out}\n{err}", output.status);
    cache.canonicalize().unwrap()
}

/// A guest that runs. It is ended with its test.
pub struct Guest {
    child: Child,
    console: BufReader<ChildStdout>,
    /// What it has said.
    pub seen: String,
}

impl Machine<'_> {
    /// Starts it on the export at `socket`, with more arguments for QEMU. `job` is the shell script that it runs.
    pub fn start(&self, dir: &Dir, socket: &str, job: &str, more: &[&str]) -> Guest {
        let cache = prepared();
        // A machine that runs has it mapped.
        if !dir.path("initrd").exists() {
            dir.file("job.sh", job);
            let pack = "root=$1; shift; printf '%s\\n' job.sh \"$@\" | cpio -o -H newc --quiet >job.cpio && cat \"$root\" job.cpio >initrd";
            let root = cache.join("initrd.cpio");
            let arguments = ["-c", pack, "sh", root.to_str().unwrap()];
            assert!(dir.program("sh", &[&arguments, self.files].concat()).status == 0);
        }
        let smp = self.queues.max(2);
        let on = |is: bool| if is { "on" } else { "off" };
        let device = format!(
            "vhost-user-blk-pci,chardev=vu,num-queues={},packed={},config-wce={}",
            self.queues,
            on(self.is_packed),
            on(self.has_config_wce)
        );
        let poll = match self.poll_queues {
            0 => String::new(),
            n => format!(" virtio_blk.poll_queues={n}"),
        };
        let mut command = Command::new("timeout");
        command.args(["-k", "5", &self.limit_s.to_string(), "qemu-system-x86_64", "-machine", "q35"]);
        // QEMU 7.2 breaks newer kernels' slab allocator with cmpxchg16b.
        command.args(["-accel", "tcg,thread=multi", "-cpu", "max,-cx16", "-smp", &smp.to_string(), "-m", "768"]);
        command.args(["-object", "memory-backend-memfd,id=mem,size=768M,share=on", "-numa", "node,memdev=mem"]);
        command.args(["-chardev", &format!("socket,id=vu,path={socket},reconnect=1"), "-device", &device]);
        command.args(more);
        command.args(["-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot"]);
        command.arg("-kernel").arg(cache.join("vmlinuz")).args(["-initrd", "initrd"]);
        // The kernel's test of its timer counts on a CPU that is there all the time, and gives up where the host has others to run.
        command.args(["-append", &format!("console=ttyS0 panic=-1 quiet no_timer_check{poll}")]);
        command.current_dir(dir.as_path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let console = BufReader::new(child.stdout.take().unwrap());
        Guest { child, console, seen: String::new() }
    }
}

impl Guest {
    /// Reads the console until a line begins with `sign`, or to its end. Whether it came.
    pub fn says(&mut self, sign: &str) -> bool {
        let mut line = Vec::new();
        while self.console.read_until(b'\n', &mut line).unwrap() > 0 {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            self.seen.push_str(&text);
            self.seen.push('\n');
            line.clear();
            if text.starts_with(sign) {
                return true;
            }
        }
        false
    }

    /// Waits for its end, which has to be a good one; what it said.
    pub fn passes(mut self, case: &dyn Debug) -> String {
        self.says("there is no such line");
        let status = self.child.wait().unwrap();
        let good = self.seen.contains("GUEST-PASS") && self.seen.contains("JOB-EXIT: 0");
        let bad = ["Oops:", "BUG:", "I/O error", "Call Trace"].iter().find(|bad| self.seen.contains(**bad));
        assert!(good && bad.is_none(), "{case:?}: {status}, {bad:?} on its console\n{}", self.seen);
        std::mem::take(&mut self.seen)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // `timeout` hands it on.
        let _ = Command::new("kill").arg(self.child.id().to_string()).stderr(Stdio::null()).status();
        let _ = self.child.wait();
    }
}
