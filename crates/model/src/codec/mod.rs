//! Converts between bytes and documents: parses YAML and JSON, splits files with several documents, and
//! flattens arrays and lists into single objects.

mod emit;

use crate::{API_VERSION, Kind};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::options::DuplicateKeyPolicy;
use std::fmt;

pub use emit::to_yaml;

/// Maximum size of a document in bytes. Larger documents are rejected.
pub const MAX_DOCUMENT_BYTES: usize = 10 << 20;

/// Maximum nesting depth. No Calico object comes close to it, and parsing it fits into a small stack.
const MAX_DOCUMENT_DEPTH: usize = 40;

/// Reasons why input cannot be parsed into documents.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    #[error("document {document} is larger than 10 MB")]
    TooLarge { document: usize },
    #[error("input is not UTF-8 text: bad byte at offset {offset}")]
    NotText { offset: usize },
    #[error("line {line}, column {column}: {message}")]
    Syntax { line: usize, column: usize, message: String },
    #[error("line {line}: expected an object or a list of objects, found {found}")]
    NotAnObject { line: usize, found: &'static str },
}

/// Returns the objects of a file in order: documents are separated by `---`, and arrays and `<Kind>List`s are
/// flattened into their items.
pub fn documents(bytes: &[u8]) -> Result<Vec<Value>, CodecError> {
    let text = std::str::from_utf8(bytes).map_err(|e| CodecError::NotText { offset: e.valid_up_to() })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut objects = Vec::new();
    for (number, (line, document)) in split(text).into_iter().enumerate() {
        if document.len() > MAX_DOCUMENT_BYTES {
            return Err(CodecError::TooLarge { document: number + 1 });
        }
        flatten(parse(document, line)?, line, &mut objects)?;
    }
    Ok(objects)
}

/// Renders a value as JSON, indented by two spaces, with the fields in their existing order.
pub fn to_json(value: &Value) -> String {
    // Serialising a tree of JSON values cannot fail.
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// Splits the text at lines that begin with `---`. Each part keeps its separator and the number of its first
/// line.
fn split(text: &str) -> Vec<(usize, &str)> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut first_line = 1;
    let mut offset = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if line.starts_with("---") && offset > start {
            parts.push((first_line, &text[start..offset]));
            (start, first_line) = (offset, number + 1);
        }
        offset += line.len();
    }
    parts.push((first_line, &text[start..]));
    parts
}

fn parse(document: &str, first_line: usize) -> Result<Value, CodecError> {
    // Parse JSON with the JSON parser where possible: it is faster and applies JSON's own rules. YAML flow
    // mappings such as `{a: b}` fall through to the YAML parser.
    if document.trim_start().starts_with(['{', '[']) {
        let mut deserializer = serde_json::Deserializer::from_str(document);
        match StrictJsonValue(0)
            .deserialize(&mut deserializer)
            .and_then(|value| deserializer.end().map(|()| value))
        {
            Ok(value) => return Ok(value),
            Err(error) if error.is_data() => {
                return Err(syntax_error(first_line, error.line(), error.column(), &error.to_string()));
            }
            Err(_) => (),
        }
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DOCUMENT_DEPTH,
            flow_nesting_limit: MAX_DOCUMENT_DEPTH,
            max_documents: 1,
            max_total_scalar_bytes: MAX_DOCUMENT_BYTES,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 100_000,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        // Calico's YAML parser reads 010 as octal.
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options::<Value>(document, options).map_err(|error| {
        let error = error.without_snippet();
        let (line, column) = error.location().map_or((1, 1), |at| (at.line() as usize, at.column() as usize));
        syntax_error(first_line, line, column, &error.to_string())
    })
}

/// Returns the error for a position in a document that begins at `first_line` of the file.
fn syntax_error(first_line: usize, line: usize, column: usize, message: &str) -> CodecError {
    CodecError::Syntax { line: line.max(1).saturating_add(first_line - 1), column, message: explain(message) }
}

/// Removes the position from a parser message, because it is relative to the document, and replaces messages
/// about nesting limits with a readable one.
fn explain(message: &str) -> String {
    let message = message.rsplit_once(" at line ").map_or(message, |(message, _)| message);
    // Strip the parser's hint about its own API: it does not help the author of the document.
    let message = message.split_once(", set DuplicateKeyPolicy").map_or(message, |(message, _)| message);
    if message.contains("Depth {") || message.contains("recursion limit") {
        return format!("nested more than {MAX_DOCUMENT_DEPTH} levels deep");
    }
    message.to_owned()
}

fn flatten(value: Value, line: usize, objects: &mut Vec<Value>) -> Result<(), CodecError> {
    let found = match value {
        Value::Object(object) => match list_kind(&object) {
            Some(kind) => return flatten_list(kind, object, line, objects),
            None => {
                objects.push(Value::Object(object));
                return Ok(());
            }
        },
        Value::Array(items) => return items.into_iter().try_for_each(|item| flatten(item, line, objects)),
        // An empty document, such as the one before a leading `---`.
        Value::Null => return Ok(()),
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
    };
    Err(CodecError::NotAnObject { line, found })
}

fn list_kind(object: &Map<String, Value>) -> Option<Kind> {
    if object.get("apiVersion")? != API_VERSION {
        return None;
    }
    object.get("kind")?.as_str()?.strip_suffix("List").and_then(Kind::from_name)
}

/// Flattens the items of a typed list. Items may omit `kind` and `apiVersion`, which the list implies.
fn flatten_list(
    kind: Kind,
    mut list: Map<String, Value>,
    line: usize,
    objects: &mut Vec<Value>,
) -> Result<(), CodecError> {
    let items = match list.remove("items") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Array(items)) => items,
        Some(_) => return Err(CodecError::NotAnObject { line, found: "items that are not a list" }),
    };
    for item in items {
        let Value::Object(mut item) = item else {
            return Err(CodecError::NotAnObject { line, found: "a list item that is not an object" });
        };
        item.entry("kind").or_insert_with(|| kind.name().into());
        item.entry("apiVersion").or_insert_with(|| API_VERSION.into());
        flatten(Value::Object(item), line, objects)?;
    }
    Ok(())
}

/// Deserialises a JSON value at the given depth, rejecting duplicate keys and nesting beyond `MAX_DOCUMENT_DEPTH`.
struct StrictJsonValue(usize);

impl<'de> DeserializeSeed<'de> for StrictJsonValue {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.0 > MAX_DOCUMENT_DEPTH {
            return Err(D::Error::custom("recursion limit"));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StrictJsonValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(StrictJsonValue(self.0 + 1))? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if fields.contains_key(&key) {
                return Err(A::Error::custom(format_args!("duplicate key {key:?}")));
            }
            let value = access.next_value_seed(StrictJsonValue(self.0 + 1))?;
            fields.insert(key, value);
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests;
