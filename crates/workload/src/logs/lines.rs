// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lines of fio's log files.
//!
//! `time, value, direction, block size[, offset], priority`. A window has block size, offset and priority 0. The priority is
//! 1 for real time and else 0, or with `log_prio` the kernel's number of it. A histogram's line is `time, direction, block
//! size, count, count, ...`. Directions are 0 read, 1 write, 2 trim. Source: fio HOWTO, "Log File Formats".

use super::{HistRecord, LogChunk, iolog};
use crate::engine::prio;
use crate::hist::BUCKETS;
use crate::job::{Job, LogKind};
use blk::bio::IoPrioClass;
use std::fmt::Write;

/// How a job's lines look.
#[derive(Clone, Debug)]
pub struct LogFormat {
    offset: bool,
    /// The priority of each I/O, and of a window.
    prio: String,
    window_prio: &'static str,
    /// Latencies are averaged.
    averages: bool,
    bw_each_io: bool,
    iops_each_io: bool,
    stride: usize,
    files: Vec<String>,
}

impl LogFormat {
    /// The format of a job.
    pub fn new(job: &Job) -> LogFormat {
        let (logs, prio) = (&job.logs, prio(job));
        // fio knows no completion latency if all three are off.
        let timed = !(logs.no_clat && logs.no_slat && logs.no_bw);
        LogFormat {
            offset: logs.offset,
            prio: match logs.prio {
                true => format!("0x{:04x}", prio.value()),
                false => u8::from(prio.class() == IoPrioClass::Rt).to_string(),
            },
            window_prio: if logs.prio { "0x0000" } else { "0" },
            averages: logs.avg_ms > 0,
            bw_each_io: logs.bw.each_io && !logs.no_bw,
            iops_each_io: logs.iops.each_io && timed,
            stride: 1 << logs.hist_coarseness,
            files: Vec::new(),
        }
    }

    /// Sets the names of the thread's files, which `write_iolog` needs.
    pub fn with_files(self, files: Vec<String>) -> LogFormat {
        LogFormat { files, ..self }
    }

    /// Appends the lines that one log has of a chunk. `base_ms` is added to each time.
    pub fn write(&self, kind: LogKind, chunk: &LogChunk, base_ms: u64, out: &mut String) {
        match kind {
            LogKind::Iolog => iolog::write(chunk, &self.files, out),
            LogKind::Hist => chunk.hists.iter().for_each(|h| self.hist(h, base_ms, out)),
            LogKind::Slat if !self.averages => {
                for s in &chunk.submitted {
                    self.line(base_ms + s.at_ms, s.slat_ns, s.dir, (s.len, s.offset), out);
                }
            }
            LogKind::Lat | LogKind::Clat if !self.averages => {
                for e in &chunk.ended {
                    let ns = if kind == LogKind::Lat { e.lat_ns } else { e.clat_ns };
                    self.line(base_ms + e.at_ms, ns, e.dir, (e.len, e.offset), out);
                }
            }
            LogKind::Bw if self.bw_each_io => {
                for e in &chunk.ended {
                    let rate = (u64::from(e.len) * 1_000_000).checked_div(e.clat_ns).unwrap_or(0);
                    self.line(base_ms + e.at_ms, rate, e.dir, (e.len, e.offset), out);
                }
            }
            LogKind::Iops if self.iops_each_io => {
                chunk.ended.iter().for_each(|e| self.line(base_ms + e.at_ms, 1, e.dir, (e.len, e.offset), out));
            }
            _ => {
                for w in chunk.windows.iter().filter(|w| w.kind == kind) {
                    self.window(base_ms + w.at_ms, w.value, w.dir, out);
                }
            }
        }
    }

    fn line(&self, at_ms: u64, value: u64, dir: u8, (len, offset): (u32, u64), out: &mut String) {
        // Writing to a String cannot fail.
        let _ = match self.offset {
            true => writeln!(out, "{at_ms}, {value}, {dir}, {len}, {offset}, {}", self.prio),
            false => writeln!(out, "{at_ms}, {value}, {dir}, {len}, {}", self.prio),
        };
    }

    fn window(&self, at_ms: u64, value: u64, dir: u8, out: &mut String) {
        let offset = if self.offset { "0, " } else { "" };
        let _ = writeln!(out, "{at_ms}, {value}, {dir}, 0, {offset}{}", self.window_prio);
    }

    fn hist(&self, h: &HistRecord, base_ms: u64, out: &mut String) {
        let _ = write!(out, "{}, {}, {}", base_ms + h.at_ms, h.dir, h.len);
        let mut counts = vec![0u64; BUCKETS / self.stride];
        h.bins.iter().for_each(|&(bucket, n)| counts[usize::from(bucket) / self.stride] += n);
        for n in counts {
            let _ = write!(out, ", {n}");
        }
        out.push('\n');
    }
}
