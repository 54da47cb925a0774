//! Profiles: rules and labels that endpoints refer to by name.

use super::rule::Rule;
use super::rule_check::{Direction, Owner, check_rules};
use crate::meta::check_labels;
use crate::scalar::is_default;
use crate::{Checker, Kind, NoStatus, Object, Spec, StatusForm};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub type Profile = Object<ProfileSpec>;

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

impl Spec for ProfileSpec {
    const KIND: Kind = Kind::Profile;
    type Status = NoStatus;
    const STATUS: StatusForm = StatusForm::Absent;

    fn check(object: &Object<Self>, at: &Checker<'_>) {
        let (spec, at) = (&object.spec, at.field("spec"));
        check_rules(&at.field("ingress"), &spec.ingress, Owner::Profile, Direction::Ingress);
        check_rules(&at.field("egress"), &spec.egress, Owner::Profile, Direction::Egress);
        check_labels(&at.field("labelsToApply"), &spec.labels_to_apply);
    }
}
