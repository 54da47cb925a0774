//! Listener and certificate options shared by the API server and the webhooks.

use crate::run::ApiServerRunError;
use crate::server::{CertificateSource, HttpsServer, RequestHandler};
use clap::Args;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tortie_tls::{TlsError, TlsFiles};

#[derive(Args, Clone, Debug, Default)]
pub struct ListenArgs {
    /// Address to listen on; by default all addresses
    #[arg(long, value_name = "ADDRESS")]
    pub bind_address: Option<IpAddr>,
    /// TLS certificate of the server in PEM format; without it the server issues its own
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// Private key of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
}

impl ListenArgs {
    /// Serves on the port until `end`, then sets `stop` and finishes open requests.
    pub async fn serve_until<A: RequestHandler>(
        &self,
        port: u16,
        name: &str,
        server: HttpsServer<A>,
        stop: watch::Sender<bool>,
        end: impl Future<Output = ()>,
    ) -> Result<(), ApiServerRunError> {
        let (listener, address) = self.listen(port).await?;
        let serving = tokio::spawn(server.serve(listener));
        // The server also runs when standard output is closed.
        let _ = writeln!(std::io::stdout(), "ready: {name} on {address}");
        tracing::info!(%address, "{name} ready");
        end.await;
        tracing::info!("stopping: closing watches and finishing open requests");
        let _ = stop.send(true);
        let _ = serving.await;
        Ok(())
    }

    /// Listens on the port and returns the listener and its address.
    async fn listen(&self, port: u16) -> Result<(TcpListener, SocketAddr), ApiServerRunError> {
        let host = self.bind_address.map(|address| address.to_string());
        let listener = tortie_http::listen(host.as_deref().unwrap_or_default(), port).await;
        let bound = listener.and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (address, listener) = bound.map_err(|error| {
            let host = host.unwrap_or_else(|| "all addresses".to_owned());
            ApiServerRunError::Listen { host, port, error }
        })?;
        Ok((listener, address))
    }

    /// Returns the configured certificate, if any.
    pub fn identity(&self) -> Result<Option<CertificateSource>, TlsError> {
        let (Some(certificate), Some(key)) = (&self.tls_cert_file, &self.tls_private_key_file) else {
            return Ok(None);
        };
        let files = TlsFiles { certificate: certificate.clone(), key: key.clone(), ca: None };
        CertificateSource::from_files(files).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_that_is_taken_is_named() {
        let at = ListenArgs { bind_address: Some([127, 0, 0, 1].into()), ..ListenArgs::default() };
        let (_taken, address) = at.listen(0).await.unwrap();
        let port = address.port();
        let said = at.listen(port).await.unwrap_err().to_string();
        assert!(said.starts_with(&format!("cannot listen on port {port} of 127.0.0.1: ")), "{said}");
        let everywhere = ListenArgs::default();
        let said = everywhere.listen(port).await;
        assert!(
            said.is_err_and(|said| said.to_string().contains("all addresses")),
            "the other family is no way out"
        );
    }
}
