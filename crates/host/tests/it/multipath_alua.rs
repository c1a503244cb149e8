// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Multipath with target port groups (ALUA): priorities, new groups when states change, and the hardware handler. The array is
//! scripted, so it can give wrong answers. The Linux kernel's target, in a guest, has real port groups. Real targets without port groups
//! are tested, too.

use crate::common;
use crate::waiting::{LONG, until};

use blk::bio::OpFlags;
use blk::status::BlkStatus;
use common::DriverFixture;
use common::iscsi::Tgt;
use common::istgt::{Istgt, Options};
use common::scripted::{GOOD, Peer, Request, Scripted};
use host::driver::HostDriver;
use host::driver::Topology;
use host::mem::Regions;
use host::target::{Needs, OpenTarget, TargetSpec};
use sim::rng::Rng;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const OPTIMIZED: u8 = 0x0;
const NON_OPTIMIZED: u8 = 0x1;
const STANDBY: u8 = 0x2;
const UNAVAILABLE: u8 = 0x3;
const TRANSITIONING: u8 = 0xf;
const NOT_READY: u8 = 2;
const ILLEGAL_REQUEST: u8 = 5;
/// Bits of byte 5 of INQUIRY.
const IMPLICIT: u8 = 0x10;
const EXPLICIT: u8 = 0x20;

/// State that the controllers of the array share.
#[derive(Default)]
struct Array {
    tpgs: u8,
    /// State of each group, by number. Number 0 is unused.
    states: [u8; 4],
    /// Number of reads and writes that each group has received.
    served: [u64; 4],
    refused: [u64; 4],
    /// Groups named in SET TARGET PORT GROUPS commands.
    orders: Vec<u16>,
    /// The array rejects SET TARGET PORT GROUPS for this group.
    refuses: Option<u16>,
    /// REPORT TARGET PORT GROUPS is answered with these random bytes.
    nonsense: Option<Rng>,
}

type Shared = Arc<Mutex<Array>>;

fn report(array: &Array) -> Vec<u8> {
    let mut body = Vec::new();
    for (number, state) in array.states.iter().enumerate().skip(1) {
        body.extend([*state, 0x8f, 0, number as u8, 0, 0, 0, 1, 0, 0, 0, number as u8]);
    }
    [&(body.len() as u32).to_be_bytes()[..], &body].concat()
}

/// Executes a command on a port of this group.
fn port(array: &Shared, group: usize, peer: &mut Peer, request: &Request) -> bool {
    match (request.cdb()[0], request.page()) {
        (0x12, None) => {
            let tpgs = array.lock().unwrap().tpgs;
            peer.answer(request, &[&[0, 0, 5, 2, 31, tpgs, 0, 0][..], &[b'x'; 28]].concat());
        }
        (0x12, Some(0x83)) => {
            let unit = [0x01, 0x03, 0, 8, 0x50, 1, 2, 3, 4, 5, 6, 7];
            let port = [0x01, 0x15, 0, 4, 0, 0, 0, group as u8];
            peer.answer(request, &[&[0, 0x83, 0, 20][..], &unit, &port].concat());
        }
        (0xa3, _) => {
            let mut array = array.lock().unwrap();
            let told = report(&array);
            let told = match &mut array.nonsense {
                None => told,
                Some(rng) => {
                    let len = rng.below(300) as usize;
                    let mut bytes = rng.bytes(len);
                    // Half of the answers are almost valid.
                    if rng.below(2) == 0 {
                        bytes = told;
                        let at = rng.below(bytes.len() as u64) as usize;
                        bytes[at] = rng.below(256) as u8;
                    }
                    bytes
                }
            };
            drop(array);
            peer.answer(request, &told);
        }
        (0xa4, _) => {
            let Some(list) = peer.collect(request) else { return true };
            assert!(list.len() == 8 && list[4] & 0xf == OPTIMIZED, "{list:?}");
            let named = u16::from_be_bytes([list[6], list[7]]);
            let mut all = array.lock().unwrap();
            all.orders.push(named);
            if all.refuses == Some(named) {
                drop(all);
                peer.check(request.tag(), ILLEGAL_REQUEST, 0x26, 0);
                return true;
            }
            for (number, state) in all.states.iter_mut().enumerate().skip(1) {
                *state = if number == usize::from(named) { OPTIMIZED } else { STANDBY };
            }
            drop(all);
            peer.end(request.tag(), GOOD);
        }
        (0x00 | 0x28 | 0x2a | 0x35 | 0x88 | 0x8a | 0x91, _) => {
            let mut array = array.lock().unwrap();
            let ascq = match array.states[group] {
                STANDBY => 0x0b,
                UNAVAILABLE => 0x0c,
                TRANSITIONING => 0x0a,
                _ => {
                    array.served[group] += u64::from(request.cdb()[0] != 0x00);
                    return false;
                }
            };
            array.refused[group] += u64::from(request.cdb()[0] != 0x00);
            drop(array);
            peer.check(request.tag(), NOT_READY, 0x04, ascq);
        }
        _ => return false,
    }
    true
}

