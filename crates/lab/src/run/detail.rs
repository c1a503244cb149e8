// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The [`RunDetail`] of a run.

use super::{Run, began_together};
use crate::detail::{JobDetail, RunDetail, SliceTable, TargetDetail};
use crate::metric::RunMetrics;
use host::secrets::without_secrets;
use workload::job::{BlockSizes, Dir};
use workload::slices::TimeSlices;
use workload::stats::JobStats;

/// Maximum number of jobs whose rates are drawn over time, each with its own colour.
const JOBS_DRAWN: usize = 8;

/// The table of several threads, if they kept one.
fn merged<'a>(threads: impl Iterator<Item = &'a JobStats>) -> Option<SliceTable> {
    let mut sum: Option<TimeSlices> = None;
    for table in threads.filter_map(|s| s.slices.as_deref()) {
        match &mut sum {
            Some(sum) => sum.merge(table),
            none => *none = Some(table.clone()),
        }
    }
    sum.map(|s| SliceTable::of(&s))
}

impl Run<'_> {
    /// Makes the detail: settings (if `with_settings`), jobs, and slices. The slices cover all jobs, or those named `judge`.
    pub(super) fn detail(&self, with_settings: bool, judge: Option<&str>) -> RunDetail {
        let targets = self.outcome.disks.iter().zip(&self.settings);
        RunDetail {
            targets: targets
                .filter(|_| with_settings)
                .map(|(disk, settings)| TargetDetail { name: without_secrets(&disk.name), settings: settings.clone() })
                .collect(),
            jobs: (0..self.file.jobs.len()).filter_map(|index| self.job_detail(index)).collect(),
            measured_ns: self.outcome.measured.as_ns(),
            slices: merged(self.threads_of(judge)),
        }
    }

    /// Returns rates and latencies over time of the first eight jobs, each for itself, if several ran and kept them.
    pub fn job_slices(&self) -> Vec<(String, SliceTable)> {
        let of_job = |index: usize| {
            let threads = self.outcome.threads.iter().zip(&self.outcome.instances);
            let own = threads.filter(|(_, i)| i.job == index).filter_map(|(t, _)| Some(&t.as_ref()?.stats));
            Some((self.file.jobs[index].name.clone(), merged(own)?))
        };
        let jobs: Vec<_> = (0..self.file.jobs.len()).filter_map(of_job).take(JOBS_DRAWN).collect();
        if jobs.len() > 1 { jobs } else { Vec::new() }
    }

    /// Returns `None` if no thread of the job ran.
    fn job_detail(&self, index: usize) -> Option<JobDetail> {
        let job = &self.file.jobs[index];
        let of_job = || self.outcome.instances.iter().filter(|i| i.job == index);
        let threads = self.outcome.threads.iter().zip(&self.outcome.instances);
        let stats: Vec<JobStats> =
            threads.filter(|(_, i)| i.job == index).filter_map(|(t, _)| Some(t.as_ref()?.stats.clone())).collect();
        let wave = of_job().next()?.wave;
        let mut metrics = RunMetrics::of(&stats, None);
        if !began_together(of_job()) {
            metrics.rates_over(&stats, self.outcome.measured.as_ns());
        }
        let sizes = Dir::ALL.into_iter().filter(|d| job.rw.has(*d)).map(|d| &job.block_sizes[d]);
        let (low, high) = (sizes.clone().map(BlockSizes::min_bytes).min(), sizes.map(BlockSizes::max_bytes).max());
        Some(JobDetail {
            job: job.name.clone(),
            wave,
            threads: u32::try_from(stats.len()).unwrap_or(u32::MAX),
            iodepth: job.iodepth,
            rw: if job.oltp.is_some() { "oltp".to_owned() } else { job.rw.to_string() },
            bytes: (low.unwrap_or(0), high.unwrap_or(0)),
            rated: stats.iter().flat_map(|s| &s.dirs).any(|d| d.intended.run.count() > 0),
            metrics,
        })
    }
}
