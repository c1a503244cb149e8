// SPDX-License-Identifier: Apache-2.0 OR MIT
//! ALUA (asymmetric logical unit access): which ports are preferred, and how a port group is activated.
//!
//! Guarantees: any bytes are accepted as an answer to REPORT TARGET PORT GROUPS, truncated anywhere; at most
//! [`MAX_GROUPS`] groups of [`MAX_PORTS`] ports are kept. Priorities are those of multipath-tools. Does not do: send
//! commands, or wait. [`super::disposition`] decides how requests complete while states change. Source: SPC-5 (5.18,
//! 6.36, 6.45, 7.7.6.8); libmultipath/prioritizers/alua.c of multipath-tools 0.14;
//! drivers/scsi/device_handler/scsi_dh_alua.c of Linux 6.19.

use super::cdb::Cdb;
use super::disposition::{HostByte, sam};
use super::inquiry::{page, vpd};
use super::sense::SenseKey;
use super::transport::Probed;
use crate::multipath::PgInit;
use crate::time::Duration;

/// Maximum number of groups that are read from an answer.
pub const MAX_GROUPS: usize = 64;
/// Maximum number of ports that are read of a group.
pub const MAX_PORTS: usize = 64;
/// Allocation length of REPORT TARGET PORT GROUPS.
pub const ANSWER_BYTES: u32 = 4096;
/// Time limit of a transition, unless the device reports one (`ALUA_FAILOVER_TIMEOUT`).
pub const TRANSITION_TIME: Duration = Duration::from_secs(60);
/// Interval between REPORT TARGET PORT GROUPS commands during a transition (`ALUA_RTPG_RETRY_DELAY`).
pub const TRANSITION_LOOK: Duration = Duration::from_secs(2);

/// How a group of ports serves a logical unit (asymmetric access state).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum AccessState {
    /// Active/optimized: as fast as any group.
    Optimized = 0x0,
    /// Active/non-optimized: slower.
    NonOptimized = 0x1,
    /// Standby: serves no I/O before it is activated.
    Standby = 0x2,
    /// Unavailable: serves no I/O, and activation does not help now.
    Unavailable = 0x3,
    /// LBA dependent: some blocks are as fast as on any group.
    LbaDependent = 0x4,
    /// Offline.
    Offline = 0xe,
    /// The state is about to change.
    Transitioning = 0xf,
}

impl AccessState {
    fn from_bits(bits: u8) -> Option<AccessState> {
        Some(match bits & 0xf {
            0x0 => AccessState::Optimized,
            0x1 => AccessState::NonOptimized,
            0x2 => AccessState::Standby,
            0x3 => AccessState::Unavailable,
            0x4 => AccessState::LbaDependent,
            0xe => AccessState::Offline,
            0xf => AccessState::Transitioning,
            _ => return None,
        })
    }

    /// Whether requests may be sent to a group in this state (`alua_prep_fn`).
    pub fn takes_requests(self) -> bool {
        !matches!(self, AccessState::Standby | AccessState::Unavailable | AccessState::Offline)
    }
}

impl core::fmt::Display for AccessState {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            AccessState::Optimized => "active/optimized",
            AccessState::NonOptimized => "active/non-optimized",
            AccessState::Standby => "standby",
            AccessState::Unavailable => "unavailable",
            AccessState::LbaDependent => "lba-dependent",
            AccessState::Offline => "offline",
            AccessState::Transitioning => "transitioning",
        })
    }
}

/// A group of ports of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortGroup {
    /// Its number.
    pub group: u16,
    /// The access state of the group.
    pub state: AccessState,
    /// The preferred bit: the device's own choice among its groups.
    pub preferred: bool,
    /// Relative numbers of its ports.
    pub ports: Vec<u16>,
}

