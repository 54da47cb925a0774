//! Settings of the controllers: the KubeControllersConfiguration `default`, overridden by environment variables.

use std::collections::BTreeMap;
use std::time::Duration;
use tortie_model::kinds::{
    AssignIPs, AutoHostEndpointConfig, ControllersConfig, ControllersLogLevel, EnabledSwitch,
    KubeControllersConfiguration, KubeControllersConfigurationSpec, LoadBalancerControllerConfig,
    MigrationControllerConfig, NodeControllerConfig, ReconcilerConfig,
};
use tortie_model::{ObjectMeta, scalar};

pub const CONFIGURATION_NAME: &str = "default";
const DEFAULT_RECONCILER_PERIOD: scalar::GoDuration = scalar::GoDuration::from_secs(300);
const DEFAULT_COMPACTION_PERIOD: scalar::GoDuration = scalar::GoDuration::from_secs(600);
const DEFAULT_LEAK_GRACE_PERIOD: scalar::GoDuration = scalar::GoDuration::from_secs(900);

/// An environment variable with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value}: {reason}")]
pub struct InvalidVariable {
    name: &'static str,
    value: String,
    reason: String,
}

/// Effective settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ControllerSettings {
    pub spec: KubeControllersConfigurationSpec,
    /// Environment variables that were applied.
    pub variables: BTreeMap<String, String>,
}

/// Values of the recognised environment variables that are set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerEnvironment(BTreeMap<&'static str, String>);

const RECOGNISED_VARIABLES: [&str; 7] = [
    "ENABLED_CONTROLLERS",
    "LOG_LEVEL",
    "RECONCILER_PERIOD",
    "COMPACTION_PERIOD",
    "HEALTH_ENABLED",
    "SYNC_NODE_LABELS",
    "AUTO_HOST_ENDPOINTS",
];

/// Returns the configuration that is created if none exists.
pub fn initial() -> KubeControllersConfiguration {
    let reconciler = || Some(ReconcilerConfig { reconciler_period: Some(DEFAULT_RECONCILER_PERIOD) });
    let host_endpoint =
        AutoHostEndpointConfig { auto_create: EnabledSwitch::Disabled, ..AutoHostEndpointConfig::default() };
    let controllers = ControllersConfig {
        node: Some(NodeControllerConfig {
            reconciler_period: Some(DEFAULT_RECONCILER_PERIOD),
            sync_labels: EnabledSwitch::Enabled,
            host_endpoint: Some(host_endpoint),
            leak_grace_period: Some(DEFAULT_LEAK_GRACE_PERIOD),
        }),
        policy: reconciler(),
        workload_endpoint: reconciler(),
        service_account: reconciler(),
        namespace: reconciler(),
        load_balancer: Some(LoadBalancerControllerConfig { assign_ips: AssignIPs::AllServices }),
        migration: Some(MigrationControllerConfig { policy_name_migrator: EnabledSwitch::Enabled }),
    };
    let spec = KubeControllersConfigurationSpec {
        log_severity_screen: ControllersLogLevel::Info,
        health_checks: EnabledSwitch::Enabled,
        etcd_v3_compaction_period: Some(DEFAULT_COMPACTION_PERIOD),
        controllers: Some(controllers),
        ..KubeControllersConfigurationSpec::default()
    };
    KubeControllersConfiguration::new(
        ObjectMeta { name: CONFIGURATION_NAME.to_owned(), ..ObjectMeta::default() },
        spec,
    )
}

impl ControllerEnvironment {
    pub fn of_process() -> ControllerEnvironment {
        ControllerEnvironment::of(|name| std::env::var(name).ok())
    }

    fn of(variable: impl Fn(&str) -> Option<String>) -> ControllerEnvironment {
        let set = |name: &'static str| Some((name, variable(name).filter(|value| !value.is_empty())?));
        ControllerEnvironment(RECOGNISED_VARIABLES.into_iter().filter_map(set).collect())
    }

    /// Returns an error if a variable has an invalid value. Called once at start.
    pub fn check(&self) -> Result<(), InvalidVariable> {
        self.over(&initial().spec).map(drop)
    }

