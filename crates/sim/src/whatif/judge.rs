// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the results of all members to an interval and a verdict for each figure.
//!
//! Guarantees: the answer is "better" or "worse" only if all members that describe the machine agree. Otherwise it is
//! "cannot tell", with the constant that decides it if there is one.

use super::{Plan, is_more_better};
use crate::scenario::outcome::RowOutcome;
use crate::scenario::unmodelled::Traffic;
use crate::scenario::why;
use serde::Serialize;

/// A smaller change counts as no effect.
const WORTH: f64 = 0.02;
/// A member with a figure further than this from the measured one describes another machine.
const DESCRIBES: f64 = 0.2;
/// Minimum share of members that have to describe the machine.
const MOST: f64 = 0.25;
/// From this correlation on, a constant is reported as the one that decides.
const DECIDES: f64 = 0.7;

/// The range of a figure over all members in use.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The least value.
    pub low: f64,
    /// The median.
    pub median: f64,
    /// The greatest value.
    pub high: f64,
}

impl Interval {
    /// Returns the interval of the values; `None` if there are none.
    pub fn of(values: impl Iterator<Item = f64>) -> Option<Interval> {
        let mut all: Vec<f64> = values.filter(|v| v.is_finite()).collect();
        all.sort_by(f64::total_cmp);
        let n = all.len();
        (n > 0).then(|| Interval { low: all[0], median: (all[(n - 1) / 2] + all[n / 2]) / 2.0, high: all[n - 1] })
    }
}

/// The verdict on a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The figure is better in all members.
    Better,
    /// The figure is worse in all members.
    Worse,
    /// Less than 2 % in all members.
    NoEffect,
    /// The members do not agree, or do not describe the machine.
    CannotTell,
}

/// The answer to one question for one figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FigureAnswer {
    /// `job.metric`.
    pub figure: String,
    /// What was measured on the real machine.
    pub measured: Option<f64>,
    /// The figure of the machine as it is.
    pub base: Interval,
    /// The figure of the changed machine.
    pub changed: Interval,
    /// By how much it changes, as a share: 0.1 = 10 % more.
    pub change: Interval,
    /// The verdict.
    pub verdict: Verdict,
    /// The verdict in a sentence.
    pub text: String,
    /// The constant on which the change depends most, if the members do not agree.
    pub decides: Option<String>,
}

/// The answer to one question.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// The question.
    pub what_if: String,
    /// Answers by figure.
    pub figures: Vec<FigureAnswer>,
    /// Reasons for the changes, from where requests spend their time.
    pub reasons: Vec<String>,
    /// Reasons for which there is no answer.
    pub cannot: Vec<String>,
    /// Settings without effect, each with the reason.
    pub no_effect: Vec<String>,
}

/// A figure of the machine as it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BaselineFigure {
    /// `job.metric`.
    pub figure: String,
    /// Measured on the real machine, if it was.
    pub measured: Option<f64>,
    /// Simulated over all members.
    pub simulated: Interval,
}

impl BaselineFigure {
    /// Returns the error of the median as a share: 0.1 = 10 % too high.
    pub fn error(&self) -> Option<f64> {
        self.measured.map(|m| self.simulated.median / m - 1.0)
    }
}

/// The answers to all questions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answers {
    /// Possible machines that were simulated.
    pub members: usize,
    /// Members that match what was measured.
    pub kept: usize,
    /// Whether the model describes the machine; `None`: nothing was measured of these jobs.
    pub describes: Option<bool>,
    /// Figures of the machine as it is, over all members.
    pub as_it_is: Vec<BaselineFigure>,
    /// Answers, in the order of the questions.
    pub answers: Vec<Answer>,
}

