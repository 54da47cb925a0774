//! Tests of the core: any sequence of events is valid, and the guarantees to CNI and to workloads always hold.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use tortie_compute::{BgpEnvironment, ParameterEnvironment, PlanCompute};
use tortie_model::kinds::{
    FelixConfiguration, FelixConfigurationSpec, IPNAT, IPPool, IPPoolSpec, Node, NodeBGPSpec, NodeSpec,
    Profile, ProfileSpec, WorkloadEndpoint, WorkloadEndpointSpec,
};
use tortie_model::{Kind, ObjectMeta, Resource, StoreKey, StoreValue};
use tortie_plan::WorkloadId;

const HOST: &str = "n1";

fn name(number: u8) -> String {
    let container = format!("c{number}");
    let parts = tortie_model::names::WorkloadEndpointParts {
        node: HOST,
        orchestrator: "cni",
        pod: "",
        container_id: &container,
        workload: "",
        endpoint: "eth0",
    };
    parts.name().unwrap()
}

fn key(number: u8) -> StoreKey {
    StoreKey::resource(Kind::WorkloadEndpoint, "default", &name(number))
}

fn id(number: u8) -> WorkloadId {
    let workload = format!("default/c{number}");
    WorkloadId { orchestrator: "cni".into(), workload, endpoint: "eth0".into() }
}

/// Returns the endpoint of a container, with an address that depends on the revision.
fn endpoint(number: u8, revision: u64) -> StoreValue {
    let meta = ObjectMeta {
        name: name(number),
        namespace: "default".into(),
        resource_version: revision.to_string(),
        ..ObjectMeta::default()
    };
    let spec = WorkloadEndpointSpec {
        orchestrator: "cni".into(),
        node: HOST.into(),
        container_id: format!("c{number}"),
        endpoint: "eth0".into(),
        ip_networks: vec![format!("10.0.{number}.{}/32", revision % 256)],
        interface_name: format!("cali{number}"),
        ..WorkloadEndpointSpec::default()
    };
    StoreValue::Resource(WorkloadEndpoint::new(meta, spec).into())
}

fn put(number: u8, revision: u64) -> EngineEvent {
    EngineEvent::Feed(FeedEvent::Put {
        key: key(number),
        value: endpoint(number, revision),
        revision: revision.into(),
    })
}

fn delete(number: u8, revision: u64) -> EngineEvent {
    EngineEvent::Feed(FeedEvent::Delete { key: key(number), revision: revision.into() })
}

fn attach(waiter: u64, number: u8, revision: u64, profile: Option<&str>) -> EngineEvent {
    let value = Box::new(endpoint(number, revision));
    EngineEvent::Attach {
        waiter: WaiterId(waiter),
        key: key(number),
        value,
        profile: profile.map(str::to_owned),
    }
}

fn detach(waiter: u64, number: u8, revision: u64) -> EngineEvent {
    EngineEvent::Detach { waiter: WaiterId(waiter), key: key(number), revision: Some(revision.into()) }
}

fn profile(profile: &str) -> EngineEvent {
    let meta = ObjectMeta { name: profile.into(), ..ObjectMeta::default() };
    let value = StoreValue::Resource(Profile::new(meta, ProfileSpec::default()).into());
    EngineEvent::Feed(FeedEvent::Put {
        key: StoreKey::resource(Kind::Profile, "", profile),
        value,
        revision: 1.into(),
    })
}

fn node() -> EngineEvent {
    let meta = ObjectMeta { name: HOST.into(), ..ObjectMeta::default() };
    let bgp = NodeBGPSpec { ipv4_address: "172.30.0.1/24".into(), ..NodeBGPSpec::default() };
    let spec = NodeSpec { bgp: Some(bgp), ..NodeSpec::default() };
    let value = StoreValue::Resource(Node::new(meta, spec).into());
    EngineEvent::Feed(FeedEvent::Put {
        key: StoreKey::resource(Kind::Node, "", HOST),
        value,
        revision: 1.into(),
    })
}

fn in_sync() -> EngineEvent {
    EngineEvent::Feed(FeedEvent::InSync)
}

