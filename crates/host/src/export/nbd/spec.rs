// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration of an NBD export.

use super::hints::hints;
use crate::driver::target::same_path;
use crate::error::Result;
use crate::handed::{self, At};
use crate::net::certificates::{NbdTls, Problem, Tls};
use crate::net::client_names::ClientNames;
use crate::net::listen::TcpListen;
use crate::net::socket::check_listen;
use crate::serve::export_spec::{
    ExportKeys, ExportSetup, ExportSpec, ExportValue, Hint, HintContext, Report, report_path,
};
use crate::serve::running::RunningExport;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

/// Default of `max_connections`.
pub const NBD_CONNECTIONS: u32 = 64;
/// Largest `max_connections`.
pub(super) const CONNECTIONS_MAX: u32 = 256;
/// Longest export name, bytes. Source: NBD protocol, "Values".
const NAME_BYTES_MAX: usize = 4096;

/// An NBD export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdPlan {
    /// Where the server listens. Exports that listen at the same address share one server; a client that asks for the empty name gets the
    /// first of them.
    pub listen: NbdListen,
    /// Permissions of a Unix socket; `None` = as the umask has it.
    pub socket_mode: Option<u32>,
    /// Export name, unique among those of one server; at most 4096 bytes.
    pub name: String,
    /// TLS; `None` = not offered.
    pub tls: Option<NbdTls>,
    /// Maximum number of clients at once on this server.
    pub max_connections: u32,
}

/// Where an NBD server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NbdListen {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP address, or those of a name.
    Tcp(TcpListen),
}

impl std::fmt::Display for NbdListen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NbdListen::Unix(path) => write!(f, "{}", path.display()),
            NbdListen::Tcp(listen) => write!(f, "{listen}"),
        }
    }
}

impl NbdListen {
    /// Whether both are the same address.
    pub(crate) fn is_same(&self, other: &NbdListen) -> bool {
        match (self, other) {
            (NbdListen::Unix(a), NbdListen::Unix(b)) => same_path(a, b),
            (NbdListen::Tcp(a), NbdListen::Tcp(b)) => a.addresses().eq(b.addresses()),
            _ => false,
        }
    }

    /// Returns an address of both.
    fn shared(&self, other: &NbdListen) -> Option<SocketAddr> {
        match (self, other) {
            (NbdListen::Tcp(a), NbdListen::Tcp(b)) => a.addresses().find(|at| b.addresses().any(|other| other == *at)),
            _ => None,
        }
    }
}

impl ExportSpec for NbdPlan {
    const TYPE: &'static str = "nbd";
    const SERVES_CONNECTIONS: bool = true;
    const SERVES_ANY_SIZE: bool = true;
    const SHORT: &'static str = "nbd";

    fn read(keys: &mut dyn ExportKeys, name: &str, disk: &str) -> NbdPlan {
        let listen = match keys.address("listen") {
            Some(address) => {
                if keys.is_given("socket") {
                    let text = "socket: an export has a socket or listen, not both; make a second [[export]]";
                    keys.refuse("socket", text.to_owned());
                }
                address.map_or(NbdListen::Unix(PathBuf::new()), NbdListen::Tcp)
            }
            None => NbdListen::Unix(keys.socket(name)),
        };
        NbdPlan {
            listen,
            socket_mode: keys.socket_mode(),
            name: keys.text("export_name", "data").unwrap_or_else(|| disk.to_owned()),
            tls: tls(keys),
            max_connections: keys
                .number("max_connections", 1..=CONNECTIONS_MAX.into())
                .map_or(NBD_CONNECTIONS, |n| n as u32),
        }
    }

    fn unix_socket(&self) -> Option<&Path> {
        match &self.listen {
            NbdListen::Unix(path) => Some(path),
            NbdListen::Tcp(_) => None,
        }
    }

    fn is_at(&self, at: &At) -> bool {
        match (&self.listen, at) {
            (NbdListen::Unix(path), At::Unix(_)) => handed::is_at(at, path),
            (NbdListen::Tcp(listen), At::Tcp(other)) => listen.addresses().any(|at| at == *other),
            _ => false,
        }
    }

