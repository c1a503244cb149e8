// SPDX-License-Identifier: Apache-2.0 OR MIT
//! fio job files: from text to typed, resolved jobs.
//!
//! Two steps: what was typed (`parse`: sections, keys, values, lines), then what it means (`options`: one table of every
//! option fio has; `resolve`: checks between options). An option fio has and mqblk does not is refused by name, or ignored
//! with a [`Warning`] where it cannot change the result.

mod error;
mod spec;
mod values;

pub use error::{ErrorKind, JobError, JobErrors, Origin, Warning};
pub use spec::{DEFAULT_PERCENTILES, DEFAULT_RANDSEED, IODEPTH_MAX, Job, JobFile, NUMJOBS_MAX};
pub use values::*;
