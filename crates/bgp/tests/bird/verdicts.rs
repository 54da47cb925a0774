//! Checks how a real BIRD filters routes with the rendered configuration.

use crate::place::{NamespaceDaemon, NamespaceExt, TestNamespace, eventually, path};
use crate::{bgp, net, rendered};
use std::sync::Arc;
use tempfile::TempDir;
use tortie_plan::bgp::*;

/// Test routes of each family: prefix, next hop and attributes.
const PROBES: [[(&str, &str, &str); 6]; 2] = [
    [
        ("10.5.0.0/16", "blackhole", ""),
        ("10.5.1.0/24", "blackhole", "bgp_community.add((1,2)); bgp_path.prepend(7); bgp_path.prepend(6);"),
        ("10.6.0.0/24", "blackhole", "bgp_large_community.add((1,2,3)); bgp_path.prepend(7);"),
        ("10.6.0.9/32", "blackhole", "krt_metric = 512;"),
        ("10.8.0.5/32", "via \"eth0\"", ""),
        ("10.9.0.0/28", "via \"x.cali\"", "krt_metric = 0;"),
    ],
    [
        ("fd05::/16", "blackhole", ""),
        ("fd05:100::/24", "blackhole", "bgp_community.add((1,2)); bgp_path.prepend(7); bgp_path.prepend(6);"),
        ("fd06::/24", "blackhole", "bgp_large_community.add((1,2,3)); bgp_path.prepend(7);"),
        ("fd06::9/128", "blackhole", "krt_metric = 512;"),
        ("fd08::5/128", "via \"eth0\"", ""),
        ("fd09::/28", "via \"x.cali\"", "krt_metric = 0;"),
    ],
];

struct BirdWithProbes {
    namespace: TestNamespace,
    _daemon: NamespaceDaemon,
    dir: TempDir,
}

impl BirdWithProbes {
    /// Starts BIRD with the configuration of the plan and the test routes.
    async fn start(bgp: &BgpConfig) -> BirdWithProbes {
        let (namespace, dir) = (TestNamespace::new("bgp"), tempfile::tempdir().unwrap());
        namespace.ip("link add eth0 type veth peer name x.cali");
        for link in ["eth0", "x.cali"] {
            namespace.ip(&["link", "set", link, "up"]);
        }
        let mut text = rendered(bgp).text;
        for (family, probes) in ["ipv4", "ipv6"].iter().zip(PROBES) {
            let routes = probes.map(|(prefix, way, known)| format!("route {prefix} {way} {{ {known} }};"));
            text += &format!("protocol static probes_{family} {{ {family}; {} }}\n", routes.concat());
        }
        crate::taken(&text);
        let (config, socket) = (path(dir.path(), "bird.conf"), path(dir.path(), "bird.ctl"));
        std::fs::write(&config, &text).unwrap();
        let daemon = NamespaceDaemon::start(&namespace, "bird", &["-f", "-c", &config, "-s", &socket]);
        let bird = BirdWithProbes { namespace, _daemon: daemon, dir };
        eventually("BIRD has the probes", || async {
            PROBES.iter().flatten().all(|(prefix, ..)| bird.says("show route").contains(prefix))
        })
        .await;
        bird
    }

    fn says(&self, command: &str) -> String {
        self.namespace.output("birdc", &["-s", &path(self.dir.path(), "bird.ctl"), command])
    }

    /// Returns the indexes of the test routes that a filter accepts.
    fn passes(&self, family: usize, filter: &str) -> Vec<usize> {
        let table = ["master4", "master6"][family];
        let listed = self.says(&format!("show route table {table} filter {filter}"));
        assert!(!listed.contains("error"), "{filter}: {listed}");
        let has = |prefix: &str| listed.lines().any(|line| line.split_whitespace().next() == Some(prefix));
        (0..6).filter(|number| has(PROBES[family][*number].0)).collect()
    }
}

fn rule() -> BgpFilterRule {
    BgpFilterRule { accept: true, ..BgpFilterRule::default() }
}

