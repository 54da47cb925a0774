//! Staged policies: they are evaluated to preview their effect, but not enforced.

use super::policy::{GlobalNetworkPolicySpec, NetworkPolicySpec, PolicySpec, set_tier};
use crate::scalar::{StringEnum, is_default};
use crate::{FieldChecker, Kind, NoStatus, ResourceSpec, TypedObject, string_enum};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

string_enum! {
    /// The action on the policy of the same name when the staged policy is enforced.
    pub enum StagedAction { Set, Delete, Learn, Ignore }
}

pub type StagedGlobalNetworkPolicy = TypedObject<StagedGlobalNetworkPolicySpec>;

pub type StagedNetworkPolicy = TypedObject<StagedNetworkPolicySpec>;

pub type StagedGlobalNetworkPolicySpec = Staged<GlobalNetworkPolicySpec>;

pub type StagedNetworkPolicySpec = Staged<NetworkPolicySpec>;

/// An action and the policy as it would be enforced. In JSON the fields of both are on one level.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Staged<S> {
    #[serde(skip_serializing_if = "is_default")]
    pub staged_action: StagedAction,
    #[serde(flatten)]
    pub policy: S,
}

impl<S> Deref for Staged<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.policy
    }
}

impl<S> DerefMut for Staged<S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.policy
    }
}

/// Not derived: `flatten` would buffer the fields, and then unknown ones and the paths of errors are lost.
impl<'de, S: Deserialize<'de>> Deserialize<'de> for Staged<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(StagedVisitor(PhantomData))
    }
}

struct StagedVisitor<S>(PhantomData<S>);

impl<'de, S: Deserialize<'de>> Visitor<'de> for StagedVisitor<S> {
    type Value = Staged<S>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the spec of a staged policy")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Staged<S>, A::Error> {
        let mut staged_action = StagedAction::default();
        let fields = PolicyFields { fields, staged_action: &mut staged_action };
        let policy = S::deserialize(MapAccessDeserializer::new(fields))?;
        Ok(Staged { staged_action, policy })
    }
}

/// The fields of a staged policy without its action, which is set aside.
struct PolicyFields<'a, A> {
    fields: A,
    staged_action: &'a mut StagedAction,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for PolicyFields<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while let Some(key) = self.fields.next_key::<String>()? {
            if key != "stagedAction" {
                return seed.deserialize(key.into_deserializer()).map(Some);
            }
            *self.staged_action = self.fields.next_value()?;
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.fields.next_value_seed(seed)
    }
}

impl<S: PolicySpec> JsonSchema for Staged<S> {
    fn schema_name() -> Cow<'static, str> {
        format!("Staged{}", S::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut action = generator.subschema_for::<StagedAction>();
        action.insert("default".to_owned(), json!("Set"));
        let mut properties = Map::from_iter([("stagedAction".to_owned(), action.to_value())]);
        let mut schema = S::json_schema(generator);
        if let Some(Value::Object(of_policy)) = schema.remove("properties") {
            properties.extend(of_policy);
        }
        // The descriptions are about enforced policies.
        properties.values_mut().filter_map(Value::as_object_mut).for_each(|property| {
            property.remove("description");
        });
        schema.insert("properties".to_owned(), Value::Object(properties));
        schema.insert("x-kubernetes-validations".to_owned(), S::staged_rules());
        schema
    }
}

impl<S: PolicySpec> ResourceSpec for Staged<S> {
    const KIND: Kind = S::STAGED_KIND;
    type Status = NoStatus;

    fn set_defaults(object: &mut TypedObject<Self>) {
        let spec = &mut object.spec;
        if set_action(&mut spec.staged_action) != StagedAction::Delete {
            spec.policy.set_types();
        }
        set_tier(spec.policy.tier_mut(), &mut object.metadata);
    }

    fn check_spec(&self, at: &FieldChecker<'_>) {
        at.field("stagedAction").one_of(&self.staged_action);
        if self.staged_action == StagedAction::Delete {
            check_nothing_else(at, self, &["stagedAction", "tier"]);
        }
        self.policy.check_spec(at);
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
    let Ok(Value::Object(fields)) = serde_json::to_value(spec) else { return };
    for (key, value) in fields.iter().filter(|(key, _)| !allowed.contains(&key.as_str())) {
        at.field(key).fail(value, "must be empty when stagedAction is Delete");
    }
}