    fn listen_at(&mut self, at: &At) -> bool {
        self.listen = match at {
            At::Unix(path) => NbdListen::Unix(path.clone()),
            At::Tcp(address) => NbdListen::Tcp((*address).into()),
        };
        true
    }

    fn tls(&mut self) -> Option<&mut Option<NbdTls>> {
        Some(&mut self.tls)
    }

    fn check(&self, report: &mut Report<'_>) {
        let bytes = self.name.len();
        if bytes > NAME_BYTES_MAX || self.name.contains('\0') {
            report(
                "export_name",
                format!("export_name: has {bytes} bytes; must be at most {NAME_BYTES_MAX} bytes, without NUL"),
            );
        }
        if let NbdListen::Tcp(listen) = &self.listen
            && listen.first().port() == 0
        {
            report("listen", format!("listen={listen}: the port must be 1..=65535; NBD's own is 10809"));
        }
        let most = self.max_connections;
        if !(1..=CONNECTIONS_MAX).contains(&most) {
            report("max_connections", format!("max_connections={most}: must be 1..={CONNECTIONS_MAX}"));
        }
    }

    fn shares_server(&self, other: &NbdPlan) -> bool {
        self.listen.is_same(&other.listen)
    }

    fn clash(&self, other: &NbdPlan, name: &str) -> Option<(&'static str, String)> {
        if !self.shares_server(other) {
            let at = self.listen.shared(&other.listen)?;
            let text = format!(
                "listen={}: export '{name}' also listens at {at}, but its other addresses differ; give both exports the same listen, \
                 or this one another port",
                self.listen
            );
            return Some(("listen", text));
        }
        let key = if matches!(self.listen, NbdListen::Unix(_)) { "socket" } else { "listen" };
        let what = if self.name == other.name {
            format!("serves the export name '{}' already; give one of them another export_name", self.name)
        } else if self.tls != other.tls {
            "has different TLS settings; a server has only one set".to_owned()
        } else if self.max_connections != other.max_connections {
            "has a different max_connections; a server has only one".to_owned()
        } else if self.socket_mode != other.socket_mode {
            "has a different socket_mode; a socket has only one".to_owned()
        } else {
            return None;
        };
        Some((key, format!("{key}={}: there export '{name}' {what}", self.listen)))
    }

    fn preflight(&self, report: &mut Report<'_>) {
        match &self.listen {
            NbdListen::Unix(path) => report_path(check_listen(path), "socket", path, report),
            NbdListen::Tcp(listen) => {
                for address in listen.addresses().filter(|at| !handed::has_tcp(at)) {
                    let Err(e) = TcpListener::bind(address) else { continue };
                    let remedy = match e.kind() {
                        io::ErrorKind::AddrInUse => "; end the program that uses it or choose another port",
                        io::ErrorKind::AddrNotAvailable => "; choose an address of this host, or [::] for all",
                        _ => "",
                    };
                    let of = listen.name().map_or_else(String::new, |_| format!("{address}: "));
                    report("listen", format!("listen={listen}: {of}{e}{remedy}"));
                }
            }
        }
        let Some(tls) = &self.tls else { return };
        if let Err(Problem { role, path, text }) = Tls::load(tls) {
            report(role.key(), format!("{}={}: {text}", role.key(), path.display()));
        }
    }

    fn begin(&self, _setup: ExportSetup<'_>) -> Result<Option<Box<dyn RunningExport>>> {
        Ok(None)
    }

    fn summary(&self) -> String {
        let tls = match &self.tls {
            None => "",
            Some(tls) if !tls.client_names.is_empty() => ", TLS required, for clients of certain names",
            Some(tls) if tls.required => ", TLS required",
            Some(_) => ", TLS offered",
        };
        let at = match &self.listen {
            NbdListen::Tcp(listen) if listen.name().is_some() => {
                let all: Vec<String> = listen.addresses().map(|at| at.to_string()).collect();
                format!(" ({})", all.join(" "))
            }
            _ => String::new(),
        };
        format!("'{}' on {}{at}{tls}", self.name.escape_debug(), self.listen)
    }

