//! TLS settings of a listener: the server certificate and the CA of the clients. The files are read for each
//! connection: connections are few, and a renewed certificate takes effect at once.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tortie_tls::{ClientCertificateMode, TlsError, TlsFiles};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub clients: TlsClientPolicy,
}

/// Clients that the server accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsClientPolicy {
    Anybody,
    /// Clients with a certificate signed by this CA; with `or_none` also clients without a certificate.
    SignedBy {
        authority: PathBuf,
        or_none: bool,
    },
}

/// The files of a listener cannot be used.
#[derive(Debug)]
pub struct ListenerTlsError(TlsError);

impl std::fmt::Display for ListenerTlsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for ListenerTlsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

impl ListenerTlsFiles {
    /// Reads the files once, to report mistakes at start.
    pub fn check(&self) -> Result<(), ListenerTlsError> {
        self.read_config().map(drop).map_err(ListenerTlsError)
    }

    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let config = self.read_config().map_err(io::Error::other)?;
        TlsAcceptor::from(Arc::new(config)).accept(stream).await
    }

    fn read_config(&self) -> Result<ServerConfig, TlsError> {
        let mut files = TlsFiles { certificate: self.certificate.clone(), key: self.key.clone(), ca: None };
        let TlsClientPolicy::SignedBy { authority, or_none } = &self.clients else { return files.server() };
        files.ca = Some(authority.clone());
        let mode = if *or_none { ClientCertificateMode::Optional } else { ClientCertificateMode::Required };
        files.server_with(mode)
    }
}
