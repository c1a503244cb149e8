// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How idle this host's CPUs were between two points in time.
//!
//! Source: /proc/stat (Documentation/filesystems/proc.rst). A CPU that waits for I/O is idle; one that a hypervisor has taken away is not.
//! The kernel counts in ticks, usually of 10 ms.

use crate::error::{Error, Result};
use std::fs;

/// Columns of a line: user, nice, system, idle, iowait, irq, softirq, steal. Those of guests, which follow, are parts of user and nice.
const COLUMNS: usize = 8;
const IDLE: usize = 3;
const IOWAIT: usize = 4;

/// How the online CPUs have spent their time since the host's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuTimes(Vec<CpuTime>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CpuTime {
    cpu: u32,
    idle_ticks: u64,
    all_ticks: u64,
}

impl CpuTimes {
    /// Reads the times until now.
    ///
    /// # Errors
    /// When /proc/stat cannot be read.
    pub fn read() -> Result<CpuTimes> {
        let text =
            fs::read_to_string("/proc/stat").map_err(|e| Error::os(e, "/proc/stat: cannot be read".to_owned()))?;
        Ok(CpuTimes(text.lines().filter_map(CpuTime::parse).collect()))
    }

    /// Percent of the time since `earlier` in which each CPU was idle, with the CPU's number. CPUs that were offline at one of the two
    /// times, or have not counted a tick since, are missing.
    pub fn idle_percent_since(&self, earlier: &CpuTimes) -> Vec<(u32, f64)> {
        let of = |now: &CpuTime| {
            let before = earlier.0.iter().find(|before| before.cpu == now.cpu)?;
            // The kernel's counters may step back a little.
            let (idle, all) =
                (now.idle_ticks.saturating_sub(before.idle_ticks), now.all_ticks.saturating_sub(before.all_ticks));
            (all > 0).then(|| (now.cpu, 100.0 * idle.min(all) as f64 / all as f64))
        };
        self.0.iter().filter_map(of).collect()
    }
}

impl CpuTime {
    /// Reads a line such as `cpu3 4705 356 584 3699176 23060 23 277 0 0 0`. The line `cpu` has the sum over all CPUs, so it gives `None`.
    fn parse(line: &str) -> Option<CpuTime> {
        let mut words = line.split_whitespace();
        let cpu = words.next()?.strip_prefix("cpu")?.parse().ok()?;
        let ticks: Vec<u64> = words.take(COLUMNS).map_while(|word| word.parse().ok()).collect();
        let idle_ticks = ticks.get(IDLE)? + ticks.get(IOWAIT)?;
        Some(CpuTime { cpu, idle_ticks, all_ticks: ticks.iter().sum() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(text: &str) -> CpuTimes {
        CpuTimes(text.lines().filter_map(CpuTime::parse).collect())
    }

    #[test]
    fn idle_and_waiting_for_io_is_idle_and_stolen_is_not() {
        let before =
            times("cpu  9 9 9 9 9\ncpu0 100 0 50 1000 200 1 2 0 70 0\ncpu2 5 5 5 5 5 5 5 5\nintr 1 2 3\nctxt 7");
        // CPU 0: 20 ticks idle, 10 waiting, 30 user, 40 stolen. CPU 2: nothing. CPU 3: new.
        let after =
            times("cpu  9 9 9 9 9\ncpu0 130 0 50 1020 210 1 2 40 99 0\ncpu2 5 5 5 5 5 5 5 5\ncpu3 1 1 1 1 1 1 1 1");
        assert_eq!(before.0.len(), 2);
        assert_eq!(after.idle_percent_since(&before), [(0, 30.0)]);
    }

    #[test]
    fn counters_that_step_back_give_percentages() {
        let all = times("cpu0 10 0 0 90 0 0 0 0\ncpu1 10 0 0 90 0 0 0 0");
        let later = times("cpu0 9 0 0 95 0 0 0 0\ncpu1 20 0 0 89 0 0 0 0");
        assert_eq!(later.idle_percent_since(&all), [(0, 100.0), (1, 0.0)]);
    }

    #[test]
    fn this_host_has_cpus() {
        assert!(!CpuTimes::read().unwrap().0.is_empty());
    }
}
