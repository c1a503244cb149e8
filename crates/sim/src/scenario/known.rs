// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How well the figures of a machine file are known: ranges of constants, and figures that were measured on the real machine.
//!
//! ```toml
//! [uncertain]
//! "disk.read_us" = [80.0, 120.0]
//! "disk.parallel" = [32, 65536]
//! [measured]
//! "db.iops" = 12000.0
//! ```

use super::file::{Broken, Scenario, check_figure, key};
use blk::suggest::nearest;
use std::collections::BTreeMap;

/// Ranges of constants, by the constant's path in the file.
pub type Uncertain = BTreeMap<String, [f64; 2]>;

/// Figures of jobs, by `job.metric`.
pub type Measured = BTreeMap<String, f64>;

/// Constants of the disk that may have a range.
pub(crate) const DISK: [&str; 6] =
    ["disk.read_us", "disk.write_us", "disk.iops", "disk.bw_mb", "disk.parallel", "disk.jitter_pct"];

/// Constants of the CPUs' work that may have a range, by their path in [`crate::machine::costs::Costs`].
pub(crate) const COSTS: [&str; 18] = [
    "costs.path.app_ns",
    "costs.path.syscall_ns",
    "costs.path.submit_ns",
    "costs.path.hold_ns",
    "costs.path.dispatch_ns",
    "costs.path.doorbell_ns",
    "costs.path.irq_ns",
    "costs.path.complete_ns",
    "costs.path.wakeup_ns",
    "costs.path.ipi_ns",
    "costs.path.switch_ns",
    "costs.line.atomic_ns",
    "costs.line.core_ns",
    "costs.line.socket_ns",
    "costs.line.remote_ns",
    "costs.line.lines",
    "costs.kernel.hold_pct",
    "costs.kernel.lines_pct",
];

/// Checks the rules. The error is the key that breaks a rule, and the rule.
pub(super) fn check(s: &Scenario) -> Result<(), Broken> {
    for (name, [low, high]) in &s.uncertain {
        let all = || DISK.iter().chain(&COSTS).copied();
        let key = key(["uncertain", name]);
        if all().all(|n| n != name) {
            let hint = nearest(name, all()).map_or_else(
                || format!("must be one of {}", all().collect::<Vec<_>>().join(", ")),
                |n| format!("did you mean '{n}'?"),
            );
            return Err((key, format!("'{name}': is not a constant that can have a range; {hint}")));
        }
        if s.disk.hdd.is_some() && name.starts_with("disk.") {
            return Err((key, format!("{name}: a hard disk's times follow from [disk.hdd]; remove the range")));
        }
        if !(0.0..=1e9).contains(low) || !(*low..=1e9).contains(high) {
            return Err((key, format!("{name} = [{low}, {high}]: must be [LOW, HIGH], 0 to 1e9, the lower one first")));
        }
    }
    for (figure, value) in &s.measured {
        check_figure(figure).map_err(|why| (key(["measured", figure]), why))?;
        if !value.is_finite() || *value <= 0.0 {
            return Err((key(["measured", figure]), format!("{figure} = {value}: must be above 0")));
        }
    }
    Ok(())
}
