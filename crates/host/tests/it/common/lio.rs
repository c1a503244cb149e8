// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A third independent iSCSI target: that of the Linux kernel, in a guest under QEMU's emulation (x86-64), reached by ports of this
//! host. Unlike tgtd and istgt, it has COMPARE AND WRITE, and target port groups whose states change.
//!
//! Guarantees: those of [`Emulated`].

use crate::emulated;

use super::DISK_BYTES;
use emulated::{Boot, Emulated, Hardware};
use std::net::TcpListener;
use std::path::Path;

pub const IQN: &str = "iqn.2026-11.test:lio";
/// Its directory in the guest's configfs, and those of its disk.
pub const NODE: &str = "/sys/kernel/config/target/iscsi/iqn.2026-11.test:lio";
pub const DISK: &str = "/sys/kernel/config/target/core/fileio_0/disk";
/// Seconds after which the guest is killed. It starts in a few seconds.
const LIMIT_S: u32 = 900;
/// How many times two free ports are looked for.
const TRIES: u32 = 20;

/// A running target. LUN 0 of each of its two portal groups is the same disk, in target port groups 1 and 2.
pub struct Lio {
    guest: Emulated,
    ports: [u16; 2],
}

impl Lio {
    pub fn new() -> Lio {
        let job = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/common/lio/job.sh");
        let modules = "virtio_pci virtio_blk virtio_net configfs target_core_mod target_core_file iscsi_target_mod";
        let boot = Boot::new("target", &job, "", modules);
        (0..TRIES).find_map(|_| Lio::try_start(&boot)).expect("two free ports, and a guest that comes up")
    }

    fn try_start(boot: &Boot) -> Option<Lio> {
        // Both ports are held until both are known, so that they differ.
        let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let ports = ports.map(|listener| listener.local_addr().unwrap().port());
        let forward = |i: usize| format!("hostfwd=tcp:127.0.0.1:{}-10.0.2.15:{}", ports[i], 3260 + i);
        let network = format!("user,id=net,restrict=on,{},{}", forward(0), forward(1));
        let devices = ["-netdev", &network, "-device", "virtio-net-pci,netdev=net"];
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let hardware = Hardware { cpus: 2, kib: 512 << 10, devices: &devices, directory, limit_s: LIMIT_S };
        let mut guest = hardware.start(boot, &format!("BYTES={DISK_BYTES}"));
        if guest.says("LIO-IS-UP").is_some() {
            return Some(Lio { guest, ports });
        }
        // If another process has taken a port, QEMU exits and the guest prints nothing.
        assert!(guest.seen.is_empty(), "the guest is no target:\n{}", guest.seen);
        None
    }

    /// Runs a line in the guest's shell.
    pub fn does(&mut self, line: &str) {
        self.guest.order(line);
        let status = self.guest.says("LIO-DID: ");
        assert_eq!(status.as_deref(), Some("0"), "{line}\n{}", self.guest.seen);
    }

    /// Returns the URL of its LUN 0 by portal 1 or 2. `login` is `USER%PASSWORD@` or empty, `options` begin with `?`.
    pub fn url_as(&self, login: &str, portal: usize, options: &str) -> String {
        format!("iscsi://{login}127.0.0.1:{}/{IQN}/0{options}", self.ports[portal - 1])
    }

    pub fn url(&self, portal: usize, options: &str) -> String {
        self.url_as("", portal, options)
    }
}
