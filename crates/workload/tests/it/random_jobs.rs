// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random job files for comparisons with fio, from a seed. The tests of the workload and of the fio engine share this generator.
//!
//! The options of this file take part: modes and their modifiers, sizes and grids by direction, region, passes, limits, maps,
//! generators, distributions, strided zones, seeds, mixes, depths, batches, flushes, rates, verification and several files.
//! What differs from fio on purpose is left out, each with its reason; `docs/fio-differences.md` says the same to users.

use std::fmt::Write as _;
use std::str::FromStr;

const KIB: u64 = 1 << 10;

/// Jobs of a deep test; `MQBLK_FIO_JOBS` asks for more.
pub fn deep_count(otherwise: usize) -> usize {
    from_environment("MQBLK_FIO_JOBS").unwrap_or(otherwise)
}

/// The first seed of a deep test. As for the property tests, another one explores.
pub fn deep_seed() -> u64 {
    from_environment("PROPTEST_RNG_SEED").unwrap_or(1_000_000)
}

fn from_environment<T: FromStr>(variable: &str) -> Option<T> {
    std::env::var(variable).ok()?.parse().ok()
}

/// A job as text, and the number of its files. They are exactly as large as the job asks for. In a longer one fio lets the
/// last block of a fixed size pass the end of `size`; a job of mqblk never leaves its region.
pub struct Case {
    /// fio's engine for it. The null engine logs an I/O again when its queue is full, and no file system here takes trims of
    /// every size.
    pub engine: &'static str,
    /// Its other options, one in each line.
    pub text: String,
    pub files: usize,
}

impl Case {
    /// The job drawn from a seed. `bytes`: its sizes, offsets and grids need not be whole sectors.
    pub fn new(seed: u64, bytes: bool) -> Case {
        case(&mut Draw(seed, bytes))
    }

    /// The names of the job's files. Skewed distributions depend on the name, long ones in another way than short ones.
    pub fn file_names(&self, n: usize) -> Vec<String> {
        let name = if n.is_multiple_of(2) { format!("f{n}") } else { format!("file-with-a-long-name-{n}") };
        (0..self.files).map(|file| format!("{name}.{file}")).collect()
    }

    /// Lines for fio only. It draws the seeds of the data again as it reads back, in another order if blocks are read by offset.
    pub fn fio_only(&self) -> &'static str {
        if self.text.contains("verify=") { "continue_on_error=verify\n" } else { "" }
    }

    /// The job as section `j{n}` of a job file.
    pub fn section(&self, n: usize) -> String {
        format!("[j{n}]\nfilename={}\nioengine={}\n{}", self.file_names(n).join(":"), self.engine, self.text)
    }
}

/// Returns the run that has to come before that of a job file, if a job checks what an earlier run wrote.
pub fn earlier_run(text: &str) -> Option<String> {
    const VERIFY_ONLY: &str = "verify_only=1\n";
    let lines = text.lines().filter(|line| !line.starts_with("write_iolog="));
    let lines = || lines.map(|line| format!("{line}\n")).collect::<String>();
    text.contains(VERIFY_ONLY).then(|| lines().replace(VERIFY_ONLY, "do_verify=0\n"))
}

/// Reads `total_ios` and `io_bytes` of read, write and trim of the job `j{n}` from fio's JSON.
pub fn totals(json: &str, n: usize) -> [(u64, u64); 3] {
    let section = json.split(&format!("\"jobname\" : \"j{n}\"")).nth(1).expect("the job is in the results");
    ["\"read\" : {", "\"write\" : {", "\"trim\" : {"].map(|dir| {
        let part = section.split(dir).nth(1).expect("each direction is listed");
        let number = |key: &str| {
            let text = part.split(&format!("\"{key}\" : ")).nth(1).expect("the key is listed");
            text.split([',', '\n']).next().and_then(|n| n.trim().parse().ok()).expect("a number")
        };
        (number("total_ios"), number("io_bytes"))
    })
}

/// SplitMix64, and whether the job is in bytes: its sizes, offsets and grids need not be whole sectors.
struct Draw(u64, bool);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Up to a sector more, in a job in bytes.
    fn rest(&mut self) -> u64 {
        if self.1 { self.below(512) } else { 0 }
    }

    /// One value for all directions, or one for each.
    fn per_dir(&mut self, value: impl Fn(&mut Draw) -> String) -> String {
        match self.below(4) {
            0 => format!("{},{}", value(self), value(self)),
            1 => format!("{},{},{}", value(self), value(self), value(self)),
            _ => value(self),
        }
    }

    fn block(&mut self) -> u64 {
        if self.1 && self.one_in(2) {
            return self.pick(&[513, 700, 1000, 2300, 4095, 5000, 9999, 65537]);
        }
        self.pick(&[512, 1024, 1536, 2048, 4096, 4096, 4096, 8192, 12288, 16384, 65536])
    }
}

