//! rustls client and server configurations, built from PEM files.

use crate::pem::{ClientCertificateMode, PemError, TlsPem};
use std::fs;
use std::path::{Path, PathBuf};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, ServerConfig};

/// Paths of PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Own certificate, followed by the intermediate certificates up to the CA.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// If set, the peer must present a certificate signed by this CA.
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
    /// Returns the configuration of a server. Clients must present a certificate if `ca` is set.
    pub fn server(&self) -> Result<ServerConfig, TlsError> {
        self.server_with(ClientCertificateMode::Required)
    }

    /// Returns the configuration of a server. If `ca` is set, client certificates must be signed by it.
    pub fn server_with(&self, clients: ClientCertificateMode) -> Result<ServerConfig, TlsError> {
        self.pem()?.server_with(clients).map_err(|error| self.explain(error))
    }

    /// Returns the certificate chain and the private key.
    pub fn identity(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        self.pem()?.identity().map_err(|error| self.explain(error))
    }

    /// Returns the configuration of a client that verifies the chain of the server certificate, but not the server's
    /// name. The caller has to check the names in the certificate.
    pub fn client(&self) -> Result<ClientConfig, TlsError> {
        if self.ca.is_none() {
            return Err(TlsError::NoCa);
        }
        self.pem()?.client().map_err(|error| self.explain(error))
    }

    fn pem(&self) -> Result<TlsPem, TlsError> {
        Ok(TlsPem {
            certificate: read(&self.certificate)?,
            key: read(&self.key)?,
            ca: self.ca.as_deref().map(read).transpose()?,
        })
    }

    fn explain(&self, error: PemError) -> TlsError {
        match (error, &self.ca) {
            (PemError::Certificate(reason), _) => TlsError::File { path: self.certificate.clone(), reason },
            (PemError::Key(reason), _) => TlsError::File { path: self.key.clone(), reason },
            (PemError::Authority(reason), Some(path)) => TlsError::File { path: path.clone(), reason },
            (PemError::Verifier(reason), Some(path)) => TlsError::Ca { path: path.clone(), reason },
            (PemError::Authority(_) | PemError::Verifier(_) | PemError::NoAuthority, _) => TlsError::NoCa,
            (PemError::Pair(reason), _) => {
                TlsError::Pair { certificate: self.certificate.clone(), key: self.key.clone(), reason }
            }
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|error| TlsError::File { path: path.to_owned(), reason: error.to_string() })
}
