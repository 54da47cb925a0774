//! The decision of the proxy of a workload about an HTTP request, for `tortie explain --http`.

use super::cluster::PolicyCluster;
use super::endpoint_lookup::{PartyLocation, TrafficParty};
use super::rule_text::PacketScene;
use super::section::{ExplainedSection, sections};
use super::traffic::ExplainedTraffic;
use serde::Serialize;
use std::collections::BTreeMap;
use std::str::FromStr;
use tortie_model::selector::Selector;
use tortie_plan::evaluate::{
    EvaluationIndex, EvaluationTrace, HttpRequest, Packet, PeerIdentity, PolicyOutcome, ProxiedTraffic,
    RequestContext, RequestPath, RequestPathError, TraceStep,
};
use tortie_plan::{NodePlan, PeerMatch, PolicyDirection, ServiceAccountId, WorkloadId};

#[derive(Debug, thiserror::Error)]
pub enum ProxyRequestError {
    #[error("{0:?} is not a method and a path such as \"GET /path\"")]
    Form(String),
    #[error("the method {0:?} is not a token such as GET")]
    Method(String),
    #[error("the path {0:?} does not start with /")]
    Path(String),
    #[error(
        "{0:?} does not identify a service account: it needs the form spiffe://trust-domain/ns/namespace/sa/account"
    )]
    Principal(String),
    #[error("HTTP needs TCP, not {0}")]
    NotTcp(ExplainedTraffic),
    #[error("{0} is not a workload, and only workloads have proxies")]
    NoWorkload(String),
}

/// The method and the path of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RequestLine {
    pub method: String,
    pub path: String,
}

/// The SPIFFE ID of a service account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAccountPrincipal {
    text: String,
    id: ServiceAccountId,
}

/// The request of a client to the proxy of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyRequest<'a> {
    pub line: &'a RequestLine,
    /// `None` if the client is not authenticated.
    pub principal: Option<&'a ServiceAccountPrincipal>,
}

/// The request in the explanation.
#[derive(Debug, Serialize)]
pub struct ExplainedRequest {
    #[serde(flatten)]
    pub line: RequestLine,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
}

impl FromStr for RequestLine {
    type Err = ProxyRequestError;

    fn from_str(text: &str) -> Result<RequestLine, ProxyRequestError> {
        let form = || ProxyRequestError::Form(text.to_owned());
        let (method, path) = text.split_once(' ').ok_or_else(form)?;
        if path.contains(char::is_whitespace) {
            return Err(form());
        }
        if method.is_empty() || !method.bytes().all(is_token_byte) {
            return Err(ProxyRequestError::Method(method.to_owned()));
        }
        if RequestPath::parse(path) == Err(RequestPathError::NotAbsolute) {
            return Err(ProxyRequestError::Path(path.to_owned()));
        }
        Ok(RequestLine { method: method.to_owned(), path: path.to_owned() })
    }
}

/// Returns whether the byte may occur in a method (`tchar` of RFC 9110, section 5.6.2).
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

impl FromStr for ServiceAccountPrincipal {
    type Err = ProxyRequestError;

    fn from_str(text: &str) -> Result<ServiceAccountPrincipal, ProxyRequestError> {
        let segments = text.strip_prefix("spiffe://").map(|rest| rest.split('/').collect::<Vec<_>>());
        match segments.as_deref() {
            Some([domain, "ns", namespace, "sa", name])
                if ![domain, namespace, name].iter().any(|segment| segment.is_empty()) =>
            {
                let id = ServiceAccountId { namespace: (*namespace).to_owned(), name: (*name).to_owned() };
                Ok(ServiceAccountPrincipal { text: text.to_owned(), id })
            }
            _ => Err(ProxyRequestError::Principal(text.to_owned())),
        }
    }
}

impl ProxyRequest<'_> {
    pub fn explained(&self) -> ExplainedRequest {
        let principal = self.principal.map(|principal| principal.text.clone());
        ExplainedRequest { line: self.line.clone(), principal }
    }

    /// Returns the node and the ID of the workload whose proxy decides.
    pub fn workload<'t>(
        &self,
        to: &'t TrafficParty,
        traffic: ExplainedTraffic,
    ) -> Result<(&'t str, &'t WorkloadId), ProxyRequestError> {
        if traffic.protocol != Packet::TCP {
            return Err(ProxyRequestError::NotTcp(traffic));
        }
        match &to.place {
            PartyLocation::Workload { node, id, .. } => Ok((node.as_str(), id)),
            PartyLocation::Host { .. } | PartyLocation::Outside => {
                Err(ProxyRequestError::NoWorkload(to.name.clone()))
            }
        }
    }

    /// Returns the decision of the proxy of a workload, whose kernel has let the connection pass.
    pub fn sections(
        &self,
        cluster: &PolicyCluster,
        (node, id): (&str, &WorkloadId),
        scene: &PacketScene<'_>,
    ) -> Vec<ExplainedSection> {
        let plan = cluster.enforced_with_proxy(node, id).plan;
        let Some((id, policy)) = plan.workload_policies.get_key_value(id) else { return Vec::new() };
        let direction = PolicyDirection::Ingress;
        let identity =
            self.principal.map(|principal| ServiceAccountIdentity { id: &principal.id, plan: &plan });
        let request = HttpRequest::new(&self.line.method, &self.line.path);
        let context = RequestContext {
            traffic: ProxiedTraffic::Request(&request),
            http_rules_match_connections: false,
            source: identity.as_ref().map(|identity| identity as &dyn PeerIdentity),
            destination: None,
        };
        let mut trace = EvaluationTrace { steps: vec![TraceStep::Workload { id, direction }] };
        let index = EvaluationIndex::new(&plan);
        let decision = index.request(policy, direction, scene.packet, &context, Some(&mut trace));
        let allowed = decision.outcome == PolicyOutcome::Allow;
        trace.steps.push(TraceStep::Decided { allowed, cause: decision.cause });
        let mut explained = sections(node, trace.steps, cluster, scene);
        explained.iter_mut().for_each(|section| section.stage = Some("requests at its proxy"));
        explained
    }

    /// Returns the assumptions of the explanation.
    pub fn notes(&self, to: &TrafficParty) -> Vec<String> {
        let mut notes = vec![format!(
            "{} is taken to have a proxy that is in sync; without one, rules with http conditions match nothing there",
            to.name
        )];
        match RequestPath::parse(&self.line.path) {
            Ok(path) => notes.extend(describe_readings(&path, &self.line.path)),
            Err(error) => {
                notes.push(format!("{error}; no rule that lists paths allows it"));
            }
        }
        if self.principal.is_none() {
            notes.push(
                "the client is taken to be unauthenticated, so that its address alone identifies it; see --principal"
                    .to_owned(),
            );
        }
        notes
    }
}