fn case(r: &mut Draw) -> Case {
    let mut job = String::new();
    let mut line = |text: String| writeln!(job, "{text}").expect("a String takes all");
    let rw = r.pick(&[
        "read",
        "write",
        "rw",
        "randread",
        "randwrite",
        "randrw",
        "randrw",
        "trim",
        "randtrim",
        "trimwrite",
        "randtrimwrite",
    ]);
    let random = rw.starts_with("rand");
    let files = if r.one_in(3) { 2 + r.below(4) } else { 1 };
    let modifier = match (random, r.below(6)) {
        (true, 0) => format!(":{}", r.pick(&[1, 2, 3, 8])),
        // fio 3.33 may trim for ever when it goes backwards.
        (false, 0) if r.1 && rw != "trimwrite" => format!(":{}", r.pick(&[16, 100, 5000, -700])),
        (false, 0) if rw == "trimwrite" => format!(":{}", r.pick(&[512, 4096, 8192, 65536])),
        (false, 0) => format!(":{}", r.pick(&[512, 4096, 8192, 65536, -4096, -16384])),
        _ => String::new(),
    };
    line(format!("rw={rw}{modifier}"));
    let depth = if rw.contains("trim") { 1 } else { r.pick(&[1, 1, 2, 4, 8, 32]) };
    let engine = if rw.contains("trim") { "null" } else { "libaio" };
    line(format!("iodepth={depth}"));
    if depth > 1 && r.one_in(2) {
        line(format!("iodepth_batch={}", r.below(depth + 2)));
        line(format!("iodepth_batch_complete_min={}", r.below(depth + 1)));
        line(format!("iodepth_low={}", r.below(depth) + 1));
    }
    let skewed = random && r.one_in(4);
    if files > 1 {
        // fio never ends if no file that starts over has room, as backwards in a file that does not begin at 0.
        let may_restart = depth == 1 && !rw.contains("trim") && !modifier.contains('-');
        service(r, depth == 1, may_restart, &mut line);
    }
    let unit = sizes(r, skewed, files > 1, &mut line) * if skewed { files } else { 1 };
    // fio 3.33 writes in another place than it trimmed if the region does not begin at 0.
    let may_begin_later = rw != "randtrimwrite";
    // If a pass ends where a sequential I/O is due, the map depends on the order of completions.
    let may_repeat = depth == 1 || !random || modifier.is_empty();
    let one_pass = amounts(r, unit, may_begin_later, may_repeat, &mut line);
    if random {
        randomness(r, skewed, files > 1, depth == 1 || one_pass, &mut line);
    }
    if rw.contains("rw") {
        let share = r.below(101);
        line(format!("{}={share}", r.pick(&["rwmixread", "rwmixwrite"])));
    }
    // fio 3.33 flushes again after each read of a mixed job and at the start of a pass, never in trimwrite, and in another
    // order with several in flight.
    if rw.ends_with("write") && !rw.contains("trim") && depth == 1 && one_pass && r.one_in(4) {
        line(format!("{}={}", r.pick(&["fsync", "fdatasync"]), r.pick(&[1, 3, 32])));
    } else if !rw.contains("rw") && r.one_in(6) {
        // In a mixed job the direction depends on time, and fio 3.33 crashes if a flush follows rate_process=poisson.
        rate(r, &mut line);
    }
    checks_and_zones(r, rw, files > 1, depth == 1, one_pass, &mut job);
    Case { engine, text: job, files: files as usize }
}

/// Verification and strided zones. `at_once`: an I/O completes before the next one is issued.
fn checks_and_zones(r: &mut Draw, rw: &str, several: bool, at_once: bool, one_pass: bool, job: &mut String) {
    if may_verify(job, r.1) && r.one_in(3) {
        let has_backlog = at_once && r.one_in(2);
        let one_size = job.lines().any(|line| line.starts_with("bs=") && !line.contains(','));
        verification(r, has_backlog, one_pass, one_size, &mut |text| job.push_str(&(text + "\n")));
    }
    // The write of a trimmed block and a flush count in fio's zone in other ways, and a part of a zone may hold no block. Zones
    // are of one file.
    let zoneless = rw.contains("trimwrite")
        || job.contains("verify=")
        || several
        || job.contains("sync=")
        || job.contains("zoned");
    if !zoneless && r.one_in(5) {
        let zone = 4096 * (17 + r.below(32));
        let (size, skip) = (zone * r.pick(&[1, 1, 2, 3]) / r.pick(&[1, 1, 2]), 512 * r.below(300));
        let lines = format!("zonemode=strided\nzonesize={size}\nzonerange={zone}\nzoneskip={skip}\n");
        job.push_str(&lines);
    }
}

