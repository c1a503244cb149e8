// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads a job's `filename`: a target in the form of `mqblk run --target`, and settings after a question mark.
//!
//! `TARGET[?setting=value[&setting=value]...]`. In a job file fio requires each `:` of a file name as `\:`. Settings from the environment
//! (`MQBLK_SET=setting=value,...`) apply first; those of the name override them. Besides the settings of a run there is `direct=0|1`,
//! which overrides the job's own `direct`.

use blk::settings::QueueConfig;
use host::driver::{iscsi, nbd};
use host::error::{Error, Result};
use host::run::{RunSettings, check_settings};
use host::target::TargetSpec;

/// A disk as a job specifies it.
#[derive(Clone, Debug)]
pub struct Named {
    /// The name as written.
    pub text: String,
    pub target: TargetSpec,
    pub config: QueueConfig,
    /// `direct` of the settings.
    pub direct: Option<bool>,
}

impl Named {
    /// Reads a name, with the settings of the environment.
    pub fn read(text: &str, environment: Option<&str>) -> Result<Named> {
        let (target, behind) = split(text);
        let mut settings = Vec::new();
        let mut direct = None;
        let from_environment = environment.unwrap_or("").split(',').map(|s| (s, "MQBLK_SET"));
        for (item, place) in from_environment.chain(behind.split('&').map(|s| (s, text))) {
            let item = item.trim();
            match item.split_once('=') {
                _ if item.is_empty() => {}
                Some(("direct", "0")) => direct = Some(false),
                Some(("direct", "1")) => direct = Some(true),
                Some(("direct", value)) => {
                    return Err(Error::usage(format!("{place}: direct={value}: must be 0 or 1")));
                }
                Some((key, value)) => settings.push((key.to_owned(), value.to_owned())),
                None => return Err(Error::usage(format!("{place}: '{item}' must be setting=value"))),
            }
        }
        let read = RunSettings::read(&settings).map_err(|e| e.within(text))?;
        if read.shared_tags {
            let text = format!(
                "{text}: shared_tags=1: not possible with fio, which opens the disks of its jobs one by one; use mqblk run"
            );
            return Err(Error::usage(text));
        }
        check_settings(&settings).map_err(|e| e.within(text))?;
        Ok(Named { text: text.to_owned(), target: TargetSpec::parse(target)?, config: read.disk, direct })
    }

    /// Whether the disk's data is in this process's memory.
    pub fn is_memory(&self) -> bool {
        self.target.is_memory()
    }

    /// Whether several processes that open it see the same data.
    pub fn is_shared(&self) -> bool {
        // Data in this process's memory is not shared.
        !self.target.is_private()
    }
}

/// Splits a name into target and settings. A question mark before text without `=` belongs to a file's name. In a URI, the first
/// question mark belongs to the URI.
fn split(text: &str) -> (&str, &str) {
    let is_scheme = |kind| nbd::is_scheme(kind) || iscsi::is_scheme(kind);
    let is_uri = text.split_once(':').is_some_and(|(kind, _)| is_scheme(kind));
    match text.rsplit_once('?') {
        Some((uri, _)) if is_uri && !uri.contains('?') => (text, ""),
        Some((target, settings)) if settings.is_empty() || settings.contains('=') => (target, settings),
        _ => (text, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_in_the_name_override_the_environment() {
        let named =
            Named::read("ram:size=1g?queue_depth=32&direct=1", Some("queue_depth=8, scheduler=mq-deadline")).unwrap();
        assert_eq!(named.target.size_bytes(), Some(1 << 30));
        assert_eq!((named.config.queue_depth, named.direct, named.is_shared()), (32, Some(true), false));
        assert_eq!(Named::read("/tmp/a?b", None).unwrap().target, TargetSpec::File("/tmp/a?b".into()));
        assert_eq!(Named::read("/tmp/a?", None).unwrap().target, TargetSpec::File("/tmp/a".into()));
        assert_eq!(split("nbd+unix:///a?socket=/s"), ("nbd+unix:///a?socket=/s", ""));
        assert_eq!(split("nbd+unix:///a?socket=/s?mode=sq"), ("nbd+unix:///a?socket=/s", "mode=sq"));
        assert_eq!(split("iscsi://h/iqn.2026-11.a:b/1?sessions=2"), ("iscsi://h/iqn.2026-11.a:b/1?sessions=2", ""));
        assert_eq!(split("nbds://h/a?tls-hostname=n"), ("nbds://h/a?tls-hostname=n", ""));
        assert!(named.is_memory() && Named::read("model:over=ram", None).unwrap().is_memory());
        assert!(!Named::read("model:over=null", None).unwrap().is_memory());
        assert_eq!(Named::read("null", None).unwrap().direct, None);
    }

    #[test]
    fn mistakes_are_refused_with_their_place() {
        let refused = |text: &str, env: Option<&str>| Named::read(text, env).unwrap_err().to_string();
        assert!(refused("null?schedular=none", None).contains("did you mean 'scheduler'"));
        assert!(refused("null", Some("queue_depth")).starts_with("MQBLK_SET: 'queue_depth' must be setting=value"));
        assert!(refused("null?direct=2", None).contains("direct=2: must be 0 or 1"));
        assert!(refused("nul:size=1g", None).contains("did you mean 'null:'"));
        assert!(refused("null?shared_tags=1", None).contains("use mqblk run"));
        assert!(refused("null?scheduler=nonsense", None).contains("nonsense"));
    }
}