impl PortGroup {
    /// Returns the priority of a path through this group, as `prio "alua"`. With `exclusive_pref`, a group that is both
    /// preferred and optimized has the highest priority.
    pub fn priority(&self, exclusive_pref: bool) -> u32 {
        let by_state = match self.state {
            AccessState::Optimized => 50,
            AccessState::NonOptimized => 10,
            AccessState::LbaDependent => 5,
            AccessState::Standby => 1,
            AccessState::Unavailable | AccessState::Offline | AccessState::Transitioning => 0,
        };
        // Without the option, a preferred optimized group has the same priority as other optimized groups.
        let is_above = self.preferred && (exclusive_pref || self.state != AccessState::Optimized);
        by_state + if is_above { 80 } else { 0 }
    }
}

/// An answer to REPORT TARGET PORT GROUPS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortGroups {
    /// Groups in the order of the answer; groups with an unknown state are left out.
    pub groups: Vec<PortGroup>,
    /// How long a transition may take, if the answer says so.
    pub transition: Option<Duration>,
}

impl PortGroups {
    /// Parses an answer, with or without the extended header; `None` if it is too short.
    pub fn parse(bytes: &[u8]) -> Option<PortGroups> {
        let told = u32::from_be_bytes(*bytes.first_chunk()?) as usize;
        let body = &bytes[4..];
        let body = body.get(..told).unwrap_or(body);
        // In the first byte of a group these bits are zero.
        let is_extended = body.first().is_some_and(|format| format & 0x70 == 0x10);
        let seconds = body.get(1).copied().filter(|s| is_extended && *s > 0);
        let mut list = if is_extended { body.get(4..).unwrap_or_default() } else { body };
        let mut groups = Vec::new();
        while groups.len() < MAX_GROUPS
            && let Some((head, rest)) = list.split_first_chunk::<8>()
        {
            let [first, _, high, low, _, _, _, ports] = *head;
            let bytes = usize::from(ports) * 4;
            let all = rest.get(..bytes).unwrap_or(rest);
            let ports = all.chunks_exact(4).take(MAX_PORTS).map(|p| u16::from_be_bytes([p[2], p[3]])).collect();
            if let Some(state) = AccessState::from_bits(first) {
                let group = u16::from_be_bytes([high, low]);
                groups.push(PortGroup { group, state, preferred: first & 0x80 != 0, ports });
            }
            list = rest.get(bytes..).unwrap_or_default();
        }
        Some(PortGroups { groups, transition: seconds.map(|s| Duration::from_secs(s.into())) })
    }

    /// Returns how long a transition may take; [`TRANSITION_TIME`] if the answer does not say.
    pub(crate) fn transition_time(&self) -> Duration {
        self.transition.unwrap_or(TRANSITION_TIME)
    }

    /// The group of this number.
    pub fn group(&self, number: u16) -> Option<&PortGroup> {
        self.groups.iter().find(|g| g.group == number)
    }
}

/// The ALUA support of a unit (TPGS field of standard INQUIRY data, byte 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Support {
    /// The unit changes access states by itself.
    pub implicit: bool,
    /// The unit changes access states on SET TARGET PORT GROUPS.
    pub explicit: bool,
}

impl Support {
    /// Parses standard INQUIRY data; truncated data means no support.
    pub fn parse(inquiry: &[u8]) -> Support {
        let flags = inquiry.get(5).copied().unwrap_or(0);
        Support { implicit: flags & 0x10 != 0, explicit: flags & 0x20 != 0 }
    }
}

/// Returns the group and the relative port of this path: designators of types 5 and 4 in page 0x83 that are associated
/// with the port.
pub fn own_group(designation: &[u8]) -> Option<(u16, Option<u16>)> {
    let mut list = page(designation, vpd::DEVICE_IDENTIFICATION).unwrap_or_default();
    let (mut group, mut port) = (None, None);
    while let [_, kinds, _, len, rest @ ..] = list {
        let Some(name) = rest.get(..usize::from(*len)) else { break };
        if let ([_, _, high, low], 0x10) = (name, kinds & 0x30) {
            let number = u16::from_be_bytes([*high, *low]);
            match kinds & 0xf {
                0x5 => group = Some(number),
                0x4 => port = Some(number),
                _ => {}
            }
        }
        list = &rest[name.len()..];
    }
    Some((group?, port))
}

