// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Simulated virtual machines with databases as a bench: the number of IOThreads and virtqueues, and their mapping.
//!
//! The knobs are those of the machine file and of its rows. Rules of thumb: one IOThread (the most that a disk could have
//! before QEMU 9.0); four (as published for RHEL 9.4); eight; a virtqueue per vCPU (QEMU's default since 5.2); half the
//! vCPUs (as published); four virtqueues. Guarantees: those of [`super::bench`]. The same point and random number give the
//! same figures. Pairs of runs share no random numbers with other pairs. Does not: charge the host's CPU for a polling
//! thread, so polling is searched only on request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use host::error::Result;
use sim::machine::guest::{GuestsRun, RAMP_NS};
use sim::machine::guest_times::{Mapping, PARTS};
use sim::machine::jobs::JobsError;
use sim::scenario::build;

use super::bench::{Ask, Bench, BenchError, Length, Reading};
use super::objective::{ALL_JOBS, MetricId, Quantity};
use super::point::{Knob, Point};
use super::shuffle::splitmix64;
use crate::stage::{PartTime, StageFacts};
use crate::world::sim::guests::{GuestMachine, IOTHREADS, MAPPING, POLL_US, QUEUES};

/// Numbers of IOThreads to try.
const THREADS: [u32; 6] = [0, 1, 2, 4, 8, 16];
/// Polling times to try, microseconds. The longest before the last is QEMU's default.
const POLLS_US: [&str; 5] = ["0", "8", "16", "32.768", "100"];

/// A machine and its loads as a bench.
pub struct GuestBench {
    machine: GuestMachine,
    /// Settings of every run, including those of the file.
    base: Vec<(String, String)>,
    vcpus: u16,
    /// Virtual seconds of a short and a full run.
    seconds: (f64, f64),
    stop: Arc<AtomicBool>,
    /// The metric whose time is explained.
    goal: MetricId,
}

/// Rejects a metric that users of virtual machines do not have.
pub fn check_metric(flag: &str, metric: &MetricId) -> std::result::Result<(), String> {
    let has = matches!(
        metric.quantity,
        Quantity::Transactions | Quantity::TransactionsPerMinute | Quantity::TransactionMean | Quantity::TransactionP99
    );
    if !has {
        return Err(format!("{flag} {metric}: virtual machines run transactions: use tpm, tps, tx (mean) or tx_p99"));
    }
    if metric.job == ALL_JOBS {
        return Err(format!(
            "{flag} {metric}: user counts are simulated one at a time: name one of them, such as users10, and give \
             limits for others with --keep"
        ));
    }
    Ok(())
}

/// Whether a knob is searched only on request.
pub fn is_only_asked(name: &str) -> bool {
    name == POLL_US
}

impl GuestBench {
    /// Makes a bench. `settings` apply to every run.
    ///
    /// # Errors
    /// A setting that is not valid.
    pub fn new(
        machine: GuestMachine,
        settings: &[(String, String)],
        goal: &MetricId,
        seconds: (f64, f64),
        stop: Arc<AtomicBool>,
    ) -> Result<GuestBench> {
        let mut base = machine.now(settings)?;
        let others = settings.iter().filter(|(name, _)| !base.iter().any(|(known, _)| known == name));
        let others: Vec<(String, String)> = others.cloned().collect();
        base.extend(others);
        let vcpus = machine.vcpus(settings)?;
        Ok(GuestBench { machine, base, vcpus, seconds, stop, goal: goal.clone() })
    }

    /// Settings of every run. Together with a point, they are all that the owner of the machine has to set.
    pub fn base(&self) -> &[(String, String)] {
        &self.base
    }

    /// The machine's file.
    pub fn behind(&self) -> &str {
        self.machine.text()
    }

    fn settings(&self, point: &Point) -> Vec<(String, String)> {
        let mut all = self.base.clone();
        for (name, value) in point.iter() {
            all.retain(|(key, _)| key != name);
            all.push((name.to_owned(), value.to_owned()));
        }
        all
    }

