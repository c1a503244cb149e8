// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that the bench rows work: fio must accept every job of every row.
//!
//! Needs fio. No figure is judged, because a thousand I/Os say nothing about speed.

use std::path::Path;
use std::process::{Command, Output};

fn bench(results: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["bench", "--smoke", "--results"])
        .arg(results)
        .args(arguments)
        .output()
        .expect("xtask runs")
}

/// Returns the output of the bench and the contents of its results file.
fn figures(output: &Output) -> (String, serde_json::Value) {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}\n{stderr}");
    let path =
        stdout.lines().find_map(|line| line.strip_prefix("raw figures: ")).expect("the place of the results is told");
    let text = std::fs::read_to_string(path).expect("the results are there");
    (stdout, serde_json::from_str(&text).expect("they are JSON"))
}

#[test]
fn an_unknown_row_is_a_usage_error() {
    let output = bench(Path::new("unused"), &["--rows", "nul"]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("--rows nul: must be one of"), "{stderr}");
}

/// Tests that take long. Run by `cargo xtask test --deep`.
mod deep {
    use super::*;

    #[test]
    fn every_row_runs_and_is_kept() {
        let results = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-control");
        let _ = std::fs::remove_dir_all(&results);
        let output = bench(&results, &["--control"]);
        let (stdout, value) = figures(&output);
        for row in ["null-qd32", "null-qd1", "mq-deadline", "file-qd32", "file-qd1"] {
            let ios = &value["rows"][row]["rounds"][0][0]["total_ios"];
            assert_eq!(ios.as_u64(), Some(1000), "{row}: {stdout}");
        }
    }

    /// No program can replace mqblk in rows of paths, so these rows run separately, with timeouts of a second.
    #[test]
    fn rows_of_paths_count_shares_and_gaps() {
        let results = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-paths");
        let _ = std::fs::remove_dir_all(&results);
        let rows = "multipath-unequal,multipath-unequal-4,multipath-stall";
        let (stdout, value) = figures(&bench(&results, &["--rows", rows]));
        let sides = |row: &str| value["rows"][row]["rounds"][0].as_array().cloned().unwrap_or_default();
        for (row, paths) in [("multipath-unequal", 2), ("multipath-unequal-4", 4)] {
            for side in sides(row) {
                let shares = side["paths"]["share_percent"].as_array().expect("each path has a share");
                let all: f64 = shares.iter().filter_map(serde_json::Value::as_f64).sum();
                assert!(shares.len() == paths && (all - 100.0).abs() < 1e-6, "{row}: {side}");
                assert_eq!(side["total_ios"].as_u64(), Some(1000), "{row}: {stdout}");
            }
            assert_eq!(sides(row).len(), 4, "{row}: {stdout}");
        }
        let pulled = sides("multipath-stall");
        assert_eq!(pulled.len(), 5, "{stdout}");
        for side in pulled {
            assert_eq!(side["stall"]["errors"].as_u64(), Some(0), "{side}");
            let comes_back = side["stall"]["gap_back_ms"].is_u64();
            assert_eq!(comes_back, side["side"] != "drop", "{side}");
        }
    }
}
