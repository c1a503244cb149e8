// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs fio with the engine in a directory of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Seconds after which coreutils' `timeout` ends a fio that hangs. No test takes nearly as long.
const LIMIT_S: &str = "600";

/// Returns the path of the engine, which cargo puts next to the tests.
pub fn engine() -> String {
    let exe = std::env::current_exe().unwrap();
    let library = exe.parent().unwrap().join("libmqblk_fio.so");
    assert!(library.exists(), "{} is not there", library.display());
    format!("external:{}", library.display())
}

pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(test: &str) -> Dir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("fio-engine-{test}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn program(&self, program: &str, env: &[(&str, &str)], args: &[&str]) -> Done {
        let mut command = Command::new("timeout");
        command.args(["-k", "60", LIMIT_S, program]).args(args).current_dir(&self.0).stdin(Stdio::null());
        command.env_remove("MQBLK_SET").envs(env.iter().copied());
        let out = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Done { ok: out.status.success(), out: text(&out.stdout), err: text(&out.stderr) }
    }

    /// Runs fio with our engine and these options.
    pub fn fio_with(&self, env: &[(&str, &str)], args: &[&str]) -> Done {
        let engine = format!("--ioengine={}", engine());
        self.program("fio", env, &[&[engine.as_str()], args].concat())
    }

    pub fn fio(&self, args: &[&str]) -> Done {
        self.fio_with(&[], args)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[derive(Debug)]
pub struct Done {
    pub ok: bool,
    pub out: String,
    pub err: String,
}

impl Done {
    #[track_caller]
    pub fn well(self) -> Done {
        assert!(self.ok && !self.err.contains("mqblk:") && !self.out.contains("err=8"), "{}\n{}", self.out, self.err);
        self
    }

    #[track_caller]
    pub fn says(self, what: &str) -> Done {
        assert!(self.out.contains(what) || self.err.contains(what), "no '{what}' in\n{}\n{}", self.out, self.err);
        self
    }
}
