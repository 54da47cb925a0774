//! Resolves the value of each parameter of the node's daemon, and its source: the environment first, then the file on
//! this host, then the FelixConfiguration of the node, of a selector, of the cluster, then the built-in default.

mod descriptions;
mod effect;
mod read;
mod values;

pub use descriptions::describe_parameter;
pub use effect::{OWN_PARAMETERS, ParameterEffect};
pub use read::{
    ClientAuth, ClusterRoutes, FirstRouteTable, FlowEvaluation, FlowOffload, HttpRulesWithoutProxy,
    L2Reachability, LogRate, LogSeverity, NatExclusions, OptionalParameter, RouteSource, SourceSpoofing,
};
pub use values::Values;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use tortie_model::kinds::{FelixConfiguration, FelixConfigurationSpec, FelixParameter};
use tortie_model::selector::Selector;
use tortie_plan::{EndpointToHostAction, MarkBits};

/// The variables and the lines of a file that set parameters, by name without `FELIX_`, in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParameterEnvironment {
    variables: BTreeMap<String, String>,
    file: BTreeMap<String, String>,
}

/// The source of a value, in descending order of precedence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParameterSource {
    /// A variable `FELIX_<NAME>`.
    Environment,
    /// A line of `felix.cfg`.
    File,
    /// The FelixConfiguration `node.<name>`.
    Node(String),
    /// A FelixConfiguration whose nodeSelector picks this node.
    Selector(String),
    /// The FelixConfiguration `default`.
    Cluster,
    BuiltIn,
}

/// The parameters of one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeParameters {
    values: Values,
    /// By key, as written.
    set: BTreeMap<&'static str, (String, ParameterSource)>,
    warnings: Vec<String>,
    /// `None` if the mask has too few bits.
    marks: Option<MarkBits>,
}

/// One parameter with its value on a node.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedParameter {
    pub parameter: &'static FelixParameter,
    /// As written; the default if it is not set.
    pub value: String,
    pub source: ParameterSource,
    pub effect: ParameterEffect,
}

impl ParameterEnvironment {
    /// Creates an environment from all variables of a process, of which those without `FELIX_` are ignored, and the
    /// settings of a file. Names are case-insensitive, and an empty value sets nothing.
    pub fn new(
        variables: impl IntoIterator<Item = (String, String)>,
        file: impl IntoIterator<Item = (String, String)>,
    ) -> ParameterEnvironment {
        let variables = variables.into_iter().filter_map(|(name, value)| {
            let name = name.to_ascii_lowercase();
            name.strip_prefix("felix_").map(|name| (name.to_owned(), value))
        });
        let file = file.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value));
        ParameterEnvironment { variables: drop_unset(variables), file: drop_unset(file) }
    }
}

fn drop_unset(texts: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    texts.filter(|(name, value)| !name.is_empty() && !value.trim().is_empty()).collect()
}

impl ParameterSource {
    /// Returns a word that identifies the kind of source in machine-readable output.
    pub fn word(&self) -> &'static str {
        match self {
            ParameterSource::Environment => "environment",
            ParameterSource::File => "file",
            ParameterSource::Node(_) => "node",
            ParameterSource::Selector(_) => "selector",
            ParameterSource::Cluster => "default",
            ParameterSource::BuiltIn => "built-in",
        }
    }
}

impl fmt::Display for ParameterSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParameterSource::Environment => f.write_str("environment"),
            ParameterSource::File => f.write_str("felix.cfg"),
            ParameterSource::Node(name) | ParameterSource::Selector(name) => {
                write!(f, "FelixConfiguration {name}")
            }
            ParameterSource::Cluster => f.write_str("FelixConfiguration default"),
            ParameterSource::BuiltIn => f.write_str("built-in"),
        }
    }
}

impl Deref for NodeParameters {
    type Target = Values;

    fn deref(&self) -> &Values {
        &self.values
    }
}

