// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon with a directory of its own, and commands to it. Tests add what only they need.

use super::{Dir, Done, Started};
use serde_json::Value;

/// A running `mqblk serve`.
pub struct Daemon {
    /// Its directory.
    pub dir: Dir,
    /// Its process.
    pub started: Started,
}

impl Daemon {
    /// Serves the configuration `serve.toml` of `dir`, with more arguments. The control socket is `ctl.sock` there.
    #[track_caller]
    pub fn start(dir: Dir, more: &[&str]) -> Daemon {
        let args = [&["serve", "serve.toml", "--control", "ctl.sock"], more].concat();
        let started = dir.start(&args, "serving on");
        Daemon { dir, started }
    }

    /// Runs `mqblk ctl` with these arguments.
    pub fn ctl(&self, args: &[&str]) -> Done {
        self.dir.mqblk(&[&["ctl", "--control", "ctl.sock"], args].concat())
    }

    /// Runs a command that must succeed. Returns its output.
    #[track_caller]
    pub fn done(&self, args: &[&str]) -> String {
        self.ctl(args).exits(0).out
    }

    /// Returns the JSON of a command.
    #[track_caller]
    pub fn json(&self, what: &str) -> Value {
        serde_json::from_str(&self.done(&[what, "--json"])).unwrap()
    }

    /// Runs a command that must be rejected with this text, and change nothing.
    #[track_caller]
    pub fn refused(&self, args: &[&str], text: &str) {
        let before = self.list_without_clients();
        let done = self.ctl(args).exits(2);
        assert!(done.err.contains(text), "'{text}' is missing in {done:?}");
        assert_eq!(self.list_without_clients(), before, "nothing was done");
    }

    /// Clients that have ended leave a little later.
    fn list_without_clients(&self) -> Value {
        let mut list = self.json("list");
        for export in list["exports"].as_array_mut().unwrap() {
            export.as_object_mut().unwrap().remove("connected");
        }
        list
    }

    /// Shuts it down. No socket of it is left.
    #[track_caller]
    pub fn ends(self) -> Done {
        self.done(&["shutdown"]);
        let done = self.started.ends().exits(0);
        let left: Vec<_> = self.dir.list().into_iter().filter(|f| f.ends_with(".sock")).collect();
        assert_eq!(left, [""; 0], "no socket is left");
        done
    }
}
