// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random cases from a seed, to be recorded and compared. The stack was not fitted to these cases.
//!
//! Guarantees: the same seed gives the same case, and each is one that the kernel accepts. The first two reads hold
//! the device so that what follows meets a queue, as in the cases written by hand.

use blk::elevator::{LeftOut, MqElevator};
use std::fmt::Write;

/// A generator of small numbers (SplitMix64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }

    fn percent(&mut self, p: u64) -> bool {
        self.below(100) < p
    }
}

/// The elevators that the kernel does not have.
const LEFT_OUT: [LeftOut; 1] = [(MqElevator::K2, "there is no kernel to record it on")];

/// The elevators of the cases.
pub const SCHEDULERS: [&str; 4] = MqElevator::names_without(&LEFT_OUT);

/// The elevators that a seed draws from; mq-deadline is drawn four times in seven.
const DRAWN: [MqElevator; 7] = {
    use MqElevator::{Bfq, Kyber, MqDeadline, None};
    [MqDeadline, MqDeadline, MqDeadline, MqDeadline, None, Kyber, Bfq]
};
const _: () = assert!(MqElevator::are_all(&DRAWN, &LEFT_OUT));

/// Returns the texts of `NAME.io` and `NAME.env`, for this elevator or for one that the seed selects.
pub fn case(seed: u64, scheduler: Option<&str>) -> (String, String) {
    let mut rng = Rng(seed);
    let drawn = rng.one_of(&DRAWN).name();
    let env = settings(&mut rng, scheduler.unwrap_or(drawn));
    (script(&mut rng, seed), env)
}

/// A tunable, how often it is set (percent), and to which values.
type Draw = (&'static str, u64, &'static [u64]);

const MQ_DEADLINE: [Draw; 6] = [
    ("fifo_batch", 30, &[1, 2, 4, 8]),
    ("writes_starved", 30, &[1, 3, 5]),
    ("read_expire", 30, &[100, 200, 300]),
    ("write_expire", 30, &[200, 500, 900]),
    ("prio_aging_expire", 30, &[100, 300, 1000]),
    ("front_merges", 20, &[0]),
];

const BFQ: [Draw; 9] = [
    ("fifo_expire_sync", 40, &[20, 60, 250, 1000]),
    ("timeout_sync", 30, &[20, 60, 248, 500]),
    ("slice_idle", 30, &[0, 1, 4, 20]),
    ("low_latency", 30, &[0]),
    ("max_budget", 25, &[8, 64, 256, 2048]),
    ("back_seek_max", 25, &[0, 64, 1024, 100_000]),
    ("back_seek_penalty", 25, &[1, 3, 8]),
    ("strict_guarantees", 15, &[1]),
    ("fifo_expire_async", 10, &[50]),
];

const KYBER: [Draw; 2] =
    [("read_lat_nsec", 30, &[100_000, 1_000_000, 50_000_000]), ("write_lat_nsec", 30, &[100_000, 50_000_000])];

fn settings(rng: &mut Rng, scheduler: &str) -> String {
    let depth = rng.one_of(&[1, 1, 1, 2, 4, 8, 16]);
    let nr = if scheduler == "none" { 0 } else { rng.one_of(&[0, 256, 256, 256, 8, 16, 32, 64]) };
    let queues = rng.one_of(&[1, 1, 1, 2, 4]);
    let mut tune = Vec::new();
    if scheduler == "mq-deadline" && rng.percent(60) {
        tune.push(format!("async_depth={}", if nr == 0 { 2 * depth } else { nr }));
    }
    let draws: &[Draw] = match MqElevator::named(scheduler) {
        Some(MqElevator::MqDeadline) => &MQ_DEADLINE,
        Some(MqElevator::Bfq) => &BFQ,
        Some(MqElevator::Kyber) => &KYBER,
        Some(MqElevator::None | MqElevator::K2) | None => &[],
    };
    for (name, percent, values) in draws {
        if rng.percent(*percent) {
            tune.push(format!("{name}={}", rng.one_of(values)));
        }
    }
    if rng.percent(15) {
        tune.push(format!("nomerges={}", rng.one_of(&[1, 2])));
    }
    if rng.percent(15) {
        tune.push(format!("max_sectors_kb={}", rng.one_of(&[4, 16, 60])));
    }
    let ms = rng.one_of(&[20, 40, 40, 40, 60]);
    format!(
        "NB=\"queue_mode=2 submit_queues={queues} hw_queue_depth={depth} irqmode=2 completion_nsec={ms}000000 gb=1\"\n\
         SCHED={scheduler}\nTUNE=\"{}\"\nNR={nr}\n",
        tune.join(" ")
    )
}

fn script(rng: &mut Rng, seed: u64) -> String {
    let mut text = format!("# seed {seed}\nR 0 8\ngo\nR 64 8\ngo\nsleep 3000\n");
    for _ in 0..1 + rng.below(4) {
        batch(rng, &mut text);
        match rng.below(3) {
            0 => {
                let _ = writeln!(text, "sleep {}", rng.one_of(&[10_000, 50_000, 110_000, 210_000, 2_500_000]));
            }
            1 => text += "wait\n",
            _ => {}
        }
    }
    text + "wait\n"
}

fn batch(rng: &mut Rng, text: &mut String) {
    let n = rng.one_of(&[10, 30, 60]);
    let span = rng.one_of(&[200_000, 2500, 250]);
    let lens: &[u64] =
        rng.one_of(&[&[8], &[8], &[8, 16], &[8, 16], &[8, 16, 32, 128], &[1, 3, 8], &[1, 3, 8], &[64, 254, 600]]);
    let (writes, prios, sequential) = (rng.one_of(&[20, 50, 80]), rng.percent(30), rng.percent(30));
    let mut sector = 8 * rng.below(100_000);
    for _ in 0..n {
        let len = rng.one_of(lens);
        if !sequential {
            sector = 8 * rng.below(span);
        }
        let op = if rng.percent(writes) { 'W' } else { 'R' };
        let prio = if prios { format!(" {} {}", 1 + rng.below(3), rng.one_of(&[0, 4, 7])) } else { String::new() };
        let _ = writeln!(text, "{op} {sector} {len}{prio}");
        sector += len;
    }
    *text += rng.one_of(&["go\n", "one\n", "one\n"]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::free::simulate;
    use crate::script::Script;
    use crate::settings::Settings;

    #[test]
    fn the_loop_device_is_compared_with_the_same_elevators() {
        // xtask depends on no crate of the library, so that it is built fast.
        let text = include_str!("../../xtask/src/oracle/loop_device.rs");
        let list = format!("const SCHEDULERS: [&str; {}] = {SCHEDULERS:?};", SCHEDULERS.len());
        assert!(text.contains(&list), "crates/xtask/src/oracle/loop_device.rs: {list}");
    }

    #[test]
    fn every_seed_is_a_case_that_runs() {
        for seed in 0..40 {
            let scheduler = SCHEDULERS.get(seed as usize % 5).copied();
            let (io, env) = case(seed, scheduler);
            assert_eq!((io.clone(), env.clone()), case(seed, scheduler));
            let script = Script::parse("io", &io).unwrap();
            let settings = Settings::parse("env", &env).unwrap();
            let events = simulate(&script, &settings, 1).unwrap();
            let queued = events.iter().filter(|e| e.kind == crate::event::Kind::Queue).count();
            assert_eq!(queued, script.ios.len(), "seed {seed}");
        }
    }
}
