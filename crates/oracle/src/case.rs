// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A case from its files, and its verdict.

use crate::CaseError;
use crate::compare::{Column, Difference, compare};
use crate::event::{Event, Kind};
use crate::replay::{Replayed, replay};
use crate::rules::{Rules, rules};
use crate::script::Script;
use crate::settings::Settings;
use crate::tags::TagCase;
use crate::trace;
use crate::world::{Clock, Unknown};
use std::path::{Path, PathBuf};

/// Length of the recorded kernels' tick (HZ=250).
const TICK_US: u64 = 4000;

/// How finely the unknown phase of the tick is searched.
const PHASE_STEP_US: u64 = 500;

/// Maximum number of first hints that are tried.
const MAX_HINTS: u32 = 16;

/// A case.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name, which is that of its files.
    pub name: String,
    /// What the process does.
    pub script: Script,
    /// The settings it runs under.
    pub settings: Settings,
    /// What the kernel did.
    pub theirs: Vec<Event>,
}

/// The result of a case.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// One per column of the table.
    pub columns: Vec<Column>,
    /// Requests the kernel issued.
    pub requests: usize,
    /// The rules that were applied.
    pub rules: Rules,
    /// The kernel's choices under which this is the result: [`Unknown::NONE`] unless others gave a better result.
    pub unknown: Unknown,
    /// What differs first, its time counted from the kernel's first event.
    pub first: Option<Difference>,
    /// Our events.
    pub ours: Vec<Event>,
}

impl Verdict {
    /// Whether everything that must be equal is equal.
    pub fn is_equal(&self) -> bool {
        self.first.is_none()
    }
}

fn read(path: &Path) -> Result<String, CaseError> {
    std::fs::read_to_string(path).map_err(|e| CaseError(format!("cannot read {}: {e}", path.display())))
}

/// Finds `NAME.ext` in the folder itself, in its subfolders, or in the folders beside it (recordings are in a folder
/// per kernel).
fn find(folder: &Path, file: &str) -> Option<PathBuf> {
    let here = folder.join(file);
    if here.is_file() {
        return Some(here);
    }
    let up = if folder.as_os_str().is_empty() { Path::new("..").to_path_buf() } else { folder.join("..") };
    [folder, &up].into_iter().find_map(|f| {
        let f = if f.as_os_str().is_empty() { Path::new(".") } else { f };
        let mut folders: Vec<PathBuf> = f.read_dir().ok()?.flatten().map(|e| e.path()).filter(|p| p.is_dir()).collect();
        folders.sort();
        folders.into_iter().map(|d| d.join(file)).find(|p| p.is_file())
    })
}

/// Returns the path of a file in the folder, or in the folder above if it is only there: a script may be above the
/// folder of a kernel's recordings.
fn beside_or_above(folder: &Path, file: &str) -> PathBuf {
    let (beside, above) = (folder.join(file), folder.join("..").join(file));
    if !beside.is_file() && above.is_file() { above } else { beside }
}

impl Case {
    /// Reads `FOLDER/NAME`: `NAME.io`, `NAME.env` and `NAME.trace`. The trace may lie in a folder beside or below. If
    /// the kernel's report of the settings lies beside the trace, it replaces the settings that the guest was given.
    /// `FOLDER` may also be the folder of one kernel's recordings, with the script in the folder above.
    ///
    /// # Errors
    /// A file that is missing or broken; the text names it.
    pub fn load(stem: &Path) -> Result<Case, CaseError> {
        let (script, settings) = Case::load_script(stem)?;
        let (folder, name) = split(stem)?;
        let file = format!("{name}.trace");
        let path = find(&folder, &file).ok_or_else(|| {
            let at = folder.join(&file).display().to_string();
            CaseError(format!("no {at}: record it with 'cargo xtask oracle --record {}'", stem.display()))
        })?;
        let beside = path.with_extension("env");
        let settings = if beside.is_file() { Settings::parse(&shown(&beside), &read(&beside)?)? } else { settings };
        let theirs = trace::parse(&shown(&path), &read(&path)?)?;
        Ok(Case { name, script, settings, theirs })
    }

    /// As [`Case::load`], without a trace.
    ///
    /// # Errors
    /// As [`Case::load`].
    pub fn load_script(stem: &Path) -> Result<(Script, Settings), CaseError> {
        let (folder, name) = split(stem)?;
        let (io, env) = (beside_or_above(&folder, &format!("{name}.io")), folder.join(format!("{name}.env")));
        let script = Script::parse(&shown(&io), &read(&io)?)?;
        let settings = Settings::parse(&shown(&env), &read(&env)?)?;
        let end = settings.disk.sectors;
        let over = script.ios.iter().find(|io| io.extent.sector + u64::from(io.extent.len) > end);
        if let Some(over) = over {
            let text = format!("{}: {}: past the end of the disk ({end} sectors); raise gb=", shown(&io), over.extent);
            return Err(CaseError(text));
        }
        Ok((script, settings))
    }

