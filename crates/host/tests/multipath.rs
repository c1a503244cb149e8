// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Multipath over real paths: two descriptors of a file, and Debian's iSCSI target under several names and processes. What the block
//! layer's part must do whatever its paths are is tested in `blk`.

#[allow(unsafe_code, reason = "buffers are given back")]
mod common;

use blk::bio::OpFlags;
use blk::multipath::PathArgs;
use blk::status::BlkStatus;
use blk::time::Duration;
use common::{Rig, TempFile};
use host::driver::HostDriver;
use host::driver::file::{File, FileOptions};
use host::driver::multipath::{Multipath, MultipathOptions, Path, PathChecker, PathGroupingPolicy};
use host::mem::Regions;
use std::sync::Arc;

fn file_path(name: &str, path: &std::path::Path, regions: &Arc<Regions>) -> Path {
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
    }
}

fn quick() -> MultipathOptions {
    MultipathOptions {
        path_grouping_policy: PathGroupingPolicy::Multibus,
        polling_interval: Duration::from_secs(1),
        ..MultipathOptions::default()
    }
}

fn active(disk: &Multipath) -> usize {
    disk.status().groups.iter().flat_map(|g| &g.paths).filter(|p| p.is_active).count()
}

fn until(mut what: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !what() {
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "it does not come to it");
        std::thread::yield_now();
    }
}

#[test]
fn two_descriptors_of_a_file_are_one_disk() {
    let (file, regions) = (TempFile::new(), Arc::new(Regions::new()));
    let paths = ["a", "b"].map(|name| file_path(name, &file.0, &regions)).into();
    let (disk, troubles) = Multipath::open(quick(), paths).unwrap();
    assert!(troubles.is_empty(), "{troubles:?}");
    let disk = Arc::new(disk);
    let mut rig = Rig::on(disk.clone(), regions, |c| c.set("nr_cpus", "1").unwrap());
    for i in 0..64_u64 {
        assert_eq!(rig.write(i * 8, &[i as u8; 4096], OpFlags::NONE), BlkStatus::Ok);
    }
    // One is failed by hand: the other does it all, and the checker brings it back.
    let a = disk.paths().path("a").unwrap();
    disk.paths().fail_path(a, host::clock::now());
    assert_eq!(active(&disk), 1);
    for i in 0..64_u64 {
        assert_eq!(rig.read(i * 8, 4096), (BlkStatus::Ok, vec![i as u8; 4096]));
    }
    until(|| active(&disk) == 2);
    for path in disk.status().groups.iter().flat_map(|g| &g.paths) {
        assert_eq!(path.in_flight, 0, "{path:?}");
    }
}
