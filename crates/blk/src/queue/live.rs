// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settings that take effect at once, on a disk in use and without a freeze.
//!
//! Guarantees: several settings of one call take effect together or not at all; bios that wait because of an old value
//! are checked again. Everything else needs a freeze and [`RequestQueue::rebuild`], which changes these as well.

use crate::elevator::registry::MqElevator;
use crate::lock::Lock;
use crate::qos::rates::LIMIT_NAMES;
use crate::qos::wbt::{DEFAULT_TARGET_US, Params};
use crate::queue::request_queue::RequestQueue;
use crate::settings::{Mode, QueueConfig, SETTINGS, SettingError, SettingInfo};
use crate::sync::Ordering;
use crate::time::Duration;

impl<L: Lock> RequestQueue<L> {
    /// Changes live settings, `(name, value)` each. If a setting is unknown, out of range, or needs a freeze to change, the
    /// error names the first such setting, and nothing changes. Any thread may call this at any time.
    pub fn set_live(&self, settings: &[(&str, &str)]) -> Result<(), SettingError> {
        // Held throughout, so that a rebuild happens entirely before or after this.
        let mut config = self.config.lock();
        let mut new = config.clone();
        for (name, value) in settings {
            new.set(name, value)?;
            if !SettingInfo::is_live(name) {
                let live =
                    SETTINGS.iter().map(|s| s.name).filter(|n| SettingInfo::is_live(n) && !LIMIT_NAMES.contains(n));
                let text = format!(
                    "{name}={value}: needs a queue freeze; only {}, limits and tunables (set_iosched) change without one",
                    live.collect::<Vec<_>>().join(", ")
                );
                return Err(SettingError(text));
            }
        }
        new.check()?;
        *config = new;
        self.apply_live(&config);
        drop(config);
        self.notify_all();
        Ok(())
    }

    /// Puts the live settings into effect.
    pub(crate) fn apply_live(&self, config: &QueueConfig) {
        self.live.iostats.store(config.iostats, Ordering::Relaxed);
        self.live.nomerges.store(config.nomerges, Ordering::Relaxed);
        self.live.io_timeout_ms.store(config.io_timeout_ms, Ordering::Relaxed);
        self.live.rq_affinity.store(config.rq_affinity, Ordering::Relaxed);
        self.qos.set_limits(config);
        self.set_wbt(self.wbt_params(config));
    }

    /// Returns the parameters of write-back throttling. As in the kernel, the default target is 0 (off) with bfq, which
    /// gives reads their share in another way; a target that was set explicitly stays in effect.
    fn wbt_params(&self, config: &QueueConfig) -> Params {
        let state = self.state();
        let off = MqElevator::named(state.scheduler()).is_some_and(|e| e.facts().turns_wbt_off);
        let default = if off { 0 } else { DEFAULT_TARGET_US[usize::from(self.limits.rotational)] };
        let target_us = if config.mode == Mode::Sq { 0 } else { config.wbt_lat_usec.unwrap_or(default) };
        Params {
            target: Duration::from_us(target_us),
            device_depth: state.nr_requests,
            write_cache: self.limits.write_cache,
        }
    }
}
