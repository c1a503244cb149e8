// SPDX-License-Identifier: Apache-2.0 OR MIT
//! fio job files: from text to typed, resolved jobs.
//!
//! There are two steps. `parse` reads the text: sections, keys, values, lines. Then `option_table`, one table of every
//! option of fio, and `resolve`, with the checks between options, give the meaning. An option that fio has and mqblk does
//! not is rejected by name, or ignored with a [`Warning`] if it cannot change the result. An unknown option is rejected
//! with the nearest name.
//!
//! ```
//! use mqblk_workload::{JobFile, ParseContext};
//!
//! let text = "[global]\nbs=4k\n[reader]\nrw=randread\nioengine=libaio\niodepth=32\nsize=1g\n";
//! let file = JobFile::parse_str(text, &ParseContext::bare("oltp.fio"), &[]).expect("a valid job");
//! assert_eq!(file.jobs[0].iodepth, 32);
//!
//! let wrong = JobFile::parse_str("[a]\niodepth=0\n", &ParseContext::bare("a.fio"), &[]).expect_err("0 is no depth");
//! assert_eq!(wrong.to_string(), "a.fio:2: iodepth=0: must be 1..=65536 (job 'a')");
//! ```

mod error;
mod values;
mod policy;
mod spec;
mod files;

mod parse;
mod command_line;
mod interpret;
mod expand;
mod arith;
mod units;
mod draft;
mod option;
mod option_table;
mod table_engine;
mod table_io;
mod table_report;
mod table_target;
mod table_newer;
mod table_oltp;
mod table_policy;
mod table_replay;
mod oltp;
mod setters;
mod lists;
mod logs;
mod pattern;
mod resolve;
mod check_oltp;
mod check_replay;

pub use command_line::CommandLine;
pub use error::{ErrorKind, JobError, JobErrors, Origin, Warning};
pub use files::FileShare;
pub use interpret::{Override, ParseContext};
pub use logs::{LogKind, LogName, LogOptions, RATE_INTERVAL_MS, RateLog};
pub use oltp::{OltpJob, REDO_WRITE_MAX, SESSIONS_MAX};
pub use option::{OptionInfo, Support};
pub use option_table::{find_option, nearest_option, options};
pub use parse::{IncludeReader, NoIncludes};
pub use policy::*;
pub use spec::{BLOCK_BYTES_MAX, DEFAULT_PERCENTILES, FILES_MAX, IODEPTH_MAX, Job, JobFile, NUMJOBS_MAX};
pub use units::command_line_time_ns;
pub use values::*;
