// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes settings of a disk for a while, and restores them.
//!
//! Guarantees: the old values are on disk ([`state`](super::state)) before the first write, so that they are restored whatever happens.
//! [`SettingsGuard::put_back`] or the drop of a [`SettingsGuard`] does so (an error, a panic), [`put_back_all`] where the process ends
//! without that, and the next use of the disk or [`put_back_left`] after a kill. Only settings that were changed, directly or as a side
//! effect, are restored, in an order in which nothing resets earlier ones. They are read again afterwards. Needs from callers: no I/O in
//! flight that never completes ([`SettingsGuard::leave`]). The kernel changes an elevator when the disk is idle, and waits for that. Does
//! not: keep other programs from writing the same settings meanwhile.

use super::device::KernelDevice;
use super::in_use;
use super::settings::Planned;
use super::state::{self, SavedState, StateFile};
use super::sysfs;
use crate::error::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

/// Passes over settings that reset each other.
const PASSES: usize = 3;
/// Longest time for restoring settings when the process is about to exit.
const PATIENCE: Duration = Duration::from_secs(5);

/// The changes to restore; `None`: they are restored already.
type Shared = Arc<Mutex<Option<Changes>>>;

/// All that this process has changed.
static KEPT: Mutex<Vec<Shared>> = Mutex::new(Vec::new());

/// Temporary settings of a disk, restored when this is dropped.
pub struct SettingsGuard(Shared);

struct Changes {
    device: KernelDevice,
    file: StateFile,
    state: SavedState,
}

/// What was put back, and what could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// Name, value found, value put back.
    done: Vec<(String, String, String)>,
    problems: Vec<String>,
}

impl SettingsGuard {
    /// Writes planned settings, and returns what the kernel made of them. `None`: nothing had to be changed. Settings that an earlier
    /// process has left behind are restored first.
    ///
    /// # Errors
    /// The disk's settings are in use by another process, the state cannot be kept, or the kernel refuses a value: then
    /// everything is as it was.
    pub fn apply(device: &KernelDevice, planned: &Planned) -> Result<(Option<SettingsGuard>, Vec<String>)> {
        let mut said = Vec::new();
        if planned.writes.is_empty() {
            return Ok((None, said));
        }
        let file = lock(device)?;
        if let Some(left) = put_back_file(device, &file)? {
            if !left.is_whole {
                // The present settings are not the disk's own. If they were kept as the disk's own, they would be put back for good.
                return Err(Error::new(
                    ErrorKind::Io,
                    format!("{}; mqblk restore {} tries again", left.text, device.disk),
                ));
            }
            said.push(left.text);
        }
        let before = sysfs::snapshot(device);
        let is_so = |(name, value): &&(String, String)| before.get(name).is_some_and(|now| sysfs::same(now, value));
        if planned.writes.iter().all(|write| is_so(&write)) {
            return Ok((None, said));
        }
        let state = SavedState { pid: std::process::id(), before, changed: None };
        file.save(&state)?;
        let shared: Shared = Arc::new(Mutex::new(None));
        let kept = SettingsGuard(Arc::clone(&shared));
        KEPT.lock().push(Arc::clone(&shared));
        let done = {
            // Held until all is written, so that a thread that puts everything back comes before or after it.
            let mut held = shared.lock();
            let changes = held.insert(Changes { device: device.clone(), file, state });
            changes.write(&planned.writes, &mut said)
        };
        if let Err(e) = done {
            return Err(kept.put_back().into_iter().fold(e, |e, problem| e.within(&problem)));
        }
        Ok((Some(kept), said))
    }

    /// Refuses a disk whose settings another process has changed and will put back.
    ///
    /// # Errors
    /// There is such a process.
    pub fn check_free(device: &KernelDevice) -> Result<()> {
        lock(device).map(drop)
    }

    /// Lets the settings stay as they are now, for good: they are not put back.
    ///
    /// # Errors
    /// The state cannot be taken away; the settings are put back then.
    pub fn keep(self) -> Result<()> {
        let mut held = self.0.lock();
        if let Some(changes) = held.as_ref() {
            changes.file.remove()?;
        }
        *held = None;
        Ok(())
    }

    /// Puts everything back. Returns what could not be.
    #[must_use]
    pub fn put_back(self) -> Vec<String> {
        put_back(&self.0)
    }

    /// Leaves the settings as they are, for `mqblk restore`, because I/O in flight does not complete.
    #[must_use]
    pub fn leave(self) -> String {
        let disk = self.0.lock().take().map(|c| c.device.disk).unwrap_or_default();
        format!(
            "{disk}: its settings were not put back: its I/O does not complete, and the kernel would block; once it \
             completes: mqblk restore {disk}"
        )
    }
}

