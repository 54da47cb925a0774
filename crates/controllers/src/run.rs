//! The controllers process: connects, runs leader election, health checks and HTTP endpoints, and follows the
//! configuration.

use crate::cluster_claim::ClusterClaim;
use crate::election::LeaderElection;
use crate::http;
use crate::leader_loop::{ControllerContext, LEADER_COMPONENTS, run_leader_loop};
use crate::metrics::{self, ControllerCounters};
use crate::migration::{self, DatastoreMover};
use crate::options::ControllersArgs;
use crate::settings::{self, ControllerEnvironment, ControllerSettings, InvalidVariable};
use crate::state::{
    ABSENCE_COMPONENT, ControllerState, DATASTORE_COMPONENT, KUBERNETES_COMPONENT, STARTUP_COMPONENT,
    STATUS_WRITE_INTERVAL,
};
use futures::future::OptionFuture;
use std::collections::BTreeMap;
use std::io;
use std::io::Write as _;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tortie_http::liveness::Liveness;
use tortie_model::kinds::{KubeControllersConfiguration, KubeControllersConfigurationStatus};
use tortie_model::{KeyRange, Kind, Resource, StoreKey, StoreValue};
use tortie_store::orchestrator::OrchestratorClient;
use tortie_store::{
    ResourceClient, StoreClient, StoreConfig, StoreError, StoreEvent, StoreLimits, StoreWatch,
};

/// Interval between checks of the datastore and Kubernetes: after a success and after a failure.
const HEALTH_CHECK_INTERVALS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(2));
const CREATE_RETRY_DELAY: Duration = Duration::from_secs(2);
const CLUSTER_TYPE: &str = "k8s";

#[derive(Debug, thiserror::Error)]
pub enum ControllersRunError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Variable(#[from] InvalidVariable),
    #[error("cannot handle signals: {0}")]
    Signals(io::Error),
    #[error("a component of the controllers ended; restart them")]
    Ended,
}

/// Runs until SIGTERM or SIGINT.
pub async fn run(args: ControllersArgs) -> Result<(), ControllersRunError> {
    let end = tortie_http::shutdown_signal().map_err(ControllersRunError::Signals)?;
    let config = StoreConfig::load(&args.config)?;
    run_until(args, config, end).await
}

async fn run_until(
    args: ControllersArgs,
    config: StoreConfig,
    end: impl Future<Output = ()>,
) -> Result<(), ControllersRunError> {
    let environment = ControllerEnvironment::from_process();
    environment.check()?;
    let target = config.orchestrator().ok_or_else(|| {
        StoreError::Config(
            "the controllers follow Kubernetes: set KUBECONFIG, or run them in a pod".to_owned(),
        )
    })?;
    let orchestrator = OrchestratorClient::connect(&target, StoreLimits::default()).await?;
    let state = Arc::new(ControllerState::new(args.status_file.clone(), Liveness::default()));
    let health = watch::channel(args.health_port);
    // Serve probes from here on: otherwise a long outage of kube-apiserver would get the controllers killed.
    let mut observers = pin!(async {
        tokio::select! {
            () = write_liveness(&state) => {}
            () = http::serve_on_port(health.1, "health", http::build_health_router(state.clone())) => {}
        }
    });
    let mut end = pin!(end);
    let connections = tokio::select! {
        connections = connect(config, &orchestrator, &state) => connections?,
        () = &mut observers => return Err(ControllersRunError::Ended),
        () = &mut end => return Ok(()),
    };
    let ControllerConnections { client, kubernetes, mover } = connections;
    let election = LeaderElection {
        orchestrator: orchestrator.clone(),
        namespace: args.lease_namespace.clone(),
        name: args.lease_name.clone(),
        identity: args.identity.clone().unwrap_or_else(default_identity),
    };
    let context = ControllerContext {
        client: client.clone(),
        kubernetes,
        orchestrator: orchestrator.clone(),
        namespace: args.lease_namespace.clone(),
        state: state.clone(),
    };
    let resources = ResourceClient::new(client);
    let claim = context.kubernetes.as_ref().map(|_| ClusterClaim {
        orchestrator: orchestrator.clone(),
        resources: resources.clone(),
        replaced: args.take_over.clone(),
        state: state.clone(),
    });
    let (sender, settings) = watch::channel(Arc::new(ControllerSettings::default()));
    let metrics = watch::channel(0);
    tracing::info!(identity = election.identity, "starting the controllers");
    // The process also runs when standard output is closed.
    let _ = writeln!(std::io::stdout(), "ready: controllers {}", election.identity);
    let parts = async {
        tokio::select! {
            () = watch_health(&resources, &orchestrator, &state) => {}
            () = &mut observers => {}
            () = follow_configuration(&resources, &environment, sender, &state) => {}
            () = follow_metrics_port(settings.clone(), metrics.0) => {}
            () = http::serve_on_port(metrics.1, "metrics", http::build_metrics_router(state.clone())) => {}
            () = run_elections(&election, &context, claim.as_ref(), mover.as_ref(), settings.clone()) => {}
        }
    };
    let outcome = tokio::select! {
        () = parts => Err(ControllersRunError::Ended),
        () = &mut end => Ok(()),
    };
    election.resign().await;
    drop(health.0);
    tracing::info!("stopping the controllers");
    outcome
}

