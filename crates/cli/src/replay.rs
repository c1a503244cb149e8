// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line as it can be repeated.

use host::secrets::without_secrets;
use lab::results::replay_command;

/// Returns the command line for repetition, without passwords. A name that is not UTF-8 is shown approximately.
pub fn command() -> String {
    let mut args: Vec<String> = std::env::args_os().map(|a| without_secrets(&a.to_string_lossy())).collect();
    if let Some(program) = args.first_mut() {
        *program = "mqblk".to_owned();
    }
    replay_command(&args)
}
