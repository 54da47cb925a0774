//! Runs the server: follows the store and the interfaces of the host, and serves each interface that has a lease.

use crate::codec::frame::MacAddress;
use crate::error::DhcpError;
use crate::lease::{InterfaceLease, LinkIdentity, PortState};
use crate::metrics::DhcpMetrics;
use crate::options::DhcpOptions;
use crate::port::{PortServer, PortSockets};
use crate::table::{LeaseProblem, LeaseTable};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use prometheus_client::metrics::counter::Counter;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tortie_dataplane::{HostLink, LinkMonitor, Netns};
use tortie_http::liveness::Liveness;
use tortie_model::FeedEvent;
use tortie_store::{StoreClient, StoreConfig};

/// Time for which changes are collected before interfaces are updated.
const UPDATE_DELAY: Duration = Duration::from_millis(50);
/// Interval of a comparison with the kernel, which also retries interfaces that could not be opened.
const AUDIT_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of endpoints whose problems are logged after one change.
const MAX_LOGGED_PROBLEMS: usize = 20;
const TEXT_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves until SIGTERM or SIGINT. Machines keep their leases when it ends.
pub async fn run(options: DhcpOptions, config: StoreConfig) -> Result<(), DhcpError> {
    let shutdown = tortie_http::shutdown_signal().map_err(DhcpError::Signals)?;
    run_until(shutdown, options, config, Netns::current()?).await
}

/// Serves the interfaces of a namespace until the future completes.
pub async fn run_until(
    shutdown: impl Future<Output = ()>,
    options: DhcpOptions,
    config: StoreConfig,
    netns: Netns,
) -> Result<(), DhcpError> {
    options.check()?;
    if config.capabilities()?.includes_kubernetes {
        return Err(DhcpError::NotEtcd);
    }
    let metrics = Arc::new(DhcpMetrics::new());
    let liveness = Arc::new(Liveness::default());
    let (in_sync, is_in_sync) = watch::channel(false);
    let pages = serve_pages(&options, metrics.clone(), liveness.clone(), is_in_sync).await?;
    let serving = async {
        let client = StoreClient::connect_waiting(&config, |error| {
            tracing::warn!(%error, "waiting for the datastore; trying again");
        })
        .await?;
        let watches = liveness.part("datastore-watch");
        let feed = tortie_sync::follow(&client, LeaseTable::ranges(&options.leases), move || watches.beat());
        let monitor = LinkMonitor::open(&netns).await?;
        tracing::info!(host = options.leases.host, "serving DHCP for the virtual machines of this host");
        let server = DhcpServer {
            table: LeaseTable::new(options.leases.clone()),
            leases: BTreeMap::new(),
            problems: BTreeMap::new(),
            ports: BTreeMap::new(),
            requests_per_second: options.requests_per_second,
            netns,
            metrics,
            in_sync,
        };
        server.serve(feed, monitor, &liveness).await
    };
    tokio::select! {
        () = shutdown => {
            tracing::info!("stopping; virtual machines keep their leases");
            Ok(())
        }
        outcome = serving => outcome,
        () = pages => Ok(()),
    }
}

/// Serves metrics, liveness and readiness, if an address is configured.
async fn serve_pages(
    options: &DhcpOptions,
    metrics: Arc<DhcpMetrics>,
    liveness: Arc<Liveness>,
    in_sync: watch::Receiver<bool>,
) -> Result<impl Future<Output = ()> + use<>, DhcpError> {
    let listener = match options.listen {
        Some(address) => {
            let bound = TcpListener::bind(address).await;
            Some(bound.map_err(|source| DhcpError::Listen { address, source })?)
        }
        None => None,
    };
    let render = async move || ([("content-type", TEXT_CONTENT_TYPE)], metrics.render());
    let ready = async move || {
        if *in_sync.borrow() {
            return (StatusCode::OK, "ready\n");
        }
        (StatusCode::SERVICE_UNAVAILABLE, "waiting for the datastore\n")
    };
    let router = Router::new()
        .route("/metrics", get(render))
        .route("/liveness", get(async move || liveness.page()))
        .route("/readiness", get(ready));
    Ok(async move {
        match listener {
            Some(listener) => tortie_http::serve(listener, router, None, Counter::default()).await,
            None => std::future::pending().await,
        }
    })
}

struct DhcpServer {
    table: LeaseTable,
    /// By interface.
    leases: BTreeMap<String, Arc<InterfaceLease>>,
    problems: BTreeMap<String, Vec<LeaseProblem>>,
    ports: BTreeMap<String, ServedPort>,
    requests_per_second: u32,
    netns: Netns,
    metrics: Arc<DhcpMetrics>,
    in_sync: watch::Sender<bool>,
}

/// An interface that is served.
struct ServedPort {
    index: u32,
    /// Families that the sockets were opened for.
    families: [bool; 2],
    state: watch::Sender<Arc<PortState>>,
    task: JoinHandle<()>,
}

