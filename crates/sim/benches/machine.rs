// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The speed of the simulation: simulated I/Os per second of one core, by number of simulated CPUs, and the time and memory
//! that one and eight large virtual machines take.
//!
//! `cargo bench -p mqblk-sim --bench machine`; without `--bench` a smoke test.

extern crate mqblk_sim as sim;

use sim::scenario::build;
use sim::scenario::file::{Row, Scenario};
use sim::study::{Study, base};
use workload::job::{JobFile, ParseContext};

fn row(set: &[(&str, &str)], vms: Option<u32>) -> Row {
    let word = |(k, v): &(&str, &str)| ((*k).to_owned(), sim::scenario::file::Scalar::Word((*v).to_owned()));
    Row { set: set.iter().map(word).collect(), vms, iothreads: vms.map(|_| 4), ..Row::named("bench") }
}

/// Random reads on all CPUs of a machine. Returns I/Os, events, and CPU seconds of this thread.
fn reads(cpus: u16, mode: &str, ios: u64) -> (u64, u64, f64) {
    let mut machine = base::default_of(Study::Cpus);
    machine.machine.sockets = cpus.div_ceil(32);
    machine.machine.cores = cpus.min(32);
    let us = (ios * 2200 / 1000 / u64::from(cpus)).max(200) * if mode == "sq" { u64::from(cpus).min(4) } else { 1 };
    let text = format!(
        "[b]\nrw=randread\nbs=4k\nioengine=libaio\ndirect=1\niodepth=32\nnumjobs={cpus}\nsize=1g\nnorandommap\ntime_based\nruntime={us}us\n"
    );
    let jobs = JobFile::parse_str(&text, &ParseContext::bare("bench"), &[]).expect("a job").jobs;
    let begun = cpu_seconds();
    let run = build::run(&machine, &row(&[("mode", mode)], None), &jobs, 1).expect("runs").run;
    (run.disk.ops[0].ios, run.events, cpu_seconds() - begun)
}

fn guests(vms: u32) -> (u64, f64) {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/rhel94-oracle.toml"));
    let machine = Scenario::parse("rhel94-oracle.toml", &text.expect("a scenario")).expect("good");
    let begun = cpu_seconds();
    let run = build::run_guests(&machine, &row(&[], Some(vms)), 100, 1).expect("runs");
    (run.ios, cpu_seconds() - begun)
}

/// CPU time of this thread. Other load on the machine affects it only through the caches.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    text.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).expect("a number") / 1e9
}

/// Peak memory of this process, MB.
fn peak_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kb = status.lines().find_map(|l| l.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    kb.unwrap_or(0.0) / 1024.0
}

fn main() {
    let full = std::env::args().any(|a| a == "--bench");
    let (ios, repeats) = if full { (2_000_000, 5) } else { (2_000, 1) };
    let only = std::env::args().nth(1).filter(|a| a.parse::<u16>().is_ok());
    println!("mode  CPUs     I/Os  events/I/O  M I/Os a second of one core: median [least, most]   peak MB");
    for mode in ["mq", "sq"] {
        for cpus in [1u16, 8, 64, 192, 256] {
            if only.as_ref().is_some_and(|o| *o != cpus.to_string()) {
                continue;
            }
            let runs: Vec<_> = (0..repeats).map(|_| reads(cpus, mode, ios)).collect();
            let mut rates: Vec<f64> = runs.iter().map(|(n, _, s)| *n as f64 / s / 1e6).collect();
            rates.sort_by(f64::total_cmp);
            let (n, events, _) = runs[0];
            let per = events as f64 / n as f64;
            let (low, mid, high) = (rates[0], rates[rates.len() / 2], rates[rates.len() - 1]);
            println!("{mode:4} {cpus:5} {n:8}  {per:10.2}  {mid:.2} [{low:.2}, {high:.2}]   {:.0}", peak_mb());
        }
    }
    for vms in if full { &[1, 8][..] } else { &[][..] } {
        let (n, seconds) = guests(*vms);
        println!(
            "{vms} VMs of 192 vCPUs, 100 users each, 4 IOThreads: {n} I/Os in {seconds:.2} s; peak {:.0} MB",
            peak_mb()
        );
    }
}
