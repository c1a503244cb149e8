// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a starting point to a better one: changes of single knobs, combinations of changes, and pairs of knobs that interact.
//!
//! Guarantees: stops when no change promises a gain that is worth having and exceeds the noise. A model (the gains of single
//! changes add up as logarithms) is used only to omit pairs that it predicts to lose more than half. Does not: claim a
//! result; see [`super::race`].

use std::collections::BTreeMap;

use super::journal::{Halt, Recorder, TunePlan};
use super::point::{Knob, Point, tidy};
use super::race::{self, RaceResult, Racer, Rules, Standing};

/// Maximum number of rounds of changes.
const PASSES: u32 = 3;
/// Knobs that interact: how deep requests queue, and where.
const TOGETHER: [(&str, &str); 10] = [
    ("scheduler", "nr_requests"),
    ("scheduler", "queue_depth"),
    ("nr_requests", "queue_depth"),
    ("nr_hw_queues", "queue_depth"),
    ("nr_hw_queues", "scheduler"),
    ("iodepth", "queue_depth"),
    ("iodepth", "numjobs"),
    ("iothreads", "guests.queues"),
    ("iothreads", "guests.mapping"),
    ("iothreads", "guests.iothread.poll_us"),
];
/// Values of each knob that a pair tries.
const PAIR_VALUES: usize = 3;
/// Maximum number of pairs in a race.
const PAIRS_MAX: usize = 40;
/// Maximum number of single changes that are combined into one point.
const JOINED_MAX: usize = 5;
/// A pair that is predicted to lose more than this is left out. The value is a logarithm: a loss of half.
const HOPELESS: f64 = -0.7;
/// Share of the screening time after which climbing stops. The rest is for dropping settings that do not matter.
const CLIMB_SHARE: f64 = 0.8;

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
    /// Whether the time ran out.
    pub cut_short: bool,
}

impl<'a> Climb<'a> {
    /// Makes a climb that has tried nothing.
    pub const fn new(plan: &'a TunePlan, noise: f64, until: f64, salt: u64) -> Climb<'a> {
        Climb { plan, noise, until, salt, limit: until, gains: BTreeMap::new(), cut_short: false }
    }

    /// Returns the best point found from `start`, and its gain over `start` as screened.
    pub fn run(&mut self, rec: &mut Recorder<'_>, start: Point) -> Result<(Point, f64), Halt> {
        let (mut best, mut gain) = (start, 0.0);
        self.limit = rec.status.spent + CLIMB_SHARE * (self.until - rec.status.spent);
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
            self.told(rec, &best, gain);
            if !moved && tried_pairs_at.as_ref() == Some(&best) || self.cut_short {
                break;
            }
            if tried_pairs_at.as_ref() != Some(&best) {
                rec.status.phase = "screening, knobs that act together".to_owned();
                let raced = self.race(rec, &best, self.pairs(&best))?;
                if let Some(top) = raced.standings.iter().find(|s| s.promises) {
                    (best, gain) = (top.point.clone(), gain + top.gain);
                    self.told(rec, &best, gain);
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
        self.gains.extend(raced.standings.iter().map(|s| (s.point.to_string(), s.gain)));
        Ok(raced)
    }

    const fn race_rules(&self, worth: f64) -> Rules<'a> {
        let with_default = !self.plan.keeps.is_empty();
        Rules { plan: self.plan, noise: self.noise, worth, until: self.limit, with_default }
    }

    /// All changes of one knob.
    fn singles(&self, best: &Point) -> Vec<Racer> {
        let knobs = &self.plan.knobs;
        let exist = knobs.iter().filter(|k| k.exists_at(best, knobs));
        let moves = exist.flat_map(|k| {
            let values = k.values.iter().chain([&k.default]).filter(|v| *v != k.at(best));
            values.map(|v| Racer::new(tidy(&best.with(k, v), knobs), &k.name))
        });
        distinct(moves, best)
    }

    fn rules(&self, best: &Point) -> Vec<Racer> {
        let there: Vec<Point> = self.singles(best).into_iter().map(|r| r.point).collect();
        let points = self.plan.rules.iter().map(|(_, p)| p).filter(|p| !there.contains(p));
        distinct(points.map(|p| Racer::new(p.clone(), "rules of thumb")), best)
    }

    /// Changes of two knobs that interact.
    fn pairs(&self, best: &Point) -> Vec<Racer> {
        let knobs = &self.plan.knobs;
        let of = |name: &str| knobs.iter().find(|k| k.name == name && k.exists_at(best, knobs));
        let mut found = Vec::new();
        for (one, other) in TOGETHER {
            let (Some(one), Some(other)) = (of(one), of(other)) else { continue };
            for a in thinned(one, best) {
                for b in thinned(other, best) {
                    let point = tidy(&best.with(one, a).with(other, b), knobs);
                    let gain = |p: Point| self.gains.get(&tidy(&p, knobs).to_string()).copied().unwrap_or(0.0);
                    found.push((gain(best.with(one, a)) + gain(best.with(other, b)), point));
                }
            }
        }
        found.retain(|(predicted, _)| *predicted > HOPELESS);
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        let all = found.into_iter().map(|(_, point)| Racer::new(point, "pair"));
        let mut racers = distinct(all, best);
        racers.truncate(PAIRS_MAX);
        racers
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

    /// Returns the point without the settings that do not matter, and the names of those settings.
    pub fn minimal(&mut self, rec: &mut Recorder<'_>, point: Point) -> Result<(Point, Vec<String>), Halt> {
        let (mut point, mut dropped) = (point, Vec::new());
        self.limit = self.until;
        // A setting whose removal loses less than a third of the least gain worth finding is dropped.
        let loss = self.plan.detect.ln_1p() / 3.0;
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

/// Returns the first, middle and last of the values that are not in effect.
fn thinned<'k>(knob: &'k Knob, best: &Point) -> Vec<&'k str> {
    let values: Vec<&str> = knob.values.iter().map(String::as_str).filter(|v| *v != knob.at(best)).collect();
    if values.len() <= PAIR_VALUES {
        return values;
    }
    vec![values[0], values[values.len() / 2], values[values.len() - 1]]
}
