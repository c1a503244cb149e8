// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration of a FUSE export.

use super::export::{FuseExport, FuseOptions};
use super::mount::{self, MountpointState};
use crate::driver::target::same_path;
use crate::error::Result;
use crate::serve::export_spec::{
    ExportKeys, ExportSetup, ExportSpec, ExportValue, Hint, HintContext, Report, report_path,
};
use crate::serve::running::RunningExport;
use crate::shell::{absolute, quoted};
use std::path::{Path, PathBuf};

/// A file whose content is the disk, mounted over an existing file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FusePlan {
    /// An existing regular file.
    pub mountpoint: PathBuf,
    /// Other users may open the file.
    pub allow_other: bool,
}

impl ExportSpec for FusePlan {
    const TYPE: &'static str = "fuse";
    const SHORT: &'static str = "fuse";
    const NEEDS_ROOT: bool = true;
    const SERVES_ANY_SIZE: bool = true;
    const HAS_BLOCKS: bool = false;

    fn read(keys: &mut dyn ExportKeys, _name: &str, _disk: &str) -> FusePlan {
        let mountpoint = keys.text("mountpoint", "disk.mount");
        if mountpoint.is_none() && !keys.is_given("mountpoint") {
            keys.refuse("", "has no mountpoint; add mountpoint = \"FILE\", an empty file".to_owned());
        }
        let mountpoint = mountpoint.unwrap_or_default().into();
        FusePlan { mountpoint, allow_other: keys.flag("allow_other").unwrap_or(false) }
    }

    fn check(&self, report: &mut Report<'_>) {
        if self.mountpoint.as_os_str().is_empty() {
            report("mountpoint", "mountpoint='': must name an existing file".to_owned());
        }
    }

    fn clash(&self, other: &FusePlan, name: &str) -> Option<(&'static str, String)> {
        let at = self.mountpoint.display();
        let text = || format!("mountpoint={at}: export '{name}' is mounted there; choose another file");
        same_path(&self.mountpoint, &other.mountpoint).then(|| ("mountpoint", text()))
    }

    fn preflight(&self, report: &mut Report<'_>) {
        report_path(mountpoint(&self.mountpoint), "mountpoint", &self.mountpoint, report);
    }

    fn begin(&self, setup: ExportSetup<'_>) -> Result<Option<Box<dyn RunningExport>>> {
        let options = FuseOptions {
            name: setup.name,
            mountpoint: self.mountpoint.clone(),
            allow_other: self.allow_other,
            read_only: setup.read_only,
            discard: setup.discard,
            write_through: setup.write_through,
            iothreads: setup.iothreads,
        };
        Ok(Some(Box::new(FuseExport::start(setup.threads, setup.disk, options)?)))
    }

    fn summary(&self) -> String {
        format!("at {}", self.mountpoint.display())
    }

    fn values(&self) -> Vec<(&'static str, ExportValue)> {
        vec![("mountpoint", ExportValue::Text(self.mountpoint.to_string_lossy().into_owned()))]
    }

    fn hints(&self, export: &HintContext<'_>) -> Vec<Hint> {
        let path = quoted(&absolute(&self.mountpoint));
        let flag = if export.read_only { " --read-only" } else { "" };
        let block = export.block_option("--sector-size");
        // fio takes a colon for the end of a file name. The command only reads, because a pasted line must not destroy data.
        let file = quoted(&format!("--filename={}", absolute(&self.mountpoint).replace(':', "\\:")));
        vec![
            Hint {
                key: "losetup",
                title: "Linux block device, as root (before the daemon ends: umount it, then losetup --detach)",
                text: format!("losetup --find --show --direct-io=on{flag}{block} {path}"),
            },
            Hint {
                key: "fio",
                title: "fio",
                text: format!(
                    "fio --name=try {file} --readonly --direct=1 --rw=randread --bs=4k --ioengine=libaio --iodepth=32 \
                     --time_based --runtime=10"
                ),
            },
            Hint { key: "qemu_img", title: "qemu-img, qemu-io", text: format!("qemu-img info -f raw {path}") },
        ]
    }
}

fn mountpoint(path: &Path) -> std::result::Result<(), String> {
    match mount::look(path) {
        // A mount that a killed daemon left is detached when the export starts.
        Ok(MountpointState::File | MountpointState::Stale) => {}
        Ok(MountpointState::Served) => {
            return Err("another program serves a file system there already; end that program or choose another file"
                .to_owned());
        }
        Ok(MountpointState::Other) => {
            return Err("must be a regular file: the disk is mounted over it".to_owned());
        }
        Err(e) => return Err(format!("{e}; make an empty file of that name first (touch FILE)")),
    }
    match Path::new("/dev/fuse").exists() {
        true => Ok(()),
        false => Err("this host has no /dev/fuse; load the module fuse".to_owned()),
    }
}
