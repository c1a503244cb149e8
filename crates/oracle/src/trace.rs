// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reader of block events as tracefs prints them (`NAME.trace`).
//!
//! ```text
//! TASK-PID [CPU] [FLAGS] SECONDS: block_EVENT: MAJOR,MINOR RWBS [BYTES ()] SECTOR + LENGTH [PRIO] [TASK]
//! ```
//!
//! Guarantees: every line is an event, or of a kind that a replay ignores (`plug`), or an error. Lines of another
//! disk than the first are an error too, because a trace of two disks cannot be replayed on one.

use crate::CaseError;
use crate::event::{Event, Extent, Kind};

/// Reads a trace; `file` is what errors call it.
///
/// # Errors
/// The first line that is not an event of the one disk, and a trace without events.
pub fn parse(file: &str, text: &str) -> Result<Vec<Event>, CaseError> {
    let mut events = Vec::new();
    let mut disk = None;
    for (at, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let fail = |what: String| CaseError(format!("{file}:{}: {what}", at + 1));
        let Some((event, on)) = parse_line(line).map_err(fail)? else { continue };
        match (&disk, on) {
            (_, None) => {}
            (None, Some(on)) => disk = Some(on.to_owned()),
            (Some(first), Some(on)) if first != on => {
                return Err(fail(format!("disk {on} after disk {first}: record one disk at a time")));
            }
            _ => {}
        }
        events.push(event);
    }
    if events.is_empty() {
        return Err(CaseError(format!("{file}: no block event: record with the events of block_* enabled")));
    }
    Ok(events)
}

/// Reads an event and the disk it names; `None` for an event that decides nothing.
fn parse_line(line: &str) -> Result<Option<(Event, Option<&str>)>, String> {
    let shape = || format!("'{line}': must be an event as tracefs prints it, '... [CPU] SECONDS: block_EVENT: ...'");
    let (head, tail) = line.split_once(": block_").ok_or_else(shape)?;
    let us = head.rsplit(' ').next().and_then(parse_us).ok_or_else(shape)?;
    let cpu = head.split_once('[').and_then(|(_, r)| r.split_once(']')).and_then(|(n, _)| n.parse().ok());
    let cpu = cpu.ok_or_else(shape)?;
    let by_worker = head.trim_start().starts_with("kworker/");
    let (name, rest) = tail.split_once(": ").ok_or_else(shape)?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    let none = Extent { write: false, sector: 0, len: 0 };
    let kind = match name {
        "plug" => return Ok(None),
        "unplug" => {
            let n = words.last().and_then(|w| w.parse().ok());
            let kind = Kind::Unplug(n.ok_or_else(|| format!("unplug without a number: '{line}'"))?);
            return Ok(Some((Event { us, kind, extent: none, cpu, by_worker }, None)));
        }
        "bio_queue" => Kind::Queue,
        "bio_backmerge" | "rq_merge" => Kind::BackMerge,
        "bio_frontmerge" => Kind::FrontMerge,
        "getrq" => Kind::GetRq,
        "rq_insert" => Kind::Insert,
        "rq_issue" => Kind::Issue,
        "rq_requeue" => Kind::Requeue,
        "rq_complete" => Kind::Complete,
        "split" => {
            let extent =
                parse_split(&words).ok_or_else(|| format!("'{rest}': must be 'MAJOR,MINOR RWBS SECTOR / SECTOR'"))?;
            return Ok(Some((Event { us, kind: Kind::Split, extent, cpu, by_worker }, words.first().copied())));
        }
        _ => return Err(format!("block_{name}: no event that is compared; record only those of guest/job.sh")),
    };
    let extent =
        parse_extent(&words).ok_or_else(|| format!("'{rest}': must be 'MAJOR,MINOR RWBS ... SECTOR + LENGTH'"))?;
    Ok(Some((Event { us, kind, extent, cpu, by_worker }, words.first().copied())))
}

fn parse_us(seconds: &str) -> Option<u64> {
    let (s, us) = seconds.split_once('.')?;
    if us.len() != 6 {
        return None;
    }
    s.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(us.parse().ok()?)
}

/// The operation of "R", "WS", ...: flags come before its letter only for flushes ("FW"), which no script makes.
fn parse_write(rwbs: &str) -> Option<bool> {
    match rwbs.chars().next()? {
        'W' => Some(true),
        'R' => Some(false),
        _ => None,
    }
}

fn parse_extent(words: &[&str]) -> Option<Extent> {
    let plus = words.iter().position(|w| *w == "+")?;
    let sector = words.get(plus.checked_sub(1)?)?.parse().ok()?;
    Some(Extent { write: parse_write(words.get(1)?)?, sector, len: words.get(plus + 1)?.parse().ok()? })
}

/// Reads the front piece of a split bio. The line has the first sector of this piece and that of the rest.
fn parse_split(words: &[&str]) -> Option<Extent> {
    let [_, rwbs, first, "/", rest, ..] = words else { return None };
    let sector: u64 = first.parse().ok()?;
    let len = rest.parse::<u64>().ok()?.checked_sub(sector)?;
    Some(Extent { write: parse_write(rwbs)?, sector, len: u32::try_from(len).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISSUE: &str =
        "    kworker/0:1H-42      [003]     16.841133: block_rq_issue: 253,0 R 4096 () 64 + 8 be,0,4 [kworker/0:1H]";

    #[test]
    fn lines_of_all_forms_are_read() {
        let merge = "  ioscript-271     [000] d..1.    16.806025: block_bio_backmerge: 253,0 WS 8008 + 8 [ioscript]";
        let done = "  <idle>-0       [000]     16.921529: block_rq_complete: 253,0 R () 31992 + 32 be,0,4 [0]";
        let plug = "  ioscript-271     [000]     16.800841: block_plug: [ioscript]";
        let unplug = "  ioscript-271     [000]     16.800848: block_unplug: [ioscript] 24";
        let text = [ISSUE, merge, done, plug, unplug].join("\n");
        let events = parse("t", &text).unwrap();
        let texts: Vec<String> = events.iter().map(Event::to_string).collect();
        assert_eq!(texts, ["D R 64+8", "M W 8008+8", "C R 31992+32", "U 24"]);
        assert_eq!((events[0].us, events[0].cpu), (16_841_133, 3));
        assert!(events[0].by_worker && !events[1].by_worker);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let error = |text: &str| parse("a.trace", text).unwrap_err().0;
        assert!(error("hello").starts_with("a.trace:1: 'hello': must be an event"));
        assert!(error("").contains("no block event"));
        assert!(error(&ISSUE.replace("rq_issue", "rq_odd")).contains("block_rq_odd"));
        assert!(error(&ISSUE.replace("64 + 8", "64 8")).contains("SECTOR + LENGTH"));
        let other = ISSUE.replace("253,0", "253,1");
        assert!(error(&format!("{ISSUE}\n{other}")).starts_with("a.trace:2: disk 253,1 after disk 253,0"));
    }
}
