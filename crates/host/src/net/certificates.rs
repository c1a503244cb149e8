// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Certificates and keys of a TLS server, from the PEM files that users of QEMU, libnbd and nbdkit lay out; and the reading of such
//! files, which a client's share.
//!
//! Guarantees: what is loaded can be used: the key belongs to the certificate, the certificate is valid now and for a
//! server, and so are the authorities of clients. What is wrong is reported with the file it is in. Only regular files of at
//! most `FILE_BYTES_MAX` are read.
//!
//! Source: QEMU docs/system/tls.rst, nbdkit-tls(1) (file names); RFC 5280.

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

/// The names that files have in a directory of certificates.
const CERT: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";
pub(crate) const CA: &str = "ca-cert.pem";
pub(crate) const CRL: &str = "ca-crl.pem";

/// What a file is for; also the key that names it in a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The server's certificate and those between it and its authority.
    Cert,
    /// Its private key.
    Key,
    /// Authorities of clients.
    ClientCa,
    /// Certificates of clients that they have revoked.
    ClientCrl,
    /// One of the files of a client of a foreign server.
    OfTarget,
}

impl Role {
    /// The key in a configuration, or the option of a target.
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

/// Why there cannot be TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Which file it is about.
    pub role: Role,
    /// Its path.
    pub path: PathBuf,
    /// What is wrong, and what to do.
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
    /// Clients must show a certificate signed by one of these; `None` = they need none.
    pub client_ca: Option<PathBuf>,
    /// Certificates that those authorities have revoked; only with `client_ca`.
    pub client_crl: Option<PathBuf>,
    /// Clients without TLS are refused.
    pub required: bool,
}

/// What a server needs to speak TLS. Files that are replaced, as certificates are renewed, count from the next client on; if
/// what is there then cannot be used, what was there before stays in use, which is logged and told ([`Tls::problem`]).
#[derive(Clone)]
pub struct Tls {
    files: NbdTls,
    loaded: Arc<Mutex<Loaded>>,
}

struct Loaded {
    config: Arc<ServerConfig>,
    /// Of the files, from the last check.
    stamps: Vec<Stamp>,
    /// Why what is in the files now is not what is in use.
    problem: Option<Problem>,
}

/// What a look at the files has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// They are those that are in use.
    Same,
    /// They are others, which are in use from now on.
    Renewed,
    /// They are others, which cannot be used; those from before stay in use.
    Failed(Problem),
}

/// Tells a file from one that was put in its place: device, inode, length, and when it was changed.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

impl Tls {
    /// Reads the files of a plan.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn load(files: &NbdTls) -> Result<Tls, Problem> {
        let stamps = stamps(files);
        let loaded = Loaded { config: load(files)?, stamps, problem: None };
        Ok(Tls { files: files.clone(), loaded: Arc::new(Mutex::new(loaded)) })
    }

    pub(crate) fn is_required(&self) -> bool {
        self.files.required
    }

    /// For the next client.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.renew();
        Arc::clone(&self.loaded.lock().config)
    }

    /// Checks whether the files have changed, and uses the new ones then. A change is logged.
    pub fn renew(&self) -> Renewal {
        let mut loaded = self.loaded.lock();
        // Checked before they are read: what changes meanwhile is seen the next time.
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
            // Perhaps one file of two is there; the other one will have another stamp.
            Err(problem) => {
                log::warn!("{problem}; {OLD_ONES}");
                loaded.problem = Some(problem.clone());
                Renewal::Failed(problem)
            }
        }
    }

    /// Why the certificates in use are not those in the files; none if they are, as of the last check.
    pub fn problem(&self) -> Option<Problem> {
        self.loaded.lock().problem.clone()
    }
}

/// Said behind what is wrong with new files.
pub const OLD_ONES: &str = "the certificates that were loaded before are still in use";

fn stamps(files: &NbdTls) -> Vec<Stamp> {
    let all = [Some(&files.cert), Some(&files.key), files.client_ca.as_ref(), files.client_crl.as_ref()];
    let stamp = |meta: fs::Metadata| (meta.dev(), meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec());
    all.into_iter().flatten().map(|path| fs::metadata(path).ok().map(stamp)).collect()
}