    fn now(&self, name: &str) -> &str {
        self.base.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    fn queues(&self) -> Vec<u32> {
        let vcpus = u32::from(self.vcpus);
        let mut all: Vec<u32> = (0..16).map(|i| 1 << i).chain([vcpus / 2, vcpus]).collect();
        all.retain(|n| (1..=vcpus).contains(n));
        all.sort_unstable();
        all.dedup();
        all
    }

    fn simulate(&self, ask: &Ask, users: u32) -> std::result::Result<GuestsRun, BenchError> {
        let refused = |e: String| BenchError::Refused(e);
        let v = self.machine.with(&self.settings(&ask.point)).map_err(|e| refused(e.to_string()))?;
        let seconds = if ask.length == Length::Short { self.seconds.0 } else { self.seconds.1 };
        let seed = splitmix64(ask.entropy, users.into());
        let run = build::run_guests_for(&v.scenario, &v.row, users, (seconds * 1e9) as u64, seed, &self.stop);
        run.map_err(|e| match e {
            JobsError::Stopped => BenchError::Stopped,
            e => refused(e.to_string()),
        })
    }
}

impl Bench for GuestBench {
    fn jobs(&self) -> Vec<String> {
        self.machine.loads()
    }

    fn knobs(&self) -> Vec<Knob> {
        let queues = self.queues();
        let most = queues.last().copied().unwrap_or(1);
        vec![
            Knob::new(IOTHREADS, self.now(IOTHREADS), THREADS.into_iter().filter(|n| *n <= most)),
            Knob::new(QUEUES, self.now(QUEUES), queues),
            Knob::new(MAPPING, self.now(MAPPING), Mapping::ALL.map(|(name, _)| name)),
            Knob::new(POLL_US, self.now(POLL_US), POLLS_US),
        ]
    }

    fn rules(&self) -> Vec<(String, Point)> {
        let knobs = self.knobs();
        let of = |name: &str, value: u32| {
            let knob = knobs.iter().find(|k| k.name == name).expect("one of the table");
            Point::default().with(knob, &value.to_string())
        };
        let vcpus = u32::from(self.vcpus);
        [
            ("one IOThread", of(IOTHREADS, 1)),
            ("four IOThreads", of(IOTHREADS, 4)),
            ("eight IOThreads", of(IOTHREADS, 8)),
            ("a virtqueue per vCPU", of(QUEUES, vcpus)),
            ("half as many virtqueues as vCPUs", of(QUEUES, (vcpus / 2).max(1))),
            ("four virtqueues", of(QUEUES, vcpus.min(4))),
        ]
        .map(|(sentence, point)| (sentence.to_owned(), point))
        .to_vec()
    }

    fn seconds(&self, length: Length) -> Option<f64> {
        Some(if length == Length::Short { self.seconds.0 } else { self.seconds.1 })
    }

    fn check(&self, point: &Point) -> std::result::Result<(), String> {
        self.machine.with(&self.settings(point)).map(drop).map_err(|e| e.to_string())
    }

