// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's log: lines on standard error, for people or as JSON.
//!
//! Guarantees: a thread that logs never waits. Lines go through a bounded list to a thread of their own. When no process reads standard
//! error, lines are lost and counted, and disks are still served. A closed standard error is no error. One line is one record, whatever
//! characters a client puts into a name. No line has a password or key of a target. What a client, guest or target can cause is limited
//! per message and peer; a later line counts what was suppressed. Under systemd (`$JOURNAL_STREAM` names standard error) the journal
//! records time and level, so lines begin with the level as `<N>` instead.
//! Does not do: files, rotation, a filter by module.

use clap::ValueEnum;
use host::ratelimit::{Message, Peer, Ratelimits, Suppressed, peer_of};
use host::secrets::without_secrets;
use lab::report::num;
use log::kv::{self, VisitSource};
use log::{Level, LevelFilter, Metadata, Record};
use serde_json::{Map, Value};
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Maximum number of lines that wait for standard error.
const LINES: usize = 4096;
/// How long the end of the daemon waits for the last lines.
const FAREWELL: Duration = Duration::from_secs(1);
/// Time between two checks for counts of suppressed lines.
const COUNTS: Duration = Duration::from_secs(1);
/// Where lines come from whose number clients, guests and targets determine; the others are the daemon's own.
const LIMITED: &str = "mqblk_host";
/// Key of the client that a line is about.
const CLIENT: &str = "client";
const SECONDS_PER_DAY: u64 = 86_400;

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// `time level: message key=value`
    Text,
    /// An object per line: time, level, message, and each field
    Json,
}

/// What is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "the words say it")]
pub enum Least {
    Off,
    Error,
    Warn,
    Info,
    Debug,
}

impl From<Least> for LevelFilter {
    fn from(least: Least) -> LevelFilter {
        match least {
            Least::Off => LevelFilter::Off,
            Least::Error => LevelFilter::Error,
            Least::Warn => LevelFilter::Warn,
            Least::Info => LevelFilter::Info,
            Least::Debug => LevelFilter::Debug,
        }
    }
}

/// Waits for the last lines when it is dropped.
pub struct Logging {
    lines: SyncSender<Line>,
}

enum Line {
    Text(String),
    /// Reports that all lines before it are written.
    Flushed(Sender<()>),
}

struct Logger {
    style: Style,
    lines: SyncSender<Line>,
    lost: AtomicU64,
    limits: Arc<Mutex<Ratelimits>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Text,
    Journal,
    Json,
}

/// Starts the log. It works once per process: a second call has no effect.
pub fn start(format: Format, least: Least) -> Logging {
    let (lines, to_write) = sync_channel(LINES);
    let style = match format {
        Format::Json => Style::Json,
        Format::Text if is_journal() => Style::Journal,
        Format::Text => Style::Text,
    };
    let limits = Arc::default();
    // If the thread cannot be started, there is no log, but the daemon serves all the same.
    let _ = std::thread::Builder::new().name("mqblk-log".into()).spawn({
        let limits = Arc::clone(&limits);
        move || write(&to_write, style, &limits)
    });
    let logger = Logger { style, lines: lines.clone(), lost: AtomicU64::new(0), limits };
    if log::set_boxed_logger(Box::new(logger)).is_ok() {
        log::set_max_level(least.into());
    }
    Logging { lines }
}

impl Drop for Logging {
    fn drop(&mut self) {
        let (told, flushed) = channel();
        if self.lines.try_send(Line::Flushed(told)).is_ok() {
            let _ = flushed.recv_timeout(FAREWELL);
        }
    }
}

fn write(lines: &Receiver<Line>, style: Style, limits: &Mutex<Ratelimits>) {
    // There is nowhere to report an error to.
    let put = |text: &str| drop(io::stderr().write_all(text.as_bytes()));
    let count = |counts: Vec<Suppressed>| counts.iter().for_each(|c| put(&counted(style, c)));
    let limits = || limits.lock().unwrap_or_else(PoisonError::into_inner);
    let mut counts_due = Instant::now() + COUNTS;
    loop {
        let line = lines.recv_timeout(COUNTS);
        let now = Instant::now();
        if now >= counts_due {
            counts_due = now + COUNTS;
            let expired = limits().expired(now);
            count(expired);
        }
        match line {
            Ok(Line::Text(text)) => put(&text),
            Ok(Line::Flushed(told)) => {
                let all = limits().end();
                count(all);
                let _ = told.send(());
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// The line that counts suppressed messages.
fn counted(style: Style, suppressed: &Suppressed) -> String {
    let Suppressed { count, level, peer, last } = suppressed;
    let mut fields = vec![("suppressed".to_owned(), Value::from(*count))];
    if !peer.is_empty() {
        fields.push(("peer".to_owned(), Value::from(peer.as_str())));
    }
    let message = format!("{count} messages suppressed, the last: {last}");
    line(style, now(), *level, &message, &Fields(fields))
}

/// Whether standard error goes to the journal, which names its stream by device and inode in `$JOURNAL_STREAM`.
fn is_journal() -> bool {
    let Ok(told) = std::env::var("JOURNAL_STREAM") else { return false };
    let meta = io::stderr().as_fd().try_clone_to_owned().and_then(|fd| std::fs::File::from(fd).metadata());
    meta.is_ok_and(|m| told == format!("{}:{}", m.dev(), m.ino()))
}

impl log::Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let (fields, message) = (Fields::of(record), without_secrets(&record.args().to_string()));
        if record.target().starts_with(LIMITED) && !self.passes(record, &fields, &message) {
            return;
        }
        let mut text = line(self.style, now(), record.level(), &message, &fields);
        // Relaxed: only a count.
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let message = format!("{lost} log lines were dropped: the reader of standard error is too slow");
            text.insert_str(0, &line(self.style, now(), Level::Warn, &message, &Fields::default()));
        }
        if let Err(TrySendError::Full(_)) = self.lines.try_send(Line::Text(text)) {
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
    }

    fn flush(&self) {}
}

impl Logger {
    /// Whether the message is logged. Otherwise it is counted.
    fn passes(&self, record: &Record<'_>, fields: &Fields, text: &str) -> bool {
        let message = Message {
            file: record.file_static().unwrap_or_default(),
            line: record.line().unwrap_or_default(),
            level: record.level(),
        };
        let (name, is_client) = fields.peer();
        let peer = if is_client { Peer::Client(&name) } else { Peer::Configured(&name) };
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        limits.passes(message, peer, text, Instant::now())
    }
}

/// Keys and values.
#[derive(Default)]
struct Fields(Vec<(String, Value)>);

impl Fields {
    fn of(record: &Record<'_>) -> Fields {
        let mut fields = Fields::default();
        // The visitor never fails.
        let _ = record.key_values().visit(&mut fields);
        fields
    }

    /// Returns what the record is about, and whether that is a client. Numbers do not count: a guest has many virtqueues.
    fn peer(&self) -> (String, bool) {
        let texts = self.0.iter().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)));
        let all: Vec<_> =
            texts.map(|(key, text)| if key == CLIENT { peer_of(text) } else { text.to_owned() }).collect();
        (all.join(" "), self.0.iter().any(|(key, _)| key == CLIENT))
    }
}

