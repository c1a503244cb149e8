// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a starting point to a better one: changes of single knobs, combinations of changes, and pairs of knobs that interact.
//!
//! Guarantees: stops when no change promises a gain that is worth having and exceeds the noise. A model (the gains of single
//! changes add up as logarithms) is used only to omit pairs that it predicts to lose more than half. Does not: claim a
//! result; see [`super::race`].

use std::collections::BTreeMap;

use super::bench::Length;
use super::journal::{Halt, Recorder, TunePlan};
use super::point::{Knob, Point, tidy};
use super::race::{self, RaceResult, Racer, Rules, Standing};
use crate::verdict::NEGLIGIBLE;

/// Maximum number of rounds of changes. A climb ends earlier, after a round without a gain.
const PASSES: u32 = 8;
/// Groups of knobs that interact: how deep requests queue, and where; which thread serves which virtqueue. Each two of a group are
/// changed together.
const TOGETHER: [&[&str]; 2] = [
    &[
        "scheduler",
        "nr_requests",
        "queue_depth",
        "lun_queue_depth",
        "nr_hw_queues",
        "max_sectors_kb",
        "iodepth",
        "numjobs",
    ],
    &["iothreads", "guests.queues", "guests.mapping", "guests.iothread.poll_us"],
];
/// The knob that changes what all others do.
const ELEVATOR: &str = "scheduler";
/// Values of each knob that a pair tries.
const PAIR_VALUES: usize = 4;
/// Maximum number of points with two changes in a race.
const PAIRS_MAX: usize = 72;
/// Maximum number of single changes that are combined into one point.
const JOINED_MAX: usize = 5;
/// A pair that is predicted to lose more than this is left out. The value is a logarithm: a loss of half.
const HOPELESS: f64 = -0.7;
/// Points of each elevator that run in full before one of them is confirmed, if there are limits.
const FINALISTS: usize = 4;
/// Figures that differ less (a logarithm) are equal.
const EQUAL: f64 = 0.002;
/// Such a point may miss a limit by this much in short runs (a logarithm).
const NEAR_LIMIT: f64 = 0.05;
/// Share of the screening time after which climbing stops. The rest is for dropping settings that do not matter.
const CLIMB_SHARE: f64 = 0.8;
/// The same for the climbs with other elevators than the best.
const ELEVATORS_SHARE: f64 = 0.6;

/// A climb.
pub struct Climb<'a> {
    /// What is tuned.
    pub plan: &'a TunePlan,
    /// Standard deviation of ln(metric) from run to run.
    pub noise: f64,
    /// Seconds that screening may use.
    pub until: f64,
    /// Distinguishes the climbs of a tuning.
    pub salt: u64,
    /// Seconds at which climbing stops. The rest of the screening is for finding settings that do not matter.
    limit: f64,
    /// Gains of single changes, by label, from the last race that each was in.
    gains: BTreeMap<String, f64>,
    /// The change of the default that came nearest to a promise.
    pub nearest: Option<Standing>,
    /// Length of the runs.
    pub length: Length,
    /// Points that were measured near or within the limits, with the goal's metric.
    pub seen: Vec<(f64, Point)>,
    /// Whether the time ran out.
    pub cut_short: bool,
    /// Whether the climb under way does not change the elevator.
    keeps_elevator: bool,
}

impl<'a> Climb<'a> {
    /// Makes a climb that has tried nothing.
    pub const fn new(plan: &'a TunePlan, noise: f64, until: f64, salt: u64) -> Climb<'a> {
        Climb {
            plan,
            noise,
            until,
            salt,
            length: Length::Short,
            limit: until,
            gains: BTreeMap::new(),
            nearest: None,
            seen: Vec::new(),
            keeps_elevator: false,
            cut_short: false,
        }
    }

    /// Returns the best point found from `start`, and its gain over `start` as screened.
    pub fn run(&mut self, rec: &mut Recorder<'_>, start: Point) -> Result<(Point, f64), Halt> {
        let began = rec.status.spent;
        self.limit = began + CLIMB_SHARE * (self.until - began);
        let (mut best, mut gain) = self.climb(rec, start.clone())?;
        self.told(rec, &best, gain);
        // With another elevator all other knobs may have other best values, so each has a climb of its own.
        let knobs = &self.plan.knobs;
        let Some(elevator) = knobs.iter().find(|k| k.name == ELEVATOR).filter(|_| knobs.len() > 1) else {
            return Ok((best, gain));
        };
        let climbed = elevator.at(&best).to_owned();
        self.limit = began + ELEVATORS_SHARE * (self.until - began);
        for value in values_at(elevator, &best).iter().filter(|v| **v != climbed) {
            let from = tidy(&start.with(elevator, value), knobs);
            if self.cut_short || rec.check(&from).is_err() || !race::has_figures(rec, self.plan, &from, self.length)? {
                continue;
            }
            self.keeps_elevator = true;
            let climb = self.climb(rec, from);
            self.keeps_elevator = false;
            let (other, _) = climb?;
            if other == best || self.cut_short {
                continue;
            }
            rec.status.phase = format!("screening, best with {value}");
            let raced = self.race(rec, &best, vec![Racer::new(other, "elevators")])?;
            if let Some(top) = raced.standings.iter().find(|s| s.promises) {
                (best, gain) = (top.point.clone(), gain + top.gain);
                self.told(rec, &best, gain);
            }
        }
        Ok((best, gain))
    }

    /// The knobs that the climb may change at `best`.
    fn knobs(&self, best: &Point) -> impl Iterator<Item = &'a Knob> {
        let (knobs, keeps, best) = (&self.plan.knobs, self.keeps_elevator, best.clone());
        knobs.iter().filter(move |k| k.exists_at(&best, knobs) && !(keeps && k.name == ELEVATOR))
    }

