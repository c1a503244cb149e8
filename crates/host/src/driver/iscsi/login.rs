// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The login of a session: security and operational negotiation, as a state machine over headers and text; no I/O.
//!
//! Guarantees: any answer is accepted as input; an answer that does not belong to a login is refused, and a login ends after at most
//! [`MAX_ROUNDS`] requests. Negotiated values ([`Params`]) are within their ranges. A login succeeds only after a target that has to prove
//! its identity has done so, with a challenge that only we use. Does not do: error recovery levels above 0, several connections of a
//! session, markers, Kerberos, SRP.
//! Source: RFC 7143, 6 (text), 7 (login), 12 (authentication), 13 (keys).

use super::chap;
use super::pdu::{Header, Pdu, Stage, Violation};
use crate::driver::remote::dial::printable;
use crate::error::{Error, ErrorKind};
use std::fmt;

/// Maximum number of requests of one login.
pub const MAX_ROUNDS: u32 = 32;
/// Maximum number of text of one answer, over several messages.
const MAX_TEXT: usize = 64 << 10;
/// Longest text of one request; every target accepts this length.
const MAX_REQUEST_TEXT: usize = 8192;
/// Largest data segment that we accept: as much as one receive can return.
pub const MAX_RECV_DATA: u32 = 256 << 10;
const ASKED_MAX_BURST: u32 = 16_776_192;
const ASKED_FIRST_BURST: u32 = 256 << 10;
/// Lengths are below 2^24.
const LENGTHS: std::ops::RangeInclusive<u32> = 512..=0xff_ffff;

/// A text that `Debug` does not print.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Returns the text itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Secret {
        Secret(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "(secret)" })
    }
}

/// A name and its password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chap {
    /// The name.
    pub user: String,
    /// The password.
    pub password: Secret,
}

/// What a login asks for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Our name.
    pub initiator: String,
    /// The target's name; `None`: a discovery session.
    pub target: Option<String>,
    /// Our part of the session identifier.
    pub isid: [u8; 6],
    /// Our CHAP name and password.
    pub chap: Option<Chap>,
    /// The CHAP name and password of the target.
    pub target_chap: Option<Chap>,
    /// A challenge for the target that was not used before.
    pub challenge: [u8; 16],
    /// Digests of headers.
    pub header_digest: bool,
    /// Digests of data.
    pub data_digest: bool,
}

/// What was negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// No unsolicited data, except immediate data.
    pub initial_r2t: bool,
    /// Data may go with its command.
    pub immediate_data: bool,
    /// Maximum number of bytes of unsolicited data.
    pub first_burst: u32,
    /// Maximum number of bytes of one R2T sequence.
    pub max_burst: u32,
    /// Maximum number of bytes of a data segment that the target accepts.
    pub max_send_data: u32,
    /// Digests of headers.
    pub header_digest: bool,
    /// Digests of data.
    pub data_digest: bool,
    /// The target's handle of the session.
    pub tsih: u16,
    /// The portal group that it is in: with the target's name the target's end of the nexus (RFC 7143, 13.9). `None`: the target
    /// did not send it, or it cannot be read.
    pub portal_group: Option<u16>,
}

impl Default for Params {
    /// The defaults of keys that are not negotiated (RFC 7143, 13).
    fn default() -> Params {
        Params {
            initial_r2t: true,
            immediate_data: true,
            first_burst: 64 << 10,
            max_burst: 256 << 10,
            max_send_data: 8192,
            header_digest: false,
            data_digest: false,
            tsih: 0,
            portal_group: None,
        }
    }
}

/// Why a login has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The target violates the protocol, or lacks what is needed.
    Violation(String),
    /// The target does not accept our name or password, or denies access.
    Refused(String),
    /// The portal has no such target.
    NotFound(String),
    /// The target cannot log us in now.
    Busy(String),
    /// The target did not prove its identity.
    Impostor(String),
}

