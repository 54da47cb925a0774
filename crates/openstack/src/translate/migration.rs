//! Live migrations of ports.

use super::TranslateError;
use crate::OpenStackRegion;
use crate::names::{ORCHESTRATOR, compose_endpoint_name};
use crate::neutron::NeutronPort;
use tortie_model::ObjectMeta;
use tortie_model::kinds::{
    LiveMigration, LiveMigrationSource, LiveMigrationSpec, LiveMigrationTarget, WorkloadEndpointIdentifier,
};

/// Returns the migration of a port to a host; `None` if the port does not migrate there.
pub fn translate_migration(
    port: &NeutronPort,
    destination: &str,
    region: &OpenStackRegion,
) -> Result<Option<LiveMigration>, TranslateError> {
    if port.migrating_to() != Some(destination) {
        return Ok(None);
    }
    let name = compose_endpoint_name(destination, &port.device_id, &port.id).ok_or_else(|| {
        TranslateError::PortField {
            port: port.id.clone(),
            field: "device_id",
            value: port.device_id.clone(),
            expected: "an id that can be part of a name",
        }
    })?;
    let identify = |host: &str| WorkloadEndpointIdentifier {
        hostname: host.to_owned(),
        orchestrator_id: ORCHESTRATOR.to_owned(),
        workload_id: format!("{}/{}", region.namespace(), port.device_id),
        endpoint_id: port.id.clone(),
    };
    let source = LiveMigrationSource {
        workload_endpoint: Some(identify(&port.host)),
        ..LiveMigrationSource::default()
    };
    let target = LiveMigrationTarget {
        workload_endpoint: Some(identify(destination)),
        ..LiveMigrationTarget::default()
    };
    let metadata = ObjectMeta { name, namespace: region.namespace(), ..ObjectMeta::default() };
    Ok(Some(LiveMigration::new(metadata, LiveMigrationSpec { source: Some(source), target: Some(target) })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn migrations_name_both_endpoints() {
        let port: NeutronPort =
            serde_json::from_value(json!({"id": "p1", "device_id": "d1", "device_owner": "compute:nova",
            "binding:host_id": "cmp-1", "binding:profile": {"migrating_to": "cmp-2"}}))
            .unwrap();
        let region = OpenStackRegion::default();
        let migration = translate_migration(&port, "cmp-2", &region).unwrap().unwrap().to_value();
        let identify = |host: &str| {
            json!({"workloadEndpoint": {"hostname": host, "orchestratorID": "openstack", "workloadID": "openstack/d1",
                "endpointID": "p1"}})
        };
        assert_eq!(
            migration["metadata"],
            json!({"name": "cmp--2-openstack-d1-p1", "namespace": "openstack"})
        );
        assert_eq!(migration["spec"], json!({"source": identify("cmp-1"), "target": identify("cmp-2")}));
        assert!(translate_migration(&port, "cmp-1", &region).unwrap().is_none());
    }
}
