// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk ctl inject`: faults that requests of clients get on purpose, as flags, as they are sent, and as they are listed.
//!
//! Guarantees: a rule is checked by the daemon, so programs that use the socket get the same errors as the command. Does not do: keep
//! rules; they are in [`host::serve::inject`].

use super::message::{Question, RuleMessage};
use crate::completion;
use blk::status::BlkStatus;
use blk::time::Duration;
use clap::builder::PossibleValuesParser;
use clap::{ArgGroup, Args};
use host::clock;
use host::serve::ServedDisk;
use host::serve::inject::{Fault, FaultRule, OPS, RuleStatus};
use serde_json::{Value, json};

const REQUESTS: &str = "Which requests";

/// `mqblk ctl inject`.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("action").args(["error", "delay", "torn", "list", "remove"]).required(true)))]
pub struct InjectArgs {
    /// Name of the disk
    #[arg(add = completion::disks())]
    pub disk: String,
    /// Fail requests with this status of the block layer; ioerr if none is given
    #[arg(long, value_name = "STATUS", num_args = 0..=1, default_missing_value = "ioerr", ignore_case = true,
          value_parser = PossibleValuesParser::new(BlkStatus::ERRORS.map(BlkStatus::name)))]
    pub error: Option<String>,
    /// Delay requests by this time: 100us, 20ms, 5s, 2m; up to an hour
    #[arg(long, value_name = "TIME", value_parser = delay)]
    pub delay: Option<u64>,
    /// Tear writes: a random number of whole blocks is written, and the write fails
    #[arg(long)]
    pub torn: bool,
    /// List the rules of the disk
    #[arg(long)]
    pub list: bool,
    /// Remove a rule by its number, or all
    #[arg(long, value_name = "ID|all", value_parser = removed)]
    pub remove: Option<Removed>,
    /// Only these operations [default: all]
    #[arg(help_heading = REQUESTS, long, value_name = "OP[,OP]", value_delimiter = ',', conflicts_with_all = ["list", "remove"],
          value_parser = PossibleValuesParser::new(OPS.map(|(_, name)| name)))]
    pub op: Vec<String>,
    /// Only requests that touch these sectors of 512 bytes; COUNT is 1 if it is left out
    #[arg(help_heading = REQUESTS, long, value_name = "START[+COUNT]", value_parser = sectors,
          conflicts_with_all = ["list", "remove"])]
    pub sector: Option<(u64, u64)>,
    /// Only this fraction of the requests, chosen at random: above 0 and up to 1 [default: 1]
    #[arg(help_heading = REQUESTS, long, value_name = "FRACTION", conflicts_with_all = ["list", "remove"])]
    pub probability: Option<f64>,
    /// Seed of the random numbers, to repeat a test [default: a new seed each time]
    #[arg(help_heading = REQUESTS, long, value_name = "N", conflicts_with_all = ["list", "remove"])]
    pub seed: Option<u64>,
    /// Only this many requests; then the rule has no effect [default: no limit]
    #[arg(help_heading = REQUESTS, long, value_name = "N", conflicts_with_all = ["list", "remove"])]
    pub count: Option<u64>,
}

/// The rule that is removed; `None` = all.
#[derive(Clone, Copy, Debug)]
pub struct Removed(Option<u32>);

fn removed(text: &str) -> Result<Removed, String> {
    match text {
        "all" => Ok(Removed(None)),
        _ => text.parse().map(|id| Removed(Some(id))).map_err(|_| "must be the number of a rule, or all".to_owned()),
    }
}

/// Nanoseconds of `20ms`.
fn delay(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit_ns = match unit {
        "us" => Some(1000),
        "ms" => Some(1_000_000),
        "s" => Some(1_000_000_000),
        "m" => Some(60_000_000_000),
        _ => None,
    };
    let ns = number.parse::<u64>().ok().zip(unit_ns).and_then(|(n, unit_ns)| n.checked_mul(unit_ns));
    ns.ok_or_else(|| "must be a whole number with a unit: 100us, 20ms, 5s or 2m".to_owned())
}

/// `8`, `8+16`.
fn sectors(text: &str) -> Result<(u64, u64), String> {
    let (start, count) = text.split_once('+').unwrap_or((text, "1"));
    let both = start.parse().ok().zip(count.parse().ok());
    both.ok_or_else(|| "must be a sector, or a sector and a number of sectors, such as 2048+8".to_owned())
}

