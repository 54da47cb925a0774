//! Generates docs/reference/resources.md: every kind and every field, from the schemas of the types.

use serde_json::Value;
use std::fmt::Write;
use tortie_model::{Kind, Scope, schema};

const PAGE_HEADER: &str = "# Resources

<!-- Made from the code by `make docs-reference`. Do not edit. -->

Every kind of `projectcalico.org/v3`, with every field of its `spec` and `status`. `[]` stands for each entry of a list, `{}` for each
value of a map. `examples/` has an object of each kind, `calicoctl validate -f FILE` checks one, and `tortie crds --json-schema KIND`
prints the schema for programs.

Objects have the four parts of every Kubernetes object:

```yaml
apiVersion: projectcalico.org/v3
kind: IPPool
metadata:
  name: pods
  labels: {}
spec:
  cidr: 10.48.0.0/16
```

";

#[test]
fn the_page_of_resources_is_current() {
    let mut page = PAGE_HEADER.to_owned();
    for kind in Kind::ALL {
        let _ = writeln!(page, "- [{kind}](#{})", kind.name().to_lowercase());
    }
    for kind in Kind::ALL.iter().copied() {
        describe(kind, &mut page);
    }
    super::is_fresh("resources.md", &page);
    for row in [
        "| `spec.cidr` | string, required |",
        "| `spec.ingress[].destination.ports[]` |",
        "## FelixConfiguration\n",
    ] {
        assert!(page.contains(row), "{row} is not there");
    }
}

fn describe(kind: Kind, page: &mut String) {
    let scope = match kind.scope() {
        Scope::Cluster => "It belongs to the whole cluster.",
        Scope::Namespaced => "It belongs to a namespace.",
    };
    let words: Vec<String> = std::iter::once(kind.plural())
        .chain(kind.aliases().iter().copied())
        .map(|word| format!("`{word}`"))
        .collect();
    let _ = write!(
        page,
        "\n## {kind}\n\n{scope} `calicoctl` knows it as {}.\n\n| field | type | default | meaning |\n| --- | --- | --- | --- |\n",
        words.join(", ")
    );
    let schema = schema::json_schema(kind);
    for part in ["spec", "status"] {
        if let Some(schema) = schema.pointer(&format!("/properties/{part}")) {
            render_fields(schema, part, page);
        }
    }
}

/// Writes a row for each field below this one.
fn render_fields(schema: &Value, path: &str, page: &mut String) {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        render_row(field, &format!("{path}.{name}"), required.contains(&name.as_str()), page);
    }
}

fn render_row(schema: &Value, path: &str, required: bool, page: &mut String) {
    let default = match &schema["default"] {
        Value::Null => String::new(),
        Value::String(text) => format!("`{text}`"),
        other => format!("`{other}`"),
    };
    let meaning = schema["description"].as_str().unwrap_or_default();
    let meaning =
        meaning.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|").replace('<', "&lt;");
    let must = if required { ", required" } else { "" };
    let _ = writeln!(page, "| `{path}` | {}{must} | {default} | {meaning} |", describe_type(schema));
    if schema["items"].is_object() {
        render_nested(&schema["items"], &format!("{path}[]"), page);
    }
    if schema["additionalProperties"].is_object() {
        render_nested(&schema["additionalProperties"], &format!("{path}{{}}"), page);
    }
    render_fields(schema, path, page);
}

/// Writes the entries of a list or a map, unless they are plain strings.
fn render_nested(schema: &Value, path: &str, page: &mut String) {
    if schema["properties"].is_object() {
        return render_fields(schema, path, page);
    }
    let details = ["properties", "items", "enum", "minimum", "maximum"];
    if schema["type"] != "string" || details.iter().any(|keyword| !schema[keyword].is_null()) {
        render_row(schema, path, false, page);
    }
}

/// Describes the type of a value.
fn describe_type(schema: &Value) -> String {
    if let Some(values) = schema["enum"].as_array() {
        let words: Vec<String> = values
            .iter()
            .filter_map(Value::as_str)
            .filter(|word| !word.is_empty())
            .map(|word| format!("`{word}`"))
            .collect();
        return words.join(", ");
    }
    let mut text = match schema["type"].as_str() {
        Some("array") => match schema.pointer("/items/type").and_then(Value::as_str) {
            Some(item) => format!("list of {item}s"),
            None => "list".to_owned(),
        },
        Some("object") if schema["additionalProperties"].is_object() => "map".to_owned(),
        Some(name) => name.to_owned(),
        None if schema["x-kubernetes-int-or-string"] == true => "integer or string".to_owned(),
        None => "any".to_owned(),
    };
    match (schema["minimum"].as_f64(), schema["maximum"].as_f64()) {
        (Some(least), Some(most)) => text += &format!(", {least} to {most}"),
        (Some(least), None) => text += &format!(", at least {least}"),
        (None, Some(most)) => text += &format!(", at most {most}"),
        (None, None) => {}
    }
    text
}
