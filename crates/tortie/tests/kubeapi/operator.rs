//! A node takes over in a cluster where Calico, installed by its operator, has stored its objects in
//! crd.projectcalico.org/v1: its pool, records of addresses, policies and pods stay in force.

use crate::prefixes::interface_name;
use crate::world::{AttachedPod, KubernetesNodeFixture, NODE_NAME};
use serde_json::{Value, json};
use tortie_testkit::{CalicoGroup, TestNamespace};

const OBJECTS_PATH: &str = "/apis/crd.projectcalico.org/v1";
const POOL: &str = "10.48.0.0/16";
const BLOCK: &str = "10.48.17.64/26";
const BLOCK_SIZE: usize = 64;
/// The address of the pod that Calico has connected, and its number in the block.
const OLD_ADDRESS: &str = "10.48.17.69";
const OLD_ORDINAL: usize = 5;
const OLD_HANDLE: &str = "k8s-pod-network.shop-old-1";
/// Label by which Calico finds the affinities of the node: SHA3-256 of its name in base32.
const HOSTNAME_HASH: &str = "DM7EHBDU4L3ELKRER4A46T6QMKAGARQI4CVWBO26S4I2IDAAW6CA";
const CLUSTER_GUID: &str = "0123456789abcdef0123456789abcdef";

