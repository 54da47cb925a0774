//! Slots: the entries of the datastore that belong to Neutron's objects, and the content that they should have.

use crate::names::{compose_endpoint_name, compose_policy_name};
use crate::neutron::{NeutronSubnet, PortRecord, SecurityGroup};
use crate::translate::{
    PolicyTranslation, TranslateError, is_wanted, translate_group, translate_migration, translate_port,
    translate_subnet,
};
use crate::{OpenStackRegion, stored_form};
use serde::{Deserialize, Serialize};
use tortie_model::dhcp::DhcpSubnet;
use tortie_model::{Kind, Resource, StoreKey, StoreValue};

/// One entry of the datastore that an object of Neutron determines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SlotKey {
    Endpoint { host: String, device_id: String, port_id: String },
    Migration { host: String, device_id: String, port_id: String },
    Policy { security_group_id: String },
    Subnet { subnet_id: String },
}

/// The object of Neutron that determines a slot. None of them is set if Neutron has no such object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SlotObject {
    pub port: Option<Box<PortRecord>>,
    pub security_group: Option<SecurityGroup>,
    pub subnet: Option<NeutronSubnet>,
}

/// Desired content of a slot.
#[derive(Debug)]
pub enum SlotContent {
    Absent,
    Resource(Resource),
    Subnet(Box<DhcpSubnet>),
}

/// Content with warnings about the parts of the object that it lacks.
#[derive(Debug)]
pub struct SlotTranslation {
    pub content: SlotContent,
    pub warnings: Vec<String>,
}

impl SlotKey {
    /// Returns the key of the entry; `None` if the object's ids cannot be part of a key. Such an entry cannot exist.
    pub fn to_store_key(&self, region: &OpenStackRegion) -> Option<StoreKey> {
        let namespace = region.namespace();
        match self {
            SlotKey::Endpoint { host, device_id, port_id } => {
                let name = compose_endpoint_name(host, device_id, port_id)?;
                Some(StoreKey::resource(Kind::WorkloadEndpoint, &namespace, &name))
            }
            SlotKey::Migration { host, device_id, port_id } => {
                let name = compose_endpoint_name(host, device_id, port_id)?;
                Some(StoreKey::resource(Kind::LiveMigration, &namespace, &name))
            }
            SlotKey::Policy { security_group_id } => is_path_segment(security_group_id).then(|| {
                StoreKey::resource(Kind::NetworkPolicy, &namespace, &compose_policy_name(security_group_id))
            }),
            SlotKey::Subnet { subnet_id } => is_path_segment(subnet_id)
                .then(|| StoreKey::DhcpSubnet { region: region.name().to_owned(), id: subnet_id.clone() }),
        }
    }

    /// Returns the content that the slot should have.
    pub fn translate(
        &self,
        object: &SlotObject,
        region: &OpenStackRegion,
    ) -> Result<SlotTranslation, TranslateError> {
        let mut warnings = Vec::new();
        let content = match self {
            SlotKey::Endpoint { host, .. } => match &object.port {
                Some(record) if self.matches_port(record) && is_wanted(&record.port, host) => {
                    SlotContent::Resource(translate_port(record, host, region)?.into())
                }
                _ => SlotContent::Absent,
            },
            SlotKey::Migration { host, .. } => match &object.port {
                Some(record) if self.matches_port(record) => {
                    match translate_migration(&record.port, host, region)? {
                        Some(migration) => SlotContent::Resource(migration.into()),
                        None => SlotContent::Absent,
                    }
                }
                _ => SlotContent::Absent,
            },
            SlotKey::Policy { .. } => match &object.security_group {
                Some(group) => {
                    let PolicyTranslation { policy, rejected } = translate_group(group, region)?;
                    warnings = rejected;
                    SlotContent::Resource(policy.into())
                }
                None => SlotContent::Absent,
            },
            SlotKey::Subnet { .. } => match &object.subnet {
                Some(subnet) => match translate_subnet(subnet)? {
                    Some(subnet) => SlotContent::Subnet(Box::new(subnet)),
                    None => SlotContent::Absent,
                },
                None => SlotContent::Absent,
            },
        };
        Ok(SlotTranslation { content, warnings })
    }

    /// Returns whether the slot belongs to the device that has the port now. A port can change its device.
    fn matches_port(&self, record: &PortRecord) -> bool {
        let (SlotKey::Endpoint { device_id, port_id, .. } | SlotKey::Migration { device_id, port_id, .. }) =
            self
        else {
            return false;
        };
        record.port.device_id == *device_id && record.port.id == *port_id
    }
}

impl SlotContent {
    /// Returns whether an entry already has this content.
    pub fn is_equal(&self, stored: &StoreValue) -> bool {
        match (self, stored) {
            (SlotContent::Resource(desired), StoreValue::Resource(stored)) => {
                !stored_form::differs(stored, desired)
            }
            (SlotContent::Subnet(desired), StoreValue::DhcpSubnet(stored)) => desired == stored,
            _ => false,
        }
    }
}

fn is_path_segment(id: &str) -> bool {
    !id.is_empty() && !id.contains('/')
}
