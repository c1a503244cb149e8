// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The meaning of a job file: sections, inheritance, includes, variables, and the rules between options.

use std::collections::BTreeMap;

use workload::job::*;

fn try_parse(text: &str) -> Result<JobFile, JobErrors> {
    let context = ParseContext { ncpus: 4, is_target: &|n| n.starts_with("null:"), ..ParseContext::bare("t.fio") };
    JobFile::parse_str(text, &context, &[])
}

fn parse(text: &str) -> JobFile {
    try_parse(text).unwrap_or_else(|e| panic!("{text}\n{e}"))
}

/// The only job of a file with these lines.
fn job(lines: &str) -> Job {
    parse(&format!("[a]\n{lines}\n")).jobs.remove(0)
}

/// The messages about a file with one job of these lines.
fn refusal(lines: &str) -> String {
    try_parse(&format!("[a]\n{lines}\n")).expect_err(lines).to_string()
}

/// The warnings about a file with one job of these lines.
fn warnings(lines: &str) -> String {
    let lines = parse(&format!("[a]\n{lines}\n")).warnings.iter().map(ToString::to_string).collect::<Vec<_>>();
    lines.join("\n")
}

#[test]
fn globals_accumulate_and_reach_jobs_below_only() {
    let file = parse(
        "; comment\n[global]\nbs=8k\n\n[a]\n# another\niodepth=2\nioengine=libaio\n[global]\nrw=randwrite\n[b]\nbs=16k\n[a]\n",
    );
    let seen: Vec<_> = file
        .jobs
        .iter()
        .map(|j| (j.name.as_str(), j.line, j.block_sizes.read.max_bytes(), j.rw.to_string(), j.iodepth))
        .collect();
    let expected = [
        ("a", 5, 8192, "read".to_owned(), 2),
        ("b", 11, 16384, "randwrite".to_owned(), 1),
        ("a", 13, 8192, "randwrite".to_owned(), 1),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn a_name_overrides_the_section_but_not_from_global() {
    assert_eq!(job("name=other").name, "other");
    assert_eq!(parse("[global]\nname=all\n[a]\n").jobs[0].name, "a");
}

#[test]
fn comments_end_a_value_wherever_they_stand() {
    let file = parse("[a]\nbs=8k ; eight\nrw=write\t# all\n  ; whole line\nfilename=a#b\n");
    assert_eq!(file.jobs[0].block_sizes.write.max_bytes(), 8192);
    assert_eq!(file.jobs[0].filename, ["a"]);
    assert_eq!(file.warnings.len(), 1, "the cut inside a word is told: {:?}", file.warnings);
    assert!(file.warnings[0].to_string().contains("t.fio:5: filename=a#b: '#' begins a comment"));
}

#[test]
fn line_ends_and_byte_order_mark_do_not_matter() {
    assert_eq!(parse("\u{feff}[a]\r\nbs=8k\r\n").jobs, parse("[a]\nbs=8k").jobs);
}

#[test]
fn sections_are_refused_where_fio_guesses() {
    for (text, expected) in [
        ("bs=4k\n[a]\n", "t.fio:1: bs=4k: is outside of a [section]; start"),
        ("[a\nbs=4k\n", "t.fio:1: [a: is not a section header; write [name]"),
        ("[a] b\n", "t.fio:1: [a] b: is not a section header"),
        ("[]\n", "t.fio:1: []: is not a section header"),
        ("", "t.fio: the file: has no job section; add"),
        ("[global]\nbs=4k\n", "has no job section"),
    ] {
        let message = try_parse(text).expect_err(text).to_string();
        assert!(message.contains(expected), "{message}");
    }
    let file = parse("[globals]\nbs=8k\n[a]\n");
    assert_eq!(file.jobs[0].block_sizes.read.max_bytes(), 8192, "as in fio");
    assert!(file.warnings[0].to_string().contains("is a global section"));
}

#[test]
fn several_lines_are_told_in_order_one_error_each() {
    let message = try_parse("[global]\nbz=4k\n[a]\niodepth=0\natomic=1\nrw=raed\n[b]\nsize=1x\ntime_based\n")
        .expect_err("five errors")
        .to_string();
    let expected = "\
        t.fio:2: bz=4k: is no option of fio (job 'global'); did you mean 'bs'?\n\
        t.fio:4: iodepth=0: must be 1..=65536 (job 'a')\n\
        t.fio:5: atomic=1: not supported by mqblk (job 'a'); remove the line; mqblk has no atomic writes\n\
        t.fio:6: rw=raed: is no I/O pattern (job 'a'); did you mean 'read'? use one of read, write, trim, randread, \
        randwrite, randtrim, rw, readwrite, randrw, trimwrite, randtrimwrite\n\
        t.fio:8: size=1x: has no unit 'x' (job 'b'); units of data are k, m, g, t, p (also kb, kib, b)\n\
        t.fio:9: time_based: needs a runtime (job 'b'); add runtime=SECONDS, or remove time_based";
    assert_eq!(message, expected);
}

#[test]
fn a_job_may_override_what_its_global_has_unsupported() {
    let file = parse("[global]\nioengine=sg\nfile_append=1\n[a]\nioengine=libaio\nfile_append=0\n");
    assert_eq!(file.jobs[0].ioengine, IoEngine::Libaio);
    let message =
        try_parse("[global]\nioengine=sg\n[a]\nioengine=libaio\n[b]\n[c]\n").expect_err("b has sg").to_string();
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.starts_with("t.fio:2: ioengine=sg: mqblk does not have this engine"));
}

struct Files(BTreeMap<&'static str, &'static str>);

impl IncludeReader for Files {
    fn read(&self, path: &str) -> Result<String, String> {
        self.0.get(path).map(|t| (*t).to_owned()).ok_or_else(|| "no such file".to_owned())
    }
}

fn with_files(text: &str, files: &[(&'static str, &'static str)]) -> Result<JobFile, String> {
    let files = Files(files.iter().copied().collect());
    let context = ParseContext { include: &files, ..ParseContext::bare("jobs/main.fio") };
    JobFile::parse_str(text, &context, &[]).map_err(|e| e.to_string())
}

#[test]
fn includes_are_relative_to_the_including_file() {
    let files =
        [("jobs/sub/a.inc", "bs=8k\ninclude b.inc\n"), ("jobs/sub/b.inc", "rw=write\n"), ("/abs.inc", "size=1m\n")];
    let file = with_files("[a]\ninclude sub/a.inc\ninclude=/abs.inc\n", &files).expect("all found");
    let job = &file.jobs[0];
    assert_eq!((job.block_sizes.write.max_bytes(), job.rw.to_string().as_str()), (8192, "write"));
    assert_eq!(job.size, Some(Extent::Bytes(1 << 20)));
}

#[test]
fn bad_includes_are_told_at_their_line() {
    let cycle = [("jobs/a.inc", "include b.inc\n"), ("jobs/b.inc", "include a.inc\n")];
    let message = with_files("[a]\ninclude a.inc\n", &cycle).expect_err("a circle");
    assert!(message.starts_with("jobs/b.inc:1: include a.inc: includes itself"), "{message}");
    let message = with_files("[a]\ninclude nope\n", &[]).expect_err("missing");
    assert!(message.starts_with("jobs/main.fio:2: include nope: cannot read 'jobs/nope': no such file"), "{message}");
    let message = with_files("[a]\ninclude s.inc\n", &[("jobs/s.inc", "bs=4k\n[b]\n")]).expect_err("a section");
    assert!(message.starts_with("jobs/s.inc:2: [b]: an included file must not have sections"), "{message}");
    let message = with_files("[a]\ninclude s.inc\n", &[("jobs/s.inc", "bs=0\n")]).expect_err("bad option inside");
    assert!(message.starts_with("jobs/s.inc:1: bs=0: must be 1..=1073741824 (job 'a')"), "{message}");
}

/// Two files that include each other twice would double the includes at each level.
#[test]
fn includes_that_multiply_end() {
    struct Endless;
    impl IncludeReader for Endless {
        fn read(&self, path: &str) -> Result<String, String> {
            Ok(format!("include {path}x\ninclude {path}y\n"))
        }
    }
    let context = ParseContext { include: &Endless, ..ParseContext::bare("m") };
    let message = JobFile::parse_str("[a]\ninclude a\n", &context, &[]).expect_err("endless").to_string();
    assert!(message.contains("nested deeper than 16 includes"), "{message}");
    assert!(message.lines().count() <= 101, "{message}");
    let many = format!("[a]\n{}", "include e\n".repeat(257));
    let message = with_files(&many, &[("jobs/e", "")]).expect_err("too many");
    assert!(message.starts_with("jobs/main.fio:258: include e: is include number 257"), "{message}");
}

#[test]
fn variables_and_keywords() {
    let env = |name: &str| (name == "RW").then(|| "randread".to_owned());
    let context = ParseContext { env: &env, ncpus: 8, pagesize_bytes: 16384, ..ParseContext::bare("t.fio") };
    let parse = |text: &str| JobFile::parse_str(text, &context, &[]).map_err(|e| e.to_string());
    let file =
        parse("[a]\nrw=${RW}\nbs=$pagesize\nioengine=libaio\niodepth=2*$ncpus\ndescription=x${NO}y\n").expect("valid");
    let job = &file.jobs[0];
    assert_eq!((job.rw.to_string().as_str(), job.block_sizes.read.max_bytes(), job.iodepth), ("randread", 16384, 16));
    assert_eq!(job.description.as_deref(), Some("xy"));
    assert!(file.warnings[0].to_string().contains("environment variable 'NO' is not set"));
    let message = parse("[a]\nbs=${NO}\n").expect_err("empty");
    assert!(message.contains("bs=${NO}: has an empty value") && message.contains("'NO' is not set"), "{message}");
    let message = parse("[a]\nfilename=${NO}/data\n").expect_err("would name /data");
    assert!(message.contains("uses the environment variable 'NO', which is not set"), "{message}");
}

#[test]
fn arithmetic_needs_parentheses() {
    assert_eq!(job("size=(4*1m+2^10)").size, Some(Extent::Bytes((4 << 20) + 1024)));
    assert_eq!(job("runtime=(2*1s)").runtime_ns, Some(2_000_000_000));
    assert_eq!(job("runtime=(2*500000)").runtime_ns, Some(1_000_000_000), "microseconds in parentheses");
    assert!(refusal("size=4*1m").contains("has no unit '*1m'"));
    assert!(refusal("size=(1/0)").contains("cannot be computed: division by zero"));
}

#[test]
fn overrides_come_last_and_meet_every_job() {
    let set = |pairs: &[(&str, &str)]| {
        let given = |(key, value): &(&str, &str)| Override {
            flag: "--job-set",
            key: (*key).to_owned(),
            value: (*value).to_owned(),
        };
        let pairs: Vec<Override> = pairs.iter().map(given).collect();
        let text = "[global]\nioengine=libaio\n[a]\niodepth=4\n[b]\n";
        JobFile::parse_str(text, &ParseContext::bare("t.fio"), &pairs).map_err(|e| e.to_string())
    };
    let file = set(&[("iodepth", "7"), ("norandommap", "")]).expect("valid");
    assert!(file.jobs.iter().all(|j| j.iodepth == 7 && j.norandommap));
    assert_eq!(set(&[("iodepth", "0")]).expect_err("0"), "--job-set: iodepth=0: must be 1..=65536");
    assert_eq!(
        set(&[("iodept", "1")]).expect_err("typo"),
        "--job-set: iodept=1: is no option of fio; did you mean 'iodepth'?"
    );
}

#[test]
fn block_sizes_per_direction() {
    let sizes = |lines: &str| {
        let b = job(lines).block_sizes;
        [b.read.max_bytes(), b.write.max_bytes(), b.trim.max_bytes()]
    };
    assert_eq!(sizes("bs=256k"), [262144; 3]);
    assert_eq!(sizes("bs=8k,32k"), [8192, 32768, 32768]);
    assert_eq!(sizes("bs=8k,32k,"), [8192, 32768, 4096]);
    assert_eq!(sizes("bs=,8k"), [4096, 8192, 8192]);
    assert_eq!(sizes("bs=,8k,"), [4096, 8192, 4096]);
    assert_eq!(sizes("bs=1k,2k,4k"), [1024, 2048, 4096]);
    assert_eq!(sizes("bs=1k\nbs=,2k,"), [1024, 2048, 1024], "an empty part keeps what was there");
    assert_eq!(sizes("blocksize=1k"), [1024; 3]);
    assert!(refusal("bs=1k,2k,4k,8k").contains("has 4 values"));
    assert!(refusal("bs=,").contains("is empty"));
}

#[test]
fn ranges_and_splits() {
    let read = |lines: &str| job(lines).block_sizes.read;
    assert_eq!(read("bsrange=1k:4k"), BlockSizes::Range { min_bytes: 1024, max_bytes: 4096 });
    assert_eq!(read("bsrange=8k-4k"), BlockSizes::Range { min_bytes: 4096, max_bytes: 8192 }, "fio swaps");
    assert_eq!(job("bsrange=1k-4k/8k-32k").block_sizes.write, BlockSizes::Range { min_bytes: 8192, max_bytes: 32768 });
    let weights = |lines: &str| match read(lines) {
        BlockSizes::Split(list) => list.iter().map(|s| (s.bytes, s.pct)).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(weights("bssplit=4k/10:64k/50:32k/40"), [(4096, 10), (65536, 50), (32768, 40)]);
    assert_eq!(weights("bssplit=4k/50:1k/:32k/"), [(4096, 50), (1024, 25), (32768, 25)]);
    assert_eq!(weights("bssplit=4k/:8k:16k/"), [(4096, 33), (8192, 33), (16384, 34)]);
    assert!(refusal("bssplit=4k/60:8k/50:1k/").contains("sum to 110"));
    for odd in ["bssplit=4k/60:8k/50", "bssplit=4k/10:8k/10"] {
        assert!(warnings(odd).contains("do not sum to 100"), "{odd}");
    }
    assert!(refusal("bsrange=4k").contains("is not a range"));
    let both = "bsrange=1k-4k\nbs=8k";
    assert_eq!(read(both).max_bytes(), 4096, "bsrange wins in fio wherever it stands");
    assert!(warnings(both).contains("t.fio:3: bs=8k: has no effect where bsrange"), "{}", warnings(both));
}

#[test]
fn rw_forms_and_modifiers() {
    for word in
        ["read", "write", "trim", "randread", "randwrite", "randtrim", "rw", "randrw", "trimwrite", "randtrimwrite"]
    {
        assert_eq!(job(&format!("rw={word}")).rw.to_string(), word);
    }
    assert_eq!(job("readwrite=readwrite").rw.to_string(), "rw");
    assert!(refusal("rw=randreadwrite").contains("did you mean"));
    assert_eq!(job("rw=read:-8k").seq_offset_add_bytes, -8192);
    assert_eq!(job("rw=randread:8").rand_offset_every, 8);
    assert_eq!(job("rw=randread:0").rand_offset_every, 1);
    assert_eq!(job("rw=randread:8\nrw_sequencer=identical").rw_sequencer, RwSequencer::Identical);
    assert_eq!(job("rw=randread:8\nrw=read").seq_offset_add_bytes, 0, "the last rw replaces the modifier too");
    assert!(refusal("rw=randread:-1").contains("has a modifier outside 0..="));
    assert_eq!(job("rw=read:100").seq_offset_add_bytes, 100);
    let (both, trims) = (job("rw=rw").rw, job("rw=trimwrite").rw);
    assert!(both.has(Dir::Read) && both.has(Dir::Write) && !both.has(Dir::Trim));
    assert!(!trims.has(Dir::Read) && trims.has(Dir::Write) && trims.has(Dir::Trim));
}

#[test]
fn depths_follow_fios_rules() {
    let depths = |lines: &str| {
        let j = job(&format!("ioengine=libaio\n{lines}"));
        (j.iodepth, j.iodepth_low, j.iodepth_batch_submit, j.iodepth_batch_complete_min, j.iodepth_batch_complete_max)
    };
    assert_eq!(depths(""), (1, 1, 1, 1, 1));
    assert_eq!(depths("iodepth=16"), (16, 16, 1, 1, 1));
    assert_eq!(depths("iodepth=16\niodepth_batch=0\niodepth_low=4"), (16, 4, 16, 1, 1));
    assert_eq!(depths("iodepth=16\niodepth_batch_complete=8"), (16, 16, 1, 8, 8));
    assert_eq!(depths("iodepth=16\niodepth_batch_complete_min=0\niodepth_batch_complete_max=16"), (16, 16, 1, 0, 16));
    assert_eq!(depths("iodepth=16\niodepth_batch_complete_min=0"), (16, 16, 1, 0, 1));
    assert_eq!(depths("iodepth=4\niodepth_batch=8\niodepth_low=9\niodepth_batch_complete=7"), (4, 4, 4, 4, 4));
    assert!(warnings("ioengine=libaio\niodepth=4\niodepth_batch=8").contains("is limited to iodepth=4"));
    assert!(
        refusal("ioengine=libaio\niodepth=9\niodepth_batch_complete_min=4\niodepth_batch_complete_max=2")
            .contains("has a maximum below the minimum")
    );
    let sync = "iodepth=8\niodepth_batch=4";
    assert_eq!((job(sync).iodepth, job(sync).iodepth_batch_submit), (1, 1));
    assert!(warnings(sync).contains("t.fio:2: iodepth=8: psync has one I/O in flight"), "{}", warnings(sync));
    assert_eq!(job("ioengine=null\niodepth=8").iodepth, 8);
}

#[test]
fn engines_map_to_ways_of_submitting() {
    for (name, submit) in [
        ("libaio", Submit::Async),
        ("io_uring", Submit::Async),
        ("posixaio", Submit::Async),
        ("sync", Submit::Sync),
        ("psync", Submit::Sync),
        ("vsync", Submit::Sync),
        ("pvsync", Submit::Sync),
        ("pvsync2", Submit::Sync),
        ("null", Submit::Null),
    ] {
        let engine = job(&format!("ioengine={name}")).ioengine;
        assert_eq!((engine.submit(), engine.name()), (submit, name));
    }
    assert!(refusal("ioengine=external:x.so").contains("mqblk does not have this engine"));
    assert!(refusal("ioengine=libiao").contains("is no I/O engine (job 'a'); did you mean 'libaio'?"));
}

#[test]
fn times_rates_and_pauses() {
    let j = job("runtime=10m\nramp_time=500ms\nstartdelay=5-1\ntime_based\nthinktime=20\nthinktime_spin=1ms\nloops=3");
    assert_eq!((j.runtime_ns, j.ramp_time_ns), (Some(600_000_000_000), 500_000_000));
    assert_eq!((j.startdelay_min_ns, j.startdelay_max_ns), (1_000_000_000, 5_000_000_000));
    assert_eq!((j.thinktime_ns, j.thinktime_spin_ns, j.loops), (20_000, 20_000, 3));
    let rates = job("rw=rw\nrate=1m,500k").rate_bytes_per_s;
    assert_eq!((rates.read, rates.write, rates.trim), (Some(1 << 20), Some(512_000), Some(512_000)));
    assert_eq!(job("rate=500k,").rate_bytes_per_s, PerDir { read: Some(512_000), write: None, trim: None });
    assert_eq!(job("rate=1m\nrate=0\nrate_iops=10").rate_iops.read, Some(10));
    assert!(refusal("rate=1m\nrate_iops=10").contains("t.fio:3: rate_iops=10: cannot be used together"));
    assert!(refusal("runtime=1.5").contains("must be a whole number (job 'a'); use a smaller unit"));
    assert!(refusal("runtime=5x").contains("has no time unit 'x'"));
    assert!(refusal("time_based\nruntime=0").contains("time_based: needs a runtime"));
    assert!(warnings("thinktime_blocks=4").contains("has no effect without thinktime"));
    assert!(warnings("rate_process=poisson").contains("has no effect without rate"));
}

#[test]
fn distributions() {
    let read = |value: &str| job(&format!("rw=randread\nrandom_distribution={value}")).random_distribution.read;
    assert_eq!(read("zipf:1.2:0.25"), Distribution::Zipf { theta: 1.2, center: Some(0.25) });
    assert_eq!(read("zipf"), Distribution::Zipf { theta: 1.1, center: None });
    assert_eq!(read("pareto:0.3"), Distribution::Pareto { h: 0.3, center: None });
    assert_eq!(read("normal:20"), Distribution::Normal { dev_pct: 20.0, center: None });
    let zones = |value: &str| match read(value) {
        Distribution::Zoned(zones) => zones.iter().map(|z| (z.access_pct, z.span)).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let pct = Extent::Percent;
    assert_eq!(zones("zoned:60/10:30/20:8/30:2/40"), [(60, pct(10)), (30, pct(20)), (8, pct(30)), (2, pct(40))]);
    assert_eq!(zones("zoned:50/5:30/15:20/"), [(50, pct(5)), (30, pct(15)), (20, pct(80))]);
    assert_eq!(zones("zoned_abs:60/20g:40/1g"), [(60, Extent::Bytes(20 << 30)), (40, Extent::Bytes(1 << 30))]);
    assert!(job("rw=randread\nrandom_distribution=zipf:1.2").has_no_map(), "fio turns the random map off");
    for (value, part) in [
        ("zipf:1", "theta out of range"),
        ("zipf:0", "theta out of range"),
        ("pareto:1", "power out of range"),
        ("normal:101", "needs a deviation"),
        ("normal", "needs a deviation"),
        ("zipf:1.2:2", "has center 2"),
        ("zoned:60/10:30/20", "sum to 90"),
        ("zoned:50/50", "sum to 50"),
        ("zoned", "has no zones"),
        ("zoned:50/100:50/", "accesses to an empty zone"),
        ("zipff:1", "did you mean 'zipf'"),
        ("zipf:nan", "is no number"),
        ("zoned:100/100,0", "without '/'"),
    ] {
        let message = refusal(&format!("rw=randread\nrandom_distribution={value}"));
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn verification() {
    assert_eq!(job("rw=write\nverify=crc32c-intel").verify, Some(VerifyKind::Crc32c));
    let j = job("rw=write\nverify=md5\nverify_backlog=16\ndo_verify=0\nverify_fatal=1");
    assert_eq!((j.verify_backlog, j.verify_backlog_batch, j.do_verify, j.verify_fatal), (16, 16, false, true));
    assert!(j.refill_buffers, "checked writes do not reuse a buffer");
    let j = job("rw=write\nverify=pattern\nverify_pattern=0xff%o\"ab\"");
    let pattern = j.verify_pattern.expect("given");
    assert_eq!((pattern.bytes.len(), pattern.offset_at), (11, vec![1]));
    assert_eq!(job("rw=trim\nverify=md5").verify, None);
    assert!(refusal("rw=write\nverify=pattern").contains("needs a pattern"));
    assert!(refusal("rw=write\nverify_pattern=1").contains("add verify=pattern"));
    assert_eq!(job("rw=write\nverify=sha3-384").verify, Some(VerifyKind::Sha3_384));
    assert!(refusal("verify=sha2").contains("is no check"));
    let help = find_option("verify").expect("an option").help;
    assert!(VerifyKind::ALL.iter().all(|(_, name)| help.contains(name)), "{help}");
    for (lines, why) in [
        ("rw=read\nverify=md5\ntrim_backlog=4", "in a job that does not write"),
        ("rw=write\ntrim_backlog=4", "without verify; add verify=crc32c"),
        ("rw=write\nverify=md5\ndo_verify=0\ntrim_backlog=4", "with do_verify=0"),
        ("rw=write\nverify=md5", "without trim_backlog"),
    ] {
        let warned = warnings(&format!("{lines}\ntrim_percentage=10"));
        assert!(warned.contains(&format!("trim_percentage=10: has no effect {why}")), "{warned}");
    }
    let trims = "rw=write\nverify=md5\ntrim_percentage=10\ntrim_backlog=4";
    assert_eq!(warnings(trims), "");
    assert!(refusal(&format!("{trims}\nverify_only=1")).contains("does not work with trim_percentage"));
    let random = "rw=randwrite\nverify=md5\nnorandommap\nioengine=libaio\niodepth=4";
    assert!(warnings(random).contains("norandommap: with verify and iodepth above 1"), "{}", warnings(random));
    assert!(refusal(&format!("{random}\nbsrange=1k-4k")).contains("overlap in part"));
    assert_eq!(warnings("rw=write\nverify=md5\nnorandommap"), "", "sequential writes do not repeat");
}

#[test]
fn buffers() {
    assert_eq!(job("").buffer_fill, BufferFill::Random);
    assert_eq!(job("zero_buffers").buffer_fill, BufferFill::Zero);
    let both = "buffer_pattern=0x12\nzero_buffers";
    assert!(matches!(job(both).buffer_fill, BufferFill::Pattern(p) if p.bytes == [0x12]), "as fio writes it");
    assert!(warnings(both).contains("zero_buffers: has no effect"));
    assert!(refusal("buffer_pattern='f'").contains("names a pattern file"));
}

#[test]
fn regions_are_checked_without_a_device() {
    assert_eq!(job("size=50%\noffset=20%").size, Some(Extent::Percent(50)));
    assert_eq!(Extent::Percent(50).of(u64::MAX), u64::MAX / 2);
    assert_eq!(Extent::Percent(33).of(1000), 330);
    assert_eq!(job("size=0").size, None);
    assert!(refusal("size=101%").contains("a percentage must be a whole number 0..=100"));
    assert!(refusal("size=50.5%").contains("a percentage must be a whole number"));
    assert!(refusal("size=2k").contains("is smaller than the smallest block, 4096 bytes"));
    assert!(refusal("size=8191p\noffset=8191p").contains("beyond the largest file offset"));
    assert!(refusal("size=1m\noffset_increment=8p\nnumjobs=1024\noffset=4096p").contains("beyond the largest file"));
    assert!(refusal("offset=1m\nfilesize=1m").contains("starts beyond the end of the file"));
    assert_eq!(job("filesize=1m-2m").filesize_range, Some((1 << 20, 2 << 20)));
    assert_eq!(job("filesize=1m-1m").filesize_bytes, Some(1 << 20));
    assert_eq!((job("bs=1000").min_block_bytes(), job("offset=100").offset), (1000, Extent::Bytes(100)));
    assert!(refusal("workload=oltp\nsize=1m\nbs=1000").contains("must be whole sectors of 512 bytes"));
    assert!(refusal("size=99999999999999999999").contains("is too large"));
    assert!(refusal(&format!("size={}", "9".repeat(60))).contains("is too large"));
    assert!(refusal("size=-1").contains("must be at least 0"));
}

#[test]
fn units_that_surprise_are_told() {
    assert_eq!(job("size=4000\nbs=512").size, Some(Extent::Bytes(4000)));
    assert_eq!(job("size=8kib\nbs=512").size, Some(Extent::Bytes(8000)), "fio's rule under kb_base=1024");
    assert!(warnings("size=8kib\nbs=512").contains("'kib' counts in powers of 1000 under kb_base=1024"));
    assert_eq!(job("size=8kib\nkb_base=1000").size, Some(Extent::Bytes(8192)), "kb_base acts wherever it stands");
    assert_eq!(warnings("size=8kib\nkb_base=1000"), "");
    assert_eq!(job("size=8ki").size, Some(Extent::Bytes(8192)));
    assert!(warnings("size=8ki").contains("though its manual says otherwise"));
    assert_eq!(warnings("filename=4kib\ndescription=4kib"), "");
}

#[test]
fn names_of_files() {
    let targets = |name: &str| name.starts_with("null:");
    let name = |lines: &str, n: u32| job(lines).file_name(n, 0, &targets);
    assert_eq!(name("", 0), "a.0.0");
    assert_eq!(name("", 3), "a.3.0");
    assert_eq!(name("filename_format=f.$jobname-$jobnum/$filenum", 3), "f.a-3/0");
    assert_eq!(name("directory=/x:/y/\nnumjobs=2", 0), "/x/a.0.0");
    assert_eq!(name("directory=/x:/y/\nnumjobs=2", 1), "/y/a.1.0");
    assert_eq!(name("directory=/x:/y\nfilename=f", 1), "/x/f", "a given name is shared, in the first directory");
    assert_eq!(name("directory=d\\:1\nfilename=f\\:1", 1), "d:1/f:1");
    assert_eq!(name("directory=/x/d\nfilename=/x/absx", 1), "/x/d/x/absx", "as fio does");
    assert_eq!(name("directory=/x\nfilename=null:size=1g", 1), "null:size=1g");
    assert!(refusal("filename=-").contains("is standard input or output"));
    assert!(refusal("directory=a::b").contains("empty directory name"));
}

/// What fio does with these options, as its logs show.
#[test]
fn names_of_several_files() {
    let targets = |name: &str| name.starts_with("null:");
    let names = |text: &str, n: u32| {
        let file = parse(text);
        file.jobs.last().expect("a job").file_names(n, &targets).join(" ")
    };
    assert_eq!(names("[a]\nnrfiles=2\n", 3), "a.3.0 a.3.1");
    assert_eq!(names("[a]\nnrfiles=2\ndirectory=x:y\n", 1), "y/a.1.0 y/a.1.1");
    assert_eq!(names("[a]\nfilename=a:b\\:c:/d\n", 0), "a b:c /d");
    assert_eq!(names("[a]\nfilename=::a:\nnrfiles=9\n", 0), "a");
    assert_eq!(names("[a]\nfilename=null:size=1g\nfilename=b\n", 0), "null:size=1g b");
    assert_eq!(names("[a]\nfilename=null\\:size=1g:b\n", 0), "null:size=1g b", "a target in a list is escaped");
    assert_eq!(names("[global]\nfilename=a\n[j]\nfilename=b\nfilename=c:a\n", 0), "a b c a", "names add up");
    assert_eq!(names("[a]\nfilename=a:b:c\nnrfiles=2\n", 0), "a b c", "names count more than nrfiles");
    assert_eq!(names("[global]\nfilename=a:b:c\n[j]\nnrfiles=2\n", 0), "a b");
    assert_eq!(names("[global]\nnrfiles=2\n[j]\nfilename=a:b:c\n", 0), "a b c");
    let files_below: &dyn Fn(&str) -> Result<Vec<String>, String> = &|dir| match dir {
        "no" => Err("cannot be read".to_owned()),
        dir => Ok(vec![format!("{dir}/1"), format!("{dir}/2:3")]),
    };
    let context = ParseContext { files_below, ..ParseContext::bare("t.fio") };
    let below = |text: &str| JobFile::parse_str(text, &context, &[]);
    let found = below("[a]\nfilename=c\nopendir=dir\n").expect("a directory");
    assert_eq!(found.jobs[0].file_names(0, &targets).join(" "), "dir/1 dir/2:3 c");
    let message = below("[a]\nopendir=no\n").expect_err("no directory").to_string();
    assert!(message.starts_with("t.fio:2: opendir=no: cannot be read"), "{message}");
    assert!(refusal("file_service_type=zip").contains("did you mean 'zipf'?"));
    assert!(refusal("file_service_type=random:x").contains("has a number of I/Os that is none"));
    assert!(refusal("file_service_type=zipf:1").contains("has a theta out of range"));
    assert!(refusal("file_service_type=gauss:1:2").contains("the center must be 0..=1"));
    assert!(refusal("filename=:").contains("names no file"));
    assert!(refusal("nrfiles=70000").contains("must be"));
}

#[test]
fn waiting_and_groups() {
    let file = parse("[a]\n[b]\nwait_for=a\nstonewall\nnew_group=1\ngroup_reporting\n");
    let b = &file.jobs[1];
    assert_eq!(b.wait_for.as_deref(), Some("a"));
    assert!(b.stonewall && b.new_group && b.group_reporting);
    assert!(!job("stonewall=0").stonewall);
    assert!(try_parse("[a]\nwait_for=b\n[b]\n").expect_err("forward").to_string().contains("names no job above"));
    assert!(try_parse("[a]\n[a]\n[b]\nwait_for=a\n").expect_err("two").to_string().contains("names 2 jobs"));
    let message = try_parse("[a]\nnumjobs=1024\n[b]\n").expect_err("too many").to_string();
    assert!(message.starts_with("t.fio:3: [b]: brings the file above 1024 instances"), "{message}");
}

#[test]
fn cpus_and_priorities() {
    assert_eq!(job("cpus_allowed=3,0-1,1").cpus_allowed, Some(vec![0, 1, 3]));
    assert_eq!(job("cpumask=0x5").cpus_allowed, Some(vec![0, 2]));
    assert!(refusal("cpus_allowed=0-4").contains("names CPU 4, but this machine has CPUs 0..=3"));
    assert!(refusal("cpus_allowed=0-4000000000").contains("for a CPU number"));
    assert!(refusal("cpus_allowed=2-1").contains("smaller number first"));
    assert!(refusal("cpumask=0").contains("names no CPU"));
    let j = job("prio=3\nprioclass=2\ncpus_allowed_policy=split");
    assert_eq!((j.prio, j.prioclass, j.cpus_allowed_policy), (Some(3), PrioClass::BestEffort, CpusPolicy::Split));
}

#[test]
fn percentiles() {
    assert_eq!(job("percentile_list=99.9:50:50").percentile_list, [50.0, 99.9]);
    for bad in ["0", "101", "x", "50,60", "nan", ""] {
        refusal(&format!("percentile_list={bad}"));
    }
    let many = (1..=21).map(|n| n.to_string()).collect::<Vec<_>>().join(":");
    assert!(refusal(&format!("percentile_list={many}")).contains("has 21 percentiles"));
}

#[test]
fn logs_have_fio_s_names_and_windows() {
    let names = |lines: &str| job(lines).log_files(4).into_iter().map(|(_, name)| name).collect::<Vec<_>>();
    assert_eq!(names("log_avg_msec=10"), [""; 0]);
    assert_eq!(
        names("write_lat_log=x/y\nwrite_hist_log=\nwrite_bw_log\nwrite_iops_log=rate"),
        ["x/y_lat.4.log", "x/y_slat.4.log", "x/y_clat.4.log", "a_clat_hist.4.log", "a_bw.4.log", "rate_iops.4.log"]
    );
    assert_eq!(names("write_bw_log\nper_job_logs=0"), ["a_bw.log"]);
    assert_eq!(names("write_lat_log\ndisable_slat=1\ndisable_lat=1"), ["a_clat.4.log"]);
    assert_eq!(names("write_lat_log\ngtod_reduce=1\ndisable_lat=0"), ["a_lat.4.log"]);
    let window = |lines: &str| job(lines).logs.bw;
    let of = |log: RateLog| (log.each_io, log.interval_ms);
    assert_eq!(of(window("log_avg_msec=100")), (false, 500), "no log");
    assert_eq!(of(window("write_bw_log")), (true, 500));
    assert_eq!(of(window("write_bw_log\nlog_avg_msec=100")), (false, 100));
    assert_eq!(of(window("write_bw_log\nlog_avg_msec=100\nbwavgtime=500")), (false, 500));
    assert_eq!(of(window("write_bw_log\nbwavgtime=200")), (true, 200));
    assert_eq!(of(window("write_bw_log\nlog_avg_msec=100\nbwavgtime=0")), (true, 500));
    assert!(refusal("log_hist_coarseness=7").contains("0..=6"));
}

#[test]
fn flags_and_booleans() {
    assert!(job("time_based\nruntime=1").time_based);
    assert!(!job("norandommap=0").norandommap);
    assert!(refusal("direct").contains("needs a value (job 'a'); write it as option=0|1"));
    assert!(refusal("direct=yes").contains("must be 0 or 1"));
    assert!(refusal("thread=").contains("has an empty value"));
    assert!(job("direct=0\nbuffered=0").direct, "the last of the two wins");
    assert_eq!(warnings("thread\ncreate_serialize=0\nlog_avg_msec=10"), "");
    assert_eq!(warnings("gtod_cpu=1\nclocksource=cpu\ngtod_reduce=1"), "");
    assert!(
        refusal("log_avg_msec=x").contains("is not a whole number"),
        "an option without effect must still be well formed"
    );
}

/// A message must not contain a terminal's control characters or a whole file.
#[test]
fn messages_quote_safely() {
    let message = refusal(&format!("\u{1b}[31m{}=1", "x".repeat(10_000)));
    assert!(!message.contains('\u{1b}') && message.len() < 300, "{message}");
}

/// A disk image given by mistake: every line is wrong, but the message is still short.
#[test]
fn a_file_that_is_no_job_is_told_briefly() {
    for text in ["garbage\n".repeat(100_000), format!("[a]\n{}", "garbage\n".repeat(100_000)), "[\n".repeat(100_000)] {
        let errors = try_parse(&text).expect_err("garbage").errors;
        assert_eq!(errors.len(), 101);
        assert!(
            errors[100].to_string().starts_with("t.fio: the file: has more errors than these 100; fix these first")
        );
    }
}

#[test]
fn sections_that_are_not_asked_for_are_not_checked() {
    let text = "[global]\nsize=1m\n[good]\nbs=8k\n[bad]\nioengine=rbd\niodepth=0\n[last]\nstonewall\n";
    let only = |names: &[&str]| {
        let sections: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let file = JobFile::parse_str(text, &ParseContext { sections: &sections, ..ParseContext::bare("t.fio") }, &[]);
        file.map(|f| f.jobs.into_iter().map(|j| j.name).collect::<Vec<_>>()).map_err(|e| e.to_string())
    };
    assert_eq!(only(&["last", "good"]), Ok(vec!["good".to_owned(), "last".to_owned()]), "in the order of the file");
    assert!(only(&[]).expect_err("all").contains("iodepth=0"));
    assert!(only(&["bad"]).expect_err("bad").contains("iodepth=0"));
    assert_eq!(only(&["x"]), Err("--section: x: t.fio has no such job; it has good, bad, last".to_owned()));
}

/// `fio_random.rs` compares the I/Os of such jobs with fio's.
#[test]
fn a_map_over_sizes_that_differ_is_warned_of() {
    let warned = |lines: &str| warnings(lines).contains("would begin past the end");
    assert!(warned("rw=randwrite\nbs=,8k") && warned("rw=randrw\nbssplit=4k/50:8k/50,16k/100"));
    assert!(
        warned("rw=randwrite\nbs=4k\nba=64k\nrandom_distribution=zipf")
            && warned("rw=randrw\nbs=4k,8k\nnorandommap\nrandom_generator=lfsr")
    );
    for lines in ["rw=randwrite\nbs=4k,,8k", "rw=randrw\nbs=4k,8k\nnorandommap", "rw=write\nbs=,8k"] {
        assert!(!warned(lines), "{lines}");
    }
}

#[test]
fn a_stonewall_of_all_jobs_stays() {
    let context = ParseContext::bare("t.fio");
    let file = JobFile::parse_str("[global]\nstonewall\n[a]\n[b]\n[c]\n", &context, &[]).expect("valid");
    assert!(file.jobs.iter().all(|j| j.stonewall));
    let files = [("1.fio", "[global]\nbs=8k\n[a]\n"), ("2.fio", "[b]\n[c]\n")];
    let only = ["a".to_owned(), "c".to_owned()];
    let context = ParseContext { sections: &only, ..context };
    let file = JobFile::parse(&CommandLine::default(), &files, &context, &[]).expect("valid");
    let of_c = &file.jobs[1];
    assert!(
        of_c.stonewall && of_c.block_sizes.read == BlockSizes::Fixed(4096),
        "a file begins although its first job is left out"
    );
}

#[test]
fn either_of_three_options_makes_a_job_repeat() {
    let repeats = |lines: &str| job(lines).seeds(1, 1) == job(lines).seeds(2, 1);
    for lines in ["", "allrandrepeat=0", "randrepeat=0\nallrandrepeat=1", "randrepeat=0\nrandseed=5"] {
        assert!(repeats(lines), "{lines}");
    }
    assert!(!repeats("randrepeat=0") && !repeats("randrepeat=0\nallrandrepeat=0"));
    assert_eq!(job("randseed=0x89").seeds(1, 1), job("").seeds(1, 1), "fio's default seed");
}

#[test]
fn a_transaction_loop_says_what_it_does_and_nothing_else() {
    let oltp = "workload=oltp\nusers=80\nthreads_per_user=2\nhot_pct=6\nhot_size=1g\nbs=8k\nruntime=30\n\
        redo_filename=redo\ngroup_commit_us=200\nredo_bytes=16k\nwrites_per_tx=8\nthinktime=5ms\n";
    let parse = |text: &str| JobFile::parse_str(text, &ParseContext::bare("t.fio"), &[]);
    let job = parse(&format!("[db]\n{oltp}")).expect("a valid job").jobs.remove(0);
    let o = job.oltp.clone().expect("a transaction loop");
    assert_eq!((o.users, o.sessions(), o.reads_per_tx, o.update_pct, o.changes()), (80, 160, 64, 25, 8));
    assert_eq!((o.hot_pct, o.hot_size, o.group_commit_ns, o.redo_bytes), (6, Extent::Bytes(1 << 30), 200_000, 16384));
    assert_eq!((job.rw.to_string().as_str(), job.iodepth, job.thinktime_ns), ("randrw", 160 + 32 + 1, 5_000_000));
    assert_eq!(job.redo_file_name(0, &|_| false).as_deref(), Some("redo"));
    let refused = |more: &str| parse(&format!("[db]\n{more}")).expect_err(more).to_string();
    for (more, message) in [
        ("users=8\nrw=read\n", "t.fio:2: users=8: has an effect only with workload=oltp (job 'db'); add workload=oltp"),
        (
            "workload=oltp\n",
            "t.fio:2: workload=oltp: has no end condition (job 'db'); add runtime=SECONDS or transactions=N",
        ),
        (
            "workload=oltp\ntransactions=1\niodepth=4\n",
            "t.fio:4: iodepth=4: has no effect with workload=oltp (job 'db')",
        ),
        ("workload=oltp\ntransactions=1\nbs=4k,8k\n", "t.fio:4: bs=4k,8k: must be one size"),
        ("workload=oltp\ntransactions=1\nusers=0\n", "t.fio:4: users=0: must be 1..=4096"),
        ("workload=oltp\ntransactions=1\nupdate_pct=101\n", "update_pct=101: must be 0..=100"),
        ("workload=oltp\ntransactions=1\nredo_block_size=1000\n", "must be 512, 1024, 2048 or 4096"),
        (
            "workload=oltp\ntransactions=1\nusers=4096\nthreads_per_user=64\n",
            "make 262144 sessions: must be at most 16384 per instance",
        ),
        ("workload=oltp\ntransactions=1\nreads_per_tx=4\nwrites_per_tx=5\n", "is more than reads_per_tx=4"),
        ("workload=oltp\ntransactions=1\ndirty_max=10\n", "cannot hold the 64 blocks that a transaction changes"),
        ("workload=oltp\ntransactions=1\nredo_filename=a:b\n", "redo_filename=a:b: names several files"),
        ("workload=slob\n", "workload=slob: must be one of io, oltp"),
        ("update_pc=3\n", "did you mean 'update_pct'?"),
    ] {
        assert!(refused(more).contains(message), "{more}{}", refused(more));
    }
}
