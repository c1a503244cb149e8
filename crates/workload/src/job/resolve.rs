// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks between options, and values that follow from several options: turns a draft into a [`Job`].
//!
//! Guarantees: the properties that the docs of [`Job`]'s fields state. Clamps values as fio does, but with a warning.
//! Rejects jobs that fio would start and then run differently from what was typed. Needs from callers: options already
//! applied. Does not do: anything that needs the target's size.

use super::draft::{Draft, FileOption, OptionOrigin};
use super::error::{ErrorKind, JobError, Origin, Warning};
use super::lists;
use super::logs;
use super::option::OptionInfo;
use super::option_table;
use super::policy::{DataShape, Strided};
use super::spec::{FILES_MAX, Job, NUMJOBS_MAX};
use super::values::{
    BlockSizes, BufferFill, Dir, Extent, PerDir, RandomGenerator, RateProcess, RwMode, RwSequencer, Submit, VerifyKind,
};
use crate::replay::TraceFile;
use crate::rng::FIO_RANDSEED;

/// Bytes of a sector; the block layer counts in sectors.
const SECTOR_BYTES: u64 = blk::id::SECTOR_SIZE as u64;

/// Data that the checks need in addition to the draft.
pub(super) struct ResolveContext<'a> {
    /// Jobs above, resolved.
    pub above: &'a [Job],
    /// Where the section header is.
    pub header: Origin,
    /// Reading order of the section header.
    pub header_seq: u32,
    /// CPUs of the machine.
    pub ncpus: u32,
    /// Whether this file name is one of mqblk's targets.
    pub is_target: &'a dyn Fn(&str) -> bool,
    /// The files below a directory.
    pub files_below: &'a dyn Fn(&str) -> Result<Vec<String>, String>,
    /// Opens a trace.
    pub traces: &'a dyn Fn(&str) -> Result<Vec<TraceFile>, String>,
}

/// The job, with all errors and warnings about it.
pub(super) struct Resolved {
    pub job: Job,
    pub errors: Vec<(u32, JobError)>,
    pub warnings: Vec<Warning>,
}

/// Resolves a draft.
pub(super) fn resolve(draft: Draft, around: &ResolveContext<'_>) -> Resolved {
    let foreign_engine = draft.refused.contains_key("ioengine");
    let mut check = Check { draft, around, errors: Vec::new(), warnings: Vec::new() };
    if foreign_engine {
        // The job was written for another kind of target. Report its engine, not the errors that result from it.
        check.draft.refused.retain(|name, _| !option_table::find_option(name).is_some_and(OptionInfo::is_foreign));
    } else {
        check.all();
    }
    let mut errors = check.errors;
    errors.extend(check.draft.refused.into_values());
    Resolved { job: check.draft.job, errors, warnings: check.warnings }
}

/// Returns the shape of the data if the job has an option about it, and whether its data is zeroes. As in fio, a job with
/// such an option is not scrambled, and data that compresses completely is made of zeroes once.
fn shape_of(draft: &Draft) -> Option<(Option<DataShape>, bool)> {
    let is_asked =
        ["buffer_compress_percentage", "dedupe_percentage"].iter().any(|name| draft.given.contains_key(name));
    let all = draft.shape.compress_pct == 100;
    let shape = DataShape {
        compress_pct: if all { 0 } else { draft.shape.compress_pct },
        working_set_pct: draft.shape.working_set_pct.filter(|_| draft.has_working_set),
        global_threads: (draft.has_working_set && draft.dedupe_global).then_some(1),
        ..draft.shape
    };
    is_asked.then(|| (Some(shape).filter(|s| s.compress_pct > 0 || s.dedupe_pct > 0), all))
}

pub(super) struct Check<'a> {
    pub(super) draft: Draft,
    pub(super) around: &'a ResolveContext<'a>,
    errors: Vec<(u32, JobError)>,
    warnings: Vec<Warning>,
}

