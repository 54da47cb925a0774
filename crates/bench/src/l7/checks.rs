//! Checks per second and processor core without Envoy, over gRPC on a Unix socket, and the memory of the server.

use super::policy::{ALLOWED_PATH, CLIENT_ADDRESS, PolicyShape};
use super::servers::PolicyServer;
use crate::measure::{Latencies, growth, table, time};
use crate::namespace::{BenchResult, check};
use hyper_util::rt::TokioIo;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};
use tortie_l7::TestRequest;
use tortie_l7::proto::v3::authorization_client::AuthorizationClient;

/// Concurrent checks when the rate is measured.
const CONCURRENT_CHECKS: usize = 64;
const CHECKS_PER_TASK: usize = 1_000;
/// Checks one after the other, for the latency.
const SINGLE_CHECKS: usize = 10_000;
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);

pub fn measure() -> BenchResult<()> {
    let one = PolicyShape::rules(1);
    let cases = [
        ("1 rule, 100 endpoints", one),
        ("1 rule, 10,000 endpoints", PolicyShape { endpoints: 10_000, ..one }),
        ("1 rule, 100,000 endpoints", PolicyShape { endpoints: 100_000, ..one }),
        ("1 rule, 1,000 of other workloads", PolicyShape { other_policies: 1_000, ..one }),
        ("1 rule, 10,000 of other workloads", PolicyShape { other_policies: 10_000, ..one }),
        ("100 rules, the last one matches", PolicyShape::rules(100)),
        ("1,000 rules, the last one matches", PolicyShape::rules(1_000)),
        ("1,000 policies, the last one matches", PolicyShape { policies: 1_000, ..one }),
    ];
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut rows = Vec::new();
    let mut first_cost = 0.0;
    for (name, shape) in cases {
        check()?;
        let server = PolicyServer::start(shape)?;
        let memory = server.process.memory()?;
        let cost = runtime.block_on(check_cost(&server))?;
        let mut latencies = runtime.block_on(single_latencies(&server.socket))?;
        if first_cost == 0.0 {
            first_cost = cost;
        }
        let quantiles = [0.5, 0.99].map(|quantile| latencies.quantile(quantile));
        let [median, high] = quantiles.map(|latency| time(latency.as_nanos() as f64));
        let resident = format!("{:.1} MiB", memory.resident as f64 / 1024.0);
        let rate = format!("{:.0}/s", 1e9 / cost);
        rows.push(vec![name.to_owned(), rate, time(cost), growth(cost, first_cost), median, high, resident]);
    }
    table(
        "HTTP policy: checks without Envoy, over gRPC on a Unix socket",
        &["", "checks per core", "processor time", "growth", "p50", "p99", "resident"],
        &rows,
    );
    Ok(())
}

/// Returns the processor time of one check in nanoseconds, with many checks in flight.
async fn check_cost(server: &PolicyServer) -> BenchResult<f64> {
    send_many(&server.socket).await?;
    let before = server.process.processor_time()?;
    send_many(&server.socket).await?;
    let spent = server.process.processor_time()?.saturating_sub(before);
    Ok(spent.as_nanos() as f64 / (CONCURRENT_CHECKS * CHECKS_PER_TASK) as f64)
}

async fn send_many(socket: &Path) -> BenchResult<()> {
    let client = AuthorizationClient::new(connect(socket.to_owned()).await?);
    let mut tasks: JoinSet<BenchResult<()>> = JoinSet::new();
    for _ in 0..CONCURRENT_CHECKS {
        let mut client = client.clone();
        tasks.spawn(async move {
            for _ in 0..CHECKS_PER_TASK {
                expect_allowed(&mut client).await?;
            }
            Ok(())
        });
    }
    while let Some(finished) = tasks.join_next().await {
        finished??;
    }
    Ok(())
}

async fn single_latencies(socket: &Path) -> BenchResult<Latencies> {
    let mut client = AuthorizationClient::new(connect(socket.to_owned()).await?);
    let mut latencies = Latencies::default();
    for _ in 0..SINGLE_CHECKS {
        let sent = Instant::now();
        expect_allowed(&mut client).await?;
        latencies.0.push(sent.elapsed());
    }
    Ok(latencies)
}

async fn expect_allowed(client: &mut AuthorizationClient<Channel>) -> BenchResult<()> {
    let request = TestRequest {
        principal: String::new(),
        source: (CLIENT_ADDRESS, 40_000).into(),
        destination: (CLIENT_ADDRESS, 80).into(),
        http: Some(("GET".to_owned(), ALLOWED_PATH.to_owned())),
    };
    let response = tokio::time::timeout(CHECK_TIMEOUT, client.check(request.encode())).await??;
    match response.into_inner().status.unwrap_or_default().code {
        0 => Ok(()),
        code => Err(format!("a request that a rule allows has the status {code}").into()),
    }
}

async fn connect(socket: PathBuf) -> BenchResult<Channel> {
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Ok(Endpoint::from_static("http://localhost").connect_with_connector(connector).await?)
}