struct ControllerConnections {
    client: StoreClient,
    /// Client for Kubernetes; `None` if it is the datastore.
    kubernetes: Option<StoreClient>,
    mover: Option<DatastoreMover>,
}

/// Connects, retrying without limit. Readiness reports the error.
async fn connect(
    config: StoreConfig,
    orchestrator: &OrchestratorClient,
    state: &ControllerState,
) -> Result<ControllerConnections, ControllersRunError> {
    let client = StoreClient::connect_waiting(&config, |error| {
        tracing::warn!(%error, "waiting for the datastore; trying again");
        state.set_problem(DATASTORE_COMPONENT, Some(error.to_string()));
    })
    .await?;
    if client.capabilities().includes_kubernetes {
        let mover =
            DatastoreMover::connect(&config, orchestrator.clone(), migration::WRITE_DRAIN_DELAY).await?;
        return Ok(ControllerConnections { client, kubernetes: None, mover: Some(mover) });
    }
    // Calico's objects are in another datastore, so the cluster need not serve their API group.
    let kubernetes = StoreConfig {
        datastore_type: "kubernetes".to_owned(),
        calico_api_group: migration::CRD_GROUP_VERSION.to_owned(),
        ..config
    };
    let kubernetes = StoreClient::connect(&kubernetes).await?;
    Ok(ControllerConnections { client, kubernetes: Some(kubernetes), mover: None })
}

/// Returns the identity of a replica without a configured one: the host name and the process id.
fn default_identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}-{}", host.trim(), std::process::id())
}

/// Waits until the datastore belongs to this cluster and for leadership, leads until either is lost, and repeats.
/// `claim` is `None` if Kubernetes is the datastore.
async fn run_elections(
    election: &LeaderElection,
    context: &ControllerContext,
    claim: Option<&ClusterClaim>,
    mover: Option<&DatastoreMover>,
    mut settings: watch::Receiver<Arc<ControllerSettings>>,
) {
    // The controllers do nothing before the configuration is known.
    if settings.wait_for(|settings| settings.spec.controllers.is_some()).await.is_err() {
        return;
    }
    let heartbeat = context.state.liveness.part("election");
    loop {
        context.state.set_metrics(metrics::render_page(
            &BTreeMap::new(),
            [],
            &ControllerCounters::default(),
            false,
        ));
        if let Some(claim) = claim {
            claim.wait_until_held(&heartbeat).await;
        }
        election.wait_until_leading(&heartbeat).await;
        tracing::info!(identity = election.identity, "this replica leads");
        tokio::select! {
            () = run_leader_loop(context.clone(), settings.clone()) => return,
            // Migration is only possible if Kubernetes is the datastore; the branch is disabled otherwise.
            Some(()) = OptionFuture::from(mover.map(DatastoreMover::follow)) => return,
            () = election.renew_until_lost(&heartbeat) => tracing::warn!("this replica lost the leadership"),
            Some(()) = OptionFuture::from(claim.map(ClusterClaim::wait_until_lost)) => {
                tracing::error!("another Kubernetes cluster has taken the datastore over");
            }
        }
        for part in LEADER_COMPONENTS {
            context.state.liveness.forget(part);
        }
        context.state.set_problem(ABSENCE_COMPONENT, None);
    }
}

