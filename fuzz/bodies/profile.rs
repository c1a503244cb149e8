// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The readers of `mqblk profile` on arbitrary bytes, as blktrace's records, blkparse's lines, and a run's JSON: no panic, no hang, messages
//! that are safe to print; what becomes a profile becomes a job file that can be read.
//!
//! Run on arbitrary bytes by `fuzz/fuzz_targets`, and on seeds by plain tests.

use lab::profile::{Profile, ProfileError, Trace, of_trace, records, results, text, write};
use workload::job::{JobFile, ParseContext};

/// How many jobs there are; 0 = it is refused.
pub fn run(data: &[u8]) -> usize {
    let (form, bytes) = data.split_first().map_or((0, data), |(form, rest)| (*form, rest));
    let traced = |read: Result<(), ProfileError>, trace: Trace| read.and_then(|()| of_trace("t", trace, None));
    let profile: Result<Profile, ProfileError> = match form % 3 {
        0 => {
            let mut trace = Trace::default();
            traced(records::read("t", bytes, &mut trace), trace)
        }
        1 => {
            let mut trace = Trace::default();
            traced(text::read("t", bytes, &mut trace), trace)
        }
        _ => results::read("r", &String::from_utf8_lossy(bytes)),
    };
    match profile {
        Ok(p) => {
            let job = write::job_file(&p);
            // Options of results are anyone's: the reader reports that they are no job file.
            let file = JobFile::parse_str(&job, &ParseContext { ncpus: 4096, ..ParseContext::bare("j") }, &[]);
            assert!(form % 3 == 2 || file.is_ok(), "{job}");
            let machine = write::edit("", &write::machine_lines(&p));
            assert_eq!(write::edit(&machine, &write::machine_lines(&p)), machine);
            p.jobs.len()
        }
        Err(e) => {
            assert!(!e.to_string().chars().any(char::is_control), "{e:?}");
            0
        }
    }
}
