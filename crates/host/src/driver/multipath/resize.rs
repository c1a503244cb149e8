// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The size of a disk whose logical unit has grown: multipathd's `resize map`.
//!
//! Guarantees: asking for the size changes nothing. A size is returned only if all paths that can be asked now tell the same. All paths
//! adopt it, also those that could not be reached; their drivers check identity and size before they carry requests again.
//! Source: multipathd/cli_handlers.c (`cli_resize`).

use super::disk::{Core, none_opened};
use super::path::PathDriver;
use crate::driver::host_driver::HostDriver;
use crate::driver::space::sized_at_target;
use crate::error::{Error, ErrorKind, Result};
use blk::id::{SECTOR_SHIFT, Sector};
use std::sync::Arc;

impl Core {
    /// Asks all paths at once for the size of their logical unit. `None`: paths of this kind keep their size.
    ///
    /// # Errors
    /// Usage: a size was given, or the paths tell different sizes. Others: a path leads to another disk, or no path can be asked.
    pub(super) fn resize(&self, bytes: Option<u64>, shrink: bool) -> Option<Result<u64>> {
        if bytes.is_some() {
            return Some(Err(sized_at_target("a multipath disk")));
        }
        let _one = self.commanding.lock();
        let ask = |(path, driver): (Arc<PathDriver>, Arc<dyn HostDriver>)| {
            let told = driver.space().resize(None, shrink);
            (path, told)
        };
        let told: Vec<(Arc<PathDriver>, Option<Result<u64>>)> = std::thread::scope(|s| {
            let all: Vec<_> = self.inners().map(|one| s.spawn(move || ask(one))).collect();
            all.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        let told = told.into_iter().map(|(path, size)| Some((path, size?))).collect::<Option<Vec<_>>>()?;
        Some(agreed(told))
    }

    /// Gives the disk and all its paths this size.
    pub(super) fn adopt(&self, bytes: u64) {
        // A path that is added gets the size of the others.
        let _one = self.commanding.lock();
        // The paths first: a path must not get requests beyond its end.
        self.paths.present().iter().for_each(|path| path.driver.adopt(bytes));
        self.disk.set_capacity(Sector(bytes >> SECTOR_SHIFT));
    }
}

/// Returns the size that all these paths tell, except those that could not be asked.
fn agreed(told: Vec<(Arc<PathDriver>, Result<u64>)>) -> Result<u64> {
    let (mut first, mut failed): (Option<(&str, u64)>, _) = (None, Vec::new());
    let (paths, sizes): (Vec<_>, Vec<_>) = told.into_iter().unzip();
    for (path, size) in paths.iter().zip(sizes) {
        let name = path.name.as_str();
        match (size, first) {
            (Ok(size), None) => first = Some((name, size)),
            (Ok(size), Some((other, is))) if size != is => {
                return Err(Error::usage(format!(
                    "path {other} has {is} bytes now and path {name} has {size}: the disk keeps its size; try again when all \
                     paths have the same"
                )));
            }
            (Ok(_), Some(_)) => {}
            (Err(e), _) if matches!(e.kind(), ErrorKind::Usage | ErrorKind::Denied) => {
                return Err(e.within(&format!("path {name}")));
            }
            (Err(e), _) => failed.push((name, e)),
        }
    }
    first.map(|(_, size)| size).ok_or_else(|| none_opened(failed))
}
