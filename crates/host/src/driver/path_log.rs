// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages about a path that are noted where they arise and logged later: a target's asynchronous messages.
//!
//! Guarantees: memory is bounded, however often something happens. Noting a message does not wait for the log. Does not do:
//! log; the watch of served disks does.

use parking_lot::Mutex;

/// Maximum number of messages between two calls of [`PathLog::take`]; the rest is counted.
const MAX_MESSAGES: usize = 64;

/// A message about a path, or about a disk with several paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathMessage {
    /// The path, as in other messages; `None`: it is about the disk.
    pub path: Option<String>,
    /// How urgent it is.
    pub level: log::Level,
    /// The message.
    pub text: String,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct PathLog(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    /// Messages, each with how often it was repeated directly after itself.
    messages: Vec<(PathMessage, u64)>,
    dropped: u64,
}

impl PathLog {
    /// Notes a message.
    #[cold]
    pub(crate) fn note(&self, path: Option<&str>, level: log::Level, text: String) {
        let message = PathMessage { path: path.map(str::to_owned), level, text };
        let mut noted = self.0.lock();
        let has_room = noted.messages.len() < MAX_MESSAGES;
        match noted.messages.last_mut() {
            Some((last, more)) if *last == message => *more += 1,
            _ if has_room => noted.messages.push((message, 0)),
            _ => noted.dropped += 1,
        }
    }

    /// Returns the messages since the last call, in order.
    pub(crate) fn take(&self) -> Vec<PathMessage> {
        let Noted { messages, dropped } = std::mem::take(&mut *self.0.lock());
        let text = |(message, more): (PathMessage, u64)| match more {
            0 => message,
            _ => PathMessage { text: format!("{}; {more} more like it", message.text), ..message },
        };
        let text_of_rest = format!("{dropped} more messages were dropped");
        let rest = PathMessage { path: None, level: log::Level::Warn, text: text_of_rest };
        messages.into_iter().map(text).chain((dropped > 0).then_some(rest)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use log::Level;

    #[test]
    fn repeated_messages_are_counted_and_a_flood_is_bounded() {
        let log = PathLog::default();
        let mut note = |text: &str| log.note(Some("a"), Level::Info, text.to_owned());
        ["up", "up", "down", "up"].into_iter().for_each(&mut note);
        let texts: Vec<String> = log.take().into_iter().map(|m| m.text).collect();
        assert_eq!(texts, ["up; 1 more like it", "down", "up"]);
        (0..MAX_MESSAGES + 3).for_each(|i| note(&i.to_string()));
        let all = log.take();
        assert_eq!((all.len(), all[MAX_MESSAGES].text.as_str()), (MAX_MESSAGES + 1, "3 more messages were dropped"));
        assert_eq!(log.take(), []);
    }
}
