//! Filters for routes that are imported from and exported to BGP peers, with operations on accepted routes.

use super::cel_settings;
use super::shared::{MAX_ROUTE_PRIORITY, check_community};
use crate::object::NoStatus;
use crate::scalar::{ASNumber, is_default};
use crate::schema::{forms, make_structural, patterns};
use crate::validation::{FieldChecker, InclusiveRange, NetworkFamily, is_name_byte};
use crate::{Kind, ResourceSpec, TypedObject, string_enum};
use schemars::Schema;
use serde_json::json;

string_enum! {
    pub enum BGPFilterAction { Accept, Reject }
}

string_enum! {
    /// How a route's prefix is compared with the rule's CIDR.
    pub enum BGPFilterMatchOperator { Equal, NotEqual, In, NotIn }
}

string_enum! {
    /// The source from which a route was learned.
    pub enum BGPFilterSource { RemotePeers }
}

string_enum! {
    /// Whether the peer is in another autonomous system (eBGP) or in the same one (iBGP).
    pub enum BGPFilterPeerType { External = "eBGP", Internal = "iBGP" }
}

/// Maximum number of rules in one list. The schema has the same bound: without it, the estimated CEL cost
/// would exceed the limit of Kubernetes.
const MAX_FILTER_RULES: usize = 10_000;
/// Maximum characters of a network and maximum prefix length.
const V4_LIMITS: (usize, i32) = (18, 32);
const V6_LIMITS: (usize, i32) = (43, 128);

pub type BGPFilter = TypedObject<BGPFilterSpec>;

api_types! {
    /// Rules are evaluated in order; the first match decides.
    #[schemars(transform = describe_families)]
    pub struct BGPFilterSpec {
        #[schemars(length(max = 10000))]
        pub export_v4: Vec<BGPFilterRule>,
        #[schemars(length(max = 10000))]
        pub import_v4: Vec<BGPFilterRule>,
        #[schemars(length(max = 10000))]
        pub export_v6: Vec<BGPFilterRule>,
        #[schemars(length(max = 10000))]
        pub import_v6: Vec<BGPFilterRule>,
    }
}

/// Adds the constraints of each address family to the schema.
fn describe_families(schema: &mut Schema) {
    for (key, pattern, max_chars, max_length) in [
        ("exportV4", patterns::ipv4_network(), V4_LIMITS.0, V4_LIMITS.1),
        ("importV4", patterns::ipv4_network(), V4_LIMITS.0, V4_LIMITS.1),
        ("exportV6", patterns::ipv6_network(), V6_LIMITS.0, V6_LIMITS.1),
        ("importV6", patterns::ipv6_network(), V6_LIMITS.0, V6_LIMITS.1),
    ] {
        let Some(rule) = schema.pointer_mut(&format!("/properties/{key}/items/properties")) else { continue };
        rule["cidr"]["maxLength"] = json!(max_chars);
        rule["cidr"]["pattern"] = json!(patterns::optional(&pattern));
        make_structural(&mut rule["prefixLength"]);
        for bound in ["min", "max"] {
            make_structural(&mut rule["prefixLength"]["properties"][bound]);
            rule["prefixLength"]["properties"][bound]["maximum"] = json!(max_length);
        }
    }
}

api_types! {
    /// A route matches if all specified fields match.
    #[schemars(extend("required" = ["action"], "x-kubernetes-validations" = cel_settings::bgp_filter_rule()))]
    pub struct BGPFilterRule {
        #[schemars(schema_with = "forms::optional_masked_network")]
        pub cidr: String,
        pub prefix_length: Option<BGPFilterPrefixLength>,
        pub source: BGPFilterSource,
        #[schemars(regex(pattern = "^[a-zA-Z0-9_.*-]{0,15}$"))]
        pub interface: String,
        pub match_operator: BGPFilterMatchOperator,
        pub peer_type: BGPFilterPeerType,
        pub communities: Option<BGPFilterCommunities>,
        pub as_path_prefix: Vec<ASNumber>,
        #[schemars(range(min = 1, max = 2147483646))]
        pub priority: Option<i64>,
        pub action: BGPFilterAction = always,
        #[schemars(length(max = 10))]
        pub operations: Vec<BGPFilterOperation>,
    }

    pub struct BGPFilterPrefixLength {
        #[schemars(range(min = 0, max = 128))]
        pub min: Option<i32>,
        #[schemars(range(min = 0, max = 128))]
        pub max: Option<i32>,
    }

    #[schemars(extend("required" = ["values"]))]
    pub struct BGPFilterCommunities {
        #[schemars(schema_with = "forms::communities", length(min = 1, max = 1))]
        pub values: Vec<String> = always,
    }

    /// One operation on an accepted route: exactly one field is set.
    #[schemars(extend("x-kubernetes-validations" = cel_settings::bgp_filter_operation()))]
    pub struct BGPFilterOperation {
        pub add_community: Option<AddCommunity>,
        #[serde(rename = "prependASPath")]
        pub prepend_as_path: Option<PrependASPath>,
        pub set_priority: Option<SetPriority>,
    }

    #[schemars(extend("required" = ["value"]))]
    pub struct AddCommunity {
        #[schemars(schema_with = "forms::community")]
        pub value: String = always,
    }

    #[schemars(extend("required" = ["prefix"]))]
    pub struct PrependASPath {
        #[schemars(length(min = 1, max = 10))]
        pub prefix: Vec<ASNumber> = always,
    }

    #[schemars(extend("required" = ["value"]))]
    pub struct SetPriority {
        #[schemars(range(min = 1, max = 2147483646))]
        pub value: i64 = always,
    }
}

