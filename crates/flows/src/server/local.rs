//! Serves the flows of a node to programs of its host, over a Unix socket that only root may use.

use super::services::FlowService;
use super::{
    KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, MAX_HEADER_BYTES, MAX_PENDING_RESETS, MAX_QUERY_BYTES,
    MAX_REQUESTS_PER_CONNECTION,
};
use crate::collector::FlowCollector;
use crate::proto::flows_server::FlowsServer;
use crate::proto::statistics_server::StatisticsServer;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tortie_http::{AuthorityRewriter, LimitedConnection, UnixSocket};

/// Maximum number of connections and of streams of readers.
const MAX_LOCAL_CONNECTIONS: usize = 32;
const MAX_LOCAL_STREAMS: usize = 16;
/// Maximum number of accepted connections that the server has not taken over yet.
const MAX_PENDING_CONNECTIONS: usize = 4;
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Only root may read flows.
const SOCKET_MODE: u32 = 0o600;

/// Serves the services Flows and Statistics on a socket until `stop` becomes true.
pub async fn serve_local_flows(
    path: &Path,
    collector: Arc<FlowCollector>,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let socket = UnixSocket::bind(path, SOCKET_MODE)?;
    let service = FlowService::new(collector.clone(), MAX_LOCAL_STREAMS, stop.clone());
    let flows = FlowsServer::new(service.clone()).max_decoding_message_size(MAX_QUERY_BYTES);
    let statistics = StatisticsServer::new(service).max_decoding_message_size(MAX_QUERY_BYTES);
    let (sender, incoming) = mpsc::channel(MAX_PENDING_CONNECTIONS);
    let serving = tonic::transport::Server::builder()
        .max_concurrent_streams(MAX_REQUESTS_PER_CONNECTION)
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .http2_max_pending_accept_reset_streams(Some(MAX_PENDING_RESETS))
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_routes(Routes::new(flows).add_service(statistics))
        .serve_with_incoming(ReceiverStream::new(incoming));
    tokio::select! {
        () = accept_readers(&socket, &collector, sender) => Ok(()),
        // An error means that the node stops.
        _ = stop.wait_for(|stop| *stop) => Ok(()),
        result = serving => result.map_err(io::Error::other),
    }
}

type ConnectionSender = mpsc::Sender<io::Result<AuthorityRewriter<LimitedConnection>>>;

async fn accept_readers(socket: &UnixSocket, collector: &FlowCollector, connections: ConnectionSender) {
    let limit = Arc::new(Semaphore::new(MAX_LOCAL_CONNECTIONS));
    loop {
        let stream = match socket.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a reader of flows; trying again");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let Ok(permit) = limit.clone().try_acquire_owned() else {
            collector.metrics().refused_connections.inc();
            continue;
        };
        let connection = AuthorityRewriter::new(LimitedConnection::new(stream, permit));
        if connections.send(Ok(connection)).await.is_err() {
            return;
        }
    }
}
