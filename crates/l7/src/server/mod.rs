//! The server: binds its sockets, follows the node and answers Envoy until it is stopped.

mod connection;
mod http;
mod listener;
mod reply_deadline;
mod request_budget;
mod services;

pub use request_budget::MAX_MESSAGE_BYTES;

use crate::access_log::AccessLog;
use crate::check::PolicyChecker;
use crate::metrics::L7Metrics;
use crate::options::ServeOptions;
use crate::proto::dikastes::healthz_server::HealthzServer;
use crate::proto::{v2, v2alpha, v3};
use crate::state::PolicyState;
use crate::sync_client::SyncClient;
use axum::Router;
use listener::ProxyListener;
use prometheus_client::metrics::counter::Counter;
use request_budget::{MAX_INCOMPLETE_BYTES, RequestBudget};
use services::CheckService;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::service::Routes;
use tower::util::MapRequestLayer;

/// Maximum number of concurrent requests of one connection. Envoy opens another connection for more.
const MAX_STREAMS_PER_CONNECTION: u32 = 256;
/// Maximum size of the headers of a request, decoded.
const MAX_HEADER_BYTES: u32 = 16 << 10;
/// Maximum number of streams that a client may reset before the server has accepted them.
const MAX_PENDING_RESETS: usize = 64;
/// Time limit for receiving and answering a request whose client states none. A decision itself waits for nothing, so only requests that their
/// client does not complete reach it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of pings, and time for their answer, after which a connection is closed.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for open requests when the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, Error)]
pub enum ServeError {
    #[error("cannot handle signals: {0}")]
    Signal(io::Error),
    #[error("cannot listen on {}: {source}; check that its directory exists and that no other server uses it", path.display())]
    Listen { path: PathBuf, source: io::Error },
    #[error("cannot listen on {address} for HTTP: {source}")]
    ListenHttp { address: String, source: io::Error },
    #[error("{header:?} is not the name of an HTTP header")]
    DenialHeader { header: String },
    #[error("the gRPC server failed: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// Serves until SIGTERM, SIGINT or a request for `/terminate`.
pub async fn run(options: ServeOptions) -> Result<(), ServeError> {
    let shutdown = tortie_http::shutdown_signal().map_err(ServeError::Signal)?;
    L7Server::bind(options).await?.serve(shutdown).await
}

/// A server whose sockets are bound.
pub struct L7Server {
    options: ServeOptions,
    listener: ProxyListener,
    metrics: Arc<L7Metrics>,
    state: Arc<PolicyState>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl L7Server {
    /// Binds the sockets. Connections wait until `serve`.
    pub async fn bind(options: ServeOptions) -> Result<L7Server, ServeError> {
        let header = &options.check.denial_header;
        if !header.is_empty() && tonic::codegen::http::HeaderName::from_bytes(header.as_bytes()).is_err() {
            return Err(ServeError::DenialHeader { header: header.clone() });
        }
        let listener = ProxyListener::bind(&options.listen, options.listen_mode)
            .map_err(|source| ServeError::Listen { path: options.listen.clone(), source })?;
        let metrics = Arc::new(L7Metrics::new());
        let state = Arc::new(PolicyState::new(options.stale_after));
        let stop = watch::Sender::new(false);
        let mut tasks = JoinSet::new();
        if let Some(address) = options.metrics {
            let router = http::route_metrics(metrics.clone(), state.clone());
            serve_http(&mut tasks, &address.ip().to_string(), address.port(), router).await?;
        }
        if let Some((host, port)) = &options.terminate {
            serve_http(&mut tasks, host, *port, http::route_termination(stop.clone())).await?;
        }
        Ok(L7Server { options, listener, metrics, state, stop, tasks })
    }

    pub fn state(&self) -> &Arc<PolicyState> {
        &self.state
    }

    pub fn metrics(&self) -> &Arc<L7Metrics> {
        &self.metrics
    }

    /// Serves until `shutdown` completes or `/terminate` is requested.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
        let L7Server { options, listener, metrics, state, stop, mut tasks } = self;
        let client = SyncClient {
            socket: options.dial.clone(),
            state: state.clone(),
            metrics: metrics.clone(),
            max_policy_bytes: options.max_policy_bytes,
        };
        tasks.spawn(async move {
            client.run().await;
        });
        let log = AccessLog::new(options.access_log);
        let checker = Arc::new(PolicyChecker::new(state, options.check.clone(), metrics.clone(), log));
        let routes = build_routes(checker, options.max_request_bytes);
        let (refused, expired) = (metrics.refused_requests.clone(), metrics.expired_requests.clone());
        let budget = Arc::new(RequestBudget::new(MAX_INCOMPLETE_BYTES, refused, expired));
        let mut stopped = stop.subscribe();
        let drained = stop.subscribe();
        let serving = tonic::transport::Server::builder()
            .timeout(REQUEST_TIMEOUT)
            .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
            .http2_max_header_list_size(MAX_HEADER_BYTES)
            .http2_max_pending_accept_reset_streams(Some(MAX_PENDING_RESETS))
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .layer(MapRequestLayer::new(move |request| budget.admit(request)))
            .add_routes(routes)
            .serve_with_incoming_shutdown(
                listener.accept_connections(options.max_connections, metrics),
                wait_for_stop(drained),
            );
        tracing::info!(socket = %options.listen.display(), "answers authorization requests");
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            () = shutdown => {}
            _ = stopped.wait_for(|stopped| *stopped) => {}
            result = &mut serving => return Ok(result?),
        }
        stop.send_replace(true);
        // Connections that are still open after this time are closed when the runtime ends.
        match tokio::time::timeout(DRAIN_TIMEOUT, serving).await {
            Ok(result) => Ok(result?),
            Err(_) => Ok(()),
        }
    }
}

async fn wait_for_stop(mut stop: watch::Receiver<bool>) {
    // An error means that the server is gone, which stops it too.
    let _ = stop.wait_for(|stop| *stop).await;
}

fn build_routes(checker: Arc<PolicyChecker>, max_request_bytes: usize) -> Routes {
    let service = CheckService { checker };
    let v3 = v3::authorization_server::AuthorizationServer::new(service.clone())
        .max_decoding_message_size(max_request_bytes);
    let v2 = v2::authorization_server::AuthorizationServer::new(service.clone())
        .max_decoding_message_size(max_request_bytes);
    let v2alpha = v2alpha::authorization_server::AuthorizationServer::new(service.clone())
        .max_decoding_message_size(max_request_bytes);
    let health = HealthzServer::new(service).max_decoding_message_size(max_request_bytes);
    Routes::new(v3).add_service(v2).add_service(v2alpha).add_service(health)
}

async fn serve_http(
    tasks: &mut JoinSet<()>,
    host: &str,
    port: u16,
    router: Router,
) -> Result<(), ServeError> {
    let listener = tortie_http::listen(host, port)
        .await
        .map_err(|source| ServeError::ListenHttp { address: format!("{host}:{port}"), source })?;
    tasks.spawn(tortie_http::serve(listener, router, None, Counter::default()));
    Ok(())
}
