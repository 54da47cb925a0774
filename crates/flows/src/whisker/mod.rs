//! The HTTP endpoints of whisker-backend, which the console Whisker reads: they query a collector over gRPC.

mod items;
mod parameters;

pub use items::{FlowItem, HintItem, PolicyItem};
pub use parameters::{FlowsParameters, ParameterError, parse_filters};

use crate::client::{CollectorTarget, ConnectError};
use crate::proto::{FilterHintsRequest, FlowListRequest, FlowResult, FlowStreamRequest, SortOption};
use crate::server::{FlowListenAddress, ServeError, listen};
use axum::Router;
use axum::body::Body;
use axum::extract::State as Shared;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::StreamExt;
use prometheus_client::metrics::counter::Counter;
use serde::Serialize;
use serde_json::json;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Code, Status};
use tortie_http::{ConnectionLimits, ListenerLimits, ListenerTlsFiles, TlsClientPolicy};
use tortie_tls::TlsFiles;

/// The proxy in front of the endpoints opens all connections, so a source may have as many as there are.
const LIMITS: ListenerLimits =
    ListenerLimits { connections: ConnectionLimits { total: 256, per_source: 256 }, lifetime: None };
/// Time limit of a query; a watch has none.
const QUERY_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct WhiskerOptions {
    pub listen: FlowListenAddress,
    /// Certificate of the HTTPS server.
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub collector: CollectorTarget,
}

#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("{}", .0.message())]
    Collector(#[from] Status),
    #[error("the collector did not answer within {} s", QUERY_TIMEOUT.as_secs())]
    Timeout,
}

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        let code = match &self {
            RequestError::Parameter(_) => StatusCode::BAD_REQUEST,
            RequestError::Collector(status) if status.code() == Code::InvalidArgument => {
                StatusCode::BAD_REQUEST
            }
            RequestError::Collector(_) | RequestError::Connect(_) | RequestError::Timeout => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        render_json(code, &json!({"error": self.to_string()}))
    }
}

