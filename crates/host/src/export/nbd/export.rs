// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is offered to NBD clients: an [`Export`] and the [`ExportTable`] of a server.
//!
//! Guarantees: an export in a table follows the protocol's rules for what a server advertises (block sizes, names, combinations of flags).
//! So handshake and session need not check again. A table is immutable; a reload builds a new one, and handshakes in progress finish with
//! the table that they began with.
//!
//! Does not know disks: the caller chooses [`Export::id`].
//!
//! Source: the NBD protocol, sections "Block size constraints", "Transmission flags", "Conventions".

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::nbd::wire::{MAX_PAYLOAD, MAX_SERVED, MAX_STRING, ReplyStyle, transmission_flag as flag};

/// How a server handles `NBD_CMD_FLAG_FAST_ZERO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FastZero {
    /// The flag is not offered; requests with it get `NBD_EINVAL`.
    #[default]
    NotOffered,
    /// Offered, but always answered with `NBD_ENOTSUP` at once. So the client learns that zeroes are never cheaper here.
    Refused,
    /// Offered; requests with the flag are passed on, and the caller answers those that would not be fast with `NBD_ENOTSUP`.
    Served,
}

/// Block size constraints in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Smallest unit of offsets and lengths: a power of two, 1..=65536.
    pub min: u32,
    /// Preferred size: a power of two, at least 512 and at least `min`.
    pub preferred: u32,
    /// Longest read or write: a multiple of `min`, 65536..=[`MAX_SERVED`], at least `preferred`. Clients that do not ask for it assume
    /// [`MAX_PAYLOAD`]; their longer requests get `NBD_EINVAL`.
    pub max: u32,
}

impl Default for BlockSizes {
    /// Returns the sizes that a client assumes if it does not ask.
    fn default() -> BlockSizes {
        BlockSizes { min: 1, preferred: 4096, max: MAX_PAYLOAD }
    }
}

/// One export: what clients see, and what they may request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Export {
    /// Its name, at most 4096 bytes without NUL; may be empty, which is the name of the default export.
    pub name: String,
    /// A description for users, at most 4096 bytes without NUL.
    pub description: String,
    /// The caller's number for the export's disk; never sent.
    pub id: u64,
    /// The export's name in reports and logs; never sent.
    pub label: String,
    /// A multiple of `block.min`, at most `i64::MAX` (clients count in signed numbers).
    pub size_bytes: u64,
    /// Writes, trims and zeroes are refused with `NBD_EPERM`.
    pub read_only: bool,
    /// Sent to clients, otherwise without effect.
    pub rotational: bool,
    /// `NBD_CMD_FLUSH` is served. Setting it makes the guarantee of section "Ordering of messages and writes".
    pub flush: bool,
    /// `NBD_CMD_FLAG_FUA` is served.
    pub fua: bool,
    /// `NBD_CMD_TRIM` is served.
    pub trim: bool,
    /// `NBD_CMD_WRITE_ZEROES` is served.
    pub write_zeroes: bool,
    /// Only with `write_zeroes`.
    pub fast_zero: FastZero,
    /// `NBD_CMD_CACHE` is served.
    pub cache: bool,
    /// A flush, or a FUA write, takes effect for all connections to the export. Set it only if all connections use one disk.
    pub multi_conn: bool,
    /// Block size constraints.
    pub block: BlockSizes,
    /// The server makes every write stable before it answers; never sent. Then do not offer `flush`.
    pub write_through: bool,
    /// Clients that do not ask for the block sizes are refused. This costs interoperability; without it only their unaligned requests
    /// fail, with `NBD_EINVAL`.
    pub require_block_size: bool,
    /// The metadata context `base:allocation` is served.
    pub base_allocation: bool,
    /// Invisible and refused without TLS, even where TLS is optional.
    pub tls_only: bool,
}

