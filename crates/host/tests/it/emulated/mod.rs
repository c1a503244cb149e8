// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A Linux machine under QEMU's emulation (x86-64), and the output on its console. The program's tests use it, too.
//!
//! Guarantees: the machine is killed at the end of its test, and after `limit_s`. KVM is neither needed nor used. Needs: QEMU, and once
//! a kernel from the package archive (see `prepare.sh`).
#![allow(dead_code, reason = "each test crate uses its part")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

/// The kernel and the root that a machine boots.
pub struct Boot {
    pub kernel: String,
    pub root: String,
}

impl Boot {
    /// Makes a root called `name` that runs `script`, unless it exists. `programs` and `modules` are lists with blanks between.
    pub fn new(name: &str, script: &Path, programs: &str, modules: &str) -> Boot {
        let prepare = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/tests/it/emulated/prepare.sh");
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../guest");
        let mut command = Command::new("bash");
        command.arg(prepare).arg(cache).arg(name).arg(script).args([programs, modules]);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "prepare.sh: {out}\n{}", String::from_utf8_lossy(&output.stderr));
        let mut lines = out.lines().map(str::to_owned);
        let mut path = || lines.next().unwrap();
        Boot { kernel: path(), root: path() }
    }
}

/// The hardware of a machine.
pub struct Hardware<'a> {
    pub cpus: u32,
    /// Memory, in KiB.
    pub kib: u32,
    /// More arguments for QEMU. Paths in them may be relative to `directory`.
    pub devices: &'a [&'a str],
    pub directory: &'a Path,
    /// Seconds after which the machine is killed.
    pub limit_s: u32,
}

/// A running machine.
pub struct Emulated {
    child: Child,
    orders: ChildStdin,
    console: BufReader<ChildStdout>,
    /// Its output.
    pub seen: String,
}

impl Hardware<'_> {
    /// Starts the machine. `parameters` are added to its kernel's command line.
    pub fn start(&self, boot: &Boot, parameters: &str) -> Emulated {
        let mut command = Command::new("timeout");
        command.args(["-k", "60", &self.limit_s.to_string(), "qemu-system-x86_64", "-machine", "q35"]);
        // With cmpxchg16b, QEMU 7.2 breaks the slab allocator of newer kernels. With several threads, it may execute an int3 of the
        // kernel's code patching after the patching ended (an Oops).
        command.args(["-accel", "tcg,thread=single", "-cpu", "max,-cx16"]);
        command.args(["-smp", &self.cpus.to_string(), "-m", &format!("{}K", self.kib)]).args(self.devices);
        command.args(["-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot"]);
        // The kernel's timer check expects a CPU that always runs, and fails if the host runs other processes.
        let line = format!("console=ttyS0 panic=-1 quiet no_timer_check {parameters}");
        command.args(["-kernel", &boot.kernel, "-initrd", &boot.root, "-append", &line]);
        command.current_dir(self.directory).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot run timeout: {e}"));
        let (orders, console) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Emulated { child, orders, console, seen: String::new() }
    }
}

impl Emulated {
    /// Reads the console until a line begins with `sign`, or to its end. Returns the rest of that line.
    pub fn says(&mut self, sign: &str) -> Option<String> {
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

    /// Types a line on its console.
    pub fn order(&mut self, line: &str) {
        writeln!(self.orders, "{line}").unwrap();
    }

    /// Reads the console to its end, and waits until the machine ends.
    pub fn end(&mut self) -> ExitStatus {
        while self.says("").is_some() {}
        self.child.wait().unwrap()
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        // Only while it runs: after its end, another process may have its number.
        if matches!(self.child.try_wait(), Ok(None)) {
            // `timeout` forwards the signal.
            let _ = Command::new("kill").arg(self.child.id().to_string()).stderr(Stdio::null()).status();
            let _ = self.child.wait();
        }
    }
}
