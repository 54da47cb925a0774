//! The effect of each parameter, or the reason why it has none.

use super::values::TAKES_EFFECT;
use tortie_model::kinds::{AcceptedValues, FelixParameter};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterEffect {
    /// A change takes effect immediately.
    Live {
        since: &'static str,
    },
    /// Read when the daemon starts.
    AtStart {
        since: &'static str,
    },
    None {
        why: &'static str,
    },
}

/// Parameters that can be set only in the environment or the file. FelixConfiguration has no field for them, because
/// Calico does not have them, or because they configure how a node receives FelixConfiguration.
pub const OWN_PARAMETERS: &[FelixParameter] = &[
    own("cutDeniedFlows", "CutDeniedFlows", "false"),
    own("clampMSS", "ClampMSS", "false"),
    own("typhaAddr", "TyphaAddr", ""),
    own("typhaCAFile", "TyphaCAFile", ""),
    own("typhaCertFile", "TyphaCertFile", ""),
    own("typhaCN", "TyphaCN", ""),
    own("typhaKeyFile", "TyphaKeyFile", ""),
    own("typhaK8sNamespace", "TyphaK8sNamespace", "kube-system"),
    own("typhaK8sServiceName", "TyphaK8sServiceName", ""),
    own("typhaURISAN", "TyphaURISAN", ""),
    own("typhaReadTimeout", "TyphaReadTimeout", "30"),
    own("typhaWriteTimeout", "TyphaWriteTimeout", "10"),
];

const fn own(key: &'static str, name: &'static str, default: &'static str) -> FelixParameter {
    FelixParameter { key, name, accepts: AcceptedValues::Any, default }
}

impl ParameterEffect {
    pub fn of(key: &str) -> ParameterEffect {
        let known = TAKES_EFFECT.iter().find(|(known, _)| *known == key).map(|(_, effect)| *effect);
        known.unwrap_or_else(|| ParameterEffect::None { why: why_not(key) })
    }
}

/// Reasons by prefix of the key; the longest matching prefix applies.
const NO_EFFECT_REASONS: &[(&str, &str)] = &[
    ("", "nothing here depends on it"),
    ("aws", "Tortie does not talk to cloud providers"),
    ("bpf", "there is no eBPF dataplane"),
    ("cgroupV2Path", "there is no eBPF dataplane"),
    ("chainInsertMode", "there are no iptables chains; policy has a table of its own"),
    ("dataplane", "there is one dataplane, and it is built in"),
    ("debug", "these switches are for the reference's developers"),
    ("endpointStatus", "nothing here depends on it"),
    ("feature", "features are found out from the kernel"),
    ("flowLogs", "flow logs are not there yet"),
    ("genericXDP", "there is no XDP; failsafe and untracked rules are nf_tables rules"),
    ("go", "it tunes the runtime of a language that Tortie is not written in"),
    ("ipsets", "there are no ipsets; sets are nf_tables sets"),
    ("iptables", "there is no iptables; policy is nf_tables"),
    ("istio", "there is no support for Istio's ambient mode"),
    ("kubeNodePortRanges", "it is about kube-proxy's IPVS mode beside iptables; policy is nf_tables"),
    ("maxIpset", "sets grow as they need to"),
    ("netlink", "netlink requests have a time limit of their own, 30 s"),
    ("nftablesMode", "policy is always nf_tables"),
    ("policySync", "there is no policy synchronisation socket yet"),
    ("prometheusGo", "it counts the runtime of a language that Tortie is not written in"),
    ("requireMTUFile", "the MTU is found out before the first workload"),
    ("sidecar", "there is no sidecar acceleration"),
    ("usageReporting", "Tortie reports its use to nobody"),
    ("useInternal", "there is one dataplane, and it is built in"),
    ("windows", "Tortie runs on Linux"),
    ("xdp", "there is no XDP; failsafe and untracked rules are nf_tables rules"),
];

fn why_not(key: &str) -> &'static str {
    let known = NO_EFFECT_REASONS.iter().filter(|(beginning, _)| key.starts_with(beginning));
    known.max_by_key(|(beginning, _)| beginning.len()).map_or("", |(_, why)| why)
}
