//! The checks, one file each.

mod bgp_peers;
mod http;
mod invalid_selectors;
mod mtu;
mod network;
mod pools;
mod profiles;
mod reach;
mod selectors;
mod settings;
mod tiers;
mod unprotected;
mod unreadable;

pub(super) use invalid_selectors::{CONSEQUENCES, INVALID_SELECTOR_CHECK};
pub(super) use network::NODE_REPORTED_CHECKS;

use super::AnalyzedCluster;
use super::finding::AnalysisFinding;
use tortie_compute::{NodeParameters, ParameterEnvironment};
use tortie_model::kinds::{FelixConfiguration, Node};
use tortie_model::{Kind, ObjectMeta, Resource};
use tortie_plan::{EndpointTier, PlannedRule, PolicyId, PolicyKind, RuleAction};

pub(super) const ALL_CHECKS: &[fn(&AnalyzedCluster) -> Vec<AnalysisFinding>] = &[
    invalid_selectors::find_invalid_selectors,
    selectors::find_unmatched_policies,
    selectors::find_unmatched_rules,
    http::find_rules_without_proxy,
    reach::find_unreachable_rules,
    reach::find_unreachable_policies,
    tiers::find_hidden_tiers,
    profiles::find_missing_profiles,
    unprotected::find_unprotected_pods,
    pools::find_unusable_pools,
    network::find_modes_not_in_force,
    network::find_nodes_not_encrypting,
    bgp_peers::find_peer_mistakes,
    settings::find_settings_without_effect,
    mtu::find_differing_tunnel_mtus,
    mtu::find_large_workload_mtus,
    unreadable::find_unreadable_entries,
];

/// Returns the display name of a policy.
fn name(id: &PolicyId) -> String {
    let kind = match id.kind {
        PolicyKind::NetworkPolicy => Kind::NetworkPolicy.name(),
        PolicyKind::GlobalNetworkPolicy => Kind::GlobalNetworkPolicy.name(),
        PolicyKind::StagedNetworkPolicy => Kind::StagedNetworkPolicy.name(),
        PolicyKind::StagedGlobalNetworkPolicy => Kind::StagedGlobalNetworkPolicy.name(),
        PolicyKind::StagedKubernetesNetworkPolicy => Kind::StagedKubernetesNetworkPolicy.name(),
        PolicyKind::KubernetesNetworkPolicy => "Kubernetes NetworkPolicy",
        PolicyKind::KubernetesClusterNetworkPolicy => "Kubernetes ClusterNetworkPolicy",
    };
    match id.namespace.as_str() {
        "" => format!("{kind}({})", id.name),
        namespace => format!("{kind}({namespace}/{})", id.name),
    }
}

/// Returns whether a rule decides every packet.
fn ends_everything(rule: &PlannedRule) -> bool {
    rule.action != RuleAction::Log
        && PlannedRule { annotations: rule.annotations.clone(), ..PlannedRule::new(rule.action) } == *rule
}

impl AnalyzedCluster {
    fn felix_configurations(&self) -> impl Iterator<Item = &FelixConfiguration> {
        self.cluster.resources().filter_map(|resource| match resource {
            Resource::FelixConfiguration(configuration) => Some(&**configuration),
            _ => None,
        })
    }

    /// Returns every node with its parameters, as far as the datastore defines them.
    fn resolve_parameters(&self) -> impl Iterator<Item = (&Node, NodeParameters)> {
        let configurations: Vec<&FelixConfiguration> = self.felix_configurations().collect();
        self.cluster.nodes().map(move |node| {
            let ObjectMeta { name, labels, .. } = &node.metadata;
            let configurations = configurations.iter().copied();
            (node, NodeParameters::resolve(name, labels, configurations, &ParameterEnvironment::default()))
        })
    }

    /// Returns the tier lists of every endpoint, with the endpoint's name.
    fn tiers(&self) -> impl Iterator<Item = (String, &[EndpointTier])> {
        let plan = &self.enforced.plan;
        let workloads =
            plan.workload_policies.iter().map(|(id, policy)| (id.workload.clone(), &policy.tiers[..]));
        let hosts = plan.host_endpoints.iter().flat_map(|(name, endpoint)| {
            [&endpoint.tiers, &endpoint.untracked, &endpoint.pre_dnat, &endpoint.forward]
                .map(|tiers| (name.clone(), &tiers[..]))
        });
        workloads.chain(hosts)
    }
}
