//! Sample objects of every resource kind that users manage.

use serde_json::{Value, json};
use tortie_model::{Kind, Resource, StoreKey};

/// Returns an object as stored, with its key. `object` is given without kind and apiVersion.
pub fn stored(kind: Kind, mut object: Value) -> (StoreKey, tortie_model::StoreValue) {
    object["kind"] = kind.name().into();
    object["apiVersion"] = tortie_model::API_VERSION.into();
    let mut resource =
        Resource::from_store(kind, object).unwrap_or_else(|error| panic!("a sample of {kind}: {error}"));
    resource.set_defaults();
    let meta = resource.metadata();
    (StoreKey::resource(kind, &meta.namespace, &meta.name), tortie_model::StoreValue::Resource(resource))
}

/// Returns a profile. Users write profiles only on etcd: with the Kubernetes datastore they are derived from its
/// objects.
pub fn profile() -> Value {
    json!({"apiVersion": "projectcalico.org/v3", "kind": "Profile", "metadata": {"name": "mine", "labels": {"kept": "yes"}},
        "spec": {"ingress": [{"action": "Allow"}], "labelsToApply": {"a": "b"}}})
}

/// Returns one object of every resource kind that users write with either datastore.
pub fn all() -> Vec<Value> {
    let object = |kind: &str, name: &str, spec: Value| {
        json!({"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": {"name": name, "labels": {"kept": "yes"}},
            "spec": spec})
    };
    let within = |kind: &str, name: &str, spec: Value| {
        let mut object = object(kind, name, spec);
        object["metadata"]["namespace"] = "shop".into();
        object
    };
    let rules = json!([{"action": "Allow", "protocol": "TCP", "destination": {"ports": [80, "8000:8080"]}}]);
    let policy = json!({"tier": "platform", "order": 10, "selector": "app == 'web'", "types": ["Ingress"], "ingress": rules});
    vec![
        object("Tier", "platform", json!({"order": 100})),
        object("GlobalNetworkPolicy", "web", policy.clone()),
        within("NetworkPolicy", "web", policy.clone()),
        object("StagedGlobalNetworkPolicy", "web", policy.clone()),
        within("StagedNetworkPolicy", "web", policy),
        within(
            "StagedKubernetesNetworkPolicy",
            "web",
            json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"]}),
        ),
        object("GlobalNetworkSet", "outside", json!({"nets": ["192.0.2.0/24", "198.51.100.0/24"]})),
        within("NetworkSet", "outside", json!({"nets": ["192.0.2.0/24"]})),
        object(
            "HostEndpoint",
            "n1-eth0",
            json!({"node": "n1", "interfaceName": "eth0", "expectedIPs": ["192.0.2.7"]}),
        ),
        object(
            "BlockAffinity",
            "n1-10-65-9-0-26",
            json!({"node": "n1", "cidr": "10.65.9.0/26", "state": "confirmed"}),
        ),
        object("IPPool", "pods", json!({"cidr": "10.65.0.0/16", "natOutgoing": true})),
        object("IPReservation", "kept", json!({"reservedCIDRs": ["10.65.1.0/30"]})),
        object("BGPConfiguration", "default", json!({"asNumber": 64512, "nodeToNodeMeshEnabled": true})),
        object("BGPFilter", "some", json!({"exportV4": [{"action": "Accept"}]})),
        object("BGPPeer", "rack", json!({"peerIP": "192.0.2.1", "asNumber": 64513})),
        object("FelixConfiguration", "default", json!({"logSeverityScreen": "Warning"})),
        object(
            "CalicoNodeStatus",
            "n1",
            json!({"node": "n1", "classes": ["BGP"], "updatePeriodSeconds": 10}),
        ),
        object("IPAMConfiguration", "default", json!({"strictAffinity": true, "autoAllocateBlocks": true})),
        object(
            "KubeControllersConfiguration",
            "default",
            json!({"controllers": {"node": {"reconcilerPeriod": "5m0s"}}}),
        ),
    ]
}

/// Joins objects to one multi-document YAML file.
pub fn documents(objects: &[Value]) -> String {
    objects.iter().map(Value::to_string).collect::<Vec<_>>().join("\n---\n")
}
