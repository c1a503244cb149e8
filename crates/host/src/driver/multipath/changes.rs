// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What has changed about a disk's paths since the last report, for the log, in the words of multipathd.
//!
//! Guarantees: a report names each path that was added or removed, has failed, been reinstated or got another trouble, with the reason,
//! how many paths are left, when queueing begins and ends, and which group is used now. A path that failed and is used again is named,
//! too. The number of messages is bounded by the number of paths. States are compared when a report is made, so I/O is not
//! involved. Does not do: log; the watch of served disks does, once a second.
//! Source of the words: multipath-tools, multipathd/main.c and libmultipath/structs_vec.c (`enter_recovery_mode`).

use crate::driver::path_log::PathMessage;
use log::Level;

/// A path at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PathState {
    pub(super) name: String,
    pub(super) is_active: bool,
    pub(super) fail_count: u64,
    /// Why the last check did not pass.
    pub(super) trouble: Option<String>,
    /// Why its last request failed, as far as its driver knows.
    pub(super) failure: Option<String>,
}

impl PathState {
    /// Why it is not used.
    fn reason(&self) -> Option<&str> {
        self.trouble.as_deref().or(self.failure.as_deref())
    }

    fn named(self, as_is: &PathState) -> PathState {
        PathState { name: as_is.name.clone(), ..self }
    }
}

/// The paths of a disk at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PathStates {
    /// By number.
    pub(super) paths: Vec<PathState>,
    /// Whether requests wait while there is no path.
    pub(super) queues: bool,
    /// The group in use, counted from 1, with the numbers of its paths.
    pub(super) group: Option<(usize, Vec<usize>)>,
}

impl PathStates {
    fn nr_active(&self) -> usize {
        self.paths.iter().filter(|p| p.is_active).count()
    }
}

/// The states of the last report.
#[derive(Debug, Default)]
pub(super) struct PathChanges {
    last: PathStates,
}

impl PathChanges {
    /// Begins with these paths, each of which counts as active.
    pub(super) fn new(paths: &PathStates) -> PathChanges {
        let active = |p: &PathState| PathState { is_active: true, ..PathState::default() }.named(p);
        let all = paths.paths.iter().map(active).collect();
        PathChanges { last: PathStates { paths: all, queues: paths.queues, group: None } }
    }

    /// Returns what has changed since the last call, or the beginning. `no_path_retry`: the value of this option, for the text.
    pub(super) fn report(&mut self, now: PathStates, no_path_retry: &str) -> Vec<PathMessage> {
        let last = std::mem::take(&mut self.last);
        let mut all = Vec::new();
        let mut is_count_new = false;
        let mut about_path = |path: &PathState, level, text| {
            all.push(PathMessage { path: Some(path.name.clone()), level, text });
        };
        let find = |paths: &[PathState], name: &str| paths.iter().position(|p| p.name == name);
        for was in last.paths.iter().filter(|was| find(&now.paths, &was.name).is_none()) {
            is_count_new = true;
            about_path(was, Level::Info, "path removed".to_owned());
        }
        for is in &now.paths {
            let before = find(&last.paths, &is.name).map(|at| last.paths[at].clone());
            let was = before.unwrap_or_else(|| {
                about_path(is, Level::Info, "path added".to_owned());
                is_count_new = true;
                PathState { is_active: true, ..PathState::default() }.named(is)
            });
            is_count_new |= was.is_active != is.is_active || was.fail_count != is.fail_count;
            if let Some((level, text)) = change_of(&was, is) {
                about_path(is, level, text);
            }
        }
        let mut about_disk = |level, text| all.push(PathMessage { path: None, level, text });
        let (before, left) = (last.nr_active(), now.nr_active());
        if is_count_new {
            about_disk(Level::Info, format!("remaining active paths: {left}"));
        }
        match (before, left, last.queues, now.queues) {
            (1.., 0, _, true) => {
                about_disk(
                    Level::Warn,
                    format!("no path is left: requests are queued (no_path_retry={no_path_retry})"),
                );
            }
            (1.., 0, _, false) => about_disk(Level::Error, "no path is left: requests fail".to_owned()),
            (0, 0, true, false) => {
                about_disk(Level::Error, format!("queueing ends (no_path_retry={no_path_retry}): requests fail"));
            }
            (0, 0, false, true) => about_disk(Level::Warn, "no path is left: requests are queued again".to_owned()),
            (0, 1.., true, _) => about_disk(Level::Info, "a path works again: queueing ends".to_owned()),
            (0, 1.., false, _) => about_disk(Level::Info, "a path works again: requests no longer fail".to_owned()),
            _ => {}
        }
        // Regrouping moves paths between groups. It is a switch only if none of the paths in use was in use before.
        if let (Some((_, were)), Some((number, are))) = (&last.group, &now.group)
            && !are.iter().any(|path| were.contains(path))
        {
            about_disk(Level::Info, format!("switch to path group #{number}"));
        }
        let group = now.group.clone().or(last.group);
        self.last = PathStates { group, ..now };
        all
    }
}

