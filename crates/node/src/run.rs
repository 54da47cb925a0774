//! Starts the node daemon from its command-line options, in the order that the dependencies require, and runs it
//! until it has to stop.

use crate::attachment_reclaimer::{self, AttachmentReclaimer};
use crate::cni::{self, CniService};
use crate::decommission::{self, DecommissionError, LivePodHandling};
use crate::engine::{EngineCore, EngineHandle, NodeEngine};
use crate::flow_records::{self, FlowRecordTask};
use crate::install::{CniInstaller, InstallError};
use crate::journal::AttachmentJournal;
use crate::lock::{DirLock, LockError, NetnsLock};
use crate::logs::{LogControl, LogSettings};
use crate::node_status::NodeStatusReporter;
use crate::options::NodeArgs;
use crate::pending_endpoints::PendingEndpoints;
use crate::policy_sync::{self, SyncServer};
use crate::recording::{self, NodeRecording};
use crate::removal_detector::RemovalDetector;
use crate::snapshot_guard::guard_snapshot;
use crate::socket::DaemonSocket;
use crate::startup::{self, EnvironmentVariables, FelixSettings, StartupError};
use crate::state::NodeState;
use crate::tasks::{ObserverThread, TaskEnded, TaskSet, watch_speaker};
use crate::{
    bgp, endpoint_correction, failpoint, feed, files, http, kube_condition, network_warnings, public_keys,
    queries, status, tunnel_addresses,
};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tortie_compute::{BgpEnvironment, ParameterEnvironment, PlanCompute};
use tortie_dataplane::{Netns, ReportReceiver, WireguardKeys};
use tortie_ipam::{Allocator, BlockOwner};
use tortie_model::{KeyRange, Kind};
use tortie_store::config::{KubernetesTarget, settings_file};
use tortie_store::{ResourceClient, StoreClient, StoreConfig};

const REGISTER_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of different errors that are logged while the node waits for the datastore.
const MAX_REPORTED_CAUSES: usize = 32;
/// Delay before the node applies log settings again that it could not apply.
const LOG_SETTINGS_RETRY_DELAY: Duration = Duration::from_secs(60);
/// Interval between garbage collections of attachments whose netns vanished without a CNI DEL.
const ATTACHMENT_GC_INTERVAL: Duration = Duration::from_secs(10);
/// Interval between checks of the host's addresses, unless AUTODETECT_POLL_INTERVAL sets another.
const ADDRESS_POLL_INTERVAL: Duration = Duration::from_secs(60);
/// Number of rounds between two reads of this node's objects from the Kubernetes API, which take several requests each.
const KUBERNETES_POLL_ROUNDS: u64 = 60;

