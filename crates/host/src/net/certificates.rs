// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Certificates and keys of a TLS server, from PEM files as QEMU, libnbd and nbdkit lay them out. TLS clients use the same code to read
//! such files.
//!
//! Guarantees: loaded files can be used: the key belongs to the certificate, the certificate is valid now and for a server, and the
//! clients' authorities are valid now. A problem is reported with its file. Only regular files of at most `FILE_BYTES_MAX` are read.
//!
//! Source: QEMU docs/system/tls.rst, nbdkit-tls(1) (file names); RFC 5280.

use super::client_names::ClientNames;
use crate::error::Error;
use parking_lot::Mutex;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, InconsistentKeys, RootCertStore, ServerConfig};
use std::fmt::{self, Display};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Largest PEM file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Names of the files in a directory of certificates.
const CERT: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";
pub(crate) const CA: &str = "ca-cert.pem";
pub(crate) const CRL: &str = "ca-crl.pem";

/// The purpose of a file; it also determines the configuration key that names the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The server's certificate and those between it and its authority.
    Cert,
    /// Its private key.
    Key,
    /// Authorities of clients.
    ClientCa,
    /// Client certificates that those authorities have revoked.
    ClientCrl,
    /// A file of the TLS client side, for a target on another server.
    OfTarget,
}

impl Role {
    /// Returns the key in a configuration, or the option of a target.
    pub const fn key(self) -> &'static str {
        match self {
            Role::Cert => "tls_cert",
            Role::Key => "tls_key",
            Role::ClientCa => "tls_client_ca",
            Role::ClientCrl => "tls_client_crl",
            Role::OfTarget => "tls-certificates",
        }
    }
}

/// Why TLS cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The purpose of the file that is wrong.
    pub role: Role,
    /// Its path.
    pub path: PathBuf,
    /// What is wrong, and the remedy.
    pub text: String,
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}: {}", self.role.key(), self.path.display(), self.text)
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Error {
        Error::usage(problem.to_string())
    }
}

/// TLS of an NBD server: PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdTls {
    /// The server's certificate chain.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities of clients: a client must present a certificate that one of them signed. `None` = clients need no certificate.
    pub client_ca: Option<PathBuf>,
    /// Certificates that those authorities have revoked; only with `client_ca`.
    pub client_crl: Option<PathBuf>,
    /// Names of which a client's certificate must have one; only with `client_ca`.
    pub client_names: ClientNames,
    /// Clients without TLS are refused.
    pub required: bool,
}

/// What a server needs for TLS. Replaced files, such as renewed certificates, apply from the next client on. If the new files cannot be
/// used, the old certificates stay in use; that is logged and reported ([`Tls::problem`]).
#[derive(Clone)]
pub struct Tls {
    files: NbdTls,
    loaded: Arc<Mutex<Loaded>>,
}

struct Loaded {
    config: Arc<ServerConfig>,
    /// Stamps of the files at the last check.
    stamps: Vec<Stamp>,
    /// Why the current files are not in use.
    problem: Option<Problem>,
}

/// The result of a check for changed files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The files are those in use.
    Same,
    /// The files have changed and are in use from now on.
    Renewed,
    /// The files have changed but cannot be used; the old certificates stay in use.
    Failed(Problem),
}

/// Distinguishes a file from its replacement: device, inode, length, and modification time.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

impl Tls {
    /// Reads the files of a plan.
    ///
    /// # Errors
    /// The first problem that is found.
    pub fn load(files: &NbdTls) -> Result<Tls, Problem> {
        let stamps = stamps(files);
        let loaded = Loaded { config: load(files)?, stamps, problem: None };
        Ok(Tls { files: files.clone(), loaded: Arc::new(Mutex::new(loaded)) })
    }

    pub(crate) fn is_required(&self) -> bool {
        self.files.required
    }

    /// Returns the TLS settings for the next client.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.renew();
        Arc::clone(&self.loaded.lock().config)
    }

    /// Checks whether the files have changed, and if so loads the new ones. A change is logged.
    pub fn renew(&self) -> Renewal {
        let mut loaded = self.loaded.lock();
        // Stamps are taken before the files are read, so a change in between is noticed at the next check.
        let now = stamps(&self.files);
        if now == loaded.stamps {
            return loaded.problem.clone().map_or(Renewal::Same, Renewal::Failed);
        }
        loaded.stamps = now;
        match load(&self.files) {
            Ok(config) => {
                (loaded.config, loaded.problem) = (config, None);
                log::info!("tls_cert={}: certificates have been renewed", self.files.cert.display());
                Renewal::Renewed
            }
            // Perhaps only one of two files is replaced yet; the next check will notice the other.
            Err(problem) => {
                log::warn!("{problem}; {OLD_ONES}");
                loaded.problem = Some(problem.clone());
                Renewal::Failed(problem)
            }
        }
    }

    /// Returns why the certificates in use are not those in the files, as of the last check; `None` if they are.
    pub fn problem(&self) -> Option<Problem> {
        self.loaded.lock().problem.clone()
    }
}

