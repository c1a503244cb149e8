// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk of several targets in a configuration: striped over them, or with each target as a path to the disk.
//!
//! Guarantees: each error is reported at its key. Keys that belong to another kind of stack are rejected, as are all
//! such keys without `stack`.

use config::reader::{shown, text_of, whole};
use host::driver::multipath::{MultipathTarget, option_names};
use host::secrets::{Masked, without_secrets};
use host::serve::check::PlanItem;
use host::serve::plan::{STRIPE_CHUNK, TargetPlan};
use host::target::TargetSpec;
use toml::de::DeValue;

/// A table of a configuration.
pub type Section<'t, 'a> = config::reader::Section<'t, 'a, PlanItem>;

/// The values of `stack`, which are also the default names of such disks.
const STRIPE: &str = "stripe";
const MULTIPATH: &str = "multipath";

/// How a disk uses several targets.
pub enum Stack {
    /// Striped over the targets, round robin, in chunks of so many bytes.
    Stripe(u64, Vec<TargetPlan>),
    /// Each target is a path to the disk; `None`: the targets do not fit together, which was reported.
    Multipath(Option<TargetPlan>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Stripe,
    Multipath,
}

impl Stack {
    /// Describes the targets, for messages.
    pub fn what(&self) -> &'static str {
        match self {
            Stack::Stripe(..) => "targets that it is striped over",
            Stack::Multipath(_) => "targets that are its paths",
        }
    }
}

/// Returns the kind of stack of a disk of several targets.
pub fn word(section: &mut Section<'_, '_>) -> &'static str {
    let is_multipath = section.get("stack").is_some_and(|found| found.value.as_str() == Some(MULTIPATH));
    if is_multipath { MULTIPATH } else { STRIPE }
}

/// Reads `stack` with its `targets` and its other keys.
pub fn read(section: &mut Section<'_, '_>, targets: Option<&[String]>) -> Option<Stack> {
    let kind = section.one_of("stack", &[(STRIPE, Kind::Stripe), (MULTIPATH, Kind::Multipath)]);
    let chunk = section.string("chunk", "64k");
    let options = options(section);
    let is_said = section.get("stack").is_some();
    let mut without = |key: &'static str, stack: &str| {
        if section.get(key).is_some() {
            section.refuse(key, format!("{key}: has no effect without stack = \"{stack}\""));
        }
    };
    if kind.is_none() && !is_said {
        without("targets", STRIPE);
    }
    if kind != Some(Kind::Stripe) && (kind.is_some() || !is_said) {
        without("chunk", STRIPE);
    }
    if kind != Some(Kind::Multipath) && (kind.is_some() || !is_said) {
        options.iter().for_each(|(key, _)| without(key, MULTIPATH));
    }
    let kind = kind?;
    let (word, example) = match kind {
        Kind::Stripe => (STRIPE, "\"A.img\", \"B.img\""),
        Kind::Multipath => (MULTIPATH, "\"iscsi://A/IQN/1\", \"iscsi://B/IQN/1\""),
    };
    if targets.is_none() && section.get("targets").is_none() {
        section.refuse("", format!("stack = \"{word}\" has no targets; add targets = [{example}]"));
    }
    Some(match kind {
        Kind::Stripe => {
            let chunk_bytes = chunk_bytes(section, chunk.as_deref());
            let targets = targets?.iter().map(|text| target(section, "targets", text.clone()));
            Stack::Stripe(chunk_bytes, targets.collect())
        }
        Kind::Multipath => Stack::Multipath(multipath(section, targets?, &options)),
    })
}

/// Parses a target. Records an error and returns a null target if the text is invalid.
pub fn target(section: &mut Section<'_, '_>, key: &'static str, text: String) -> TargetPlan {
    let spec = TargetSpec::parse(&text).unwrap_or_else(|e| {
        section.refuse(key, format!("target={}: {}", shown(&without_secrets(&text)), shown(&e.to_string())));
        TargetSpec::Null(Default::default())
    });
    TargetPlan { spec, text: Masked::new(&text) }
}

