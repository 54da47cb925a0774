//! The columns of each kind: the heading, the position of the value in the object, and its format.

use super::go;
use serde_json::Value;
use tortie_model::Kind;

/// How a value is formatted as a cell.
#[derive(Clone, Copy)]
pub enum CellFormat {
    /// As Go prints it; empty if absent.
    Text,
    /// If absent, this text: the zero value of a field that Go always prints.
    Or(&'static str),
    /// A float behind a pointer; `<nil>` if absent.
    Float,
    /// The length of a list.
    Count,
    /// Comma-joined list, or map as sorted `k=v`.
    Joined,
    /// Comma-joined and cut to 80 characters.
    Truncated,
    /// Computed from a part of the object with several fields.
    Whole(fn(&Value, &CellFacts) -> String),
}

/// The tables that show a column.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ColumnVisibility {
    Always,
    /// In wide tables.
    Wide,
    /// If its heading is requested.
    OnRequest,
}

pub struct OutputColumn {
    pub heading: &'static str,
    /// JSON pointer into the object.
    at: &'static str,
    format: CellFormat,
    visibility: ColumnVisibility,
}

/// Cluster-wide values that cells may need in addition to their object.
#[derive(Clone, Copy, Debug)]
pub struct CellFacts {
    /// The AS number of nodes that do not configure one.
    pub global_as_number: u32,
}

