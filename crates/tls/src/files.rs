//! The files, and configurations of both sides made from them.

use crate::pem::{PemError, TlsPem};
use std::fs;
use std::path::{Path, PathBuf};
use tokio_rustls::rustls::{ClientConfig, ServerConfig};

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
        self.pem()?.server().map_err(|error| self.explain(error))
    }

    /// For a client that checks who signed the server, not under which name it was reached: whoever uses this looks at the
    /// names in the certificate.
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
        let file = |path: &Path, reason| TlsError::File { path: path.to_owned(), reason };
        match (error, &self.ca) {
            (PemError::Certificate(reason), _) => file(&self.certificate, reason),
            (PemError::Key(reason), _) => file(&self.key, reason),
            (PemError::Authority(reason), Some(path)) => file(path, reason),
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
