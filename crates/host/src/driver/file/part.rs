// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A part of a file or block device that is a disk by itself, as with `offset` and `size` of QEMU's raw driver.
//!
//! Guarantees: a part that does not lie within its file, or does not consist of whole blocks where it must, is refused with the remedy.
//! Does not do: I/O.
//!
//! Source: QEMU block/raw-format.c (`raw_apply_options`).

use blk::id::SECTOR_SIZE;

/// Where a disk begins in its file, and how large it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilePart {
    /// First byte of the disk in the file; a multiple of the blocks that I/O to the file needs.
    pub offset: u64,
    /// Bytes of the disk, a multiple of the same blocks unless the disk may have any size; `None` = up to the end of the file, also when that
    /// changes.
    pub size: Option<u64>,
}

impl FilePart {
    /// Whether it is the whole file, whatever the file's size.
    pub fn is_whole(self) -> bool {
        self == FilePart::default()
    }

    /// Checks the values by themselves.
    ///
    /// # Errors
    /// The key at fault, and the rule.
    pub fn check(self) -> Result<(), (&'static str, String)> {
        let sector = u64::from(SECTOR_SIZE);
        if !self.offset.is_multiple_of(sector) {
            return Err(("offset", format!("offset={}: must be a multiple of {sector}", self.offset)));
        }
        match self.size {
            Some(0) => Err(("size", "size=0: must be at least 1".to_owned())),
            _ => Ok(()),
        }
    }

    /// Checks that the part consists of whole blocks of the file. With `by_direct`, smaller ones are possible through the page cache.
    ///
    /// # Errors
    /// The rule, as a sentence about the file without its subject.
    pub(crate) fn in_blocks(self, block: u64, by_direct: bool) -> Result<(), String> {
        let odd = |(_, value): &(&str, u64)| !value.is_multiple_of(block);
        let Some((key, value)) = [("offset", self.offset), ("size", self.size.unwrap_or(0))].into_iter().find(odd)
        else {
            return Ok(());
        };
        let down = value / block * block;
        let up = down.saturating_add(block);
        // A part may begin at 0, but not have that size.
        let either = if down == 0 && key == "size" { up.to_string() } else { format!("{down} or {up}") };
        let or = if by_direct && block > u64::from(SECTOR_SIZE) {
            ", or set direct = false in the configuration"
        } else {
            ""
        };
        Err(format!("needs blocks of {block}, but {key}={value} is not a multiple of that: use {either}{or}"))
    }

    /// Returns the size of the disk, in bytes, on a file of `file_bytes` bytes.
    ///
    /// # Errors
    /// The file is too small. The text of the error has no subject: the caller puts the file's name before it.
    pub(crate) fn bytes_of(self, file_bytes: u64) -> Result<u64, String> {
        let FilePart { offset, size } = self;
        match size {
            None if offset == 0 || offset < file_bytes => Ok(file_bytes - offset),
            None => Err(format!("has {file_bytes} bytes, so nothing follows offset={offset}: use a smaller offset")),
            Some(size) if offset.checked_add(size).is_some_and(|end| end <= file_bytes) => Ok(size),
            Some(size) => {
                let end = offset.saturating_add(size);
                Err(format!(
                    "has {file_bytes} bytes, but offset={offset} and size={size} end at {end}: make it larger, or the part smaller"
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: FilePart = FilePart { offset: 0, size: None };

    #[test]
    fn a_part_lies_within_its_file() {
        let tail = FilePart { offset: 4096, size: None };
        let middle = FilePart { offset: 4096, size: Some(8192) };
        assert_eq!([WHOLE.bytes_of(0), WHOLE.bytes_of(100), tail.bytes_of(4608)], [Ok(0), Ok(100), Ok(512)]);
        assert!(tail.bytes_of(4096).unwrap_err().contains("nothing follows offset=4096"));
        assert_eq!([middle.bytes_of(12288), middle.bytes_of(1 << 40)], [Ok(8192), Ok(8192)]);
        assert!(
            middle.bytes_of(12287).unwrap_err().contains("has 12287 bytes, but offset=4096 and size=8192 end at 12288")
        );
        let huge = FilePart { offset: u64::MAX - 511, size: Some(u64::MAX - 511) };
        assert!(huge.bytes_of(u64::MAX).is_err(), "their sum has no number");
    }

    #[test]
    fn a_part_consists_of_whole_blocks() {
        assert_eq!(WHOLE.check(), Ok(()));
        for (offset, size, key) in [(1, None, "offset"), (1000, Some(512), "offset"), (512, Some(0), "size")] {
            assert_eq!(FilePart { offset, size }.check().unwrap_err().0, key);
        }
        let part = FilePart { offset: 4096, size: Some(512) };
        assert_eq!((part.check(), part.in_blocks(512, true)), (Ok(()), Ok(())));
        let said = part.in_blocks(4096, true).unwrap_err();
        assert!(
            said.contains("needs blocks of 4096, but size=512") && said.contains("use 4096, or set direct"),
            "{said}"
        );
        assert!(!part.in_blocks(4096, false).unwrap_err().contains("direct"));
        let odd = FilePart { offset: 512, size: Some(1000) };
        assert_eq!(odd.check(), Ok(()), "the exports of the disk decide");
        let said = odd.in_blocks(512, true).unwrap_err();
        assert!(said.ends_with("size=1000 is not a multiple of that: use 512 or 1024"), "{said}");
        let said = FilePart { offset: 512, size: None }.in_blocks(4096, false).unwrap_err();
        assert!(said.ends_with("offset=512 is not a multiple of that: use 0 or 4096"), "{said}");
    }
}
