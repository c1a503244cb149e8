// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The `mqblk` program: the command line becomes a request, the request a result, the result text or JSON and an exit status.
//!
//! Every subcommand follows the same steps: parse (`args`), resolve (job file, settings, sides: everything that can be refused without
//! opening a device), build and run (`lab`, `host`), report. Exit status: 0 done, 1 found what was asked for (I/O errors or bad data in a
//! run, a difference with `--exit-code`), 2 usage or operating error, 130 interrupted by a signal.

mod args;
mod command;
mod calibrate;
mod status;
mod exit;
mod job;
mod job_flags;
mod interrupt;
mod progress;
mod output;
mod run;
mod run_status;
mod compare;
mod trace_files;
mod tune;
mod report;
mod inspect;
mod machine_file;
mod profile;
mod replay;
mod connection_limit;
mod acceptor;
mod runtime_dir;
mod live;
mod serve;
mod multipath;
mod set;
mod sim;
mod restore;
mod cmdhelp;
mod completion;
mod manual;
mod discover;

use command::{Cli, Command, GUIDE};
use std::process::ExitCode;

fn main() -> ExitCode {
    completion::answer(Cli::full_command);
    host::process::raise_open_files();
    let typed = Cli::from_command_line();
    let Some(command) = &typed.command else {
        return exit::end(output::print(GUIDE).map(|()| status::Status::Done));
    };
    let done = match command {
        Command::Run(typed) => run::main(typed),
        Command::Compare(typed) => compare::Request::resolve(typed).and_then(compare::Request::execute),
        Command::Tune(typed) => tune::main(typed),
        Command::Report(typed) => report::main(typed),
        Command::Profile(typed) => profile::main(typed),
        Command::Inspect(typed) => inspect::main(typed),
        Command::Serve(typed) => serve::main(typed),
        Command::Ctl(typed) => serve::control::ctl::main(typed),
        Command::Top(typed) => serve::top::main(typed),
        Command::Multipath(typed) => multipath::main(typed),
        Command::Set(typed) => set::main(typed),
        Command::Restore(typed) => restore::main(typed),
        Command::Sim(typed) => sim::main(typed),
        Command::Calibrate(typed) => calibrate::main(typed),
        Command::Discover(typed) => discover::main(typed),
        Command::Cmdhelp(typed) => cmdhelp::main(typed),
        Command::Manual(typed) => manual::main(typed),
    };
    exit::end(done)
}
