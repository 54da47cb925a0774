//! The task that owns the dataplane: receives plans and kernel events, and makes the kernel converge on the desired
//! state.

mod audits;
mod converge;
mod task;

use crate::arrivals::ArrivalListener;
use crate::error::{DataplaneError, DataplaneResult};
use crate::failure::KernelFailure;
use crate::felix::{FelixLeftovers, FelixWatch};
use crate::flow::SharedGeneration;
use crate::kernel::{KernelEventStream, RtnetlinkClient};
use crate::mtu::MtuChoice;
use crate::netns::Netns;
use crate::policy::{self, DeniedFlows};
use crate::reconcile::{DataplaneCore, KernelHandle};
use crate::reports::{ReportOutbox, ReportReceiver};
use crate::sysctl::{self, SysctlSetting};
use crate::wireguard_keys::WireguardKeys;
use audits::AuditSchedule;
use regex::Regex;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use task::{DataplaneEngine, StaleState};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tortie_plan::flow::FlowEvent;
use tortie_plan::{DataplaneSettings, NodePlan, PlanUpdate};

const COMMAND_CHANNEL_CAPACITY: usize = 64;

/// Result of an update: workloads that no failure concerns are completely in the kernel. Failures of earlier updates
/// that concern workloads are listed until they are resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyOutcome {
    pub failures: Vec<KernelFailure>,
}

enum DataplaneChange {
    Replace(Box<NodePlan>),
    Updates(Vec<PlanUpdate>),
    Settings(Box<DataplaneSettings>, Regex),
}

struct DataplaneCommand {
    change: DataplaneChange,
    done: oneshot::Sender<ApplyOutcome>,
}

/// Handle to the dataplane of one node. Dropping it stops the engine and leaves the kernel as it is.
pub struct DataplaneHandle {
    commands: mpsc::Sender<DataplaneCommand>,
    mtu: watch::Receiver<MtuChoice>,
    engine: JoinHandle<()>,
    turns: Arc<AtomicU64>,
    flow_events: Option<mpsc::Receiver<FlowEvent>>,
    generation: SharedGeneration,
}

impl DataplaneHandle {
    /// Opens netlink in `host`, reads the existing kernel state and starts watching it. Changes nothing but the
    /// forwarding sysctls. WireGuard keys are not persisted: they live as long as their devices.
    pub async fn start(
        host: Netns,
        settings: DataplaneSettings,
    ) -> DataplaneResult<(DataplaneHandle, ReportReceiver)> {
        DataplaneHandle::start_with_keys(host, settings, WireguardKeys::default()).await
    }

    /// Like [`DataplaneHandle::start`], with a store for the keys of WireGuard devices.
    pub async fn start_with_keys(
        host: Netns,
        settings: DataplaneSettings,
        keys: WireguardKeys,
    ) -> DataplaneResult<(DataplaneHandle, ReportReceiver)> {
        let pattern = mtu_pattern(&settings)?;
        let kernel = RtnetlinkClient::open(&host)?;
        // Subscribe before the first snapshot, so that no change between the two is missed.
        let events = KernelEventStream::open(&host, &kernel).await?;
        let switches = forwarding_switches(&settings);
        sysctl::write(&host, switches.clone()).await?;
        let rp_filter = sysctl::read(&host, "net/ipv4/conf/default/rp_filter").await?.unwrap_or(1);
        let started = Instant::now();
        let denied_flows = settings.policy.cut_denied_flows.then(DeniedFlows::default);
        let leftovers = FelixLeftovers::new(host.clone());
        let felix_watch = FelixWatch::new(host.clone());
        let mut audits = AuditSchedule::default();
        audits.configure(&settings);
        let mut policy = policy::open_engine(&host, settings.clone())?;
        let core = DataplaneCore::new(settings, pattern, rp_filter, kernel.snapshot().await?);

        let flows = policy.flow_source();
        let (flow_events, generation) = (flows.take_events(), flows.generation());
        let (commands, inbox) = mpsc::channel(COMMAND_CHANNEL_CAPACITY);
        let (mtu, mtu_receiver) = watch::channel(core.mtu());
        let (outbox, reports) = ReportOutbox::new(mtu);
        let engine = DataplaneEngine {
            kernel: KernelHandle::new(host, kernel, keys),
            events,
            core,
            policy,
            denied_flows,
            leftovers,
            felix_watch,
            switches,
            started,
            audits,
            stale: StaleState::default(),
            arrivals: ArrivalListener::default(),
            outbox,
            turns: Arc::default(),
        };
        let turns = engine.turns.clone();
        let engine = tokio::spawn(engine.run(inbox));
        let handle = DataplaneHandle { commands, mtu: mtu_receiver, engine, turns, flow_events, generation };
        Ok((handle, reports))
    }

