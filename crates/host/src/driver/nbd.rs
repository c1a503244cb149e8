// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `nbd://`: a disk of an NBD server, over several connections, with reconnect.
//!
//! Synopsis: `nbd://HOST[:PORT]/EXPORT[?OPTIONS]`, `nbd+unix:///EXPORT?socket=PATH[&OPTIONS]` (quote the `&` in a shell); under TLS
//! `nbds://[USER@]HOST[:PORT]/EXPORT[?OPTIONS]`, `nbds+unix:///EXPORT?socket=PATH[&OPTIONS]`
//! Options: `connections`, 1..=64: maximum number of connections, and so of hardware queues. Default: 4 if the server says that several are
//! safe (CAN_MULTI_CONN); otherwise 1, even if more were asked for. `reconnect_delay`: seconds for which requests wait for a lost server;
//! then they fail with an I/O error. Default 0: they fail at once. `timeout`: seconds for which a request waits for its reply; default 0:
//! for as long as its connection lasts. Of TLS: `tls-certificates`, a directory laid out as for QEMU, libnbd and GnuTLS: `ca-cert.pem`,
//! the authorities for the server's certificate, and optionally `ca-crl.pem`; `client-cert.pem` and `client-key.pem` for a server that
//! wants a client certificate. Default: the system's authorities, and no client certificate. `tls-hostname`, the name that the server's
//! certificate must be for; default: HOST, and `localhost` for a Unix socket. `tls-verify-peer=0`: any server is accepted.
//! Example: `nbd+unix:///disk0?socket=/run/nbd.sock`, `nbd://storage:10809/disk0?connections=2&reconnect_delay=60`
//! What becomes of a request: read and write, without a copy of long data; flush; FUA; discard by TRIM; write zeroes by WRITE_ZEROES,
//! which may make holes. The disk offers only operations that the server offers. One hardware queue is one connection; requests that are
//! issued together are sent together. With [`NbdTarget::write_through`] all writes carry FUA, and the disk has no write cache.
//! TLS (1.2 and 1.3): negotiated before anything else; a server without TLS is refused. Whatever a server sent before TLS is
//! ignored. Data is copied once more than without TLS, and a connection has at most about 600 KiB of buffers.
//! Reconnect: as QEMU's `reconnect-delay`. A lost connection is made again in the background, without a limit on attempts,
//! with pauses of 20 ms to 1 s. Requests without an answer are sent again, in order of issue, whatever they are, so the
//! server must tolerate repeated requests. With a `reconnect_delay`, a server that answers "shutting down" counts as lost.
//! An export that has changed (size, flags, block sizes) is not used.
//! Timeout: checked when `io_timeout` (default 30 s) expires, so the longer of the two applies. As in Linux's nbd, the
//! connection of the late request is dropped with it, so a late reply matches no request. The other requests in flight wait
//! for the next connection. Without `timeout`, requests wait for a paused server.
//! Limits: no pre-shared keys and no anonymous TLS (rustls has neither), no vsock. A flush that was sent again covers writes that were
//! acknowledged before the loss only if the server still has their data. Like Linux and QEMU, this driver does not repeat acknowledged
//! writes. So a server that crashes with data in its own cache loses that data silently. If an old and a new server are both alive and use
//! the same disk, the old one may execute an interrupted write after the new one has acknowledged the repeated write. The capacity is read
//! once, rounded down to logical blocks; requests are at most 32 MiB.
//! Source: doc/proto.md and doc/uri.md of the NBD reference implementation; drivers/block/nbd.c (dead connections), QEMU's
//! `block/nbd.c` as documented (`reconnect-delay`).
//! Since: 0.1.

mod conn;
mod dial;
pub mod handshake;
mod queue;
pub mod replies;
mod requests;
mod uri;

pub use crate::driver::remote::credentials::TargetTls;
use crate::driver::remote::queue::QueueStatus;
pub use uri::{DEFAULT_CONNECTIONS, DEFAULT_PORT, MAX_CONNECTIONS, NbdAddress, NbdTarget, is_scheme, parse};

use crate::driver::host_driver::HostDriver;
use crate::driver::issuer::Issuer;
use crate::driver::path::{Connections, DevicePath};
use crate::driver::per_hctx::PerHctx;
use crate::driver::remote::credentials::Credentials;
use crate::driver::remote::queue::{losses_of, sum_of};
use crate::driver::remote::reconnect::{Reconnect, Reconnector, Watch};
use crate::driver::target::{DriverTarget, Needs, OpenTarget, TargetWarning, same_path};
use crate::error::{Error, ErrorKind, Result};
use crate::mem::Regions;
use crate::nbd::wire::transmission_flag as flag;
use blk::driver::{Completions, Driver, RqBatch, TimedOut, TimeoutAnswer};
use blk::id::{HctxId, SECTOR_SHIFT, Sector};
use blk::limits::Limits;
use blk::status::QueueRqStatus;
use blk::time::{Duration, Instant};
use dial::{Dialed, dial};
use handshake::Served;
use parking_lot::Mutex;
use queue::{Queue, Timeouts};
use std::fmt;
use std::os::fd::RawFd;
use std::sync::Arc;

