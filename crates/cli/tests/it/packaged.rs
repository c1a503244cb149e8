// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The other files of a package: completions, tried in each shell, and manual pages, which man(1) must accept.

use crate::common;

use common::Dir;

const MQBLK: &str = env!("CARGO_BIN_EXE_mqblk");

/// Returns the candidates that a shell offers for the last word.
fn offered(dir: &Dir, shell: &str, script: &str) -> Vec<String> {
    let program = std::path::Path::new(MQBLK).parent().unwrap();
    let path = format!("PATH={}:{}", program.display(), std::env::var("PATH").unwrap());
    // Without the startup files of the user.
    let plain = match shell {
        "fish" => "--no-config",
        "zsh" => "-f",
        _ => "--norc",
    };
    let done = dir.program("env", &[&path, shell, plain, "-c", script]).exits(0);
    // fish and zsh print a description after each candidate.
    let first = |line: &str| line.split(['\t', ':']).next().unwrap_or_default().to_owned();
    done.out.lines().map(first).collect()
}

#[test]
fn bash_completes_settings() {
    let dir = Dir::new("completion");
    let script = "source <(COMPLETE=bash mqblk)\n\
                  COMP_WORDS=(mqblk run --set scheduler=k) COMP_CWORD=3 COMP_TYPE=9\n\
                  _clap_complete_mqblk mqblk scheduler=k --set\n\
                  printf '%s\\n' \"${COMPREPLY[@]}\"";
    let found = offered(&dir, "bash", script);
    assert!(found.iter().any(|c| c.ends_with("kyber")), "{found:?}");
    assert!(!found.iter().any(|c| c.contains("none")), "{found:?}");
}

#[test]
fn fish_completes_settings() {
    let dir = Dir::new("completion");
    let found = offered(&dir, "fish", "COMPLETE=fish mqblk | source\ncomplete -C 'mqblk run --set mode='");
    assert_eq!(found, ["mode=mq", "mode=sq"]);
}

#[test]
fn zsh_completes_settings() {
    let dir = Dir::new("completion");
    // The completion system runs only in an interactive shell. This script passes the same words to the function.
    let script = "autoload -Uz compinit && compinit -D -u\n\
                  source <(COMPLETE=zsh mqblk)\n\
                  (( $+functions[_clap_dynamic_completer_mqblk] && $+_comps[mqblk] )) || exit 4\n\
                  _CLAP_COMPLETE_INDEX=3 _CLAP_IFS=$'\\n' COMPLETE=zsh mqblk -- mqblk run --set mode=";
    let found = offered(&dir, "zsh", script);
    assert_eq!(found, ["mode=mq", "mode=sq"]);
}

#[test]
fn a_running_daemons_disks_are_offered() {
    let dir = Dir::new("completion");
    let runtime = format!("export MQBLK_RUNTIME_DIR={}\n", dir.as_path().display());
    // A shell waits half a second for a daemon's answer, which may be too short on a busy machine.
    let script = "mqblk serve ram:size=1m > serve.out 2>&1 & serve=$!
                  export _CLAP_COMPLETE_INDEX=3 _CLAP_IFS=$'\\n' COMPLETE=bash
                  until found=$(mqblk -- mqblk ctl drain r) && [ -n \"$found\" ]; do kill -0 $serve || exit 3; sleep 0.01; done
                  kill -s TERM $serve; wait $serve && echo \"$found\"";
    let found = offered(&dir, "bash", &(runtime + script));
    assert_eq!(found, ["ram"]);
}

#[test]
fn manual_pages_have_no_warnings() {
    let dir = Dir::new("manual");
    std::fs::create_dir(dir.path("man")).unwrap();
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/serve.toml");
    dir.mqblk(&["manual", "man", "--example", example]).exits(0);
    let pages: Vec<_> = std::fs::read_dir(dir.path("man")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    for page in ["mqblk.1", "mqblk-run.1", "mqblk-ctl-list.1", "mqblk-job.5", "mqblk-serve.5", "mqblk-targets.7"] {
        assert!(pages.iter().any(|name| name == page), "no {page} in {pages:?}");
    }
    for page in &pages {
        let path = dir.path("man").join(page);
        let check = "LC_ALL=C.UTF-8 MANROFFSEQ='' MANWIDTH=120 man --warnings -E UTF-8 -l -Tutf8 -Z \"$1\" > out";
        let done = dir.program("sh", &["-c", check, "sh", path.to_str().unwrap()]).exits(0);
        assert_eq!(done.err, "", "{}", page.display());
    }
    dir.program("sh", &["-c", "MANWIDTH=120 man -l man/mqblk-job.5 | col -b"])
        .exits(0)
        .prints(&["iodepth=", "as in fio"]);
}
