//! Clients of the server: health probes, and a single check for tests of a policy.

use crate::proto::dikastes::HealthCheckRequest;
use crate::proto::dikastes::healthz_client::HealthzClient;
use crate::proto::v3;
use crate::proto::v3::authorization_client::AuthorizationClient;
use crate::sync_client::{connect, root_cause};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use tonic::Status;
use tonic::transport::Channel;

/// Time limit of connecting and of each request.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthProbe {
    Liveness,
    Readiness,
}

#[derive(Debug, Error)]
pub enum ProbeError {
    #[error("cannot connect to {}: {}; check that the server runs", socket.display(), root_cause(source))]
    Connect { socket: PathBuf, source: tonic::transport::Error },
    #[error("{} did not answer within {} s", socket.display(), PROBE_TIMEOUT.as_secs())]
    Timeout { socket: PathBuf },
    #[error("the server reports: {0}")]
    Rejected(#[from] Box<Status>),
}

/// The request of a test client.
#[derive(Clone, Debug)]
pub struct TestRequest {
    pub principal: String,
    pub source: SocketAddr,
    pub destination: SocketAddr,
    /// Method and path; `None` asks about a connection without HTTP attributes.
    pub http: Option<(String, String)>,
}

/// Asks a server for its health.
pub async fn ask_health(socket: &Path, probe: HealthProbe) -> Result<bool, ProbeError> {
    let mut client = HealthzClient::new(dial(socket).await?);
    let asked = async {
        match probe {
            HealthProbe::Liveness => client.check_liveness(HealthCheckRequest {}).await,
            HealthProbe::Readiness => client.check_readiness(HealthCheckRequest {}).await,
        }
    };
    let response = within_timeout(socket, asked).await?.map_err(Box::new)?;
    Ok(response.into_inner().healthy)
}

/// Sends one check and returns the response.
pub async fn send_check(socket: &Path, request: &TestRequest) -> Result<v3::CheckResponse, ProbeError> {
    let mut client = AuthorizationClient::new(dial(socket).await?);
    let asked = client.check(request.encode());
    Ok(within_timeout(socket, asked).await?.map_err(Box::new)?.into_inner())
}

async fn dial(socket: &Path) -> Result<Channel, ProbeError> {
    let connected = within_timeout(socket, connect(socket)).await?;
    connected.map_err(|source| ProbeError::Connect { socket: socket.to_owned(), source })
}

async fn within_timeout<T>(socket: &Path, asked: impl Future<Output = T>) -> Result<T, ProbeError> {
    let answered = tokio::time::timeout(PROBE_TIMEOUT, asked).await;
    answered.map_err(|_| ProbeError::Timeout { socket: socket.to_owned() })
}

impl TestRequest {
    /// Returns the request as Envoy sends it.
    pub fn encode(&self) -> v3::CheckRequest {
        let http = self.http.as_ref().map(|(method, path)| v3::attribute_context::HttpRequest {
            method: method.clone(),
            path: path.clone(),
            ..Default::default()
        });
        let attributes = v3::AttributeContext {
            source: Some(encode_peer(self.source, &self.principal)),
            destination: Some(encode_peer(self.destination, "")),
            request: Some(v3::attribute_context::Request { http }),
        };
        v3::CheckRequest { attributes: Some(attributes) }
    }
}

fn encode_peer(address: SocketAddr, principal: &str) -> v3::attribute_context::Peer {
    let socket_address = v3::SocketAddress {
        protocol: v3::socket_address::Protocol::Tcp.into(),
        address: address.ip().to_string(),
        port_value: address.port().into(),
    };
    v3::attribute_context::Peer {
        address: Some(v3::Address { socket_address: Some(socket_address) }),
        principal: principal.to_owned(),
        ..Default::default()
    }
}