    /// Stops the engine and returns when it has stopped. A caller that starts another dataplane must wait for this: an
    /// engine that still runs would treat the writes of its successor as foreign changes and undo them.
    pub async fn stop(self) {
        let DataplaneHandle { commands, engine, .. } = self;
        drop(commands);
        // An error means that the engine has panicked: it has ended in either case.
        let _ = engine.await;
    }

    /// Replaces the desired state as a whole. From the first call on, the engine removes its own objects that are not
    /// in the plan.
    pub async fn replace(&self, plan: NodePlan) -> DataplaneResult<ApplyOutcome> {
        self.send(DataplaneChange::Replace(Box::new(plan))).await
    }

    /// Applies changes and returns when they are in the kernel. Failed changes are retried until they succeed or are
    /// superseded.
    pub async fn apply(&self, updates: Vec<PlanUpdate>) -> DataplaneResult<ApplyOutcome> {
        self.send(DataplaneChange::Updates(updates)).await
    }

    /// Applies new settings; kernel objects that do not depend on a changed setting stay as they are.
    /// `cut_denied_flows` is only read by [`DataplaneHandle::start`].
    pub async fn configure(&self, settings: DataplaneSettings) -> DataplaneResult<ApplyOutcome> {
        let pattern = mtu_pattern(&settings)?;
        self.send(DataplaneChange::Settings(Box::new(settings), pattern)).await
    }

    async fn send(&self, change: DataplaneChange) -> DataplaneResult<ApplyOutcome> {
        let (done, outcome) = oneshot::channel();
        self.commands.send(DataplaneCommand { change, done }).await.map_err(|_| DataplaneError::Stopped)?;
        outcome.await.map_err(|_| DataplaneError::Stopped)
    }

    /// Returns the receiver of flow events, once. The settings determine whether there are any; they can change at any
    /// time.
    pub fn take_flow_events(&mut self) -> Option<mpsc::Receiver<FlowEvent>> {
        self.flow_events.take()
    }

    /// Returns the number of the policy in the kernel: flow events carry it, and it advances before
    /// [`DataplaneHandle::apply`] and its siblings return.
    pub fn policy_generation(&self) -> SharedGeneration {
        self.generation.clone()
    }

    /// Returns the counter of the engine's loop iterations: it advances at least once a second unless the engine is
    /// stuck.
    pub fn turns(&self) -> Arc<AtomicU64> {
        self.turns.clone()
    }

    /// Returns whether the engine is running; it ends by itself only when it can no longer read the kernel's events.
    pub fn is_running(&self) -> bool {
        !self.engine.is_finished()
    }

    /// Returns the MTU that workloads should have now.
    pub fn mtu(&self) -> MtuChoice {
        self.mtu.borrow().clone()
    }
}

fn mtu_pattern(settings: &DataplaneSettings) -> DataplaneResult<Regex> {
    Regex::new(&settings.mtu_interface_pattern)
        .map_err(|error| DataplaneError::Invalid { field: "mtuIfacePattern", reason: error.to_string() })
}

fn forwarding_switches(settings: &DataplaneSettings) -> Vec<SysctlSetting> {
    let mut switches = Vec::new();
    if settings.ip_forwarding {
        switches.push(SysctlSetting::new("net/ipv4/ip_forward".into(), 1));
        if settings.ipv6 {
            // Lenient, as a node's kernel may lack IPv6.
            switches.push(SysctlSetting::lenient("net/ipv6/conf/all/forwarding".into(), 1));
        }
    }
    if settings.host_encryption {
        // Packets that arrive unencrypted carry a mark. With this sysctl the reverse path lookup uses the mark too and
        // so bypasses the tunnel.
        switches.push(SysctlSetting::new("net/ipv4/conf/all/src_valid_mark".into(), 1));
    }
    switches
}
