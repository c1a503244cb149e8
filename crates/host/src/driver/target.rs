// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Common code of all drivers' targets: text is parsed into a value, and a value opens a driver.

use super::aio::Aio;
use super::host_driver::HostDriver;
use crate::error::{Error, ErrorKind, Result};
use crate::mem::Regions;
use crate::secrets::without_secrets;
use blk::id::SECTOR_SHIFT;
use std::fmt;
use std::path::{Component, Path};
use std::sync::Arc;

/// A warning that the target differs from what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetWarning(String);

impl TargetWarning {
    /// Makes a warning with this text, without passwords and keys of targets.
    pub fn new(what: impl fmt::Display) -> TargetWarning {
        TargetWarning(without_secrets(&what.to_string()))
    }
}

impl fmt::Display for TargetWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Adds the warnings of `more` that are not in `all`: what holds for several disks or paths is said once.
pub(crate) fn add_new(all: &mut Vec<TargetWarning>, more: impl IntoIterator<Item = TargetWarning>) {
    for warning in more {
        if !all.contains(&warning) {
            all.push(warning);
        }
    }
}

/// How the user of a target will use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// There will be writes, discards or write zeroes.
    pub write: bool,
    /// Files bypass the page cache (`direct=1`).
    pub direct: bool,
    /// At least this many bytes.
    pub min_bytes: u64,
    /// With `write`: also a block device that is mounted or part of another one (`allow_mounted_write=1`).
    pub in_use: bool,
    /// Longest read-ahead of a buffered file, in KiB (`read_ahead_kb`); `None` = the system's default.
    pub read_ahead_kb: Option<u32>,
    /// How the I/O of files is issued (`aio`); `None` = by io_uring if possible, otherwise by threads.
    pub aio: Option<Aio>,
}

/// A driver that is ready to be started, with warnings for the user.
pub struct OpenTarget {
    /// The driver.
    pub driver: Arc<dyn HostDriver>,
    /// How the driver differs from what was asked for.
    pub warnings: Vec<TargetWarning>,
}

impl OpenTarget {
    /// Wraps a driver without warnings.
    pub fn plain(driver: impl HostDriver + 'static) -> OpenTarget {
        OpenTarget { driver: Arc::new(driver), warnings: Vec::new() }
    }

    /// Wraps a driver for a device with a size of its own.
    ///
    /// # Errors
    /// NoSpace: the device is smaller than `needs` say. The message begins with `what` and ends with the remedy `or_else`.
    pub(crate) fn sized(
        driver: impl HostDriver + 'static,
        needs: &Needs,
        what: impl fmt::Display,
        or_else: &str,
    ) -> Result<OpenTarget> {
        let (size, need) = (driver.capacity().0 << SECTOR_SHIFT, needs.min_bytes);
        if size < need {
            let text = format!("{what} has {size} bytes, the job needs {need}: give the job a smaller size{or_else}");
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        Ok(OpenTarget::plain(driver))
    }
}

/// A kind of target: the value that its text is parsed into.
pub trait DriverTarget: Sized {
    /// The word before the `:`.
    const KIND: &'static str;
    /// Help: how a target is written, and what it is, as lines of `--help`.
    const HELP: &'static str;
    /// The word alone, without a `:`, is also a target.
    const IS_WORD: bool = false;
    /// `//` follows the `:`.
    const IS_URL: bool = false;

    /// Whether `word` before the `:` means this kind.
    fn is_kind(word: &str) -> bool {
        word == Self::KIND
    }

    /// Parses a target. `text` is the whole target, `rest` what follows the first `:`. Nothing is opened.
    ///
    /// # Errors
    /// Usage, with the rule.
    fn parse(text: &str, rest: &str) -> Result<Self>;

    /// Makes the driver. Data comes from and goes to `regions`.
    ///
    /// # Errors
    /// The errors of the driver.
    fn open(&self, needs: &Needs, regions: Arc<Regions>) -> Result<OpenTarget>;

    /// Whether both targets refer to the same data, as far as their texts show; false if each opening has separate data, or none.
    fn is_same_data(&self, other: &Self) -> bool;

    /// Returns the size that the target's text gives; `None`: the device has its own.
    fn size_bytes(&self) -> Option<u64> {
        None
    }

    /// Whether each opening makes a separate disk.
    fn is_private(&self) -> bool {
        false
    }

    /// Whether data is in this process's memory.
    fn is_memory(&self) -> bool {
        false
    }

    /// Returns the files and block devices that hold its data, under the names they were given.
    fn files(&self) -> Vec<&Path> {
        Vec::new()
    }
}

/// Whether two paths are written alike, apart from `./`.
pub(crate) fn same_path(a: &Path, b: &Path) -> bool {
    let walked = |c: &Component<'_>| *c != Component::CurDir;
    a.components().filter(walked).eq(b.components().filter(walked))
}
