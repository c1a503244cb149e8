// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Seeds of the fuzz target for job files: the files that other tests read, as main files and as included files. The
//! target's body runs on them.

#[path = "../../../../fuzz/bodies/job_file.rs"]
mod job_file;
#[path = "../../../../fuzz/bodies/seeds.rs"]
mod seeds;

use seeds::{Seed, check};

/// The first byte chooses whether the rest is the main file or the included file.
fn file(choice: u8, text: &str) -> Vec<u8> {
    [&[choice], text.as_bytes()].concat()
}

#[test]
fn seeds_of_job_file() {
    let [oltp, verify, forms, part] = [
        include_str!("../data/jobs/oltp.fio"),
        include_str!("../data/jobs/verify.fio"),
        include_str!("../data/jobs/forms.fio"),
        include_str!("../data/jobs/part.inc"),
    ];
    let small = "[global]\nrw=randrw\nbs=4k\nsize=1m\n[a]\niodepth=8\n[b]\nstonewall\nrwmixread=70\n";
    let seed = |name, bytes, reach| Seed { name, bytes, reach };
    let seeds = [
        seed("small", file(0, small), 2),
        seed("included", file(1, "rw=read\nsize=64k\n"), 1),
        seed("oltp", file(0, oltp), 2),
        seed("verify", file(0, verify), 2),
        // It includes a file, which in this test is the file itself.
        seed("forms", file(0, forms), 0),
        seed("part", file(1, part), 1),
    ];
    check("job_file", &seeds, job_file::run);
}
