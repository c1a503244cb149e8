// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A whole tuning: inspect the device, screen, drop what does not matter, confirm.
//!
//! Guarantees: fresh runs confirm a recommendation against the default at the level of [`crate::verdict`]. The size of the
//! gain determines the number of pairs. One candidate is confirmed. A second candidate is confirmed only if the first
//! violated a limit, or a rule of thumb beat it. So there are at most two chances of a false claim
//! (tests/it/tune_honesty.rs measures the rate). The result depends only on the seed and the measurements, because time is
//! the sum of the runs' durations. Does not: leave any setting changed; a point is set for its run only.

use super::bench::{Ask, Length, Reading};
use super::climb::Climb;
use super::confirm::{Duel, DuelSpec, duel};
use super::detect;
use super::journal::{Halt, Recorder, Tried, TunePlan};
use super::objective::Keep;
use super::outcome::{Impossible, TuneResult, TuneVerdict};
use super::point::Point;
use crate::plan::Plan;
use crate::stats::descriptive;
use crate::verdict::Verdict;

/// Runs of the default before anything else, to measure the noise.
const BASELINE: u32 = 6;
/// Minimum of the noise (standard deviation of the logarithm) that is assumed, because simulated runs may be identical.
const NOISE_MIN: f64 = 1e-4;
/// Largest share of the budget that is reserved for confirmation.
const CONFIRM_SHARE: f64 = 0.6;
/// Maximum number of pairs of a confirmation, however many it needs.
const PAIRS_MAX: u32 = 400;
/// Salts that separate the random orders of duels and climbs.
const SALT_DUEL: u64 = 1 << 32;
const SALT_CLIMB: u64 = 1 << 20;

/// Runs a complete tuning.
pub fn tune(plan: &TunePlan, rec: &mut Recorder<'_>) -> Result<TuneResult, Halt> {
    let result = Tuner::begin(plan, rec)?.finish(rec)?;
    rec.finish(&result)?;
    Ok(result)
}

struct Tuner<'a> {
    plan: &'a TunePlan,
    /// Geometric means of the default's figures, for the metric of each limit.
    default_keeps: Vec<f64>,
    noise: f64,
    /// Seconds of a full run.
    full: f64,
    /// Seconds at which screening stops.
    until: f64,
    /// Seconds that the probes for caps take; `None` if the budget does not allow them.
    probes: Option<f64>,
    duels: u64,
    result: TuneResult,
}

