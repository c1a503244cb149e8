// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a server of TCP listens: at an address, or at all addresses that the name of a host has, as nbdkit and QEMU do.
//!
//! Guarantees: there is an address; each is there once, in ascending order, so that equal sets compare equal. A name is resolved once, when
//! the text is read. An address of a name that this host does not have (`::1` without IPv6) is left out if it has another one. Does not do:
//! follow later changes of a name.

use std::fmt;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::str::FromStr;

/// Longest name of a host, bytes. Source: RFC 1035, 2.3.4.
const NAME_MAX: usize = 253;

/// One or several addresses, with one port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TcpListen {
    /// The name that has these addresses; `None`: the only address was given itself.
    name: Option<String>,
    first: SocketAddr,
    more: Vec<SocketAddr>,
}

impl TcpListen {
    /// Returns the name of the host, if it was given.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the lowest address.
    pub fn first(&self) -> SocketAddr {
        self.first
    }

    /// Returns the other addresses.
    pub fn more(&self) -> &[SocketAddr] {
        &self.more
    }

    /// Returns all addresses.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        std::iter::once(self.first).chain(self.more.iter().copied())
    }

    /// Makes it of the addresses of a name; `None`: there are none.
    fn of_name(name: &str, mut all: Vec<SocketAddr>) -> Option<TcpListen> {
        all.sort_unstable();
        all.dedup();
        // Any free port: only the address matters.
        let is_here = |at: &SocketAddr| TcpListener::bind(SocketAddr::new(at.ip(), 0)).is_ok();
        let (mut here, elsewhere): (Vec<_>, Vec<_>) = all.into_iter().partition(is_here);
        if here.is_empty() {
            // Keep these addresses: listening there will show the error.
            here = elsewhere;
        }
        let mut here = here.into_iter();
        Some(TcpListen { name: Some(name.to_owned()), first: here.next()?, more: here.collect() })
    }
}

impl From<SocketAddr> for TcpListen {
    fn from(address: SocketAddr) -> TcpListen {
        TcpListen { name: None, first: address, more: Vec::new() }
    }
}

impl fmt::Display for TcpListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name}:{}", self.first.port()),
            None => write!(f, "{}", self.first),
        }
    }
}

/// The error is the rule, or why the name has no address.
impl FromStr for TcpListen {
    type Err = String;

    fn from_str(text: &str) -> Result<TcpListen, String> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(address.into());
        }
        let rule =
            || "must be an address and a port, such as 127.0.0.1:10809, localhost:10809 or [::]:10809".to_owned();
        let (name, port) = text.rsplit_once(':').ok_or_else(rule)?;
        let port: u16 = port.parse().map_err(|_| rule())?;
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
        // A name has a letter: without one it is a mistyped address.
        if name.len() > NAME_MAX || !name.bytes().all(fits) || !name.bytes().any(|b| b.is_ascii_alphabetic()) {
            return Err(rule());
        }
        let failed = |why: &str| format!("the name '{name}' has no address: {why}; use an address of this host");
        let found = (name, port).to_socket_addrs().map_err(|e| failed(&e.to_string()))?;
        TcpListen::of_name(name, found.collect()).ok_or_else(|| failed("none was found"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_are_read() {
        for address in ["127.0.0.1:10809", "[::1]:10809", "[::]:1", "0.0.0.0:65535"] {
            let listen: TcpListen = address.parse().unwrap();
            assert_eq!((listen.to_string().as_str(), listen.more(), listen.name()), (address, &[][..], None));
        }
        let localhost: TcpListen = "localhost:10809".parse().unwrap();
        assert_eq!((localhost.to_string().as_str(), localhost.name()), ("localhost:10809", Some("localhost")));
        assert!(localhost.addresses().all(|at| at.ip().is_loopback() && at.port() == 10809), "{localhost:?}");
    }

    #[test]
    fn what_is_neither_is_refused_without_a_lookup() {
        let long = format!("{}:1", "a".repeat(254));
        for text in
            ["", "localhost", "x:", ":10809", "127.1:10809", "1.2.3.4.5:1", "::1:10809", "a b:1", "a:65536", &long]
        {
            let why = text.parse::<TcpListen>().unwrap_err();
            assert!(why.starts_with("must be an address and a port"), "{text}: {why}");
        }
    }

    #[test]
    fn addresses_of_a_name_are_sorted_and_here() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (here, other, foreign) = (at("127.0.0.1:9"), at("127.0.0.2:9"), at("192.0.2.1:9"));
        let listen = TcpListen::of_name("a", vec![foreign, other, here, other]).unwrap();
        assert_eq!(listen.addresses().collect::<Vec<_>>(), [here, other]);
        assert_ne!(
            TcpListen::of_name("a", vec![here]),
            Some(listen),
            "a reload that finds others makes the export anew"
        );
        assert_eq!(TcpListen::of_name("a", vec![foreign]).unwrap().first(), foreign, "listening says why it fails");
        assert_eq!(TcpListen::of_name("a", Vec::new()), None);
    }
}
