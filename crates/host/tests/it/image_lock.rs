// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The locks of `host::image_lock` and QEMU's own: each respects the other.

use host::error::ErrorKind;
use host::image_lock::ImageLock;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::File::create(dir.join("image")).unwrap().set_len(1 << 20).unwrap();
        Dir(dir)
    }

    fn image(&self) -> PathBuf {
        self.0.join("image")
    }

    fn run(&self, program: &str, args: &[&str]) -> Output {
        Command::new("timeout").args(["-k", "60", "600", program]).args(args).current_dir(&self.0).output().unwrap()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn qemu_is_kept_off_an_image_that_is_served() {
    let dir = Dir::new("locked-by-us");
    let write = ["-f", "raw", "-c", "write 0 512", "image"];
    // A copy requires an image that does not change meanwhile.
    let copy = ["convert", "-f", "raw", "-O", "raw", "image", "copy"];
    assert!(dir.run("qemu-io", &write).status.success());
    let lock = ImageLock::take(&dir.image(), true).unwrap();
    let refused = dir.run("qemu-io", &write);
    assert!(!refused.status.success() && err(&refused).contains("\"write\" lock"), "{refused:?}");
    let refused = dir.run("qemu-img", &copy);
    assert!(!refused.status.success() && err(&refused).contains("shared \"write\" lock"), "{refused:?}");
    drop(lock);
    let lock = ImageLock::take(&dir.image(), false).unwrap();
    let refused = dir.run("qemu-io", &write);
    assert!(!refused.status.success() && err(&refused).contains("\"write\" lock"), "{refused:?}");
    let refused = dir.run("qemu-img", &["resize", "-f", "raw", "image", "2M"]);
    assert!(!refused.status.success() && err(&refused).contains("lock"), "{refused:?}");
    let allowed = dir.run("qemu-img", &copy);
    assert!(allowed.status.success(), "two readers: {allowed:?}");
    drop(lock);
    assert!(dir.run("qemu-io", &write).status.success());
}

/// A server of QEMU that is killed when the value is dropped.
struct QemuNbd {
    pid: String,
}

impl QemuNbd {
    fn start(dir: &Dir, more: &[&str]) -> QemuNbd {
        let socket = dir.0.join("s");
        let args = ["--fork", "--pid-file=pid", "-f", "raw", "-t", "-k", socket.to_str().unwrap()];
        // The command returns when the server is ready, so the image is open then.
        let started = dir.run("qemu-nbd", &[&args[..], more, &["image"]].concat());
        assert!(started.status.success(), "{started:?}");
        QemuNbd { pid: fs::read_to_string(dir.0.join("pid")).unwrap().trim().to_owned() }
    }

    fn end(self) {
        let pid = &self.pid;
        let script = format!("kill {pid}; timeout 60 tail --pid={pid} -f /dev/null");
        assert!(Command::new("bash").args(["-c", &script]).status().unwrap().success());
        // So that `drop` does not do it again.
        std::mem::forget(self);
    }
}

impl Drop for QemuNbd {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-9", &self.pid]).status();
    }
}

#[test]
fn an_image_that_qemu_uses_is_not_taken() {
    let dir = Dir::new("locked-by-qemu");
    let writer = QemuNbd::start(&dir, &[]);
    for write in [true, false] {
        let e = ImageLock::take(&dir.image(), write).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Denied, "{e}");
        assert!(e.to_string().contains("is in use"), "{e}");
        ImageLock::probe(&dir.image(), write).unwrap_err();
    }
    writer.end();
    let reader = QemuNbd::start(&dir, &["-r"]);
    // A read-only qemu-nbd lets others write, so both kinds of lock can be taken beside it.
    drop(ImageLock::take(&dir.image(), false).unwrap());
    drop(ImageLock::take(&dir.image(), true).unwrap());
    reader.end();
    ImageLock::take(&dir.image(), true).unwrap();
}