fn render_json(code: StatusCode, value: &impl Serialize) -> Response {
    // Serializing these values cannot fail.
    let text = serde_json::to_string(value).unwrap_or_default();
    (code, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}

#[derive(Serialize)]
struct ListResponse<T> {
    total: ListTotal,
    items: Vec<T>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ListTotal {
    total_pages: i64,
}

/// Serves until SIGTERM or SIGINT.
pub async fn run_whisker_backend(options: WhiskerOptions) -> Result<(), ServeError> {
    let shutdown = tortie_http::shutdown_signal().map_err(ServeError::Signal)?;
    let server = WhiskerServer::bind(options).await?;
    // The endpoints are also served when standard output is closed.
    let _ = writeln!(io::stdout(), "ready: whisker-backend on {}", server.address());
    server.serve(shutdown).await;
    Ok(())
}

/// A server whose socket is bound.
pub struct WhiskerServer {
    listener: tokio::net::TcpListener,
    address: std::net::SocketAddr,
    tls: ListenerTlsFiles,
    collector: CollectorTarget,
}

impl WhiskerServer {
    /// Binds the socket and checks the certificate.
    pub async fn bind(options: WhiskerOptions) -> Result<WhiskerServer, ServeError> {
        let WhiskerOptions { listen: address, certificate, key, collector } = options;
        TlsFiles { certificate: certificate.clone(), key: key.clone(), ca: None }.server()?;
        let listener = listen(&address).await?;
        let bound = listener.local_addr().map_err(|source| ServeError::Listen { address, source })?;
        let tls = ListenerTlsFiles { certificate, key, clients: TlsClientPolicy::Anybody };
        Ok(WhiskerServer { listener, address: bound, tls, collector })
    }

    pub fn address(&self) -> std::net::SocketAddr {
        self.address
    }

    /// Serves until `shutdown` completes, which closes all connections.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) {
        let router = Router::new()
            .route("/flows", get(serve_flows))
            .route("/flows-filter-hints", get(serve_hints))
            .with_state(Arc::new(self.collector));
        tracing::info!(address = %self.address, "serves the endpoints of whisker-backend");
        let serving =
            tortie_http::serve_with_limits(self.listener, router, Some(self.tls), Counter::default(), LIMITS);
        tokio::select! {
            () = shutdown => {}
            () = serving => {}
        }
    }
}

async fn within_limit<T>(query: impl Future<Output = Result<T, RequestError>>) -> Result<T, RequestError> {
    tokio::time::timeout(QUERY_TIMEOUT, query).await.unwrap_or(Err(RequestError::Timeout))
}

async fn serve_flows(
    Shared(collector): Shared<Arc<CollectorTarget>>,
    uri: Uri,
) -> Result<Response, RequestError> {
    let parameters = FlowsParameters::parse(uri.query().unwrap_or_default())?;
    if parameters.watch {
        watch_flows(&collector, parameters).await
    } else {
        list_flows(&collector, parameters).await
    }
}

/// Lists the flows. The page is not passed on, as in Calico: the result is complete.
async fn list_flows(
    collector: &CollectorTarget,
    parameters: FlowsParameters,
) -> Result<Response, RequestError> {
    let sort_by = parameters.sort_by.into_iter().map(|sort| SortOption { sort_by: sort.into() });
    let request = FlowListRequest {
        start_time_gte: parameters.start_time_gte,
        start_time_lt: parameters.start_time_lt,
        sort_by: sort_by.collect(),
        filter: Some(parameters.filter),
        ..FlowListRequest::default()
    };
    let query = async { Ok(collector.connect().await?.list(request).await?.into_inner()) };
    let result = within_limit(query).await?;
    let total = ListTotal { total_pages: result.meta.unwrap_or_default().total_pages };
    let items = result.flows.into_iter().map(|flow| FlowItem::new(flow.flow.unwrap_or_default())).collect();
    Ok(render_json(StatusCode::OK, &ListResponse { total, items }))
}

/// Streams flows as server-sent events until the client or the collector ends the stream.
async fn watch_flows(
    collector: &CollectorTarget,
    parameters: FlowsParameters,
) -> Result<Response, RequestError> {
    let request = FlowStreamRequest {
        start_time_gte: parameters.start_time_gte,
        filter: Some(parameters.filter),
        ..FlowStreamRequest::default()
    };
    let query = async { Ok(collector.connect().await?.stream(request).await?.into_inner()) };
    let flows = within_limit(query).await?;
    let events = flows.map(|flow| flow.map(render_event));
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    Ok((headers, Body::from_stream(events)).into_response())
}

fn render_event(result: FlowResult) -> String {
    let item = FlowItem::new(result.flow.unwrap_or_default());
    // Serializing an item cannot fail.
    format!("data: {}\n\n", serde_json::to_string(&item).unwrap_or_default())
}

async fn serve_hints(
    Shared(collector): Shared<Arc<CollectorTarget>>,
    uri: Uri,
) -> Result<Response, RequestError> {
    let parameters = FlowsParameters::parse(uri.query().unwrap_or_default())?;
    let kind = parameters.hint_type.ok_or(ParameterError::NoHintType)?;
    let request = FilterHintsRequest {
        r#type: kind.into(),
        filter: Some(parameters.filter),
        start_time_gte: parameters.start_time_gte,
        start_time_lt: parameters.start_time_lt,
        page: parameters.page,
        page_size: parameters.page_size,
    };
    let query = async { Ok(collector.connect().await?.filter_hints(request).await?.into_inner()) };
    let result = within_limit(query).await?;
    let total = ListTotal { total_pages: result.meta.unwrap_or_default().total_pages };
    let items = result.hints.into_iter().map(|hint| HintItem::new(kind, hint.value)).collect();
    Ok(render_json(StatusCode::OK, &ListResponse { total, items }))
}
