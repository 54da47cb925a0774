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
mod mailbox;
mod metrics;
mod next_hops;
mod secrets;

pub use backend::{BackendChoice, BgpBackend};
pub use bird::BIRD_COMPONENT as BIRD;

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

pub use health::{DEFAULT_SESSION_GRACE_PERIOD, near_limit, ready};
pub use metrics::metrics;
use tokio::sync::mpsc;
use tortie_bgp::core::{BestRoute, RouteChange, ShutdownMode};
use tortie_bgp::{RouteChangeBatch, RouteChangeStream, SocketFactory, Speaker, SpeakerConfig};
use tortie_dataplane::Netns;
use tortie_plan::bgp::{BgpConfig, LOCAL_PREF_OF_METRIC_0};
use tortie_plan::{LearntRouteEntry, PlanUpdate};

/// Interval between checks of the passwords, and between attempts to start.
const BGP_POLL_INTERVAL: Duration = Duration::from_secs(2);
const LEARNT_ROUTES_CAPACITY: usize = 16;

/// The channels between the engine and BGP.
pub struct BgpHandle {
    /// Plan updates, sent once the kernel has them.
    pub plan: mailbox::PlanUpdateSender,
    /// Routes for the kernel.
    pub learnt: mpsc::Receiver<RouteUpdates>,
}

/// Routes for the kernel, and when the oldest of them was learnt.
#[derive(Debug)]
pub struct RouteUpdates {
    pub routes: Vec<PlanUpdate>,
    pub since: Instant,
}

/// Starts the selected BGP backend, if any.
pub fn start(
    choice: BackendChoice,
    args: &NodeArgs,
    host: &Netns,
    state: &Arc<NodeState>,
) -> Option<BgpHandle> {
    let (secrets, restart_marker) = (args.secrets_dir.clone(), args.run_dir.join("bgp"));
    match choice {
        BackendChoice::Speaker => {
            let limits = PeerLimits { prefixes: args.bgp_max_prefixes, paths: args.bgp_max_paths };
            Some(BgpTask::start(host.clone(), state.clone(), secrets, restart_marker, limits))
        }
        BackendChoice::Bird => {
            let paths = BirdPaths { config: args.bird_config.clone(), socket: args.bird_socket.clone() };
            Some(BirdTask::start(state.clone(), secrets, paths, restart_marker))
        }
        BackendChoice::Off => None,
    }
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
    best: BTreeMap<IpNet, LearntRouteEntry>,
    learnt: mpsc::Sender<RouteUpdates>,
    /// The state that was logged last.
    reported: Option<String>,
}

impl BgpTask {
    fn start(
        host: Netns,
        state: Arc<NodeState>,
        secrets: PathBuf,
        restart_marker: PathBuf,
        limits: PeerLimits,
    ) -> BgpHandle {
        let (plan, plans) = mailbox::mailbox();
        let (learnt, receiver) = mpsc::channel(LEARNT_ROUTES_CAPACITY);
        let task = BgpTask {
            next_hops: UnreachableNextHops::new(host.clone(), state.unreachable()),
            host,
            state,
            secrets: SecretDirectory::new(secrets),
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
        };
        task.state.set_trouble("bgp", Some("BGP has not started yet".to_owned()));
        tokio::spawn(task.run(plans));
        BgpHandle { plan, learnt: receiver }
    }

