//! The collector's server: binds its sockets and serves nodes and readers until it is stopped.

mod listener;
mod local;
mod services;
mod stream;

use crate::collector::FlowCollector;
use crate::proto::flow_collector_server::FlowCollectorServer;
use crate::proto::flows_server::FlowsServer;
use crate::proto::statistics_server::StatisticsServer;
use crate::ring::RingOptions;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use listener::{ListenerTls, accept_connections, load_tls};
pub use local::serve_local_flows;
use prometheus_client::metrics::counter::Counter;
use services::FlowService;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::service::Routes;
use tortie_http::liveness::Liveness;
use tortie_tls::{TlsError, TlsFiles};

/// Maximum number of concurrent streams of readers, as in Goldmane.
pub const DEFAULT_MAX_STREAMS: usize = 100;
/// Maximum number of concurrent requests of one connection.
const MAX_REQUESTS_PER_CONNECTION: u32 = 256;
/// Maximum size of one update, and of a query.
const MAX_UPDATE_BYTES: usize = 1 << 20;
const MAX_QUERY_BYTES: usize = 256 << 10;
/// Maximum size of the headers of a request, decoded.
const MAX_HEADER_BYTES: u32 = 16 << 10;
/// Maximum number of streams that a client may reset before the server has accepted them.
const MAX_PENDING_RESETS: usize = 64;
/// Interval of pings, and time for their answer, after which a connection is closed.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for open requests when the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// Address of a listener; all addresses if the host is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowListenAddress {
    pub host: String,
    pub port: u16,
}

#[derive(Clone, Debug)]
pub struct CollectorOptions {
    pub listen: FlowListenAddress,
    /// Certificate of the server and the CA of its clients.
    pub tls: TlsFiles,
    pub ring: RingOptions,
    pub max_streams: usize,
    pub health: Option<FlowListenAddress>,
    pub metrics: Option<FlowListenAddress>,
}

#[derive(Debug, Error)]
pub enum ServeError {
    #[error("cannot handle signals: {0}")]
    Signal(io::Error),
    #[error("cannot listen on {}:{}: {source}", address.host, address.port)]
    Listen { address: FlowListenAddress, source: io::Error },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the CA of the clients is missing: it decides which clients are accepted")]
    NoClientAuthority,
    #[error("the gRPC server failed: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// Serves until SIGTERM or SIGINT.
pub async fn run_collector(options: CollectorOptions) -> Result<(), ServeError> {
    let shutdown = tortie_http::shutdown_signal().map_err(ServeError::Signal)?;
    let server = CollectorServer::bind(options).await?;
    // The collector also serves when standard output is closed.
    let _ = writeln!(io::stdout(), "ready: flow collector on {}", server.address());
    server.serve(shutdown).await
}

/// A server whose sockets are bound.
pub struct CollectorServer {
    listener: TcpListener,
    address: SocketAddr,
    tls: ListenerTls,
    collector: Arc<FlowCollector>,
    max_streams: usize,
    tasks: JoinSet<()>,
}

impl CollectorServer {
    /// Binds the sockets. Connections wait until `serve`.
    pub async fn bind(options: CollectorOptions) -> Result<CollectorServer, ServeError> {
        if options.tls.ca.is_none() {
            return Err(ServeError::NoClientAuthority);
        }
        let tls = load_tls(options.tls)?;
        let listener = listen(&options.listen).await?;
        let unknown = |source| ServeError::Listen { address: options.listen.clone(), source };
        let address = listener.local_addr().map_err(unknown)?;
        let collector = Arc::new(FlowCollector::new(options.ring));
        let liveness = Arc::new(Liveness::default());
        let mut tasks = JoinSet::new();
        let keeper = (collector.clone(), liveness.part("clock"));
        tasks.spawn(async move { keeper.0.keep_time(keeper.1).await });
        if let Some(health) = &options.health {
            serve_http(&mut tasks, health, route_health(liveness)).await?;
        }
        if let Some(metrics) = &options.metrics {
            serve_http(&mut tasks, metrics, route_metrics(collector.clone())).await?;
        }
        Ok(CollectorServer { listener, address, tls, collector, max_streams: options.max_streams, tasks })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn collector(&self) -> &Arc<FlowCollector> {
        &self.collector
    }

    /// Serves until `shutdown` completes, then ends streams and closes connections.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
        let CollectorServer { listener, address, tls, collector, max_streams, tasks } = self;
        let stop = watch::Sender::new(false);
        let service = FlowService::new(collector.clone(), max_streams, stop.subscribe());
        let mut drained = stop.subscribe();
        let serving = tonic::transport::Server::builder()
            .max_concurrent_streams(MAX_REQUESTS_PER_CONNECTION)
            .http2_max_header_list_size(MAX_HEADER_BYTES)
            .http2_max_pending_accept_reset_streams(Some(MAX_PENDING_RESETS))
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .add_routes(build_routes(service))
            .serve_with_incoming_shutdown(accept_connections(listener, tls, collector), async move {
                drop(drained.wait_for(|stop| *stop).await);
            });
        tracing::info!(%address, "collects flows");
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            () = shutdown => {}
            result = &mut serving => return Ok(result?),
        }
        tracing::info!("stopping");
        stop.send_replace(true);
        // Connections that are still open after this time are closed when the runtime ends.
        let result = tokio::time::timeout(DRAIN_TIMEOUT, serving).await;
        drop(tasks);
        match result {
            Ok(result) => Ok(result?),
            Err(_) => Ok(()),
        }
    }
}

fn build_routes(service: FlowService) -> Routes {
    let flows = FlowsServer::new(service.clone()).max_decoding_message_size(MAX_QUERY_BYTES);
    let updates = FlowCollectorServer::new(service.clone()).max_decoding_message_size(MAX_UPDATE_BYTES);
    let statistics = StatisticsServer::new(service).max_decoding_message_size(MAX_QUERY_BYTES);
    Routes::new(flows).add_service(updates).add_service(statistics)
}

pub(crate) async fn listen(address: &FlowListenAddress) -> Result<TcpListener, ServeError> {
    let listener = tortie_http::listen(&address.host, address.port).await;
    listener.map_err(|source| ServeError::Listen { address: address.clone(), source })
}

async fn serve_http(
    tasks: &mut JoinSet<()>,
    address: &FlowListenAddress,
    router: Router,
) -> Result<(), ServeError> {
    tasks.spawn(tortie_http::serve(listen(address).await?, router, None, Counter::default()));
    Ok(())
}

/// Serves `/liveness` and `/readiness`. The collector is ready as soon as it listens.
fn route_health(liveness: Arc<Liveness>) -> Router {
    Router::new()
        .route("/liveness", get(move || async move { liveness.page() }))
        .route("/readiness", get(|| async { (StatusCode::OK, "ready\n") }))
}

fn route_metrics(collector: Arc<FlowCollector>) -> Router {
    let head = [("content-type", "text/plain; version=0.0.4; charset=utf-8")];
    let page = move || async move { (head, collector.metrics().render(&collector)) };
    Router::new().route("/metrics", get(page))
}
