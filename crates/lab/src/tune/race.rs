// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Screening: points race against the best known point, and drop out once more runs are not worthwhile.
//!
//! Guarantees: in a round every remaining point runs once, beside the default and the best point, in a new random order. A
//! gain is the logarithm of the ratio to the best point of the same round, so a slow drift does not count as a gain. A point
//! drops out when a gain worth having has become unlikely (`LEAVE` standard errors) or when it cannot run. It also drops out
//! when a point of its family (the same knob) is clearly better, or when it clearly violates a limit. The spread is pooled
//! over all points, because the noise is the machine's. Two rounds of thirty points estimate it well, while two runs of one
//! point do not.
//!
//! Does not: claim a result. The best of many noisy figures is biased upwards, so a claimed gain is measured again
//! ([`super::confirm`]).

use super::bench::{Ask, Length, Reading};
use super::journal::{Halt, Recorder, TunePlan};
use super::point::Point;
use super::shuffle::{Shuffle, splitmix64};

/// Standard errors by which a point must miss to drop out.
const LEAVE: f64 = 1.5;
/// Standard errors by which a sibling must be better.
const CLEAR: f64 = 2.0;
/// Weight of the noise known beforehand, as degrees of freedom.
const PRIOR_DF: f64 = 5.0;
/// Maximum number of rounds.
const ROUNDS_MAX: u32 = 16;

/// The parameters of a race.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// What is tuned.
    pub plan: &'a TunePlan,
    /// Standard deviation of ln(metric) from run to run, as known before the race.
    pub noise: f64,
    /// Logarithm of the least gain that keeps a point in.
    pub worth: f64,
    /// Seconds of the budget that screening may use up.
    pub until: f64,
    /// Whether each round runs the default even if it is not the best point, because limits are relative to it.
    pub with_default: bool,
    /// Length of the runs.
    pub length: Length,
}

/// A point in a race.
#[derive(Clone, Debug)]
pub struct Racer {
    /// The point.
    pub point: Point,
    /// Points of one family compete with each other.
    pub family: String,
    /// The reason for dropping out, if it did.
    pub left: Option<DropReason>,
    /// Gain over the best point, per round.
    gains: Vec<f64>,
    /// Logarithm of the goal's metric, per round.
    values: Vec<f64>,
    /// Margins to all limits, per round.
    margins: Vec<Vec<f64>>,
}

/// Why a point dropped out of a race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The target rejects it; the text gives the reason.
    Refused(String),
    /// I/Os failed.
    Errors,
    /// A gain worth having is unlikely.
    NotWorth,
    /// Another point of its family is better.
    Beaten,
    /// A limit is not kept.
    NotKept,
}

/// How a point compares with the best one.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// The point.
    pub point: Point,
    /// Its family.
    pub family: String,
    /// Mean gain over the best point, a logarithm.
    pub gain: f64,
    /// Geometric mean of the goal's metric.
    pub value: f64,
    /// Standard error of the gain.
    pub error: f64,
    /// Smallest mean margin to a limit, a logarithm; infinite without limits.
    pub margin: f64,
    /// Whether it stayed in to the end.
    pub stayed: bool,
    /// Whether it keeps the limits, and gains at least half of what is worth finding and more than the noise.
    pub promises: bool,
}

impl Racer {
    /// Makes a racer that has not run.
    pub fn new(point: Point, family: impl Into<String>) -> Racer {
        Racer { point, family: family.into(), left: None, gains: Vec::new(), values: Vec::new(), margins: Vec::new() }
    }

    fn mean(&self) -> f64 {
        mean(&self.gains)
    }

    /// Returns the smallest mean margin, with the index of its limit.
    fn margin(&self) -> (usize, f64) {
        let limits = self.margins.first().map_or(0, Vec::len);
        let of = |i: usize| self.margins.iter().map(|m| m[i]).sum::<f64>() / self.margins.len() as f64;
        (0..limits).map(|i| (i, of(i))).min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, f64::INFINITY))
    }
}

fn mean(xs: &[f64]) -> f64 {
    xs.iter().sum::<f64>() / xs.len().max(1) as f64
}

/// The result of a race.
pub struct RaceResult {
    /// All points that ran, the best first.
    pub standings: Vec<Standing>,
    /// Whether the time ran out before the race was decided.
    pub cut_short: bool,
}