/// Creates a custom resource as Calico writes it: the metadata of the v3 object is an annotation.
fn create(world: &KubernetesNodeFixture, plural: &str, kind: &str, name: &str, spec: &Value) {
    let object = json!({"apiVersion": "crd.projectcalico.org/v1", "kind": kind, "spec": spec, "metadata": {
        "name": name,
        "labels": {"app.kubernetes.io/managed-by": "tigera-operator"},
        "annotations": {"projectcalico.org/metadata": r#"{"creationTimestamp":"2025-01-01T00:00:00Z"}"#},
    }});
    world.server.create(&format!("{OBJECTS_PATH}/{plural}"), &object);
}

/// Creates the objects of the cluster and of the node.
fn create_calico_objects(world: &KubernetesNodeFixture) {
    create(
        world,
        "clusterinformations",
        "ClusterInformation",
        "default",
        &json!({"calicoVersion": "v3.31.0", "clusterGUID": CLUSTER_GUID, "datastoreReady": true,
            "clusterType": "typha,kdd,k8s,operator,bgp,kubeadm"}),
    );
    create(
        world,
        "felixconfigurations",
        "FelixConfiguration",
        "default",
        &json!({"bpfConnectTimeLoadBalancing": "TCP", "bpfHostNetworkedNATWithoutCTLB": "Enabled",
            "floatingIPs": "Disabled", "healthPort": 9099, "logSeverityScreen": "Info", "reportingInterval": "0s",
            "vxlanVNI": 4096}),
    );
    create(
        world,
        "ippools",
        "IPPool",
        "default-ipv4-ippool",
        &json!({"allowedUses": ["Workload", "Tunnel"], "assignmentMode": "Automatic", "blockSize": 26, "cidr": POOL,
            "ipipMode": "Never", "natOutgoing": true, "nodeSelector": "all()", "vxlanMode": "CrossSubnet"}),
    );
    create(
        world,
        "globalnetworkpolicies",
        "GlobalNetworkPolicy",
        "default.old",
        &json!({"tier": "default", "order": 100, "selector": "app == 'old'", "types": ["Ingress"],
            "ingress": [{"action": "Allow", "source": {"selector": "app == 'client'"}}]}),
    );
    let mut allocations = vec![Value::Null; BLOCK_SIZE];
    allocations[OLD_ORDINAL] = 0.into();
    let unallocated: Vec<usize> = (0..BLOCK_SIZE).filter(|ordinal| *ordinal != OLD_ORDINAL).collect();
    let attributes = json!([{"handle_id": OLD_HANDLE, "secondary": {"namespace": "shop", "node": NODE_NAME,
        "pod": "old", "timestamp": "2025-01-01 00:00:00 +0000 UTC"}}]);
    create(
        world,
        "ipamblocks",
        "IPAMBlock",
        "10-48-17-64-26",
        &json!({"affinity": format!("host:{NODE_NAME}"), "allocations": allocations, "attributes": attributes,
            "cidr": BLOCK, "deleted": false, "sequenceNumber": 1_750_000_000_000_000_001_u64,
            "sequenceNumberForAllocation": {"5": 1_750_000_000_000_000_000_u64}, "strictAffinity": false,
            "unallocated": unallocated}),
    );
    create(
        world,
        "ipamhandles",
        "IPAMHandle",
        OLD_HANDLE,
        &json!({"block": {BLOCK: 1}, "deleted": false, "handleID": OLD_HANDLE}),
    );
    let name = format!("{NODE_NAME}-10-48-17-64-26");
    create(
        world,
        "blockaffinities",
        "BlockAffinity",
        &name,
        &json!({"cidr": BLOCK, "deleted": "false", "node": NODE_NAME, "state": "confirmed", "type": "host"}),
    );
    let labels = json!({"projectcalico.org/hostname-hash": HOSTNAME_HASH, "projectcalico.org/affinity-type": "host",
        "projectcalico.org/ip-version": "4"});
    world
        .server
        .merge(&format!("{OBJECTS_PATH}/blockaffinities/{name}"), &json!({"metadata": {"labels": labels}}));
}

/// Connects the pod that Calico's plugin has connected before the take-over.
fn wire_old_pod(world: &KubernetesNodeFixture) -> AttachedPod {
    world.server.add_pod("shop", "old", NODE_NAME, json!({"app": "old"}), json!([]));
    let annotations = json!({"cni.projectcalico.org/podIP": format!("{OLD_ADDRESS}/32"),
        "cni.projectcalico.org/podIPs": format!("{OLD_ADDRESS}/32"), "cni.projectcalico.org/containerID": "shop-old-1"});
    world
        .server
        .merge("/api/v1/namespaces/shop/pods/old", &json!({"metadata": {"annotations": annotations}}));
    let addresses = vec![OLD_ADDRESS.to_owned()];
    world.server.set_pod_addresses("shop", "old", &addresses);
    let netns = TestNamespace::new("pod");
    let host_end = interface_name("cali", "old");
    let peer = format!("type veth peer name eth0 netns {}", netns.name());
    world.host.ip(&format!("link add {host_end} address ee:ee:ee:ee:ee:ee {peer}"));
    netns.ip(&format!("addr add {OLD_ADDRESS}/32 dev eth0"));
    netns.ip("link set eth0 up");
    netns.ip("route add 169.254.1.1 dev eth0");
    netns.ip("route add default via 169.254.1.1");
    netns.ip("neigh add 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee dev eth0");
    world.host.ip(&format!("link set {host_end} up"));
    world.host.ip(&format!("route add {OLD_ADDRESS}/32 dev {host_end}"));
    AttachedPod { namespace: "shop".to_owned(), name: "old".to_owned(), netns, addresses }
}

/// Returns an object without the metadata that kube-apiserver maintains.
fn spec_of(world: &KubernetesNodeFixture, path: &str) -> Value {
    world.server.must("GET", &format!("{OBJECTS_PATH}/{path}"), None)["spec"].take()
}

#[test]
fn a_cluster_of_the_operator_is_taken_over() {
    let mut world = KubernetesNodeFixture::without_node(CalicoGroup::V1);
    create_calico_objects(&world);
    let old = wire_old_pod(&world);
    let pool = spec_of(&world, "ippools/default-ipv4-ippool");
    let kubeconfig = world.server.node_kubeconfig();
    world.start(&kubeconfig);

    // The settings of the manifest name another pool, which applies only to clusters without one.
    assert_eq!(spec_of(&world, "ippools/default-ipv4-ippool"), pool);
    let listed = world.server.must("GET", &format!("{OBJECTS_PATH}/ippools"), None);
    let pools: Vec<&str> = listed["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pool| pool["spec"]["cidr"].as_str().unwrap())
        .collect();
    assert_eq!(pools.iter().filter(|cidr| !cidr.contains(':')).collect::<Vec<_>>(), [&POOL]);
    let information = spec_of(&world, "clusterinformations/default");
    assert_eq!(information["clusterGUID"], CLUSTER_GUID);
    assert_eq!(spec_of(&world, "felixconfigurations/default")["vxlanVNI"], 4096);

    // New pods get addresses of the node's block, and Calico's policy is in force between old and new pods.
    let client = world.add("shop", "client", json!({"app": "client"}));
    let other = world.add("shop", "other", json!({"app": "other"}));
    for pod in [&client, &other] {
        assert!(
            pod.addresses[0].starts_with("10.48.17.") && pod.addresses[0] != OLD_ADDRESS,
            "{:?}",
            pod.addresses
        );
    }
    world.wait_for(&client, &old, true);
    world.wait_for(&other, &old, false);
    world.wait(&format!("old reaches other at {}", other.addresses[0]), || old.pings(&other.addresses[0]));
    let check = world.tool("calicoctl", &["ipam", "check"], "");
    assert!(check.contains("found 0 problems"), "{check}");

    // Tortie's plugin detaches the pod that Calico has connected.
    world.detach(&old, "1");
    assert!(!world.host.has_link(&interface_name("cali", "old")));
    world.server.remove_pod("shop", "old");
    for pod in [&client, &other] {
        world.detach(pod, "1");
        world.server.remove_pod(&pod.namespace, &pod.name);
    }
    // Only the address of the node's tunnel is left: Calico's record of the old pod is released too.
    let handles = world.server.must("GET", &format!("{OBJECTS_PATH}/ipamhandles"), None);
    let names: Vec<&Value> =
        handles["items"].as_array().unwrap().iter().map(|handle| &handle["metadata"]["name"]).collect();
    assert_eq!(names, [&format!("vxlan-tunnel-addr-{NODE_NAME}")]);
    let check = world.tool("calicoctl", &["ipam", "check"], "");
    assert!(check.contains("found 0 problems"), "{check}");
}
