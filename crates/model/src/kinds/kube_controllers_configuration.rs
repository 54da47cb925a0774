//! Settings of kube-controllers. There is one object, `default`.

use super::cel_settings;
use super::shared::{EnabledSwitch, check_labels, check_name, check_pattern};
use crate::names;
use crate::object::StatusForm;
use crate::scalar::{GoDuration, StringEnum};
use crate::schema::forms;
use crate::validation::{FieldChecker, InclusiveRange};
use crate::{Kind, ResourceSpec, TypedObject, string_enum};
use std::collections::{BTreeMap, HashSet};

string_enum! {
    /// The lowest severity that is logged.
    pub enum ControllersLogLevel { None, Debug, Info, Warning, Error, Fatal, Panic }
}

string_enum! {
    /// The services of type LoadBalancer that get an address.
    pub enum AssignIPs { AllServices, RequestedServicesOnly }
}

/// The schema has the same bounds: without them, the estimated CEL cost would exceed the limit of Kubernetes.
const MAX_TEMPLATES: usize = 256;
const MAX_PATTERN_CHARS: usize = 1024;

pub type KubeControllersConfiguration = TypedObject<KubeControllersConfigurationSpec>;

api_types! {
    #[schemars(extend("required" = ["controllers"]))]
    pub struct KubeControllersConfigurationSpec {
        pub log_severity_screen: ControllersLogLevel,
        #[schemars(extend("default" = "Enabled"))]
        pub health_checks: EnabledSwitch,
        /// 0 disables compaction.
        pub etcd_v3_compaction_period: Option<GoDuration>,
        #[schemars(range(min = 0, max = 65535), extend("default" = 9094))]
        pub prometheus_metrics_port: Option<i64>,
        pub controllers: Option<ControllersConfig>,
        #[schemars(range(min = 0, max = 65535))]
        pub debug_profile_port: Option<i64>,
    }

    /// A controller that is omitted does not run.
    pub struct ControllersConfig {
        pub node: Option<NodeControllerConfig>,
        pub policy: Option<ReconcilerConfig>,
        pub workload_endpoint: Option<ReconcilerConfig>,
        pub service_account: Option<ReconcilerConfig>,
        pub namespace: Option<ReconcilerConfig>,
        pub load_balancer: Option<LoadBalancerControllerConfig>,
        pub migration: Option<MigrationControllerConfig>,
    }

    pub struct NodeControllerConfig {
        pub reconciler_period: Option<GoDuration>,
        pub sync_labels: EnabledSwitch,
        pub host_endpoint: Option<AutoHostEndpointConfig>,
        /// How long an address must appear leaked before it is released; 0 disables the release.
        #[schemars(extend("default" = "15m0s"))]
        pub leak_grace_period: Option<GoDuration>,
    }

    pub struct AutoHostEndpointConfig {
        pub auto_create: EnabledSwitch,
        pub create_default_host_endpoint: EnabledSwitch,
        #[schemars(length(max = 256), extend("x-kubernetes-validations" = cel_settings::unique_templates()))]
        pub templates: Vec<HostEndpointTemplate>,
    }

    /// Host endpoints to create for every node that the template selects.
    #[schemars(extend("required" = ["generateName"], "x-kubernetes-validations" = cel_settings::host_endpoint_template()))]
    pub struct HostEndpointTemplate {
        #[schemars(schema_with = "forms::name")]
        pub generate_name: String,
        #[serde(rename = "interfaceCIDRs")]
        #[schemars(schema_with = "forms::networks_or_addresses", extend("x-kubernetes-list-type" = "set"))]
        pub interface_cidrs: Vec<String>,
        /// A regular expression for interface names.
        #[schemars(schema_with = "forms::regex")]
        pub interface_pattern: String,
        #[schemars(schema_with = "forms::labels")]
        pub labels: BTreeMap<String, String>,
        pub annotations: BTreeMap<String, String>,
        #[schemars(schema_with = "forms::selector", extend("default" = "all()"))]
        pub node_selector: String,
    }

    pub struct ReconcilerConfig {
        pub reconciler_period: Option<GoDuration>,
    }

    pub struct LoadBalancerControllerConfig {
        #[serde(rename = "assignIPs")]
        #[schemars(extend("default" = "AllServices"))]
        pub assign_ips: AssignIPs,
    }

    pub struct MigrationControllerConfig {
        #[schemars(extend("default" = "Enabled"))]
        pub policy_name_migrator: EnabledSwitch,
    }

    /// The configuration that the controllers run with, and the environment variables that contributed to it.
    pub struct KubeControllersConfigurationStatus {
        pub running_config: Option<KubeControllersConfigurationSpec>,
        pub environment_vars: BTreeMap<String, String>,
    }
}