impl<'a> Tuner<'a> {
    /// Runs the default settings: whether it runs, what limits the device has, and how noisy it is.
    fn begin(plan: &'a TunePlan, rec: &mut Recorder<'_>) -> Result<Tuner<'a>, Halt> {
        rec.status.phase = "first run of the default".to_owned();
        let ask = |length, entropy| Ask { point: Point::default(), length, load: None, entropy };
        let first = match rec.measure(ask(Length::Full, plan.seed))? {
            Tried::Read(reading) => *reading,
            Tried::Refused(why) => return Err(Halt::Failed(why)),
        };
        let mut result = nothing_yet(plan);
        if first.errors > 0 {
            result.verdict = TuneVerdict::Errors;
            return Ok(Tuner {
                plan,
                default_keeps: Vec::new(),
                noise: 0.0,
                full: first.seconds,
                until: 0.0,
                probes: None,
                duels: 0,
                result,
            });
        }
        measured(plan, &first)?;
        let afford = plan.budget_seconds * CONFIRM_SHARE;
        let least = f64::from(2 * Plan::DEFAULT_PAIRS + 2) * first.seconds;
        if least > afford {
            let (runs, need) = (2 * Plan::DEFAULT_PAIRS + 2, (least / CONFIRM_SHARE).ceil());
            return Err(Halt::Failed(format!(
                "--budget {:.0}s: {runs} confirmation runs of {:.1} s take {least:.0} s of it, more than {:.0} %; give --budget {need:.0}s \
                 or a shorter --runtime",
                plan.budget_seconds,
                first.seconds,
                100.0 * CONFIRM_SHARE
            )));
        }
        let probes = detect::probes_seconds(plan, &first);
        if probes.is_some() {
            result.findings.extend(detect::probe_credit(rec, plan, &first)?);
        }
        rec.status.phase = "the default's noise".to_owned();
        let mut readings = Vec::new();
        for i in 0..BASELINE {
            let tried = rec.measure(ask(Length::Short, plan.seed.wrapping_add(u64::from(i))))?;
            readings.extend(tried.good().filter(|r| measured(plan, r).is_ok()).cloned());
        }
        if readings.len() < 3 {
            return Err(Halt::Failed(
                "the default settings cannot be measured: runs fail or are too short; give a longer --runtime".into(),
            ));
        }
        result.findings.extend(detect::of_baseline(plan, &first, &readings));
        let logs =
            |of: &dyn Fn(&Reading) -> Option<f64>| readings.iter().filter_map(of).map(f64::ln).collect::<Vec<f64>>();
        let goals = logs(&|r| r.get(&plan.goal.metric));
        let level = |logs: &[f64]| descriptive::mean(logs).map_or(0.0, f64::exp);
        let noise = descriptive::stddev(&goals).unwrap_or(0.0).max(NOISE_MIN);
        let default_keeps = plan.keeps.iter().map(|k| level(&logs(&|r| r.get(&k.metric)))).collect();
        result.default_value = descriptive::median(&goals).map(f64::exp);
        result.noise = noise;
        let rules = plan.rules.iter().filter(|(_, p)| !p.is_empty()).count() as u32;
        let confirm = (f64::from(rules) * f64::from(2 * Plan::MIN_PAIRS + 2) + 60.0) * first.seconds;
        let confirm = confirm.clamp(least, afford.max(least)) + probes.unwrap_or(0.0);
        let until = plan.budget_seconds - confirm;
        Ok(Tuner { plan, default_keeps, noise, full: first.seconds, until, probes, duels: 0, result })
    }

    fn finish(mut self, rec: &mut Recorder<'_>) -> Result<TuneResult, Halt> {
        if self.result.verdict != TuneVerdict::Errors {
            self.search(rec)?;
            if let Some(seconds) = self.probes {
                // Under the recommended settings: what limits today's may be what the recommendation removes.
                let winner = self.result.winner.clone();
                self.result.findings.extend(detect::probe_caps(rec, self.plan, &winner, seconds)?);
            }
        }
        self.result.unmodelled = std::mem::take(&mut rec.unmodelled).into_iter().collect();
        self.result.runs = rec.status.runs;
        self.result.seconds = rec.status.spent;
        Ok(self.result)
    }

    fn search(&mut self, rec: &mut Recorder<'_>) -> Result<(), Halt> {
        let broken = self.broken_limit();
        let start = match broken {
            None => Point::default(),
            Some(index) => match self.restore(rec, index)? {
                Some(point) => point,
                None => return Ok(()),
            },
        };
        let restored = broken.is_some();
        let mut plan = self.plan.clone();
        for attempt in 0..2 {
            let mut climb = Climb::new(&plan, self.noise, self.until, SALT_CLIMB * (1 + attempt));
            let is_last = attempt == 1;
            if is_last {
                climb.length = Length::Full;
            }
            let (mut best, mut gain) = climb.run(rec, start.clone())?;
            if !plan.keeps.is_empty() {
                (best, gain) = climb.finals(rec, &start)?;
            }
            let (best, unneeded) = climb.minimal(rec, best)?;
            self.result.points += climb.points() as u32;
            self.result.cut_short |= climb.cut_short;
            if best == start && !plan.keeps.is_empty() && !is_last && !climb.seen.is_empty() {
                // No point kept in full runs what it promised in short ones: search once more, in full runs.
                continue;
            }
            // Nothing promised enough: confirm how little the best of it gains.
            let (best, gain) = match climb.nearest {
                Some(nearest) if best.is_empty() => (nearest.point, nearest.gain),
                _ => (best, gain),
            };
            if best.is_empty() {
                return Ok(());
            }
            let won = self.confirm(rec, "the default", &Point::default(), &best, gain)?;
            let is_small = won.gains_less_than(&self.plan.goal, self.plan.detect);
            let better = won.verdict == Verdict::BIsFaster && !is_small;
            let kept = won.keeps_all();
            self.result.unneeded = unneeded;
            self.result.against_default = Some(won.clone());
            if kept && (better || restored) {
                self.result.winner = best;
                self.result.verdict = if better { TuneVerdict::Better } else { TuneVerdict::LimitKept };
                return self.against_rules(rec);
            }
            if kept || !better {
                let is_measured = matches!(won.verdict, Verdict::BIsFaster | Verdict::NoDifferenceShown);
                if is_small && is_measured {
                    self.result.verdict = TuneVerdict::NotWorth;
                }
                return Ok(());
            }
            // The candidate is better, but misses a limit: search again, in full runs and with that limit tightened.
            tighten(&mut plan.keeps, &won);
        }
        Ok(())
    }

    /// The limit that the default misses most clearly, if it misses one.
    fn broken_limit(&self) -> Option<usize> {
        let margins = self.plan.keeps.iter().zip(&self.default_keeps).map(|(k, d)| k.margin(*d, *d)).enumerate();
        margins.filter(|(_, m)| *m < 0.0).min_by(|a, b| a.1.total_cmp(&b.1)).map(|(i, _)| i)
    }

    /// Searches for a point that keeps a limit which the default misses. Returns `None` if there is none, which is then the result.
    fn restore(&mut self, rec: &mut Recorder<'_>, index: usize) -> Result<Option<Point>, Halt> {
        let keep = self.plan.keeps[index].clone();
        let others: Vec<Keep> = self
            .plan
            .keeps
            .iter()
            .zip(&self.default_keeps)
            .filter(|(k, d)| k.margin(**d, **d) >= 0.0)
            .map(|(k, _)| k.clone())
            .collect();
        let plan = TunePlan { goal: keep.as_goal(), keeps: others, ..self.plan.clone() };
        let until = rec.status.spent + (self.until - rec.status.spent) / 2.0;
        let mut climb = Climb::new(&plan, self.noise, until, SALT_CLIMB << 8);
        let (best, gain) = climb.run(rec, Point::default())?;
        let (best, _) = climb.minimal(rec, best)?;
        self.result.points += climb.points() as u32;
        self.duels += 1;
        rec.status.phase = format!("confirming the best value of {}", keep.text);
        let judged = TunePlan { keeps: vec![keep.clone()], ..plan.clone() };
        let nothing = Point::default();
        let spec = DuelSpec {
            plan: &judged,
            a: &nothing,
            against: "the default",
            b: &best,
            first: Plan::MIN_PAIRS,
            most: self.most_pairs(rec),
            effect: plan.detect.ln_1p().max(gain / 2.0),
            salt: SALT_DUEL + self.duels,
        };
        let duel = duel(rec, &spec)?;
        if duel.keeps_all() {
            return Ok(Some(best));
        }
        self.result.verdict = TuneVerdict::CannotKeep;
        self.result.impossible = Some(Impossible { text: keep.text, best, duel });
        Ok(None)
    }

    /// Number of pairs that the rest of the budget allows.
    fn most_pairs(&self, rec: &Recorder<'_>) -> u32 {
        let left = (self.plan.budget_seconds - rec.status.spent) / self.full.max(1e-9);
        ((left / 2.0) as u32 / 2 * 2).clamp(Plan::MIN_PAIRS, PAIRS_MAX)
    }

    fn confirm(
        &mut self,
        rec: &mut Recorder<'_>,
        against: &str,
        a: &Point,
        b: &Point,
        gain: f64,
    ) -> Result<Duel, Halt> {
        self.duels += 1;
        rec.status.phase = format!("confirming {b} against {against}");
        let spec = DuelSpec {
            plan: self.plan,
            a,
            against,
            b,
            first: Plan::DEFAULT_PAIRS,
            most: self.most_pairs(rec),
            // Screening overestimates gains, so the difference to detect is half of the screened gain, and at least the gain
            // worth having.
            effect: self.plan.detect.ln_1p().max(gain / 2.0),
            salt: SALT_DUEL + self.duels,
        };
        duel(rec, &spec)
    }

    /// Compares the winner with the rules of thumb. A rule that beats it takes its place, if it also beats the default.
    fn against_rules(&mut self, rec: &mut Recorder<'_>) -> Result<(), Halt> {
        let mut seen = vec![Point::default(), self.result.winner.clone()];
        let mut beaten_by: Option<(String, Point)> = None;
        for (sentence, point) in &self.plan.rules {
            let left_out = if point.is_empty() {
                Some("same as the default".to_owned())
            } else if *point == self.result.winner {
                Some("same as the recommendation".to_owned())
            } else if seen.contains(point) {
                Some("same as an earlier rule".to_owned())
            } else if let Err(why) = rec.check(point) {
                Some(why)
            } else if rec.status.spent + f64::from(2 * Plan::MIN_PAIRS + 2) * self.full > self.plan.budget_seconds {
                Some("the budget is used up".to_owned())
            } else {
                None
            };
            if let Some(why) = left_out {
                self.result.rules_left_out.push((sentence.clone(), why));
                continue;
            }
            seen.push(point.clone());
            self.duels += 1;
            rec.status.phase = format!("confirming against the rule '{sentence}'");
            let winner = self.result.winner.clone();
            let spec = DuelSpec {
                plan: self.plan,
                a: point,
                against: sentence,
                b: &winner,
                first: Plan::MIN_PAIRS,
                most: Plan::MIN_PAIRS,
                effect: self.plan.detect.ln_1p(),
                salt: SALT_DUEL + self.duels,
            };
            let done = duel(rec, &spec)?;
            if done.verdict == Verdict::BIsSlower && beaten_by.is_none() {
                beaten_by = Some((sentence.clone(), point.clone()));
            }
            self.result.against_rules.push(done);
        }
        let Some((_, point)) = beaten_by else { return Ok(()) };
        let won = self.confirm(rec, "the default", &Point::default(), &point, 0.0)?;
        if won.verdict == Verdict::BIsFaster && won.keeps_all() {
            self.result.winner = point;
            self.result.verdict = TuneVerdict::Better;
            self.result.against_default = Some(won);
            self.result.unneeded.clear();
        }
        Ok(())
    }
}