    async fn run(mut self, mut plans: mailbox::PlanUpdateReceiver) {
        let mut poll = tokio::time::interval(BGP_POLL_INTERVAL);
        loop {
            tokio::select! {
                updates = plans.recv() => match updates {
                    Some(updates) => self.apply_updates(updates).await,
                    None => return self.stop().await,
                },
                batch = next(&mut self.running) => match batch {
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

    async fn apply_updates(&mut self, updates: Vec<PlanUpdate>) {
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
        self.reconcile().await;
    }

    /// Checks the secrets, which may have changed, and retries what failed.
    async fn poll_secrets(&mut self) {
        let secret = |bgp: &Arc<BgpConfig>| bgp.sessions.values().any(|session| session.password.is_some());
        self.needs_configuring |= self.running.is_none() || self.bgp.as_ref().is_some_and(secret);
        if self.needs_configuring {
            self.reconcile().await;
        }
    }

    async fn poll_host_routes(&mut self) {
        let Some(bgp) = self.bgp.clone() else { return };
        if self.host_routes.refresh(&self.host, &bgp).await {
            self.local_routes.host_routes_are(self.host_routes.get());
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
        if self.needs_configuring {
            let configured = match config::speaker(&bgp, self.limits, |secret| self.secrets.read(secret)) {
                None => {
                    Err("the node has no IPv4 address to be its router ID; set CALICO_ROUTER_ID".to_owned())
                }
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
    fn report(&mut self, configured: Result<Vec<String>, String>) {
        let (trouble, skipped) = match configured {
            Ok(skipped) => (None, Some(skipped.join("; ")).filter(|skipped| !skipped.is_empty())),
            Err(trouble) => (Some(trouble), None),
        };
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

    async fn configure(&mut self, config: SpeakerConfig) -> Result<(), String> {
        match &mut self.running {
            Some((_, _, current)) if *current == config => Ok(()),
            Some((speaker, _, current)) => {
                speaker.reconfigure(config.clone()).await.map_err(|error| error.to_string())?;
                *current = config;
                self.state.note_configured();
                Ok(())
            }
            None => {
                let host = self.host.clone();
                let sockets = SocketFactory::inside(move |make| host.run(make).map_err(io::Error::other)?);
                let restarting = self.follows_speaker().await;
                let started = Speaker::start(config.clone(), sockets, restarting).await;
                let (speaker, routes) = started.map_err(|error| error.to_string())?;
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
        for change in batch.changes {
            match change {
                RouteChange::Set(route) => {
                    let (net, learnt) = (route.prefix, kernel_route(&bgp, &route));
                    routes.push(PlanUpdate::Learnt(net, learnt.clone().filter(|_| bgp.install.wants(&net))));
                    match learnt {
                        Some(learnt) => self.best.insert(net, learnt),
                        None => self.best.remove(&net),
                    };
                }
                RouteChange::Gone(net) => {
                    self.best.remove(&net);
                    routes.push(PlanUpdate::Learnt(net, None));
                }
                RouteChange::Complete => routes.push(PlanUpdate::LearntComplete),
            }
        }
        // Fails only if the engine has ended, which ends the node.
        let _ = self.learnt.send(RouteUpdates { routes, since: batch.since }).await;
    }

    /// Sends all routes again, after the selection of routes for the kernel has changed.
    async fn resend_routes(&mut self, bgp: &BgpConfig) {
        let wanted =
            |net: &IpNet, learnt: &LearntRouteEntry| Some(learnt.clone()).filter(|_| bgp.install.wants(net));
        let routes =
            self.best.iter().map(|(net, learnt)| PlanUpdate::Learnt(*net, wanted(net, learnt))).collect();
        let _ = self.learnt.send(RouteUpdates { routes, since: Instant::now() }).await;
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
fn kernel_route(bgp: &BgpConfig, route: &BestRoute) -> Option<LearntRouteEntry> {
    let metric = LOCAL_PREF_OF_METRIC_0.saturating_sub(route.attrs.local_pref());
    if route.local {
        let single = route.prefix.prefix_len() == route.prefix.max_prefix_len();
        let block = !single && bgp.export.blocks.contains_key(&route.prefix);
        return block.then(|| LearntRouteEntry { next_hops: Vec::new(), metric });
    }
    let next_hops = route.next_hops.iter().map(|next_hop| next_hop.address.into()).collect();
    Some(LearntRouteEntry { next_hops, metric })
}

async fn next(running: &mut Option<(Speaker, RouteChangeStream, SpeakerConfig)>) -> Option<RouteChangeBatch> {
    match running {
        Some((_, routes, _)) => routes.next_batch().await,
        None => std::future::pending().await,
    }
}