impl Drop for ServedPort {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl DhcpServer {
    async fn serve(
        mut self,
        mut feed: tortie_sync::Feed,
        mut monitor: LinkMonitor,
        liveness: &Liveness,
    ) -> Result<(), DhcpError> {
        let heartbeat = liveness.part("main-loop");
        let mut audit = tokio::time::interval(AUDIT_INTERVAL);
        let mut leases_changed = false;
        let mut due: Option<Instant> = None;
        loop {
            tokio::select! {
                event = feed.recv() => {
                    let event = event.ok_or(DhcpError::Feed)?;
                    report_connection(&event);
                    if self.table.apply(event) {
                        leases_changed = true;
                        due.get_or_insert_with(|| Instant::now() + UPDATE_DELAY);
                    }
                }
                changed = monitor.changed() => {
                    changed?;
                    due.get_or_insert_with(|| Instant::now() + UPDATE_DELAY);
                }
                _ = audit.tick() => {
                    heartbeat.beat();
                    due.get_or_insert_with(Instant::now);
                }
                () = wait_until(due) => {
                    due = None;
                    // Before the snapshot is complete, an endpoint may only seem to have no subnet.
                    if self.table.is_in_sync() {
                        if std::mem::take(&mut leases_changed) {
                            self.update_leases();
                        }
                        self.update_ports(monitor.links().await?).await;
                        self.in_sync.send_replace(true);
                    }
                    self.update_gauges();
                }
            }
        }
    }

    fn update_leases(&mut self) {
        let derived = self.table.derive();
        let before = std::mem::take(&mut self.leases);
        self.leases = derived
            .leases
            .into_iter()
            .map(|(interface, lease)| match before.get(&interface) {
                Some(known) if **known == lease => (interface, known.clone()),
                _ => (interface, Arc::new(lease)),
            })
            .collect();
        let new =
            derived.problems.iter().filter(|(name, problems)| self.problems.get(*name) != Some(problems));
        for (endpoint, problems) in new.take(MAX_LOGGED_PROBLEMS) {
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            tracing::warn!(endpoint, "endpoint without a complete lease: {}", problems.join("; "));
        }
        self.problems = derived.problems;
    }

    /// Opens, updates and closes interfaces.
    async fn update_ports(&mut self, links: BTreeMap<String, HostLink>) {
        let leases = &self.leases;
        self.ports.retain(|name, port| {
            let is_wanted = leases.get(name).is_some_and(|lease| port.families == families_of(lease))
                && links.get(name).is_some_and(|link| link.is_up && link.index == port.index)
                && !port.task.is_finished();
            if !is_wanted {
                tracing::debug!(interface = name, "closing an interface");
            }
            is_wanted
        });
        for (name, lease) in leases {
            let Some(link) = links.get(name).filter(|link| link.is_up) else { continue };
            let state = PortState { link: describe_link(link), lease: InterfaceLease::clone(lease) };
            if let Some(port) = self.ports.get(name) {
                port.state.send_if_modified(|known| {
                    let is_new = **known != state;
                    if is_new {
                        *known = Arc::new(state);
                    }
                    is_new
                });
                continue;
            }
            let sockets = match PortSockets::open(&self.netns, link, &state).await {
                Ok(sockets) => sockets,
                Err(error) => {
                    self.metrics.open_failures.inc();
                    tracing::warn!(interface = name, %error, "cannot serve an interface; trying again");
                    continue;
                }
            };
            tracing::debug!(interface = name, "serving an interface");
            let families = families_of(lease);
            let (state, receiver) = watch::channel(Arc::new(state));
            let server = PortServer::new(sockets, receiver, self.metrics.clone(), self.requests_per_second);
            let task = tokio::spawn(serve_port(name.clone(), server));
            self.ports.insert(name.clone(), ServedPort { index: link.index, families, state, task });
        }
    }

    fn update_gauges(&self) {
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics.interfaces.set(gauge(self.ports.len()));
        self.metrics.endpoints.set(gauge(self.table.endpoint_count()));
        self.metrics.subnets.set(gauge(self.table.subnet_count()));
        self.metrics.faulty_endpoints.set(gauge(self.problems.len()));
        self.metrics.ignored_entries.set(i64::try_from(self.table.ignored_entries).unwrap_or(i64::MAX));
        self.metrics.unreadable_entries.set(i64::try_from(self.table.unreadable_entries).unwrap_or(i64::MAX));
        self.metrics.in_sync.set(i64::from(self.table.is_in_sync()));
    }
}

async fn serve_port(interface: String, server: PortServer) {
    // The interface was removed or set down; if it returns, the next update opens it again.
    if let Err(error) = server.serve().await {
        tracing::debug!(interface, %error, "an interface is not served any more");
    }
}

fn families_of(lease: &InterfaceLease) -> [bool; 2] {
    [lease.v4.is_some(), lease.v6.is_some()]
}

fn describe_link(link: &HostLink) -> LinkIdentity {
    LinkIdentity { mac: MacAddress(link.mac), link_local: link.link_local, mtu: link.mtu }
}

fn report_connection(event: &FeedEvent) {
    match event {
        FeedEvent::ConnectionLost { reason } => {
            tracing::warn!(%reason, "the datastore is unavailable; leases stay in force");
        }
        FeedEvent::ConnectionBack { failed_attempts } => {
            tracing::info!(failed_attempts, "the datastore is available again");
        }
        _ => {}
    }
}

async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
