// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `vuclient`: load, verify or ask a vhost-user-blk server from the command line.
//!
//! Exit codes: 0 as expected, 1 data differs, 2 usage, connection or a server's error.

extern crate mqblk_vuclient as vuclient;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;
use vuclient::bench::Pattern;
use vuclient::raw::Raw;
use vuclient::{
    BenchOptions, BenchReport, Error, LeanOptions, NbdOptions, NbdReport, VerifyOptions, VerifyReport, bench, disk,
    lean, nbd, verify,
};

#[derive(Parser)]
#[command(name = "vuclient", about = "A VM-free vhost-user-blk client", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Closed-loop load: IOPS, latency, and the CPU time of this client
    Bench(BenchArgs),
    /// The load of bench by a driver that costs next to nothing: fixed chains, headers and buffers
    Lean(LeanArgs),
    /// Write, read back and compare; the data of the disk is lost
    Verify(VerifyArgs),
    /// Closed-loop load on an NBD server; one call sends as many requests as the last call received replies
    Nbd(NbdArgs),
    /// Show features and configuration of the device
    Info {
        /// The server's Unix socket
        socket: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "lower")]
enum Rw {
    Read,
    Write,
    RandRead,
    RandWrite,
}

/// What all load has.
#[derive(Args)]
struct LoadArgs {
    /// Requests in flight per queue or connection
    #[arg(long, default_value_t = 32)]
    iodepth: u32,
    /// Seconds to measure
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    runtime: f64,
    /// Bytes of a request: 512, 4k, 1m
    #[arg(long, default_value = "4k", value_parser = bytes)]
    bs: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl LoadArgs {
    fn runtime(&self) -> Duration {
        Duration::from_secs_f64(self.runtime)
    }

    /// Returns the bytes of a request, for clients that take at most 32 bits.
    fn short_block(&self) -> Result<u32, Error> {
        let bs = self.bs;
        u32::try_from(bs).map_err(|_| Error::Usage(format!("bs={bs}: must be less than 4g")))
    }

    /// Prints a report in the form that was asked for.
    fn show(&self, report: &BenchReport) -> Result<(), Error> {
        if self.json {
            return print_json(report);
        }
        print_bench(report);
        Ok(())
    }
}

#[derive(Args)]
struct BenchArgs {
    /// The server's Unix socket
    socket: String,
    /// Virtqueues, one thread each
    #[arg(long, default_value_t = 1)]
    queues: u32,
    #[command(flatten)]
    load: LoadArgs,
    /// Kind and order of requests
    #[arg(long, value_enum, default_value = "randread")]
    rw: Rw,
    /// Spin on the used ring instead of waiting for calls
    #[arg(long)]
    poll: bool,
    /// Drive all queues from one thread; needs --poll
    #[arg(long)]
    one_thread: bool,
    /// CPUs of the queues' threads, in turn: 0,1 [default: where the system puts them]
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Measure latency percentiles: one clock reading per batch
    #[arg(long)]
    lat: bool,
}

#[derive(Args)]
struct LeanArgs {
    /// The server's Unix socket
    socket: String,
    /// Virtqueues, one thread each
    #[arg(long, default_value_t = 1)]
    queues: u16,
    #[command(flatten)]
    load: LoadArgs,
    /// Write instead of read; the data of the disk is lost
    #[arg(long)]
    write: bool,
    /// Spin on the used ring instead of waiting for calls
    #[arg(long)]
    poll: bool,
    /// Use packed rings
    #[arg(long)]
    packed: bool,
    /// Use an indirect descriptor table for each chain
    #[arg(long)]
    indirect: bool,
    /// Control kicks and calls by the ring's flags, without EVENT_IDX
    #[arg(long)]
    no_event_idx: bool,
    /// Write header and status for each request, at random places of the disk
    #[arg(long)]
    rewrite: bool,
}

#[derive(Args)]
struct NbdArgs {
    /// The server's Unix socket
    socket: String,
    /// The export
    #[arg(long, default_value = "")]
    export: String,
    /// Connections, one thread each
    #[arg(long, default_value_t = 1)]
    connections: u32,
    #[command(flatten)]
    load: LoadArgs,
    /// Write instead of read; the data of the disk is lost
    #[arg(long)]
    write: bool,
}

#[derive(Args)]
struct VerifyArgs {
    /// The server's Unix socket
    socket: String,
    /// Virtqueues, each with its own part of the disk
    #[arg(long, default_value_t = 1)]
    queues: u32,
    /// Bytes of the disk to use, from its beginning; 0 for all
    #[arg(long, default_value = "0", value_parser = bytes)]
    size: u64,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Requests in flight per queue
    #[arg(long, default_value_t = 8)]
    iodepth: u32,
    /// Requests per queue
    #[arg(long, default_value_t = 1000)]
    requests: u64,
    /// Run for this many seconds instead of a number of requests
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// Spin on the used ring instead of waiting for calls
    #[arg(long)]
    poll: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Bench(args) => run_bench(&args),
        Command::Lean(args) => run_lean(&args),
        Command::Verify(args) => run_verify(&args),
        Command::Nbd(args) => run_nbd(&args),
        Command::Info { socket, json } => run_info(&socket, json),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vuclient: {error}");
            ExitCode::from(if matches!(error, Error::Difference(_)) { 1 } else { 2 })
        }
    }
}

