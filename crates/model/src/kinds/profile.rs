//! Profiles: rules and labels that endpoints refer to by name.

use super::rule::Rule;
use super::rule_check::{CheckedDirection, RuleParent, check_rules};
use crate::meta::check_labels;
use crate::scalar::is_default;
use crate::{FieldChecker, Kind, NoStatus, ResourceSpec, StatusForm, TypedObject};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub type Profile = TypedObject<ProfileSpec>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ProfileSpec {
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(length(max = 1024))]
    pub ingress: Vec<Rule>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(length(max = 1024))]
    pub egress: Vec<Rule>,
    /// Labels that endpoints with this profile inherit unless they set them themselves.
    #[serde(skip_serializing_if = "is_default")]
    pub labels_to_apply: BTreeMap<String, String>,
}

impl ResourceSpec for ProfileSpec {
    const KIND: Kind = Kind::Profile;
    type Status = NoStatus;
    const STATUS: StatusForm = StatusForm::Absent;

    fn check(object: &TypedObject<Self>, at: &FieldChecker<'_>) {
        let (spec, at) = (&object.spec, at.field("spec"));
        check_rules(&at.field("ingress"), &spec.ingress, RuleParent::Profile, CheckedDirection::Ingress);
        check_rules(&at.field("egress"), &spec.egress, RuleParent::Profile, CheckedDirection::Egress);
        check_labels(&at.field("labelsToApply"), &spec.labels_to_apply);
    }
}
