// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sleeping until one of several descriptors is readable. It may return early for no reason.

use blk::time::Duration;

/// ppoll(2). Its errors (EINTR, ENOMEM) are early returns, as any wait may have.
pub(crate) fn poll_fds(fds: &mut [libc::pollfd], timeout: Duration) {
    let (secs, ns) = (timeout.as_ns() / 1_000_000_000, timeout.as_ns() % 1_000_000_000);
    let timeout = libc::timespec { tv_sec: secs as libc::time_t, tv_nsec: ns as libc::c_long };
    // SAFETY: the list has the length that is told, the timeout lives as long as the call, no signal mask is given.
    unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, &raw const timeout, std::ptr::null()) };
}
