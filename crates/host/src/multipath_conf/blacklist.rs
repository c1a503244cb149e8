// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a configuration excludes a disk from multipathing: `blacklist`, `blacklist_exceptions`, `product_blacklist`.
//!
//! Guarantees: the criteria are checked in this order: vendor and product, protocol, WWID. An exception applies only to its own criterion.
//! A property that is unknown for a disk matches nothing, not even `!`. Does not do: `devnode` and `property`, because these match names
//! and properties that the kernel and udev assign. Source: multipath-tools, libmultipath/blacklist.c (`filter_path`).

use super::read::shown;
use super::{Config, Ere, Identity, Listed, ListedBy, Problem};
use std::sync::Arc;

/// Whether a valid expression matches, or with `!` does not match.
fn matches(expression: &str, text: &str) -> bool {
    let (is_opposite, plain) = match expression.strip_prefix('!') {
        Some(plain) => (true, plain),
        None => (false, expression),
    };
    Ere::new(plain).is_ok_and(|ere| ere.is_match(text) != is_opposite)
}

/// Returns what an entry matches, as text for a person; `None` if it does not match the disk.
fn matched(by: &ListedBy, disk: &Identity) -> Option<String> {
    let said = |name: &str, text: &str| format!("{name} '{}'", shown(text));
    match by {
        ListedBy::One("wwid", expression) if !disk.wwid.is_empty() => {
            matches(expression, &disk.wwid).then(|| said("wwid", &disk.wwid))
        }
        ListedBy::One("protocol", expression) if !disk.protocol.is_empty() => {
            matches(expression, &disk.protocol).then(|| said("protocol", &disk.protocol))
        }
        ListedBy::Device(vendor, product) if disk.has_maker() && (vendor.is_some() || product.is_some()) => {
            let fits = |expression: &Option<String>, text| expression.as_ref().is_none_or(|e| matches(e, text));
            (fits(vendor, &disk.vendor) && fits(product, &disk.product))
                .then(|| format!("{}, {}", said("vendor", &disk.vendor), said("product", &disk.product)))
        }
        _ => None,
    }
}

/// Returns the position of an entry's criterion in the order of checks; `None` for a criterion that is not checked.
fn order(by: &ListedBy) -> Option<usize> {
    match by {
        ListedBy::Device(..) => Some(0),
        ListedBy::One("protocol", _) => Some(1),
        ListedBy::One("wwid", _) => Some(2),
        ListedBy::One(..) => None,
    }
}

impl Config {
    /// Returns why a disk is excluded, with the line that excludes it; `None` if it is not.
    pub fn blacklisted(&self, disk: &Identity) -> Option<Problem> {
        let of_devices = self.devices.iter().filter_map(|d| {
            let (vendor, product) = (d.block.get("vendor")?, d.block.get("product_blacklist")?);
            let by = ListedBy::Device(Some(vendor.value.clone()), Some(product.value.clone()));
            Some(Listed { file: Arc::clone(&product.file), line: product.line, by })
        });
        let all: Vec<Listed> = self.blacklist.iter().cloned().chain(of_devices).collect();
        let first = |list: &[Listed], criterion: usize| {
            let mut of = list.iter().filter(|l| order(&l.by) == Some(criterion));
            of.find_map(|l| Some((l.file.to_string(), l.line, matched(&l.by, disk)?)))
        };
        (0..3).find_map(|criterion| {
            let (file, line, what) = first(&all, criterion)?;
            let is_excepted = first(&self.blacklist_exceptions, criterion).is_some();
            let text = format!(
                "{what}: is blacklisted here; put it into 'blacklist_exceptions', or do not make a multipath disk of it"
            );
            (!is_excepted).then_some(Problem { file, line, text })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(blacklist: &str, exceptions: &str) -> String {
        let text = format!("blacklist {{\n{blacklist}\n}}\nblacklist_exceptions {{\n{exceptions}\n}}\n");
        let config = Config::parse("m.conf", &text).unwrap_or_else(|e| panic!("{text}\n{e}"));
        let disk = Identity {
            wwid: "360000000000000000e00000000010001".into(),
            vendor: "IET".into(),
            product: "VIRTUAL-DISK".into(),
            protocol: "scsi:iscsi".into(),
            ..Identity::default()
        };
        assert_eq!(config.blacklisted(&Identity::default()), None, "of which nothing is known");
        config.blacklisted(&disk).map(|p| p.to_string()).unwrap_or_default()
    }

    #[test]
    fn exception_of_the_same_kind_overrides_the_blacklist() {
        assert_eq!(said("", ""), "");
        let by_wwid = said("devnode \"^sd\"\nwwid \"^3600\"", "");
        assert!(by_wwid.starts_with("m.conf:3: wwid '360000000000000000e00000000010001': is blacklisted"), "{by_wwid}");
        assert_eq!(said("wwid \".*\"", "wwid \"10001$\""), "");
        assert_ne!(said("wwid \".*\"", "protocol scsi:iscsi\nproperty \".*\""), "");
        assert_eq!(said("wwid \"!^3600\"", ""), "");
        assert!(said("wwid \"!^3601\"", "").starts_with("m.conf:2: wwid"));
        assert!(said("wwid .*\nprotocol \"scsi:(fcp|iscsi)\"", "").starts_with("m.conf:3: protocol 'scsi:iscsi'"));
        let device = said("device {\nvendor IET\nproduct \"^VIRT\"\n}", "");
        assert!(device.starts_with("m.conf:2: vendor 'IET', product 'VIRTUAL-DISK': is blacklisted"), "{device}");
        assert_eq!(said("device {\nvendor IET\nproduct \"!VIRT\"\n}", ""), "");
        assert_eq!(said("device {\nvendor IET\n}", "device {\nproduct VIRTUAL\n}"), "");
        assert_eq!(said("device {\n}", ""), "");
    }

    #[test]
    fn a_device_of_devices_keeps_products_out() {
        let text = "devices {\ndevice {\nvendor IBM\nproduct .*\nproduct_blacklist \"^UNIV\"\n}\n}";
        let config = Config::parse("m.conf", text).unwrap();
        let of = |product: &str| {
            let disk = Identity { vendor: "IBM".into(), product: product.into(), ..Identity::default() };
            config.blacklisted(&disk).map(|p| p.line)
        };
        assert_eq!((of("UNIVERSAL XPORT"), of("2145")), (Some(5), None));
    }
}