    /// Climbs from `start` until a round of changes gains nothing.
    fn climb(&mut self, rec: &mut Recorder<'_>, start: Point) -> Result<(Point, f64), Halt> {
        let (mut best, mut gain) = (start, 0.0);
        let mut tried_pairs_at = None;
        for pass in 0..PASSES {
            rec.status.phase = format!("screening, pass {}", pass + 1);
            let mut racers = self.singles(&best);
            if pass == 0 {
                racers.extend(self.rules(&best));
            }
            let raced = self.race(rec, &best, racers)?;
            let (next, more) = self.join(rec, &best, &raced.standings)?;
            let moved = next != best;
            (best, gain) = (next, gain + more);
            if !moved && tried_pairs_at.as_ref() == Some(&best) || self.cut_short {
                break;
            }
            if tried_pairs_at.as_ref() != Some(&best) {
                rec.status.phase = "screening, knobs that act together".to_owned();
                let raced = self.race(rec, &best, self.pairs(&best))?;
                if let Some(top) = raced.standings.iter().find(|s| s.promises) {
                    (best, gain) = (top.point.clone(), gain + top.gain);
                } else if !moved {
                    break;
                }
                tried_pairs_at = Some(best.clone());
            }
        }
        Ok((best, gain))
    }

    fn told(&self, rec: &mut Recorder<'_>, best: &Point, gain: f64) {
        rec.status.best = best.clone();
        rec.status.gain = Some(gain);
    }

    /// Runs a race against `best`.
    fn race(&mut self, rec: &mut Recorder<'_>, best: &Point, racers: Vec<Racer>) -> Result<RaceResult, Halt> {
        self.salt += 1;
        let rules = self.race_rules(self.plan.detect.ln_1p());
        let raced = race::race(rec, rules, best, racers, self.salt)?;
        self.cut_short |= raced.cut_short;
        // By the lower end, because a lucky point of few runs is no candidate.
        let low = |s: &Standing| s.gain - s.error;
        let kept = raced.standings.iter().filter(|s| best.is_empty() && s.margin >= 0.0 && low(s) > NEGLIGIBLE);
        if let Some(top) = kept.max_by(|a, b| low(a).total_cmp(&low(b)))
            && self.nearest.as_ref().is_none_or(|n| low(n) < low(top))
        {
            self.nearest = Some(top.clone());
        }
        let near = raced.standings.iter().filter(|s| s.margin > -NEAR_LIMIT);
        self.seen.extend(near.map(|s| (s.value, s.point.clone())));
        self.gains.extend(raced.standings.iter().map(|s| (s.point.to_string(), s.gain)));
        Ok(raced)
    }

