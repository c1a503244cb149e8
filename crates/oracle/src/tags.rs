// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reader of recordings of shared tags (`NAME.tags`, made by `guest/tags.sh`).
//!
//! ```text
//! kernel VERSION | cpus N
//! module null_blk|scsi_debug PARAMETER=VALUE ...
//! disk DISK scheduler|nr_requests|flags VALUE    flags: of its first hardware queue, as debugfs shows them
//! hctx DISK N nr_tags T cpus LIST
//! phase N rest SECONDS                           a rest, then the loads of this phase, all at once
//! load N DISK CPU READS
//! inflight N DISK issued I max M                 the maximum that the disk had at the device at once
//! users N DISK HCTX U                            disks that count as active on those tags when the phase has ended
//! ```
//!
//! Guarantees: what is asked (module, rests, loads) and what the kernel answered (all else) are kept apart; a parameter
//! that the set-up here does not model is refused.

use crate::CaseError;
use blk::tags::TagSetConfig;

/// The tags of a machine as the modules make them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetUp {
    /// Shape of the tags.
    pub tags: TagSetConfig,
    /// Disks that share them.
    pub nr_disks: usize,
    /// Nanoseconds a request takes.
    pub service_ns: u64,
}

/// One process: so many reads in one call, from one CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Which disk, by its place among [`TagCase::disks`].
    pub disk: usize,
    /// The CPU it is bound to.
    pub cpu: u16,
    /// Number of reads.
    pub reads: u32,
}

/// A rest and loads that begin together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Phase {
    /// Seconds without any I/O before.
    pub rest: u64,
    /// The processes.
    pub loads: Vec<Load>,
}

/// A recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagCase {
    /// CPUs of the guest.
    pub cpus: u16,
    /// What was set up.
    pub set_up: SetUp,
    /// The kernel's names of the disks, in order.
    pub disks: Vec<String>,
    /// What was run, phase by phase.
    pub phases: Vec<Phase>,
    /// What the kernel answered, line by line in the format of the file, in order.
    pub answers: Vec<String>,
}

impl TagCase {
    /// Reads a recording; `file` is what errors call it.
    ///
    /// # Errors
    /// The first line that breaks the format, or a file without a set-up.
    pub fn parse(file: &str, text: &str) -> Result<TagCase, CaseError> {
        let mut reader = Reader::default();
        for (at, line) in text.lines().enumerate() {
            reader.line(line.trim()).map_err(|what| CaseError(format!("{file}:{}: {what}", at + 1)))?;
        }
        let set_up =
            reader.set_up.ok_or_else(|| CaseError(format!("{file}: no line 'module NAME PARAMETER=VALUE ...'")))?;
        if reader.disks.len() != set_up.nr_disks || reader.phases.is_empty() {
            let (disks, phases) = (reader.disks.len(), reader.phases.len());
            let want = set_up.nr_disks;
            return Err(CaseError(format!(
                "{file}: {disks} disks and {phases} phases: must be {want} disks, 1 phase or more"
            )));
        }
        Ok(TagCase { cpus: reader.cpus, set_up, disks: reader.disks, phases: reader.phases, answers: reader.answers })
    }
}

#[derive(Default)]
struct Reader {
    cpus: u16,
    set_up: Option<SetUp>,
    disks: Vec<String>,
    phases: Vec<Phase>,
    answers: Vec<String>,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [] | ["kernel", ..] => {}
            ["cpus", n] => self.cpus = number("cpus", n)?,
            ["module", name, parameters @ ..] => self.set_up = Some(set_up(name, parameters, self.cpus)?),
            ["disk", disk, "scheduler" | "nr_requests" | "flags", ..] => {
                if !self.disks.iter().any(|d| d == disk) {
                    self.disks.push((*disk).to_owned());
                }
                self.answers.push(line.to_owned());
            }
            ["hctx", _, _, "nr_tags", _, "cpus", _]
            | ["inflight", _, _, "issued", _, "max", _]
            | ["users", _, _, _, _] => {
                self.answers.push(line.to_owned());
            }
            ["phase", n, "rest", seconds] => {
                if number::<usize>("phase", n)? != self.phases.len() {
                    return Err(format!("phase {n}: must be {}, they are counted from 0", self.phases.len()));
                }
                self.phases.push(Phase { rest: number("rest", seconds)?, loads: Vec::new() });
            }
            ["load", n, disk, cpu, reads] => {
                let load = Load { disk: self.disk(disk)?, cpu: number("cpu", cpu)?, reads: number("reads", reads)? };
                if load.cpu >= self.cpus {
                    return Err(format!("cpu {cpu}: must be below cpus, which is {}", self.cpus));
                }
                let last = self.phases.len().checked_sub(1).filter(|last| *n == last.to_string());
                let last = last.ok_or_else(|| format!("load {n}: must come after the line of its phase"))?;
                self.phases[last].loads.push(load);
            }
            _ => return Err(format!("'{line}': must be a line that guest/tags.sh writes")),
        }
        Ok(())
    }

    fn disk(&self, name: &str) -> Result<usize, String> {
        let at = self.disks.iter().position(|d| d == name);
        at.ok_or_else(|| format!("disk {name}: must be one of those described before ({})", self.disks.join(", ")))
    }
}