/// The columns of a kind, in the order of every table.
pub struct KindColumns(&'static [OutputColumn]);

const fn column(heading: &'static str, at: &'static str, format: CellFormat) -> OutputColumn {
    OutputColumn { heading, at, format, visibility: ColumnVisibility::Always }
}

const fn show_in_wide(column: OutputColumn) -> OutputColumn {
    OutputColumn { visibility: ColumnVisibility::Wide, ..column }
}

const fn show_on_request(column: OutputColumn) -> OutputColumn {
    OutputColumn { visibility: ColumnVisibility::OnRequest, ..column }
}

const NAME: OutputColumn = column("NAME", "/metadata/name", CellFormat::Text);
const NAMESPACE: OutputColumn = show_on_request(column("NAMESPACE", "/metadata/namespace", CellFormat::Text));
const TIER: OutputColumn = column("TIER", "/spec/tier", CellFormat::Text);
const ORDER: OutputColumn = column("ORDER", "/spec/order", CellFormat::Float);
const SELECTOR: OutputColumn = column("SELECTOR", "/spec/selector", CellFormat::Text);
const NODE: OutputColumn = column("NODE", "/spec/node", CellFormat::Text);
const NETS: OutputColumn = column("NETS", "/spec/nets", CellFormat::Truncated);
const PROFILES: OutputColumn = column("PROFILES", "/spec/profiles", CellFormat::Joined);

const ONLY_NAME: KindColumns = KindColumns(&[NAME]);
const GLOBAL_POLICY: KindColumns = KindColumns(&[NAME, TIER, show_in_wide(ORDER), show_in_wide(SELECTOR)]);
const NAMESPACED_POLICY: KindColumns =
    KindColumns(&[NAME, NAMESPACE, TIER, show_in_wide(ORDER), show_in_wide(SELECTOR)]);

const BGP_CONFIGURATION: KindColumns = KindColumns(&[
    NAME,
    column("LOGSEVERITY", "/spec/logSeverityScreen", CellFormat::Text),
    column("MESHENABLED", "/spec/nodeToNodeMeshEnabled", CellFormat::Or("-")),
    column("ASNUMBER", "/spec/asNumber", CellFormat::Or("-")),
]);

const BGP_FILTER: KindColumns = KindColumns(&[
    NAME,
    column("NUMEXPORTV4", "/spec/exportV4", CellFormat::Count),
    column("NUMIMPORTV4", "/spec/importV4", CellFormat::Count),
    column("NUMEXPORTV6", "/spec/exportV6", CellFormat::Count),
    column("NUMIMPORTV6", "/spec/importV6", CellFormat::Count),
]);

const BGP_PEER: KindColumns = KindColumns(&[
    NAME,
    column("PEERIP", "/spec/peerIP", CellFormat::Text),
    column("NODE", "/spec", CellFormat::Whole(format_peer_scope)),
    column("ASN", "/spec/asNumber", CellFormat::Or("0")),
]);

const CLUSTER_INFORMATION: KindColumns = KindColumns(&[
    NAME,
    column("CLUSTERGUID", "/spec/clusterGUID", CellFormat::Text),
    column("CLUSTERTYPE", "/spec/clusterType", CellFormat::Text),
    column("CALICOVERSION", "/spec/calicoVersion", CellFormat::Text),
    column("DATASTOREREADY", "/spec/datastoreReady", CellFormat::Or("<nil>")),
]);

const HOST_ENDPOINT: KindColumns = KindColumns(&[
    NAME,
    NODE,
    show_in_wide(column("INTERFACE", "/spec/interfaceName", CellFormat::Text)),
    show_in_wide(column("IPS", "/spec/expectedIPs", CellFormat::Joined)),
    show_in_wide(PROFILES),
]);

const IPAM_CONFIGURATION: KindColumns = KindColumns(&[
    NAME,
    column("STRICTAFFINITY", "/spec/strictAffinity", CellFormat::Or("false")),
    column("AUTOALLOCATEBLOCKS", "/spec/autoAllocateBlocks", CellFormat::Or("false")),
    show_in_wide(column("MAXBLOCKSPERHOST", "/spec/maxBlocksPerHost", CellFormat::Or("0"))),
]);

const IP_POOL: KindColumns = KindColumns(&[
    NAME,
    column("CIDR", "/spec/cidr", CellFormat::Text),
    show_in_wide(column("NAT", "/spec/natOutgoing", CellFormat::Or("false"))),
    show_in_wide(column("IPIPMODE", "/spec/ipipMode", CellFormat::Or("Never"))),
    show_in_wide(column("VXLANMODE", "/spec/vxlanMode", CellFormat::Or("Never"))),
    show_in_wide(column("DISABLED", "/spec/disabled", CellFormat::Or("false"))),
    show_in_wide(column("DISABLEBGPEXPORT", "/spec/disableBGPExport", CellFormat::Or("false"))),
    column("SELECTOR", "/spec/nodeSelector", CellFormat::Text),
    show_in_wide(column("ASSIGNMENTMODE", "/spec/assignmentMode", CellFormat::Or("<nil>"))),
]);

const NODE_COLUMNS: KindColumns = KindColumns(&[
    NAME,
    show_in_wide(column("ASN", "/spec/bgp", CellFormat::Whole(format_node_as_number))),
    show_in_wide(column("IPV4", "/spec/bgp/ipv4Address", CellFormat::Text)),
    show_in_wide(column("IPV6", "/spec/bgp/ipv6Address", CellFormat::Text)),
]);

const WORKLOAD_ENDPOINT: KindColumns = KindColumns(&[
    show_in_wide(NAME),
    NAMESPACE,
    column("WORKLOAD", "/spec", CellFormat::Whole(format_workload)),
    NODE,
    column("NETWORKS", "/spec/ipNetworks", CellFormat::Joined),
    column("INTERFACE", "/spec/interfaceName", CellFormat::Text),
    show_in_wide(PROFILES),
    show_in_wide(column("NATS", "/spec/ipNATs", CellFormat::Whole(format_nats))),
    show_on_request(column("ORCHESTRATOR", "/spec/orchestrator", CellFormat::Text)),
]);

const NODE_STATUS: KindColumns =
    KindColumns(&[NAME, NODE, show_in_wide(column("CLASSES", "/spec/classes", CellFormat::Joined))]);

const KUBERNETES_POLICY: KindColumns = KindColumns(&[
    NAME,
    NAMESPACE,
    show_in_wide(column("PODSELECTOR", "/spec/podSelector", CellFormat::Whole(format_label_selector))),
]);

const IP_RESERVATION: KindColumns =
    KindColumns(&[NAME, show_in_wide(column("CIDRS", "/spec/reservedCIDRs", CellFormat::Truncated))]);

const PROFILE: KindColumns =
    KindColumns(&[NAME, show_in_wide(column("LABELS", "/spec/labelsToApply", CellFormat::Joined))]);

const GLOBAL_NETWORK_SET: KindColumns = KindColumns(&[NAME, show_in_wide(NETS)]);
const NETWORK_SET: KindColumns = KindColumns(&[NAME, NAMESPACE, show_in_wide(NETS)]);
const TIER_COLUMNS: KindColumns = KindColumns(&[NAME, ORDER]);

impl KindColumns {
    pub fn of(kind: Kind) -> KindColumns {
        match kind {
            Kind::BGPConfiguration => BGP_CONFIGURATION,
            Kind::BGPFilter => BGP_FILTER,
            Kind::BGPPeer => BGP_PEER,
            Kind::CalicoNodeStatus => NODE_STATUS,
            Kind::ClusterInformation => CLUSTER_INFORMATION,
            Kind::GlobalNetworkPolicy | Kind::StagedGlobalNetworkPolicy => GLOBAL_POLICY,
            Kind::NetworkPolicy | Kind::StagedNetworkPolicy => NAMESPACED_POLICY,
            Kind::StagedKubernetesNetworkPolicy => KUBERNETES_POLICY,
            Kind::GlobalNetworkSet => GLOBAL_NETWORK_SET,
            Kind::NetworkSet => NETWORK_SET,
            Kind::HostEndpoint => HOST_ENDPOINT,
            Kind::IPAMConfiguration => IPAM_CONFIGURATION,
            Kind::IPPool => IP_POOL,
            Kind::IPReservation => IP_RESERVATION,
            Kind::Node => NODE_COLUMNS,
            Kind::Profile => PROFILE,
            Kind::Tier => TIER_COLUMNS,
            Kind::WorkloadEndpoint => WORKLOAD_ENDPOINT,
            Kind::FelixConfiguration
            | Kind::KubeControllersConfiguration
            | Kind::BlockAffinity
            | Kind::IPAMBlock
            | Kind::IPAMHandle
            | Kind::LiveMigration => ONLY_NAME,
        }
    }

    /// Returns the headings of the columns that a table of this kind shows.
    pub fn headings(&self, table: ColumnVisibility) -> Vec<&'static str> {
        self.0.iter().filter(|column| column.visibility <= table).map(|column| column.heading).collect()
    }

    pub fn find(&self, heading: &str) -> Option<&'static OutputColumn> {
        self.0.iter().find(|column| column.heading == heading)
    }
}

