// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that the commands of README.md and the guides in [`DOCUMENTS`] and [`LONG_DOCUMENTS`] work as described. Each line of their
//! `sh` fences runs; comparisons run shortened. A `text` fence after an `sh` fence quotes the output of the last command:
//! literally, or with other figures if these are measured. `cargo xtask bless` rewrites the quotes.
//!
//! Commands that build the program or run the tests do not run here, because these tests need them first. They must only be in a list.

use crate::common;

use common::{Dir, Done};
use std::fs;
use std::ops::Range;
use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The documents whose commands run.
const DOCUMENTS: [&str; 7] = [
    "README.md",
    "docs/targets.md",
    "docs/serve.md",
    "docs/library.md",
    "docs/performance.md",
    "docs/json.md",
    "docs/hard-disks.md",
];
/// Those whose commands measure or simulate for long, in the deep part.
const LONG_DOCUMENTS: [&str; 2] = ["docs/benchmark.md", "docs/simulate.md"];

/// The ways in which documents start the program. In this test, each becomes the built program.
const STARTS: [&str; 5] =
    ["cargo run --release --", "cargo run -r --", "./target/release/mqblk", "target/release/mqblk", "mqblk"];
/// Commands that do not run here. Those of fio are tested with its engine, and examples have their own tests.
const OTHERS: [&str; 8] =
    ["git clone ", "cd ", "cargo build", "cargo install", "cargo xtask ", "cargo run -p ", "rm ", "fio "];

/// Whether `cargo xtask bless` runs this: then the commands' outputs replace those in the documents.
fn is_blessing() -> bool {
    std::env::var_os("MQBLK_BLESS").is_some()
}

/// An `sh` fence, and the `text` fence directly after it, if there is one, with the output of its last command.
struct Example {
    commands: Vec<String>,
    /// The range of the document's lines with the output.
    output: Option<Range<usize>>,
}

/// The examples of a document. Continued lines are joined, comments and blank lines left out.
fn examples(lines: &[String]) -> Vec<Example> {
    let mut found: Vec<Example> = Vec::new();
    let mut at = 0;
    let end = |from: usize| from + lines[from..].iter().position(|line| line == "```").expect("a fence has an end");
    while at < lines.len() {
        if lines[at] == "```sh" {
            let close = end(at + 1);
            let text = lines[at + 1..close].join("\n").replace("\\\n", " ");
            let shown = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
            let commands = shown.flat_map(|line| line.split(" && ")).map(|c| c.trim().to_owned()).collect();
            let next = (close + 1..lines.len()).find(|i| !lines[*i].is_empty());
            let output = next.filter(|next| lines[*next] == "```text").map(|next| next + 1..end(next + 1));
            at = output.as_ref().map_or(close, |output| output.end);
            found.push(Example { commands, output });
        }
        at += 1;
    }
    found
}

/// Commands whose output has figures that differ from run to run.
fn is_measured(args: &str) -> bool {
    ["run", "compare", "tune", "top", "set"].contains(&args.split_whitespace().next().unwrap_or_default())
}

/// Returns the label of a line: its text up to a column, a colon or a figure. In a comparison, the first line is the verdict.
fn label(line: &str) -> &str {
    let text = line.trim_start();
    let end = text.find("  ").unwrap_or(text.len());
    let end = text.find(':').map_or(end, |colon| colon.min(end));
    let figure = text.char_indices().skip(1).find(|(_, c)| c.is_ascii_digit());
    text[..figure.map_or(end, |(at, _)| at.min(end))].trim_end()
}

/// Returns the printed lines that the quoted lines stand for, in order; `...` stands for any lines. Fails if `exact` lines are missing
/// or differ. Of measured lines, those that depend on the measurement may be missing, but at most half of all.
fn quoted<'a>(quote: &[String], printed: &'a str, exact: bool) -> Result<Vec<&'a str>, String> {
    let printed: Vec<&str> = printed.lines().map(str::trim_end).collect();
    let (mut found, mut at, mut gap, mut missing) = (Vec::new(), 0, false, 0);
    let lines = quote.iter().filter(|line| *line != "...").count();
    for (index, line) in quote.iter().enumerate() {
        if line == "..." {
            found.push("...");
            gap = true;
            continue;
        }
        let is_it = |candidate: &&str| match exact {
            true => *candidate == line,
            false => index == 0 || label(candidate) == label(line),
        };
        let most = if gap || !exact { printed.len() } else { (at + 1).min(printed.len()) };
        match (at..most).find(|i| is_it(&printed[*i])) {
            Some(next) => {
                found.push(printed[next]);
                at = next + 1;
            }
            None if exact || (missing + 1) * 2 > lines => return Err(format!("no line like '{line}'")),
            None => missing += 1,
        }
        gap = false;
    }
    match exact && !gap && at < printed.len() {
        true => Err(format!("'{}' is printed behind the quoted lines", printed[at])),
        false => Ok(found),
    }
}

