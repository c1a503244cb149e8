// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RBD images as targets, in QEMU's words: `rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][:NAME=VALUE...]`.
//!
//! Guarantees: text in, a value or a reason out; nothing is loaded or connected to. As in QEMU, a backslash escapes the character after it
//! (`\:`, `\@`, `\/`, `\=`, `\\`). `conf` is the configuration file and `id` the user. Every other option is passed to Ceph's
//! configuration, which checks whether it exists. The options of this driver (`images`, `exclusive`, `cluster`) have names that Ceph does
//! not use.
//! Source: block/rbd.c of QEMU as documented in qemu-block-drivers(7), and its file name syntax.

use crate::error::{Error, Result};
use crate::secrets::without_secrets;
use std::fmt;
use std::path::PathBuf;

/// An image, and how it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdTarget {
    /// The pool's name.
    pub pool: String,
    /// The namespace in the pool; empty: the default one.
    pub namespace: String,
    /// The image's name.
    pub image: String,
    /// A snapshot of it; `None`: the image itself.
    pub snapshot: Option<String>,
    /// Ceph's configuration file; `None`: the default places.
    pub conf: Option<PathBuf>,
    /// The user, without `client.`; `None`: `admin`.
    pub user: Option<String>,
    /// The cluster's name; `None`: `ceph`.
    pub cluster: Option<String>,
    /// Maximum number of handles with which the image is opened, 1..=[`MAX_IMAGES`].
    pub images: u16,
    /// Takes the exclusive lock, and never releases it to others.
    pub exclusive: bool,
    /// Options of Ceph's configuration.
    pub options: CephOptions,
}

/// Names and values of options. `Debug` prints the names only, because a value may be a key.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct CephOptions(pub Vec<(String, String)>);

impl fmt::Debug for CephOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl Default for RbdTarget {
    fn default() -> Self {
        RbdTarget {
            pool: String::new(),
            namespace: String::new(),
            image: String::new(),
            snapshot: None,
            conf: None,
            user: None,
            cluster: None,
            images: 1,
            exclusive: false,
            options: CephOptions::default(),
        }
    }
}

impl fmt::Display for RbdTarget {
    /// Writes the form of Ceph's programs: `POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.pool)?;
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.image)?;
        self.snapshot.iter().try_for_each(|s| write!(f, "@{s}"))
    }
}

/// Maximum number of images, and so hardware queues, of one disk.
pub const MAX_IMAGES: u16 = 64;
const EXAMPLE: &str = "must be rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][:NAME=VALUE...], such as rbd:rbd/disk0:id=admin";

/// Returns the characters, each with whether a backslash escaped it.
fn unescape(text: &str) -> std::result::Result<Vec<(char, bool)>, &'static str> {
    let mut all = Vec::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => all.push((chars.next().ok_or("ends in a backslash")?, true)),
            '\0' => return Err("has a zero byte"),
            c => all.push((c, false)),
        }
    }
    if all.contains(&('\0', true)) { Err("has a zero byte") } else { Ok(all) }
}

/// Splits at separators that are not escaped.
fn split(text: &[(char, bool)], at: char) -> impl Iterator<Item = &[(char, bool)]> {
    text.split(move |c| *c == (at, false))
}

fn plain(text: &[(char, bool)]) -> String {
    text.iter().map(|(c, _)| *c).collect()
}

