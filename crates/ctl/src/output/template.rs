//! Go templates over the results. Templates for calicoctl use the Go names of fields (`.Spec.CIDR`), so every
//! field is available under its Go name and its JSON name.

use super::columns::{CellFacts, join, join_and_truncate};
use super::{GetResult, OutputError, go};
use gotmpl::{Template, TemplateError, Value as Arg};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

pub fn render(text: &str, found: &[GetResult], facts: &CellFacts) -> Result<String, OutputError> {
    check_balanced(text)?;
    let results = Arg::List(found.iter().map(|f| object(&f.to_value())).collect());
    let as_number = facts.global_as_number;
    let template = Template::new("get")
        .func("join", |args| match args {
            [items, separator] => Ok(text_arg(join(&json(items), &separator.to_string()))),
            _ => Err(usage("join ITEMS SEPARATOR")),
        })
        .func("joinAndTruncate", |args| match args {
            [items, separator, max] => {
                let max = max.as_int().and_then(|n| usize::try_from(n).ok());
                let max = max.ok_or_else(|| usage("joinAndTruncate ITEMS SEPARATOR MAX"))?;
                Ok(text_arg(join_and_truncate(&json(items), &separator.to_string(), max)))
            }
            _ => Err(usage("joinAndTruncate ITEMS SEPARATOR MAX")),
        })
        .func("config", move |args| match args {
            [name] if name.to_string().eq_ignore_ascii_case("asnumber") => {
                Ok(text_arg(as_number.to_string()))
            }
            _ => Err(usage("config \"asnumber\"")),
        })
        .parse(text)?;
    Ok(template.execute_to_string(&results)?)
}

/// Checks that every block is closed and that no `end` is unmatched. The template library accepts unbalanced
/// templates silently or drops their remainder.
fn check_balanced(text: &str) -> Result<(), OutputError> {
    let mut open = 0usize;
    let mut rest = text;
    while let Some((_, action)) = rest.split_once("{{") {
        let (body, tail) = split_action(action);
        rest = tail;
        match body.trim_start_matches('-').split_whitespace().next() {
            Some("if" | "range" | "with" | "define" | "block") => open += 1,
            Some("end") => open = open.checked_sub(1).ok_or(OutputError::UnexpectedEnd)?,
            _ => {}
        }
    }
    if open == 0 { Ok(()) } else { Err(OutputError::MissingEnd(open)) }
}

/// Splits at the end of an action (`}}` outside of quotes and comments); returns the action and the remaining
/// text.
fn split_action(action: &str) -> (&str, &str) {
    let mut quote = None;
    let mut escaped = false;
    let mut previous = ' ';
    let mut in_comment = action.trim_start_matches('-').trim_start().starts_with("/*");
    for (at, c) in action.char_indices() {
        if in_comment {
            in_comment = !(previous == '*' && c == '/');
        } else if let Some(q) = quote {
            if !escaped && c == q {
                quote = None;
            }
            escaped = !escaped && c == '\\' && q != '`';
        } else if matches!(c, '"' | '`' | '\'') {
            quote = Some(c);
        } else if c == '}' && previous == '}' {
            return (&action[..at - 1], &action[at + 1..]);
        }
        previous = c;
    }
    (action, "")
}

fn usage(text: &str) -> TemplateError {
    TemplateError::Exec(format!("usage: {text}"))
}

fn text_arg(text: String) -> Arg {
    Arg::String(text.into())
}

/// Converts a resource or a list. Go embeds the metadata, so its fields are also available directly.
fn object(value: &Value) -> Arg {
    let Value::Object(fields) = value else { return plain(value) };
    let mut named = named(fields.iter());
    let metadata = named.get("metadata").cloned().unwrap_or(Arg::Nil);
    if let Arg::Map(inner) = &metadata {
        for (key, value) in inner.iter() {
            named.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    let embedded = if fields.contains_key("items") { "ListMeta" } else { "ObjectMeta" };
    named.insert(embedded.into(), metadata);
    if let Some(items) = fields.get("items").and_then(Value::as_array) {
        let items = Arg::List(items.iter().map(object).collect());
        named.insert("items".into(), items.clone());
        named.insert("Items".into(), items);
    }
    Arg::Map(Arc::new(named))
}

fn plain(value: &Value) -> Arg {
    match value {
        Value::Null => Arg::Nil,
        Value::Bool(b) => Arg::Bool(*b),
        Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => Arg::Int(n),
            (None, Some(n)) => Arg::Uint(n),
            (None, None) => Arg::Float(n.as_f64().unwrap_or_default()),
        },
        Value::String(s) => Arg::String(s.as_str().into()),
        Value::Array(items) => Arg::List(items.iter().map(plain).collect()),
        Value::Object(fields) => Arg::Map(Arc::new(named(fields.iter()))),
    }
}

/// Returns the fields under both names; the keys of Go maps keep their single name.
fn named<'a>(fields: impl Iterator<Item = (&'a String, &'a Value)>) -> BTreeMap<Arc<str>, Arg> {
    let mut named = BTreeMap::new();
    for (key, value) in fields {
        let argument = match (key.as_str(), value) {
            ("labels" | "annotations" | "labelsToApply" | "matchLabels", Value::Object(map)) => {
                Arg::Map(Arc::new(map.iter().map(|(k, v)| (k.as_str().into(), plain(v))).collect()))
            }
            // This field is a float in Go, even if its JSON is an integer.
            ("order", Value::Number(n)) => Arg::Float(n.as_f64().unwrap_or_default()),
            _ => plain(value),
        };
        named.insert(go_name(key).into(), argument.clone());
        named.insert(key.as_str().into(), argument);
    }
    named
}