impl RuleMessage {
    /// Returns the rule, which is not yet checked against the disk.
    ///
    /// # Errors
    /// A word that is unknown, or a key that does not belong to the fault.
    fn rule(&self) -> Result<FaultRule, String> {
        let fault = match (self.fault.as_str(), &self.status, self.delay_ns) {
            ("error", word, None) => Fault::Error(status(word.as_deref().unwrap_or("ioerr"))?),
            ("delay", None, Some(ns)) => Fault::Delay(Duration::from_ns(ns)),
            ("torn", None, None) => Fault::Torn,
            ("error", _, Some(_)) => return Err("delay_ns: is only for fault=delay; leave it out".to_owned()),
            ("delay", ..) => return Err("fault=delay: needs delay_ns, and has no status".to_owned()),
            ("torn", ..) => return Err("fault=torn: has no status and no delay_ns; leave them out".to_owned()),
            (other, ..) => return Err(format!("fault={other}: must be error, delay or torn")),
        };
        let sectors = match (self.sector, self.nr_sectors) {
            (Some(start), nr) => Some(start..start.saturating_add(nr.unwrap_or(1))),
            (None, None) => None,
            (None, Some(nr)) => return Err(format!("nr_sectors={nr}: needs sector, the first of these sectors")),
        };
        Ok(FaultRule {
            fault,
            ops: self.op.iter().map(|name| op(name)).collect::<Result<_, _>>()?,
            sectors,
            probability: self.probability.unwrap_or(1.0),
            // Short enough to be typed again.
            seed: self.seed.unwrap_or_else(|| clock::now().as_ns() & u64::from(u32::MAX)),
            count: self.count,
        })
    }

    /// Returns the message that makes this rule.
    fn of(rule: &FaultRule) -> RuleMessage {
        let (fault, status, delay_ns) = match rule.fault {
            Fault::Error(status) => ("error", Some(status.name().to_owned()), None),
            Fault::Delay(time) => ("delay", None, Some(time.as_ns())),
            Fault::Torn => ("torn", None, None),
        };
        let names = OPS.iter().filter(|(op, _)| rule.ops.contains(op)).map(|(_, name)| (*name).to_owned());
        RuleMessage {
            fault: fault.to_owned(),
            status,
            delay_ns,
            op: names.collect(),
            sector: rule.sectors.as_ref().map(|s| s.start),
            nr_sectors: rule.sectors.as_ref().map(|s| s.end - s.start),
            probability: Some(rule.probability),
            seed: Some(rule.seed),
            count: rule.count,
        }
    }
}

fn status(word: &str) -> Result<BlkStatus, String> {
    BlkStatus::ERRORS.into_iter().find(|status| status.name().eq_ignore_ascii_case(word)).ok_or_else(|| {
        let words = BlkStatus::ERRORS.map(BlkStatus::name);
        let hint = blk::suggest::did_you_mean(word, words.into_iter());
        format!("status={word}: {hint}must be one of {}", words.join(", "))
    })
}

fn op(word: &str) -> Result<blk::bio::Op, String> {
    OPS.iter().find(|(_, name)| *name == word).map(|(op, _)| *op).ok_or_else(|| {
        let names = OPS.map(|(_, name)| name);
        let hint = blk::suggest::did_you_mean(word, names.into_iter());
        format!("op={word}: {hint}must be one of {}", names.join(", "))
    })
}

/// Returns the question that the flags ask.
pub fn question(args: &InjectArgs) -> Question {
    let disk = args.disk.clone();
    if args.list {
        return Question::Injections { disk };
    }
    if let Some(Removed(id)) = args.remove {
        return Question::RemoveInjection { disk, id };
    }
    let fault = match args {
        InjectArgs { torn: true, .. } => "torn",
        InjectArgs { delay: Some(_), .. } => "delay",
        _ => "error",
    };
    let rule = RuleMessage {
        fault: fault.to_owned(),
        delay_ns: args.delay,
        status: args.error.as_ref().map(|word| word.to_ascii_lowercase()),
        op: args.op.clone(),
        sector: args.sector.map(|(start, _)| start),
        nr_sectors: args.sector.map(|(_, count)| count),
        probability: args.probability,
        seed: args.seed,
        count: args.count,
    };
    Question::Inject { disk, rule }
}

/// Adds a rule. Returns what was done.
///
/// # Errors
/// The rule is malformed, or does not fit the disk.
pub fn add(disk: &ServedDisk, rule: &RuleMessage) -> Result<String, String> {
    let rule = rule.rule()?;
    let text = rule.to_string();
    let id = disk.inject(rule).map_err(|e| e.to_string())?;
    log::warn!(disk = disk.name.as_str(), rule = id; "fault injection begins: rule {id} ({text})");
    Ok(format!("disk '{}': added rule {id} ({text})", disk.name))
}