impl OutputColumn {
    pub fn cell(&self, object: &Value, facts: &CellFacts) -> String {
        let at = object.pointer(self.at).filter(|v| !v.is_null());
        match (self.format, at) {
            (CellFormat::Text, None) => String::new(),
            (CellFormat::Or(absent), Some(Value::String(s))) if s.is_empty() => absent.to_owned(),
            (CellFormat::Text | CellFormat::Or(_), Some(value)) => go::value(value),
            (CellFormat::Or(absent), None) => absent.to_owned(),
            (CellFormat::Float, value) => value.and_then(Value::as_f64).map_or("<nil>".to_owned(), go::float),
            (CellFormat::Count, value) => value.and_then(Value::as_array).map_or(0, Vec::len).to_string(),
            (CellFormat::Joined, value) => value.map(|v| join(v, ",")).unwrap_or_default(),
            (CellFormat::Truncated, value) => {
                value.map(|v| join_and_truncate(v, ",", 80)).unwrap_or_default()
            }
            (CellFormat::Whole(write), value) => write(value.unwrap_or(&Value::Null), facts),
        }
    }
}

/// Joins the elements of a list or map into one string; maps as sorted `k=v`.
pub fn join(value: &Value, separator: &str) -> String {
    let parts: Vec<String> = match value {
        Value::Array(items) => items.iter().map(go::value).collect(),
        Value::Object(fields) => {
            let mut parts: Vec<_> = fields.iter().map(|(k, v)| format!("{k}={}", go::value(v))).collect();
            parts.sort();
            parts
        }
        other => vec![go::value(other)],
    };
    parts.join(separator)
}

