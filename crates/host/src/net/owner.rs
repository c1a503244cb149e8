// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The owner of a client. Limits count the clients of one owner together, so that an owner gains nothing by more of them.
//!
//! Guarantees: clients of one user of this machine (at Unix sockets) have one owner, and so have clients of one address, or of one IPv6
//! network of 64 bits.

use std::fmt;
use std::net::IpAddr;

/// The owner of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// A user of this machine.
    User(u32),
    /// An address; of an IPv6 network the first one.
    Address(IpAddr),
    /// The system does not tell.
    Unknown,
}

impl Owner {
    /// Returns the owner of clients that come from this address.
    pub(crate) fn of_address(ip: IpAddr) -> Owner {
        Owner::Address(match ip.to_canonical() {
            IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() >> 64 << 64).into()),
            v4 => v4,
        })
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::User(uid) => write!(f, "uid {uid}"),
            Owner::Address(IpAddr::V4(ip)) => write!(f, "{ip}"),
            Owner::Address(IpAddr::V6(ip)) => write!(f, "{ip}/64"),
            Owner::Unknown => f.write_str("unknown"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_a_user_an_address_or_a_network() {
        let of = |ip: &str| Owner::of_address(ip.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.2"), of("10.0.0.1"));
        let named = [of("2001:db8::1"), of("::ffff:10.0.0.1"), Owner::User(0)].map(|owner| owner.to_string());
        assert_eq!(named, ["2001:db8::/64", "10.0.0.1", "uid 0"]);
    }
}
