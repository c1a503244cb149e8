// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the shell commands of a job: `exec_prerun`, `exec_postrun`.
//!
//! Guarantees: the output of a command goes to `NAME.prerun.txt` or `NAME.postrun.txt` in the working directory, as with
//! fio. A command is killed when its job is to stop. Needs from callers: commands come only from the user's own job file or
//! command line.

use super::checkpoint::Live;
use crate::error::{Error, Result};
use std::fs::File;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use workload::job::{Job, JobCommands};
use workload::stats::EndedBy;

/// How often a running command is checked.
const CHECK: Duration = Duration::from_millis(10);

/// The commands of a job instance.
pub(super) struct Commands {
    commands: JobCommands,
    job: String,
}

impl Commands {
    /// Returns `None` for a job without commands.
    pub(super) fn of(job: &Job) -> Option<Box<Commands>> {
        let commands = Commands { commands: job.commands.clone(), job: job.name.clone() };
        (!job.commands.is_empty()).then(|| Box::new(commands))
    }

    /// Runs `exec_prerun`. Returns why the job is not to run.
    pub(super) fn before(&self, stop: &Arc<AtomicBool>, live: &Live) -> Result<Option<EndedBy>> {
        let Some(command) = &self.commands.prerun else { return Ok(None) };
        let status = self.run(command, "prerun", stop, live)?;
        let failed = || EndedBy::Prerun { command: command.clone(), status: status.to_string() };
        Ok((!status.success()).then(failed))
    }

    /// Runs `exec_postrun`. As in fio, its exit status does not matter.
    pub(super) fn after(&self, stop: &Arc<AtomicBool>, live: &Live) -> Result<()> {
        if let Some(command) = &self.commands.postrun {
            self.run(command, "postrun", stop, live)?;
        }
        Ok(())
    }

    fn run(&self, command: &str, mode: &str, stop: &Arc<AtomicBool>, live: &Live) -> Result<ExitStatus> {
        let name = format!("{}.{mode}.txt", self.job);
        let spawn = || {
            let output = File::create(&name)?;
            let (stdout, stderr) = (Stdio::from(output.try_clone()?), Stdio::from(output));
            Command::new("/bin/sh").args(["-c", command]).stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn()
        };
        let failed = |e| Error::os(e, format!("exec_{mode}={command}: cannot run it with its output in '{name}'"));
        let mut child = spawn().map_err(failed)?;
        wait(&mut child, &|| stop.load(Ordering::Relaxed) || live.stop.load(Ordering::Relaxed)).map_err(failed)
    }
}

/// Waits for the end of a command. Kills it when `is_stopped`.
fn wait(child: &mut Child, is_stopped: &dyn Fn() -> bool) -> std::io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if is_stopped() {
            child.kill()?;
            return child.wait();
        }
        std::thread::sleep(CHECK);
    }
}
