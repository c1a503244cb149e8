// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reader of the settings of a case (`NAME.env`), in either form in which they come.
//!
//! - what the guest was told: shell assignments `NB="null_blk parameters"`, `SCHED=`, `TUNE="name=value ..."`, `NR=`
//!   (nr_requests, 0 = the kernel's default);
//! - what the kernel then reported: lines `null_blk PARAMETERS`, `scheduler ... [NAME] ... nr_requests N tune ...`, `iosched
//!   NAME VALUE`, `queue NAME VALUE`, `cpus N`.
//!
//! Guarantees: the same [`Settings`] from both, with the kernel's defaults where the first form leaves something out; a
//! parameter that would change what null_blk does and that the model does not have is refused.
//! Source: drivers/block/null_blk/main.c and block/mq-deadline.c of Linux 6.12.

use crate::CaseError;
use blk::bio::MAX_BIOS_PER_SUBMITTER;
use blk::cpumap::CpuTopology;
use blk::limits::{BLK_SAFE_MAX_SECTORS, Limits};
use blk::settings::{BLKDEV_DEFAULT_RQ, QueueConfig};

/// A null_blk disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NullBlk {
    /// Hardware queues asked for.
    pub submit_queues: u16,
    /// Driver tags of each.
    pub hw_queue_depth: u32,
    /// Nanoseconds a request takes; 0 if the driver completes it at once (`irqmode` 0 or 1).
    pub completion_ns: u64,
    /// Largest request in sectors.
    pub max_sectors: u32,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// Size in sectors.
    pub sectors: u64,
    /// One tag set for all hardware queues.
    pub shared_tag_bitmap: bool,
}

impl Default for NullBlk {
    fn default() -> Self {
        NullBlk {
            submit_queues: 1,
            hw_queue_depth: 64,
            completion_ns: 0,
            max_sectors: BLK_SAFE_MAX_SECTORS,
            block_size: 512,
            sectors: 250 << 21,
            shared_tag_bitmap: false,
        }
    }
}

/// What a case runs under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The disk.
    pub disk: NullBlk,
    /// The elevator.
    pub scheduler: String,
    /// The value in effect; `None` = the kernel's default.
    pub nr_requests: Option<u32>,
    /// Tunables of the elevator.
    pub iosched: Vec<(String, u64)>,
    /// `nomerges`.
    pub nomerges: u8,
    /// CPUs of the guest, if the file gives their number.
    pub cpus: Option<u16>,
    /// `max_sectors_kb`, if it was changed.
    pub max_sectors_kb: Option<u32>,
}

impl Settings {
    fn new() -> Settings {
        Settings {
            disk: NullBlk::default(),
            scheduler: String::new(),
            nr_requests: None,
            iosched: Vec::new(),
            nomerges: 0,
            cpus: None,
            max_sectors_kb: None,
        }
    }

