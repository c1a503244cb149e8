// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A machine that is a formula: settings have effects, alone and together, and every run has noise from a seed. It tests
//! the method, not a server. The true effects are known exactly, so a claim about them is right or wrong.

// Each test file uses only a part of this.
#![allow(dead_code, reason = "shared by several test programs")]

use lab::tune::bench::{Ask, Bench, BenchError, Length, Reading};
use lab::tune::journal::{self, Halt, Header, NoWatch, RunLine, TunePlan};
use lab::tune::objective::{Goal, Keep, MetricId, Quantity};
use lab::tune::outcome::TuneResult;
use lab::tune::point::{Knob, Point};
use lab::tune::search;
use sim::rng::Rng;

/// Uniform in (0, 1).
pub fn uniform(rng: &mut Rng) -> f64 {
    ((rng.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

/// Normally distributed, with mean 0 and standard deviation 1.
pub fn gauss(rng: &mut Rng) -> f64 {
    (-2.0 * uniform(rng).ln()).sqrt() * (std::f64::consts::TAU * uniform(rng)).cos()
}

/// A formula for the logarithms of two metrics of a point: the goal (`a.iops`) and the limit (`b.bw`).
pub type Effect = fn(&Point) -> (f64, f64);

pub struct Machine {
    pub effect: Effect,
    /// Standard deviation of ln(metric) for a full run. Short runs have twice that.
    pub noise: f64,
    /// How much ln(metric) falls per run.
    pub drift: f64,
    pub seed: u64,
    pub runs: u32,
    /// The machine stops at this run.
    pub dies_at: u32,
}

impl Machine {
    pub fn new(effect: Effect, noise: f64, seed: u64) -> Machine {
        Machine { effect, noise, drift: 0.0, seed, runs: 0, dies_at: u32::MAX }
    }

    /// Skips runs: noise and level depend only on the number of the run, as on a machine that made these runs before.
    pub fn skip(&mut self, runs: u32) {
        self.runs = runs;
    }
}

impl Bench for Machine {
    fn jobs(&self) -> Vec<String> {
        vec!["a".into(), "b".into()]
    }

    fn knobs(&self) -> Vec<Knob> {
        vec![
            Knob::new("nr_hw_queues", 8, [1, 2, 4, 8]),
            Knob::new("queue_depth", 64, [16, 32, 64, 128, 256]),
            Knob::new("nr_requests", 64, [32, 64, 128, 256]),
            Knob::new("scheduler", "none", ["none", "mq-deadline", "kyber", "bfq"]),
            Knob::new("nomerges", 0, [0, 1, 2]),
            Knob::new("rq_affinity", 1, [0, 1, 2]),
            Knob::new("max_sectors_kb", 1280, [64, 256, 1280]),
            Knob::new("wbt_lat_usec", 0, [0, 2000, 75000]),
            Knob::new("iosched.read_expire", 500, [125, 2000]).only_when("scheduler", "mq-deadline"),
        ]
    }

    fn rules(&self) -> Vec<(String, Point)> {
        let rule = |sentence: &str, queues| (sentence.to_owned(), Point::of(&[("nr_hw_queues", queues)]));
        vec![rule("one queue", "1"), rule("four queues", "4"), ("a queue per CPU".into(), Point::default())]
    }

    fn seconds(&self, _: Length) -> Option<f64> {
        None
    }

    fn check(&self, point: &Point) -> Result<(), String> {
        let tags: u32 = point.get("queue_depth").unwrap_or("64").parse().unwrap();
        let requests: u32 = point.get("nr_requests").unwrap_or("64").parse().unwrap();
        match point.get("scheduler") {
            None if requests > tags => {
                Err(format!("nr_requests={requests}: more than queue_depth={tags} without an elevator"))
            }
            _ => Ok(()),
        }
    }

    fn run(&mut self, ask: &Ask, wanted: &[MetricId]) -> Result<Reading, BenchError> {
        if self.runs >= self.dies_at {
            return Err(BenchError::Stopped);
        }
        self.runs += 1;
        if ask.load.is_some() {
            return Err(BenchError::Refused("no probes".into()));
        }
        self.check(&ask.point).map_err(BenchError::Refused)?;
        let (goal, kept) = (self.effect)(&ask.point);
        let spread = if ask.length == Length::Short { 2.0 * self.noise } else { self.noise };
        let mut rng = Rng::new(self.seed ^ (u64::from(self.runs) << 20));
        let level = -self.drift * f64::from(self.runs);
        let mut value = |effect: f64| (effect + level + spread * gauss(&mut rng)).exp();
        let of = |m: &MetricId, goal: f64, kept: f64| {
            let base = if m.job == "b" { kept } else { goal };
            if m.quantity.higher_is_better() { 1e5 * base } else { 1e6 / base }
        };
        let (goal, kept) = (value(goal), value(kept));
        let values = wanted.iter().map(|m| (m.to_string(), of(m, goal, kept))).collect();
        let seconds = if ask.length == Length::Short { 0.5 } else { 2.0 };
        Ok(Reading { values, seconds, job_cpu_percent: Some(30.0), ..Reading::default() })
    }
}

pub fn plan(keeps: &[&str], seed: u64) -> TunePlan {
    let machine = Machine::new(|_| (0.0, 0.0), 0.0, 0);
    let jobs = machine.jobs();
    TunePlan {
        goal: Goal { metric: MetricId { job: "a".into(), quantity: Quantity::Iops } },
        keeps: keeps.iter().map(|k| Keep::parse(k, &jobs).unwrap()).collect(),
        knobs: machine.knobs(),
        without_effect: Vec::new(),
        today: Vec::new(),
        rules: machine.rules(),
        base: Vec::new(),
        target: "synthetic".into(),
        behind: None,
        seed,
        budget_seconds: 1200.0,
        detect: 0.03,
        run_seconds: None,
        job: String::new(),
    }
}

/// Tunes `machine`. New lines are appended to `out`; `past` has the recorded runs.
pub fn tune_from(
    machine: &mut Machine,
    plan: &TunePlan,
    past: Vec<RunLine>,
    out: &mut Vec<u8>,
) -> Result<TuneResult, Halt> {
    if past.is_empty() && out.is_empty() {
        let header = Header {
            format: journal::FORMAT,
            setup: lab::setup::Setup::default(),
            command: "test".into(),
            plan: plan.clone(),
            started_unix_ms: 0,
        };
        journal::Recorder::begin(out, &header)?;
    }
    let mut watch = NoWatch;
    let mut rec = journal::Recorder::new(machine, &mut watch, out, past, plan);
    search::tune(plan, &mut rec)
}

pub fn tune(machine: &mut Machine, plan: &TunePlan) -> TuneResult {
    tune_from(machine, plan, Vec::new(), &mut Vec::new()).unwrap_or_else(|e| panic!("{e}, seed {}", plan.seed))
}
