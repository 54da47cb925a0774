//! Serves the query socket for `tortie` commands: one JSON request and one JSON response per connection.

use crate::bgp::{self, BgpBackend, BgpBackendError, BgpNotReady};
use crate::health::NodeHealth;
use crate::socket::DaemonSocket;
use crate::state::NodeState;
use serde_json::{Value, json};
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tortie_bgp::BgpFamily;
use tortie_bgp::core::{BgpPeerState, PeerStatus, RouteStatus};

const MAX_QUERY_BYTES: u64 = 64 << 10;
const QUERY_READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum lifetime of a connection, including a slow reader of the response.
const QUERY_CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of concurrent connections. Further ones are closed; the client can retry.
const MAX_CONCURRENT_QUERIES: usize = 64;

/// The BGP backend, its start time and the time of its last configuration change.
#[derive(Clone, Debug)]
pub struct RunningBgp {
    pub backend: BgpBackend,
    pub started: SystemTime,
    pub configured: SystemTime,
}

pub async fn serve(path: std::path::PathBuf, state: Arc<NodeState>) {
    let socket = match DaemonSocket::bind(&path) {
        Ok(socket) => socket,
        Err(error) => {
            let path = path.display();
            return tracing::error!(%error, %path, "cannot listen for queries; `tortie health` and `tortie bgp` fail");
        }
    };
    let room = Arc::new(Semaphore::new(MAX_CONCURRENT_QUERIES));
    loop {
        let Ok(stream) = socket.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(place) = room.clone().try_acquire_owned() else {
            state.metrics.closed_connections.get_or_create(&[("listener", "queries".into())]).inc();
            continue;
        };
        let state = state.clone();
        tokio::spawn(async move {
            let _place = place;
            let answered = tokio::time::timeout(QUERY_CONNECTION_TIMEOUT, converse(stream, &state)).await;
            if let Ok(Err(error)) = answered {
                tracing::debug!(%error, "the client closed a query before the response");
            }
        });
    }
}

async fn converse(mut stream: UnixStream, state: &NodeState) -> io::Result<()> {
    let mut text = Vec::new();
    tokio::time::timeout(QUERY_READ_TIMEOUT, (&mut stream).take(MAX_QUERY_BYTES).read_to_end(&mut text))
        .await??;
    let question: Value = serde_json::from_slice(&text).unwrap_or_default();
    let answer = answer(&question, state).await;
    let answer = answer.unwrap_or_else(|error| json!({"error": error.to_string()}));
    stream.write_all(answer.to_string().as_bytes()).await?;
    stream.shutdown().await
}

/// Returns every parameter with its effective value and the source of that value.
fn list_settings(state: &NodeState) -> Value {
    let parameters = state.parameters();
    let parameters = parameters.borrow();
    let settings: Vec<Value> = parameters
        .all()
        .map(|setting| {
            json!({
                "name": setting.parameter.key,
                "value": setting.value,
                "source": setting.source.word(),
                "from": setting.source.to_string(),
            })
        })
        .collect();
    json!({"settings": settings, "warnings": parameters.warnings()})
}

/// Why a query has no answer. The client receives the text.
#[derive(Debug, thiserror::Error)]
enum QueryError {
    #[error("the query must be an object with the field \"ask\"")]
    NoQuestion,
    #[error("unknown query {0:?}")]
    UnknownQuestion(String),
    #[error("{}", trouble.as_deref().unwrap_or("this node does not speak BGP"))]
    NoBgp { trouble: Option<String> },
    #[error("this node does not record flows; set flowLogsLocalReporter or flowLogsGoldmaneServer")]
    NoFlows,
    #[error(transparent)]
    Backend(#[from] BgpBackendError),
    #[error(transparent)]
    NotReady(#[from] BgpNotReady),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

async fn answer(question: &Value, state: &NodeState) -> Result<Value, QueryError> {
    match question["ask"].as_str() {
        Some("health") => Ok(serde_json::to_value(NodeHealth::check(state).await)?),
        Some("bgp peers") => list_peers(state).await,
        Some("bgp routes") => list_routes(state).await,
        Some("bgp ready") => check_bgp(state, question).await,
        Some("settings") => Ok(list_settings(state)),
        Some("flows") => match state.flow_records() {
            Some(status) => Ok(status.to_json()),
            None => Err(QueryError::NoFlows),
        },
        Some(other) => Err(QueryError::UnknownQuestion(other.to_owned())),
        None => Err(QueryError::NoQuestion),
    }
}

fn find_running_bgp(state: &NodeState) -> Result<RunningBgp, QueryError> {
    state.running_bgp().ok_or_else(|| QueryError::NoBgp { trouble: state.bgp_trouble() })
}

async fn list_peers(state: &NodeState) -> Result<Value, QueryError> {
    let running = find_running_bgp(state)?;
    let status = running.backend.status().await?;
    let peers: Vec<Value> = status.peers.iter().map(|peer| describe_peer(peer, running.started)).collect();
    Ok(
        json!({"asn": status.asn, "routerID": status.router_id, "restarting": status.restarting, "peers": peers}),
    )
}

/// Returns whether the sessions of a family (`"v6": true` or `false`) are ready. Sessions may still be incomplete
/// until `"patience"` seconds after the start of the speaker.
async fn check_bgp(state: &NodeState, question: &Value) -> Result<Value, QueryError> {
    let status = find_running_bgp(state)?.backend.status().await?;
    let patience =
        question["patience"].as_u64().map_or(bgp::DEFAULT_SESSION_GRACE_PERIOD, Duration::from_secs);
    bgp::check_sessions(&status, question["v6"].as_bool(), patience)?;
    Ok(json!({"ready": true}))
}

fn describe_peer(peer: &PeerStatus, started: SystemTime) -> Value {
    let since = (started + peer.since).duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    json!({
        "name": *peer.name,
        "address": peer.address,
        "asn": peer.remote_as,
        "state": state_name(peer.state),
        "since": since.as_secs(),
        "routerID": peer.router_id,
        "received": peer.prefixes_in.v4 + peer.prefixes_in.v6,
        "sent": peer.prefixes_out.v4 + peer.prefixes_out.v6,
        "awaited": peer.waiting,
        "established": peer.established,
        "error": peer.last_error,
    })
}

fn state_name(state: BgpPeerState) -> &'static str {
    match state {
        BgpPeerState::Idle => "Idle",
        BgpPeerState::Connect => "Connect",
        BgpPeerState::Active => "Active",
        BgpPeerState::OpenSent => "OpenSent",
        BgpPeerState::OpenConfirm => "OpenConfirm",
        BgpPeerState::Established => "Established",
    }
}

async fn list_routes(state: &NodeState) -> Result<Value, QueryError> {
    let running = find_running_bgp(state)?;
    let mut all = Vec::new();
    for family in BgpFamily::ALL {
        let routes = running.backend.routes(family).await?;
        all.extend(routes.iter().map(describe_route));
    }
    Ok(json!({"routes": all}))
}

fn describe_route(route: &RouteStatus) -> Value {
    let attrs = &route.attrs;
    let standard = attrs.communities.iter().map(|value| format!("{}:{}", value >> 16, value & 0xffff));
    let large = attrs.large_communities.iter().map(ToString::to_string);
    json!({
        "prefix": route.prefix,
        "peer": route.peer.as_deref(),
        "nextHop": attrs.next_hop,
        "asPath": attrs.as_path,
        "localPref": attrs.local_pref(),
        "med": attrs.med,
        "communities": standard.chain(large).collect::<Vec<String>>(),
        "best": route.best,
        "used": route.used,
        "stale": route.stale,
        "reachable": route.reachable,
    })
}