    /// Reads either form; `file` is what errors call it.
    ///
    /// # Errors
    /// The first line that is of neither form or asks for what is not modelled.
    pub fn parse(file: &str, text: &str) -> Result<Settings, CaseError> {
        let reported = text.lines().any(|l| l.starts_with("scheduler "));
        let mut s = Settings::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let read = if reported { s.reported(line) } else { s.told(line) };
            read.map_err(|what| CaseError(format!("{file}:{}: {what}", at + 1)))?;
        }
        if s.scheduler.is_empty() {
            let text =
                format!("{file}: no scheduler: needs SCHED=NAME, or the line 'scheduler ... [NAME] ...' of the kernel");
            return Err(CaseError(text));
        }
        if !reported {
            s.kernel_defaults();
        }
        Ok(s)
    }

    /// A line of the form that the guest reads.
    fn told(&mut self, line: &str) -> Result<(), String> {
        let (key, value) =
            line.split_once('=').ok_or_else(|| format!("'{line}': must be NB=, SCHED=, TUNE= or NR="))?;
        let value = value.trim_matches(|c| c == '"' || c == '\'');
        match key {
            "NB" => self.null_blk(value),
            "SCHED" => {
                self.scheduler = value.to_owned();
                Ok(())
            }
            "TUNE" => value.split_whitespace().try_for_each(|t| self.tune(t)),
            "NR" => {
                let n: u32 = number("NR", value)?;
                // The kernel raises values below its minimum.
                self.nr_requests = (n > 0).then_some(n.max(blk::settings::BLKDEV_MIN_RQ));
                Ok(())
            }
            "SMP" => {
                self.cpus = Some(number("SMP", value)?);
                Ok(())
            }
            _ => Err(format!("{key}: must be NB, SCHED, TUNE, NR or SMP")),
        }
    }

    fn tune(&mut self, text: &str) -> Result<(), String> {
        let (name, value) = text.split_once('=').ok_or_else(|| format!("TUNE '{text}': must be NAME=VALUE"))?;
        self.queue(name, value)
    }

    /// A queue attribute or a tunable of the elevator.
    fn queue(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "nomerges" => self.nomerges = number(name, value)?,
            "max_sectors_kb" => self.max_sectors_kb = Some(number(name, value)?),
            "nr_requests" => self.nr_requests = Some(number(name, value)?),
            // None of these changes a decision about a direct I/O on one CPU.
            "rq_affinity" | "iostats" | "add_random" | "read_ahead_kb" | "wbt_lat_usec" | "rotational" => {}
            _ => self.iosched.push((name.to_owned(), number(name, value)?)),
        }
        Ok(())
    }

    /// A line of the kernel's report.
    fn reported(&mut self, line: &str) -> Result<(), String> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "kernel" => Ok(()),
            "null_blk" => self.null_blk(rest),
            "scheduler" => self.scheduler_line(rest),
            "cpus" => {
                self.cpus = Some(number("cpus", rest.trim())?);
                Ok(())
            }
            "iosched" => {
                let (name, value) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
                // "iosched *" is what a shell prints of an elevator without tunables.
                if name == "*" { Ok(()) } else { self.iosched_value(name, value.trim()) }
            }
            "queue" => match rest.split_once(' ') {
                Some(("nomerges", v)) => self.queue("nomerges", v.trim()),
                // The other attributes follow from the driver's parameters.
                Some(_) => Ok(()),
                None => Err(format!("'{line}': must be 'queue NAME VALUE'")),
            },
            _ => Err(format!("'{word}': must be kernel, null_blk, scheduler, cpus, queue or iosched")),
        }
    }

    fn iosched_value(&mut self, name: &str, value: &str) -> Result<(), String> {
        // The same setting in two units.
        if (self.scheduler.as_str(), name) == ("bfq", "slice_idle_us") {
            return Ok(());
        }
        self.iosched.push((name.to_owned(), number(name, value)?));
        Ok(())
    }

    fn scheduler_line(&mut self, rest: &str) -> Result<(), String> {
        let words: Vec<&str> = rest.split_whitespace().collect();
        let chosen = words.iter().find_map(|w| w.strip_prefix('[')?.strip_suffix(']'));
        self.scheduler = chosen.ok_or("no [NAME]: the elevator in use stands in brackets")?.to_owned();
        let at = words.iter().position(|w| *w == "nr_requests").ok_or("no 'nr_requests N'")?;
        self.nr_requests = Some(number("nr_requests", words.get(at + 1).copied().unwrap_or(""))?);
        let tune = words.iter().position(|w| *w == "tune").map_or(&[][..], |t| &words[t + 1..]);
        // The elevator's tunables are reported with their values further below. Here only these attributes of the queue
        // are read.
        for t in tune.iter().filter(|t| t.starts_with("nomerges=") || t.starts_with("max_sectors_kb=")) {
            self.tune(t)?;
        }
        Ok(())
    }

    fn null_blk(&mut self, text: &str) -> Result<(), String> {
        let (mut irqmode, mut completion_ns) = (1u8, 10_000u64);
        for p in text.split_whitespace() {
            let (name, value) = p.split_once('=').ok_or_else(|| format!("null_blk '{p}': must be NAME=VALUE"))?;
            let d = &mut self.disk;
            match name {
                "submit_queues" => d.submit_queues = at_least_one(name, number(name, value)?)?,
                "hw_queue_depth" => d.hw_queue_depth = u32::from(at_least_one(name, number(name, value)?)?),
                "irqmode" => irqmode = number(name, value)?,
                "completion_nsec" => completion_ns = number(name, value)?,
                "max_sectors" => d.max_sectors = number::<u32>(name, value)?.max(1),
                "bs" => d.block_size = number(name, value)?,
                "gb" => d.sectors = number::<u64>(name, value)?.saturating_mul(1 << 21),
                "shared_tag_bitmap" => d.shared_tag_bitmap = number::<u8>(name, value)? != 0,
                "queue_mode" if value == "2" => {}
                "nr_devices" if value == "1" => {}
                "blocking" | "memory_backed" | "poll_queues" | "shared_tags" | "zoned" | "mbps" | "cache_size"
                | "use_per_node_hctx" | "no_sched" | "discard" | "virt_boundary"
                    if matches!(value, "0" | "N") => {}
                // These affect no request of a script.
                "home_node" | "memory_backed" | "discard" | "fua" | "poll_queues" => {}
                _ => {
                    return Err(format!(
                        "null_blk {name}={value}: not modelled; use queue_mode=2, submit_queues, hw_queue_depth, irqmode, \
                         completion_nsec, max_sectors, bs, gb"
                    ));
                }
            }
        }
        self.disk.completion_ns = match irqmode {
            0 | 1 => 0,
            2 => completion_ns,
            n => return Err(format!("null_blk irqmode={n}: must be 0 (none), 1 (softirq) or 2 (timer)")),
        };
        Ok(())
    }

    /// Default `nr_requests` of an elevator.
    fn default_nr_requests(&self) -> u32 {
        2 * self.disk.hw_queue_depth.min(BLKDEV_DEFAULT_RQ)
    }

    /// Adds the kernel's defaults for what the file leaves out.
    fn kernel_defaults(&mut self) {
        if self.scheduler == "mq-deadline" && !self.iosched.iter().any(|(n, _)| n == "async_depth") {
            // Set when the elevator is made. A later write of nr_requests sets it to the value of the write before.
            self.iosched.push(("async_depth".into(), self.default_nr_requests().into()));
        }
    }

    /// Returns the number of CPUs of the machine: as the file says, and enough for `seen`, the highest CPU in the
    /// trace.
    pub fn cpus_seen(&self, seen: u16) -> u16 {
        self.cpus.unwrap_or(seen + 1).max(seen + 1)
    }

    /// Returns the limits that null_blk gives the block layer.
    pub fn limits(&self) -> Limits {
        let block = self.disk.block_size;
        // Rounded down to whole blocks, as the kernel does.
        let max = (self.disk.max_sectors / (block >> 9).max(1)) * (block >> 9);
        Limits { logical_block_size: block, physical_block_size: block, ..Limits::with_max_hw_sectors(max) }
    }

    /// Sectors of the largest request.
    pub fn max_sectors(&self) -> u32 {
        let set = self.max_sectors_kb.map_or(u32::MAX, |kb| 2 * kb);
        self.disk.max_sectors.min(set).max(1)
    }

    /// Returns the configuration of the stack for `cpus` CPUs, with room for `ios` bios.
    pub fn config(&self, cpus: u16, ios: usize) -> QueueConfig {
        QueueConfig {
            topology: CpuTopology::uniform(cpus),
            nr_hw_queues: Some(self.disk.submit_queues.min(cpus)),
            queue_depth: self.disk.hw_queue_depth,
            // Without an elevator `nr_requests` matters only if it is below the queue depth.
            nr_requests: self.nr_requests.filter(|nr| self.scheduler != "none" || *nr < self.disk.hw_queue_depth),
            scheduler: Some(self.scheduler.clone()),
            iosched: self.iosched.clone(),
            nomerges: self.nomerges,
            max_sectors_kb: self.max_sectors_kb,
            bios_per_submitter: (2 * ios as u32 + 64).min(MAX_BIOS_PER_SUBMITTER),
            ..QueueConfig::default()
        }
    }
}