/// Returns the Go name of a JSON key: `ipv4Address` -> `IPv4Address`, `nodeSelector` -> `NodeSelector`.
fn go_name(json: &str) -> String {
    let first = json.find(|c: char| c.is_uppercase()).unwrap_or(json.len());
    let (word, rest) = json.split_at(first);
    let word = match word {
        "api" | "as" | "aws" | "bgp" | "bpf" | "cidr" | "dscp" | "http" | "icmp" | "ip" | "ipam" | "ipip"
        | "mac" | "mtu" | "nat" | "ttl" | "uid" | "vxlan" | "xdp" => word.to_uppercase(),
        "ipv4" => "IPv4".to_owned(),
        "ipv6" => "IPv6".to_owned(),
        "qos" => "QoS".to_owned(),
        _ => {
            let mut chars = word.chars();
            chars.next().map(|c| c.to_uppercase().chain(chars).collect()).unwrap_or_default()
        }
    };
    word + rest
}

/// Converts a template value to JSON, for the join functions.
fn json(value: &Arg) -> Value {
    match value {
        Arg::List(items) => Value::Array(items.iter().map(json).collect()),
        Arg::Map(fields) => {
            // Only Go maps are passed here, which have one name per key.
            Value::Object(fields.iter().map(|(k, v)| (k.to_string(), json(v))).collect())
        }
        Arg::Nil => Value::Array(Vec::new()),
        Arg::Float(number) => Value::String(go::float(*number)),
        other => Value::String(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tortie_model::{Kind, Resource, ResourceList};

    const FACTS: CellFacts = CellFacts { global_as_number: 64512 };

    fn pool(name: &str, cidr: &str) -> Resource {
        let object = json!({"kind": "IPPool", "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": name, "labels": {"b": "2", "a": "1"}}, "spec": {"cidr": cidr, "allowedUses": ["Workload", "Tunnel"]}});
        Resource::from_store(Kind::IPPool, object).unwrap()
    }

    fn listed() -> Vec<GetResult> {
        let items = vec![pool("a", "10.0.0.0/24"), pool("b", "10.0.1.0/24")];
        vec![GetResult::Listed(ResourceList { kind: Kind::IPPool, resource_version: "1".into(), items })]
    }

    #[test]
    fn fields_go_by_both_names() {
        for (template, expected) in [
            (
                "{{range .}}{{range .Items}}{{.ObjectMeta.Name}}={{.Spec.CIDR}} {{end}}{{end}}",
                "a=10.0.0.0/24 b=10.0.1.0/24 ",
            ),
            (
                "{{range .}}{{range .items}}{{.metadata.name}}={{.spec.cidr}} {{end}}{{end}}",
                "a=10.0.0.0/24 b=10.0.1.0/24 ",
            ),
            ("{{range .}}{{range .Items}}{{.Name}};{{end}}{{.Kind}}{{end}}", "a;b;IPPoolList"),
            (
                "{{range .}}{{with index .Items 0}}{{join .Spec.AllowedUses \"+\"}}{{end}}{{end}}",
                "Workload+Tunnel",
            ),
            ("{{range .}}{{with index .Items 0}}{{join .Labels \",\"}}{{end}}{{end}}", "a=1,b=2"),
            (
                "{{range .}}{{with index .Items 0}}{{joinAndTruncate .Spec.AllowedUses \",\" 8}}{{end}}{{end}}",
                "Workl...",
            ),
            ("{{config \"asnumber\"}}", "64512"),
        ] {
            assert_eq!(render(template, &listed(), &FACTS).unwrap(), expected, "{template}");
        }
    }

    #[test]
    fn bad_templates_say_where() {
        for (template, message) in [
            ("{{nosuch}}", "undefined function: nosuch"),
            ("{{.x", "template: get:1:5: unclosed action"),
            ("a{{end}}b", "template: get: unexpected {{end}}"),
            ("{{range .}}{{if true}}x{{end}}", "template: get: unexpected EOF, {{end}} missing 1 time(s)"),
        ] {
            assert_eq!(render(template, &listed(), &FACTS).unwrap_err().to_string(), message);
        }
        for template in [
            "{{/* {{ if */}}",
            "{{\"}}{{end}}\"}}",
            "{{- if true -}} x {{- else if false}}{{- end -}}",
            "{{`}}`}}",
        ] {
            assert!(render(template, &listed(), &FACTS).is_ok(), "{template}");
        }
        let error = render("{{config \"colour\"}}", &[], &FACTS).unwrap_err().to_string();
        assert!(error.contains("usage: config"), "{error}");
    }

    #[test]
    fn go_names() {
        for (json, go) in [
            ("cidr", "CIDR"),
            ("ipv4Address", "IPv4Address"),
            ("asNumber", "ASNumber"),
            ("nodeSelector", "NodeSelector"),
            ("iptablesBackend", "IptablesBackend"),
            ("bpfEnabled", "BPFEnabled"),
            ("qosControls", "QoSControls"),
            ("apiVersion", "APIVersion"),
            ("", ""),
        ] {
            assert_eq!(go_name(json), go);
        }
    }
}
