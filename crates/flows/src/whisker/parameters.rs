//! Query parameters of the endpoints of whisker-backend.

use crate::proto::{
    Action, Filter, FilterType, MatchType, PolicyKind, PolicyMatch, PortMatch, Reporter, SortBy, StringMatch,
};
use crate::ring::{NETWORK_NAMES, NO_NAMESPACE};
use serde::Deserialize;

/// How whisker-backend shows the namespace of objects without one.
pub const GLOBAL_NAMESPACE: &str = "Global";

/// Values of the parameter `type` of hints.
const HINT_TYPES: [(&str, FilterType); 8] = [
    ("SourceName", FilterType::SourceName),
    ("DestName", FilterType::DestName),
    ("SourceNamespace", FilterType::SourceNamespace),
    ("DestNamespace", FilterType::DestNamespace),
    ("PolicyTier", FilterType::PolicyTier),
    ("PolicyName", FilterType::PolicyName),
    ("PolicyKind", FilterType::PolicyKind),
    ("PolicyNamespace", FilterType::PolicyNamespace),
];

#[derive(Debug, thiserror::Error)]
pub enum ParameterError {
    #[error("{name}: {value:?} is not a whole number")]
    Integer { name: &'static str, value: String },
    #[error("{name}: {value:?} is not true or false")]
    Boolean { name: &'static str, value: String },
    #[error("unknown sortBy value: {0}")]
    SortBy(String),
    #[error("type is required; allowed values are '{}'", list_hint_types())]
    NoHintType,
    #[error("unknown filter type value {value}; allowed values are '{}'", list_hint_types())]
    HintType { value: String },
    #[error("filters: {0}")]
    Json(#[from] serde_json::Error),
    #[error("filters: {field}: the value {value:?} is unknown")]
    UnknownValue { field: &'static str, value: String },
}

fn list_hint_types() -> String {
    HINT_TYPES.map(|(name, _)| name).join(", ")
}

/// Parameters of both endpoints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowsParameters {
    pub watch: bool,
    pub start_time_gte: i64,
    pub start_time_lt: i64,
    pub sort_by: Vec<SortBy>,
    pub filter: Filter,
    pub page: i64,
    pub page_size: i64,
    /// Only for hints.
    pub hint_type: Option<FilterType>,
}

impl FlowsParameters {
    /// Parses the query of a URL. Unknown parameters are ignored.
    pub fn parse(query: &str) -> Result<FlowsParameters, ParameterError> {
        let mut parameters = FlowsParameters::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "watch" => parameters.watch = parse_boolean("watch", &value)?,
                "startTimeGte" => parameters.start_time_gte = parse_integer("startTimeGte", &value)?,
                "startTimeLt" => parameters.start_time_lt = parse_integer("startTimeLt", &value)?,
                "page" => parameters.page = parse_integer("page", &value)?,
                "pageSize" => parameters.page_size = parse_integer("pageSize", &value)?,
                "sortBy" => {
                    let sort = SortBy::from_str_name(&value);
                    parameters.sort_by.push(sort.ok_or_else(|| ParameterError::SortBy(value.into_owned()))?);
                }
                "filters" => parameters.filter = parse_filters(&value)?,
                "type" => {
                    let found = HINT_TYPES.iter().find(|(name, _)| *name == value);
                    let found =
                        found.ok_or_else(|| ParameterError::HintType { value: value.into_owned() })?;
                    parameters.hint_type = Some(found.1);
                }
                _ => {}
            }
        }
        Ok(parameters)
    }
}

fn parse_integer(name: &'static str, value: &str) -> Result<i64, ParameterError> {
    if value.is_empty() {
        return Ok(0);
    }
    value.parse().map_err(|_| ParameterError::Integer { name, value: value.to_owned() })
}

fn parse_boolean(name: &'static str, value: &str) -> Result<bool, ParameterError> {
    match value {
        "true" | "1" => Ok(true),
        "false" | "0" | "" => Ok(false),
        _ => Err(ParameterError::Boolean { name, value: value.to_owned() }),
    }
}

/// The JSON of the parameter `filters`. Unknown keys are ignored, because newer versions of Whisker may send them.
#[derive(Default, Deserialize)]
#[serde(default)]
struct FilterText {
    source_names: Option<Vec<MatchText<String>>>,
    source_namespaces: Option<Vec<MatchText<String>>>,
    dest_names: Option<Vec<MatchText<String>>>,
    dest_namespaces: Option<Vec<MatchText<String>>>,
    protocols: Option<Vec<MatchText<String>>>,
    dest_ports: Option<Vec<MatchText<i64>>>,
    actions: Option<Vec<String>>,
    pending_actions: Option<Vec<String>>,
    policies: Option<Vec<PolicyText>>,
    reporter: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MatchText<T> {
    value: T,
    r#type: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PolicyText {
    kind: Option<String>,
    tier: Option<MatchText<String>>,
    name: Option<MatchText<String>>,
    namespace: Option<MatchText<String>>,
    action: Option<String>,
}

/// Parses the JSON of filters and translates the names that whisker-backend shows.
pub fn parse_filters(text: &str) -> Result<Filter, ParameterError> {
    if text.is_empty() {
        return Ok(Filter::default());
    }
    let filter: FilterText = serde_json::from_str(text)?;
    let mut dest_ports = Vec::new();
    for port in filter.dest_ports.unwrap_or_default() {
        parse_match_type("dest_ports", port.r#type.as_deref())?;
        dest_ports.push(PortMatch { port: port.value });
    }
    Ok(Filter {
        source_names: parse_matches("source_names", filter.source_names, translate_name)?,
        source_namespaces: parse_matches("source_namespaces", filter.source_namespaces, translate_namespace)?,
        dest_names: parse_matches("dest_names", filter.dest_names, translate_name)?,
        dest_namespaces: parse_matches("dest_namespaces", filter.dest_namespaces, translate_namespace)?,
        protocols: parse_matches("protocols", filter.protocols, keep_text)?,
        dest_ports,
        actions: parse_actions("actions", filter.actions)?,
        policies: filter
            .policies
            .unwrap_or_default()
            .into_iter()
            .map(parse_policy)
            .collect::<Result<_, _>>()?,
        reporter: match filter.reporter.filter(|reporter| !reporter.is_empty()) {
            Some(reporter) => parse_name("reporter", reporter, Reporter::from_str_name)?.into(),
            None => 0,
        },
        pending_actions: parse_actions("pending_actions", filter.pending_actions)?,
    })
}

fn parse_matches(
    field: &'static str,
    matches: Option<Vec<MatchText<String>>>,
    translate: fn(String) -> String,
) -> Result<Vec<StringMatch>, ParameterError> {
    let mut parsed = Vec::new();
    for one in matches.unwrap_or_default() {
        let r#type = parse_match_type(field, one.r#type.as_deref())?.into();
        parsed.push(StringMatch { value: translate(one.value), r#type });
    }
    Ok(parsed)
}

fn parse_match_type(field: &'static str, text: Option<&str>) -> Result<MatchType, ParameterError> {
    match text.filter(|text| !text.is_empty()) {
        Some(text) => parse_name(field, text.to_owned(), MatchType::from_str_name),
        None => Ok(MatchType::Exact),
    }
}

fn parse_actions(field: &'static str, actions: Option<Vec<String>>) -> Result<Vec<i32>, ParameterError> {
    let actions = actions.unwrap_or_default().into_iter();
    actions.map(|action| parse_name(field, action, Action::from_str_name).map(i32::from)).collect()
}

/// The comparison of the protocol is exact: a type in the JSON is only checked.
fn parse_policy(policy: PolicyText) -> Result<PolicyMatch, ParameterError> {
    let value = |field, text: Option<MatchText<String>>| {
        let text = text.unwrap_or_default();
        parse_match_type(field, text.r#type.as_deref()).map(|_| text.value)
    };
    Ok(PolicyMatch {
        kind: match policy.kind.filter(|kind| !kind.is_empty()) {
            Some(kind) => parse_name("kind of policies", kind, PolicyKind::from_str_name)?.into(),
            None => 0,
        },
        tier: value("tier of policies", policy.tier)?,
        namespace: translate_namespace(value("namespace of policies", policy.namespace)?),
        name: value("name of policies", policy.name)?,
        action: match policy.action.filter(|action| !action.is_empty()) {
            Some(action) => parse_name("action of policies", action, Action::from_str_name)?.into(),
            None => 0,
        },
    })
}

fn parse_name<T>(
    field: &'static str,
    value: String,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, ParameterError> {
    parse(&value).ok_or(ParameterError::UnknownValue { field, value })
}

fn keep_text(text: String) -> String {
    text
}

fn translate_name(shown: String) -> String {
    let stored = NETWORK_NAMES.iter().find(|(name, _)| *name == shown).map(|(_, stored)| *stored);
    stored.map_or(shown, str::to_owned)
}

fn translate_namespace(shown: String) -> String {
    if shown == GLOBAL_NAMESPACE { NO_NAMESPACE.to_owned() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_whisker_are_understood() {
        let filters = r#"{"source_names":[{"value":"PUBLIC NETWORK","type":"Exact"},{"value":"we","type":"Fuzzy"}],
            "dest_namespaces":[{"value":"Global"}],"dest_ports":[{"value":443,"type":"Exact"}],"actions":["Deny"],
            "pending_actions":["Allow"],"reporter":"Src","protocols":null,"something":1,
            "policies":[{"kind":"NetworkPolicy","tier":{"value":"default","type":"Exact"},"action":"Allow"}]}"#;
        let query: String = form_urlencoded::Serializer::new(String::new())
            .append_pair("watch", "true")
            .append_pair("startTimeGte", "-60")
            .append_pair("sortBy", "DestName")
            .append_pair("sortBy", "Time")
            .append_pair("filters", filters)
            .finish();
        let exact = |value: &str| StringMatch { value: value.to_owned(), r#type: 0 };
        let filter = Filter {
            source_names: vec![exact("pub"), StringMatch { value: "we".to_owned(), r#type: 1 }],
            dest_namespaces: vec![exact("-")],
            dest_ports: vec![PortMatch { port: 443 }],
            actions: vec![2],
            pending_actions: vec![1],
            reporter: 1,
            policies: vec![PolicyMatch {
                kind: 6,
                tier: "default".to_owned(),
                action: 1,
                ..PolicyMatch::default()
            }],
            ..Filter::default()
        };
        let parsed = FlowsParameters::parse(&query).unwrap();
        let sort_by = vec![SortBy::DestName, SortBy::Time];
        assert_eq!(
            parsed,
            FlowsParameters {
                watch: true,
                start_time_gte: -60,
                sort_by,
                filter,
                ..FlowsParameters::default()
            }
        );
    }

    #[test]
    fn bad_parameters_are_named() {
        let error = |query: &str| FlowsParameters::parse(query).unwrap_err().to_string();
        assert_eq!(error("sortBy=Size"), "unknown sortBy value: Size");
        assert!(
            error("type=Port")
                .starts_with("unknown filter type value Port; allowed values are 'SourceName, ")
        );
        assert_eq!(error("startTimeLt=soon"), "startTimeLt: \"soon\" is not a whole number");
        assert_eq!(error("watch=maybe"), "watch: \"maybe\" is not true or false");
        assert!(error("filters=%7B").starts_with("filters: EOF"));
        assert_eq!(
            error(r#"filters={"actions":["Drop"]}"#),
            "filters: actions: the value \"Drop\" is unknown"
        );
        assert_eq!(
            error(r#"filters={"protocols":[{"value":"tcp","type":"Regex"}]}"#),
            "filters: protocols: the value \"Regex\" is unknown"
        );
        assert_eq!(
            error(r#"filters={"reporter":"Both"}"#),
            "filters: reporter: the value \"Both\" is unknown"
        );
    }
}
