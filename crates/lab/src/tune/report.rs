// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A tuning as text: the verdict, the confirmations, the reasons, how to set the recommendation, and warnings.
//!
//! Guarantees: every figure of the recommendation is a confirmed one with its interval. Figures of the screening are not
//! printed as results. Does not: wrap or colour.

use std::fmt::Write;

use super::confirm::Duel;
use super::explain;
use super::forms::Form;
use super::guest_forms::render;
use super::journal::TunePlan;
use super::outcome::{TuneResult, TuneVerdict};
use crate::verdict::Verdict;

/// Most settings that are named as those of which nothing can be told.
const UNMODELLED_SHOWN: usize = 4;

/// Returns the whole report. `replay` is the command that repeats the tuning.
pub fn text(plan: &TunePlan, r: &TuneResult, forms: &[Form], replay: &str) -> String {
    // Writing to a String cannot fail, so the results of write! are dropped throughout.
    let mut out = format!("{}\n\n", headline(plan, r));
    if let Some(duel) = &r.against_default {
        confirmation(&mut out, plan, r, duel);
    }
    if let Some(answer) = &r.impossible {
        let _ = writeln!(out, "  the nearest: {}", answer.best);
        keeps(&mut out, &answer.duel);
    }
    if !r.unneeded.is_empty() {
        let _ = writeln!(out, "  not needed   : {} (no worse without them)", r.unneeded.join(", "));
    }
    for duel in &r.against_rules {
        let figure = figure(plan, duel);
        let _ = writeln!(out, "  '{}' ({}): {} {figure}", duel.against, duel.a, rule_word(duel.verdict));
    }
    for (rule, why) in &r.rules_left_out {
        let _ = writeln!(out, "  '{rule}': not run: {why}");
    }
    if let Some((_, why)) = r.unmodelled.first() {
        let mut names: Vec<&str> = r.unmodelled.iter().map(|(point, _)| point.as_str()).collect();
        names.sort_by_key(|point| point.len());
        let more = names.len().saturating_sub(UNMODELLED_SHOWN);
        names.truncate(UNMODELLED_SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let _ = writeln!(out, "  cannot tell  : {}{more}: {why}", names.join("; "));
    }
    if let Some(duel) = r.against_default.as_ref().filter(|_| !r.winner.is_empty()) {
        out.push_str("\nwhy\n");
        for sentence in explain::sentences(duel) {
            let _ = writeln!(out, "  {sentence}");
        }
    }
    let has_notes = !r.findings.is_empty() || !plan.without_effect.is_empty();
    if has_notes && !out.ends_with("\n\n") {
        out.push('\n');
    }
    for finding in &r.findings {
        let _ = writeln!(out, "note: {finding}\n      {}", finding.advice());
    }
    for (names, why) in without_effect(plan) {
        let _ = writeln!(out, "note: not searched: {names}: {why}");
    }
    if r.cut_short {
        let _ = writeln!(out, "note: the search used up its budget; a longer --budget tries more settings");
    }
    for form in forms {
        let _ = write!(out, "\n{}", render(*form, &r.winner, plan));
    }
    let _ = writeln!(
        out,
        "{}{} settings tried, {} runs, {:.0} s of runs; noise {:.1}% per short run; seed {}\nrepeat: {replay}",
        if out.ends_with("\n\n") { "" } else { "\n" },
        r.points,
        r.runs,
        r.seconds,
        100.0 * r.noise,
        plan.seed
    );
    out
}

/// The verdict with its figure.
pub fn headline(plan: &TunePlan, r: &TuneResult) -> String {
    let confirmed = r.against_default.as_ref();
    match r.verdict {
        TuneVerdict::Better => {
            let duel = confirmed.expect("a recommendation was confirmed");
            format!("{} is better than the default: {}", r.winner, figure(plan, duel))
        }
        TuneVerdict::LimitKept => {
            let duel = confirmed.expect("a recommendation was confirmed");
            format!("{} keeps the limits, which the default does not; {}", r.winner, figure(plan, duel))
        }
        TuneVerdict::NoBetter => no_better(plan, r),
        TuneVerdict::NotWorth => {
            let duel = r.against_default.as_ref().expect("the most promising setting was confirmed");
            let least = 100.0 * plan.detect;
            format!("not worth a change: the most promising, {}: {}; less than {least:.1}%", duel.b, figure(plan, duel))
        }
        TuneVerdict::CannotKeep => {
            let answer = r.impossible.as_ref().expect("says what cannot be");
            let reached = answer.duel.keeps.first().map_or_else(String::new, |k| {
                let ratio = k.ratio.map_or_else(String::new, |x| format!(", {:.0}% of the default's", 100.0 * x.ratio));
                format!("; the best that is possible: {}{ratio} with {}", k.shown, answer.best)
            });
            format!("{}: no setting keeps that{reached}", answer.text)
        }
        TuneVerdict::Errors => {
            "errors with the default settings: nothing was tuned; use mqblk run with the same job for details"
                .to_owned()
        }
    }
}

fn no_better(plan: &TunePlan, r: &TuneResult) -> String {
    let said = "no setting is better than the default: no difference shown";
    let Some(duel) = &r.against_default else {
        return format!("{said} ({} settings tried, none promised a gain of {:.1}%)", r.points, 100.0 * plan.detect);
    };
    match duel.verdict {
        Verdict::BIsFaster => {
            let broken: Vec<&str> = duel.keeps.iter().filter(|k| !k.kept).map(|k| k.text.as_str()).collect();
            format!("no setting is better than the default and keeps {}: {} does not", broken.join(", "), duel.b)
        }
        Verdict::Errors => format!("no setting is better than the default: with {}, I/Os failed", duel.b),
        Verdict::NotModelled => {
            format!("cannot tell whether {} is better: {}", duel.b, duel.unmodelled().unwrap_or_default())
        }
        _ => {
            let seen =
                duel.ratio.map_or_else(String::new, |x| format!("; {:.1}% would have been seen", 100.0 * x.resolution));
            let more = match duel.pairs_asked > duel.pairs {
                true => format!(
                    "; detecting {:.1}% takes {} pairs: give a longer --budget",
                    100.0 * plan.detect,
                    duel.pairs_asked
                ),
                false => String::new(),
            };
            format!("{said} (the most promising, {}: {}{seen}{more})", duel.b, figure(plan, duel))
        }
    }
}

/// Knobs without effect, those with the same reason together.
pub fn without_effect(plan: &TunePlan) -> Vec<(String, &str)> {
    let mut found: Vec<(String, &str)> = Vec::new();
    for (name, why) in &plan.without_effect {
        match found.iter_mut().find(|(_, other)| other == why) {
            Some((names, _)) => *names = format!("{names}, {name}"),
            None => found.push((name.clone(), why)),
        }
    }
    found
}

/// `a.iops +4.1% [+1.2%, +7.0%], 12 pairs, p = 0.004`.
fn figure(plan: &TunePlan, duel: &Duel) -> String {
    let metric = &plan.goal.metric;
    let Some(r) = duel.ratio else { return format!("{metric} was not measured in every run") };
    let (low, high) = r.percent_interval();
    let p = if r.p < 0.0001 { "< 0.0001".to_owned() } else { format!("= {:.4}", r.p) };
    format!("{metric} {:+.1}% [{low:+.1}%, {high:+.1}%], {} pairs, p {p}", r.percent(), duel.pairs)
}

fn confirmation(out: &mut String, plan: &TunePlan, r: &TuneResult, duel: &Duel) {
    let show = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), |v| plan.goal.metric.quantity.show(v));
    let word = if r.winner.is_empty() { "tried" } else { "recommended" };
    let _ = writeln!(out, "  default      : {}", show(duel.a_median));
    let _ = writeln!(out, "  {word:<13}: {}  ({})", show(duel.b_median), duel.b);
    keeps(out, duel);
}

fn keeps(out: &mut String, duel: &Duel) {
    for k in &duel.keeps {
        let word = match (k.kept, k.surely) {
            (true, true) => "kept",
            (true, false) => "limit kept, but not proven: the interval crosses it",
            (false, _) => "not kept",
        };
        let ratio = k.ratio.map_or_else(String::new, |r| {
            format!(", {:.1}% of the default's [{:.1}%, {:.1}%]", 100.0 * r.ratio, 100.0 * r.low, 100.0 * r.high)
        });
        let _ = writeln!(out, "  {:<13}: {word}: {}{ratio}", k.text, k.shown);
    }
}

fn rule_word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::BIsFaster => "beaten:",
        Verdict::BIsSlower => "better than the recommendation:",
        Verdict::Errors => "I/Os failed:",
        Verdict::NotModelled => "cannot tell, not modelled:",
        _ => "no difference shown:",
    }
}
