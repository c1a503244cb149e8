// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shell completions: the shell calls the program, so candidates are those of this version and of a running daemon.
//!
//! `source <(COMPLETE=bash mqblk)` registers them; zsh and fish likewise. Guarantees: the shell waits [`PATIENCE`] at most for a piece of a
//! daemon's answer. Does not: print anything unless the shell asks.

use crate::serve::control::client;
use crate::serve::control::{Answer, Question};
use blk::settings::SETTINGS;
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use host::run::RUN_SETTINGS;
use std::ffi::OsStr;
use std::time::Duration;

/// Longest wait for a daemon's answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// Answers the shell and ends the program, if the shell asked.
pub fn answer(command: fn() -> clap::Command) {
    CompleteEnv::with_factory(command).complete();
}

/// `KEY=VALUE` of the block layer, several with a comma between them.
pub fn settings() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| current.to_str().map_or_else(Vec::new, setting_candidates))
}

/// Options of job files.
pub fn job_options() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let current = current.to_str().unwrap_or_default();
        let options = workload::job::options().filter(|o| o.name.starts_with(current));
        options.map(|o| CompletionCandidate::new(o.name).help(Some(o.help.into()))).collect()
    })
}

/// Disks of the only daemon of this user.
pub fn disks() -> ArgValueCompleter {
    of_daemon(&["disks"])
}

/// Exports of the only daemon of this user.
pub fn exports() -> ArgValueCompleter {
    of_daemon(&["exports"])
}

/// Exports and disks of the only daemon of this user.
pub fn exports_and_disks() -> ArgValueCompleter {
    of_daemon(&["exports", "disks"])
}

/// IOThreads of the only daemon of this user.
pub fn iothreads() -> ArgValueCompleter {
    of_daemon(&["iothreads"])
}

fn setting_candidates(current: &str) -> Vec<CompletionCandidate> {
    let (before, last) = current.split_at(current.rfind(',').map_or(0, |comma| comma + 1));
    let table = || SETTINGS.iter().chain(RUN_SETTINGS);
    match last.split_once('=') {
        None => table()
            .filter(|s| s.name.starts_with(last))
            .map(|s| CompletionCandidate::new(format!("{before}{}=", s.name)).help(Some(s.help.into())))
            .collect(),
        Some((key, value)) => table()
            .filter(|s| s.name == key)
            .flat_map(|s| words(s.range))
            .filter(|word| word.starts_with(value))
            .map(|word| CompletionCandidate::new(format!("{before}{key}={word}")))
            .collect(),
    }
}

/// The single values in a range as the table of settings has it: `none | kyber (mq), noop (sq)`, `-1 | 0..=100`.
fn words(range: &str) -> impl Iterator<Item = &str> {
    range
        .split(['|', ','])
        .map(|part| part.split('(').next().unwrap_or(part).trim())
        .map(|part| part.strip_prefix("or ").unwrap_or(part))
        .filter(|part| !part.is_empty() && !part.contains("..") && !part.contains(' '))
}

fn of_daemon(kinds: &'static [&'static str]) -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let current = current.to_str().unwrap_or_default();
        let list = client::find(None).and_then(|socket| client::ask_within(&socket, &Question::List {}, PATIENCE));
        let Ok(Answer::Ok(list)) = list else { return Vec::new() };
        let things = kinds.iter().flat_map(|kind| list[*kind].as_array().into_iter().flatten());
        let names = things.filter_map(|thing| thing["name"].as_str()).filter(|name| name.starts_with(current));
        names.map(CompletionCandidate::new).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(current: &str) -> Vec<String> {
        setting_candidates(current).iter().map(|c| c.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn settings_complete_by_key_then_by_value() {
        assert_eq!(values("sched"), ["scheduler="]);
        assert_eq!(values("mode="), ["mode=mq", "mode=sq"]);
        assert_eq!(values("mode=mq,scheduler=k"), ["mode=mq,scheduler=kyber", "mode=mq,scheduler=k2"]);
        assert_eq!(values("wbt_lat_usec="), ["wbt_lat_usec=-1"]);
        assert_eq!(values("read_ahead_kb="), ["read_ahead_kb=system"]);
        assert_eq!(values("queue_depth="), Vec::<String>::new());
    }

    #[test]
    fn every_elevator_is_offered() {
        let offered = values("scheduler=");
        for elevator in blk::elevator::MqElevator::ALL {
            let name = elevator.name();
            assert!(offered.contains(&format!("scheduler={name}")), "{name}");
        }
    }
}
