// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NBD URIs as targets: `nbd://HOST[:PORT]/EXPORT?OPTIONS` and `nbd+unix:///EXPORT?socket=PATH&OPTIONS`, and `nbds` for `nbd` where
//! TLS is required.
//!
//! Guarantees: text in, a value or a reason out; nothing is looked up or connected to. Percent-encoding is undone in the export's name and
//! in values. Unlike in libnbd, an unknown option is refused, because a mistyped option would silently have no effect. A user's name,
//! which is for pre-shared keys, is accepted in a URI of TLS and ignored.
//! Source: the NBD URI specification (doc/uri.md of the reference implementation); nbd_connect_uri(3) of libnbd.

use crate::driver::remote::credentials::TargetTls;
use crate::error::{Error, Result};
use crate::nbd::wire::MAX_STRING;
use blk::suggest::did_you_mean;
use blk::time::Duration;
use std::fmt;
use std::path::PathBuf;

/// Connections of a disk that names no number, if the server allows several.
pub const DEFAULT_CONNECTIONS: u16 = 4;

/// A server's export, and how it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdTarget {
    /// Where the server is.
    pub address: NbdAddress,
    /// The export's name; empty: the server's default.
    pub export: String,
    /// Maximum number of connections, 1..=[`MAX_CONNECTIONS`]; `None`: [`DEFAULT_CONNECTIONS`].
    pub connections: Option<u16>,
    /// How long requests wait for a lost server.
    pub reconnect_delay: Duration,
    /// How long a request waits for its reply; `None`: as long as the connection lasts.
    pub timeout: Option<Duration>,
    /// TLS; `None`: without.
    pub tls: Option<TargetTls>,
    /// Whether all writes carry FUA, so that a completed write is in no cache. Refused if the server has a write cache and no FUA. No
    /// option of the URI: a multipath disk sets it.
    pub write_through: bool,
}

impl Default for NbdTarget {
    fn default() -> Self {
        NbdTarget {
            address: NbdAddress::Tcp("localhost".into(), DEFAULT_PORT),
            export: String::new(),
            connections: None,
            reconnect_delay: Duration::ZERO,
            timeout: None,
            tls: None,
            write_through: false,
        }
    }
}

