// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every example job of Debian's fio package parses, or is rejected with a reason that a user can act on.
//!
//! The jobs are GPL, so no copies are kept. The test finds them where the package `fio-examples` installs them, or
//! downloads and unpacks that package. It fails if it cannot. `data/fio_examples.txt` has the expected result for each
//! file.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use workload::job::{JobFile, ParseContext};

const INSTALLED: &str = "/usr/share/doc/fio/examples";
const INSIDE_PACKAGE: &str = "usr/share/doc/fio/examples";
const ADVICE: &str = "the example jobs of fio are needed: apt-get install fio-examples, and if this system leaves out \
                      documentation, apt-get update, so that the test can download the package itself";

/// The directory with the example jobs.
fn examples() -> PathBuf {
    let has_jobs = |dir: &Path| fs::read_dir(dir).is_ok_and(|mut d| d.any(|e| e.is_ok_and(|e| is_job(&e.path()))));
    let installed = PathBuf::from(INSTALLED);
    if has_jobs(&installed) {
        return installed;
    }
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fio-examples");
    let unpacked = place.join(INSIDE_PACKAGE);
    if !has_jobs(&unpacked) {
        fs::create_dir_all(&place).expect("the target directory is writable");
        run(&place, "apt-get", &["download", "fio-examples"]);
        let package = fs::read_dir(&place)
            .expect("just created")
            .filter_map(|e| e.ok().map(|e| e.path()))
            .find(|p| p.extension().is_some_and(|e| e == "deb"))
            .unwrap_or_else(|| panic!("apt-get download left no package; {ADVICE}"));
        run(&place, "dpkg", &["-x", package.to_str().expect("a plain name"), "."]);
    }
    assert!(has_jobs(&unpacked), "no jobs in the package; {ADVICE}");
    unpacked
}

fn run(dir: &Path, program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).current_dir(dir).status();
    assert!(status.is_ok_and(|s| s.success()), "{program} {} failed; {ADVICE}", arguments.join(" "));
}

fn is_job(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "fio")
}

/// `file: ok` or `file: part of a message`, several parts separated by ` & `.
fn expectations() -> BTreeMap<String, Vec<String>> {
    let table = include_str!("../data/fio_examples.txt");
    let rows = table.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty());
    let row = |line: &str| {
        let (file, expected) = line.split_once(": ").unwrap_or_else(|| panic!("bad row: {line}"));
        (file.to_owned(), expected.split(" & ").map(str::to_owned).collect())
    };
    rows.map(row).collect()
}

fn outcome(path: &Path) -> Result<JobFile, String> {
    let text = fs::read_to_string(path).expect("a readable text file");
    let name = path.file_name().and_then(|n| n.to_str()).expect("a plain name");
    let context = ParseContext { ncpus: 4, ..ParseContext::bare(name) };
    JobFile::parse_str(&text, &context, &[]).map_err(|e| e.to_string())
}

#[test]
fn every_example_parses_or_is_refused_with_a_reason() {
    let expected = expectations();
    let mut jobs: Vec<PathBuf> = fs::read_dir(examples())
        .expect("checked above")
        .filter_map(|e| e.ok().map(|e| e.path()))
        .filter(|p| is_job(p))
        .collect();
    jobs.sort();
    let mut wrong = Vec::new();
    for path in &jobs {
        let name = path.file_name().and_then(|n| n.to_str()).expect("a plain name").to_owned();
        let outcome = outcome(path);
        let fits = match (&outcome, expected.get(&name).map(Vec::as_slice)) {
            (_, None) => false,
            (Ok(_), Some([only])) => only == "ok",
            (Ok(_), Some(_)) => false,
            (Err(message), Some(parts)) => parts.iter().all(|part| message.contains(part.as_str())),
        };
        if !fits {
            let got = outcome.map_or_else(|e| e, |f| format!("ok, {} jobs", f.jobs.len()));
            wrong.push(format!("{name}: expected {:?}, got:\n{got}", expected.get(&name)));
        }
    }
    for name in expected.keys().filter(|n| !jobs.iter().any(|p| p.ends_with(n))) {
        wrong.push(format!("{name}: expected, but not in the package"));
    }
    assert!(wrong.is_empty(), "{} of {} jobs:\n{}", wrong.len(), jobs.len(), wrong.join("\n"));
}

/// A rejection names the place, the text, the rule, and what to do.
#[test]
fn every_refusal_names_line_and_remedy() {
    for path in fs::read_dir(examples()).expect("checked above").filter_map(|e| e.ok().map(|e| e.path())) {
        if !is_job(&path) {
            continue;
        }
        let Err(message) = outcome(&path) else { continue };
        let name = path.file_name().and_then(|n| n.to_str()).expect("a plain name");
        for line in message.lines() {
            let place = line.strip_prefix(name).and_then(|l| l.strip_prefix(':'));
            let number = place.and_then(|l| l.split(':').next()).and_then(|n| n.parse::<u32>().ok());
            assert!(number.is_some_and(|n| n > 0), "no line: {line}");
            assert!(line.contains("; "), "no remedy: {line}");
        }
    }
}

/// With the variables that two of the examples read, these are complete.
#[test]
fn examples_with_variables_parse_when_they_are_set() {
    let path = examples().join("xnvme-compare.fio");
    let text = fs::read_to_string(path).expect("part of the package");
    let env = |name: &str| match name {
        "FIO_RW" => Some("randwrite".to_owned()),
        "FIO_IODEPTH" => Some("1".to_owned()),
        "FIO_BS" => Some("8k".to_owned()),
        _ => None,
    };
    let context = ParseContext { env: &env, ..ParseContext::bare("xnvme-compare.fio") };
    let file = JobFile::parse_str(&text, &context, &[]).expect("complete with its variables");
    assert_eq!(file.jobs[1].rw.to_string(), "randwrite");
    assert_eq!(file.jobs[1].block_sizes.write.max_bytes(), 8192);
    assert!(!file.jobs[0].allow_file_create);
}