/// The result before any run.
fn nothing_yet(plan: &TunePlan) -> TuneResult {
    TuneResult {
        goal: plan.goal.metric.clone(),
        verdict: TuneVerdict::NoBetter,
        winner: Point::default(),
        against_default: None,
        against_rules: Vec::new(),
        rules_left_out: Vec::new(),
        unneeded: Vec::new(),
        unmodelled: Vec::new(),
        impossible: None,
        default_value: None,
        noise: 0.0,
        points: 0,
        runs: 0,
        seconds: 0.0,
        cut_short: false,
        findings: Vec::new(),
    }
}

/// Rejects a reading that lacks one of the metrics.
fn measured(plan: &TunePlan, reading: &Reading) -> Result<(), Halt> {
    match plan.wanted().iter().find(|m| reading.get(m).is_none()) {
        None => Ok(()),
        Some(metric) => Err(Halt::Failed(format!(
            "{metric}: is not measured in these runs (no I/O of that job, too few of them for that percentile, or no CPU time); \
             give a longer --runtime or another metric"
        ))),
    }
}

/// Tightens each missed limit by one and a half times the miss, and a little more; by 3 % at most, because a larger miss
/// comes from short runs and not from chance.
fn tighten(keeps: &mut [Keep], won: &Duel) {
    use super::objective::Bound;
    for (keep, kept) in keeps.iter_mut().zip(&won.keeps).filter(|(_, kept)| !kept.kept) {
        let missed = match (keep.bound, kept.ratio, kept.value) {
            (Bound::OfDefault(_), Some(r), _) => -keep.margin(1.0, r.ratio),
            (Bound::Absolute(_), _, Some(value)) => -keep.margin(1.0, value),
            _ => 0.0,
        };
        let factor = (1.5 * missed.max(0.0) + 0.005).min(0.03).exp();
        let scale = |x: f64| if keep.at_least { x * factor } else { x / factor };
        keep.bound = match keep.bound {
            Bound::OfDefault(x) => Bound::OfDefault(scale(x)),
            Bound::Absolute(x) => Bound::Absolute(scale(x)),
        };
    }
}
