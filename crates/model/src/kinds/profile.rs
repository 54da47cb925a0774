//! Profiles: rules and labels that endpoints refer to by name.

use super::rule::Rule;
use super::rule_check::{RuleParent, check_rules};
use crate::meta::check_labels;
use crate::{FieldChecker, Kind, NoStatus, ResourceSpec, TypedObject};
use std::collections::BTreeMap;

pub type Profile = TypedObject<ProfileSpec>;

api_types! {
    pub struct ProfileSpec {
        #[schemars(length(max = 1024))]
        pub ingress: Vec<Rule>,
        #[schemars(length(max = 1024))]
        pub egress: Vec<Rule>,
        /// Labels that endpoints with this profile inherit unless they set them themselves.
        pub labels_to_apply: BTreeMap<String, String>,
    }
}

impl ResourceSpec for ProfileSpec {
    const KIND: Kind = Kind::Profile;
    type Status = NoStatus;

    fn check_spec(&self, at: &FieldChecker<'_>) {
        check_rules(at, &self.ingress, &self.egress, RuleParent::Profile);
        check_labels(&at.field("labelsToApply"), &self.labels_to_apply);
    }
}
