// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ctrl-C, SIGTERM and SIGHUP: the first signal asks the run to end and report. This takes seconds if a device does not answer, until
//! `host::run` gives up its I/O. A later signal ends the program as soon as settings of kernel devices are put back. SIGXFSZ, which would
//! kill the program, is only caught: a file that grows beyond `ulimit -f` is then an ordinary error with a message.
//!
//! A signal within [`ONE_WISH`] of the first counts as the same request, because `timeout` signals the program and then its whole process
//! group.

use crate::exit;
use crate::status::Failure;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::low_level::pipe;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long after the first signal further ones count as duplicates of it.
const ONE_WISH: Duration = Duration::from_secs(1);

/// When the program was first asked to end.
static FIRST: OnceLock<Instant> = OnceLock::new();

/// Returns a flag that the first signal sets.
pub fn stop_flag() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let signals = [SIGINT, SIGTERM, SIGHUP];
    for signal in signals {
        flag::register(signal, Arc::clone(&stop)).map_err(|e| uncaught(signal, &e))?;
    }
    exit_at_second(&signals)?;
    Ok(stop)
}

/// Ends the program at the second of these signals. The caller handles the first.
pub fn exit_at_second(signals: &[i32]) -> Result<(), Failure> {
    let (heard, told) = UnixStream::pair().map_err(|e| Failure::new(format!("cannot watch for signals: {e}")))?;
    for &signal in signals {
        told.try_clone().and_then(|told| pipe::register(signal, told)).map_err(|e| uncaught(signal, &e))?;
    }
    flag::register(SIGXFSZ, Arc::default()).map_err(|e| uncaught(SIGXFSZ, &e))?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || end_when_asked_again(heard))
        .map_err(|e| Failure::new(format!("cannot watch for signals: {e}")))?;
    Ok(())
}

/// Counts a command to end the program as the first signal, unless there was one already.
pub fn count_as_first() {
    FIRST.get_or_init(Instant::now);
}

fn uncaught(signal: i32, error: &io::Error) -> Failure {
    Failure::new(format!("cannot catch signal {signal}: {error}"))
}

/// Sleeps in `read` until signals arrive, one byte each. Ends the program at the first that is no duplicate of the first signal.
fn end_when_asked_again(mut heard: UnixStream) {
    loop {
        match heard.read(&mut [0]) {
            Ok(1) if means_it(&FIRST, Instant::now()) => exit::exit_interrupted(),
            Ok(1) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // Impossible: the sending ends stay open as long as the program runs.
            _ => return,
        }
    }
}

/// Whether a signal at `now` is more than a duplicate of the first signal, whose time is kept in `first`.
fn means_it(first: &OnceLock<Instant>, now: Instant) -> bool {
    now.duration_since(*first.get_or_init(|| now)) >= ONE_WISH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_of_the_first_signal_does_not_end_the_program() {
        let (first, start) = (OnceLock::new(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let ends = [0, 1, 999, 1000, 5000].map(|ms| means_it(&first, at(ms)));
        assert_eq!(ends, [false, false, false, true, true]);
    }
}