impl NodeParameters {
    pub fn resolve<'a>(
        host: &str,
        labels: &BTreeMap<String, String>,
        configurations: impl IntoIterator<Item = &'a FelixConfiguration>,
        environment: &ParameterEnvironment,
    ) -> NodeParameters {
        let SelectedConfigurations { node, selector, cluster } =
            select_configurations(host, labels, configurations);
        let mut set = BTreeMap::new();
        let in_ascending_precedence = [
            cluster.map(|cluster| (cluster, ParameterSource::Cluster)),
            selector.map(|selector| (selector, ParameterSource::Selector(selector.metadata.name.clone()))),
            node.map(|node| (node, ParameterSource::Node(node.metadata.name.clone()))),
        ];
        for (configuration, source) in in_ascending_precedence.into_iter().flatten() {
            for (parameter, text) in configuration.spec.set() {
                set.insert(parameter.key, (text, source.clone()));
            }
        }
        let mut warnings = Vec::new();
        for (source, texts) in [
            (ParameterSource::File, &environment.file),
            (ParameterSource::Environment, &environment.variables),
        ] {
            for (name, text) in texts {
                match all().find(|parameter| parameter.name.eq_ignore_ascii_case(name)) {
                    Some(parameter) => drop(set.insert(parameter.key, (text.clone(), source.clone()))),
                    None => warnings.push(format!("{name} ({source}): unknown parameter")),
                }
            }
        }
        let values = Values::read(
            |key| set.get(key).map(|(text, _)| text.as_str()),
            |parameter, why| {
                let source = set.get(parameter.key).map_or(&ParameterSource::BuiltIn, |(_, source)| source);
                warnings.push(format!("{} ({source}): {why}", parameter.key));
            },
        );
        warnings.extend(find_loosened_action(node, cluster));
        let marks = select_marks(&values, &set, &mut warnings);
        let parameters = NodeParameters { values, set, warnings: Vec::new(), marks };
        let idle = parameters.all().filter_map(|in_force| in_force.without_effect());
        warnings.extend(idle);
        NodeParameters { warnings, ..parameters }
    }

    /// Returns every parameter with its value, in the order of the table.
    pub fn all(&self) -> impl Iterator<Item = ResolvedParameter> {
        all().map(|parameter| {
            let (value, source) = match self.set.get(parameter.key) {
                Some((value, source)) => (value.clone(), source.clone()),
                None => (parameter.default.to_owned(), ParameterSource::BuiltIn),
            };
            ResolvedParameter { parameter, value, source, effect: ParameterEffect::of(parameter.key) }
        })
    }

    /// Returns the bits of the packet mark that the node uses.
    pub fn marks(&self) -> MarkBits {
        self.marks.unwrap_or_default()
    }

    /// Keeps the previous bits if the mask has too few.
    pub(crate) fn keep_marks(&mut self, previous: &NodeParameters) {
        self.marks = self.marks.or(previous.marks);
    }

    /// Returns warnings for users: values that cannot be parsed, unknown names, values without effect, and a node
    /// that allows traffic that the cluster-wide configuration denies.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl ResolvedParameter {
    /// Returns a warning if a parameter without effect has a value other than its default.
    fn without_effect(&self) -> Option<String> {
        let ParameterEffect::None { why } = self.effect else { return None };
        let unchanged = self.value.eq_ignore_ascii_case(self.parameter.default)
            || (self.parameter.default.is_empty() && self.value.eq_ignore_ascii_case("none"));
        if self.source == ParameterSource::BuiltIn || unchanged {
            return None;
        }
        Some(format!("{} ({}): {} has no effect here: {why}", self.parameter.key, self.source, self.value))
    }
}

