// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk top`: what a daemon does, interval by interval, as `iostat -x` shows a kernel's disks.
//!
//! [`sample`] is what the control socket's `stats` answers, [`view`] the difference of two of them, [`table`] its text. On a
//! terminal each table replaces the one before. This takes only escape sequences that move the cursor and erase, so a killed
//! program leaves the terminal as it was. Elsewhere the tables follow each other.

mod sample;
mod table;
mod view;

use super::control::client::{ask, find};
use super::control::{Answer, Question};
use crate::output::{self, Versioned};
use crate::status::{Failure, Outcome, Status};
use clap::Args;
use sample::Sample;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use view::View;

/// Moves the cursor to the top left of the terminal. Old text beyond the new text is erased afterwards.
const HOME: &str = "\x1b[H";
const ERASE_LINE: &str = "\x1b[K";
const ERASE_REST: &str = "\x1b[J";

/// `mqblk top`.
#[derive(Args, Debug)]
pub struct TopArgs {
    /// Control socket of the daemon [default: of the only daemon of this user]
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
    /// Length of an interval
    #[arg(short = 'd', long = "delay", value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub delay: Duration,
    /// Exit after this many intervals
    #[arg(short = 'n', long = "count", value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Show the totals since the start of the daemon, and exit
    #[arg(long, conflicts_with = "count")]
    pub once: bool,
    /// Print one JSON object per interval, each on one line
    #[arg(long)]
    pub json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let rule = || format!("'{text}': must be seconds in 0.1..=3600");
    let seconds: f64 = text.parse().map_err(|_| rule())?;
    if (0.1..=3600.0).contains(&seconds) { Ok(Duration::from_secs_f64(seconds)) } else { Err(rule()) }
}

/// Shows intervals until the requested number is shown, or standard output is closed.
pub fn main(args: &TopArgs) -> Outcome {
    let socket = find(args.control.as_deref())?;
    let mut before = if args.once { Sample::default() } else { take(&socket)? };
    let count = if args.once { Some(1) } else { args.count };
    let live = io::stdout().is_terminal() && !args.json && !args.once;
    if live {
        output::print("\x1b[2J")?;
    }
    let mut due = Instant::now();
    for shown in 0u64.. {
        if count.is_some_and(|count| shown >= count) {
            break;
        }
        if !args.once {
            due += args.delay;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        let now = take(&socket)?;
        let view = View::between(&before, &now);
        let text = match args.json {
            true => format!("{}\n", serde_json::to_string(&Versioned::new(&view)).map_err(Failure::new)?),
            false if live => {
                let lines = table::text(&view).replace('\n', &format!("{ERASE_LINE}\n"));
                format!("{HOME}{lines}{ERASE_REST}")
            }
            false if shown > 0 => format!("\n{}", table::text(&view)),
            false => table::text(&view),
        };
        if !written(&text)? {
            break;
        }
        before = now;
    }
    Ok(Status::Done)
}

/// Writes to standard output. Returns false if the output was closed.
fn written(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Failure::new(format!("standard output: {e}"))),
    }
}

fn take(socket: &Path) -> Result<Sample, Failure> {
    match ask(socket, &Question::Stats {})? {
        Answer::Ok(value) => serde_json::from_value(value).map_err(|e| {
            Failure::new(format!(
                "daemon at '{}': unknown format of its stats ({e}); use the mqblk version that the daemon runs",
                socket.display()
            ))
        }),
        Answer::Error { message, .. } => Err(Failure::new(message)),
    }
}

#[cfg(test)]
mod tests;
