// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk manual DIR --example examples/serve.toml`: the manual pages, for packages.
//!
//! Guarantees: each page is generated from the program, so none can differ from it: pages of commands from the flags,
//! mqblk-job(5) from the table of options, mqblk-targets(7) from the drivers' help, mqblk-serve(5) from the annotated example.
//! Does not: compress them.

use crate::args::ManualArgs;
use crate::cmdhelp;
use crate::command::{self, Cli};
use crate::status::{Failure, Outcome, Status};
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use std::fs;
use std::io;
use workload::job::options;

/// Writes all pages.
pub fn main(args: &ManualArgs) -> Outcome {
    let dir = &args.dir;
    let failed = |e: io::Error| Failure::new(format!("{}: {e}; name a directory you may write to", dir.display()));
    let example = fs::read_to_string(&args.example);
    let example = example.map_err(|e| Failure::new(format!("--example {}: {e}", args.example.display())))?;
    clap_mangen::generate_to(Cli::full_command(), dir).map_err(failed)?;
    for (name, section, page) in [("job", "5", job()), ("serve", "5", serve(&example)), ("targets", "7", targets())] {
        fs::write(dir.join(format!("mqblk-{name}.{section}")), page.to_roff()).map_err(failed)?;
    }
    Ok(Status::Done)
}

fn begin(name: &str, section: &str, summary: &str, description: impl Into<Vec<Inline>>) -> Roff {
    let mut page = Roff::new();
    let version = concat!("mqblk ", env!("CARGO_PKG_VERSION"));
    page.control("TH", [&format!("mqblk-{name}"), section, "", version, ""]);
    page.control("SH", ["NAME"]).text([roman(format!("mqblk-{name} - {summary}"))]);
    page.control("SH", ["DESCRIPTION"]).control("PP", []).text(description);
    page
}

/// Appends lines verbatim.
fn verbatim(page: &mut Roff, text: &str) {
    page.control("PP", []).control("RS", ["2"]).control("nf", []);
    for line in text.lines() {
        page.text([roman(line)]);
    }
    page.control("fi", []).control("RE", []);
}

fn see_also(page: &mut Roff, pages: &str) {
    page.control("SH", ["SEE ALSO"]).text([roman(pages)]);
}

fn job() -> Roff {
    let mut page = begin(
        "job",
        "5",
        "job files of mqblk",
        [
            roman("A job file has fio(1)'s format. This page lists the options that mqblk knows, with their values. "),
            bold("mqblk cmdhelp OPTION"),
            roman(" prints one of them."),
        ],
    );
    page.control("SH", ["OPTIONS"]);
    for option in options() {
        page.control("TP", []).text([bold(option.name), roman("="), italic(option.syntax())]);
        let default = if option.default.is_empty() { String::new() } else { format!(" Default: {}.", option.default) };
        page.text([roman(format!("{}.{default} Status: {}.", option.help, cmdhelp::status(option.support)))]);
    }
    see_also(&mut page, "mqblk-run(1), mqblk-targets(7), fio(1)");
    page
}

fn serve(example: &str) -> Roff {
    let mut page = begin(
        "serve",
        "5",
        "configuration of mqblk serve",
        [
            roman("The configuration is TOML. The example has every key; a key in a comment shows its default. "),
            bold("mqblk serve --dry-run CONFIG.toml"),
            roman(" checks a configuration and prints the clients' commands."),
        ],
    );
    page.control("SH", ["EXAMPLE"]);
    verbatim(&mut page, example);
    see_also(&mut page, "mqblk-serve(1), mqblk-ctl(1), mqblk-targets(7)");
    page
}

fn targets() -> Roff {
    let mut page = begin(
        "targets",
        "7",
        "what mqblk does I/O to",
        [
            roman("A target is the file, device, server or simulated machine behind a disk. It is named by "),
            bold("--target"),
            roman(", by "),
            bold("filename="),
            roman(" in a job file, and by "),
            bold("target ="),
            roman(" in the configuration of mqblk serve."),
        ],
    );
    verbatim(&mut page, &command::targets_help());
    page.control("SH", ["SETTINGS"]);
    verbatim(&mut page, &command::settings_help());
    see_also(&mut page, "mqblk-run(1), mqblk-compare(1), mqblk-serve(1), mqblk-job(5)");
    page
}