impl<'a> VisitSource<'a> for Fields {
    fn visit_pair(&mut self, key: kv::Key<'a>, value: kv::Value<'a>) -> Result<(), kv::Error> {
        let text = || Value::from(without_secrets(&value.to_string()));
        let value = value.to_u64().map_or_else(text, Value::from);
        self.0.push((key.to_string(), value));
        Ok(())
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// One record with its line end.
fn line(style: Style, now: Duration, level: Level, message: &str, fields: &Fields) -> String {
    let word = match level {
        Level::Error => "error",
        Level::Warn => "warning",
        Level::Info => "info",
        Level::Debug | Level::Trace => "debug",
    };
    if style == Style::Json {
        let mut all = Map::new();
        all.insert("time".to_owned(), Value::from(time(now)));
        all.insert("level".to_owned(), Value::from(word));
        all.insert("message".to_owned(), Value::from(message));
        all.extend(fields.0.iter().cloned());
        return format!("{}\n", Value::Object(all));
    }
    let mut out = match (style, level) {
        (Style::Journal, Level::Error) => "<3>".to_owned(),
        (Style::Journal, Level::Warn) => "<4>".to_owned(),
        (Style::Journal, Level::Info) => "<6>".to_owned(),
        (Style::Journal, _) => "<7>".to_owned(),
        _ => format!("{} {word}: ", time(now)),
    };
    printable(&mut out, message);
    for (key, value) in &fields.0 {
        let _ = write!(out, " {key}=");
        match value {
            Value::String(text) if text.is_empty() || text.contains([' ', '"', '=']) => {
                out.push('"');
                printable(&mut out, &text.replace('\\', "\\\\").replace('"', "\\\""));
                out.push('"');
            }
            Value::String(text) => printable(&mut out, text),
            // Writing to a String cannot fail.
            other => drop(write!(out, "{other}")),
        }
    }
    out.push('\n');
    out
}

/// Appends text with control characters escaped, because they could disturb a terminal or split a line.
fn printable(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
}

/// RFC 3339 in UTC with milliseconds, of a time since 1970.
fn time(since: Duration) -> String {
    let (days, second) = (since.as_secs() / SECONDS_PER_DAY, since.as_secs() % SECONDS_PER_DAY);
    let (year, month, day) = num::civil(days);
    let (hour, minute, second, ms) = (second / 3600, second / 60 % 60, second % 60, since.subsec_millis());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = |seconds: u64| time(Duration::from_millis(seconds * 1000 + 7));
        assert_eq!(at(0), "1970-01-01T00:00:00.007Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.007Z");
        assert_eq!(at(951_868_800), "2000-03-01T00:00:00.007Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59.007Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.007Z");
        assert_eq!(at(1_795_324_625), "2026-11-22T05:17:05.007Z");
    }

    #[test]
    fn a_record_is_one_line_whatever_is_in_it() {
        let fields = || {
            Fields(vec![
                ("export".to_owned(), Value::from("evil\n<3> \"name\"\u{1b}[2J")),
                ("queue".to_owned(), Value::from(3)),
                ("disk".to_owned(), Value::from("a")),
            ])
        };
        let of = |style| line(style, Duration::ZERO, Level::Warn, "gone\rback", &fields());
        let rest = "gone\\rback export=\"evil\\n<3> \\\"name\\\"\\u{1b}[2J\" queue=3 disk=a\n";
        assert_eq!(of(Style::Text), format!("1970-01-01T00:00:00.000Z warning: {rest}"));
        assert_eq!(of(Style::Journal), format!("<4>{rest}"));
        let json = of(Style::Json);
        assert_eq!(json.matches('\n').count(), 1);
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json["level"], &json["queue"]), (&Value::from("warning"), &Value::from(3)));
        assert_eq!(json["export"], "evil\n<3> \"name\"\u{1b}[2J");
    }
}
