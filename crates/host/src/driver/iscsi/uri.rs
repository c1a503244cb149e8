// SPDX-License-Identifier: Apache-2.0 OR MIT
//! iSCSI URLs as targets: `iscsi://[USER[%PASSWORD]@]HOST[:PORT]/IQN/LUN[?OPTIONS]`.
//!
//! Guarantees: text in, a value or a reason out; nothing is looked up or connected to. The first `%` after the user begins the password,
//! as in libiscsi and QEMU, so neither is percent-encoded. An unknown option is refused. Passwords are not printed by `Debug`, nor by
//! errors.
//! Source: the URL of libiscsi (README) and QEMU's documentation of it.

use super::login::Chap;
use crate::error::{Error, Result};
use blk::scsi::transport::LunId;
use blk::suggest::did_you_mean;
use blk::time::Duration;
use std::fmt;

/// IANA's port for iSCSI.
pub const DEFAULT_PORT: u16 = 3260;
/// Maximum number of sessions of one disk.
pub const MAX_SESSIONS: u16 = 64;
/// Longest times, seconds.
const MAX_SECS: u64 = 86_400;
/// Longest name of a target or initiator (RFC 7143, 4.2.7.1).
pub const MAX_NAME: usize = 223;

const OPTIONS: [&str; 8] = [
    "sessions",
    "initiator",
    "header_digest",
    "data_digest",
    "recovery_timeout",
    "noop_interval",
    "noop_timeout",
    "target_user",
];

/// The address at which a target is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portal {
    /// Host name or IP address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Portal { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl Portal {
    /// Reads `HOST[:PORT]`, with an IPv6 address in brackets.
    pub fn parse(text: &str) -> std::result::Result<Portal, String> {
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or_else(|| format!("'{text}': the ']' is missing"))?,
            None => text.split_at(text.rfind(':').unwrap_or(text.len())),
        };
        let port = match port {
            "" | ":" => DEFAULT_PORT,
            port => {
                let number = port.strip_prefix(':').and_then(|p| p.parse::<u16>().ok()).filter(|p| *p > 0);
                number.ok_or_else(|| format!("'{text}': the port must be 1..=65535"))?
            }
        };
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(format!("'{text}': there is no host in it; write iscsi://HOST/IQN/LUN"));
        }
        Ok(Portal { host: name.to_owned(), port })
    }
}

/// A logical unit of a target, and how it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IscsiTarget {
    /// Where the target is reached.
    pub portal: Portal,
    /// The target's name.
    pub name: String,
    /// The logical unit.
    pub lun: LunId,
    /// Maximum number of sessions, 1..=[`MAX_SESSIONS`]; `None`: the default.
    pub sessions: Option<u16>,
    /// The initiator's name; `None`: the system's, or one made from the host's name.
    pub initiator: Option<String>,
    /// The initiator's CHAP name and password.
    pub chap: Option<Chap>,
    /// The identity that the target must prove.
    pub target_user: Option<String>,
    /// Headers have a digest.
    pub header_digest: bool,
    /// Data has a digest.
    pub data_digest: bool,
    /// How long requests wait for a lost target.
    pub recovery_timeout: Duration,
    /// Silence after which the target is pinged; `None`: never.
    pub noop_interval: Option<Duration>,
    /// Time limit of the answer to a ping.
    pub noop_timeout: Duration,
}

impl IscsiTarget {
    /// Makes a target with defaults for everything else.
    pub fn new(portal: Portal, name: &str, lun: LunId) -> IscsiTarget {
        IscsiTarget {
            portal,
            name: name.to_owned(),
            lun,
            sessions: None,
            initiator: None,
            chap: None,
            target_user: None,
            header_digest: false,
            data_digest: false,
            recovery_timeout: Duration::from_secs(120),
            noop_interval: Some(Duration::from_secs(5)),
            noop_timeout: Duration::from_secs(5),
        }
    }
}

