// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Knobs and values that cannot matter for the jobs, so that a tuning does not measure them.
//!
//! Guarantees: a knob is left out only if the rules of the block layer say that the jobs never meet it, whatever the other
//! knobs are. Each has its reason. Does not: guess from measurements; a knob whose effect is small stays.
//! Source: block/mq-deadline.c, kyber-iosched.c, bfq-iosched.c (depth limits), blk-wbt.c (`wbt_should_throttle`).

use workload::job::{Dir, Job, JobFile, Submit};

use super::point::Knob;
use super::stack_knobs::SECTORS_KB_MIN;
use super::world_bench::is_load_knob;

/// Names of knobs, each with the reason why the search leaves it out.
pub type LeftOut = Vec<(String, String)>;

/// From this multiple of the I/Os in flight on, no depth limits anything: bfq's smallest share of the tags is 3/16.
const SPARE: u64 = 8;

/// What decides which knobs matter.
struct Facts {
    /// No job goes through the page cache.
    direct: bool,
    reads: bool,
    writes: bool,
    trims: bool,
    /// Bytes of the largest I/O, if merging makes no larger one and all sizes are known.
    largest: Option<u64>,
    /// Requests in flight at most, if that is known.
    in_flight: Option<u64>,
    cpus: u32,
}

/// Splits knobs into those to search, without values that are equal to others, and those without effect.
pub fn split(knobs: Vec<Knob>, file: &JobFile, cpus: u32) -> (Vec<Knob>, LeftOut) {
    let facts = Facts::of(file, &knobs, cpus);
    let (mut searched, mut left_out): (Vec<Knob>, LeftOut) = (Vec::new(), Vec::new());
    for mut knob in knobs {
        match why(&mut knob, &facts) {
            None => searched.push(knob),
            Some(why) => {
                let entry = (knob.name, why);
                if !left_out.contains(&entry) {
                    left_out.push(entry);
                }
            }
        }
    }
    // A tunable that matters for one elevator is not named because of another.
    left_out.retain(|(name, _)| searched.iter().all(|k| k.name != *name));
    (searched, left_out)
}

impl Facts {
    fn of(file: &JobFile, knobs: &[Knob], cpus: u32) -> Facts {
        let has = |dir| file.jobs.iter().any(|j| j.oltp.is_some() && dir != Dir::Trim || j.rw.has(dir));
        let is_known = |j: &Job| j.oltp.is_none() && j.replay.is_none();
        // Neighbours that random I/O meets by chance make no large requests. Skewed offsets are random as well.
        let is_random = |j: &Job| {
            is_known(j) && {
                let all_random = Dir::ALL.iter().all(|d| j.percentage_random[*d] == 100);
                j.rw.random && all_random && j.rand_offset_every <= 1 && !j.bs_is_seq_rand
            }
        };
        let sizes = || file.jobs.iter().flat_map(|j| Dir::ALL.map(|d| j.block_sizes[d].max_bytes())).max().unwrap_or(0);
        let largest = (file.jobs.iter().all(is_random) && direct_only(file)).then(sizes);
        let sectors_kb = knobs.iter().find(|k| k.name == "max_sectors_kb");
        let smallest_kb = sectors_kb.map_or(SECTORS_KB_MIN, |k| k.range.map_or(SECTORS_KB_MIN, |(low, _)| low));
        let pieces = sizes().div_ceil(smallest_kb.max(1) << 10).max(1);
        let of_job = |j: &Job| {
            let depth = if j.ioengine.submit() == Submit::Sync { 1 } else { j.iodepth };
            // One more for a flush.
            u64::from(j.numjobs) * (u64::from(depth) * pieces + 1)
        };
        let is_bounded =
            file.jobs.iter().all(is_known) && direct_only(file) && !knobs.iter().any(|k| is_load_knob(&k.name));
        Facts {
            direct: direct_only(file),
            reads: has(Dir::Read),
            writes: has(Dir::Write),
            trims: has(Dir::Trim),
            largest,
            in_flight: is_bounded.then(|| file.jobs.iter().map(of_job).sum()),
            cpus,
        }
    }
}

fn direct_only(file: &JobFile) -> bool {
    file.jobs.iter().all(|j| j.direct || j.oltp.is_some())
}

/// Returns why a knob has no effect. Removes values that equal others.
fn why(knob: &mut Knob, f: &Facts) -> Option<String> {
    let said = match knob.name.as_str() {
        "read_ahead_kb" => f.direct.then_some("read-ahead fills the page cache, and all jobs use direct I/O"),
        "wbt_lat_usec" => (!f.trims && (f.direct || !f.writes))
            .then_some("it delays only discards and what the page cache writes, and the jobs have neither"),
        "rq_affinity" => (f.cpus == 1).then_some("there is one CPU"),
        "iosched.read_expire" | "iosched.read_lat_nsec" => (!f.reads).then_some("no job reads"),
        "iosched.write_expire" | "iosched.write_lat_nsec" => (!f.writes).then_some("no job writes"),
        "iosched.async_depth" => (!f.writes && !f.trims).then_some("it limits writes, and no job writes"),
        "iosched.writes_starved" => (!f.reads || !f.writes && !f.trims)
            .then_some("it weighs reads against writes, and the jobs have only one kind"),
        _ => None,
    };
    if said.is_some() {
        return said.map(str::to_owned);
    }
    let limits = match knob.name.as_str() {
        "max_sectors_kb" => {
            f.largest.map(|bytes| (bytes.div_ceil(1024), "no I/O is larger, and random I/O does not merge"))
        }
        "queue_depth" | "lun_queue_depth" | "nr_requests" => {
            f.in_flight.map(|n| (n.saturating_mul(SPARE), "the jobs have far fewer I/Os in flight"))
        }
        _ => None,
    };
    let only = |knob: &Knob| knob.values.iter().all(|v| *v == knob.default);
    if only(knob) {
        return Some(format!("{} is the only value", knob.default));
    }
    let (from, why) = limits?;
    cut(knob, from);
    only(knob).then(|| format!("{}: {why}", knob.default))
}

