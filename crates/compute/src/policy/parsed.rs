//! Reads a policy from its resource: its selector, its position and its rules, which are not converted yet.
//!
//! API limits apply to the client that writes an object: a stored policy that violates them is used. Parts that
//! cannot be expressed fail closed individually (see `convert`). Only a policy whose selector cannot be parsed is
//! left out.

use super::archive::RuleArchive;
use super::ids::RulesId;
use tortie_model::kinds::{
    DEFAULT_TIER, GlobalNetworkPolicySpec, NetworkPolicySpec, PerformanceHint, PolicyType, Rule,
    StagedAction, StagedKubernetesNetworkPolicySpec,
};
use tortie_model::kubernetes::network_policy as kubernetes;
use tortie_model::scalar::CalicoFloat;
use tortie_model::selector::Selector;
use tortie_model::selector::rewrite::{
    RewriteError, global_network_policy_selector, network_policy_selector,
};
use tortie_model::{ObjectMeta, Resource};
use tortie_plan::{PolicyId, PolicyKind};

/// When a policy is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParsedStage {
    Normal,
    /// Also for packets that are forwarded through a host endpoint.
    Forward,
    Untracked,
    PreDnat,
}

/// Position of a policy, and the traffic it applies to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PolicyHeader {
    /// `None` is the default tier, which nearly all policies are in.
    tier: Option<Box<str>>,
    pub order: Option<f64>,
    pub ingress: bool,
    pub egress: bool,
    pub stage: ParsedStage,
    /// In the plan even if it selects no endpoint of this node.
    pub everywhere: bool,
}

#[derive(Debug)]
pub(super) struct ParsedPolicy {
    pub id: PolicyId,
    pub head: PolicyHeader,
    pub selector: Selector,
    /// Holds one reference; `None` denies everything.
    pub rules: Option<RulesId>,
}

/// Result of reading a resource.
#[derive(Debug, Default)]
pub(super) struct ParseOutcome {
    pub policy: Option<ParsedPolicy>,
    pub problem: Option<String>,
}

impl ParseOutcome {
    fn not_in_force(error: &dyn std::error::Error) -> ParseOutcome {
        ParseOutcome { policy: None, problem: Some(format!("{error}; it is not in force")) }
    }
}

/// Fields that all kinds of policies have.
struct PolicyFields<'a> {
    kind: PolicyKind,
    tier: &'a str,
    order: Option<CalicoFloat>,
    types: &'a [PolicyType],
    hints: &'a [PerformanceHint],
    stage: ParsedStage,
    /// Reason why its rules cannot be applied.
    contradiction: Option<&'static str>,
    selector: Result<String, RewriteError>,
    ingress: &'a [Rule],
    egress: &'a [Rule],
}

/// Reads a policy and stores its rules in the archive. Returns `None` for resources that are not policies.
pub(super) fn read_policy(archive: &mut RuleArchive, resource: &Resource) -> Option<ParseOutcome> {
    use PolicyKind as K;
    let meta = resource.metadata();
    let ingress: Vec<Rule>;
    let egress: Vec<Rule>;
    let fields = match resource {
        Resource::NetworkPolicy(policy) => read_namespaced(meta, K::NetworkPolicy, &policy.spec),
        Resource::GlobalNetworkPolicy(policy) => read_global(K::GlobalNetworkPolicy, &policy.spec),
        Resource::StagedNetworkPolicy(policy) if policy.spec.staged_action != StagedAction::Delete => {
            read_namespaced(meta, K::StagedNetworkPolicy, &policy.spec.policy)
        }
        Resource::StagedGlobalNetworkPolicy(policy) if policy.spec.staged_action != StagedAction::Delete => {
            read_global(K::StagedGlobalNetworkPolicy, &policy.spec.policy)
        }
        Resource::StagedKubernetesNetworkPolicy(policy)
            if policy.spec.staged_action != StagedAction::Delete =>
        {
            ingress = kubernetes::ingress(&policy.spec);
            egress = kubernetes::egress(&policy.spec);
            read_kubernetes(meta, &policy.spec, &ingress, &egress)
        }
        Resource::StagedNetworkPolicy(_)
        | Resource::StagedGlobalNetworkPolicy(_)
        | Resource::StagedKubernetesNetworkPolicy(_) => return Some(ParseOutcome::default()),
        _ => return None,
    };
    Some(fields.into_outcome(archive, meta))
}

fn read_namespaced<'a>(meta: &ObjectMeta, kind: PolicyKind, spec: &'a NetworkPolicySpec) -> PolicyFields<'a> {
    let selector = network_policy_selector(&meta.namespace, &spec.selector, &spec.service_account_selector);
    PolicyFields {
        kind,
        tier: &spec.tier,
        order: spec.order,
        types: &spec.types,
        hints: &spec.performance_hints,
        stage: ParsedStage::Normal,
        contradiction: None,
        selector,
        ingress: &spec.ingress,
        egress: &spec.egress,
    }
}

