//! Suggests changes that would allow denied traffic.

use super::cluster::Cluster;
use super::section::{Asked, place};
use super::words::{Scene, Written};
use tortie_plan::evaluate::{Cause, Criterion, End, Holder, Packet};
use tortie_plan::{Action, EndpointToHost};

/// Returns suggestions, starting with the smallest change.
pub fn advise(
    cause: Cause<'_>,
    who: &str,
    asked: &[Asked<'_>],
    cluster: &Cluster,
    scene: &Scene<'_>,
) -> Vec<String> {
    match cause {
        Cause::Rule(at) => match at.holder {
            Holder::Profile(name) if !cluster.has_profile(name) => vec![profile_missing(name, who)],
            _ => {
                let rule = place(&at);
                let mut all = near(asked, cluster, scene);
                all.push(format!("change {rule}, or let a rule before it allow this"));
                all
            }
        },
        Cause::TierEnd(tier) => {
            let mut all = near(asked, cluster, scene);
            if all.is_empty() {
                all.push(format!("add a rule that allows it to a policy of tier {tier} that selects {who}"));
            }
            all
        }
        Cause::NoProfile => {
            vec![format!("add a policy that selects {who} and allows it, or give {who} a profile that does")]
        }
        Cause::MissingProfile(name) => vec![profile_missing(name, who)],
        Cause::Encapsulation => vec![match scene.packet.protocol {
            Packet::UDP => "set allowVXLANPacketsFromWorkloads in FelixConfiguration".to_owned(),
            _ => "set allowIPIPPacketsFromWorkloads in FelixConfiguration".to_owned(),
        }],
        Cause::UnknownTunnel => {
            vec![
                "add the sender to externalNodesList in FelixConfiguration, if it is one of your own"
                    .to_owned(),
            ]
        }
        Cause::EndpointToHost(EndpointToHost::Drop) => {
            vec!["set defaultEndpointToHostAction to Return or Accept in FelixConfiguration".to_owned()]
        }
        _ => Vec::new(),
    }
}

fn profile_missing(name: &str, who: &str) -> String {
    format!("create profile {name}, or take it off {who}")
}

/// Returns suggestions for Allow rules that fail on a single criterion.
fn near(asked: &[Asked<'_>], cluster: &Cluster, scene: &Scene<'_>) -> Vec<String> {
    asked
        .iter()
        .filter(|asked| asked.at.rule.action == Action::Allow)
        .filter_map(|asked| match asked.misses.as_slice() {
            [miss] => Some(remedy(miss, &place(&asked.at), asked.written(cluster), scene)),
            _ => None,
        })
        .collect()
}

fn remedy(miss: &Criterion<'_>, rule: &str, written: Written<'_>, scene: &Scene<'_>) -> String {
    let name = |end: End| scene.party(end).name.as_str();
    let outside = |end: End| scene.party(end).node().is_none();
    let elsewhere = |end: End| {
        let namespace = scene.party(end).namespace();
        written.confined(end).is_some_and(|confined| namespace.is_some_and(|own| own != confined))
    };
    match *miss {
        Criterion::Set(end, _) if outside(end) => {
            format!("add {} to a network set that the selector of {rule} matches, or to its nets", name(end))
        }
        Criterion::Set(end, _) if elsewhere(end) => {
            format!(
                "give {rule} a namespaceSelector for the namespace of {} and a selector for its labels",
                name(end)
            )
        }
        Criterion::Set(end, _) => {
            format!("give {} labels that {rule} selects, or widen that selector", name(end))
        }
        Criterion::NotSet(end, _) => format!("relabel {} so that {rule} no longer leaves it out", name(end)),
        Criterion::Nets(end, _) | Criterion::NotNets(end, _) | Criterion::Family(end, _) => {
            format!("let the nets of {rule} include {}", name(end))
        }
        Criterion::Ports(end, ..) | Criterion::NotPorts(end, ..) => {
            let port = match end {
                End::Source => scene.packet.source_port,
                End::Destination => scene.packet.destination_port,
            };
            format!("let the ports of {rule} include {port}")
        }
        Criterion::Service(end, _) => {
            format!("make {} an endpoint of the service that {rule} names", name(end))
        }
        Criterion::IpVersion(_)
        | Criterion::Protocol(_)
        | Criterion::NotProtocol(_)
        | Criterion::Icmp(_)
        | Criterion::NotIcmp(_) => format!("let {rule} match this protocol"),
    }
}
