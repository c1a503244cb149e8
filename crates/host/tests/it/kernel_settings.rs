// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settings of a loop device are restored by a drop, after a panic, and when the process exits at once.
//!
//! Needs root, losetup and loop devices.

use host::kernel::{Effect, KernelDevice, SettingsGuard, in_effect, plan, put_back_all, put_back_left, write_for_good};
use std::path::{Path, PathBuf};
use std::process::Command;

struct Loop(String, PathBuf);

impl Loop {
    fn new(name: &str) -> Loop {
        let file = std::env::temp_dir().join(format!("mqblk-{name}-{}.img", std::process::id()));
        std::fs::File::create(&file).unwrap().set_len(4 << 20).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&file).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let made = Loop(String::from_utf8(made.stdout).unwrap().trim().to_owned(), file);
        std::fs::write(format!("/sys/block/{}/queue/scheduler", made.0.trim_start_matches("/dev/")), "none").unwrap();
        made
    }

    fn device(&self) -> KernelDevice {
        KernelDevice::find(Path::new(&self.0)).unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).output();
        let _ = std::fs::remove_file(&self.1);
    }
}

fn apply(device: &KernelDevice) -> SettingsGuard {
    let asked = [("scheduler", "mq-deadline"), ("nomerges", "2"), ("iosched.fifo_batch", "3")];
    let asked: Vec<(String, String)> = asked.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let planned = plan(device, &asked, Effect::Any).unwrap();
    let (kept, said) = SettingsGuard::apply(device, &planned).unwrap();
    assert_eq!(said, Vec::<String>::new());
    let now = in_effect(device);
    assert!(asked.iter().all(|wanted| now.contains(wanted)), "{now:?}");
    kept.expect("something was changed")
}

#[test]
fn settings_are_put_back_however_it_ends() {
    let disk = Loop::new("kernel-settings");
    let device = disk.device();
    let before = in_effect(&device);
    assert_eq!(apply(&device).put_back(), Vec::<String>::new());
    assert_eq!(in_effect(&device), before);

    // Settings that are applied permanently, all or none, are not restored.
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    write_for_good(&device, &[pair("nomerges", "1"), pair("nr_requests", "99999999")], false).expect_err("too many");
    assert_eq!(in_effect(&device), before);
    assert_eq!(write_for_good(&device, &[pair("nomerges", "1")], false).unwrap(), Vec::<String>::new());
    assert!(in_effect(&device).contains(&pair("nomerges", "1")));
    assert_eq!(put_back_left(Some(&device)).unwrap(), (Vec::new(), true));
    assert!(in_effect(&device).contains(&pair("nomerges", "1")));
    write_for_good(&device, &[pair("nomerges", "0")], false).unwrap();
    assert_eq!(in_effect(&device), before);

    let kept = apply(&device);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _kept = kept;
        panic!("planned");
    }));
    assert!(panicked.is_err());
    assert_eq!(in_effect(&device), before);

    // The process is about to exit without running destructors.
    let kept = apply(&device);
    assert_eq!(put_back_all(), Vec::<String>::new());
    assert_eq!(in_effect(&device), before);
    drop(kept);

    // I/O is stuck: the settings are left and restored later.
    let said = apply(&device).leave();
    assert!(said.contains("mqblk restore"), "{said}");
    assert_ne!(in_effect(&device), before);
    let (said, whole) = put_back_left(Some(&device)).unwrap();
    assert!(whole && said.len() == 1 && said[0].contains("nomerges 2 -> 0"), "{said:?}");
    assert_eq!(in_effect(&device), before);
    assert_eq!(put_back_left(Some(&device)).unwrap(), (Vec::new(), true));

    // A setting that already has its value is not written.
    let same = [("scheduler".to_owned(), "none".to_owned())];
    let planned = plan(&device, &same, Effect::Any).unwrap();
    assert!(SettingsGuard::apply(&device, &planned).unwrap().0.is_none());
}
