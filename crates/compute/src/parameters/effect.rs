//! The effect of each parameter, or the reason why it has none.

use super::values::TAKES_EFFECT;
use tortie_model::kinds::{AcceptedValues, FelixParameter};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterEffect {
    /// A change takes effect immediately.
    Live { since: &'static str },
    /// The daemon reads the parameter when it starts.
    AtStart { since: &'static str },
    /// The parameter is accepted and has no effect.
    None { why: &'static str },
}

/// Parameters that can be set only by environment variables or in felix.cfg. FelixConfiguration has no field for them,
/// because Calico does not have them, or because they configure how a node receives FelixConfiguration.
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
        known.unwrap_or_else(|| ParameterEffect::None { why: find_no_effect_reason(key) })
    }
}

/// Reasons why parameters have no effect, by prefix of the key; the longest matching prefix applies.
const NO_EFFECT_REASONS: &[(&str, &str)] = &[
    ("", "Tortie does not have the function that it configures"),
    ("aws", "Tortie does not call the APIs of cloud providers"),
    ("bpf", "there is no eBPF dataplane"),
    ("cgroupV2Path", "there is no eBPF dataplane"),
    ("chainInsertMode", "Tortie does not use iptables chains; policy is in its own nf_tables table"),
    ("dataplane", "the dataplane is built in and cannot be replaced"),
    ("debug", "it is a debugging aid for developers of Felix"),
    ("feature", "the node detects the features of the kernel"),
    ("flowLogsCollectorDebugTrace", "it is a debugging aid for developers of Felix"),
    (
        "flowLogsFlushInterval",
        "flow records are kept in buckets of 15 s, and each is sent when it is complete",
    ),
    ("genericXDP", "Tortie does not use XDP; failsafe ports and untracked policy are nf_tables rules"),
    ("go", "it configures the Go runtime, which Tortie does not use"),
    ("ipsets", "Tortie uses nf_tables sets instead of ipsets"),
    ("iptables", "Tortie uses nf_tables instead of iptables"),
    ("kubeNodePortRanges", "it applies to kube-proxy's IPVS mode with iptables; policy is in nf_tables"),
    ("maxIpset", "nf_tables sets have no configured size"),
    ("netlink", "netlink requests have a fixed timeout of 30 s"),
    ("nftablesMode", "Tortie always uses nf_tables"),
    ("prometheusGo", "these are metrics of the Go runtime, which Tortie does not use"),
    ("requireMTUFile", "the node determines the MTU before it attaches the first workload"),
    ("sidecar", "Tortie has no sidecar acceleration"),
    ("usageReporting", "Tortie does not send usage reports"),
    ("useInternal", "the dataplane is built in and cannot be replaced"),
    ("windows", "Tortie runs on Linux only"),
    ("xdp", "Tortie does not use XDP; failsafe ports and untracked policy are nf_tables rules"),
];

fn find_no_effect_reason(key: &str) -> &'static str {
    let known = NO_EFFECT_REASONS.iter().filter(|(prefix, _)| key.starts_with(prefix));
    known.max_by_key(|(prefix, _)| prefix.len()).map_or("", |(_, why)| why)
}