impl Export {
    /// Makes an empty export that offers every feature, as a base for tests.
    pub fn with_everything(name: &str) -> Export {
        Export {
            name: name.to_owned(),
            flush: true,
            fua: true,
            trim: true,
            write_zeroes: true,
            fast_zero: FastZero::Served,
            cache: true,
            multi_conn: true,
            base_allocation: true,
            ..Export::default()
        }
    }

    /// Returns the transmission flags for a client with this reply style. A read-only export offers no writing commands.
    pub fn transmission_flags(&self, style: ReplyStyle) -> u16 {
        let writable = !self.read_only;
        let zeroes = self.write_zeroes && writable;
        let offered = [
            (self.read_only, flag::READ_ONLY),
            (self.flush, flag::SEND_FLUSH),
            (self.fua, flag::SEND_FUA),
            (self.rotational, flag::ROTATIONAL),
            (self.trim && writable, flag::SEND_TRIM),
            (zeroes, flag::SEND_WRITE_ZEROES),
            (zeroes && self.fast_zero != FastZero::NotOffered, flag::SEND_FAST_ZERO),
            (style != ReplyStyle::Simple, flag::SEND_DF),
            (self.multi_conn, flag::CAN_MULTI_CONN),
            (self.cache, flag::SEND_CACHE),
        ];
        offered.into_iter().filter(|(yes, _)| *yes).fold(flag::HAS_FLAGS, |flags, (_, bit)| flags | bit)
    }

    fn check(&self) -> Result<()> {
        let Export { name, block, size_bytes, .. } = self;
        let BlockSizes { min, preferred, max } = *block;
        for (what, text) in [("name", name), ("description", &self.description)] {
            if text.len() > MAX_STRING || text.contains('\0') {
                let rule = format!("must be at most {MAX_STRING} bytes without NUL");
                return Err(Error::usage(format!("{what} of an NBD export ({} bytes): {rule}", text.len())));
            }
        }
        let fail = |what: String| Err(Error::usage(format!("NBD export '{name}': {what}")));
        if !min.is_power_of_two() || min > 1 << 16 {
            return fail(format!("minimum block size {min}: must be a power of two in 1..=65536"));
        }
        if !preferred.is_power_of_two() || preferred < min.max(512) {
            let least = min.max(512);
            return fail(format!("preferred block size {preferred}: must be a power of two of at least {least}"));
        }
        if max % min != 0 || !(preferred.max(1 << 16)..=MAX_SERVED).contains(&max) {
            let range = format!("{}..={MAX_SERVED}", preferred.max(1 << 16));
            return fail(format!("maximum block size {max}: must be a multiple of {min} in {range}"));
        }
        if size_bytes % u64::from(min) != 0 {
            let down = size_bytes - size_bytes % u64::from(min);
            return fail(format!("size {size_bytes}: must be a multiple of the block size {min}, as {down} is"));
        }
        if i64::try_from(*size_bytes).is_err() {
            return fail(format!("size {size_bytes}: must be at most {}", i64::MAX));
        }
        if self.fast_zero != FastZero::NotOffered && !self.write_zeroes {
            return fail("fast zero: only together with write zeroes".to_owned());
        }
        Ok(())
    }
}

/// The exports of a server, in the order of the list.
#[derive(Clone, Debug, Default)]
pub struct ExportTable {
    exports: Vec<Arc<Export>>,
    default: Option<usize>,
}

impl ExportTable {
    /// Makes a table of `exports`. `default` names the export for a client that gives no name. Without `default` that is the export with
    /// an empty name, if there is one.
    ///
    /// # Errors
    /// Usage: an export breaks a rule of its fields, two have the same name, or `default` names none.
    pub fn new(exports: Vec<Export>, default: Option<&str>) -> Result<ExportTable> {
        let mut names = BTreeSet::new();
        for export in &exports {
            export.check()?;
            if !names.insert(export.name.as_str()) {
                return Err(Error::usage(format!(
                    "NBD export '{}': the name is already in use; choose another",
                    export.name
                )));
            }
        }
        let wanted = default.unwrap_or_default();
        let default_at = exports.iter().position(|e| e.name == wanted);
        if default_at.is_none() && default.is_some() {
            return Err(Error::usage(format!("default NBD export '{wanted}': there is no export of this name")));
        }
        let exports = exports.into_iter().map(Arc::new).collect();
        Ok(ExportTable { exports, default: default_at })
    }