impl Check<'_> {
    fn all(&mut self) {
        self.oltp();
        self.block_sizes();
        self.replay();
        self.region();
        self.pattern_of_offsets();
        self.place();
        self.zones();
        self.sectors();
        self.depth();
        self.time();
        self.policies();
        self.data();
        self.verified_part();
        self.verify_repeats();
        self.groups();
        logs::resolve(&mut self.draft);
        self.oltp_depth();
    }

    /// Returns the given option among `names` that was typed last, or the section header if none was given.
    fn blame(&self, names: &[&str]) -> OptionOrigin {
        let given = names.iter().filter_map(|name| self.draft.given.get(name));
        given.max_by_key(|g| g.seq).cloned().unwrap_or_else(|| OptionOrigin {
            origin: self.around.header.clone(),
            seq: self.around.header_seq,
            typed: format!("[{}]", self.draft.job.name),
        })
    }

    pub(super) fn error(&mut self, names: &[&str], kind: ErrorKind, rule: &str, remedy: &str) {
        let OptionOrigin { origin, seq, typed } = self.blame(names);
        let (job, rule, remedy) = (Some(self.draft.job.name.clone()), rule.to_owned(), remedy.to_owned());
        self.errors.push((seq, JobError { origin, job, typed, kind, rule, remedy }));
    }

    pub(super) fn conflict(&mut self, names: &[&str], rule: &str, remedy: &str) {
        self.error(names, ErrorKind::Conflict, rule, remedy);
    }

    /// Warns if one of `names` was given; a default value gives no warning.
    pub(super) fn warn(&mut self, names: &[&str], advice: &str) {
        if names.iter().any(|name| self.given(name)) {
            let OptionOrigin { origin, typed, .. } = self.blame(names);
            let job = Some(self.draft.job.name.clone());
            self.warnings.push(Warning { origin, job, typed, advice: advice.to_owned() });
        }
    }

    pub(super) fn given(&self, name: &str) -> bool {
        self.draft.given.contains_key(name)
    }

    fn dirs(&self) -> impl Iterator<Item = Dir> + use<> {
        let rw = self.draft.job.rw;
        Dir::ALL.into_iter().filter(move |d| rw.has(*d))
    }

    /// Applies fio's precedence per direction, whatever the order in the file: bssplit, then bsrange, then bs.
    fn block_sizes(&mut self) {
        let draft = &mut self.draft;
        for dir in Dir::ALL {
            let fixed = draft.bs[dir].map(BlockSizes::Fixed);
            let range = draft.bsrange[dir].map(|(min_bytes, max_bytes)| BlockSizes::Range { min_bytes, max_bytes });
            let split = draft.bssplit[dir].take().map(BlockSizes::Split);
            if let Some(sizes) = split.or(range).or(fixed) {
                draft.job.block_sizes[dir] = sizes;
            }
        }
        let seq = |name: &str| draft.given.get(name).map_or(0, |g| g.seq);
        if seq("bs") > 0
            && seq("bs") > seq("bsrange").max(seq("bssplit"))
            && (self.given("bsrange") || self.given("bssplit"))
        {
            self.warn(&["bs"], "has no effect where bsrange or bssplit is given (fio's rule); remove one of them");
        }
        let odd_sum = |sizes: &BlockSizes| match sizes {
            BlockSizes::Split(split) => split.len() > 1 && split.iter().map(|s| s.pct).sum::<u32>() != 100,
            _ => false,
        };
        if self.draft.job.sizes_in_use().any(odd_sum) {
            let advice = "has percentages that do not sum to 100; as in fio, the size with the largest gets what is missing, or \
                          loses what is above";
            self.warn(&["bssplit"], advice);
        }
        if self.given("bsrange") && self.given("bssplit") {
            self.warn(&["bsrange"], "has no effect where bssplit is given (fio's rule); remove one of them");
        }
    }

    fn region(&mut self) {
        let smallest = self.draft.job.min_block_bytes();
        if let Some(Extent::Bytes(size)) = self.draft.job.size
            && size < smallest
        {
            let rule = format!("is smaller than the smallest block, {smallest} bytes");
            self.conflict(&["size"], &rule, "give a larger size or a smaller bs");
        }
        let job = &self.draft.job;
        let bytes = |extent: Extent| match extent {
            Extent::Bytes(bytes) => bytes,
            Extent::Percent(_) => 0,
        };
        let last_shift = bytes(job.offset_increment).checked_mul(u64::from(job.numjobs) - 1);
        let end = last_shift
            .and_then(|shift| shift.checked_add(bytes(job.offset)))
            .and_then(|start| start.checked_add(job.size.map_or(0, bytes)));
        let past_file = job.filesize_bytes.is_some_and(|filesize| bytes(job.offset) >= filesize);
        if end.is_none_or(|end| end > i64::MAX as u64) {
            let rule = "ends beyond the largest file offset (8 EiB)";
            self.conflict(&["size", "offset", "offset_increment"], rule, "give smaller values");
        }
        if past_file {
            self.conflict(
                &["offset", "filesize"],
                "starts beyond the end of the file",
                "give a smaller offset or a larger filesize",
            );
        }
    }

    /// Applies `rw=...:N`, as in fio.
    fn pattern_of_offsets(&mut self) {
        let job = &mut self.draft.job;
        match (self.draft.rw_modifier, job.rw.random) {
            (None, _) => {}
            (Some(every), true) => job.rand_offset_every = u32::try_from(every).unwrap_or(u32::MAX).max(1),
            (Some(add), false) => job.seq_offset_add_bytes = add,
        }
        if self.draft.job.rw_sequencer == RwSequencer::Identical && self.draft.rw_modifier.is_none() {
            self.warn(&["rw_sequencer"], "has an effect only with a modifier, such as rw=randread:8");
        }
        let job = &self.draft.job;
        let skewed = self.dirs().any(|d| job.random_distribution[d].is_skewed());
        let (unit, remedy) = match job.random_generator {
            _ if skewed => (job.block_sizes.read.min_bytes().min(job.block_sizes.write.min_bytes()), ""),
            RandomGenerator::Lfsr => (job.min_bs(), ""),
            _ if job.has_no_map() => (u64::MAX, ""),
            _ => (job.min_bs(), ", or set norandommap=1"),
        };
        if job.rw.random && self.dirs().any(|d| job.grid_bytes(d) > unit) {
            let advice = format!(
                "as in fio, blocks are counted in the smallest size of any direction, and the job ends at the first one that \
                 would begin past the end; give all directions one size{remedy}"
            );
            self.warn(&["bs", "bsrange", "bssplit", "ba"], &advice);
        }
    }

    fn has_several_files(&self) -> bool {
        self.draft.job.nr_files() > 1
    }

    /// Applies fio's rules for strided zones: a zone size alone asks for them.
    fn zones(&mut self) {
        let zones = self.draft.zones;
        let is_strided = self.draft.zone_mode.unwrap_or(zones.size_bytes > 0);
        if is_strided && zones.size_bytes == 0 {
            self.conflict(&["zonemode"], "needs the bytes of a zone", "add zonesize=");
        } else if is_strided {
            let range_bytes = if zones.range_bytes > 0 { zones.range_bytes } else { zones.size_bytes };
            self.draft.job.strided = Some(Strided { range_bytes, ..zones });
        } else if zones.range_bytes > 0 || zones.skip_bytes > 0 {
            self.warn(&["zonerange", "zoneskip"], "has no effect without zonesize");
        }
        if self.draft.job.strided.is_some() && self.has_several_files() {
            self.warn(&["zonemode", "zonesize"], "has no effect with several files (fio's rule)");
            self.draft.job.strided = None;
        }
        if self.draft.job.strided.is_some_and(|zones| zones.range_bytes < self.draft.job.min_block_bytes()) {
            let names = ["zonerange", "zonesize"];
            self.conflict(&names, "is shorter than the smallest block", "give longer zones or a smaller bs");
        }
    }

    /// Checks sector alignment of a transaction loop. Of other jobs, the target decides.
    fn sectors(&mut self) {
        if !self.draft.is_oltp {
            return;
        }
        let odd = |bytes: u64| !bytes.is_multiple_of(SECTOR_BYTES);
        let job = &self.draft.job;
        let odd_size = |sizes: &BlockSizes| match sizes {
            BlockSizes::Fixed(bytes) => odd(*bytes),
            BlockSizes::Range { min_bytes, max_bytes } => odd(*min_bytes) || odd(*max_bytes),
            BlockSizes::Split(split) => split.iter().any(|s| odd(s.bytes)),
        };
        let odd_extent = |extent: Extent| matches!(extent, Extent::Bytes(bytes) if odd(bytes));
        let checks: [(bool, &[&str]); 6] = [
            (job.sizes_in_use().any(odd_size), &["bs", "bsrange", "bssplit"]),
            (self.dirs().any(|d| job.blockalign_bytes[d].is_some_and(odd)), &["ba"]),
            (odd_extent(job.offset), &["offset"]),
            (odd_extent(job.offset_increment), &["offset_increment"]),
            (odd(job.offset_align_bytes), &["offset_align"]),
            (odd(job.seq_offset_add_bytes.unsigned_abs()), &["rw"]),
        ];
        for (bad, names) in checks {
            if bad {
                let rule = format!("must be whole sectors of {SECTOR_BYTES} bytes");
                self.error(names, ErrorKind::BadValue, &rule, "mqblk is a block layer: round the value");
            }
        }
    }

    fn depth(&mut self) {
        if self.draft.job.ioengine.submit() == Submit::Sync && self.draft.job.iodepth > 1 {
            let engine = self.draft.job.ioengine.name();
            let advice =
                format!("{engine} has one I/O in flight: iodepth is 1; use ioengine=libaio or io_uring for more");
            self.warn(&["iodepth"], &advice);
            self.draft.job.iodepth = 1;
        }
        let depth = u64::from(self.draft.job.iodepth);
        let draft = &self.draft;
        let above = [
            ("iodepth_low", draft.iodepth_low),
            ("iodepth_batch", draft.batch_submit),
            ("iodepth_batch_complete_min", draft.batch_complete_min),
            ("iodepth_batch_complete_max", draft.batch_complete_max),
        ];
        // A clamped depth was already reported; options that depend on it follow without a warning.
        let follows = draft.job.ioengine.submit() == Submit::Sync;
        for (name, _) in above.into_iter().filter(|(_, v)| !follows && v.is_some_and(|v| v > depth)) {
            self.warn(&[name], &format!("is limited to iodepth={depth}"));
        }
        let draft = &mut self.draft;
        let clamp = |value: u64| value.min(depth) as u32;
        let or_depth = |value: Option<u64>| clamp(value.filter(|v| *v > 0).unwrap_or(depth));
        draft.job.iodepth_low = or_depth(draft.iodepth_low);
        draft.job.iodepth_batch_submit = draft.batch_submit.map_or(1, |v| or_depth(Some(v)));
        let min = clamp(draft.batch_complete_min.unwrap_or(1));
        let max = draft.batch_complete_max.filter(|v| *v > 0).map_or(min, clamp).max(min).max(1);
        draft.job.iodepth_batch_complete_min = min;
        draft.job.iodepth_batch_complete_max = max;
        let typed_max = draft.batch_complete_max.unwrap_or(0);
        if typed_max > 0 && draft.batch_complete_min.is_some_and(|min| min > typed_max) {
            let names = ["iodepth_batch_complete_max", "iodepth_batch_complete_min"];
            self.conflict(&names, "has a maximum below the minimum", "give iodepth_batch_complete_max >= ..._min");
        }
    }

    fn time(&mut self) {
        let job = &self.draft.job;
        let rated = |limit: &PerDir<Option<u64>>| Dir::ALL.iter().any(|d| limit[*d].is_some());
        let (by_bytes, by_ios) = (rated(&job.rate_bytes_per_s), rated(&job.rate_iops));
        let (think, spin) = (job.thinktime_ns, job.thinktime_spin_ns);
        if job.time_based && job.runtime_ns.is_none() {
            self.conflict(&["time_based"], "needs a runtime", "add runtime=SECONDS, or remove time_based");
        }
        if by_bytes && by_ios {
            self.conflict(
                &["rate", "rate_iops"],
                "cannot be used together with the other rate",
                "keep rate or rate_iops",
            );
        }
        if !by_bytes && !by_ios && self.draft.job.rate_process == RateProcess::Poisson {
            self.warn(&["rate_process"], "has no effect without rate or rate_iops");
        }
        let blocks_set = self.draft.job.thinktime_blocks != 1;
        let iotime = self.draft.job.thinktime_iotime_ns;
        if iotime > 0 && !self.given("thinktime_blocks") {
            self.draft.job.thinktime_blocks = u64::MAX;
        }
        if think == 0 && (spin > 0 || blocks_set || iotime > 0) {
            let names = ["thinktime_spin", "thinktime_blocks", "thinktime_iotime"];
            self.warn(&names, "has no effect without thinktime");
        } else if spin > think {
            self.warn(&["thinktime_spin"], "is limited to thinktime");
        }
        self.draft.job.thinktime_spin_ns = spin.min(think);
    }

    /// Checks minimum rates and the priorities of single I/Os.
    fn policies(&mut self) {
        let job = &self.draft.job;
        let above = |least: PerDir<Option<u64>>, most: PerDir<Option<u64>>| {
            Dir::ALL.iter().any(|&d| least[d].zip(most[d]).is_some_and(|(least, most)| least > most))
        };
        let bytes = above(job.limits.min_bytes_per_s, job.rate_bytes_per_s);
        let ios = above(job.limits.min_iops, job.rate_iops);
        if bytes || ios {
            let names = if bytes { ["rate_min", "rate"] } else { ["rate_iops_min", "rate_iops"] };
            self.conflict(&names, "has a minimum above the rate", "lower the minimum or raise the rate");
        }
        let draft = &mut self.draft;
        let (latency, steady, flow) = (draft.latency, draft.steady, draft.flow);
        draft.job.latency_goal = Some(latency).filter(|goal| goal.target_ns > 0);
        draft.job.flow = Some(flow).filter(|flow| flow.weight > 0);
        draft.job.steady = Some(steady).filter(|steady| steady.duration_s > 0);
        if latency.target_ns == 0 && (latency.window_ns > 0 || latency.runs_on) {
            self.warn(&["latency_window", "latency_run"], "has no effect without latency_target");
        }
        if steady.duration_s == 0 && steady != Draft::new().steady {
            self.warn(&["steadystate"], "has no effect without steadystate_duration");
        }
        let job = &self.draft.job;
        let differs = |other: &Job| other.group_reporting && other.steady != job.steady;
        // Jobs share a group from the last stonewall or new_group on.
        let first = self.around.above.iter().rposition(|j| j.stonewall || j.new_group).unwrap_or(0);
        let alone = job.stonewall || job.new_group;
        if !alone && job.group_reporting && self.around.above[first..].iter().any(differs) {
            let names = ["steadystate", "steadystate_duration", "steadystate_ramp_time"];
            self.conflict(
                &names,
                "differs from that of other jobs of the group",
                "give all jobs of the group the same",
            );
        }
        let cmdprio = &self.draft.job.cmdprio;
        let by_size = [&cmdprio.by_size.read, &cmdprio.by_size.write].iter().any(|sizes| !sizes.is_empty());
        if by_size && (cmdprio.pct.read > 0 || cmdprio.pct.write > 0) {
            let names = ["cmdprio_bssplit", "cmdprio_percentage"];
            self.conflict(&names, "cannot be used together with the other", "keep one of them");
        }
    }

    /// Checks the contents of buffers and the expectations of verification.
    fn data(&mut self) {
        let draft = &mut self.draft;
        draft.job.end_fsync |= draft.fsync_on_close;
        let is_default = |seed: u64| seed == FIO_RANDSEED && draft.job.randrepeat;
        draft.job.randseed = draft.randseed.filter(|&seed| !is_default(seed));
        draft.job.buffer_fill = match (draft.buffer_pattern.take(), draft.zero_buffers) {
            (Some(pattern), _) => BufferFill::Pattern(pattern),
            (None, true) => BufferFill::Zero,
            (None, false) => BufferFill::Random,
        };
        if let Some((shape, is_zero)) = shape_of(draft) {
            draft.job.scramble_buffers = false;
            draft.job.shape = shape;
            if is_zero && draft.job.buffer_fill == BufferFill::Random {
                draft.job.buffer_fill = BufferFill::Zero;
            }
            let refill_given = draft.given.contains_key("refill_buffers");
            draft.job.refill_buffers |= shape.is_some_and(|s| s.dedupe_pct > 0 || !refill_given);
        }
        let working_set =
            draft.job.shape.filter(|s| s.dedupe_pct > 0).and_then(|s| Some((s.working_set_pct?, s.dedupe_pct)));
        let names = ["dedupe_working_set_percentage", "dedupe_percentage", "dedupe_mode"];
        if working_set.is_some_and(|(set, repeats)| set + repeats > 100) {
            self.conflict(&names, "leaves no room for so many repeats", "lower dedupe_working_set_percentage");
        } else if working_set.is_some() && self.draft.job.size.is_none() {
            self.conflict(&names, "needs a size", "add size=");
        } else if working_set.is_some() && self.has_several_files() {
            self.conflict(&names, "needs a job on one file", "use dedupe_mode=repeat, or one file");
        }
        let draft = &mut self.draft;
        if draft.zero_buffers && matches!(draft.job.buffer_fill, BufferFill::Pattern(_)) {
            self.warn(&["zero_buffers"], "has no effect where buffer_pattern is given (fio's rule)");
        }
        let job = &mut self.draft.job;
        job.verify_backlog_batch = self.draft.verify_backlog_batch.filter(|v| *v > 0).unwrap_or(job.verify_backlog);
        if job.rw.mode == RwMode::Trim {
            // Trimmed blocks contain no data to check; fio ignores verify here too.
            job.verify = None;
        }
        // Equal blocks would hide a misplaced one, so a verified write never reuses a buffer (fio's rule). `null` verifies
        // nothing, and as with fio it scrambles nothing either.
        job.refill_buffers |= job.verify.is_some_and(|kind| !matches!(kind, VerifyKind::Pattern | VerifyKind::Null));
        job.scramble_buffers &= job.verify != Some(VerifyKind::Null);
        if job.verify_only && job.time_based {
            let remedy = "remove time_based; the job reads back as much as it would write";
            self.conflict(&["verify_only", "time_based"], "does not work with time_based", remedy);
        }
        let job = &self.draft.job;
        let (verify, pattern) = (job.verify, job.verify_pattern.is_some());
        let trims_only = job.rw.mode == RwMode::Trim;
        if verify == Some(VerifyKind::Pattern) && !pattern {
            let remedy = "add verify_pattern=0xdeadbeef, or use verify=crc32c";
            self.conflict(&["verify"], "needs a pattern", remedy);
        }
        let verify_typed = self.given("verify") || self.draft.refused.contains_key("verify");
        if pattern && !trims_only && !verify_typed {
            let remedy = "add verify=pattern (fio would add a header of its own kind, which mqblk does not have)";
            let rule = "without verify= is not supported";
            self.error(&["verify_pattern"], ErrorKind::Unsupported, rule, remedy);
        }
    }

    /// Checks options that change what is verified.
    fn verified_part(&mut self) {
        let job = &self.draft.job;
        let missing = [
            (
                !job.rw.has(Dir::Write),
                "in a job that does not write; use rw=write, or rw=trim to trim without verifying",
            ),
            (job.verify.is_none(), "without verify; add verify=crc32c"),
            (!job.do_verify, "with do_verify=0; remove do_verify"),
            (job.trim_backlog == 0, "without trim_backlog (fio's rule); add trim_backlog=N"),
        ];
        let missing = missing.into_iter().find(|(is_missing, _)| *is_missing);
        match (job.trim_pct > 0, missing) {
            (true, Some((_, what))) => self.warn(&["trim_percentage"], &format!("has no effect {what}")),
            (true, None) if job.verify_only => {
                let rule = "does not work with trim_percentage: which blocks a run has trimmed depends on its timing";
                self.conflict(
                    &["verify_only"],
                    rule,
                    "remove verify_only, or write and verify without trim_percentage",
                );
            }
            _ => {}
        }
        let job = &mut self.draft.job;
        if job.verify_state_load && (job.verify.is_none() || (job.rw.has(Dir::Write) && !job.verify_only)) {
            job.verify_state_load = false;
            let advice = "has no effect here; it is for jobs that verify and do not write: rw=read, or verify_only";
            self.warn(&["verify_state_load"], advice);
        }
    }

    /// Checks jobs that write a block twice while verifying: the contents of the disk must be predictable.
    fn verify_repeats(&mut self) {
        let job = &self.draft.job;
        let random_writes = job.rw.random && job.rw.has(Dir::Write);
        if job.verify.is_none() || !job.do_verify || !random_writes || !job.has_no_map() {
            return;
        }
        let sizes = &job.block_sizes.write;
        let block = sizes.max_bytes();
        let overlapping =
            sizes.min_bytes() != block || job.blockalign_bytes.write.is_some_and(|align| !align.is_multiple_of(block));
        let names = ["norandommap", "random_distribution", "ba", "verify"];
        if overlapping {
            let rule = "lets written blocks overlap in part, which verify cannot check";
            self.conflict(&names, rule, "use one block size, aligned to itself, or remove norandommap");
        } else if job.iodepth > 1 {
            let advice = "with verify and iodepth above 1 a block may be written twice at once, which can cause false \
                          verify errors; set iodepth=1, or remove this option";
            self.warn(&names[..3], advice);
        }
    }

    fn place(&mut self) {
        let ncpus = self.around.ncpus;
        let highest = self.draft.job.cpus_allowed.as_ref().and_then(|cpus| cpus.last().copied());
        if let Some(highest) = highest.filter(|cpu| *cpu >= ncpus) {
            let rule = format!("names CPU {highest}, but this machine has CPUs 0..={}", ncpus.saturating_sub(1));
            self.error(&["cpus_allowed", "cpumask"], ErrorKind::BadValue, &rule, "name existing CPUs");
        }
        if let Some(redo) = self.draft.oltp.redo_filename.clone()
            && self.names(&redo).len() > 1
        {
            let remedy = "name one file or target; a ':' in a name is '\\:'";
            self.error(&["redo_filename"], ErrorKind::Unsupported, "names several files", remedy);
        }
        self.files();
    }

    /// The names in a list of files. A target has no `:` that separates names.
    fn names(&self, list: &str) -> Vec<String> {
        if (self.around.is_target)(list) { vec![list.to_owned()] } else { lists::file_names(list) }
    }

    /// Collects the files that the options name. As in fio, each option adds to those before, and `nrfiles` limits them.
    fn files(&mut self) {
        let (mut names, mut count) = (Vec::new(), 1);
        for option in std::mem::take(&mut self.draft.files) {
            let more = match option {
                FileOption::Count(n) => {
                    count = n as usize;
                    continue;
                }
                FileOption::Names(list) => self.names(&list),
                FileOption::Below(directory) => match (self.around.files_below)(&directory) {
                    Ok(found) => found.into_iter().map(|name| name.replace(':', "\\:")).collect(),
                    Err(why) => {
                        let remedy = "name a directory that can be read";
                        self.error(&["opendir"], ErrorKind::BadValue, &why, remedy);
                        continue;
                    }
                },
            };
            count = if names.is_empty() { 0 } else { count };
            count += more.len();
            names.extend(more);
        }
        let named = self.given("filename") || self.given("opendir");
        if named && names.is_empty() {
            self.error(&["filename", "opendir"], ErrorKind::BadValue, "names no file", "name a file or a target");
        }
        if names.iter().any(|name| name == "-") {
            let remedy = "name a file, a block device or a target such as null:";
            self.error(&["filename"], ErrorKind::Unsupported, "is standard input or output", remedy);
        }
        names.truncate(count.max(1));
        self.draft.job.nrfiles = count.max(1) as u32;
        self.draft.job.filename = names;
        let nr_files = self.draft.job.nr_files();
        if nr_files > 1 && self.draft.is_oltp {
            let remedy = "name one file or target, such as a stripe over several";
            self.error(&["filename", "opendir"], ErrorKind::Unsupported, "names several files", remedy);
        }
        if nr_files > FILES_MAX as usize {
            let rule = format!("makes {nr_files} files per instance, more than {FILES_MAX}");
            self.error(&["nrfiles", "filename", "opendir"], ErrorKind::BadValue, &rule, "use fewer files");
        }
        if self.draft.job.openfiles as usize > nr_files {
            self.draft.job.openfiles = 0;
        }
    }

    fn groups(&mut self) {
        let above = self.around.above;
        if let Some(name) = self.draft.job.wait_for.clone() {
            match above.iter().filter(|job| job.name == name).count() {
                1 => {}
                0 => self.conflict(&["wait_for"], "names no job above this one", "put the awaited job first"),
                n => {
                    let rule = format!("names {n} jobs");
                    self.conflict(&["wait_for"], &rule, "give the awaited job a unique name");
                }
            }
        }
        let instances: u64 = above.iter().map(|job| u64::from(job.numjobs)).sum();
        if instances + u64::from(self.draft.job.numjobs) > u64::from(NUMJOBS_MAX) {
            let rule = format!("brings the file above {NUMJOBS_MAX} instances");
            self.conflict(&["numjobs"], &rule, "use fewer jobs or a larger iodepth");
        }
    }
}
