//! Parses the method, path and query of a request.

use crate::refusal::{StatusCause, StatusError};
use crate::resources::{GROUP, ServedKind, VERSION};
use http::Method;
use percent_encoding::percent_decode_str;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestVerb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl RequestVerb {
    /// Returns the verb as named in RBAC rules.
    pub const fn name(self) -> &'static str {
        match self {
            RequestVerb::Get => "get",
            RequestVerb::List => "list",
            RequestVerb::Watch => "watch",
            RequestVerb::Create => "create",
            RequestVerb::Update => "update",
            RequestVerb::Patch => "patch",
            RequestVerb::Delete => "delete",
            RequestVerb::DeleteCollection => "deletecollection",
        }
    }
}

/// A request about objects.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectRequest {
    pub verb: RequestVerb,
    pub served: ServedKind,
    /// Empty for cluster-scoped kinds and for all namespaces.
    pub namespace: String,
    /// Empty for collections.
    pub name: String,
    /// Whether it addresses the status subresource.
    pub is_status: bool,
    pub options: RequestOptions,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RequestTarget {
    Objects(Box<ObjectRequest>),
    /// Discovery, schemas, health and similar paths.
    Path(String),
}

/// Handling of unknown fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestOptions {
    pub label_selector: String,
    pub field_selector: String,
    pub resource_version: String,
    pub resource_version_match: String,
    pub limit: usize,
    pub continuation: String,
    pub timeout_seconds: Option<u64>,
    pub bookmarks: bool,
    pub send_initial_events: bool,
    pub dry_run: bool,
    pub field_manager: String,
    pub force: bool,
    pub field_validation: FieldValidation,
    pub propagation_policy: String,
    /// Value of `includeObject`: how much of each object is returned with a table row.
    pub include_object: String,
}

type QueryPairs = BTreeMap<String, String>;

/// Maximum length of a field manager's name.
pub const MAX_FIELD_MANAGER_LENGTH: usize = 128;

/// Parses the request line. A path outside the objects of the API group is returned as it is.
pub fn parse_request(method: &Method, path: &str, query: &str) -> Result<RequestTarget, StatusError> {
    let prefix = format!("/apis/{GROUP}/{VERSION}/");
    let Some(rest) = path.strip_prefix(&prefix).filter(|rest| !rest.is_empty()) else {
        return Ok(RequestTarget::Path(path.trim_end_matches('/').to_owned()));
    };
    let parts: Vec<String> = rest
        .split('/')
        .map(|part| percent_decode_str(part).decode_utf8().map(|part| part.into_owned()))
        .collect::<Result<_, _>>()
        .map_err(|_| StatusError::bad_request("the path is not UTF-8 text"))?;
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let (namespace, parts) = match parts.as_slice() {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        parts => ("", parts),
    };
    let (plural, name, is_status) = match parts {
        [plural] | [plural, ""] => (*plural, "", false),
        [plural, name] => (*plural, *name, false),
        [plural, name, "status"] => (*plural, *name, true),
        _ => return Err(StatusError::no_such_path()),
    };
    let served = ServedKind::find(plural).ok_or_else(StatusError::no_such_path)?;
    let is_valid_scope = match (served.kind.is_namespaced(), namespace.is_empty()) {
        (true, true) => name.is_empty(),
        (true, false) | (false, true) => true,
        (false, false) => false,
    };
    if !is_valid_scope || (is_status && !served.has_status()) {
        return Err(StatusError::no_such_path());
    }
    let pairs: QueryPairs = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    let options = parse_options(&pairs)?;
    let is_watch = read_flag(&pairs, "watch");
    let verb = match (method.as_str(), name.is_empty()) {
        ("GET" | "HEAD", true) if is_watch => RequestVerb::Watch,
        ("GET" | "HEAD", true) => RequestVerb::List,
        ("GET" | "HEAD", false) => RequestVerb::Get,
        ("POST", true) => RequestVerb::Create,
        ("PUT", false) => RequestVerb::Update,
        ("PATCH", false) => RequestVerb::Patch,
        ("DELETE", true) => RequestVerb::DeleteCollection,
        ("DELETE", false) if !is_status => RequestVerb::Delete,
        _ => {
            return Err(StatusError::method_not_allowed(
                "the server does not allow this method on the requested resource",
            ));
        }
    };
    if verb == RequestVerb::Create && served.kind.is_namespaced() && namespace.is_empty() {
        return Err(StatusError::bad_request("an empty namespace may not be set during creation"));
    }
    Ok(RequestTarget::Objects(Box::new(ObjectRequest {
        verb,
        served,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        is_status,
        options,
    })))
}

