// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk cmdhelp`: the options of job files, from the table that parses them.

use crate::args::CmdhelpArgs;
use crate::output;
use crate::status::{Failure, Outcome, Status};
use std::fmt::Write;
use workload::job::{OptionInfo, Support, find_option, nearest_option, options};

/// Prints one option or the whole table.
pub fn main(args: &CmdhelpArgs) -> Outcome {
    let asked = args.option.as_deref().filter(|name| *name != "all");
    let one_of = asked.map(|name| find_option(name).ok_or_else(|| unknown(name))).transpose()?;
    let text = match (one_of, args.json) {
        (None, false) => table(),
        (Some(o), false) => one(o),
        (None, true) => json(options()),
        (Some(o), true) => json([o]),
    };
    output::print(&text)?;
    Ok(Status::Done)
}

fn unknown(name: &str) -> Failure {
    let near = nearest_option(name).map_or_else(String::new, |near| format!("; did you mean '{near}'?"));
    Failure::new(format!("cmdhelp {name}: is not a fio option{near}; 'mqblk cmdhelp' lists all"))
}

fn word(support: Support) -> &'static str {
    match support {
        Support::Supported => "yes",
        Support::Own => "own",
        Support::Accepted => "accepted",
        Support::Ignored(_) => "ignored",
        Support::Refused(_) => "refused",
    }
}

fn table() -> String {
    let mut out = format!("{:<28} {:<9} {:<28} {:<14} does\n", "option", "status", "value", "default");
    for o in options() {
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{:<28} {:<9} {:<28} {:<14} {}",
            o.name,
            word(o.support),
            short(&o.syntax()),
            short_default(o.default),
            o.help
        );
    }
    out.push_str(
        "\nstatus: yes = as in fio; own = not in fio; accepted = changes nothing here; ignored = no effect, with a warning; \
         refused = mqblk cmdhelp OPTION says why\n",
    );
    out
}

fn json<'a>(options: impl IntoIterator<Item = &'a OptionInfo>) -> String {
    let fact = |o: &OptionInfo| {
        let advice = match o.support {
            Support::Ignored(advice) | Support::Refused(advice) => Some(advice),
            Support::Supported | Support::Own | Support::Accepted => None,
        };
        serde_json::json!({
            "name": o.name, "aliases": o.aliases, "type": o.syntax(), "default": o.default, "status": word(o.support),
            "advice": advice, "help": o.help,
        })
    };
    output::json(&serde_json::json!({ "options": options.into_iter().map(fact).collect::<Vec<_>>() }))
}

fn one(o: &OptionInfo) -> String {
    let mut out = format!("{}: {}\n", o.name, o.help);
    if !o.aliases.is_empty() {
        let _ = writeln!(out, "  alias  : {}", o.aliases.join(", "));
    }
    let _ = writeln!(out, "  type   : {}", o.syntax());
    let _ = writeln!(out, "  default: {}", if o.default.is_empty() { "none" } else { o.default });
    let _ = writeln!(out, "  status : {}", status(o.support));
    out
}

/// Describes what mqblk does with an option.
pub fn status(support: Support) -> String {
    match support {
        Support::Supported => "as in fio".to_owned(),
        Support::Own => "mqblk's own; fio has no such option".to_owned(),
        Support::Accepted => "accepted; it changes nothing here".to_owned(),
        Support::Ignored(advice) => format!("ignored with a warning: {advice}"),
        Support::Refused(advice) => format!("refused: {advice}"),
    }
}

/// Shortens a syntax to fit its column.
fn short(syntax: &str) -> String {
    if syntax.len() <= 28 { syntax.to_owned() } else { format!("{}...", &syntax[..25]) }
}

fn short_default(default: &str) -> &str {
    if default.is_empty() { "-" } else { default }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_listed_and_explained() {
        let all = table();
        for o in options() {
            assert!(all.lines().any(|l| l.split_whitespace().next() == Some(o.name)), "{}", o.name);
            assert!(one(o).contains("  status : "), "{}", o.name);
        }
    }

    #[test]
    fn a_mistyped_option_is_answered_with_the_nearest() {
        let e = main(&CmdhelpArgs { option: Some("iodept".into()), json: false }).unwrap_err();
        assert!(format!("{e:?}").contains("did you mean 'iodepth'?"), "{e:?}");
    }
}
