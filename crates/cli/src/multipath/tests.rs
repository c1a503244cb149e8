// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Listings, compared character by character.

use super::topology::text;
use crate::serve::control::topology;
use blk::multipath::GroupState;
use host::driver::{Topology, TopologyGroup, TopologyPath};
use serde_json::json;

fn path(name: &str, prio: u32, is_active: bool) -> TopologyPath {
    TopologyPath {
        name: name.to_owned(),
        prio,
        is_active,
        check: if is_active { "ready" } else { "faulty" },
        is_running: true,
        fail_count: u64::from(!is_active),
        in_flight: 3,
        checker: "tur".to_owned(),
        trouble: (!is_active).then(|| "no answer in 5 s".to_owned()),
    }
}

fn two_groups() -> Topology {
    let group = |prio, state, paths| TopologyGroup { selector: "service-time 0".to_owned(), prio, state, paths };
    let mut gone = path("iscsi://10.0.0.12/iqn.x/1", 10, false);
    gone.is_running = false;
    Topology {
        wwid: "360000000000000000e00000000010001".to_owned(),
        vendor: "IET".to_owned(),
        product: "VIRTUAL-DISK".to_owned(),
        revision: "0001".to_owned(),
        bytes: 10 << 30,
        features: "1 queue_if_no_path".to_owned(),
        hardware_handler: "1 alua".to_owned(),
        failback: "immediate".to_owned(),
        queueing: "queue".to_owned(),
        groups: vec![
            group(
                50,
                GroupState::Active,
                vec![path("iscsi://10.0.0.1/iqn.x/1", 50, true), path("/dev/sdb", 50, false)],
            ),
            group(10, GroupState::Enabled, vec![gone]),
        ],
    }
}

#[test]
fn a_disk_is_listed_as_multipath_does() {
    let all = json!({ "maps": [topology::map("data", 0, false, &two_groups())] });
    assert_eq!(
        text(&all),
        "\
data (360000000000000000e00000000010001) dm-0 IET,VIRTUAL-DISK
size=10G features='1 queue_if_no_path' hwhandler='1 alua' wp=rw
|-+- policy='service-time 0' prio=50 status=active
| |- #:#:#:# iscsi://10.0.0.1/iqn.x/1  0:0 active ready  running
| `- #:#:#:# /dev/sdb                  0:0 failed faulty running
`-+- policy='service-time 0' prio=10 status=enabled
  `- #:#:#:# iscsi://10.0.0.12/iqn.x/1 0:0 failed faulty offline
"
    );
}

#[test]
fn sizes_are_rounded_as_multipath_rounds_them() {
    for (bytes, shown) in [
        (0, "0.0K"),
        (9 << 10, "9.0K"),
        (10 << 10, "10K"),
        (1536 << 20, "1.5G"),
        ((10 << 30) - 1, "10.0G"),
        (2048 << 30, "2.0T"),
        (1 << 63, "8192P"),
    ] {
        let topology = Topology { bytes, ..Topology::default() };
        let all = json!({ "maps": [topology::map("d", 3, true, &topology)] });
        let told = text(&all);
        assert_eq!(told, format!("d dm-3 ##,##\nsize={shown} features='' hwhandler='' wp=ro\n"));
    }
}

/// Each column is one word, except the state `i/o pending`, which multipath prints so, too.
#[test]
fn path_name_is_printed_as_one_word() {
    let paths = vec![path("./my disk.img", 1, true), path("./b", 1, true)];
    let group = TopologyGroup { selector: "service-time 0".to_owned(), prio: 1, state: GroupState::Active, paths };
    let topology = Topology { vendor: "IET".to_owned(), groups: vec![group], ..Topology::default() };
    let told = text(&json!({ "maps": [topology::map("d", 0, false, &topology)] }));
    assert!(told.starts_with("d dm-0 ##,##\n"), "a vendor alone is not printed: {told}");
    let lines: Vec<_> = told.lines().skip(3).collect();
    assert_eq!(
        lines,
        [
            "  |- #:#:#:# ./my\\x20disk.img 0:0 active ready running",
            "  `- #:#:#:# ./b              0:0 active ready running",
        ]
    );
}

/// The keys that programs read, and those that only mqblk has.
#[test]
fn json_has_the_keys_of_multipathd() {
    let map = topology::map("data", 0, false, &two_groups());
    assert_eq!((&map["paths"], &map["path_faults"], &map["queueing"]), (&json!(1), &json!(2), &json!("queue")));
    assert_eq!([&map["vend"], &map["prod"], &map["rev"]], [&json!("IET"), &json!("VIRTUAL-DISK"), &json!("0001")]);
    let second = &map["path_groups"][0]["paths"][1];
    assert_eq!(
        *second,
        json!({
            "dev": "/dev/sdb", "dev_t": "0:0", "dm_st": "failed", "dev_st": "running", "chk_st": "faulty",
            "checker": "tur", "pri": 50, "fail_count": 1, "in_flight": 3, "trouble": "no answer in 5 s",
        })
    );
    assert_eq!((&map["path_groups"][1]["group"], &map["path_groups"][1]["dm_st"]), (&json!(2), &json!("enabled")));
}
