// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A run as fio would report it.
//!
//! Guarantees: one block per job thread, or per reporting group if the job has `group_reporting`, in fio's order. The disk
//! statistics are those of the run's own disks, which received its I/O. fio's statistics are the kernel's, and so are ours
//! for the kernel's devices.

use blk::bio::Op;
use host::run::DiskOutcome;
use host::secrets::without_secrets;
use workload::job::Job;
use workload::stats::{JobStats, LatencyStats};

use super::Run;
use crate::iostat::disk_util;
use crate::report::fio_model::{DiskUtil, FioReport, JobReport, version};
use crate::report::from_stats::{JobMeta, job_report};
use crate::report::oltp::OltpReport;

/// Options as they may be shown: a target among them may contain a password.
fn shown(options: &[(String, String)]) -> Vec<(String, String)> {
    options.iter().map(|(name, value)| (name.clone(), without_secrets(value))).collect()
}

/// Returns the measurements of a thread without the latencies that the job hides. fio's tables are of completion latencies.
fn without(job: &Job, stats: &JobStats) -> JobStats {
    let hidden = &job.logs;
    let mut stats = stats.clone();
    for d in &mut stats.dirs {
        let kinds = [(hidden.no_lat, &mut d.lat), (hidden.no_clat, &mut d.clat), (hidden.no_slat, &mut d.slat)];
        kinds.into_iter().filter(|(is_hidden, _)| *is_hidden).for_each(|(_, l)| *l = LatencyStats::default());
        if if job.lat_percentiles { hidden.no_lat } else { hidden.no_clat } {
            d.prios.clear();
        }
    }
    if hidden.no_clat {
        (stats.lat_ns, stats.lat_us, stats.lat_ms) = Default::default();
        stats.sync.lat = LatencyStats::default();
    }
    stats
}

impl Run<'_> {
    /// fio's report. `unix_ms`: wall clock at the end, milliseconds since 1970.
    pub fn fio_report(&self, unix_ms: u64) -> FioReport {
        let mut report = FioReport {
            version: version(),
            unix_ms,
            global_options: shown(&self.file.global_options),
            jobs: self.members().iter().map(|members| self.block(members)).collect(),
            disk_util: self.disk_utils(),
            cpu_idleness: None,
        };
        report.fill_bw_agg();
        report
    }

    /// Threads that share a block, by index.
    fn members(&self) -> Vec<Vec<usize>> {
        let mut blocks: Vec<Vec<usize>> = Vec::new();
        // The group of the last block. Threads without group_reporting are blocks of their own and end the group.
        let mut open = None;
        for (i, instance) in self.outcome.instances.iter().enumerate() {
            let grouped = self.file.jobs[instance.job].group_reporting;
            match blocks.last_mut() {
                Some(block) if grouped && open == Some(instance.group) => block.push(i),
                _ => blocks.push(vec![i]),
            }
            open = grouped.then_some(instance.group);
        }
        blocks
    }

    /// Transaction figures, one report per block.
    pub fn oltp_reports(&self) -> Vec<OltpReport> {
        let stats = |i: &usize| Some(self.outcome.threads[*i].as_ref()?.stats.clone());
        let of = |members: Vec<usize>| {
            let name = &self.file.jobs[self.outcome.instances[*members.first()?].job].name;
            OltpReport::of(name, &members.iter().filter_map(stats).collect::<Vec<_>>())
        };
        self.members().into_iter().filter_map(of).collect()
    }

    /// The report of one block, which has at least one member. Threads that never started have measured nothing.
    fn block(&self, members: &[usize]) -> JobReport {
        let shown_of = |i: &usize| {
            let job = &self.file.jobs[self.outcome.instances[*i].job];
            self.outcome.threads[*i].as_ref().map_or_else(JobStats::default, |end| without(job, &end.stats))
        };
        let stats: Vec<JobStats> = members.iter().map(shown_of).collect();
        let first = &self.outcome.instances[members[0]];
        let job = &self.file.jobs[first.job];
        let meta = JobMeta {
            name: &job.name,
            description: job.description.as_deref().unwrap_or_default(),
            group_id: first.group,
            pid: std::process::id(),
            options: &shown(&job.options),
            percentile_list: &job.percentile_list,
            iodepth: job.iodepth,
            latency_goal: job.latency_goal,
            steady: members.iter().rev().find_map(|&i| self.outcome.steady.get(i)?.as_ref()),
            lat_percentiles: job.lat_percentiles,
            continue_on_error: false,
            elapsed_s: self.outcome.elapsed.as_ns().div_ceil(1_000_000_000),
        };
        job_report(&meta, &stats)
    }

    fn disk_utils(&self) -> Vec<DiskUtil> {
        let measured = self.outcome.measured.as_ns();
        let kernels = self.outcome.kernel.iter().filter_map(|k| disk_util(k, measured));
        self.outcome.disks.iter().map(|d| self.disk_util(d)).chain(kernels).collect()
    }

    fn disk_util(&self, disk: &DiskOutcome) -> DiskUtil {
        let [read, write] = [Op::Read, Op::Write].map(|op| *disk.stats.op(op));
        let ms = |ns: u64| ns / 1_000_000;
        let measured = self.outcome.measured.as_ns().max(1);
        DiskUtil {
            name: disk.name.clone(),
            ios: [read.ios, write.ios],
            merges: [read.merges, write.merges],
            ticks: [ms(read.time_ns), ms(write.time_ns)],
            in_queue: ms(disk.stats.ops.iter().map(|o| o.time_ns).sum()),
            util: (100.0 * disk.stats.io_ticks_ns as f64 / measured as f64).min(100.0),
        }
    }
}