/// Returns a note if rules are compared with other paths than the one in the request.
fn describe_readings(path: &RequestPath<'_>, written: &str) -> Option<String> {
    let normal = path.as_str();
    match path.literal() {
        Some(literal) => Some(format!(
            "servers read the path as {normal} or as {literal}; a rule that allows must list both"
        )),
        None if normal != written => {
            Some(format!("rules are compared with the normal form of the path, {normal}"))
        }
        None => None,
    }
}

/// A service account with its labels and those of its namespace.
struct ServiceAccountIdentity<'p> {
    id: &'p ServiceAccountId,
    plan: &'p NodePlan,
}

impl PeerIdentity for ServiceAccountIdentity<'_> {
    fn matches(&self, peer: &PeerMatch, policy_namespace: &str) -> bool {
        let names = &peer.service_accounts;
        let is_named = names.is_empty() || names.contains(&self.id.name);
        let no_labels = BTreeMap::new();
        let account = self.plan.service_accounts.get(self.id).map_or(&no_labels, AsRef::as_ref);
        if !is_named || !select_labels(&peer.service_account_selector, account) {
            return false;
        }
        if !peer.namespace_selector.is_empty() {
            let namespace = self.plan.namespaces.get(&self.id.namespace).map_or(&no_labels, AsRef::as_ref);
            return select_labels(&peer.namespace_selector, namespace);
        }
        // Without a namespace selector, a rule selects peers in the namespace of its policy.
        policy_namespace.is_empty() || *peer == PeerMatch::default() || self.id.namespace == policy_namespace
    }
}

/// Returns whether a selector matches labels. `global()` selects objects without a namespace, which service accounts
/// always have.
fn select_labels(selector: &str, labels: &BTreeMap<String, String>) -> bool {
    selector.is_empty()
        || Selector::parse(selector).is_ok_and(|selector| !selector.uses_global() && selector.matches(labels))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn requests_and_principals_are_parsed() {
        let line = RequestLine { method: "GET".to_owned(), path: "/a?b".to_owned() };
        assert_eq!("GET /a?b".parse::<RequestLine>().unwrap(), line);
        for text in ["", "GET", "/a", "GET /a b", " /a", "G@T /a", "GET a", "GET  /a", "GET http://x/"] {
            assert!(text.parse::<RequestLine>().is_err(), "{text:?}");
        }
        let principal: ServiceAccountPrincipal = "spiffe://td/ns/shop/sa/api.v2".parse().unwrap();
        assert_eq!((principal.id.namespace.as_str(), principal.id.name.as_str()), ("shop", "api.v2"));
        for text in
            ["", "spiffe://", "spiffe:///ns/a/sa/b", "spiffe://td/ns//sa/b", "spiffe://td/ns/a/sa/b/c", "a/b"]
        {
            assert!(text.parse::<ServiceAccountPrincipal>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn identities_meet_accounts_and_namespaces() {
        let labels = |key: &str, value: &str| Arc::new(BTreeMap::from([(key.to_owned(), value.to_owned())]));
        let id = ServiceAccountId { namespace: "shop".to_owned(), name: "api".to_owned() };
        let mut plan = NodePlan::default();
        plan.namespaces.insert("shop".to_owned(), labels("team", "red"));
        plan.service_accounts.insert(id.clone(), labels("kind", "robot"));
        let identity = ServiceAccountIdentity { id: &id, plan: &plan };
        let peer = |change: fn(&mut PeerMatch)| {
            let mut peer = PeerMatch::default();
            change(&mut peer);
            [identity.matches(&peer, ""), identity.matches(&peer, "shop"), identity.matches(&peer, "ops")]
        };
        assert_eq!(peer(|_| {}), [true, true, true]);
        assert_eq!(peer(|peer| peer.selector = "all()".to_owned()), [true, true, false]);
        assert_eq!(peer(|peer| peer.service_accounts = vec!["api".to_owned()]), [true, true, false]);
        assert_eq!(peer(|peer| peer.service_accounts = vec!["web".to_owned()]), [false; 3]);
        assert_eq!(
            peer(|peer| peer.service_account_selector = "kind == 'robot'".to_owned()),
            [true, true, false]
        );
        assert_eq!(peer(|peer| peer.service_account_selector = "has(x)".to_owned()), [false; 3]);
        assert_eq!(peer(|peer| peer.namespace_selector = "team == 'red'".to_owned()), [true; 3]);
        assert_eq!(peer(|peer| peer.namespace_selector = "team == 'blue'".to_owned()), [false; 3]);
        assert_eq!(peer(|peer| peer.namespace_selector = "global()".to_owned()), [false; 3]);
    }
}
