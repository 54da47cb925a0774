//! A running server, the policy-sync server that it follows, and clients.

use hyper_util::rt::TokioIo;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Response, Status};
use tortie_l7::proto::v3::authorization_client::AuthorizationClient;
use tortie_l7::{
    AccessLogLevel, CheckSettings, L7Metrics, L7Server, PolicyState, ServeError, ServeOptions, TestRequest,
    UnsyncedVerdict,
};
use tortie_plan::{NodePlan, PolicyDirection, WorkloadId};
use tortie_policysync::proto::policy_sync_server::{PolicySync, PolicySyncServer};
use tortie_policysync::proto::to_dataplane::Payload;
use tortie_policysync::proto::{self, ToDataplane};
use tortie_policysync::{
    encode_endpoint, encode_namespace, encode_policy, encode_profile, encode_service_account, encode_set,
};
use tortie_testkit::eventually_async;

/// Number of messages that a stream of the test may hold back.
const STREAM_QUEUE_LENGTH: usize = 4096;

/// Returns the only workload of the generated plans.
pub fn workload() -> WorkloadId {
    WorkloadId { orchestrator: "k8s".into(), workload: "shop/web".into(), endpoint: "eth0".into() }
}

/// Returns the messages that describe a plan, in the order of the protocol.
pub fn encode_plan(plan: &NodePlan) -> Vec<Payload> {
    let mut payloads: Vec<Payload> = plan.sets.iter().flat_map(|(id, set)| encode_set(id, set)).collect();
    payloads.extend(plan.policies.iter().map(|(id, policy)| encode_policy(id, Some(policy))));
    payloads.extend(plan.profiles.iter().map(|(name, profile)| encode_profile(name, Some(profile))));
    let endpoints = plan.workload_policies.iter();
    payloads.extend(endpoints.map(|(id, endpoint)| encode_endpoint(id, Some(endpoint), None)));
    let accounts = plan.service_accounts.iter();
    payloads.extend(accounts.map(|(id, labels)| encode_service_account(id, Some(labels))));
    payloads.extend(plan.namespaces.iter().map(|(name, labels)| encode_namespace(name, Some(labels))));
    payloads
}

type MessageSender = mpsc::Sender<Result<ToDataplane, Status>>;

/// The policy-sync server of a node. It sends a plan to every client, and further messages on request.
#[derive(Clone, Default)]
pub struct TestNode {
    state: Arc<Mutex<TestNodeState>>,
}

#[derive(Default)]
struct TestNodeState {
    burst: Vec<Payload>,
    streams: Vec<MessageSender>,
}

pub fn in_sync() -> Payload {
    Payload::InSync(proto::InSync {})
}

fn message(payload: Payload) -> Result<ToDataplane, Status> {
    Ok(ToDataplane { sequence_number: 0, payload: Some(payload) })
}

impl TestNode {
    /// Sets the messages that a new client receives.
    pub fn set_burst(&self, burst: Vec<Payload>) {
        self.state.lock().unwrap().burst = burst;
    }

    /// Sets a plan, followed by InSync.
    pub fn set_plan(&self, plan: &NodePlan) {
        self.set_burst(encode_plan(plan).into_iter().chain([in_sync()]).collect());
    }

    /// Sends a message to all clients.
    pub fn send(&self, payload: &Payload) {
        for stream in &self.state.lock().unwrap().streams {
            stream.try_send(message(payload.clone())).unwrap();
        }
    }

    /// Ends all streams.
    pub fn disconnect(&self) {
        self.state.lock().unwrap().streams.clear();
    }
}

#[tonic::async_trait]
impl PolicySync for TestNode {
    type SyncStream = Pin<Box<dyn Stream<Item = Result<ToDataplane, Status>> + Send>>;

