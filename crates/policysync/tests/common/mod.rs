//! Generated objects of the plan, as far as the protocol can express them.

use ipnet::IpNet;
use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;
use std::net::IpAddr;
use std::sync::Arc;
use tortie_plan::{
    AddressSet, EndpointTier, HttpMatch, HttpPathMatch, IcmpMatch, IpVersion, PeerMatch, PlannedPolicy,
    PlannedRule, PolicyId, PolicyKind, PortInterval, RuleAction, RuleSide, SetId, SetKind, SetMember,
    TierDefaultAction, WorkloadId, WorkloadPolicy,
};

fn any_net() -> impl Strategy<Value = IpNet> {
    let v4 = (any::<[u8; 4]>(), 0..=32_u8).prop_map(|(bytes, len)| (IpAddr::from(bytes), len));
    let v6 = (any::<[u8; 16]>(), 0..=128_u8).prop_map(|(bytes, len)| (IpAddr::from(bytes), len));
    prop_oneof![v4, v6].prop_map(|(address, len)| IpNet::new(address, len).unwrap().trunc())
}

fn any_address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)]
}

fn any_nets() -> impl Strategy<Value = Vec<IpNet>> {
    vec(any_net(), 0..3)
}

fn any_ports() -> impl Strategy<Value = Vec<PortInterval>> {
    let interval =
        (any::<u16>(), any::<u16>()).prop_map(|(a, b)| PortInterval { first: a.min(b), last: a.max(b) });
    vec(interval, 0..3)
}

fn any_sets() -> impl Strategy<Value = Vec<SetId>> {
    vec("[sn]:[a-zA-Z0-9_-]{1,8}".prop_map(|id| SetId::new(&id)), 0..3)
}