fn chunk_bytes(section: &mut Section<'_, '_>, chunk: Option<&str>) -> u64 {
    match chunk.map(|text| (text, host::target::bytes(text))) {
        None => STRIPE_CHUNK,
        Some((_, Some(bytes))) => bytes,
        Some((text, None)) => {
            section.refuse("chunk", format!("chunk={}: must be bytes, such as chunk = \"64k\"", shown(text)));
            STRIPE_CHUNK
        }
    }
}

/// Returns the keys that a multipath disk has. A value is a word, a number, or a list with one value for each path, as
/// for `prio`.
fn options(section: &mut Section<'_, '_>) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    for key in option_names() {
        let Some(found) = section.get(key) else { continue };
        let text = match found.value {
            DeValue::String(text) => Some(text.to_string()),
            DeValue::Array(items) => {
                let of_path = |item: &DeValue<'_>| match item {
                    DeValue::String(text) => Some(text.to_string()),
                    other => whole(other).map(|n| n.to_string()),
                };
                let all: Option<Vec<_>> = items.iter().map(|item| of_path(item.get_ref())).collect();
                all.map(|of_paths| of_paths.join("+"))
            }
            other => whole(other).map(|n| n.to_string()),
        };
        match text {
            Some(text) => all.push((key, text)),
            None => {
                section
                    .refuse(key, format!("{key}={}: must be a text, a number or a list of them", text_of(found.value)));
            }
        }
    }
    all
}

/// Makes the multipath target; errors are reported at their keys.
fn multipath(
    section: &mut Section<'_, '_>,
    targets: &[String],
    options: &[(&'static str, String)],
) -> Option<TargetPlan> {
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let said = |e: host::error::Error| {
        let text = e.to_string();
        shown(text.trim_start_matches("target 'multipath:': ")).to_string()
    };
    if let Err(e) = MultipathTarget::new(&[], &targets) {
        section.refuse("targets", format!("targets: {}", said(e)));
        return None;
    }
    let options: Vec<(&str, &str)> = options.iter().map(|(key, value)| (*key, value.as_str())).collect();
    let made = MultipathTarget::new(&options, &targets);
    if let Err(e) = &made {
        let alone = |option: (&str, &str)| MultipathTarget::new(&[option], &targets);
        let mut is_said = false;
        for option in &options {
            let mut some = vec![*option];
            if option.0 == "path_grouping_policy" {
                // One grouping policy is valid only with another option.
                let beside = |o: &&(&str, &str)| ["prio", "conf", "detect_prio"].contains(&o.0) && alone(**o).is_ok();
                some.extend(options.iter().filter(beside));
            }
            // These options are valid only together.
            let by_cpu = ["path_selector", "path_cpus", "path_grouping_policy"];
            if by_cpu[..2].contains(&option.0) {
                some.extend(options.iter().filter(|o| by_cpu.contains(&o.0) && o.0 != option.0));
            }
            if let Err(e) = MultipathTarget::new(&some, &targets) {
                let text = said(e);
                let is_about = |name: &str| text.strip_prefix(name).is_some_and(|rest| rest.starts_with(['=', ':']));
                if options.iter().any(|other| other.0 != option.0 && is_about(other.0)) {
                    continue;
                }
                section.refuse(option.0, text);
                is_said = true;
            }
        }
        if !is_said {
            section.refuse("stack", shown(e.to_string().trim_start_matches("target 'multipath:': ")));
        }
    }
    let made = made.ok()?;
    let options: Vec<String> = options.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let text = format!("{MULTIPATH}:{}:{}", options.join(","), targets.join("+"));
    Some(TargetPlan { spec: TargetSpec::Multipath(Box::new(made)), text: Masked::new(&text) })
}
