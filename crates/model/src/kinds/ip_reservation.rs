//! Addresses that are assigned only on explicit request.

use crate::object::NoStatus;
use crate::schema::forms;
use crate::validation::FieldChecker;
use crate::{Kind, ResourceSpec, TypedObject};

pub type IPReservation = TypedObject<IPReservationSpec>;

api_types! {
    pub struct IPReservationSpec {
        #[serde(rename = "reservedCIDRs")]
        #[schemars(schema_with = "forms::networks_or_addresses", extend("x-kubernetes-list-type" = "set"))]
        pub reserved_cidrs: Vec<String>,
    }
}

impl ResourceSpec for IPReservationSpec {
    const KIND: Kind = Kind::IPReservation;
    type Status = NoStatus;

    fn check(reservation: &IPReservation, at: &FieldChecker<'_>) {
        let at = at.field("spec").field("reservedCIDRs");
        for (at, cidr) in at.each(&reservation.spec.reserved_cidrs) {
            at.cidr(cidr);
        }
        at.unique(&reservation.spec.reserved_cidrs);
    }
}
