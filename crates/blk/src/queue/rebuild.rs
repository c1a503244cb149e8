// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Applies new settings to a drained disk: checks which settings may change, resets some to their default, and replaces
//! the state.
//!
//! Guarantees: a change takes effect as a whole or not at all. Needs from callers: a freeze around it. Source: block/blk-mq.c
//! (`blk_mq_update_nr_requests`, `__blk_mq_update_nr_hw_queues`), elevator.c (`elevator_switch`).

use super::request_queue::{RequestQueue, start};
use super::state::QueueState;
use crate::lock::Lock;
use crate::queue::build::build;
use crate::settings::{QueueConfig, SettingError};
use crate::tags::hctx_tags::{Waiter, disk_of};
use crate::tags::sbitmap_queue::WaiterId;
use std::sync::Arc;

impl<L: Lock> RequestQueue<L> {
    /// Changes settings of a frozen, drained queue: `change` edits a copy, which takes effect as a whole or not at all. An
    /// elevator or queue-count change resets `nr_requests` to its default, as the kernel does; the elevator itself stays
    /// unless it or the mode is changed. When the elevator changes, tunables that `change` left as they were are dropped.
    /// CPUs, bio slots and `max_sectors_kb` are fixed when the disk is made. Panics when the queue is not drained.
    ///
    /// When the driver cannot start the new hardware queues, its old ones are started again. If it fails to start even
    /// those (the error says so), the queue must stay frozen.
    pub fn rebuild(
        &self,
        change: impl FnOnce(&mut QueueConfig) -> Result<(), SettingError>,
    ) -> Result<(), SettingError> {
        assert!(self.is_drained(), "rebuild needs a drained queue");
        let mut config = self.config();
        change(&mut config)?;
        let mut old = self.config.lock();
        check_fixed(&old, &config)?;
        if config.mode != old.mode && config.scheduler == old.scheduler {
            config.scheduler = None;
        }
        if config.scheduler != old.scheduler {
            config.iosched.retain(|tunable| !old.iosched.contains(tunable));
        }
        let other_queues = (config.mode, config.hw_queues()) != (old.mode, old.hw_queues());
        if (config.scheduler != old.scheduler || other_queues) && config.nr_requests == old.nr_requests {
            config.nr_requests = None;
        }
        if let Some(member) = &self.member {
            member.set.check_member(&config)?;
        }
        let state = build(&config, self.member.as_ref())?;
        config.scheduler = Some(state.scheduler().to_string());
        self.restart_driver(&state)?;
        *old = config;
        let previous = core::mem::replace(&mut *self.state.lock(), Arc::new(state));
        self.renew_generation();
        self.apply_live(&old);
        let waiters = &mut |w: WaiterId| match (&previous.share, Waiter::of(w)) {
            // Waiters of other disks are woken, too, to try again; waiters of this disk see the new state.
            (Some(share), _) if disk_of(w) != share.slot => drop(share.set.wake(w)),
            (_, Waiter::Submitter(id)) => self.notify.notify(id),
            // The queue is drained: no hctx has anything to send.
            (_, Waiter::Hctx(..)) => {}
        };
        previous.driver_tags.iter().chain(previous.sched_tags.iter()).for_each(|t| t.wake_all(waiters));
        Ok(())
    }

    /// Restarts the driver's hardware queues if their number or depth changes.
    fn restart_driver(&self, new: &QueueState<L>) -> Result<(), SettingError> {
        let old = self.state();
        if old.driver_shape() == new.driver_shape() {
            return Ok(());
        }
        let Err(e) = start(self.driver.as_ref(), new.driver_shape()) else { return Ok(()) };
        start(self.driver.as_ref(), old.driver_shape())
            .map_err(|back| SettingError(format!("{e}; the rollback failed, too: {back}")))?;
        Err(e)
    }
}

/// Rejects changes of settings on which submitters depend from their start.
fn check_fixed(old: &QueueConfig, new: &QueueConfig) -> Result<(), SettingError> {
    let fixed = [
        ("nr_cpus", new.topology == old.topology),
        ("max_sectors_kb", new.max_sectors_kb == old.max_sectors_kb),
        ("read_ahead_kb", new.read_ahead_kb == old.read_ahead_kb),
        ("bios_per_submitter", new.bios_per_submitter == old.bios_per_submitter),
    ];
    match fixed.iter().find(|(_, same)| !same) {
        Some((name, _)) => {
            Err(SettingError(format!("{name}: cannot be changed on an existing disk; recreate the disk")))
        }
        None => Ok(()),
    }
}