/// The parameter list of SET TARGET PORT GROUPS that makes one group active/optimized.
pub(crate) fn set_parameters(group: u16) -> [u8; 8] {
    let [high, low] = group.to_be_bytes();
    [0, 0, 0, 0, AccessState::Optimized as u8, 0, high, low]
}

/// How a target serves the unit on one path; it determines the priority of the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The ALUA support of the unit.
    pub support: Support,
    /// The port group of the path.
    pub group: PortGroup,
    /// How long a transition may take, if the device reported that; else [`TRANSITION_TIME`].
    pub transition: Option<Duration>,
}

impl Access {
    /// Makes the access data of a path from the answers to INQUIRY (standard data and page 0x83) and REPORT TARGET PORT GROUPS.
    /// `None`: the unit has no port groups, or does not report the group of this path, or its answer lacks that group.
    pub fn new(support: Support, designation: &[u8], answer: &[u8]) -> Option<Access> {
        if !(support.implicit || support.explicit) {
            return None;
        }
        let (own, _) = own_group(designation)?;
        let groups = PortGroups::parse(answer)?;
        let group = groups.group(own)?.clone();
        Some(Access { support, group, transition: groups.transition })
    }
}

/// What has to be done for a path before requests are sent there (`alua_stpg`, without `optimize_stpg`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activation {
    /// Nothing: the path takes requests.
    Ready,
    /// SET TARGET PORT GROUPS, then REPORT TARGET PORT GROUPS again.
    Set,
    /// REPORT TARGET PORT GROUPS again after [`TRANSITION_LOOK`].
    Wait,
    /// The path cannot be used.
    Fail,
}

/// Returns what has to be done for a path through group `own`; `in_transition` is how long the group has been in
/// transition.
fn activation(groups: &PortGroups, own: u16, support: Support, in_transition: Duration) -> Activation {
    let Some(group) = groups.group(own) else { return Activation::Fail };
    let limit = groups.transition_time();
    match group.state {
        AccessState::Optimized | AccessState::LbaDependent => Activation::Ready,
        AccessState::NonOptimized if support.explicit => Activation::Set,
        AccessState::NonOptimized => Activation::Ready,
        AccessState::Standby | AccessState::Unavailable if support.explicit => Activation::Set,
        AccessState::Transitioning if in_transition < limit => Activation::Wait,
        // The transition took too long: the group counts as standby (`alua_rtpg`).
        AccessState::Transitioning if support.explicit => Activation::Set,
        AccessState::Standby | AccessState::Unavailable | AccessState::Offline | AccessState::Transitioning => {
            Activation::Fail
        }
    }
}

/// Maximum number of commands of one activation, including repeats after unit attentions and SET TARGET PORT GROUPS.
const MAX_STEPS: u32 = 16;

