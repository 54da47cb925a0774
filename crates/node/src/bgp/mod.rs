//! BGP of the node: configures our own speaker from the plan and passes the routes that it selects to the engine, or
//! leaves both to BIRD.
//!
//! The speaker starts when the plan first contains the BGP settings. A rejected configuration is tried again with the
//! next change.

mod backend;
mod bird;
mod config;
mod health;
mod host_routes;
mod local_routes;
mod metrics;
mod next_hops;
mod secrets;

pub use backend::{BackendChoice, BgpBackend, BgpBackendError};
pub use bird::BIRD_COMPONENT as BIRD;

use crate::engine::{
    LearntNextHops, LearntRoute, NodeEngine, PlanChange, PlanConsumer, PlanReceiver, PlanStage,
};
use crate::options::NodeArgs;
use crate::queries::RunningBgp;
use crate::state::NodeState;
use backend::BirdPaths;
use bird::BirdTask;
use config::{PeerLimits, TranslatedConfig};
use host_routes::HostRouteCache;
use ipnet::IpNet;
use local_routes::LocalRouteTable;
use next_hops::UnreachableNextHops;
use secrets::SecretDirectory;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use health::{
    BgpNotReady, DEFAULT_SESSION_GRACE_PERIOD, SessionSummary, check_sessions, near_limit_warning,
};
pub use metrics::render_metrics;
use tokio::sync::mpsc;
use tortie_bgp::core::{BestRoute, RouteChange, ShutdownMode};
use tortie_bgp::{RouteChangeBatch, RouteChangeStream, SocketFactory, Speaker, SpeakerConfig};
use tortie_dataplane::Netns;
use tortie_plan::bgp::{BgpConfig, LOCAL_PREF_OF_METRIC_0};
use tortie_plan::{NodePlan, PlanUpdate};

/// Interval between checks of the passwords, and between attempts to start.
const BGP_POLL_INTERVAL: Duration = Duration::from_secs(2);
const LEARNT_ROUTES_CAPACITY: usize = 16;

/// BGP advertises addresses only once the kernel has their routes.
pub const PLAN_CONSUMER: PlanConsumer = PlanConsumer {
    name: "bgp",
    stage: PlanStage::Programmed,
    enabled: |_| true,
    wants: |update| matches!(update, PlanUpdate::Bgp(_) | PlanUpdate::Workload(..)),
    select: |plan| NodePlan {
        bgp: plan.bgp.clone(),
        workloads: plan.workloads.clone(),
        ..NodePlan::default()
    },
};

/// Routes for the kernel.
#[derive(Debug)]
pub struct RouteUpdates {
    pub routes: Vec<LearntRoute>,
    /// Whether the engine has received all routes of the speaker with these.
    pub complete: bool,
    /// When the oldest of them was learnt.
    pub since: Instant,
}

/// Starts the selected BGP backend, if any, as a consumer of the engine's plan. Returns the channel of its routes.
pub fn start(
    choice: BackendChoice,
    args: &NodeArgs,
    host: &Netns,
    state: &Arc<NodeState>,
    engine: &mut NodeEngine,
) -> mpsc::Receiver<RouteUpdates> {
    let (learnt, routes) = mpsc::channel(LEARNT_ROUTES_CAPACITY);
    let secrets = SecretDirectory::new(args.secrets_dir.clone());
    let restart_marker = args.run_dir.join("bgp");
    match choice {
        BackendChoice::Speaker => {
            let limits = PeerLimits { prefixes: args.bgp_max_prefixes, paths: args.bgp_max_paths };
            let task = BgpTask::new(host.clone(), state.clone(), secrets, restart_marker, limits, learnt);
            tokio::spawn(task.run(engine.register(PLAN_CONSUMER)));
        }
        BackendChoice::Bird => {
            let paths = BirdPaths { config: args.bird_config.clone(), socket: args.bird_socket.clone() };
            let task = BirdTask::new(state.clone(), secrets, paths, restart_marker);
            tokio::spawn(task.run(engine.register(PLAN_CONSUMER)));
        }
        BackendChoice::Off => {}
    }
    routes
}

struct BgpTask {
    host: Netns,
    state: Arc<NodeState>,
    secrets: SecretDirectory,
    limits: PeerLimits,
    /// File that exists if the node has run BGP since the host booted, so that its routes are still in the kernel.
    restart_marker: PathBuf,
    bgp: Option<Arc<BgpConfig>>,
    /// Whether the configuration of the speaker may differ from the plan and the secrets.
    needs_configuring: bool,
    local_routes: LocalRouteTable,
    host_routes: HostRouteCache,
    next_hops: UnreachableNextHops,
    running: Option<(Speaker, RouteChangeStream, SpeakerConfig)>,
    /// The best routes of the speaker in kernel form, including those that are not to be installed.
    best: BTreeMap<IpNet, LearntNextHops>,
    learnt: mpsc::Sender<RouteUpdates>,
    /// The state that was logged last.
    reported: Option<String>,
}

