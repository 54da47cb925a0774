//! Deserialises JSON trees into types with the tolerance of Calico's Go code: `null` is the zero value of any
//! type, and a number or a boolean is accepted as text where a string is expected (YAML parses `version: 1`
//! as a number).

use super::DecodeError;
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{Deserialize, Deserializer, IntoDeserializer, Visitor};
use serde_json::{Error, Value};

/// One step of a path from a value to a nested value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FieldPathStep {
    Key(String),
    Index(usize),
}

/// Decodes a value and returns the paths of the fields that the type does not have.
pub(super) fn decode<'de, T: Deserialize<'de>>(
    value: &'de Value,
) -> Result<(T, Vec<Vec<FieldPathStep>>), DecodeError> {
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(TolerantDeserializer(value), &mut track);
    let decoded = serde_ignored::deserialize(tracked, |path| unknown.push(steps(&path)));
    decoded
        .map(|decoded| (decoded, unknown))
        .map_err(|error| DecodeError::Field { path: track.path().to_string(), reason: error.to_string() })
}

fn steps(path: &serde_ignored::Path<'_>) -> Vec<FieldPathStep> {
    use serde_ignored::Path;
    let (parent, step) = match path {
        Path::Root => return Vec::new(),
        Path::Seq { parent, index } => (parent, Some(FieldPathStep::Index(*index))),
        Path::Map { parent, key } => (parent, Some(FieldPathStep::Key(key.clone()))),
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
            (parent, None)
        }
    };
    let mut steps = steps(parent);
    steps.extend(step);
    steps
}

/// Formats a path: `spec.ingress[0].sauce`.
pub(super) fn print(steps: &[FieldPathStep]) -> String {
    let mut text = String::new();
    for step in steps {
        match step {
            FieldPathStep::Key(key) if text.is_empty() => text.push_str(key),
            FieldPathStep::Key(key) => text.extend([".", key]),
            FieldPathStep::Index(index) => text.push_str(&format!("[{index}]")),
        }
    }
    text
}

#[derive(Clone, Copy)]
struct TolerantDeserializer<'de>(&'de Value);

impl<'de> IntoDeserializer<'de, Error> for TolerantDeserializer<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> TolerantDeserializer<'de> {
    fn items<V: Visitor<'de>>(items: &'de [Value], visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(SeqDeserializer::new(items.iter().map(TolerantDeserializer)))
    }

    fn fields<V: Visitor<'de>>(
        fields: impl Iterator<Item = (&'de String, &'de Value)>,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_map(MapDeserializer::new(
            fields.map(|(key, value)| (key.as_str(), TolerantDeserializer(value))),
        ))
    }

    fn text<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_str(""),
            Value::Bool(_) | Value::Number(_) => visitor.visit_string(self.0.to_string()),
            value => value.deserialize_str(visitor),
        }
    }

    /// Decodes an integer, also when it is written as `5.0`.
    fn integer<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_u64(0),
            value => match value.as_f64().map(|n| (n, n as i64)) {
                Some((n, whole)) if value.is_f64() && whole as f64 == n => visitor.visit_i64(whole),
                _ => value.deserialize_i64(visitor),
            },
        }
    }
}

macro_rules! delegate {
    ($($method:ident($($arg:ident: $type:ty),*) => |$self:ident, $visitor:ident| $body:expr;)*) => {$(
        fn $method<V: Visitor<'de>>($self, $($arg: $type,)* $visitor: V) -> Result<V::Value, Error> {
            $body
        }
    )*};
}

impl<'de> Deserializer<'de> for TolerantDeserializer<'de> {
    type Error = Error;

    delegate! {
        deserialize_any() => |self, visitor| match self.0 {
            Value::Array(items) => Self::items(items, visitor),
            Value::Object(fields) => Self::fields(fields.iter(), visitor),
            value => value.deserialize_any(visitor),
        };
        deserialize_option() => |self, visitor| match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        };
        deserialize_bool() => |self, visitor| match self.0 {
            Value::Null => visitor.visit_bool(false),
            value => value.deserialize_bool(visitor),
        };
        deserialize_i8() => |self, visitor| self.integer(visitor);
        deserialize_i16() => |self, visitor| self.integer(visitor);
        deserialize_i32() => |self, visitor| self.integer(visitor);
        deserialize_i64() => |self, visitor| self.integer(visitor);
        deserialize_u8() => |self, visitor| self.integer(visitor);
        deserialize_u16() => |self, visitor| self.integer(visitor);
        deserialize_u32() => |self, visitor| self.integer(visitor);
        deserialize_u64() => |self, visitor| self.integer(visitor);
        deserialize_f32() => |self, visitor| self.deserialize_f64(visitor);
        deserialize_f64() => |self, visitor| match self.0 {
            Value::Null => visitor.visit_f64(0.0),
            value => value.deserialize_f64(visitor),
        };
        deserialize_char() => |self, visitor| self.text(visitor);
        deserialize_str() => |self, visitor| self.text(visitor);
        deserialize_string() => |self, visitor| self.text(visitor);
        deserialize_bytes() => |self, visitor| self.0.deserialize_bytes(visitor);
        deserialize_byte_buf() => |self, visitor| self.0.deserialize_byte_buf(visitor);
        deserialize_unit() => |self, visitor| self.0.deserialize_unit(visitor);
        deserialize_unit_struct(name: &'static str) => |self, visitor| self.0.deserialize_unit_struct(name, visitor);
        deserialize_newtype_struct(_name: &'static str) => |self, visitor| visitor.visit_newtype_struct(self);
        deserialize_seq() => |self, visitor| match self.0 {
            Value::Null => Self::items(&[], visitor),
            Value::Array(items) => Self::items(items, visitor),
            value => value.deserialize_seq(visitor),
        };
        deserialize_tuple(_len: usize) => |self, visitor| self.deserialize_seq(visitor);
        deserialize_tuple_struct(_name: &'static str, _len: usize) => |self, visitor| self.deserialize_seq(visitor);
        deserialize_map() => |self, visitor| match self.0 {
            Value::Null => Self::fields(std::iter::empty(), visitor),
            Value::Object(fields) => Self::fields(fields.iter(), visitor),
            value => value.deserialize_map(visitor),
        };
        deserialize_struct(_name: &'static str, _fields: &'static [&'static str]) => |self, visitor| {
            self.deserialize_map(visitor)
        };
        deserialize_enum(name: &'static str, variants: &'static [&'static str]) => |self, visitor| {
            self.0.deserialize_enum(name, variants, visitor)
        };
        deserialize_identifier() => |self, visitor| self.text(visitor);
        deserialize_ignored_any() => |self, visitor| visitor.visit_unit();
    }
}