fn at_least_one(name: &str, n: u16) -> Result<u16, String> {
    if n == 0 { Err(format!("null_blk {name}=0: must be at least 1")) } else { Ok(n) }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{name}={value}: must be a whole number in range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLD: &str = "NB=\"queue_mode=2 submit_queues=1 hw_queue_depth=1 irqmode=2 completion_nsec=40000000 gb=1\"\n\
                        SCHED=mq-deadline\nTUNE=\"\"\nNR=8\n";
    const REPORTED: &str = "kernel 6.12.95\nnull_blk queue_mode=2 hw_queue_depth=1 irqmode=2 completion_nsec=40000000 gb=1\n\
                            scheduler none [mq-deadline] kyber bfq  nr_requests 8 tune \niosched async_depth 2\n";

    #[test]
    fn both_forms_give_the_same() {
        let (told, reported) = (Settings::parse("a", TOLD).unwrap(), Settings::parse("b", REPORTED).unwrap());
        assert_eq!(told, reported);
        assert_eq!((told.nr_requests, told.disk.completion_ns, told.disk.sectors), (Some(8), 40_000_000, 1 << 21));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let error = |text: &str| Settings::parse("a.env", text).unwrap_err().0;
        assert!(error("NR=8\n").contains("no scheduler"));
        assert!(error("NR=x\nSCHED=none").starts_with("a.env:1: NR=x: must be a whole number"));
        assert!(error("FOO=1").contains("must be NB, SCHED, TUNE, NR or SMP"));
        assert!(error("NB=\"queue_mode=1\"").contains("not modelled"));
        assert!(error("NB=\"irqmode=7\"").contains("irqmode=7"));
        assert!(error("NB=\"submit_queues=0\"").contains("at least 1"));
        assert!(error("scheduler none nr_requests 4").contains("brackets"));
    }
}