fn read_text(pairs: &QueryPairs, name: &str) -> String {
    pairs.get(name).cloned().unwrap_or_default()
}

fn read_flag(pairs: &QueryPairs, name: &str) -> bool {
    let value = pairs.get(name).map(String::as_str);
    value.is_some_and(|value| !matches!(value, "0" | "false" | "False" | "FALSE" | "f" | "F"))
}

fn read_number(pairs: &QueryPairs, name: &str) -> Result<Option<u64>, StatusError> {
    let given = pairs.get(name).filter(|text| !text.is_empty());
    let parsed = given.map(|text| text.parse::<u64>()).transpose();
    parsed.map_err(|_| StatusError::bad_request(format!("{name}: must be a number that is not negative")))
}

fn parse_options(pairs: &QueryPairs) -> Result<RequestOptions, StatusError> {
    let field_validation = match read_text(pairs, "fieldValidation").as_str() {
        "" | "Warn" => FieldValidation::Warn,
        "Ignore" => FieldValidation::Ignore,
        "Strict" => FieldValidation::Strict,
        other => {
            return Err(StatusError::unprocessable(format!(
                "fieldValidation: Unsupported value: {other:?}: supported values: \"Ignore\", \"Strict\", \"Warn\""
            )));
        }
    };
    let dry_run = match read_text(pairs, "dryRun").as_str() {
        "" => false,
        "All" => true,
        other => {
            return Err(StatusError::unprocessable(format!(
                "dryRun: Unsupported value: {other:?}: supported values: \"All\""
            )));
        }
    };
    let field_manager = read_text(pairs, "fieldManager");
    if field_manager.len() > MAX_FIELD_MANAGER_LENGTH || field_manager.chars().any(char::is_control) {
        return Err(StatusError::unprocessable(format!(
            "fieldManager: Invalid value: {field_manager:?}: at most {MAX_FIELD_MANAGER_LENGTH} characters that can be printed"
        )));
    }
    Ok(RequestOptions {
        label_selector: read_text(pairs, "labelSelector"),
        field_selector: read_text(pairs, "fieldSelector"),
        resource_version: read_text(pairs, "resourceVersion"),
        resource_version_match: read_text(pairs, "resourceVersionMatch"),
        limit: read_number(pairs, "limit")?.map_or(0, |limit| usize::try_from(limit).unwrap_or(usize::MAX)),
        continuation: read_text(pairs, "continue"),
        timeout_seconds: read_number(pairs, "timeoutSeconds")?,
        bookmarks: read_flag(pairs, "allowWatchBookmarks"),
        send_initial_events: read_flag(pairs, "sendInitialEvents"),
        dry_run,
        field_manager,
        force: read_flag(pairs, "force"),
        field_validation,
        propagation_policy: read_text(pairs, "propagationPolicy"),
        include_object: read_text(pairs, "includeObject"),
    })
}

/// Returns the field manager of a request. Without one in the query, it is the product name of the user agent.
pub fn choose_field_manager(options: &RequestOptions, user_agent: &str) -> String {
    if !options.field_manager.is_empty() {
        return options.field_manager.clone();
    }
    let program = user_agent.split('/').next().unwrap_or_default();
    let mut name = String::new();
    for letter in program.chars().filter(|letter| !letter.is_control()) {
        if name.len() + letter.len_utf8() > MAX_FIELD_MANAGER_LENGTH {
            break;
        }
        name.push(letter);
    }
    name
}

