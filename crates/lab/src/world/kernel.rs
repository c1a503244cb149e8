// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's block devices as a world.
//!
//! Guarantees: what the kernel does not report (the stages of a request) is omitted. Does not: write settings or do I/O;
//! `host::run` and `host::kernel` do.

use host::error::{Error, Result};
use host::kernel::{self, KernelDevice, Planned};
use host::run::check_kernel_settings;
use host::secrets::without_secrets;
use host::target::{TargetSpec, has_kind};
use workload::job::{Job, JobFile};

use super::{KernelDevices, World};
use crate::run::{Observer, Run, RunSpec, execute_here};
use crate::tune::kernel_knobs;
use crate::tune::point::Knobs;

impl World for KernelDevices {
    fn name(&self) -> &'static str {
        "the block layer of the kernel"
    }

    fn check(&self, target: Option<&str>, settings: &[(String, String)]) -> Result<()> {
        planned(target, settings).map(drop)
    }

    fn same(&self, target: Option<&str>, a: &[(String, String)], b: &[(String, String)]) -> Option<String> {
        let (a, b) = (planned(target, a).ok()??, planned(target, b).ok()??);
        let why = a.without_effect.iter().chain(&b.without_effect).next()?;
        (a.writes == b.writes && a.without_effect != b.without_effect).then(|| why.why.clone())
    }

    fn behind(&self, file: &JobFile, target: Option<&str>) -> Result<Option<String>> {
        let name = |(_, device): &(String, KernelDevice)| device.own_name();
        let names: Vec<String> = devices(file, target)?.iter().map(name).collect();
        Ok(Some(names.join("; ")))
    }

    fn knobs(&self, spec: &RunSpec<'_, '_>, _observer: &mut dyn Observer) -> Result<Knobs> {
        let devices = devices(spec.file, spec.target)?;
        let (first, device) = devices.first().ok_or_else(|| Error::usage("there are no jobs and no devices"))?;
        // The default of one disk need not be the default of another.
        if let Some((other, _)) = devices.iter().find(|(_, d)| d.disk != device.disk) {
            return Err(Error::usage(format!(
                "'{other}' and '{first}': tune works on one kernel disk; name it in all jobs, or use --target {first}"
            )));
        }
        check_kernel_settings(&device.node, spec.settings)?;
        // A value that an earlier process changed and did not restore is not the disk's own.
        let (said, whole) = kernel::put_back_left(Some(device))?;
        if !whole {
            return Err(Error::usage(said.join("; ")));
        }
        let mut now = kernel::in_effect(device);
        for (name, value) in spec.settings {
            now.retain(|(key, _)| key != name);
            now.push((name.clone(), value.clone()));
        }
        let disk = kernel_knobs::Disk {
            now,
            writable: kernel::writable(device),
            schedulers: kernel::schedulers(device),
            nr_tags: device.nr_tags(),
        };
        Ok((kernel_knobs::knobs(&disk), kernel_knobs::rules(&disk)))
    }

    fn run<'f>(&self, spec: &RunSpec<'f, '_>, observer: &mut dyn Observer) -> Result<Run<'f>> {
        if spec.trace_events > 0 {
            let text = "--trace: not for a target kernel:/dev/X; use blktrace -d DEV during the run";
            return Err(Error::usage(text));
        }
        execute_here(spec, observer)
    }
}

/// The devices of a run, each with its target as the user named it.
fn devices(file: &JobFile, target: Option<&str>) -> Result<Vec<(String, KernelDevice)>> {
    let own = |job: &Job| -> Vec<String> {
        let all = 0..job.numjobs;
        let data = all.clone().flat_map(|i| job.file_names(i, &has_kind));
        data.chain(all.filter_map(|i| job.redo_file_name(i, &has_kind))).collect()
    };
    let mut names = target.map_or_else(|| file.jobs.iter().flat_map(own).collect(), |t| vec![t.to_owned()]);
    names.sort();
    names.dedup();
    let find = |name: String| match TargetSpec::parse(&name)? {
        TargetSpec::Kernel(path) => Ok((name, KernelDevice::find(&path)?)),
        _ => Err(Error::usage(format!(
            "'{}': is not a kernel device; give all jobs the same kind of target, or use --target",
            without_secrets(&name)
        ))),
    };
    names.into_iter().map(find).collect()
}

/// Checks the settings on this target and plans them. Returns `None` if the jobs name their devices.
fn planned(target: Option<&str>, settings: &[(String, String)]) -> Result<Option<Planned>> {
    match target.map(TargetSpec::parse).transpose()? {
        Some(TargetSpec::Kernel(path)) => check_kernel_settings(&path, settings).map(Some),
        _ => Ok(None),
    }
}