/// IANA's port for NBD.
pub const DEFAULT_PORT: u16 = 10809;
/// Maximum number of connections of one disk.
pub const MAX_CONNECTIONS: u16 = 64;
/// Longest `reconnect_delay` and `timeout`, seconds.
const MAX_SECS: u64 = 86_400;
/// Longest path that fits into a socket address.
const MAX_SOCKET_PATH: usize = 107;

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdAddress {
    /// Host name or IP address, without brackets, and port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NbdAddress::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            NbdAddress::Tcp(host, port) => write!(f, "{host}:{port}"),
            NbdAddress::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Schemes of URIs, also those that are refused.
const SCHEMES: [&str; 6] = ["nbd", "nbd+unix", "nbds", "nbds+unix", "nbd+vsock", "nbds+vsock"];
const OPTIONS: [&str; 7] =
    ["socket", "connections", "reconnect_delay", "timeout", "tls_certificates", "tls_hostname", "tls_verify_peer"];

/// Whether a target's kind, the text before its first `:`, is one of NBD.
pub fn is_scheme(kind: &str) -> bool {
    SCHEMES.contains(&kind)
}

/// Parses a URI with an NBD scheme ([`is_scheme`]).
pub fn parse(text: &str) -> Result<NbdTarget> {
    read(text).map_err(|problem| Error::usage(format!("target '{text}': {problem}")))
}

fn read(text: &str) -> std::result::Result<NbdTarget, String> {
    const FORMS: &str =
        "must be nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH, with nbds for nbd under TLS";
    let (scheme, rest) = text.split_once("://").ok_or(FORMS)?;
    let (is_unix, is_tls) = match scheme {
        "nbd" | "nbds" => (false, scheme == "nbds"),
        "nbd+unix" | "nbds+unix" => (true, scheme == "nbds+unix"),
        _ => return Err(format!("NBD over this kind of socket is not supported; {FORMS}")),
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    if query.contains('#') || rest.contains('#') {
        return Err("a fragment ('#') is not supported; write %23 for it in a name".into());
    }
    let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
    let export = decode(export)?;
    if export.len() > MAX_STRING {
        return Err(format!("the export's name has {} bytes: must be at most {MAX_STRING}", export.len()));
    }
    let tls = is_tls.then(TargetTls::default);
    let mut target = NbdTarget { address: NbdAddress::Unix(PathBuf::new()), export, tls, ..NbdTarget::default() };
    let mut socket = None;
    for item in query.split(['&', ';']).filter(|item| !item.is_empty()) {
        let (name, value) = item.split_once('=').unwrap_or((item, ""));
        option(&mut target, &mut socket, &name.replace('-', "_"), &decode(value)?)?;
    }
    // Messages do not contain the user, because a password may be with it.
    let authority = match authority.rsplit_once('@') {
        Some((_, host)) if is_tls => host,
        Some((_, host)) => return Err(format!("a user before '@{host}' is for TLS; write nbds:// for nbd://")),
        None if authority.split_once(':').is_some_and(|(_, port)| has_user(port, rest)) => {
            return Err("a user's name with a '/' is not possible; leave the user out".into());
        }
        None => authority,
    };
    target.address = match (is_unix, socket) {
        (true, Some(path)) if authority.is_empty() => NbdAddress::Unix(path.into()),
        (true, Some(_)) => return Err(format!("'{authority}': nbd+unix has no host; {FORMS}")),
        (true, None) => return Err("no socket; add ?socket=PATH".into()),
        (false, Some(_)) => return Err("socket= needs nbd+unix://".into()),
        (false, None) => host(authority)?,
    };
    Ok(target)
}

/// Whether the text before the first `/` is the beginning of a user and password with a `/` in it.
fn has_user(port: &str, rest: &str) -> bool {
    rest.contains('@') && !rest.starts_with('[') && !port.bytes().all(|b| b.is_ascii_digit())
}

fn option(
    target: &mut NbdTarget,
    socket: &mut Option<String>,
    name: &str,
    value: &str,
) -> std::result::Result<(), String> {
    let number = |min: u64, max: u64| {
        let n = value.parse::<u64>().ok().filter(|n| (min..=max).contains(n));
        n.ok_or_else(|| format!("{name}={value}: must be {min}..={max}"))
    };
    match name {
        "socket" if value.is_empty() || value.len() > MAX_SOCKET_PATH => {
            return Err(format!("socket={value}: must be a path of at most {MAX_SOCKET_PATH} bytes"));
        }
        "socket" => *socket = Some(value.to_owned()),
        "connections" => target.connections = Some(number(1, u64::from(MAX_CONNECTIONS))? as u16),
        "reconnect_delay" => target.reconnect_delay = Duration::from_secs(number(0, MAX_SECS)?),
        "timeout" => target.timeout = Some(number(0, MAX_SECS)?).filter(|n| *n > 0).map(Duration::from_secs),
        name if name.starts_with("tls_") => return tls_option(target.tls.as_mut(), name, value, number),
        _ => {
            return Err(unknown(name));
        }
    }
    Ok(())
}

fn unknown(name: &str) -> String {
    let hint = did_you_mean(name, OPTIONS.into_iter());
    format!("there is no option '{name}'; {hint}Options: {}", OPTIONS.join(", "))
}

fn tls_option(
    tls: Option<&mut TargetTls>,
    name: &str,
    value: &str,
    number: impl Fn(u64, u64) -> std::result::Result<u64, String>,
) -> std::result::Result<(), String> {
    const NO_PSK: &str = "only X.509 certificates are supported, not pre-shared keys or anonymous TLS; use \
                          tls-certificates=DIR";
    let known = ["tls_type", "tls_psk_file"].iter().chain(&OPTIONS).any(|option| *option == name);
    let Some(tls) = tls.filter(|_| known) else {
        return Err(if known {
            format!("{name}: has no effect without TLS; write nbds for nbd")
        } else {
            unknown(name)
        });
    };
    match name {
        "tls_certificates" | "tls_hostname" if value.is_empty() => {
            return Err(format!("{name}: must not be empty; leave it out for the default"));
        }
        "tls_certificates" => tls.certificates = Some(value.into()),
        "tls_hostname" => tls.hostname = Some(value.to_owned()),
        "tls_verify_peer" => tls.verify_peer = number(0, 1)? == 1,
        "tls_type" if value == "x509" => {}
        _ => return Err(format!("{name}={value}: {NO_PSK}")),
    }
    Ok(())
}

fn host(authority: &str) -> std::result::Result<NbdAddress, String> {
    let (name, port) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or_else(|| format!("'{authority}': the ']' is missing"))?,
        None => authority.split_at(authority.rfind(':').unwrap_or(authority.len())),
    };
    let port = match port {
        "" | ":" => DEFAULT_PORT,
        port => {
            let number = port.strip_prefix(':').and_then(|p| p.parse::<u16>().ok()).filter(|p| *p > 0);
            number.ok_or_else(|| format!("'{authority}': the port must be 1..=65535"))?
        }
    };
    if name.is_empty() {
        return Err("no host; write nbd://HOST/, or nbd+unix:///?socket=PATH".into());
    }
    Ok(NbdAddress::Tcp(decode(name)?, port))
}

/// Decodes percent-encoding.
fn decode(text: &str) -> std::result::Result<String, String> {
    let wrong = || format!("'{text}': % must be followed by two hexadecimal digits of UTF-8, no zero byte");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(wrong()) };
        bytes.push((high * 16 + low) as u8);
    }
    String::from_utf8(bytes).ok().filter(|t| !t.contains('\0')).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn the_forms_of_the_standard_are_read() {
        let tcp = |host: &str, port| NbdAddress::Tcp(host.into(), port);
        let unix = |path: &str| NbdAddress::Unix(path.into());
        for (text, address, export) in [
            ("nbd://example.com", tcp("example.com", 10809), ""),
            ("nbd://example.com/", tcp("example.com", 10809), ""),
            ("nbd://localhost:1234/disk", tcp("localhost", 1234), "disk"),
            ("nbd://[::1]:7/a/b", tcp("::1", 7), "a/b"),
            ("nbd://[::1]", tcp("::1", 10809), ""),
            ("nbd+unix:///?socket=/tmp/a.sock", unix("/tmp/a.sock"), ""),
            ("nbd+unix:///a%20b%3f?socket=/tmp/%41", unix("/tmp/A"), "a b?"),
            ("nbd+unix:///foo?connections=2&socket=x:y", unix("x:y"), "foo"),
        ] {
            let target = parse(text).unwrap();
            assert_eq!((&target.address, target.export.as_str()), (&address, export), "{text}");
        }
        assert_eq!(parse("nbd://[::1]:7").unwrap().address.to_string(), "[::1]:7");
    }

    #[test]
    fn options_are_read_with_either_dash() {
        let target = parse("nbd://h/d?connections=4&reconnect-delay=30&timeout=5").unwrap();
        assert_eq!((target.connections, target.reconnect_delay), (Some(4), Duration::from_secs(30)));
        assert_eq!(target.timeout, Some(Duration::from_secs(5)));
        let plain = parse("nbd://h/d?timeout=0").unwrap();
        assert_eq!((plain.connections, plain.reconnect_delay, plain.timeout), (None, Duration::ZERO, None));
    }

    #[test]
    fn tls_is_where_the_scheme_says_so() {
        assert_eq!(parse("nbd://h/d").unwrap().tls, None);
        let bare = parse("nbds://h").unwrap();
        assert_eq!((bare.address, bare.tls), (NbdAddress::Tcp("h".into(), 10809), Some(TargetTls::default())));
        assert!(TargetTls::default().verify_peer);
        let full =
            parse("nbds://alice@[::1]:7/d?tls-certificates=/a%20b&tls-type=x509&tls-hostname=n&tls-verify-peer=0");
        let full = full.unwrap();
        assert_eq!(full.address, NbdAddress::Tcp("::1".into(), 7));
        let tls = TargetTls { certificates: Some("/a b".into()), hostname: Some("n".into()), verify_peer: false };
        assert_eq!(full.tls, Some(tls));
        let unix = parse("nbds+unix://alice@/d?socket=s&tls_certificates=p").unwrap();
        assert_eq!((unix.address, unix.tls.unwrap().certificates), (NbdAddress::Unix("s".into()), Some("p".into())));
    }

    #[test]
    fn everything_else_is_refused_with_a_remedy() {
        for (text, part) in [
            ("nbd:localhost:10809", "must be nbd://HOST"),
            ("nbd+unix:///d", "add ?socket=PATH"),
            ("nbd+unix://h/d?socket=a", "has no host"),
            ("nbd://h/d?socket=a", "needs nbd+unix"),
            ("nbd://h/d?tls-certificates=p", "has no effect without TLS; write nbds"),
            ("nbds://h/d?tls-psk-file=k", "not pre-shared keys"),
            ("nbds://h/d?tls-type=anon", "not pre-shared keys or anonymous TLS"),
            ("nbds://h/d?tls-verify-peer=yes", "tls_verify_peer=yes: must be 0..=1"),
            ("nbds://h/d?tls-certificate=p", "did you mean 'tls_certificates'"),
            ("nbds://h/d?tls-certificates=", "must not be empty"),
            ("nbds+unix://u@h/?socket=a", "has no host"),
            ("nbds+unix:///d", "add ?socket=PATH"),
            ("nbds://u@/d", "no host"),
            ("nbd+vsock://2/", "NBD over this kind of socket"),
            ("nbd://", "no host"),
            ("nbd://h:0/", "the port must be 1..=65535"),
            ("nbd://h:99999/", "the port must be"),
            ("nbd://[::1/", "']' is missing"),
            ("nbd://u@h/", "a user before '@h' is for TLS"),
            ("nbds://u:a/b@h/", "a user's name with a '/'"),
            ("nbd://h/%zz", "two hexadecimal digits"),
            ("nbd://h/%00", "no zero byte"),
            ("nbd://h/a#b", "fragment"),
            ("nbd://h/?conections=2", "did you mean 'connections'"),
            ("nbd://h/?connections=0", "connections=0: must be 1..=64"),
            ("nbd://h/?timeout=x", "timeout=x: must be 0..=86400"),
            ("nbd+unix:///?socket=", "must be a path"),
        ] {
            assert!(refused(text).contains(part), "{text}: {}", refused(text));
        }
    }
}
