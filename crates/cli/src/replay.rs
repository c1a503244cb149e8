// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line as it can be repeated.

use host::secrets::without_secrets;
use lab::results::replay_command;

/// The command line, to be repeated, but for passwords; a name that is not text (UTF-8) is shown as well as text can.
pub fn command() -> String {
    let mut args: Vec<String> = std::env::args_os().map(|a| without_secrets(&a.to_string_lossy())).collect();
    if let Some(program) = args.first_mut() {
        *program = "mqblk".to_owned();
    }
    replay_command(&args)
}
