//! Which changes of the datastore change the plan, and which do not.

use crate::cluster::{PolicyNode, gnp, namespace, np, object, pod};
use serde_json::json;
use tortie_model::kubernetes::{EndpointSlice, ServicePort};
use tortie_model::selector::rewrite::{EntitySelectors, entity_match};
use tortie_model::selector::{service_id, service_ip_id};
use tortie_model::{Kind, Resource, StoreKey, StoreValue};
use tortie_plan::{PlanUpdate, RuleAction, SetMember, TierDefaultAction};

fn allow(selector: &str) -> serde_json::Value {
    json!({"ingress": [{"action": "Allow", "source": {"selector": selector}}]})
}

fn shop() -> Vec<crate::cluster::PolicyEntry> {
    vec![
        namespace("shop", json!({})),
        pod("n1", "shop", "web-0", json!({"role": "web"}), "10.0.0.1/32"),
        np("shop", "p", allow("role == 'client'")),
    ]
}

#[test]
fn one_endpoint_more_is_one_member_more() {
    let mut node = PolicyNode::with(&shop());
    let client = pod("n2", "shop", "c-0", json!({"role": "client"}), "10.0.0.2/32");
    let updates = node.put(std::slice::from_ref(&client));
    let member = SetMember::Net("10.0.0.2/32".parse().unwrap());
    let [PlanUpdate::Members { added, removed, .. }] = &updates[..] else { panic!("{updates:#?}") };
    assert_eq!((&added[..], &removed[..]), (&[member][..], &[][..]));
    assert_eq!(node.put(std::slice::from_ref(&client)), [], "the same again is nothing new");
    let updates = node.delete(&client);
    let [PlanUpdate::Members { added, removed, .. }] = &updates[..] else { panic!("{updates:#?}") };
    assert_eq!((&added[..], &removed[..]), (&[][..], &[member][..]));
}

/// Returns a node with an address of each family.
fn cluster_node(name: &str, zone: &str, last: u8) -> crate::cluster::PolicyEntry {
    let bgp =
        json!({"ipv4Address": format!("192.0.2.{last}/24"), "ipv6Address": format!("2001:db8::{last}/64")});
    object(Kind::Node, "", name, json!({"zone": zone}), json!({"bgp": bgp}))
}

const ZONE_A: &str = "projectcalico.org/kind == 'Node' && zone == 'a'";

#[test]
fn rules_select_addresses_of_labelled_nodes() {
    let mut node = PolicyNode::with(&shop());
    let deny = json!({"action": "Deny", "destination": {"selector": ZONE_A}});
    node.put(&[
        cluster_node("n1", "a", 1),
        gnp("nodes", json!({"selector": "role == 'web'", "egress": [deny]})),
    ]);
    let set = tortie_model::selector::Selector::parse(ZONE_A).unwrap().id();
    assert_eq!(node.set(&set), ["192.0.2.1/32", "2001:db8::1/128"]);
    // Another node, a label, an address and a deletion change only members.
    let mut changes = |entry: &crate::cluster::PolicyEntry, deleted: bool| {
        let updates = match deleted {
            true => node.delete(entry),
            false => node.put(std::slice::from_ref(entry)),
        };
        let members = updates.into_iter().filter_map(|update| match update {
            PlanUpdate::Members { added, removed, .. } => Some((added.len(), removed.len())),
            PlanUpdate::Set(..) | PlanUpdate::Policy(..) => panic!("{update:?}"),
            _ => None,
        });
        members.collect::<Vec<_>>()
    };
    assert_eq!(changes(&cluster_node("n2", "b", 2), false), []);
    assert_eq!(changes(&cluster_node("n2", "a", 2), false), [(2, 0)]);
    assert_eq!(changes(&cluster_node("n2", "a", 2), false), []);
    assert_eq!(changes(&cluster_node("n2", "a", 3), false), [(2, 2)]);
    assert_eq!(changes(&cluster_node("n3", "a", 3), false), [], "two nodes with the same addresses");
    assert_eq!(changes(&cluster_node("n3", "a", 3), true), []);
    assert_eq!(changes(&cluster_node("n2", "b", 3), false), [(0, 2)]);
    assert_eq!(changes(&cluster_node("n1", "a", 1), true), [(0, 2)]);
}