fn refused(number: u8) -> ApplyFailure {
    ApplyFailure {
        object: format!("route 10.0.{number}.1/32"),
        concerns: FailureScope::Workloads([id(number)].into()),
        reason: "Operation not permitted".into(),
    }
}

fn core() -> EngineCore {
    let mut compute = PlanCompute::new(HOST, ParameterEnvironment::new([], []));
    compute.speak_bgp(BgpEnvironment { router_id: String::new(), by_bird: false });
    let mut core = EngineCore::new(compute, Vec::new());
    core.register(crate::bgp::PLAN_CONSUMER);
    core
}

/// Returns a core whose dataplane runs.
fn running() -> EngineCore {
    let mut core = core();
    feed(&mut core, 0, [node(), in_sync(), EngineEvent::Turn, EngineEvent::Started]);
    core
}

fn feed(
    core: &mut EngineCore,
    seconds: u64,
    events: impl IntoIterator<Item = EngineEvent>,
) -> Vec<EngineAction> {
    let now = Duration::from_secs(seconds);
    events.into_iter().flat_map(|event| core.handle(now, event)).collect()
}

fn answers(actions: &[EngineAction]) -> Vec<(u64, Result<(), RequestRefusal>)> {
    let answer = |action: &EngineAction| match action {
        EngineAction::Answer { waiter, outcome } => Some((waiter.0, outcome.clone())),
        _ => None,
    };
    actions.iter().filter_map(answer).collect()
}

#[test]
fn attach_is_answered_after_the_kernel() {
    let mut core = running();
    let actions = feed(&mut core, 1, [attach(1, 1, 7, None), EngineEvent::Turn]);
    assert!(matches!(&actions[..], [EngineAction::Apply { .. }]), "{actions:?}");
    let actions = feed(&mut core, 1, [EngineEvent::Applied(vec![])]);
    assert_eq!(answers(&actions), [(1, Ok(()))]);
    let EngineAction::Publish { consumer: "bgp", change: PlanChange::Updates(updates) } = &actions[0] else {
        panic!("{actions:?}")
    };
    assert_eq!(updates.len(), 1);
}

#[test]
fn updates_for_bgp_alone_bypass_the_dataplane() {
    let mut core = running();
    let mut address = node();
    if let EngineEvent::Feed(FeedEvent::Put { value: StoreValue::Resource(Resource::Node(node)), .. }) =
        &mut address
    {
        node.spec.bgp.get_or_insert_default().as_number = Some(tortie_model::scalar::ASNumber(64999));
    }
    let actions = feed(&mut core, 1, [address, EngineEvent::Turn]);
    let [EngineAction::Publish { consumer: "bgp", change: PlanChange::Updates(updates) }] = &actions[..]
    else {
        panic!("{actions:?}")
    };
    assert!(matches!(&updates[..], [PlanUpdate::Bgp(bgp)] if bgp.as_number == 64999), "{updates:?}");
    assert!(!core.is_busy());
}

#[test]
fn consumers_of_planned_changes_precede_the_kernel() {
    let mut core = core();
    core.register(PlanConsumer { name: "early", stage: PlanStage::Planned, ..crate::bgp::PLAN_CONSUMER });
    feed(&mut core, 0, [node(), in_sync(), EngineEvent::Turn, EngineEvent::Started]);
    let consumers = |actions: &[EngineAction]| -> Vec<&'static str> {
        let consumer = actions.iter().map(|action| match action {
            EngineAction::Publish { consumer, .. } => *consumer,
            EngineAction::Apply { .. } => "dataplane",
            EngineAction::Start { .. } | EngineAction::Answer { .. } => "other",
        });
        consumer.collect()
    };
    let planned = feed(&mut core, 1, [put(1, 7), EngineEvent::Turn]);
    assert_eq!(consumers(&planned), ["early", "dataplane"]);
    assert_eq!(consumers(&feed(&mut core, 1, [EngineEvent::Applied(vec![])])), ["bgp"]);
}

