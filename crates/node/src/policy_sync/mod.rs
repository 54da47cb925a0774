//! The policy-sync server: sends the policy of each workload to the workload's proxy, over a Unix socket in a volume of
//! the workload. A consumer of the plan.
//!
//! A workload whose client is in sync has an HTTP proxy: only then rules with HTTP conditions let connections pass to it.
//! The server is active while the setting `policySyncPathPrefix` names a directory. Its clients are not trusted: sockets,
//! connections, streams and messages are limited, and a client that does not read delays nothing.

mod credentials;
mod hub;
mod live_record;
mod service;
mod socket;
mod stream_budget;
mod subscriber;
mod sync_plan;

use crate::engine::{EngineHandle, PlanConsumer, PlanReceiver, PlanStage};
use crate::options::NodeArgs;
use crate::state::NodeState;
use credentials::{CredentialDirectory, CredentialRound, WorkloadCredentials};
use hub::SyncHub;
use live_record::LiveRecord;
use socket::{SocketFile, WorkloadSocket};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tortie_plan::{NodePlan, PlanUpdate};

/// Interval between reads of the credential files.
const CREDENTIALS_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time after a restart of the daemon in which proxies may connect again before their workloads count as having none.
const RECONNECT_GRACE_PERIOD: Duration = Duration::from_secs(10);
/// Delay before a socket that could not be created is tried again.
const SOCKET_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Name of the warning on the health page.
const COMPONENT: &str = "policy sync";

/// Proxies receive a change as soon as it is planned: a proxy and the kernel each decide about a connection with their
/// own state, both must admit it, and a kernel that is slow must not delay the decision of a proxy.
pub const PLAN_CONSUMER: PlanConsumer = PlanConsumer {
    name: "policysync",
    stage: PlanStage::Planned,
    enabled: |parameters| !parameters.policy_sync_path_prefix.is_empty(),
    wants: |update| {
        matches!(
            update,
            PlanUpdate::Set(..)
                | PlanUpdate::Members { .. }
                | PlanUpdate::Policy(..)
                | PlanUpdate::Profile(..)
                | PlanUpdate::WorkloadPolicy(..)
                | PlanUpdate::Namespace(..)
                | PlanUpdate::ServiceAccount(..)
        )
    },
    select: |plan| NodePlan {
        sets: plan.sets.clone(),
        policies: plan.policies.clone(),
        profiles: plan.profiles.clone(),
        workload_policies: plan.workload_policies.clone(),
        namespaces: plan.namespaces.clone(),
        service_accounts: plan.service_accounts.clone(),
        ..NodePlan::default()
    },
};

/// The server of all workloads.
pub struct SyncServer {
    hub: Arc<SyncHub>,
    state: Arc<NodeState>,
    /// The directory of the setting; empty while the server is off.
    prefix: PathBuf,
    directory: CredentialDirectory,
    /// Sockets by UID.
    served: BTreeMap<String, ServedWorkload>,
    /// UIDs whose socket could not be created, with the time of the next attempt.
    failed: BTreeMap<String, Instant>,
    /// When workloads of the previous daemon without a client count as having no proxy; `None` before the node is in
    /// sync.
    grace_until: Option<Instant>,
    restoring: bool,
}

/// A socket with its server, which ends when this is dropped.
struct ServedWorkload {
    credentials: WorkloadCredentials,
    file: SocketFile,
    stop: watch::Sender<bool>,
}

impl SyncServer {
    /// Creates the server. Workloads that had a live proxy when the previous daemon ended keep it for now.
    pub fn new(args: &NodeArgs, engine: EngineHandle, state: Arc<NodeState>) -> SyncServer {
        let record = LiveRecord::new(args.http_proxies_file());
        SyncServer {
            hub: Arc::new(SyncHub::new(engine, record, state.clone())),
            state,
            prefix: PathBuf::new(),
            directory: CredentialDirectory::default(),
            served: BTreeMap::new(),
            failed: BTreeMap::new(),
            grace_until: None,
            restoring: true,
        }
    }

    /// Runs until the engine ends.
    pub async fn run(mut self, mut plan: PlanReceiver) {
        let mut poll = tokio::time::interval(CREDENTIALS_POLL_INTERVAL);
        poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let hub = self.hub.clone();
        loop {
            tokio::select! {
                change = plan.recv() => match change {
                    Some(change) => hub.apply_change(change),
                    None => return,
                },
                () = hub.live_changed() => hub.write_record(),
                _ = poll.tick() => if self.state.is_in_sync() {
                    self.poll().await;
                },
            }
        }
    }

