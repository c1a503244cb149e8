// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks between options, and values that follow from several options: turns a draft into a [`Job`].
//!
//! Guarantees: the properties that the docs of [`Job`]'s fields state. Clamps values as fio does, but with a warning.
//! Rejects jobs that fio would start and then run differently from what was typed. Needs from callers: options already
//! applied. Does not do: anything that needs the target's size.

use super::draft::{Draft, OptionOrigin};
use super::error::{ErrorKind, JobError, Origin, Warning};
use super::spec::{Job, NUMJOBS_MAX};
use super::table_engine;
use super::values::{
    BlockSizes, BufferFill, Dir, Distribution, Extent, PerDir, RateProcess, RwMode, RwSequencer, Submit, VerifyKind,
};

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
        check.draft.refused.retain(|name, _| !table_engine::is_foreign(name));
    } else {
        check.all();
    }
    let mut errors = check.errors;
    errors.extend(check.draft.refused.into_values());
    Resolved { job: check.draft.job, errors, warnings: check.warnings }
}

pub(super) struct Check<'a> {
    pub(super) draft: Draft,
    around: &'a ResolveContext<'a>,
    errors: Vec<(u32, JobError)>,
    warnings: Vec<Warning>,
}

impl Check<'_> {
    fn all(&mut self) {
        self.oltp();
        self.block_sizes();
        self.region();
        self.pattern_of_offsets();
        self.sectors();
        self.depth();
        self.time();
        self.data();
        self.verify_repeats();
        self.place();
        self.groups();
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

    fn error(&mut self, names: &[&str], kind: ErrorKind, rule: &str, remedy: &str) {
        let OptionOrigin { origin, seq, typed } = self.blame(names);
        let (job, rule, remedy) = (Some(self.draft.job.name.clone()), rule.to_owned(), remedy.to_owned());
        self.errors.push((seq, JobError { origin, job, typed, kind, rule, remedy }));
    }

    pub(super) fn conflict(&mut self, names: &[&str], rule: &str, remedy: &str) {
        self.error(names, ErrorKind::Conflict, rule, remedy);
    }

    /// Warns if one of `names` was given; a default value gives no warning.
    fn warn(&mut self, names: &[&str], advice: &str) {
        if names.iter().any(|name| self.given(name)) {
            let OptionOrigin { origin, typed, .. } = self.blame(names);
            let job = Some(self.draft.job.name.clone());
            self.warnings.push(Warning { origin, job, typed, advice: advice.to_owned() });
        }
    }

    fn given(&self, name: &str) -> bool {
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

    /// Applies `rw=...:N`, and the options that switch the random map off, as in fio.
    fn pattern_of_offsets(&mut self) {
        let job = &mut self.draft.job;
        match (self.draft.rw_modifier, job.rw.random) {
            (None, _) => {}
            (Some(every), true) => job.rand_offset_every = u32::try_from(every).unwrap_or(u32::MAX).max(1),
            (Some(add), false) => job.seq_offset_add_bytes = add,
        }
        let skewed = Dir::ALL.iter().any(|d| job.random_distribution[*d] != Distribution::Random);
        let aligned = Dir::ALL.iter().any(|d| job.blockalign_bytes[*d].is_some());
        job.norandommap |= skewed || aligned;
        job.randrepeat |= self.draft.allrandrepeat;
        if self.draft.job.rw_sequencer == RwSequencer::Identical && self.draft.rw_modifier.is_none() {
            self.warn(&["rw_sequencer"], "has an effect only with a modifier, such as rw=randread:8");
        }
    }

    /// Checks sector alignment. The block layer's unit is the sector, so devices would fail smaller units later, one I/O at a time.
    fn sectors(&mut self) {
        let odd = |bytes: u64| !bytes.is_multiple_of(SECTOR_BYTES);
        let job = &self.draft.job;
        let odd_size = |sizes: &BlockSizes| match sizes {
            BlockSizes::Fixed(bytes) => odd(*bytes),
            BlockSizes::Range { min_bytes, max_bytes } => odd(*min_bytes) || odd(*max_bytes),
            BlockSizes::Split(split) => split.iter().any(|s| odd(s.bytes)),
        };
        let odd_extent = |extent: Extent| matches!(extent, Extent::Bytes(bytes) if odd(bytes));
        let checks: [(bool, &[&str]); 6] = [
            (self.dirs().any(|d| odd_size(&job.block_sizes[d])), &["bs", "bsrange", "bssplit"]),
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
        if think == 0 && (spin > 0 || blocks_set) {
            self.warn(&["thinktime_spin", "thinktime_blocks"], "has no effect without thinktime");
        } else if spin > think {
            self.warn(&["thinktime_spin"], "is limited to thinktime");
        }
        self.draft.job.thinktime_spin_ns = spin.min(think);
    }

    /// Checks the contents of buffers and the expectations of verification.
    fn data(&mut self) {
        let draft = &mut self.draft;
        draft.job.buffer_fill = match (draft.buffer_pattern.take(), draft.zero_buffers) {
            (Some(pattern), _) => BufferFill::Pattern(pattern),
            (None, true) => BufferFill::Zero,
            (None, false) => BufferFill::Random,
        };
        if draft.zero_buffers && matches!(draft.job.buffer_fill, BufferFill::Pattern(_)) {
            self.warn(&["zero_buffers"], "has no effect where buffer_pattern is given (fio's rule)");
        }
        let job = &mut self.draft.job;
        job.verify_backlog_batch = self.draft.verify_backlog_batch.filter(|v| *v > 0).unwrap_or(job.verify_backlog);
        if job.rw.mode == RwMode::Trim {
            // Trimmed blocks contain no data to check; fio ignores verify here too.
            job.verify = None;
        }
        // Equal blocks would hide a misplaced one, so a verified write never reuses a buffer (fio's rule).
        job.refill_buffers |= job.verify.is_some_and(|kind| kind != VerifyKind::Pattern);
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

    /// Checks jobs that write a block twice while verifying: the contents of the disk must be predictable.
    fn verify_repeats(&mut self) {
        let job = &self.draft.job;
        let random_writes = job.rw.random && job.rw.has(Dir::Write);
        if job.verify.is_none() || !job.do_verify || !random_writes || !job.norandommap {
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
        let redo = self.draft.oltp.redo_filename.clone();
        for (option, name) in [("filename", self.draft.job.filename.clone()), ("redo_filename", redo)] {
            if let Some(name) = name {
                self.one_file(option, &name);
            }
        }
    }

    fn one_file(&mut self, option: &str, name: &str) {
        if (self.around.is_target)(name) {
            return;
        }
        if name == "-" {
            let remedy = "name a file, a block device or a target such as null:";
            self.error(&[option], ErrorKind::Unsupported, "is standard input or output", remedy);
        } else if name.replace("\\:", "").contains(':') {
            let remedy = "an instance works on one file: write one job section per file; a ':' in a name is '\\:'";
            self.error(&[option], ErrorKind::Unsupported, "names several files", remedy);
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