/// While fewer requests than this are unsent, they may wait for those that are submitted right after them, to share one send.
const LAZY: u32 = 32;

/// A warning: the server does not allow several connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneConnection {
    address: NbdAddress,
    asked: u16,
}

impl fmt::Display for OneConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "connections={}: the NBD server at {} does not advertise CAN_MULTI_CONN: using one connection and one \
             hardware queue",
            self.asked, self.address
        )
    }
}

/// The NBD driver: a disk of an NBD server.
pub struct Nbd {
    // First: it is dropped before the rest.
    _reconnector: Reconnector<Shared>,
    shared: Arc<Shared>,
    connections: u16,
    limits: Limits,
    /// The connection on which the export was read, until a hardware queue needs it.
    first: Mutex<Option<Dialed>>,
}

/// The state that reconnecting shares with the driver.
struct Shared {
    target: NbdTarget,
    credentials: Option<Credentials>,
    served: Served,
    queues: PerHctx<Queue>,
    regions: Arc<Regions>,
    watch: Arc<Watch>,
}

impl Shared {
    /// Opens another connection.
    fn dial(&self) -> Result<Dialed> {
        dial(&self.target, self.credentials.as_ref(), self.watch.over()).and_then(|dialed| same(self, dialed))
    }
}

impl Reconnect for Shared {
    const THREAD: &'static str = "nbd-reconnect";
    const LINKS: &'static str = "NBD connections";

    fn watch(&self) -> &Watch {
        &self.watch
    }

    fn look_after(&self) {
        self.queues.iter().for_each(|q| q.look_after(&self.regions));
    }

    fn wants(&self) -> Vec<(Instant, usize)> {
        self.queues.iter().enumerate().filter_map(|(i, q)| Some((q.core.wants_connection()?, i))).collect()
    }

    /// Connects again; refuses a server whose export has changed.
    fn attempt(&self, number: usize) -> Result<()> {
        let Some(queue) = self.queues.iter().nth(number) else { return Ok(()) };
        queue.attach(self.dial()?, &self.regions, false);
        Ok(())
    }
}

/// Refuses an export that differs from the one that was opened.
fn same(shared: &Shared, dialed: Dialed) -> Result<Dialed> {
    let (was, is) = (&shared.served, &dialed.served);
    if is == was {
        return Ok(dialed);
    }
    let text = format!(
        "NBD server at {}: export '{}' has changed from {} to {}; no requests are sent, because this may be another \
         disk: reopen the disk",
        shared.target.address,
        shared.target.export,
        described(was),
        described(is)
    );
    Err(Error::new(ErrorKind::Denied, text))
}

fn described(served: &Served) -> String {
    let Served { size_bytes, flags, min_block, max_payload, .. } = served;
    format!("{size_bytes} bytes (flags {flags:#x}, blocks of {min_block}, at most {max_payload})")
}

impl Nbd {
    /// Connects to the server; the data of requests is in `regions`. With `write` a read-only export is refused.
    pub fn open(target: &NbdTarget, write: bool, regions: Arc<Regions>) -> Result<(Nbd, Option<OneConnection>)> {
        let watch = Arc::new(Watch::new()?);
        let host = if let NbdAddress::Tcp(host, _) = &target.address { Some(host.as_str()) } else { None };
        let credentials = target.tls.as_ref().map(|tls| Credentials::load(tls, host)).transpose();
        let credentials = credentials.map_err(|e| e.within(&format!("NBD server at {}", target.address)))?;
        let first = dial(target, credentials.as_ref(), watch.over())?;
        let served = first.served;
        let limits = limits(&served).and_then(|limits| match target.write_through {
            true => without_cache(limits),
            false => Ok(limits),
        });
        let limits = limits.map_err(|text| within(target, text))?;
        if limits.read_only && write {
            let text = "is read-only: use another export for writes".to_owned();
            return Err(within(target, text));
        }
        let several = served.can(flag::CAN_MULTI_CONN);
        let connections = if several { target.connections.unwrap_or(DEFAULT_CONNECTIONS) } else { 1 };
        let asked = target.connections.filter(|asked| *asked > connections);
        let warning = asked.map(|asked| OneConnection { address: target.address.clone(), asked });
        let (target, queues) = (target.clone(), PerHctx::new());
        let shared = Arc::new(Shared { target, credentials, served, queues, regions, watch });
        let reconnector = Reconnector::start(&shared)?;
        Ok((Nbd { shared, connections, limits, first: Mutex::new(Some(first)), _reconnector: reconnector }, warning))
    }