    fn values(&self) -> Vec<(&'static str, ExportValue)> {
        let tls = self.tls.as_ref().map_or("off", |t| if t.required { "require" } else { "on" });
        vec![
            ("listen", ExportValue::Text(self.listen.to_string())),
            ("export_name", ExportValue::Text(self.name.clone())),
            ("tls", ExportValue::Text(tls.to_owned())),
            ("max_connections", ExportValue::Number(Some(self.max_connections.into()))),
        ]
    }

    fn hints(&self, export: &HintContext<'_>) -> Vec<Hint> {
        hints(self, export)
    }
}

/// Reads the keys of TLS.
fn tls(keys: &mut dyn ExportKeys) -> Option<NbdTls> {
    let mut tls = certificates(keys);
    let Some(names) = keys.texts("tls_client_names", "\"vm1.example\", \"vm2.example\"") else { return tls };
    match tls.as_mut().filter(|tls| tls.required && tls.client_ca.is_some()) {
        Some(tls) => match ClientNames::read(&names) {
            Ok(names) => tls.client_names = names,
            Err(why) => keys.refuse("tls_client_names", format!("tls_client_names: {why}")),
        },
        // A client without TLS, or without a certificate, would not be checked.
        None => {
            let text = "tls_client_names: needs tls = \"require\" and verified clients; set both, the latter with tls_client_ca = \
                        \"FILE\" or tls_verify_peer = true";
            keys.refuse("tls_client_names", text.to_owned());
        }
    }
    tls
}

/// Reads `tls`, with a directory of certificates or with the files by their names.
fn certificates(keys: &mut dyn ExportKeys) -> Option<NbdTls> {
    let required = keys.word("tls", &["off", "on", "require"]).filter(|word| *word > 0).map(|word| word == 2);
    let directory = keys.text("tls_certificates", "/etc/pki/mqblk");
    let verify = keys.flag("tls_verify_peer");
    let files = ["tls_cert", "tls_key", "tls_client_ca", "tls_client_crl"].map(|k| (k, keys.text(k, "cert.pem")));
    let given = files.iter().find(|(_, value)| value.is_some()).map(|(key, _)| *key);
    let Some(required) = required else {
        let one = directory
            .as_ref()
            .map(|_| "tls_certificates")
            .or((verify == Some(true)).then_some("tls_verify_peer"))
            .or(given);
        if let Some(key) = one {
            keys.refuse(key, format!("{key}: has no effect without TLS; add tls = \"require\" or \"on\""));
        }
        return None;
    };
    if let Some(directory) = directory {
        if let Some(key) = given {
            keys.refuse(key, format!("{key}: comes from tls_certificates = \"DIR\"; leave one of them out"));
        }
        return Some(NbdTls::in_directory(directory.as_ref(), verify.unwrap_or(false), required));
    }
    if verify.is_some() {
        let text = "tls_verify_peer: goes with tls_certificates = \"DIR\"; with files it is tls_client_ca = \"FILE\"";
        keys.refuse("tls_verify_peer", text.to_owned());
    }
    let [cert, key, client_ca, client_crl] = files.map(|(_, value)| value.map(PathBuf::from));
    if client_crl.is_some() && client_ca.is_none() {
        keys.refuse("tls_client_crl", "tls_client_crl: has no effect without tls_client_ca = \"FILE\"".to_owned());
    }
    match (cert, key) {
        (Some(cert), Some(key)) => {
            Some(NbdTls { cert, key, client_ca, client_crl, client_names: ClientNames::default(), required })
        }
        (cert, _) => {
            let missing = if cert.is_none() { "tls_cert" } else { "tls_key" };
            let text = format!("tls: needs {missing} = \"FILE\" (PEM), too; or tls_certificates = \"DIR\"");
            keys.refuse("tls", text);
            None
        }
    }
}
