// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures the guarantees of a tuning on a machine that is a formula. If nothing matters it says so, a gain of the
//! requested size is found, and limits, interactions and impossible limits are reported correctly.

use crate::synthetic;

use lab::tune::outcome::TuneVerdict;
use lab::tune::point::Point;
use lab::verdict::Verdict;
use synthetic::{Machine, plan, tune};

const TUNES: u64 = 100;

fn flat(_: &Point) -> (f64, f64) {
    (0.0, 0.0)
}

fn planted(p: &Point) -> (f64, f64) {
    (if p.get("nomerges") == Some("2") { 0.03f64.ln_1p() } else { 0.0 }, 0.0)
}

/// Neither setting alone has a gain; both together have.
#[test]
fn an_interaction_is_found() {
    fn effect(p: &Point) -> (f64, f64) {
        let both = p.get("scheduler") == Some("bfq") && p.get("nr_requests") == Some("256");
        (if both { 0.3 } else { 0.0 }, 0.0)
    }
    let (mut found, mut other) = (0, 0);
    for seed in 0..20 {
        let mut machine = Machine::new(effect, 0.01, seed);
        let result = tune(&mut machine, &plan(&[], seed));
        let both = result.winner.get("scheduler") == Some("bfq") && result.winner.get("nr_requests") == Some("256");
        found += u32::from(result.verdict == TuneVerdict::Better && both);
        other += u32::from(both && result.winner.len() > 2);
    }
    assert!(found >= 19 && other <= 4, "found in {found} of 20, with other settings beside in {other}");
}

#[test]
fn knob_changes_are_combined_and_useless_ones_dropped() {
    fn effect(p: &Point) -> (f64, f64) {
        let queues = match p.get("nr_hw_queues") {
            Some("1") => 0.4,
            Some("2") => 0.3,
            Some("4") => 0.1,
            _ => 0.0,
        };
        let merges = if p.get("nomerges") == Some("2") { 0.1 } else { 0.0 };
        (queues + merges, 0.0)
    }
    let mut machine = Machine::new(effect, 0.01, 5);
    let result = tune(&mut machine, &plan(&[], 5));
    assert_eq!(result.verdict, TuneVerdict::Better);
    assert_eq!(result.winner, Point::of(&[("nr_hw_queues", "1"), ("nomerges", "2")]), "{result:#?}");
    let ratio = result.against_default.unwrap().ratio.unwrap();
    assert!(ratio.low < 0.5f64.exp() && 0.5f64.exp() < ratio.high * 1.02, "{ratio:?}");
    let verdicts: Vec<_> = result.against_rules.iter().map(|d| (d.against.as_str(), d.verdict)).collect();
    assert_eq!(verdicts, [("one queue", Verdict::BIsFaster), ("four queues", Verdict::BIsFaster)]);
    assert_eq!(result.rules_left_out[0].1, "same as the default");
}

/// A change has its price: a gain below `--detect` is no recommendation, and the report has its interval.
#[test]
fn a_gain_below_detect_is_not_worth_a_change() {
    fn effect(p: &Point) -> (f64, f64) {
        (if p.get("nomerges") == Some("2") { 0.012 } else { 0.0 }, 0.0)
    }
    for seed in 0..10 {
        let mut machine = Machine::new(effect, 0.0005, seed);
        let plan = plan(&[], seed);
        let result = tune(&mut machine, &plan);
        assert_eq!((result.verdict, result.winner.is_empty()), (TuneVerdict::NotWorth, true), "seed {seed}");
        let duel = result.against_default.as_ref().unwrap();
        let ratio = duel.ratio.unwrap();
        assert!(ratio.high < 1.03 && ratio.low > 1.0, "{ratio:?}");
        let text = lab::tune::report::headline(&plan, &result);
        assert!(text.starts_with("not worth a change: the most promising, nomerges=2"), "{text}");
        assert!(text.contains(": a.iops +1."), "{text}");
        assert!(text.ends_with("; less than 3.0%"), "{text}");
    }
}

/// The setting with the largest gain violates the limit; the recommendation does not.
#[test]
fn limits_are_kept() {
    fn effect(p: &Point) -> (f64, f64) {
        match p.get("scheduler") {
            Some("bfq") => (0.5, -0.3),
            Some("kyber") => (0.2, -0.01),
            _ => (0.0, 0.0),
        }
    }
    for seed in 0..10 {
        let mut machine = Machine::new(effect, 0.005, seed);
        let result = tune(&mut machine, &plan(&["b.bw>=95%"], seed));
        assert_eq!(
            (result.verdict, result.winner.get("scheduler")),
            (TuneVerdict::Better, Some("kyber")),
            "seed {seed}"
        );
        let duel = result.against_default.unwrap();
        assert!(duel.keeps_all() && duel.keeps[0].surely, "{:?}", duel.keeps);
    }
}

