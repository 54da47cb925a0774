//! Staged Kubernetes policies.

use super::kubernetes_policy::{
    KubernetesEgressRule, KubernetesIngressRule, LabelSelector, MAX_KUBERNETES_ITEMS, check_label_selector,
    check_peers, check_ports,
};
use super::policy::PolicyType;
use super::staged_policy::{StagedAction, check_nothing_else, set_action};
use crate::{FieldChecker, Kind, NoStatus, ResourceSpec, TypedObject};

pub type StagedKubernetesNetworkPolicy = TypedObject<StagedKubernetesNetworkPolicySpec>;

api_types! {
    #[schemars(extend("x-kubernetes-validations" = super::cel::staged_kubernetes_policy()))]
    pub struct StagedKubernetesNetworkPolicySpec {
        #[schemars(extend("default" = "Set"))]
        pub staged_action: StagedAction,
        /// If empty, the policy applies to every pod of the namespace.
        pub pod_selector: LabelSelector,
        #[schemars(length(max = 1024))]
        pub ingress: Vec<KubernetesIngressRule>,
        #[schemars(length(max = 1024))]
        pub egress: Vec<KubernetesEgressRule>,
        #[schemars(length(max = 2), extend("x-kubernetes-validations" = super::cel_settings::unique()))]
        pub policy_types: Vec<PolicyType>,
    }
}

impl ResourceSpec for StagedKubernetesNetworkPolicySpec {
    const KIND: Kind = Kind::StagedKubernetesNetworkPolicy;
    type Status = NoStatus;

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

    fn check_spec(&self, at: &FieldChecker<'_>) {
        at.field("stagedAction").one_of(&self.staged_action);
        if self.staged_action == StagedAction::Delete {
            check_nothing_else(at, self, &["stagedAction"]);
        }
        check_label_selector(&at.field("podSelector"), &self.pod_selector);
        at.field("ingress").max_items(&self.ingress, MAX_KUBERNETES_ITEMS);
        at.field("egress").max_items(&self.egress, MAX_KUBERNETES_ITEMS);
        for (at, rule) in at.field("ingress").each(&self.ingress) {
            check_ports(&at.field("ports"), &rule.ports);
            check_peers(&at.field("from"), &rule.from);
        }
        for (at, rule) in at.field("egress").each(&self.egress) {
            check_ports(&at.field("ports"), &rule.ports);
            check_peers(&at.field("to"), &rule.to);
        }
        let types = at.field("policyTypes");
        types.unique(&self.policy_types);
        types.each(&self.policy_types).for_each(|(at, direction)| at.required_one_of(direction));
    }
}