    /// Returns the configuration overridden by the environment variables.
    pub fn over(
        &self,
        spec: &KubeControllersConfigurationSpec,
    ) -> Result<ControllerSettings, InvalidVariable> {
        let mut spec = spec.clone();
        let mut controllers = spec.controllers.take().unwrap_or_default();
        for (&name, value) in &self.0 {
            let bad =
                |reason: &str| InvalidVariable { name, value: value.clone(), reason: reason.to_owned() };
            let switch = || match value.to_ascii_lowercase().as_str() {
                "true" | "enabled" => Ok(EnabledSwitch::Enabled),
                "false" | "disabled" => Ok(EnabledSwitch::Disabled),
                _ => Err(bad("neither true nor false")),
            };
            let duration = || value.parse::<scalar::GoDuration>().map_err(|_| bad("not a duration like 5m"));
            match name {
                "ENABLED_CONTROLLERS" => {
                    controllers = enabled(value, &controllers).map_err(|reason| bad(&reason))?
                }
                "LOG_LEVEL" => {
                    spec.log_severity_screen = log_level(value).ok_or_else(|| bad("not a level"))?
                }
                "COMPACTION_PERIOD" => spec.etcd_v3_compaction_period = Some(duration()?),
                "HEALTH_ENABLED" => spec.health_checks = switch()?,
                "RECONCILER_PERIOD" => set_periods(&mut controllers, duration()?),
                "SYNC_NODE_LABELS" => {
                    let labels = switch()?;
                    controllers.node.iter_mut().for_each(|node| node.sync_labels = labels.clone());
                }
                _ => {
                    let create = switch()?;
                    if let Some(node) = &mut controllers.node {
                        node.host_endpoint.get_or_insert_default().auto_create = create.clone();
                    }
                }
            }
        }
        spec.controllers = Some(controllers);
        let variables = self.0.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        Ok(ControllerSettings { spec, variables })
    }
}

/// Returns a configuration in which only the listed controllers run, each as configured or else with its default.
fn enabled(list: &str, configured: &ControllersConfig) -> Result<ControllersConfig, String> {
    let default = initial().spec.controllers.unwrap_or_default();
    let mut controllers =
        ControllersConfig { migration: configured.migration.clone(), ..ControllersConfig::default() };
    for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        match name {
            "node" => controllers.node = configured.node.clone().or(default.node.clone()),
            "policy" => controllers.policy = configured.policy.clone().or(default.policy.clone()),
            "namespace" | "profile" => {
                controllers.namespace = configured.namespace.clone().or(default.namespace.clone());
            }
            "serviceaccount" => {
                controllers.service_account =
                    configured.service_account.clone().or(default.service_account.clone());
            }
            "workloadendpoint" => {
                controllers.workload_endpoint =
                    configured.workload_endpoint.clone().or(default.workload_endpoint.clone());
            }
            "loadbalancer" => {
                controllers.load_balancer =
                    configured.load_balancer.clone().or(default.load_balancer.clone());
            }
            other => return Err(format!("there is no controller {other:?}")),
        }
    }
    Ok(controllers)
}

fn set_periods(controllers: &mut ControllersConfig, period: scalar::GoDuration) {
    controllers.node.iter_mut().for_each(|node| node.reconciler_period = Some(period));
    let others = [
        &mut controllers.policy,
        &mut controllers.workload_endpoint,
        &mut controllers.service_account,
        &mut controllers.namespace,
    ];
    others.into_iter().flatten().for_each(|other| other.reconciler_period = Some(period));
}

fn log_level(text: &str) -> Option<ControllersLogLevel> {
    use tortie_model::scalar::StringEnum;
    let known = ControllersLogLevel::NAMES.iter().find(|name| name.eq_ignore_ascii_case(text))?;
    Some(ControllersLogLevel::from(*known))
}

impl ControllerSettings {
    pub fn controllers(&self) -> ControllersConfig {
        self.spec.controllers.clone().unwrap_or_default()
    }

    pub fn node(&self) -> Option<NodeControllerConfig> {
        self.controllers().node
    }

