//! Property tests with generated histories of several hosts and crashes: wherever a process stops, no address has two
//! holders, and releasing the handles and the blocks leaves nothing in the store.

use super::{ProcessCrash, SimulatedInputs, SimulatedProcess, SimulatedStore};
use crate::allocator::{Allocator, AssignRequest, SpecificRequest};
use crate::block::{self, ReleaseRequest};
use crate::owner::{AddressHolder, BlockOwner};
use crate::records::ExecutionMode;
use crate::{IpamError, TunnelType};
use futures::future::join_all;
use ipnet::IpNet;
use proptest::prelude::*;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use tortie_model::ipam::IpamConfig;
use tortie_model::{Kind, Resource, StoreKey, StoreValue};
use tortie_store::StoreClient;

const HOST_COUNT: usize = 3;
const HANDLE_COUNT: usize = 5;
const CASE_COUNT: u32 = 10_000;

#[derive(Clone, Debug)]
enum SimulatedAction {
    Assign { handle: usize, v4: u32, v6: u32, limited: bool },
    AssignAddress { handle: usize, ordinal: u32 },
    ReleaseAddresses { first: u32, count: u32 },
    ReleaseHandle { handle: usize },
    GiveUpAll { must_be_empty: bool },
    GiveUpBlock { ordinal: u32 },
    Tunnel { wanted: bool },
    Age,
}

#[derive(Clone, Debug)]
struct SimulatedEvent {
    host: usize,
    action: SimulatedAction,
    /// Executed by a separate process, concurrently with the host's daemon.
    alone: bool,
    death: Option<ProcessCrash>,
    seed: u64,
}

#[derive(Clone, Debug)]
struct SimulationCase {
    strict: bool,
    /// Events of one group run concurrently.
    groups: Vec<Vec<SimulatedEvent>>,
    blocks_first: bool,
}

fn action() -> impl Strategy<Value = SimulatedAction> {
    prop_oneof![
        6 => (0..HANDLE_COUNT, 0u32..4, 0u32..2, any::<bool>())
            .prop_map(|(handle, v4, v6, limited)| SimulatedAction::Assign { handle, v4, v6, limited }),
        2 => (0..HANDLE_COUNT, 0u32..16).prop_map(|(handle, ordinal)| SimulatedAction::AssignAddress { handle, ordinal }),
        2 => (0u32..16, 1u32..5).prop_map(|(first, count)| SimulatedAction::ReleaseAddresses { first, count }),
        4 => (0..HANDLE_COUNT).prop_map(|handle| SimulatedAction::ReleaseHandle { handle }),
        1 => any::<bool>().prop_map(|must_be_empty| SimulatedAction::GiveUpAll { must_be_empty }),
        1 => (0u32..16).prop_map(|ordinal| SimulatedAction::GiveUpBlock { ordinal }),
        1 => any::<bool>().prop_map(|wanted| SimulatedAction::Tunnel { wanted }),
        1 => Just(SimulatedAction::Age),
    ]
}

fn event() -> impl Strategy<Value = SimulatedEvent> {
    let death = proptest::option::weighted(
        0.4,
        (0u32..6, any::<bool>()).prop_map(|(after, unheard)| ProcessCrash { after, unheard }),
    );
    (0..HOST_COUNT, action(), any::<bool>(), death, any::<u64>())
        .prop_map(|(host, action, alone, death, seed)| SimulatedEvent { host, action, alone, death, seed })
}

