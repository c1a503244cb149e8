// SPDX-License-Identifier: Apache-2.0 OR MIT
//! No input makes the parser panic, and every accepted job has the properties that its types state.
//!
//! The inputs are mutations of a small corpus with a fixed seed, so a failure is repeatable; the failing input is printed.
//! More cases: `JOB_FUZZ_CASES=10000000 cargo test -p mqblk-workload --release --test it job_fuzz::`. A coverage-guided
//! version is in `fuzz/`.

use sim::rng::Rng;
use workload::job::*;

const CORPUS: [&str; 4] = [
    include_str!("../data/jobs/oltp.fio"),
    include_str!("../data/jobs/verify.fio"),
    include_str!("../data/jobs/forms.fio"),
    include_str!("../data/jobs/part.inc"),
];
const SEED: u64 = 0x6d71_626c_6b00_0001;
const CASES_DEFAULT: u64 = 10_000;

/// An index below `n`, or 0.
fn below(random: &mut Rng, n: usize) -> usize {
    random.below(n.max(1) as u64) as usize
}

/// Tokens that the parser knows.
const TOKENS: [&str; 40] = [
    "=",
    ":",
    ",",
    "-",
    "/",
    "%",
    "(",
    ")",
    "*",
    "^",
    "${NAME}",
    "${",
    "$ncpus",
    "[",
    "]",
    ";",
    "#",
    "\n",
    "\r\n",
    "\0",
    "0x",
    "k",
    "kib",
    "ms",
    "\"",
    "'",
    "%o",
    "99999999999999999999999999999999999999999",
    "18446744073709551615",
    "-1",
    "0",
    "100",
    "101",
    "1e9",
    "nan",
    "include part.inc\n",
    "[global]\n",
    "\u{feff}",
    "\u{e9}",
    "\\:",
];

