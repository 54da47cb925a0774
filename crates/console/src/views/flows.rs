//! Flows from the collector: a list, and a stream.

use super::{ApiResult, ConsoleState, SharedState};
use crate::error::{ApiError, render_json};
use crate::events::render_stream;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::sse::Event;
use jiff::Timestamp;
use serde_json::json;
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tortie_flows::proto::flows_client::FlowsClient;
use tortie_flows::proto::{FlowListRequest, FlowResult, FlowStreamRequest};
use tortie_flows::{FlowItem, FlowsParameters};

/// Maximum number of flows in a response.
const MAX_LISTED_FLOWS: i64 = 1000;
/// Time for connecting to the collector and reading a list.
const QUERY_TIMEOUT: Duration = Duration::from_secs(20);
/// Events that wait for a slow client; more are lost and counted.
const QUEUED_EVENTS: usize = 8;
/// Flows of one event.
const MAX_EVENT_FLOWS: usize = 500;

pub async fn list(State(state): SharedState, uri: Uri) -> ApiResult {
    let parameters = parse(&uri)?;
    let request = FlowListRequest {
        start_time_gte: parameters.start_time_gte,
        start_time_lt: parameters.start_time_lt,
        filter: Some(parameters.filter),
        page_size: MAX_LISTED_FLOWS,
        ..FlowListRequest::default()
    };
    let result = query(&state, async |mut client| Ok(client.list(request).await?.into_inner())).await?;
    let total = result.meta.map_or(0, |meta| meta.total_results);
    let flows: Vec<FlowItem> =
        result.flows.into_iter().filter_map(|result| result.flow).map(FlowItem::new).collect();
    let omitted = total.saturating_sub(i64::try_from(flows.len()).unwrap_or(i64::MAX)).max(0);
    let body = json!({ "asOf": Timestamp::now(), "data": { "flows": flows, "omitted": omitted } });
    Ok(render_json(StatusCode::OK, &body))
}

/// Streams flows as the collector publishes them, several in one event.
pub async fn stream(State(state): SharedState, uri: Uri) -> ApiResult {
    let parameters = parse(&uri)?;
    let permit = state.take_stream()?;
    let request = FlowStreamRequest {
        start_time_gte: parameters.start_time_gte,
        filter: Some(parameters.filter),
        ..FlowStreamRequest::default()
    };
    let mut client = query(&state, async |client| Ok(client)).await?;
    let (sender, receiver) = mpsc::channel::<Result<Event, Infallible>>(QUEUED_EVENTS);
    tokio::spawn(async move {
        let _permit = permit;
        // Goldmane begins its response with the first flow, so there is no time limit for it.
        let opened = tokio::select! {
            () = sender.closed() => return,
            opened = client.stream(request) => opened,
        };
        let mut flows = match opened {
            Ok(response) => response.into_inner(),
            Err(status) => {
                let _ = sender.send(Ok(render_end(status.message()))).await;
                return;
            }
        };
        let mut lost: usize = 0;
        loop {
            let next = tokio::select! {
                () = sender.closed() => return,
                next = flows.message() => next,
            };
            let Ok(Some(first)) = next else {
                let status = next.err();
                let reason = status.as_ref().map_or("the stream ended", |status| status.message());
                let _ = sender.send(Ok(render_end(reason))).await;
                return;
            };
            let mut batch = vec![first];
            // The flows of one bucket arrive together.
            while batch.len() < MAX_EVENT_FLOWS
                && let Some(Ok(Some(next))) = futures::FutureExt::now_or_never(flows.message())
            {
                batch.push(next);
            }
            let count = batch.len();
            if sender.try_send(Ok(render_flows(batch, lost))).is_err() {
                lost += count;
                state.access.metrics.lost_flows.inc_by(count as u64);
            }
        }
    });
    Ok(render_stream(ReceiverStream::new(receiver)))
}

fn render_end(reason: &str) -> Event {
    Event::default().event("ended").data(json!({ "reason": reason }).to_string())
}

fn render_flows(batch: Vec<FlowResult>, lost: usize) -> Event {
    let flows: Vec<FlowItem> =
        batch.into_iter().filter_map(|result| result.flow).map(FlowItem::new).collect();
    Event::default().event("flows").data(json!({ "flows": flows, "lost": lost }).to_string())
}

fn parse(uri: &Uri) -> Result<FlowsParameters, ApiError> {
    FlowsParameters::parse(uri.query().unwrap_or_default())
        .map_err(|error| ApiError::Parameter { field: "query", reason: error.to_string() })
}

/// Connects to the collector and runs a query within the time limit.
pub async fn query<T>(
    state: &ConsoleState,
    run: impl AsyncFnOnce(FlowsClient<Channel>) -> Result<T, tonic::Status>,
) -> Result<T, ApiError> {
    let target = state.collector.as_ref().ok_or(ApiError::NoCollector)?;
    let failed = |reason: String| ApiError::Collector { reason };
    let answer = tokio::time::timeout(QUERY_TIMEOUT, async {
        let client = target.connect().await.map_err(|error| failed(error.to_string()))?;
        run(client).await.map_err(|status| failed(status.message().to_owned()))
    });
    answer.await.unwrap_or_else(|_| Err(failed("it did not answer in time".to_owned())))
}
