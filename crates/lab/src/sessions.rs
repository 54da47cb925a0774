//! Queries a node's daemon for its BGP sessions.

use crate::bgp::BgpMode;
use crate::cluster::LabCluster;
use crate::error::{LabError, LabResult};
use crate::place::LabPaths;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

const QUERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for the sessions of a new lab.
const SESSIONS_TIMEOUT: Duration = Duration::from_secs(120);
const SESSIONS_POLL_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeBgpSession {
    pub name: String,
    pub address: String,
    pub state: String,
    /// Number of prefixes.
    pub received: u64,
    pub sent: u64,
    pub error: Option<String>,
}

/// Returns the sessions of a node; empty if it does not run BGP or does not respond, which other parts of the status
/// report.
pub async fn list(run_dir: &Path) -> Vec<NodeBgpSession> {
    let answer = tokio::time::timeout(QUERY_TIMEOUT, request_peers(&run_dir.join("node.sock"))).await;
    let Ok(Ok(mut answer)) = answer else { return Vec::new() };
    let peers = answer["peers"].take();
    serde_json::from_value(peers).unwrap_or_default()
}

/// Waits until every node has sessions and all of them are established.
pub async fn wait_established(place: &LabPaths, cluster: &LabCluster) -> LabResult<()> {
    // A single node has peers only if a router is one.
    if cluster.bgp == BgpMode::None || (cluster.nodes.len() == 1 && cluster.bgp != BgpMode::Tor) {
        return Ok(());
    }
    let deadline = Instant::now() + SESSIONS_TIMEOUT;
    for node in &cluster.nodes {
        loop {
            let sessions = list(&place.node_dir(&node.name).join("run")).await;
            let down: Vec<String> = sessions
                .iter()
                .filter(|session| session.state != "Established")
                .map(NodeBgpSession::line)
                .collect();
            if !sessions.is_empty() && down.is_empty() {
                break;
            }
            if Instant::now() > deadline {
                return Err(LabError::refused(format!(
                    "{} has {} BGP sessions, of which these are not established: {}",
                    node.name,
                    sessions.len(),
                    down.join("; ")
                )));
            }
            tokio::time::sleep(SESSIONS_POLL_INTERVAL).await;
        }
    }
    Ok(())
}

async fn request_peers(socket: &Path) -> io::Result<Value> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(json!({"ask": "bgp peers"}).to_string().as_bytes()).await?;
    stream.shutdown().await?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text).await?;
    Ok(serde_json::from_slice(&text)?)
}

impl NodeBgpSession {
    /// Formats the session as one line.
    pub fn line(&self) -> String {
        let line = format!(
            "{}  {}  {}, {} prefixes in, {} out",
            self.name, self.address, self.state, self.received, self.sent
        );
        match &self.error {
            Some(error) if self.state != "Established" => format!("{line} ({error})"),
            _ => line,
        }
    }
}
