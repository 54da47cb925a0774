//! HTTP/2 connection to one endpoint, opened on first use and reopened when lost.

use crate::config::EtcdEndpoint;
use crate::{StoreError, StoreLimits, StoreResult};
use hyper_util::rt::TokioIo;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::transport::{Channel, Uri};

/// HTTP/2 flow-control window: large enough for a full page of the largest values without waiting for window updates.
const HTTP2_WINDOW_BYTES: u32 = 4 << 20;

/// Error after the TCP connection is open; `failure` explains it.
#[derive(Debug, thiserror::Error)]
#[error("TLS handshake failed: {0}")]
pub struct TlsHandshakeError(#[source] pub io::Error);

trait TransportStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> TransportStream for T {}

/// Settings for opening connections to one endpoint.
pub struct EndpointDialler {
    settings: tonic::transport::Endpoint,
    endpoint: EtcdEndpoint,
    tls: Arc<ClientConfig>,
    limit: Duration,
}

pub fn dialler(
    endpoint: &EtcdEndpoint,
    tls: &Arc<ClientConfig>,
    limit: Duration,
    limits: &StoreLimits,
) -> StoreResult<EndpointDialler> {
    let unusable =
        |e: &dyn std::fmt::Display| StoreError::Config(format!("endpoint {endpoint} cannot be used: {e}"));
    // The dialler does TLS itself: tonic sees a plain connection, but has to send the real origin.
    let (dialled, origin) = match endpoint {
        EtcdEndpoint::Tcp { .. } => {
            (endpoint.to_string().replacen("https://", "http://", 1), endpoint.to_string())
        }
        EtcdEndpoint::Unix { .. } => ("http://localhost".to_owned(), "http://localhost".to_owned()),
    };
    let origin: Uri = origin.parse().map_err(|e| unusable(&e))?;
    let settings = tonic::transport::Endpoint::from_shared(dialled)
        .map_err(|e| unusable(&e))?
        .origin(origin)
        .http2_keep_alive_interval(limits.keepalive)
        .keep_alive_timeout(limits.keepalive_answer)
        // etcd closes connections that ping without an open stream. A request on a dead connection has its own timeout.
        .keep_alive_while_idle(false)
        .initial_stream_window_size(HTTP2_WINDOW_BYTES)
        .initial_connection_window_size(HTTP2_WINDOW_BYTES);
    Ok(EndpointDialler { settings, endpoint: endpoint.clone(), tls: tls.clone(), limit })
}

impl EndpointDialler {
    pub fn channel(&self) -> Channel {
        let endpoint = self.endpoint.clone();
        let tls = self.tls.clone();
        let limit = self.limit;
        self.settings.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
            let endpoint = endpoint.clone();
            let tls = tls.clone();
            async move {
                match tokio::time::timeout(limit, open(&endpoint, tls)).await {
                    Ok(opened) => opened.map(TokioIo::new),
                    Err(_) => {
                        let reason = format!("no connection within {limit:?}");
                        Err(io::Error::new(io::ErrorKind::TimedOut, reason))
                    }
                }
            }
        }))
    }
}

async fn open(endpoint: &EtcdEndpoint, tls: Arc<ClientConfig>) -> io::Result<Box<dyn TransportStream>> {
    match endpoint {
        EtcdEndpoint::Unix { path } => Ok(Box::new(UnixStream::connect(path).await?)),
        EtcdEndpoint::Tcp { host, port, tls: secure } => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            if !secure {
                return Ok(Box::new(stream));
            }
            let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
            let secured = TlsConnector::from(tls).connect(name, stream).await;
            let stream = secured.map_err(|e| io::Error::new(e.kind(), TlsHandshakeError(e)))?;
            Ok(Box::new(stream))
        }
    }
}
