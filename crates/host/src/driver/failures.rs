// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Failed commands of a device as texts, for the log and for a path's troubles.
//!
//! Guarantees: one text for each kind of failure since the last call, which also has the number of failures like it; so the
//! number of texts is bounded, however many commands fail. Does not do: log; the watch of served disks does.

use blk::scsi::failure::{FailureKind, FailureLog, Failures};

/// Failures of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureReport {
    /// The path on which the commands failed, as in other messages.
    pub path: String,
    /// How the first of them failed, and how many others there were.
    pub text: String,
}

/// Returns the failures since the last call.
pub(super) fn reports(path: &str, log: &FailureLog) -> Vec<FailureReport> {
    texts(&log.take()).map(|text| FailureReport { path: path.to_owned(), text }).collect()
}

fn texts(failures: &Failures) -> impl Iterator<Item = String> {
    let of_kind = |FailureKind { first, times }: &FailureKind| match times - 1 {
        0 => first.to_string(),
        more => format!("{first}; {more} more like it"),
    };
    let others = (failures.others > 0).then(|| format!("{} more commands failed in other ways", failures.others));
    failures.kinds.iter().map(of_kind).chain(others)
}

/// Returns how many commands have failed, and how the last one did; `None`: none.
pub(super) fn trouble(path: &str, log: &FailureLog) -> Option<String> {
    let (total, last) = log.last()?;
    Some(match total {
        1 => format!("{path}: a command failed: {last}"),
        _ => format!("{path}: {total} commands failed, the last one: {last}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use blk::scsi::disposition::{HostByte, Outcome};
    use blk::scsi::failure::CommandFailure;
    use blk::status::BlkStatus;

    #[test]
    fn text_says_how_many_others_there_were() {
        let outcome = Outcome::host(HostByte::NoConnect);
        let first = CommandFailure { lun: 0, cdb: None, outcome, status: BlkStatus::IoErr };
        let kind = |times| FailureKind { first, times };
        let failures = Failures { kinds: vec![kind(1), kind(8)], others: 3 };
        let text = first.to_string();
        let expected = [text.clone(), format!("{text}; 7 more like it"), "3 more commands failed in other ways".into()];
        assert_eq!(texts(&failures).collect::<Vec<_>>(), expected);
    }
}
