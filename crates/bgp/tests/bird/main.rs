//! Checks the rendered BIRD configuration against a real BIRD.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod generated;
// Shared with the interop tests, which use more of it.
#[allow(dead_code)]
#[path = "../interop/place.rs"]
mod place;
mod socket;
mod verdicts;

use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;
use tortie_bgp::bird::{BirdConfig, render};
use tortie_plan::bgp::{
    AdvertisedNextHop, BgpCommunity, BgpConfig, BgpExport, BgpFilter, BgpFilterRule, BgpInstall, BgpSession,
    BgpSessionKind, FilterOperation, FilterPrefix, FilterPrefixOperator, PasswordReference, PoolRoutes,
};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn session(peer: &str) -> BgpSession {
    BgpSession {
        kind: BgpSessionKind::Node,
        peer: address(peer),
        port: 179,
        remote_as: 64512,
        local_as: None,
        source: None,
        passive: false,
        password: None,
        restart_time: None,
        keepalive: None,
        ttl_security: None,
        next_hop: AdvertisedNextHop::Auto,
        reflect: None,
        allow_own_as: 0,
        filters: Vec::new(),
        reachable_by: None,
    }
}

fn bgp() -> BgpConfig {
    BgpConfig {
        as_number: 64512,
        router_id: Some([10, 0, 0, 1].into()),
        listen_port: 179,
        export: BgpExport { priority_v4: 1024, priority_v6: 1024, ..BgpExport::default() },
        ..BgpConfig::default()
    }
}

/// Renders the configuration; the password of a secret is its key.
fn rendered(bgp: &BgpConfig) -> BirdConfig {
    render(bgp, |secret| Ok::<_, String>(secret.key.clone())).unwrap()
}