impl BgpTask {
    fn new(
        host: Netns,
        state: Arc<NodeState>,
        secrets: SecretDirectory,
        restart_marker: PathBuf,
        limits: PeerLimits,
        learnt: mpsc::Sender<RouteUpdates>,
    ) -> BgpTask {
        state.set_trouble("bgp", Some("BGP has not started yet".to_owned()));
        BgpTask {
            next_hops: UnreachableNextHops::new(host.clone(), state.unreachable()),
            host,
            state,
            secrets,
            limits,
            restart_marker,
            bgp: None,
            needs_configuring: false,
            local_routes: LocalRouteTable::default(),
            host_routes: HostRouteCache::default(),
            running: None,
            best: BTreeMap::new(),
            learnt,
            reported: None,
        }
    }

    async fn run(mut self, mut plan: PlanReceiver) {
        let mut poll = tokio::time::interval(BGP_POLL_INTERVAL);
        loop {
            tokio::select! {
                change = plan.recv() => match change {
                    Some(change) => self.apply_plan_change(change).await,
                    None => return self.stop().await,
                },
                batch = next_batch(&mut self.running) => match batch {
                    Some(batch) => self.install_batch(batch).await,
                    None => {
                        tracing::error!("the BGP speaker ended; starting it again");
                        self.running = None;
                        self.state.set_running_bgp(None);
                    }
                },
                () = self.next_hops.changed() => self.poll_next_hops().await,
                _ = poll.tick() => {
                    self.poll_host_routes().await;
                    self.poll_secrets().await;
                    self.poll_next_hops().await;
                }
            }
        }
    }

    async fn apply_plan_change(&mut self, change: PlanChange) {
        match change {
            PlanChange::Resync(plan) => {
                self.bgp = plan.bgp;
                self.needs_configuring = true;
                self.local_routes.set_workloads(plan.workloads);
            }
            PlanChange::Updates(updates) => {
                for update in updates {
                    match update {
                        PlanUpdate::Bgp(bgp) => {
                            self.bgp = Some(bgp);
                            self.needs_configuring = true;
                        }
                        PlanUpdate::Workload(id, workload) => self.local_routes.put_workload(id, workload),
                        _ => {}
                    }
                }
            }
        }
        self.reconcile().await;
    }

    /// Checks the secrets, which may have changed, and retries what failed.
    async fn poll_secrets(&mut self) {
        let has_secrets = self.bgp.as_deref().is_some_and(secrets::has_passwords);
        self.needs_configuring |= self.running.is_none() || has_secrets;
        if self.needs_configuring {
            self.reconcile().await;
        }
    }

    async fn poll_host_routes(&mut self) {
        let Some(bgp) = self.bgp.clone() else { return };
        if self.host_routes.refresh(&self.host, &bgp).await {
            self.local_routes.set_host_routes(self.host_routes.get());
            self.reconcile().await;
        }
    }

    async fn poll_next_hops(&mut self) {
        if self.next_hops.refresh().await
            && let Some((speaker, _, _)) = &self.running
        {
            // An error means that the speaker has ended, which `run` handles.
            let _ = speaker.set_unreachable(self.next_hops.unreachable()).await;
        }
    }

    /// Makes the speaker follow the plan and the secrets.
    async fn reconcile(&mut self) {
        let Some(bgp) = self.bgp.clone() else { return };
        self.state.set_bgp_log_severity(bgp.log_severity);
        if self.needs_configuring {
            let configured = match config::speaker(&bgp, self.limits, &self.secrets) {
                None => Err(BgpBackendError::NoRouterId),
                Some(TranslatedConfig { config, skipped }) => self.configure(config).await.map(|()| skipped),
            };
            self.needs_configuring = configured.is_err();
            self.report(configured);
        }
        let Some((speaker, _, _)) = &self.running else { return };
        for (net, attrs) in self.local_routes.changes(&bgp) {
            // An error means that the speaker has ended, which `run` handles.
            let _ = match attrs {
                Some(attrs) => speaker.originate(net, attrs).await,
                None => speaker.withdraw(net).await,
            };
        }
        let _ = speaker.local_complete().await;
        if self.local_routes.install_changed(&bgp) {
            self.resend_routes(&bgp).await;
        }
    }

    /// Logs a problem once, and its end. Sessions that are left out do not affect the others.
    fn report(&mut self, configured: Result<Vec<String>, BgpBackendError>) {
        let mut trouble = None;
        let mut skipped = None;
        match configured {
            Ok(sessions) => skipped = (!sessions.is_empty()).then(|| sessions.join("; ")),
            Err(error) => trouble = Some(error.to_string()),
        }
        let now = trouble.as_ref().or(skipped.as_ref());
        if self.reported.as_ref() != now {
            match now {
                Some(trouble) => {
                    tracing::warn!(trouble, "cannot apply the BGP configuration of the datastore")
                }
                None => tracing::info!("the BGP configuration of the datastore is applied"),
            }
            self.reported = now.cloned();
        }
        self.state.set_warning("bgp", skipped);
        self.state.set_trouble("bgp", trouble);
    }

