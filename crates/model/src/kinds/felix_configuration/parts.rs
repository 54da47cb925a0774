//! Types of the parameters that consist of more than one value.

use super::accepts::{AcceptedValues, ParameterType, ParameterValue, listed};
use crate::FieldChecker;
use crate::kinds::cel_settings;
use crate::kinds::shared::check_word;
use crate::scalar::GoDuration;
use crate::schema::forms;
use crate::validation::InclusiveRange;
use serde_json::{Map, Value, json};

api_types! {
    /// How long a component of the daemon may fail to report before it counts as stuck.
    #[schemars(extend("required" = ["name", "timeout"]))]
    pub struct HealthTimeoutOverride {
        #[schemars(length(min = 1))]
        pub name: String = always,
        #[schemars(extend("x-kubernetes-validations" = forms::optional_span()))]
        pub timeout: GoDuration = always,
    }

    /// A port that policy never blocks, for all addresses or for one network.
    #[schemars(extend("required" = ["port"]))]
    pub struct ProtoPort {
        /// Defaults to `TCP`.
        #[schemars(regex(pattern = "^(?i)(TCP|UDP|SCTP)?$"))]
        pub protocol: String = always,
        #[schemars(range(min = 1, max = 65535))]
        pub port: u16 = always,
        #[schemars(schema_with = "forms::optional_network_or_address")]
        pub net: String,
    }
}

/// The last routing table that `routeTableRange` may include.
const MAX_ROUTE_TABLE_INDEX: i64 = 250;

api_types! {
    /// Routing tables that may be used, from `min` to `max` inclusive.
    #[schemars(extend("required" = ["min", "max"], "x-kubernetes-validations" = cel_settings::route_table_range()))]
    pub struct RouteTableRange {
        #[schemars(range(min = 1))]
        pub min: i64 = always,
        pub max: i64 = always,
    }

    /// Timeouts of idle connections: a duration, or `Auto` for the timeout of the kernel.
    pub struct BPFConntrackTimeouts {
        #[schemars(schema_with = "forms::span_or_auto")]
        pub creation_grace_period: Option<String>,
        #[schemars(schema_with = "forms::span_or_auto")]
        pub tcp_syn_sent: Option<String>,
        #[schemars(schema_with = "forms::span_or_auto")]
        pub tcp_established: Option<String>,
        #[schemars(schema_with = "forms::span_or_auto")]
        pub tcp_fins_seen: Option<String>,
        #[schemars(schema_with = "forms::span_or_auto")]
        pub tcp_reset_seen: Option<String>,
        #[schemars(schema_with = "forms::span_or_auto")]
        pub udp_timeout: Option<String>,
        #[schemars(schema_with = "forms::span_or_auto")]
        pub generic_timeout: Option<String>,
        #[schemars(schema_with = "forms::span_or_auto")]
        pub icmp_timeout: Option<String>,
    }
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
        if self.is_empty() {
            return String::new();
        }
        listed(self, |item| format!("{}={}", item.name, item.timeout))
    }
}

impl ParameterValue for Vec<ProtoPort> {
    fn check(&self, _: &AcceptedValues, at: &FieldChecker<'_>) {
        for (at, item) in at.each(self) {
            check_word(&at.field("protocol"), &item.protocol, &["TCP", "UDP", "SCTP"]);
            at.field("port").port_number(item.port);
            if !item.net.is_empty() {
                at.field("net").cidr(&item.net);
            }
        }
    }

    fn text(&self) -> String {
        listed(self, ProtoPort::text)
    }
}

impl ParameterValue for RouteTableRange {
    fn describe(schema: &mut Map<String, Value>) {
        if let Some(max) = schema.get_mut("properties").and_then(|properties| properties.get_mut("max")) {
            max["maximum"] = json!(MAX_ROUTE_TABLE_INDEX);
        }
    }

    fn check(&self, _: &AcceptedValues, at: &FieldChecker<'_>) {
        self.check_order(at);
        at.field("max").within(self.max, InclusiveRange(1, MAX_ROUTE_TABLE_INDEX));
    }

    fn text(&self) -> String {
        format!("{}-{}", self.min, self.max)
    }
}

impl ParameterValue for Vec<RouteTableRange> {
    fn check(&self, _: &AcceptedValues, at: &FieldChecker<'_>) {
        for (at, range) in at.each(self) {
            range.check_order(&at);
        }
    }

    fn text(&self) -> String {
        listed(self, RouteTableRange::text)
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
    fn check_order(&self, at: &FieldChecker<'_>) {
        at.field("min").ensure(self.min >= 1, self.min, "must be at least 1");
        at.field("min").ensure(self.min <= self.max, self.min, "must not be greater than max");
    }
}

impl ParameterValue for BPFConntrackTimeouts {
    fn check(&self, _: &AcceptedValues, at: &FieldChecker<'_>) {
        for (key, timeout) in self.fields() {
            if let Some(text) = timeout {
                let fits = text == "Auto" || text.parse::<GoDuration>().is_ok_and(|span| !span.is_negative());
                at.field(key).ensure(fits, text, "must be a span of time such as 10s, or Auto");
            }
        }
    }

    fn text(&self) -> String {
        let set =
            self.fields().into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value.as_ref()?)));
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