#[derive(Debug, thiserror::Error)]
pub enum NodeRunError {
    #[error(transparent)]
    Startup(#[from] StartupError),
    #[error(transparent)]
    Store(#[from] tortie_store::StoreError),
    #[error(transparent)]
    Dataplane(#[from] tortie_dataplane::DataplaneError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Ended(#[from] TaskEnded),
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    #[error(transparent)]
    Hub(#[from] feed::HubSettingsError),
    #[error("--install-cni: {0}")]
    Install(#[from] InstallError),
    #[error("this host was not cleaned completely: {0}")]
    Decommission(#[from] DecommissionError),
}

/// Adds the path of a file, or another description, to an I/O error.
fn describe_io(what: impl Display) -> impl FnOnce(io::Error) -> NodeRunError {
    move |source| NodeRunError::Io { what: what.to_string(), source }
}

/// Runs until SIGTERM or SIGINT, or until one of its tasks ends. Workloads keep their network afterwards, unless
/// Tortie has been removed from the cluster ([`RemovalDetector`]).
///
/// `logs` applies the log settings of the node to the process.
pub async fn run(args: NodeArgs, version: &str, logs: Arc<dyn LogControl>) -> Result<(), NodeRunError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(describe_io("signals"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(describe_io("signals"))?;
    // Read the settings first: without a datastore nothing must be created on the host.
    let settings = StartSettings::read(&args)?;
    free_host_traffic().await;
    let _locks = (lock_directories(&args)?, NetnsLock::acquire().await?);
    raise_descriptor_limit();
    let mut tasks = TaskSet::default();
    // Bind the CNI socket early: before the node is ready, the plugins get the response to try again later.
    let (service, served) = watch::channel(None);
    let socket = DaemonSocket::bind(&args.socket()).map_err(describe_io(args.socket().display()))?;
    tasks.spawn("the CNI server", cni::serve(socket, served));
    let removal = RemovalDetector::new(&settings.variables, settings.kubernetes.as_ref());
    if let Some(removal) = &removal {
        tasks.spawn("the watch of the node's service account", removal.watch_account());
    }
    let node = async {
        let _observers = start(&settings, version, logs, service, &mut tasks).await?;
        Err(NodeRunError::from(tasks.wait_until_ended().await))
    };
    let outcome = tokio::select! {
        outcome = node => outcome,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    if outcome.is_ok() {
        if let Some((target, node)) = settings.kubernetes_node() {
            kube_condition::set_down(target, node).await;
        }
        if let Some(removal) = &removal
            && removal.is_removed().await
        {
            tasks.stop().await;
            tracing::info!("Tortie was removed from the cluster; cleaning this host");
            decommission::clean_host(&args, LivePodHandling::CutOff).await?;
            return Ok(());
        }
    }
    tracing::info!("stopping; workloads keep their network");
    outcome
}

/// The settings of the node from its options, the environment and files. They do not change while the node runs.
struct StartSettings<'a> {
    args: &'a NodeArgs,
    variables: EnvironmentVariables,
    /// The lines of felix.cfg.
    file: Vec<(String, String)>,
    name: String,
    datastore: StoreConfig,
    /// Whether Kubernetes is the datastore.
    on_kubernetes: bool,
    /// Connection to Kubernetes, if there is one.
    kubernetes: Option<KubernetesTarget>,
    /// Name of this node's Node object in Kubernetes, whose condition the daemon sets.
    kubernetes_name: Option<String>,
    bgp: bgp::BackendChoice,
}

impl StartSettings<'_> {
    fn read(args: &NodeArgs) -> Result<StartSettings<'_>, NodeRunError> {
        let variables = EnvironmentVariables::of_process();
        let path = args.settings_file();
        let file = settings_file::read(&path).map_err(describe_io(path.display()))?;
        let felix = FelixSettings::new(&variables, file.clone());
        let datastore = felix.datastore(StoreConfig::load(&args.config)?);
        let name =
            startup::read_node_name(&variables, felix.hostname(), &args.calico_dir().join("nodename"))?;
        let on_kubernetes = datastore.capabilities()?.includes_kubernetes;
        let backend = variables.get("CALICO_NETWORKING_BACKEND");
        let kubernetes_name = match variables.get("CALICO_K8S_NODE_REF") {
            _ if backend == "none" => None,
            "" => on_kubernetes.then(|| name.clone()),
            reference => Some(reference.to_owned()),
        };
        Ok(StartSettings {
            bgp: bgp::BackendChoice::new(backend, args.bird),
            kubernetes: datastore.orchestrator(),
            args,
            variables,
            file,
            name,
            datastore,
            on_kubernetes,
            kubernetes_name,
        })
    }

    /// Returns the Node object of this node in Kubernetes.
    fn kubernetes_node(&self) -> Option<(&KubernetesTarget, &str)> {
        self.kubernetes.as_ref().zip(self.kubernetes_name.as_deref())
    }

    fn bgp_environment(&self) -> Option<BgpEnvironment> {
        self.bgp.speaks().then(|| BgpEnvironment {
            router_id: self.variables.get("CALICO_ROUTER_ID").to_owned(),
            by_bird: self.bgp == bgp::BackendChoice::Bird,
        })
    }

    fn create_compute(&self) -> PlanCompute {
        let environment = ParameterEnvironment::new(self.variables.0.clone(), self.file.clone());
        let mut compute = PlanCompute::new(&self.name, environment);
        match self.bgp_environment() {
            Some(bgp) => compute.speak_bgp(bgp),
            None => compute.leave_cluster_routes(),
        }
        compute
    }

    fn create_installer(&self) -> Result<Option<CniInstaller>, NodeRunError> {
        if !self.args.install_cni {
            return Ok(None);
        }
        let StartSettings { args, variables, name, on_kubernetes, kubernetes, .. } = self;
        let installer =
            CniInstaller::new(variables, name, &args.state_dir, *on_kubernetes, kubernetes.clone())?;
        Ok(Some(installer))
    }
}

/// Creates and locks the directories of this daemon.
fn lock_directories(args: &NodeArgs) -> Result<Vec<DirLock>, NodeRunError> {
    for dir in [&args.state_dir, &args.run_dir, args.calico_dir()] {
        std::fs::create_dir_all(dir).map_err(describe_io(dir.display()))?;
    }
    Ok(args.own_dirs().into_iter().map(DirLock::acquire).collect::<Result<_, _>>()?)
}

/// Raises the limit of open files: a node with many workloads and sessions needs more than the default soft limit.
fn raise_descriptor_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

/// Removes the DNAT of the host's own traffic to floating addresses. This must precede the first request to the
/// datastore: a pod may have claimed the address of the datastore as a floating IP.
async fn free_host_traffic() {
    let freed = match Netns::current() {
        Ok(host) => tortie_dataplane::free_host_traffic(&host).await,
        Err(error) => Err(error),
    };
    match freed {
        Ok(0) => {}
        Ok(addresses) => {
            tracing::warn!(addresses, "removed the DNAT of the host's own traffic to floating addresses");
        }
        Err(error) => {
            tracing::error!(%error, "cannot remove the DNAT of the host's own traffic to floating addresses");
        }
    }
}

/// Starts all tasks and returns when the node is ready. The returned thread serves probes and queries until it is
/// dropped.
async fn start(
    settings: &StartSettings<'_>,
    version: &str,
    logs: Arc<dyn LogControl>,
    served: watch::Sender<Option<Arc<CniService>>>,
    tasks: &mut TaskSet,
) -> Result<ObserverThread, NodeRunError> {
    let installer = settings.create_installer()?;
    let host = failpoint::with_faults(Netns::current()?);
    let state = Arc::new(NodeState::new(&settings.name));
    let compute = settings.create_compute();
    // Start these early, so that the node responds to probes while it waits for the datastore.
    state.set_parameters(compute.parameters());
    let observers = start_observers(state.clone(), settings.args.query_socket(), tasks)?;
    tracing::info!(node = settings.name, "starting");
    let node = StartedNode::connect(settings, host, state, version).await?;
    let pending = PendingEndpoints::default();
    let feed = node.follow_datastore(&compute, &pending)?;
    let (engine, reports) = node.start_engine(compute, feed, tasks)?;
    node.spawn_status_tasks(reports, logs, tasks);
    let service = node.create_service(engine, pending, tasks);
    node.wait_for_sync(tasks).await?;
    node.serve_cni(service, served, tasks).await;
    node.spawn_cluster_tasks(installer, tasks);
    // A closed standard output must not stop the daemon.
    let _ = writeln!(io::stdout(), "ready: node {} on {}", settings.name, settings.args.socket().display());
    let mtu = node.state.mtu().map(|choice| choice.mtu);
    tracing::info!(node = settings.name, mtu, "ready");
    Ok(observers)
}

/// A node that is registered in the datastore and whose tasks are being started.
struct StartedNode<'a> {
    settings: &'a StartSettings<'a>,
    host: Netns,
    state: Arc<NodeState>,
    client: StoreClient,
    resources: ResourceClient,
    journal: Arc<AttachmentJournal>,
}

impl StartedNode<'_> {
    /// Connects to the datastore, registers the node and opens its journal.
    async fn connect<'a>(
        settings: &'a StartSettings<'a>,
        host: Netns,
        state: Arc<NodeState>,
        version: &str,
    ) -> Result<StartedNode<'a>, NodeRunError> {
        let connection =
            StoreClient::connect_waiting(&settings.datastore, |error| report_wait(&state, error));
        let client = connection.await?;
        let resources = ResourceClient::new(client.clone());
        register(&resources, &settings.variables, &settings.name, version, &state).await?;
        state.set_trouble("datastore", None);
        let nodename = settings.args.calico_dir().join("nodename");
        files::replace(&nodename, &settings.name).map_err(describe_io(nodename.display()))?;
        let dir = settings.args.journal_dir();
        let journal = Arc::new(AttachmentJournal::open(&dir).map_err(describe_io(dir.display()))?);
        Ok(StartedNode { settings, host, state, client, resources, journal })
    }

    fn name(&self) -> String {
        self.settings.name.clone()
    }

    /// Follows the datastore or a hub, and corrects the feed with the attachments that this node has recorded.
    fn follow_datastore(
        &self,
        compute: &PlanCompute,
        pending: &PendingEndpoints,
    ) -> Result<tortie_sync::Feed, NodeRunError> {
        let StartSettings { args, variables, kubernetes, kubernetes_name, name, .. } = self.settings;
        let mut interests = compute.interests();
        if self.client.capabilities().includes_kubernetes {
            interests.extend([KeyRange::EndpointSlices, KeyRange::Services]);
        }
        let context = feed::FeedContext {
            store: &self.client,
            node: name,
            kubernetes: kubernetes.as_ref(),
            kubernetes_node: kubernetes_name.as_ref().unwrap_or(name),
            certificate_secret: variables.get(feed::HUB_SECRET_VARIABLE),
            liveness: &self.state.liveness,
        };
        let feed = feed::follow(compute.parameters(), &context, interests)?;
        let feed = guard_snapshot(feed, args.known_objects_file(), self.state.clone());
        let feed = pending.observe(feed, self.journal.clone(), self.name());
        if self.client.capabilities().derives(Kind::WorkloadEndpoint) {
            return Ok(endpoint_correction::correct_feed(feed, self.journal.clone(), self.name()));
        }
        Ok(feed)
    }

    /// Starts the engine and the consumers of its plan.
    fn start_engine(
        &self,
        compute: PlanCompute,
        feed: tortie_sync::Feed,
        tasks: &mut TaskSet,
    ) -> Result<(EngineHandle, mpsc::Receiver<ReportReceiver>), NodeRunError> {
        let StartSettings { args, variables, file, name, .. } = self.settings;
        let held = attachment_reclaimer::list_held_attachments(&self.journal, name);
        let mut recording = None;
        if let Some(path) = &args.record {
            let bgp = self.settings.bgp_environment();
            let header = recording::build_header(name, variables, file, bgp.as_ref(), &held);
            let created = NodeRecording::create(path, args.record_limit, &header);
            recording = Some(created.map_err(describe_io(path.display()))?);
        }
        let core = EngineCore::new(compute, held);
        let keys = WireguardKeys::in_dir(&args.state_dir);
        let state = self.state.clone();
        let (mut engine, reports) = NodeEngine::new(self.host.clone(), keys, core, state, recording);
        let secrets =
            bgp::PasswordReader::new(args.secrets_dir.clone(), self.settings.kubernetes.as_ref(), variables);
        let routes = bgp::start(self.settings.bgp, args, secrets, &self.host, &self.state, &mut engine);
        let (handle, inbox) = EngineHandle::channel();
        let server = SyncServer::new(args, handle.clone(), self.state.clone());
        tasks.spawn("the policy-sync server", server.run(engine.register(policy_sync::PLAN_CONSUMER)));
        let flows = FlowRecordTask::new(
            self.state.clone(),
            handle.clone(),
            engine.register(flow_records::PLAN_CONSUMER),
            engine.follow_flows(),
            args.flows_socket(),
        );
        tasks.spawn("the flow records", flows.run());
        tasks.spawn("the engine", engine.run(feed, inbox, routes));
        Ok((handle, reports))
    }

    /// Spawns the tasks that report the state of the node and follow its settings.
    fn spawn_status_tasks(
        &self,
        reports: mpsc::Receiver<ReportReceiver>,
        logs: Arc<dyn LogControl>,
        tasks: &mut TaskSet,
    ) {
        let StartedNode { settings, host, state, client, resources, .. } = self;
        let run_dir = settings.args.own_run_dir().map(Path::to_owned);
        let endpoints =
            status::write_endpoint_statuses(state.clone(), client.clone(), self.name(), run_dir, reports);
        tasks.spawn("the status of endpoints", endpoints);
        let heartbeats = status::send_heartbeats(state.clone(), client.clone(), self.name());
        tasks.spawn("the status of the node", heartbeats);
        let reporter = NodeStatusReporter::follow(state, resources, host, &settings.name);
        tasks.spawn("CalicoNodeStatus", reporter);
        let addresses = follow_addresses(resources.clone(), settings.variables.clone(), self.name());
        tasks.spawn("the detection of addresses", addresses);
        let warnings = network_warnings::publish(state.clone(), resources.clone(), self.name());
        tasks.spawn("the warnings of the network", warnings);
        tasks.spawn("the log", follow_log_settings(state.clone(), logs));
        tasks.spawn("the MTU file", write_mtu(state.clone(), settings.args.calico_dir().join("mtu")));
        tasks.spawn("the watch of the BGP speaker", watch_speaker(state.clone()));
    }

    /// Creates the CNI service, and spawns the tasks for the addresses and keys of tunnels.
    fn create_service(
        &self,
        engine: EngineHandle,
        pending: PendingEndpoints,
        tasks: &mut TaskSet,
    ) -> Arc<CniService> {
        let StartedNode { settings, host, state, client, resources, journal } = self;
        let pools_changed = tunnel_addresses::follow_changes(client, &settings.name);
        let keys = public_keys::publish(state.clone(), resources.clone(), self.name(), pools_changed.clone());
        tasks.spawn("the public keys of WireGuard", keys);
        let owner = BlockOwner::host(&settings.name);
        let allocator = Allocator::following(client.clone(), owner).avoiding(journal.clone());
        let service = CniService::new(
            &settings.name,
            host.clone(),
            allocator,
            resources.clone(),
            engine,
            journal.clone(),
            state.clone(),
        );
        let service = service.with_orchestrator(settings.kubernetes.clone()).with_pending_endpoints(pending);
        let service = Arc::new(service);
        // If the orchestrator assigns a pod CIDR to each node, Calico IPAM does not assign tunnel addresses.
        if settings.variables.get("USE_POD_CIDR") != "true" {
            let node = service.clone();
            tasks.spawn("the addresses of tunnels", async move {
                tunnel_addresses::maintain_addresses(
                    &node.allocator,
                    &node.resources,
                    &node.state,
                    pools_changed,
                )
                .await;
            });
        }
        service
    }

    /// Waits until the snapshot of the datastore is complete and the kernel has the plan.
    async fn wait_for_sync(&self, tasks: &mut TaskSet) -> Result<(), TaskEnded> {
        let mut in_sync = self.state.in_sync();
        tokio::select! {
            // Fails only if the state is dropped, which ends the node.
            _ = in_sync.wait_for(|in_sync| *in_sync) => Ok(()),
            ended = tasks.wait_until_ended() => Err(ended),
        }
    }

    /// Collects garbage of attachments once, lets the CNI server process requests, and then collects garbage
    /// periodically.
    async fn serve_cni(
        &self,
        service: Arc<CniService>,
        served: watch::Sender<Option<Arc<CniService>>>,
        tasks: &mut TaskSet,
    ) {
        service.adopt_endpoints().await;
        service.collect_garbage().await;
        let mut reclaimer = AttachmentReclaimer::new(&self.settings.name);
        if self.state.take_endpoint_lost() {
            reclaimer.run(true, &service).await;
        }
        served.send_replace(Some(service.clone()));
        let rounds = if self.client.capabilities().is_api_server { KUBERNETES_POLL_ROUNDS } else { 1 };
        tasks.spawn("the garbage collection of attachments", async move {
            // The start of the node does not wait for this run: IPAM never assigns an address that the journal holds,
            // even if the datastore does not hold it.
            reclaimer.run(true, &service).await;
            for round in 1_u64.. {
                tokio::time::sleep(ATTACHMENT_GC_INTERVAL).await;
                service.adopt_endpoints().await;
                service.collect_garbage().await;
                let lost = service.state.take_endpoint_lost();
                if lost || round % rounds == 0 {
                    reclaimer.run(lost, &service).await;
                }
            }
        });
    }

    /// Spawns the tasks that make the node available to the container runtime and to Kubernetes.
    fn spawn_cluster_tasks(&self, installer: Option<CniInstaller>, tasks: &mut TaskSet) {
        if let Some(installer) = installer {
            tasks.spawn("the installation of the CNI plugins", installer.run(self.state.clone()));
        }
        if let Some((target, node)) = self.settings.kubernetes_node() {
            let taint = self.settings.variables.get("TORTIE_STARTUP_TAINT").to_owned();
            let condition =
                kube_condition::follow(target.clone(), node.to_owned(), taint, self.state.clone());
            tasks.spawn("the node's condition in Kubernetes", condition);
        }
    }
}

/// Reports in the log and on the health page why the node waits for the datastore.
fn report_wait(state: &NodeState, error: &impl Display) {
    tracing::warn!(%error, "waiting for the datastore; retrying every second");
    state.set_trouble("datastore", Some(format!("waiting for the datastore: {error}")));
}

/// Registers the node in the datastore, and retries while the datastore is unavailable.
async fn register(
    resources: &ResourceClient,
    variables: &EnvironmentVariables,
    name: &str,
    version: &str,
    state: &NodeState,
) -> Result<(), StartupError> {
    let mut reported = BTreeSet::new();
    loop {
        match startup::register(resources, variables, name, version).await {
            Err(error) if error.is_worth_waiting() => {
                if reported.len() < MAX_REPORTED_CAUSES && reported.insert(error.to_string()) {
                    report_wait(state, &error);
                }
                tokio::time::sleep(REGISTER_RETRY_DELAY).await;
            }
            outcome => return outcome,
        }
    }
}

/// Starts the thread that serves probes, metrics and queries.
fn start_observers(
    state: Arc<NodeState>,
    query_socket: PathBuf,
    tasks: &mut TaskSet,
) -> Result<ObserverThread, NodeRunError> {
    let runtime = tokio::runtime::Handle::current();
    let what = query_socket.display().to_string();
    let started = ObserverThread::start("observers", move || async move {
        tokio::join!(
            http::serve_health(state.clone()),
            http::serve_metrics(state.clone()),
            http::serve_debug(state.clone(), runtime),
            queries::serve(query_socket, state)
        );
    });
    let (thread, end) = started.map_err(describe_io(what))?;
    tasks.spawn("the thread of health and metrics", async {
        // The sender is dropped without sending a value.
        let _ = end.await;
    });
    Ok(thread)
}

async fn follow_log_settings(state: Arc<NodeState>, logs: Arc<dyn LogControl>) {
    state.metrics.set_log_counters(logs.counters());
    let mut parameters = state.parameters();
    let mut bgp = state.bgp_log_severity();
    let mut known = Vec::new();
    loop {
        let bgp_severity = *bgp.borrow_and_update();
        let settings = LogSettings::from_parameters(&parameters.borrow_and_update(), bgp_severity);
        let problems = logs.apply(&settings);
        for problem in problems.iter().filter(|problem| !known.contains(*problem)) {
            tracing::warn!(problem, "cannot apply the log settings");
        }
        state.set_warning("log", (!problems.is_empty()).then(|| problems.join("; ")));
        known = problems;
        // Retry settings that failed: a disk may become available again, and syslog may start after the node.
        tokio::select! {
            changed = parameters.changed() => if changed.is_err() { return },
            changed = bgp.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(LOG_SETTINGS_RETRY_DELAY), if !known.is_empty() => {}
        }
    }
}

async fn follow_addresses(resources: ResourceClient, variables: EnvironmentVariables, name: String) {
    let given = variables.get("AUTODETECT_POLL_INTERVAL").parse::<tortie_model::scalar::GoDuration>().ok();
    let interval = given
        .and_then(|given| given.to_std())
        .filter(|given| !given.is_zero())
        .unwrap_or(ADDRESS_POLL_INTERVAL);
    // Another client may have changed the Node object, so it is compared in every round; with Kubernetes only every
    // [`KUBERNETES_POLL_ROUNDS`] rounds unless the addresses change here, to save requests.
    let rounds = if resources.client().capabilities().is_api_server { KUBERNETES_POLL_ROUNDS } else { 1 };
    let mut compared = startup::ComparedInterfaces::default();
    for round in 0_u64.. {
        tokio::time::sleep(interval).await;
        if round % rounds == 0 {
            compared = startup::ComparedInterfaces::default();
        }
        if let Err(error) = startup::refresh_addresses(&resources, &variables, &name, &mut compared).await {
            tracing::warn!(%error, "cannot detect the addresses of the host; the node keeps its current addresses; retrying");
        }
    }
}

async fn write_mtu(state: Arc<NodeState>, path: PathBuf) {
    let mut changes = state.mtu_changes();
    loop {
        let mtu = changes.borrow_and_update().as_ref().map(|choice| choice.mtu);
        if let Some(mtu) = mtu
            && let Err(error) = files::replace(&path, &mtu.to_string())
        {
            tracing::warn!(%error, path = %path.display(), "cannot write the MTU file");
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}
