//! Generates the contents of the datastore: labelled endpoints of other nodes, some local pods, and policies that
//! select them.

use crate::cni;
use crate::namespace::{BenchResult, NamespaceGroup, check};
use crate::node::{BenchNode, NODE_NAME};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::ops::Range;
use tortie_model::kinds::{
    Action, EntityRule, GlobalNetworkPolicy, GlobalNetworkPolicySpec, PolicyType, Rule, WorkloadEndpoint,
    WorkloadEndpointSpec,
};
use tortie_model::scalar::{Port, Protocol};
use tortie_model::{KeyRange, Kind, ObjectMeta, Resource, StoreKey, StoreValue};
use tortie_store::{EntryChange, StoreClient};

pub type BenchPolicyEntry = (StoreKey, StoreValue);

/// Number of pods on the node; policies are spread over them.
pub const LOCAL_PODS: usize = 100;
/// Number of endpoint groups that policies allow.
pub const ROLE_COUNT: usize = 29;
const BATCH_SIZE: usize = 100;

/// Returns the group that a policy allows. Groups are numbered from 1; group 0 contains all endpoints.
pub fn group_of_policy(policy: usize) -> usize {
    if policy == 0 { 0 } else { 1 + policy % ROLE_COUNT }
}

pub fn group_of_endpoint(endpoint: usize) -> usize {
    1 + endpoint % ROLE_COUNT
}

pub fn port_of_policy(policy: usize) -> u16 {
    8000 + u16::try_from(policy % 1000).unwrap_or_default()
}

/// Returns the address of an endpoint of another node.
pub fn address(endpoint: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 96, 0, 1).to_bits() + u32::try_from(endpoint).unwrap_or_default())
}

pub fn policy_name(policy: usize) -> String {
    format!("p{policy:05}")
}

/// Builds a policy that allows one group of endpoints to connect to a port of one of the local pods.
pub fn policy(number: usize, port: u16) -> BenchPolicyEntry {
    let group = match group_of_policy(number) {
        0 => "has(client)".to_owned(),
        group => format!("role == 'r{group}'"),
    };
    policy_for(number, &format!("app == 'a{}'", number % LOCAL_PODS), &group, port)
}

pub fn policy_for(number: usize, selector: &str, sources: &str, port: u16) -> BenchPolicyEntry {
    let rule = Rule {
        action: Action::Allow,
        protocol: Some(Protocol::from("TCP")),
        source: EntityRule { selector: sources.to_owned(), ..EntityRule::default() },
        destination: EntityRule { ports: vec![Port::Number(port)], ..EntityRule::default() },
        ..Rule::default()
    };
    let spec = GlobalNetworkPolicySpec {
        order: Some((number as f64).into()),
        selector: selector.to_owned(),
        ingress: vec![rule],
        types: vec![PolicyType::Ingress],
        ..GlobalNetworkPolicySpec::default()
    };
    let meta = ObjectMeta { name: policy_name(number), ..ObjectMeta::default() };
    entry(GlobalNetworkPolicy::new(meta, spec))
}

/// Builds an endpoint of another node. Without a role it is only in group 0.
pub fn endpoint(number: usize, role: Option<usize>) -> BenchPolicyEntry {
    let node = format!("far{}", number / 100);
    let spec = WorkloadEndpointSpec {
        orchestrator: "k8s".to_owned(),
        node: node.clone(),
        pod: format!("pod{number}"),
        endpoint: "eth0".to_owned(),
        ip_networks: vec![format!("{}/32", address(number))],
        interface_name: format!("cali{number:x}"),
        ..WorkloadEndpointSpec::default()
    };
    let role = role.map(|role| ("role".to_owned(), format!("r{role}")));
    let labels = BTreeMap::from_iter(role.into_iter().chain([("client".to_owned(), String::new())]));
    let (namespace, name) = ("bench".to_owned(), format!("{node}-k8s-pod{number}-eth0"));
    entry(WorkloadEndpoint::new(ObjectMeta { namespace, name, labels, ..ObjectMeta::default() }, spec))
}

fn entry(resource: impl Into<Resource>) -> BenchPolicyEntry {
    let resource = resource.into();
    let meta = resource.metadata();
    (StoreKey::resource(resource.kind(), &meta.namespace, &meta.name), StoreValue::Resource(resource))
}

pub async fn add_endpoints(client: &StoreClient, numbers: Range<usize>) -> BenchResult<()> {
    add(client, numbers.map(|number| endpoint(number, Some(group_of_endpoint(number))))).await
}

pub async fn add_policies(client: &StoreClient, numbers: Range<usize>) -> BenchResult<()> {
    add(client, numbers.map(|number| policy(number, port_of_policy(number)))).await
}

pub async fn add(client: &StoreClient, entries: impl Iterator<Item = BenchPolicyEntry>) -> BenchResult<()> {
    let changes: Vec<EntryChange> = entries.map(|(key, value)| EntryChange::Create { key, value }).collect();
    for batch in changes.chunks(BATCH_SIZE) {
        check()?;
        client.transact(batch).await?;
    }
    Ok(())
}

/// Removes the policies from this number on.
pub async fn remove_policies(client: &StoreClient, from: usize) -> BenchResult<()> {
    let there = client.list(&KeyRange::all(Kind::GlobalNetworkPolicy)).await?.entries;
    let surplus =
        |key: &StoreKey| matches!(key, StoreKey::Resource { name, .. } if *name >= policy_name(from));
    let gone = there.into_iter().filter(|entry| surplus(&entry.key));
    let changes: Vec<EntryChange> =
        gone.map(|entry| EntryChange::Delete { key: entry.key, revision: entry.revision }).collect();
    for batch in changes.chunks(BATCH_SIZE) {
        check()?;
        client.transact(batch).await?;
    }
    Ok(())
}

/// A pod of this node.
#[derive(Clone, Debug)]
pub struct LocalPod {
    pub interface: String,
    pub address: Ipv4Addr,
}

/// Attaches pods through the plugin and labels them `app=a0`, `app=a1` and so on.
pub async fn attach(
    node: &BenchNode,
    client: &StoreClient,
    pods: &NamespaceGroup,
) -> BenchResult<Vec<LocalPod>> {
    // One at a time, so that the order of the addresses is the order of the pods.
    cni::ours(node).call_all("ADD", &pods.paths(), 1)?;
    let mut locals = Vec::new();
    for entry in client.list(&KeyRange::all(Kind::WorkloadEndpoint)).await?.entries {
        let StoreValue::Resource(Resource::WorkloadEndpoint(endpoint)) = entry.value else { continue };
        let address = endpoint.spec.ip_networks.first().and_then(|net| net.split('/').next()?.parse().ok());
        if let Some(address) = address.filter(|_| endpoint.spec.node == NODE_NAME) {
            locals.push((address, entry.key, endpoint));
        }
    }
    locals.sort_by_key(|(address, ..)| *address);
    let mut pods = Vec::new();
    for (number, (address, key, mut endpoint)) in locals.into_iter().enumerate() {
        let interface = endpoint.spec.interface_name.clone();
        endpoint.metadata.labels.insert("app".to_owned(), format!("a{number}"));
        client.apply(&key, &StoreValue::Resource(Resource::WorkloadEndpoint(endpoint)), None).await?;
        pods.push(LocalPod { interface, address });
    }
    Ok(pods)
}
