// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A host adapter: how many commands its transport can have in flight for all its LUNs together, and when the host
//! takes no commands.
//!
//! Guarantees: [`HostTemplate`] determines the number of tags before there is a disk. `nr_hw_queues` multiplies it
//! unless `host_tagset` is set. A host or target that was busy gets no commands until one of its commands completes, or
//! until a few attempts have been rejected. Source: drivers/scsi/hosts.c, scsi_lib.c (`scsi_host_queue_ready`,
//! `scsi_target_queue_ready`) of Linux 6.19; the range of `nr_hw_queues` after drivers/scsi/storvsc_drv.c
//! (`storvsc_max_hw_queues`).

use super::device::{Device, sit_out};
use super::eh::{EH_TIMEOUT, EhOptions, EhStats};
use super::failure::FailureLog;
use super::recovery::Recovery;
use super::transport::Transport;
use crate::lock::Lock;
use crate::settings::SettingError;
use crate::status::QueueRqStatus;
use crate::sync::{AtomicU32, Ordering};
use crate::tags::tag_set::TagSetConfig;
use crate::time::Duration;
use std::sync::Arc;

/// `SCSI_DEFAULT_HOST_BLOCKED`.
const HOST_BLOCKED: u32 = 7;
/// `SCSI_DEFAULT_TARGET_BLOCKED`.
const TARGET_BLOCKED: u32 = 3;

/// Properties of a host (`scsi_host_template`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTemplate {
    /// Commands per hardware queue; with `host_tagset` for all hardware queues together.
    pub can_queue: u32,
    /// Initial queue depth of a LUN; at most `can_queue`.
    pub cmd_per_lun: u32,
    /// Hardware queues; 0 = one per CPU.
    pub nr_hw_queues: u16,
    /// One map of tags for all hardware queues.
    pub host_tagset: bool,
    /// Whether a LUN's depth follows QUEUE FULL.
    pub track_queue_depth: bool,
    /// How long an abort, a reset of a LUN or target, or a probe of a device may take during error handling.
    pub eh_timeout: Duration,
    /// When recovery has taken this long, it skips to the reset of the host; `None`: no time limit.
    pub eh_deadline: Option<Duration>,
    /// Devices that have stopped are started again.
    pub allow_restart: bool,
}

impl Default for HostTemplate {
    fn default() -> HostTemplate {
        HostTemplate {
            can_queue: 128,
            cmd_per_lun: 32,
            nr_hw_queues: 0,
            host_tagset: false,
            track_queue_depth: true,
            eh_timeout: EH_TIMEOUT,
            eh_deadline: None,
            allow_restart: false,
        }
    }
}

impl HostTemplate {
    /// Returns the number of hardware queues on a machine with this many CPUs.
    ///
    /// # Errors
    /// `nr_hw_queues` is larger than the number of CPUs.
    pub fn hw_queues(&self, cpus: u16) -> Result<u16, SettingError> {
        match self.nr_hw_queues {
            0 => Ok(cpus.max(1)),
            n if n <= cpus => Ok(n),
            n => Err(SettingError(format!("nr_hw_queues={n}: must be 0 (one per CPU, here {cpus}) to {cpus}"))),
        }
    }

    /// Returns the tags that this template needs.
    ///
    /// # Errors
    /// The errors of [`HostTemplate::hw_queues`].
    pub fn tag_set(&self, cpus: u16) -> Result<TagSetConfig, SettingError> {
        Ok(TagSetConfig {
            nr_hw_queues: self.hw_queues(cpus)?,
            nr_read_queues: 0,
            nr_poll_queues: 0,
            queue_depth: self.can_queue,
            reserved_tags: 0,
            host_tagset: self.host_tagset,
            fair_tag_sharing: true,
        })
    }

    /// Returns how many commands all hardware queues together can have in flight.
    pub fn total_depth(&self, hw_queues: u16) -> u32 {
        if self.host_tagset { self.can_queue } else { self.can_queue.saturating_mul(u32::from(hw_queues)) }
    }
}

/// A host adapter, which limits the commands in flight of all its LUNs. See the module's text.
pub struct ScsiHost {
    template: HostTemplate,
    transport: Arc<dyn Transport>,
    blocked: AtomicU32,
    target_blocked: AtomicU32,
    pub(super) recovery: Recovery,
    pub(super) failures: FailureLog,
}