/// Returns the bits of the mask in use: that of nftables if it is set, else that of iptables, for users who migrate
/// from it.
fn select_marks(
    values: &Values,
    set: &BTreeMap<&'static str, (String, ParameterSource)>,
    warnings: &mut Vec<String>,
) -> Option<MarkBits> {
    let (key, mask) = match values.nftables_mark_mask.get() {
        Some(mask) => ("nftablesMarkMask", *mask),
        None => ("iptablesMarkMask", values.iptables_mark_mask),
    };
    let encrypts = values.wireguard_enabled || values.wireguard_enabled_v6;
    let marks = MarkBits::of_mask(mask.0).filter(|marks| !encrypts || marks.wireguard.is_some());
    if marks.is_none() {
        let source = set.get(key).map_or(&ParameterSource::BuiltIn, |(_, source)| source);
        let needed = if encrypts { "3, one for WireGuard" } else { "2" };
        warnings.push(format!(
            "{key} ({source}): {:#x} has {} bits and policy needs {needed}; the previous bits stay in use",
            mask.0,
            mask.0.count_ones()
        ));
    }
    marks
}

struct SelectedConfigurations<'a> {
    node: Option<&'a FelixConfiguration>,
    selector: Option<&'a FelixConfiguration>,
    cluster: Option<&'a FelixConfiguration>,
}

fn select_configurations<'a>(
    host: &str,
    labels: &BTreeMap<String, String>,
    configurations: impl IntoIterator<Item = &'a FelixConfiguration>,
) -> SelectedConfigurations<'a> {
    let own = format!("node.{host}");
    let mut chosen = SelectedConfigurations { node: None, selector: None, cluster: None };
    for configuration in configurations {
        let meta = &configuration.metadata;
        if meta.name == own {
            chosen.node = Some(configuration);
        } else if meta.name == "default" {
            chosen.cluster = Some(configuration);
        } else if selects(&configuration.spec.node_selector, labels) {
            // The oldest matching configuration applies; if several are equally old, the first by name.
            let older = chosen.selector.is_none_or(|other| {
                let other = &other.metadata;
                let created = meta.creation_timestamp.as_deref().unwrap_or_default();
                (created, &meta.name) < (other.creation_timestamp.as_deref().unwrap_or_default(), &other.name)
            });
            chosen.selector = if older { Some(configuration) } else { chosen.selector };
        }
    }
    chosen
}

fn selects(selector: &str, labels: &BTreeMap<String, String>) -> bool {
    !selector.is_empty() && Selector::parse(selector).is_ok_and(|selector| selector.matches(labels))
}

/// Returns a warning if a node's own configuration lets workloads reach the host and the cluster-wide one does not.
fn find_loosened_action(
    node: Option<&FelixConfiguration>,
    cluster: Option<&FelixConfiguration>,
) -> Option<String> {
    let node = node?;
    let (on_node, ours) = endpoint_to_host_action(node)?;
    let (on_all, theirs) = endpoint_to_host_action(cluster?)?;
    (on_node > on_all).then(|| {
        format!(
            "defaultEndpointToHostAction: FelixConfiguration {} sets {ours:?}, which lets workloads reach this host, \
             although FelixConfiguration default sets {theirs:?}; remove the field from the former if this is not intended",
            node.metadata.name
        )
    })
}

/// Returns the action on traffic from workloads to the host, with a rank: a higher one allows more.
fn endpoint_to_host_action(configuration: &FelixConfiguration) -> Option<(u8, EndpointToHostAction)> {
    let text = &configuration.spec.default_endpoint_to_host_action;
    match text.to_ascii_lowercase().as_str() {
        "drop" => Some((0, EndpointToHostAction::Drop)),
        "return" => Some((1, EndpointToHostAction::Return)),
        "accept" => Some((2, EndpointToHostAction::Accept)),
        _ => None,
    }
}

fn all() -> impl Iterator<Item = &'static FelixParameter> {
    FelixConfigurationSpec::PARAMETERS.iter().chain(OWN_PARAMETERS)
}

#[cfg(test)]
mod tests;