    const fn race_rules(&self, worth: f64) -> Rules<'a> {
        let with_default = !self.plan.keeps.is_empty();
        Rules { plan: self.plan, noise: self.noise, worth, until: self.limit, with_default, length: self.length }
    }

    /// All changes of one knob.
    fn singles(&self, best: &Point) -> Vec<Racer> {
        let knobs = &self.plan.knobs;
        let moves = self
            .knobs(best)
            .flat_map(|k| values_at(k, best).into_iter().map(|v| Racer::new(tidy(&best.with(k, &v), knobs), &k.name)));
        distinct(moves, best)
    }

    fn rules(&self, best: &Point) -> Vec<Racer> {
        let there: Vec<Point> = self.singles(best).into_iter().map(|r| r.point).collect();
        let may_change = |p: &Point| !self.keeps_elevator || p.get(ELEVATOR).is_none();
        let is_open = |p: &&Point| !there.contains(p) && may_change(p);
        let points = self.plan.rules.iter().map(|(_, p)| p).filter(is_open);
        distinct(points.map(|p| Racer::new(p.clone(), "rules of thumb")), best)
    }

    /// Changes of two knobs that interact.
    fn pairs(&self, best: &Point) -> Vec<Racer> {
        let of = |name: &str| self.knobs(best).find(|k| k.name == name);
        let (mut of_pairs, mut of_elevator): (Vec<Vec<(f64, Point)>>, usize) = (Vec::new(), 0);
        for group in TOGETHER {
            let there: Vec<&Knob> = group.iter().filter_map(|name| of(name)).collect();
            if there.first().is_some_and(|k| k.name == ELEVATOR) {
                of_elevator = there.len() - 1;
            }
            for (i, one) in there.iter().enumerate() {
                for other in &there[i + 1..] {
                    let mut found = self.pair(one, other, best);
                    found.retain(|(predicted, _)| *predicted > HOPELESS);
                    found.sort_by(|a, b| b.0.total_cmp(&a.0));
                    of_pairs.push(found);
                }
            }
        }
        // Gains of single changes do not predict an interaction: all pairs with the elevator come first, then the others by turns.
        let (first, others) = of_pairs.split_at(of_elevator);
        let longest = others.iter().map(Vec::len).max().unwrap_or(0);
        let turns = (0..longest).flat_map(|i| others.iter().filter_map(move |found| found.get(i)));
        let all = first.iter().flatten().chain(turns).map(|(_, point)| Racer::new(point.clone(), "pair"));
        let mut racers = distinct(all, best);
        racers.truncate(PAIRS_MAX);
        racers
    }

    /// Changes of two knobs, each with the gain that the single changes predict.
    fn pair(&self, one: &Knob, other: &Knob, best: &Point) -> Vec<(f64, Point)> {
        let knobs = &self.plan.knobs;
        let gain = |p: &Point| self.gains.get(&tidy(p, knobs).to_string()).copied().unwrap_or(0.0);
        let mut found = Vec::new();
        for a in self.thinned(one, best) {
            for b in self.thinned(other, best) {
                let predicted = gain(&best.with(one, &a)) + gain(&best.with(other, &b));
                found.push((predicted, tidy(&best.with(one, &a).with(other, &b), knobs)));
            }
        }
        found
    }

    /// Returns the values of a knob that pairs try: the first, the middle and the last of those that are not in effect, and
    /// the one that gained most alone.
    fn thinned(&self, knob: &Knob, best: &Point) -> Vec<String> {
        let values = values_at(knob, best);
        if values.len() <= PAIR_VALUES {
            return values;
        }
        let knobs = &self.plan.knobs;
        let gain = |v: &&String| self.gains.get(&tidy(&best.with(knob, v), knobs).to_string()).copied();
        let top = values.iter().max_by(|a, b| gain(a).partial_cmp(&gain(b)).expect("finite gains")).expect("values");
        let mut all = vec![&values[0], &values[values.len() / 2], &values[values.len() - 1]];
        if !all.contains(&top) {
            all.push(top);
        }
        all.into_iter().cloned().collect()
    }

    /// Returns the best of the promising changes, alone or combined.
    fn join(&mut self, rec: &mut Recorder<'_>, best: &Point, standings: &[Standing]) -> Result<(Point, f64), Halt> {
        let mut tops: Vec<&Standing> = Vec::new();
        for s in standings.iter().filter(|s| s.promises) {
            if tops.iter().all(|t| t.family != s.family) {
                tops.push(s);
            }
        }
        tops.truncate(JOINED_MAX);
        let Some(top) = tops.first() else { return Ok((best.clone(), 0.0)) };
        if tops.len() == 1 {
            return Ok((top.point.clone(), top.gain));
        }
        let knobs = &self.plan.knobs;
        let mut racers = vec![top.point.clone()];
        let mut joined = best.clone();
        for s in &tops {
            // Applies the changes of this point on top of the earlier ones.
            for knob in knobs.iter().filter(|k| k.at(&s.point) != k.at(best)) {
                joined = joined.with(knob, knob.at(&s.point));
            }
            joined = tidy(&joined, knobs);
            racers.push(joined.clone());
            racers.push(s.point.clone());
        }
        rec.status.phase = "screening, moves together".to_owned();
        let racers = distinct(racers.into_iter().map(|p| Racer::new(p, "together")), best);
        let raced = self.race(rec, best, racers)?;
        let found = raced.standings.iter().find(|s| s.promises);
        Ok(found.map_or_else(|| (top.point.clone(), top.gain), |s| (s.point.clone(), s.gain)))
    }

    /// Races the best points that were seen in full runs against `start`: a short run may keep a limit that a full one misses,
    /// and the other way round. Returns `start` if no other point promises a gain and keeps the limits.
    pub fn finals(&mut self, rec: &mut Recorder<'_>, start: &Point) -> Result<(Point, f64), Halt> {
        rec.status.phase = "the best points in full runs".to_owned();
        let racers = distinct(self.finalists().into_iter().map(|p| Racer::new(p, "finals")), start);
        self.salt += 1;
        self.limit = self.until;
        let rules = Rules { length: Length::Full, ..self.race_rules(self.plan.detect.ln_1p()) };
        let raced = race::race(rec, rules, start, racers, self.salt)?;
        self.cut_short |= raced.cut_short;
        let top = raced.standings.into_iter().find(|s| s.promises);
        Ok(top.map_or_else(|| (start.clone(), 0.0), |s| (s.point, s.gain)))
    }

    /// The best points that were seen, some of each elevator, because short runs flatter some elevators. Of points with equal
    /// figures, the one with the fewest settings.
    fn finalists(&mut self) -> Vec<Point> {
        let goal = &self.plan.goal;
        self.seen.sort_by(|a, b| goal.gain(a.0, b.0).total_cmp(&0.0).then(a.1.len().cmp(&b.1.len())));
        let mut chosen: Vec<(f64, Point)> = Vec::new();
        for (value, point) in &self.seen {
            let of_elevator = || chosen.iter().filter(|(_, p)| p.get(ELEVATOR) == point.get(ELEVATOR));
            let is_equal = of_elevator().any(|(v, _)| goal.gain(*v, *value).abs() < EQUAL);
            if !is_equal && of_elevator().count() < FINALISTS {
                chosen.push((*value, point.clone()));
            }
        }
        chosen.into_iter().map(|(_, point)| point).collect()
    }

    /// Returns the point without the settings that do not matter, and the names of those settings.
    pub fn minimal(&mut self, rec: &mut Recorder<'_>, point: Point) -> Result<(Point, Vec<String>), Halt> {
        let (mut point, mut dropped) = (point, Vec::new());
        self.limit = self.until;
        // A setting whose removal loses less than half of the least gain worth finding is dropped. No smaller gain let it in.
        let loss = self.plan.detect.ln_1p() / 2.0;
        while point.len() > 1 {
            rec.status.phase = "dropping settings that do not matter".to_owned();
            let knobs = &self.plan.knobs;
            let without = |name: &str| tidy(&point.without(name), knobs);
            let names: Vec<String> = point.iter().map(|(k, _)| k.to_owned()).collect();
            let racers = names.iter().map(|n| Racer::new(without(n), n)).collect();
            let raced = self.hold(rec, &point, racers, loss)?;
            let spare: Vec<&Standing> =
                raced.iter().filter(|s| s.stayed && s.margin >= 0.0 && s.gain > -loss).collect();
            let Some(first) = spare.first() else { break };
            let all = spare.iter().fold(point.clone(), |p, s| p.without(&s.family));
            let all = tidy(&all, knobs);
            let mut next = first.point.clone();
            if spare.len() > 1 && !all.is_empty() {
                let raced = self.hold(rec, &point, vec![Racer::new(all.clone(), "all")], loss)?;
                if raced.iter().any(|s| s.stayed && s.margin >= 0.0 && s.gain > -loss) {
                    next = all;
                }
            }
            dropped.extend(point.iter().filter(|(k, _)| next.get(k).is_none()).map(|(k, v)| format!("{k}={v}")));
            point = next;
        }
        Ok((point, dropped))
    }

    /// Runs a race in which a point only has to lose no more than `loss`.
    fn hold(
        &mut self,
        rec: &mut Recorder<'_>,
        best: &Point,
        racers: Vec<Racer>,
        loss: f64,
    ) -> Result<Vec<Standing>, Halt> {
        self.salt += 1;
        let raced = race::race(rec, self.race_rules(-2.0 * loss), best, racers, self.salt)?;
        self.cut_short |= raced.cut_short;
        Ok(raced.standings)
    }

    /// Number of points tried.
    pub fn points(&self) -> usize {
        self.gains.len()
    }
}

/// Returns each point once, without `best`.
fn distinct(racers: impl Iterator<Item = Racer>, best: &Point) -> Vec<Racer> {
    let mut found: Vec<Racer> = Vec::new();
    for racer in racers {
        if racer.point != *best && found.iter().all(|f| f.point != racer.point) {
            found.push(racer);
        }
    }
    found
}

/// Returns the values of a knob that are not in effect: those of its list, and half and twice the one in effect. The list
/// alone is for the first look around the default.
fn values_at(knob: &Knob, best: &Point) -> Vec<String> {
    let at = knob.at(best);
    let steps = if best.is_empty() { Vec::new() } else { knob.steps(at) };
    let mut all: Vec<String> = knob.values.iter().chain([&knob.default]).cloned().collect();
    all.extend(steps.iter().map(u64::to_string));
    all.retain(|v| v != at);
    if knob.range.is_some() {
        all.sort_by_key(|v| v.parse::<u64>().ok());
    }
    all.dedup();
    all
}
