// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replays a recording of shared tags on the whole stack, in virtual time, and compares line by line.
//!
//! Every disk is a request queue over a [`NullDisk`] of its own, all in one tag set. A load's process submits its reads
//! in one plug and continues as tags come free; the loads of a phase start at the same time, one after the other. The
//! kernel's answers are not used for the replay: the same lines are made from what happened here, and compared.

use crate::disk::NullDisk;
use crate::settings::Settings;
use crate::tags::{Load, Phase, TagCase};
use crate::{CaseError, Lock};
use blk::bio::{Bio, DataRef};
use blk::cpumap::CpuTopology;
use blk::debugfs::DebugFile;
use blk::id::{CpuId, Sector};
use blk::queue::{NoNotify, RequestQueue};
use blk::settings::QueueConfig;
use blk::submitter::Submitter;
use blk::tags::TagSet;
use blk::time::Instant;
use std::sync::Arc;

/// Sectors from one read to the next, so that no two merge.
const STRIDE: u64 = 64;

/// Sectors of a read.
const READ_SECTORS: u32 = 8;

struct Disk {
    name: String,
    driver: Arc<NullDisk>,
    queue: Arc<RequestQueue<Lock>>,
    /// The thread that serves timers when no process does.
    worker: Submitter<Lock>,
    issued: usize,
    max: usize,
}

struct Sharing {
    disks: Vec<Disk>,
    now: u64,
}

/// Returns our lines for this case, and the first difference from the kernel's lines in words.
///
/// # Errors
/// A set-up that the stack refuses.
pub fn judge(case: &TagCase) -> Result<(Vec<String>, Option<String>), CaseError> {
    let mut sharing = Sharing::new(case).map_err(CaseError)?;
    let mut ours = sharing.structure();
    for (n, phase) in case.phases.iter().enumerate() {
        sharing.run(phase);
        ours.extend(sharing.answers(n));
    }
    let mut theirs: Vec<&String> = case.answers.iter().collect();
    let mut sorted: Vec<&String> = ours.iter().collect();
    // The order of lines depends on the recording script and is not compared.
    theirs.sort();
    sorted.sort();
    let text = |line: Option<&&String>| line.map_or("nothing".to_owned(), |l| format!("'{l}'"));
    let parted = (0..theirs.len().max(sorted.len())).find(|i| theirs.get(*i) != sorted.get(*i));
    let first = parted.map(|i| format!("kernel {}, here {}", text(theirs.get(i)), text(sorted.get(i))));
    Ok((ours, first))
}

impl Sharing {
    fn new(case: &TagCase) -> Result<Sharing, String> {
        let tags = &case.set_up.tags;
        let set = TagSet::<Lock>::new(tags.clone()).map_err(|e| e.to_string())?;
        let most = case.phases.iter().flat_map(|p| &p.loads).map(|l| l.reads).max().unwrap_or(1);
        let size = Settings::parse("the disks", "NB=\"gb=1\"\nSCHED=none\n").map_err(|e| e.0)?;
        let mut disks = Vec::new();
        for name in &case.disks {
            let config = QueueConfig {
                topology: CpuTopology::uniform(case.cpus),
                nr_hw_queues: Some(tags.nr_hw_queues),
                nr_poll_queues: tags.nr_poll_queues,
                queue_depth: tags.queue_depth,
                host_tagset: tags.host_tagset,
                scheduler: Some("none".into()),
                bios_per_submitter: most + 1,
                ..QueueConfig::default()
            };
            let driver = NullDisk::new(&size, Some(case.set_up.service_ns));
            let queue = RequestQueue::with_tag_set(&set, driver.clone(), config, Box::new(NoNotify));
            let queue = queue.map_err(|e| e.to_string())?;
            let worker = queue.submitter(CpuId::new(0)).ok_or("no free submitter")?;
            disks.push(Disk { name: name.clone(), driver, queue, worker, issued: 0, max: 0 });
        }
        Ok(Sharing { disks, now: 0 })
    }

