// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where jobs run: our block layer on this host, the kernel's own block devices, or a simulated machine, each with the same figures.
//!
//! A world takes jobs, settings and a seed, and returns a [`Run`]; the target selects the world ([`of`]). Guarantees: a
//! caller that uses [`of`] compares and tunes in the same way in each world. Needs from a world: it omits what it cannot
//! measure ([`Run::facts`] without stages), and it rejects what it cannot do before anything runs. Does not: mix worlds in
//! one run.
//!
//! To add a world: add a file beside `kernel.rs`, and its prefix in [`of`].

pub mod kernel;
pub mod sim;

use host::error::Result;
use host::target::{TargetSpec, has_kind};
use workload::job::JobFile;

use crate::run::{Observer, Run, RunSpec, execute_here, prepare_here};
use crate::stack;
use crate::tune::point::Knobs;
use crate::tune::stack_knobs::{self, Ends};

/// See the module's text.
pub trait World: Sync {
    /// The world's name for messages: `the block layer of mqblk`.
    fn name(&self) -> &'static str;

    /// Rejects an invalid target or invalid settings, before anything runs or is written.
    ///
    /// # Errors
    /// The first reason for rejection.
    fn check(&self, target: Option<&str>, settings: &[(String, String)]) -> Result<()>;

    /// Returns why two different lists of settings are the same on this target, if they are: then there is nothing to compare.
    fn same(&self, target: Option<&str>, a: &[(String, String)], b: &[(String, String)]) -> Option<String>;

    /// Returns the random number for runs without a given one: `fresh`, or a constant in a world where equal numbers give
    /// equal figures.
    fn entropy(&self, fresh: u64) -> u64 {
        fresh
    }

    /// Describes the machine of the target, if that is not this host.
    fn machine(&self, _file: &JobFile, _target: Option<&str>) -> Option<String> {
        None
    }

    /// Returns what identifies the device or machine of the target, so that a different one with the same name is noticed:
    /// the identity of a disk, or the content of a machine file. Runs with different answers are not combined. Returns
    /// `None` if only the target's text is known.
    ///
    /// # Errors
    /// The target does not exist.
    fn behind(&self, _file: &JobFile, _target: Option<&str>) -> Result<Option<String>> {
        Ok(None)
    }

    /// Returns the knobs of the target with values worth trying, and the rules of thumb in use. The target is opened as for
    /// a run, and its settings do not change.
    ///
    /// # Errors
    /// The target cannot run jobs.
    fn knobs(&self, spec: &RunSpec<'_, '_>, observer: &mut dyn Observer) -> Result<Knobs>;

    /// Runs the jobs.
    ///
    /// # Errors
    /// Nothing could be measured; failed I/Os are no error but part of the measurements.
    fn run<'f>(&self, spec: &RunSpec<'f, '_>, observer: &mut dyn Observer) -> Result<Run<'f>>;
}

/// The block layer of mqblk, in this process.
#[derive(Clone, Copy, Debug)]
pub struct OurStack;

/// The kernel's block devices of this host.
#[derive(Clone, Copy, Debug)]
pub struct KernelDevices;

/// Simulated machines.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedMachines;

/// Returns the CPUs of the machine that jobs run on, if `target` is not this host.
pub fn cpus_of(target: Option<&str>) -> Option<u32> {
    target.filter(|t| t.starts_with("sim:")).and_then(sim::cpus_of)
}

/// Returns the world of a target; without a target, the world of the first job's file.
pub fn of(file: &JobFile, target: Option<&str>) -> &'static dyn World {
    let own = || file.jobs.first().map(|j| j.file_name(0, 0, &has_kind)).unwrap_or_default();
    let text = target.map_or_else(own, str::to_owned);
    match text.split_once(':') {
        Some(("kernel", _)) => &KernelDevices,
        Some(("sim", _)) => &SimulatedMachines,
        _ => &OurStack,
    }
}

/// Checks, opens and runs `spec` in the world of its target. An error means that nothing was measured; failed I/Os are part
/// of the measurements.
pub fn execute<'f>(spec: &RunSpec<'f, '_>, observer: &mut dyn Observer) -> Result<Run<'f>> {
    of(spec.file, spec.target).run(spec, observer)
}

impl World for OurStack {
    fn name(&self) -> &'static str {
        "the block layer of mqblk"
    }

    fn check(&self, target: Option<&str>, settings: &[(String, String)]) -> Result<()> {
        host::run::check_settings(settings)?;
        target.map_or(Ok(()), |target| TargetSpec::parse(target).map(drop))
    }

    fn same(&self, _: Option<&str>, _: &[(String, String)], _: &[(String, String)]) -> Option<String> {
        None
    }

    fn knobs(&self, spec: &RunSpec<'_, '_>, observer: &mut dyn Observer) -> Result<Knobs> {
        let prepared = prepare_here(spec, observer)?;
        observer.prepared(&prepared);
        let queue = &prepared.disks[prepared.targets[0].disks.start].1.queue;
        Ok(stack_knobs::of(&stack::in_effect(queue, spec.settings), Ends::of(queue)))
    }

    fn run<'f>(&self, spec: &RunSpec<'f, '_>, observer: &mut dyn Observer) -> Result<Run<'f>> {
        execute_here(spec, observer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use workload::job::ParseContext;

    #[test]
    fn the_target_names_the_world() {
        let context = ParseContext { is_target: &has_kind, ..ParseContext::bare("t.fio") };
        let file = |text: &str| JobFile::parse_str(text, &context, &[]).unwrap();
        let (ours, kernels) = (OurStack.name(), KernelDevices.name());
        let plain = file("[a]\nsize=1m\nfilename=disk.img\n");
        assert_eq!(of(&plain, None).name(), ours);
        assert_eq!(of(&plain, Some("kernel:/dev/loop0")).name(), kernels);
        assert_eq!(of(&plain, Some("/dev/loop0")).name(), ours);
        let own = file("[a]\nsize=1m\nfilename=kernel:/dev/loop0\n");
        assert_eq!(of(&own, None).name(), kernels);
        assert_eq!(of(&own, Some("null")).name(), ours);
        assert_eq!(of(&own, Some("sim:m.toml")).name(), SimulatedMachines.name());
    }
}
