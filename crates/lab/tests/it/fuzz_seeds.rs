// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Seeds of the fuzz target for `mqblk profile`: small traces and results, and the target's body run on them.

#[path = "../../../../fuzz/bodies/profile.rs"]
mod profile;
#[path = "../../../../fuzz/bodies/seeds.rs"]
mod seeds;

use seeds::{Seed, check};

/// A record of blktrace, as its header has it.
fn record(time_ns: u64, sector: u64, bytes: u32, action: u32) -> Vec<u8> {
    let mut r = Vec::new();
    r.extend(0x6561_7407u32.to_le_bytes());
    r.extend(1u32.to_le_bytes());
    r.extend(time_ns.to_le_bytes());
    r.extend(sector.to_le_bytes());
    for word in [bytes, action, 7, 259 << 20, 0, 0] {
        r.extend(word.to_le_bytes());
    }
    r
}

#[test]
fn seeds_of_profile() {
    let (queue, issue, complete) = (1 | 0x11 << 16, 7 | 0x41 << 16, 8 | 0x81 << 16);
    let io = |i: u64| {
        let at = |us: u64| (i * 100 + us) * 1000;
        [record(at(0), i * 8, 4096, queue), record(at(5), i * 8, 4096, issue), record(at(90), i * 8, 4096, complete)]
            .concat()
    };
    let records = [vec![0], (0..20).flat_map(io).collect()].concat();
    let line = |at: u32, act: &str, sector: u32| format!("8,16 0 1 0.{at:09} 42 {act} W {sector} + 16 [fio]\n");
    let lines = format!("\u{1}{}{}{}CPU0 (8,16):\n", line(1, "Q", 0), line(2, "D", 0), line(9, "C", 0));
    let json = "\u{2}{\"jobs\":[{\"jobname\":\"a\",\"job options\":{\"rw\":\"read\",\"iodepth\":\"4\"},\"read\":{\"total_ios\":10,\
                \"io_bytes\":40960,\"runtime\":100,\"clat_ns\":{\"mean\":5000.0}}}]}";
    let seed = |name, bytes, reach| Seed { name, bytes, reach };
    let seeds = [
        seed("records", records, 1),
        seed("lines", lines.into_bytes(), 1),
        seed("results", json.as_bytes().to_vec(), 1),
        seed("nothing", vec![0], 0),
    ];
    check("profile", &seeds, profile::run);
}