/// Removes a rule, or all. Returns what was done.
///
/// # Errors
/// There is no such rule.
pub fn remove(disk: &ServedDisk, id: Option<u32>) -> Result<Vec<String>, String> {
    let removed = disk.remove_injection(id).map_err(|e| e.to_string())?;
    for rule in &removed {
        log::info!(disk = disk.name.as_str(), rule = rule.id; "fault injection ends: {rule}");
    }
    if removed.is_empty() {
        return Ok(vec![format!("disk '{}' has no rules", disk.name)]);
    }
    Ok(removed.iter().map(|rule| format!("disk '{}': removed; {rule}", disk.name)).collect())
}

/// Returns the rules of a disk.
pub fn rules(disk: &ServedDisk) -> Value {
    let of =
        |r: &RuleStatus| json!({ "id": r.id, "hits": r.hits, "rule": RuleMessage::of(&r.rule), "text": r.to_string() });
    disk.injection().rules().iter().map(of).collect()
}

/// Returns a line for each rule of an answer.
pub fn text(answer: &Value) -> String {
    let rules = answer["injections"].as_array().into_iter().flatten();
    rules.filter_map(|rule| rule["text"].as_str()).map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::control::ctl::{CtlArgs, CtlCommand};
    use clap::Parser;

    #[derive(Parser)]
    struct Ctl {
        #[command(flatten)]
        args: CtlArgs,
    }

    fn asked(flags: &str) -> Result<Question, String> {
        let ctl = Ctl::try_parse_from(["ctl", "inject", "a"].into_iter().chain(flags.split_whitespace()));
        let CtlCommand::Inject(args) = ctl.map_err(|e| e.to_string())?.args.what else { panic!("is inject") };
        Ok(question(&args))
    }

    #[test]
    fn flags_become_the_rule_that_is_listed() {
        let all = "--error MEDIUM --op read,write-zeroes --sector 8+16 --probability 0.5 --seed 3 --count 2";
        let Ok(Question::Inject { disk, rule: message }) = asked(all) else { panic!("adds a rule") };
        let rule = message.rule().unwrap();
        assert_eq!(disk, "a");
        let text = "error=medium op=read,write-zeroes sector=8+16 probability=0.5 seed=3 count=2";
        assert_eq!(rule.to_string(), text);
        assert_eq!(RuleMessage::of(&rule), message);
        let Ok(Question::Inject { rule, .. }) = asked("--sector 9 --error") else { panic!("adds a rule") };
        assert_eq!(rule.rule().unwrap().to_string(), "error=ioerr sector=9+1");
        let Ok(Question::Inject { rule: message, .. }) = asked("--delay 1500us --op flush") else {
            panic!("adds a rule")
        };
        let rule = message.rule().unwrap();
        assert_eq!(rule.to_string(), "delay=1500us op=flush");
        assert_eq!(RuleMessage { probability: None, seed: None, ..RuleMessage::of(&rule) }, message);
        let Ok(Question::Inject { rule, .. }) = asked("--torn --seed 3") else { panic!("adds a rule") };
        assert_eq!(rule.rule().unwrap().to_string(), "torn seed=3");
        assert_eq!(asked("--list"), Ok(Question::Injections { disk: "a".into() }));
        assert_eq!(asked("--remove 7"), Ok(Question::RemoveInjection { disk: "a".into(), id: Some(7) }));
        assert_eq!(asked("--remove all"), Ok(Question::RemoveInjection { disk: "a".into(), id: None }));
    }

    #[test]
    fn flags_that_do_not_fit_are_rejected() {
        for flags in [
            "",
            "--op read",
            "--error --list",
            "--error --delay 1s",
            "--error --torn",
            "--delay 1",
            "--delay 1.5s",
            "--error ok",
            "--list --count 1",
            "--remove x",
            "--error --sector +1",
        ] {
            assert!(asked(flags).is_err(), "{flags}");
        }
    }

    #[test]
    fn messages_that_do_not_fit_are_rejected() {
        let refused = |text: &str| serde_json::from_str::<RuleMessage>(text).unwrap().rule().unwrap_err();
        assert_eq!(refused(r#"{"fault": "eror"}"#), "fault=eror: must be error, delay or torn");
        assert!(refused(r#"{"fault": "torn", "status": "medium"}"#).contains("has no status"));
        assert!(refused(r#"{"fault": "error", "delay_ns": 7}"#).contains("only for fault=delay"));
        assert!(refused(r#"{"fault": "delay"}"#).contains("needs delay_ns"));
        assert!(refused(r#"{"fault": "error", "status": "medum"}"#).contains("did you mean 'medium'?"));
        assert!(refused(r#"{"fault": "error", "op": ["reed"]}"#).contains("did you mean 'read'?"));
        assert!(refused(r#"{"fault": "error", "nr_sectors": 4}"#).contains("needs sector"));
    }
}
