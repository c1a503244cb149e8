// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk serve` of a disk that is striped over files: from its configuration to its clients, and the reports and commands of
//! `mqblk ctl`. Files that do not fit are rejected with exit status 2 before anything is changed.

use crate::common;

use common::{Dir, Done, number};
use std::fs::{self, File};

const CHUNK: usize = 64 << 10;

fn image(dir: &Dir, name: &str, bytes: u64) {
    File::create(dir.path(name)).unwrap().set_len(bytes).unwrap();
}

fn config(targets: &[&str], more: &str) -> String {
    let targets: Vec<String> = targets.iter().map(|t| format!("\"{t}\"")).collect();
    format!(
        "[[disk]]\nname = \"d\"\nstack = \"stripe\"\ntargets = [{}]\n{more}\n\
         [[export]]\ntype = \"nbd\"\nsocket = \"d.sock\"\n\
         [[export]]\ntype = \"vhost-user-blk\"\nsocket = \"v.sock\"\nnum_queues = 2\n",
        targets.join(", ")
    )
}

fn ctl(dir: &Dir, args: &[&str]) -> Done {
    dir.mqblk(&[&["ctl", "--control", "ctl.sock"], args].concat())
}

#[test]
fn what_clients_write_lies_in_the_files_in_turn() {
    let dir = Dir::new("serve-stripe");
    // The start reports the parts of the files that are not used.
    let names = ["a.img", "b.img", "c.img", "d.img"];
    names.iter().zip([8 << 20, (8 << 20) + 4096, 8 << 20, 9 << 20]).for_each(|(n, b)| image(&dir, n, b));
    dir.file("serve.toml", &config(&names, "[disk.queue]\nscheduler = \"mq-deadline\""));
    let started = dir.start(&["serve", "serve.toml", "--control", "ctl.sock"], "serving");
    let said = started.seen().to_owned();
    assert!(
        said.contains("disk 'd' uses 8388608 bytes of each target, the whole chunks of 64k that fit on the smallest"),
        "{said}"
    );
    assert!(said.contains(&format!("{} bytes in total are not used", 4096 + (1 << 20))), "{said}");

    let source: Vec<u8> = (0..32u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(dir.path("source"), &source).unwrap();
    let uri = format!("nbd+unix:///d?socket={}", dir.path("d.sock").display());
    dir.program("nbdcopy", &["--flush", "source", &uri]).exits(0);
    let options = vuclient::VerifyOptions { queues: 2, requests: 500, seed: 3, ..Default::default() };
    // The same bytes over vhost-user.
    let report = vuclient::verify(dir.path("v.sock").to_str().unwrap(), &options).unwrap();
    assert!(report.writes > 100, "{report:?}");
    dir.program("nbdcopy", &["--flush", "source", &uri]).exits(0);

    let list = ctl(&dir, &["list", "--json"]).exits(0).json();
    let disk = &list["disks"][0];
    assert_eq!((number(disk, "/bytes"), number(disk, "/chunk")), (f64::from(32 << 20), 65536.0));
    assert_eq!((disk["stack"].as_str(), disk["targets"][3].as_str()), (Some("stripe"), Some("d.img")));
    ctl(&dir, &["list"]).exits(0).prints(&["disk d: stripe of a.img b.img c.img d.img, 33554432 bytes"]);
    let stats = ctl(&dir, &["stats", "--json"]).exits(0).json();
    let members = stats["disks"][0]["members"].as_array().unwrap();
    let flushes: Vec<f64> = members.iter().map(|m| number(m, "/ops/flush/ios")).collect();
    // A file flushes after each of its own FUA writes, so the counts may differ.
    assert!(members.len() == 4 && flushes.iter().all(|n| *n >= 2.0), "{flushes:?}");
    assert_eq!(number(&stats, "/disks/0/ops/flush/ios"), flushes.iter().sum::<f64>());
    ctl(&dir, &["set", "d", "scheduler=kyber"]).exits(0);
    ctl(&dir, &["resize", "d", "64m"]).exits(2).says(&["disk 'd' is striped over 4 targets and keeps its size"]);
    ctl(&dir, &["drain", "d"]).exits(0);
    ctl(&dir, &["resume", "d"]).exits(0);
    // Each of the files is locked.
    dir.mqblk(&["serve", "--dry-run", "c.img"]).exits(2).says(&["c.img", "is in use"]);
    started.signal("TERM");
    started.ends().exits(0);

    let files: Vec<Vec<u8>> = names.iter().map(|n| fs::read(dir.path(n)).unwrap()).collect();
    for (i, chunk) in source.chunks(CHUNK).enumerate() {
        let at = i / 4 * CHUNK;
        assert!(&files[i % 4][at..at + CHUNK] == chunk, "chunk {i} is not where it belongs");
    }
    assert!(files[3][8 << 20..].iter().all(|b| *b == 0), "written beyond the stripe");
}

#[test]
fn files_that_do_not_fit_are_refused_and_nothing_is_touched() {
    let dir = Dir::new("serve-stripe");
    image(&dir, "a.img", 1 << 20);
    image(&dir, "b.img", 1 << 20);
    image(&dir, "tiny.img", 32 << 10);
    fs::hard_link(dir.path("a.img"), dir.path("twin.img")).unwrap();
    for (targets, more, says) in [
        (&["a.img", "none.img"][..], "", "c.toml:4: target=none.img: the image does not exist; create it first"),
        (&["a.img", "tiny.img"], "", "c.toml:4: target=tiny.img: has 32768 bytes: must be at least one chunk (64k);"),
        (&["a.img", "twin.img"], "", "c.toml:4: target=twin.img: is the same image as 'a.img' of this disk;"),
        (&["a.img"], "", "c.toml:4: targets: 1 given; a stripe must have 2..=256"),
        (&["a.img", "b.img"], "chunk = \"3k\"", "c.toml:5: chunk=3072: must be a power of two"),
    ] {
        dir.file("c.toml", &config(targets, more));
        let before = dir.list();
        let done = dir.mqblk(&["serve", "c.toml"]).exits(2);
        done.says(&[says]);
        assert_eq!(dir.list(), before, "{says}");
    }
    // A chunk that is smaller than the block size of a target. That size is known only when the target is open.
    dir.file("c.toml", &config(&["a.img", "ram:size=1m,blocksize=4096"], "chunk = \"2k\""));
    let done = dir.mqblk(&["serve", "c.toml"]).exits(2);
    done.says(&["chunk=2048: must be a power of two, 4096..=1073741824 bytes", "disk 'd'"]);
}
