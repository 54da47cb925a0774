//! `tortie explain`: explains why traffic between two endpoints is allowed or denied.

use super::cluster::{EnforcedPlan, PolicyCluster};
use super::endpoint_lookup::{EndpointError, PartyLocation, TrafficParty, find, find_by_address};
use super::proxy_request::{ExplainedRequest, ProxyRequest, RequestLine, ServiceAccountPrincipal};
use super::report;
use super::rule_text::PacketScene;
use super::section::{ExplainedSection, sections};
use super::service::{
    ExplainedEndpoint, ExplainedService, ServiceDestination, ServiceError, ServiceLookupError, find_service,
};
use super::traffic::ExplainedTraffic;
use crate::cli::{ConnectionArgs as StoreConnection, GlobalArgs};
use crate::failure::{CommandError, CommandResult};
use crate::session;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::IpAddr;
use tortie_plan::evaluate::{
    EvaluationTrace, NodeEvaluator, Packet, PacketPath, PathPlace, PolicyOutcome, TraceStep,
};
use tortie_plan::{PolicyDirection, WorkloadId, assign};
use tortie_store::ResourceClient;

/// Default source port.
const DEFAULT_SOURCE_PORT: u16 = 49152;

#[derive(Debug, Args)]
#[command(after_help = EXPLAIN_HELP)]
pub struct ExplainArgs {
    /// Source: namespace/pod, pod, host endpoint, node or address
    #[arg(long, value_name = "PLACE")]
    pub from: String,
    /// Destination, in the same forms, or a service of Kubernetes
    #[arg(long, value_name = "PLACE")]
    pub to: String,
    /// Protocol and port: 80 (the same as tcp/80), udp/53, sctp/5000, icmp/8, icmpv6/128 or protocol/47
    #[arg(long, value_name = "PROTOCOL/PORT", value_parser = |text: &str| text.parse::<ExplainedTraffic>())]
    pub port: ExplainedTraffic,
    /// Source port
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_SOURCE_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    pub from_port: u16,
    /// Explain the decision of the proxy of the destination about this HTTP request too
    #[arg(long, value_name = "METHOD PATH", value_parser = |text: &str| text.parse::<RequestLine>())]
    pub http: Option<RequestLine>,
    /// Identity of the client in its certificate: spiffe://trust-domain/ns/namespace/sa/account
    #[arg(long, value_name = "SPIFFE-ID", requires = "http", value_parser = |text: &str| text.parse::<ServiceAccountPrincipal>())]
    pub principal: Option<ServiceAccountPrincipal>,
    /// Show every rule that was evaluated, not only those that decide or nearly match
    #[arg(long)]
    pub all: bool,
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "text")]
    pub output: ReportFormat,
    #[command(flatten)]
    pub connection: StoreConnection,
    #[command(flatten)]
    pub global: GlobalArgs,
}

const EXPLAIN_HELP: &str = "\
Examples:
  tortie explain --from shop/web-0 --to shop/db-0 --port 5432
  tortie explain --from 198.51.100.7 --to hep:gateway --port tcp/443 --all
  tortie explain --from shop/web-0 --to shop/cart-0 --port 80 --http 'GET /cart' \\
    --principal spiffe://cluster.local/ns/shop/sa/web

Places:
  shop/web-0             a pod, by namespace and name
  web-0                  a pod, a host endpoint or a node, if only one is called so
  hep:gateway, node:n1   a host endpoint, a node
  10.65.0.7, fd00:65::7  the owner of this address, in the cluster or outside
  service:shop/web       a service of Kubernetes (--to), also by its address";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    Text,
    Json,
}

/// The traffic to explain.
#[derive(Clone, Copy, Debug)]
pub struct ExplainQuestion<'q> {
    pub from: &'q str,
    pub to: &'q str,
    pub port: ExplainedTraffic,
    pub from_port: u16,
    pub http: Option<&'q RequestLine>,
    pub principal: Option<&'q ServiceAccountPrincipal>,
}

impl<'q> ExplainQuestion<'q> {
    /// Returns the question about a connection from an ephemeral port.
    pub fn new(from: &'q str, to: &'q str, port: ExplainedTraffic) -> ExplainQuestion<'q> {
        ExplainQuestion { from, to, port, from_port: DEFAULT_SOURCE_PORT, http: None, principal: None }
    }
}