#[test]
fn failures_are_reported_to_waiters_by_workload() {
    let mut core = running();
    feed(&mut core, 1, [attach(1, 1, 7, None), attach(2, 2, 8, None), EngineEvent::Turn]);
    let actions = feed(&mut core, 1, [EngineEvent::Applied(vec![refused(2)])]);
    let refusal = "the kernel refused route 10.0.2.1/32: Operation not permitted";
    let outcomes = answers(&actions);
    assert_eq!(outcomes[0], (1, Ok(())));
    assert_eq!(outcomes[1].1.as_ref().unwrap_err().to_string(), refusal);
    // A failure that concerns everything fails every attach, but no detach.
    feed(&mut core, 2, [attach(3, 3, 9, None), detach(4, 1, 7), EngineEvent::Turn]);
    let table = ApplyFailure { concerns: FailureScope::Everything, ..refused(1) };
    let outcomes = answers(&feed(&mut core, 2, [EngineEvent::Applied(vec![table])]));
    assert!(outcomes[0].1.is_err() && outcomes[1].1.is_ok(), "{outcomes:?}");
}

#[test]
fn a_refused_workload_is_tried_again_for_waiters() {
    let mut core = running();
    feed(&mut core, 1, [put(1, 7), EngineEvent::Turn, EngineEvent::Applied(vec![refused(1)])]);
    let actions = feed(&mut core, 1, [attach(1, 1, 7, None), EngineEvent::Turn]);
    let asked = |action: &EngineAction| matches!(action, EngineAction::Apply { updates, .. } if matches!(&updates[..], [PlanUpdate::Workload(..)]));
    assert!(asked(&actions[0]), "{actions:?}");
    assert!(answers(&feed(&mut core, 1, [EngineEvent::Applied(vec![refused(1)])]))[0].1.is_err());
}

#[test]
fn requests_fail_before_the_datastore_is_read() {
    let mut core = core();
    let actions = feed(&mut core, 0, [attach(1, 1, 7, None), EngineEvent::Turn]);
    assert_eq!(answers(&actions), [(1, Err(RequestRefusal::NotInSync))]);
    assert_eq!(actions.len(), 1, "and nothing is programmed");
}

#[test]
fn an_endpoint_without_effect_is_refused() {
    let mut core = running();
    let mut value = endpoint(1, 7);
    if let StoreValue::Resource(Resource::WorkloadEndpoint(endpoint)) = &mut value {
        endpoint.spec.interface_name = String::new();
    }
    let event =
        EngineEvent::Attach { waiter: WaiterId(1), key: key(1), value: Box::new(value), profile: None };
    let outcomes = answers(&feed(&mut core, 1, [event, EngineEvent::Turn]));
    assert!(
        matches!(&outcomes[..], [(1, Err(RequestRefusal::Endpoint(reason)))] if !reason.is_empty()),
        "{outcomes:?}"
    );
    // Another endpoint has the interface.
    feed(&mut core, 1, [attach(2, 2, 8, None), EngineEvent::Turn, EngineEvent::Applied(vec![])]);
    let mut value = endpoint(3, 9);
    if let StoreValue::Resource(Resource::WorkloadEndpoint(endpoint)) = &mut value {
        endpoint.spec.interface_name = "cali2".into();
    }
    let event =
        EngineEvent::Attach { waiter: WaiterId(3), key: key(3), value: Box::new(value), profile: None };
    let outcomes = answers(&feed(&mut core, 1, [event, EngineEvent::Turn]));
    let refusal = "the endpoint has no effect: its interface belongs to another endpoint";
    assert_eq!(outcomes[0].1.as_ref().unwrap_err().to_string(), refusal);
}

/// Attaches a container that requests floating addresses. The container with the lower number is older.
fn attach_floating(number: u8, externals: &[&str]) -> EngineEvent {
    let mut value = endpoint(number, number.into());
    if let StoreValue::Resource(Resource::WorkloadEndpoint(endpoint)) = &mut value {
        endpoint.metadata.creation_timestamp = Some(format!("202{number}-01-01T00:00:00Z"));
        let nat = |external: &&str| IPNAT {
            internal_ip: format!("10.0.{number}.{number}"),
            external_ip: (*external).to_owned(),
        };
        endpoint.spec.ip_nats = externals.iter().map(nat).collect();
    }
    let (waiter, value) = (WaiterId(number.into()), Box::new(value));
    EngineEvent::Attach { waiter, key: key(number), value, profile: None }
}