impl From<Violation> for Failure {
    fn from(violation: Violation) -> Failure {
        Failure::Violation(violation.0)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        let (kind, text) = match failure {
            Failure::Violation(text) => (ErrorKind::Io, format!("the target violates the protocol: {text}")),
            Failure::Refused(text) | Failure::Impostor(text) => (ErrorKind::Denied, text),
            Failure::NotFound(text) => (ErrorKind::NotFound, text),
            Failure::Busy(text) => (ErrorKind::Io, text),
        };
        Error::new(kind, text)
    }
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Another request.
    Continue,
    /// The target is elsewhere: address as `HOST[:PORT][,GROUP]`.
    Redirect(String),
    /// The session is in its full feature phase.
    Done(Params),
}

/// Progress of the security stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Send the names, and the ways to prove them.
    Offer,
    /// CHAP was chosen: send the algorithms.
    Algorithm,
    /// The target has sent its challenge: send the answer.
    Answer,
    /// Send the operational keys.
    Operational,
    /// No keys are left to send.
    Agree,
}

/// See the module's text.
pub struct Login {
    wanted: Wanted,
    step: Step,
    stage: Stage,
    rounds: u32,
    answer: Vec<u8>,
    /// More messages of this answer follow.
    more: bool,
    /// Identifier and challenge of the target's CHAP.
    challenge: Option<(u8, Vec<u8>)>,
    /// The target has proved its identity.
    is_proved: bool,
    params: Params,
}

const TAG: u32 = 0;
/// Identifier of the initiator's challenge.
const OUR_ID: u8 = 0x4d;

impl Login {
    /// Makes a login that has not begun.
    ///
    /// The login begins with the security stage, even if no identity has to be proved. After a login without that stage, tgt may not end
    /// the session that the new one replaces. A late write of the old session is then carried out
    /// (`multipath.rs::a_late_write_of_a_silent_path_does_not_overwrite_a_newer_one`).
    pub fn new(wanted: Wanted) -> Login {
        Login {
            wanted,
            step: Step::Offer,
            stage: Stage::Security,
            rounds: 0,
            answer: Vec::new(),
            more: false,
            challenge: None,
            is_proved: false,
            params: Params::default(),
        }
    }

    /// Returns the next request: its header, without sequence numbers, and its text.
    pub fn request(&mut self) -> Result<(Header, Vec<u8>), Failure> {
        self.rounds += 1;
        if self.rounds > MAX_ROUNDS {
            return Err(Failure::Violation(format!("the login did not end after {MAX_ROUNDS} requests")));
        }
        let mut text = Vec::new();
        let next = if self.more { None } else { self.say(&mut text) };
        if text.len() > MAX_REQUEST_TEXT {
            let (n, most) = (text.len(), MAX_REQUEST_TEXT);
            return Err(Failure::Refused(format!("names and passwords make {n} bytes of text, more than {most}")));
        }
        let header = Header::login(TAG, self.wanted.isid, self.params.tsih, self.stage, next, false);
        Ok((header.with_data(text.len() as u32), text))
    }

    /// Appends the keys of this step to `text`. Returns the stage that is to be next, if any.
    fn say(&self, text: &mut Vec<u8>) -> Option<Stage> {
        let wanted = &self.wanted;
        let mut put = |key: &str, value: &str| text.extend_from_slice(format!("{key}={value}\0").as_bytes());
        match self.step {
            Step::Offer => {
                put("InitiatorName", &wanted.initiator);
                match &wanted.target {
                    Some(target) => {
                        put("TargetName", target);
                        put("SessionType", "Normal");
                    }
                    None => put("SessionType", "Discovery"),
                }
                let methods = match (&wanted.chap, &wanted.target_chap) {
                    (None, _) => "None",
                    (Some(_), None) => "CHAP,None",
                    (Some(_), Some(_)) => "CHAP",
                };
                put("AuthMethod", methods);
                wanted.chap.is_none().then_some(Stage::Operational)
            }
            Step::Algorithm => {
                put("CHAP_A", "5");
                None
            }
            Step::Answer => {
                let (Some(chap), Some((id, challenge))) = (&wanted.chap, &self.challenge) else { return None };
                put("CHAP_N", &chap.user);
                put("CHAP_R", &chap::to_hex(&chap::respond(*id, chap.password.expose().as_bytes(), challenge)));
                if wanted.target_chap.is_some() {
                    put("CHAP_I", &OUR_ID.to_string());
                    put("CHAP_C", &chap::to_hex(&wanted.challenge));
                }
                Some(Stage::Operational)
            }
            Step::Operational => {
                let digest = |wanted: bool| if wanted { "CRC32C" } else { "None" };
                put("HeaderDigest", digest(wanted.header_digest));
                put("DataDigest", digest(wanted.data_digest));
                put("MaxRecvDataSegmentLength", &MAX_RECV_DATA.to_string());
                put("ErrorRecoveryLevel", "0");
                put("DefaultTime2Wait", "0");
                put("DefaultTime2Retain", "0");
                if wanted.target.is_some() {
                    put("InitialR2T", "No");
                    put("ImmediateData", "Yes");
                    put("MaxBurstLength", &ASKED_MAX_BURST.to_string());
                    put("FirstBurstLength", &ASKED_FIRST_BURST.to_string());
                    put("MaxOutstandingR2T", "1");
                    put("MaxConnections", "1");
                    put("DataPDUInOrder", "Yes");
                    put("DataSequenceInOrder", "Yes");
                }
                Some(Stage::FullFeature)
            }
            Step::Agree if self.stage == Stage::Security => Some(Stage::Operational),
            Step::Agree => Some(Stage::FullFeature),
        }
    }