    /// Returns the exports, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Export>> {
        self.exports.iter()
    }

    /// Returns the export of this name, or the default export for an empty name.
    pub fn find(&self, name: &[u8]) -> Option<&Arc<Export>> {
        match self.exports.iter().find(|e| e.name.as_bytes() == name) {
            None if name.is_empty() => self.exports.get(self.default?),
            found => found,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Export {
        Export { name: name.to_owned(), size_bytes: 1 << 20, ..Export::default() }
    }

    fn refusal(export: Export) -> String {
        ExportTable::new(vec![export], None).expect_err("refused").to_string()
    }

    #[test]
    fn exports_the_protocol_forbids_are_rejected_with_the_rule() {
        let block = BlockSizes::default();
        let sized = |block| Export { block, ..named("a") };
        for (export, text) in [
            (sized(BlockSizes { min: 3, ..block }), "minimum block size 3: must be a power of two"),
            (sized(BlockSizes { min: 1 << 17, ..block }), "must be a power of two in 1..=65536"),
            (sized(BlockSizes { preferred: 256, ..block }), "preferred block size 256"),
            (sized(BlockSizes { min: 8192, ..block }), "of at least 8192"),
            (sized(BlockSizes { max: 4096, ..block }), "maximum block size 4096: must be a multiple of 1 in 65536.."),
            (sized(BlockSizes { max: MAX_SERVED + 512, ..block }), "..=67108864"),
            (sized(BlockSizes { min: 512, max: 65537, ..block }), "must be a multiple of 512"),
            (Export { size_bytes: 1000, block: BlockSizes { min: 512, ..block }, ..named("a") }, "as 512 is"),
            (Export { size_bytes: 1 << 63, ..named("a") }, "must be at most 9223372036854775807"),
            (Export { fast_zero: FastZero::Served, ..named("a") }, "only together with write zeroes"),
            (named(&"x".repeat(4097)), "name of an NBD export (4097 bytes)"),
            (Export { description: "a\0".to_owned(), ..named("a") }, "without NUL"),
        ] {
            let found = refusal(export);
            assert!(found.contains(text), "{found}");
        }
    }

    #[test]
    fn names_find_their_export_and_no_name_finds_the_default() {
        let table = ExportTable::new(vec![named("a"), named("b")], Some("b")).unwrap();
        let name = |n: &[u8]| table.find(n).map(|e| e.name.clone());
        assert_eq!(name(b"a").as_deref(), Some("a"));
        assert_eq!(name(b"").as_deref(), Some("b"));
        assert_eq!(name(b"c"), None);
        assert!(ExportTable::new(vec![named("a")], None).unwrap().find(b"").is_none());
        assert!(ExportTable::new(vec![named("")], None).unwrap().find(b"").is_some());
        let e = ExportTable::new(vec![named("a")], Some("z")).unwrap_err().to_string();
        assert!(e.contains("default NBD export 'z'"), "{e}");
        let e = ExportTable::new(vec![named("a"), named("a")], None).unwrap_err().to_string();
        assert!(e.contains("the name is already in use"), "{e}");
    }

    #[test]
    fn a_read_only_export_offers_no_writes() {
        let all = Export { rotational: true, ..Export::with_everything("a") };
        assert_eq!(all.transmission_flags(ReplyStyle::Structured), 0b1101_1111_1101);
        let shut = Export { read_only: true, ..all };
        assert_eq!(shut.transmission_flags(ReplyStyle::Simple), 0b101_0001_1111);
        assert_eq!(named("a").transmission_flags(ReplyStyle::Simple), 1);
    }
}