impl ResourceSpec for BGPFilterSpec {
    const KIND: Kind = Kind::BGPFilter;
    type Status = NoStatus;

    fn check_spec(&self, at: &FieldChecker<'_>) {
        for (key, rules, family) in [
            ("exportV4", &self.export_v4, NetworkFamily::V4),
            ("importV4", &self.import_v4, NetworkFamily::V4),
            ("exportV6", &self.export_v6, NetworkFamily::V6),
            ("importV6", &self.import_v6, NetworkFamily::V6),
        ] {
            at.field(key).max_items(rules, MAX_FILTER_RULES);
            for (at, rule) in at.field(key).each(rules) {
                rule.check(&at, family);
            }
        }
    }
}

impl BGPFilterRule {
    fn check(&self, at: &FieldChecker<'_>, family: NetworkFamily) {
        self.check_prefix(at, family);
        at.field("source").one_of(&self.source);
        self.check_interface(at);
        at.field("matchOperator").one_of(&self.match_operator);
        at.field("peerType").one_of(&self.peer_type);
        if let Some(communities) = &self.communities {
            let at = at.field("communities").field("values");
            at.ensure(
                communities.values.len() == 1,
                communities.values.join(","),
                "must have exactly one value",
            );
            for (at, community) in at.each(&communities.values) {
                check_community(&at, community);
            }
        }
        if let Some(priority) = self.priority {
            at.field("priority").within(priority, InclusiveRange(1, MAX_ROUTE_PRIORITY));
        }
        at.field("action").required_one_of(&self.action);
        self.check_operations(&at.field("operations"));
    }

    fn check_prefix(&self, at: &FieldChecker<'_>, family: NetworkFamily) {
        let (max_chars, max_length) = if family == NetworkFamily::V4 { V4_LIMITS } else { V6_LIMITS };
        let place = at.field("cidr");
        if !self.cidr.is_empty() {
            place.max_chars(&self.cidr, max_chars);
            if let Some(net) = place.masked_cidr(&self.cidr) {
                place.ensure(
                    NetworkFamily::of_net(net) == family,
                    &self.cidr,
                    format!("must be an {family} network"),
                );
            }
        }
        at.field("matchOperator").ensure(
            self.cidr.is_empty() == is_default(&self.match_operator),
            &self.match_operator,
            "cidr and matchOperator must both be set or both be left out",
        );
        if let Some(length) = &self.prefix_length {
            let place = at.field("prefixLength");
            place.ensure(!self.cidr.is_empty(), "", "needs a cidr");
            for (key, bits) in [("min", length.min), ("max", length.max)] {
                if let Some(bits) = bits {
                    place.field(key).within(bits, InclusiveRange(0, max_length));
                }
            }
        }
    }

    fn check_interface(&self, at: &FieldChecker<'_>) {
        at.field("interface").ensure(
            self.interface.len() <= 15 && self.interface.bytes().all(|c| is_name_byte(c) || c == b'*'),
            &self.interface,
            "must be an interface name of up to 15 characters, in which * stands for any text",
        );
    }

    fn check_operations(&self, at: &FieldChecker<'_>) {
        at.max_items(&self.operations, 10);
        at.ensure(
            self.operations.is_empty() || self.action == BGPFilterAction::Accept,
            &self.action,
            "operations can only be used with the action Accept",
        );
        for (at, operation) in at.each(&self.operations) {
            operation.check(&at);
        }
    }
}

impl BGPFilterOperation {
    fn check(&self, at: &FieldChecker<'_>) {
        let set = [self.add_community.is_some(), self.prepend_as_path.is_some(), self.set_priority.is_some()];
        let count = set.into_iter().filter(|set| *set).count();
        at.ensure(count == 1, format_args!("{count} operations"), "exactly one operation must be set");
        if let Some(community) = &self.add_community {
            check_community(&at.field("addCommunity").field("value"), &community.value);
        }
        if let Some(path) = &self.prepend_as_path {
            let at = at.field("prependASPath").field("prefix");
            at.max_items(&path.prefix, 10);
            at.ensure(!path.prefix.is_empty(), "", "must have at least one AS number");
        }
        if let Some(priority) = &self.set_priority {
            at.field("setPriority")
                .field("value")
                .within(priority.value, InclusiveRange(1, MAX_ROUTE_PRIORITY));
        }
    }
}
