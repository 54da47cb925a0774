//! Clients of kube-apiserver. Each has its own connection and sends one request at a time.

use super::world::ApiSetup;
use crate::measure::Latencies;
use crate::namespace::BenchResult;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Response};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value as Json;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

#[derive(Clone, Debug)]
pub struct HttpRequest {
    method: Method,
    path: String,
    form: &'static str,
    body: String,
}

impl HttpRequest {
    pub fn get(path: String) -> HttpRequest {
        HttpRequest { method: Method::GET, path, form: "application/json", body: String::new() }
    }

    pub fn post(path: String, object: &Json) -> HttpRequest {
        HttpRequest { method: Method::POST, path, form: "application/json", body: object.to_string() }
    }

    pub fn merge(path: String, patch: &Json) -> HttpRequest {
        HttpRequest {
            method: Method::PATCH,
            path,
            form: "application/merge-patch+json",
            body: patch.to_string(),
        }
    }
}

#[derive(Clone)]
pub struct KubernetesClient(kube::Client);

impl KubernetesClient {
    pub async fn connect(world: &ApiSetup) -> BenchResult<KubernetesClient> {
        let file = Kubeconfig::read_from(world.server.kubeconfig())?;
        let mut config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        // A watch may be silent for any length of time.
        config.read_timeout = None;
        Ok(KubernetesClient(kube::Client::try_from(config)?))
    }

    /// Sends a request and returns the response once its headers have arrived. A status other than 2xx is an error.
    pub async fn begin(&self, request: &HttpRequest) -> BenchResult<Response<Body>> {
        let built = http::Request::builder()
            .method(&request.method)
            .uri(&request.path)
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, request.form)
            .body(Body::from(request.body.clone().into_bytes()))?;
        let response = self.0.send(built).await?;
        match response.status().is_success() {
            true => Ok(response),
            false => {
                let said = response.into_body().collect_bytes().await?;
                Err(format!("{} {}: {}", request.method, request.path, String::from_utf8_lossy(&said)).into())
            }
        }
    }

    pub async fn send(&self, request: &HttpRequest) -> BenchResult<()> {
        self.begin(request).await?.into_body().collect_bytes().await?;
        Ok(())
    }
}

/// Sends `count` requests from `clients` concurrent clients and returns the total time and each latency. Connections
/// are opened before the measurement starts.
pub async fn load(
    world: &ApiSetup,
    clients: usize,
    count: usize,
    request: impl Fn(usize) -> HttpRequest,
) -> BenchResult<(Duration, Latencies)> {
    let mut ready = Vec::new();
    for number in 0..clients {
        let client = KubernetesClient::connect(world).await?;
        client.send(&HttpRequest::get("/version".to_owned())).await?;
        let requests: Vec<HttpRequest> = (number..count).step_by(clients).map(&request).collect();
        ready.push((client, requests));
    }
    let began = Instant::now();
    let mut tasks: JoinSet<BenchResult<Latencies>> = JoinSet::new();
    for (client, requests) in ready {
        tasks.spawn(async move {
            let mut latencies = Latencies::default();
            for request in requests {
                let began = Instant::now();
                client.send(&request).await?;
                latencies.0.push(began.elapsed());
            }
            Ok(latencies)
        });
    }
    let mut latencies = Latencies::default();
    while let Some(ended) = tasks.join_next().await {
        latencies.extend(ended??);
    }
    Ok((began.elapsed(), latencies))
}
