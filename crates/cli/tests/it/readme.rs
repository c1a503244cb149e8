// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The commands of README.md and the guides in [`DOCUMENTS`] do what these say: each line of their `sh` fences runs, comparisons
//! with short runs.
//!
//! Commands that build the program or run the tests are what brought us here; they are only held against a list.

use crate::common;

use common::{Dir, Done};
use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The documents whose commands run.
const DOCUMENTS: [&str; 7] = [
    "README.md",
    "docs/benchmark.md",
    "docs/targets.md",
    "docs/serve.md",
    "docs/simulate.md",
    "docs/library.md",
    "docs/performance.md",
];

/// Ways to start the program, and `mqblk` as it is on the path of this test.
const STARTS: [&str; 5] =
    ["cargo run --release --", "cargo run -r --", "./target/release/mqblk", "target/release/mqblk", "mqblk"];
/// Commands that are not run here; those of fio are in the tests of its engine, and examples have tests of their own.
const OTHERS: [&str; 8] =
    ["git clone ", "cd ", "cargo build", "cargo install", "cargo xtask ", "cargo run -p ", "rm ", "fio "];

/// Commands in the `sh` fences, continued lines joined, comments and blank lines left out.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut inside = false;
    for line in text.replace("\\\n", " ").lines() {
        match (inside, line.trim()) {
            (false, "```sh") => inside = true,
            (true, "```") => inside = false,
            (true, line) if !line.is_empty() && !line.starts_with('#') => {
                found.extend(line.split(" && ").map(|c| c.trim().to_owned()));
            }
            _ => {}
        }
    }
    found
}

fn run(dir: &Dir, command: &str, args: &str) -> Done {
    let short = match args.trim_start().starts_with("compare ") {
        true => " --runtime 30ms --pairs 10 --warmup 0",
        false => "",
    };
    let mqblk = format!("mqblk() {{ '{}' \"$@\"; }}; ", env!("CARGO_BIN_EXE_mqblk"));
    let first = args.split_whitespace().next().unwrap_or_default();
    let program = match first {
        // Beside a run that other tests do not see.
        "set" => format!(
            "export XDG_RUNTIME_DIR=$PWD; '{}' run examples/randread-null.fio --job-set runtime=60 > run.out & run=$!
             {mqblk} until mqblk inspect --live $run > live.out 2>&1; do kill -0 $run || exit 3; done
             mqblk {args}; status=$?; kill -s INT $run; wait $run; exit $status",
            env!("CARGO_BIN_EXE_mqblk")
        ),
        // Beside a daemon of its own.
        "top" | "ctl" => format!(
            "export XDG_RUNTIME_DIR=$PWD; '{}' serve ram:size=1m > serve.out 2>&1 & serve=$!
             {mqblk} until mqblk ctl list > list.out 2>&1; do kill -0 $serve || exit 3; done
             mqblk {args}{}; status=$?; kill -s TERM $serve; wait $serve; exit $status",
            env!("CARGO_BIN_EXE_mqblk"),
            if first == "top" { " -n 1 -d 0.1" } else { "" }
        ),
        _ => format!("{mqblk} mqblk {args}{short}"),
    };
    let done = dir.program("bash", &["-c", &program]);
    assert_eq!(done.status, 0, "{command}\n{done:?}");
    done
}

#[test]
fn every_command_runs() {
    let mut runs = 0;
    for document in DOCUMENTS {
        let text = std::fs::read_to_string(Path::new(ROOT).join(document)).unwrap();
        let dir = Dir::new("readme");
        for folder in ["examples", "scenarios"] {
            std::os::unix::fs::symlink(Path::new(ROOT).join(folder), dir.path(folder)).unwrap();
        }
        let commands = commands(&text);
        assert!(!commands.is_empty(), "{document} shows no command");
        for command in commands {
            let start = STARTS.iter().find_map(|s| command.strip_prefix(s));
            let Some(args) = start.filter(|rest| rest.starts_with(' ')) else {
                let is_known = OTHERS.iter().any(|o| command.starts_with(o));
                assert!(is_known, "{document}: how is '{command}' to be tested?");
                continue;
            };
            run(&dir, &command, args);
            runs += 1;
        }
    }
    assert!(runs >= 20, "{DOCUMENTS:?} show {runs} commands of mqblk");
}

#[test]
fn every_example_names_commands_that_are_understood() {
    let mut seen = 0;
    for entry in std::fs::read_dir(Path::new(ROOT).join("examples")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let comments: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix('#')).map(str::trim).collect();
        for command in comments.join("\n").replace("\\\n", " ").lines().filter(|l| l.starts_with("mqblk ")) {
            seen += 1;
            let dir = Dir::new("examples");
            std::os::unix::fs::symlink(Path::new(ROOT).join("examples"), dir.path("examples")).unwrap();
            // Without space for files, and for 30 ms: what is tested is that the command is right.
            let small = match command.contains("--target") {
                true => "",
                false => " --target model:size=1g,iops=1000000,lat_us=100",
            };
            let short = if command.contains("--runtime") { "" } else { " --job-set runtime=30ms" };
            let line = match command.strip_prefix("mqblk compare ") {
                Some(args) => format!("run {}{small}{short}", without_sides(args)),
                None => format!("{}{small}{short}", &command["mqblk ".len()..]),
            };
            run(&dir, command, &line);
        }
    }
    assert!(seen >= 5, "the examples name {seen} commands");
}

/// The arguments that `run` has as well, with the settings of side A.
fn without_sides(args: &str) -> String {
    let mut out = Vec::new();
    let mut words = args.split_whitespace();
    while let Some(word) = words.next() {
        match word {
            "--a" => words.next().unwrap().split(',').for_each(|setting| out.extend(["--set", setting])),
            "--b" | "--judge" => drop(words.next()),
            "--runtime" => {
                words.next();
                out.extend(["--job-set", "runtime=30ms"]);
            }
            word => out.push(word),
        }
    }
    out.join(" ")
}
