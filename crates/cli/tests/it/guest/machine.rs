// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A Linux guest under QEMU's emulation. Its only disk is a vhost-user-blk export.
//!
//! Guarantees: those of [`Emulated`].
#![allow(dead_code, reason = "each test crate uses its part")]

use crate::emulated;

use crate::common::Dir;
use emulated::{Boot, Emulated, Hardware};
use std::fmt::Debug;
use std::path::Path;

/// Memory of a guest, not a multiple of 256 KiB. During migration, QEMU 7.2 can lose writes of emulated CPUs where it clears
/// dirty bits 64 pages at a time. It does so only if the memory is a multiple of 256 KiB. Fixed in 9.0: "physmem: Fix migration
/// dirty bitmap coherency with TCG memory access".
const KIB: u32 = (768 << 10) + 8;

/// The configuration of a guest's machine.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    /// Number of queues of its disk. The machine has as many CPUs, and at least two.
    pub queues: u32,
    pub is_packed: bool,
    /// The guest can read and switch the cache mode; else it must rely on the FLUSH feature alone.
    pub has_config_wce: bool,
    pub poll_queues: u32,
    /// Seconds after which the guest is killed.
    pub limit_s: u32,
    /// Files of the test's directory that are copied into the guest's root.
    pub files: &'a [&'a str],
}

impl Default for Machine<'_> {
    fn default() -> Self {
        Machine { queues: 1, is_packed: false, has_config_wce: true, poll_queues: 0, limit_s: 900, files: &[] }
    }
}

/// A running guest. It is killed at the end of its test.
pub struct Guest(Emulated);

impl Machine<'_> {
    /// Starts the guest on the export at `socket`, with more arguments for QEMU. `job` is the shell script that it runs.
    pub fn start(&self, dir: &Dir, socket: &str, job: &str, more: &[&str]) -> Guest {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/guest/job.sh");
        let base = Boot::new("initrd", &script, "fio", "virtio_pci virtio_blk mq-deadline");
        let initrd = dir.path("initrd");
        // Not written again, because a running machine has it mapped.
        if !initrd.exists() {
            dir.file("job.sh", job);
            let pack = "root=$1; shift; printf '%s\\n' job.sh \"$@\" | cpio -o -H newc --quiet >job.cpio && cat \"$root\" job.cpio >initrd";
            let arguments = ["-c", pack, "sh", &base.root];
            assert!(dir.program("sh", &[&arguments, self.files].concat()).status == 0);
        }
        let boot = Boot { root: initrd.to_str().unwrap().to_owned(), ..base };
        let on = |is: bool| if is { "on" } else { "off" };
        let device = format!(
            "vhost-user-blk-pci,chardev=vu,num-queues={},packed={},config-wce={}",
            self.queues,
            on(self.is_packed),
            on(self.has_config_wce)
        );
        let poll = match self.poll_queues {
            0 => String::new(),
            n => format!("virtio_blk.poll_queues={n}"),
        };
        let memory = format!("memory-backend-memfd,id=mem,size={KIB}K,share=on");
        let disk = format!("socket,id=vu,path={socket},reconnect=1");
        let devices = ["-object", &memory, "-numa", "node,memdev=mem", "-chardev", &disk, "-device", &device];
        let devices = [&devices, more].concat();
        let cpus = self.queues.max(2);
        let hardware = Hardware { cpus, kib: KIB, devices: &devices, directory: dir.as_path(), limit_s: self.limit_s };
        Guest(hardware.start(&boot, &poll))
    }
}

impl Guest {
    /// Reads the console until a line begins with `sign`, or to its end. Returns whether such a line came.
    pub fn says(&mut self, sign: &str) -> bool {
        self.0.says(sign).is_some()
    }

    /// Its output.
    pub fn seen(&self) -> &str {
        &self.0.seen
    }

    /// Waits until the guest ends, which must be with success. Returns its output.
    pub fn passes(mut self, case: &dyn Debug) -> String {
        let status = self.0.end();
        let seen = std::mem::take(&mut self.0.seen);
        let good = seen.contains("GUEST-PASS") && seen.contains("JOB-EXIT: 0");
        let bad = ["Oops:", "BUG:", "I/O error", "Call Trace"].iter().find(|bad| seen.contains(**bad));
        assert!(good && bad.is_none(), "{case:?}: {status}, {bad:?} on its console\n{seen}");
        seen
    }
}
