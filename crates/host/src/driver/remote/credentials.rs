// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a client needs to speak TLS with a server: trusted authorities, the server's expected name, its own
//! certificate; and the messages for users when a handshake fails.
//!
//! Guarantees: a server's certificate is verified (authority, name, time, purpose, revocation where there is a list) unless the
//! target has `tls-verify-peer=0` ([`TargetTls::verify_peer`]). Each connection reads the files again. If a file cannot be read
//! or used, or an optional file (revocation list, client certificate) has disappeared, the old ones stay in use. This is logged
//! once. Only reopening the target drops them. An unreadable file is never treated as missing.
//!
//! Does not do: pre-shared keys and anonymous TLS, which rustls does not support; resumption.
//!
//! Source: the NBD URI specification, "NBD URI query parameters related to TLS"; libnbd(3), "TLS" (names of files); RFC 5280.

use super::dial::printable;
use crate::error::{Error, ErrorKind, Result};
use crate::net::certificates::{CA, CRL, OLD_ONES, Pem, Problem, Role, is_there, unusable};
use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CERT: &str = "client-cert.pem";
const KEY: &str = "client-key.pem";
/// Files in which systems keep their trusted authorities.
const SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// The name that a server at a Unix socket must have, if no other is given.
const LOCAL: &str = "localhost";

/// TLS settings of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetTls {
    /// Directory with `ca-cert.pem` and, if there are any, `ca-crl.pem`, `client-cert.pem` and `client-key.pem`; `None`: the system's
    /// authorities, and no certificate of our own.
    pub certificates: Option<PathBuf>,
    /// The name that the server's certificate must be for; `None`: the host's, or `localhost` for a Unix socket.
    pub hostname: Option<String>,
    /// Whether the server's certificate is verified.
    pub verify_peer: bool,
}

impl Default for TargetTls {
    fn default() -> Self {
        TargetTls { certificates: None, hostname: None, verify_peer: true }
    }
}

/// See the module's text.
pub(crate) struct Credentials {
    tls: TargetTls,
    name: ServerName<'static>,
    loaded: Mutex<Loaded>,
}

struct Loaded {
    config: Arc<ClientConfig>,
    /// Which optional files were found.
    found: Found,
    /// The last problem that was logged about unusable files.
    problem: Option<Problem>,
}

/// Which optional files of the directory exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Found {
    /// A revocation list.
    crl: bool,
    /// A certificate of our own, or its key.
    own: bool,
}

impl Credentials {
    /// Reads the files of a target at this host; `None`: at a Unix socket of this machine.
    ///
    /// # Errors
    /// The first problem that is found.
    pub(crate) fn load(tls: &TargetTls, host: Option<&str>) -> Result<Credentials> {
        let text = tls.hostname.as_deref().or(host).unwrap_or(LOCAL);
        let name = ServerName::try_from(text.to_owned()).map_err(|_| {
            Error::usage(format!("'{text}' is not a valid name for a certificate; add tls-hostname=NAME to the target"))
        })?;
        let (config, found) = load(tls, Found::default())?;
        let loaded = Mutex::new(Loaded { config, found, problem: None });
        Ok(Credentials { tls: tls.clone(), name, loaded })
    }

