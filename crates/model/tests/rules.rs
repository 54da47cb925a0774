//! Every rule about pools, BGP, endpoints, nodes and settings: what is refused, at which path, and its accepted
//! neighbours.

#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::{Value, json};
use tortie_model::{Kind, Resource};

fn read(kind: Kind, name: &str, spec: &Value) -> Resource {
    let mut metadata = json!({"name": name});
    if kind.is_namespaced() {
        metadata["namespace"] = json!("prod");
    }
    let object = json!({"kind": kind.name(), "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec});
    let mut resource = Resource::from_user(object).unwrap_or_else(|error| panic!("{kind} {spec}: {error}"));
    resource.set_defaults();
    resource
}

/// The paths at which an object is refused; each failure has a reason.
fn paths(kind: Kind, name: &str, spec: &Value) -> Vec<String> {
    let Err(error) = read(kind, name, spec).validate() else { return Vec::new() };
    assert!(error.errors.iter().all(|error| !error.reason.is_empty()), "{error}");
    error.errors.into_iter().map(|error| error.name).collect()
}

/// A spec with some fields replaced, or taken out where the replacement is null.
fn with(base: &Value, change: &Value) -> Value {
    let mut spec = base.clone();
    for (key, value) in change.as_object().unwrap() {
        if value.is_null() {
            spec.as_object_mut().unwrap().remove(key);
        } else {
            spec[key] = value.clone();
        }
    }
    spec
}

/// Runs a table of changes to a spec that is accepted as it is.
#[track_caller]
fn table(kind: Kind, name: &str, base: Value, rows: &[(Value, &[&str])]) {
    assert_eq!(paths(kind, name, &base), [""; 0], "{kind} {base}");
    for (change, expected) in rows {
        let spec = with(&base, change);
        assert_eq!(paths(kind, name, &spec), *expected, "{kind} {spec}");
    }
}

#[test]
fn pools() {
    table(
        Kind::IPPool,
        "pool",
        json!({"cidr": "10.65.0.0/16"}),
        &[
            (json!({"cidr": ""}), &["Spec.CIDR"]),
            (json!({"cidr": "10.65.0.0"}), &["Spec.CIDR"]),
            (json!({"cidr": "10.65.0.1/16"}), &["Spec.CIDR"]),
            (json!({"cidr": "nonsense"}), &["Spec.CIDR"]),
            (json!({"cidr": "169.254.7.0/24"}), &["Spec.CIDR"]),
            (json!({"cidr": "169.0.0.0/8"}), &["Spec.CIDR"]),
            (json!({"cidr": "fe80::/64"}), &["Spec.CIDR"]),
            (json!({"cidr": "169.253.0.0/16"}), &[]),
            (json!({"cidr": "fd00:65::/48"}), &[]),
            (json!({"cidr": "10.65.0.0/27"}), &["Spec.CIDR"]),
            (json!({"cidr": "10.65.0.0/27", "disabled": true}), &[]),
            (json!({"cidr": "10.65.0.0/26"}), &[]),
            (json!({"blockSize": 19}), &["Spec.BlockSize"]),
            (json!({"blockSize": 20}), &[]),
            (json!({"blockSize": 32}), &[]),
            (json!({"blockSize": 33}), &["Spec.BlockSize"]),
            (json!({"cidr": "fd00:65::/48", "blockSize": 26}), &["Spec.BlockSize", "Spec.CIDR"]),
            (json!({"cidr": "fd00:65::/48", "blockSize": 128}), &[]),
            (json!({"ipipMode": "Sometimes"}), &["Spec.IPIPMode"]),
            (json!({"vxlanMode": "always"}), &["Spec.VXLANMode"]),
            (json!({"ipipMode": "CrossSubnet"}), &[]),
            (json!({"ipipMode": "Always", "vxlanMode": "Always"}), &["Spec.IPIPMode"]),
            (json!({"cidr": "fd00:65::/48", "ipipMode": "Always"}), &["Spec.IPIPMode"]),
            (json!({"cidr": "fd00:65::/48", "vxlanMode": "Always"}), &[]),
            (json!({"nodeSelector": "rack == "}), &["Spec.NodeSelector"]),
            (json!({"nodeSelector": "global()"}), &["Spec.NodeSelector"]),
            (json!({"nodeSelector": "rack == '1'"}), &[]),
            (json!({"namespaceSelector": "team == 'a'"}), &["Spec.NamespaceSelector"]),
            (json!({"namespaceSelector": "team == 'a'", "allowedUses": ["Workload"]}), &[]),
            (
                json!({"namespaceSelector": "global()", "allowedUses": ["Workload"]}),
                &["Spec.NamespaceSelector"],
            ),
            (json!({"allowedUses": ["Workload", "Workload"]}), &["Spec.AllowedUses[1]"]),
            (json!({"allowedUses": ["Sleep"]}), &["Spec.AllowedUses[0]"]),
            (json!({"allowedUses": ["LoadBalancer"]}), &[]),
            (json!({"allowedUses": ["LoadBalancer", "Workload"]}), &["Spec.AllowedUses"]),
            (json!({"allowedUses": ["LoadBalancer"], "vxlanMode": "Always"}), &["Spec.VXLANMode"]),
            (json!({"allowedUses": ["LoadBalancer"], "disableBGPExport": true}), &["Spec.DisableBGPExport"]),
            (json!({"allowedUses": ["LoadBalancer"], "nodeSelector": "has(x)"}), &["Spec.NodeSelector"]),
            (json!({"assignmentMode": "Manual"}), &[]),
            (json!({"assignmentMode": "manual"}), &["Spec.AssignmentMode"]),
            (
                json!({"cidr": "x", "ipipMode": "y", "assignmentMode": "z"}),
                &["Spec.CIDR", "Spec.IPIPMode", "Spec.AssignmentMode"],
            ),
        ],
    );
}

#[test]
fn pools_keep_their_network_block_size_and_use() {
    let pool = |spec: Value| match read(Kind::IPPool, "pool", &spec) {
        Resource::IPPool(pool) => pool,
        other => panic!("{other:?}"),
    };
    let old = pool(json!({"cidr": "10.65.0.0/16"}));
    let balancer = pool(json!({"cidr": "10.65.0.0/16", "allowedUses": ["LoadBalancer"]}));
    for (old, new, expected) in [
        (&old, json!({"cidr": "10.65.0.0/16", "natOutgoing": true, "allowedUses": ["Workload"]}), None),
        (&old, json!({"cidr": "10.66.0.0/16"}), Some("Spec.CIDR")),
        (&old, json!({"cidr": "10.65.0.0/17"}), Some("Spec.CIDR")),
        (&old, json!({"cidr": "10.65.0.0/16", "blockSize": 27}), Some("Spec.BlockSize")),
        (&old, json!({"cidr": "10.65.0.0/16", "allowedUses": ["LoadBalancer"]}), None),
        (&balancer, json!({"cidr": "10.65.0.0/16", "allowedUses": ["LoadBalancer"], "disabled": true}), None),
        (&balancer, json!({"cidr": "10.65.0.0/16"}), Some("Spec.AllowedUses")),
    ] {
        let result = old.check_update(&pool(new.clone()));
        let path = result.err().map(|error| error.errors[0].name.clone());
        assert_eq!(path.as_deref(), expected, "{new}");
    }
    let mut spelled = old.clone();
    spelled.spec.cidr = "010.65.0.0/16".to_owned();
    assert!(spelled.check_update(&old).is_err(), "an unreadable network is not the same network");
    let mut long = pool(json!({"cidr": "fd00:65::/48"}));
    let canonical = long.clone();
    long.spec.cidr = "fd00:0065:0::/48".to_owned();
    assert!(long.check_update(&canonical).is_ok());
}

#[test]
fn reservations() {
    table(
        Kind::IPReservation,
        "r",
        json!({"reservedCIDRs": ["10.65.0.0/28", "fd00::1/128", "10.65.1.1"]}),
        &[
            (json!({"reservedCIDRs": ["10.65.0.0/28", "x"]}), &["Spec.ReservedCIDRs[1]"]),
            (json!({"reservedCIDRs": ["10.65.0.0/28", "10.65.0.0/28"]}), &["Spec.ReservedCIDRs[1]"]),
        ],
    );
}

#[test]
fn bgp_configurations() {
    let advertisement = json!([{"cidr": "10.0.0.0/8", "communities": ["64512:1"]}]);
    table(
        Kind::BGPConfiguration,
        "default",
        json!({}),
        &[
            (json!({"logSeverityScreen": "loud"}), &["Spec.LogSeverityScreen"]),
            (json!({"logSeverityScreen": "DEBUG"}), &[]),
            (json!({"serviceClusterIPs": [{"cidr": "10.96.0.0/12"}]}), &[]),
            (json!({"serviceClusterIPs": [{"cidr": "10.96.0.1/12"}]}), &["Spec.ServiceClusterIPs[0].CIDR"]),
            (json!({"serviceExternalIPs": [{"cidr": "x"}]}), &["Spec.ServiceExternalIPs[0].CIDR"]),
            (json!({"serviceLoadBalancerIPs": [{"cidr": "x"}]}), &["Spec.ServiceLoadBalancerIPs[0].CIDR"]),
            (json!({"serviceLoadBalancerAggregation": "On"}), &["Spec.ServiceLoadBalancerAggregation"]),
            (json!({"communities": [{"name": "a", "value": "1:2"}]}), &["Spec.Communities"]),
            (
                json!({"communities": [{"name": "a", "value": "1:2"}], "prefixAdvertisements": advertisement}),
                &[],
            ),
            (
                json!({"communities": [{"name": "a", "value": "1:65536"}], "prefixAdvertisements": advertisement}),
                &["Spec.Communities[0].Value"],
            ),
            (
                json!({"communities": [{"name": "a", "value": "1:2:4294967295"}],
                    "prefixAdvertisements": [{"cidr": "10.0.0.0/8", "communities": ["a"]}]}),
                &[],
            ),
            (
                json!({"prefixAdvertisements": [{"cidr": "10.0.0.0/8", "communities": ["a"]}]}),
                &["Spec.PrefixAdvertisements[0].Communities[0]"],
            ),
            (
                json!({"prefixAdvertisements": [{"cidr": "10.0.0.0/8"}]}),
                &["Spec.PrefixAdvertisements[0].Communities"],
            ),
            (
                json!({"prefixAdvertisements": [{"cidr": "x", "communities": ["1:2"]}]}),
                &["Spec.PrefixAdvertisements[0].CIDR"],
            ),
            (json!({"nodeToNodeMeshEnabled": false}), &[]),
            (
                json!({"nodeToNodeMeshEnabled": false, "nodeMeshMaxRestartTime": "2m"}),
                &["Spec.NodeMeshMaxRestartTime"],
            ),
            (
                json!({"nodeToNodeMeshEnabled": false, "nodeMeshPassword": {"secretKeyRef": {"name": "s", "key": "k"}}}),
                &["Spec.NodeMeshPassword"],
            ),
            (json!({"nodeMeshPassword": {"secretKeyRef": {"name": "s", "key": "k"}}}), &[]),
            (
                json!({"nodeMeshPassword": {"secretKeyRef": {"name": "s"}}}),
                &["Spec.NodeMeshPassword.SecretKeyRef.Key"],
            ),
            (json!({"bindMode": "NodeIP"}), &[]),
            (json!({"bindMode": "All"}), &["Spec.BindMode"]),
            (json!({"ignoredInterfaces": ["eth*", "docker0"]}), &[]),
            (json!({"ignoredInterfaces": ["*"]}), &["Spec.IgnoredInterfaces[0]"]),
            (json!({"ignoredInterfaces": ["a", "a"]}), &["Spec.IgnoredInterfaces[1]"]),
            (json!({"ignoredInterfaces": ["sixteen-letters-"]}), &["Spec.IgnoredInterfaces[0]"]),
            (
                json!({"localWorkloadPeeringIPV4": "192.0.2.1", "localWorkloadPeeringIPV6": "2001:db8::1"}),
                &[],
            ),
            (json!({"localWorkloadPeeringIPV4": "2001:db8::1"}), &["Spec.LocalWorkloadPeeringIPV4"]),
            (json!({"localWorkloadPeeringIPV6": "192.0.2.1"}), &["Spec.LocalWorkloadPeeringIPV6"]),
            (json!({"programClusterRoutes": "EnabledNoEncapOnly"}), &[]),
            (json!({"programClusterRoutes": "Yes"}), &["Spec.ProgramClusterRoutes"]),
            (json!({"ipv4NormalRoutePriority": 1, "ipv6NormalRoutePriority": 2147483646}), &[]),
            (json!({"ipv4NormalRoutePriority": 0}), &["Spec.IPv4NormalRoutePriority"]),
            (json!({"ipv6NormalRoutePriority": 2147483647}), &["Spec.IPv6NormalRoutePriority"]),
        ],
    );
    table(
        Kind::BGPConfiguration,
        "node.n1",
        json!({"logSeverityScreen": "Debug", "listenPort": 178}),
        &[
            (json!({"nodeToNodeMeshEnabled": true}), &["Spec.NodeToNodeMeshEnabled"]),
            (json!({"asNumber": 64512}), &["Spec.ASNumber"]),
            (json!({"serviceLoadBalancerIPs": [{"cidr": "10.0.0.0/8"}]}), &["Spec.ServiceLoadBalancerIPs"]),
            (json!({"serviceExternalIPs": [{"cidr": "10.0.0.0/8"}]}), &["Spec.ServiceExternalIPs"]),
            (json!({"serviceClusterIPs": [{"cidr": "10.0.0.0/8"}]}), &["Spec.ServiceClusterIPs"]),
            (json!({"nodeMeshPassword": {"secretKeyRef": {"key": "k"}}}), &["Spec.NodeMeshPassword"]),
            (json!({"nodeMeshMaxRestartTime": "1m"}), &["Spec.NodeMeshMaxRestartTime"]),
        ],
    );
}

#[test]
fn bgp_peers() {
    table(
        Kind::BGPPeer,
        "p",
        json!({"peerIP": "192.0.2.1", "asNumber": 64512}),
        &[
            (json!({"node": "n1"}), &[]),
            (json!({"node": "N1"}), &["Spec.Node"]),
            (json!({"node": "n1", "nodeSelector": "all()"}), &["Spec.NodeSelector"]),
            (json!({"nodeSelector": "rack =="}), &["Spec.NodeSelector"]),
            (json!({"peerIP": "192.0.2.1:1179"}), &[]),
            (json!({"peerIP": "[2001:db8::1]:1179"}), &[]),
            (json!({"peerIP": "2001:db8::1"}), &[]),
            (json!({"peerIP": "192.0.2.1:0"}), &["Spec.PeerIP"]),
            (json!({"peerIP": "192.0.2.1:65536"}), &["Spec.PeerIP"]),
            (json!({"peerIP": "[2001:db8::1%3]:179"}), &["Spec.PeerIP"]),
            (json!({"peerIP": "[2001:db8::1]"}), &["Spec.PeerIP"]),
            (json!({"peerIP": "router.example"}), &["Spec.PeerIP"]),
            (json!({"peerSelector": "all()", "asNumber": null}), &["Spec.PeerIP"]),
            (json!({"peerSelector": "all()", "peerIP": null}), &["Spec.ASNumber"]),
            (json!({"peerSelector": "all()", "peerIP": null, "asNumber": null}), &[]),
            (json!({"localWorkloadSelector": "has(bgp)", "peerIP": null}), &[]),
            (json!({"localWorkloadSelector": "has(bgp)"}), &["Spec.PeerIP"]),
            (
                json!({"localWorkloadSelector": "has(bgp)", "peerIP": null, "asNumber": null}),
                &["Spec.ASNumber"],
            ),
            (
                json!({"localWorkloadSelector": "has(bgp)", "peerIP": null, "peerSelector": "all()"}),
                &["Spec.ASNumber", "Spec.PeerSelector"],
            ),
            (json!({"keepOriginalNextHop": true}), &[]),
            (json!({"keepOriginalNextHop": true, "nextHopMode": "Self"}), &["Spec.KeepOriginalNextHop"]),
            (json!({"nextHopMode": "Keep"}), &[]),
            (json!({"nextHopMode": "keep"}), &["Spec.NextHopMode"]),
            (json!({"sourceAddress": "None"}), &[]),
            (json!({"sourceAddress": "Any"}), &["Spec.SourceAddress"]),
            (json!({"reversePeering": "Manual"}), &[]),
            (json!({"reversePeering": "Off"}), &["Spec.ReversePeering"]),
            (json!({"reachableBy": "192.0.2.9"}), &[]),
            (json!({"reachableBy": "2001:db8::9"}), &["Spec.ReachableBy"]),
            (json!({"reachableBy": "gw"}), &["Spec.ReachableBy"]),
            (
                json!({"reachableBy": "192.0.2.9", "peerIP": null, "peerSelector": "all()", "asNumber": null}),
                &["Spec.ReachableBy"],
            ),
            (json!({"filters": ["a", "b.c"]}), &[]),
            (json!({"filters": ["a", "B"]}), &["Spec.Filters[1]"]),
            (
                json!({"password": {"secretKeyRef": {"name": "s", "key": ""}}}),
                &["Spec.Password.SecretKeyRef.Key"],
            ),
        ],
    );
}

#[test]
fn bgp_filters() {
    let rule = |change: Value| json!({"exportV4": [with(&json!({"action": "Accept"}), &change)]});
    let v6 = |change: Value| json!({"importV6": [with(&json!({"action": "Reject"}), &change)]});
    table(
        Kind::BGPFilter,
        "f",
        rule(json!({})),
        &[
            (rule(json!({"action": ""})), &["Spec.ExportV4[0].Action"]),
            (rule(json!({"action": "Allow"})), &["Spec.ExportV4[0].Action"]),
            (rule(json!({"cidr": "10.0.0.0/8", "matchOperator": "In"})), &[]),
            (rule(json!({"cidr": "10.0.0.0/8"})), &["Spec.ExportV4[0].MatchOperator"]),
            (rule(json!({"matchOperator": "In"})), &["Spec.ExportV4[0].MatchOperator"]),
            (
                rule(json!({"cidr": "10.0.0.0/8", "matchOperator": "Near"})),
                &["Spec.ExportV4[0].MatchOperator"],
            ),
            (rule(json!({"cidr": "10.0.0.1/8", "matchOperator": "In"})), &["Spec.ExportV4[0].CIDR"]),
            (rule(json!({"cidr": "fd00::/8", "matchOperator": "In"})), &["Spec.ExportV4[0].CIDR"]),
            (v6(json!({"cidr": "fd00::/8", "matchOperator": "NotIn"})), &[]),
            (v6(json!({"cidr": "10.0.0.0/8", "matchOperator": "NotIn"})), &["Spec.ImportV6[0].CIDR"]),
            (rule(json!({"prefixLength": {"min": 8}})), &["Spec.ExportV4[0].PrefixLength"]),
            (
                rule(
                    json!({"cidr": "10.0.0.0/8", "matchOperator": "In", "prefixLength": {"min": 16, "max": 32}}),
                ),
                &[],
            ),
            (
                rule(
                    json!({"cidr": "10.0.0.0/8", "matchOperator": "In", "prefixLength": {"min": -1, "max": 33}}),
                ),
                &["Spec.ExportV4[0].PrefixLength.Min", "Spec.ExportV4[0].PrefixLength.Max"],
            ),
            (v6(json!({"cidr": "fd00::/8", "matchOperator": "In", "prefixLength": {"max": 128}})), &[]),
            (rule(json!({"source": "RemotePeers", "interface": "eth*", "peerType": "eBGP"})), &[]),
            (rule(json!({"source": "Anyone"})), &["Spec.ExportV4[0].Source"]),
            (rule(json!({"interface": "not an interface"})), &["Spec.ExportV4[0].Interface"]),
            (rule(json!({"peerType": "EBGP"})), &["Spec.ExportV4[0].PeerType"]),
            (rule(json!({"communities": {"values": ["1:2"]}})), &[]),
            (rule(json!({"communities": {"values": []}})), &["Spec.ExportV4[0].Communities.Values"]),
            (
                rule(json!({"communities": {"values": ["1:2", "3:4"]}})),
                &["Spec.ExportV4[0].Communities.Values"],
            ),
            (rule(json!({"communities": {"values": ["1"]}})), &["Spec.ExportV4[0].Communities.Values[0]"]),
            (rule(json!({"asPathPrefix": [64512, "1.10"], "priority": 1})), &[]),
            (rule(json!({"priority": 0})), &["Spec.ExportV4[0].Priority"]),
            (rule(json!({"operations": [{"addCommunity": {"value": "1:2"}}]})), &[]),
            (
                rule(json!({"action": "Reject", "operations": [{"addCommunity": {"value": "1:2"}}]})),
                &["Spec.ExportV4[0].Operations"],
            ),
            (rule(json!({"operations": [{}]})), &["Spec.ExportV4[0].Operations[0]"]),
            (
                rule(
                    json!({"operations": [{"addCommunity": {"value": "1:2"}, "setPriority": {"value": 5}}]}),
                ),
                &["Spec.ExportV4[0].Operations[0]"],
            ),
            (
                rule(json!({"operations": [{"addCommunity": {"value": "x"}}]})),
                &["Spec.ExportV4[0].Operations[0].AddCommunity.Value"],
            ),
            (rule(json!({"operations": [{"prependASPath": {"prefix": [64512]}}]})), &[]),
            (
                rule(json!({"operations": [{"prependASPath": {"prefix": []}}]})),
                &["Spec.ExportV4[0].Operations[0].PrependASPath.Prefix"],
            ),
            (
                rule(json!({"operations": [{"setPriority": {"value": 0}}]})),
                &["Spec.ExportV4[0].Operations[0].SetPriority.Value"],
            ),
            (
                rule(json!({"operations": vec![json!({"setPriority": {"value": 1}}); 11]})),
                &["Spec.ExportV4[0].Operations"],
            ),
        ],
    );
}

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
fn settings_of_controllers() {
    let template = |change: Value| {
        let template = with(&json!({"generateName": "t", "interfaceCIDRs": ["192.0.2.0/24"]}), &change);
        json!({"controllers": {"node": {"hostEndpoint": {"autoCreate": "Enabled", "templates": [template]}}}})
    };
    let at = "Spec.Controllers.Node.HostEndpoint";
    let place = |field: &str| format!("{at}.Templates[0].{field}");
    let (name, cidrs, pattern) = (place("GenerateName"), place("InterfaceCIDRs"), place("InterfacePattern"));
    let (cidr, selector, label) = (place("InterfaceCIDRs[0]"), place("NodeSelector"), place("Labels[-a]"));
    table(
        Kind::KubeControllersConfiguration,
        "default",
        json!({"controllers": {}}),
        &[
            (json!({"controllers": null}), &["Spec.Controllers"]),
            (json!({"logSeverityScreen": "Panic"}), &[]),
            (json!({"logSeverityScreen": "Loud"}), &["Spec.LogSeverityScreen"]),
            (json!({"healthChecks": "Off"}), &["Spec.HealthChecks"]),
            (json!({"prometheusMetricsPort": 0, "debugProfilePort": 65535}), &[]),
            (json!({"prometheusMetricsPort": 65536}), &["Spec.PrometheusMetricsPort"]),
            (json!({"debugProfilePort": -1}), &["Spec.DebugProfilePort"]),
            (json!({"controllers": {"node": {"syncLabels": "x"}}}), &["Spec.Controllers.Node.SyncLabels"]),
            (
                json!({"controllers": {"loadBalancer": {"assignIPs": "x"}}}),
                &["Spec.Controllers.LoadBalancer.AssignIPs"],
            ),
            (
                json!({"controllers": {"migration": {"policyNameMigrator": "x"}}}),
                &["Spec.Controllers.Migration.PolicyNameMigrator"],
            ),
            (template(json!({})), &[]),
            (template(json!({"generateName": ""})), &[&name]),
            (template(json!({"interfaceCIDRs": null})), &[&cidrs]),
            (template(json!({"interfaceCIDRs": null, "interfacePattern": "eth.*"})), &[]),
            (template(json!({"interfaceCIDRs": ["x"]})), &[&cidr]),
            (template(json!({"interfacePattern": "("})), &[&pattern]),
            (template(json!({"nodeSelector": "!"})), &[&selector]),
            (template(json!({"labels": {"-a": "b"}})), &[&label]),
        ],
    );
    let twice = json!({"generateName": "t", "interfacePattern": "x"});
    let spec = json!({"controllers": {"node": {"hostEndpoint": {"templates": [twice, twice]}}}});
    assert_eq!(
        paths(Kind::KubeControllersConfiguration, "default", &spec),
        [format!("{at}.Templates[1].GenerateName")]
    );
}

#[test]
fn singletons_are_called_default() {
    let controllers = json!({"controllers": {}});
    for (kind, spec) in [
        (Kind::ClusterInformation, json!({})),
        (Kind::KubeControllersConfiguration, controllers),
        (Kind::IPAMConfiguration, json!({})),
    ] {
        assert_eq!(paths(kind, "default", &spec), [""; 0]);
        assert_eq!(paths(kind, "other", &spec), ["Metadata.Name"]);
    }
}

#[test]
fn node_status_requests() {
    table(
        Kind::CalicoNodeStatus,
        "s",
        json!({"node": "n1", "classes": ["Agent", "BGP", "Routes"], "updatePeriodSeconds": 0}),
        &[
            (json!({"node": null}), &["Spec.Node"]),
            (json!({"classes": null}), &["Spec.Classes"]),
            (json!({"classes": ["BGP", "BGP"]}), &["Spec.Classes[1]"]),
            (json!({"classes": ["Weather"]}), &["Spec.Classes[0]"]),
            (json!({"updatePeriodSeconds": null}), &["Spec.UpdatePeriodSeconds"]),
            (json!({"updatePeriodSeconds": 86400}), &[]),
            (json!({"updatePeriodSeconds": 86401}), &["Spec.UpdatePeriodSeconds"]),
        ],
    );
}

#[test]
fn address_management() {
    table(
        Kind::IPAMConfiguration,
        "default",
        json!({"strictAffinity": true}),
        &[
            (json!({"maxBlocksPerHost": 1000000, "ipCooldownSeconds": 1200}), &[]),
            (json!({"maxBlocksPerHost": 1000001}), &["Spec.MaxBlocksPerHost"]),
            (json!({"maxBlocksPerHost": -1}), &["Spec.MaxBlocksPerHost"]),
            (json!({"ipCooldownSeconds": 1201}), &["Spec.IPCooldownSeconds"]),
            (json!({"kubeVirtVMAddressPersistence": "Disabled"}), &[]),
            (json!({"kubeVirtVMAddressPersistence": "No"}), &["Spec.KubeVirtVMAddressPersistence"]),
        ],
    );
    table(
        Kind::BlockAffinity,
        "a",
        json!({"state": "confirmed", "node": "n1", "type": "host", "cidr": "10.65.3.0/26"}),
        &[
            (json!({"state": ""}), &[]),
            (json!({"state": "perhaps"}), &["Spec.State"]),
            (json!({"node": ""}), &["Spec.Node"]),
            (json!({"type": "guest"}), &["Spec.Type"]),
            (json!({"cidr": "10.65.3.1/26"}), &["Spec.CIDR"]),
            (json!({"deleted": false}), &[]),
            (json!({"deleted": true}), &["Spec.Deleted"]),
        ],
    );
    table(
        Kind::IPAMBlock,
        "b",
        json!({"cidr": "10.65.3.0/26", "affinity": "host:n1"}),
        &[
            (json!({"affinity": null}), &[]),
            (json!({"affinity": "virtual:load-balancer"}), &[]),
            (json!({"affinity": "n1"}), &["Spec.Affinity"]),
            (json!({"affinity": "host:"}), &["Spec.Affinity"]),
            (json!({"cidr": "x"}), &["Spec.CIDR"]),
        ],
    );
    table(
        Kind::IPAMHandle,
        "h",
        json!({"handleID": "H", "block": {"10.65.3.0/26": 1}}),
        &[(json!({"handleID": ""}), &["Spec.HandleID"]), (json!({"block": {"x": 1}}), &["Spec.Block[x]"])],
    );
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
