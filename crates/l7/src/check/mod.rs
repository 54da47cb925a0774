//! Decides about one request: translates Envoy's attributes, evaluates policy and translates the verdict.

#[cfg(test)]
mod tests;

use crate::access_log::{AccessLog, AccessRecord};
use crate::metrics::L7Metrics;
use crate::principal::ServiceAccountPrincipal;
use crate::proto::v3::{self, CheckRequest, CheckResponse};
use crate::replica::{Replica, ReplicaPeer};
use crate::state::{PolicyState, ReplicaAccess};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;
use thiserror::Error;
use tortie_plan::evaluate::{
    HttpRequest, Packet, PeerIdentity, PolicyOutcome, ProxiedTraffic, RequestContext, RequestPathError,
    RuleHolder, VerdictCause,
};
use tortie_plan::{PolicyDirection, PolicyId};

/// Status of the HTTP response to a denied request. Envoy uses it too if the response does not name one.
const HTTP_FORBIDDEN: i32 = 403;

/// The verdict for requests while no policy is in sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnsyncedVerdict {
    #[default]
    Deny,
    Allow,
}

#[derive(Clone, Debug)]
pub struct CheckSettings {
    pub direction: PolicyDirection,
    pub not_synced: UnsyncedVerdict,
    /// Lets rules with HTTP conditions match connections without HTTP attributes, as Dikastes does.
    pub http_rules_on_connections: bool,
    /// Header of denied responses that names the rule; none if empty.
    pub denial_header: String,
}

/// Result codes of a check: those of gRPC that Dikastes uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckCode {
    Ok = 0,
    InvalidArgument = 3,
    PermissionDenied = 7,
    Internal = 13,
}

impl CheckCode {
    pub const ALL: [CheckCode; 4] =
        [CheckCode::Ok, CheckCode::InvalidArgument, CheckCode::PermissionDenied, CheckCode::Internal];

    pub fn name(self) -> &'static str {
        match self {
            CheckCode::Ok => "ok",
            CheckCode::InvalidArgument => "invalid-argument",
            CheckCode::PermissionDenied => "permission-denied",
            CheckCode::Internal => "internal",
        }
    }
}

/// The reason why a request cannot be evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RequestFault {
    #[error("the request has no source address")]
    NoSource,
    #[error("the request has no destination address")]
    NoDestination,
    #[error("source and destination are of different families")]
    MixedFamilies,
    #[error("a port is greater than 65535")]
    BadPort,
}

