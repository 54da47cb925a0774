//! Starts the node daemon from its command-line options, in the order that the dependencies require, and runs it
//! until it has to stop.

use crate::cni::{self, CniService};
use crate::engine::{EngineCore, EngineHandle, NodeEngine};
use crate::install::CniInstaller;
use crate::journal::AttachmentJournal;
use crate::leave::LivePodHandling;
use crate::lock::{DirLock, LockError, NetnsLock};
use crate::logs::{LogControl, LogSettings};
use crate::node_status::NodeStatusReporter;
use crate::options::NodeArgs;
use crate::pending_endpoints::PendingEndpoints;
use crate::reclaim::{self, AttachmentReclaimer};
use crate::recording::{self, NodeRecording};
use crate::removal::RemovalDetector;
use crate::snapshot_guard::guard_snapshot;
use crate::socket::DaemonSocket;
use crate::startup::{self, EnvironmentVariables, FelixSettings, StartupError};
use crate::state::NodeState;
use crate::tasks::{ObserverThread, TaskEnded, TaskSet, watch_speaker};
use crate::{
    bgp, failpoint, feed, files, http, kube_condition, leave, public_keys, queries, status, tunnel_addresses,
    wired,
};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tortie_compute::{BgpEnvironment, ParameterEnvironment, PlanCompute};
use tortie_dataplane::{Netns, WireguardKeys};
use tortie_ipam::{Allocator, BlockOwner};
use tortie_model::{KeyRange, Kind};
use tortie_store::config::{KubernetesTarget, settings_file};
use tortie_store::{ResourceClient, StoreClient, StoreConfig};

const REGISTER_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of different causes of a wait for the datastore that are logged.
const MAX_REPORTED_CAUSES: usize = 32;
/// Delay before log settings that could not be applied are tried again.
const LOG_SETTINGS_RETRY_DELAY: Duration = Duration::from_secs(60);
/// Interval between garbage collections of attachments whose netns vanished without a CNI DEL.
const ATTACHMENT_GC_INTERVAL: Duration = Duration::from_secs(10);
/// Interval between checks of the host's addresses, unless AUTODETECT_POLL_INTERVAL sets another.
const ADDRESS_POLL_INTERVAL: Duration = Duration::from_secs(60);
/// Rounds between two reads of our objects from the Kubernetes API, each of which takes several requests.
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
    #[error("{what}: {error}")]
    Io { what: String, error: std::io::Error },
    #[error(transparent)]
    Hub(#[from] feed::HubSettingsError),
    #[error("--install-cni: {0}")]
    Install(String),
    #[error("this host is not clean: {0}")]
    Leave(String),
}

