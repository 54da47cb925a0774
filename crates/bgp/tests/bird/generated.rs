//! Checks that BIRD accepts the configuration rendered from randomly generated plans.

use crate::{bgp, rendered, session, taken};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use std::net::IpAddr;
use std::sync::Arc;
use tortie_plan::bgp::*;

fn nets(v4: bool) -> BoxedStrategy<IpNet> {
    match v4 {
        true => (any::<u32>(), 0..=32_u8)
            .prop_map(|(bits, length)| IpNet::V4(Ipv4Net::new(bits.into(), length).unwrap().trunc()))
            .boxed(),
        false => (any::<u128>(), 0..=128_u8)
            .prop_map(|(bits, length)| IpNet::V6(Ipv6Net::new(bits.into(), length).unwrap().trunc()))
            .boxed(),
    }
}

fn any_net() -> impl Strategy<Value = IpNet> {
    any::<bool>().prop_flat_map(nets)
}

fn communities() -> impl Strategy<Value = BgpCommunity> {
    prop_oneof![
        any::<(u16, u16)>().prop_map(|(a, b)| BgpCommunity::Standard(a, b)),
        any::<(u32, u32, u32)>().prop_map(|(a, b, c)| BgpCommunity::Large(a, b, c)),
    ]
}

fn rules(v4: bool) -> impl Strategy<Value = BgpFilterRule> {
    use FilterPrefixOperator::*;
    let longest = if v4 { 32_u8 } else { 128 };
    let operators = prop_oneof![Just(In), Just(NotIn), Just(Equal), Just(NotEqual)];
    // Length ranges as `compute` produces them: never shorter than the prefix itself.
    let prefix =
        (nets(v4), operators, option::of((0..=longest, 0..=longest))).prop_map(|(net, operator, length)| {
            FilterPrefix {
                net,
                operator,
                length: length.map(|(first, last)| (first.max(net.prefix_len()), last)),
            }
        });
    let operations = prop_oneof![
        communities().prop_map(FilterOperation::AddCommunity),
        vec(1..=u32::MAX, 1..10).prop_map(FilterOperation::PrependPath),
        (1..2_147_483_647_u32).prop_map(FilterOperation::SetPriority),
    ];
    (
        (option::of(prefix), any::<bool>(), option::of("[a-zA-Z0-9_.*-]{1,15}"), option::of(any::<bool>())),
        (option::of(communities()), vec(1..=u32::MAX, 0..5), option::of(1..2_147_483_647_u32)),
        any::<bool>(),
        vec(operations, 0..10),
    )
        .prop_map(
            |((prefix, learnt, interface, internal), (community, path, priority), accept, operations)| {
                BgpFilterRule {
                    prefix,
                    learnt,
                    interface,
                    internal,
                    community,
                    as_path_prefix: path,
                    priority,
                    accept,
                    operations: if accept { operations } else { Vec::new() },
                }
            },
        )
}

fn filters() -> impl Strategy<Value = BgpFilter> {
    let lists = |v4| vec(rules(v4), 0..6);
    (lists(true), lists(true), lists(false), lists(false)).prop_map(
        |(import_v4, export_v4, import_v6, export_v6)| BgpFilter {
            import_v4,
            export_v4,
            import_v6,
            export_v6,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn any_plan_is_taken(
        filters in btree_map("[a-z0-9]([a-z0-9.-]{0,100}[a-z0-9])?", filters(), 0..4),
        blocks in btree_map(any_net(), any::<bool>(), 0..6),
        (pools, silent_pools, reflected, never) in (
            vec(any_net(), 0..4), vec(any_net(), 0..4), vec(any_net(), 0..4), vec(any_net(), 0..4)
        ),
        (service_ranges, service_addresses, services) in (
            vec(any_net(), 0..4), btree_set(any::<IpAddr>(), 0..4), vec(any_net(), 0..4)
        ),
        tagged in vec((any_net(), vec(communities(), 1..4)), 0..3),
        owned in vec((any_net(), any::<bool>()), 0..4),
        (priority_v4, priority_v6) in (1..2_147_483_647_u32, 1..2_147_483_647_u32),
    ) {
        let mut bgp = bgp();
        for peer in ["10.0.0.7", "fd00::7"] {
            let name = format!("Global_{}", peer.replace(['.', ':'], "_"));
            bgp.sessions.insert(name, BgpSession { filters: filters.keys().cloned().collect(), ..session(peer) });
        }
        bgp.filters = filters.into_iter().map(|(name, filter)| (name, Arc::new(filter))).collect();
        bgp.export = BgpExport {
            blocks, pools, silent_pools, service_ranges, service_addresses, reflected, services, communities: tagged,
            priority_v4, priority_v6, elevated_v4: priority_v4 / 2, elevated_v6: priority_v6 / 2,
        };
        let routes = |ours| if ours { PoolRoutes::Plain } else { PoolRoutes::OfOthers };
        let pools = owned.into_iter().map(|(net, ours)| (net, routes(ours))).collect();
        bgp.install = BgpInstall { never, pools, own_subnet: None };
        taken(&rendered(&bgp).text);
    }
}
