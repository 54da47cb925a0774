//! TLS for the TCP listener: the server's certificate and key, and the authority that signs clients. The files are read
//! again when they change, so that certificates can be renewed without a restart.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, version};

/// The files of a TLS listener, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, followed by those between it and its authority.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Clients must show a certificate that this authority has signed.
    pub client_ca: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {path}: {reason}")]
    File { path: PathBuf, reason: String },
    #[error("{certificate} and {key} cannot be used: {reason}")]
    Pair { certificate: PathBuf, key: PathBuf, reason: String },
    #[error("{path} cannot be used to check clients: {reason}")]
    ClientCa { path: PathBuf, reason: String },
}

pub struct Tls {
    files: TlsFiles,
    current: Mutex<Current>,
}

struct Current {
    acceptor: TlsAcceptor,
    read: Vec<Stamp>,
}

/// Differs when a file was written or replaced.
type Stamp = Option<(u64, u64, i64, i64)>;

impl Tls {
    pub fn new(files: TlsFiles) -> Result<Tls, TlsError> {
        let read = files.stamps();
        let acceptor = files.acceptor()?;
        Ok(Tls { files, current: Mutex::new(Current { acceptor, read }) })
    }

    /// For a new connection, with the files as they are now; as they were, while they cannot be used.
    pub fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = self.files.stamps();
        if stamps != current.read {
            current.read = stamps;
            match self.files.acceptor() {
                Ok(acceptor) => {
                    current.acceptor = acceptor;
                    tracing::info!(
                        "TLS: the certificate in {} is in use now",
                        self.files.certificate.display()
                    );
                }
                Err(error) => {
                    tracing::error!("TLS: {error}; the certificate that was read before stays in use")
                }
            }
        }
        current.acceptor.clone()
    }
}

impl TlsFiles {
    fn stamps(&self) -> Vec<Stamp> {
        let stamp = |path: &Path| {
            let found = fs::metadata(path).ok()?;
            Some((found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
        };
        [Some(&self.certificate), Some(&self.key), self.client_ca.as_ref()]
            .into_iter()
            .flatten()
            .map(|path| stamp(path))
            .collect()
    }

    fn acceptor(&self) -> Result<TlsAcceptor, TlsError> {
        let certificates = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| TlsError::File { path: self.key.clone(), reason: error.to_string() })?;
        let pair = |reason: String| TlsError::Pair {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            reason,
        };
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .map_err(|error| pair(error.to_string()))?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let unusable = |reason: String| TlsError::ClientCa { path: path.clone(), reason };
                let mut roots = RootCertStore::empty();
                for certificate in self::certificates(path)? {
                    roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| unusable(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config =
            builder.with_single_cert(certificates, key).map_err(|error| pair(error.to_string()))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |reason: String| TlsError::File { path: path.to_owned(), reason };
    let pem = fs::read(path).map_err(|error: io::Error| failed(error.to_string()))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(failed("it holds no certificate".to_owned())),
        Ok(found) => Ok(found),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// The common name of a certificate's subject: the user it stands for, as in etcd.
pub fn common_name(certificate: &[u8]) -> Option<String> {
    const SEQUENCE: u8 = 0x30;
    const VERSION: u8 = 0xa0;
    const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
    let (_, mut certificate) = value(&mut &certificate[..])?;
    let (_, mut body) = value(&mut certificate)?;
    if body.first() == Some(&VERSION) {
        value(&mut body)?;
    }
    // Serial number, algorithm, issuer, validity; then the subject.
    for _ in 0..4 {
        value(&mut body)?;
    }
    let (tag, mut subject) = value(&mut body)?;
    if tag != SEQUENCE {
        return None;
    }
    while !subject.is_empty() {
        let (_, mut attributes) = value(&mut subject)?;
        while !attributes.is_empty() {
            let (_, mut attribute) = value(&mut attributes)?;
            let (_, kind) = value(&mut attribute)?;
            let (_, text) = value(&mut attribute)?;
            if kind == COMMON_NAME {
                return String::from_utf8(text.to_vec()).ok();
            }
        }
    }
    None
}

/// Takes one DER value off the front: its tag and its content.
fn value<'a>(bytes: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first & 0x80 != 0 {
        let (digits, after) = rest.split_at_checked(usize::from(first & 0x7f))?;
        if digits.len() > 4 {
            return None;
        }
        length = digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit));
        rest = after;
    }
    let (content, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some((tag, content))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_common_name_is_found() {
        let mut parameters = rcgen::CertificateParams::new(vec!["host".to_owned()]).unwrap();
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        parameters.distinguished_name.push(rcgen::DnType::OrganizationName, "cats");
        parameters.distinguished_name.push(rcgen::DnType::CommonName, "tortie");
        let certificate = parameters.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        assert_eq!(common_name(certificate.der()).as_deref(), Some("tortie"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_calmly(bytes: Vec<u8>) {
            let _ = common_name(&bytes);
        }
    }
}
