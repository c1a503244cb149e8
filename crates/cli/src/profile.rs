// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk profile`: a workload as a job file, from a trace of a disk or from the results of a run.

use crate::args::ProfileArgs;
use crate::inspect;
use crate::machine_file;
use crate::output::{self, Output};
use crate::report;
use crate::status::{Failure, Outcome, Status};
use lab::profile::{self, Profile, Trace, records, results, text, write};
use sim::scenario::file::Scenario;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use workload::job::{JobFile, ParseContext};

/// Largest results file that is read.
const RESULTS_BYTES_MAX: u64 = 256 << 20;

/// Reads, profiles, writes.
pub fn main(args: &ProfileArgs) -> Outcome {
    check_names(args)?;
    let profile = match (&args.from, &args.trace) {
        (Some(file), _) => {
            let text = machine_file::read_text("results", file, RESULTS_BYTES_MAX)?;
            results::read(&file.display().to_string(), &text).map_err(Failure::new)?
        }
        (None, Some(prefix)) => of_trace(prefix, args.device.as_deref())?,
        (None, None) => unreachable!("one of them is required"),
    };
    let job = write::job_file(&profile);
    // Check here that the printed job file is valid, not only when the user runs it.
    JobFile::parse_str(&job, &ParseContext { ncpus: 4096, ..ParseContext::bare("the profile") }, &[])
        .map_err(|e| Failure::new(format!("{}: cannot make a valid job file of its options: {e}", profile.source)))?;
    let machine = match args.machine.as_deref() {
        Some(file) => Some((file, with_disk(file, &profile)?)),
        None => None,
    };
    let mut out = Output::open(args.output.as_deref())?;
    if let Some((file, text)) = machine {
        machine_file::write("--machine", file, &text, true)?;
        output::tell(&format!("wrote the disk's times and the measured figures to {}", file.display()));
    }
    match args.json {
        true => out.write(&output::json(&profile))?,
        false => out.write(&job)?,
    }
    Ok(Status::Done)
}

/// Rejects a file that is named twice: an output would overwrite the input or another output.
fn check_names(args: &ProfileArgs) -> Result<(), Failure> {
    let mut names: Vec<(&str, PathBuf)> = Vec::new();
    names.extend(args.from.iter().map(|f| ("--from", f.clone())));
    for f in args.trace.iter().flat_map(|t| files(t).unwrap_or_default()) {
        names.push(("the trace", f));
    }
    for (flag, name) in [("--output", &args.output), ("--machine", &args.machine)] {
        let Some(name) = name else { continue };
        if let Some((what, _)) = names.iter().find(|(_, other)| report::is_same(other, name)) {
            let name = name.display();
            return Err(Failure::new(format!("{flag} {name}: is the file of {what}, too; name another one")));
        }
        names.push((flag, name.clone()));
    }
    Ok(())
}

/// Returns the text of a machine file with the profile's figures.
fn with_disk(file: &Path, profile: &Profile) -> Result<String, Failure> {
    let text = if file.exists() { machine_file::read(file)?.1 } else { inspect::host_machine(None, None)? };
    let mut lines = write::machine_lines(profile);
    let name = file.display().to_string();
    let disk = Scenario::parse_machine(&name, &text).map_err(Failure::new)?.disk;
    if disk.hdd.is_some() {
        // The times of a hard disk follow from its figures.
        lines.retain(|(table, key, ..)| *table != "disk" && !key.starts_with("\"disk."));
    }
    let end = profile.jobs.iter().map(|j| j.offset_bytes.saturating_add(j.size_bytes)).max().unwrap_or(0);
    let needs_gib = end.div_ceil(1 << 30).min(1 << 20);
    if needs_gib > disk.size_gib {
        lines.push(("disk", "size_gib".into(), needs_gib.to_string(), "from the workload's highest offset"));
    }
    Ok(write::edit(&text, &lines))
}

fn of_trace(prefix: &Path, device: Option<&str>) -> Result<Profile, Failure> {
    let device = match device {
        None => None,
        Some(d) => Some(profile::device_of(d).ok_or_else(|| {
            Failure::new(format!("--device {d}: must be MAJOR,MINOR as blkparse prints it, such as 259,0"))
        })?),
    };
    let mut trace = Trace::default();
    for file in files(prefix)? {
        let name = file.display().to_string();
        let open = File::open(&file).map_err(|e| Failure::new(format!("trace '{name}': {e}")))?;
        let mut from = BufReader::with_capacity(1 << 16, open);
        let head = from.fill_buf().map_err(|e| Failure::new(format!("trace '{name}': {e}")))?;
        let read = if head.is_empty() {
            // CPUs without events have empty files.
            Ok(())
        } else if records::is_binary(head) {
            records::read(&name, from, &mut trace)
        } else {
            text::read(&name, from, &mut trace)
        };
        read.map_err(Failure::new)?;
    }
    profile::of_trace(&prefix.display().to_string(), trace, device).map_err(Failure::new)
}

/// Returns the file itself, or the files of all CPUs.
fn files(prefix: &Path) -> Result<Vec<PathBuf>, Failure> {
    if prefix.is_file() {
        return Ok(vec![prefix.to_owned()]);
    }
    let directory = prefix.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut start = prefix.file_name().unwrap_or_default().to_owned();
    start.push(".blktrace.");
    // A CPU that was offline has no file: the numbers may have gaps.
    let cpu = |name: &OsStr| -> Option<u32> {
        let digits = name.as_bytes().strip_prefix(start.as_bytes())?;
        std::str::from_utf8(digits).ok().filter(|d| d.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()
    };
    let mut files: Vec<(u32, PathBuf)> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| Some((cpu(&e.file_name())?, e.path())))
        .filter(|(_, f)| f.is_file())
        .collect();
    files.sort();
    if files.is_empty() {
        let name = prefix.display();
        let text = format!(
            "trace '{name}': there is no such file, and no {name}.blktrace.N; name a trace of blktrace or 'mqblk run --trace'"
        );
        return Err(Failure::new(text));
    }
    Ok(files.into_iter().map(|(_, f)| f).collect())
}