/// With several in flight it depends on the order of their completions when fio closes a file.
fn service(r: &mut Draw, may_close: bool, may_restart: bool, line: &mut impl FnMut(String)) {
    let turns = r.pick(&["", ":0", ":1", ":2", ":7"]);
    match r.below(if may_restart { 6 } else { 4 }) {
        0 => line("file_service_type=sequential".to_owned()),
        1 => line(format!("file_service_type=random{turns}")),
        2 => line(format!("file_service_type=roundrobin{turns}")),
        3 => {}
        _ => {
            let skew = r.pick(&["zipf", "zipf:0.7", "zipf:1.5:0.2", "pareto", "pareto:0.8", "gauss", "normal:30:0.6"]);
            line(format!("file_service_type={skew}"));
        }
    }
    if may_close && r.one_in(3) {
        line(format!("openfiles={}", 1 + r.below(4)));
    }
}

/// Returns what the region has to be a multiple of: with a skewed distribution fio ends a job at a partial block. With a
/// normal one over a handful of blocks, as in the parts of a job with several files, fio may draw for ever.
fn sizes(r: &mut Draw, skewed: bool, several: bool, line: &mut impl FnMut(String)) -> u64 {
    if skewed {
        let size = if several { r.pick(&[512, 1024, 4096]) } else { r.block() };
        line(format!("bs={size}"));
        return size;
    }
    let text = match r.below(4) {
        0 => format!(
            "bsrange={}",
            r.per_dir(|r| {
                let low = r.block();
                format!("{low}-{}", low * (1 + r.below(9)) + if r.one_in(3) { 512 } else { 0 } + r.rest())
            })
        ),
        1 => format!(
            "bssplit={}",
            r.per_dir(|r| {
                // fio never ends if a share is 0 and only that size fits.
                let share = 1 + r.below(98);
                format!("{}/{share}:{}/{}", r.block(), r.block(), 100 - share)
            })
        ),
        _ => format!("bs={}", r.per_dir(|r| r.block().to_string())),
    };
    line(text);
    if r.one_in(8) {
        line("bs_is_seq_rand=1".to_owned());
    }
    if r.one_in(8) {
        line(format!("blockalign={}", r.per_dir(|r| r.block().to_string())));
    }
    if r.1 && r.one_in(3) {
        line("bs_unaligned=1".to_owned());
    }
    if r.1 && r.one_in(8) {
        line("blockalign=1".to_owned());
    }
    if r.1 { 1 } else { 512 }
}

/// Returns whether the job goes over its region only once.
fn amounts(r: &mut Draw, unit: u64, may_begin_later: bool, may_repeat: bool, line: &mut impl FnMut(String)) -> bool {
    let size = (1024 * KIB + 512 * r.below(512) + r.rest()) / unit * unit;
    line(format!("size={size}"));
    if may_begin_later && r.one_in(3) {
        line(format!("offset={}", 4096 * r.below(256) + r.rest()));
    }
    let limit = r.below(8);
    match limit {
        0 | 2 if !may_repeat => {}
        0 => line(format!("io_size={}", 64 * KIB + 512 * r.below(4096) + r.rest())),
        1 => line(format!("number_ios={}", 1 + r.below(300))),
        2 => line(format!("loops={}", 1 + r.below(3))),
        _ => {}
    }
    limit > 2
}