    /// Returns the state of each hardware queue's connections, and why no connection can be made, if none can.
    pub fn status(&self) -> (Vec<QueueStatus>, Option<String>) {
        (self.shared.queues.iter().map(|q| q.core.status()).collect(), self.shared.watch.refusal())
    }

    #[inline]
    fn queue(&self, hctx: HctxId) -> &Queue {
        self.shared.queues.get(hctx)
    }

    /// Returns a connection for a hardware queue that never had one.
    fn connect(&self) -> Result<Dialed> {
        match self.first.lock().take() {
            Some(first) => Ok(first),
            None => self.shared.dial(),
        }
    }
}

fn within(target: &NbdTarget, text: String) -> Error {
    let ctx = format!("export '{}' of the NBD server at {} {text}", target.export, target.address);
    Error::new(ErrorKind::Denied, ctx)
}

/// Returns the limits of an export.
fn limits(served: &Served) -> std::result::Result<Limits, String> {
    let logical = served.min_block.max(1 << SECTOR_SHIFT);
    let max = served.max_payload / logical * logical;
    if max == 0 {
        return Err(format!(
            "accepts at most {} bytes per request: less than a block of {logical}",
            served.max_payload
        ));
    }
    let size = served.size_bytes;
    if size == 0 || !size.is_multiple_of(u64::from(logical)) || size > i64::MAX as u64 {
        return Err(format!("has {size} bytes: must be whole blocks of {logical}, and not 0: pad the server's image"));
    }
    let sectors = max >> SECTOR_SHIFT;
    // For requests without data the length has 32 bits, of which QEMU's servers accept 31.
    let range = |can: u16, most: u32| if served.can(can) { (most / logical * logical) >> SECTOR_SHIFT } else { 0 };
    let limits = Limits {
        logical_block_size: logical,
        physical_block_size: served.preferred_block.clamp(logical, 1 << 16).max(logical),
        max_segment_size: u32::MAX,
        max_discard_sectors: range(flag::SEND_TRIM, i32::MAX as u32),
        discard_granularity: if served.can(flag::SEND_TRIM) { logical } else { 0 },
        // At most as long as a write, because the server's longest request size may apply to write zeroes, too.
        max_write_zeroes_sectors: range(flag::SEND_WRITE_ZEROES, max),
        write_cache: served.can(flag::SEND_FLUSH),
        fua: served.can(flag::SEND_FUA),
        read_only: served.can(flag::READ_ONLY),
        rotational: served.can(flag::ROTATIONAL),
        ..Limits::with_max_hw_sectors(sectors)
    };
    limits.check()?;
    Ok(limits)
}

/// Returns the limits of an export whose writes all carry FUA: it needs no flush.
fn without_cache(limits: Limits) -> std::result::Result<Limits, String> {
    if limits.write_cache && !limits.fua {
        return Err(
            "has a write cache, but no FUA, so a flush on another path would not make its writes durable: use a \
             server that offers FUA, or use one path and leave allow_stale_writes out"
                .into(),
        );
    }
    Ok(Limits { write_cache: false, fua: false, ..limits })
}

impl Driver for Nbd {
    fn name(&self) -> &'static str {
        "nbd"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn capacity(&self) -> Sector {
        Sector(self.shared.served.size_bytes >> SECTOR_SHIFT)
    }

    fn start(&self, nr_hw_queues: u16, queue_depth: u32) -> std::result::Result<(), String> {
        let Shared { target, watch, regions, queues, served, .. } = &*self.shared;
        if nr_hw_queues > self.connections {
            let (n, address) = (self.connections, &target.address);
            return Err(format!(
                "{nr_hw_queues} hardware queues: the NBD server at {address} is used over at most {n} connections; set \
                 nr_hw_queues={n}, or connections={nr_hw_queues} in the target if the server allows several"
            ));
        }
        let timeouts = Timeouts { reconnect_delay: target.reconnect_delay, timeout: target.timeout };
        let write_through = target.write_through && served.can(flag::SEND_FUA);
        for i in 0..nr_hw_queues {
            // Made before other threads can see it.
            let fresh = Queue::new(timeouts, write_through, Arc::clone(watch)).map_err(|e| e.to_string())?;
            let queue = queues.get_or_init(i, || fresh);
            if !queue.core.start(queue_depth) {
                let dialed = self.connect().map_err(|e| format!("connection {} of {nr_hw_queues}: {e}", i + 1))?;
                queue.attach(dialed, regions, true);
            }
        }
        queues.iter().skip(usize::from(nr_hw_queues)).for_each(Queue::stop);
        Ok(())
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, now: Instant) -> QueueRqStatus {
        self.queue(batch.hctx()).queue_rqs(batch, &self.shared.regions, now)
    }

