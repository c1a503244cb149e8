// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The default machines of studies, as machine files that `--machine` replaces.
//!
//! Guarantees: all files can be read. Does not do: describe a real machine; `mqblk calibrate` writes a file that does.

use super::Study;
use crate::machine::costs::Shape;
use crate::scenario::file::Scenario;

/// 256 CPUs, and a device that takes 10 us for an I/O and serves all I/Os at once: only CPUs and locks limit it.
const BIG: &str = r#"
title = "8 sockets of 32 cores, a device of 10 us without caps"
[machine]
sockets = 8
cores = 32
threads = 1
[disk]
size_gib = 1024
read_us = 10
write_us = 10
queue_depth = 512
"#;

/// The largest machine of Bjorling et al., "Linux Block IO: Introducing Multi-queue SSD Access on Multi-core Systems" (SYSTOR 2013):
/// 8 sockets of 10 cores, a null device, Linux 3.10 with its ticket locks.
const SYSTOR: &str = r#"
title = "8 sockets of 10 cores as in SYSTOR 2013, a device of no time, ticket locks"
[machine]
sockets = 8
cores = 10
threads = 1
[costs.line]
waiting = "ticket"
[disk]
size_gib = 1024
read_us = 0
write_us = 0
queue_depth = 512
"#;

/// Two sockets, and the same device as [`BIG`].
const SERVER: &str = r#"
title = "2 sockets of 32 cores, a device of 10 us without caps"
[machine]
sockets = 2
cores = 32
threads = 1
[disk]
size_gib = 1024
read_us = 10
write_us = 10
queue_depth = 1023
"#;

/// Two sockets, with a flash drive that has 128 I/Os in service at a time: at most 1.6 million I/Os a second.
const FLASH: &str = r#"
title = "2 sockets of 32 cores, a flash drive of 80 us with 128 I/Os at a time"
[machine]
sockets = 2
cores = 32
threads = 1
[disk]
size_gib = 1024
read_us = 80
write_us = 20
parallel = 128
queue_depth = 1023
"#;

/// A virtual machine whose users mostly read. QEMU's costs are those of `scenarios/rhel94-oracle.toml`.
const GUEST: &str = r#"
title = "one virtual machine of 32 vCPUs that reads, on a host of 2 x 32 cores with a drive of 60 us"
[machine]
sockets = 2
cores = 32
threads = 1
[guests]
vcpus = 32
queues = 32
users = [8, 128]
kick_us = 2
inject_us = 4
cpu_us = 40
per_user_us = 0
reads = 8
writes = 0
main_loop = { serve_us = 5, wake_us = 60 }
iothread = { serve_us = 5, wake_us = 8, poll_us = 32.768 }
[disk]
size_gib = 4096
read_us = 60
write_us = 20
"#;

/// Returns the machine of a study. Never panics, because the files are tested.
pub fn default_of(study: Study) -> Scenario {
    Scenario::parse_machine(study.name(), text_of(study)).expect("tested")
}

/// The file that [`default_of`] is read from.
pub fn text_of(study: Study) -> &'static str {
    let text = match study {
        Study::Cpus | Study::Elevators => BIG,
        Study::Sockets => SYSTOR,
        Study::HwQueues => SERVER,
        Study::Depth => FLASH,
        Study::Iothreads => GUEST,
    };
    text.trim_start()
}

/// Returns the machine on which our own block layer runs in user space over the null device. It keeps the `costs` of work
/// that this path does. Costs that only a kernel and a device add (system calls, interrupts, wake-ups, doorbells) are 0.
pub fn of_null_driver(machine: &Scenario, shape: Shape) -> Scenario {
    let mut m = machine.clone();
    m.machine = shape;
    let p = &mut m.costs.path;
    for ns in [&mut p.syscall_ns, &mut p.doorbell_ns, &mut p.irq_ns, &mut p.wakeup_ns, &mut p.ipi_ns, &mut p.switch_ns]
    {
        *ns = 0;
    }
    (m.disk.read_us, m.disk.write_us, m.disk.iops, m.disk.bw_mb, m.disk.jitter_pct) = (0.0, 0.0, 0, 0.0, 0);
    (m.disk.luns, m.disk.parallel, m.disk.split) = (1, 65_536, false);
    (m.disk.hdd, m.disk.array) = (None, None);
    m
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_study_has_a_machine() {
        for study in Study::ALL {
            let machine = default_of(study);
            assert!(machine.machine.cpus() >= 64, "{study:?}");
            assert_eq!(machine.guests.is_some(), study == Study::Iothreads, "{study:?}");
        }
    }
}
