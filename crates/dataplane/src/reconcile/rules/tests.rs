use super::super::tests::{ModelKernel, any_history, converges, core, operations};
use super::super::{DataplaneCore, KernelObservation, Reconcilers};
use super::*;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tortie_plan::{NodePlan, PlanUpdate, RoutingTable};

const OURS: u8 = 80;

fn rule(priority: u32) -> RoutingRule {
    RoutingRule { is_ipv4: true, priority, mark: 0x20_0000, table: RoutingTable(1) }
}

fn entry(priority: u32, protocol: u8) -> RuleEntry {
    RuleEntry { rule: rule(priority), protocol }
}

fn plan(rules: &[u32]) -> NodePlan {
    NodePlan { routing_rules: rules.iter().copied().map(rule).collect(), ..NodePlan::default() }
}

fn missing(core: &mut DataplaneCore) -> Vec<RuleOperation> {
    operations(core, |kinds| &mut kinds.rules, ReconcileStep::Write)
}

fn surplus(core: &mut DataplaneCore) -> Vec<RuleOperation> {
    operations(core, |kinds| &mut kinds.rules, ReconcileStep::Remove)
}

fn succeed(core: &mut DataplaneCore, operation: RuleOperation) {
    core.reconcilers.rules.record(operation, Ok(()), &core.context);
}

#[test]
fn ours_come_and_go_and_others_stay() {
    let rules = vec![entry(50, OURS), entry(60, 4)];
    let mut core = core(KernelSnapshot { rules, ..KernelSnapshot::default() });
    assert_eq!(surplus(&mut core), [], "before the first plan");
    core.replace(plan(&[99]));
    assert_eq!(missing(&mut core), [RuleOperation::Add(entry(99, OURS))]);
    assert_eq!(surplus(&mut core), [RuleOperation::Delete(entry(50, OURS))], "an old one of ours");
    succeed(&mut core, RuleOperation::Add(entry(99, OURS)));
    succeed(&mut core, RuleOperation::Delete(entry(50, OURS)));
    assert_eq!((missing(&mut core), surplus(&mut core)), (vec![], vec![]));
    core.apply(PlanUpdate::RoutingRules([rule(98)].into()));
    assert_eq!(missing(&mut core), [RuleOperation::Add(entry(98, OURS))]);
    assert_eq!(surplus(&mut core), [RuleOperation::Delete(entry(99, OURS))]);
}

#[test]
fn desired_rules_of_others_are_adopted() {
    let rules = vec![entry(99, 0)];
    let mut core = core(KernelSnapshot { rules, ..KernelSnapshot::default() });
    core.replace(plan(&[99]));
    assert_eq!((missing(&mut core), surplus(&mut core)), (vec![], vec![]));
    core.replace(plan(&[]));
    assert_eq!(surplus(&mut core), [RuleOperation::Delete(entry(99, 0))]);
}

struct RuleModel;

impl ModelKernel for RuleModel {
    type Reconciler = RuleReconciler;
    type State = BTreeSet<RuleEntry>;

    fn select(reconcilers: &mut Reconcilers) -> &mut RuleReconciler {
        &mut reconcilers.rules
    }

    fn read(state: &Self::State, snapshot: &mut KernelSnapshot) {
        snapshot.rules = state.iter().copied().collect();
    }

    fn execute(state: &mut Self::State, operation: &RuleOperation) -> Vec<KernelObservation> {
        match operation {
            RuleOperation::Add(entry) => assert!(state.insert(*entry), "{entry:?} exists"),
            RuleOperation::Delete(entry) => assert!(state.remove(entry), "{entry:?} is missing"),
        }
        Vec::new()
    }

    /// Plans have only the priorities below 100.
    fn foreign(state: &Self::State, _: &DataplaneCore) -> BTreeSet<String> {
        let foreign = state.iter().filter(|entry| entry.protocol != OURS && entry.rule.priority >= 100);
        foreign.map(|entry| format!("{entry:?}")).collect()
    }

    fn check(state: &Self::State, core: &DataplaneCore) -> Result<(), TestCaseError> {
        let desired = desired_rules(&core.context);
        for rule in &desired {
            prop_assert!(state.iter().any(|entry| entry.rule == *rule), "{:?} is missing", rule);
        }
        for entry in state.iter().filter(|entry| entry.protocol == OURS) {
            prop_assert!(desired.contains(&entry.rule), "{:?} is surplus", entry);
        }
        Ok(())
    }
}

fn any_state() -> impl Strategy<Value = BTreeSet<RuleEntry>> {
    let protocol = prop_oneof![Just(OURS), Just(0), Just(4)];
    proptest::collection::btree_map(97u32..103, protocol, 0..5).prop_map(|entries| {
        entries.into_iter().map(|(priority, protocol)| entry(priority, protocol)).collect()
    })
}

fn any_update() -> impl Strategy<Value = PlanUpdate> {
    proptest::collection::btree_set(97u32..100, 0..3)
        .prop_map(|rules| PlanUpdate::RoutingRules(rules.into_iter().map(rule).collect()))
}

proptest! {
    #[test]
    fn rules_converge_and_foreign_ones_stay(
        state in any_state(),
        first in any_update(),
        history in any_history(any_update(), any_state()),
    ) {
        converges::<RuleModel>(&KernelSnapshot::default(), state, &[first], history)?;
    }
}
