//! Evaluates schemas and admission policies the way kube-apiserver does, to the extent needed to compare them
//! with the validation rules of the types. Used by tests only.

use super::{GoDuration, Kind, Resource, admission_policies, json_schema};
use cel::ExecutionError;
use cel::extractors::This;
use ipnet::IpNet;
use regex::Regex;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

/// Returns whether a rule of the types exists in neither the schemas nor the admission policies, by kind and
/// path; docs/kubernetes.md explains why. Kubernetes itself validates the remaining metadata.
fn is_left_out(kind: Kind, path: &str, reason: &str) -> bool {
    match (kind, path) {
        (Kind::BlockAffinity, "Spec.Deleted") => true,
        (Kind::IPAMHandle, path) if path.starts_with("Spec.Block[") => true,
        (Kind::NetworkSet | Kind::GlobalNetworkSet, "Metadata.Labels") => false,
        (
            Kind::Tier
            | Kind::NetworkPolicy
            | Kind::GlobalNetworkPolicy
            | Kind::StagedNetworkPolicy
            | Kind::StagedGlobalNetworkPolicy,
            "Metadata.Name",
        ) => false,
        (
            Kind::ClusterInformation | Kind::KubeControllersConfiguration | Kind::IPAMConfiguration,
            "Metadata.Name",
        ) => false,
        (_, path) => path.starts_with("Metadata.") || reason.contains("bytes together"),
    }
}

/// Returns how the verdict of a kube-apiserver with our CRDs and admission policies differs from that of the
/// types, if it does. An object that the types accept is evaluated in the form in which the types serialise
/// it.
pub(crate) fn disagreement(object: &Value) -> Option<String> {
    thread_local! {
        static POLICIES: Vec<Value> = admission_policies("v1");
        static SCHEMAS: RefCell<HashMap<Kind, Rc<Value>>> = RefCell::default();
    }
    let kind = Kind::from_name(object["kind"].as_str()?)?;
    if matches!(kind, Kind::WorkloadEndpoint | Kind::Node | Kind::Profile | Kind::LiveMigration) {
        return None;
    }
    let schema = SCHEMAS.with_borrow_mut(|schemas| {
        Rc::clone(schemas.entry(kind).or_insert_with(|| Rc::new(json_schema(kind))))
    });
    let refused = |object: &Value| {
        let by_policies = POLICIES.with(|policies| policy_refusals(policies, kind.plural(), object));
        [refusals(&schema, object), by_policies].concat()
    };
    let failure = match Resource::from_user(object.clone()) {
        Err(error) => Some(error.to_string()),
        Ok(mut resource) => {
            resource.set_defaults();
            match resource.validate() {
                Ok(()) => {
                    let written = resource.to_value();
                    let refusals = refused(&written);
                    return (!refusals.is_empty())
                        .then(|| format!("only Kubernetes refuses {written}: {refusals:?}"));
                }
                Err(error) if error.errors.iter().all(|e| is_left_out(kind, &e.name, &e.reason)) => None,
                Err(error) => Some(error.to_string()),
            }
        }
    };
    let mut stored = object.clone();
    fill_in(&schema, &mut stored);
    failure
        .filter(|_| refused(&stored).is_empty())
        .map(|failure| format!("Kubernetes accepts {object}: {failure}"))
}

/// Applies the defaults of a schema, as Kubernetes does before validation.
fn fill_in(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, inner) in schema["properties"].as_object().into_iter().flatten() {
                if let Some(default) = inner.get("default") {
                    fields.entry(key).or_insert_with(|| default.clone());
                }
                if let Some(field) = fields.get_mut(key) {
                    fill_in(inner, field);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| fill_in(&schema["items"], item)),
        _ => {}
    }
}

/// Returns every violation of `schema` in `value`.
pub(crate) fn refusals(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    visit("", schema, value, &mut found);
    found
}