    /// Handles an answer: its header and its data.
    pub fn feed(&mut self, pdu: &Pdu, data: &[u8]) -> Result<Progress, Failure> {
        let Pdu::Login { tag, stage, next, more, tsih, class, detail } = *pdu else {
            return Err(Failure::Violation("a Login Request was answered by another PDU".into()));
        };
        if tag != TAG {
            return Err(Failure::Violation("a Login Response with the tag of another login".into()));
        }
        if self.answer.len() + data.len() > MAX_TEXT {
            return Err(Failure::Violation(format!("more than {MAX_TEXT} bytes of text")));
        }
        self.answer.extend_from_slice(data);
        self.more = more;
        if more {
            return Ok(Progress::Continue);
        }
        let answer = std::mem::take(&mut self.answer);
        let keys = keys(&answer)?;
        if class == 1 {
            let address = keys.iter().find(|(key, _)| *key == "TargetAddress");
            let (_, address) = address.ok_or(Failure::Violation("a login redirect without TargetAddress".into()))?;
            return Ok(Progress::Redirect((*address).to_owned()));
        }
        if class != 0 {
            return Err(self.refusal(class, detail));
        }
        if stage != self.stage {
            return Err(Failure::Violation(format!("a Login Response of stage {stage:?}, not {:?}", self.stage)));
        }
        if let Some((_, tag)) = keys.iter().find(|(key, _)| *key == "TargetPortalGroupTag") {
            self.params.portal_group = portal_group(tag);
        }
        match self.stage {
            Stage::Security => self.secure(&keys, next)?,
            _ => self.agree(&keys)?,
        }
        self.advance(next, tsih)
    }

    fn advance(&mut self, next: Option<Stage>, tsih: u16) -> Result<Progress, Failure> {
        let Some(next) = next else { return Ok(Progress::Continue) };
        if next as u8 <= self.stage as u8 {
            return Err(Failure::Violation("a login stage that was already completed".into()));
        }
        if self.wanted.target_chap.is_some() && !self.is_proved {
            return Err(Failure::Impostor(
                "the target did not authenticate itself; remove target_user if it cannot".into(),
            ));
        }
        if next == Stage::FullFeature {
            if self.stage == Stage::Security {
                return Err(Failure::Violation("operational negotiation was skipped".into()));
            }
            self.params.tsih = tsih;
            return Ok(Progress::Done(self.params));
        }
        (self.stage, self.step) = (next, Step::Operational);
        Ok(Progress::Continue)
    }

