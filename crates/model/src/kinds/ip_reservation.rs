//! Addresses that are assigned only on explicit request.

use crate::object::{NoStatus, StatusForm};
use crate::scalar::is_default;
use crate::schema::forms;
use crate::validation::FieldChecker;
use crate::{Kind, ResourceSpec, TypedObject};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub type IPReservation = TypedObject<IPReservationSpec>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct IPReservationSpec {
    #[serde(rename = "reservedCIDRs", skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::networks_or_addresses", extend("x-kubernetes-list-type" = "set"))]
    pub reserved_cidrs: Vec<String>,
}

impl ResourceSpec for IPReservationSpec {
    const KIND: Kind = Kind::IPReservation;
    type Status = NoStatus;
    const STATUS: StatusForm = StatusForm::Absent;

    fn check(reservation: &IPReservation, at: &FieldChecker<'_>) {
        let at = at.field("spec").field("reservedCIDRs");
        for (at, cidr) in at.each(&reservation.spec.reserved_cidrs) {
            at.cidr(cidr);
        }
        at.unique(&reservation.spec.reserved_cidrs);
    }
}
