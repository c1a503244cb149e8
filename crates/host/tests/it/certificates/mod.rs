// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Certificates for tests, laid out in directories as users of QEMU, libnbd and nbdkit have them.

#![allow(dead_code, reason = "each test program uses a part")]

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use std::fs;
use std::path::{Path, PathBuf};

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// The purpose of a certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum For {
    Server,
    Client,
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// Issues certificate and key for this host, valid from the beginning of one year to that of another.
    pub fn issue(&self, purpose: For, serial: u64, years: (i32, i32)) -> (String, String) {
        self.issue_to(&["localhost", "127.0.0.1"], purpose, serial, years)
    }

    /// Does the same for a host of these names.
    pub fn issue_to(&self, names: &[&str], purpose: For, serial: u64, years: (i32, i32)) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, "localhost");
        params.extended_key_usages = match purpose {
            For::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
            For::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        params.serial_number = Some(SerialNumber::from(serial));
        (params.not_before, params.not_after) = (date_time_ymd(years.0, 1, 1), date_time_ymd(years.1, 1, 1));
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    /// Makes a directory with this authority's certificate, as clients need it.
    pub fn directory(&self, parent: &Path, name: &str) -> PathBuf {
        let directory = parent.join(name);
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("ca-cert.pem"), &self.pem).unwrap();
        directory
    }

    /// Does the same and adds a server's certificate.
    pub fn server(&self, parent: &Path, name: &str, years: (i32, i32)) -> PathBuf {
        self.with(parent, name, For::Server, 1, years)
    }

    /// Does the same and adds a client's certificate.
    pub fn client(&self, parent: &Path, name: &str, serial: u64) -> PathBuf {
        self.with(parent, name, For::Client, serial, NOW)
    }

    fn with(&self, parent: &Path, name: &str, purpose: For, serial: u64, years: (i32, i32)) -> PathBuf {
        let directory = self.directory(parent, name);
        let (cert, key) = self.issue(purpose, serial, years);
        let role = if purpose == For::Server { "server" } else { "client" };
        fs::write(directory.join(format!("{role}-cert.pem")), cert).unwrap();
        fs::write(directory.join(format!("{role}-key.pem")), key).unwrap();
        directory
    }

    /// Revokes a client's certificate in a server's directory.
    pub fn revoke(&self, directory: &Path, serial: u64) {
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(NOW.0, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(NOW.0, 1, 1),
            next_update: date_time_ymd(NOW.1, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        fs::write(directory.join("ca-crl.pem"), list.signed_by(&self.issuer).unwrap().pem().unwrap()).unwrap();
    }
}

/// A validity that includes every run of these tests.
pub const NOW: (i32, i32) = (2020, 2100);
