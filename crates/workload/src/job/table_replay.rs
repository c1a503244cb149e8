// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Option rows: logs of each I/O, and their replay. See `options`.

use super::draft::Draft;
use super::error::Reject;
use super::option::Parser::{Bool, Int, Text};
use super::option::{OptionInfo, quiet, yes};
use super::units::{self, Units};

const KINDS: &str = "read,write,trim,sync";

#[rustfmt::skip] // A table: one row per line.
pub(super) static ROWS: &[OptionInfo] = &[
    yes("write_iolog", Text { syntax: "PATH", set: |d, v, _| { d.job.logs.iolog = Some(v.to_owned()); Ok(()) } }, "", "Append what is issued to this file, for read_iolog"),
    yes("read_iolog", Text { syntax: "PATH[:PATH...]", set: |d, v, _| { d.read_iolog = Some(v.to_owned()); Ok(()) } }, "", "Replay this I/O log or blktrace; several are distributed over the instances; - is standard input"),
    quiet("read_iolog_chunked", Bool(|_, _| ()), "0", "Read a trace in pieces; mqblk reads all of it before the run, 24 bytes per I/O"),
    yes("replay_no_stall", Bool(|d, v| d.replay.no_stall = v), "0", "Replay without pauses"),
    yes("replay_redirect", Text { syntax: "PATH|TARGET", set: |d, v, _| { d.replay.redirect = Some(v.to_owned()); Ok(()) } }, "", "Replay all I/O onto this file, device or target"),
    yes("replay_scale", Int { min: 0, max: u64::MAX, set: |d, v| d.replay.scale = v }, "1", "Divide offsets of a trace by this"),
    yes("replay_align", Text { syntax: "BYTES", set: set_align }, "", "Round offsets of a trace down to a multiple of this power of two"),
    yes("replay_time_scale", Int { min: 1, max: u32::MAX as u64, set: |d, v| d.replay.time_scale_pct = v }, "100", "Speed of a replay in percent"),
    yes("replay_skip", Text { syntax: "read,write,trim,sync", set: set_skip }, "", "What a replay leaves out"),
];

fn set_align(draft: &mut Draft, text: &str, units: Units) -> Result<(), Reject> {
    let align = units::int_in(text, units, 0, 1 << 31)?;
    if align > 0 && !align.is_power_of_two() {
        return Err(Reject::new("must be a power of two", "use 512 or 4096"));
    }
    draft.replay.align = align;
    Ok(())
}

fn set_skip(draft: &mut Draft, text: &str, _: Units) -> Result<(), Reject> {
    for kind in text.split(',') {
        match kind.trim() {
            "read" => draft.replay.skip.read = true,
            "write" => draft.replay.skip.write = true,
            "trim" => draft.replay.skip.trim = true,
            "sync" => draft.replay.skip_sync = true,
            _ => return Err(Reject::new(&format!("must be a list of {KINDS}"), "")),
        }
    }
    Ok(())
}
