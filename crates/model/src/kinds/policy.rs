//! Policies: rules for the endpoints that a selector matches.

use super::rule::Rule;
use super::rule_check::{CheckedDirection, RuleParent, check_rules};
use crate::scalar::{CalicoFloat, is_default};
use crate::schema::forms;
use crate::{
    FieldChecker, Kind, NoStatus, ObjectMeta, ResourceSpec, StatusForm, TypedObject, names, string_enum,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The tier of policies that specify none.
pub const DEFAULT_TIER: &str = "default";

/// Label with a policy's tier, by which policies can be listed.
pub const TIER_LABEL: &str = "projectcalico.org/tier";

string_enum! {
    /// A direction that a policy applies to.
    pub enum PolicyType { Ingress, Egress }
}

string_enum! {
    /// An optimisation that a node may use; never changes a verdict.
    pub enum PerformanceHint { AssumeNeededOnEveryNode }
}

/// Rules for endpoints of any namespace, and for hosts.
pub type GlobalNetworkPolicy = TypedObject<GlobalNetworkPolicySpec>;

/// Rules for the endpoints of one namespace.
pub type NetworkPolicy = TypedObject<NetworkPolicySpec>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = super::cel::global_policy()))]
pub struct GlobalNetworkPolicySpec {
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::optional_tier", extend("default" = DEFAULT_TIER))]
    pub tier: String,
    /// Policies with a lower order apply first; policies without an order apply last.
    #[serde(skip_serializing_if = "is_default")]
    pub order: Option<CalicoFloat>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(length(max = 1024))]
    pub ingress: Vec<Rule>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(length(max = 1024))]
    pub egress: Vec<Rule>,
    /// If empty, the policy applies to every endpoint.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::selector")]
    pub selector: String,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(length(min = 1, max = 2), extend("x-kubernetes-list-type" = "set"))]
    pub types: Vec<PolicyType>,
    #[serde(skip_serializing_if = "is_default")]
    pub do_not_track: bool,
    #[serde(rename = "preDNAT", skip_serializing_if = "is_default")]
    pub pre_dnat: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub apply_on_forward: bool,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::selector")]
    pub service_account_selector: String,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::selector")]
    pub namespace_selector: String,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub performance_hints: Vec<PerformanceHint>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = super::cel::policy()))]
pub struct NetworkPolicySpec {
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::optional_tier", extend("default" = DEFAULT_TIER))]
    pub tier: String,
    /// Policies with a lower order apply first; policies without an order apply last.
    #[serde(skip_serializing_if = "is_default")]
    pub order: Option<CalicoFloat>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(length(max = 1024))]
    pub ingress: Vec<Rule>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(length(max = 1024))]
    pub egress: Vec<Rule>,
    /// If empty, the policy applies to every endpoint of the namespace.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::selector")]
    pub selector: String,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(length(min = 1, max = 2), extend("x-kubernetes-list-type" = "set"))]
    pub types: Vec<PolicyType>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::selector")]
    pub service_account_selector: String,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub performance_hints: Vec<PerformanceHint>,
}

impl ResourceSpec for GlobalNetworkPolicySpec {
    const KIND: Kind = Kind::GlobalNetworkPolicy;
    type Status = NoStatus;
    const STATUS: StatusForm = StatusForm::Absent;

    fn set_defaults(object: &mut TypedObject<Self>) {
        set_types(&mut object.spec.types, &object.spec.ingress, &object.spec.egress);
        set_tier(&mut object.spec.tier, &mut object.metadata);
    }

    fn check(object: &TypedObject<Self>, at: &FieldChecker<'_>) {
        object.spec.check(&at.field("spec"));
    }
}

impl ResourceSpec for NetworkPolicySpec {
    const KIND: Kind = Kind::NetworkPolicy;
    type Status = NoStatus;
    const STATUS: StatusForm = StatusForm::Absent;

