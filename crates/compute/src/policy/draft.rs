//! A policy read from its resource: whom it is about, where it stands, and its rules, not converted yet.
//!
//! A policy that breaks a rule of its kind fails closed: as long as it can be told whom it selects, it stands in the plan
//! as one that denies everything in the directions it governs. A staged one that breaks a rule is left out, since it
//! decides nothing anyway.

use super::kubernetes;
use tortie_model::kinds::{
    DEFAULT_TIER, GlobalNetworkPolicySpec, NetworkPolicySpec, PerformanceHint, PolicyType, Rule,
    StagedAction, StagedKubernetesNetworkPolicySpec,
};
use tortie_model::scalar::Float;
use tortie_model::selector::Selector;
use tortie_model::selector::rewrite::{global_network_policy_selector, network_policy_selector};
use tortie_model::{ObjectMeta, Resource};
use tortie_plan::{PolicyId, PolicyKind};

/// When a policy is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Normal,
    /// Also for what is forwarded through a host endpoint.
    Forward,
    Untracked,
    PreDnat,
}

/// Where a policy stands and what it governs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Head {
    /// None: the default tier, where nearly all are.
    tier: Option<Box<str>>,
    pub order: Option<f64>,
    pub ingress: bool,
    pub egress: bool,
    pub stage: Stage,
    /// Needed even if it selects nothing here.
    pub everywhere: bool,
}

#[derive(Debug)]
pub(super) struct Draft {
    pub id: PolicyId,
    pub head: Head,
    pub selector: Selector,
    /// None: everything is denied.
    pub rules: Option<(Vec<Rule>, Vec<Rule>)>,
}

/// What became of a resource.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub draft: Option<Draft>,
    pub problem: Option<String>,
}

/// What the kinds of policies have in common.
struct Common {
    kind: PolicyKind,
    tier: String,
    order: Option<Float>,
    types: Vec<PolicyType>,
    hints: Vec<PerformanceHint>,
    stage: Stage,
    selector: Result<String, String>,
    ingress: Vec<Rule>,
    egress: Vec<Rule>,
}

/// None for resources that are no policies.
pub(super) fn read(resource: &Resource) -> Option<Reading> {
    use PolicyKind as K;
    let meta = resource.metadata();
    let common = match resource {
        Resource::NetworkPolicy(policy) => of_namespace(meta, K::NetworkPolicy, policy.spec.clone()),
        Resource::GlobalNetworkPolicy(policy) => global(K::GlobalNetworkPolicy, policy.spec.clone()),
        Resource::StagedNetworkPolicy(policy) if policy.spec.staged_action != StagedAction::Delete => {
            of_namespace(meta, K::StagedNetworkPolicy, policy.spec.clone().into())
        }
        Resource::StagedGlobalNetworkPolicy(policy) if policy.spec.staged_action != StagedAction::Delete => {
            global(K::StagedGlobalNetworkPolicy, policy.spec.clone().into())
        }
        Resource::StagedKubernetesNetworkPolicy(policy)
            if policy.spec.staged_action != StagedAction::Delete =>
        {
            of_kubernetes(meta, &policy.spec)
        }
        Resource::StagedNetworkPolicy(_)
        | Resource::StagedGlobalNetworkPolicy(_)
        | Resource::StagedKubernetesNetworkPolicy(_) => return Some(Reading::default()),
        _ => return None,
    };
    let problem = resource.validate().err().map(|error| error.to_string());
    Some(common.finish(meta, problem))
}

fn of_namespace(meta: &ObjectMeta, kind: PolicyKind, spec: NetworkPolicySpec) -> Common {
    let selector = network_policy_selector(&meta.namespace, &spec.selector, &spec.service_account_selector);
    Common {
        kind,
        tier: spec.tier,
        order: spec.order,
        types: types(spec.types, &spec.ingress, &spec.egress),
        hints: spec.performance_hints,
        stage: Stage::Normal,
        selector: selector.map_err(|error| error.to_string()),
        ingress: spec.ingress,
        egress: spec.egress,
    }
}

