//! The policy board: tiers in order, with their policies and rules.

use super::{ApiResult, SharedState};
use crate::snapshot::ClusterSnapshot;
use axum::extract::State;
use serde::Serialize;
use std::collections::BTreeMap;
use tortie_ctl::policy::describe_rule;
use tortie_model::kinds::{DEFAULT_TIER, PolicyType, Rule};
use tortie_model::scalar::CalicoFloat;
use tortie_model::{Kind, Resource};
use tortie_plan::{PolicyId, PolicyKind};

/// Prefix of the names of policies that are converted from Kubernetes.
const KUBERNETES_POLICY_PREFIX: &str = "knp.default.";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TierItem {
    name: String,
    order: Option<f64>,
    default_action: String,
    /// False if policies refer to a tier that is not in the datastore.
    exists: bool,
    policies: Vec<PolicyItem>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PolicyItem {
    kind: &'static str,
    namespace: String,
    name: String,
    order: Option<f64>,
    selector: String,
    types: Vec<String>,
    /// The staged action; none for policies that are enforced.
    staged: Option<String>,
    /// Number of endpoints that the policy applies to.
    endpoints: usize,
    ingress: Vec<RuleItem>,
    egress: Vec<RuleItem>,
    /// Modes of policies for hosts: doNotTrack, preDNAT, applyOnForward.
    modes: Vec<&'static str>,
}

#[derive(Serialize)]
struct RuleItem {
    /// Counted from 1.
    rule: usize,
    action: String,
    text: String,
}

pub async fn show(State(state): SharedState) -> ApiResult {
    state.render_cluster(describe).await
}

pub fn is_policy(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::NetworkPolicy
            | Kind::GlobalNetworkPolicy
            | Kind::StagedNetworkPolicy
            | Kind::StagedGlobalNetworkPolicy
            | Kind::StagedKubernetesNetworkPolicy
    )
}

fn describe(snapshot: &ClusterSnapshot) -> Vec<TierItem> {
    let mut tiers: BTreeMap<String, TierItem> = BTreeMap::new();
    for resource in snapshot.cluster.resources() {
        if let Resource::Tier(tier) = resource {
            let name = tier.metadata.name.clone();
            let item = TierItem {
                name: name.clone(),
                order: tier.spec.order.map(|order| order.0),
                default_action: tier.spec.default_action.to_string(),
                exists: true,
                policies: Vec::new(),
            };
            tiers.insert(name, item);
        }
    }
    for resource in snapshot.cluster.resources() {
        let Some((tier, policy)) = PolicyItem::new(resource, &snapshot.endpoints) else { continue };
        let missing = || TierItem {
            name: tier.clone(),
            order: None,
            default_action: String::new(),
            exists: false,
            policies: Vec::new(),
        };
        tiers.entry(tier.clone()).or_insert_with(missing).policies.push(policy);
    }
    let mut tiers: Vec<TierItem> = tiers.into_values().collect();
    for tier in &mut tiers {
        tier.policies.sort_by(|a, b| {
            let of = |policy: &PolicyItem| policy.order.unwrap_or(f64::INFINITY);
            of(a)
                .total_cmp(&of(b))
                .then_with(|| (&a.name, &a.namespace, a.kind).cmp(&(&b.name, &b.namespace, b.kind)))
        });
    }
    tiers.sort_by(|a, b| {
        let of = |tier: &TierItem| tier.order.unwrap_or(f64::INFINITY);
        of(a).total_cmp(&of(b)).then_with(|| a.name.cmp(&b.name))
    });
    tiers
}

/// The fields that all kinds of policies have.
struct PolicyFields<'r> {
    tier: &'r str,
    order: Option<CalicoFloat>,
    selector: &'r str,
    types: &'r [PolicyType],
    ingress: &'r [Rule],
    egress: &'r [Rule],
    staged: Option<String>,
    modes: Vec<&'static str>,
}

