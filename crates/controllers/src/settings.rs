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

/// Returns the configuration that the controllers create if none exists.
pub fn build_initial_configuration() -> KubeControllersConfiguration {
    let reconciler = Some(ReconcilerConfig { reconciler_period: Some(DEFAULT_RECONCILER_PERIOD) });
    let host_endpoint =
        AutoHostEndpointConfig { auto_create: EnabledSwitch::Disabled, ..AutoHostEndpointConfig::default() };
    let controllers = ControllersConfig {
        node: Some(NodeControllerConfig {
            reconciler_period: Some(DEFAULT_RECONCILER_PERIOD),
            sync_labels: EnabledSwitch::Enabled,
            host_endpoint: Some(host_endpoint),
            leak_grace_period: Some(DEFAULT_LEAK_GRACE_PERIOD),
        }),
        policy: reconciler.clone(),
        workload_endpoint: reconciler.clone(),
        service_account: reconciler.clone(),
        namespace: reconciler,
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
    pub fn from_process() -> ControllerEnvironment {
        ControllerEnvironment::new(|name| std::env::var(name).ok())
    }

    fn new(variable: impl Fn(&str) -> Option<String>) -> ControllerEnvironment {
        let values = RECOGNISED_VARIABLES.into_iter().filter_map(|name| Some((name, variable(name)?)));
        ControllerEnvironment(values.filter(|(_, value)| !value.is_empty()).collect())
    }

    /// Returns an error if a variable has an invalid value. Called once at start.
    pub fn check(&self) -> Result<(), InvalidVariable> {
        self.apply_to(&build_initial_configuration().spec).map(drop)
    }

    /// Returns the configuration overridden by the environment variables.
    pub fn apply_to(
        &self,
        spec: &KubeControllersConfigurationSpec,
    ) -> Result<ControllerSettings, InvalidVariable> {
        let mut spec = spec.clone();
        let mut controllers = spec.controllers.take().unwrap_or_default();
        for (&name, value) in &self.0 {
            match name {
                "ENABLED_CONTROLLERS" => controllers = enable_listed(name, value, &controllers)?,
                "LOG_LEVEL" => spec.log_severity_screen = parse_log_level(name, value)?,
                "COMPACTION_PERIOD" => spec.etcd_v3_compaction_period = Some(parse_duration(name, value)?),
                "HEALTH_ENABLED" => spec.health_checks = parse_switch(name, value)?,
                "RECONCILER_PERIOD" => set_periods(&mut controllers, parse_duration(name, value)?),
                "SYNC_NODE_LABELS" => {
                    let labels = parse_switch(name, value)?;
                    controllers.node.iter_mut().for_each(|node| node.sync_labels = labels.clone());
                }
                // AUTO_HOST_ENDPOINTS
                _ => {
                    let create = parse_switch(name, value)?;
                    if let Some(node) = &mut controllers.node {
                        node.host_endpoint.get_or_insert_default().auto_create = create;
                    }
                }
            }
        }
        spec.controllers = Some(controllers);
        let variables = self.0.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        Ok(ControllerSettings { spec, variables })
    }
}

impl InvalidVariable {
    fn new(name: &'static str, value: &str, reason: impl Into<String>) -> InvalidVariable {
        InvalidVariable { name, value: value.to_owned(), reason: reason.into() }
    }
}

/// Returns a configuration in which only the listed controllers run. A listed controller that is not configured has its
/// default settings.
fn enable_listed(
    variable: &'static str,
    list: &str,
    configured: &ControllersConfig,
) -> Result<ControllersConfig, InvalidVariable> {
    let default = build_initial_configuration().spec.controllers.unwrap_or_default();
    let configured = configured.clone();
    let all = ControllersConfig {
        node: configured.node.or(default.node),
        policy: configured.policy.or(default.policy),
        workload_endpoint: configured.workload_endpoint.or(default.workload_endpoint),
        service_account: configured.service_account.or(default.service_account),
        namespace: configured.namespace.or(default.namespace),
        load_balancer: configured.load_balancer.or(default.load_balancer),
        migration: configured.migration,
    };
    let mut enabled = ControllersConfig { migration: all.migration, ..ControllersConfig::default() };
    for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        match name {
            "node" => enabled.node.clone_from(&all.node),
            "policy" => enabled.policy.clone_from(&all.policy),
            "namespace" | "profile" => enabled.namespace.clone_from(&all.namespace),
            "serviceaccount" => enabled.service_account.clone_from(&all.service_account),
            "workloadendpoint" => enabled.workload_endpoint.clone_from(&all.workload_endpoint),
            "loadbalancer" => enabled.load_balancer.clone_from(&all.load_balancer),
            other => {
                let reason = format!("unknown controller {other:?}");
                return Err(InvalidVariable::new(variable, list, reason));
            }
        }
    }
    Ok(enabled)
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

fn parse_log_level(variable: &'static str, value: &str) -> Result<ControllersLogLevel, InvalidVariable> {
    use tortie_model::scalar::StringEnum;
    let known = ControllersLogLevel::NAMES.iter().find(|name| name.eq_ignore_ascii_case(value));
    known.map(|name| ControllersLogLevel::from(*name)).ok_or_else(|| {
        let reason = format!("not one of {}", ControllersLogLevel::NAMES.join(", "));
        InvalidVariable::new(variable, value, reason)
    })
}

fn parse_switch(variable: &'static str, value: &str) -> Result<EnabledSwitch, InvalidVariable> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "enabled" => Ok(EnabledSwitch::Enabled),
        "false" | "disabled" => Ok(EnabledSwitch::Disabled),
        _ => Err(InvalidVariable::new(variable, value, "not one of true, false, enabled, disabled")),
    }
}

