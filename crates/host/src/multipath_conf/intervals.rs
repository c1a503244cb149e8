// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `polling_interval` and `max_polling_interval`, if a file sets only the longest or contradicts itself.
//!
//! Guarantees: the values are those that multipath-tools uses, so `polling_interval` is never above the longest interval. A value that is
//! changed is reported with its line. Source: multipath-tools, libmultipath/config.c (`_init_config`).

use super::options;
use super::{Config, Problem, Setting};

impl Config {
    /// Makes `polling_interval` fit a `max_polling_interval` of the file: at most as long, and a quarter of it (at least 1 s) if it is
    /// not set. Call it once, when the whole configuration is read.
    pub(super) fn fit_intervals(&mut self) {
        let set = |name: &str| self.defaults.iter().position(|s| s.option.name == name);
        let (Some(longest), short) = (set("max_polling_interval"), set("polling_interval")) else { return };
        let Setting { file, line, value, .. } = self.defaults[longest].clone();
        let (Ok(most), Some(option)) = (value.parse::<u64>(), options::find("polling_interval")) else { return };
        let Some(short) = short else {
            let quarter = (most / 4).max(1);
            self.defaults.push(Setting { option, value: quarter.to_string(), file, line });
            return;
        };
        let short = &mut self.defaults[short];
        if short.value.parse::<u64>().is_ok_and(|n| n > most) {
            let place = if file == short.file { format!("line {line}") } else { format!("{file}:{line}") };
            let text = format!(
                "polling_interval {}: is above max_polling_interval ({place}), so {most} is used, as in multipath-tools",
                short.value
            );
            short.value = most.to_string();
            self.warnings.push(Problem { file: short.file.to_string(), line: short.line, text });
        }
    }
}