#[test]
fn nodes_and_endpoints_are_never_confused() {
    let labels = json!({"projectcalico.org/kind": "Node", "zone": "a"});
    let impostor = pod("n2", "shop", "c-0", labels, "10.0.0.2/32");
    let mut node = PolicyNode::with(&shop());
    node.put(&[cluster_node("n1", "a", 1), impostor]);
    node.put(&[
        np("shop", "p", allow(ZONE_A)),
        gnp(
            "q",
            json!({"selector": "all()", "ingress": [
        {"action": "Deny", "source": {"selector": ZONE_A}},
        {"action": "Allow", "source": {"selector": "zone == 'a'"}},
        {"action": "Allow", "source": {"selector": "all()"}},
        {"action": "Allow", "source": {"selector": "!has(x)"}}]}),
        ),
    ]);
    let set = |text: &str| node.set(&tortie_model::selector::Selector::parse(text).unwrap().id());
    assert_eq!(set(ZONE_A), ["192.0.2.1/32", "2001:db8::1/128"]);
    assert_eq!(set("zone == 'a'"), ["10.0.0.2/32"]);
    for everything in ["all()", "!has(x)"] {
        assert_eq!(set(everything), ["10.0.0.1/32", "10.0.0.2/32"]);
    }
    // A rule of a namespace means objects of that namespace, to which no node belongs.
    let entity = EntitySelectors { selector: ZONE_A, ..EntitySelectors::default() };
    let of_namespace = entity_match(&entity, "shop").unwrap().selector.unwrap();
    assert!(of_namespace.selects_nodes());
    assert_eq!(node.set(&of_namespace.id()), [""; 0]);
}

#[test]
fn addresses_of_a_node_are_bounded() {
    let node_with = |count: usize| {
        let addresses =
            (0..count).map(|id| json!({"type": "InternalIP", "address": format!("192.0.2.{id}")}));
        object(
            Kind::Node,
            "",
            "n2",
            json!({"zone": "a"}),
            json!({"addresses": addresses.collect::<Vec<_>>()}),
        )
    };
    let mut node = PolicyNode::with(&shop());
    node.put(&[gnp(
        "nodes",
        json!({"selector": "role == 'web'",
        "egress": [{"action": "Deny", "destination": {"selector": ZONE_A}}]}),
    )]);
    let set = tortie_model::selector::Selector::parse(ZONE_A).unwrap().id();
    node.put(&[node_with(64)]);
    assert_eq!((node.set(&set).len(), node.compute.problems().len()), (64, 0));
    node.put(&[node_with(66)]);
    assert_eq!(node.set(&set).len(), 64);
    let expected = "addresses: rules that select nodes use the first 64 and leave out 2";
    assert!(node.compute.problems().values().eq([expected]), "{:?}", node.compute.problems());
    node.put(&[node_with(66)]);
    assert_eq!(node.compute.problems().len(), 1, "also when nothing changes");
    node.put(&[node_with(2)]);
    assert_eq!((node.set(&set).len(), node.compute.problems().len()), (2, 0));
}

#[test]
fn named_ports_of_nodes_fail_closed() {
    let rule = |action: &str| {
        json!({"action": action, "protocol": "TCP",
        "destination": {"selector": ZONE_A, "ports": [80, "web"]}})
    };
    let mut node = PolicyNode::with(&shop());
    node.put(&[
        cluster_node("n1", "a", 1),
        gnp(
            "nodes",
            json!({"selector": "role == 'web'", "egress": [rule("Deny"), rule("Allow"), rule("Pass")]}),
        ),
    ]);
    let egress = &node.plan.policies.iter().find(|(id, _)| id.name == "nodes").unwrap().1.egress;
    let denied = &egress[0].destination;
    assert!(denied.ports.is_empty() && denied.named_ports.is_empty() && denied.sets.len() == 1, "{denied:?}");
    for never in &egress[1..] {
        assert!(*never == tortie_plan::PlannedRule::never(never.action), "{never:?}");
    }
    assert_eq!(node.compute.problems().len(), 1);
}

#[test]
fn intermediate_states_between_flushes_cause_no_update() {
    let mut node = PolicyNode::with(&shop());
    let client = pod("n2", "shop", "c-0", json!({"role": "client"}), "10.0.0.2/32");
    let policy = np("shop", "q", allow("has(x)"));
    for (key, value) in [&client, &policy] {
        node.compute.put(key, value);
        node.compute.delete(key);
    }
    assert_eq!(node.flush(), []);
    let before = shop();
    before.iter().for_each(|(key, _)| node.compute.delete(key));
    before.iter().for_each(|(key, value)| node.compute.put(key, value));
    assert_eq!(node.flush(), [], "deleted and written again as it was");
}

