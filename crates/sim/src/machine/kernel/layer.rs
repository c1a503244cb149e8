// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose block layer a machine has: mqblk's, or that of a kernel version.
//!
//! Guarantees: a version is compared by its two numbers, so a rule that began with a version holds for all later ones.

use serde::{Deserialize, Deserializer, de::Error};
use std::fmt;
use std::str::FromStr;

/// See the module's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layer {
    /// mqblk's: the elevator's lock is taken once per batch.
    #[default]
    Mqblk,
    /// Linux of that version.
    Linux(u16, u16),
}

/// The first and the last version that a file may name.
const FIRST: (u16, u16) = (2, 6);
const LAST: (u16, u16) = (7, 3);

impl Layer {
    /// Whether the kernel dispatches a batch of requests under one hold of the elevator's lock.
    pub fn dispatches_batches(self) -> bool {
        match self {
            Layer::Mqblk => true,
            Layer::Linux(major, minor) => (major, minor) >= (7, 0),
        }
    }

    /// Whether it is a kernel's.
    pub fn is_kernel(self) -> bool {
        self != Layer::Mqblk
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layer::Mqblk => f.write_str("mqblk"),
            Layer::Linux(major, minor) => write!(f, "{major}.{minor}"),
        }
    }
}

impl FromStr for Layer {
    type Err = String;

    fn from_str(text: &str) -> Result<Layer, String> {
        if text == "mqblk" {
            return Ok(Layer::Mqblk);
        }
        let mut numbers = text.split('.').map(|n| n.parse::<u16>().ok());
        let version = (numbers.next().flatten(), numbers.next().flatten());
        match version {
            (Some(major), Some(minor)) if numbers.next().is_none() && (FIRST..=LAST).contains(&(major, minor)) => {
                Ok(Layer::Linux(major, minor))
            }
            _ => Err(format!(
                "layer = \"{text}\": must be mqblk or a kernel version from {}.{} to {}.{}, such as 6.12",
                FIRST.0, FIRST.1, LAST.0, LAST.1
            )),
        }
    }
}

impl<'de> Deserialize<'de> for Layer {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Layer, D::Error> {
        String::deserialize(d)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_read_as_it_is_written() {
        for text in ["mqblk", "2.6", "3.13", "6.12", "7.0", "7.3"] {
            assert_eq!(text.parse::<Layer>().map(|l| l.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "linux", "6", "6.12.1", "7.4", "2.4", "6.x", "MQBLK"] {
            let e = text.parse::<Layer>().expect_err(text);
            assert!(e.starts_with(&format!("layer = \"{text}\": must be ")), "{e}");
        }
    }

    #[test]
    fn batches_begin_with_7_0() {
        let batches = |text: &str| text.parse::<Layer>().expect("a version").dispatches_batches();
        assert_eq!(
            ["5.19", "6.12", "6.18", "7.0", "7.3", "mqblk"].map(batches),
            [false, false, false, true, true, true]
        );
    }
}