/// Activates the path that `ask` uses, as a hardware handler of multipath does
/// ([`Handler::activate`](crate::multipath::Handler::activate)). `ask` sends a command with data, or for at most a
/// number of bytes from the device, and waits for its outcome.
///
/// Returns `None` if the device is busy or its state is about to change: call again after [`TRANSITION_LOOK`], with the
/// time since the first such call in `in_transition`. After the time limit of a transition, a group in transition
/// counts as standby, and a device that is still busy is [`PgInit::Failed`]. `known` is the limit that the device has
/// reported before, if any. [`PgInit::Retry`]: the device did not answer. (The kernel's handler requests a retry
/// without a delay, and only when there is no connection. Here a delay is better, because a lost connection takes a
/// moment to return.)
pub fn activate(
    ask: &mut dyn FnMut(&Cdb, &[u8], u32) -> Probed,
    in_transition: Duration,
    known: Option<Duration>,
) -> Option<PgInit> {
    const FAILED: Option<PgInit> = Some(PgInit::Failed);
    let (mut steps, mut limit) = (MAX_STEPS, known.unwrap_or(TRANSITION_TIME));
    let mut answer = |cdb: &Cdb, out: &[u8], most: u32| loop {
        steps = steps.checked_sub(1).ok_or(FAILED)?;
        let Probed { outcome, data } = ask(cdb, out, most);
        match (outcome.host, outcome.status, outcome.sense) {
            (HostByte::Ok, sam::GOOD, _) => return Ok(data),
            (HostByte::Ok, sam::CHECK_CONDITION, Some(sense)) => match (sense.key, sense.asc, sense.ascq) {
                (SenseKey::NotReady | SenseKey::UnitAttention, 0x04, 0x0a) => return Err(None),
                (SenseKey::UnitAttention, ..) => {}
                // The device does not support the command.
                (SenseKey::IllegalRequest, ..) => return Ok(Vec::new()),
                _ => return Err(FAILED),
            },
            (HostByte::Ok, sam::BUSY | sam::TASK_SET_FULL, _) => return Err(None),
            (HostByte::Ok, ..) => return Err(FAILED),
            _ => return Err(Some(PgInit::Retry)),
        }
    };
    let mut run = || {
        let support = Support::parse(&answer(&Cdb::inquiry(None, 96), &[], 96)?);
        let names = answer(&Cdb::inquiry(Some(vpd::DEVICE_IDENTIFICATION), 1024), &[], 1024)?;
        let Some((own, _)) = own_group(&names) else { return Err(FAILED) };
        // SET TARGET PORT GROUPS is sent once: a device that does not obey the first will not obey a second.
        for may_order in [true, false] {
            let mut told = answer(&Cdb::report_target_port_groups(ANSWER_BYTES, true), &[], ANSWER_BYTES)?;
            if told.is_empty() {
                told = answer(&Cdb::report_target_port_groups(ANSWER_BYTES, false), &[], ANSWER_BYTES)?;
            }
            let mut groups = PortGroups::parse(&told).unwrap_or_default();
            groups.transition = groups.transition.or(known);
            limit = groups.transition_time();
            match activation(&groups, own, support, in_transition) {
                Activation::Ready => return Ok(()),
                Activation::Wait => return Err(None),
                Activation::Set if may_order => {
                    let list = set_parameters(own);
                    answer(&Cdb::set_target_port_groups(list.len() as u32), &list, 0)?;
                }
                // The group takes I/O, and the device does not make it optimized.
                Activation::Set if groups.group(own).is_some_and(|g| g.state == AccessState::NonOptimized) => {
                    return Ok(());
                }
                Activation::Set | Activation::Fail => return Err(FAILED),
            }
        }
        Err(FAILED)
    };
    match run() {
        Ok(()) => Some(PgInit::Done),
        Err(None) if in_transition >= limit => FAILED,
        Err(how) => how,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::cdb::opcode;
    use crate::scsi::disposition::Outcome;
    use crate::scsi::sense::Sense;

    fn answer(groups: &[(u8, u16, &[u16])], extended: Option<u8>) -> Vec<u8> {
        let mut body = extended.map_or(Vec::new(), |seconds| vec![0x10, seconds, 0, 0]);
        for (state, group, ports) in groups {
            body.extend([*state, 0x0f]);
            body.extend(group.to_be_bytes());
            body.extend([0, 0, 0, ports.len() as u8]);
            ports.iter().for_each(|p| body.extend([0, 0, (p >> 8) as u8, *p as u8]));
        }
        [&(body.len() as u32).to_be_bytes()[..], &body].concat()
    }

    #[test]
    fn groups_are_the_standards_fields() {
        let bytes = answer(&[(0x80, 1, &[1, 2]), (0x02, 0x102, &[3]), (0x0f, 3, &[])], None);
        let read = PortGroups::parse(&bytes).unwrap();
        let first = PortGroup { group: 1, state: AccessState::Optimized, preferred: true, ports: vec![1, 2] };
        assert_eq!(read.groups[0], first);
        assert_eq!(
            read.groups.iter().map(|g| (g.group, g.state)).collect::<Vec<_>>()[1..],
            [(0x102, AccessState::Standby), (3, AccessState::Transitioning)]
        );
        let long = PortGroups::parse(&answer(&[(1, 7, &[9])], Some(30))).unwrap();
        assert_eq!((long.transition, long.groups[0].group), (Some(Duration::from_secs(30)), 7));
    }

    #[test]
    fn any_bytes_are_taken_and_bounded() {
        assert_eq!(PortGroups::parse(&[0, 0, 0]), None);
        assert_eq!(PortGroups::parse(&[0xff; 4]).unwrap(), PortGroups::default());
        let many: Vec<(u8, u16, &[u16])> = (0..500).map(|i| (0, i, &[0; 200][..])).collect();
        let read = PortGroups::parse(&answer(&many, None)).unwrap();
        assert!(read.groups.len() == MAX_GROUPS && read.groups.iter().all(|g| g.ports.len() == MAX_PORTS));
        let bytes = answer(&[(0, 1, &[1, 2, 3]), (1, 2, &[4])], Some(9));
        let mut state = 7_u64;
        for cut in 0..=bytes.len() {
            for flip in 0..200 {
                let mut bytes = bytes[..cut].to_vec();
                if flip > 0 && cut > 0 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    bytes[(state >> 33) as usize % cut] = (state >> 55) as u8;
                }
                let read = PortGroups::parse(&bytes);
                assert_eq!(read.is_some(), cut >= 4);
                let ports: usize = read.iter().flat_map(|r| &r.groups).map(|g| g.ports.len()).sum();
                assert!(ports * 4 <= cut);
                let _ = own_group(&bytes);
            }
        }
    }

    #[test]
    fn priorities_are_those_of_multipath_tools() {
        let group = |state, preferred| PortGroup { group: 1, state, preferred, ports: Vec::new() };
        for (state, plain, preferred, exclusive) in [
            (AccessState::Optimized, 50, 50, 130),
            (AccessState::NonOptimized, 10, 90, 90),
            (AccessState::LbaDependent, 5, 85, 85),
            (AccessState::Standby, 1, 81, 81),
            (AccessState::Unavailable, 0, 80, 80),
            (AccessState::Offline, 0, 80, 80),
        ] {
            let is = [group(state, false).priority(false), group(state, true).priority(false)];
            assert_eq!((is, group(state, true).priority(true)), ([plain, preferred], exclusive), "{state}");
        }
    }

    #[test]
    fn the_way_s_own_group_is_told_from_names_of_the_unit() {
        let naa = [0x01, 0x03, 0, 8, 0x60, 1, 2, 3, 4, 5, 6, 7];
        let [port, group] = [[0x01, 0x14, 0, 4, 0, 0, 0, 2], [0x01, 0x15, 0, 4, 0, 0, 1, 5]];
        let whole = |parts: &[&[u8]]| {
            let body = parts.concat();
            [&[0, 0x83, 0, body.len() as u8][..], &body].concat()
        };
        assert_eq!(own_group(&whole(&[&naa, &port, &group])), Some((0x105, Some(2))));
        assert_eq!(own_group(&whole(&[&naa, &group])), Some((0x105, None)));
        assert_eq!(own_group(&whole(&[&naa, &port])), None);
        assert_eq!(set_parameters(0x105), [0, 0, 0, 0, 0, 0, 1, 5]);
    }

    /// A device with two port groups; the path is in group 2.
    struct Device {
        states: [u8; 2],
        follows: bool,
        /// Outcomes of the next commands, which are not executed.
        first: Vec<Outcome>,
        orders: u32,
        /// How long a transition takes, if the device supports the extended header.
        seconds: Option<u8>,
    }

    impl Device {
        fn answer(&mut self, cdb: &Cdb, out: &[u8], most: u32) -> Probed {
            if let Some(outcome) = self.first.pop() {
                return Probed { outcome, data: Vec::new() };
            }
            let mut data = match (cdb.opcode(), cdb.as_bytes()[1]) {
                (opcode::INQUIRY, 0) => vec![0, 0, 5, 0, 0, 0x30],
                (opcode::INQUIRY, _) => vec![0, 0x83, 0, 8, 0x01, 0x15, 0, 4, 0, 0, 0, 2],
                (opcode::MAINTENANCE_IN, 0x2a) if self.seconds.is_none() => {
                    let outcome = Outcome::check(Sense::new(SenseKey::IllegalRequest, 0x24, 0));
                    return Probed { outcome, data: Vec::new() };
                }
                (opcode::MAINTENANCE_IN, format @ (0x0a | 0x2a)) => {
                    let seconds = self.seconds.filter(|_| format == 0x2a);
                    answer(&[(self.states[0], 1, &[1]), (self.states[1], 2, &[2])], seconds)
                }
                (opcode::MAINTENANCE_OUT, 0x0a) => {
                    assert_eq!(out, set_parameters(2));
                    self.orders += 1;
                    if self.follows {
                        self.states = [2, 0];
                    }
                    Vec::new()
                }
                other => panic!("{other:x?} was not to be sent"),
            };
            data.truncate(most as usize);
            Probed { outcome: Outcome::GOOD, data }
        }
    }

    #[test]
    fn activation_asks_orders_once_and_looks_again() {
        let says = |key, asc, ascq| Outcome::check(Sense::new(key, asc, ascq));
        let attention = says(SenseKey::UnitAttention, 0x2a, 0x06);
        for (state, follows, first, expected, orders) in [
            (0x0, true, vec![], Some(PgInit::Done), 0),
            (0x2, true, vec![attention; 3], Some(PgInit::Done), 1),
            (0x2, false, vec![], Some(PgInit::Failed), 1),
            (0x1, false, vec![], Some(PgInit::Done), 1),
            (0xf, true, vec![], None, 0),
            (0xe, true, vec![], Some(PgInit::Failed), 0),
            (0x2, true, vec![says(SenseKey::NotReady, 4, 0x0a)], None, 0),
            (0x2, true, vec![says(SenseKey::HardwareError, 0x44, 0)], Some(PgInit::Failed), 0),
            (0x2, true, vec![says(SenseKey::IllegalRequest, 0x20, 0)], Some(PgInit::Failed), 0),
            (0x2, true, vec![Outcome::host(HostByte::NoConnect)], Some(PgInit::Retry), 0),
            (0x2, true, vec![Outcome::host(HostByte::TimeOut)], Some(PgInit::Retry), 0),
            (0x2, true, vec![attention; 1000], Some(PgInit::Failed), 0),
        ] {
            for seconds in [None, Some(0), Some(30)] {
                let mut device = Device { states: [0, state], follows, first: first.clone(), orders: 0, seconds };
                let how = activate(&mut |cdb, out, most| device.answer(cdb, out, most), Duration::ZERO, None);
                assert_eq!((how, device.orders), (expected, orders), "state {state:x}, follows {follows}");
            }
        }
    }

    #[test]
    fn a_transition_is_waited_for_as_long_as_it_may_take() {
        let changing = Outcome::check(Sense::new(SenseKey::NotReady, 4, 0x0a));
        for (seconds, first, since, expected) in [
            (None, None, 59, None),
            (None, Some(changing), 59, None),
            (None, Some(changing), 60, Some(PgInit::Failed)),
            (Some(0), Some(changing), 60, Some(PgInit::Failed)),
            (Some(120), None, 119, None),
            (Some(5), None, 4, None),
        ] {
            let first = first.into_iter().collect();
            let mut device = Device { states: [0, 0xf], follows: false, first, orders: 0, seconds };
            let mut ask = |cdb: &Cdb, out: &[u8], most| device.answer(cdb, out, most);
            assert_eq!(activate(&mut ask, Duration::from_secs(since), None), expected, "{seconds:?} {since}");
            assert_eq!(device.orders, 0);
        }
        // The limit that the device reported before applies until it reports another.
        let mut device = Device { states: [0, 0xf], follows: false, first: vec![changing], orders: 0, seconds: None };
        let mut ask = |cdb: &Cdb, out: &[u8], most| device.answer(cdb, out, most);
        assert_eq!(activate(&mut ask, Duration::from_secs(119), Some(Duration::from_secs(120))), None);
        // Then the group counts as standby, and the device is told to activate it.
        let mut device = Device { states: [0, 0xf], follows: true, first: Vec::new(), orders: 0, seconds: Some(5) };
        let mut ask = |cdb: &Cdb, out: &[u8], most| device.answer(cdb, out, most);
        assert_eq!(activate(&mut ask, Duration::from_secs(5), None), Some(PgInit::Done));
        assert_eq!(device.orders, 1);
    }

    #[test]
    fn a_way_is_served_as_its_own_group_is() {
        let designation = [0, 0x83, 0, 8, 0x01, 0x15, 0, 4, 0, 0, 0, 2];
        let told = answer(&[(0x00, 1, &[1]), (0x82, 2, &[2])], None);
        let implicit = Support { implicit: true, explicit: false };
        let access = Access::new(implicit, &designation, &told).unwrap();
        assert_eq!(
            (access.group.state, access.group.preferred, access.group.priority(false)),
            (AccessState::Standby, true, 81)
        );
        assert_eq!(Access::new(Support { implicit: false, ..implicit }, &designation, &told), None);
        assert_eq!(Access::new(implicit, &designation[..4], &told), None, "no group of its own");
        assert_eq!(
            Access::new(implicit, &designation, &answer(&[(0, 1, &[1])], None)),
            None,
            "nothing of its own group"
        );
        assert_eq!(Access::new(implicit, &designation, &told[..3]), None);
    }

    #[test]
    fn a_path_is_activated_as_its_state_wants() {
        let explicit = Support::parse(&[0, 0, 5, 0, 0, 0x30]);
        let implicit = Support::parse(&[0, 0, 5, 0, 0, 0x10]);
        assert_eq!(Support::parse(&[0]), Support { implicit: false, explicit: false });
        let of = |state: u8, support, since| {
            let groups = PortGroups::parse(&answer(&[(state, 4, &[])], None)).unwrap();
            activation(&groups, 4, support, since)
        };
        let now = Duration::ZERO;
        assert_eq!([0, 4].map(|s| of(s, explicit, now)), [Activation::Ready; 2]);
        assert_eq!([1, 2, 3].map(|s| of(s, explicit, now)), [Activation::Set; 3]);
        assert_eq!(of(1, implicit, now), Activation::Ready);
        assert_eq!([2, 3, 0xe].map(|s| of(s, implicit, now)), [Activation::Fail; 3]);
        assert_eq!(of(0xf, implicit, now), Activation::Wait);
        assert_eq!(of(0xf, implicit, TRANSITION_TIME), Activation::Fail);
        assert_eq!(of(0xf, explicit, TRANSITION_TIME), Activation::Set);
        assert_eq!(activation(&PortGroups::default(), 4, explicit, now), Activation::Fail);
        assert!(AccessState::Transitioning.takes_requests() && !AccessState::Standby.takes_requests());
    }
}