    /// Returns the settings for the next connection, from the files as they are now.
    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        let mut loaded = self.loaded.lock();
        match load(&self.tls, loaded.found) {
            Ok((config, found)) => *loaded = Loaded { config, found, problem: None },
            Err(problem) if loaded.problem.as_ref() == Some(&problem) => {}
            Err(problem) => {
                log::warn!("{problem}; {OLD_ONES}");
                loaded.problem = Some(problem);
            }
        }
        Arc::clone(&loaded.config)
    }

    /// The name that the server's certificate must be for.
    pub(crate) fn name(&self) -> ServerName<'static> {
        self.name.clone()
    }

    /// Returns the error for a failed TLS handshake, with its remedy.
    pub(crate) fn explain(&self, e: &io::Error) -> Error {
        let inner = e.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
        let (kind, text) = match inner {
            Some(rustls::Error::InvalidCertificate(e)) => (ErrorKind::Denied, self.about_certificate(e)),
            Some(rustls::Error::AlertReceived(alert)) => (ErrorKind::Denied, self.about_alert(*alert)),
            Some(rustls::Error::InvalidMessage(e)) => (
                ErrorKind::Io,
                format!(
                    "its data after STARTTLS is not TLS ({e:?}): rejected; check the server and proxies in between"
                ),
            ),
            Some(e) => (ErrorKind::Io, format!("TLS failed: {e}")),
            None => return Error::new(ErrorKind::Io, format!("the handshake ended early: {e}{}", self.hint())),
        };
        Error::new(kind, text)
    }

    /// Returns the likely cause when a server closes the connection without an alert.
    pub(crate) fn hint(&self) -> String {
        if self.loaded.lock().found.own {
            return "; perhaps it does not accept our client certificate".to_owned();
        }
        format!("; perhaps it requires a client certificate: {}", self.remedy())
    }

    fn remedy(&self) -> String {
        let directory = self.tls.certificates.as_ref().map_or("DIR".to_owned(), |d| d.display().to_string());
        format!("put {CERT} and {KEY} of an authority that it trusts into tls-certificates={directory}")
    }

    fn about_alert(&self, alert: AlertDescription) -> String {
        use AlertDescription as A;
        let has_own = self.loaded.lock().found.own;
        match alert {
            // A server sends this alert if it wants a client certificate, but also if there is no common cipher.
            A::HandshakeFailure if !has_own => format!("the server aborted TLS ({alert:?}){}", self.hint()),
            A::CertificateRequired | A::BadCertificate | A::AccessDenied if !has_own => {
                format!("the server requires a client certificate ({alert:?}): {}", self.remedy())
            }
            A::UnknownCA
            | A::BadCertificate
            | A::UnsupportedCertificate
            | A::CertificateExpired
            | A::CertificateRevoked
            | A::CertificateUnknown
            | A::AccessDenied
            | A::DecryptError => {
                format!("the server does not accept our client certificate ({alert:?}): {}", self.remedy())
            }
            _ => format!("the server aborted TLS ({alert:?}); its log may say why"),
        }
    }

    fn about_certificate(&self, e: &CertificateError) -> String {
        use CertificateError as C;
        let name = self.name.to_str();
        match e {
            C::UnknownIssuer | C::BadSignature => {
                let remedy = match &self.tls.certificates {
                    Some(directory) => {
                        format!("in '{}': put the server's authority there", directory.join(CA).display())
                    }
                    None => "of this system: add tls-certificates=DIR, with the server's authority in its ca-cert.pem"
                        .into(),
                };
                format!("its certificate is not signed by an authority {remedy}")
            }
            C::NotValidForName | C::NotValidForNameContext { .. } => {
                let names = match e {
                    C::NotValidForNameContext { presented, .. } if !presented.is_empty() => presented.join(", "),
                    _ => "no name (as subjectAltName)".to_owned(),
                };
                let names = printable(names);
                format!(
                    "its certificate is not for '{name}' but for {names}; add tls-hostname=NAME with one of its names"
                )
            }
            C::Expired | C::ExpiredContext { .. } => {
                "its certificate has expired: the server needs a new one (or this machine's clock is wrong)".to_owned()
            }
            C::NotValidYet | C::NotValidYetContext { .. } => {
                "its certificate is not valid yet: check the clocks of this machine and of the server".to_owned()
            }
            C::Revoked => {
                format!("its certificate has been revoked by its authority ({CRL}): the server needs a new one")
            }
            C::InvalidPurpose | C::InvalidPurposeContext { .. } => {
                "its certificate is not for servers (extended key usage): the server needs another one".to_owned()
            }
            e => format!("its certificate cannot be used: {e}"),
        }
    }
}

impl Found {
    /// Checks which optional files exist; those of `before` must still exist.
    fn look(directory: Option<&Path>, before: Found) -> std::result::Result<Found, Problem> {
        let Some(directory) = directory else { return Ok(Found::default()) };
        let there = |name: &str, must: bool| {
            let path = directory.join(name);
            match is_there(&path) {
                Ok(false) if must => {
                    let text = "no longer exists: restore it, or reopen the target to do without it";
                    Err(problem(&path, text.to_owned()))
                }
                Ok(there) => Ok(there),
                Err(e) => Err(problem(&path, format!("cannot check whether it exists: {e}"))),
            }
        };
        // If only one of the two exists, reading the other one fails later.
        let own = there(KEY, false)? || there(CERT, before.own)?;
        Ok(Found { crl: there(CRL, before.crl)?, own })
    }
}