/// Fails the test, printing the text, unless BIRD accepts it. BIRD must be installed.
fn taken(text: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let output = Command::new("bird").arg("-p").arg("-c").arg(file.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{text}");
}

/// Returns rules with every criterion and every operation, for one family.
fn filter(v4: bool) -> Vec<BgpFilterRule> {
    let cidr = net(if v4 { "10.0.0.0/8" } else { "fd00::/16" });
    use FilterPrefixOperator::*;
    let mut rules = Vec::new();
    for operator in [In, NotIn, Equal, NotEqual] {
        for length in [None, Some((20, 24)), Some((24, 20)), Some((8, 8))] {
            let prefix = Some(FilterPrefix { net: cidr, operator, length });
            rules.push(BgpFilterRule { prefix, accept: true, ..BgpFilterRule::default() });
        }
    }
    let criteria = [
        BgpFilterRule { learnt: true, ..BgpFilterRule::default() },
        BgpFilterRule { interface: Some("bond-1.*_x".into()), ..BgpFilterRule::default() },
        BgpFilterRule { internal: Some(true), ..BgpFilterRule::default() },
        BgpFilterRule { internal: Some(false), ..BgpFilterRule::default() },
        BgpFilterRule { community: Some(BgpCommunity::Standard(65535, 0)), ..BgpFilterRule::default() },
        BgpFilterRule { community: Some(BgpCommunity::Large(u32::MAX, 0, 1)), ..BgpFilterRule::default() },
        BgpFilterRule { as_path_prefix: vec![1, u32::MAX, 3], ..BgpFilterRule::default() },
        BgpFilterRule { priority: Some(2_147_483_646), ..BgpFilterRule::default() },
        BgpFilterRule::default(),
    ];
    rules.extend(criteria);
    rules.push(BgpFilterRule {
        accept: true,
        operations: vec![
            FilterOperation::AddCommunity(BgpCommunity::Standard(1, 2)),
            FilterOperation::AddCommunity(BgpCommunity::Large(1, 2, 3)),
            FilterOperation::PrependPath(vec![64512, u32::MAX]),
            FilterOperation::SetPriority(1),
        ],
        ..BgpFilterRule::default()
    });
    rules
}

#[test]
fn everything_that_can_be_said_is_taken() {
    let mut bgp = bgp();
    let all = BgpFilter {
        import_v4: filter(true),
        export_v4: filter(true),
        import_v6: filter(false),
        export_v6: filter(false),
    };
    let names = ["a.b-c".to_owned(), "x".repeat(45), "y".repeat(46), "z".repeat(253)];
    bgp.filters = names.iter().map(|name| (name.clone(), Arc::new(all.clone()))).collect();
    bgp.filters.insert("empty".into(), Arc::default());
    let names: Vec<String> = names.into_iter().chain(["empty".into(), "missing".into()]).collect();
    for peer in ["10.0.0.7", "fd00::7"] {
        let v4 = !peer.contains(':');
        let secret = |key: &str| Some(PasswordReference { name: "s".into(), key: key.into() });
        let variants = [
            session(peer),
            BgpSession { port: 1790, remote_as: u32::MAX, local_as: Some(65001), ..session(peer) },
            BgpSession {
                source: Some(address(if v4 { "10.0.0.1" } else { "fd00::1" })),
                passive: true,
                ..session(peer)
            },
            BgpSession { password: secret("p w;#\\'{}ä"), ..session(peer) },
            BgpSession { restart_time: Some(u16::MAX), keepalive: Some(u16::MAX), ..session(peer) },
            BgpSession { restart_time: Some(0), keepalive: Some(0), ..session(peer) },
            BgpSession {
                ttl_security: Some(255),
                next_hop: AdvertisedNextHop::Own,
                allow_own_as: 255,
                ..session(peer)
            },
            BgpSession {
                ttl_security: Some(1),
                next_hop: AdvertisedNextHop::Keep,
                remote_as: 1,
                ..session(peer)
            },
            BgpSession { reflect: Some([244, 0, 0, 1].into()), filters: names.clone(), ..session(peer) },
            BgpSession {
                reachable_by: Some(address(if v4 { "10.0.0.254" } else { "fe80::1" })),
                ..session(peer)
            },
        ];
        for (number, session) in variants.into_iter().enumerate() {
            bgp.sessions.insert(format!("Node_{}_port_{number}", peer.replace(['.', ':'], "_")), session);
        }
    }
    bgp.export.blocks = BTreeMap::from([
        (net("10.1.0.0/26"), true),
        (net("10.1.0.64/26"), false),
        (net("10.1.0.200/32"), true),
        (net("fd00:1::/122"), true),
    ]);
    bgp.export.pools = vec![net("10.1.0.0/16"), net("fd00:1::/48")];
    bgp.export.silent_pools = vec![net("10.2.0.0/16")];
    bgp.export.reflected = vec![net("10.3.0.0/16"), net("0.0.0.0/0"), net("::/0")];
    bgp.export.communities =
        vec![(net("10.1.0.0/16"), vec![BgpCommunity::Standard(1, 2), BgpCommunity::Large(1, 2, 3)])];
    bgp.install = BgpInstall {
        never: vec![net("10.96.0.0/12")],
        pools: vec![
            (net("10.1.0.0/16"), PoolRoutes::Plain),
            (net("10.1.2.0/24"), PoolRoutes::OfOthers),
            (net("fd00:1::/48"), PoolRoutes::Plain),
        ],
        own_subnet: None,
    };
    bgp.ignored_interfaces = vec!["docker*".into(), "eth0.1".into()];
    let whole = rendered(&bgp);
    assert_eq!(whole.skipped, Vec::<String>::new());
    taken(&whole.text);
    assert!(
        whole.text.find("10.1.2.0/24+").unwrap() < whole.text.rfind("10.1.0.0/16+").unwrap(),
        "the longest first"
    );
    assert!(!whole.text.contains("route 10.1.0.200/32 blackhole"), "a single address is its workload's");

    // On the node's addresses only, and on another port.
    bgp.listen = vec![address("10.0.0.1"), address("fd00::1")];
    bgp.listen_port = 1790;
    taken(&rendered(&bgp).text);
}

#[test]
fn a_node_with_nothing_to_say_is_fine() {
    taken(&rendered(&bgp()).text);
    let mut only_v6 = bgp();
    only_v6.sessions.insert("Mesh_fd00__7".into(), session("fd00::7"));
    taken(&rendered(&only_v6).text);
    assert_eq!(
        render(&BgpConfig::default(), |_| Err(String::new())),
        None,
        "without a router ID there is none"
    );
}

/// One session that BIRD would reject must not affect the others.
#[test]
fn inexpressible_sessions_are_left_out_and_reported() {
    let mut bgp = bgp();
    bgp.sessions.insert("Mesh_10_0_0_7".into(), session("10.0.0.7"));
    let bad = ["a\"b", "a\nb", &"x".repeat(81)];
    for (number, password) in bad.iter().enumerate() {
        let password = Some(PasswordReference { name: "s".into(), key: (*password).to_owned() });
        let peer = format!("10.0.1.{number}");
        bgp.sessions.insert(format!("Node_{number}"), BgpSession { password, ..session(&peer) });
    }
    bgp.sessions.insert("Node_none".into(), BgpSession { remote_as: 0, ..session("10.0.2.1") });
    let rendered = rendered(&bgp);
    taken(&rendered.text);
    assert_eq!(rendered.skipped.len(), 4, "{:?}", rendered.skipped);
    assert!(rendered.skipped[0].starts_with("session Node_0 is left out: its password has a quotation mark"));
    assert!(rendered.text.contains("Mesh_10_0_0_7") && !rendered.text.contains("Node_"), "{}", rendered.text);
}
