// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A simulated machine with `[guests]`: the users of the virtual machines' databases are the load, so no other jobs run.
//!
//! Guarantees: settings have the names that `mqblk sim --what-if` takes; settings without effect on virtual machines are
//! rejected. Needs: a file that [`Scenario::parse_machine`] accepts. Does not: run jobs ([`super`] does).

use std::path::PathBuf;

use blk::suggest::did_you_mean;
use host::error::{Error, Result};
use host::target::TargetSpec;
use sim::machine::guest_times::Mapping;
use sim::scenario::file::{Guests, Scenario};
use sim::whatif::change::{self, Variant};

use super::{Simulated, parse, read};

/// IOThreads of each virtual machine; 0: the main loop serves all virtqueues.
pub const IOTHREADS: &str = "iothreads";
/// Number of virtual machines.
pub const VMS: &str = "vms";
/// Virtqueues of the disk of each virtual machine.
pub const QUEUES: &str = "guests.queues";
/// Which IOThread serves which virtqueue.
pub const MAPPING: &str = "guests.mapping";
/// How long an IOThread polls before it sleeps, microseconds.
pub const POLL_US: &str = "guests.iothread.poll_us";
/// The settings that describe a machine, in this order.
const TOLD: [&str; 5] = [VMS, IOTHREADS, QUEUES, MAPPING, POLL_US];
/// Constants of the disk that requests of virtual machines use.
const DISK: [&str; 7] =
    ["disk.read_us", "disk.write_us", "disk.jitter_pct", "disk.iops", "disk.bw_mb", "disk.burst_ms", "disk.parallel"];

/// A machine file with `[guests]`.
#[derive(Debug)]
pub struct GuestMachine {
    path: PathBuf,
    text: String,
    scenario: Scenario,
}

impl GuestMachine {
    /// Returns the machine of a target, if its file has `[guests]`.
    ///
    /// # Errors
    /// The target is a `sim:` target whose file cannot be read or is not valid.
    pub fn open(target: Option<&str>) -> Result<Option<GuestMachine>> {
        let Some(TargetSpec::Sim(path)) =
            target.filter(|t| t.starts_with("sim:")).map(TargetSpec::parse).transpose()?
        else {
            return Ok(None);
        };
        let text = read(&path)?;
        let scenario = parse(&path, &text)?;
        if scenario.guests.is_none() {
            return Ok(None);
        }
        Ok(Some(GuestMachine { path, text, scenario }))
    }

    /// The file's text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the file is unchanged since it was read.
    pub fn is_as_read(&self) -> bool {
        read(&self.path).is_ok_and(|text| text == self.text)
    }

    /// The loads that take the place of jobs: `users10`, ..., for each virtual machine, simulated one after the other.
    pub fn loads(&self) -> Vec<String> {
        self.guests().users.iter().map(|n| format!("users{n}")).collect()
    }

    /// The number of users of a load.
    pub fn users_of(&self, load: &str) -> Option<u32> {
        let n = load.strip_prefix("users")?.parse().ok()?;
        self.guests().users.contains(&n).then_some(n)
    }

    fn guests(&self) -> &Guests {
        self.scenario.guests.as_ref().expect("opened as one with guests")
    }

    /// Returns the machine with settings that override the file's.
    ///
    /// # Errors
    /// A setting that virtual machines do not have, or a value that is not valid.
    pub fn with(&self, settings: &[(String, String)]) -> Result<Variant> {
        for (name, value) in settings {
            let is_known = [IOTHREADS, VMS].contains(&name.as_str())
                || DISK.contains(&name.as_str())
                || ["guests.", "costs.", "machine."].iter().any(|table| name.starts_with(table));
            if !is_known {
                let near = match name.as_str() {
                    "nr_hw_queues" | "queues" | "num-queues" => format!("did you mean '{QUEUES}'?; "),
                    "mapping" => format!("did you mean '{MAPPING}'?; "),
                    name => did_you_mean(name, TOLD.into_iter().chain(DISK)),
                };
                return Err(Error::usage(format!(
                    "{name}={value}: is not a setting of virtual machines; {near}use {}, or guests., disk., machine. \
                     or costs. with a field of the file",
                    TOLD.join(", ")
                )));
            }
        }
        if let Some((name, value)) = settings.iter().find(|(_, value)| value.contains(',')) {
            return Err(Error::usage(format!("{name}={value}: must be one value; give each setting its own --set")));
        }
        if settings.is_empty() {
            return Ok(Variant::as_it_is(&self.scenario));
        }
        let text = settings.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(",");
        change::read_in(&text, &self.scenario, &self.text).map_err(|e| Error::usage(format!("{text}: {e}")))
    }

    /// Returns the values in effect with these settings, by the names of [`GuestMachine::with`].
    ///
    /// # Errors
    /// The errors of [`GuestMachine::with`].
    pub fn now(&self, settings: &[(String, String)]) -> Result<Vec<(String, String)>> {
        let v = self.with(settings)?;
        let g = v.scenario.guests.as_ref().expect("a change keeps them");
        let mapping = Mapping::ALL.iter().find(|(_, m)| *m == g.mapping).map_or("", |(name, _)| name);
        let of = |name: &str| match name {
            VMS => v.row.vms.unwrap_or(1).to_string(),
            IOTHREADS => v.row.iothreads.unwrap_or(0).to_string(),
            QUEUES => g.queues.to_string(),
            MAPPING => mapping.to_owned(),
            _ => g.iothread.poll_us.to_string(),
        };
        Ok(TOLD.iter().map(|name| ((*name).to_owned(), of(name))).collect())
    }

    /// vCPUs of each virtual machine with these settings.
    ///
    /// # Errors
    /// The errors of [`GuestMachine::with`].
    pub fn vcpus(&self, settings: &[(String, String)]) -> Result<u16> {
        Ok(self.with(settings)?.scenario.guests.map_or(1, |g| g.vcpus))
    }

    /// Describes the machine with these settings.
    ///
    /// # Errors
    /// The errors of [`GuestMachine::with`].
    pub fn describe(&self, settings: &[(String, String)]) -> Result<String> {
        let scenario = self.with(settings)?.scenario;
        let vcpus = scenario.guests.as_ref().map_or(1, |g| g.vcpus);
        Ok(format!("virtual machines of {vcpus} vCPUs on a {}", Simulated::of(&self.path, &scenario).text()))
    }
}