impl Drop for SettingsGuard {
    fn drop(&mut self) {
        for problem in put_back(&self.0) {
            log::error!("{problem}");
            // A run that ends with an error, or a panic: nothing else would report it.
            eprintln!("mqblk: {problem}");
        }
        KEPT.lock().retain(|other| !Arc::ptr_eq(other, &self.0));
    }
}

fn put_back(shared: &Shared) -> Vec<String> {
    shared.lock().take().map(|mut changes| changes.put_back().problems).unwrap_or_default()
}

/// Writes settings of a disk that stay: all of them, or, with an error, none. What the kernel made another value of is
/// reported. As in a run, a disk in use is rejected unless `force`, and it is claimed until all is written.
///
/// # Errors
/// The disk cannot have one of them, it is in use, or another process has changed its settings for a while.
pub fn write_for_good(device: &KernelDevice, asked: &[(String, String)], force: bool) -> Result<Vec<String>> {
    let planned = super::settings::plan(device, asked, super::settings::Effect::Any)?;
    let (mut warnings, mut claim) = (Vec::new(), None);
    if !planned.writes.is_empty() {
        let mut found = in_use::uses(device, true)?;
        if found.is_empty() {
            claim = in_use::Claim::take(device, true)?;
            found.extend(claim.is_none().then(|| format!("another process has {} open exclusively", device.disk)));
        }
        if !found.is_empty() {
            warnings.push(in_use::use_anyway(device, &found, in_use::SETTINGS_CHANGE, force)?);
        }
    }
    let (kept, said) = SettingsGuard::apply(device, &planned)?;
    kept.map_or(Ok(()), SettingsGuard::keep)?;
    drop(claim);
    warnings.extend(said);
    Ok(warnings)
}

/// Puts back all that this process has changed, for a caller that is about to exit without returning; five seconds at most. Returns
/// what could not be; it can be put back later.
pub fn put_back_all() -> Vec<String> {
    let all = std::mem::take(&mut *KEPT.lock());
    if all.is_empty() {
        return Vec::new();
    }
    let (tell, told) = mpsc::channel();
    // A write may wait for I/O that does not end.
    let thread = std::thread::Builder::new().name("put-back".to_owned());
    let started = thread.spawn(move || {
        let problems = all.iter().flat_map(put_back).collect::<Vec<_>>();
        // If the wait below has timed out, the receiver is gone.
        let _ = tell.send(problems);
    });
    match started.ok().and_then(|_| told.recv_timeout(PATIENCE).ok()) {
        Some(problems) => problems,
        None => {
            vec!["settings of a kernel device could not be put back in time: run mqblk restore later".to_owned()]
        }
    }
}

/// Puts back what processes that were killed have left: of this disk, or of all. Returns what was done, disk by disk, and
/// whether all could be put back.
///
/// # Errors
/// A state cannot be read.
pub fn put_back_left(device: Option<&KernelDevice>) -> Result<(Vec<String>, bool)> {
    let (mut said, mut whole) = (Vec::new(), true);
    for disk in state::disks()?.into_iter().filter(|disk| device.is_none_or(|d| d.disk == *disk)) {
        let found = match device {
            Some(d) => d.clone(),
            None => match KernelDevice::of_disk(&disk) {
                Ok(found) => found,
                Err(_) if !Path::new("/sys/block").join(&disk).exists() && Path::new("/sys/block").is_dir() => {
                    state::forget(&disk);
                    said.push(format!("{disk}: no longer exists, so there is nothing to put back"));
                    continue;
                }
                Err(e) => {
                    said.push(format!("{disk}: {NOT_PUT_BACK}: {e}"));
                    whole = false;
                    continue;
                }
            },
        };
        match StateFile::lock(&found)? {
            Err(pid) => {
                let whose = pid.map_or_else(|| "another mqblk".to_owned(), |pid| format!("process {pid}"));
                said.push(format!(
                    "{disk}: its settings are changed by {whose}, which is still running and puts them back when it \
                     ends"
                ));
            }
            Ok(file) => {
                let left = put_back_file(&found, &file)?;
                whole &= left.as_ref().is_none_or(|l| l.is_whole);
                said.extend(left.map(|l| l.text));
            }
        }
    }
    Ok((said, whole))
}

/// How a problem is told.
const NOT_PUT_BACK: &str = "could not be put back";

fn lock(device: &KernelDevice) -> Result<StateFile> {
    StateFile::lock(device)?.map_err(|pid| {
        let whose = pid.map_or_else(|| "another mqblk".to_owned(), |pid| format!("mqblk, process {pid}"));
        let disk = &device.disk;
        Error::usage(format!("{disk}: its settings are in use by {whose}; wait until it has ended, or stop it"))
    })
}

/// What became of settings that were left.
struct Leftover {
    text: String,
    /// All were put back.
    is_whole: bool,
}