fn global(kind: PolicyKind, spec: GlobalNetworkPolicySpec) -> Common {
    let selector = global_network_policy_selector(
        &spec.selector,
        &spec.namespace_selector,
        &spec.service_account_selector,
    );
    Common {
        kind,
        tier: spec.tier,
        order: spec.order,
        types: types(spec.types, &spec.ingress, &spec.egress),
        hints: spec.performance_hints,
        stage: match (spec.do_not_track, spec.pre_dnat, spec.apply_on_forward) {
            (true, false, _) => Stage::Untracked,
            (false, true, _) => Stage::PreDnat,
            (false, false, true) => Stage::Forward,
            // Both at once is a contradiction: such a policy denies, for what ends here as for what is forwarded.
            (true, true, _) => Stage::Forward,
            (false, false, false) => Stage::Normal,
        },
        selector: selector.map_err(|error| error.to_string()),
        ingress: spec.ingress,
        egress: spec.egress,
    }
}

fn of_kubernetes(meta: &ObjectMeta, spec: &StagedKubernetesNetworkPolicySpec) -> Common {
    let mut types = spec.policy_types.clone();
    if types.is_empty() {
        types.push(PolicyType::Ingress);
        types.extend((!spec.egress.is_empty()).then_some(PolicyType::Egress));
    }
    let selector = network_policy_selector(&meta.namespace, &kubernetes::selector(spec), "");
    Common {
        kind: PolicyKind::StagedKubernetesNetworkPolicy,
        tier: DEFAULT_TIER.to_owned(),
        order: Some(Float(kubernetes::ORDER)),
        types,
        hints: Vec::new(),
        stage: Stage::Normal,
        selector: selector.map_err(|error| error.to_string()),
        ingress: kubernetes::ingress(spec),
        egress: kubernetes::egress(spec),
    }
}

/// A policy that does not say what it governs governs what it has rules for, ingress if it has none.
fn types(given: Vec<PolicyType>, ingress: &[Rule], egress: &[Rule]) -> Vec<PolicyType> {
    match (given.is_empty(), ingress, egress) {
        (false, _, _) => given,
        (true, _, []) => vec![PolicyType::Ingress],
        (true, [], _) => vec![PolicyType::Egress],
        (true, _, _) => vec![PolicyType::Ingress, PolicyType::Egress],
    }
}

impl Head {
    pub fn tier(&self) -> &str {
        self.tier.as_deref().unwrap_or(DEFAULT_TIER)
    }
}

impl Common {
    fn finish(self, meta: &ObjectMeta, mut problem: Option<String>) -> Reading {
        let selector =
            self.selector.and_then(|text| Selector::parse(&text).map_err(|error| error.to_string()));
        let selector = match selector {
            Ok(selector) => selector,
            Err(reason) => {
                return Reading { draft: None, problem: problem.or(Some(reason)) };
            }
        };
        if problem.is_some() && self.kind.is_staged() {
            return Reading { draft: None, problem };
        }
        if let Some(problem) = &mut problem {
            problem.push_str("; until it is mended, it denies all traffic of the endpoints it selects");
        }
        // A direction that this version does not know could be either.
        let vague = self.types.iter().any(|t| matches!(t, PolicyType::Unknown(_)));
        let id = identity(self.kind, meta, &self.tier);
        let head = Head {
            tier: Some(self.tier).filter(|tier| !matches!(tier.as_str(), "" | DEFAULT_TIER)).map(Into::into),
            order: self.order.map(|order| order.0),
            ingress: vague || self.types.contains(&PolicyType::Ingress),
            egress: vague || self.types.contains(&PolicyType::Egress),
            stage: self.stage,
            everywhere: self.hints.contains(&PerformanceHint::AssumeNeededOnEveryNode),
        };
        // Rules for a direction that it does not govern are never asked.
        let governed = |governs: bool, rules: Vec<Rule>| if governs { rules } else { Vec::new() };
        let rules = (governed(head.ingress, self.ingress), governed(head.egress, self.egress));
        let rules = problem.is_none().then_some(rules);
        Reading { draft: Some(Draft { id, head, selector, rules }), problem }
    }
}

/// Older peers store policies that they converted from Kubernetes under names with a prefix.
fn identity(kind: PolicyKind, meta: &ObjectMeta, tier: &str) -> PolicyId {
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
