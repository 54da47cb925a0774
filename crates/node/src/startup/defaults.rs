//! What every cluster has: its ClusterInformation, the tiers, and settings to be changed later.

use super::{StartupError, Variables};
use tortie_model::kinds::{
    BGPConfiguration, BGPConfigurationSpec, FelixConfiguration, FelixConfigurationSpec,
};
use tortie_model::scalar::Duration;
use tortie_model::{ObjectMeta, Resource};
use tortie_store::{Error, Resources};

pub async fn ensure_defaults(
    resources: &Resources,
    variables: &Variables,
    node: &str,
    version: &str,
) -> Result<(), StartupError> {
    resources.ensure_initialized(version, variables.get("CLUSTER_TYPE")).await?;
    let named = |name: String| ObjectMeta { name, ..ObjectMeta::default() };
    let of_cluster = FelixConfigurationSpec {
        reporting_interval: Some(Duration::from_secs(0)),
        log_severity_screen: "Info".to_owned(),
        ..FelixConfigurationSpec::default()
    };
    let of_node = FelixConfigurationSpec {
        default_endpoint_to_host_action: "Return".to_owned(),
        ..FelixConfigurationSpec::default()
    };
    let mut objects: Vec<Resource> = vec![
        FelixConfiguration::new(named("default".into()), of_cluster).into(),
        BGPConfiguration::new(named("default".into()), BGPConfigurationSpec::default()).into(),
    ];
    // In Kubernetes the settings of a node come with the DaemonSet.
    if !resources.client().is_kubernetes() {
        objects.push(FelixConfiguration::new(named(format!("node.{node}")), of_node).into());
    }
    for object in objects {
        match resources.create(object).await {
            Ok(_) | Err(Error::AlreadyExists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