#[test]
fn an_impossible_ask_is_answered_with_the_best_there_is() {
    fn effect(p: &Point) -> (f64, f64) {
        (0.0, if p.get("max_sectors_kb") == Some("64") { 0.2 } else { 0.0 })
    }
    let mut machine = Machine::new(effect, 0.01, 3);
    let result = tune(&mut machine, &plan(&["b.bw>=200%"], 3));
    assert_eq!((result.verdict, result.winner.is_empty()), (TuneVerdict::CannotKeep, true));
    let answer = result.impossible.unwrap();
    assert_eq!((answer.text.as_str(), answer.best.to_string().as_str()), ("b.bw>=200%", "max_sectors_kb=64"));
    let ratio = answer.duel.ratio.unwrap();
    assert!(ratio.low < 0.2f64.exp() && 0.2f64.exp() < ratio.high, "{ratio:?}");
    // A limit that the default misses, and that another setting keeps, is kept.
    let mut machine = Machine::new(effect, 0.01, 3);
    let result = tune(&mut machine, &plan(&["b.bw>=110%"], 3));
    assert_eq!((result.verdict, result.winner.to_string().as_str()), (TuneVerdict::LimitKept, "max_sectors_kb=64"));
}

#[test]
fn a_budget_that_cannot_confirm_is_refused_with_one_that_can() {
    let mut machine = Machine::new(flat, 0.01, 3);
    let plan = lab::tune::journal::TunePlan { budget_seconds: 10.0, ..plan(&[], 3) };
    let e = synthetic::tune_from(&mut machine, &plan, Vec::new(), &mut Vec::new()).unwrap_err().to_string();
    assert!(e.starts_with("--budget 10s: 26 confirmation runs of 2.0 s") && e.contains("give --budget 87s"), "{e}");
}

/// Slow tests, run by `cargo xtask test --deep`.
mod deep {
    use super::*;

    #[test]
    fn at_most_five_percent_of_null_tunes_claim_a_gain() {
        for (noise, drift) in [(0.01, 0.0), (0.02, 0.0), (0.02, 0.0005), (0.05, 0.0)] {
            let (mut claims, mut runs) = (0, 0);
            for seed in 0..TUNES {
                let mut machine = Machine { drift, ..Machine::new(flat, noise, 1000 + seed) };
                let result = tune(&mut machine, &plan(&[], seed));
                claims += u32::from(result.verdict == TuneVerdict::Better);
                runs += result.runs;
                let nothing = matches!(result.verdict, TuneVerdict::NoBetter | TuneVerdict::NotWorth);
                assert!(nothing || result.verdict == TuneVerdict::Better, "seed {seed}");
            }
            println!("noise {noise}, drift {drift}: {claims} claims in {TUNES} tunes of {} runs", runs / TUNES as u32);
            assert!(
                claims <= 5,
                "noise {noise}, drift {drift}: {claims} false claims in {TUNES} tunes, seeds 0..{TUNES}"
            );
        }
    }

    #[test]
    fn a_planted_gain_of_three_percent_is_found_by_tune() {
        for noise in [0.005, 0.01] {
            let (mut found, mut other, mut pairs) = (0, 0, 0);
            for seed in 0..TUNES {
                let mut machine = Machine::new(planted, noise, 7000 + seed);
                let result = tune(&mut machine, &plan(&[], seed));
                let right = result.verdict == TuneVerdict::Better && result.winner.get("nomerges") == Some("2");
                found += u32::from(right);
                other += u32::from(right && result.winner.len() > 1);
                pairs += result.against_default.map_or(0, |d| d.pairs);
            }
            println!(
                "noise {noise}: found in {found} of {TUNES}, with other settings beside in {other}, {} pairs",
                pairs / TUNES as u32
            );
            assert!(
                found >= 85,
                "noise {noise}: the planted gain was found in {found} of {TUNES} tunes, seeds 0..{TUNES}"
            );
            assert!(other <= 20, "noise {noise}: {other} of {found} recommendations have settings that do nothing");
        }
    }
}