fn inside(net: &str, operator: FilterPrefixOperator, length: Option<(u8, u8)>) -> BgpFilterRule {
    BgpFilterRule { prefix: Some(FilterPrefix { net: crate::net(net), operator, length }), ..rule() }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_criterion_of_a_filter() {
    use FilterPrefixOperator::*;
    let mut bgp = bgp();
    // The rule for each family, whether the session is internal, and which test routes match.
    type Case = ([BgpFilterRule; 2], bool, &'static [usize]);
    let nets =
        |operator, length| [inside("10.5.0.0/16", operator, length), inside("fd05::/16", operator, length)];
    let same = |rule: BgpFilterRule| [rule.clone(), rule];
    let all: &[usize] = &[0, 1, 2, 3, 4, 5];
    let cases: Vec<Case> = vec![
        (same(rule()), true, all),
        (nets(In, None), true, &[0, 1]),
        (nets(NotIn, None), true, &[2, 3, 4, 5]),
        (nets(Equal, None), true, &[0]),
        (nets(NotEqual, None), true, &[1, 2, 3, 4, 5]),
        (nets(In, Some((20, 32))), true, &[1]),
        (nets(NotIn, Some((20, 32))), true, &[0, 2, 3, 4, 5]),
        (nets(In, Some((24, 20))), true, &[]),
        (nets(NotIn, Some((24, 20))), true, all),
        (nets(Equal, Some((20, 32))), true, &[]),
        (same(BgpFilterRule { learnt: true, ..rule() }), true, &[]),
        (same(BgpFilterRule { interface: Some("*.cali".into()), ..rule() }), true, &[5]),
        (same(BgpFilterRule { interface: Some("eth0".into()), ..rule() }), true, &[4]),
        (same(BgpFilterRule { internal: Some(true), ..rule() }), true, all),
        (same(BgpFilterRule { internal: Some(true), ..rule() }), false, &[]),
        (same(BgpFilterRule { internal: Some(false), ..rule() }), false, all),
        (same(BgpFilterRule { community: Some(BgpCommunity::Standard(1, 2)), ..rule() }), true, &[1]),
        (same(BgpFilterRule { community: Some(BgpCommunity::Large(1, 2, 3)), ..rule() }), true, &[2]),
        (same(BgpFilterRule { as_path_prefix: vec![6, 7], ..rule() }), true, &[1]),
        (same(BgpFilterRule { as_path_prefix: vec![7], ..rule() }), true, &[2]),
        (same(BgpFilterRule { priority: Some(512), ..rule() }), true, &[3]),
        (same(BgpFilterRule { priority: Some(1024), ..rule() }), true, &[0, 1, 2, 4, 5]),
        (same(BgpFilterRule { internal: Some(true), priority: Some(512), ..rule() }), false, &[]),
    ];
    for (number, ([v4, v6], ..)) in cases.iter().enumerate() {
        let filter =
            BgpFilter { export_v4: vec![v4.clone()], export_v6: vec![v6.clone()], ..BgpFilter::default() };
        bgp.filters.insert(format!("case-{number}"), Arc::new(filter));
    }
    let bird = BirdWithProbes::start(&bgp).await;
    for (number, (rules, same_as, expected)) in cases.iter().enumerate() {
        for (family, word) in ["ipv4", "ipv6"].iter().enumerate() {
            let version = if family == 0 { 4 } else { 6 };
            let call = format!("'bgp_case-{number}_exportFilterV{version}'({same_as})");
            let passing = bird.passes(family, &format!("{{ calico_priority_{word}(); {call}; reject; }}"));
            assert_eq!(passing, *expected, "{:?}", rules[family]);
        }
    }
}

/// The evaluation order of the reference implementation: filters, silent pools, tunnels, blocks, reflected ranges,
/// pools, and then reject.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_advertised_and_what_the_kernel_gets() {
    let mut bgp = bgp();
    bgp.export = BgpExport {
        blocks: [
            ("10.6.0.0/24", true),
            ("fd06::/24", true),
            ("10.5.1.0/24", false),
            ("fd05:100::/24", false),
        ]
        .map(|(block, advertised)| (net(block), advertised))
        .into(),
        pools: ["10.5.0.0/16", "10.6.0.0/16", "10.9.0.0/16", "fd05::/16", "fd06::/16", "fd09::/16"]
            .map(net)
            .into(),
        ..bgp.export
    };
    bgp.install = BgpInstall {
        never: vec![net("10.8.0.0/16"), net("fd08::/16")],
        pools: [("10.5.0.0/16", true), ("10.5.1.0/24", false), ("fd05::/16", true), ("fd05:100::/24", false)]
            .map(|(pool, ours)| (net(pool), if ours { PoolRoutes::Plain } else { PoolRoutes::OfOthers }))
            .into(),
        own_subnet: None,
    };
    let mut silent = bgp.clone();
    silent.export.silent_pools = vec![net("10.5.0.0/16"), net("fd05::/16")];
    let export = |word: &str, same_as: bool| {
        format!("{{ calico_priority_{word}(); calico_export_to_bgp_peers_{word}({same_as}, {}); }}", !same_as)
    };
    let mut serving = bgp.clone();
    // In no pool but announced for a service: a range, and single addresses for which the kernel must get no
    // blackhole route.
    serving.export.pools.clear();
    serving.export.blocks.clear();
    serving.export.service_ranges = vec![net("10.6.0.0/24"), net("fd06::/24")];
    serving.export.service_addresses = ["10.6.0.9", "fd06::9"].map(crate::address).into();
    let serving = BirdWithProbes::start(&serving).await;
    let (bird, quiet) = (BirdWithProbes::start(&bgp).await, BirdWithProbes::start(&silent).await);
    for (family, word) in ["ipv4", "ipv6"].iter().enumerate() {
        // The single address inside a block is advertised because its priority marks it as migrating.
        assert_eq!(
            bird.passes(family, &export(word, true)),
            [0, 1, 2, 3],
            "within our AS: none of the tunnel's"
        );
        assert_eq!(bird.passes(family, &export(word, false)), [0, 1, 2, 3, 5], "{word}");
        assert_eq!(quiet.passes(family, &export(word, false)), [2, 3, 5], "{word}");
        let kernel = format!("calico_kernel_programming_{word}");
        assert_eq!(bird.passes(family, &kernel), [0, 2, 3, 5], "the longest pool counts");
        assert_eq!(
            serving.passes(family, &export(word, true)),
            [2, 3],
            "services, and what is inside none is not"
        );
        assert_eq!(serving.passes(family, &kernel), [0, 2, 5], "{word}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_of_a_filter() {
    let mut bgp = bgp();
    let operations = vec![
        FilterOperation::AddCommunity(BgpCommunity::Standard(64512, 7)),
        FilterOperation::AddCommunity(BgpCommunity::Large(1, 2, 4_000_000_000)),
        FilterOperation::PrependPath(vec![64512, 64513]),
        FilterOperation::SetPriority(512),
    ];
    let rules = vec![BgpFilterRule { operations, ..rule() }];
    let filter = BgpFilter { export_v4: rules.clone(), export_v6: rules, ..BgpFilter::default() };
    bgp.filters.insert("change".into(), Arc::new(filter));
    let bird = BirdWithProbes::start(&bgp).await;
    for (family, version) in [(0, 4), (1, 6)] {
        let filter = format!("{{ 'bgp_change_exportFilterV{version}'(true); reject; }}");
        let shown = bird.says(&format!("show route all {} filter {filter}", PROBES[family][2].0));
        for wanted in [
            "BGP.community: (64512,7)",
            "BGP.large_community: (1, 2, 3) (1, 2, 4000000000)",
            "BGP.as_path: 64512 64513 7",
            "BGP.local_pref: 2147483135",
        ] {
            assert!(shown.contains(wanted), "no {wanted} in\n{shown}");
        }
    }
}
