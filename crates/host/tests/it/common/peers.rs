// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NBD servers that are not ours: nbdkit and qemu-nbd, each on a Unix socket in a directory of its own, perhaps under TLS. They can
//! be killed and started again on the same socket.

pub(crate) use crate::certificates;

use super::TempFile;
use certificates::{Authority, NOW};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const START_TIME: Duration = Duration::from_secs(300);

/// A server that runs, or did.
pub struct Peer {
    directory: PathBuf,
    program: &'static str,
    arguments: Vec<String>,
    child: Option<Child>,
    /// What it serves, if that is a file of ours.
    pub file: Option<TempFile>,
    /// Certificates of clients, if it speaks TLS.
    client: Option<PathBuf>,
    /// Made for it alone.
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

    /// nbdkit with these filters, plugin and parameters.
    pub fn nbdkit(arguments: &[&str]) -> Peer {
        Peer::nbdkit_with(None, arguments)
    }

    /// nbdkit serving a new file; `filters` come before, `parameters` behind.
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

    /// qemu-nbd serving a new file to several clients.
    pub fn qemu(arguments: &[&str]) -> Peer {
        let file = TempFile::new();
        let path = file.0.to_str().unwrap().to_owned();
        Peer::new("qemu-nbd", Some(file), |socket| {
            let fixed = ["-f", "raw", "-t", "-e", "16", "--discard=unmap", "-k", socket.to_str().unwrap()];
            fixed.iter().chain(arguments).copied().chain([path.as_str()]).map(str::to_owned).collect()
        })
    }

    /// nbdkit or qemu-nbd under TLS, which shows this server's certificate and wants one of the same authority from its clients.
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

    /// nbdkit under TLS, with certificates of its own.
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

    /// Starts it, or starts it again; returns when it takes clients.
    pub fn start(&mut self) {
        self.kill();
        let _ = std::fs::remove_file(self.socket());
        let mut command = Command::new(self.program);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot run {}: {e}", self.program));
        let until = Instant::now() + START_TIME;
        while UnixStream::connect(self.socket()).is_err() {
            assert_eq!(child.try_wait().unwrap(), None, "{} {:?} ended", self.program, self.arguments);
            assert!(Instant::now() < until, "{} does not listen", self.program);
            std::thread::yield_now();
        }
        self.child = Some(child);
    }

    /// kill -9.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Another command line from the next start on.
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

    /// As a target; `options` begin with `&`.
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
