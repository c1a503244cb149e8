// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hardware handler "alua" of multipath for paths that are iSCSI disks: asks the target how it serves the unit by a path, and
//! has it serve it if it can.
//!
//! Guarantees: each activation has one end, told from a thread of the handler's own, which ends with the handler; one path that does
//! not answer holds up the others for [`COMMAND_TIME`] a command at most. What is decided is [`blk::scsi::alua`]'s.

use super::{Iscsi, RawCommand};
use crate::clock;
use crate::error::{Error, Result};
use blk::id::HctxId;
use blk::multipath::{Handler, PathId, PgInit};
use blk::scsi::alua;
use blk::scsi::cdb::Cdb;
use blk::scsi::disposition::{HostByte, Outcome};
use blk::scsi::sense::Sense;
use blk::scsi::transport::Probed;
use blk::time::{Duration, Instant};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;

/// How long one command may take; less than the kernel's 60 s, for other paths wait meanwhile.
const COMMAND_TIME: Duration = Duration::from_secs(10);
/// Longest sleep; a wish or the handler's end wakes it.
const MAX_SLEEP: Duration = Duration::from_secs(3600);

/// See the module's text.
pub struct AluaHandler {
    wishes: Option<Sender<(PathId, Instant)>>,
    thread: Option<JoinHandle<()>>,
}

impl AluaHandler {
    /// For the paths that `port` finds; `done` is told of each end, and passes it to
    /// [`Multipath::pg_init_done`](blk::multipath::Multipath::pg_init_done).
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn new(
        port: impl Fn(PathId) -> Option<Arc<Iscsi>> + Send + 'static,
        done: impl Fn(PathId, PgInit) + Send + 'static,
    ) -> Result<AluaHandler> {
        let (wishes, wanted) = channel();
        let work = move || run(&wanted, &port, &done);
        let thread = std::thread::Builder::new().name("alua".into()).spawn(work);
        let thread = thread.map_err(|e| Error::os(e, "cannot start a thread"))?;
        Ok(AluaHandler { wishes: Some(wishes), thread: Some(thread) })
    }
}

impl Handler for AluaHandler {
    fn name(&self) -> &str {
        "alua"
    }

    fn activate(&self, path: PathId, after: Duration) {
        if let Some(wishes) = &self.wishes {
            // The thread lives as long as the handler.
            let _ = wishes.send((path, clock::now() + after));
        }
    }
}

impl Drop for AluaHandler {
    fn drop(&mut self) {
        self.wishes = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Activates what is wished for when it is due, until nobody can wish any more.
fn run(
    wanted: &Receiver<(PathId, Instant)>,
    port: &impl Fn(PathId) -> Option<Arc<Iscsi>>,
    done: &impl Fn(PathId, PgInit),
) {
    let mut due: Vec<(Instant, PathId)> = Vec::new();
    // Since when a path's state has been about to change.
    let mut changing: BTreeMap<PathId, Instant> = BTreeMap::new();
    loop {
        let now = clock::now();
        if let Some(at) = due.iter().position(|(when, _)| *when <= now) {
            let (_, path) = due.swap_remove(at);
            let since = changing.get(&path).map_or(Duration::ZERO, |since| now.since(*since));
            let how = port(path).map_or(PgInit::Failed, |disk| activate(&disk, since));
            if how == PgInit::Retry {
                changing.entry(path).or_insert(now);
            } else {
                changing.remove(&path);
            }
            done(path, how);
            continue;
        }
        let sleep = due.iter().map(|(when, _)| when.since(now)).min().unwrap_or(MAX_SLEEP);
        match wanted.recv_timeout(std::time::Duration::from_nanos(sleep.as_ns())) {
            Ok((path, when)) => due.push((when, path)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn activate(disk: &Iscsi, in_transition: Duration) -> PgInit {
    let mut ask = |cdb: &Cdb, data_out: &[u8], most: u32| {
        let command = RawCommand { cdb: cdb.as_bytes(), data_out, data_in: most as usize, timeout: COMMAND_TIME };
        match disk.execute(HctxId::new(0), &command) {
            Ok(answer) => {
                let sense = Sense::parse(&answer.sense);
                let outcome = Outcome { host: answer.host, status: answer.status, sense, residual: 0 };
                Probed { outcome, data: answer.data }
            }
            Err(_) => Probed { outcome: Outcome::host(HostByte::NoConnect), data: Vec::new() },
        }
    };
    alua::activate(&mut ask, in_transition)
}