fn any_icmp() -> impl Strategy<Value = Option<IcmpMatch>> {
    proptest::option::of(
        (any::<u8>(), any::<Option<u8>>()).prop_map(|(r#type, code)| IcmpMatch { r#type, code }),
    )
}

fn any_peer() -> impl Strategy<Value = Option<Box<PeerMatch>>> {
    let names = vec("[a-z]{1,4}", 0..3);
    let fields = (".{0,9}", ".{0,9}", ".{0,9}", names, ".{0,9}");
    fields.prop_map(
        |(selector, not_selector, namespace_selector, service_accounts, service_account_selector)| {
            let peer = PeerMatch {
                selector,
                not_selector,
                namespace_selector,
                service_accounts,
                service_account_selector,
            };
            (peer != PeerMatch::default()).then(|| Box::new(peer))
        },
    )
}

fn any_side(is_destination: bool) -> impl Strategy<Value = RuleSide> {
    let service = proptest::option::of("svc:[a-z]{1,5}".prop_map(|id| SetId::new(&id)));
    let lists = (any_nets(), any_nets(), any_sets(), any_sets());
    let ports = (any_ports(), any_sets(), any_ports(), any_sets());
    (lists, ports, service, any_peer()).prop_map(move |(lists, ports, service, peer)| {
        let (nets, not_nets, sets, not_sets) = lists;
        let (ports, named_ports, not_ports, not_named_ports) = ports;
        let service = service.filter(|_| is_destination);
        RuleSide {
            nets,
            not_nets,
            sets,
            not_sets,
            ports,
            named_ports,
            not_ports,
            not_named_ports,
            service,
            peer,
        }
    })
}

fn any_action() -> impl Strategy<Value = RuleAction> {
    prop_oneof![
        Just(RuleAction::Allow),
        Just(RuleAction::Deny),
        Just(RuleAction::Log),
        Just(RuleAction::Pass)
    ]
}

fn any_http() -> impl Strategy<Value = Option<(Vec<String>, Vec<HttpPathMatch>)>> {
    let path =
        prop_oneof!["/.{0,8}".prop_map(HttpPathMatch::Exact), "/.{0,8}".prop_map(HttpPathMatch::Prefix)];
    proptest::option::of((vec("[A-Z*]{1,6}", 0..3), vec(path, 0..3)))
}

pub fn any_rule() -> impl Strategy<Value = PlannedRule> {
    let version = proptest::option::of(prop_oneof![Just(IpVersion::V4), Just(IpVersion::V6)]);
    let protocols = (any::<Option<u8>>(), any::<Option<u8>>());
    let annotations = btree_map("[a-z]{1,4}", ".{0,6}", 0..3);
    let ends = (any_side(false), any_side(true));
    (any_action(), version, protocols, (any_icmp(), any_icmp()), ends, any_http(), annotations).prop_map(
        |(action, ip_version, protocols, icmp, ends, http, annotations)| PlannedRule {
            action,
            ip_version,
            protocol: protocols.0,
            not_protocol: protocols.1,
            icmp: icmp.0,
            not_icmp: icmp.1,
            source: ends.0,
            destination: ends.1,
            http: http.map(|(methods, paths)| {
                let matches_without_proxy = action == RuleAction::Deny;
                Box::new(HttpMatch { methods, paths, matches_without_proxy })
            }),
            annotations,
        },
    )
}

pub fn any_policy_id() -> impl Strategy<Value = PolicyId> {
    let kind = prop_oneof![
        Just(PolicyKind::NetworkPolicy),
        Just(PolicyKind::GlobalNetworkPolicy),
        Just(PolicyKind::StagedNetworkPolicy),
        Just(PolicyKind::StagedGlobalNetworkPolicy),
        Just(PolicyKind::StagedKubernetesNetworkPolicy),
        Just(PolicyKind::KubernetesNetworkPolicy),
        Just(PolicyKind::KubernetesClusterNetworkPolicy),
    ];
    (kind, "[a-z]{0,5}", "[a-z.-]{1,9}").prop_map(|(kind, namespace, name)| PolicyId {
        kind,
        namespace,
        name,
    })
}

pub fn any_policy() -> impl Strategy<Value = PlannedPolicy> {
    ("[a-z]{1,6}", ".{0,9}", vec(any_rule(), 0..4), vec(any_rule(), 0..4))
        .prop_map(|(tier, selector, ingress, egress)| PlannedPolicy { tier, selector, ingress, egress })
}

pub fn any_set() -> impl Strategy<Value = AddressSet> {
    let nets = btree_set(any_net().prop_map(SetMember::Net), 0..9)
        .prop_map(|members| AddressSet { kind: SetKind::Nets, members });
    let port = (any_address(), any::<u8>(), any::<u16>())
        .prop_map(|(address, protocol, port)| SetMember::Port { address, protocol, port });
    let ports = btree_set(port, 0..9).prop_map(|members| AddressSet { kind: SetKind::Ports, members });
    prop_oneof![nets, ports]
}

pub fn any_endpoint() -> impl Strategy<Value = WorkloadPolicy> {
    let tier = ("[a-z]{1,6}", any::<bool>(), vec(any_policy_id(), 0..3), vec(any_policy_id(), 0..3))
        .prop_map(|(name, passes, ingress, egress)| EndpointTier {
            name,
            end: if passes { TierDefaultAction::Pass } else { TierDefaultAction::Deny },
            ingress: Arc::from(ingress),
            egress: Arc::from(egress),
        });
    let names = ("[a-z0-9]{1,12}", vec("[a-z.]{1,8}", 0..3));
    (names, any::<bool>(), vec(any_address(), 0..4), any_nets(), vec(tier, 0..3)).prop_map(
        |((interface, profiles), up, mut addresses, allowed_sources, tiers)| {
            // The protocol lists addresses by family.
            addresses.sort_by_key(IpAddr::is_ipv6);
            WorkloadPolicy { interface, up, addresses, allowed_sources, tiers, profiles, http_proxy: true }
        },
    )
}

pub fn any_workload_id() -> impl Strategy<Value = WorkloadId> {
    ("[a-z0-9]{1,4}", "[a-z]{1,4}/[a-z]{1,4}", "eth[0-9]")
        .prop_map(|(orchestrator, workload, endpoint)| WorkloadId { orchestrator, workload, endpoint })
}