fn run(dir: &Dir, command: &str, args: &str) -> Done {
    let short = match args.trim_start().starts_with("compare ") && !is_blessing() {
        true => " --runtime 30ms --pairs 10 --warmup 0",
        false => "",
    };
    let mqblk = format!("mqblk() {{ '{}' \"$@\"; }}; ", env!("CARGO_BIN_EXE_mqblk"));
    let first = args.split_whitespace().next().unwrap_or_default();
    let program = match first {
        // While a run exists that other tests do not see.
        "set" => format!(
            "export MQBLK_RUNTIME_DIR=$PWD; '{}' run examples/randread-null.fio --job-set runtime=60 > run.out & run=$!
             {mqblk} until mqblk inspect --live $run > live.out 2>&1; do kill -0 $run || exit 3; sleep 0.01; done
             mqblk {args}; status=$?; kill -s INT $run; wait $run; exit $status",
            env!("CARGO_BIN_EXE_mqblk")
        ),
        // While a separate daemon runs.
        "top" | "ctl" => format!(
            "export MQBLK_RUNTIME_DIR=$PWD; '{}' serve ram:size=1m > serve.out 2>&1 & serve=$!
             {mqblk} until mqblk ctl list > list.out 2>&1; do kill -0 $serve || exit 3; sleep 0.01; done
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

/// Runs the commands of the documents. Returns how many there were, and how many outputs are quoted.
fn run_all(documents: &[&str]) -> (u32, u32) {
    let (mut runs, mut quotes) = (0, 0);
    for document in documents {
        let path = Path::new(ROOT).join(document);
        let mut lines: Vec<String> = fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
        let dir = Dir::new("documents");
        for folder in ["examples", "scenarios"] {
            std::os::unix::fs::symlink(Path::new(ROOT).join(folder), dir.path(folder)).unwrap();
        }
        let examples = examples(&lines);
        assert!(!examples.is_empty(), "{document} shows no command");
        // From the end, so that the numbers of earlier lines stay valid.
        let mut blessed = Vec::new();
        for Example { commands, output } in examples {
            let mut last = None;
            for command in commands {
                let start = STARTS.iter().find_map(|s| command.strip_prefix(s));
                let Some(args) = start.filter(|rest| rest.starts_with(' ')) else {
                    let is_known = OTHERS.iter().any(|o| command.starts_with(o));
                    assert!(is_known, "{document}: how is '{command}' to be tested?");
                    last = None;
                    continue;
                };
                let printed = run(&dir, &command, args).out.replace(dir.as_path().to_str().unwrap(), "/vms");
                last = Some((command.clone(), is_measured(args), printed));
                runs += 1;
            }
            let (Some(output), Some((command, is_measured, printed))) = (output, last) else { continue };
            quotes += 1;
            let quote = &lines[output.clone()];
            let has_gap = quote.iter().any(|line| line == "...");
            let found = quoted(quote, &printed, !is_measured && !is_blessing());
            if is_blessing() && !has_gap {
                blessed.push((output, printed.lines().map(|line| line.trim_end().to_owned()).collect()));
                continue;
            }
            let found = found.unwrap_or_else(|e| panic!("{document}: {command}: {e} in\n{printed}"));
            blessed.push((output, found.into_iter().map(str::to_owned).collect::<Vec<_>>()));
        }
        if is_blessing() {
            for (output, text) in blessed.into_iter().rev() {
                lines.splice(output, text);
            }
            fs::write(&path, lines.join("\n") + "\n").unwrap();
        }
    }
    (runs, quotes)
}

#[test]
fn every_command_runs_and_prints_what_is_quoted() {
    let (runs, quotes) = run_all(&DOCUMENTS);
    assert!(runs >= 6 && quotes >= 2, "{DOCUMENTS:?} show {runs} commands of mqblk and {quotes} outputs");
}

#[test]
fn every_example_names_commands_that_are_understood() {
    let mut seen = 0;
    for entry in fs::read_dir(Path::new(ROOT).join("examples")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let comments: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix('#')).map(str::trim).collect();
        for command in comments.join("\n").replace("\\\n", " ").lines().filter(|l| l.starts_with("mqblk ")) {
            seen += 1;
            let dir = Dir::new("examples");
            std::os::unix::fs::symlink(Path::new(ROOT).join("examples"), dir.path("examples")).unwrap();
            // With small files and for 30 ms, because only the command is tested.
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

/// Returns the arguments that `run` also has, with the settings of side A.
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

/// Run by `cargo xtask test --deep`.
mod deep {
    use super::*;

    #[test]
    fn every_command_runs_and_prints_what_is_quoted() {
        let (runs, quotes) = run_all(&LONG_DOCUMENTS);
        assert!(runs >= 14 && quotes >= 2, "{LONG_DOCUMENTS:?} show {runs} commands of mqblk and {quotes} outputs");
    }
}
