//! Connects to a collector, ours or Goldmane, with mutual TLS.

use crate::proto::flow_collector_client::FlowCollectorClient;
use crate::proto::flows_client::FlowsClient;
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of pings, and time for their answer, after which a connection is closed.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum size of a response. Lists without pages are large.
const MAX_RESPONSE_BYTES: usize = 256 << 20;

/// A collector and the certificates for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorTarget {
    /// HOST:PORT.
    pub server: String,
    /// Name in the certificate of the server; the host if it is not given.
    pub server_name: Option<String>,
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub authority: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{server:?} is not HOST:PORT")]
    Address { server: String },
    #[error("the certificate, key or CA cannot be used: {reason}")]
    Certificate { reason: String },
    #[error("cannot connect to the flow collector {server}: {reason}")]
    Connect { server: String, reason: String },
}

impl CollectorTarget {
    /// Connects to read flows.
    pub async fn connect(&self) -> Result<FlowsClient<Channel>, ConnectError> {
        let channel = self.open_channel().await?;
        Ok(FlowsClient::new(channel).max_decoding_message_size(MAX_RESPONSE_BYTES))
    }

    /// Connects to send flows.
    pub async fn connect_sender(&self) -> Result<FlowCollectorClient<Channel>, ConnectError> {
        Ok(FlowCollectorClient::new(self.open_channel().await?))
    }

    /// Connects. The files are read each time, so renewed certificates take effect.
    async fn open_channel(&self) -> Result<Channel, ConnectError> {
        let server = &self.server;
        let invalid = || ConnectError::Address { server: server.clone() };
        let (host, port) = server.rsplit_once(':').ok_or_else(invalid)?;
        if host.is_empty() || !port.parse::<u16>().is_ok_and(|port| port > 0) {
            return Err(invalid());
        }
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let tls = ClientTlsConfig::new()
            .identity(Identity::from_pem(read_file(&self.certificate)?, read_file(&self.key)?))
            .ca_certificate(Certificate::from_pem(read_file(&self.authority)?))
            .domain_name(self.server_name.as_deref().unwrap_or(host));
        let endpoint = Endpoint::from_shared(format!("https://{server}")).map_err(|_| invalid())?;
        let endpoint = endpoint
            .tls_config(tls)
            .map_err(|error| ConnectError::Certificate { reason: describe_causes(&error) })?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true);
        endpoint.connect().await.map_err(|error| ConnectError::Connect {
            server: server.clone(),
            reason: describe_causes(&error),
        })
    }
}

/// Connects to the socket of a node to read the flows that it has recorded.
pub async fn connect_node(socket: &Path) -> Result<FlowsClient<Channel>, ConnectError> {
    let path = socket.to_owned();
    let endpoint = Endpoint::from_static("http://node").connect_timeout(CONNECT_TIMEOUT);
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    let channel = endpoint.connect_with_connector(connector).await.map_err(|error| {
        ConnectError::Connect { server: socket.display().to_string(), reason: describe_causes(&error) }
    })?;
    Ok(FlowsClient::new(channel).max_decoding_message_size(MAX_RESPONSE_BYTES))
}

fn read_file(path: &Path) -> Result<Vec<u8>, ConnectError> {
    fs::read(path).map_err(|source| ConnectError::Read { path: path.to_owned(), source })
}

/// Describes an error by its causes, because the outermost error of the transport has no details.
fn describe_causes(error: &dyn Error) -> String {
    let mut reasons = Vec::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        let reason = error.to_string();
        if reasons.last() != Some(&reason) {
            reasons.push(reason);
        }
        cause = error.source();
    }
    if reasons.is_empty() { error.to_string() } else { reasons.join(": ") }
}