macro_rules! fields {
    ($policy:ident, $staged:expr, $modes:expr) => {
        PolicyFields {
            tier: &$policy.spec.tier,
            order: $policy.spec.order,
            selector: &$policy.spec.selector,
            types: &$policy.spec.types,
            ingress: &$policy.spec.ingress,
            egress: &$policy.spec.egress,
            staged: $staged,
            modes: $modes,
        }
    };
}

impl PolicyItem {
    fn new(resource: &Resource, endpoints: &BTreeMap<PolicyId, usize>) -> Option<(String, PolicyItem)> {
        let modes = |untracked: bool, pre_dnat: bool, forward: bool| {
            let all = [(untracked, "doNotTrack"), (pre_dnat, "preDNAT"), (forward, "applyOnForward")];
            all.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name).collect()
        };
        let fields = match resource {
            Resource::NetworkPolicy(policy) => fields!(policy, None, Vec::new()),
            Resource::GlobalNetworkPolicy(policy) => {
                let spec = &policy.spec;
                fields!(policy, None, modes(spec.do_not_track, spec.pre_dnat, spec.apply_on_forward))
            }
            Resource::StagedNetworkPolicy(policy) => {
                fields!(policy, Some(policy.spec.staged_action.to_string()), Vec::new())
            }
            Resource::StagedGlobalNetworkPolicy(policy) => {
                let spec = &policy.spec;
                let modes = modes(spec.do_not_track, spec.pre_dnat, spec.apply_on_forward);
                fields!(policy, Some(spec.staged_action.to_string()), modes)
            }
            Resource::StagedKubernetesNetworkPolicy(policy) => PolicyFields {
                tier: DEFAULT_TIER,
                order: None,
                selector: "",
                types: &[],
                ingress: &[],
                egress: &[],
                staged: Some(policy.spec.staged_action.to_string()),
                modes: Vec::new(),
            },
            _ => return None,
        };
        let meta = resource.metadata();
        let tier = if fields.tier.is_empty() { DEFAULT_TIER } else { fields.tier };
        let id = policy_id(resource);
        let item = PolicyItem {
            kind: resource.kind().name(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            order: fields.order.map(|order| order.0),
            selector: fields.selector.to_owned(),
            types: fields.types.iter().map(ToString::to_string).collect(),
            staged: fields.staged,
            endpoints: id.and_then(|id| endpoints.get(&id)).copied().unwrap_or_default(),
            ingress: list_rules(fields.ingress),
            egress: list_rules(fields.egress),
            modes: fields.modes,
        };
        Some((tier.to_owned(), item))
    }
}

fn list_rules(rules: &[Rule]) -> Vec<RuleItem> {
    let items = rules.iter().enumerate().map(|(index, rule)| RuleItem {
        rule: index + 1,
        action: rule.action.to_string(),
        text: describe_rule(rule),
    });
    items.collect()
}

/// Returns the id under which endpoints refer to the policy.
fn policy_id(resource: &Resource) -> Option<PolicyId> {
    let meta = resource.metadata();
    let mut name = meta.name.as_str();
    let kind = match resource.kind() {
        Kind::NetworkPolicy => match name.strip_prefix(KUBERNETES_POLICY_PREFIX) {
            Some(own) => {
                name = own;
                PolicyKind::KubernetesNetworkPolicy
            }
            None => PolicyKind::NetworkPolicy,
        },
        Kind::GlobalNetworkPolicy => PolicyKind::GlobalNetworkPolicy,
        Kind::StagedNetworkPolicy => PolicyKind::StagedNetworkPolicy,
        Kind::StagedGlobalNetworkPolicy => PolicyKind::StagedGlobalNetworkPolicy,
        Kind::StagedKubernetesNetworkPolicy => PolicyKind::StagedKubernetesNetworkPolicy,
        _ => return None,
    };
    Some(PolicyId { kind, namespace: meta.namespace.clone(), name: name.to_owned() })
}
