//! rustls client and server configurations, built from PEM in memory.

use crate::chain::ChainOnlyVerifier;
use std::fmt;
use std::sync::Arc;
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion, version};

const TLS_VERSIONS: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];

#[derive(Clone, PartialEq, Eq)]
pub struct TlsPem {
    /// Own certificate, followed by the intermediate certificates up to the CA.
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
    /// If set, the peer must present a certificate signed by one of these CAs.
    pub ca: Option<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PemError {
    #[error("the certificate cannot be read: {0}")]
    Certificate(String),
    #[error("the key cannot be read: {0}")]
    Key(String),
    #[error("the authority cannot be read: {0}")]
    Authority(String),
    #[error("certificate and key cannot be used: {0}")]
    Pair(String),
    #[error("the authority cannot be used to check the other side: {0}")]
    Verifier(String),
    #[error("a client needs an authority that signs servers")]
    NoAuthority,
}

impl TlsPem {
    /// Returns the configuration of a server. Clients must present a certificate if `ca` is set.
    pub fn server(&self) -> Result<ServerConfig, PemError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(TLS_VERSIONS)
            .map_err(|error| PemError::Pair(error.to_string()))?;
        let builder = match &self.ca {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(ca)?), provider)
                    .build()
                    .map_err(|error| PemError::Verifier(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let (certificates, key) = self.identity()?;
        builder.with_single_cert(certificates, key).map_err(|error| PemError::Pair(error.to_string()))
    }

    /// Returns the configuration of a client that verifies the chain of the server certificate, but not the server's
    /// name. The caller has to check the names in the certificate.
    pub fn client(&self) -> Result<ClientConfig, PemError> {
        let ca = self.ca.as_ref().ok_or(PemError::NoAuthority)?;
        let provider: Arc<CryptoProvider> = Arc::new(aws_lc_rs::default_provider());
        let verifier = ChainOnlyVerifier::new(roots(ca)?, provider.clone()).map_err(PemError::Verifier)?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(TLS_VERSIONS)
            .map_err(|error| PemError::Pair(error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let (certificates, key) = self.identity()?;
        builder.with_client_auth_cert(certificates, key).map_err(|error| PemError::Pair(error.to_string()))
    }

    fn identity(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), PemError> {
        let key =
            PrivateKeyDer::from_pem_slice(&self.key).map_err(|error| PemError::Key(error.to_string()))?;
        Ok((certificates(&self.certificate).map_err(PemError::Certificate)?, key))
    }
}

/// Omits the keys.
impl fmt::Debug for TlsPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsPem").finish_non_exhaustive()
    }
}

fn roots(pem: &[u8]) -> Result<RootCertStore, PemError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem).map_err(PemError::Authority)? {
        roots.add(certificate).map_err(|error| PemError::Verifier(error.to_string()))?;
    }
    Ok(roots)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err("it holds no certificate".to_owned()),
        Ok(found) => Ok(found),
        Err(error) => Err(error.to_string()),
    }
}