/// Follows the problem of new files in messages.
pub const OLD_ONES: &str = "the certificates that were loaded before are still in use";

fn stamps(files: &NbdTls) -> Vec<Stamp> {
    let all = [Some(&files.cert), Some(&files.key), files.client_ca.as_ref(), files.client_crl.as_ref()];
    let stamp = |meta: fs::Metadata| (meta.dev(), meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec());
    all.into_iter().flatten().map(|path| fs::metadata(path).ok().map(stamp)).collect()
}

impl NbdTls {
    /// Returns the files of a directory with the layout of QEMU and nbdkit: `server-cert.pem` and `server-key.pem`. To verify clients it
    /// also has `ca-cert.pem` and perhaps `ca-crl.pem`. The latter is left out only if there is no entry of that name.
    pub fn in_directory(directory: &Path, verify_peer: bool, required: bool) -> NbdTls {
        let crl = directory.join(CRL);
        NbdTls {
            cert: directory.join(CERT),
            key: directory.join(KEY),
            client_ca: verify_peer.then(|| directory.join(CA)),
            // A file that cannot be checked counts as present, so that loading it fails. If it were left out, no certificate would count
            // as revoked.
            client_crl: (verify_peer && is_there(&crl).unwrap_or(true)).then_some(crl),
            client_names: ClientNames::default(),
            required,
        }
    }

    /// Returns the directory that clients on this host can use, if it has the layout that they need.
    pub fn directory(&self) -> Option<&Path> {
        let directory = self.cert.parent()?;
        (self.cert.ends_with(CERT) && directory.join(CA).exists()).then_some(directory)
    }
}

/// Whether a directory has an entry of this name, be it a link to nowhere.
///
/// # Errors
/// The directory does not exist or may not be searched, so the answer is unknown.
pub(crate) fn is_there(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        // Either the entry or its directory does not exist.
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
            fs::metadata(directory.unwrap_or(Path::new("."))).map(|_| false)
        }
        Err(e) => Err(e),
    }
}

/// Reads all files and makes a server's TLS settings from them.
fn load(files: &NbdTls) -> Result<Arc<ServerConfig>, Problem> {
    let provider = Arc::new(ring::default_provider());
    let cert = Pem::read(Role::Cert, &files.cert)?;
    let chain: Vec<CertificateDer<'static>> = cert.all("certificate")?;
    for one in &chain {
        cert.check_valid(one, &provider, true)?;
    }
    let key_file = Pem::read(Role::Key, &files.key)?;
    let key = key_file.key()?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| cert.problem(&e.to_string()))?;
    let builder = match &files.client_ca {
        Some(ca) => {
            let verifier = verifier(ca, files.client_crl.as_deref(), &provider)?;
            builder.with_client_cert_verifier(files.client_names.check_after(verifier))
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|e| unusable(&cert, &key_file, e))?;
    // Connections last long and clients do not use resumption, so no sessions are stored. A resumed session would also not be checked for
    // the client's names.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Returns why a certificate and a key cannot be used.
pub(crate) fn unusable(cert: &Pem<'_>, key: &Pem<'_>, e: rustls::Error) -> Problem {
    match e {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            key.problem(&format!("is not the key of the certificate '{}'", cert.path.display()))
        }
        rustls::Error::InvalidCertificate(e) => cert.problem(&format!("cannot be used: {e}")),
        e => key.problem(&format!("cannot be used: {e}; take an ECDSA, Ed25519 or RSA key of 2048 to 8192 bits")),
    }
}

/// Makes the verifier of client certificates.
fn verifier(
    ca: &Path,
    crl: Option<&Path>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, Problem> {
    let authorities = Pem::read(Role::ClientCa, ca)?;
    let roots = authorities.roots(provider)?;
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    if let Some(crl) = crl {
        let lists = Pem::read(Role::ClientCrl, crl)?.revoked()?;
        // An authority without a list has revoked nothing.
        builder = builder.with_crls(lists).allow_unknown_revocation_status();
    }
    builder.build().map_err(|e| authorities.problem(&format!("cannot be used: {e}")))
}

/// The content of a PEM file.
pub(crate) struct Pem<'a> {
    role: Role,
    path: &'a Path,
    bytes: Vec<u8>,
}

