// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A path of the file system that is in use: the image of a disk, or a listening socket. Tells when the path no longer names what was
//! opened there, because that was removed, renamed or replaced, or a symbolic link has another target.
//!
//! Guarantees: only `look` and `find` ask the file system, which may wait for it. The other functions never
//! wait. An image that was written, resized or renamed back is the same. While a `ServedPath` of a socket exists, no other file gets the
//! inode number of the socket; an image must be kept open by its driver. Does not: notice what was undone between two checks, or judge a
//! path that cannot be looked up (for example for lack of permissions).

use crate::driver::file::identity;
use parking_lot::Mutex;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The path of an open image or of a listening socket. See the module's text.
pub struct ServedPath {
    path: PathBuf,
    opened: Opened,
    /// The result of the last check.
    trouble: Mutex<Option<String>>,
}

/// What was opened at the path.
enum Opened {
    /// The image of the disk of this name.
    Image { disk: String, identity: String },
    /// The file of a listening socket, which belongs to the service manager if it was `handed` over.
    Socket { file: OwnedFd, handed: bool },
}

/// What a path names now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// What was opened there.
    Same,
    Nothing,
    Other,
}

impl ServedPath {
    /// An image of the disk `disk`. `identity` is that of the open file, as [`identity::of`] returns it.
    pub(crate) fn image(disk: &str, path: &Path, identity: String) -> ServedPath {
        ServedPath::new(path, Opened::Image { disk: disk.to_owned(), identity })
    }

    /// A listening socket. `file` is its file, opened with O_PATH.
    pub(crate) fn socket(path: &Path, file: OwnedFd, handed: bool) -> ServedPath {
        ServedPath::new(path, Opened::Socket { file, handed })
    }