    fn secure(&mut self, keys: &[(&str, &str)], next: Option<Stage>) -> Result<(), Failure> {
        let value = |key: &str| keys.iter().find(|(k, _)| *k == key).map(|(_, value)| *value);
        match self.step {
            Step::Offer => match value("AuthMethod") {
                Some("CHAP") if self.wanted.chap.is_some() => self.step = Step::Algorithm,
                Some("None") | None if self.wanted.target_chap.is_none() => self.step = Step::Agree,
                Some("None") | None => {
                    return Err(Failure::Impostor(
                        "the target does not authenticate itself; remove target_user".into(),
                    ));
                }
                Some(method) => return Err(Failure::Refused(self.no_method(method))),
            },
            Step::Algorithm => {
                if value("CHAP_A") != Some("5") {
                    return Err(Failure::Refused(
                        "the target's CHAP algorithm is not MD5, the only one that mqblk supports".into(),
                    ));
                }
                let id = value("CHAP_I").and_then(|id| id.parse::<u8>().ok());
                let challenge = value("CHAP_C").and_then(chap::from_text).filter(|c| !c.is_empty());
                let (Some(id), Some(challenge)) = (id, challenge) else {
                    return Err(Failure::Violation("CHAP without a valid challenge".into()));
                };
                // Otherwise a target could make us answer its own challenge (reflection).
                if challenge == self.wanted.challenge {
                    return Err(Failure::Impostor("the target reflected our CHAP challenge".into()));
                }
                (self.challenge, self.step) = (Some((id, challenge)), Step::Answer);
            }
            Step::Answer => {
                if let Some(target) = &self.wanted.target_chap {
                    let expected = chap::respond(OUR_ID, target.password.expose().as_bytes(), &self.wanted.challenge);
                    let answer = value("CHAP_R").and_then(chap::from_text).unwrap_or_default();
                    if value("CHAP_N") != Some(&target.user) || !chap::is_same(&expected, &answer) {
                        return Err(Failure::Impostor(format!(
                            "the target failed to authenticate as '{}': its user name or password differs",
                            target.user
                        )));
                    }
                    self.is_proved = true;
                }
                self.step = Step::Agree;
            }
            Step::Operational | Step::Agree => {}
        }
        // A target that has not proved itself may not go to the next stage.
        if next.is_some() && matches!(self.step, Step::Algorithm | Step::Answer) {
            return Err(Failure::Violation("the security stage ended before authentication was complete".into()));
        }
        Ok(())
    }

    fn agree(&mut self, keys: &[(&str, &str)]) -> Result<(), Failure> {
        let params = &mut self.params;
        for (key, value) in keys {
            if matches!(*value, "NotUnderstood" | "Irrelevant" | "Reject") {
                continue;
            }
            let number = |range: std::ops::RangeInclusive<u32>| {
                let n = value.parse::<u32>().ok().filter(|n| range.contains(n));
                n.ok_or_else(|| Failure::Violation(format!("{key}={}: out of its range", printable(value))))
            };
            let digest = |wanted: bool| match (*value, wanted) {
                ("None", false) => Ok(false),
                ("CRC32C", true) => Ok(true),
                ("None", true) => Err(Failure::Refused(format!(
                    "{key}: the target supports none; remove header_digest and data_digest"
                ))),
                _ => Err(Failure::Violation(format!("{key}={}: was not offered", printable(value)))),
            };
            match *key {
                "HeaderDigest" => params.header_digest = digest(self.wanted.header_digest)?,
                "DataDigest" => params.data_digest = digest(self.wanted.data_digest)?,
                "MaxRecvDataSegmentLength" => params.max_send_data = number(LENGTHS)?,
                "InitialR2T" => params.initial_r2t = *value == "Yes",
                "ImmediateData" => params.immediate_data = *value == "Yes",
                // A larger burst than was asked for is not used, because all of it would be held ready to be sent.
                "MaxBurstLength" => params.max_burst = number(LENGTHS)?.min(ASKED_MAX_BURST),
                "FirstBurstLength" => params.first_burst = number(LENGTHS)?.min(ASKED_FIRST_BURST),
                "ErrorRecoveryLevel" => {
                    number(0..=0)?;
                }
                "DataPDUInOrder" | "DataSequenceInOrder" if *value != "Yes" => {
                    return Err(Failure::Violation(format!("{key}={}: must be Yes", printable(value))));
                }
                // Alias and others: ignored.
                _ => {}
            }
        }
        params.first_burst = params.first_burst.min(params.max_burst);
        let lacks =
            (self.wanted.header_digest && !params.header_digest) || (self.wanted.data_digest && !params.data_digest);
        if lacks && self.step == Step::Operational {
            let text = "the target supports no CRC32C digests; remove header_digest and data_digest";
            return Err(Failure::Refused(text.into()));
        }
        self.step = Step::Agree;
        Ok(())
    }

