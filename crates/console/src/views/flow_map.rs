//! The map of the traffic that the collector knows: boxes and lines with their places.

use super::flows::query;
use super::{ApiResult, SharedState, parameter};
use crate::error::{ApiError, render_json};
use crate::map::{MapLevel, TrafficMap, TrafficRecord};
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use jiff::Timestamp;
use serde_json::json;
use std::sync::PoisonError;
use tortie_flows::proto::{Action, Flow, FlowListRequest};

/// Maximum number of flows of which a map is made.
const MAX_MAP_FLOWS: i64 = 100_000;
/// Maximum number of maps whose layout is remembered.
const MAX_LAYOUTS: usize = 64;
/// Default time range of the map, in seconds.
const DEFAULT_SECONDS: i64 = 900;

pub async fn show(State(state): SharedState, uri: Uri) -> ApiResult {
    let namespace = parameter(&uri, "namespace");
    let level =
        if namespace.is_empty() { MapLevel::Namespaces } else { MapLevel::Workloads(namespace.clone()) };
    let seconds = match parameter(&uri, "seconds") {
        text if text.is_empty() => DEFAULT_SECONDS,
        text => text.parse::<i64>().ok().filter(|seconds| (1..=3600).contains(seconds)).ok_or(
            ApiError::Parameter {
                field: "seconds",
                reason: format!("{text:?} is not a number from 1 to 3600"),
            },
        )?,
    };
    let request =
        FlowListRequest { start_time_gte: -seconds, page_size: MAX_MAP_FLOWS, ..FlowListRequest::default() };
    let result = query(&state, async |mut client| Ok(client.list(request).await?.into_inner())).await?;
    let total = result.meta.map_or(0, |meta| meta.total_results);
    let omitted = (total - i64::try_from(result.flows.len()).unwrap_or(i64::MAX)).max(0);
    let _place = state.take_computation().await?;
    let records: Vec<TrafficRecord> =
        result.flows.into_iter().filter_map(|result| result.flow).map(read_flow).collect();
    let traffic = TrafficMap::new(&level, &records);
    let layout = {
        let mut layouts = state.layouts.lock().unwrap_or_else(PoisonError::into_inner);
        let layout = traffic.arrange(layouts.get(&namespace));
        if layouts.len() >= MAX_LAYOUTS && !layouts.contains_key(&namespace) {
            layouts.pop_first();
        }
        layouts.insert(namespace, layout.clone());
        layout
    };
    let body = json!({
        "asOf": Timestamp::now(),
        "data": { "layout": layout, "lines": traffic.lines(), "folded": traffic.folded(), "omitted": omitted },
    });
    Ok(render_json(StatusCode::OK, &body))
}

fn read_flow(flow: Flow) -> TrafficRecord {
    let key = flow.key.unwrap_or_default();
    let denied = key.action() == Action::Deny;
    TrafficRecord {
        from: (key.source_namespace, key.source_name),
        to: (key.dest_namespace, key.dest_name),
        denied,
        connections: flow.num_connections_started.max(0).cast_unsigned(),
        bytes: flow.bytes_in.saturating_add(flow.bytes_out).max(0).cast_unsigned(),
    }
}
