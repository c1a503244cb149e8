// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk multipath`: lists multipath disks of a daemon as `multipath -ll` does, and prints the options of a
//! multipath.conf(5).
//!
//! Guarantees: warnings and errors of a file go to standard error, each with its line; the output of `-t` is itself a
//! valid configuration. An option of the list is refused with `-t`, and one of `-t` with the list. Does not do: change anything.

mod topology;
#[cfg(test)]
mod tests;

use crate::output;
use crate::serve::control::{Answer, Question, client};
use crate::status::{Failure, Outcome, Status};
use clap::{ArgGroup, Args};
use host::multipath_conf::{Config, Identity};
use std::path::PathBuf;

/// `mqblk multipath`.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("what").required(true).args(["list", "show_config"])))]
pub struct MultipathArgs {
    /// List the multipath disks of a serving daemon, as multipath -ll does; -l and -ll are the same
    #[arg(short = 'l', action = clap::ArgAction::Count)]
    pub list: u8,
    /// Print the configuration of --config with its defaults, as multipath -t does
    #[arg(short = 't', requires = "config")]
    pub show_config: bool,
    /// Only the disk of this name, WWID or dm-N
    #[arg(value_name = "DISK", requires = "list", conflicts_with = "show_config")]
    pub disk: Option<String>,
    /// Control socket of the daemon [default: of the only daemon of this user]
    #[arg(long, value_name = "SOCKET", conflicts_with = "show_config")]
    pub control: Option<PathBuf>,
    /// Print JSON, as multipathd show maps json does
    #[arg(long, requires = "list", conflicts_with = "show_config")]
    pub json: bool,
    /// A file in the syntax of multipath.conf(5)
    #[arg(long, value_name = "FILE", requires = "show_config", conflicts_with = "list")]
    pub config: Option<PathBuf>,
    /// With -t: the options in effect for the disk of this WWID, each with the line that sets it
    #[arg(long, value_name = "WWID", requires = "show_config", conflicts_with = "list")]
    pub wwid: Option<String>,
    /// With -t: like --wwid, for disks of this vendor (INQUIRY)
    #[arg(long, value_name = "TEXT", requires = "show_config", conflicts_with = "list")]
    pub vendor: Option<String>,
    /// With -t: like --wwid, for disks of this product (INQUIRY)
    #[arg(long, value_name = "TEXT", requires = "show_config", conflicts_with = "list")]
    pub product: Option<String>,
    /// With -t: like --wwid, for disks of this revision (INQUIRY)
    #[arg(long, value_name = "TEXT", requires = "show_config", conflicts_with = "list")]
    pub revision: Option<String>,
    /// With -t: like --wwid, for disks with paths of this protocol, such as scsi:iscsi
    #[arg(long, value_name = "TEXT", requires = "show_config", conflicts_with = "list")]
    pub protocol: Option<String>,
}

/// Prints the list or the configuration.
pub fn main(args: &MultipathArgs) -> Outcome {
    let text = match &args.config {
        Some(path) => configuration(args, &Config::open(path).map_err(Failure::new)?),
        None => listing(args)?,
    };
    output::print(&text)?;
    Ok(Status::Done)
}

fn configuration(args: &MultipathArgs, config: &Config) -> String {
    config.warnings.iter().for_each(|w| output::tell(&format!("mqblk: warning: {w}")));
    let about = [&args.wwid, &args.vendor, &args.product, &args.revision, &args.protocol];
    if about.iter().all(|a| a.is_none()) {
        return config.to_string();
    }
    let [wwid, vendor, product, revision, protocol] = about.map(|a| a.clone().unwrap_or_default());
    let disk = Identity { wwid, vendor, product, revision, protocol };
    if let Some(problem) = config.blacklisted(&disk) {
        output::tell(&format!("mqblk: warning: {problem}"));
    }
    config.resolve(&disk).show(&disk.wwid)
}

fn listing(args: &MultipathArgs) -> Result<String, Failure> {
    let socket = client::find(args.control.as_deref())?;
    let mut all = match client::ask(&socket, &Question::Multipath {})? {
        Answer::Ok(value) => value,
        Answer::Error { message, .. } => return Err(Failure::new(message)),
    };
    if let (Some(only), Some(maps)) = (&args.disk, all["maps"].as_array_mut()) {
        let names: Vec<String> = maps.iter().filter_map(|m| m["name"].as_str()).map(str::to_owned).collect();
        maps.retain(|m| ["name", "uuid", "sysfs"].iter().any(|key| m[*key] == only.as_str()));
        if maps.is_empty() {
            let hint = blk::suggest::did_you_mean(only, names.iter().map(String::as_str));
            let there = if names.is_empty() { "has none".to_owned() } else { format!("has {}", names.join(", ")) };
            return Err(Failure::new(format!("there is no multipath disk '{only}'; {hint}the daemon {there}")));
        }
    }
    Ok(if args.json { format!("{all:#}\n") } else { topology::text(&all) })
}