pub(super) fn judge(plan: &Plan, runs: &[RowOutcome]) -> Answers {
    let n = plan.variants.len();
    let members: Vec<&[RowOutcome]> = runs.chunks(n).collect();
    let measured = &plan.variants[0].scenario.measured;
    let figure = |row: &RowOutcome, name: &str| row.figures.iter().find(|f| f.name == name).map(|f| f.simulated);
    let names: Vec<&str> =
        members.first().map_or(Vec::new(), |m| m[0].figures.iter().map(|f| f.name.as_str()).collect());
    let names: Vec<&str> = names.into_iter().filter(|name| is_judged(name)).collect();
    let as_it_is: Vec<BaselineFigure> = names
        .iter()
        .filter_map(|name| {
            let simulated = Interval::of(members.iter().filter_map(|m| figure(&m[0], name)))?;
            Some(BaselineFigure { figure: (*name).into(), measured: measured.get(*name).copied(), simulated })
        })
        .collect();
    let fits = |m: &[RowOutcome]| {
        let mut compared = as_it_is.iter().filter_map(|f| Some((&f.figure, f.measured?)));
        compared.all(|(name, value)| figure(&m[0], name).is_some_and(|s| (s / value - 1.0).abs() <= DESCRIBES))
    };
    let kept: Vec<usize> = (0..members.len()).filter(|i| fits(members[*i])).collect();
    let is_compared = as_it_is.iter().any(|f| f.measured.is_some());
    let describes = is_compared.then_some(kept.len() >= 2 && kept.len() as f64 >= MOST * members.len() as f64);
    // Results of a model that describes another machine are shown, but no verdict is derived from them.
    let used: Vec<usize> = if describes == Some(false) { (0..members.len()).collect() } else { kept.clone() };
    let answers = (1..n).map(|v| answer(plan, &members, &used, v, &as_it_is, describes)).collect();
    Answers { members: members.len(), kept: kept.len(), describes, as_it_is, answers }
}

fn answer(
    plan: &Plan,
    members: &[&[RowOutcome]],
    used: &[usize],
    v: usize,
    as_it_is: &[BaselineFigure],
    describes: Option<bool>,
) -> Answer {
    let variant = &plan.variants[v];
    let cannot: Vec<String> = plan.cannot.iter().chain(&variant.cannot).cloned().collect();
    let mut answer = Answer {
        what_if: variant.row.name.clone(),
        figures: Vec::new(),
        reasons: Vec::new(),
        cannot,
        no_effect: Vec::new(),
    };
    let Some(first) = used.first().filter(|_| answer.cannot.is_empty()).map(|i| members[*i]) else { return answer };
    if let Some(why) = unmodelled(members, used, v) {
        answer.cannot.push(why);
        return answer;
    }
    answer.no_effect = first[v].no_effect.iter().filter(|t| !first[0].no_effect.contains(t)).cloned().collect();
    if describes == Some(false) {
        answer.cannot = misses(as_it_is);
    }
    for f in first[0].figures.iter().filter(|f| is_judged(&f.name)) {
        let pair = |i: &usize| {
            let of = |row: &RowOutcome| row.figures.iter().find(|g| g.name == f.name).map(|g| g.simulated);
            Some((of(&members[*i][0])?, of(&members[*i][v])?))
        };
        let pairs: Vec<(f64, f64)> = used.iter().filter_map(pair).collect();
        let changes: Vec<f64> = pairs.iter().map(|(a, b)| b / a - 1.0).filter(|c| c.is_finite()).collect();
        // If some of the members lack the figure, there is no verdict for all.
        let is_whole = changes.len() == used.len();
        let (Some(base), Some(changed), Some(change)) = (
            Interval::of(pairs.iter().map(|p| p.0)),
            Interval::of(pairs.iter().map(|p| p.1)),
            Interval::of(changes.iter().copied()),
        ) else {
            continue;
        };
        let verdict =
            if describes == Some(false) || !is_whole { Verdict::CannotTell } else { verdict(&f.name, &change) };
        let decides = (verdict == Verdict::CannotTell && describes != Some(false) && is_whole)
            .then(|| decides(plan, used, &changes))
            .flatten();
        let text = sentence(verdict, &change, decides.as_deref(), describes);
        let measured = plan.variants[0].scenario.measured.get(&f.name).copied();
        answer.figures.push(FigureAnswer {
            figure: f.name.clone(),
            measured,
            base,
            changed,
            change,
            verdict,
            text,
            decides,
        });
    }
    if describes != Some(false)
        && let Some(typical) = typical(members, used, v)
    {
        answer.reasons = why::reasons(&members[typical][0], &members[typical][v]);
    }
    answer
}

