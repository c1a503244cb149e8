// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk of several paths, with access to its multipath driver.

use super::DriverFixture;
use blk::multipath::PathArgs;
use host::driver::file::{File, FileOptions};
use host::driver::multipath::{Multipath, Path, PathChecker};
use host::driver::{HostDriver, PathCommand};
use host::mem::Regions;
use host::secrets::Unmasked;
use host::target::Needs;
use std::sync::Arc;

pub fn active(disk: &Multipath) -> usize {
    disk.status().groups.iter().flat_map(|g| &g.paths).filter(|p| p.is_active).count()
}

/// Returns a path to a file. It locks nothing.
pub fn file_path(name: &str, path: &std::path::Path, regions: &Arc<Regions>) -> Path {
    let (path, regions) = (path.to_owned(), regions.clone());
    let open = move |regions: Arc<Regions>| {
        let options = FileOptions { direct: false, ..FileOptions::default() };
        Ok(Arc::new(File::open(&path, &options, regions)?.0) as Arc<dyn HostDriver>)
    };
    Path {
        name: name.into(),
        prio: 1,
        args: PathArgs::default(),
        open: Box::new({
            let open = open.clone();
            move || open(regions.clone())
        }),
        probe: Some(Box::new(open)),
        checker: PathChecker::Directio,
        images: Vec::new(),
    }
}

/// Opens a disk of these targets. Returns its fixture and its multipath driver.
pub fn open_disk(options: &str, urls: &[String]) -> (DriverFixture, Arc<Multipath>) {
    let regions = Arc::new(Regions::new());
    let needs = Needs { write: true, direct: true, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
    let target = host::driver::multipath::parse(&format!("{options}:{}", urls.join("+"))).unwrap();
    let paths = target.paths_to_open(&needs, &regions).unwrap();
    let disk = Arc::new(Multipath::open(target.options, paths).unwrap().0);
    (DriverFixture::on(disk.clone(), regions, |c| c.set("nr_cpus", "1").unwrap()), disk)
}

/// Adds a path to a disk, as an operator does.
pub fn add(driver: &dyn HostDriver, name: &str, url: &str) -> Result<String, String> {
    let command = PathCommand::AddPath { name: name.to_owned(), target: Unmasked::new(url), prio: 1 };
    driver.path().command(&command).map(|outcome| outcome.done).map_err(|e| e.to_string())
}

/// Removes a path from a disk that has another one.
pub fn remove(driver: &dyn HostDriver, path: &str) -> Result<String, String> {
    let command = PathCommand::RemovePath { path: path.to_owned(), force: false };
    driver.path().command(&command).map(|outcome| outcome.done).map_err(|e| e.to_string())
}
