// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Recognises images that are not raw: files that hold a disk in a container of their own.
//!
//! Guarantees: [`of_target`] finds each format in [`FORMATS`] and names it. Served as raw data, such a file would show its clients the
//! container, and their writes would destroy it. Does not do: read any of these formats. A client may write such a beginning to its raw
//! disk, too (LUKS over a whole disk); `format = "raw"` is for that.
//!
//! Source: the probe functions of QEMU's block drivers, and the formats' own specifications.

use super::plan::{DiskPlan, TargetPlan};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Where a format has its magic number.
enum At {
    /// Bytes from the beginning.
    Begin(u64),
    /// In the last sector.
    End,
}

/// Name, place and magic number.
const FORMATS: [(&str, At, &[u8]); 19] = [
    ("qcow2", At::Begin(0), b"QFI\xfb\0\0\0\x02"),
    ("qcow2", At::Begin(0), b"QFI\xfb\0\0\0\x03"),
    ("qcow", At::Begin(0), b"QFI\xfb"),
    ("vmdk", At::Begin(0), b"KDMV"),
    ("vmdk", At::Begin(0), b"COWD"),
    ("vmdk", At::Begin(0), b"# Disk DescriptorFile"),
    ("vhdx", At::Begin(0), b"vhdxfile"),
    ("vhd (vpc)", At::Begin(0), b"conectix"),
    ("vhd (vpc)", At::End, b"conectix"),
    ("vdi", At::Begin(64), b"\x7f\x10\xda\xbe"),
    ("luks", At::Begin(0), b"LUKS\xba\xbe"),
    ("qed", At::Begin(0), b"QED\0"),
    ("parallels", At::Begin(0), b"WithoutFreeSpace"),
    ("parallels", At::Begin(0), b"WithouFreSpacExt"),
    ("bochs", At::Begin(0), b"Bochs Virtual HD Image"),
    ("dmg", At::End, b"koly"),
    ("gzip", At::Begin(0), b"\x1f\x8b\x08"),
    ("xz", At::Begin(0), b"\xfd7zXZ\0"),
    ("zstd", At::Begin(0), b"\x28\xb5\x2f\xfd"),
];

const SECTOR: u64 = 512;

/// Returns why an image of the target is not served as raw data; `None` if all are raw, or the plan says that they are. An image that cannot
/// be read is left to the driver.
pub(super) fn of_target(disk: &DiskPlan, target: &TargetPlan) -> Option<String> {
    let paths = target.paths();
    let mut foreign = paths.iter().filter_map(|path| Some((path, format_of(path).ok()??)));
    let (path, name) = foreign.next().filter(|_| !disk.is_raw)?;
    Some(format!(
        "image '{}' is not raw but {name}: its clients would see the container, and their writes would destroy it; convert it \
         (qemu-img convert -O raw), serve it with qemu-storage-daemon, or set format = \"raw\" in the configuration if its data is \
         meant to begin so",
        path.display()
    ))
}

/// Returns the name of the image's format; `None` if it is raw, as far as this can be seen.
fn format_of(path: &Path) -> io::Result<Option<&'static str>> {
    let file = File::open(path)?;
    let mut begin = [0; 128];
    let read = read_at(&file, &mut begin, 0)?;
    let mut last = [0; SECTOR as usize];
    let end = io::Seek::seek(&mut &file, io::SeekFrom::End(0))?;
    let in_last = read_at(&file, &mut last, end.saturating_sub(SECTOR))?;
    let is_it = |(_, at, magic): &&(&str, At, &[u8])| match at {
        At::Begin(offset) => begin[..read].get(*offset as usize..).is_some_and(|bytes| bytes.starts_with(magic)),
        At::End => last[..in_last].starts_with(magic),
    };
    Ok(FORMATS.iter().find(is_it).map(|(name, ..)| *name))
}

/// Reads until the buffer or the file ends. Returns how many bytes.
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_is_found_and_named_and_raw_data_is_not() {
        let path = std::env::temp_dir().join(format!("mqblk-format-{}", std::process::id()));
        for (name, at, magic) in &FORMATS {
            let mut bytes = vec![0; 4096];
            let from = match at {
                At::Begin(offset) => *offset as usize,
                At::End => 4096 - 512,
            };
            bytes[from..from + magic.len()].copy_from_slice(magic);
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(format_of(&path).unwrap(), Some(*name));
            // Elsewhere, it is data.
            bytes.rotate_right(1);
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(format_of(&path).unwrap(), None, "{name}");
        }
        for raw in [&b""[..], b"QF", &[0xeb, 0x63, 0x90], &[0; 5000]] {
            std::fs::write(&path, raw).unwrap();
            assert_eq!(format_of(&path).unwrap(), None, "{raw:?}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
