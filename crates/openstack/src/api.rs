//! The interface for Neutron's driver: HTTP with JSON on a Unix socket.

use crate::OpenStackError;
use crate::command_queue::{CommandResult, DriverCommand};
use crate::election::LeaderFlag;
use crate::metrics::{OpenStackMetrics, increment};
use crate::resync::{PhaseKind, PhaseVerification, ResyncReport, ResyncScope, ResyncSessions};
use crate::slot::{SlotKey, SlotObject};
use crate::status::StatusBoard;
use crate::writer::{SlotObservation, SlotOutcome, SlotReport, SlotWriter};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Maximum size of a request. The driver sends pages of 100 objects.
const MAX_BODY_BYTES: usize = 32 << 20;
/// Maximum number of slots in one request.
const MAX_SLOTS: usize = 1000;
/// Maximum time that a request for commands waits.
const MAX_COMMAND_WAIT: Duration = Duration::from_secs(50);
/// Neutron's request waits for this one, so an unavailable datastore must be reported quickly.
const STORE_TIMEOUT: Duration = Duration::from_secs(20);

/// Everything that requests use.
#[derive(Debug)]
pub struct ApiState {
    pub writer: SlotWriter,
    pub sessions: ResyncSessions,
    pub board: Arc<StatusBoard>,
    pub leader: Arc<LeaderFlag>,
    pub metrics: Arc<OpenStackMetrics>,
    /// Identifies this process: the driver repeats its resync if it changes.
    pub instance: String,
}

#[derive(Debug, thiserror::Error)]
enum ApiError {
    #[error("invalid request: {0}")]
    Request(String),
    #[error(transparent)]
    Failed(#[from] OpenStackError),
    #[error("the datastore did not respond within {} s", STORE_TIMEOUT.as_secs())]
    Timeout,
}

type ApiResult<T> = Result<JsonResponse<T>, ApiError>;

struct JsonResponse<T>(T);

impl<T: Serialize> IntoResponse for JsonResponse<T> {
    fn into_response(self) -> Response {
        let text = serde_json::to_string(&self.0).unwrap_or_default();
        ([(header::CONTENT_TYPE, "application/json")], text).into_response()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = match &self {
            ApiError::Request(_) => StatusCode::BAD_REQUEST,
            ApiError::Failed(OpenStackError::UnknownResync(_) | OpenStackError::NoPhase(_)) => {
                StatusCode::NOT_FOUND
            }
            ApiError::Failed(_) | ApiError::Timeout => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, JsonResponse(json!({"error": self.to_string()}))).into_response()
    }
}

impl From<tortie_store::StoreError> for ApiError {
    fn from(error: tortie_store::StoreError) -> ApiError {
        ApiError::Failed(error.into())
    }
}

pub fn build_router(state: Arc<ApiState>) -> Router {
    Router::new()
        .route("/v1/state", get(get_state))
        .route("/v1/observe", post(observe))
        .route("/v1/write", post(write))
        .route("/v1/commands/{seconds}", get(take_commands))
        .route("/v1/results", post(complete_commands))
        .route("/v1/missed", post(record_missed))
        .route("/v1/resync", post(start_resync))
        .route("/v1/resync/{id}/begin", post(begin_phase))
        .route("/v1/resync/{id}/objects", post(add_objects))
        .route("/v1/resync/{id}/end", post(end_phase))
        .route("/v1/resync/{id}/finish", post(finish_resync))
        .route("/metrics", get(render_metrics))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(state)
}

fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::Request(error.to_string()))
}

/// Limits the time of a request, and counts failures of the datastore.
async fn within<T>(
    state: &ApiState,
    timeout: Duration,
    work: impl Future<Output = Result<T, ApiError>>,
) -> ApiResult<T> {
    let result = tokio::time::timeout(timeout, work).await.unwrap_or(Err(ApiError::Timeout));
    if let Err(ApiError::Failed(OpenStackError::Store(_)) | ApiError::Timeout) = &result {
        increment(&state.metrics.store_failures);
    }
    result.map(JsonResponse)
}

#[derive(Serialize)]
struct DaemonState {
    instance: String,
    region: String,
    leader: bool,
}

/// Reports the state of the daemon. Fails if the datastore is unavailable: the driver asks before a transaction.
async fn get_state(State(state): State<Arc<ApiState>>) -> ApiResult<DaemonState> {
    within(&state, STORE_TIMEOUT, async {
        state.writer.client.probe().await?;
        Ok(DaemonState {
            instance: state.instance.clone(),
            region: state.writer.region.name().to_owned(),
            leader: state.leader.is_leader(),
        })
    })
    .await
}

#[derive(Deserialize)]
struct ObserveRequest {
    slots: Vec<SlotKey>,
}

#[derive(Serialize)]
struct ObserveResponse {
    seen: Vec<SlotObservation>,
}

async fn observe(State(state): State<Arc<ApiState>>, body: Bytes) -> ApiResult<ObserveResponse> {
    let request: ObserveRequest = parse(&body)?;
    check_slots(request.slots.len())?;
    within(&state, STORE_TIMEOUT, async {
        Ok(ObserveResponse { seen: state.writer.observe(&request.slots).await? })
    })
    .await
}

fn check_slots(count: usize) -> Result<(), ApiError> {
    if count > MAX_SLOTS {
        return Err(ApiError::Request(format!("{count} slots: expected at most {MAX_SLOTS}")));
    }
    Ok(())
}