/// The verdict with its reasons.
#[derive(Debug, Serialize)]
pub struct PolicyExplanation {
    pub allowed: bool,
    pub from: ExplainedEnd,
    pub to: ExplainedEnd,
    pub traffic: String,
    /// The request that the proxy of the destination decides about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<ExplainedRequest>,
    /// The service that forwards the traffic; the sections are about one of its endpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<ExplainedService>,
    /// In the order in which the packet passes them.
    pub sections: Vec<ExplainedSection>,
    /// Assumptions made for the verdict.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct ExplainedEnd {
    pub name: String,
    pub address: IpAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// Prints the explanation and returns whether the traffic is allowed.
pub async fn explain(args: &ExplainArgs, out: &mut dyn Write) -> CommandResult<bool> {
    let store = session::connect(&args.connection, &args.global).await?;
    let cluster = PolicyCluster::load(&store).await?;
    let question = ExplainQuestion {
        from: &args.from,
        to: &args.to,
        port: args.port,
        from_port: args.from_port,
        http: args.http.as_ref(),
        principal: args.principal.as_ref(),
    };
    let answer = explain_traffic(&store, &cluster, question).await?;
    print(&answer, args, out)
}

/// Explains the verdict on traffic in the cluster. Reads the endpoints of a service from the store.
pub async fn explain_traffic(
    store: &ResourceClient,
    cluster: &PolicyCluster,
    question: ExplainQuestion<'_>,
) -> CommandResult<PolicyExplanation> {
    let find =
        |flag: &str, text: &str| find(cluster, text).map_err(|error| CommandError::context(flag, error));
    let from = find("--from", question.from)?;
    let service = find_service(store, question.to).await.map_err(|error| match error {
        ServiceLookupError::Service(error) => CommandError::context("--to", error),
        ServiceLookupError::Store(error) => error.into(),
    })?;
    if let Some(service) = service {
        return explain_service(cluster, &from, &service, question);
    }
    let to = find("--to", question.to)?;
    let request = question.http.map(|line| ProxyRequest { line, principal: question.principal });
    let mut proxied = None;
    if let Some(request) = request {
        let workload = request.workload(&to, question.port);
        proxied = Some((request, workload.map_err(|error| CommandError::context("--http", error))?));
    }
    Ok(answer(cluster, &from, &to, (question.port, question.from_port), proxied)?)
}

fn print(answer: &PolicyExplanation, args: &ExplainArgs, out: &mut dyn Write) -> CommandResult<bool> {
    match args.output {
        ReportFormat::Text => out.write_all(report::render(answer, args.all).as_bytes())?,
        ReportFormat::Json => {
            writeln!(out, "{}", serde_json::to_string_pretty(answer)?)?;
        }
    }
    out.flush()?;
    Ok(answer.allowed)
}

/// Explains traffic to a service: it is allowed if it is allowed to every endpoint that may receive it. The sections are
/// those of the first endpoint that denies it, or of the first one.
fn explain_service(
    cluster: &PolicyCluster,
    from: &TrafficParty,
    service: &ServiceDestination,
    args: ExplainQuestion<'_>,
) -> CommandResult<PolicyExplanation> {
    let to_error = |error: ServiceError| CommandError::context("--to", error);
    if args.http.is_some() {
        return Err(to_error(ServiceError::NoProxy(service.name.clone())));
    }
    let (endpoints, notes) = service.endpoints(cluster, from, args.port).map_err(to_error)?;
    let mut explained: Option<PolicyExplanation> = None;
    let mut listed = Vec::new();
    for endpoint in &endpoints {
        let to = find_by_address(cluster, endpoint.address)?;
        let traffic = ExplainedTraffic { port: endpoint.port, ..args.port };
        let answer = answer(cluster, from, &to, (traffic, args.from_port), None)?;
        listed.push(ExplainedEndpoint {
            name: to.name.clone(),
            address: endpoint.address,
            node: to.node().map(str::to_owned),
            traffic: traffic.to_string(),
            allowed: answer.allowed,
        });
        if explained.as_ref().is_none_or(|known| known.allowed && !answer.allowed) {
            explained = Some(answer);
        }
    }
    let explained_endpoint = explained.as_ref().map(|answer| answer.to.name.clone());
    let source = from.addresses.iter().find(|address| address.is_ipv4() == service.address.is_ipv4());
    let mut answer = explained.unwrap_or(PolicyExplanation {
        allowed: false,
        from: ExplainedEnd {
            name: from.name.clone(),
            address: source.copied().unwrap_or(service.address),
            node: from.node().map(str::to_owned),
        },
        to: ExplainedEnd { name: String::new(), address: service.address, node: None },
        traffic: String::new(),
        request: None,
        service: None,
        sections: Vec::new(),
        notes: Vec::new(),
    });
    answer.traffic = args.port.to_string();
    answer.to =
        ExplainedEnd { name: format!("service {}", service.name), address: service.address, node: None };
    answer.notes.extend(notes);
    answer.service = Some(ExplainedService {
        name: service.name.clone(),
        session_affinity: service.has_session_affinity(),
        endpoints: listed,
        explained: explained_endpoint,
    });
    Ok(answer)
}

fn answer(
    cluster: &PolicyCluster,
    from: &TrafficParty,
    to: &TrafficParty,
    (traffic, from_port): (ExplainedTraffic, u16),
    proxied: Option<(ProxyRequest<'_>, (&str, &WorkloadId))>,
) -> Result<PolicyExplanation, EndpointError> {
    if from.node().is_none() && to.node().is_none() {
        return Err(EndpointError::BothOutside { from: from.name.clone(), to: to.name.clone() });
    }
    let (source, destination) = addresses(from, to, traffic)?;
    let packet = Packet {
        source,
        destination,
        protocol: traffic.protocol,
        source_port: if traffic.port.is_some() { from_port } else { 0 },
        destination_port: traffic.port.unwrap_or_default(),
        icmp: traffic.icmp,
    };
    let scene = PacketScene { from, to, packet: &packet };
    let mut notes = Vec::new();
    let mut sections = Vec::new();
    let proxied_workload = proxied.as_ref().map(|(_, (_, id))| *id);
    for leg in legs(from, to) {
        sections.extend(leg.sections(cluster, &scene, proxied_workload, &mut notes));
    }
    if let Some((request, workload)) = &proxied {
        sections.extend(request.sections(cluster, *workload, &scene));
        notes.extend(request.notes(to));
    }
    let end = |party: &TrafficParty, address| ExplainedEnd {
        name: party.name.clone(),
        address,
        node: party.node().map(str::to_owned),
    };
    Ok(PolicyExplanation {
        allowed: sections.iter().all(|section| section.allowed),
        from: end(from, source),
        to: end(to, destination),
        traffic: traffic.to_string(),
        request: proxied.map(|(request, _)| request.explained()),
        service: None,
        sections,
        notes,
    })
}

/// Returns a pair of addresses of one family, preferably IPv4.
fn addresses(
    from: &TrafficParty,
    to: &TrafficParty,
    traffic: ExplainedTraffic,
) -> Result<(IpAddr, IpAddr), EndpointError> {
    let wanted: &[bool] = match traffic.protocol {
        Packet::ICMP => &[true],
        Packet::ICMPV6 => &[false],
        _ => &[true, false],
    };
    let of = |party: &TrafficParty, v4: bool| party.addresses.iter().copied().find(|a| a.is_ipv4() == v4);
    let pair = wanted.iter().find_map(|v4| of(from, *v4).zip(of(to, *v4)));
    pair.ok_or_else(|| EndpointError::NoCommonFamily {
        traffic,
        from: from.describe_addresses(),
        to: to.describe_addresses(),
    })
}

/// The part of the path on one node.
struct PathLeg<'a> {
    node: &'a str,
    from: PathPoint<'a>,
    to: PathPoint<'a>,
}

/// The point where a packet enters or leaves a node.
#[derive(Clone, Copy)]
enum PathPoint<'a> {
    Workload(&'a TrafficParty, &'a str),
    Host(Option<&'a str>),
    /// To or from other machines.
    Wire,
}

fn stop<'a>(party: &'a TrafficParty) -> PathPoint<'a> {
    match &party.place {
        PartyLocation::Workload { interface, .. } => PathPoint::Workload(party, interface),
        PartyLocation::Host { endpoint, .. } => PathPoint::Host(endpoint.as_deref()),
        PartyLocation::Outside => PathPoint::Wire,
    }
}

