// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Possible machines: each constant that is not known exactly has a value in its range.
//!
//! The range of a constant is its entry in the file's `[uncertain]`. Without an entry, a CPU cost that the file gives is
//! known within a factor of 1.25, and a default cost within a factor of 2. A constant of the disk without an entry has the
//! file's value.
//!
//! Guarantees: a constant's range has as many equal parts as there are members, and each member has one part (a Latin
//! hypercube). For the number of I/Os that a disk serves at once, half of the members use one end of the range and half the
//! other, because values in between would represent neither.

use crate::rng::Rng;
use crate::scenario::file::Scenario;
use crate::scenario::known::{COSTS, DISK};

/// Factors by which a cost is uncertain: for a cost that the file gives, and for a default.
const COST_FACTOR: (f64, f64) = (1.25, 2.0);

/// The uncertain constants, and the value of each in every member.
pub struct Draws {
    /// Names of the uncertain constants, in a fixed order.
    pub names: Vec<String>,
    /// Values by member, then by name.
    values: Vec<Vec<f64>>,
}

impl Draws {
    /// Draws the possible machines of a file.
    pub fn new(machine: &Scenario, table: &toml::Table, members: u32, seed: u64) -> Draws {
        let mut names = Vec::new();
        let mut values = vec![Vec::new(); members as usize];
        for (i, name) in DISK.iter().chain(&COSTS).enumerate() {
            let Some([low, high]) = range(machine, table, name) else { continue };
            names.push((*name).to_owned());
            let mut rng = Rng::new(seed ^ (i as u64 + 1) << 32);
            let mut parts: Vec<u32> = (0..members).collect();
            for n in (1..parts.len()).rev() {
                parts.swap(n, rng.below(n as u64 + 1) as usize);
            }
            for (member, part) in parts.into_iter().enumerate() {
                let within = rng.below(1 << 20) as f64 / f64::from(1u32 << 20);
                let at = (f64::from(part) + within) / f64::from(members);
                values[member].push(if *name == "disk.parallel" {
                    if part < members / 2 { low } else { high }
                } else if low > 0.0 {
                    low * (high / low).powf(at)
                } else {
                    low + (high - low) * at
                });
            }
        }
        Draws { names, values }
    }

    /// Makes the machine of a member. The constants in `places` keep the values of the question.
    pub fn machine(&self, of: &Scenario, member: u32, places: &[String]) -> Scenario {
        let mut machine = of.clone();
        for (name, value) in self.names.iter().zip(&self.values[member as usize]) {
            if !places.contains(name) {
                set(&mut machine, name, *value);
            }
        }
        machine
    }

    /// Returns the value of a constant in a member.
    pub fn value(&self, member: usize, name: usize) -> f64 {
        self.values[member][name]
    }
}

/// Returns the range of a constant; `None` if the constant is known.
fn range(machine: &Scenario, table: &toml::Table, name: &str) -> Option<[f64; 2]> {
    if let Some(range) = machine.uncertain.get(name) {
        return Some(*range);
    }
    let place = name.strip_prefix("costs.")?;
    let (group, field) = place.split_once('.')?;
    if group == "kernel" && !machine.layer.is_kernel() {
        return None;
    }
    let is_there = table.get("costs").and_then(|c| c.get(group)?.get(field)).is_some();
    let factor = if is_there { COST_FACTOR.0 } else { COST_FACTOR.1 };
    let value = f64::from(machine.costs.field(name)?);
    Some([value / factor, value * factor])
}

fn set(m: &mut Scenario, name: &str, value: f64) {
    match name {
        "disk.read_us" => m.disk.read_us = value,
        "disk.write_us" => m.disk.write_us = value,
        "disk.iops" => m.disk.iops = value.round() as u64,
        "disk.bw_mb" => m.disk.bw_mb = value,
        "disk.parallel" => m.disk.parallel = (value.round() as u32).clamp(1, 65_536),
        "disk.jitter_pct" => m.disk.jitter_pct = (value.round() as u32).min(100),
        _ => *m.costs.field_mut(name).expect("a name of COSTS") = value.round() as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_its_place() {
        let text = "[machine]\n[disk]\nsize_gib = 1\nread_us = 100\nwrite_us = 100\n";
        let mut m = Scenario::parse_machine("m", text).unwrap();
        for name in DISK.iter().chain(&COSTS) {
            let before = m.clone();
            set(&mut m, name, 17.0);
            assert_ne!(m, before, "{name}");
        }
    }

    #[test]
    fn members_cover_a_range_and_known_costs_are_nearer() {
        let text = "[machine]\n[disk]\nsize_gib = 1\nread_us = 100\nwrite_us = 100\n[costs.path]\nirq_ns = 1000\n\
                    [uncertain]\n\"disk.read_us\" = [50, 200]\n\"disk.parallel\" = [8, 65536]\n";
        let m = Scenario::parse_machine("m", text).unwrap();
        let draws = Draws::new(&m, &text.parse().unwrap(), 8, 1);
        let machines: Vec<Scenario> = (0..8).map(|k| draws.machine(&m, k, &[])).collect();
        let mut reads: Vec<f64> = machines.iter().map(|m| m.disk.read_us).collect();
        reads.sort_by(f64::total_cmp);
        // One value in each eighth of the range, on a logarithmic scale.
        for (i, r) in reads.iter().enumerate() {
            assert!(
                (50.0 * 4f64.powf(i as f64 / 8.0)..=50.0 * 4f64.powf((i + 1) as f64 / 8.0)).contains(r),
                "{reads:?}"
            );
        }
        assert_eq!(machines.iter().filter(|m| m.disk.parallel == 8).count(), 4);
        assert!(machines.iter().all(|m| (800..=1250).contains(&m.costs.path.irq_ns)));
        assert!(
            machines.iter().any(|m| m.costs.path.app_ns < 180) && machines.iter().any(|m| m.costs.path.app_ns > 350)
        );
        let asked = draws.machine(&m, 0, &["disk.read_us".into()]);
        assert_eq!(asked.disk.read_us, 100.0);
    }
}
