//! The daemon.

use crate::api::{ApiState, build_router};
use crate::election::{ElectionCandidate, LeaderFlag};
use crate::metrics::OpenStackMetrics;
use crate::resync::ResyncSessions;
use crate::status::StatusBoard;
use crate::writer::SlotWriter;
use crate::{OpenStackError, OpenStackRegion};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tortie_http::{UnixSocket, serve_unix_socket, shutdown_signal};
use tortie_store::{StoreClient, StoreConfig};
use uuid::Uuid;

pub const DEFAULT_SOCKET: &str = "/run/tortie/openstack.sock";
/// Permissions of the socket: Neutron's processes belong to the group.
const SOCKET_MODE: u32 = 0o660;
/// Maximum number of connections. Each API worker of Neutron uses one per thread.
const MAX_CONNECTIONS: usize = 512;
const LEADER_CHECK_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct OpenStackOptions {
    pub socket: PathBuf,
    /// Name of the region; empty if there is only one.
    pub region: String,
    /// Name in the election; the same for all daemons of a host, and only for these.
    pub elector_name: String,
    pub store: StoreConfig,
}

/// Runs the daemon until a signal. `ready` is called once when the socket accepts requests.
pub async fn run(options: OpenStackOptions, ready: impl FnOnce()) -> Result<(), OpenStackError> {
    let region = OpenStackRegion::new(&options.region)?;
    let client = StoreClient::connect_waiting(&options.store, |error| {
        tracing::warn!(%error, "cannot connect to the datastore; trying again");
    })
    .await?;
    if !client.capabilities().expiring_entries {
        return Err(OpenStackError::NoExpiringEntries);
    }
    let metrics = Arc::new(OpenStackMetrics::default());
    let board = Arc::new(StatusBoard::new(metrics.clone()));
    let leader = Arc::new(LeaderFlag::default());
    let state = Arc::new(ApiState {
        writer: SlotWriter { client: client.clone(), region: region.clone(), metrics: metrics.clone() },
        sessions: ResyncSessions::default(),
        board: board.clone(),
        leader: leader.clone(),
        metrics: metrics.clone(),
        instance: Uuid::new_v4().to_string(),
    });
    let socket = UnixSocket::bind(&options.socket, SOCKET_MODE)
        .map_err(|source| OpenStackError::Socket { path: options.socket.clone(), source })?;
    let candidate = ElectionCandidate::new(client.clone(), region.clone(), options.elector_name);
    let shutdown = shutdown_signal().map_err(OpenStackError::Signals)?;
    ready();
    tokio::select! {
        () = serve_unix_socket(&socket, build_router(state), MAX_CONNECTIONS, &metrics.refused_connections) => {}
        () = candidate.run(&leader) => {}
        () = restart_with_leadership(&leader, &board) => {}
        () = board.follow(&client, &region) => {}
        _ = shutdown => {}
    }
    Ok(())
}

/// Sends all states again each time this daemon begins to lead: the earlier leader may not have sent them.
async fn restart_with_leadership(leader: &LeaderFlag, board: &StatusBoard) {
    let mut led = false;
    loop {
        let leads = leader.is_leader();
        if leads && !led {
            board.restart();
        }
        led = leads;
        tokio::time::sleep(LEADER_CHECK_INTERVAL).await;
    }
}