    fn new(path: &Path, opened: Opened) -> ServedPath {
        ServedPath { path: path.to_owned(), opened, trouble: Mutex::default() }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file of a socket.
    pub(crate) fn socket_file(&self) -> Option<&OwnedFd> {
        match &self.opened {
            Opened::Image { .. } => None,
            Opened::Socket { file, .. } => Some(file),
        }
    }

    /// Whether this is the socket of an own listener, which can be made again.
    pub fn can_listen_again(&self) -> bool {
        matches!(self.opened, Opened::Socket { handed: false, .. })
    }

    /// Looks up what the path names now.
    ///
    /// # Errors
    /// The path cannot be looked up.
    pub(crate) fn find(&self) -> io::Result<Found> {
        let is_same = match &self.opened {
            Opened::Image { identity, .. } => fs::metadata(&self.path).map(|meta| identity::of(&meta) == *identity),
            Opened::Socket { file, .. } => {
                let is = rustix::fs::fstat(file)?;
                // A link to a socket is not that socket's file.
                fs::symlink_metadata(&self.path).map(|there| (there.dev(), there.ino()) == (is.st_dev, is.st_ino))
            }
        };
        match is_same {
            Ok(true) => Ok(Found::Same),
            Ok(false) => Ok(Found::Other),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(Found::Nothing),
            Err(e) => Err(e),
        }
    }

    /// Checks the path, and logs a problem once, and its end. If the path cannot be looked up, the result of the last check remains.
    pub(crate) fn look(&self) {
        let Ok(found) = self.find() else { return };
        let now = self.describe(found);
        // Do not hold the lock during logging, which may wait.
        if std::mem::replace(&mut *self.trouble.lock(), now.clone()) == now {
            return;
        }
        let (path, text) = (self.path.display().to_string(), now.as_deref());
        match (&self.opened, text) {
            (Opened::Image { disk, .. }, Some(text)) => log::warn!(disk = disk.as_str(); "{text}"),
            (Opened::Image { disk, .. }, None) => {
                log::info!(disk = disk.as_str(); "path '{path}' names the open image again");
            }
            (Opened::Socket { .. }, Some(text)) => log::warn!(socket = path; "{text}"),
            (Opened::Socket { .. }, None) => log::info!(socket = path.clone(); "path '{path}' names the socket again"),
        }
    }

    /// Returns the problem that the last check found, with the remedy.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    fn describe(&self, found: Found) -> Option<String> {
        let path = self.path.display();
        Some(match (&self.opened, found) {
            (_, Found::Same) => return None,
            (Opened::Image { .. }, Found::Nothing) => format!(
                "image '{path}' was removed or renamed: the disk still uses the file that was opened there, and data of a removed file \
                 is lost when the disk closes; rename the file back, or copy the data from an export"
            ),
            (Opened::Image { .. }, Found::Other) => format!(
                "the path '{path}' names another file now: the disk still uses the file that was opened there, and data of a removed \
                 file is lost when the disk closes; remove and add the disk to open the other file"
            ),
            (Opened::Socket { handed: true, .. }, _) => format!(
                "socket '{path}' was removed or replaced, so clients cannot connect; restart its socket unit, and then this service"
            ),
            (Opened::Socket { .. }, Found::Nothing) => {
                format!("socket '{path}' was removed, so clients cannot connect; reload (SIGHUP) to listen there again")
            }
            (Opened::Socket { .. }, Found::Other) => format!(
                "another file has replaced socket '{path}', so clients cannot connect; remove that file, then reload (SIGHUP) to listen \
                 there again"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::socket::listen;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    struct Fixture {
        dir: PathBuf,
    }

    impl Fixture {
        fn new(name: &str) -> Fixture {
            let dir = std::env::temp_dir().join(format!("mqblk-served-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir(&dir).unwrap();
            for image in ["image", "other"] {
                fs::write(dir.join(image), [0; 512]).unwrap();
            }
            symlink("image", dir.join("link")).unwrap();
            Fixture { dir }
        }

        fn at(&self, name: &str) -> PathBuf {
            self.dir.join(name)
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.dir).unwrap();
        }
    }

    type Act = fn(&Fixture);

    /// A write to an image that had been replaced went to a file without a name, and nothing told.
    #[test]
    fn an_image_that_its_path_no_longer_names_is_told() {
        let put = |f: &Fixture, from: &str, to: &str| fs::rename(f.at(from), f.at(to)).unwrap();
        let removed = Some("was removed or renamed");
        let replaced = Some("names another file now");
        let table: [(&str, &str, Act, Option<&str>); 11] = [
            ("untouched", "image", |_| (), None),
            ("written", "image", |f| fs::write(f.at("image"), [1; 512]).unwrap(), None),
            ("resized", "image", |f| fs::File::create(f.at("image")).unwrap().set_len(1 << 20).unwrap(), None),
            ("removed", "image", |f| fs::remove_file(f.at("image")).unwrap(), removed),
            ("renamed", "image", |f| fs::rename(f.at("image"), f.at("away")).unwrap(), removed),
            ("replaced", "image", |f| fs::rename(f.at("other"), f.at("image")).unwrap(), replaced),
            ("linked-untouched", "link", |_| (), None),
            ("link-removed", "link", |f| fs::remove_file(f.at("link")).unwrap(), removed),
            ("link-dangles", "link", |f| fs::remove_file(f.at("image")).unwrap(), removed),
            (
                "link-retargeted",
                "link",
                |f| {
                    symlink("other", f.at("new")).unwrap();
                    fs::rename(f.at("new"), f.at("link")).unwrap();
                },
                replaced,
            ),
            (
                "link-to-hard-link",
                "link",
                |f| {
                    fs::hard_link(f.at("image"), f.at("same")).unwrap();
                    fs::remove_file(f.at("link")).unwrap();
                    symlink("same", f.at("link")).unwrap();
                },
                None,
            ),
        ];
        for (name, path, act, expected) in table {
            let f = Fixture::new(name);
            let open = fs::File::open(f.at(path)).unwrap();
            let image = ServedPath::image("d", &f.at(path), identity::of(&open.metadata().unwrap()));
            image.look();
            assert_eq!(image.trouble(), None, "{name}");
            act(&f);
            image.look();
            let said = image.trouble();
            assert_eq!(said.is_some(), expected.is_some(), "{name}: {said:?}");
            assert!(said.is_none_or(|text| text.contains(expected.unwrap())), "{name}");
        }
        let f = Fixture::new("back");
        let open = fs::File::open(f.at("image")).unwrap();
        let image = ServedPath::image("d", &f.at("image"), identity::of(&open.metadata().unwrap()));
        put(&f, "image", "away");
        image.look();
        assert!(image.trouble().is_some());
        put(&f, "away", "image");
        image.look();
        assert_eq!(image.trouble(), None, "it was renamed back");
    }

    #[test]
    fn a_socket_that_its_path_no_longer_names_is_told() {
        let removed = Some("was removed, so clients cannot connect");
        let replaced = Some("another file has replaced socket");
        let table: [(&str, Act, Option<&str>); 6] = [
            ("untouched", |_| (), None),
            ("connected", |f| drop(std::os::unix::net::UnixStream::connect(f.at("sock")).unwrap()), None),
            ("removed", |f| fs::remove_file(f.at("sock")).unwrap(), removed),
            ("renamed", |f| fs::rename(f.at("sock"), f.at("away")).unwrap(), removed),
            (
                "replaced-by-socket",
                |f| {
                    fs::remove_file(f.at("sock")).unwrap();
                    drop(UnixListener::bind(f.at("sock")).unwrap());
                },
                replaced,
            ),
            ("replaced-by-file", |f| fs::rename(f.at("other"), f.at("sock")).unwrap(), replaced),
        ];
        for (name, act, expected) in table {
            let f = Fixture::new(&format!("socket-{name}"));
            let (_listener, file) = listen(&f.at("sock"), Some(0o600)).unwrap();
            let socket = file.served().unwrap();
            act(&f);
            socket.look();
            let said = socket.trouble();
            assert_eq!(said.is_some(), expected.is_some(), "{name}: {said:?}");
            assert!(said.is_none_or(|text| text.contains(expected.unwrap())), "{name}");
            assert!(socket.can_listen_again());
        }
        // This process must not make a socket again that the service manager made.
        let f = Fixture::new("socket-handed");
        let handed = ServedPath::socket(&f.at("other"), fs::File::open(f.at("other")).unwrap().into(), true);
        handed.look();
        assert_eq!(handed.trouble(), None);
        fs::remove_file(f.at("other")).unwrap();
        handed.look();
        assert!(handed.trouble().unwrap().contains("restart its socket unit") && !handed.can_listen_again());
    }

    #[test]
    fn a_path_that_cannot_be_looked_up_keeps_its_state() {
        let f = Fixture::new("unknown");
        let open = fs::File::open(f.at("image")).unwrap();
        let name = "n".repeat(300);
        let image = ServedPath::image("d", &f.at(&name), identity::of(&open.metadata().unwrap()));
        assert!(image.find().is_err(), "the name is too long");
        image.look();
        assert_eq!(image.trouble(), None);
    }
}
