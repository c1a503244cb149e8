// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests fio's engine in the fio of each Debian: a job writes and verifies data in memory and in a file.
//!
//! Guarantees: the programs are Debian's own, in roots that have nothing else. A fio in sid that is newer than those the engine knows is
//! no failure, because this tree has not changed then; the check prints which it is. The engine must reject it with its message.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::programs::{Programs, unpack};
use super::release::{Release, make_directory};
use crate::tool;

/// Distributions and their versions of fio; `None` is the newest.
const SUITES: [(&str, Option<&str>); 3] = [("bookworm", Some("fio-3.33")), ("trixie", Some("fio-3.39")), ("sid", None)];

/// A mirror of sid may lag behind, so its list of packages may be expired. The links of a merged `/usr` are in `base-files`.
const ARGUMENTS: [&str; 3] =
    ["--variant=extract", "--include=fio,base-files", "--aptopt=Acquire::Check-Valid-Until \"false\""];

const JOB: &str = "[global]\nioengine=external:/opt/libmqblk_fio.so\nrw=randrw\nbs=4k\nsize=4m\niodepth=16\nverify=crc32c\n\
                   verify_fatal=1\n\n[ram]\nfilename=ram\\:size=4m?scheduler=mq-deadline\n\n\
                   [file]\nfilename=/opt/disk\ndirect=1\nthread\nnumjobs=2\nsize=2m\noffset_increment=2m\n";
/// Jobs of [`JOB`], `numjobs` included.
const JOBS: usize = 3;

/// Loads the engine in each fio.
///
/// # Errors
/// No mirror, or a fio in which a job fails.
pub fn check(release: &Release, programs: &Programs) -> Result<(), String> {
    for (suite, wanted) in SUITES {
        let root = release.dir.join(format!("fio-{suite}"));
        if wanted.is_none() && root.is_dir() {
            fs::remove_dir_all(&root).map_err(|e| format!("{}: {e}", root.display()))?;
        }
        if !root.is_dir() {
            println!("fetching the fio of Debian {suite}");
            unpack(&root, &[&ARGUMENTS[..], &[suite]].concat())?;
        }
        let version = tool::output(Command::new("chroot").arg(&root).args(["fio", "--version"]))?;
        let version = version.trim();
        if wanted.is_some_and(|wanted| wanted != version) {
            return Err(format!("Debian {suite} has {version}; {} was meant", wanted.unwrap_or_default()));
        }
        println!("the engine in the {version} of Debian {suite}");
        match run_job(&root, &programs.engine) {
            Err(said) if wanted.is_none() && is_unknown(version, &said) => {
                println!("    not known yet: crates/fio-engine/src/layout.rs needs its layout");
            }
            result => result?,
        }
    }
    Ok(())
}

/// Whether the engine rejected this version of fio, and not by mistake: those that it knows are named before it.
fn is_unknown(version: &str, said: &str) -> bool {
    let known = said.split_once(&format!("not {version}: engines depend on fio's internals")).map(|(before, _)| before);
    known.and_then(|before| before.rsplit_once("supports ")).is_some_and(|(_, known)| !known.contains(version))
}

/// Runs the job in a root.
fn run_job(root: &Path, engine: &Path) -> Result<(), String> {
    let place = root.join("opt");
    let _ = fs::remove_dir_all(&place);
    make_directory(&place)?;
    let fail = |e| format!("{}: {e}", place.display());
    fs::copy(engine, place.join("libmqblk_fio.so")).map_err(fail)?;
    fs::write(place.join("job.fio"), JOB).map_err(fail)?;
    let mut run = Command::new("timeout");
    run.args(["--kill-after=10", "120", "chroot"]).arg(root).args(["fio", "/opt/job.fio"]);
    let said = tool::output(&mut run)?;
    if said.matches("err= 0").count() == JOBS && said.contains("ioengine=mqblk") { Ok(()) } else { Err(said) }
}
