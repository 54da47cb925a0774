//! The KIND argument. Every word is accepted during argument parsing, so that an unknown kind gets
//! calicoctl's own message; shell completion still offers the kinds.

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command, Error};
use std::ffi::OsStr;
use tortie_model::Kind;

/// The kinds that the command line handles; other kinds are internal to the store.
pub const CLI_KINDS: &[Kind] = &[
    Kind::BGPConfiguration,
    Kind::BGPFilter,
    Kind::BGPPeer,
    Kind::CalicoNodeStatus,
    Kind::ClusterInformation,
    Kind::FelixConfiguration,
    Kind::GlobalNetworkPolicy,
    Kind::GlobalNetworkSet,
    Kind::HostEndpoint,
    Kind::IPAMConfiguration,
    Kind::IPPool,
    Kind::IPReservation,
    Kind::KubeControllersConfiguration,
    Kind::NetworkPolicy,
    Kind::NetworkSet,
    Kind::Node,
    Kind::Profile,
    Kind::StagedGlobalNetworkPolicy,
    Kind::StagedKubernetesNetworkPolicy,
    Kind::StagedNetworkPolicy,
    Kind::Tier,
    Kind::WorkloadEndpoint,
];

/// Returns the kind for a word on the command line.
pub fn parse_kind_word(word: &str) -> Option<Kind> {
    Kind::from_word(word).filter(|kind| CLI_KINDS.contains(kind))
}

/// Returns the kind most similar to an unknown word, for a suggestion.
pub fn similar_kind(word: &str) -> Option<&'static str> {
    const SIMILARITY_THRESHOLD: f64 = 0.9;
    let word = word.to_ascii_lowercase();
    let names = CLI_KINDS.iter().flat_map(|kind| [kind.plural(), kind.plural().trim_end_matches('s')]);
    let rated = names.map(|name| (strsim::jaro_winkler(&name.to_ascii_lowercase(), &word), name));
    let (likeness, name) = rated.max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    (likeness > SIMILARITY_THRESHOLD).then_some(name)
}

#[derive(Clone)]
pub struct KindWord;

impl TypedValueParser for KindWord {
    type Value = String;

    fn parse_ref(&self, cmd: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, Error> {
        StringValueParser::new().parse_ref(cmd, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(
            CLI_KINDS
                .iter()
                .map(|kind| PossibleValue::new(kind.plural()).aliases(kind.aliases().iter().copied())),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_table_in_any_case() {
        for (word, kind) in [
            ("IPPool", Kind::IPPool),
            ("pools", Kind::IPPool),
            ("GNP", Kind::GlobalNetworkPolicy),
            ("pol", Kind::NetworkPolicy),
            ("skpols", Kind::StagedKubernetesNetworkPolicy),
            ("stagedpolicies", Kind::StagedNetworkPolicy),
            ("gnetsets", Kind::GlobalNetworkSet),
            ("netsets", Kind::NetworkSet),
            ("no", Kind::Node),
            ("pros", Kind::Profile),
            ("nodestatuses", Kind::CalicoNodeStatus),
            ("reservation", Kind::IPReservation),
            ("kubecontrollersconfig", Kind::KubeControllersConfiguration),
            ("clusterinfos", Kind::ClusterInformation),
            ("bfs", Kind::BGPFilter),
            ("bp", Kind::BGPPeer),
            ("tiers", Kind::Tier),
            ("weps", Kind::WorkloadEndpoint),
            ("ipamconfigs", Kind::IPAMConfiguration),
            ("heps", Kind::HostEndpoint),
        ] {
            assert_eq!(parse_kind_word(word), Some(kind), "{word}");
        }
    }

    #[test]
    fn a_slip_is_recognised() {
        assert_eq!(similar_kind("ipool"), Some("ippool"));
        assert_eq!(similar_kind("GlobalNetworkPolcies"), Some("globalnetworkpolicies"));
        assert_eq!(similar_kind("networkpolcy").map(|name| name.starts_with("networkpolic")), Some(true));
        assert_eq!(similar_kind("pod"), None);
        assert_eq!(similar_kind(""), None);
    }

    #[test]
    fn internal_kinds_are_not_for_the_command_line() {
        for word in ["blockaffinity", "ipamblocks", "ipamhandle", "livemigration", "pod", ""] {
            assert_eq!(parse_kind_word(word), None, "{word}");
        }
    }
}
