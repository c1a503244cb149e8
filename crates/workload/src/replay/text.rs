// SPDX-License-Identifier: Apache-2.0 OR MIT
//! fio's I/O logs, versions 2 and 3, as `write_iolog` writes them.
//!
//! `[time] file action[ offset length]`; version 3 has times, in microseconds. Strict: a line that fio reports and skips, or that
//! makes fio crash, is an error. Empty lines are skipped, and so is the first line of a log that was appended.

use super::{Broken, IO_BYTES_MAX, Reading, TraceError, TraceFile, TraceOp};
use crate::job::Dir;
use std::collections::BTreeMap;
use std::io::{BufRead, Read};

/// The first line of a log.
pub(crate) const VERSION_3: &str = "fio version 3 iolog";
const VERSION_2: &str = "fio version 2 iolog";
/// Longest line, as in fio.
const LINE_BYTES_MAX: u64 = 4096;
/// Most files of a log.
const FILES_MAX: usize = 1 << 20;
const FORM_3: &str = "write it as 'TIME FILE ACTION' or 'TIME FILE ACTION OFFSET LENGTH'";
const FORM_2: &str = "write it as 'FILE ACTION' or 'FILE ACTION OFFSET LENGTH'";

/// Adds the I/Os of a log.
pub(super) fn read(file: &mut TraceFile, reading: &mut Reading<'_>) -> Result<(), TraceError> {
    let (mut line, mut number) = (Vec::new(), 0u64);
    let mut log = Log { has_times: false, open: BTreeMap::new() };
    loop {
        number += 1;
        line.clear();
        let failed =
            |rule: String, remedy: &str| TraceError::new(&file.name, format_args!(", line {number}"), rule, remedy);
        let got = (&mut file.from).take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut line);
        let got = got.map_err(|e| failed(e.to_string(), "name a file that can be read"))?;
        if got as u64 > LINE_BYTES_MAX {
            let rule = format!("is longer than {LINE_BYTES_MAX} bytes");
            return Err(failed(rule, "name an I/O log of fio, or a binary blktrace"));
        }
        let Ok(text) = str::from_utf8(&line) else {
            return Err(failed("is not UTF-8".into(), "name an I/O log of fio, or a binary blktrace; rename files"));
        };
        let text = text.trim_end();
        if number == 1 {
            log.has_times = version(text).ok_or_else(|| {
                let rule = format!("is '{}': must be '{VERSION_2}' or '{VERSION_3}'", short(text));
                failed(rule, "record the trace again with fio 3.33 or mqblk, or name a binary blktrace")
            })?;
            continue;
        }
        if got == 0 {
            return Ok(());
        }
        if text.is_empty() || version(text) == Some(log.has_times) {
            continue;
        }
        log.line(text, reading).map_err(|(rule, remedy)| failed(format!("'{}': {rule}", short(text)), remedy))?;
    }
}

/// Whether a log that begins with this line has times; `None`: it is no such line.
fn version(line: &str) -> Option<bool> {
    match line {
        VERSION_2 => Some(false),
        VERSION_3 => Some(true),
        _ => None,
    }
}

/// The beginning of a text.
fn short(text: &str) -> &str {
    text.char_indices().nth(60).map_or(text, |(end, _)| &text[..end])
}

struct Log {
    has_times: bool,
    /// Files that were added, and whether they are open.
    open: BTreeMap<String, bool>,
}

impl Log {
    fn line(&mut self, text: &str, reading: &mut Reading<'_>) -> Result<(), Broken> {
        let form = if self.has_times { FORM_3 } else { FORM_2 };
        let mut fields = text.split_ascii_whitespace();
        let mut field = || fields.next().ok_or_else(|| ("has too few fields".to_owned(), form));
        if self.has_times {
            let time = number(field()?, "time")?;
            let since = reading.since_last(time);
            reading.pass_ns(since.saturating_mul(1000));
        }
        let (file, action) = (field()?, field()?);
        let Some(offset) = fields.next() else { return self.file_action(file, action) };
        let length = fields.next().ok_or_else(|| ("has an offset and no length".to_owned(), form))?;
        if fields.next().is_some() {
            return Err(("has too many fields".into(), "a name with spaces cannot be replayed: rename the file"));
        }
        let (offset, length) = (number(offset, "offset")?, number(length, "length")?);
        let op = match action {
            "wait" if self.has_times => {
                return Err(("version 3 has no wait".into(), "remove the line: the times say when I/Os are due"));
            }
            "wait" => return reading.wait(offset),
            "read" => TraceOp::Io(Dir::Read),
            "write" => TraceOp::Io(Dir::Write),
            "trim" => TraceOp::Io(Dir::Trim),
            "sync" | "datasync" => TraceOp::Sync,
            _ => {
                let remedy = "use read, write, trim, sync, datasync or, in version 2, wait";
                return Err((format!("action '{}' is not known", short(action)), remedy));
            }
        };
        match self.open.get(file) {
            Some(true) => {}
            Some(false) => return Err(("the file is not open".into(), "add a line with 'open' before it")),
            None => return Err(("the file was not added".into(), "add lines with 'add' and 'open' before it")),
        }
        if op == TraceOp::Sync {
            return reading.io(op, file, 0, 0);
        }
        let Ok(len) = u32::try_from(length) else {
            let most = if op == TraceOp::Io(Dir::Trim) { u32::MAX } else { IO_BYTES_MAX };
            return Err((format!("{length} bytes: must be at most {most}"), "split the I/O"));
        };
        if len == 0 {
            return Err(("has no bytes".into(), "remove the line"));
        }
        reading.io(op, file, offset, len)
    }

    fn file_action(&mut self, file: &str, action: &str) -> Result<(), Broken> {
        let is_full = self.open.len() >= FILES_MAX;
        match (action, self.open.get_mut(file)) {
            ("add", Some(_)) => {}
            ("add", None) if is_full => {
                return Err((format!("has more than {FILES_MAX} files"), "replay a part of it"));
            }
            ("add", None) => {
                self.open.insert(file.to_owned(), false);
            }
            ("open" | "close", None) => {
                return Err(("the file was not added".into(), "add a line with 'add' before it"));
            }
            ("open", Some(open)) => *open = true,
            ("close", Some(open)) => *open = false,
            _ => {
                let remedy = "use add, open or close; an I/O has an offset and a length";
                return Err((format!("action '{}' is not known", short(action)), remedy));
            }
        }
        Ok(())
    }
}

fn number(text: &str, what: &str) -> Result<u64, Broken> {
    let is_number = text.bytes().all(|b| b.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|_| is_number)
        .ok_or_else(|| (format!("{what} '{}' is not a number below 2^64", short(text)), "write decimal digits"))
}
