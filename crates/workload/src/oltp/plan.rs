// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Everything of a transaction loop that can be decided before its first I/O: the layout and all sizes.
//!
//! Guarantees: the data of all instances is one range. The redo of each instance is a range of its own, and no two ranges overlap.

use super::log::LogPlan;
use crate::engine::ThreadId;
use crate::error::SetupError;
use crate::job::{FileShare, Job, OltpJob, REDO_WRITE_MAX};
use crate::offsets::Region;

/// The redo log of an instance is a multiple of this, so that it begins on a physical block.
const REDO_ALIGN: u64 = 4096;

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub oltp: OltpJob,
    /// Start of the data, and number of its blocks.
    pub start: u64,
    pub blocks: u64,
    /// Number of blocks at the beginning of the data that are hot.
    pub hot_blocks: u64,
    pub block_bytes: u32,
    pub log: LogPlan,
    pub think_ns: u64,
}

impl Plan {
    /// Makes the plan of instance `id` of `job` on a target of `data_bytes`. Its redo is on a target of `redo_bytes`, or
    /// after the data.
    pub fn new(job: &Job, id: ThreadId, data_bytes: u64, redo_bytes: Option<u64>) -> Result<Plan, SetupError> {
        let oltp = job.oltp.clone().expect("a job of workload=oltp");
        let refuse = |option, value: &dyn ToString, rule: String, remedy: &str| {
            Err(SetupError::new(&job.name, option, value.to_string(), rule, remedy))
        };
        let region = Region::resolve(job, FileShare::of(job), 0, data_bytes)?;
        let instances = u64::from(job.numjobs.max(1));
        let (log_len, log_start, data_len) = match redo_bytes {
            Some(bytes) => {
                let len = oltp.redo_size.map_or(bytes / instances, |s| s.of(bytes)) / REDO_ALIGN * REDO_ALIGN;
                if len.saturating_mul(instances) > bytes {
                    let rule = format!("{} of them do not fit into the {bytes} bytes of redo_filename", job.numjobs);
                    return refuse("redo_size", &len, rule, "lower redo_size or numjobs, or use a larger target");
                }
                (len, len * u64::from(id.instance), region.len)
            }
            None => {
                let len = oltp.redo_size.map_or(region.len / 16 / instances, |s| s.of(region.len));
                let len = len / REDO_ALIGN * REDO_ALIGN;
                let Some(data) = len.checked_mul(instances).and_then(|all| region.len.checked_sub(all)) else {
                    let rule = format!("{} of them do not fit into the region of {} bytes", job.numjobs, region.len);
                    return refuse("redo_size", &len, rule, "lower redo_size or numjobs, or give a redo_filename");
                };
                // The end of the region may lie between blocks.
                let end = region.end() / REDO_ALIGN * REDO_ALIGN;
                let start = (end - len * instances).max(region.start);
                (len, start + len * u64::from(id.instance), data.min(start - region.start))
            }
        };
        let record = u64::from(oltp.redo_bytes).next_multiple_of(u64::from(oltp.redo_block_bytes));
        if log_len < record {
            let rule = format!("the redo log of an instance must hold a record of {record} bytes");
            return refuse("redo_size", &log_len, rule, "raise redo_size or lower redo_bytes");
        }
        let block_bytes = job.max_block_bytes();
        let blocks = data_len / block_bytes;
        let hot_blocks = oltp.hot_size.of(data_len) / block_bytes;
        if blocks == 0 {
            let rule = format!("must hold a block of {block_bytes} bytes beside the redo logs");
            return refuse("size", &region.len, rule, "raise size or lower redo_size");
        }
        let (some, rest) = (oltp.hot_pct > 0, oltp.hot_pct < 100);
        if (some && hot_blocks == 0) || (rest && hot_blocks >= blocks) {
            let rule = format!(
                "is {hot_blocks} of {blocks} blocks: with hot_pct={} neither the hot part nor the rest may be empty",
                oltp.hot_pct
            );
            let value = format!("{:?}", oltp.hot_size);
            return refuse("hot_size", &value, rule, "change hot_size, or give a larger target");
        }
        let block = oltp.redo_block_bytes;
        let most = u64::from(REDO_WRITE_MAX).min(log_len) / u64::from(block) * u64::from(block);
        // At most `REDO_WRITE_MAX`.
        let max_write = most as u32;
        let (record, group_ns) = (oltp.redo_bytes, oltp.group_commit_ns);
        Ok(Plan {
            start: region.start,
            blocks,
            hot_blocks,
            // Checked with the job: a block has at most 1 GiB.
            block_bytes: block_bytes as u32,
            log: LogPlan { start: log_start, len: log_len, block, max_write, record, group_ns },
            think_ns: job.thinktime_ns,
            oltp,
        })
    }

    /// Slots of the sessions and the database writer. The log writer's slot comes after them.
    pub fn data_slots(&self) -> u32 {
        self.oltp.sessions() + self.oltp.writer_batch
    }
}