/// Updates the status file for probes that read it.
async fn write_liveness(state: &ControllerState) {
    loop {
        state.write_liveness();
        tokio::time::sleep(STATUS_WRITE_INTERVAL).await;
    }
}

async fn watch_health(
    resources: &ResourceClient,
    orchestrator: &OrchestratorClient,
    state: &ControllerState,
) {
    let heartbeat = state.liveness.part("health-checks");
    loop {
        heartbeat.beat();
        let datastore = resources.ensure_initialized("", CLUSTER_TYPE).await;
        let kubernetes = orchestrator.check().await;
        let fine = datastore.is_ok() && kubernetes.is_ok();
        state.set_problem(DATASTORE_COMPONENT, datastore.err().map(|error| error.to_string()));
        state.set_problem(KUBERNETES_COMPONENT, kubernetes.err().map(|error| error.to_string()));
        if fine {
            state.set_problem(STARTUP_COMPONENT, None);
        }
        tokio::time::sleep(if fine { HEALTH_CHECK_INTERVALS.0 } else { HEALTH_CHECK_INTERVALS.1 }).await;
    }
}

async fn follow_metrics_port(
    mut settings: watch::Receiver<Arc<ControllerSettings>>,
    port: watch::Sender<u16>,
) {
    loop {
        let wanted = settings.borrow_and_update().metrics_port().unwrap_or_default();
        port.send_if_modified(|port| std::mem::replace(port, wanted) != wanted);
        if settings.changed().await.is_err() {
            return;
        }
    }
}

/// Keeps the settings in sync with the configuration, from the start, and writes the effective configuration to its
/// status.
async fn follow_configuration(
    resources: &ResourceClient,
    environment: &ControllerEnvironment,
    sender: watch::Sender<Arc<ControllerSettings>>,
    state: &ControllerState,
) {
    let watch = resources.client().watch(KeyRange::all(Kind::KubeControllersConfiguration), None);
    let heartbeat = state.liveness.part("configuration-watch");
    let life = tortie_sync::report_life(vec![watch.signs_of_life()], move || heartbeat.beat());
    tokio::select! {
        () = apply_configurations(watch, resources, environment, sender) => {}
        () = life => {}
    }
}

async fn apply_configurations(
    mut watch: StoreWatch,
    resources: &ResourceClient,
    environment: &ControllerEnvironment,
    sender: watch::Sender<Arc<ControllerSettings>>,
) {
    let client = resources.client();
    let mut known = false;
    while let Some(event) = watch.next().await {
        match event {
            StoreEvent::Put(entry) => {
                let StoreValue::Resource(Resource::KubeControllersConfiguration(configuration)) = entry.value
                else {
                    continue;
                };
                if configuration.metadata.name != settings::CONFIGURATION_NAME {
                    continue;
                }
                known = true;
                apply_configuration(client, environment, *configuration, &sender).await;
            }
            StoreEvent::Delete { key: StoreKey::Resource { name, .. }, .. }
                if name == settings::CONFIGURATION_NAME =>
            {
                create_configuration(resources).await;
            }
            StoreEvent::InSync(_) if !known => create_configuration(resources).await,
            StoreEvent::Unreadable { key, error, .. } => {
                tracing::warn!(%key, %error, "cannot read the configuration; the previous one stays in force");
            }
            _ => {}
        }
    }
}

