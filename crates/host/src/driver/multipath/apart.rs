// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Work that may take long and cannot be interrupted, such as opening a path: done by a separate thread.
//!
//! Guarantees: the caller returns when the work is done, or soon after the path is removed or the disk ends. Work that is not done by then
//! continues alone, with nothing but its arguments, and its result is dropped.
//! Needs: work that holds nothing that must be released with the disk.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Longest time until the end is noticed.
const LOOK: Duration = Duration::from_millis(50);

/// Runs the work. `is_over`: whether the caller is to return at once. See the module's text.
pub(super) fn apart<T: Send + 'static>(
    is_over: impl Fn() -> bool,
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let (done, result) = sync_channel(1);
    let thread = std::thread::Builder::new().name("multipath-open".into()).spawn(move || {
        // The caller may be gone.
        let _ = done.send(work());
    });
    let thread = thread.map_err(|e| format!("cannot start a thread to open it: {e}"))?;
    loop {
        match result.recv_timeout(LOOK) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) if is_over() => return Err("it is being closed".into()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => match thread.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => return Err("opening it failed".into()),
            },
        }
    }
}
