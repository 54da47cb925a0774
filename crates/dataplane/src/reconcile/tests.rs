//! Property test for every kind of object: whatever the plan and the state of the kernel, the kernel converges on the
//! plan and objects of other programs stay. Each kind has a small model of the kernel next to its reconciler.

use super::{DataplaneCore, KernelObservation, ReconcileOperations, ReconcileStep, Reconcilers};
use crate::kernel::{KernelLink, KernelSnapshot};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use regex::Regex;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;
use tortie_plan::{DataplaneSettings, NodePlan, PlanUpdate, PlannedWorkload, WorkloadId};

pub const AFTER_GRACE_PERIOD: Duration = Duration::from_secs(3600);

/// A model of the kernel for one kind of object.
pub trait ModelKernel {
    type Reconciler: ReconcileOperations;
    /// The objects in the kernel.
    type State: Clone + Debug + PartialEq;

    fn select(reconcilers: &mut Reconcilers) -> &mut Self::Reconciler;

    /// Adds the objects to a snapshot.
    fn read(state: &Self::State, snapshot: &mut KernelSnapshot);

    /// Applies an operation as the kernel does, and panics if the kernel would reject it.
    fn execute(
        state: &mut Self::State,
        operation: &<Self::Reconciler as ReconcileOperations>::Operation,
    ) -> Vec<KernelObservation>;

    /// Reads the state that is read once after each round.
    fn observe(_: &Self::State) -> Option<KernelObservation> {
        None
    }

    /// Returns a description of each object that belongs to another program.
    fn foreign(state: &Self::State, core: &DataplaneCore) -> BTreeSet<String>;

    /// Checks that the kernel has the desired objects and no surplus ones.
    fn check(state: &Self::State, core: &DataplaneCore) -> Result<(), TestCaseError>;
}

/// A step of the history that a model goes through.
#[derive(Clone, Debug)]
pub enum HistoryStep<State> {
    Update(Box<PlanUpdate>),
    /// Another program changes the kernel, and the dataplane reads it again.
    Replace(State),
    Tick,
}

pub fn core(snapshot: KernelSnapshot) -> DataplaneCore {
    DataplaneCore::new(DataplaneSettings::default(), Regex::new("^eth").unwrap(), 1, snapshot)
}

pub fn planned(updates: &[PlanUpdate]) -> NodePlan {
    let mut plan = NodePlan::default();
    updates.iter().for_each(|update| plan.apply(update.clone()));
    plan
}

/// Returns the operations of one round of a step.
pub fn operations<R: ReconcileOperations>(
    core: &mut DataplaneCore,
    select: fn(&mut Reconcilers) -> &mut R,
    step: ReconcileStep,
) -> Vec<R::Operation> {
    let reconciler = select(&mut core.reconcilers);
    reconciler.begin(step);
    reconciler.operations(step, &core.context)
}

/// Executes the operations of both steps on a model, as the engine does on the kernel.
pub fn perform<K: ModelKernel>(core: &mut DataplaneCore, state: &mut K::State) {
    for step in [ReconcileStep::Write, ReconcileStep::Remove] {
        let rounds = if step == ReconcileStep::Write { K::Reconciler::MAX_ROUNDS } else { 1 };
        K::select(&mut core.reconcilers).begin(step);
        for _ in 0..rounds {
            let operations = K::select(&mut core.reconcilers).operations(step, &core.context);
            if operations.is_empty() {
                break;
            }
            let mut observed = Vec::new();
            operations.iter().for_each(|operation| observed.extend(K::execute(state, operation)));
            observed.extend(K::observe(state));
            observed.into_iter().for_each(|observation| core.observe(observation));
            for operation in operations {
                K::select(&mut core.reconcilers).record(operation, Ok(()), &core.context);
            }
        }
    }
}

/// Checks that a kernel converges on the plan from any state and through any history.
pub fn converges<K: ModelKernel>(
    host: &KernelSnapshot,
    mut state: K::State,
    first: &[PlanUpdate],
    history: Vec<HistoryStep<K::State>>,
) -> Result<(), TestCaseError> {
    let snapshot = |state: &K::State| {
        let mut snapshot = host.clone();
        K::read(state, &mut snapshot);
        snapshot
    };
    let mut core = core(snapshot(&state));
    core.set_time(AFTER_GRACE_PERIOD);
    let initial = state.clone();
    perform::<K>(&mut core, &mut state);
    prop_assert_eq!(&state, &initial, "nothing happens before there is a plan");

    let mut foreign = K::foreign(&state, &core);
    let mut updates = first.to_vec();
    core.replace(planned(first));
    perform::<K>(&mut core, &mut state);
    for step in history {
        match step {
            HistoryStep::Update(update) => {
                updates.push((*update).clone());
                core.apply(*update);
            }
            HistoryStep::Replace(other) => {
                state = other;
                core.resync(snapshot(&state));
                foreign = K::foreign(&state, &core);
            }
            HistoryStep::Tick => core.tick(),
        }
        perform::<K>(&mut core, &mut state);
    }
    let remaining = K::foreign(&state, &core);
    for object in &foreign {
        prop_assert!(remaining.contains(object), "{} was not ours", object);
    }
    K::check(&state, &core)?;

    let settled = state.clone();
    core.tick();
    perform::<K>(&mut core, &mut state);
    prop_assert_eq!(&state, &settled, "a second look finds nothing to do");
    let mut again = self::core(snapshot(&state));
    again.set_time(AFTER_GRACE_PERIOD);
    again.replace(planned(&updates));
    perform::<K>(&mut again, &mut state);
    prop_assert_eq!(&state, &settled, "a restart changes nothing");
    Ok(())
}

/// Generates histories from updates of the plan and from states of the kernel.
pub fn any_history<State: Clone + Debug>(
    update: impl Strategy<Value = PlanUpdate>,
    state: impl Strategy<Value = State>,
) -> impl Strategy<Value = Vec<HistoryStep<State>>> {
    let step = prop_oneof![
        4 => update.prop_map(|update| HistoryStep::Update(Box::new(update))),
        1 => state.prop_map(HistoryStep::Replace),
        1 => Just(HistoryStep::Tick),
    ];
    proptest::collection::vec(step, 0..6)
}

pub fn link(index: u32, name: &str, up: bool) -> KernelLink {
    KernelLink { index, name: name.into(), enabled: up, running: up, mtu: 1500, ..KernelLink::default() }
}

pub fn workload_id(name: &str) -> WorkloadId {
    WorkloadId { orchestrator: "k8s".into(), workload: name.into(), endpoint: "eth0".into() }
}

/// Generates workloads on the interfaces cali3 to cali5.
pub fn any_workload() -> impl Strategy<Value = PlanUpdate> {
    let addresses = proptest::collection::vec(
        prop_oneof![
            (1u8..5).prop_map(|n| format!("10.0.0.{n}").parse().unwrap()),
            (1u8..3).prop_map(|n| format!("fd00::{n}").parse().unwrap()),
        ],
        0..3,
    );
    let mac = proptest::option::of((1u8..3).prop_map(|n| [2, 0, 0, 0, 0, n]));
    let workload = (3u32..6, addresses, mac).prop_map(|(n, addresses, mac)| PlannedWorkload {
        interface: format!("cali{n}"),
        mac,
        addresses,
        ..PlannedWorkload::default()
    });
    ((0u8..4), proptest::option::of(workload))
        .prop_map(|(n, workload)| PlanUpdate::Workload(workload_id(&format!("pod{n}")), workload))
}