async fn apply_configuration(
    client: &StoreClient,
    environment: &ControllerEnvironment,
    configuration: KubeControllersConfiguration,
    sender: &watch::Sender<Arc<ControllerSettings>>,
) {
    if let Err(error) = configuration.validate() {
        tracing::warn!(%error, "the configuration is invalid; the previous one stays in force");
        return;
    }
    let settings = match environment.apply_to(&configuration.spec) {
        Ok(settings) => settings,
        Err(error) => {
            tracing::warn!(%error, "cannot apply the configuration; the previous one stays in force");
            return;
        }
    };
    let status = KubeControllersConfigurationStatus {
        running_config: Some(settings.spec.clone()),
        environment_vars: settings.variables.clone(),
    };
    let is_changed = **sender.borrow() != settings;
    if is_changed {
        tracing::info!("applied the configuration");
        sender.send_replace(Arc::new(settings));
    }
    if configuration.status != status {
        let key = StoreKey::resource(Kind::KubeControllersConfiguration, "", settings::CONFIGURATION_NAME);
        let mut written = configuration;
        written.status = status;
        let Ok(version) = client.revision(&written.metadata.resource_version) else { return };
        if let Err(error) =
            client.update(&key, &StoreValue::Resource(Resource::from(written)), &version).await
        {
            tracing::debug!(%error, "cannot write the running configuration to the status of KubeControllersConfiguration");
        }
    }
}

/// Creates the configuration, retrying until it exists: nothing runs without it.
async fn create_configuration(resources: &ResourceClient) {
    loop {
        match resources.create(Resource::from(settings::build_initial_configuration())).await {
            Ok(_) | Err(StoreError::AlreadyExists { .. }) => return,
            Err(error) => {
                tracing::warn!(%error, "cannot create KubeControllersConfiguration; trying again");
                tokio::time::sleep(CREATE_RETRY_DELAY).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{ProbeError, ProbeKind, check};
    use tokio::net::TcpListener;

    /// Longer than the interval of the health checks, shorter than a request timeout.
    const SILENCE: Duration = Duration::from_secs(6);

    #[tokio::test(flavor = "multi_thread")]
    async fn controllers_that_wait_for_the_api_are_alive() {
        // The listener is dropped right away, so connections to this address are refused.
        let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let config = StoreConfig {
            datastore_type: "kubernetes".to_owned(),
            k8s_api_endpoint: format!("http://{address}"),
            ..StoreConfig::default()
        };
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("status.json");
        let args = ControllersArgs {
            config: dir.path().join("none"),
            status_file: file.clone(),
            health_port: 0,
            lease_namespace: "kube-system".to_owned(),
            lease_name: "tortie-controllers".to_owned(),
            identity: None,
            take_over: None,
        };
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        let running = run_until(args, config, async { _ = receiver.await });
        let look = async {
            while !check(&file, ProbeKind::Readiness).unwrap_err().to_string().ends_with("; initialising") {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            check(&file, ProbeKind::Liveness).unwrap();
            sender.send(()).unwrap();
        };
        let both = async { tokio::join!(running, look) };
        let (outcome, ()) =
            tokio::time::timeout(Duration::from_secs(120), both).await.expect("not within two minutes");
        outcome.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_stuck_component_is_named_until_it_continues() {
        // An API server that accepts requests and never responds.
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = StoreConfig {
            datastore_type: "kubernetes".to_owned(),
            k8s_api_endpoint: format!("http://{}", server.local_addr().unwrap()),
            calico_api_group: "projectcalico.org/v3".to_owned(),
            ..StoreConfig::default()
        };
        let client = StoreClient::connect(&config).await.unwrap();
        let orchestrator =
            OrchestratorClient::connect(&config.orchestrator().unwrap(), StoreLimits::default())
                .await
                .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("status.json");
        let state = Arc::new(ControllerState::new(file.clone(), Liveness::new(SILENCE)));
        let (watched, resources) = (state.clone(), ResourceClient::new(client));
        let _watching = tokio::spawn(async move { watch_health(&resources, &orchestrator, &watched).await });
        let said = async |wanted: fn(&Result<(), ProbeError>) -> bool| {
            let look = async {
                loop {
                    state.write_liveness();
                    let said = check(&file, ProbeKind::Liveness);
                    if wanted(&said) && !state.liveness.parts().is_empty() {
                        return said;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(120), look).await.expect("not within two minutes")
        };
        let (held, _) = server.accept().await.unwrap();
        let stuck = said(Result::is_err).await.unwrap_err();
        assert!(stuck.to_string().starts_with("health-checks: no sign of life for "), "{stuck}");
        assert_eq!(state.liveness.page().0.as_u16(), 503);
        // The server is gone: requests fail immediately, and the checks continue.
        drop((held, server));
        said(Result::is_ok).await.unwrap();
    }
}
