//! rustls client and server configurations, built from PEM in memory.

use crate::chain::ChainOnlyVerifier;
use std::fmt;
use std::sync::Arc;
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
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

/// Whether a client must present a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificateMode {
    Required,
    Optional,
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
        self.server_with(ClientCertificateMode::Required)
    }

    /// Returns the configuration of a server. If `ca` is set, client certificates must be signed by it.
    pub(crate) fn server_with(&self, clients: ClientCertificateMode) -> Result<ServerConfig, PemError> {
        let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(TLS_VERSIONS)
            .map_err(|error| PemError::Pair(error.to_string()))?;
        let builder = match &self.ca {
            None => builder.with_no_client_auth(),
            Some(ca) => builder.with_client_cert_verifier(client_verifier(ca, clients)?),
        };
        let (certificates, key) = self.identity()?;
        builder.with_single_cert(certificates, key).map_err(|error| PemError::Pair(error.to_string()))
    }

    /// Returns the configuration of a client that verifies the chain of the server certificate, but not the server's
    /// name. The caller has to check the names in the certificate.
    pub fn client(&self) -> Result<ClientConfig, PemError> {
        let ca = self.ca.as_ref().ok_or(PemError::NoAuthority)?;
        let provider: Arc<CryptoProvider> = Arc::new(aws_lc_rs::default_provider());
        let verifier = ChainOnlyVerifier::new(read_roots(ca)?, provider.clone())
            .map_err(|error| PemError::Verifier(error.to_string()))?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(TLS_VERSIONS)
            .map_err(|error| PemError::Pair(error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let (certificates, key) = self.identity()?;
        builder.with_client_auth_cert(certificates, key).map_err(|error| PemError::Pair(error.to_string()))
    }

    /// Returns the certificate chain and the private key.
    pub fn identity(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), PemError> {
        let key =
            PrivateKeyDer::from_pem_slice(&self.key).map_err(|error| PemError::Key(error.to_string()))?;
        Ok((read_certificates(&self.certificate, PemError::Certificate)?, key))
    }
}

/// Omits the keys.
impl fmt::Debug for TlsPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsPem").finish_non_exhaustive()
    }
}

/// Returns a verifier of client certificates that one of these CAs signed.
pub fn client_verifier(
    ca: &[u8],
    clients: ClientCertificateMode,
) -> Result<Arc<dyn ClientCertVerifier>, PemError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut builder = WebPkiClientVerifier::builder_with_provider(read_roots(ca)?.into(), provider);
    if clients == ClientCertificateMode::Optional {
        builder = builder.allow_unauthenticated();
    }
    builder.build().map_err(|error| PemError::Verifier(error.to_string()))
}

fn read_roots(pem: &[u8]) -> Result<RootCertStore, PemError> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(pem, PemError::Authority)? {
        roots.add(certificate).map_err(|error| PemError::Verifier(error.to_string()))?;
    }
    Ok(roots)
}

/// Reads at least one certificate; `failure` makes the error from its reason.
fn read_certificates(
    pem: &[u8],
    failure: fn(String) -> PemError,
) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| failure(error.to_string()))?;
    if found.is_empty() {
        return Err(failure("it holds no certificate".to_owned()));
    }
    Ok(found)
}