impl<'a> Pem<'a> {
    pub(crate) fn read(role: Role, path: &'a Path) -> Result<Pem<'a>, Problem> {
        let mut pem = Pem { role, path, bytes: Vec::new() };
        let bytes = read_file(path).map_err(|e| pem.problem(&format!("{e}; name a PEM file")))?;
        pem.bytes = bytes;
        Ok(pem)
    }

    /// Returns all items of one kind, at least one.
    pub(crate) fn all<T: PemObject>(&self, what: &str) -> Result<Vec<T>, Problem> {
        let items: Result<Vec<T>, pem::Error> = T::pem_slice_iter(&self.bytes).collect();
        match items {
            Ok(items) if !items.is_empty() => Ok(items),
            Ok(_) => Err(self.problem(&format!("holds no {what} (PEM)"))),
            Err(e) => Err(self.unreadable(&e)),
        }
    }

    /// Its private key.
    pub(crate) fn key(&self) -> Result<PrivateKeyDer<'static>, Problem> {
        PrivateKeyDer::from_pem_slice(&self.bytes).map_err(|e| match e {
            pem::Error::NoItemsFound => {
                self.problem("holds no private key (PEM); store an encrypted key without its passphrase")
            }
            e => self.unreadable(&e),
        })
    }

    /// Returns the authorities in the file, each of which is valid now.
    pub(crate) fn roots(&self, provider: &CryptoProvider) -> Result<RootCertStore, Problem> {
        let mut roots = RootCertStore::empty();
        for one in self.all::<CertificateDer<'static>>("certificate")? {
            self.check_valid(&one, provider, false)?;
            roots
                .add(one)
                .map_err(|e| self.problem(&format!("holds a certificate that cannot be an authority: {e}")))?;
        }
        Ok(roots)
    }

    /// Returns the lists of revoked certificates in the file.
    pub(crate) fn revoked(&self) -> Result<Vec<CertificateRevocationListDer<'static>>, Problem> {
        self.all("revocation list")
    }

    /// Checks that a certificate is valid now and, with `serves`, that it is for servers. Its signer is not checked: that is up to the
    /// clients.
    pub(crate) fn check_valid(
        &self,
        cert: &CertificateDer<'static>,
        provider: &CryptoProvider,
        serves: bool,
    ) -> Result<(), Problem> {
        let broken = |e: &dyn std::fmt::Display| self.problem(&format!("holds a broken certificate: {e}"));
        let parsed = ParsedCertificate::try_from(cert).map_err(|e| broken(&e))?;
        let (nobody, now) = (RootCertStore::empty(), UnixTime::now());
        let algorithms = provider.signature_verification_algorithms.all;
        // The library checks validity and purpose before the signer, so the error of an unknown signer means success.
        let found = verify_server_cert_signed_by_trust_anchor(&parsed, &nobody, &[], now, algorithms);
        let Err(rustls::Error::InvalidCertificate(e)) = found else { return Ok(()) };
        match e {
            CertificateError::ExpiredContext { time, not_after } => {
                let ago = age(time.as_secs().saturating_sub(not_after.as_secs()));
                Err(self.problem(&format!("holds a certificate that expired {ago} ago; have a new one issued")))
            }
            CertificateError::NotValidYetContext { time, not_before } => {
                let to_come = age(not_before.as_secs().saturating_sub(time.as_secs()));
                let text =
                    format!("holds a certificate that becomes valid in {to_come}; check the clock of this machine");
                Err(self.problem(&text))
            }
            CertificateError::BadEncoding => Err(broken(&e)),
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } if serves => {
                Err(self.problem("holds a certificate that is not for servers (extended key usage)"))
            }
            _ => Ok(()),
        }
    }

    fn unreadable(&self, e: &pem::Error) -> Problem {
        // The message does not repeat the file's content, because that may be a key.
        let what = match e {
            pem::Error::MissingSectionEnd { .. } => "a section without its end".to_owned(),
            pem::Error::IllegalSectionStart { .. } => "a broken beginning of a section".to_owned(),
            pem::Error::Base64Decode(_) => "a section that is not base64".to_owned(),
            other => other.to_string(),
        };
        self.problem(&format!("is no PEM file: {what}"))
    }

    pub(crate) fn problem(&self, text: &str) -> Problem {
        Problem { role: self.role, path: self.path.to_owned(), text: text.to_owned() }
    }
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    // The type is checked before the file is opened, because opening a pipe would block.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("is no regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("is larger than {FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

fn age(secs: u64) -> String {
    let (n, unit) = match secs {
        0..3600 => (secs / 60, "minute"),
        3600..86400 => (secs / 3600, "hour"),
        _ => (secs / 86400, "day"),
    };
    format!("{n} {unit}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_entry_that_does_not_exist_is_not_there() {
        let name = format!("mqblk-is-there-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).unwrap();
        let of = |verify| NbdTls::in_directory(&directory, verify, true).client_crl;
        let crl = directory.join(CRL);
        assert_eq!((is_there(&crl).unwrap(), of(true)), (false, None));
        std::os::unix::fs::symlink("nowhere", &crl).unwrap();
        assert_eq!((is_there(&crl).unwrap(), of(true), of(false)), (true, Some(crl.clone()), None));
        // Unknown: a directory that is a file, and one that does not exist.
        fs::write(directory.join("file"), "").unwrap();
        assert!(is_there(&directory.join("file").join(CRL)).is_err());
        assert!(is_there(&directory.join("gone").join(CRL)).is_err());
        fs::remove_dir_all(&directory).unwrap();
    }
}
