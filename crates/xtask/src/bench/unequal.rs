// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One run over paths of unequal speed: how a path selector distributes the I/O.
//!
//! Guarantees: the disk is one LUN of a tgtd. All paths to it are in one group and have a session each. Each path is a [`Link`] of its
//! own. All links have the same speed except the last, which is [`SLOWER`] times slower. A path's share is what its link has carried.
//! The links' threads use CPU of this machine, so the links are slow enough that they are the limit, and not the CPUs.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::beside::Tgtd;
use super::job::{self, Figures, Paths};
use super::link::Link;
use super::rows::Unequal;

/// Time between two responses of a fast path, which gives at most 2500 I/Os per second.
const FAST: Duration = Duration::from_micros(400);
/// Factor on that time for the last path.
const SLOWER: u32 = 10;

/// Runs a job once. Returns the figures, and the program's own report.
///
/// # Errors
/// A program does not start, fails, or prints no figures.
pub fn run(unequal: Unequal, job: &Path, mqblk: &Path, tgtd: &Tgtd) -> Result<(Figures, Value), String> {
    let speed = |n| if n + 1 == unequal.paths { FAST * SLOWER } else { FAST };
    let links: Vec<Link> =
        (0..unequal.paths).map(|n| Link::new(tgtd.port(), speed(n))).collect::<Result<_, String>>()?;
    let urls: Vec<String> = links.iter().map(|link| Tgtd::url_by(link.port()) + "?sessions=1").collect();
    let options = format!("path_grouping_policy=multibus,path_selector={}", unequal.selector);
    let mut command = Command::new(mqblk);
    command.arg("run").arg(job).args(["--json", "--target", &format!("multipath:{options}:{}", urls.join("+"))]);
    let output = command.output().map_err(|e| format!("cannot run {command:?}: {e}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}\n{}\nby {command:?}", output.status, said.trim()));
    }
    let result = job::parse(&String::from_utf8_lossy(&output.stdout))?;
    let mut figures = job::figures(&result)?;
    let carried: Vec<u64> = links.iter().map(Link::commands).collect();
    figures.paths = Some(paths(&result, &carried)?);
    Ok((figures, job::kept(result)))
}

fn paths(result: &Value, carried: &[u64]) -> Result<Paths, String> {
    let percentile = |which: &str| {
        let ns = result["jobs"][0]["read"]["clat_ns"]["percentile"][which].as_f64();
        ns.map(|ns| ns / 1e3).ok_or_else(|| format!("no percentile {which} in the result"))
    };
    let all: u64 = carried.iter().sum();
    let share_percent = carried.iter().map(|n| *n as f64 * 100.0 / all as f64).collect();
    Ok(Paths { p50_us: percentile("50.000000")?, p99_us: percentile("99.000000")?, share_percent })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn percentiles_and_shares_are_read() {
        let percentile = json!({"50.000000": 2000, "99.000000": 7500});
        let result = json!({"jobs": [{"read": {"clat_ns": {"percentile": percentile}}}]});
        let want = Paths { p50_us: 2.0, p99_us: 7.5, share_percent: vec![75.0, 25.0] };
        assert_eq!(paths(&result, &[300, 100]), Ok(want));
        assert!(paths(&json!({}), &[1]).unwrap_err().contains("50.000000"));
    }
}