fn parse_duration(variable: &'static str, value: &str) -> Result<scalar::GoDuration, InvalidVariable> {
    value.parse().map_err(|_| InvalidVariable::new(variable, value, "not a duration like 5m"))
}

impl ControllerSettings {
    pub fn controllers(&self) -> ControllersConfig {
        self.spec.controllers.clone().unwrap_or_default()
    }

    pub fn node(&self) -> Option<NodeControllerConfig> {
        self.controllers().node
    }

    /// Returns which services are assigned an address, or `None` if the load-balancer controller is disabled.
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

    /// Returns whether misnamed policies are renamed. This is the default, because clients look up policies by their
    /// names.
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
        ControllerEnvironment::new(|wanted| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_initial_configuration_is_valid() {
        build_initial_configuration().validate().unwrap();
        let settings = environment(&[]).apply_to(&build_initial_configuration().spec).unwrap();
        assert_eq!(settings.leak_grace(), Some(Duration::from_secs(900)));
        assert_eq!(settings.balancer(), Some(AssignIPs::AllServices));
        assert_eq!(settings.metrics_port(), None);
        assert_eq!(settings.compaction_period(), Some(Duration::from_secs(600)));
        assert!(settings.migrates_policy_names());
        assert!(settings.variables.is_empty());
    }

    #[test]
    fn variables_override_the_configuration() {
        let given = [
            ("ENABLED_CONTROLLERS", "node, loadbalancer"),
            ("AUTO_HOST_ENDPOINTS", "enabled"),
            ("RECONCILER_PERIOD", "1m"),
            ("LOG_LEVEL", "debug"),
            ("COMPACTION_PERIOD", "0s"),
            ("OTHER", "x"),
        ];
        let settings = environment(&given).apply_to(&build_initial_configuration().spec).unwrap();
        let controllers = settings.controllers();
        assert!(controllers.policy.is_none() && controllers.load_balancer.is_some());
        let node = controllers.node.unwrap();
        assert_eq!(node.host_endpoint.unwrap().auto_create, EnabledSwitch::Enabled);
        assert_eq!(node.reconciler_period, Some(scalar::GoDuration::from_secs(60)));
        assert_eq!(settings.spec.log_severity_screen, ControllersLogLevel::Debug);
        assert_eq!(settings.variables.len(), 5);
        assert_eq!(settings.compaction_period(), None);
        assert!(settings.migrates_policy_names(), "ENABLED_CONTROLLERS does not affect it");
        let mut disabled = build_initial_configuration().spec;
        disabled.controllers = Some(ControllersConfig::default());
        let settings = environment(&given).apply_to(&disabled).unwrap();
        assert!(settings.node().is_some(), "a listed controller runs");
    }

    #[test]
    fn invalid_variables_are_rejected_by_name() {
        for (name, value, reason) in [
            ("ENABLED_CONTROLLERS", "node,cloud", "unknown controller \"cloud\""),
            ("RECONCILER_PERIOD", "often", "not a duration like 5m"),
            ("LOG_LEVEL", "loud", "not one of None, Debug, Info, Warning, Error, Fatal, Panic"),
            ("HEALTH_ENABLED", "perhaps", "not one of true, false, enabled, disabled"),
        ] {
            let error = environment(&[(name, value)]).check().unwrap_err().to_string();
            assert_eq!(error, format!("{name}={value}: {reason}"));
        }
    }

    #[test]
    fn a_zero_grace_period_disables_releases() {
        let mut spec = build_initial_configuration().spec;
        spec.controllers.as_mut().unwrap().node.as_mut().unwrap().leak_grace_period =
            Some(scalar::GoDuration::from_secs(0));
        assert_eq!(environment(&[]).apply_to(&spec).unwrap().leak_grace(), None);
    }
}
