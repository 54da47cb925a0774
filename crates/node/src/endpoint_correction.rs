//! Corrects the endpoints of pods on this node, as derived from Kubernetes, with the data of the CNI journal.
//!
//! The addresses of a pod come from its status, which kubelet writes: for a while after the pod got a new sandbox
//! they are those of the previous one, while the journal has the new ones. If another plugin created the interface,
//! only the journal knows its name.

use crate::journal::{AttachmentJournal, AttachmentPhase};
use ipnet::IpNet;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::mpsc;
use tortie_model::{FeedEvent, Resource, StoreKey, StoreValue};
use tortie_sync::Feed;

/// Capacity of the channel to the engine, in addition to that of the feed.
const CORRECTED_FEED_CAPACITY: usize = 64;

/// The network of an attachment, according to the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct JournaledNetwork {
    addresses: Vec<IpAddr>,
    /// The interface name, if it is not the one derived from namespace and pod name.
    interface: Option<String>,
    /// The floating addresses that ADD granted, if known. Annotations of a running pod do not add to them, because
    /// only ADD checks whether the network allows them.
    floating: Option<Vec<String>>,
}

/// Returns the same feed with corrected endpoints.
pub fn correct_feed(mut feed: Feed, journal: Arc<AttachmentJournal>, node: String) -> Feed {
    let (sender, corrected) = mpsc::channel(CORRECTED_FEED_CAPACITY);
    tokio::spawn(async move {
        while let Some(mut event) = feed.recv().await {
            correct(&mut event, &node, |key| find_journaled_network(&journal, key));
            if sender.send(event).await.is_err() {
                return;
            }
        }
    });
    corrected
}

fn find_journaled_network(journal: &AttachmentJournal, key: &StoreKey) -> Option<JournaledNetwork> {
    let record = journal.find(|record| {
        record.phase != AttachmentPhase::Removing && record.endpoint_key().as_ref() == Some(key)
    })?;
    let addresses = record.result?.ips.iter().map(|ip| ip.address.addr()).collect();
    let live = record.workload.filter(|_| record.phase == AttachmentPhase::Live);
    let floating = live.as_ref().map(list_floating_addresses);
    Some(JournaledNetwork { addresses, interface: record.chained.then_some(record.host_interface), floating })
}

fn list_floating_addresses(endpoint: &serde_json::Value) -> Vec<String> {
    let nats = endpoint["spec"]["ipNATs"].as_array().into_iter().flatten();
    nats.filter_map(|nat| nat["externalIP"].as_str()).map(str::to_owned).collect()
}

/// Corrects an endpoint of this node. An endpoint without addresses is left alone, because its pod has completed.
fn correct(event: &mut FeedEvent, node: &str, wired: impl Fn(&StoreKey) -> Option<JournaledNetwork>) {
    let FeedEvent::Put { key, value: StoreValue::Resource(Resource::WorkloadEndpoint(endpoint)), .. } = event
    else {
        return;
    };
    let spec = &mut endpoint.spec;
    if spec.node == node
        && !spec.ip_networks.is_empty()
        && let Some(JournaledNetwork { addresses, interface, floating }) = wired(key)
    {
        if let Some(granted) = floating {
            spec.ip_nats.retain(|nat| granted.contains(&nat.external_ip));
        }
        if let Some(interface) = interface {
            spec.interface_name = interface;
        }
        spec.ip_networks = addresses.into_iter().map(|address| IpNet::from(address).to_string()).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tortie_model::Kind;

    fn put(node: &str, networks: &[&str]) -> FeedEvent {
        let key = StoreKey::resource(Kind::WorkloadEndpoint, "shop", "n1-k8s-web-eth0");
        let object = json!({"metadata": {"name": "n1-k8s-web-eth0", "namespace": "shop"},
            "spec": {"node": node, "orchestrator": "k8s", "pod": "web", "ipNetworks": networks}});
        let value = StoreValue::decode(&key, object.to_string().as_bytes()).unwrap();
        FeedEvent::Put { key, value, revision: 7.into() }
    }

    fn networks(mut event: FeedEvent, wired: Option<&[&str]>) -> Vec<String> {
        let wired = wired.map(|all| JournaledNetwork {
            addresses: all.iter().map(|text| text.parse().unwrap()).collect(),
            interface: None,
            floating: Some(Vec::new()),
        });
        correct(&mut event, "n1", |_| wired.clone());
        match event {
            FeedEvent::Put { value: StoreValue::Resource(Resource::WorkloadEndpoint(endpoint)), .. } => {
                endpoint.spec.ip_networks
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn annotations_of_running_pods_grant_no_floating_address() {
        let floating = |granted: Option<&[&str]>| {
            let mut event = put("n1", &["10.0.0.1/32"]);
            let FeedEvent::Put { value: StoreValue::Resource(Resource::WorkloadEndpoint(endpoint)), .. } =
                &mut event
            else {
                panic!("{event:?}")
            };
            let nats = json!([{"internalIP": "10.0.0.1", "externalIP": "192.0.2.1"},
                {"internalIP": "10.0.0.1", "externalIP": "192.0.2.2"}]);
            endpoint.spec.ip_nats = serde_json::from_value(nats).unwrap();
            let workload = granted.map(|all| {
                let nats: Vec<_> = all.iter().map(|external| json!({"externalIP": external})).collect();
                json!({"spec": {"ipNATs": nats}})
            });
            let wired = JournaledNetwork {
                addresses: vec!["10.0.0.1".parse().unwrap()],
                floating: workload.as_ref().map(list_floating_addresses),
                ..JournaledNetwork::default()
            };
            correct(&mut event, "n1", |_| Some(wired.clone()));
            let FeedEvent::Put { value: StoreValue::Resource(Resource::WorkloadEndpoint(endpoint)), .. } =
                event
            else {
                panic!("{event:?}")
            };
            endpoint.spec.ip_nats.into_iter().map(|nat| nat.external_ip).collect::<Vec<_>>()
        };
        assert_eq!(floating(Some(&["192.0.2.2", "192.0.2.3"])), ["192.0.2.2"]);
        assert!(floating(Some(&[])).is_empty());
        assert_eq!(floating(None), ["192.0.2.1", "192.0.2.2"], "what ADD has granted is not known");
    }

    #[test]
    fn the_journal_corrects_live_local_endpoints() {
        let old = ["10.0.0.1/32"];
        assert_eq!(networks(put("n1", &old), Some(&["10.0.0.9", "fd00::9"])), ["10.0.0.9/32", "fd00::9/128"]);
        assert_eq!(networks(put("n1", &old), None), old);
        assert_eq!(networks(put("n2", &old), Some(&["10.0.0.9"])), old);
        assert!(networks(put("n1", &[]), Some(&["10.0.0.9"])).is_empty());
    }
}