fn read_global(kind: PolicyKind, spec: &GlobalNetworkPolicySpec) -> PolicyFields<'_> {
    let selector = global_network_policy_selector(
        &spec.selector,
        &spec.namespace_selector,
        &spec.service_account_selector,
    );
    PolicyFields {
        kind,
        tier: &spec.tier,
        order: spec.order,
        types: &spec.types,
        hints: &spec.performance_hints,
        stage: match (spec.do_not_track, spec.pre_dnat, spec.apply_on_forward) {
            (true, false, _) => ParsedStage::Untracked,
            (false, true, _) => ParsedStage::PreDnat,
            (false, false, true) => ParsedStage::Forward,
            // Contradictory: such a policy denies both packets to this host and forwarded packets.
            (true, true, _) => ParsedStage::Forward,
            (false, false, false) => ParsedStage::Normal,
        },
        contradiction: (spec.do_not_track && spec.pre_dnat)
            .then_some("doNotTrack and preDNAT exclude each other; it denies all traffic of the endpoints that it selects"),
        selector,
        ingress: &spec.ingress,
        egress: &spec.egress,
    }
}

fn read_kubernetes<'a>(
    meta: &ObjectMeta,
    spec: &'a StagedKubernetesNetworkPolicySpec,
    ingress: &'a [Rule],
    egress: &'a [Rule],
) -> PolicyFields<'a> {
    let selector = network_policy_selector(&meta.namespace, &kubernetes::selector(spec), "");
    PolicyFields {
        kind: PolicyKind::StagedKubernetesNetworkPolicy,
        tier: DEFAULT_TIER,
        order: Some(CalicoFloat(kubernetes::DERIVED_POLICY_ORDER)),
        types: match (spec.policy_types.is_empty(), spec.egress.is_empty()) {
            (false, _) => &spec.policy_types,
            (true, true) => &[PolicyType::Ingress],
            (true, false) => &[PolicyType::Ingress, PolicyType::Egress],
        },
        hints: &[],
        stage: ParsedStage::Normal,
        contradiction: None,
        selector,
        ingress,
        egress,
    }
}

impl PolicyHeader {
    pub fn tier(&self) -> &str {
        self.tier.as_deref().unwrap_or(DEFAULT_TIER)
    }
}

impl PolicyFields<'_> {
    fn into_outcome(self, archive: &mut RuleArchive, meta: &ObjectMeta) -> ParseOutcome {
        let selector = match self.selector.map(|text| Selector::parse(&text)) {
            Ok(Ok(selector)) => selector,
            Ok(Err(error)) => return ParseOutcome::not_in_force(&error),
            Err(error) => return ParseOutcome::not_in_force(&error),
        };
        // A policy without types applies to both directions, and so does one with a type that this version does not
        // know.
        let both = self.types.is_empty() || self.types.iter().any(|t| matches!(t, PolicyType::Unknown(_)));
        let id = derive_id(self.kind, meta, self.tier);
        let head = PolicyHeader {
            tier: Some(self.tier).filter(|tier| !matches!(*tier, "" | DEFAULT_TIER)).map(Into::into),
            order: self.order.map(|order| order.0),
            ingress: both || self.types.contains(&PolicyType::Ingress),
            egress: both || self.types.contains(&PolicyType::Egress),
            stage: self.stage,
            everywhere: self.hints.contains(&PerformanceHint::AssumeNeededOnEveryNode),
        };
        // Rules for a direction that the policy does not apply to are never evaluated.
        let ingress = if head.ingress { self.ingress } else { &[] };
        let egress = if head.egress { self.egress } else { &[] };
        let rules = self.contradiction.is_none().then(|| archive.keep(ingress, egress));
        let problem = self.contradiction.map(str::to_owned);
        ParseOutcome { policy: Some(ParsedPolicy { id, head, selector, rules }), problem }
    }
}

/// Returns the ID of a policy. Older versions store policies that they converted from Kubernetes under names with a
/// prefix.
fn derive_id(kind: PolicyKind, meta: &ObjectMeta, tier: &str) -> PolicyId {
    let name = meta.name.as_str();
    let (kind, name) = match kind {
        PolicyKind::NetworkPolicy => match name.strip_prefix("knp.default.") {
            Some(name) => (PolicyKind::KubernetesNetworkPolicy, name),
            None => (kind, name),
        },
        PolicyKind::GlobalNetworkPolicy if matches!(tier, "kube-admin" | "kube-baseline") => {
            match name.strip_prefix("kcnp.") {
                Some(name) => (PolicyKind::KubernetesClusterNetworkPolicy, name),
                None => (kind, name),
            }
        }
        kind => (kind, name),
    };
    let namespace = match kind {
        PolicyKind::GlobalNetworkPolicy
        | PolicyKind::StagedGlobalNetworkPolicy
        | PolicyKind::KubernetesClusterNetworkPolicy => String::new(),
        _ => meta.namespace.clone(),
    };
    PolicyId { kind, namespace, name: name.to_owned() }
}