#[test]
fn a_claimed_floating_address_does_not_fail_attach() {
    let mut core = running();
    let spec = serde_json::from_value(serde_json::json!({"floatingIPs": "Enabled"})).unwrap();
    let pool_meta = ObjectMeta { name: "floating".into(), ..ObjectMeta::default() };
    let pool_spec = IPPoolSpec { cidr: "192.0.2.0/24".into(), ..IPPoolSpec::default() };
    let pool = EngineEvent::Feed(FeedEvent::Put {
        key: StoreKey::resource(Kind::IPPool, "", "floating"),
        value: StoreValue::Resource(IPPool::new(pool_meta, pool_spec).into()),
        revision: 1.into(),
    });
    feed(&mut core, 1, [configuration(spec, 1), pool, EngineEvent::Turn, EngineEvent::Applied(vec![])]);
    let granted = |core: &EngineCore, number: u8| -> Vec<String> {
        let floating = &core.plan().workloads[&id(number)].floating;
        floating.iter().map(|pair| pair.external.to_string()).collect()
    };
    let problem = |core: &EngineCore, number: u8| core.compute().problems().remove(&key(number).to_string());
    let update = |core: &mut EngineCore, event: EngineEvent| {
        answers(&feed(core, 1, [event, EngineEvent::Turn, EngineEvent::Applied(vec![])]))
    };
    assert_eq!(update(&mut core, attach_floating(1, &["192.0.2.1"])), [(1, Ok(()))]);
    // The new pod of a rolling update: the old one is deleted once the new one runs.
    assert_eq!(update(&mut core, attach_floating(2, &["192.0.2.1", "192.0.2.2"])), [(2, Ok(()))]);
    assert_eq!((granted(&core, 1), granted(&core, 2)), (vec!["192.0.2.1".into()], vec!["192.0.2.2".into()]));
    let expected = "floating addresses refused: 192.0.2.1: another endpoint had asked for it before";
    assert_eq!(problem(&core, 2).as_deref(), Some(expected));
    assert_eq!(update(&mut core, detach(9, 1, 1)), [(9, Ok(()))]);
    assert_eq!(granted(&core, 2), ["192.0.2.1", "192.0.2.2"]);
    assert_eq!(problem(&core, 2), None);
    // Any other reason fails the ADD, even if another address is merely claimed.
    let outcomes = update(&mut core, attach_floating(3, &["192.0.2.1", "203.0.113.1"]));
    let expected = "the endpoint has no effect: floating addresses refused: 203.0.113.1: it is in no enabled \
        IPPool that allows workloads";
    assert_eq!(outcomes[0].1.as_ref().unwrap_err().to_string(), expected);
}

#[test]
fn an_attach_waits_for_its_profile_until_timeout() {
    let mut core = running();
    let actions =
        feed(&mut core, 1, [attach(1, 1, 7, Some("net")), EngineEvent::Turn, EngineEvent::Applied(vec![])]);
    assert_eq!(answers(&actions), []);
    feed(&mut core, 2, [profile("net"), EngineEvent::Turn]);
    assert_eq!(answers(&feed(&mut core, 2, [EngineEvent::Applied(vec![])])), [(1, Ok(()))]);
    let actions =
        feed(&mut core, 3, [attach(2, 2, 8, Some("never")), EngineEvent::Turn, EngineEvent::Applied(vec![])]);
    assert_eq!(answers(&actions), []);
    feed(&mut core, 9, [EngineEvent::Turn]);
    assert_eq!(answers(&feed(&mut core, 9, [EngineEvent::Applied(vec![])])), [(2, Ok(()))]);
}

#[test]
fn an_endpoint_that_is_held_outlives_its_deletion() {
    for hold in [false, true] {
        let mut core = core();
        feed(&mut core, 0, [node(), put(1, 1), in_sync()]);
        let held = hold.then(|| EngineEvent::Hold { waiter: WaiterId(1), key: key(1) });
        let answered = answers(&feed(&mut core, 0, held));
        assert_eq!(answered.len(), usize::from(hold));
        feed(&mut core, 0, [delete(1, 2), EngineEvent::Turn]);
        assert_eq!((core.plan().workloads.contains_key(&id(1)), core.take_lost()), (hold, hold));
    }
}

