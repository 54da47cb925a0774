//! BGP settings, peers and filters.

use super::{table, with};
use serde_json::{Value, json};
use tortie_model::Kind;

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
