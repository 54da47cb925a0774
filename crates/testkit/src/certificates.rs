//! Certificates for mutual TLS whose subject is a SPIFFE identity.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// A certificate authority and the directory that its certificates are written to.
pub struct CertificateMaker {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: PathBuf,
}

/// Files of a certificate and its private key, in PEM.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl CertificateMaker {
    /// Creates an authority and writes its certificate to `dir`.
    pub fn new(dir: &Path) -> CertificateMaker {
        std::fs::create_dir_all(dir).unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, "test authority");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let maker = CertificateMaker { issuer, dir: dir.to_owned() };
        std::fs::write(maker.authority_file(), maker.issuer.pem()).unwrap();
        maker
    }

    /// Returns the file of the authority's certificate.
    pub fn authority_file(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// Issues a certificate for client and server authentication. `identities` are its URI names, such as
    /// `spiffe://cluster.local/ns/default/sa/web`, and its DNS names. `name` is the name of the files.
    pub fn issue(&self, name: &str, identities: &[&str]) -> CertificateFiles {
        self.issue_with_names(name, identities.iter().map(|identity| subject_name(identity)).collect())
    }

    /// Issues a certificate for servers and clients on 127.0.0.1.
    pub fn issue_for_loopback(&self, name: &str) -> CertificateFiles {
        self.issue_with_names(name, vec![SanType::IpAddress(Ipv4Addr::LOCALHOST.into())])
    }

    fn issue_with_names(&self, name: &str, names: Vec<SanType>) -> CertificateFiles {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = names;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = CertificateFiles {
            certificate: self.dir.join(format!("{name}.crt")),
            key: self.dir.join(format!("{name}.key")),
        };
        std::fs::write(&files.certificate, certificate.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }
}

fn subject_name(identity: &str) -> SanType {
    let name = identity.try_into().unwrap();
    if identity.contains("://") { SanType::URI(name) } else { SanType::DnsName(name) }
}

#[test]
fn a_certificate_has_its_spiffe_identity() {
    let dir = tempfile::tempdir().unwrap();
    let maker = CertificateMaker::new(dir.path());
    let files = maker.issue("web", &["spiffe://cluster.local/ns/default/sa/web"]);
    let mut openssl = std::process::Command::new("openssl");
    openssl.args(["verify", "-CAfile"]).arg(maker.authority_file()).arg(&files.certificate);
    assert!(crate::run(&mut openssl).contains("OK"));
    let mut openssl = std::process::Command::new("openssl");
    openssl.args(["x509", "-noout", "-ext", "subjectAltName", "-in"]).arg(&files.certificate);
    let names = crate::run(&mut openssl);
    assert!(names.contains("URI:spiffe://cluster.local/ns/default/sa/web"), "{names}");
}
