// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ctrl-C and SIGTERM: the first one asks the run to end and report, the second one ends the program. SIGXFSZ, which would
//! kill it, is only caught: a file that grows beyond `ulimit -f` is then an error like any other, with a message.

use crate::status::{EXIT_INTERRUPTED, Failure};
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
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
    flag::register(SIGXFSZ, Arc::default()).map_err(|e| Failure::new(format!("cannot catch signal {SIGXFSZ}: {e}")))?;
    Ok(stop)
}
