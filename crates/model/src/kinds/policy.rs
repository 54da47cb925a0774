//! Policies: rules for the endpoints that a selector matches.

use super::cel;
use super::rule::Rule;
use super::rule_check::{RuleParent, check_rules};
use crate::scalar::CalicoFloat;
use crate::schema::forms;
use crate::{FieldChecker, Kind, NoStatus, ObjectMeta, ResourceSpec, TypedObject, names, string_enum};
use serde_json::Value;

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

api_types! {
    #[schemars(extend("x-kubernetes-validations" = cel::global_policy()))]
    pub struct GlobalNetworkPolicySpec {
        #[schemars(schema_with = "forms::optional_tier", extend("default" = DEFAULT_TIER))]
        pub tier: String,
        /// Policies with a lower order apply first; policies without an order apply last.
        pub order: Option<CalicoFloat>,
        #[schemars(length(max = 1024))]
        pub ingress: Vec<Rule>,
        #[schemars(length(max = 1024))]
        pub egress: Vec<Rule>,
        /// If empty, the policy applies to every endpoint.
        #[schemars(schema_with = "forms::selector")]
        pub selector: String,
        #[schemars(length(min = 1, max = 2), extend("x-kubernetes-list-type" = "set"))]
        pub types: Vec<PolicyType>,
        pub do_not_track: bool,
        #[serde(rename = "preDNAT")]
        pub pre_dnat: bool,
        pub apply_on_forward: bool,
        #[schemars(schema_with = "forms::selector")]
        pub service_account_selector: String,
        #[schemars(schema_with = "forms::selector")]
        pub namespace_selector: String,
        #[schemars(extend("x-kubernetes-list-type" = "set"))]
        pub performance_hints: Vec<PerformanceHint>,
    }

    #[schemars(extend("x-kubernetes-validations" = cel::policy()))]
    pub struct NetworkPolicySpec {
        #[schemars(schema_with = "forms::optional_tier", extend("default" = DEFAULT_TIER))]
        pub tier: String,
        /// Policies with a lower order apply first; policies without an order apply last.
        pub order: Option<CalicoFloat>,
        #[schemars(length(max = 1024))]
        pub ingress: Vec<Rule>,
        #[schemars(length(max = 1024))]
        pub egress: Vec<Rule>,
        /// If empty, the policy applies to every endpoint of the namespace.
        #[schemars(schema_with = "forms::selector")]
        pub selector: String,
        #[schemars(length(min = 1, max = 2), extend("x-kubernetes-list-type" = "set"))]
        pub types: Vec<PolicyType>,
        #[schemars(schema_with = "forms::selector")]
        pub service_account_selector: String,
        #[schemars(extend("x-kubernetes-list-type" = "set"))]
        pub performance_hints: Vec<PerformanceHint>,
    }
}

/// The spec of a policy that can be staged.
pub trait PolicySpec: ResourceSpec {
    const STAGED_KIND: Kind;

    /// Returns the CEL rules of staged policies.
    fn staged_rules() -> Value;

    fn tier_mut(&mut self) -> &mut String;

    /// Sets omitted types to the directions that the policy has rules for, or to ingress if it has no rules.
    fn set_types(&mut self);
}

impl PolicySpec for GlobalNetworkPolicySpec {
    const STAGED_KIND: Kind = Kind::StagedGlobalNetworkPolicy;

    fn staged_rules() -> Value {
        cel::staged_global_policy()
    }

    fn tier_mut(&mut self) -> &mut String {
        &mut self.tier
    }

    fn set_types(&mut self) {
        set_types(&mut self.types, &self.ingress, &self.egress);
    }
}

impl PolicySpec for NetworkPolicySpec {
    const STAGED_KIND: Kind = Kind::StagedNetworkPolicy;

    fn staged_rules() -> Value {
        cel::staged_policy()
    }

    fn tier_mut(&mut self) -> &mut String {
        &mut self.tier
    }

    fn set_types(&mut self) {
        set_types(&mut self.types, &self.ingress, &self.egress);
    }
}

impl ResourceSpec for GlobalNetworkPolicySpec {
    const KIND: Kind = Kind::GlobalNetworkPolicy;
    type Status = NoStatus;

    fn set_defaults(object: &mut TypedObject<Self>) {
        object.spec.set_types();
        set_tier(&mut object.spec.tier, &mut object.metadata);
    }

    fn check_spec(&self, at: &FieldChecker<'_>) {
        check_tier(at, &self.tier);
        at.field("selector").selector(&self.selector);
        at.field("serviceAccountSelector").selector(&self.service_account_selector);
        at.field("namespaceSelector").selector(&self.namespace_selector);
        check_types(at, &self.types);
        check_hints(at, &self.performance_hints);
        check_rules(at, &self.ingress, &self.egress, RuleParent::GlobalPolicy);
        self.check_flags(at);
    }
}

impl ResourceSpec for NetworkPolicySpec {
    const KIND: Kind = Kind::NetworkPolicy;
    type Status = NoStatus;

    fn set_defaults(object: &mut TypedObject<Self>) {
        object.spec.set_types();
        set_tier(&mut object.spec.tier, &mut object.metadata);
    }

    fn check_spec(&self, at: &FieldChecker<'_>) {
        check_tier(at, &self.tier);
        at.field("selector").selector(&self.selector);
        at.field("serviceAccountSelector").selector(&self.service_account_selector);
        check_types(at, &self.types);
        check_hints(at, &self.performance_hints);
        check_rules(at, &self.ingress, &self.egress, RuleParent::NetworkPolicy);
    }
}

impl GlobalNetworkPolicySpec {
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

fn set_types(types: &mut Vec<PolicyType>, ingress: &[Rule], egress: &[Rule]) {
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
    if !tier.is_empty() {
        at.field("tier").report(tier, names::check_label_form(tier));
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