impl ScsiHost {
    /// Makes a host that uses `transport`. `L` is the lock type of its error handling.
    pub fn new<L: Lock>(template: HostTemplate, transport: Arc<dyn Transport>) -> Arc<ScsiHost> {
        let HostTemplate { eh_timeout, eh_deadline, allow_restart, .. } = template;
        let host_reset = transport.limits().host_reset;
        let recovery = Recovery::new::<L>(EhOptions { eh_timeout, eh_deadline, host_reset, allow_restart });
        Arc::new(ScsiHost {
            template,
            transport,
            blocked: AtomicU32::new(0),
            target_blocked: AtomicU32::new(0),
            recovery,
            failures: FailureLog::new::<L>(),
        })
    }

    /// Returns the host's transport.
    #[inline]
    pub fn transport(&self) -> &dyn Transport {
        self.transport.as_ref()
    }

    /// Returns the counters of the host's error handling.
    pub fn eh_stats(&self) -> EhStats {
        self.recovery.stats()
    }

    /// Returns the commands that have failed.
    pub fn failures(&self) -> &FailureLog {
        &self.failures
    }

    /// Whether the host takes no new commands because of error handling.
    pub fn is_recovering(&self) -> bool {
        self.recovery.stops_commands()
    }

    /// Turns giving up on or off. While it is on, recovery takes at most one second from the moment at which the host
    /// stops because of late commands. Then the devices of these commands go offline, and commands that the transport
    /// gives back fail. Recovered commands are not retried while giving up is on. When it is turned off, a device stays
    /// offline until its state is set.
    pub fn set_give_up(&self, give_up: bool) {
        self.recovery.set_give_up(give_up);
    }

    /// Returns the template of the host.
    pub fn template(&self) -> &HostTemplate {
        &self.template
    }

    pub(super) fn device(&self, nr_hw_queues: u16, queue_depth: u32) -> Device {
        let HostTemplate { cmd_per_lun, can_queue, track_queue_depth, .. } = self.template;
        Device::new(cmd_per_lun.min(can_queue), nr_hw_queues, self.tags(nr_hw_queues, queue_depth), track_queue_depth)
    }

    /// Returns the number of tags of all hardware queues together.
    pub(super) fn tags(&self, nr_hw_queues: u16, queue_depth: u32) -> u32 {
        let queues = if self.template.host_tagset { 1 } else { u32::from(nr_hw_queues) };
        queue_depth.saturating_mul(queues)
    }
}

impl ScsiHost {
    /// Admits one more command of a device, or returns the status for its request.
    #[inline]
    pub(super) fn admit(&self, device: &Device) -> Result<(), QueueRqStatus> {
        let relaxed = |n: &AtomicU32| n.load(Ordering::Relaxed);
        if self.recovery.stops_commands() || relaxed(&self.blocked) + relaxed(&self.target_blocked) > 0 {
            self.pass(device)?;
        }
        Ok(())
    }

    /// Checks whether a host or target that was busy takes a command.
    #[cold]
    fn pass(&self, device: &Device) -> Result<(), QueueRqStatus> {
        // If the device has commands in flight, their completion unblocks it and runs its queue again. Otherwise the
        // request is retried after a delay.
        if self.recovery.stops_commands() || device.in_flight() > 0 {
            return Err(device.busy_status());
        }
        for blocked in [&self.target_blocked, &self.blocked] {
            if sit_out(blocked) > 1 {
                return Err(QueueRqStatus::Resource);
            }
        }
        Ok(())
    }

    /// Unblocks host and target, because a command of the host has completed with any outcome.
    #[inline]
    pub(super) fn unblock(&self) {
        for blocked in [&self.target_blocked, &self.blocked] {
            if blocked.load(Ordering::Relaxed) > 0 {
                blocked.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Notes that the transport has no room for a command of a device. Returns the status for the request.
    #[cold]
    pub(super) fn was_busy(&self, device: &Device) -> QueueRqStatus {
        self.blocked.store(HOST_BLOCKED, Ordering::Relaxed);
        device.busy_status()
    }

    /// Notes that the target has no room. Returns the status for the request.
    #[cold]
    pub(super) fn target_was_busy(&self, device: &Device) -> QueueRqStatus {
        self.target_blocked.store(TARGET_BLOCKED, Ordering::Relaxed);
        device.busy_status()
    }
}
