// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tells the disks of a run which CPUs of this machine go offline or come back.
//!
//! Guarantees: a run follows at most a second after the kernel changes its list of online CPUs. The software queues and hardware queues
//! of CPUs that went offline are drained and not used. They are used again when the CPUs are back. The kernel decides where job threads
//! run. Does not: watch when the disk's CPU count was set (`nr_cpus`), or when the process may use only some of the machine's CPUs; keep
//! a CPU from going offline, as the kernel's block layer can.

use crate::clock;
use crate::disk::Disk;
use crate::process::nr_cpus;
use crate::topology;
use blk::id::CpuId;
use blk::time::{Duration, Instant};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// How often it looks.
const LOOK: std::time::Duration = std::time::Duration::from_secs(1);

/// A CPU that went or came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuChange {
    /// Since the run began.
    pub at: Duration,
    /// Which one.
    pub cpu: CpuId,
    /// Whether it is there now.
    pub online: bool,
}

impl std::fmt::Display for CpuChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (cpu, at) = (self.cpu, self.at.as_ns() as f64 / 1e9);
        match self.online {
            true => write!(f, "CPU {cpu} came online {at:.1} s into the run: its queues are used again"),
            false => {
                write!(f, "CPU {cpu} went offline {at:.1} s into the run: its I/O used other queues from then on")
            }
        }
    }
}

/// Watches until it is dropped.
pub(super) struct CpuWatch {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    seen: Arc<Mutex<Vec<CpuChange>>>,
}

impl CpuWatch {
    /// Watches this machine for disks that have its CPUs.
    pub(super) fn start(disks: &[(String, Arc<Disk>)]) -> Option<CpuWatch> {
        CpuWatch::start_at(Path::new(topology::SYSTEM), LOOK, disks)
    }

    fn start_at(system: &Path, look: std::time::Duration, disks: &[(String, Arc<Disk>)]) -> Option<CpuWatch> {
        let machine = topology::read(system, nr_cpus())?;
        let ours = disks.iter().map(|(_, disk)| Arc::clone(disk));
        let ours: Vec<_> = ours.filter(|disk| disk.queue.config().topology == machine).collect();
        if ours.is_empty() || machine.nr_cpus == 1 {
            return None;
        }
        let seen = Arc::new(Mutex::new(Vec::new()));
        let watched = Watched { system: system.to_owned(), disks: ours, began: clock::now(), seen: Arc::clone(&seen) };
        let (end, ended) = mpsc::channel();
        let watch = move || {
            while ended.recv_timeout(look) == Err(RecvTimeoutError::Timeout) {
                watched.look();
            }
        };
        let thread = std::thread::Builder::new().name("cpus".into()).spawn(watch).ok()?;
        Some(CpuWatch { end: Some(end), thread: Some(thread), seen })
    }

    /// What it has seen so far.
    pub(super) fn seen(&self) -> Vec<CpuChange> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for CpuWatch {
    fn drop(&mut self) {
        drop(self.end.take());
        // If the thread panicked, it has printed that.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Watched {
    system: PathBuf,
    disks: Vec<Arc<Disk>>,
    began: Instant,
    seen: Arc<Mutex<Vec<CpuChange>>>,
}

impl Watched {
    fn look(&self) {
        let Some(online) = topology::online(&self.system) else { return };
        for (i, disk) in self.disks.iter().enumerate() {
            // A disk that is not drained within a second is tried again later.
            for (cpu, online) in disk.follow_cpus(&|cpu| online.contains(&(cpu.index() as u16))).unwrap_or_default() {
                if i == 0 {
                    let change = CpuChange { at: clock::now().since(self.began), cpu, online };
                    self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(change);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::null::{Null, NullOptions};
    use crate::waiting::{POLL, until};
    use blk::settings::QueueConfig;

    /// This machine's tree, with an `online` of our own.
    fn tree(name: &str) -> PathBuf {
        let tree = std::env::temp_dir().join(format!("cpus-{}-{name}", std::process::id()));
        std::fs::create_dir_all(tree.join("cpu")).unwrap();
        for entry in std::fs::read_dir("/sys/devices/system/cpu").unwrap().flatten() {
            if entry.file_name() != "online" {
                std::os::unix::fs::symlink(entry.path(), tree.join("cpu").join(entry.file_name())).unwrap();
            }
        }
        std::os::unix::fs::symlink("/sys/devices/system/node", tree.join("node")).unwrap();
        tree
    }

    #[test]
    fn disks_follow_the_list_of_cpus() {
        let nr_cpus = nr_cpus();
        let tree = tree("follow");
        let Some(machine) = topology::read(&tree, nr_cpus).filter(|m| m.nr_cpus > 1) else {
            // One CPU, or some of several: nothing is watched.
            assert!(CpuWatch::start_at(&tree, LOOK, &[]).is_none());
            return std::fs::remove_dir_all(tree).unwrap();
        };
        let config = QueueConfig { topology: machine, ..QueueConfig::default() };
        let disk = Arc::new(Disk::new(Arc::new(Null::new(NullOptions::default())), config, None).unwrap());
        let list = |cpus: String| {
            std::fs::write(tree.join("online.new"), cpus).unwrap();
            std::fs::rename(tree.join("online.new"), tree.join("cpu/online")).unwrap();
        };
        list(format!("0-{}\n", nr_cpus - 1));
        let disks = [("null".to_owned(), Arc::clone(&disk))];
        let watch = CpuWatch::start_at(&tree, POLL, &disks).expect("it watches");
        let mut sub = disk.queue.submitter(CpuId::new(0)).unwrap();
        // A poll while the disk is frozen for it changes nothing yet.
        let mut wait_until = |at_home: bool| {
            until("it follows", || {
                sub.poll(clock::now());
                (sub.cpu() == CpuId::new(0)) == at_home
            });
        };
        list(format!("1-{}\n", nr_cpus - 1));
        wait_until(false);
        list(format!("0-{}\n", nr_cpus - 1));
        wait_until(true);
        until("both changes are seen", || watch.seen().len() >= 2);
        let seen: Vec<_> = watch.seen().iter().map(|c| (c.cpu.index(), c.online)).collect();
        assert_eq!(seen, [(0, false), (0, true)]);
        assert!(watch.seen()[0].to_string().contains("went offline"), "{}", watch.seen()[0]);
        drop(watch);
        std::fs::remove_dir_all(tree).unwrap();
    }
}
