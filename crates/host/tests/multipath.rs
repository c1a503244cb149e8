// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Multipath over real paths: two descriptors of a file, and Debian's iSCSI target under several names and processes. What the block
//! layer's part must do whatever its paths are is tested in `blk`.

#[allow(unsafe_code, reason = "buffers are given back")]
mod common;

use blk::bio::{Bio, DataRef, OpFlags};
use blk::id::Sector;
use blk::multipath::PathArgs;
use blk::status::BlkStatus;
use blk::time::Duration;
use common::iscsi::Tgt;
use common::{Rig, Rng, TempFile};
use host::driver::HostDriver;
use host::driver::file::{File, FileOptions};
use host::driver::multipath::{Multipath, MultipathOptions, Path, PathChecker, PathGroupingPolicy};
use host::mem::Regions;
use host::target::{Needs, TargetSpec};
use std::sync::Arc;
use std::time::Duration as StdDuration;

const LONG: StdDuration = StdDuration::from_secs(60);

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

/// A disk of these targets under a queue of one CPU.
fn rig_of(options: &str, urls: &[String]) -> (Rig, Arc<dyn HostDriver>) {
    let regions = Arc::new(Regions::new());
    let needs = Needs { write: true, direct: true, min_bytes: 0, in_use: false, read_ahead_kb: None };
    let text = format!("multipath:{options}:{}", urls.join("+"));
    let open =
        TargetSpec::parse(&text).unwrap().open(&needs, regions.clone()).unwrap_or_else(|e| panic!("{text}: {e}"));
    assert!(open.warnings.is_empty(), "{:?}", open.warnings);
    let rig = Rig::on(open.driver.clone(), regions, |c| c.set("nr_cpus", "1").unwrap());
    (rig, open.driver)
}

/// Writes blocks whose content says which write they are of, and reads them back, while somebody pulls paths. No error may be seen, and
/// nothing but the last write of each block.
struct Load<'a> {
    rig: &'a mut Rig,
    rng: Rng,
    /// By block: the number of its last write.
    written: Vec<u64>,
    count: u64,
    /// The longest time that one round of it took.
    longest: StdDuration,
}

const BLOCKS: u64 = 512;

impl Load<'_> {
    fn new(rig: &mut Rig, seed: u64) -> Load<'_> {
        Load { rig, rng: Rng::new(seed), written: vec![0; BLOCKS as usize], count: 0, longest: StdDuration::ZERO }
    }

    fn stamp(block: u64, write: u64) -> [u8; 4096] {
        let mut bytes = [0; 4096];
        let words = if write == 0 { [0, 0] } else { [block, write] };
        for part in bytes.chunks_exact_mut(16) {
            part[..8].copy_from_slice(&words[0].to_le_bytes());
            part[8..].copy_from_slice(&words[1].to_le_bytes());
        }
        bytes
    }

    /// 32 writes of different blocks at once, then reads of them and of others.
    fn round(&mut self) {
        let began = std::time::Instant::now();
        let first = self.rng.below(BLOCKS / 32) * 32;
        let blocks: Vec<u64> = (first..first + 32).collect();
        for (slot, block) in blocks.iter().enumerate() {
            self.count += 1;
            self.written[*block as usize] = self.count;
            let stamp = Self::stamp(*block, self.count);
            self.rig.pool.with_slot(slot as u32, |b| b[..4096].copy_from_slice(&stamp));
        }
        let bios = |make: fn(Sector, u32, DataRef) -> Bio, blocks: &[u64]| -> Vec<(u32, Bio)> {
            // Every second block first, so that neighbours are not merged.
            let at = |(i, b): (usize, &u64)| (i as u32, make(Sector(b * 8), 8, DataRef::NONE));
            let all: Vec<_> = blocks.iter().enumerate().map(at).collect();
            let (even, odd): (Vec<_>, Vec<_>) = all.into_iter().partition(|(i, _)| i % 2 == 0);
            even.into_iter().chain(odd).collect()
        };
        let statuses = self.rig.io_batch(bios(Bio::write, &blocks));
        assert!(statuses.iter().all(|s| s.is_ok()), "{statuses:?} {:?}", self.rig.driver.troubles());
        let others: Vec<u64> = (0..32).map(|i| if i < 16 { blocks[i] } else { self.rng.below(BLOCKS) }).collect();
        let statuses = self.rig.io_batch(bios(Bio::read, &others));
        assert!(statuses.iter().all(|s| s.is_ok()), "{statuses:?} {:?}", self.rig.driver.troubles());
        for (slot, block) in others.iter().enumerate() {
            let expected = Self::stamp(*block, self.written[*block as usize]);
            self.rig.pool.with_slot(slot as u32, |b| assert!(b[..4096] == expected, "block {block}: {:?}", &b[..16]));
        }
        self.longest = self.longest.max(began.elapsed());
    }

    fn run_until(&mut self, mut what: impl FnMut() -> bool) {
        let began = std::time::Instant::now();
        while !what() {
            assert!(began.elapsed() < LONG, "it does not come to it: {:?}", self.rig.driver.troubles());
            self.round();
        }
    }

    /// Takes the longest round so far, and begins anew.
    fn take_longest(&mut self) -> StdDuration {
        std::mem::take(&mut self.longest)
    }

    /// What the file holds is what was written last.
    fn check_file(&self, path: &std::path::Path) {
        let bytes = std::fs::read(path).unwrap();
        for block in 0..BLOCKS {
            let at = block as usize * 4096;
            assert!(
                bytes[at..at + 4096] == Self::stamp(block, self.written[block as usize]),
                "block {block} in the file"
            );
        }
    }
}

fn up(driver: &dyn HostDriver) -> u64 {
    let c = driver.connections().unwrap();
    assert!(c.up <= c.wanted);
    c.up
}

#[test]
fn a_target_that_is_killed_costs_no_write_and_comes_back() {
    let seed = 0x6d70_0001;
    for policy in ["multibus", "failover"] {
        let a = Tgt::new();
        let mut tgts = [a.beside(), a];
        let urls: Vec<String> = tgts.iter().map(|t| t.url("?sessions=1")).collect();
        let options = format!("path_grouping_policy={policy},polling_interval=1,failback=immediate");
        let (mut rig, driver) = rig_of(&options, &urls);
        let mut load = Load::new(&mut rig, seed);
        for pulled in [0, 1, 0] {
            load.run_until(|| up(&*driver) == 2);
            let quiet = load.take_longest();
            tgts[pulled].kill();
            for _ in 0..50 {
                load.round();
            }
            println!("{policy}: kill -9: longest round {:?}, before {quiet:?}, seed {seed:#x}", load.take_longest());
            tgts[pulled].start();
            load.run_until(|| up(&*driver) == 2 && driver.troubles().iter().all(|t| !t.contains("is not used now")));
        }
        load.check_file(&tgts[0].file.0);
    }
}