/// Joins like `join` and truncates to `max` characters; a truncated text ends in three dots.
pub fn join_and_truncate(value: &Value, separator: &str, max: usize) -> String {
    let joined = join(value, separator);
    if max == 0 || joined.chars().count() <= max {
        return joined;
    }
    let kept: String = joined.chars().take(max.saturating_sub(3)).collect();
    kept + "..."
}

fn read_text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn format_peer_scope(spec: &Value, _: &CellFacts) -> String {
    match (read_text(spec, "node"), read_text(spec, "nodeSelector")) {
        ("", "") => "(global)".to_owned(),
        ("", selector) => selector.to_owned(),
        (node, _) => node.to_owned(),
    }
}

fn format_node_as_number(bgp: &Value, facts: &CellFacts) -> String {
    match (bgp, bgp.get("asNumber")) {
        (Value::Null, _) => String::new(),
        (_, Some(number)) if !number.is_null() => go::value(number),
        _ => format!("({})", facts.global_as_number),
    }
}

fn format_workload(spec: &Value, _: &CellFacts) -> String {
    match read_text(spec, "workload") {
        "" => read_text(spec, "pod").to_owned(),
        workload => workload.to_owned(),
    }
}

fn format_nats(nats: &Value, _: &CellFacts) -> String {
    let nats = nats.as_array().map(Vec::as_slice).unwrap_or_default();
    let pairs: Vec<_> = nats
        .iter()
        .map(|nat| format!("{{{} {}}}", read_text(nat, "internalIP"), read_text(nat, "externalIP")))
        .collect();
    pairs.join(",")
}