#[test]
fn an_address_stays_while_somebody_has_it() {
    let mut node = PolicyNode::with(&shop());
    let twins = ["c-0", "c-1"].map(|name| pod("n2", "shop", name, json!({"role": "client"}), "10.0.0.2/32"));
    assert_eq!(node.put(&twins).len(), 1);
    assert_eq!(node.delete(&twins[0]), []);
    assert_eq!(node.delete(&twins[1]).len(), 1);
    node.put(&twins);
    let other = pod("n2", "shop", "c-1", json!({"role": "other"}), "10.0.0.2/32");
    assert_eq!(node.put(&[other]), [], "the other one still has the address");
}

#[test]
fn labels_of_a_namespace_change_who_is_meant() {
    let mut node = PolicyNode::with(&shop());
    let source = json!({"namespaceSelector": "team == 'red'"});
    node.put(&[
        gnp("red", json!({"ingress": [{"action": "Allow", "source": source}]})),
        namespace("front", json!({"team": "blue"})),
        pod("n2", "front", "f-0", json!({}), "10.0.1.1/32"),
        object(Kind::NetworkSet, "front", "vips", json!({}), json!({"nets": ["10.2.0.0/24"]})),
        pod("n2", "front", "spoof", json!({"pcns.team": "red"}), "10.0.1.66/32"),
        pod("n2", "none", "own", json!({"team": "red"}), "10.0.1.67/32"),
    ]);
    let set = node.rule("gnp/red").source.sets[0].0.to_string();
    assert!(node.set(&set).is_empty());
    node.put(&[namespace("front", json!({"team": "red"}))]);
    assert_eq!(node.set(&set), ["10.0.1.1/32", "10.0.1.66/32", "10.2.0.0/24"]);
    node.put(&[namespace("front", json!({}))]);
    assert!(node.set(&set).is_empty());
}

#[test]
fn own_labels_hide_those_of_profiles() {
    let profile = |name: &str, value: &str| {
        object(Kind::Profile, "", name, json!({}), json!({"labelsToApply": {"x": value}}))
    };
    let endpoint = |name: &str, labels: serde_json::Value, profiles: serde_json::Value, address: &str| {
        let spec =
            json!({"node": "n2", "interfaceName": "*", "expectedIPs": [address], "profiles": profiles});
        object(Kind::HostEndpoint, "", name, labels, spec)
    };
    let node = PolicyNode::with(&[
        namespace("shop", json!({})),
        pod("n1", "shop", "web-0", json!({}), "10.0.0.1/32"),
        gnp("x", allow("x == 'one'")),
        profile("p1", "one"),
        profile("p2", "two"),
        endpoint("a", json!({}), json!(["p1", "p2"]), "192.0.2.1"),
        endpoint("b", json!({}), json!(["p2", "p1"]), "192.0.2.2"),
        endpoint("c", json!({"x": "own"}), json!(["p1"]), "192.0.2.3"),
        endpoint("d", json!({"x": "one"}), json!(["p2"]), "192.0.2.4"),
    ]);
    let set = node.rule("gnp/x").source.sets[0].0.to_string();
    assert_eq!(node.set(&set), ["192.0.2.1/32", "192.0.2.4/32"]);
}

#[test]
fn tiers_and_policies_are_in_order() {
    let tier = |name: &str, order: f64, action: &str| {
        object(Kind::Tier, "", name, json!({}), json!({"order": order, "defaultAction": action}))
    };
    let in_tier =
        |name: &str, tier: &str, order: Option<f64>| gnp(name, json!({"tier": tier, "order": order}));
    let mut node = PolicyNode::with(&shop());
    node.put(&[
        tier("sec", 10.0, "Pass"),
        tier("late", 2e6, "Deny"),
        in_tier("last", "nosuch", Some(1.0)),
        in_tier("l", "late", None),
        in_tier("s2", "sec", None),
        in_tier("s1", "sec", Some(5.0)),
        in_tier("b", "default", Some(100.0)),
        in_tier("a", "default", None),
    ]);
    let tiers = |node: &PolicyNode| -> Vec<(String, TierDefaultAction, Vec<String>)> {
        let tiers = node.workload_policy("shop", "web-0").tiers.iter();
        tiers.map(|t| (t.name.clone(), t.end, t.ingress.iter().map(|id| id.name.clone()).collect())).collect()
    };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let expected = [
        ("sec".to_owned(), TierDefaultAction::Pass, names(&["s1", "s2"])),
        ("default".to_owned(), TierDefaultAction::Deny, names(&["b", "a", "p"])),
        ("late".to_owned(), TierDefaultAction::Deny, names(&["l"])),
        ("nosuch".to_owned(), TierDefaultAction::Deny, names(&["last"])),
    ];
    assert_eq!(tiers(&node), expected);
    // One tier is created, the other is deleted.
    node.put(&[tier("nosuch", 1.0, "Pass")]);
    assert_eq!(tiers(&node)[0], ("nosuch".to_owned(), TierDefaultAction::Pass, names(&["last"])));
    node.delete(&tier("sec", 10.0, "Pass"));
    assert_eq!(tiers(&node)[3], ("sec".to_owned(), TierDefaultAction::Deny, names(&["s1", "s2"])));
}

