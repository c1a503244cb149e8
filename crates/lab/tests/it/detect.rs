// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures `--detect`: a comparison with the computed number of pairs finds a difference of the requested size, and has no
//! more false alarms because of the extension. It also runs a hundred comparisons of like with like on a real target.

use crate::synthetic;

use lab::compare::{Comparison, Detect, PairResult, SideTotals};
use lab::metric::{Metric, RunMetrics};
use lab::pairs::{CompareSpec, SideSpec, compare};
use lab::plan::{Plan, Side};
use lab::results::{Header, ResultsWriter};
use lab::run::Unobserved;
use sim::rng::Rng;
use std::sync::Arc;
use synthetic::gauss;
use workload::job::{JobFile, ParseContext};

/// Comparisons for each figure, in a quick run and in a deep run.
const FEW: u32 = 300;
const MANY: u32 = 2000;

/// The pairs of `plan` from number `there` on.
fn pairs(rng: &mut Rng, plan: &Plan, there: u32, sd: f64, effect: f64) -> Vec<PairResult> {
    let mut run = |side: Side| {
        let truth = if side == Side::B { effect.ln_1p() } else { 0.0 };
        RunMetrics { iops: Some(1e5 * (truth + sd * gauss(rng)).exp()), ..RunMetrics::default() }
    };
    (there..plan.pairs()).map(|_| PairResult { a: run(Side::A), b: run(Side::B) }).collect()
}

/// Returns the share of comparisons that report a difference, and the mean number of pairs.
fn share(comparisons: u32, sd: f64, effect: f64) -> (f64, f64) {
    let detect = Detect { change: 0.03, most: 2000 };
    let mut rng = Rng::new(0x6d71 ^ sd.to_bits());
    let (mut called, mut run) = (0, 0);
    for seed in 0..comparisons {
        let first = Plan::new(Plan::DEFAULT_PAIRS, 0, u64::from(seed)).unwrap();
        let mut all = pairs(&mut rng, &first, 0, sd, effect);
        assert!(detect.plan(first, Metric::Iops, &all[1..]).is_none(), "the first part is not complete");
        let (plan, found) = detect.plan(first, Metric::Iops, &all).unwrap();
        assert_eq!(plan.pairs(), found.pairs.max(12));
        all.extend(pairs(&mut rng, &plan, first.pairs(), sd, effect));
        let c = Comparison::evaluate(plan, Metric::Iops, &all, SideTotals::default(), SideTotals::default());
        // A resumed comparison extends its plan in the same way.
        assert_eq!(detect.plan(first, Metric::Iops, &all), Some((plan, found)));
        called += u32::from(c.verdict.is_difference());
        run += plan.pairs();
    }
    (f64::from(called) / f64::from(comparisons), f64::from(run) / f64::from(comparisons))
}

fn differences_are_found(comparisons: u32) {
    for sd in [0.005, 0.02, 0.05] {
        let (found, run) = share(comparisons, sd, 0.03);
        let (alarms, _) = share(comparisons, sd, 0.0);
        println!(
            "noise {sd}: 3% found in {:.1}% with {run:.0} pairs; false alarms {:.2}%",
            100.0 * found,
            100.0 * alarms
        );
        assert!(found >= 0.89, "noise {sd}: found in {found}");
        assert!(alarms <= 0.05, "noise {sd}: false alarms {alarms}");
    }
}

#[test]
fn a_difference_of_the_requested_size_is_detected() {
    differences_are_found(FEW);
}

#[test]
fn too_many_pairs_are_not_begun() {
    let mut rng = Rng::new(1);
    let first = Plan::new(12, 0, 1).unwrap();
    let all = pairs(&mut rng, &first, 0, 0.3, 0.0);
    let (plan, found) = Detect { change: 0.01, most: 100 }.plan(first, Metric::Iops, &all).unwrap();
    assert!(plan == first && found.pairs > 100);
}

/// Slow tests, run by `cargo xtask test --deep`.
mod deep {
    use super::*;

    #[test]
    fn a_difference_of_the_requested_size_is_detected() {
        differences_are_found(MANY);
    }

    /// Suitable for a machine with other load: runs of 4 ms on the null target. The guarantee is a rate of 5 % at most, and
    /// the rate is 2 % by construction. With 2 %, more than eight of one hundred differ in one of ten thousand cases, and
    /// more than five in one of 65.
    #[test]
    fn a_hundred_comparisons_of_like_with_like_on_a_real_target() {
        let text =
            "[a]\nrw=randread\nbs=4k\nsize=64m\nioengine=libaio\niodepth=4\nruntime=4ms\ntime_based\nnorandommap\n";
        let file = JobFile::parse_str(text, &ParseContext::bare("t.fio"), &[]).unwrap_or_else(|e| panic!("{e}"));
        host::clock::start();
        let mut called = 0;
        for seed in 0..100 {
            let side = || SideSpec {
                label: "default".into(),
                target: Some("null:size=1g".into()),
                settings: Vec::new(),
                behind: None,
            };
            let plan = Plan::new(Plan::MIN_PAIRS, 0, seed).unwrap();
            let (sides, stop) = (vec![side(), side()], Arc::default());
            let spec = CompareSpec {
                file: &file,
                sides,
                judge: None,
                plan,
                entropy: seed,
                stop,
                detect: None,
                past: &[],
                force: false,
                slices: false,
            };
            let header = || Header {
                format: lab::results::FORMAT,
                setup: lab::setup::Setup::default(),
                command: String::new(),
                plan,
                primary: Metric::Iops,
                labels: vec!["default".into(), "default".into()],
                job: text.into(),
                started_unix_ms: 0,
                detect: None,
                sides: Vec::new(),
            };
            let open = || ResultsWriter::new(Vec::new(), "memory".into(), &header());
            let c = compare(&spec, open, &mut Unobserved).unwrap().remove(0);
            assert_eq!(c.pairs_done, 10);
            called += u32::from(c.verdict.is_difference());
        }
        println!("{called} of 100 comparisons of like with like were called different");
        assert!(called <= 8, "{called} of 100");
    }
}
