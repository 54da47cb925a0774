//! Computes the plan without indexes or history: every selector is matched against every object.

use crate::cluster::{NODE, PolicyEntry};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use tortie_model::kinds::{EntityRule, Rule};
use tortie_model::selector::Selector;
use tortie_model::selector::rewrite::{EntitySelectors, entity_match};
use tortie_model::{Resource, StoreValue};
use tortie_plan::{EndpointId, EndpointTier, NodePlan, PolicyId, ServiceAccountId, SetId, SetMember};

type LabelMap = BTreeMap<String, String>;

/// An object with labels and addresses.
struct LabelledObject {
    labels: LabelMap,
    nets: Vec<IpNet>,
    is_node: bool,
    /// Set if it is an endpoint of this node.
    local: Option<EndpointId>,
}

pub fn check(state: &[PolicyEntry], plan: &NodePlan, what: &str) {
    let all = state.iter().filter_map(|(_, value)| match value {
        StoreValue::Resource(resource) => Some(resource),
        _ => None,
    });
    let all: Vec<&Resource> = all.collect();
    let things: Vec<LabelledObject> = all.iter().filter_map(|resource| thing(resource, &all)).collect();
    let selectors = selectors(&all);
    check_peers(&all, &selectors, plan, what);
    let mut checked = 0;
    for (id, set) in &plan.sets {
        let Some(selector) = selectors.get(&*id.0) else { continue };
        let of_kind = things.iter().filter(|thing| thing.is_node == selector.selects_nodes());
        let members = of_kind.filter(|thing| selector.matches(&thing.labels));
        let members: BTreeSet<SetMember> =
            members.flat_map(|thing| &thing.nets).map(|net| SetMember::Net(*net)).collect();
        assert_eq!(members, set.members, "{what}: {selector}");
        checked += 1;
    }
    let of_selectors = plan.sets.keys().filter(|id| id.0.starts_with("s:")).count();
    assert_eq!(checked, of_selectors, "{what}: every set of a selector is known");
    for thing in &things {
        let listed = match &thing.local {
            Some(EndpointId::Workload(id)) => {
                plan.workload_policies.get(id).map(|workload_policy| names(&[&workload_policy.tiers]))
            }
            Some(EndpointId::Host(name)) => plan
                .host_endpoints
                .get(name)
                .map(|host| names(&[&host.tiers, &host.forward, &host.untracked, &host.pre_dnat])),
            None => continue,
        };
        let Some(listed) = listed else { continue };
        for (id, policy) in &plan.policies {
            let selector = Selector::parse(&policy.selector).unwrap();
            let matches = selector.matches(&thing.labels);
            let only_hosts = matches!(thing.local, Some(EndpointId::Workload(_))) && !listed.contains(id);
            assert!(
                matches == listed.contains(id) || (matches && only_hosts && is_of_hosts(id, &all)),
                "{what}: {id} ({}) and {:?}",
                policy.selector,
                thing.local
            );
        }
    }
}

/// Checks what proxies compare with authenticated peers.
fn check_peers(all: &[&Resource], selectors: &BTreeMap<String, Selector>, plan: &NodePlan, what: &str) {
    let enabled = all.iter().any(|resource| match resource {
        Resource::FelixConfiguration(configuration) => {
            configuration.spec.set().iter().any(|(parameter, _)| parameter.key == "policySyncPathPrefix")
        }
        _ => false,
    });
    let (mut namespaces, mut accounts) = (BTreeMap::new(), BTreeMap::new());
    for resource in all.iter().filter(|_| enabled) {
        let Resource::Profile(profile) = resource else { continue };
        let labels = profile.spec.labels_to_apply.iter().map(|(key, value)| {
            let key = key.trim_start_matches("pcns.").trim_start_matches("pcsa.");
            (key.to_owned(), value.clone())
        });
        let labels: LabelMap = labels.collect();
        match profile.metadata.name.split('.').collect::<Vec<_>>()[..] {
            ["kns", name] => drop(namespaces.insert(name.to_owned(), labels)),
            ["ksa", namespace, name] => {
                let id = ServiceAccountId { namespace: namespace.to_owned(), name: name.to_owned() };
                accounts.insert(id, labels);
            }
            _ => {}
        }
    }
    let planned = plan.namespaces.iter().map(|(name, labels)| (name.clone(), LabelMap::clone(labels)));
    assert_eq!(planned.collect::<BTreeMap<_, _>>(), namespaces, "{what}");
    let planned = plan.service_accounts.iter().map(|(id, labels)| (id.clone(), LabelMap::clone(labels)));
    assert_eq!(planned.collect::<BTreeMap<_, _>>(), accounts, "{what}");
    let rules = plan.policies.values().flat_map(|policy| policy.ingress.iter().chain(&policy.egress));
    for side in rules.flat_map(|rule| [&rule.source, &rule.destination]) {
        // Proxies know no labels of nodes.
        let of_nodes = |id: &SetId| selectors.get(&*id.0).is_some_and(Selector::selects_nodes);
        let has_sets = !side.sets.is_empty() || !side.not_sets.is_empty();
        let selects = has_sets && !side.sets.iter().any(of_nodes);
        assert!(side.peer.is_none() || enabled, "{what}: {side:?}");
        assert!(side.peer.is_some() || !(selects && enabled), "{what}: {side:?}");
    }
}

