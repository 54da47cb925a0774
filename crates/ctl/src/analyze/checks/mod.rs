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
use tortie_model::Kind;
use tortie_plan::{EndpointTier, PlannedRule, PolicyId, PolicyKind, RuleAction};

pub(super) const ALL_CHECKS: &[fn(&AnalyzedCluster) -> Vec<AnalysisFinding>] = &[
    invalid_selectors::selectors,
    selectors::policies,
    selectors::rules,
    http::rules_without_proxy,
    reach::rules,
    reach::policies,
    tiers::hidden,
    profiles::missing,
    unprotected::pods,
    pools::unusable,
    network::not_in_force,
    network::not_encrypting,
    bgp_peers::mistakes,
    settings::without_effect,
    mtu::of_tunnels,
    mtu::of_this_host,
    unreadable::entries,
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
