//! Converts the steps of an evaluation trace into sections, one per endpoint, with descriptions.

use super::advice;
use super::cluster::PolicyCluster;
use super::rule_text::{self, PacketScene, WrittenRule};
use serde::Serialize;
use tortie_plan::evaluate::{
    ConntrackState, EvaluationStage, RuleCriterion, RuleHolder, RulePosition, TraceStep, VerdictCause,
};
use tortie_plan::{EndpointToHostAction, PolicyDirection, PolicyId, RuleAction};

/// The evaluation at one endpoint, or a decision of the node itself.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedSection {
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
pub struct EvaluatedStep<'p> {
    pub at: RulePosition<'p>,
    pub misses: Vec<RuleCriterion<'p>>,
}

/// Splits the trace of one node into sections.
pub fn sections(
    node: &str,
    steps: Vec<TraceStep<'_>>,
    cluster: &PolicyCluster,
    scene: &PacketScene<'_>,
) -> Vec<ExplainedSection> {
    let mut sections = Vec::new();
    let mut open = OpenSection::default();
    for step in steps {
        match step {
            TraceStep::Workload { id, direction } => {
                open = OpenSection::new(id.workload.clone(), direction, None);
            }
            TraceStep::Host { name, stage, direction } => {
                open = OpenSection::new(format!("host endpoint {name}"), direction, stage_name(stage));
            }
            TraceStep::Rule { at, misses } => open.asked.push(EvaluatedStep { at, misses }),
            TraceStep::Staged { id, would, .. } => open.staged.push(staged(id, would)),
            TraceStep::Policy { tier, id } => open.policies.push((tier, id)),
            // The step that decides contains the tier: its end, or a later step.
            TraceStep::TierEnd { .. } => {}
            TraceStep::Decided { allowed, cause } => {
                sections.push(open.close(node, allowed, cause, cluster, scene));
                open = OpenSection::default();
            }
        }
    }
    sections
}

struct OpenSection<'p> {
    endpoint: Option<String>,
    direction: PolicyDirection,
    stage: Option<&'static str>,
    asked: Vec<EvaluatedStep<'p>>,
    /// The enforced policies, with their tiers.
    policies: Vec<(&'p str, &'p PolicyId)>,
    staged: Vec<String>,
}

impl Default for OpenSection<'_> {
    fn default() -> Self {
        OpenSection {
            endpoint: None,
            direction: PolicyDirection::Ingress,
            stage: None,
            asked: Vec::new(),
            policies: Vec::new(),
            staged: Vec::new(),
        }
    }
}

impl<'p> OpenSection<'p> {
    fn new(endpoint: String, direction: PolicyDirection, stage: Option<&'static str>) -> OpenSection<'p> {
        OpenSection { endpoint: Some(endpoint), direction, stage, ..OpenSection::default() }
    }

    fn close(
        self,
        node: &str,
        allowed: bool,
        cause: VerdictCause<'p>,
        cluster: &PolicyCluster,
        scene: &PacketScene<'_>,
    ) -> ExplainedSection {
        let who = self.endpoint.clone().unwrap_or_else(|| format!("node {node}"));
        let because = match cause {
            VerdictCause::TierEnd(tier) => self.tier_end(tier, &who),
            cause => because(cause, &who, cluster),
        };
        let mut advice = Vec::new();
        if !allowed {
            advice = advice::advise(cause, &who, &self.asked, cluster, scene);
        }
        let rules = self.asked.iter().map(|asked| asked.seen(cluster, scene)).collect();
        let direction = self.endpoint.is_some().then_some(direction_name(self.direction));
        ExplainedSection {
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
            rule_text::list(&names)
        )
    }
}

impl EvaluatedStep<'_> {
    pub fn written<'a>(&'a self, cluster: &'a PolicyCluster) -> WrittenRule<'a> {
        let namespace = match self.at.holder {
            RuleHolder::Policy { id, .. } => id.namespace.as_str(),
            RuleHolder::Profile(_) => "",
        };
        WrittenRule { rule: cluster.rule(&self.at), namespace }
    }

    fn seen(&self, cluster: &PolicyCluster, scene: &PacketScene<'_>) -> EvaluatedRule {
        let written = self.written(cluster);
        let (tier, of) = match self.at.holder {
            RuleHolder::Policy { tier, id } => (Some(tier.to_owned()), id.to_string()),
            RuleHolder::Profile(name) => (None, format!("profile {name}")),
        };
        EvaluatedRule {
            tier,
            of,
            rule: self.at.index.number(),
            action: action_name(self.at.rule.action),
            says: written
                .rule
                .map_or_else(|| action_name(self.at.rule.action).to_owned(), rule_text::describe_rule),
            matched: self.misses.is_empty(),
            missing: self.misses.iter().map(|miss| scene.miss(miss, written)).collect(),
        }
    }
}

/// Formats the position of a rule.
pub fn describe_position(at: &RulePosition<'_>) -> String {
    match at.holder {
        RuleHolder::Policy { id, .. } => format!("{id}, {} rule {}", at.direction, at.index),
        RuleHolder::Profile(name) => format!("profile {name}, {} rule {}", at.direction, at.index),
    }
}

fn staged(id: &PolicyId, would: Option<RulePosition<'_>>) -> String {
    match would {
        Some(at) => {
            let action = action_name(at.rule.action).to_lowercase();
            format!("{} would {action} it", describe_position(&at))
        }
        None => format!("{id} has no rule for it, and the end of its tier would decide"),
    }
}