    async fn configure(&mut self, config: SpeakerConfig) -> Result<(), BgpBackendError> {
        match &mut self.running {
            Some((_, _, current)) if *current == config => Ok(()),
            Some((speaker, _, current)) => {
                speaker.reconfigure(config.clone()).await?;
                *current = config;
                self.state.set_bgp_configured();
                Ok(())
            }
            None => {
                let host = self.host.clone();
                let sockets = SocketFactory::inside(move |make| host.run(make).map_err(io::Error::other)?);
                let restarting = self.follows_speaker().await;
                let (speaker, routes) = Speaker::start(config.clone(), sockets, restarting).await?;
                write_marker(&self.restart_marker);
                tracing::info!(asn = config.asn, router_id = %config.router_id, restarting, "BGP speaker started");
                let started = std::time::SystemTime::now();
                let backend = BgpBackend::Speaker(speaker.clone());
                self.state.set_running_bgp(Some(RunningBgp { backend, started, configured: started }));
                let _ = speaker.set_unreachable(self.next_hops.unreachable()).await;
                self.running = Some((speaker, routes, config));
                self.local_routes.forget_advertised();
                Ok(())
            }
        }
    }

    /// Returns whether another speaker has run since the host booted: our own left its marker file, BIRD left its
    /// routes. In that case peers still forward to this node and wait for it, and the kernel still has the previous
    /// routes.
    async fn follows_speaker(&self) -> bool {
        if self.restart_marker.exists() {
            return true;
        }
        tortie_dataplane::has_bgp_routes(&self.host).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the routes of the kernel; BGP starts as after a restart");
            true
        })
    }

    async fn install_batch(&mut self, batch: RouteChangeBatch) {
        let Some(bgp) = self.bgp.clone() else { return };
        let mut routes = Vec::with_capacity(batch.changes.len());
        let mut complete = false;
        for change in batch.changes {
            match change {
                RouteChange::Set(best) => {
                    let destination = best.prefix;
                    let route = kernel_route(&bgp, &best);
                    match &route {
                        Some(route) => self.best.insert(destination, route.clone()),
                        None => self.best.remove(&destination),
                    };
                    let route = route.filter(|_| bgp.install.wants(&destination));
                    routes.push(LearntRoute { destination, route });
                }
                RouteChange::Gone(destination) => {
                    self.best.remove(&destination);
                    routes.push(LearntRoute { destination, route: None });
                }
                RouteChange::Complete => complete = true,
            }
        }
        // Fails only if the engine has ended, which ends the node.
        let _ = self.learnt.send(RouteUpdates { routes, complete, since: batch.since }).await;
    }

    /// Sends all routes again, after the selection of routes for the kernel has changed.
    async fn resend_routes(&mut self, bgp: &BgpConfig) {
        let routes = self.best.iter().map(|(destination, route)| LearntRoute {
            destination: *destination,
            route: bgp.install.wants(destination).then(|| route.clone()),
        });
        let routes = routes.collect();
        let _ = self.learnt.send(RouteUpdates { routes, complete: false, since: Instant::now() }).await;
    }

    /// Stops the speaker without a NOTIFICATION message, so that peers keep our routes for the restart time.
    async fn stop(self) {
        if let Some((speaker, _, _)) = self.running {
            let _ = speaker.shutdown(ShutdownMode::Graceful).await;
        }
    }
}

/// Writes the marker file, by which the next start knows that the kernel contains routes of BGP.
fn write_marker(restart_marker: &Path) {
    if let Err(error) = std::fs::write(restart_marker, "") {
        tracing::warn!(%error, path = %restart_marker.display(), "cannot write the marker file; the next restart of BGP will not be graceful");
    }
}

/// Returns the kernel route for a best route: our own blocks become blackhole routes, behind the more specific routes
/// of workloads. Our other routes are already in the kernel.
fn kernel_route(bgp: &BgpConfig, route: &BestRoute) -> Option<LearntNextHops> {
    let metric = LOCAL_PREF_OF_METRIC_0.saturating_sub(route.attrs.local_pref());
    if route.local {
        let single = route.prefix.prefix_len() == route.prefix.max_prefix_len();
        let block = !single && bgp.export.blocks.contains_key(&route.prefix);
        return block.then(|| LearntNextHops { next_hops: Vec::new(), metric });
    }
    let next_hops = route.next_hops.iter().map(|next_hop| next_hop.address).collect();
    Some(LearntNextHops { next_hops, metric })
}

async fn next_batch(
    running: &mut Option<(Speaker, RouteChangeStream, SpeakerConfig)>,
) -> Option<RouteChangeBatch> {
    match running {
        Some((_, routes, _)) => routes.next_batch().await,
        None => std::future::pending().await,
    }
}