/// Formats a Kubernetes label selector as Go prints the struct: `{map[app:db] [{tier In [a b]}]}`.
fn format_label_selector(selector: &Value, _: &CellFacts) -> String {
    let labels = selector.get("matchLabels").filter(|v| !v.is_null()).map_or("map[]".to_owned(), go::value);
    let expressions =
        selector.get("matchExpressions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let expressions = go::list(expressions.iter().map(|e| {
        let values = e.get("values").filter(|v| v.is_array()).map_or("[]".to_owned(), go::value);
        format!("{{{} {} {values}}}", read_text(e, "key"), read_text(e, "operator"))
    }));
    format!("{{{labels} {expressions}}}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_word::CLI_KINDS;
    use serde_json::json;

    const FACTS: CellFacts = CellFacts { global_as_number: 64512 };

    fn cells(kind: Kind, headings: &[&str], object: Value) -> Vec<String> {
        let columns = KindColumns::of(kind);
        headings.iter().map(|h| columns.find(h).unwrap().cell(&object, &FACTS)).collect()
    }

    #[test]
    fn every_kind_has_columns() {
        for kind in CLI_KINDS.iter().copied() {
            let columns = KindColumns::of(kind);
            assert!(!columns.headings(ColumnVisibility::Always).is_empty(), "{kind}");
            assert_eq!(columns.find("NAMESPACE").is_some(), kind.is_namespaced(), "{kind}");
        }
    }

    #[test]
    fn cells_of_each_kind() {
        let cases = [
            (
                Kind::Tier,
                json!({"metadata": {"name": "default"}, "spec": {"order": 1000000.0}}),
                vec!["default", "1e+06"],
            ),
            (Kind::Tier, json!({"metadata": {"name": "last"}, "spec": {}}), vec!["last", "<nil>"]),
            (
                Kind::GlobalNetworkPolicy,
                json!({"metadata": {"name": "p"}, "spec": {"tier": "default", "order": 50, "selector": "all()"}}),
                vec!["p", "default", "50", "all()"],
            ),
            (
                Kind::BGPPeer,
                json!({"metadata": {"name": "p"}, "spec": {"peerIP": "192.0.2.1", "asNumber": 64500}}),
                vec!["p", "192.0.2.1", "(global)", "64500"],
            ),
            (
                Kind::BGPPeer,
                json!({"metadata": {"name": "p"}, "spec": {"nodeSelector": "has(x)", "peerSelector": "all()"}}),
                vec!["p", "", "has(x)", "0"],
            ),
            (
                Kind::BGPConfiguration,
                json!({"metadata": {"name": "default"}, "spec": {"logSeverityScreen": "Info"}}),
                vec!["default", "Info", "-", "-"],
            ),
            (
                Kind::BGPConfiguration,
                json!({"metadata": {"name": "default"}, "spec": {"nodeToNodeMeshEnabled": false, "asNumber": 64513}}),
                vec!["default", "", "false", "64513"],
            ),
            (
                Kind::BGPFilter,
                json!({"metadata": {"name": "f"}, "spec": {"exportV4": [{}, {}], "importV6": [{}]}}),
                vec!["f", "2", "0", "0", "1"],
            ),
            (
                Kind::IPPool,
                json!({"metadata": {"name": "a"}, "spec": {"cidr": "10.0.0.0/8", "natOutgoing": true,
                    "vxlanMode": "Always", "nodeSelector": "all()", "assignmentMode": "Automatic"}}),
                vec!["a", "10.0.0.0/8", "true", "Never", "Always", "false", "false", "all()", "Automatic"],
            ),
            (
                Kind::Node,
                json!({"metadata": {"name": "n"}, "spec": {"bgp": {"ipv4Address": "10.0.0.1/24"}}}),
                vec!["n", "(64512)", "10.0.0.1/24", ""],
            ),
            (
                Kind::Node,
                json!({"metadata": {"name": "n"}, "spec": {"bgp": {"asNumber": 7}}}),
                vec!["n", "7", "", ""],
            ),
            (Kind::Node, json!({"metadata": {"name": "n"}, "spec": {}}), vec!["n", "", "", ""]),
            (
                Kind::Profile,
                json!({"metadata": {"name": "p"}, "spec": {"labelsToApply": {"b": "2", "a": "1"}}}),
                vec!["p", "a=1,b=2"],
            ),
            (
                Kind::WorkloadEndpoint,
                json!({"metadata": {"name": "w"}, "spec": {"pod": "web-0", "node": "n", "ipNetworks": ["10.0.0.1/32",
                    "fd00::1/128"], "interfaceName": "cali1", "profiles": ["a", "b"],
                    "ipNATs": [{"internalIP": "10.0.0.1", "externalIP": "192.0.2.1"}]}}),
                vec!["w", "web-0", "n", "10.0.0.1/32,fd00::1/128", "cali1", "a,b", "{10.0.0.1 192.0.2.1}"],
            ),
            (
                Kind::StagedKubernetesNetworkPolicy,
                json!({"metadata": {"name": "s"}, "spec": {"podSelector": {"matchLabels": {"app": "db"}}}}),
                vec!["s", "{map[app:db] []}"],
            ),
            (
                Kind::StagedKubernetesNetworkPolicy,
                json!({"metadata": {"name": "s"}, "spec": {"podSelector": {"matchExpressions":
                    [{"key": "tier", "operator": "In", "values": ["a", "b"]}]}}}),
                vec!["s", "{map[] [{tier In [a b]}]}"],
            ),
            (
                Kind::ClusterInformation,
                json!({"metadata": {"name": "default"}, "spec": {"clusterGUID": "f00"}}),
                vec!["default", "f00", "", "", "<nil>"],
            ),
        ];
        for (kind, object, expected) in cases {
            assert_eq!(
                cells(kind, &KindColumns::of(kind).headings(ColumnVisibility::Wide), object),
                expected,
                "{kind}"
            );
        }
    }

    #[test]
    fn long_lists_end_in_dots() {
        let nets: Vec<_> = (0..20).map(|i| format!("10.0.{i}.0/24")).collect();
        let cell = join_and_truncate(&json!(nets), ",", 80);
        assert_eq!(cell.len(), 80);
        assert!(cell.starts_with("10.0.0.0/24,10.0.1.0/24") && cell.ends_with("..."), "{cell}");
    }
}