pub fn direction_name(direction: PolicyDirection) -> &'static str {
    match direction {
        PolicyDirection::Ingress => "ingress",
        PolicyDirection::Egress => "egress",
    }
}

fn stage_name(stage: EvaluationStage) -> Option<&'static str> {
    match stage {
        EvaluationStage::Normal => None,
        EvaluationStage::Forward => Some("forwarded traffic"),
        EvaluationStage::Untracked => Some("before connection tracking"),
        EvaluationStage::PreDnat => Some("before DNAT"),
    }
}

fn action_name(action: RuleAction) -> &'static str {
    match action {
        RuleAction::Allow => "Allow",
        RuleAction::Deny => "Deny",
        RuleAction::Log => "Log",
        RuleAction::Pass => "Pass",
    }
}

/// Returns the machine-readable name of a cause.
fn kind(cause: VerdictCause<'_>) -> &'static str {
    match cause {
        VerdictCause::Rule(_) => "rule",
        VerdictCause::TierEnd(_) => "tierEnd",
        VerdictCause::NoProfile => "noProfile",
        VerdictCause::MissingProfile(_) => "missingProfile",
        VerdictCause::NothingSaid => "nothingSaid",
        VerdictCause::Connection(_) => "connection",
        VerdictCause::Down => "down",
        VerdictCause::UnknownWorkload => "unknownWorkload",
        VerdictCause::Spoofed => "spoofed",
        VerdictCause::Loopback => "loopback",
        VerdictCause::LinkLocal => "linkLocal",
        VerdictCause::Encapsulation => "encapsulation",
        VerdictCause::Tunnel => "tunnel",
        VerdictCause::UnknownTunnel => "unknownTunnel",
        VerdictCause::NeighbourDiscovery => "neighbourDiscovery",
        VerdictCause::EndpointToHost(_) => "endpointToHost",
        VerdictCause::Failsafe => "failsafe",
        VerdictCause::AcceptedBefore => "acceptedBefore",
        VerdictCause::NoHostEndpoint => "noHostEndpoint",
        VerdictCause::HostToWorkload => "hostToWorkload",
        VerdictCause::NoForwardPolicy => "noForwardPolicy",
        VerdictCause::ServiceLoop => "serviceLoop",
    }
}

fn because(cause: VerdictCause<'_>, who: &str, cluster: &PolicyCluster) -> String {
    match cause {
        VerdictCause::Rule(RulePosition { holder: RuleHolder::Profile(name), .. })
            if !cluster.has_profile(name) =>
        {
            format!("profile {name} does not exist, and what does not exist allows nothing")
        }
        VerdictCause::Rule(at) => {
            let written = cluster.rule(&at);
            let says =
                written.map_or_else(|| action_name(at.rule.action).to_owned(), rule_text::describe_rule);
            match at.holder {
                RuleHolder::Policy { tier, .. } => {
                    format!("{} (tier {tier}): {says}", describe_position(&at))
                }
                RuleHolder::Profile(_) => format!("{}: {says}", describe_position(&at)),
            }
        }
        VerdictCause::TierEnd(tier) => format!("end of tier {tier}"),
        VerdictCause::NoProfile => {
            format!("no policy decided, and no profile of {who} has a rule that matches")
        }
        VerdictCause::MissingProfile(name) => {
            format!("profile {name} does not exist, and what does not exist allows nothing")
        }
        VerdictCause::NothingSaid => "no policy says anything about it".to_owned(),
        VerdictCause::Connection(ConntrackState::Invalid) => {
            "connection tracking can make nothing of it".to_owned()
        }
        VerdictCause::Connection(_) => "it belongs to a known flow".to_owned(),
        VerdictCause::Down => format!("{who} is administratively down"),
        VerdictCause::UnknownWorkload => "the interface belongs to no endpoint".to_owned(),
        VerdictCause::Spoofed => format!("{who} may not send from this address"),
        VerdictCause::Loopback => "workloads do not reach the loopback of their host".to_owned(),
        VerdictCause::LinkLocal => "hosts do not forward to link-local addresses".to_owned(),
        VerdictCause::Encapsulation => "workloads may not send VXLAN or IP in IP".to_owned(),
        VerdictCause::Tunnel => "a tunnel between nodes of the cluster".to_owned(),
        VerdictCause::UnknownTunnel => {
            "nodes take VXLAN and IP in IP from nodes of the cluster alone".to_owned()
        }
        VerdictCause::NeighbourDiscovery => {
            "hosts answer neighbour discovery, whatever the policy".to_owned()
        }
        VerdictCause::EndpointToHost(action) => match action {
            EndpointToHostAction::Drop => {
                "what workloads send to their own host is dropped (defaultEndpointToHostAction: Drop)"
                    .to_owned()
            }
            EndpointToHostAction::Return => {
                "the host's own firewall decides (defaultEndpointToHostAction: Return)".to_owned()
            }
            EndpointToHostAction::Accept => {
                "what workloads send to their own host is accepted (defaultEndpointToHostAction: Accept)"
                    .to_owned()
            }
        },
        VerdictCause::Failsafe => "a failsafe port, which no policy closes".to_owned(),
        VerdictCause::AcceptedBefore => "its host endpoint has accepted it at an earlier stage".to_owned(),
        VerdictCause::NoHostEndpoint => "not policed: no host endpoint covers its interface".to_owned(),
        VerdictCause::HostToWorkload => {
            "a host reaches its own workloads, whatever their policies".to_owned()
        }
        VerdictCause::NoForwardPolicy => "no policy for forwarded traffic".to_owned(),
        VerdictCause::ServiceLoop => "no service has this address (serviceLoopPrevention)".to_owned(),
    }
}
