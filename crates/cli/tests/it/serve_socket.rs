// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the control socket is when none is named, its permissions, and what other users can do about it.

use crate::common;

use common::{Dir, Done};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

/// Runs a script in a directory, in which `$mqblk` is the program.
fn script(dir: &Dir, text: &str) -> Done {
    let mqblk = format!("mqblk='{}'\n", env!("CARGO_BIN_EXE_mqblk"));
    dir.program("bash", &["-c", &(mqblk + text)])
}

#[test]
fn only_its_user_can_connect_whatever_the_umask() {
    let dir = Dir::new("socket-mode");
    let done = script(
        &dir,
        "umask 0; $mqblk serve ram:size=1m --control ctl.sock >out 2>&1 & serve=$!
         until $mqblk ctl --control ctl.sock list >list 2>&1; do kill -0 $serve || exit 3; sleep 0.01; done
         stat --format %a ctl.sock; kill -s TERM $serve; wait $serve",
    );
    assert_eq!(done.exits(0).out, "600\n");
}

/// Once, the default was below /tmp, where any user could make a directory of that name first.
#[test]
fn roots_default_is_below_run_and_nothing_is_made_in_tmp() {
    let dir = Dir::new("socket-run");
    let done = script(
        &dir,
        "unset XDG_RUNTIME_DIR MQBLK_RUNTIME_DIR; export TMPDIR=$PWD/tmp; mkdir tmp
         XDG_RUNTIME_DIR=$PWD/tmp $mqblk serve ram:size=1m >out 2>err & serve=$!
         until grep -q serving err; do kill -0 $serve || exit 3; sleep 0.01; done
         stat --format '%a %U' /run/mqblk /run/mqblk/serve-$serve.sock; ls tmp
         $mqblk ctl --control /run/mqblk/serve-$serve.sock shutdown; wait $serve",
    );
    assert_eq!(done.exits(0).out, "700 root\n600 root\nending\n");
}

#[test]
fn a_directory_that_others_could_use_is_rejected_before_exports() {
    let dir = Dir::new("socket-blocked");
    fs::create_dir_all(dir.path("run/mqblk")).unwrap();
    let mode = |name: &str, mode: u32| fs::set_permissions(dir.path(name), Permissions::from_mode(mode)).unwrap();
    let refused = |why: &str| {
        let run = dir.path("run");
        let serve = format!("MQBLK_RUNTIME_DIR='{}' $mqblk serve ram:size=1m", run.display());
        script(&dir, &serve).exits(2).says(&[why, "name a socket by --control"]);
        assert_eq!(dir.list(), ["run"], "no export has begun");
    };
    mode("run/mqblk", 0o755);
    refused("no other user may enter it (mode 0700)");
    mode("run/mqblk", 0o700);
    mode("run", 0o777);
    refused("others must not be able to write to it");
    mode("run", 0o755);
    fs::remove_dir(dir.path("run/mqblk")).unwrap();
    std::os::unix::fs::symlink("/", dir.path("run/mqblk")).unwrap();
    refused("must belong to user");
}

#[test]
fn without_a_session_a_user_names_a_socket() {
    let dir = Dir::public("socket-user");
    fs::copy(env!("CARGO_BIN_EXE_mqblk"), dir.path("mqblk")).unwrap();
    fs::set_permissions(dir.as_path(), Permissions::from_mode(0o777)).unwrap();
    let done = script(
        &dir,
        "unset XDG_RUNTIME_DIR MQBLK_RUNTIME_DIR
         setpriv --reuid 65534 --regid 65534 --clear-groups ./mqblk serve ram:size=1m",
    );
    done.exits(2).says(&["set $XDG_RUNTIME_DIR, or name a socket by --control"]);
    assert_eq!(dir.list(), ["mqblk"]);
}

/// Once, a daemon that was no longer root looked for the directory of another user.
#[test]
fn a_removed_socket_of_another_user_is_made_again() {
    let dir = Dir::new("socket-again");
    let done = script(
        &dir,
        "unset XDG_RUNTIME_DIR MQBLK_RUNTIME_DIR
         $mqblk serve ram:size=1m --user nobody >out 2>err & serve=$!
         until grep -q serving err; do kill -0 $serve || exit 3; sleep 0.01; done
         socket=/run/mqblk-uid-65534/serve-$serve.sock; rm $socket
         until grep -q removed err; do kill -0 $serve || exit 3; sleep 0.01; done
         kill -s HUP $serve
         until $mqblk ctl --control $socket list >/dev/null 2>&1; do kill -0 $serve || exit 3; sleep 0.01; done
         stat --format '%a %U' $socket
         $mqblk ctl --control $socket shutdown; wait $serve",
    );
    assert_eq!(done.exits(0).out, "600 nobody\nending\n");
}