#[test]
fn only_lasting_losses_of_endpoints_are_reported() {
    let at = |seconds: u64| Duration::from_secs(seconds);
    let mut core = core();
    feed(&mut core, 0, [node(), put(1, 1), put(2, 1), put(3, 1), in_sync()]);
    for number in 1..=3 {
        feed(&mut core, 0, [EngineEvent::Hold { waiter: WaiterId(number.into()), key: key(number) }]);
    }
    feed(&mut core, 10, [delete(1, 2), delete(2, 2), delete(3, 2), EngineEvent::Turn]);
    assert_eq!(core.take_missing(at(39)), []);
    // One container is removed, and the endpoint of another one is written again.
    feed(&mut core, 39, [detach(9, 1, 2), put(2, 3), EngineEvent::Turn]);
    assert_eq!(core.take_missing(at(40)), [key(3)]);
    assert_eq!(core.take_missing(at(100)), [], "each is reported once");
}

#[test]
fn lost_endpoints_are_known_after_the_snapshot() {
    for (known, lost) in [(true, false), (false, true)] {
        let held =
            [1, 2].map(|number| HeldAttachment { key: key(number), endpoint: Some(endpoint(number, 1)) });
        let mut core =
            EngineCore::new(PlanCompute::new(HOST, ParameterEnvironment::new([], [])), held.into());
        feed(&mut core, 0, [node(), put(1, 1)].into_iter().chain(known.then(|| put(2, 1))));
        assert!(!core.take_lost(), "the datastore may still name it");
        feed(&mut core, 0, [in_sync()]);
        assert_eq!((core.take_lost(), core.take_lost()), (lost, false));
    }
}

#[test]
fn outdated_events_about_cni_writes_are_ignored() {
    let mut core = running();
    let address = |core: &EngineCore| core.plan().workloads.get(&id(1)).map(|w| w.addresses[0].to_string());
    feed(&mut core, 1, [attach(1, 1, 9, None), EngineEvent::Turn, EngineEvent::Applied(vec![])]);
    // The endpoint of the previous sandbox, deleted and written again before the watch delivered it.
    feed(&mut core, 1, [put(1, 5), delete(1, 6), EngineEvent::Turn, EngineEvent::Applied(vec![])]);
    assert_eq!(address(&core).as_deref(), Some("10.0.1.9"));
    feed(&mut core, 1, [put(1, 9), put(1, 12), EngineEvent::Turn, EngineEvent::Applied(vec![])]);
    assert_eq!(address(&core).as_deref(), Some("10.0.1.12"));
    feed(&mut core, 2, [detach(2, 1, 12), put(1, 12), EngineEvent::Turn, EngineEvent::Applied(vec![])]);
    assert_eq!(address(&core), None);
    feed(&mut core, 2, [put(1, 14), EngineEvent::Turn]);
    assert_eq!(address(&core).as_deref(), Some("10.0.1.14"));
}

fn configuration(spec: FelixConfigurationSpec, revision: u64) -> EngineEvent {
    let meta = ObjectMeta { name: "default".into(), ..ObjectMeta::default() };
    let value = StoreValue::Resource(FelixConfiguration::new(meta, spec).into());
    let key = StoreKey::resource(Kind::FelixConfiguration, "", "default");
    EngineEvent::Feed(FeedEvent::Put { key, value, revision: revision.into() })
}

#[test]
fn other_settings_do_not_restart_the_dataplane() {
    let mut core = running();
    let spec = FelixConfigurationSpec { log_prefix: "x".into(), ..FelixConfigurationSpec::default() };
    let actions = feed(&mut core, 1, [configuration(spec, 5), attach(1, 1, 7, None), EngineEvent::Turn]);
    let [EngineAction::Apply { settings: Some(settings), updates }] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert!(settings.policy.log_prefix == "x" && !updates.is_empty());
    assert_eq!(answers(&feed(&mut core, 1, [EngineEvent::Applied(vec![])])), [(1, Ok(()))]);
    assert_eq!(feed(&mut core, 2, [EngineEvent::Turn]), [], "once");
}

