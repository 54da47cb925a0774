//! Staged Kubernetes policies.

use super::kubernetes_policy::{
    KubernetesEgressRule, KubernetesIngressRule, LabelSelector, MAX_KUBERNETES_ITEMS, check_label_selector,
    check_peers, check_ports,
};
use super::policy::PolicyType;
use super::staged_policy::{StagedAction, check_nothing_else, set_action};
use crate::scalar::is_default;
use crate::{FieldChecker, Kind, NoStatus, ResourceSpec, StatusForm, TypedObject};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub type StagedKubernetesNetworkPolicy = TypedObject<StagedKubernetesNetworkPolicySpec>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = super::cel::staged_kubernetes_policy()))]
pub struct StagedKubernetesNetworkPolicySpec {
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = "Set"))]
    pub staged_action: StagedAction,
    /// If empty, the policy applies to every pod of the namespace.
    #[serde(skip_serializing_if = "is_default")]
    pub pod_selector: LabelSelector,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(length(max = 1024))]
    pub ingress: Vec<KubernetesIngressRule>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(length(max = 1024))]
    pub egress: Vec<KubernetesEgressRule>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(length(max = 2), extend("x-kubernetes-validations" = super::cel_settings::unique()))]
    pub policy_types: Vec<PolicyType>,
}

impl ResourceSpec for StagedKubernetesNetworkPolicySpec {
    const KIND: Kind = Kind::StagedKubernetesNetworkPolicy;
    type Status = NoStatus;
    const STATUS: StatusForm = StatusForm::Absent;

    fn set_defaults(object: &mut TypedObject<Self>) {
        let spec = &mut object.spec;
        let action = set_action(&mut spec.staged_action);
        if action != StagedAction::Delete && spec.policy_types.is_empty() {
            spec.policy_types.push(PolicyType::Ingress);
            if !spec.egress.is_empty() {
                spec.policy_types.push(PolicyType::Egress);
            }
        }
    }

    fn check(object: &TypedObject<Self>, at: &FieldChecker<'_>) {
        let (spec, at) = (&object.spec, at.field("spec"));
        at.field("stagedAction").one_of(&spec.staged_action);
        if spec.staged_action == StagedAction::Delete {
            check_nothing_else(&at, spec, &["stagedAction"]);
        }
        check_label_selector(&at.field("podSelector"), &spec.pod_selector);
        at.field("ingress").max_items(&spec.ingress, MAX_KUBERNETES_ITEMS);
        at.field("egress").max_items(&spec.egress, MAX_KUBERNETES_ITEMS);
        for (at, rule) in at.field("ingress").each(&spec.ingress) {
            check_ports(&at.field("ports"), &rule.ports);
            check_peers(&at.field("from"), &rule.from);
        }
        for (at, rule) in at.field("egress").each(&spec.egress) {
            check_ports(&at.field("ports"), &rule.ports);
            check_peers(&at.field("to"), &rule.to);
        }
        let types = at.field("policyTypes");
        types.unique(&spec.policy_types);
        types.each(&spec.policy_types).for_each(|(at, direction)| at.required_one_of(direction));
    }
}
