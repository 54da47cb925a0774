//! The rules of policies and profiles.

use crate::scalar::{Port, Protocol, is_default};
use crate::schema::forms;
use crate::string_enum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

string_enum! {
    /// The action for a packet that a rule matches.
    pub enum Action { Allow, Deny, Log, Pass }
}

/// A packet matches a rule if all specified fields match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend(
    "required" = ["action"],
    "x-kubernetes-validations" = super::cel::rules(),
    "allOf" = super::cel::rule_choices()
))]
pub struct Rule {
    pub action: Action,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("enum" = [4, 6]))]
    pub ip_version: Option<i64>,
    #[serde(skip_serializing_if = "is_default")]
    pub protocol: Option<Protocol>,
    #[serde(skip_serializing_if = "is_default")]
    pub icmp: Option<ICMPFields>,
    #[serde(skip_serializing_if = "is_default")]
    pub not_protocol: Option<Protocol>,
    #[serde(rename = "notICMP", skip_serializing_if = "is_default")]
    pub not_icmp: Option<ICMPFields>,
    #[serde(skip_serializing_if = "is_default")]
    pub source: EntityRule,
    #[serde(skip_serializing_if = "is_default")]
    pub destination: EntityRule,
    #[serde(skip_serializing_if = "is_default")]
    pub http: Option<HTTPMatch>,
    #[serde(skip_serializing_if = "is_default")]
    pub metadata: Option<RuleMetadata>,
}

/// ICMP messages; if `type` is omitted, all of them match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = super::cel::icmp()))]
pub struct ICMPFields {
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(range(min = 0, max = 254))]
    pub r#type: Option<i64>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(range(min = 0, max = 255))]
    pub code: Option<i64>,
}

/// The source or destination of the traffic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = super::cel::entity()))]
pub struct EntityRule {
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::rule_networks")]
    pub nets: Vec<String>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::selector")]
    pub selector: String,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::rule_namespace_selector")]
    pub namespace_selector: String,
    #[serde(skip_serializing_if = "is_default")]
    pub services: Option<ServiceMatch>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(length(max = 50))]
    pub ports: Vec<Port>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::excluded_rule_networks")]
    pub not_nets: Vec<String>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::selector")]
    pub not_selector: String,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(length(max = 50))]
    pub not_ports: Vec<Port>,
    #[serde(skip_serializing_if = "is_default")]
    pub service_accounts: Option<ServiceAccountMatch>,
}

/// The endpoints of a Kubernetes service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["name"]))]
pub struct ServiceMatch {
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::name")]
    pub name: String,
    /// Defaults to the namespace of the policy.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::optional_name")]
    pub namespace: String,
}

/// Workloads, selected by their service account.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceAccountMatch {
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::names")]
    pub names: Vec<String>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::selector")]
    pub selector: String,
}

/// HTTP requests with any of the methods and any of the paths.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct HTTPMatch {
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(length(max = 20), extend("x-kubernetes-list-type" = "set"))]
    pub methods: Vec<String>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(length(max = 20))]
    pub paths: Vec<HTTPPath>,
}

/// The path of a request: an exact match or a prefix.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = super::cel::http_path()))]
pub struct HTTPPath {
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::optional_url_path")]
    pub exact: String,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::optional_url_path")]
    pub prefix: String,
}

/// Annotations that are shown with the rule in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct RuleMetadata {
    #[serde(skip_serializing_if = "is_default")]
    pub annotations: BTreeMap<String, String>,
}
