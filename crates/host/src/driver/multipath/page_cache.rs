// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Page caches of the paths of a written disk.
//!
//! Guarantees: paths without direct I/O are used for writing only if they share a page cache. All names of a regular file have one page
//! cache. Each block device has a page cache of its own, also if several lead to one disk. A flush of one device leaves the dirty pages of
//! the others, and reads from the others return old data. Does not: keep reads of a disk that another program writes up to date.
//! Source: block/bdev.c (`bd_mapping`), block/fops.c (`blkdev_fsync`).

use crate::error::{Error, Result};
use crate::kernel;
use std::path::Path;

/// Checks the opened file or block device of one of several paths of a written disk. `is_direct` is that of its driver.
///
/// # Errors
/// Usage: it is a block device that is used through the page cache.
pub(super) fn check(path: &Path, is_direct: Option<bool>) -> Result<()> {
    check_kind(path, kernel::device_number(path).is_some(), is_direct)
}

fn check_kind(path: &Path, is_device: bool, is_direct: Option<bool>) -> Result<()> {
    if !is_device || is_direct != Some(false) {
        return Ok(());
    }
    Err(Error::usage(format!(
        "block device '{}' is used through the page cache, which a writable disk of several block devices must not use: each device has \
         its own page cache, and a flush reaches only one; use direct I/O (direct = true, in a job direct=1), use one path, or open the \
         disk read-only (docs/multipath.md)",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Once, a flush went to one device, while acknowledged writes were in the page cache of another.
    #[test]
    fn block_devices_are_paths_only_with_direct_io() {
        let sda = Path::new("/dev/sda");
        for (is_device, is_direct, is_refused) in [
            (true, Some(false), true),
            (true, Some(true), false),
            (false, Some(false), false),
            (false, Some(true), false),
            (false, None, false),
        ] {
            let said = check_kind(sda, is_device, is_direct).map_err(|e| e.to_string());
            assert_eq!(said.is_err(), is_refused, "{is_device} {is_direct:?}: {said:?}");
            assert!(said.err().is_none_or(|e| e.starts_with("block device '/dev/sda' is used through the page cache")));
        }
        let file = std::env::current_exe().unwrap();
        assert!(check(&file, Some(false)).is_ok());
    }
}
