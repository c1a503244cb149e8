// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hardware handler `1 alua`: makes the target activate a path before the path's group is used (`pg_init`).
//!
//! Guarantees: the disk gets one result for each activation, unless the disk ends. Paths are activated in parallel, but
//! paths of one port group one after the other, so that the group gets one command. The handler waits for a transition for
//! as long as a transition may take, and uses up no `pg_init_retries`: those are for targets that do not answer. I/O waits
//! meanwhile, as in the kernel.
//! Needs: paths that are SCSI devices. Does not choose the commands: [`blk::scsi::alua::activate`] does.
//! Source: drivers/scsi/device_handler/scsi_dh_alua.c (`alua_activate`, `alua_rtpg_work`); drivers/md/dm-mpath.c (`pg_init_done`).

use super::watch::WatchSignals;
use crate::clock;
use crate::driver::multipath::disk::{Core, Watched};
use crate::driver::scsi::RawCommand;
use crate::panics;
use blk::id::HctxId;
use blk::multipath::{Handler, PathId, PgInit};
use blk::scsi::alua::{self, TRANSITION_LOOK};
use blk::scsi::cdb::Cdb;
use blk::scsi::disposition::{HostByte, Outcome};
use blk::scsi::sense::Sense;
use blk::scsi::transport::Probed;
use blk::time::Duration;
use std::sync::Arc;

/// Time limit of one command; less than the kernel's 60 s, because I/O waits meanwhile.
const COMMAND_TIME: Duration = Duration::from_secs(10);

/// Records the disk's requests for activation; [`run`] executes them.
pub(super) struct AluaHandler {
    pub(super) signals: Arc<WatchSignals>,
}

impl Handler for AluaHandler {
    fn name(&self) -> &str {
        "alua"
    }

    fn activate(&self, path: PathId, after: Duration) {
        self.signals.wish(path, clock::now() + after);
    }
}

/// Activates paths when they are due, until the disk ends and the activations in progress have completed.
pub(super) fn run(core: &Core) {
    // Requests may wait for an activation.
    const KIND: &str = "thread that activates paths";
    panics::end_process(KIND);
    std::thread::scope(|s| {
        while let Some(id) = core.signals.next_wish() {
            s.spawn(move || {
                panics::end_process(KIND);
                let path = {
                    // A path that is being added may be known to the disk only.
                    let _listed = core.listing.lock();
                    core.paths.present().into_iter().find(|p| p.id == id)
                };
                let how = path.map_or(PgInit::Failed, |path| core.activate(&path));
                core.disk.pg_init_done(id, how, clock::now());
                // The command may have changed other paths' priorities.
                core.signals.tell_all();
            });
        }
    });
}

impl Core {
    fn activate(&self, path: &Watched) -> PgInit {
        let (group, told) = path.access.lock().as_ref().map_or((None, None), |a| (Some(a.group.group), a.transition));
        let one = group.map(|group| Arc::clone(self.orders.lock().entry(group).or_default()));
        let _one = one.as_ref().map(|one| one.lock());
        let began = clock::now();
        loop {
            let how =
                alua::activate(&mut |cdb, out, most| self.ask(path, cdb, out, most), clock::now().since(began), told);
            if let Some(how) = how {
                return how;
            }
            if self.signals.is_over_within(TRANSITION_LOOK) {
                return PgInit::Failed;
            }
        }
    }

    /// Sends one command over the session of the path's first hardware queue, and returns its result.
    fn ask(&self, path: &Watched, cdb: &Cdb, data_out: &[u8], most: u32) -> Probed {
        let command = RawCommand { cdb: cdb.as_bytes(), data_out, data_in: most as usize, timeout: COMMAND_TIME };
        let driver = path.driver.inner().filter(|_| !self.signals.is_over());
        match driver.and_then(|d| d.scsi().command(HctxId::new(0), &command)) {
            Some(Ok(answer)) => {
                let sense = Sense::parse(&answer.sense);
                let outcome = Outcome { host: answer.host, status: answer.status, sense, residual: 0 };
                Probed { outcome, data: answer.data }
            }
            Some(Err(_)) | None => Probed { outcome: Outcome::host(HostByte::NoConnect), data: Vec::new() },
        }
    }
}
