//! A node that sends its flows to a collector over a connection that breaks.

use super::TestCollector;
use std::path::Path;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::{Server, TcpIncoming};
use tonic::transport::{Certificate, Identity, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};
use tortie_flows::proto::flow_collector_server::{FlowCollector as CollectorService, FlowCollectorServer};
use tortie_flows::proto::{Flow, FlowKey, FlowReceipt, FlowUpdate};
use tortie_flows::ring::{FlowQuery, RingOptions};
use tortie_flows::{CollectorTarget, FlowCollector, FlowPusher, now_seconds};
use tortie_http::liveness::Liveness;
use tortie_testkit::{CertificateMaker, eventually};

/// Forwards connections to the collector while it is open.
struct BreakableLink {
    port: u16,
    open: watch::Sender<bool>,
}

impl BreakableLink {
    fn start(collector: &TestCollector) -> BreakableLink {
        let (open, is_open) = watch::channel(true);
        let to = collector.address;
        let listener = collector.runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        collector.runtime.spawn(async move {
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                let mut is_open = is_open.clone();
                if !*is_open.borrow_and_update() {
                    continue;
                }
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(to).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = is_open.wait_for(|open| !open) => {}
                    }
                });
            }
        });
        BreakableLink { port, open }
    }
}

fn record(node: &FlowCollector, name: &str, packets: i64) {
    let key = FlowKey { source_name: name.to_owned(), ..FlowKey::default() };
    let now = now_seconds();
    let flow =
        Flow { key: Some(key), start_time: now, end_time: now, packets_in: packets, ..Flow::default() };
    node.record(&flow).unwrap();
}

/// Returns the packets of each source, in the order of names.
fn packets(collector: &FlowCollector) -> Vec<(String, i64)> {
    let flows = collector.list(&FlowQuery::default()).unwrap().flows.into_iter().filter_map(|flow| flow.flow);
    let mut found: Vec<(String, i64)> =
        flows.map(|flow| (flow.key.unwrap().source_name, flow.packets_in)).collect();
    found.sort();
    found
}

#[test]
fn flows_arrive_once_over_a_broken_link() {
    let collector = TestCollector::start();
    let link = BreakableLink::start(&collector);
    let target = CollectorTarget {
        server: format!("127.0.0.1:{}", link.port),
        server_name: Some("localhost".to_owned()),
        certificate: collector.dir.path().join("client.crt"),
        key: collector.dir.path().join("client.key"),
        authority: collector.dir.path().join("ca.crt"),
    };
    let node = Arc::new(FlowCollector::new(RingOptions { window: 1, max_bytes: 8 << 20 }));
    let clock = node.clone();
    collector.runtime.spawn(async move { clock.keep_time(Liveness::default().part("clock")).await });
    let pusher = FlowPusher::new(node.clone(), target);
    let state = pusher.state();
    let running = collector.runtime.spawn(pusher.run());
    let expect = |what: &str, expected: &[(&str, i64)]| {
        let expected: Vec<(String, i64)> =
            expected.iter().map(|(name, packets)| ((*name).to_owned(), *packets)).collect();
        eventually(what, || packets(&collector.collector) == expected);
    };

    record(&node, "a", 5);
    record(&node, "b", 7);
    expect("the first flows arrive", &[("a", 5), ("b", 7)]);
    eventually("they are confirmed", || state.lock().unwrap().receipts == 2);

    link.open.send_replace(false);
    eventually("the node notices", || state.lock().unwrap().error.is_some());
    record(&node, "a", 11);
    record(&node, "c", 13);
    link.open.send_replace(true);
    expect("the missed flows arrive, the others count once", &[("a", 16), ("b", 7), ("c", 13)]);
    // The headers of the response may arrive after the flows.
    eventually("the node is connected again", || state.lock().unwrap().connected);
    let resent = collector.collector.metrics().resent.get();
    assert!(resent >= 2, "the flows of the last minutes were sent again: {resent}");
    let state = state.lock().unwrap().clone();
    assert_eq!((state.sent, state.lost_buckets, state.connected), (4, 0, true));
    assert!(state.sent_again >= 2 && state.error.is_none(), "{state:?}");
    running.abort();
}

/// A collector that sends the headers of its response with the first receipt, as servers written in Go do.
struct LateCollector;

#[tonic::async_trait]
impl CollectorService for LateCollector {
    type ConnectStream = ReceiverStream<Result<FlowReceipt, Status>>;

    async fn connect(
        &self,
        request: Request<Streaming<FlowUpdate>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let mut updates = request.into_inner();
        let mut update = updates.message().await?;
        let (sender, receipts) = mpsc::channel(1);
        tokio::spawn(async move {
            while update.is_some() && sender.send(Ok(FlowReceipt {})).await.is_ok() {
                update = updates.message().await.unwrap_or_default();
            }
        });
        Ok(Response::new(ReceiverStream::new(receipts)))
    }
}

#[test]
fn flows_are_sent_before_the_response_begins() {
    let dir = tempfile::tempdir().unwrap();
    let maker = CertificateMaker::new(dir.path());
    let (server, client) = (maker.issue("server", &["localhost"]), maker.issue("client", &[]));
    let read = |path: &Path| std::fs::read(path).unwrap();
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(read(&server.certificate), read(&server.key)))
        .client_ca_root(Certificate::from_pem(read(&maker.authority_file())));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let target = CollectorTarget {
        server: listener.local_addr().unwrap().to_string(),
        server_name: Some("localhost".to_owned()),
        certificate: client.certificate,
        key: client.key,
        authority: maker.authority_file(),
    };
    let serving =
        Server::builder().tls_config(tls).unwrap().add_service(FlowCollectorServer::new(LateCollector));
    runtime.spawn(serving.serve_with_incoming(TcpIncoming::from(listener)));
    let node = Arc::new(FlowCollector::new(RingOptions { window: 1, max_bytes: 8 << 20 }));
    let clock = node.clone();
    runtime.spawn(async move { clock.keep_time(Liveness::default().part("clock")).await });
    let pusher = FlowPusher::new(node.clone(), target);
    let state = pusher.state();
    runtime.spawn(pusher.run());
    record(&node, "a", 5);
    eventually("the flow is confirmed", || {
        let state = state.lock().unwrap();
        state.receipts == 1 && state.connected && state.error.is_none()
    });
}
