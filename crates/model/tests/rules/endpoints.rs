//! Endpoints, nodes and migrations.

use super::{table, with};
use serde_json::{Value, json};
use tortie_model::{Kind, Resource};

#[test]
fn host_endpoints() {
    let port = |change: Value| json!({"ports": [with(&json!({"name": "ssh", "protocol": "TCP", "port": 22}), &change)]});
    table(
        Kind::HostEndpoint,
        "h",
        json!({"node": "n1", "interfaceName": "eth0"}),
        &[
            (json!({"node": null}), &["Spec.Node"]),
            (json!({"interfaceName": null}), &["Spec.InterfaceName"]),
            (json!({"interfaceName": null, "expectedIPs": ["192.0.2.1", "2001:db8::1"]}), &[]),
            (json!({"interfaceName": "*"}), &[]),
            (json!({"interfaceName": "a very long interface"}), &["Spec.InterfaceName"]),
            (json!({"expectedIPs": ["192.0.2.0/24"]}), &["Spec.ExpectedIPs[0]"]),
            (json!({"expectedIPs": ["192.0.2.1", "192.0.2.1"]}), &["Spec.ExpectedIPs[1]"]),
            (json!({"profiles": ["a", "a"]}), &["Spec.Profiles[1]"]),
            (json!({"profiles": ["A"]}), &["Spec.Profiles[0]"]),
            (port(json!({})), &[]),
            (port(json!({"name": ""})), &["Spec.Ports[0].Name"]),
            (port(json!({"protocol": "ICMP"})), &["Spec.Ports[0].Protocol"]),
            (port(json!({"protocol": null})), &["Spec.Ports[0].Protocol"]),
            (port(json!({"protocol": 132})), &[]),
            (port(json!({"port": 0})), &["Spec.Ports[0].Port"]),
        ],
    );
}

#[test]
fn workload_endpoints() {
    let port = |change: Value| json!({"ports": [with(&json!({"name": "http", "protocol": "TCP", "port": 80}), &change)]});
    table(
        Kind::WorkloadEndpoint,
        "rack1--n7-k8s-web--0-eth0",
        json!({"node": "rack1-n7", "orchestrator": "k8s", "pod": "web-0", "endpoint": "eth0",
            "interfaceName": "cali1", "ipNetworks": ["10.65.3.1/32"]}),
        &[
            (json!({"pod": "web-1"}), &["Metadata.Name"]),
            (json!({"pod": null}), &["Spec.Pod"]),
            (json!({"node": null, "endpoint": null}), &["Spec.Node", "Spec.Endpoint"]),
            (json!({"pod": "web-"}), &["Spec.Pod", "Spec.Pod"]),
            (json!({"interfaceName": null}), &["Spec.InterfaceName"]),
            (json!({"containerID": "4b0c6F3e-1"}), &[]),
            (json!({"containerID": "4b0c6f3e-"}), &["Spec.ContainerID"]),
            (json!({"workload": "W"}), &["Spec.Workload"]),
            (json!({"serviceAccountName": "no_good"}), &["Spec.ServiceAccountName"]),
            (json!({"ipNetworks": ["10.65.3.0/31"]}), &["Spec.IPNetworks[0]"]),
            (json!({"ipNetworks": ["fd00::1/128", "10.65.3.1"]}), &[]),
            (json!({"ipNATs": [{"internalIP": "10.65.3.1", "externalIP": "192.0.2.1"}]}), &[]),
            (
                json!({"ipNATs": [{"internalIP": "10.65.3.2", "externalIP": "192.0.2.1"}]}),
                &["Spec.IPNATs[0].InternalIP"],
            ),
            (
                json!({"ipNATs": [{"internalIP": "10.65.3.1", "externalIP": "2001:db8::1"}]}),
                &["Spec.IPNATs[0].ExternalIP"],
            ),
            (json!({"ipv4Gateway": "10.65.3.254", "ipv6Gateway": "fd00::ff"}), &[]),
            (json!({"ipv4Gateway": "fd00::ff"}), &["Spec.IPv4Gateway"]),
            (json!({"ipv6Gateway": "10.65.3.254"}), &["Spec.IPv6Gateway"]),
            (json!({"profiles": ["kns.prod", "Bad"]}), &["Spec.Profiles[1]"]),
            (json!({"mac": "ee:ee:ee:ee:ee:ee"}), &[]),
            (json!({"mac": "ee:ee"}), &["Spec.MAC"]),
            (port(json!({})), &[]),
            (port(json!({"name": "", "hostPort": 8080, "hostIP": "192.0.2.1"})), &[]),
            (port(json!({"name": ""})), &["Spec.Ports[0].Name"]),
            (port(json!({"protocol": "ICMP"})), &["Spec.Ports[0].Protocol"]),
            (port(json!({"port": 0})), &["Spec.Ports[0].Port"]),
            (port(json!({"hostIP": "here"})), &["Spec.Ports[0].HostIP"]),
            (json!({"allowSpoofedSourcePrefixes": ["10.0.0.1/8", "fd00::1"]}), &[]),
            (json!({"allowSpoofedSourcePrefixes": ["x"]}), &["Spec.AllowSpoofedSourcePrefixes[0]"]),
            (json!({"qosControls": {"ingressBandwidth": 1000000, "dscp": "AF21"}}), &[]),
            (json!({"qosControls": {"dscp": 64}}), &["Spec.QoSControls.DSCP"]),
        ],
    );
}