/// Describes the change of one path.
fn change_of(was: &PathState, is: &PathState) -> Option<(Level, String)> {
    let why = || is.reason().map_or_else(|| ": an I/O error".to_owned(), |why| format!(": {why}"));
    let failures = is.fail_count.saturating_sub(was.fail_count);
    match (was.is_active, is.is_active) {
        (true, false) => Some((Level::Warn, format!("path failed{}", why()))),
        (was_active, true) if failures > 0 => {
            let times = match (was_active, failures) {
                (false, _) => "again".to_owned(),
                (true, 1) => "once".to_owned(),
                (true, n) => format!("{n} times"),
            };
            Some((Level::Warn, format!("path failed {times} and is reinstated{}", why())))
        }
        (false, true) => Some((Level::Info, "reinstated".to_owned())),
        (true, true) if is_new(was.trouble.as_deref(), is.trouble.as_deref()) => {
            Some((Level::Warn, format!("its check does not pass{}", why())))
        }
        (false, false) if is_new(was.reason(), is.reason()) => Some((Level::Warn, format!("still failed{}", why()))),
        _ => None,
    }
}

/// Whether there is a reason that differs from the last one in more than numbers, such as counts of attempts.
fn is_new(was: Option<&str>, is: Option<&str>) -> bool {
    let words = |text: &str| text.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
    is.is_some() && was.map(words) != is.map(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str, is_active: bool, fail_count: u64, trouble: Option<&str>) -> PathState {
        let trouble = trouble.map(str::to_owned);
        PathState { name: name.to_owned(), is_active, fail_count, trouble, failure: None }
    }

    fn states(paths: impl Into<Vec<PathState>>, queues: bool, group: usize) -> PathStates {
        PathStates { paths: paths.into(), queues, group: (group > 0).then(|| (group, vec![group - 1])) }
    }

    /// Reports each of these states, and returns the texts of all but the first.
    fn reports(all: Vec<PathStates>) -> Vec<Vec<String>> {
        let mut changes = PathChanges::new(&all[0]);
        let text = |m: PathMessage| m.path.map_or_else(|| m.text.clone(), |path| format!("{path}: {}", m.text));
        let mut texts = all.into_iter().map(|now| changes.report(now, "4").into_iter().map(text).collect());
        let first: Option<Vec<String>> = texts.next();
        assert_eq!(first, Some(vec![]), "nothing has happened yet");
        texts.collect()
    }

    #[test]
    fn outage_is_told_from_its_beginning_to_its_end() {
        let up = |name| path(name, true, 0, None);
        let told = reports(vec![
            states([up("a"), up("b")], true, 1),
            states([path("a", false, 1, Some("no answer")), up("b")], true, 2),
            states([path("a", false, 1, Some("no answer")), path("b", false, 1, None)], true, 0),
            states([path("a", false, 1, Some("refused")), path("b", false, 1, None)], false, 0),
            states([path("a", false, 1, Some("refused")), path("b", true, 1, None)], true, 2),
            states([path("a", true, 1, None), path("b", true, 1, None)], true, 1),
            states([path("a", true, 1, None), path("b", true, 1, None)], true, 1),
        ]);
        let expected: [&[&str]; 6] = [
            &["a: path failed: no answer", "remaining active paths: 1", "switch to path group #2"],
            &[
                "b: path failed: an I/O error",
                "remaining active paths: 0",
                "no path is left: requests are queued (no_path_retry=4)",
            ],
            &["a: still failed: refused", "queueing ends (no_path_retry=4): requests fail"],
            &["b: reinstated", "remaining active paths: 1", "a path works again: requests no longer fail"],
            &["a: reinstated", "remaining active paths: 2", "switch to path group #1"],
            &[],
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn path_that_fails_and_comes_back_between_reports_is_told() {
        let b = || path("b", true, 0, None);
        let told = reports(vec![
            states([path("a", true, 0, None), b()], false, 1),
            states([path("a", true, 3, Some("not ready")), b()], false, 1),
            states([path("a", true, 3, Some("check 1 failed")), b()], false, 1),
            states([path("a", true, 3, Some("check 2 failed")), b()], false, 1),
            states([path("a", false, 4, None), path("b", false, 1, None)], false, 0),
            states([path("a", true, 5, None), path("b", false, 1, None)], false, 1),
        ]);
        let expected: [&[&str]; 5] = [
            &["a: path failed 3 times and is reinstated: not ready", "remaining active paths: 2"],
            &["a: its check does not pass: check 1 failed"],
            &[],
            &[
                "a: path failed: an I/O error",
                "b: path failed: an I/O error",
                "remaining active paths: 0",
                "no path is left: requests fail",
            ],
            &[
                "a: path failed again and is reinstated: an I/O error",
                "remaining active paths: 1",
                "a path works again: requests no longer fail",
            ],
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn failed_request_is_the_reason_until_the_check_has_one() {
        let failed = |is_active, count, trouble: Option<&str>| {
            let failure = Some("medium not present".to_owned());
            states([PathState { failure, ..path("a", is_active, count, trouble) }, path("b", true, 0, None)], true, 1)
        };
        let told = reports(vec![
            failed(true, 0, None),
            failed(false, 1, None),
            failed(true, 1, None),
            failed(true, 1, None),
            failed(false, 2, None),
            failed(false, 2, Some("no answer")),
        ]);
        let failed = ["a: path failed: medium not present", "remaining active paths: 1"];
        let reinstated = ["a: reinstated", "remaining active paths: 2"];
        let expected: [&[&str]; 5] = [&failed, &reinstated, &[], &failed, &["a: still failed: no answer"]];
        assert_eq!(told, expected);
    }

    #[test]
    fn paths_that_are_added_and_removed_are_told() {
        let up = |name| path(name, true, 0, None);
        let told = reports(vec![
            states([up("a"), up("b")], true, 1),
            states([up("a"), path("b", false, 1, Some("refused")), up("c")], true, 1),
            states([path("b", false, 1, Some("refused")), up("c")], true, 3),
            states([path("b", false, 1, Some("refused"))], true, 0),
            states([path("b", false, 1, Some("refused")), path("d", false, 1, Some("no answer"))], true, 0),
        ]);
        let expected: [&[&str]; 4] = [
            &["b: path failed: refused", "c: path added", "remaining active paths: 2"],
            &["a: path removed", "remaining active paths: 1", "switch to path group #3"],
            &["c: path removed", "remaining active paths: 0", "no path is left: requests are queued (no_path_retry=4)"],
            &["d: path added", "d: path failed: no answer", "remaining active paths: 0"],
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn path_that_could_not_be_opened_is_in_the_first_report() {
        let now = states([path("a", false, 1, Some("no route")), path("b", true, 0, None)], true, 2);
        let mut changes = PathChanges::new(&now);
        let texts: Vec<String> = changes.report(now, "queue").into_iter().map(|m| m.text).collect();
        assert_eq!(texts, ["path failed: no route", "remaining active paths: 1"]);
    }
}
