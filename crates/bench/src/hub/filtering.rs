//! Estimates the savings if a hub sent each node only the entries it needs: the policies that select local endpoints,
//! and the endpoints that those refer to. To determine this, the hub would have to run the computation of every node.

use super::cluster::{self, NODE_COUNT};
use crate::heap;
use crate::measure::{table, time, times};
use crate::namespace::BenchResult;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use tortie_compute::{ParameterEnvironment, PlanCompute};
use tortie_hub::protocol::{ChangesMessage, FeedRecord, HubMessage, RecordPayload};
use tortie_model::{Kind, StoreKey, StoreValue};
use tortie_plan::{NodePlan, SetMember};

/// Number of nodes in the sample.
const SAMPLED_NODES: usize = 10;

pub fn measure() -> BenchResult<()> {
    let entries = cluster::entries()?;
    let all = compressed(entries.iter());
    let (mut bytes, mut count) = (0, 0);
    let (mut took, mut megabytes) = (Duration::ZERO, 0.0);
    for number in 0..SAMPLED_NODES {
        let name = format!("node-{}", number * NODE_COUNT / SAMPLED_NODES);
        let before = heap::live();
        let began = Instant::now();
        let mut compute = PlanCompute::new(&name, ParameterEnvironment::default());
        entries.iter().for_each(|(key, value)| compute.put(key, value));
        let mut plan = NodePlan::default();
        compute.flush().into_iter().for_each(|update| plan.apply(update));
        took += began.elapsed();
        megabytes += heap::live() - before;
        let referred = referred(&plan);
        let is_needed = |(key, value): &&(StoreKey, StoreValue)| needs(&name, &plan, &referred, key, value);
        let wanted: Vec<&(StoreKey, StoreValue)> = entries.iter().filter(is_needed).collect();
        count += wanted.len();
        bytes += compressed(wanted.into_iter());
    }
    let (count, bytes) = (count / SAMPLED_NODES, bytes / SAMPLED_NODES);
    let megabyte = |bytes: usize| format!("{:.2} MB", bytes as f64 / 1e6);
    let rows = vec![
        vec![
            "everything".to_owned(),
            entries.len().to_string(),
            megabyte(all),
            String::new(),
            "once".to_owned(),
            "once".to_owned(),
        ],
        vec![
            "what a node needs".to_owned(),
            count.to_string(),
            megabyte(bytes),
            times(bytes as f64 / all as f64),
            format!("{} for each node", time(took.as_nanos() as f64 / SAMPLED_NODES as f64)),
            format!("{:.1} MB for each node", megabytes / SAMPLED_NODES as f64),
        ],
    ];
    let header =
        ["a node is sent", "entries", "compressed", "of everything", "found out in", "heap to know it"];
    table("What a hub would save that knew what each node needs", &header, &rows);
    Ok(())
}

/// Returns the addresses that the policies of a node refer to.
fn referred(plan: &NodePlan) -> BTreeSet<IpAddr> {
    let members = plan.sets.values().flat_map(|set| &set.members);
    let address = |member: &SetMember| match member {
        SetMember::Net(net) => net.addr(),
        SetMember::Port { address, .. } => *address,
    };
    members.map(address).collect()
}

fn needs(
    node: &str,
    plan: &NodePlan,
    referred: &BTreeSet<IpAddr>,
    key: &StoreKey,
    value: &StoreValue,
) -> bool {
    let (StoreKey::Resource { kind, namespace, name }, StoreValue::Resource(resource)) = (key, value) else {
        return true;
    };
    let object = resource.to_value();
    match kind {
        Kind::NetworkPolicy => {
            let is_meant =
                |id: &str| name == id || name.strip_suffix(id).is_some_and(|tier| tier.ends_with('.'));
            plan.policies.keys().any(|id| id.namespace == *namespace && is_meant(&id.name))
        }
        Kind::WorkloadEndpoint => {
            let addresses = object["spec"]["ipNetworks"].as_array().into_iter().flatten();
            let addresses: BTreeSet<IpAddr> =
                addresses.filter_map(|net| net.as_str()?.split('/').next()?.parse().ok()).collect();
            object["spec"]["node"] == node || !addresses.is_disjoint(referred)
        }
        _ => true,
    }
}

/// Returns the size of the entries as a hub sends them.
fn compressed<'a>(entries: impl Iterator<Item = &'a (StoreKey, StoreValue)>) -> usize {
    let records: Vec<FeedRecord> = entries
        .map(|(key, value)| FeedRecord {
            key: key.to_string(),
            revision: "1".to_owned(),
            value: value.encode().into(),
            ..FeedRecord::default()
        })
        .collect();
    let records = RecordPayload::new(&records);
    HubMessage::Changes(ChangesMessage { sequence: 1, records, status: None }).frame().len()
}
