//! Conversion of Kubernetes network policies to Calico policies, and of the endpoint slices that rules with services
//! need.

use super::core::{CoreClusterPolicy, CoreEndpointSlice, CoreNetworkPolicy};
use super::uid;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use tortie_model::kinds::{GlobalNetworkPolicy, GlobalNetworkPolicySpec, NetworkPolicy};
use tortie_model::kubernetes::{
    ClusterPolicyKind, EndpointSlice, NETWORK_POLICY_PREFIX, from_admin_network_policy, from_baseline_policy,
    global_network_policy, network_policy::network_policy,
};
use tortie_model::{Kind, StoreKey};

pub fn from_network_policy(object: &CoreNetworkPolicy) -> (StoreKey, NetworkPolicy) {
    let meta = &object.metadata;
    let name = format!("{NETWORK_POLICY_PREFIX}{}", meta.name);
    let key = StoreKey::resource(Kind::NetworkPolicy, &meta.namespace, &name);
    let metadata = meta.derived(name, &meta.namespace, uid::convert(&meta.uid));
    (key, NetworkPolicy::new(metadata, network_policy(&object.spec)))
}

/// Returns the key of the policy derived from a cluster policy.
pub fn cluster_policy_key(kind: ClusterPolicyKind, name: &str) -> StoreKey {
    StoreKey::resource(Kind::GlobalNetworkPolicy, "", &format!("{}{name}", kind.name_prefix()))
}

/// Converts a cluster policy of Kubernetes. Returns `None` if it has no effect: its tier, subject or rules are unknown.
pub fn from_cluster_policy(
    kind: ClusterPolicyKind,
    object: Json,
) -> Result<Option<GlobalNetworkPolicy>, serde_json::Error> {
    match kind {
        ClusterPolicyKind::ClusterNetworkPolicy => derive_policy(kind, object, global_network_policy),
        ClusterPolicyKind::AdminNetworkPolicy => derive_policy(kind, object, from_admin_network_policy),
        ClusterPolicyKind::BaselineAdminNetworkPolicy => derive_policy(kind, object, from_baseline_policy),
    }
}

fn derive_policy<S: DeserializeOwned + Default>(
    kind: ClusterPolicyKind,
    object: Json,
    convert: fn(&S) -> Option<GlobalNetworkPolicySpec>,
) -> Result<Option<GlobalNetworkPolicy>, serde_json::Error> {
    let CoreClusterPolicy { metadata, spec } = serde_json::from_value::<CoreClusterPolicy<S>>(object)?;
    let name = format!("{}{}", kind.name_prefix(), metadata.name);
    let metadata = metadata.derived(name, "", uid::convert(&metadata.uid));
    Ok(convert(&spec).map(|spec| GlobalNetworkPolicy::new(metadata, spec)))
}

/// Converts an EndpointSlice; without endpoints if it belongs to no service.
pub fn from_endpoint_slice(object: &CoreEndpointSlice) -> (StoreKey, Option<EndpointSlice>) {
    let meta = &object.metadata;
    let key = StoreKey::EndpointSlice { namespace: meta.namespace.clone(), name: meta.name.clone() };
    (key, EndpointSlice::read(&meta.labels, &object.slice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const UID: &str = "80000000-0000-4000-8000-000000000001";
    const CONVERTED_UID: &str = "01000000-0000-4000-8000-000000000080";

    #[test]
    fn policies_keep_the_names_of_older_peers() {
        let object = serde_json::from_value(
            json!({"metadata": {"name": "web", "namespace": "shop", "uid": UID,
            "labels": {"a": "b"}, "managedFields": [{}]}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}),
        );
        let (key, policy) = from_network_policy(&object.unwrap());
        assert_eq!(key, StoreKey::resource(Kind::NetworkPolicy, "shop", "knp.default.web"));
        assert_eq!(policy.metadata.name, "knp.default.web");
        assert_eq!(
            (policy.metadata.namespace.as_str(), policy.metadata.uid.as_str()),
            ("shop", CONVERTED_UID)
        );
        assert!(policy.metadata.labels.is_empty());
        let rules = json!([{"action": "Deny", "from": [{"namespaces": {}}]}]);
        for (kind, name, tier) in [
            (ClusterPolicyKind::ClusterNetworkPolicy, "kcnp.all", "kube-admin"),
            (ClusterPolicyKind::AdminNetworkPolicy, "kanp.all", "kube-admin"),
            (ClusterPolicyKind::BaselineAdminNetworkPolicy, "kbanp.all", "kube-baseline"),
        ] {
            let object = json!({"metadata": {"name": "all", "uid": UID},
                "spec": {"tier": "Admin", "priority": 3, "subject": {"namespaces": {}}, "ingress": rules}});
            let policy = from_cluster_policy(kind, object).unwrap().unwrap();
            let key = StoreKey::resource(Kind::GlobalNetworkPolicy, "", name);
            assert_eq!(cluster_policy_key(kind, "all"), key);
            assert_eq!((&*policy.metadata.name, &*policy.metadata.uid), (name, CONVERTED_UID));
            assert_eq!(policy.spec.tier, tier);
        }
        let odd = json!({"metadata": {"name": "odd"}, "spec": {"tier": "Odd"}});
        for kind in ClusterPolicyKind::ALL {
            assert!(from_cluster_policy(kind, odd.clone()).unwrap().is_none());
        }
    }

    #[test]
    fn slices_belong_to_services() {
        let slice = |labels: serde_json::Value| {
            let object = json!({"metadata": {"name": "web-x", "namespace": "shop", "labels": labels},
                "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 80}]});
            from_endpoint_slice(&serde_json::from_value(object).unwrap())
        };
        let (key, endpoints) = slice(json!({"kubernetes.io/service-name": "web"}));
        assert_eq!(key, StoreKey::EndpointSlice { namespace: "shop".into(), name: "web-x".into() });
        assert_eq!(endpoints.unwrap().service, "web");
        assert!(slice(json!({})).1.is_none());
    }
}