/// Its URL without user and options: one word, with the port.
impl fmt::Display for IscsiTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "iscsi://{}/{}/{}", self.portal, self.name, self.lun.0)
    }
}

/// Whether a target's kind, the text before its first `:`, is that of iSCSI.
pub fn is_scheme(kind: &str) -> bool {
    kind == "iscsi"
}

/// Reads a URL whose scheme is `iscsi`.
pub fn parse(text: &str) -> Result<IscsiTarget> {
    // The message does not contain the text, because it may contain a password.
    read(text).map_err(|problem| Error::usage(format!("target 'iscsi:': {problem}")))
}

fn read(text: &str) -> std::result::Result<IscsiTarget, String> {
    const FORM: &str = "must be iscsi://[USER[%PASSWORD]@]HOST[:PORT]/IQN/LUN[?OPTIONS]";
    let rest = text.strip_prefix("iscsi://").ok_or(FORM)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    check_password(rest, query)?;
    let (authority, path) = rest.split_once('/').ok_or(FORM)?;
    let (name, lun) = path.rsplit_once('/').ok_or_else(|| format!("'{path}': the LUN is missing; {FORM}"))?;
    let lun_number = lun.parse::<u16>().ok().filter(|n| *n <= LunId::MAX);
    let lun_number = lun_number.ok_or_else(|| format!("LUN '{lun}': must be 0..={}", LunId::MAX))?;
    let name = checked_name(name)?;
    made(authority, &name, LunId(lun_number), query)
}

/// Refuses a password that ends too early. What follows its '/' or '?' would be taken for a name or an option, and shown in messages; what
/// precedes the '?' would be looked up as a host. `rest` is the text before the first '?', `query` the text after it.
fn check_password(rest: &str, query: &str) -> std::result::Result<(), String> {
    // Such as target_user, which may have an '@' in its value.
    let is_option =
        |item: &str| item.split_once('=').is_some_and(|(name, _)| OPTIONS.contains(&name.replace('-', "_").as_str()));
    let password = rest.find('%').zip(rest.rfind('@')).and_then(|(from, to)| rest.get(from..to));
    let sign = match password {
        Some(password) if password.contains('/') => '/',
        None if rest.contains('%') && !rest.contains('@') && query.contains('@') => '?',
        _ if rest.contains('%') && query.split(['&', ';']).any(|item| item.contains('@') && !is_option(item)) => '?',
        _ => return Ok(()),
    };
    Err(format!("a password with '{sign}' is not possible in a URL: set LIBISCSI_CHAP_PASSWORD"))
}

/// Reads the URL of a portal, `iscsi://[USER[%PASSWORD]@]HOST[:PORT][?OPTIONS]`, for [`discover`](super::discover): its name is empty.
///
/// # Errors
/// Usage: the text is not such a URL.
pub fn parse_portal(text: &str) -> Result<IscsiTarget> {
    read_portal(text).map_err(|problem| Error::usage(format!("portal 'iscsi:': {problem}")))
}

fn read_portal(text: &str) -> std::result::Result<IscsiTarget, String> {
    const FORM: &str = "must be iscsi://[USER[%PASSWORD]@]HOST[:PORT][?OPTIONS]";
    let rest = text.strip_prefix("iscsi://").ok_or(FORM)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    check_password(rest, query)?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if !path.is_empty() {
        return Err(format!("'/{path}': discovery lists all targets of a portal; leave the path out"));
    }
    made(authority, "", LunId(0), query)
}

