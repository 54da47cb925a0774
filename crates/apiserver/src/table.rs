//! Objects as table rows for kubectl, with the columns of Calico's tools.

use crate::resources::ServedKind;
use serde_json::{Value, json};
use tortie_model::columns::{CellSource, columns};

/// Returns the column definitions of a table in the format of Kubernetes.
pub fn build_column_definitions(served: ServedKind) -> Value {
    let mut all = vec![
        json!({"name": "Name", "type": "string", "format": "name", "priority": 0, "description": "Name of the object"}),
    ];
    all.extend(columns(served.kind).iter().map(|column| {
        json!({"name": column.name, "type": "string", "format": "", "priority": i32::from(column.wide),
            "description": column.description})
    }));
    all.push(json!({"name": "Age", "type": "date", "format": "", "priority": 0,
        "description": "When the object was created"}));
    Value::Array(all)
}

/// How much of each object is included in its row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IncludeObject {
    None,
    #[default]
    Metadata,
    Object,
}

/// Returns the row of an object. `now` is in seconds since 1970.
pub fn build_row(served: ServedKind, object: &Value, include: IncludeObject, now: i64) -> Value {
    let mut cells = vec![object.pointer("/metadata/name").cloned().unwrap_or_default()];
    cells.extend(columns(served.kind).iter().map(|column| Value::String(format_cell(column.cell, object))));
    let created = object.pointer("/metadata/creationTimestamp").and_then(Value::as_str);
    cells.push(created.map_or_else(|| "<unknown>".to_owned(), |text| format_age(text, now)).into());
    let mut row = json!({ "cells": cells });
    match include {
        IncludeObject::None => {}
        IncludeObject::Metadata => row["object"] = build_partial_metadata(object),
        IncludeObject::Object => row["object"] = object.clone(),
    }
    row
}

/// Returns the metadata of an object as a PartialObjectMetadata.
pub fn build_partial_metadata(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": object.get("metadata").cloned().unwrap_or_default()})
}

pub fn build_table(definitions: Value, rows: Vec<Value>, metadata: Value) -> Value {
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": definitions,
        "rows": rows})
}

fn format_cell(cell: CellSource, object: &Value) -> String {
    match cell {
        CellSource::At(pointer) => find_first_text(object, &[pointer], ""),
        CellSource::Or(pointer, absent) => find_first_text(object, &[pointer], absent),
        CellSource::Count(pointer) => {
            object.pointer(pointer).and_then(Value::as_array).map_or(0, Vec::len).to_string()
        }
        CellSource::Joined(pointer) => find_value(object, pointer).map(join_values).unwrap_or_default(),
        CellSource::PeerScope => find_first_text(object, &["/spec/node", "/spec/nodeSelector"], "(global)"),
        CellSource::PodSelector => find_value(object, "/spec/podSelector/matchLabels")
            .map_or_else(|| "<none>".to_owned(), join_values),
    }
}

fn find_value<'a>(object: &'a Value, pointer: &str) -> Option<&'a Value> {
    object.pointer(pointer).filter(|value| !value.is_null())
}

/// Returns the first of these fields that is not empty, or else `absent`.
fn find_first_text(object: &Value, pointers: &[&str], absent: &str) -> String {
    let texts = pointers.iter().filter_map(|pointer| find_value(object, pointer)).map(format_scalar);
    texts.into_iter().find(|text| !text.is_empty()).unwrap_or_else(|| absent.to_owned())
}

fn format_scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        // Orders are floats that are nearly always whole numbers.
        Value::Number(number) => match number.as_f64() {
            Some(float) if float.fract() == 0.0 && float.abs() < 1e15 => format!("{float:.0}"),
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}

/// Longer lists are truncated.
const MAX_LIST_CELL_CHARS: usize = 80;

fn join_values(value: &Value) -> String {
    let text = match value {
        Value::Array(items) => items.iter().map(format_scalar).collect::<Vec<_>>().join(","),
        Value::Object(fields) => {
            let mut pairs: Vec<String> =
                fields.iter().map(|(name, value)| format!("{name}={}", format_scalar(value))).collect();
            pairs.sort();
            pairs.join(",")
        }
        other => format_scalar(other),
    };
    if text.chars().count() <= MAX_LIST_CELL_CHARS {
        return text;
    }
    text.chars().take(MAX_LIST_CELL_CHARS - 3).collect::<String>() + "..."
}

/// Returns the age in the format of kubectl.
fn format_age(created: &str, now: i64) -> String {
    let Ok(created) = created.parse::<jiff::Timestamp>() else { return "<invalid>".to_owned() };
    let seconds = now - created.as_second();
    let minutes = seconds / 60;
    let hours = minutes / 60;
    let days = hours / 24;
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => format_units(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => format_units(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => format_units(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => format_units(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

fn format_units(large: i64, large_unit: &str, small: i64, small_unit: &str) -> String {
    match small {
        0 => format!("{large}{large_unit}"),
        small => format!("{large}{large_unit}{small}{small_unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_model::Kind;

    #[test]
    fn policies_show_their_tier_and_wide_tables_more() {
        let served = ServedKind::find(Kind::GlobalNetworkPolicy.plural()).unwrap();
        let object = json!({"metadata": {"name": "web", "creationTimestamp": "2026-03-01T10:00:00Z"},
            "spec": {"tier": "t", "order": 100.0, "selector": "app == 'web'"}});
        let now = "2026-03-01T10:07:05Z".parse::<jiff::Timestamp>().unwrap().as_second();
        let row = build_row(served, &object, IncludeObject::Metadata, now);
        assert_eq!(row["cells"], json!(["web", "t", "100", "app == 'web'", "7m5s"]));
        assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
        let priorities: Vec<i64> = build_column_definitions(served)
            .as_array()
            .unwrap()
            .iter()
            .map(|column| column["priority"].as_i64().unwrap())
            .collect();
        assert_eq!(priorities, [0, 0, 1, 1, 0]);
    }

    #[test]
    fn every_row_has_a_cell_for_every_column() {
        for served in crate::resources::SERVED_RESOURCES {
            let cells = build_row(*served, &json!({"metadata": {"name": "x"}}), IncludeObject::None, 0);
            let count = build_column_definitions(*served).as_array().unwrap().len();
            assert_eq!(cells["cells"].as_array().unwrap().len(), count, "{}", served.kind);
        }
    }

    #[test]
    fn ages_are_said_as_kubectl_says_them() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (10_800, "3h"),
            (11_000, "3h3m"),
            (90_000, "25h"),
            (172_800, "2d"),
            (200_000, "2d7h"),
            (864_000, "10d"),
            (80_000_000, "2y195d"),
        ] {
            assert_eq!(format_age("1970-01-01T00:00:00Z", seconds), text, "{seconds}");
        }
        assert_eq!(format_age("soon", 0), "<invalid>");
    }

    #[test]
    fn long_lists_are_cut() {
        let nets: Vec<String> = (0..40).map(|n| format!("10.0.{n}.0/24")).collect();
        let text = join_values(&json!(nets));
        assert!(text.len() == 80 && text.ends_with("..."), "{text}");
        assert_eq!(join_values(&json!({"b": "2", "a": "1"})), "a=1,b=2");
    }
}
