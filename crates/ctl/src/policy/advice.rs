//! Suggests changes that would allow denied traffic.

use super::cluster::PolicyCluster;
use super::endpoint_lookup::TrafficParty;
use super::rule_text::{PacketScene, WrittenRule};
use super::section::{EvaluatedStep, describe_position};
use super::traffic::protocol_name;
use tortie_plan::evaluate::{Packet, PacketEnd, RuleCriterion, RuleHolder, VerdictCause};
use tortie_plan::{EndpointToHostAction, RuleAction};

/// Returns suggestions, starting with the smallest change.
pub fn advise(
    cause: VerdictCause<'_>,
    who: &str,
    asked: &[EvaluatedStep<'_>],
    cluster: &PolicyCluster,
    scene: &PacketScene<'_>,
) -> Vec<String> {
    match cause {
        VerdictCause::Rule(at) => match at.holder {
            RuleHolder::Profile(name) if !cluster.has_profile(name) => vec![profile_missing(name, who)],
            _ => {
                let rule = describe_position(&at);
                let mut all = advise_near_misses(asked, cluster, scene);
                all.push(format!("change {rule}, or let a rule before it allow this"));
                all
            }
        },
        VerdictCause::TierEnd(tier) => {
            let mut all = advise_near_misses(asked, cluster, scene);
            if all.is_empty() {
                all.push(format!("add a rule that allows it to a policy of tier {tier} that selects {who}"));
            }
            all
        }
        VerdictCause::NoProfile => {
            vec![format!("add a policy that selects {who} and allows it, or give {who} a profile that does")]
        }
        VerdictCause::MissingProfile(name) => vec![profile_missing(name, who)],
        VerdictCause::Encapsulation => vec![match scene.packet.protocol {
            Packet::UDP => "set allowVXLANPacketsFromWorkloads in FelixConfiguration".to_owned(),
            _ => "set allowIPIPPacketsFromWorkloads in FelixConfiguration".to_owned(),
        }],
        VerdictCause::UnknownTunnel => {
            vec![
                "add the sender to externalNodesList in FelixConfiguration, if it is one of your own"
                    .to_owned(),
            ]
        }
        VerdictCause::EndpointToHost(EndpointToHostAction::Drop) => {
            vec!["set defaultEndpointToHostAction to Return or Accept in FelixConfiguration".to_owned()]
        }
        _ => Vec::new(),
    }
}

fn profile_missing(name: &str, who: &str) -> String {
    format!("create profile {name}, or take it off {who}")
}

/// Returns suggestions for Allow rules that fail on a single criterion.
fn advise_near_misses(
    asked: &[EvaluatedStep<'_>],
    cluster: &PolicyCluster,
    scene: &PacketScene<'_>,
) -> Vec<String> {
    asked
        .iter()
        .filter(|asked| asked.at.rule.action == RuleAction::Allow)
        .filter_map(|asked| match asked.misses.as_slice() {
            [miss] => {
                let rule = describe_position(&asked.at);
                Some(advise_near_miss(miss, &rule, asked.written(cluster), cluster, scene))
            }
            _ => None,
        })
        .collect()
}

fn advise_near_miss(
    miss: &RuleCriterion<'_>,
    rule: &str,
    written: WrittenRule<'_>,
    cluster: &PolicyCluster,
    scene: &PacketScene<'_>,
) -> String {
    match *miss {
        RuleCriterion::Set(end, _) => {
            let party = scene.party(end);
            let name = &party.name;
            if party.node().is_none() {
                return format!(
                    "add {name} to a network set that the selector of {rule} matches, or to its nets"
                );
            }
            match (written.confined(end), party.namespace()) {
                (Some(confined), Some(own)) if own != confined => {
                    advise_namespace_selector(rule, party, own, cluster)
                }
                _ => format!("give {name} labels that {rule} selects, or widen that selector"),
            }
        }
        RuleCriterion::NotSet(end, _) => {
            format!("relabel {} so that {rule} no longer leaves it out", scene.party(end).name)
        }
        RuleCriterion::Nets(end, _) | RuleCriterion::NotNets(end, _) | RuleCriterion::Family(end, _) => {
            format!("let the nets of {rule} include {}", scene.party(end).name)
        }
        RuleCriterion::Ports(end, ..) | RuleCriterion::NotPorts(end, ..) => {
            let port = match end {
                PacketEnd::Source => scene.packet.source_port,
                PacketEnd::Destination => scene.packet.destination_port,
            };
            format!("let the ports of {rule} include {port}")
        }
        RuleCriterion::Service(end, _) => {
            format!("make {} an endpoint of the service that {rule} names", scene.party(end).name)
        }
        RuleCriterion::Http => {
            format!(
                "give the workload a proxy (policySyncPathPrefix), remove http from {rule} to allow whole connections, or \
                 set httpRulesWithoutProxy to Allow"
            )
        }
        RuleCriterion::HttpRequest(_) | RuleCriterion::HttpConnection => {
            format!("let the methods and paths of {rule} include the request")
        }
        RuleCriterion::Peer(end, _) => {
            format!("let the selectors of {rule} include the identity of {}", scene.party(end).name)
        }
        // A rule has one protocol, and its ports or ICMP type belong to it.
        RuleCriterion::Protocol(_) => {
            format!("add a rule like {rule} for {}", protocol_name(scene.packet.protocol))
        }
        RuleCriterion::Icmp(_) | RuleCriterion::NotIcmp(_) if scene.packet.icmp.is_none() => {
            format!("add a rule beside {rule} for {}", protocol_name(scene.packet.protocol))
        }
        RuleCriterion::Icmp(_) | RuleCriterion::NotIcmp(_) => format!("let {rule} match this ICMP type"),
        RuleCriterion::IpVersion(_) => format!("let {rule} match this IP version"),
        RuleCriterion::NotProtocol(_) => format!("let {rule} match this protocol"),
    }
}

/// Returns the suggestion for a rule that does not reach the namespace of an endpoint. Labels of a namespace can be
/// selected only if the endpoint has a profile that applies them, as pods of Kubernetes do.
fn advise_namespace_selector(
    rule: &str,
    party: &TrafficParty,
    namespace: &str,
    cluster: &PolicyCluster,
) -> String {
    let name = &party.name;
    if cluster.inherits_namespace_labels(party) {
        return format!(
            "give {rule} a namespaceSelector for the namespace of {name} and a selector for its labels"
        );
    }
    format!(
        "give {rule} namespaceSelector all() and a selector for {name} that contains projectcalico.org/namespace == \
         '{namespace}' (no profile of {name} has labels of its namespace)"
    )
}
