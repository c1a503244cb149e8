// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Ceph cluster that tests may use, if `MQBLK_TEST_CEPH` names its configuration (`cargo xtask ceph` does): images of their own, and
//! Ceph's programs.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Its configuration file; says why not.
pub fn conf() -> Option<PathBuf> {
    let conf = std::env::var_os("MQBLK_TEST_CEPH").map(PathBuf::from);
    if conf.is_none() {
        eprintln!("skipped: MQBLK_TEST_CEPH names no cluster; cargo xtask ceph runs this test on one");
    }
    conf
}

/// Runs a program for the cluster; what it prints.
#[track_caller]
pub fn program(name: &str, arguments: &[&str]) -> String {
    let conf = conf().expect("asked for before");
    let mut command = Command::new("timeout");
    command.args(["120", name]).args(arguments).env("CEPH_CONF", &conf);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{name} {arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// An image that is removed with the test.
pub struct CephImage {
    pub name: String,
}

impl CephImage {
    /// A new one with these features.
    pub fn new(bytes: u64, features: &str) -> CephImage {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("rbd/test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        program("rbd", &["create", "--size", &format!("{bytes}B"), "--image-feature", features, &name]);
        CephImage { name }
    }

    /// As a target, with options.
    pub fn target(&self, options: &str) -> String {
        let conf = conf().expect("asked for before");
        format!("rbd:{}:conf={}{options}", self.name, conf.display())
    }
}

impl Drop for CephImage {
    fn drop(&mut self) {
        if let Some(conf) = conf() {
            let mut command = Command::new("timeout");
            command.args(["30", "rbd", "--no-progress", "snap", "purge", &self.name]).env("CEPH_CONF", &conf);
            let _ = command.output();
            let mut command = Command::new("timeout");
            command.args(["60", "rbd", "--no-progress", "rm", &self.name]).env("CEPH_CONF", &conf);
            let _ = command.output();
        }
    }
}
