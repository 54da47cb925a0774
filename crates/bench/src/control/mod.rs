//! Measures work at the scale of a whole Kubernetes cluster: a scan for leaked addresses, and the services that a node
//! announces.

mod start;
mod stores;

pub use start::run as start;
pub use stores::run as stores;

use crate::measure::{now, table, time};
use crate::{SuiteResult, heap};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use tortie_compute::{BgpEnvironment, ParameterEnvironment, PlanCompute};
use tortie_controllers::node::garbage::{AddressCollector, NodeIndex};
use tortie_controllers::node::pods::PodIndex;
use tortie_ipam::owner::attribute;
use tortie_ipam::reservation::ReservedRanges;
use tortie_ipam::{AddressHolder, BlockOwner, block};
use tortie_model::kinds::{WorkloadEndpoint, WorkloadEndpointSpec};
use tortie_model::kubernetes::{EndpointSlice, ExternalTraffic, KubernetesService, ServiceType};
use tortie_model::{Kind, ObjectMeta, StoreKey, StoreValue};

const NODE_COUNT: u32 = 1_000;
const ADDRESSES_PER_NODE: [u32; 2] = [5, 50];
const SERVICE_COUNT: u16 = 1_000;
const ENDPOINTS_PER_SERVICE: usize = 10;
const LEAK_GRACE_PERIOD: Duration = Duration::from_secs(900);

pub fn run() -> SuiteResult {
    let mut rows = Vec::new();
    for count in ADDRESSES_PER_NODE {
        rows.push(collect(count)?);
    }
    let header = ["addresses", "heard of", "scan", "scan that finds 1 % leaked", "memory"];
    table(&format!("Garbage collection on {NODE_COUNT} nodes"), &header, &rows);
    let header = [
        "services",
        "endpoints of each",
        "all heard of and decided",
        "one endpoint moves here",
        "moves elsewhere",
    ];
    table("Services that a node announces", &header, &[announce()?]);
    Ok(())
}

/// Measures garbage collection with `count` addresses on each node.
fn collect(count: u32) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let before = heap::live();
    let (mut garbage, mut pods, mut nodes) =
        (AddressCollector::default(), PodIndex::default(), NodeIndex::default());
    garbage.set_grace(Some(LEAK_GRACE_PERIOD));
    let (began, at) = (now(), Duration::from_secs(1_000));
    for number in 0..NODE_COUNT {
        let node = format!("node-{number}");
        nodes.kubernetes.insert(node.clone());
        let cidr: IpNet = format!("{}/26", Ipv4Addr::from(0x0a00_0000 + number * 64)).parse()?;
        let mut records = block::fresh(cidr, &BlockOwner::host(&node), None, jiff::Timestamp::UNIX_EPOCH);
        for pod in 0..count {
            let name = format!("pod-{number}-{pod}");
            let attributes = [
                (attribute::POD_ATTRIBUTE, name.as_str()),
                (attribute::NAMESPACE_ATTRIBUTE, "ns"),
                (attribute::NODE_ATTRIBUTE, &node),
            ];
            let attributes: BTreeMap<String, String> =
                attributes.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
            let holder = AddressHolder::new(Some(&format!("k8s-pod-network.{name}")), attributes);
            let taken = block::allocate(&mut records, 1, &holder, &ReservedRanges::new([]));
            let spec = WorkloadEndpointSpec {
                node: node.clone(),
                pod: name,
                ip_networks: taken.iter().map(|address| format!("{address}/32")).collect(),
                ..WorkloadEndpointSpec::default()
            };
            // One of a hundred pods is already gone.
            if !(number * count + pod).is_multiple_of(100) {
                let meta = ObjectMeta { namespace: "ns".to_owned(), ..ObjectMeta::default() };
                pods.put(&WorkloadEndpoint::new(meta, spec));
            }
        }
        garbage.put_block(records, at);
    }
    let heard = now() - began;
    let memory = heap::live() - before;
    let began = now();
    let first = garbage.scan(&pods, &nodes, at);
    let scan = now() - began;
    let began = now();
    let leaks = garbage.scan(&pods, &nodes, at + LEAK_GRACE_PERIOD);
    let found = now() - began;
    if !first.is_empty() || leaks.len() != (NODE_COUNT * count) as usize / 100 {
        return Err(format!("{} and {} actions", first.len(), leaks.len()).into());
    }
    Ok(vec![
        (NODE_COUNT * count).to_string(),
        time(heard),
        time(scan),
        time(found),
        format!("{memory:.1} MB"),
    ])
}

fn announce() -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let mut compute = PlanCompute::new("node-0", ParameterEnvironment::default());
    compute.speak_bgp(BgpEnvironment::default());
    let key = StoreKey::resource(Kind::BGPConfiguration, "", "default");
    let text = r#"{"metadata":{"name":"default"},"spec":{"serviceClusterIPs":[{"cidr":"10.96.0.0/12"}]}}"#;
    compute.put(&key, &StoreValue::decode(&key, text.as_bytes())?);
    compute.flush();
    let slice = |number: u16, moved: &str| {
        let mut ready_on: Vec<String> =
            (1..ENDPOINTS_PER_SERVICE).map(|endpoint| format!("node-{endpoint}")).collect();
        ready_on.push(moved.to_owned());
        let slice = EndpointSlice {
            service: format!("s{number}"),
            ip_version: Some(4),
            ready_on,
            ..EndpointSlice::default()
        };
        (
            StoreKey::EndpointSlice { namespace: "ns".into(), name: format!("s{number}-x") },
            StoreValue::EndpointSlice(slice),
        )
    };
    let began = now();
    for number in 0..SERVICE_COUNT {
        let service = KubernetesService {
            form: ServiceType::NodePort,
            traffic: ExternalTraffic::Local,
            cluster_ips: vec![IpAddr::from([10, 96, (number >> 8) as u8, number as u8])],
            ip_versions: vec![4],
            ..KubernetesService::default()
        };
        compute.put(
            &StoreKey::Service { namespace: "ns".into(), name: format!("s{number}") },
            &StoreValue::Service(Box::new(service)),
        );
        let (key, value) = slice(number, if number % 2 == 0 { "node-0" } else { "node-77" });
        compute.put(&key, &value);
    }
    compute.flush();
    let all = now() - began;
    let mut moved = |node: &str, changes: usize| -> Result<f64, Box<dyn std::error::Error>> {
        let (key, value) = slice(1, node);
        let began = now();
        compute.put(&key, &value);
        let updates = compute.flush().len();
        let took = now() - began;
        if updates == changes { Ok(took) } else { Err(format!("{updates} updates for {node}").into()) }
    };
    let here = moved("node-0", 1)?;
    moved("node-77", 1)?;
    let elsewhere = moved("node-78", 0)?;
    Ok(vec![
        SERVICE_COUNT.to_string(),
        ENDPOINTS_PER_SERVICE.to_string(),
        time(all),
        time(here),
        time(elsewhere),
    ])
}
