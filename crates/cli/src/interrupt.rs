// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ctrl-C and SIGTERM: the first one asks the run to end and report, the second one ends the program.

use crate::status::{EXIT_INTERRUPTED, Failure};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A flag that the first signal sets.
pub fn stop_flag() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the shutdown looks at the flag before the same signal sets it.
        flag::register_conditional_shutdown(signal, i32::from(EXIT_INTERRUPTED), Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .map_err(|e| Failure::new(format!("cannot catch signal {signal}: {e}")))?;
    }
    Ok(stop)
}
