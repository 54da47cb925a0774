//! The JSON API, one file for each view.

mod explain;
mod flow_map;
mod flows;
mod nodes;
mod overview;
mod policies;
mod routing;
mod session;
mod what_if;

use crate::access::AccessControl;
use crate::changes::{ClusterFeed, RingPosition};
use crate::error::{ApiError, render_json};
use crate::events::{MAX_STREAMS, stream_changes};
use crate::map::MapLayout;
use crate::server::{LinkPrinter, MAX_COMPUTATIONS};
use crate::snapshot::{ClusterSnapshot, Freshness, SnapshotCache};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tortie_flows::CollectorTarget;

/// Time that a request waits for a running computation.
const COMPUTATION_WAIT: Duration = Duration::from_secs(20);

pub struct ConsoleState {
    pub access: Arc<AccessControl>,
    /// Prints a new link when one was used.
    pub announce: Option<LinkPrinter>,
    pub snapshots: Arc<SnapshotCache>,
    pub feed: Arc<ClusterFeed>,
    pub collector: Option<CollectorTarget>,
    pub streams: Arc<Semaphore>,
    pub computations: Arc<Semaphore>,
    /// The last layout of each map, so that boxes keep their places.
    pub layouts: Mutex<BTreeMap<String, MapLayout>>,
}

type SharedState = State<Arc<ConsoleState>>;
type ApiResult = Result<Response, ApiError>;

/// The body of a response about the cluster.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ClusterResponse<T> {
    #[serde(flatten)]
    freshness: Freshness,
    data: T,
}

pub fn routes() -> Router<Arc<ConsoleState>> {
    Router::new()
        .route("/api/session", get(session::show).post(session::sign_in))
        .route("/api/events", get(stream_events))
        .route("/api/overview", get(overview::show))
        .route("/api/policies", get(policies::show))
        .route("/api/endpoints", get(explain::list_endpoints))
        .route("/api/explain", get(explain::show))
        .route("/api/what-if", post(what_if::compare))
        .route("/api/routes", get(routing::show))
        .route("/api/nodes", get(nodes::show))
        .route("/api/flows", get(flows::list))
        .route("/api/flows/stream", get(flows::stream))
        .route("/api/map", get(flow_map::show))
        .route("/api/metrics", get(show_metrics))
        .route("/api/{*path}", get(reject_unknown))
}

async fn reject_unknown() -> ApiError {
    ApiError::NotFound
}

async fn show_metrics(State(state): SharedState) -> Response {
    let open = MAX_STREAMS.saturating_sub(state.streams.available_permits());
    state.access.metrics.render(open).into_response()
}

async fn stream_events(State(state): SharedState, headers: HeaderMap) -> ApiResult {
    let resume = headers.get("last-event-id").and_then(|id| RingPosition::parse(id.to_str().ok()?));
    let permit = state.take_stream()?;
    Ok(stream_changes(state.feed.clone(), resume, permit))
}

impl ConsoleState {
    /// Renders a view of the current cluster.
    async fn render_cluster<T: Serialize>(&self, view: impl FnOnce(&ClusterSnapshot) -> T) -> ApiResult {
        let (snapshot, freshness) = self.snapshots.get().await?;
        Ok(render_json(StatusCode::OK, &ClusterResponse { freshness, data: view(&snapshot) }))
    }

    /// Waits for a place among the computations that run at the same time.
    async fn take_computation(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let place = tokio::time::timeout(COMPUTATION_WAIT, self.computations.clone().acquire_owned()).await;
        place.ok().and_then(Result::ok).ok_or_else(|| {
            self.access.metrics.busy_requests.inc();
            ApiError::Busy { what: "computations", limit: MAX_COMPUTATIONS }
        })
    }

    /// Takes a place for a stream.
    fn take_stream(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.streams.clone().try_acquire_owned().map_err(|_| {
            self.access.metrics.busy_requests.inc();
            ApiError::Busy { what: "streams", limit: MAX_STREAMS }
        })
    }
}

/// Returns a parameter of the query; empty if it is missing.
fn parameter(uri: &Uri, name: &str) -> String {
    let query = uri.query().unwrap_or_default();
    let found = form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == name);
    found.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
}