/// Returns a client's TLS settings, and which optional files were found. All optional files that were found before must still exist.
fn load(tls: &TargetTls, before: Found) -> std::result::Result<(Arc<ClientConfig>, Found), Problem> {
    let provider = Arc::new(ring::default_provider());
    let directory = tls.certificates.as_deref();
    let place = directory.map_or_else(system_file, |d| d.join(CA));
    let failed = |e: &dyn std::fmt::Display| problem(&place, format!("cannot be used: {e}"));
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| failed(&e))?;
    let roots = if tls.verify_peer { Some(trusted(directory, &place, &provider)?) } else { None };
    // Checked after the authorities, so that the message for a missing directory is about the authorities.
    let found = Found::look(directory, before)?;
    let builder = if let Some(roots) = roots {
        let mut verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        if let Some(crl) = directory.map(|d| d.join(CRL)).filter(|_| found.crl) {
            let lists = Pem::read(Role::OfTarget, &crl)?.revoked()?;
            // An authority without a list has revoked nothing.
            verifier = verifier.with_crls(lists).allow_unknown_revocation_status();
        }
        builder.with_webpki_verifier(verifier.build().map_err(|e| failed(&e))?)
    } else {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(NoServerVerification(Arc::clone(&provider))))
    };
    let own = directory.map(|d| (d.join(CERT), d.join(KEY))).filter(|_| found.own);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let (cert, key) = (Pem::read(Role::OfTarget, &cert)?, Pem::read(Role::OfTarget, &key)?);
            let chain: Vec<CertificateDer<'static>> = cert.all("certificate")?;
            for one in &chain {
                cert.check_valid(one, &provider, false)?;
            }
            builder.with_client_auth_cert(chain, key.key()?).map_err(|e| unusable(&cert, &key, e))?
        }
    };
    // Connections last long.
    config.resumption = Resumption::disabled();
    Ok((Arc::new(config), found))
}

fn problem(path: &Path, text: String) -> Problem {
    Problem { role: Role::OfTarget, path: path.to_owned(), text }
}

fn system_file() -> PathBuf {
    SYSTEM.iter().map(PathBuf::from).find(|path| path.exists()).unwrap_or_else(|| PathBuf::from(SYSTEM[0]))
}

/// Returns the authorities that may sign a server's certificate.
fn trusted(
    directory: Option<&Path>,
    place: &Path,
    provider: &CryptoProvider,
) -> std::result::Result<RootCertStore, Problem> {
    if directory.is_some() {
        return Pem::read(Role::OfTarget, place)?.roots(provider);
    }
    // Without a directory, use the system's authorities. Some of these may have expired or be of an unsupported kind.
    let remedy = |problem: Problem| Problem {
        text: format!(
            "{}; without tls-certificates=DIR in the target, this system's authorities are used",
            problem.text
        ),
        ..problem
    };
    let all: Vec<CertificateDer<'static>> =
        Pem::read(Role::OfTarget, place).map_err(remedy)?.all("certificate").map_err(remedy)?;
    let mut roots = RootCertStore::empty();
    match roots.add_parsable_certificates(all) {
        (0, _) => Err(remedy(problem(place, "holds no authority".to_owned()))),
        _ => Ok(roots),
    }
}

/// Accepts any server that has the key of its certificate.
#[derive(Debug)]
struct NoServerVerification(Arc<CryptoProvider>);

impl ServerCertVerifier for NoServerVerification {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One alert has two possible reasons, so the message must not claim one of them for certain.
    #[test]
    fn what_is_only_likely_is_told_as_that() {
        let tls = TargetTls { verify_peer: false, ..TargetTls::default() };
        let credentials = Credentials::load(&tls, None).unwrap();
        let told = |alert| credentials.about_alert(alert);
        let is_said = |text: &str, sure: bool| text.contains("the server requires a client certificate") == sure;
        let required = told(AlertDescription::CertificateRequired);
        assert!(is_said(&required, true) && required.contains("put client-cert.pem"), "{required}");
        let either = told(AlertDescription::HandshakeFailure);
        assert!(is_said(&either, false) && either.contains("perhaps it requires a client certificate"), "{either}");
        assert!(either.contains("(HandshakeFailure)") && either.contains("put client-cert.pem"), "{either}");
    }
}