#[test]
fn nodes() {
    table(
        Kind::Node,
        "n1",
        json!({"bgp": {"ipv4Address": "192.0.2.1/24"}}),
        &[
            (json!({"bgp": {}}), &["Spec.BGP"]),
            (json!({"bgp": null}), &[]),
            (json!({"bgp": {"ipv4Address": "2001:db8::1/64"}}), &["Spec.BGP.IPv4Address"]),
            (json!({"bgp": {"ipv6Address": "192.0.2.1/24"}}), &["Spec.BGP.IPv6Address"]),
            (json!({"bgp": {"ipv4IPIPTunnelAddr": "10.65.3.0/32"}}), &["Spec.BGP.IPv4IPIPTunnelAddr"]),
            (json!({"bgp": {"routeReflectorClusterID": "1"}}), &["Spec.BGP.RouteReflectorClusterID"]),
            (json!({"bgp": {"routeReflectorClusterID": "244.0.0.1", "asNumber": "1.10"}}), &[]),
            (json!({"ipv4VXLANTunnelAddr": "10.65.3.0", "vxlanTunnelMACAddr": "66:01:02:03:04:05"}), &[]),
            (json!({"ipv4VXLANTunnelAddr": "fd00::1"}), &["Spec.IPv4VXLANTunnelAddr"]),
            (json!({"ipv6VXLANTunnelAddr": "10.65.3.0"}), &["Spec.IPv6VXLANTunnelAddr"]),
            (json!({"vxlanTunnelMACAddr": "x"}), &["Spec.VXLANTunnelMACAddr"]),
            (json!({"vxlanTunnelMACAddrV6": "x"}), &["Spec.VXLANTunnelMACAddrV6"]),
            (json!({"orchRefs": [{"nodeName": "n1", "orchestrator": "k8s"}]}), &[]),
            (json!({"orchRefs": [{"nodeName": "n1"}]}), &["Spec.OrchRefs[0].Orchestrator"]),
            (json!({"wireguard": {"interfaceIPv4Address": "x"}}), &["Spec.Wireguard.InterfaceIPv4Address"]),
            (
                json!({"wireguard": {"interfaceIPv6Address": "10.0.0.1"}}),
                &["Spec.Wireguard.InterfaceIPv6Address"],
            ),
            (json!({"addresses": [{"address": "192.0.2.1", "type": "InternalIP"}]}), &[]),
            (
                json!({"addresses": [{"address": "here", "type": "Home"}]}),
                &["Spec.Addresses[0].Address", "Spec.Addresses[0].Type"],
            ),
            (json!({"interfaces": [{"name": "eth0", "addresses": ["192.0.2.1"]}]}), &[]),
            (
                json!({"interfaces": [{"name": "eth0", "addresses": ["x"]}]}),
                &["Spec.Interfaces[0].Addresses[0]"],
            ),
        ],
    );
}

#[test]
fn keys_of_nodes_are_32_bytes() {
    let node = |key: &str| {
        let object = json!({"kind": "Node", "apiVersion": "projectcalico.org/v3", "metadata": {"name": "n1"},
            "status": {"wireguardPublicKey": key, "podCIDRs": ["10.65.0.0/24"]}});
        Resource::from_user(object).unwrap().validate()
    };
    assert!(node("jlkVyQYooZYzI2wFfNhSZez5eWh44yfq1wKVjLvSXgY=").is_ok());
    for key in ["jlkVyQYooZYzI2wFfNhSZez5eWh44yfq1wKVjLvSXg==", "not base64"] {
        assert_eq!(node(key).unwrap_err().errors[0].name, "Status.WireguardPublicKey");
    }
}

#[test]
fn live_migrations() {
    let workload = json!({"hostname": "n1", "orchestratorID": "openstack", "workloadID": "w"});
    table(
        Kind::LiveMigration,
        "m",
        json!({"source": {"workload": workload}, "target": {"selector": "all()"}}),
        &[
            (json!({"source": {}}), &["Spec.Source"]),
            (json!({"source": {"workload": workload, "workloadEndpoint": workload}}), &["Spec.Source"]),
            (json!({"source": {"workloadEndpoint": workload}}), &[]),
            (json!({"target": {}}), &["Spec.Target"]),
            (json!({"target": {"selector": "!"}}), &["Spec.Target.Selector"]),
            (json!({"target": {"selector": "all()", "workloadEndpoint": workload}}), &["Spec.Target"]),
        ],
    );
}