/// Returns whether a policy applies to stages that workloads do not have.
fn is_of_hosts(id: &PolicyId, resources: &[&Resource]) -> bool {
    resources.iter().any(|resource| match resource {
        Resource::GlobalNetworkPolicy(policy) => {
            policy.metadata.name == id.name && (policy.spec.do_not_track || policy.spec.pre_dnat)
        }
        Resource::StagedGlobalNetworkPolicy(policy) => {
            policy.metadata.name == id.name && (policy.spec.do_not_track || policy.spec.pre_dnat)
        }
        _ => false,
    })
}

fn names(lists: &[&Vec<EndpointTier>]) -> BTreeSet<PolicyId> {
    let tiers = lists.iter().flat_map(|tiers| tiers.iter());
    tiers.flat_map(|tier| tier.ingress.iter().chain(tier.egress.iter())).cloned().collect()
}

fn thing(resource: &Resource, all: &[&Resource]) -> Option<LabelledObject> {
    let mut labels = resource.metadata().labels.clone();
    let namespace = resource.metadata().namespace.clone();
    let (profiles, nets, local) = match resource {
        Resource::WorkloadEndpoint(endpoint) => {
            labels.retain(|key, _| !key.starts_with("pcns.") && !key.starts_with("pcsa."));
            labels.insert("projectcalico.org/namespace".into(), namespace.clone());
            labels.insert("projectcalico.org/orchestrator".into(), "k8s".into());
            let id = tortie_plan::WorkloadId {
                orchestrator: "k8s".into(),
                workload: format!("{namespace}/{}", endpoint.spec.pod),
                endpoint: "eth0".into(),
            };
            let local = (endpoint.spec.node == NODE).then_some(EndpointId::Workload(id));
            // An endpoint has single addresses, regardless of the prefix length.
            let address = |text: &String| text.split('/').next().unwrap_or_default().to_owned();
            (endpoint.spec.profiles.clone(), endpoint.spec.ip_networks.iter().map(address).collect(), local)
        }
        Resource::HostEndpoint(host) => {
            let local = (host.spec.node == NODE).then(|| EndpointId::Host(host.metadata.name.clone()));
            (host.spec.profiles.clone(), host.spec.expected_ips.clone(), local)
        }
        Resource::NetworkSet(set) => {
            labels.insert("projectcalico.org/namespace".into(), namespace.clone());
            (vec![format!("kns.{namespace}")], set.spec.nets.clone(), None)
        }
        Resource::GlobalNetworkSet(set) => (vec![], set.spec.nets.clone(), None),
        Resource::Node(node) => {
            labels.insert("projectcalico.org/kind".into(), "Node".into());
            (vec![], node.spec.addresses.iter().map(|listed| listed.address.clone()).collect(), None)
        }
        _ => return None,
    };
    for profile in all.iter().filter_map(|other| match other {
        Resource::Profile(profile) => profiles.contains(&profile.metadata.name).then_some(profile),
        _ => None,
    }) {
        for (key, value) in &profile.spec.labels_to_apply {
            labels.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    let address = |text: &String| text.parse::<std::net::IpAddr>().ok().map(IpNet::from);
    let net = |text: &String| text.parse().ok().or_else(|| address(text)).map(|net: IpNet| net.trunc());
    let is_node = matches!(resource, Resource::Node(_));
    Some(LabelledObject { labels, nets: nets.iter().filter_map(net).collect(), is_node, local })
}

/// Returns every selector that rules of the cluster use, by the ID of its set.
fn selectors(resources: &[&Resource]) -> BTreeMap<String, Selector> {
    let mut found = BTreeMap::new();
    for resource in resources {
        let namespace = &resource.metadata().namespace;
        let rules: Vec<Rule> = match resource {
            Resource::NetworkPolicy(p) => [&p.spec.ingress[..], &p.spec.egress].concat(),
            Resource::GlobalNetworkPolicy(p) => [&p.spec.ingress[..], &p.spec.egress].concat(),
            Resource::StagedNetworkPolicy(p) => [&p.spec.ingress[..], &p.spec.egress].concat(),
            Resource::StagedGlobalNetworkPolicy(p) => [&p.spec.ingress[..], &p.spec.egress].concat(),
            Resource::StagedKubernetesNetworkPolicy(p) => {
                let peers = p.spec.ingress.iter().flat_map(|rule| &rule.from);
                let labels =
                    peers.filter_map(|peer| peer.pod_selector.as_ref()).flat_map(|s| &s.match_labels);
                let selector = |(key, value): (&String, &String)| {
                    format!("projectcalico.org/orchestrator == 'k8s' && {key} == '{value}'")
                };
                let source = |selector| EntityRule { selector, ..EntityRule::default() };
                labels.map(selector).map(|s| Rule { source: source(s), ..Rule::default() }).collect()
            }
            _ => continue,
        };
        for side in rules.iter().flat_map(|rule| [&rule.source, &rule.destination]) {
            let entity = EntitySelectors {
                selector: &side.selector,
                not_selector: &side.not_selector,
                namespace_selector: &side.namespace_selector,
                ..EntitySelectors::default()
            };
            let meant = entity_match(&entity, namespace).unwrap();
            found.extend([meant.selector, meant.not_selector].into_iter().flatten().map(|s| (s.id(), s)));
        }
    }
    found
}