fn legs<'a>(from: &'a TrafficParty, to: &'a TrafficParty) -> Vec<PathLeg<'a>> {
    match (from.node(), to.node()) {
        (Some(node), Some(other)) if node == other => vec![PathLeg { node, from: stop(from), to: stop(to) }],
        (source, destination) => {
            let first = source.map(|node| PathLeg { node, from: stop(from), to: PathPoint::Wire });
            let second = destination.map(|node| PathLeg { node, from: PathPoint::Wire, to: stop(to) });
            first.into_iter().chain(second).collect()
        }
    }
}

impl PathLeg<'_> {
    fn sections(
        &self,
        cluster: &PolicyCluster,
        scene: &PacketScene<'_>,
        proxied: Option<&WorkloadId>,
        notes: &mut Vec<String>,
    ) -> Vec<ExplainedSection> {
        let EnforcedPlan { plan, settings } = match proxied {
            Some(workload) => cluster.enforced_with_proxy(self.node, workload),
            None => cluster.enforced_on(self.node),
        };
        let named = [self.from, self.to].into_iter().find_map(|stop| match stop {
            PathPoint::Host(endpoint) => endpoint,
            _ => None,
        });
        let uplink = uplink(cluster, self.node, named, notes);
        let mut interfaces: BTreeMap<String, Vec<IpAddr>> =
            plan.host_endpoints.values().map(|endpoint| (endpoint.interface.clone(), Vec::new())).collect();
        interfaces.retain(|name, _| !name.is_empty() && name != "*");
        interfaces.insert(uplink.clone(), cluster.node_addresses(self.node));
        let node = NodeEvaluator::new(&plan, &settings, assign(&plan.host_endpoints, &interfaces));
        let place = |stop: PathPoint<'_>| match stop {
            PathPoint::Workload(_, interface) => PointInterface::Interface(interface.to_owned()),
            PathPoint::Host(_) => PointInterface::Host,
            PathPoint::Wire => PointInterface::Interface(uplink.clone()),
        };
        let (from, to) = (place(self.from), place(self.to));
        let mut trace = EvaluationTrace::default();
        let judgement =
            node.judge(scene.packet, &PacketPath::new(from.place(), to.place()), Some(&mut trace));
        let mut steps = trace.steps;
        // Evaluate the receiver even if the sender is denied: both must allow the traffic.
        if !judgement.allowed
            && let (PathPoint::Workload(..), PathPoint::Workload(party, _)) = (self.from, self.to)
            && !steps
                .iter()
                .any(|step| matches!(step, TraceStep::Workload { direction: PolicyDirection::Ingress, .. }))
        {
            steps.extend(ingress_alone(&node, party, scene.packet));
        }
        sections(self.node, steps, cluster, scene)
    }
}

