// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The reason why a job cannot run on a target. These checks need the target's size, which the job-file parser does not know.

/// A job does not fit its target. Displays rule, value and remedy in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option}={value}: {rule}; {remedy} (job '{job}')")]
pub struct SetupError {
    /// The fio option at fault.
    pub option: &'static str,
    /// Its value, as a user would write it.
    pub value: String,
    /// The rule that is broken.
    pub rule: String,
    /// What to do about it.
    pub remedy: String,
    /// Name of the job.
    pub job: String,
}

impl SetupError {
    /// An error of job `job`.
    pub fn new(
        job: &str,
        option: &'static str,
        value: impl ToString,
        rule: impl Into<String>,
        remedy: impl Into<String>,
    ) -> SetupError {
        SetupError { option, value: value.to_string(), rule: rule.into(), remedy: remedy.into(), job: job.to_owned() }
    }
}