    /// Returns what sysfs and debugfs show of the disks before any I/O.
    fn structure(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for d in &self.disks {
            let files = d.queue.debugfs();
            let name = &d.name;
            lines.push(format!("disk {name} scheduler {}", d.queue.scheduler()));
            lines.push(format!("disk {name} nr_requests {}", d.queue.nr_requests()));
            lines.push(format!("disk {name} flags {}", line_of(&files, "hctx0/flags", "")));
            let map = d.queue.map();
            for hctx in 0..map.nr_hw_queues() {
                let tags = line_of(&files, &format!("hctx{hctx}/tags"), "nr_tags=");
                let cpus: Vec<String> = map.cpus_of(hctx).iter().map(u16::to_string).collect();
                lines.push(format!("hctx {name} {hctx} nr_tags {} cpus {}", tags, cpus.join(",")));
            }
        }
        lines
    }

    /// Returns the lines that the kernel's side writes when phase `n` has ended.
    fn answers(&mut self, n: usize) -> Vec<String> {
        let mut lines = Vec::new();
        for d in &mut self.disks {
            if d.issued > 0 {
                lines.push(format!("inflight {n} {} issued {} max {}", d.name, d.issued, d.max));
            }
            (d.issued, d.max) = (0, 0);
            let files = d.queue.debugfs();
            for hctx in 0..d.queue.map().nr_hw_queues() {
                let users = line_of(&files, &format!("hctx{hctx}/tags"), "active_queues=");
                lines.push(format!("users {n} {} {hctx} {users}", d.name));
            }
        }
        lines
    }

    fn run(&mut self, phase: &Phase) {
        self.pass(self.now + phase.rest * 1_000_000_000);
        let mut processes: Vec<(usize, Submitter<Lock>)> =
            phase.loads.iter().map(|load| (load.disk, self.start(load))).collect();
        while processes.iter().any(|(_, p)| p.outstanding() > 0) {
            let due = self.disks.iter().filter_map(|d| d.driver.next_due()).min();
            let due = due.expect("reads are outstanding, so one is at a disk");
            self.serve_timers(due);
            self.now = due;
            for (disk, process) in &mut processes {
                process.poll(Instant::from_ns(due));
                process.reap(|done| assert!(done.status.is_ok(), "{done:?}"));
                self.disks[*disk].note();
            }
        }
    }

    /// Submits all reads of a load; those that find no tag wait.
    fn start(&mut self, load: &Load) -> Submitter<Lock> {
        let now = Instant::from_ns(self.now);
        let disk = &mut self.disks[load.disk];
        let mut process = disk.queue.submitter(CpuId::new(load.cpu.into())).expect("as many submitters as processes");
        process.start_plug(load.reads);
        for i in 0..u64::from(load.reads) {
            let bio = Bio::read(Sector(i * STRIDE), READ_SECTORS, DataRef::NONE);
            process.submit(&bio, now).expect("there are as many bio slots as reads");
        }
        process.finish_plug(now);
        disk.issued += load.reads as usize;
        disk.note();
        process
    }

    /// Lets time pass without I/O.
    fn pass(&mut self, until: u64) {
        self.serve_timers(until);
        self.now = until;
    }

    fn serve_timers(&mut self, until: u64) {
        for d in &mut self.disks {
            while let Some(at) = d.queue.next_timer().map(|at| at.as_ns().max(self.now)).filter(|at| *at < until) {
                d.worker.poll(Instant::from_ns(at));
                if d.queue.next_timer().is_some_and(|next| next.as_ns() <= at) {
                    break;
                }
            }
        }
    }
}

/// Returns what follows `key` in a file of debugfs.
fn line_of<'a>(files: &'a [DebugFile], path: &str, key: &str) -> &'a str {
    let file = files.iter().find(|f| f.path == path);
    file.and_then(|f| f.text.lines().find_map(|l| l.strip_prefix(key))).unwrap_or("-")
}

impl Disk {
    fn note(&mut self) {
        self.max = self.max.max(self.driver.in_flight());
    }
}