#[test]
fn a_dataplane_that_fails_is_started_again() {
    let mut core = core();
    feed(&mut core, 0, [in_sync(), EngineEvent::Turn, attach(1, 1, 7, None)]);
    let actions = feed(&mut core, 0, [EngineEvent::Stopped("no netlink".into())]);
    assert_eq!(answers(&actions), [(1, Err(RequestRefusal::Dataplane("no netlink".into())))]);
    assert_eq!(feed(&mut core, 0, [EngineEvent::Turn]), [], "not at once");
    let actions = feed(&mut core, 1, [EngineEvent::Turn]);
    assert!(
        matches!(&actions[..], [EngineAction::Start { plan, .. }] if plan.workloads.len() == 1),
        "{actions:?}"
    );
    feed(&mut core, 1, [EngineEvent::Started, EngineEvent::Stopped("gone".into())]);
    assert!(matches!(&feed(&mut core, 1, [EngineEvent::Turn])[..], [EngineAction::Start { .. }]));
}

/// The updates sent to the dataplane and to BGP, and the answered requests.
#[derive(Default)]
struct TestWorld {
    asked: BTreeSet<u64>,
    answered: BTreeSet<u64>,
    kernel: Option<NodePlan>,
    advertised: NodePlan,
    outstanding: bool,
    in_sync: bool,
    /// Attached and not detached since.
    held: BTreeSet<u8>,
}

/// Returns the plan without the parts that only other consumers than the dataplane want.
fn kernel_part(plan: &NodePlan) -> NodePlan {
    NodePlan { bgp: None, namespaces: BTreeMap::new(), service_accounts: BTreeMap::new(), ..plan.clone() }
}

impl TestWorld {
    fn step(&mut self, core: &mut EngineCore, now: Duration, event: EngineEvent) {
        match &event {
            EngineEvent::Attach { waiter, .. }
            | EngineEvent::Detach { waiter, .. }
            | EngineEvent::Hold { waiter, .. } => {
                self.asked.insert(waiter.0);
            }
            EngineEvent::Feed(FeedEvent::InSync) => self.in_sync = true,
            EngineEvent::Started | EngineEvent::Applied(_) | EngineEvent::Stopped(_) => {
                self.outstanding = false
            }
            _ => {}
        }
        let turn = event == EngineEvent::Turn;
        for action in core.handle(now, event) {
            match action {
                EngineAction::Start { plan, .. } => {
                    assert!(self.in_sync && !self.outstanding);
                    self.outstanding = true;
                    self.kernel = Some(kernel_part(&plan));
                }
                EngineAction::Apply { updates, settings } => {
                    assert!(self.in_sync && !self.outstanding);
                    assert!(!updates.is_empty() || settings.is_some());
                    self.outstanding = true;
                    let kernel = self.kernel.as_mut().expect("a dataplane that was started");
                    assert!(!updates.iter().any(|update| matches!(update, PlanUpdate::Bgp(_))));
                    updates.into_iter().for_each(|update| kernel.apply(update));
                }
                EngineAction::Publish { consumer, change } => {
                    assert_eq!(consumer, "bgp");
                    match change {
                        PlanChange::Resync(plan) => self.advertised = *plan,
                        PlanChange::Updates(updates) => {
                            updates.into_iter().for_each(|update| self.advertised.apply(update));
                        }
                    }
                    let Some(kernel) = &self.kernel else { panic!("published before the kernel had it") };
                    assert_eq!(self.advertised.workloads, kernel.workloads);
                    assert!(!self.outstanding, "the kernel has it first");
                }
                EngineAction::Answer { waiter, outcome } => {
                    assert!(self.asked.contains(&waiter.0), "nobody asked");
                    assert!(self.answered.insert(waiter.0), "answered twice");
                    assert!(self.in_sync || outcome == Err(RequestRefusal::NotInSync));
                }
            }
        }
        if turn && !core.is_busy() {
            for number in &self.held {
                assert!(core.plan().workloads.contains_key(&id(*number)), "{number} is attached");
            }
        }
        if turn && core.is_busy() {
            assert_eq!(self.kernel, Some(kernel_part(core.plan())), "the dataplane has the whole plan");
        }
    }
}