    async fn poll(&mut self) {
        self.follow_setting();
        if !self.prefix.as_os_str().is_empty() {
            self.read_credentials().await;
            self.hub.close_stalled();
        }
        let grace = if self.prefix.as_os_str().is_empty() { Duration::ZERO } else { RECONNECT_GRACE_PERIOD };
        let until = *self.grace_until.get_or_insert_with(|| Instant::now() + grace);
        if self.restoring && Instant::now() >= until {
            self.restoring = false;
            self.hub.end_restoration();
        }
    }

    /// Closes all sockets if the setting has changed.
    fn follow_setting(&mut self) {
        let text = self.state.parameters().borrow().policy_sync_path_prefix.clone();
        let prefix = PathBuf::from(&text);
        let is_valid = text.is_empty() || prefix.is_absolute();
        self.state.set_warning(
            COMPONENT,
            (!is_valid).then(|| {
                format!("policySyncPathPrefix: {text:?} is not an absolute path; no proxy receives policy")
            }),
        );
        let prefix = if is_valid { prefix } else { PathBuf::new() };
        if prefix == self.prefix {
            return;
        }
        // The directories stay: volumes of running pods lead to them, and the setting may come back.
        for (_, served) in std::mem::take(&mut self.served) {
            self.close(&served);
        }
        self.directory = CredentialDirectory::default();
        self.failed.clear();
        if !prefix.as_os_str().is_empty() {
            tracing::info!(prefix = %prefix.display(), "proxies of workloads can receive policy");
        }
        self.prefix = prefix;
    }

    async fn read_credentials(&mut self) {
        let mut directory = std::mem::take(&mut self.directory);
        let creds = self.prefix.join("creds");
        let read = tokio::task::spawn_blocking(move || {
            let round = directory.read(&creds);
            (directory, round)
        });
        // The task neither panics nor is cancelled, except when the runtime ends.
        let Ok((directory, round)) = read.await else { return };
        self.directory = directory;
        match round {
            Ok(round) => self.apply_credentials(round),
            Err(error) => {
                let reason = format!("cannot read the credentials in {}: {error}", self.prefix.display());
                self.state.set_warning(COMPONENT, Some(reason));
            }
        }
    }

    fn apply_credentials(&mut self, round: CredentialRound) {
        for (file, error) in round.refused {
            self.refuse(&file, &error);
        }
        if self.restoring {
            self.hub.retain_restored(&round.credentials);
        }
        let stale = self.served.extract_if(.., |uid, served| {
            round.credentials.get(uid) != Some(&served.credentials) || !served.file.exists()
        });
        let stale: Vec<(String, ServedWorkload)> = stale.collect();
        for (uid, served) in stale {
            self.close(&served);
            if !round.credentials.contains_key(&uid) {
                served.file.remove_directory();
            }
        }
        self.failed.retain(|uid, _| round.credentials.contains_key(uid));
        let now = Instant::now();
        for (uid, credentials) in round.credentials {
            let waits = self.failed.get(&uid).is_some_and(|retry_at| now < *retry_at);
            if !waits && !self.served.contains_key(&uid) {
                self.open(uid, credentials);
            }
        }
    }

    fn open(&mut self, uid: String, credentials: WorkloadCredentials) {
        let socket = match WorkloadSocket::bind(&self.mount(), &uid) {
            Ok(socket) => socket,
            Err(error) => {
                if self.failed.insert(uid.clone(), Instant::now() + SOCKET_RETRY_DELAY).is_none() {
                    self.refuse(&uid, &error);
                }
                return;
            }
        };
        self.failed.remove(&uid);
        let (listener, file) = socket.into_parts();
        let (stop, stopped) = watch::channel(false);
        tracing::info!(uid, workload = credentials.workload.workload, "serving the policy of a workload");
        tokio::spawn(service::serve_workload(self.hub.clone(), credentials.clone(), listener, stopped));
        self.served.insert(uid, ServedWorkload { credentials, file, stop });
    }

    fn close(&self, served: &ServedWorkload) {
        served.stop.send_replace(true);
        self.hub.close_workload(&served.credentials.workload);
        served.file.remove();
    }

    fn refuse(&self, object: &str, error: &dyn std::fmt::Display) {
        self.state.metrics.policy_sync.refused_credentials.inc();
        tracing::warn!(object, %error, "cannot use the credentials of a workload; its proxy receives no policy; trying again");
    }

    fn mount(&self) -> PathBuf {
        self.prefix.join("mount")
    }
}
