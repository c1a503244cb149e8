// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SCSI passthrough: commands that a user of the library sends, as with SG_IO: descriptor block, data one way, status and
//! sense.
//!
//! Guarantees: a command is sent over the session of the named hardware queue. For the target this session is one initiator
//! port, for which persistent reservations are registered; a session that is made again is the same port. A command that
//! does not complete in time ends with its session, so that its outcome is decided.
//!
//! Does not check what a command does, and does not retry it. A command may write data without the block layer's knowledge.

use super::own::{Answer, TaskOwner};
use super::{Iscsi, queue::Queue};
use crate::clock;
use crate::driver::scsi::{RawAnswer, RawCommand};
use crate::error::{Error, ErrorKind, Result};
use blk::id::HctxId;
use blk::scsi::disposition::Outcome;
use blk::status::BlkStatus;
use blk::time::Duration;

/// Maximum data of one command.
pub const MAX_RAW_BYTES: usize = 1 << 20;
/// Pause between checks whether another thread has taken the answer from the socket.
const LOOK: Duration = Duration::from_ms(5);

impl Iscsi {
    /// Sends a command over the session of a hardware queue, and waits for its completion. Each hardware queue runs one such
    /// command at a time; others wait.
    ///
    /// # Errors
    /// Usage: no such hardware queue, or an invalid command. Io: no session, or no completion, within the time.
    pub fn execute(&self, hctx: HctxId, command: &RawCommand<'_>) -> Result<RawAnswer> {
        let RawCommand { cdb, data_out, data_in, timeout } = *command;
        if !matches!(cdb.len(), 6 | 10 | 12 | 16) {
            let n = cdb.len();
            return Err(Error::usage(format!("a descriptor block of {n} bytes: must be of 6, 10, 12 or 16")));
        }
        if data_out.len().max(data_in) > MAX_RAW_BYTES || (data_in > 0 && !data_out.is_empty()) {
            let (out, into) = (data_out.len(), data_in);
            return Err(Error::usage(format!(
                "a command with {out} bytes to and {into} bytes from the device: must transfer in one direction, at most {MAX_RAW_BYTES} bytes"
            )));
        }
        let Some(queue) = self.shared.queues.iter().nth(hctx.index()) else {
            return Err(Error::usage(format!("there is no hardware queue {hctx}: start the disk with more")));
        };
        let mut padded = [0; 16];
        padded[..cdb.len()].copy_from_slice(cdb);
        let answer = self.wait_for(queue, padded, data_out, data_in as u32, timeout)?;
        self.disk.overhear(&answer.outcome, clock::now());
        self.take_news();
        // An answer that is shorter than the buffer is not an error.
        let whole = Outcome { residual: 0, ..answer.outcome };
        let blk_status = match blk::scsi::disposition::judge(&whole, &Default::default()).verdict {
            blk::scsi::disposition::Verdict::End(status) => status,
            _ => BlkStatus::IoErr,
        };
        let Answer { outcome, data, sense } = answer;
        Ok(RawAnswer {
            host: outcome.host,
            status: outcome.status,
            sense,
            data,
            residual: outcome.residual,
            blk_status,
        })
    }

    fn wait_for(&self, queue: &Queue, cdb: [u8; 16], out: &[u8], most: u32, timeout: Duration) -> Result<Answer> {
        let until = clock::now() + timeout;
        let late = |what: &str| {
            let ms = timeout.as_ns() / 1_000_000;
            Err(Error::new(ErrorKind::Io, format!("{}: {what} within {ms} ms", self.shared.target)))
        };
        while !queue.begin_own(TaskOwner::User, cdb, out, most, &self.shared.regions) {
            if clock::now() >= until {
                return late("no session for a command");
            }
            queue.pause(LOOK);
        }
        loop {
            let now = clock::now();
            if let Some(answer) = queue.own_answer(TaskOwner::User, &self.shared.regions, now) {
                return Ok(answer);
            }
            if now >= until {
                queue.drop_own(TaskOwner::User);
                queue.drop_session("a command of a user did not end in time");
                return late("no answer to a command");
            }
            queue.pause(LOOK);
        }
    }
}