/// Reads `rbd:...`.
///
/// # Errors
/// Usage: the text does not have this form, or an option of this driver has an invalid value.
pub fn parse(text: &str) -> Result<RbdTarget> {
    let shown = without_secrets(text);
    let refuse = |why: &str| Error::usage(format!("target '{shown}' {why}: {EXAMPLE}"));
    let rest = text.strip_prefix("rbd:").ok_or_else(|| refuse("is not an RBD target"))?;
    let all = unescape(rest).map_err(refuse)?;
    let mut parts = split(&all, ':');
    let place = parts.next().unwrap_or_default();
    let mut target = RbdTarget::default();
    let names: Vec<_> = split(place, '/').collect();
    let image = match names[..] {
        [pool, image] => {
            target.pool = plain(pool);
            image
        }
        [pool, namespace, image] => {
            (target.pool, target.namespace) = (plain(pool), plain(namespace));
            image
        }
        [..] => return Err(refuse("must name a pool and an image")),
    };
    let mut image = split(image, '@');
    target.image = plain(image.next().unwrap_or_default());
    target.snapshot = image.next().map(plain);
    let is_empty = target.pool.is_empty() || target.image.is_empty() || names.len() == 3 && target.namespace.is_empty();
    if is_empty || target.snapshot.as_deref() == Some("") || image.next().is_some() {
        return Err(refuse("has an empty name, or two snapshots"));
    }
    for option in parts {
        let mut halves = option.splitn(2, |c| *c == ('=', false));
        let (name, value) = (plain(halves.next().unwrap_or_default()), halves.next().map(plain));
        let Some(value) = value.filter(|_| !name.is_empty()) else {
            return Err(refuse(&format!("has the option '{name}', which must be NAME=VALUE")));
        };
        let range = set(&mut target, &name, value.clone());
        if let Some(range) = range {
            return Err(Error::usage(format!("target '{shown}': {name}={value}: must be {range}")));
        }
    }
    Ok(target)
}

/// Sets an option. Returns the rule that an invalid value breaks.
fn set(target: &mut RbdTarget, name: &str, value: String) -> Option<&'static str> {
    match name {
        "conf" => target.conf = Some(PathBuf::from(value)),
        "id" if value.is_empty() || value.contains("client.") => {
            return Some("a user's name without 'client.', such as admin");
        }
        "id" => target.user = Some(value),
        "cluster" if value.is_empty() => return Some("a cluster's name, such as ceph"),
        "cluster" => target.cluster = Some(value),
        "exclusive" => match value.as_str() {
            "0" => target.exclusive = false,
            "1" => target.exclusive = true,
            _ => return Some("0 or 1"),
        },
        "images" => match value.parse() {
            Ok(n) if (1..=MAX_IMAGES).contains(&n) => target.images = n,
            _ => return Some("1..=64"),
        },
        _ => target.options.0.push((name.to_owned(), value)),
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn names_as_qemu_has_them() {
        let plain = RbdTarget { pool: "rbd".into(), image: "disk0".into(), ..RbdTarget::default() };
        assert_eq!(parse("rbd:rbd/disk0").unwrap(), plain);
        let all =
            parse(r"rbd:p/n/i\:1\@2@s\/1:id=qemu:conf=/etc/c\:d.conf:mon_host=10.0.0.1\:6789;b:images=4:exclusive=1")
                .unwrap();
        let expected = RbdTarget {
            pool: "p".into(),
            namespace: "n".into(),
            image: "i:1@2".into(),
            snapshot: Some("s/1".into()),
            user: Some("qemu".into()),
            conf: Some("/etc/c:d.conf".into()),
            images: 4,
            exclusive: true,
            options: CephOptions(vec![("mon_host".into(), "10.0.0.1:6789;b".into())]),
            ..RbdTarget::default()
        };
        assert_eq!(all, expected);
        assert_eq!(all.to_string(), "p/n/i:1@2@s/1");
        // The value may contain separators of names.
        let options = parse("rbd:p/i:keyring=/a/b=c@d").unwrap().options;
        assert_eq!(options.0, [("keyring".to_owned(), "/a/b=c@d".to_owned())]);
        assert_eq!(format!("{options:?}"), "[\"keyring\"]");
    }

    #[test]
    fn mistakes_are_refused_with_the_form() {
        for text in
            ["rbd:", "rbd:rbd", "rbd:/a", "rbd:a/", "rbd:a//b", "rbd:a/b/c/d", "rbd:a/b@", "rbd:a/b@c@d", "rbd:a/b\\"]
        {
            assert!(refused(text).contains("must be rbd:POOL"), "{text}");
        }
        assert!(refused("rbd:a/b:id").contains("option 'id', which must be NAME=VALUE"));
        assert!(refused("rbd:a/b:").contains("NAME=VALUE"));
        assert!(refused("rbd:a/b:images=0").contains("images=0: must be 1..=64"));
        assert!(refused("rbd:a/b:exclusive=yes").contains("exclusive=yes: must be 0 or 1"));
        assert!(refused("rbd:a/b:id=client.admin").contains("without 'client.'"));
        assert!(refused("rbd:a/b\0c").contains("zero byte"));
    }
}
