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

/// A longer word may differ from the intended one by more slips of the keyboard: one, and one more for this many
/// characters.
const MAX_CHARS_PER_SLIP: usize = 8;

/// Returns the kind for a word on the command line.
pub fn parse_kind_word(word: &str) -> Option<Kind> {
    Kind::from_word(word).filter(|kind| CLI_KINDS.contains(kind))
}

/// Returns the word for a kind that is most similar to an unknown word, for a suggestion.
pub fn similar_kind(word: &str) -> Option<String> {
    similar_word(word, CLI_KINDS)
}

/// Returns the name, plural or alias of one of the kinds that is most similar to an unknown word.
pub fn similar_word(word: &str, kinds: &[Kind]) -> Option<String> {
    const SIMILARITY_THRESHOLD: f64 = 0.9;
    /// Shorter aliases resemble many other words.
    const MIN_ALIAS_CHARS: usize = 5;
    let word = word.to_ascii_lowercase();
    let names = kinds.iter().flat_map(|kind| [kind.plural().to_owned(), kind.name().to_ascii_lowercase()]);
    let aliases = kinds.iter().flat_map(|kind| kind.aliases().iter().copied());
    let aliases = aliases.filter(|alias| alias.len() >= MIN_ALIAS_CHARS).map(str::to_owned);
    let rated = names.chain(aliases).map(|name| (strsim::jaro_winkler(&name, &word), name));
    let (similarity, name) = rated.max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    let slips = strsim::osa_distance(&name, &word);
    let is_similar = similarity > SIMILARITY_THRESHOLD
        || (word.len() >= MIN_ALIAS_CHARS && slips <= 1 + word.len() / MAX_CHARS_PER_SLIP);
    is_similar.then_some(name)
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
        assert_eq!(similar_kind("ipool").as_deref(), Some("ippool"));
        assert_eq!(similar_kind("GlobalNetworkPolcies").as_deref(), Some("globalnetworkpolicies"));
        assert_eq!(similar_kind("networkpolcy").as_deref(), Some("networkpolicy"));
        for (word, meant) in [
            ("polciy", "policy"),
            ("teirs", "tiers"),
            ("nodse", "node"),
            ("noed", "node"),
            ("hostendpiont", "hostendpoint"),
            ("workloadendpionts", "workloadendpoints"),
            ("felixconifg", "felixconfig"),
            ("bgpconfigratoins", "bgpconfigurations"),
            ("perofiles", "profiles"),
        ] {
            assert_eq!(similar_kind(word).as_deref(), Some(meant), "{word}");
        }
        for other in ["pod", "pods", "deployment", "service", "secrets", "configmap", "ingress"] {
            assert_eq!(similar_kind(other), None, "{other}");
        }
        assert_eq!(similar_kind(""), None);
    }

    #[test]
    fn internal_kinds_are_not_for_the_command_line() {
        for word in ["blockaffinity", "ipamblocks", "ipamhandle", "livemigration", "pod", ""] {
            assert_eq!(parse_kind_word(word), None, "{word}");
        }
    }
}
