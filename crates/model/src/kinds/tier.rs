//! Tiers: groups of policies that are evaluated in order.

use super::{Condition, cel};
use crate::scalar::{CalicoFloat, StringEnum};
use crate::{FieldChecker, Kind, ResourceSpec, StatusForm, TypedObject, string_enum};

string_enum! {
    /// The action for a packet to which policies of the tier apply but which none of their rules matches.
    pub enum TierAction { Deny, Pass }
}

pub type Tier = TypedObject<TierSpec>;

api_types! {
    pub struct TierSpec {
        /// Tiers with a lower order are evaluated first.
        pub order: Option<CalicoFloat>,
        #[schemars(extend("default" = "Deny"))]
        pub default_action: TierAction,
    }

    pub struct TierStatus {
        pub conditions: Vec<Condition>,
    }
}

/// A tier that always exists, with a fixed order and default action.
#[derive(Clone, Debug, PartialEq)]
pub struct BuiltInTier {
    pub name: &'static str,
    pub order: f64,
    pub default_action: TierAction,
}

const DEFAULT_TIER_ORDER: f64 = 1_000_000.0;

pub const BUILT_IN_TIERS: [BuiltInTier; 3] = [
    BuiltInTier { name: "kube-admin", order: 1000.0, default_action: TierAction::Pass },
    BuiltInTier { name: "default", order: DEFAULT_TIER_ORDER, default_action: TierAction::Deny },
    BuiltInTier { name: "kube-baseline", order: 10_000_000.0, default_action: TierAction::Pass },
];

impl ResourceSpec for TierSpec {
    const KIND: Kind = Kind::Tier;
    type Status = TierStatus;
    const STATUS: StatusForm = StatusForm::Always;

    fn set_defaults(object: &mut TypedObject<Self>) {
        let built_in = BUILT_IN_TIERS.into_iter().find(|tier| tier.name == object.metadata.name);
        let tier = built_in.unwrap_or(BuiltInTier {
            name: "",
            order: DEFAULT_TIER_ORDER,
            default_action: TierAction::Deny,
        });
        object.spec.order.get_or_insert(CalicoFloat(tier.order));
        if object.spec.default_action == TierAction::default() {
            object.spec.default_action = tier.default_action;
        }
    }

    fn object_rules() -> Vec<serde_json::Value> {
        BUILT_IN_TIERS
            .iter()
            .map(|tier| cel::tier(tier.name, tier.order, tier.default_action.as_str()))
            .collect()
    }

    fn check(object: &TypedObject<Self>, at: &FieldChecker<'_>) {
        let spec = &object.spec;
        let at = at.field("spec");
        at.field("defaultAction").one_of(&spec.default_action);
        let Some(tier) = BUILT_IN_TIERS.into_iter().find(|tier| tier.name == object.metadata.name) else {
            return;
        };
        at.field("order").ensure(
            spec.order == Some(CalicoFloat(tier.order)),
            spec.order.map_or_else(String::new, |order| order.to_string()),
            format!("must be {} for tier {}", tier.order, tier.name),
        );
        at.field("defaultAction").ensure(
            spec.default_action == tier.default_action,
            &spec.default_action,
            format!("must be {} for tier {}", tier.default_action, tier.name),
        );
    }
}
