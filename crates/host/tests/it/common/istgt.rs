// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A second independent iSCSI target, unrelated to tgt: Debian's istgt on a free port, with a file as LUN 0.
//!
//! It behaves differently from tgtd: all data of a write must be solicited (`ImmediateData No`), and it declines `InitialR2T=No`.

use super::{DISK_BYTES, TempFile};
use crate::waiting::{LONG, POLL};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// How many times two free ports are looked for.
const TRIES: u32 = 20;
const IQN: &str = "iqn.2026-11.test:second";

/// Its configuration.
#[derive(Clone, Copy)]
pub struct Options {
    /// `Yes` or `No`.
    pub immediate_data: &'static str,
    /// `None`, `CHAP` or `CHAP Mutual`. The user is `me`, `secretsecret1`; the target's `them`, `secretsecret2`.
    pub auth: &'static str,
}

/// A running target.
pub struct Istgt {
    child: Child,
    directory: PathBuf,
    port: u16,
    _file: TempFile,
}

impl Istgt {
    pub fn new(options: Options) -> Istgt {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("istgt-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir(&directory).unwrap();
        let file = TempFile::new();
        // Another process may take a port after it is chosen and before istgt listens.
        let (child, port) = (0..TRIES)
            .find_map(|_| try_start(&directory, &file, options))
            .unwrap_or_else(|| panic!("istgt did not start in {TRIES} tries: {}", said(&directory)));
        Istgt { child, directory, port, _file: file }
    }

    /// Returns the URL of its LUN 0. `login` is `USER%PASSWORD@` or empty, `options` begin with `?`.
    pub fn url_as(&self, login: &str, options: &str) -> String {
        format!("iscsi://{login}127.0.0.1:{}/{IQN}/0{options}", self.port)
    }
}

fn said(directory: &std::path::Path) -> String {
    fs::read_to_string(directory.join("log")).unwrap_or_default()
}

fn try_start(directory: &std::path::Path, file: &TempFile, options: Options) -> Option<(Child, u16)> {
    // Both ports are held until both are known, so that they differ.
    let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [port, control] = ports.map(|listener| listener.local_addr().unwrap().port());
    let auth = directory.join("auth.conf");
    fs::write(&auth, "[AuthGroup1]\n  Auth \"me\" \"secretsecret1\" \"them\" \"secretsecret2\"\n").unwrap();
    fs::set_permissions(&auth, fs::Permissions::from_mode(0o600)).unwrap();
    let (here, disk) = (directory.display(), file.0.display());
    let Options { immediate_data, auth: method } = options;
    let text = format!(
        "[Global]
  NodeBase \"iqn.2026-11.test\"
  PidFile {here}/pid
  AuthFile {here}/auth.conf
  MediaDirectory {here}
  Timeout 30
  NopInInterval 20
  DiscoveryAuthMethod Auto
  MaxSessions 64
  MaxConnections 4
  MaxR2T 32
  MaxOutstandingR2T 16
  FirstBurstLength 65536
  MaxBurstLength 131072
  MaxRecvDataSegmentLength 32768
  InitialR2T Yes
  ImmediateData {immediate_data}
  DataPDUInOrder Yes
  DataSequenceInOrder Yes
  ErrorRecoveryLevel 0
[UnitControl]
  AuthMethod None
  AuthGroup None
  Portal UC1 127.0.0.1:{control}
  Netmask 127.0.0.1
[PortalGroup1]
  Portal DA1 127.0.0.1:{port}
[InitiatorGroup1]
  InitiatorName \"ALL\"
  Netmask 127.0.0.1
[LogicalUnit1]
  TargetName {IQN}
  Mapping PortalGroup1 InitiatorGroup1
  AuthMethod {method}
  AuthGroup AuthGroup1
  UseDigest Auto
  UnitType Disk
  UnitInquiry \"TEST\" \"second\" \"0001\" \"SN0002\"
  LUN0 Storage {disk} {DISK_BYTES}B
"
    );
    let config = directory.join("istgt.conf");
    fs::write(&config, text).unwrap();
    let log = fs::File::create(directory.join("log")).unwrap();
    let mut command = Command::new("istgt");
    command.arg("-D").arg("-c").arg(&config).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot run istgt: {e}"));
    let until = Instant::now() + LONG;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if child.try_wait().unwrap().is_some() {
            return None;
        }
        assert!(Instant::now() < until, "istgt does not listen: {}", said(directory));
        std::thread::sleep(POLL);
    }
    Some((child, port))
}

impl Drop for Istgt {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}