#[derive(Deserialize)]
struct WriteRequest {
    writes: Vec<SlotWrite>,
    /// The object that determines the slots; empty if Neutron has no such object.
    #[serde(default)]
    object: Value,
}

#[derive(Deserialize)]
struct SlotWrite {
    slot: SlotKey,
    seen: SlotObservation,
}

#[derive(Serialize)]
struct WriteResponse {
    reports: Vec<SlotReport>,
}

async fn write(State(state): State<Arc<ApiState>>, body: Bytes) -> ApiResult<WriteResponse> {
    let request: WriteRequest = parse(&body)?;
    check_slots(request.writes.len())?;
    let object = if request.object.is_null() { json!({}) } else { request.object };
    let object: SlotObject = match serde_json::from_value(object) {
        Ok(object) => object,
        Err(error) => {
            let reports = request.writes.iter().map(|_| reject_object(&state.metrics, &error.to_string()));
            return Ok(JsonResponse(WriteResponse { reports: reports.collect() }));
        }
    };
    within(&state, STORE_TIMEOUT, async {
        let mut reports = Vec::new();
        for SlotWrite { slot, seen } in &request.writes {
            reports.push(state.writer.write(slot, seen, &object).await?);
        }
        Ok(WriteResponse { reports })
    })
    .await
}

fn reject_object(metrics: &OpenStackMetrics, reason: &str) -> SlotReport {
    let outcome = SlotOutcome::Invalid(reason.to_owned());
    metrics.count_write(&outcome, 0);
    tracing::warn!(
        reason,
        "an object of Neutron lacks a field or has a wrong type; the datastore keeps its entry"
    );
    SlotReport { outcome, warnings: Vec::new() }
}

#[derive(Serialize)]
struct CommandsResponse {
    instance: String,
    commands: Vec<DriverCommand>,
}

async fn take_commands(
    State(state): State<Arc<ApiState>>,
    Path(seconds): Path<u64>,
) -> ApiResult<CommandsResponse> {
    let timeout = Duration::from_secs(seconds).min(MAX_COMMAND_WAIT);
    let commands = state.board.take(timeout, || state.leader.is_leader()).await;
    Ok(JsonResponse(CommandsResponse { instance: state.instance.clone(), commands }))
}

#[derive(Deserialize)]
struct ResultsRequest {
    results: Vec<CommandResult>,
}

async fn complete_commands(State(state): State<Arc<ApiState>>, body: Bytes) -> ApiResult<Value> {
    let request: ResultsRequest = parse(&body)?;
    state.board.complete(&request.results);
    Ok(JsonResponse(json!({})))
}

/// Records that the driver could not send changes earlier: a resync is needed.
async fn record_missed(State(state): State<Arc<ApiState>>) -> ApiResult<Value> {
    state.board.request_resync();
    Ok(JsonResponse(json!({})))
}

#[derive(Deserialize)]
struct StartRequest {
    scope: ResyncScope,
    #[serde(default)]
    expand_ms: u64,
}

async fn start_resync(State(state): State<Arc<ApiState>>, body: Bytes) -> ApiResult<Value> {
    let request: StartRequest = parse(&body)?;
    let id = state.sessions.start(request.scope, request.expand_ms, &state.metrics);
    Ok(JsonResponse(json!({"id": id})))
}

#[derive(Deserialize)]
struct BeginRequest {
    phase: PhaseKind,
}

async fn begin_phase(
    State(state): State<Arc<ApiState>>,
    Path(id): Path<u64>,
    body: Bytes,
) -> ApiResult<Value> {
    let request: BeginRequest = parse(&body)?;
    let session = state.sessions.find(id)?;
    session.lock().await.begin(request.phase, &state.writer).await?;
    Ok(JsonResponse(json!({})))
}

#[derive(Deserialize)]
struct ObjectsRequest {
    objects: Vec<Value>,
}

async fn add_objects(
    State(state): State<Arc<ApiState>>,
    Path(id): Path<u64>,
    body: Bytes,
) -> ApiResult<Value> {
    let request: ObjectsRequest = parse(&body)?;
    let session = state.sessions.find(id)?;
    session.lock().await.add_objects(request.objects, &state.writer).await?;
    Ok(JsonResponse(json!({})))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EndRequest {
    neutron_read_ms: u64,
    force: bool,
}

async fn end_phase(
    State(state): State<Arc<ApiState>>,
    Path(id): Path<u64>,
    body: Bytes,
) -> ApiResult<PhaseVerification> {
    let request: EndRequest = parse(&body)?;
    let session = state.sessions.find(id)?;
    let verify = session.lock().await.end(request.neutron_read_ms, request.force, &state.writer).await?;
    Ok(JsonResponse(verify))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FinishRequest {
    error: Option<String>,
}

async fn finish_resync(
    State(state): State<Arc<ApiState>>,
    Path(id): Path<u64>,
    body: Bytes,
) -> ApiResult<ResyncReport> {
    let request: FinishRequest = parse(&body)?;
    let session = state.sessions.find(id)?;
    let report = session.lock().await.finish(request.error, &state.writer).await;
    state.sessions.remove(id);
    match &report.error {
        None => tracing::info!(milliseconds = report.total_ms, "resync finished"),
        Some(error) => tracing::warn!(error, "resync failed"),
    }
    Ok(JsonResponse(report))
}

async fn render_metrics(State(state): State<Arc<ApiState>>) -> String {
    state.metrics.render(state.leader.is_leader(), state.board.pending())
}