enum PointInterface {
    Host,
    Interface(String),
}

impl PointInterface {
    fn place(&self) -> PathPlace<'_> {
        match self {
            PointInterface::Host => PathPlace::Host,
            PointInterface::Interface(name) => PathPlace::Interface(name),
        }
    }
}

fn ingress_alone<'p>(node: &NodeEvaluator<'p>, party: &TrafficParty, packet: &Packet) -> Vec<TraceStep<'p>> {
    let PartyLocation::Workload { id, .. } = &party.place else { return Vec::new() };
    let plan = node.plan();
    let Some((id, workload_policy)) = plan.workload_policies.get_key_value(id) else { return Vec::new() };
    let direction = PolicyDirection::Ingress;
    let mut trace = EvaluationTrace { steps: vec![TraceStep::Workload { id, direction }] };
    let decision = node.index().workload(workload_policy, direction, packet, Some(&mut trace));
    let allowed = decision.outcome == PolicyOutcome::Allow;
    trace.steps.push(TraceStep::Decided { allowed, cause: decision.cause });
    trace.steps
}

/// Returns the interface through which a node reaches others. The store does not record it, so it is inferred
/// from host endpoints.
fn uplink(cluster: &PolicyCluster, node: &str, named: Option<&str>, notes: &mut Vec<String>) -> String {
    let own = cluster.node_addresses(node);
    let specific = || {
        cluster.host_endpoints().filter(|endpoint| {
            let spec = &endpoint.spec;
            spec.node == node && !spec.interface_name.is_empty() && spec.interface_name != "*"
        })
    };
    let expected = |endpoint: &tortie_model::kinds::HostEndpoint| {
        endpoint.spec.expected_ips.iter().any(|ip| ip.parse().is_ok_and(|ip| own.contains(&ip)))
    };
    let chosen = specific()
        .find(|endpoint| Some(endpoint.metadata.name.as_str()) == named)
        .or_else(|| specific().find(|endpoint| expected(endpoint)));
    if let Some(endpoint) = chosen {
        return endpoint.spec.interface_name.clone();
    }
    match specific().next() {
        Some(endpoint) => {
            let interface = &endpoint.spec.interface_name;
            let name = &endpoint.metadata.name;
            notes.push(format!(
                "{node} is taken to reach others over {interface}, because of host endpoint {name}; \
                 give it expectedIPs to be sure"
            ));
            interface.clone()
        }
        None => "uplink".to_owned(),
    }
}
