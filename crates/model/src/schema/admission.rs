//! What an API server would say to an object, by its schema alone: enough of it to hold our schemas against our rules.

use cel::extractors::This;
use serde_json::Value;
use std::sync::Arc;

/// Everything in `value` that `schema` forbids.
pub(crate) fn refusals(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    visit("", schema, value, &mut found);
    found
}

fn visit(path: &str, schema: &Value, value: &Value, found: &mut Vec<String>) {
    let mut refuse = |reason: String| found.push(format!("{path}: {reason}"));
    let fits = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        _ if schema["x-kubernetes-int-or-string"] == true => {
            value.is_i64() || value.is_u64() || value.is_string()
        }
        _ => true,
    };
    if !fits {
        refuse(format!("{value} is not of type {}", schema["type"]));
    }
    if let Some(names) = schema["enum"].as_array().filter(|names| !names.contains(value)) {
        refuse(format!("{value} is not in {names:?}"));
    }
    let size = match value {
        Value::Array(items) => Some(("minItems", "maxItems", items.len() as f64)),
        Value::String(text) => Some(("minLength", "maxLength", text.chars().count() as f64)),
        Value::Number(number) => number.as_f64().map(|number| ("minimum", "maximum", number)),
        _ => None,
    };
    if let Some((min, max, size)) = size
        && (schema[min].as_f64().is_some_and(|min| size < min)
            || schema[max].as_f64().is_some_and(|max| size > max))
    {
        refuse(format!("{size} is out of {}..{}", schema[min], schema[max]));
    }
    for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if value.get(required).is_none() {
            refuse(format!("{required} is missing"));
        }
    }
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let expression = rule["rule"].as_str().unwrap_or_default();
        match holds(expression, value) {
            Ok(true) => (),
            Ok(false) => refuse(rule["message"].to_string()),
            Err(error) => refuse(format!("{expression}: {error}")),
        }
    }
    match value {
        Value::Object(fields) => {
            for (key, field) in fields {
                let inner = schema["properties"].get(key).or_else(|| schema.get("additionalProperties"));
                if let Some(inner) = inner {
                    visit(&format!("{path}.{key}"), inner, field, found);
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                visit(&format!("{path}[{index}]"), &schema["items"], item, found);
            }
        }
        _ => (),
    }
}

fn holds(expression: &str, value: &Value) -> Result<bool, String> {
    // Kubernetes writes fields named like keywords this way.
    let expression = expression.replace("__namespace__", "namespace");
    let program = cel::Program::compile(&expression).map_err(|error| error.to_string())?;
    let mut context = cel::Context::default();
    context.add_variable_from_value("self", variable(value));
    context.add_function("matches", matches).map_err(|error| error.to_string())?;
    match program.execute(&context) {
        Ok(cel::Value::Bool(holds)) => Ok(holds),
        other => Err(format!("{other:?}")),
    }
}

/// As Kubernetes has it, whose expressions are much the same.
fn matches(This(text): This<Arc<String>>, pattern: Arc<String>) -> bool {
    regex::Regex::new(&pattern).is_ok_and(|pattern| pattern.is_match(&text))
}

fn variable(value: &Value) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(flag) => (*flag).into(),
        Value::Number(number) => match number.as_i64() {
            Some(number) => number.into(),
            None => number.as_f64().unwrap_or_default().into(),
        },
        Value::String(text) => text.as_str().into(),
        Value::Array(items) => items.iter().map(variable).collect::<Vec<_>>().into(),
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| (key.clone(), variable(value)))
            .collect::<std::collections::HashMap<String, cel::Value>>()
            .into(),
    }
}