fn set_up(module: &str, parameters: &[&str], cpus: u16) -> Result<SetUp, String> {
    let (mut disks, mut queues, mut depth, mut service_ns, mut host) = (1, 1u16, 64u32, 10_000u64, false);
    // null_blk has a hardware queue for polled I/O unless told otherwise.
    let mut polled = u16::from(module == "null_blk");
    for p in parameters {
        let (name, value) = p.split_once('=').ok_or_else(|| format!("{module} '{p}': must be NAME=VALUE"))?;
        match (module, name) {
            ("null_blk", "nr_devices") | ("scsi_debug", "num_tgts") => disks = number(name, value)?,
            (_, "submit_queues") => queues = number(name, value)?,
            ("null_blk", "poll_queues") => polled = number(name, value)?,
            ("null_blk", "hw_queue_depth") | ("scsi_debug", "max_queue") => depth = number(name, value)?,
            ("null_blk", "completion_nsec") | ("scsi_debug", "ndelay") => service_ns = number(name, value)?,
            ("null_blk", "shared_tag_bitmap") => host = value == "1",
            ("scsi_debug", "host_max_queue") => (host, depth) = (true, number(name, value)?),
            ("null_blk", "shared_tags") if value == "1" => {}
            ("null_blk", "irqmode") if value == "2" => {}
            ("null_blk", "queue_mode") if value == "2" => {}
            ("null_blk", "gb") | ("scsi_debug", "dev_size_mb") => {}
            _ => return Err(format!("{module} {name}={value}: not modelled")),
        }
    }
    if !matches!(module, "null_blk" | "scsi_debug") {
        return Err(format!("module {module}: must be null_blk or scsi_debug"));
    }
    let tags = TagSetConfig {
        nr_hw_queues: queues.min(cpus),
        nr_read_queues: 0,
        nr_poll_queues: polled,
        queue_depth: depth,
        reserved_tags: 0,
        host_tagset: host,
        fair_tag_sharing: true,
    };
    Ok(SetUp { tags, nr_disks: disks, service_ns })
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{name} {value}: must be a whole number in range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "kernel 6.12.1\ncpus 2\nmodule null_blk nr_devices=1 submit_queues=4 hw_queue_depth=16 irqmode=2\n\
                        disk a flags X\nhctx a 0 nr_tags 16 cpus 0,1\nphase 0 rest 1\nload 0 a 1 9\ninflight 0 a issued 9 max 9\n";

    #[test]
    fn what_was_asked_and_what_was_answered_are_kept_apart() {
        let case = TagCase::parse("t", TEXT).unwrap();
        assert_eq!((case.set_up.tags.nr_hw_queues, case.set_up.tags.nr_poll_queues), (2, 1), "no more than CPUs");
        assert_eq!(case.phases, [Phase { rest: 1, loads: vec![Load { disk: 0, cpu: 1, reads: 9 }] }]);
        assert_eq!(case.answers, ["disk a flags X", "hctx a 0 nr_tags 16 cpus 0,1", "inflight 0 a issued 9 max 9"]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let error = |from: &str, to: &str| TagCase::parse("a.tags", &TEXT.replace(from, to)).unwrap_err().0;
        assert!(error("irqmode=2", "irqmode=1").starts_with("a.tags:3: null_blk irqmode=1: not modelled"));
        assert!(error("load 0 a 1", "load 0 b 1").contains("disk b: must be one of those described before (a)"));
        assert!(error("load 0 a 1", "load 0 a 2").contains("cpu 2: must be below cpus"));
        assert!(error("load 0", "load 1").contains("after the line of its phase"));
        assert!(error("phase 0", "phase 1").contains("counted from 0"));
        assert!(error("nr_devices=1", "nr_devices=2").contains("1 disks and 1 phases: must be 2 disks"));
        assert!(error("inflight", "inflght").contains("guest/tags.sh"));
    }
}
