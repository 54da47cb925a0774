//! Converts the steps of an evaluation trace into sections, one per endpoint, with descriptions.

use super::advice;
use super::cluster::Cluster;
use super::words::{self, Scene, Written};
use serde::Serialize;
use tortie_plan::evaluate::{Cause, Connection, Criterion, Holder, RuleAt, Stage, Step};
use tortie_plan::{Action, Direction, EndpointToHost, PolicyId};

/// The evaluation at one endpoint, or a decision of the node itself.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Section {
    pub node: String,
    /// The endpoint whose rules are evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<&'static str>,
    /// The stage, if it is not the normal processing of traffic from or to the endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<&'static str>,
    pub allowed: bool,
    /// The type of the cause.
    pub cause: &'static str,
    pub because: String,
    /// In the order of evaluation; the last one decided if it matched.
    pub rules: Vec<EvaluatedRule>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub staged: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<String>,
}

/// A rule that was evaluated.
#[derive(Clone, Debug, Serialize)]
pub struct EvaluatedRule {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// `np/shop/allow-db` or `profile kns.shop`.
    pub of: String,
    /// Counted from 1 in the list of its direction.
    pub rule: u32,
    pub action: &'static str,
    pub says: String,
    pub matched: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// A rule and the criteria that it fails on, before they are formatted.
pub struct Asked<'p> {
    pub at: RuleAt<'p>,
    pub misses: Vec<Criterion<'p>>,
}

/// Splits the trace of one node into sections.
pub fn sections(node: &str, steps: Vec<Step<'_>>, cluster: &Cluster, scene: &Scene<'_>) -> Vec<Section> {
    let mut sections = Vec::new();
    let mut open = Opened::default();
    for step in steps {
        match step {
            Step::Workload { id, direction } => {
                open = Opened::new(id.workload.clone(), direction, None);
            }
            Step::Host { name, stage, direction } => {
                open = Opened::new(format!("host endpoint {name}"), direction, stage_name(stage));
            }
            Step::Rule { at, misses } => open.asked.push(Asked { at, misses }),
            Step::Staged { id, would, .. } => open.staged.push(staged(id, would)),
            Step::Policy { tier, id } => open.policies.push((tier, id)),
            // The step that decides contains the tier: its end, or a later step.
            Step::TierEnd { .. } => {}
            Step::Decided { allowed, cause } => {
                sections.push(open.close(node, allowed, cause, cluster, scene));
                open = Opened::default();
            }
        }
    }
    sections
}

struct Opened<'p> {
    endpoint: Option<String>,
    direction: Direction,
    stage: Option<&'static str>,
    asked: Vec<Asked<'p>>,
    /// The enforced policies, with their tiers.
    policies: Vec<(&'p str, &'p PolicyId)>,
    staged: Vec<String>,
}

impl Default for Opened<'_> {
    fn default() -> Self {
        Opened {
            endpoint: None,
            direction: Direction::Ingress,
            stage: None,
            asked: Vec::new(),
            policies: Vec::new(),
            staged: Vec::new(),
        }
    }
}

impl<'p> Opened<'p> {
    fn new(endpoint: String, direction: Direction, stage: Option<&'static str>) -> Opened<'p> {
        Opened { endpoint: Some(endpoint), direction, stage, ..Opened::default() }
    }

    fn close(
        self,
        node: &str,
        allowed: bool,
        cause: Cause<'p>,
        cluster: &Cluster,
        scene: &Scene<'_>,
    ) -> Section {
        let who = self.endpoint.clone().unwrap_or_else(|| format!("node {node}"));
        let because = match cause {
            Cause::TierEnd(tier) => self.tier_end(tier, &who),
            cause => because(cause, &who, cluster),
        };
        let advice = match allowed {
            true => Vec::new(),
            false => advice::advise(cause, &who, &self.asked, cluster, scene),
        };
        let rules = self.asked.iter().map(|asked| asked.seen(cluster, scene)).collect();
        let direction = self.endpoint.is_some().then_some(direction_name(self.direction));
        Section {
            node: node.to_owned(),
            endpoint: self.endpoint,
            direction,
            stage: self.stage,
            allowed,
            cause: kind(cause),
            because,
            rules,
            staged: self.staged,
            advice,
        }
    }

    fn tier_end(&self, tier: &str, who: &str) -> String {
        let of_tier = self.policies.iter().filter(|(of, _)| *of == tier);
        let names: Vec<String> = of_tier.map(|(_, id)| id.to_string()).collect();
        let (apply, their) = if names.len() == 1 { ("applies", "its") } else { ("apply", "their") };
        let direction = direction_name(self.direction);
        format!(
            "end of tier {tier}: {} {apply} to {direction} of {who}, and none of {their} rules match",
            words::list(&names)
        )
    }
}

impl Asked<'_> {
    pub fn written<'a>(&'a self, cluster: &'a Cluster) -> Written<'a> {
        let namespace = match self.at.holder {
            Holder::Policy { id, .. } => id.namespace.as_str(),
            Holder::Profile(_) => "",
        };
        Written { rule: cluster.rule(&self.at), namespace }
    }

    fn seen(&self, cluster: &Cluster, scene: &Scene<'_>) -> EvaluatedRule {
        let written = self.written(cluster);
        let (tier, of) = match self.at.holder {
            Holder::Policy { tier, id } => (Some(tier.to_owned()), id.to_string()),
            Holder::Profile(name) => (None, format!("profile {name}")),
        };
        EvaluatedRule {
            tier,
            of,
            rule: self.at.index.number(),
            action: action_name(self.at.rule.action),
            says: written.rule.map_or_else(|| action_name(self.at.rule.action).to_owned(), words::rule),
            matched: self.misses.is_empty(),
            missing: self.misses.iter().map(|miss| scene.miss(miss, written)).collect(),
        }
    }
}