    async fn sync(&self, _: Request<proto::SyncRequest>) -> Result<Response<Self::SyncStream>, Status> {
        let (sender, receiver) = mpsc::channel(STREAM_QUEUE_LENGTH);
        let mut state = self.state.lock().unwrap();
        for payload in &state.burst {
            sender.try_send(message(payload.clone())).unwrap();
        }
        state.streams.push(sender);
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn report(
        &self,
        _: Request<proto::DataplaneStats>,
    ) -> Result<Response<proto::ReportResult>, Status> {
        Ok(Response::new(proto::ReportResult { successful: true }))
    }
}

/// A server with a node. Both end, and their files are removed, when it is dropped.
pub struct ServerFixture {
    pub node: TestNode,
    pub state: Arc<PolicyState>,
    pub metrics: Arc<L7Metrics>,
    pub socket: PathBuf,
    node_socket: PathBuf,
    serving_node: Option<JoinHandle<()>>,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<Result<(), ServeError>>,
    _dir: TempDir,
}

pub fn options(dir: &Path) -> ServeOptions {
    ServeOptions {
        listen: dir.join("l7.sock"),
        listen_mode: 0o777,
        dial: dir.join("node.sock"),
        check: CheckSettings {
            direction: PolicyDirection::Ingress,
            not_synced: UnsyncedVerdict::Deny,
            http_rules_on_connections: false,
            denial_header: String::new(),
        },
        stale_after: None,
        access_log: AccessLogLevel::Off,
        max_connections: 64,
        max_request_bytes: 64 << 10,
        max_policy_bytes: 64 << 20,
        metrics: None,
        terminate: None,
    }
}

impl ServerFixture {
    pub async fn start(change: impl FnOnce(&mut ServeOptions)) -> ServerFixture {
        let dir = tempfile::tempdir().unwrap();
        let mut options = options(dir.path());
        change(&mut options);
        let (socket, node_socket) = (options.listen.clone(), options.dial.clone());
        let server = L7Server::bind(options).await.unwrap();
        let (state, metrics) = (server.state().clone(), server.metrics().clone());
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(server.serve(async move { drop(stopped.await) }));
        let mut fixture = ServerFixture {
            node: TestNode::default(),
            state,
            metrics,
            socket,
            node_socket,
            serving_node: None,
            stop: Some(stop),
            serving,
            _dir: dir,
        };
        fixture.start_node();
        fixture
    }

    /// Starts a server with a plan and waits until it is in sync.
    pub async fn with_plan(plan: &NodePlan) -> ServerFixture {
        let fixture = ServerFixture::start(|_| {}).await;
        fixture.node.set_plan(plan);
        // The first connection may have been opened before the plan was set.
        fixture.node.disconnect();
        fixture.wait_for_sync().await;
        fixture
    }

    pub fn start_node(&mut self) {
        let _ = std::fs::remove_file(&self.node_socket);
        let listener = UnixListener::bind(&self.node_socket).unwrap();
        let service = PolicySyncServer::new(self.node.clone());
        let server = tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(UnixListenerStream::new(listener));
        self.serving_node = Some(tokio::spawn(async move { server.await.unwrap() }));
    }

    pub async fn stop_node(&mut self) {
        self.node.disconnect();
        if let Some(serving) = self.serving_node.take() {
            serving.abort();
            let _ = serving.await;
        }
        std::fs::remove_file(&self.node_socket).unwrap();
    }

    pub async fn wait_for_sync(&self) {
        let in_sync = async || self.state.is_in_sync() && self.state.is_connected();
        eventually_async("the server is in sync", in_sync).await;
    }

    pub async fn client(&self) -> AuthorizationClient<Channel> {
        AuthorizationClient::new(connect(&self.socket).await)
    }

    /// Sends one request and returns the code.
    pub async fn check(&self, request: &TestRequest) -> i32 {
        let response = self.client().await.check(request.encode()).await.unwrap();
        response.into_inner().status.unwrap().code
    }

    /// Stops the server and returns its result.
    pub async fn stop(mut self) -> Result<(), ServeError> {
        drop(self.stop.take());
        (&mut self.serving).await.unwrap()
    }
}

impl Drop for ServerFixture {
    fn drop(&mut self) {
        self.serving.abort();
        if let Some(serving) = &self.serving_node {
            serving.abort();
        }
    }
}

pub async fn connect(socket: &Path) -> Channel {
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await.unwrap()
}