#[derive(Clone, Debug)]
enum TestStep {
    Put(u8),
    Delete(u8),
    Attach(u8, bool),
    Detach(u8),
    /// A request with the id of one that is still waiting.
    Repeat(u8),
    Profile,
    InSync,
    Started,
    Applied(Vec<u8>),
    Stopped,
    Learnt(u8),
    Proxy(u8, bool),
    Turn,
    Wait(u8),
}

fn steps() -> impl Strategy<Value = Vec<TestStep>> {
    let number = 0..4u8;
    let step = prop_oneof![
        1 => number.clone().prop_map(TestStep::Put),
        1 => number.clone().prop_map(TestStep::Delete),
        1 => (number.clone(), any::<bool>()).prop_map(|(number, profile)| TestStep::Attach(number, profile)),
        1 => number.clone().prop_map(TestStep::Detach),
        1 => number.clone().prop_map(TestStep::Repeat),
        1 => Just(TestStep::Profile),
        1 => Just(TestStep::InSync),
        2 => Just(TestStep::Started),
        2 => proptest::collection::vec(number.clone(), 0..2).prop_map(TestStep::Applied),
        1 => Just(TestStep::Stopped),
        1 => number.clone().prop_map(TestStep::Learnt),
        1 => (number, any::<bool>()).prop_map(|(number, live)| TestStep::Proxy(number, live)),
        4 => Just(TestStep::Turn),
        1 => (0..8u8).prop_map(TestStep::Wait),
    ];
    proptest::collection::vec(step, 0..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn waiters_are_answered_once_and_held_endpoints_stay(steps in steps()) {
        let (mut core, mut world) = (core(), TestWorld::default());
        let (mut now, mut waiter, mut revision) = (Duration::ZERO, 0, 1u64);
        world.step(&mut core, now, node());
        for step in steps {
            revision += 1;
            waiter += 1;
            let event = match step {
                TestStep::Put(number) => put(number, revision),
                TestStep::Delete(number) => delete(number, revision),
                TestStep::Attach(number, waits) => {
                    world.held.insert(number);
                    attach(waiter, number, revision, waits.then_some("net"))
                }
                TestStep::Detach(number) => {
                    world.held.remove(&number);
                    detach(waiter, number, revision)
                }
                TestStep::Repeat(number) if waiter > 1 => {
                    // The id is in use, so the core ignores the event.
                    let open = world.asked.difference(&world.answered).next();
                    let Some(open) = open.copied() else { continue };
                    detach(open, number, revision)
                }
                TestStep::Repeat(_) => continue,
                TestStep::Profile => profile("net"),
                TestStep::InSync => in_sync(),
                TestStep::Started => EngineEvent::Started,
                TestStep::Applied(refusals) => EngineEvent::Applied(refusals.into_iter().map(refused).collect()),
                TestStep::Stopped => EngineEvent::Stopped("gone".into()),
                TestStep::Learnt(number) => {
                    let destination = format!("192.168.{number}.0/24").parse().unwrap();
                    let route = (revision % 2 == 0)
                        .then(|| LearntNextHops { next_hops: vec!["172.30.0.9".parse().unwrap()], metric: 1 });
                    EngineEvent::Learnt { routes: vec![LearntRoute { destination, route }], complete: number == 0 }
                }
                TestStep::Proxy(number, live) => {
                    EngineEvent::HttpProxies(vec![HttpProxyChange { workload: id(number), live }])
                }
                TestStep::Turn => EngineEvent::Turn,
                TestStep::Wait(seconds) => {
                    now += Duration::from_secs(u64::from(seconds));
                    continue;
                }
            };
            world.step(&mut core, now, event);
        }
        // Finally, everything succeeds.
        world.step(&mut core, now, in_sync());
        for _ in 0..4 {
            now += Duration::from_secs(10);
            for event in [EngineEvent::Started, EngineEvent::Applied(vec![]), EngineEvent::Turn] {
                world.step(&mut core, now, event);
            }
        }
        prop_assert_eq!(&world.asked, &world.answered);
        prop_assert!(!core.is_busy());
        prop_assert_eq!(world.kernel, Some(kernel_part(core.plan())));
        prop_assert_eq!(world.advertised, (crate::bgp::PLAN_CONSUMER.select)(core.plan()));
    }
}