/// Removes all values from `from` on except one: beyond it, all have the same effect.
fn cut(knob: &mut Knob, from: u64) {
    let is_over = |v: &String| v.parse::<u64>().is_ok_and(|v| v >= from);
    let default_is_over = is_over(&knob.default);
    let first = knob.values.iter().filter(|v| is_over(v)).min_by_key(|v| v.parse::<u64>().ok()).cloned();
    let kept = if default_is_over { Some(knob.default.clone()) } else { first };
    knob.values.retain(|v| !is_over(v) || Some(v) == kept.as_ref());
    let end = kept.and_then(|v| v.parse().ok());
    knob.range = knob.range.map(|(low, high)| (low, end.unwrap_or(high).min(high)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use workload::job::ParseContext;

    fn file(text: &str) -> JobFile {
        let text = format!("[global]\nioengine=libaio\ndirect=1\nsize=64m\n{text}");
        JobFile::parse_str(&text, &ParseContext::bare("t.fio"), &[]).unwrap_or_else(|e| panic!("{e}"))
    }

    fn knobs() -> Vec<Knob> {
        vec![
            Knob::new("nr_hw_queues", 1, [1]),
            Knob::number("queue_depth", "64", 1, 1024),
            Knob::number("max_sectors_kb", "1024", 4, 1024),
            Knob::new("read_ahead_kb", 128, [0, 128, 4096]),
            Knob::new("wbt_lat_usec", 0, [0, 2000]),
            Knob::new("rq_affinity", 1, [0, 1, 2]),
            Knob::number("iosched.write_expire", "5000", 0, 100_000).only_when("scheduler", "mq-deadline"),
            Knob::new("iosched.async_depth", 64, [16, 256]).only_when("scheduler", "mq-deadline"),
            Knob::new("iosched.async_depth", 64, [16, 256]).only_when("scheduler", "kyber"),
        ]
    }

    fn told(text: &str, cpus: u32) -> (Vec<String>, LeftOut) {
        let (searched, left_out) = split(knobs(), &file(text), cpus);
        (searched.iter().map(|k| format!("{}: {}", k.name, k.values.join(" "))).collect(), left_out)
    }

    #[test]
    fn small_random_direct_reads_meet_few_knobs() {
        let (searched, left_out) = told("[a]\nrw=randread\nbs=4k\niodepth=1\n", 1);
        assert_eq!(searched, ["queue_depth: 1 4 64"], "at most two requests in flight: 16 tags are as good as 64");
        let names: Vec<&str> = left_out.iter().map(|(name, _)| name.as_str()).collect();
        let all = ["nr_hw_queues", "max_sectors_kb", "read_ahead_kb", "wbt_lat_usec", "rq_affinity"];
        assert_eq!(names, [&all[..], &["iosched.write_expire", "iosched.async_depth"]].concat());
        assert_eq!(left_out[0].1, "1 is the only value");
        assert_eq!(left_out[1].1, "1024: no I/O is larger, and random I/O does not merge");
        assert!(left_out[2].1.contains("all jobs use direct I/O"), "{left_out:?}");
    }

    #[test]
    fn a_knob_that_a_job_meets_stays() {
        let (searched, left_out) = told("[a]\nrw=randread\nbs=256k\niodepth=4\n[b]\nrw=randwrite\nbs=4k\n", 4);
        assert!(
            searched.contains(&"max_sectors_kb: 4 16 64 1024".to_owned()),
            "a value of 256 equals 1024: {searched:?}"
        );
        assert!(searched.contains(&"queue_depth: 1 4 16 32 64 128 256 1024".to_owned()), "pieces of 4k: {searched:?}");
        let names: Vec<&str> = left_out.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["nr_hw_queues", "read_ahead_kb", "wbt_lat_usec"]);
        // Sequential I/O merges; the page cache reads ahead and writes back.
        let (searched, _) = told("[a]\nrw=read\nbs=4k\n[b]\nrw=write\ndirect=0\n", 4);
        for name in ["max_sectors_kb: 4 16 64 256 512 1024", "read_ahead_kb: 0 128 4096", "wbt_lat_usec: 0 2000"] {
            assert!(searched.contains(&name.to_owned()), "{name}: {searched:?}");
        }
    }

    #[test]
    fn a_depth_is_no_limit_only_if_the_load_is_known() {
        let depths = |knobs: Vec<Knob>, text: &str| {
            let (searched, _) = split(knobs, &file(text), 4);
            searched.iter().find(|k| k.name == "queue_depth").map(|k| (k.values.len(), k.range))
        };
        let text = "[a]\nrw=randread\nbs=4k\niodepth=1\n";
        assert_eq!(depths(knobs(), text), Some((3, Some((1, 64)))));
        let free = [knobs(), vec![Knob::new("a.iodepth", 1, [1, 64])]].concat();
        assert_eq!(depths(free, text), Some((8, Some((1, 1024)))));
        assert_eq!(depths(knobs(), "[a]\nworkload=oltp\nruntime=1\n"), Some((8, Some((1, 1024)))));
    }
}