impl ResourceSpec for KubeControllersConfigurationSpec {
    const KIND: Kind = Kind::KubeControllersConfiguration;
    type Status = KubeControllersConfigurationStatus;
    const STATUS: StatusForm = StatusForm::Always;

    fn set_defaults(configuration: &mut KubeControllersConfiguration) {
        let spec = &mut configuration.spec;
        spec.prometheus_metrics_port.get_or_insert(9094);
        default_to(&mut spec.health_checks, EnabledSwitch::Enabled);
        let Some(controllers) = &mut spec.controllers else { return };
        if let Some(node) = &mut controllers.node {
            node.leak_grace_period.get_or_insert(GoDuration::from_secs(15 * 60));
            for template in node.host_endpoint.iter_mut().flat_map(|config| &mut config.templates) {
                if template.node_selector.is_empty() {
                    template.node_selector = "all()".to_owned();
                }
            }
        }
        if let Some(load_balancer) = &mut controllers.load_balancer {
            default_to(&mut load_balancer.assign_ips, AssignIPs::AllServices);
        }
        if let Some(migration) = &mut controllers.migration {
            default_to(&mut migration.policy_name_migrator, EnabledSwitch::Enabled);
        }
    }

    fn object_rules() -> Vec<serde_json::Value> {
        cel_settings::singleton()
    }

    fn check_spec(&self, at: &FieldChecker<'_>) {
        at.field("logSeverityScreen").one_of(&self.log_severity_screen);
        at.field("healthChecks").one_of(&self.health_checks);
        for (key, port) in [
            ("prometheusMetricsPort", self.prometheus_metrics_port),
            ("debugProfilePort", self.debug_profile_port),
        ] {
            if let Some(port) = port {
                at.field(key).within(port, InclusiveRange(0, 65535));
            }
        }
        match &self.controllers {
            Some(controllers) => controllers.check(&at.field("controllers")),
            None => at.field("controllers").fail("", "must be set, even if to an empty object"),
        }
    }
}

impl ControllersConfig {
    fn check(&self, at: &FieldChecker<'_>) {
        if let Some(node) = &self.node {
            let at = at.field("node");
            at.field("syncLabels").one_of(&node.sync_labels);
            if let Some(host_endpoint) = &node.host_endpoint {
                host_endpoint.check(&at.field("hostEndpoint"));
            }
        }
        if let Some(load_balancer) = &self.load_balancer {
            at.field("loadBalancer").field("assignIPs").one_of(&load_balancer.assign_ips);
        }
        if let Some(migration) = &self.migration {
            at.field("migration").field("policyNameMigrator").one_of(&migration.policy_name_migrator);
        }
    }
}

impl AutoHostEndpointConfig {
    fn check(&self, at: &FieldChecker<'_>) {
        at.field("autoCreate").one_of(&self.auto_create);
        at.field("createDefaultHostEndpoint").one_of(&self.create_default_host_endpoint);
        at.field("templates").max_items(&self.templates, MAX_TEMPLATES);
        let mut seen = HashSet::new();
        for (at, template) in at.field("templates").each(&self.templates) {
            template.check(&at);
            at.field("generateName").ensure(
                seen.insert(&template.generate_name),
                &template.generate_name,
                "another template has the same name",
            );
        }
    }
}

impl HostEndpointTemplate {
    fn check(&self, at: &FieldChecker<'_>) {
        check_name(&at.field("generateName"), &self.generate_name);
        at.field("interfaceCIDRs").ensure(
            !self.interface_cidrs.is_empty() || !self.interface_pattern.is_empty(),
            "",
            "at least one of interfaceCIDRs and interfacePattern must be set",
        );
        for (at, cidr) in at.field("interfaceCIDRs").each(&self.interface_cidrs) {
            at.cidr(cidr);
        }
        at.field("interfacePattern").max_chars(&self.interface_pattern, MAX_PATTERN_CHARS);
        check_pattern(&at.field("interfacePattern"), &self.interface_pattern);
        check_labels(&at.field("labels"), &self.labels);
        for key in self.annotations.keys() {
            at.field("annotations").key(key).report(key, names::check_annotation_key(key));
        }
        at.field("nodeSelector").selector(&self.node_selector);
    }
}

fn default_to<E: StringEnum>(value: &mut E, default: E) {
    if value.is_unset() {
        *value = default;
    }
}
