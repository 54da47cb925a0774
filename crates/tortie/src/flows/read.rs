//! `tortie flows list` and `tortie flows follow`: a client of nodes and of any collector that implements Goldmane's protocol.

use super::sources::{FlowSource, NodeSourceArgs, connect};
use super::{CollectorArgs, parse_duration};
use clap::{Args, ValueEnum};
use futures::StreamExt;
use std::io::Write;
use std::time::Duration;
use tortie_ctl::{CommandError, layout};
use tortie_flows::FlowItem;
use tortie_flows::proto::{
    Action, Filter, Flow, FlowListRequest, FlowResult, FlowStreamRequest, MatchType, PolicyHit, PolicyKind,
    PolicyMatch, PortMatch, Reporter, StringMatch,
};
use tortie_store::printable::escape_controls;

/// Flows of one request of a list.
const PAGE_FLOWS: i64 = 1000;
/// Maximum number of flows of a source that are sorted by their packets.
const MAX_SORTED_FLOWS: usize = 100_000;
/// Time for the list of one source.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Widths of the columns while following, where the longest cell is not known; the last column has none.
const FOLLOW_WIDTHS: [usize; 6] = [20, 30, 30, 9, 22, 8];

#[derive(Args, Debug)]
pub struct ReadArgs {
    #[command(flatten)]
    pub collector: CollectorArgs,
    #[command(flatten)]
    nodes: NodeSourceArgs,
    /// Only flows of this last time, such as 10m
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    since: Option<Duration>,
    /// Source: a part of the name, with its namespace or without; NAMESPACE/ means all names
    #[arg(long, value_name = "[NAMESPACE/]NAME")]
    from: Option<String>,
    /// Destination: a part of the name, with its namespace or without; NAMESPACE/ means all names
    #[arg(long, value_name = "[NAMESPACE/]NAME")]
    to: Option<String>,
    /// Namespace of the source or the destination
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Destination port
    #[arg(long)]
    port: Vec<u16>,
    /// Protocol, such as tcp
    #[arg(long, value_name = "NAME")]
    protocol: Option<String>,
    /// Verdict; would-allow and would-deny are flows whose verdict staged policies would change
    #[arg(long, value_enum)]
    verdict: Option<VerdictArg>,
    /// Name of a policy that the flow passed
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// End of the connection that reported the flow
    #[arg(long, value_enum)]
    reporter: Option<ReporterArg>,
    /// Maximum number of flows of a list
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: usize,
    /// Only this many flows of a list, those with the most packets first
    #[arg(long, value_name = "COUNT", conflicts_with = "limit")]
    top: Option<usize>,
    /// Output format; json prints one object per line, as whisker-backend does
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "table")]
    output: FlowOutputFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum VerdictArg {
    Allowed,
    Denied,
    WouldAllow,
    WouldDeny,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ReporterArg {
    Src,
    Dst,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FlowOutputFormat {
    Table,
    Wide,
    Json,
    Csv,
}

/// A flow with the node that reported it, which is empty for a collector.
struct FoundFlow {
    node: String,
    flow: Flow,
}

/// Lists flows.
pub async fn list(args: &ReadArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let sources = connect(&args.collector, &args.nodes).await?;
    // The flows with the most packets may be the oldest.
    let limit = args.top.map_or(args.limit, |_| MAX_SORTED_FLOWS);
    let has_nodes = sources.iter().any(|source| !source.name.is_empty());
    let mut found = Vec::new();
    let mut is_complete = true;
    for source in sources {
        let name = source.name.clone();
        match tokio::time::timeout(LIST_TIMEOUT, list_source(args, source, limit, &mut found)).await {
            Ok(Ok(complete)) => is_complete &= complete,
            Ok(Err(error)) if name.is_empty() => return Err(error),
            Ok(Err(error)) => writeln!(std::io::stderr(), "node {name}: {error}; its flows are missing")?,
            Err(_) => {
                let silent =
                    if name.is_empty() { "the collector".to_owned() } else { format!("node {name}") };
                let seconds = LIST_TIMEOUT.as_secs();
                writeln!(
                    std::io::stderr(),
                    "{silent} did not respond within {seconds} s; its flows are missing"
                )?;
            }
        }
    }
    match args.top {
        Some(_) => found.sort_by_key(|found| {
            std::cmp::Reverse(found.flow.packets_in.saturating_add(found.flow.packets_out))
        }),
        None => found.sort_by_key(|found| std::cmp::Reverse(found.flow.start_time)),
    }
    let limit = args.top.unwrap_or(args.limit);
    let is_cut = args.top.is_none() && (!is_complete || found.len() > limit);
    found.truncate(limit);
    match args.output {
        FlowOutputFormat::Json => {
            for FoundFlow { node, flow } in found {
                write_json(out, &node, flow)?;
            }
        }
        format => {
            let is_wide = format != FlowOutputFormat::Table;
            let mut rows = vec![headings(is_wide, has_nodes)];
            rows.extend(
                found.iter().map(|found| render_row(&found.flow, is_wide, has_nodes.then_some(&*found.node))),
            );
            if format == FlowOutputFormat::Csv {
                rows.into_iter().try_for_each(|row| write_csv(out, &row))?;
            } else {
                write!(out, "{}", layout(&rows))?;
            }
        }
    }
    if is_cut {
        writeln!(
            std::io::stderr(),
            "There are more flows; --limit {} shows more.",
            args.limit.saturating_mul(10)
        )?;
    }
    Ok(())
}

/// Appends the flows of one source, up to `limit`. Returns whether these are all.
async fn list_source(
    args: &ReadArgs,
    mut source: FlowSource,
    limit: usize,
    found: &mut Vec<FoundFlow>,
) -> Result<bool, CommandError> {
    let before = found.len();
    let mut page = 0;
    loop {
        let request = FlowListRequest {
            start_time_gte: args.start_time(),
            filter: Some(args.filter()),
            page,
            page_size: PAGE_FLOWS,
            ..FlowListRequest::default()
        };
        let result = source.client.list(request).await.map_err(describe_status)?.into_inner();
        page += 1;
        let flows =
            result.flows.into_iter().filter_map(|result| result.flow).filter(|flow| args.selects(flow));
        found.extend(flows.map(|flow| FoundFlow { node: source.name.clone(), flow }));
        if page >= result.meta.unwrap_or_default().total_pages {
            return Ok(true);
        }
        if found.len() - before > limit {
            return Ok(false);
        }
    }
}

/// Prints flows until all sources have ended their streams.
pub async fn follow(args: &ReadArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let sources = connect(&args.collector, &args.nodes).await?;
    let has_nodes = sources.iter().any(|source| !source.name.is_empty());
    let mut streams = futures::stream::SelectAll::new();
    for mut source in sources {
        let request = FlowStreamRequest {
            start_time_gte: args.start_time(),
            filter: Some(args.filter()),
            ..FlowStreamRequest::default()
        };
        let flows = source.client.stream(request).await.map_err(describe_status)?.into_inner();
        let name = source.name;
        streams.push(flows.map(move |result| (name.clone(), result)).boxed());
    }
    let is_wide = args.output == FlowOutputFormat::Wide;
    match args.output {
        FlowOutputFormat::Json => {}
        FlowOutputFormat::Csv => write_csv(out, &headings(true, has_nodes))?,
        FlowOutputFormat::Table | FlowOutputFormat::Wide => write_row(out, headings(is_wide, has_nodes))?,
    }
    while let Some((node, result)) = streams.next().await {
        let FlowResult { flow, .. } = result.map_err(describe_status)?;
        let Some(flow) = flow.filter(|flow| args.selects(flow)) else { continue };
        let named = has_nodes.then_some(&*node);
        match args.output {
            FlowOutputFormat::Json => write_json(out, &node, flow)?,
            FlowOutputFormat::Csv => write_csv(out, &render_row(&flow, true, named))?,
            FlowOutputFormat::Table | FlowOutputFormat::Wide => {
                write_row(out, render_row(&flow, is_wide, named))?;
            }
        }
        out.flush()?;
    }
    Err(CommandError::message("the stream of flows has ended"))
}

fn describe_status(status: tonic::Status) -> CommandError {
    CommandError::message(format!("the collector returned {:?}: {}", status.code(), status.message()))
}

fn write_json(out: &mut dyn Write, node: &str, flow: Flow) -> Result<(), CommandError> {
    let mut item = serde_json::to_value(FlowItem::new(flow)).map_err(CommandError::message)?;
    if !node.is_empty() {
        item["node"] = node.into();
    }
    Ok(writeln!(out, "{item}")?)
}

/// Writes a row with quoted cells.
fn write_csv(out: &mut dyn Write, row: &[String]) -> Result<(), CommandError> {
    let cells: Vec<String> =
        row.iter().map(|cell| format!("\"{}\"", escape_controls(cell).replace('"', "\"\""))).collect();
    Ok(writeln!(out, "{}", cells.join(","))?)
}

fn write_row(out: &mut dyn Write, row: Vec<String>) -> Result<(), CommandError> {
    let mut line = String::new();
    for (position, cell) in row.iter().enumerate() {
        let width = FOLLOW_WIDTHS.get(position).copied().unwrap_or_default();
        line += &format!("{:<width$}   ", escape_controls(cell));
    }
    Ok(writeln!(out, "{}", line.trim_end())?)
}

impl ReadArgs {
    fn start_time(&self) -> i64 {
        self.since.map_or(0, |since| -i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
    }

    /// Returns the filter that the collector applies.
    fn filter(&self) -> Filter {
        let (source_namespaces, source_names) = match_endpoint(self.from.as_deref());
        let (dest_namespaces, dest_names) = match_endpoint(self.to.as_deref());
        let (allow, deny) = (vec![i32::from(Action::Allow)], vec![i32::from(Action::Deny)]);
        let (actions, pending_actions) = match self.verdict {
            None => (Vec::new(), Vec::new()),
            Some(VerdictArg::Allowed) => (allow, Vec::new()),
            Some(VerdictArg::Denied) => (deny, Vec::new()),
            Some(VerdictArg::WouldAllow) => (deny, allow),
            Some(VerdictArg::WouldDeny) => (allow, deny),
        };
        let reporter = match self.reporter {
            None => Reporter::Unspecified,
            Some(ReporterArg::Src) => Reporter::Src,
            Some(ReporterArg::Dst) => Reporter::Dst,
        };
        let policies =
            self.policy.iter().map(|name| PolicyMatch { name: name.clone(), ..PolicyMatch::default() });
        Filter {
            source_names,
            source_namespaces,
            dest_names,
            dest_namespaces,
            protocols: self.protocol.iter().map(|name| match_text(name, MatchType::Exact)).collect(),
            dest_ports: self.port.iter().map(|port| PortMatch { port: i64::from(*port) }).collect(),
            actions,
            policies: policies.collect(),
            reporter: reporter.into(),
            pending_actions,
        }
    }

    /// Returns whether a flow has the namespace, which the protocol cannot request for either end, and whether the
    /// pending verdict is the requested one.
    fn selects(&self, flow: &Flow) -> bool {
        let Some(key) = &flow.key else { return false };
        let is_changed = match self.verdict {
            Some(VerdictArg::WouldAllow | VerdictArg::WouldDeny) => pending_change(flow).is_some(),
            _ => true,
        };
        let namespace = self.namespace.as_ref();
        is_changed
            && namespace.is_none_or(|name| *name == key.source_namespace || *name == key.dest_namespace)
    }
}

/// Splits [NAMESPACE/]NAME into matches of the namespace and of the name.
fn match_endpoint(text: Option<&str>) -> (Vec<StringMatch>, Vec<StringMatch>) {
    let Some(text) = text else { return (Vec::new(), Vec::new()) };
    let (namespace, name) = match text.split_once('/') {
        Some((namespace, name)) => (vec![match_text(namespace, MatchType::Exact)], name),
        None => (Vec::new(), text),
    };
    let names = if name.is_empty() { Vec::new() } else { vec![match_text(name, MatchType::Fuzzy)] };
    (namespace, names)
}

fn match_text(value: &str, kind: MatchType) -> StringMatch {
    StringMatch { value: value.to_owned(), r#type: kind.into() }
}

fn headings(is_wide: bool, has_nodes: bool) -> Vec<String> {
    let mut row = vec!["START", "FROM", "TO", "PORT", "VERDICT", "REPORTER", "POLICY"];
    if is_wide {
        row.extend(["PACKETS IN", "PACKETS OUT", "BYTES IN", "BYTES OUT", "CONNECTIONS", "SERVICE"]);
    }
    if has_nodes {
        row.push("NODE");
    }
    row.into_iter().map(str::to_owned).collect()
}

fn render_row(flow: &Flow, is_wide: bool, node: Option<&str>) -> Vec<String> {
    let key = flow.key.clone().unwrap_or_default();
    let item = FlowItem::new(flow.clone());
    let trace = key.policies.clone().unwrap_or_default();
    let port =
        if key.dest_port == 0 { key.proto.clone() } else { format!("{}/{}", key.proto, key.dest_port) };
    let verdict = match pending_change(flow) {
        Some(change) => format!("{}, {change}", name_verdict(key.action())),
        None => name_verdict(key.action()).to_owned(),
    };
    let mut row = vec![
        item.start_time,
        join_name(&item.source_namespace, &item.source_name),
        join_name(&item.dest_namespace, &item.dest_name),
        port,
        verdict,
        item.reporter.to_lowercase(),
        trace.enforced_policies.last().map(describe_hit).unwrap_or_default(),
    ];
    if is_wide {
        row.extend(
            [flow.packets_in, flow.packets_out, flow.bytes_in, flow.bytes_out, flow.num_connections_started]
                .map(|count| count.to_string()),
        );
        row.push(join_name(&key.dest_service_namespace, &key.dest_service_name));
    }
    row.extend(node.map(str::to_owned));
    row
}

fn join_name(namespace: &str, name: &str) -> String {
    match namespace {
        "" | "-" => name.to_owned(),
        _ => format!("{namespace}/{name}"),
    }
}

fn name_verdict(action: Action) -> &'static str {
    match action {
        Action::Allow => "allowed",
        Action::Deny => "denied",
        Action::Pass => "passed",
        Action::Unspecified => "unknown",
    }
}

/// Returns how staged policies would change the verdict: the last pending hit decides.
fn pending_change(flow: &Flow) -> Option<&'static str> {
    let key = flow.key.as_ref()?;
    let pending = key.policies.as_ref()?.pending_policies.last()?.action();
    match (key.action(), pending) {
        (Action::Allow, Action::Deny) => Some("would-deny"),
        (Action::Deny, Action::Allow) => Some("would-allow"),
        _ => None,
    }
}

/// Describes the rule that decided.
fn describe_hit(hit: &PolicyHit) -> String {
    match hit.kind() {
        PolicyKind::Profile => format!("profile {} rule {}", hit.name, hit.rule_index),
        PolicyKind::EndOfTier => {
            let trigger = hit.trigger.as_deref().unwrap_or(hit);
            let name = join_name(&trigger.namespace, &trigger.name);
            format!(
                "end of tier {} after {name}",
                if hit.tier.is_empty() { &trigger.tier } else { &hit.tier }
            )
        }
        PolicyKind::KindUnspecified => hit.name.clone(),
        kind => {
            let name = join_name(&hit.namespace, &hit.name);
            format!("{} {name} rule {}", kind.as_str_name(), hit.rule_index)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_flows::proto::{FlowKey, PolicyTrace};

    fn flow(action: Action, pending: Action) -> Flow {
        let hit = |kind: PolicyKind, name: &str, action: Action| PolicyHit {
            kind: kind.into(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            tier: "default".to_owned(),
            action: action.into(),
            rule_index: 2,
            ..PolicyHit::default()
        };
        let trace = PolicyTrace {
            enforced_policies: vec![hit(PolicyKind::CalicoNetworkPolicy, "allow-web", action)],
            pending_policies: vec![hit(PolicyKind::StagedNetworkPolicy, "next", pending)],
        };
        let key = FlowKey {
            source_name: "pub".to_owned(),
            source_namespace: "-".to_owned(),
            dest_name: "web-*".to_owned(),
            dest_namespace: "shop".to_owned(),
            dest_port: 443,
            proto: "tcp".to_owned(),
            reporter: Reporter::Dst.into(),
            action: action.into(),
            policies: Some(trace),
            ..FlowKey::default()
        };
        Flow { key: Some(key), start_time: 1_700_000_000, ..Flow::default() }
    }

    #[test]
    fn rows_name_the_rule_and_pending_verdict() {
        assert_eq!(
            render_row(&flow(Action::Allow, Action::Deny), false, None),
            [
                "2023-11-14T22:13:20Z",
                "PUBLIC NETWORK",
                "shop/web-*",
                "tcp/443",
                "allowed, would-deny",
                "dst",
                "CalicoNetworkPolicy shop/allow-web rule 2"
            ]
        );
        assert_eq!(render_row(&flow(Action::Deny, Action::Deny), false, None)[4], "denied");
        let row = render_row(&flow(Action::Deny, Action::Allow), true, Some("n1"));
        assert_eq!((row.len(), row.last().map(String::as_str)), (headings(true, true).len(), Some("n1")));
        let mut line = Vec::new();
        write_csv(&mut line, &["a,b".to_owned(), "say \"x\"".to_owned()]).unwrap();
        assert_eq!(String::from_utf8(line).unwrap(), "\"a,b\",\"say \"\"x\"\"\"\n");
    }

    #[test]
    fn endpoints_are_split_at_the_slash() {
        let exact = |value: &str| vec![match_text(value, MatchType::Exact)];
        let fuzzy = |value: &str| vec![match_text(value, MatchType::Fuzzy)];
        assert_eq!(match_endpoint(None), (vec![], vec![]));
        assert_eq!(match_endpoint(Some("web")), (vec![], fuzzy("web")));
        assert_eq!(match_endpoint(Some("shop/web")), (exact("shop"), fuzzy("web")));
        assert_eq!(match_endpoint(Some("shop/")), (exact("shop"), vec![]));
    }
}
