//! Why traffic between two endpoints is allowed or denied.

use super::{ApiResult, ClusterResponse, SharedState, parameter};
use crate::error::{ApiError, render_json};
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use tortie_ctl::policy::{ExplainQuestion, ExplainedTraffic, explain_traffic, workload_name};

/// Maximum number of suggested names.
const MAX_SUGGESTIONS: usize = 50;

pub async fn show(State(state): SharedState, uri: Uri) -> ApiResult {
    let required = |field: &'static str| match parameter(&uri, field) {
        value if value.is_empty() => Err(ApiError::Parameter { field, reason: "is required".to_owned() }),
        value => Ok(value),
    };
    let (from, to) = (required("from")?, required("to")?);
    let port = required("port")?.parse::<ExplainedTraffic>();
    let port = port.map_err(|error| ApiError::Parameter { field: "port", reason: error.to_string() })?;
    let _place = state.take_computation().await?;
    let (snapshot, freshness) = state.snapshots.get().await?;
    let question = ExplainQuestion::new(&from, &to, port);
    let data = explain_traffic(state.snapshots.store(), &snapshot.cluster, question).await?;
    Ok(render_json(StatusCode::OK, &ClusterResponse { freshness, data }))
}

/// Lists names of endpoints and nodes that contain a text.
pub async fn list_endpoints(State(state): SharedState, uri: Uri) -> ApiResult {
    let text = parameter(&uri, "q");
    let answer = state.render_cluster(|snapshot| {
        let cluster = &snapshot.cluster;
        let workloads = cluster.workloads().map(workload_name);
        let hosts = cluster.host_endpoints().map(|endpoint| format!("hep:{}", endpoint.metadata.name));
        let nodes = cluster.nodes().map(|node| format!("node:{}", node.metadata.name));
        let names = workloads.chain(hosts).chain(nodes).filter(|name| name.contains(&text));
        names.take(MAX_SUGGESTIONS).collect::<Vec<String>>()
    });
    answer.await
}