/// Runs until SIGTERM or SIGINT, or until one of its tasks ends. Workloads keep their network afterwards, unless
/// Tortie has been removed from the cluster ([`RemovalDetector`]).
///
/// `logs` is the log of the process, which follows the settings.
pub async fn run(args: NodeArgs, version: &str, logs: Arc<dyn LogControl>) -> Result<(), NodeRunError> {
    let io = |what: &str| {
        let what = what.to_owned();
        move |error| NodeRunError::Io { what, error }
    };
    let mut terminate = signal(SignalKind::terminate()).map_err(io("signals"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(io("signals"))?;
    let variables = EnvironmentVariables::of_process();
    // Read the settings first: without a datastore nothing must be created on the host.
    let file = args.settings_file();
    let felix = FelixSettings::read(&variables, &file).map_err(io(&file.display().to_string()))?;
    let config = felix.datastore(StoreConfig::load(&args.config)?);
    free_host_traffic().await;
    let orchestrator = config.orchestrator();
    let on_kubernetes = config.capabilities()?.includes_kubernetes;
    for dir in [&args.state_dir, &args.run_dir, args.calico_dir()] {
        std::fs::create_dir_all(dir).map_err(io(&dir.display().to_string()))?;
    }
    let _locks = (lock(&args)?, NetnsLock::acquire().await?);
    raise_descriptor_limit();
    let name = startup::node_name(&variables, felix.hostname(), &args.calico_dir().join("nodename"))?;
    let mut tasks = TaskSet::default();
    // Bind the CNI socket early: before the node is ready, the plugins get the response to try again later.
    let (service, served) = watch::channel(None);
    let socket = DaemonSocket::bind(&args.socket()).map_err(io(&args.socket().display().to_string()))?;
    tasks.spawn("the CNI server", cni::serve(socket, served));
    let known = described_node(&variables, &name, on_kubernetes).zip(orchestrator.clone());
    let described = known.as_ref().map(|(node, _)| node.clone());
    let removal = RemovalDetector::of(&variables, orchestrator.as_ref());
    if let Some(removal) = &removal {
        tasks.spawn("the watch over the node's account", removal.follow());
    }
    let start = NodeStart {
        args: &args,
        variables: &variables,
        name: &name,
        version,
        config,
        orchestrator,
        on_kubernetes,
        described,
    };
    let node = async {
        let _observers = start.run(service, &mut tasks, logs).await?;
        Err(NodeRunError::from(tasks.ended().await))
    };
    let outcome = tokio::select! {
        outcome = node => outcome,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    if let Some((node, target)) = &known
        && outcome.is_ok()
    {
        kube_condition::say_down(target, node).await;
    }
    if let Some(removal) = &removal
        && outcome.is_ok()
        && removal.is_for_good().await
    {
        tasks.stop().await;
        tracing::info!("Tortie is removed from the cluster; this host is cleaned");
        return leave::clean(&args, LivePodHandling::CutOff).await.map(drop).map_err(NodeRunError::Leave);
    }
    tracing::info!("stopping; workloads keep their network");
    outcome
}

/// Returns the name of this node's Node object in Kubernetes, if there is one. The daemon sets its condition.
fn described_node(variables: &EnvironmentVariables, name: &str, on_kubernetes: bool) -> Option<String> {
    if variables.get("CALICO_NETWORKING_BACKEND") == "none" {
        return None;
    }
    match variables.get("CALICO_K8S_NODE_REF") {
        "" => on_kubernetes.then(|| name.to_owned()),
        reference => Some(reference.to_owned()),
    }
}

/// Locks the directories of this daemon.
fn lock(args: &NodeArgs) -> Result<Vec<DirLock>, LockError> {
    let mut dirs = vec![args.state_dir.as_path()];
    dirs.extend(Some(args.run_dir.as_path()).filter(|dir| *dir != args.state_dir));
    dirs.into_iter().map(DirLock::acquire).collect()
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

/// Removes translations of the host's own traffic to floating addresses. This has to happen before the first request
/// to the datastore: a pod may have claimed its address as a floating IP.
async fn free_host_traffic() {
    let freed = match Netns::current() {
        Ok(host) => tortie_dataplane::free_host_traffic(&host).await,
        Err(error) => Err(error),
    };
    match freed {
        Ok(0) => {}
        Ok(addresses) => {
            tracing::warn!(addresses, "the host's own traffic to floating addresses is no longer translated");
        }
        Err(error) => {
            tracing::error!(%error, "the host's own traffic to floating addresses may still be translated");
        }
    }
}

/// The inputs of the start of the node.
struct NodeStart<'a> {
    args: &'a NodeArgs,
    variables: &'a EnvironmentVariables,
    name: &'a str,
    version: &'a str,
    /// Connection to the datastore.
    config: StoreConfig,
    /// Connection to Kubernetes, if there is one.
    orchestrator: Option<KubernetesTarget>,
    /// Whether Kubernetes is also the datastore.
    on_kubernetes: bool,
    /// Name of this node's Node object in Kubernetes.
    described: Option<String>,
}

impl NodeStart<'_> {
    /// Starts all tasks and returns when the node is ready. The returned thread serves probes and queries until it is
    /// dropped.
    async fn run(
        self,
        service: watch::Sender<Option<Arc<CniService>>>,
        tasks: &mut TaskSet,
        logs: Arc<dyn LogControl>,
    ) -> Result<ObserverThread, NodeRunError> {
        let NodeStart { args, variables, name, version, config, orchestrator, on_kubernetes, described } =
            self;
        let installer = match args.install_cni {
            true => Some(
                CniInstaller::new(variables, name, &args.state_dir, on_kubernetes, orchestrator.clone())
                    .map_err(NodeRunError::Install)?,
            ),
            false => None,
        };
        let io = |what: &Path| {
            let what = what.display().to_string();
            move |error| NodeRunError::Io { what, error }
        };
        let host = failpoint::with_faults(Netns::current()?);
        let state = Arc::new(NodeState::new(name));
        let file = args.settings_file();
        let settings = settings_file::read(&file).map_err(io(&file))?;
        let environment = ParameterEnvironment::new(variables.0.clone(), settings.clone());
        let mut compute = PlanCompute::new(name, environment);
        // Probes are answered while the node waits for the datastore.
        state.set_parameters(compute.parameters());
        let observers =
            observers(state.clone(), args.query_socket(), tasks).map_err(io(&args.query_socket()))?;
        tracing::info!(node = name, "starting");
        let client = StoreClient::connect_waiting(&config, |error| report_wait(&state, error)).await?;
        let resources = ResourceClient::new(client.clone());
        register(&resources, variables, name, version, &state).await?;
        state.set_trouble("datastore", None);
        let nodename = args.calico_dir().join("nodename");
        files::write(&nodename, name).map_err(io(&nodename))?;

        let journal =
            Arc::new(AttachmentJournal::open(&args.journal_dir()).map_err(io(&args.journal_dir()))?);
        let held = reclaim::held(&journal, name);
        let backend = bgp::BackendChoice::of(variables.get("CALICO_NETWORKING_BACKEND"), args.bird);
        let speaks = backend.speaks().then(|| BgpEnvironment {
            router_id: variables.get("CALICO_ROUTER_ID").to_owned(),
            by_bird: backend == bgp::BackendChoice::Bird,
        });
        let record = |file: &PathBuf| {
            let header = recording::header(name, variables, &settings, speaks.as_ref(), &held);
            NodeRecording::create(file, args.record_limit, &header).map_err(io(file))
        };
        let recording = args.record.as_ref().map(record).transpose()?;
        match speaks {
            Some(bgp) => compute.speak_bgp(bgp),
            None => compute.leave_cluster_routes(),
        }
        let bgp = bgp::start(backend, args, &host, &state);
        let mut interests = compute.interests();
        if client.capabilities().includes_kubernetes {
            interests.extend([KeyRange::EndpointSlices, KeyRange::Services]);
        }
        let place = feed::FeedContext {
            store: &client,
            node: name,
            kubernetes: orchestrator.as_ref(),
            kubernetes_node: described.as_deref().unwrap_or(name),
            certificate_secret: variables.get(feed::HUB_SECRET_VARIABLE),
            liveness: &state.liveness,
        };
        let mut feed = feed::follow(compute.parameters(), &place, interests)?;
        feed = guard_snapshot(feed, args.known_objects_file(), state.clone());
        let pending = PendingEndpoints::default();
        feed = pending.observe(feed, journal.clone(), name.to_owned());
        if client.capabilities().derives(Kind::WorkloadEndpoint) {
            feed = wired::corrected(feed, journal.clone(), name.to_owned());
        }
        let keys = WireguardKeys::in_dir(&args.state_dir);
        let (engine, reports) = NodeEngine::new(
            host.clone(),
            keys,
            EngineCore::new(compute, held),
            state.clone(),
            bgp,
            recording,
        );
        let (requests, requested) = EngineHandle::channel();
        let own = || (state.clone(), client.clone(), name.to_owned());
        let (run_dir, mtu_file) = (args.own_run_dir().map(Path::to_owned), args.calico_dir().join("mtu"));
        tasks.spawn("the engine", engine.run(feed, requested));
        tasks.spawn("the status of endpoints", {
            let (state, client, name) = own();
            status::endpoints(state, client, name, run_dir, reports)
        });
        tasks.spawn("the status of the node", {
            let (state, client, name) = own();
            status::heartbeats(state, client, name)
        });
        tasks.spawn("CalicoNodeStatus", NodeStatusReporter::follow(&state, &resources, &host, name));
        tasks.spawn(
            "the detection of addresses",
            follow_addresses(resources.clone(), variables.clone(), name.to_owned()),
        );
        tasks.spawn("the log", follow_log_settings(state.clone(), logs));
        tasks.spawn("the MTU file", write_mtu(state.clone(), mtu_file));
        tasks.spawn("the watch over the BGP speaker", watch_speaker(state.clone()));
        let pools_changed = tunnel_addresses::follow(&client, name);
        tasks.spawn("the public keys of WireGuard", {
            let (state, _, name) = own();
            public_keys::publish(state, resources.clone(), name, pools_changed.clone())
        });
        let looks = if client.capabilities().is_api_server { KUBERNETES_POLL_ROUNDS } else { 1 };
        let allocator = Allocator::following(client, BlockOwner::host(name)).avoiding(journal.clone());
        let made = CniService::new(name, host, allocator, resources, requests, journal, state.clone());
        let made = Arc::new(made.asking(orchestrator.clone()).adopting(pending));
        // If the orchestrator assigns a pod CIDR to each node, Calico IPAM does not assign tunnel addresses.
        if variables.get("USE_POD_CIDR") != "true" {
            let node = made.clone();
            tasks.spawn("the addresses of tunnels", async move {
                tunnel_addresses::keep(&node.allocator, &node.resources, &node.state, pools_changed).await;
            });
        }
        let mut in_sync = state.in_sync();
        tokio::select! {
            // Fails only if the state is dropped, which ends the node.
            _ = in_sync.wait_for(|in_sync| *in_sync) => {}
            ended = tasks.ended() => return Err(ended.into()),
        }
        made.adopt_endpoints().await;
        made.collect_garbage().await;
        let mut reclaim = AttachmentReclaimer::new(name);
        if made.state.take_lost() {
            reclaim.run(true, &made).await;
        }
        service.send_replace(Some(made.clone()));
        tasks.spawn("the garbage collection of attachments", async move {
            // The start does not wait for this pass: IPAM never assigns an address that the journal holds, regardless
            // of the datastore.
            reclaim.run(true, &made).await;
            for collection in 1_u64.. {
                tokio::time::sleep(ATTACHMENT_GC_INTERVAL).await;
                made.adopt_endpoints().await;
                made.collect_garbage().await;
                let lost = made.state.take_lost();
                if lost || collection % looks == 0 {
                    reclaim.run(lost, &made).await;
                }
            }
        });
        if let Some(installer) = installer {
            tasks.spawn("the installation of the CNI plugins", installer.run(state.clone()));
        }
        if let (Some(target), Some(node)) = (orchestrator, described) {
            let taint = variables.get("TORTIE_STARTUP_TAINT").to_owned();
            tasks.spawn(
                "the node's condition in Kubernetes",
                kube_condition::follow(target, node, taint, state.clone()),
            );
        }
        // A closed standard output must not stop the daemon.
        let _ = writeln!(std::io::stdout(), "ready: node {name} on {}", args.socket().display());
        tracing::info!(node = name, mtu = state.mtu().map(|choice| choice.mtu), "ready");
        Ok(observers)
    }
}

/// Reports why the node waits for the datastore, in the log and on the health page.
fn report_wait(state: &NodeState, error: &impl std::fmt::Display) {
    tracing::warn!(%error, "waiting for the datastore; trying again every second");
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
fn observers(
    state: Arc<NodeState>,
    queries: PathBuf,
    tasks: &mut TaskSet,
) -> std::io::Result<ObserverThread> {
    let work = tokio::runtime::Handle::current();
    let (aside, end) = ObserverThread::start("observers", move || async move {
        tokio::join!(
            http::serve_health(state.clone()),
            http::serve_metrics(state.clone()),
            http::serve_debug(state.clone(), work),
            queries::serve(queries, state)
        );
    })?;
    tasks.spawn("the thread of health and metrics", async {
        // The sender is dropped without sending a value.
        let _ = end.await;
    });
    Ok(aside)
}

async fn follow_log_settings(state: Arc<NodeState>, logs: Arc<dyn LogControl>) {
    state.metrics.count_lines(logs.counters());
    let mut parameters = state.parameters();
    let mut known = Vec::new();
    loop {
        let settings = LogSettings::of(&parameters.borrow_and_update());
        let problems = logs.follow(&settings);
        for problem in problems.iter().filter(|problem| !known.contains(*problem)) {
            tracing::warn!(problem, "cannot apply the log settings");
        }
        state.set_warning("log", (!problems.is_empty()).then(|| problems.join("; ")));
        known = problems;
        // Retry failed settings: a disk may become available again, and syslog may start after the node.
        let again = async {
            match known.is_empty() {
                true => std::future::pending().await,
                false => tokio::time::sleep(LOG_SETTINGS_RETRY_DELAY).await,
            }
        };
        tokio::select! {
            changed = parameters.changed() => if changed.is_err() { return },
            () = again => {}
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

async fn write_mtu(state: Arc<NodeState>, path: std::path::PathBuf) {
    let mut changes = state.mtu_changes();
    loop {
        let mtu = changes.borrow_and_update().as_ref().map(|choice| choice.mtu);
        if let Some(mtu) = mtu
            && let Err(error) = files::write(&path, &mtu.to_string())
        {
            tracing::warn!(%error, path = %path.display(), "cannot write the MTU file");
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}