fn made(authority: &str, name: &str, lun: LunId, query: &str) -> std::result::Result<IscsiTarget, String> {
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    if !host.starts_with('[') && host.matches(':').count() > 1 {
        return Err(format!("'{host}': write an IPv6 address in brackets, as in iscsi://[::1]:3260"));
    }
    let mut target = IscsiTarget::new(Portal::parse(host)?, name, lun);
    if let Some(user) = user {
        let (user, password) = user.split_once('%').map_or((user, None), |(u, p)| (u, Some(p)));
        if user.is_empty() {
            return Err("there is no user before the '@'; leave the '@' out to log in without a user".into());
        }
        target.chap = Some(Chap { user: user.to_owned(), password: password.unwrap_or_default().into() });
    }
    for item in query.split(['&', ';']).filter(|item| !item.is_empty()) {
        let (name, value) = item.split_once('=').unwrap_or((item, ""));
        option(&mut target, &name.replace('-', "_"), value)?;
    }
    if target.target_user.is_some() && target.chap.is_none() {
        return Err(
            "target_user: a target authenticates itself only to an authenticated initiator; write USER@ before the host".into()
        );
    }
    Ok(target)
}

fn checked_name(name: &str) -> std::result::Result<String, String> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '_') || !c.is_ascii();
    let form =
        ["iqn.", "eui.", "naa."].iter().any(|form| name.len() > 4 && name.to_ascii_lowercase().starts_with(form));
    if !form || name.len() > MAX_NAME || !name.chars().all(is_good) {
        return Err(format!(
            "'{name}': must be a name such as iqn.2026-11.com.example:disks, of at most {MAX_NAME} bytes"
        ));
    }
    Ok(name.to_owned())
}