/// Returns every violation of the admission policies when the object is created.
pub(crate) fn policy_refusals(policies: &[Value], plural: &str, object: &Value) -> Vec<String> {
    let applies = |policy: &&Value| {
        let rule = &policy["spec"]["matchConstraints"]["resourceRules"][0];
        let lists = |key: &str, text: &str| {
            rule[key].as_array().is_some_and(|list| list.iter().any(|one| one == text))
        };
        policy["kind"] == "ValidatingAdmissionPolicy"
            && lists("operations", "CREATE")
            && lists("resources", plural)
    };
    let validations =
        policies.iter().filter(applies).flat_map(|policy| policy["spec"]["validations"].as_array());
    let check = |validation: &Value| match holds(validation["expression"].as_str()?, "object", object) {
        Ok(true) => None,
        Ok(false) => Some(validation["message"].to_string()),
        Err(error) => Some(format!("{}: {error}", validation["expression"])),
    };
    validations.flatten().filter_map(check).collect()
}

fn visit(path: &str, schema: &Value, value: &Value, found: &mut Vec<String>) {
    found.extend(reasons(schema, value).into_iter().map(|reason| format!("{path}: {reason}")));
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let expression = rule["rule"].as_str().unwrap_or_default();
        // Transition rules do not apply on creation: there is no old object.
        if expression.contains("oldSelf") {
            continue;
        }
        match holds(expression, "self", value) {
            Ok(true) => (),
            Ok(false) => found.push(format!("{path}: {}", rule["message"])),
            Err(error) => found.push(format!("{path}: {expression}: {error}")),
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

/// Returns the violations of the keywords of this schema alone; the caller visits nested schemas.
fn reasons(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut refuse = |reason: String| found.push(reason);
    let fits = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => {
            value.is_i64() || value.is_u64() || (value.is_null() && schema["nullable"] == true)
        }
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
    if let (Some(pattern), Value::String(text)) = (schema["pattern"].as_str(), value)
        && !is_match(pattern, text).unwrap_or_else(|error| panic!("{pattern}: {error}"))
    {
        refuse(format!("{text:?} does not match {pattern}"));
    }
    if let (true, Value::Array(items)) = (schema["x-kubernetes-list-type"] == "set", value) {
        let mut seen = HashSet::new();
        for item in items.iter().filter(|item| !seen.insert(item.to_string())) {
            refuse(format!("duplicate {item}"));
        }
    }
    for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if value.get(required).is_none() {
            refuse(format!("{required} is missing"));
        }
    }
    for choice in
        schema["allOf"].as_array().into_iter().flatten().filter(|choice| !fits_nested(choice, value))
    {
        refuse(format!("{value} does not fit {choice}"));
    }
    let choices = schema["anyOf"].as_array().filter(|_| schema["x-kubernetes-int-or-string"] != true);
    if let Some(choices) = choices.filter(|choices| !choices.iter().any(|choice| fits_nested(choice, value)))
    {
        refuse(format!("{value} fits none of {choices:?}"));
    }
    found
}

/// Returns whether a value satisfies a schema nested in `allOf` or `anyOf`, which has no CEL rules.
fn fits_nested(schema: &Value, value: &Value) -> bool {
    let properties = schema["properties"].as_object().into_iter().flatten();
    reasons(schema, value).is_empty()
        && properties
            .filter_map(|(key, inner)| Some((inner, value.get(key)?)))
            .all(|(inner, field)| fits_nested(inner, field))
        && match (schema.get("items"), value) {
            (Some(inner), Value::Array(items)) => items.iter().all(|item| fits_nested(inner, item)),
            _ => true,
        }
}

thread_local! {
    static PATTERNS: RefCell<HashMap<String, Option<Rc<Regex>>>> = RefCell::default();
    static PROGRAMS: RefCell<HashMap<String, Rc<cel::Program>>> = RefCell::default();
}

/// Matches a text against a pattern. Compiled patterns are cached: they are expensive to compile and shared
/// by many objects.
fn is_match(pattern: &str, text: &str) -> Result<bool, String> {
    let compiled = PATTERNS.with_borrow_mut(|patterns| {
        let compile = || Regex::new(pattern).ok().map(Rc::new);
        patterns.entry(pattern.to_owned()).or_insert_with(compile).clone()
    });
    compiled.map(|compiled| compiled.is_match(text)).ok_or_else(|| "not a regular expression".to_owned())
}

/// Evaluates a CEL expression in which the value is bound to `name`.
pub(crate) fn holds(expression: &str, name: &str, value: &Value) -> Result<bool, String> {
    let program = PROGRAMS.with_borrow_mut(|programs| -> Result<_, String> {
        if let Some(program) = programs.get(expression) {
            return Ok(Rc::clone(program));
        }
        // Kubernetes escapes field names that are CEL keywords this way.
        let plain = expression.replace("__namespace__", "namespace");
        let program = Rc::new(cel::Program::compile(&plain).map_err(|error| error.to_string())?);
        programs.insert(expression.to_owned(), Rc::clone(&program));
        Ok(program)
    })?;
    let mut context = cel::Context::default();
    context.add_variable_from_value(name, variable(value));
    add_functions(&mut context).map_err(|error| error.to_string())?;
    match program.execute(&context) {
        Ok(cel::Value::Bool(holds)) => Ok(holds),
        other => Err(format!("{other:?}")),
    }
}

/// Registers Kubernetes' CEL functions. Networks and addresses are represented as strings, durations as
/// nanoseconds.
fn add_functions(context: &mut cel::Context<'_, '_>) -> Result<(), cel::DeclarationError> {
    let failed = |name: &'static str, text: &str| ExecutionError::function_error(name, text);
    context.add_function("matches", move |This(text): This<Arc<String>>, pattern: Arc<String>| {
        is_match(&pattern, &text).map_err(|_| failed("matches", &pattern))
    })?;
    context.add_function("split", |This(text): This<Arc<String>>, separator: Arc<String>| {
        let parts = text.split(separator.as_str()).map(cel::Value::from);
        cel::Value::from(parts.collect::<Vec<_>>())
    })?;
    context.add_function("duration", move |text: Arc<String>| {
        text.parse::<GoDuration>().map(GoDuration::as_nanos).map_err(|_| failed("duration", &text))
    })?;
    context.add_function("isCIDR", |text: Arc<String>| network(&text).is_some())?;
    context.add_function("isIP", |text: Arc<String>| address(&text).is_some())?;
    context.add_function("cidr", move |text: Arc<String>| {
        network(&text)
            .map(|network| cel::Value::from(network.to_string()))
            .ok_or_else(|| failed("cidr", &text))
    })?;
    context.add_function("ip", move |This(text): This<Arc<String>>| {
        let found = address(&text).or_else(|| network(&text).map(|network| network.addr()));
        found.map(|address| cel::Value::from(address.to_string())).ok_or_else(|| failed("ip", &text))
    })?;
    context.add_function("family", move |This(text): This<Arc<String>>| {
        let found = address(&text).map(|address| if address.is_ipv4() { 4i64 } else { 6 });
        found.ok_or_else(|| failed("family", &text))
    })?;
    context.add_function("masked", move |This(text): This<Arc<String>>| {
        network(&text)
            .map(|network| cel::Value::from(network.trunc().to_string()))
            .ok_or_else(|| failed("masked", &text))
    })?;
    context.add_function("prefixLength", move |This(text): This<Arc<String>>| {
        let found = network(&text).map(|network| i64::from(network.prefix_len()));
        found.ok_or_else(|| failed("prefixLength", &text))
    })?;
    context.add_function("containsCIDR", move |This(text): This<Arc<String>>, inner: Arc<String>| {
        let found = network(&text).zip(network(&inner)).map(|(outer, inner)| outer.contains(&inner));
        found.ok_or_else(|| failed("containsCIDR", &inner))
    })
}

/// Parses an address. Like Kubernetes, rejects IPv4-mapped IPv6 addresses.
fn address(text: &str) -> Option<IpAddr> {
    text.parse().ok().filter(|address| !matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()))
}

/// Parses a network. Like Kubernetes, also rejects prefix lengths with leading zeros.
fn network(text: &str) -> Option<IpNet> {
    let network: IpNet = text.parse().ok()?;
    let has_plain_bits = text.ends_with(&format!("/{}", network.prefix_len()));
    address(&network.addr().to_string()).filter(|_| has_plain_bits).map(|_| network)
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
            .collect::<HashMap<String, cel::Value>>()
            .into(),
    }
}
