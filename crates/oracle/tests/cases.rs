// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every recorded case is equal to what the whole stack does, and the comparison would see if it were not.

extern crate mqblk_oracle as oracle;

use oracle::case::{Case, load_tags, names, tags_file};
use oracle::event::Kind;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cases")
}

#[test]
fn every_case_is_the_kernels() {
    let names = names(&folder()).unwrap();
    assert!(names.len() >= 12, "{names:?}");
    let mut differing = Vec::new();
    for name in names {
        if let Some(file) = tags_file(&folder().join(&name)) {
            let (_, first) = oracle::sharing::judge(&load_tags(&file).unwrap()).unwrap();
            differing.extend(first.map(|first| format!("{name}: {first}")));
            continue;
        }
        let case = Case::load(&folder().join(&name)).unwrap();
        let verdict = case.judge().unwrap();
        assert!(verdict.requests > 0, "{name}");
        differing.extend(verdict.first.map(|first| format!("{name}: {first}")));
    }
    assert!(differing.is_empty(), "{differing:#?}");
}

/// Where recordings of several kernels lie beside each other, the folder in the path selects the kernel.
#[test]
fn a_recording_is_found_by_its_kernel() {
    let (any, of_6_12) = (folder().join("dl-mixed"), folder().join("6.12/dl-mixed"));
    let (any, of_6_12) = (Case::load(&any).unwrap(), Case::load(&of_6_12).unwrap());
    assert_eq!((any.script, any.settings, any.theirs), (of_6_12.script, of_6_12.settings, of_6_12.theirs));
}

/// A recording is not equal if something else happened in it than what the settings and the script cause.
#[test]
fn what_differs_is_seen() {
    let load = || Case::load(&folder().join("dl-mixed")).unwrap();
    let differs = |case: &Case| case.judge().unwrap().first.expect("a difference").text;
    let mut case = load();
    case.settings.iosched.iter_mut().find(|(n, _)| n == "fifo_batch").unwrap().1 = 3;
    assert!(differs(&case).contains("D number"), "{}", differs(&case));
    let mut case = load();
    let issues: Vec<usize> = (0..case.theirs.len()).filter(|i| case.theirs[*i].kind == Kind::Issue).collect();
    let (a, b) = (issues[20], issues[21]);
    let extent = case.theirs[a].extent;
    case.theirs[a].extent = case.theirs[b].extent;
    case.theirs[b].extent = extent;
    assert!(differs(&case).contains("D number 20"), "{}", differs(&case));
    let mut case = load();
    case.script.ios.swap(30, 31);
    assert!(differs(&case).contains("script and trace differ"), "{}", differs(&case));
    let mut case = Case::load(&folder().join("dl-merge")).unwrap();
    case.settings.nomerges = 2;
    assert!(!case.judge().unwrap().is_equal());
}

/// The maximum in flight follows from the rules and from how long disks rest, not from the recording.
#[test]
fn other_rules_or_rests_are_seen() {
    let load = || load_tags(&folder().join("6.12/null-shared.tags")).unwrap();
    let first = |case: &_| oracle::sharing::judge(case).unwrap().1;
    assert_eq!(first(&load()), None);
    let mut case = load();
    case.set_up.tags.fair_tag_sharing = false;
    assert_eq!(
        first(&case).unwrap(),
        "kernel 'inflight 1 nullb1 issued 100 max 8', here 'inflight 1 nullb1 issued 100 max 16'"
    );
    let mut case = load();
    case.phases[4].rest = 1;
    assert_eq!(
        first(&case).unwrap(),
        "kernel 'inflight 4 nullb1 issued 100 max 16', here 'inflight 4 nullb1 issued 100 max 8'"
    );
    let mut case = load();
    case.set_up.tags.queue_depth = 15;
    assert!(first(&case).unwrap().contains("nr_requests 16"));
}