    fn no_method(&self, method: &str) -> String {
        match self.wanted.chap {
            None => "the target requires CHAP; write USER@ before the host, and its password in LIBISCSI_CHAP_PASSWORD"
                .into(),
            Some(_) => {
                format!(
                    "the target requires authentication by '{}', but mqblk supports only CHAP; enable CHAP at the \
                     target",
                    printable(method)
                )
            }
        }
    }

    /// Returns the failure for a login status (RFC 7143, 11.13.5).
    fn refusal(&self, class: u8, detail: u8) -> Failure {
        let target = self.wanted.target.as_deref().unwrap_or("discovery");
        match (class, detail) {
            (2, 1) => match &self.wanted.chap {
                Some(chap) => Failure::Refused(format!(
                    "the target rejected the login of user '{}': wrong user name or password",
                    chap.user
                )),
                None => Failure::Refused(self.no_method("")),
            },
            (2, 2) => Failure::Refused(format!(
                "the target does not allow initiator '{}' to use {target}: allow it there, or set another initiator=",
                self.wanted.initiator
            )),
            (2, 3) => Failure::NotFound(format!(
                "there is no target {target} here; 'mqblk discover iscsi://HOST' lists the targets"
            )),
            (2, 4) => Failure::NotFound(format!("target {target} was removed and has no other address")),
            (2, 6) => Failure::Refused("the target has too many connections: lower sessions=".into()),
            (2, code) => Failure::Refused(format!("the login was refused (initiator error {code:#04x})")),
            (3, 1) if self.wanted.target.is_some() => Failure::Busy(format!(
                "{target} is unavailable, or unknown (Linux's target reports both in the same way): 'mqblk discover iscsi://HOST' \
                 lists the targets"
            )),
            (3, code) => Failure::Busy(format!("the target is unavailable (target error {code:#04x})")),
            (class, code) => Failure::Violation(format!("login status {class:#04x}{code:02x}")),
        }
    }
}

/// Parses a portal group's number, decimal or hexadecimal (RFC 7143, 6.1).
fn portal_group(tag: &str) -> Option<u16> {
    match tag.strip_prefix("0x").or(tag.strip_prefix("0X")) {
        Some(hex) => u16::from_str_radix(hex, 16).ok(),
        None => tag.parse().ok(),
    }
}

/// Parses the keys and values of a text.
pub(super) fn keys(bytes: &[u8]) -> Result<Vec<(&str, &str)>, Failure> {
    let mut all = Vec::new();
    for item in bytes.split(|b| *b == 0).filter(|item| !item.is_empty()) {
        let pair = std::str::from_utf8(item).ok().and_then(|item| item.split_once('='));
        all.push(pair.ok_or_else(|| Failure::Violation("a text is no list of keys and values".into()))?);
    }
    Ok(all)
}

/// A target that a portal reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its name.
    pub name: String,
    /// Its portals.
    pub portals: Vec<FoundPortal>,
}

/// A portal of a target, as another portal reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPortal {
    /// `HOST:PORT`.
    pub address: String,
    /// The number of its portal group: sessions with portals of one group may share connections. `None`: it was not sent.
    pub group: Option<u16>,
}

/// Longest name or address that is accepted: a host's name with its port, or RFC 7143's longest target name.
const MAX_FOUND: usize = 300;

/// Reads the answer to SendTargets. The returned names and addresses are printable.
pub fn found(text: &[u8]) -> Result<Vec<Found>, Failure> {
    let mut all: Vec<Found> = Vec::new();
    for (key, value) in keys(text)? {
        match (key, all.last_mut()) {
            _ if value.len() > MAX_FOUND || value.chars().any(|c| c.is_control() || c.is_whitespace()) => {
                return Err(Failure::Violation(format!(
                    "{}={}: no name, no address",
                    printable(key),
                    printable(value)
                )));
            }
            ("TargetName", _) => all.push(Found { name: value.to_owned(), portals: Vec::new() }),
            ("TargetAddress", Some(last)) => {
                let (address, group) = value.rsplit_once(',').unwrap_or((value, ""));
                last.portals.push(FoundPortal { address: address.to_owned(), group: group.parse().ok() });
            }
            _ => {}
        }
    }
    Ok(all)
}

#[cfg(test)]
#[path = "login_tests.rs"]
mod tests;
