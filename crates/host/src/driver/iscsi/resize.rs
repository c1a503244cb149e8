// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The size of a disk whose logical unit has grown.
//!
//! Guarantees: reading the size changes nothing: if the target undoes the growth, the unit is still the same. Only once a size is
//! adopted, a smaller unit counts as another one. A session is kept only if the driver has read that size. Otherwise it is made anew, and
//! reads the size before it carries requests.
//! Needs from callers: an adopted size was read from this unit, by this driver or by another path to the unit.

use super::attach::check_size;
use super::{Iscsi, LOGIN_TIME, Shared};
use crate::driver::space::{Space, sized_at_target};
use crate::error::{Error, ErrorKind, Result};
use std::sync::atomic::Ordering;

impl Space for Iscsi {
    fn resize(&self, bytes: Option<u64>, _shrink: bool) -> Option<Result<u64>> {
        if bytes.is_some() {
            return Some(Err(sized_at_target("a logical unit")));
        }
        Some(self.shared.measure().map_err(|e| e.within(&self.shared.target.to_string())))
    }

    fn adopt(&self, bytes: u64) {
        self.disk.set_blocks(self.shared.adopt(bytes));
    }
}

impl Shared {
    /// Reads the size of the unit in a session of its own.
    fn measure(&self) -> Result<u64> {
        if self.is_nameless {
            let text = "it has no identity (VPD page 0x83 or 0x80) to verify: it keeps its size";
            return Err(Error::new(ErrorKind::Denied, text));
        }
        let _alone = self.alone_to_check(LOGIN_TIME)?;
        let mut line = self.dial_to_check(LOGIN_TIME, self.watch.over())?;
        let unit = self.is_still_there(&mut line)?;
        line.log_out();
        check_size(self.target.lun, &unit)?;
        Ok(unit.blocks * u64::from(unit.block_size))
    }

    /// From now on, a smaller unit is another one. Returns the blocks of this size.
    fn adopt(&self, bytes: u64) -> u64 {
        let blocks = {
            let mut unit = self.unit.write();
            unit.blocks = bytes / u64::from(unit.block_size);
            unit.blocks
        };
        if self.seen_blocks.load(Ordering::Relaxed) < blocks {
            self.changes.note();
            let why = "the disk has a new size, which this path has not read yet";
            self.queues.iter().for_each(|q| q.drop_session(why));
        }
        blocks
    }
}
