// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which clients a TLS server serves, by the names in their certificates.
//!
//! Guarantees: with names, a client is served only if its certificate is accepted and has one of them in its `subjectAltName`. It is refused
//! during the TLS handshake, by the alert `access_denied`. The check is part of each handshake; sessions are not resumed. Case does not
//! matter, and a wildcard in a certificate counts as for servers. The common name does not count (RFC 6125, 6.4.4).

use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use std::io;
use std::sync::Arc;

/// Names of clients; none = every client whose certificate is accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientNames(Vec<ServerName<'static>>);

impl ClientNames {
    /// Reads DNS names or IP addresses.
    ///
    /// # Errors
    /// The first that is neither, and the rule.
    pub fn read(texts: &[String]) -> Result<ClientNames, String> {
        let name = |text: &String| {
            let rule =
                |_| format!("'{}': must be a DNS name or an IP address, such as vm1.example", text.escape_debug());
            ServerName::try_from(text.clone()).map_err(rule)
        };
        texts.iter().map(name).collect::<Result<Vec<_>, _>>().map(ClientNames)
    }

    /// Whether every client is served whose certificate is accepted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a verifier that also checks the names, if there are any.
    pub(super) fn check_after(&self, inner: Arc<dyn ClientCertVerifier>) -> Arc<dyn ClientCertVerifier> {
        if self.is_empty() { inner } else { Arc::new(Named { inner, names: self.0.clone() }) }
    }
}

/// Whether a handshake has failed because a client has none of the names.
pub(crate) fn is_unnamed(e: &io::Error) -> bool {
    let unnamed = CertificateError::ApplicationVerificationFailure;
    let of_tls = e.get_ref().and_then(|e| e.downcast_ref::<Error>());
    matches!(of_tls, Some(Error::InvalidCertificate(why)) if *why == unnamed)
}

/// Accepts the certificates that `inner` accepts and that have one of the names.
#[derive(Debug)]
struct Named {
    inner: Arc<dyn ClientCertVerifier>,
    names: Vec<ServerName<'static>>,
}

impl ClientCertVerifier for Named {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        let parsed = ParsedCertificate::try_from(end_entity)?;
        match self.names.iter().any(|name| verify_server_name(&parsed, name).is_ok()) {
            true => Ok(verified),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_dns_or_addresses() {
        let read = |texts: &[&str]| ClientNames::read(&texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>());
        assert!(!read(&["vm1.example", "VM2", "10.0.0.1", "::1"]).unwrap().is_empty());
        assert!(read(&[]).unwrap().is_empty());
        for wrong in ["", "a b", "*.example", "CN=x", "-"] {
            let why = read(&["good", wrong]).unwrap_err();
            assert!(why.starts_with(&format!("'{wrong}': must be a DNS name")), "{why}");
        }
    }

    #[test]
    fn only_a_missing_name_counts_as_one() {
        let of = |e: Error| is_unnamed(&io::Error::new(io::ErrorKind::InvalidData, e));
        assert!(of(CertificateError::ApplicationVerificationFailure.into()));
        assert!(!of(CertificateError::UnknownIssuer.into()) && !of(Error::NoCertificatesPresented));
        assert!(!is_unnamed(&io::ErrorKind::ConnectionReset.into()));
    }
}