/// The cause of a result code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckCause<'r> {
    Policy(VerdictCause<'r>),
    /// No rule allows the request, and its path does not start with `/`.
    RelativePath,
    BadRequest(RequestFault),
    NotSynced,
    Stale,
    /// The node has sent no endpoint, or has removed it.
    NoEndpoint,
    MissingPolicy(&'r PolicyId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckVerdict<'r> {
    pub code: CheckCode,
    pub cause: CheckCause<'r>,
}

/// Answers checks. It never waits for I/O.
#[derive(Debug)]
pub struct PolicyChecker {
    state: Arc<PolicyState>,
    settings: CheckSettings,
    metrics: Arc<L7Metrics>,
    log: AccessLog,
}

impl PolicyChecker {
    pub fn new(
        state: Arc<PolicyState>,
        settings: CheckSettings,
        metrics: Arc<L7Metrics>,
        log: AccessLog,
    ) -> PolicyChecker {
        PolicyChecker { state, settings, metrics, log }
    }

    pub fn state(&self) -> &PolicyState {
        &self.state
    }

    pub fn check(&self, request: &CheckRequest) -> CheckResponse {
        let began = Instant::now();
        let attributes = CheckAttributes::new(request);
        if attributes.has_unknown_principal() {
            self.metrics.unknown_principals.inc();
        }
        let (code, response, logged_cause) = self.state.with_replica(|access| {
            let verdict = self.decide(access, &attributes);
            if let (CheckCause::Policy(VerdictCause::Rule(rule)), ReplicaAccess::InSync(replica)) =
                (verdict.cause, access)
            {
                replica.count_rule(&rule);
            }
            let is_logged = self.log.wants(verdict.code == CheckCode::Ok);
            let logged_cause = is_logged.then(|| verdict.cause.to_string());
            (verdict.code, self.respond(&verdict), logged_cause)
        });
        // The log is written without the lock, because standard error may be slow.
        if let Some(cause) = logged_cause {
            self.log.write(&attributes.record(code, &cause), &self.metrics);
        }
        self.metrics.observe_check(code, began.elapsed());
        response
    }

    fn decide<'r>(&self, access: ReplicaAccess<'r>, attributes: &CheckAttributes<'r>) -> CheckVerdict<'r> {
        match access {
            ReplicaAccess::InSync(replica) => decide(replica, &self.settings, attributes),
            ReplicaAccess::NotSynced => self.decide_unsynced(CheckCause::NotSynced),
            ReplicaAccess::Stale => self.decide_unsynced(CheckCause::Stale),
        }
    }

    fn decide_unsynced<'r>(&self, cause: CheckCause<'r>) -> CheckVerdict<'r> {
        let code = match self.settings.not_synced {
            UnsyncedVerdict::Deny => CheckCode::Internal,
            UnsyncedVerdict::Allow => CheckCode::Ok,
        };
        CheckVerdict { code, cause }
    }

    /// Translates a verdict. Like Dikastes, only the status is set, unless the response has a header.
    fn respond(&self, verdict: &CheckVerdict<'_>) -> CheckResponse {
        let status = v3::RpcStatus { code: verdict.code as i32, message: String::new() };
        let named = verdict.code != CheckCode::Ok && !self.settings.denial_header.is_empty();
        let denied_response = named.then(|| {
            let header = v3::HeaderValue {
                key: self.settings.denial_header.clone(),
                value: verdict.cause.to_string(),
            };
            v3::DeniedHttpResponse {
                status: Some(v3::HttpStatus { code: HTTP_FORBIDDEN }),
                headers: vec![v3::HeaderValueOption { header: Some(header) }],
            }
        });
        CheckResponse { status: Some(status), denied_response }
    }
}

/// Evaluates the policy of a replica.
pub fn decide<'r>(
    replica: &'r Replica,
    settings: &CheckSettings,
    attributes: &CheckAttributes<'r>,
) -> CheckVerdict<'r> {
    let Some(endpoint) = replica.endpoint() else {
        return CheckVerdict { code: CheckCode::Internal, cause: CheckCause::NoEndpoint };
    };
    if let Some(id) = replica.missing_policy() {
        return CheckVerdict { code: CheckCode::Internal, cause: CheckCause::MissingPolicy(id) };
    }
    let packet = match attributes.packet {
        Ok(packet) => packet,
        Err(fault) => {
            return CheckVerdict { code: CheckCode::InvalidArgument, cause: CheckCause::BadRequest(fault) };
        }
    };
    let http = attributes.http.map(|http| HttpRequest::new(&http.method, &http.path));
    let source = attributes.source.and_then(|peer| identify(replica, peer));
    let destination = attributes.destination.and_then(|peer| identify(replica, peer));
    let context = RequestContext {
        traffic: http.as_ref().map_or(ProxiedTraffic::Connection, ProxiedTraffic::Request),
        http_rules_match_connections: settings.http_rules_on_connections,
        source: source.as_ref().map(|peer| peer as &dyn PeerIdentity),
        destination: destination.as_ref().map(|peer| peer as &dyn PeerIdentity),
    };
    let decision = replica.evaluation().request(endpoint, settings.direction, &packet, &context, None);
    let relative = http.is_some_and(|http| http.path == Err(RequestPathError::NotAbsolute));
    match decision.outcome {
        PolicyOutcome::Allow => {
            CheckVerdict { code: CheckCode::Ok, cause: CheckCause::Policy(decision.cause) }
        }
        PolicyOutcome::Deny | PolicyOutcome::NoMatch if relative => {
            CheckVerdict { code: CheckCode::InvalidArgument, cause: CheckCause::RelativePath }
        }
        PolicyOutcome::Deny | PolicyOutcome::NoMatch => {
            CheckVerdict { code: CheckCode::PermissionDenied, cause: CheckCause::Policy(decision.cause) }
        }
    }
}

