// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The initiator's side of a login: name, CHAP secrets and session numbers.

use super::login::{Chap, Secret, Wanted};
use super::uri::{IscsiTarget, MAX_NAME};
use crate::error::{Error, Result};
use std::fs;
use std::io::Read;

const PASSWORD: &str = "LIBISCSI_CHAP_PASSWORD";
const TARGET_PASSWORD: &str = "LIBISCSI_CHAP_TARGET_PASSWORD";

/// The name, secrets and session numbers that this initiator logs in with.
pub(super) struct Initiator {
    name: String,
    chap: Option<Chap>,
    target_chap: Option<Chap>,
    /// Distinguishes this initiator's sessions from those of others with the same name.
    isid: [u8; 4],
}

impl Initiator {
    pub(super) fn of(target: &IscsiTarget) -> Result<Initiator> {
        let mut isid: [u8; 4] = random()?;
        // The format with random numbers (RFC 7143, 11.12.5).
        isid[0] = 0x80;
        let mut chap = target.chap.clone();
        if let Some(chap) = &mut chap
            && chap.password.expose().is_empty()
        {
            chap.password = secret(PASSWORD, &format!("of user '{}'", chap.user))?;
        }
        let target_chap = match &target.target_user {
            None => None,
            Some(user) => {
                let password = secret(TARGET_PASSWORD, &format!("of the target's user '{user}'"))?;
                Some(Chap { user: user.clone(), password })
            }
        };
        let name = target.initiator.clone().unwrap_or_else(default_initiator);
        Ok(Initiator { name, chap, target_chap, isid })
    }

    pub(super) fn wanted(&self, target: &IscsiTarget, name: Option<&str>, session: u16) -> Result<Wanted> {
        let [kind, a, b, c] = self.isid;
        let [high, low] = session.to_be_bytes();
        Ok(Wanted {
            initiator: self.name.clone(),
            target: name.map(str::to_owned),
            isid: [kind, a, b, c, high, low],
            chap: self.chap.clone(),
            target_chap: self.target_chap.clone(),
            challenge: random()?,
            header_digest: target.header_digest,
            data_digest: target.data_digest,
        })
    }
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let read = fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|e| Error::os(e, "cannot read /dev/urandom"))?;
    Ok(bytes)
}

fn secret(variable: &str, whose: &str) -> Result<Secret> {
    match std::env::var(variable) {
        Ok(password) if !password.is_empty() => Ok(password.as_str().into()),
        _ => Err(Error::usage(format!("there is no password {whose}: set {variable}"))),
    }
}

/// Returns the system's initiator name, or one made from the host's name.
fn default_initiator() -> String {
    let system = fs::read_to_string("/etc/iscsi/initiatorname.iscsi").unwrap_or_default();
    let system = system.lines().find_map(|line| line.trim().strip_prefix("InitiatorName="));
    if let Some(name) = system.map(str::trim).filter(|name| !name.is_empty() && name.len() <= MAX_NAME) {
        return name.to_owned();
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let clean = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c.to_ascii_lowercase() } else { '-' };
    let host: String = host.trim().chars().take(64).map(clean).collect();
    format!("iqn.2026-11.invalid.mqblk:{host}")
}