/// Starts a port to the disk for each of these groups.
fn ports(array: &Shared, groups: &[usize]) -> Vec<Scripted> {
    let written = Arc::new(Mutex::new(Vec::new()));
    let one = |group: &usize| {
        let (array, group) = (array.clone(), *group);
        Scripted::storing(written.clone(), move |peer, request| port(&array, group, peer, request))
    };
    groups.iter().map(one).collect()
}

fn array(tpgs: u8, states: [u8; 3]) -> Shared {
    let [a, b, c] = states;
    Arc::new(Mutex::new(Array { tpgs, states: [0, a, b, c], ..Array::default() }))
}

fn open(options: &str, urls: &[String]) -> host::error::Result<(OpenTarget, Arc<Regions>)> {
    let regions = Arc::new(Regions::new());
    let needs = Needs { write: true, direct: true, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
    let text = format!("multipath:{options}:{}", urls.join("+"));
    Ok((TargetSpec::parse(&text).unwrap().open(&needs, regions.clone())?, regions))
}

const OPTIONS: &str = "path_grouping_policy=group_by_prio,prio=alua,failback=immediate,polling_interval=1,\
    max_polling_interval=1,fast_io_fail_tmo=0";

/// A disk under writes and reads. No I/O may fail, and each read must return the last write.
struct Load {
    fixture: DriverFixture,
    disk: Arc<dyn HostDriver>,
    rng: Rng,
    last: Vec<u64>,
    count: u64,
}

const BLOCKS: u64 = 64;

impl Load {
    fn new(options: &str, targets: &[Scripted]) -> Load {
        Load::on(options, &targets.iter().map(|t| t.url("?sessions=1")).collect::<Vec<_>>())
    }

    fn on(options: &str, urls: &[String]) -> Load {
        let (open, regions) = open(options, urls).unwrap_or_else(|e| panic!("{options}: {e}"));
        assert!(open.warnings.is_empty(), "{:?}", open.warnings);
        let fixture = DriverFixture::on(open.driver.clone(), regions, |c| c.set("nr_cpus", "1").unwrap());
        Load { fixture, disk: open.driver, rng: Rng::new(0xa10a), last: vec![0; BLOCKS as usize], count: 0 }
    }

    fn round(&mut self) {
        for _ in 0..8 {
            self.count += 1;
            let block = self.rng.below(BLOCKS);
            let stamp = self.count.to_be_bytes().repeat(512);
            assert_eq!(
                self.fixture.write(block * 8, &stamp, OpFlags::NONE),
                BlkStatus::Ok,
                "{:?}",
                self.disk.path().troubles()
            );
            self.last[block as usize] = self.count;
            let block = self.rng.below(BLOCKS);
            let stamp = self.last[block as usize].to_be_bytes().repeat(512);
            let (status, bytes) = self.fixture.read(block * 8, 4096);
            assert_eq!(status, BlkStatus::Ok, "{:?}", self.disk.path().troubles());
            assert!(bytes == stamp, "block {block}: not its last write, {:?}", &bytes[..8]);
        }
    }

    /// Keeps up the load until `what` is true of the topology.
    fn until(&mut self, what: impl Fn(&Topology) -> bool) {
        let began = Instant::now();
        loop {
            self.round();
            let topology = self.disk.path().topology().unwrap();
            if what(&topology) {
                // The first requests activate a new group. If the target made one of its paths worse before that is done, the
                // activation would order the target to make that path better again.
                self.round();
                return;
            }
            assert!(began.elapsed() < LONG, "it does not come to it: {topology:#?}");
        }
    }

    fn check_all(&mut self) {
        for block in 0..BLOCKS {
            let stamp = self.last[block as usize].to_be_bytes().repeat(512);
            assert!(self.fixture.read(block * 8, 4096) == (BlkStatus::Ok, stamp), "block {block}");
        }
    }
}

/// Returns each group's priority, and the state of its paths.
fn shape(t: &Topology) -> Vec<(u32, Vec<(bool, &'static str)>)> {
    t.groups.iter().map(|g| (g.prio, g.paths.iter().map(|p| (p.is_active, p.check)).collect())).collect()
}

const UP: (bool, &str) = (true, "ready");

#[test]
fn paths_are_regrouped_when_port_states_change() {
    let array = array(IMPLICIT, [OPTIMIZED, NON_OPTIMIZED, UNAVAILABLE]);
    let targets = ports(&array, &[2, 1, 3, 1]);
    let mut load = Load::new(OPTIONS, &targets);
    // Before any check, the states are those that were read at the opening.
    let first = load.disk.path().topology().unwrap();
    let of =
        |t: &Topology| t.groups.iter().map(|g| g.paths.iter().map(|p| p.prio).collect()).collect::<Vec<Vec<u32>>>();
    assert_eq!(of(&first), [vec![50, 50], vec![10], vec![0]]);
    load.until(|t| shape(t) == [(50, vec![UP, UP]), (10, vec![UP]), (0, vec![(false, "faulty")])]);
    let served = array.lock().unwrap().served;
    assert!(served[1] > 0 && served[2] == 0 && served[3] == 0, "{served:?}");

    // The array's states change: no port serves I/O for a while, then the other controller does.
    array.lock().unwrap().states = [0, TRANSITIONING, TRANSITIONING, UNAVAILABLE];
    let (sender, after) = std::sync::mpsc::channel();
    let changes = {
        let array = array.clone();
        std::thread::spawn(move || {
            // After the initiator was notified.
            until("a request is refused", || array.lock().unwrap().refused[1] > 0);
            let mut array = array.lock().unwrap();
            array.states = [0, STANDBY, OPTIMIZED, UNAVAILABLE];
            sender.send(array.served).unwrap();
        })
    };
    load.round();
    changes.join().unwrap();
    let served = after.recv().unwrap();
    let ghost = (false, "ghost");
    load.until(|t| {
        let is = shape(t);
        is.len() == 3 && is[0] == (50, vec![UP]) && is[1].1 == [ghost, ghost]
    });
    load.round();
    let now = array.lock().unwrap().served;
    assert_eq!(now[1], served[1], "a path in standby is not used");
    assert!(now[2] > served[2]);

    // The states change back, while the worse port still serves.
    array.lock().unwrap().states = [0, OPTIMIZED, NON_OPTIMIZED, UNAVAILABLE];
    load.until(|t| shape(t)[..2] == [(50, vec![UP, UP]), (10, vec![UP])]);
    load.round();
    let before = array.lock().unwrap().served;
    load.round();
    let now = array.lock().unwrap().served;
    assert!(now[1] > before[1] && now[2] == before[2], "{before:?} {now:?}");
    load.check_all();
}

#[test]
fn without_failback_the_group_in_use_stays_while_it_has_a_path() {
    let array = array(IMPLICIT, [OPTIMIZED, NON_OPTIMIZED, STANDBY]);
    let targets = ports(&array, &[1, 2]);
    let mut load = Load::new(&OPTIONS.replace("immediate", "manual"), &targets);
    load.until(|t| shape(t) == [(50, vec![UP]), (10, vec![UP])]);
    array.lock().unwrap().states = [0, NON_OPTIMIZED, OPTIMIZED, STANDBY];
    load.until(|t| shape(t) == [(10, vec![UP]), (50, vec![UP])]);
    assert_eq!(array.lock().unwrap().served[2], 0);
    array.lock().unwrap().states = [0, STANDBY, OPTIMIZED, STANDBY];
    load.until(|t| {
        t.groups.iter().any(|g| g.prio == 50) && t.groups.iter().flat_map(|g| &g.paths).any(|p| p.check == "ghost")
    });
    assert!(array.lock().unwrap().served[2] > 0);
    load.check_all();
}

const HANDLER: &str = "hardware_handler=1 alua";

#[test]
fn handler_activates_the_other_group_once() {
    let array = array(IMPLICIT | EXPLICIT, [OPTIMIZED, STANDBY, UNAVAILABLE]);
    let mut targets = ports(&array, &[1, 2, 2]);
    let mut load = Load::new(&format!("{OPTIONS},{HANDLER}"), &targets);
    let ghost = (true, "ghost");
    load.until(|t| shape(t) == [(50, vec![UP]), (1, vec![ghost, ghost])]);
    assert_eq!(load.disk.path().topology().unwrap().hardware_handler, "1 alua");
    assert_eq!(array.lock().unwrap().orders, [0; 0], "the other group is not needed");
    assert_eq!(array.lock().unwrap().served[2], 0);
    // The only path to a group that serves I/O fails.
    drop(targets.remove(0));
    load.until(|_| array.lock().unwrap().served[2] > 0);
    load.until(|t| t.groups[0].paths.iter().filter(|p| p.is_active && p.check == "ready").count() == 2);
    load.round();
    let all = array.lock().unwrap();
    assert_eq!(
        (&all.orders[..], all.refused[2]),
        (&[2][..], 0),
        "one order for both, and nothing went there before it"
    );
    drop(all);
    load.check_all();
}

#[test]
fn an_array_that_takes_no_orders_gets_none() {
    let array = array(IMPLICIT, [OPTIMIZED, NON_OPTIMIZED, UNAVAILABLE]);
    let mut targets = ports(&array, &[1, 2]);
    let mut load = Load::new(&format!("{OPTIONS},{HANDLER}"), &targets);
    load.until(|t| shape(t) == [(50, vec![UP]), (10, vec![UP])]);
    drop(targets.remove(0));
    load.until(|_| array.lock().unwrap().served[2] > 0);
    assert_eq!(array.lock().unwrap().orders, [0; 0]);
    load.check_all();
}

#[test]
fn a_group_that_cannot_be_activated_is_passed_over() {
    let array = array(EXPLICIT, [OPTIMIZED, STANDBY, STANDBY]);
    array.lock().unwrap().refuses = Some(2);
    let mut targets = ports(&array, &[1, 2, 3]);
    // Each path is a group, and the second is tried first.
    let options = format!("{},{HANDLER}", OPTIONS.replace("group_by_prio", "failover"));
    let mut load = Load::new(&options, &targets);
    load.until(|t| t.groups.len() == 3 && t.groups[0].prio == 50);
    drop(targets.remove(0));
    load.until(|_| array.lock().unwrap().served[3] > 0);
    let all = array.lock().unwrap();
    assert!(all.orders.contains(&2) && all.orders.contains(&3) && all.served[2] == 0, "{:?}", all.orders);
    drop(all);
    load.check_all();
}

#[test]
fn nonsense_about_port_groups_costs_no_request() {
    let seed = 0x5eed_a10a;
    let array = array(IMPLICIT, [OPTIMIZED, NON_OPTIMIZED, STANDBY]);
    let targets = ports(&array, &[1, 2]);
    let mut load = Load::new(&OPTIONS.replace("prio=alua", "prio=alua,no_path_retry=queue"), &targets);
    array.lock().unwrap().nonsense = Some(Rng::new(seed));
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        load.round();
    }
    array.lock().unwrap().nonsense = None;
    load.until(|t| shape(t) == [(50, vec![UP]), (10, vec![UP])]);
    load.check_all();
    println!("seed {seed:#x}");
}

/// Returns the target port groups of each priority group's paths, which are identified by their portals.
fn ports_of(t: &Topology, targets: &[Scripted], groups: &[usize]) -> Vec<Vec<usize>> {
    let portals: Vec<String> = targets.iter().map(|t| format!("/{}/", t.url("").split('/').nth(2).unwrap())).collect();
    let group = |name: &str| groups[portals.iter().position(|portal| name.contains(portal)).unwrap()];
    t.groups.iter().map(|g| g.paths.iter().map(|p| group(&p.name)).collect()).collect()
}

#[test]
fn groups_of_ports_stay_together_whatever_they_are_worth() {
    let array = array(IMPLICIT, [OPTIMIZED, OPTIMIZED, NON_OPTIMIZED]);
    let groups = [2, 1, 3, 1, 2];
    let targets = ports(&array, &groups);
    let mut load = Load::new(&OPTIONS.replace("group_by_prio", "group_by_tpg"), &targets);
    let of = |t: &Topology| ports_of(t, &targets, &groups);
    // Two port groups of the same priority are two groups.
    assert_eq!(of(&load.disk.path().topology().unwrap()), [vec![2, 2], vec![1, 1], vec![3]]);
    load.until(|t| shape(t) == [(50, vec![UP, UP]), (50, vec![UP, UP]), (10, vec![UP])]);
    let served = array.lock().unwrap().served;
    assert!(served[2] > 0 && served[1] == 0 && served[3] == 0, "{served:?}");
    // The group in use becomes the worst. Two port groups of another priority are two groups, too.
    array.lock().unwrap().states = [0, NON_OPTIMIZED, STANDBY, OPTIMIZED];
    load.until(|t| of(t) == [vec![3], vec![1, 1], vec![2, 2]]);
    load.until(|t| shape(t)[..2] == [(50, vec![UP]), (10, vec![UP, UP])]);
    load.round();
    assert!(array.lock().unwrap().served[3] > 0);
    load.check_all();
}

/// Writes a multipath.conf with this text, for the options of a target.
fn conf(name: &str, text: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("mqblk-alua-{}-{name}.conf", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn port_groups_are_detected_and_used() {
    let array = array(IMPLICIT | EXPLICIT, [NON_OPTIMIZED, OPTIMIZED, OPTIMIZED]);
    let groups = [1, 2, 3, 1];
    let targets = ports(&array, &groups);
    let urls: Vec<String> = targets.iter().map(|t| t.url("?sessions=1")).collect();
    let of = |options: &str| {
        let (disk, _) = open(options, &urls).unwrap_or_else(|e| panic!("{options}: {e}"));
        assert!(disk.warnings.is_empty(), "{options}: {:?}", disk.warnings);
        let t = disk.driver.path().topology().unwrap();
        let prios: Vec<u32> = t.groups.iter().map(|g| g.paths[0].prio).collect();
        (ports_of(&t, &targets, &groups), prios, t.hardware_handler)
    };
    let is = |groups: &[&[usize]], prios: &[u32], handler: &str| {
        let groups: Vec<Vec<usize>> = groups.iter().map(|g| g.to_vec()).collect();
        (groups, prios.to_vec(), handler.to_owned())
    };
    let in_order: &[&[usize]] = &[&[1], &[2], &[3], &[1]];
    let by_worth: &[&[usize]] = &[&[2], &[3], &[1], &[1]];
    // Without options, nothing is detected.
    assert_eq!(of("failback=manual"), is(in_order, &[1; 4], "0"));
    assert_eq!(of("detect_prio=yes"), is(by_worth, &[50, 50, 10, 10], "1 alua"));
    assert_eq!(of("detect_prio=yes,hardware_handler=0"), is(by_worth, &[50, 50, 10, 10], "0"));
    let by_tpg: &[&[usize]] = &[&[2], &[3], &[1, 1]];
    let policy = "path_grouping_policy=group_by_tpg";
    assert_eq!(of(&format!("detect_prio=yes,{policy}")), is(by_tpg, &[50, 50, 10], "1 alua"));

    // With a file, everything is detected, unless the file sets it. The target's options have priority over the file.
    let file = conf("a", "defaults {\n\tprio const\n\tpath_grouping_policy failover\n}\n");
    let a = format!("conf={}", file.display());
    assert_eq!(of(&a), is(&[&[2, 3], &[1, 1]], &[50, 10], "1 alua"));
    assert_eq!(of(&format!("{a},{policy}")), is(by_tpg, &[50, 50, 10], "1 alua"));
    assert_eq!(of(&format!("{a},prio=1+2+3+4")), is(&[&[1], &[3], &[2], &[1]], &[4, 3, 2, 1], "0"));
    assert_eq!(of(&format!("{a},detect_prio=no")), is(in_order, &[1; 4], "0"));
    let device = "devices {\n\tdevice {\n\t\tvendor x\n\t\tproduct .*\n";
    let file_b = conf("b", &format!("{device}\t\tdetect_pgpolicy_use_tpg yes\n\t}}\n}}\n"));
    assert_eq!(of(&format!("conf={}", file_b.display())), is(by_tpg, &[50, 50, 10], "1 alua"));
    let configured =
        "\t\tdetect_prio no\n\t\tdetect_pgpolicy no\n\t\tprio alua\n\t\tpath_grouping_policy group_by_tpg\n\t}\n}\n";
    let file_c = conf("c", &format!("{device}{configured}"));
    assert_eq!(of(&format!("conf={}", file_c.display())), is(by_tpg, &[50, 50, 10], "0"));
    let file_d = conf("d", &format!("{device}\t\tdetect_prio no\n\t}}\n}}\n"));
    assert_eq!(of(&format!("conf={}", file_d.display())), is(in_order, &[1; 4], "0"));
    assert_eq!(array.lock().unwrap().orders, [0; 0], "it was not used");
    // A target that reports no port group, or no support for them, has none.
    array.lock().unwrap().tpgs = 0;
    assert_eq!(of(&a), is(in_order, &[1; 4], "0"));
    assert_eq!(of("detect_prio=yes"), is(in_order, &[1; 4], "0"));
    [file, file_b, file_c, file_d].iter().for_each(|f| std::fs::remove_file(f).unwrap());
}

#[test]
fn targets_without_port_groups_are_told_apart() {
    let istgt = Istgt::new(Options { immediate_data: "Yes", auth: "None" });
    for url in [Tgt::new().url("?sessions=1"), istgt.url_as("", "?sessions=1")] {
        let said = open(HANDLER, std::slice::from_ref(&url)).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(said.contains("hardware_handler=1 alua: its target reports no target port groups"), "{url}: {said}");
        let (disk, _) = open("prio=alua", std::slice::from_ref(&url)).unwrap_or_else(|e| panic!("{url}: {e}"));
        let said: Vec<String> = disk.warnings.iter().map(ToString::to_string).collect();
        assert!(said.len() == 1 && said[0].contains("so its priority is 0"), "{url}: {said:?}");
        assert_eq!(disk.driver.path().topology().unwrap().groups[0].paths[0].prio, 0);
    }
}

/// Two portal groups of a real target, each in its own target port group.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_real_target_is_followed_and_ordered() {
    use common::lio::{DISK, Lio, NODE};
    let mut lio = Lio::new();
    let urls = [1, 2].map(|portal| lio.url(portal, "?sessions=1"));
    let says = |lio: &mut Lio, group: u32, state: u8| {
        lio.does(&format!("echo {state} >{DISK}/alua/group{group}/alua_access_state"));
    };
    says(&mut lio, 2, NON_OPTIMIZED);
    let mut load = Load::on(&format!("{OPTIONS},{HANDLER}"), &urls);
    assert_eq!(load.disk.path().topology().unwrap().hardware_handler, "1 alua");
    let device = |load: &Load| load.disk.path().topology().unwrap().groups[0].paths[0].name.clone();
    load.until(|t| shape(t) == [(50, vec![UP]), (10, vec![UP])]);
    let first = device(&load);
    // The target's states change. At each time one group is optimized; otherwise the handler would order the target to make one so.
    says(&mut lio, 2, OPTIMIZED);
    load.until(|t| shape(t) == [(50, vec![UP, UP])]);
    says(&mut lio, 1, NON_OPTIMIZED);
    load.until(|t| shape(t) == [(50, vec![UP]), (10, vec![UP])] && t.groups[0].paths[0].name != first);
    let second = device(&load);
    says(&mut lio, 1, STANDBY);
    load.until(|t| shape(t) == [(50, vec![UP]), (1, vec![(true, "ghost")])]);
    // The portal of the optimized group is disabled, so the target is ordered to serve the other group.
    lio.does(&format!("echo 0 >{NODE}/tpgt_2/enable"));
    load.until(|t| t.groups[0].paths[0].name == first && t.groups[0].prio == 50);
    lio.does(&format!("grep -qx {OPTIMIZED} {DISK}/alua/group1/alua_access_state"));
    lio.does(&format!("grep -q Explicit {DISK}/alua/group1/alua_access_status"));
    // The portal is enabled again.
    lio.does(&format!("echo 1 >{NODE}/tpgt_2/enable"));
    load.until(|t| shape(t) == [(50, vec![UP, UP])]);
    says(&mut lio, 1, NON_OPTIMIZED);
    load.until(|t| t.groups[0].paths[0].name == second && shape(t).get(1) == Some(&(10, vec![UP])));
    load.check_all();
}