#[test]
fn host_endpoints_have_their_own_lists() {
    let host = json!({"node": "n1", "interfaceName": "eth0"});
    let flags = |flag: &str| json!({"applyOnForward": true, flag: true, "types": ["Ingress"]});
    let node = PolicyNode::with(&[
        object(Kind::HostEndpoint, "", "eth0", json!({}), host),
        object(
            Kind::HostEndpoint,
            "",
            "elsewhere",
            json!({}),
            json!({"node": "n2", "interfaceName": "eth0"}),
        ),
        gnp("normal", json!({})),
        gnp("forward", json!({"applyOnForward": true})),
        gnp("raw", flags("doNotTrack")),
        gnp("pre", flags("preDNAT")),
        namespace("shop", json!({})),
        pod("n1", "shop", "web-0", json!({}), "10.0.0.1/32"),
    ]);
    assert_eq!(node.plan.host_endpoints.len(), 1);
    let endpoint = &node.plan.host_endpoints["eth0"];
    let lists = [&endpoint.tiers, &endpoint.forward, &endpoint.untracked, &endpoint.pre_dnat];
    let lists = lists.map(|tiers| {
        let names: Vec<&str> = tiers[0].ingress.iter().map(|id| id.name.as_str()).collect();
        (names.join(" "), tiers[0].end)
    });
    let of = |names: &str, end| (names.to_owned(), end);
    assert_eq!(
        lists,
        [
            of("forward normal", TierDefaultAction::Deny),
            of("forward", TierDefaultAction::Deny),
            of("raw", TierDefaultAction::Pass),
            of("pre", TierDefaultAction::Pass)
        ]
    );
    let tiers = &node.workload_policy("shop", "web-0").tiers;
    assert_eq!(tiers[0].ingress.len(), 2, "a workload has no others: {tiers:?}");
}

#[test]
fn only_policies_of_local_endpoints_are_in_force() {
    let mut node = PolicyNode::with(&shop());
    let remote = np("far", "q", allow("has(x)"));
    node.put(&[remote.clone(), pod("n2", "far", "f-0", json!({"x": ""}), "10.0.0.9/32")]);
    assert_eq!(node.plan.policies.len(), 1);
    let near = pod("n1", "far", "f-1", json!({}), "10.0.0.10/32");
    node.put(std::slice::from_ref(&near));
    assert_eq!((node.plan.policies.len(), node.compute.totals().active_policies), (2, 2));
    node.delete(&near);
    assert_eq!((node.plan.policies.len(), node.plan.sets.len()), (1, 1));
    node.put(&[np("far", "q", {
        let mut spec = allow("has(x)");
        spec["performanceHints"] = json!(["AssumeNeededOnEveryNode"]);
        spec
    })]);
    assert_eq!(
        (node.plan.policies.len(), node.compute.totals().active_policies),
        (2, 2),
        "asked to be ready"
    );
}

#[test]
fn a_missing_profile_denies() {
    let mut node = PolicyNode::with(&[pod("n1", "shop", "web-0", json!({}), "10.0.0.1/32")]);
    let actions = |node: &PolicyNode| {
        node.plan.profiles["kns.shop"].ingress.iter().map(|r| r.action).collect::<Vec<_>>()
    };
    assert_eq!(actions(&node), [RuleAction::Deny]);
    node.put(&[namespace("shop", json!({}))]);
    assert_eq!(actions(&node), [RuleAction::Allow]);
    node.delete(&namespace("shop", json!({})));
    assert_eq!(actions(&node), [RuleAction::Deny]);
}

#[test]
fn the_profile_that_allows_everything_is_always_there() {
    let host = json!({"node": "n1", "interfaceName": "*", "profiles": ["projectcalico-default-allow"]});
    let node = PolicyNode::with(&[object(Kind::HostEndpoint, "", "auto", json!({}), host)]);
    let profile = &node.plan.profiles["projectcalico-default-allow"];
    assert_eq!((profile.ingress[0].action, profile.egress[0].action), (RuleAction::Allow, RuleAction::Allow));
}

