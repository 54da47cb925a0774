//! Staged policies: they are evaluated to preview their effect, but not enforced.

use super::policy::{
    GlobalNetworkPolicySpec, NetworkPolicySpec, PerformanceHint, PolicyType, set_tier, set_types,
};
use super::rule::Rule;
use crate::scalar::{CalicoFloat, StringEnum, is_default};
use crate::schema::forms;
use crate::{FieldChecker, Kind, NoStatus, ResourceSpec, StatusForm, TypedObject, string_enum};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

string_enum! {
    /// The action on the policy of the same name when the staged policy is enforced.
    pub enum StagedAction { Set, Delete, Learn, Ignore }
}

pub type StagedGlobalNetworkPolicy = TypedObject<StagedGlobalNetworkPolicySpec>;

pub type StagedNetworkPolicy = TypedObject<StagedNetworkPolicySpec>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = super::cel::staged_global_policy()))]
pub struct StagedGlobalNetworkPolicySpec {
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = "Set"))]
    pub staged_action: StagedAction,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::optional_tier", extend("default" = "default"))]
    pub tier: String,
    #[serde(skip_serializing_if = "is_default")]
    pub order: Option<CalicoFloat>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(length(max = 1024))]
    pub ingress: Vec<Rule>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(length(max = 1024))]
    pub egress: Vec<Rule>,
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
#[schemars(extend("x-kubernetes-validations" = super::cel::staged_policy()))]
pub struct StagedNetworkPolicySpec {
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = "Set"))]
    pub staged_action: StagedAction,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::optional_tier", extend("default" = "default"))]
    pub tier: String,
    #[serde(skip_serializing_if = "is_default")]
    pub order: Option<CalicoFloat>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(length(max = 1024))]
    pub ingress: Vec<Rule>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(length(max = 1024))]
    pub egress: Vec<Rule>,
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

impl From<StagedGlobalNetworkPolicySpec> for GlobalNetworkPolicySpec {
    /// Converts to the policy as it would be enforced.
    fn from(staged: StagedGlobalNetworkPolicySpec) -> Self {
        GlobalNetworkPolicySpec {
            tier: staged.tier,
            order: staged.order,
            ingress: staged.ingress,
            egress: staged.egress,
            selector: staged.selector,
            types: staged.types,
            do_not_track: staged.do_not_track,
            pre_dnat: staged.pre_dnat,
            apply_on_forward: staged.apply_on_forward,
            service_account_selector: staged.service_account_selector,
            namespace_selector: staged.namespace_selector,
            performance_hints: staged.performance_hints,
        }
    }
}

impl From<StagedNetworkPolicySpec> for NetworkPolicySpec {
    /// Converts to the policy as it would be enforced.
    fn from(staged: StagedNetworkPolicySpec) -> Self {
        NetworkPolicySpec {
            tier: staged.tier,
            order: staged.order,
            ingress: staged.ingress,
            egress: staged.egress,
            selector: staged.selector,
            types: staged.types,
            service_account_selector: staged.service_account_selector,
            performance_hints: staged.performance_hints,
        }
    }
}

impl ResourceSpec for StagedGlobalNetworkPolicySpec {
    const KIND: Kind = Kind::StagedGlobalNetworkPolicy;
    type Status = NoStatus;
    const STATUS: StatusForm = StatusForm::Absent;

    fn set_defaults(object: &mut TypedObject<Self>) {
        let spec = &mut object.spec;
        if set_action(&mut spec.staged_action) != StagedAction::Delete {
            set_types(&mut spec.types, &spec.ingress, &spec.egress);
        }
        set_tier(&mut spec.tier, &mut object.metadata);
    }

    fn check(object: &TypedObject<Self>, at: &FieldChecker<'_>) {
        let at = at.field("spec");
        at.field("stagedAction").one_of(&object.spec.staged_action);
        if object.spec.staged_action == StagedAction::Delete {
            check_nothing_else(&at, &object.spec, &["stagedAction", "tier"]);
        }
        GlobalNetworkPolicySpec::from(object.spec.clone()).check(&at);
    }
}

impl ResourceSpec for StagedNetworkPolicySpec {
    const KIND: Kind = Kind::StagedNetworkPolicy;
    type Status = NoStatus;
    const STATUS: StatusForm = StatusForm::Absent;

    fn set_defaults(object: &mut TypedObject<Self>) {
        let spec = &mut object.spec;
        if set_action(&mut spec.staged_action) != StagedAction::Delete {
            set_types(&mut spec.types, &spec.ingress, &spec.egress);
        }
        set_tier(&mut spec.tier, &mut object.metadata);
    }

    fn check(object: &TypedObject<Self>, at: &FieldChecker<'_>) {
        let at = at.field("spec");
        at.field("stagedAction").one_of(&object.spec.staged_action);
        if object.spec.staged_action == StagedAction::Delete {
            check_nothing_else(&at, &object.spec, &["stagedAction", "tier"]);
        }
        NetworkPolicySpec::from(object.spec.clone()).check(&at);
    }
}

/// Sets the default action and returns the effective one.
pub(super) fn set_action(action: &mut StagedAction) -> StagedAction {
    if action.is_unset() {
        *action = StagedAction::Set;
    }
    action.clone()
}

/// Reports every field of `spec` that is serialised and not listed in `allowed`.
pub(super) fn check_nothing_else(at: &FieldChecker<'_>, spec: &impl Serialize, allowed: &[&str]) {
    let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(spec) else { return };
    for (key, value) in fields.iter().filter(|(key, _)| !allowed.contains(&key.as_str())) {
        at.field(key).fail(value, "must be empty when stagedAction is Delete");
    }
}