    fn set_defaults(object: &mut TypedObject<Self>) {
        set_types(&mut object.spec.types, &object.spec.ingress, &object.spec.egress);
        set_tier(&mut object.spec.tier, &mut object.metadata);
    }

    fn check(object: &TypedObject<Self>, at: &FieldChecker<'_>) {
        object.spec.check(&at.field("spec"));
    }
}

impl GlobalNetworkPolicySpec {
    pub(super) fn check(&self, at: &FieldChecker<'_>) {
        check_tier(at, &self.tier);
        at.field("selector").selector(&self.selector);
        at.field("serviceAccountSelector").selector(&self.service_account_selector);
        at.field("namespaceSelector").selector(&self.namespace_selector);
        check_types(at, &self.types);
        check_hints(at, &self.performance_hints);
        check_rules(&at.field("ingress"), &self.ingress, RuleParent::GlobalPolicy, CheckedDirection::Ingress);
        check_rules(&at.field("egress"), &self.egress, RuleParent::GlobalPolicy, CheckedDirection::Egress);
        self.check_flags(at);
    }

    fn check_flags(&self, at: &FieldChecker<'_>) {
        let pre_dnat = at.field("preDNAT");
        if self.pre_dnat {
            pre_dnat.ensure(!self.do_not_track, true, "cannot be combined with doNotTrack");
            pre_dnat.ensure(self.apply_on_forward, true, "needs applyOnForward");
            pre_dnat.ensure(self.egress.is_empty(), true, "cannot be combined with egress rules");
            let egress = self.types.contains(&PolicyType::Egress);
            pre_dnat.ensure(!egress, true, "cannot be combined with type Egress");
        }
        if self.do_not_track {
            at.field("doNotTrack").ensure(self.apply_on_forward, true, "needs applyOnForward");
        }
    }
}

impl NetworkPolicySpec {
    pub(super) fn check(&self, at: &FieldChecker<'_>) {
        check_tier(at, &self.tier);
        at.field("selector").selector(&self.selector);
        at.field("serviceAccountSelector").selector(&self.service_account_selector);
        check_types(at, &self.types);
        check_hints(at, &self.performance_hints);
        check_rules(
            &at.field("ingress"),
            &self.ingress,
            RuleParent::NetworkPolicy,
            CheckedDirection::Ingress,
        );
        check_rules(&at.field("egress"), &self.egress, RuleParent::NetworkPolicy, CheckedDirection::Egress);
    }
}

/// Sets omitted types to the directions that the policy has rules for, or to ingress if it has no rules.
pub(super) fn set_types(types: &mut Vec<PolicyType>, ingress: &[Rule], egress: &[Rule]) {
    if !types.is_empty() {
        return;
    }
    *types = match (ingress, egress) {
        (_, []) => vec![PolicyType::Ingress],
        ([], _) => vec![PolicyType::Egress],
        _ => vec![PolicyType::Ingress, PolicyType::Egress],
    };
}

pub(super) fn set_tier(tier: &mut String, metadata: &mut ObjectMeta) {
    if tier.is_empty() {
        *tier = DEFAULT_TIER.to_owned();
    }
    metadata.labels.insert(TIER_LABEL.to_owned(), tier.clone());
}

fn check_tier(at: &FieldChecker<'_>, tier: &str) {
    if !tier.is_empty()
        && let Err(reason) = names::check_label_form(tier)
    {
        at.field("tier").fail(tier, reason);
    }
}

fn check_types(at: &FieldChecker<'_>, types: &[PolicyType]) {
    let at = at.field("types");
    at.unique(types);
    at.each(types).for_each(|(at, direction)| at.required_one_of(direction));
}

fn check_hints(at: &FieldChecker<'_>, hints: &[PerformanceHint]) {
    let at = at.field("performanceHints");
    at.unique(hints);
    at.each(hints).for_each(|(at, hint)| at.required_one_of(hint));
}
