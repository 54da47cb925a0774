//! The files, and configurations of both sides made from them.

use crate::chain::ChainOnly;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion, version};

const VERSIONS: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];

/// In PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The own certificate, followed by those between it and its authority.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// The other side must show a certificate that this authority has signed.
    pub ca: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {path}: {reason}")]
    File { path: PathBuf, reason: String },
    #[error("{certificate} and {key} cannot be used: {reason}")]
    Pair { certificate: PathBuf, key: PathBuf, reason: String },
    #[error("{path} cannot be used to check the other side: {reason}")]
    Ca { path: PathBuf, reason: String },
    #[error("a client needs an authority that signs servers")]
    NoCa,
}

impl TlsFiles {
    /// For a server; clients need certificates if there is an authority for them.
    pub fn server(&self) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(VERSIONS)
            .map_err(|error| self.pair(error.to_string()))?;
        let builder = match &self.ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let unusable = |reason: String| TlsError::Ca { path: path.clone(), reason };
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(path)?), provider)
                    .build()
                    .map_err(|error| unusable(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let (certificates, key) = self.identity()?;
        builder.with_single_cert(certificates, key).map_err(|error| self.pair(error.to_string()))
    }

    /// For a client that checks who signed the server, not under which name it was reached: whoever uses this looks at the
    /// names in the certificate.
    pub fn client(&self) -> Result<ClientConfig, TlsError> {
        let path = self.ca.as_ref().ok_or(TlsError::NoCa)?;
        let provider: Arc<CryptoProvider> = Arc::new(aws_lc_rs::default_provider());
        let unusable = |reason: String| TlsError::Ca { path: path.clone(), reason };
        let verifier = ChainOnly::new(roots(path)?, provider.clone()).map_err(unusable)?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(VERSIONS)
            .map_err(|error| self.pair(error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let (certificates, key) = self.identity()?;
        builder.with_client_auth_cert(certificates, key).map_err(|error| self.pair(error.to_string()))
    }

    fn identity(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| TlsError::File { path: self.key.clone(), reason: error.to_string() })?;
        Ok((certificates(&self.certificate)?, key))
    }

    fn pair(&self, reason: String) -> TlsError {
        TlsError::Pair { certificate: self.certificate.clone(), key: self.key.clone(), reason }
    }
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        let unusable = |reason: String| TlsError::Ca { path: path.to_owned(), reason };
        roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
    }
    Ok(roots)
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
