// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line of `cargo xtask bench`.

use std::path::PathBuf;

use clap::Args;

/// The command line of `cargo xtask bench`.
#[derive(Args)]
pub struct Options {
    /// Only these rows, separated by commas; `--list` names them.
    #[arg(long, value_delimiter = ',')]
    pub rows: Vec<String>,
    /// Name the rows with what they show, and stop.
    #[arg(long)]
    pub list: bool,
    /// How often each side runs.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Seconds of I/O of each run.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// A thousand I/Os a run, one round, debug build, no verdict: shows that the rows work.
    #[arg(long)]
    pub smoke: bool,
    /// fio in the place of mqblk: every ratio to fio should then be near 1, which shows the noise.
    #[arg(long)]
    pub control: bool,
    /// The file of the file rows; made when missing, never changed when there.
    #[arg(long)]
    pub file: Option<PathBuf>,
    /// Where the results go.
    #[arg(long)]
    pub results: Option<PathBuf>,
}