fn case() -> impl Strategy<Value = SimulationCase> {
    let groups = proptest::collection::vec(proptest::collection::vec(event(), 1..4), 1..6);
    (any::<bool>(), groups, any::<bool>()).prop_map(|(strict, groups, blocks_first)| SimulationCase {
        strict,
        groups,
        blocks_first,
    })
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn address(ordinal: u32) -> IpAddr {
    crate::space::address(&net("10.0.0.0/28"), ordinal).unwrap()
}

fn holder(handle: usize, host: usize) -> AddressHolder {
    let node = BTreeMap::from([("node".to_owned(), format!("n{host}"))]);
    AddressHolder::new(Some(&format!("h{handle}")), node)
}

struct SimulationRun {
    world: SimulatedStore,
    mode: ExecutionMode,
}

impl SimulationRun {
    fn allocator(&self, host: usize, seed: u64) -> (SimulatedProcess, Allocator) {
        let process = self.world.process(seed);
        let client = StoreClient::new(Arc::new(process.clone()));
        (process, Allocator::new(client, BlockOwner::host(&format!("n{host}"))).with_mode(self.mode))
    }

    /// Executes an event. Returns the assigned addresses with their handles.
    async fn act(
        &self,
        allocator: &Allocator,
        event: &SimulatedEvent,
    ) -> Result<Vec<(String, IpAddr)>, IpamError> {
        let host = event.host;
        let named = |handle: usize, nets: Vec<IpNet>| {
            nets.into_iter().map(|net| (format!("h{handle}"), net.addr())).collect()
        };
        match event.action {
            SimulatedAction::Assign { handle, v4, v6, limited } => {
                let mut request = AssignRequest::new(holder(handle, host), v4, v6);
                request.max_per_handle = limited.then_some(2);
                let assigned = allocator.auto_assign(&request).await.map_err(|failed| failed.error)?;
                Ok(named(handle, assigned.addresses().collect()))
            }
            SimulatedAction::AssignAddress { handle, ordinal } => {
                let request = SpecificRequest::new(address(ordinal), holder(handle, host));
                Ok(named(handle, vec![allocator.assign_address(&request).await?]))
            }
            SimulatedAction::ReleaseAddresses { first, count } => {
                let wanted: Vec<ReleaseRequest> =
                    (first..16.min(first + count)).map(|n| ReleaseRequest::of(address(n))).collect();
                allocator.release(&wanted).await?.error.map_or(Ok(Vec::new()), Err)
            }
            SimulatedAction::ReleaseHandle { handle } => {
                allocator.release_by_handle(&format!("h{handle}")).await.map(|_| Vec::new())
            }
            SimulatedAction::GiveUpAll { must_be_empty } => {
                allocator.release_owner_affinities(allocator.owner(), None, must_be_empty).await?;
                Ok(Vec::new())
            }
            SimulatedAction::GiveUpBlock { ordinal } => {
                let cidr = crate::space::block_of(address(ordinal), 30).unwrap();
                allocator.release_block_affinity(cidr, false).await.map(|()| Vec::new())
            }
            SimulatedAction::Tunnel { wanted } => {
                let pools = if wanted { vec![net("10.0.0.0/28")] } else { Vec::new() };
                allocator.ensure_tunnel(TunnelType::VxlanV4, None, &pools).await.map(|_| Vec::new())
            }
            SimulatedAction::Age => {
                self.world.age();
                Ok(Vec::new())
            }
        }
    }

    /// Asserts that the results returned to callers match the store.
    fn assert_answered_truth(&self, answered: &[(String, IpAddr)]) {
        let blocks = self.world.blocks();
        let mut distinct = BTreeSet::new();
        for (handle, address) in answered {
            let record = blocks.iter().find_map(|block| block::record(block, *address));
            let found = record.and_then(|record| record.handle());
            assert_eq!(found, Some(handle.as_str()), "{address} was handed out");
            distinct.insert(address);
        }
        assert_eq!(distinct.len(), answered.len(), "handed out twice: {answered:?}");
    }

    async fn clean_up(&self, blocks_first: bool) {
        let (_, allocator) = self.allocator(0, 1);
        if blocks_first {
            self.give_up_blocks(&allocator).await;
        }
        let tunnels = (0..HOST_COUNT).map(|host| TunnelType::VxlanV4.handle(&format!("n{host}")));
        for handle in (0..HANDLE_COUNT).map(|handle| format!("h{handle}")).chain(tunnels) {
            match allocator.release_by_handle(&handle).await {
                Ok(_) | Err(IpamError::DoesNotExist { .. }) => {}
                Err(error) => panic!("{handle}: {error}"),
            }
        }
        self.give_up_blocks(&allocator).await;
        assert_eq!(self.world.keys(), [], "left behind");
    }

    async fn give_up_blocks(&self, allocator: &Allocator) {
        for host in 0..HOST_COUNT {
            // An affinity to a block of another owner is deleted and reported as a conflict.
            match allocator
                .release_owner_affinities(&BlockOwner::host(&format!("n{host}")), None, false)
                .await
            {
                Ok(()) | Err(IpamError::ClaimConflict { .. }) => {}
                Err(error) => panic!("n{host}: {error}"),
            }
        }
    }
}

/// Returns two pools of four blocks each, and nodes without labels, which all may use them.
fn inputs(strict_affinity: bool) -> SimulatedInputs {
    static INPUTS: OnceLock<[SimulatedInputs; 2]> = OnceLock::new();
    let make = |strict_affinity: bool| {
        let config = StoreValue::IpamConfig(IpamConfig { strict_affinity, ..IpamConfig::default() });
        let pools = [("v4", "10.0.0.0/28", 30), ("v6", "fd00::/125", 127)]
            .map(|(name, cidr, size)| resource(Kind::IPPool, name, json!({"cidr": cidr, "blockSize": size})));
        let nodes = (0..HOST_COUNT).map(|host| resource(Kind::Node, &format!("n{host}"), json!({})));
        Arc::new(pools.into_iter().chain(nodes).chain([(StoreKey::IpamConfig, config)]).collect())
    };
    INPUTS.get_or_init(|| [make(false), make(true)])[usize::from(strict_affinity)].clone()
}

fn resource(kind: Kind, name: &str, spec: serde_json::Value) -> (StoreKey, StoreValue) {
    let object = Resource::from_store(kind, json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    (StoreKey::resource(kind, "", name), StoreValue::Resource(object))
}

async fn run(case: &SimulationCase, mode: ExecutionMode) {
    let run = SimulationRun { world: SimulatedStore::new(inputs(case.strict)), mode };
    let mut daemons: Vec<(SimulatedProcess, Allocator)> =
        (0..HOST_COUNT).map(|host| run.allocator(host, 7)).collect();
    for group in &case.groups {
        let alone: Vec<_> = group.iter().map(|event| run.allocator(event.host, event.seed)).collect();
        let mut acts = Vec::new();
        for (event, alone) in group.iter().zip(&alone) {
            let (process, allocator) = if event.alone { alone } else { &daemons[event.host] };
            process.doom(event.death);
            acts.push(run.act(allocator, event));
        }
        let answers = join_all(acts).await;
        let quiet = group.iter().all(|event| {
            matches!(
                event.action,
                SimulatedAction::Assign { limited: false, .. } | SimulatedAction::AssignAddress { .. }
            )
        });
        let answered: Vec<_> = answers.iter().flatten().flatten().cloned().collect();
        if quiet {
            run.assert_answered_truth(&answered);
        }
        for error in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            assert!(!matches!(error, IpamError::TooManyRetries), "{error}");
        }
        for (host, daemon) in daemons.iter_mut().enumerate() {
            daemon.0.doom(None);
            if daemon.0.is_dead() {
                *daemon = run.allocator(host, 11);
            }
        }
    }
    run.clean_up(case.blocks_first).await;
}

fn check(mode: ExecutionMode) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let config = ProptestConfig { cases: CASE_COUNT, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let outcome = runner.run(&case(), |case| {
        runtime.block_on(run(&case, mode));
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

#[test]
fn a_crash_between_transactions_leaves_nothing_behind() {
    check(ExecutionMode::Transaction);
}

#[test]
fn a_crash_after_any_step_leaves_nothing_behind() {
    check(ExecutionMode::Steps);
}

/// Addresses in use on a host where `h9` has 10.0.0.2, which the store does not know.
#[derive(Debug)]
struct UnrecordedAddress;

impl crate::AddressesInUse for UnrecordedAddress {
    fn addresses(&self) -> Vec<IpAddr> {
        vec![address(2)]
    }

    fn is_held_by_another(&self, wanted: IpAddr, handle: Option<&str>) -> bool {
        wanted == address(2) && handle != Some("h9")
    }
}

#[tokio::test]
async fn unrecorded_addresses_in_use_are_not_assigned() {
    for mode in [ExecutionMode::Transaction, ExecutionMode::Steps] {
        let run = SimulationRun { world: SimulatedStore::new(inputs(false)), mode };
        let allocator = run.allocator(0, 1).1.avoiding(Arc::new(UnrecordedAddress));
        let assigned = allocator.auto_assign(&AssignRequest::new(holder(0, 0), 16, 0)).await.unwrap();
        let got: Vec<IpAddr> = assigned.addresses().map(|net| net.addr()).collect();
        assert_eq!(got.len(), 15, "all of the pool but one");
        assert!(!got.contains(&address(2)));
        let by_another = SpecificRequest::new(address(2), holder(1, 0));
        assert!(allocator.assign_address(&by_another).await.is_err());
        let by_itself = SpecificRequest::new(address(2), holder(9, 0));
        assert_eq!(allocator.assign_address(&by_itself).await.unwrap().addr(), address(2));
    }
}