/// Returns why the difference depends on something that the model does not have, from the requests of all members.
fn unmodelled(members: &[&[RowOutcome]], used: &[usize], v: usize) -> Option<String> {
    let sum = |variant: usize| {
        let mut sum = Traffic::default();
        used.iter().for_each(|i| sum.add(&members[*i][variant].traffic));
        sum
    };
    let [base, changed] = [0, v].map(|variant| &members[used[0]][variant].name);
    sum(0).unmodelled(&sum(v), [base, changed])
}

/// Whether a figure is judged. A percentage has no useful relative change near 0.
fn is_judged(figure: &str) -> bool {
    !figure.ends_with("_pct")
}

/// Returns the member whose first figure changes by the median.
fn typical(members: &[&[RowOutcome]], used: &[usize], v: usize) -> Option<usize> {
    let change = |i: usize| Some(members[i][v].figures.first()?.simulated / members[i][0].figures.first()?.simulated);
    let mut all: Vec<(f64, usize)> = used.iter().filter_map(|i| Some((change(*i)?, *i))).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all.get(all.len() / 2).map(|(_, i)| *i)
}

fn misses(as_it_is: &[BaselineFigure]) -> Vec<String> {
    let off = as_it_is.iter().filter_map(|f| Some((f, f.measured?, f.error()?)));
    let texts: Vec<String> = off
        .filter(|(f, m, e)| e.abs() > DESCRIBES / 2.0 || f.simulated.low > *m || f.simulated.high < *m)
        .map(|(f, m, e)| {
            let (s, e) = (f.simulated.median, 100.0 * e);
            format!("{} is {s:.1} in the model, and {m:.1} was measured ({e:+.0} %)", f.figure)
        })
        .collect();
    let text = if texts.is_empty() { "no possible machine matches all measurements".into() } else { texts.join("; ") };
    vec![format!("the model does not describe this machine: {text}")]
}

fn verdict(figure: &str, change: &Interval) -> Verdict {
    let Interval { low, median, high } = *change;
    let better = is_more_better(figure);
    if low >= -WORTH && high <= WORTH {
        Verdict::NoEffect
    } else if low >= WORTH / 2.0 && median >= WORTH {
        if better { Verdict::Better } else { Verdict::Worse }
    } else if high <= -WORTH / 2.0 && median <= -WORTH {
        if better { Verdict::Worse } else { Verdict::Better }
    } else {
        Verdict::CannotTell
    }
}

fn sentence(verdict: Verdict, c: &Interval, decides: Option<&str>, describes: Option<bool>) -> String {
    let pct = |x: f64| 100.0 * x;
    let size = |word: &str| {
        let (a, b) = (pct(c.low).abs(), pct(c.high).abs());
        format!("{word} by {:.1} % [{:.1}, {:.1}]", pct(c.median).abs(), a.min(b), a.max(b))
    };
    match verdict {
        Verdict::Better => size("better"),
        Verdict::Worse => size("worse"),
        Verdict::NoEffect => format!("no effect [{:+.1} %, {:+.1} %]", pct(c.low), pct(c.high)),
        Verdict::CannotTell if describes == Some(false) => "cannot tell".into(),
        Verdict::CannotTell => {
            let by = decides.map_or(String::new(), |d| format!("; it depends on {d}, which is not known well enough"));
            format!("cannot tell: between {:+.1} % and {:+.1} %{by}", pct(c.low), pct(c.high))
        }
    }
}

/// Returns the constant that correlates most with the change.
fn decides(plan: &Plan, used: &[usize], changes: &[f64]) -> Option<String> {
    let correlation = |name: usize| {
        let x: Vec<f64> = used.iter().map(|i| plan.draws.value(*i, name).max(1e-9).ln()).collect();
        let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
        let (mx, my) = (mean(&x), mean(changes));
        let sum = |f: &dyn Fn(f64, f64) -> f64| x.iter().zip(changes).map(|(a, b)| f(a - mx, b - my)).sum::<f64>();
        let (xy, xx, yy) = (sum(&|a, b| a * b), sum(&|a, _| a * a), sum(&|_, b| b * b));
        if xx > 0.0 && yy > 0.0 { (xy / (xx * yy).sqrt()).abs() } else { 0.0 }
    };
    let all = (0..plan.draws.names.len()).map(|i| (correlation(i), i));
    let (r, i) = all.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (r >= DECIDES).then(|| plan.draws.names[i].clone())
}
