//! TLS settings of a listener: the server certificate and the CA of the clients. The files are read for each
//! connection: connections are few, and a renewed certificate takes effect at once.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

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

impl ListenerTlsFiles {
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let config = self.config().map_err(io::Error::other)?;
        TlsAcceptor::from(Arc::new(config)).accept(stream).await
    }

    fn config(&self) -> Result<ServerConfig, String> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let at = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match &self.clients {
            TlsClientPolicy::Anybody => builder.with_no_client_auth(),
            TlsClientPolicy::SignedBy { authority, or_none } => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(authority)? {
                    roots.add(certificate).map_err(|error| at(authority, &error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = if *or_none { verifier.allow_unauthenticated() } else { verifier };
                builder.with_client_cert_verifier(verifier.build().map_err(|error| at(authority, &error))?)
            }
        };
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|error| at(&self.key, &error))?;
        let chain = certificates(&self.certificate)?;
        builder.with_single_cert(chain, key).map_err(|error| at(&self.certificate, &error))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if found.is_empty() => Err(format!("{}: there is no certificate in it", path.display())),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}