    /// Returns which services get an address, or `None` if the load-balancer controller is disabled.
    pub fn balancer(&self) -> Option<AssignIPs> {
        Some(self.controllers().load_balancer?.assign_ips)
    }

    /// Returns how long an address must appear leaked before it is released, or `None` to never release it.
    pub fn leak_grace(&self) -> Option<Duration> {
        let grace = self.node()?.leak_grace_period.unwrap_or(DEFAULT_LEAK_GRACE_PERIOD);
        grace.to_std().filter(|grace| !grace.is_zero())
    }

    /// Returns the interval of etcd compactions, or `None` to never compact.
    pub fn compaction_period(&self) -> Option<Duration> {
        let period = self.spec.etcd_v3_compaction_period.unwrap_or(DEFAULT_COMPACTION_PERIOD);
        period.to_std().filter(|period| !period.is_zero())
    }

    /// Returns whether misnamed policies are renamed. On by default, because clients look them up by their names.
    pub fn migrates_policy_names(&self) -> bool {
        let migration = self.controllers().migration;
        migration.is_none_or(|migration| migration.policy_name_migrator != EnabledSwitch::Disabled)
    }

    /// Returns the port of the metrics endpoint, if it is enabled.
    pub fn metrics_port(&self) -> Option<u16> {
        let port = self.spec.prometheus_metrics_port?;
        u16::try_from(port).ok().filter(|port| *port != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> ControllerEnvironment {
        ControllerEnvironment::of(|wanted| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn what_is_made_is_valid_and_means_what_it_says() {
        initial().validate().unwrap();
        let settings = environment(&[]).over(&initial().spec).unwrap();
        assert_eq!(settings.leak_grace(), Some(Duration::from_secs(900)));
        assert_eq!(settings.balancer(), Some(AssignIPs::AllServices));
        assert_eq!(settings.metrics_port(), None);
        assert_eq!(settings.compaction_period(), Some(Duration::from_secs(600)));
        assert!(settings.migrates_policy_names());
        assert!(settings.variables.is_empty());
    }

    #[test]
    fn variables_win() {
        let given = [
            ("ENABLED_CONTROLLERS", "node, loadbalancer"),
            ("AUTO_HOST_ENDPOINTS", "enabled"),
            ("RECONCILER_PERIOD", "1m"),
            ("LOG_LEVEL", "debug"),
            ("COMPACTION_PERIOD", "0s"),
            ("OTHER", "x"),
        ];
        let settings = environment(&given).over(&initial().spec).unwrap();
        let controllers = settings.controllers();
        assert!(controllers.policy.is_none() && controllers.load_balancer.is_some());
        let node = controllers.node.unwrap();
        assert_eq!(node.host_endpoint.unwrap().auto_create, EnabledSwitch::Enabled);
        assert_eq!(node.reconciler_period, Some(scalar::GoDuration::from_secs(60)));
        assert_eq!(settings.spec.log_severity_screen, ControllersLogLevel::Debug);
        assert_eq!(settings.variables.len(), 5);
        assert_eq!(settings.compaction_period(), None);
        assert!(settings.migrates_policy_names(), "it is no controller of that list");
        let mut off = initial().spec;
        off.controllers = Some(ControllersConfig::default());
        let settings = environment(&given).over(&off).unwrap();
        assert!(settings.node().is_some(), "a controller that the variable names runs");
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (name, value, reason) in [
            ("ENABLED_CONTROLLERS", "node,cloud", "there is no controller \"cloud\""),
            ("RECONCILER_PERIOD", "often", "not a duration like 5m"),
            ("LOG_LEVEL", "loud", "not a level"),
            ("HEALTH_ENABLED", "perhaps", "neither true nor false"),
        ] {
            let error = environment(&[(name, value)]).check().unwrap_err().to_string();
            assert_eq!(error, format!("{name}={value}: {reason}"));
        }
    }

    #[test]
    fn a_grace_of_nothing_is_off() {
        let mut spec = initial().spec;
        spec.controllers.as_mut().unwrap().node.as_mut().unwrap().leak_grace_period =
            Some(scalar::GoDuration::from_secs(0));
        assert_eq!(environment(&[]).over(&spec).unwrap().leak_grace(), None);
    }
}
