//! Watches one collection from many connections and records when each watch receives a change.

use super::client::{HttpRequest, KubernetesClient};
use super::world::ApiSetup;
use crate::namespace::BenchResult;
use http_body::Body as _;
use kube::client::Body;
use std::future::poll_fn;
use std::pin::Pin;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(120);
/// Connections opened concurrently.
const CONCURRENT_CONNECTS: usize = 50;

pub struct ApiWatchers {
    count: usize,
    events: mpsc::UnboundedReceiver<Instant>,
    _tasks: JoinSet<()>,
}

impl ApiWatchers {
    /// Opens the watches and returns when all are established.
    pub async fn start(world: &ApiSetup, path: &str, count: usize) -> BenchResult<ApiWatchers> {
        let list = KubernetesClient::connect(world)
            .await?
            .begin(&HttpRequest::get(format!("{path}?limit=1")))
            .await?;
        let list: serde_json::Value = serde_json::from_slice(&list.into_body().collect_bytes().await?)?;
        let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let request = HttpRequest::get(format!("{path}?watch=1&resourceVersion={version}"));
        let (sender, events) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        let mut opening: JoinSet<BenchResult<(KubernetesClient, Body)>> = JoinSet::new();
        for number in 0..count {
            if number >= CONCURRENT_CONNECTS
                && let Some(opened) = opening.join_next().await
            {
                tasks.spawn(listen(opened??, sender.clone()));
            }
            let (client, request) = (KubernetesClient::connect(world).await?, request.clone());
            opening.spawn(async move {
                let body = client.begin(&request).await?.into_body();
                Ok((client, body))
            });
        }
        while let Some(opened) = opening.join_next().await {
            tasks.spawn(listen(opened??, sender.clone()));
        }
        Ok(ApiWatchers { count, events, _tasks: tasks })
    }

    /// Waits until every watcher has received one change and returns the arrival times.
    pub async fn arrivals(&mut self) -> BenchResult<Vec<Instant>> {
        let mut arrivals = Vec::new();
        let all = async {
            while arrivals.len() < self.count {
                arrivals.push(self.events.recv().await.ok_or("all watches have ended")?);
            }
            BenchResult::<()>::Ok(())
        };
        tokio::time::timeout(ARRIVAL_TIMEOUT, all)
            .await
            .map_err(|_| "a watcher does not hear of a change")??;
        Ok(arrivals)
    }
}

/// Sends the time of every line received.
async fn listen((_client, mut body): (KubernetesClient, Body), sender: mpsc::UnboundedSender<Instant>) {
    while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let lines = frame.data_ref().map_or(0, |data| data.iter().filter(|byte| **byte == b'\n').count());
        for _ in 0..lines {
            if sender.send(Instant::now()).is_err() {
                return;
            }
        }
    }
}