impl NbdTls {
    /// The files of a directory that is laid out as QEMU and nbdkit have it: `server-cert.pem` and `server-key.pem`. If clients
    /// are to be verified, it also has `ca-cert.pem` and perhaps `ca-crl.pem`. The latter is left out only if there is no entry
    /// of that name.
    pub fn in_directory(directory: &Path, verify_peer: bool, required: bool) -> NbdTls {
        let crl = directory.join(CRL);
        NbdTls {
            cert: directory.join(CERT),
            key: directory.join(KEY),
            client_ca: verify_peer.then(|| directory.join(CA)),
            // A file that cannot be read is taken to be there, and rejected when it is loaded: without it no
            // certificate is revoked.
            client_crl: (verify_peer && is_there(&crl).unwrap_or(true)).then_some(crl),
            required,
        }
    }

    /// The directory that clients on this host can name, if it is laid out as they need it.
    pub fn directory(&self) -> Option<&Path> {
        let directory = self.cert.parent()?;
        (self.cert.ends_with(CERT) && directory.join(CA).exists()).then_some(directory)
    }
}

/// Whether a directory has an entry of this name, be it a link to nowhere.
///
/// # Errors
/// It cannot be told: the directory is not there, or may not be searched.
pub(crate) fn is_there(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        // The entry, or the directory that it would be in.
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
            fs::metadata(directory.unwrap_or(Path::new("."))).map(|_| false)
        }
        Err(e) => Err(e),
    }
}

/// Reads all files and makes a server's settings of them.
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
        Some(ca) => builder.with_client_cert_verifier(verifier(ca, files.client_crl.as_deref(), &provider)?),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|e| unusable(&cert, &key_file, e))?;
    // Connections last long and clients know nothing of resumption: nothing is remembered of them.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Why a certificate and a key cannot be used.
pub(crate) fn unusable(cert: &Pem<'_>, key: &Pem<'_>, e: rustls::Error) -> Problem {
    match e {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            key.problem(&format!("is not the key of the certificate '{}'", cert.path.display()))
        }
        rustls::Error::InvalidCertificate(e) => cert.problem(&format!("cannot be used: {e}")),
        e => key.problem(&format!("cannot be used: {e}; take an ECDSA, Ed25519 or RSA key of 2048 to 8192 bits")),
    }
}

/// The verifier of client certificates.
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

/// A file that was read.
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

    /// All items of one kind; at least one.
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
                self.problem("holds no private key (PEM); one with a passphrase must be stored without it first")
            }
            e => self.unreadable(&e),
        })
    }

    /// The authorities in it, each of its time.
    pub(crate) fn roots(&self, provider: &CryptoProvider) -> Result<RootCertStore, Problem> {
        let mut roots = RootCertStore::empty();
        for one in self.all::<CertificateDer<'static>>("certificate")? {
            self.check_valid(&one, provider, false)?;
            roots.add(one).map_err(|e| self.problem(&format!("holds what is no authority: {e}")))?;
        }
        Ok(roots)
    }

    /// The lists of revoked certificates in it.
    pub(crate) fn revoked(&self) -> Result<Vec<CertificateRevocationListDer<'static>>, Problem> {
        self.all("revocation list")
    }

    /// A certificate must be of its time and, in a server's file, its first one be for servers. The signer is for
    /// clients to judge.
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
        // Validity and purpose are checked before the signer, which is unknown here.
        let found = verify_server_cert_signed_by_trust_anchor(&parsed, &nobody, &[], now, algorithms);
        let Err(rustls::Error::InvalidCertificate(e)) = found else { return Ok(()) };
        match e {
            CertificateError::ExpiredContext { time, not_after } => {
                let ago = age(time.as_secs().saturating_sub(not_after.as_secs()));
                Err(self.problem(&format!("holds a certificate that expired {ago} ago; have a new one issued")))
            }
            CertificateError::NotValidYetContext { time, not_before } => {
                let to_come = age(not_before.as_secs().saturating_sub(time.as_secs()));
                let text = format!("holds a certificate that is valid only in {to_come}; is the clock right?");
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
        // What was found in the file is not repeated: it may be a key.
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
    // Not opened before it is known to be a file: a pipe would block.
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
        // Neither told: a directory that is none, and one that has gone.
        fs::write(directory.join("file"), "").unwrap();
        assert!(is_there(&directory.join("file").join(CRL)).is_err());
        assert!(is_there(&directory.join("gone").join(CRL)).is_err());
        fs::remove_dir_all(&directory).unwrap();
    }
}
