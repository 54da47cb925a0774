//! The rules of policies and profiles.

use crate::scalar::{Port, Protocol};
use crate::schema::forms;
use crate::string_enum;
use std::collections::BTreeMap;

string_enum! {
    /// The action for a packet that a rule matches.
    pub enum Action { Allow, Deny, Log, Pass }
}

api_types! {
    /// A packet matches a rule if all specified fields match.
    #[schemars(extend(
        "required" = ["action"],
        "x-kubernetes-validations" = super::cel::rules(),
        "allOf" = super::cel::rule_choices()
    ))]
    pub struct Rule {
        pub action: Action = always,
        #[schemars(extend("enum" = [4, 6]))]
        pub ip_version: Option<i64>,
        pub protocol: Option<Protocol>,
        pub icmp: Option<ICMPFields>,
        pub not_protocol: Option<Protocol>,
        #[serde(rename = "notICMP")]
        pub not_icmp: Option<ICMPFields>,
        pub source: EntityRule,
        pub destination: EntityRule,
        pub http: Option<HTTPMatch>,
        pub metadata: Option<RuleMetadata>,
    }

    /// ICMP messages; if `type` is omitted, all of them match.
    #[schemars(extend("x-kubernetes-validations" = super::cel::icmp()))]
    pub struct ICMPFields {
        #[schemars(range(min = 0, max = 254))]
        pub r#type: Option<i64>,
        #[schemars(range(min = 0, max = 255))]
        pub code: Option<i64>,
    }

    /// The source or destination of the traffic.
    #[schemars(extend("x-kubernetes-validations" = super::cel::entity()))]
    pub struct EntityRule {
        #[schemars(schema_with = "forms::rule_networks")]
        pub nets: Vec<String>,
        #[schemars(schema_with = "forms::selector")]
        pub selector: String,
        #[schemars(schema_with = "forms::rule_namespace_selector")]
        pub namespace_selector: String,
        pub services: Option<ServiceMatch>,
        #[schemars(length(max = 50))]
        pub ports: Vec<Port>,
        #[schemars(schema_with = "forms::excluded_rule_networks")]
        pub not_nets: Vec<String>,
        #[schemars(schema_with = "forms::selector")]
        pub not_selector: String,
        #[schemars(length(max = 50))]
        pub not_ports: Vec<Port>,
        pub service_accounts: Option<ServiceAccountMatch>,
    }

    /// The endpoints of a Kubernetes service.
    #[schemars(extend("required" = ["name"]))]
    pub struct ServiceMatch {
        #[schemars(schema_with = "forms::name")]
        pub name: String,
        /// Defaults to the namespace of the policy.
        #[schemars(schema_with = "forms::optional_name")]
        pub namespace: String,
    }

    /// Workloads, selected by their service account.
    pub struct ServiceAccountMatch {
        #[schemars(schema_with = "forms::names")]
        pub names: Vec<String>,
        #[schemars(schema_with = "forms::selector")]
        pub selector: String,
    }

    /// HTTP requests with any of the methods and any of the paths.
    pub struct HTTPMatch {
        #[schemars(length(max = 20), extend("x-kubernetes-list-type" = "set"))]
        pub methods: Vec<String>,
        #[schemars(length(max = 20))]
        pub paths: Vec<HTTPPath>,
    }

    /// The path of a request: an exact match or a prefix.
    #[schemars(extend("x-kubernetes-validations" = super::cel::http_path()))]
    pub struct HTTPPath {
        #[schemars(schema_with = "forms::optional_url_path")]
        pub exact: String,
        #[schemars(schema_with = "forms::optional_url_path")]
        pub prefix: String,
    }

    /// Annotations that are shown with the rule in the kernel.
    pub struct RuleMetadata {
        pub annotations: BTreeMap<String, String>,
    }
}