    fn run(&mut self, ask: &Ask, wanted: &[MetricId]) -> std::result::Result<Reading, BenchError> {
        if ask.load.is_some() {
            return Err(BenchError::Refused(
                "virtual machines run only the [guests] load of simulated users; remove the other load".to_owned(),
            ));
        }
        let began = Instant::now();
        let mut runs: BTreeMap<&str, GuestsRun> = BTreeMap::new();
        for load in wanted.iter().chain([&self.goal]).map(|m| m.job.as_str()) {
            if runs.contains_key(load) {
                continue;
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(BenchError::Stopped);
            }
            let users =
                self.machine.users_of(load).ok_or_else(|| BenchError::Failed(format!("{load}: no such users")))?;
            runs.insert(load, self.simulate(ask, users)?);
        }
        if !self.machine.is_as_read() {
            return Err(BenchError::Failed(
                "the machine file changed, so its runs cannot be compared; start again, or restore it and resume"
                    .to_owned(),
            ));
        }
        let values = wanted.iter().filter_map(|m| Some((m.to_string(), value(runs.get(m.job.as_str())?, m.quantity)?)));
        let virtual_seconds = (RAMP_NS as f64 / 1e9 + self.seconds(ask.length).unwrap_or(0.0)) * runs.len() as f64;
        Ok(Reading {
            values: values.collect(),
            seconds: began.elapsed().as_secs_f64(),
            virtual_seconds: Some(virtual_seconds),
            stages: runs.get(self.goal.job.as_str()).map(facts),
            ..Reading::default()
        })
    }
}

fn value(run: &GuestsRun, quantity: Quantity) -> Option<f64> {
    match quantity {
        Quantity::Transactions => Some(run.tps),
        Quantity::TransactionsPerMinute => Some(60.0 * run.tps),
        Quantity::TransactionMean => Some(run.tx_ns),
        Quantity::TransactionP99 => run.tx_p99_ns.map(|ns| ns as f64),
        _ => None,
    }
    .filter(|v| v.is_finite() && *v > 0.0)
}

fn facts(run: &GuestsRun) -> StageFacts {
    let n = run.times.transactions;
    let of = |(part, sum_ns): (&sim::machine::guest_times::Part, u64)| PartTime {
        name: part.name.to_owned(),
        means: part.means.to_owned(),
        sum_ns,
        n,
    };
    StageFacts { parts: PARTS.iter().zip(run.times.sums_ns).map(of).collect(), ..StageFacts::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: &str = "[machine]\nsockets = 1\ncores = 4\nthreads = 1\n[disk]\nsize_gib = 1\nread_us = 40\nwrite_us = 20\n[guests]\nvcpus = 4\n\
                           queues = 4\nusers = [2, 4]\nkick_us = 2\ninject_us = 4\ncpu_us = 40\nper_user_us = 0\nreads = 1\nwrites = 1\n\
                           main_loop = { serve_us = 5, wake_us = 60 }\niothread = { serve_us = 5, wake_us = 8, poll_us = 32 }\n";

    #[test]
    fn points_are_measured_and_explained_and_an_edit_ends_it() {
        let path = std::env::temp_dir().join(format!("mqblk-guests-{}.toml", std::process::id()));
        std::fs::write(&path, MACHINE).unwrap();
        let target = format!("sim:{}", path.display());
        let machine = GuestMachine::open(Some(&target)).unwrap().unwrap();
        let loads = machine.loads();
        let metric = |text: &str| MetricId::parse(text, &loads).unwrap();
        let wanted = ["users4.tpm", "users4.tps", "users2.tx", "users2.tx_p99"].map(metric);
        let base = [("iothreads".to_owned(), "1".to_owned()), ("disk.read_us".to_owned(), "50".to_owned())];
        let mut bench = GuestBench::new(machine, &base, &wanted[0], (0.05, 0.1), Arc::default()).unwrap();
        let text: Vec<String> =
            bench.knobs().iter().map(|k| format!("{}={}: {}", k.name, k.default, k.values.join(" "))).collect();
        assert_eq!(
            text,
            [
                "iothreads=1: 0 1 2 4",
                "guests.queues=4: 1 2 4",
                "guests.mapping=round-robin: round-robin blocks",
                "guests.iothread.poll_us=32: 0 8 16 32.768 100"
            ]
        );
        assert!(bench.rules().iter().any(|(rule, p)| rule == "one IOThread" && p.is_empty()), "it is so");
        let ask = |point: Point, entropy| Ask { point, length: Length::Short, load: None, entropy };
        let one = bench.run(&ask(Point::default(), 1), &wanted).unwrap();
        let [tpm, tps, tx, p99] = [0, 1, 2, 3].map(|i| one.get(&wanted[i]).unwrap());
        assert!((tpm / tps - 60.0).abs() < 1e-9 && p99 > tx && tx > 130_000.0, "{one:?}");
        let again = bench.run(&ask(Point::default(), 1), &wanted).unwrap();
        assert_eq!(one.values, again.values);
        assert_ne!(one.values, bench.run(&ask(Point::default(), 2), &wanted).unwrap().values, "another random number");
        let main_loop = bench.run(&ask(Point::of(&[("iothreads", "0")]), 1), &wanted).unwrap();
        let wake = |r: &Reading| r.stages.as_ref().unwrap().parts.iter().find(|p| p.name == "wake-up").unwrap().clone();
        assert!(wake(&main_loop).mean_ns() > wake(&one).mean_ns() && main_loop.get(&wanted[0]).unwrap() < tpm);
        assert!(bench.check(&Point::of(&[("guests.queues", "5")])).unwrap_err().contains("queues = 5 of 4 vCPUs"));
        std::fs::write(&path, MACHINE.replace("cpu_us = 40", "cpu_us = 41")).unwrap();
        let edited = bench.run(&ask(Point::default(), 1), &wanted);
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(edited, Err(BenchError::Failed(why)) if why.contains("the machine file changed")));
    }
}
