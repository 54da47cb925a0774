//! Creates the objects that every cluster has: ClusterInformation, the default tiers, and the default configurations.

use super::{EnvironmentVariables, StartupError};
use tortie_model::kinds::{
    BGPConfiguration, BGPConfigurationSpec, FelixConfiguration, FelixConfigurationSpec, IPAMConfiguration,
    IPAMConfigurationSpec,
};
use tortie_model::scalar::GoDuration;
use tortie_model::{Kind, ObjectMeta, Resource};
use tortie_store::{ResourceClient, StoreError};

pub async fn ensure_defaults(
    resources: &ResourceClient,
    variables: &EnvironmentVariables,
    node: &str,
    version: &str,
) -> Result<(), StartupError> {
    resources.ensure_initialized(version, variables.get("CLUSTER_TYPE")).await?;
    fill_in(resources, "default", |spec| {
        spec.reporting_interval.get_or_insert(GoDuration::from_secs(0));
        if spec.log_severity_screen.is_empty() {
            spec.log_severity_screen = "Info".to_owned();
        }
    })
    .await?;
    // In Kubernetes the settings of a node come with the DaemonSet.
    if !resources.client().capabilities().derives(Kind::Node) {
        fill_in(resources, &format!("node.{node}"), |spec| {
            if spec.default_endpoint_to_host_action.is_empty() {
                spec.default_endpoint_to_host_action = "Return".to_owned();
            }
        })
        .await?;
    }
    let ipam = IPAMConfigurationSpec { auto_allocate_blocks: Some(true), ..IPAMConfigurationSpec::default() };
    let objects: [Resource; 2] = [
        BGPConfiguration::new(named("default"), BGPConfigurationSpec::default()).into(),
        IPAMConfiguration::new(named("default"), ipam).into(),
    ];
    for object in objects {
        match resources.create(object).await {
            Ok(_) | Err(StoreError::AlreadyExists { .. } | StoreError::Unauthorized(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Creates a FelixConfiguration, or fills in the fields that are unset in an existing one.
async fn fill_in(
    resources: &ResourceClient,
    name: &str,
    fill: impl Fn(&mut FelixConfigurationSpec),
) -> Result<(), StartupError> {
    let written = resources.modify("", name, |stored: Result<FelixConfiguration, _>| match stored {
        Ok(mut known) => {
            let before = known.spec.clone();
            fill(&mut known.spec);
            Ok((known.spec != before).then_some(known))
        }
        Err(StoreError::DoesNotExist { .. }) => {
            let mut spec = FelixConfigurationSpec::default();
            fill(&mut spec);
            Ok(Some(FelixConfiguration::new(named(name), spec)))
        }
        Err(error) => Err(error),
    });
    match written.await {
        Ok(_) => Ok(()),
        // An object that this version cannot read or may not change is left alone, and the node starts without the
        // defaults.
        Err(error @ (StoreError::Validation(_) | StoreError::Parse { .. } | StoreError::Unauthorized(_))) => {
            tracing::warn!(name, %error, "cannot set the default values in the FelixConfiguration");
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: name.to_owned(), ..ObjectMeta::default() }
}