fn run_bench(args: &BenchArgs) -> Result<(), Error> {
    let options = BenchOptions {
        queues: args.queues,
        iodepth: args.load.iodepth,
        runtime: args.load.runtime(),
        block: args.load.bs,
        pattern: match args.rw {
            Rw::Read => Pattern::Read,
            Rw::Write => Pattern::Write,
            Rw::RandRead => Pattern::RandRead,
            Rw::RandWrite => Pattern::RandWrite,
        },
        poll: args.poll,
        one_thread: args.one_thread,
        latency: args.lat,
        cpus: args.cpus.clone(),
        ..BenchOptions::default()
    };
    args.load.show(&bench(&args.socket, &options)?)
}

fn run_lean(args: &LeanArgs) -> Result<(), Error> {
    let options = LeanOptions {
        queues: args.queues,
        iodepth: args.load.iodepth,
        runtime: args.load.runtime(),
        block: args.load.short_block()?,
        write: args.write,
        poll: args.poll,
        packed: args.packed,
        indirect: args.indirect,
        event_idx: !args.no_event_idx,
        rewrite: args.rewrite,
        ..LeanOptions::default()
    };
    args.load.show(&lean(&args.socket, &options)?)
}

fn print_bench(report: &BenchReport) {
    for (i, queue) in report.queues.iter().enumerate() {
        println!("queue {i}: {:.0} IOPS", queue.iops);
    }
    println!("all: {:.0} IOPS, mean latency {:.2} us (in flight / rate)", report.iops, report.little_mean_ns / 1e3);
    if let Some(latency) = &report.latency {
        let [p50, p90, p99, p999] = latency.percentiles.map(|ns| ns as f64 / 1e3);
        let (mean, max) = (latency.mean / 1e3, latency.max as f64 / 1e3);
        println!("latency us: mean {mean:.2}, p50 {p50:.2}, p90 {p90:.2}, p99 {p99:.2}, p99.9 {p999:.2}, max {max:.2}");
    }
    let requests: u64 = report.queues.iter().map(|queue| queue.requests).sum();
    let per_batch = requests as f64 / report.batches.max(1) as f64;
    let (cpu, each) = (report.client_cpu_seconds, report.client_cpu_ns_per_request);
    println!("client: {cpu:.2} s of CPU, {each:.0} ns per request, {per_batch:.1} requests per batch");
}

fn run_nbd(args: &NbdArgs) -> Result<(), Error> {
    let options = NbdOptions {
        export: args.export.clone(),
        connections: args.connections,
        iodepth: args.load.iodepth,
        block: args.load.short_block()?,
        write: args.write,
        runtime: args.load.runtime(),
    };
    let report = nbd(&args.socket, &options)?;
    if args.load.json {
        return print_json(&report);
    }
    let NbdReport { iops, requests, receives, client_cpu_ns_per_request: each } = report;
    let per_call = requests as f64 / receives.max(1) as f64;
    println!("{iops:.0} IOPS; client: {each:.0} ns of CPU per request, {per_call:.1} requests per call");
    Ok(())
}

