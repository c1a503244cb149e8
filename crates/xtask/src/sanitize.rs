// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask sanitize`: the threaded tests under ThreadSanitizer and AddressSanitizer, the unsafe code under Miri.
//!
//! Guarantees: each tool has its own build directory and a nightly toolchain. If the toolchain lacks a tool, the command that installs
//! the tool is printed. That counts as a failure, because a check that did not run has not passed. docs/concurrency.md lists what has been
//! found and what each tool cannot see. Needs: `rustup` with a nightly toolchain, its `rust-src` (the standard library is instrumented,
//! too) and `miri`.

use std::path::PathBuf;
use std::process::Command;

use clap::ValueEnum;

use crate::outcome::Outcome;
use crate::project::Project;
use crate::step::{Found, Report, run_counted, step};

/// The target triple. Sanitizers need `--target`, because build scripts would be instrumented without it.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Tests with threads: of the core on a simulated disk, then whole runs and drivers on the machine.
const THREADED: [&[&str]; 3] = [
    &["--package", "mqblk-blk", "--test", "it", "--", "core_threads::", "core_tag_set_threads::", "core_races::"],
    &["--package", "mqblk-host", "--lib"],
    &[
        "--package",
        "mqblk-host",
        "--test",
        "it",
        "--",
        "run_queues::",
        "changes::",
        "driver_conformance::",
        "file_driver::",
    ],
];

/// Which tools.
#[derive(clap::Args)]
pub struct Options {
    /// Only this one.
    #[arg(long)]
    only: Option<Tool>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Tool {
    /// Data races.
    Thread,
    /// Memory used after it is freed or beyond its end.
    Address,
    /// Undefined behaviour, in code that Miri can interpret: of system calls, only memory mappings.
    Miri,
}

/// Runs the tools.
pub fn run(project: &Project, options: &Options) -> Outcome {
    let tools = Tool::value_variants().iter().filter(|t| options.only.is_none_or(|only| only == **t));
    let mut reports = Vec::new();
    for tool in tools {
        reports.push(step(tool.name(), || tool.run(project)));
    }
    println!();
    for Report { name, time, found: Found { ok, counts, .. } } in &reports {
        let word = if *ok { "ok" } else { "FAILED" };
        println!("{name:<18} {word:<7} {:>4} tests {:>8.1} s", counts.passed + counts.failed, time.as_secs_f64());
    }
    if reports.iter().all(|r| r.found.ok) { Outcome::Passed } else { Outcome::Failed }
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Tool::Thread => "ThreadSanitizer",
            Tool::Address => "AddressSanitizer",
            Tool::Miri => "Miri",
        }
    }

    fn run(self, project: &Project) -> Result<Found, String> {
        if let Some(missing) = self.missing() {
            return Err(format!("did not run: {missing}"));
        }
        let mut sum = Found::of(Outcome::Passed);
        for mut command in self.commands(project) {
            let mut found = run_counted(&mut command)?;
            found.ok &= found.counts.passed > 0;
            sum.add(found);
        }
        Ok(sum)
    }

    /// Returns what the toolchain lacks and the command that installs it.
    fn missing(self) -> Option<String> {
        let output = Command::new("rustup").args(["run", "nightly", "rustc", "--print", "sysroot"]).output();
        let Some(said) = output.ok().filter(|o| o.status.success()) else {
            return Some("there is no nightly toolchain; `rustup toolchain install nightly`".into());
        };
        let sysroot = PathBuf::from(String::from_utf8_lossy(&said.stdout).trim());
        let needed = [("rust-src", "lib/rustlib/src/rust/library"), ("miri", "bin/miri")];
        let parts = if self == Tool::Miri { &needed[..] } else { &needed[..1] };
        let (part, _) = parts.iter().find(|(_, path)| !sysroot.join(path).exists())?;
        Some(format!("the nightly toolchain has no {part}; `rustup component add {part} --toolchain nightly`"))
    }

    fn commands(self, project: &Project) -> Vec<Command> {
        let nightly = |tool: &str| {
            let mut command = Command::new("rustup");
            command.current_dir(&project.root).args(["run", "nightly", "cargo"]);
            command.env("CARGO_TARGET_DIR", project.target_directory.join(tool));
            // The cargo that started xtask has set these for its own toolchain.
            for name in ["RUSTUP_TOOLCHAIN", "CARGO", "RUSTC", "RUSTDOC", "CARGO_ENCODED_RUSTFLAGS"] {
                command.env_remove(name);
            }
            command
        };
        let sanitized = |tool: &str| {
            THREADED.map(|what| {
                let mut command = nightly(tool);
                command.env("RUSTFLAGS", format!("-Zsanitizer={tool}"));
                command.args(["test", "-Zbuild-std", "--target", TARGET, "--no-fail-fast"]).args(what);
                command
            })
        };
        match self {
            Tool::Thread => sanitized("thread").into(),
            Tool::Address => sanitized("address").into(),
            Tool::Miri => MIRI
                .iter()
                .map(|what| {
                    let mut command = nightly("miri");
                    command.env("MIRIFLAGS", MIRI_FLAGS).args(["miri", "test"]).args(*what);
                    command
                })
                .collect(),
        }
    }
}

/// `host::mem` maps memory by hand, and deadlines in tests use the machine's clock.
const MIRI_FLAGS: &str = "-Zmiri-disable-isolation -Zmiri-permissive-provenance";

/// Tests that Miri runs. Tests that need what Miri lacks are left out: `madvise`, copies in assembly, mappings of impossible size (which
/// abort it). So are tests of the tag allocator that sum over thousands of bits, because they would take minutes.
const MIRI: [&[&str]; 2] = [
    &[
        "--package",
        "mqblk-host",
        "--lib",
        "--",
        "mem::",
        "spin::a_taken",
        "--skip",
        "discard",
        "--skip",
        "impossible",
        "--skip",
        "io_reaches",
    ],
    &[
        "--package",
        "mqblk-blk",
        "--lib",
        "--",
        "sbitmap::word",
        "tags::",
        "hctx::",
        "plug::",
        "bio::",
        "--skip",
        "lowest_bits",
    ],
];