/// Rejects names and namespaces that cannot exist, before anything is looked up.
pub fn check_names(request: &ObjectRequest) -> Result<(), StatusError> {
    let name = &request.name;
    if name.len() > 253 || request.namespace.len() > 63 || name == "." || name == ".." || name.contains('%') {
        let cause = StatusCause::invalid("metadata.name", name, "not the name of an object");
        return Err(StatusError::invalid(request.served, name, vec![cause]));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_model::Kind;

    fn objects(method: Method, path: &str, query: &str) -> ObjectRequest {
        match parse_request(&method, &format!("/apis/projectcalico.org/v3/{path}"), query) {
            Ok(RequestTarget::Objects(request)) => *request,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn paths_and_methods_are_verbs() {
        for (method, path, query, verb) in [
            (Method::GET, "tiers", "", RequestVerb::List),
            (Method::GET, "tiers/t", "", RequestVerb::Get),
            (Method::GET, "tiers", "watch=true", RequestVerb::Watch),
            (Method::GET, "tiers", "watch=0", RequestVerb::List),
            (Method::GET, "networkpolicies", "", RequestVerb::List),
            (Method::GET, "namespaces/shop/networkpolicies/a.b", "", RequestVerb::Get),
            (Method::POST, "namespaces/shop/networkpolicies", "", RequestVerb::Create),
            (Method::PUT, "tiers/t/status", "", RequestVerb::Update),
            (Method::PATCH, "tiers/t", "", RequestVerb::Patch),
            (Method::DELETE, "tiers/t", "", RequestVerb::Delete),
            (Method::DELETE, "namespaces/shop/networksets", "", RequestVerb::DeleteCollection),
        ] {
            assert_eq!(objects(method, path, query).verb, verb, "{path}?{query}");
        }
        let request = objects(Method::GET, "namespaces/shop/networkpolicies/x", "labelSelector=a%3Db");
        assert_eq!((request.namespace.as_str(), request.name.as_str()), ("shop", "x"));
        assert_eq!(request.served.kind, Kind::NetworkPolicy);
        assert_eq!(request.options.label_selector, "a=b");
    }

    #[test]
    fn what_is_not_there_is_refused() {
        for (method, path, code) in [
            (Method::GET, "nodes", 404),
            (Method::GET, "namespaces/shop/tiers", 404),
            (Method::GET, "networkpolicies/x", 404),
            (Method::GET, "networksets/x/status", 404),
            (Method::GET, "tiers/t/scale", 404),
            (Method::POST, "tiers/t", 405),
            (Method::PUT, "tiers", 405),
            (Method::DELETE, "tiers/t/status", 405),
            (Method::POST, "networksets", 400),
        ] {
            let refusal =
                parse_request(&method, &format!("/apis/projectcalico.org/v3/{path}"), "").unwrap_err();
            assert_eq!(refusal.code(), code, "{method} {path}");
        }
        for query in ["dryRun=Some", "fieldValidation=Loud", "limit=-1"] {
            assert!(
                parse_request(&Method::GET, "/apis/projectcalico.org/v3/tiers", query).is_err(),
                "{query}"
            );
        }
        assert_eq!(parse_request(&Method::GET, "/healthz/", ""), Ok(RequestTarget::Path("/healthz".into())));
    }

    #[test]
    fn programs_have_names() {
        let named = |agent: &str| choose_field_manager(&RequestOptions::default(), agent);
        assert_eq!(named("kubectl/v1.35 (linux)"), "kubectl");
        assert_eq!(named(&"x".repeat(500)).len(), MAX_FIELD_MANAGER_LENGTH);
        assert_eq!(named(""), "");
        let options = RequestOptions { field_manager: "me".into(), ..RequestOptions::default() };
        assert_eq!(choose_field_manager(&options, "kubectl/1"), "me");
    }
}