/// Puts back what the file says, if there is something.
fn put_back_file(device: &KernelDevice, file: &StateFile) -> Result<Option<Leftover>> {
    let Some(state) = file.load()? else { return Ok(None) };
    let Outcome { done, problems } = restore(device, &state);
    if problems.is_empty() {
        file.remove()?;
    }
    let disk = &device.disk;
    let list: Vec<_> = done.iter().map(|(name, from, to)| format!("{name} {from} -> {to}")).collect();
    let list = if list.is_empty() { "nothing differed".to_owned() } else { list.join(", ") };
    let mut text =
        format!("{disk}: put back settings that mqblk, process {}, left changed when it was killed: {list}", state.pid);
    problems.iter().for_each(|p| text.extend(["; ", p]));
    Ok(Some(Leftover { text, is_whole: problems.is_empty() }))
}

impl Changes {
    fn write(&mut self, writes: &[(String, String)], said: &mut Vec<String>) -> Result<()> {
        let device = &self.device;
        for (name, value) in writes {
            let before = sysfs::value_of(device, name);
            if before.as_ref().is_some_and(|now| sysfs::same(now, value)) {
                continue;
            }
            sysfs::write(device, name, value).map_err(|e| {
                let now = before.map_or_else(String::new, |now| format!("; it stays {now}"));
                // Another value may do; a problem of the disk itself, or of the caller, stays.
                let kind = if e.kind() == ErrorKind::Io { ErrorKind::Refused } else { e.kind() };
                Error::new(kind, format!("{e}{now}{}", range(device, name)))
            })?;
            let now = sysfs::value_of(device, name).unwrap_or_default();
            if !sysfs::same(&now, value) {
                said.push(format!("{name}={value}: {} changed it to {now}, which is in effect", device.disk));
            }
        }
        let after = sysfs::snapshot(device);
        let is_changed = |name: &&String| {
            after.get(*name) != self.state.before.get(*name) || writes.iter().any(|(written, _)| written == *name)
        };
        self.state.changed = Some(self.state.before.keys().filter(is_changed).cloned().collect());
        self.file.save(&self.state)
    }

    fn put_back(&mut self) -> Outcome {
        let mut outcome = restore(&self.device, &self.state);
        if outcome.problems.is_empty()
            && let Err(e) = self.file.remove()
        {
            outcome.problems.push(e.to_string());
        }
        if !outcome.problems.is_empty() {
            let path = self.file.path().display();
            outcome
                .problems
                .push(format!("its previous settings are in {path}; mqblk restore {} tries again", self.device.disk));
        }
        outcome
    }
}

/// What a rejected user may need to know.
fn range(device: &KernelDevice, name: &str) -> String {
    match name {
        "scheduler" => format!("; it has {}", sysfs::schedulers(device).join(", ")),
        "max_sectors_kb" => {
            let most = sysfs::value_of(device, "max_hw_sectors_kb");
            most.map_or_else(String::new, |most| format!("; at most {most} (max_hw_sectors_kb), at least a page"))
        }
        "nr_requests" => {
            let tags = device.nr_tags();
            tags.map_or_else(String::new, |tags| {
                format!("; at most {tags} (its tags) without an elevator, 2048 with one")
            })
        }
        "nomerges" | "rq_affinity" => "; must be 0, 1 or 2".to_owned(),
        _ => String::new(),
    }
}

/// Writes what differs, until nothing does.
fn restore(device: &KernelDevice, state: &SavedState) -> Outcome {
    let mut outcome = Outcome::default();
    // A disk that was unplugged has taken its settings along.
    if !device.disk_dir.join("queue").is_dir() {
        return outcome;
    }
    let mut names: Vec<&String> = match &state.changed {
        Some(changed) => changed.iter().filter(|name| state.before.contains_key(*name)).collect(),
        None => state.before.keys().collect(),
    };
    names.sort_by_key(|name| sysfs::rank(name));
    let differs = |name: &str| sysfs::value_of(device, name).filter(|now| *now != state.before[name]);
    let mut refused = Vec::new();
    for _ in 0..PASSES {
        refused.clear();
        for name in &names {
            let Some(now) = differs(name) else { continue };
            let was = &state.before[*name];
            match sysfs::write(device, name, was) {
                Ok(()) => outcome.done.push(((*name).clone(), now, was.clone())),
                Err(e) => refused.push(e.to_string()),
            }
        }
        if names.iter().all(|name| differs(name).is_none()) {
            return outcome;
        }
    }
    for name in names {
        if let Some(now) = differs(name) {
            let was = &state.before[name];
            outcome.problems.push(format!("{}: {name} was {was}, is {now} and {NOT_PUT_BACK}", device.disk));
        }
    }
    outcome.problems.append(&mut refused);
    outcome
}
