// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Independent NBD servers: nbdkit and qemu-nbd, each on a Unix socket in its own directory, optionally under TLS. They can be killed
//! and restarted on the same socket.

pub(crate) use crate::certificates;

use super::{TempFile, until};
use certificates::{Authority, NOW};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A server that runs or was killed.
pub struct Peer {
    directory: PathBuf,
    program: &'static str,
    arguments: Vec<String>,
    child: Option<Child>,
    /// The file that it serves, if the test made it.
    pub file: Option<TempFile>,
    /// Certificates of clients, if it speaks TLS.
    client: Option<PathBuf>,
    /// The directory of certificates that was made for this server only.
    certificates: Option<PathBuf>,
}

impl Peer {
    fn new(program: &'static str, file: Option<TempFile>, arguments: impl FnOnce(&Path) -> Vec<String>) -> Peer {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("mqblk-peer-{}-{number}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let arguments = arguments(&directory.join("nbd.sock"));
        let mut peer = Peer { directory, program, arguments, child: None, file, client: None, certificates: None };
        peer.start();
        peer
    }

    /// Starts nbdkit with these filters, plugin and parameters.
    pub fn nbdkit(arguments: &[&str]) -> Peer {
        Peer::nbdkit_with(None, arguments)
    }

    /// Starts nbdkit with a new file. `filters` come before the file, `parameters` after it.
    pub fn nbdkit_file(filters: &[&str], parameters: &[&str]) -> Peer {
        let file = TempFile::new();
        let path = file.0.to_str().unwrap().to_owned();
        let arguments = [filters, &["file", &path], parameters].concat();
        Peer::nbdkit_with(Some(file), &arguments)
    }

    fn nbdkit_with(file: Option<TempFile>, arguments: &[&str]) -> Peer {
        Peer::new("nbdkit", file, |socket| {
            let fixed = ["--foreground", "--exit-with-parent", "--unix", socket.to_str().unwrap()];
            fixed.iter().chain(arguments).map(|a| (*a).to_owned()).collect()
        })
    }

    /// Starts qemu-nbd with a new file, for several clients.
    pub fn qemu(arguments: &[&str]) -> Peer {
        let file = TempFile::new();
        let path = file.0.to_str().unwrap().to_owned();
        Peer::new("qemu-nbd", Some(file), |socket| {
            let fixed = ["-f", "raw", "-t", "-e", "16", "--discard=unmap", "-k", socket.to_str().unwrap()];
            fixed.iter().chain(arguments).copied().chain([path.as_str()]).map(str::to_owned).collect()
        })
    }

    /// Starts nbdkit or qemu-nbd under TLS with this server certificate. It requires client certificates of the same authority.
    pub fn under_tls(program: &'static str, arguments: &[&str], server: &Path, client: &Path) -> Peer {
        let directory = server.to_str().unwrap();
        let mut peer = match program {
            "nbdkit" => {
                let tls = ["--tls=require", "--tls-verify-peer", &format!("--tls-certificates={directory}")];
                Peer::nbdkit(&[&tls, arguments].concat())
            }
            _ => {
                let object = format!("tls-creds-x509,id=t,endpoint=server,dir={directory},verify-peer=yes");
                Peer::qemu(&[&["--object", &object, "--tls-creds", "t"], arguments].concat())
            }
        };
        peer.client = Some(client.to_owned());
        peer
    }

    /// Starts nbdkit under TLS, with new certificates.
    pub fn with_certificates(arguments: &[&str]) -> Peer {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let parent = std::env::temp_dir().join(format!("mqblk-peer-pki-{}-{number}", std::process::id()));
        std::fs::create_dir(&parent).unwrap();
        let authority = Authority::new("tests");
        let (server, client) = (authority.server(&parent, "server", NOW), authority.client(&parent, "client", 2));
        let mut peer = Peer::under_tls("nbdkit", arguments, &server, &client);
        peer.certificates = Some(parent);
        peer
    }

    /// Starts it, also after it was killed. Returns when it accepts clients.
    pub fn start(&mut self) {
        self.kill();
        let _ = std::fs::remove_file(self.socket());
        let mut command = Command::new(self.program);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot run {}: {e}", self.program));
        until(&format!("{} listens", self.program), || {
            assert_eq!(child.try_wait().unwrap(), None, "{} {:?} ended", self.program, self.arguments);
            UnixStream::connect(self.socket()).is_ok()
        });
        self.child = Some(child);
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Changes an argument, from the next start on.
    pub fn set_argument(&mut self, old: &str, new: &str) {
        let found = self.arguments.iter_mut().find(|a| *a == old);
        *found.unwrap_or_else(|| panic!("no argument '{old}'")) = new.to_owned();
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.join("nbd.sock")
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the server as a target. `options` begin with `&`.
    pub fn target(&self, options: &str) -> String {
        let socket = self.socket();
        match &self.client {
            None => format!("nbd+unix:///?socket={}{options}", socket.display()),
            Some(client) => {
                format!("nbds+unix:///?socket={}&tls-certificates={}{options}", socket.display(), client.display())
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
        if let Some(certificates) = &self.certificates {
            let _ = std::fs::remove_dir_all(certificates);
        }
    }
}