/// Runs a race of `racers` against `best`. Each race of a tuning has its own `salt`.
pub fn race(
    rec: &mut Recorder<'_>,
    rules: Rules<'_>,
    best: &Point,
    mut racers: Vec<Racer>,
    salt: u64,
) -> Result<RaceResult, Halt> {
    let mut cut_short = false;
    for racer in &mut racers {
        racer.left = rec.check(&racer.point).err().map(DropReason::Refused);
    }
    let rounds = rounds_for(&rules, racers.len());
    for round in 0..rounds {
        if racers.iter().all(|r| r.left.is_some() || is_settled(r, &racers, &rules)) {
            break;
        }
        if rec.status.spent >= rules.until {
            cut_short = true;
            break;
        }
        one_round(rec, &rules, best, &mut racers, splitmix64(rules.plan.seed ^ salt, u64::from(round)))?;
        let spread = spread(&racers, &rules);
        judge(&mut racers, &rules, spread);
    }
    let spread = spread(&racers, &rules);
    let mut standings: Vec<Standing> =
        racers.iter().filter(|r| !r.gains.is_empty()).map(|r| standing(r, spread, rules.worth)).collect();
    standings.sort_by(|a, b| (b.stayed, b.gain).partial_cmp(&(a.stayed, a.gain)).expect("finite gains"));
    Ok(RaceResult { standings, cut_short })
}

/// Returns the number of rounds after which a gain of `worth` is distinguishable from none.
fn rounds_for(rules: &Rules<'_>, racers: usize) -> u32 {
    let of_difference = rules.noise * (1.0 + 1.0 / f64::from(references(racers))).sqrt();
    // The best of k points without a gain is about sqrt(2 ln k) standard errors above zero by chance. Half of the gain
    // worth finding has to be above that.
    let luck = (2.0 * (racers.max(2) as f64).ln()).sqrt().max(LEAVE);
    let rounds = (2.0 * luck * of_difference / rules.worth.abs().max(1e-6)).powi(2).ceil();
    (rounds as u32).clamp(2, ROUNDS_MAX)
}

/// Returns how often the best point runs in a round. It runs several times, because its noise is part of every gain.
fn references(racers: usize) -> u32 {
    ((racers as f64).sqrt().round() as u32).clamp(1, 4)
}

/// The figures of a run that a race uses.
struct Figures {
    goal: f64,
    keeps: Vec<f64>,
}

/// Whether a run at `point` has all figures of the plan: a load may starve with one elevator and not with another.
pub fn has_figures(rec: &mut Recorder<'_>, plan: &TunePlan, point: &Point, length: Length) -> Result<bool, Halt> {
    let tried = rec.measure(Ask { point: point.clone(), length, load: None, entropy: plan.seed })?;
    Ok(tried.good().is_some_and(|r| Figures::of(r, plan).is_some()))
}

impl Figures {
    /// Takes the figures from a reading; `None` if one of them is missing.
    fn of(reading: &Reading, plan: &TunePlan) -> Option<Figures> {
        let keeps: Option<Vec<f64>> = plan.keeps.iter().map(|k| reading.get(&k.metric)).collect();
        Some(Figures { goal: reading.get(&plan.goal.metric)?, keeps: keeps? })
    }

    /// Geometric means of several runs; `None` without runs.
    fn mean(all: &[Figures]) -> Option<Figures> {
        let limits = all.first()?.keeps.len();
        let geometric = |of: &dyn Fn(&Figures) -> f64| mean(&all.iter().map(|f| of(f).ln()).collect::<Vec<_>>()).exp();
        Some(Figures { goal: geometric(&|f| f.goal), keeps: (0..limits).map(|k| geometric(&|f| f.keeps[k])).collect() })
    }
}

fn one_round(
    rec: &mut Recorder<'_>,
    rules: &Rules<'_>,
    best: &Point,
    racers: &mut [Racer],
    seed: u64,
) -> Result<(), Halt> {
    /// An entry of a round: the default, the best point, or a racer.
    #[derive(Clone, Copy)]
    enum Entrant {
        Default,
        Best,
        Racer(usize),
    }
    let live: Vec<usize> =
        (0..racers.len()).filter(|&i| racers[i].left.is_none() && !is_settled(&racers[i], racers, rules)).collect();
    let mut order: Vec<Entrant> = live.iter().map(|&i| Entrant::Racer(i)).collect();
    order.extend((0..references(live.len())).map(|_| Entrant::Best));
    if rules.with_default && !best.is_empty() {
        order.extend([Entrant::Default, Entrant::Default]);
    }
    Shuffle::new(seed).shuffle(&mut order);
    let goal = &rules.plan.goal;
    let keeps = &rules.plan.keeps;
    let (mut bests, mut defaults, mut found) = (Vec::new(), Vec::new(), Vec::new());
    for entrant in order {
        let point = match entrant {
            Entrant::Default => Point::default(),
            Entrant::Best => best.clone(),
            Entrant::Racer(i) => racers[i].point.clone(),
        };
        let tried = rec.measure(Ask { point, length: rules.length, load: None, entropy: seed })?;
        let values = tried.good().and_then(|r| Figures::of(r, rules.plan));
        match (entrant, values) {
            (Entrant::Default, Some(v)) => defaults.push(v),
            (Entrant::Best, Some(v)) => bests.push(v),
            (Entrant::Racer(i), Some(v)) => found.push((i, v)),
            (Entrant::Racer(i), None) => {
                racers[i].left = Some(match tried {
                    super::journal::Tried::Refused(why) => DropReason::Refused(why),
                    super::journal::Tried::Read(_) => DropReason::Errors,
                });
            }
            // The default and the best point ran before. A run of them that fails now is left out of the mean.
            (Entrant::Default | Entrant::Best, None) => {}
        }
    }
    let fails = |point: &Point| {
        Halt::Failed(format!("{point}: ran before and now fails; use mqblk run with these settings for details"))
    };
    let nothing = Point::default();
    let reference = Figures::mean(&bests).ok_or_else(|| fails(best))?;
    let default = if rules.with_default && !best.is_empty() { &defaults } else { &bests };
    let default = Figures::mean(default).ok_or_else(|| fails(&nothing))?;
    for (i, found) in found {
        racers[i].gains.push(goal.gain(reference.goal, found.goal));
        racers[i].values.push(found.goal.ln());
        let margins = keeps.iter().zip(&default.keeps).zip(&found.keeps);
        racers[i].margins.push(margins.map(|((k, d), v)| k.margin(*d, *v)).collect());
    }
    Ok(())
}

