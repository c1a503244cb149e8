// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `read_iolog`: the job's files, directions and sizes are those of its traces.
//!
//! As in fio, a replay ends with its trace. Options that choose I/Os or end passes have no effect.

use super::draft::FileOption;
use super::error::ErrorKind;
use super::lists;
use super::resolve::Check;
use super::spec::Job;
use super::values::{BlockSizes, Dir, Extent, PerDir, Rw, RwMode};
use crate::replay::Replay;
use std::sync::Arc;

/// Options without effect in a replay that a user may expect to have one.
const WITHOUT_EFFECT: [&str; 18] = [
    "number_ios",
    "io_size",
    "loops",
    "time_based",
    "rate",
    "rate_iops",
    "fsync",
    "fdatasync",
    "rwmixread",
    "rwmixwrite",
    "random_distribution",
    "file_service_type",
    "zonemode",
    "zonesize",
    "offset",
    "directory",
    "filename",
    "nrfiles",
];

const NAME_A_TRACE: &str = "name an I/O log of fio, or a binary blktrace";

impl Check<'_> {
    /// Runs after the block sizes are known, and before what depends on files, directions and sizes.
    pub(super) fn replay(&mut self) {
        // A transaction loop has no use for it, which is an error already.
        let Some(names) = self.draft.read_iolog.clone().filter(|_| !self.draft.is_oltp) else { return };
        if self.draft.job.verify.is_some() {
            let remedy = "remove verify: a trace has no data to check";
            self.conflict(&["verify", "read_iolog"], "does not work with read_iolog", remedy);
        }
        if self.draft.job.verify_only {
            let remedy = "remove verify_only: a trace has no data to check";
            self.conflict(&["verify_only", "read_iolog"], "does not work with read_iolog", remedy);
        }
        let read = |name: String| (self.around.traces)(&name.replace("\\:", ":"));
        let files: Result<Vec<_>, String> = lists::file_names(&names).into_iter().map(read).collect();
        let replay = match files {
            Ok(files) if files.is_empty() => Err(("names no trace".to_owned(), NAME_A_TRACE.to_owned())),
            Ok(files) => Replay::read(files, &self.draft.replay).map_err(|e| (e.rule, e.remedy)),
            Err(why) => Err((why, NAME_A_TRACE.to_owned())),
        };
        match replay {
            Ok(replay) => self.follow(replay),
            Err((rule, remedy)) => self.error(&["read_iolog"], ErrorKind::BadValue, &rule, &remedy),
        }
    }

    /// Makes the job one of this replay.
    fn follow(&mut self, replay: Replay) {
        if replay.files.iter().any(|f| f.name.is_empty()) {
            let rule = "is a blktrace, which names devices by number: they may be other devices here";
            return self.conflict(&["read_iolog"], rule, "add replay_redirect=PATH or TARGET");
        }
        let ineffective: Vec<&str> = WITHOUT_EFFECT.into_iter().filter(|name| self.given(name)).collect();
        for name in ineffective {
            self.warn(
                &[name],
                "has no effect on the I/O of a replay (fio's rule): the trace has files, offsets and order",
            );
        }
        let is_target = self.around.is_target;
        let escaped = |name: &String| if is_target(name) { name.clone() } else { name.replace(':', "\\:") };
        self.draft.files = replay.files.iter().map(|f| FileOption::Names(escaped(&f.name))).collect();
        self.draft.rw_modifier = None;
        self.draft.zones.size_bytes = 0;
        self.draft.zone_mode = None;
        if let Some(depth) = replay.depth.filter(|_| !self.given("iodepth")) {
            self.draft.job.iodepth = depth;
        }
        let none = Job::new("");
        let job = &mut self.draft.job;
        let [reads, writes, trims] = Dir::ALL.map(|dir| replay.has(dir));
        job.rw = Rw { mode: RwMode::Replay { reads, writes, trims }, random: false };
        for dir in [Dir::Read, Dir::Write] {
            let [min_bytes, max_bytes] = [replay.shortest[dir], replay.longest[dir]].map(u64::from);
            if replay.has(dir) {
                job.block_sizes[dir] = BlockSizes::Range { min_bytes, max_bytes };
            }
        }
        // A trim needs no buffer.
        job.block_sizes[Dir::Trim] = BlockSizes::Fixed(1);
        job.size = Some(Extent::Bytes(replay.reach()));
        job.directory = Vec::new();
        (job.offset, job.offset_increment) = (none.offset, none.offset_increment);
        (job.io_size, job.filesize_bytes, job.filesize_range) = (None, None, None);
        (job.number_ios, job.loops, job.time_based) = (None, 1, false);
        (job.rate_bytes_per_s, job.rate_iops) = (PerDir::all(None), PerDir::all(None));
        (job.fsync_every, job.fdatasync_every) = (0, 0);
        job.file_service = none.file_service;
        job.openfiles = 0;
        job.bs_is_seq_rand = false;
        job.replay = Some(Arc::new(replay));
    }
}
