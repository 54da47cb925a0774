//! Types of the parameters that consist of more than one value.

use super::accepts::{AcceptedValues, ParameterType, listed};
use crate::FieldChecker;
use crate::kinds::cel_settings;
use crate::kinds::shared::check_word;
use crate::scalar::{GoDuration, is_default};
use crate::schema::forms;
use crate::validation::InclusiveRange;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// How long a component of the daemon may fail to report before it counts as stuck.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["name", "timeout"]))]
pub struct HealthTimeoutOverride {
    #[schemars(length(min = 1))]
    pub name: String,
    #[schemars(extend("x-kubernetes-validations" = forms::optional_span()))]
    pub timeout: GoDuration,
}

/// A port that policy never blocks, for all addresses or for one network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["port"]))]
pub struct ProtoPort {
    /// Defaults to `TCP`.
    #[schemars(regex(pattern = "^(?i)(TCP|UDP|SCTP)?$"))]
    pub protocol: String,
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    #[schemars(schema_with = "forms::optional_network_or_address")]
    pub net: String,
}

/// The last routing table that `routeTableRange` may include.
const MAX_ROUTE_TABLE_INDEX: i64 = 250;

/// Routing tables that may be used, from `min` to `max` inclusive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["min", "max"], "x-kubernetes-validations" = cel_settings::route_table_range()))]
pub struct RouteTableRange {
    #[schemars(range(min = 1))]
    pub min: i64,
    pub max: i64,
}

/// Timeouts of idle connections: a duration, or `Auto` for the timeout of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BPFConntrackTimeouts {
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::span_or_auto")]
    pub creation_grace_period: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::span_or_auto")]
    pub tcp_syn_sent: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::span_or_auto")]
    pub tcp_established: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::span_or_auto")]
    pub tcp_fins_seen: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::span_or_auto")]
    pub tcp_reset_seen: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::span_or_auto")]
    pub udp_timeout: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::span_or_auto")]
    pub generic_timeout: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::span_or_auto")]
    pub icmp_timeout: Option<String>,
}

impl ParameterType for Vec<HealthTimeoutOverride> {
    fn is_unset(&self) -> bool {
        self.is_empty()
    }

    fn check(&self, _: &AcceptedValues, at: &FieldChecker<'_>) {
        for (at, item) in at.each(self) {
            at.field("name").ensure(!item.name.is_empty(), "", "must name a part of the daemon");
            at.field("timeout").ensure(!item.timeout.is_negative(), item.timeout, "must not be negative");
        }
    }

    fn text(&self) -> String {
        let text = |item: &HealthTimeoutOverride| format!("{}={}", item.name, item.timeout);
        if self.is_empty() { String::new() } else { listed(self, text) }
    }
}

impl ParameterType for Option<Vec<ProtoPort>> {
    fn is_unset(&self) -> bool {
        self.is_none()
    }

    fn check(&self, _: &AcceptedValues, at: &FieldChecker<'_>) {
        for (at, item) in at.each(self.as_deref().unwrap_or_default()) {
            check_word(&at.field("protocol"), &item.protocol, &["TCP", "UDP", "SCTP"]);
            at.field("port").port_number(item.port);
            if !item.net.is_empty() {
                at.field("net").cidr(&item.net);
            }
        }
    }

    fn text(&self) -> String {
        self.as_deref().map(|list| listed(list, ProtoPort::text)).unwrap_or_default()
    }
}

impl ParameterType for Option<RouteTableRange> {
    fn describe(schema: &mut Map<String, Value>) {
        if let Some(max) = schema.get_mut("properties").and_then(|properties| properties.get_mut("max")) {
            max["maximum"] = json!(MAX_ROUTE_TABLE_INDEX);
        }
    }

    fn is_unset(&self) -> bool {
        self.is_none()
    }

    fn check(&self, _: &AcceptedValues, at: &FieldChecker<'_>) {
        if let Some(range) = self {
            range.check(at);
            at.field("max").within(range.max, InclusiveRange(1, MAX_ROUTE_TABLE_INDEX));
        }
    }

    fn text(&self) -> String {
        self.as_ref().map(RouteTableRange::text).unwrap_or_default()
    }
}

impl ParameterType for Option<Vec<RouteTableRange>> {
    fn is_unset(&self) -> bool {
        self.is_none()
    }

    fn check(&self, _: &AcceptedValues, at: &FieldChecker<'_>) {
        for (at, range) in at.each(self.as_deref().unwrap_or_default()) {
            range.check(&at);
        }
    }

    fn text(&self) -> String {
        self.as_deref().map(|list| listed(list, RouteTableRange::text)).unwrap_or_default()
    }
}

impl ProtoPort {
    /// Formats the port: `tcp:22`, `udp:10.0.0.0/8:53`, `tcp:[fd00::/8]:80`.
    fn text(&self) -> String {
        let protocol = if self.protocol.is_empty() { "tcp" } else { &self.protocol }.to_ascii_lowercase();
        match self.net.as_str() {
            "" => format!("{protocol}:{}", self.port),
            net if net.contains(':') => format!("{protocol}:[{net}]:{}", self.port),
            net => format!("{protocol}:{net}:{}", self.port),
        }
    }
}

impl RouteTableRange {
    fn text(&self) -> String {
        format!("{}-{}", self.min, self.max)
    }

    fn check(&self, at: &FieldChecker<'_>) {
        at.field("min").ensure(self.min >= 1, self.min, "must be at least 1");
        at.field("min").ensure(self.min <= self.max, self.min, "must not be greater than max");
    }
}

impl ParameterType for Option<BPFConntrackTimeouts> {
    fn is_unset(&self) -> bool {
        self.is_none()
    }

    fn check(&self, _: &AcceptedValues, at: &FieldChecker<'_>) {
        let Some(timeouts) = self else { return };
        for (key, timeout) in timeouts.fields() {
            if let Some(text) = timeout {
                let fits = text == "Auto" || text.parse::<GoDuration>().is_ok_and(|span| !span.is_negative());
                at.field(key).ensure(fits, text, "must be a span of time such as 10s, or Auto");
            }
        }
    }

    fn text(&self) -> String {
        let set = self.iter().flat_map(BPFConntrackTimeouts::fields);
        let set = set.filter_map(|(key, value)| Some(format!("{key}={}", value.as_ref()?)));
        set.collect::<Vec<_>>().join(",")
    }
}

impl BPFConntrackTimeouts {
    fn fields(&self) -> [(&'static str, &Option<String>); 8] {
        [
            ("creationGracePeriod", &self.creation_grace_period),
            ("tcpSynSent", &self.tcp_syn_sent),
            ("tcpEstablished", &self.tcp_established),
            ("tcpFinsSeen", &self.tcp_fins_seen),
            ("tcpResetSeen", &self.tcp_reset_seen),
            ("udpTimeout", &self.udp_timeout),
            ("genericTimeout", &self.generic_timeout),
            ("icmpTimeout", &self.icmp_timeout),
        ]
    }
}
