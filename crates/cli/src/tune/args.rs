// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The arguments of `mqblk tune`.

use crate::args::{JobArgs, key_value};
use crate::completion;
use clap::Args;
use lab::tune::forms::Form;
use std::path::PathBuf;

/// Headings of the help.
const GOAL: &str = "Goal";
const SEARCH: &str = "Search";
const OUTPUT: &str = "Output";

/// `mqblk tune`.
#[derive(Args, Debug)]
pub struct TuneArgs {
    /// The jobs.
    #[command(flatten)]
    pub job: JobArgs<false>,
    /// Make this larger: JOB.iops, JOB.bw, JOB.tps (transactions), JOB.tpm (per minute); JOB `all` stands for all jobs
    /// together. On a sim: target with `[guests]`, which takes no job file: usersN.tpm
    #[arg(help_heading = GOAL, long, value_name = "JOB.METRIC", required_unless_present = "minimize", conflicts_with = "minimize")]
    pub maximize: Option<String>,
    /// Make this smaller: JOB.lat (mean), JOB.p50 ... JOB.p99.9 (completion latency), JOB.cpu (CPU time per I/O); for
    /// transactions JOB.tx (mean), JOB.tx_p99, JOB.commit (mean wait for a commit)
    #[arg(help_heading = GOAL, long, value_name = "JOB.METRIC")]
    pub minimize: Option<String>,
    /// Keep this limit, relative to the default settings (seq_read.bw>=95%) or absolute (a.p99<=2ms); may be repeated
    #[arg(help_heading = GOAL, long, value_name = "JOB.METRIC>=BOUND")]
    pub keep: Vec<String>,
    /// Search only this knob: NAME, or NAME=VALUES (1,8,64 or 1..256); may be repeated
    #[arg(help_heading = SEARCH, long, value_name = "NAME[=VALUES]")]
    pub knob: Vec<String>,
    /// Use this setting in every run and do not search it; may be repeated
    #[arg(help_heading = SEARCH, long, value_name = "KEY=VALUE", value_parser = key_value, add = completion::settings())]
    pub fix: Vec<(String, String)>,
    /// Search the load as well: iodepth or numjobs, of all jobs or of one (a.iodepth=1..256); may be repeated
    #[arg(help_heading = SEARCH, long, value_name = "NAME=VALUES", value_parser = key_value)]
    pub free: Vec<(String, String)>,
    /// Time for all runs together: 10m, 90s
    #[arg(help_heading = SEARCH, long, value_name = "TIME", default_value = "10m")]
    pub budget: String,
    /// Length of a confirming run [default: the longest runtime of the jobs, or 2s]; screening runs take a quarter
    #[arg(help_heading = SEARCH, long, value_name = "TIME")]
    pub runtime: Option<String>,
    /// The smallest gain worth finding
    #[arg(help_heading = SEARCH, long, value_name = "PERCENT", default_value = "3%")]
    pub detect: String,
    /// Seed of the order of all runs [default: random; it is printed]
    #[arg(help_heading = SEARCH, long, value_name = "N")]
    pub seed: Option<u64>,
    /// Resume an interrupted tuning from its results file; give the same options as before
    #[arg(help_heading = SEARCH, long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// Results file, written after every run [default: mqblk-tune-TIME.jsonl in the working directory]
    #[arg(help_heading = OUTPUT, long, value_name = "FILE")]
    pub results: Option<PathBuf>,
    /// Write the recommendation to this new file, as a configuration of mqblk serve or, for a sim: target, as
    /// `[settings]` of a machine file; without FILE (only with a target kernel:/dev/X) apply it to /sys/block/X, until the next boot
    #[arg(help_heading = OUTPUT, long, value_name = "FILE.toml", num_args = 0..=1)]
    pub apply: Option<Option<PathBuf>>,
    /// Write the tuning as a page (must end in .html), and its data beside it as .json
    #[arg(help_heading = OUTPUT, long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Print JSON
    #[arg(help_heading = OUTPUT, long)]
    pub json: bool,
    /// Print the recommendation in these forms: sysfs, udev, cmdline, modprobe, libvirt, qemu, toml
    #[arg(help_heading = OUTPUT, long, value_name = "FORM[,FORM]", value_delimiter = ',', value_parser = form)]
    pub print: Vec<Form>,
}

fn form(text: &str) -> Result<Form, String> {
    let names = || Form::ALL.iter().map(|(name, _)| *name);
    Form::ALL.iter().find(|(name, _)| *name == text).map(|(_, form)| *form).ok_or_else(|| {
        let near = blk::suggest::did_you_mean(text, names());
        format!("is no form; {near}forms: {}", names().collect::<Vec<_>>().join(", "))
    })
}

/// Seconds from `10m`, `90s`, `1500ms`, `1h`, or a number of seconds.
pub fn seconds(flag: &str, text: &str) -> Result<f64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit.trim() {
        "" | "s" => Some(1.0),
        "ms" => Some(1e-3),
        "m" | "min" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    };
    let seconds = number.parse::<f64>().ok().zip(factor).map(|(n, f)| n * f);
    seconds
        .filter(|s| (0.001..=604_800.0).contains(s))
        .ok_or_else(|| format!("{flag} {text}: must be a time from 1ms to 7 days, such as 90s, 10m or 1500ms"))
}

/// A fraction from `3%`; the sign may be left out.
pub fn percent(flag: &str, text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok();
    number
        .map(|n| n / 100.0)
        .filter(|f| (0.002..=1.0).contains(f))
        .ok_or_else(|| format!("{flag} {text}: must be from 0.2% to 100%, such as 3%"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_shares() {
        let s = |text| seconds("--budget", text);
        assert_eq!((s("10m"), s("1500ms"), s("2"), s("0.5h")), (Ok(600.0), Ok(1.5), Ok(2.0), Ok(1800.0)));
        for bad in ["", "0s", "10x", "-1s", "m", "99999h"] {
            assert!(s(bad).unwrap_err().starts_with("--budget"), "{bad}");
        }
        assert_eq!((percent("--detect", "3%"), percent("--detect", "0.5")), (Ok(0.03), Ok(0.005)));
        assert!(percent("--detect", "0%").is_err() && percent("--detect", "many").is_err());
        assert!(form("sysf").unwrap_err().contains("did you mean 'sysfs'?"));
    }
}