    fn timeout(&self, hctx: HctxId, late: TimedOut, _done: &mut Completions, now: Instant) -> TimeoutAnswer {
        self.queue(hctx).timeout(late, now)
    }

    fn poll(&self, hctx: HctxId, done: &mut Completions, now: Instant) {
        self.queue(hctx).poll(done, &self.shared.regions, now);
    }
}

impl HostDriver for Nbd {
    fn max_hw_queues(&self) -> u16 {
        self.connections
    }

    fn wait_since(&self, seen: u64, hctx: HctxId, _min: u32, timeout: Option<Duration>) {
        self.queue(hctx).wait(seen, timeout, &self.shared.regions);
    }

    fn wakes(&self, hctx: HctxId) -> u64 {
        self.queue(hctx).core.wakes()
    }

    fn wake(&self, hctx: HctxId) {
        self.queue(hctx).core.wake();
    }

    fn next_due(&self, hctx: HctxId) -> Option<Instant> {
        self.queue(hctx).next_due()
    }

    fn ring_fd(&self, hctx: HctxId) -> Option<RawFd> {
        Some(self.queue(hctx).core.ring_fd())
    }

    fn path(&self) -> &dyn DevicePath {
        self
    }

    fn issuer(&self) -> &dyn Issuer {
        self
    }
}

impl DevicePath for Nbd {
    fn connections(&self) -> Option<Connections> {
        Some(sum_of(self.shared.queues.iter().map(|q| q.core.status())))
    }

    fn troubles(&self) -> Vec<String> {
        let (queues, refusal) = self.status();
        let Some((times, last)) = losses_of(&queues) else { return Vec::new() };
        let replayed: u64 = queues.iter().map(|q| q.replayed).sum();
        let mut text = format!(
            "NBD server at {}: connections were lost {times} ({last}); {replayed} requests were resent",
            self.shared.target.address
        );
        if let Some(refusal) = refusal {
            text += &format!("; reconnecting failed: {refusal}");
        }
        vec![text]
    }

    fn set_give_up(&self, give_up: bool) -> bool {
        self.shared.queues.iter().for_each(|q| q.set_give_up(give_up));
        true
    }
}

impl Issuer for Nbd {
    fn set_lazy_commit(&self, hctx: HctxId, fewer_than: u32) {
        self.queue(hctx).core.set_lazy_commit(fewer_than);
    }

    /// A send costs as much for ten requests as for one.
    fn lazy_hint(&self) -> u32 {
        LAZY
    }

    fn unclaim(&self) {
        self.shared.queues.iter().for_each(|q| q.core.set_lazy_commit(0));
    }
}

impl Drop for Nbd {
    fn drop(&mut self) {
        self.shared.queues.iter().for_each(Queue::stop);
    }
}

impl DriverTarget for NbdTarget {
    const KIND: &'static str = "nbd";
    const HELP: &'static str = "
  nbd://HOST[:PORT]/EXPORT, nbd+unix:///EXPORT?socket=PATH
                       an NBD server; &connections=4, &reconnect_delay=SECONDS, &timeout=SECONDS after a '?'
  nbds://HOST[:PORT]/EXPORT, nbds+unix:///EXPORT?socket=PATH
                       the same under TLS; &tls-certificates=DIR (ca-cert.pem, and client-cert.pem with
                       client-key.pem if the server wants them), &tls-hostname=NAME, &tls-verify-peer=0";
    const IS_URL: bool = true;

    fn is_kind(word: &str) -> bool {
        is_scheme(word)
    }

    fn parse(text: &str, _rest: &str) -> Result<NbdTarget> {
        parse(text)
    }

    fn open(&self, needs: &Needs, regions: Arc<Regions>) -> Result<OpenTarget> {
        let (nbd, warning) = Nbd::open(self, needs.write, regions)?;
        let open = OpenTarget::sized(nbd, needs, format_args!("the NBD server's export '{}'", self.export), "")?;
        Ok(OpenTarget { warnings: warning.iter().map(TargetWarning::new).collect(), ..open })
    }

    fn is_same_data(&self, other: &Self) -> bool {
        let is_same_server = match (&self.address, &other.address) {
            (NbdAddress::Unix(a), NbdAddress::Unix(b)) => same_path(a, b),
            (a, b) => a == b,
        };
        is_same_server && self.export == other.export
    }
}