/// Formats the position of a rule.
pub fn place(at: &RuleAt<'_>) -> String {
    match at.holder {
        Holder::Policy { id, .. } => format!("{id}, {} rule {}", at.direction, at.index),
        Holder::Profile(name) => format!("profile {name}, {} rule {}", at.direction, at.index),
    }
}

fn staged(id: &PolicyId, would: Option<RuleAt<'_>>) -> String {
    match would {
        Some(at) => {
            let action = action_name(at.rule.action).to_lowercase();
            format!("{} would {action} it", place(&at))
        }
        None => format!("{id} has no rule for it, and the end of its tier would decide"),
    }
}

pub fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    }
}

fn stage_name(stage: Stage) -> Option<&'static str> {
    match stage {
        Stage::Normal => None,
        Stage::Forward => Some("forwarded traffic"),
        Stage::Untracked => Some("before connection tracking"),
        Stage::PreDnat => Some("before DNAT"),
    }
}

fn action_name(action: Action) -> &'static str {
    match action {
        Action::Allow => "Allow",
        Action::Deny => "Deny",
        Action::Log => "Log",
        Action::Pass => "Pass",
    }
}

/// Returns the machine-readable name of a cause.
fn kind(cause: Cause<'_>) -> &'static str {
    match cause {
        Cause::Rule(_) => "rule",
        Cause::TierEnd(_) => "tierEnd",
        Cause::NoProfile => "noProfile",
        Cause::MissingProfile(_) => "missingProfile",
        Cause::NothingSaid => "nothingSaid",
        Cause::Connection(_) => "connection",
        Cause::Down => "down",
        Cause::UnknownWorkload => "unknownWorkload",
        Cause::Spoofed => "spoofed",
        Cause::Loopback => "loopback",
        Cause::LinkLocal => "linkLocal",
        Cause::Encapsulation => "encapsulation",
        Cause::Tunnel => "tunnel",
        Cause::UnknownTunnel => "unknownTunnel",
        Cause::NeighbourDiscovery => "neighbourDiscovery",
        Cause::EndpointToHost(_) => "endpointToHost",
        Cause::Failsafe => "failsafe",
        Cause::AcceptedBefore => "acceptedBefore",
        Cause::NoHostEndpoint => "noHostEndpoint",
        Cause::HostToWorkload => "hostToWorkload",
        Cause::NoForwardPolicy => "noForwardPolicy",
        Cause::ServiceLoop => "serviceLoop",
    }
}

fn because(cause: Cause<'_>, who: &str, cluster: &Cluster) -> String {
    match cause {
        Cause::Rule(RuleAt { holder: Holder::Profile(name), .. }) if !cluster.has_profile(name) => {
            format!("profile {name} does not exist, and what does not exist allows nothing")
        }
        Cause::Rule(at) => {
            let written = cluster.rule(&at);
            let says = written.map_or_else(|| action_name(at.rule.action).to_owned(), words::rule);
            match at.holder {
                Holder::Policy { tier, .. } => format!("{} (tier {tier}): {says}", place(&at)),
                Holder::Profile(_) => format!("{}: {says}", place(&at)),
            }
        }
        Cause::TierEnd(tier) => format!("end of tier {tier}"),
        Cause::NoProfile => format!("no policy decided, and no profile of {who} has a rule that matches"),
        Cause::MissingProfile(name) => {
            format!("profile {name} does not exist, and what does not exist allows nothing")
        }
        Cause::NothingSaid => "no policy says anything about it".to_owned(),
        Cause::Connection(Connection::Invalid) => "connection tracking can make nothing of it".to_owned(),
        Cause::Connection(_) => "it belongs to a known flow".to_owned(),
        Cause::Down => format!("{who} is administratively down"),
        Cause::UnknownWorkload => "the interface belongs to no endpoint".to_owned(),
        Cause::Spoofed => format!("{who} may not send from this address"),
        Cause::Loopback => "workloads do not reach the loopback of their host".to_owned(),
        Cause::LinkLocal => "hosts do not forward to link-local addresses".to_owned(),
        Cause::Encapsulation => "workloads may not send VXLAN or IP in IP".to_owned(),
        Cause::Tunnel => "a tunnel between nodes of the cluster".to_owned(),
        Cause::UnknownTunnel => "nodes take VXLAN and IP in IP from nodes of the cluster alone".to_owned(),
        Cause::NeighbourDiscovery => "hosts answer neighbour discovery, whatever the policy".to_owned(),
        Cause::EndpointToHost(action) => match action {
            EndpointToHost::Drop => {
                "what workloads send to their own host is dropped (defaultEndpointToHostAction: Drop)"
                    .to_owned()
            }
            EndpointToHost::Return => {
                "the host's own firewall decides (defaultEndpointToHostAction: Return)".to_owned()
            }
            EndpointToHost::Accept => {
                "what workloads send to their own host is accepted (defaultEndpointToHostAction: Accept)"
                    .to_owned()
            }
        },
        Cause::Failsafe => "a failsafe port, which no policy closes".to_owned(),
        Cause::AcceptedBefore => "its host endpoint has accepted it at an earlier stage".to_owned(),
        Cause::NoHostEndpoint => "not policed: no host endpoint covers its interface".to_owned(),
        Cause::HostToWorkload => "a host reaches its own workloads, whatever their policies".to_owned(),
        Cause::NoForwardPolicy => "no policy for forwarded traffic".to_owned(),
        Cause::ServiceLoop => "no service has this address (serviceLoopPrevention)".to_owned(),
    }
}