/// Returns the authenticated identity of a peer. A principal that names no service account is unknown, as without
/// authentication: address sets restrict it.
fn identify<'r>(replica: &'r Replica, peer: &'r v3::attribute_context::Peer) -> Option<ReplicaPeer<'r>> {
    let principal = ServiceAccountPrincipal::parse(&peer.principal)?;
    Some(replica.peer(principal, &peer.labels))
}

/// The attributes of a request that policy depends on.
#[derive(Clone, Copy, Debug)]
pub struct CheckAttributes<'r> {
    source: Option<&'r v3::attribute_context::Peer>,
    destination: Option<&'r v3::attribute_context::Peer>,
    http: Option<&'r v3::attribute_context::HttpRequest>,
    packet: Result<Packet, RequestFault>,
}

impl<'r> CheckAttributes<'r> {
    pub fn new(request: &'r CheckRequest) -> CheckAttributes<'r> {
        let attributes = request.attributes.as_ref();
        let source = attributes.and_then(|attributes| attributes.source.as_ref());
        let destination = attributes.and_then(|attributes| attributes.destination.as_ref());
        let http = attributes.and_then(|attributes| attributes.request.as_ref()?.http.as_ref());
        CheckAttributes { source, destination, http, packet: read_packet(source, destination) }
    }

    fn has_unknown_principal(&self) -> bool {
        let principal = self.source.map_or("", |peer| peer.principal.as_str());
        !principal.is_empty() && ServiceAccountPrincipal::parse(principal).is_none()
    }

    fn record<'a>(&'a self, code: CheckCode, cause: &'a str) -> AccessRecord<'a> {
        AccessRecord {
            code,
            cause,
            source: self.packet.ok().map(|packet| packet.source),
            port: self.packet.ok().map(|packet| packet.destination_port),
            principal: self.source.map_or("", |peer| peer.principal.as_str()),
            http: self.http,
        }
    }
}

fn read_packet(
    source: Option<&v3::attribute_context::Peer>,
    destination: Option<&v3::attribute_context::Peer>,
) -> Result<Packet, RequestFault> {
    let (from, _, source_port) = read_address(source, RequestFault::NoSource)?;
    let (to, protocol, destination_port) = read_address(destination, RequestFault::NoDestination)?;
    if from.is_ipv4() != to.is_ipv4() {
        return Err(RequestFault::MixedFamilies);
    }
    Ok(Packet { source: from, destination: to, protocol, source_port, destination_port, icmp: None })
}

/// Returns address, protocol and port of a peer.
fn read_address(
    peer: Option<&v3::attribute_context::Peer>,
    missing: RequestFault,
) -> Result<(IpAddr, u8, u16), RequestFault> {
    let socket = peer.and_then(|peer| peer.address.as_ref()?.socket_address.as_ref()).ok_or(missing)?;
    let address: IpAddr = socket.address.parse().map_err(|_| missing)?;
    let protocol = match socket.protocol() {
        v3::socket_address::Protocol::Tcp => Packet::TCP,
        v3::socket_address::Protocol::Udp => Packet::UDP,
    };
    let port = u16::try_from(socket.port_value).map_err(|_| RequestFault::BadPort)?;
    Ok((address.to_canonical(), protocol, port))
}

impl fmt::Display for CheckCause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckCause::Policy(VerdictCause::Rule(rule)) => {
                match rule.holder {
                    RuleHolder::Policy { id, .. } => write!(f, "{id}")?,
                    RuleHolder::Profile(name) => write!(f, "profile/{name}")?,
                }
                write!(f, " {} rule {}", rule.direction, rule.index)
            }
            CheckCause::Policy(VerdictCause::TierEnd(tier)) => write!(f, "end of tier {tier}"),
            CheckCause::Policy(VerdictCause::MissingProfile(name)) => write!(f, "missing profile {name}"),
            CheckCause::Policy(_) => f.write_str("no profile allows it"),
            CheckCause::RelativePath => f.write_str("the path does not start with /"),
            CheckCause::BadRequest(fault) => fault.fmt(f),
            CheckCause::NotSynced => f.write_str("policy is not in sync"),
            CheckCause::Stale => f.write_str("policy is stale"),
            CheckCause::NoEndpoint => f.write_str("the workload has no endpoint"),
            CheckCause::MissingPolicy(id) => write!(f, "policy {id} has not been received"),
        }
    }
}