fn mutate(random: &mut Rng) -> String {
    let mut text: Vec<u8> = CORPUS[below(random, CORPUS.len())].as_bytes().to_vec();
    for _ in 0..=below(random, 4) {
        let at = below(random, text.len() + 1);
        let end = (at + below(random, 24)).min(text.len());
        match below(random, 7) {
            0 => drop(text.drain(at..end)),
            1 => text.splice(at..at, TOKENS[below(random, TOKENS.len())].bytes()).for_each(drop),
            2 => text.splice(at..end, TOKENS[below(random, TOKENS.len())].bytes()).for_each(drop),
            3 if at < text.len() => text[at] ^= 1 << below(random, 8),
            4 => {
                let piece = text[at..end].to_vec();
                let to = below(random, text.len() + 1);
                text.splice(to..to, piece).for_each(drop);
            }
            5 => text.truncate(at.max(1)),
            _ => option_with_foreign_value(&mut text, random),
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// An option of the table with an arbitrary value, because most mutations above only make the line unknown.
fn option_with_foreign_value(text: &mut Vec<u8>, random: &mut Rng) {
    let all: Vec<&OptionInfo> = options().collect();
    let option = all[below(random, all.len())];
    let other = all[below(random, all.len())];
    let value = match below(random, 3) {
        0 => other.default.to_owned(),
        1 => TOKENS[below(random, TOKENS.len())].to_owned(),
        _ => format!("{}{}", random.next() >> below(random, 64), TOKENS[below(random, TOKENS.len())]),
    };
    text.extend_from_slice(format!("\n{}={value}\n", option.name).as_bytes());
}

struct Part;

impl IncludeReader for Part {
    fn read(&self, path: &str) -> Result<String, String> {
        match path {
            "part.inc" => Ok(CORPUS[3].to_owned()),
            _ => Err("no such file".to_owned()),
        }
    }
}

fn parse(text: &str) -> Result<JobFile, JobErrors> {
    let env = |name: &str| (name == "NAME").then(|| "4k".to_owned());
    let context = ParseContext { env: &env, include: &Part, ncpus: 4, ..ParseContext::bare("f.fio") };
    JobFile::parse_str(text, &context, &[])
}

/// Checks the properties that the docs of `Job` state.
fn check_job(job: &Job) {
    assert!((1..=IODEPTH_MAX).contains(&job.iodepth));
    assert!((1..=job.iodepth).contains(&job.iodepth_low));
    assert!((1..=job.iodepth).contains(&job.iodepth_batch_submit));
    assert!(job.iodepth_batch_complete_min <= job.iodepth);
    assert!((job.iodepth_batch_complete_min.max(1)..=job.iodepth).contains(&job.iodepth_batch_complete_max));
    assert!((1..=NUMJOBS_MAX).contains(&job.numjobs) && job.loops >= 1 && job.rand_offset_every >= 1);
    assert!(job.ioengine.submit() != Submit::Sync || job.iodepth == 1);
    assert!(!job.time_based || job.runtime_ns.is_some_and(|ns| ns > 0));
    assert!(job.thinktime_spin_ns <= job.thinktime_ns && job.thinktime_blocks >= 1);
    assert!(job.startdelay_min_ns <= job.startdelay_max_ns && job.rwmixread_pct <= 100);
    for dir in Dir::ALL.into_iter().filter(|d| job.rw.has(*d)) {
        let sizes = &job.block_sizes[dir];
        assert!(
            sizes.min_bytes() >= 1 && sizes.min_bytes() <= sizes.max_bytes() && sizes.max_bytes() <= BLOCK_BYTES_MAX
        );
        if let BlockSizes::Split(split) = sizes {
            assert!(split.iter().any(|s| s.pct > 0), "{split:?}");
        }
        assert!(job.blockalign_bytes[dir].is_none_or(|align| align > 0));
        assert!(job.percentage_random[dir] <= 100);
        check_distribution(&job.random_distribution[dir]);
        assert!(job.rate_bytes_per_s[dir].is_none_or(|r| r > 0) && job.rate_iops[dir].is_none_or(|r| r > 0));
        assert!(job.rate_bytes_per_s[dir].is_none() || job.rate_iops[dir].is_none());
    }
    if let Some(Extent::Bytes(size)) = job.size {
        assert!(size >= job.min_block_bytes());
    }
    assert!(job.verify != Some(VerifyKind::Pattern) || job.verify_pattern.is_some());
    let pattern = |p: &Pattern| {
        assert!(!p.bytes.is_empty() && p.bytes.len() <= 512 && p.offset_at.iter().all(|at| at + 8 <= p.bytes.len()));
    };
    job.verify_pattern.iter().for_each(pattern);
    assert!(job.percentile_list.iter().all(|p| *p > 0.0 && *p <= 100.0) && job.percentile_list.is_sorted());
    assert!(job.cpus_allowed.as_ref().is_none_or(|cpus| !cpus.is_empty() && cpus.iter().all(|c| *c < 4)));
    assert!(!job.file_name(1, 0, &|_| false).is_empty());
}

fn check_distribution(distribution: &Distribution) {
    match distribution {
        Distribution::Random => {}
        Distribution::Zipf { theta, .. } => assert!(theta.is_finite() && *theta > 0.0 && *theta != 1.0),
        Distribution::Pareto { h, .. } => assert!(*h > 0.0 && *h < 1.0),
        Distribution::Normal { dev_pct, .. } => assert!(*dev_pct > 0.0 && *dev_pct <= 100.0),
        Distribution::Zoned(zones) => {
            assert_eq!(zones.iter().map(|z| z.access_pct).sum::<u32>(), 100);
            let spans = zones.iter().map(|z| match z.span {
                Extent::Percent(pct) => pct,
                Extent::Bytes(_) => 0,
            });
            assert!([0, 100].contains(&spans.sum::<u32>()));
        }
    }
}

fn check(text: &str) -> bool {
    let parsed = parse(text);
    if text.len().is_multiple_of(8) {
        assert_eq!(parsed, parse(text), "the same text means the same");
    }
    match parsed {
        Ok(file) => {
            assert!(!file.jobs.is_empty());
            file.jobs.iter().for_each(check_job);
            true
        }
        Err(errors) => {
            assert!(!errors.errors.is_empty());
            for error in &errors.errors {
                let message = error.to_string();
                assert!(!message.chars().any(char::is_control), "{message:?}");
                assert!(!error.rule.is_empty());
            }
            false
        }
    }
}

#[test]
fn the_corpus_is_valid() {
    for text in &CORPUS[..3] {
        assert!(check(text), "{}", parse(text).expect_err("refused"));
    }
}

#[test]
fn mutated_files_neither_panic_nor_break_promises() {
    let cases = std::env::var("JOB_FUZZ_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(CASES_DEFAULT);
    let mut random = Rng::new(SEED);
    let mut accepted = 0_u64;
    for case in 0..cases {
        let text = mutate(&mut random);
        let outcome = std::panic::catch_unwind(|| check(&text));
        match outcome {
            Ok(ok) => accepted += u64::from(ok),
            Err(_) => panic!("case {case} of seed {SEED:#x} fails:\n{text:?}"),
        }
    }
    println!("{cases} cases, {accepted} accepted");
    // A mutation engine that breaks every file would test only the error path.
    assert!(accepted * 100 > cases, "only {accepted} of {cases} cases were accepted");
}

#[test]
fn plain_noise_is_refused() {
    let mut random = Rng::new(SEED ^ 1);
    for _ in 0..2_000 {
        let bytes: Vec<u8> = (0..below(&mut random, 300)).map(|_| random.next() as u8).collect();
        check(&String::from_utf8_lossy(&bytes));
    }
}
