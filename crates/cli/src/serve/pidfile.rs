// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file with the id of a daemon's process (`--pidfile`), which tells scripts that the daemon serves.
//!
//! Guarantees: the file appears complete, once the daemon listens, and is removed when the daemon ends. A path that cannot be written is
//! rejected before the daemon begins anything. A file of an earlier daemon is replaced, and that of a later one is not removed. Only its
//! owner may write to it, whatever the umask: scripts send signals to the process that it names. Does not: keep two daemons apart (images
//! and sockets do that), or remove the file after a crash or a second signal.

use crate::status::Failure;
use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file that can be put in place.
pub struct Prepared {
    file: File,
    /// Its name until then.
    new: PathBuf,
    path: PathBuf,
}

impl Prepared {
    /// Makes the file under another name in the same directory.
    ///
    /// # Errors
    /// The directory does not exist or cannot be written, or something else than a file is at the path.
    pub fn new(path: &Path) -> Result<Prepared, Failure> {
        let name = path.file_name().ok_or_else(|| refused(path, &"is not the name of a file"))?;
        if fs::symlink_metadata(path).is_ok_and(|meta| !meta.is_file()) {
            return Err(refused(path, &"exists, and is not a regular file"));
        }
        let mut new = name.to_owned();
        new.push(format!(".{}.new", std::process::id()));
        let new = path.with_file_name(new);
        let file = create(&new).map_err(|e| refused(path, &e))?;
        Ok(Prepared { file, new, path: path.to_owned() })
    }

    /// Writes the id of this process and puts the file in place.
    ///
    /// # Errors
    /// The file system refuses that.
    pub fn put(mut self) -> Result<PidFile, Failure> {
        let id = format!("{}\n", std::process::id());
        let written = self.file.write_all(id.as_bytes()).and_then(|()| self.file.try_clone());
        let placed = written.and_then(|file| fs::rename(&self.new, &self.path).map(|()| file));
        let file = placed.map_err(|e| refused(&self.path, &e))?;
        Ok(PidFile { file, path: self.path.clone() })
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // Fails if the file is in place.
        let _ = fs::remove_file(&self.new);
    }
}

/// The file in its place, which is removed on drop.
pub struct PidFile {
    /// While it is open, no other file gets its inode number.
    file: File,
    path: PathBuf,
}

impl PidFile {
    /// Whether the path names this file, and not that of a later daemon.
    fn is_there(&self) -> bool {
        let (own, there) = (self.file.metadata(), fs::symlink_metadata(&self.path));
        matches!((own, there), (Ok(own), Ok(there)) if (own.dev(), own.ino()) == (there.dev(), there.ino()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if self.is_there()
            && let Err(e) = fs::remove_file(&self.path)
        {
            log::warn!("--pidfile={}: cannot be removed: {e}; remove it", self.path.display());
        }
    }
}

/// Makes a file of this name. One that exists is removed first: it was left behind by a daemon that was killed and had the same process
/// id, as the first process of each container has.
fn create(path: &Path) -> io::Result<File> {
    if let Err(e) = fs::remove_file(path)
        && e.kind() != io::ErrorKind::NotFound
    {
        return Err(e);
    }
    OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)
}

fn refused(path: &Path, why: &dyn Display) -> Failure {
    Failure::new(format!(
        "--pidfile={}: {why}; name a file in a directory that exists and can be written",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a daemon that was killed before it served left its new file behind. The next one with that process id refused to start,
    /// and the message did not name that file.
    #[test]
    fn new_file_left_by_the_same_process_id_is_replaced() {
        let directory = std::env::temp_dir().join(format!("mqblk-pidfile-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let (path, new) = (directory.join("a.pid"), directory.join(format!("a.pid.{}.new", std::process::id())));
        fs::write(&new, "left behind, and longer than a process id").unwrap();
        let Ok(prepared) = Prepared::new(&path) else { panic!("{} is in the way", new.display()) };
        let Ok(placed) = prepared.put() else { panic!("{} cannot be written", path.display()) };
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        assert!(!new.exists());
        drop(placed);
        // Fails if anything is left.
        fs::remove_dir(&directory).unwrap();
    }
}