fn randomness(r: &mut Draw, skewed: bool, several: bool, may_mix: bool, line: &mut impl FnMut(String)) {
    if r.one_in(3) {
        line("norandommap=1".to_owned());
    }
    if r.one_in(4) {
        line(format!("random_generator={}", r.pick(&["tausworthe", "lfsr", "tausworthe64"])));
    }
    let centre = if r.one_in(2) { format!(":{}", r.pick(&["0", "0.25", "0.5", "0.9"])) } else { String::new() };
    match (skewed, r.below(12)) {
        (true, n) if n < 4 => line(format!("random_distribution=zipf:{}{centre}", r.pick(&["0.4", "0.9", "1.2"]))),
        (true, n) if n < 8 => line(format!("random_distribution=pareto:{}{centre}", r.pick(&["0.2", "0.5", "0.9"]))),
        (true, _) => line(format!("random_distribution=normal:{}{centre}", r.pick(&["1", "20", "90"]))),
        // A part of a file may be smaller than a block, which mqblk refuses.
        (_, 3..=4) if several => {}
        (_, 3) => line("random_distribution=zoned:60/10:30/20:8/30:2/40".to_owned()),
        (_, 4) => line("random_distribution=zoned_abs:60/128k:40/512k".to_owned()),
        (_, 5) if may_mix => line(format!("percentage_random={}", r.per_dir(|r| r.below(101).to_string()))),
        _ => {}
    }
    if r.one_in(4) {
        line(format!("rw_sequencer={}", r.pick(&["sequential", "identical"])));
    }
    match r.below(6) {
        // With randrepeat=1, fio 3.33 does not seed the offsets; later versions do, and so does mqblk.
        0 => line(format!("randrepeat=0\nrandseed={}", 1 + r.below(1 << 40))),
        1 => line(format!("allrandrepeat={}", r.below(2))),
        _ => {}
    }
}

/// A rate that the job reaches in a fraction of a second.
fn rate(r: &mut Draw, line: &mut impl FnMut(String)) {
    match r.below(3) {
        0 => line(format!("rate={}m", r.pick(&[20, 50, 200]))),
        1 => line(format!("rate={}m,{}m,{}m", r.pick(&[20, 200]), r.pick(&[30, 90]), r.pick(&[40, 70]))),
        _ => line(format!("rate_iops={}", r.pick(&[15_000, 40_000, 200_000]))),
    }
    if r.one_in(3) {
        line("rate_process=poisson".to_owned());
    }
}

/// Whether a job may read back what it wrote.
fn may_verify(job: &str, bytes: bool) -> bool {
    let has = |options: &[&str]| options.iter().any(|option| job.contains(option));
    // Only fio's null engine trims here, and it keeps no data.
    let writes = has(&["rw=write", "rw=rw", "rw=randwrite", "rw=randrw"]);
    // A random map forgets the sequential blocks of a random job, and fio then also reads back what was overwritten.
    let mixes = has(&["rw=randwrite:", "rw=randrw:", "percentage_random"]);
    // fio 3.33 may wait for ever for a file that the backlog keeps open, and verify_only ends at the first file that it cannot open.
    let closes = has(&["openfiles"]);
    // It also reads back what was overwritten since a file started over.
    let restarts =
        ["zipf", "pareto", "gauss", "normal"].iter().any(|skew| job.contains(&format!("service_type={skew}")));
    // mqblk rejects blocks that overlap in part, and in bytes an interval may have no room for its header.
    let varies = has(&["bsrange", "bssplit", "blockalign"]);
    let mapless = has(&["rw=rand"]) && has(&["norandommap", "blockalign", "zipf", "pareto", "normal", "zoned"]);
    // mqblk flushes before it reads back.
    let flushes = has(&["sync="]);
    // fio writes headers behind the end of the I/O then.
    let headers_pass = bytes && has(&["bs_is_seq_rand"]);
    writes && !mixes && !closes && !restarts && !flushes && !headers_pass && !(varies && (bytes || mapless))
}

/// A backlog needs I/Os that complete before the next one is issued. Otherwise it depends on the order of completions when it is due,
/// and which of it can be read back.
fn verification(r: &mut Draw, has_backlog: bool, one_pass: bool, one_size: bool, line: &mut impl FnMut(String)) {
    let kind =
        r.pick(&["crc7", "crc16", "crc32", "crc32c", "crc64", "md5", "sha1", "sha256", "xxhash", "meta", "pattern"]);
    line(format!("verify={kind}"));
    if kind == "pattern" || r.one_in(4) {
        line("verify_pattern=0xdeadbeef".to_owned());
    }
    match r.below(8) {
        // If the files are at their ends, fio 3.33 does nothing in a further pass of `io_size`.
        0 if one_pass => line("do_verify=0".to_owned()),
        // fio 3.33 forgets the blocks of a backlog that it does not check, and never ends if a pass has nothing to check.
        1 if !has_backlog && one_pass && one_size => line("verify_only=1".to_owned()),
        _ => {}
    }
    if has_backlog {
        line(format!("verify_backlog={}", r.pick(&[1, 2, 7, 16, 64, 1000])));
        if r.one_in(2) {
            line(format!("verify_backlog_batch={}", r.pick(&[1, 3, 16, 200])));
        }
    }
}
