// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the target ends a session: its asynchronous messages, the Logout that they request, and when to log in again.
//!
//! Guarantees: a request to log out is answered with one Logout, at once. No new request follows on that session. A Logout
//! Response of success proves that the target has ended the session's tasks; without a response within [`LOGOUT_TIMEOUT`] the
//! session counts as lost, and nothing is proven. A message that needs no action, and an unknown one, leaves the session as
//! it is. Every message is noted for the log.
//!
//! Time2Retain needs no action: it limits the reassignment of tasks and of a session's handle. This driver reassigns no task
//! (error recovery level 0), and logs in without a handle.
//! Source: RFC 7143, 11.9.1 (events), 11.15 (Logout Response); open-iscsi's `logout_timeout`.

use super::link::Lost;
use crate::driver::path_log::PathLog;
use blk::time::{Duration, Instant};
use log::Level;
use std::sync::Arc;

/// Time limit of the answer to a Logout.
const LOGOUT_TIMEOUT: Duration = Duration::from_secs(15);

/// What a session has to do after an asynchronous message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AsyncAction {
    /// Nothing.
    Continue,
    /// Send a Logout, and no new requests.
    Logout,
}

/// Whether a Logout was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Logout {
    None,
    Sent,
    /// It has to be answered by this time.
    Due(Instant),
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct SessionEnding {
    log: Arc<PathLog>,
    logout: Logout,
    /// Minimum time before the next login.
    pub(super) wait: Duration,
    /// The target has confirmed that it has ended the session's tasks.
    pub(super) has_ended_tasks: bool,
}

impl SessionEnding {
    pub(super) fn new(log: Arc<PathLog>) -> SessionEnding {
        SessionEnding { log, logout: Logout::None, wait: Duration::ZERO, has_ended_tasks: false }
    }

    /// Whether a Logout was sent, so no new request may follow.
    #[inline]
    pub(super) fn is_logging_out(&self) -> bool {
        self.logout != Logout::None
    }

    /// Handles an asynchronous message.
    ///
    /// # Errors
    /// The target ends the session itself.
    #[cold]
    pub(super) fn asynchronous(&mut self, event: u8, parameters: [u16; 3]) -> Result<AsyncAction, Lost> {
        let [first, second, third] = parameters;
        let note = |level, text: &str| self.log.note(None, level, format!("{text} (asynchronous event {event})"));
        match event {
            // The unit also reports this (unit attention) with the next command.
            0 => Ok(AsyncAction::Continue),
            1 | 4 => {
                let what = if event == 1 { "a logout" } else { "a negotiation (mqblk logs out instead)" };
                note(Level::Warn, &format!("the target requests {what} within {third} s"));
                match std::mem::replace(&mut self.logout, Logout::Sent) {
                    Logout::None => Ok(AsyncAction::Logout),
                    sent => {
                        self.logout = sent;
                        Ok(AsyncAction::Continue)
                    }
                }
            }
            2 | 3 => {
                let what = if event == 2 { "the connection" } else { "all connections of the session" };
                let text = format!("the target drops {what}; a new login is allowed after {second} s");
                note(Level::Warn, &text);
                self.wait = Duration::from_secs(second.into());
                Err(Lost(format!("{text} (asynchronous event {event})")))
            }
            5 => {
                let text = "the target terminates all tasks of a logical unit";
                note(Level::Warn, text);
                Err(Lost(format!("{text} (asynchronous event 5)")))
            }
            _ => {
                let kind = if event >= 248 { "a vendor-specific" } else { "an unknown" };
                let text = format!("the target sent {kind} message, which is ignored: {first}, {second}, {third}");
                note(Level::Info, &text);
                Ok(AsyncAction::Continue)
            }
        }
    }

    /// Handles a Logout Response. Returns the end of the session.
    #[cold]
    pub(super) fn logged_out(&mut self, response: u8, time2wait: u16) -> Lost {
        if !self.is_logging_out() {
            return Lost("the target closed the session (Logout Response)".into());
        }
        match response {
            0 => {
                self.has_ended_tasks = true;
                return Lost("the target requested a logout".into());
            }
            // Time2Wait is valid only for these: connection recovery is not supported, cleanup failed.
            2 | 3 => self.wait = Duration::from_secs(time2wait.into()),
            _ => {}
        }
        Lost(format!("the target requested a logout, and then rejected it (response {response})"))
    }

    /// Checks whether the Logout was answered in time; called about once a second.
    pub(super) fn check(&mut self, now: Instant) -> Result<(), Lost> {
        match self.logout {
            Logout::Due(by) if now >= by => {
                Err(Lost("the target requested a logout, and has not answered it in time".into()))
            }
            Logout::Sent => {
                self.logout = Logout::Due(now + LOGOUT_TIMEOUT);
                Ok(())
            }
            Logout::None | Logout::Due(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ending() -> SessionEnding {
        SessionEnding::new(Arc::default())
    }

    #[test]
    fn events_are_answered_as_the_rfc_requires() {
        for event in [0, 6, 247, 248, 254, 255] {
            let mut ending = ending();
            assert_eq!(ending.asynchronous(event, [1, 2, 3]).unwrap(), AsyncAction::Continue);
            assert!(!ending.is_logging_out());
            assert_eq!(ending.log.take().len(), usize::from(event != 0), "{event}");
        }
        for (event, wait) in [(2, 7), (3, 7), (5, 0)] {
            let mut ending = ending();
            assert!(ending.asynchronous(event, [1, 7, 9]).is_err());
            assert_eq!((ending.wait, ending.has_ended_tasks), (Duration::from_secs(wait), false));
        }
        for event in [1, 4] {
            let mut ending = ending();
            assert_eq!(ending.asynchronous(event, [0, 0, 3]).unwrap(), AsyncAction::Logout);
            assert_eq!(ending.asynchronous(event, [0, 0, 3]).unwrap(), AsyncAction::Continue, "one Logout");
            assert!(ending.is_logging_out());
        }
    }

    #[test]
    fn only_a_successful_logout_ends_tasks() {
        for (response, wait) in [(0, 0), (1, 0), (2, 5), (3, 5)] {
            let mut ending = ending();
            ending.asynchronous(1, [0, 0, 3]).unwrap();
            ending.logged_out(response, 5);
            assert_eq!((ending.has_ended_tasks, ending.wait), (response == 0, Duration::from_secs(wait)));
        }
        let mut unasked = ending();
        unasked.logged_out(0, 5);
        assert!(!unasked.has_ended_tasks);
    }

    #[test]
    fn unanswered_logout_loses_the_session() {
        let at = |s| Instant::ZERO + Duration::from_secs(s);
        let mut ending = ending();
        ending.check(at(100)).unwrap();
        ending.asynchronous(1, [0, 0, 3]).unwrap();
        assert_eq!([100, 101, 114, 115].map(|s| ending.check(at(s)).is_ok()), [true, true, true, false]);
    }
}