/// Standard deviation of one gain, from all points and from the noise known before.
fn spread(racers: &[Racer], rules: &Rules<'_>) -> f64 {
    let prior = rules.noise * (1.0 + 1.0 / f64::from(references(racers.len()))).sqrt();
    let (mut sum, mut df) = (PRIOR_DF * prior * prior, PRIOR_DF);
    for racer in racers.iter().filter(|r| r.gains.len() > 1) {
        let m = racer.mean();
        sum += racer.gains.iter().map(|g| (g - m) * (g - m)).sum::<f64>();
        df += (racer.gains.len() - 1) as f64;
    }
    (sum / df).sqrt()
}

/// Standard error of the tightest limit's margin, from the margin's own spread. With fewer than four rounds the spread of
/// the goal is used instead.
fn margin_error(racer: &Racer, limit: usize, spread: f64) -> f64 {
    let xs: Vec<f64> = racer.margins.iter().map(|m| m[limit]).collect();
    let own = crate::stats::descriptive::stddev(&xs).filter(|_| xs.len() >= 4).unwrap_or(spread);
    own / (xs.len().max(1) as f64).sqrt()
}

fn judge(racers: &mut [Racer], rules: &Rules<'_>, spread: f64) {
    let error = |r: &Racer| spread / (r.gains.len().max(1) as f64).sqrt();
    let mut leaders: Vec<(String, f64)> = Vec::new();
    for r in racers.iter().filter(|r| r.left.is_none() && !r.gains.is_empty()) {
        let (limit, margin) = r.margin();
        if margin.is_finite() && margin + margin_error(r, limit, spread) < 0.0 {
            continue;
        }
        let low = r.mean() - CLEAR * error(r);
        match leaders.iter_mut().find(|(family, _)| *family == r.family) {
            Some((_, best)) => *best = best.max(low),
            None => leaders.push((r.family.clone(), low)),
        }
    }
    for r in racers.iter_mut().filter(|r| r.left.is_none() && !r.gains.is_empty()) {
        let (limit, margin) = r.margin();
        let lead = leaders.iter().find(|(family, _)| *family == r.family).map_or(f64::NEG_INFINITY, |(_, low)| *low);
        if margin.is_finite() && margin + CLEAR * margin_error(r, limit, spread) < 0.0 {
            r.left = Some(DropReason::NotKept);
        } else if r.mean() + LEAVE * error(r) < rules.worth / 2.0 {
            r.left = Some(DropReason::NotWorth);
        } else if r.mean() + CLEAR * error(r) < lead {
            r.left = Some(DropReason::Beaten);
        }
    }
}

/// Whether more rounds would change nothing: `racer` is clearly better than the best point, and no rival of its family is left.
fn is_settled(racer: &Racer, racers: &[Racer], rules: &Rules<'_>) -> bool {
    let rounds = racer.gains.len();
    let alone = racers.iter().all(|r| r.left.is_some() || r.family != racer.family || r.point == racer.point);
    let error = spread(racers, rules) / (rounds.max(1) as f64).sqrt();
    let (limit, margin) = racer.margin();
    let kept =
        !margin.is_finite() || margin > CLEAR * margin_error(racer, limit, error * (rounds.max(1) as f64).sqrt());
    rounds >= 2 && alone && kept && racer.mean() - CLEAR * error > rules.worth / 2.0
}

fn standing(r: &Racer, spread: f64, worth: f64) -> Standing {
    let (gain, margin) = (r.mean(), r.margin().1);
    let error = spread / (r.gains.len().max(1) as f64).sqrt();
    Standing {
        point: r.point.clone(),
        family: r.family.clone(),
        gain,
        value: mean(&r.values).exp(),
        error,
        margin,
        stayed: r.left.is_none(),
        promises: r.left.is_none() && margin >= 0.0 && gain > error.max(worth / 2.0),
    }
}