    /// Replays and compares under each choice that the kernel may have made, until everything is equal under one. If
    /// there is none, the verdict is that of the choice under which the first difference comes latest.
    ///
    /// # Errors
    /// Settings that the stack refuses.
    pub fn judge(&self) -> Result<Verdict, CaseError> {
        let later = |v: &Verdict| v.first.as_ref().map_or(u64::MAX, |d| d.us);
        let mut best: Option<Verdict> = None;
        for rules in rules(&self.settings.scheduler, &self.theirs) {
            for unknown in self.unknowns() {
                let v = self.judge_at(unknown, rules)?;
                let equal = v.is_equal();
                if best.as_ref().is_none_or(|best| later(&v) > later(best)) {
                    best = Some(v);
                }
                if equal {
                    return Ok(best.expect("nothing is later than never"));
                }
            }
        }
        Ok(best.expect("there is always a first rule and a first choice"))
    }

    /// Returns all combinations of what the kernel may have chosen, [`Unknown::NONE`] first.
    fn unknowns(&self) -> Vec<Unknown> {
        let tags = self.settings.nr_requests.unwrap_or(0).min(MAX_HINTS) as u16;
        let phases = (0..TICK_US).step_by(PHASE_STEP_US as usize);
        let clocks: Vec<Clock> = std::iter::once(Clock::Exact)
            .chain(phases.map(|phase_us| Clock::Ticks { tick_us: TICK_US, phase_us }))
            .collect();
        let hints = || 0..tags.max(1);
        clocks.iter().flat_map(|clock| hints().map(|hint| Unknown { clock: *clock, hint })).collect()
    }

    fn judge_at(&self, unknown: Unknown, rules: Rules) -> Result<Verdict, CaseError> {
        let cpus = self.settings.cpus_seen(self.theirs.iter().map(|e| e.cpu).max().unwrap_or(0));
        let replayed = replay(&self.script, &self.settings, cpus, &self.theirs, unknown, &rules)
            .map_err(|e| CaseError(format!("{}: {e}", self.name)))?;
        let columns = compare(&self.theirs, &replayed.events, &rules);
        let first = self.first(&columns, &replayed, &rules);
        let requests = self.theirs.iter().filter(|e| e.kind == Kind::Issue).count();
        Ok(Verdict { columns, requests, rules, unknown, first, ours: replayed.events })
    }

    fn first(&self, columns: &[Column], replayed: &Replayed, rules: &Rules) -> Option<Difference> {
        let start = self.theirs.first().map_or(0, |e| e.us);
        let differing = columns.iter().filter(|c| !c.is_equal()).filter_map(|c| c.first.clone());
        let mut all: Vec<(u64, String)> = differing.map(|d| (d.us, d.text)).collect();
        if let Some(at) = replayed.astray {
            let e = self.theirs[at];
            all.push((
                e.us,
                format!("{e}: the process here cannot submit this now (script and trace differ, or no tag)"),
            ));
        }
        if let Some((at, n)) = replayed.late.filter(|_| !rules.may_be_late) {
            let e = self.theirs[at];
            all.push((e.us, format!("{n} requests are issued later than the kernel's, seen before {e}")));
        }
        let (us, text) = all.into_iter().min()?;
        Some(Difference { us: us.saturating_sub(start), text })
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn split(stem: &Path) -> Result<(PathBuf, String), CaseError> {
    let stem = match stem.extension().and_then(|e| e.to_str()) {
        Some("io" | "env" | "trace" | "tags") => stem.with_extension(""),
        _ => stem.to_path_buf(),
    };
    let name = stem.file_name().and_then(|n| n.to_str()).map(str::to_owned);
    let name = name.ok_or_else(|| CaseError(format!("'{}': must be FOLDER/NAME of a case", stem.display())))?;
    Ok((stem.parent().unwrap_or(Path::new("")).to_path_buf(), name))
}

/// Returns the names of all cases in a folder: those with a script, or with a recording of shared tags. Such a
/// recording may also lie in a kernel's subfolder.
///
/// # Errors
/// A folder that cannot be read.
pub fn names(folder: &Path) -> Result<Vec<String>, CaseError> {
    let list = |folder: &Path| -> Result<Vec<PathBuf>, CaseError> {
        let entries = folder.read_dir();
        let entries = entries.map_err(|e| CaseError(format!("cannot read the folder {}: {e}", folder.display())))?;
        Ok(entries.flatten().map(|e| e.path()).collect())
    };
    let here = list(folder)?;
    let mut names = Vec::new();
    let mut add = |paths: &[PathBuf], extension: &str| {
        names.extend(paths.iter().filter_map(|p| Some(p.file_name()?.to_str()?.strip_suffix(extension)?.to_owned())));
    };
    add(&here, ".io");
    add(&here, ".tags");
    for below in here.iter().filter(|p| p.is_dir()) {
        add(&list(below)?, ".tags");
    }
    names.sort();
    names.dedup();
    Ok(names)
}

/// Returns the file with a case's recording of shared tags; `None` if the case has none.
pub fn tags_file(stem: &Path) -> Option<PathBuf> {
    let (folder, name) = split(stem).ok()?;
    find(&folder, &format!("{name}.tags"))
}

/// Reads a recording of shared tags.
///
/// # Errors
/// A file that is missing or broken; the text names it.
pub fn load_tags(file: &Path) -> Result<TagCase, CaseError> {
    TagCase::parse(&shown(file), &read(file)?)
}
