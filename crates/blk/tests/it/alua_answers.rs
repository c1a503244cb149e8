// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Answers to REPORT TARGET PORT GROUPS: answers in the form of real arrays are parsed correctly, and arbitrary bytes
//! are safe.

use blk::scsi::alua::{Access, MAX_GROUPS, MAX_PORTS, PortGroups, Support, own_group};
use proptest::prelude::*;

/// A port group as on the wire: state with the preferred bit, number, ports.
type Wire = (u8, u16, Vec<u16>);

fn answer(groups: &[Wire]) -> Vec<u8> {
    let mut body = Vec::new();
    for (state, number, ports) in groups {
        body.extend([*state, 0x8f]);
        body.extend(number.to_be_bytes());
        body.extend([0, 0, 0, ports.len() as u8]);
        ports.iter().for_each(|p| body.extend([0, 0, (p >> 8) as u8, *p as u8]));
    }
    [&(body.len() as u32).to_be_bytes()[..], &body].concat()
}

fn groups() -> impl Strategy<Value = Vec<Wire>> {
    let state = (prop::sample::select(vec![0, 1, 2, 3, 4, 0xe, 0xf]), any::<bool>());
    let group = (state, any::<u16>(), prop::collection::vec(any::<u16>(), 0..6));
    let group = group.prop_map(|((state, preferred), number, ports)| (state | u8::from(preferred) << 7, number, ports));
    prop::collection::vec(group, 0..20)
}

proptest! {
    #[test]
    fn what_is_said_is_read(said in groups()) {
        let read = PortGroups::parse(&answer(&said)).expect("long enough");
        let read: Vec<Wire> = (read.groups.into_iter())
            .map(|g| (g.state as u8 | u8::from(g.preferred) << 7, g.group, g.ports))
            .collect();
        prop_assert_eq!(read, said);
    }

    #[test]
    fn any_bytes_are_taken(
        designation in prop::collection::vec(any::<u8>(), 0..80),
        told in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let read = PortGroups::parse(&told);
        prop_assert_eq!(read.is_some(), told.len() >= 4);
        for group in read.iter().flat_map(|r| &r.groups) {
            prop_assert!(group.ports.len() <= MAX_PORTS && group.priority(true) <= 130);
        }
        prop_assert!(read.iter().all(|r| r.groups.len() <= MAX_GROUPS));
        let support = Support::parse(&told);
        if let Some(access) = Access::new(support, &designation, &told) {
            prop_assert_eq!(own_group(&designation).map(|(group, _)| group), Some(access.group.group));
        }
    }

    /// One byte of a valid answer is changed, or the answer is truncated.
    #[test]
    fn a_damaged_answer_is_taken(said in groups(), at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
        let mut bytes = answer(&said);
        let n = at.index(bytes.len());
        bytes[n] = byte;
        bytes.truncate(cut.index(bytes.len() + 1));
        let read = PortGroups::parse(&bytes);
        prop_assert_eq!(read.is_some(), bytes.len() >= 4);
        let ports: usize = read.iter().flat_map(|r| &r.groups).map(|g| g.ports.len()).sum();
        prop_assert!(ports * 4 <= bytes.len());
    }
}