fn option(target: &mut IscsiTarget, name: &str, value: &str) -> std::result::Result<(), String> {
    let number = |min: u64, max: u64| {
        let n = value.parse::<u64>().ok().filter(|n| (min..=max).contains(n));
        n.ok_or_else(|| format!("{name}={value}: must be {min}..={max}"))
    };
    let digest = || match value {
        "none" => Ok(false),
        "crc32c" => Ok(true),
        _ => Err(format!("{name}={value}: must be none or crc32c")),
    };
    match name {
        "sessions" => target.sessions = Some(number(1, u64::from(MAX_SESSIONS))? as u16),
        "initiator" => target.initiator = Some(checked_name(value)?),
        "header_digest" => target.header_digest = digest()?,
        "data_digest" => target.data_digest = digest()?,
        "recovery_timeout" => target.recovery_timeout = Duration::from_secs(number(0, MAX_SECS)?),
        "noop_interval" => {
            target.noop_interval = Some(number(0, MAX_SECS)?).filter(|n| *n > 0).map(Duration::from_secs);
        }
        "noop_timeout" => target.noop_timeout = Duration::from_secs(number(1, MAX_SECS)?),
        "target_user" if value.is_empty() => return Err("target_user=: must not be empty".into()),
        "target_user" => target.target_user = Some(value.to_owned()),
        _ => {
            let hint = did_you_mean(name, OPTIONS.into_iter());
            return Err(format!("there is no option '{name}'; {hint}Options: {}", OPTIONS.join(", ")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_as_libiscsi_does() {
        let plain = parse("iscsi://127.0.0.1:33260/iqn.2026-11.test:t1/1").unwrap();
        assert_eq!(
            (plain.portal.to_string().as_str(), plain.name.as_str()),
            ("127.0.0.1:33260", "iqn.2026-11.test:t1")
        );
        assert_eq!(plain.to_string(), "iscsi://127.0.0.1:33260/iqn.2026-11.test:t1/1");
        assert_eq!((plain.lun, plain.chap), (LunId(1), None));
        let chap = parse("iscsi://me%se%cr@t@[::1]/iqn.2026-11.test:t1/0?sessions=2&header-digest=crc32c").unwrap();
        assert_eq!(chap.to_string(), "iscsi://[::1]:3260/iqn.2026-11.test:t1/0");
        assert_eq!(chap.portal, Portal { host: "::1".into(), port: DEFAULT_PORT });
        assert_eq!(chap.chap, Some(Chap { user: "me".into(), password: "se%cr@t".into() }));
        assert_eq!((chap.sessions, chap.header_digest, chap.data_digest), (Some(2), true, false));
        assert!(!format!("{chap:?}").contains("se%cr"), "{chap:?}");
        let bare = parse("iscsi://me@h/iqn.a/2?noop_interval=0&recovery_timeout=7").unwrap();
        assert_eq!(bare.chap.unwrap().password, "".into());
        assert_eq!((bare.noop_interval, bare.recovery_timeout), (None, Duration::from_secs(7)));
        let portal = parse_portal("iscsi://me%p@[::1]:1/?initiator=iqn.b").unwrap();
        assert_eq!((portal.portal.to_string().as_str(), portal.name.as_str()), ("[::1]:1", ""));
        assert_eq!((portal.chap.unwrap().user.as_str(), portal.initiator.as_deref()), ("me", Some("iqn.b")));
    }

    #[test]
    fn everything_else_is_refused_with_a_remedy() {
        for (text, part) in [
            ("iscsi:h/iqn.a/1", "must be iscsi://"),
            ("iscsi://h", "must be iscsi://"),
            ("iscsi://h/iqn.a", "the LUN is missing"),
            ("iscsi://h/iqn.a/x", "LUN 'x': must be 0..=16383"),
            ("iscsi://h/disk/1", "must be a name such as iqn."),
            ("iscsi://h:0/iqn.a/1", "the port must be 1..=65535"),
            ("iscsi:///iqn.a/1", "there is no host"),
            ("iscsi://::1/iqn.a/1", "'::1': write an IPv6 address in brackets"),
            ("iscsi://me@fe80::1:3260/iqn.a/1", "'fe80::1:3260': write an IPv6 address in brackets"),
            ("iscsi://@h/iqn.a/1", "no user before the '@'"),
            ("iscsi://h/iqn.a/1?session=2", "did you mean 'sessions'"),
            ("iscsi://h/iqn.a/1?sessions=65", "must be 1..=64"),
            ("iscsi://h/iqn.a/1?data_digest=md5", "must be none or crc32c"),
            ("iscsi://h/iqn.a/1?target_user=t", "write USER@"),
            ("iscsi://me%se/cret@h/iqn.a/1", "a password with '/' is not possible in a URL"),
            ("iscsi://me%se?cret@h/iqn.a/1", "a password with '?' is not possible in a URL"),
            ("iscsi://me%s@e?cret@h/iqn.a/1", "a password with '?' is not possible in a URL"),
        ] {
            let refused = parse(text).unwrap_err().to_string();
            assert!(refused.contains(part), "{text}: {refused}");
        }
        for (text, part) in [
            ("h:3260", "must be iscsi://"),
            ("iscsi://", "there is no host"),
            ("iscsi://h/iqn.a/1", "'/iqn.a/1': discovery lists all targets of a portal"),
            ("iscsi://h?initator=iqn.b", "did you mean 'initiator'"),
            ("iscsi://me%se/cret@h", "a password with '/' is not possible in a URL"),
            // Once, the host was 'me%se', and 'cret@h' an unknown option.
            ("iscsi://me%se?cret@h", "a password with '?' is not possible in a URL"),
            // With an '@' before the '?', the host was 'e'.
            ("iscsi://me%s@e?cret@h", "a password with '?' is not possible in a URL"),
            ("iscsi://me%s@e?cret=a&b@h", "a password with '?' is not possible in a URL"),
            ("iscsi://me%s@e?sessions=1&cret=a@h", "a password with '?' is not possible in a URL"),
        ] {
            let refused = parse_portal(text).unwrap_err().to_string();
            assert!(refused.contains(part) && !refused.contains("cret"), "{text}: {refused}");
        }
        assert!(!parse("iscsi://u%secret@h/disk/1").unwrap_err().to_string().contains("secret"));
        let scoped = parse("iscsi://me%p@[fe80::1%eth0]/iqn.a/1?target_user=t@x").unwrap();
        assert_eq!((scoped.portal.host.as_str(), scoped.target_user.as_deref()), ("fe80::1%eth0", Some("t@x")));
    }
}