fn run_verify(args: &VerifyArgs) -> Result<(), Error> {
    let options = VerifyOptions {
        queues: args.queues,
        size: args.size,
        seed: args.seed,
        iodepth: args.iodepth,
        requests: args.requests,
        time: args.seconds.map(Duration::from_secs_f64),
        poll: args.poll,
        ..VerifyOptions::default()
    };
    let report = verify(&args.socket, &options)?;
    if args.json {
        return print_json(&report);
    }
    let VerifyReport { reads, writes, write_zeroes, discards, flushes, compared } = report;
    println!("seed={}: no difference in {compared} bytes compared", args.seed);
    println!("{reads} reads, {writes} writes, {write_zeroes} write_zeroes, {discards} discards, {flushes} flushes");
    Ok(())
}

/// What `info` prints.
#[derive(Serialize)]
struct InfoReport {
    #[serde(flatten)]
    info: disk::Info,
    features: u64,
    protocol_features: u64,
}

fn run_info(socket: &str, json: bool) -> Result<(), Error> {
    let info = disk::info(socket)?;
    // blkio does not expose the feature bits.
    let mut raw = Raw::connect(socket)?;
    raw.set_owner()?;
    let told = InfoReport { info, features: raw.features()?, protocol_features: raw.protocol_features()? };
    if json {
        return print_json(&told);
    }
    let InfoReport { info, features, protocol_features } = told;
    println!("features            {features:#x}, protocol {protocol_features:#x}");
    println!("capacity            {}", info.capacity);
    println!("queues              up to {}", info.max_queues);
    println!("segments            up to {} of {} bytes (0: any)", info.max_segments, info.max_segment_len);
    println!("blocks              {} logical, {} physical", info.block_size, info.physical_block);
    println!("optimal I/O size    {}", info.optimal_io_size);
    println!("write cache         {}", if info.write_cache { "yes: FLUSH" } else { "no" });
    println!("DISCARD             {}, aligned to {}", feature(info.max_discard_len), info.discard_alignment);
    println!("WRITE_ZEROES        {}", feature(info.max_write_zeroes_len));
    println!("memory regions      up to {}", info.max_mem_regions);
    Ok(())
}

fn feature(most: u64) -> String {
    if most == 0 { "not offered".into() } else { format!("up to {most} bytes") }
}

fn print_json<T: Serialize>(value: &T) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Error::Usage(e.to_string()))?;
    println!("{text}");
    Ok(())
}

/// `512`, `4k`, `1m`, `2g`, powers of 1024.
fn bytes(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, shift) = match lower.as_bytes().last() {
        Some(b'k') => (&lower[..lower.len() - 1], 10),
        Some(b'm') => (&lower[..lower.len() - 1], 20),
        Some(b'g') => (&lower[..lower.len() - 1], 30),
        _ => (lower.as_str(), 0),
    };
    let number: u64 = digits.parse().map_err(|_| "must be a number of bytes, such as 512, 4k or 1m".to_string())?;
    number.checked_mul(1 << shift).ok_or_else(|| "must be less than 2^64 bytes".into())
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= 86_400.0 => Ok(value),
        _ => Err("must be more than 0 and at most 86400".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    /// All kinds of load take the common flags and reject the same values.
    #[test]
    fn every_load_takes_the_same_flags() {
        for kind in ["bench", "lean", "nbd"] {
            let parse = |more: &[&str]| Cli::try_parse_from([&["vuclient", kind, "a.sock"], more].concat());
            let load = |more: &[&str]| match parse(more).unwrap_or_else(|e| panic!("{kind}: {e}")).command {
                Command::Bench(BenchArgs { load, .. })
                | Command::Lean(LeanArgs { load, .. })
                | Command::Nbd(NbdArgs { load, .. }) => (load.iodepth, load.runtime, load.bs, load.json),
                _ => panic!("{kind} is no load"),
            };
            assert_eq!(load(&[]), (32, 2.0, 4096, false), "{kind}");
            let all = ["--iodepth=7", "--runtime=0.5", "--bs=64k", "--json"];
            assert_eq!(load(&all), (7, 0.5, 65536, true), "{kind}");
            assert!(parse(&["--runtime=0"]).is_err() && parse(&["--bs=x"]).is_err(), "{kind}");
        }
    }

    #[test]
    fn sizes_and_seconds_are_checked() {
        assert_eq!(bytes("512"), Ok(512));
        assert_eq!(bytes("4K"), Ok(4096));
        assert!(bytes("").is_err() && bytes("k").is_err() && bytes("99999999999g").is_err());
        assert!(seconds("0").is_err() && seconds("nan").is_err() && seconds("0.5").is_ok());
    }
}