#[test]
fn service_ranges_follow_the_default_configuration() {
    let configuration = |name: &str, spec| object(Kind::BGPConfiguration, "", name, json!({}), spec);
    let ranges =
        |node: &PolicyNode| node.plan.service_ranges.iter().map(ToString::to_string).collect::<Vec<_>>();
    let spec = json!({"serviceClusterIPs": [{"cidr": "10.96.0.0/12"}, {"cidr": "fd96::/112"}],
        "serviceLoadBalancerIPs": [{"cidr": "192.0.2.0/24"}], "serviceExternalIPs": [{"cidr": "198.51.100.1/32"}]});
    let all = configuration("default", spec.clone());
    let mut node =
        PolicyNode::with(&[all.clone(), configuration("node.n1", json!({"logSeverityScreen": "Debug"}))]);
    assert_eq!(ranges(&node), ["10.96.0.0/12", "192.0.2.0/24", "198.51.100.1/32", "fd96::/112"]);
    assert_eq!(node.put(std::slice::from_ref(&all)), [], "nothing new");
    let odd = json!({"serviceClusterIPs": [{"cidr": "10.96.0.1/12"}, {"cidr": "nonsense"}]});
    node.put(&[configuration("default", odd)]);
    assert_eq!((ranges(&node), node.compute.problems().len()), (vec!["10.96.0.0/12".to_owned()], 1));
    node.put(std::slice::from_ref(&all));
    assert_eq!((ranges(&node).len(), node.compute.problems().len()), (4, 0));
    node.delete(&all);
    assert_eq!(ranges(&node), [""; 0]);
}

/// Endpoints of a service are added, changed and removed; two slices may contain the same endpoint.
#[test]
fn rules_that_name_a_service_follow_its_endpoints() {
    let service = json!({"services": {"name": "cart"}});
    let spec = json!({"types": ["Ingress", "Egress"],
        "ingress": [{"action": "Allow", "source": service}],
        "egress": [{"action": "Allow", "destination": service}]});
    let slice = |name: &str, service: &str, addresses: &[&str], ports: &[u16]| {
        let key = StoreKey::EndpointSlice { namespace: "shop".into(), name: name.into() };
        let value = EndpointSlice {
            service: service.into(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            ports: ports.iter().map(|&port| ServicePort { protocol: 6, port }).collect(),
            ..EndpointSlice::default()
        };
        (key, StoreValue::EndpointSlice(value))
    };
    let mut entries = shop();
    entries.extend([np("shop", "s", spec), slice("a", "cart", &["10.0.0.7"], &[80])]);
    let mut node = PolicyNode::with(&entries);
    let sets = |node: &PolicyNode| {
        [service_id("shop", "cart"), service_ip_id("shop", "cart")].map(|id| node.set(&id).join(" "))
    };
    assert_eq!(sets(&node), ["10.0.0.7,6:80", "10.0.0.7/32"]);
    node.put(&[slice("b", "cart", &["10.0.0.7", "fd00::7"], &[80, 81])]);
    assert_eq!(
        sets(&node),
        ["10.0.0.7,6:80 10.0.0.7,6:81 fd00::7,6:80 fd00::7,6:81", "10.0.0.7/32 fd00::7/128"]
    );
    assert_eq!(node.put(&[slice("b", "cart", &["10.0.0.7", "fd00::7"], &[80, 81])]), []);
    assert_eq!(node.put(&[slice("c", "other", &["10.0.0.8"], &[80])]), [], "nobody names that service");
    node.delete(&slice("b", "cart", &[], &[]));
    assert_eq!(sets(&node), ["10.0.0.7,6:80", "10.0.0.7/32"]);
    // The slice now belongs to another service.
    node.put(&[slice("a", "other", &["10.0.0.7"], &[80])]);
    assert_eq!(sets(&node), ["", ""]);
}

#[test]
fn an_endpoint_without_addresses_is_not_there() {
    let mut node = PolicyNode::with(&shop());
    let client = pod("n2", "shop", "c-0", json!({"role": "client"}), "10.0.0.2/32");
    node.put(std::slice::from_ref(&client));
    let (key, mut value) = client;
    let StoreValue::Resource(Resource::WorkloadEndpoint(endpoint)) = &mut value else { panic!("{value:?}") };
    endpoint.spec.ip_networks.clear();
    let updates = node.put(&[(key, value)]);
    let [PlanUpdate::Members { added, removed, .. }] = &updates[..] else { panic!("{updates:#?}") };
    assert_eq!((added.len(), removed.len()), (0, 1));
}
